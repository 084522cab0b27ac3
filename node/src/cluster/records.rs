//! What a cluster keeps in etcd, below `/aerogel/CLUSTER/`. Every value is JSON, except for epochs.
//!
//! ```text
//!   members/NAME       who a server is; written once                              Member
//!   draining/NAME      exists while it gets no new volumes
//!   alive/NAME         under a lease: exists while the server runs                Alive
//!   versions/NAME      the version of the schedule that a server has
//!   volumes/NAME       a volume that exists, or is being deleted                  Volume
//!   schedule           the last one committed                                     Schedule
//!   change             under a lease: the change that is being made, if one is    Change
//!   acks/ID/SERVER     under its lease: what the servers say of it                Ack
//!   outcome/ID         under its lease: why it was undone                         Ack
//!   gone/UUID/SERVER   this server has deleted its part of a volume
//!   removed/UUID       the disk of a server that was removed although it had parts; the name it had
//!   epochs/UUID        the last epoch that was given to a gateway of a volume
//! ```

use std::collections::{BTreeMap, BTreeSet};

use engine::cluster::ROUND_NS_MIN;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::control::view::CreateVolume;
use crate::quantity::{Name, ShareText};

/// A server of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The UUID of its disk: who has another one is another server.
    pub uuid: Uuid,
    /// Where clients reach its volumes.
    pub advertise: String,
}

/// What a server that runs says of itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Alive {
    /// The disk that takes part.
    pub disk: Name,
    /// Its size, bytes.
    pub size_bytes: u64,
    /// Its free space, bytes.
    pub free_bytes: u64,
    /// R of the disk, thousandths.
    pub insulation_permille: u32,
    /// Time that a context switch of the disk takes.
    pub switch_ns: u64,
    /// Its longest round.
    pub round_max_ns: u64,
    /// Its clock.
    pub clock: ClockState,
    /// The version of the schedule that it has; 0 for none.
    pub version: u64,
    /// Volumes of the cluster that it should have and does not serve.
    pub missing: Vec<Name>,
    /// The shortest slice with which each volume keeps R, of those for which it is measured. Absent from a server whose
    /// release measures none; that does not know [`What::Retime`] either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<BTreeMap<Name, u64>>,
}

/// What is known of the error of a clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClockState {
    /// Whether the kernel, or the configuration, says that it is synchronised.
    pub synchronised: bool,
    /// Whether the configuration says so.
    pub trusted: bool,
    /// Its estimated error.
    pub error_ns: u64,
    /// Whether the error permits striped volumes.
    pub good: bool,
}

/// A volume of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Volume {
    /// The same on all its servers.
    pub uuid: Uuid,
    /// Bytes.
    pub size: u64,
    /// Bytes on each server.
    pub member_size: u64,
    /// Bytes that follow each other on one server.
    pub stripe: u64,
    /// The share of each of its servers.
    pub share: ShareText,
    /// In the order of the stripes.
    pub servers: Vec<Name>,
    /// Whether it is being deleted; it was decided, and is not undone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub deleting: bool,
    /// Servers that were removed with their parts: without redundancy of its own, it is broken.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Name>,
}

impl Volume {
    /// Whether it is on several servers.
    pub fn is_striped(&self) -> bool {
        self.servers.len() > 1
    }

    /// The servers that have its parts, apart from those that were removed. Another server may have such a name by now.
    pub fn holders(&self) -> impl Iterator<Item = &Name> {
        self.servers.iter().filter(|server| !self.lost.contains(server))
    }
}

/// A schedule: which volume has which part of a round, on which servers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Schedule {
    /// Grows with each change.
    pub version: u64,
    /// Time zero: when a round of it begins for the first time, nanoseconds since the Unix epoch. 0 while it is
    /// proposed.
    pub begins_ns: u64,
    /// The length of the round.
    pub round_ns: u64,
    /// R of the cluster.
    pub r_cluster: f64,
    /// One for each volume.
    pub slots: Vec<Slot>,
    /// What the round was chosen for: the need that is largest for its part of the round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub need: Option<SliceNeed>,
    /// When the last [`What::Retime`] was proposed, nanoseconds since the Unix epoch; 0 for never.
    #[serde(default)]
    pub retimed_ns: u64,
}

