//! The log of one store: where its records are, in which order they are acknowledged, and which are still needed.
//!
//! ```text
//!            persisted        tail               acknowledged      head
//!   ───────────▼───────────────▼──────────────────────▼─────────────▼───────────► positions, growing for ever
//!              │ free as soon  │ records: some needed │ outstanding │ room, up to persisted + capacity
//!              │ as the tail   │                      │             │
//!              │ is persisted  │
//! ```
//!
//! - A record is acknowledged when it and all records before it are durable: recovery stops at the first hole.
//! - A record is needed while the store has to have one of its versions. The tail is the oldest needed record.
//! - The head never passes the tail *that is durable in a superblock*: recovery begins there.
//! - When a record fails, or the process is new, a new epoch begins behind everything that may still be on its way, and
//!   the superblock says where the earlier epoch ended. What arrives late is behind that end, so recovery skips it.
//! - A record follows its predecessor immediately if that is durable, and otherwise at the next block of 4 KiB: the
//!   store writes a block of its cache to the disk once at a time, so two records in flight must not share one.
//!
//! Source: Everest, section 3.1. Downside: a version that is needed for long keeps all later records.

use std::collections::VecDeque;

use super::record::{HEADER, LINKS_MAX, LOG_STARTS, Superblock};
use crate::units::{BLOCK, SECTOR};

/// Part of the log that only deletions and padding may use, so that a full store can become empty again.
const RESERVE_PARTS: u64 = 16;
/// The largest record. Records follow one another, so larger ones would save nothing but headers.
pub(super) const RECORD_BYTES_MAX: u64 = 512 * 1024;
/// Records for which there is room at least. From there on the room grows by an eighth at a time.
const RECORDS_STEP: usize = 256;

/// Bits of an epoch that count the epochs of one process; the others are its incarnation.
pub(super) const EPOCH_BITS: u32 = 16;

/// Records of one epoch. They follow one another from `start` to `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Link {
    pub(super) epoch: u64,
    pub(super) start: u64,
    /// Number of the first record.
    pub(super) number: u64,
    /// Position behind the last acknowledged record; `u64::MAX` for the present epoch.
    pub(super) end: u64,
}

/// A record that is in the log.
#[derive(Clone, Copy)]
pub(super) struct Record {
    /// Its position in sectors, least significant part first. In 16 bits each, since there may be millions of records.
    at: [u16; 3],
    sectors: u16,
    /// Versions, or pins, for which it is needed.
    pub(super) needed: u16,
}

impl Record {
    pub(super) fn new(at: u64, bytes: u64, needed: u16) -> Record {
        let sector = at / SECTOR;
        let at = [sector as u16, (sector >> 16) as u16, (sector >> 32) as u16];
        Record { at, sectors: (bytes / SECTOR) as u16, needed }
    }

    pub(super) fn at(&self) -> u64 {
        let [low, middle, high] = self.at.map(u64::from);
        (low | middle << 16 | high << 32) * SECTOR
    }

    fn end(&self) -> u64 {
        self.at() + u64::from(self.sectors) * SECTOR
    }
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Record { sectors, needed, .. } = self;
        f.debug_struct("Record").field("at", &self.at()).field("sectors", sectors).field("needed", needed).finish()
    }
}

/// A place for a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) number: u64,
    pub(super) at: u64,
    pub(super) bytes: u64,
}

#[derive(Debug)]
pub(super) struct Log {
    id: u128,
    capacity: u64,
    head: u64,
    /// From the tail on.
    records: VecDeque<Record>,
    /// Number of the first of `records`.
    first: u64,
    /// For each record that is not acknowledged, in order, whether it is durable.
    durable: VecDeque<bool>,
    /// Position behind the last acknowledged record.
    acknowledged: u64,
    /// Of this process: that of the newest link, or of superblocks without a link.
    epoch: u64,
    links: Vec<Link>,
    counter: u64,
    /// The tail of the newest durable superblock.
    persisted: u64,
}

impl Log {
    /// A log as recovery found it, between two epochs.
    pub(super) fn new(superblock: &Superblock, end: u64, mut records: VecDeque<Record>) -> Log {
        records.shrink_to_fit();
        let mut links = superblock.links.clone();
        if let Some(last) = links.last_mut() {
            last.end = end;
        }
        Log {
            id: superblock.log,
            capacity: superblock.capacity,
            head: end,
            records,
            first: superblock.tail_number,
            durable: VecDeque::new(),
            acknowledged: end,
            epoch: superblock.epoch,
            links,
            counter: superblock.counter,
            persisted: superblock.tail,
        }
    }

