//! The map of a clean stop: the versions that count, and where they may be. With it, a process can start without stores
//! that have the only copy of something.
//!
//! ```text
//!   stop  ─► freeze ─► nothing is on its way ─► versions ─► control makes them durable
//!   start ─► logs of the stores that are there + versions of the others ─► range map; reads of the others fail
//! ```
//!
//! Two statements of a map stay true for ever: an earlier version that it does not have does not count, and a part that
//! is home is home, or there is newer content. The third one does not: that a version counts because a store that is
//! missing has it. It is true until a process opens that store. Control records that, so it names the stores for which
//! the map is used ([`Map::stores`]).

use super::ranges::Id;
use super::store::{State, Store};
use super::{COUNTER_BITS, Offload, count};
use crate::ids::VolumeKey;

/// A version that counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// Its number.
    pub number: u64,
    /// The key of its volume.
    pub volume: u32,
    /// Its first byte.
    pub start: u64,
    /// Bytes.
    pub len: u32,
    /// The stores that have it, by bit: [`StoreId`](super::StoreId).
    pub stores: u16,
    /// The parts of which the base has the newest content: first byte, and the one behind the last. All of it, if no
    /// part is the newest content and away.
    pub home: Vec<(u64, u64)>,
}

/// What the last process that ended in order knew.
#[derive(Clone, Default, Debug)]
pub struct Map {
    /// The incarnation of that process.
    pub incarnation: u32,
    /// The stores for which it is used, by bit: of those that are missing, the ones that no process has opened since.
    /// Of those that are there, the ones that were missing meanwhile: what only they have counts, if the map has it.
    pub stores: u16,
    /// In any order.
    pub versions: Vec<Known>,
}

impl Map {
    /// The number below which it has all versions that count; 0 if it is not used.
    pub(super) fn below(&self) -> u64 {
        if self.stores == 0 { 0 } else { u64::from(self.incarnation + 1) << COUNTER_BITS }
    }
}

impl Offload {
    /// What the next process has to know to start without any of the stores. From now on nothing is sent to them, since
    /// the map would be outdated: the process ends. `None` as long as something is on its way.
    pub(crate) fn map(&mut self) -> Option<Vec<Known>> {
        if self.volumes.values().any(|volume| !volume.writing.is_empty()) {
            return None;
        }
        self.is_frozen = true;
        // One that only begins an epoch changes no version, and its store may be away.
        let is_writing = |store: &Store| store.superblock.is_some() && store.state != State::Opening;
        if self.stores.iter().any(|store| is_writing(store) || !store.appends.is_empty()) {
            return None;
        }
        let mut known = Vec::new();
        for volume in self.volumes.values() {
            let versions = volume.live.values().chain(volume.dead.values()).map(|id| (id, &self.versions[id]));
            // What failed does not count.
            for (id, version) in versions.filter(|(_, version)| !version.is_failed()) {
                let (start, end) = (version.start(), version.end());
                let home = match version.live() {
                    _ if planted!(MapHasNothingHome) => Vec::new(),
                    0 => vec![(start, end)],
                    _ => volume.ranges.home(start, end, id).collect(),
                };
                let stores = version.stores & (self.mapped | self.versions.places(id).stores());
                let (number, len) = (version.number, version.len() as u32);
                known.push(Known { number, volume: version.volume().0, start, len, stores, home });
            }
        }
        Some(known)
    }

    /// The base has `start..end` durably, as a version has it. Returns the bytes for which that is new; where another
    /// version is the newest, nothing changes.
    pub(super) fn came_home(&mut self, volume: VolumeKey, start: u64, end: u64, id: Id) -> u64 {
        let state = &mut self.volumes[volume];
        let bytes = state.ranges.brought_home(start, end, id);
        let version = &mut self.versions[id];
        version.set_live(version.live() - bytes);
        state.away_bytes -= bytes;
        count(&mut self.stores, version, bytes, false);
        if version.live() == 0 && bytes > 0 {
            state.die(version.number, id);
        }
        bytes
    }
}
