use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::address::{Listener, TlsMode};
use crate::config::Config;
use crate::handshakes::Handshakes;
use crate::listen::{self, Door};
use crate::tls::ClientFiles;

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn request<T: serde::de::DeserializeOwned>(body: Value) -> T {
    serde_json::from_value(body).unwrap()
}

/// A request for the gateway volume `gw`, with these further settings.
fn create(from: &str, more: Value) -> CreateVolume {
    let mut body = json!({"name": "gw", "from": from});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request(body)
}

const NOWHERE: &str = "nbd+unix:///db?socket=/there/is/none";

fn opened(flags: u16) -> Opened {
    Opened { size: 1 << 20, flags: flags | export_flag::HAS_FLAGS, ..Opened::default() }
}

/// What a request finds if each export that it names is of this form, and its own volume.
fn found_for(request: &CreateVolume, opened: &Opened) -> Result<Chosen, Error> {
    let from = &request.from.as_ref().unwrap().0;
    let found = (1..).zip(from).map(|(number, from)| {
        found(request, wanted(request, from)?, &Opened { volume: opened.volume.map(|of| of * number), ..*opened })
    });
    composed(request, found.collect::<Result<_, Error>>()?)
}

const ABLE: u16 = export_flag::SEND_FLUSH | export_flag::SEND_FUA | export_flag::SEND_WRITE_ZEROES;

#[test]
fn what_is_known_of_an_export() {
    let found = |more: Value, opened: Opened| {
        let request = create(NOWHERE, more);
        found_for(&request, &opened).map(|chosen| {
            let mut spec = Spec::new(chosen.size, None, Allocation::Whole);
            chosen.enter(&mut spec);
            spec
        })
    };
    let plain = found(json!({}), opened(ABLE)).unwrap();
    let remote = plain.upstream.clone().unwrap();
    assert!(plain.size == 1 << 20 && !plain.read_only && plain.write_cache == WriteCache::Volatile);
    assert!(remote.zeroes && remote.block == 512 && !remote.without_flush && remote.epoch == 0);
    assert_eq!((remote.deadline, remote.connections), (DEADLINE_DEFAULT, CONNECTIONS_DEFAULT));
    assert_eq!(Spec::parse(&plain.to_toml()).unwrap(), plain);

    let shared = found(json!({"shared": true, "upstream_deadline": "5s", "upstream_connections": 1}), opened(ABLE));
    let shared = shared.unwrap();
    assert_eq!(shared.write_cache, WriteCache::None, "no dirty data");
    assert_eq!(Spec::parse(&shared.to_toml()).unwrap(), shared);
    let remote = shared.upstream.unwrap();
    assert_eq!((remote.shared, remote.deadline.to_string(), remote.connections), (true, "5s".into(), 1));

    let read_only = found(json!({}), opened(export_flag::READ_ONLY)).unwrap();
    let remote = read_only.upstream.clone().unwrap();
    assert!(read_only.read_only && remote.read_only && !remote.without_flush && !remote.zeroes);

    let demotes = found(json!({"tiers": "demote"}), opened(ABLE)).unwrap();
    assert_eq!(Spec::parse(&demotes.to_toml()).unwrap(), demotes);
    assert_eq!((remote.tiers, demotes.upstream.unwrap().tiers), (Tiers::Lru, Tiers::Demote));

    let coarse = found(json!({}), Opened { block_bytes_min: 1024, ..opened(ABLE) }).unwrap();
    assert_eq!(coarse.upstream.unwrap().block, 4096);
}

#[test]
fn certificates_and_the_name_of_the_server() {
    let target = |from: &str, more: Value| {
        let request = create(from, more);
        wanted(&request, &request.from.as_ref().unwrap().0[0]).unwrap().target().tls
    };
    let files = |directory: &str, host: &str| Some(ClientFiles { directory: directory.into(), host: host.into() });
    assert_eq!(target("nbd://nas/db", json!({})), None);
    assert_eq!(target("nbds://nas/db", json!({"tls_certificates": "/pki"})), files("/pki", "nas"));
    assert_eq!(target("nbds://nas/db?tls-certificates=/pki", json!({"tls_hostname": "a"})), files("/pki", "a"));
    let both = "nbds://nas/db?tls-certificates=/a&tls-hostname=a";
    assert_eq!(target(both, json!({"tls_certificates": "/b", "tls_hostname": "b"})), files("/b", "b"));
}

