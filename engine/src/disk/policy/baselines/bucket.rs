//! A token bucket: at most `rate` x t + `burst` bytes in any time t. Its level is kept as the time at which it is full
//! again (the virtual scheduling form of the generic cell rate algorithm, ITU-T I.371), so it needs no refilling.

use super::time_ns;
use crate::units::Nanos;

/// The bucket of one tenant, full at first.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Bucket {
    full_at: Nanos,
}

impl Bucket {
    /// The earliest time, not before `from`, at which the bucket has the tokens for so many bytes. It holds what
    /// arrives in `burst_ns`; a larger request needs a full bucket and leaves a debt.
    pub(super) fn has_at(&self, from: Nanos, bytes: u64, rate: u64, burst_ns: Nanos) -> Nanos {
        let needed_ns = time_ns(bytes, rate).min(burst_ns);
        from.max(self.full_at.saturating_add(needed_ns).saturating_sub(burst_ns))
    }

    /// Takes the tokens for so many bytes at time `at`.
    pub(super) fn take(&mut self, at: Nanos, bytes: u64, rate: u64) {
        self.full_at = self.full_at.max(at).saturating_add(time_ns(bytes, rate));
    }

    /// Adds the tokens of `ns`.
    pub(super) fn add(&mut self, ns: Nanos) {
        self.full_at = self.full_at.saturating_sub(ns);
    }
}
