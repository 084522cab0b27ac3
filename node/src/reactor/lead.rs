//! How much earlier to ask to be woken, so as to be awake on time.
//!
//! A timer wakes late, on virtual machines by tens of microseconds, and later the longer the wait. Measured on one with
//! KVM, on a core of its own at real-time priority: 28 µs (median) after 0.1 ms, 48 µs after 0.4 ms, 60 µs and more
//! after 4 ms, and 105 µs at the 99th percentile: more than a simulated drive's completions may be late. What is usual
//! is learned and taken off: the 98th percentile of what was seen, by a step up or a 49th of it down for each wake-up
//! (stochastic approximation of a quantile: Robbins and Monro, "A stochastic approximation method", 1951), apart for
//! three lengths of waits. Less is not enough where timers have a long tail: on another machine (45 µs, and 180 µs at
//! the 99th percentile) the median left 2.4 % of the completions more than 100 µs late, and the 90th percentile 2.2 to
//! 3.4 %.
//!
//! Downside: whoever is awake early stays awake, at most [`LEAD_NS_MAX`], usually a tenth of a millisecond: passes of
//! the loop that wait for nothing, 3 % of a core for 120 completions a second, 4 % for 220.

use engine::units::{MILLISECOND, Nanos};

/// The largest lead, nanoseconds: more than a timer needs on any machine that is not overloaded.
const LEAD_NS_MAX: Nanos = 250_000;
/// Of fifty wake-ups, 49 are to be early: so much smaller are the steps down.
const EARLY_TO_LATE: Nanos = 49;
/// Nanoseconds up for the first wake-ups: there in ten of them.
const STEP_NS_FIRST: Nanos = 16_000;
/// Half of it after each change of direction, down to this: steady within a microsecond or two, and still able to
/// follow.
const STEP_NS_LEAST: Nanos = 900;
/// Waits up to these lengths, nanoseconds, have a lead of their own; and those that are longer.
const LENGTHS_NS: [Nanos; 2] = [MILLISECOND / 4, MILLISECOND];

/// What was learned of a timer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lead {
    classes: [Usual; LENGTHS_NS.len() + 1],
}

/// The 98th percentile, approached in steps.
#[derive(Clone, Copy, Debug)]
struct Usual {
    ns: Nanos,
    step_ns: Nanos,
    rises: bool,
}

impl Default for Usual {
    fn default() -> Usual {
        Usual { ns: 0, step_ns: STEP_NS_FIRST, rises: true }
    }
}

fn class(ns: Nanos) -> usize {
    LENGTHS_NS.partition_point(|&length| length < ns)
}

impl Lead {
    /// How long to wait for something `ns` away; 0 for staying awake.
    pub fn wait_ns(&self, ns: Nanos) -> Nanos {
        ns.saturating_sub(self.classes[class(ns)].ns)
    }

    /// A wait of `wait_ns` ended `late_ns` after it should have.
    pub fn learn(&mut self, wait_ns: Nanos, late_ns: Nanos) {
        let usual = &mut self.classes[class(wait_ns)];
        let rises = late_ns > usual.ns;
        if rises != std::mem::replace(&mut usual.rises, rises) {
            usual.step_ns = (usual.step_ns / 2).max(STEP_NS_LEAST);
        }
        let next =
            if rises { usual.ns + usual.step_ns } else { usual.ns.saturating_sub(usual.step_ns / EARLY_TO_LATE) };
        usual.ns = next.min(LEAD_NS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::rng::Rng;

    #[test]
    fn forty_nine_of_fifty_wake_ups_are_early_whatever_the_length() {
        let (mut lead, mut rng) = (Lead::default(), Rng::new(1));
        let mut early = 0;
        for round in 0..5000 {
            lead.learn(100_000, 10_000);
            let late_ns = rng.between(30_000, 70_000);
            early += u64::from(round >= 1000 && late_ns < lead.classes[2].ns);
            lead.learn(5_000_000, late_ns);
        }
        assert!((3880..3960).contains(&early), "{early} of 4000");
        assert!((67_000..72_000).contains(&lead.classes[2].ns), "{lead:?}");
        assert!(lead.classes[0].ns.abs_diff(10_000) <= STEP_NS_LEAST);
        assert_eq!((lead.wait_ns(1_000_001), lead.wait_ns(100)), (1_000_001 - lead.classes[2].ns, 0));
    }

    #[test]
    fn it_learns_fast() {
        let mut lead = Lead::default();
        (0..12).for_each(|_| lead.learn(5_000_000, 57_000));
        assert!((57_000..57_000 + STEP_NS_FIRST).contains(&lead.classes[2].ns), "at most one step too early: {lead:?}");
    }

    #[test]
    fn an_overloaded_machine_does_not_make_it_long() {
        let mut lead = Lead::default();
        (0..1000).for_each(|_| lead.learn(1_000_000, 5_000_000));
        assert_eq!(lead.classes.map(|class| class.ns), [0, LEAD_NS_MAX, 0]);
    }
}
