//! Opening volumes: with their disk, after their creation, and again when their data is back.

use std::sync::Arc;

use engine::control::{CacheSpec, Command, LEAST_BYTES, VolumeSpec};
use tracing::{info, warn};

use super::volumes::refused;
use super::{
    Control, DiskReason, Error, Kind, Source, Tenant, Volume, VolumeReason, VolumeState, blocking, refusal, with_files,
};
use crate::disk_thread::{Backing, DiskHandle};
use crate::quantity::Name;
use crate::reactor::Place;
use crate::store::spec::Allocation;
use crate::store::{Data, DataError, Found, LossNote, Spec};

/// Why a volume is not served.
pub(super) enum NotOpen {
    /// Its data is busy, and will be free without intervention.
    Busy(Arc<DataError>),
    /// Any other reason.
    Failed(Error),
}

impl From<Error> for NotOpen {
    fn from(error: Error) -> NotOpen {
        NotOpen::Failed(error)
    }
}

/// A volume that the disk's thread can open.
pub(super) struct Prepared {
    pub(super) spec: VolumeSpec,
    pub(super) backing: Backing,
    pub(super) source: Source,
}

impl Control {
    /// Opens the volumes of a disk. One that cannot be used is offline; the others are served.
    pub(super) async fn open_volumes(&self, disk: &Name) {
        let Some(store) = self.state().disk(disk).ok().map(|running| running.store.clone()) else { return };
        let scanned = blocking(move || store.scan()).await;
        let mut found = match scanned {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return self.unreadable(disk, DiskReason::Volumes(error.into())),
            Err(error) => return self.unreadable(disk, error.into()),
        };
        let aligned = self.align(disk, &mut found.tenants);
        self.store_aligned(disk, aligned).await;
        let usable = self.enter_volumes(disk, found);
        self.open_entered(disk, usable).await;
    }

    /// Enters the volumes of a disk into the state. Returns those that can be opened.
    pub(super) fn enter_volumes(&self, disk: &Name, found: Found) -> Vec<Name> {
        let mut usable = Vec::new();
        for path in found.unclaimed {
            warn!(%disk, path = %path.display(), "data without specification: not touched");
        }
        if let Ok(running) = self.state().disk_mut(disk) {
            running.specs.extend(found.tenants);
            running.found_offload(found.offload);
        }
        for (name, spec) in found.volumes {
            // A volume that could not be closed is still served.
            if self.state().volume_mut(disk, &name).is_some_and(|volume| volume.id().is_some()) {
                continue;
            }
            let spec = spec.map_err(|error| VolumeReason::Load(error.into()));
            let state = self.admit(disk, &name, spec.as_ref());
            if state.is_none() {
                usable.push(name.clone());
            }
            let state = state.unwrap_or_else(|| VolumeState::Offline(VolumeReason::Opening));
            let volume = Volume { spec: spec.ok(), state, growing: None, loss_noted: false, refusals: 0, key: None };
            if let Ok(running) = self.state().disk_mut(disk) {
                running.volumes.insert(name, volume);
            }
        }
        usable
    }

    /// Opens these volumes of a disk, one after the other.
    pub(super) async fn open_entered(&self, disk: &Name, volumes: Vec<Name>) {
        for name in volumes {
            self.try_open(disk, &name).await;
        }
        self.remember_volumes(disk).await;
    }

    /// Makes a disk with unreadable volumes offline, since it must not look like an empty one. If it serves volumes, it
    /// stays online.
    fn unreadable(&self, disk: &Name, reason: DiskReason) {
        warn!(%disk, "{reason}");
        let mut state = self.state();
        let serves = |running: &super::Running| running.volumes.values().any(|volume| volume.id().is_some());
        if let Some(disk) = state.disks.get_mut(disk).filter(|disk| !disk.state.as_ref().is_ok_and(serves)) {
            disk.state = Err(reason);
        }
    }

    /// Opens a volume, or records why it is not served.
    pub(super) async fn try_open(&self, disk: &Name, name: &Name) {
        let state = match self.open_volume(disk, name, None).await {
            Ok(()) => return,
            Err(NotOpen::Busy(reason)) => VolumeState::Waiting(reason),
            Err(NotOpen::Failed(error)) => {
                let reason = VolumeReason::from(error);
                match reason {
                    // The stores are read first: their progress is in the log.
                    VolumeReason::Offload(_) => info!(%disk, volume = %name, "not open yet: {reason}"),
                    _ => warn!(%disk, volume = %name, "offline: {reason}"),
                }
                VolumeState::Offline(reason)
            }
        };
        if let Some(volume) = self.state().volume_mut(disk, name) {
            volume.state = state;
        }
    }

    /// Why a volume that was found cannot be opened, if so.
    pub(super) fn admit(&self, disk: &Name, name: &Name, spec: Result<&Spec, &VolumeReason>) -> Option<VolumeState> {
        let state = self.state();
        let elsewhere = state.find(name).ok().filter(|(other, _)| other != disk);
        let reason = match (spec, elsewhere) {
            (Err(reason), _) => reason.clone(),
            (Ok(_), Some((other, _))) => VolumeReason::SameName(other),
            (Ok(_), None) => return None,
        };
        warn!(%disk, volume = %name, "offline: {reason}");
        Some(VolumeState::Offline(reason))
    }

