//! What a tenant's cache absorbs, and what it would absorb if it were larger or smaller: its miss ratio against cache
//! size, always, from a sample of its requests.
//!
//! ```text
//!   volume/read, write, prefetch ─► hash < threshold? no: counted, that is all
//!                                      │ yes
//!                                      ├─► samples: how many other sampled blocks since?  ─► tallies: the curve of LRU
//!                                      └─► miniature caches of another policy             ─► hits: what if
//! ```
//!
//! Absorbed is what needs no disk: reads of what is in the cache, and writes to blocks that are still dirty, with no
//! flush and no write-back between. Reads and writes are told apart. A block that was read ahead and is then asked for
//! is absorbed only where the cache would have had it without. Holes are absorbed by any size.
//!
//! **Fading.** A reference weighs half as much after four times as many references as the curve remembers blocks (at
//! least 65,536). Counted in references and not in seconds: a curve must have seen a working set a few times over to
//! know it, however long that takes, and a tenant that rests for a night has the same needs in the morning.
//!
//! **Memory** is fixed: see [`Limits::within`]. Nothing is allocated on the data path.
//!
//! Downside: what is near each other is written back together, which samples cannot see; so writes of neighbours count
//! as absorbed a little more than they are. Frames of payload and replies, which a partition also holds, are not in the
//! sizes. `docs/design/curve.md` has the formulas.

mod bucket;
mod feed;
mod miniature;
mod recency;
mod samples;

use crate::cache::EvictionPolicy;
use crate::disk::VolumeId;
use crate::units::{MILLISECOND, Nanos, SectorMask};
pub(crate) use feed::BYTES_PER_FRAME;

use bucket::{BUCKETS, Bucket, Tally, blocks, bucket};
use miniature::Miniature;
use samples::{Dirt, Samples};

/// Hashes are below.
const ALL: u64 = 1 << 32;

/// A reference comes soon after another one if at most one in so many of the samples was referred to between: hot
/// blocks do.
const SOON: u32 = 64;

/// The shortest half-life, references: enough that noise is below a percent (65,536 references at a rate of 1/8 are
/// 8,192).
const HALF_LIFE_MIN: u64 = 1 << 16;
/// A half-life in blocks that the curve remembers: a working set has been used a few times before half of its first use
/// fades.
const HALF_LIFE_ROUNDS: u64 = 4;
/// Steps of a half-life: how often weights change, and how often it is looked for what is to be forgotten.
const STEPS: u64 = 64;
/// What a step leaves of a weight: 0.5 to the power of 1/64.
const STEP_FACTOR: f64 = 0.989_228_013_193_975_5;

/// Most samples of a curve: on traces, its error is below one percent with them; and its index has 16,384 places.
const SAMPLES_MAX: usize = 7168;
/// Most places of a miniature cache.
const PLACES_MAX: usize = 340;
/// The smallest miniature cache, blocks: 4 MiB.
const MINIATURE_MIN: u64 = 1024;
/// At most one block in 2^this is sampled, so that a tenant whose blocks are few does not pay for each of them.
const RATE_MAX_SHIFT: u32 = 2;
/// The part of blocks that a miniature cache sees at most, for the same reason. All of them together see half.
const MINIATURE_RATE_MAX: f64 = 0.125;

/// What a curve may use.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Blocks in the table at once; `None`: as many as there are.
    pub samples_max: Option<usize>,
    /// The largest cache size of interest, blocks.
    pub blocks_max: u64,
    /// At most one block in 2^this is sampled.
    pub rate_max_shift: u32,
    /// References weigh less as others come.
    pub fades: bool,
    /// Places of a miniature cache; 0 for none, `usize::MAX` for caches that are not in miniature.
    pub places_max: usize,
    /// Whose miniature caches: the policy that is asked about when it is not LRU.
    pub what_if: EvictionPolicy,
    /// Dirty blocks are written after this long.
    pub dirty_age_max_ns: Nanos,
}

impl Limits {
    /// What fits into `bytes`, for sizes up to `blocks_max`: 1 MiB is enough for everything.
    pub fn within(bytes: usize, blocks_max: u64, dirty_age_max_ns: Nanos) -> Limits {
        let left = bytes.saturating_sub(size_of::<Curve>());
        let caches = sizes(blocks_max).count();
        let places = (0..=PLACES_MAX).rev().find(|&places| caches * Miniature::bytes(places) <= left / 8 * 3);
        let samples = (0..=SAMPLES_MAX).rev().step_by(16).find(|&samples| Samples::bytes(samples) <= left / 8 * 5);
        Limits {
            samples_max: Some(samples.unwrap_or(0).max(16)),
            blocks_max,
            rate_max_shift: RATE_MAX_SHIFT,
            fades: true,
            places_max: places.unwrap_or(0),
            what_if: EvictionPolicy::Sieve,
            dirty_age_max_ns,
        }
    }

