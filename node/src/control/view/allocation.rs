//! Allocation over several resources: evidence for its planner, and what it plans.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{CurvePoint, Setting};
use crate::quantity::{Name, ShareText, Size};
use crate::store::Tiers;

/// Evidence of all disks. Counters are totals since the volumes were opened; rates follow from two answers.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EvidenceView {
    /// A random number that identifies this process. If it changes, all counters have begun anew. (Servers in
    /// containers may have the same process id.)
    pub process: u64,
    /// The disks that are online and answer.
    pub disks: Vec<DiskEvidence>,
}

/// A disk, or the memory and the thread of gateway volumes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskEvidence {
    /// Its name.
    pub disk: String,
    /// The time of this answer on the disk's clock, seconds.
    pub seconds: f64,
    /// Memory for the tenants' caches, bytes, bookkeeping included, as sizes are requested.
    pub memory_bytes: u64,
    /// Memory of a cached block of 4096 bytes.
    pub block_memory_bytes: u64,
    /// Memory of the smallest cache.
    pub least_bytes: u64,
    /// Memory that may be planned for tenants whose cache is handed to the planner and for those that requested a size,
    /// beyond what they requested. Other tenants keep an even part.
    pub plannable_bytes: u64,
    /// The same of the disk's time, 0 to 1.
    pub plannable_share: f64,
    /// Why shares cannot be planned; absent if they can.
    pub fixed_shares: Option<String>,
    /// The scheduling policy.
    pub policy: String,
    /// The round of slices while all tenants are busy, seconds; absent without slices.
    pub round_seconds: Option<f64>,
    /// The longest round that its policy allows, seconds; absent without slices.
    #[serde(default)]
    pub round_seconds_max: Option<f64>,
    /// The cost of a context switch of the disk, seconds; absent without slices.
    pub switch_seconds: Option<f64>,
    /// Disk time of random reads of 4096 bytes by how many are in the device, as the profile says; empty without one.
    #[serde(default)]
    pub reads_by_depth: Vec<DepthEvidence>,
    /// Its tenants.
    pub tenants: Vec<TenantEvidence>,
}

/// Disk time of a read with so many in the device.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct DepthEvidence {
    /// Reads in the device.
    pub depth: u32,
    /// Elapsed time / reads, seconds.
    pub seconds: f64,
}

/// What is known of a tenant.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TenantEvidence {
    /// Its name.
    pub tenant: String,
    /// Its volumes that are served.
    pub volumes: Vec<VolumeEvidence>,
    /// Whether its data is on other servers: it has no share.
    pub remote: bool,
    /// Its share: what it requested.
    pub share: Resource<f64>,
    /// Its cache, bytes of memory.
    pub cache: Resource<u64>,
    /// The least share that its minimum bandwidth leaves to be planned, 0 to 1; 0 without a guarantee.
    pub share_least: f64,
    /// The time at the end of its slices in which no request was issued, because it would not have completed, seconds,
    /// recent mean; absent without slices.
    #[serde(default)]
    pub closing_seconds: Option<f64>,
    /// What it loses of a slice, seconds, recent mean; absent without slices.
    pub loss_seconds: Option<f64>,
    /// Counters.
    pub load: LoadEvidence,
    /// Its miss-ratio curve; absent without requests.
    pub curve: Option<CurveEvidence>,
}

/// A resource of a tenant.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct Resource<T> {
    /// What is requested; absent if nothing is.
    pub requested: Option<T>,
    /// Whether it is handed to the planner.
    pub auto: bool,
    /// What was planned; absent if nothing was.
    pub planned: Option<T>,
    /// What it has now.
    pub effective: T,
}

/// A volume, and where it is.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VolumeEvidence {
    /// Its name.
    pub volume: String,
    /// By which its gateways know it.
    #[schema(value_type = String)]
    pub uuid: Uuid,
    /// The volumes of other servers that have its data: one, or several if it is striped. A stranger's export has no
    /// UUID.
    #[schema(value_type = Vec<Option<String>>)]
    pub from: Vec<Option<Uuid>>,
    /// Whether several clients may have the export.
    pub shared: bool,
    /// The gateway that uses it now, by the name of its session; absent without one.
    #[serde(default)]
    pub gateway: Option<String>,
    /// How its cache and that of the server which has its data go together at present.
    pub tiers: Tiers,
}

/// Counters of a tenant.
#[derive(Clone, Copy, Default, Debug, Serialize, Deserialize, ToSchema)]
pub struct LoadEvidence {
    /// Reads answered.
    pub reads: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// The sum of their latencies.
    pub read_seconds: f64,
    /// Reads answered from the cache.
    pub hits: u64,
    /// The sum of their latencies.
    pub hit_seconds: f64,
    /// Bytes of reads that were not in the cache.
    #[serde(default)]
    pub missed_bytes: u64,
    /// Writes answered.
    pub writes: u64,
    /// Their bytes.
    pub write_bytes: u64,
    /// The sum of their latencies.
    pub write_seconds: f64,
    /// Time with a request of a client outstanding.
    pub busy_seconds: f64,
    /// The most requests of clients that were outstanding at once, recently.
    pub outstanding_max: u32,
    /// Device reads that clients waited for.
    pub disk_reads: u64,
    /// For how long they waited while the tenant owned the disk, or could have owned it.
    pub disk_queue_seconds: f64,
    /// For how long they waited for the tenant's slice.
    pub disk_slice_seconds: f64,
    /// For how long they were in the device.
    pub disk_service_seconds: f64,
    /// Their disk time: of each, the time since the previous completion, or since its submission if that was later.
    #[serde(default)]
    pub disk_read_seconds: f64,
    /// Those of them that were in the device together with writes of the tenant.
    #[serde(default)]
    pub beside_writes_reads: u64,
    /// For how long these were in the device.
    #[serde(default)]
    pub beside_writes_service_seconds: f64,
    /// The disk time of these.
    #[serde(default)]
    pub beside_writes_read_seconds: f64,
    /// The disk time of write-back and of flushes.
    #[serde(default)]
    pub disk_write_seconds: f64,
    /// Rounds of slices of its disk.
    #[serde(default)]
    pub rounds: u64,
    /// The sum of their lengths as planned.
    #[serde(default)]
    pub rounds_seconds: f64,
    /// All device requests that completed.
    pub disk_requests: u64,
    /// The disk time that the tenant had.
    pub disk_owned_seconds: f64,
}

/// A curve, as of the latest requests.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CurveEvidence {
    /// Block reads that it is made from, weighted by age.
    pub block_reads: f64,
    /// Block writes that it is made from, weighted by age.
    pub block_writes: f64,
    /// Points, by bytes of data.
    pub points: Vec<CurvePoint>,
}

/// What is planned for tenants of one server, all of it or nothing.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetAllocation {
    /// The tenants that change; others keep what they have.
    pub tenants: Vec<PlannedTenant>,
    /// Only check whether it would be accepted.
    #[serde(default)]
    pub dry_run: bool,
}

/// What is planned for a tenant on a disk.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlannedTenant {
    /// The tenant.
    #[schema(value_type = String)]
    pub tenant: Name,
    /// The disk.
    #[schema(value_type = String)]
    pub disk: Name,
    /// A share, at least the requested one; "none" for no plan. What is omitted stays unchanged.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub share: Option<Setting<ShareText>>,
    /// Bytes of cache, at least the requested ones; "none" for no plan. What is omitted stays unchanged.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub cache: Option<Setting<Size>>,
}
