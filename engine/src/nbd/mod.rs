//! The NBD protocol without sockets, for both ends: numbers on the wire, handshakes, headers of requests and replies.
//!
//! ```text
//!   client                                       server
//!   Opening    ── options, answers ──►           Handshake
//!   RawHeader::new ── requests ──►               parse
//!   Replies    ◄── replies ──                    Head
//! ```

mod claim;
mod form;
mod handshake;
mod opening;
mod replies;
mod reply;
mod request;
mod uri;
pub mod wire;

/// Where the order of a request begins in its cookie, if its client numbers its requests: the lower bits tell requests
/// of the same order apart.
pub const ORDER_SHIFT: u32 = 16;

pub use crate::errno::Errno;
pub use claim::{COUNTED_BITS, Claim};
pub use form::Form;
pub use handshake::{Ending, Export, Exports, Handshake, Outcome, Session, Tls};
pub use opening::{Opened, Opening, Unopened, Wanted};
pub use replies::{Asked, Broken, Part, Replies};
pub(crate) use reply::{Head, Of};
pub use request::{Header, Kind, Parsed, RawHeader, parse};
pub use uri::{NotUri, Place, TlsParameters, Uri};
