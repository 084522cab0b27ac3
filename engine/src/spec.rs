//! What the control plane says of volumes and tenants, and why it is refused.

use std::num::NonZeroU64;
use std::ops::RangeInclusive;

use crate::cluster::Unfollowable;
use crate::eviction::Policy as EvictionPolicy;
use crate::ids::{TenantId, VolumeId, VolumeKey};
use crate::units::{Nanos, PIECE, SECOND, Share, exact, rounded};

/// When writes are acknowledged (`docs/design/flush.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WriteCache {
    /// When the data is in the cache. It is on the medium after a flush, as with the write cache of a drive.
    #[default]
    Volatile,
    /// When the data is on the medium.
    None,
    /// When the data is in the cache, and flushes are answered at once: acknowledged data may be lost. For
    /// battery-backed memory only.
    Unsafe,
}

/// A volume, as the engine of a disk sees it.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// Its number, by which the driver also finds the file.
    pub volume: VolumeId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Size in bytes, a multiple of 512, at most 2^60.
    pub size: u64,
    /// When writes are acknowledged.
    pub write_cache: WriteCache,
    /// Whether TRIM and WRITE_ZEROES free space; otherwise the volume was preallocated and stays so.
    pub sparse: bool,
    /// Ranges (first byte, end) that were never written and read as zero. The list may be incomplete, but contains
    /// nothing else.
    pub holes: Vec<(u64, u64)>,
    /// Whether never-written ranges are written with zeros in idle time.
    pub initialise: bool,
    /// Whether space gained by growing was never written and reads as zero. False where that is unknown (raw devices
    /// have arbitrary content) or must be read (a simulated drive takes time for it).
    pub grows_empty: bool,
    /// Its first byte on the disk, if that is known: slices follow in an order in which the heads travel little.
    pub disk_start: Option<u64>,
    /// Logical block size of the device, bytes: 512 or 4096. Offsets and lengths of requests are multiples of it.
    pub device_block: u32,
    /// Whether the device can zero a range without writing it (`Op::Zero`).
    pub can_zero: bool,
    /// Whether the device can free space (`Op::Punch`).
    pub can_punch: bool,
    /// Every session is read-only, independent of its handshake.
    pub read_only: bool,
    /// Whether the device may hold unflushed writes of a process that was killed. The volume is flushed as soon as it
    /// is open. If a device flush fails before that flush has succeeded, the volume has a loss.
    pub unflushed: bool,
    /// The export on another server that has its data, instead of the disk. Its tenant is [`TenantSpec::is_remote`].
    pub upstream: Option<UpstreamSpec>,
    /// If the volume is striped over several exports, the others. `upstream` is the first one.
    pub stripes: Option<StripeSpec>,
    /// Its number in the stores that its writes may be off-loaded to, if they may.
    pub offload: Option<VolumeKey>,
}

impl VolumeSpec {
    /// A preallocated volume that was written before, with a volatile cache, on a device with 512-byte blocks that
    /// supports all operations. Callers change the fields that matter to them.
    pub fn plain(volume: VolumeId, tenant: TenantId, size: u64) -> VolumeSpec {
        VolumeSpec {
            volume,
            tenant,
            size,
            write_cache: WriteCache::Volatile,
            sparse: false,
            holes: Vec::new(),
            initialise: false,
            grows_empty: false,
            disk_start: None,
            device_block: 512,
            can_zero: true,
            can_punch: true,
            read_only: false,
            unflushed: false,
            upstream: None,
            stripes: None,
            offload: None,
        }
    }

    /// Whether the volume can be striped as is asked: the exports have room for it, in whole rows of units.
    pub(crate) fn stripes_fit(&self) -> bool {
        let Some(StripeSpec { unit, others }) = &self.stripes else { return true };
        let Some(first) = &self.upstream else { return false };
        let (exports, numbers) = (others.len() as u64 + 1, others.iter().map(|(leg, _)| *leg));
        let is_distinct = |at: usize| !others[..at].iter().any(|(leg, _)| *leg == others[at].0);
        let each = self.size / exports;
        STRIPE_UNITS.contains(unit)
            && unit.is_power_of_two()
            && (2..=LEGS_MAX as u64).contains(&exports)
            && numbers.clone().all(|leg| leg != self.volume)
            && (0..others.len()).all(is_distinct)
            && self.size.is_multiple_of(exports)
            && each.is_multiple_of(*unit)
            && others.iter().map(|(_, other)| other).chain([first]).all(|export| export.size >= each)
    }
}

