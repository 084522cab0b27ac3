//! Off-loading is enabled, and its settings are changed.

use std::collections::BTreeSet;
use std::time::SystemTime;

use engine::control::Command;
use engine::ids::VolumeId;
use engine::nbd::Claim;
use engine::offload::{Initial, Recovered, Scan, log_bytes};
use engine::units::BLOCK;
use tracing::info;
use uuid::Uuid;

use super::super::upstreams;
use super::super::view::{CreateVolume, EnableOffload};
use super::super::{Control, Done, Error, Kind, OffloadRefused, StoreExportError, Volume, VolumeState, refusal};
use super::{Offloading, Phase, STORE_DEADLINE, own_uri};
use crate::quantity::Name;
use crate::store::offload::{Entry, Leaving, Mapped, Offload, Settings, StoreRef};
use crate::store::{ExportUri, Exports, Remote};
use crate::upstream::{ReadError, Reader, Target};

impl EnableOffload {
    fn settings(&self, before: Settings) -> Settings {
        Settings {
            copies: self.copies.unwrap_or(before.copies),
            base_threshold: self.base_threshold.unwrap_or(before.base_threshold),
            store_threshold: self.store_threshold.unwrap_or(before.store_threshold),
            reclaim_depth: self.reclaim_depth.unwrap_or(before.reclaim_depth),
            limit: self.limit.unwrap_or(before.limit),
        }
    }
}

impl Control {
    /// Off-loads the writes of a disk from now on, or changes the settings. If this fails, nothing has changed.
    pub async fn enable_offload(&self, disk: &Name, request: EnableOffload) -> Result<Done, Error> {
        for (at, store) in request.stores.iter().enumerate() {
            if request.stores[..at].contains(store) {
                return Err(OffloadRefused::Twice(store.clone()).into());
            }
        }
        let before = {
            let state = self.state();
            let found = state.disk(disk)?.offloading().map_err(|error| OffloadRefused::Broken(error.clone()))?;
            found.map(|offloading| offloading.file.clone())
        };
        if let Some(before) = before {
            return self.change_settings(disk, &request, &before).await;
        }
        let settings = request.settings(Settings::default());
        settings.check_ranges().map_err(OffloadRefused::from)?;
        if request.stores.is_empty() {
            return Err(OffloadRefused::NoStore(disk.clone()).into());
        }
        settings.check(request.stores.len()).map_err(OffloadRefused::from)?;
        // The end of an earlier off-loading erases the logs: its sessions with the stores must have ended.
        drop(self.change(disk).await?);
        self.uuids(disk, &request.except)?;
        let mut entries: Vec<Entry> = Vec::new();
        for store in &request.stores {
            entries.push(self.choose_store(disk, store, &entries).await?);
        }
        // Last, since `force` overwrites what they have.
        for entry in &entries {
            check_content(disk, entry, request.force).await?;
        }
        let _turn = self.change(disk).await?;
        self.begin_offload(disk, Offload::new(settings, entries), &request.except).await?;
        info!(%disk, "writes are off-loaded when the disk is overloaded");
        let stores: Vec<String> = request.stores.iter().map(|store| format!("'{store}'")).collect();
        let s = if stores.len() == 1 { "" } else { "s" };
        let message =
            format!("writes of disk '{disk}' are off-loaded to store{s} {} when it is overloaded", stores.join(", "));
        Ok(Done { message, disk: None, volume: None, tenant: None })
    }

