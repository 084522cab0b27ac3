//! Keeps the rate below a throttle that the profile found, so that requests wait in the server's queues, where shares
//! hold, and not in the throttle's.
//!
//! Two leaky buckets, of requests and of bytes, each stored as the moment at which it would be empty (the generic cell
//! rate algorithm, ITU-T I.371). They leak slightly slower than the throttle does. The difference refills the
//! throttle's own bucket, which then covers the latency-bound tenants, whose requests do not wait here.
//!
//! Downside: only a tenant that is alone can use a burst that the throttle has saved up.

use crate::disk::policy::Prices;
use crate::units::{MILLISECOND, Nanos};

/// The part of the throttle's rate that is not used, in hundredths.
const SPARE_PERCENT: Nanos = 2;
/// Burst after a pause: the driver reads the clock once a pass, and a late pass must not cost throughput.
const BURST_NS: Nanos = 2 * MILLISECOND;
/// Longest delay by this pacing, whatever was submitted before.
pub const PACE_DEBT_NS: Nanos = 100 * MILLISECOND;

#[derive(Default, Debug)]
pub(super) struct Pace {
    empty_at: [Nanos; 2],
}

impl Pace {
    /// A request is submitted to the device.
    pub(super) fn passed(&mut self, now: Nanos, prices: &Prices, len: u64) {
        for (empty_at, takes) in self.empty_at.iter_mut().zip(prices.throttle_ns(len)) {
            let takes = takes * (100 + SPARE_PERCENT) / 100;
            *empty_at = ((*empty_at).max(now) + takes).min(now + PACE_DEBT_NS);
        }
    }

    /// When the next request may be submitted.
    pub(super) fn ready_at(&self) -> Nanos {
        self.empty_at.into_iter().max().unwrap_or(0).saturating_sub(BURST_NS)
    }
}
