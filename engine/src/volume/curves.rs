//! What is measured of a disk's tenants (curves, costs, dirty data): where it comes from, and how much memory it may
//! use.

use crate::config::Config;
use crate::curve::{
    Ack, CURVE_BYTES_PER_FRAME, Cost, Curve, DIRTY_DATA_BYTES_PER_FRAME, DirtyData, DiskUse, Limits, Pauses, Seen,
    Standalone, View,
};
use crate::disk::{Op, Purpose};
use crate::ids::{FrameId, TenantId, VolumeId};
use crate::units::{BLOCK, Nanos, SectorMask, sectors_touched};
use crate::volume::{Kind, Throttle, Volumes};

/// Most bytes of one curve, and of a tenant's miniatures of dirty data.
const CURVE_BYTES_MAX: u64 = 1 << 20;
const DIRT_BYTES_MAX: u64 = 128 << 10;

/// What is measured of a tenant, besides its curve.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) cost: Cost,
    pub(crate) dirty: DirtyData,
    pub(crate) standalone: Standalone,
}

/// The limits of each of `tenants` curves: equal parts. The number is rounded up to a power of two, so that curves
/// seldom change size.
fn limits(config: &Config, tenants: usize) -> Limits {
    let frames = config.frames_max() as u64;
    let bytes = (frames * CURVE_BYTES_PER_FRAME / tenants.next_power_of_two() as u64).min(CURVE_BYTES_MAX);
    // Up to twice the memory, so that the curve shows whether more memory would help.
    Limits::within(bytes as usize, 2 * frames, config.dirty_age_max_ns)
}

impl Volumes {
    /// Gives each tenant whose cache has a purpose a curve of the size for their number. A curve whose size changes
    /// starts empty.
    pub(crate) fn fit_curves(&mut self) {
        let tenants: Vec<_> = self.cache.tenants().map(|(id, _)| id).filter(|&id| !self.is_store(id)).collect();
        let limits = limits(&self.config, tenants.len());
        for tenant in (0..self.measured.past()).map(TenantId) {
            if !tenants.contains(&tenant) {
                self.curves.remove(tenant);
            }
            if !self.cache.has_tenant(tenant) {
                self.measured.remove(tenant);
            }
        }
        for &tenant in &tenants {
            if self.curves.get(tenant).is_none_or(|curve| *curve.limits() != limits) {
                let mut fresh = Curve::new(limits, self.config.seed ^ u64::from(tenant.0));
                let volumes = self.table.values().filter(|volume| volume.spec.tenant == tenant);
                volumes.for_each(|volume| fresh.opened(volume.id()));
                self.curves.insert(tenant, fresh);
            }
        }
        self.fit_dirt(&tenants);
    }

    /// The same for the miniatures of dirty data; those of other tenants have no room and are not used.
    fn fit_dirt(&mut self, tenants: &[TenantId]) {
        let all = self.config.frames_max() as u64 * DIRTY_DATA_BYTES_PER_FRAME;
        let bytes = (all / tenants.len().next_power_of_two() as u64).min(DIRT_BYTES_MAX);
        let all: Vec<_> = self.cache.tenants().map(|(id, _)| id).collect();
        for tenant in all {
            let bytes = if tenants.contains(&tenant) { bytes } else { 0 };
            let dirty = || DirtyData::new(bytes, self.config.dirty_age_max_ns);
            match self.measured.get_mut(tenant) {
                Some(known) if known.dirty.has_bytes(bytes) => {}
                Some(known) => known.dirty = dirty(),
                None => {
                    let fresh = Measured { cost: Cost::default(), dirty: dirty(), standalone: Standalone::default() };
                    self.measured.insert(tenant, fresh);
                }
            }
        }
    }

    /// Records the device time of a device request for blocks of a tenant; `waited`: a client waits for it, if it is a
    /// write.
    pub(crate) fn note_cost(
        &mut self,
        tenant: TenantId,
        (op, purpose, waited): (Op, Purpose, bool),
        time_ns: Nanos,
        blocks: usize,
    ) {
        let dirty = self.cache.partition(tenant).unwritten;
        let cost = &mut self.measured[tenant].cost;
        match op {
            Op::Read => cost.read(time_ns, blocks),
            Op::Write { .. } | Op::Flush => cost.wrote(time_ns, blocks, dirty),
            Op::Zero | Op::Punch => return,
        }
        let of = match (op, purpose) {
            (Op::Read, Purpose::Prefetch(_)) => DiskUse::Prefetch,
            (Op::Read, _) => DiskUse::Fill,
            (Op::Flush, _) => DiskUse::Sync,
            _ if waited => DiskUse::Sync,
            _ => DiskUse::WriteBack,
        };
        cost.add(of, time_ns);
    }

