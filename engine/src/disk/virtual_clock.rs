//! The per-tenant virtual clock by which dirty data ages. It slows down while a read of the tenant waits and the disk
//! serves other tenants.
//!
//! ```text
//!   a read waits, the disk serves other tenants ─► waited    rate of the clock = 1 - waited / elapsed, a mean over
//!                                                            about 8 s, at least a sixth
//! ```
//!
//! Within 5 s of wall-clock time, a tenant with half of the disk overwrites a dirty block half as often as standalone.
//! So more writes would reach the disk for the same work: a loss that no slice compensates. Within 5 s of its virtual
//! time the tenant does the same work as standalone. A tenant has wall-clock time if its reads do not wait, or wait
//! while no other tenant uses the disk. So does a tenant that only writes, because its writes do not wait for the disk.
//!
//! Downside: under contention, unflushed data reaches the medium that much later in wall-clock time, although no more
//! of the client's work is at risk than standalone.

use crate::units::{Nanos, SECOND};

/// The clock runs at a sixth of wall-clock speed at least, so dirty data waits for at most six times its maximum age:
/// 30 s if that is 5 s, the limit that Linux has (`dirty_expire_centisecs`).
pub(crate) const SLOWEST: u64 = 6;
/// Interval between updates of the rate, and time constant of its mean: several of the longest rounds.
pub(crate) const LOOK_NS: Nanos = SECOND;
const PAST_NS: f64 = 8e9;

/// The virtual clock of one tenant.
#[derive(Debug)]
pub(super) struct VirtualClock {
    /// Queued reads.
    reads: u32,
    /// For how long other tenants had owned the disk when `waited_ns` was last updated or the first of these reads
    /// arrived.
    others_ns: Nanos,
    waited_ns: Nanos,
    /// The last update: when it was, `waited_ns` and the virtual time at that moment, and the rate since then.
    at: Nanos,
    waited_by: Nanos,
    own: Nanos,
    rate: f64,
}

impl Default for VirtualClock {
    fn default() -> VirtualClock {
        VirtualClock { reads: 0, others_ns: 0, waited_ns: 0, at: 0, waited_by: 0, own: 0, rate: 1.0 }
    }
}

impl VirtualClock {
    /// A read is queued. Other tenants have owned the disk for `others_ns` so far.
    pub(super) fn begin(&mut self, others_ns: Nanos) {
        if self.reads == 0 {
            self.others_ns = others_ns;
        }
        self.reads += 1;
    }

    /// A read is no longer queued.
    pub(super) fn end(&mut self, others_ns: Nanos) {
        self.wait(others_ns);
        self.reads -= 1;
    }

    /// Counts the wait up to `others_ns`, the time for which other tenants have owned the disk.
    fn wait(&mut self, others_ns: Nanos) {
        if self.reads > 0 {
            self.waited_ns += others_ns.saturating_sub(self.others_ns);
            self.others_ns = others_ns;
        }
    }

    /// Whether the rate is due for an update.
    pub(super) fn is_time(&self, now: Nanos) -> bool {
        now >= self.at + LOOK_NS
    }

    pub(super) fn look(&mut self, now: Nanos, others_ns: Nanos) {
        self.wait(others_ns);
        let past = (now - self.at) as f64;
        let waited = (self.waited_ns - self.waited_by) as f64;
        self.own = self.now(now);
        let rate = self.rate + (1.0 - waited / past - self.rate) * past / (past + PAST_NS);
        self.rate = rate.clamp(1.0 / SLOWEST as f64, 1.0);
        (self.at, self.waited_by) = (now, self.waited_ns);
    }

    /// The virtual time.
    pub(super) fn now(&self, now: Nanos) -> Nanos {
        self.own + ((now - self.at) as f64 * self.rate) as Nanos
    }

    /// The wall-clock time in which `own_ns` of virtual time pass at the present rate.
    pub(super) fn lasts(&self, own_ns: Nanos) -> Nanos {
        (own_ns as f64 / self.rate) as Nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Updates the clock once a second for `seconds`. In each second other tenants own the disk for `others_ns`, and
    /// reads are queued if `waits`. Returns the mean rate.
    fn after(own: &mut VirtualClock, seconds: u64, others_ns: Nanos, waits: bool) -> f64 {
        let (from, mut others) = (own.at, 0);
        let before = own.now(from);
        for second in 1..=seconds {
            if waits {
                own.begin(others);
                own.begin(others);
            }
            others += others_ns;
            if waits {
                own.end(others);
                own.end(others);
            }
            own.look(from + second * SECOND, others);
        }
        (own.now(own.at) - before) as f64 / (seconds * SECOND) as f64
    }

    #[test]
    fn it_goes_slower_while_reads_wait_for_others_and_never_stands() {
        let mut own = VirtualClock::default();
        assert_eq!(after(&mut own, 20, SECOND, false), 1.0, "who does not wait");
        assert_eq!(after(&mut own, 20, 0, true), 1.0, "who waits for nobody");
        after(&mut own, 60, SECOND / 2, true);
        let half = after(&mut own, 20, SECOND / 2, true);
        assert!((half - 0.5).abs() < 0.01, "{half}");
        assert!((own.lasts(SECOND) as f64 / 2e9 - 1.0).abs() < 0.01);
        after(&mut own, 60, SECOND, true);
        assert!((after(&mut own, 20, SECOND, true) - 1.0 / 6.0).abs() < 0.001);
        let alone = after(&mut own, 40, 0, true);
        assert!(alone > 0.8, "and is soon what it was: {alone}");
    }
}
