//! What a snapshot reports: counters since the start of the engine, and current levels.

use crate::allocate::{Counters, Observed, Sum};
use crate::control::Sizing;
use crate::disk::WindowCounts;
use crate::disk::policy::{DiskTime, Slice, TenantPlan, Usage};
use crate::ids::{TenantId, VolumeId};
use crate::latency::Latencies;
use crate::offload::OffloadStats;
use crate::stats::{DemotionStats, Fills, Hits, OpStats};
use crate::units::{BLOCK, Nanos};
use crate::upstream::UpstreamStats;

/// A volume.
#[derive(Clone, Debug)]
pub struct VolumeStats {
    /// The volume.
    pub volume: VolumeId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Size, bytes.
    pub size: u64,
    /// Reads.
    pub read: OpStats,
    /// Writes.
    pub write: OpStats,
    /// Flushes.
    pub flush: OpStats,
    /// TRIM, WRITE_ZEROES, CACHE, BLOCK_STATUS.
    pub other: OpStats,
    /// Blocks of reads found in the cache, without `prefetched_blocks`.
    pub hit_blocks: u64,
    /// Blocks of reads that were prefetched, or whose prefetch was in progress, when a client first requested them.
    pub prefetched_blocks: u64,
    /// Blocks of reads that were read from the device.
    pub miss_blocks: u64,
    /// Reads whose blocks were all in the cache.
    pub hits: Hits,
    /// Device reads that clients waited for.
    pub fills: Fills,
    /// Nanoseconds that requests, their replies up to the last byte, and their device completions waited while the
    /// thread did other work.
    pub thread_delay_ns: u64,
    /// Nanoseconds for which the ceilings of its tenant held requests back.
    pub ceiling_delay_ns: u64,
    /// Nanoseconds that requests waited for frames of their partition.
    pub cache_delay_ns: u64,
    /// Nanoseconds that device requests waited in the queue while their tenant owned the disk or could have owned it.
    pub queue_delay_ns: u64,
    /// Nanoseconds that device requests waited while other tenants owned the disk.
    pub slice_delay_ns: u64,
    /// Nanoseconds that device requests were in the device.
    pub disk_delay_ns: u64,
    /// Bytes read from the device.
    pub device_read_bytes: u64,
    /// Bytes written to the device.
    pub device_write_bytes: u64,
    /// Device requests that failed.
    pub device_errors: u64,
    /// Stalled readers that were disconnected: clients that did not receive replies while others waited for the memory.
    pub stalled_reader_disconnects: u64,
    /// Stalled writers that were disconnected: clients that did not send a write's payload while others waited for the
    /// memory.
    pub stalled_writer_disconnects: u64,
    /// Prefetched blocks that a client requested later.
    pub prefetch_used_blocks: u64,
    /// Prefetched blocks that were dropped or overwritten before a client requested them.
    pub prefetch_wasted_blocks: u64,
    /// What its cache and that of its client, or of its server, have exchanged.
    pub demotions: DemotionStats,
    /// The servers that have it, if it is not on the disk: several if it is striped, in their order.
    pub upstreams: Vec<UpstreamStats>,
    /// What it loses of a slot on average, if it is striped, has slots, and uses them.
    pub slot_loss_ns: Option<Nanos>,
    /// Bytes whose newest content is in off-load stores and not on the disk.
    pub offloaded_bytes: u64,
    /// Blocks acknowledged but not written to the device.
    pub dirty_blocks: u64,
    /// Never-written bytes, which read as zero.
    pub hole_bytes: u64,
    /// Acknowledged data was lost: flushes fail until `clear`.
    pub lost: bool,
    /// The last write-back or device flush failed: flushes fail until one succeeds.
    pub failing: bool,
    /// Open connections.
    pub connections: u32,
}

