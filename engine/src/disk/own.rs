//! The clock by which a tenant's dirt ages: it goes slower while the tenant waits to read and the disk is others'.
//!
//! ```text
//!   a read waits, the disk is others' ─► waited  own time goes as fast as 1 - waited / past, of late; at least a sixth
//! ```
//!
//! In five seconds of the day's time a tenant with half a disk overwrites what is dirty half as often as alone, and as
//! much of it would go to the disk for half of the work: a loss that no slice gives back. In five seconds of its own
//! time it does what it does alone. Who waits for nothing, or for nobody, has the day's time; so has who only writes,
//! since his writes wait for no disk.
//!
//! Downside: beside others what nobody flushed is that much longer not on the medium, though it is no more of the
//! client's work.

use crate::units::{Nanos, SECOND};

/// Dirt never waits for more than so many times its age: 30 s if that is 5 s, as long as Linux lets it
/// (`dirty_expire_centisecs`).
pub(crate) const SLOWEST: u64 = 6;
/// How often the rate is looked at, and how long the past is that counts: several of the longest rounds.
pub(crate) const LOOK_NS: Nanos = SECOND;
const PAST_NS: f64 = 8e9;

/// One tenant's.
#[derive(Debug)]
pub(super) struct OwnTime {
    /// Reads that wait for their turn.
    reads: u32,
    /// How long the disk had been others' when the first of them came.
    others_ns: Nanos,
    waited_ns: Nanos,
    /// The last look: when, what had been waited by then, the time by this clock, and how fast it goes since.
    at: Nanos,
    waited_by: Nanos,
    own: Nanos,
    rate: f64,
}

impl Default for OwnTime {
    fn default() -> OwnTime {
        OwnTime { reads: 0, others_ns: 0, waited_ns: 0, at: 0, waited_by: 0, own: 0, rate: 1.0 }
    }
}

impl OwnTime {
    /// A read begins to wait; until now the disk has been others' for so long.
    pub(super) fn begin(&mut self, others_ns: Nanos) {
        if self.reads == 0 {
            self.others_ns = others_ns;
        }
        self.reads += 1;
    }

    /// It does not wait any more.
    pub(super) fn end(&mut self, others_ns: Nanos) {
        self.restart(others_ns, others_ns);
        self.reads -= 1;
    }

    /// The disk has been others' for so long, and from now on that is counted from another figure.
    pub(super) fn restart(&mut self, others_ns: Nanos, from: Nanos) {
        if self.reads > 0 {
            self.waited_ns += others_ns.saturating_sub(self.others_ns);
            self.others_ns = from;
        }
    }

    /// Whether the rate is to be looked at.
    pub(super) fn is_time(&self, now: Nanos) -> bool {
        now >= self.at + LOOK_NS
    }

    pub(super) fn look(&mut self, now: Nanos, others_ns: Nanos) {
        self.restart(others_ns, others_ns);
        let past = (now - self.at) as f64;
        let waited = (self.waited_ns - self.waited_by) as f64;
        self.own = self.now(now);
        let rate = self.rate + (1.0 - waited / past - self.rate) * past / (past + PAST_NS);
        self.rate = rate.clamp(1.0 / SLOWEST as f64, 1.0);
        (self.at, self.waited_by) = (now, self.waited_ns);
    }

    /// The time by this clock.
    pub(super) fn now(&self, now: Nanos) -> Nanos {
        self.own + ((now - self.at) as f64 * self.rate) as Nanos
    }

    /// How much of the day's time so much by this clock is, as it goes now.
    pub(super) fn lasts(&self, own_ns: Nanos) -> Nanos {
        (own_ns as f64 / self.rate) as Nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many looks later, if of each second the disk is others' for `others_ns` while reads wait or not.
    fn after(own: &mut OwnTime, seconds: u64, others_ns: Nanos, waits: bool) -> f64 {
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
        let mut own = OwnTime::default();
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