/// The shortest slice with which a volume keeps R on a server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SliceNeed {
    /// The server.
    pub server: Name,
    /// The volume.
    pub volume: Name,
    /// The slice.
    pub slice_ns: u64,
}

/// A slice of a volume, in each round.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Slot {
    /// The volume.
    pub volume: Name,
    /// From the beginning of the round.
    pub start_ns: u64,
    /// How long it is.
    pub length_ns: u64,
    /// The servers.
    pub servers: Vec<Name>,
}

impl Schedule {
    /// The first time of the round that is free on all these servers for so long.
    pub fn free_ns(&self, servers: &[Name], length_ns: u64) -> Option<u64> {
        let on_them = |slot: &&Slot| slot.servers.iter().any(|server| servers.contains(server));
        let taken: Vec<(u64, u64)> =
            self.slots.iter().filter(on_them).map(|slot| (slot.start_ns, slot.start_ns + slot.length_ns)).collect();
        let is_free = |&start: &u64| {
            let end = start + length_ns;
            end <= self.round_ns && taken.iter().all(|&(from, to)| end <= from || to <= start)
        };
        [0].into_iter().chain(taken.iter().map(|&(_, to)| to)).filter(is_free).min()
    }
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule {
            version: 0,
            begins_ns: 0,
            round_ns: ROUND_NS_MIN,
            r_cluster: 1.0,
            slots: Vec::new(),
            need: None,
            retimed_ns: 0,
        }
    }
}

/// A change that is being made: at most one in a cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Change {
    /// A name for it.
    pub id: Uuid,
    /// Its lease: when that ends, the change is undone.
    pub lease: i64,
    /// The name of the volume; if the round changes, of the one that it changes for; of a server that is removed.
    pub volume: Name,
    /// What is to be done.
    pub what: What,
    /// The schedule after it.
    pub schedule: Schedule,
    /// The servers that have to agree.
    pub servers: BTreeSet<Name>,
}

/// What a change does.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// A volume is created.
    Create {
        /// As it will be.
        volume: Volume,
        /// What its creator asked for.
        request: Box<CreateVolume>,
    },
    /// A volume is deleted.
    Delete {
        /// Which one.
        uuid: Uuid,
        /// Even if clients are connected.
        force: bool,
    },
    /// A volume gets another share, or becomes larger.
    Update {
        /// As it will be.
        volume: Volume,
    },
    /// The round becomes longer or shorter, with the same slots.
    Retime,
    /// A server that is lost for good is removed, with its parts of volumes.
    Remove {
        /// Its name.
        server: Name,
        /// The UUID of its disk.
        uuid: Uuid,
    },
    /// What this release cannot read: it was proposed by a later one. A server refuses it if it is asked, and leaves it
    /// to the others otherwise.
    #[serde(untagged)]
    Unknown(serde_json::Value),
}

/// What a server says of a change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ack {
    /// Why it cannot be done; absent if it is.
    pub error: Option<String>,
}

/// Everything that etcd has of a cluster, at one revision.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The revision of etcd.
    pub revision: i64,
    /// Servers.
    pub members: BTreeMap<Name, Member>,
    /// Those that get no new volumes.
    pub draining: BTreeSet<Name>,
    /// Those that run.
    pub alive: BTreeMap<Name, Alive>,
    /// The versions of the schedule that they have.
    pub versions: BTreeMap<Name, u64>,
    /// Volumes.
    pub volumes: BTreeMap<Name, Volume>,
    /// The last schedule, and the revision at which it was written.
    pub schedule: Option<(Schedule, i64)>,
    /// The change that is being made.
    pub change: Option<Change>,
    /// What servers say of it.
    pub acks: BTreeMap<Name, Ack>,
    /// Changes that were undone.
    pub outcomes: BTreeMap<Uuid, Ack>,
    /// Parts of volumes that were deleted.
    pub gone: BTreeSet<(Uuid, Name)>,
    /// Disks of servers that were removed, and their names.
    pub removed: BTreeMap<Uuid, Name>,
    /// The last epochs that were given to gateways, by volume.
    pub epochs: BTreeMap<Uuid, u64>,
    /// The revision at which each key was written.
    revisions: BTreeMap<String, i64>,
}

