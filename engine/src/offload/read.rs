//! Where content is, reads of it, and the loads of the stores.

use super::store::State;
use super::{ASK_NS, Action, Offload, Source, StoreId, ranges};
use crate::ids::VolumeKey;
use crate::units::Nanos;

impl Offload {
    /// The parts of `start..end`, in order, and where each is.
    pub(crate) fn parts(
        &self,
        volume: VolumeKey,
        start: u64,
        end: u64,
    ) -> impl Iterator<Item = (u64, u64, Source)> + '_ {
        let parts = self.volumes.get(volume).map(|state| state.ranges.parts(start, end));
        let whole = parts.is_none().then_some((start, end, Source::Base));
        let located = parts.into_iter().flatten().map(|part| (part.start, part.end, self.source(part)));
        located.chain(whole)
    }

    fn source(&self, part: ranges::Part) -> Source {
        let Some(id) = part.version.filter(|_| !part.is_home) else { return Source::Base };
        let version = &self.versions[id];
        let places = self.versions.places(id);
        let present = places.iter().filter(|(store, _)| {
            version.stores & store.bit() != 0 && self.stores[store.0 as usize].state != State::Missing
        });
        let best = present.min_by_key(|(store, _)| {
            let state = &self.stores[store.0 as usize];
            (!state.is_open(), state.load())
        });
        let Some((store, at)) = best else { return Source::Away };
        Source::Store(store, at + part.start - version.start())
    }

    /// The first byte on the store of a position in its log.
    pub(crate) fn place(&self, store: StoreId, at: u64) -> u64 {
        self.stores[store.0 as usize].log.place(at)
    }

    /// Asks the servers of the stores for the loads of their disks, unless they were asked a short time ago.
    pub(super) fn ask_loads(&mut self) {
        for (at, store) in (0u8..).zip(&mut self.stores) {
            if store.is_open() && self.now >= store.ask_at {
                store.ask_at = self.now + ASK_NS;
                self.actions.push_back(Action::AskLoad(StoreId(at)));
            }
        }
    }

    /// The requests of others at the disk of a store, if its server tells that.
    pub(crate) fn load_told(&mut self, now: Nanos, store: StoreId, others: Option<u32>) {
        self.now = self.now.max(now);
        self.stores[store.0 as usize].others = others.map(|others| (now, others));
    }

    /// A position is going to be read: what is there stays until [`Offload::read_ended`].
    pub(crate) fn read_begins(&mut self, now: Nanos, store: StoreId, at: u64) {
        self.now = self.now.max(now);
        self.ask_loads();
        let state = &mut self.stores[store.0 as usize];
        state.log.need(at);
        state.reads += 1;
    }

    /// That read has ended. If it failed, the store is not used before its log has been opened again.
    pub(crate) fn read_ended(&mut self, now: Nanos, store: StoreId, at: u64, is_good: bool) {
        self.now = self.now.max(now);
        let state = &mut self.stores[store.0 as usize];
        state.log.release(at);
        state.reads -= 1;
        if !is_good && self.stores[store.0 as usize].is_open() {
            self.store_failed(store);
            self.close_if_drained(store);
        }
        self.settle();
    }
}
