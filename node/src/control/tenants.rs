//! Tenants: shown over all disks, and changed on one.
//!
//! A tenant has a specification on each disk where it has volumes (`store/tenant.rs`). A change is applied to the
//! state, then to the disk's engine, then to the catalogue, and is undone completely if one of them refuses.

use std::collections::BTreeMap;
use std::sync::Arc;

use engine::control::Snapshot;
use tracing::{info, warn};

use super::decisions::cache_note;
use super::shares::Shares;
use super::show::cache_view;
use super::view::{
    AllotmentView, CacheView, CeilingsView, Condition, OrDefault, SetTenant, Setting, ShareView, TenantDetail,
};
use super::{Control, Disk, Done, Error, Invalid, Kind, Running, State, blocking};
use crate::quantity::{Name, OrAuto};
use crate::store::{Spec, Store, StoreError, TenantSpec};

/// A change of a tenant's specification on a disk that is in the state already.
#[derive(Debug)]
pub(super) struct TenantChange {
    tenant: Name,
    before: Option<TenantSpec>,
    after: TenantSpec,
}

impl Running {
    /// Makes the specification of a tenant without known volumes the stored one.
    pub(super) fn enter_tenant(&mut self, tenant: &Name, stored: Option<TenantSpec>) {
        match stored {
            Some(stored) => self.specs.insert(tenant.clone(), stored),
            None => self.specs.remove(tenant),
        };
    }

    /// Changes a tenant's specification in the state.
    pub(super) fn enter_change(&mut self, tenant: &Name, after: TenantSpec) -> TenantChange {
        let before = self.specs.insert(tenant.clone(), after.clone());
        TenantChange { tenant: tenant.clone(), before, after }
    }

    /// Undoes a change in the state.
    pub(super) fn leave_change(&mut self, change: TenantChange) {
        self.enter_tenant(&change.tenant, change.before);
    }
}

impl TenantChange {
    pub(super) fn tenant(&self) -> &Name {
        &self.tenant
    }

    /// The specification before; a tenant without requests had none.
    pub(super) fn before(&self) -> TenantSpec {
        self.before.clone().unwrap_or_default()
    }

    pub(super) fn after(&self) -> &TenantSpec {
        &self.after
    }
}

impl Control {
    /// Changes a tenant's specification in the state, unless what it promises does not fit. With `overcommit`, shares
    /// may exceed the disk.
    pub(super) fn begin_change(
        &self,
        running: &mut Running,
        disk: &Name,
        tenant: &Name,
        overcommit: bool,
        change: impl FnOnce(&mut TenantSpec) -> Result<(), Error>,
    ) -> Result<TenantChange, Error> {
        let before = running.allotment(tenant);
        let mut after = before.clone();
        change(&mut after)?;
        self.check_promises(running, disk, tenant, (&before, &after), overcommit)?;
        Ok(running.enter_change(tenant, after))
    }

    /// Stores a change in the catalogue.
    pub(super) async fn store_tenant(&self, store: &Arc<Store>, change: Option<&TenantChange>) -> Result<(), Error> {
        let Some(TenantChange { tenant, after, .. }) = change else { return Ok(()) };
        let (store, tenant, after) = (store.clone(), tenant.clone(), after.clone());
        Ok(blocking(move || store.put_tenant(&tenant, &after)).await??)
    }

    /// Undoes a change in the state, in the engine and in the catalogue, unless there was another one meanwhile.
    pub(super) async fn undo_tenant(&self, disk: &Name, change: Option<TenantChange>) {
        let Some(TenantChange { tenant, before, after }) = change else { return };
        let store = {
            let mut state = self.state();
            let Ok(running) = state.disk_mut(disk) else { return };
            // A decision on the tenant is no other change.
            let is_latest = |now: &TenantSpec| TenantSpec { decided: after.decided, ..now.clone() } == after;
            if !running.specs.get(&tenant).is_some_and(is_latest) {
                return;
            }
            match &before {
                Some(before) => running.specs.insert(tenant.clone(), before.clone()),
                None => running.specs.remove(&tenant),
            };
            running.store.clone()
        };
        if let Err(refusal) = self.sync_tenant(disk, &tenant).await {
            warn!(%disk, %tenant, "{refusal}");
        }
        let name = tenant.clone();
        let undone = blocking(move || match before {
            Some(before) => store.put_tenant(&name, &before),
            None => store.remove_tenant(&name),
        });
        warn_unless_stored(disk, &tenant, undone.await);
    }

