//! What a server does on its own disk for the cluster: parts of volumes are created, published and deleted. One thing
//! at a time, beside the session, since files take time.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::{info, warn};

use super::decide::{Task, tasks};
use super::etcd::{Etcd, EtcdError};
use super::failpoint::failpoint;
use super::records::{Ack, Change, Image, What};
use super::{Cluster, Doing};
use crate::control::view::CreateVolume;
use crate::control::{Error, PartFacts};
use crate::quantity::{Name, Size};
use crate::store::spec::Part;

impl Cluster {
    /// Begins what is to be done, unless something still is being done.
    pub(super) fn work(self: &Arc<Cluster>, etcd: &Etcd, image: &Arc<Image>, disk: &Name) {
        if self.state().is_working {
            return;
        }
        let parts = self.control.parts(disk);
        let parts = parts.map(|parts| parts.into_iter().map(|(name, facts)| (name, facts.into())).collect());
        let tasks = match parts {
            Ok(parts) => tasks(&self.settings.name, image, &parts),
            // Any volume may be a part, so nothing is done; a change gets its answer.
            Err(why) => {
                self.note(Doing::Parts, Err(why));
                tasks(&self.settings.name, image, &BTreeMap::new()).into_iter().filter(Task::is_answer).collect()
            }
        };
        if tasks.is_empty() {
            return;
        }
        self.state().is_working = true;
        let (cluster, etcd, image) = (self.clone(), etcd.clone(), image.clone());
        tokio::spawn(async move {
            let done = cluster.perform_all(&etcd, &image, tasks).await;
            cluster.note(Doing::Parts, done);
            cluster.state().is_working = false;
            cluster.wake.notify_one();
        });
    }

    async fn perform_all(&self, etcd: &Etcd, image: &Image, tasks: Vec<Task>) -> Result<(), String> {
        let mut failed = Ok(());
        for task in tasks {
            if let Err(why) = self.perform(etcd, image, &task).await {
                failed = Err(why);
            }
        }
        if failed.is_err() {
            // What fails is tried again, but not all the time.
            tokio::time::sleep(super::session::PAUSE).await;
        }
        failed
    }

    async fn perform(&self, etcd: &Etcd, image: &Image, task: &Task) -> Result<(), String> {
        let of =
            |what: &str, name: &Name, error: Error| format!("the part of volume '{name}' cannot be {what}: {error}");
        let told = |error: EtcdError| format!("etcd: {error}");
        match task {
            Task::Publish(name) => {
                self.control.commit_part(name).await.map_err(|error| of("published", name, error))?;
                info!(volume = %name, "the volume is complete: clients can open this part");
                failpoint("published");
                Ok(())
            }
            Task::Discard(name, uuid) => {
                self.control.delete_part(name, *uuid).await.map_err(|error| of("removed", name, error))?;
                warn!(volume = %name, "its creation was undone: this part is removed");
                Ok(())
            }
            Task::Update(name) => {
                let Some(volume) = image.volumes.get(name) else { return Ok(()) };
                let (share, sizes) = (volume.share.clone(), (volume.member_size, volume.size));
                let parts = self.state().disk.as_ref().map(|(disk, _)| self.control.parts(disk)).transpose();
                let grows = |parts: &BTreeMap<Name, PartFacts>| {
                    parts.get(name).is_some_and(|here| here.part.size < volume.size)
                };
                if parts?.as_ref().is_some_and(grows) {
                    // A client that has connected since this server agreed to the change knows the old size.
                    self.check_unused(name).await?;
                }
                self.control.update_part(name, share, sizes).await.map_err(|error| of("changed", name, error))?;
                info!(volume = %name, share = %volume.share, size = volume.size, "the part is as the volume is now");
                failpoint("updated");
                Ok(())
            }
            Task::Delete(name, uuid) => {
                self.control.delete_part(name, *uuid).await.map_err(|error| of("deleted", name, error))?;
                failpoint("deleted");
                self.say_gone(etcd, *uuid).await.map_err(told)
            }
            Task::SayGone(uuid) => self.say_gone(etcd, *uuid).await.map_err(told),
            Task::Prepare => {
                let Some(change) = &image.change else { return Ok(()) };
                let ack = Ack { error: self.prepare(change).await.err() };
                failpoint("prepared");
                let put = etcd.put(&format!("acks/{}/{}", change.id, self.settings.name), &ack, Some(change.lease));
                etcd.transact(vec![etcd.unchanged(image, "change")], vec![put]).await.map_err(told)?;
                failpoint("acknowledged");
                Ok(())
            }
        }
    }

