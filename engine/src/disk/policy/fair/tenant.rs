//! The state of a tenant, and the accounting: the device's busy time, divided by cost in flight.

use super::WEIGHT;
use super::balance::Kept;
use crate::disk::device::TURNAROUND_NS;
use crate::disk::policy::queue::Queue;
use crate::units::{Nanos, Share};

/// Growth of the minimum think time per request, so that a client that begins to think longer is believed after a few
/// hundred requests.
const FORGETS: f64 = 1.0 / 256.0;
/// Lower bound of the minimum think time, nanoseconds: no client is faster, and a value that grows by a part of itself
/// must not be 0.
const GAP_LEAST_NS: f64 = 1000.0;

/// The state of one tenant.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) share: Option<Share>,
    /// Parts per billion.
    pub(super) weight: u64,
    pub(super) queue: Queue,
    pub(super) in_device: u32,
    pub(super) in_device_ns: Nanos,
    /// Requests that were written off and have not completed.
    pub(super) stuck: u32,
    /// The start tag of its next request and the finish tag of its last one, both in virtual time.
    pub(super) start: Nanos,
    pub(super) finish: Nanos,
    /// It has had a request recently.
    pub(super) active: bool,
    pub(super) idle_since: Nanos,
    /// The part of its recent requests that arrived when it had used less than its share.
    pub(super) behind: f64,
    /// Cost of the reads and of the writes that it requested. It decays, so the last tenth of a second counts more than
    /// the time before.
    pub(super) asked_ns: [f64; 2],
    /// Mean response time of its requests alone.
    pub(super) alone_ns: f64,
    pub(super) owned_ns: f64,
    pub(super) useful_ns: f64,
    /// The part of `useful_ns` that is due to internal requests: they use the device, but no client gains.
    pub(super) internal_ns: f64,
    /// Recent mean think time between its requests, and what that was when the tenant was last alone.
    pub(super) gap_ns: f64,
    pub(super) gap_alone_ns: Option<f64>,
    /// The minimum of its recent think times.
    pub(super) gap_least_ns: f64,
    /// The sum of its think times.
    pub(super) gaps_ns: Nanos,
    /// Its time with demand, until it last became busy or idle.
    pub(super) wanted_ns: Nanos,
    pub(super) busy_since: Nanos,
    pub(super) kept: Kept,
    /// [`Books::per_cost`] when its cost in flight changed last.
    pub(super) settled: f64,
}

impl Tenant {
    /// A new tenant.
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

    /// The part of its requested cost that is writes.
    pub(super) fn writes(&self) -> f64 {
        let [reads, writes] = self.asked_ns;
        if writes > 0.0 { writes / (reads + writes) } else { 0.0 }
    }

    pub(super) fn wanting_ns(&self, now: Nanos) -> Nanos {
        self.wanted_ns + if self.is_idle() { 0 } else { now - self.busy_since }
    }

    /// It becomes idle.
    pub(super) fn rest(&mut self, now: Nanos) {
        self.wanted_ns += now - self.busy_since;
        self.idle_since = now;
    }

    pub(super) fn outstanding(&self) -> u64 {
        self.queue.len() as u64 + u64::from(self.in_device)
    }

    /// It has a request again after a pause. A short pause is think time, which the client would also need alone. How
    /// long its think time is alone is only known if the tenant was seen alone, because under contention a client may
    /// also wait for a CPU or for the server's thread. So a latency-bound tenant that was never alone is credited with
    /// the minimum of its recent think times. That is too little if its think time varies. Pauses of a backlogged
    /// tenant also contain the time in which its replies are copied, so their mean counts.
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

/// Divides the device's busy time by cost in flight.
#[derive(Default, Debug)]
pub(super) struct Books {
    /// Cost and load in flight.
    pub(super) cost_ns: Nanos,
    pub(super) load_ppm: u64,
    /// The sum of busy time divided by the cost in flight at the time.
    pub(super) per_cost: f64,
    /// Time in which a request was in flight.
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

    /// Busy time since the last call of `settle`.
    pub(super) fn running_ns(&self, now: Nanos) -> Nanos {
        if self.cost_ns > 0 { now - self.settled_at } else { 0 }
    }
}