/// Sizes of the units of a stripe: a block, which is never on two exports, to many transfers.
pub const STRIPE_UNITS: RangeInclusive<u64> = 4 << 10..=16 << 20;
/// Exports that a volume may be striped over.
pub const LEGS_MAX: usize = 64;

/// How a volume is striped over several exports (RAID-0): its units are on the first one, the next one, …, and again on
/// the first one.
#[derive(Clone, Debug)]
pub struct StripeSpec {
    /// Bytes of a unit: a power of two in [`STRIPE_UNITS`].
    pub unit: u64,
    /// The exports after the first one, in order, at most [`LEGS_MAX`] with it. Each has a number that no volume has:
    /// the driver knows it by that, as it knows the first one by the number of the volume.
    pub others: Vec<(VolumeId, UpstreamSpec)>,
}

/// How the cache of a volume and that of the server which has its export go together (`docs/design/tiers.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tiers {
    /// Each keeps what it has used last: the server also keeps what this cache has.
    #[default]
    Lru,
    /// The server drops what it has sent, and takes what this cache evicts (DEMOTE). Only for a volume on one export,
    /// and only if the server grants it; otherwise as `Lru`.
    Demote,
}

/// An export on another server, and how it is used.
#[derive(Clone, Debug)]
pub struct UpstreamSpec {
    /// The export.
    pub name: String,
    /// Its size, bytes: that of the volume, or at least its part of a striped one.
    pub size: u64,
    /// The volume that it is, if it is known to be one of a server of ours.
    pub volume: Option<u128>,
    /// The name by which a server of ours knows this client.
    pub client: String,
    /// The epoch of the last session. The owner makes sure that no other session of this client had a later one.
    pub epoch: u64,
    /// Connections, if the server permits several.
    pub connections: u32,
    /// Requests outstanding at most.
    pub window: u32,
    /// How long a request waits for a server that is away.
    pub deadline_ns: Nanos,
    /// Whether a server without FLUSH is accepted.
    pub unsafe_without_flush: bool,
    /// TLS has started on a connection before it is reported as established.
    pub tls: bool,
    /// Whether other clients may claim the export at the same time.
    pub is_shared: bool,
    /// Whether its sessions have leases: another client may be admitted while this one is stopped.
    pub is_leased: bool,
    /// Whether the server is to take what this cache evicts.
    pub tiers: Tiers,
}

#[cfg(test)]
impl UpstreamSpec {
    /// An export of this size that no other client claims.
    pub(crate) fn plain(size: u64) -> UpstreamSpec {
        UpstreamSpec {
            name: "db".into(),
            size,
            volume: None,
            client: "gateway".into(),
            epoch: 0,
            connections: 1,
            window: 8,
            deadline_ns: crate::units::SECOND,
            unsafe_without_flush: false,
            tls: false,
            is_shared: false,
            is_leased: false,
            tiers: Tiers::Lru,
        }
    }
}

/// The cache size of a tenant. Bytes of memory, bookkeeping included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CacheSpec {
    /// What the tenant needs for R: measured in a trial, adjusted afterwards. Spare cache is lent on top, max-min fair.
    #[default]
    Trial,
    /// As `Trial`, but decided already: the tenant is admitted with this size, or with what is available. For tenants
    /// that were admitted when the server stopped, and for a tenant planned to be like another one.
    Decided(u64),
    /// Exactly this size.
    Asked(u64),
    /// A size that an allocation over several resources has found (`docs/manual/allocate.md`), at least what is
    /// requested. Only that is a promise: the rest yields to what other tenants request or need for R, and to an even
    /// part of the memory for tenants without a size. Nothing is lent on top.
    Planned {
        /// What is requested; 0 for nothing.
        asked: u64,
        /// What was found.
        planned: u64,
    },
}

