//! The manager of disks, tenants and volumes.
//!
//! Changes of one disk are serialised (`turn.rs`). Each change is applied to the state, then to the disk's engine and
//! to the files, and is undone completely if one of them refuses. The state is protected by a lock that is never held
//! across a wait, so that queries are always answered. After a restart, the files are the truth: the list of disks in
//! the server's directory, and everything about volumes on the disks.

mod allocation;
mod automatic;
mod cluster;
mod curve;
mod decisions;
mod deletion;
mod disks;
mod drain;
mod error;
mod faults;
mod guarantees;
mod history;
pub mod kept;
pub mod live;
mod look;
mod losses;
mod offload;
mod opening;
mod places;
mod policies;
mod probes;
mod raw;
mod registry;
mod reopen;
mod scheduling;
mod sessions;
mod shares;
mod show;
mod standing;
pub mod stores;
mod telling;
mod tenants;
pub mod turn;
mod upstreams;
pub mod view;
mod volumes;
mod waiting;
mod warnings;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use engine::control::{Refusal, Report};
use engine::ids::{TenantId, VolumeId, VolumeKey};
use engine::nbd::{Export, Exports};
use engine::units::Share;
use uuid::Uuid;

pub use cluster::{DiskFacts, Follower, PartFacts};
pub use disks::SIM;
pub use error::{
    AllocationError, DiskReason, Error, Invalid, Kind, OffloadRefused, PolicyError, StoreExportError, VolumeReason,
};
#[cfg(test)]
pub use registry::Entry as RegistryEntry;
pub use registry::Registry;
pub use sessions::Refused;
pub use show::Observed;
#[cfg(test)]
pub use standing::DiskStanding;
pub use standing::Standing;
pub use view::Done;

use crate::access::Grant;
use crate::config::Config;
use crate::disk_thread::{Client, DiskHandle, Room, Stopped};
use crate::peer::Peer;
use crate::quantity::{Name, OrAuto, Size};
use crate::sessions::{LEASE, Sessions};
use crate::store::offload::OffloadError;
use crate::store::{DataError, DataId, Files, Lock, Policies, Progress, Spec, Store, TenantSpec};
use crate::upstream::Leg;

/// How long a start waits for an earlier server that was killed: its process ends when its requests have left the
/// kernel. One that still exists after this time is not about to end.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The manager.
#[derive(Debug)]
pub struct Control {
    /// The configuration of the process.
    pub config: Config,
    listening: Mutex<Listening>,
    memory_bytes: u64,
    started: Instant,
    shutting_down: AtomicBool,
    turns: turn::Turns,
    /// Held by the change that divides the memory among the disks.
    dividing: Arc<tokio::sync::Mutex<()>>,
    /// The list of disks, as it is stored in the server's directory.
    registry: Arc<tokio::sync::Mutex<Registry>>,
    /// Held by a change of policies, and shared by changes of tenants' policies and by disks and volumes that are being
    /// opened; taken before the change locks of disks.
    changing_policies: tokio::sync::RwLock<()>,
    /// The named policies, as they are stored in the server's directory. The lock is never held across a wait.
    policies: Mutex<Policies>,
    /// The epochs that the cluster has issued for its volumes.
    issued: Mutex<sessions::Issued>,
    /// Held, by volume, while the epoch of a session is recorded.
    recording: turn::Turns,
    /// How often memory was divided among the disks.
    divisions: Arc<AtomicU64>,
    probes: probes::Probes,
    /// Disks without a profile that wait for an automatic probe.
    automatic: automatic::Waiting,
    /// Disks and volumes that are being opened.
    trying: reopen::Trying,
    /// Disks whose losses are being recorded.
    noting: reopen::Trying,
    /// Volumes of an earlier server that was killed, until they are open.
    unflushed: Mutex<BTreeSet<(Name, Name)>>,
    /// Notified when there are volumes whose data is busy.
    waiting: tokio::sync::Notify,
    /// Samples of the disks' counters.
    series: live::AllSeries,
    /// What volumes of a gateway keep, as it was told.
    kept: kept::AllKept,
    /// The latest decisions on tenants.
    decisions: Mutex<decisions::Decisions>,
    /// Missed guarantees that were told.
    misses: Mutex<guarantees::Misses>,
    /// What tenants used of their disks recently.
    histories: Mutex<history::Histories>,
    /// The disk that follows the schedule of a cluster.
    scheduled: Mutex<cluster::Scheduled>,
    state: Mutex<State>,
    _lock: Lock,
}

