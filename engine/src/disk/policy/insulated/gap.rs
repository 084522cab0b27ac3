//! How soon a tenant asks again: whether, and for how long, the disk is held for it.

use crate::units::{MILLISECOND, Nanos};

/// A slice is held for at least so long: the jitter of a client that always answers at once, on a machine that has
/// other things to do. What is held in vain is the tenant's own time; what it loses if it is given up too early is the
/// rest of its slice.
const HOLD_MIN_NS: Nanos = 10 * MILLISECOND;
/// The longest that a slice is held for a tenant that has nothing to do.
pub const HOLD_MAX_NS: Nanos = 100 * MILLISECOND;
/// What is expected of a tenant of which nothing is known: a client that answers at once, over a network.
const GAP_NS: f64 = 1e6;

/// How soon a tenant asks again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    /// Of the gaps that a slice can be held for.
    mean: f64,
    deviation: f64,
    /// The part of its gaps that are such. One pause says little: who was away for a while asks as soon as ever when it
    /// is back.
    soon: f64,
}

impl Gap {
    /// Of one of whom nothing is known: it is expected to answer at once.
    pub(super) const UNKNOWN: Gap = Gap { mean: GAP_NS, deviation: GAP_NS, soon: 1.0 };

    /// It had nothing to do for so long.
    pub(super) fn add(&mut self, gap: Nanos) {
        let is_soon = gap <= HOLD_MAX_NS;
        self.soon += (f64::from(u8::from(is_soon)) - self.soon) / 8.0;
        if is_soon {
            // As TCP estimates round trips (RFC 6298): an eighth and a quarter.
            let gap = gap as f64;
            self.deviation += ((gap - self.mean).abs() - self.deviation) / 4.0;
            self.mean += (gap - self.mean) / 8.0;
        }
    }

    /// After so long it is not expected any more: longer than a slice can be held, if most of its gaps are.
    pub(super) fn patience(&self) -> Nanos {
        if self.soon < 0.5 {
            return HOLD_MAX_NS + 1;
        }
        (self.mean + 4.0 * self.deviation) as Nanos + HOLD_MIN_NS
    }
}
