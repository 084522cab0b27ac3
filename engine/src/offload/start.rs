//! The machine from what its stores had.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::log::{EPOCH_BITS, Log};
use super::map::{Known, Map};
use super::packed::Packed;
use super::ranges::Id;
use super::record::Stored;
use super::recovery::Recovered;
use super::store::{LATE_BYTES_MAX, Note, State, Store, StoreId};
use super::versions::{Version, Versions};
use super::{COPIES_MAX, COUNTER_BITS, Decided, Offload, Pin, STORES_MAX, Settings};
use crate::ids::{VolumeId, VolumeKey};
use crate::slab::Table;
use crate::units::Nanos;

/// Where the writes of a disk may go, besides the disk.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What the operator has chosen.
    pub settings: Settings,
    /// What is known of earlier processes.
    pub past: Past,
    /// The volumes that lead to the stores, and the content of each. Their order is that of [`StoreId`].
    pub stores: Vec<(VolumeId, Initial)>,
    /// All volumes of the disk that may be off-loaded. What stores have of others is forgotten.
    pub volumes: Vec<VolumeKey>,
    /// What an earlier process knew; the default if there is no map.
    pub map: Map,
}

/// A store of the set, as it is when the machine starts.
#[derive(Clone, Debug)]
pub enum Initial {
    /// Its content; and the incarnation of the last process that started without it and did not tell it what was
    /// deleted meanwhile ([`Offload::is_told`]), or 0.
    Scanned(Box<Recovered>, u32),
    /// It cannot be reached. Its log, and the bytes of that.
    Missing(u128, u64),
}

/// What control has made durable of earlier processes, before the machine starts.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Past {
    /// Above that of any earlier process.
    pub incarnation: u32,
    /// The incarnation of the last process that started without some store: what it has found counts from then on, even
    /// if too few stores have it. That is the present one if a store is missing now.
    pub accepted: u32,
    /// Writes of an earlier process may land in stores after their scans: a server does not fence it.
    pub is_unfenced: bool,
}

impl Offload {
    /// The client of `stores`, with what they have. `volumes` are all volumes of the disk.
    pub(crate) fn start(
        now: Nanos,
        settings: Settings,
        past: Past,
        stores: Vec<Initial>,
        volumes: &[VolumeKey],
        map: Map,
    ) -> Offload {
        assert!((1..=COPIES_MAX).contains(&settings.copies) && stores.len() <= STORES_MAX);
        let mut offload = Offload {
            settings,
            now,
            stores: Vec::new(),
            volumes: Table::default(),
            versions: Versions::new(),
            mapped: 0,
            first_number: u64::from(past.incarnation) << COUNTER_BITS,
            next_number: u64::from(past.incarnation) << COUNTER_BITS,
            pins: Vec::new(),
            has_changed_hosts: true,
            actions: VecDeque::new(),
            tail_at: None,
            invalid: None,
            is_ending: false,
            is_frozen: false,
            started: now,
            marks: VecDeque::new(),
            written_bytes: 0,
            reclaimed_bytes: 0,
            decided: Decided::default(),
            switches: 0,
            switched: [None; 2],
        };
        volumes.iter().for_each(|&volume| offload.add_volume(volume));
        let mut merged = Merged::default();
        let mut stale = Vec::new();
        for (at, initial) in (0u8..).zip(stores) {
            let (log, state) = match initial {
                Initial::Scanned(recovered, missed) => {
                    stale.push(if missed > 0 { recovered.end } else { 0 });
                    (merged.add(StoreId(at), *recovered, missed), State::Closed(now))
                }
                Initial::Missing(log, capacity) => {
                    merged.missed.push(0);
                    merged.notes.push(Vec::new());
                    stale.push(0);
                    let empty = Recovered::format(log, capacity);
                    (Log::new(&empty.superblock, 0, VecDeque::new()), State::Missing)
                }
            };
            offload.stores.push(Store::new(log, state, if past.is_unfenced { LATE_BYTES_MAX } else { 0 }));
        }
        for ((store, notes), stale_until) in offload.stores.iter_mut().zip(&mut merged.notes).zip(stale) {
            (store.notes, store.stale_until) = (std::mem::take(notes), stale_until);
        }
        let rules = Rules {
            missing: offload.mask(|store| store.state == State::Missing),
            accepted: u64::from(past.accepted) << COUNTER_BITS,
            below: map.below(),
            mapped: map.stores,
        };
        offload.mapped = rules.missing & rules.mapped;
        merged.know(map.versions, offload.mapped);
        offload.merge(&merged, &rules);
        offload.settle();
        offload
    }

