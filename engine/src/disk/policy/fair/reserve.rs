//! Guarantees on a device without heads: a tenant behind its minimum bandwidth goes first, within its share.
//!
//! ```text
//!   cost per byte   recent cost of its requests / bytes that its clients received
//!   rate            min(guarantee x cost per byte, part)             cost per time
//!   due             += cost of the request / rate                    with each of its requests
//!   due <= now      the tenant is behind: the earliest due goes first, before all start tags
//! ```
//!
//! The part is that of the device which the tenant can count on ([`super::Weights::part_ppb`]): all parts sum to at
//! most the device, so that reservations starve no other tenant.
//!
//! Source: the reservation tags of mClock (Gulati, Merchant and Varman, OSDI 2010), there in requests, here in cost: so
//! bytes from the cache count, and a guarantee that the requests make too expensive takes no more than the part.
//! Downside: after a change of its requests the cost per byte is wrong for about a hundred of them.

use crate::units::{Nanos, SECOND, Share};

/// A tenant that is behind for longer is owed no more: as long as a tenant without requests counts as active.
const BEHIND_NS: Nanos = SECOND;
/// Factor per request by which earlier cost and bytes decay: about the last hundred requests count.
const FORGETS: f64 = 1.0 - 1.0 / 64.0;

/// The reservation of a tenant.
#[derive(Debug)]
pub(super) struct Reserve {
    bytes_per_s: u64,
    /// Of the device, 0 to 1.
    part: f64,
    /// When its next request is due.
    due: Nanos,
    /// Recent cost, and bytes that the clients received; and the bytes that they had received by then.
    cost_ns: f64,
    bytes: f64,
    /// What its clients had received at the last completion; `None` before the first one.
    delivered: Option<u64>,
}

impl Reserve {
    /// For a guarantee, which may be none. It has no part yet.
    pub(super) fn new(now: Nanos, bytes_per_s: u64) -> Option<Reserve> {
        let reserve = Reserve { bytes_per_s, part: 0.0, due: now, cost_ns: 0.0, bytes: 0.0, delivered: None };
        (bytes_per_s > 0).then_some(reserve)
    }

    /// The guarantee.
    pub(super) fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    /// The tenant can count on this part of the device from now on.
    pub(super) fn set_part(&mut self, part_ppb: u64) {
        self.part = part_ppb as f64 / Share::ONE.ppb() as f64;
    }

    /// Its first request after a pause arrives: it is owed nothing for the pause.
    pub(super) fn resume(&mut self, now: Nanos) {
        self.due = self.due.max(now);
    }

    /// When its next request is due, if the tenant is behind.
    pub(super) fn due_by(&self, now: Nanos) -> Option<Nanos> {
        Some(self.due).filter(|&due| due <= now)
    }

    /// A request of this cost goes to the device.
    pub(super) fn dispatched(&mut self, now: Nanos, cost_ns: Nanos) {
        let cost_per_byte = if self.bytes > 0.0 { self.cost_ns / self.bytes } else { f64::INFINITY };
        let rate = (self.bytes_per_s as f64 * cost_per_byte / SECOND as f64).min(self.part);
        let takes_ns = if rate > 0.0 { cost_ns as f64 / rate } else { f64::INFINITY };
        self.due = self.due.max(now.saturating_sub(BEHIND_NS)).saturating_add(takes_ns as Nanos);
        // After many hits in the cache, a byte seems to cost nothing: that must not end the reservation for long.
        self.due = self.due.min(now.saturating_add(BEHIND_NS));
    }

    /// A request of this cost completed; the clients have received `delivered` bytes in all.
    pub(super) fn done(&mut self, cost_ns: Nanos, delivered: u64) {
        let Some(before) = self.delivered.replace(delivered) else { return };
        let bytes = delivered.saturating_sub(before);
        self.cost_ns = self.cost_ns * FORGETS + cost_ns as f64;
        self.bytes = self.bytes * FORGETS + bytes as f64;
    }
}
