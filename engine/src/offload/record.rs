//! The form of a store: sectors of superblocks, then a circular log of records, each a header and its data.
//!
//! ```text
//!   store     | 16 superblocks of 4 KiB | log ······························ |
//!   record    | header, 512 bytes | data of its writes, one after the other |
//! ```
//!
//! All numbers are little-endian. Positions in the log grow for ever; the place of a position on the store is its
//! remainder. A record never crosses the end of the log: padding precedes it there.
//!
//! A record is valid if its header has the identity of the log, the expected epoch, number and position, its writes are
//! whole sectors that a volume can have and fill it, and both checksums are right. What lies beyond the newest record
//! is arbitrary: older records, or data of clients that looks like one. It has another epoch, number or position.
//!
//! Source: Everest, section 3.1; one header for several writes, numbers instead of random epoch IDs, and links between
//! epochs are ours.

use super::log::{EPOCH_BITS, Link};
use super::versions::POSITION_BITS;
use crate::units::SECTOR;

/// Bytes of a header: a sector, the unit that a disk writes as a whole.
pub const HEADER: usize = 512;
/// Bytes of a superblock. It may be torn: the one before it is in another place.
pub const SUPERBLOCK: usize = 4096;
/// Superblocks: four for each of four processes in turn. A late one of an earlier process meets another one's sector
/// only four processes later.
pub(super) const SUPERBLOCKS: u64 = 16;
/// Bytes before the log, for superblocks.
pub(super) const LOG_STARTS: u64 = 64 * 1024;
/// Writes of a record, at most: what a header has room for.
pub(super) const WRITES_MAX: usize = (HEADER - FIELDS) / ENTRY;
/// Deletions of a record, at most.
pub(super) const DELETIONS_MAX: usize = (HEADER - FIELDS) / 8;
/// Links of a superblock, at most.
pub(super) const LINKS_MAX: usize = 13;
/// Deletions of a superblock, at most.
pub(super) const NOTES_MAX: usize = (SUPERBLOCK - SUPER_FIELDS - LINKS_MAX * 32) / 8;

/// Bytes of the fields of a header before its entries.
const FIELDS: usize = 72;
/// Bytes of a write in a header.
const ENTRY: usize = 24;
const SUPER_FIELDS: usize = 96;
/// Where the deletions of a superblock are.
const NOTES_AT: usize = SUPER_FIELDS + LINKS_MAX * 32;
const RECORD_MAGIC: u64 = u64::from_le_bytes(*b"AEROLOG1");
const SUPER_MAGIC: u64 = u64::from_le_bytes(*b"AEROSTO1");
/// Positions of a superblock are below it. Those above it that can be packed are for what is appended later: more than
/// any disk writes in a year.
const POSITION_MAX: u64 = 1 << (POSITION_BITS - 1);
/// Epochs and counters of superblocks are below it, so that the next ones are numbers, too.
const COUNTED_MAX: u64 = 1 << 63;
/// Where the checksum of a header or a superblock is.
const SUM_AT: usize = 68;
/// Where the checksum of a record's data is.
const DATA_SUM_AT: usize = 64;

/// A header, as it is on the store.
pub type HeaderBytes = [u8; HEADER];
/// A superblock, as it is on the store.
pub type SuperblockBytes = [u8; SUPERBLOCK];

/// A write of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stored {
    pub(super) version: u64,
    /// Stable number of the volume, given by control.
    pub(super) key: u32,
    /// First byte in the volume.
    pub(super) start: u64,
    /// Bytes, less than 16 MiB.
    pub(super) len: u32,
    /// Stores that have it if it was acknowledged.
    pub(super) copies: u8,
}

/// What a record is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Data of writes.
    Writes,
    /// Versions of this store that are deleted.
    Deletions,
    /// Nothing, up to the end of the log.
    Padding,
    /// Versions that are deleted, wherever they are: of stores that were away.
    Remembered,
}

/// The fields of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) log: u128,
    pub(super) epoch: u64,
    /// Number of the record, from the first one of the log on.
    pub(super) number: u64,
    /// Its position.
    pub(super) at: u64,
    /// Bytes with the header.
    pub(super) bytes: u64,
    pub(super) kind: Kind,
    pub(super) count: usize,
    /// CRC-32C of the data.
    pub(super) data_sum: u32,
}

/// CRC-32C of data whose parts follow one another.
#[derive(Debug)]
pub struct Sum(crc_fast::Digest);

impl Default for Sum {
    fn default() -> Self {
        Sum(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi))
    }
}

