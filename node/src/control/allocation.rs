//! Allocation over several resources: evidence for its planner (`aerogel allocate`), and what it plans.
//!
//! The planner is a client of the API: it reads evidence from the server and from its gateways, and sends each of them
//! what it has found. A planned share or cache is stored in the tenant's specification. It promises nothing beyond what
//! is requested: it yields to promises and to new tenants (`shares.rs`; in the engine, `plan/allot.rs`).

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use engine::allocate::Depth;
use engine::control::{Command, FRAME_BYTES, LEAST_BYTES, Report, Snapshot, TenantStats};
use engine::disk::profile::Profile;
use engine::ids::VolumeId;
use engine::units::{SECOND, Share};
use tracing::info;
use uuid::Uuid;

use super::curve::points;
use super::shares::Shares;
use super::show::SNAPSHOT_TIMEOUT;
use super::tenants::TenantChange;
use super::view::{
    CurveEvidence, DepthEvidence, DiskEvidence, EvidenceView, LoadEvidence, PlannedTenant, Resource, SetAllocation,
    TenantEvidence, VolumeEvidence,
};
use super::{AllocationError, Control, Done, Error, Invalid, Kind, Running};
use crate::disk_thread::DiskHandle;
use crate::quantity::{Name, Size, percent};
use crate::store::{Store, TenantSpec, Tiers};

/// Rounding of planned shares, parts per billion for each tenant.
const SHARE_ROUNDING_PPB: u64 = 1000;

/// The number of this process in its evidence: below 2^53, so that any reader of JSON keeps it.
static PROCESS: LazyLock<u64> = LazyLock::new(|| Uuid::new_v4().as_u64_pair().0 >> 11);

/// A tenant, and one of its volumes, by which the engine finds its curve.
type Curved = (Name, VolumeId);

impl Control {
    /// Evidence of all disks that answer.
    pub async fn evidence(&self) -> EvidenceView {
        let disks = self.running().into_iter().map(|(disk, _)| async move { self.evidence_of(&disk).await });
        let disks = futures::future::join_all(disks).await;
        EvidenceView { process: *PROCESS, disks: disks.into_iter().flatten().collect() }
    }

    async fn evidence_of(&self, disk: &Name) -> Option<DiskEvidence> {
        let (thread, curved) = {
            let state = self.state();
            let running = state.disk(disk).ok()?;
            (running.thread.clone(), running.curved())
        };
        let curves = tokio::time::timeout(SNAPSHOT_TIMEOUT, curves(thread, curved)).await.ok()?;
        let snapshot = self.snapshot(disk).await?;
        let fixed_shares = self.fixed_shares(disk);
        let state = self.state();
        let running = state.disk(disk).ok()?;
        let chosen = self.chosen(disk, &running.store);
        let has_slices = chosen.has_slices();
        let (shares, unplanned) = (Shares::of(running), Shares::unplanned(running.allotments()));
        let mut round_ns = 0;
        let mut tenants = Vec::new();
        for name in running.tenant_names().into_iter().filter(|name| !name.is_of_stores()) {
            let Some(stats) = running.stats_of(&name, &snapshot) else { continue };
            let plan = stats.plan.filter(|_| has_slices);
            round_ns = round_ns.max(plan.map_or(0, |plan| plan.round_ns));
            let spec = running.allotment(&name);
            let is_bound = spec.auto_share && spec.min_bandwidth.is_some();
            tenants.push(TenantEvidence {
                tenant: name.to_string(),
                volumes: running.volumes_of(&name, &snapshot),
                remote: running.is_remote(&name),
                share: Resource {
                    requested: spec.share.as_ref().map(|share| part(share.share.ppb())),
                    auto: spec.auto_share,
                    planned: spec.planned_share.as_ref().map(|share| part(share.share.ppb())),
                    effective: shares.effective(&name).unwrap_or(0.0),
                },
                cache: Resource {
                    requested: spec.cache.map(|cache| cache.0),
                    auto: spec.auto_cache,
                    planned: spec.planned_cache.map(|cache| cache.0),
                    effective: stats.target_frames * FRAME_BYTES,
                },
                share_least: unplanned.effective(&name).filter(|_| is_bound).unwrap_or(0.0),
                closing_seconds: plan.map(|plan| plan.closing_ns as f64 / SECOND as f64),
                loss_seconds: plan.map(|plan| plan.loss_ns as f64 / SECOND as f64),
                load: load(stats, &snapshot),
                curve: curves.get(&name).cloned(),
            });
        }
        Some(DiskEvidence {
            disk: disk.to_string(),
            seconds: snapshot.now as f64 / SECOND as f64,
            memory_bytes: snapshot.frames * FRAME_BYTES,
            block_memory_bytes: FRAME_BYTES,
            least_bytes: LEAST_BYTES,
            plannable_bytes: running.plannable_frames(&snapshot) * FRAME_BYTES,
            plannable_share: Shares::plannable(running.allotments()),
            fixed_shares,
            policy: chosen.name.to_string(),
            round_seconds: (round_ns > 0).then(|| round_ns as f64 / SECOND as f64),
            round_seconds_max: has_slices.then(|| chosen.settings.round_max_ns as f64 / SECOND as f64),
            switch_seconds: has_slices.then(|| chosen.settings.switch_ns as f64 / SECOND as f64),
            reads_by_depth: by_depth(&running.store.known().profile),
            tenants,
        })
    }

