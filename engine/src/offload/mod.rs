//! The client of off-load stores: writes of overloaded volumes go to logs on other disks for a while, and back later.
//!
//! ```text
//!   write ─► choose ─► base
//!               └────► store ─► record in its log ─► all copies acknowledged ─► the range map ─► Done
//!   read  ─► parts ──► base, or the log of a store
//!   base is idle ─► next_to_reclaim ─► read, write to the base durably ─► brought_home
//!                       └─► all of it home or covered ─► deleted on each store ─► the base is free again
//! ```
//!
//! The machine has no data and does no I/O. Its owner carries out [`Action`]s: it writes headers and the data of
//! transfers to the stores, and tells the machine which of its writes and reclaims have ended.
//!
//! **Invariants** (Everest, section 3.2.3), for each byte:
//! 1. Once a version of it may be in a store, new content goes to stores only, until the deletion of all its versions
//!    is durable on every store that may have one. For a store that is away, the deletion is durable when as many
//!    others
//!    as there are copies remember it; the store is told when it is back.
//! 2. A version is deleted only when it is on the base durably, or a higher one is durable in the stores.
//! 3. The highest version is deleted last: a version waits until the deletion of those that it hides ([`hiding`]) is
//!    durable everywhere, or stands before its own in the only log that has them.
//!
//! **Failures.** If a record cannot be written, the log of that store begins a new epoch ([`log`]), and the writes that
//! were on their way are decided anew ([`Action::Again`]). The failed version may be in stores: its range counts as
//! off-loaded until it is deleted there, but is never read.
//!
//! Versions are numbers that grow: an incarnation, which control makes durable before it starts the machine, and a
//! counter. So a store that was away has no version that is higher than a new one.
//!
//! Source: Everest, section 3. Batches of writes in one record, epochs with links, and remembered deletions without the
//! name of their store are ours. Downside: one old version that stays delays the deletion of all covered later ones.

mod hiding;
mod invalid;
mod log;
mod lost;
mod map;
mod packed;
mod ranges;
mod read;
mod reclaim;
mod record;
mod recovery;
mod retire;
mod room;
mod settings;
mod start;
mod stats;
mod store;
#[cfg(test)]
mod tests;
mod turns;
mod versions;
mod work;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub use invalid::Invalid;
pub use log::{STORE_BYTES_MIN, log_bytes};
pub use map::{Known, Map};
pub(crate) use reclaim::Reclaim;
pub use record::{HEADER, HeaderBytes, SUPERBLOCK, Sum, SuperblockBytes};
pub use recovery::{Recovered, Scan, Unusable};
pub use settings::Settings;
pub use start::{Initial, Past, Setup};
pub use stats::{Decided, OffloadStats, StoreStats};
pub use store::StoreId;

use crate::ids::{IoId, TenantId, VolumeKey};
use crate::slab::Table;
use crate::units::{MILLISECOND, Nanos, SECOND};
use hiding::Hiding;
use packed::Packed;
use ranges::{Id, Ranges};
use record::Stored;
use store::{Pending, State, Store, What};
use versions::{Moving, Version, Versions};

/// Copies of a write, at most.
pub const COPIES_MAX: usize = 2;
/// Stores of a disk, at most.
pub const STORES_MAX: usize = 16;
/// Bytes of a write, at most: larger ones are divided.
pub(crate) const WRITE_BYTES_MAX: u64 = 256 * 1024;
/// Time between two questions for the load of a store's disk: short against a slice of its neighbours.
const ASK_NS: Nanos = 20 * MILLISECOND;
/// Precision of the age of content.
const MARK_NS: Nanos = SECOND;
/// Bits of a version's counter; the others are the incarnation.
const COUNTER_BITS: u32 = 40;
/// Time after which a tail that has moved is made durable, if no write is on its way. Until then, recovery reads more
/// of the log than it has to.
const TAIL_NS: Nanos = SECOND;

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// To the base.
    Base,
    /// To stores: [`Offload::write`].
    Stores,
    /// It has to go to stores, and too few can take it.
    Wait,
}

