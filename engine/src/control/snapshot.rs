//! What can be seen of a disk machine: counters since its start, and levels of now.

use crate::control::{Sizing, TenantId};
use crate::disk::VolumeId;
use crate::disk::policy::{DiskTime, Slice, TenantPlan};
use crate::latency::Latencies;
use crate::units::Nanos;

/// Buckets of a [`Histogram`]: bucket i counts latencies below 2^i microseconds, the last one all others.
pub const BUCKETS: usize = 26;

/// Latencies, by powers of two of a microsecond: what is summed up over volumes and servers. Exact percentiles are
/// those of [`TenantStats::latency`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Histogram {
    /// Counts by bucket.
    pub buckets: [u64; BUCKETS],
    /// Sum of all latencies, nanoseconds.
    pub sum_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: [0; BUCKETS], sum_ns: 0 }
    }
}

impl Histogram {
    /// Count one latency.
    pub fn record(&mut self, latency_ns: Nanos) {
        let us = latency_ns / 1000;
        let bucket = (64 - us.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
        self.sum_ns += latency_ns;
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The upper bound of bucket `i`, nanoseconds; `None` for the last.
    pub fn bound_ns(i: usize) -> Option<Nanos> {
        (i + 1 < BUCKETS).then(|| 1000 << i)
    }
}

/// One kind of request of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpStats {
    /// Requests answered, errors included.
    pub requests: u64,
    /// Bytes asked for by them.
    pub bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// From the header's arrival to the reply's being handed to the socket; of the latest ones not yet.
    pub latency: Histogram,
}

/// A volume.
#[derive(Clone, Debug)]
pub struct VolumeStats {
    /// Which.
    pub volume: VolumeId,
    /// Whose.
    pub tenant: TenantId,
    /// Bytes.
    pub size: u64,
    /// Reads.
    pub read: OpStats,
    /// Writes.
    pub write: OpStats,
    /// Flushes.
    pub flush: OpStats,
    /// TRIM, WRITE_ZEROES, CACHE, BLOCK_STATUS.
    pub other: OpStats,
    /// Blocks of reads found in the cache, those of `prefetched_blocks` aside.
    pub hit_blocks: u64,
    /// Blocks of reads that were read ahead, or on their way, before anybody asked for them.
    pub prefetched_blocks: u64,
    /// Blocks of reads that had to come from the device.
    pub miss_blocks: u64,
    /// Nanoseconds that requests, their replies up to the last byte, and what the device had done for them waited while
    /// the thread did other work.
    pub thread_delay_ns: u64,
    /// Nanoseconds that requests waited for frames of their partition.
    pub cache_delay_ns: u64,
    /// Nanoseconds that device requests waited before they were given to the device, while their tenant could have had
    /// it.
    pub queue_delay_ns: u64,
    /// Nanoseconds that device requests waited while the disk was another tenant's.
    pub slice_delay_ns: u64,
    /// Nanoseconds that device requests were in the device.
    pub disk_delay_ns: u64,
    /// Bytes read from the device.
    pub device_read_bytes: u64,
    /// Bytes written to the device.
    pub device_write_bytes: u64,
    /// Device requests that failed.
    pub device_errors: u64,
    /// Clients disconnected because they did not read their replies while others waited for the memory.
    pub deaf_disconnects: u64,
    /// Clients disconnected because they did not send the payload of a write while others waited for the memory.
    pub stalled_disconnects: u64,
    /// Blocks that were read ahead and then asked for.
    pub prefetch_used_blocks: u64,
    /// Blocks that were read ahead and dropped or overwritten before anybody asked for them.
    pub prefetch_wasted_blocks: u64,
    /// Blocks acknowledged and not yet written.
    pub dirty_blocks: u64,
    /// Bytes never written, which read as zero.
    pub hole_bytes: u64,
    /// Acknowledged data is known to be lost: flushes fail until `clear`.
    pub lost: bool,
    /// The last write-back or device flush failed: flushes fail until one succeeds.
    pub failing: bool,
    /// Open connections.
    pub connections: u32,
}

/// A tenant.
#[derive(Clone, Copy, Debug)]
pub struct TenantStats {
    /// Which.
    pub tenant: TenantId,
    /// Frames it may use.
    pub target_frames: u64,
    /// Frames it uses: cached, being received, being sent.
    pub used_frames: u64,
    /// Of those, dirty.
    pub dirty_frames: u64,
    /// Nanoseconds in which a client's request, or a device request on behalf of a client, was outstanding. Flushes
    /// that the server makes by itself do not count.
    pub wanting_ns: Nanos,
    /// What its work so far would have taken alone, with the whole disk and the whole cache, nanoseconds; 0 under a
    /// policy that does not tell tenants apart. A little of it may be taken back when a slice ends.
    pub worth_ns: Nanos,
    /// Its disk time; `None` under a policy that does not tell tenants apart.
    pub plan: Option<TenantPlan>,
    /// How long its reads and writes took, from arrival to answer.
    pub latency: Latencies,
    /// What was decided for it; `None` under a policy that does not tell tenants apart.
    pub sizing: Option<Sizing>,
    /// The part of block reads and writes that would go to the disk with half, as much and twice as much cache, as its
    /// curve has it. `None` before it was asked for anything.
    pub miss_ratios: [Option<f64>; 3],
}

/// A connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionStats {
    /// What it opened.
    pub volume: VolumeId,
    /// Requests received and not yet answered.
    pub in_flight: u32,
}

