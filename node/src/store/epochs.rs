//! The epochs of the sessions of a volume (`engine::nbd::Claim`): for each client the latest one.
//!
//! ```text
//!   DISK/volumes/NAME.epochs      format = 1
//!                                 volume = "UUID"
//!                                 sessions = ["gateway-1/7", "gateway-2/41"]     the latest one last
//!                                             "gateway-3/16777217/lease"         one with a lease
//! ```
//!
//! The epochs of sessions with leases are those of all clients: a cluster issues them.
//!
//! An epoch is written before its session may begin, so that a session of an earlier epoch is refused after a restart,
//! too. There is no file before the first claim. Downside: of more than [`CLIENTS_MAX`] clients, those whose sessions
//! began longest ago are forgotten, and with them their epochs.

use std::fs;
use std::io;
use std::path::PathBuf;

use engine::nbd::Claim;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::identity::replace;
use super::steps::Files;
use crate::sessions::DIRECT;

/// The version of the file's format.
const FORMAT: u32 = 1;
/// Clients whose epochs are kept: as many as a volume has connections by default. Limits the file to some 20 KiB.
const CLIENTS_MAX: usize = 256;

/// The end of one with a lease.
const LEASED: &str = "/lease";

/// Why an epoch was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum EpochError {
    #[error("its latest session has epoch {0}")]
    NotAbove(u64),
    #[error("another client has been admitted since the session that it continues, or the record is older than that")]
    Interrupted(Option<String>),
    #[error("the volume is being deleted")]
    Deleted,
    #[error("the epochs of its sessions in {} cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the epochs of its sessions in {} cannot be parsed", .0.display())]
    Parse(PathBuf),
    #[error("the epochs of its sessions in {} cannot be written: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Epochs {
    format: u32,
    /// The volume. A file that an earlier volume of the same name has left says nothing about this one.
    volume: Uuid,
    /// A client and its epoch each, as in the query: TOML has no numbers of 64 bits without sign.
    sessions: Vec<String>,
}

/// The last session of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Recorded {
    client: String,
    epoch: u64,
    leased: bool,
}

impl Recorded {
    fn parse(session: &str) -> Option<Recorded> {
        let (client, epoch) = session.split_once('/')?;
        let (epoch, leased) = epoch.strip_suffix(LEASED).map_or((epoch, false), |epoch| (epoch, true));
        Some(Recorded { client: client.into(), epoch: epoch.parse().ok()?, leased })
    }

    fn is_of(&self, claim: &Claim) -> bool {
        self.client == claim.client && self.leased == claim.leased
    }
}

impl std::fmt::Display for Recorded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}{}", self.client, self.epoch, if self.leased { LEASED } else { "" })
    }
}

