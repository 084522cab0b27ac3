//! Compares the OpenAPI document with the router and with the manual. `tests/test_openapi.py` compares answers with it.

use axum::body::Body;
use axum::http::Request as HttpRequest;
use http_body_util::BodyExt;
use serde_json::Value;
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
