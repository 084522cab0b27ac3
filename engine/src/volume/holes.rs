//! Holes: ranges that were never written, or were zeroed by the device. They read as zeros without a device request.
//!
//! The list is conservative: a hole that is missing from it costs a read of zeros, a hole that is wrongly in it returns
//! wrong data. So the number of ranges is bounded by forgetting some, which then count as data.

use std::ops::Range;

use rangemap::RangeSet;

use crate::units::BLOCK;

/// Ranges remembered for one volume: at most about 3 MiB of memory.
const RANGES_MAX: usize = 32 * 1024;

/// The holes of a volume, in bytes, at block boundaries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holes {
    ranges: RangeSet<u64>,
}

impl Holes {
    /// From ranges of bytes. Blocks that are covered only in part count as data.
    pub(crate) fn new(ranges: &[(u64, u64)]) -> Holes {
        let mut holes = Holes::default();
        for &(start, end) in ranges {
            holes.dig(start, end);
        }
        holes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Bytes in all of them.
    pub(crate) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether all of `start..end` reads as zero.
    pub(crate) fn contains(&self, start: u64, end: u64) -> bool {
        self.ranges.get(&start).is_some_and(|range| range.end >= end)
    }

    /// `start..end` reads as zero from now on; only its whole blocks are remembered.
    pub(crate) fn dig(&mut self, start: u64, end: u64) {
        let (start, end) = (start.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
        if start < end && self.ranges.len() < RANGES_MAX {
            self.ranges.insert(start..end);
        }
    }

    /// The blocks that `start..end` touches count as data from now on.
    pub(crate) fn fill(&mut self, start: u64, end: u64) {
        if self.is_empty() || planted!(HoleNotForgotten) {
            return;
        }
        let (start, end) = (start / BLOCK * BLOCK, end.next_multiple_of(BLOCK));
        let before = self.ranges.len();
        self.ranges.remove(start..end);
        if self.ranges.len() > before.max(RANGES_MAX) {
            self.forget_smaller_neighbour(start, end);
        }
    }

    fn forget_smaller_neighbour(&mut self, start: u64, end: u64) {
        let left = start.checked_sub(1).and_then(|at| self.ranges.get(&at)).cloned().unwrap_or(start..start);
        let right = self.ranges.get(&end).cloned().unwrap_or(end..end);
        let smaller = if left.end - left.start < right.end - right.start { left } else { right };
        if !smaller.is_empty() {
            self.ranges.remove(smaller);
        }
    }

    /// The extents of `start..end` without gaps, in order: range, and whether it is a hole.
    pub(crate) fn extents(&self, start: u64, end: u64) -> impl Iterator<Item = (Range<u64>, bool)> + '_ {
        let mut at = start;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let hole = self.ranges.get(&at).map(|range| range.end);
            let next_hole = || self.ranges.overlapping(at..end).next().map_or(end, |range| range.start);
            let past = hole.unwrap_or_else(next_hole).min(end);
            let extent = at..past;
            at = past;
            Some((extent, hole.is_some()))
        })
    }

    /// The first hole, cut to `most` bytes.
    pub(crate) fn first(&self, most: u64) -> Option<Range<u64>> {
        self.ranges.iter().next().map(|range| range.start..range.end.min(range.start + most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_fill_whole_blocks() {
        let mut holes = Holes::new(&[(0, 10 * BLOCK + 5)]);
        assert_eq!(holes.bytes(), 10 * BLOCK);
        holes.fill(BLOCK + 1, BLOCK + 2);
        assert!(holes.contains(0, BLOCK));
        assert!(!holes.contains(BLOCK, BLOCK + 1));
        let extents: Vec<_> = holes.extents(0, 12 * BLOCK).collect();
        assert_eq!(
            extents,
            [
                (0..BLOCK, true),
                (BLOCK..2 * BLOCK, false),
                (2 * BLOCK..10 * BLOCK, true),
                (10 * BLOCK..12 * BLOCK, false)
            ]
        );
    }

    #[test]
    fn the_number_of_ranges_is_bounded_and_errs_towards_data() {
        let blocks = 4 * RANGES_MAX as u64;
        let mut holes = Holes::new(&[(0, blocks * BLOCK)]);
        for block in (0..blocks).step_by(2) {
            holes.fill(block * BLOCK, (block + 1) * BLOCK);
            assert!(!holes.contains(block * BLOCK, block * BLOCK + 1));
        }
        assert!(holes.ranges.len() <= RANGES_MAX);
    }
}
