//! Property tests of all files that are read at a start, and of request bodies: valid documents with random changes.
//!
//! Nothing panics. A file that cannot be parsed is neither changed nor replaced. What is accepted keeps its meaning
//! when it is written and read again.

use std::fs;
use std::path::Path;

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use tower::ServiceExt;
use uuid::Uuid;

use crate::config::Config;
use crate::control::{Control, Registry, RegistryEntry};
use crate::quantity::Size;
use crate::store::spec::{Allocation, EarlierAllotment};
use crate::store::{Identity, Scheduling, Simulated, Spec, Store, TenantSpec, identity};

/// Replacements for parts of a document: delimiters, numbers at the limits of types, other types, other structure.
const TOKENS: [&str; 24] = [
    "",
    "\"",
    "\0",
    "=",
    "[",
    "]]",
    "{}",
    "\n",
    "-1",
    "0",
    "1",
    "18446744073709551616",
    "9223372036854775807",
    "1e999",
    "nan",
    "true",
    "null",
    "\u{fffd}",
    "format = 2\n",
    "\"1EiB\"",
    "511",
    "\"../../x\"",
    "99999999999999999999%",
    "[[profile]]",
];

/// Changes: position (relative to the document's length), characters removed, token inserted.
fn changes() -> impl Strategy<Value = Vec<(u16, usize, usize)>> {
    prop::collection::vec((any::<u16>(), prop_oneof![Just(0), 1..4usize, 1..40usize], 0..TOKENS.len()), 1..5)
}

fn changed(document: &str, changes: &[(u16, usize, usize)]) -> String {
    let mut text: Vec<char> = document.chars().collect();
    for &(place, removed, token) in changes {
        let from = usize::from(place) * text.len() / usize::from(u16::MAX).max(1);
        let to = (from + removed).min(text.len());
        text.splice(from.min(to)..to, TOKENS[token].chars());
    }
    text.into_iter().collect()
}

fn spec() -> String {
    let mut spec = Spec::new(1 << 20, Some("team".parse().unwrap()), Allocation::Sparse);
    let share = Some("1/4".parse().unwrap());
    spec.allotment = Some(EarlierAllotment { share, cache: Some(Size(4 << 20)), ..EarlierAllotment::default() });
    spec.to_toml()
}

