//! What a cluster needs of this server: its disk, and the parts of the cluster's volumes on it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::control::{Command, Refusal};
use engine::disk::policy::Settings;
use engine::ids::TenantId;
use engine::units::{Nanos, Share};
use uuid::Uuid;

use super::error::PartError;
use super::show::SNAPSHOT_TIMEOUT;
use super::view::{CreateVolume, GrowVolume, SetVolume, Setting};
use super::volumes::{Role, refused, which_disk};
use super::{Control, Error, Kind, Running, blocking, refusal, with_files};
use crate::access::Access;
use crate::disk_thread::DiskHandle;
use crate::quantity::{Name, OrAuto, ShareText, Size};
use crate::store::spec::Part;
use crate::store::{TenantSpec, file};

/// The time limit for reading a file system's free space.
const SPACE_TIMEOUT: Duration = Duration::from_secs(2);

/// The disk that follows the schedule of a cluster.
#[derive(Debug, Default)]
pub(super) struct Scheduled {
    disk: Option<Name>,
    /// Parts that are being created or changed: their shares have a place.
    creating: BTreeSet<Name>,
}

/// What a cluster knows of a server's disk.
#[derive(Clone, PartialEq, Debug)]
pub struct DiskFacts {
    /// Its UUID.
    pub uuid: Uuid,
    /// Its size, bytes.
    pub size_bytes: u64,
    /// Its free space, bytes.
    pub free_bytes: u64,
    /// Time that a context switch takes.
    pub switch_ns: Nanos,
    /// R, thousandths.
    pub insulation_permille: u32,
    /// Its longest round.
    pub round_max_ns: Nanos,
}

/// A disk that follows a schedule.
#[derive(Clone, Debug)]
pub struct Follower {
    /// Its UUID.
    pub uuid: Uuid,
    /// The number of each of its tenants.
    pub tenants: BTreeMap<Name, TenantId>,
    /// The thread that these numbers are for.
    pub thread: Weak<DiskHandle>,
}

/// A part on the disk.
#[derive(Clone, Debug)]
pub struct PartFacts {
    /// What it is a part of.
    pub part: Part,
    /// Whether clients can open it, or could if it were committed.
    pub is_served: bool,
    /// The share of its tenant.
    pub share: Option<Share>,
}

impl Control {
    /// The disk that takes part in a cluster: the named one, or the only one with volumes of its own. Or why there is
    /// none.
    pub fn cluster_disk(&self, named: Option<&Name>) -> Result<Name, String> {
        let state = self.state();
        let name = match named {
            Some(name) if state.disks.contains_key(name) => name.clone(),
            Some(name) => {
                return Err(format!("there is no disk '{name}': add it with `aerogel disk add {name} PATH`"));
            }
            None => {
                let has_own = |running: &Running| {
                    let specs = || running.volumes.values().filter_map(|volume| volume.spec.as_ref());
                    specs().next().is_none() || specs().any(|spec| spec.upstream.is_none() && !spec.store)
                };
                let is_possible = |disk: &super::Disk| disk.state.as_ref().is_ok_and(has_own) || disk.state.is_err();
                let possible: Vec<&Name> =
                    state.disks.iter().filter(|(_, disk)| is_possible(disk)).map(|(name, _)| name).collect();
                match possible[..] {
                    [only] => only.clone(),
                    [] => return Err("it has no disk: add one with `aerogel disk add NAME PATH`".into()),
                    _ => {
                        let names: Vec<&str> = possible.iter().map(|name| name.as_str()).collect();
                        return Err(format!(
                            "it has several disks ({}): name one with --cluster-disk",
                            names.join(", ")
                        ));
                    }
                }
            }
        };
        let running = state.disk(&name).map_err(|error| error.to_string())?;
        let chosen = self.chosen(&name, &running.store);
        if !chosen.has_slices() {
            return Err(format!(
                "disk '{name}' has no slices ({}, {}): `aerogel disk probe {name}` measures it, `aerogel disk set \
                 {name} --policy insulated` gives it slices",
                chosen.name, chosen.reason
            ));
        }
        running.check_promises_of_cluster(&name)?;
        Ok(name)
    }

