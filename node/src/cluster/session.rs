//! A session with etcd: from a connection until something fails. After a restart of etcd, watches and leases of its
//! client stay dead, so a new session builds everything anew.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{interval, timeout};
use tracing::{info, warn};

use super::decide::{Decision, decide, finished};
use super::etcd::{Etcd, EtcdError, Lease};
use super::failpoint::failpoint;
use super::kept::Kept;
use super::records::{Ack, Alive, Change, ClockState, Image, Member, Schedule, Volume, What};
use super::retime::Retiming;
use super::{Cluster, Doing, clock, remove};
use crate::control::DiskFacts;
use crate::quantity::Name;

/// Between two sessions.
pub const PAUSE: Duration = Duration::from_millis(500);
/// A server that says nothing for so long is away.
const TTL: Duration = Duration::from_secs(10);
/// How often the lease is renewed, and things that no key of etcd tells of are looked at.
const TICK: Duration = Duration::from_secs(1);
/// Free space and measured needs change all the time; they are told at most that often, unless something else is.
const FACTS_INTERVAL: Duration = Duration::from_secs(5);
/// Until a new schedule begins, besides two rounds of the old and the new one: servers learn of it within
/// milliseconds.
const AHEAD: Duration = Duration::from_millis(500);
/// How far ahead a schedule may begin, besides two rounds: several changes may be announced, each of which begins after
/// the one before.
const SOON: Duration = Duration::from_secs(60);

/// Why a server has not joined that is about to.
const JOINING: &str = "it is joining";

/// What was told of this server, under its lease.
struct Told {
    alive: Option<Alive>,
    at: Instant,
}

impl Cluster {
    /// Ends only with an error.
    pub(super) async fn session(self: &Arc<Cluster>) -> Result<Infallible, EtcdError> {
        let etcd = Etcd::connect(&self.settings).await?;
        let mut image = Arc::new(etcd.image().await?);
        let mut lease = etcd.kept_lease(TTL).await?;
        let mut watch = etcd.watch(image.revision).await?;
        {
            let mut state = self.state();
            (state.link, state.lease) = (Ok(etcd.clone()), Some(lease.id));
        }
        info!(cluster = %self.settings.cluster, "etcd answers");
        let (mut told, mut ticks) = (Told { alive: None, at: Instant::now() }, interval(TICK));
        let mut retiming = Retiming::default();
        loop {
            self.control.set_issued(image.epochs.clone());
            self.image.send_replace(Some(image.clone()));
            self.look(&etcd, &lease, &image, &mut told).await?;
            self.retime(&etcd, &image, &mut retiming).await?;
            tokio::select! {
                event = watch.message() => {
                    let event = event?.ok_or(EtcdError::Closed)?;
                    if event.canceled() {
                        return Err(EtcdError::Closed);
                    }
                }
                () = self.wake.notified() => {}
                _ = ticks.tick() => lease.renew().await?,
            }
            // One look for all that has happened so far.
            while let Ok(event) = timeout(Duration::ZERO, watch.message()).await {
                event?.ok_or(EtcdError::Closed)?;
            }
            image = Arc::new(etcd.image().await?);
        }
    }

    /// Does what is missing.
    async fn look(
        self: &Arc<Cluster>,
        etcd: &Etcd,
        lease: &Lease,
        image: &Arc<Image>,
        told: &mut Told,
    ) -> Result<(), EtcdError> {
        let facts = self.disk_facts().await;
        let standing = match &facts {
            Ok((disk, facts)) => self.join(etcd, image, (disk, facts)).await?,
            Err(why) => Err(why.clone()),
        };
        let is_news = self.state().standing != standing;
        if is_news {
            match &standing {
                Err(why) if why == JOINING => {}
                Ok(()) => info!(cluster = %self.settings.cluster, name = %self.settings.name, "joined"),
                Err(why) => warn!(cluster = %self.settings.cluster, "not joined: {why}"),
            }
        }
        {
            let mut state = self.state();
            state.standing = standing.clone();
            state.disk = facts.clone().ok();
        }
        let (Ok(()), Ok((disk, facts))) = (standing, facts) else {
            if told.alive.take().is_some() {
                etcd.transact(Vec::new(), vec![etcd.remove(&format!("alive/{}", self.settings.name))]).await?;
            }
            return Ok(());
        };
        self.control.set_scheduled(disk.clone());
        self.take_schedule(image, &facts).await;
        self.tell((etcd, lease), image, self.alive(image, &disk, &facts), told).await?;
        self.decide(etcd, image).await?;
        for (name, uuid) in finished(image) {
            let keys = [format!("volumes/{name}"), format!("epochs/{uuid}")];
            let then = keys.iter().map(|key| etcd.remove(key)).chain([etcd.remove_below(&format!("gone/{uuid}/"))]);
            let then = then.collect();
            if etcd.transact(vec![etcd.unchanged(image, &format!("volumes/{name}"))], then).await?.is_some() {
                info!(volume = %name, "deleted on all its servers");
            }
        }
        self.work(etcd, image, &disk);
        Ok(())
    }

