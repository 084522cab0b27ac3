//! `DISK/offload.toml`: the stores that the writes of a disk are off-loaded to, and what the next process has to know
//! of them before it may use them. The file exists as long as off-loading is enabled.
//!
//! A volume may be off-loaded only if its specification is marked ([`Spec::offload`](super::Spec)) and the file has a
//! number for it. The number is in the logs. It is given once, so what a log has of a volume that was deleted is never
//! taken for that of another one.

mod map;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;

use engine::nbd::NotUri;
use engine::offload::{COPIES_MAX, STORES_MAX};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use map::{Map, Valid};

use super::remote::{ExportUri, Remote};
use super::{Key, Store};
use crate::quantity::{Name, QuantityError, Size, as_text};

/// The version of the file's format.
const FORMAT: u32 = 1;

/// The engine's defaults.
const DEFAULT: engine::offload::Settings = engine::offload::Settings::DEFAULT;
/// See [`Settings`].
pub const COPIES_DEFAULT: u32 = DEFAULT.copies as u32;
/// See [`Settings`].
pub const BASE_THRESHOLD_DEFAULT: u32 = DEFAULT.base_threshold;
/// See [`Settings`].
pub const STORE_THRESHOLD_DEFAULT: u32 = DEFAULT.store_threshold;
/// See [`Settings`].
pub const RECLAIM_DEPTH_DEFAULT: u32 = DEFAULT.reclaim_depth;
/// See [`Settings`].
pub const LIMIT_DEFAULT: Size = Size(DEFAULT.limit_bytes);

/// A setting that is out of bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("--copies {0} is out of range: each off-loaded write has 1 to {COPIES_MAX} copies, each in another store")]
    Copies(u32),
    #[error("{0} 0 is out of range: it is at least 1")]
    Zero(&'static str),
    #[error("--copies {0} needs {0} stores, and the number of stores is {1}")]
    TooFewStores(u32, usize),
    #[error("a disk has at most {STORES_MAX} stores, and {0} are named")]
    TooManyStores(usize),
}

/// When writes are off-loaded, and brought home.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Stores that have each off-loaded write.
    pub copies: u32,
    /// Requests at the base above which writes are off-loaded.
    pub base_threshold: u32,
    /// Requests at a store from which on no writes are off-loaded to it.
    pub store_threshold: u32,
    /// Content that is copied home at the same time.
    pub reclaim_depth: u32,
    /// Off-loaded bytes of a volume, at most.
    pub limit: Size,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            copies: COPIES_DEFAULT,
            base_threshold: BASE_THRESHOLD_DEFAULT,
            store_threshold: STORE_THRESHOLD_DEFAULT,
            reclaim_depth: RECLAIM_DEPTH_DEFAULT,
            limit: LIMIT_DEFAULT,
        }
    }
}

impl SettingsError {
    /// What a user can do about it.
    pub fn hint(&self) -> String {
        match self {
            SettingsError::Copies(_) => "give --copies 1; or --copies 2, with at least two --store".into(),
            SettingsError::Zero(option) => {
                format!("give {option} 1 or more, or leave it out; `aerogel offload disable DISK` ends off-loading")
            }
            SettingsError::TooFewStores(copies, _) => format!("name {copies} stores with --store, or lower --copies"),
            SettingsError::TooManyStores(_) => format!("name {STORES_MAX} at most with --store"),
        }
    }
}

impl Settings {
    /// Checks what an operator can set, whatever the stores are.
    pub fn check_ranges(&self) -> Result<(), SettingsError> {
        if self.copies == 0 || self.copies as usize > COPIES_MAX {
            return Err(SettingsError::Copies(self.copies));
        }
        let numbers = [
            ("--limit", self.limit.0),
            ("--store-threshold", self.store_threshold.into()),
            ("--reclaim-depth", self.reclaim_depth.into()),
        ];
        match numbers.iter().find(|(_, number)| *number == 0) {
            Some((option, _)) => Err(SettingsError::Zero(option)),
            None => Ok(()),
        }
    }

    /// Checks all that an operator can set, for this number of stores.
    pub fn check(&self, stores: usize) -> Result<(), SettingsError> {
        self.check_ranges()?;
        if stores < self.copies as usize {
            return Err(SettingsError::TooFewStores(self.copies, stores));
        }
        if stores > STORES_MAX { Err(SettingsError::TooManyStores(stores)) } else { Ok(()) }
    }

