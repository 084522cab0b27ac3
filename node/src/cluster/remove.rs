//! A server that is lost for good is removed: its parts of volumes are lost with it.
//!
//! ```text
//!   before   big: s1 s2 s3   own: s1                 members s1 s2 s3
//!   after    big: (s1) s2 s3   broken      members s2 s3      removed/UUID of s1's disk
//! ```
//!
//! It is a change like others: proposed, acknowledged by the servers that run, committed. Slots only become free, so a
//! server that is away needs not agree. If the removed server runs before the commit, the change is undone. If it comes
//! back later, it finds the UUID of its disk among those that were removed: it serves none of its parts any more, and
//! joins anew when they are deleted.

use std::collections::BTreeSet;

use etcd_client::{Compare, TxnOp};
use tokio::time::Instant;
use tracing::warn;

use super::change::{PAUSE, down, other_change};
use super::etcd::Etcd;
use super::place::without;
use super::records::{Change, Image, Schedule, Slot, Volume, What};
use super::{Cluster, ClusterError};
use crate::control::view::Done;
use crate::quantity::Name;

/// Parts of one server that are removed in one transaction: etcd limits that to 128 operations.
const PARTS_MAX: usize = 36;

/// A schedule in which a server has no slots: nothing moves. A volume on other servers keeps its slot there.
fn without_server(schedule: &Schedule, server: &Name) -> Schedule {
    let keep = |slot: &Slot| {
        let servers = slot.servers.iter().filter(|other| *other != server).cloned().collect();
        Slot { servers, ..slot.clone() }
    };
    let slots: Vec<Slot> = schedule.slots.iter().map(keep).collect();
    let need = schedule.need.clone().filter(|need| need.server != *server);
    let kept = Schedule { slots, need, begins_ns: 0, ..schedule.clone() };
    let empty: Vec<&Name> = kept.slots.iter().filter(|slot| slot.servers.is_empty()).map(|slot| &slot.volume).collect();
    empty.into_iter().fold(kept.clone(), |kept, volume| without(&kept, volume))
}

/// The volumes of a server: what becomes of each when the server is removed. `None`: nothing is left of it.
fn remains<'a>(image: &'a Image, server: &'a Name) -> impl Iterator<Item = (&'a Name, &'a Volume, Option<Volume>)> {
    image.volumes_of(server).map(move |(name, volume)| {
        let lost = volume.lost.iter().chain([server]).cloned().collect();
        let left = Volume { lost, ..volume.clone() };
        let is_any = left.holders().next().is_some();
        (name, volume, is_any.then_some(left))
    })
}

/// The conditions and the operations that a removal has besides those of each change.
pub(super) fn transaction(etcd: &Etcd, image: &Image, server: &Name, disk: uuid::Uuid) -> (Vec<Compare>, Vec<TxnOp>) {
    let mut when: Vec<Compare> = ["alive", "members"].map(|of| etcd.unchanged(image, &format!("{of}/{server}"))).into();
    let mut then: Vec<TxnOp> =
        ["members", "draining", "versions"].map(|of| etcd.remove(&format!("{of}/{server}"))).into();
    then.push(etcd.put(&format!("removed/{disk}"), server, None));
    for (name, volume, left) in remains(image, server) {
        let key = format!("volumes/{name}");
        when.push(etcd.unchanged(image, &key));
        match left {
            Some(left) => then.push(etcd.put(&key, &left, None)),
            None => {
                let keys = [key, format!("epochs/{}", volume.uuid)].map(|key| etcd.remove(&key));
                then.extend(keys.into_iter().chain([etcd.remove_below(&format!("gone/{}/", volume.uuid))]));
            }
        }
    }
    (when, then)
}

/// Why a removal cannot be committed: the server runs again.
pub(super) fn returned(change: &Change, image: &Image) -> Option<String> {
    match &change.what {
        What::Remove { server, .. } if image.alive.contains_key(server) => {
            Some(format!("server '{server}' runs again"))
        }
        _ => None,
    }
}

impl Cluster {
    /// This server was removed from the cluster, with the name that it had: no client can open its parts any more. An
    /// error as long as it has some: it does not join before they are deleted.
    pub(super) async fn give_up_parts(&self, disk: &Name, was: &Name) -> Result<(), String> {
        let parts = self.control.parts(disk)?;
        for (name, facts) in &parts {
            if !facts.part.lost {
                let given_up = self.control.give_up_part(name).await;
                given_up.map_err(|error| format!("the part of volume '{name}' cannot be given up: {error}"))?;
                warn!(volume = %name, "the server was removed from the cluster as '{was}': this part is not served");
            }
        }
        if parts.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = parts.keys().map(Name::as_str).collect();
        Err(format!(
            "it was removed from the cluster as server '{was}', so its parts of volumes are not served: {}; when each \
             is deleted with `aerogel volume delete NAME --yes --force` on this server, it joins anew",
            names.join(", ")
        ))
    }

