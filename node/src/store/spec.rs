//! A volume's specification, stored with its data so that a disk can move to another server.

use engine::units::{BLOCK, SECTOR, VOLUME_BYTES_MAX};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::raw::Raw;
use super::remote::{Remote, RemoteError, Stripes};
use crate::access::Access;
use crate::quantity::{Description, Name, ShareText, Size};

/// Why a text is not a specification.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error("{}", .0.message())]
    Syntax(Box<toml::de::Error>),
    #[error(
        "its format is {0}, this server knows {FORMAT}, {FORMAT_STORE} of stores, {FORMAT_OFFLOAD} of volumes whose \
         writes may be off-loaded, {FORMAT_PART} of parts of a cluster's volumes, {FORMAT_STRIPES} of striped volumes"
    )]
    Format(u32),
    #[error(transparent)]
    Size(#[from] SizeError),
    #[error("its size is {}, and that of its device {}", Size(*size), Size(*device))]
    Device { size: u64, device: u64 },
    #[error(transparent)]
    Upstream(#[from] RemoteError),
    #[error("its data is said to be both on a device and on another server")]
    DeviceAndUpstream,
    #[error("only a volume on other servers is striped: the specification was edited")]
    Stripes,
    #[error("only a volume of the disk itself, and no store, can be off-loaded: the specification was edited")]
    Offload,
    #[error("a part of a cluster's volume is a volume of the disk itself: the specification was edited")]
    Part,
    #[error("a store is a file with write_cache = \"none\" and has no tenant of its own: the specification was edited")]
    Store,
}

/// A size, bytes, that a volume cannot have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a volume's size is a multiple of 512 bytes, from 512 bytes to 1EiB, not {}", Size(*.0))]
pub struct SizeError(pub u64);

/// How the file of a volume is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Allocation {
    /// Allocated at creation, then zero-written while the disk is idle.
    #[default]
    Whole,
    /// Allocated and zero-written before the creation is answered.
    Full,
    /// Allocated when written, and freed when trimmed. On a raw device: freed when trimmed.
    Sparse,
}

/// How writes are acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WriteCache {
    /// Acknowledged in the cache; durable after a flush, as with the write cache of a drive.
    #[default]
    Volatile,
    /// Acknowledged when durable.
    None,
    /// Acknowledged in the cache, flushes too: acknowledged data may be lost. For battery-backed memory only.
    Unsafe,
}

impl From<WriteCache> for engine::control::WriteCache {
    fn from(mode: WriteCache) -> Self {
        match mode {
            WriteCache::Volatile => Self::Volatile,
            WriteCache::None => Self::None,
            WriteCache::Unsafe => Self::Unsafe,
        }
    }
}

/// Which block a tenant's cache evicts when it needs room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Eviction {
    /// The least recently used block.
    #[default]
    Lru,
    /// The oldest block that was not used since the hand last passed it.
    Sieve,
}

impl Eviction {
    pub(super) fn is_default(&self) -> bool {
        *self == Eviction::default()
    }
}

impl From<Eviction> for engine::cache::EvictionPolicy {
    fn from(eviction: Eviction) -> Self {
        match eviction {
            Eviction::Lru => Self::Lru,
            Eviction::Sieve => Self::Sieve,
        }
    }
}

impl From<engine::cache::EvictionPolicy> for Eviction {
    fn from(policy: engine::cache::EvictionPolicy) -> Self {
        match policy {
            engine::cache::EvictionPolicy::Lru => Self::Lru,
            engine::cache::EvictionPolicy::Sieve => Self::Sieve,
        }
    }
}

/// What releases without specifications of tenants stored for a volume's tenant.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlierAllotment {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<ShareText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<Size>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided: Option<Size>,
    #[serde(default, skip_serializing_if = "Eviction::is_default")]
    pub eviction: Eviction,
    /// The allotment with the highest number among a tenant's volumes is the latest, which applies.
    pub sequence: u64,
}

