//! The thread of one disk: the engine, its frames, its sockets and its device, on one core, without locks.
//!
//! ```text
//!   control (async) ──mailbox──┐                    one pass
//!                              ▼   ┌─────────────────────────────────────────────────┐
//!   Reactor ──completions──► Driver│ completions, mail, timer ► sockets, by share    │──► one submission, which waits
//!      ▲                           └──────────────────┬──────────────────────────────┘      │
//!      └───────────────────────────────────── actions ┘◄────────────────────────────────────┘
//! ```
//!
//! The rest of the process uses [`DiskHandle`]. If the thread panics, or no I/O is possible any more, the process
//! aborts, since otherwise the requests of its clients would hang for ever. Downside of a thread per disk: the clients
//! of one disk never use more than one core.

mod connection;
mod driver;
mod giving;
mod mailbox;
mod places;
mod planning;
mod snapshots;
#[cfg(test)]
mod tests;
mod uplink;

use std::fs::File;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::control::{Command, Report, VolumeSpec};
use engine::ids::{TenantId, VolumeId};
use engine::plan::{Evidence, Planner};
use engine::{Config, Server};
use tokio::sync::Semaphore;

use self::driver::Driver;
use self::mailbox::Sender;
pub use self::mailbox::{Client, Room};
use self::places::Places;
pub use self::places::{Full, Limits, Place as Seat};
pub use self::planning::Planning;
pub use self::snapshots::Snapshots;
use self::uplink::UPLINKS_MAX;
use crate::access::Access;
use crate::frames::Frames;
use crate::reactor::{self, Kind, LayerCommand, LayerReport, Layers, Place, Reactor, Stack, Threads, Uring};
use crate::sessions::Lease;
use crate::upstream::Leg;

/// The configuration of a disk thread.
#[derive(Debug)]
pub struct Options {
    /// The disk's name, for the log and the thread.
    pub name: String,
    /// The configuration of the engine.
    pub engine: Config,
    /// The kind of the reactor.
    pub reactor: Kind,
    /// Limits of concurrent connections.
    pub limits: Limits,
    /// The layers between the engine and the files.
    pub stack: Stack,
}

impl Options {
    /// The default options.
    pub fn new(name: impl Into<String>, engine: Config) -> Options {
        let (reactor, limits, stack) = (Kind::Auto, Limits::default(), Stack::default());
        Options { name: name.into(), engine, reactor, limits, stack }
    }
}

/// Why a disk's thread could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is no address space for the frames.
    #[error("no address space for the frames of disk {name}")]
    Frames {
        /// The disk.
        name: String,
        /// The cause.
        source: io::Error,
    },
    /// The reactor cannot be created.
    #[error("no {kind:?} reactor for disk {name}")]
    Reactor {
        /// The disk.
        name: String,
        /// The requested kind.
        kind: Kind,
        /// The cause.
        source: io::Error,
    },
    /// The thread cannot be created.
    #[error("no thread for disk {name}")]
    Thread {
        /// The disk.
        name: String,
        /// The cause.
        source: io::Error,
    },
}

/// Where the data of a volume is.
#[derive(Debug)]
pub enum Backing {
    /// In a file, opened with O_DIRECT if possible.
    File(File, Place),
    /// On another server, or striped over several.
    Upstream(Vec<Leg>),
}

/// The disk's thread was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the disk was stopped")]
pub struct Stopped;

/// Starts disk threads.
#[derive(Debug)]
pub struct DiskThread;

