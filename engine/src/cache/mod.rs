//! The cache of one disk: frames, the blocks in them, and one partition for each tenant.
//!
//! A partition holds the frames of one tenant and evicts only its own blocks. Content enters a block in one step,
//! always in a new frame ([`Cache::write`], [`Cache::end_fill`]). Valid sectors of the old frame that the new one lacks
//! are copied. So a frame that other requests can see never changes. The price is a copy of up to 3.5 KiB when a part
//! of a block is overwritten.

mod block;
mod demote;
mod ledger;
mod partition;
mod pool;
mod writeback;

pub use crate::eviction::Policy as EvictionPolicy;
pub(crate) use crate::eviction::list::NONE;
pub(crate) use block::{Block, Queue, Source};
pub(crate) use demote::{Demoting, Evicted};
pub(crate) use ledger::Ledger;
pub(crate) use partition::{FRAMES_MIN, Partition, Reads};
pub(crate) use writeback::{Reach, Wanted};

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::disk::durability::Durability;
use crate::eviction::list::List;
use crate::ids::{BlockId, FrameId, TenantId, VolumeId};
use crate::slab::Table;
use crate::units::{BLOCK, MILLISECOND, Nanos, SECTOR, SECTORS_PER_BLOCK, SectorMask, sectors_touched};
use block::{ALL, DIRTY};
use pool::{Left, POOL_BYTES_PER_FRAME, Pool};

/// Bookkeeping bytes per frame: a block, its entry in the index (at most 4.6 slots of five bytes), and the pool's
/// bookkeeping.
pub(crate) const BYTES_PER_FRAME: u64 = size_of::<Block>() as u64 + 23 + POOL_BYTES_PER_FRAME;

/// Blocks of a region (4 MiB). A scan of a range skips regions without cached blocks.
const REGION_BLOCKS: u64 = 1024;
/// Counters of cached blocks by region, for each volume: 4 KiB of memory. Regions share a counter modulo this number,
/// so the counts are exact for volumes of up to 4 GiB, and for a working set that spans as much of a larger one.
const REGIONS: usize = 1024;

/// Neighbouring blocks that the index keeps together: as many as one probe of the table compares.
const INDEX_GROUP: u64 = 16;

fn region(number: u64) -> usize {
    (number / REGION_BLOCKS) as usize % REGIONS
}

/// The cache's state for one volume.
#[derive(Debug)]
pub(crate) struct CachedVolume {
    pub(crate) tenant: TenantId,
    /// The device accepts whole blocks only, so a block is dirty as a whole.
    pub(crate) whole_blocks: bool,
    dirty: List<DIRTY>,
    all: List<ALL>,
    /// How many blocks of `all` lie in each region of [`REGION_BLOCKS`]; regions share a counter modulo [`REGIONS`].
    regions: Box<[u32; REGIONS]>,
    pub(crate) ledger: Ledger,
    /// Blocks whose last write-back failed.
    pub(crate) failing: u32,
    /// Blocks that are dirty or being written.
    pub(crate) unwritten: u32,
    /// Blocks being written whose content was given up.
    pub(crate) given_up: u32,
    /// Numbers of the blocks with the mark `kept`, and of some that are not cached any more.
    kept: Vec<u64>,
    /// Blocks that were read ahead and then requested.
    pub(crate) prefetch_used: u64,
    /// Blocks that were read ahead and dropped or overwritten before a client requested them.
    pub(crate) prefetch_wasted: u64,
    /// What this cache evicts goes to the server of the volume.
    pub(crate) demoting: Option<Demoting>,
    /// Frames of evicted blocks of it that are on their way there.
    pub(crate) demoted: u32,
    /// Evicted blocks that were not sent because too many were on their way.
    pub(crate) undemoted: u64,
    /// Its client demotes: what the client has is evicted first.
    pub(crate) is_lower: bool,
    /// Demoted blocks that the client has read.
    pub(crate) demoted_used: u64,
}

