//! Views for the API: the state, joined with a snapshot of each disk's engine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::control::{Snapshot, VolumeStats};
use engine::disk::profile::{Key, Profile, Value};
use engine::units::{BLOCK, Share};

use super::faults::{fault_views, fault_warnings};
use super::live::{Against, DiskUse, policy_view};
use super::look::look;
use super::registry::Remembered;
use super::shares::Shares;
use super::upstreams::{stripes_view, upstream_view};
use super::view::{
    AddDisk, CacheView, CeilingsView, Condition, CreateVolume, DataKind, DemotionView, DiskView, Health, ProfileView,
    SessionView, ShareView, Status, TenantView, Traffic, ValueSource, ValueView, VolumeView,
};
use super::warnings::volume_warnings;
use super::{Control, Disk, Error, Kind, Running, Source, State, Volume, VolumeReason, VolumeState, blocking};
use crate::address::{Address, NbdAddress, TlsMode};
use crate::quantity::{Name, OrAuto, Size};
use crate::reactor::LayerView;
use crate::store::profile::date;
use crate::store::spec::{Allocation, WriteCache};
use crate::store::{DataId, Exports, Journal, Kernel, Spec, TenantSpec};

/// The time limit for a snapshot. A disk that takes longer is shown without values from its engine.
pub(super) const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(1);

/// A disk's counters, and the names for the numbers in them.
#[derive(Debug)]
pub struct Observed {
    /// The disk.
    pub disk: Name,
    /// Its counters.
    pub snapshot: Arc<Snapshot>,
    /// Volumes and their tenants.
    pub volumes: Vec<(engine::ids::VolumeId, Name, Name)>,
    /// Tenants.
    pub tenants: Vec<(engine::ids::TenantId, Name)>,
    /// The insulation of those tenants that have demand.
    pub insulation: Vec<(Name, f64)>,
    /// The same with the cache that they have.
    pub own_cache_insulation: Vec<(Name, f64)>,
    /// The uses of its time.
    pub time: DiskUse,
    /// The minimum bandwidths of those tenants that have one, bytes per second.
    pub min_bandwidths: Vec<(Name, u64)>,
    /// The sum of the promised shares, 0 to 1.
    pub committed_share: f64,
    /// The layers on its device.
    pub layers: LayerView,
    /// The stores that its writes are off-loaded to, as they were named.
    pub stores: Vec<String>,
}

impl Control {
    /// The counters of a disk, not older than this call. `None` if it is offline or does not answer.
    pub(super) async fn snapshot(&self, disk: &Name) -> Option<Arc<Snapshot>> {
        // The thread's handle is not kept across the wait, so that the thread can end meanwhile.
        let snapshots = self.state().disk(disk).ok()?.thread.snapshots();
        tokio::time::timeout(SNAPSHOT_TIMEOUT, snapshots.take()).await.ok()?.ok()
    }

