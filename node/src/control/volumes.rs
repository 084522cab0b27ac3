//! Volumes: created, changed, grown.

use std::sync::Arc;

use engine::control::Command;
use engine::ids::VolumeId;
use tracing::{info, warn};

use super::decisions::cache_note;
use super::error::PartError;
use super::opening::NotOpen;
use super::raw::{self, Chosen};
use super::tenants::TenantChange;
use super::view::{CreateVolume, GrowVolume, SetTenant, SetVolume, Setting};
use super::{
    Control, Done, Error, Invalid, Kind, Source, State, Volume, VolumeReason, VolumeState, blocking, refusal, stores,
    upstreams, with_files,
};
use crate::disk_thread::DiskHandle;
use crate::quantity::{Name, OrAuto, Size};
use crate::store::spec::{Allocation, Part, WriteCache, check_size};
use crate::store::{DataId, Kernel, LossNote, Progress, Raw, Spec, Store, Stripes, TenantSpec};

impl Control {
    /// Creates a volume. If this fails, nothing remains.
    pub async fn create_volume(&self, request: CreateVolume) -> Result<Done, Error> {
        if request.is_of_cluster() {
            return Err(PartError::NoCluster(request.name).into());
        }
        self.create(request, Role::Volume).await
    }

    /// The same, of any volume.
    pub(super) async fn create(&self, request: CreateVolume, role: Role) -> Result<Done, Error> {
        let disk = which_disk(&self.state(), request.disk.as_ref())?;
        // Asked before the disk's lock is taken, since the server may not answer.
        let remote = upstreams::choose(&request).await?;
        self.yield_probe(&disk).await;
        let policies = self.keep_policies(request.policy.is_some()).await?;
        let turn = self.change(&disk).await?;
        let request = self.with_policy(request)?;
        let chosen = self.choose_device(&request, &disk).await?;
        let decided = self.decide_like(&request, &disk).await?;
        let stores = (role == Role::Store).then(Name::of_stores);
        let tenant = stores.as_ref().or(request.tenant.as_ref()).unwrap_or(&request.name);
        let found = self.stored_tenant(&disk, tenant).await?;
        let (before, promised) = {
            let state = self.state();
            let running = state.disk(&disk)?;
            let promised = if running.has_tenant(tenant) { running.allotment(tenant) } else { TenantSpec::default() };
            (running.shared_cache(tenant, &request.name), promised)
        };
        let asks_cache = request.cache.is_some();
        let Planned { spec, store, progress, change, asks } =
            self.plan(&request, &disk, (role, chosen.as_ref(), remote.as_ref()), decided, found)?;
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
        // Before zeros are written; by then, the answer may be another one.
        if let Err(error) = self.is_marked_new(&disk, &spec) {
            return self.give_up(&disk, &name, change, error).await;
        }
        // Writing zeros takes long, so the lock is released meanwhile; the name and the share are reserved already.
        let turn = Some(turn).filter(|_| spec.allocation != Allocation::Full);
        let made = spec.clone();
        let prepared = with_files(&store, &name, move |files| files.prepare(&made, &progress)).await;
        let _turn = match turn {
            Some(turn) => turn,
            None => self.turns.wait(&disk).await,
        };
        let prepared = prepared.and_then(|prepared| Ok(prepared?));
        let spec = match self.publish_new(&disk, &name, &store, spec, prepared).await {
            Ok(spec) => spec,
            Err(error) => return self.give_up(&disk, &name, change, error).await,
        };
        if let Err(error) = self.open_volume(&disk, &name, chosen.map(|chosen| chosen.claim.into())).await {
            let error = match error {
                NotOpen::Busy(why) => Error::Waiting(name.clone(), why),
                NotOpen::Failed(error) => error,
            };
            return self.undo_creation(&disk, &name, &store, spec, change, error).await;
        }
        self.remember_volumes(&disk).await;
        info!(%disk, volume = %name, size = %Size(spec.size), "created");
        let mut message = what_was_created(&name, &disk, &spec);
        if asks_cache {
            message += &cache_note(&tenant, before, request.cache);
        }
        message += &match stores.is_some() {
            true => self.share_note(&disk, &promised),
            false => self.promise_note(&disk, &tenant, &promised),
        };
        self.done_with_slice(&name, &disk, &spec, asks, message).await
    }

    /// Publishes a volume if its data is prepared, marked if the writes of its disk are off-loaded by now. If this
    /// fails, nothing remains.
    async fn publish_new(
        &self,
        disk: &Name,
        name: &Name,
        store: &Arc<Store>,
        spec: Spec,
        prepared: Result<(), Error>,
    ) -> Result<Spec, Error> {
        prepared?;
        let marked = match self.mark_new(disk, &spec).await {
            Ok(marked) => marked,
            Err(error) => {
                let discarded = with_files(store, name, move |files| files.discard(&spec)).await;
                if let Err(undo) = discarded.and_then(|discarded| Ok(discarded?)) {
                    warn!(%disk, volume = %name, "the data of a failed creation cannot be removed: {undo}");
                }
                return Err(error);
            }
        };
        let written = marked.clone();
        with_files(store, name, move |files| files.publish(&written)).await??;
        self.set_spec(disk, name, &marked);
        Ok(marked)
    }