/// A tenant.
#[derive(Clone, Copy, Debug)]
pub struct TenantStats {
    /// The tenant.
    pub tenant: TenantId,
    /// Target size of its partition, frames.
    pub target_frames: u64,
    /// Frames in use: cached, being received, being sent.
    pub used_frames: u64,
    /// Dirty frames among them.
    pub dirty_frames: u64,
    /// Time with demand: nanoseconds in which a request of a client, or a device request on behalf of a client, was
    /// outstanding. Flushes that the server makes by itself do not count.
    pub wanting_ns: Nanos,
    /// Nanoseconds in which a request of a client was outstanding.
    pub waiting_ns: Nanos,
    /// The most requests of clients that were outstanding at once in the last 10 to 20 seconds with requests.
    pub outstanding_max: u32,
    /// Nanoseconds in which the tenant's ceilings held at least one request back.
    pub throttled_ns: Nanos,
    /// What live insulation follows from; `None` under a policy without a model of standalone throughput.
    pub progress: Option<Progress>,
    /// The plan for it; `None` under a policy that promises nothing.
    pub plan: Option<TenantPlan>,
    /// What it requested of the disk, and the disk time that it had.
    pub usage: Usage,
    /// The disk time of its completed requests, by use.
    pub spent: Spent,
    /// The windows of its guarantee; `None` if it has none.
    pub windows: Option<WindowCounts>,
    /// Latencies of its reads and writes, from arrival to answer.
    pub latency: Latencies,
    /// Its sizing decision; `None` under a policy that does not distinguish tenants.
    pub sizing: Option<Sizing>,
    /// Miss ratio of block reads and writes with half its present cache, with its present cache and with twice as much,
    /// according to its miss-ratio curve when the planner last saw it. `None` before that.
    pub miss_ratios: [Option<f64>; 3],
}

/// Disk time of a tenant's completed requests, nanoseconds. On a disk with heads, that of a request is the time since
/// the previous completion, or since its submission if that is later.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Spent {
    /// Reads that a client waited for.
    pub fill_ns: Nanos,
    /// Reads ahead of a stream.
    pub prefetch_ns: Nanos,
    /// Writes of dirty data that no client waited for.
    pub write_back_ns: Nanos,
    /// Writes that a client or a flush waited for, and flushes of the device.
    pub sync_ns: Nanos,
}

/// A tenant's progress since the start, compared with what it would have been standalone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Standalone-equivalent time of its work and of its clients' pauses with the whole cache, nanoseconds. May
    /// decrease slightly when a slice ends.
    pub standalone_ns: Nanos,
    /// The same with the cache that it has.
    pub own_cache_ns: Nanos,
    /// By how much both may be off in each direction: under the policy `none` they are estimated from the profile.
    pub uncertain_ns: Nanos,
    /// The time to compare it with, nanoseconds: where requests are ordered by cost, the time with demand; else all
    /// time in which a client was there (its pauses were shorter than 3 s).
    pub elapsed_ns: Nanos,
    /// Requests of clients that succeeded.
    pub requests: u64,
    /// Whether it is known at present what the whole cache would gain.
    pub is_certain: bool,
}

/// Live insulation is not shown if it may be off by more than this: a tenant that keeps 0.03 of its share is told from
/// one that keeps 0.9 in any case.
const UNCERTAIN_MOST: f64 = 0.1;

impl Progress {
    /// Live insulation since an earlier moment: standalone-equivalent time / (share x time), with the whole cache: an
    /// estimate. `None` if no request was answered in between, if counters were reset, if it is not known what the
    /// whole cache would gain, or if an estimate from the profile may be off by more than [`UNCERTAIN_MOST`].
    pub fn insulation_since(&self, earlier: &Progress, share: f64) -> Option<f64> {
        self.since(earlier, share, |progress| progress.standalone_ns).filter(|_| self.is_certain)
    }

    /// Live insulation since an earlier moment with the cache that the tenant has: what it keeps of its share of a disk
    /// of its own with that cache. With insulation it is measured, and promised to every tenant. `None` if no request
    /// was answered in between, if counters were reset, or if an estimate from the profile may be off by more than
    /// [`UNCERTAIN_MOST`].
    pub fn own_cache_insulation_since(&self, earlier: &Progress, share: f64) -> Option<f64> {
        self.since(earlier, share, |progress| progress.own_cache_ns)
    }

