//! The bodies of requests.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::OneOf;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::access::Access;
use crate::ceiling::{Burst, MaxBandwidth, MaxIops};
use crate::fault::FaultText;
use crate::quantity::{Description, Insulation, Name, OrAuto, Rate, ShareText, Size, Time, text_or_number};
use crate::store::Tiers;
use crate::store::spec::{Allocation, Eviction, WriteCache};
use crate::store::{Exports, PolicyName, Scheduling, TenantSpec};

impl PartialSchema for Exports {
    fn schema() -> RefOr<Schema> {
        OneOf::builder().item(String::schema()).item(<Vec<String>>::schema()).into()
    }
}

impl ToSchema for Exports {}

/// A volume to create.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// Its name.
    #[schema(value_type = String)]
    pub name: Name,
    /// Bytes, a multiple of 512; a number or a string such as "10GiB". With a device, the default is the whole device.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub size: Option<Size>,
    /// A block device on the server that holds its data, as an absolute path. The default is a file in the disk's
    /// directory.
    #[serde(default)]
    pub device: Option<String>,
    /// Use the device even if it contains data, or if another disk is on it.
    #[serde(default)]
    pub force: bool,
    /// The export on another server that holds its data: "nbd://HOST:PORT/NAME" or "nbd+unix:///NAME?socket=PATH", with
    /// TLS "nbds". The size is that of the export. The disk gives it a thread and memory only. A list of 2 to 64 of
    /// them stripes the volume over them, in this order (RAID-0): its size is that of the smallest, in whole units,
    /// times their number.
    #[serde(default)]
    pub from: Option<Exports>,
    /// With several exports in `from`, or in a cluster: the unit of the stripes, which follows in one piece on an
    /// export or a server, a power of two from "4KiB" to "16MiB". The default is 64 KiB. It cannot be changed.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub stripe: Option<Size>,
    /// With `from`: other servers may use the export at the same time. Then writes are acknowledged when they are
    /// durable.
    #[serde(default)]
    pub shared: bool,
    /// With `from`: how long a request waits for a server that is away, "1s" to "60m". The default is 60 s.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub upstream_deadline: Option<Time>,
    /// With `from`: connections to a server that permits several, 1 to 16. The default is 4.
    #[serde(default)]
    pub upstream_connections: Option<u32>,
    /// With one export in `from`: how the cache here and that of the server go together. With `demote`, the server
    /// drops what it has sent and takes what is evicted here, if it is one of this kind. The default is `lru`.
    #[serde(default)]
    pub tiers: Option<Tiers>,
    /// With `from` and TLS: a directory of the server with ca-cert.pem and, if the server behind requires them,
    /// client-cert.pem and client-key.pem, as an absolute path. The default is `tls-certificates` of the URI.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub tls_certificates: Option<PathBuf>,
    /// With `from` and TLS: a name that the certificate of the server behind must have. The default is `tls-hostname`
    /// of the URI, or its host.
    #[serde(default)]
    pub tls_hostname: Option<String>,
    /// With `from`: required for a server that cannot flush, since acknowledged data may then be lost.
    #[serde(default)]
    pub accept_data_loss: bool,
    /// The disk; may be omitted if there is only one, or one called `default`.
    #[schema(value_type = Option<String>)]
    pub disk: Option<Name>,
    /// The named policy of its tenant, which determines its share, minimum bandwidth and ceilings.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub policy: Option<Name>,
    /// The fraction of the disk's time promised to its tenant: "1/4", "0.25" or "25%"; or "auto": the planner of
    /// allocations finds it.
    #[schema(value_type = Option<String>)]
    pub share: Option<OrAuto<ShareText>>,
    /// The minimum bandwidth of its tenant, bytes per second; a number or a string such as "30MiB/s". It holds as long
    /// as it fits into the share.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub min_bandwidth: Option<Rate>,
    /// Whether the shares of the disk may sum to more than 1 with this one.
    #[serde(default)]
    pub overcommit: bool,
    /// The tenant whose allotment it uses. By default the volume is its own tenant.
    #[schema(value_type = Option<String>)]
    pub tenant: Option<Name>,
    /// The cache of its tenant; or "auto": the planner of allocations finds it. The default is what the tenant needs
    /// for R, found in a trial.
    #[schema(value_type = Option<String>)]
    pub cache: Option<OrAuto<Size>>,
    /// A volume of the same disk whose load it will have: the cache that it needs for R is decided at once from that
    /// load.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub like: Option<Name>,
    /// The eviction policy of its tenant's cache. The default is the present one, or `lru` for a new tenant.
    pub eviction: Option<Eviction>,
    /// The most bandwidth that the clients of its tenant get: "50MiB/s", or "read=50MiB/s,write=10MiB/s".
    #[schema(value_type = Option<String>)]
    pub max_bandwidth: Option<MaxBandwidth>,
    /// The most I/Os a second of up to 256 KiB that they get: "500", or "read=500,write=100".
    #[schema(value_type = Option<String>)]
    pub max_iops: Option<MaxIops>,
    /// For how long an unused ceiling is saved, such as "10s". The default is 2 s.
    #[schema(value_type = Option<String>)]
    pub burst: Option<Burst>,
    /// How its file is allocated.
    #[serde(default)]
    pub allocation: Allocation,
    /// The clients that may open it: rules such as "any", "nobody", "user:1000", "cert:CN=db1,O=Example",
    /// "name:db1.example", each with the suffix ",ro" for reading only. The default is any client.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub allow: Access,
    /// Whether all clients are refused writes.
    #[serde(default)]
    pub read_only: bool,
    /// A description that clients can read: at most 255 bytes of text.
    #[serde(default)]
    #[schema(value_type = String)]
    pub description: Description,
    /// In a cluster: how many servers it is striped over, each with the share. The default is the number of `on`, or 1.
    #[serde(default)]
    pub servers: Option<u32>,
    /// In a cluster: its servers, in the order of the stripes. The default is chosen by the cluster.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub on: Vec<Name>,
    /// The epoch that a cluster has issued for it, if this is a gateway and its sessions have leases.
    #[serde(skip)]
    #[schema(ignore)]
    pub lease_epoch: Option<u64>,
    /// In a cluster: the least R of the cluster that is accepted, 0 to 1. The default is 0.9.
    #[serde(default)]
    pub least: Option<f64>,
}

