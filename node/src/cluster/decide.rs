//! What has to be done next: pure functions of what etcd has and what is on this server's disk. Any server decides on
//! a change as soon as it sees that it can be; a transaction of etcd lets one of them do it. So a server that dies in
//! the middle of a change leaves nothing that the others, or it itself after a restart, do not finish or undo.
//!
//! ```text
//!   proposed ──► each server named prepares and acknowledges ──► all did: committed ──► each server publishes its part
//!      │                                                    └──► one cannot: undone ──► each server discards its part
//!      └── its lease ends: undone by etcd itself ─────────────────────────────────────►
//! ```

use std::collections::BTreeMap;

use engine::units::Share;
use uuid::Uuid;

use super::records::{Ack, Change, Image, What};
use crate::control::PartFacts;
use crate::quantity::Name;
use crate::store::spec::Part;

/// What becomes of a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// All servers that it names agree.
    Commit,
    /// One does not, for this reason.
    Undo(String),
}

/// Decides on a change; `None` as long as it is open.
pub fn decide(change: &Change, acks: &BTreeMap<Name, Ack>) -> Option<Decision> {
    let refusal = acks.iter().find_map(|(server, ack)| Some((server, ack.error.as_ref()?)));
    if let Some((server, why)) = refusal {
        return Some(Decision::Undo(format!("server '{server}': {why}")));
    }
    change.servers.iter().all(|server| acks.contains_key(server)).then_some(Decision::Commit)
}

/// The servers whose answer is missing.
pub fn silent(change: &Change, acks: &BTreeMap<Name, Ack>) -> Vec<Name> {
    change.servers.iter().filter(|server| !acks.contains_key(*server)).cloned().collect()
}

/// A part on this server's disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Here {
    /// What it is a part of.
    pub part: Part,
    /// The share of its tenant.
    pub share: Option<Share>,
}

impl From<PartFacts> for Here {
    fn from(PartFacts { part, share, .. }: PartFacts) -> Here {
        Here { part, share }
    }
}

/// What this server has to do on its own disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Task {
    /// The volume was committed: clients may open its part here.
    Publish(Name),
    /// The volume was never committed: its part goes.
    Discard(Name, Uuid),
    /// The volume has another share or size than its part here: the part follows.
    Update(Name),
    /// The volume is being deleted: its part goes.
    Delete(Name, Uuid),
    /// It has gone, which the others have to know.
    SayGone(Uuid),
    /// A change waits for this server.
    Prepare,
}

impl Task {
    /// Whether it is the answer to a change.
    pub fn is_answer(&self) -> bool {
        *self == Task::Prepare
    }
}

/// The tasks of a server, in this order. `parts` are the parts of volumes on its disk.
pub fn tasks(me: &Name, image: &Image, parts: &BTreeMap<Name, Here>) -> Vec<Task> {
    let mut tasks = Vec::new();
    let being_created = image.change.as_ref().and_then(|change| match &change.what {
        What::Create { volume, .. } => Some(volume.uuid),
        What::Delete { .. } | What::Update { .. } | What::Retime | What::Remove { .. } | What::Unknown(_) => None,
    });
    for (name, Here { part, share }) in parts {
        let known = image.volumes.get(name).filter(|volume| volume.uuid == part.volume);
        match known {
            Some(volume) if volume.deleting => tasks.push(Task::Delete(name.clone(), part.volume)),
            Some(_) if !part.committed => tasks.push(Task::Publish(name.clone())),
            Some(volume) if *share != Some(volume.share.share) || part.size != volume.size => {
                tasks.push(Task::Update(name.clone()));
            }
            None if !part.committed && being_created != Some(part.volume) => {
                tasks.push(Task::Discard(name.clone(), part.volume));
            }
            // A committed part that the cluster does not know is data: it stays, and is told of.
            Some(_) | None => {}
        }
    }
    for (name, volume) in image.volumes_of(me).filter(|(_, volume)| volume.deleting) {
        let is_here = parts.get(name).is_some_and(|here| here.part.volume == volume.uuid);
        if !is_here && !image.gone.contains(&(volume.uuid, me.clone())) {
            tasks.push(Task::SayGone(volume.uuid));
        }
    }
    if let Some(change) = &image.change
        && change.servers.contains(me)
        && !image.acks.contains_key(me)
    {
        tasks.push(Task::Prepare);
    }
    tasks
}

