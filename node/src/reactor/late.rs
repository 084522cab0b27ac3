//! A histogram of lateness, with buckets fine enough to check a bound of 100 microseconds.

use engine::units::{MILLISECOND, Nanos};

/// One microsecond.
const US: Nanos = 1000;
/// Upper bounds of the buckets, nanoseconds. Values above the last bound are in one more bucket.
pub const BOUNDS_NS: [Nanos; 13] = [
    5 * US,
    10 * US,
    20 * US,
    30 * US,
    50 * US,
    75 * US,
    100 * US,
    200 * US,
    500 * US,
    MILLISECOND,
    2 * MILLISECOND,
    5 * MILLISECOND,
    20 * MILLISECOND,
];

/// A histogram of lateness.
#[derive(Clone, Copy, Debug, Default)]
pub struct Late {
    /// Counts by bucket.
    pub buckets: [u64; BOUNDS_NS.len() + 1],
    /// The sum of the values, nanoseconds.
    pub sum_ns: u64,
}

impl Late {
    /// Adds one value, nanoseconds.
    pub fn record(&mut self, late_ns: Nanos) {
        self.buckets[BOUNDS_NS.partition_point(|&bound| bound < late_ns)] += 1;
        self.sum_ns += late_ns;
    }

    /// How many values were added.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        let mut late = Late::default();
        for ns in [0, 5 * US, 5 * US + 1, 100 * US, 100 * US + 1, u64::from(u32::MAX)] {
            late.record(ns);
        }
        assert_eq!(late.buckets, [2, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1]);
        assert_eq!(late.count(), 6);
    }
}