    /// Everything, exactly: for tests, and to see how far from it a sample is.
    pub fn exact(blocks_max: u64, dirty_age_max_ns: Nanos) -> Limits {
        Limits {
            samples_max: None,
            blocks_max,
            rate_max_shift: 0,
            fades: false,
            places_max: usize::MAX,
            what_if: EvictionPolicy::Sieve,
            dirty_age_max_ns,
        }
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        let caches = sizes(self.blocks_max).count() * Miniature::bytes(self.places_max.min(PLACES_MAX));
        size_of::<Curve>() + Samples::bytes(self.samples_max.unwrap_or(0)) + caches
    }
}

/// The capacity of an index of so many entries that never grows: one that is at most half full when what was removed
/// has filled it is put in order in place (hashbrown, `reserve_rehash`), and nothing is allocated.
fn index_capacity(entries: usize) -> usize {
    2 * entries
}

/// Bytes of such an index: numbers, and a byte of control for each.
fn index_bytes(entries: usize) -> usize {
    (index_capacity(entries) * 8 / 7).next_power_of_two() * 5
}

/// The sizes of miniature caches: an octave apart.
fn sizes(blocks_max: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(MINIATURE_MIN), |size| size.checked_mul(2)).take_while(move |&size| size <= blocks_max)
}

/// A block of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Block {
    number: u64,
    volume: u32,
}

/// How a write is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ack {
    /// From the cache: it stays dirty until it is old or flushed.
    Cached,
    /// From the medium.
    Durable,
}

/// One size and what would go to the disk with it, 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// Blocks of cache.
    pub blocks: u64,
    /// Of block reads. `None` without any.
    pub reads: Option<f64>,
    /// Of block writes. `None` without any.
    pub writes: Option<f64>,
    /// Of both.
    pub all: Option<f64>,
}

/// A curve at one moment.
#[derive(Clone, PartialEq, Debug)]
pub struct View {
    /// Under which policy.
    pub policy: EvictionPolicy,
    /// By size, smallest first. Between points it is about straight.
    pub points: Vec<Point>,
    /// Block reads that it stands for; less than there were, because it fades.
    pub reads: f64,
    /// Block writes that it stands for.
    pub writes: f64,
    /// The part of blocks that is sampled.
    pub rate: f64,
    /// Blocks that are sampled.
    pub samples: u32,
}

impl View {
    /// What would go to the disk with `size` blocks of cache, of reads and writes: between points, a straight line.
    pub fn misses(&self, size: u64) -> Option<f64> {
        self.between(size, |point| point.all)
    }

    /// The same, of reads.
    pub fn misses_of_reads(&self, size: u64) -> Option<f64> {
        self.between(size, |point| point.reads)
    }

    /// The same, of writes.
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

/// The curve of one tenant.
#[derive(Debug)]
pub struct Curve {
    limits: Limits,
    seed: u64,
    samples: Samples,
    /// Smallest first.
    caches: Vec<Miniature>,
    /// Hashes that anything here wants are below.
    admitted: u64,
    reads: Tally,
    writes: Tally,
    /// Block reads and writes so far.
    references: u64,
    /// When the next step of fading is due, in references.
    step_at: u64,
    /// By `VolumeId`.
    flushes: Vec<u32>,
}

impl Curve {
    /// A curve of a tenant that has asked for nothing yet. The seed chooses which blocks are sampled.
    pub fn new(limits: Limits, seed: u64) -> Curve {
        let rate_max = if limits.places_max == usize::MAX { 1.0 } else { MINIATURE_RATE_MAX };
        let sizes = sizes(limits.blocks_max).filter(|_| limits.places_max > 0);
        let mut curve = Curve {
            limits,
            seed,
            samples: Samples::new(limits),
            caches: sizes.map(|size| Miniature::new(limits.what_if, size, limits.places_max, rate_max)).collect(),
            admitted: 0,
            reads: Tally::default(),
            writes: Tally::default(),
            references: 0,
            step_at: HALF_LIFE_MIN / STEPS,
            flushes: Vec::new(),
        };
        curve.note_admitted();
        curve
    }