#[test]
fn exports_that_cannot_be_used() {
    let refusal = |more: Value, opened: Opened| {
        let request = create(NOWHERE, more);
        found_for(&request, &opened).unwrap_err()
    };
    let error = refusal(json!({}), opened(0));
    assert!(error.to_string().contains("cannot flush") && error.hint().unwrap().contains("--i-accept-data-loss"));
    let request = create(NOWHERE, json!({"accept_data_loss": true}));
    assert!(found_for(&request, &opened(0)).unwrap().first.without_flush);
    let error = refusal(json!({}), Opened { block_bytes_min: 8192, ..opened(ABLE) });
    assert!(error.to_string().contains("8192"), "{error}");
    for (size, block_bytes_min) in [(0, 1), (1000, 1), (512, 4096)] {
        let error = refusal(json!({}), Opened { size, block_bytes_min, ..opened(ABLE) });
        assert!(matches!(error, Error::Upstream(UpstreamError::Size { .. })), "{size}: {error}");
    }
    let error = refusal(json!({"upstream_deadline": "61m"}), opened(ABLE));
    assert!(error.to_string().contains("1s to 60m"), "{error}");
    let error = refusal(json!({"upstream_connections": 17}), opened(ABLE));
    assert!(error.to_string().contains("1 to 16 connections"), "{error}");
}

#[tokio::test]
async fn requests_that_contradict_an_export() {
    for (more, part) in [
        (json!({"size": "1MiB"}), "leave out the size"),
        (json!({"device": "/dev/sdb"}), "--device"),
        (json!({"allocation": "full"}), "--prealloc"),
        (json!({"allocation": "sparse"}), "--sparse"),
        (json!({"like": "db"}), "--like"),
        (json!({"shared": true, "tiers": "demote"}), "leave out --shared"),
    ] {
        let error = choose(&create(NOWHERE, more)).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains(part), "{error}");
    }
    let error = choose(&create("nbd+unix:///db?socket=./nbd.sock", json!({}))).await.unwrap_err();
    assert!(error.to_string().contains("relative"), "{error}");
    for alone in [
        json!({"shared": true}),
        json!({"upstream_deadline": "5s"}),
        json!({"upstream_connections": 2}),
        json!({"tiers": "demote"}),
        json!({"accept_data_loss": true}),
        json!({"tls_certificates": "/etc/pki/db1"}),
        json!({"tls_hostname": "storage1"}),
    ] {
        let mut body = json!({"name": "gw", "size": 4096});
        body.as_object_mut().unwrap().extend(alone.as_object().unwrap().clone());
        let error = choose(&request(body)).await.unwrap_err();
        assert!(error.to_string().contains("--from"), "{error}");
    }
    for (from, more, part) in [
        ("nbds://host/db", json!({}), "--tls-certificates DIR"),
        ("nbd://host/db", json!({"tls_certificates": "/etc/pki/db1"}), "write nbds://"),
        ("nbd://host/db?tls-hostname=storage1", json!({}), "write nbds://"),
        ("nbds://host/db", json!({"tls_certificates": "pki"}), "relative path"),
    ] {
        let error = choose(&create(from, more)).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains(part), "{error}");
    }
    let error = choose(&create(NOWHERE, json!({}))).await.unwrap_err();
    assert!(error.to_string().contains(NOWHERE) && error.to_string().contains("No such file"), "{error}");
    assert!(choose(&request(json!({"name": "db", "size": 4096}))).await.unwrap().is_none());
}

/// The addresses of so many exports.
fn several(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("nbd+unix:///v{at}?socket=/there/is/none")).collect()
}

fn striped(from: &[String], more: Value) -> CreateVolume {
    create(
        "",
        Value::Object(more.as_object().unwrap().clone().into_iter().chain([("from".into(), json!(from))]).collect()),
    )
}

#[test]
fn a_volume_over_several_exports_has_whole_units_of_the_smallest_on_each() {
    let request = striped(&several(3), json!({"stripe": "128KiB"}));
    let sizes = [1 << 20, (1 << 20) - 4096, 2 << 20];
    let members = request.from.as_ref().unwrap().0.iter().zip(sizes).map(|(from, size)| {
        found(&request, wanted(&request, from).unwrap(), &Opened { size, ..opened(ABLE) }).unwrap()
    });
    let chosen = composed(&request, members.collect()).unwrap();
    assert_eq!(chosen.size, 3 * (7 << 17));
    let mut spec = Spec::new(chosen.size, None, Allocation::Whole);
    chosen.enter(&mut spec);
    assert_eq!(spec.exports().map(|member| member.size.unwrap()).collect::<Vec<_>>(), sizes);
    assert_eq!(spec.addresses(), several(3).join(", "));
    let text = spec.to_toml();
    assert_eq!(Spec::parse(&text).unwrap(), spec);
    assert!(text.starts_with("format = 5\n"), "an earlier release refuses it: {text}");
    for (of, edited) in [("format = 5", "format = 1"), ("unit = 131072", "unit = 65536"), ("unit = 131072", "unit = 0")]
    {
        assert!(Spec::parse(&text.replace(of, edited)).is_err(), "{edited}");
    }
    let set = json!({"upstream_deadline": "5s", "upstream_connections": 2});
    apply(&name("gw"), &self::request(set), &mut spec).unwrap();
    assert!(spec.exports().all(|member| member.deadline.to_string() == "5s" && member.connections == 2));
    let error = apply(&name("gw"), &self::request(json!({"tiers": "demote"})), &mut spec).unwrap_err();
    assert!(matches!(error, Invalid::TiersOfStripes), "{error}");
}

