//! The contract of the engine of one disk: which events go in, what is polled, in which order.
//!
//! ```text
//!   driver                                   Server
//!   ──────                                   ──────
//!   handle(now, event)        ───────────►   decides
//!   poll_action() until None  ◄───────────   Copy/Zero: at once, in order, before the next event
//!                                            Submit/Send/Receive/Close: may be batched until the end of the pass
//!   handed_over(at, given)    ───────────►   replies are in the sockets as far as given (optional; default: at once)
//!   poll_timeout()            ◄───────────   send Event::Timer at this time
//!   take_spent() until None   ◄───────────   work of the event beyond request headers and payload bytes, by tenant
//! ```
//!
//! [`crate::driver`] is this loop, with a CPU scheduler that decides when connections and backlogs are served.
//!
//! No data passes through these calls: the driver asks [`Server::receive`](crate::Server::receive) what a connection
//! reads next, puts the bytes into the frames, and reports them with an event. The engine does not touch the frames of
//! a `Submit`ted request until `IoDone`, nor those of unsent replies until `Sent`.

use crate::control::{Command, Report, Sizing};
use crate::ids::{ConnId, FrameId, IoId, TenantId, VolumeId};
use crate::nbd::Errno;
use crate::nbd::wire::REQUEST_BYTES;
use crate::units::Nanos;

/// The result of the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Session {
    /// Structured replies.
    pub structured: bool,
    /// `base:allocation` was selected.
    pub base_allocation: bool,
    /// Requests that change data are answered with EPERM.
    pub read_only: bool,
}

/// An input of the engine.
#[derive(Debug)]
pub enum Event<'a> {
    /// A client finished its handshake.
    Attach {
        /// An unused slot.
        conn: ConnId,
        /// The volume that the client opened. If it is unknown, the connection is closed.
        volume: VolumeId,
        /// The negotiated session.
        session: Session,
    },
    /// A request header of 28 bytes arrived, after [`Receive::Header`].
    Header {
        /// The connection.
        conn: ConnId,
        /// When the driver could have read the header if it had been idle, at most now. Since then the request has
        /// waited for the thread.
        since: Nanos,
        /// The 28 bytes.
        header: &'a [u8; REQUEST_BYTES],
    },
    /// `bytes` of payload were stored, in order, from the first of the segments of [`Receive::Payload`] on.
    Payload {
        /// The connection.
        conn: ConnId,
        /// The number of bytes, at most the requested number.
        bytes: u64,
    },
    /// `bytes` were read and discarded, after [`Receive::Discard`].
    Discarded {
        /// The connection.
        conn: ConnId,
        /// The number of bytes, at most the requested number.
        bytes: u64,
    },
    /// The first `bytes` of the outgoing bytes were sent; their frames may be reused.
    Sent {
        /// The connection.
        conn: ConnId,
        /// The number of bytes.
        bytes: u64,
    },
    /// The client disconnected, or the driver closed the connection. The kernel does no more I/O for it.
    Closed {
        /// The connection.
        conn: ConnId,
    },
    /// A device request completed: as a whole, or with an error, and then none of it may be relied on.
    IoDone {
        /// The request.
        io: IoId,
        /// When the device completed it, at most now. The time since then is a delay of the thread, not of the device.
        since: Nanos,
        /// Success, or the error.
        result: Result<(), Errno>,
    },
    /// A command of the control plane.
    Control {
        /// Returned with the report.
        token: u64,
        /// The command.
        command: Command,
    },
    /// The driver serves the backlog of a tenant for which it received [`Action::Work`]: the engine does one step and
    /// announces any remaining work again.
    Work {
        /// The tenant.
        tenant: TenantId,
    },
    /// The time of `poll_timeout` has come. It is harmless if the event is early or late.
    Timer,
}

/// A request of the engine to its driver.
#[derive(Debug)]
pub enum Action {
    /// Copy `len` bytes at `start` of one frame to the same offset of another: before the next event, in order.
    Copy {
        /// Source.
        from: FrameId,
        /// Destination.
        to: FrameId,
        /// First byte in both.
        start: u16,
        /// Bytes.
        len: u16,
    },
    /// Zero `len` bytes at `start`: before the next event, in order.
    Zero {
        /// The frame.
        frame: FrameId,
        /// First byte.
        start: u16,
        /// Bytes.
        len: u16,
    },
    /// Give the request [`Server::io`](crate::Server::io) to the device.
    Submit(IoId),
    /// [`Server::receive`](crate::Server::receive) no longer returns [`Receive::Pause`].
    Receive(ConnId),
    /// [`Server::outgoing`](crate::Server::outgoing) is no longer empty.
    Send(ConnId),
    /// Send the outgoing bytes, then close the connection and report [`Event::Closed`].
    Close(ConnId, Farewell),
    /// The engine has no reference to this connection any more: the slot may be used again.
    Gone(ConnId),
    /// The last frame above the limit is free: the driver may give its memory back, see
    /// [`Server::is_retired`](crate::Server::is_retired). Sent only after a `SetBudget` that was answered with
    /// [`Report::Held`]; `Done` as the answer says the same.
    Retired,
    /// The sizing decision for a tenant has changed.
    Decided {
        /// The tenant.
        tenant: TenantId,
        /// The decision with its numbers.
        sizing: Box<Sizing>,
    },
    /// A tenant has work that needs only CPU time, and more of it than one event may take. The driver sends
    /// [`Event::Work`] once, when its scheduling selects the tenant.
    Work(TenantId),
    /// The answer to a command.
    Report {
        /// The command's token.
        token: u64,
        /// The answer.
        report: Report,
    },
}

/// Why a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Farewell {
    /// The client asked for it, or its volume is being closed or does not exist.
    Over,
    /// Protocol error: the client sent bytes that are no request.
    Garbage,
    /// A read failed after the first part of its simple reply was sent; the reply cannot carry an error any more.
    Torn,
    /// The client's access to the volume, or its write access, was revoked.
    Revoked,
    /// Stalled reader: the client did not receive its replies while other clients waited for the frames that they
    /// occupy.
    Deaf,
    /// Stalled writer: the client did not send the payload of a write while other clients waited for the frames that
    /// are reserved for it.
    Stalled,
}

/// The next bytes to read from a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receive {
    /// A request header of 28 bytes.
    Header,
    /// This many bytes, into the segments of [`Server::payload`](crate::Server::payload).
    Payload(u64),
    /// This many bytes, which are discarded.
    Discard(u64),
    /// Nothing for now: the driver does not read from this socket until [`Action::Receive`].
    Pause,
    /// Nothing any more.
    Closed,
}

/// A part of the outgoing bytes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outgoing<'a> {
    /// Bytes of a reply header. The engine owns them until they are sent.
    Bytes(&'a [u8]),
    /// Bytes of a frame.
    Frame {
        /// The frame.
        frame: FrameId,
        /// First byte.
        start: u16,
        /// Bytes.
        len: u16,
    },
}

impl Outgoing<'_> {
    /// The number of bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Outgoing::Bytes(bytes) => bytes.len() as u64,
            Outgoing::Frame { len, .. } => u64::from(*len),
        }
    }
}
