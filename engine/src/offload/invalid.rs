//! Stores that cannot be written are emptied without a record in them: what they have is declared invalid elsewhere.
//!
//! ```text
//!   writes to a store fail ─► its content is read and goes home ─► all that is left there is dead
//!     ─► OffloadStats::invalid ─► control makes durable: versions below a number do not count there ─► invalidate
//!     ─► the base is free again                                the next recovery drops them: Recovered::drop_below
//! ```
//!
//! It is a durable deletion of all versions of these stores at once. So invariant 2 holds if none of them is the newest
//! content and away, and invariant 3 if each version that one of them hides is in no other store. Both stay true, since
//! stores that are closed get no versions: what is written later has a higher number.
//!
//! It is needed if too few other stores remember deletions, above all if there is only one store. Otherwise writes of
//! its ranges would have to wait until it can be written again. It is also needed when a process begins and a store can
//! only be read: the volumes wait for a new epoch of its log ([`Offload::is_ready`]), which cannot begin.
//!
//! Ours. Downside: all or nothing. Until everything is home, writes that overlap any of it wait.

use super::ranges::Id;
use super::recovery::Recovered;
use super::store::{State, Store, StoreId};
use super::{Offload, Version, Volume};
use crate::units::Nanos;

/// What would not count any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Invalid {
    /// The stores, by bit: [`StoreId`].
    pub stores: u16,
    /// Versions with a lower number.
    pub below: u64,
}

impl Recovered {
    /// Drops the versions that were declared invalid in this store.
    pub fn drop_below(&mut self, below: u64) {
        self.found.retain(|found| found.stored.version >= below);
    }
}

impl Offload {
    /// What can be declared invalid in the stores that cannot be written, if anything, from now on until the process
    /// ends.
    pub(super) fn find_invalid(&self) -> Option<Invalid> {
        let stores = self.mask(|store| !store.has_in_flight() && store.live_bytes == 0);
        let (mut has_any, volumes) = (false, self.volumes.values());
        let is_sure = |volume: &Volume| {
            let of = |id: Id| self.versions[id];
            let is_only_there = |version: Version| version.live() == 0 && version.stores & !stores == 0;
            let below = |version: Version| volume.hiding.below(version.number);
            let known = |number| volume.dead.get(number).or_else(|| volume.live.get(number));
            let is_free = |version: Version| {
                let mut hidden = below(version).filter_map(known);
                hidden.all(|id| is_only_there(of(id)) || planted!(InvalidWhileHiding))
            };
            volume.writing.values().all(|&id| of(id).stores & stores == 0)
                && volume.dead.values().map(of).filter(|version| version.stores & stores != 0).all(|version| {
                    has_any = true;
                    is_free(version)
                })
        };
        let is_sure = !self.is_frozen && stores != 0 && volumes.into_iter().all(is_sure);
        let has_any = has_any || self.mask(Store::keeps_volumes_waiting) & stores != 0;
        (is_sure && has_any).then_some(Invalid { stores, below: self.next_number })
    }

    /// Looks what can be declared invalid, if too few stores remember deletions or a volume waits for a store.
    pub(super) fn look_for_invalid(&mut self) {
        let hosts = self.mask(|store| store.is_open() && !store.is_retiring).count_ones() as usize;
        let is_needed = hosts < self.settings.copies || self.mask(Store::keeps_volumes_waiting) != 0;
        self.invalid = if is_needed { self.find_invalid() } else { None };
    }

    /// Control has made durable that these versions do not count. A store that was opened meanwhile is told by
    /// itself.
    pub(crate) fn invalidate(&mut self, now: Nanos, Invalid { stores, below }: Invalid) {
        self.now = self.now.max(now);
        self.invalid = None;
        for store in (0..self.stores.len() as u8).map(StoreId).filter(|store| stores & store.bit() != 0) {
            if self.stores[store.0 as usize].has_in_flight() {
                continue;
            }
            let is_invalid = |&(number, id): &(u64, Id)| number < below && self.versions[id].stores & store.bit() != 0;
            let of = |volume: &Volume| volume.dead.iter().filter(is_invalid).collect::<Vec<_>>();
            let invalid: Vec<(u64, Id)> = self.volumes.values().flat_map(of).collect();
            let state = &mut self.stores[store.0 as usize];
            state.owed.retain(|&number| number >= below);
            // What an earlier process has sent there does not count either, however late it lands.
            state.is_new = false;
            for (_, id) in invalid {
                if let Some(at) = self.versions.places(id).on(store) {
                    self.stores[store.0 as usize].log.release(at);
                }
                self.versions[id].stores &= !store.bit();
                self.forget_if_gone(id);
            }
        }
        self.settle();
    }
}

impl Store {
    /// Whether an earlier process has used it and it cannot be written, so that no new epoch can begin.
    pub(super) fn keeps_volumes_waiting(&self) -> bool {
        self.is_new && self.is_failing()
    }

    /// Whether versions may be on their way to it, or what it has is not known.
    fn has_in_flight(&self) -> bool {
        !matches!(self.state, State::Closed(_) | State::Opening)
    }
}
