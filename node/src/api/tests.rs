//! Compares the OpenAPI document with the router, and real answers with the document.

use axum::body::Body;
use axum::http::Request as HttpRequest;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::*;
use crate::config::Config;

const MANUAL: &str =
    concat!(include_str!("../../../docs/manual/api.md"), include_str!("../../../docs/manual/cluster.md"));

async fn server(dir: &std::path::Path) -> Router {
    let cache = "64MiB".parse().unwrap();
    router(Control::open(Config { data: dir.join("data"), cache, ..Config::default() }).await.unwrap(), None)
}

async fn ask(router: &Router, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    let builder = HttpRequest::builder().method(method).uri(path).header("content-type", "application/json");
    let request = builder.body(body.map_or(Body::empty(), |body| Body::from(body.to_string()))).unwrap();
    let response = router.clone().oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into())))
}

fn document() -> Value {
    serde_json::to_value(routes().1).unwrap()
}

fn operations(document: &Value) -> Vec<(String, String)> {
    let paths = document["paths"].as_object().unwrap();
    let methods = |(path, item): (&String, &Value)| {
        item.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(methods).collect()
}

/// Every operation in the document is routed, and its paths have no other methods. There are no other paths, since
/// routes are only added together with their description.
#[tokio::test]
async fn the_document_and_the_router_agree() {
    let dir = tempfile::tempdir().unwrap();
    let router = server(dir.path()).await;
    let described = operations(&document());
    assert!(described.len() >= 13);
    for (_, path) in &described {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            let (status, answer) = ask(&router, method, &path.replace("{name}", "-"), None).await;
            let is_routed = !answer["error"].as_str().is_some_and(|error| error.starts_with("there is no "));
            let is_described = described.contains(&(method.into(), path.clone()));
            assert_eq!(is_routed, is_described, "{method} {path}: {status} {answer}");
        }
    }
    let source = [include_str!("routes.rs"), include_str!("mod.rs")].concat();
    assert!(!source.contains(concat!(".", "route(")), "routes are added with their description");
}

/// Method and path in the first cell of each row of the manual's table, with `{}` for each parameter.
fn documented() -> Vec<(String, String)> {
    let rows = MANUAL.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()?.split_once(' '));
    let rows = rows.filter(|(_, path)| path.starts_with('/'));
    let plain = |path: &str| {
        let parts = path.split('?').next().unwrap_or_default().split('/');
        let is_parameter = |part: &str| !part.is_empty() && part.chars().all(char::is_uppercase);
        parts.map(|part| if is_parameter(part) { "{}" } else { part }).collect::<Vec<_>>().join("/")
    };
    rows.map(|(method, path)| (method.to_owned(), plain(path))).collect()
}

#[test]
fn the_manual_lists_every_route_and_no_other() {
    let plain = |path: String| path.replace("{name}", "{}").replace("{disk}", "{}");
    let mut routed: Vec<_> = operations(&document()).into_iter().map(|(method, path)| (method, plain(path))).collect();
    let mut documented = documented();
    routed.sort();
    documented.sort();
    assert_eq!(documented, routed, "docs/manual/api.md against the routes");
}

/// Each field of a body or an answer, and each parameter of a path, is in the manual somewhere.
#[test]
fn the_manual_names_every_field_and_parameter() {
    let document = document();
    let is_named = |name: &str| MANUAL.contains(&format!("`{name}`")) || MANUAL.contains(&format!("\"{name}\""));
    for (schema, content) in document["components"]["schemas"].as_object().unwrap() {
        let fields = content["properties"].as_object().into_iter().flat_map(|fields| fields.keys());
        let missing: Vec<_> = fields.filter(|field| !is_named(field)).collect();
        assert!(missing.is_empty(), "docs/manual/api.md lacks {missing:?} of {schema}");
    }
    for (method, path) in operations(&document) {
        let parameters = document["paths"][&path][method.to_lowercase()]["parameters"].as_array();
        for parameter in parameters.into_iter().flatten().filter(|it| it["in"] == "query") {
            let text = format!("{}=", parameter["name"].as_str().unwrap());
            let row = MANUAL.lines().find(|line| line.starts_with(&format!("| `{method} ")) && line.contains(&text));
            assert!(row.is_some(), "docs/manual/api.md: {method} {path} lacks {text}");
        }
    }
}

