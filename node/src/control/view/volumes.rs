//! Volumes, and the miss-ratio curves of their tenants.

use engine::control::DemotionStats;
use engine::nbd::Claim;
use engine::units::BLOCK;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{CeilingsView, Condition, CreateVolume, GuaranteeView, LatencyView, RatioView, SizingView, SliceView};
use crate::sessions::Shown;
use crate::store::Tiers;
use crate::store::spec::{Allocation, Eviction, Part, WriteCache};

/// The miss ratio at one cache size.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CurvePoint {
    /// The size of the cache, bytes of data.
    pub cache_bytes: u64,
    /// The fraction of block reads and writes that miss, 0 to 1.
    pub miss_ratio: f64,
    /// The fraction of block reads that miss; absent without reads.
    pub read_miss_ratio: Option<f64>,
    /// The fraction of block writes to blocks that are not dirty in the cache; absent without writes.
    pub write_miss_ratio: Option<f64>,
}

/// A miss-ratio curve.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CurveView {
    /// A volume of the tenant.
    pub volume: String,
    /// The tenant; the curve is that of all its volumes together.
    pub tenant: String,
    /// The eviction policy that the curve is for.
    pub policy: Eviction,
    /// The eviction policy in effect.
    pub running: Eviction,
    /// The present size of the partition, bytes of data.
    pub partition_bytes: u64,
    /// The miss ratio at that size, by the curve; absent before the first request.
    pub miss_ratio: Option<f64>,
    /// Block reads that the curve is made from, weighted by age.
    pub block_reads: f64,
    /// Block writes that the curve is made from, weighted by age.
    pub block_writes: f64,
    /// The fraction of all blocks that is sampled.
    pub sampling_rate: f64,
    /// The number of sampled blocks.
    pub samples: u32,
    /// The points, smallest size first.
    pub points: Vec<CurvePoint>,
}

/// A share, requested and effective.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ShareView {
    /// As it was typed; "auto" if the planner of allocations finds it; absent if none is requested.
    pub requested: Option<String>,
    /// What that planner has found, 0 to 1; absent if nothing. It yields to the requested shares of other tenants, and
    /// to an even part for tenants without one.
    #[serde(default)]
    pub planned: Option<f64>,
    /// The fraction of the disk's time, 0 to 1: the requested share, or an even part of what is not promised; absent
    /// for a tenant whose volumes are on other servers.
    pub effective: Option<f64>,
}

/// A cache size, requested and effective.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct CacheView {
    /// Bytes; absent if none is requested.
    pub requested_bytes: Option<u64>,
    /// Whether the planner of allocations finds it.
    #[serde(default)]
    pub auto: bool,
    /// What that planner has found, bytes; absent if nothing. It yields to what other tenants request or need for R,
    /// and to an even part for tenants without a size.
    #[serde(default)]
    pub planned_bytes: Option<u64>,
    /// Bytes that the tenant may use now.
    pub effective_bytes: u64,
    /// Bytes that the tenant uses now.
    pub used_bytes: u64,
    /// The eviction policy.
    pub eviction: Eviction,
}

/// Requests since the server started.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Traffic {
    /// Reads answered.
    pub reads: u64,
    /// Bytes read by clients.
    pub read_bytes: u64,
    /// Writes answered.
    pub writes: u64,
    /// Bytes written by clients.
    pub write_bytes: u64,
    /// Flushes answered.
    pub flushes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// The fraction of the blocks read that was in the cache, 0 to 1; absent without reads.
    pub hit_ratio: Option<f64>,
}

/// A session that a client has claimed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// The client.
    pub client: String,
    /// The epoch of the session.
    pub epoch: u64,
    /// Whether other clients may have shared sessions at the same time.
    pub shared: bool,
    /// Its connections, those included that wait for the end of an earlier session.
    pub connections: u32,
}

impl From<Shown> for SessionView {
    fn from(shown: Shown) -> SessionView {
        let Claim { client, epoch, shared, .. } = shown.claim;
        SessionView { client, epoch, shared, connections: shown.connections as u32 }
    }
}

/// Whether the export of a volume is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum UpstreamState {
    /// A session is open: requests are sent.
    Online,
    /// There is no session; one is being opened. Requests wait.
    Connecting,
    /// The export cannot be used: it is not what it was, or the volume is not served. Requests fail.
    Offline,
}

/// The export on another server that has a volume's data.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct UpstreamView {
    /// Its address.
    pub from: String,
    /// Whether it is used.
    pub state: UpstreamState,
    /// The last failure; absent since a session is open.
    pub failure: Option<String>,
    /// Open connections.
    pub connections: u32,
    /// Mean time from a request to its answer, microseconds; 0 before the first answer.
    pub round_trip_us: u64,
    /// Requests that were sent and are not answered.
    pub outstanding: u32,
    /// Requests that wait to be sent.
    pub waiting: u32,
    /// Bytes of acknowledged writes that its server has not flushed; they are kept in the cache.
    pub unflushed_bytes: u64,
    /// Sessions that were lost since the volume was opened.
    pub reconnects: u64,
    /// The number of the latest session, which grows.
    pub epoch: u64,
    /// How long a request waits for a server that is away, seconds.
    pub deadline_s: f64,
    /// Whether other servers may use the export at the same time.
    pub shared: bool,
    /// How the caches here and there go together, as requested.
    #[serde(default)]
    pub tiers: Tiers,
    /// The same in effect: `lru` while no session is open that demotes.
    #[serde(default)]
    pub effective_tiers: Tiers,
    /// Evicted blocks that were sent to the server since the volume was opened, bytes.
    #[serde(default)]
    pub demoted_bytes: u64,
}

