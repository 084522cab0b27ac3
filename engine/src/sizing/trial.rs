//! Whether a tenant's curve can be believed: it has not changed much while the number of requests doubled.
//!
//! A curve that has seen n requests is compared with the one that had seen half as many, at sizes an octave apart. What
//! has not been asked for twice yet is not on it, so the curve of a large working set keeps changing until that has
//! been used a few times over; then, or at a time limit, it is decided. A curve that grows later is no surprise: needs
//! are followed.

use crate::curve::View;
use crate::units::Nanos;

/// References of the first curve that is compared: with a quarter of them sampled, a part of them is known within 0.02.
const REFERENCES_FIRST: u64 = 4096;
/// How far curves may be apart at any size: half of what R = 0.9 leaves.
const DRIFT_MAX: f64 = 0.05;

/// The trial of one tenant.
#[derive(Clone, Default, Debug)]
pub(super) struct Trial {
    /// Since when there are requests.
    begun: Option<Nanos>,
    /// The curve at the last doubling: what misses at each octave, and after how many references.
    last: Vec<f64>,
    references: u64,
    settled: bool,
}

impl Trial {
    /// The curve now, after so many references.
    pub(super) fn look(&mut self, now: Nanos, references: u64, view: impl FnOnce() -> View) {
        if references < self.references {
            // The curve was begun anew.
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

    /// Since when there are requests.
    pub(super) fn begun(&self) -> Option<Nanos> {
        self.begun
    }

    /// Whether what is known is all that will be waited for.
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