fn check(document: &Value, method: &str, path: &str, status: u16, answer: &Value) {
    let responses = &document["paths"][path][method.to_lowercase()]["responses"];
    let class = format!("{}XX", status / 100);
    let response = responses.get(status.to_string()).or_else(|| responses.get(&class));
    let response = response.unwrap_or_else(|| panic!("{method} {path}: {status} is not described: {answer}"));
    let mut schema = response["content"]["application/json"]["schema"].clone();
    schema["components"] = document["components"].clone();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator.iter_errors(answer).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{method} {path}: {errors:?} in {answer}");
}

/// A request, and the status of its answer.
type Call<'a> = (&'a str, &'a str, Option<Value>, u16);

/// Requests for volumes and tenants: creates the volume `db`.
fn calls_for_volumes() -> Vec<Call<'static>> {
    let volume = json!({"name": "db", "size": "1MiB", "share": "1/4", "tenant": "team"});
    vec![
        ("GET", "/v1/status", None, 200),
        ("GET", "/v1/disks", None, 200),
        ("GET", "/v1/disks/default", None, 200),
        ("GET", "/v1/disks/absent", None, 404),
        ("GET", "/v1/disks/%2e%2e", None, 400),
        ("POST", "/v1/plan", Some(volume.clone()), 200),
        ("POST", "/v1/volumes", Some(volume.clone()), 200),
        ("POST", "/v1/plan", Some(volume.clone()), 409),
        ("POST", "/v1/plan", Some(json!({"name": "x", "size": 512, "share": "4/5"})), 409),
        ("POST", "/v1/plan", Some(json!({"name": "x", "size": 512, "like": "absent"})), 400),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "size": 512, "like": "db", "cache": "1MiB"})), 400),
        ("POST", "/v1/volumes", Some(volume), 409),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "size": 513})), 400),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "size": "1MB"})), 422),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "size": 512, "share": "4/5"})), 409),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "size": 512, "disk": "absent"})), 404),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "size": 512, "colour": "red"})), 422),
        ("POST", "/v1/volumes", Some(json!({"name": "x"})), 400),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "size": 512, "force": true})), 400),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "device": "/dev/there-is-none"})), 400),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "device": "sdb"})), 400),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "device": "/dev/null"})), 400),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "size": 512, "shared": true})), 400),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "from": "http://h/x"})), 422),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "from": "nbd+unix:///x?socket=/none"})), 502),
        ("POST", "/v1/plan", Some(json!({"name": "x", "from": "nbd+unix:///x?socket=/none"})), 400),
        ("PATCH", "/v1/volumes/db", Some(json!({"upstream_connections": 2})), 400),
        ("GET", "/v1/volumes", None, 200),
        ("GET", "/v1/volumes/db", None, 200),
        ("GET", "/v1/volumes/absent", None, 404),
        ("GET", "/v1/tenants", None, 200),
        ("GET", "/v1/tenants/team", None, 200),
        ("GET", "/v1/tenants/absent", None, 404),
        ("PUT", "/v1/tenants/team", Some(json!({"share": "1/8", "cache": "8MiB", "eviction": "sieve"})), 200),
        ("PUT", "/v1/tenants/team", Some(json!({"disk": "default", "cache": "none"})), 200),
        ("PUT", "/v1/tenants/team", Some(json!({"disk": "absent", "cache": "none"})), 404),
        ("PUT", "/v1/tenants/team", Some(json!({})), 400),
        ("PUT", "/v1/tenants/team", Some(json!({"share": "2"})), 422),
        ("PUT", "/v1/tenants/team", Some(json!({"cache": "1EiB"})), 409),
        ("PUT", "/v1/tenants/absent", Some(json!({"share": "1/8"})), 404),
        ("PATCH", "/v1/volumes/db", Some(json!({"share": "none", "write_cache": "none", "eviction": "sieve"})), 200),
        ("PATCH", "/v1/volumes/db", Some(json!({"eviction": "random"})), 422),
        ("PATCH", "/v1/volumes/db", Some(json!({"write_cache": "unsafe"})), 400),
        ("PATCH", "/v1/volumes/db", Some(json!({})), 400),
        ("PATCH", "/v1/volumes/db", Some(json!({"write_cache": "unsafe", "accept_data_loss": true})), 200),
        ("POST", "/v1/volumes/db/grow", Some(json!({"size": "2MiB"})), 200),
        ("POST", "/v1/volumes/db/grow", Some(json!({"size": "1MiB"})), 400),
        ("POST", "/v1/volumes/db/grow", Some(json!({})), 400),
        ("POST", "/v1/volumes/db/clear", None, 200),
        ("GET", "/v1/volumes/db/curve", None, 200),
        ("GET", "/v1/volumes/db/curve?policy=lru", None, 200),
        ("GET", "/v1/volumes/db/curve?policy=random", None, 400),
        ("GET", "/v1/volumes/absent/curve", None, 404),
    ]
}