/// Volumes of which all parts have gone: their names are free again.
pub fn finished(image: &Image) -> Vec<(Name, Uuid)> {
    let deleting = image.volumes.iter().filter(|(_, volume)| volume.deleting);
    let all_gone = deleting
        .filter(|(_, volume)| volume.holders().all(|server| image.gone.contains(&(volume.uuid, server.clone()))));
    all_gone.map(|(name, volume)| (name.clone(), volume.uuid)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::records::{Schedule, Volume};
    use super::*;
    use crate::control::view::CreateVolume;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    fn volume(uuid: u128, deleting: bool) -> Volume {
        Volume {
            uuid: Uuid::from_u128(uuid),
            size: 1 << 20,
            member_size: 1 << 19,
            stripe: 65536,
            share: "1/3".parse().expect("a share"),
            servers: vec![name("s1"), name("s2")],
            deleting,
            lost: Vec::new(),
        }
    }

    fn part(uuid: u128, committed: bool) -> Here {
        let Volume { uuid, size, stripe, servers, share, .. } = volume(uuid, false);
        let part = Part { cluster: name("lab"), volume: uuid, servers, size, stripe, committed, lost: false };
        Here { part, share: Some(share.share) }
    }

    fn creating(uuid: u128) -> Change {
        let request = Box::new(CreateVolume::plain(name("v"), None));
        Change {
            id: Uuid::from_u128(1000),
            lease: 5,
            volume: name("v"),
            what: What::Create { volume: volume(uuid, false), request },
            schedule: Schedule::default(),
            servers: [name("s1"), name("s2")].into(),
        }
    }

    fn says(error: Option<&str>) -> Ack {
        Ack { error: error.map(str::to_owned) }
    }

    #[test]
    fn a_change_is_committed_when_all_agree_and_undone_when_one_does_not() {
        let change = creating(1);
        let mut acks = BTreeMap::new();
        assert_eq!(decide(&change, &acks), None);
        assert_eq!(silent(&change, &acks), [name("s1"), name("s2")]);
        acks.insert(name("s1"), says(None));
        assert_eq!(decide(&change, &acks), None);
        let mut refused = acks.clone();
        refused.insert(name("s2"), says(Some("no room")));
        assert_eq!(decide(&change, &refused), Some(Decision::Undo("server 's2': no room".into())));
        acks.insert(name("s2"), says(None));
        assert_eq!(decide(&change, &acks), Some(Decision::Commit));
        assert_eq!(silent(&change, &acks), []);
    }

    #[test]
    fn a_part_is_published_discarded_or_deleted_as_etcd_says() {
        let (me, mut image) = (name("s1"), Image::default());
        let has = |here: Here| BTreeMap::from([(name("v"), here)]);
        let uncommitted = has(part(1, false));
        assert_eq!(
            tasks(&me, &image, &uncommitted),
            [Task::Discard(name("v"), Uuid::from_u128(1))],
            "nobody creates it"
        );
        image.change = Some(creating(1));
        assert_eq!(tasks(&me, &image, &uncommitted), [Task::Prepare], "it is what is being created");
        image.change = Some(creating(2));
        let both = [Task::Discard(name("v"), Uuid::from_u128(1)), Task::Prepare];
        assert_eq!(tasks(&me, &image, &uncommitted), both, "that of an earlier attempt makes room");
        image.acks.insert(me.clone(), says(None));
        image.volumes.insert(name("v"), volume(1, false));
        assert_eq!(tasks(&me, &image, &uncommitted), [Task::Publish(name("v"))]);
        assert_eq!(tasks(&me, &image, &has(part(1, true))), []);
        image.volumes.insert(name("v"), volume(1, true));
        let delete = [Task::Delete(name("v"), Uuid::from_u128(1))];
        for committed in [true, false] {
            assert_eq!(tasks(&me, &image, &has(part(1, committed))), delete);
        }
        assert_eq!(tasks(&me, &image, &BTreeMap::new()), [Task::SayGone(Uuid::from_u128(1))]);
    }

    #[test]
    fn data_that_was_committed_is_never_deleted_unless_etcd_says_so() {
        let (me, mut image) = (name("s1"), Image::default());
        let committed = BTreeMap::from([(name("v"), part(1, true))]);
        assert_eq!(tasks(&me, &image, &committed), [], "etcd was restored from nothing");
        image.volumes.insert(name("v"), volume(2, true));
        let gone = [Task::SayGone(Uuid::from_u128(2))];
        assert_eq!(tasks(&me, &image, &committed), gone, "another volume of this name is deleted");
    }

    #[test]
    fn a_part_follows_the_share_and_the_size_of_its_volume() {
        let (me, mut image) = (name("s1"), Image::default());
        let has = BTreeMap::from([(name("v"), part(1, true))]);
        image.volumes.insert(name("v"), volume(1, false));
        assert_eq!(tasks(&me, &image, &has), []);
        let half = Volume { share: "1/2".parse().expect("a share"), ..volume(1, false) };
        for other in [half, Volume { size: 2 << 20, ..volume(1, false) }] {
            image.volumes.insert(name("v"), other);
            assert_eq!(tasks(&me, &image, &has), [Task::Update(name("v"))]);
        }
        image.volumes.insert(name("v"), volume(2, false));
        assert_eq!(tasks(&me, &image, &has), [], "another volume of this name");
    }

    #[test]
    fn a_name_is_free_when_all_parts_have_gone() {
        let mut image = Image::default();
        image.volumes.insert(name("v"), volume(1, true));
        assert_eq!(finished(&image), []);
        image.gone.insert((Uuid::from_u128(1), name("s1")));
        assert_eq!(finished(&image), []);
        // A server that was removed has no part any more.
        let mut broken = image.clone();
        broken.volumes.insert(name("v"), Volume { lost: vec![name("s2")], ..volume(1, true) });
        assert_eq!(finished(&broken), [(name("v"), Uuid::from_u128(1))]);
        assert_eq!(tasks(&name("s2"), &broken, &BTreeMap::new()), [], "its successor has nothing to say");
        image.gone.insert((Uuid::from_u128(1), name("s2")));
        assert_eq!(finished(&image), [(name("v"), Uuid::from_u128(1))]);
    }
}
