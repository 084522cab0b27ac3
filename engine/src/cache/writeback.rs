//! Which blocks go to the device together, and what a block's mask become when they have.
//!
//! A run is contiguous on the device: the oldest dirty block, then its dirty neighbours on both sides. What is
//! clean but known is written again where that joins two runs: sectors of a block, and whole blocks as far as the
//! device passes over them sooner than it goes to another place; where unknown sectors lie between, each run is a
//! request of its own ("other sectors are read only if the device's block size demands it"). A block has one write in
//! flight at most, so the device never has two versions of a sector to reorder.

use super::block::{Block, BlockId};
use super::{Cache, age_ms, runs};
use crate::disk::VolumeId;
use crate::disk::durability::DISTRUST_MAX;
use crate::nbd::Errno;
use crate::units::{BLOCK, MILLISECOND, Nanos, SECTOR, SectorMask};

/// Blocks of the longest write, unless the policy wants it shorter: 1 MiB, at which even a fast disk's transfer time
/// hides the request's own cost.
const RUN_BLOCKS_MAX: u64 = 256;

/// A part of a device write: sectors of a block, contiguous.
pub(crate) type Part = (BlockId, SectorMask);

/// What may go together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reach {
    /// Blocks of a device write.
    pub(crate) blocks_max: u64,
    /// Clean blocks in a row that are written again to join two runs.
    pub(crate) gap_max: u64,
}

/// Blocks of a device write that had to be written, and the sum of their ages.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Wanted {
    pub(crate) blocks: u32,
    pub(crate) ages_ms: u64,
}

impl Cache {
    /// The oldest block of `volume` with dirt that can be written now.
    pub(crate) fn oldest_dirty(&self, volume: VolumeId) -> Option<BlockId> {
        self.volume(volume).dirty.front()
    }

    /// Blocks of `volume` with dirt that can be written now.
    pub(crate) fn dirty_blocks(&self, volume: VolumeId) -> u32 {
        self.volume(volume).dirty.len()
    }

    /// The oldest dirt of `volume` goes behind all other.
    pub(crate) fn postpone(&mut self, volume: VolumeId) {
        let volume = self.volumes[volume.0 as usize].as_mut().expect("an open volume");
        if let Some(id) = volume.dirty.front() {
            volume.dirty.remove(&mut self.blocks, id);
            volume.dirty.push_back(&mut self.blocks, id);
        }
    }

    /// Milliseconds since the oldest dirt of `volume` was written; `None` without dirt.
    pub(crate) fn oldest_dirt_ms(&self, now: Nanos, volume: VolumeId) -> Option<u32> {
        self.oldest_dirty(volume).map(|id| self.age_ms(now, id))
    }

    /// Milliseconds since a block's dirt was written.
    pub(crate) fn age_ms(&self, now: Nanos, id: BlockId) -> u32 {
        age_ms(now, self.block(id).dirty_since_ms)
    }

    /// Sectors of the block that a power cut could lose, those being written aside.
    pub(crate) fn not_on_medium(&self, id: BlockId) -> SectorMask {
        let block = self.block(id);
        let unsettled = self.durability.is_unsettled(block.volume, block.written_in);
        block.dirty | if unsettled { block.unsynced } else { 0 }
    }

    /// What a write of the block would carry: its dirt, and for a durable one what is not known to be on the medium.
    fn wanted(&self, id: BlockId, durable: bool) -> SectorMask {
        if durable { self.not_on_medium(id) } else { self.block(id).dirty }
    }