    async fn disk_facts(&self) -> Result<(Name, DiskFacts), String> {
        let disk = self.control.cluster_disk(self.settings.disk.as_ref())?;
        let facts = self.control.cluster_facts(&disk).await?;
        Ok((disk, facts))
    }

    /// Enters this server into the list of members, unless another one has its name, or it was removed.
    async fn join(
        &self,
        etcd: &Etcd,
        image: &Image,
        (disk, facts): (&Name, &DiskFacts),
    ) -> Result<Result<(), String>, EtcdError> {
        let name = &self.settings.name;
        let this = Member { uuid: facts.uuid, advertise: self.settings.advertise.clone() };
        let known = image.members.get(name);
        if let Some(was) = image.removed.get(&this.uuid)
            && let Err(why) = self.give_up_parts(disk, was).await
        {
            return Ok(Err(why));
        }
        if known == Some(&this) {
            return Ok(Ok(()));
        }
        if let Some(other) = known.filter(|known| known.uuid != this.uuid) {
            let has_left = image.draining.contains(name)
                && !image.alive.contains_key(name)
                && image.volumes_of(name).all(|(_, volume)| volume.deleting);
            if !has_left {
                return Ok(Err(format!(
                    "the name '{name}' belongs to another server, with disk {} at {}: give this one another --name, \
                     or drain that one, delete its volumes and stop it, or remove it if it is lost",
                    other.uuid, other.advertise
                )));
            }
        }
        let elsewhere = image.members.iter().find(|(other, known)| *other != name && known.uuid == this.uuid);
        if let Some((other, _)) = elsewhere {
            return Ok(Err(format!(
                "its disk {} is that of server '{other}' in this cluster: start it with --name {other}",
                this.uuid
            )));
        }
        let key = format!("members/{name}");
        // Somebody else may have been faster, which the next look shows.
        let when = etcd.unchanged(image, &key);
        let mut then = vec![etcd.put(&key, &this, None), etcd.remove(&format!("removed/{}", this.uuid))];
        if known.is_some_and(|known| known.uuid != this.uuid) {
            then.push(etcd.remove(&format!("draining/{name}")));
        }
        etcd.transact(vec![when], then).await?;
        Ok(Err(JOINING.into()))
    }

    /// Keeps a schedule that is newer than the one it has; a lower version is never taken.
    async fn take_schedule(&self, image: &Image, facts: &DiskFacts) {
        let Some((schedule, revision)) = &image.schedule else { return };
        let has = self.state().kept.clone();
        let is_newer =
            has.as_ref().filter(|has| has.disk == facts.uuid).is_none_or(|has| schedule.version > has.schedule.version);
        if !is_newer {
            return;
        }
        let kept = Kept::new(self.settings.cluster.clone(), facts.uuid, *revision, schedule.clone());
        let (written, data) = (kept.clone(), self.control.config.data.clone());
        let written = tokio::task::spawn_blocking(move || written.write(&data)).await.map_err(std::io::Error::other);
        let written = written.flatten().map_err(|error| format!("the schedule cannot be kept: {error}"));
        if written.is_ok() {
            info!(version = schedule.version, slots = schedule.slots.len(), "a new schedule");
            self.state().kept = Some(kept);
            let _ = self.follow_now().await;
        }
        self.note(Doing::Keeping, written);
    }

