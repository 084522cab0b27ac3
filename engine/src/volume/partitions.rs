//! The partitions of tenants: created, resized, dropped; their frames move in steps.

use super::lifecycle::DROP_UNITS;
use super::{Timer, Todo, Volumes, Waiting};
use crate::ids::TenantId;
use crate::spec::{CacheSpec, Refusal, TenantSpec};
use crate::units::{MILLISECOND, Nanos};

/// Frames that all shrinking partitions together give back in one event: about 60 us.
const SHED_FRAMES: u32 = 256;
/// Time until the next search for frames after one that found none. Frames of dirty blocks and of unread replies will
/// hardly be free a millisecond later.
const IN_USE_STEP_NS: Nanos = 100 * MILLISECOND;

impl Volumes {
    /// Creates a tenant, or changes its settings. Returns the cache size that it had requested before.
    pub(crate) fn set_tenant(&mut self, tenant: TenantId, spec: TenantSpec) -> Option<CacheSpec> {
        let before = self.cache.has_tenant(tenant).then(|| self.cache.partition(tenant).spec.cache);
        self.cache.set_tenant(tenant, spec);
        self.route.disk.set_tenant(self.now, tenant, spec.terms());
        if before.is_none() {
            self.waiting.insert(tenant, Waiting::default());
        }
        self.set_ceilings(tenant, &spec.ceilings);
        self.fit_curves();
        before
    }

    /// Whether the volumes of a tenant are stores.
    pub(crate) fn is_store(&self, tenant: TenantId) -> bool {
        self.cache.partition(tenant).spec.is_store
    }

    pub(crate) fn drop_tenant(&mut self, tenant: TenantId) -> Result<(), Refusal> {
        if !self.cache.has_tenant(tenant) {
            return Err(Refusal::UnknownTenant);
        }
        let partition = self.cache.partition(tenant);
        if partition.volumes > 0 || partition.used > 0 {
            return Err(Refusal::InUse);
        }
        self.cache.drop_tenant(tenant);
        self.route.disk.drop_tenant(self.now, tenant);
        self.waiting.remove(tenant);
        self.throttles.remove(tenant);
        self.fit_curves();
        Ok(())
    }

    pub(crate) fn set_targets(&mut self, targets: &[(TenantId, u32)]) {
        for &(tenant, target) in targets {
            let partition = self.cache.partition_mut(tenant);
            partition.target = target + u32::from(planted!(PartitionsTooLarge)) * 8;
            partition.stirred = true;
            // The bound of unsent reply bytes depends on the partition.
            if std::mem::take(&mut partition.throttled) {
                self.put_off(Todo::Replies(tenant));
            }
        }
        self.timers.wake_at(Timer::Frames, self.now);
    }