impl Files<'_> {
    /// Records durably that a session of a client begins. Its epoch must be above the recorded one, and the session
    /// that it continues, if it does, must not be followed by one of another client. One call at a time.
    pub fn record_epoch(&self, volume: Uuid, claim: &Claim) -> Result<(), EpochError> {
        let (client, epoch) = (&claim.client, claim.epoch);
        let path = self.epochs();
        let unreadable = |source| EpochError::Read { path: path.clone(), source };
        if self.published().map_err(unreadable)?.is_none_or(|spec| spec.uuid != volume) {
            return Err(EpochError::Deleted);
        }
        let mut sessions = self.read_epochs(volume)?;
        // Attempts of the client after the session that it continues may be recorded, too. An empty record names nobody
        // else: it is that of another volume, as the client sees by its UUID, or was removed by an operator.
        if let (Some(after), Some(last)) = (claim.after, sessions.last())
            && (!last.is_of(claim) || last.epoch < after)
        {
            return Err(EpochError::Interrupted(Some(last.client.clone()).filter(|by| by != client)));
        }
        let counts = |known: &&Recorded| known.is_of(claim) || claim.leased && known.leased;
        let latest = sessions.iter().filter(counts).map(|known| known.epoch).max();
        // Who claims nothing has no epoch of its own.
        let epoch = if client == DIRECT { latest.map_or(1, |latest| latest.saturating_add(1)) } else { epoch };
        if let Some(latest) = latest.filter(|&latest| epoch <= latest) {
            return Err(EpochError::NotAbove(latest));
        }
        sessions.retain(|known| !known.is_of(claim));
        sessions.push(Recorded { client: client.clone(), epoch, leased: claim.leased });
        let forgotten = sessions.len().saturating_sub(CLIENTS_MAX);
        let sessions = sessions.drain(forgotten..).map(|session| session.to_string()).collect();
        let text = toml::to_string(&Epochs { format: FORMAT, volume, sessions }).expect("it can be written as TOML");
        replace(&path, text.as_bytes()).map_err(|source| EpochError::Write { path, source })
    }

    /// The client whose session began last, if that has a lease.
    pub fn last_leased(&self, volume: Uuid) -> Result<Option<String>, EpochError> {
        let last = self.read_epochs(volume)?.pop();
        Ok(last.filter(|last| last.leased).map(|last| last.client))
    }

    /// The latest epoch of a session with a lease; 0 if there was none.
    pub fn last_epoch(&self, volume: Uuid) -> Result<u64, EpochError> {
        let sessions = self.read_epochs(volume)?;
        Ok(sessions.iter().filter(|session| session.leased).map(|session| session.epoch).max().unwrap_or(0))
    }

    /// The last session of each client, the latest one last.
    fn read_epochs(&self, volume: Uuid) -> Result<Vec<Recorded>, EpochError> {
        let path = self.epochs();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(EpochError::Read { path, source }),
        };
        let epochs = toml::from_str::<Epochs>(&text).ok().filter(|epochs| epochs.format == FORMAT);
        let Some(epochs) = epochs else { return Err(EpochError::Parse(path)) };
        if epochs.volume != volume {
            return Ok(Vec::new());
        }
        let sessions = epochs.sessions.iter().map(|session| Recorded::parse(session));
        sessions.collect::<Option<_>>().ok_or(EpochError::Parse(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::Name;
    use crate::store::spec::Allocation;
    use crate::store::{Identity, Progress, Scheduling, Spec, Store};

    fn claim(client: &str, epoch: u64) -> Claim {
        Claim { client: client.into(), epoch, after: None, shared: false, leased: false }
    }

    fn disk(directory: &std::path::Path) -> (Store, Name, Spec) {
        Identity::initialise(directory, None, Vec::new(), Scheduling::default()).unwrap();
        let (store, name) = (Store::open(directory, None).unwrap(), "db".parse().unwrap());
        let spec = Spec::new(4096, None, Allocation::Whole);
        store.files(&name).create(&spec, &Progress::default()).unwrap();
        (store, name, spec)
    }

    /// Records the epoch of a claim as it is written in the query.
    fn record(store: &Store, name: &Name, spec: &Spec, text: &str) -> Result<(), EpochError> {
        let claim = Claim::parse(format!("aerogel:session={text}").as_bytes()).unwrap();
        store.files(name).record_epoch(spec.uuid, &claim)
    }

    #[test]
    fn epochs_with_leases_are_those_of_all_clients() {
        let dir = tempfile::tempdir().unwrap();
        let (store, name, spec) = disk(dir.path());
        let record = |text: &str| record(&store, &name, &spec, text);
        let last = || store.files(&name).last_leased(spec.uuid).unwrap();
        assert_eq!(last(), None);
        record("c/1000").unwrap();
        record("a/5/lease").unwrap();
        assert_eq!(last(), Some("a".into()));
        assert!(matches!(record("b/5/lease"), Err(EpochError::NotAbove(5))));
        record("a/6/after=5/lease").unwrap();
        record("b/7/lease").unwrap();
        assert!(matches!(record("a/8/after=6/lease"), Err(EpochError::Interrupted(Some(by))) if by == "b"));
        let direct = Claim { client: DIRECT.into(), epoch: 0, after: None, shared: false, leased: false };
        for _ in 0..2 {
            store.files(&name).record_epoch(spec.uuid, &direct).unwrap();
            assert!(last().is_none() && record("b/9/after=7/lease").is_err(), "somebody else has written");
        }
    }

    #[test]
    fn without_a_lease_nobody_can_use_up_the_epochs_of_a_client_with_one() {
        let dir = tempfile::tempdir().unwrap();
        let (store, name, spec) = disk(dir.path());
        let record = |text: &str| record(&store, &name, &spec, text);
        record("a/5/lease").unwrap();
        record(&format!("a/{}", u64::MAX)).unwrap();
        assert_eq!(store.files(&name).last_epoch(spec.uuid).unwrap(), 5);
        assert!(
            matches!(record("a/6/after=5/lease"), Err(EpochError::Interrupted(_))),
            "somebody else may have written"
        );
        record("a/6/lease").unwrap();
    }

    #[test]
    fn epochs_of_each_client_grow_and_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (store, name, spec) = disk(dir.path());
        let record = |client: &str, epoch| store.files(&name).record_epoch(spec.uuid, &claim(client, epoch));
        record("a", 5).unwrap();
        record("b", 1).unwrap();
        for epoch in [4, 5] {
            assert!(matches!(record("a", epoch), Err(EpochError::NotAbove(5))));
        }
        record("a", u64::MAX).unwrap();
        let known = [("b", 1), ("a", u64::MAX)];
        let known = known.map(|(client, epoch)| Recorded { client: client.into(), epoch, leased: false });
        assert_eq!(store.files(&name).read_epochs(spec.uuid).unwrap(), known);
        assert_eq!(store.scan().unwrap().unclaimed, [] as [PathBuf; 0]);
        // Those that began longest ago are forgotten.
        (0..CLIENTS_MAX).for_each(|i| record(&format!("c{i}"), 1).unwrap());
        assert_eq!(store.files(&name).read_epochs(spec.uuid).unwrap().len(), CLIENTS_MAX);
        record("a", 1).unwrap();
        assert!(record("c1", 1).is_err());
    }

    #[test]
    fn a_session_is_continued_unless_another_client_was_admitted() {
        let dir = tempfile::tempdir().unwrap();
        let (store, name, spec) = disk(dir.path());
        let record = |client: &str, epoch, after| {
            store.files(&name).record_epoch(spec.uuid, &Claim { after, ..claim(client, epoch) })
        };
        record("a", 5, Some(4)).unwrap();
        // The client has not learnt that session 6 was recorded.
        record("a", 6, Some(5)).unwrap();
        record("a", 7, Some(5)).unwrap();
        assert!(matches!(record("a", 20, Some(9)), Err(EpochError::Interrupted(None))), "the record is an old one");
        record("b", 1, None).unwrap();
        for epoch in [8, 9] {
            assert!(matches!(record("a", epoch, Some(7)), Err(EpochError::Interrupted(Some(by))) if by == "b"));
        }
        // A new process of the client has nothing that could be outdated.
        record("a", 10, None).unwrap();
        record("a", 11, Some(10)).unwrap();
        assert!(matches!(record("b", 2, Some(1)), Err(EpochError::Interrupted(Some(by))) if by == "a"));
    }

    #[test]
    fn what_another_volume_left_has_no_effect_and_what_cannot_be_read_is_not_empty() {
        let dir = tempfile::tempdir().unwrap();
        let (store, name, spec) = disk(dir.path());
        let files = store.files(&name);
        let left = Epochs { format: FORMAT, volume: Uuid::new_v4(), sessions: vec!["a/9".into()] };
        fs::write(files.epochs(), toml::to_string(&left).unwrap()).unwrap();
        files.record_epoch(spec.uuid, &claim("a", 1)).unwrap();
        assert!(matches!(files.record_epoch(Uuid::new_v4(), &claim("a", 2)), Err(EpochError::Deleted)));
        for nonsense in ["", "format = 2", "hello"] {
            fs::write(files.epochs(), nonsense).unwrap();
            let recorded = files.record_epoch(spec.uuid, &claim("a", 2));
            assert!(matches!(recorded, Err(EpochError::Parse(_))), "{nonsense}");
        }
        fs::remove_file(files.epochs()).unwrap();
        fs::create_dir(files.epochs()).unwrap();
        assert!(matches!(files.record_epoch(spec.uuid, &claim("a", 2)), Err(EpochError::Read { .. })));
    }
}
