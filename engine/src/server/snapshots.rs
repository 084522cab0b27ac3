//! Snapshots: collected in steps, so that no pass of the thread takes long, and answered in the order of the commands.
//! The first step is done with the command, each further one with a timer event without evidence for the planner.

use std::collections::VecDeque;

use super::Server;
use crate::control::{ConnectionStats, Progress, Report, Snapshot, Spent, TenantStats, VolumeStats};
use crate::curve::DISK_USES;
use crate::ids::{TenantId, VolumeId};
use crate::units::Nanos;
use crate::upstream::Upstream;
use crate::volume::{Volume, Volumes};

/// Tenants in one step: about 5 us for each, because of the percentiles of its latencies.
const TENANTS_PER_STEP: usize = 16;
/// Volumes in one step: about 0.5 us for each.
const VOLUMES_PER_STEP: u32 = 64;

/// Commands for a snapshot, and the snapshot that is being collected for the first of them.
#[derive(Default, Debug)]
pub(crate) struct Snapshots {
    tokens: VecDeque<u64>,
    partial: Box<Snapshot>,
    /// The next volume and the next tenant.
    next: (u32, u32),
}

impl Snapshots {
    /// Whether commands wait.
    pub(crate) fn are_wanted(&self) -> bool {
        !self.tokens.is_empty()
    }
}

impl Server {
    /// All counters and levels, as [`Command::Snapshot`](crate::control::Command::Snapshot) reports them.
    pub fn snapshot(&mut self) -> Snapshot {
        let (mut snapshot, mut next) = (Snapshot::default(), (0, 0));
        while !self.add_to_snapshot(&mut snapshot, &mut next) {}
        snapshot
    }

    /// A command for a snapshot.
    pub(crate) fn want_snapshot(&mut self, token: u64) {
        self.snapshots.tokens.push_back(token);
        if self.snapshots.tokens.len() == 1 {
            self.answer_snapshots();
        }
    }

    /// A step of the snapshot that is wanted.
    pub(crate) fn answer_snapshots(&mut self) {
        if !self.snapshots.are_wanted() {
            return;
        }
        let mut snapshot = std::mem::take(&mut self.snapshots.partial);
        let mut next = self.snapshots.next;
        if !self.add_to_snapshot(&mut snapshot, &mut next) {
            (self.snapshots.partial, self.snapshots.next) = (snapshot, next);
            return;
        }
        self.snapshots.next = (0, 0);
        if let Some(token) = self.snapshots.tokens.pop_front() {
            self.report(token, Report::Snapshot(snapshot));
        }
    }

    /// Adds some volumes and tenants, and completes the snapshot after the last; whether it is complete.
    fn add_to_snapshot(&mut self, snapshot: &mut Snapshot, next: &mut (u32, u32)) -> bool {
        self.front.leave_at_once(&mut self.volumes);
        let all = self.volumes.table.past();
        if *next == (0, 0) {
            // Otherwise one step would move all that the earlier ones have collected.
            snapshot.volumes.reserve_exact(all as usize);
            snapshot.tenants.reserve_exact(self.volumes.cache.tenants().count());
        }
        let past = (next.0 + VOLUMES_PER_STEP).min(all);
        let volumes = (next.0..past).filter_map(|at| self.volumes.table.get(VolumeId(at)));
        snapshot.volumes.extend(volumes.map(|volume| self.volume_stats(volume)));
        next.0 = next.0.max(past);
        let ids = self.volumes.cache.tenants().map(|(id, _)| id).skip_while(|id| id.0 < next.1);
        let some: Vec<TenantId> = ids.take(TENANTS_PER_STEP + 1).collect();
        for &tenant in some.iter().take(TENANTS_PER_STEP) {
            snapshot.tenants.push(self.tenant_stats(tenant));
            next.1 = tenant.0 + 1;
        }
        if past < all || some.len() > TENANTS_PER_STEP {
            return false;
        }
        self.complete(snapshot);
        true
    }

    fn complete(&mut self, snapshot: &mut Snapshot) {
        self.volumes.route.disk.books().account(self.volumes.now);
        let (busy_ns, idle_ns) = self.volumes.route.disk.books().busy_and_idle_ns();
        let pool = self.volumes.cache.pool();
        let (volumes, tenants) = (std::mem::take(&mut snapshot.volumes), std::mem::take(&mut snapshot.tenants));
        *snapshot = Snapshot {
            now: self.volumes.now,
            generation: self.planning.generation(),
            is_planned: self.planning.is_planned(),
            budget_bytes: self.volumes.config.budget_bytes,
            frames: u64::from(pool.limit()),
            free_frames: u64::from(pool.available()),
            held_frames: u64::from(pool.retiring()),
            busy_ns,
            idle_ns,
            queued: self.volumes.route.disk.waiting() as u64,
            in_flight: u64::from(self.volumes.route.disk.in_device()),
            volumes,
            tenants,
            connections: (self.volumes.clients.values())
                .map(|client| ConnectionStats { volume: client.volume, in_flight: client.in_flight })
                .collect(),
            time: self.volumes.route.disk.time(self.volumes.now),
            slices: self.volumes.route.disk.slices(),
            offload: self.volumes.route.offload_stats(self.volumes.now),
        };
    }

