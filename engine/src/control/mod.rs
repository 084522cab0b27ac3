//! What control asks of a disk machine, and what it answers. Typed messages only: they share nothing.

pub(crate) mod allot;
mod apply;
mod snapshot;

pub use crate::sizing::{Bound, Decision, Doubt, Plan, PlanRequest, Sizing};
pub use allot::{FRAME_BYTES, LEAST_BYTES};
pub(crate) use allot::{bytes_of, frames_of};
pub use snapshot::{BUCKETS, ConnectionStats, Histogram, OpStats, Snapshot, TenantStats, VolumeStats};

use crate::cache::EvictionPolicy;
use crate::curve::View;
use crate::disk::{VolumeId, policy};
use crate::event::ConnId;
use crate::units::{Share, exact, rounded};

/// A tenant of this disk: a small number that control chose.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TenantId(pub u32);

/// How writes are acknowledged (design, section 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WriteCache {
    /// In the cache; on the medium after a flush, as with a disk's own write cache.
    #[default]
    Volatile,
    /// On the medium before it is acknowledged.
    None,
    /// In the cache, and flushes too: what is acknowledged may be lost. For battery-backed memory only.
    Unsafe,
}

/// A volume as a disk machine sees it.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// Its number; the driver knows its file by the same one.
    pub volume: VolumeId,
    /// Whose allotment it uses.
    pub tenant: TenantId,
    /// Bytes, a multiple of 512, at most 2^60.
    pub size: u64,
    /// How writes are acknowledged.
    pub write_cache: WriteCache,
    /// Space is given back by TRIM and WRITE_ZEROES; otherwise the volume was allocated whole and stays so.
    pub sparse: bool,
    /// Ranges (first byte, past the last) that were never written and read as zero. May be too few, never too many.
    pub holes: Vec<(u64, u64)>,
    /// Whether never-written ranges are to be zero-written in idle time.
    pub initialise: bool,
    /// Whether space that it gains by growing was never written and reads as zero. False where that is not known (a raw
    /// device holds anything), or must be asked for (a simulated drive takes its time).
    pub grows_empty: bool,
    /// Bytes in which the device wants offsets and lengths: 512 or 4096.
    pub device_block: u32,
    /// Whether the device can zero a range without writing it (`Op::Zero`).
    pub can_zero: bool,
    /// Whether the device can give space back (`Op::Punch`).
    pub can_punch: bool,
    /// Every session is read-only, whatever its handshake agreed on.
    pub read_only: bool,
    /// Whether the device may hold content that no flush covers, of a process that was killed. It is flushed as soon
    /// as the volume is open. If a device flush fails before that one has succeeded, the content counts as lost.
    pub unflushed: bool,
}

impl VolumeSpec {
    /// One that was allocated whole and written before, with a volatile cache, on a device of 512-byte sectors that can
    /// do everything: for those who change only what they care for.
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
            device_block: 512,
            can_zero: true,
            can_punch: true,
            read_only: false,
            unflushed: false,
        }
    }
}

/// How much cache a tenant has. Bytes are memory, bookkeeping included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CacheSpec {
    /// What it needs for R: found by watching it for a while, followed from then on. Cache that nobody needs is lent
    /// evenly on top.
    #[default]
    Trial,
    /// The same, decided before: it is admitted with so much, or with what there is. For a tenant that was admitted
    /// when the server stopped, and for one that will be like another.
    Decided(u64),
    /// So much, neither more nor less.
    Asked(u64),
}

/// What a tenant was promised on this disk, and how its cache works.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TenantSpec {
    /// The promised part of disk time; `None` takes what is left over, like all without one, evenly.
    pub share: Option<Share>,
    /// How much cache it has.
    pub cache: CacheSpec,
    /// How its partition chooses what to evict.
    pub eviction: EvictionPolicy,
}