    async fn change_settings(&self, disk: &Name, request: &EnableOffload, before: &Offload) -> Result<Done, Error> {
        if before.ending {
            return Err(OffloadRefused::Ending(disk.clone()).into());
        }
        let settings = request.settings(before.settings);
        settings.check_ranges().map_err(OffloadRefused::from)?;
        let staying = before.stores.iter().filter(|entry| entry.stays());
        let named: Vec<&StoreRef> = staying.map(|entry| &entry.store).collect();
        let is_same =
            |stores: &[StoreRef]| stores.len() == named.len() && stores.iter().all(|store| named.contains(&store));
        if !request.stores.is_empty() && !is_same(&request.stores) {
            return Err(OffloadRefused::OtherStores(disk.clone()).into());
        }
        if !request.except.is_empty() && self.uuids(disk, &request.except)? != before.except {
            return Err(OffloadRefused::OtherExceptions(disk.clone()).into());
        }
        if settings.copies != before.settings.copies {
            return Err(OffloadRefused::OtherCopies(disk.clone()).into());
        }
        settings.check(before.stores.len()).map_err(OffloadRefused::from)?;
        let _turn = self.change(disk).await?;
        self.change_offload(disk, |file| file.settings = settings).await?;
        let (thread, is_started) = {
            let state = self.state();
            let running = state.disk(disk)?;
            (running.thread.clone(), running.offloading().ok().flatten().is_some_and(Offloading::is_started))
        };
        if is_started {
            let set = refusal(thread.command(Command::SetOffload(settings.for_engine())).await);
            set.map_err(|refusal| Error::Refused { kind: Kind::Disk, name: disk.clone(), refusal })?;
        }
        let message = format!("the settings of off-loading of disk '{disk}' are changed");
        Ok(Done { message, disk: None, volume: None, tenant: None })
    }

    /// The volumes of these names.
    fn uuids(&self, disk: &Name, volumes: &[Name]) -> Result<BTreeSet<Uuid>, Error> {
        let state = self.state();
        let running = state.disk(disk)?;
        let uuid = |name: &Name| {
            let spec = running.volumes.get(name).and_then(|volume| volume.spec.as_ref());
            spec.map(|spec| spec.uuid).ok_or_else(|| match state.find(name) {
                Ok((on, _)) if on != *disk => {
                    OffloadRefused::ExceptElsewhere { volume: name.clone(), on, disk: disk.clone() }.into()
                }
                Ok((_, Volume { state: VolumeState::Offline(reason), .. })) => {
                    Error::VolumeOffline(name.clone(), reason.clone())
                }
                Ok(_) => Error::Busy(Kind::Volume, name.clone()),
                Err(error) => error,
            })
        };
        volumes.iter().map(uuid).collect()
    }

    /// A store that a request names, and that is none of those before.
    async fn choose_store(&self, disk: &Name, store: &StoreRef, before: &[Entry]) -> Result<Entry, Error> {
        let from = match store {
            StoreRef::Local(name) => self.choose_own(disk, name, store)?,
            StoreRef::Remote(uri) => uri.clone(),
        };
        let request = CreateVolume { from: Some(Exports(vec![from])), ..CreateVolume::plain(disk.clone(), None) };
        let chosen = upstreams::choose(&request).await.map_err(|error| StoreExportError::of(store, error))?;
        let upstreams::Chosen { first: remote, size, .. } = chosen.expect("an export was named");
        if let Some(uuid) = remote.volume {
            self.check_own(disk, uuid, store)?;
            if let Some(disk) = self.state().user_of_volume(uuid) {
                return Err(OffloadRefused::Taken { store: store.clone(), disk }.into());
            }
            if let Some(same) = before.iter().find(|entry| entry.export.volume == remote.volume) {
                return Err(OffloadRefused::Same(same.store.clone(), store.clone()).into());
            }
        }
        if remote.read_only {
            return Err(OffloadRefused::ReadOnly(store.clone()).into());
        }
        let capacity = log_bytes(size);
        let capacity = capacity.ok_or_else(|| OffloadRefused::TooSmall { store: store.clone(), bytes: size })?;
        let export = Remote { deadline: STORE_DEADLINE, ..remote.later(SystemTime::now()) };
        let (log, store) = (Uuid::new_v4(), store.clone());
        let (missed, used, started, lost, mapped) = (0, false, false, false, Mapped::No);
        let (leaving, invalid_below) = (Leaving::No, 0);
        Ok(Entry { store, log, size, capacity, missed, used, started, lost, leaving, invalid_below, mapped, export })
    }

