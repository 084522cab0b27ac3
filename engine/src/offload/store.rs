//! One store of a client: its log, what waits to be appended, and what is on its way.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use super::log::{Log, Place, RECORD_BYTES_MAX};
use super::ranges::Id;
use super::record::{self, DELETIONS_MAX, HEADER, Header, HeaderBytes, Kind, Stored, SuperblockBytes, WRITES_MAX};
use super::turns::Turns;
use crate::ids::IoId;
use crate::units::{BLOCK, MILLISECOND, Nanos, SECOND};

/// Records of a store in flight: enough that the disk always has the next one while it writes one. All but one are full
/// ([`Store::is_writing_now`]).
const RECORDS_MAX: usize = 8;
/// Bytes of a store in flight from which on no further record follows.
const IN_FLIGHT_BYTES: u64 = 1 << 20;
/// How far behind the last acknowledged record bytes of a dead process may land.
pub(super) const LATE_BYTES_MAX: u64 = IN_FLIGHT_BYTES + 2 * RECORD_BYTES_MAX;
/// How long the load that a server has told counts.
const OTHERS_NS_MAX: Nanos = SECOND;
/// How long deletions wait for others, and for a trip of the store's disk to the log.
const DELETIONS_NS: Nanos = SECOND;
/// Time before a store that failed is tried again, doubled up to the longest.
const RETRY_NS: Nanos = 100 * MILLISECOND;
const RETRY_NS_MAX: Nanos = 5 * SECOND;

/// A store, by its place in the client's set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StoreId(pub u8);

impl StoreId {
    pub(super) fn bit(self) -> u16 {
        1 << self.0
    }
}

/// Whether a store is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It was not scanned: what it has is unknown.
    Missing,
    /// A new epoch begins at this time.
    Closed(Nanos),
    /// The superblock of a new epoch is on its way.
    Opening,
    Open,
    /// A write to it failed. It is closed when nothing is on its way any more.
    Failing,
    /// It was emptied to be forgotten ([`super::retire`]): nothing refers to it any more.
    Retired,
}

/// What a record has.
#[derive(Clone, Debug)]
pub(super) enum What {
    Writes(Vec<Id>),
    /// Versions of this store.
    Deletions(Vec<Id>),
    /// Versions that other stores, which are away, have; by their numbers.
    Remembered(Vec<u64>),
    /// Versions that it had while it was away.
    Owed(Vec<u64>),
    Padding,
    /// Nothing: whether it can be written is to be seen.
    Proof,
}

impl What {
    pub(super) fn is_deletion(&self) -> bool {
        matches!(self, What::Deletions(_) | What::Remembered(_) | What::Owed(_))
    }
}

/// A record on its way.
#[derive(Debug)]
pub(super) struct Append {
    pub(super) place: Place,
    pub(super) what: What,
    pub(super) header: Box<HeaderBytes>,
    /// The transfers that have its data, in order.
    pub(super) ios: Vec<IoId>,
    /// It was written, or failed.
    pub(super) has_ended: bool,
}

/// A write that waits to be appended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) id: Id,
    pub(super) io: IoId,
    pub(super) stored: Stored,
}

/// A deletion in a superblock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    pub(super) number: u64,
    /// It is of a version of another store.
    pub(super) is_remembered: bool,
    /// A durable tail at this position makes it superfluous.
    pub(super) until: u64,
}

#[derive(Debug)]
pub(super) struct Store {
    pub(super) state: State,
    /// It is being emptied, or is empty, to be forgotten.
    pub(super) is_retiring: bool,
    /// It is gone for good ([`super::lost`]): it is never opened.
    pub(super) is_lost: bool,
    pub(super) log: Log,
    /// An earlier process has used it, and no epoch of this one has begun.
    pub(super) is_new: bool,
    pub(super) pending: Turns,
    /// A record was written since the last failure, or none has failed. Nothing goes there before that but what must: a
    /// store that is full may still take superblocks.
    pub(super) is_proven: bool,
    /// Reads of its data on their way.
    pub(super) reads: u32,
    /// Requests of others at its disk, as its server has told, and when. `None` if it has not since the store is open.
    pub(super) others: Option<(Nanos, u32)>,
    /// It is not asked for that before.
    pub(super) ask_at: Nanos,
    /// Versions to be deleted.
    pub(super) deletions: VecDeque<Id>,
    /// When they are appended at the latest; `None` if that is as soon as possible.
    pub(super) delete_at: Option<Nanos>,
    /// What its server was told to be read next, by positions in the log.
    pub(super) hinted: Range<u64>,
    /// Deletions in superblocks, for which the log had no room.
    pub(super) notes: Vec<Note>,
    /// Those that are new in the superblock on its way.
    pub(super) noting: Vec<What>,
    /// The position behind the records that a process which did not know the store contradicts.
    pub(super) stale_until: u64,
    /// Versions of other stores to be remembered.
    pub(super) remembered: VecDeque<u64>,
    /// Versions that it may have and that do not count any more, since it was away when they were deleted.
    pub(super) owed: BTreeSet<u64>,
    /// From the first that is not acknowledged on, in log order.
    pub(super) appends: VecDeque<Append>,
    /// The tail in the superblock that is on its way.
    pub(super) superblock: Option<(u64, u64, Box<SuperblockBytes>)>,
    pub(super) retry_ns: Nanos,
    /// Bytes that late writes of an earlier process may still reach behind the head.
    pub(super) margin: u64,
    /// Bytes of newest content, and their versions.
    pub(super) live_bytes: u64,
}

