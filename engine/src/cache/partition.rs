//! A partition: the frames of one tenant on one disk, and eviction among them.
//!
//! The tenant's policy ([`super::eviction`]) orders the blocks. This file decides which of them can be evicted.

use super::Cache;
use super::block::{Block, Source};
use crate::eviction::{Eviction, Verdict, evict};
use crate::ids::{BlockId, FrameId, TenantId, VolumeId};
use crate::spec::TenantSpec;
use crate::units::PIECE_BLOCKS;

/// Frames of the smallest partition: two pieces, each with a frame for the fill of its first and of its last block. In
/// a smaller one, a single piece that is being received could block every other piece.
pub(crate) const FRAMES_MIN: u32 = 2 * (PIECE_BLOCKS as u32 + 2);

/// Frames of the smallest piece of a payload: a block that is written in part, and a spare frame for its fill.
const PAYLOAD_FRAMES_MIN: u32 = 2;

/// Most of [`Partition::relief`]: two pieces of the largest size at once.
const RELIEF_MAX: i32 = 2 * FRAMES_MIN as i32;

/// Blocks that one step looks at when frames retire: about 40 us, because the blocks are adjacent in memory.
const RETIRE_BLOCKS: usize = 2 * 1024;

/// Outstanding reads of clients that belong to no stream.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Reads {
    pub(crate) requests: u32,
    /// Blocks of all of them.
    pub(crate) blocks: u32,
}

/// The frames of one tenant.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) spec: TenantSpec,
    order: Box<dyn Eviction<Block>>,
    /// Frames that the tenant may use.
    pub(crate) target: u32,
    /// Frames that are charged to the tenant.
    pub(crate) used: u32,
    /// Blocks that are dirty or being written.
    pub(crate) unwritten: u32,
    /// Of those, blocks whose last write-back failed.
    pub(crate) failing: u32,
    /// Blocks being written.
    pub(crate) writing: u32,
    /// Blocks that were written back while too much was dirty, less twice the frames that were taken beyond the limits
    /// meanwhile. When a loan of frames is recalled from a writer, the writer may take half as many frames as it writes
    /// back. Without this its writes would stall until its dirty data fits into what is left, which may take minutes.
    relief: i32,
    /// Frames of pieces that wait for payload, spare frames for their fills included.
    pub(crate) receiving: u32,
    /// Frames of replies that are being read or wait to be sent: at most half the partition, unless it has shrunk.
    pub(crate) unsent: u32,
    /// A connection is paused, or a read waits, until `unsent` is smaller or more of its replies are sent.
    pub(crate) throttled: bool,
    /// Outstanding reads now, and when they had the most blocks since the planner looked last.
    pub(crate) reads: Reads,
    pub(crate) reads_most: Reads,
    /// Streams with read-ahead.
    pub(crate) streams: u32,
    /// The longest read of a stream since the planner looked last, bytes.
    pub(crate) stream_read: u64,
    /// Bytes that were read ahead and not yet read by a client, over all streams.
    pub(crate) unread: u64,
    /// Frames of read-ahead in flight or queued.
    pub(crate) prefetching: u32,
    /// Volumes of the tenant.
    pub(crate) volumes: u32,
    /// Requests received and not yet answered.
    pub(crate) requests: u32,
    /// The tenant has too many requests: each connection may have only one until a quarter of them is answered.
    pub(crate) crowded: bool,
    /// CACHE requests in progress.
    pub(crate) caching: u32,
    /// Frames of evicted blocks that are on their way to a server.
    pub(crate) demoting: u32,
    /// A frame became free, or a block clean, since the waiting pieces were last tried.
    pub(crate) stirred: bool,
}

impl Partition {
    pub(crate) fn new(spec: TenantSpec) -> Self {
        Partition {
            spec,
            order: spec.eviction.order(Default::default()),
            target: 0,
            used: 0,
            unwritten: 0,
            writing: 0,
            failing: 0,
            relief: 0,
            receiving: 0,
            unsent: 0,
            throttled: false,
            reads: Reads::default(),
            reads_most: Reads::default(),
            streams: 0,
            stream_read: 0,
            unread: 0,
            prefetching: 0,
            volumes: 0,
            requests: 0,
            crowded: false,
            caching: 0,
            demoting: 0,
            stirred: false,
        }
    }

