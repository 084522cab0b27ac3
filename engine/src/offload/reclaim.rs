//! Which content is brought home, and when.
//!
//! Source: Everest, section 3.2.2.

use std::collections::BTreeSet;
use std::ops::Range;

use super::packed::Packed;
use super::ranges::Id;
use super::store::{State, Store};
use super::{Offload, Settings, Source, StoreId, Volume};
use crate::ids::VolumeKey;
use crate::units::Nanos;

/// Bytes of a log that are read at once at most, and what is read in vain between two versions: a hard disk reads both
/// in less time than a seek takes.
const HINT_MAX: u64 = 512 << 10;
const GAP_MAX: u64 = 64 << 10;

/// Content that is to be copied to the base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reclaim {
    pub(crate) volume: VolumeKey,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(super) number: u64,
}

#[cfg(test)]
impl Reclaim {
    /// Of no version.
    pub(crate) fn of(volume: VolumeKey, start: u64, end: u64) -> Reclaim {
        Reclaim { volume, start, end, number: 0 }
    }
}

/// A search for the oldest version of which something holds. It looks at a bounded number at a time.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Search {
    /// Number of the version from which on it looks.
    from: u64,
}

impl Search {
    /// Versions that it looks at.
    const LOOKS_MAX: usize = 256;

    /// The next version. `None` if there is none among those that it looks at; it goes on behind them next time, and
    /// from the beginning after the last one.
    fn next(&mut self, live: &Packed<Id>, is_wanted: impl Fn(Id) -> bool) -> Option<Id> {
        let mut window = live.range(self.from);
        let found = window.by_ref().take(Search::LOOKS_MAX).find(|&(_, id)| is_wanted(id));
        if found.is_none() {
            self.from = window.next().map_or(0, |(number, _)| number);
        }
        found.map(|(_, id)| id)
    }
}

impl Offload {
    /// The base has what was to be reclaimed durably.
    pub(crate) fn brought_home(&mut self, now: Nanos, reclaim: Reclaim) {
        self.now = self.now.max(now);
        let Reclaim { volume, start, end, number, .. } = reclaim;
        self.reclaim_ended(reclaim);
        let Some(state) = self.volumes.get(volume) else { return };
        let newest = state.ranges.parts(start, end).filter_map(|part| part.version);
        let is_meant = |&id: &Id| self.versions[id].number == number || planted!(NewerReclaimed);
        let ids: BTreeSet<Id> = newest.filter(is_meant).collect();
        for id in ids {
            self.reclaimed_bytes += self.came_home(volume, start, end, id);
        }
        self.settle();
    }

    /// The oldest content of a volume that is away, unless a range that overlaps it is being reclaimed. Content of
    /// which a store that is away has a copy comes first, then content of stores that are being emptied or whose disks
    /// have become busy.
    pub(crate) fn next_to_reclaim(&mut self, volume: VolumeKey) -> Option<Reclaim> {
        // A store that can only be read keeps its volumes from being ready, and copies empty it. A copy changes no
        // content, and clients cannot read the volume before it is ready.
        let may_begin = self.is_ready(volume) || self.mask(Store::keeps_volumes_waiting) != 0;
        if !may_begin || self.is_frozen {
            return None;
        }
        let away = self.mask(Store::is_away);
        let missing = self.mask(|store| store.state == State::Missing);
        let threshold = self.settings.store_threshold;
        let is_busy = |store: &Store| store.is_retiring || store.others_now(self.now) >= threshold;
        let busy = self.mask(|store| store.is_open() && is_busy(store));
        let Offload { volumes, versions, .. } = self;
        let Volume { live, reclaiming, searches: [vulnerable, slow, near, any], .. } = &mut volumes[volume];
        let is_free = |id: Id| {
            let version = &versions[id];
            !reclaiming.iter().any(|other| version.start() < other.end && other.start < version.end())
        };
        let has_copy = |id: Id, stores: u16| versions.places(id).stores() & versions[id].stores & stores != 0;
        let is_near = |id: Id| is_free(id) && has_copy(id, !away);
        let id = (away != 0)
            .then(|| vulnerable.next(live, |id| is_near(id) && versions[id].stores & away != 0))
            .flatten()
            .or_else(|| {
                let is_slow = |id| is_free(id) && has_copy(id, busy);
                (busy != 0).then(|| slow.next(live, is_slow)).flatten()
            })
            .or_else(|| near.next(live, is_near))
            // A store that cannot be written can perhaps be read.
            .or_else(|| any.next(live, |id| is_free(id) && has_copy(id, !missing)))?;
        let state = &self.volumes[volume];
        let version = &self.versions[id];
        let (start, end) = state.ranges.away(version.start(), version.end(), id).next()?;
        let reclaim = Reclaim { volume, start, end, number: version.number };
        self.volumes[volume].reclaiming.push(reclaim);
        Some(reclaim)
    }

