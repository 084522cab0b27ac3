//! Tests of a real server process: first start, restart, second server, offline disks, end.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_aerogel");
/// The data directory of an earlier release, without its volumes' data.
const EARLIER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/data-format-1");
/// Far more than a start takes on a loaded machine: a test that waits longer has failed.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Server {
    data: PathBuf,
    process: Child,
}

impl Server {
    fn command(data: &Path) -> Command {
        Server::command_with(data, "64MiB")
    }

    fn command_with(data: &Path, cache: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        let nbd = format!("unix:{}", data.join("nbd.sock").display());
        command.args(["serve", "--quiet", "--cache", cache, "--http", "tcp:127.0.0.1:0", "--nbd", &nbd]);
        command.arg("--data").arg(data).stderr(Stdio::piped());
        command
    }

    fn start(data: &Path) -> Server {
        Server::start_told(data).0
    }

    /// A server that has reported readiness, and the socket for its further notifications.
    fn start_told(data: &Path) -> (Server, UnixDatagram) {
        Server::start_command(data, Server::command(data))
    }

    fn start_command(data: &Path, mut command: Command) -> (Server, UnixDatagram) {
        let path = data.with_extension("notify");
        let _ = fs::remove_file(&path);
        let notices = UnixDatagram::bind(&path).unwrap();
        notices.set_read_timeout(Some(TIMEOUT)).unwrap();
        let process = command.env("NOTIFY_SOCKET", &path).spawn().unwrap();
        let server = Server { data: data.into(), process };
        assert_eq!(told(&notices), "READY=1");
        (server, notices)
    }

    fn ask(&self, words: &[&str]) -> Output {
        Command::new(PROGRAM).args(words).arg("--data").arg(&self.data).output().unwrap()
    }

