//! How much earlier than needed a timer is set, because timers expire late.
//!
//! On virtual machines a timer is late by tens of microseconds, and by more the longer the wait. Measured on one with
//! KVM, on a core of its own at real-time priority: 28 µs (median) after 0.1 ms, 48 µs after 0.4 ms, 60 µs and more
//! after 4 ms, and 105 µs at the 99th percentile, which is more than a simulated drive's completions may be late. The
//! lead is the 98th percentile of the observed lateness, learned apart for three lengths of waits: each late wake-up
//! raises it by a step, each early one lowers it by a 49th of the step (stochastic approximation of a quantile: Robbins
//! and Monro, "A stochastic approximation method", 1951). A lower percentile is not enough where timers have a long
//! tail: on another machine (45 µs, and 180 µs at the 99th percentile) 2.4 % of the completions were more than 100 µs
//! late with the median, and 2.2 to 3.4 % with the 90th percentile.
//!
//! Downside: after an early wake-up the thread polls until the moment comes, for at most [`LEAD_NS_MAX`] and usually a
//! tenth of a millisecond. This takes 3 % of a core for 120 completions a second, 4 % for 220.

use engine::units::{MILLISECOND, Nanos};

/// The largest lead, nanoseconds: more than a timer needs on any machine that is not overloaded.
const LEAD_NS_MAX: Nanos = 250_000;
/// The target is that 49 of 50 wake-ups are early, so steps down are smaller than steps up by this factor.
const EARLY_TO_LATE: Nanos = 49;
/// The first step up, nanoseconds: the lead is about right after ten wake-ups.
const STEP_NS_FIRST: Nanos = 16_000;
/// The step is halved at each change of direction, down to this: steady within a microsecond or two, and able to follow
/// changes.
const STEP_NS_LEAST: Nanos = 900;
/// Waits up to each of these lengths, nanoseconds, have a lead of their own; longer waits have another.
const LENGTHS_NS: [Nanos; 2] = [MILLISECOND / 4, MILLISECOND];

/// The learned lateness of a timer.
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
    /// How long to wait for an event that is `ns` away; 0 means polling.
    pub fn wait_ns(&self, ns: Nanos) -> Nanos {
        ns.saturating_sub(self.classes[class(ns)].ns)
    }

    /// Records that a wait of `wait_ns` ended `late_ns` after its time.
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
