//! Commands of the control plane to the engine of a disk, and its answers: typed messages without shared state.

mod snapshot;

pub use crate::config::{FRAME_BYTES, LEAST_BYTES};
pub use crate::plan::{Bound, Decision, Doubt, Plan, PlanRequest, Sizing};
pub use crate::spec::{
    BURST_NS_DEFAULT, CacheSpec, Ceiling, Ceilings, IO_BYTES, LEGS_MAX, Refusal, STORE_CACHE_BYTES, STRIPE_UNITS,
    StripeSpec, TenantSpec, Tiers, UpstreamSpec, VolumeSpec, WriteCache,
};
pub use crate::stats::{BUCKETS, DemotionStats, DroppedBlocks, Fills, Histogram, Hits, OpStats};
pub use snapshot::{ConnectionStats, Progress, Snapshot, Spent, TenantStats, VolumeStats};

use crate::cluster::{Clock, Slot, Timetable};
use crate::curve::View;
use crate::disk::Window;
use crate::disk::policy;
use crate::eviction::Policy as EvictionPolicy;
use crate::ids::{ConnId, TenantId, VolumeId};
use crate::offload::{Invalid, Known, Recovered, Settings, Setup, StoreId};
use crate::units::Nanos;

/// A command of the control plane. Every command is answered by one [`Report`] with the same token.
#[derive(Clone, Debug)]
pub enum Command {
    /// Create a tenant or change its settings. Answered at once; frames move in the background.
    SetTenant(TenantId, TenantSpec),
    /// Remove a tenant without volumes.
    DropTenant(TenantId),
    /// Open a volume of a known tenant.
    OpenVolume(VolumeSpec),
    /// Change when writes are acknowledged. A change to `None` or `Volatile` flushes first.
    SetWriteCache(VolumeId, WriteCache),
    /// Make a volume read-only, or writable again, and disconnect the given clients of it; if it becomes read-only,
    /// also all clients that may write. Requests received from them are finished. A volume that becomes read-only is
    /// flushed when they are disconnected. The answer comes after that flush: the volume has no dirty data from then
    /// on.
    Restrict {
        /// The volume.
        volume: VolumeId,
        /// Whether new sessions are read-only. Sessions that are read-only already stay so.
        read_only: bool,
        /// Connections of this volume to close.
        expelled: Vec<ConnId>,
    },
    /// The file has grown: serve `size` bytes. The new space reads as zero with `grows_empty`, else as what the device
    /// has.
    GrowVolume(VolumeId, u64),
    /// Close the volume's connections and remove it. With `discard`, its dirty data is dropped; otherwise it is flushed
    /// first. Answered when its last device request is complete: then the file may be closed. With `discard`, a volume
    /// on another server does not wait for that server.
    CloseVolume {
        /// The volume.
        volume: VolumeId,
        /// Whether dirty data is dropped (the volume is being deleted) or flushed.
        discard: bool,
    },
    /// Change how the export of a volume on another server is used.
    SetUpstream {
        /// The volume.
        volume: VolumeId,
        /// How long a request waits for a server that is away: also those that wait already.
        deadline_ns: Nanos,
        /// Connections, at least 1, if the server permits several. If this changes, a new session is opened at once.
        connections: u32,
        /// Whether the server is to take what the cache evicts. If this changes, a new session is opened at once.
        tiers: Tiers,
    },
    /// A striped volume has this slot in each round of its servers, by the clock of this engine: what it loses of its
    /// slots is measured.
    SetSlot {
        /// The volume.
        volume: VolumeId,
        /// The round, without slots.
        timetable: Box<Timetable>,
        /// The slot; its tenant does not matter.
        slot: Slot,
    },
    /// Accept the loss that a volume reports: give up blocks that could not be written, so that flushes can succeed
    /// again. Answered when no retry of such a block is in flight.
    ClearVolume(VolumeId),
    /// Set the memory budget, bytes, bookkeeping included. Answered with `Done` when the memory above it is free, or
    /// after a bounded time with [`Report::Held`]. The bound is the age limit of dirty data plus 5 s, as dirty data is
    /// written first.
    SetBudget(u64),
    /// Acknowledged data was lost before the volume was opened: its flushes fail until `ClearVolume`.
    DeclareLost(VolumeId),
    /// Set the largest read-ahead window of a stream, bytes; 0 for none; `None`: derived from R and the disk.
    SetPrefetch(Option<u64>),
    /// Set another policy, or other settings of the present one. Queued requests keep their order. The depth is limited
    /// to the initial one.
    SetPolicy(Box<policy::Settings>),
    /// From now on the disk follows this part of a cluster's schedule, when it takes effect; until then, an earlier
    /// one. `None`: it follows no schedule any more. Its tenants are known. A disk that needs no slices, or has another
    /// policy than `insulated`, keeps it for when that changes. A version that is not above the present one is refused.
    SetTimetable(Option<Box<Timetable>>),
    /// The relation of the engine's clock to cluster time, as far as is known.
    SetClock(Clock),
    /// Report all counters and levels: at once with few tenants and volumes, else within some events.
    Snapshot,
    /// Report the miss-ratio curve of a volume's tenant: for the given eviction policy, or for that of its partition.
    Curve(VolumeId, Option<EvictionPolicy>),
    /// Report the latest windows in which a tenant missed its guarantee.
    Violations(TenantId),
    /// From now on writes may be off-loaded. The volumes that lead to the stores are open: on other servers, of a
    /// tenant without other volumes, without clients. Volumes with a [`VolumeSpec::offload`] may be open, or are opened
    /// later; their requests wait until the stores are ready.
    StartOffload(Box<Setup>),
    /// Change when writes are off-loaded and brought home. The number of copies stays.
    SetOffload(Settings),
    /// A store that was missing at the start can be reached: what it has.
    StoreArrived(StoreId, Box<Recovered>),
    /// Bring the content of a store home first, and send it nothing new. When [`StoreStats::is_retired`] says that it
    /// is empty, nothing refers to it any more: its volume can be closed, and the next process can start without it.
    /// Its number stays taken.
    ///
    /// [`StoreStats::is_retired`]: crate::offload::StoreStats::is_retired
    RetireStore(StoreId),
    /// A store is lost: it is not used any more. Refused with [`Refusal::InUse`] if it is open, or empty after
    /// [`Command::RetireStore`]. Content that only this store has stays away, and its number stays taken.
    LoseStore(StoreId),
    /// It was made durable that these versions do not count in their stores, as [`OffloadStats::invalid`] permits.
    ///
    /// [`OffloadStats::invalid`]: crate::offload::OffloadStats::invalid
    Invalidate(Invalid),
    /// Send nothing to stores any more, and report what the next process has to know to start without any of them. The
    /// process ends after that. It is asked again as long as something is on its way to stores.
    MapStores,
    /// Off-load no more, and bring everything home. Answered when nothing is in any store: nothing refers to the stores
    /// any more then.
    EndOffload,
    /// Refuse new requests, finish received ones, flush all volumes. Answered with [`Report::Drained`].
    Drain,
}

/// The engine's answer to a command.
#[derive(Clone, Debug)]
pub enum Report {
    /// Done.
    Done,
    /// Done, but some memory above the new budget is still in use: by replies to stalled readers, or by data that
    /// cannot be written. It becomes free with them; [`Snapshot::held_frames`] is the remaining amount.
    Held {
        /// Bytes in use.
        bytes: u64,
    },
    /// Not done, nothing has changed; the reason.
    Refused(Refusal),
    /// All counters and levels.
    Snapshot(Box<Snapshot>),
    /// The versions in stores that count; `None` if something is on its way.
    Stores(Option<Vec<Known>>),
    /// The miss-ratio curve.
    Curve(Box<View>),
    /// Missed windows, oldest first, at most [`MISSED_MAX`](crate::disk::MISSED_MAX), and the present time on the
    /// driver's clock.
    Violations(Nanos, Vec<Window>),
    /// All volumes were flushed; the flushes of these failed.
    Drained {
        /// Volumes with acknowledged data that is not on the medium.
        failed: Vec<VolumeId>,
    },
}
