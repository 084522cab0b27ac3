//! Disks: opening at the start, adding, removing; dividing the memory among them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::control::{Command, Report};
use tracing::{info, warn};

use super::registry::{Entry, Registry};
use super::view::AddDisk;
use super::{
    Control, Disk, DiskReason, Done, Error, Invalid, Kind, OffloadRefused, Running, VolumeReason, VolumeState,
    blocking, refusal, resolve, stop,
};
use crate::disk_thread::{DiskHandle, DiskThread, Options};
use crate::quantity::{Name, Size};
use crate::reactor::Stack;
use crate::store::{Chosen, Identity, Simulated, Store};

/// The prefix of a simulated disk's path.
pub const SIM: &str = "sim:";
/// The disk that a new server creates.
const FIRST: &str = "default";
/// How long a start waits for disks to be opened, and then for their volumes. A drive that has to spin up takes longer;
/// its disk is opened later. Other disks take milliseconds.
const OPENING_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a start waits for a disk that another server has locked: a killed server releases its locks one after the
/// other, that of its directory first.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
/// A new disk needs at least this fraction (one in so many) of its part of the memory at once, or it is not added.
const LEAST_PART: u64 = 4;
/// How long a disk's thread may take to free memory, in addition to the maximum age of dirty data: 5 s more than it
/// needs to report what it holds. A thread that has not answered by then counts as holding all of it.
const BUDGET_TIMEOUT: Duration = Duration::from_secs(10);
/// Concurrent calls to the file system of a disk. Each occupies a thread of a pool of 512 while the file system hangs.
const QUESTIONS_MAX: usize = 4;
/// The interval of checks whether memory that was held is free.
const HELD_POLL: Duration = Duration::from_secs(1);

impl Control {
    /// Opens all disks of the registry concurrently. A disk that cannot be used is offline, and so is one that does not
    /// answer in time; [`Control::reopen`] opens it later.
    pub(super) async fn open_known_disks(self: &Arc<Control>) {
        let known = self.registry.lock().await.disks.clone();
        self.state().remembered = known.iter().map(|(name, entry)| (name.clone(), entry.volumes.clone())).collect();
        let opening = known.into_iter().map(|(name, entry)| {
            let (path, uuid) = (resolve(&self.config.data, &entry.path), entry.uuid);
            let (looked, tried) = (path.clone(), self.trying.begin((name.clone(), None)));
            let opened = blocking(move || {
                // After the timeout, `reopen` opens the disk again, but not before this attempt has ended.
                let _tried = tried;
                let store = Store::open_within(&looked, Some(uuid), LOCK_TIMEOUT)?;
                let found = store.scan().map_err(|error| DiskReason::Volumes(error.into()))?;
                Ok((store, found))
            });
            async move {
                let opened = tokio::time::timeout(OPENING_TIMEOUT, opened).await;
                let failed = |error: Error| Err(error.into());
                (name, path, uuid, opened.map_or(Err(DiskReason::Hangs), |opened| opened.unwrap_or_else(failed)))
            }
        });
        let opened: Vec<(_, _, _, Result<_, DiskReason>)> = futures::future::join_all(opening).await;
        let online = opened.iter().filter(|(.., store)| store.is_ok()).count() as u64;
        let mut volumes = Vec::new();
        for (name, path, uuid, opened) in opened {
            let started =
                opened.and_then(|(store, found)| Ok((self.start(&name, store, self.memory_bytes / online)?, found)));
            let (state, found) = match started {
                Ok((running, found)) => (Ok(running), Some(found)),
                Err(reason) => {
                    warn!(disk = %name, "offline: {reason}");
                    (Err(reason), None)
                }
            };
            self.state().disks.insert(name.clone(), Disk { path, uuid, state });
            if let Some(mut found) = found {
                let aligned = self.align(&name, &mut found.tenants);
                volumes.push((self.enter_volumes(&name, found), aligned, name));
            }
        }
        let opening = volumes.into_iter().map(|(volumes, aligned, disk)| {
            let control = self.clone();
            tokio::spawn(async move {
                let _turn = control.turns.wait(&disk).await;
                control.store_aligned(&disk, aligned).await;
                control.open_entered(&disk, volumes).await;
                control.settle(&disk).await;
            })
        });
        let opened = futures::future::join_all(opening.collect::<Vec<_>>());
        if tokio::time::timeout(OPENING_TIMEOUT, opened).await.is_err() {
            warn!("serving without volumes that are still being opened: their disks do not answer");
        }
    }