    /// Why the shares of a disk cannot be planned, if they cannot.
    fn fixed_shares(&self, disk: &Name) -> Option<String> {
        if self.is_scheduled(Some(disk)) {
            return Some("it follows the schedule of a cluster".into());
        }
        let state = self.state();
        let running = state.disk(disk).ok()?;
        let chosen = self.chosen(disk, &running.store);
        (!chosen.name.0.uses_shares()).then(|| format!("its policy '{}' has no shares", chosen.name))
    }

    /// Enters what was planned for tenants, for all of them or for none.
    pub async fn set_allocation(&self, request: SetAllocation) -> Result<Done, Error> {
        let mut disks = BTreeMap::<Name, Vec<PlannedTenant>>::new();
        for planned in request.tenants {
            let of_disk = disks.entry(planned.disk.clone()).or_default();
            if of_disk.iter().any(|other| other.tenant == planned.tenant) {
                return Err(AllocationError::Twice { tenant: planned.tenant, disk: planned.disk }.into());
            }
            if planned.share.is_some() || planned.cache.is_some() {
                of_disk.push(planned);
            }
        }
        if disks.values().all(Vec::is_empty) {
            return Err(AllocationError::Nothing.into());
        }
        let mut turns = Vec::new();
        let mut snapshots = BTreeMap::new();
        for disk in disks.keys() {
            turns.push(self.change(disk).await?);
            let answer = self.snapshot(disk).await;
            let state = self.state();
            state.disk(disk)?;
            let silent = || Error::DiskOffline(disk.clone(), super::DiskReason::NoAnswer);
            snapshots.insert(disk.clone(), answer.ok_or_else(silent)?);
        }
        let mut changes = Vec::new();
        let entered = self.enter_allocation(&disks, &snapshots, &mut changes);
        if entered.is_err() || request.dry_run {
            let mut state = self.state();
            for (disk, _, change) in changes.into_iter().rev() {
                state.disk_mut(&disk)?.leave_change(change);
            }
            return entered.map(|()| told("it can be done; nothing is changed".into()));
        }
        // Those that give memory back come first.
        changes.sort_by_key(|(_, _, change)| change.after().planned_cache > change.before().planned_cache);
        if let Err(error) = self.put_allocation(&changes).await {
            for (disk, _, change) in changes {
                self.undo_tenant(&disk, Some(change)).await;
            }
            return Err(error);
        }
        for disk in disks.keys() {
            let of_disk = changes.iter().filter(|(on, ..)| on == disk).map(|(.., change)| in_words(change));
            let all: Vec<String> = of_disk.collect();
            if !all.is_empty() {
                self.tell_disk(disk, format!("a new allocation: {}", all.join("; ")));
            }
        }
        let count = changes.len();
        info!(tenants = count, "a new allocation");
        Ok(told(format!("{count} {} changed", if count == 1 { "tenant is" } else { "tenants are" })))
    }