/// Then requests for stores, which leave none.
fn calls_for_stores() -> Vec<Call<'static>> {
    vec![
        ("GET", "/v1/stores", None, 200),
        ("PATCH", "/v1/stores", Some(json!({"share": "1/10"})), 404),
        ("POST", "/v1/stores", Some(json!({"name": "spare", "size": "17MiB"})), 200),
        ("POST", "/v1/stores", Some(json!({"name": "spare", "size": "17MiB"})), 409),
        ("POST", "/v1/stores", Some(json!({"name": "x", "size": "16MiB"})), 400),
        ("POST", "/v1/stores", Some(json!({"name": "x", "size": u64::MAX})), 400),
        ("POST", "/v1/stores", Some(json!({"name": "x", "size": "17MiB", "tenant": "team"})), 422),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "size": "1MiB", "tenant": "@stores"})), 422),
        ("GET", "/v1/stores", None, 200),
        ("GET", "/v1/stores/spare", None, 200),
        ("GET", "/v1/stores/db", None, 400),
        ("GET", "/v1/stores/absent", None, 404),
        ("GET", "/v1/volumes/spare", None, 200),
        ("GET", "/v1/volumes/spare/curve", None, 400),
        ("GET", "/v1/tenants", None, 200),
        ("GET", "/v1/tenants/@stores", None, 200),
        ("PATCH", "/v1/stores", Some(json!({"share": "1/10"})), 200),
        ("PATCH", "/v1/stores", Some(json!({"share": "1/10", "disk": "absent"})), 404),
        ("PATCH", "/v1/stores", Some(json!({})), 422),
        ("PUT", "/v1/tenants/@stores", Some(json!({"share": "1/8"})), 400),
        ("PATCH", "/v1/volumes/spare", Some(json!({"allow": ["nobody"], "description": "logs"})), 200),
        ("PATCH", "/v1/volumes/spare", Some(json!({"write_cache": "volatile"})), 400),
        ("POST", "/v1/volumes/spare/grow", Some(json!({"size": "2MiB"})), 400),
        ("DELETE", "/v1/volumes/spare", None, 400),
        ("DELETE", "/v1/stores/db", None, 400),
        ("DELETE", "/v1/stores/spare", None, 200),
        ("DELETE", "/v1/stores/spare", None, 404),
        ("GET", "/v1/tenants/@stores", None, 404),
    ]
}

/// Then requests about off-loading, which enable none: the server does not listen, and so reaches no store of its own.
fn calls_for_offload() -> Vec<Call<'static>> {
    let path = "/v1/offload/default";
    let remove = "/v1/offload/default/remove-store";
    let nowhere = "nbd+unix:///x?socket=/none";
    vec![
        ("GET", "/v1/offload", None, 200),
        ("GET", path, None, 404),
        ("GET", "/v1/offload/absent", None, 404),
        ("PUT", path, Some(json!({})), 400),
        ("PUT", path, Some(json!({"stores": ["db"]})), 400),
        ("PUT", path, Some(json!({"stores": ["absent"]})), 404),
        ("PUT", path, Some(json!({"stores": [nowhere]})), 502),
        ("PUT", path, Some(json!({"stores": ["http://h/x"]})), 422),
        ("PUT", path, Some(json!({"stores": [nowhere], "copies": 0})), 400),
        ("PUT", path, Some(json!({"stores": [nowhere], "colour": "red"})), 422),
        ("PUT", path, Some(json!({"stores": [nowhere], "except": ["absent"]})), 404),
        ("PUT", "/v1/offload/absent", Some(json!({"stores": [nowhere]})), 404),
        ("POST", remove, Some(json!({"store": "spare"})), 404),
        ("POST", remove, Some(json!({"store": "spare", "lost": true})), 404),
        ("POST", remove, Some(json!({})), 422),
        ("DELETE", path, None, 404),
        ("DELETE", "/v1/offload/absent", None, 404),
    ]
}

