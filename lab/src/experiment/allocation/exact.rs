//! Exact simulation of two tiers of cache: block by block, without time.
//!
//! ```text
//!   requests ─► tier 1: LRU, write-back ─► reads that miss, write-backs ─► tier 2: LRU of any size (Mattson's stack)
//!                                      └─► blocks that it evicts ────────► tier 2: DEMOTE, one size at a time
//! ```
//!
//! A block that is written stays dirty in tier 1 for a stated number of requests, until it is the next to be evicted,
//! or until half of the tier is dirty. Under LRU the second tier keeps what is read from it and written to it. Under
//! DEMOTE (Wong and Wilkes, USENIX 2002) it drops what it has sent, and takes what the first tier evicts.
//!
//! Downside: requests are instantaneous, so nothing is in flight, and write-back joins no neighbours.

use std::collections::{HashMap, VecDeque};

use sim::load::{Op, Record};

use super::loads::blocks;

/// Requests with blocks numbered from 0 in the order of their first use.
pub struct Trace {
    /// First index into `blocks` and number of them, and whether it is a write.
    requests: Vec<(u32, u32, bool)>,
    blocks: Vec<u32>,
    distinct: usize,
    /// The first request that counts.
    counted_from: usize,
}

impl Trace {
    /// These requests; the first `before` of them only fill the caches.
    pub fn new(records: impl Iterator<Item = Record>, before: usize) -> Trace {
        let (mut numbers, mut requests, mut all) = (HashMap::new(), Vec::new(), Vec::new());
        for record in records.filter(|record| matches!(record.op, Op::Read | Op::Write)) {
            let first = all.len();
            for block in blocks(&record) {
                let next = numbers.len() as u32;
                all.push(*numbers.entry(block).or_insert(next));
            }
            requests.push((first as u32, (all.len() - first) as u32, record.op == Op::Write));
        }
        Trace { requests, blocks: all, distinct: numbers.len(), counted_from: before }
    }

    fn counted(&self) -> impl Iterator<Item = &(u32, u32, bool)> {
        self.requests[self.counted_from..].iter()
    }

    /// Reads of all requests that count.
    pub fn read_fraction(&self) -> f64 {
        let reads = self.counted().filter(|request| !request.2).count();
        reads as f64 / (self.requests.len() - self.counted_from) as f64
    }

    fn reads(&self) -> usize {
        self.counted().filter(|request| !request.2).count()
    }
}

/// Blocks in order of their last use.
struct Lru {
    /// By block, and a last entry for the ends: the blocks used next before and next after it.
    links: Vec<[u32; 2]>,
    is_in: Vec<bool>,
    len: usize,
}

const NEWER: usize = 0;
const OLDER: usize = 1;

impl Lru {
    fn new(distinct: usize) -> Lru {
        let end = distinct as u32;
        Lru { links: vec![[end; 2]; distinct + 1], is_in: vec![false; distinct], len: 0 }
    }

    fn remove(&mut self, block: u32) -> bool {
        let was_in = std::mem::replace(&mut self.is_in[block as usize], false);
        if was_in {
            let [newer, older] = self.links[block as usize];
            self.links[newer as usize][OLDER] = older;
            self.links[older as usize][NEWER] = newer;
            self.len -= 1;
        }
        was_in
    }

    fn push(&mut self, block: u32) {
        let end = (self.links.len() - 1) as u32;
        let newest = self.links[end as usize][OLDER];
        self.links[block as usize] = [end, newest];
        self.links[newest as usize][NEWER] = block;
        self.links[end as usize][OLDER] = block;
        self.is_in[block as usize] = true;
        self.len += 1;
    }

    /// Moves a block to the newest place; whether it was there.
    fn touch(&mut self, block: u32) -> bool {
        let was_in = self.remove(block);
        self.push(block);
        was_in
    }

    fn oldest(&self) -> Option<u32> {
        let end = self.links.len() - 1;
        (self.len > 0).then(|| self.links[end][NEWER])
    }
}

/// What the first tier sends to the second one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Passed {
    /// A read that missed, of this request.
    Read(u32, u32),
    /// A write-back.
    Write(u32),
    /// The block was evicted; it was clean.
    Evicted(u32),
}

/// A first tier of some size.
pub struct First {
    passed: Vec<Passed>,
    /// Of the reads that count: those that are hits here.
    hits: usize,
}

