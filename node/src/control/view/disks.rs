//! Disks: their profiles, probes and faults.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{AddDisk, Condition, PolicyView, TenantView};
use crate::store::Journal;

/// The phase of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FaultPhase {
    /// Not active yet.
    Coming,
    /// Active.
    Active,
    /// Ended: its time or its count is used up.
    Over,
}

/// A fault of a disk's device.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FaultView {
    /// Its number, by which it is cleared.
    pub id: u64,
    /// The fault as it was typed.
    pub fault: String,
    /// Its phase.
    pub phase: FaultPhase,
    /// How often it was injected since the disk was opened.
    pub happened: u64,
    /// Requests that it has hung.
    pub stuck: usize,
    /// Whether it is active after each start, until it is cleared.
    pub lasting: bool,
}

/// The drive of a simulated disk.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SimulatedView {
    /// The source of its description, `sim:PRESET` or `sim:FILE`; a copy is stored with the disk.
    pub description: String,
    /// The model name in the description.
    pub model: String,
    /// Whether it has heads.
    pub rotational: bool,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
}

/// The write cache of a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriveCache {
    /// Volatile: written data is on the medium after a flush, and may be destaged during another tenant's slice.
    WriteBack,
    /// No cache that needs flushes.
    WriteThrough,
}

impl DriveCache {
    /// Parses `queue/write_cache` of sysfs.
    pub fn told(text: &str) -> DriveCache {
        if text == "write through" { DriveCache::WriteThrough } else { DriveCache::WriteBack }
    }
}

/// The kind of a disk's volumes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DataKind {
    /// Files in its directory; also if it has no volumes yet.
    Files,
    /// Raw devices.
    Raw,
    /// Files and raw devices.
    Both,
}

/// The state of a disk's latest probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProbeState {
    /// There was no probe since the server started.
    None,
    /// It is running.
    Running,
    /// It was completed.
    Done,
    /// It was cancelled.
    Cancelled,
    /// It failed.
    Failed,
}

/// The latest probe of a disk since the server started.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProbeView {
    /// Its state.
    pub state: ProbeState,
    /// The current step.
    pub doing: String,
    /// The completed fraction, 0 to 1.
    pub done_ratio: f64,
    /// A summary, or why it failed.
    pub message: Option<String>,
}

/// The profile of a disk's device.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProfileView {
    /// Whether tenants need slices of its time (true) or share it by cost (false); absent if unknown.
    pub needs_slices: Option<bool>,
    /// All values, with their sources.
    pub values: Vec<ValueView>,
}

/// The source of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ValueSource {
    /// A probe that a user requested.
    Measured,
    /// A quick probe that the server started by itself.
    #[serde(rename = "automatic quick")]
    AutomaticQuick,
    /// An override by an operator.
    Override,
}

/// A value of a profile.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ValueView {
    /// Its name, with the unit at the end.
    pub name: String,
    /// The value in effect; absent if the device does not have the property.
    pub value: Option<f64>,
    /// Its source.
    pub source: ValueSource,
    /// When it was measured or set (RFC 3339).
    pub at: String,
    /// How it was measured.
    pub method: Option<String>,
    /// Twice the relative standard error, if known.
    pub error_ratio: Option<f64>,
    /// With an override: the measured value, if there is one.
    pub measured: Option<f64>,
}

/// A disk.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskView {
    /// Its name on this server.
    pub name: String,
    /// Its directory.
    pub path: String,
    /// Its UUID, which stays the same wherever the disk is mounted.
    #[schema(value_type = String)]
    pub uuid: Uuid,
    /// Whether it can be used.
    pub condition: Condition,
    /// Why it cannot be used.
    pub reason: Option<String>,
    /// The request that would add an equal disk; absent while it is offline.
    pub spec: Option<AddDisk>,
    /// Warnings.
    pub warnings: Vec<String>,
    /// Whether its volumes are files or raw devices.
    pub data: DataKind,
    /// The devices of its volumes, each as major:minor and its name if known.
    pub device: Option<String>,
    /// The write cache of the drive, as the kernel knows it; absent if unknown.
    pub drive_cache: Option<DriveCache>,
    /// The kernel's I/O scheduler of the device; `none` leaves the order to this server.
    pub scheduler: Option<String>,
    /// The kind of file system that the directory is on.
    pub file_system: Option<String>,
    /// Whether its volumes share a journal of that file system.
    pub journal: Journal,
    /// Whether the page cache is bypassed.
    pub direct_io: bool,
    /// The unit of offsets and lengths of device I/O, bytes.
    pub device_block_bytes: u32,
    /// Free bytes of its file system.
    pub free_bytes: u64,
    /// The scheduling policy; absent while it is offline.
    pub policy: Option<PolicyView>,
    /// Its tenants.
    pub tenants: Vec<TenantView>,
    /// The profile of its device; without values before the first probe.
    pub profile: ProfileView,
    /// The sum of the promised shares, 0 to 1.
    pub committed_share: f64,
    /// Memory for cache and metadata, bytes.
    pub memory_bytes: u64,
    /// Dirty data, bytes: acknowledged and not yet written.
    pub dirty_bytes: u64,
    /// The fraction of the time since the server's start with a request in the device, 0 to 1.
    pub busy_ratio: f64,
    /// Its volumes.
    pub volumes: Vec<String>,
    /// Data files without a specification, which are not touched.
    pub unclaimed: Vec<String>,
    /// The simulated drive; absent if the disk is not simulated.
    pub simulated: Option<SimulatedView>,
    /// The faults that are injected into its device.
    pub faults: Vec<FaultView>,
}