/// A value, or `"none"` to remove it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Setting<T> {
    /// No value.
    None,
    /// A value.
    To(T),
}

impl<T> Setting<T> {
    /// Sets the value, or removes it.
    pub fn from_value(value: Option<T>) -> Setting<T> {
        value.map_or(Setting::None, Setting::To)
    }

    /// Converts it to an option.
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

/// Also accepts a number, where a plain value would accept one.
impl<'de, T: std::str::FromStr<Err: std::fmt::Display>> Deserialize<'de> for Setting<T> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        text_or_number(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A value, or `"default"` to remove it, for settings that have `none` as a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OrDefault<T> {
    /// The value that follows from the disk.
    Default,
    /// A value.
    To(T),
}

impl<T> OrDefault<T> {
    /// Converts it to an option.
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

impl<'de, T: std::str::FromStr<Err: std::fmt::Display>> Deserialize<'de> for OrDefault<T> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The changes of a volume; what is omitted stays unchanged.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetVolume {
    /// The named policy of its tenant, or "none": it keeps the present values as its own.
    #[schema(value_type = Option<String>)]
    pub policy: Option<Setting<Name>>,
    /// The share of its tenant, "auto" or "none".
    #[schema(value_type = Option<String>)]
    pub share: Option<Setting<OrAuto<ShareText>>>,
    /// The minimum bandwidth of its tenant, bytes per second; a number or a string such as "30MiB/s"; or "none".
    #[schema(value_type = Option<String>)]
    pub min_bandwidth: Option<Setting<Rate>>,
    /// Whether the shares of the disk may sum to more than 1 with this one.
    pub overcommit: bool,
    /// The cache of its tenant as a string such as "64MiB", "auto" or "none".
    #[schema(value_type = Option<String>)]
    pub cache: Option<Setting<OrAuto<Size>>>,
    /// The eviction policy of its tenant's cache.
    pub eviction: Option<Eviction>,
    /// The most bandwidth that the clients of its tenant get, such as "50MiB/s" or "read=50MiB/s,write=10MiB/s", or
    /// "none".
    #[schema(value_type = Option<String>)]
    pub max_bandwidth: Option<Setting<MaxBandwidth>>,
    /// The most I/Os a second of up to 256 KiB that they get, such as "500" or "read=500,write=100", or "none".
    #[schema(value_type = Option<String>)]
    pub max_iops: Option<Setting<MaxIops>>,
    /// For how long an unused ceiling is saved, such as "10s", or "default".
    #[schema(value_type = Option<String>)]
    pub burst: Option<OrDefault<Burst>>,
    /// How writes are acknowledged.
    pub write_cache: Option<WriteCache>,
    /// Required for `unsafe`, since acknowledged data may then be lost.
    pub accept_data_loss: bool,
    /// The clients that may open it; replaces the whole list. `["any"]` is every client. Clients whose access is no
    /// longer permitted are disconnected.
    #[schema(value_type = Option<Vec<String>>)]
    pub allow: Option<Access>,
    /// Whether all clients are refused writes. Clients that opened it for writing are disconnected, and their data is
    /// flushed, before the request is answered.
    pub read_only: Option<bool>,
    /// A description that clients can read; "" for none.
    #[schema(value_type = Option<String>)]
    pub description: Option<Description>,
    /// How long a request waits for the server of its export that is away, "1s" to "60m".
    #[schema(value_type = Option<String>)]
    pub upstream_deadline: Option<Time>,
    /// Connections to the server of its export, 1 to 16. They are opened anew.
    pub upstream_connections: Option<u32>,
    /// How the cache here and that of the server go together. The connections are opened anew.
    pub tiers: Option<Tiers>,
}

impl SetVolume {
    /// Whether the request contains no change.
    pub fn changes_nothing(&self) -> bool {
        let SetVolume { write_cache, allow, read_only, description, .. } = self;
        let of_volume = write_cache.is_some() || allow.is_some() || read_only.is_some() || description.is_some();
        !of_volume && !self.changes_upstream() && SetTenant::of(self).changes_nothing()
    }

    /// Whether the request contains nothing but changes of access and of the description.
    pub fn changes_access_only(&self) -> bool {
        self.write_cache.is_none() && !self.changes_upstream() && SetTenant::of(self).changes_nothing()
    }

    /// Whether the request changes how its export is used.
    pub fn changes_upstream(&self) -> bool {
        self.upstream_deadline.is_some() || self.upstream_connections.is_some() || self.tiers.is_some()
    }
}

/// The changes of a tenant on one disk; what is omitted stays unchanged.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetTenant {
    /// The disk; may be omitted if the tenant has volumes on one disk only.
    #[schema(value_type = Option<String>)]
    pub disk: Option<Name>,
    /// Its named policy, which determines its share, minimum bandwidth and ceilings; or "none": it keeps the present
    /// values as its own.
    #[schema(value_type = Option<String>)]
    pub policy: Option<Setting<Name>>,
    /// The share of the disk's time, "auto" (the planner of allocations finds it) or "none".
    #[schema(value_type = Option<String>)]
    pub share: Option<Setting<OrAuto<ShareText>>>,
    /// The minimum bandwidth, bytes per second; a number or a string such as "30MiB/s"; or "none". It holds as long as
    /// it fits into the share.
    #[schema(value_type = Option<String>)]
    pub min_bandwidth: Option<Setting<Rate>>,
    /// Whether the shares of the disk may sum to more than 1 with this one.
    pub overcommit: bool,
    /// The cache as a string such as "64MiB", "auto" (the planner of allocations finds it) or "none".
    #[schema(value_type = Option<String>)]
    pub cache: Option<Setting<OrAuto<Size>>>,
    /// The eviction policy of the cache.
    pub eviction: Option<Eviction>,
    /// The most bandwidth that its clients get, such as "50MiB/s" or "read=50MiB/s,write=10MiB/s", or "none".
    #[schema(value_type = Option<String>)]
    pub max_bandwidth: Option<Setting<MaxBandwidth>>,
    /// The most I/Os a second of up to 256 KiB that they get, such as "500" or "read=500,write=100", or "none".
    #[schema(value_type = Option<String>)]
    pub max_iops: Option<Setting<MaxIops>>,
    /// For how long an unused ceiling is saved, such as "10s", or "default".
    #[schema(value_type = Option<String>)]
    pub burst: Option<OrDefault<Burst>>,
}

impl SetTenant {
    /// The changes of its tenant in a request for a volume.
    pub fn of(volume: &SetVolume) -> SetTenant {
        let SetVolume { policy, share, min_bandwidth, overcommit, cache, eviction, .. } = volume.clone();
        let SetVolume { max_bandwidth, max_iops, burst, .. } = volume.clone();
        SetTenant {
            disk: None,
            policy,
            share,
            min_bandwidth,
            overcommit,
            cache,
            eviction,
            max_bandwidth,
            max_iops,
            burst,
        }
    }

    /// What a request for a new volume asks for its tenant.
    pub fn of_new(volume: &CreateVolume) -> SetTenant {
        let CreateVolume { policy, share, min_bandwidth, overcommit, cache, eviction, .. } = volume.clone();
        let CreateVolume { max_bandwidth, max_iops, burst, .. } = volume.clone();
        SetTenant {
            disk: None,
            policy: policy.map(Setting::To),
            share: share.map(Setting::To),
            min_bandwidth: min_bandwidth.map(Setting::To),
            overcommit,
            cache: cache.map(Setting::To),
            eviction,
            max_bandwidth: max_bandwidth.map(Setting::To),
            max_iops: max_iops.map(Setting::To),
            burst: burst.map(OrDefault::To),
        }
    }

    /// Whether the request changes ceilings.
    pub fn changes_ceilings(&self) -> bool {
        self.max_bandwidth.is_some() || self.max_iops.is_some() || self.burst.is_some()
    }

    /// Whether the request contains no change.
    pub fn changes_nothing(&self) -> bool {
        let SetTenant { share, min_bandwidth, cache, eviction, .. } = self;
        let promises = share.is_none() && min_bandwidth.is_none() && cache.is_none() && eviction.is_none();
        promises && self.policy.is_none() && !self.changes_ceilings()
    }

    /// Applies the changes, except that of the policy. A tenant whose cache is set or unset by the operator is measured
    /// again.
    pub fn apply(&self, spec: &mut TenantSpec) {
        if let Some(share) = self.share.clone() {
            (spec.share, spec.auto_share) = OrAuto::split(share.value());
            spec.planned_share = None;
        }
        if let Some(min_bandwidth) = self.min_bandwidth.clone() {
            spec.min_bandwidth = min_bandwidth.value();
            if spec.min_bandwidth.is_some() && spec.share.is_none() {
                // The guarantee is checked against the even part. An earlier plan may give the tenant less.
                spec.planned_share = None;
            }
        }
        if let Some(cache) = self.cache.clone() {
            (spec.cache, spec.auto_cache) = OrAuto::split(cache.value());
            (spec.planned_cache, spec.decided) = (None, None);
        }
        spec.eviction = self.eviction.unwrap_or(spec.eviction);
        if let Some(most) = self.max_bandwidth.clone() {
            spec.max_bandwidth = most.value().filter(|most| most.0.is_some());
        }
        if let Some(most) = self.max_iops.clone() {
            spec.max_iops = most.value().filter(|most| most.0.is_some());
        }
        match self.burst {
            Some(burst) => spec.burst = burst.value(),
            // The burst goes with the last ceiling.
            None => spec.burst = spec.burst.filter(|_| spec.has_ceiling()),
        }
    }
}

/// A new size.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowVolume {
    /// Bytes, a multiple of 512, not less than the present size; a number or a string such as "10GiB". On a raw device,
    /// the default is the device's present size.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub size: Option<Size>,
}

/// A disk to add. An empty directory becomes a new disk; an existing disk is added with its volumes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddDisk {
    /// Its name on this server.
    #[schema(value_type = String)]
    pub name: Name,
    /// Its directory; or `sim:PRESET` or `sim:FILE` (an absolute path on the server) for a simulated disk.
    pub path: String,
    /// Add it even if another disk is on the same device.
    #[serde(default)]
    pub force: bool,
    /// Size of a simulated disk, bytes, a multiple of 4096. The default is the whole drive.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub size: Option<Size>,
    /// The directory of a simulated disk's data. The default is `disks/NAME` in the server's directory.
    #[serde(default)]
    pub directory: Option<String>,
    /// Faults of a new disk that are active after each start, such as "error read 1%".
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub faults: Vec<FaultText>,
    /// The scheduling policy, such as "none" or "token-bucket:1.2". The default follows from the disk's profile or
    /// description.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub policy: Option<PolicyName>,
    /// R, the fraction of its standalone efficiency that a tenant keeps: "0.9" or "90%". The default is 0.9.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub insulation: Option<Insulation>,
    /// The longest round, such as "2s", which is the default.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub max_round: Option<Time>,
    /// Whether it is not probed automatically when it is idle.
    #[serde(default)]
    pub no_probe: bool,
}