    /// A client reads `blocks` blocks that belong to no stream.
    pub(crate) fn begin_read(&mut self, blocks: u32) {
        let Reads { requests, blocks: before } = self.reads;
        self.reads = Reads { requests: requests + 1, blocks: before + blocks };
        if self.reads.blocks > self.reads_most.blocks {
            self.reads_most = self.reads;
        }
    }

    /// Such a read has been answered.
    pub(crate) fn end_read(&mut self, blocks: u32) {
        self.reads.requests -= 1;
        self.reads.blocks -= blocks;
    }

    /// Whether more than half the partition is dirty and not yet being written: then it is written in the background.
    pub(crate) fn too_dirty(&self) -> bool {
        self.unwritten - self.writing > self.target / 2
    }

    /// Most frames of dirty data and payload together: reads always find room.
    fn dirty_max(&self) -> u32 {
        self.target / 4 * 3
    }

    fn is_over_dirty(&self) -> bool {
        self.unwritten > self.dirty_max()
    }

    /// Whether `frames` frames may be taken beyond the limits: half of what was written back.
    fn has_relief(&self, frames: u32) -> bool {
        self.is_over_dirty() && 2 * frames as i32 <= self.relief
    }

    /// `frames` were taken beyond the limits.
    fn takes_relief(&mut self, frames: u32) {
        self.relief -= 2 * frames as i32;
    }

    fn fits(&self, frames: u32) -> bool {
        self.used + frames <= self.target
    }

    /// Whether `frames` more may be taken for payload. Dirty data and payload together may have three quarters of the
    /// partition; payload may have half, so that slow senders cannot use all of it.
    pub(crate) fn admits_payload(&self, frames: u32) -> bool {
        let receiving = self.receiving + frames;
        receiving <= self.target / 2 && (self.unwritten + receiving <= self.dirty_max() || self.has_relief(frames))
    }

    /// `frames` were taken for payload.
    pub(crate) fn takes_payload(&mut self, frames: u32) {
        self.receiving += frames;
        // Beyond the target, the frames have been paid for already.
        if self.is_over_dirty() && self.used <= self.target {
            self.takes_relief(frames);
        }
    }

    /// A clean block is being rewritten, and counts as unwritten meanwhile.
    pub(super) fn rewrites(&mut self) {
        self.unwritten += 1;
        self.relief -= 1;
    }

    /// A block was written back.
    pub(super) fn became_clean(&mut self) {
        self.unwritten -= 1;
        self.stirred = true;
        self.relief = if self.is_over_dirty() { (self.relief + 1).min(RELIEF_MAX) } else { 0 };
    }

    /// How many of `wanted` frames a volume may take for payload now, if `receiving` frames of it already wait for
    /// payload. If the tenant has several volumes, each takes at most as much of the half for payload as it leaves to
    /// the others, so that there is room for them while its clients are stalled. The first piece of a volume is cut to
    /// that size. `None` if a further piece must wait.
    pub(crate) fn payload_max(&self, receiving: u32, wanted: u32) -> Option<u32> {
        if self.volumes < 2 || planted!(StalledTakeAllFrames) {
            return Some(wanted);
        }
        let room = (self.target / 2).saturating_sub(self.receiving - receiving);
        if receiving == 0 {
            return Some(wanted.min((room / 2).max(PAYLOAD_FRAMES_MIN)));
        }
        (receiving + wanted <= room / 2).then_some(wanted)
    }

    /// Frames that replies of a volume may take now, if they hold `unsent` frames already. If the tenant has several
    /// volumes, each takes at most as many of the half for replies as it leaves to the others, so that stalled readers
    /// of one volume do not block the replies of another one. A partition below twice the smallest size has no such
    /// bound, because a reply that must be whole may need more than that.
    pub(crate) fn reply_frames_left(&self, unsent: u32) -> u32 {
        let half = self.target / 2;
        if self.volumes < 2 || half / 2 < FRAMES_MIN / 2 || planted!(UnsentTakeAllFrames) {
            return half.saturating_sub(self.unsent);
        }
        let room = half.saturating_sub(self.unsent - unsent);
        room.div_ceil(2).saturating_sub(unsent)
    }

