//! Which blocks are written to the device together, and the state of a block before and after the write.
//!
//! A run is contiguous on the device: the oldest dirty block, then its dirty neighbours on both sides. Clean content is
//! rewritten where that joins two runs: valid sectors of a block, and whole blocks as long as the device passes over
//! them in less time than it takes to position elsewhere. If sectors between two runs are not valid, each run is a
//! request of its own ("other sectors are read only if the device's block size demands it"). A block has at most one
//! write in flight, so the device never reorders two versions of a sector.

use super::block::{Block, Queue, Trouble};
use super::{Cache, age_ms, runs};
use crate::disk::durability::DISTRUST_MAX;
use crate::errno::Errno;
use crate::ids::{BlockId, VolumeId};
use crate::units::{BLOCK, MILLISECOND, Nanos, SECTOR, SectorMask};

/// Blocks of the longest write, unless the policy allows fewer: 1 MiB, whose transfer time hides the cost of the
/// request even on a fast disk.
const RUN_BLOCKS_MAX: u64 = 256;

/// A part of a device write: contiguous sectors of a block.
pub(crate) type Part = (BlockId, SectorMask);

/// Limits of one device write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// Most blocks of a device write.
    pub(crate) blocks_max: u64,
    /// Most clean blocks in a row that are rewritten to join two runs.
    pub(crate) gap_max: u64,
}

/// Blocks of a device write that had to be written (the others are rewritten to join runs), and the sum of their ages.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Wanted {
    pub(crate) blocks: u32,
    pub(crate) ages_ms: u64,
}

impl Cache {
    /// The oldest dirty block of `volume` that can be written now.
    pub(crate) fn oldest_dirty(&self, volume: VolumeId) -> Option<BlockId> {
        self.volume(volume).dirty.front()
    }

    /// Dirty blocks of `volume` that can be written now.
    pub(crate) fn dirty_blocks(&self, volume: VolumeId) -> u32 {
        self.volume(volume).dirty.len()
    }

    /// Moves the oldest dirty block of `volume` behind all others.
    pub(crate) fn postpone(&mut self, volume: VolumeId) {
        let volume = &mut self.volumes[volume];
        if let Some(id) = volume.dirty.front() {
            volume.dirty.remove(&mut self.blocks, id);
            volume.dirty.push_back(&mut self.blocks, id);
        }
    }

    /// Age of the oldest dirty block of `volume` in milliseconds, by the clock of `now`; `None` if no block is dirty.
    pub(crate) fn oldest_dirt_ms(&self, now: Nanos, volume: VolumeId) -> Option<u32> {
        self.oldest_dirty(volume).map(|id| self.age_ms(now, id))
    }

    /// Milliseconds since a block became dirty.
    pub(crate) fn age_ms(&self, now: Nanos, id: BlockId) -> u32 {
        age_ms(now, self.block(id).dirty_since_ms)
    }

    /// Sectors of the block that a power cut could lose, except those being written.
    pub(crate) fn not_on_medium(&self, id: BlockId) -> SectorMask {
        let block = self.block(id);
        let unsettled = self.durability.is_unsettled(block.volume, block.written_in);
        block.dirty | if unsettled { block.unsynced } else { 0 }
    }

    /// The sectors that a write of the block must carry: dirty ones, and for a durable write all that may not be on the
    /// medium.
    fn wanted(&self, id: BlockId, durable: bool) -> SectorMask {
        if durable { self.not_on_medium(id) } else { self.block(id).dirty }
    }

    /// Starts to write the block and its neighbours. Calls `emit` for each device request, with its parts in order of
    /// offset, and with the number and ages of the blocks that had to be written.
    pub(crate) fn begin_write(
        &mut self,
        now: Nanos,
        id: BlockId,
        durable: bool,
        reach: Reach,
        parts: &mut Vec<Part>,
        mut emit: impl FnMut(&mut Cache, &[Part], Wanted),
    ) {
        let wanted = self.wanted(id, durable);
        let age_ms = |block: &Block| u64::from(age_ms(now, block.dirty_since_ms));
        debug_assert!(wanted != 0 && self.block(id).writing == 0);
        parts.clear();
        match span(wanted, self.block(id).valid) {
            Some(sectors) => {
                parts.push((id, sectors));
                self.extend_run(durable, reach, parts);
                let mut wanted = Wanted::default();
                for &(id, sectors) in parts.iter() {
                    if self.wanted(id, durable) != 0 {
                        wanted.blocks += 1;
                        wanted.ages_ms += age_ms(self.block(id));
                    }
                    self.mark_writing(id, sectors);
                }
                emit(self, parts, wanted);
            }
            None => {
                let once = Wanted { blocks: 1, ages_ms: age_ms(self.block(id)) };
                self.mark_writing(id, wanted);
                for (first, past) in runs(wanted) {
                    parts.clear();
                    parts.push((id, ((1u16 << past) - (1u16 << first)) as SectorMask));
                    emit(self, parts, once);
                }
            }
        }
    }

