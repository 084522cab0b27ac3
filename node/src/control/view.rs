//! What is asked for and what is shown, as it goes over the API. Requested and effective values stand side by side.

mod sizing;
mod tenants;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

pub use sizing::*;
pub use tenants::*;

use crate::access::Access;
use crate::fault::FaultText;
use crate::quantity::{Description, Insulation, Name, ShareText, Size, Time};
use crate::store::spec::{Allocation, Eviction, WriteCache};
use crate::store::{Journal, PolicyName, Scheduling};

/// A volume to make.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Its name.
    #[schema(value_type = String)]
    pub name: Name,
    /// Bytes, a multiple of 512; a number or a text such as "10GiB". All of it if left out with a device.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub size: Option<Size>,
    /// A block device on the server that is its data, by an absolute path; a file in the disk's directory if left out.
    #[serde(default)]
    pub device: Option<String>,
    /// Even if the device holds something, or another disk is on it.
    #[serde(default)]
    pub force: bool,
    /// On which disk; may be left out if there is only one, or one called `default`.
    #[schema(value_type = Option<String>)]
    pub disk: Option<Name>,
    /// The part of the disk's time promised to its tenant: "1/4", "0.25" or "25%".
    #[schema(value_type = Option<String>)]
    pub share: Option<ShareText>,
    /// Whose allotment it uses; its own if left out.
    #[schema(value_type = Option<String>)]
    pub tenant: Option<Name>,
    /// Cache of its tenant; what it needs for R, found out in a trial, if left out.
    #[schema(value_type = Option<String>)]
    pub cache: Option<Size>,
    /// A volume of the same disk whose load it will have: what it needs for R is decided at once.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub like: Option<Name>,
    /// How the cache of its tenant chooses what goes when it needs room; as it is, or `lru`, if left out.
    pub eviction: Option<Eviction>,
    /// How its file gets space.
    #[serde(default)]
    pub allocation: Allocation,
    /// Which clients may open it: rules such as "any", "nobody", "user:1000", "cert:CN=db1,O=Example",
    /// "name:db1.example", each with ",ro" behind it for reading only. Any client if left out.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub allow: Access,
    /// No client may change it.
    #[serde(default)]
    pub read_only: bool,
    /// What clients are told of it: at most 255 bytes of text.
    #[serde(default)]
    #[schema(value_type = String)]
    pub description: Description,
}

/// A value, or `"none"` to take it back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Setting<T> {
    /// No value.
    None,
    /// A value.
    To(T),
}

impl<T> Setting<T> {
    /// As an option.
    pub fn value(self) -> Option<T> {
        match self {
            Setting::None => None,
            Setting::To(value) => Some(value),
        }
    }
}

impl<T: std::str::FromStr> std::str::FromStr for Setting<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == "none" { Ok(Setting::None) } else { text.parse().map(Setting::To) }
    }
}

impl<T: Serialize> Serialize for Setting<T> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Setting::None => to.serialize_str("none"),
            Setting::To(value) => value.serialize(to),
        }
    }
}

/// A number is what its digits are, as where a plain value is taken.
impl<'de, T: std::str::FromStr<Err = String>> Deserialize<'de> for Setting<T> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a text or a whole number")]
        enum Either {
            Number(u64),
            Text(String),
        }
        let text = match Either::deserialize(from)? {
            Either::Number(number) => number.to_string(),
            Either::Text(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A value, or `"default"` to take it back: where `none` is a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrDefault<T> {
    /// What follows from the disk.
    Default,
    /// A value.
    To(T),
}

impl<T> OrDefault<T> {
    /// As an option.
    pub fn value(self) -> Option<T> {
        match self {
            OrDefault::Default => None,
            OrDefault::To(value) => Some(value),
        }
    }
}

impl<T: std::str::FromStr> std::str::FromStr for OrDefault<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == "default" { Ok(OrDefault::Default) } else { text.parse().map(OrDefault::To) }
    }
}

impl<T: std::fmt::Display> std::fmt::Display for OrDefault<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OrDefault::Default => f.write_str("default"),
            OrDefault::To(value) => value.fmt(f),
        }
    }
}

impl<T: std::fmt::Display> Serialize for OrDefault<T> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de, T: std::str::FromStr<Err = String>> Deserialize<'de> for OrDefault<T> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What to change of a volume; what is left out stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetVolume {
    /// The share of its tenant, or "none".
    #[schema(value_type = Option<String>)]
    pub share: Option<Setting<ShareText>>,
    /// The cache of its tenant as a text such as "64MiB", or "none".
    #[schema(value_type = Option<String>)]
    pub cache: Option<Setting<Size>>,
    /// How the cache of its tenant chooses what goes when it needs room.
    pub eviction: Option<Eviction>,
    /// How writes are acknowledged.
    pub write_cache: Option<WriteCache>,
    /// Needed for `unsafe`: acknowledged data may be lost.
    pub accept_data_loss: bool,
    /// Which clients may open it, in place of the whole list; `["any"]` is every client. Clients that may not any
    /// more are disconnected.
    #[schema(value_type = Option<Vec<String>>)]
    pub allow: Option<Access>,
    /// Whether no client may change it. Clients that opened it for writing are disconnected, and what they wrote is
    /// flushed, before this is answered.
    pub read_only: Option<bool>,
    /// What clients are told of it; "" for nothing.
    #[schema(value_type = Option<String>)]
    pub description: Option<Description>,
}