/// The addresses that the server listens on.
#[derive(Clone, Debug, Default)]
pub struct Listening {
    /// For NBD.
    pub nbd: Vec<crate::address::NbdAddress>,
    /// For HTTP, in addition to the API's own socket.
    pub http: Vec<crate::address::Address>,
    /// The socket at which this server itself reaches its volumes.
    pub own: Option<PathBuf>,
}

#[derive(Debug)]
struct State {
    disks: BTreeMap<Name, Disk>,
    /// The volumes that each disk had last: they are listed while it is offline.
    remembered: BTreeMap<Name, BTreeMap<Name, registry::Remembered>>,
}

#[derive(Debug)]
struct Disk {
    path: PathBuf,
    uuid: Uuid,
    /// Running, or the reason why it is offline.
    state: Result<Running, DiskReason>,
}

/// A disk with its thread running.
#[derive(Debug)]
struct Running {
    store: Arc<Store>,
    thread: Arc<DiskHandle>,
    volumes: BTreeMap<Name, Volume>,
    /// The specifications of its tenants, as in the catalogue. A tenant without requests may have none.
    specs: BTreeMap<Name, TenantSpec>,
    /// The tenants that its engine knows.
    tenants: BTreeMap<Name, Tenant>,
    /// Limits concurrent calls to its file system: each occupies a thread until it returns.
    questions: Arc<tokio::sync::Semaphore>,
    /// The stores that its writes are off-loaded to, or why that is not known.
    offload: Result<Option<offload::Offloading>, Arc<OffloadError>>,
    /// The next number for a volume that may be off-loaded. While off-loading is not enabled, numbers are not stored.
    next_key: u32,
}

#[derive(Debug)]
struct Tenant {
    id: TenantId,
    /// Why it has less than requested.
    warning: Option<String>,
    /// The share that the engine was told.
    told: Option<Share>,
}

#[derive(Debug)]
struct Volume {
    /// Absent if it cannot be read.
    spec: Option<Spec>,
    state: VolumeState,
    /// Set while its file is being extended.
    growing: Option<Arc<Progress>>,
    /// Whether a loss that is not accepted is recorded on the medium.
    loss_noted: bool,
    /// How often a client that its access list does not name has tried to open it.
    refusals: u64,
    /// Its number in the logs of off-load stores, if the engine has been told one.
    key: Option<VolumeKey>,
}

#[derive(Debug)]
enum VolumeState {
    Serving {
        id: VolumeId,
        /// Where its data is.
        source: Source,
        /// The block size of its device, bytes.
        block: u32,
        /// The sessions of its clients.
        sessions: Arc<Sessions>,
    },
    Creating(Arc<Progress>),
    /// Its data is busy; opening is tried again until it succeeds (`waiting.rs`).
    Waiting(Arc<DataError>),
    Offline(VolumeReason),
}

/// Where the data of a served volume is.
#[derive(Clone, Debug)]
enum Source {
    /// In a file or on a device: another one of the same name is not its data.
    Local(DataId),
    /// On another server, or striped over several.
    Upstream(Vec<Leg>),
}

/// A volume that a client can open, and its disk's thread.
#[derive(Debug)]
pub struct Target {
    /// The thread of its disk.
    pub thread: Arc<DiskHandle>,
    /// Its number there.
    pub volume: VolumeId,
    /// Its sessions. They tell it from a later volume with the same number.
    sessions: Arc<Sessions>,
    /// The volume of a cluster that it is a part of.
    pub part: Option<Uuid>,
    /// Its tenant's number.
    pub tenant: TenantId,
    /// The number of tenants on the disk.
    pub tenants: usize,
}

/// The volumes that a client can open at this moment.
#[derive(Debug)]
pub struct Offer {
    volumes: Vec<Export>,
    /// The target of each volume.
    pub targets: Vec<Target>,
    shutting_down: bool,
}

impl Offer {
    /// The volumes for the NBD handshake.
    pub fn exports(&self) -> Exports<'_> {
        Exports { volumes: &self.volumes, shutting_down: self.shutting_down }
    }
}

