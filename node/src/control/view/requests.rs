//! What can be asked for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::Access;
use crate::fault::FaultText;
use crate::quantity::{Description, Insulation, Name, ShareText, Size, Time};
use crate::store::spec::{Allocation, Eviction, WriteCache};
use crate::store::{PolicyName, Scheduling};

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

/// A new size.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowVolume {
    /// Bytes, a multiple of 512, not less than now; a number or a text such as "10GiB". If left out, all that a raw
    /// volume's device has by now.
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

/// What to change of a disk.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetDisk {
    /// Values of its profile by name: a number in the unit of the name, "none", or "measured" to take back what was
    /// set.
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