    fn must(&self, words: &[&str]) -> String {
        let output = self.ask(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn fails(&self, words: &[&str]) -> String {
        let output = self.ask(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn json(&self, words: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.must(&[words, &["--json"]].concat())).unwrap()
    }

    fn end(mut self) {
        let killed = Command::new("kill").arg(self.process.id().to_string()).status().unwrap();
        assert!(killed.success());
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The next notification to systemd.
fn told(notices: &UnixDatagram) -> String {
    let mut text = [0; 64];
    let n = loop {
        // The kernel does not restart a receive with a timeout when a stopped process continues.
        match notices.recv(&mut text) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => break received.expect("the server says how it is doing"),
        }
    };
    String::from_utf8_lossy(&text[..n]).into_owned()
}

#[test]
fn what_was_made_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start(&data);
    server.must(&["volume", "create", "db", "1MiB", "--share", "1/4", "--tenant", "team", "--cache", "8MiB"]);
    server.must(&["volume", "create", "log", "2MiB", "--sparse"]);
    server.must(&["volume", "create", "full", "3MiB", "--prealloc", "full"]);
    server.must(&["volume", "grow", "db", "4MiB"]);
    server.must(&["volume", "set", "log", "--write-cache", "none", "--share", "50%"]);
    server.must(&["volume", "delete", "full", "--yes"]);
    server.end();

    let server = Server::start(&data);
    let volumes = server.json(&["volume", "list"]);
    let shown: Vec<_> =
        volumes.as_array().unwrap().iter().map(|v| (&v["name"], &v["size_bytes"], &v["condition"])).collect();
    assert_eq!(shown.len(), 2, "{volumes}");
    assert_eq!(volumes[0]["size_bytes"], 4 << 20);
    assert_eq!(volumes[0]["share"]["requested"], "1/4");
    assert_eq!(volumes[0]["tenant"], "team");
    assert_eq!(volumes[0]["cache"]["requested_bytes"], 8 << 20);
    assert_eq!(volumes[1]["write_cache"], "none");
    assert_eq!(volumes[1]["share"]["effective"], 0.5);
    server.end();
}

/// A data directory of the release before tenants had specifications, opened by this one. It has a tenant on two disks,
/// with several volumes on each; the latest allotment that a volume has stored applies. `volumes.json` is what that
/// release showed. The raw volume's device is absent; its tenant's share is promised nevertheless.
#[test]
fn a_directory_of_the_release_without_tenants_keeps_their_shares_and_caches() {
    let dir = tempfile::tempdir().unwrap();
    let (data, from) = (dir.path().join("data"), Path::new(EARLIER));
    copy(from, &data);
    let expected: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(from.join("volumes.json")).unwrap()).unwrap();
    for volume in expected.as_array().unwrap().iter().filter(|volume| volume["name"] != "raw") {
        let disk = data.join("disks").join(volume["disk"].as_str().unwrap()).join("volumes");
        let file = fs::File::create(disk.join(format!("{}.img", volume["name"].as_str().unwrap()))).unwrap();
        file.set_len(volume["size_bytes"].as_u64().unwrap()).unwrap();
    }
    let check = |server: &Server| {
        let shown = server.json(&["volume", "list"]);
        for (shown, expected) in shown.as_array().unwrap().iter().zip(expected.as_array().unwrap()) {
            for (key, value) in expected.as_object().unwrap() {
                let found = match key.as_str() {
                    // Known only while it is served.
                    "decision" | "guaranteed_bytes" if expected["name"] == "raw" => continue,
                    "decision" | "guaranteed_bytes" => shown["sizing"].get(key).unwrap_or(&serde_json::Value::Null),
                    "cache" => {
                        assert_eq!(shown["cache"]["eviction"], value["eviction"], "{shown}");
                        assert_eq!(shown["cache"]["requested_bytes"], value["requested_bytes"], "{shown}");
                        continue;
                    }
                    "share" => {
                        assert_eq!(shown["share"]["requested"], value["requested"], "{shown}");
                        &shown["share"]["effective"]
                    }
                    key => &shown[key],
                };
                assert_eq!(found, value.get("effective").unwrap_or(value), "{key} of {}", expected["name"]);
            }
        }
        assert_eq!(shown.as_array().unwrap().len(), expected.as_array().unwrap().len());
        let tenants = server.json(&["tenant", "list"]);
        let names: Vec<_> = tenants.as_array().unwrap().iter().map(|tenant| tenant["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["cleared", "own", "plain", "raw", "shop", "third"]);
        let shop = server.json(&["tenant", "show", "shop"]);
        assert_eq!(shop["disks"][0]["volumes"], serde_json::json!(["db", "log"]));
        assert_eq!(shop["disks"][0]["share"]["requested"], "1/8");
        assert_eq!(shop["disks"][1]["share"]["requested"], "1/2");
        assert_eq!(shop["disks"][1]["cache"]["requested_bytes"], 4 << 20);
    };
    let start = || {
        let mut command = Server::command_with(&data, "256MiB");
        command.arg("--no-probe");
        Server::start_command(&data, command).0
    };
    let server = start();
    check(&server);
    server.end();
    // Earlier releases refuse the disk, instead of serving it without what its tenants were promised since.
    let identity = fs::read_to_string(data.join("disks/default/disk.toml")).unwrap();
    assert!(identity.contains("format = 2\n"), "{identity}");
    let server = start();
    check(&server);
    // The volume that the latest allotment was stored with goes; the tenant keeps it, after a restart, too.
    server.must(&["volume", "delete", "log", "--yes"]);
    server.end();
    let server = start();
    assert_eq!(server.json(&["volume", "show", "db"])["share"]["requested"], "1/8");
    // What is set now counts, not what the volume's specification still says.
    server.must(&["tenant", "set", "shop", "--disk", "default", "--share", "none", "--cache", "none"]);
    server.end();
    let server = start();
    let shop = server.json(&["tenant", "show", "shop"]);
    assert_eq!(shop["disks"][0]["share"]["requested"], serde_json::Value::Null);
    assert_eq!(shop["disks"][1]["share"]["requested"], "1/2");
    server.end();
}

/// While the data of a volume is missing, nothing of an earlier release is moved: that volume's allotment may be the
/// tenant's latest, and applies when the data returns.
#[test]
fn the_latest_allotment_of_an_earlier_release_may_return_later() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    copy(Path::new(EARLIER), &data);
    let disk = data.join("disks/default");
    let make =
        |name: &str| fs::File::create(disk.join(format!("volumes/{name}.img"))).unwrap().set_len(4 << 20).unwrap();
    for name in ["db", "own", "plain"] {
        make(name);
    }
    let share = |server: &Server| server.json(&["volume", "show", "db"])["share"]["requested"].clone();
    let server = Server::start(&data);
    assert_eq!(share(&server), "1/4");
    assert!(!disk.join("tenants/shop.toml").exists());
    make("log");
    let start = std::time::Instant::now();
    while server.json(&["volume", "show", "log"])["condition"] != "online" {
        assert!(start.elapsed() < TIMEOUT, "it stays offline");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(share(&server), "1/8");
    server.end();
    let server = Server::start(&data);
    assert_eq!(share(&server), "1/8");
    assert!(disk.join("tenants/shop.toml").exists());
    server.end();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// A tenant's specification belongs to the tenant: it is set without naming a volume, is that of every volume, and goes
/// with the last one.
#[test]
fn a_tenant_is_set_and_goes_with_its_last_volume() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start(&data);
    assert!(server.fails(&["tenant", "set", "team", "--share", "1/2"]).contains("there is no tenant 'team'"));
    for name in ["a", "b"] {
        server.must(&["volume", "create", name, "1MiB", "--tenant", "team"]);
    }
    server.must(&["volume", "create", "own", "1MiB", "--share", "1/4"]);
    assert!(server.fails(&["tenant", "set", "team", "--share", "80%"]).contains("75% remains"));
    let said = server.must(&["tenant", "set", "team", "--share", "1/2", "--cache", "8MiB"]);
    assert!(said.contains("tenant 'team' is changed on disk 'default'; the cache of tenant 'team' was"), "{said}");
    server.must(&["volume", "set", "own", "--share", "1/8"]);
    let share = |server: &Server, volume: &str| server.json(&["volume", "show", volume])["share"]["requested"].clone();
    assert_eq!((share(&server, "a"), share(&server, "b")), ("1/2".into(), "1/2".into()));
    server.end();
    let server = Server::start(&data);
    assert_eq!((share(&server, "a"), share(&server, "own")), ("1/2".into(), "1/8".into()));
    assert_eq!(server.json(&["tenant", "show", "team"])["disks"][0]["cache"]["requested_bytes"], 8 << 20);
    // A failed creation takes back what it requested.
    // Too large for the file system, or for the space on it.
    for words in [&["c", "1EiB", "--tenant", "team", "--share", "5/8"][..], &["d", "1EiB", "--share", "1/8"]] {
        assert!(!server.ask(&[&["volume", "create"], words].concat()).status.success(), "{words:?}");
    }
    assert_eq!(share(&server, "a"), "1/2");
    let files = || fs::read_dir(data.join("disks/default/tenants")).unwrap().count();
    assert_eq!(files(), 2);
    for name in ["a", "b", "own"] {
        server.must(&["volume", "delete", name, "--yes"]);
    }
    assert_eq!((files(), server.must(&["tenant", "list"]).contains("no tenants")), (0, true));
    server.end();
}

/// A tenant's specification that cannot be read is not an absent one: its volumes are offline until it is repaired.
#[test]
fn a_tenant_that_cannot_be_read_is_not_served_without_its_share() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start(&data);
    server.must(&["volume", "create", "a", "1MiB", "--share", "1/2"]);
    server.must(&["volume", "create", "b", "1MiB"]);
    server.end();
    let path = data.join("disks/default/tenants/a.toml");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("format = 1", "format = 2")).unwrap();
    // A crash has left the specification of a tenant whose volume was not created.
    let orphan = path.with_file_name("orphan.toml");
    fs::write(&orphan, &text).unwrap();
    let server = Server::start(&data);
    let shown = server.json(&["volume", "show", "a"]);
    assert_eq!(shown["condition"], "offline");
    assert!(shown["reason"].as_str().unwrap().contains("its format is 2, this server knows 1"), "{shown}");
    assert_eq!(server.json(&["volume", "show", "b"])["condition"], "online");
    assert!(server.fails(&["volume", "create", "c", "1MiB", "--tenant", "a"]).contains("its format is 2"));
    fs::write(&path, text).unwrap();
    let start = std::time::Instant::now();
    while server.json(&["volume", "show", "a"])["condition"] != "online" {
        assert!(start.elapsed() < TIMEOUT, "it stays offline");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(server.json(&["volume", "show", "a"])["share"]["requested"], "1/2");
    assert!(orphan.exists(), "removed while a volume's tenant was not known");
    server.end();
    let server = Server::start(&data);
    assert!(!orphan.exists());
    server.end();
}

/// Specifications stay while the tenant of a volume is not known. A new tenant of such a name starts without requests;
/// but one that has an unreadable volume keeps its own.
#[test]
fn a_new_tenant_does_not_inherit_what_was_left() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let disk = data.join("disks/default");
    let server = Server::start(&data);
    for (volume, tenant, share) in [("a", "team", "1/4"), ("b", "shop", "1/8"), ("c", "other", "1/16")] {
        server.must(&["volume", "create", volume, "1MiB", "--tenant", tenant, "--share", share]);
    }
    server.end();
    let spec = disk.join("volumes/b.toml");
    let text = fs::read_to_string(&spec).unwrap();
    fs::write(&spec, "").unwrap();
    // A crash has left the specification of a tenant whose volume was not created.
    fs::copy(disk.join("tenants/team.toml"), disk.join("tenants/orphan.toml")).unwrap();
    let server = Server::start(&data);
    server.must(&["volume", "delete", "a", "--yes"]);
    assert!(disk.join("tenants/team.toml").exists(), "removed while a volume's tenant was not known");
    assert!(!server.ask(&["volume", "create", "d", "1EiB", "--tenant", "shop", "--share", "1/2"]).status.success());
    for (volume, tenant) in [("a", "team"), ("d", "shop"), ("orphan", "orphan")] {
        server.must(&["volume", "create", volume, "1MiB", "--tenant", tenant]);
    }
    let check = |server: &Server| {
        let share = |volume: &str| server.json(&["volume", "show", volume])["share"]["requested"].clone();
        let none = serde_json::Value::Null;
        assert_eq!(["a", "d", "orphan", "c"].map(share), [none.clone(), "1/8".into(), none, "1/16".into()]);
    };
    check(&server);
    server.end();
    let server = Server::start(&data);
    check(&server);
    server.end();
    fs::write(&spec, text).unwrap();
    let server = Server::start(&data);
    check(&server);
    assert_eq!(server.json(&["volume", "show", "b"])["share"]["requested"], "1/8");
    server.end();
}

/// An answer has the decision on what was requested, not an earlier one or none.
#[test]
fn an_answer_has_the_decision() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"));
    server.must(&["disk", "add", "hdd", "sim:cheetah-15k5"]);
    let near = |sizing: &serde_json::Value, mib: u64| {
        let guaranteed = sizing["guaranteed_bytes"].as_u64().unwrap_or(0);
        assert_eq!(sizing["decision"], "admitted", "{sizing}");
        assert!(guaranteed.abs_diff(mib << 20) <= 1 << 20, "{mib} MiB: {sizing}");
    };
    // Other tenants, so that the planner takes longer than the answer.
    for i in 0..4 {
        let done = server.json(&["volume", "create", &format!("t{i}"), "1MiB", "--disk", "hdd", "--cache", "4MiB"]);
        near(&done["volume"]["sizing"], 4);
    }
    for mib in [6, 4, 8, 5].repeat(2) {
        let cache = format!("{mib}MiB");
        let done = server.json(&["tenant", "set", "t0", "--disk", "hdd", "--cache", &cache]);
        near(&done["tenant"]["disks"][0]["sizing"], mib);
        let done = server.json(&["volume", "set", "t1", "--cache", &cache]);
        near(&done["volume"]["sizing"], mib);
    }
    server.end();
}

/// The allotment of a tenant survives the volume with which it was requested.
#[test]
fn an_allotment_stays_with_its_tenant() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"));
    server.must(&["volume", "create", "a", "1MiB", "--tenant", "team", "--share", "1/8"]);
    server.must(&["volume", "create", "b", "1MiB", "--tenant", "team", "--share", "1/2"]);
    server.must(&["volume", "delete", "b", "--yes"]);
    assert_eq!(server.json(&["volume", "show", "a"])["share"]["requested"], "1/2");
    assert!(server.fails(&["volume", "create", "c", "1MiB", "--share", "51%"]).contains("50% remains"));
    server.must(&["volume", "delete", "a", "--yes"]);
    server.must(&["volume", "create", "c", "1MiB", "--share", "1"]);
    server.end();
}