    fn alive(&self, image: &Image, disk: &Name, facts: &DiskFacts) -> Alive {
        // If they are not known, none is served as far as the cluster knows.
        let parts = self.control.parts(disk).unwrap_or_default();
        // A client that opened a part before its growth would see the wrong size.
        let is_missing = |name: &Name, volume: &Volume| {
            let here = parts.get(name).filter(|here| here.part.volume == volume.uuid);
            here.is_none_or(|here| !here.is_served || !here.part.committed || here.part.size < volume.size)
        };
        let expected = image.volumes_of(&self.settings.name).filter(|(_, volume)| !volume.deleting);
        let missing = expected.filter(|(name, volume)| is_missing(name, volume)).map(|(name, _)| name.clone());
        let state = self.state();
        Alive {
            disk: disk.clone(),
            size_bytes: facts.size_bytes,
            free_bytes: facts.free_bytes,
            insulation_permille: facts.insulation_permille,
            switch_ns: facts.switch_ns,
            round_max_ns: facts.round_max_ns,
            clock: state.clock,
            version: state.kept.as_ref().map_or(0, |kept| kept.schedule.version),
            missing: missing.collect(),
            needs: Some(state.needs.told()),
        }
    }

    /// Tells the cluster of this server.
    async fn tell(
        &self,
        (etcd, lease): (&Etcd, &Lease),
        image: &Image,
        alive: Alive,
        told: &mut Told,
    ) -> Result<(), EtcdError> {
        let is_same = |before: &Alive| {
            let clock = ClockState { error_ns: before.clock.error_ns, ..alive.clock };
            *before == Alive { free_bytes: before.free_bytes, clock, needs: before.needs.clone(), ..alive.clone() }
        };
        let is_known = told.alive.as_ref() == Some(&alive);
        let is_there = image.alive.contains_key(&self.settings.name);
        let is_recent = told.alive.as_ref().is_some_and(is_same) && told.at.elapsed() < FACTS_INTERVAL;
        if is_there && (is_known || is_recent) {
            return Ok(());
        }
        let name = &self.settings.name;
        let then = vec![
            etcd.put(&format!("alive/{name}"), &alive, Some(lease.id)),
            etcd.put(&format!("versions/{name}"), &alive.version, None),
        ];
        etcd.transact(Vec::new(), then).await?;
        *told = Told { alive: Some(alive), at: Instant::now() };
        Ok(())
    }

    /// Commits or undoes the change that is being made, if it can be decided. Another server may do so at the same
    /// time: etcd lets one of them.
    async fn decide(&self, etcd: &Etcd, image: &Image) -> Result<(), EtcdError> {
        let Some(change) = &image.change else { return Ok(()) };
        let returned = remove::returned(change, image).map(Decision::Undo);
        let Some(decision) = returned.or_else(|| decide(change, &image.acks)) else { return Ok(()) };
        let end = [etcd.remove("change"), etcd.remove_below(&format!("acks/{}/", change.id))];
        let still = etcd.unchanged(image, "change");
        match decision {
            Decision::Undo(why) => {
                let outcome =
                    etcd.put(&format!("outcome/{}", change.id), &Ack { error: Some(why.clone()) }, Some(change.lease));
                let then = end.into_iter().chain([outcome]).collect();
                if etcd.transact(vec![still], then).await?.is_some() {
                    warn!(of = %change.volume, "a change of the cluster is undone: {why}");
                }
            }
            // The server that commits a schedule sets the time at which it begins, by its own clock.
            Decision::Commit if !self.may_announce(image) => {}
            Decision::Commit => {
                let key = format!("volumes/{}", change.volume);
                let before = image.volumes.get(&change.volume);
                let volume = match (&change.what, before) {
                    (What::Create { volume, .. }, None) => Some(volume.clone()),
                    (What::Delete { .. }, Some(before)) => Some(Volume { deleting: true, ..before.clone() }),
                    (What::Update { volume }, Some(before)) if before.uuid == volume.uuid => Some(volume.clone()),
                    (What::Retime | What::Remove { .. }, _) => None,
                    // A proposal holds only as long as this cannot be.
                    (What::Create { .. }, Some(_)) | (What::Delete { .. }, None) | (What::Update { .. }, _) => {
                        return Ok(());
                    }
                    // Those who know what it is commit it.
                    (What::Unknown(_), _) => return Ok(()),
                };
                let schedule = announced(change, &image.schedule());
                let volume = volume.map(|volume| etcd.put(&key, &volume, None));
                let (also_when, also_then) = match &change.what {
                    What::Remove { server, uuid } => remove::transaction(etcd, image, server, *uuid),
                    _ => Default::default(),
                };
                let then = [etcd.put("schedule", &schedule, None)].into_iter().chain(volume).chain(end);
                let then = then.chain(also_then).collect();
                let when = [still, etcd.unchanged(image, &key), etcd.unchanged(image, "schedule")];
                let when = when.into_iter().chain(also_when).collect();
                if etcd.transact(when, then).await?.is_some() {
                    info!(of = %change.volume, version = schedule.version, "a change of the cluster is committed");
                    failpoint("committed");
                }
            }
        }
        Ok(())
    }
}