    /// Forgets a tenant if it has no volumes on the disk any more.
    pub(super) async fn leave_tenant(&self, disk: &Name, tenant: &Name) {
        if self.state().disk(disk).is_ok_and(|running| running.has_tenant(tenant)) {
            return;
        }
        if let Err(refusal) = self.sync_tenant(disk, tenant).await {
            warn!(%disk, %tenant, "{refusal}");
        }
        self.forget_tenant(disk, tenant).await;
    }

    /// Removes the specification of a tenant that has no volumes on the disk, unless the tenant of a volume is not
    /// known.
    async fn forget_tenant(&self, disk: &Name, tenant: &Name) {
        let store = {
            let mut state = self.state();
            let Ok(running) = state.disk_mut(disk) else { return };
            if running.has_tenant(tenant) || running.has_unknown() {
                return;
            }
            running.specs.remove(tenant);
            running.store.clone()
        };
        let name = tenant.clone();
        warn_unless_stored(disk, tenant, blocking(move || store.remove_tenant(&name)).await);
    }

    /// The stored specification of a tenant. One that cannot be read is an error: a new one would replace it.
    pub(super) async fn stored_tenant(&self, disk: &Name, tenant: &Name) -> Result<Option<TenantSpec>, Error> {
        let (store, tenant) = (self.state().disk(disk)?.store.clone(), tenant.clone());
        Ok(blocking(move || store.tenant(&tenant)).await??)
    }

    /// Makes sure that an allotment of an earlier release, which is stored with a volume that is being deleted, is
    /// stored with its tenant. It is not yet if the disk was full at the start.
    pub(super) async fn keep_earlier_allotment(
        &self,
        disk: &Name,
        name: &Name,
        spec: &Spec,
        store: &Arc<Store>,
    ) -> Result<(), Error> {
        let tenant = spec.tenant(name);
        let now = {
            let state = self.state();
            let running = state.disk(disk)?;
            let has_others = running.members(&tenant).any(|(other, _)| other != name);
            if spec.allotment.is_none() || !has_others {
                return Ok(());
            }
            running.allotment(&tenant)
        };
        let store = store.clone();
        Ok(blocking(move || store.put_tenant(&tenant, &now)).await??)
    }

    /// Changes what is requested for a tenant on one disk.
    pub async fn set_tenant(&self, name: &Name, request: SetTenant) -> Result<Done, Error> {
        if name.is_of_stores() {
            return Err(Invalid::SetStoreTenant.into());
        }
        self.change_tenant(name, request).await
    }

    /// The same, for the tenant of the stores, too.
    pub(super) async fn change_tenant(&self, name: &Name, request: SetTenant) -> Result<Done, Error> {
        if request.changes_nothing() {
            return Err(Invalid::NoChangeOfTenant(name.clone()).into());
        }
        let disk = self.state().disk_of_tenant(name, request.disk.as_ref())?;
        let _policies = self.keep_policies(request.policy.is_some()).await?;
        let _turn = self.change(&disk).await?;
        let (store, before, change) = {
            let mut state = self.state();
            let running = state.disk_mut(&disk)?;
            if !running.has_tenant(name) {
                return Err(Error::NotOnDisk { tenant: name.clone(), disk });
            }
            let before = running.allotment(name);
            let apply = |spec: &mut TenantSpec| self.apply_request(name, &request, spec);
            let change = self.begin_change(running, &disk, name, request.overcommit, apply)?;
            (running.store.clone(), before, change)
        };
        let synced = self.sync_tenant(&disk, name).await;
        let synced = synced.map_err(|refusal| Error::Refused { kind: Kind::Tenant, name: name.clone(), refusal });
        let stored = match synced {
            Ok(()) => self.store_tenant(&store, Some(&change)).await,
            refused => refused,
        };
        if let Err(error) = stored {
            self.undo_tenant(&disk, Some(change)).await;
            return Err(error);
        }
        info!(%disk, tenant = %name, "changed");
        let ceiling = if request.changes_ceilings() { self.ceiling_note(&disk, name) } else { String::new() };
        let note =
            request.cache.map(|cache| cache_note(name, Some(before.handed_cache()), cache.value())).unwrap_or_default();
        let note = ceiling + &note + &self.promise_note(&disk, name, &before);
        let message = format!("tenant '{name}' is changed on disk '{disk}'{note}{}", self.unheeded(&disk, name));
        self.wait_for_decision(&disk).await;
        Ok(Done { message, volume: None, disk: None, tenant: self.show_tenant(name).await.ok() })
    }

