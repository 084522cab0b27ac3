//! Disks: their profiles, probes and faults.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{AddDisk, Condition, PolicyView, TenantView};
use crate::store::Journal;

/// Whether a fault happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FaultPhase {
    /// Not yet.
    Coming,
    /// Yes.
    Active,
    /// No more: its time or its count is used up.
    Over,
}

/// A fault of a disk's device.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FaultView {
    /// Its number, by which it is cleared.
    pub id: u64,
    /// As it was typed.
    pub fault: String,
    /// Whether it happens.
    pub phase: FaultPhase,
    /// How often it has happened since the disk was opened.
    pub happened: u64,
    /// Requests that hang because of it.
    pub stuck: usize,
    /// Whether it is there from each start on, until it is cleared.
    pub lasting: bool,
}

/// What a simulated disk pretends to be.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SimulatedView {
    /// Where its description is from, `sim:PRESET` or `sim:FILE`; a copy is kept with the disk.
    pub description: String,
    /// What it is, as the description says.
    pub model: String,
    /// Whether it has heads.
    pub rotational: bool,
    /// Bytes.
    pub size_bytes: u64,
    /// Bytes that no volume has.
    pub free_bytes: u64,
}

/// The write cache of a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriveCache {
    /// Volatile: what was written is on the medium after a flush, and may be destaged while another tenant has the
    /// disk.
    WriteBack,
    /// None that needs flushes.
    WriteThrough,
}

impl DriveCache {
    /// From `queue/write_cache` in sysfs.
    pub fn told(text: &str) -> DriveCache {
        if text == "write through" { DriveCache::WriteThrough } else { DriveCache::WriteBack }
    }
}

/// What the volumes of a disk are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DataKind {
    /// Files in its directory; or it has none yet.
    Files,
    /// Raw devices.
    Raw,
    /// Some of each.
    Both,
}

/// Whether a disk is being probed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProbeState {
    /// Not since the server started.
    None,
    /// Yes.
    Running,
    /// It was.
    Done,
    /// Somebody ended it before.
    Cancelled,
    /// It came to no end.
    Failed,
}

/// The latest probe of a disk since the server started.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProbeView {
    /// Whether it runs.
    pub state: ProbeState,
    /// What it does.
    pub doing: String,
    /// How much of it is done, 0 to 1.
    pub done_ratio: f64,
    /// What disturbed it, or why it came to no end.
    pub message: Option<String>,
}

/// What is known of a disk's device.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ProfileView {
    /// Whether tenants would get slices of its time (true) or share it by cost (false); absent if nobody knows.
    pub needs_slices: Option<bool>,
    /// Every value, with its source.
    pub values: Vec<ValueView>,
}

/// Where a value is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ValueSource {
    /// A probe that somebody asked for.
    Measured,
    /// A quick probe that the server began by itself.
    #[serde(rename = "automatic quick")]
    AutomaticQuick,
    /// An operator.
    Override,
}

/// A value of a profile.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ValueView {
    /// Its name, with the unit at the end.
    pub name: String,
    /// The number that counts; absent if the device has no such thing.
    pub value: Option<f64>,
    /// Where that is from.
    pub source: ValueSource,
    /// When it was measured or set (RFC 3339).
    pub at: String,
    /// How it was measured.
    pub method: Option<String>,
    /// Twice its standard error, as a part of it, if that is known.
    pub error_ratio: Option<f64>,
    /// With an override: what was measured, if anything was.
    pub measured: Option<f64>,
}

/// A disk.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskView {
    /// Its name on this server.
    pub name: String,
    /// Its directory.
    pub path: String,
    /// Which disk it is, wherever it is mounted.
    #[schema(value_type = String)]
    pub uuid: Uuid,
    /// Whether it can be used.
    pub condition: Condition,
    /// Why it cannot be used.
    pub reason: Option<String>,
    /// The request that makes one like it; absent while it is offline.
    pub spec: Option<AddDisk>,
    /// Things to know.
    pub warnings: Vec<String>,
    /// Whether its volumes are files or raw devices.
    pub data: DataKind,
    /// The devices that its volumes are on, each as major:minor and its name if known.
    pub device: Option<String>,
    /// The write cache of the drive itself, as the kernel was told; absent if the device does not say.
    pub drive_cache: Option<DriveCache>,
    /// The kernel's scheduler for it: `none` leaves the order to this server.
    pub scheduler: Option<String>,
    /// The kind of file system that the directory is on.
    pub file_system: Option<String>,
    /// What its volumes share in that file system.
    pub journal: Journal,
    /// Whether the page cache is bypassed.
    pub direct_io: bool,
    /// Bytes in which the device wants offsets and lengths.
    pub device_block_bytes: u32,
    /// Bytes free in its file system.
    pub free_bytes: u64,
    /// Who decides which request is next; absent while it is offline.
    pub policy: Option<PolicyView>,
    /// Its tenants, and what each of them gets.
    pub tenants: Vec<TenantView>,
    /// What is known of its device; without values before the first probe.
    pub profile: ProfileView,
    /// Part of its time that is promised, 0 to 1.
    pub committed_share: f64,
    /// Cache and bookkeeping.
    pub memory_bytes: u64,
    /// Bytes acknowledged and not yet written.
    pub dirty_bytes: u64,
    /// Part of the time since the server started with a request in the device, 0 to 1.
    pub busy_ratio: f64,
    /// Its volumes.
    pub volumes: Vec<String>,
    /// Data files without specification: left alone.
    pub unclaimed: Vec<String>,
    /// What it pretends to be; absent for a disk that is what it is.
    pub simulated: Option<SimulatedView>,
    /// Faults stacked on its device.
    pub faults: Vec<FaultView>,
}