#[tokio::test]
async fn exports_that_make_no_striped_volume() {
    let [one, other] = [&several(2)[0], &several(2)[1]];
    for (request, part) in [
        (striped(&[], json!({})), "no export is named"),
        (striped(std::slice::from_ref(one), json!({"stripe": "64KiB"})), "give --from for each"),
        (request(json!({"name": "gw", "size": "1MiB", "stripe": "64KiB"})), "give --from for each"),
        (striped(&[one.clone(), other.clone(), one.clone()], json!({})), "v0?socket=/there/is/none is named twice"),
        (striped(&several(65), json!({})), "2 to 64 exports, not 65"),
        (striped(&several(2), json!({"tiers": "demote"})), "a striped volume has --tiers lru"),
        (striped(&several(2), json!({"stripe": "48KiB"})), "a power of two from 4KiB to 16MiB, not 48KiB"),
        (striped(&several(2), json!({"stripe": "2KiB"})), "a power of two from 4KiB to 16MiB, not 2KiB"),
        (striped(&several(2), json!({"stripe": "32MiB"})), "a power of two from 4KiB to 16MiB, not 32MiB"),
    ] {
        let error = choose(&request).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().contains(part), "{error}");
    }
    let error = choose(&striped(&several(2), json!({}))).await.unwrap_err();
    assert!(error.to_string().contains(one), "the member is named: {error}");
    let error = found_for(&striped(&several(2), json!({"stripe": "2MiB"})), &opened(ABLE)).unwrap_err();
    assert!(error.to_string().contains("has 1MiB, less than a stripe unit of 2MiB"), "{error}");
    let members = [one, other].map(|from| {
        let opened = Opened { volume: Some(7), ..opened(ABLE) };
        let request = create(from, json!({}));
        found(&request, wanted(&request, &from.parse().unwrap()).unwrap(), &opened).unwrap()
    });
    let error = composed(&striped(&several(2), json!({})), members.to_vec()).unwrap_err();
    assert!(error.to_string().contains("are the same volume"), "{error}");
}