impl CacheSpec {
    /// Whether the size is given, not found by what the tenant needs for R.
    pub(crate) fn is_given(self) -> bool {
        matches!(self, CacheSpec::Asked(_) | CacheSpec::Planned { .. })
    }
}

/// The promise to a tenant on this disk, and how its cache works.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TenantSpec {
    /// The promised fraction of disk time. Tenants with `None` divide the remaining time equally.
    pub share: Option<Share>,
    /// A minimum bandwidth, bytes a second: it holds as long as it fits into the share (Wachs and Ganger 2010, section
    /// 3.4). 0 if there is none.
    pub min_bytes_per_s: u64,
    /// How much cache it has.
    pub cache: CacheSpec,
    /// The eviction policy of its partition.
    pub eviction: EvictionPolicy,
    /// What its clients get at most.
    pub ceilings: Ceilings,
    /// Its volumes are on other servers: it has cache and a part of the thread's time, but no disk time, no share and
    /// no R.
    pub is_remote: bool,
    /// Its volumes are stores, which logs of off-loaded writes are on (`docs/design/offload.md`): it has a share, but
    /// no R, no read-ahead and no cache beyond [`STORE_CACHE_BYTES`] for requests in flight. Its volumes are written
    /// with [`WriteCache::None`].
    pub is_store: bool,
}

/// Memory of a store tenant for requests in flight, bytes, bookkeeping included. Payload may have half of it and
/// replies the other half: 4 MiB each, 40 ms of a hard disk and 1 ms of a fast flash device, several times what one
/// takes to answer. So both the log and the scan of a recovery stream. Nothing is cached for its sake.
pub const STORE_CACHE_BYTES: u64 = 8 << 20;

/// Bytes of a request that count as one I/O; a larger one counts as one for each begun part of this size. It is the
/// size of the pieces in which requests are processed.
pub const IO_BYTES: u64 = PIECE;

/// For how long an unused ceiling is saved unless something else is requested: the default longest round, so that a
/// tenant that waits for its slice loses nothing of its ceiling.
pub const BURST_NS_DEFAULT: Nanos = 2 * SECOND;

/// A ceiling for each direction and for both together, units a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ceiling {
    /// Reads and writes together.
    pub total: Option<NonZeroU64>,
    /// Reads.
    pub read: Option<NonZeroU64>,
    /// Writes.
    pub write: Option<NonZeroU64>,
}

impl Ceiling {
    /// Whether there is one.
    pub fn is_some(&self) -> bool {
        self.total.is_some() || self.read.is_some() || self.write.is_some()
    }

    /// The most of reads and writes together; `None` if it is not limited.
    pub fn most(&self) -> Option<u64> {
        let both = self.read.zip(self.write).map(|(read, write)| read.get().saturating_add(write.get()));
        self.total.map(NonZeroU64::get).into_iter().chain(both).min()
    }
}

/// What the clients of a tenant get at most, cache hits included (`docs/design/ceilings.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ceilings {
    /// Bytes.
    pub bytes: Ceiling,
    /// I/Os of [`IO_BYTES`].
    pub ios: Ceiling,
    /// An unused ceiling is saved for at most this time.
    pub burst_ns: Nanos,
}

impl Default for Ceilings {
    fn default() -> Ceilings {
        Ceilings { bytes: Ceiling::default(), ios: Ceiling::default(), burst_ns: BURST_NS_DEFAULT }
    }
}

impl Ceilings {
    /// Whether there are any.
    pub fn is_some(&self) -> bool {
        self.bytes.is_some() || self.ios.is_some()
    }
}

impl TenantSpec {
    /// What the scheduler has to know of it; `None` if it has no disk time.
    pub(crate) fn terms(&self) -> Option<Terms> {
        let Self { share, min_bytes_per_s, is_store, .. } = *self;
        (!self.is_remote).then_some(Terms { share, min_bytes_per_s, is_store })
    }