    pub(super) async fn make_first_disk(&self) -> anyhow::Result<()> {
        let path = self.config.data.join("disks");
        std::fs::create_dir_all(&path)?;
        let name: Name = FIRST.parse().expect("a name");
        let path = path.join(FIRST).to_string_lossy().into_owned();
        let request = AddDisk::new(name, path);
        self.add_disk(request).await?;
        Ok(())
    }

    fn start(&self, name: &Name, store: Store, budget_bytes: u64) -> Result<Running, DiskReason> {
        let limits = &self.config.limits;
        let Chosen { name: policy, reason, settings } = self.chosen(name, &store);
        info!(disk = %name, %policy, "{reason}");
        let engine = engine::Config {
            policy: settings.kind,
            insulation_permille: settings.insulation_permille,
            switch_ns: settings.switch_ns,
            round_max_ns: settings.round_max_ns,
            needs_slices: settings.needs_slices,
            prices: settings.prices,
            stream_bytes_per_s: settings.stream_bytes_per_s,
            budget_bytes_max: self.memory_bytes,
            device_depth: limits.device_depth,
            requests_per_connection: limits.requests_per_connection,
            unsent_bytes_per_connection: limits.unsent_per_connection.0,
            dirty_age_max_ns: limits.dirty_age.0.as_nanos() as u64,
            seed: settings.seed,
            ..engine::Config::new(budget_bytes)
        };
        let drive = store.identity.simulated.as_ref().map(Simulated::open).transpose();
        let drive = drive.map_err(|error| DiskReason::Drive(error.into()))?;
        let stack = Stack { drive: drive.map(|(drive, _)| drive), faults: store.identity.faults.clone() };
        for fault in &stack.faults {
            warn!(disk = %name, "fault injected: {fault}");
        }
        let options = Options {
            reactor: self.config.reactor.into(),
            limits: limits.places(),
            stack,
            ..Options::new(name.as_str(), engine)
        };
        if !store.abilities.direct {
            warn!(disk = %name, "the file system has no direct I/O: the kernel caches the data, too");
        }
        let thread = DiskThread::start(options).map_err(|error| DiskReason::Thread(error.into()))?;
        Ok(Running {
            store: Arc::new(store),
            thread: Arc::new(thread),
            volumes: Default::default(),
            specs: Default::default(),
            tenants: Default::default(),
            questions: Arc::new(tokio::sync::Semaphore::new(QUESTIONS_MAX)),
            offload: Ok(None),
            next_key: 0,
        })
    }

    /// Adds a disk, or tries to open an offline one.
    pub async fn add_disk(&self, request: AddDisk) -> Result<Done, Error> {
        let name = request.name.clone();
        let _policies = self.keep_policies(true).await?;
        let _turn = self.change(&name).await?;
        let expected = {
            let state = self.state();
            match state.disks.get(&name) {
                Some(known) if known.state.is_ok() => return Err(Error::Exists(Kind::Disk, name)),
                Some(known) => Some(known.uuid),
                None => None,
            }
        };
        request.scheduling().check().map_err(Invalid::from)?;
        let path = self.path_of(&request)?;
        let (path, exists) = blocking(move || usable(path)).await??;
        let made = expected.is_none() && !exists;
        let simulated = match made {
            true => pretence(&request).await?,
            false => {
                let (request, path, is_known) = (request.clone(), path.clone(), expected.is_some());
                blocking(move || found_pretence(&request, &path, is_known)).await??
            }
        };
        if !request.force && simulated.is_none() {
            self.check_device(&path).await?;
        }
        if made {
            let (path, faults, scheduling) = (path.clone(), request.faults.clone(), request.scheduling());
            let initialised = blocking(move || Identity::initialise(&path, simulated, faults, scheduling));
            initialised.await??;
        }
        let store = open_store(&path, expected).await?;
        let shortage = store.shortage();
        let held_bytes = self.bring_up(&name, &path, store).await?;
        let (volumes, unusable) = self.volume_counts(&name);
        info!(disk = %name, path = %path.display(), volumes, "added");
        let mut message = format!("disk '{name}' is online");
        if !made {
            message += &format!(", with {volumes} volumes that were on it");
        }
        if unusable > 0 {
            message += &format!("; {unusable} of them cannot be used: see `aerogel volume list`");
        }
        if let Some(shortage) = shortage {
            message += &format!("; {shortage}");
        }
        if held_bytes > 0 {
            message += &format!(
                "; {} of its memory are still in use on other disks, by unread replies or by data that cannot be \
                 written, and are added when they are freed",
                Size(held_bytes).rounded()
            );
        }
        Ok(Done { message, disk: self.show_disk(&name).await.ok(), volume: None, tenant: None })
    }

