//! Miss-ratio curves: which part of its requests a tenant's cache absorbs, and would absorb at every other size.
//! Continuously, from a sample of its requests.
//!
//! ```text
//!   volume/read, write, prefetch ─► hash < threshold? no: counted, nothing else
//!                                      │ yes
//!                                      ├─► samples: how many other sampled blocks since?  ─► tallies: the curve of LRU
//!                                      └─► miniature caches of another policy             ─► hits of that policy
//! ```
//!
//! A reference is absorbed if it needs no disk request: a read of cached data, or a write to a block that is still
//! dirty, without a flush or write-back in between. Reads and writes are counted separately. The first read of a
//! prefetched block is absorbed only if the cache would have had the block without the prefetch. Holes are absorbed at
//! any size.
//!
//! **Fading.** The weight of a reference halves after four times as many references as the curve remembers blocks (at
//! least 65,536). The unit is references and not seconds: a curve must see a working set several times to know it,
//! however long that takes, and a tenant that is idle at night has the same needs in the morning.
//!
//! **Memory** is fixed: see [`Limits::within`]. Nothing is allocated on the data path.
//!
//! Downside: write-back combines neighbouring blocks, which a sample cannot see, so slightly more writes count as
//! absorbed than are. The sizes do not include frames of payload and replies, which a partition also holds.
//! `docs/design/curve.md` has the formulas.

mod bucket;
mod closed;
mod cost;
mod dirty;
mod miniature;
mod recency;
mod reuse;
mod samples;
mod standalone;
mod turnover;
mod view;

use crate::eviction::Policy as EvictionPolicy;
use crate::ids::VolumeId;
use crate::units::{MILLISECOND, Nanos, SectorMask};
pub(crate) use closed::per_request;
pub(crate) use cost::{Cost, DISK_USES, DiskUse};
pub(crate) use dirty::{DirtyData, POOLS, Written};
pub use reuse::Reuse;
pub(crate) use standalone::{Pauses, Seen, Standalone};
pub(crate) use view::Counts;
pub use view::{Point, View};

use bucket::Tally;
use miniature::Miniature;
use samples::{Dirtying, Samples};

/// Hashes are less than this.
const ALL: u64 = 1 << 32;

/// A reference comes soon after another one if at most 1 / `SOON` of the samples was referenced in between. References
/// to hot blocks do.
const SOON: u32 = 64;

/// The shortest half-life, references: long enough for noise of about one percent (65,536 references at a rate of 1/8
/// are 8,192 samples).
const HALF_LIFE_MIN: u64 = 1 << 16;
/// A half-life in blocks that the curve remembers: a working set is used a few times before its first use has faded by
/// half.
const HALF_LIFE_ROUNDS: u64 = 4;
/// Steps of a half-life: how often weights are reduced and old samples are removed.
const STEPS: u64 = 64;
/// Looks at whether the working set moves: so many in a half-life, and before the first one in each time since the
/// beginning. A look takes about 20 us.
const LOOKS: u64 = 8;
/// Factor of a weight per step: 0.5 to the power of 1/64.
const STEP_FACTOR: f64 = 0.989_228_013_193_975_5;

/// Most samples of a curve: the error on traces is below one percent, and the index has 16,384 places.
const SAMPLES_MAX: usize = 7168;
/// Most blocks of a miniature cache.
const PLACES_MAX: usize = 340;
/// The smallest miniature cache, blocks: 4 MiB.
const MINIATURE_MIN: u64 = 1024;
/// At most one block in 2^this is sampled, so that a tenant with few blocks does not pay for each of them.
const RATE_MAX_SHIFT: u32 = 2;
/// The highest sampling rate of a miniature cache, for the same reason. The rates of all sizes together are less than
/// 1/2.
const MINIATURE_RATE_MAX: f64 = 0.125;

/// The resources of a curve.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Blocks in the table at once; `None`: unlimited.
    pub samples_max: Option<usize>,
    /// The largest cache size of interest, blocks.
    pub blocks_max: u64,
    /// At most one block in 2^this is sampled.
    pub rate_max_shift: u32,
    /// Whether the weight of references fades.
    pub fades: bool,
    /// Blocks of a miniature cache; 0 for no miniature caches, `usize::MAX` for caches of full size.
    pub places_max: usize,
    /// The policy of the miniature caches, for curves other than LRU's.
    pub what_if: EvictionPolicy,
    /// The age limit of dirty data.
    pub dirty_age_max_ns: Nanos,
}

impl Limits {
    /// The limits that fit into `bytes`, for sizes up to `blocks_max`. With 1 MiB all limits have their maximum.
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

    /// No sampling: for tests, and to measure the error of a sample.
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

    /// Bytes of memory of a curve.
    pub fn bytes(&self) -> usize {
        let caches = sizes(self.blocks_max).count() * Miniature::bytes(self.places_max.min(PLACES_MAX));
        size_of::<Curve>() + Samples::bytes(self.samples_max.unwrap_or(0)) + caches
    }
}

/// The capacity of an index with this many entries that never grows. If it is at most half full, hashbrown rehashes in
/// place (`reserve_rehash`) when removed entries have filled it, and allocates nothing.
fn index_capacity(entries: usize) -> usize {
    2 * entries
}