    /// The same for a store tenant with what it has in any case: no guarantee, and a cache of a fixed size.
    pub(crate) fn settled(mut self) -> TenantSpec {
        if self.is_store {
            self.min_bytes_per_s = 0;
            if !matches!(self.cache, CacheSpec::Asked(_)) {
                self.cache = CacheSpec::Asked(STORE_CACHE_BYTES);
            }
        }
        self
    }
}

/// What a tenant is promised of the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Terms {
    /// The promised fraction of disk time; tenants with `None` get a part of the unpromised rest.
    pub(crate) share: Option<Share>,
    /// Its minimum bandwidth, bytes a second; 0 if there is none.
    pub(crate) min_bytes_per_s: u64,
    /// It has no R: the lengths of slices do not depend on what it loses.
    pub(crate) is_store: bool,
}

/// A share alone.
impl From<Option<Share>> for Terms {
    fn from(share: Option<Share>) -> Terms {
        Terms { share, ..Terms::default() }
    }
}

/// Why a command was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// No such volume.
    #[error("the disk has no such volume")]
    UnknownVolume,
    /// No such tenant.
    #[error("the disk has no such tenant")]
    UnknownTenant,
    /// The number is in use.
    #[error("the number is in use")]
    Taken,
    /// The tenant still has volumes.
    #[error("the tenant still has volumes")]
    InUse,
    /// Its volumes are all on the disk, or all on other servers.
    #[error("a tenant's volumes are either all on the disk or all on other servers")]
    Mixed,
    /// A store is no other volume, and keeps what it is.
    #[error("a store acknowledges writes when they are on the medium and has no curve")]
    Store,
    /// The shares of a disk sum to at most 1.
    #[error(
        "a share of {} % of the disk's time does not fit: {} % is left",
        *asked_ppb as f64 / 1e7,
        *left_ppb as f64 / 1e7
    )]
    ShareTooLarge {
        /// Requested parts per billion.
        asked_ppb: u64,
        /// Remaining parts per billion.
        left_ppb: u64,
    },
    /// The requested cache sizes do not fit.
    #[error(
        "a cache of {} does not fit: {} are not promised to others, and {} is the least a tenant needs",
        exact(*asked),
        rounded(*free),
        rounded(*least)
    )]
    CacheTooLarge {
        /// Requested bytes.
        asked: u64,
        /// Available bytes.
        free: u64,
        /// The smallest partition, bytes.
        least: u64,
    },
    /// The memory is less than the smallest partitions of all tenants.
    #[error("{} of memory are too few: the tenants need at least {}", rounded(*budget), rounded(*least))]
    BudgetTooSmall {
        /// The budget, bytes.
        budget: u64,
        /// The smallest possible budget, bytes.
        least: u64,
    },
    /// The size is zero, above 2^60, not a multiple of 512, or smaller than the present size.
    #[error("a size is a multiple of 512 bytes, at least 512, at most 2^60, and never shrinks")]
    BadSize,
    /// The exports of a striped volume are too few, too many or too small, or their unit is none.
    #[error(
        "a striped volume has 2 to {LEGS_MAX} exports, and whole units of a power of two bytes on each, from {} to {}",
        exact(*STRIPE_UNITS.start()),
        exact(*STRIPE_UNITS.end())
    )]
    BadStripes,
    /// The upstreams of a striped volume take no demotions.
    #[error("the caches of a striped volume and of its servers cannot be one: demotion needs a volume on one export")]
    Tiers,
    /// Writes are off-loaded already, or not at all.
    #[error("the disk's writes are off-loaded already, or are not")]
    Offload,
    /// The disk cannot follow a schedule.
    #[error("the disk cannot follow this schedule: {0}")]
    Timetable(#[from] Unfollowable),
    /// The disk has a later schedule.
    #[error("the disk has version {have} of the schedule, and version {given} was given")]
    Outdated {
        /// The version that it has.
        have: u64,
        /// The version that was given.
        given: u64,
    },
    /// A flush failed.
    #[error("data could not be written to the device")]
    FlushFailed,
}
