//! The front: NBD sessions of the clients of a disk. Framing, limits of connections, replies.
//!
//! It parses what connections bring and passes it down ([`crate::volume::Volumes`]); effects of the volumes become
//! bytes of replies here. What a client may occupy is decided below.

mod answered;
mod connection;
#[cfg(test)]
pub(crate) mod rig;
mod session;

pub(crate) use answered::ANSWERED_MAX;
pub(crate) use connection::Connection;
pub(crate) use session::Front;

use crate::ids::ConnId;

/// Why a connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CloseReason {
    /// The client asked for it, or its volume is being closed or does not exist.
    Over,
    /// Protocol error: the client sent bytes that are no request.
    ProtocolError,
    /// A read failed after the first part of its simple reply was sent; the reply cannot carry an error any more.
    Torn,
    /// The client's access to the volume, or its write access, was revoked.
    Revoked,
    /// Stalled reader: the client did not receive its replies while other clients waited for the frames that they
    /// occupy.
    StalledReader,
    /// Stalled writer: the client did not send the payload of a write while other clients waited for the frames that
    /// are reserved for it.
    StalledWriter,
}

/// A wish of this layer, for the driver.
#[derive(Debug)]
pub(crate) enum Effect {
    /// A paused connection may be read again.
    Receive(ConnId),
    /// There are outgoing bytes where there were none.
    Send(ConnId),
    /// Send the outgoing bytes, then close.
    Close(ConnId, CloseReason),
}