    /// Removes a server that does not run. With `lost`, even if it has parts of volumes: these are lost.
    pub async fn remove(&self, server: &Name, lost: bool) -> Result<Done, ClusterError> {
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
            let Some(member) = image.members.get(server) else { return Err(ClusterError::NoServer(server.clone())) };
            if image.alive.contains_key(server) {
                return Err(ClusterError::Runs(server.clone()));
            }
            let (broken, gone): (Vec<_>, Vec<_>) = remains(&image, server).partition(|(_, _, left)| left.is_some());
            let names = |of: Vec<(&Name, &Volume, Option<Volume>)>| {
                of.into_iter().map(|(name, ..)| name.clone()).collect::<Vec<Name>>()
            };
            let (broken, gone) = (names(broken), names(gone));
            let parts = broken.len() + gone.len();
            if parts == 0 && !lost {
                if !self.removed(&etcd, server).await? {
                    continue;
                }
                let message = format!("server '{server}' had no volumes, and is removed from the cluster");
                return Ok(Done { message, volume: None, disk: None, tenant: None });
            }
            if !lost {
                let volumes = broken.into_iter().chain(gone).collect();
                return Err(ClusterError::HasParts { server: server.clone(), volumes });
            }
            if parts > PARTS_MAX {
                return Err(ClusterError::ManyParts { server: server.clone(), parts, most: PARTS_MAX });
            }
            let what = What::Remove { server: server.clone(), uuid: member.uuid };
            let schedule = without_server(&image.schedule(), server);
            let schedule = Schedule { version: image.next_version(), ..schedule };
            // All that run: one of an earlier release could not read the cluster afterwards, and refuses.
            let servers: BTreeSet<Name> = image.alive.keys().cloned().collect();
            let proposed = self.propose(&etcd, &image, (server, what), schedule, servers).await?;
            let Some((change, revision)) = proposed else { continue };
            self.completed(&change, revision, "removed").await?;
            warn!(%server, parts, "a server is removed from the cluster, and its parts of volumes are lost");
            return Ok(Done { message: told(server, &broken, &gone), volume: None, disk: None, tenant: None });
        }
    }
}

/// What was removed.
fn told(server: &Name, broken: &[Name], gone: &[Name]) -> String {
    let list = |names: &[Name]| names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
    let gone = match gone {
        [] => String::new(),
        gone => format!("; lost with it: {}", list(gone)),
    };
    let broken = match broken {
        [] => String::new(),
        broken => format!("; broken, since a part is lost: {}: delete what has no redundancy of its own", list(broken)),
    };
    format!("server '{server}' is removed from the cluster, and another one may take its name{gone}{broken}")
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::super::records::{Alive, ClockState, SliceNeed};
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    fn volume(servers: &[&str]) -> Volume {
        Volume {
            uuid: Uuid::from_u128(servers.len() as u128),
            size: 1 << 20,
            member_size: 1 << 19,
            stripe: 65536,
            share: "1/3".parse().expect("a share"),
            servers: servers.iter().map(|server| name(server)).collect(),
            deleting: false,
            lost: Vec::new(),
        }
    }

    fn schedule(slots: &[(&str, &[&str])]) -> Schedule {
        let slot = |&(volume, on): &(&str, &[&str])| Slot {
            volume: name(volume),
            start_ns: 5,
            length_ns: 7,
            servers: on.iter().map(|server| name(server)).collect(),
        };
        Schedule { version: 4, slots: slots.iter().map(slot).collect(), ..Schedule::default() }
    }

    #[test]
    fn only_the_slots_of_the_server_leave_the_schedule() {
        let need = |server| Some(SliceNeed { server: name(server), volume: name("big"), slice_ns: 1 });
        let all = schedule(&[("big", &["s1", "s2"]), ("own", &["s1"]), ("other", &["s2"])]);
        let left = without_server(&Schedule { need: need("s1"), ..all.clone() }, &name("s1"));
        assert_eq!(left, schedule(&[("big", &["s2"]), ("other", &["s2"])]));
        let left = without_server(&Schedule { need: need("s2"), ..all }, &name("s1"));
        assert_eq!(left.need, need("s2"));
        let none = without_server(&schedule(&[("own", &["s1"])]), &name("s1"));
        assert_eq!(none, Schedule { version: 4, ..Schedule::default() });
    }

    #[test]
    fn striped_volumes_are_broken_and_those_of_the_server_alone_are_gone() {
        let mut image = Image::default();
        image.volumes.insert(name("big"), volume(&["s1", "s2", "s3"]));
        image.volumes.insert(name("own"), volume(&["s1"]));
        image.volumes.insert(name("other"), volume(&["s2"]));
        let s1 = name("s1");
        let left: Vec<_> = remains(&image, &s1).map(|(of, _, left)| (of.clone(), left.map(|left| left.lost))).collect();
        assert_eq!(left, [(name("big"), Some(vec![name("s1")])), (name("own"), None)]);
        // The second server of a volume of two is lost, too.
        image.volumes.insert(name("big"), Volume { lost: vec![name("s1"), name("s2")], ..volume(&["s1", "s2", "s3"]) });
        let s3 = name("s3");
        assert!(remains(&image, &s3).all(|(_, _, left)| left.is_none()));
        assert_eq!(remains(&image, &s1).count(), 1, "what was lost before is no part any more");
    }

    #[test]
    fn a_server_that_runs_again_is_not_removed() {
        let uuid = Uuid::from_u128(1);
        let what = What::Remove { server: name("s1"), uuid };
        let (volume, schedule, servers) = (name("s1"), Schedule::default(), BTreeSet::new());
        let change = Change { id: uuid, lease: 1, volume, what, schedule, servers };
        let mut image = Image::default();
        assert_eq!(returned(&change, &image), None);
        let alive = Alive {
            disk: name("hdd"),
            size_bytes: 1,
            free_bytes: 1,
            insulation_permille: 900,
            switch_ns: 1,
            round_max_ns: 1,
            clock: ClockState { synchronised: true, trusted: true, error_ns: 0, good: true },
            version: 3,
            missing: Vec::new(),
            needs: None,
        };
        image.alive.insert(name("s1"), alive);
        assert_eq!(returned(&change, &image), Some("server 's1' runs again".into()));
        assert_eq!(returned(&Change { what: What::Retime, ..change }, &image), None);
    }
}