    /// What the disk's engine is told.
    pub fn for_engine(&self) -> engine::offload::Settings {
        engine::offload::Settings {
            copies: self.copies as usize,
            base_threshold: self.base_threshold,
            store_threshold: self.store_threshold,
            reclaim_depth: self.reclaim_depth,
            limit_bytes: self.limit.0,
            is_always: false,
        }
    }
}

/// A store as users name it: one of this server by its name, any other NBD export by its address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreRef {
    Local(Name),
    Remote(ExportUri),
}

/// Why a text names no store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotStore {
    #[error(transparent)]
    Name(#[from] QuantityError),
    #[error(transparent)]
    Uri(#[from] NotUri),
}

impl FromStr for StoreRef {
    type Err = NotStore;

    fn from_str(text: &str) -> Result<StoreRef, NotStore> {
        match text.contains("://") {
            true => Ok(StoreRef::Remote(text.parse()?)),
            false => Ok(StoreRef::Local(text.parse()?)),
        }
    }
}

impl fmt::Display for StoreRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreRef::Local(name) => name.fmt(f),
            StoreRef::Remote(uri) => uri.fmt(f),
        }
    }
}

as_text!(StoreRef);

/// What the map of the last clean stop says of a store.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mapped {
    /// Nothing: what it has is known when it has been read.
    #[default]
    No,
    /// What it has: no process has opened it since.
    Exactly,
    /// Which of its content counts that only it has. A process has opened it since, and had to begin without it; it was
    /// not told yet what was deleted meanwhile.
    Opened,
}

impl Mapped {
    fn is_no(&self) -> bool {
        *self == Mapped::No
    }
}

/// Whether the disk is to do without a store whose content is brought home first.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Leaving {
    #[default]
    No,
    /// It is being emptied.
    Begun,
    /// It was emptied: nothing refers to it any more.
    Done,
}

impl Leaving {
    fn is_no(&self) -> bool {
        *self == Leaving::No
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A store of the disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// As it was named.
    pub store: StoreRef,
    /// The identity of the log in it.
    pub log: Uuid,
    /// Bytes of the export, and of the log.
    pub size: u64,
    /// See `size`.
    pub capacity: u64,
    /// The last incarnation that started without it and has not told it what was deleted meanwhile, or 0.
    #[serde(default)]
    pub missed: u32,
    /// Whether its log was begun. One that was is never begun anew: without it, data is missing.
    #[serde(default)]
    pub used: bool,
    /// Whether the last process has started with it.
    #[serde(default)]
    pub started: bool,
    /// It is gone for good: the next start does without it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    /// Whether it is being emptied, or was: then the next start does without it, too.
    #[serde(default, skip_serializing_if = "Leaving::is_no")]
    pub leaving: Leaving,
    /// Versions with a lower number do not count there: it could not be written when they were brought home.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub invalid_below: u64,
    /// What the map says of it.
    #[serde(default, skip_serializing_if = "Mapped::is_no")]
    pub mapped: Mapped,
    /// How it is reached, and the last epoch.
    pub export: Remote,
}

impl Entry {
    /// Whether the next start does without it.
    pub fn is_removed(&self) -> bool {
        self.lost || self.leaving == Leaving::Done
    }

