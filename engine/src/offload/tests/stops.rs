//! Clean stops, and starts with the map of what stores have.

use super::*;

impl World {
    /// The process ends in order, and the next one begins without some of the stores, or all.
    pub(super) fn stop(&mut self) {
        let versions = loop {
            // Stores that begin an epoch may not answer.
            let leaves = self.rng.one_in(2);
            let is_opening = |ticket: &Ticket| self.offload.stores[ticket.store].state == State::Opening;
            if self.tickets.iter().any(|ticket| !leaves || !is_opening(ticket)) {
                self.stored();
                continue;
            }
            while !self.at_base.is_empty() {
                self.base_written();
            }
            self.flush();
            if let Some(versions) = self.offload.map() {
                break versions;
            }
        };
        self.late.clear();
        for ticket in std::mem::take(&mut self.tickets) {
            self.abandon(ticket);
        }
        self.map = Map { incarnation: self.incarnation, stores: 0, versions };
        let kept = |&is_forgotten: &bool| if is_forgotten { Mapped::No } else { Mapped::Exactly };
        self.mapped = self.is_forgotten.iter().map(kept).collect();
        for unit in self.units.iter_mut().filter(|unit| !unit.is_unseen) {
            unit.possible = vec![unit.newest];
        }
        (0..STORES).for_each(|store| self.is_down[store] = self.rng.one_in(2));
        self.log.push(format!("stopped: {:x?}", self.map.versions));
        // Before that, what an earlier process has sent can land: a deletion of what the base has.
        let was_ready = self.offload.is_ready(VOLUME);
        let sources: Vec<_> = (0..UNITS).map(|unit| self.holders(unit)).collect();
        self.start_again();
        if self.mapped() > 0 && was_ready {
            sources.into_iter().enumerate().for_each(|(unit, (sure, all))| self.check_source(unit, sure, all));
        }
        self.check();
    }

    /// The stores that have the newest content of a unit, and those that may have it; none if the base has it.
    fn holders(&self, unit: usize) -> (u16, u16) {
        let (start, end) = bytes((unit, unit + 1));
        let part = self.offload.volumes[VOLUME].ranges.parts(start, end).next().expect("a part");
        let Some(id) = part.version.filter(|_| !part.is_home) else { return (0, 0) };
        let (stores, places) = (self.offload.versions[id].stores, self.offload.versions.places(id));
        (stores & self.offload.mapped | places.stores(), stores)
    }

    /// Without some stores, what the others or the base have can be read, and nothing else.
    fn check_source(&self, unit: usize, sure: u16, all: u16) {
        let missing = self.offload.mask(|store| store.state == State::Missing);
        let (start, end) = bytes((unit, unit + 1));
        let (.., source) = self.offload.parts(VOLUME, start, end).next().expect("a part");
        let is_right = match source {
            Source::Base => all == 0,
            // A store that was missing may have a copy that the process before did not know of.
            Source::Store(..) => all != 0,
            Source::Away => all != 0 && sure & !missing == 0,
        };
        let log = self.log.join("\n");
        assert!(is_right, "unit {unit} of stores {sure:b} or {all:b} is at {source:?}\n{log}");
    }
}
