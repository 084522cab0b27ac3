//! The way of transfers whose volume may be off-loaded: to the disk, to the logs of stores, or both.
//!
//! ```text
//!   write ─► choose ─┬─► disk                                 read ─► parts ─┬─► disk
//!                    ├─► machine ─► record ─► Sum ─► upstream                └─► upstream of a store
//!                    └─► held: too few stores can take it, until they can, or for a minute
//! ```
//!
//! The machine ([`crate::offload`]) decides and keeps the map; here its actions become requests. A record is one
//! durable write to the volume of its store: the header, which the machine keeps, then the segments of the transfers
//! that share it. Its checksum is computed by the driver, which has the bytes ([`Done::Sum`]).
//!
//! A volume is not served before the machine is ready: its transfers are held until then. Requests that zero a range
//! come here only while no store has a version of it ([`Route::has_versions`]).

use super::Route;
use crate::disk::durability::Failures;
use crate::disk::{Op, Purpose, Split};
use crate::errno::Errno;
use crate::ids::{IoId, TenantId, VolumeId, VolumeKey};
use crate::offload::{
    Action, Choice, Invalid, Known, Offload, OffloadStats, Reclaim, Recovered, SUPERBLOCK, Settings, Setup,
};
use crate::offload::{Source, StoreId, WRITE_BYTES_MAX};
use crate::units::{Nanos, SECOND};

/// How long a transfer waits for stores before it fails: as long as one waits for another server by default.
const HELD_NS_MAX: Nanos = 60 * SECOND;

/// What happens to a transfer, or is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Done {
    /// It is complete.
    Io(IoId, Result<(), Errno>),
    /// The driver is to compute the checksum of the request's segments, for [`Route::summed`].
    Sum(IoId),
}

impl Route {
    /// From now on writes may be off-loaded.
    pub(crate) fn start_offload(&mut self, now: Nanos, setup: Setup) {
        let Setup { settings, past, stores, volumes, map } = setup;
        let (ids, initial) = stores.into_iter().unzip();
        self.stores = ids;
        let mut offload = Offload::start(now, settings, past, initial, &volumes, map);
        for &(key, tenant) in self.keys.values() {
            offload.add_volume(key);
            offload.set_tenant(key, tenant);
        }
        self.offload = Some(offload);
    }

    /// Changes when writes are off-loaded. Whether they are at all.
    pub(crate) fn set_offload(&mut self, settings: Settings) -> bool {
        self.offload.as_mut().map(|offload| offload.set(settings)).is_some()
    }

    /// Off-loads no more. Whether it did before.
    pub(crate) fn end_offload(&mut self) -> bool {
        self.offload.as_mut().map(Offload::end).is_some()
    }

    /// Forgets the stores, if nothing is in them after [`Route::end_offload`]. Whether it did.
    pub(crate) fn offload_is_over(&mut self) -> bool {
        let is_over = self.offload.as_ref().is_some_and(Offload::is_over) && self.held.is_empty();
        if is_over {
            self.offload = None;
            self.stores.clear();
        }
        is_over
    }

    /// A store that was missing can be reached.
    pub(crate) fn store_arrived(&mut self, now: Nanos, store: StoreId, recovered: Recovered) -> bool {
        self.offload.as_mut().is_some_and(|offload| offload.arrived(now, store, recovered))
    }

    /// See [`Offload::map`]. `None` also while transfers wait for stores.
    pub(crate) fn map_stores(&mut self) -> Option<Vec<Known>> {
        self.offload.as_mut().filter(|_| self.held.is_empty())?.map()
    }

    /// Empties a store; it is in use until it is empty. Whether there is one of that number.
    pub(crate) fn retire_store(&mut self, now: Nanos, store: StoreId) -> bool {
        let is_known = usize::from(store.0) < self.stores.len();
        self.offload.as_mut().filter(|_| is_known).map(|offload| offload.retire(now, store)).is_some()
    }

    /// See [`Offload::lose`]. `None` if there is no store of that number.
    pub(crate) fn lose_store(&mut self, now: Nanos, store: StoreId) -> Option<bool> {
        let is_known = usize::from(store.0) < self.stores.len();
        self.offload.as_mut().filter(|_| is_known).map(|offload| offload.lose(now, store))
    }