/// Which part of which volume of a cluster a volume is. It has the name of that volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The cluster.
    #[schema(value_type = String)]
    pub cluster: Name,
    /// The UUID of the whole volume.
    #[schema(value_type = String)]
    pub volume: Uuid,
    /// Its servers, in the order of the stripes.
    #[schema(value_type = Vec<String>)]
    pub servers: Vec<Name>,
    /// Its size, bytes.
    pub size: u64,
    /// Bytes that follow each other on one server.
    pub stripe: u64,
    /// Whether the creation of the whole volume is complete. Before that, no client can open it.
    pub committed: bool,
    /// The server was removed from the cluster, so this part is none of the volume any more. No client can open it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
}

/// The content of `volumes/NAME.toml`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The version of the format.
    pub format: u32,
    /// The volume's UUID, independent of its name.
    pub uuid: Uuid,
    /// Size, bytes.
    pub size: u64,
    /// First byte on a simulated drive; the data file is sparse then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u64>,
    /// The tenant; if absent, the volume is its own tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Name>,
    /// How its file is allocated.
    pub allocation: Allocation,
    /// How writes are acknowledged.
    pub write_cache: WriteCache,
    /// The raw device that holds its data, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Raw>,
    /// The export on another server that holds its data, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<Remote>,
    /// If it is striped over several exports, the others. An earlier release refuses the field and the format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stripes: Option<Stripes>,
    /// The clients that may open it.
    #[serde(default, skip_serializing_if = "Access::is_default")]
    pub allow: Access,
    /// Whether it is a store, into which other disks off-load writes. An earlier release refuses the field and the
    /// format, instead of serving the volume as any other.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub store: bool,
    /// Whether the newest content of the volume may be in off-load stores. It is set durably before anything is
    /// off-loaded. An earlier release refuses the field and the format, instead of serving old content.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub offload: bool,
    /// The volume of a cluster that it is a part of, if it is. An earlier release refuses the field and the format,
    /// instead of serving a part whose volume was never completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<Part>,
    /// Whether all clients are refused writes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// The description that NBD clients get.
    #[serde(default, skip_serializing_if = "Description::is_empty")]
    pub description: Description,
    /// The allotment of its tenant, in specifications of earlier releases. It applies as long as the tenant has no
    /// specification of its own, and is kept otherwise, so that no file has to be rewritten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allotment: Option<EarlierAllotment>,
}

/// The version of specifications that this program writes and reads.
const FORMAT: u32 = 1;
/// That of stores.
const FORMAT_STORE: u32 = 2;
/// That of volumes whose writes may be off-loaded.
const FORMAT_OFFLOAD: u32 = 3;
/// That of parts of a cluster's volumes.
const FORMAT_PART: u32 = 4;
/// That of striped volumes.
const FORMAT_STRIPES: u32 = 5;

impl Spec {
    /// The specification of a new volume.
    pub fn new(size: u64, tenant: Option<Name>, allocation: Allocation) -> Spec {
        let uuid = Uuid::new_v4();
        Spec {
            format: FORMAT,
            uuid,
            size,
            place: None,
            tenant,
            allocation,
            write_cache: WriteCache::default(),
            device: None,
            upstream: None,
            stripes: None,
            allow: Access::default(),
            store: false,
            offload: false,
            cluster: None,
            read_only: false,
            description: Description::default(),
            allotment: None,
        }
    }

    /// The specification of a new store.
    pub fn new_store(size: u64) -> Spec {
        let plain = Spec::new(size, None, Allocation::default());
        Spec { format: FORMAT_STORE, store: true, write_cache: WriteCache::None, ..plain }
    }

    /// The same volume, whose writes may be off-loaded, or may not.
    pub fn offloaded(&self, offload: bool) -> Spec {
        Spec { format: if offload { FORMAT_OFFLOAD } else { FORMAT }, offload, ..self.clone() }
    }

    /// The specification of a new part of a cluster's volume.
    pub fn new_part(size: u64, allocation: Allocation, part: Part) -> Spec {
        Spec { format: FORMAT_PART, cluster: Some(part), ..Spec::new(size, None, allocation) }
    }