impl Control {
    /// Locks the server's directory and opens the disks of the registry. In a new directory, creates the first disk.
    pub async fn open(config: Config) -> anyhow::Result<Arc<Control>> {
        let data = &config.data;
        std::fs::create_dir_all(data)
            .map_err(|e| anyhow::anyhow!("cannot make the directory {}: {e}", data.display()))?;
        let locked = data.clone();
        let lock = blocking(move || Lock::take(&locked, LOCK_TIMEOUT)).await?.map_err(anyhow::Error::msg)?;
        // A server that ends normally removes its socket.
        let was_killed = config.api_socket().symlink_metadata().is_ok();
        let found = Registry::read(data)?;
        let is_new = found.is_none();
        if is_new {
            let cannot = |error| anyhow::anyhow!("cannot fsync the directory {}: {error}", data.display());
            crate::store::identity::sync_parent(data).map_err(cannot)?;
        }
        let registry = found.unwrap_or_else(Registry::new);
        let disks = registry.disks.iter().filter(|_| was_killed);
        let volumes = disks.flat_map(|(disk, entry)| entry.volumes.keys().map(|name| (disk.clone(), name.clone())));
        let unflushed = Mutex::new(volumes.collect());
        let memory_bytes = config.cache.bytes()?;
        let control = Arc::new(Control {
            memory_bytes,
            listening: Mutex::default(),
            started: Instant::now(),
            shutting_down: AtomicBool::new(false),
            turns: turn::Turns::default(),
            dividing: Arc::default(),
            registry: Arc::new(tokio::sync::Mutex::new(registry)),
            changing_policies: tokio::sync::RwLock::default(),
            policies: Mutex::new(Policies::read(data)?),
            issued: Mutex::default(),
            recording: turn::Turns::default(),
            divisions: Arc::default(),
            probes: probes::Probes::default(),
            automatic: automatic::Waiting::default(),
            trying: reopen::Trying::default(),
            noting: reopen::Trying::default(),
            unflushed,
            waiting: tokio::sync::Notify::new(),
            series: live::AllSeries::default(),
            kept: kept::AllKept::default(),
            decisions: Mutex::default(),
            misses: Mutex::default(),
            histories: Mutex::default(),
            scheduled: Mutex::default(),
            state: Mutex::new(State { disks: BTreeMap::new(), remembered: BTreeMap::new() }),
            _lock: lock,
            config,
        });
        control.open_known_disks().await;
        if is_new {
            control.make_first_disk().await?;
        }
        Ok(control)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no one panics while holding the state")
    }

