//! The system's clock of a server, which a time service corrects; and what the engine is told of it.

use engine::cluster::ClusterNanos;
use engine::units::{MILLISECOND, Nanos, SECOND};

use crate::rng::Rng;

/// Cluster time when the world begins.
pub(super) const EPOCH: ClusterNanos = 1_700_000_000 * SECOND;
/// The error that a correction leaves, and how fast it grows.
const LEFT_NS: u64 = 500_000;
const DRIFT_PPM: u64 = 200;
/// Longest time between two corrections.
const CORRECTED_NS: Nanos = 4 * SECOND;
/// As in the server: the engine is told a difference above this, looked at so often.
const TOLD_NS: u64 = 100_000;
pub(super) const TICK_NS: Nanos = SECOND;
/// The stated error: that of the clock, and of what the engine was told of it.
pub(super) const ERROR_NS: Nanos = 2 * MILLISECOND;
/// How far a clock is off before the first correction, or when it is set wrong.
const WRONG_NS: (u64, u64) = (30 * MILLISECOND, 400 * MILLISECOND);

const _: () = assert!(LEFT_NS + DRIFT_PPM * (CORRECTED_NS + TICK_NS) / 1_000_000 + TOLD_NS < ERROR_NS);

/// A clock.
#[derive(Debug)]
pub(super) struct Clock {
    /// Its error at a moment, and by how much of a million that grows.
    error_ns: i64,
    since: Nanos,
    drift_ppm: i64,
    /// Its error is within [`ERROR_NS`].
    pub(super) is_good: bool,
    /// What the present process was told.
    told_ns: Option<i64>,
}

/// A number up to `most` in either direction, at least `least`.
fn either(rng: &mut Rng, (least, most): (u64, u64)) -> i64 {
    let ns = rng.between(least, most) as i64;
    if rng.one_in(2) { ns } else { -ns }
}

impl Clock {
    /// A clock that is wrong until its first correction.
    pub(super) fn new(rng: &mut Rng) -> Clock {
        let mut clock = Clock { error_ns: 0, since: 0, drift_ppm: 0, is_good: false, told_ns: None };
        clock.goes_wrong(0, rng);
        clock
    }

    fn error_at(&self, now: Nanos) -> i64 {
        self.error_ns + (now - self.since) as i64 / 1_000_000 * self.drift_ppm
    }

    /// Somebody sets it wrong.
    pub(super) fn goes_wrong(&mut self, now: Nanos, rng: &mut Rng) {
        (self.error_ns, self.since, self.is_good) = (self.error_at(now) + either(rng, WRONG_NS), now, false);
    }

    /// The time service sets it right. Returns when it does so again.
    pub(super) fn is_corrected(&mut self, now: Nanos, rng: &mut Rng) -> Nanos {
        (self.error_ns, self.since, self.is_good) = (either(rng, (0, LEFT_NS)), now, true);
        self.drift_ppm = either(rng, (0, DRIFT_PPM));
        now + rng.between(CORRECTED_NS / 4, CORRECTED_NS)
    }

    /// A process starts, which knows nothing.
    pub(super) fn forget(&mut self) {
        self.told_ns = None;
    }

    /// Cluster time minus the engine's, if the engine is to be told; `born` is when its time began.
    pub(super) fn tell(&mut self, now: Nanos, born: Nanos) -> Option<i64> {
        let ahead_ns = (EPOCH + born) as i64 + self.error_at(now);
        let has_moved = self.told_ns.is_none_or(|told| told.abs_diff(ahead_ns) > TOLD_NS);
        has_moved.then(|| *self.told_ns.insert(ahead_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_engine_was_told_is_within_the_stated_error() {
        let rng = &mut Rng::new(1);
        let mut clock = Clock::new(rng);
        let (mut told, mut now) = (0, 0);
        for _ in 0..100 {
            let next = clock.is_corrected(now, rng);
            while now < next {
                told = clock.tell(now, 7 * SECOND).unwrap_or(told);
                now += TICK_NS;
                assert!(((EPOCH + 7 * SECOND) as i64).abs_diff(told) <= ERROR_NS);
            }
        }
    }
}