    /// Starts writing the block and its neighbours: calls `emit` with the parts of each device request, in order of
    /// offset, and with those of them that had to be written, which were dirty since then.
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
        let Block { volume, number, failing, .. } = *self.block(id);
        let blocks_max = reach.blocks_max.min(RUN_BLOCKS_MAX) as usize;
        // What failed is tried with nothing that need not be.
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
        // Up to the last dirty one.
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
        // Backwards they came in falling order: turn them, then put them in front.
        parts[forwards..].reverse();
        parts.rotate_left(forwards);
    }

    fn mark_writing(&mut self, id: BlockId, sectors: SectorMask) {
        let block = &mut self.blocks[id as usize];
        let volume = self.volumes[block.volume.0 as usize].as_mut().expect("an open volume");
        if block.in_dirty {
            volume.dirty.remove(&mut self.blocks, id);
        }
        let block = &mut self.blocks[id as usize];
        block.in_dirty = false;
        if block.dirty == 0 {
            // A durable rewrite of clean sectors: it counts like dirt while it is in flight.
            block.dirty_epoch = volume.ledger.dirtied();
            volume.unwritten += 1;
            self.partitions[volume.tenant.0 as usize].as_mut().expect("a tenant").unwritten += 1;
        }
        self.partitions[volume.tenant.0 as usize].as_mut().expect("a tenant").writing += 1;
        volume.ledger.issued(block.dirty_epoch);
        block.writing_epoch = block.dirty_epoch;
        block.writing = sectors;
        block.dirty = 0;
    }

    /// A device write of `sectors` of the block is over. When nothing more of the block is being written, says whether
    /// all of it went well.
    pub(crate) fn end_write(
        &mut self,
        now: Nanos,
        id: BlockId,
        sectors: SectorMask,
        good: bool,
        durable: bool,
    ) -> Option<bool> {
        let block = &mut self.blocks[id as usize];
        let volume = self.volumes[block.volume.0 as usize].as_mut().expect("an open volume");
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
        if block.writing != 0 {
            return None;
        }
        volume.ledger.written(block.writing_epoch);
        let partition = self.partitions[volume.tenant.0 as usize].as_mut().expect("a tenant");
        partition.writing -= 1;
        partition.stirred = true;
        let mut failed = std::mem::take(&mut block.failed);
        let good = failed == 0;
        if std::mem::take(&mut block.given_up) {
            volume.given_up -= 1;
            let lost = std::mem::take(&mut failed) & !block.dirty;
            block.forget(lost);
            if lost != 0 && !planted!(ClearForgetsEvictions) {
                self.durability.unsettled(block.volume);
            }
        }
        if (failed != 0) != block.failing && !(planted!(MendedBlockStillFailing) && block.failing) {
            block.failing = failed != 0;
            let partition = self.partitions[volume.tenant.0 as usize].as_mut().expect("a tenant");
            let count = |failing: u32| if block.failing { failing + 1 } else { failing - 1 };
            (volume.failing, partition.failing) = (count(volume.failing), count(partition.failing));
        }
        if failed != 0 && block.dirty == 0 {
            block.dirty_epoch = volume.ledger.dirtied();
            block.dirty_since_ms = (now / MILLISECOND) as u32;
        }
        block.dirty |= failed;
        if block.dirty != 0 {
            block.in_dirty = true;
            // Ahead of the others if a flush waits for it, so that newer dirt does not hold the flush up.
            // What has just failed goes behind what has not.
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
        let tenant = volume.tenant;
        let partition = self.partition_mut(tenant);
        partition.unwritten -= 1;
        partition.stirred = true;
        if !self.block(id).in_order {
            self.enter_order(id, true);
        }
    }

    /// The block's dirt is no longer wanted.
    pub(crate) fn forget_dirt(&mut self, id: BlockId) {
        self.no_longer_failing(id);
        let block = &mut self.blocks[id as usize];
        debug_assert_eq!(block.writing, 0);
        let volume = self.volumes[block.volume.0 as usize].as_mut().expect("an open volume");
        if block.dirty == 0 {
            return;
        }
        block.dirty = 0;
        block.in_dirty = false;
        volume.ledger.dropped(block.dirty_epoch);
        volume.dirty.remove(&mut self.blocks, id);
        self.became_clean(id);
    }

    /// A flush of the device failed: what is unsettled and cached becomes dirty again. True if something that was
    /// evicted is lost.
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

    /// A write of `sectors`, whose end follows, succeeded, but it was in the device when a flush of that failed: they
    /// become dirty again. After too many such writes in a row it is an error.
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

    /// Looks at the next blocks of a volume, `most` of them at most, and forgets the content of those whose write-back
    /// failed: it is what the device has. Where another attempt is in flight, that decides; see
    /// [`CachedVolume::given_up`]. Calls `visit` with the epoch of each block given up; says how many were looked at. As
    /// many looks as the volume has blocks, in any number of calls, find all that were failing before the first.
    pub(crate) fn give_up_failing(&mut self, volume: VolumeId, most: u32, mut visit: impl FnMut(u32)) -> u32 {
        for looked in 0..most {
            let Some(id) = self.volume(volume).all.front().filter(|_| self.volume(volume).failing > 0) else {
                return looked;
            };
            self.look_last(volume, id);
            if self.block(id).failing {
                self.give_up(id, &mut visit);
            }
        }
        most
    }

    /// Puts a block behind those that are still to be looked at: the order of this list means nothing.
    pub(crate) fn look_last(&mut self, volume: VolumeId, id: BlockId) {
        let state = self.volumes[volume.0 as usize].as_mut().expect("an open volume");
        state.all.remove(&mut self.blocks, id);
        state.all.push_back(&mut self.blocks, id);
    }

    fn give_up(&mut self, id: BlockId, visit: &mut impl FnMut(u32)) {
        let Block { volume, writing, writing_epoch, dirty, dirty_epoch, .. } = *self.block(id);
        visit(if writing != 0 { writing_epoch } else { dirty_epoch });
        if self.block(id).quiet() {
            if planted!(ClearForgetsEvictions) {
                self.block_mut(id).unsynced = 0;
            } else {
                self.durability.unsettled(volume);
            }
            return self.drop_block(id);
        }
        if writing == 0 {
            // It is being read: what the device has comes with that.
            self.forget_dirt(id);
            if !planted!(ClearForgetsEvictions) {
                self.durability.unsettled(volume);
            }
            return self.blocks[id as usize].forget(dirty);
        }
        self.no_longer_failing(id);
        if !std::mem::replace(&mut self.blocks[id as usize].given_up, true) {
            self.volume_mut(volume).given_up += 1;
        }
    }

    fn no_longer_failing(&mut self, id: BlockId) {
        let block = &mut self.blocks[id as usize];
        if std::mem::take(&mut block.failing) {
            let volume = self.volumes[block.volume.0 as usize].as_mut().expect("an open volume");
            volume.failing -= 1;
            self.partitions[volume.tenant.0 as usize].as_mut().expect("a tenant").failing -= 1;
        }
    }

    /// A run of parts as bytes of the volume: first, past the last.
    pub(crate) fn bytes_of(&self, parts: &[Part]) -> (u64, u64) {
        let (first, last) = (parts[0], parts[parts.len() - 1]);
        let start = self.block(first.0).number * BLOCK + u64::from(first.1.trailing_zeros()) * SECTOR;
        let end = self.block(last.0).number * BLOCK + u64::from(8 - last.1.leading_zeros()) * SECTOR;
        (start, end)
    }
}

impl Block {
    /// Sectors are no longer known: what they are is what the device has.
    fn forget(&mut self, sectors: SectorMask) {
        self.valid &= !sectors;
        self.unsynced &= !sectors;
    }
}

/// The shortest run of sectors that holds all of `wanted`, if what lies between is known.
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
