//! A connection in its transmission phase.

use crate::nbd::{Form, Of};
use crate::stream::Stream;
use crate::units::Nanos;

/// A connection.
#[derive(Default, Debug)]
pub(crate) struct Connection {
    pub(crate) form: Form,
    /// To be closed when all requests are answered.
    pub(crate) leaving: bool,
    /// Its closing was asked for.
    pub(crate) closing: bool,
    /// Nothing is read from the connection at present. Stored, not computed on demand: the driver is told when the
    /// pause ends, whatever the cause.
    pub(crate) paused: bool,
    /// What it has to send.
    pub(crate) stream: Stream,
    /// When the client last received bytes, or when bytes were first queued for it.
    pub(crate) took_at: Nanos,
    last_cookie: u64,
}

impl Connection {
    pub(crate) fn new(form: Form) -> Connection {
        Connection { form, ..Connection::default() }
    }

    /// The beginning of a reply to a request.
    pub(crate) fn reply_to(&mut self, cookie: u64, offset: u64) -> Of {
        let last = std::mem::replace(&mut self.last_cookie, cookie);
        let cookie = if planted!(ReplyCookieMixedUp) && last % 16 == 3 { last } else { cookie };
        Of { form: self.form, cookie, offset }
    }
}
