//! The NBD protocol without sockets: numbers on the wire, the handshake, request headers.

mod handshake;
mod request;
pub mod wire;

pub use crate::errno::Errno;
pub use handshake::{Ending, Export, Exports, Handshake, Outcome, Session, Tls};
pub use request::{Header, Kind, Parsed, parse};
