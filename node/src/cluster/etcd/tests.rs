//! Against a real etcd, which `scripts/setup test` installs.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::*;
use crate::cluster::config::Options;

/// How long etcd takes to start, on a machine that is busy.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// An etcd in a scratch directory.
struct Running {
    directory: tempfile::TempDir,
    ports: [u16; 2],
    process: Child,
}

fn spawn(directory: &tempfile::TempDir, ports: [u16; 2]) -> Child {
    let [client, peer] = ports.map(|port| format!("http://127.0.0.1:{port}"));
    let process = Command::new("etcd")
        .args(["--name", "e", "--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("e={peer}"), "--heartbeat-interval", "50", "--election-timeout", "250"])
        .arg("--data-dir")
        .arg(directory.path().join("data"))
        .env("ETCD_UNSUPPORTED_ARCH", if cfg!(target_arch = "aarch64") { "arm64" } else { "" })
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("etcd is installed: run `scripts/setup test`");
    let until = Instant::now() + START_TIMEOUT;
    while TcpStream::connect(("127.0.0.1", ports[0])).is_err() {
        assert!(Instant::now() < until, "etcd does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    process
}

impl Running {
    fn start() -> Running {
        let directory = tempfile::tempdir().unwrap();
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let ports = listeners.map(|listener| listener.local_addr().unwrap().port());
        let process = spawn(&directory, ports);
        Running { directory, ports, process }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn restart(&mut self) {
        self.kill();
        self.process = spawn(&self.directory, self.ports);
    }

    async fn connect(&self) -> Etcd {
        let options = Options {
            etcd: vec![format!("http://127.0.0.1:{}", self.ports[0])],
            cluster: Some("lab".parse().unwrap()),
            name: Some("s1".parse().unwrap()),
            advertise: Some("nbd://h:1".into()),
            ..Options::default()
        };
        let settings = options.settings(false).unwrap().unwrap();
        let until = Instant::now() + START_TIMEOUT;
        loop {
            // It listens before it has a leader.
            let etcd = Etcd::connect(&settings).await.unwrap();
            match etcd.image().await {
                Ok(_) => return etcd,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn epochs_grow_whoever_asks_and_survive_restarts() {
    let mut running = Running::start();
    let (volume, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let (first, second) = (running.connect().await, running.connect().await);
    let ask = |etcd: Etcd| async move {
        let mut epochs = Vec::new();
        for _ in 0..10 {
            epochs.push(etcd.next_epoch(volume, 0).await.unwrap());
        }
        epochs
    };
    let (one, two) = tokio::join!(tokio::spawn(ask(first.clone())), tokio::spawn(ask(second)));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert!([&one, &two].iter().all(|epochs| epochs.windows(2).all(|pair| pair[0] < pair[1])), "{one:?} {two:?}");
    let mut all = [one, two].concat();
    all.sort_unstable();
    assert_eq!(all, (1..=20).collect::<Vec<_>>(), "each is given once");
    assert_eq!(first.next_epoch(other, 0).await.unwrap(), 1, "each volume has its own");
    running.restart();
    let again = running.connect().await;
    assert_eq!(again.next_epoch(volume, 0).await.unwrap(), 21);
    assert_eq!(again.next_epoch(volume, 40).await.unwrap(), 41, "etcd was restored from a backup");
    // An epoch that cannot be read is never taken for the first one.
    let key = format!("epochs/{volume}");
    again.transact(Vec::new(), vec![again.put(&key, &"many", None)]).await.unwrap();
    let why = again.next_epoch(volume, 0).await.unwrap_err().to_string();
    assert!(why.contains(&key), "{why}");
    running.kill();
    assert!(again.next_epoch(other, 0).await.is_err(), "it does not answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transactions_hold_and_leases_take_their_keys_along() {
    let running = Running::start();
    let etcd = running.connect().await;
    let put = |value: u64| vec![etcd.put("versions/s1", &value, None)];
    let is = |image: &Image| vec![etcd.unchanged(image, "versions/s1")];
    let before = etcd.image().await.unwrap();
    let revision = etcd.transact(is(&before), put(5)).await.unwrap().expect("it is new");
    assert_eq!(etcd.transact(is(&before), put(6)).await.unwrap(), None, "it is not new any more");
    let after = etcd.image().await.unwrap();
    assert_eq!(after.revision_of("versions/s1"), revision);
    assert!(etcd.transact(is(&after), put(7)).await.unwrap().is_some());
    assert_eq!(etcd.transact(is(&after), put(8)).await.unwrap(), None, "it has been written since");
    let mut lease = etcd.kept_lease(Duration::from_secs(10)).await.unwrap();
    lease.renew().await.unwrap();
    let put = vec![etcd.put("draining/s2", &(), Some(lease.id))];
    etcd.transact(vec![etcd.exists("versions/s1")], put).await.unwrap().expect("it exists");
    let image = etcd.image().await.unwrap();
    assert_eq!((image.versions.values().next(), image.draining.len()), (Some(&7), 1));
    let mut watch = etcd.watch(image.revision).await.unwrap();
    etcd.end_lease(lease.id).await.unwrap();
    let mut events = Vec::new();
    // The first message says that the watch exists.
    while events.is_empty() {
        events = in_time(watch.message()).await.unwrap().expect("the key has gone").events().to_vec();
    }
    assert_eq!(events.len(), 1);
    assert!(etcd.image().await.unwrap().draining.is_empty());
    assert!(matches!(lease.renew().await, Err(EtcdError::LeaseEnded)));
    etcd.transact(Vec::new(), vec![etcd.remove_below("versions/")]).await.unwrap();
    assert!(etcd.image().await.unwrap().versions.is_empty());
}