/// A request to the owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Write the record [`Offload::append`] durably: [`Offload::seal`] it first, if it has data.
    Append(StoreId, u64),
    /// Write the superblock [`Offload::superblock`] durably.
    Superblock(StoreId),
    /// Ask the server of the store for the load of its disk, for [`Offload::load_told`]. It need not answer.
    AskLoad(StoreId),
    /// The write is durable in the stores.
    Done(IoId),
    /// The write failed there: it is to be decided anew.
    Again(IoId),
}

/// A record that is to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    /// First byte on the store.
    pub(crate) offset: u64,
    pub(crate) header: &'a HeaderBytes,
    /// The transfers whose data follows, in order.
    pub(crate) ios: &'a [IoId],
}

/// Where a part of a range is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// At the same place of the base.
    Base,
    /// In the log of a store, from this position on.
    Store(StoreId, u64),
    /// In stores that are away.
    Away,
}

/// The off-loaded content of a volume.
#[derive(Default, Debug)]
struct Volume {
    /// Its tenant at the base, if the volume is open.
    tenant: Option<TenantId>,
    ranges: Ranges,
    /// Versions by number: on their way to stores.
    writing: BTreeMap<u64, Id>,
    /// With content that is the newest and away.
    live: Packed<Id>,
    /// Without, and not deleted everywhere.
    dead: Packed<Id>,
    /// Of these, those whose deletion some store has still to be asked for.
    undeleted: Packed<()>,
    /// Of these, those for which something has changed.
    ready: BTreeSet<u64>,
    hiding: Hiding,
    /// Failed versions: the start of the range, and the number; the end.
    failed: BTreeMap<(u64, u64), u64>,
    /// What is being copied to the base.
    reclaiming: Vec<Reclaim>,
    /// For what is next: content with too few copies that can be reached, content in stores that are being emptied or
    /// whose disks are busy, content in stores that can be written, and any.
    searches: [reclaim::Search; 4],
    /// Bytes whose newest content is away.
    away_bytes: u64,
}

impl Volume {
    /// A version has no content any more that is the newest and away.
    fn die(&mut self, number: u64, id: Id) {
        self.live.remove(number);
        self.dead.insert(number, id);
        self.undelete(number);
    }

    /// The numbers of the failed versions that overlap a range.
    fn failed_in(&self, start: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        let near = self.failed.range((start.saturating_sub(versions::BYTES_MAX), 0)..(end, 0));
        near.filter(move |&(_, &until)| until > start).map(|(&(_, number), _)| number)
    }

    /// Some store has to be asked to delete a version, if that is possible now.
    fn undelete(&mut self, number: u64) {
        self.undeleted.insert(number, ());
        self.ready.insert(number);
    }
}

/// A record of remembered deletions. It is needed until each of its versions is deleted wherever it was.
#[derive(Debug)]
struct Pin {
    /// The store that has it, and its position there; `None` in its superblock.
    on: StoreId,
    at: Option<u64>,
    numbers: Vec<u64>,
}

impl Pin {
    /// It is not needed any more.
    fn release(&self, stores: &mut [Store]) {
        let store = &mut stores[self.on.0 as usize];
        match self.at {
            Some(at) => store.log.release(at),
            None => store.notes.retain(|note| !note.is_remembered || !self.numbers.contains(&note.number)),
        }
    }
}

/// The client of the stores of one disk.
#[derive(Debug)]
pub(crate) struct Offload {
    settings: Settings,
    now: Nanos,
    stores: Vec<Store>,
    volumes: Table<VolumeKey, Volume>,
    versions: Versions,
    /// Stores that are missing, and for which a map says which versions they have.
    mapped: u16,
    /// Of this process.
    first_number: u64,
    next_number: u64,
    pins: Vec<Pin>,
    /// Which stores remember deletions, or can, may be different from what [`retire`] has seen last.
    has_changed_hosts: bool,
    actions: VecDeque<Action>,
    /// When a moved tail is made durable.
    tail_at: Option<Nanos>,
    /// What control may declare invalid, since deletions can be made durable nowhere else.
    invalid: Option<Invalid>,
    /// Everything is brought home, and nothing else is off-loaded.
    is_ending: bool,
    /// Nothing is sent to stores any more: the next process knows what they have ([`map`]).
    is_frozen: bool,
    /// When the process began.
    started: Nanos,
    /// Times, at least [`MARK_NS`] apart, and the next number at each, from the oldest content that is away on.
    marks: VecDeque<(Nanos, u64)>,
    written_bytes: u64,
    reclaimed_bytes: u64,
    decided: Decided,
    switches: u64,
    /// The last switch off and on.
    switched: [Option<Decided>; 2],
}

