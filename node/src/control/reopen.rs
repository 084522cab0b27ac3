//! Disks and volumes that are offline are tried again until they open, so that a file system that is mounted late or a
//! device that is back needs no restart.
//!
//! A disk opens only as the disk that it was (its UUID): nothing is ever initialised here. A file system that hangs
//! keeps one thread for each thing that is looked at, and never the lock of those who change something.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::{info, warn};

use super::disks::open_store;
use super::registry::Remembered;
use super::volumes::OpenError;
use super::{Control, Error, Volume, VolumeState};
use crate::quantity::Name;
use crate::store::{Identity, Spec, Store};

/// Between two tries: soon for somebody who waits, and rare enough to cost nothing.
const PERIOD: Duration = Duration::from_secs(5);
/// A look that takes longer is left to its own; the thing is not looked at again before it has ended.
const LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// What is being looked at.
type Looking = Arc<Mutex<BTreeSet<(Name, Option<Name>)>>>;

impl Control {
    /// Tries what is offline again, until the server shuts down.
    pub async fn reopen(self: Arc<Control>) {
        let looking = Looking::default();
        while !self.is_shutting_down() {
            tokio::time::sleep(PERIOD).await;
            for disk in self.offline_disks() {
                self.reopen_disk(&disk, &looking).await;
            }
            for (disk, volume, store) in self.offline_volumes() {
                self.reopen_volume(&disk, &volume, store, &looking).await;
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

    async fn reopen_disk(&self, name: &Name, looking: &Looking) {
        let Some((path, uuid)) = self.state().disks.get(name).map(|disk| (disk.path.clone(), disk.uuid)) else {
            return;
        };
        let looked = path.clone();
        let found = look(looking, (name.clone(), None), move || Identity::read(&looked)).await;
        let reason = match found {
            None => return,
            // With the reason in full.
            Some(Ok(identity)) if identity.uuid != uuid => open_store(&path, Some(uuid)).await.err(),
            Some(Ok(_)) => self.bring_back(name, &path, uuid).await,
            Some(Err(reason)) => Some(reason),
        };
        if let (Some(disk), Some(reason)) = (self.state().disks.get_mut(name), reason)
            && let Err(known) = &mut disk.state
            && *known != reason
        {
            warn!(disk = %name, "still offline: {reason}");
            *known = reason;
        }
    }

    /// Opens a disk that seems to be back; or why that is not possible.
    async fn bring_back(&self, name: &Name, path: &Path, uuid: uuid::Uuid) -> Option<String> {
        let _turn = self.change(name).await.ok()?;
        if !self.state().disks.get(name).is_some_and(|disk| disk.state.is_err() && disk.uuid == uuid) {
            return None;
        }
        let store = match open_store(path, Some(uuid)).await {
            Ok(store) => store,
            Err(reason) => return Some(reason),
        };
        match self.bring_up(name, path, store).await {
            Ok(_) => info!(disk = %name, path = %path.display(), "it is back: online"),
            Err(error) => return Some(error.to_string()),
        }
        None
    }

    async fn reopen_volume(&self, disk: &Name, name: &Name, store: Arc<Store>, looking: &Looking) {
        let (looked, wanted) = (store, name.clone());
        let found = look(looking, (disk.clone(), Some(name.clone())), move || looked.load(&wanted)).await;
        let reason = match found {
            None => return,
            Some(Ok(spec)) => self.open_again(disk, name, spec).await,
            Some(Err(reason)) => Some(reason),
        };
        if let Some(reason) = reason
            && let Some(volume) = self.state().volume_mut(disk, name)
            && let VolumeState::Offline(known) = &mut volume.state
            && *known != reason
        {
            warn!(%disk, volume = %name, "still offline: {reason}");
            *known = reason;
        }
    }

    /// Opens a volume that seems to be back; or why that is not possible.
    async fn open_again(&self, disk: &Name, name: &Name, spec: Spec) -> Option<String> {
        let _turn = self.change(disk).await.ok()?;
        if self.served_elsewhere(disk, name) {
            return None;
        }
        self.state().volume_mut(disk, name).filter(|volume| volume.is_offline())?.spec = Some(spec);
        match self.open_volume(disk, name, None).await {
            Ok(()) => info!(%disk, volume = %name, "it is back: online"),
            Err(OpenError::Busy(reason)) => {
                self.state().volume_mut(disk, name)?.state = VolumeState::Waiting(reason);
                self.waiting.notify_one();
            }
            Err(OpenError::Failed(Error::Offline(_, _, reason))) => return Some(reason),
            Err(OpenError::Failed(error)) => return Some(error.to_string()),
        }
        self.remember_volumes(disk).await;
        None
    }

    /// Whether another disk has a volume of the same name: the one that was there first keeps it.
    fn served_elsewhere(&self, disk: &Name, volume: &Name) -> bool {
        let state = self.state();
        let others = state.disks.iter().filter(|(name, _)| *name != disk);
        let mut running = others.filter_map(|(_, other)| other.state.as_ref().ok());
        running.any(|running| running.volumes.get(volume).is_some_and(|volume| !volume.is_offline()))
    }

    /// Keeps in the registry which volumes a disk has, for the time when it is offline.
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
                // What cannot be read now was read before.
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

impl Volume {
    pub(super) fn is_offline(&self) -> bool {
        matches!(self.state, VolumeState::Offline(_))
    }
}

/// Looks where waiting is allowed. Nothing if that takes too long, or the look before has not ended.
async fn look<T: Send + 'static>(
    looking: &Looking,
    what: (Name, Option<Name>),
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let all = || looking.lock().expect("nobody panics while holding it");
    if !all().insert(what.clone()) {
        return None;
    }
    let looking = looking.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let found = work();
        looking.lock().expect("nobody panics while holding it").remove(&what);
        found
    });
    tokio::time::timeout(LOOK_TIMEOUT, looked).await.ok()?.ok()
}
