//! Worlds of one client: its base, its stores with their bytes, and an owner that follows the contract. Stores fail and
//! come back, writes to them are torn, lost and late, the client dies at any moment, with and without its power, or
//! stops in order and starts without any of the stores. Stores are emptied and forgotten at any time, and versions of
//! stores that cannot be written are declared invalid.
//!
//! Checked: a read returns the newest content; after a death, each unit has content that was not older than what was
//! durable; after a clean stop, what can be reached can be read; a store that was forgotten is not read again, by no
//! process; at the end everything is home and the logs are empty.
//! The checks see: each planted bug, and a breach of the contract by the owner, makes some world fail.

mod invalid;
mod lost;
mod memory;
mod retires;
mod stops;

use std::collections::BTreeMap;

use super::record::LOG_STARTS;
use super::*;
use crate::dice::Rng;

/// A unit of the volume: large, so that the logs wrap.
const UNIT: u64 = 32 * 1024;
const UNITS: usize = 24;
const VOLUME: VolumeKey = VolumeKey(3);
const STEPS: u32 = 500;
const SEEDS: u64 = 600;
const STORES: usize = 3;

/// What the owner is doing with units.
#[derive(Clone, Copy, Debug)]
enum Busy {
    /// A write of the client.
    Write { units: (usize, usize), value: u64 },
    /// The copy of a version that goes home.
    Reclaim(Reclaim),
}

/// A write on its way to a store.
#[derive(Clone, Debug)]
struct Ticket {
    store: usize,
    offset: u64,
    bytes: Vec<u8>,
    /// The record, or the superblock.
    record: Option<u64>,
}

/// Content of a unit: the newest, and all that may be found after a death.
#[derive(Clone, Default, Debug)]
struct Unit {
    newest: u64,
    possible: Vec<u64>,
    /// Of writes that failed: stores may have them until there is newer content.
    failed: Vec<u64>,
    is_busy: bool,
    /// It could not be read since the process began.
    is_unseen: bool,
}

impl Unit {
    /// Its content is read for the first time since a death.
    fn see(&mut self, value: u64) -> bool {
        let is_possible = self.possible.contains(&value) || self.failed.contains(&value);
        (self.newest, self.possible, self.is_unseen) = (value, vec![value], false);
        is_possible
    }
}

/// What the map of the last clean stop says of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mapped {
    No,
    /// No process has opened it since.
    Exactly,
    /// One has, and it was missing before that and is not told yet.
    Opened,
}

/// What an owner does that does not follow the contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Breach {
    /// It does not flush what it brings home.
    NotFlushed,
    /// It uses a map for stores that were opened since.
    OutdatedMap,
    /// It does not make durable what is invalid.
    InvalidForgotten,
}

struct World {
    rng: Rng,
    offload: Offload,
    now: Nanos,
    incarnation: u32,
    accepted: u32,
    missed: Vec<u32>,
    copies: usize,
    /// The stores' servers do not fence earlier processes.
    is_foreign: bool,
    /// Stores and processes fail once in so many steps that may do it.
    calm: u64,
    stores: Vec<Vec<u8>>,
    is_down: Vec<bool>,
    /// Those that can be read nevertheless, once they were scanned.
    is_readable: Vec<bool>,
    /// The numbers of their logs.
    logs: Vec<u128>,
    /// Stores are emptied and forgotten.
    has_retires: bool,
    /// Those that are to be emptied, and those of them that are forgotten.
    is_leaving: Vec<bool>,
    is_forgotten: Vec<bool>,
    /// The versions below these numbers do not count in each store.
    invalid: Vec<u64>,
    /// Content of the last process has too few copies, and these are the stores with which it has started.
    is_thin: bool,
    is_started: Vec<bool>,
    /// That of the last clean stop, and for which stores it is used.
    map: Map,
    mapped: Vec<Mapped>,
    tickets: Vec<Ticket>,
    /// Those of dead processes.
    late: Vec<Ticket>,
    base: Vec<u64>,
    durable: Vec<u64>,
    /// Writes of the base on their way.
    at_base: Vec<(IoId, (usize, usize), Vec<u64>)>,
    /// Reclaimed and not flushed.
    written_home: Vec<Reclaim>,
    units: Vec<Unit>,
    busy: BTreeMap<IoId, Busy>,
    next_io: u32,
    next_value: u64,
    breach: Option<Breach>,
    /// What happened, for a world that fails.
    log: Vec<String>,
}

