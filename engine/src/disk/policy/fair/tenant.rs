//! What is known of a tenant, and the books: the time in which the device has something, divided by cost in flight.

use super::WEIGHT;
use super::balance::Kept;
use crate::disk::device::TURNAROUND_NS;
use crate::disk::policy::queue::Queue;
use crate::units::{Nanos, Share};

/// What the least gap grows by with each, so that a client that thinks longer than it did is believed after some
/// hundred.
const FORGETS: f64 = 1.0 / 256.0;
/// No client asks again sooner: what grows by a part of itself must not be 0.
const GAP_LEAST_NS: f64 = 1000.0;

/// One tenant's.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) share: Option<Share>,
    /// Parts per billion.
    pub(super) weight: u64,
    pub(super) queue: Queue,
    pub(super) in_device: u32,
    pub(super) in_device_ns: Nanos,
    /// Requests that were written off and have not come back.
    pub(super) stuck: u32,
    /// Virtual times of its next request, and of the end of its last one.
    pub(super) start: Nanos,
    pub(super) finish: Nanos,
    /// It has had a request of late.
    pub(super) active: bool,
    pub(super) idle_since: Nanos,
    /// The part of its requests that came when it had used less than its share.
    pub(super) behind: f64,
    /// Cost of the reads and the writes that it asked for, the last tenth of a second more than what was before.
    pub(super) asked_ns: [f64; 2],
    /// How long its requests take alone, on average.
    pub(super) alone_ns: f64,
    pub(super) owned_ns: f64,
    pub(super) useful_ns: f64,
    /// The part of it that is internal requests': the device was used, but no client gained.
    pub(super) internal_ns: f64,
    /// The mean of the gaps between its requests, of late, and what that was when nobody else wanted anything.
    pub(super) gap_ns: f64,
    pub(super) gap_alone_ns: Option<f64>,
    /// The least of them, of late.
    pub(super) gap_least_ns: f64,
    /// All its gaps.
    pub(super) gaps_ns: Nanos,
    /// How long it has wanted something, until it became what it is now, busy or idle.
    pub(super) wanted_ns: Nanos,
    pub(super) busy_since: Nanos,
    pub(super) kept: Kept,
    /// [`Books::per_cost`] when its cost in flight changed last.
    pub(super) settled: f64,
}

impl Tenant {
    /// One that is new.
    pub(super) fn new(now: Nanos, share: Option<Share>, virtual_ns: Nanos, books: &Books) -> Tenant {
        Tenant {
            share,
            weight: 1,
            queue: Queue::default(),
            in_device: 0,
            in_device_ns: 0,
            stuck: 0,
            start: virtual_ns,
            finish: virtual_ns,
            active: false,
            idle_since: now,
            behind: 0.0,
            asked_ns: [0.0; 2],
            alone_ns: 0.0,
            owned_ns: 0.0,
            useful_ns: 0.0,
            internal_ns: 0.0,
            gap_ns: 0.0,
            gap_alone_ns: None,
            gap_least_ns: f64::INFINITY,
            gaps_ns: 0,
            wanted_ns: 0,
            busy_since: now,
            kept: Kept::default(),
            settled: books.per_cost,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.in_device == 0
    }

    pub(super) fn is_polite(&self) -> bool {
        self.behind > 0.5
    }

    /// The part of what it asks for that is writes.
    pub(super) fn writes(&self) -> f64 {
        let [reads, writes] = self.asked_ns;
        if writes > 0.0 { writes / (reads + writes) } else { 0.0 }
    }

    pub(super) fn wanting_ns(&self, now: Nanos) -> Nanos {
        self.wanted_ns + if self.is_idle() { 0 } else { now - self.busy_since }
    }

    /// It has nothing to do any more.
    pub(super) fn rest(&mut self, now: Nanos) {
        self.wanted_ns += now - self.busy_since;
        self.idle_since = now;
    }

    pub(super) fn outstanding(&self) -> u64 {
        self.queue.len() as u64 + u64::from(self.in_device)
    }

    /// It asks again after a pause. A short one is a gap in which it thinks, as it would alone: there is no other way
    /// to know how long it would be then than to have seen it. Beside others a client may have to wait for a processor
    /// too, or for the server's thread: who was never alone and has one request at a time is believed to think for the
    /// least that it took of late: too little for one that thinks now longer, now shorter. Gaps of others are also
    /// those in which their replies are copied.
    pub(super) fn resume(&mut self, now: Nanos, alone: bool) {
        self.busy_since = now;
        let gap_ns = now - self.idle_since;
        if gap_ns > TURNAROUND_NS {
            return;
        }
        self.wanted_ns += gap_ns;
        self.gaps_ns += gap_ns;
        self.gap_ns += WEIGHT * (gap_ns as f64 - self.gap_ns);
        if alone {
            self.gap_alone_ns = Some(self.gap_ns);
        }
        self.gap_least_ns = (self.gap_least_ns * (1.0 + FORGETS)).min(GAP_LEAST_NS.max(gap_ns as f64));
        let thinks_ns = if self.is_polite() { self.gap_least_ns } else { self.gap_ns };
        self.useful_ns += if alone { gap_ns as f64 } else { self.gap_ns.min(self.gap_alone_ns.unwrap_or(thinks_ns)) };
    }

    pub(super) fn settle(&mut self, books: &Books) {
        self.owned_ns += self.in_device_ns as f64 * (books.per_cost - self.settled);
        self.settled = books.per_cost;
    }
}

/// Divides the device's time by cost in flight.
#[derive(Default, Debug)]
pub(super) struct Books {
    /// What is in flight.
    pub(super) cost_ns: Nanos,
    pub(super) load_ppm: u64,
    /// Time by cost in flight, summed up.
    pub(super) per_cost: f64,
    /// Time in which something was in flight.
    pub(super) busy_ns: Nanos,
    pub(super) settled_at: Nanos,
}

impl Books {
    pub(super) fn settle(&mut self, now: Nanos) {
        let past_ns = self.running_ns(now);
        if past_ns > 0 {
            self.busy_ns += past_ns;
            self.per_cost += past_ns as f64 / self.cost_ns as f64;
        }
        self.settled_at = now;
    }

    /// Busy since it was settled.
    pub(super) fn running_ns(&self, now: Nanos) -> Nanos {
        if self.cost_ns > 0 { now - self.settled_at } else { 0 }
    }
}
