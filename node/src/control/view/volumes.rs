//! Volumes, and the miss-ratio curves of their tenants.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Condition, CreateVolume, LatencyView, RatioView, SizingView, SliceView};
use crate::store::spec::{Allocation, Eviction, WriteCache};

/// One size of cache, and what goes to the disk with it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CurvePoint {
    /// Bytes of data in the cache.
    pub cache_bytes: u64,
    /// Part of block reads and writes, 0 to 1.
    pub miss_ratio: f64,
    /// Part of block reads; absent without reads.
    pub read_miss_ratio: Option<f64>,
    /// Part of block writes that come to blocks that are not dirty any more; absent without writes.
    pub write_miss_ratio: Option<f64>,
}

/// Miss ratio against cache size.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CurveView {
    /// A volume of the tenant.
    pub volume: String,
    /// Whose curve it is: that of all volumes of the tenant together.
    pub tenant: String,
    /// Under which policy.
    pub policy: Eviction,
    /// Under which policy its cache is now.
    pub running: Eviction,
    /// Bytes of data that its cache holds now, at most.
    pub partition_bytes: u64,
    /// Part of block reads and writes that goes to the disk with that, by the curve; absent before anything was asked
    /// for.
    pub miss_ratio: Option<f64>,
    /// Block reads that it is made from; those of long ago count for less than one.
    pub block_reads: f64,
    /// Block writes that it is made from.
    pub block_writes: f64,
    /// Part of all blocks that are watched.
    pub sampling_rate: f64,
    /// Blocks that are watched.
    pub samples: u32,
    /// By size, smallest first.
    pub points: Vec<CurvePoint>,
}

/// A share as asked for and as it is.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ShareView {
    /// As it was typed; absent if none was.
    pub requested: Option<String>,
    /// The part of the disk's time, 0 to 1: what was asked for, or an even part of what nobody asked for.
    pub effective: f64,
}

/// Cache as asked for and as it is.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CacheView {
    /// Bytes; absent if none were asked for.
    pub requested_bytes: Option<u64>,
    /// Bytes that its tenant may use now.
    pub effective_bytes: u64,
    /// Bytes that its tenant uses now.
    pub used_bytes: u64,
    /// How it chooses what goes when it needs room.
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
    /// Part of the blocks read that were in the cache, 0 to 1; absent without reads.
    pub hit_ratio: Option<f64>,
}

/// A volume.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VolumeView {
    /// Its name.
    pub name: String,
    /// On which disk.
    pub disk: String,
    /// Whose allotment it uses.
    pub tenant: String,
    /// Whether it can be used.
    pub condition: Condition,
    /// Why it cannot be used.
    pub reason: Option<String>,
    /// The request that makes one like it; absent if its specification cannot be read, or its disk is offline.
    pub spec: Option<CreateVolume>,
    /// Things to know.
    pub warnings: Vec<String>,
    /// Bytes.
    pub size_bytes: u64,
    /// Its data file, or its device.
    pub path: String,
    /// Whether its data is a raw device.
    pub raw: bool,
    /// Where clients open it.
    pub uris: Vec<String>,
    /// Which clients may open it: rules, `["any"]` is every client.
    pub allow: Vec<String>,
    /// Whether no client may change it.
    pub read_only: bool,
    /// What clients are told of it.
    pub description: String,
    /// The share of its tenant.
    pub share: ShareView,
    /// The cache of its tenant.
    pub cache: CacheView,
    /// The slice of its tenant; absent if the disk's policy gives none.
    pub slice: Option<SliceView>,
    /// What its tenant keeps of its standalone efficiency; absent without demand, or without slices.
    pub insulation: Option<RatioView>,
    /// How long the requests of its tenant take; absent while the disk does not answer.
    pub latency: Option<LatencyView>,
    /// What its tenant needs for R, and what was decided; absent if the disk's policy insulates nobody.
    pub sizing: Option<SizingView>,
    /// How writes are acknowledged.
    pub write_cache: WriteCache,
    /// How its file gets space.
    pub allocation: Allocation,
    /// Part of it that was written before, by clients or when idle, 0 to 1.
    pub initialised_ratio: f64,
    /// Bytes zero-written so far while it is being made or grown.
    pub prepared_bytes: u64,
    /// Open connections.
    pub connections: u32,
    /// Bytes acknowledged and not yet written.
    pub dirty_bytes: u64,
    /// Requests since the server started.
    pub traffic: Traffic,
}