/// A disk with everything that `disk.toml` can hold, and its text.
fn disk(directory: &Path) -> String {
    let simulated = Simulated::find("nearline", Some(Size(1 << 30))).unwrap();
    let faults = vec!["error read 1%".parse().unwrap(), "delay by=1ms..2ms".parse().unwrap()];
    let mut made = Identity::initialise(directory, Some(simulated), faults, Scheduling::default()).unwrap();
    made.profile.insert("rotation_period".into(), toml::Value::Float(0.008));
    made.profile.insert("switch_cost".into(), toml::Value::String("12ms".into()));
    made.put(&crate::store::LocalFiles::new(directory)).unwrap();
    fs::read_to_string(directory.join("disk.toml")).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_specification_that_is_accepted_means_the_same_again(changes in changes()) {
        if let Ok(spec) = Spec::parse(&changed(&spec(), &changes)) {
            prop_assert_eq!(&Spec::parse(&spec.to_toml()).unwrap(), &spec);
            prop_assert!(spec.file_bytes() >= spec.size);
        }
    }

    #[test]
    fn a_specification_of_a_tenant_that_is_accepted_means_the_same_again(changes in changes()) {
        let (share, cache) = (Some("1/4".parse().unwrap()), Some(Size(4 << 20)));
        let text = TenantSpec { share, cache, ..TenantSpec::default() }.to_toml();
        if let Ok(spec) = TenantSpec::parse(&changed(&text, &changes)) {
            prop_assert_eq!(&TenantSpec::parse(&spec.to_toml()).unwrap(), &spec);
        }
    }

    #[test]
    fn a_configuration_that_is_accepted_means_the_same_again(changes in changes()) {
        if let Ok(config) = Config::parse(&changed(include_str!("../../aerogel.toml"), &changes)) {
            let text = toml::to_string(&config).unwrap();
            prop_assert_eq!(Config::parse(&text).unwrap(), config);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_registry_that_is_read_is_not_changed(changes in changes()) {
        let dir = tempfile::tempdir().unwrap();
        let mut registry = Registry::new();
        let entry = RegistryEntry { path: "disks/a".into(), uuid: Uuid::new_v4(), volumes: Default::default() };
        registry.disks.insert("a".parse().unwrap(), entry);
        registry.write(dir.path()).unwrap();
        let path = dir.path().join("disks.toml");
        let text = changed(&fs::read_to_string(&path).unwrap(), &changes);
        fs::write(&path, &text).unwrap();
        if let Ok(found) = Registry::read(dir.path()) {
            let found = found.expect("the file is there");
            prop_assert_eq!(fs::read_to_string(&path).unwrap(), text);
            found.write(dir.path()).unwrap();
            prop_assert_eq!(Registry::read(dir.path()).unwrap(), Some(found));
        }
    }

    #[test]
    fn a_disk_is_what_its_file_says_or_offline(changes in changes()) {
        let dir = tempfile::tempdir().unwrap();
        let text = changed(&disk(dir.path()), &changes);
        fs::write(dir.path().join("disk.toml"), &text).unwrap();
        if let Ok(store) = Store::open(dir.path(), None) {
            prop_assert!(store.scan().unwrap().volumes.is_empty());
        }
        prop_assert_eq!(fs::read_to_string(dir.path().join("disk.toml")).unwrap(), text);
    }

    #[test]
    fn a_volume_is_what_its_file_says_or_offline_and_its_data_stays(changes in changes()) {
        let dir = tempfile::tempdir().unwrap();
        Identity::initialise(dir.path(), None, Vec::new(), Scheduling::default()).unwrap();
        let volumes = identity::volumes(dir.path());
        let text = changed(&spec(), &changes);
        let data = vec![7; 1 << 20];
        fs::write(volumes.join("v.toml"), &text).unwrap();
        fs::write(volumes.join("v.img"), &data).unwrap();
        let found = Store::open(dir.path(), None).unwrap().scan().unwrap();
        prop_assert_eq!(found.volumes.len(), 1);
        prop_assert!(found.unclaimed.is_empty());
        prop_assert_eq!(fs::read_to_string(volumes.join("v.toml")).unwrap(), text);
        prop_assert!(fs::read(volumes.join("v.img")).unwrap() == data, "its data was changed");
    }
}

async fn ask(router: &axum::Router, method: &str, path: &str, body: String) -> (u16, String) {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let response = router.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8_lossy(&bytes).into_owned())
}

/// The volumes, without values that change by themselves.
async fn state(router: &axum::Router) -> Vec<Value> {
    let (_, volumes) = ask(router, "GET", "/v1/volumes", String::new()).await;
    let volumes: Vec<Value> = serde_json::from_str(&volumes).unwrap();
    volumes.iter().map(|v| json!([v["name"], v["size_bytes"], v["share"]["requested"], v["write_cache"]])).collect()
}

/// A refused body changes nothing, and no body causes a server error.
#[tokio::test]
async fn bodies_are_refused_or_done() {
    let dir = tempfile::tempdir().unwrap();
    let cache = "64MiB".parse().unwrap();
    let control = Control::open(Config { data: dir.path().join("data"), cache, ..Config::default() }).await.unwrap();
    let router = crate::api::router(control, None);
    let create = json!({
        "name": "a", "size": "1MiB", "share": "1/4", "tenant": "t", "eviction": "sieve", "allocation": "sparse"
    });
    assert_eq!(ask(&router, "POST", "/v1/volumes", create.to_string()).await.0, 200);
    let requests = [
        (
            "POST",
            "/v1/volumes",
            json!({"name": "b", "size": 8192, "share": "1/8", "cache": "1MiB", "allocation": "sparse"}),
        ),
        ("POST", "/v1/plan", create),
        (
            "PATCH",
            "/v1/volumes/a",
            json!({"share": "1/5", "cache": "default", "write_cache": "none", "eviction": "lru"}),
        ),
        ("POST", "/v1/volumes/a/grow", json!({"size": "2MiB"})),
        ("PATCH", "/v1/disks/default", json!({"policy": "insulated", "insulation": "95%", "max_round": "2s"})),
        ("POST", "/v1/disks/default/faults", json!({"fault": "delay by=1ms..2ms 1% count=1"})),
    ];
    let mut runner = TestRunner::deterministic();
    // More in `make test-long`.
    let rounds = if std::env::var_os("AEROGEL_TEST_LONG").is_some() { 600 } else { 240 };
    for round in 0..rounds {
        let (method, path, body) = &requests[round % requests.len()];
        let changes = changes().new_tree(&mut runner).unwrap().current();
        let body = changed(&body.to_string(), &changes);
        let before = state(&router).await;
        let (status, answer) = ask(&router, method, path, body.clone()).await;
        assert!(status < 500, "{method} {path} with {body:?}: {status} {answer}");
        if status >= 400 {
            assert_eq!(state(&router).await, before, "{method} {path} with {body:?}: {status} {answer}");
        }
        // Changes are undone, so that the next request finds the same state.
        ask(&router, "DELETE", "/v1/disks/default/faults", String::new()).await;
        for volume in state(&router).await.iter().filter_map(|volume| volume[0].as_str()).filter(|name| *name != "a") {
            ask(&router, "DELETE", &format!("/v1/volumes/{volume}"), String::new()).await;
        }
    }
}