    /// Changes the specifications in the state; `changes` has those that were made, also if it fails.
    fn enter_allocation(
        &self,
        disks: &BTreeMap<Name, Vec<PlannedTenant>>,
        snapshots: &BTreeMap<Name, Arc<Snapshot>>,
        changes: &mut Vec<(Name, Arc<Store>, TenantChange)>,
    ) -> Result<(), Error> {
        for (disk, tenants) in disks {
            let fixed_shares = self.fixed_shares(disk);
            let mut state = self.state();
            let running = state.disk_mut(disk)?;
            for planned in tenants {
                if !running.has_tenant(&planned.tenant) {
                    return Err(Error::NotOnDisk { tenant: planned.tenant.clone(), disk: disk.clone() });
                }
                let before = running.allotment(&planned.tenant);
                let after = running.planned(planned, &before, fixed_shares.as_deref())?;
                if after != before {
                    let change = running.enter_change(&planned.tenant, after);
                    changes.push((disk.clone(), running.store.clone(), change));
                }
            }
            running.check_allocation(disk, &snapshots[disk])?;
        }
        Ok(())
    }

    /// Applies changes, which are in the state, to the engines, and stores them.
    async fn put_allocation(&self, changes: &[(Name, Arc<Store>, TenantChange)]) -> Result<(), Error> {
        for (disk, _, change) in changes {
            let name = change.tenant();
            let synced = self.sync_tenant(disk, name).await;
            synced.map_err(|refusal| Error::Refused { kind: Kind::Tenant, name: name.clone(), refusal })?;
        }
        for (_, store, change) in changes {
            self.store_tenant(store, Some(change)).await?;
        }
        Ok(())
    }
}

fn told(message: String) -> Done {
    Done { message, volume: None, disk: None, tenant: None }
}

/// What a tenant has after a change.
fn in_words(change: &TenantChange) -> String {
    let TenantSpec { planned_share, planned_cache, .. } = change.after();
    let share = planned_share.as_ref().map(|share| format!("share {}", percent(share.share.ppb())));
    let cache = planned_cache.map(|cache| format!("cache {}", cache.rounded()));
    let all: Vec<String> = share.into_iter().chain(cache).collect();
    format!("'{}' {}", change.tenant(), if all.is_empty() { "no plan".to_owned() } else { all.join(", ") })
}

/// The curves of tenants that have one.
async fn curves(thread: Arc<DiskHandle>, curved: Vec<Curved>) -> BTreeMap<Name, CurveEvidence> {
    let mut curves = BTreeMap::new();
    for (tenant, volume) in curved {
        if let Ok(Report::Curve(view)) = thread.command(Command::Curve(volume, None)).await {
            let points = points(&view);
            if !points.is_empty() {
                let curve = CurveEvidence { block_reads: view.reads, block_writes: view.writes, points };
                curves.insert(tenant, curve);
            }
        }
    }
    curves
}

fn part(ppb: u64) -> f64 {
    ppb as f64 / Share::ONE.ppb() as f64
}

/// Sums of the counters of a tenant's volumes.
fn by_depth(profile: &Profile) -> Vec<DepthEvidence> {
    let view = |of: Depth| DepthEvidence { depth: of.depth, seconds: of.service_ns / SECOND as f64 };
    Depth::of_profile(profile).into_iter().map(view).collect()
}