/// Then requests for named policies, which leave none.
fn calls_for_policies() -> Vec<Call<'static>> {
    vec![
        ("GET", "/v1/policies", None, 200),
        ("POST", "/v1/policies", Some(json!({"name": "gold", "share": "1/4", "max_iops": "500"})), 200),
        ("POST", "/v1/policies", Some(json!({"name": "gold", "share": "1/4"})), 409),
        ("POST", "/v1/policies", Some(json!({"name": "x"})), 400),
        ("POST", "/v1/policies", Some(json!({"name": "none", "share": "1/4"})), 400),
        ("POST", "/v1/policies", Some(json!({"name": "x", "cache": "1MiB"})), 422),
        ("PUT", "/v1/tenants/team", Some(json!({"policy": "absent"})), 404),
        ("PUT", "/v1/tenants/team", Some(json!({"policy": "gold"})), 200),
        ("PUT", "/v1/tenants/team", Some(json!({"share": "1/8"})), 409),
        ("GET", "/v1/policies/gold", None, 200),
        ("PUT", "/v1/policies/gold", Some(json!({"share": "1/3"})), 200),
        ("PUT", "/v1/policies/gold", Some(json!({})), 400),
        ("PUT", "/v1/policies/gold", Some(json!({"min_bandwidth": "1GiB/s"})), 400),
        ("PUT", "/v1/policies/absent", Some(json!({"share": "1/3"})), 404),
        ("DELETE", "/v1/policies/gold", None, 409),
        ("PATCH", "/v1/volumes/db", Some(json!({"policy": "none"})), 200),
        ("DELETE", "/v1/policies/gold", None, 200),
        ("GET", "/v1/policies/absent", None, 404),
        ("PATCH", "/v1/volumes/db", Some(json!({"share": "none", "max_iops": "none"})), 200),
    ]
}

/// Then requests for disks and plans: adds the disk `second`, and removes it and `db` in the end.
fn calls_for_disks(second: &str) -> Vec<Call<'static>> {
    vec![
        ("POST", "/v1/disks", Some(json!({"name": "second", "path": second})), 409),
        ("POST", "/v1/disks", Some(json!({"name": "second", "path": second, "force": true})), 200),
        ("POST", "/v1/disks", Some(json!({"name": "s", "path": "sim:drive"})), 400),
        (
            "PATCH",
            "/v1/disks/default",
            Some(json!({"profile": {"needs_slices": "1", "rotation_period_ns": "none"}})),
            200,
        ),
        ("PATCH", "/v1/disks/default", Some(json!({"profile": {"colour": "1"}})), 400),
        ("PATCH", "/v1/disks/default", Some(json!({"colour": 1})), 422),
        (
            "PATCH",
            "/v1/disks/default",
            Some(json!({"policy": "insulated", "insulation": "95%", "max_round": "1s"})),
            200,
        ),
        ("PATCH", "/v1/disks/default", Some(json!({"policy": "fair"})), 422),
        ("PATCH", "/v1/disks/default", Some(json!({"insulation": "1"})), 422),
        ("PATCH", "/v1/disks/default", Some(json!({"max_round": "1ms"})), 400),
        ("GET", "/v1/top", None, 200),
        ("GET", "/v1/top?disk=absent", None, 404),
        ("DELETE", "/v1/disks/default?force=null", None, 400),
        ("DELETE", "/v1/disks/default/faults?id=-1", None, 400),
        ("GET", "/v1/top?disk=default", None, 200),
        ("GET", "/v1/volumes/db", None, 200),
        ("POST", "/v1/plan", Some(json!({"name": "x", "size": 512, "like": "db"})), 200),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "size": 4096, "like": "db"})), 200),
        ("DELETE", "/v1/volumes/x", None, 200),
        ("PATCH", "/v1/disks/default", Some(json!({"policy": "default", "insulation": "default"})), 200),
        ("GET", "/v1/disks/default", None, 200),
        ("GET", "/v1/disks/default/probe", None, 200),
        ("DELETE", "/v1/disks/default/probe", None, 409),
        ("POST", "/v1/disks/default/probe", Some(json!({"seconds": 1})), 400),
        ("POST", "/v1/disks/default/probe", Some(json!({"seconds": 100})), 200),
        ("POST", "/v1/disks/default/probe", Some(json!({})), 409),
        ("GET", "/v1/disks/default/probe", None, 200),
        ("DELETE", "/v1/disks/default/probe", None, 200),
        ("POST", "/v1/disks/absent/probe", Some(json!({})), 404),
        ("GET", "/v1/status", None, 200),
        ("DELETE", "/v1/disks/second", None, 200),
        ("DELETE", "/v1/volumes/db", None, 200),
        ("DELETE", "/v1/volumes/db", None, 404),
        ("GET", "/healthz", None, 200),
        ("GET", "/readyz", None, 200),
        ("GET", "/openapi.json", None, 200),
    ]
}

