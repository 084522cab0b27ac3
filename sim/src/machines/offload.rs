//! The control of a machine whose volumes may be off-loaded to stores on other machines.
//!
//! ```text
//!   a process starts ─► incarnation + 1 ─► a reader scans each store, and flushes it
//!        ─► all are read, or enough of them and patience is over ─► StartOffload ─► the volumes are opened
//!        ─► a store that was missing is read ─► StoreArrived
//!   no store can be written, and all is home ─► their versions are invalid, durably ─► Invalidate
//!   from time to time ─► RetireStore ─► it is empty ─► the next process has an empty store with another log instead
//! ```
//!
//! A reader is a client of the process's own volume that leads to the store, so all earlier processes are fenced if the
//! store's server knows sessions. It flushes at the end: what an earlier process wrote and nobody acknowledged may
//! be in the store's disk cache only, and counts from now on.

use engine::control::Command;
use engine::ids::{VolumeId, VolumeKey};
use engine::nbd::Part;
use engine::nbd::wire::command;
use engine::offload::{Initial, Invalid, Map, Past, Recovered, Scan, Settings, Setup, StoreId, Unusable};
use engine::units::{MILLISECOND, Nanos, SECOND};

use super::clients::SESSION;
use super::machine::Running;
use super::network::{Chunk, Host, Service, Wire};
use super::{Call, Wake};
use crate::Verdict;
use crate::reply::Replies;
use crate::request::Request;
use crate::trace::Line;

/// Stores of a machine: one on each of the others.
pub(crate) const STORES: usize = 2;
/// Readers are clients from this number on.
pub(crate) const READERS: usize = 1000;
/// The key of a machine's own volume.
pub(crate) const KEY: VolumeKey = VolumeKey(1);
/// Which store is removed next changes so often.
const REMOVAL_NS: Nanos = SECOND;
/// How often control looks.
const PERIOD_NS: Nanos = 100 * MILLISECOND;

/// What control knows for ever.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    pub(crate) settings: Settings,
    /// Servers of stores do not fence earlier processes.
    pub(crate) is_foreign: bool,
    /// How long it waits for stores before it starts without one.
    pub(crate) patience_ns: Nanos,
    /// It removes stores while they are in use.
    pub(crate) removes_stores: bool,
    /// Bytes of each log.
    pub(crate) log_bytes: u64,
    pub(crate) stores: Vec<Known>,
    pub(crate) incarnation: u32,
    pub(crate) accepted: u32,
}

/// What control knows of a store for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// The volume that leads to it.
    pub(crate) volume: VolumeId,
    /// The last incarnation that started without it, until it is told.
    pub(crate) missed: u32,
    /// A process started without it, and some content has too few copies since.
    pub(crate) was_missing: bool,
    /// It has a log.
    pub(crate) has_log: bool,
    /// Versions with a lower number do not count there.
    invalid_below: u64,
    /// It is being removed, or was.
    leaving: bool,
    left: bool,
    /// How often it was.
    removals: u32,
}

impl Known {
    pub(crate) fn new(volume: VolumeId) -> Known {
        let (leaving, left) = (false, false);
        Known { volume, missed: 0, was_missing: false, has_log: false, invalid_below: 0, leaving, left, removals: 0 }
    }

    fn log(&self) -> u128 {
        1000 + u128::from(self.volume.0) + 1_000_000 * u128::from(self.removals)
    }

    /// Another store has the place of one that was removed.
    fn replace(&mut self) {
        if self.left {
            *self = Known { removals: self.removals + 1, ..Known::new(self.volume) };
        }
    }
}

/// What control knows as long as its process lives.
#[derive(Default)]
pub(crate) struct Offloading {
    since: Nanos,
    readers: Vec<Reader>,
    pub(crate) is_started: bool,
    /// Nothing is off-loaded any more, and everything is at home.
    pub(crate) is_over: bool,
    /// The command that ends it.
    ending: Option<u64>,
}

