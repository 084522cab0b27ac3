//! Offline disks and volumes are tried again until they open, so that a file system that is mounted late, or a device
//! that comes back, needs no restart.
//!
//! A disk opens only with its known UUID; nothing is ever initialised here. If a file system hangs, each disk and
//! volume on it blocks one thread, and never holds the lock of a change.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tracing::{info, warn};

use super::disks::open_store;
use super::opening::NotOpen;
use super::registry::Remembered;
use super::{Control, DiskReason, Running, Volume, VolumeReason, VolumeState, blocking};
use crate::quantity::Name;
use crate::store::tenant::earlier;
use crate::store::{Identity, LoadError, OpenError, Spec, Store, TenantSpec};

/// The interval of attempts: short enough for a person who waits, and long enough to cost nothing.
const PERIOD: Duration = Duration::from_secs(5);

/// A disk, or a volume of a disk.
type What = (Name, Option<Name>);

/// The disks and volumes that are being opened. None is tried again before the attempt has ended, so a hung file system
/// blocks one thread for each.
#[derive(Clone, Debug, Default)]
pub struct Trying(Arc<Mutex<BTreeSet<What>>>);

impl Trying {
    /// Registers an attempt, unless one is in progress.
    pub fn begin(&self, what: What) -> Option<Tried> {
        let is_new = self.all().insert(what.clone());
        is_new.then(|| Tried { trying: self.clone(), what })
    }

    fn all(&self) -> MutexGuard<'_, BTreeSet<What>> {
        self.0.lock().expect("nobody panics while holding it")
    }
}

/// An attempt; it ends when this is dropped.
#[derive(Debug)]
pub struct Tried {
    trying: Trying,
    what: What,
}

impl Drop for Tried {
    fn drop(&mut self) {
        self.trying.all().remove(&self.what);
    }
}

impl Control {
    /// Tries offline disks and volumes again until the server shuts down, each in a task of its own.
    pub async fn reopen(self: Arc<Control>) {
        while !self.is_shutting_down() {
            tokio::time::sleep(PERIOD).await;
            for disk in self.offline_disks() {
                let Some(tried) = self.trying.begin((disk.clone(), None)) else { continue };
                let control = self.clone();
                tokio::spawn(async move {
                    control.reopen_disk(&disk).await;
                    drop(tried);
                });
            }
            for (disk, volume, store) in self.offline_volumes() {
                let Some(tried) = self.trying.begin((disk.clone(), Some(volume.clone()))) else { continue };
                let control = self.clone();
                tokio::spawn(async move {
                    control.reopen_volume(&disk, &volume, store).await;
                    drop(tried);
                });
            }
        }
    }

    fn offline_disks(&self) -> Vec<Name> {
        let state = self.state();
        state.disks.iter().filter(|(_, disk)| disk.state.is_err()).map(|(name, _)| name.clone()).collect()
    }

    fn offline_volumes(&self) -> Vec<(Name, Name, Arc<Store>)> {
        let state = self.state();
        let running = state.disks.iter().filter_map(|(name, disk)| Some((name, disk.state.as_ref().ok()?)));
        let offline = running.flat_map(|(disk, running)| {
            let volumes = running.volumes.iter().filter(|(_, volume)| volume.is_offline());
            volumes.map(move |(volume, _)| (disk.clone(), volume.clone(), running.store.clone()))
        });
        offline.collect()
    }

    async fn reopen_disk(&self, name: &Name) {
        let Some((path, uuid)) = self.state().disks.get(name).map(|disk| (disk.path.clone(), disk.uuid)) else {
            return;
        };
        let looked = path.clone();
        let reason = match blocking(move || Identity::read(&looked)).await {
            Err(_) => return,
            // Opening it gives the full reason.
            Ok(Ok(identity)) if identity.uuid != uuid => open_store(&path, Some(uuid)).await.err().map(Into::into),
            Ok(Ok(_)) => self.bring_back(name, &path, uuid).await,
            Ok(Err(error)) => Some(OpenError::from(error).into()),
        };
        if let (Some(disk), Some(reason)) = (self.state().disks.get_mut(name), reason)
            && let Err(known) = &mut disk.state
            && known.to_string() != reason.to_string()
        {
            warn!(disk = %name, "still offline: {reason}");
            *known = reason;
        }
    }

    /// Opens a disk that seems to be back. Returns the reason if this fails.
    async fn bring_back(&self, name: &Name, path: &Path, uuid: uuid::Uuid) -> Option<DiskReason> {
        let _policies = self.keep_policies(true).await.ok()?;
        let _turn = self.change(name).await.ok()?;
        if !self.state().disks.get(name).is_some_and(|disk| disk.state.is_err() && disk.uuid == uuid) {
            return None;
        }
        let store = match open_store(path, Some(uuid)).await {
            Ok(store) => store,
            Err(error) => return Some(error.into()),
        };
        match self.bring_up(name, path, store).await {
            Ok(_) => info!(disk = %name, path = %path.display(), "online again"),
            Err(error) => return Some(error.into()),
        }
        None
    }