impl CachedVolume {
    fn new(tenant: TenantId, whole_blocks: bool) -> Self {
        CachedVolume {
            tenant,
            whole_blocks,
            dirty: List::default(),
            all: List::default(),
            regions: Box::new([0; REGIONS]),
            ledger: Ledger::default(),
            failing: 0,
            unwritten: 0,
            given_up: 0,
            kept: Vec::new(),
            prefetch_used: 0,
            prefetch_wasted: 0,
            demoting: None,
            demoted: 0,
            undemoted: 0,
            is_lower: false,
            demoted_used: 0,
        }
    }
}

/// Takes what is to be done with the bytes of frames, in order; the driver does it before the next event.
pub(crate) trait ByteWork {
    /// Copy the bytes `start..end` of a frame to the same place of another one.
    fn copy(&mut self, from: FrameId, to: FrameId, start: u64, end: u64);
    /// Zero the bytes `start..end`.
    fn zero(&mut self, frame: FrameId, start: u64, end: u64);
}

/// Where the rest of a block comes from when a write covers only a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rest {
    /// From its valid sectors; others stay invalid.
    Cached,
    /// The block lies in a hole, so the rest is zeros.
    Zeros,
}

/// All blocks of one disk.
#[derive(Debug)]
pub(crate) struct Cache {
    pool: Pool,
    blocks: Vec<Block>,
    /// The free block that is used next, or [`NONE`]; its `number` is the one after it.
    free_block: BlockId,
    index: HashTable<BlockId>,
    hasher: FixedState,
    partitions: Table<TenantId, Partition>,
    volumes: Table<VolumeId, CachedVolume>,
    /// Which writes of these volumes a failed device flush could still lose.
    pub(crate) durability: Durability,
    /// The block that the search for retiring frames looked at last.
    retire_at: usize,
    /// What was evicted and goes to servers: the caller of [`Cache::take_frames`] and [`Cache::shed`] takes it.
    pub(crate) evicted: Vec<Evicted>,
}