/// What reads a store.
struct Reader {
    wire: Option<Wire>,
    replies: Replies,
    asked: Option<Request>,
    data: Vec<u8>,
    scan: Option<Scan>,
    /// When it is tried again after an error.
    again_at: Nanos,
    found: Option<Recovered>,
    /// The engine has it.
    is_used: bool,
}

impl Reader {
    fn new(log: u128, bytes: u64) -> Reader {
        Reader {
            wire: None,
            replies: Replies::new(SESSION),
            asked: None,
            data: Vec::new(),
            scan: Some(Scan::new(log, bytes)),
            again_at: 0,
            found: None,
            is_used: false,
        }
    }
}

impl Running<'_> {
    /// A process begins. It has an incarnation of its own, durably.
    pub(crate) fn begin_offload(&mut self) -> Verdict {
        let Some(control) = &mut self.machine.control else { return Ok(()) };
        control.incarnation += 1;
        control.stores.iter_mut().for_each(Known::replace);
        let readers = control.stores.iter().map(|store| Reader::new(store.log(), control.log_bytes)).collect();
        self.process().offloading = Offloading { since: self.out.now, readers, ..Offloading::default() };
        (0..STORES).for_each(|store| self.read_store(store));
        self.control_soon();
        Ok(())
    }

    fn control_soon(&mut self) {
        let wake = Wake::Process(self.machine.at, self.machine.life, Call::Control);
        self.out.queue.push(self.out.now + PERIOD_NS, wake);
    }

    /// A reader connects.
    fn read_store(&mut self, store: usize) {
        let (at, volume) = (self.machine.at, self.known(store).volume);
        let hosts = [Host::Client(READERS + at * STORES + store), Host::Machine { at, life: 0 }];
        let service = Service::Volume(volume.0 as usize);
        let wire = self.out.network.connect(self.out.now, &mut self.out.queue, hosts, service);
        self.reader(store).wire = Some(wire);
    }

    fn known(&self, store: usize) -> &Known {
        &self.machine.control.as_ref().expect("it off-loads").stores[store]
    }

    fn log_bytes(&self) -> u64 {
        self.machine.control.as_ref().expect("it off-loads").log_bytes
    }

    fn reader(&mut self, store: usize) -> &mut Reader {
        &mut self.process().offloading.readers[store]
    }

    /// The process dies, and its readers with it.
    pub(crate) fn end_readers(&mut self) {
        let Some(process) = &mut self.machine.process else { return };
        for wire in process.offloading.readers.iter_mut().filter_map(|reader| reader.wire.take()) {
            self.out.network.close(self.out.now, &mut self.out.queue, wire, 0);
        }
    }

    /// Something arrives at a reader.
    pub(crate) fn reader_receives(&mut self, store: usize, wire: Wire, what: &Chunk) -> Verdict {
        if self.process().offloading.readers.get(store).is_none_or(|reader| reader.wire != Some(wire)) {
            return Ok(());
        }
        match what {
            Chunk::Welcome => self.ask(store),
            Chunk::Bytes(bytes) => {
                self.reader(store).replies.feed(bytes);
                self.out.network.take(self.out.now, &mut self.out.queue, wire, 0, bytes.len());
                self.read_on(store)?;
            }
            Chunk::End => return Err(format!("the reader of store {store} is disconnected")),
            Chunk::Hello => {}
        }
        Ok(())
    }

    /// It reads what its scan wants, and flushes at the end.
    fn ask(&mut self, store: usize) {
        self.out.tokens += 1;
        let cookie = self.out.tokens;
        let reader = self.reader(store);
        let Some(scan) = &reader.scan else { return };
        let (command, offset, len) = match scan.wants() {
            Some((offset, len)) => (command::READ, offset, len as u32),
            None => (command::FLUSH, 0, 0),
        };
        let request = Request { op: 0, cookie, command, flags: 0, offset, len };
        reader.asked = Some(request);
        reader.data = vec![0; len as usize];
        let wire = reader.wire.expect("it is connected");
        self.send(wire, 1, Chunk::Bytes(request.header(SESSION.form).to_vec()));
    }

    fn read_on(&mut self, store: usize) -> Verdict {
        loop {
            let now = self.out.now;
            let reader = self.reader(store);
            let asked = |cookie| reader.asked.filter(|asked| asked.cookie == cookie).map(|asked| asked.asked());
            let part = reader.replies.next(asked).map_err(|what| format!("a reader: {what}"))?;
            let Some((_, part, data)) = part else { return Ok(()) };
            let request = reader.asked.expect("just seen");
            match part {
                Part::Data { offset, len } => {
                    let from = (offset - request.offset) as usize;
                    reader.data[from..from + len as usize].copy_from_slice(data);
                }
                // It is zeros already; extents are not asked for.
                Part::Hole { .. } | Part::Extent { .. } | Part::Load(_) => {}
                Part::Error(_) => reader.again_at = now + SECOND,
                Part::Done => {
                    reader.asked = None;
                    if reader.again_at > now {
                        self.scan_again(store);
                    } else {
                        self.was_read(store, request)?;
                    }
                }
            }
        }
    }

    /// The store could not be read to the end: it is tried again from the beginning, later.
    fn scan_again(&mut self, store: usize) {
        let (log, bytes) = (self.known(store).log(), self.log_bytes());
        self.reader(store).scan = Some(Scan::new(log, bytes));
    }

    fn was_read(&mut self, store: usize, request: Request) -> Verdict {
        let (log, has_log, bytes) = (self.known(store).log(), self.known(store).has_log, self.log_bytes());
        let invalid_below = self.known(store).invalid_below;
        let reader = self.reader(store);
        let Some(mut scan) = reader.scan.take() else { return Ok(()) };
        let is_flushed = request.command == command::FLUSH;
        let found = match scan.read(&reader.data) {
            _ if is_flushed => Some(scan.finish().map_err(|why| format!("store {store}: {why}"))?),
            Ok(()) => {
                reader.scan = Some(scan);
                None
            }
            Err(Unusable::NoLog | Unusable::Foreign) if !has_log => Some(Recovered::format(log, bytes)),
            Err(why) => return Err(format!("store {store}: {why}")),
        };
        let Some(mut found) = found else {
            self.ask(store);
            return Ok(());
        };
        found.drop_below(invalid_below);
        self.reader(store).found = Some(found);
        self.log(Line::Note(format!("store {store} is read")));
        if self.process().offloading.is_started { self.arrived(store) } else { self.start_offload() }
    }

    /// Starts if there are stores enough.
    fn start_offload(&mut self) -> Verdict {
        let (now, machine) = (self.out.now, &mut *self.machine);
        let (control, process) = (machine.control.as_mut().expect("it off-loads"), machine.process.as_mut());
        let offloading = &mut process.expect("a process").offloading;
        if offloading.is_started {
            return Ok(());
        }
        let is_missing: Vec<bool> = offloading.readers.iter().map(|reader| reader.found.is_none()).collect();
        let missing = || control.stores.iter().zip(&is_missing).filter(|(_, missing)| **missing);
        let known = control.stores.iter().filter(|store| store.was_missing).count();
        let allowed = control.settings.copies - 1;
        let new = missing().filter(|(store, _)| !store.was_missing).count();
        let is_patient = now < offloading.since + control.patience_ns;
        let all = missing().count();
        let must_wait = all > allowed || new > allowed.saturating_sub(known) || missing().any(|(of, _)| !of.has_log);
        if all > 0 && (is_patient || must_wait) {
            return Ok(());
        }
        let mut stores = Vec::new();
        for ((store, reader), &is_missing) in control.stores.iter_mut().zip(&mut offloading.readers).zip(&is_missing) {
            let initial = match reader.found.take() {
                Some(found) => Initial::Scanned(Box::new(found), store.missed),
                None => Initial::Missing(store.log(), control.log_bytes),
            };
            reader.is_used = !is_missing;
            stores.push((store.volume, initial));
            if is_missing {
                (store.was_missing, store.missed) = (true, control.incarnation);
                control.accepted = control.incarnation;
            }
        }
        offloading.is_started = true;
        let past =
            Past { incarnation: control.incarnation, accepted: control.accepted, is_unfenced: control.is_foreign };
        let setup = Setup { settings: control.settings, past, stores, volumes: vec![KEY], map: Map::default() };
        self.log(Line::Note(format!("off-load starts: {past:?}, missing {is_missing:?}")));
        self.command(Command::StartOffload(Box::new(setup)))?;
        for store in 0..STORES {
            if self.known(store).leaving {
                self.command(Command::RetireStore(StoreId(store as u8)))?;
            }
        }
        for at in 0..self.machine.hosted.len() {
            self.open(at)?;
        }
        self.settle()
    }

    /// A store that was missing at the start is there.
    fn arrived(&mut self, store: usize) -> Verdict {
        let is_over = self.process().offloading.is_over;
        let reader = self.reader(store);
        let Some(found) = reader.found.take().filter(|_| !reader.is_used && !is_over) else { return Ok(()) };
        reader.is_used = true;
        self.command(Command::StoreArrived(StoreId(store as u8), Box::new(found)))?;
        self.settle()
    }

    /// Control looks: it makes durable what the engine says of stores, and starts when its patience is over.
    pub(crate) fn control(&mut self) -> Verdict {
        self.control_soon();
        for store in 0..STORES {
            let now = self.out.now;
            let reader = self.reader(store);
            if reader.asked.is_none() && reader.scan.is_some() && (1..=now).contains(&reader.again_at) {
                reader.again_at = 0;
                self.ask(store);
            }
        }
        self.start_offload()?;
        let Some(stats) = self.process().server.snapshot().offload else { return Ok(()) };
        let control = self.machine.control.as_mut().expect("it off-loads");
        for (store, stats) in control.stores.iter_mut().zip(&stats.stores) {
            store.left |= stats.is_retired;
            store.has_log |= stats.is_open;
            if stats.is_told {
                store.missed = 0;
            }
        }
        let invalid = stats.invalid;
        if let Some(Invalid { stores, below }) = invalid {
            let all = (0..).zip(&mut control.stores);
            all.filter(|(at, _)| stores >> at & 1 != 0).for_each(|(_, store)| store.invalid_below = below);
        }
        if !stats.is_thin {
            control.stores.iter_mut().for_each(|store| store.was_missing = false);
        }
        self.out.stats.away_bytes = self.out.stats.away_bytes.max(stats.away_bytes);
        if let Some(invalid) = invalid {
            self.log(Line::Note(format!("{invalid:?}")));
            self.command(Command::Invalidate(invalid))?;
            self.settle()?;
        }
        self.remove_store()
    }

    /// From time to time a store is removed, one after the other.
    fn remove_store(&mut self) -> Verdict {
        let store = (self.out.now / REMOVAL_NS) as usize % STORES;
        let is_ending = self.process().offloading.ending.is_some();
        let control = self.machine.control.as_mut().expect("it off-loads");
        if is_ending || !control.removes_stores || control.stores.iter().any(|store| store.leaving) {
            return Ok(());
        }
        control.stores[store].leaving = true;
        self.log(Line::Note(format!("store {store} is removed")));
        self.command(Command::RetireStore(StoreId(store as u8)))?;
        self.settle()
    }

    /// Everything is to come home.
    pub(crate) fn end_offload(&mut self) -> Verdict {
        let token = self.out.tokens + 1;
        self.process().offloading.ending = Some(token);
        self.command(Command::EndOffload)?;
        self.settle()
    }

    /// A command has succeeded.
    pub(crate) fn offload_done(&mut self, token: u64) {
        let offloading = &mut self.process().offloading;
        offloading.is_over |= offloading.ending == Some(token);
    }
}
