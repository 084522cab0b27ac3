//! Changes that users ask for: volumes are created and deleted, servers drained. A change is proposed in etcd, and then
//! waited for: any server completes it (`decide.rs`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use engine::control::STRIPE_UNITS;
use tokio::time::{Instant, timeout, timeout_at};
use uuid::Uuid;

use super::decide::silent;
use super::etcd::{Etcd, EtcdError};
use super::failpoint::failpoint;
use super::place::{Candidate, Known, LEAST_DEFAULT, Placed, Wish, without};
use super::records::{Alive, Change, Image, Schedule, Volume, What};
use super::view::{ClusterPlanView, SlotView};
use super::{Cluster, ClusterError};
use crate::control::view::{CreateVolume, Done};
use crate::control::{Error, Kind};
use crate::quantity::{Name, OrAuto, ShareText, Size, duration};
use crate::store::remote::STRIPE_UNIT_DEFAULT;
use crate::store::spec::{Allocation, check_size};

/// Between two attempts to begin a change while another one is being made.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// How long the answer waits, after the commit, until all servers serve their parts.
const SERVED_TIMEOUT: Duration = Duration::from_secs(3);
/// How much longer than the change itself its outcome is waited for.
const GRACE: Duration = Duration::from_secs(5);

/// A volume as it would be created.
struct Planned {
    volume: Volume,
    schedule: Schedule,
}

impl Cluster {
    /// Whether a volume that is to be created takes part in the schedule.
    pub fn concerns(&self, request: &CreateVolume) -> bool {
        let is_local = request.from.is_some() || request.device.is_some() || request.tenant.is_some();
        let on_disk = || self.control.is_scheduled(request.disk.as_ref());
        request.is_of_cluster() || request.share.is_some() && !is_local && on_disk()
    }

    /// Whether a volume of this name is the cluster's.
    pub fn has(&self, name: &Name) -> bool {
        let is_known = self.image().is_some_and(|image| image.volumes.contains_key(name));
        is_known || self.control.is_part(name)
    }

    pub(super) fn joined(&self) -> Result<Etcd, ClusterError> {
        let etcd = self.etcd()?;
        let cluster = || self.settings.cluster.clone();
        self.state().standing.clone().map_err(|why| ClusterError::NotJoined { cluster: cluster(), why })?;
        Ok(etcd)
    }

    /// What would be created. Nothing changes.
    pub async fn plan(&self, request: CreateVolume) -> Result<ClusterPlanView, ClusterError> {
        let etcd = self.joined()?;
        let image = etcd.image().await.map_err(down)?;
        let planned = self.planned(&image, &request).await?;
        Ok(self.planned_view(&request.name, &planned))
    }

    fn planned_view(&self, name: &Name, Planned { volume, schedule }: &Planned) -> ClusterPlanView {
        let slot = schedule.slots.iter().find(|slot| slot.volume == *name).expect("it has a slot");
        let message = format!(
            "volume '{name}' would be on {}, {} on each, with a share of {}; R of the cluster would be {:.3}, its \
             slice {} of each round of {}",
            on(&volume.servers),
            Size(volume.member_size).rounded(),
            volume.share,
            schedule.r_cluster,
            duration(slot.length_ns as f64 / 1e9),
            duration(schedule.round_ns as f64 / 1e9)
        );
        ClusterPlanView {
            message,
            servers: volume.servers.iter().map(Name::to_string).collect(),
            member_bytes: volume.member_size,
            stripe_bytes: volume.stripe,
            r_cluster: schedule.r_cluster,
            round_ns: schedule.round_ns,
            slot: SlotView::of(slot),
        }
    }