/// Everything at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When, on the driver's clock.
    pub now: Nanos,
    /// Bytes of memory it may use, bookkeeping included.
    pub budget_bytes: u64,
    /// Frames of the cache.
    pub frames: u64,
    /// Frames nobody uses.
    pub free_frames: u64,
    /// Frames that were given up and are still in use.
    pub held_frames: u64,
    /// Nanoseconds with at least one request in the device.
    pub busy_ns: u64,
    /// Nanoseconds with none.
    pub idle_ns: u64,
    /// Device requests waiting for their turn.
    pub queued: u64,
    /// Device requests in the device.
    pub in_flight: u64,
    /// By volume.
    pub volumes: Vec<VolumeStats>,
    /// By tenant.
    pub tenants: Vec<TenantStats>,
    /// By connection.
    pub connections: Vec<ConnectionStats>,
    /// Whose the disk's time was.
    pub time: DiskTime,
    /// The last slices, oldest first.
    pub slices: Vec<Slice>,
}

#[cfg(test)]
mod tests {
    use crate::control::{Command, TenantId, TenantSpec, VolumeSpec};
    use crate::disk::{Op, VolumeId, policy};
    use crate::event::{ConnId, Event, Session};
    use crate::nbd::wire::command;
    use crate::rig::{Rig, VOLUME_BYTES};
    use crate::units::{BLOCK, MILLISECOND};

    const CLIENT: ConnId = ConnId(2);

    #[test]
    fn the_servers_own_flush_is_neither_demand_of_the_tenant_nor_useful_work() {
        for needs_slices in [true, false] {
            let mut rig = Rig::new();
            let kind = policy::Kind::Insulated;
            let settings = policy::Settings { kind, needs_slices, ..*rig.server.device.settings() };
            rig.command(8, Command::SetPolicy(Box::new(settings)));
            let plain = VolumeSpec::plain(VolumeId(1), TenantId(1), VOLUME_BYTES as u64);
            rig.command(10, Command::SetTenant(TenantId(1), TenantSpec::default()));
            rig.command(11, Command::OpenVolume(VolumeSpec { unflushed: true, ..plain }));
            let books = |rig: &mut Rig| {
                let snapshot = rig.server.snapshot();
                let stats = snapshot.tenants.iter().find(|stats| stats.tenant == TenantId(1)).expect("the tenant");
                (stats.wanting_ns, stats.worth_ns)
            };
            rig.wait(3 * MILLISECOND);
            assert_eq!((rig.ops(), books(&mut rig)), (vec![Op::Flush], (0, 0)), "slices: {needs_slices}");
            rig.complete_all();
            // The disk is still held for the tenant, as after a request of a client.
            rig.wait(5 * MILLISECOND);
            assert_eq!(books(&mut rig), (0, 0), "slices: {needs_slices}");
            rig.handle(Event::Attach { conn: CLIENT, volume: VolumeId(1), session: Session::default() });
            rig.ask_as(CLIENT, 1, command::READ, 0, 0, BLOCK);
            rig.wait(4 * MILLISECOND);
            rig.complete_all();
            let (wanting, worth) = books(&mut rig);
            assert_eq!(wanting, 4 * MILLISECOND, "slices: {needs_slices}");
            assert!(worth > 0 && worth <= wanting, "slices: {needs_slices}, {worth} ns");
        }
    }
}