impl Sum {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes that were added.
    pub fn value(&self) -> u32 {
        self.0.finalize() as u32
    }
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("N bytes")
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(get(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(get(bytes, at))
}

/// The checksum of a header or a superblock, without the field that has it.
fn own_sum(bytes: &[u8]) -> u32 {
    let mut sum = Sum::default();
    sum.add(&bytes[..SUM_AT]);
    sum.add(&bytes[SUM_AT + 4..]);
    sum.value()
}

impl Header {
    fn encode(&self, bytes: &mut HeaderBytes) {
        bytes.fill(0);
        put(bytes, 0, RECORD_MAGIC.to_le_bytes());
        put(bytes, 8, self.log.to_le_bytes());
        put(bytes, 24, self.epoch.to_le_bytes());
        put(bytes, 32, self.number.to_le_bytes());
        put(bytes, 40, self.at.to_le_bytes());
        put(bytes, 48, self.bytes.to_le_bytes());
        put(bytes, 56, (self.kind as u32).to_le_bytes());
        put(bytes, 60, (self.count as u32).to_le_bytes());
        put(bytes, DATA_SUM_AT, self.data_sum.to_le_bytes());
    }

    /// The fields of a header that has its form and its checksum.
    pub(super) fn decode(bytes: &HeaderBytes) -> Option<Header> {
        let kind = match u32_at(bytes, 56) {
            0 => Kind::Writes,
            1 => Kind::Deletions,
            2 => Kind::Padding,
            3 => Kind::Remembered,
            _ => return None,
        };
        let header = Header {
            log: u128::from_le_bytes(get(bytes, 8)),
            epoch: u64_at(bytes, 24),
            number: u64_at(bytes, 32),
            at: u64_at(bytes, 40),
            bytes: u64_at(bytes, 48),
            kind,
            count: u32_at(bytes, 60) as usize,
            data_sum: u32_at(bytes, DATA_SUM_AT),
        };
        let count_max = [WRITES_MAX, DELETIONS_MAX, 0, DELETIONS_MAX][kind as usize];
        let is_valid = u64_at(bytes, 0) == RECORD_MAGIC
            && u32_at(bytes, SUM_AT) == own_sum(bytes)
            && header.count <= count_max
            && header.bytes >= HEADER as u64
            && header.bytes.is_multiple_of(SECTOR);
        is_valid.then_some(header)
    }
}

/// Writes the header of a record of writes. The checksum of the data is added by [`seal`].
pub(super) fn encode_writes(header: Header, writes: impl Iterator<Item = Stored>, bytes: &mut HeaderBytes) {
    header.encode(bytes);
    for (at, stored) in (FIELDS..).step_by(ENTRY).zip(writes) {
        put(bytes, at, stored.version.to_le_bytes());
        put(bytes, at + 8, stored.start.to_le_bytes());
        put(bytes, at + 16, (stored.len | u32::from(stored.copies) << 24).to_le_bytes());
        put(bytes, at + 20, stored.key.to_le_bytes());
    }
}

/// Writes the header of a record of deletions, or of padding.
pub(super) fn encode_deletions(header: Header, deleted: &[u64], bytes: &mut HeaderBytes) {
    header.encode(bytes);
    for (at, version) in (FIELDS..).step_by(8).zip(deleted) {
        put(bytes, at, version.to_le_bytes());
    }
    seal(bytes, header.data_sum);
}

/// Completes a header: the checksum of its data, and then its own.
pub(super) fn seal(bytes: &mut HeaderBytes, data_sum: u32) {
    put(bytes, DATA_SUM_AT, data_sum.to_le_bytes());
    let sum = own_sum(bytes);
    put(bytes, SUM_AT, sum.to_le_bytes());
}

/// The writes of a record.
pub(super) fn writes(bytes: &HeaderBytes, count: usize) -> impl Iterator<Item = Stored> + '_ {
    (FIELDS..).step_by(ENTRY).take(count).map(|at| Stored {
        version: u64_at(bytes, at),
        start: u64_at(bytes, at + 8),
        len: u32_at(bytes, at + 16) & 0xff_ffff,
        copies: bytes[at + 19],
        key: u32_at(bytes, at + 20),
    })
}

/// The versions that a record deletes.
pub(super) fn deletions(bytes: &HeaderBytes, count: usize) -> impl Iterator<Item = u64> + '_ {
    (FIELDS..).step_by(8).take(count).map(|at| u64_at(bytes, at))
}