impl SetVolume {
    /// Whether everything stays as it is.
    pub fn changes_nothing(&self) -> bool {
        let SetVolume { share, cache, eviction, write_cache, accept_data_loss: _, allow, read_only, description } =
            self;
        let of_tenant = share.is_none() && cache.is_none() && eviction.is_none();
        of_tenant && write_cache.is_none() && allow.is_none() && read_only.is_none() && description.is_none()
    }
}

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
    /// Part of block reads and writes that goes to the disk with that, by the curve; absent before anything was asked for.
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

/// A new size.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowVolume {
    /// Bytes, a multiple of 512, not less than now; a number or a text such as "10GiB". If left out, all that a raw volume's
    /// device has by now.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub size: Option<Size>,
}

/// A disk to add: an empty directory becomes one, the directory of a disk is taken over with its volumes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddDisk {
    /// Its name on this server.
    #[schema(value_type = String)]
    pub name: Name,
    /// Its directory; or `sim:PRESET` or `sim:FILE` (an absolute path on the server) for a simulated disk.
    pub path: String,
    /// Even if another disk is on the same device.
    #[serde(default)]
    pub force: bool,
    /// Bytes of a simulated disk, a multiple of 4096; all of its drive if left out.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub size: Option<Size>,
    /// Where a simulated disk keeps its data; `disks/NAME` in the server's directory if left out.
    #[serde(default)]
    pub directory: Option<String>,
    /// Faults that it has from each start on, such as "error read 1%"; for a new disk.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub faults: Vec<FaultText>,
    /// Who may use it next; follows from its profile, or from its description, if left out.
    #[serde(default)]
    pub policy: Option<PolicyName>,
    /// R, the part of its standalone efficiency that a tenant keeps: "0.9" or "90%"; 0.9 if left out.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub insulation: Option<Insulation>,
    /// The longest round, such as "2s", which is what it is if left out.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub max_round: Option<Time>,
    /// Whether it is not probed by itself when it is idle.
    #[serde(default)]
    pub no_probe: bool,
}

impl AddDisk {
    /// As usual.
    pub fn new(name: Name, path: String) -> AddDisk {
        let (force, size, directory, faults) = (false, None, None, Vec::new());
        AddDisk {
            name,
            path,
            force,
            size,
            directory,
            faults,
            policy: None,
            insulation: None,
            max_round: None,
            no_probe: false,
        }
    }

    /// What was asked for of its time.
    pub fn scheduling(&self) -> Scheduling {
        Scheduling {
            policy: self.policy,
            insulation: self.insulation,
            max_round: self.max_round,
            no_probe: self.no_probe,
        }
    }
}

/// A fault to stack on a disk's device.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddFault {
    /// Such as "error read 1% range=1GiB..2GiB".
    pub fault: String,
}

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

/// Whether something can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Condition {
    /// Yes.
    Online,
    /// No; see the reason.
    Offline,
    /// Not yet: it is being made.
    Creating,
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

/// The write cache of a drive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriveCache {
    /// Volatile: what was written is on the medium after a flush, and may be destaged while another tenant has the disk.
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

/// What to change of a disk.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetDisk {
    /// Values of its profile by name: a number in the unit of the name, "none", or "measured" to take back what was set.
    pub profile: BTreeMap<String, String>,
    /// Who may use it next, or "default": what follows from its profile or its description.
    #[schema(value_type = Option<String>)]
    pub policy: Option<OrDefault<PolicyName>>,
    /// R, as "0.9" or "90%", or "default".
    #[schema(value_type = Option<String>)]
    pub insulation: Option<OrDefault<Insulation>>,
    /// The longest round, such as "2s", or "default".
    #[schema(value_type = Option<String>)]
    pub max_round: Option<OrDefault<Time>>,
}

/// How to probe.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StartProbe {
    /// How long at most; less is less exact. Two minutes if left out.
    pub seconds: Option<u64>,
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

/// The server.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Of the program.
    pub version: String,
    /// Its process.
    pub process: u32,
    /// Its directory.
    pub data: String,
    /// Seconds since its start.
    pub uptime_seconds: u64,
    /// Whether it is draining.
    pub shutting_down: bool,
    /// Memory for caches and their bookkeeping.
    pub memory_bytes: u64,
    /// Where NBD clients connect.
    pub nbd: Vec<String>,
    /// Where the API is.
    pub http: Vec<String>,
    /// Open connections.
    pub connections: u32,
    /// Things to know, of all disks and volumes.
    pub warnings: Vec<String>,
    /// What was decided for tenants since the start, oldest first; the latest 64.
    pub events: Vec<EventView>,
    /// Its disks.
    pub disks: Vec<DiskView>,
    /// Its volumes.
    pub volumes: Vec<VolumeView>,
}

/// A sign of life.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Seconds since its start.
    pub uptime_seconds: u64,
    /// Disks that are open.
    pub disks_online: usize,
}

/// Done, and what should be known about it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Done {
    /// For people.
    pub message: String,
    /// The volume, as it is now.
    pub volume: Option<VolumeView>,
    /// The disk, as it is now.
    pub disk: Option<DiskView>,
}

/// Not done; nothing changed, unless it says so.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What is wrong.
    pub error: String,
    /// What to do about it.
    pub hint: Option<String>,
}