    async fn say_gone(&self, etcd: &Etcd, volume: uuid::Uuid) -> Result<(), EtcdError> {
        let put = etcd.put(&format!("gone/{volume}/{}", self.settings.name), &(), None);
        etcd.transact(Vec::new(), vec![put]).await.map(drop)
    }

    /// Does this server's share of a change, so that it can be committed; or says why that is impossible.
    async fn prepare(&self, change: &Change) -> Result<(), String> {
        let disk = self.state().disk.as_ref().map(|(disk, _)| disk.clone()).ok_or("it has no disk")?;
        let parts = self.control.parts(&disk)?;
        self.check_parts(change, &parts)?;
        let has = self.version();
        if change.schedule.version <= has {
            return Err(format!("it has version {has} of the schedule, and never takes a lower one"));
        }
        match &change.what {
            What::Create { volume, request } if volume.servers.contains(&self.settings.name) => {
                if volume.is_striped() && !self.state().clock.good {
                    return Err("its clock is not synchronised well enough for striped volumes".into());
                }
                let part = Part {
                    cluster: self.settings.cluster.clone(),
                    volume: volume.uuid,
                    servers: volume.servers.clone(),
                    size: volume.size,
                    stripe: volume.stripe,
                    committed: false,
                    lost: false,
                };
                let size = Some(Size(volume.member_size));
                // The shares have a place in the schedule.
                let request = CreateVolume { disk: Some(disk), size, overcommit: true, ..request.of_part() };
                self.control.create_part(request, part).await.map_err(|error| error.to_string())?;
                failpoint("created");
            }
            What::Delete { force: false, .. } if self.control.has_volume(&change.volume) => {
                self.check_unused(&change.volume).await?;
            }
            What::Unknown(_) => return Err("its release is too old for this change: install a later one".into()),
            What::Update { volume } if parts.get(&change.volume).is_some_and(|here| here.part.size < volume.size) => {
                // A client that has it open, a gateway above all, relies on its size.
                self.check_unused(&change.volume).await?;
            }
            What::Update { .. } | What::Create { .. } | What::Delete { .. } | What::Retime | What::Remove { .. } => {}
        }
        self.check_timetable(&change.schedule)
    }
}

impl Cluster {
    /// Refuses what no client may see, while some are connected or a gateway without connections has a lease.
    async fn check_unused(&self, name: &Name) -> Result<(), String> {
        match self.control.connections_to(name).await.map_err(|error| error.to_string())? {
            0 => self.control.check_unclaimed(name).await.map_err(|refused| refused.to_string()),
            count => Err(format!("its part has {count} connections of clients")),
        }
    }

    /// Refuses a schedule without a volume that has data here: etcd may have been restored from a backup.
    fn check_parts(&self, change: &Change, parts: &BTreeMap<Name, PartFacts>) -> Result<(), String> {
        let has_slot = |name: &Name| change.schedule.slots.iter().any(|slot| slot.volume == *name);
        let is_known = |name: &Name| has_slot(name) || change.volume == *name;
        let image = self.image();
        let is_going = |name: &Name| image.iter().any(|it| it.volumes.get(name).is_some_and(|volume| volume.deleting));
        match parts.iter().find(|(name, facts)| facts.part.committed && !is_known(name) && !is_going(name)) {
            Some((name, _)) => Err(format!(
                "it has a part of volume '{name}', which etcd does not know: restore a newer backup of etcd, or delete \
                 that part with `aerogel volume delete {name} --yes --force` on this server"
            )),
            None => Ok(()),
        }
    }
}

impl CreateVolume {
    /// The request for a part on one server.
    fn of_part(&self) -> CreateVolume {
        CreateVolume { servers: None, on: Vec::new(), stripe: None, least: None, ..self.clone() }
    }
}
