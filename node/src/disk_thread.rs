//! The thread of one disk: the engine, its frames, its sockets and its device, on one core, without locks.
//!
//! ```text
//!   control (async) ──mailbox──┐                    one pass
//!                              ▼   ┌───────────────────────────────────────────┐
//!   Reactor ──completions──► Driver│ completions, mail, timer ► sockets in turn │──► one submission, which waits
//!      ▲                           └──────────────────┬────────────────────────┘            │
//!      └───────────────────────────────────── actions ┘◄────────────────────────────────────┘
//! ```
//!
//! [`DiskHandle`] is what the rest of the process sees. The thread dies loudly: when it panics, or when no I/O is
//! possible any more, the process ends, since its clients' requests would hang for ever otherwise. The downside of a
//! thread per disk: one disk's clients never use more than one core.

mod connection;
mod driver;
mod giving;
mod mailbox;
mod places;
mod rest;
#[cfg(test)]
mod tests;
mod turns;

use std::fs::File;
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

use engine::control::{Command, Report, TenantId, VolumeSpec};
use engine::disk::VolumeId;
use engine::{Config, Server};

use self::driver::Driver;
use self::mailbox::Sender;
pub use self::mailbox::{Client, Room};
use self::places::Places;
pub use self::places::{Full, Limits, Place as Seat};
use crate::access::Access;
use crate::frames::Frames;
use crate::reactor::{self, Kind, LayerCommand, LayerReport, Layers, Place, Reactor, Stack, Threads, Uring};

/// How to run a disk.
#[derive(Debug)]
pub struct Options {
    /// The disk's name, for the log and the thread.
    pub name: String,
    /// The engine's bounds.
    pub engine: Config,
    /// Which reactor.
    pub reactor: Kind,
    /// Clients at the same time.
    pub limits: Limits,
    /// What is between the engine and the files.
    pub stack: Stack,
}

impl Options {
    /// The usual ones.
    pub fn new(name: impl Into<String>, engine: Config) -> Options {
        let (reactor, limits, stack) = (Kind::Auto, Limits::default(), Stack::default());
        Options { name: name.into(), engine, reactor, limits, stack }
    }
}

/// Why a disk's thread could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No memory for the frames.
    #[error("no address space for the frames of disk {name}")]
    Frames {
        /// The disk.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// No reactor of the wanted kind.
    #[error("no {kind:?} reactor for disk {name}")]
    Reactor {
        /// The disk.
        name: String,
        /// Which.
        kind: Kind,
        /// Why.
        source: io::Error,
    },
    /// No thread.
    #[error("no thread for disk {name}")]
    Thread {
        /// The disk.
        name: String,
        /// Why.
        source: io::Error,
    },
}

/// The disk's thread has ended: it was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the disk was stopped")]
pub struct Stopped;

/// Starts disk threads.
#[derive(Debug)]
pub struct DiskThread;

impl DiskThread {
    /// Starts the thread of a disk without volumes; returns when it works.
    pub fn start(options: Options) -> Result<DiskHandle, StartError> {
        let (name, places) = (options.name.clone(), Places::new(options.limits));
        let (started, outcome) = mpsc::sync_channel(1);
        let builder = std::thread::Builder::new().name(format!("disk {name}"));
        let thread = builder
            .spawn(move || run(options, &started))
            .map_err(|source| StartError::Thread { name: name.clone(), source })?;
        match outcome.recv() {
            Ok(Ok(sender)) => Ok(DiskHandle { sender, places, thread: Some(thread) }),
            Ok(Err(error)) => Err(error),
            Err(_) => unreachable!("the thread says how its start went, or ends the process"),
        }
    }
}

/// A running disk thread. Dropping it stops the thread as [`DiskHandle::stop`] does, without waiting.
#[derive(Debug)]
pub struct DiskHandle {
    sender: Sender,
    places: Places,
    thread: Option<JoinHandle<()>>,
}

impl DiskHandle {
    /// Serves a volume out of `file` (opened with O_DIRECT where that is possible), which is kept until the volume's
    /// `CloseVolume` was answered with [`Report::Done`], and closed then.
    pub fn open_volume(
        &self,
        spec: VolumeSpec,
        file: File,
        place: Place,
    ) -> impl Future<Output = Result<Report, Stopped>> + use<> {
        self.sender.ask(Command::OpenVolume(spec), Some((file, place)))
    }

    /// Changes the layers on the device, or looks at them.
    pub fn layers(&self, command: LayerCommand) -> impl Future<Output = Result<LayerReport, Stopped>> + use<> {
        self.sender.ask_layers(command)
    }

    /// Asks for anything else.
    pub fn command(&self, command: Command) -> impl Future<Output = Result<Report, Stopped>> + use<> {
        assert!(!matches!(command, Command::OpenVolume(_)), "a volume is opened with its file");
        self.sender.ask(command, None)
    }