impl DiskThread {
    /// Starts the thread of a disk without volumes. Returns when it is running.
    pub fn start(options: Options) -> Result<DiskHandle, StartError> {
        let (name, places) = (options.name.clone(), Places::new(options.limits));
        let planner = Planner::new(&options.engine);
        let (outcome, started) = mpsc::sync_channel(1);
        let (evidence, received) = planning::channel();
        let builder = std::thread::Builder::new().name(format!("disk {name}"));
        let thread = builder
            .spawn(move || run(options, &Start { outcome, evidence }))
            .map_err(|source| StartError::Thread { name: name.clone(), source })?;
        let sender = match started.recv() {
            Ok(outcome) => outcome?,
            Err(_) => unreachable!("the thread says how its start went, or ends the process"),
        };
        let planning = Planning::start(&name, planner, received, sender.clone());
        let planning = planning.map_err(|source| {
            sender.stop();
            StartError::Thread { name, source }
        })?;
        Ok(DiskHandle { snapshots: Snapshots::new(sender.clone()), sender, places, planning, thread: Some(thread) })
    }
}

/// A running disk thread. Dropping the handle stops the thread as [`DiskHandle::stop`] does, without waiting.
#[derive(Debug)]
pub struct DiskHandle {
    sender: Sender,
    places: Places,
    planning: Planning,
    snapshots: Arc<Snapshots>,
    thread: Option<JoinHandle<()>>,
}

impl DiskHandle {
    /// Serves a volume. Its file or its connections are closed when the volume's `CloseVolume` is answered with
    /// [`Report::Done`].
    pub fn open_volume(
        &self,
        spec: VolumeSpec,
        backing: Backing,
    ) -> impl Future<Output = Result<Report, Stopped>> + use<> {
        self.sender.ask(Command::OpenVolume(spec), Some(backing))
    }

    /// Changes the layers on the device, or reports their state.
    pub fn layers(&self, command: LayerCommand) -> impl Future<Output = Result<LayerReport, Stopped>> + use<> {
        self.sender.ask_layers(command)
    }

    /// Sends any other command.
    pub fn command(&self, command: Command) -> impl Future<Output = Result<Report, Stopped>> + use<> {
        assert!(!matches!(command, Command::OpenVolume(_)), "a volume is opened with its file");
        self.sender.ask(command, None)
    }

    /// The disk's planner.
    pub fn planning(&self) -> Planning {
        self.planning.clone()
    }

    /// The disk's snapshots.
    pub fn snapshots(&self) -> Arc<Snapshots> {
        self.snapshots.clone()
    }

    /// Disconnects the clients of a volume whose access is not permitted any more. For the answer see
    /// [`Command::Restrict`].
    pub fn restrict(
        &self,
        volume: VolumeId,
        access: Access,
        read_only: bool,
    ) -> impl Future<Output = Result<Report, Stopped>> + use<> {
        self.sender.restrict(volume, access, read_only)
    }

    /// Disconnects the clients whose sessions are superseded, at once. Each connection's lease is dropped when the
    /// engine has forgotten it.
    pub fn expel(&self) -> impl Future<Output = Result<(), Stopped>> + use<> {
        self.sender.expel()
    }

    /// Ends a session with a lease and disconnects its client, unless the lease runs: then the answer is for how long.
    pub fn expel_silent(&self, session: Lease) -> impl Future<Output = Result<Option<Duration>, Stopped>> + use<> {
        self.sender.expel_silent(session)
    }

    /// The semaphore that limits work on a tenant's connections over TLS.
    pub fn tls_gate(&self, tenant: TenantId) -> Arc<Semaphore> {
        self.places.tls_gate(tenant)
    }

    /// Reserves a seat for one more client of a volume, before its handshake is answered. `tenants` is the number of
    /// tenants on the disk.
    pub fn reserve(&self, volume: VolumeId, tenant: TenantId, tenants: usize) -> Result<Seat, Full> {
        self.places.reserve(volume, tenant, tenants)
    }

    /// Waits until the thread's mailbox has room for a client.
    pub fn room(&self) -> impl Future<Output = Result<Room, Stopped>> + use<> {
        self.sender.room()
    }