    /// The counters from which a tenant's standalone-equivalent time follows.
    pub(crate) fn seen(&mut self, tenant: TenantId) -> Seen {
        let (disk, now) = (&mut self.route.disk, self.now);
        let plan = disk.plan(now, tenant);
        let [held_ns, held_without_demand_ns] = disk.idle_held_ns(now, tenant);
        Seen {
            now,
            useful_ns: plan.map_or(0, |plan| plan.useful_ns),
            switches_ns: plan.map_or(0, |plan| plan.switches_ns),
            waiting_ns: disk.waiting_ns(now, tenant),
            away_ns: disk.away_ns(now, tenant),
            held_ns,
            held_without_demand_ns,
            ceiling_ns: self.throttles.get(tenant).map_or(0, Throttle::ceiling_ns),
            arrivals: disk.arrivals(now, tenant),
            thought: disk.thought(now, tenant),
            pauses: match disk.settings() {
                settings if settings.has_slices() => Pauses::Idled,
                settings if settings.is_by_cost() => Pauses::All,
                _ => Pauses::Without,
            },
            disk_ns: self.measured[tenant].cost.time_ns(),
            streams_lack: plan.map_or(0.0, |plan| plan.streams_lack()),
        }
    }

    /// Standalone-equivalent time of a tenant's work and of its clients' pauses, nanoseconds: with the whole cache, and
    /// with the cache that it has.
    pub(crate) fn standalone_ns(&mut self, tenant: TenantId) -> [Nanos; 2] {
        let seen = self.seen(tenant);
        self.measured[tenant].standalone.at(&seen)
    }

    /// All dirty data of a volume is being written for a flush.
    pub(crate) fn curve_flushed(&mut self, tenant: TenantId, volume: VolumeId) {
        if let Some(curve) = self.curves.get_mut(tenant) {
            curve.flushed(volume);
            self.measured[tenant].dirty.flush(volume);
        }
    }

    /// A piece of a read continues with the frames that were found.
    pub(crate) fn curve_read(&mut self, piece: u32, volume: VolumeId) {
        let (own, tenant) = (self.virtual_time(volume), self.tenant_of(volume));
        let asked = self.requests[self.pieces[piece].request].kind == Kind::Read;
        let Some(curve) = self.curves.get_mut(tenant) else { return };
        let piece = &self.pieces[piece];
        for (i, &frame) in piece.frames.iter().enumerate() {
            let number = piece.first_block() + i as u64;
            if asked {
                let (start, end) = piece.bytes_in(i);
                curve.read(own, volume, number, sectors_touched(start, end), frame == FrameId::ZERO);
            } else {
                curve.read_ahead(own, volume, number);
            }
        }
    }

    /// A block of a write takes effect.
    pub(crate) fn curve_write(&mut self, volume: VolumeId, number: u64, sectors: SectorMask, durable: bool) {
        let (own, tenant) = (self.virtual_time(volume), self.tenant_of(volume));
        let now = self.now;
        let Some(curve) = self.curves.get_mut(tenant) else { return };
        let Measured { dirty, standalone, .. } = &mut self.measured[tenant];
        dirty.write(own, standalone.alone(now), volume, number, durable);
        curve.write(own, volume, number, sectors, if durable { Ack::Durable } else { Ack::Cached });
    }

    /// Blocks are prefetched.
    pub(crate) fn curve_read_ahead(&mut self, volume: VolumeId, first: u64, past: u64) {
        let (own, tenant) = (self.virtual_time(volume), self.tenant_of(volume));
        let Some(curve) = self.curves.get_mut(tenant) else { return };
        (first..past).for_each(|number| curve.read_ahead(own, volume, number));
    }

    /// The bytes `start..end` were trimmed, or zeroed by the device.
    pub(crate) fn curve_dropped(&mut self, volume: VolumeId, start: u64, end: u64) {
        let tenant = self.tenant_of(volume);
        let Some(curve) = self.curves.get_mut(tenant) else { return };
        curve.dropped(volume, start.div_ceil(BLOCK), (end / BLOCK).max(start.div_ceil(BLOCK)));
    }

