//! A store that is in use is emptied, so that the client can do without it from then on.
//!
//! ```text
//!   retire ─► no new versions, no deletions of others ─► its content goes home first, and is deleted there as usual
//!          ─► deletions that it remembers ─► remembered by others ─► nothing refers to it: Retired
//! ```
//!
//! A store that is retired can be forgotten, with all that its log still has: no version is in it, or may be; no other
//! store has to be told of a deletion that only it remembers; and it was told of all deletions itself. The last one
//! matters if the process ends before that is recorded: the next one reads the store once more.
//!
//! Until it is empty, it takes writes that must go to stores if too few others can take them: so a store that is
//! emptied makes no write wait. If it fails, or was missing at the start, it is emptied when it is back.
//!
//! Ours. Downside: while another store is away, deletions that are remembered for it need as many further hosts as
//! there are copies; with fewer, the store is retired only when the other one is back.

use std::collections::{BTreeMap, BTreeSet};

use super::ranges::Id;
use super::store::{State, Store, StoreId, What};
use super::{Offload, Pin, Volume};
use crate::units::Nanos;

impl Offload {
    /// Empties a store, for ever. [`StoreStats::is_retired`](super::StoreStats) says when it is empty.
    pub(crate) fn retire(&mut self, now: Nanos, store: StoreId) {
        self.now = self.now.max(now);
        let state = &mut self.stores[store.0 as usize];
        state.is_retiring = true;
        // Others remember what it has not been sent.
        for number in std::mem::take(&mut state.remembered) {
            self.forget_host(store, number);
        }
        self.search_again();
        self.has_changed_hosts = true;
        self.settle();
    }

    /// Whether a store was emptied.
    pub(crate) fn is_retired(&self, store: StoreId) -> bool {
        self.stores.get(store.0 as usize).is_some_and(|store| store.state == State::Retired)
    }

    /// Whether content has to go home so that a store becomes empty. Content of others may have to go first: the
    /// highest version of a block is deleted last.
    pub(super) fn is_emptying(&self) -> bool {
        let has_pins = |at| self.pins.iter().any(|pin| pin.on == StoreId(at));
        let has_versions = |(at, store): (u8, &Store)| {
            let is_emptied = store.is_retiring && store.is_open();
            is_emptied && (store.live_bytes > 0 || store.log.tail().is_some() && !has_pins(at))
        };
        (0u8..).zip(&self.stores).any(has_versions)
    }

    /// Whether a store that is being emptied remembers deletions.
    pub(super) fn has_pins_to_move(&self) -> bool {
        self.pins.iter().any(|pin| self.stores[pin.on.0 as usize].is_retiring)
    }

    /// The stores that stay and remember the deletion of a version durably.
    fn hosts(&self) -> BTreeMap<u64, u16> {
        let mut hosts = BTreeMap::new();
        for Pin { on, numbers, .. } in self.pins.iter().filter(|pin| !self.stores[pin.on.0 as usize].is_retiring) {
            numbers.iter().for_each(|&number| *hosts.entry(number).or_default() |= on.bit());
        }
        hosts
    }

    /// What a store that is being emptied remembers, others are asked to remember.
    pub(super) fn move_pins(&mut self) {
        let (mut hosts, retiring) = (self.hosts(), self.mask(|store| store.is_retiring));
        for (at, store) in (0u8..).zip(&self.stores) {
            // It may have been asked already.
            let on_way = store.appends.iter().map(|append| &append.what).chain(&store.noting);
            let numbers = on_way.filter_map(|what| match what {
                What::Remembered(numbers) => Some(numbers),
                _ => None,
            });
            for number in numbers.flatten().chain(&store.remembered).filter(|_| !store.is_retiring) {
                *hosts.entry(*number).or_default() |= StoreId(at).bit();
            }
        }
        let copies = self.settings.copies as u32;
        for pin in self.pins.iter().filter(|pin| retiring & pin.on.bit() != 0) {
            for &number in &pin.numbers {
                let has = hosts.entry(number).or_default();
                for (at, store) in (0u8..).zip(&mut self.stores) {
                    let is_free = store.is_open() && !store.is_retiring && *has & StoreId(at).bit() == 0;
                    if is_free && has.count_ones() < copies {
                        *has |= StoreId(at).bit();
                        store.remembered.push_back(number);
                    }
                }
            }
        }
    }

    /// Deletions that a store which is being emptied need not remember any more, since others do.
    pub(super) fn moved_deletions(&self) -> BTreeSet<(StoreId, u64)> {
        let (hosts, copies) = (self.hosts(), self.settings.copies as u32);
        let has_moved = |number: &u64| hosts.get(number).is_some_and(|has| has.count_ones() >= copies);
        let pins = self.pins.iter().filter(|pin| self.stores[pin.on.0 as usize].is_retiring);
        let numbers = pins.flat_map(|pin| pin.numbers.iter().map(move |&number| (pin.on, number)));
        numbers.filter(|(_, number)| has_moved(number)).collect()
    }

    /// Stores that are empty are retired.
    pub(super) fn retire_empty(&mut self) {
        for store in (0..self.stores.len() as u8).map(StoreId) {
            let state = &self.stores[store.0 as usize];
            if state.is_retiring && state.is_open() && self.is_empty(store) {
                self.stores[store.0 as usize].state = State::Retired;
            }
        }
    }

    /// Whether nothing refers to a store that is open, and nothing is on its way to it.
    fn is_empty(&self, store: StoreId) -> bool {
        let state = &self.stores[store.0 as usize];
        let is_idle = state.pending.is_empty() && state.appends.is_empty() && state.superblock.is_none();
        let has_deletions = !state.owed.is_empty() || !state.remembered.is_empty();
        let has_pins = self.pins.iter().any(|pin| pin.on == store) && !planted!(RetiredWhileRemembering);
        if !is_idle || state.reads > 0 || has_deletions || has_pins {
            return false;
        }
        // All versions are looked at only if no record is needed.
        let has_records = state.log.tail().is_some();
        let may_have = |id: Id| self.versions[id].stores & store.bit() != 0;
        let is_dead_ignored = planted!(RetiredWithDeadVersions);
        if has_records && !is_dead_ignored && !planted!(RetiredWhileRemembering) {
            return false;
        }
        let mut volumes = self.volumes.values();
        !volumes.any(|Volume { writing, live, dead, .. }| {
            let dead = dead.values().filter(|_| !is_dead_ignored);
            writing.values().copied().chain(live.values()).chain(dead).any(may_have)
        })
    }
}