    /// Adds dirty neighbours, and clean ones between them, forwards and then backwards, while the run stays contiguous.
    fn extend_run(&self, durable: bool, reach: Reach, parts: &mut Vec<Part>) {
        const FIRST: SectorMask = 1;
        const LAST: SectorMask = 1 << 7;
        let (id, first_sectors) = parts[0];
        let block = self.block(id);
        let (volume, number, failing) = (block.volume, block.number, block.is_failing());
        let blocks_max = reach.blocks_max.min(RUN_BLOCKS_MAX) as usize;
        // Durable writes and retries of failed blocks rewrite no clean blocks.
        let gap_max = if durable || failing { 0 } else { reach.gap_max as usize };
        let neighbour = |number: u64, edge: SectorMask| {
            let id = self.lookup(volume, number)?;
            let block = self.block(id);
            if block.writing != 0 || block.filling() {
                return None;
            }
            if block.dirty == 0 {
                return (block.valid == SectorMask::MAX).then_some((id, SectorMask::MAX));
            }
            let sectors = span(self.wanted(id, durable), block.valid)?;
            (sectors & edge != 0).then_some((id, sectors))
        };
        let is_dirty = |part: &Part| self.block(part.0).dirty != 0;
        // The run ends at the last dirty block.
        let mut end = parts.len();
        let mut next = number + 1;
        while parts.len() < blocks_max && parts.last().is_some_and(|(_, sectors)| sectors & LAST != 0) {
            let Some(part) = neighbour(next, FIRST) else { break };
            parts.push(part);
            if is_dirty(&part) {
                end = parts.len();
            } else if parts.len() - end > gap_max {
                break;
            }
            next += 1;
        }
        parts.truncate(end);
        let forwards = parts.len();
        let mut edge = first_sectors;
        let mut previous = number;
        while parts.len() < blocks_max && edge & FIRST != 0 && previous > 0 {
            previous -= 1;
            let Some(part) = neighbour(previous, LAST) else { break };
            edge = part.1;
            parts.push(part);
            if is_dirty(&part) {
                end = parts.len();
            } else if parts.len() - end > gap_max {
                break;
            }
        }
        parts.truncate(end);
        // Backwards, the parts were added in descending order: reverse them and put them in front.
        parts[forwards..].reverse();
        parts.rotate_left(forwards);
    }

    fn mark_writing(&mut self, id: BlockId, sectors: SectorMask) {
        let block = &mut self.blocks[id as usize];
        let volume = &mut self.volumes[block.volume];
        if block.in_dirty {
            volume.dirty.remove(&mut self.blocks, id);
        }
        let block = &mut self.blocks[id as usize];
        block.in_dirty = false;
        if block.dirty == 0 {
            // A durable rewrite of clean sectors counts as dirty data while it is in flight.
            block.dirty_epoch = volume.ledger.dirtied();
            volume.unwritten += 1;
            self.partitions[volume.tenant].rewrites();
        }
        self.partitions[volume.tenant].writing += 1;
        volume.ledger.issued(block.dirty_epoch);
        block.writing_epoch = block.dirty_epoch;
        block.writing = sectors;
        block.dirty = 0;
    }