impl First {
    /// `frames` frames; a dirty block is written back after `lag` requests.
    pub fn new(trace: &Trace, frames: usize, lag: usize) -> First {
        let mut first = First { passed: Vec::new(), hits: 0 };
        let mut lru = Lru::new(trace.distinct);
        // By block, when it became dirty. Blocks that were written back are still in the queue.
        let (mut dirty_since, mut dirty, mut queue) = (vec![u32::MAX; trace.distinct], 0, VecDeque::new());
        for (at, &(start, count, is_write)) in trace.requests.iter().enumerate() {
            let counts = at >= trace.counted_from;
            while let Some(&(block, since)) = queue.front() {
                let is_dirty = dirty_since[block as usize] == since;
                if is_dirty && (since as usize + lag > at && 2 * dirty <= frames) {
                    break;
                }
                queue.pop_front();
                if is_dirty {
                    (dirty_since[block as usize], dirty) = (u32::MAX, dirty - 1);
                    first.passed.push(Passed::Write(block));
                }
            }
            let mut is_hit = true;
            for &block in &trace.blocks[start as usize..(start + count) as usize] {
                let was_in = lru.touch(block);
                if is_write && dirty_since[block as usize] == u32::MAX {
                    (dirty_since[block as usize], dirty) = (at as u32, dirty + 1);
                    queue.push_back((block, at as u32));
                }
                if !is_write && !was_in {
                    is_hit = false;
                    first.passed.push(Passed::Read(block, at as u32));
                }
                while lru.len > frames {
                    let oldest = lru.oldest().expect("it is not empty");
                    lru.remove(oldest);
                    if dirty_since[oldest as usize] == u32::MAX {
                        first.passed.push(Passed::Evicted(oldest));
                    } else {
                        (dirty_since[oldest as usize], dirty) = (u32::MAX, dirty - 1);
                        first.passed.push(Passed::Write(oldest));
                    }
                }
            }
            first.hits += usize::from(counts && !is_write && is_hit);
        }
        first
    }

    /// Hits of the reads.
    pub fn hit_ratio(&self, trace: &Trace) -> f64 {
        self.hits as f64 / trace.reads() as f64
    }

    /// The misses of reads in both tiers, for a second tier with LRU of any size.
    pub fn lru(&self, trace: &Trace) -> Misses {
        let mut stack = Stack::new(self.passed.len(), trace.distinct);
        let mut worst: Vec<u32> = Vec::new();
        let mut request = u32::MAX;
        for &passed in &self.passed {
            let (block, of) = match passed {
                Passed::Read(block, of) => (block, Some(of)),
                Passed::Write(block) => (block, None),
                Passed::Evicted(_) => continue,
            };
            let distance = stack.touch(block);
            let Some(of) = of.filter(|&of| of as usize >= trace.counted_from) else { continue };
            if of == request {
                let last = worst.last_mut().expect("it has one");
                *last = distance.max(*last);
            } else {
                worst.push(distance);
                request = of;
            }
        }
        worst.sort_unstable();
        Misses { distances: worst, reads: trace.reads() }
    }

    /// The miss ratio of reads in both tiers, for a second tier of `frames` frames with DEMOTE.
    pub fn demote(&self, trace: &Trace, frames: usize) -> f64 {
        let mut lru = Lru::new(trace.distinct);
        let (mut misses, mut request) = (0usize, u32::MAX);
        for &passed in &self.passed {
            match passed {
                Passed::Read(block, of) => {
                    let is_hit = lru.remove(block);
                    if !is_hit && of as usize >= trace.counted_from && of != request {
                        misses += 1;
                        request = of;
                    }
                }
                // The first tier has it, or has just evicted it as a dirty block.
                Passed::Write(_) => {}
                Passed::Evicted(block) => {
                    lru.touch(block);
                    if lru.len > frames {
                        let oldest = lru.oldest().expect("it is not empty");
                        lru.remove(oldest);
                    }
                }
            }
        }
        misses as f64 / trace.reads() as f64
    }
}

/// Misses in both tiers by the size of the second one.
pub struct Misses {
    /// Of each read that misses in the first tier: the least size of the second tier in which it is a miss; in order.
    distances: Vec<u32>,
    reads: usize,
}

impl Misses {
    /// The miss ratio of reads in both tiers.
    pub fn ratio(&self, frames: usize) -> f64 {
        let hits = self.distances.partition_point(|&distance| (distance as usize) < frames);
        (self.distances.len() - hits) as f64 / self.reads as f64
    }
}

/// Mattson's stack: how many other blocks were used since the last use of a block. A Fenwick tree over uses, in which
/// the last use of each block counts.
struct Stack {
    tree: Vec<u32>,
    last: Vec<u32>,
    now: usize,
}

impl Stack {
    fn new(uses: usize, distinct: usize) -> Stack {
        Stack { tree: vec![0; uses + 1], last: vec![u32::MAX; distinct], now: 0 }
    }

