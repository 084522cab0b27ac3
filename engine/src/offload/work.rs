//! What the client does by itself: it appends records, deletes versions, opens logs anew, and makes tails durable.

use std::collections::BTreeSet;

use super::ranges::Id;
use super::record::NOTES_MAX;
use super::store::{Note, State, Store, StoreId, What};
use super::{Action, COUNTER_BITS, Offload, Pin, TAIL_NS, Volume};
use crate::ids::VolumeKey;
use crate::units::Nanos;

/// Dead versions of a volume that one event looks at.
const LOOKS_MAX: usize = 256;

impl Offload {
    /// A superblock was written, or not.
    pub(crate) fn superblock_written(&mut self, now: Nanos, store: StoreId, is_good: bool) {
        self.now = self.now.max(now);
        let state = &mut self.stores[store.0 as usize];
        let Some((_, tail, _)) = state.superblock.take() else { return };
        if is_good {
            state.log.persisted(tail);
            let durable = state.log.durable_tail();
            state.notes.retain(|note| note.until > durable);
            for what in std::mem::take(&mut state.noting) {
                self.acknowledged(store, None, what);
            }
        }
        let state = &mut self.stores[store.0 as usize];
        if !is_good {
            self.store_failed(store);
        } else if state.state == State::Opening {
            state.opened();
            if state.append_proof() {
                self.append_last(store);
            }
            self.opened(store);
        }
        self.close_if_drained(store);
        self.settle();
    }

    /// A new epoch has begun: recovery does not find the records any more that were dropped.
    fn opened(&mut self, store: StoreId) {
        self.invalid = None;
        self.search_again();
        self.has_changed_hosts = true;
        for volume in self.volumes.values_mut() {
            volume.ready.extend(volume.undeleted.iter().map(|(number, ())| number));
        }
        let is_dropped = |id: &Id| {
            let version = &self.versions[*id];
            version.is_failed() && version.stores & store.bit() != 0 && self.versions.places(*id).on(store).is_none()
        };
        let of = |volume: &Volume| volume.writing.values().copied().chain(volume.dead.values()).collect::<Vec<Id>>();
        let dropped = self.volumes.values().flat_map(of).filter(is_dropped);
        for id in dropped.collect::<Vec<_>>() {
            self.versions[id].stores &= !store.bit();
            self.forget_if_gone(id);
        }
    }

    /// The time has come that [`Offload::poll_timeout`] named, or an earlier one.
    pub(crate) fn timer(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        self.settle();
    }