    /// Frees memory of the other disks, starts the disk's thread, and writes the registry; or does none of it. Returns
    /// the bytes that the other disks did not free in time; the new disk gets them when they are free.
    pub(super) async fn bring_up(&self, name: &Name, path: &Path, store: Store) -> Result<u64, Error> {
        let _division = self.dividing.lock().await;
        let others = self.running();
        let part = self.memory_bytes / (others.len() as u64 + 1);
        let before = self.memory_bytes / (others.len() as u64).max(1);
        let held_bytes = self.set_budgets(&others, part, before).await?;
        let budget = part.saturating_sub(held_bytes);
        if budget < part / LEAST_PART {
            self.set_budgets(&others, before, before).await?;
            return Err(Error::MemoryHeld(Size(held_bytes)));
        }
        let uuid = store.identity.uuid;
        if let Err(error) = self.enter(name, path, uuid, self.start(name, store, budget)).await {
            self.set_budgets(&others, before, before).await?;
            return Err(error);
        }
        if held_bytes > 0 {
            self.follow_up(name, &others, part);
        }
        drop(_division);
        self.open_volumes(name).await;
        self.settle(name).await;
        Ok(held_bytes)
    }

    /// Adds a disk to the registry and the state, if it was started.
    async fn enter(
        &self,
        name: &Name,
        path: &Path,
        uuid: uuid::Uuid,
        started: Result<Running, DiskReason>,
    ) -> Result<(), Error> {
        let running = started.map_err(Error::Start)?;
        let data = std::path::absolute(&self.config.data).unwrap_or_default();
        let (key, path_kept) = (name.clone(), path.strip_prefix(data).unwrap_or(path).to_owned());
        let enter = move |registry: &mut Registry| {
            let volumes = registry.disks.remove(&key).map(|entry| entry.volumes).unwrap_or_default();
            registry.disks.insert(key, Entry { path: path_kept, uuid, volumes });
        };
        self.change_registry(enter).await?;
        let disk = Disk { path: path.to_owned(), uuid, state: Ok(running) };
        self.state().disks.insert(name.clone(), disk);
        Ok(())
    }

    /// Sets the memory of each of these disks to `bytes`, and waits in bounded time until it is freed; or leaves all
    /// unchanged. Returns the bytes that are still held then. A disk that does not answer counts as holding all that it
    /// had `before`.
    async fn set_budgets(&self, disks: &[(Name, Arc<DiskHandle>)], bytes: u64, before: u64) -> Result<u64, Error> {
        self.divisions.fetch_add(1, Ordering::Relaxed);
        let timeout = self.config.limits.dirty_age.0 + BUDGET_TIMEOUT;
        let set = |bytes| {
            let set = move |(_, disk): &(Name, Arc<DiskHandle>)| {
                tokio::time::timeout(timeout, disk.command(Command::SetBudget(bytes)))
            };
            futures::future::join_all(disks.iter().map(set))
        };
        let mut held_bytes = 0;
        for ((name, _), report) in disks.iter().zip(set(bytes).await) {
            match report {
                Err(_) => held_bytes += before.saturating_sub(bytes),
                Ok(Ok(Report::Held { bytes })) => held_bytes += bytes,
                Ok(Ok(Report::Refused(refusal))) => {
                    set(self.memory_bytes / disks.len() as u64).await;
                    return Err(Error::Refused { kind: Kind::Disk, name: name.clone(), refusal });
                }
                _ => {}
            }
        }
        Ok(held_bytes)
    }

