//! TLS for NBD. It terminates before the disk's thread.
//!
//! ```text
//!   client ──TLS──► pump ──socket pair──► disk thread
//! ```
//!
//! TLS handshakes run on a thread of their own, so that public-key operations delay neither the API nor the data of
//! other connections. Afterwards a task (`pump.rs`) on the TLS threads copies between the TLS stream and one end of a
//! socket pair. The disk's thread has the other end and does not know about TLS. Downside: two more copies, two more
//! descriptors, and CPU time that is not charged to the tenant on the disk's thread. Instead, at most
//! [`threads_per_tenant`] tasks of a tenant run at the same time, so that a tenant's connections wait for each other
//! rather than delay other tenants.
//!
//! Connections to the servers of gateway volumes take the same way (`client.rs`): control connects and asks for TLS,
//! and the disk's thread has one end of a socket pair.

mod certificates;
mod client;
mod identity;
mod pump;
mod slice;

use std::io;
use std::os::unix::net::UnixStream as Pair;
use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::Context;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Mutex, mpsc};
use tokio_rustls::TlsAcceptor;

use self::certificates::Certificates;
pub use self::client::{ClientFiles, Encrypted, TlsError};
pub use self::identity::identity;
pub use self::pump::Pump;
use crate::config;

/// Threads that encrypt, at most: each does 1 to 2 GB/s, and the disks' threads need processors, too.
const THREADS_MAX: usize = 4;
/// Tasks that a thread runs before it polls sockets again. With tokio's default of 61 tasks of some 50 µs each, a
/// request of another tenant would be noticed after 3 ms.
const EVENT_INTERVAL: u32 = 4;

fn threads() -> usize {
    // At least two, so that one thread remains when a tenant uses its one.
    available_parallelism().map_or(2, |count| count.get().clamp(2, THREADS_MAX))
}

/// TLS threads that may work for one tenant of a disk at the same time: all but one.
pub fn threads_per_tenant() -> usize {
    threads() - 1
}

/// The threads of TLS, which run as long as the process.
#[derive(Clone, Debug)]
struct Threads {
    handshakes: Handle,
    pumps: Handle,
}

impl Threads {
    /// Starts them when they are needed first: by a listener, or by a volume on another server.
    fn get() -> anyhow::Result<Threads> {
        static STARTED: std::sync::Mutex<Option<Threads>> = std::sync::Mutex::new(None);
        let mut started = STARTED.lock().expect("no one panics while holding it");
        if let Some(threads) = &*started {
            return Ok(threads.clone());
        }
        let start = |name: &str, threads, begin: fn()| -> anyhow::Result<&'static Runtime> {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(threads).thread_name(name).enable_all().on_thread_start(begin);
            let runtime = builder.event_interval(EVENT_INTERVAL).global_queue_interval(EVENT_INTERVAL).build();
            Ok(Box::leak(Box::new(runtime.context("cannot start the TLS threads")?)))
        };
        let handshakes = start("tls handshake", 1, || ())?.handle().clone();
        let pumps = start("tls", threads(), slice::shorten)?.handle().clone();
        Ok(started.insert(Threads { handshakes, pumps }).clone())
    }
}

/// The disk thread's end of a connection over TLS, and the pump's.
pub fn socket_pair() -> io::Result<(Pair, Pair)> {
    let (one, other) = Pair::pair()?;
    one.set_nonblocking(true)?;
    other.set_nonblocking(true)?;
    Ok((one, other))
}

/// The state that all TLS listeners share.
#[derive(Debug)]
pub struct Tls {
    certificates: Certificates,
    threads: Threads,
    /// Each pump that may have something to send has a clone. `None` when the server ends.
    busy: std::sync::Mutex<Option<mpsc::Sender<()>>>,
    /// Ends when no clone exists any more.
    idle: Mutex<mpsc::Receiver<()>>,
}

impl Tls {
    /// Reads the certificates and starts the threads.
    pub fn start(config: &config::Tls) -> anyhow::Result<Arc<Tls>> {
        let certificates = Certificates::read(config)?;
        let threads = Threads::get()?;
        let (busy, idle) = mpsc::channel(1);
        let (busy, idle) = (std::sync::Mutex::new(Some(busy)), Mutex::new(idle));
        Ok(Arc::new(Tls { certificates, threads, busy, idle }))
    }

    /// An acceptor with the certificates as the files are now.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.certificates.current())
    }

    /// Runs a handshake on its thread.
    pub fn spawn_handshake(&self, handshake: impl Future<Output = ()> + Send + 'static) {
        self.threads.handshakes.spawn(handshake);
    }

    /// The runtime of the pumps, with which their sockets are registered.
    pub fn pumps(&self) -> &Handle {
        &self.threads.pumps
    }

    /// A guard that a pump holds until it has nothing more to send.
    pub fn busy(&self) -> Option<mpsc::Sender<()>> {
        self.busy.lock().expect("no one panics while holding it").clone()
    }

    /// Waits until all answers of the disks' threads are sent, after those have closed their connections.
    pub async fn finish(&self) {
        drop(self.busy.lock().expect("no one panics while holding it").take());
        self.idle.lock().await.recv().await;
    }
}