#[test]
fn settings_that_an_export_does_not_permit() {
    let request = create(NOWHERE, json!({"shared": true}));
    let chosen = found_for(&request, &opened(export_flag::READ_ONLY)).unwrap();
    let mut spec = Spec::new(chosen.size, None, Allocation::Whole);
    let set = |body: Value, spec: &mut Spec| apply(&name("gw"), &self::request(body), spec);
    let error = set(json!({"upstream_deadline": "5s"}), &mut spec).unwrap_err();
    assert!(matches!(error, Invalid::NoUpstream(_)), "{error}");
    chosen.enter(&mut spec);
    for (body, part) in [
        (json!({"write_cache": "volatile"}), "keeps no dirty data"),
        (json!({"write_cache": "unsafe", "accept_data_loss": true}), "keeps no dirty data"),
        (json!({"read_only": false}), "read-only"),
        (json!({"upstream_deadline": "500ms"}), "1s to 60m"),
        (json!({"upstream_connections": 0}), "1 to 16"),
        (json!({"tiers": "demote"}), "no other server uses"),
    ] {
        let error = set(body, &mut spec.clone()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    set(json!({"write_cache": "none", "upstream_deadline": "5m", "upstream_connections": 2}), &mut spec).unwrap();
    let remote = spec.upstream.unwrap();
    assert_eq!((remote.deadline.to_string(), remote.connections), ("5m".into(), 2));
}

async fn open(data: &Path) -> Arc<Control> {
    let cache = "64MiB".parse().unwrap();
    Control::open(Config { data: data.to_owned(), cache, ..Config::default() }).await.unwrap()
}

/// A server with the volume `db` of 1 MiB, and its address.
async fn server(dir: &Path) -> (Arc<Control>, String) {
    let (control, path) = (open(&dir.join("server")).await, dir.join("nbd.sock"));
    control.create_volume(request(json!({"name": "db", "size": "1MiB"}))).await.unwrap();
    let listener = Listener::Unix(tokio::net::UnixListener::bind(&path).unwrap());
    let (handshakes, mode) = (Handshakes::new(16, 16), TlsMode::Off);
    tokio::spawn(listen::accept(listener, Door::plain(control.clone(), handshakes, mode)));
    (control, format!("nbd+unix:///db?socket={}", path.display()))
}

async fn upstream(control: &Control) -> UpstreamView {
    control.show_volume(&name("gw")).await.unwrap().upstream.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_volume_has_the_size_of_its_export_and_no_disk_time() {
    let dir = tempfile::tempdir().unwrap();
    let (behind, from) = server(dir.path()).await;
    let control = open(&dir.path().join("gateway")).await;
    let refused = control.create_volume(create(&from, json!({"share": "1/4"}))).await.unwrap_err();
    assert!(refused.to_string().contains("no disk time"), "{refused}");
    control.create_policy(request(json!({"name": "gold", "share": "1/4"}))).await.unwrap();
    let refused = control.create_volume(create(&from, json!({"policy": "gold"}))).await.unwrap_err();
    assert!(refused.to_string().contains("a policy that has one"), "{refused}");
    assert!(control.list_volumes().await.is_empty() && control.list_tenants().await.is_empty());

    control.create_volume(request(json!({"name": "here", "size": "1MiB"}))).await.unwrap();
    let refused = control.create_volume(create(&from, json!({"tenant": "here"}))).await.unwrap_err();
    assert!(refused.to_string().contains("another tenant"), "{refused}");
    let done = control.create_volume(create(&from, json!({"cache": "8MiB"}))).await.unwrap();
    assert!(done.message.contains("1MiB") && done.message.contains(&from), "{}", done.message);
    let view = done.volume.unwrap();
    assert_eq!((view.size_bytes, view.share.effective, view.path.as_str()), (1 << 20, None, from.as_str()));
    let again = view.spec.unwrap();
    assert!(again.size.is_none() && again.from.unwrap().0[0].to_string() == from);
    assert_eq!(control.show_volume(&name("here")).await.unwrap().share.effective, Some(1.0), "it has the whole disk");
    let refused = control.create_volume(request(json!({"name": "x", "size": 4096, "tenant": "gw"}))).await;
    assert!(refused.unwrap_err().to_string().contains("another tenant"));

    for body in [json!({"share": "1/4"}), json!({"min_bandwidth": "1MiB/s"}), json!({"policy": "gold"})] {
        let refused = control.set_volume(&name("gw"), request(body.clone())).await.unwrap_err();
        assert!(refused.to_string().contains("no disk time"), "{refused}");
        let refused = control.set_tenant(&name("gw"), request(body)).await.unwrap_err();
        assert!(refused.to_string().contains("no disk time"), "{refused}");
    }
    control.set_volume(&name("gw"), request(json!({"max_iops": "500"}))).await.unwrap();
    let refused = control.grow_volume(&name("gw"), request(json!({"size": "2MiB"}))).await.unwrap_err();
    assert!(refused.to_string().contains("enlarge that on its server"), "{refused}");
    let standing = control.standing().await;
    assert_eq!(standing.disks[0].shares, [(name("here"), 1.0)]);
    assert!(control.live(None).await.unwrap()[0].tenants.iter().any(|tenant| tenant.share.effective.is_none()));
    let done = control.delete_volume(&name("gw"), false).await.unwrap();
    assert!(done.message.contains("unchanged"), "{}", done.message);
    assert!(control.drain().await.is_empty() && behind.drain().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_volume_opens_while_its_server_is_away_with_a_later_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let (behind, from) = server(dir.path()).await;
    let gateway = dir.path().join("gateway");
    let control = open(&gateway).await;
    control.create_volume(create(&from, json!({}))).await.unwrap();
    let first = upstream(&control).await;
    let done = control.set_volume(&name("gw"), request(json!({"upstream_deadline": "5s"}))).await.unwrap();
    assert!(!done.message.contains("anew"), "{}", done.message);
    let done = control.set_volume(&name("gw"), request(json!({"upstream_connections": 2}))).await.unwrap();
    assert!(done.message.contains("opened anew"), "{}", done.message);
    assert!(control.drain().await.is_empty());
    drop(control);
    std::fs::remove_file(dir.path().join("nbd.sock")).unwrap();

    let control = open(&gateway).await;
    let view = control.show_volume(&name("gw")).await.unwrap();
    assert_eq!(view.reason, None);
    let second = view.upstream.unwrap();
    assert!(second.epoch > first.epoch, "{first:?} {second:?}");
    assert!(second.state == UpstreamState::Connecting && second.deadline_s == 5.0, "{second:?}");
    assert!(behind.drain().await.is_empty());
}