fn bytes(units: (usize, usize)) -> (u64, u64) {
    (units.0 as u64 * UNIT, units.1 as u64 * UNIT)
}

fn settings(copies: usize) -> Settings {
    Settings {
        copies,
        base_threshold: 4,
        store_threshold: 12,
        reclaim_depth: 4,
        limit_bytes: 1 << 20,
        ..Settings::DEFAULT
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let copies = 1 + rng.below(2) as usize;
        let mut world = World {
            is_foreign: rng.one_in(2),
            calm: 1 + rng.below(6),
            rng,
            offload: Offload::start(0, settings(copies), Past::default(), Vec::new(), &[], Map::default()),
            now: 0,
            incarnation: 0,
            accepted: 0,
            missed: vec![0; STORES],
            copies,
            stores: Vec::new(),
            is_down: vec![false; STORES],
            is_readable: vec![false; STORES],
            logs: (1..=STORES as u128).collect(),
            // Without that in a part of the worlds: stores with a failure stay for longer.
            has_retires: seed > SEEDS && !seed.is_multiple_of(3),
            is_leaving: vec![false; STORES],
            is_forgotten: vec![false; STORES],
            invalid: vec![0; STORES],
            is_thin: false,
            is_started: vec![false; STORES],
            map: Map::default(),
            mapped: vec![Mapped::No; STORES],
            tickets: Vec::new(),
            late: Vec::new(),
            base: vec![0; UNITS],
            durable: vec![0; UNITS],
            at_base: Vec::new(),
            written_home: Vec::new(),
            units: vec![Unit { possible: vec![0], ..Unit::default() }; UNITS],
            busy: BTreeMap::new(),
            next_io: 0,
            next_value: 1,
            breach: None,
            log: Vec::new(),
        };
        world.stores = vec![vec![0; (LOG_STARTS + world.capacity()) as usize]; STORES];
        world.start();
        world
    }

    /// A process begins: it scans the stores that it can reach.
    fn start(&mut self) {
        self.incarnation += 1;
        self.is_thin &= self.offload.is_thin();
        self.replace_forgotten();
        loop {
            let missing: Vec<usize> =
                (0..STORES).filter(|&at| self.is_down[at] && self.mapped[at] != Mapped::Exactly).collect();
            if missing.len() < self.copies && !(self.is_thin && missing.iter().any(|&at| self.is_started[at])) {
                break;
            }
            self.is_down[missing[self.rng.below(missing.len() as u64) as usize]] = false;
        }
        let scanned = (0..STORES).map(|store| match self.is_down[store] {
            true => Initial::Missing(self.logs[store], self.capacity()),
            false => Initial::Scanned(Box::new(self.scan(store)), self.missed[store]),
        });
        let stores = scanned.collect();
        for store in 0..STORES {
            self.is_started[store] = !self.is_down[store];
            if self.breach != Some(Breach::OutdatedMap) {
                self.mapped[store] = match self.mapped[store] {
                    Mapped::Exactly if self.is_down[store] => Mapped::Exactly,
                    Mapped::Exactly | Mapped::Opened if !self.is_down[store] && self.missed[store] > 0 => {
                        Mapped::Opened
                    }
                    _ => Mapped::No,
                };
            }
            if self.is_down[store] {
                self.missed[store] = self.incarnation;
                (self.accepted, self.is_thin) = (self.incarnation, true);
            }
        }
        let Self { incarnation, accepted, is_down, missed, mapped, copies, .. } = &*self;
        self.log.push(format!(
            "process {incarnation}: {accepted} accepted, down {is_down:?}, missed {missed:?}, mapped {mapped:?}; \
             {copies} copies"
        ));
        let past = Past { incarnation: self.incarnation, accepted: self.accepted, is_unfenced: self.is_foreign };
        let map = if self.mapped() > 0 { self.map.clone() } else { Map::default() };
        let map = Map { stores: self.mapped(), ..map };
        self.offload = Offload::start(self.now, settings(self.copies), past, stores, &[VOLUME], map);
        self.retire_again();
        self.act();
    }

    /// The stores for which the map is used.
    fn mapped(&self) -> u16 {
        (0..STORES).filter(|&store| self.mapped[store] != Mapped::No).fold(0, |mask, store| mask | 1 << store)
    }

    /// Bytes of a log: few, so that it wraps. New epochs leave more unused in foreign ones.
    fn capacity(&self) -> u64 {
        if self.is_foreign { 12 << 20 } else { 2 << 20 }
    }

    fn scan(&self, store: usize) -> Recovered {
        let log = self.logs[store];
        let mut scan = Scan::new(log, self.capacity());
        while let Some((offset, len)) = scan.wants() {
            match scan.read(&self.stores[store][offset as usize..(offset + len) as usize]) {
                Ok(()) => {}
                Err(Unusable::NoLog) => return Recovered::format(log, self.capacity()),
                Err(error) => panic!("store {store}: {error}"),
            }
        }
        let mut recovered = scan.finish().unwrap();
        recovered.drop_below(self.invalid[store]);
        recovered
    }

    fn io(&mut self) -> IoId {
        self.next_io += 1;
        IoId(self.next_io)
    }

    /// Carries out the machine's wishes.
    fn act(&mut self) {
        while let Some(action) = self.offload.poll_action() {
            match action {
                Action::Append(store, number) => self.append(store, number),
                Action::Superblock(store) => {
                    let (offset, bytes) = self.offload.superblock(store).expect("a superblock");
                    let (store, bytes) = (store.0 as usize, bytes.to_vec());
                    self.tickets.push(Ticket { store, offset, bytes, record: None });
                }
                Action::AskLoad(store) => {
                    let load = self.rng.one_in(2).then(|| self.rng.below(20) as u32);
                    self.offload.load_told(self.now, store, load);
                }
                Action::Done(io) => {
                    let Some(Busy::Write { units, value }) = self.busy.remove(&io) else { panic!("{io:?}") };
                    self.log.push(format!("{value} is in stores"));
                    self.written(units, value, true);
                }
                Action::Again(io) => {
                    let Some(Busy::Write { units, .. }) = self.busy.get(&io).copied() else { panic!("{io:?}") };
                    self.decide(io, units);
                }
            }
        }
        self.offload.check();
    }

    fn append(&mut self, store: StoreId, number: u64) {
        let Some(record) = self.offload.append(store, number) else { return };
        let mut data = Vec::new();
        for io in record.ios {
            let Busy::Write { units, value } = self.busy[io] else { panic!("no write") };
            (units.0..units.1).for_each(|_| data.extend(value.to_le_bytes().repeat(UNIT as usize / 8)));
        }
        if !record.ios.is_empty() {
            let mut sum = Sum::default();
            sum.add(&data);
            self.offload.seal(store, number, sum.value());
        }
        let record = self.offload.append(store, number).unwrap();
        let (offset, bytes) = (record.offset, [record.header.as_slice(), &data].concat());
        self.tickets.push(Ticket { store: store.0 as usize, offset, bytes, record: Some(number) });
    }

    /// Units have new content, acknowledged; if `durable`, nothing older can be found any more.
    fn written(&mut self, (first, past): (usize, usize), value: u64, durable: bool) {
        for unit in &mut self.units[first..past] {
            (unit.newest, unit.is_busy, unit.is_unseen) = (value, false, false);
            unit.failed.clear();
            if durable {
                unit.possible.clear();
            }
            unit.possible.push(value);
        }
    }

    /// The client writes.
    fn write(&mut self) {
        let first = self.rng.below(UNITS as u64) as usize;
        let past = (first + 1 + self.rng.below(4) as usize).min(UNITS);
        if self.units[first..past].iter().any(|unit| unit.is_busy) {
            return;
        }
        let (io, value) = (self.io(), self.next_value);
        self.next_value += 1;
        for unit in &mut self.units[first..past] {
            unit.is_busy = true;
            unit.possible.push(value);
        }
        self.busy.insert(io, Busy::Write { units: (first, past), value });
        self.decide(io, (first, past));
    }

    fn decide(&mut self, io: IoId, units: (usize, usize)) {
        let (start, end) = bytes(units);
        let load = self.rng.below(20) as u32;
        let choice = self.offload.choose(self.now, VOLUME, (start, end), load, || 0);
        self.log.push(format!("write {:?}: {units:?} {choice:?}", self.busy[&io]));
        match choice {
            Choice::Base => {
                let Busy::Write { value, .. } = self.busy[&io] else { panic!("no write") };
                self.at_base.push((io, units, vec![value; units.1 - units.0]));
            }
            Choice::Stores => self.offload.write(self.now, VOLUME, io, (start, end), 0),
            // The owner keeps it, and it can be found or not.
            Choice::Wait => {
                let Some(Busy::Write { value, .. }) = self.busy.remove(&io) else { panic!("no write") };
                for unit in &mut self.units[units.0..units.1] {
                    unit.is_busy = false;
                    unit.failed.push(value);
                }
            }
        }
        self.act();
    }

    /// A write of the base is complete.
    fn base_written(&mut self) {
        if self.at_base.is_empty() {
            return;
        }
        let at = self.rng.below(self.at_base.len() as u64) as usize;
        let (io, units, values) = self.at_base.swap_remove(at);
        self.base[units.0..units.1].copy_from_slice(&values);
        self.log.push(format!("base has {values:?} in {units:?}"));
        match self.busy.remove(&io).expect("it is busy") {
            Busy::Write { value, .. } => self.written(units, value, false),
            Busy::Reclaim(reclaim) => {
                self.units[units.0..units.1].iter_mut().for_each(|unit| unit.is_busy = false);
                if self.breach == Some(Breach::NotFlushed) {
                    self.offload.brought_home(self.now, reclaim);
                    self.act();
                } else {
                    self.written_home.push(reclaim);
                }
            }
        }
    }

    fn flush(&mut self) {
        self.log.push(format!("flush; home: {:x?}", self.written_home));
        self.durable.clone_from(&self.base);
        for (unit, value) in self.units.iter_mut().zip(&self.durable) {
            // What is in stores is durable anyway.
            if unit.newest == *value && !unit.is_busy && !unit.is_unseen {
                unit.possible = vec![*value];
            }
        }
        for reclaim in std::mem::take(&mut self.written_home) {
            self.offload.brought_home(self.now, reclaim);
        }
        self.act();
    }

    fn value(&self, store: StoreId, offset: u64) -> u64 {
        let unit = &self.stores[store.0 as usize][offset as usize..(offset + UNIT) as usize];
        let value: [u8; 8] = unit[..8].try_into().unwrap();
        assert!(unit.chunks(8).all(|chunk| chunk == value), "a torn unit is read");
        u64::from_le_bytes(value)
    }

    /// The content of units; `None` where a store that is down has it.
    fn read(&self, units: (usize, usize)) -> Vec<Option<u64>> {
        let mut values = Vec::new();
        for (start, end, source) in self.offload.parts(VOLUME, bytes(units).0, bytes(units).1) {
            for at in (start..end).step_by(UNIT as usize) {
                let is_forgotten = |store: StoreId| self.is_forgotten[store.0 as usize];
                values.push(match source {
                    Source::Store(store, _) if is_forgotten(store) => panic!("{store:?}\n{}", self.log.join("\n")),
                    Source::Base => Some(self.base[(at / UNIT) as usize]),
                    Source::Store(StoreId(at), _) if self.is_down[at as usize] && !self.is_readable[at as usize] => {
                        None
                    }
                    Source::Store(store, from) => Some(self.value(store, self.offload.place(store, from + at - start))),
                    Source::Away => None,
                });
            }
        }
        values
    }

    fn check(&mut self) {
        if !self.offload.is_ready(VOLUME) {
            return;
        }
        for (at, value) in self.read((0, UNITS)).into_iter().enumerate() {
            let unit = &mut self.units[at];
            let Some(value) = value.filter(|_| !unit.is_busy) else { continue };
            let is_right = if unit.is_unseen { unit.see(value) } else { value == unit.newest };
            assert!(is_right, "unit {at} has {value}, {unit:?}\n{}", self.log.join("\n"));
        }
    }

    fn reclaim(&mut self) {
        let Some(reclaim) = self.offload.next_to_reclaim(VOLUME) else { return };
        let units = ((reclaim.start / UNIT) as usize, (reclaim.end / UNIT) as usize);
        let values: Option<Vec<u64>> = self.read(units).into_iter().collect();
        let is_busy = self.units[units.0..units.1].iter().any(|unit| unit.is_busy);
        let Some(values) = values.filter(|_| !is_busy) else {
            return self.offload.reclaim_ended(reclaim);
        };
        let io = self.io();
        self.units[units.0..units.1].iter_mut().for_each(|unit| unit.is_busy = true);
        self.busy.insert(io, Busy::Reclaim(reclaim));
        self.at_base.push((io, units, values));
    }

    /// A write to a store ends: it is there, or a part of it, or nothing.
    fn stored(&mut self) {
        if self.tickets.is_empty() {
            return;
        }
        let at = self.rng.below(self.tickets.len() as u64) as usize;
        let ticket = self.tickets.swap_remove(at);
        let is_good = !self.is_down[ticket.store] && !self.rng.one_in(60);
        let done = if is_good { ticket.bytes.len() as u64 } else { self.rng.below(4) * ticket.bytes.len() as u64 / 3 };
        self.land(&ticket, done);
        let (store, now) = (StoreId(ticket.store as u8), self.now);
        match ticket.record {
            Some(number) => self.offload.appended(now, store, number, is_good),
            None => self.offload.superblock_written(now, store, is_good),
        }
        self.act();
    }

    /// The first bytes of a write are on the store, as whole sectors.
    fn land(&mut self, ticket: &Ticket, bytes: u64) {
        let bytes = (bytes.min(ticket.bytes.len() as u64) / 512 * 512) as usize;
        let start = ticket.offset as usize;
        self.stores[ticket.store][start..start + bytes].copy_from_slice(&ticket.bytes[..bytes]);
    }

    fn late_lands(&mut self) {
        if !self.late.is_empty() {
            let at = self.rng.below(self.late.len() as u64) as usize;
            let ticket = self.late.swap_remove(at);
            self.land(&ticket, u64::MAX);
        }
    }

    /// A write to a store whose process has ended lands, is torn, lands late, or never.
    fn abandon(&mut self, ticket: Ticket) {
        match self.rng.below(4) {
            0 => self.land(&ticket, u64::MAX),
            1 => {
                let bytes = self.rng.below(ticket.bytes.len() as u64);
                self.land(&ticket, bytes);
            }
            2 if self.is_foreign => self.late.push(ticket),
            _ => {}
        }
    }

    /// The process dies, perhaps with its power, and the next one begins.
    fn die(&mut self) {
        self.late.clear();
        for ticket in std::mem::take(&mut self.tickets) {
            self.abandon(ticket);
        }
        for (_, units, values) in std::mem::take(&mut self.at_base) {
            if self.rng.one_in(2) {
                self.base[units.0..units.1].copy_from_slice(&values);
            }
        }
        if self.rng.one_in(2) {
            for at in 0..UNITS {
                // Any part of what is not flushed is lost.
                if self.rng.one_in(2) {
                    self.base[at] = self.durable[at];
                }
            }
        }
        self.durable.clone_from(&self.base);
        self.written_home.clear();
        self.busy.clear();
        self.log.push("died".into());
        self.start_again();
        self.check();
    }

    fn start_again(&mut self) {
        for store in 0..STORES {
            if self.offload.is_told(StoreId(store as u8)) {
                self.missed[store] = 0;
                self.mapped[store] = if self.mapped[store] == Mapped::Opened { Mapped::No } else { self.mapped[store] };
            }
        }
        self.start();
        for unit in &mut self.units {
            (unit.is_busy, unit.is_unseen) = (false, true);
            // What failed in an earlier process can be found now, or never.
            let failed = std::mem::take(&mut unit.failed);
            unit.possible.extend(failed);
        }
    }

    /// A store that was missing at the start is scanned when it is there.
    fn meet(&mut self, store: usize) {
        let id = StoreId(store as u8);
        if !self.is_down[store] && self.offload.stats(id).is_missing {
            if self.mapped[store] == Mapped::Exactly {
                (self.mapped[store], self.is_started[store]) = (Mapped::Opened, true);
            }
            let recovered = self.scan(store);
            let has_arrived = self.offload.arrived(self.now, id, recovered);
            assert!(has_arrived, "store {store} is not what it was\n{}", self.log.join("\n"));
            self.act();
        }
    }

    fn step(&mut self) {
        match self.rng.below(24) {
            0..6 if !self.offload.is_ready(VOLUME) => self.stored(),
            0..6 => self.write(),
            6..13 => self.stored(),
            13..16 => self.base_written(),
            16..18 => self.reclaim(),
            18 => self.flush(),
            19 if self.rng.one_in(self.calm) => self.toggle(),
            20 if self.rng.one_in(self.calm) && self.rng.one_in(3) => self.stop(),
            20 if self.rng.one_in(self.calm) => self.die(),
            21 => self.late_lands(),
            22 if self.has_retires && self.rng.one_in(2) => self.retire(),
            22 if self.has_retires => self.forget_retired(),
            23 if self.rng.one_in(2) => self.invalidate(),
            _ => {
                // Early, late, or in time.
                let at = self.offload.poll_timeout().filter(|_| self.rng.one_in(2));
                self.now = at.unwrap_or(self.now + (1 << self.rng.below(32))).max(self.now);
                self.offload.timer(self.now);
                self.act();
            }
        }
        self.check();
    }

    /// Everything comes back and goes home.
    fn finish(&mut self) {
        self.is_down.fill(false);
        (0..STORES).for_each(|store| self.meet(store));
        for round in 0.. {
            assert!(round < 2_000, "not finished: {}", self.offload.describe());
            self.now += 10 * SECOND;
            self.offload.timer(self.now);
            self.act();
            while !self.tickets.is_empty() {
                self.stored();
            }
            while !self.at_base.is_empty() {
                self.base_written();
            }
            self.flush();
            (0..8).for_each(|_| self.reclaim());
            self.check();
            let is_empty = |store: &Store| {
                let is_released = !store.log.has_moved() || store.state == State::Retired;
                store.log.used() == 0 || is_released && store.log.tail().is_none()
            };
            let is_idle = self.tickets.is_empty() && self.at_base.is_empty() && self.busy.is_empty();
            let is_empty = !self.offload.has_versions(VOLUME) && self.offload.stores.iter().all(is_empty);
            if is_idle && is_empty && self.all_retired() {
                break;
            }
        }
        self.check();
        assert_eq!(self.offload.away_bytes(VOLUME), 0);
        assert!(self.base.iter().zip(&self.units).all(|(value, unit)| *value == unit.newest));
    }
}