/// What the cache of a volume has exchanged with that of a gateway which has it, since it was opened.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DemotionView {
    /// Whether the gateway's session demotes: what it was sent is dropped here, and what it evicts is taken.
    pub active: bool,
    /// Evicted blocks of the gateway that were taken, bytes.
    pub taken_bytes: u64,
    /// Those that were not taken, bytes: they were written since, or there was no room.
    pub dropped_bytes: u64,
    /// Taken blocks that the gateway has read again, bytes.
    pub used_bytes: u64,
}

impl DemotionView {
    /// `None` if nothing was ever demoted.
    pub fn of(stats: &DemotionStats) -> Option<DemotionView> {
        let view = DemotionView {
            active: stats.is_lower,
            taken_bytes: stats.taken_blocks * BLOCK,
            dropped_bytes: stats.dropped.total() * BLOCK,
            used_bytes: stats.used_blocks * BLOCK,
        };
        (stats.is_lower || stats.taken_blocks + stats.dropped.total() > 0).then_some(view)
    }
}

/// How a volume is striped over several exports.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct StripesView {
    /// Bytes of a unit.
    pub unit_bytes: u64,
    /// The exports, in the order of their units.
    pub members: Vec<UpstreamView>,
}

/// A volume.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VolumeView {
    /// Its name.
    pub name: String,
    /// Its disk.
    pub disk: String,
    /// The tenant whose allotment it uses.
    pub tenant: String,
    /// Whether it can be used.
    pub condition: Condition,
    /// Why it cannot be used.
    pub reason: Option<String>,
    /// The request that would create an equal volume; absent if its specification cannot be read, if its disk is
    /// offline, and for a store.
    pub spec: Option<CreateVolume>,
    /// Warnings.
    pub warnings: Vec<String>,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Its data file, its device, or the addresses of its exports.
    pub path: String,
    /// Whether its data is a raw device.
    pub raw: bool,
    /// The volume of a cluster that it is a part of; absent if it is none.
    #[serde(default)]
    pub cluster: Option<Part>,
    /// The export on another server that has its data; absent if it is on the disk, or striped.
    pub upstream: Option<UpstreamView>,
    /// The exports on other servers over which it is striped; absent if it is not.
    pub stripes: Option<StripesView>,
    /// The URIs under which clients open it.
    pub uris: Vec<String>,
    /// The clients that may open it, as rules; `["any"]` is every client.
    pub allow: Vec<String>,
    /// Whether all clients are refused writes.
    pub read_only: bool,
    /// The description that clients can read.
    pub description: String,
    /// The share of its tenant.
    pub share: ShareView,
    /// The guarantee of its tenant; absent without a minimum bandwidth.
    pub guarantee: Option<GuaranteeView>,
    /// The cache of its tenant.
    pub cache: CacheView,
    /// What the clients of its tenant get at most; absent without a ceiling.
    pub ceilings: Option<CeilingsView>,
    /// The slice of its tenant; absent if the disk's policy has no slices.
    pub slice: Option<SliceView>,
    /// The insulation of its tenant against a disk of its own with the whole cache, which is estimated; absent without
    /// demand, under a policy that does not insulate, and while what the whole cache would gain is not known.
    pub insulation: Option<RatioView>,
    /// The same with the cache that it has, which is measured; at least R is promised where the longest round is long
    /// enough. Absent without demand, or under a policy that does not insulate.
    pub own_cache_insulation: Option<RatioView>,
    /// Latency of its tenant's requests; absent while the disk does not answer.
    pub latency: Option<LatencyView>,
    /// What its tenant needs for R, and the decision on it; absent if the disk's policy does not insulate.
    pub sizing: Option<SizingView>,
    /// How writes are acknowledged.
    pub write_cache: WriteCache,
    /// How its file is allocated.
    pub allocation: Allocation,
    /// The fraction that was ever written, by clients or by zero-writing, 0 to 1.
    pub initialised_ratio: f64,
    /// Bytes zero-written so far, while it is created or grown.
    pub prepared_bytes: u64,
    /// Open connections.
    pub connections: u32,
    /// The session that a client has claimed; absent without one. Of several shared ones the latest.
    pub session: Option<SessionView>,
    /// What its cache has exchanged with that of a gateway; absent if no gateway demotes, or has.
    #[serde(default)]
    pub demotion: Option<DemotionView>,
    /// Dirty data, bytes: acknowledged and not yet written.
    pub dirty_bytes: u64,
    /// Bytes whose newest content is in off-load stores and not on the disk.
    pub offloaded_bytes: u64,
    /// The stores to which its writes may be off-loaded.
    #[serde(default)]
    pub offload_stores: Vec<String>,
    /// Those of them that cannot be used at present.
    #[serde(default)]
    pub failing_stores: Vec<String>,
    /// Requests since the server started.
    pub traffic: Traffic,
}