    /// Runs an operation on the file system of a disk, in bounded time. `None` if it does not answer, or if too many
    /// earlier operations have not returned.
    async fn ask_files<T: Send + 'static>(&self, disk: &Name, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let questions = self.state().disk(disk).ok()?.questions.clone();
        let answer = async {
            let permit = questions.acquire_owned().await.ok()?;
            let asked = blocking(move || {
                let _permit = permit;
                work()
            });
            asked.await.ok()
        };
        tokio::time::timeout(SNAPSHOT_TIMEOUT, answer).await.ok()?
    }

    /// Warnings about served volumes whose data was removed or replaced. `None` if the file system does not answer.
    async fn replaced(&self, disk: &Name) -> Option<BTreeMap<Name, String>> {
        let served: Vec<(Name, PathBuf, DataId)> = {
            let state = self.state();
            let running = state.disk(disk).ok()?;
            let served = running.volumes.iter().filter_map(|(name, volume)| match volume.state {
                VolumeState::Serving { source: Source::Local(data), .. } => {
                    let path = running.store.files(name).data_of(volume.spec.as_ref());
                    Some((name.clone(), path, data))
                }
                _ => None,
            });
            served.collect()
        };
        let look = move || {
            let warnings = served.into_iter().map(|(name, path, data)| Some((name, replaced_warning(&path, data)?)));
            warnings.flatten().collect()
        };
        self.ask_files(disk, look).await
    }

    /// The counters of all disks that answer.
    pub async fn observe(&self) -> Vec<Observed> {
        let disks = self.running().into_iter().map(|(disk, _)| async move {
            let (snapshot, layers) = futures::future::join(self.snapshot(&disk), self.layers(&disk)).await;
            let (snapshot, layers) = (snapshot?, layers?);
            let state = self.state();
            let running = state.disk(&disk).ok()?;
            let served = running
                .volumes
                .iter()
                .filter_map(|(name, v)| Some((v.id()?, name.clone(), v.spec.as_ref()?.tenant(name))));
            let volumes = served.collect();
            let tenants = running.tenants.iter().map(|(name, tenant)| (tenant.id, name.clone())).collect();
            let committed_share = ratio(running.committed_ppb(None));
            let ratios = |against| self.ratios(&disk, running, &snapshot, against);
            let (insulation, own_cache_insulation) = (ratios(Against::WholeCache), ratios(Against::OwnCache));
            let time = self.disk_use(&disk, &snapshot);
            let min_bandwidth = |name: &Name| Some((name.clone(), running.allotment(name).min_bandwidth?.0));
            let min_bandwidths = running.tenants.keys().filter_map(min_bandwidth).collect();
            Some(Observed {
                disk: disk.clone(),
                snapshot,
                volumes,
                tenants,
                insulation,
                own_cache_insulation,
                time,
                min_bandwidths,
                committed_share,
                layers,
                stores: running.store_names(),
            })
        });
        futures::future::join_all(disks).await.into_iter().flatten().collect()
    }

    /// The state that is known without asking disk threads or file systems.
    pub fn health(&self) -> Health {
        let disks_online = self.state().disks.values().filter(|disk| disk.state.is_ok()).count();
        let warnings = self.state().disks.iter().flat_map(|(name, disk)| disk.offload_warnings(name)).collect();
        Health { uptime_seconds: self.started.elapsed().as_secs(), disks_online, warnings }
    }

    /// Why the server does not serve all that it should, if so.
    pub fn unready(&self) -> Option<String> {
        if self.is_shutting_down() {
            return Some("the server is shutting down".into());
        }
        let state = self.state();
        let reason = |(name, disk): (&Name, &Disk)| {
            disk.state.as_ref().err().map(|reason| format!("disk '{name}' is offline: {reason}"))
        };
        let reasons: Vec<String> = state.disks.iter().filter_map(reason).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// One volume.
    pub async fn show_volume(&self, name: &Name) -> Result<VolumeView, Error> {
        let found = self.state().find(name).map(|(disk, _)| disk);
        let all = match found {
            Ok(disk) => self.list_volumes_of(&disk).await,
            Err(Error::VolumeOffline(..)) => self.list_volumes().await,
            Err(error) => return Err(error),
        };
        let unknown = || Error::Unknown(Kind::Volume, name.clone());
        all.into_iter().find(|volume| volume.name == name.as_str()).ok_or_else(unknown)
    }

    /// All volumes.
    pub async fn list_volumes(&self) -> Vec<VolumeView> {
        let disks: Vec<Name> = self.state().disks.keys().cloned().collect();
        let views = disks.iter().map(|disk| self.list_volumes_of(disk));
        futures::future::join_all(views).await.concat()
    }

    async fn list_volumes_of(&self, disk: &Name) -> Vec<VolumeView> {
        let (snapshot, replaced) = futures::future::join(self.snapshot(disk), self.replaced(disk)).await;
        let listening = self.listening().nbd;
        let state = self.state();
        let running = match state.disk(disk) {
            Ok(running) => running,
            Err(Error::DiskOffline(disk, reason)) => {
                let reason = VolumeReason::Disk(disk.clone(), reason);
                return remembered_views(&state, &disk, |_| true, &reason);
            }
            Err(_) => return Vec::new(),
        };
        let chosen = self.chosen(disk, &running.store);
        let tenants = self.tenant_views(disk, running, &chosen, snapshot.as_deref());
        let view = |(name, volume)| volume_view(disk, running, name, volume, snapshot.as_deref(), &tenants, &listening);
        let mut views: Vec<VolumeView> = running.volumes.iter().map(view).collect();
        for (view, name) in views.iter_mut().zip(running.volumes.keys()) {
            match &replaced {
                Some(replaced) => view.warnings.extend(replaced.get(name).cloned()),
                None => view.warnings.push("the file system of its disk does not answer".into()),
            }
        }
        // A disk that starts opens its volumes one after the other.
        let absent = |name: &Name| !running.volumes.contains_key(name);
        views.extend(remembered_views(&state, disk, absent, &VolumeReason::Opening));
        views
    }

    /// One disk.
    pub async fn show_disk(&self, name: &Name) -> Result<DiskView, Error> {
        let question = {
            let state = self.state();
            let disk = state.disks.get(name).ok_or_else(|| Error::Unknown(Kind::Disk, name.clone()))?;
            disk.state.as_ref().ok().map(|running| (running.store.clone(), running.devices()))
        };
        let look = async {
            let (store, devices) = question?;
            self.ask_files(name, move || look(&store, &devices)).await
        };
        let (snapshot, layers, looked) = futures::future::join3(self.snapshot(name), self.layers(name), look).await;
        let mut view = {
            let state = self.state();
            let disk = state.disks.get(name).ok_or_else(|| Error::Unknown(Kind::Disk, name.clone()))?;
            let mut view = disk_view(&state, name, disk, snapshot.as_deref());
            if let Ok(running) = &disk.state {
                let chosen = self.chosen(name, &running.store);
                view.policy = Some(policy_view(running, &chosen, snapshot.as_deref()));
                view.tenants = self.tenant_views(name, running, &chosen, snapshot.as_deref());
            }
            view
        };
        if view.condition == Condition::Offline {
            return Ok(view);
        }
        match looked {
            Some(looked) => looked.add_to(&mut view),
            None => view.warnings.push("its file system does not answer: is the device hung?".into()),
        }
        if let Some(layers) = layers {
            view.warnings.extend(fault_warnings(&layers));
            view.faults = fault_views(&layers);
        }
        if snapshot.is_none() {
            view.warnings.push("its thread does not answer: is the device hung?".into());
        }
        Ok(view)
    }

    /// All disks.
    pub async fn list_disks(&self) -> Vec<DiskView> {
        let disks: Vec<Name> = self.state().disks.keys().cloned().collect();
        let views = disks.iter().map(|disk| self.show_disk(disk));
        futures::future::join_all(views).await.into_iter().flatten().collect()
    }

    /// The server.
    pub async fn status(&self) -> Status {
        let (disks, volumes) = futures::future::join(self.list_disks(), self.list_volumes()).await;
        let listening = self.listening();
        let mut warnings = Vec::new();
        for disk in &disks {
            let reasons = disk.reason.iter().map(|reason| format!("offline: {reason}"));
            warnings.extend(reasons.chain(disk.warnings.iter().cloned()).map(|w| format!("disk '{}': {w}", disk.name)));
        }
        for volume in &volumes {
            let reasons = volume.reason.iter().map(|reason| format!("offline: {reason}"));
            warnings.extend(
                reasons.chain(volume.warnings.iter().cloned()).map(|w| format!("volume '{}': {w}", volume.name)),
            );
        }
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            process: std::process::id(),
            data: absolute(&self.config.data),
            uptime_seconds: self.started.elapsed().as_secs(),
            shutting_down: self.is_shutting_down(),
            memory_bytes: self.memory_bytes,
            nbd: listening.nbd.iter().map(NbdAddress::to_string).collect(),
            http: listening.http.iter().map(Address::to_string).collect(),
            connections: volumes.iter().map(|volume| volume.connections).sum(),
            warnings,
            events: self.events(),
            disks,
            volumes,
            cluster: None,
        }
    }
}

