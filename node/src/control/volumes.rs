//! Volumes: opened with their disk, created, changed, grown, deleted.

use std::sync::Arc;

use engine::control::{CacheSpec, Command, VolumeSpec};
use engine::ids::VolumeId;
use tracing::{info, warn};

use super::decisions::cache_note;
use super::raw::{self, Chosen};
use super::tenants::TenantChange;
use super::view::{CreateVolume, GrowVolume, SetTenant, SetVolume};
use super::{
    Control, DiskReason, Done, Error, Invalid, Kind, State, Tenant, Volume, VolumeReason, VolumeState, blocking,
    refusal, with_files,
};
use crate::disk_thread::DiskHandle;
use crate::quantity::{Name, Size};
use crate::reactor::Place;
use crate::store::spec::{Allocation, WriteCache, check_size};
use crate::store::{Data, DataError, DataId, Files, Found, Kernel, LossNote, Progress, Raw, Spec, Store, TenantSpec};

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
            let volume = Volume { spec: spec.ok(), state, growing: None, loss_noted: false, refusals: 0 };
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
                warn!(%disk, volume = %name, "offline: {reason}");
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
        let (thread, store, spec, start, tenant, id) = {
            let mut state = self.state();
            let running = state.disk_mut(disk)?;
            let spec = running.volumes.get(name).and_then(|volume| volume.spec.clone());
            let spec = spec.ok_or_else(|| Error::Unknown(Kind::Volume, name.clone()))?;
            let start = running.place_of(&spec).map_err(|why| Error::VolumeOffline(name.clone(), why))?;
            let (tenant, id) = (spec.tenant(name), running.free_volume());
            (running.thread.clone(), running.store.clone(), spec, start, tenant, id)
        };
        self.ensure_tenant(disk, &tenant, &thread).await?;
        let tenant = self.state().disk_mut(disk)?.tenant_id(&tenant);
        let (opener, wanted) = (store.clone(), spec.clone());
        let note = LossNote::new(&self.config.data, &store, name, &spec);
        let opened = with_files(&store, name, move |files| -> Result<_, DataError> {
            let lost = note.exists().map_err(DataError::Loss)?;
            let data = data.map_or_else(|| Data::open(&opener, files, &wanted), Ok)?;
            Ok((data, lost))
        });
        let (data, lost) = opened.await?.map_err(|error| match error {
            error if error.is_busy() => NotOpen::Busy(error.into()),
            error => Error::VolumeOffline(name.clone(), VolumeReason::Data(error.into())).into(),
        })?;
        let Data { file, id: data, abilities, holes, disk_start } = data;
        let block = abilities.device_block;
        let sparse = spec.allocation == Allocation::Sparse;
        // On a raw device or a simulated drive, reads of unwritten blocks must reach the device.
        let is_file = spec.device.is_none() && store.model.is_none();
        let spec = VolumeSpec {
            volume: id,
            tenant,
            size: spec.size,
            write_cache: spec.write_cache.into(),
            sparse,
            holes,
            initialise: !sparse && is_file,
            grows_empty: is_file,
            disk_start: if store.model.is_some() { Some(start) } else { disk_start },
            device_block: block,
            can_zero: abilities.can_zero,
            can_punch: abilities.can_punch,
            read_only: spec.read_only,
            // A killed server leaves writes in the device's volatile cache, and no trace of its end.
            unflushed: true,
        };
        let place = Place { volume: name.to_string(), start, block: block.into() };
        refusal(thread.open_volume(spec, file, place).await).map_err(|refusal| refused(name, refusal))?;
        if lost {
            warn!(%disk, volume = %name, "acknowledged data was lost when the server last stopped");
            refusal(thread.command(Command::DeclareLost(id)).await).map_err(|refusal| refused(name, refusal))?;
        }
        if let Some(volume) = self.state().volume_mut(disk, name) {
            volume.state = VolumeState::Serving { id, data, block };
            volume.loss_noted = lost;
        }
        let opened = (disk.clone(), name.clone());
        if self.unflushed.lock().expect("no one panics while holding it").remove(&opened) {
            info!(%disk, volume = %name, "the previous server stopped without a flush: its writes are flushed now");
        }
        Ok(())
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
            (running.free_tenant(), running.allotment(tenant).for_engine())
        };
        spec.cache = CacheSpec::Trial;
        let second = refusal(thread.command(Command::SetTenant(id, spec)).await);
        second.map_err(|refusal| refused(tenant, refusal))?;
        warn!(%disk, %tenant, "{refusal_at_first}");
        let known = Tenant { id, warning: Some(refusal_at_first.to_string()) };
        self.state().disk_mut(disk)?.tenants.insert(tenant.clone(), known);
        Ok(())
    }

    /// Creates a volume. If this fails, nothing remains.
    pub async fn create_volume(&self, request: CreateVolume) -> Result<Done, Error> {
        let disk = which_disk(&self.state(), request.disk.as_ref())?;
        self.yield_probe(&disk).await;
        let policies = self.keep_policies(request.policy.is_some()).await?;
        let turn = self.change(&disk).await?;
        let request = self.with_policy(request)?;
        let chosen = self.choose_device(&request, &disk).await?;
        let decided = self.decide_like(&request, &disk).await?;
        let tenant = request.tenant.as_ref().unwrap_or(&request.name);
        let found = self.stored_tenant(&disk, tenant).await?;
        let (before, promised) = {
            let state = self.state();
            let running = state.disk(&disk)?;
            let promised = if running.has_tenant(tenant) { running.allotment(tenant) } else { TenantSpec::default() };
            (running.shared_cache(tenant, &request.name), promised)
        };
        let asks_cache = request.cache.is_some();
        let Planned { spec, store, progress, change, asks } =
            self.plan(&request, &disk, chosen.as_ref(), decided, found)?;
        let name = request.name;
        let tenant = spec.tenant(&name);
        if let Err(refusal) = self.sync_tenant(&disk, &tenant).await {
            return self.give_up(&disk, &name, change, refused(&name, refusal)).await;
        }
        // Before the volume: after a crash in between, the specification of a new tenant has no volume and is removed.
        if let Err(error) = self.store_tenant(&store, change.as_ref()).await {
            return self.give_up(&disk, &name, change, error).await;
        }
        drop(policies);
        // Writing zeros takes long, so the lock is released meanwhile; the name and the share are reserved already.
        let turn = Some(turn).filter(|_| spec.allocation != Allocation::Full);
        let written = spec.clone();
        let created = with_files(&store, &name, move |files| files.create(&written, &progress)).await;
        let _turn = match turn {
            Some(turn) => turn,
            None => self.turns.wait(&disk).await,
        };
        let opened = match created {
            Ok(Ok(())) => self.open_volume(&disk, &name, chosen.map(|chosen| chosen.claim.into())).await,
            Ok(Err(error)) => return self.give_up(&disk, &name, change, error.into()).await,
            Err(error) => return self.give_up(&disk, &name, change, error).await,
        };
        if let Err(error) = opened {
            let removed = spec.clone();
            with_files(&store, &name, move |files| remove(files, &removed)).await??;
            let error = match error {
                NotOpen::Busy(why) => Error::Waiting(name.clone(), why),
                NotOpen::Failed(error) => error,
            };
            return self.give_up(&disk, &name, change, error).await;
        }
        self.remember_volumes(&disk).await;
        info!(%disk, volume = %name, size = %Size(spec.size), "created");
        let mut message = format!("volume '{name}' of {} on disk '{disk}' can be opened", Size(spec.size));
        if let Some(device) = &spec.device {
            message += &format!("; its data is {}, with its present content", device.path.display());
        }
        if asks_cache {
            message += &cache_note(&tenant, before, request.cache);
        }
        message += &self.promise_note(&disk, &tenant, &promised);
        self.done_with_slice(&name, &disk, &spec, asks, message).await
    }

    async fn give_up(
        &self,
        disk: &Name,
        name: &Name,
        change: Option<TenantChange>,
        error: Error,
    ) -> Result<Done, Error> {
        // First the volume: otherwise a new tenant is registered with the engine once more, only to be dropped.
        let tenant = self.take_volume(disk, name);
        self.undo_tenant(disk, change).await;
        if let Some(tenant) = tenant {
            self.leave_tenant(disk, &tenant).await;
        }
        Err(error)
    }

    /// Forgets a volume, and its tenant if this was the tenant's last volume.
    async fn forget_volume(&self, disk: &Name, name: &Name) {
        if let Some(tenant) = self.take_volume(disk, name) {
            self.leave_tenant(disk, &tenant).await;
        }
    }

    /// Removes a volume from the state, and returns its tenant.
    fn take_volume(&self, disk: &Name, name: &Name) -> Option<Name> {
        let volume = self.state().disk_mut(disk).ok()?.volumes.remove(name)?;
        volume.spec.map(|spec| spec.tenant(name))
    }

    /// Checks a request, and reserves the name and the share. `found` is the tenant's stored specification.
    fn plan(
        &self,
        request: &CreateVolume,
        disk: &Name,
        chosen: Option<&Chosen>,
        decided: Option<Size>,
        found: Option<TenantSpec>,
    ) -> Result<Planned, Error> {
        let size = chosen.map(|chosen| chosen.size).or(request.size.map(|size| size.0));
        let size = size.ok_or(Invalid::NoSize)?;
        check_size(size).map_err(Invalid::from)?;
        if request.force && chosen.is_none() {
            return Err(Invalid::ForceWithoutDevice.into());
        }
        let mut state = self.state();
        // A volume of an offline disk keeps its name.
        if !matches!(state.find(&request.name), Err(Error::Unknown(..))) {
            return Err(Error::Exists(Kind::Volume, request.name.clone()));
        }
        let mut spec = Spec::new(size, request.tenant.clone(), request.allocation);
        let tenant = spec.tenant(&request.name);
        let is_new = !state.may_have_tenant(disk, &tenant);
        let running = state.disk_mut(disk)?;
        spec.device = chosen.map(|chosen| chosen.device.clone());
        spec.allow = request.allow.clone();
        spec.read_only = request.read_only;
        spec.description = request.description.clone();
        running.take_place(disk, &mut spec)?;
        let of_tenant = SetTenant::of_new(request);
        let asks = !of_tenant.changes_nothing() || decided.is_some();
        let has_none = !running.has_tenant(&tenant);
        if has_none {
            running.enter_tenant(&tenant, found);
        }
        let change = match asks || has_none {
            true => Some(self.begin_change(running, disk, &tenant, request.overcommit, |spec| {
                if is_new {
                    *spec = TenantSpec::default();
                }
                self.apply_request(&tenant, &of_tenant, spec)?;
                spec.decided = decided.or(spec.decided);
                Ok(())
            })?),
            false => None,
        };
        let progress = Arc::new(Progress::default());
        let state = VolumeState::Creating(progress.clone());
        let volume = Volume { spec: Some(spec.clone()), state, growing: None, loss_noted: false, refusals: 0 };
        running.volumes.insert(request.name.clone(), volume);
        Ok(Planned { spec, store: running.store.clone(), progress, change, asks })
    }

    /// A volume in a state that can be changed.
    pub(super) fn changeable(&self, name: &Name) -> Result<Changeable, Error> {
        let state = self.state();
        let (disk, volume) = state.find(name)?;
        match (&volume.state, &volume.spec) {
            _ if volume.progress().is_some() => Err(Error::Busy(Kind::Volume, name.clone())),
            (VolumeState::Creating(_), _) => Err(Error::Busy(Kind::Volume, name.clone())),
            (VolumeState::Waiting(reason), _) => Err(Error::Waiting(name.clone(), reason.clone())),
            (VolumeState::Offline(reason), _) => Err(Error::VolumeOffline(name.clone(), reason.clone())),
            (VolumeState::Serving { .. }, None) => Err(Error::NoSpec),
            (VolumeState::Serving { id, data, .. }, Some(spec)) => {
                let running = state.disk(&disk)?;
                let (store, thread) = (running.store.clone(), running.thread.clone());
                Ok(Changeable { id: *id, data: *data, spec: spec.clone(), store, thread, disk })
            }
        }
    }

    /// Changes a volume's settings or the allotment of its tenant; all of them or none.
    pub async fn set_volume(&self, name: &Name, request: SetVolume) -> Result<Done, Error> {
        let _policies = self.keep_policies(request.policy.is_some()).await?;
        let (_turn, _) = self.change_volume(name).await?;
        if request.write_cache == Some(WriteCache::Unsafe) && !request.accept_data_loss {
            return Err(Error::NotAccepted);
        }
        if request.changes_nothing() {
            return Err(Invalid::NoChangeOfVolume(name.clone()).into());
        }
        let volume = self.changeable(name)?;
        let tenant = volume.spec.tenant(name);
        let (before, promised) = {
            let state = self.state();
            let running = state.disk(&volume.disk)?;
            (running.shared_cache(&tenant, name), running.allotment(&tenant))
        };
        let of_tenant = SetTenant::of(&request);
        let mut spec = volume.spec.clone();
        spec.write_cache = request.write_cache.unwrap_or(spec.write_cache);
        spec.allow = request.allow.unwrap_or(spec.allow);
        spec.read_only = request.read_only.unwrap_or(spec.read_only);
        spec.description = request.description.unwrap_or(spec.description);
        let change = match of_tenant.changes_nothing() {
            true => None,
            false => {
                let mut state = self.state();
                let (running, overcommit) = (state.disk_mut(&volume.disk)?, of_tenant.overcommit);
                let apply = |spec: &mut TenantSpec| self.apply_request(&tenant, &of_tenant, spec);
                Some(self.begin_change(running, &volume.disk, &tenant, overcommit, apply)?)
            }
        };
        if let Err(error) = self.apply(name, &volume, &spec, change.as_ref()).await {
            self.undo_tenant(&volume.disk, change).await;
            self.restore(name, &volume).await;
            return Err(error);
        }
        info!(disk = %volume.disk, volume = %name, "changed");
        let changes_ceilings = of_tenant.changes_ceilings();
        let ceiling = if changes_ceilings { self.ceiling_note(&volume.disk, &tenant) } else { String::new() };
        let note = of_tenant.cache.map(|cache| cache_note(&tenant, before, cache.value())).unwrap_or_default();
        let note =
            ceiling.replacen(": it", ": its tenant", 1) + &note + &self.promise_note(&volume.disk, &tenant, &promised);
        let message = format!("volume '{name}' is changed{note}");
        self.done_with_slice(name, &volume.disk, &spec, change.is_some(), message).await
    }

    /// Applies a change to the state, then to the engine, then to the file.
    async fn apply(
        &self,
        name: &Name,
        volume: &Changeable,
        spec: &Spec,
        change: Option<&TenantChange>,
    ) -> Result<(), Error> {
        self.set_spec(&volume.disk, name, spec);
        if change.is_some() {
            let synced = self.sync_tenant(&volume.disk, &spec.tenant(name)).await;
            synced.map_err(|refusal| refused(name, refusal))?;
        }
        if spec.write_cache != volume.spec.write_cache {
            let command = Command::SetWriteCache(volume.id, spec.write_cache.into());
            refusal(volume.thread.command(command).await).map_err(|refusal| refused(name, refusal))?;
        }
        if (&spec.allow, spec.read_only) != (&volume.spec.allow, volume.spec.read_only) {
            let restricted = volume.thread.restrict(volume.id, spec.allow.clone(), spec.read_only).await;
            refusal(restricted).map_err(|refusal| refused(name, refusal))?;
        }
        self.store_tenant(&volume.store, change).await?;
        if *spec == volume.spec {
            return Ok(());
        }
        let (from, to) = (volume.spec.clone(), spec.clone());
        Ok(with_files(&volume.store, name, move |files| files.change(&from, &to)).await??)
    }

    async fn restore(&self, name: &Name, volume: &Changeable) {
        self.set_spec(&volume.disk, name, &volume.spec);
        let mode = Command::SetWriteCache(volume.id, volume.spec.write_cache.into());
        let restricted = volume.thread.restrict(volume.id, volume.spec.allow.clone(), volume.spec.read_only).await;
        if let Err(refusal) = refusal(volume.thread.command(mode).await).and(refusal(restricted)) {
            warn!(volume = %name, "{refusal}");
        }
    }

    pub(super) fn set_spec(&self, disk: &Name, name: &Name, spec: &Spec) {
        if let Some(volume) = self.state().volume_mut(disk, name) {
            volume.spec = Some(spec.clone());
        }
    }

    /// Grows a volume: the file first, then the specification, then the size that clients see at their next open.
    pub async fn grow_volume(&self, name: &Name, request: GrowVolume) -> Result<Done, Error> {
        let on = self.changeable(name)?.disk;
        self.yield_probe(&on).await;
        let (turn, disk) = self.change_volume(name).await?;
        let volume = self.changeable(name)?;
        let device = volume.device_now().await?;
        let size = request.size.map(|size| size.0).or(device.as_ref().map(Raw::usable_bytes));
        let size = size.ok_or_else(|| Invalid::NoNewSize(name.clone()))?;
        check_size(size).map_err(Invalid::from)?;
        if size < volume.spec.size {
            let (volume, now, asked) = (name.clone(), Size(volume.spec.size), Size(size));
            return Err(Invalid::Shrinks { volume, now, asked }.into());
        }
        if let Some(device) = &device {
            raw::check_size(device, size)?;
        }
        let (from, to) = (volume.spec.clone(), Spec { size, device, ..volume.spec.clone() });
        self.state().disk(&volume.disk)?.check_growth(name, &from, &to)?;
        let (new, progress) = (to.clone(), Arc::new(Progress::default()));
        if let Some(growing) = self.state().volume_mut(&volume.disk, name) {
            growing.growing = Some(progress.clone());
        }
        // As in creation, the lock is released meanwhile; the volume itself is marked as growing.
        let turn = Some(turn).filter(|_| new.allocation != Allocation::Full);
        let grown = with_files(&volume.store, name, move |files| files.grow(&from, &to, &progress)).await;
        let _turn = match turn {
            Some(turn) => turn,
            None => self.turns.wait(&disk).await,
        };
        if let Some(growing) = self.state().volume_mut(&volume.disk, name) {
            growing.growing = None;
        }
        grown??;
        self.set_spec(&volume.disk, name, &new);
        let command = Command::GrowVolume(volume.id, size);
        refusal(volume.thread.command(command).await).map_err(|refusal| refused(name, refusal))?;
        self.remember_volumes(&volume.disk).await;
        info!(disk = %volume.disk, volume = %name, size = %Size(size), "grown");
        self.done(
            name,
            format!("volume '{name}' now has {}; clients see the new size when they open it again", Size(size)),
        )
        .await
    }

    /// Deletes a volume with its data. With `force`, clients are disconnected; otherwise there must be none.
    pub async fn delete_volume(&self, name: &Name, force: bool) -> Result<Done, Error> {
        let (_turn, _) = self.change_volume(name).await?;
        let connections = if force { 0 } else { self.connections_of(name).await? };
        if connections > 0 {
            return Err(Error::InUse(Kind::Volume, name.clone(), connections));
        }
        let (disk, id, spec, store, thread) = {
            let state = self.state();
            let (disk, volume) = state.find(name)?;
            if volume.progress().is_some() {
                return Err(Error::Busy(Kind::Volume, name.clone()));
            }
            let running = state.disk(&disk)?;
            let spec = volume.spec.clone().unwrap_or_else(|| Spec::new(0, None, Allocation::Whole));
            (disk.clone(), volume.id(), spec, running.store.clone(), running.thread.clone())
        };
        self.keep_earlier_allotment(&disk, name, &spec, &store).await?;
        // A raw device keeps everything that was acknowledged, since it may become a volume again.
        let discard = spec.device.is_none();
        if let Some(volume) = id.filter(|_| !discard) {
            refusal(thread.command(Command::CloseVolume { volume, discard }).await)
                .map_err(|refusal| refused(name, refusal))?;
            if let Some(volume) = self.state().volume_mut(&disk, name) {
                volume.state = VolumeState::Offline(VolumeReason::Deleting);
            }
        }
        let removed = spec.clone();
        with_files(&store, name, move |files| files.unpublish(&removed)).await??;
        if let Some(volume) = id.filter(|_| discard) {
            refusal(thread.command(Command::CloseVolume { volume, discard }).await)
                .map_err(|refusal| refused(name, refusal))?;
        }
        self.forget_volume(&disk, name).await;
        self.remember_volumes(&disk).await;
        let message = match &spec.device {
            Some(device) => format!("volume '{name}' is deleted; the data on {} is unchanged", device.path.display()),
            None => format!("volume '{name}' is deleted"),
        };
        let note = LossNote::new(&self.config.data, &store, name, &spec);
        let discarded = with_files(&store, name, move |files| {
            if let Err(error) = note.remove_own() {
                warn!("the loss record of a deleted volume cannot be removed; it has no effect: {error}");
            }
            files.discard(&spec)
        });
        let discarded = discarded.await?;
        let message = match discarded {
            Ok(()) => message,
            Err(error) => format!("{message}, but its data could not be removed: {error}"),
        };
        info!(%disk, volume = %name, "deleted");
        Ok(Done { message, disk: None, volume: None, tenant: None })
    }

    /// The connections of a volume; 0 if its disk does not answer.
    async fn connections_of(&self, name: &Name) -> Result<u32, Error> {
        let (disk, id) = self.state().find(name).map(|(disk, volume)| (disk, volume.id()))?;
        let snapshot = self.snapshot(&disk).await;
        let volumes = snapshot.iter().flat_map(|snapshot| &snapshot.volumes);
        Ok(volumes.filter(|stats| Some(stats.volume) == id).map(|stats| stats.connections).sum())
    }

    /// Accepts the loss of a volume, so that flushes succeed again.
    pub async fn clear_volume(&self, name: &Name) -> Result<Done, Error> {
        let (_turn, _) = self.change_volume(name).await?;
        let volume = self.changeable(name)?;
        let note = LossNote::new(&self.config.data, &volume.store, name, &volume.spec);
        let found = note.clone();
        // If the record cannot be read, a loss is assumed; then the volume is cleared, or the removal reports the
        // error.
        let is_noted = blocking(move || found.exists()).await?.unwrap_or(true);
        let snapshot = self.snapshot(&volume.disk).await;
        let mut known = snapshot.iter().flat_map(|snapshot| &snapshot.volumes);
        if !is_noted && known.any(|stats| stats.volume == volume.id && !stats.lost && !stats.failing) {
            let message = format!("volume '{name}' has no loss and no block that cannot be written; nothing changed");
            return self.done(name, message).await;
        }
        blocking(move || note.remove()).await??;
        if let Some(cleared) = self.state().volume_mut(&volume.disk, name) {
            cleared.loss_noted = false;
        }
        refusal(volume.thread.command(Command::ClearVolume(volume.id)).await)
            .map_err(|refusal| refused(name, refusal))?;
        warn!(disk = %volume.disk, volume = %name, "cleared: blocks that could not be written are discarded");
        self.done(
            name,
            format!(
                "volume '{name}': blocks that could not be written are discarded and their data is lost; flushes \
                 succeed again"
            ),
        )
        .await
    }

    async fn done(&self, name: &Name, message: String) -> Result<Done, Error> {
        Ok(Done { message, volume: self.show_volume(name).await.ok(), disk: None, tenant: None })
    }

    /// As `done`, with notes on a shared allotment, the tenant's slice, and the decision on it.
    async fn done_with_slice(
        &self,
        name: &Name,
        disk: &Name,
        spec: &Spec,
        is_of_tenant: bool,
        message: String,
    ) -> Result<Done, Error> {
        let notes = match is_of_tenant {
            true => shared(spec) + &self.unheeded(disk, &spec.tenant(name)),
            false => String::new(),
        };
        self.wait_for_decision(disk).await;
        let mut done = self.done(name, message + &notes).await?;
        let Some(volume) = &done.volume else { return Ok(done) };
        if let Some(slice) = &volume.slice {
            done.message += &format!("; {}", slice.in_words());
        }
        if let Some(sizing) = &volume.sizing {
            done.message += &format!("\n{}", sizing.in_words());
        }
        Ok(done)
    }
}

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

