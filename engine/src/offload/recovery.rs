//! What a store has after its client or its host died: the log is read from its tail to its head.
//!
//! A scan says which bytes it reads next and gets them, so it runs over any client of the store, before the machine
//! that uses the store exists. Reads are sequential and large: the time is that of reading the log once.
//!
//! An epoch that has ended has all records up to its end: if one is damaged, acknowledged data is lost, and the scan
//! fails. The present epoch ends at the first invalid record: those are writes that were not acknowledged. Downside:
//! damage to an acknowledged record of the present epoch cannot be told from that, unless there are later records.
//!
//! Source: Everest, sections 3.1 and 3.2.1.

use std::collections::VecDeque;

use super::log::{self, Link, RECORD_BYTES_MAX, Record};
use super::record::{self, HEADER, Header, HeaderBytes, Kind, LOG_STARTS, SUPERBLOCK, Stored, Sum, Superblock};
use super::versions::is_possible;

/// Bytes of a read: large enough for the disk's streaming rate, small enough to be shared with others.
const READ_BYTES: u64 = RECORD_BYTES_MAX;

/// Why a store cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unusable {
    /// It was never used, or it has something else.
    #[error("it has no log")]
    NoLog,
    /// Another client's.
    #[error("it has the log of another disk")]
    Foreign,
    /// It is smaller than its log.
    #[error("it has {now} bytes of log; it had {before}")]
    Size {
        /// Bytes of the log, as it was used.
        before: u64,
        /// Bytes that there are.
        now: u64,
    },
    /// Acknowledged data cannot be read.
    #[error("the log is damaged at position {0}: data that was off-loaded is lost")]
    Damaged(u64),
}

/// A write that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) stored: Stored,
    /// Position of its data.
    pub(super) at: u64,
}

/// The content of a store.
#[derive(Clone, Debug)]
pub struct Recovered {
    pub(super) superblock: Superblock,
    /// Position behind the last record.
    pub(super) end: u64,
    /// From the tail on; nothing needs them yet.
    pub(super) records: VecDeque<Record>,
    pub(super) found: Vec<Found>,
    /// Its versions that are deleted.
    pub(super) deleted: Vec<u64>,
    /// Versions that are deleted wherever they are, and the position of the record that says so.
    pub(super) remembered: Vec<(u64, u64)>,
}

impl Recovered {
    /// A store that is used for the first time, as `log`, a number that no other log has, of `capacity` bytes
    /// ([`log_bytes`]).
    ///
    /// [`log_bytes`]: super::log_bytes
    pub fn format(log: u128, capacity: u64) -> Recovered {
        let superblock = Superblock {
            log,
            capacity,
            epoch: 0,
            counter: 0,
            tail: 0,
            tail_number: 0,
            links: Vec::new(),
            deleted: Vec::new(),
            remembered: Vec::new(),
        };
        let (records, found, deleted, remembered) = Default::default();
        Recovered { superblock, end: 0, records, found, deleted, remembered }
    }

    /// An empty log that a process has used.
    #[cfg(test)]
    pub(crate) fn used(log: u128, capacity: u64) -> Recovered {
        let mut recovered = Recovered::format(log, capacity);
        recovered.superblock.epoch = 1;
        recovered
    }
}

#[derive(Debug)]
enum State {
    Superblocks,
    Log,
    Done,
}

/// The scan of one store.
#[derive(Debug)]
pub struct Scan {
    log: u128,
    capacity: u64,
    state: State,
    superblock: Option<Superblock>,
    /// The epoch that is read, by its place in the links.
    link: usize,
    /// Position and number of the next record.
    at: u64,
    number: u64,
    /// Bytes that were read; those from `taken` on are from `at` on.
    read: Vec<u8>,
    taken: usize,
    records: VecDeque<Record>,
    found: Vec<Found>,
    deleted: Vec<u64>,
    remembered: Vec<(u64, u64)>,
}

impl Scan {
    /// The scan of the store that has `log`, of `capacity` bytes.
    pub fn new(log: u128, capacity: u64) -> Scan {
        Scan {
            log,
            capacity,
            state: State::Superblocks,
            superblock: None,
            link: 0,
            at: 0,
            number: 0,
            read: Vec::new(),
            taken: 0,
            records: VecDeque::new(),
            found: Vec::new(),
            deleted: Vec::new(),
            remembered: Vec::new(),
        }
    }

    /// The bytes of the store to be read next: first byte and number. `None` if the scan is complete.
    pub fn wants(&self) -> Option<(u64, u64)> {
        match self.state {
            State::Superblocks => Some((0, LOG_STARTS)),
            State::Log => {
                let from = (self.at + self.rest().len() as u64) % self.capacity;
                Some((LOG_STARTS + from, READ_BYTES.min(self.capacity - from)))
            }
            State::Done => None,
        }
    }

    /// Bytes of the log that were read.
    pub fn scanned_bytes(&self) -> u64 {
        self.superblock.as_ref().map_or(0, |superblock| self.at - superblock.tail)
    }