    /// A store that was missing at the start can be reached: what it has. False if it was not missing, is lost
    /// ([`Offload::lose`]), or lacks what it has to have: then it is not what it was.
    pub(crate) fn arrived(&mut self, now: Nanos, store: StoreId, recovered: Recovered) -> bool {
        self.now = self.now.max(now);
        if self.stores.get(store.0 as usize).is_none_or(|known| known.state != State::Missing || known.is_lost) {
            return false;
        }
        let mut merged = Merged::default();
        let log = merged.add(store, recovered, 0);
        let lacks = |(number, id): (u64, Id)| {
            let is_only_there = self.versions[id].stores & self.mapped == store.bit();
            is_only_there && self.versions.places(id).stores() == 0 && !merged.versions.contains_key(&number)
        };
        if self.volumes.values().flat_map(|volume| volume.live.iter()).any(lacks) {
            return false;
        }
        self.stores[store.0 as usize].log = log;
        self.stores[store.0 as usize].notes = std::mem::take(&mut merged.notes[0]);
        let ids: BTreeMap<u64, Id> = self.known_versions().collect();
        let mut owed = BTreeSet::new();
        for (&number, found) in &merged.versions {
            let (_, at) = found.copies[0];
            let is_missed =
                |&&id: &&Id| self.versions[id].stores & store.bit() != 0 && !self.versions.places(id).are_all();
            let Some(&id) = ids.get(&number).filter(is_missed) else {
                // It was deleted meanwhile, does not count there, or enough others have it.
                owed.insert(number);
                continue;
            };
            self.stores[store.0 as usize].log.need(at);
            self.versions.add_place(id, store, at);
        }
        self.mapped &= !store.bit();
        for (_, id) in ids {
            if self.versions.places(id).on(store).is_none() && self.versions[id].stores & store.bit() != 0 {
                let live = self.versions[id].live();
                let state = &mut self.stores[store.0 as usize];
                state.live_bytes = state.live_bytes.saturating_sub(live);
                self.versions[id].stores &= !store.bit();
                self.forget_if_gone(id);
            }
        }
        let state = &mut self.stores[store.0 as usize];
        state.owed = if planted!(DeletionForgotten) { BTreeSet::new() } else { owed };
        state.stale_until = state.log.head();
        // What only it has does not count, so no volume waits for its new epoch.
        (state.state, state.is_new) = (State::Closed(now), false);
        self.settle();
        true
    }

    /// Whether a version of an earlier process has fewer copies than it should: a store was missing at the start. As
    /// long as that is so, the next process must not start without any of the stores that this one has started with,
    /// unless even fewer copies would do. The same holds for a version that recovery has dropped: as long as stores
    /// have it, the next process must know of its deletion.
    pub(crate) fn is_thin(&self) -> bool {
        let is_thin = |id: Id| {
            // The next process does not count what only stores have that were not told.
            let is_sure = |&(store, _): &(StoreId, u64)| self.is_told(store);
            let places = self.versions.places(id);
            self.versions[id].is_failed() || places.iter().filter(is_sure).count() < self.settings.copies
        };
        // Only those are looked at, since there may be millions of others.
        let is_early = |&(number, _): &(u64, Id)| number < self.first_number;
        let of = |versions: &Packed<Id>| versions.iter().take_while(is_early).any(|(_, id)| is_thin(id));
        self.volumes.values().any(|volume| of(&volume.live) || of(&volume.dead))
    }

