//! The positions of a probe's requests.
//!
//! With random positions, a mean within some hundredths takes thousands of seeks, and a hard disk has time for
//! hundreds. So the space is divided into cells, and a walk goes from every cell to every cell exactly once, in random
//! order (an Eulerian circuit of the complete graph). All seek distances then have their proper frequency; only the
//! position within a cell and the rotation are random. This is stratified sampling of pairs. On the simulated drives a
//! quarter of the requests suffices.

use std::ops::Range;

use crate::dice::Dice;

/// The bytes that a probe may use: ranges of the device or of a file, treated as one contiguous space.
#[derive(Clone, Debug)]
pub struct Space {
    ranges: Vec<Range<u64>>,
    block: u64,
}

impl Space {
    /// A space of these ranges, in the order of their positions, on a device with this block size. Parts of blocks and
    /// empty ranges are dropped.
    pub fn new(ranges: impl IntoIterator<Item = Range<u64>>, block: u64) -> Space {
        let whole = |range: Range<u64>| range.start.next_multiple_of(block)..range.end / block * block;
        let ranges = ranges.into_iter().map(whole).filter(|range| range.start < range.end).collect();
        Space { ranges, block }
    }

    /// All of a device of this many bytes.
    pub fn whole(bytes: u64, block: u64) -> Space {
        Space::new(std::iter::once(0..bytes), block)
    }

    /// Its size, bytes.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// The largest request that fits into every range.
    pub fn longest(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).min().unwrap_or(0)
    }

    /// The offset on the device of a request for `len` bytes at `place` of the space. A request never crosses the end
    /// of a range: near it, the request moves to the beginning of the next range. Beyond the last range the space
    /// starts over.
    pub fn offset(&self, place: u64, len: u64) -> u64 {
        let mut left = place % self.bytes().max(1) / self.block * self.block;
        let mut ranges = self.ranges.iter();
        for range in ranges.by_ref() {
            let bytes = range.end - range.start;
            if left + len <= bytes {
                return range.start + left;
            }
            if left < bytes {
                break;
            }
            left -= bytes;
        }
        ranges.next().or(self.ranges.first()).map_or(0, |range| range.start)
    }
}

/// A random walk over a space, in which all distances have their proper frequency.
#[derive(Clone, Debug)]
pub struct Walk {
    cells: u64,
    path: Vec<u64>,
}

impl Walk {
    /// A walk over this many cells; one round of it has the square of their number of steps.
    pub fn new(cells: u64) -> Walk {
        Walk { cells, path: Vec::new() }
    }

    /// The next place in a space of `bytes`.
    pub fn next(&mut self, bytes: u64, dice: &mut Dice) -> u64 {
        if self.path.is_empty() {
            self.path = circuit(self.cells, dice);
        }
        let cell = self.path.pop().unwrap_or(0);
        let width = bytes / self.cells;
        cell * width + dice.below(width)
    }
}

/// An order of the cells in which every pair of neighbours occurs once, the last and the first one included
/// (Hierholzer's algorithm).
fn circuit(cells: u64, dice: &mut Dice) -> Vec<u64> {
    let mut ways: Vec<Vec<u64>> = (0..cells).map(|_| dice.shuffled(cells)).collect();
    let (mut stack, mut path) = (vec![dice.below(cells)], Vec::new());
    while let Some(&at) = stack.last() {
        match ways[at as usize].pop() {
            Some(next) => stack.push(next),
            None => path.extend(stack.pop()),
        }
    }
    // The circuit ends where it began.
    path.pop();
    path
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every step from cell to cell occurs once in a round.
        #[test]
        fn a_walk_takes_every_step_once(cells in 1u64..20, seed in any::<u64>()) {
            let path = circuit(cells, &mut Dice::new(seed));
            let next = path.iter().cycle().skip(1);
            let steps: BTreeSet<_> = path.iter().zip(next).collect();
            prop_assert_eq!((path.len() as u64, steps.len() as u64), (cells * cells, cells * cells));
        }

        /// A request lies within a range and has whole blocks, for any place.
        #[test]
        fn requests_stay_inside(
            lengths in prop::collection::vec((0u64..50, 4u64..40), 1..6), place in any::<u64>(), blocks in 1u64..5
        ) {
            let mut at = 0;
            let ranges: Vec<_> = lengths.iter().map(|&(gap, length)| {
                let start = at + gap * 4096;
                at = start + length * 4096;
                start..at
            }).collect();
            let space = Space::new(ranges.clone(), 4096);
            let len = (blocks * 4096).min(space.longest());
            let offset = space.offset(place, len);
            prop_assert!(offset.is_multiple_of(4096));
            let fits = ranges.iter().any(|r| r.start <= offset && offset + len <= r.end);
            prop_assert!(fits, "{} + {} in {:?}", offset, len, ranges);
        }
    }

    #[test]
    fn gaps_are_left_out() {
        let space = Space::new([0..8192, 100 * 4096..102 * 4096], 4096);
        assert_eq!((space.bytes(), space.longest()), (16384, 8192));
        assert_eq!([0, 5000, 8192, 16384].map(|place| space.offset(place, 4096)), [0, 4096, 100 * 4096, 0]);
        assert_eq!(space.offset(4096, 8192), 100 * 4096, "what does not fit begins in the next range");
    }
}
