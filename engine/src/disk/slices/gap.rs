//! Think times of a tenant: whether the disk idles for the tenant, and for how long (anticipatory idling).
//!
//! ```text
//!   weight  ▁  █  .  .  .  .  ▃  .         recent think times by octave, with the mean of each octave
//!           1  2  4  8 16 32 64 … ms
//!                 ▲ idle timeout: here it is cheaper to let the tenant go, and to have it back later
//! ```
//!
//! The idle timeout is the one that takes the least disk time on average:
//!
//! ```text
//!   E[min(think time, timeout)]  +  P(think time > timeout) x disk time that the tenant's return takes
//! ```
//!
//! A client that always thinks for the same time is idled for if that time is shorter than its return takes; one that
//! sends bursts is idled for within a burst only.
//!
//! Source: anticipatory scheduling (Iyer and Druschel, SOSP 2001), which weighs the same two costs per request; an idle
//! timeout from the distribution of idle times is known from power management (Karlin et al., SODA 1990). Downside: an
//! octave is coarse, so that the disk idles for up to twice the think time of a client that has stopped.

use crate::units::{MILLISECOND, Nanos};

/// Added to the longest think time that is waited for: the jitter of a client that always answers at once, on a machine
/// with other work. It is also the least cost of a return: if the disk idles too long, the tenant loses some of its own
/// slice, but if it gives up too early, the tenant waits for a round.
pub(super) const RESERVE_NS: Nanos = 10 * MILLISECOND;
/// The first octave of think times ends here: clients that answer at once, over a network too.
const PROMPT_NS: Nanos = MILLISECOND;
/// Octaves of think times: the last one ends at 4 s, two of the default longest rounds. Longer think times are never
/// waited for.
const OCTAVES: usize = 13;
/// The weight of a new think time is 1/16: a pause after every tenth request still counts, and a changed habit is known
/// after a few dozen requests.
const GAIN: f64 = 1.0 / 16.0;
/// A smaller weight is the error of a sum.
const WEIGHT_MIN: f64 = 1e-6;

/// The think times of a tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    /// The weights of the octaves; the rest to 1 are longer think times.
    weights: [f64; OCTAVES],
    /// The mean think time of each octave, nanoseconds.
    means: [f64; OCTAVES],
}

/// The end of an octave.
fn end(octave: usize) -> Nanos {
    PROMPT_NS << octave
}

impl Gap {
    /// A tenant without measurements, which is assumed to answer at once.
    pub(crate) fn unknown() -> Gap {
        let mut gap = Gap { weights: [0.0; OCTAVES], means: [0.0; OCTAVES] };
        (gap.weights[0], gap.means[0]) = (1.0, PROMPT_NS as f64);
        gap
    }

    /// The tenant had no request outstanding for `gap`.
    pub(crate) fn add(&mut self, gap: Nanos) {
        self.weights.iter_mut().for_each(|weight| *weight -= *weight * GAIN);
        let Some(octave) = (0..OCTAVES).find(|&octave| gap <= end(octave)) else { return };
        let (weight, mean) = (&mut self.weights[octave], &mut self.means[octave]);
        *weight += GAIN;
        // What is forgotten of an octave counts as little as its weight.
        *mean += (gap as f64 - *mean) * (GAIN / *weight).min(1.0);
    }

    /// For how long the disk idles for a tenant, from the moment at which it became idle, if it has been idle for
    /// `idle_ns`, its slice lasts for another `left_ns`, and `return_ns` of disk time are needed to have it back after
    /// the slice has ended. `None` if its slice ends at once.
    pub(crate) fn idle_timeout(&self, idle_ns: Nanos, left_ns: Nanos, return_ns: Nanos) -> Option<Nanos> {
        let ends = idle_ns.saturating_add(left_ns);
        let (idle, return_cost) = (idle_ns as f64, return_ns.max(RESERVE_NS) as f64);
        let timeout = |octave: usize| end(octave) + RESERVE_NS;
        let possible = || (0..OCTAVES).filter(|&octave| timeout(octave) > idle_ns);
        let longer = (1.0 - self.weights.iter().sum::<f64>()).max(0.0);
        // The weight of the think times beyond the timeout, and the expected idle time of those before it.
        let mut rest = longer + possible().map(|octave| self.weights[octave]).sum::<f64>();
        let (mut waited, mut least, mut best) = (0.0, rest * return_cost, None);
        for octave in possible().filter(|&octave| self.weights[octave] > WEIGHT_MIN) {
            let think = self.means[octave].max(idle);
            if think > ends as f64 {
                break;
            }
            let until = timeout(octave).min(ends);
            rest -= self.weights[octave];
            waited += self.weights[octave] * (think - idle);
            let beyond = if rest > WEIGHT_MIN { rest * ((until - idle_ns) as f64 + return_cost) } else { 0.0 };
            if waited + beyond < least {
                (least, best) = (waited + beyond, Some(until));
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SECOND;

    const MS: Nanos = MILLISECOND;

    /// A tenant with these think times, again and again.
    fn gap(times_ms: &[Nanos]) -> Gap {
        let mut gap = Gap::unknown();
        (0..200).flat_map(|_| times_ms).for_each(|&ms| gap.add(ms * MS));
        gap
    }

    #[test]
    fn a_constant_think_time_is_waited_for_if_that_is_shorter_than_a_return() {
        for think_ms in [2, 20, 100, 450, 1500] {
            let gap = gap(&[think_ms]);
            let timeout = |return_ms: Nanos| gap.idle_timeout(0, 4 * SECOND, return_ms * MS);
            let most = 2 * think_ms * MS + RESERVE_NS;
            assert!(timeout(think_ms + 10).is_some_and(|ns| (think_ms * MS..=most).contains(&ns)), "{think_ms}");
            assert_eq!(timeout(think_ms - 1).is_some(), think_ms <= 10, "{think_ms} ms");
            assert_eq!(gap.idle_timeout(0, (think_ms - 1) * MS, 10 * SECOND), None, "not beyond the slice");
            assert_eq!(gap.idle_timeout(most, SECOND, 10 * SECOND), None, "it has stopped");
        }
    }

    #[test]
    fn a_client_with_bursts_is_waited_for_within_a_burst() {
        let gap = gap(&[1, 1, 1, 1, 1, 1, 1, 800]);
        let timeout = |idle_ns, return_ms| gap.idle_timeout(idle_ns, SECOND, return_ms * MS);
        assert_eq!(timeout(0, 50), Some(MS + RESERVE_NS));
        assert_eq!(timeout(20 * MS, 50), None, "the burst is over");
        assert!(timeout(20 * MS, 900).is_some_and(|ns| ns > 800 * MS), "a return takes longer than the pause");
    }

    #[test]
    fn one_long_absence_does_not_change_a_habit() {
        let mut gap = gap(&[1]);
        gap.add(3600 * SECOND);
        assert_eq!(gap.idle_timeout(0, SECOND, 30 * MS), Some(MS + RESERVE_NS));
        (0..100).for_each(|_| gap.add(60 * MS));
        assert!(gap.idle_timeout(0, SECOND, 30 * MS).is_none() && gap.idle_timeout(0, SECOND, 100 * MS).is_some());
    }
}