    /// Opens a volume in the disk's thread; `data` is its data if that is open already.
    pub(super) async fn open_volume(&self, disk: &Name, name: &Name, data: Option<Data>) -> Result<(), NotOpen> {
        let (thread, store, spec, tenant) = {
            let state = self.state();
            let running = state.disk(disk)?;
            let spec = running.volumes.get(name).and_then(|volume| volume.spec.clone());
            let spec = spec.ok_or_else(|| Error::Unknown(Kind::Volume, name.clone()))?;
            let tenant = spec.tenant(name);
            (running.thread.clone(), running.store.clone(), spec, tenant)
        };
        let key = self.take_key(disk, name, &spec)?;
        self.ensure_tenant(disk, &tenant, &thread).await?;
        let note = LossNote::new(&self.config.data, &store, name, &spec);
        let is_lost = blocking(move || note.exists()).await?.map_err(DataError::Loss);
        let is_lost = is_lost.map_err(|error| Error::VolumeOffline(name.clone(), VolumeReason::Data(error.into())))?;
        let Prepared { spec, backing, source } = match spec.upstream {
            None => self.prepare_file(disk, name, spec, data).await?,
            Some(_) => self.prepare_upstream(disk, name, spec).await?,
        };
        let spec = VolumeSpec { offload: key, ..spec };
        let (id, block) = (spec.volume, spec.device_block);
        refusal(thread.open_volume(spec, backing).await).map_err(|refusal| refused(name, refusal))?;
        if is_lost {
            warn!(%disk, volume = %name, "acknowledged data was lost when the server last stopped");
            refusal(thread.command(Command::DeclareLost(id)).await).map_err(|refusal| refused(name, refusal))?;
        }
        if let Some(volume) = self.state().volume_mut(disk, name) {
            volume.state = VolumeState::Serving { id, source, block, sessions: Arc::default() };
            volume.loss_noted = is_lost;
        }
        let opened = (disk.clone(), name.clone());
        if self.unflushed.lock().expect("no one panics while holding it").remove(&opened) {
            info!(%disk, volume = %name, "the previous server stopped without a flush: its writes are flushed now");
        }
        Ok(())
    }

    /// What the engine is told of a volume wherever its data is.
    pub(super) fn plain_spec(&self, disk: &Name, name: &Name, spec: &Spec) -> Result<VolumeSpec, Error> {
        let mut state = self.state();
        let running = state.disk_mut(disk)?;
        let (id, tenant) = (running.free_volume(), running.tenant_id(&spec.tenant(name)));
        let plain = VolumeSpec::plain(id, tenant, spec.size);
        Ok(VolumeSpec { write_cache: spec.write_cache.into(), read_only: spec.read_only, ..plain })
    }

    /// Opens and locks the file or device of a volume.
    async fn prepare_file(
        &self,
        disk: &Name,
        name: &Name,
        spec: Spec,
        data: Option<Data>,
    ) -> Result<Prepared, NotOpen> {
        let (store, start) = {
            let state = self.state();
            let running = state.disk(disk)?;
            let start = running.place_of(&spec).map_err(|why| Error::VolumeOffline(name.clone(), why))?;
            (running.store.clone(), start)
        };
        let plain = self.plain_spec(disk, name, &spec)?;
        let (opener, wanted) = (store.clone(), spec.clone());
        let opened =
            with_files(&store, name, move |files| data.map_or_else(|| Data::open(&opener, files, &wanted), Ok));
        let Data { file, id, abilities, holes, disk_start } = opened.await?.map_err(|error| match error {
            error if error.is_busy() => NotOpen::Busy(error.into()),
            error => Error::VolumeOffline(name.clone(), VolumeReason::Data(error.into())).into(),
        })?;
        let block = abilities.device_block;
        let sparse = spec.allocation == Allocation::Sparse;
        // On a raw device or a simulated drive, reads of unwritten blocks must reach the device.
        let is_file = spec.device.is_none() && store.model.is_none();
        let spec = VolumeSpec {
            sparse,
            holes,
            initialise: !sparse && is_file,
            grows_empty: is_file,
            disk_start: if store.model.is_some() { Some(start) } else { disk_start },
            device_block: block,
            can_zero: abilities.can_zero,
            can_punch: abilities.can_punch,
            // A killed server leaves writes in the device's volatile cache, and no trace of its end.
            unflushed: true,
            ..plain
        };
        let place = Place { volume: name.to_string(), start, block: block.into() };
        Ok(Prepared { spec, backing: Backing::File(file, place), source: Source::Local(id) })
    }

    /// Registers the tenant of a volume that is being opened. If its cache does not fit any more, it runs without the
    /// requested cache, with a warning.
    async fn ensure_tenant(&self, disk: &Name, tenant: &Name, thread: &Arc<DiskHandle>) -> Result<(), Error> {
        if self.state().disk(disk)?.tenants.contains_key(tenant) {
            return Ok(());
        }
        let Err(refusal_at_first) = self.sync_tenant(disk, tenant).await else { return Ok(()) };
        let (id, mut spec) = {
            let mut state = self.state();
            let running = state.disk_mut(disk)?;
            (running.free_tenant(), running.for_engine(tenant))
        };
        spec.cache = if spec.is_store { CacheSpec::Asked(LEAST_BYTES) } else { CacheSpec::Trial };
        let second = refusal(thread.command(Command::SetTenant(id, spec)).await);
        second.map_err(|refusal| refused(tenant, refusal))?;
        warn!(%disk, %tenant, "{refusal_at_first}");
        let known = Tenant { id, warning: Some(refusal_at_first.to_string()), told: spec.share };
        self.state().disk_mut(disk)?.tenants.insert(tenant.clone(), known);
        Ok(())
    }
}