    /// See [`Offload::invalidate`].
    pub(crate) fn invalidate(&mut self, now: Nanos, invalid: Invalid) -> bool {
        self.offload.as_mut().map(|offload| offload.invalidate(now, invalid)).is_some()
    }

    /// The stores in use, and the volumes that lead to them.
    fn stores(&self) -> impl Iterator<Item = (StoreId, VolumeId)> + '_ {
        let stores = (0u8..).zip(&self.stores).map(|(at, &volume)| (StoreId(at), volume));
        stores.filter(|(store, _)| self.offload.as_ref().is_none_or(|offload| !offload.is_retired(*store)))
    }

    /// Whether the volume leads to a store in use.
    pub(crate) fn is_store(&self, volume: VolumeId) -> bool {
        self.stores().any(|(_, store)| store == volume)
    }

    /// A volume that leads to a store.
    pub(crate) fn a_store(&self) -> Option<VolumeId> {
        self.stores().next().map(|(_, volume)| volume)
    }

    pub(crate) fn is_offloading(&self) -> bool {
        self.offload.is_some()
    }

    pub(crate) fn offload_stats(&mut self, now: Nanos) -> Option<OffloadStats> {
        Some(self.offload.as_mut()?.stats_of_all(now))
    }

    /// A volume may be off-loaded from now on.
    pub(crate) fn set_key(&mut self, volume: VolumeId, key: VolumeKey, tenant: TenantId) {
        self.keys.insert(volume, (key, tenant));
        if let Some(offload) = &mut self.offload {
            offload.add_volume(key);
            offload.set_tenant(key, tenant);
        }
    }

    /// A volume was closed; if it was deleted, nobody wants what stores have of it.
    pub(crate) fn drop_key(&mut self, now: Nanos, volume: VolumeId, is_deleted: bool) {
        if let (Some((key, _)), Some(offload)) = (self.keys.remove(volume), &mut self.offload)
            && is_deleted
        {
            offload.drop_volume(now, key);
        }
    }

    /// The client of the stores and the key of a volume, if its writes may be off-loaded.
    fn of(&self, volume: VolumeId) -> Option<(&Offload, VolumeKey)> {
        Some((self.offload.as_ref()?, self.keys.get(volume)?.0))
    }

    /// Whether stores may have a version of any byte of the range.
    pub(crate) fn has_versions(&self, volume: VolumeId, start: u64, end: u64) -> bool {
        self.of(volume).is_some_and(|(offload, key)| offload.overlaps(key, start, end))
    }

    /// Bytes of a volume whose newest content the base does not have.
    pub(crate) fn away_bytes(&self, volume: VolumeId) -> u64 {
        self.of(volume).map_or(0, |(offload, key)| offload.away_bytes(key))
    }

    /// The ranges of a volume whose newest content the base does not have.
    pub(crate) fn away(&self, volume: VolumeId, size: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let parts = self.of(volume).into_iter().flat_map(move |(offload, key)| offload.parts(key, 0, size));
        parts.filter(|(.., source)| *source != Source::Base).map(|(start, end, _)| (start, end))
    }

    /// Requests of a tenant that the base does not keep up with, without content on its way home.
    fn base_load(&self, tenant: TenantId) -> u32 {
        let homeward = self.homeward.get(tenant).copied().unwrap_or(0);
        self.disk.scheduler().load(tenant).saturating_sub(homeward)
    }

    /// Tenants of the disk.
    pub(crate) fn tenants(&self) -> u32 {
        self.disk.scheduler().tenants().count() as u32
    }

    /// Requests of other tenants that the disk does not keep up with, without content on its way home.
    pub(crate) fn load_of_others(&self, tenant: TenantId) -> u32 {
        self.disk.scheduler().tenants().filter(|&of| of != tenant).map(|of| self.base_load(of)).sum()
    }

    /// The server of a store has told the load of its disk, or does not tell it.
    pub(crate) fn load_told(&mut self, now: Nanos, volume: VolumeId, load: Option<u32>) {
        let store = self.stores().find(|&(_, store)| store == volume);
        if let (Some((store, _)), Some(offload)) = (store, &mut self.offload) {
            offload.load_told(now, store, load);
        }
    }

    /// When the client of the stores wants to be called.
    pub(super) fn offload_timeout(&self) -> Option<Nanos> {
        // One that a store has failed waits on from then on.
        let held = self.held.iter().map(|&(_, since)| since + HELD_NS_MAX).min();
        [self.offload.as_ref().and_then(Offload::poll_timeout), held].into_iter().flatten().min()
    }

    /// Takes a transfer of a volume that may be off-loaded.
    pub(super) fn submit_offloading(&mut self, now: Nanos, io: IoId, urgent: bool, failures: Failures) {
        let (volume, op) = (self.disk.slot(io).io.volume, self.disk.slot(io).io.op);
        let (offload, key) = self.of(volume).expect("it may be off-loaded");
        // Copies go on: they empty a store for which the volume may be waiting.
        if !offload.is_ready(key) && !matches!(self.disk.slot(io).purpose, Purpose::Reclaim(_)) {
            return self.hold(now, io, failures);
        }
        match op {
            Op::Read => self.submit_read(now, io, urgent, failures),
            Op::Write { .. } => self.submit_write(now, io, urgent, failures),
            // What is off-loaded is durable.
            Op::Flush => self.disk.submit(now, io, urgent),
            Op::Zero | Op::Punch => {
                let (start, end) = self.range(io);
                debug_assert!(!offload.overlaps(key, start, end), "a range with versions is zeroed");
                self.disk.submit(now, io, urgent);
            }
        }
    }

    /// The transfer waits for stores.
    fn hold(&mut self, now: Nanos, io: IoId, failures: Failures) {
        self.disk.submit_elsewhere(now, io, failures);
        let since = *self.disk.slot_mut(io).held_since.get_or_insert(now);
        self.held.push_back((io, since));
    }

    fn range(&self, io: IoId) -> (u64, u64) {
        let request = &self.disk.slot(io).io;
        (request.offset, request.offset + request.len)
    }

    fn submit_write(&mut self, now: Nanos, io: IoId, urgent: bool, failures: Failures) {
        let ((start, end), volume, tenant) = (self.range(io), self.disk.slot(io).io.volume, self.disk.slot(io).tenant);
        let ((key, _), load) = (self.keys[volume], self.base_load(tenant));
        let Route { offload, disk, .. } = self;
        let offload = offload.as_mut().expect("it may be off-loaded");
        let part = (start, end.min(start + WRITE_BYTES_MAX));
        let choice = offload.choose(now, key, part, load, || disk.scheduler().share_ppb(tenant));
        if end - start > WRITE_BYTES_MAX {
            if choice == Choice::Base && !offload.overlaps(key, start, end) {
                return self.disk.submit(now, io, urgent);
            }
            let mut taken = (0, 0);
            self.disk.slot_mut(io).split = Some(Split::default());
            // All parts are there before the first one can end.
            let parts: Vec<IoId> = (start..end)
                .step_by(WRITE_BYTES_MAX as usize)
                .map(|at| {
                    let part = self.part(io, volume, at);
                    self.take_segments(io, &mut taken, part, (end - at).min(WRITE_BYTES_MAX));
                    part
                })
                .collect();
            return parts.into_iter().for_each(|part| self.submit_write(now, part, urgent, failures));
        }
        match choice {
            Choice::Base => self.disk.submit(now, io, urgent),
            Choice::Wait => self.hold(now, io, failures),
            Choice::Stores => {
                self.disk.submit_elsewhere(now, io, failures);
                let Route { offload, disk, .. } = self;
                let share_ppb = disk.scheduler().share_ppb(tenant);
                offload.as_mut().expect("just seen").write(now, key, io, (start, end), share_ppb);
            }
        }
    }

    pub(super) fn submit_read(&mut self, now: Nanos, io: IoId, urgent: bool, failures: Failures) {
        let ((start, end), volume) = (self.range(io), self.disk.slot(io).io.volume);
        let (offload, key) = self.of(volume).expect("it may be off-loaded");
        if !offload.overlaps(key, start, end) {
            return self.disk.submit(now, io, urgent);
        }
        let mut parts: Vec<(u64, u64, Source)> = Vec::new();
        for (from, to, source) in offload.parts(key, start, end) {
            match parts.last_mut() {
                Some((_, past, Source::Base)) if source == Source::Base => *past = to,
                _ => parts.push((from, to, source)),
            }
        }
        match parts[..] {
            [(.., Source::Base)] => return self.disk.submit(now, io, urgent),
            _ if parts.iter().any(|(.., source)| *source == Source::Away) => {
                self.disk.submit_elsewhere(now, io, failures);
                return self.lost.push_back(io);
            }
            _ => {}
        }
        let mut taken = (0, 0);
        let tries = self.disk.slot(io).split.map_or(0, |split| split.tries) + 1;
        self.disk.slot_mut(io).split = Some(Split { tries, ..Split::default() });
        for &(from, to, source) in &parts {
            let (target, offset) = match source {
                Source::Store(store, at) => {
                    let offload = self.offload.as_mut().expect("just seen");
                    offload.read_begins(now, store, at);
                    (self.stores[store.0 as usize], offload.place(store, at))
                }
                Source::Base | Source::Away => (volume, from),
            };
            let part = self.part(io, target, offset);
            self.take_segments(io, &mut taken, part, to - from);
            match source {
                Source::Store(store, at) => {
                    self.disk.slot_mut(part).reads = Some((store.0, at));
                    self.disk.submit_elsewhere(now, part, failures);
                    self.submit_upstream(now, part);
                }
                Source::Base | Source::Away => self.disk.submit(now, part, urgent),
            }
        }
    }

    pub(super) fn read_ended(&mut self, now: Nanos, store: StoreId, at: u64, is_good: bool) {
        if let Some(offload) = &mut self.offload {
            offload.read_ended(now, store, at, is_good);
        }
    }

    /// Whether another store may have what could not be read.
    pub(super) fn may_read_again(&self, tries: u8) -> bool {
        self.offload.as_ref().is_some_and(|offload| usize::from(tries) < offload.copies())
    }

    /// A record, or a superblock, was written or not.
    pub(super) fn log_written(&mut self, now: Nanos, store: StoreId, record: Option<u64>, is_good: bool) {
        let Some(offload) = &mut self.offload else { return };
        match record {
            Some(number) => offload.appended(now, store, number, is_good),
            None => offload.superblock_written(now, store, is_good),
        }
    }

    /// Carries out what the client of the stores wants; what it cannot do here is returned. `None` if there is nothing
    /// more.
    pub(crate) fn poll_offload(&mut self, now: Nanos, failures: impl Fn(VolumeId) -> Failures) -> Option<Done> {
        loop {
            if let Some(io) = self.lost.pop_front() {
                return Some(Done::Io(io, Err(Errno::Io)));
            }
            let offload = self.offload.as_mut()?;
            if offload.poll_timeout().is_some_and(|at| at <= now) {
                offload.timer(now);
            }
            match offload.poll_action() {
                Some(Action::Append(store, number)) => {
                    if let Some(io) = self.append(now, store, number) {
                        return Some(Done::Sum(io));
                    }
                }
                Some(Action::Superblock(store)) => self.write_superblock(now, store),
                Some(Action::AskLoad(store)) => {
                    let upstream = self.upstream_mut(self.stores[store.0 as usize]).expect("each store has one");
                    upstream.ask_load();
                }
                Some(Action::Done(io)) => return Some(Done::Io(io, Ok(()))),
                Some(Action::Again(io)) => {
                    let failures = failures(self.disk.slot(io).io.volume);
                    self.submit_write(now, io, true, failures);
                }
                None => return self.poll_held(now, failures),
            }
        }
    }

    /// Transfers that have waited for stores, and can go on or have waited for too long.
    fn poll_held(&mut self, now: Nanos, failures: impl Fn(VolumeId) -> Failures) -> Option<Done> {
        for _ in 0..self.held.len() {
            let (io, since) = self.held.pop_front()?;
            if since + HELD_NS_MAX <= now {
                return Some(Done::Io(io, Err(Errno::Io)));
            }
            let failures = failures(self.disk.slot(io).io.volume);
            self.submit_offloading(now, io, true, failures);
        }
        None
    }

    /// The request that writes a record. It is returned if its checksum is missing; otherwise it is on its way.
    fn append(&mut self, now: Nanos, store: StoreId, number: u64) -> Option<IoId> {
        let Route { disk, offload, stores, .. } = self;
        let record = offload.as_ref()?.append(store, number)?;
        let target = stores[store.0 as usize];
        let purpose = Purpose::Log(store.0, Some(number));
        let io = disk.prepare(Op::Write { durable: true }, target, TenantId(0), purpose);
        disk.slot_mut(io).io.offset = record.offset;
        for &transfer in record.ios {
            for at in 0..disk.slot(transfer).io.segments.len() {
                let segment = disk.slot(transfer).io.segments[at];
                disk.add_segment(io, segment);
            }
        }
        let has_data = !record.ios.is_empty();
        if !has_data {
            self.submit_record(now, io);
        }
        has_data.then_some(io)
    }

    /// The driver has computed the checksum of a record.
    pub(crate) fn summed(&mut self, now: Nanos, io: IoId, sum: u32) {
        let Purpose::Log(store, Some(number)) = self.disk.slot(io).purpose else { return };
        if let Some(offload) = &mut self.offload {
            offload.seal(StoreId(store), number, sum);
            self.submit_record(now, io);
        }
    }

    fn submit_record(&mut self, now: Nanos, io: IoId) {
        let Route { disk, offload, .. } = self;
        let Purpose::Log(store, Some(number)) = disk.slot(io).purpose else { return };
        let record = offload.as_ref().and_then(|offload| offload.append(StoreId(store), number));
        let Some(record) = record else { return disk.forget(io) };
        let request = &mut disk.slot_mut(io).io;
        request.head.extend_from_slice(record.header);
        request.len += record.header.len() as u64;
        self.submit_log(now, io);
    }

    fn write_superblock(&mut self, now: Nanos, store: StoreId) {
        let Route { disk, offload, stores, .. } = self;
        let Some((offset, bytes)) = offload.as_ref().and_then(|offload| offload.superblock(store)) else { return };
        let purpose = Purpose::Log(store.0, None);
        let io = disk.prepare(Op::Write { durable: true }, stores[store.0 as usize], TenantId(0), purpose);
        let request = &mut disk.slot_mut(io).io;
        request.head.extend_from_slice(bytes);
        (request.offset, request.len) = (offset, SUPERBLOCK as u64);
        self.submit_log(now, io);
    }

    fn submit_log(&mut self, now: Nanos, io: IoId) {
        self.disk.submit_elsewhere(now, io, 0);
        self.submit_upstream(now, io);
    }

    /// Content of a volume to be brought home next, beside so many other copies.
    pub(crate) fn next_to_reclaim(&mut self, volume: VolumeId, others: u32) -> Option<Reclaim> {
        let (offload, key) = self.of(volume)?;
        if offload.away_bytes(key) == 0 || others >= offload.reclaim_depth() {
            return None;
        }
        self.offload.as_mut()?.next_to_reclaim(key)
    }

    /// This content is going to be read from its store, and what follows it there.
    pub(crate) fn read_next(&mut self, reclaim: Reclaim) {
        let Some(offload) = &mut self.offload else { return };
        if let Some((store, next)) = offload.read_next(reclaim) {
            let upstream = &mut self.upstreams[self.stores[store.0 as usize]].upstream;
            if upstream.hint(offload.place(store, next.start), next.end - next.start) {
                offload.is_told_next(store, next);
            }
        }
    }

    /// Copies of a volume that may be on their way to the base at a time. It has so many other requests, at the base or
    /// at stores.
    pub(crate) fn copies_at_a_time(&self, volume: VolumeId, tenant: TenantId, others: u32) -> u32 {
        let Some((offload, key)) = self.of(volume) else { return 0 };
        offload.copies_at_a_time(key, self.base_load(tenant).max(others), !self.held.is_empty())
    }

    /// Writes content to the base durably.
    pub(crate) fn submit_home(&mut self, now: Nanos, io: IoId) {
        let tenant = self.disk.slot(io).tenant;
        let homeward = self.homeward.get(tenant).copied().unwrap_or(0);
        self.homeward.insert(tenant, homeward + 1);
        self.disk.submit(now, io, false);
    }

    /// That has ended.
    pub(crate) fn came_home(&mut self, now: Nanos, tenant: TenantId, reclaim: Reclaim, is_good: bool) {
        self.homeward[tenant] -= 1;
        let Some(offload) = &mut self.offload else { return };
        if is_good { offload.brought_home(now, reclaim) } else { offload.reclaim_ended(reclaim) }
    }

    /// Content could not be read, or there is no memory for it at present.
    pub(crate) fn stays_away(&mut self, reclaim: Reclaim) {
        if let Some(offload) = &mut self.offload {
            offload.reclaim_ended(reclaim);
        }
    }
}