impl Cache {
    /// A cache of `frames` frames, which can grow to `frames_max`.
    pub(crate) fn new(frames: u32, frames_max: u32, seed: u64) -> Cache {
        Cache {
            pool: Pool::new(frames, frames_max),
            blocks: Vec::with_capacity(frames_max as usize),
            free_block: NONE,
            // Twice the number of entries: when tombstones fill the table, it is rehashed in place and never grows.
            index: HashTable::with_capacity(2 * frames_max as usize),
            hasher: FixedState::with_seed(seed),
            partitions: Table::default(),
            volumes: Table::default(),
            durability: Durability::default(),
            retire_at: 0,
            evicted: Vec::new(),
        }
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id as usize]
    }

    pub(crate) fn block_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.blocks[id as usize]
    }

    pub(crate) fn volume(&self, volume: VolumeId) -> &CachedVolume {
        &self.volumes[volume]
    }

    pub(crate) fn volume_mut(&mut self, volume: VolumeId) -> &mut CachedVolume {
        &mut self.volumes[volume]
    }

    pub(crate) fn open_volume(&mut self, volume: VolumeId, tenant: TenantId, whole_blocks: bool, is_upstream: bool) {
        self.volumes.insert(volume, CachedVolume::new(tenant, whole_blocks));
        self.durability.opened(volume, is_upstream);
    }

    /// Drops up to `most` blocks of a volume; returns how many. No block of it may be in use.
    pub(crate) fn drop_some(&mut self, volume: VolumeId, most: u32) -> u32 {
        for dropped in 0..most {
            let Some(id) = self.volume(volume).all.front() else { return dropped };
            assert!(self.block(id).quiet(), "a volume is closed while a block of it is in use");
            self.drop_block(id);
        }
        most
    }

    /// Forgets a volume that has no cached blocks.
    pub(crate) fn close_volume(&mut self, volume: VolumeId) {
        assert_eq!(self.cached_blocks(volume), 0, "a volume is closed while it has blocks");
        self.volumes.remove(volume);
    }

    /// If the region of block `number` has no cached block: the first block behind the region.
    pub(crate) fn nothing_until(&self, volume: VolumeId, number: u64) -> Option<u64> {
        let is_empty = self.volume(volume).regions[region(number)] == 0;
        is_empty.then_some((number / REGION_BLOCKS + 1) * REGION_BLOCKS)
    }

    fn hash(&self, volume: VolumeId, number: u64) -> u64 {
        hash(&self.hasher, volume, number)
    }

    /// The block, if it is cached or being read.
    pub(crate) fn lookup(&self, volume: VolumeId, number: u64) -> Option<BlockId> {
        let hash = self.hash(volume, number);
        let is_it = |&id: &BlockId| {
            let block = &self.blocks[id as usize];
            block.number == number && block.volume == volume
        };
        self.index.find(hash, is_it).copied()
    }

    /// Reads the fields that serving the block will need, which brings them into the processor's cache: the valid
    /// sectors, and the reference count of the frame.
    pub(crate) fn glance(&self, volume: VolumeId, number: u64) -> Option<(SectorMask, u32)> {
        let block = self.block(self.lookup(volume, number)?);
        Some((block.valid, self.pool.references(block.frame)))
    }

    /// Adds a block that is not in the cache yet. It has no frame until a fill or a write gives it one.
    pub(crate) fn insert(&mut self, volume: VolumeId, number: u64) -> BlockId {
        debug_assert!(self.lookup(volume, number).is_none());
        let fresh = Block { volume, number, ..Block::default() };
        let id = match self.free_block {
            NONE => {
                self.blocks.push(fresh);
                (self.blocks.len() - 1) as BlockId
            }
            id => {
                let place = &mut self.blocks[id as usize];
                self.free_block = std::mem::replace(place, fresh).number as BlockId;
                id
            }
        };
        let hash = self.hash(volume, number);
        let (blocks, hasher) = (&self.blocks, &self.hasher);
        self.index.insert_unique(hash, id, |&id| {
            let block = &blocks[id as usize];
            self::hash(hasher, block.volume, block.number)
        });
        let volume = &mut self.volumes[volume];
        volume.all.push_back(&mut self.blocks, id);
        volume.regions[region(number)] += 1;
        id
    }

    /// Drops a block, with its dirty data if it has any. The block must not be in use.
    pub(crate) fn drop_block(&mut self, id: BlockId) {
        debug_assert!(self.block(id).quiet());
        self.forget_dirt(id);
        let Block { volume, number, frame, unsynced, written_in, .. } = *self.block(id);
        self.note_wasted(id);
        if self.blocks[id as usize].in_order {
            self.leave_order(id);
        }
        if unsynced != 0 {
            self.durability.evicted(volume, written_in);
        }
        let hash = self.hash(volume, number);
        self.index.find_entry(hash, |&other| other == id).expect("an entered block").remove();
        let volume = &mut self.volumes[volume];
        volume.all.remove(&mut self.blocks, id);
        volume.regions[region(number)] -= 1;
        // Before its release, which may return the block of the frame to the eviction order.
        self.blocks[id as usize].frame = FrameId::ZERO;
        self.release(frame);
        self.blocks[id as usize].number = std::mem::replace(&mut self.free_block, id).into();
    }

    /// Cached blocks of a volume.
    pub(crate) fn cached_blocks(&self, volume: VolumeId) -> u64 {
        u64::from(self.volume(volume).all.len())
    }

    /// A device read of the whole block into `frame` begins.
    pub(crate) fn begin_fill(&mut self, id: BlockId, frame: FrameId) {
        let block = self.block_mut(id);
        debug_assert!(!block.filling());
        block.fill = frame;
    }

    /// The same for read-ahead: no client has requested the block.
    pub(crate) fn begin_prefetch(&mut self, id: BlockId, frame: FrameId) {
        self.begin_fill(id, frame);
        self.block_mut(id).source = Source::Prefetch;
    }

    /// A client requests the block. If it was read ahead, the read-ahead counts as used, and so does a demotion.
    pub(crate) fn note_used(&mut self, id: BlockId) {
        let volume = self.block(id).volume;
        match std::mem::replace(&mut self.block_mut(id).source, Source::Request) {
            Source::Prefetch => self.volume_mut(volume).prefetch_used += 1,
            Source::Demotion => self.volume_mut(volume).demoted_used += 1,
            Source::Request => {}
        }
    }

    /// The block is dropped or overwritten. If it was read ahead and never requested, the read-ahead counts as wasted.
    fn note_wasted(&mut self, id: BlockId) {
        let Block { volume, valid, .. } = *self.block(id);
        let source = std::mem::replace(&mut self.block_mut(id).source, Source::Request);
        if source == Source::Prefetch && valid != 0 {
            self.volume_mut(volume).prefetch_wasted += 1;
        }
    }

    /// A device read has ended. If it succeeded, the sectors that were not valid take the content that was read.
    pub(crate) fn end_fill(&mut self, id: BlockId, good: bool, bytes: &mut impl ByteWork) {
        let fill = std::mem::replace(&mut self.block_mut(id).fill, FrameId::ZERO);
        if !good {
            self.release(fill);
            return;
        }
        let Block { frame, valid, .. } = *self.block(id);
        if !planted!(FillOverwritesDirty) {
            copy_sectors(valid, frame, fill, 0, 0, bytes);
        }
        self.replace_frame(id, fill);
        self.block_mut(id).valid = SectorMask::MAX;
        self.note_content(id, valid == 0);
        self.touch(id);
    }

    fn replace_frame(&mut self, id: BlockId, frame: FrameId) {
        let old = std::mem::replace(&mut self.block_mut(id).frame, frame);
        self.release(old);
    }

    /// Bytes `start..end` of a block take the content that `frame` has there. `frame` becomes the block's frame.
    pub(crate) fn write(
        &mut self,
        now: Nanos,
        id: BlockId,
        frame: FrameId,
        (start, end): (u64, u64),
        rest: Rest,
        bytes: &mut impl ByteWork,
    ) {
        let touched = sectors_touched(start, end);
        self.note_wasted(id);
        let Block { frame: old, valid, volume, .. } = *self.block(id);
        if planted!(FrameChangedWhileWritten) && old != FrameId::ZERO {
            bytes.copy(frame, old, start, end);
            self.release(frame);
        } else {
            match rest {
                Rest::Cached => copy_sectors(valid, old, frame, start, end, bytes),
                Rest::Zeros => {
                    debug_assert_eq!(valid, 0, "what is cached is not in a hole");
                    zero_around(frame, start, end, bytes);
                }
            }
            self.replace_frame(id, frame);
        }
        let known = if rest == Rest::Zeros { SectorMask::MAX } else { valid | touched };
        self.block_mut(id).valid = known;
        let whole_blocks = self.volume(volume).whole_blocks;
        debug_assert!(!whole_blocks || known == SectorMask::MAX);
        let mut dirt = if whole_blocks { SectorMask::MAX } else { touched };
        if planted!(SectorMaskWrong) && dirt.count_ones() > 1 {
            dirt &= !(1 << (7 - dirt.leading_zeros()));
        }
        self.mark_dirty(now, id, dirt);
        self.touch(id);
    }

    fn mark_dirty(&mut self, now: Nanos, id: BlockId, sectors: SectorMask) {
        let block = &mut self.blocks[id as usize];
        let volume = &mut self.volumes[block.volume];
        if !block.unwritten() {
            volume.unwritten += 1;
            self.partitions[volume.tenant].unwritten += 1;
        }
        if block.dirty == 0 {
            block.dirty_epoch = volume.ledger.dirtied();
            block.dirty_since_ms = (now / MILLISECOND) as u32;
        }
        block.dirty |= sectors;
        if !block.in_dirty && block.writing == 0 {
            block.in_dirty = true;
            volume.dirty.push_back(&mut self.blocks, id);
        }
    }

    /// Adds a reference to a frame.
    pub(crate) fn retain(&mut self, frame: FrameId) {
        self.pool.retain(frame);
    }

    /// Releases a reference to a frame.
    pub(crate) fn release(&mut self, frame: FrameId) {
        let Some((tenant, left)) = self.pool.release(frame) else { return };
        let partition = self.partition_mut(tenant);
        // A frame is free now, or can be evicted: pieces that wait for frames are tried again.
        partition.stirred = true;
        match left {
            Left::Free => partition.used -= 1,
            Left::One(None) => {}
            Left::One(Some(id)) => {
                let block = self.block(id);
                // Otherwise the block was used, written or dropped meanwhile.
                if block.frame == frame && !block.in_order && !block.unwritten() && !block.kept {
                    self.enter_order(id, false);
                }
            }
        }
    }
}

