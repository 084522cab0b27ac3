//! Drop-behind, for volumes on other servers: blocks of a long sequential read are dropped when the reader has passed
//! them.
//!
//! ```text
//!   stream |··· longer than the partition: dropped ···|── at most 8 MiB: stays ──► reader
//!                                                     ▲passed
//! ```
//!
//! A stream that is longer than its partition has evicted each block of itself before it is read again, so keeping its
//! blocks brings no hits, and the next blocks of the stream get frames that have left the processor's cache. What is
//! dropped leaves frames that are still in it, and leaves the other blocks of the tenant where they are. A stream that
//! fits into the partition is kept: read again, it hits.
//!
//! Only on other servers, because there the copy to the frames is a large part of a read; a device does not use the
//! processor's cache. Downside: a second reader that follows farther behind finds nothing of the stream.

use crate::ids::VolumeId;
use crate::units::BLOCK;
use crate::volume::Volumes;

/// Blocks behind the reader that stay: 8 MiB, and at most an eighth of the partition. Eight requests of 1 MiB are
/// answered by then, so that the blocks are dropped in order and their frames remain contiguous; with 1 MiB nothing was
/// gained (`docs/notes/upstream.md`). A processor's cache holds it.
const LAG_BLOCKS_MAX: u64 = 2048;
const LAG_PART: u64 = 8;
/// Most blocks that one read drops: 4 MiB, twice a long read and more. Others are left to the eviction policy.
const AT_ONCE_MAX: u64 = 1024;

impl Volumes {
    /// A stream of a volume was read further.
    pub(crate) fn stream_read(&mut self, volume: VolumeId, place: usize) {
        // What is evicted in its order goes to the server.
        if self.route.is_elsewhere(volume) && self.cache.volume(volume).demoting.is_none() {
            self.drop_passed(volume, place);
        }
    }

    /// Drops what the reader of a long stream has passed, up to the first block that is in use.
    fn drop_passed(&mut self, volume: VolumeId, place: usize) {
        let partition = u64::from(self.cache.partition(self.tenant_of(volume)).target);
        let streams = &mut self.table[volume].streams;
        let (start, end) = streams.span(place);
        if end - start <= partition * BLOCK {
            return;
        }
        let until = (end / BLOCK).saturating_sub(LAG_BLOCKS_MAX.min(partition / LAG_PART));
        let from = streams.at(place).passed.max(until.saturating_sub(AT_ONCE_MAX));
        let in_use = (from..until).find(|&number| !self.cache.drop_passed(volume, number));
        self.table[volume].streams.at(place).passed = in_use.unwrap_or(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ConnId, TenantId};
    use crate::nbd::wire::command;
    use crate::volume::rig::{Rig, VOLUME};

    const READ_BLOCKS: u64 = 16;
    const TARGET: u64 = 768;
    const LAG: u64 = TARGET / LAG_PART;

    fn rig() -> Rig {
        let mut rig = Rig::new();
        rig.event(|volumes| volumes.cache.partition_mut(TenantId(0)).target = TARGET as u32);
        rig
    }

    impl Rig {
        /// Reads a stream from its beginning up to a block; the volume counts as one on another server.
        fn read_stream(&mut self, blocks: u64) {
            for at in 0..blocks / READ_BLOCKS {
                let (start, end) = (at * READ_BLOCKS * BLOCK, (at + 1) * READ_BLOCKS * BLOCK);
                self.ask(at, command::READ, 0, start, end - start);
                self.complete_all();
                assert_eq!(self.answer(at), Some(0));
                // The same read belongs to the stream, and does not extend it.
                self.event(|volumes| {
                    if let Some(place) = volumes.note_read(ConnId(0), VOLUME, start, end) {
                        volumes.drop_passed(VOLUME, place);
                    }
                });
            }
        }

        fn cached(&self, blocks: std::ops::Range<u64>) -> usize {
            blocks.filter(|&number| self.volumes.cache.lookup(VOLUME, number).is_some()).count()
        }
    }

    #[test]
    fn a_stream_is_dropped_behind_its_reader_when_it_is_longer_than_the_partition() {
        let mut rig = rig();
        // Less what is read ahead.
        let fits = TARGET - 8 * READ_BLOCKS;
        rig.read_stream(fits);
        assert_eq!(rig.cached(0..fits), fits as usize);
        rig.read_stream(2 * TARGET);
        let behind = 2 * TARGET - LAG;
        assert_eq!(rig.cached(TARGET..behind), 0);
        assert_eq!(rig.cached(behind..2 * TARGET), LAG as usize);
    }

    #[test]
    fn what_is_dirty_or_in_use_stays() {
        let mut rig = rig();
        rig.read_stream(TARGET);
        let (dirty, used) = (TARGET + 7, TARGET + 9);
        rig.write(900, 0, dirty * BLOCK, BLOCK, 7);
        rig.ask(901, command::READ, 0, used * BLOCK, BLOCK);
        rig.complete_all();
        let id = rig.volumes.cache.lookup(VOLUME, used).unwrap();
        let frame = rig.volumes.cache.block(id).frame;
        rig.event(|volumes| volumes.cache.retain(frame));
        rig.read_stream(2 * TARGET);
        assert_eq!((rig.cached(dirty..dirty + 1), rig.cached(used..used + 1)), (1, 1));
        rig.event(|volumes| volumes.cache.release(frame));
    }
}