fn ratio(ppb: u64) -> f64 {
    ppb as f64 / Share::ONE.ppb() as f64
}

pub(super) fn absolute(path: &std::path::Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}

fn volume_view(
    disk: &Name,
    running: &Running,
    name: &Name,
    volume: &Volume,
    snapshot: Option<&Snapshot>,
    tenants: &[TenantView],
    listening: &[NbdAddress],
) -> VolumeView {
    let stats = volume.id().and_then(|id| snapshot?.volumes.iter().find(|stats| stats.volume == id));
    let is_complete = volume.spec.as_ref().is_none_or(Spec::is_complete);
    let condition = match &volume.state {
        VolumeState::Serving { .. } if !is_complete => Condition::Creating,
        VolumeState::Serving { .. } => Condition::Online,
        VolumeState::Creating(_) => Condition::Creating,
        VolumeState::Waiting(_) | VolumeState::Offline(_) => Condition::Offline,
    };
    let spec = volume.spec.as_ref();
    let tenant = spec.map_or_else(|| name.clone(), |spec| spec.tenant(name));
    let of_tenant = tenants.iter().find(|view| view.name == tenant.as_str());
    let upstream = upstream_view(volume, stats);
    let path = spec.filter(|spec| spec.upstream.is_some()).map(Spec::addresses);
    let path = path.unwrap_or_else(|| absolute(&running.store.files(name).data_of(spec)));
    let prepared_bytes = volume.progress().map_or(0, |progress| progress.bytes.load(Ordering::Relaxed));
    let size_bytes = spec.map_or(0, |spec| spec.size);
    let (offload_stores, failing_stores) = running.stores_of(spec.is_some_and(|spec| spec.offload));
    VolumeView {
        name: name.to_string(),
        disk: disk.to_string(),
        condition,
        reason: running.reason_of(volume),
        spec: spec.filter(|spec| !spec.store).map(|spec| request_of(disk, name, spec, &running.allotment(&tenant))),
        warnings: volume_warnings((disk, running), name, volume, stats),
        size_bytes,
        path,
        upstream,
        stripes: stripes_view(volume, stats),
        raw: spec.is_some_and(|spec| spec.device.is_some()),
        cluster: spec.and_then(|spec| spec.cluster.clone()),
        uris: if condition == Condition::Online { uris(listening, name) } else { Vec::new() },
        allow: spec.map(|spec| spec.allow.texts()).unwrap_or_default(),
        read_only: spec.is_some_and(|spec| spec.read_only),
        description: spec.map(|spec| spec.description.to_string()).unwrap_or_default(),
        share: of_tenant.map_or_else(|| Shares::of(running).view(&tenant), |view| view.share.clone()),
        guarantee: of_tenant.map_or_else(|| Shares::of(running).guarantee(&tenant), |view| view.guarantee.clone()),
        cache: cache_view(running, &tenant, snapshot),
        ceilings: CeilingsView::of(&running.allotment(&tenant)),
        slice: of_tenant.and_then(|view| view.slice.clone()),
        insulation: of_tenant.and_then(|view| view.insulation.clone()),
        own_cache_insulation: of_tenant.and_then(|view| view.own_cache_insulation.clone()),
        latency: of_tenant.and_then(|view| view.latency),
        sizing: of_tenant.and_then(|view| view.sizing.clone()),
        write_cache: spec.map_or_else(WriteCache::default, |spec| spec.write_cache),
        allocation: spec.map(|spec| spec.allocation).unwrap_or_default(),
        initialised_ratio: stats.map_or(0.0, |stats| 1.0 - stats.hole_bytes as f64 / size_bytes.max(1) as f64),
        prepared_bytes,
        connections: stats.map_or(0, |stats| stats.connections),
        session: volume.sessions().and_then(|sessions| sessions.shown()).map(SessionView::from),
        demotion: stats.and_then(|stats| DemotionView::of(&stats.demotions)),
        dirty_bytes: stats.map_or(0, |stats| stats.dirty_blocks * BLOCK),
        offloaded_bytes: stats.map_or(0, |stats| stats.offloaded_bytes),
        offload_stores,
        failing_stores,
        traffic: stats.map(traffic).unwrap_or_default(),
        tenant: tenant.to_string(),
    }
}