fn load(stats: &TenantStats, snapshot: &Snapshot) -> LoadEvidence {
    let Some(of) = snapshot.counters(stats.tenant) else { return LoadEvidence::default() };
    let (seconds, disk) = (|ns: f64| ns / SECOND as f64, &of.disk);
    let mut load = LoadEvidence {
        reads: of.reads.count as u64,
        read_seconds: seconds(of.reads.ns),
        hits: of.hits.count as u64,
        hit_seconds: seconds(of.hits.ns),
        missed_bytes: of.missed_bytes as u64,
        writes: of.writes.count as u64,
        write_seconds: seconds(of.writes.ns),
        busy_seconds: seconds(stats.waiting_ns as f64),
        outstanding_max: of.outstanding_max,
        disk_reads: of.fills.count as u64,
        disk_service_seconds: seconds(disk.reads.device_ns),
        disk_read_seconds: seconds(disk.reads.service_ns),
        beside_writes_reads: disk.beside_writes.count as u64,
        beside_writes_service_seconds: seconds(disk.beside_writes.device_ns),
        beside_writes_read_seconds: seconds(disk.beside_writes.service_ns),
        disk_write_seconds: seconds(disk.writes_ns),
        rounds: of.rounds.count as u64,
        rounds_seconds: seconds(of.rounds.ns),
        disk_requests: of.device_requests as u64,
        disk_owned_seconds: seconds(disk.owned_ns),
        ..LoadEvidence::default()
    };
    for volume in snapshot.volumes.iter().filter(|volume| volume.tenant == stats.tenant) {
        load.read_bytes += volume.read.bytes;
        load.write_bytes += volume.write.bytes;
        load.disk_queue_seconds += seconds(volume.fills.queued_ns as f64);
        load.disk_slice_seconds += seconds(volume.fills.slice_ns as f64);
    }
    load
}

fn frames_of(bytes: u64) -> u64 {
    bytes.max(LEAST_BYTES) / FRAME_BYTES
}

impl Running {
    /// A served volume of each tenant.
    fn curved(&self) -> Vec<Curved> {
        let served = |tenant: Name| {
            let id = self.members(&tenant).find_map(|(volume, _)| self.volumes.get(volume)?.id())?;
            Some((tenant, id))
        };
        self.tenant_names().into_iter().filter(|name| !name.is_of_stores()).filter_map(served).collect()
    }

