//! A block: 4 KiB of a volume that is cached, at least in part, or being read.

use crate::disk::durability::Generation;
use crate::eviction::list::{Linked, Links, NONE};
use crate::eviction::{ORDER, Placed};
use crate::ids::{FrameId, VolumeId};
use crate::units::SectorMask;

/// Number of a volume's list of dirty blocks that can be written, oldest first.
pub(crate) const DIRTY: usize = 1;
/// Number of a volume's list of all its blocks.
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

/// The state of 4 KiB of a volume. Masks have a bit for each 512-byte sector.
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
    /// The frame with the valid sectors; `FrameId::ZERO` while no sector is valid.
    pub(crate) frame: FrameId,
    /// The frame that a device read fills; `FrameId::ZERO` while no read is in flight.
    pub(crate) fill: FrameId,
    pub(crate) links: [Links; 3],
    /// Pieces that wait for the device read, in order of arrival.
    pub(crate) fill_queue: Queue,
    /// Pieces that wait until sectors are on the medium.
    pub(crate) write_queue: Queue,
    /// When the block became dirty: milliseconds (wrapping) on its tenant's clock.
    pub(crate) dirty_since_ms: u32,
    /// The flush epoch of `dirty`.
    pub(crate) dirty_epoch: u32,
    /// The flush epoch of `writing`.
    pub(crate) writing_epoch: u32,
    /// The generation ([`crate::disk::durability`]) in which `unsynced` was written. If nothing is unsynced, that in
    /// which the content came from an upstream that takes demotions (`demote.rs`).
    pub(crate) written_in: Generation,
    /// Sectors whose content is in the frame.
    pub(crate) valid: SectorMask,
    /// Sectors that are acknowledged, not on the device and not being written.
    pub(crate) dirty: SectorMask,
    /// Sectors being written to the device, from this frame or from one that it replaced.
    pub(crate) writing: SectorMask,
    /// Sectors of this write-back that failed.
    pub(crate) failed: SectorMask,
    /// Sectors that were written to the device, but perhaps only to its volatile cache.
    pub(crate) unsynced: SectorMask,
    /// How many writes of the block in a row succeeded but were distrusted.
    pub(crate) distrusted: u8,
    /// The block is in the eviction order of its partition.
    pub(crate) in_order: bool,
    /// The mark of the eviction policy: the block was used again since the policy last looked at it.
    pub(crate) visited: bool,
    pub(crate) in_dirty: bool,
    /// How it came here, until a client requests it.
    pub(crate) source: Source,
    /// What is wrong with its write-back.
    pub(crate) trouble: Trouble,
    /// It left the eviction order because its target may still lose it. It re-enters after a flush.
    pub(crate) kept: bool,
}

/// How a block came into the cache, until a client requests it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A client has requested or written it.
    Request,
    /// It was or is being read ahead.
    Prefetch,
    /// The client's own cache has evicted it.
    Demotion,
}

/// What is wrong with the write-back of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    None,
    /// The last one failed.
    Failing,
    /// The content that is being written was given up: if the write fails, the content is forgotten.
    GivenUp,
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
            source: Source::Request,
            trouble: Trouble::None,
            kept: false,
        }
    }
}

impl Block {
    /// A device read of the block is in flight.
    pub(crate) fn filling(&self) -> bool {
        self.fill != FrameId::ZERO
    }

    /// It has content that the device may not have.
    pub(crate) fn unwritten(&self) -> bool {
        self.dirty | self.writing != 0
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.trouble == Trouble::Failing
    }

    pub(crate) fn is_given_up(&self) -> bool {
        self.trouble == Trouble::GivenUp
    }

    /// No device request for the block is in flight, and no piece waits for it.
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

/// A partition pays for this state of each of its blocks: 2 % of its memory.
const _: () = assert!(size_of::<Block>() == 88, "one byte more would cost eight, because of the alignment");
const _: () = assert!(ORDER < DIRTY && DIRTY < ALL && ALL < 3, "a list has links of its own");