/// Volumes of a disk that are not open, as they were when it was online.
fn remembered_views(
    state: &State,
    disk: &Name,
    which: impl Fn(&Name) -> bool,
    reason: &VolumeReason,
) -> Vec<VolumeView> {
    let view = |(name, known): (&Name, &Remembered)| VolumeView {
        name: name.to_string(),
        disk: disk.to_string(),
        tenant: known.tenant.as_ref().unwrap_or(name).to_string(),
        condition: Condition::Offline,
        reason: Some(reason.to_string()),
        spec: None,
        warnings: Vec::new(),
        size_bytes: known.size,
        path: known.device.as_ref().map(|device| device.display().to_string()).unwrap_or_default(),
        raw: known.device.is_some(),
        cluster: None,
        uris: Vec::new(),
        allow: Vec::new(),
        read_only: false,
        description: String::new(),
        upstream: None,
        stripes: None,
        share: ShareView { effective: Some(0.0), ..ShareView::default() },
        guarantee: None,
        cache: CacheView::default(),
        ceilings: None,
        slice: None,
        insulation: None,
        own_cache_insulation: None,
        latency: None,
        sizing: None,
        write_cache: WriteCache::default(),
        allocation: Allocation::default(),
        initialised_ratio: 0.0,
        prepared_bytes: 0,
        connections: 0,
        session: None,
        demotion: None,
        dirty_bytes: 0,
        offloaded_bytes: 0,
        offload_stores: Vec::new(),
        failing_stores: Vec::new(),
        traffic: Traffic::default(),
    };
    let known = state.remembered.get(disk).into_iter().flatten();
    known.filter(|(name, _)| which(name)).map(view).collect()
}