fn run(seed: u64, breach: Option<Breach>) {
    let mut world = World::new(seed);
    world.breach = breach;
    (0..STEPS).for_each(|_| world.step());
    world.finish();
}

fn run_worlds(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let world = std::panic::catch_unwind(|| run(seed, None));
        assert!(world.is_ok(), "world {seed} failed");
    }
}

// Two halves, which run at the same time.
#[test]
fn nothing_is_lost_in_any_world() {
    run_worlds(1..1 + SEEDS);
}

#[test]
fn nothing_is_lost_in_any_world_of_the_other_half() {
    run_worlds(1 + SEEDS..1 + 2 * SEEDS);
}

#[test]
#[ignore = "takes minutes"]
fn nothing_is_lost_in_thousands_of_worlds() {
    run_worlds(1_000..11_000);
}

/// Whether one of the worlds fails.
fn is_found(breach: Option<Breach>) -> bool {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let is_found = (1..=2 * SEEDS).any(|seed| std::panic::catch_unwind(|| run(seed, breach)).is_err());
    std::panic::set_hook(hook);
    is_found
}

#[test]
fn an_owner_that_does_not_flush_what_it_reclaims_is_found() {
    assert!(is_found(Some(Breach::NotFlushed)));
}

#[test]
fn an_owner_that_uses_an_outdated_map_is_found() {
    assert!(is_found(Some(Breach::OutdatedMap)));
}

#[test]
fn an_owner_that_does_not_remember_what_is_invalid_is_found() {
    assert!(is_found(Some(Breach::InvalidForgotten)));
}

#[cfg(feature = "planted-bugs")]
#[test]
fn planted_bugs_are_found() {
    use crate::planted::{Bug, plant};
    let missed: Vec<_> = Bug::OFFLOAD
        .iter()
        .filter(|&&bug| {
            plant(Some(bug));
            let is_found = is_found(None);
            plant(None);
            !is_found
        })
        .collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