    /// A device write of `sectors` of the block has ended. When no other write of the block is in flight, returns
    /// whether all of them succeeded.
    pub(crate) fn end_write(
        &mut self,
        now: Nanos,
        id: BlockId,
        sectors: SectorMask,
        good: bool,
        durable: bool,
    ) -> Option<bool> {
        let block = &mut self.blocks[id as usize];
        block.writing &= !sectors;
        if !self.durability.is_unsettled(block.volume, block.written_in) {
            block.unsynced = 0;
        }
        match (good, durable) {
            (false, _) => block.failed |= sectors,
            (true, true) => block.unsynced &= !sectors,
            (true, false) => {
                block.unsynced |= sectors;
                block.written_in = self.durability.written(block.volume);
            }
        }
        if good && durable {
            self.note_content(id, sectors == SectorMask::MAX);
        }
        let block = &mut self.blocks[id as usize];
        let volume = &mut self.volumes[block.volume];
        if block.writing != 0 {
            return None;
        }
        volume.ledger.written(block.writing_epoch);
        let partition = &mut self.partitions[volume.tenant];
        partition.writing -= 1;
        partition.stirred = true;
        let mut failed = std::mem::take(&mut block.failed);
        let good = failed == 0;
        if block.is_given_up() {
            block.trouble = Trouble::None;
            volume.given_up -= 1;
            let lost = std::mem::take(&mut failed) & !block.dirty;
            block.forget(lost);
            if lost != 0 && !planted!(ClearForgetsEvictions) {
                self.durability.unsettled(block.volume);
            }
        }
        let was_failing = block.is_failing();
        if (failed != 0) != was_failing && !(planted!(MendedBlockStillFailing) && was_failing) {
            block.trouble = if was_failing { Trouble::None } else { Trouble::Failing };
            let partition = &mut self.partitions[volume.tenant];
            let count = |failing: u32| if was_failing { failing - 1 } else { failing + 1 };
            (volume.failing, partition.failing) = (count(volume.failing), count(partition.failing));
        }
        if failed != 0 && block.dirty == 0 {
            block.dirty_epoch = volume.ledger.dirtied();
            block.dirty_since_ms = (now / MILLISECOND) as u32;
        }
        block.dirty |= failed;
        if block.dirty != 0 {
            block.in_dirty = true;
            // In front of the others if a flush waits for it, so that newer dirty data does not delay the flush. A
            // block that has just failed goes behind the others.
            if volume.ledger.is_closed(block.dirty_epoch) && failed == 0 {
                volume.dirty.push_front(&mut self.blocks, id);
            } else {
                volume.dirty.push_back(&mut self.blocks, id);
            }
        } else {
            self.became_clean(id);
        }
        Some(good)
    }

    fn became_clean(&mut self, id: BlockId) {
        let volume = self.block(id).volume;
        let volume = self.volume_mut(volume);
        volume.unwritten -= 1;
        let (tenant, is_lower) = (volume.tenant, volume.is_lower);
        self.partition_mut(tenant).became_clean();
        if !self.block(id).in_order {
            self.enter_order(id, true);
        } else if is_lower {
            self.client_has(id);
        }
    }

    /// Discards the dirty data of a block.
    pub(crate) fn forget_dirt(&mut self, id: BlockId) {
        self.no_longer_failing(id);
        let block = &mut self.blocks[id as usize];
        debug_assert_eq!(block.writing, 0);
        let volume = &mut self.volumes[block.volume];
        if block.dirty == 0 {
            return;
        }
        block.dirty = 0;
        block.in_dirty = false;
        volume.ledger.dropped(block.dirty_epoch);
        volume.dirty.remove(&mut self.blocks, id);
        self.became_clean(id);
    }

    /// A device flush failed: cached blocks with unsettled writes become dirty again. True if data is lost because it
    /// was evicted.
    pub(crate) fn condemn(&mut self, now: Nanos, volume: VolumeId) -> bool {
        let mut next = self.volume(volume).all.front();
        while let Some(id) = next {
            next = self.volume(volume).all.next(&self.blocks, id);
            let Block { unsynced, written_in, .. } = *self.block(id);
            if unsynced != 0 && self.durability.is_unsettled(volume, written_in) {
                self.block_mut(id).unsynced = 0;
                self.mark_dirty(now, id, unsynced);
            }
        }
        self.durability.condemn(volume)
    }

    /// A write of `sectors` succeeded (the caller ends it next), but a device flush failed while the write was in the
    /// device: the sectors become dirty again. After too many such writes in a row it is an error.
    pub(crate) fn distrust(&mut self, now: Nanos, id: BlockId, sectors: SectorMask) -> Result<(), Errno> {
        let block = self.block_mut(id);
        block.distrusted += 1;
        if block.distrusted > DISTRUST_MAX {
            block.distrusted = 0;
            return Err(Errno::Io);
        }
        self.mark_dirty(now, id, sectors);
        Ok(())
    }

