//! A store that is gone for good. The next process does without it, so this one must not write there any more.
//!
//! It may be away for an instant only. If its log were opened again, it would take writes that the next start drops. So
//! it is never opened again by this process, and not read if it was missing. Its versions stay as they are when a store
//! is away: content of which there is another copy goes home, and the rest can be declared invalid when all that only
//! it has is home ([`super::invalid`]).

use super::store::{State, StoreId};
use super::{Invalid, Offload};

impl Invalid {
    /// All that a store has, or may get: it is lost. Nothing happens if it is open: then it is not lost.
    pub fn all_of(store: StoreId) -> Invalid {
        Invalid { stores: store.bit(), below: u64::MAX }
    }

    /// Whether it is that.
    pub(super) fn is_all(&self) -> bool {
        self.below == u64::MAX
    }
}

impl Offload {
    /// Does without stores, as far as they are not in use, until the process ends.
    pub(super) fn lose(&mut self, stores: u16) {
        for store in (0..self.stores.len() as u8).map(StoreId).filter(|store| stores & store.bit() != 0) {
            let state = &mut self.stores[store.0 as usize];
            if matches!(state.state, State::Open | State::Retired) {
                continue;
            }
            state.is_lost = true;
            if state.state == State::Opening {
                // The superblock on its way may land, and opens nothing.
                self.store_failed(store);
                self.close_if_drained(store);
            }
        }
        self.settle();
    }

    /// The time has come at which a lost store would be opened. What can be declared invalid may have changed.
    pub(super) fn pass_over(&mut self, store: StoreId) {
        self.stores[store.0 as usize].close(self.now);
        self.look_for_invalid();
    }
}
