//! The messages between the data thread of a disk and its planner.

use super::{Decision, Sizing};
use crate::cache::Reads;
use crate::config::Config;
use crate::curve::{Cost, Counts, POOLS, Written};
use crate::disk::policy::Settings;
use crate::ids::TenantId;
use crate::spec::{CacheSpec, TenantSpec};
use crate::units::{Nanos, Share};

/// All that the planner needs to know of a disk at one time.
#[derive(Clone, Debug)]
pub struct Evidence {
    /// Changes with the tenants, the memory and the policy.
    pub(crate) generation: u64,
    pub(crate) now: Nanos,
    /// Periodic reviews so far.
    pub(crate) reviews: usize,
    pub(crate) settings: Settings,
    /// Frames of the cache.
    pub(crate) frames: u64,
    /// Largest read-ahead window of a stream at present, bytes.
    pub(crate) prefetch_bytes: u64,
    pub(crate) trial_ns_max: Nanos,
    /// All tenants with R, by number.
    pub(crate) tenants: Vec<Facts>,
    /// The other tenants, by number, and how much cache each has requested.
    pub(crate) others: Vec<(TenantId, CacheSpec)>,
    /// The shares of those of them that have disk time: store tenants.
    pub(crate) stores: Vec<Option<Share>>,
    /// The tenants that were examined in this review.
    pub(crate) looks: Vec<Look>,
}

impl Evidence {
    /// Of a disk without tenants.
    pub(crate) fn new(config: &Config) -> Evidence {
        Evidence {
            generation: 0,
            now: 0,
            reviews: 0,
            settings: config.policy(),
            frames: u64::from(Config::frames_of(config.budget_bytes)),
            prefetch_bytes: 0,
            trial_ns_max: config.trial_ns_max,
            tenants: Vec::new(),
            others: Vec::new(),
            stores: Vec::new(),
            looks: Vec::new(),
        }
    }
}

/// A tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) tenant: TenantId,
    /// The generation that created it: another tenant of the same number has another one.
    pub(crate) created: u64,
    pub(crate) spec: TenantSpec,
    /// Frames that are promised to it.
    pub(crate) kept: u64,
    /// The present decision, and when it was made.
    pub(crate) decided: Option<(Decision, Nanos)>,
    /// Its mean loss per slice; `None` if unknown.
    pub(crate) loss_ns: Option<Nanos>,
    /// Shortest slice for its backlog.
    pub(crate) burst_ns: Nanos,
    /// The part of its streams' work that its own random requests displace.
    pub(crate) streams_lack: f64,
    /// Whether sequential reads and other requests each are a considerable part of its work.
    pub(crate) has_divided_streams: bool,
    /// Standalone-equivalent time of its disk work, and the time in which it wanted the disk, so far.
    pub(crate) useful_ns: Nanos,
    pub(crate) wanted_ns: Nanos,
    /// Faults of the disk so far, as far as they concern the tenant; `None` while one lasts.
    pub(crate) faults: Option<u64>,
}

/// What was seen of a tenant in its turn.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    pub(crate) tenant: TenantId,
    /// Concurrent streams.
    pub(crate) streams: u32,
    /// The longest read of a stream, bytes.
    pub(crate) stream_read: u64,
    /// The most reads that were outstanding at once since the last look, without those of streams.
    pub(crate) reads: Reads,
    /// `None` if it did nothing since the last look.
    pub(crate) observed: Option<Box<Observed>>,
}

/// What a tenant did.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    /// Frames of its partition, and those of them that are in use: a partition fills as its tenant misses.
    pub(crate) target: u64,
    pub(crate) used: u64,
    /// Its clients, and the time so far in which some of them waited, times the part of them that thought.
    pub(crate) thinking: (u32, Nanos),
    /// Time so far in which none of its clients waited, and none was away.
    pub(crate) quiet_ns: Nanos,
    /// Standalone-equivalent time with the cache that it has so far, and time in which its clients were not away.
    pub(crate) own_cache_ns: Nanos,
    pub(crate) there_ns: Nanos,
    /// References of its curve.
    pub(crate) references: u64,
    pub(crate) counts: Counts,
    pub(crate) cost: Cost,
    /// The writes of its miniatures of dirty data.
    pub(crate) written: [Written; POOLS],
}

/// The planner's answer to [`Evidence`].
#[derive(Clone, Debug)]
pub struct Targets {
    /// That of the evidence.
    pub(crate) generation: u64,
    /// Of all tenants. Empty if the memory is less than their smallest partitions.
    pub(crate) tenants: Vec<Target>,
    /// Of the tenants that did something.
    pub(crate) gains: Vec<Gained>,
}

/// The target of a tenant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) tenant: TenantId,
    /// Frames of its partition.
    pub(crate) frames: u32,
    /// `None` under a policy that does not insulate.
    pub(crate) promise: Option<Promise>,
}

/// What a tenant is promised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    /// Frames that are guaranteed to it while this decision stands.
    pub(crate) kept: u64,
    /// Frames of them that cannot be reclaimed from it in any round.
    pub(crate) hard: u64,
    /// The part of its slices that it must not lose, thousandths.
    pub(crate) keep_permille: u32,
    pub(crate) sizing: Sizing,
}

/// What the work of a tenant would have taken standalone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gained {
    pub(crate) tenant: TenantId,
    /// The fractions of its disk time for reads and for writes.
    pub(crate) reads: f64,
    pub(crate) writes: f64,
    /// Whether these are known well enough to be shown.
    pub(crate) is_certain: bool,
    /// Miss ratios with half its cache, with its cache, and with twice as much.
    pub(crate) miss_ratios: [Option<f64>; 3],
}
