//! How much earlier to ask to be woken, so as to be awake on time.
//!
//! A timer wakes late: on virtual machines by tens of microseconds (measured on one with KVM: 42, 56 and 105 µs at the 10th,
//! 50th and 99th percentile, on a core of its own at real-time priority), which would be half of what a simulated drive's completions
//! may be late. How late is learned: the 25th percentile of what was seen, by a step up or down for each wake-up
//! (stochastic approximation of a quantile: Robbins and Monro, "A stochastic approximation method", 1951). So three of four
//! wake-ups are not early, and the others by little.
//!
//! Downside: whoever is awake early stays awake, at most [`LEAD_NS_MAX`]: passes of the loop that wait for nothing.

use engine::units::Nanos;

/// The largest lead, nanoseconds: more than a timer needs on any machine that is not overloaded.
const LEAD_NS_MAX: Nanos = 60_000;
/// Half a microsecond up for a wake-up that is later than the lead, three times as much down: one of four is earlier.
const UP_NS: Nanos = 500;
const DOWN_NS: Nanos = 3 * UP_NS;

/// What was learned of a timer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lead {
    ns: Nanos,
}

impl Lead {
    /// How long to wait for something `ns` away; 0 for staying awake.
    pub fn wait_ns(self, ns: Nanos) -> Nanos {
        ns.saturating_sub(self.ns)
    }

    /// A wait ended so long after it should have.
    pub fn learn(&mut self, late_ns: Nanos) {
        self.ns = if late_ns > self.ns { self.ns + UP_NS } else { self.ns.saturating_sub(DOWN_NS) };
        self.ns = self.ns.min(LEAD_NS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::rng::Rng;

    #[test]
    fn one_wake_up_of_four_is_early() {
        let (mut lead, mut rng) = (Lead::default(), Rng::new(1));
        let mut early = 0;
        for round in 0..5000 {
            let late_ns = rng.between(30_000, 70_000);
            early += u64::from(round >= 1000 && late_ns < lead.ns);
            lead.learn(late_ns);
        }
        assert!((900..1100).contains(&early), "{early} of 4000");
        assert!((37_000..43_000).contains(&lead.ns), "{}", lead.ns);
        assert_eq!((lead.wait_ns(1_000_000), lead.wait_ns(10)), (1_000_000 - lead.ns, 0));
    }

    #[test]
    fn an_overloaded_machine_does_not_make_it_long() {
        let mut lead = Lead::default();
        (0..1000).for_each(|_| lead.learn(5_000_000));
        assert_eq!(lead.ns, LEAD_NS_MAX);
    }
}
