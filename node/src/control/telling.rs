//! What the engine of a disk is told of tenants.

use engine::control::{Command, Refusal};
use tracing::warn;

use super::shares::Shares;
use super::{Control, Running, Tenant, refusal};
use crate::quantity::Name;

impl Control {
    /// Tells the disk's engine the latest allotment of a tenant, or that the tenant was removed. The planned shares of
    /// other tenants follow.
    pub(super) async fn sync_tenant(&self, disk: &Name, tenant: &Name) -> Result<(), Refusal> {
        self.tell_engine(disk, tenant).await?;
        let others = self.state().disk(disk).map(Running::outdated).unwrap_or_default();
        for other in others {
            if let Err(refusal) = self.tell_engine(disk, &other).await {
                warn!(%disk, tenant = %other, "its planned share is not in effect: {refusal}");
            }
        }
        Ok(())
    }

    async fn tell_engine(&self, disk: &Name, tenant: &Name) -> Result<(), Refusal> {
        let (thread, id, spec) = {
            let mut state = self.state();
            let Ok(running) = state.disk_mut(disk) else { return Ok(()) };
            let wanted = running.has_tenant(tenant);
            let is_known = running.tenants.contains_key(tenant);
            if !wanted && !is_known {
                return Ok(());
            }
            let id = running.tenant_id(tenant);
            // A new tenant stays unknown until the engine has accepted it.
            if !wanted || !is_known {
                running.tenants.remove(tenant);
            }
            (running.thread.clone(), id, wanted.then(|| running.for_engine(tenant)))
        };
        match spec {
            Some(spec) => refusal(thread.command(Command::SetTenant(id, spec)).await)?,
            None => {
                // A tenant that is created with this name is another one.
                self.forget_tenant_history(disk, tenant);
                return refusal(thread.command(Command::DropTenant(id)).await);
            }
        }
        if let Ok(running) = self.state().disk_mut(disk) {
            let told = spec.and_then(|spec| spec.share);
            running.tenants.insert(tenant.clone(), Tenant { id, warning: None, told });
        }
        Ok(())
    }
}

impl Running {
    /// What the disk's engine is told of a tenant.
    pub(super) fn for_engine(&self, tenant: &Name) -> engine::control::TenantSpec {
        let spec = self.allotment(tenant);
        engine::control::TenantSpec {
            share: match spec.planned_share {
                Some(_) => Shares::of(self).told(tenant),
                None => spec.share.as_ref().map(|share| share.share),
            },
            min_bytes_per_s: spec.min_bandwidth.map_or(0, |rate| rate.0),
            cache: spec.cache_spec(),
            eviction: spec.eviction.into(),
            ceilings: spec.ceilings(),
            is_remote: self.is_remote(tenant),
            is_store: tenant.is_of_stores(),
        }
    }

    /// The tenants whose planned share is not what the engine was told, because other shares have changed.
    fn outdated(&self) -> Vec<Name> {
        if !self.specs.values().any(|spec| spec.planned_share.is_some()) {
            return Vec::new();
        }
        let shares = Shares::of(self);
        let is_planned = |name: &Name| self.specs.get(name).is_some_and(|spec| spec.planned_share.is_some());
        let all = self.tenants.iter().filter(|(name, _)| is_planned(name));
        all.filter(|(name, tenant)| shares.told(name) != tenant.told).map(|(name, _)| name.clone()).collect()
    }
}