    /// Removes a new volume that cannot be opened. If its specification cannot be removed, the volume stays, offline.
    async fn undo_creation(
        &self,
        disk: &Name,
        name: &Name,
        store: &Arc<Store>,
        spec: Spec,
        change: Option<TenantChange>,
        error: Error,
    ) -> Result<Done, Error> {
        let removed = spec.clone();
        let unpublished = with_files(store, name, move |files| files.unpublish(&removed)).await;
        if let Err(undo) = unpublished.and_then(|unpublished| Ok(unpublished?)) {
            let reason = VolumeReason::from(error);
            warn!(%disk, volume = %name, "offline: {reason}; its creation cannot be undone: {undo}");
            if let Some(volume) = self.state().volume_mut(disk, name) {
                volume.state = VolumeState::Offline(reason.clone());
            }
            self.remember_volumes(disk).await;
            return Err(Error::NotRemoved(Error::VolumeOffline(name.clone(), reason).into(), undo.into()));
        }
        let discarded = with_files(store, name, move |files| files.discard(&spec)).await;
        let error = match discarded.and_then(|discarded| Ok(discarded?)) {
            Ok(()) => error,
            Err(undo) => {
                warn!(%disk, volume = %name, "the data of a failed creation cannot be removed: {undo}");
                Error::NotRemoved(error.into(), undo.into())
            }
        };
        self.give_up(disk, name, change, error).await
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

    /// Removes a volume from the state, and returns its tenant.
    pub(super) fn take_volume(&self, disk: &Name, name: &Name) -> Option<Name> {
        let volume = self.state().disk_mut(disk).ok()?.volumes.remove(name)?;
        volume.spec.map(|spec| spec.tenant(name))
    }

    /// Checks a request, and reserves the name and the share. `found` is the tenant's stored specification.
    fn plan(
        &self,
        request: &CreateVolume,
        disk: &Name,
        (role, chosen, remote): (Role, Option<&Chosen>, Option<&upstreams::Chosen>),
        decided: Option<Size>,
        found: Option<TenantSpec>,
    ) -> Result<Planned, Error> {
        let size = chosen.map(|chosen| chosen.size).or(remote.map(|remote| remote.size));
        let size = size.or(request.size.map(|size| size.0));
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
        let is_store = role == Role::Store;
        let mut spec = match role {
            Role::Store => Spec::new_store(size),
            Role::Volume => Spec::new(size, request.tenant.clone(), request.allocation),
            Role::Part(part) => Spec::new_part(size, request.allocation, part),
        };
        let tenant = spec.tenant(&request.name);
        let is_new = !state.may_have_tenant(disk, &tenant);
        let running = state.disk_mut(disk)?;
        spec.device = chosen.map(|chosen| chosen.device.clone());
        spec.allow = request.allow.clone();
        spec.read_only = request.read_only;
        spec.description = request.description.clone();
        if let Some(remote) = remote {
            remote.enter(&mut spec);
        }
        running.take_place(disk, &mut spec)?;
        if running.has_tenant(&tenant) && running.is_remote(&tenant) != remote.is_some() {
            return Err(Invalid::MixedTenant(tenant).into());
        }
        if running.has_tenant(&tenant) && running.has_part(&tenant) != spec.cluster.is_some() {
            return Err(PartError::Tenant { disk: disk.clone(), tenant }.into());
        }
        let mut of_tenant = SetTenant::of_new(request);
        if is_store && !running.has_tenant(&tenant) {
            of_tenant.share.get_or_insert_with(|| Setting::To(OrAuto::To(stores::share_default())));
        }
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
                if remote.is_some() { Ok(upstreams::refuse_promises(&tenant, spec)?) } else { Ok(()) }
            })?),
            false => None,
        };
        let progress = Arc::new(Progress::default());
        let state = VolumeState::Creating(progress.clone());
        let volume =
            Volume { spec: Some(spec.clone()), state, growing: None, loss_noted: false, refusals: 0, key: None };
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
            (VolumeState::Serving { id, source, .. }, Some(spec)) => {
                let running = state.disk(&disk)?;
                let (store, thread) = (running.store.clone(), running.thread.clone());
                Ok(Changeable { id: *id, source: source.clone(), spec: spec.clone(), store, thread, disk })
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
        if volume.spec.store && !request.changes_access_only() {
            return Err(Invalid::SetOfStore(name.clone()).into());
        }
        let tenant = volume.spec.tenant(name);
        let (before, promised) = {
            let state = self.state();
            let running = state.disk(&volume.disk)?;
            (running.shared_cache(&tenant, name), running.allotment(&tenant))
        };
        let of_tenant = SetTenant::of(&request);
        let mut spec = volume.spec.clone();
        upstreams::apply(name, &request, &mut spec)?;
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
        let anew = if request.upstream_connections.is_some() { "; its connections are opened anew" } else { "" };
        let message = format!("volume '{name}' is changed{anew}{note}");
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
        if let Some(command) = upstreams::change(volume.id, &volume.spec, spec) {
            refusal(volume.thread.command(command).await).map_err(|refusal| refused(name, refusal))?;
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
        if let Some(command) = upstreams::command(volume.id, &volume.spec)
            && let Err(refusal) = refusal(volume.thread.command(command).await)
        {
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
        self.refuse_part(name, "growing")?;
        self.grow(name, request).await
    }

    /// The same; of a part, as the cluster has decided.
    pub(super) async fn grow(&self, name: &Name, request: GrowVolume) -> Result<Done, Error> {
        let on = self.changeable(name)?.disk;
        self.yield_probe(&on).await;
        let (turn, disk) = self.change_volume(name).await?;
        let volume = self.changeable(name)?;
        if volume.spec.store {
            return Err(Invalid::GrowStore(name.clone()).into());
        }
        if let Some(remote) = &volume.spec.upstream {
            let (spec, volume) = (&volume.spec, name.clone());
            return Err(match spec.stripes {
                None => Invalid::GrowExport { volume, from: Box::new(remote.from.clone()) },
                Some(_) => Invalid::GrowStripes { volume, from: spec.addresses() },
            }
            .into());
        }
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
        let (from, to) = (volume.spec.clone(), Spec { size, device: device.clone(), ..volume.spec.clone() });
        self.state().disk(&volume.disk)?.check_growth(name, &from, &to)?;
        let (is_slow, progress) = (to.allocation == Allocation::Full, Arc::new(Progress::default()));
        if let Some(growing) = self.state().volume_mut(&volume.disk, name) {
            growing.growing = Some(progress.clone());
        }
        // As in creation, the lock is released meanwhile; the volume itself is marked as growing.
        let turn = Some(turn).filter(|_| !is_slow);
        let extended = with_files(&volume.store, name, move |files| files.extend_data(&from, &to, &progress)).await;
        let _turn = match turn {
            Some(turn) => turn,
            None => self.turns.wait(&disk).await,
        };
        if let Some(growing) = self.state().volume_mut(&volume.disk, name) {
            growing.growing = None;
        }
        extended??;
        // Off-loading may have been enabled or disabled meanwhile: the volume is marked, or was opened again.
        let volume = self.changeable(name)?;
        let (from, new) = (volume.spec.clone(), Spec { size, device, ..volume.spec.clone() });
        let to = new.clone();
        with_files(&volume.store, name, move |files| files.grow(&from, &to)).await??;
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

/// What a new volume is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// Clients.
    Volume,
    /// Other disks, which off-load writes into it.
    Store,
    /// Clients of a volume of a cluster that it is a part of.
    Part(Part),
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
    source: Source,
    pub(super) spec: Spec,
    store: Arc<Store>,
    pub(super) thread: Arc<DiskHandle>,
}

impl Changeable {
    /// The device of the volume with its present size. `None` if its data is a file.
    async fn device_now(&self) -> Result<Option<Raw>, Error> {
        let (Some(device), &Source::Local(DataId::Device(number))) = (self.spec.device.clone(), &self.source) else {
            return Ok(None);
        };
        Ok(Some(blocking(move || device.grown(&Kernel::default(), number)).await??))
    }
}

pub(super) fn refused(name: &Name, refusal: engine::control::Refusal) -> Error {
    Error::Refused { kind: Kind::Volume, name: name.clone(), refusal }
}

/// What was created.
fn what_was_created(name: &Name, disk: &Name, spec: &Spec) -> String {
    let what = if spec.store { "store" } else { "volume" };
    let message = format!("{what} '{name}' of {} on disk '{disk}' can be opened", Size(spec.size));
    match (&spec.device, &spec.upstream) {
        (Some(device), _) => message + &format!("; its data is {}, with its present content", device.path.display()),
        (None, Some(_)) => {
            let access = match (spec.exports().any(|export| export.read_only), &spec.stripes) {
                (true, None) => ", which is read-only".into(),
                (true, Some(_)) => ", of which at least one is read-only".into(),
                (false, None) => ", with its present content".into(),
                (false, Some(Stripes { unit, .. })) => {
                    format!(", in stripes of {}, with their present content", Size(*unit))
                }
            };
            message + &format!("; its data is {}{access}", spec.addresses())
        }
        (None, None) => message,
    }
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
