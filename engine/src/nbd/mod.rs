//! The NBD protocol without sockets: the handshake, request headers, connections, replies.

mod answered;
mod connection;
mod handshake;
mod request;
mod session;
pub mod wire;

pub use crate::errno::Errno;
pub use crate::volume::Kind;
pub(crate) use answered::{ANSWERED_MAX, Answered};
pub(crate) use connection::{Connection, Inbound};
pub use handshake::{Ending, Export, Exports, Handshake, Outcome, Tls};
pub use request::{Header, Parsed, parse};
#[cfg(test)]
pub(crate) use session::REQUESTS_PER_TENANT;
pub(crate) use session::{ANSWER_UNITS, PATIENCE_NS};
