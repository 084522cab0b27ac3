//! The versions, by their places in a table, in little memory: there may be millions.
//!
//! ```text
//!   version    number · place of the first copy · range · volume · live, stores: 32 bytes
//!   chunk      1024 versions, and 8 bytes for each if any of them has a second copy
//!   moving     by place: what only versions have that are being written or deleted
//! ```
//!
//! Chunks stay where they are, so a table that grows copies nothing and has no spare half. They are given back when no
//! version is left. All writes are whole sectors ([`is_possible`]), so a range is packed into 8 bytes.

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::log::RECORD_BYTES_MAX;
use super::ranges::Id;
use super::record::HEADER;
use super::store::StoreId;
use super::{COPIES_MAX, WRITE_BYTES_MAX};
use crate::ids::{IoId, VolumeKey};
use crate::units::{SECTOR, VOLUME_BYTES_MAX};

/// No copy.
pub(super) const NOWHERE: u64 = u64::MAX;
/// Bits of a position in a log; the others of a place are the store.
pub(super) const POSITION_BITS: u32 = 56;
/// Bits of a number of sectors of a version; the others of its range are the first sector.
const SECTORS_BITS: u32 = 10;
/// Sectors of a version, at most.
const SECTORS_MAX: u64 = (1 << SECTORS_BITS) - 1;
/// Bytes of a version, at most.
pub(super) const BYTES_MAX: u64 = SECTORS_MAX * SECTOR;
/// Most significant bit of `live`: the version never took effect.
const FAILED: u16 = 1 << 15;
/// Versions of a chunk: 32 KiB.
const CHUNK: usize = 1024;
/// No place in the table.
const NONE: Id = Id::MAX;
/// The volume of a place that is free. Keys of volumes are small.
const FREE: VolumeKey = VolumeKey(u32::MAX);

pub(super) fn place(store: StoreId, at: u64) -> u64 {
    u64::from(store.0) << POSITION_BITS | at
}

pub(super) fn of_place(place: u64) -> (StoreId, u64) {
    (StoreId((place >> POSITION_BITS) as u8), place & ((1 << POSITION_BITS) - 1))
}

/// Whether this can be the range of a write. Empty ranges cannot: a search of the range map would not get past one.
pub(super) fn is_possible(start: u64, bytes: u64) -> bool {
    let is_whole = start.is_multiple_of(SECTOR) && bytes.is_multiple_of(SECTOR);
    is_whole && (1..=BYTES_MAX).contains(&bytes) && start <= VOLUME_BYTES_MAX - bytes
}

/// A write that is, or may be, in stores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Version {
    pub(super) number: u64,
    /// Of its first copy. Of a free place: the next free one.
    place: u64,
    /// First sector, and number of sectors.
    range: u64,
    volume: u32,
    /// Stores that may have it.
    pub(super) stores: u16,
    /// Sectors that are the newest content and not home, and [`FAILED`].
    live: u16,
}

impl Version {
    /// A version without copies.
    pub(super) fn new(number: u64, volume: VolumeKey, start: u64, len: u32) -> Version {
        assert!(is_possible(start, u64::from(len)), "{len} bytes from {start} on are not whole sectors");
        let range = ((start / SECTOR) << SECTORS_BITS) + u64::from(len) / SECTOR;
        Version { number, place: NOWHERE, range, volume: volume.0, stores: 0, live: 0 }
    }

    pub(super) fn volume(&self) -> VolumeKey {
        VolumeKey(self.volume)
    }

    pub(super) fn start(&self) -> u64 {
        (self.range >> SECTORS_BITS) * SECTOR
    }

    pub(super) fn len(&self) -> u64 {
        (self.range & SECTORS_MAX) * SECTOR
    }

    pub(super) fn end(&self) -> u64 {
        self.start() + self.len()
    }

    /// Bytes that are the newest content and not home.
    pub(super) fn live(&self) -> u64 {
        u64::from(self.live & !FAILED) * SECTOR
    }

    pub(super) fn set_live(&mut self, bytes: u64) {
        debug_assert!(bytes.is_multiple_of(SECTOR) && bytes <= self.len());
        self.live = self.live & FAILED | (bytes / SECTOR) as u16;
    }

    /// It never took effect.
    pub(super) fn is_failed(&self) -> bool {
        self.live & FAILED != 0
    }

    pub(super) fn fail(&mut self) {
        self.live |= FAILED;
    }
}

/// The places of the data of a version: store and position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Places([u64; COPIES_MAX]);

impl Places {
    pub(super) fn iter(&self) -> impl Iterator<Item = (StoreId, u64)> + Clone {
        self.0.into_iter().filter(|&place| place != NOWHERE).map(of_place)
    }

    /// The stores that have one.
    pub(super) fn stores(&self) -> u16 {
        self.iter().fold(0, |mask, (store, _)| mask | store.bit())
    }

    pub(super) fn on(&self, store: StoreId) -> Option<u64> {
        self.iter().find(|&(on, _)| on == store).map(|(_, at)| at)
    }

    pub(super) fn are_all(&self) -> bool {
        !self.0.contains(&NOWHERE)
    }
}