/// The fields of a superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Superblock {
    pub(super) log: u128,
    /// Bytes of the log.
    pub(super) capacity: u64,
    /// The epoch of the process that wrote it.
    pub(super) epoch: u64,
    /// Number of this superblock.
    pub(super) counter: u64,
    /// Position of the oldest record that is still needed, or the end of the log, and the number of the record there.
    pub(super) tail: u64,
    pub(super) tail_number: u64,
    /// The epochs that have records from the tail on, oldest first.
    pub(super) links: Vec<Link>,
    /// Deletions for which the log had no room: versions of this store, and versions wherever they are.
    pub(super) deleted: Vec<u64>,
    pub(super) remembered: Vec<u64>,
}

impl Superblock {
    /// Its first byte on the store.
    pub(super) fn place(&self) -> u64 {
        ((self.epoch >> EPOCH_BITS) % 4 * 4 + self.counter % 4) * SUPERBLOCK as u64
    }

    pub(super) fn encode(&self) -> SuperblockBytes {
        let mut bytes = [0; SUPERBLOCK];
        put(&mut bytes, 0, SUPER_MAGIC.to_le_bytes());
        put(&mut bytes, 8, self.log.to_le_bytes());
        put(&mut bytes, 24, self.capacity.to_le_bytes());
        put(&mut bytes, 32, self.counter.to_le_bytes());
        put(&mut bytes, 40, self.tail.to_le_bytes());
        put(&mut bytes, 48, self.tail_number.to_le_bytes());
        put(&mut bytes, 56, (self.links.len() as u32).to_le_bytes());
        put(&mut bytes, 60, (self.deleted.len() as u32).to_le_bytes());
        put(&mut bytes, 80, (self.remembered.len() as u32).to_le_bytes());
        put(&mut bytes, 72, self.epoch.to_le_bytes());
        for (at, link) in (SUPER_FIELDS..).step_by(32).zip(&self.links) {
            put(&mut bytes, at, link.epoch.to_le_bytes());
            put(&mut bytes, at + 8, link.start.to_le_bytes());
            put(&mut bytes, at + 16, link.number.to_le_bytes());
            put(&mut bytes, at + 24, link.end.to_le_bytes());
        }
        for (at, number) in (NOTES_AT..).step_by(8).zip(self.deleted.iter().chain(&self.remembered)) {
            put(&mut bytes, at, number.to_le_bytes());
        }
        let sum = own_sum(&bytes);
        put(&mut bytes, SUM_AT, sum.to_le_bytes());
        bytes
    }

    /// Whether the client of a log can have written it. The server of a store need not be ours, and may return
    /// anything.
    fn is_possible(&self) -> bool {
        let is_position = |at: u64| at < POSITION_MAX && at.is_multiple_of(SECTOR);
        // A record has a sector at least.
        let is_start = |at: u64, number: u64| is_position(at) && number <= at / SECTOR;
        let (mut behind, count) = (0, self.links.len());
        let are_ascending = (1..).zip(&self.links).all(|(nth, link)| {
            let is_behind = behind <= link.start && link.start <= link.end;
            behind = link.end;
            let is_end = is_position(link.end) || nth == count && link.end == u64::MAX;
            is_behind && is_end && is_start(link.start, link.number)
        });
        are_ascending
            && is_start(self.tail, self.tail_number)
            && self.links.first().is_none_or(|first| self.tail <= first.end)
            && self.epoch.max(self.counter) < COUNTED_MAX
    }

    /// The superblock of a place; `None` if it has none, only a part of one, or one that no client writes.
    pub(super) fn decode(bytes: &SuperblockBytes) -> Option<Superblock> {
        let [count, deleted, remembered] = [56, 60, 80].map(|at| u32_at(bytes, at) as usize);
        let are_possible = count <= LINKS_MAX && deleted.saturating_add(remembered) <= NOTES_MAX;
        let is_possible = u64_at(bytes, 0) == SUPER_MAGIC && are_possible;
        if !is_possible || u32_at(bytes, SUM_AT) != own_sum(bytes) {
            return None;
        }
        let link = |at| Link {
            epoch: u64_at(bytes, at),
            start: u64_at(bytes, at + 8),
            number: u64_at(bytes, at + 16),
            end: u64_at(bytes, at + 24),
        };
        let mut numbers = (NOTES_AT..SUPERBLOCK - 7).step_by(8).map(|at| u64_at(bytes, at));
        let superblock = Superblock {
            log: u128::from_le_bytes(get(bytes, 8)),
            capacity: u64_at(bytes, 24),
            counter: u64_at(bytes, 32),
            epoch: u64_at(bytes, 72),
            tail: u64_at(bytes, 40),
            tail_number: u64_at(bytes, 48),
            links: (SUPER_FIELDS..).step_by(32).take(count).map(link).collect(),
            deleted: numbers.by_ref().take(deleted).collect(),
            remembered: numbers.take(remembered).collect(),
        };
        superblock.is_possible().then_some(superblock)
    }
}

