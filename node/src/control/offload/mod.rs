//! Off-loading: the writes of a disk go to stores on other disks while it is overloaded (`docs/design/offload.md`).
//!
//! ```text
//!   enable ─► offload.toml ─► volumes are marked ─┐
//!   start  ─► incarnation + 1 ─► stores are read ─┴► volumes that lead to them ─► StartOffload ─► marked volumes
//!   stop    ─► the map of what stores have is written, so the next start can do without them
//!   store remove ─► RetireStore: its content comes home ─► offload.toml: done ─► its volume is closed
//!   disable ─► EndOffload: everything comes home ─► marks and offload.toml are removed
//! ```
//!
//! The stores are reached as the exports of gateway volumes are: over NBD, another disk of this server, too. The
//! volumes that lead to them belong to a tenant that nobody sees. Their numbers are known here only.

mod enable;
mod end;
mod leave;
mod map;
mod show;
mod start;
mod trouble;

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use engine::control::{CacheSpec, Command, LEAST_BYTES, TenantSpec, VolumeSpec, WriteCache};
use engine::ids::{TenantId, VolumeId, VolumeKey};
use engine::nbd::{Place, Uri};
use engine::offload::{Initial, Past, Setup, StoreId, StoreStats};
use uuid::Uuid;

use super::{Control, Error, OffloadRefused, Running, State, VolumeReason, blocking, refusal, with_files};
use crate::disk_thread::Backing;
use crate::quantity::{Name, Size, Time};
use crate::store::offload::{Entry, Leaving, Map, Offload, OffloadError, StoreRef};
use crate::store::{ExportUri, Remote, Spec};
use crate::upstream::{Dialer, Leg, Target};

/// How long a request waits for a store that is away: longer than a restart of its server takes. Then a write that
/// waited is decided anew, and a read fails.
const STORE_DEADLINE: Time = Time(Duration::from_secs(20));
/// The time over which rates are shown.
const RATE_TIME: Duration = Duration::from_secs(10);

/// What `top` shows of the past: as many periods as a wide terminal has columns.
const HISTORY_PERIOD: Duration = Duration::from_secs(5);
const HISTORY_MAX: usize = 120;

/// Off-loading of one disk.
#[derive(Debug)]
pub(super) struct Offloading {
    /// As it is stored.
    pub(super) file: Offload,
    pub(super) phase: Phase,
    /// Held while the file is written.
    writing: Arc<tokio::sync::Mutex<()>>,
    /// How the stores are read, by their place in the file.
    readings: Vec<Arc<Reading>>,
    /// The hidden tenant, and the volumes that lead to the stores; `None` for a store that was emptied.
    tenant: Option<TenantId>,
    volumes: Vec<Option<(VolumeId, Dialer)>>,
    /// Stores that were emptied, whose logs are erased.
    forgotten: BTreeSet<usize>,
    /// Switches on and off that were told, and when.
    switches: u64,
    switched: Option<Instant>,
    /// The stores, as they were last.
    seen: Vec<StoreStats>,
    /// What was told of them.
    told: Vec<trouble::Told>,
    /// Bytes that were off-loaded and brought home, over time.
    samples: VecDeque<(Instant, u64, u64)>,
    /// Bytes that are off-loaded: the largest value of each period, and the beginning of the last one.
    history: VecDeque<u64>,
    period: Option<Instant>,
    /// Bytes that were off-loaded at the last sample.
    away_bytes: u64,
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Nobody has begun to read the stores.
    Waiting,
    /// The stores are being read.
    Reading,
    /// It is started.
    Active,
    /// Everything is brought home.
    Ending,
}

/// How a store is read.
#[derive(Debug, Default)]
struct Reading {
    /// Bytes of its log.
    scanned: AtomicU64,
    /// Its server has opened the session.
    is_reached: AtomicBool,
    is_done: AtomicBool,
    /// Why it cannot be read.
    failure: Mutex<Option<String>>,
}

impl Reading {
    fn fail(&self, why: Option<String>) -> bool {
        let mut failure = self.failure.lock().expect("nobody panics while holding it");
        let is_new = *failure != why;
        *failure = why;
        is_new
    }

    fn failure(&self) -> Option<String> {
        self.failure.lock().expect("nobody panics while holding it").clone()
    }
}