/// What control asks for. Every command is answered by one [`Report`] with the same token.
#[derive(Clone, Debug)]
pub enum Command {
    /// Set a tenant's allotment, or make the tenant. Answered at once; frames move in the background.
    SetTenant(TenantId, TenantSpec),
    /// Forget a tenant without volumes.
    DropTenant(TenantId),
    /// Serve a volume of a known tenant.
    OpenVolume(VolumeSpec),
    /// Change how writes are acknowledged; from `Unsafe` or `Volatile` to `None` this flushes first.
    SetWriteCache(VolumeId, WriteCache),
    /// Make a volume read-only, or writable again; and disconnect these clients of it, with those that may write if
    /// it becomes read-only. Requests received from them are finished. A volume that becomes read-only is flushed
    /// when they have gone, and only then is this answered: nothing of it is dirty from then on.
    Restrict {
        /// Which.
        volume: VolumeId,
        /// Whether sessions are read-only from now on. Sessions that were read-only stay so.
        read_only: bool,
        /// Connections of this volume that are closed.
        expelled: Vec<ConnId>,
    },
    /// The file has grown: serve `size` bytes; what was added reads as zero.
    GrowVolume(VolumeId, u64),
    /// Close its connections and forget it; with `discard`, dirty data too, otherwise it is flushed first.
    /// Answered when the last request is out of the device: the file may be closed then.
    CloseVolume {
        /// Which.
        volume: VolumeId,
        /// Whether dirty data is dropped (the volume is being deleted) rather than flushed.
        discard: bool,
    },
    /// Accept the loss that a volume reports: forget blocks that could not be written, let flushes succeed again.
    /// Answered when no attempt to write one of them is in flight any more.
    ClearVolume(VolumeId),
    /// Use this many bytes of memory, bookkeeping included. Answered with `Done` when what is above is free, or in
    /// bounded time (dirty data has to be written first: five seconds more than it may be old) with [`Report::Held`].
    SetBudget(u64),
    /// Acknowledged data was lost before the volume was opened: flushes fail until `ClearVolume`.
    DeclareLost(VolumeId),
    /// Read at most this many bytes ahead of a stream at once, 0 for none; `None`: as many as R and the disk ask for.
    SetPrefetch(Option<u64>),
    /// Another policy, or other settings of the same. What waits stays in its order; the depth is at most the one that
    /// the machine began with.
    SetPolicy(Box<policy::Settings>),
    /// Report what would be decided now for a tenant that is not there yet, or for other settings of one that is.
    Plan(PlanRequest),
    /// Report everything there is to see.
    Snapshot,
    /// Report the curve of a volume's tenant: under a policy, or under the one that its partition runs.
    Curve(VolumeId, Option<EvictionPolicy>),
    /// Refuse new requests, finish those received, flush everything. Answered with [`Report::Drained`].
    Drain,
}

/// What a disk machine answers.
#[derive(Clone, Debug)]
pub enum Report {
    /// Done.
    Done,
    /// Done, but some memory that was to be given up is still in use: by replies that clients do not read, or by data
    /// that cannot be written. It becomes free as they go; [`Snapshot::held_frames`] says how much is left.
    Held {
        /// How much, bytes.
        bytes: u64,
    },
    /// Not done, nothing changed; the reason.
    Refused(Refusal),
    /// Everything there is to see.
    Snapshot(Box<Snapshot>),
    /// What would be decided.
    Plan(Box<Plan>),
    /// What a tenant's cache would absorb.
    Curve(Box<View>),
    /// Everything that could be flushed is; these volumes could not.
    Drained {
        /// Volumes with acknowledged data that is not on the medium.
        failed: Vec<VolumeId>,
    },
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
    /// The number is taken.
    #[error("the number is in use")]
    Taken,
    /// The tenant still has volumes.
    #[error("the tenant still has volumes")]
    InUse,
    /// The shares of a disk sum to one at most.
    #[error(
        "a share of {} % of the disk's time does not fit: {} % is left",
        *asked_ppb as f64 / 1e7,
        *left_ppb as f64 / 1e7
    )]
    ShareTooLarge {
        /// Parts per billion asked for.
        asked_ppb: u64,
        /// Parts per billion that are left.
        left_ppb: u64,
    },
    /// The caches asked for do not fit.
    #[error(
        "a cache of {} does not fit: {} are not promised to others, and {} is the least a tenant needs",
        exact(*asked),
        rounded(*free),
        rounded(*least)
    )]
    CacheTooLarge {
        /// Bytes asked for.
        asked: u64,
        /// Bytes that could be had.
        free: u64,
        /// The smallest partition, bytes.
        least: u64,
    },
    /// The memory does not hold the smallest partitions.
    #[error("{} of memory are too few: the tenants need at least {}", rounded(*budget), rounded(*least))]
    BudgetTooSmall {
        /// Bytes offered.
        budget: u64,
        /// Bytes needed.
        least: u64,
    },
    /// Size zero, above 2^60, not a multiple of 512, or smaller than now.
    #[error("a size is a multiple of 512 bytes, at least 512, at most 2^60, and never shrinks")]
    BadSize,
    /// Flushing failed.
    #[error("data could not be written to the device")]
    FlushFailed,
}