/// The place of a block in the index: neighbours follow one another, so that requests for many blocks in a row find
/// sixteen of them in the same few lines of the processor's cache. The table takes its tag from the topmost seven bits,
/// which therefore differ too.
fn hash(hasher: &FixedState, volume: VolumeId, number: u64) -> u64 {
    let group = hasher.hash_one((volume.0, number / INDEX_GROUP));
    group.wrapping_add((number % INDEX_GROUP) * (1 << 57 | 1))
}

/// Milliseconds from `since_ms` (wrapping) to `now`.
pub(crate) fn age_ms(now: Nanos, since_ms: u32) -> u32 {
    ((now / MILLISECOND) as u32).wrapping_sub(since_ms)
}

/// Copies the sectors of `mask` from one frame to another, except for the bytes `except_start..except_end`.
fn copy_sectors(
    mask: SectorMask,
    from: FrameId,
    to: FrameId,
    except_start: u64,
    except_end: u64,
    bytes: &mut impl ByteWork,
) {
    let mut copy = |start: u64, end: u64| {
        if start < end {
            bytes.copy(from, to, start, end);
        }
    };
    for (start, end) in runs(mask) {
        let (start, end) = (start * SECTOR, end * SECTOR);
        if except_start == except_end {
            copy(start, end);
        } else {
            copy(start, end.min(except_start));
            copy(start.max(except_end), end);
        }
    }
}

