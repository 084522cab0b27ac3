//! Measured disk time of a tenant's block reads and writes.
//!
//! A disk with heads serves one request at a time, so the disk time of a request is the time since the previous
//! completion, or since its submission if that is later. On other devices it is the part of the device's throughput
//! that the request takes. Writes are measured by the number of dirty blocks at that time: the more are dirty, the more
//! neighbours are written in one request.
//!
//! Downside: a tenant that reads sequentially and at random has one cost for both, although its cache mostly absorbs
//! the random reads.

use crate::units::Nanos;

/// Octaves of dirty blocks: more than there are frames.
const OCTAVES: usize = 32;
/// Blocks after which a measurement has half its weight: some seconds of a busy disk.
const HALF_LIFE_BLOCKS: f64 = 16_384.0;
/// Fewest blocks of an octave for a valid measurement.
const BLOCKS_LEAST: f64 = 64.0;
/// Cost of a miss before the first measurement: half a revolution at 7,200 rpm and a medium seek, as in
/// `disk::policy::cost_ns`.
const UNKNOWN_NS: f64 = 8e6;

/// What device time was used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DiskUse {
    /// Reads for which a client waits.
    Fill,
    /// Reads ahead of a stream.
    Prefetch,
    /// Writes of dirty data that no client waits for.
    WriteBack,
    /// Durable writes, writes that a flush waits for, and flushes of the device.
    Sync,
}

/// Number of [`DiskUse`]s.
pub(crate) const DISK_USES: usize = 4;

#[derive(Clone, Copy, Default, Debug)]
struct Span {
    time_ns: f64,
    blocks: f64,
}

impl Span {
    fn add(&mut self, time_ns: Nanos, blocks: usize) {
        self.time_ns += time_ns as f64;
        self.blocks += blocks as f64;
        if self.blocks > HALF_LIFE_BLOCKS {
            self.time_ns /= 2.0;
            self.blocks /= 2.0;
        }
    }

    fn mean(&self, blocks_least: f64) -> Option<f64> {
        (self.blocks >= blocks_least).then(|| self.time_ns / self.blocks)
    }
}

/// Disk time of one tenant's blocks.
#[derive(Clone, Default, Debug)]
pub(crate) struct Cost {
    reads: Span,
    writes: [Span; OCTAVES],
    /// Writes with any number of dirty blocks.
    all_writes: Span,
    /// Total disk time by [`DiskUse`].
    time_ns: [f64; DISK_USES],
}

impl Cost {
    /// Records a read of `blocks` blocks.
    pub(crate) fn read(&mut self, time_ns: Nanos, blocks: usize) {
        self.reads.add(time_ns, blocks);
    }

    /// Records disk time by its use.
    pub(crate) fn add(&mut self, of: DiskUse, time_ns: Nanos) {
        self.time_ns[of as usize] += time_ns as f64;
    }

    /// Records a write of `blocks` blocks, or a flush (0 blocks), with `dirty` unwritten blocks in the partition.
    pub(crate) fn wrote(&mut self, time_ns: Nanos, blocks: usize, dirty: u32) {
        self.writes[octave(u64::from(dirty))].add(time_ns, blocks);
        self.all_writes.add(time_ns, blocks);
    }

    /// Total disk time by [`DiskUse`], nanoseconds.
    pub(crate) fn time_ns(&self) -> [f64; DISK_USES] {
        self.time_ns
    }

    /// Disk time of a written block with any number of dirty blocks, nanoseconds. `None` before the first write.
    pub(crate) fn any_write_ns(&self) -> Option<f64> {
        self.all_writes.mean(1.0)
    }

    /// Disk time of a read block, nanoseconds.
    pub(crate) fn read_ns(&self) -> f64 {
        self.reads.mean(1.0).or_else(|| self.written_ns(0)).unwrap_or(UNKNOWN_NS)
    }

    /// Disk time of a written block with `dirty` dirty blocks, nanoseconds.
    pub(crate) fn write_ns(&self, dirty: u64) -> f64 {
        self.written_ns(dirty).or(self.reads.mean(1.0)).unwrap_or(UNKNOWN_NS)
    }

    /// As measured in this octave of dirty blocks; else in the nearest lower octave; else in the nearest higher one.
    fn written_ns(&self, dirty: u64) -> Option<f64> {
        let (below, above) = self.writes.split_at(octave(dirty) + 1);
        below.iter().rev().chain(above).find_map(|span| span.mean(BLOCKS_LEAST))
    }
}

fn octave(blocks: u64) -> usize {
    (blocks.max(1).ilog2() as usize).min(OCTAVES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_cost_what_they_did_with_as_much_dirt() {
        let mut cost = Cost::default();
        assert_eq!((cost.read_ns(), cost.write_ns(7)), (UNKNOWN_NS, UNKNOWN_NS));
        cost.wrote(640_000, 64, 100);
        assert_eq!((cost.read_ns(), cost.write_ns(7)), (10_000.0, 10_000.0), "all that is known");
        cost.read(9_000, 3);
        cost.wrote(128_000, 64, 1000);
        let at = [1, 64, 127, 511, 512, 1 << 40].map(|dirty| cost.write_ns(dirty));
        assert_eq!((cost.read_ns(), at), (3_000.0, [10_000.0, 10_000.0, 10_000.0, 10_000.0, 2_000.0, 2_000.0]));
    }

    #[test]
    fn what_was_long_ago_weighs_less() {
        let mut cost = Cost::default();
        (0..100).for_each(|_| cost.read(1_000_000, 1000));
        (0..100).for_each(|_| cost.read(3_000_000, 1000));
        assert!((2_950.0..=3_000.0).contains(&cost.read_ns()), "{}", cost.read_ns());
    }
}