    fn policies(&self) -> MutexGuard<'_, Policies> {
        self.policies.lock().expect("no one panics while holding the policies")
    }

    fn listening(&self) -> Listening {
        self.listening.lock().expect("no one panics while holding it").clone()
    }

    /// Sets the addresses that the server listens on, once they are known.
    pub fn set_listening(&self, listening: Listening) {
        *self.listening.lock().expect("no one panics while holding it") = listening;
    }

    /// The volumes that a client may open. Other volumes do not exist for it.
    pub fn offer(&self, peer: &Peer) -> Offer {
        let state = self.state();
        let mut offer = Offer { volumes: Vec::new(), targets: Vec::new(), shutting_down: self.is_shutting_down() };
        for running in state.disks.values().filter_map(|disk| disk.state.as_ref().ok()) {
            for (name, volume) in &running.volumes {
                let Some(grant) = volume.grants(peer) else { continue };
                let (Some(spec), Some(target)) = (&volume.spec, running.target(name, volume)) else { continue };
                offer.volumes.push(Export {
                    name: name.to_string(),
                    size: spec.size,
                    rotational: running.store.is_rotational(),
                    description: spec.description.to_string(),
                    identity: Some(spec.uuid.as_u128()),
                    read_only: grant == Grant::Read,
                    lease_ms: Some(LEASE.as_millis() as u64),
                });
                offer.targets.push(target);
            }
        }
        offer
    }

    /// Counts a refusal if a volume of this name exists and its access list does not name the client. Returns the name
    /// of that volume.
    pub fn count_refusal(&self, name: &[u8], peer: &Peer) -> Option<Name> {
        let mut state = self.state();
        let running = state.disks.values_mut().filter_map(|disk| disk.state.as_mut().ok());
        let mut volumes = running.flat_map(|running| &mut running.volumes);
        let is_hidden = |volume: &Volume| volume.id().is_some() && volume.grants(peer).is_none();
        let (name, volume) = volumes.find(|(known, it)| known.as_str().as_bytes() == name && is_hidden(it))?;
        volume.refusals += 1;
        Some(name.clone())
    }

    /// Passes a client whose handshake is complete to the thread of its disk, which has room for it. Returns false and
    /// closes the connection if the client may no longer open the volume with the access that was negotiated. A change
    /// of access cannot be missed in between: the thread is informed of each change after it is in the state.
    pub fn hand_over(&self, target: &Target, room: Room, client: Client) -> bool {
        let needed = if client.session.read_only { Grant::Read } else { Grant::Write };
        let state = self.state();
        let found = state.target(target);
        let is_allowed = found.is_some_and(|(_, _, volume)| volume.grants(&client.peer) >= Some(needed));
        if is_allowed {
            room.take(client);
        }
        is_allowed
    }

    /// Whether the server is draining.
    pub fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Relaxed)
    }

    /// Changes the list of disks in the server's directory and in memory, or neither. The state is not locked
    /// meanwhile, since the file system of that directory may hang, too.
    async fn change_registry(&self, change: impl FnOnce(&mut Registry) + Send + 'static) -> Result<(), Error> {
        let mut registry = self.registry.clone().lock_owned().await;
        let data = self.config.data.clone();
        let written = blocking(move || {
            let mut next = registry.clone();
            change(&mut next);
            next.write(&data)?;
            *registry = next;
            Ok(())
        });
        written.await?.map_err(Error::Registry)
    }

    fn running(&self) -> Vec<(Name, Arc<DiskHandle>)> {
        let state = self.state();
        let running = state.disks.iter().filter_map(|(name, disk)| Some((name, disk.state.as_ref().ok()?)));
        running.map(|(name, running)| (name.clone(), running.thread.clone())).collect()
    }

    fn names(&self, disk: &Name, which: impl Fn(VolumeId) -> bool) -> Vec<Name> {
        let state = self.state();
        let Ok(running) = state.disk(disk) else { return Vec::new() };
        let served = running.volumes.iter().filter(|(_, volume)| volume.id().is_some_and(&which));
        served.map(|(name, _)| name.clone()).collect()
    }
}

/// Ends a disk's thread, from a thread that may block.
async fn stop(thread: Arc<DiskHandle>) {
    if let Some(thread) = Arc::into_inner(thread) {
        let _ = tokio::task::spawn_blocking(move || thread.stop()).await;
    }
}

/// Runs file operations on a thread that may block.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    Ok(tokio::task::spawn_blocking(work).await?)
}

/// The engine's refusal, if any. If the thread was stopped, the volume is unknown.
fn refusal(report: Result<Report, Stopped>) -> Result<(), Refusal> {
    match report {
        Ok(Report::Refused(refusal)) => Err(refusal),
        Ok(_) => Ok(()),
        Err(Stopped) => Err(Refusal::UnknownVolume),
    }
}

impl State {
    fn disk(&self, name: &Name) -> Result<&Running, Error> {
        let disk = self.disks.get(name).ok_or_else(|| Error::Unknown(Kind::Disk, name.clone()))?;
        disk.state.as_ref().map_err(|reason| Error::DiskOffline(name.clone(), reason.clone()))
    }

    fn disk_mut(&mut self, name: &Name) -> Result<&mut Running, Error> {
        let disk = self.disks.get_mut(name).ok_or_else(|| Error::Unknown(Kind::Disk, name.clone()))?;
        disk.state.as_mut().map_err(|reason| Error::DiskOffline(name.clone(), reason.clone()))
    }

    /// The disk that has a volume. If several have one of this name, the disk that serves it.
    fn find(&self, volume: &Name) -> Result<(Name, &Volume), Error> {
        let all =
            self.disks.iter().filter_map(|(name, disk)| Some((name, disk.state.as_ref().ok()?.volumes.get(volume)?)));
        let found = all.min_by_key(|(_, volume)| volume.reason().is_some());
        found.map(|(name, volume)| (name.clone(), volume)).ok_or_else(|| self.unserved(volume))
    }