    fn volume_stats(&self, volume: &Volume) -> VolumeStats {
        let (counters, cached) = (&volume.counters, self.volumes.cache.volume(volume.id()));
        VolumeStats {
            volume: volume.id(),
            tenant: volume.spec.tenant,
            size: volume.spec.size,
            read: counters.read,
            write: counters.write,
            flush: counters.flush,
            other: counters.other,
            hit_blocks: counters.hit_blocks,
            prefetched_blocks: counters.prefetched_blocks,
            miss_blocks: counters.miss_blocks,
            hits: counters.hits,
            fills: counters.fills,
            thread_delay_ns: counters.thread_delay_ns,
            ceiling_delay_ns: counters.ceiling_delay_ns,
            cache_delay_ns: counters.cache_delay_ns,
            queue_delay_ns: counters.queue_delay_ns,
            slice_delay_ns: counters.slice_delay_ns,
            disk_delay_ns: counters.disk_delay_ns,
            device_read_bytes: counters.device_read_bytes,
            device_write_bytes: counters.device_write_bytes,
            device_errors: counters.device_errors,
            stalled_reader_disconnects: counters.stalled_reader_disconnects,
            stalled_writer_disconnects: counters.stalled_writer_disconnects,
            prefetch_used_blocks: cached.prefetch_used,
            prefetch_wasted_blocks: cached.prefetch_wasted,
            demotions: self.volumes.demotion_stats(volume.id()),
            upstreams: self.volumes.route.upstreams(volume.id()).map(Upstream::stats).collect(),
            slot_loss_ns: self.volumes.route.slot_loss_ns(volume.id()),
            offloaded_bytes: self.volumes.route.away_bytes(volume.id()),
            dirty_blocks: u64::from(cached.unwritten),
            hole_bytes: volume.holes.bytes(),
            lost: volume.flushes.lost,
            failing: cached.failing > 0 || volume.flushes.failing,
            connections: volume.connections,
        }
    }

    fn tenant_stats(&mut self, tenant: TenantId) -> TenantStats {
        let Server { volumes, front, planning, .. } = self;
        let plan = volumes.route.disk.plan(volumes.now, tenant);
        let standalone_ns = plan.filter(|_| !volumes.is_store(tenant)).map(|_| volumes.standalone_ns(tenant));
        let Volumes { cache, route, measured, now, throttles, .. } = volumes;
        let is_certain = measured[tenant].standalone.is_certain;
        let (partition, device) = (cache.partition(tenant), &mut route.disk);
        let away_ns = device.away_ns(*now, tenant);
        let (wanting_ns, usage) = (device.wanting_ns(*now, tenant), device.usage(*now, tenant));
        TenantStats {
            tenant,
            target_frames: u64::from(partition.target),
            used_frames: u64::from(partition.used),
            dirty_frames: u64::from(partition.unwritten),
            usage,
            spent: spent(measured[tenant].cost.time_ns()),
            wanting_ns,
            waiting_ns: device.waiting_ns(*now, tenant),
            throttled_ns: throttles.get(tenant).map_or(0, |throttle| throttle.throttled_ns(*now)),
            progress: standalone_ns.map(|[standalone_ns, own_cache_ns]| Progress {
                standalone_ns,
                own_cache_ns,
                elapsed_ns: if device.settings().is_by_cost() { wanting_ns } else { *now - away_ns },
                uncertain_ns: plan.map_or(0, |plan| plan.uncertain_ns),
                requests: usage.delivered.requests,
                is_certain,
            }),
            windows: device.windows(*now, tenant),
            plan,
            latency: front.latencies[tenant].summary(*now),
            sizing: planning.sizing(tenant),
            miss_ratios: planning.miss_ratios(tenant),
        }
    }
}

/// Disk time in the order of `DiskUse`.
fn spent(time_ns: [f64; DISK_USES]) -> Spent {
    let [fill_ns, prefetch_ns, write_back_ns, sync_ns] = time_ns.map(|ns| ns as Nanos);
    Spent { fill_ns, prefetch_ns, write_back_ns, sync_ns }
}

#[cfg(test)]
mod tests {
    use crate::control::{Command, TenantSpec, VolumeSpec};
    use crate::disk::{Op, policy};
    use crate::event::{Event, Session};
    use crate::ids::{ConnId, TenantId, VolumeId};
    use crate::nbd::wire::command;
    use crate::rig::{Rig, VOLUME_BYTES};
    use crate::units::{BLOCK, MILLISECOND};

    const CLIENT: ConnId = ConnId(2);

    #[test]
    fn the_servers_own_flush_is_neither_demand_of_the_tenant_nor_useful_work() {
        for needs_slices in [true, false] {
            let mut rig = Rig::new();
            let kind = policy::Kind::Insulated;
            let settings = policy::Settings { kind, needs_slices, ..*rig.server.volumes.route.disk.settings() };
            rig.command(8, Command::SetPolicy(Box::new(settings)));
            let plain = VolumeSpec::plain(VolumeId(1), TenantId(1), VOLUME_BYTES as u64);
            rig.command(10, Command::SetTenant(TenantId(1), TenantSpec::default()));
            rig.command(11, Command::OpenVolume(VolumeSpec { unflushed: true, ..plain }));
            let books = |rig: &mut Rig| {
                let snapshot = rig.server.snapshot();
                let stats = snapshot.tenants.iter().find(|stats| stats.tenant == TenantId(1)).expect("the tenant");
                (stats.wanting_ns, stats.progress.map_or(0, |progress| progress.standalone_ns))
            };
            rig.wait(3 * MILLISECOND);
            assert_eq!((rig.ops(), books(&mut rig)), (vec![Op::Flush], (0, 0)), "slices: {needs_slices}");
            rig.complete_all();
            // The disk still idles for the tenant, as after a request of a client.
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