    /// What follows `reclaim` in the log of a store and is to be copied next, with it: positions in the log. The
    /// store's disk can read all of it at once. `None` if nothing follows, or if the server was told before.
    pub(crate) fn read_next(&self, reclaim: Reclaim) -> Option<(StoreId, Range<u64>)> {
        let Reclaim { volume, start, end, number } = reclaim;
        let (store, from) = self.parts(volume, start, end).find_map(|part| match part {
            (.., Source::Store(store, at)) => Some((store, at)),
            _ => None,
        })?;
        let state = &self.stores[store.0 as usize];
        if state.hinted.contains(&from) {
            return None;
        }
        let mut until = from + (end - start);
        let live = self.volumes[volume].live.range(number + 1).take(self.settings.reclaim_depth as usize - 1);
        for (_, id) in live {
            match self.versions.places(id).on(store) {
                Some(at) if at >= until && at <= until + GAP_MAX => {
                    let past = at + self.versions[id].len();
                    if past - from > HINT_MAX {
                        break;
                    }
                    until = past;
                }
                _ => {}
            }
        }
        let (offset, len) = (state.log.place(from), until - from);
        let is_whole = state.log.place(until - 1) == offset + len - 1;
        if until == from + (end - start) || !is_whole {
            return None;
        }
        Some((store, from..until))
    }

    /// The server of a store was told that these positions are going to be read.
    pub(crate) fn is_told_next(&mut self, store: StoreId, next: Range<u64>) {
        self.stores[store.0 as usize].hinted = next;
    }

    /// What can be reached has changed: the oldest content comes first again.
    pub(super) fn search_again(&mut self) {
        self.volumes.values_mut().for_each(|state| state.searches = Default::default());
    }

    /// A reclaim was given up: nothing of it is on its way to the base any more.
    pub(crate) fn reclaim_ended(&mut self, reclaim: Reclaim) {
        if let Some(state) = self.volumes.get_mut(reclaim.volume) {
            state.reclaiming.retain(|&other| other != reclaim);
        }
    }

    /// Copies of a volume at a time, read and written.
    pub(crate) fn reclaim_depth(&self) -> u32 {
        self.settings.reclaim_depth
    }

    /// Copies of a volume that may be on their way to the base at a time, with so many other requests. Writes may wait
    /// for the room in logs that only copies make.
    pub(crate) fn copies_at_a_time(&self, volume: VolumeKey, load: u32, has_waiting: bool) -> u32 {
        let Settings { base_threshold, reclaim_depth, limit_bytes, is_always, .. } = self.settings;
        let away = self.volumes.get(volume).map_or(0, |state| state.away_bytes);
        let is_full = || self.stores.iter().any(Store::is_short);
        // Writes of its ranges have to wait.
        let has_failed =
            || self.stores.iter().any(|store| store.is_away() && store.is_failing() && store.live_bytes > 0);
        let is_urgent =
            self.is_ending || has_waiting || away > limit_bytes || is_full() || self.is_emptying() || has_failed();
        match load {
            _ if is_urgent => reclaim_depth,
            _ if is_always => 0,
            0 => reclaim_depth,
            _ => u32::from(load <= base_threshold),
        }
    }
}