impl Cluster {
    /// Whether this server's clock is synchronised, or no server's is.
    fn may_announce(&self, image: &Image) -> bool {
        self.state().clock.good || !image.alive.values().any(|it| it.clock.good)
    }
}

/// The schedule of a change, with the time when it begins: late enough for all servers to know of it, and after the one
/// before, even if that has not begun yet. With the same round it begins a whole number of rounds after that one. So a
/// server that does not hear of it has the slots that did not move at the same time as the others.
///
/// It does not wait for the one before if that begins later than a server with a synchronised clock would announce.
fn announced(change: &Change, before: &Schedule) -> Schedule {
    let now = clock::now_ns();
    let rounds = 2 * before.round_ns.max(change.schedule.round_ns);
    let is_sound = before.begins_ns <= now + rounds + SOON.as_nanos() as u64;
    let soonest = if is_sound { now.max(before.begins_ns) } else { now } + rounds + AHEAD.as_nanos() as u64;
    let begins_ns = match is_sound && before.round_ns == change.schedule.round_ns {
        true => before.begins_ns + (soonest - before.begins_ns).next_multiple_of(before.round_ns),
        false => soonest,
    };
    Schedule { begins_ns, ..change.schedule.clone() }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::records::What;
    use super::*;

    #[test]
    fn a_schedule_with_the_same_round_begins_a_whole_number_of_rounds_later() {
        let before = Schedule { version: 3, begins_ns: clock::now_ns() - 12_345_678_901, ..Schedule::default() };
        let announced = |round_ns| {
            let schedule = Schedule { version: 4, round_ns, ..Schedule::default() };
            let (id, volume) = (Uuid::nil(), "v".parse().expect("a name"));
            let change = Change { id, lease: 0, volume, what: What::Retime, schedule, servers: Default::default() };
            super::announced(&change, &before).begins_ns
        };
        let soonest = clock::now_ns() + 2 * before.round_ns;
        let begins_ns = announced(before.round_ns);
        assert_eq!((begins_ns - before.begins_ns) % before.round_ns, 0);
        assert!((soonest..soonest + AHEAD.as_nanos() as u64 + 2 * before.round_ns).contains(&begins_ns));
        assert!(announced(2 * before.round_ns) > soonest);
    }

    #[test]
    fn a_schedule_of_a_clock_that_is_hours_ahead_is_not_waited_for() {
        let hour_ns = 3_600_000_000_000;
        let before = Schedule { version: 3, begins_ns: clock::now_ns() + 2 * hour_ns, ..Schedule::default() };
        let schedule = Schedule { version: 4, ..before.clone() };
        let (id, volume) = (Uuid::nil(), "v".parse().expect("a name"));
        let change = Change { id, lease: 0, volume, what: What::Retime, schedule, servers: Default::default() };
        let begins_ns = super::announced(&change, &before).begins_ns;
        assert!(begins_ns > clock::now_ns() && begins_ns < clock::now_ns() + hour_ns, "{begins_ns}");
    }
}
