//! The state of a tenant, and the standalone-equivalent time of its work.

use super::WEIGHT;
use super::balance::Kept;
use super::reserve::Reserve;
use crate::disk::books::TURNAROUND_NS;
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
    /// The start tag of its next request and the finish tag of its last one, both in virtual time.
    pub(super) start: Nanos,
    pub(super) finish: Nanos,
    /// It has had a request recently.
    pub(super) active: bool,
    idle_since: Nanos,
    /// Time for which its ceilings had held it back when it last became busy.
    held_ns: Nanos,
    /// The part of its recent requests that arrived when it had used less than its share.
    pub(super) behind: f64,
    /// Cost of the reads and of the writes that it requested. It decays, so the last tenth of a second counts more than
    /// the time before.
    pub(super) asked_ns: [f64; 2],
    /// Mean response time of its requests alone.
    pub(super) alone_ns: f64,
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
    /// Since when it has had requests; `None` if it has none, except hung ones.
    pub(super) busy_since: Option<Nanos>,
    pub(super) kept: Kept,
    /// Its guarantee, if it has one and a share.
    pub(super) reserve: Option<Reserve>,
}

impl Tenant {
    /// A new tenant.
    pub(super) fn new(now: Nanos, share: Option<Share>, virtual_ns: Nanos) -> Tenant {
        Tenant {
            share,
            weight: 1,
            start: virtual_ns,
            finish: virtual_ns,
            active: false,
            idle_since: now,
            held_ns: 0,
            behind: 0.0,
            asked_ns: [0.0; 2],
            alone_ns: 0.0,
            useful_ns: 0.0,
            internal_ns: 0.0,
            gap_ns: 0.0,
            gap_alone_ns: None,
            gap_least_ns: f64::INFINITY,
            gaps_ns: 0,
            wanted_ns: 0,
            busy_since: None,
            kept: Kept::default(),
            reserve: None,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.busy_since.is_none()
    }

    pub(super) fn is_latency_bound(&self) -> bool {
        self.behind > 0.5
    }

    /// The part of its requested cost that is writes.
    pub(super) fn writes(&self) -> f64 {
        let [reads, writes] = self.asked_ns;
        if writes > 0.0 { writes / (reads + writes) } else { 0.0 }
    }

    pub(super) fn wanting_ns(&self, now: Nanos) -> Nanos {
        self.wanted_ns + self.busy_since.map_or(0, |since| now - since)
    }

    /// It becomes idle, if it is not.
    pub(super) fn rest(&mut self, now: Nanos) {
        if let Some(since) = self.busy_since.take() {
            self.wanted_ns += now - since;
            self.idle_since = now;
        }
    }

    /// Whether it has requests, or had one in the last `past_ns`.
    pub(super) fn was_busy(&self, now: Nanos, past_ns: Nanos) -> bool {
        !self.is_idle() || now < self.idle_since + past_ns
    }

    /// It has a request again after a pause. A short pause is think time, which the client would also need alone. How
    /// long its think time is alone is only known if the tenant was seen alone, because under contention a client may
    /// also wait for a CPU or for the server's thread. So a latency-bound tenant that was never alone is credited with
    /// the minimum of its recent think times. That is too little if its think time varies. Pauses of a backlogged
    /// tenant also contain the time in which its replies are copied, so their mean counts.
    /// The time for which its ceilings held it back, of which there are `held_ns` so far, is no think time.
    pub(super) fn resume(&mut self, now: Nanos, alone: bool, held_ns: Nanos) {
        self.busy_since = Some(now);
        let since_ns = held_ns - std::mem::replace(&mut self.held_ns, held_ns);
        let gap_ns = (now - self.idle_since).saturating_sub(since_ns);
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
        let thinks_ns = if self.is_latency_bound() { self.gap_least_ns } else { self.gap_ns };
        self.useful_ns += if alone { gap_ns as f64 } else { self.gap_ns.min(self.gap_alone_ns.unwrap_or(thinks_ns)) };
    }
}
