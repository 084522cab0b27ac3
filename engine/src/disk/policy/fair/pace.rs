//! Stays below a throttle that the profile found, so that requests wait in our queues, where shares hold, and not in
//! its.
//!
//! Two leaky buckets, requests and bytes, each kept as the moment at which it would be empty (the generic cell rate
//! algorithm, ITU-T I.371). They leak a little more slowly than the throttle lets pass: what is left over fills its own
//! bucket, which then covers those who need not wait here.
//!
//! Downside: bursts that the throttle has saved up are used by a tenant that is alone only.

use super::price::Prices;
use crate::units::{MILLISECOND, Nanos};

/// What is left to the throttle, in hundredths.
const SPARE_PERCENT: Nanos = 2;
/// What may pass at once after a pause: a driver looks at the clock once a pass, and a late look must not cost
/// throughput.
const BURST_NS: Nanos = 2 * MILLISECOND;
/// Nobody is held for longer than that, whatever has passed before.
pub const PACE_DEBT_NS: Nanos = 100 * MILLISECOND;

#[derive(Default, Debug)]
pub(super) struct Pace {
    empty_at: [Nanos; 2],
}

impl Pace {
    /// A request goes to the device.
    pub(super) fn passed(&mut self, now: Nanos, prices: &Prices, len: u64) {
        for (empty_at, takes) in self.empty_at.iter_mut().zip(prices.throttle_ns(len)) {
            let takes = takes * (100 + SPARE_PERCENT) / 100;
            *empty_at = ((*empty_at).max(now) + takes).min(now + PACE_DEBT_NS);
        }
    }

    /// From when on the next one may.
    pub(super) fn ready_at(&self) -> Nanos {
        self.empty_at.into_iter().max().unwrap_or(0).saturating_sub(BURST_NS)
    }
}