    /// Partitions above their targets give frames back; unused frames above the limit are retired. Continues after
    /// `step` unless it returns true: all frames are where they belong.
    pub(crate) fn move_frames(&mut self, step: Nanos) -> bool {
        // A frame that one tenant gives back may serve requests of another.
        let tenants: Vec<_> = self.cache.tenants().map(|(id, _)| id).collect();
        tenants.into_iter().for_each(|id| self.cache.partition_mut(id).stirred = true);
        let over: Vec<_> = self.cache.tenants().filter(|(_, p)| p.used > p.target).map(|(id, _)| id).collect();
        let (mut freed, mut more) = (0, false);
        let each = (SHED_FRAMES / over.len().max(1) as u32).max(1);
        for &tenant in &over {
            let (count, remain) = self.cache.shed(tenant, each);
            (freed, more) = (freed + count, more || remain);
            self.pass_evicted();
            self.charge(tenant, DROP_UNITS * each);
        }
        self.poke_tenants(&over);
        let retires = self.cache.retire_frames();
        if more || retires {
            let step = if freed == 0 && !retires { step.max(IN_USE_STEP_NS) } else { step };
            self.timers.wake_at(Timer::Frames, self.now + step);
        }
        !(more || retires)
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::Op;
    use crate::ids::{ConnId, TenantId, VolumeId};
    use crate::nbd::wire::command;
    use crate::spec::{CacheSpec, Refusal, STORE_CACHE_BYTES, TenantSpec, VolumeSpec, WriteCache};
    use crate::units::BLOCK;
    use crate::volume::rig::Rig;

    const STORES: TenantId = TenantId(1);
    const STORE: VolumeId = VolumeId(1);
    const CLIENT: ConnId = ConnId(2);

    fn with_store() -> Rig {
        let mut rig = Rig::new();
        rig.set_tenant(STORES, TenantSpec { is_store: true, ..TenantSpec::default() });
        let plain = VolumeSpec::plain(STORE, STORES, 4 << 20);
        assert_eq!(rig.event(|volumes| volumes.open_volume(plain.clone())), Err(Refusal::Store), "it is volatile");
        rig.open_volume(VolumeSpec { write_cache: WriteCache::None, ..plain });
        rig.attach(CLIENT, STORE);
        rig
    }

    #[test]
    fn a_store_is_written_through_and_stays_so() {
        let mut rig = with_store();
        rig.write_as(CLIENT, 1, 0, 0, BLOCK, 7);
        assert_eq!((rig.answer(1), rig.ops()), (None, vec![Op::Write { durable: true }]));
        rig.complete_all();
        assert_eq!((rig.answer(1), rig.volumes.cache.dirty_blocks(STORE)), (Some(0), 0));
        let changed = rig.event(|volumes| {
            [WriteCache::Volatile, WriteCache::Unsafe, WriteCache::None]
                .map(|mode| volumes.set_write_cache(70, STORE, mode))
        });
        assert_eq!(changed, [Err(Refusal::Store), Err(Refusal::Store), Ok(())]);
    }

    #[test]
    fn a_store_is_not_read_ahead_and_has_no_curve() {
        let mut rig = with_store();
        for block in 0..64 {
            rig.ask_as(CLIENT, block, command::READ, 0, block * BLOCK, BLOCK);
            assert_eq!(rig.device.len(), 1, "block {block} alone");
            rig.complete_all();
        }
        rig.write_as(CLIENT, 100, 0, 0, 3 * BLOCK, 7);
        rig.complete_all();
        for (cookie, command) in [(101, command::FLUSH), (102, command::TRIM), (103, command::CACHE)] {
            rig.ask_as(CLIENT, cookie, command, 0, 0, if command == command::FLUSH { 0 } else { 2 * BLOCK });
            rig.complete_all();
            assert_eq!(rig.answer(cookie), Some(0));
        }
        assert!(rig.volumes.curve_view(STORES, None).is_none() && rig.volumes.curve_view(TenantId(0), None).is_some());
        let counters = rig.volumes.volume(STORE).counters;
        assert_eq!((counters.miss_blocks, counters.prefetched_blocks), (64, 0));
    }

    #[test]
    fn whatever_is_asked_for_a_store_tenant_has_a_fixed_cache_and_no_guarantee() {
        let spec = TenantSpec { is_store: true, min_bytes_per_s: 1 << 20, ..TenantSpec::default() };
        let fixed = CacheSpec::Asked(STORE_CACHE_BYTES);
        for cache in [CacheSpec::Trial, CacheSpec::Decided(1 << 30), fixed] {
            let TenantSpec { cache, min_bytes_per_s, .. } = TenantSpec { cache, ..spec }.settled();
            assert_eq!((cache, min_bytes_per_s), (fixed, 0));
        }
        // What a server with little memory gives it.
        let least = CacheSpec::Asked(1 << 20);
        assert_eq!(TenantSpec { cache: least, ..spec }.settled().cache, least);
        let plain = TenantSpec { is_store: false, ..spec };
        assert_eq!(plain.settled(), plain);
    }
}