#[test]
fn a_second_server_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start(&data);
    let second = Server::command(&data).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let error = String::from_utf8(second.stderr).unwrap();
    assert!(error.contains(&format!("process {}", server.process.id())), "{error}");

    let other = Server::start(&dir.path().join("other"));
    let path = data.join("disks/default");
    let error = other.fails(&["disk", "add", "stolen", path.to_str().unwrap(), "--force"]);
    assert!(error.contains("in use by another server"), "{error}");
    server.end();
    other.must(&["disk", "add", "moved", path.to_str().unwrap(), "--force"]);
    other.end();
}

/// An unmounted file system must not look like a disk without volumes.
#[test]
fn a_disk_that_is_not_there_is_offline_and_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let (second, away) = (dir.path().join("second"), dir.path().join("away"));
    let server = Server::start(&data);
    server.must(&["disk", "add", "second", second.to_str().unwrap(), "--force"]);
    server.must(&["volume", "create", "db", "1MiB", "--disk", "second"]);
    server.must(&["volume", "create", "here", "1MiB", "--disk", "default"]);
    server.end();
    fs::rename(&second, &away).unwrap();
    fs::create_dir(&second).unwrap();

    let server = Server::start(&data);
    let disk = server.json(&["disk", "show", "second"]);
    assert_eq!(disk["condition"], "offline");
    assert!(disk["reason"].as_str().unwrap().contains("mounted"), "{disk}");
    assert_eq!(server.json(&["volume", "show", "here"])["condition"], "online");
    assert!(server.fails(&["volume", "create", "x", "1MiB", "--disk", "second"]).contains("offline"));
    assert_eq!(fs::read_dir(&second).unwrap().count(), 0, "nothing was made");

    fs::remove_dir(&second).unwrap();
    fs::rename(&away, &second).unwrap();
    server.must(&["disk", "add", "second", second.to_str().unwrap(), "--force"]);
    assert_eq!(server.json(&["volume", "show", "db"])["condition"], "online");
    server.end();
}

