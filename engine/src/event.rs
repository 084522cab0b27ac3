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

pub use crate::front::CloseReason;
pub use crate::nbd::Session;
pub use crate::stream::Outgoing;
pub use crate::volume::Receive;

use crate::control::{Command, Report};
use crate::errno::Errno;
use crate::ids::{ConnId, FrameId, IoId, TenantId, VolumeId};
use crate::plan::{Evidence, Targets};
use crate::units::Nanos;
use crate::upstream;

/// An input of the engine.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "events are passed on and never stored, and commands are rare")]
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
    /// A request header arrived, after [`Receive::Header`].
    Header {
        /// The connection.
        conn: ConnId,
        /// When the driver could have read the header if it had been idle, at most now. Since then the request has
        /// waited for the thread.
        since: Nanos,
        /// Its bytes, as many as [`Server::header_bytes`](crate::Server::header_bytes) says.
        header: &'a [u8],
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
    /// The answer to [`Action::Sum`].
    Summed {
        /// The request.
        io: IoId,
        /// The checksum.
        sum: u32,
    },
    /// The planner's answer to [`Action::Evidence`]. Refused, and evidence is sent again, if the tenants, the memory or
    /// the policy have changed meanwhile.
    Targets(Box<Targets>),
    /// Something happened on a connection to the upstream of a volume. If it has none, nothing does.
    Upstream {
        /// The volume.
        volume: VolumeId,
        /// What.
        event: upstream::Event<'a>,
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
    /// Compute the CRC-32C of the bytes of the request's segments, in order, and pass it with [`Event::Summed`]: before
    /// the next event. [`crate::driver`] does that.
    Sum(IoId),
    /// What the upstream of a volume asks.
    Upstream {
        /// The volume.
        volume: VolumeId,
        /// What.
        request: upstream::Request,
    },
    /// [`Server::receive`](crate::Server::receive) no longer returns [`Receive::Pause`].
    Receive(ConnId),
    /// [`Server::outgoing`](crate::Server::outgoing) is no longer empty.
    Send(ConnId),
    /// Send the outgoing bytes, then close the connection and report [`Event::Closed`].
    Close(ConnId, CloseReason),
    /// The engine has no reference to this connection any more: the slot may be used again.
    Gone(ConnId),
    /// The last frame above the limit is free: the driver may give its memory back, see
    /// [`Server::is_retired`](crate::Server::is_retired). Sent only after a `SetBudget` that was answered with
    /// [`Report::Held`]; `Done` as the answer says the same.
    Retired,
    /// Give this to the disk's [`Planner`](crate::plan::Planner), and its answer back with [`Event::Targets`], now or
    /// later. There is no further evidence until then.
    Evidence(Box<Evidence>),
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