impl Offloading {
    /// What was found on the disk.
    pub(super) fn new(file: Offload) -> Offloading {
        Offloading {
            readings: file.stores.iter().map(|_| Arc::default()).collect(),
            file,
            phase: Phase::Waiting,
            writing: Arc::default(),
            tenant: None,
            volumes: Vec::new(),
            forgotten: BTreeSet::new(),
            switches: 0,
            switched: None,
            seen: Vec::new(),
            told: Vec::new(),
            samples: VecDeque::new(),
            history: VecDeque::new(),
            period: None,
            away_bytes: 0,
        }
    }

    /// The numbers of the volumes that lead to the stores.
    pub(super) fn hidden(&self) -> impl Iterator<Item = VolumeId> + '_ {
        self.volumes.iter().flatten().map(|(id, _)| *id)
    }

    /// The number of their tenant.
    pub(super) fn hidden_tenant(&self) -> Option<TenantId> {
        self.tenant
    }

    fn is_started(&self) -> bool {
        matches!(self.phase, Phase::Active | Phase::Ending)
    }

    /// Why it has not started, if so: what is the matter with each store that is not read.
    pub(super) fn waits_for(&self) -> Option<String> {
        if self.is_started() {
            return None;
        }
        let stores = self.file.stores.iter().zip(&self.readings);
        let pending = stores.filter(|(_, reading)| !reading.is_done.load(Ordering::Acquire));
        let reason = |(entry, reading): (&Entry, &Arc<Reading>)| match reading.failure() {
            Some(failure) => format!("store '{}': {failure}", entry.store),
            None if !reading.is_reached.load(Ordering::Acquire) => {
                format!("store '{}' is not reached yet: its server does not answer so far", entry.store)
            }
            None => {
                let scanned = Size(reading.scanned.load(Ordering::Relaxed)).rounded();
                format!("store '{}' is being read, {scanned} so far", entry.store)
            }
        };
        let reasons: Vec<String> = pending.map(reason).collect();
        Some(if reasons.is_empty() { "it is being started".into() } else { reasons.join("; ") })
    }

    /// The numbers of the volumes that there are.
    fn keys(&self, running: &Running) -> Vec<VolumeKey> {
        let known = |uuid| running.volumes.values().any(|it| it.spec.as_ref().is_some_and(|spec| spec.uuid == uuid));
        // One that cannot be read may be any of them.
        let all = running.has_unknown();
        self.file.keys.iter().filter(|(uuid, _)| all || known(**uuid)).map(|(_, &key)| VolumeKey(key)).collect()
    }
}

impl Running {
    pub(super) fn offloading(&self) -> Result<Option<&Offloading>, &Arc<OffloadError>> {
        self.offload.as_ref().map(Option::as_ref)
    }

    /// Whether data may be in stores.
    pub(super) fn offloads(&self) -> bool {
        !matches!(self.offload, Ok(None))
    }

    /// The stores, as they were named.
    pub(super) fn store_names(&self) -> Vec<String> {
        let offloading = self.offloading().ok().flatten();
        offloading.map(|it| it.file.stores.iter().map(|entry| entry.store.to_string()).collect()).unwrap_or_default()
    }

    /// A warning if volumes wait for stores.
    pub(super) fn offload_warning(&self) -> Option<String> {
        let reason = match &self.offload {
            Err(error) => error.to_string(),
            Ok(offloading) => offloading.as_ref()?.waits_for()?,
        };
        Some(format!("volumes whose newest data may be in off-load stores are offline: {reason}"))
    }

    /// Enters what was found on the disk, unless it is known.
    pub(super) fn found_offload(&mut self, found: Option<Result<Offload, OffloadError>>) {
        let Some(found) = found.filter(|_| !self.offloads()) else { return };
        self.next_key = self.next_key.max(found.as_ref().map_or(0, |file| file.next_key));
        self.offload = found.map(|file| Some(Offloading::new(file))).map_err(Arc::new);
    }

    fn offloading_mut(&mut self) -> Option<&mut Offloading> {
        self.offload.as_mut().ok()?.as_mut()
    }

