//! What a tenant needs to keep R: how much cache, and slices of which round.
//!
//! ```text
//!   curve ─────► misses by size ─┐
//!   device ────► time of a miss ─┴► load: R_cache by size ─┐
//!   policy ───► loss, weight ───► R_time by round ────┴► split: shortest round with R_time x R_cache >= R for all,
//!                                                             within the memory there is
//!   trial: whether the curve can be believed yet              │
//!                                                             ▼
//!   review, once a second: decisions, partitions, and the part of R that is asked of each tenant's slices
//! ```
//!
//! `load`, `split`, `trial` and `cost` are plain arithmetic; only `review.rs` knows the server. `docs/design/sizing.md`
//! says why all this is as it is.
//!
//! Source: Argon (Wachs et al., FAST 2007), section 3.4 of the cache; DESIGN 6.

mod cost;
mod dirt;
mod load;
mod review;
mod split;
mod trial;
mod worth;

use crate::control::{CacheSpec, TenantId};
use crate::units::{Nanos, Share};

pub(crate) use review::{BYTES_PER_FRAME, Book};

/// What was decided for a tenant, and why. Bytes are memory with its bookkeeping, as in [`CacheSpec`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sizing {
    /// The decision that stands.
    pub decision: Decision,
    /// When it was made; for a trial, when it began.
    pub since: Nanos,
    /// R that is asked of the disk, thousandths.
    pub insulation_permille: u32,
    /// The least cache with which it keeps R in a round of `round_ns`. `None` while its load is not known, and where no
    /// cache is enough.
    pub need_bytes: Option<u64>,
    /// Cache that nobody takes from it while it has this decision.
    pub kept_bytes: u64,
    /// Cache beyond that, lent until somebody needs it.
    pub lent_bytes: u64,
    /// R_time: the part of its slices that it would not lose in a round of `round_ns`, thousandths.
    pub time_permille: u32,
    /// R_cache: the part of its throughput with the whole cache that it has with its partition, thousandths. `None`
    /// while its load is not known.
    pub cache_permille: Option<u32>,
    /// R_time x R_cache: the R that it has with all that it was given; of a tenant served as well as can be, the best
    /// it can have.
    pub best_permille: Option<u32>,
    /// The round, while all tenants are busy.
    pub round_ns: Nanos,
    /// How long a request waits for the next slice of its tenant at most, while all are busy; a round more beside a
    /// long slice, in which losses are measured.
    pub wait_ns: Nanos,
}

/// What became of a tenant's wish for R.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Decision {
    /// It is not known yet what it needs. It has cache that nobody needs, and its share of time.
    Trial(Doubt),
    /// It keeps R as far as its load stays as it was; or it was asked to have so much cache, and its load is not known
    /// yet.
    Admitted,
    /// It cannot have R: this is what is missing. It has its share of time, and of what cache is spare.
    BestEffort(Bound),
}

/// Why a trial is not over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// Nobody has asked it for anything.
    Unused,
    /// Its curve still changes; decided at this time at the latest, as far as there are requests then.
    Unsettled {
        /// When the trial ends.
        until: Nanos,
    },
}

/// What R fails by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Bound {
    /// Memory: its need beside what the others have to keep.
    Memory {
        /// Bytes it would need.
        needs_bytes: u64,
        /// Bytes that are not promised to others.
        free_bytes: u64,
    },
    /// The cache that was asked for is too small.
    Asked {
        /// Bytes it would need.
        needs_bytes: u64,
    },
    /// The longest round: it would have to be so long.
    Round {
        /// Nanoseconds of the round that R needs.
        needs_ns: Nanos,
    },
    /// Dirt may not wait: alone it does so much in that time that more of it is overwritten, or goes together, than any
    /// cache can give it beside others.
    Age {
        /// R_cache with the whole cache, thousandths.
        most_permille: u32,
    },
}

/// A tenant that could be there: what is asked with `Command::Plan`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlanRequest {
    /// The tenant, if it is there already: its load is known.
    pub tenant: Option<TenantId>,
    /// The share that it would have.
    pub share: Option<Share>,
    /// The cache that it would have.
    pub cache: CacheSpec,
    /// A tenant whose load it will have: then a decision takes no trial.
    pub like: Option<TenantId>,
}

/// What would be decided now.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Plan {
    /// The decision, its partition and its R. A tenant that was planned `like` another is made with
    /// `CacheSpec::Decided(sizing.kept_bytes)`. `None` under a policy that does not insulate.
    pub sizing: Option<Sizing>,
    /// Its slice in each round.
    pub slice_ns: Nanos,
    /// Bytes of cache that it could have asked for.
    pub free_bytes: u64,
    /// What is left of the disk's time without it, parts per billion.
    pub share_left_ppb: u64,
}