    /// A tenant's curve at present, under `policy` or under the policy of its partition; `None` if it has none.
    pub(crate) fn curve_view(&self, tenant: TenantId, policy: Option<crate::eviction::Policy>) -> Option<View> {
        let curve = self.curves.get(tenant)?;
        Some(curve.view(policy.unwrap_or(self.cache.partition(tenant).spec.eviction)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eviction::Policy as EvictionPolicy;
    use crate::nbd::wire::command;
    use crate::spec::TenantSpec;
    use crate::units::SECOND;
    use crate::volume::rig::{Rig, VOLUME};

    const TENANT: TenantId = TenantId(0);

    /// The curve of this tenant is not sampled.
    fn rig() -> Rig {
        let mut rig = Rig::new();
        let mut curve = Curve::new(Limits { places_max: 0, ..Limits::exact(4096, 5 * SECOND) }, 0);
        curve.opened(VOLUME);
        rig.volumes.curves.insert(TENANT, curve);
        rig
    }

    impl Rig {
        fn read_block(&mut self, cookie: u64, block: u64) {
            self.ask(cookie, command::READ, 0, block * BLOCK, BLOCK);
            self.complete_all();
        }

        /// Block reads, block writes, and their miss ratios with the largest cache, in twelfths.
        fn told(&self) -> (f64, f64, Option<f64>, Option<f64>) {
            let view = self.volumes.curve_view(TENANT, None).unwrap();
            let last = view.points.last().unwrap();
            let twelfths = |part: Option<f64>| part.map(|part| (part * 12.0).round());
            (view.reads, view.writes, twelfths(last.reads), twelfths(last.writes))
        }
    }

    #[test]
    fn a_stream_is_not_absorbed_though_it_is_read_ahead() {
        let mut rig = rig();
        (0..200).for_each(|block| rig.read_block(block, block));
        let counters = rig.volumes.volume(VOLUME).counters;
        assert!(counters.prefetched_blocks > 190 && counters.hit_blocks == 0);
        assert_eq!(rig.told(), (200.0, 0.0, Some(12.0), None));
        (0..200).for_each(|block| rig.read_block(block, block));
        assert_eq!(rig.told(), (400.0, 0.0, Some(6.0), None));
    }

    #[test]
    fn overwrites_are_absorbed_until_a_flush_or_a_trim() {
        let mut rig = rig();
        rig.write(0, 0, 0, BLOCK, 1);
        rig.write(1, 0, 512, 1024, 1);
        assert_eq!(rig.told(), (0.0, 2.0, None, Some(6.0)));
        rig.ask(2, command::FLUSH, 0, 0, 0);
        rig.complete_all();
        rig.write(3, 0, 0, BLOCK, 1);
        assert_eq!(rig.told().3, Some(8.0));
        rig.ask(4, command::TRIM, 0, 0, BLOCK);
        rig.write(5, 0, 0, BLOCK, 1);
        assert_eq!(rig.told().3, Some(9.0));
    }

    #[test]
    fn at_the_size_that_it_has_a_partition_does_what_its_curve_says() {
        let mut rig = rig();
        let (mut at, mut reads) = (1u64, 0);
        for cookie in 0..30_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // The square of a uniform number: some blocks are read much more often than others.
            let unit = (at >> 11) as f64 / (1u64 << 53) as f64;
            let block = (unit * unit * 2048.0) as u64;
            if at >> 5 & 3 == 0 {
                rig.write(cookie, 0, block * BLOCK, BLOCK, 1);
            } else {
                reads += 1;
                rig.read_block(cookie, block);
            }
        }
        let counters = rig.volumes.volume(VOLUME).counters;
        let missed = counters.miss_blocks as f64 / f64::from(reads);
        let frames = u64::from(rig.volumes.cache.partition(TENANT).target);
        let view = rig.volumes.curve_view(TENANT, None).unwrap();
        let said = view.points.iter().rfind(|point| point.blocks <= frames).unwrap().reads.unwrap();
        assert!((missed - said).abs() < 0.02 && (0.1..0.9).contains(&missed), "{missed} with {frames}, not {said}");
    }

    #[test]
    fn curves_share_what_there_is_for_them() {
        let config = Config::new(1 << 30);
        let all = config.frames_max() as u64 * CURVE_BYTES_PER_FRAME;
        for tenants in [1, 3, 15, 16, 40, 100, 1000] {
            let bytes = limits(&config, tenants).bytes() as u64;
            assert!(bytes <= CURVE_BYTES_MAX && bytes * tenants as u64 <= all, "{tenants} tenants: {bytes} each");
        }
        let mut rig = Rig::new();
        rig.set_tenant(TenantId(2), TenantSpec { eviction: EvictionPolicy::Sieve, ..TenantSpec::default() });
        assert!(!rig.volumes.curves.contains(TenantId(1)) && rig.volumes.curves.contains(TenantId(2)));
        assert_eq!(rig.volumes.curve_view(TenantId(2), None).unwrap().policy, EvictionPolicy::Sieve);
        rig.command(|volumes| volumes.drop_tenant(TenantId(2)));
        assert_eq!(rig.volumes.curves.iter().count(), 1);
    }
}
