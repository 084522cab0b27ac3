//! A store that an operator has declared lost. The next process does without it, so this one must not write there.
//!
//! The store may only be away for a moment. If this process opened its log again, it would write versions there that
//! the next start drops. So it never opens the log again, and does not read the store if it was missing. The versions
//! in the store are treated as those of any store that is away: content with another copy goes home, and the rest can
//! be declared invalid once the newest content is home ([`super::invalid`]).

use super::Offload;
use super::store::{State, StoreId};
use crate::units::Nanos;

impl Offload {
    /// Does without a store until the process ends. False if it is open or empty, or there is none of that number: then
    /// nothing changes.
    pub(crate) fn lose(&mut self, now: Nanos, store: StoreId) -> bool {
        self.now = self.now.max(now);
        let Some(state) = self.stores.get_mut(usize::from(store.0)) else { return false };
        if matches!(state.state, State::Open | State::Retired) {
            return false;
        }
        state.is_lost = true;
        if state.state == State::Opening {
            // The superblock on its way may land, and opens nothing.
            self.store_failed(store);
            self.close_if_drained(store);
        }
        self.settle();
        true
    }

    /// The time has come at which a lost store would be opened. What can be declared invalid may have changed.
    pub(super) fn pass_over(&mut self, store: StoreId) {
        self.stores[store.0 as usize].close(self.now);
        self.look_for_invalid();
    }
}