    /// Gives `name` all of its memory when these disks have freed what they held, unless memory was divided again by
    /// then.
    fn follow_up(&self, name: &Name, lenders: &[(Name, Arc<DiskHandle>)], part: u64) {
        let Ok(newcomer) = self.state().disk(name).map(|running| Arc::downgrade(&running.thread)) else { return };
        let lenders: Vec<_> = lenders.iter().map(|(_, thread)| Arc::downgrade(thread)).collect();
        let (dividing, divisions) = (self.dividing.clone(), self.divisions.clone());
        let division = divisions.load(Ordering::Relaxed);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(HELD_POLL).await;
                let _division = dividing.lock().await;
                let current = divisions.load(Ordering::Relaxed) == division;
                let Some(newcomer) = newcomer.upgrade().filter(|_| current) else { return };
                let mut held = false;
                for lender in lenders.iter().filter_map(Weak::upgrade) {
                    held |= match tokio::time::timeout(HELD_POLL, lender.command(Command::Snapshot)).await {
                        Ok(Ok(Report::Snapshot(snapshot))) => snapshot.held_frames > 0,
                        _ => true,
                    };
                }
                if held {
                    continue;
                }
                // Refused while an earlier change of its memory has not ended.
                match tokio::time::timeout(HELD_POLL, newcomer.command(Command::SetBudget(part))).await {
                    Ok(Ok(Report::Refused(_))) => {}
                    _ => return,
                }
            }
        });
    }

    /// The directory of a disk, existing or to be created.
    fn path_of(&self, request: &AddDisk) -> Result<PathBuf, Error> {
        let known = self.state().disks.get(&request.name).map(|disk| disk.path.clone());
        let directory = match (request.path.starts_with(SIM), &request.directory, known) {
            (true, Some(directory), _) => directory.into(),
            (true, None, Some(known)) => known,
            (true, None, None) => self.config.data.join("disks").join(request.name.as_str()),
            (false, None, _) => PathBuf::from(&request.path),
            (false, Some(_), _) => {
                return Err(Invalid::DirectoryOfReal.into());
            }
        };
        let not_a_path = |source| Invalid::Path { path: request.path.clone(), source }.into();
        std::path::absolute(&directory).map_err(not_a_path)
    }

    /// Refuses a directory on the device of another disk.
    async fn check_device(&self, path: &Path) -> Result<(), Error> {
        // A directory that does not exist yet will be on the device of its parent.
        let looked = path.to_owned();
        match blocking(move || device_of(&looked)).await?? {
            Some(device) => self.check_drives(device, &path.display().to_string(), None),
            None => Ok(()),
        }
    }

    fn volume_counts(&self, disk: &Name) -> (usize, usize) {
        let state = self.state();
        let Ok(running) = state.disk(disk) else { return (0, 0) };
        let offline = running.volumes.values().filter(|volume| volume.reason().is_some());
        (running.volumes.len(), offline.count())
    }

    /// Detaches a disk: flushes and closes it, and removes it from the registry. Its data stays and can be added again,
    /// here or on another server.
    pub async fn remove_disk(&self, name: &Name, force: bool) -> Result<Done, Error> {
        let _turn = self.change(name).await?;
        let online = {
            let state = self.state();
            match state.disk(name) {
                Ok(running) => Some(running.thread.clone()),
                Err(Error::DiskOffline(..)) => None,
                Err(error) => return Err(error),
            }
        };
        if let Some(thread) = online {
            if let Some((store, user)) = self.store_in_use(name)?.filter(|_| !force) {
                return Err(OffloadRefused::StoreOnDisk { disk: name.clone(), store, user }.into());
            }
            self.check_unused(name, force).await?;
            if !force && self.state().disk(name)?.offloads() {
                return Err(OffloadRefused::Detached(name.clone()).into());
            }
            self.end_probes(Some(name));
            self.close_volumes(name).await?;
            if let Err(error) = self.forget(name).await {
                self.open_volumes(name).await;
                return Err(error);
            }
            stop(thread).await;
            self.forget_series(name);
            let _division = self.dividing.lock().await;
            let others = self.running();
            let part = self.memory_bytes / (others.len() as u64).max(1);
            if let Err(error) = self.set_budgets(&others, part, 0).await {
                warn!(disk = %name, "its memory is not given to all others yet: {error}");
                others.iter().for_each(|(other, _)| self.follow_up(other, &[], part));
            }
        } else {
            self.forget(name).await?;
        }
        info!(disk = %name, "removed");
        let message = format!("disk '{name}' is detached; its data is unchanged, `aerogel disk add` attaches it again");
        Ok(Done { message, disk: None, volume: None, tenant: None })
    }

    async fn forget(&self, name: &Name) -> Result<(), Error> {
        let key = name.clone();
        self.change_registry(move |registry| drop(registry.disks.remove(&key))).await?;
        let mut state = self.state();
        state.disks.remove(name);
        state.remembered.remove(name);
        Ok(())
    }

    async fn check_unused(&self, name: &Name, force: bool) -> Result<(), Error> {
        if self.state().disk(name)?.volumes.values().any(|volume| volume.progress().is_some()) {
            return Err(Error::Busy(Kind::Disk, name.clone()));
        }
        match self.snapshot(name).await.map(|snapshot| snapshot.connections.len()) {
            _ if force => Ok(()),
            Some(0) => Ok(()),
            Some(connections) => Err(Error::InUse(Kind::Disk, name.clone(), connections as u32)),
            None => Err(Error::UseUnknown(name.clone())),
        }
    }

    /// Flushes and closes all volumes of a disk. If this fails for one, opens again those that were closed.
    async fn close_volumes(&self, disk: &Name) -> Result<(), Error> {
        let (thread, served) = {
            let state = self.state();
            let running = state.disk(disk)?;
            let ids = running.volumes.iter().filter_map(|(name, volume)| Some((name.clone(), volume.id()?)));
            (running.thread.clone(), ids.collect::<Vec<_>>())
        };
        for (name, volume) in served {
            let closed = thread.command(Command::CloseVolume { volume, discard: false }).await;
            if let Err(refusal) = refusal(closed) {
                self.open_volumes(disk).await;
                return Err(Error::Refused { kind: Kind::Volume, name, refusal });
            }
            if let Some(volume) = self.state().volume_mut(disk, &name) {
                volume.state = VolumeState::Offline(VolumeReason::Closed);
            }
        }
        Ok(())
    }
}