    /// Whether a reply of `frames` frames that must be whole fits now. The first one of a volume may use all frames
    /// that are left for replies: under the bound for volumes it might never fit.
    pub(crate) fn whole_reply_fits(&self, unsent: u32, frames: u32) -> bool {
        frames
            <= if unsent == 0 { (self.target / 2).saturating_sub(self.unsent) } else { self.reply_frames_left(unsent) }
    }

    /// Whether `frames` more may be read ahead. A quarter of the partition remains for requests of clients.
    pub(crate) fn admits_prefetch(&self, frames: u32) -> bool {
        let in_use = self.unwritten + self.receiving + self.prefetching + self.unsent;
        in_use + frames <= self.target / 4 * 3
    }
}

impl Cache {
    pub(crate) fn partition(&self, tenant: TenantId) -> &Partition {
        &self.partitions[tenant]
    }

    pub(crate) fn partition_mut(&mut self, tenant: TenantId) -> &mut Partition {
        &mut self.partitions[tenant]
    }

    /// All tenants.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = (TenantId, &Partition)> + Clone {
        self.partitions.iter()
    }

    pub(crate) fn has_tenant(&self, tenant: TenantId) -> bool {
        self.partitions.contains(tenant)
    }

    /// Creates a tenant, or changes its specification.
    pub(crate) fn set_tenant(&mut self, tenant: TenantId, spec: TenantSpec) {
        match self.partitions.get_mut(tenant) {
            Some(partition) => {
                if partition.spec.eviction != spec.eviction {
                    partition.order = spec.eviction.order(std::mem::take(partition.order.list()));
                }
                partition.spec = spec;
            }
            None => self.partitions.insert(tenant, Partition::new(spec)),
        }
    }

    /// Forgets a tenant that uses no frames.
    pub(crate) fn drop_tenant(&mut self, tenant: TenantId) {
        debug_assert_eq!(self.partition(tenant).used, 0);
        self.partitions.remove(tenant);
    }

    /// Changes the number of frames of the disk. The targets of the partitions must already fit.
    pub(crate) fn set_frames(&mut self, frames: u32) {
        self.pool.set_limit(frames);
    }

    /// A block was used.
    pub(crate) fn touch(&mut self, id: BlockId) {
        if !self.blocks[id as usize].in_order {
            return self.enter_order(id, false);
        }
        // The first request for a block that was read ahead is its first use.
        let again = self.blocks[id as usize].source != Source::Prefetch;
        let (order, blocks) = self.order_of(id);
        order.used(blocks, id, again);
    }

    /// Enters a block into the eviction order; `back` if it had left when it was next for eviction.
    pub(super) fn enter_order(&mut self, id: BlockId, back: bool) {
        self.blocks[id as usize].in_order = true;
        let (order, blocks) = self.order_of(id);
        if back { order.come_back(blocks, id) } else { order.enter(blocks, id) }
    }

    pub(super) fn leave_order(&mut self, id: BlockId) {
        self.blocks[id as usize].in_order = false;
        let (order, blocks) = self.order_of(id);
        order.leave(blocks, id);
    }

    fn order_of(&mut self, id: BlockId) -> (&mut dyn Eviction<Block>, &mut [Block]) {
        let tenant = self.volume(self.block(id).volume).tenant;
        let partition = &mut self.partitions[tenant];
        (&mut *partition.order, &mut self.blocks)
    }

    /// Takes `count` frames for `tenant`, all or none, and evicts blocks of the tenant if necessary.
    pub(crate) fn take_frames(&mut self, tenant: TenantId, count: u32, into: &mut Vec<FrameId>) -> bool {
        loop {
            let partition = self.partition(tenant);
            let fits = partition.fits(count) || partition.used > partition.target && partition.has_relief(count);
            if fits && self.pool.available() >= count {
                break;
            }
            if !self.evict(tenant) {
                return false;
            }
        }
        self.pool.take(tenant, count, into);
        let partition = self.partition_mut(tenant);
        if !partition.fits(count) {
            partition.takes_relief(count);
        }
        partition.used += count;
        true
    }

    /// A block that will not be read again soon is dropped, if it is cached and clean. False if it is in use.
    pub(crate) fn drop_passed(&mut self, volume: VolumeId, number: u64) -> bool {
        let Some(id) = self.lookup(volume, number) else { return true };
        let block = self.block(id);
        if !block.quiet() || self.pool.is_shared(block.frame) {
            return false;
        }
        if !block.unwritten() && !self.must_keep(block) {
            self.drop_block(id);
        }
        true
    }

    /// Evicts the first block of the order that can be evicted. False if there is none.
    pub(crate) fn evict(&mut self, tenant: TenantId) -> bool {
        let Cache { partitions, pool, durability, volumes, blocks, .. } = self;
        let found = evict(&mut *partitions[tenant].order, blocks, |id, block| {
            if block.unwritten() && !planted!(DirtyBlockLostOnEviction) {
                block.in_order = false;
                Verdict::Unready
            } else if block.unsynced != 0 && durability.is_kept(block.volume, block.written_in) {
                block.in_order = false;
                if !std::mem::replace(&mut block.kept, true) {
                    volumes[block.volume].kept.push(block.number);
                }
                Verdict::Unready
            } else if pool.is_shared(block.frame) {
                block.in_order = false;
                pool.left_order(block.frame, id);
                Verdict::Unready
            } else if block.quiet() {
                Verdict::Goes
            } else {
                Verdict::InUse
            }
        });
        let Some(id) = found else { return false };
        self.demote(id);
        self.drop_block(id);
        true
    }

    /// Whether the target of a block may still lose content of it, so that the cache has to keep it.
    pub(super) fn must_keep(&self, block: &Block) -> bool {
        block.unsynced != 0 && self.durability.is_kept(block.volume, block.written_in)
    }

    /// The target of a volume was flushed: blocks that were kept for that can be evicted, and pieces may wait for that.
    pub(crate) fn let_go(&mut self, volume: VolumeId) {
        if self.volume(volume).kept.is_empty() {
            return;
        }
        let mut kept = std::mem::take(&mut self.volume_mut(volume).kept);
        kept.retain(|&number| {
            let Some(id) = self.lookup(volume, number) else { return false };
            let block = self.block(id);
            // An unwritten block enters when it is written.
            let waits = !block.in_order && !block.unwritten();
            if waits && self.must_keep(block) {
                return true;
            }
            self.block_mut(id).kept = false;
            if waits {
                self.enter_order(id, true);
            }
            false
        });
        self.volume_mut(volume).kept = kept;
        let tenant = self.volume(volume).tenant;
        self.partition_mut(tenant).stirred = true;
    }

    /// Frees up to `most` frames that are above the tenant's target. How many, and whether more remain to be freed.
    pub(crate) fn shed(&mut self, tenant: TenantId, most: u32) -> (u32, bool) {
        for freed in 0..most {
            let partition = self.partition(tenant);
            if partition.used <= partition.target {
                return (freed, false);
            }
            if !self.evict(tenant) {
                return (freed, true);
            }
        }
        (most, true)
    }

    /// Drops clean blocks whose frames are above the limit, among the next [`RETIRE_BLOCKS`] blocks. True if frames
    /// above the limit are still in use.
    pub(crate) fn retire_frames(&mut self) -> bool {
        if self.pool.retiring() == 0 || self.blocks.is_empty() {
            return false;
        }
        for _ in 0..RETIRE_BLOCKS.min(self.blocks.len()) {
            self.retire_at = (self.retire_at + 1) % self.blocks.len();
            let id = self.retire_at as BlockId;
            let block = self.block(id);
            let retires = self.pool.is_retiring(block.frame) && !planted!(FramesNeverRetire);
            if retires && block.quiet() && !block.unwritten() && !self.must_keep(block) {
                self.drop_block(id);
            }
        }
        self.pool.retiring() > 0
    }
}

#[cfg(test)]
mod tests;