    fn note_admitted(&mut self) {
        let caches = self.caches.iter().map(Miniature::rate).fold(0.0, f64::max);
        self.admitted = self.samples.admitted().max((caches * ALL as f64) as u64);
    }

    /// Sectors of a block are read; `hole` if they were never written, and so are nowhere.
    #[inline]
    pub fn read(&mut self, now: Nanos, volume: VolumeId, number: u64, sectors: SectorMask, hole: bool) {
        self.reads.count(1);
        if let Some(hash) = self.refer(volume, number) {
            self.read_sampled(now, Block { number, volume: volume.0 }, hash, sectors, hole);
        }
    }

    /// Sectors of a block are written.
    #[inline]
    pub fn write(&mut self, now: Nanos, volume: VolumeId, number: u64, sectors: SectorMask, ack: Ack) {
        self.writes.count(1);
        if let Some(hash) = self.refer(volume, number) {
            self.write_sampled(now, Block { number, volume: volume.0 }, hash, sectors, ack);
        }
    }

    /// A block is read though nobody has asked for it.
    #[inline]
    pub fn read_ahead(&mut self, now: Nanos, volume: VolumeId, number: u64) {
        let hash = self.hash(volume, number);
        if u64::from(hash) < self.admitted {
            self.read_ahead_sampled(now, Block { number, volume: volume.0 }, hash);
        }
    }

    /// A volume of the tenant is opened; nothing of it is in the cache.
    pub fn opened(&mut self, volume: VolumeId) {
        let volumes = self.flushes.len().max(volume.0 as usize + 1);
        self.flushes.resize(volumes, 0);
        self.dropped(volume, 0, u64::MAX);
    }

    /// Everything dirty of a volume is going to the disk.
    pub fn flushed(&mut self, volume: VolumeId) {
        let flushes = &mut self.flushes[volume.0 as usize];
        *flushes = flushes.wrapping_add(1);
    }

    /// The blocks `first..past` of a volume are dropped from the cache, dirt and all: they were trimmed or zeroed. What
    /// was referred to before them counts as nearer than it is, by as much as was dropped, until it is referred to
    /// again.
    pub fn dropped(&mut self, volume: VolumeId, first: u64, past: u64) {
        if past - first > 4 * u64::from(self.samples.recorded()) {
            let gone = |block: &Block| block.volume == volume.0 && (first..past).contains(&block.number);
            self.samples.forget_all(gone);
            return self.caches.iter_mut().for_each(|cache| cache.forget_all(gone));
        }
        for number in first..past {
            let hash = self.hash(volume, number);
            if u64::from(hash) < self.admitted {
                let block = Block { number, volume: volume.0 };
                self.samples.forget(block, hash);
                self.caches.iter_mut().for_each(|cache| cache.forget(block, hash));
            }
        }
    }

    /// Block reads and writes so far.
    pub fn references(&self) -> u64 {
        self.references
    }

    /// What it may use.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What is known of it now, under LRU or under the policy of the miniature caches.
    pub fn view(&self, policy: EvictionPolicy) -> View {
        let weights = (self.reads.weight(), self.writes.weight());
        let points = match policy {
            EvictionPolicy::Lru => self.points_of_lru(),
            _ => self.points_of_caches(),
        };
        View {
            policy,
            points: points
                .map(|(blocks, reads, writes)| {
                    let part = |misses: Option<f64>, weight: f64| misses.map_or(0.0, |misses| misses * weight);
                    let all = weights.0 + weights.1;
                    let both = part(reads, weights.0) + part(writes, weights.1);
                    Point { blocks, reads, writes, all: (all > 0.0).then(|| both / all) }
                })
                .collect(),
            reads: weights.0,
            writes: weights.1,
            rate: self.samples.rate(),
            samples: self.samples.recorded(),
        }
    }

    fn points_of_lru(&self) -> Box<dyn Iterator<Item = (u64, Option<f64>, Option<f64>)> + '_> {
        let (reads, writes) = (self.reads.misses(), self.writes.misses());
        let past = usize::from(bucket(self.limits.blocks_max)).min(BUCKETS - 1) + 1;
        Box::new((0..past).map(move |at| (blocks(at as Bucket), reads.map(|r| r[at]), writes.map(|w| w[at]))))
    }