impl Offload {
    /// Off-loaded bytes of a volume: newest content that the base does not have.
    pub(crate) fn away_bytes(&self, volume: VolumeKey) -> u64 {
        self.volumes.get(volume).map_or(0, |state| state.away_bytes)
    }

    /// Whether stores may have a version of any byte of the volume.
    #[cfg(test)]
    pub(crate) fn has_versions(&self, volume: VolumeKey) -> bool {
        self.volumes.get(volume).is_some_and(|state| !state.ranges.is_empty() || !state.failed.is_empty())
    }

    /// Whether a version of any byte may be in a store.
    pub(crate) fn overlaps(&self, volume: VolumeKey, start: u64, end: u64) -> bool {
        let Some(state) = self.volumes.get(volume) else { return false };
        let has_failed = || state.failed_in(start, end).next().is_some();
        state.ranges.overlaps(start, end) || has_failed()
    }

    /// Where a write of `start..end` goes, at most [`WRITE_BYTES_MAX`], with `base_load` requests of its
    /// tenant at the base. `share_ppb`: the share of the base that the tenant has, parts per billion.
    pub(crate) fn choose(
        &mut self,
        now: Nanos,
        volume: VolumeKey,
        (start, end): (u64, u64),
        base_load: u32,
        share_ppb: impl FnOnce() -> u64,
    ) -> Choice {
        self.now = self.now.max(now);
        let is_always = self.settings.is_always;
        let is_overloaded = base_load > self.settings.base_threshold || is_always;
        if is_overloaded {
            self.ask_loads();
        }
        let Some(state) = self.volumes.get(volume) else { return Choice::Base };
        let bytes = end - start;
        debug_assert!(bytes <= WRITE_BYTES_MAX);
        let able = self.stores.iter().filter(|store| store.takes(bytes) && !self.is_frozen);
        // One that is being emptied takes only what must go to stores, if there are too few others.
        let staying = able.clone().filter(|store| !store.is_retiring);
        if self.overlaps(volume, start, end) && !planted!(BaseWrittenWhileAway) {
            return if able.count() >= self.settings.copies { Choice::Stores } else { Choice::Wait };
        }
        let is_limited = state.away_bytes + bytes > self.settings.limit_bytes;
        let limit = if is_always { u32::MAX } else { self.settings.store_threshold.min(base_load) };
        let is_idle = |store: &&Store| store.is_proven && (is_always || store.is_known(now) && store.load() < limit);
        let idle = staying.clone().filter(is_idle).count();
        let is_wanted = is_overloaded && !is_limited && !self.is_ending;
        let is_peak = is_wanted && idle >= self.settings.copies;
        if is_peak != self.decided.is_peak {
            let store_load = staying.map(Store::load).min();
            self.decided = Decided { is_peak, base_load, store_load, is_limited };
            self.switches += 1;
            self.switched[usize::from(is_peak)] = Some(self.decided);
        }
        // The decision above is of the disk. Whether a tenant may use more of the logs is its own.
        let may_go = is_always || self.has_room(volume, bytes, share_ppb);
        if is_peak && may_go { Choice::Stores } else { Choice::Base }
    }