/// Checks that a path is or can become a disk's directory. Returns whether it is one already.
fn usable(path: PathBuf) -> Result<(PathBuf, bool), Error> {
    match std::fs::metadata(&path) {
        Ok(found) if !found.is_dir() => Err(Invalid::NotADirectory(path).into()),
        _ => {
            let exists = Identity::exists(&path)?;
            Ok((path, exists))
        }
    }
}

/// The device that a directory is on, or will be on.
fn device_of(path: &Path) -> Result<Option<u64>, Error> {
    for ancestor in path.ancestors() {
        match std::fs::metadata(ancestor) {
            Ok(found) => return Ok(Some(found.dev())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => {
                return Err(Error::NoDevice { path: path.to_owned(), ancestor: ancestor.to_owned(), source });
            }
        }
    }
    Ok(None)
}

/// The simulated drive of a new disk, if one is requested.
async fn pretence(request: &AddDisk) -> Result<Option<Simulated>, Error> {
    match (request.path.strip_prefix(SIM), request.size) {
        (Some(source), size) => {
            let source = source.to_owned();
            let found = blocking(move || Simulated::find(&source, size)).await?;
            Ok(Some(found.map_err(Invalid::from)?))
        }
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Invalid::SizeOfReal.into()),
    }
}

/// The simulated drive of an existing disk, if it has one. Refuses options that only new disks can have.
fn found_pretence(request: &AddDisk, path: &Path, is_known: bool) -> Result<Option<Simulated>, Error> {
    let is = |remedy| Err(Invalid::ExistingDisk { path: path.to_owned(), remedy }.into());
    if request.size.is_some() || !request.faults.is_empty() {
        return is("leave out --size and --fault; `aerogel disk fault add` adds faults to it");
    }
    if !request.scheduling().is_default() {
        return is("leave out --policy, --insulation, --max-round and --no-probe; `aerogel disk set` changes them");
    }
    if request.path.starts_with(SIM) && !is_known {
        return is("give this directory as PATH to attach it, or another one with --directory");
    }
    Ok(Identity::read(path)?.simulated)
}

pub(super) async fn open_store(path: &Path, expected: Option<uuid::Uuid>) -> Result<Store, Error> {
    let path = path.to_owned();
    Ok(blocking(move || Store::open(&path, expected)).await??)
}