    /// The bytes that [`Scan::wants`] named.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), Unusable> {
        match self.state {
            State::Superblocks => self.read_superblocks(bytes)?,
            State::Log => {
                self.read.drain(..std::mem::take(&mut self.taken));
                self.read.extend_from_slice(bytes);
            }
            State::Done => return Ok(()),
        }
        while matches!(self.state, State::Log) && self.step()? {}
        Ok(())
    }

    fn read_superblocks(&mut self, bytes: &[u8]) -> Result<(), Unusable> {
        let places = bytes.as_chunks::<SUPERBLOCK>().0.iter();
        let found = places.filter_map(Superblock::decode).max_by_key(|found| (found.epoch, found.counter));
        let superblock = found.ok_or(Unusable::NoLog)?;
        if superblock.log != self.log {
            return Err(Unusable::Foreign);
        }
        if superblock.capacity != self.capacity {
            return Err(Unusable::Size { before: superblock.capacity, now: self.capacity });
        }
        (self.at, self.number) = (superblock.tail, superblock.tail_number);
        if let Some(first) = superblock.links.first() {
            self.at = self.at.max(first.start);
        }
        self.superblock = Some(superblock);
        self.state = State::Log;
        Ok(())
    }

    /// The bytes that were read and not looked at.
    fn rest(&self) -> &[u8] {
        &self.read[self.taken..]
    }

    fn links(&self) -> &[Link] {
        &self.superblock.as_ref().expect("superblocks are read first").links
    }

    /// Reads the next record. False if more bytes are needed, or the scan is complete.
    fn step(&mut self) -> Result<bool, Unusable> {
        let Some(&link) = self.links().get(self.link) else {
            self.state = State::Done;
            return Ok(false);
        };
        if self.at >= link.end {
            return Ok(self.next_epoch());
        }
        let gap = log::gap(self.at, self.capacity);
        let Some(&next) = self.rest().first_chunk::<HEADER>() else { return Ok(false) };
        let mut found = self.decode(&next, link, 0).map(|header| (header, next, 0));
        if found.is_none() && gap > 0 {
            let Some(&next) = self.rest().get(gap as usize..).and_then(|rest| rest.first_chunk::<HEADER>()) else {
                return Ok(false);
            };
            found = self.decode(&next, link, gap).map(|header| (header, next, gap));
        }
        let Some((header, bytes, gap)) = found else { return self.ends(link) };
        let past = (gap + header.bytes) as usize;
        if self.rest().len() < past {
            return Ok(false);
        }
        let mut sum = Sum::default();
        sum.add(&self.rest()[gap as usize + HEADER..past]);
        let has_data = header.kind == Kind::Writes && !planted!(ChecksumNotChecked);
        if has_data && sum.value() != header.data_sum {
            return self.ends(link);
        }
        self.at += gap;
        match header.kind {
            Kind::Writes => {
                let mut at = self.at + HEADER as u64;
                for stored in record::writes(&bytes, header.count) {
                    self.found.push(Found { stored, at });
                    at += u64::from(stored.len);
                }
            }
            Kind::Deletions => self.deleted.extend(record::deletions(&bytes, header.count)),
            Kind::Remembered => {
                let at = self.at;
                self.remembered.extend(record::deletions(&bytes, header.count).map(|number| (number, at)));
            }
            Kind::Padding => {}
        }
        self.records.push_back(Record::new(self.at, header.bytes, 0));
        self.taken += past;
        self.at += header.bytes;
        self.number += 1;
        Ok(true)
    }

    /// The header of the next record, if it is `gap` bytes behind the last one.
    fn decode(&self, bytes: &HeaderBytes, link: Link, gap: u64) -> Option<Header> {
        let at = self.at + gap;
        let left = self.capacity - at % self.capacity;
        let is_expected = |header: &Header| {
            (header.log, header.epoch, header.number, header.at) == (self.log, link.epoch, self.number, at)
                && header.bytes <= left.min(RECORD_BYTES_MAX)
                && header.bytes <= link.end.saturating_sub(at)
        };
        let header = Header::decode(bytes).filter(is_expected)?;
        let are_possible = |count| record::writes(bytes, count).all(|it| is_possible(it.start, u64::from(it.len)));
        (header.kind != Kind::Writes || are_possible(header.count)).then_some(header)
    }

    /// There is no valid record: the present epoch ends here.
    fn ends(&mut self, link: Link) -> Result<bool, Unusable> {
        if link.end != u64::MAX {
            return Err(Unusable::Damaged(self.at));
        }
        self.state = State::Done;
        Ok(false)
    }

    /// An epoch is read. Whether there is a later one.
    fn next_epoch(&mut self) -> bool {
        self.link += 1;
        let Some(&Link { start, number, .. }) = self.links().get(self.link) else {
            self.state = State::Done;
            return false;
        };
        let skipped = (start - self.at).min(self.rest().len() as u64);
        self.taken += skipped as usize;
        // Bytes that were not read need not be: the next read begins at the epoch.
        (self.at, self.number) = (start, number);
        true
    }

    /// The content of the store.
    pub fn finish(self) -> Result<Recovered, Unusable> {
        let superblock = self.superblock.ok_or(Unusable::NoLog)?;
        let Scan { at: end, records, found, deleted, remembered, .. } = self;
        Ok(Recovered { superblock, end, records, found, deleted, remembered })
    }
}