    /// Attaches a client without a seat, for tests.
    #[cfg(test)]
    pub fn attach(&self, socket: std::os::fd::OwnedFd, received: Vec<u8>, volume: VolumeId, session: engine::Session) {
        let peer = crate::peer::Peer::local(0);
        let room = futures::FutureExt::now_or_never(self.room());
        let room = room.expect("the mailbox has room").expect("it was not stopped");
        room.take(Client { socket, received, volume, session, peer, seat: None, lease: None });
    }

    /// Ends the thread at once: connections are closed, and what was not flushed (see [`Command::Drain`]) is lost.
    /// Returns when the thread has ended.
    pub fn stop(mut self) {
        self.sender.stop();
        if let Some(thread) = self.thread.take() {
            // The thread cannot have panicked, since a panic aborts the process.
            let _ = thread.join();
        }
    }
}

impl Drop for DiskHandle {
    fn drop(&mut self) {
        self.sender.stop();
    }
}

/// Aborts the process if this thread panics.
struct EndWithMe;

impl Drop for EndWithMe {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(thread = std::thread::current().name(), "a disk thread panicked: the server ends");
            std::process::abort();
        }
    }
}

/// Where the thread reports whether its start succeeded, and where it sends evidence.
struct Start {
    outcome: mpsc::SyncSender<Result<Sender, StartError>>,
    evidence: mpsc::SyncSender<Box<Evidence>>,
}

/// The body of the thread.
fn run(options: Options, start: &Start) {
    let _guard = EndWithMe;
    // SAFETY: a setting of this thread, which takes a number. With it, timers of microseconds expire in time instead of
    // 50 µs later.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    if options.stack.drive.is_some() {
        be_on_time(&options.name);
    }
    if let Err(error) = choose_reactor(options, start) {
        // The starter waits for this.
        let _ = start.outcome.send(Err(error));
    }
}

/// Gives the thread of a simulated drive real-time priority, since its completions are due at exact moments. Otherwise
/// a thread that has slept may wait some milliseconds for a processor, whatever its nice value (which counts among the
/// threads of one session only). The kernel reserves a twentieth of the processor for other threads. Needs CAP_SYS_NICE
/// or LimitRTPRIO.
fn be_on_time(disk: &str) {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: a setting of this thread, from a live value. Threads that this thread starts do not inherit it.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &raw const lowest) } != 0 {
        let error = io::Error::last_os_error();
        tracing::debug!(
            disk,
            %error,
            "no real-time priority: simulated completions are late under contention for the processor"
        );
    }
}

fn choose_reactor(options: Options, start: &Start) -> Result<(), StartError> {
    let name = options.name.clone();
    let frames =
        Frames::new(options.engine.frames_max()).map_err(|source| StartError::Frames { name: name.clone(), source })?;
    let connections_max = options.limits.disk + UPLINKS_MAX;
    let laid_out = reactor::Options { device_depth: options.engine.device_depth, connections_max };
    let kind = options.reactor;
    let failed = |source| StartError::Reactor { name: name.clone(), kind, source };
    if kind != Kind::Threads {
        match Uring::new(laid_out, frames.memory()) {
            Ok(uring) => {
                serve(options, frames, uring, start);
                return Ok(());
            }
            Err(error) if kind == Kind::Auto => {
                tracing::warn!(disk = name, %error, "no io_uring: using threads, which cost more CPU time");
            }
            Err(error) => return Err(failed(error)),
        }
    }
    let threads = Threads::new(laid_out, frames.memory()).map_err(failed)?;
    serve(options, frames, threads, start);
    Ok(())
}

fn serve<R: Reactor>(mut options: Options, frames: Frames, reactor: R, start: &Start) {
    let reactor = Layers::new(reactor, std::mem::take(&mut options.stack));
    let (sender, mailbox) = mailbox::new(reactor.waker());
    let server = Server::new(options.engine.clone());
    let mail = (sender.clone(), mailbox);
    if start.outcome.send(Ok(sender)).is_err() {
        return; // The starter has given up.
    }
    Driver::new(options, server, frames, reactor, mail, start.evidence.clone()).run();
}