    /// Takes a write for which [`Offload::choose`] says `Stores`; its data stays as it is until it is done. No other
    /// write that overlaps it is on its way. `share_ppb` as there.
    pub(crate) fn write(&mut self, now: Nanos, volume: VolumeKey, io: IoId, (start, end): (u64, u64), share_ppb: u64) {
        self.now = self.now.max(now);
        let (bytes, number) = (end - start, self.next_number);
        self.next_number += 1;
        self.written_bytes += bytes;
        if self.marks.back().is_none_or(|&(at, _)| at + MARK_NS <= now) {
            self.marks.push_back((now, number));
        }
        let able = (0u8..).zip(&self.stores).filter(|(_, store)| store.takes(bytes));
        // The stores that `choose` counts come first. A store that has not told its load lately may hang.
        let is_doubtful = |store: &Store| !store.is_proven || !store.is_known(now);
        let rank =
            |(at, store): (u8, &Store)| ((store.is_retiring, is_doubtful(store)), store.load(), store.log.used(), at);
        let mut stores: Vec<((bool, bool), u32, u64, u8)> = able.map(rank).collect();
        stores.sort_unstable();
        stores.truncate(self.settings.copies);
        let id = self.versions.add(Version::new(number, volume, start, bytes as u32));
        let waiting = if planted!(OneCopyIsEnough) { 1 } else { stores.len() as u8 };
        self.versions.change(id, |moving| *moving = Moving { io: Some(io), waiting, ..Moving::default() });
        let (copies, tenant) = (self.settings.copies as u8, self.volumes[volume].tenant);
        let stored = Stored { version: number, key: volume.0, start, len: bytes as u32, copies };
        for &(.., store) in &stores {
            self.stores[store as usize].pending.push(tenant, share_ppb, Pending { id, io, stored });
        }
        self.volumes[volume].writing.insert(number, id);
        self.settle();
    }