    fn since(&self, earlier: &Progress, share: f64, time_ns: fn(&Progress) -> Nanos) -> Option<f64> {
        let standalone_ns = time_ns(self).checked_sub(time_ns(earlier))?;
        let due_ns = self.elapsed_ns.checked_sub(earlier.elapsed_ns)? as f64 * share;
        let uncertain_ns = self.uncertain_ns.checked_sub(earlier.uncertain_ns)? as f64;
        let has_work = self.requests > earlier.requests && standalone_ns > 0 && due_ns > 0.0;
        (has_work && uncertain_ns <= UNCERTAIN_MOST * due_ns).then(|| standalone_ns as f64 / due_ns)
    }
}

/// A connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionStats {
    /// Its volume.
    pub volume: VolumeId,
    /// Outstanding requests.
    pub in_flight: u32,
}

/// All counters and levels at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The time, on the driver's clock.
    pub now: Nanos,
    /// Changes with the tenants, the memory and the policy.
    pub generation: u64,
    /// Whether the planner has divided the disk for this generation. Otherwise the cache is divided provisionally, and
    /// tenants may have less than they were promised.
    pub is_planned: bool,
    /// Memory budget, bytes, bookkeeping included.
    pub budget_bytes: u64,
    /// Frames of the cache.
    pub frames: u64,
    /// Unused frames.
    pub free_frames: u64,
    /// Retired frames that are still in use.
    pub held_frames: u64,
    /// Nanoseconds with at least one request in the device.
    pub busy_ns: u64,
    /// Nanoseconds without a request in the device.
    pub idle_ns: u64,
    /// Queued device requests.
    pub queued: u64,
    /// Device requests in the device.
    pub in_flight: u64,
    /// By volume.
    pub volumes: Vec<VolumeStats>,
    /// By tenant.
    pub tenants: Vec<TenantStats>,
    /// By connection.
    pub connections: Vec<ConnectionStats>,
    /// The accounting of the disk's time.
    pub time: DiskTime,
    /// The most recent slices, oldest first.
    pub slices: Vec<Slice>,
    /// The state of off-loading, if writes may be off-loaded.
    pub offload: Option<OffloadStats>,
}

impl Snapshot {
    /// What a tenant did since the start, as evidence for allocations. `None` if there is no such tenant.
    pub fn counters(&self, tenant: TenantId) -> Option<Counters> {
        let stats = self.tenants.iter().find(|stats| stats.tenant == tenant)?;
        let spent = stats.spent;
        let mut all = Counters {
            elapsed_ns: self.now as f64,
            outstanding_max: stats.outstanding_max,
            device_requests: stats.usage.completed.requests as f64,
            disk: Observed {
                writes_ns: (spent.write_back_ns + spent.sync_ns) as f64,
                owned_ns: stats.usage.owned_ns as f64,
                ..Observed::default()
            },
            rounds: stats.plan.map_or(Sum::default(), |plan| Sum::of(plan.rounds, plan.rounds_ns)),
            ..Counters::default()
        };
        all.disk.reads.service_ns = spent.fill_ns as f64;
        for volume in self.volumes.iter().filter(|volume| volume.tenant == tenant) {
            let (reads, writes, fills) = (&volume.read.latency, &volume.write.latency, &volume.fills);
            all.reads.add(reads.count(), reads.sum_ns);
            all.hits.add(volume.hits.requests, volume.hits.sum_ns);
            all.missed_bytes += (volume.miss_blocks * BLOCK) as f64;
            all.writes.add(writes.count(), writes.sum_ns);
            all.fills.add(fills.requests, fills.queued_ns + fills.slice_ns + fills.device_ns);
            let Observed { reads, beside_writes, .. } = &mut all.disk;
            reads.count += fills.requests as f64;
            reads.device_ns += fills.device_ns as f64;
            beside_writes.count += fills.beside_writes.requests as f64;
            beside_writes.device_ns += fills.beside_writes.device_ns as f64;
            beside_writes.service_ns += fills.beside_writes.service_ns as f64;
        }
        Some(all)
    }
}
