//! Sorts records that are nearly in the order of their times: captures of several processors are merged by completion
//! or by buffer.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use engine::units::Nanos;
use sim::load::Record;

/// Records that are held back: 65,536 of 56 bytes. A record that is late by more of them stays late.
const HELD: usize = 1 << 16;

/// An iterator that is sorted as far as [`HELD`] records permit.
pub struct Sorted<I> {
    records: I,
    /// By time, then by position in the file.
    held: BinaryHeap<Reverse<(Nanos, u64, Record)>>,
    count: u64,
}

impl<I: Iterator<Item = Record>> Sorted<I> {
    /// Sorts `records`.
    pub fn new(records: I) -> Sorted<I> {
        Sorted { records, held: BinaryHeap::new(), count: 0 }
    }
}

impl<I: Iterator<Item = Record>> Iterator for Sorted<I> {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        while self.held.len() < HELD {
            let Some(record) = self.records.next() else { break };
            self.held.push(Reverse((record.time_ns, self.count, record)));
            self.count += 1;
        }
        self.held.pop().map(|Reverse((.., record))| record)
    }
}

#[cfg(test)]
mod tests {
    use sim::load::Op;

    use super::*;

    #[test]
    fn late_records_find_their_place_and_equals_keep_theirs() {
        let times = [5, 3, 9, 3, 7];
        let record =
            |(i, &time_ns): (usize, &u64)| Record { time_ns, op: Op::Read, offset: i as u64, bytes: 1, stream: 0 };
        let sorted: Vec<_> = Sorted::new(times.iter().enumerate().map(record)).map(|r| (r.time_ns, r.offset)).collect();
        assert_eq!(sorted, [(3, 1), (3, 3), (5, 0), (7, 4), (9, 2)]);
    }
}