    /// The same volume, whose data is these exports: one, or several over which it is striped.
    pub fn on_exports(&self, first: Remote, stripes: Option<Stripes>) -> Spec {
        let format = if stripes.is_some() { FORMAT_STRIPES } else { self.format };
        Spec { format, upstream: Some(first), stripes, ..self.clone() }
    }

    /// The exports that hold its data, in order; none if it is on the disk.
    pub fn exports(&self) -> impl Iterator<Item = &Remote> + Clone {
        self.upstream.iter().chain(self.stripes.iter().flat_map(|stripes| &stripes.others))
    }

    /// Their addresses, for people.
    pub fn addresses(&self) -> String {
        self.exports().map(|export| export.from.to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Whether the volume can be off-loaded: its data is on the disk, it is no store, and no part of a volume whose
    /// servers work at the same time.
    pub fn is_offloadable(&self) -> bool {
        self.upstream.is_none() && !self.store && self.cluster.is_none()
    }

    /// Whether clients may see it: it is no part of a volume whose creation is not complete, or that was given up.
    pub fn is_complete(&self) -> bool {
        self.cluster.as_ref().is_none_or(|part| part.committed && !part.lost)
    }

    /// Parses and checks a specification.
    pub fn parse(text: &str) -> Result<Spec, SpecError> {
        let spec: Spec = toml::from_str(text).map_err(|error| SpecError::Syntax(Box::new(error)))?;
        if spec.stripes.is_some() && spec.upstream.is_none() {
            return Err(SpecError::Stripes);
        }
        let (is_part, is_striped) = (spec.cluster.is_some(), spec.stripes.is_some());
        match (spec.format, spec.store, spec.offload) {
            (FORMAT_PART, false, false) if is_part && spec.has_file() && spec.tenant.is_none() => {}
            _ if is_part => return Err(SpecError::Part),
            (FORMAT, false, false) if !is_striped => {}
            (FORMAT_STRIPES, false, false) if is_striped => {}
            (FORMAT_STORE, true, false) if spec.is_plain_store() => {}
            (FORMAT_OFFLOAD, false, true) if spec.is_offloadable() => {}
            (FORMAT | FORMAT_STORE, true, false) => return Err(SpecError::Store),
            (FORMAT | FORMAT_STORE | FORMAT_OFFLOAD, _, true) => return Err(SpecError::Offload),
            _ => return Err(SpecError::Format(spec.format)),
        }
        check_size(spec.size)?;
        if let Some(device) = spec.device.as_ref().filter(|device| device.size < spec.file_bytes()) {
            return Err(SpecError::Device { size: spec.size, device: device.size });
        }
        if let Some(upstream) = &spec.upstream {
            upstream.check()?;
            if let Some(stripes) = &spec.stripes {
                stripes.check(upstream, spec.size)?;
            }
            if spec.device.is_some() {
                return Err(SpecError::DeviceAndUpstream);
            }
        }
        Ok(spec)
    }

    fn is_plain_store(&self) -> bool {
        self.has_file() && self.write_cache == WriteCache::None && self.tenant.is_none() && self.allotment.is_none()
    }

    /// The content of the file.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a specification can be written as TOML")
    }

    /// Bytes of the data file or device: whole blocks, so that direct I/O reaches the end.
    pub fn file_bytes(&self) -> u64 {
        self.size.next_multiple_of(BLOCK)
    }

    /// Whether its data is a file in the disk's directory.
    pub fn has_file(&self) -> bool {
        self.device.is_none() && self.upstream.is_none()
    }

    /// The tenant: that of the stores, or the volume itself if none was named.
    pub fn tenant(&self, name: &Name) -> Name {
        if self.store {
            return Name::of_stores();
        }
        self.tenant.clone().unwrap_or_else(|| name.clone())
    }
}

/// Checks that a volume can have this size, bytes.
pub fn check_size(size: u64) -> Result<(), SizeError> {
    let is_possible = size != 0 && size.is_multiple_of(SECTOR) && size <= VOLUME_BYTES_MAX;
    if is_possible { Ok(()) } else { Err(SizeError(size)) }
}
