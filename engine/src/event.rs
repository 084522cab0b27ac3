//! The contract of a disk machine: what goes in, what is polled, in which order.
//!
//! ```text
//!   driver                                   Server
//!   ──────                                   ──────
//!   handle(now, event)        ───────────►   decides
//!   poll_action() until None  ◄───────────   Copy/Zero: at once, in order, before the next event
//!                                            Submit/Send/Receive/Close: may be batched until the end of the pass
//!   handed_over(at, given)    ───────────►   what was answered has left, as far as given (optional; default: at once)
//!   poll_timeout()            ◄───────────   wake me then with Event::Timer
//!   take_spent() until None   ◄───────────   cost of the event beyond a request and its bytes, by tenant
//! ```
//!
//! Data never passes through: the driver asks [`Server::receive`](crate::Server::receive) what a connection wants next,
//! puts the bytes there, and says so with an event. Frames named by a `Submit`ted request or by unsent replies are not
//! touched until `IoDone` or `Sent`.

use crate::cache::FrameId;
use crate::control::{Command, Report, Sizing, TenantId};
use crate::disk::{IoId, VolumeId};
use crate::nbd::Errno;
use crate::nbd::wire::REQUEST_BYTES;
use crate::units::Nanos;

/// A connection: the driver's slot number. Free again after [`Action::Gone`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u32);

/// What the handshake agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Session {
    /// Structured replies.
    pub structured: bool,
    /// `base:allocation` was selected.
    pub base_allocation: bool,
    /// Requests that change data are answered with EPERM.
    pub read_only: bool,
}

/// Everything that can happen to a disk machine.
#[derive(Debug)]
pub enum Event<'a> {
    /// A client finished its handshake.
    Attach {
        /// A free slot.
        conn: ConnId,
        /// What it opened. An unknown volume closes the connection.
        volume: VolumeId,
        /// What was agreed on.
        session: Session,
    },
    /// 28 bytes arrived where [`Receive::Header`] was wanted.
    Header {
        /// From whom.
        conn: ConnId,
        /// When they could have been read if the driver had had nothing else to do, at most now: the request has waited
        /// for the thread since.
        since: Nanos,
        /// The bytes.
        header: &'a [u8; REQUEST_BYTES],
    },
    /// `bytes` were put into the first of the segments of [`Receive::Payload`], in order.
    Payload {
        /// From whom.
        conn: ConnId,
        /// How many, at most what was wanted.
        bytes: u64,
    },
    /// `bytes` were read and thrown away where [`Receive::Discard`] was wanted.
    Discarded {
        /// From whom.
        conn: ConnId,
        /// How many, at most what was wanted.
        bytes: u64,
    },
    /// The first `bytes` of the outgoing bytes were sent; their frames may be reused.
    Sent {
        /// To whom.
        conn: ConnId,
        /// How many.
        bytes: u64,
    },
    /// The connection is gone, and nothing of it is in flight in the kernel any more.
    Closed {
        /// Which.
        conn: ConnId,
    },
    /// A device request is complete: all of it, or with an error none that may be relied on.
    IoDone {
        /// Which.
        io: IoId,
        /// When the device was done with it, at most now: what passed since is the thread's delay, not the device's.
        since: Nanos,
        /// How it went.
        result: Result<(), Errno>,
    },
    /// Control asks for something.
    Control {
        /// Returned with the report.
        token: u64,
        /// What.
        command: Command,
    },
    /// A tenant whose work was announced with [`Action::Work`] has its turn: a step of it is done, and the rest is
    /// announced again.
    Work {
        /// Whose.
        tenant: TenantId,
    },
    /// The time of `poll_timeout` has come (being early or late is harmless).
    Timer,
}

/// Everything that a disk machine asks its driver to do.
#[derive(Debug)]
pub enum Action {
    /// Copy `len` bytes at `start` from one frame to the same place of another. Before the next event, in order.
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
    /// Zero `len` bytes at `start`. Before the next event, in order.
    Zero {
        /// Which frame.
        frame: FrameId,
        /// First byte.
        start: u16,
        /// Bytes.
        len: u16,
    },
    /// Give [`Server::io`](crate::Server::io) to the device.
    Submit(IoId),
    /// [`Server::receive`](crate::Server::receive) is no longer [`Receive::Pause`].
    Receive(ConnId),
    /// [`Server::outgoing`](crate::Server::outgoing) is no longer empty.
    Send(ConnId),
    /// Send what is outgoing, then close and report [`Event::Closed`].
    Close(ConnId, Farewell),
    /// Nothing refers to this connection any more: the slot may be used again.
    Gone(ConnId),
    /// The last frame above the limit is free: its memory may be given back, see
    /// [`Server::is_retired`](crate::Server::is_retired). After a `SetBudget` that was answered with [`Report::Held`];
    /// otherwise its answer says the same.
    Retired,
    /// Something else was decided for a tenant than before.
    Decided {
        /// Whom it concerns.
        tenant: TenantId,
        /// What was decided, and why.
        sizing: Box<Sizing>,
    },
    /// A tenant has work that needs nothing but the processor, and more than one event should take: give
    /// [`Event::Work`] once for it, when it is the tenant's turn.
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
    /// Its client wanted it, or its volume is being closed, or is not there.
    Over,
    /// What it sent is no request.
    Garbage,
    /// A read failed after a first part of its reply, which has no room to say so, was sent.
    Torn,
    /// Its client may not use the volume any more, or not in this way.
    Revoked,
    /// It has not read its replies, while others waited for the memory that they take.
    Deaf,
    /// It has not sent the payload of a write, while others waited for the memory that is reserved for it.
    Stalled,
}

/// What a connection wants to read next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receive {
    /// A request header of 28 bytes.
    Header,
    /// This many bytes, into [`Server::payload`](crate::Server::payload)'s segments.
    Payload(u64),
    /// This many bytes, to be thrown away.
    Discard(u64),
    /// Nothing for now: do not read from this socket until [`Action::Receive`].
    Pause,
    /// Nothing ever again.
    Closed,
}

/// A part of what goes out on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outgoing<'a> {
    /// Header bytes, owned by the engine until sent.
    Bytes(&'a [u8]),
    /// Bytes of a frame.
    Frame {
        /// Which.
        frame: FrameId,
        /// First byte.
        start: u16,
        /// Bytes.
        len: u16,
    },
}

impl Outgoing<'_> {
    /// How many bytes that is.
    pub fn bytes(&self) -> u64 {
        match self {
            Outgoing::Bytes(bytes) => bytes.len() as u64,
            Outgoing::Frame { len, .. } => u64::from(*len),
        }
    }
}