    fn stats_of<'a>(&self, tenant: &Name, snapshot: &'a Snapshot) -> Option<&'a TenantStats> {
        let id = self.tenants.get(tenant)?.id;
        snapshot.tenants.iter().find(|stats| stats.tenant == id)
    }

    fn volumes_of(&self, tenant: &Name, snapshot: &Snapshot) -> Vec<VolumeEvidence> {
        let is_demoting = |name: &Name| {
            let id = self.volumes.get(name)?.id()?;
            let stats = snapshot.volumes.iter().find(|stats| stats.volume == id)?;
            Some(stats.upstreams.iter().any(|upstream| upstream.is_demoting))
        };
        let gateway = |name: &Name| Some(self.volumes.get(name)?.sessions()?.shown()?.claim.client);
        let view = |(name, spec): (&Name, &crate::store::Spec)| VolumeEvidence {
            volume: name.to_string(),
            uuid: spec.uuid,
            from: spec.exports().map(|export| export.volume).collect(),
            shared: spec.upstream.as_ref().is_some_and(|remote| remote.shared),
            gateway: gateway(name),
            tiers: if is_demoting(name) == Some(true) { Tiers::Demote } else { Tiers::Lru },
        };
        self.members(tenant).map(view).collect()
    }

    /// Frames that may be planned beyond what is requested, if all tenants whose cache is handed to the planner get a
    /// plan: as the engine grants them.
    fn plannable_frames(&self, snapshot: &Snapshot) -> u64 {
        let (mut floors, mut without, mut floors_without, mut others) = (0, 0, 0, Vec::new());
        for (name, tenant) in &self.tenants {
            let spec = self.allotment(name);
            let stats = snapshot.tenants.iter().find(|stats| stats.tenant == tenant.id);
            let kept = stats.and_then(|stats| stats.sizing).map_or(0, |sizing| sizing.kept_bytes);
            let floor = match (spec.cache, spec.auto_cache) {
                (Some(asked), _) => frames_of(asked.0),
                (None, true) => frames_of(0),
                (None, false) if name.is_of_stores() => frames_of(engine::control::STORE_CACHE_BYTES),
                (None, false) => frames_of(kept),
            };
            floors += floor;
            if spec.cache.is_none() && !name.is_of_stores() {
                (without, floors_without) = (without + 1, floors_without + floor);
                others.extend((!spec.auto_cache).then_some(floor));
            }
        }
        let spare = snapshot.frames.saturating_sub(floors);
        let even = (spare + floors_without).checked_div(without).unwrap_or(0);
        let kept: u64 = others.iter().map(|floor| even.saturating_sub(*floor)).sum();
        spare.saturating_sub(kept)
    }

    /// The specification of a tenant with a plan.
    fn planned(
        &self,
        planned: &PlannedTenant,
        before: &TenantSpec,
        fixed_shares: Option<&str>,
    ) -> Result<TenantSpec, Error> {
        let (tenant, disk) = (&planned.tenant, &planned.disk);
        let not_handed =
            |what| Error::from(AllocationError::NotHanded { tenant: tenant.clone(), disk: disk.clone(), what });
        let below = |what, planned: String, asked: String| {
            let (tenant, disk) = (tenant.clone(), disk.clone());
            Error::from(AllocationError::BelowRequest { tenant, disk, what, planned, asked })
        };
        let mut after = before.clone();
        if let Some(share) = &planned.share {
            if self.is_remote(tenant) {
                return Err(Invalid::PromiseOfRemote(tenant.clone()).into());
            }
            if !before.auto_share && before.share.is_none() || tenant.is_of_stores() {
                return Err(not_handed("share"));
            }
            after.planned_share = share.clone().value();
            if let (Some(why), Some(_)) = (fixed_shares, &after.planned_share) {
                return Err(AllocationError::FixedShares { disk: disk.clone(), why: why.into() }.into());
            }
            if let (Some(asked), Some(share)) = (&before.share, &after.planned_share)
                && share.share.ppb() < asked.share.ppb()
            {
                return Err(below("share", share.to_string(), asked.to_string()));
            }
            if before.auto_share
                && before.min_bandwidth.is_some()
                && let Some(share) = &after.planned_share
                && let Some(least) = Shares::unplanned(self.allotments()).effective_ppb(tenant)
                && share.share.ppb() + SHARE_ROUNDING_PPB < least
            {
                let (tenant, disk) = (tenant.clone(), disk.clone());
                let (planned, least) = (share.to_string(), percent(least));
                return Err(AllocationError::BelowGuarantee { tenant, disk, planned, least }.into());
            }
        }
        if let Some(cache) = &planned.cache {
            if !before.auto_cache && before.cache.is_none() || tenant.is_of_stores() {
                return Err(not_handed("cache"));
            }
            after.planned_cache = cache.clone().value();
            if let (Some(asked), Some(cache)) = (before.cache, after.planned_cache)
                && cache < asked
            {
                return Err(below("cache", cache.to_string(), asked.to_string()));
            }
        }
        Ok(after)
    }

    /// Refuses plans that do not fit on the disk.
    fn check_allocation(&self, disk: &Name, snapshot: &Snapshot) -> Result<(), Error> {
        let allotments = self.allotments();
        let planned_ppb: u64 = allotments.values().filter_map(TenantSpec::planned_ppb).sum();
        let count = allotments.len() as u64;
        let free_ppb = (Shares::plannable(allotments) * Share::ONE.ppb() as f64) as u64;
        if planned_ppb > free_ppb + count * SHARE_ROUNDING_PPB {
            return Err(AllocationError::Shares { disk: disk.clone(), planned_ppb, free_ppb }.into());
        }
        let beyond = |spec: TenantSpec| {
            let asked = frames_of(spec.cache.map_or(0, |asked| asked.0));
            spec.planned_cache.map_or(0, |planned| frames_of(planned.0).saturating_sub(asked))
        };
        let planned: u64 = self.tenants.keys().map(|tenant| beyond(self.allotment(tenant))).sum();
        let free = self.plannable_frames(snapshot);
        // Each size is rounded to frames, and so is what was requested.
        if planned > free + self.tenants.len() as u64 {
            let [planned, free] = [planned, free].map(|frames| Size(frames * FRAME_BYTES));
            return Err(AllocationError::Caches { disk: disk.clone(), planned, free }.into());
        }
        Ok(())
    }
}