    /// What a cluster knows of a disk.
    pub async fn cluster_facts(&self, disk: &Name) -> Result<DiskFacts, String> {
        let (uuid, settings, simulated, directory) = {
            let state = self.state();
            let running = state.disk(disk).map_err(|error| error.to_string())?;
            let settings = self.chosen(disk, &running.store).settings;
            let simulated = running.simulated_view().map(|drive| (drive.size_bytes, drive.free_bytes));
            (running.store.identity.uuid, settings, simulated, running.store.directory().to_owned())
        };
        let space = match simulated {
            Some(space) => Some(space),
            None => {
                let space = tokio::time::timeout(SPACE_TIMEOUT, blocking(move || file::space(&directory)));
                space.await.ok().and_then(Result::ok).flatten()
            }
        };
        let (size_bytes, free_bytes) = space
            .ok_or_else(|| format!("the free space of disk '{disk}' is not known: its file system does not answer"))?;
        let Settings { switch_ns, insulation_permille, round_max_ns, .. } = settings;
        Ok(DiskFacts { uuid, size_bytes, free_bytes, switch_ns, insulation_permille, round_max_ns })
    }

    /// From now on this disk refuses promises that have no place in the schedule.
    pub fn set_scheduled(&self, disk: Name) {
        self.scheduled().disk = Some(disk);
    }

    /// Whether this disk, or the one that is meant without a name, follows the schedule of a cluster.
    pub fn is_scheduled(&self, named: Option<&Name>) -> bool {
        let disk = which_disk(&self.state(), named).ok();
        disk.is_some() && self.scheduled().disk == disk
    }

    /// Whether a volume is a part of a cluster's volume.
    pub fn is_part(&self, name: &Name) -> bool {
        let state = self.state();
        state.find(name).is_ok_and(|(_, volume)| volume.spec.as_ref().is_some_and(|spec| spec.cluster.is_some()))
    }

    /// Whether a volume is a part that was given up.
    pub fn is_lost_part(&self, name: &Name) -> bool {
        let state = self.state();
        let part = |volume: &super::Volume| volume.spec.as_ref().and_then(|spec| Some(spec.cluster.as_ref()?.lost));
        state.find(name).is_ok_and(|(_, volume)| part(volume) == Some(true))
    }