    async fn reopen_volume(&self, disk: &Name, name: &Name, store: Arc<Store>) {
        let (looked, wanted) = (store, name.clone());
        let look = move || -> Result<_, LoadError> {
            let spec = looked.load(&wanted)?;
            Ok((looked.tenant(&spec.tenant(&wanted))?, spec))
        };
        let reason = match blocking(look).await {
            Err(_) => return,
            Ok(Ok((tenant, spec))) => self.open_again(disk, name, spec, tenant).await,
            Ok(Err(error)) => Some(VolumeReason::Load(error.into())),
        };
        if let Some(reason) = reason
            && let Some(volume) = self.state().volume_mut(disk, name)
            && let VolumeState::Offline(known) = &mut volume.state
            && known.to_string() != reason.to_string()
        {
            warn!(%disk, volume = %name, "still offline: {reason}");
            *known = reason;
        }
    }

    /// Opens a volume that seems to be back. Returns the reason if this fails.
    async fn open_again(
        &self,
        disk: &Name,
        name: &Name,
        spec: Spec,
        tenant: Option<TenantSpec>,
    ) -> Option<VolumeReason> {
        let _policies = self.keep_policies(true).await.ok()?;
        let _turn = self.change(disk).await.ok()?;
        if self.served_elsewhere(disk, name) {
            return None;
        }
        let mut tenants: BTreeMap<_, _> = tenant.into_iter().map(|of| (spec.tenant(name), of)).collect();
        let aligned = self.align(disk, &mut tenants);
        self.store_aligned(disk, aligned).await;
        let tenant = tenants.into_values().next();
        let changed = self.state().disk_mut(disk).ok()?.enter_again(name, spec, tenant)?;
        if let Some(tenant) = changed
            && let Err(refusal) = self.sync_tenant(disk, &tenant).await
        {
            warn!(%disk, %tenant, "{refusal}");
        }
        match self.open_volume(disk, name, None).await {
            Ok(()) => info!(%disk, volume = %name, "online again"),
            Err(NotOpen::Busy(reason)) => {
                self.state().volume_mut(disk, name)?.state = VolumeState::Waiting(reason);
                self.waiting.notify_one();
            }
            Err(NotOpen::Failed(error)) => return Some(error.into()),
        }
        self.remember_volumes(disk).await;
        None
    }

    /// Whether another disk serves a volume of this name; the first one keeps the name.
    fn served_elsewhere(&self, disk: &Name, volume: &Name) -> bool {
        let state = self.state();
        let others = state.disks.iter().filter(|(name, _)| *name != disk);
        let mut running = others.filter_map(|(_, other)| other.state.as_ref().ok());
        running.any(|running| running.volumes.get(volume).is_some_and(|volume| !volume.is_offline()))
    }

    /// Stores in the registry which volumes a disk has, to list them while it is offline.
    pub(super) async fn remember_volumes(&self, disk: &Name) {
        let volumes = {
            let mut state = self.state();
            let before = state.remembered.get(disk).cloned().unwrap_or_default();
            let Ok(running) = state.disk(disk) else { return };
            let known = |(name, volume): (&Name, &Volume)| match &volume.spec {
                Some(spec) => {
                    let device = spec.device.as_ref().map(|device| device.path.clone());
                    Some((name.clone(), Remembered { size: spec.size, tenant: spec.tenant.clone(), device }))
                }
                // A volume that cannot be read now is kept as it was.
                None => before.get(name).map(|before| (name.clone(), before.clone())),
            };
            let volumes: BTreeMap<Name, Remembered> = running.volumes.iter().filter_map(known).collect();
            if volumes == before {
                return;
            }
            state.remembered.insert(disk.clone(), volumes.clone());
            volumes
        };
        let key = disk.clone();
        let keep = move |registry: &mut super::Registry| {
            if let Some(entry) = registry.disks.get_mut(&key) {
                entry.volumes = volumes;
            }
        };
        if let Err(error) = self.change_registry(keep).await {
            warn!(%disk, "if it is offline at the next start, its volumes will not be listed: {error}");
        }
    }
}

impl Running {
    /// Enters the specification of an offline volume, and that of its tenant as it was found on the disk. Returns the
    /// tenant if others of its volumes are served, and its specification has changed. `None` if the volume is not
    /// offline any more.
    fn enter_again(&mut self, name: &Name, spec: Spec, found: Option<TenantSpec>) -> Option<Option<Name>> {
        let tenant = spec.tenant(name);
        let has_others = self.has_tenant(&tenant);
        let before = earlier(self.members(&tenant).map(|(_, spec)| spec));
        self.volumes.get_mut(name).filter(|volume| volume.is_offline())?.spec = Some(spec);
        let now = self.allotment(&tenant);
        // A tenant with other volumes has its specification already. But if it is only what an earlier release stored
        // with them, this volume may have a later one.
        let is_entered = found.is_some() && self.specs.contains_key(&tenant);
        if has_others && (is_entered || now != before.unwrap_or_default()) {
            return Some(None);
        }
        let found = found.or_else(|| earlier(self.members(&tenant).map(|(_, spec)| spec))).unwrap_or_default();
        let has_changed = self.tenants.contains_key(&tenant) && found != now;
        self.specs.insert(tenant.clone(), found);
        Some(has_changed.then_some(tenant))
    }
}

impl Volume {
    pub(super) fn is_offline(&self) -> bool {
        matches!(self.state, VolumeState::Offline(_))
    }
}