    /// The address of a store of this server.
    fn choose_own(&self, disk: &Name, name: &Name, store: &StoreRef) -> Result<ExportUri, Error> {
        let found = {
            let state = self.state();
            let (on, volume) = state.find(name).map_err(Error::of_store)?;
            if volume.spec.as_ref().is_some_and(|spec| !spec.store) {
                return Err(OffloadRefused::NotAStore(name.clone()).into());
            }
            match &volume.state {
                VolumeState::Offline(reason) => return Err(Error::VolumeOffline(name.clone(), reason.clone())),
                VolumeState::Waiting(reason) => return Err(Error::Waiting(name.clone(), reason.clone())),
                VolumeState::Creating(_) => return Err(Error::Busy(Kind::Store, name.clone())),
                VolumeState::Serving { .. } => on,
            }
        };
        if found == *disk {
            return Err(OffloadRefused::SameDisk { store: store.clone(), disk: disk.clone() }.into());
        }
        if let Some(disk) = self.user_of_store(name) {
            return Err(OffloadRefused::Taken { store: store.clone(), disk }.into());
        }
        let reason = || "this server does not listen yet".to_owned();
        let socket = self.own_socket();
        let socket = socket.ok_or_else(|| OffloadRefused::Waits { disk: disk.clone(), reason: reason() })?;
        Ok(own_uri(name, socket))
    }

    /// Refuses a volume of this server that is no store, or is on the same disk, whatever its address says.
    fn check_own(&self, disk: &Name, uuid: Uuid, store: &StoreRef) -> Result<(), Error> {
        let state = self.state();
        for (on, running) in state.disks.iter().filter_map(|(name, disk)| Some((name, disk.state.as_ref().ok()?))) {
            let mut volumes = running.volumes.iter();
            let Some((name, volume)) = volumes.find(|(_, it)| it.spec.as_ref().is_some_and(|spec| spec.uuid == uuid))
            else {
                continue;
            };
            if on == disk {
                return Err(OffloadRefused::SameDisk { store: store.clone(), disk: disk.clone() }.into());
            }
            if volume.spec.as_ref().is_some_and(|spec| !spec.store) {
                return Err(OffloadRefused::NotAStore(name.clone()).into());
            }
        }
        Ok(())
    }

    /// Begins with empty stores.
    async fn begin_offload(&self, disk: &Name, mut file: Offload, except: &[Name]) -> Result<(), Error> {
        file.except = self.uuids(disk, except)?;
        file.begin();
        file.start(|_| false);
        for entry in &mut file.stores {
            entry.export = entry.export.later(SystemTime::now());
        }
        let (store, marked) = {
            let mut state = self.state();
            // Another disk may have taken a store since it was chosen.
            for Entry { store, export, .. } in &file.stores {
                if let Some(disk) = export.volume.and_then(|uuid| state.user_of_volume(uuid)) {
                    return Err(OffloadRefused::Taken { store: store.clone(), disk }.into());
                }
            }
            let running = state.disk_mut(disk)?;
            if !matches!(running.offload, Ok(None)) {
                return Err(Error::Busy(Kind::Disk, disk.clone()));
            }
            let mut marked = Vec::new();
            for (name, volume) in &mut running.volumes {
                let spec =
                    volume.spec.as_ref().filter(|spec| spec.is_offloadable() && !file.except.contains(&spec.uuid));
                let (Some(spec), false) = (spec, matches!(volume.state, VolumeState::Creating(_))) else { continue };
                let key = volume.key.map_or_else(
                    || {
                        running.next_key += 1;
                        running.next_key - 1
                    },
                    |key| key.0,
                );
                file.keys.insert(spec.uuid, key);
                marked.push(name.clone());
            }
            file.next_key = running.next_key;
            running.offload = Ok(Some(Offloading { phase: Phase::Reading, ..Offloading::new(file.clone()) }));
            (running.store.clone(), marked)
        };
        let initial = file.stores.iter().map(|entry| {
            let fresh = Recovered::format(entry.log.as_u128(), entry.capacity);
            Initial::Scanned(Box::new(fresh), 0)
        });
        let initial = initial.collect();
        let begun = async {
            super::blocking(move || store.put_offload(&file)).await?.map_err(OffloadRefused::from)?;
            self.without_keys(disk, except).await?;
            self.mark(disk, marked, true).await?;
            self.launch(disk, initial, None).await
        };
        if let Err(error) = begun.await {
            if let Err(further) = self.forget_offload(disk).await {
                tracing::warn!(%disk, "{further}");
            }
            return Err(error);
        }
        if let Some(offloading) = self.state().disk_mut(disk)?.offloading_mut() {
            offloading.phase = Phase::Active;
            offloading.readings.iter().for_each(|it| it.is_done.store(true, std::sync::atomic::Ordering::Release));
        }
        Ok(())
    }

