//! The planner of a disk: how much cache each tenant needs to keep R, slices of which round, and whom to admit.
//!
//! ```text
//!   data thread (`server/planning.rs`)                 planner, on another thread
//!
//!   counts of curves, costs, writes of    ─ Evidence ─►  trial: is the curve settled?
//!   dirty data, losses, shares, promises                 curve ─► misses by size ─┐
//!   (some tenants an event)                              device ► time of a miss ─┴► load: R_cache by size ─┐
//!                                                        policy ► loss, weight ───► R_time by round ────────┴► split:
//!   partitions, slice targets, decisions  ◄─ Targets ──  the shortest round with R_time x R_cache >= R for all
//! ```
//!
//! Evidence carries a generation, which changes with the tenants, the memory and the policy. Targets carry that of
//! their evidence; the data thread refuses them if it has changed. So the planner may take as long as it likes, and the
//! partitions never exceed the cache.
//!
//! Source: Argon (Wachs et al., FAST 2007), section 3.4, for the cache; `docs/design/sizing.md` for the joint choice.

pub(crate) mod allot;
mod evidence;
mod feedback;
mod load;
mod planner;
mod room;
mod split;
mod trial;

use crate::ids::TenantId;
use crate::spec::CacheSpec;
use crate::units::{Nanos, Share};

pub use evidence::{Evidence, Targets};
pub(crate) use evidence::{Facts, Look, Observed};
pub use planner::Planner;

/// The decision for a tenant, with its numbers. Bytes of memory include bookkeeping, as in [`CacheSpec`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sizing {
    /// The present decision.
    pub decision: Decision,
    /// When the decision was made. For a trial: when it began.
    pub since: Nanos,
    /// R of the disk, thousandths.
    pub insulation_permille: u32,
    /// The smallest cache with which the tenant keeps R in a round of `round_ns`. `None` while its load is unknown, and
    /// if no cache is enough.
    pub need_bytes: Option<u64>,
    /// Cache that is not reclaimed from the tenant while this decision stands.
    pub kept_bytes: u64,
    /// Cache beyond that, lent until another tenant needs it.
    pub lent_bytes: u64,
    /// R_time: the fraction of its slices that the tenant does not lose in a round of `round_ns`, thousandths.
    pub time_permille: u32,
    /// R_cache: its throughput with its partition, relative to that with the whole cache, thousandths. `None` while its
    /// load is unknown.
    pub cache_permille: Option<u32>,
    /// R_time x R_cache: the R that the tenant has with everything it was given, as estimated. For a best-effort tenant
    /// with all that can help it, the best R that it can have.
    pub best_permille: Option<u32>,
    /// The ends of the interval in which that R is. A tenant is admitted by the low end.
    pub low_permille: Option<u32>,
    /// The other end.
    pub high_permille: Option<u32>,
    /// The round while all tenants are busy.
    pub round_ns: Nanos,
    /// Longest wait of a request for the next slice of its tenant while all tenants are busy. One round more while
    /// another tenant has a long slice, in which losses are measured.
    pub wait_ns: Nanos,
}

/// Whether a tenant keeps R.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Decision {
    /// Its need is not known yet. It has spare cache, and its share of time.
    Trial(Doubt),
    /// It keeps R as long as its load does not change. Also: it requested a cache size, and its load is not known yet.
    Admitted,
    /// It cannot keep R, for this reason. It has its share of time, and spare cache.
    BestEffort(Bound),
}

/// Why a trial is not over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// The tenant has not had a request.
    Unused,
    /// Memory for R is guaranteed to it, but its partition is not full enough for R yet: it fills as the tenant misses.
    Filling {
        /// Bytes in use.
        used_bytes: u64,
    },
    /// Its curve still changes. The trial ends at the given time at the latest.
    Unsettled {
        /// When the trial ends.
        until: Nanos,
    },
}

/// The resource that is missing for R.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Bound {
    /// Memory: its need does not fit, given what the other tenants keep.
    Memory {
        /// Bytes that it needs.
        needs_bytes: u64,
        /// Bytes that are not promised to other tenants.
        free_bytes: u64,
    },
    /// The requested cache size is too small.
    Asked {
        /// Bytes that it needs.
        needs_bytes: u64,
    },
    /// `max_round`: a longer round is necessary.
    Round {
        /// The round that R needs, nanoseconds.
        needs_ns: Nanos,
    },
    /// It measurably gets less disk time than its slices should give it: so much less that no round is long enough.
    Shortfall {
        /// What it lacks of its R_time, thousandths.
        lacks_permille: u32,
    },
    /// The age limit of dirty data: standalone, the tenant makes so many more requests in that time that more writes
    /// are absorbed or combined than with any cache size under contention.
    Age {
        /// R_cache with the whole cache, thousandths.
        most_permille: u32,
    },
}

/// A hypothetical tenant, for [`Planner::plan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlanRequest {
    /// The tenant, if it exists: its load is known.
    pub tenant: Option<TenantId>,
    /// Its planned share.
    pub share: Option<Share>,
    /// Whether the shares of the disk may sum to more than 1 with this one.
    pub overcommit: bool,
    /// Its planned cache size.
    pub cache: CacheSpec,
    /// An existing tenant with the same load: then the decision needs no trial.
    pub like: Option<TenantId>,
}

/// The present decision for a `PlanRequest`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Plan {
    /// The decision, its partition and its R. To create a tenant that was planned `like` another one, use
    /// `CacheSpec::Decided(sizing.kept_bytes)`. `None` under a policy that does not insulate.
    pub sizing: Option<Sizing>,
    /// Its slice in each round.
    pub slice_ns: Nanos,
    /// Bytes of cache that it can request.
    pub free_bytes: u64,
    /// Disk time not promised to other tenants, parts per billion.
    pub share_left_ppb: u64,
}