    /// Whether it is to be used for good.
    pub fn stays(&self) -> bool {
        !self.lost && self.leaving == Leaving::No
    }
}

/// The content of `offload.toml`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offload {
    format: u32,
    /// Of the last process: that of the next one is above it.
    pub incarnation: u32,
    /// The last incarnation that started without some store, or 0.
    #[serde(default)]
    pub accepted: u32,
    /// Whether content has fewer copies than it should: then no process may start without a store that the last one has
    /// started with.
    #[serde(default)]
    pub thin: bool,
    /// Everything is brought home, and then the file is removed.
    #[serde(default)]
    pub ending: bool,
    /// The number of the next volume. None is given twice.
    pub next_key: u32,
    /// Volumes that are never off-loaded.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub except: BTreeSet<Uuid>,
    pub settings: Settings,
    /// The map of the last clean stop, as long as it may be needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map: Option<Valid>,
    /// In the order in which the engine has them.
    pub stores: Vec<Entry>,
    /// The numbers of volumes.
    #[serde(default)]
    pub keys: BTreeMap<Uuid, u32>,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OffloadError {
    #[error("{} cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} cannot be parsed: {}", path.display(), source.message())]
    Syntax { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{} cannot be parsed: its format is {format}, this server knows {FORMAT}", path.display())]
    Format { path: PathBuf, format: u32 },
    #[error("{} cannot be used: it is missing or damaged, or not the one of the last clean stop", path.display())]
    Map { path: PathBuf },
    #[error("{} cannot be written: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl Offload {
    /// Off-loading that begins.
    pub fn new(settings: Settings, stores: Vec<Entry>) -> Offload {
        Offload {
            format: FORMAT,
            incarnation: 0,
            accepted: 0,
            thin: false,
            ending: false,
            next_key: 0,
            except: BTreeSet::new(),
            settings,
            map: None,
            stores,
            keys: BTreeMap::new(),
        }
    }

    /// Whether the disk must not be used without the stores of which `is_missing` says so. The map has the others.
    pub fn must_wait(&self, is_missing: impl Fn(usize) -> bool) -> bool {
        let missing: Vec<&Entry> =
            (0..).zip(&self.stores).filter(|(at, _)| is_missing(*at)).map(|(_, it)| it).collect();
        let missing: Vec<&Entry> = missing.into_iter().filter(|store| store.mapped != Mapped::Exactly).collect();
        missing.len() >= self.settings.copies as usize || self.thin && missing.iter().any(|store| store.started)
    }

    /// A process begins, with all stores that are not removed. Returns whether there are any.
    pub fn begin(&mut self) -> bool {
        self.incarnation += 1;
        let has_lost = self.stores.iter().any(|store| store.lost);
        self.stores.retain(|store| !store.is_removed());
        // Nothing refers to a store that was emptied.
        if has_lost {
            // What the others have counts, even if it is fewer copies than it should be.
            (self.accepted, self.thin) = (self.incarnation, true);
        }
        // Stores may have been lost while another one was emptied.
        self.settings.copies = self.settings.copies.min(self.stores.len() as u32).max(1);
        self.forget_map_unless_used();
        !self.stores.is_empty()
    }

    /// The process starts without the stores of which `is_missing` says so.
    pub fn start(&mut self, is_missing: impl Fn(usize) -> bool) {
        let incarnation = self.incarnation;
        for (at, store) in self.stores.iter_mut().enumerate() {
            store.started = !is_missing(at);
            store.mapped = match store.mapped {
                Mapped::Exactly if !store.started => Mapped::Exactly,
                Mapped::Exactly | Mapped::Opened if store.started && store.missed > 0 => Mapped::Opened,
                // A process that goes on without it after another one had opened it knows nothing of it.
                _ => Mapped::No,
            };
            if !store.started {
                store.missed = incarnation;
                (self.accepted, self.thin) = (incarnation, true);
            }
        }
        self.forget_map_unless_used();
    }

    /// The process is about to open a store without which it has started.
    pub fn arrive(&mut self, at: usize) {
        let store = &mut self.stores[at];
        if store.mapped == Mapped::Exactly {
            // What only it has counts, so the next process may need it.
            (store.mapped, store.started) = (Mapped::Opened, true);
        }
    }

    /// A store was told of all that was deleted while it was away.
    pub fn told(&mut self, at: usize) {
        (self.stores[at].missed, self.stores[at].mapped) = (0, Mapped::No);
        self.forget_map_unless_used();
    }

    /// The process ends in order, and will write to no store any more.
    pub fn end(&mut self, map: Valid) {
        self.map = Some(map);
        self.stores.iter_mut().for_each(|store| store.mapped = Mapped::Exactly);
    }

    /// The map cannot be read, so its stores have to be. False if that is not enough: a process has started without one
    /// of them, and only the map says which of its content counts.
    pub fn do_without_map(&mut self) -> bool {
        let is_needed = self.stores.iter().any(|store| !store.lost && store.mapped != Mapped::No && store.missed > 0);
        if !is_needed {
            self.stores.iter_mut().for_each(|store| store.mapped = Mapped::No);
            self.map = None;
        }
        !is_needed
    }

    fn forget_map_unless_used(&mut self) {
        self.map = self.map.filter(|_| self.stores.iter().any(|store| store.mapped != Mapped::No));
    }
}

impl Store {
    /// Reads the file; `None` if writes are not off-loaded.
    pub fn offload(&self) -> Result<Option<Offload>, OffloadError> {
        let path = self.catalogue.place(Key::Offload);
        let text = match self.catalogue.get(Key::Offload) {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(None),
            Err(source) => return Err(OffloadError::Read { path, source }),
        };
        match toml::from_str::<Offload>(&text) {
            Ok(found) if found.format == FORMAT => Ok(Some(found)),
            Ok(Offload { format, .. }) => Err(OffloadError::Format { path, format }),
            Err(error) => Err(OffloadError::Syntax { path, source: Box::new(error) }),
        }
    }

    /// Replaces the file durably.
    pub fn put_offload(&self, offload: &Offload) -> Result<(), OffloadError> {
        let text = toml::to_string(offload).expect("it can be written as TOML");
        let failed = |source| OffloadError::Write { path: self.catalogue.place(Key::Offload), source };
        self.catalogue.put(Key::Offload, &text).map_err(failed)
    }

    /// Removes the file durably.
    pub fn remove_offload(&self) -> Result<(), OffloadError> {
        // The file first: a map is of no use without it.
        for key in [Key::Offload, Key::OffloadMap(0), Key::OffloadMap(1)] {
            let failed = |source| OffloadError::Write { path: self.catalogue.place(key), source };
            self.catalogue.remove(key).map_err(failed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Identity, Scheduling};

    fn entry(store: &str) -> Entry {
        let export = toml::from_str(
            "from = \"nbd://other/log\"\ndeadline = \"20s\"\nconnections = 4\nepoch = 1700000000000\nblock = 512\n",
        );
        Entry {
            store: store.parse().unwrap(),
            log: Uuid::new_v4(),
            size: 64 << 20,
            capacity: 60 << 20,
            missed: 0,
            used: false,
            started: false,
            lost: false,
            leaving: Leaving::No,
            invalid_below: 0,
            mapped: Mapped::No,
            export: export.unwrap(),
        }
    }

    pub fn three() -> Offload {
        let settings = Settings { copies: 2, ..Settings::default() };
        Offload::new(settings, vec![entry("spare"), entry("nbd://other/log"), entry("third")])
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        Identity::initialise(dir.path(), None, Vec::new(), Scheduling::default()).unwrap();
        let store = Store::open(dir.path(), None).unwrap();
        assert_eq!(store.offload().unwrap(), None);
        let mut offload = three();
        offload.keys.insert(Uuid::new_v4(), 7);
        offload.except.insert(Uuid::new_v4());
        store.put_offload(&offload).unwrap();
        assert_eq!(store.offload().unwrap(), Some(offload));
        let path = dir.path().join("offload.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("format = 1", "format = 9")).unwrap();
        assert!(store.offload().unwrap_err().to_string().contains("its format is 9"));
        std::fs::write(&path, "hello").unwrap();
        assert!(store.offload().unwrap_err().to_string().contains("cannot be parsed"));
        store.remove_offload().unwrap();
        assert_eq!(store.offload().unwrap(), None);
    }

    #[test]
    fn as_many_stores_as_copies_may_not_be_missing() {
        let mut offload = three();
        assert!(offload.begin());
        assert!(!offload.must_wait(|at| at == 0));
        assert!(offload.must_wait(|at| at < 2));
        offload.start(|at| at == 0);
        assert_eq!((offload.incarnation, offload.accepted, offload.thin), (1, 1, true));
        assert_eq!(offload.stores.iter().map(|store| store.missed).collect::<Vec<_>>(), [1, 0, 0]);
        // What is thin has one copy in one of the others.
        offload.begin();
        assert!(!offload.must_wait(|at| at == 0));
        assert!(offload.must_wait(|at| at == 1));
        offload.start(|_| false);
        assert!(offload.stores.iter().all(|store| store.started) && offload.stores[0].missed == 1);
        assert!(offload.must_wait(|at| at == 0), "what is thin may be there now");
        offload.thin = false;
        assert!(!offload.must_wait(|at| at == 0));
    }

    fn mapped(offload: &Offload) -> Vec<Mapped> {
        offload.stores.iter().map(|store| store.mapped).collect()
    }

    #[test]
    fn a_map_is_used_for_stores_that_nobody_has_opened_since() {
        use Mapped::*;
        let mut offload = three();
        offload.begin();
        offload.start(|_| false);
        let valid: Valid = toml::from_str("number = 1\nsum = 5\n").unwrap();
        offload.end(valid);
        offload.begin();
        assert!(!offload.must_wait(|_| true), "after a clean stop");
        offload.start(|at| at < 2);
        assert_eq!((mapped(&offload), offload.map), (vec![Exactly, Exactly, No], Some(valid)));
        // The process was killed.
        offload.begin();
        assert!(!offload.must_wait(|at| at < 2) && offload.must_wait(|_| true), "thin, and the third one was opened");
        offload.start(|at| at < 2);
        offload.arrive(1);
        assert_eq!(mapped(&offload), [Exactly, Opened, No]);
        offload.begin();
        assert!(!offload.must_wait(|at| at == 0) && offload.must_wait(|at| at == 1), "it may have changed");
        assert!(!offload.clone().do_without_map(), "what only the first two have counts by the map alone");
        offload.start(|at| at == 0);
        assert_eq!(mapped(&offload), [Exactly, Opened, No]);
        offload.arrive(0);
        offload.told(0);
        assert_eq!((mapped(&offload), offload.map), (vec![No, Opened, No], Some(valid)));
        offload.told(1);
        assert_eq!((mapped(&offload), offload.map), (vec![No, No, No], None));
    }

    #[test]
    fn a_map_is_not_used_after_a_start_with_all_stores_or_if_it_is_damaged() {
        let mut offload = three();
        offload.begin();
        offload.start(|_| false);
        offload.end(toml::from_str("number = 1\nsum = 5\n").unwrap());
        let mut damaged = offload.clone();
        assert!(damaged.do_without_map() && damaged.must_wait(|at| at < 2) && damaged.map.is_none());
        offload.begin();
        offload.start(|_| false);
        assert!(offload.must_wait(|at| at < 2) && offload.map.is_none());
        // A process that goes on without a store that another one had opened.
        offload.end(toml::from_str("number = 1\nsum = 5\n").unwrap());
        offload.thin = false;
        offload.begin();
        offload.start(|at| at == 0);
        offload.arrive(0);
        offload.thin = false;
        offload.start(|at| at == 0);
        assert_eq!(mapped(&offload), [Mapped::No; 3]);
    }

    #[test]
    fn a_store_that_was_emptied_is_forgotten_at_the_next_start_and_nothing_is_thin() {
        let mut offload = three();
        offload.begin();
        offload.start(|_| false);
        let text = toml::to_string(&offload).unwrap();
        assert!(!text.contains("leaving") && !text.contains("invalid"), "earlier releases read it");
        offload.stores[0].invalid_below = 7 << 40;
        offload.stores[1].leaving = Leaving::Begun;
        let stored: Offload = toml::from_str(&toml::to_string(&offload).unwrap()).unwrap();
        assert_eq!(stored, offload);
        assert!(offload.begin());
        assert_eq!((offload.stores.len(), offload.stores[1].stays()), (3, false));
        offload.stores[1].leaving = Leaving::Done;
        offload.end(toml::from_str("number = 1\nsum = 5\n").unwrap());
        assert!(offload.begin());
        assert_eq!((offload.stores.len(), offload.accepted, offload.thin), (2, 0, false));
        assert!(offload.map.is_some() && offload.stores.iter().all(Entry::stays));
    }

    #[test]
    fn a_lost_store_is_forgotten_at_the_next_start() {
        let mut offload = three();
        offload.begin();
        offload.start(|_| false);
        offload.stores[1].lost = true;
        assert!(offload.begin());
        assert_eq!((offload.stores.len(), offload.accepted, offload.thin), (2, 2, true));
        assert_eq!(offload.settings.copies, 2);
        offload.stores[0].lost = true;
        assert!(offload.begin());
        assert_eq!((offload.stores.len(), offload.settings.copies), (1, 1));
        offload.stores[0].lost = true;
        assert!(!offload.begin());
    }

    #[test]
    fn settings_have_bounds() {
        let check = |change: &dyn Fn(&mut Settings), stores| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.check(stores).map_err(|error| error.to_string())
        };
        assert_eq!(check(&|_| {}, 1), Ok(()));
        assert!(check(&|it| it.copies = 3, 3).unwrap_err().contains("1 to 2"));
        assert!(check(&|it| it.copies = 2, 1).unwrap_err().contains("needs 2 stores"));
        for (option, change) in [
            ("--copies 0", (|it| it.copies = 0) as fn(&mut Settings)),
            ("--limit 0", |it| it.limit = Size(0)),
            ("--store-threshold 0", |it| it.store_threshold = 0),
            ("--reclaim-depth 0", |it| it.reclaim_depth = 0),
        ] {
            let told = check(&change, 1).unwrap_err();
            assert!(told.starts_with(&format!("{option} is out of range")) && told.contains(" 1"), "{told}");
        }
        assert_eq!(check(&|it| it.base_threshold = 0, 1), Ok(()), "always");
        assert!(check(&|_| {}, 17).unwrap_err().contains("at most 16"));
    }
}