/// Bytes of such an index: the entries, and a control byte for each.
fn index_bytes(entries: usize) -> usize {
    (index_capacity(entries) * 8 / 7).next_power_of_two() * 5
}

/// The sizes of miniature caches, one per octave.
fn sizes(blocks_max: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(MINIATURE_MIN), |size| size.checked_mul(2)).take_while(move |&size| size <= blocks_max)
}

/// Bytes of curves per frame of a disk's memory (1.5 %), for all curves of the disk together.
pub(crate) const CURVE_BYTES_PER_FRAME: u64 = 64;
/// The same for the miniatures of dirty data.
pub(crate) const DIRTY_DATA_BYTES_PER_FRAME: u64 = 16;
/// Both.
pub(crate) const BYTES_PER_FRAME: u64 = CURVE_BYTES_PER_FRAME + DIRTY_DATA_BYTES_PER_FRAME;

/// A block of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Block {
    number: u64,
    volume: u32,
}

/// When a write is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ack {
    /// When it is in the cache: the block stays dirty until it is old or flushed.
    Cached,
    /// When it is on the medium.
    Durable,
}

/// The curve of one tenant.
#[derive(Debug)]
pub struct Curve {
    limits: Limits,
    seed: u64,
    samples: Samples,
    /// Smallest first.
    caches: Vec<Miniature>,
    /// Blocks with lower hashes are in the samples or in a miniature cache.
    admitted: u64,
    reads: Tally,
    writes: Tally,
    /// Block reads and writes so far.
    references: u64,
    /// When the next step of fading is due, in references.
    step_at: u64,
    /// Whether the working set moves, and when that is to be found out again, in references.
    moves: bool,
    look_at: u64,
    /// By `VolumeId`.
    flushes: Vec<u32>,
}

impl Curve {
    /// The curve of a tenant without requests. The seed selects which blocks are sampled.
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
            moves: false,
            look_at: 0,
            flushes: Vec::new(),
        };
        curve.note_admitted();
        curve
    }

    fn note_admitted(&mut self) {
        let caches = self.caches.iter().map(Miniature::rate).fold(0.0, f64::max);
        self.admitted = self.samples.admitted().max((caches * ALL as f64) as u64);
    }

    /// Sectors of a block are read. `hole`: they were never written, so there is nothing to read.
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

    /// A block is prefetched.
    #[inline]
    pub fn read_ahead(&mut self, now: Nanos, volume: VolumeId, number: u64) {
        let hash = self.hash(volume, number);
        if u64::from(hash) < self.admitted {
            self.read_ahead_sampled(now, Block { number, volume: volume.0 }, hash);
        }
    }

    /// A volume of the tenant is opened; the cache has none of its blocks.
    pub fn opened(&mut self, volume: VolumeId) {
        let volumes = self.flushes.len().max(volume.0 as usize + 1);
        self.flushes.resize(volumes, 0);
        self.dropped(volume, 0, u64::MAX);
    }

    /// All dirty data of a volume is being written for a flush.
    pub fn flushed(&mut self, volume: VolumeId) {
        let flushes = &mut self.flushes[volume.0 as usize];
        *flushes = flushes.wrapping_add(1);
    }

    /// The blocks `first..past` of a volume are dropped from the cache, dirty data included: they were trimmed or
    /// zeroed. Until their next references, blocks that were referenced before them count as nearer, by the number of
    /// dropped blocks.
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

    /// The resources of the curve.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The curve at present, under LRU or under the policy of the miniature caches.
    pub fn view(&self, policy: EvictionPolicy) -> View {
        self.counts(policy).view()
    }

    /// A copy of what has been counted, from which the view under `policy` follows.
    pub(crate) fn counts(&self, policy: EvictionPolicy) -> Counts {
        let caches = if policy == EvictionPolicy::Lru { &[][..] } else { &self.caches };
        Counts {
            policy,
            reads: self.reads.clone(),
            writes: self.writes.clone(),
            caches: caches.iter().map(Miniature::counts).collect(),
            blocks_max: self.limits.blocks_max,
            rate: self.samples.rate(),
            samples: self.samples.recorded(),
            times: self.samples.times(),
            moves: self.moves,
        }
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

    /// The hash by which a block is sampled or not: the finaliser of MurmurHash3 for 64 bits.
    #[inline]
    fn hash(&self, volume: VolumeId, number: u64) -> u32 {
        let mut hash = number ^ u64::from(volume.0) << 48 ^ self.seed;
        hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        (hash >> 32) as u32
    }

    fn dirt(&self, now: Nanos, volume: u32) -> Dirtying {
        Dirtying {
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
            if outcome.first {
                self.reads.record_first(outcome.weight, self.samples.blocks());
            }
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

    /// The miniature caches that see a block. The larger the cache they represent, the fewer blocks they see.
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
        if self.references >= self.look_at {
            self.look_at = self.references + (self.references / LOOKS).min(half_life / LOOKS);
            self.moves = self.samples.moves(self.references, half_life);
        }
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

/// A hash for tables: sampled hashes are small, and tables also need the upper bits.
fn spread(hash: u32) -> u64 {
    (u64::from(hash) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests;