    /// Disconnects the clients of a volume that may not use it, or not in this way; see [`Command::Restrict`] for the
    /// answer.
    pub fn restrict(
        &self,
        volume: VolumeId,
        access: Access,
        read_only: bool,
    ) -> impl Future<Output = Result<Report, Stopped>> + use<> {
        self.sender.restrict(volume, access, read_only)
    }

    /// A seat for one more client of a volume, to be taken before its handshake is told that it may begin. `tenants` is
    /// how many the disk has.
    pub fn reserve(&self, volume: VolumeId, tenant: TenantId, tenants: usize) -> Result<Seat, Full> {
        self.places.reserve(volume, tenant, tenants)
    }

    /// Waits until the thread's mailbox has room for a client.
    pub fn room(&self) -> impl Future<Output = Result<Room, Stopped>> + use<> {
        self.sender.room()
    }

    /// A client of a test: it needs no seat.
    #[cfg(test)]
    pub fn attach(&self, socket: std::os::fd::OwnedFd, received: Vec<u8>, volume: VolumeId, session: engine::Session) {
        let peer = crate::peer::Peer::local(0);
        let room = futures::FutureExt::now_or_never(self.room());
        let room = room.expect("the mailbox has room").expect("it was not stopped");
        room.take(Client { socket, received, volume, session, peer, seat: None });
    }

    /// Ends the thread, whatever it was doing: connections are closed, what was not flushed (see [`Command::Drain`]) is
    /// lost. Returns when it has ended.
    pub fn stop(mut self) {
        self.sender.stop();
        if let Some(thread) = self.thread.take() {
            // It does not panic: that ends the process.
            let _ = thread.join();
        }
    }
}

impl Drop for DiskHandle {
    fn drop(&mut self) {
        self.sender.stop();
    }
}

/// Turns a panic of this thread into the end of the process.
struct EndWithMe;

impl Drop for EndWithMe {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(thread = std::thread::current().name(), "a disk thread panicked: the server ends");
            std::process::abort();
        }
    }
}

/// What the thread reports about its start.
type Started = mpsc::SyncSender<Result<Sender, StartError>>;

/// The thread.
fn run(options: Options, started: &Started) {
    let _guard = EndWithMe;
    // SAFETY: a setting of this thread, which takes a number. Rests of microseconds end when they should, not 50 µs
    // later.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    if options.stack.drive.is_some() {
        be_on_time(&options.name);
    }
    if let Err(error) = choose_reactor(options, started) {
        // The starter waits for this.
        let _ = started.send(Err(error));
    }
}

/// Puts the thread of a simulated drive before those that only want to get through: what it promises is moments, and a
/// thread that has rested waits for others up to some milliseconds, whatever its nice value (that counts among the
/// threads of one session only). The kernel keeps a twentieth of the processor for the others. Needs CAP_SYS_NICE or
/// LimitRTPRIO.
fn be_on_time(disk: &str) {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: a setting of this thread, from a value that lives. Threads that this one starts do not inherit it.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &raw const lowest) } != 0 {
        let error = io::Error::last_os_error();
        tracing::debug!(disk, %error, "the simulated drive is late where others want the processor too");
    }
}

fn choose_reactor(options: Options, started: &Started) -> Result<(), StartError> {
    let name = options.name.clone();
    let frames =
        Frames::new(options.engine.frames_max()).map_err(|source| StartError::Frames { name: name.clone(), source })?;
    let laid_out = reactor::Options { device_depth: options.engine.device_depth, connections_max: options.limits.disk };
    let kind = options.reactor;
    let failed = |source| StartError::Reactor { name: name.clone(), kind, source };
    if kind != Kind::Threads {
        match Uring::new(laid_out, frames.memory()) {
            Ok(uring) => {
                serve(options, frames, uring, started);
                return Ok(());
            }
            Err(error) if kind == Kind::Auto => {
                tracing::warn!(disk = name, %error, "no io_uring: using threads, which cost more CPU time");
            }
            Err(error) => return Err(failed(error)),
        }
    }
    let threads = Threads::new(laid_out, frames.memory()).map_err(failed)?;
    serve(options, frames, threads, started);
    Ok(())
}

fn serve<R: Reactor>(mut options: Options, frames: Frames, reactor: R, started: &Started) {
    let reactor = Layers::new(reactor, std::mem::take(&mut options.stack));
    let (sender, mailbox) = mailbox::new(reactor.waker());
    let server = Server::new(options.engine.clone());
    if started.send(Ok(sender)).is_err() {
        return; // The starter has gone.
    }
    Driver::new(options, server, frames, reactor, mailbox).run();
}