#[test]
fn unusable_volumes_are_offline_and_stray_data_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let volumes = data.join("disks/default/volumes");
    let server = Server::start(&data);
    server.must(&["volume", "create", "short", "1MiB"]);
    server.must(&["volume", "create", "gone", "1MiB"]);
    fs::remove_file(volumes.join("gone.img")).unwrap();
    assert!(server.must(&["volume", "show", "gone"]).contains("removed or replaced"));
    server.must(&["volume", "delete", "gone", "--yes"]);
    server.end();
    fs::File::options().write(true).open(volumes.join("short.img")).unwrap().set_len(4096).unwrap();
    fs::write(volumes.join("stray.img"), "precious").unwrap();

    let server = Server::start(&data);
    let status = server.must(&["status"]);
    assert!(
        status.contains("data is missing") && status.contains("stray.img is data without specification"),
        "{status}"
    );
    assert!(server.fails(&["volume", "create", "stray", "1MiB"]).contains("belongs to no volume"));
    assert_eq!(fs::read(volumes.join("stray.img")).unwrap(), b"precious");
    server.end();
}

/// A flag takes precedence over the configuration, which takes precedence over the environment.
#[test]
fn whose_word_counts_for_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("with.toml"), format!("data = {:?}\ncache = \"64MiB\"", at("file"))).unwrap();
    fs::write(at("without.toml"), "cache = \"64MiB\"").unwrap();
    let cases: [(&[&str], &str); 3] = [
        (&["--config", "with.toml", "--data", "flag"], "flag"),
        (&["--config", "with.toml"], "file"),
        (&["--config", "without.toml"], "environment"),
    ];
    for (words, used) in cases {
        let mut command = Command::new(PROGRAM);
        command.current_dir(dir.path()).env("AEROGEL_DATA", at("environment"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.args(["serve", "--http", "tcp:127.0.0.1:0", "--nbd", "unix:nbd.sock"]).args(words);
        let (server, _notices) = Server::start_command(&at(used), command);
        assert!(at(used).join("api.sock").exists(), "{used}");
        server.end();
        for other in ["flag", "file", "environment"] {
            assert_eq!(at(other).exists(), other == used, "{other} in place of {used}");
        }
        fs::remove_dir_all(at(used)).unwrap();
    }
}

#[test]
fn without_a_server_the_exit_status_is_3() {
    let dir = tempfile::tempdir().unwrap();
    let output = Command::new(PROGRAM).args(["status", "--data"]).arg(dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8(output.stderr).unwrap().contains("aerogel serve"));
}

#[test]
fn systemd_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let (server, notices) = Server::start_told(&dir.path().join("data"));
    server.end();
    assert_eq!(told(&notices), "STOPPING=1");
}