/// A key of etcd whose value is not understood.
#[derive(Debug, thiserror::Error)]
#[error("its key {key} cannot be read: {why}")]
pub struct Unreadable {
    key: String,
    why: String,
}

impl Unreadable {
    /// The value of this key, and why.
    pub fn new(key: &str, why: String) -> Unreadable {
        Unreadable { key: key.to_owned(), why }
    }
}

impl Image {
    /// One without keys.
    pub fn at(revision: i64) -> Image {
        Image { revision, ..Image::default() }
    }

    /// Takes a key, without the prefix of the cluster; that of the change before what is said of it.
    pub fn take(&mut self, key: &str, value: &[u8], revision: i64) -> Result<(), Unreadable> {
        fn read<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, Unreadable> {
            serde_json::from_slice(value).map_err(|why| Unreadable { key: key.to_owned(), why: why.to_string() })
        }
        let wrong = |why: String| Unreadable { key: key.to_owned(), why };
        let name = |text: &str| text.parse::<Name>().map_err(|why| wrong(why.to_string()));
        let uuid = |text: &str| text.parse::<Uuid>().map_err(|why| wrong(why.to_string()));
        let parts: Vec<&str> = key.split('/').collect();
        match parts[..] {
            ["members", of] => drop(self.members.insert(name(of)?, read(key, value)?)),
            ["draining", of] => drop(self.draining.insert(name(of)?)),
            ["alive", of] => drop(self.alive.insert(name(of)?, read(key, value)?)),
            ["versions", of] => drop(self.versions.insert(name(of)?, read(key, value)?)),
            ["volumes", of] => drop(self.volumes.insert(name(of)?, read(key, value)?)),
            ["schedule"] => self.schedule = Some((read(key, value)?, revision)),
            ["change"] => self.change = Some(read(key, value)?),
            // Those of an earlier change end with its lease.
            ["acks", id, of] => {
                if self.change.as_ref().is_some_and(|change| change.id.to_string() == id) {
                    self.acks.insert(name(of)?, read(key, value)?);
                }
            }
            ["outcome", id] => drop(self.outcomes.insert(uuid(id)?, read(key, value)?)),
            ["gone", id, of] => drop(self.gone.insert((uuid(id)?, name(of)?))),
            ["removed", of] => drop(self.removed.insert(uuid(of)?, read(key, value)?)),
            ["epochs", of] => drop(self.epochs.insert(uuid(of)?, read(key, value)?)),
            _ => return Err(wrong("this release does not know it: was it written by a later one?".into())),
        }
        self.revisions.insert(key.to_owned(), revision);
        Ok(())
    }

    /// The last schedule; one without slots if there was none.
    pub fn schedule(&self) -> Schedule {
        self.schedule.as_ref().map(|(schedule, _)| schedule.clone()).unwrap_or_default()
    }

    /// The revision at which a key was written; 0 if it does not exist.
    pub fn revision_of(&self, key: &str) -> i64 {
        self.revisions.get(key).copied().unwrap_or(0)
    }

    /// The version of the next schedule: above all that servers have, even if etcd was restored from a backup.
    pub fn next_version(&self) -> u64 {
        let alive = self.alive.values().map(|alive| alive.version);
        let known = self.schedule.iter().map(|(schedule, _)| schedule.version);
        1 + alive.chain(self.versions.values().copied()).chain(known).max().unwrap_or(0)
    }

