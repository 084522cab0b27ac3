//! What the client does by itself: it appends records, deletes versions, opens logs anew, and makes tails durable.

use std::collections::BTreeSet;

use super::ranges::Id;
#[cfg(test)]
use super::store::Store;
use super::store::{State, StoreId, What};
use super::{Action, COUNTER_BITS, Offload, Pin, StoreStats, TAIL_NS};
#[cfg(test)]
use super::{NOWHERE, of_place};
use crate::ids::VolumeId;
use crate::units::Nanos;

impl Offload {
    /// A superblock was written, or not.
    pub(crate) fn superblock_written(&mut self, now: Nanos, store: StoreId, is_good: bool) {
        self.now = self.now.max(now);
        let state = &mut self.stores[store.0 as usize];
        let Some((_, tail, _)) = state.superblock.take() else { return };
        if is_good {
            state.log.persisted(tail);
            for id in std::mem::take(&mut state.behind_tail) {
                self.versions[id].stores &= !store.bit();
                self.versions[id].deleting &= !store.bit();
                self.forget_if_gone(id);
            }
        }
        let state = &mut self.stores[store.0 as usize];
        if !is_good {
            self.store_failed(store);
        } else if state.state == State::Opening {
            state.opened();
            self.opened(store);
        }
        self.close_if_drained(store);
        self.settle();
    }

    /// A new epoch has begun: recovery does not find the records any more that were dropped.
    fn opened(&mut self, store: StoreId) {
        let is_dropped = |&(_, id): &(u64, Id)| {
            let version = &self.versions[id];
            version.is_failed && version.stores & store.bit() != 0 && version.copy_on(store).is_none()
        };
        let dropped: BTreeSet<Id> = self.known_versions().filter(is_dropped).map(|(_, id)| id).collect();
        for id in dropped {
            self.versions[id].stores &= !store.bit();
            self.forget_if_gone(id);
        }
        if self.stores[store.0 as usize].owed.is_empty() {
            self.unpin(store);
        }
    }

    /// The time has come that [`Offload::poll_timeout`] named, or an earlier one.
    pub(crate) fn timer(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        self.settle();
    }