/// A volume whose name and share are reserved.
struct Planned {
    spec: Spec,
    store: Arc<Store>,
    progress: Arc<Progress>,
    change: Option<TenantChange>,
    /// Whether anything is requested for its tenant.
    asks: bool,
}

pub(super) struct Changeable {
    disk: Name,
    pub(super) id: VolumeId,
    data: DataId,
    spec: Spec,
    store: Arc<Store>,
    pub(super) thread: Arc<DiskHandle>,
}

impl Changeable {
    /// The device of the volume with its present size. `None` if its data is a file.
    async fn device_now(&self) -> Result<Option<Raw>, Error> {
        let (Some(device), DataId::Device(number)) = (self.spec.device.clone(), self.data) else { return Ok(None) };
        Ok(Some(blocking(move || device.grown(&Kernel::default(), number)).await??))
    }
}

fn refused(name: &Name, refusal: engine::control::Refusal) -> Error {
    Error::Refused { kind: Kind::Volume, name: name.clone(), refusal }
}

fn remove(files: &Files<'_>, spec: &Spec) -> Result<(), crate::store::StoreError> {
    files.unpublish(spec)?;
    files.discard(spec)
}

/// A note if a volume shares its tenant's allotment with others.
fn shared(spec: &Spec) -> String {
    match &spec.tenant {
        Some(tenant) => {
            format!("; tenant '{tenant}' has one allotment for all its volumes; the last setting applies")
        }
        None => String::new(),
    }
}

/// The disk that was named, or the only one, or the one called `default`.
pub(super) fn which_disk(state: &State, named: Option<&Name>) -> Result<Name, Error> {
    let first = "default".parse().expect("a name");
    let name = match (named, state.disks.len()) {
        (Some(name), _) => name.clone(),
        (None, 1) => state.disks.keys().next().cloned().unwrap_or(first),
        (None, _) if state.disks.contains_key(&first) => first,
        (None, count) => return Err(Error::WhichDisk(count)),
    };
    state.disk(&name).map(|_| name)
}