/// Requests about a cluster, of which this server is no part.
fn calls_for_cluster() -> Vec<Call<'static>> {
    let volume = json!({"name": "x", "size": 4096, "share": "1/4", "servers": 2});
    vec![
        ("GET", "/v1/cluster", None, 400),
        ("GET", "/v1/cluster/schedule", None, 400),
        ("POST", "/v1/cluster/plan", Some(volume.clone()), 400),
        ("PUT", "/v1/cluster/draining/absent", None, 400),
        ("DELETE", "/v1/cluster/draining/absent", None, 400),
        ("POST", "/v1/volumes", Some(volume.clone()), 400),
        ("POST", "/v1/volumes", Some(json!({"name": "x", "size": 4096, "on": ["s1"]})), 400),
        ("POST", "/v1/plan", Some(volume), 400),
    ]
}

#[tokio::test]
async fn answers_are_what_the_document_says() {
    let dir = tempfile::tempdir().unwrap();
    let router = server(dir.path()).await;
    let document = document();
    let second = dir.path().join("second").to_string_lossy().into_owned();
    let all = [calls_for_volumes(), calls_for_stores(), calls_for_offload(), calls_for_policies()].concat();
    let all = [all, calls_for_cluster()].concat();
    let all = [all, calls_for_disks(&second)].concat();
    for (method, path, body, expected) in all {
        let (status, answer) = ask(&router, method, path, body).await;
        assert_eq!(status, expected, "{method} {path}: {answer}");
        let plain = path.split('?').next().unwrap_or(path).to_owned();
        let described = ["db", "team", "default", "second", "absent", "%2e%2e", "x", "gold", "spare", "@stores"]
            .iter()
            .fold(plain, |path, name| match path.find(&format!("/{name}")) {
                Some(at) if path.starts_with("/v1/offload") => path.replacen(&path[at..=at + name.len()], "/{disk}", 1),
                Some(at) if at > 3 => path.replacen(&format!("/{name}"), "/{name}", 1),
                _ => path,
            });
        check(&document, method, &described, status, &answer);
    }
}

#[tokio::test]
async fn metrics_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let router = server(dir.path()).await;
    let (status, text) = ask(&router, "GET", "/metrics", None).await;
    assert_eq!(status, 200);
    assert!(text.as_str().unwrap().contains("aerogel_build_info"));
}

#[tokio::test]
async fn over_tcp_it_is_read_only() {
    let dir = tempfile::tempdir().unwrap();
    let control = Control::open(Config { data: dir.path().join("data"), ..Config::default() }).await.unwrap();
    let router = guarded(control, None, Guard { socket: "/run/api.sock".into(), ..Guard::default() });
    let request = |method: &str, host: &str| {
        HttpRequest::builder().method(method).uri("/v1/volumes").header("host", host).body(Body::empty()).unwrap()
    };
    assert_eq!(router.clone().oneshot(request("GET", "localhost")).await.unwrap().status(), 200);
    assert_eq!(router.clone().oneshot(request("GET", "evil.example")).await.unwrap().status(), 403);
    assert_eq!(router.clone().oneshot(request("POST", "localhost")).await.unwrap().status(), 403);
}
