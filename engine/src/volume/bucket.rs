//! A token bucket: how much of a rate may be used now. Time is an argument.
//!
//! ```text
//!   saved    0 ─────────── rate x burst        grows by the rate; what would exceed the bucket is lost
//!        ▲ take: any amount, if saved >= 0     a request that is larger than the bucket leaves a debt, and the next
//!          (may go below 0: debt)              one waits until that is repaid
//! ```
//!
//! In any interval of length t at most rate x (t + burst) and one request are taken. A taker that always has a request
//! takes exactly the rate, however large its requests are. All arithmetic is exact.
//!
//! Source: the token bucket of RFC 2697, with debt in place of a size that every request must fit into.

use std::num::NonZeroU64;

use crate::units::{Nanos, SECOND};

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// Units a second.
    rate: NonZeroU64,
    burst_ns: Nanos,
    /// Saved units, times the nanoseconds of a second, as of `at`; below 0 for a debt.
    saved: i128,
    at: Nanos,
}

impl Bucket {
    /// An empty bucket: nothing was saved while there was no rate.
    pub(super) fn new(now: Nanos, rate: NonZeroU64, burst_ns: Nanos) -> Bucket {
        Bucket { rate, burst_ns, saved: 0, at: now }
    }

    /// Changes the rate and the size. What is saved beyond the new size is lost; a debt stays.
    pub(super) fn set(&mut self, now: Nanos, rate: NonZeroU64, burst_ns: Nanos) {
        self.saved = self.saved_at(now).min(gained(rate, burst_ns));
        (self.rate, self.burst_ns, self.at) = (rate, burst_ns, now);
    }

    fn saved_at(&self, now: Nanos) -> i128 {
        let saved = self.saved + gained(self.rate, now.saturating_sub(self.at));
        saved.min(gained(self.rate, self.burst_ns))
    }

    /// Whether anything may be taken now.
    pub(super) fn is_ready(&self, now: Nanos) -> bool {
        self.saved_at(now) >= 0
    }

    /// When something may be taken.
    pub(super) fn ready_at(&self) -> Nanos {
        let debt = (-self.saved).max(0).unsigned_abs();
        self.at.saturating_add(u64::try_from(debt.div_ceil(self.rate.get().into())).unwrap_or(Nanos::MAX))
    }

    /// Takes `units`. Returns the time in which the rate yields them.
    pub(super) fn take(&mut self, now: Nanos, units: u64) -> Nanos {
        self.saved = self.saved_at(now) - i128::from(units) * i128::from(SECOND);
        self.at = self.at.max(now);
        u64::try_from(u128::from(units) * u128::from(SECOND) / u128::from(self.rate.get())).unwrap_or(Nanos::MAX)
    }
}

/// What a rate yields in this time.
fn gained(rate: NonZeroU64, ns: Nanos) -> i128 {
    i128::from(rate.get()) * i128::from(ns)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(rate: u64) -> NonZeroU64 {
        NonZeroU64::new(rate).unwrap()
    }

    #[test]
    fn what_is_saved_is_taken_at_once_and_a_large_request_leaves_a_debt() {
        let mut bucket = Bucket::new(0, rate(100), 2 * SECOND);
        bucket.take(0, 50);
        assert_eq!((bucket.is_ready(SECOND / 2 - 1), bucket.ready_at()), (false, SECOND / 2));
        let taken = (0..).take_while(|_| {
            let is_ready = bucket.is_ready(100 * SECOND);
            bucket.take(100 * SECOND, 10);
            is_ready
        });
        assert_eq!(taken.count(), 21, "two seconds' worth, and one more");
        let mut bucket = Bucket::new(0, rate(100), SECOND / 100);
        bucket.take(SECOND, 1001);
        assert_eq!(bucket.ready_at(), 11 * SECOND, "one unit was saved");
    }

    #[test]
    fn a_change_takes_effect_at_once() {
        let mut bucket = Bucket::new(0, rate(100), 10 * SECOND);
        bucket.set(10 * SECOND, rate(10), 5 * SECOND);
        bucket.take(10 * SECOND, 60);
        assert_eq!(bucket.ready_at(), 11 * SECOND, "50 of 1000 saved units are left");
        bucket.set(10 * SECOND, rate(100), 5 * SECOND);
        assert_eq!(bucket.ready_at(), 10 * SECOND + SECOND / 10, "the debt is repaid at the new rate");
    }

    /// The same with whole units and steps of time, and nothing clever: rates are multiples of the steps of a second.
    struct Naive {
        saved: i64,
        most: i64,
        step: i64,
    }

    const STEP_NS: Nanos = SECOND / 1000;

    proptest! {
        #[test]
        fn it_does_what_a_naive_one_does(
            step in 1i64..1000,
            burst in 1i64..50,
            wants in prop::collection::vec((0u64..20, 1u64..20_000), 1..200),
        ) {
            let mut naive = Naive { saved: 0, most: step * burst, step };
            let mut bucket = Bucket::new(0, rate(1000 * step as u64), burst as u64 * STEP_NS);
            let (mut now, mut taken, mut largest) = (0, 0, 0);
            for (steps, units) in wants {
                for _ in 0..steps {
                    now += STEP_NS;
                    naive.saved = (naive.saved + naive.step).min(naive.most);
                }
                prop_assert_eq!(bucket.is_ready(now), naive.saved >= 0);
                prop_assert_eq!(bucket.is_ready(now), bucket.ready_at() <= now);
                if naive.saved >= 0 {
                    naive.saved -= units as i64;
                    bucket.take(now, units);
                    (taken, largest) = (taken + units, largest.max(units));
                }
                let most = step as u64 * (now / STEP_NS + burst as u64) + largest;
                prop_assert!(taken <= most, "{} taken, {}", taken, most);
            }
        }

        #[test]
        fn a_taker_that_always_wants_takes_exactly_the_rate(
            per_second in 1u64..1 << 40,
            burst_ns in 10_000_000u64..3600 * SECOND,
            sizes in prop::collection::vec(1u64..1 << 32, 1..20),
        ) {
            let mut bucket = Bucket::new(0, rate(per_second), burst_ns);
            let mut taken = 0u128;
            for &units in &sizes {
                let now = bucket.ready_at();
                prop_assert!(bucket.is_ready(now) && (now == 0 || !bucket.is_ready(now - 1)));
                bucket.take(now, units);
                taken += u128::from(units);
            }
            let exact = (taken * u128::from(SECOND)).div_ceil(per_second.into());
            prop_assert_eq!(u128::from(bucket.ready_at()), exact.min(Nanos::MAX.into()));
        }
    }
}