    /// The number of a volume that is being opened in the logs of the stores, if it may be off-loaded, now or once that
    /// is enabled.
    fn key_of(&mut self, name: &Name, spec: &Spec) -> Result<Option<VolumeKey>, VolumeReason> {
        if !spec.is_offloadable() {
            return Ok(None);
        }
        match &self.offload {
            Err(error) if spec.offload => Err(VolumeReason::Offload(error.to_string())),
            Err(_) => Ok(None),
            Ok(None) if spec.offload => {
                let path = self.store.directory().join("offload.toml");
                Err(VolumeReason::Offload(format!("{} is missing", path.display())))
            }
            Ok(None) => {
                let known = self.volumes.get(name).and_then(|volume| volume.key);
                Ok(Some(known.unwrap_or_else(|| {
                    self.next_key += 1;
                    VolumeKey(self.next_key - 1)
                })))
            }
            Ok(Some(_)) if !spec.offload => Ok(None),
            Ok(Some(offloading)) => match (offloading.waits_for(), offloading.file.keys.get(&spec.uuid)) {
                (Some(reason), _) => Err(VolumeReason::Offload(reason)),
                (None, None) => Err(VolumeReason::Offload("offload.toml has no number for it".into())),
                (None, Some(&key)) => Ok(Some(VolumeKey(key))),
            },
        }
    }
}

impl State {
    /// The disk that off-loads to the store with this UUID, which may be on another server.
    fn user_of_volume(&self, uuid: Uuid) -> Option<Name> {
        self.user_of(|entry| !entry.is_removed() && entry.export.volume == Some(uuid))
    }

    /// The disk that off-loads to such a store. The stores of a disk whose `offload.toml` cannot be read are not known.
    /// Their logs protect them: without `--force`, only an empty store is taken.
    fn user_of(&self, is_meant: impl Fn(&Entry) -> bool) -> Option<Name> {
        let uses = |running: &Running| {
            let stores = running.offloading().ok().flatten().map_or(&[][..], |it| &it.file.stores);
            stores.iter().any(&is_meant)
        };
        let mut disks = self.disks.iter().filter(|(_, disk)| disk.state.as_ref().is_ok_and(uses));
        disks.next().map(|(name, _)| name.clone())
    }
}

impl Control {
    /// See `Running::key_of`. Remembers it with the volume.
    pub(super) fn take_key(&self, disk: &Name, name: &Name, spec: &Spec) -> Result<Option<VolumeKey>, Error> {
        let mut state = self.state();
        let running = state.disk_mut(disk)?;
        let key = running.key_of(name, spec).map_err(|reason| Error::VolumeOffline(name.clone(), reason))?;
        if let Some(volume) = running.volumes.get_mut(name) {
            volume.key = key;
        }
        Ok(key)
    }

    /// Whether a new volume is to be marked: the writes of its disk are off-loaded.
    pub(super) fn is_marked_new(&self, disk: &Name, spec: &Spec) -> Result<bool, Error> {
        let state = self.state();
        let offloading = state.disk(disk)?.offloading().map_err(|error| OffloadRefused::Broken(error.clone()))?;
        match offloading {
            Some(offloading) if spec.is_offloadable() && !offloading.file.except.contains(&spec.uuid) => {
                match offloading.waits_for() {
                    Some(reason) => Err(OffloadRefused::Waits { disk: disk.clone(), reason }.into()),
                    None => Ok(!offloading.file.ending),
                }
            }
            _ => Ok(false),
        }
    }

    /// Marks a new volume, and gives it a number, if the writes of its disk are off-loaded. The caller publishes it
    /// before it releases the disk's change lock.
    pub(super) async fn mark_new(&self, disk: &Name, spec: &Spec) -> Result<Spec, Error> {
        if !self.is_marked_new(disk, spec)? {
            return Ok(spec.clone());
        }
        let uuid = spec.uuid;
        self.change_offload(disk, move |file| {
            file.keys.insert(uuid, file.next_key);
            file.next_key += 1;
        })
        .await?;
        Ok(spec.offloaded(true))
    }

    /// Forgets the number of a volume that was deleted.
    pub(super) async fn forget_key(&self, disk: &Name, spec: &Spec) {
        let uuid = spec.uuid;
        if spec.offload
            && let Err(error) = self.change_offload(disk, move |file| _ = file.keys.remove(&uuid)).await
        {
            tracing::warn!(%disk, "{error}");
        }
    }

    /// The disk of whose off-loaded writes a store of this server has the log.
    pub(super) fn user_of_store(&self, store: &Name) -> Option<Name> {
        let is_it = |entry: &Entry| entry.leaving != Leaving::Done && entry.store == StoreRef::Local(store.clone());
        self.state().user_of(is_it)
    }