    fn scheduled(&self) -> std::sync::MutexGuard<'_, Scheduled> {
        self.scheduled.lock().expect("nobody panics while holding it")
    }

    /// Refuses a change of what a tenant is promised on a disk that follows a schedule.
    pub(super) fn check_schedule(
        &self,
        disk: &Name,
        tenant: &Name,
        (before, after): (&TenantSpec, &TenantSpec),
    ) -> Result<(), Error> {
        let scheduled = self.scheduled();
        if scheduled.disk.as_ref() != Some(disk) || tenant.is_of_stores() {
            return Ok(());
        }
        if after.min_bandwidth.is_some() {
            return Err(PartError::Guarantee { disk: disk.clone(), tenant: tenant.clone() }.into());
        }
        let is_same = before.share.as_ref().map(|it| it.share) == after.share.as_ref().map(|it| it.share);
        match is_same || scheduled.creating.contains(tenant) {
            true => Ok(()),
            false => Err(PartError::Share { disk: disk.clone(), tenant: tenant.clone() }.into()),
        }
    }

    /// The parts of the cluster's volumes on a disk. An error if the specification of a volume cannot be read, since it
    /// may be one.
    pub fn parts(&self, disk: &Name) -> Result<BTreeMap<Name, PartFacts>, String> {
        let state = self.state();
        let running = state.disk(disk).map_err(|error| error.to_string())?;
        let mut parts = BTreeMap::new();
        for (name, volume) in &running.volumes {
            let Some(spec) = &volume.spec else {
                return Err(format!("the specification of volume '{name}' on disk '{disk}' cannot be read"));
            };
            if let Some(part) = &spec.cluster {
                let share = running.allotment(name).share.map(|share| share.share);
                parts.insert(name.clone(), PartFacts { part: part.clone(), is_served: volume.id().is_some(), share });
            }
        }
        Ok(parts)
    }

    /// Creates a part, which clients cannot open yet. One that is there already is enough.
    pub async fn create_part(&self, request: CreateVolume, part: Part) -> Result<(), Error> {
        let name = request.name.clone();
        let is_there = {
            let state = self.state();
            let found = state.find(&name).ok().and_then(|(_, volume)| volume.spec.clone()?.cluster);
            found.is_some_and(|found| found.volume == part.volume)
        };
        if is_there {
            return Ok(());
        }
        self.scheduled().creating.insert(name.clone());
        let created = self.create(request, Role::Part(part)).await;
        self.scheduled().creating.remove(&name);
        created.map(drop)
    }

    /// The volume of a part is complete: clients can open it from now on.
    pub async fn commit_part(&self, name: &Name) -> Result<(), Error> {
        self.change_part(name, |part| part.committed = true).await
    }

    /// The cluster has given a part up: no client can open it from now on, and those that have it open are
    /// disconnected.
    pub async fn give_up_part(&self, name: &Name) -> Result<(), Error> {
        self.change_part(name, |part| part.lost = true).await?;
        let restricted = {
            let state = self.state();
            let (disk, volume) = state.find(name)?;
            let nobody = Access::try_from(vec!["nobody".to_owned()]).expect("a rule");
            let thread = &state.disk(&disk)?.thread;
            volume.id().map(|id| thread.restrict(id, nobody, true))
        };
        match restricted {
            Some(restricted) => refusal(restricted.await).map_err(|refusal| refused(name, refusal)),
            None => Ok(()),
        }
    }

    /// Changes what a volume is a part of, durably.
    async fn change_part(&self, name: &Name, change: impl FnOnce(&mut Part)) -> Result<(), Error> {
        let (_turn, disk) = self.change_volume(name).await?;
        let (store, before) = {
            let state = self.state();
            let (_, volume) = state.find(name)?;
            let spec = volume.spec.clone().ok_or(Error::NoSpec)?;
            (state.disk(&disk)?.store.clone(), spec)
        };
        let mut after = before.clone();
        if let Some(part) = &mut after.cluster {
            change(part);
        }
        if after == before {
            return Ok(());
        }
        let written = after.clone();
        with_files(&store, name, move |files| files.change(&before, &written)).await??;
        self.set_spec(&disk, name, &after);
        Ok(())
    }

    /// A part gets the share of its volume, and its size: here, and of the whole.
    pub async fn update_part(&self, name: &Name, share: ShareText, sizes: (u64, u64)) -> Result<(), Error> {
        let (here, whole) = sizes;
        let (has_share, has_size) = {
            let state = self.state();
            let (disk, volume) = state.find(name)?;
            let spec = volume.spec.as_ref().ok_or(Error::NoSpec)?;
            (state.disk(&disk)?.allotment(name).share, spec.size)
        };
        if has_share.map(|has| has.share) != Some(share.share) {
            self.scheduled().creating.insert(name.clone());
            let request =
                SetVolume { share: Some(Setting::To(OrAuto::To(share))), overcommit: true, ..SetVolume::default() };
            let changed = self.set_volume(name, request).await;
            self.scheduled().creating.remove(name);
            changed?;
        }
        if has_size < here {
            self.grow(name, GrowVolume { size: Some(Size(here)) }).await?;
        }
        self.change_part(name, |part| part.size = whole).await
    }

    /// Deletes the part of this volume and disconnects its clients: the cluster has decided so. By now, another volume
    /// may have its name.
    pub async fn delete_part(&self, name: &Name, volume: Uuid) -> Result<(), Error> {
        let (_turn, _) = self.change_volume(name).await?;
        let found =
            self.state().find(name).ok().and_then(|(_, volume)| Some(volume.spec.as_ref()?.cluster.as_ref()?.volume));
        if found != Some(volume) {
            return Err(Error::Unknown(Kind::Volume, name.clone()));
        }
        self.delete_now(name, true, false).await.map(drop)
    }

    /// The open connections to a volume; an error if its disk does not answer.
    pub async fn connections_to(&self, name: &Name) -> Result<u32, Error> {
        let (disk, id) = self.state().find(name).map(|(disk, volume)| (disk, volume.id()))?;
        let Some(id) = id else { return Ok(0) };
        let unanswered = || Error::Unanswered("the disk", SNAPSHOT_TIMEOUT.as_secs());
        let snapshot = self.snapshot(&disk).await.ok_or_else(unanswered)?;
        let stats = snapshot.volumes.iter().find(|stats| stats.volume == id);
        Ok(stats.map_or(0, |stats| stats.connections))
    }

    /// A disk that follows a schedule.
    pub fn follower(&self, disk: &Name) -> Option<Follower> {
        let state = self.state();
        let running = state.disk(disk).ok()?;
        let tenants = running.tenants.iter().map(|(name, tenant)| (name.clone(), tenant.id)).collect();
        Some(Follower { uuid: running.store.identity.uuid, tenants, thread: Arc::downgrade(&running.thread) })
    }

    /// The shortest slice with which each tenant of a disk keeps R, of those that are backlogged; `None` if the disk
    /// does not answer.
    pub async fn needs(&self, disk: &Name) -> Option<BTreeMap<Name, Nanos>> {
        let snapshot = self.snapshot(disk).await?;
        let state = self.state();
        let tenants = state.disk(disk).ok()?.tenants.iter();
        let need_ns = |id: TenantId| snapshot.tenants.iter().find(|stats| stats.tenant == id)?.plan?.need_ns;
        Some(tenants.filter_map(|(name, tenant)| Some((name.clone(), need_ns(tenant.id)?))).collect())
    }

    /// Gives a disk's engine a command.
    pub async fn command_disk(&self, disk: &Name, command: Command) -> Result<(), Refusal> {
        let told = match self.state().disk(disk) {
            Ok(running) => running.thread.command(command),
            Err(_) => return Ok(()),
        };
        refusal(told.await)
    }

    /// Refuses to change a part of a cluster's volume alone.
    pub(super) fn refuse_part(&self, name: &Name, doing: &'static str) -> Result<(), Error> {
        let state = self.state();
        let Ok((_, volume)) = state.find(name) else { return Ok(()) };
        match volume.spec.as_ref().and_then(|spec| spec.cluster.as_ref()) {
            Some(part) => Err(PartError::Part { volume: name.clone(), cluster: part.cluster.clone(), doing }.into()),
            None => Ok(()),
        }
    }

    /// Whether a name is that of a volume of this server, whatever its state.
    pub fn has_volume(&self, name: &Name) -> bool {
        !matches!(self.state().find(name), Err(Error::Unknown(Kind::Volume, _)))
    }
}

impl Running {
    /// Whether a tenant is that of a part of a volume of a cluster.
    pub(super) fn has_part(&self, tenant: &Name) -> bool {
        self.members(tenant).any(|(_, spec)| spec.cluster.is_some())
    }

    /// Promises that have no place in a schedule.
    fn check_promises_of_cluster(&self, disk: &Name) -> Result<(), String> {
        let promised = |(tenant, spec): &(&Name, &TenantSpec)| {
            (spec.share.is_some() || spec.min_bandwidth.is_some()) && !tenant.is_of_stores() && !self.has_part(tenant)
        };
        match self.promises().find(promised) {
            Some((tenant, _)) => Err(format!(
                "tenant '{tenant}' has a share or a guarantee on disk '{disk}' that has no place in the schedule: \
                 `aerogel tenant set {tenant} --disk {disk} --share none --min-bandwidth none`, or name another disk \
                 with --cluster-disk"
            )),
            None => Ok(()),
        }
    }
}
