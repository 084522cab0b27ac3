//! Views of a curve, and the counts from which a view follows.
//!
//! Computing a view takes about 20 us, copying the counts (6 KiB) about one. So the server of a disk copies counts,
//! and the planner, on another thread, computes views.

use super::bucket::{BUCKETS, Bucket, Tally, blocks, bucket};
use super::samples::TIMES;
use super::{Reuse, miniature};
use crate::eviction::Policy as EvictionPolicy;

/// A cache size and its miss ratios, 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// Cache size, blocks.
    pub blocks: u64,
    /// Miss ratio of block reads. `None` without reads.
    pub reads: Option<f64>,
    /// Miss ratio of block writes. `None` without writes.
    pub writes: Option<f64>,
    /// Miss ratio of both.
    pub all: Option<f64>,
}

/// The curve at one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct View {
    /// The policy that it describes.
    pub policy: EvictionPolicy,
    /// Smallest size first. Linear interpolation between points is a good approximation.
    pub points: Vec<Point>,
    /// Block reads that the curve represents; fewer than there were, because weights fade.
    pub reads: f64,
    /// Block writes that the curve represents.
    pub writes: f64,
    /// Reuse by reads that the points do not show.
    pub reuse: Reuse,
    /// The sampling rate.
    pub rate: f64,
    /// The number of sampled blocks.
    pub samples: u32,
}

impl View {
    /// Miss ratio of reads and writes with `size` blocks of cache, interpolated linearly between points.
    pub fn misses(&self, size: u64) -> Option<f64> {
        self.between(size, |point| point.all)
    }

    /// Miss ratio of reads, likewise.
    pub fn misses_of_reads(&self, size: u64) -> Option<f64> {
        self.between(size, |point| point.reads)
    }

    /// Miss ratio of writes, likewise.
    pub fn misses_of_writes(&self, size: u64) -> Option<f64> {
        self.between(size, |point| point.writes)
    }

    fn between(&self, size: u64, of: impl Fn(&Point) -> Option<f64>) -> Option<f64> {
        let past = self.points.partition_point(|point| point.blocks < size);
        let last = self.points.last()?;
        let Some(after) = self.points.get(past) else { return of(last) };
        let Some(before) = past.checked_sub(1).map(|at| &self.points[at]) else { return of(after) };
        let part = (size - before.blocks) as f64 / (after.blocks - before.blocks) as f64;
        Some(of(before)? + (of(after)? - of(before)?) * part)
    }
}

/// What a curve has counted.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    pub(super) policy: EvictionPolicy,
    pub(super) reads: Tally,
    pub(super) writes: Tally,
    /// The miniature caches, smallest first; none under LRU.
    pub(super) caches: Vec<miniature::Counts>,
    /// The largest cache size of interest, blocks.
    pub(super) blocks_max: u64,
    /// The sampling rate, and the number of sampled blocks.
    pub(super) rate: f64,
    pub(super) samples: u32,
    /// Sampled blocks that clients read once, twice, three times; and those that were prefetched first.
    pub(super) times: ([u32; TIMES], u32),
    /// Whether the working set moves.
    pub(super) moves: bool,
}

impl Counts {
    /// The curve.
    pub(crate) fn view(&self) -> View {
        let weights = (self.reads.weight(), self.writes.weight());
        let point = |(blocks, reads, writes): (u64, Option<f64>, Option<f64>)| {
            let part = |misses: Option<f64>, weight: f64| misses.map_or(0.0, |misses| misses * weight);
            let all = weights.0 + weights.1;
            let both = part(reads, weights.0) + part(writes, weights.1);
            Point { blocks, reads, writes, all: (all > 0.0).then(|| both / all) }
        };
        View {
            policy: self.policy,
            points: match self.policy {
                EvictionPolicy::Lru => self.points_of_lru().map(point).collect(),
                _ => self.points_of_caches().map(point).collect(),
            },
            reads: weights.0,
            writes: weights.1,
            reuse: Reuse::new(&self.reads, self.samples, self.times, self.moves, self.rate),
            rate: self.rate,
            samples: self.samples,
        }
    }

    fn points_of_lru(&self) -> impl Iterator<Item = (u64, Option<f64>, Option<f64>)> {
        let (reads, writes) = (self.reads.misses(), self.writes.misses());
        let past = usize::from(bucket(self.blocks_max)).min(BUCKETS - 1) + 1;
        (0..past).map(move |at| (blocks(at as Bucket), reads.map(|r| r[at]), writes.map(|w| w[at])))
    }

    pub(super) fn points_of_caches(&self) -> impl Iterator<Item = (u64, Option<f64>, Option<f64>)> + '_ {
        let misses = |tally: &Tally, kind: &miniature::Kind, cache: &miniature::Counts| {
            let expected = tally.weight() * cache.rate;
            (expected > 0.0).then(|| kind.misses(expected, tally.soon_absorbed(bucket(cache.size))))
        };
        self.caches.iter().map(move |cache| {
            (cache.size, misses(&self.reads, &cache.reads, cache), misses(&self.writes, &cache.writes, cache))
        })
    }
}
