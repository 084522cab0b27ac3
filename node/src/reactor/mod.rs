//! Device and socket I/O of one disk thread, based on completions.
//!
//! ```text
//!   submit, receive, receive_into, send, close_socket …   queue an operation (a send may be tried at once)
//!   turn(timeout, &mut completions)                     submit, wait, collect completions: one system call a pass
//! ```
//!
//! There are two implementations of the trait: [`Uring`] (io_uring) and [`Threads`] (epoll and worker threads, for
//! systems that forbid io_uring). `conformance.rs` tests both for the same behaviour. [`Layers`] is stacked on either
//! of them for simulated disks and injected faults.
//!
//! Rules for the caller:
//!
//! - A socket has at most one receive and one send in progress.
//! - [`Completion::Received`] lends a buffer of a small pool that all connections of the disk share. The caller returns
//!   it with [`Reactor::release`] soon: while all buffers are lent, no connection receives. This is the downside of a
//!   pool; its advantage over a buffer per socket is that idle connections use no memory.
//! - Slots (requests, volumes, sockets) are reused only after their last completion.

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

use engine::Outgoing;
use engine::disk::{Io, Segment};
use engine::ids::{ConnId, IoId, VolumeId};
use engine::nbd::Errno;
use engine::units::{Nanos, SECOND};

use crate::frames::Chunk;

use buffers::BUFFER_BYTES;
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

/// The sizes that a reactor is created for.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Concurrent device requests. Request numbers are below it, or a little above (slots are then added).
    pub device_depth: u32,
    /// Concurrent sockets.
    pub connections_max: u32,
}

/// An operation has completed, or the waker was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completion {
    /// A device request has completed.
    Io {
        /// The request.
        io: IoId,
        /// Its result.
        result: Result<(), Errno>,
    },
    /// [`Reactor::receive`]: the first `len` bytes of `buffer`, at least one. The buffer is lent until it is released.
    Received {
        /// The connection.
        conn: ConnId,
        /// The buffer.
        buffer: BufferId,
        /// Bytes received.
        len: usize,
    },
    /// [`Reactor::receive_into`]: bytes were received into the segments, in order. At least one.
    Filled {
        /// The connection.
        conn: ConnId,
        /// Bytes received.
        bytes: u64,
    },
    /// [`Reactor::send`]: the kernel has taken bytes of the message. At least one, possibly not all.
    Sent {
        /// The connection.
        conn: ConnId,
        /// Bytes taken.
        bytes: u64,
    },
    /// A receive ended because the peer has shut down its side, or because the connection failed.
    ReceiveEnded {
        /// The connection.
        conn: ConnId,
    },
    /// A send failed: the connection is broken.
    SendFailed {
        /// The connection.
        conn: ConnId,
    },
    /// [`Reactor::close_socket`]: the socket is closed and the kernel has no operation of it any more. This is the last
    /// completion of a socket.
    Closed {
        /// The connection.
        conn: ConnId,
    },
    /// A [`Waker`] was used.
    Woken,
}

/// Wakes a waiting reactor, from any thread.
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

    /// Makes the current or the next `turn` return with [`Completion::Woken`].
    pub fn wake(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: reads eight bytes of a live array. The write can fail or block only when the counter is about to
        // overflow, after 2^64 - 2 wake-ups that were not collected.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Unsets the event. Called only while it is set, so the read does not block.
    fn clear(&self) {
        let mut count = [0; 8];
        // SAFETY: writes eight bytes into a live array.
        unsafe { libc::read(self.event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    /// The descriptor, readable while the event is set.
    fn fd(&self) -> i32 {
        self.event.as_raw_fd()
    }
}

/// Device and socket I/O with completions. The module describes the rules.
pub trait Reactor {
    /// A handle that wakes the reactor.
    fn waker(&self) -> Waker;

    /// The current time, nanoseconds, on the clock that the reactor's user runs on.
    fn now(&self) -> Nanos {
        clock()
    }

    /// From now on requests of `volume` go to `file`.
    fn open_volume(&mut self, volume: VolumeId, file: File) -> io::Result<()>;

    /// Closes the file of `volume`, which has no request in flight. Does nothing if there is no file.
    fn close_volume(&mut self, volume: VolumeId);

    /// Starts a device request. An unknown volume makes the request fail.
    fn submit(&mut self, io: IoId, request: &Io);

    /// Adds a connected socket in a free slot.
    fn open_socket(&mut self, conn: ConnId, socket: OwnedFd) -> io::Result<()>;

    /// Receives into a buffer of the pool.
    fn receive(&mut self, conn: ConnId) {
        self.receive_most(conn, BUFFER_BYTES);
    }

    /// The same, but usually at most `bytes` bytes: what follows is to be received into frames.
    fn receive_most(&mut self, conn: ConnId, bytes: usize);

    /// Receives into these segments, preferably with one completion for all of them.
    fn receive_into(&mut self, conn: ConnId, segments: impl Iterator<Item = Segment>);

    /// Sends these parts, or as many as fit into one system call. Returns the bytes of the message.
    fn send<'a>(&mut self, conn: ConnId, parts: impl Iterator<Item = Outgoing<'a>>) -> u64;

    /// Bytes that were sent and that the peer of a Unix socket has not read, as the kernel counts them (with its
    /// overhead).
    fn unread(&self, conn: ConnId) -> u32;

    /// Cancels what is in flight and closes the socket. Only [`Completion::Closed`] follows for it.
    fn close_socket(&mut self, conn: ConnId);

    /// The same, but only the sending side is shut down: a copy of the descriptor still receives, and tells when the
    /// peer has ended the connection.
    fn leave_socket(&mut self, conn: ConnId);

    /// The bytes of a lent buffer.
    fn buffer(&self, buffer: BufferId) -> &[u8];

    /// Returns a lent buffer.
    fn release(&mut self, buffer: BufferId);

    /// Releases the memory of a chunk that has no frame in use. Returns false if that is not possible.
    fn unpin(&mut self, chunk: &Chunk) -> bool;

    /// Submits what was queued, waits for a completion (at most `timeout`, without limit if `None`), and appends the
    /// completions. May return early with none. Returns whether it may have slept until a completion came; otherwise
    /// the completions are from before the call. An error means that no more I/O is possible.
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

/// CLOCK_MONOTONIC in nanoseconds: the time of the engine, and of simulated drives.
pub fn clock() -> Nanos {
    // SAFETY: fills a structure of ours; this clock exists on every Linux.
    let now = unsafe {
        let mut now = std::mem::zeroed::<libc::timespec>();
        libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now);
        now
    };
    now.tv_sec as u64 * SECOND + now.tv_nsec as u64
}