    /// When to call [`Offload::timer`].
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        let reopens = self.stores.iter().filter_map(|store| match store.state {
            State::Closed(at) => Some(at),
            State::Missing | State::Opening | State::Open | State::Failing => None,
        });
        reopens.chain(self.tail_at).min()
    }

    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The superblock that [`Action::Superblock`] names: first byte on the store, and its bytes.
    pub(crate) fn superblock(&self, store: StoreId) -> Option<(u64, &super::HeaderBytes)> {
        let (offset, _, bytes) = self.stores[store.0 as usize].superblock.as_ref()?;
        Some((*offset, bytes))
    }

    /// The state of a store.
    pub(crate) fn stats(&self, store: StoreId) -> StoreStats {
        let state = &self.stores[store.0 as usize];
        StoreStats {
            is_open: state.is_open(),
            is_missing: state.state == State::Missing,
            offloaded_bytes: state.live_bytes,
            used_bytes: state.log.used(),
            log_bytes: state.log.capacity(),
            load: state.load(),
        }
    }

    /// What its server reports of the load of a store's disk.
    pub(crate) fn set_load(&mut self, store: StoreId, requests: u32) {
        self.stores[store.0 as usize].reported_load = requests;
    }

    /// Restores what holds between events: what can be sent is sent.
    pub(super) fn settle(&mut self) {
        self.delete_dead();
        for at in 0..self.stores.len() as u8 {
            let store = StoreId(at);
            self.open_if_due(store);
            self.append_waiting(store);
            self.move_tail(store);
        }
        self.tail_at = if self.stores.iter().any(|store| store.is_open() && store.log.has_moved()) {
            Some(self.tail_at.unwrap_or(self.now + TAIL_NS))
        } else {
            None
        };
    }

    fn open_if_due(&mut self, store: StoreId) {
        let state = &mut self.stores[store.0 as usize];
        if !matches!(state.state, State::Closed(at) if at <= self.now) {
            return;
        }
        state.log.advance();
        if state.log.is_linked_full() {
            // The tail has to move first; nothing of it needs an open log.
            state.close(self.now);
            return;
        }
        let margin = std::mem::take(&mut state.margin);
        state.log.restart((self.first_number >> COUNTER_BITS) as u32, margin);
        state.state = State::Opening;
        self.write_superblock(store);
    }

    fn write_superblock(&mut self, store: StoreId) {
        let state = &mut self.stores[store.0 as usize];
        let superblock = state.log.superblock();
        state.superblock = Some((superblock.place(), superblock.tail, superblock.encode()));
        self.actions.push_back(Action::Superblock(store));
    }

    fn append_waiting(&mut self, store: StoreId) {
        while self.stores[store.0 as usize].append_next() {
            let last = self.stores[store.0 as usize].appends.len() - 1;
            let numbers: Vec<u64> = match &self.stores[store.0 as usize].appends[last].what {
                What::Deletions(ids) => ids.iter().map(|&id| self.versions[id].number).collect(),
                What::Remembered(numbers) | What::Owed(numbers) => numbers.clone(),
                What::Writes(_) | What::Padding => Vec::new(),
            };
            let state = &mut self.stores[store.0 as usize];
            if !numbers.is_empty() {
                state.encode_deletions(last, &numbers);
            }
            if last > 0 && matches!(state.appends[last - 1].what, What::Padding) {
                let padding = state.appends[last - 1].place.number;
                self.actions.push_back(Action::Append(store, padding));
            }
            self.actions.push_back(Action::Append(store, state.appends[last].place.number));
        }
    }

    /// Deletes versions that are dead, in the order of their numbers, unless a lower one that was covered remains.
    fn delete_dead(&mut self) {
        for volume in (0..self.volumes.past()).map(VolumeId) {
            let Some(state) = self.volumes.get(volume) else { continue };
            let lowest = state.covered.first().copied().unwrap_or(u64::MAX);
            let limit = if planted!(HighestDeletedFirst) { u64::MAX } else { lowest };
            // A version that failed hides nothing, so its deletion waits for no other.
            let may_go = |&(&number, &id): &(&u64, &Id)| number <= limit || self.versions[id].is_failed;
            let dead: Vec<Id> = state.dead.iter().filter(may_go).map(|(_, &id)| id).collect();
            for id in dead {
                self.delete(id);
            }
        }
    }

    fn delete(&mut self, id: Id) {
        let away = self.mask(|store| !store.is_open());
        let version = &mut self.versions[id];
        for (at, store) in self.stores.iter_mut().enumerate() {
            let bit = StoreId(at as u8).bit();
            if version.stores & bit & !version.deleting & !away != 0 {
                // A failed version that was never acknowledged there is gone with the epoch.
                if version.copy_on(StoreId(at as u8)).is_some() {
                    version.deleting |= bit;
                    store.deletions.push_back(id);
                }
            }
        }
        if version.stores & away == 0 {
            return;
        }
        // As many others as there are copies remember it.
        let missing = self.settings.copies.saturating_sub(version.remembering.count_ones() as usize);
        let hosts = (0..self.stores.len() as u8).map(StoreId);
        let free = hosts.filter(|store| (away | version.remembering) & store.bit() == 0);
        let hosts: Vec<StoreId> = free.take(missing).collect();
        if hosts.len() == missing {
            for store in hosts {
                version.remembering |= store.bit();
                self.stores[store.0 as usize].remembered.push_back(version.number);
            }
        }
    }

    /// A record of remembered deletions is durable.
    pub(super) fn remembered(&mut self, store: StoreId, at: u64, numbers: Vec<u64>) {
        let away = self.mask(|store| !store.is_open() || !store.owed.is_empty());
        if away & !store.bit() == 0 {
            self.stores[store.0 as usize].log.release(at);
        } else {
            self.pins.push(Pin { on: store, at, numbers: numbers.clone(), away: away & !store.bit() });
        }
        for number in numbers {
            if let Some(id) = self.dead_version(number) {
                self.versions[id].remembered |= store.bit();
                self.forget_if_gone(id);
            }
        }
    }

    /// A store that was away has been told everything: nobody needs to remember it for this one.
    pub(super) fn unpin(&mut self, store: StoreId) {
        let stores = &mut self.stores;
        self.pins.retain_mut(|pin| {
            pin.away &= !store.bit();
            if pin.away == 0 {
                stores[pin.on.0 as usize].log.release(pin.at);
            }
            pin.away != 0
        });
    }

    /// Makes the tail durable when nothing else is to be written, or when room is short.
    fn move_tail(&mut self, store: StoreId) {
        let state = &mut self.stores[store.0 as usize];
        if !state.is_open() {
            return;
        }
        state.log.advance();
        self.delete_tail(store);
        self.repeat_pinned(store);
        let state = &mut self.stores[store.0 as usize];
        if state.superblock.is_some() || !state.log.has_moved() {
            return;
        }
        let is_short = state.log.used() > state.log.capacity() / 2;
        let is_idle = state.appends.is_empty() && state.pending.is_empty();
        let is_due = is_idle && self.tail_at.is_some_and(|at| at <= self.now);
        if is_short || is_due {
            self.tail_at = None;
            self.write_superblock(store);
        }
    }

    /// If the log has no room for deletions, a tail behind the oldest record deletes what that record has.
    fn delete_tail(&mut self, store: StoreId) {
        let state = &mut self.stores[store.0 as usize];
        if state.superblock.is_some() || state.deletions.is_empty() || state.log.has_room_for_header() {
            return;
        }
        let versions = &self.versions;
        let place_of = |id: Id| versions[id].copy_on(store).expect("it is to be deleted there");
        let is_in_tail = |id: &Id| state.log.is_in_tail(place_of(*id));
        let ids: Vec<Id> = state.deletions.iter().copied().filter(is_in_tail).collect();
        if state.log.tail().is_none_or(|tail| usize::from(tail.needed) != ids.len()) {
            return;
        }
        state.deletions.retain(|id| !ids.contains(id));
        ids.iter().for_each(|&id| state.log.release(place_of(id)));
        state.log.advance();
        state.behind_tail.extend(ids);
    }

    /// Remembered deletions at the tail are appended again when room is short, so that the tail can move.
    fn repeat_pinned(&mut self, store: StoreId) {
        let state = &self.stores[store.0 as usize];
        let Some(tail) = state.log.tail().copied().filter(|tail| tail.needed > 0) else { return };
        if state.log.used() <= state.log.capacity() / 2 {
            return;
        }
        let Some(at) = self.pins.iter().position(|pin| pin.on == store && pin.at == tail.at) else { return };
        // It stays in the log until the repetition is durable, since the tail moves behind that.
        let Pin { numbers, .. } = &self.pins[at];
        let state = &mut self.stores[store.0 as usize];
        if !numbers.iter().any(|number| state.remembered.contains(number)) {
            state.remembered.extend(numbers.iter().copied());
        }
    }

    /// What is in the way of the base.
    #[cfg(test)]
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for volume in self.volumes.values() {
            text += &format!("\n{} away, covered {:x?}, failed {:?}", volume.away_bytes, volume.covered, volume.failed);
            for (number, &id) in &volume.dead {
                text += &format!("\ndead {number:x}: {:x?}", self.versions[id]);
            }
        }
        for &(number, id) in self.order.iter().filter(|&&(number, id)| self.versions[id].number == number) {
            text += &format!("\nlive {number:x}: {} {}", self.versions[id].live, self.versions[id].is_reclaiming);
        }
        for store in &self.stores {
            let Store { state, log, pending, deletions, behind_tail, remembered, owed, .. } = store;
            let appends: Vec<_> = store.appends.iter().map(|append| (&append.what, append.has_ended)).collect();
            text += &format!("\n{state:?} {log:?} pending {pending:?} deletions {deletions:?} {behind_tail:?}");
            text += &format!(" remembered {remembered:x?} owed {owed:x?} appends {appends:x?} pins {:x?}", self.pins);
        }
        text
    }

    /// Asserts what holds between events.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        for volume in self.volumes.values() {
            let mut away = 0;
            for part in volume.ranges.parts(0, u64::MAX) {
                let Some(id) = part.version else { continue };
                let version = &self.versions[id];
                assert!(version.start <= part.start && part.end <= version.end(), "{part:?} of {version:?}");
                assert!(version.stores != 0, "no store has {version:?}");
                assert!(version.copies.iter().any(|&copy| copy != NOWHERE && of_place(copy).1 > 0));
                away += volume.ranges.away(part.start, part.end, id).map(|(from, to)| to - from).sum::<u64>();
            }
            assert_eq!(away, volume.away_bytes);
        }
        for store in &self.stores {
            assert!(store.log.is_sound() || planted!(HeadPassesTail), "{:?}", store.log);
        }
    }
}