    /// Creates a volume on the servers that suit it best. If this fails, nothing remains.
    pub async fn create(&self, request: CreateVolume) -> Result<Done, ClusterError> {
        let name = request.name.clone();
        let until = Instant::now() + self.settings.change_timeout;
        loop {
            let etcd = self.joined()?;
            let image = etcd.image().await.map_err(down)?;
            let planned = match other_change(&image) {
                Some(other) if Instant::now() > until => return Err(ClusterError::Changing(other)),
                Some(_) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                None => self.planned(&image, &request).await?,
            };
            let servers =
                planned.volume.servers.iter().chain(planned.schedule.slots.iter().flat_map(|slot| &slot.servers));
            // Where nothing moves, servers that do not run need not agree.
            let runs = |server: &&Name| image.alive.contains_key(*server);
            let servers: BTreeSet<Name> = servers.filter(runs).cloned().collect();
            let what = What::Create { volume: planned.volume.clone(), request: Box::new(request.clone()) };
            let proposed = self.propose(&etcd, &image, (&name, what), planned.schedule.clone(), servers).await?;
            // Somebody else was faster.
            let Some((change, revision)) = proposed else { continue };
            self.completed(&change, revision, "created").await?;
            self.served(&name, &planned.volume, planned.schedule.version).await;
            return Ok(self.created(&name, &planned).await);
        }
    }

    async fn created(&self, name: &Name, Planned { volume, schedule }: &Planned) -> Done {
        let slot = schedule.slots.iter().find(|slot| slot.volume == *name).expect("it has a slot");
        let parts = match volume.is_striped() {
            true => format!("; each has an export '{name}' of {}", Size(volume.member_size).rounded()),
            false => String::new(),
        };
        let message = format!(
            "volume '{name}' of {} can be opened on {}{parts}; its slice is {} of each round of {}, R of the cluster \
             is {:.3}",
            Size(volume.size),
            on(&volume.servers),
            duration(slot.length_ns as f64 / 1e9),
            duration(schedule.round_ns as f64 / 1e9),
            schedule.r_cluster
        );
        Done { message, volume: self.control.show_volume(name).await.ok(), disk: None, tenant: None }
    }

    /// Deletes a volume on all its servers. With `force` even if clients are connected; and servers that do not run
    /// delete their part when they are back.
    pub async fn delete(&self, name: &Name, force: bool) -> Result<Done, ClusterError> {
        if self.control.is_lost_part(name) {
            return match force {
                true => Ok(self.control.delete_volume(name, true).await?),
                false => Err(ClusterError::LostPart(name.clone())),
            };
        }
        let until = Instant::now() + self.settings.change_timeout;
        loop {
            let etcd = self.joined()?;
            let image = etcd.image().await.map_err(down)?;
            match other_change(&image) {
                Some(other) if Instant::now() > until => return Err(ClusterError::Changing(other)),
                Some(_) => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                None => {}
            }
            let Some(volume) = image.volumes.get(name) else {
                // A part that the cluster does not know: it says how to remove it.
                return Ok(self.control.delete_volume(name, force).await?);
            };
            if volume.deleting {
                return Err(ClusterError::Deleting(name.clone(), waits_for(&image, volume)));
            }
            let schedule = without(&image.schedule(), name);
            let schedule = Schedule { version: image.next_version(), ..schedule };
            let named = volume.holders().chain(schedule.slots.iter().flat_map(|slot| &slot.servers));
            let (here, away): (BTreeSet<Name>, BTreeSet<Name>) =
                named.cloned().partition(|server| image.alive.contains_key(server));
            if let Some(away) = away.first().filter(|_| !force) {
                return Err(ClusterError::Away(away.clone()));
            }
            let what = What::Delete { uuid: volume.uuid, force };
            let proposed = self.propose(&etcd, &image, (name, what), schedule, here).await?;
            let Some((change, revision)) = proposed else { continue };
            self.completed(&change, revision, "deleted").await?;
            let later: Vec<Name> = volume.holders().filter(|server| away.contains(*server)).cloned().collect();
            let message = match (&later[..], self.gone(name, volume, &later).await) {
                ([], None) => format!("volume '{name}' is deleted on {}", on(&volume.servers)),
                (_, None) => format!("volume '{name}' is deleted; {} will delete its part when it is back", on(&later)),
                (_, Some(left)) => format!("volume '{name}' is deleted; {left} has not deleted its part yet"),
            };
            return Ok(Done { message, volume: None, disk: None, tenant: None });
        }
    }