    /// A store on this disk that has the log of another one, and that disk.
    pub(super) fn store_in_use(&self, disk: &Name) -> Result<Option<(Name, Name)>, Error> {
        let is_store = |volume: &super::Volume| volume.spec.as_ref().is_some_and(|spec| spec.store);
        let stores: Vec<Name> = {
            let state = self.state();
            let volumes = state.disk(disk)?.volumes.iter().filter(|(_, volume)| is_store(volume));
            volumes.map(|(name, _)| name.clone()).collect()
        };
        Ok(stores.into_iter().find_map(|store| Some((store.clone(), self.user_of_store(&store)?))))
    }

    /// Changes `offload.toml` of a disk durably, then in memory; or neither.
    async fn change_offload(&self, disk: &Name, change: impl FnOnce(&mut Offload)) -> Result<Offload, Error> {
        let writing = {
            let mut state = self.state();
            let running = state.disk_mut(disk)?;
            running.offloading_mut().ok_or_else(|| OffloadRefused::Disabled(disk.clone()))?.writing.clone()
        };
        let _writing = writing.lock().await;
        let (store, before) = {
            let mut state = self.state();
            let running = state.disk_mut(disk)?;
            let store = running.store.clone();
            let offloading = running.offloading_mut().ok_or_else(|| OffloadRefused::Disabled(disk.clone()))?;
            (store, offloading.file.clone())
        };
        let mut next = before.clone();
        change(&mut next);
        if next == before {
            return Ok(next);
        }
        let stored = next.clone();
        blocking(move || store.put_offload(&stored)).await?.map_err(OffloadRefused::from)?;
        if let Some(offloading) = self.state().disk_mut(disk)?.offloading_mut() {
            offloading.file = next.clone();
        }
        Ok(next)
    }

    /// The socket at which this server reaches its own stores.
    fn own_socket(&self) -> Option<PathBuf> {
        self.listening().own
    }

    /// How a store is reached now.
    fn export_of(&self, store: &StoreRef, export: &Remote) -> Result<Remote, String> {
        let StoreRef::Local(name) = store else { return Ok(export.clone()) };
        let path = self.own_socket().ok_or("this server does not listen yet")?;
        Ok(Remote { from: own_uri(name, path), ..export.clone() })
    }

    fn target_of(&self, entry: &Entry) -> Result<Target, String> {
        Ok(self.export_of(&entry.store, &entry.export)?.target())
    }

    /// Opens the volumes that lead to the stores, and lets the disk's engine off-load from now on. If it fails, nothing
    /// is open.
    async fn launch(&self, disk: &Name, initial: Vec<Initial>, map: Option<Map>) -> Result<(), Error> {
        let launched = self.open_stores(disk, initial, map).await;
        if launched.is_err() {
            self.close_stores(disk).await;
        }
        launched
    }

    async fn open_stores(&self, disk: &Name, initial: Vec<Initial>, map: Option<Map>) -> Result<(), Error> {
        let failed = |refusal| super::volumes::refused(disk, refusal);
        let (thread, tenant, file, keys) = {
            let mut state = self.state();
            let running = state.disk_mut(disk)?;
            let (thread, tenant) = (running.thread.clone(), running.free_tenant());
            let offloading = running.offloading().ok().flatten();
            let offloading = offloading.ok_or_else(|| OffloadRefused::Disabled(disk.clone()))?;
            let (file, keys) = (offloading.file.clone(), offloading.keys(running));
            running.offloading_mut().expect("just seen").tenant = Some(tenant);
            (thread, tenant, file, keys)
        };
        let of_tenant = TenantSpec { is_remote: true, cache: CacheSpec::Asked(LEAST_BYTES), ..TenantSpec::default() };
        refusal(thread.command(Command::SetTenant(tenant, of_tenant)).await).map_err(failed)?;
        let mut stores = Vec::new();
        for (entry, initial) in file.stores.iter().zip(initial) {
            let volume = self.state().disk(disk)?.free_volume();
            let unreachable = |reason| OffloadRefused::Waits { disk: disk.clone(), reason };
            let remote = self.export_of(&entry.store, &entry.export).map_err(unreachable)?;
            let dialer = Dialer::new(remote.target(), thread.tls_gate(tenant));
            // While it is read by somebody else of this process, it is not opened.
            dialer.hold(matches!(initial, Initial::Missing(..)));
            let spec = VolumeSpec {
                write_cache: WriteCache::None,
                sparse: true,
                device_block: remote.block,
                can_zero: remote.zeroes,
                can_punch: remote.zeroes,
                upstream: Some(remote.for_engine(disk, entry.log, entry.size)),
                ..VolumeSpec::plain(volume, tenant, entry.size)
            };
            let legs = vec![Leg { number: volume, dialer: dialer.clone() }];
            let opened = thread.open_volume(spec, Backing::Upstream(legs)).await;
            refusal(opened).map_err(failed)?;
            if let Some(offloading) = self.state().disk_mut(disk)?.offloading_mut() {
                offloading.volumes.push(Some((volume, dialer)));
            }
            stores.push((volume, initial));
        }
        let past = Past {
            incarnation: file.incarnation,
            accepted: file.accepted,
            is_unfenced: file.stores.iter().any(|entry| entry.export.volume.is_none()),
        };
        let map = map.map(|map| map.for_engine(&file)).unwrap_or_default();
        let setup = Setup { settings: file.settings.for_engine(), past, stores, volumes: keys, map };
        refusal(thread.command(Command::StartOffload(Box::new(setup))).await).map_err(failed)?;
        for (at, _) in (0..).zip(&file.stores).filter(|(_, entry)| entry.leaving == Leaving::Begun) {
            refusal(thread.command(Command::RetireStore(StoreId(at))).await).map_err(failed)?;
        }
        Ok(())
    }