/// What only a version has that is on its way to stores, or on its way out of them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Moving {
    /// The write whose data it has, until it is answered.
    pub(super) io: Option<IoId>,
    /// Copies that are not acknowledged.
    pub(super) waiting: u8,
    /// Stores whose deletion is on its way.
    pub(super) deleting: u16,
    /// Stores that shall remember its deletion for those that are away, and those that do.
    pub(super) remembering: u16,
    pub(super) remembered: u16,
}

#[derive(Debug)]
struct Chunk {
    versions: Box<[Version]>,
    /// The places of second copies; empty if no version has had one.
    seconds: Box<[u64]>,
}

/// All versions of the client.
#[derive(Debug)]
pub(super) struct Versions {
    chunks: Vec<Chunk>,
    /// Places that have been in use.
    past: Id,
    /// Versions that there are.
    count: u32,
    /// The first free place.
    free: Id,
    moving: HashMap<Id, Moving, FixedState>,
}

impl Versions {
    pub(super) fn new() -> Versions {
        let moving = HashMap::with_hasher(FixedState::with_seed(0));
        Versions { chunks: Vec::new(), past: 0, count: 0, free: NONE, moving }
    }

    /// Adds a version; returns its place.
    pub(super) fn add(&mut self, version: Version) -> Id {
        self.count += 1;
        let id = self.free;
        if id != NONE {
            self.free = self[id].place as Id;
            self[id] = version;
            return id;
        }
        let id = self.past;
        self.past += 1;
        if id as usize == self.chunks.len() * CHUNK {
            let versions = vec![version; CHUNK].into_boxed_slice();
            self.chunks.push(Chunk { versions, seconds: Box::default() });
        }
        self[id] = version;
        id
    }

    /// Frees the place of a version.
    pub(super) fn remove(&mut self, id: Id) {
        debug_assert!(self[id].volume() != FREE, "place {id} is freed twice");
        self.moving.remove(&id);
        if let Some(second) = self.second_mut(id) {
            *second = NOWHERE;
        }
        let place = u64::from(self.free);
        self[id] = Version { number: 0, place, range: 0, volume: FREE.0, stores: 0, live: 0 };
        self.free = id;
        self.count -= 1;
        if self.count == 0 {
            // The first chunk stays, for writes that are off-loaded one at a time.
            self.chunks.truncate(1);
            (self.past, self.free) = (0, NONE);
        }
    }

    fn second_mut(&mut self, id: Id) -> Option<&mut u64> {
        self.chunks[id as usize / CHUNK].seconds.get_mut(id as usize % CHUNK)
    }

    /// Where the data of a version is.
    pub(super) fn places(&self, id: Id) -> Places {
        let second = self.chunks[id as usize / CHUNK].seconds.get(id as usize % CHUNK);
        Places([self[id].place, second.copied().unwrap_or(NOWHERE)])
    }

    /// Adds a copy to a version that has fewer than it may have.
    pub(super) fn add_place(&mut self, id: Id, store: StoreId, at: u64) {
        let places = self.places(id);
        assert!(self[id].volume() != FREE && !places.are_all(), "a version has more than {COPIES_MAX} copies");
        if places.0[0] == NOWHERE {
            return self[id].place = place(store, at);
        }
        let seconds = &mut self.chunks[id as usize / CHUNK].seconds;
        if seconds.is_empty() {
            *seconds = vec![NOWHERE; CHUNK].into_boxed_slice();
        }
        seconds[id as usize % CHUNK] = place(store, at);
    }

    /// What a version has while it is on its way; the default at other times.
    pub(super) fn moving(&self, id: Id) -> Moving {
        self.moving.get(&id).copied().unwrap_or_default()
    }

    /// Changes that.
    pub(super) fn change<T>(&mut self, id: Id, change: impl FnOnce(&mut Moving) -> T) -> T {
        let moving = self.moving.entry(id).or_default();
        let result = change(moving);
        if *moving == Moving::default() {
            self.moving.remove(&id);
            if self.moving.is_empty() && self.moving.capacity() > CHUNK {
                self.moving.shrink_to_fit();
            }
        }
        result
    }
}

impl std::ops::Index<Id> for Versions {
    type Output = Version;
    fn index(&self, id: Id) -> &Version {
        &self.chunks[id as usize / CHUNK].versions[id as usize % CHUNK]
    }
}

impl std::ops::IndexMut<Id> for Versions {
    fn index_mut(&mut self, id: Id) -> &mut Version {
        &mut self.chunks[id as usize / CHUNK].versions[id as usize % CHUNK]
    }
}

const _: () = assert!(size_of::<Version>() == 32 && SECTORS_MAX < FAILED as u64);
const _: () = assert!(VOLUME_BYTES_MAX / SECTOR < 1 << (u64::BITS - SECTORS_BITS));
const _: () = assert!(WRITE_BYTES_MAX <= SECTORS_MAX * SECTOR);
const _: () = assert!(RECORD_BYTES_MAX - HEADER as u64 <= SECTORS_MAX * SECTOR);