    /// The volume that a client has opened, if it is still served.
    fn target(&self, target: &Target) -> Option<(&Running, &Name, &Volume)> {
        let disks = self.disks.values().filter_map(|disk| disk.state.as_ref().ok());
        let mut volumes = disks.flat_map(|running| running.volumes.iter().map(move |(name, it)| (running, name, it)));
        volumes.find(|(_, _, volume)| volume.sessions().is_some_and(|sessions| Arc::ptr_eq(sessions, &target.sessions)))
    }

    /// The reason why no online disk has a volume.
    fn unserved(&self, volume: &Name) -> Error {
        let offline = self.remembered.iter().find_map(|(name, volumes)| {
            let disk = self.disks.get(name).filter(|_| volumes.contains_key(volume))?;
            Some(match &disk.state {
                Err(reason) => VolumeReason::Disk(name.clone(), reason.clone()),
                Ok(_) => VolumeReason::Opening,
            })
        });
        match offline {
            Some(reason) => Error::VolumeOffline(volume.clone(), reason),
            None => Error::Unknown(Kind::Volume, volume.clone()),
        }
    }

    fn volume_mut(&mut self, disk: &Name, volume: &Name) -> Option<&mut Volume> {
        self.disk_mut(disk).ok()?.volumes.get_mut(volume)
    }
}

impl Running {
    fn has_tenant(&self, tenant: &Name) -> bool {
        self.members(tenant).next().is_some()
    }

    /// Whether the tenant of a volume is not known, because its specification cannot be read.
    fn has_unknown(&self) -> bool {
        self.volumes.values().any(|volume| volume.spec.is_none())
    }

    /// The volumes of a tenant, with their specifications.
    fn members(&self, tenant: &Name) -> impl Iterator<Item = (&Name, &Spec)> {
        let specs = self.volumes.iter().filter_map(|(name, volume)| Some((name, volume.spec.as_ref()?)));
        specs.filter(move |(name, spec)| spec.tenant(name) == *tenant)
    }

    /// What is requested for and decided on a tenant.
    fn allotment(&self, tenant: &Name) -> TenantSpec {
        self.specs.get(tenant).cloned().unwrap_or_default()
    }

    /// The cache that was requested for the tenant's volumes other than `except`. `None` if it has no others.
    fn shared_cache(&self, tenant: &Name, except: &Name) -> Option<Option<OrAuto<Size>>> {
        self.members(tenant).any(|(name, _)| name != except).then(|| self.allotment(tenant).handed_cache())
    }

    /// All tenants with volumes.
    fn tenant_names(&self) -> BTreeSet<Name> {
        let volumes = self.volumes.iter().filter_map(|(name, volume)| Some(volume.spec.as_ref()?.tenant(name)));
        volumes.collect()
    }

    /// The allotments of all tenants that have disk time.
    fn allotments(&self) -> BTreeMap<Name, TenantSpec> {
        let names = self.tenant_names().into_iter().filter(|name| !self.is_remote(name));
        names.map(|name| (name.clone(), self.allotment(&name))).collect()
    }

    /// The specifications that promise something. One without volumes is what an earlier tenant or a crash has left,
    /// and promises nothing. But while the tenant of a volume is not known, it may be that of a volume that comes back.
    fn promises(&self) -> impl Iterator<Item = (&Name, &TenantSpec)> {
        let has_unknown = self.has_unknown();
        self.specs.iter().filter(move |(tenant, _)| has_unknown || self.has_tenant(tenant))
    }

    /// The sum of the shares of all tenants except this one, parts per billion.
    fn committed_ppb(&self, except: Option<&Name>) -> u64 {
        let others = self.promises().filter(|(tenant, _)| Some(*tenant) != except);
        others.filter_map(|(_, spec)| spec.share.as_ref()).map(|share| share.share.ppb()).sum()
    }

    /// The requested share of a tenant, parts per billion; 0 without one.
    fn share_ppb(&self, tenant: &Name) -> u64 {
        self.allotment(tenant).share.map_or(0, |share| share.share.ppb())
    }

