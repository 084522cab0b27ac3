//! What an operator sees.

use super::ranges::Id;
use super::store::{State, Store, StoreId};
use super::{Invalid, Offload};
use crate::units::Nanos;

/// The state of one store, for operators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreStats {
    /// Whether writes are sent to it.
    pub is_open: bool,
    /// Whether the last write to it failed: it is tried again from time to time.
    pub is_failing: bool,
    /// Whether its content is unknown.
    pub is_missing: bool,
    /// Whether it was declared lost ([`LoseStore`](crate::control::Command::LoseStore)): it is never opened again.
    pub is_lost: bool,
    /// Bytes whose newest content it has.
    pub offloaded_bytes: u64,
    /// Bytes of its log in use, and all.
    pub used_bytes: u64,
    /// Bytes of its log.
    pub log_bytes: u64,
    /// Requests that wait or are on their way.
    pub load: u32,
    /// Whether it was told of everything that was deleted while it was away.
    pub is_told: bool,
    /// Whether it was emptied for [`RetireStore`](crate::control::Command::RetireStore): nothing refers to it any more.
    pub is_retired: bool,
}

/// The state of off-loading, for operators.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct OffloadStats {
    /// By [`StoreId`].
    pub stores: Vec<StoreStats>,
    /// Whether content of an earlier process has fewer copies than it should, so that the next process must not start
    /// without any of the stores that this one has.
    pub is_thin: bool,
    /// Bytes of which stores that are away should have a copy.
    pub thin_bytes: u64,
    /// Bytes whose newest content the base does not have.
    pub away_bytes: u64,
    /// Bytes that were off-loaded, and that were brought home, since the start.
    pub written_bytes: u64,
    /// See `written_bytes`.
    pub reclaimed_bytes: u64,
    /// Age of the oldest content that is away, nanoseconds; since the start at most.
    pub oldest_ns: Option<Nanos>,
    /// Whether an earlier process has written it: then it is older.
    pub oldest_is_early: bool,
    /// What may be declared invalid with [`Invalidate`](crate::control::Command::Invalidate), once that is durable.
    pub invalid: Option<Invalid>,
    /// Whether everything is brought home, for ever.
    pub is_ending: bool,
    /// The last decision, and how often it was another one than before.
    pub decided: Decided,
    /// See `decided`.
    pub switches: u64,
    /// The last switch off and the last one on, if there was one.
    pub switched: [Option<Decided>; 2],
}

/// Why a write was off-loaded, or not.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Decided {
    /// Whether writes that could go to the base go to stores.
    pub is_peak: bool,
    /// Requests of the tenant at the base.
    pub base_load: u32,
    /// Requests at the least loaded store that has room; `None` if none has.
    pub store_load: Option<u32>,
    /// The volume is at its limit.
    pub is_limited: bool,
}

impl Offload {
    /// The state of a store.
    pub(crate) fn stats(&self, store: StoreId) -> StoreStats {
        let state = &self.stores[store.0 as usize];
        StoreStats {
            is_open: state.is_open(),
            is_failing: state.is_failing(),
            is_missing: state.state == State::Missing,
            is_lost: state.is_lost,
            offloaded_bytes: state.live_bytes,
            used_bytes: state.log.used(),
            log_bytes: state.log.capacity(),
            load: state.load(),
            is_told: self.is_told(store),
            is_retired: state.state == State::Retired,
        }
    }

    /// The state of all.
    pub(crate) fn stats_of_all(&mut self, now: Nanos) -> OffloadStats {
        let away = self.mask(Store::is_away);
        let live = || self.volumes.values().flat_map(|volume| volume.live.values());
        let is_thin = |&id: &Id| {
            let (stores, places) = (self.versions[id].stores, self.versions.places(id));
            let copies = places.iter().filter(|(store, _)| stores & !away & store.bit() != 0).count();
            stores & away != 0 || copies < self.settings.copies
        };
        let thin_bytes = if away == 0 { 0 } else { live().filter(is_thin).map(|id| self.versions[id].live()).sum() };
        let oldest = self.volumes.values().filter_map(|volume| volume.live.iter().next()).map(|(number, _)| number);
        let oldest = oldest.min();
        while let [_, (_, second), ..] = *self.marks.make_contiguous()
            && oldest.is_none_or(|oldest| second <= oldest)
        {
            self.marks.pop_front();
        }
        let first = self.marks.front().filter(|(_, number)| oldest.is_some_and(|oldest| *number <= oldest));
        // What an earlier process has written is older than this one.
        let since = first.map_or(self.started, |&(at, _)| at);
        OffloadStats {
            stores: (0..self.stores.len() as u8).map(|at| self.stats(StoreId(at))).collect(),
            is_thin: self.is_thin(),
            thin_bytes,
            away_bytes: self.volumes.values().map(|volume| volume.away_bytes).sum(),
            written_bytes: self.written_bytes,
            reclaimed_bytes: self.reclaimed_bytes,
            oldest_ns: oldest.map(|_| now.saturating_sub(since)),
            oldest_is_early: oldest.is_some_and(|oldest| oldest < self.first_number),
            invalid: self.invalid,
            is_ending: self.is_ending,
            decided: self.decided,
            switches: self.switches,
            switched: self.switched,
        }
    }
}
