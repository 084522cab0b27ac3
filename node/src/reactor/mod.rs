//! Device and socket I/O of one disk thread, by completions.
//!
//! ```text
//!   submit, receive, receive_into, send, close_socket …   queue (a send may be tried at once)
//!   turn(timeout, &mut completions)                     hands everything over, waits, collects: one system call a pass
//! ```
//!
//! [`Layers`] stands above them for disks that are simulated, and for faults.
//!
//! Two back ends stand behind the trait: [`Uring`] (io_uring) and [`Threads`] (epoll and plain threads, for systems
//! that forbid io_uring); `conformance.rs` holds both to the same behaviour.
//!
//! Rules for the caller: at most one receive and one send of a socket at a time; [`Completion::Received`] lends a
//! buffer out of a small shared pool, to be given back with [`Reactor::release`] soon, or everybody stops receiving;
//! slots (requests, volumes, sockets) are used again only after their last completion. The downside of a pool in place
//! of a buffer per socket is just that; what is won is that idle connections cost nothing.

mod buffers;
#[cfg(test)]
mod conformance;
mod errors;
mod gather;
mod late;
mod layers;
mod lead;
mod request;
mod threads;
mod transfer;
mod uring;

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use engine::disk::{Io, IoId, Segment, VolumeId};
use engine::nbd::Errno;
use engine::units::{Nanos, SECOND};
use engine::{ConnId, Outgoing};

use crate::frames::Chunk;

pub use buffers::{BUFFERS, BufferId};
pub use late::BOUNDS_NS;
pub use layers::{FaultState, LayerCommand, LayerReport, LayerView, Layers, Place, Stack};
pub use threads::Threads;
pub use uring::Uring;

/// Which back end to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// io_uring; threads, with a warning, where the system has none or forbids it.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    /// Threads and epoll.
    Threads,
}

/// What a reactor is laid out for.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Device requests at the same time: request numbers are below it, or a little above (slots are then added).
    pub device_depth: u32,
    /// Sockets at the same time.
    pub connections_max: u32,
}

/// Something that was asked for is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// A device request.
    Io {
        /// Which.
        io: IoId,
        /// How it went.
        result: Result<(), Errno>,
    },
    /// [`Reactor::receive`]: the first `len` bytes of `buffer`, which is the caller's until released. At least one.
    Received {
        /// From whom.
        conn: ConnId,
        /// Where.
        buffer: BufferId,
        /// How many.
        len: usize,
    },
    /// [`Reactor::receive_into`]: that many bytes are in the segments, in order. At least one.
    Filled {
        /// From whom.
        conn: ConnId,
        /// How many.
        bytes: u64,
    },
    /// [`Reactor::send`]: that many of the bytes were taken by the kernel. At least one, perhaps not all.
    Sent {
        /// To whom.
        conn: ConnId,
        /// How many.
        bytes: u64,
    },
    /// A receive ended because the peer will send no more, or the connection failed.
    ReceiveEnded {
        /// Whose.
        conn: ConnId,
    },
    /// A send failed: the connection is of no use any more.
    SendFailed {
        /// Whose.
        conn: ConnId,
    },
    /// [`Reactor::close_socket`]: closed, and nothing of it is in the kernel any more. The last completion of a socket.
    Closed {
        /// Which.
        conn: ConnId,
    },
    /// Somebody used a [`Waker`].
    Woken,
}

/// Wakes a reactor that waits, from any thread.
#[derive(Clone, Debug)]
pub struct Waker {
    event: Arc<OwnedFd>,
}

impl Waker {
    /// A new event, not yet set.
    pub fn new() -> io::Result<Waker> {
        // SAFETY: creates a descriptor, touches no memory.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is new and ours alone.
        Ok(Waker { event: Arc::new(unsafe { OwnedFd::from_raw_fd(fd) }) })
    }

    /// The current or the next `turn` returns with [`Completion::Woken`].
    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: reads eight bytes of a live array. It can only fail or block when the counter is about to overflow,
        // after 2^64 - 2 wake-ups that nobody answered.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Unset it. Only called while it is set, so it does not block.
    fn clear(&self) {
        let mut count = [0; 8];
        // SAFETY: writes eight bytes into a live array.
        unsafe { libc::read(self.event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    /// The descriptor, readable when set.
    fn fd(&self) -> i32 {
        self.event.as_raw_fd()
    }
}

/// Device and socket I/O by completions.
pub trait Reactor {
    /// A handle to wake it with.
    fn waker(&self) -> Waker;

    /// The time that its user lives in.
    fn now(&self) -> Nanos {
        clock()
    }

    /// Requests of `volume` go to `file` from now on.
    fn open_volume(&mut self, volume: VolumeId, file: File) -> io::Result<()>;

    /// Closes the file of `volume`, which has no request in flight; nothing if there is none.
    fn close_volume(&mut self, volume: VolumeId);

    /// Begins a device request. An unknown volume is an error of the request.
    fn submit(&mut self, io: IoId, request: &Io);

    /// Takes a connected socket into a free slot.
    fn open_socket(&mut self, conn: ConnId, socket: OwnedFd) -> io::Result<()>;

    /// Receives what comes next, into a buffer of the pool.
    fn receive(&mut self, conn: ConnId);

    /// Receives what comes next straight into these segments; preferably all of them are filled at once.
    fn receive_into(&mut self, conn: ConnId, segments: impl Iterator<Item = Segment>);

    /// Sends these parts, or as many as fit into one system call: how many bytes that is.
    fn send<'a>(&mut self, conn: ConnId, parts: impl Iterator<Item = Outgoing<'a>>) -> u64;

    /// Bytes that were sent and that the peer of a Unix socket has not read, as the kernel accounts them.
    fn unread(&self, conn: ConnId) -> u32;

    /// Breaks off what is in flight and closes. Only [`Completion::Closed`] follows for this socket.
    fn close_socket(&mut self, conn: ConnId);

    /// The bytes of a lent buffer.
    fn buffer(&self, buffer: BufferId) -> &[u8];

    /// Gives a lent buffer back.
    fn release(&mut self, buffer: BufferId);

    /// Lets go of the memory of a chunk of which no frame is in use; false if that is not possible.
    fn unpin(&mut self, chunk: &Chunk) -> bool;

    /// Hands over what was queued, waits until something is complete (at most `timeout`, without limit if `None`), and
    /// appends what is complete. May return early with nothing. Says whether it may have slept until something came;
    /// otherwise what is complete came before. An error means that no I/O is possible any more.
    fn turn(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) -> io::Result<bool>;
}

/// The slot of number `index`, growing the table to it.
fn slot<T>(table: &mut Vec<Option<T>>, index: u32) -> &mut Option<T> {
    let index = index as usize;
    if index >= table.len() {
        table.resize_with(index + 1, || None);
    }
    &mut table[index]
}

/// CLOCK_MONOTONIC: the time of the engine, and of simulated drives.
pub fn clock() -> Nanos {
    // SAFETY: fills a structure of ours; this clock exists on every Linux.
    let now = unsafe {
        let mut now = std::mem::zeroed::<libc::timespec>();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now);
        now
    };
    now.tv_sec as u64 * SECOND + now.tv_nsec as u64
}