    /// Refuses a share that exceeds what the other tenants' shares leave, unless this is accepted or the tenant has it
    /// already.
    fn check_share(
        &self,
        disk: &Name,
        tenant: &Name,
        present_ppb: u64,
        share: Option<Share>,
        overcommit: bool,
    ) -> Result<(), Error> {
        let left_ppb = Share::ONE.ppb().saturating_sub(self.committed_ppb(Some(tenant)));
        match share.filter(|share| !overcommit && share.ppb() > left_ppb.max(present_ppb)) {
            Some(asked) => Err(Error::ShareTooLarge { disk: disk.clone(), asked, left_ppb }),
            None => Ok(()),
        }
    }

    fn tenant_id(&mut self, tenant: &Name) -> TenantId {
        if let Some(known) = self.tenants.get(tenant) {
            return known.id;
        }
        let id = self.free_tenant();
        self.tenants.insert(tenant.clone(), Tenant { id, warning: None, told: None });
        id
    }

    /// The lowest unused tenant number: the disk's thread has tables that are indexed by it.
    fn free_tenant(&self) -> TenantId {
        let hidden = self.offloading().ok().flatten().and_then(offload::Offloading::hidden_tenant);
        let taken: BTreeSet<u32> = self.tenants.values().map(|tenant| tenant.id).chain(hidden).map(|id| id.0).collect();
        TenantId(lowest_free(&taken))
    }

    /// The lowest unused volume number.
    fn free_volume(&self) -> VolumeId {
        self.free_volumes(1)[0]
    }

    /// The lowest unused volume numbers, so many.
    fn free_volumes(&self, count: usize) -> Vec<VolumeId> {
        let hidden = self.offloading().ok().flatten().into_iter().flat_map(offload::Offloading::hidden);
        let mut taken: BTreeSet<u32> =
            self.volumes.values().flat_map(Volume::ids).chain(hidden).map(|id| id.0).collect();
        let take = |_| {
            let free = lowest_free(&taken);
            taken.insert(free);
            VolumeId(free)
        };
        (0..count).map(take).collect()
    }
}

/// The lowest number that is not taken.
fn lowest_free(taken: &BTreeSet<u32>) -> u32 {
    (0..).zip(taken).find(|(free, taken)| free != *taken).map_or(taken.len() as u32, |(free, _)| free)
}

impl Volume {
    /// What a client may do with the volume; `None` if it may not open it.
    fn grants(&self, peer: &Peer) -> Option<Grant> {
        let spec = self.spec.as_ref().filter(|spec| spec.is_complete())?;
        let grant = spec.allow.grants(peer)?;
        Some(if spec.read_only { Grant::Read } else { grant })
    }

    /// Its number, and those of its exports if it is striped.
    fn ids(&self) -> impl Iterator<Item = VolumeId> + '_ {
        let legs = match &self.state {
            VolumeState::Serving { source: Source::Upstream(legs), .. } => &legs[..],
            _ => &[],
        };
        let id = self.id().filter(|id| !legs.iter().any(|leg| leg.number == *id));
        id.into_iter().chain(legs.iter().map(|leg| leg.number))
    }

    fn id(&self) -> Option<VolumeId> {
        match self.state {
            VolumeState::Serving { id, .. } => Some(id),
            _ => None,
        }
    }

    /// Why the volume is not served, if it is not.
    fn reason(&self) -> Option<String> {
        match &self.state {
            VolumeState::Waiting(reason) => Some(reason.to_string()),
            VolumeState::Offline(reason) => Some(reason.to_string()),
            VolumeState::Serving { .. } | VolumeState::Creating(_) => None,
        }
    }

    /// The progress of its creation or growth, while one is running.
    fn progress(&self) -> Option<&Arc<Progress>> {
        match &self.state {
            VolumeState::Creating(progress) => Some(progress),
            _ => self.growing.as_ref(),
        }
    }
}

/// Runs operations on the files of a volume on a thread that may block.
async fn with_files<T: Send + 'static>(
    store: &Arc<Store>,
    name: &Name,
    work: impl FnOnce(&Files<'_>) -> T + Send + 'static,
) -> Result<T, Error> {
    let (store, name) = (store.clone(), name.clone());
    blocking(move || work(&store.files(&name))).await
}

/// Resolves a path as users give it: relative to the server's directory.
fn resolve(data: &Path, path: &Path) -> PathBuf {
    data.join(path)
}