    /// Whether a volume may be served: each store that was scanned, and that an earlier process has used, has a new
    /// epoch, and what recovery has dropped is deleted durably. Otherwise a later recovery could find something else: a
    /// write of an earlier process that landed late, or a version of which it cannot know that it was dropped.
    pub(crate) fn is_ready(&self, volume: VolumeKey) -> bool {
        if self.stores.iter().any(|store| store.is_new && store.state != State::Missing) {
            return false;
        }
        let is_new = |&(_, number): &(u64, u64)| number >= self.first_number;
        self.volumes.get(volume).is_none_or(|state| state.failed.keys().all(is_new))
    }

    /// Whether a store has been told of everything that was deleted while it was away, and has nothing any more of the
    /// time before.
    pub(crate) fn is_told(&self, store: StoreId) -> bool {
        let state = &self.stores[store.0 as usize];
        state.is_open() && state.owed.is_empty() && state.log.durable_tail() >= state.stale_until
    }

    /// All versions that are in stores and are not on their way.
    pub(super) fn known_versions(&self) -> impl Iterator<Item = (u64, Id)> + '_ {
        self.volumes.values().flat_map(|volume| volume.live.iter().chain(volume.dead.iter()))
    }

    /// Enters what counts of what the stores have.
    fn merge(&mut self, merged: &Merged, rules: &Rules) {
        for (&(on, at), numbers) in &merged.remembered {
            if let Some(at) = at {
                self.stores[on.0 as usize].log.need(at);
            } else {
                let notes = numbers.iter().map(|&number| Note { number, is_remembered: true, until: u64::MAX });
                self.stores[on.0 as usize].notes.extend(notes);
            }
            self.pins.push(Pin { on, at, numbers: numbers.clone() });
        }
        let mut home = Vec::new();
        let all: Vec<_> = merged.versions.iter().collect();
        let in_order: Box<dyn Iterator<Item = _>> =
            if planted!(OlderVersionWins) { Box::new(all.into_iter().rev()) } else { Box::new(all.into_iter()) };
        for (&number, found) in in_order {
            let volume = Some(VolumeKey(found.stored.key)).filter(|&volume| self.volumes.contains(volume));
            // If its volume was deleted, it is not read, and the log does not keep it.
            let Some(volume) = volume else { continue };
            let Stored { start, len, .. } = found.stored;
            let id = self.versions.add(Version::new(number, volume, start, len));
            for &(store, at) in found.copies.iter().take(COPIES_MAX) {
                self.versions.add_place(id, store, at);
                self.stores[store.0 as usize].log.need(at);
            }
            let is_failed = !merged.counts(number, found, rules);
            let version = &mut self.versions[id];
            // What the map does not have is not in the missing stores for which it is used, or does not count there.
            version.stores = found.present() | found.mapped(rules) | rules.missing & !rules.mapped;
            if is_failed {
                version.fail()
            } else {
                version.set_live(version.len())
            }
            if is_failed {
                // Its deletion is not durable everywhere: new content of its range goes to stores until it is.
                let state = &mut self.volumes[volume];
                state.failed.insert((start, number), start + u64::from(len));
                state.die(number, id);
            } else {
                self.took_effect(id);
                home.extend(found.known.iter().flat_map(|known| &known.home).map(|&(from, to)| (volume, from, to, id)));
            }
        }
        // When newer versions have covered what they cover.
        for (volume, start, end, id) in home {
            self.came_home(volume, start, end, id);
        }
    }
}

/// By what it is decided whether a version counts.
#[derive(Debug)]
struct Rules {
    /// Stores that are missing.
    missing: u16,
    /// Versions below it count if any store has them.
    accepted: u64,
    /// Of versions below it those count that the map has.
    below: u64,
    /// Stores for which the map is used.
    mapped: u16,
}

/// A version of some stores.
#[derive(Debug)]
struct Copies {
    stored: Stored,
    copies: Vec<(StoreId, u64)>,
    /// What the map says of it.
    known: Option<Known>,
}

impl Copies {
    fn new(stored: Stored) -> Copies {
        Copies { stored, copies: Vec::new(), known: None }
    }

    /// The stores that have it, of those that were scanned.
    fn present(&self) -> u16 {
        self.copies.iter().fold(0, |mask, (store, _)| mask | store.bit())
    }

