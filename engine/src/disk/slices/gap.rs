//! Think times of a tenant: whether the disk idles for the tenant, and for how long (anticipatory idling).

use crate::units::{MILLISECOND, Nanos};

/// Shortest time for which the disk idles, added to the estimated think time: the jitter of a client that always
/// answers at once, on a machine with other work. Idling in vain costs the tenant's own time; giving up too early costs
/// it the rest of its slice.
const HOLD_MIN_NS: Nanos = 10 * MILLISECOND;
/// Longest time for which the disk idles for a tenant without requests.
pub const HOLD_MAX_NS: Nanos = 100 * MILLISECOND;
/// Think time and deviation that are assumed before the first measurement, nanoseconds: a client over a network that
/// answers at once.
const GAP_NS: f64 = 1e6;

/// The think time of a tenant, as estimated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gap {
    /// Mean and mean deviation of the think times of at most `HOLD_MAX_NS`.
    mean: f64,
    deviation: f64,
    /// The fraction of recent think times that are so short. A single pause says little: a client that was away for a
    /// while is as prompt as before when it returns.
    soon: f64,
}

impl Gap {
    /// A tenant without measurements, which is assumed to answer at once.
    pub(crate) const UNKNOWN: Gap = Gap { mean: GAP_NS, deviation: GAP_NS, soon: 1.0 };

    /// The tenant had no request outstanding for `gap`.
    pub(crate) fn add(&mut self, gap: Nanos) {
        let is_soon = gap <= HOLD_MAX_NS;
        self.soon += (f64::from(u8::from(is_soon)) - self.soon) / 8.0;
        if is_soon {
            // The estimate of TCP for round-trip times (RFC 6298), with gains of an eighth and a quarter.
            let gap = gap as f64;
            self.deviation += ((gap - self.mean).abs() - self.deviation) / 4.0;
            self.mean += (gap - self.mean) / 8.0;
        }
    }

    /// The idle timeout. If most think times exceed `HOLD_MAX_NS`, the timeout does too, and the disk does not idle.
    pub(crate) fn idle_timeout(&self) -> Nanos {
        if self.soon < 0.5 {
            return HOLD_MAX_NS + 1;
        }
        (self.mean + 4.0 * self.deviation) as Nanos + HOLD_MIN_NS
    }
}
