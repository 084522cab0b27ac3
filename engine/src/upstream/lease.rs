//! The lease of a session: until when the export is this client's alone, as far as this client knows.
//!
//! ```text
//!   client    sends ─────────────────────────────── until ── stops using the export, its cache included
//!   server          receives ──────────────────────────────── ended ── may admit another client
//! ```
//!
//! Each answered request renews it, from the time at which it was sent: the server has received it later than that. An
//! idle client asks for the load instead. A client that was stopped meanwhile sees that its lease has ended before it
//! does anything else, since it looks at the clock with each request of its own clients.

use crate::units::{MILLISECOND, Nanos};

/// The difference between the two clocks' speeds, as a part of the lease: 20 times what a clock may drift.
const DRIFT: u64 = 1000;

/// The lease of a session.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Lease {
    /// How long it is; 0 before the first session.
    length_ns: Nanos,
    /// Nothing of the export is used from then on.
    until: Nanos,
    /// When the load was asked for last.
    pub(super) asked_at: Nanos,
}

impl Lease {
    /// A session has begun that was claimed at this time.
    pub(super) fn begin(&mut self, claimed_at: Nanos, lease_ms: u64) {
        let length_ns = lease_ms * MILLISECOND;
        self.length_ns = length_ns - length_ns / DRIFT;
        self.renew(claimed_at);
    }

    /// A request that was sent at this time was answered.
    pub(super) fn renew(&mut self, sent_at: Nanos) {
        self.until = self.until.max(sent_at + self.length_ns);
    }

    /// When it ends unless it is renewed.
    pub(super) fn until(&self) -> Nanos {
        self.until
    }

    /// When it is to be renewed: two more attempts would have time.
    pub(super) fn due_at(&self) -> Nanos {
        self.until.saturating_sub(self.length_ns / 3 * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SECOND;

    #[test]
    fn it_counts_from_the_time_at_which_a_request_was_sent() {
        let mut lease = Lease::default();
        assert_eq!(lease.until(), 0, "nothing is used before the first session");
        lease.begin(SECOND, 3000);
        assert_eq!(lease.until(), SECOND + 2997 * MILLISECOND);
        lease.renew(2 * SECOND);
        lease.renew(SECOND);
        assert_eq!((lease.until(), lease.due_at()), (4997 * MILLISECOND, 2999 * MILLISECOND));
    }
}