    /// Opens volumes again that may not be off-loaded: the engine must have no number for them. Their clients are
    /// disconnected, and connect again.
    async fn without_keys(&self, disk: &Name, volumes: &[Name]) -> Result<(), Error> {
        for name in volumes {
            let (thread, id): (_, Option<VolumeId>) = {
                let mut state = self.state();
                let running = state.disk_mut(disk)?;
                let thread = running.thread.clone();
                let volume = running.volumes.get_mut(name);
                let id = volume.and_then(|volume| volume.key.take().and(volume.id()));
                (thread, id)
            };
            let Some(volume) = id else { continue };
            let closed = thread.command(Command::CloseVolume { volume, discard: false }).await;
            refusal(closed).map_err(|refusal| super::super::volumes::refused(name, refusal))?;
            self.try_open(disk, name).await;
        }
        Ok(())
    }
}

impl Entry {
    /// The claim to the session of the store, for the disk of this name.
    pub(super) fn claim(&self, disk: &Name, further: u64) -> Claim {
        let client = self.export.for_engine(disk, self.log, self.size).client;
        Claim { client, epoch: self.export.epoch + further, after: None, shared: false, leased: false }
    }
}

/// Refuses a store that is not empty, unless `force` empties it, or that cannot be written. Its session is claimed, so
/// no other client has it.
async fn check_content(disk: &Name, entry: &Entry, force: bool) -> Result<(), OffloadRefused> {
    let target = entry.export.target();
    let store = entry.store.clone();
    match look_at(&target, entry.claim(disk, 0), entry.capacity, force).await {
        Ok(Found::Empty) => Ok(()),
        Ok(Found::Other) => Err(OffloadRefused::Holds(store)),
        Ok(Found::Unwritable(source)) => Err(OffloadRefused::Unwritable { store, source: source.into() }),
        Err(error) => Err(OffloadRefused::Unreachable { store, source: error.into() }),
    }
}

/// What a store has before it is used.
enum Found {
    /// No superblocks, and it can be written.
    Empty,
    /// Something else where superblocks would be.
    Other,
    /// It cannot be written.
    Unwritable(ReadError),
}

/// Whether the place of the superblocks of a store is empty. With `force`, it is now. Its first and its last block are
/// written, with what they have.
async fn look_at(target: &Target, claim: Claim, capacity: u64, force: bool) -> Result<Found, ReadError> {
    let mut reader = Reader::open(target, claim).await?;
    let (at, bytes) = Scan::new(0, capacity).wants().expect("a scan begins with the superblocks");
    let found = reader.read(at, bytes).await?;
    if !force && found.iter().any(|&byte| byte != 0) {
        return Ok(Found::Other);
    }
    let last = at + bytes + capacity - BLOCK;
    let end = reader.read(last, BLOCK).await?;
    let writes = async {
        reader.write(last, &end).await?;
        reader.write(at, &vec![0; bytes as usize]).await
    };
    Ok(writes.await.map_or_else(Found::Unwritable, |()| Found::Empty))
}