    /// From now on a server gets no new volumes; or it does again. One that does not run and has no volumes is removed.
    pub async fn drain(&self, server: &Name, undo: bool) -> Result<Done, ClusterError> {
        let etcd = self.etcd()?;
        if !undo && self.removed(&etcd, server).await? {
            let message = format!("server '{server}' does not run and has no volumes: it is removed from the cluster");
            return Ok(Done { message, volume: None, disk: None, tenant: None });
        }
        let key = format!("draining/{server}");
        let mark = if undo { etcd.remove(&key) } else { etcd.put(&key, &serde_json::json!({}), None) };
        let marked = etcd.transact(vec![etcd.exists(&format!("members/{server}"))], vec![mark]).await.map_err(down)?;
        let Some(revision) = marked else {
            return Err(ClusterError::NoServer(server.clone()));
        };
        self.seen(revision).await;
        let image = etcd.image().await.map_err(down)?;
        let volumes: Vec<&str> =
            image.volumes_of(server).filter(|(_, it)| !it.deleting).map(|(name, _)| name.as_str()).collect();
        let message = match (undo, volumes.is_empty()) {
            (true, _) => format!("server '{server}' gets new volumes again"),
            (false, true) => format!(
                "server '{server}' gets no new volumes, and has none: once it is stopped, another one may take its name"
            ),
            (false, false) => format!(
                "server '{server}' gets no new volumes; it still has {}: copy them to other volumes and delete them \
                 before it leaves",
                volumes.join(", ")
            ),
        };
        Ok(Done { message, volume: None, disk: None, tenant: None })
    }

    /// Removes a server that does not run and has no volumes, and says whether it was one.
    pub(super) async fn removed(&self, etcd: &Etcd, server: &Name) -> Result<bool, ClusterError> {
        let image = etcd.image().await.map_err(down)?;
        let is_known = image.members.contains_key(server);
        if !is_known || image.alive.contains_key(server) || image.volumes_of(server).next().is_some() {
            return Ok(false);
        }
        // The change in progress may place a volume on this server.
        if let Some(other) = other_change(&image) {
            return Err(ClusterError::Changing(other));
        }
        let keys = ["members", "draining", "versions"].map(|of| etcd.remove(&format!("{of}/{server}")));
        let when = [format!("alive/{server}"), "change".into()].map(|key| etcd.unchanged(&image, &key)).into();
        let removed = etcd.transact(when, keys.into()).await.map_err(down)?;
        if let Some(revision) = removed {
            self.seen(revision).await;
        }
        Ok(removed.is_some())
    }

    /// Waits, for [`GRACE`] at most, until `status` shows this revision of etcd. A server learns of changes from a
    /// watch, which may come later than etcd's answer to the change itself.
    async fn seen(&self, revision: i64) {
        let is_seen = |image: &Option<Arc<Image>>| image.as_ref().is_some_and(|image| image.revision >= revision);
        let mut images = self.image.subscribe();
        let _ = timeout(GRACE, images.wait_for(is_seen)).await;
    }

    /// Servers and a schedule for a request.
    async fn planned(&self, image: &Image, request: &CreateVolume) -> Result<Planned, ClusterError> {
        let (share, size, stripe) = self.checked(request)?;
        let name = &request.name;
        match image.volumes.get(name) {
            Some(volume) if volume.deleting => {
                return Err(ClusterError::Deleting(name.clone(), waits_for(image, volume)));
            }
            Some(_) => return Err(ClusterError::Exists(name.clone())),
            None if self.control.has_volume(name) => return Err(Error::Exists(Kind::Volume, name.clone()).into()),
            None => {}
        }
        // Without a word on servers, it is a volume of this one.
        let given = match (request.servers, &request.on[..]) {
            (None, []) => vec![self.settings.name.clone()],
            (_, given) => given.to_vec(),
        };
        let servers = request.servers.map_or(given.len(), |servers| servers as usize);
        let member_size = member_size(size, servers as u64, stripe);
        let needed = if request.allocation == Allocation::Sparse { 0 } else { member_size };
        let candidates = candidates(image, name, (&given, servers), needed)?;
        let least = request.least.unwrap_or(LEAST_DEFAULT);
        let (volume_name, is_given) = (name.clone(), !given.is_empty());
        let wish = Wish { volume: volume_name, servers, share: share.clone(), least, is_given };
        let known = Known::new(image).map_err(|why| ClusterError::Invalid(why.to_string()))?;
        let present = image.schedule();
        let retimed_ns = present.retimed_ns;
        let mut named = present.slots.iter().flat_map(|slot| &slot.servers);
        let away = named.find(|server| !image.alive.contains_key(*server)).cloned();
        let placed = tokio::task::spawn_blocking(move || match away {
            Some(away) => known.place_beside((&present, away), &candidates, &wish),
            None => known.place(&candidates, &wish),
        });
        let placed = placed.await.map_err(Error::Task)?.map_err(|why| ClusterError::no_place(name, why))?;
        let Placed { servers, schedule } = placed;
        let schedule = Schedule { version: image.next_version(), retimed_ns, ..schedule };
        let volume = Volume {
            uuid: Uuid::new_v4(),
            size,
            member_size,
            stripe,
            share,
            servers,
            deleting: false,
            lost: Vec::new(),
        };
        Ok(Planned { volume, schedule })
    }

