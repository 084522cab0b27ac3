//! The partitions of tenants: created, resized, dropped; their frames move in steps.

use super::lifecycle::DROP_UNITS;
use super::{Timer, Todo, Volumes, Waiting};
use crate::ids::TenantId;
use crate::spec::{CacheSpec, Refusal, TenantSpec};
use crate::units::Nanos;

/// Frames that all shrinking partitions together give back in one event: about 60 us.
const SHED_FRAMES: u32 = 256;

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
        let mut more = false;
        let each = (SHED_FRAMES / over.len().max(1) as u32).max(1);
        for &tenant in &over {
            more |= self.cache.shed(tenant, each);
            self.charge(tenant, DROP_UNITS * each);
        }
        self.poke_tenants(&over);
        more |= self.cache.retire_frames();
        if more {
            self.timers.wake_at(Timer::Frames, self.now + step);
        }
        !more
    }
}