    /// Closes the volumes that lead to the stores.
    async fn close_stores(&self, disk: &Name) {
        let Ok((thread, tenant, volumes)) = self.state().disk_mut(disk).map(|running| {
            let thread = running.thread.clone();
            let (tenant, volumes) =
                running.offloading_mut().map(|it| (it.tenant, std::mem::take(&mut it.volumes))).unwrap_or_default();
            (thread, tenant, volumes)
        }) else {
            return;
        };
        for (volume, _) in volumes.into_iter().flatten() {
            if let Err(refusal) = refusal(thread.command(Command::CloseVolume { volume, discard: true }).await) {
                tracing::warn!(%disk, "a store stays open: {refusal}");
            }
        }
        if let Some(tenant) = tenant {
            let _ = thread.command(Command::DropTenant(tenant)).await;
        }
        if let Ok(running) = self.state().disk_mut(disk)
            && let Some(offloading) = running.offloading_mut()
        {
            offloading.tenant = None;
        }
    }

    /// Writes into the specifications of volumes whether they may be off-loaded.
    async fn mark(&self, disk: &Name, volumes: Vec<Name>, offload: bool) -> Result<(), Error> {
        for name in volumes {
            let (store, spec) = {
                let state = self.state();
                let running = state.disk(disk)?;
                let spec = running.volumes.get(&name).and_then(|volume| volume.spec.clone());
                (running.store.clone(), spec)
            };
            let Some(spec) = spec.filter(|spec| spec.offload != offload) else { continue };
            let to = spec.offloaded(offload);
            let next = to.clone();
            with_files(&store, &name, move |files| files.change(&spec, &to)).await??;
            self.set_spec(disk, &name, &next);
        }
        Ok(())
    }

    /// Removes all marks and the file. Nothing is in the stores, or they are lost.
    async fn forget_offload(&self, disk: &Name) -> Result<(), Error> {
        let (store, marked) = {
            let state = self.state();
            let running = state.disk(disk)?;
            let volumes = running.volumes.iter();
            let marked = volumes.filter(|(_, it)| it.spec.as_ref().is_some_and(|spec| spec.offload));
            (running.store.clone(), marked.map(|(name, _)| name.clone()).collect())
        };
        self.mark(disk, marked, false).await?;
        blocking(move || store.remove_offload()).await?.map_err(OffloadRefused::from)?;
        if let Ok(running) = self.state().disk_mut(disk) {
            running.next_key = running.next_key.max(running.offloading_mut().map_or(0, |it| it.file.next_key));
            running.offload = Ok(None);
        }
        Ok(())
    }
}

/// The address of a store of this server.
fn own_uri(name: &Name, socket: PathBuf) -> ExportUri {
    ExportUri(Uri {
        text: format!("nbd+unix:///{name}?socket={}", socket.display()),
        place: Place::Unix(socket),
        name: name.to_string(),
        tls: false,
        parameters: None,
    })
}