    pub(super) fn id(&self) -> u128 {
        self.id
    }

    /// Whether a process has begun an epoch. Before that it sends no records, so none can be there or arrive late.
    pub(super) fn was_used(&self) -> bool {
        self.epoch > 0
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Number of the next record.
    fn next(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    /// Number of the first record that is not acknowledged.
    fn unacknowledged(&self) -> u64 {
        self.next() - self.durable.len() as u64
    }

    /// Bytes that the next record is away from its predecessor.
    fn gap(&self) -> u64 {
        if self.durable.is_empty() { 0 } else { gap(self.head, self.capacity) }
    }

    /// Bytes of padding that precede a record of so many bytes, behind the gap.
    fn padding(&self, bytes: u64) -> u64 {
        let left = self.capacity - (self.head + self.gap()) % self.capacity;
        if left < bytes { left } else { 0 }
    }

    /// Whether records of so many bytes in total fit, if none is larger than [`RECORD_BYTES_MAX`]. Some of the log is
    /// left for deletions.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.fits(BLOCK + bytes + self.padding(RECORD_BYTES_MAX) + self.capacity / RESERVE_PARTS)
    }

    fn fits(&self, bytes: u64) -> bool {
        self.has_link() && (planted!(HeadPassesTail) || self.head + bytes <= self.persisted + self.capacity)
    }

    /// Bytes between the persisted tail and the head, which may be more than there are after a new epoch.
    pub(super) fn used(&self) -> u64 {
        self.head - self.persisted
    }

    /// Whether all records have a place of their own.
    #[cfg(test)]
    pub(super) fn is_sound(&self) -> bool {
        self.records.back().is_none_or(|last| last.end() <= self.persisted + self.capacity)
            && self.records.iter().is_sorted_by_key(Record::at)
    }

    pub(super) fn head(&self) -> u64 {
        self.head
    }

    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Whether records can be appended to the present epoch. It has no link while there are too many earlier ones.
    pub(super) fn has_link(&self) -> bool {
        self.links.last().is_some_and(|link| link.end == u64::MAX)
    }

    /// A new epoch begins. Records that are not acknowledged are dropped. `margin` is the number of bytes behind the
    /// head on which writes of earlier epochs may still land. Nothing is appended before the superblock is durable.
    pub(super) fn restart(&mut self, incarnation: u32, margin: u64) {
        let number = self.unacknowledged();
        while !self.durable.is_empty() {
            self.durable.pop_back();
            self.records.pop_back();
        }
        if let Some(last) = self.links.last_mut() {
            last.end = self.acknowledged.max(last.start);
        }
        self.head += if planted!(LateWritesInLog) { 0 } else { margin };
        // Of this process alone, whatever superblocks of others the store shows.
        self.epoch = (self.epoch + 1).max(u64::from(incarnation) << EPOCH_BITS);
        self.link(number);
    }

    /// Begins the records of the epoch, if there are not too many links. Whether it did.
    fn link(&mut self, number: u64) -> bool {
        // Links without records are not needed.
        self.links.retain(|link| link.start < link.end);
        let fits = self.links.len() < LINKS_MAX;
        if fits {
            self.links.push(Link { epoch: self.epoch, start: self.head, number, end: u64::MAX });
        }
        fits
    }

    /// Begins the records of an epoch that has had no link. Whether it did; the next superblock says so.
    pub(super) fn link_again(&mut self) -> bool {
        let tail = self.tail_position();
        self.links.retain(|link| tail < link.end);
        self.link(self.next())
    }

    /// Whether a record without data fits.
    pub(super) fn has_room_for_header(&self) -> bool {
        self.fits(self.gap() + HEADER as u64)
    }

    /// Takes the place for a record of so many bytes, of which `needed` versions or pins are in it. The padding that
    /// precedes it comes first. `None` if it does not fit.
    pub(super) fn append(&mut self, bytes: u64, needed: u16) -> Option<(Option<Place>, Place)> {
        debug_assert!(bytes.is_multiple_of(SECTOR) && bytes <= RECORD_BYTES_MAX);
        let (gap, padding) = (self.gap(), self.padding(bytes));
        if !self.fits(gap + padding + bytes) {
            return None;
        }
        self.head += gap;
        // Padding is longer than a record may be only if the log is very small.
        let padding = (padding > 0).then(|| self.take(padding, 0));
        Some((padding, self.take(bytes, needed)))
    }

    fn take(&mut self, bytes: u64, needed: u16) -> Place {
        let place = Place { number: self.next(), at: self.head, bytes };
        if self.records.len() == self.records.capacity() {
            self.records.reserve_exact(self.records.len() / 8 + RECORDS_STEP);
        }
        self.records.push_back(Record::new(self.head, bytes, needed));
        self.durable.push_back(false);
        self.head += bytes;
        place
    }

    /// A record is durable. Returns the numbers of those that are acknowledged now: first, and behind the last.
    pub(super) fn stored(&mut self, number: u64) -> (u64, u64) {
        let first = self.unacknowledged();
        self.durable[(number - first) as usize] = true;
        if planted!(AcknowledgedOutOfOrder) {
            return (number, number + 1);
        }
        while self.durable.front() == Some(&true) {
            self.durable.pop_front();
            self.acknowledged = self.records[self.records.len() - 1 - self.durable.len()].end();
        }
        (first, self.unacknowledged())
    }

    /// A version of the record at this position is needed.
    pub(super) fn need(&mut self, at: u64) {
        let record = self.records.partition_point(|record| record.at() <= at) - 1;
        self.records[record].needed += 1;
    }

    /// A version, or a pin, of the record at this position is not needed any more.
    pub(super) fn release(&mut self, at: u64) {
        let record = self.records.partition_point(|record| record.at() <= at) - 1;
        let record = &mut self.records[record];
        assert!(at < record.end() && record.needed > 0, "{at} is not in a needed record");
        record.needed -= 1;
    }

    fn tail_position(&self) -> u64 {
        self.records.front().map_or(self.head, Record::at)
    }

    /// Drops the records that are not needed, from the tail on.
    pub(super) fn advance(&mut self) {
        let mut acknowledged = self.records.len() - self.durable.len();
        while acknowledged > 0 && (self.records[0].needed == 0 || planted!(TailMovedEarly)) {
            self.records.pop_front();
            self.first += 1;
            acknowledged -= 1;
        }
        if self.records.capacity() > 4 * (self.records.len() + RECORDS_STEP) {
            self.records.shrink_to(2 * self.records.len() + RECORDS_STEP);
        }
    }

    /// Whether the oldest record is needed.
    pub(super) fn tail(&self) -> Option<&Record> {
        self.records.front()
    }

    /// Whether the tail has moved since the last durable superblock.
    pub(super) fn has_moved(&self) -> bool {
        self.tail_position() > self.persisted
    }

    /// The next superblock.
    pub(super) fn superblock(&mut self) -> Superblock {
        self.counter += 1;
        let tail = self.tail_position();
        // The epoch of the tail and later ones. With an empty log that is the present one.
        self.links.retain(|link| tail < link.end);
        let Log { id: log, capacity, epoch, counter, first: tail_number, .. } = *self;
        Superblock {
            log,
            capacity,
            epoch,
            counter,
            tail,
            tail_number,
            links: self.links.clone(),
            deleted: Vec::new(),
            remembered: Vec::new(),
        }
    }

    /// Position of the tail that is durable.
    pub(super) fn durable_tail(&self) -> u64 {
        self.persisted
    }

    /// A superblock with this tail is durable.
    pub(super) fn persisted(&mut self, tail: u64) {
        self.persisted = self.persisted.max(tail);
    }

    /// The first byte on the store of a position.
    pub(super) fn place(&self, at: u64) -> u64 {
        LOG_STARTS + at % self.capacity
    }
}

/// Bytes of the log of a store of this size; `None` if it is too small for one.
pub fn log_bytes(store_bytes: u64) -> Option<u64> {
    let bytes = store_bytes.checked_sub(LOG_STARTS)? / BLOCK * BLOCK;
    (bytes >= LOG_BYTES_MIN).then_some(bytes)
}

/// Bytes from a position to the next block, or to the end of the log.
pub(super) fn gap(at: u64, capacity: u64) -> u64 {
    (at.next_multiple_of(BLOCK) - at).min(capacity - at % capacity)
}

/// The smallest log: room for writes also after several new epochs, which each leave [`LATE_BYTES_MAX`] unused.
///
/// [`LATE_BYTES_MAX`]: super::store::LATE_BYTES_MAX
const LOG_BYTES_MIN: u64 = 16 << 20;
/// The smallest store, bytes: the smallest log and the superblocks, in whole MiB.
pub const STORE_BYTES_MIN: u64 = 17 << 20;

const _: () = assert!(LOG_STARTS + LOG_BYTES_MIN <= STORE_BYTES_MIN);
const _: () = assert!(RECORD_BYTES_MAX / SECTOR <= u16::MAX as u64 && HEADER as u64 == SECTOR);