    /// Volumes with a part on a server.
    pub fn volumes_of(&self, server: &Name) -> impl Iterator<Item = (&Name, &Volume)> {
        self.volumes.iter().filter(move |(_, volume)| volume.holders().any(|holder| holder == server))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_or_named() {
        let mut image = Image::default();
        let member = Member { uuid: Uuid::from_u128(1), advertise: "nbd://h:1".into() };
        image.take("members/s1", serde_json::to_string(&member).unwrap().as_bytes(), 1).unwrap();
        image.take("draining/s1", b"{}", 2).unwrap();
        assert_eq!(image.members.values().next(), Some(&member));
        let why = |key: &str, value: &[u8]| Image::default().take(key, value, 1).unwrap_err().to_string();
        assert!(why("members/s1", b"{").contains("members/s1"));
        assert!(why("members/../x", b"{}").contains("later one"));
        assert!(why("future", b"1").contains("later one"));
    }

    #[test]
    fn a_change_of_a_later_release_is_read_as_unknown() {
        let read = |what: &str| {
            let text = format!(
                r#"{{"id": "{}", "lease": 1, "volume": "v", "what": {what}, "servers": [],
                    "schedule": {{"version": 2, "begins_ns": 0, "round_ns": 1, "r_cluster": 1.0, "slots": []}}}}"#,
                Uuid::from_u128(7)
            );
            let mut image = Image::default();
            image.take("change", text.as_bytes(), 1).map(|()| image.change.expect("it was taken"))
        };
        let delete = format!(r#"{{"delete": {{"uuid": "{}", "force": true}}}}"#, Uuid::from_u128(9));
        assert!(matches!(read(&delete), Ok(Change { what: What::Delete { force: true, .. }, .. })));
        assert!(matches!(read(r#""retime""#), Ok(Change { what: What::Retime, .. })));
        let told = serde_json::to_value(What::Retime).unwrap();
        assert_eq!(told, serde_json::json!("retime"));
        for later in [r#""defragment""#, r#"{"move": {"from": "s1"}}"#, r#"{"create": {"volume": 5}}"#] {
            let Ok(Change { what: What::Unknown(what), schedule, .. }) = read(later) else { panic!("{later}") };
            assert_eq!((what, schedule.need), (serde_json::from_str(later).unwrap(), None));
        }
    }

    #[test]
    fn a_server_of_an_earlier_release_has_no_needs() {
        let text = r#"{"disk": "hdd", "size_bytes": 1, "free_bytes": 1, "insulation_permille": 900, "switch_ns": 5,
            "round_max_ns": 9, "clock": {"synchronised": true, "trusted": true, "error_ns": 0, "good": true},
            "version": 3, "missing": []}"#;
        let mut image = Image::default();
        image.take("alive/s1", text.as_bytes(), 1).unwrap();
        let alive = image.alive.values().next().unwrap();
        assert_eq!((alive.version, &alive.needs), (3, &None));
        let now = Alive { needs: Some([("v".parse().unwrap(), 7)].into()), ..alive.clone() };
        image.take("alive/s1", serde_json::to_string(&now).unwrap().as_bytes(), 1).unwrap();
        assert_eq!(image.alive.values().next(), Some(&now));
    }

    #[test]
    fn acks_count_for_the_change_that_is_being_made() {
        let change = Change {
            id: Uuid::from_u128(7),
            lease: 1,
            volume: "v".parse().unwrap(),
            what: What::Delete { uuid: Uuid::from_u128(9), force: false },
            schedule: Schedule::default(),
            servers: BTreeSet::new(),
        };
        let mut image = Image::default();
        image.take("change", serde_json::to_string(&change).unwrap().as_bytes(), 5).unwrap();
        for id in [7u128, 8] {
            image.take(&format!("acks/{}/s{id}", Uuid::from_u128(id)), b"{\"error\":null}", 6).unwrap();
        }
        assert_eq!(image.acks.keys().map(Name::as_str).collect::<Vec<_>>(), ["s7"]);
    }
}