    /// When to call [`Offload::timer`].
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        if self.is_frozen {
            return None;
        }
        let reopens = self.stores.iter().filter_map(|store| match store.state {
            State::Closed(at) => Some(at),
            State::Missing | State::Opening | State::Open | State::Failing | State::Retired => None,
        });
        let deletes = self.stores.iter().filter(|store| store.is_open()).filter_map(|store| store.delete_at);
        let is_ready = self.volumes.values().any(|volume| !volume.ready.is_empty());
        reopens.chain(self.tail_at).chain(deletes).chain(is_ready.then_some(self.now)).min()
    }

    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The superblock that [`Action::Superblock`] names: first byte on the store, and its bytes.
    pub(crate) fn superblock(&self, store: StoreId) -> Option<(u64, &super::SuperblockBytes)> {
        let (offset, _, bytes) = self.stores[store.0 as usize].superblock.as_ref()?;
        Some((*offset, bytes))
    }

    /// Restores what holds between events: what can be sent is sent.
    pub(super) fn settle(&mut self) {
        if self.is_frozen {
            return self.tail_at = None;
        }
        self.delete_dead();
        let has_changed = std::mem::take(&mut self.has_changed_hosts) && self.has_pins_to_move();
        if has_changed {
            self.move_pins();
        }
        self.release_pins(has_changed);
        for at in 0..self.stores.len() as u8 {
            let store = StoreId(at);
            self.open_if_due(store);
            self.append_waiting(store);
            self.move_tail(store);
        }
        self.retire_empty();
        self.tail_at = if self.stores.iter().any(|store| store.is_open() && store.log.has_moved()) {
            // If something was on its way then, it is tried again later.
            Some(self.tail_at.filter(|&at| at > self.now).unwrap_or(self.now + TAIL_NS))
        } else {
            None
        };
    }

    fn open_if_due(&mut self, store: StoreId) {
        let state = &mut self.stores[store.0 as usize];
        if !matches!(state.state, State::Closed(at) if at <= self.now) {
            return;
        }
        if state.is_lost {
            return self.pass_over(store);
        }
        state.log.advance();
        let margin = std::mem::take(&mut state.margin);
        state.log.restart((self.first_number >> COUNTER_BITS) as u32, margin);
        state.state = State::Opening;
        self.write_superblock(store);
    }

    fn write_superblock(&mut self, store: StoreId) {
        let state = &mut self.stores[store.0 as usize];
        let mut superblock = state.log.superblock();
        for note in &state.notes {
            let list = if note.is_remembered { &mut superblock.remembered } else { &mut superblock.deleted };
            list.push(note.number);
        }
        state.superblock = Some((superblock.place(), superblock.tail, Box::new(superblock.encode())));
        self.actions.push_back(Action::Superblock(store));
    }

    fn append_waiting(&mut self, store: StoreId) {
        while self.stores[store.0 as usize].append_next(self.now) {
            self.append_last(store);
        }
        let state = &mut self.stores[store.0 as usize];
        state.delete_at = state.delete_at.filter(|&at| at > self.now);
    }

    /// The last record of a store is to be written, and padding that precedes it.
    fn append_last(&mut self, store: StoreId) {
        let last = self.stores[store.0 as usize].appends.len() - 1;
        let numbers = self.numbers(&self.stores[store.0 as usize].appends[last].what);
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

    /// Deletes versions that are dead, as far as that is possible. Those that must wait are looked at again when what
    /// they wait for has changed.
    fn delete_dead(&mut self) {
        for volume in (0..self.volumes.past()).map(VolumeKey) {
            for _ in 0..LOOKS_MAX {
                let Some(state) = self.volumes.get_mut(volume) else { break };
                let Some(number) = state.ready.pop_first() else { break };
                let Some(id) = state.dead.get(number).filter(|_| state.undeleted.get(number).is_some()) else {
                    continue;
                };
                if self.may_delete(volume, id) && self.delete(id) {
                    let state = &mut self.volumes[volume];
                    state.undeleted.remove(number);
                    let above = state.hiding.above(number).filter(|&above| state.undeleted.get(above).is_some());
                    state.ready.extend(above);
                }
            }
        }
    }

    /// Whether nothing that a version hides would be found without it: each is in no store any more, or both are only
    /// in the same one, which is open, and its deletion stands in the log already, so that of the version will stand
    /// behind it. With two copies that would not do: the version may be deleted on one store, and not count with the
    /// other copy alone. Nor would it do for a store that fails: its deletion may be lost, and that of the version be
    /// remembered.
    fn may_delete(&mut self, volume: VolumeKey, id: Id) -> bool {
        let open = self.mask(Store::is_open);
        let (state, version) = (&self.volumes[volume], self.versions[id]);
        let mut hurried = 0;
        let is_safe = state.hiding.below(version.number).all(|below| {
            let Some(below) = state.dead.get(below).or_else(|| state.live.get(below)) else { return true };
            let (below, deleting) = (self.versions[below], self.versions.moving(below).deleting);
            let is_before = below.live() == 0
                && below.stores == deleting & version.stores & open
                && version.stores.is_power_of_two();
            hurried |= if is_before { 0 } else { deleting };
            is_before
        });
        for (at, store) in (0u8..).zip(&mut self.stores) {
            if hurried & StoreId(at).bit() != 0 {
                store.delete_at = None;
            }
        }
        is_safe || self.is_hidden(volume, id) || planted!(HighestDeletedFirst)
    }

    /// Whether higher versions hide all of a version. If so, they hide what it hides as well, and it can be deleted
    /// before that.
    fn is_hidden(&mut self, volume: VolumeKey, id: Id) -> bool {
        let (state, version) = (&mut self.volumes[volume], self.versions[id]);
        let mut parts = state.ranges.parts(version.start(), version.end());
        if version.is_failed() || parts.any(|part| part.version == Some(id)) {
            return false;
        }
        drop(parts);
        let range = |number: u64| {
            let id = state.dead.get(number).or_else(|| state.live.get(number))?;
            Some((self.versions[id].start(), self.versions[id].end()))
        };
        // The content that they have in common is hidden by some higher version that has it, too.
        let overlaps = |higher: u64, lower: u64| match (range(higher), range(lower)) {
            (Some((from, to)), Some((start, end))) => from < end && start < to,
            _ => true,
        };
        let pairs = state.hiding.pairs_through(version.number, overlaps);
        pairs.into_iter().for_each(|(higher, lower)| state.hiding.add(higher, lower));
        true
    }

    /// Asks the stores that have a version to delete it. Whether all of them are asked.
    fn delete(&mut self, id: Id) -> bool {
        let away = self.mask(Store::is_away);
        let no_host = self.mask(|store| !store.is_open() || store.is_retiring);
        let (version, places) = (self.versions[id], self.versions.places(id));
        let is_urgent = self.is_ending || version.is_failed();
        let mut moving = self.versions.moving(id);
        for (at, store) in self.stores.iter_mut().enumerate() {
            let bit = StoreId(at as u8).bit();
            if version.stores & bit & !moving.deleting & !away != 0 {
                // A failed version that was never acknowledged there is gone with the epoch.
                if places.on(StoreId(at as u8)).is_some() {
                    moving.deleting |= bit;
                    store.delete(self.now, id, is_urgent);
                }
            }
        }
        if version.stores & away != 0 {
            // As many others as there are copies remember it.
            let missing = self.settings.copies.saturating_sub(moving.remembering.count_ones() as usize);
            let hosts = (0..self.stores.len() as u8).map(StoreId);
            let free = hosts.filter(|store| (no_host | moving.remembering) & store.bit() == 0);
            let hosts: Vec<StoreId> = free.take(missing).collect();
            if hosts.len() == missing {
                for store in hosts {
                    moving.remembering |= store.bit();
                    self.stores[store.0 as usize].remembered.push_back(version.number);
                }
            }
        }
        self.versions.change(id, |now| *now = moving);
        version.stores & away == 0 && version.stores & !moving.deleting == 0
    }

    /// A record of remembered deletions is durable.
    pub(super) fn remembered(&mut self, store: StoreId, at: Option<u64>, numbers: Vec<u64>) {
        // It may repeat what stands in the way of the tail.
        for pin in self.pins.iter_mut().filter(|pin| pin.on == store) {
            pin.numbers.retain(|number| !numbers.contains(number));
        }
        self.pins.push(Pin { on: store, at, numbers: numbers.clone() });
        self.has_changed_hosts = true;
        for number in numbers {
            if let Some(id) = self.dead_version(number) {
                self.versions.change(id, |moving| moving.remembered |= store.bit());
                self.forget_if_gone(id);
            }
        }
    }

    /// Records of remembered deletions are not needed when all stores know of them.
    fn release_pins(&mut self, has_moved: bool) {
        if self.pins.is_empty() {
            return;
        }
        let moved = if has_moved { self.moved_deletions() } else { BTreeSet::new() };
        let all = std::mem::take(&mut self.pins);
        let is_missing = self.stores.iter().any(|store| store.state == State::Missing);
        let is_open = |number: &u64| {
            is_missing
                || self.dead_version(*number).is_some()
                || self.stores.iter().any(|store| store.owed.contains(number))
        };
        let is_needed = |pin: &Pin, number: &u64| is_open(number) && !moved.contains(&(pin.on, *number));
        let (kept, released) = all.into_iter().partition(|pin| pin.numbers.iter().any(|number| is_needed(pin, number)));
        self.pins = kept;
        let released: Vec<Pin> = released;
        released.iter().for_each(|pin| pin.release(&mut self.stores));
    }

    /// Makes the tail durable when nothing else is to be written, or when room is short.
    fn move_tail(&mut self, store: StoreId) {
        let state = &mut self.stores[store.0 as usize];
        if !state.is_open() {
            return;
        }
        state.log.advance();
        self.note_deletions(store);
        self.repeat_pinned(store);
        let state = &mut self.stores[store.0 as usize];
        if state.superblock.is_none() && !state.log.has_link() && state.log.link_again() {
            state.state = State::Opening;
            return self.write_superblock(store);
        }
        if state.superblock.is_some() || !state.log.has_moved() {
            return;
        }
        let is_short = state.log.used() > state.log.capacity() / 2 || !state.log.has_link();
        let is_idle = state.appends.is_empty() && state.pending.is_empty();
        let is_due = is_idle && self.tail_at.is_some_and(|at| at <= self.now);
        if is_short || is_due {
            self.tail_at = None;
            self.write_superblock(store);
        }
    }

    /// Deletions for which the log has no room go into a superblock.
    fn note_deletions(&mut self, store: StoreId) {
        let state = &mut self.stores[store.0 as usize];
        let is_deleting = state.appends.iter().any(|append| append.what.is_deletion());
        if state.superblock.is_some() || is_deleting || state.log.has_room_for_header() {
            return;
        }
        let most = NOTES_MAX.saturating_sub(state.notes.len());
        let Some(what) = (most > 0).then(|| state.take_deletions(most)).flatten() else { return };
        let numbers = self.numbers(&what);
        let state = &mut self.stores[store.0 as usize];
        let is_remembered = matches!(what, What::Remembered(_));
        let until = if is_remembered { u64::MAX } else { state.log.head() };
        for number in numbers {
            let known = |note: &&mut Note| note.number == number && note.is_remembered == is_remembered;
            match state.notes.iter_mut().find(known) {
                Some(note) => note.until = note.until.max(until),
                None => state.notes.push(Note { number, is_remembered, until }),
            }
        }
        state.noting.push(what);
        self.write_superblock(store);
    }

    /// The numbers of deleted versions.
    fn numbers(&self, what: &What) -> Vec<u64> {
        match what {
            What::Deletions(ids) => ids.iter().map(|&id| self.versions[id].number).collect(),
            What::Remembered(numbers) | What::Owed(numbers) => numbers.clone(),
            What::Writes(_) | What::Padding | What::Proof => Vec::new(),
        }
    }

    /// Remembered deletions at the tail are appended again when room is short, so that the tail can move.
    fn repeat_pinned(&mut self, store: StoreId) {
        let state = &self.stores[store.0 as usize];
        let Some(tail) = state.log.tail().copied().filter(|tail| tail.needed > 0) else { return };
        if state.log.used() <= state.log.capacity() / 2 {
            return;
        }
        let Some(at) = self.pins.iter().position(|pin| pin.on == store && pin.at == Some(tail.at())) else { return };
        // It stays in the log until the repetition is durable, since the tail moves behind that.
        let Pin { numbers, .. } = &self.pins[at];
        let state = &mut self.stores[store.0 as usize];
        let has =
            |what: &What| matches!(what, What::Remembered(others) if numbers.iter().any(|it| others.contains(it)));
        let on_way = state.appends.iter().map(|append| &append.what).chain(&state.noting).any(has);
        if !on_way && !numbers.iter().any(|number| state.remembered.contains(number)) {
            state.remembered.extend(numbers.iter().copied());
        }
    }

    /// What is in the way of the base.
    #[cfg(test)]
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for volume in self.volumes.values() {
            text += &format!("\n{} away, hiding {:x?}, failed {:?}", volume.away_bytes, volume.hiding, volume.failed);
            for (number, id) in volume.dead.iter() {
                text += &format!("\ndead {number:x}: {:x?} {:x?}", self.versions[id], self.versions.moving(id));
            }
        }
        for (number, id) in self.volumes.values().flat_map(|volume| volume.live.iter()) {
            text += &format!("\nlive {number:x}: {}", self.versions[id].live());
        }
        for store in &self.stores {
            let Store { state, log, pending, deletions, notes, remembered, owed, .. } = store;
            let appends: Vec<_> = store.appends.iter().map(|append| (&append.what, append.has_ended)).collect();
            text += &format!("\n{state:?} {log:?} pending {pending:?} deletions {deletions:?} notes {notes:x?}");
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
                assert!(version.start() <= part.start && part.end <= version.end(), "{part:?} of {version:?}");
                assert!(version.stores != 0, "no store has {version:?}");
                let is_missing = version.stores & self.mask(|store| store.state == State::Missing) != 0;
                assert!(is_missing || self.versions.places(id).iter().any(|(_, at)| at > 0));
                away += volume.ranges.away(part.start, part.end, id).map(|(from, to)| to - from).sum::<u64>();
            }
            assert_eq!(away, volume.away_bytes);
        }
        for store in &self.stores {
            assert!(store.log.is_sound() || planted!(HeadPassesTail), "{:?}", store.log);
        }
    }
}