/// The request that would create this volume, with its tenant's present allotment.
fn request_of(disk: &Name, name: &Name, spec: &Spec, allotment: &TenantSpec) -> CreateVolume {
    let upstream = spec.upstream.as_ref();
    let whole = spec.cluster.as_ref().map_or(spec.size, |part| part.size);
    CreateVolume {
        name: name.clone(),
        size: Some(Size(whole)).filter(|_| spec.upstream.is_none()),
        device: spec.device.as_ref().map(|device| device.path.display().to_string()),
        force: false,
        from: upstream.map(|_| Exports(spec.exports().map(|remote| remote.from.clone()).collect())),
        stripe: spec.stripes.as_ref().map(|of| of.unit).or(spec.cluster.as_ref().map(|of| of.stripe)).map(Size),
        shared: upstream.is_some_and(|remote| remote.shared),
        upstream_deadline: upstream.map(|remote| remote.deadline),
        upstream_connections: upstream.map(|remote| remote.connections),
        tiers: upstream.filter(|_| spec.stripes.is_none()).map(|remote| remote.tiers),
        tls_certificates: upstream.and_then(|remote| remote.tls_certificates.clone()),
        tls_hostname: upstream.and_then(|remote| remote.tls_hostname.clone()),
        accept_data_loss: spec.exports().any(|remote| remote.without_flush),
        disk: Some(disk.clone()),
        policy: allotment.policy.clone(),
        share: OrAuto::join(allotment.share.clone(), allotment.auto_share),
        min_bandwidth: allotment.min_bandwidth,
        overcommit: false,
        tenant: spec.tenant.clone(),
        cache: OrAuto::join(allotment.cache, allotment.auto_cache),
        like: None,
        eviction: Some(allotment.eviction),
        max_bandwidth: allotment.max_bandwidth,
        max_iops: allotment.max_iops,
        burst: allotment.burst,
        allocation: spec.allocation,
        allow: spec.allow.clone(),
        read_only: spec.read_only,
        description: spec.description.clone(),
        servers: None,
        on: spec.cluster.as_ref().map_or_else(Vec::new, |part| part.servers.clone()),
        least: None,
        lease_epoch: None,
    }
}

