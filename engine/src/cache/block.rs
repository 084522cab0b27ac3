//! A block: 4 KiB of a volume that the cache knows something about.

use super::eviction::{ORDER, Placed};
use super::list::{Linked, Links, NONE};
use super::pool::FrameId;
use crate::disk::VolumeId;
use crate::disk::durability::Generation;
use crate::units::SectorMask;

/// A block's number in the cache, valid while it is there.
pub(crate) type BlockId = u32;

/// The list of a volume, of blocks with dirt to be written, oldest first.
pub(crate) const DIRTY: usize = 1;
/// The list of a volume, of all its blocks.
pub(crate) const ALL: usize = 2;

/// A list of pieces that wait for a block, oldest first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    pub(crate) head: u32,
    pub(crate) tail: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Queue { head: NONE, tail: NONE }
    }
}

impl Queue {
    pub(crate) fn is_empty(self) -> bool {
        self.head == NONE
    }
}

/// What is known of 4 KiB of a volume. Masks have a bit for each 512-byte sector.
///
/// ```text
///   absent ──fill─► filling ─► clean ──write──► dirty ──issue──► writing ──► clean (not yet synced) ──flush──► synced
///                                  ▲                ▲                 │
///                                  └── evicted      └──── failed ─────┘
/// ```
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) number: u64,
    pub(crate) volume: VolumeId,
    /// Where the valid sectors are; `FrameId::ZERO` while none is.
    pub(crate) frame: FrameId,
    /// Where the device is reading the rest to; `FrameId::ZERO` when it is not.
    pub(crate) fill: FrameId,
    pub(crate) links: [Links; 3],
    /// Pieces that wait for the fill, in order of arrival.
    pub(crate) fill_queue: Queue,
    /// Pieces that wait for sectors to be on the medium.
    pub(crate) write_queue: Queue,
    /// Milliseconds (wrapping) at which it became dirty.
    pub(crate) dirty_since_ms: u32,
    /// The flush epoch of `dirty`.
    pub(crate) dirty_epoch: u32,
    /// The flush epoch of `writing`.
    pub(crate) writing_epoch: u32,
    /// The generation ([`crate::disk::durability`]) in which `unsynced` was written.
    pub(crate) written_in: Generation,
    /// Sectors whose content the frame has.
    pub(crate) valid: SectorMask,
    /// Sectors acknowledged, not on the device, not being written.
    pub(crate) dirty: SectorMask,
    /// Sectors being written to the device, from this frame or from one that it replaced.
    pub(crate) writing: SectorMask,
    /// Of those that were being written, the ones that failed.
    pub(crate) failed: SectorMask,
    /// Sectors written to the device but perhaps only into its volatile cache.
    pub(crate) unsynced: SectorMask,
    /// How often in a row a write of it succeeded and was distrusted.
    pub(crate) distrusted: u8,
    /// It stands in the order in which its partition evicts.
    pub(crate) in_order: bool,
    /// The eviction policy's: it was asked for again since it was looked at last.
    pub(crate) visited: bool,
    pub(crate) in_dirty: bool,
    /// It was read ahead, or is being, and nobody has asked for it.
    pub(crate) prefetched: bool,
    /// Its last write-back failed.
    pub(crate) failing: bool,
    /// What is being written was given up: if that fails, it is forgotten.
    pub(crate) given_up: bool,
}

impl Default for Block {
    fn default() -> Self {
        Block {
            number: 0,
            volume: VolumeId(0),
            frame: FrameId::ZERO,
            fill: FrameId::ZERO,
            links: Default::default(),
            fill_queue: Queue::default(),
            write_queue: Queue::default(),
            dirty_since_ms: 0,
            dirty_epoch: 0,
            writing_epoch: 0,
            written_in: 0,
            valid: 0,
            dirty: 0,
            writing: 0,
            failed: 0,
            unsynced: 0,
            distrusted: 0,
            in_order: false,
            visited: false,
            in_dirty: false,
            prefetched: false,
            failing: false,
            given_up: false,
        }
    }
}

impl Block {
    /// A device read for it is in flight.
    pub(crate) fn filling(&self) -> bool {
        self.fill != FrameId::ZERO
    }

    /// It has content that the device does not have.
    pub(crate) fn unwritten(&self) -> bool {
        self.dirty | self.writing != 0
    }

    /// Nothing is in flight for it and nobody waits for it.
    pub(crate) fn quiet(&self) -> bool {
        !self.filling() && self.writing == 0 && self.fill_queue.is_empty() && self.write_queue.is_empty()
    }
}

impl<const K: usize> Linked<K> for Block {
    fn links(&self) -> &Links {
        &self.links[K]
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links[K]
    }
}

impl Placed for Block {
    fn visited(&mut self) -> &mut bool {
        &mut self.visited
    }
}

const _: () = assert!(ORDER < DIRTY && DIRTY < ALL && ALL < 3, "a list has links of its own");