    /// The stores that have it by the map, of those for which that is used: they are missing, or it was found there.
    fn mapped(&self, rules: &Rules) -> u16 {
        let stores = self.known.as_ref().map_or(0, |known| known.stores);
        stores & rules.mapped & (rules.missing | self.present())
    }

    /// Whether all of it is home, by the map.
    fn is_home(&self) -> bool {
        let Stored { start, len, .. } = self.stored;
        self.known.as_ref().is_some_and(|known| known.home == [(start, start + u64::from(len))])
    }
}

/// What all stores had.
#[derive(Default, Debug)]
struct Merged {
    versions: BTreeMap<u64, Copies>,
    deleted: BTreeSet<u64>,
    /// For each store, the number below which another store has to have what it has.
    missed: Vec<u64>,
    /// For each store, the deletions of its own versions in its superblock.
    notes: Vec<Vec<Note>>,
    /// Versions that are deleted wherever they are, by the record that says so; `None`: the superblock.
    remembered: BTreeMap<(StoreId, Option<u64>), Vec<u64>>,
}

impl Merged {
    /// Adds the content of a store that the process `missed` did not know; returns its log.
    fn add(&mut self, store: StoreId, recovered: Recovered, missed: u32) -> Log {
        let Recovered { superblock, end, records, found, deleted, remembered } = recovered;
        self.missed.push(u64::from(missed) << COUNTER_BITS);
        let note = |&number: &u64| Note { number, is_remembered: false, until: end };
        self.notes.push(superblock.deleted.iter().map(note).collect());
        let noted = superblock.remembered.iter().map(|&number| (number, None));
        for (number, at) in remembered.into_iter().map(|(number, at)| (number, Some(at))).chain(noted) {
            let link = at.and_then(|at| superblock.links.iter().rfind(|link| link.start <= at));
            let epoch = link.map_or(superblock.epoch, |link| link.epoch);
            // A process that did not know this store knew of the deletion from another one, if it counted. What it
            // recorded itself, when the store had arrived, counts.
            if epoch >> EPOCH_BITS >= u64::from(missed) {
                self.remembered.entry((store, at)).or_default().push(number);
                self.deleted.insert(number);
            }
        }
        // That a version is deleted here says nothing of others that have it: the base has the same content, or a
        // higher version does, unless it failed; and then a process without this store may have found it.
        let own: BTreeSet<u64> = deleted.into_iter().chain(superblock.deleted.iter().copied()).collect();
        for found in found.into_iter().filter(|found| !own.contains(&found.stored.version)) {
            let copies = self.versions.entry(found.stored.version);
            copies.or_insert_with(|| Copies::new(found.stored)).copies.push((store, found.at));
        }
        Log::new(&superblock, end, records)
    }

    /// Whether a version counts.
    fn counts(&self, number: u64, found: &Copies, rules: &Rules) -> bool {
        let &Rules { missing, accepted, below, .. } = rules;
        let has_few = found.copies.len() < usize::from(found.stored.copies);
        // What a process did not know that has gone on: what that left in its range counts.
        let was_missed = found.copies.iter().all(|(store, _)| number < self.missed[store.0 as usize]);
        let is_dropped = match found.known {
            // Newer versions hide it, deleted or not.
            Some(_) if found.is_home() => return true,
            Some(_) => was_missed && found.mapped(rules) == 0,
            // With all stores there, a write that too few of them have was not acknowledged. It is dropped: otherwise a
            // later recovery, without a store that has it, would not find it.
            None => {
                let is_partial = missing == 0 && number >= accepted && has_few;
                was_missed || is_partial || number < below && !planted!(MapLeavesNothingOut)
            }
        };
        !is_dropped && !self.deleted.contains(&number)
    }

    /// Adds what a map has of the versions that were found, and of those that may be in stores that are `missing`.
    fn know(&mut self, versions: Vec<Known>, missing: u16) {
        for known in versions {
            let Known { number, volume: key, start, len, stores, .. } = known;
            let stored = Stored { version: number, key, start, len, copies: 0 };
            if stores & missing != 0 {
                self.versions.entry(number).or_insert_with(|| Copies::new(stored));
            }
            if let Some(found) = self.versions.get_mut(&number) {
                found.known = Some(known);
            }
        }
    }
}