    /// The ceilings of a tenant, for the answer to a change of them.
    pub(super) fn ceiling_note(&self, disk: &Name, tenant: &Name) -> String {
        let spec = self.state().disk(disk).map(|running| running.allotment(tenant)).unwrap_or_default();
        let words = CeilingsView::of(&spec).map(|ceilings| ceilings.in_words());
        words.map_or_else(|| ": it has no ceiling".into(), |words| format!(": it gets at most {words}"))
    }

    /// One tenant.
    pub async fn show_tenant(&self, name: &Name) -> Result<TenantDetail, Error> {
        let found = self.list_tenants().await.into_iter().find(|tenant| tenant.name == name.as_str());
        found.ok_or_else(|| Error::Unknown(Kind::Tenant, name.clone()))
    }

    /// All tenants.
    pub async fn list_tenants(&self) -> Vec<TenantDetail> {
        let disks: Vec<Name> = self.state().disks.keys().cloned().collect();
        let views = disks.iter().map(|disk| self.tenants_on(disk));
        let mut tenants = BTreeMap::<Name, Vec<AllotmentView>>::new();
        for (name, view) in futures::future::join_all(views).await.into_iter().flatten() {
            tenants.entry(name).or_default().push(view);
        }
        tenants.into_iter().map(|(name, disks)| TenantDetail { name: name.to_string(), disks }).collect()
    }

    async fn tenants_on(&self, disk: &Name) -> Vec<(Name, AllotmentView)> {
        let snapshot = self.snapshot(disk).await;
        let state = self.state();
        match state.disk(disk) {
            Ok(running) => self.allotment_views(disk, running, snapshot.as_deref()),
            Err(_) => offline_views(&state, disk),
        }
    }

    fn allotment_views(
        &self,
        disk: &Name,
        running: &Running,
        snapshot: Option<&Snapshot>,
    ) -> Vec<(Name, AllotmentView)> {
        let (chosen, shares) = (self.chosen(disk, &running.store), Shares::of(running));
        let live = self.tenant_views(disk, running, &chosen, snapshot);
        let view = |name: Name| {
            let live = live.iter().find(|view| view.name == name.as_str());
            let allotment = AllotmentView {
                disk: disk.to_string(),
                condition: Condition::Online,
                spec: (!name.is_of_stores()).then(|| request_of(disk, running.allotment(&name))),
                volumes: running.members(&name).map(|(volume, _)| volume.to_string()).collect(),
                share: shares.view(&name),
                guarantee: live.and_then(|view| view.guarantee.clone()).or_else(|| shares.guarantee(&name)),
                cache: cache_view(running, &name, snapshot),
                ceilings: CeilingsView::of(&running.allotment(&name)),
                slice: live.and_then(|view| view.slice.clone()),
                insulation: live.and_then(|view| view.insulation.clone()),
                own_cache_insulation: live.and_then(|view| view.own_cache_insulation.clone()),
                latency: live.and_then(|view| view.latency),
                sizing: live.and_then(|view| view.sizing.clone()),
            };
            (name, allotment)
        };
        running.tenant_names().into_iter().map(view).collect()
    }
}

impl State {
    /// Whether a tenant has volumes on a disk. One that cannot be read now counts as what it was when it could be. The
    /// stored specification of any other tenant is what an earlier one of its name or a crash has left: it promises
    /// nothing, and a new tenant's specification replaces it.
    pub(super) fn may_have_tenant(&self, disk: &Name, tenant: &Name) -> bool {
        let has = |disk: &Running| disk.has_tenant(tenant);
        self.disk(disk).is_ok_and(has) || tenants_of_offline(self, disk).contains_key(tenant)
    }

    /// The disk that was named, or the only one on which the tenant has volumes.
    fn disk_of_tenant(&self, tenant: &Name, named: Option<&Name>) -> Result<Name, Error> {
        let has_tenant = |disk: &Disk| disk.state.as_ref().is_ok_and(|running| running.has_tenant(tenant));
        let disks: Vec<&Name> = self.disks.iter().filter(|(_, disk)| has_tenant(disk)).map(|(name, _)| name).collect();
        let is_offline = |disk: &&Name| tenants_of_offline(self, disk).contains_key(tenant);
        match (named, disks.first()) {
            (Some(name), _) => self.disk(name).map(|_| name.clone()),
            (None, Some(_)) if disks.len() > 1 => Err(Error::WhichDiskOfTenant(tenant.clone(), disks.len())),
            (None, Some(only)) => Ok((*only).clone()),
            // The error of its offline disk, if it has one.
            (None, None) => match self.disks.keys().find(is_offline) {
                Some(disk) => self.disk(disk).map(|_| disk.clone()),
                None => Err(Error::Unknown(Kind::Tenant, tenant.clone())),
            },
        }
    }
}