    fn points_of_caches(&self) -> Box<dyn Iterator<Item = (u64, Option<f64>, Option<f64>)> + '_> {
        let misses = |tally: &Tally, kind: &miniature::Kind, cache: &Miniature| {
            let expected = tally.weight() * cache.rate();
            (expected > 0.0).then(|| kind.misses(expected, tally.soon_absorbed(bucket(cache.size))))
        };
        Box::new(self.caches.iter().map(move |cache| {
            (cache.size, misses(&self.reads, &cache.reads, cache), misses(&self.writes, &cache.writes, cache))
        }))
    }

    #[inline]
    fn refer(&mut self, volume: VolumeId, number: u64) -> Option<u32> {
        self.references += 1;
        if self.references >= self.step_at {
            self.step();
        }
        let hash = self.hash(volume, number);
        (u64::from(hash) < self.admitted).then_some(hash)
    }

    /// A block's number among all, by which it is sampled or not: the finaliser of MurmurHash3 on 64 bits.
    #[inline]
    fn hash(&self, volume: VolumeId, number: u64) -> u32 {
        let mut hash = number ^ u64::from(volume.0) << 48 ^ self.seed;
        hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        (hash >> 32) as u32
    }

    fn dirt(&self, now: Nanos, volume: u32) -> Dirt {
        Dirt {
            now_ms: (now / MILLISECOND) as u32,
            age_max_ms: (self.limits.dirty_age_max_ns / MILLISECOND) as u32,
            flushes: self.flushes[volume as usize],
        }
    }

    #[inline(never)]
    fn read_sampled(&mut self, now: Nanos, block: Block, hash: u32, sectors: SectorMask, hole: bool) {
        if hole {
            if u64::from(hash) < (self.samples.rate() * ALL as f64) as u64 {
                self.reads.record(0, 1.0 / self.samples.rate(), false);
            }
            return self.caches_of(hash).for_each(|cache| cache.reads.count(true));
        }
        if self.samples_admit(hash)
            && let Some(outcome) = self.samples.read(block, hash, self.references, sectors)
        {
            self.reads.record(outcome.absorbed_by, outcome.weight, outcome.soon);
        }
        let now = self.dirt(now, block.volume);
        self.caches_of(hash).for_each(|cache| cache.read(block, hash, sectors, &now));
    }

    #[inline(never)]
    fn write_sampled(&mut self, now: Nanos, block: Block, hash: u32, sectors: SectorMask, ack: Ack) {
        let (now, durable) = (self.dirt(now, block.volume), ack == Ack::Durable);
        if self.samples_admit(hash)
            && let Some(outcome) = self.samples.write(block, hash, self.references, sectors, (!durable).then_some(now))
        {
            self.writes.record(outcome.absorbed_by, outcome.weight, outcome.soon);
        }
        for cache in self.caches_of(hash) {
            cache.write(block, hash, sectors, durable, &now);
        }
    }

    #[inline(never)]
    fn read_ahead_sampled(&mut self, now: Nanos, block: Block, hash: u32) {
        if self.samples_admit(hash) {
            self.samples.read_ahead(block, hash, self.references);
        }
        let now = self.dirt(now, block.volume);
        self.caches_of(hash).for_each(|cache| cache.read_ahead(block, hash, &now));
    }

    /// The miniature caches that a block is in: the larger what they stand for, the fewer blocks they see.
    fn caches_of(&mut self, hash: u32) -> impl Iterator<Item = &mut Miniature> {
        self.caches.iter_mut().take_while(move |cache| cache.admits(hash))
    }

    fn samples_admit(&mut self, hash: u32) -> bool {
        if u64::from(hash) >= self.samples.admitted() {
            return false;
        }
        let before = self.samples.admitted();
        let admitted = self.samples.admits(hash);
        if self.samples.admitted() != before {
            self.note_admitted();
        }
        admitted
    }

    #[inline(never)]
    fn step(&mut self) {
        let half_life = (HALF_LIFE_ROUNDS * self.samples.blocks()).max(HALF_LIFE_MIN);
        self.step_at = self.references + half_life / STEPS;
        if !self.limits.fades {
            return;
        }
        self.reads.fade(STEP_FACTOR);
        self.writes.fade(STEP_FACTOR);
        self.caches.iter_mut().for_each(|cache| cache.fade(STEP_FACTOR));
        self.samples.tidy(self.references, half_life);
        self.note_admitted();
    }
}

/// A hash for a table: the sampled ones are all small, tables want the upper bits too.
fn spread(hash: u32) -> u64 {
    (u64::from(hash) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests;