impl AddDisk {
    /// A request with default values.
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

    /// The scheduling settings in the request.
    pub fn scheduling(&self) -> Scheduling {
        Scheduling {
            policy: self.policy,
            insulation: self.insulation,
            max_round: self.max_round,
            no_probe: self.no_probe,
        }
    }
}

/// A fault to inject into a disk's device.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddFault {
    /// The fault, such as "error read 1% range=1GiB..2GiB".
    pub fault: String,
}

/// The changes of a disk; what is omitted stays unchanged.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetDisk {
    /// Values of its profile by name: a number in the unit of the name, "none", or "measured" to remove the override.
    pub profile: BTreeMap<String, String>,
    /// The scheduling policy, or "default", which follows from the disk's profile or description.
    #[schema(value_type = Option<String>)]
    pub policy: Option<OrDefault<PolicyName>>,
    /// R, as "0.9" or "90%", or "default".
    #[schema(value_type = Option<String>)]
    pub insulation: Option<OrDefault<Insulation>>,
    /// The longest round, such as "2s", or "default".
    #[schema(value_type = Option<String>)]
    pub max_round: Option<OrDefault<Time>>,
}

/// The options of a probe.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StartProbe {
    /// Maximum duration, seconds; a short probe is less exact. The default is two minutes.
    pub seconds: Option<u64>,
}
