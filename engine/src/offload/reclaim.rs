//! Which content is brought home, and when.
//!
//! Source: Everest, section 3.2.2.

use std::collections::BTreeSet;

use super::ranges::Id;
use super::store::{State, Store};
use super::{Offload, count};
use crate::ids::VolumeKey;
use crate::units::Nanos;

/// Content that is to be copied to the base.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Reclaim {
    pub(crate) volume: VolumeKey,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(super) number: u64,
}

impl Offload {
    /// The base has what was to be reclaimed durably.
    pub(crate) fn brought_home(&mut self, now: Nanos, reclaim: Reclaim) {
        self.now = self.now.max(now);
        let Reclaim { volume, start, end, number, .. } = reclaim;
        self.reclaim_ended(reclaim);
        let Some(state) = self.volumes.get_mut(volume) else { return };
        let newest = state.ranges.parts(start, end).filter_map(|part| part.version);
        let is_meant = |&id: &Id| self.versions[id].number == number || planted!(NewerReclaimed);
        let ids: BTreeSet<Id> = newest.filter(is_meant).collect();
        for id in ids {
            let bytes = state.ranges.brought_home(start, end, id);
            let version = &mut self.versions[id];
            version.live -= bytes as u32;
            state.away_bytes -= bytes;
            self.reclaimed_bytes += bytes;
            count(&mut self.stores, version, bytes, false);
            if version.live == 0 && bytes > 0 {
                state.die(version.number, id);
            }
        }
        self.settle();
    }

    /// The oldest content of a volume that is away, unless a range that overlaps it is being reclaimed. Content of
    /// which a store that is away has a copy comes first.
    pub(crate) fn next_to_reclaim(&mut self, volume: VolumeKey) -> Option<Reclaim> {
        if !self.is_ready(volume) {
            return None;
        }
        let away = self.mask(|store| !store.is_open());
        let missing = self.mask(|store| store.state == State::Missing);
        let (state, versions) = (&self.volumes[volume], &self.versions);
        let is_free = |&&id: &&Id| {
            let version = &versions[id];
            !state.reclaiming.iter().any(|other| version.start < other.end && other.start < version.end())
        };
        let has_copy = |id: &Id, stores: u16| versions[*id].copies_in(stores) > 0;
        let candidates = || state.live.values().filter(is_free);
        let is_vulnerable = |id: &&Id| has_copy(id, !away) && versions[**id].stores & away != 0;
        let vulnerable = || candidates().find(is_vulnerable).filter(|_| away != 0);
        // A store that cannot be written can perhaps be read.
        let near = || candidates().find(|id| has_copy(id, !away));
        let any = || candidates().find(|id| has_copy(id, !missing));
        let &id = vulnerable().or_else(near).or_else(any)?;
        let version = &versions[id];
        let (start, end) = state.ranges.away(version.start, version.end(), id).next()?;
        let reclaim = Reclaim { volume, start, end, number: version.number };
        self.volumes[volume].reclaiming.push(reclaim);
        Some(reclaim)
    }

    /// A reclaim was given up: nothing of it is on its way to the base any more.
    pub(crate) fn reclaim_ended(&mut self, reclaim: Reclaim) {
        if let Some(state) = self.volumes.get_mut(reclaim.volume) {
            state.reclaiming.retain(|&other| other != reclaim);
        }
    }

    /// Content that is copied home at the same time.
    pub(crate) fn reclaim_depth(&self) -> u32 {
        self.settings.reclaim_depth
    }

    /// Requests at the base up to which content is brought home; `None` if that does not count.
    pub(crate) fn reclaim_threshold(&self, volume: VolumeKey) -> Option<u32> {
        let away = self.volumes.get(volume).map_or(0, |state| state.away_bytes);
        let is_urgent = self.is_ending || away >= self.settings.limit_bytes || self.stores.iter().any(Store::is_short);
        (!is_urgent).then_some(self.settings.base_threshold)
    }
}