/// The tenants of a disk, with their volumes, as they were when it was last online.
fn tenants_of_offline(state: &State, disk: &Name) -> BTreeMap<Name, Vec<String>> {
    let mut tenants = BTreeMap::<Name, Vec<String>>::new();
    for (volume, known) in state.remembered.get(disk).into_iter().flatten() {
        tenants.entry(known.tenant.clone().unwrap_or_else(|| volume.clone())).or_default().push(volume.to_string());
    }
    tenants
}

fn offline_views(state: &State, disk: &Name) -> Vec<(Name, AllotmentView)> {
    let view = |(name, volumes)| {
        let allotment = AllotmentView {
            disk: disk.to_string(),
            condition: Condition::Offline,
            spec: None,
            volumes,
            share: ShareView { effective: Some(0.0), ..ShareView::default() },
            guarantee: None,
            cache: CacheView::default(),
            ceilings: None,
            slice: None,
            insulation: None,
            own_cache_insulation: None,
            latency: None,
            sizing: None,
        };
        (name, allotment)
    };
    tenants_of_offline(state, disk).into_iter().map(view).collect()
}

/// The request that would set this specification.
fn request_of(disk: &Name, spec: TenantSpec) -> SetTenant {
    SetTenant {
        disk: Some(disk.clone()),
        policy: Some(Setting::from_value(spec.policy)),
        share: Some(Setting::from_value(OrAuto::join(spec.share, spec.auto_share))),
        min_bandwidth: Some(Setting::from_value(spec.min_bandwidth)),
        overcommit: false,
        cache: Some(Setting::from_value(OrAuto::join(spec.cache, spec.auto_cache))),
        eviction: Some(spec.eviction),
        max_bandwidth: Some(Setting::from_value(spec.max_bandwidth)),
        max_iops: Some(Setting::from_value(spec.max_iops)),
        burst: Some(spec.burst.map_or(OrDefault::Default, OrDefault::To)),
    }
}

pub(super) fn warn_unless_stored(disk: &Name, tenant: &Name, stored: Result<Result<(), StoreError>, Error>) {
    if let Err(error) = stored.and_then(|stored| stored.map_err(Error::from)) {
        warn!(%disk, %tenant, "{error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::control::view::CreateVolume;

    /// A change of generation divides the cache provisionally, for all tenants.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_refused_creation_changes_nothing_for_others() {
        let dir = tempfile::tempdir().unwrap();
        let cache = "64MiB".parse().unwrap();
        let config = Config { data: dir.path().join("data"), cache, ..Config::default() };
        let (control, disk): (_, Name) = (Control::open(config).await.unwrap(), "default".parse().unwrap());
        let create = |name: &str, tenant: Option<&str>, cache: &str| {
            let request = serde_json::json!({ "name": name, "size": "1MiB", "tenant": tenant, "cache": cache });
            let request: CreateVolume = serde_json::from_value(request).unwrap();
            control.create_volume(request)
        };
        create("a", Some("team"), "8MiB").await.unwrap();
        let before = control.snapshot(&disk).await.unwrap();
        let asked = create("b", None, "1GiB").await;
        assert!(matches!(asked, Err(Error::Refused { .. })), "{asked:?}");
        let after = control.snapshot(&disk).await.unwrap();
        assert_eq!((after.generation, after.tenants.len()), (before.generation, before.tenants.len()));
        // What is requested for a tenant that exists is undone.
        assert!(create("b", Some("team"), "1GiB").await.is_err());
        {
            let state = control.state();
            let running = state.disk(&disk).unwrap();
            assert_eq!(running.allotments().len(), 1);
            assert_eq!(running.allotment(&"team".parse().unwrap()).cache, Some("8MiB".parse().unwrap()));
            assert!(running.specs.len() == 1 && running.tenants.len() == 1 && running.volumes.len() == 1);
        }
        assert!(control.drain().await.is_empty());
    }
}