    /// Looks at the next blocks of a volume, at most `most`, and discards the content of those whose write-back failed:
    /// clients then read the device's content. If a retry is in flight, its result decides; see
    /// [`CachedVolume::given_up`]. Calls `visit` with the epoch of each block given up, and with the pieces that wait
    /// in vain for it to be on the medium; returns how many blocks were looked at. If all calls together look at as
    /// many blocks as the volume had before the first one, they find all blocks that were failing by then.
    pub(crate) fn give_up_failing(&mut self, volume: VolumeId, most: u32, mut visit: impl FnMut(u32, Queue)) -> u32 {
        for looked in 0..most {
            let Some(id) = self.volume(volume).all.front().filter(|_| self.volume(volume).failing > 0) else {
                return looked;
            };
            self.look_last(volume, id);
            if self.block(id).is_failing() {
                self.give_up(id, &mut visit);
            }
        }
        most
    }

    /// Puts a block behind those that are still to be looked at. The order of this list has no other meaning.
    pub(crate) fn look_last(&mut self, volume: VolumeId, id: BlockId) {
        let state = &mut self.volumes[volume];
        state.all.remove(&mut self.blocks, id);
        state.all.push_back(&mut self.blocks, id);
    }

    fn give_up(&mut self, id: BlockId, visit: &mut impl FnMut(u32, Queue)) {
        let Block { volume, writing, writing_epoch, dirty, dirty_epoch, write_queue, .. } = *self.block(id);
        match writing {
            0 => visit(dirty_epoch, write_queue),
            _ => visit(writing_epoch, Queue::default()),
        }
        if self.block(id).quiet() {
            if planted!(ClearForgetsEvictions) {
                self.block_mut(id).unsynced = 0;
            } else {
                self.durability.unsettled(volume);
            }
            return self.drop_block(id);
        }
        if writing == 0 {
            // A device read of the block is in flight and brings the device's content; or a durable write of it waits
            // for reads of its other blocks, and fails.
            self.forget_dirt(id);
            if !planted!(ClearForgetsEvictions) {
                self.durability.unsettled(volume);
            }
            return self.blocks[id as usize].forget(dirty);
        }
        self.no_longer_failing(id);
        if std::mem::replace(&mut self.blocks[id as usize].trouble, Trouble::GivenUp) != Trouble::GivenUp {
            self.volume_mut(volume).given_up += 1;
        }
    }

    fn no_longer_failing(&mut self, id: BlockId) {
        let block = &mut self.blocks[id as usize];
        if block.is_failing() {
            block.trouble = Trouble::None;
            let volume = &mut self.volumes[block.volume];
            volume.failing -= 1;
            self.partitions[volume.tenant].failing -= 1;
        }
    }

    /// A run of parts as bytes of the volume: start and end (exclusive).
    pub(crate) fn bytes_of(&self, parts: &[Part]) -> (u64, u64) {
        let (first, last) = (parts[0], parts[parts.len() - 1]);
        let start = self.block(first.0).number * BLOCK + u64::from(first.1.trailing_zeros()) * SECTOR;
        let end = self.block(last.0).number * BLOCK + u64::from(8 - last.1.leading_zeros()) * SECTOR;
        (start, end)
    }
}

impl Block {
    /// The sectors are no longer valid: their content is the device's.
    fn forget(&mut self, sectors: SectorMask) {
        self.valid &= !sectors;
        self.unsynced &= !sectors;
    }
}

/// The shortest run of sectors that contains all of `wanted`, if all sectors of it are valid.
fn span(wanted: SectorMask, valid: SectorMask) -> Option<SectorMask> {
    if wanted == 0 {
        return None;
    }
    let past = 8 - wanted.leading_zeros();
    let span = ((1u16 << past) - (1u16 << wanted.trailing_zeros())) as SectorMask;
    (span & !valid == 0).then_some(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_join_over_known_sectors_only() {
        assert_eq!(span(0b0010_0001, 0xff), Some(0b0011_1111));
        assert_eq!(span(0b0010_0001, 0b0010_0001), None);
        assert_eq!(span(0b0001_1000, 0b0001_1000), Some(0b0001_1000));
    }
}