    /// Refuses what a volume of a cluster cannot have. Returns its share, its size and its stripe.
    fn checked(&self, request: &CreateVolume) -> Result<(ShareText, u64, u64), ClusterError> {
        let name = &request.name;
        let wrong = |why: &str| Err(ClusterError::Invalid(format!("volume '{name}' of the cluster: {why}")));
        let named = [
            (request.device.is_some(), "its parts are files of the servers' disks: leave out --device"),
            (request.from.is_some(), "its parts are files of the servers' disks: leave out --from"),
            (request.tenant.is_some(), "it is a tenant of its own: leave out --tenant"),
            (request.policy.is_some(), "it has a share of its own: name it with --share instead of --policy"),
            (request.min_bandwidth.is_some(), "a schedule has no guarantees: leave out --min-bandwidth, set --share"),
            (request.like.is_some(), "each server finds the cache that it needs: leave out --like"),
            (request.overcommit, "a schedule has no place for more than there is: leave out --overcommit, see --least"),
            (
                request.allocation == Allocation::Full,
                "zeros are written while the disks are idle: leave out --prealloc",
            ),
        ];
        if let Some((_, why)) = named.iter().find(|(is_named, _)| *is_named) {
            return wrong(why);
        }
        let Some(share) = request.share.clone().and_then(OrAuto::value) else {
            return wrong("its share is missing: --share S");
        };
        let Some(Size(size)) = request.size else { return wrong("its size is missing") };
        check_size(size).map_err(|why| ClusterError::Invalid(why.to_string()))?;
        if request.servers == Some(0) {
            return wrong("it is on at least one server: --servers N");
        }
        if !request.on.is_empty() && request.servers.is_some_and(|servers| servers as usize != request.on.len()) {
            return wrong("--servers and --on name different numbers of servers: leave out one of them");
        }
        if request.on.iter().enumerate().any(|(at, server)| request.on[..at].contains(server)) {
            return wrong("--on names a server twice: each has one part");
        }
        if request.least.is_some_and(|least| !(least > 0.0 && least <= 1.0)) {
            return wrong("R of a cluster is more than 0 and at most 1: --least R");
        }
        if let Some(disk) = request.disk.as_ref().filter(|disk| !self.control.is_scheduled(Some(disk))) {
            return wrong(&format!("disk '{disk}' takes no part in it: leave out --disk"));
        }
        let stripe = request.stripe.unwrap_or(STRIPE_UNIT_DEFAULT).0;
        if !stripe.is_power_of_two() || !STRIPE_UNITS.contains(&stripe) {
            return Err(ClusterError::Stripe(Size(stripe)));
        }
        Ok((share, size, stripe))
    }

    /// Begins a change; `None` if another one was faster, or one of its servers is away.
    pub(super) async fn propose(
        &self,
        etcd: &Etcd,
        image: &Image,
        (volume, what): (&Name, What),
        schedule: Schedule,
        servers: BTreeSet<Name>,
    ) -> Result<Option<(Change, i64)>, Unproposed> {
        let lease = etcd.lease(self.settings.change_timeout).await.map_err(Unproposed::Never)?;
        let change = Change { id: Uuid::new_v4(), lease, volume: volume.clone(), what, schedule, servers };
        let keys = ["change".to_owned(), "schedule".to_owned(), format!("volumes/{volume}")];
        let running = change.servers.iter().map(|server| etcd.exists(&format!("alive/{server}")));
        let when = keys.iter().map(|key| etcd.unchanged(image, key)).chain(running).collect();
        let proposed = etcd.transact(when, vec![etcd.put("change", &change, Some(lease))]).await;
        match proposed.map_err(|error| Unproposed::Perhaps(of(&change), error))? {
            Some(revision) => {
                failpoint("proposed");
                Ok(Some((change, revision)))
            }
            None => {
                etcd.end_lease(lease).await.map_err(Unproposed::Never)?;
                Ok(None)
            }
        }
    }