fn disk_request_of(name: &Name, disk: &Disk, running: &Running) -> AddDisk {
    let (identity, scheduling) = (&running.store.identity, running.store.known().scheduling);
    let simulated = running.simulated_view();
    AddDisk {
        name: name.clone(),
        path: simulated.as_ref().map_or_else(|| absolute(&disk.path), |drive| drive.description.clone()),
        force: false,
        size: simulated.as_ref().map(|drive| Size(drive.size_bytes)),
        directory: simulated.map(|_| absolute(&disk.path)),
        faults: identity.faults.clone(),
        policy: scheduling.policy,
        insulation: scheduling.insulation,
        max_round: scheduling.max_round,
        no_probe: scheduling.no_probe,
    }
}

/// A warning if the data of a served volume is not at `path` any more.
fn replaced_warning(path: &Path, data: DataId) -> Option<String> {
    match DataId::at(path) {
        Ok(found) if found == data => return None,
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Some(format!("{} cannot be examined: {error}", path.display()));
        }
        _ => {}
    }
    let (what, fix) = match data {
        DataId::File { .. } => ("data file", "copy its data elsewhere before the server stops"),
        DataId::Device(_) => ("device", "bring it back before the server stops, or it will be offline"),
    };
    Some(format!("its {what} {} was removed or replaced while it is served: {fix}", path.display()))
}

pub(super) fn cache_view(running: &Running, tenant: &Name, snapshot: Option<&Snapshot>) -> CacheView {
    let id = running.tenants.get(tenant).map(|tenant| tenant.id);
    let stats = snapshot.and_then(|snapshot| snapshot.tenants.iter().find(|stats| Some(stats.tenant) == id));
    let TenantSpec { cache, auto_cache, planned_cache, eviction, .. } = running.allotment(tenant);
    CacheView {
        requested_bytes: cache.map(|cache| cache.0),
        auto: auto_cache,
        planned_bytes: planned_cache.map(|cache| cache.0),
        eviction,
        effective_bytes: stats.map_or(0, |stats| stats.target_frames * BLOCK),
        used_bytes: stats.map_or(0, |stats| stats.used_frames * BLOCK),
    }
}

fn traffic(stats: &VolumeStats) -> Traffic {
    let blocks = stats.hit_blocks + stats.prefetched_blocks + stats.miss_blocks;
    Traffic {
        reads: stats.read.requests,
        read_bytes: stats.read.bytes,
        writes: stats.write.requests,
        write_bytes: stats.write.bytes,
        flushes: stats.flush.requests,
        errors: [&stats.read, &stats.write, &stats.flush, &stats.other].iter().map(|op| op.errors).sum(),
        hit_ratio: (blocks > 0).then(|| stats.hit_blocks as f64 / blocks as f64),
    }
}

/// The URIs under which clients open a volume, as the NBD project defines them.
fn uris(listening: &[NbdAddress], name: &Name) -> Vec<String> {
    let uri = |NbdAddress { address, tls, .. }: &NbdAddress| {
        let scheme = if *tls == TlsMode::Off { "nbd" } else { "nbds" };
        match address {
            Address::Unix(path) => format!("{scheme}+unix:///{name}?socket={}", absolute(path)),
            Address::Tcp(host, port) if host.contains(':') => format!("{scheme}://[{host}]:{port}/{name}"),
            Address::Tcp(host, port) => format!("{scheme}://{host}:{port}/{name}"),
        }
    };
    listening.iter().map(uri).collect()
}

