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
        // The head does not pass the tail: whatever the store returns, the scan ends.
        let tail = self.superblock.as_ref().expect("superblocks are read first").tail;
        if self.at + gap + header.bytes - tail > self.capacity {
            return Err(Unusable::Damaged(self.at));
        }
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
        let writes = || record::writes(bytes, header.count).map(|it| (it.start, u64::from(it.len)));
        let are_possible = || {
            let data: u64 = writes().map(|(_, len)| len).sum();
            HEADER as u64 + data == header.bytes && writes().all(|(start, len)| is_possible(start, len))
        };
        (header.kind != Kind::Writes || are_possible()).then_some(header)
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

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: u128 = 7;
    const EPOCH: u64 = 1 << 16;
    const CAPACITY: u64 = 16 << 20;
    const GOOD: (u64, u32) = (4096, 512);

    /// The scan of a log whose only epoch is the present one, and has records from the beginning on.
    fn scan() -> Scan {
        let links = vec![Link { epoch: EPOCH, start: 0, number: 0, end: u64::MAX }];
        let superblock = Superblock { epoch: EPOCH, links, ..Recovered::format(LOG, CAPACITY).superblock };
        let mut bytes = vec![0; LOG_STARTS as usize];
        bytes[..SUPERBLOCK].copy_from_slice(&superblock.encode());
        let mut scan = Scan::new(LOG, CAPACITY);
        scan.read(&bytes).unwrap();
        scan
    }

    /// A valid record of writes: of these ranges, with so many bytes of data.
    fn record(number: u64, at: u64, ranges: &[(u64, u32)], data: usize) -> Vec<u8> {
        let stored = |&(start, len)| Stored { version: number + 1, key: 3, start, len, copies: 1 };
        let (bytes, count) = ((HEADER + data) as u64, ranges.len());
        let header = Header { log: LOG, epoch: EPOCH, number, at, bytes, kind: Kind::Writes, count, data_sum: 0 };
        let (mut head, data, mut sum) = ([0; HEADER], vec![1; data], Sum::default());
        record::encode_writes(header, ranges.iter().map(stored), &mut head);
        sum.add(&data);
        record::seal(&mut head, sum.value());
        [&head[..], &data].concat()
    }

    /// The writes that are found in a log that begins with these bytes.
    fn found(mut bytes: Vec<u8>) -> Vec<(u64, u32)> {
        bytes.resize(READ_BYTES as usize, 0);
        let mut scan = scan();
        while scan.wants().is_some() {
            scan.read(&bytes).unwrap();
            bytes.fill(0);
        }
        scan.finish().unwrap().found.iter().map(|found| (found.stored.start, found.stored.len)).collect()
    }

    #[test]
    fn records_that_no_client_writes_are_none() {
        assert_eq!(found(record(0, 0, &[GOOD, GOOD], 1024)), [GOOD, GOOD]);
        let end = crate::units::VOLUME_BYTES_MAX;
        assert_eq!(found(record(0, 0, &[(end - 512, 512)], 512)), [(end - 512, 512)]);
        for bad in [(4096, 0), (end, 512), (end - 512, 1024), (u64::MAX - 511, 512)] {
            let data = 512 + bad.1 as usize;
            assert_eq!(found(record(0, 0, &[GOOD, bad], data)), [], "{bad:?}");
        }
        // Data that is not in the record.
        assert_eq!(found(record(0, 0, &[GOOD, GOOD], 512)), []);
        assert_eq!(found(record(0, 0, &[GOOD], 1024)), []);
    }

    #[test]
    fn a_log_without_end_is_damaged() {
        let (mut scan, mut at, mut bytes) = (scan(), 0, Vec::new());
        let error = (0..2 * CAPACITY / 1024).find_map(|number| {
            bytes.extend(record(number, at, &[GOOD], 512));
            at += 1024;
            let (_, wanted) = scan.wants().expect("there are further records");
            let is_enough = bytes.len() as u64 >= wanted;
            is_enough.then(|| scan.read(&std::mem::take(&mut bytes)).err()).flatten()
        });
        assert_eq!(error, Some(Unusable::Damaged(CAPACITY)));
        assert!(scan.records.len() as u64 <= CAPACITY / 1024);
    }
}