/// Zeros a frame except for the bytes `start..end`.
pub(crate) fn zero_around(frame: FrameId, start: u64, end: u64, bytes: &mut impl ByteWork) {
    for (from, to) in [(0, start), (end, BLOCK)] {
        if from < to {
            bytes.zero(frame, from, to);
        }
    }
}

/// The runs of ones in a mask: first sector and end (exclusive).
pub(crate) fn runs(mask: SectorMask) -> impl Iterator<Item = (u64, u64)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = u64::from(mask) >> at << at;
        if rest == 0 {
            return None;
        }
        let start = u64::from(rest.trailing_zeros());
        let end = start + u64::from((rest >> start).trailing_ones());
        at = end;
        Some((start, end))
    })
}

const _: () = assert!(SECTORS_PER_BLOCK == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_masks() {
        assert_eq!(runs(0).count(), 0);
        assert_eq!(runs(0xff).collect::<Vec<_>>(), [(0, 8)]);
        assert_eq!(runs(0b1011_0001).collect::<Vec<_>>(), [(0, 1), (4, 6), (7, 8)]);
    }

    #[derive(Default)]
    struct Copies(Vec<(u64, u64)>);

    impl ByteWork for Copies {
        fn copy(&mut self, _from: FrameId, _to: FrameId, start: u64, end: u64) {
            self.0.push((start, end - start));
        }

        fn zero(&mut self, frame: FrameId, _start: u64, _end: u64) {
            panic!("{frame:?} is zeroed");
        }
    }

    #[test]
    fn a_copy_spares_what_was_written() {
        let mut copies = Copies::default();
        copy_sectors(0b11, FrameId(1), FrameId(2), 100, 600, &mut copies);
        assert_eq!(copies.0, [(0, 100), (600, 424)]);
    }
}