fn disk_view(state: &State, name: &Name, disk: &Disk, snapshot: Option<&Snapshot>) -> DiskView {
    let running = disk.state.as_ref().ok();
    let abilities = running.map(|running| running.store.abilities);
    let mut warnings = Vec::new();
    if let Some(running) = running {
        if !running.store.abilities.direct && running.data_kind() != DataKind::Raw {
            warnings.push("its file system has no direct I/O: the kernel caches the data, too".into());
        }
        if let Some(held) = snapshot.map(|snapshot| snapshot.held_frames * BLOCK).filter(|&held| held > 0) {
            warnings.push(format!(
                "{} of memory that it released are still in use, by unread replies or by data that cannot be written",
                Size(held).rounded()
            ));
        }
        warnings.extend(running.offload_warnings(name));
        warnings.extend(state.neighbours(name).iter().map(|other| format!("disk '{other}' is on the same device")));
        let drives = running.drives();
        if drives.len() > 1 && running.store.model.is_none() {
            let names: Vec<String> = drives.iter().map(|drive| Kernel::default().name(*drive)).collect();
            warnings.push(format!(
                "its volumes are on several drives ({}), which are scheduled as one: use one disk per drive",
                names.join(", ")
            ));
        }
    }
    let volumes = match running {
        Some(running) => running.volumes.keys().map(Name::to_string).collect(),
        None => state.remembered.get(name).iter().flat_map(|volumes| volumes.keys()).map(Name::to_string).collect(),
    };
    let time = snapshot.map_or(0, |snapshot| snapshot.busy_ns + snapshot.idle_ns);
    DiskView {
        name: name.to_string(),
        path: absolute(&disk.path),
        uuid: disk.uuid,
        condition: if running.is_some() { Condition::Online } else { Condition::Offline },
        reason: disk.state.as_ref().err().map(ToString::to_string),
        spec: running.map(|running| disk_request_of(name, disk, running)),
        warnings,
        data: running.map_or(DataKind::Files, Running::data_kind),
        device: None,
        drive_cache: None,
        scheduler: None,
        file_system: None,
        journal: Journal::Shared,
        direct_io: abilities.is_some_and(|abilities| abilities.direct),
        device_block_bytes: running.map_or(0, Running::block),
        free_bytes: 0,
        policy: None,
        tenants: Vec::new(),
        profile: profile_view(&running.map(|running| running.store.known().profile).unwrap_or_default()),
        committed_share: running.map_or(0.0, |running| ratio(running.committed_ppb(None))),
        memory_bytes: snapshot.map_or(0, |snapshot| snapshot.budget_bytes),
        dirty_bytes: snapshot.map_or(0, |s| s.tenants.iter().map(|tenant| tenant.dirty_frames * BLOCK).sum()),
        busy_ratio: snapshot.map_or(0.0, |snapshot| snapshot.busy_ns as f64 / time.max(1) as f64),
        volumes,
        unclaimed: Vec::new(),
        simulated: running.and_then(Running::simulated_view),
        faults: Vec::new(),
    }
}

fn profile_view(profile: &Profile) -> ProfileView {
    let view = |(key, value): (&Key, &Value)| {
        let (source, at_s) = match (&value.overridden, &value.measured) {
            (Some(set), _) => (ValueSource::Override, set.at_s),
            (None, Some(measured)) if measured.automatic => (ValueSource::AutomaticQuick, measured.at_s),
            (None, Some(measured)) => (ValueSource::Measured, measured.at_s),
            (None, None) => return None,
        };
        let measured = value.measured.as_ref();
        Some(ValueView {
            name: key.to_string(),
            value: value.number(),
            source,
            at: date(at_s),
            method: measured.map(|measured| measured.method.clone()),
            error_ratio: measured.and_then(|measured| measured.error_ratio),
            measured: measured.filter(|_| source == ValueSource::Override).and_then(|measured| measured.value),
        })
    };
    ProfileView { needs_slices: profile.needs_slices(), values: profile.values.iter().filter_map(view).collect() }
}