    /// Waits until a change is committed or undone.
    pub(super) async fn completed(
        &self,
        change: &Change,
        proposed: i64,
        doing: &'static str,
    ) -> Result<(), ClusterError> {
        let of = of(change);
        let undone = |why: String| ClusterError::Undone { of: of.clone(), doing, why };
        let until = Instant::now() + self.settings.change_timeout + GRACE;
        let mut images = self.image.subscribe();
        let mut missing = silent(change, &Default::default());
        loop {
            let image = images.borrow_and_update().clone().filter(|image| image.revision >= proposed);
            if let Some(image) = image {
                match &image.change {
                    Some(open) if open.id == change.id => missing = silent(change, &image.acks),
                    _ if is_committed(change, &image) => return Ok(()),
                    _ => {
                        let why = image.outcomes.get(&change.id).and_then(|outcome| outcome.error.clone());
                        return Err(undone(why.unwrap_or_else(|| {
                            format!("{} did not answer within {:?}", on(&missing), self.settings.change_timeout)
                        })));
                    }
                }
            }
            if timeout_at(until, images.changed()).await.is_err() {
                let why = self.etcd().err().map_or("it takes too long".into(), |error| error.to_string());
                return Err(ClusterError::Lost { of, doing, why });
            }
        }
    }

    /// Waits until all servers serve their parts of a volume as it is in this version of the schedule. Returns false if
    /// they do not within [`SERVED_TIMEOUT`].
    pub(super) async fn served(&self, name: &Name, volume: &Volume, version: u64) -> bool {
        // What a server said before it knew of the change does not count.
        let is_served = |image: &Image| {
            let knows = |it: &Alive| it.version >= version && !it.missing.contains(name);
            let serves = |server: &Name| image.alive.get(server).is_some_and(knows);
            image.volumes.get(name).is_none_or(|known| known.uuid != volume.uuid) || volume.servers.iter().all(serves)
        };
        let mut images = self.image.subscribe();
        let until = Instant::now() + SERVED_TIMEOUT;
        while !images.borrow_and_update().as_ref().is_some_and(|image| is_served(image)) {
            if timeout_at(until, images.changed()).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Waits for some time until all servers, except those that are away, have deleted their parts. Returns those that
    /// have not.
    async fn gone(&self, name: &Name, volume: &Volume, away: &[Name]) -> Option<String> {
        let mut images = self.image.subscribe();
        let until = Instant::now() + SERVED_TIMEOUT;
        let left = |image: &Image| {
            let is_there = image.volumes.get(name).is_some_and(|known| known.uuid == volume.uuid);
            let has_part = |server: &&Name| !image.gone.contains(&(volume.uuid, (*server).clone()));
            let servers = volume.holders().filter(|server| is_there && !away.contains(server));
            servers.filter(has_part).cloned().collect::<Vec<_>>()
        };
        loop {
            let left = images.borrow_and_update().as_ref().map(|image| left(image)).unwrap_or_default();
            if left.is_empty() {
                return None;
            }
            if timeout_at(until, images.changed()).await.is_err() {
                return Some(on(&left));
            }
        }
    }
}

pub(super) fn down(error: EtcdError) -> ClusterError {
    ClusterError::Etcd(error.to_string())
}

pub(super) fn other_change(image: &Image) -> Option<Name> {
    image.change.as_ref().map(|change| change.volume.clone())
}

/// Why a change may not have been proposed.
pub(super) enum Unproposed {
    /// It was not: etcd failed before.
    Never(EtcdError),
    /// etcd did not answer, so the servers may carry it out. The volume or server that it changes, in words.
    Perhaps(String, EtcdError),
}

impl From<Unproposed> for ClusterError {
    fn from(unproposed: Unproposed) -> ClusterError {
        match unproposed {
            Unproposed::Never(error) => down(error),
            Unproposed::Perhaps(of, error) => ClusterError::Lost { of, doing: "changed", why: error.to_string() },
        }
    }
}

impl From<Unproposed> for EtcdError {
    fn from(unproposed: Unproposed) -> EtcdError {
        match unproposed {
            Unproposed::Never(error) | Unproposed::Perhaps(_, error) => error,
        }
    }
}

/// The volume or server that a change is about, in words.
fn of(change: &Change) -> String {
    match &change.what {
        What::Remove { server, .. } => format!("server '{server}'"),
        _ => format!("volume '{}'", change.volume),
    }
}

fn is_committed(change: &Change, image: &Image) -> bool {
    match &change.what {
        What::Create { volume, .. } => image.volumes.get(&change.volume).is_some_and(|known| known.uuid == volume.uuid),
        What::Delete { uuid, .. } => {
            image.volumes.get(&change.volume).is_none_or(|known| known.uuid != *uuid || known.deleting)
        }
        // The version alone does not tell: after an undone change, the next one gets the same version.
        What::Update { volume } => image
            .volumes
            .get(&change.volume)
            .is_some_and(|known| (known.uuid, known.size, &known.share) == (volume.uuid, volume.size, &volume.share)),
        What::Remove { server, uuid } => image.members.get(server).is_none_or(|known| known.uuid != *uuid),
        What::Retime | What::Unknown(_) => image.schedule().version >= change.schedule.version,
    }
}

/// Servers in words.
pub(super) fn on(servers: &[Name]) -> String {
    let names: Vec<String> = servers.iter().map(|server| format!("'{server}'")).collect();
    format!("server{} {}", if names.len() == 1 { "" } else { "s" }, names.join(", "))
}

/// The servers that have not deleted their parts yet.
pub(super) fn waits_for(image: &Image, volume: &Volume) -> String {
    let left = volume.holders().filter(|server| !image.gone.contains(&(volume.uuid, (*server).clone())));
    left.map(|server| format!("'{server}'")).collect::<Vec<_>>().join(", ")
}

/// Bytes of each part: whole stripes, of which the last row may not be full.
pub(super) fn member_size(size: u64, servers: u64, stripe: u64) -> u64 {
    if servers <= 1 { size } else { size.div_ceil(stripe * servers) * stripe }
}

/// The servers that can take a part, or why those that were asked for cannot.
fn candidates(
    image: &Image,
    volume: &Name,
    (given, servers): (&[Name], usize),
    needed: u64,
) -> Result<Vec<Candidate>, ClusterError> {
    let usable = |server: &Name| -> Result<Candidate, String> {
        let alive = image.alive.get(server).ok_or("it does not run")?;
        if image.draining.contains(server) {
            return Err("it is being drained".into());
        }
        if servers > 1 && !alive.clock.good {
            return Err("its clock is not synchronised well enough for striped volumes".into());
        }
        if alive.free_bytes < needed {
            let (free, needed) = (Size(alive.free_bytes).rounded(), Size(needed).rounded());
            return Err(format!("it has {free} of free space, the part needs {needed}"));
        }
        Ok(Candidate { name: server.clone(), free_bytes: alive.free_bytes })
    };
    if !given.is_empty() {
        let each = given.iter().map(|server| {
            if !image.members.contains_key(server) {
                return Err(ClusterError::NoServer(server.clone()));
            }
            let unsuitable = |why| ClusterError::Unsuitable { server: server.clone(), volume: volume.clone(), why };
            usable(server).map_err(unsuitable)
        });
        return each.collect();
    }
    let (mut found, mut reasons) = (Vec::new(), String::new());
    for server in image.members.keys() {
        match usable(server) {
            Ok(candidate) => found.push(candidate),
            Err(why) => reasons += &format!("; '{server}': {why}"),
        }
    }
    match found.len() < servers {
        true => {
            let (volume, usable) = (volume.clone(), found.len());
            Err(ClusterError::TooFew { volume, asked: servers, usable, why: reasons })
        }
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_whole_stripes_that_hold_the_volume() {
        assert_eq!(member_size(1 << 30, 1, 65536), 1 << 30);
        assert_eq!(member_size(1 << 30, 2, 65536), 1 << 29);
        for (size, servers) in [(1u64 << 30, 3u64), (512, 5), (65536 * 7 + 512, 4)] {
            let part = member_size(size, servers, 65536);
            assert!(part.is_multiple_of(65536) && part * servers >= size && (part - 65536) * servers < size);
        }
    }
}
