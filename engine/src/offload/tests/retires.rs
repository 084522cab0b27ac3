//! Stores that are removed while they are in use: emptied, then forgotten with all their bytes.
//!
//! A store that is forgotten has no place among the stores of the next process. Here an empty one, with another log,
//! has that place.

use super::*;

impl World {
    /// A store is to be emptied, if as many others stay as there are copies. That is durable.
    pub(super) fn retire(&mut self) {
        // More often one that remembers something.
        let has_pins = |&store: &usize| self.offload.pins.iter().any(|pin| usize::from(pin.on.0) == store);
        let hosts: Vec<usize> = (0..STORES).filter(has_pins).collect();
        let any = self.rng.below(STORES as u64) as usize;
        let store = match hosts.first() {
            Some(&host) if self.rng.one_in(2) => host,
            _ if self.rng.one_in(4) => any,
            _ => return,
        };
        let others = (0..STORES).filter(|&other| other != store && !self.is_leaving[other]).count();
        if others >= self.copies && !self.is_leaving[store] {
            self.is_leaving[store] = true;
            self.log.push(format!("store {store} is to be emptied"));
            self.offload.retire(self.now, StoreId(store as u8));
            self.act();
        }
    }

    /// A process begins: it goes on with the stores that were to be emptied, and does not know those that were.
    pub(super) fn retire_again(&mut self) {
        for store in (0..STORES).filter(|&store| self.is_leaving[store]).collect::<Vec<_>>() {
            self.offload.retire(self.now, StoreId(store as u8));
        }
    }

    /// The stores that were forgotten have successors, which are empty.
    pub(super) fn replace_forgotten(&mut self) {
        for store in 0..STORES {
            if std::mem::take(&mut self.is_forgotten[store]) {
                self.is_leaving[store] = false;
                self.stores[store].fill(0);
                self.invalid[store] = 0;
                self.logs[store] += STORES as u128;
            }
        }
    }

    fn is_retired(&self, store: usize) -> bool {
        self.offload.stats(StoreId(store as u8)).is_retired
    }

    /// A store that is empty is forgotten, and its bytes are overwritten.
    pub(super) fn forget_retired(&mut self) {
        for store in 0..STORES {
            if !self.is_retired(store) || self.is_forgotten[store] {
                continue;
            }
            assert!(self.is_leaving[store] && self.tickets.iter().all(|ticket| ticket.store != store));
            self.log.push(format!("store {store} is forgotten"));
            self.is_forgotten[store] = true;
            self.stores[store].fill(0xa5);
            self.late.retain(|ticket| ticket.store != store);
            (self.missed[store], self.mapped[store], self.is_started[store]) = (0, Mapped::No, false);
            self.map.versions.iter_mut().for_each(|known| known.stores &= !StoreId(store as u8).bit());
        }
    }

    /// Whether all stores that were to be emptied are empty.
    pub(super) fn all_retired(&self) -> bool {
        (0..STORES).all(|store| !self.is_leaving[store] || self.is_retired(store))
    }
}