    /// The record that [`Action::Append`] names; `None` if the store has failed since.
    pub(crate) fn append(&self, store: StoreId, number: u64) -> Option<Record<'_>> {
        let store = &self.stores[store.0 as usize];
        let append = store.appends.iter().find(|append| append.place.number == number)?;
        Some(Record { offset: store.log.place(append.place.at), header: &append.header, ios: &append.ios })
    }

    /// The CRC-32C of the data of a record.
    pub(crate) fn seal(&mut self, store: StoreId, number: u64, data_sum: u32) {
        let appends = &mut self.stores[store.0 as usize].appends;
        if let Some(append) = appends.iter_mut().find(|append| append.place.number == number) {
            record::seal(&mut append.header, data_sum);
        }
    }

    /// A record was written, or not.
    pub(crate) fn appended(&mut self, now: Nanos, store: StoreId, number: u64, is_good: bool) {
        self.now = self.now.max(now);
        let state = &mut self.stores[store.0 as usize];
        let Some(append) = state.appends.iter_mut().find(|append| append.place.number == number) else { return };
        append.has_ended = true;
        if is_good {
            state.prove();
            let (first, past) = state.log.stored(number);
            for number in first..past {
                let appends = &mut self.stores[store.0 as usize].appends;
                let at = appends.iter().position(|append| append.place.number == number);
                let Some(append) = at.and_then(|at| appends.remove(at)) else { continue };
                self.acknowledged(store, Some(append.place.at), append.what);
            }
        } else {
            self.store_failed(store);
        }
        self.close_if_drained(store);
        self.settle();
    }

    /// A record and all before it are durable, or deletions in a superblock, which have no position.
    fn acknowledged(&mut self, store: StoreId, at: Option<u64>, what: What) {
        match what {
            What::Writes(ids) => {
                let mut data = at.expect("writes are in records") + HEADER as u64;
                for id in ids {
                    self.versions.add_place(id, store, data);
                    let version = &mut self.versions[id];
                    version.stores |= store.bit();
                    data += version.len();
                    self.copy_ended(id);
                }
            }
            What::Deletions(ids) => {
                for id in ids {
                    let at = self.versions.places(id).on(store).expect("it was there");
                    self.stores[store.0 as usize].log.release(at);
                    self.versions[id].stores &= !store.bit();
                    self.versions.change(id, |moving| moving.deleting &= !store.bit());
                    self.forget_if_gone(id);
                }
            }
            What::Remembered(numbers) => self.remembered(store, at, numbers),
            What::Owed(numbers) => {
                let owed = &mut self.stores[store.0 as usize].owed;
                numbers.iter().for_each(|number| _ = owed.remove(number));
            }
            What::Padding | What::Proof => {}
        }
    }

    /// A version that is dead, by its number.
    fn dead_version(&self, number: u64) -> Option<Id> {
        self.volumes.values().find_map(|volume| volume.dead.get(number))
    }

    /// One more copy of a write is durable, or failed.
    fn copy_ended(&mut self, id: Id) {
        let answered = self.versions.change(id, |moving| {
            moving.waiting = moving.waiting.saturating_sub(1);
            if moving.waiting > 0 { None } else { moving.io.take() }
        });
        let Some(io) = answered else { return };
        let version = &mut self.versions[id];
        let (volume, number) = (version.volume(), version.number);
        let range = (version.start(), version.end());
        let state = &mut self.volumes[volume];
        state.writing.remove(&number);
        if !version.is_failed() {
            version.set_live(version.len());
            self.took_effect(id);
            return self.actions.push_back(Action::Done(io));
        }
        // Copies that are there are deleted; others go with the epoch of their store. Higher versions hide it until
        // then.
        state.failed.insert((range.0, number), range.1);
        state.die(number, id);
        self.actions.push_back(Action::Again(io));
        self.forget_if_gone(id);
    }

    /// A version is the newest content of its range.
    fn took_effect(&mut self, id: Id) {
        let version = self.versions[id];
        let (number, len) = (version.number, version.len());
        let state = &mut self.volumes[version.volume()];
        let (versions, stores) = (&mut self.versions, &mut self.stores);
        let failed: Vec<u64> = state.failed_in(version.start(), version.end()).filter(|&it| it < number).collect();
        failed.into_iter().for_each(|failed| state.hiding.add(number, failed));
        state.ranges.cover(version.start(), version.end(), id, |older, bytes, is_home| {
            let version = &mut versions[older];
            state.hiding.add(number, version.number);
            if !is_home {
                version.set_live(version.live() - bytes);
                state.away_bytes -= bytes;
                count(stores, version, bytes, false);
                if version.live() == 0 {
                    state.live.remove(version.number);
                    state.dead.insert(version.number, older);
                    state.undeleted.insert(version.number, ());
                }
            }
            // If all of it is covered now, it does not wait any more.
            if version.live() == 0 && state.undeleted.get(version.number).is_some() {
                state.ready.insert(version.number);
            }
        });
        state.live.insert(number, id);
        state.away_bytes += len;
        count(stores, &version, len, true);
    }

    /// Stores that have each write.
    pub(crate) fn copies(&self) -> usize {
        self.settings.copies
    }

    /// Changes when writes are off-loaded and brought home.
    pub(crate) fn set(&mut self, settings: Settings) {
        self.settings = Settings { copies: self.settings.copies, ..settings };
    }

    /// From now on nothing is off-loaded but what must be.
    pub(crate) fn end(&mut self) {
        self.is_ending = true;
    }

    /// Whether nothing is in stores any more after [`Offload::end`].
    pub(crate) fn is_over(&self) -> bool {
        let is_busy = |store: &Store| store.superblock.is_some() || !store.appends.is_empty() || store.reads > 0;
        self.is_ending && !self.any_versions() && !self.stores.iter().any(is_busy)
    }

    fn any_versions(&self) -> bool {
        let is_empty = |state: &Volume| state.ranges.is_empty() && state.failed.is_empty() && state.writing.is_empty();
        !self.volumes.values().all(is_empty)
    }

    /// A volume of the disk.
    pub(crate) fn add_volume(&mut self, volume: VolumeKey) {
        if !self.volumes.contains(volume) {
            self.volumes.insert(volume, Volume::default());
        }
    }

    /// A volume is open, for this tenant.
    pub(crate) fn set_tenant(&mut self, volume: VolumeKey, tenant: TenantId) {
        self.volumes[volume].tenant = Some(tenant);
    }

    /// A volume was deleted: nobody wants its content.
    pub(crate) fn drop_volume(&mut self, now: Nanos, volume: VolumeKey) {
        self.now = self.now.max(now);
        let Some(state) = self.volumes.get(volume) else { return };
        for id in state.live.values().collect::<Vec<_>>() {
            let (start, end) = (self.versions[id].start(), self.versions[id].end());
            self.came_home(volume, start, end, id);
        }
        self.settle();
    }

    /// The stores of which something holds.
    fn mask(&self, of: impl Fn(&Store) -> bool) -> u16 {
        let stores = (0u8..).zip(&self.stores);
        stores.filter(|(_, store)| of(store)).fold(0, |mask, (at, _)| mask | StoreId(at).bit())
    }

    /// A store cannot be written: what waits is decided anew, and its log begins a new epoch when what is on its way
    /// has ended.
    fn store_failed(&mut self, store: StoreId) {
        self.search_again();
        self.has_changed_hosts = true;
        let state = &mut self.stores[store.0 as usize];
        (state.state, state.is_proven) = (State::Failing, false);
        let pending = state.pending.clear();
        let remembered = std::mem::take(&mut state.remembered);
        (state.delete_at, state.hinted) = (None, 0..0);
        for id in std::mem::take(&mut state.deletions) {
            self.delete_again(store, id);
        }
        remembered.into_iter().for_each(|number| self.forget_host(store, number));
        for Pending { id, .. } in pending {
            self.versions[id].fail();
            self.copy_ended(id);
        }
    }

    /// Closes a store that failed, when nothing is on its way to it any more.
    fn close_if_drained(&mut self, store: StoreId) {
        let state = &mut self.stores[store.0 as usize];
        if state.state != State::Failing || !state.is_drained() {
            return;
        }
        state.close(self.now);
        let noting = std::mem::take(&mut state.noting);
        let appends = std::mem::take(&mut state.appends).into_iter().map(|append| append.what);
        for what in appends.chain(noting) {
            match what {
                What::Writes(ids) => {
                    for id in ids {
                        // Until the new epoch has begun, recovery could find it.
                        self.versions[id].stores |= store.bit();
                        self.versions[id].fail();
                        self.copy_ended(id);
                    }
                }
                // They may be deleted or not, so they are deleted again.
                What::Deletions(ids) => {
                    for id in ids {
                        self.delete_again(store, id);
                        self.forget_if_gone(id);
                    }
                }
                What::Remembered(numbers) => numbers.iter().for_each(|&number| self.forget_host(store, number)),
                What::Owed(_) | What::Padding | What::Proof => {}
            }
        }
        self.look_for_invalid();
    }

    /// A deletion has not reached a store, or may not have.
    fn delete_again(&mut self, store: StoreId, id: Id) {
        self.versions.change(id, |moving| moving.deleting &= !store.bit());
        let version = &self.versions[id];
        self.volumes[version.volume()].undelete(version.number);
    }

    /// A store does not remember the deletion of a version.
    fn forget_host(&mut self, store: StoreId, number: u64) {
        if let Some(id) = self.dead_version(number) {
            self.versions.change(id, |moving| moving.remembering &= !store.bit());
            self.volumes[self.versions[id].volume()].undelete(number);
        }
    }

    /// A version is in no store any more, or those that have it will be told: the base is free again.
    fn forget_if_gone(&mut self, id: Id) {
        let away = self.mask(Store::is_away);
        let (version, moving) = (self.versions[id], self.versions.moving(id));
        let hosts = moving.remembered.count_ones() as usize;
        let is_remembered = hosts >= self.settings.copies && version.stores & !away == 0 && moving.deleting == 0;
        if version.stores != 0 && !is_remembered || moving.waiting > 0 || version.live() > 0 {
            return;
        }
        let Version { number, stores, .. } = version;
        let state = &mut self.volumes[version.volume()];
        if version.is_failed() {
            state.failed.remove(&(version.start(), number));
        } else {
            state.ranges.remove(version.start(), version.end(), id);
        }
        state.undeleted.remove(number);
        state.dead.remove(number);
        for higher in state.hiding.forget(number) {
            if state.undeleted.get(higher).is_some() {
                state.ready.insert(higher);
            }
        }
        for (store, at) in self.versions.places(id).iter() {
            if stores & store.bit() != 0 {
                let state = &mut self.stores[store.0 as usize];
                state.log.release(at);
            }
        }
        for (at, state) in self.stores.iter_mut().enumerate() {
            if stores & StoreId(at as u8).bit() != 0 && !planted!(DeletionForgotten) {
                state.owed.insert(number);
            }
        }
        self.versions.remove(id);
    }
}

/// Adds bytes to, or takes them from, the stores that have a version.
fn count(stores: &mut [Store], version: &Version, bytes: u64, is_more: bool) {
    for (at, store) in stores.iter_mut().enumerate() {
        if version.stores & StoreId(at as u8).bit() != 0 {
            store.live_bytes = if is_more { store.live_bytes + bytes } else { store.live_bytes.saturating_sub(bytes) };
        }
    }
}