    /// The distance of this use; the maximum for the first one.
    fn touch(&mut self, block: u32) -> u32 {
        let last = std::mem::replace(&mut self.last[block as usize], self.now as u32);
        let distance = match last {
            u32::MAX => u32::MAX,
            last => {
                let since = self.sum(self.now) - self.sum(last as usize + 1);
                self.add(last as usize, -1);
                since as u32
            }
        };
        self.add(self.now, 1);
        self.now += 1;
        distance
    }

    /// The uses before `at` that count.
    fn sum(&self, mut at: usize) -> i64 {
        let mut sum = 0;
        while at > 0 {
            sum += i64::from(self.tree[at]);
            at &= at - 1;
        }
        sum
    }

    fn add(&mut self, at: usize, by: i32) {
        let mut at = at + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add_signed(by);
            at += at & at.wrapping_neg();
        }
    }
}

#[cfg(test)]
mod tests {
    use engine::units::BLOCK;
    use sim::rng::Rng;

    use super::*;

    fn records(seed: u64, count: usize, writes: bool) -> Vec<Record> {
        let mut rng = Rng::new(seed);
        let mut record = || {
            let hot = rng.below(2) == 0;
            let block = if hot { rng.below(20) } else { rng.below(200) };
            let op = if writes && rng.below(4) == 0 { Op::Write } else { Op::Read };
            Record { time_ns: 0, op, offset: block * BLOCK, bytes: BLOCK * (1 + rng.below(2)), stream: 0 }
        };
        (0..count).map(|_| record()).collect()
    }

    /// The same by lists.
    fn plainly(records: &[Record], before: usize, first: usize, second: usize, demote: bool) -> (f64, f64) {
        let (mut one, mut two): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
        let (mut hits, mut misses, mut reads) = (0, 0, 0);
        let touch = |list: &mut Vec<u64>, block: u64, most: usize| {
            list.retain(|&other| other != block);
            list.insert(0, block);
            (list.len() > most).then(|| list.pop().expect("one too many"))
        };
        for (at, record) in records.iter().enumerate() {
            let (mut all_first, mut all) = (true, true);
            for block in blocks(record) {
                let in_first = one.contains(&block);
                let in_second = two.contains(&block);
                if !in_first {
                    (all_first, all) = (false, all && in_second);
                    if demote {
                        two.retain(|&other| other != block);
                    } else {
                        touch(&mut two, block, second);
                    }
                }
                if let (Some(evicted), true) = (touch(&mut one, block, first), demote) {
                    touch(&mut two, evicted, second);
                }
            }
            if at >= before {
                reads += 1;
                hits += i32::from(all_first);
                misses += i32::from(!all);
            }
        }
        (f64::from(hits) / f64::from(reads), f64::from(misses) / f64::from(reads))
    }

    #[test]
    fn both_orders_are_what_lists_say() {
        let records = records(3, 6000, false);
        let trace = Trace::new(records.iter().copied(), 1000);
        for first in [5, 30, 100] {
            let of = First::new(&trace, first, 10);
            let misses = of.lru(&trace);
            for second in [1, 20, 60, 150] {
                assert_eq!(
                    (of.hit_ratio(&trace), misses.ratio(second)),
                    plainly(&records, 1000, first, second, false),
                    "{first} {second}"
                );
                let (_, expected) = plainly(&records, 1000, first, second, true);
                assert_eq!(of.demote(&trace, second), expected, "{first} {second}");
            }
        }
    }

    #[test]
    fn a_block_is_written_back_once_for_what_is_written_meanwhile() {
        let write = |block: u64| Record { time_ns: 0, op: Op::Write, offset: block * BLOCK, bytes: BLOCK, stream: 0 };
        let read = |block: u64| Record { op: Op::Read, ..write(block) };
        let all = [write(0), write(0), read(1), write(0), read(1), read(1), write(0)];
        let trace = Trace::new(all.into_iter(), 0);
        let passed = First::new(&trace, 10, 4).passed;
        assert_eq!(passed, [Passed::Read(1, 2), Passed::Write(0)], "after four requests");
        let trace = Trace::new([write(0), read(1), read(2)].into_iter(), 0);
        let passed = First::new(&trace, 2, 9).passed;
        assert_eq!(passed, [Passed::Read(1, 1), Passed::Read(2, 2), Passed::Write(0)], "when it is evicted");
    }

    #[test]
    fn requests_and_reads_are_counted() {
        let records = records(5, 4000, true);
        let trace = Trace::new(records.iter().copied(), 500);
        let reads = records[500..].iter().filter(|record| record.op == Op::Read).count();
        assert_eq!((trace.reads(), trace.read_fraction()), (reads, reads as f64 / 3500.0));
        let written =
            First::new(&trace, 20, 50).passed.iter().filter(|passed| matches!(passed, Passed::Write(_))).count();
        assert!((400..2000).contains(&written), "{written}");
    }
}