impl Store {
    pub(super) fn new(log: Log, state: State, margin: u64) -> Store {
        Store {
            state,
            is_retiring: false,
            is_lost: false,
            is_new: log.was_used(),
            log,
            pending: Turns::default(),
            is_proven: true,
            reads: 0,
            others: None,
            ask_at: 0,
            deletions: VecDeque::new(),
            delete_at: None,
            hinted: 0..0,
            notes: Vec::new(),
            noting: Vec::new(),
            stale_until: 0,
            remembered: VecDeque::new(),
            owed: BTreeSet::new(),
            appends: VecDeque::new(),
            superblock: None,
            retry_ns: RETRY_NS,
            margin,
            live_bytes: 0,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether it cannot be written at present, and may have versions.
    pub(super) fn is_away(&self) -> bool {
        !matches!(self.state, State::Open | State::Retired)
    }

    /// Writes that wait or are on their way, reads, and what is known of others at its disk.
    pub(super) fn load(&self) -> u32 {
        let outstanding: usize = self.appends.iter().map(|append| append.ios.len()).sum();
        (self.pending.len() + outstanding) as u32 + self.reads + self.others.map_or(0, |(_, others)| others)
    }

    /// What is known of others at its disk now.
    pub(super) fn others_now(&self, now: Nanos) -> u32 {
        self.others.filter(|_| self.is_known(now)).map_or(0, |(_, others)| others)
    }

    /// Whether its load is what it seems. A server that answers no more is busy.
    pub(super) fn is_known(&self, now: Nanos) -> bool {
        self.others.is_none_or(|(at, _)| now < at + OTHERS_NS_MAX)
    }

    /// Whether it is so full that it has to be emptied whatever else there is to do.
    pub(super) fn is_short(&self) -> bool {
        self.state != State::Retired && self.log.used() > self.log.capacity() / 4 * 3
    }

    /// Whether another write of so many bytes may be sent to it.
    pub(super) fn takes(&self, bytes: u64) -> bool {
        // A header and a gap each, at most.
        let besides = (self.pending.len() as u64 + 1) * BLOCK;
        self.is_open() && self.log.has_room(self.pending.bytes() + bytes + besides)
    }

    /// Whether its records and superblocks are all written, or failed.
    pub(super) fn is_drained(&self) -> bool {
        self.superblock.is_none() && self.appends.iter().all(|append| append.has_ended)
    }

    /// The next time for a new epoch, after a failure.
    pub(super) fn close(&mut self, now: Nanos) {
        self.state = State::Closed(now + self.retry_ns);
        // Another server may be there next time, which does not tell its load.
        self.others = None;
        self.retry_ns = (self.retry_ns * 2).min(RETRY_NS_MAX);
    }

    /// Whether a write to it failed, and none has succeeded since.
    pub(super) fn is_failing(&self) -> bool {
        self.retry_ns > RETRY_NS
    }

    pub(super) fn opened(&mut self) {
        (self.state, self.is_new) = (State::Open, false);
        if self.is_proven {
            self.retry_ns = RETRY_NS;
        }
    }

    /// A record was written.
    pub(super) fn prove(&mut self) {
        (self.is_proven, self.retry_ns) = (true, RETRY_NS);
    }

    /// After a failure, appends a record without content, to see whether it can be written.
    pub(super) fn append_proof(&mut self) -> bool {
        if self.is_proven {
            return false;
        }
        let Some((padding, place)) = self.log.append(HEADER as u64, 0) else {
            // It takes superblocks only until its tail has moved, and no writes.
            self.prove();
            return false;
        };
        self.begin(padding, place, What::Proof, Vec::new());
        let header = header(&self.log, place, Kind::Padding, 0);
        record::encode_deletions(header, &[], &mut self.appends.back_mut().expect("it was just begun").header);
        true
    }

    /// A version is to be deleted, at once if others wait for that.
    pub(super) fn delete(&mut self, now: Nanos, id: Id, is_urgent: bool) {
        let latest = if is_urgent { now } else { now + DELETIONS_NS };
        let at = if self.deletions.is_empty() { Some(latest) } else { self.delete_at };
        self.delete_at = at.map(|at| at.min(latest));
        self.deletions.push_back(id);
    }

    /// Whether writes are appended now. A trip of the store's disk to the log costs more than the data of a record, so
    /// there is one record at a time that is not full: what arrives meanwhile shares the next one (group commit).
    fn is_writing_now(&mut self) -> bool {
        let (count, _) = self.pending.choose();
        let is_full = count == WRITES_MAX || count < self.pending.len();
        let is_writing = |append: &Append| matches!(append.what, What::Writes(_)) && !append.has_ended;
        count > 0 && (is_full || !self.appends.iter().any(is_writing))
    }

    /// Whether deletions are appended now. A record by itself costs the store's disk two seeks: so they wait until they
    /// fill one or writes take the disk to the log, for [`DELETIONS_NS`] at most.
    fn is_deleting_now(&self, now: Nanos, is_writing: bool) -> bool {
        let waits_for_none = self.deletions.len() < DELETIONS_MAX && self.owed.is_empty() && self.remembered.is_empty();
        !waits_for_none || is_writing || self.is_short() || self.delete_at.is_none_or(|at| at <= now)
    }

    /// Appends the next record, if something waits. False if nothing does, or if it has to wait.
    pub(super) fn append_next(&mut self, now: Nanos) -> bool {
        let in_flight = self.appends.front().map_or(0, |first| self.log.head() - first.place.at);
        if !self.is_open() || self.appends.len() >= RECORDS_MAX || in_flight >= IN_FLIGHT_BYTES {
            return false;
        }
        let is_deleting = self.appends.iter().any(|append| append.what.is_deletion());
        let is_writing = self.is_writing_now();
        // One record of deletions at a time: what is deleted meanwhile shares the next one.
        (!is_deleting && self.is_deleting_now(now, is_writing) && self.append_deletions())
            || (is_writing && self.append_writes())
    }

    /// The next deletions, at most so many, which are not in a queue any more.
    pub(super) fn take_deletions(&mut self, most: usize) -> Option<What> {
        if !self.owed.is_empty() {
            // They stay owed until that is durable.
            Some(What::Owed(self.owed.iter().copied().take(most).collect()))
        } else if !self.remembered.is_empty() {
            let count = self.remembered.len().min(most);
            Some(What::Remembered(self.remembered.drain(..count).collect()))
        } else if !self.deletions.is_empty() {
            let count = self.deletions.len().min(most);
            self.delete_at = self.delete_at.filter(|_| self.deletions.len() > count);
            Some(What::Deletions(self.deletions.drain(..count).collect()))
        } else {
            None
        }
    }

    fn append_deletions(&mut self) -> bool {
        if !self.log.has_room_for_header() || !self.noting.is_empty() {
            return false;
        }
        let Some(what) = self.take_deletions(DELETIONS_MAX) else { return false };
        let needed = u16::from(matches!(what, What::Remembered(_)));
        let (padding, place) = self.log.append(HEADER as u64, needed).expect("there is room");
        // The numbers are put in by the caller, who knows the versions.
        self.begin(padding, place, what, Vec::new());
        true
    }

    fn append_writes(&mut self) -> bool {
        let (count, bytes) = self.pending.choose();
        let Some((padding, place)) = self.log.append(bytes, count as u16) else { return false };
        let writes = self.pending.take();
        let ids = writes.iter().map(|pending| pending.id).collect();
        let ios = writes.iter().map(|pending| pending.io).collect();
        self.begin(padding, place, What::Writes(ids), ios);
        let append = self.appends.back_mut().expect("it was just begun");
        let header = header(&self.log, place, Kind::Writes, count);
        record::encode_writes(header, writes.iter().map(|pending| pending.stored), &mut append.header);
        true
    }

    fn begin(&mut self, padding: Option<Place>, place: Place, what: What, ios: Vec<IoId>) {
        if let Some(place) = padding {
            let mut append = Append::new(place, What::Padding, Vec::new());
            record::encode_deletions(header(&self.log, place, Kind::Padding, 0), &[], &mut append.header);
            self.appends.push_back(append);
        }
        self.appends.push_back(Append::new(place, what, ios));
    }

    /// Writes the header of a record of deletions.
    pub(super) fn encode_deletions(&mut self, at: usize, numbers: &[u64]) {
        let append = &mut self.appends[at];
        let kind = if matches!(append.what, What::Remembered(_)) { Kind::Remembered } else { Kind::Deletions };
        let header = header(&self.log, append.place, kind, numbers.len());
        record::encode_deletions(header, numbers, &mut append.header);
    }
}

fn header(log: &Log, Place { number, at, bytes }: Place, kind: Kind, count: usize) -> Header {
    Header { log: log.id(), epoch: log.epoch(), number, at, bytes, kind, count, data_sum: 0 }
}

impl Append {
    fn new(place: Place, what: What, ios: Vec<IoId>) -> Append {
        Append { place, what, header: Box::new([0; HEADER]), ios, has_ended: false }
    }
}