const _: () = assert!(SUPERBLOCKS * SUPERBLOCK as u64 <= LOG_STARTS && LOG_STARTS.is_multiple_of(SECTOR));
const _: () = assert!(WRITES_MAX >= 18 && DELETIONS_MAX >= 55 && NOTES_MAX >= 400);

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: Kind, count: usize) -> Header {
        Header { log: 7 << 100, epoch: 3, number: 9, at: 1 << 40, bytes: 1024, kind, count, data_sum: 0 }
    }

    #[test]
    fn headers_are_read_as_they_were_written() {
        let all: Vec<_> = (0..WRITES_MAX as u64)
            .map(|i| Stored {
                version: (1 << 63) + i * 3,
                key: i as u32,
                start: i << 33,
                len: 512 + i as u32,
                copies: 2,
            })
            .collect();
        let (mut bytes, header) = ([0xff; HEADER], header(Kind::Writes, all.len()));
        encode_writes(header, all.iter().copied(), &mut bytes);
        assert_eq!(Header::decode(&bytes), None, "it is not sealed");
        seal(&mut bytes, 77);
        assert_eq!(Header::decode(&bytes), Some(Header { data_sum: 77, ..header }));
        assert_eq!(writes(&bytes, all.len()).collect::<Vec<_>>(), all);
        let deleted: Vec<_> = (0..DELETIONS_MAX as u64).map(|i| i * i).collect();
        let header = Header { kind: Kind::Deletions, count: deleted.len(), ..header };
        encode_deletions(header, &deleted, &mut bytes);
        assert_eq!(Header::decode(&bytes), Some(header));
        assert_eq!(deletions(&bytes, deleted.len()).collect::<Vec<_>>(), deleted);
    }

    #[test]
    fn no_changed_bit_goes_unnoticed() {
        let mut bytes = [0; HEADER];
        encode_deletions(header(Kind::Deletions, 2), &[5, 6], &mut bytes);
        let links = vec![
            Link { epoch: 1, start: 0, number: 0, end: 512 },
            Link { epoch: 2, start: 8192, number: 1, end: u64::MAX },
        ];
        let superblock = Superblock {
            log: 1,
            capacity: 1 << 20,
            epoch: 9,
            counter: 5,
            tail: 512,
            tail_number: 1,
            links,
            deleted: vec![8, 1 << 63],
            remembered: vec![9],
        };
        let mut superbytes = superblock.encode();
        assert_eq!(Superblock::decode(&superbytes), Some(superblock));
        for bit in 0..HEADER * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for bit in 0..SUPERBLOCK * 8 {
            superbytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Superblock::decode(&superbytes), None, "bit {bit}");
            superbytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn superblocks_that_no_client_writes_are_none() {
        let link = |start, end| Link { epoch: 1, start, number: 0, end };
        let good = Superblock {
            log: 1,
            capacity: 1 << 20,
            epoch: 9,
            counter: 5,
            tail: 1024,
            tail_number: 2,
            links: vec![link(512, 4096), link(8192, u64::MAX)],
            deleted: Vec::new(),
            remembered: Vec::new(),
        };
        let is_taken = |superblock: &Superblock| Superblock::decode(&superblock.encode()).is_some();
        assert!(is_taken(&good));
        let links = |links: &[Link]| Superblock { links: links.to_vec(), ..good.clone() };
        let end = u64::MAX;
        for bad in [
            Superblock { tail: 1 << 57, ..links(&[]) },
            Superblock { tail: POSITION_MAX, ..links(&[]) },
            Superblock { tail: 1025, ..good.clone() },
            Superblock { tail: 4608, ..good.clone() },
            Superblock { tail_number: 3, ..good.clone() },
            Superblock { epoch: u64::MAX, ..good.clone() },
            Superblock { counter: u64::MAX, ..good.clone() },
            links(&[link(512, 4096), link(8200, end)]),
            links(&[link(512, 4100), link(8192, end)]),
            links(&[link(512, 4096), link(3584, end)]),
            links(&[link(4096, 512), link(8192, end)]),
            links(&[link(512, end), link(8192, end)]),
            links(&[link(512, 4096), link(1 << 57, end)]),
            links(&[link(512, 4096), link(8192, 1 << 57)]),
            links(&[link(512, 4096), Link { number: 17, ..link(8192, end) }]),
        ] {
            assert!(!is_taken(&bad), "{bad:?}");
        }
    }

    #[test]
    fn checksums_are_crc_32c() {
        let mut sum = Sum::default();
        sum.add(b"1234");
        sum.add(b"56789");
        assert_eq!(sum.value(), 0xe306_9283, "the check value of CRC-32C");
    }
}
