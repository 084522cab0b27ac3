//! Whether a tenant's curve is settled: it has not changed much while the number of requests doubled.
//!
//! The curve after n requests is compared with the one after n / 2, at sizes an octave apart. Blocks that were not
//! requested twice yet are missing in it, so the curve of a large working set keeps changing until that has been used a
//! few times. Then, or at a time limit, the server decides. If the curve grows later, partitions follow the need.

use crate::curve::View;
use crate::units::Nanos;

/// References of the first curve that is compared: with a quarter of them sampled, a miss ratio is known within 0.02.
const REFERENCES_FIRST: u64 = 4096;
/// Largest difference of settled curves at any size: half of the loss that R = 0.9 permits.
const DRIFT_MAX: f64 = 0.05;

/// The trial of one tenant.
#[derive(Clone, Default, Debug)]
pub(super) struct Trial {
    /// The time of the first request.
    begun: Option<Nanos>,
    /// The curve at the last doubling: the miss ratio at each octave, and the number of references.
    last: Vec<f64>,
    references: u64,
    settled: bool,
}

impl Trial {
    /// Examines the curve after `references` references.
    pub(super) fn look(&mut self, now: Nanos, references: u64, view: impl FnOnce() -> View) {
        if references < self.references {
            // The curve has been restarted.
            *self = Trial::default();
        }
        if references > 0 {
            self.begun.get_or_insert(now);
        }
        if self.settled || references < (2 * self.references).max(REFERENCES_FIRST) {
            return;
        }
        let view = view();
        let octaves = view.points.last().map_or(0, |last| last.blocks.ilog2());
        let misses: Vec<f64> = (0..=octaves).map(|octave| view.misses(1 << octave).unwrap_or(1.0)).collect();
        let drift = misses.iter().zip(&self.last).map(|(now, last)| (now - last).abs()).fold(0.0, f64::max);
        self.settled = misses.len() == self.last.len() && drift <= DRIFT_MAX;
        (self.last, self.references) = (misses, references);
    }

    /// The time of the first request.
    pub(super) fn begun(&self) -> Option<Nanos> {
        self.begun
    }

    /// Whether the trial is over: the curve is settled, or the time limit has passed.
    pub(super) fn is_over(&self, now: Nanos, limit_ns: Nanos) -> bool {
        self.settled || self.begun.is_some_and(|begun| now >= begun + limit_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::tests::reads;
    use super::*;

    #[test]
    fn a_curve_is_believed_when_it_stays_while_requests_double() {
        let mut trial = Trial::default();
        let mut see = |now, references, misses: f64| {
            trial.look(now, references, || reads(&[(100, 0.9), (1 << 12, misses)]));
            trial.is_over(now, 1000)
        };
        assert!(!see(0, 0, 0.9) && !see(1, 4095, 0.9), "too few");
        assert!(!see(2, 4096, 0.7) && !see(3, 8191, 0.7), "nothing to compare with");
        assert!(!see(4, 8192, 0.5), "it has changed");
        assert!(see(5, 16_384, 0.46));
        assert!(!see(6, 100, 0.46), "it began anew");
    }

    #[test]
    fn a_trial_has_an_end() {
        let mut trial = Trial::default();
        trial.look(5000, 0, || unreachable!("too few to look at"));
        assert!(!trial.is_over(9000, 1000), "nobody has asked for anything");
        trial.look(9000, 1, || unreachable!("too few to look at"));
        assert_eq!([9999, 10_000].map(|now| trial.is_over(now, 1000)), [false, true]);
    }
}
