//! The sampled blocks: when each was referenced last, and the smallest cache that would have it, by sector.
//!
//! ```text
//!   hash of a block < counted      its references are recorded, each for 1 / rate references
//!                   < admitted     it is watched, and recorded after one half-life of the curve
//!                   otherwise      not sampled: nothing is stored
//! ```
//!
//! Whether a block is sampled depends on its number only, so all of its references are seen or none. The distance
//! between two references in sampled blocks is the distance in blocks times the rate. When the table is full,
//! `admitted` falls by 1/16 and the samples above it are removed. When three quarters of the table are free, `admitted`
//! doubles. New samples are only watched at first, because it is unknown whether they were referenced before.
//!
//! Samples beyond the largest cache size of interest are removed, oldest first, and so are those that were not
//! referenced for [`FORGET_HALF_LIVES`]: one long scan does not keep the rate low permanently.
//!
//! Source: Waldspurger, Park, Garthwaite, Ahmad, "Efficient MRC construction with SHARDS" (FAST 2015), fixed size.
//! Differences: it removes samples by sixteenths instead of one at a time, weights a reference when it is recorded
//! instead of rescaling histograms, raises the rate again, forgets old samples, and models sectors, dirty data and
//! read-ahead.

use hashbrown::HashTable;

use super::bucket::{Bucket, NEVER, bucket};
use super::recency::Recency;
use super::turnover::{self, Past, READS_MOST};
use super::{ALL, Block, Limits, spread};
use crate::units::{SECTORS_PER_BLOCK, SectorMask};

/// No slot.
const NONE: u32 = u32::MAX;
/// Slots per sample: at most two are in use (its last reference and its last write). So when slots are renumbered,
/// there are as many free slots as samples.
const SLOTS_PER_SAMPLE: usize = 3;
/// A block that was not referenced for this many half-lives is removed. A half-life has at least four references per
/// block, so a block of a uniformly used working set is referenced within 32 rounds with probability 1 - e^-32.
const FORGET_HALF_LIVES: u64 = 8;
/// Resolution of the time of a sample's last reference, in references.
const TICK: u64 = 1024;

/// Blocks are counted by their number of reads up to this one: n1, n2 and n3 of `reuse.rs`.
pub(super) const TIMES: usize = 3;
/// A read that comes after fewer other samples belongs to the one before: a client reads a block in parts.
const OTHERS_LEAST: u32 = 4;
/// The number of reads of a block when it enters the table with a read, with a write, and because it is prefetched.
const READ: u8 = 1;
const WRITTEN: u8 = 0;
const READ_AHEAD: u8 = u8::MAX;

/// A sampled block.
#[derive(Clone, Debug)]
struct Sample {
    block: Block,
    hash: u32,
    /// Slot of its last reference; `NONE` if this place is free.
    used: u32,
    /// Slot of its last write if it may still be dirty.
    wrote: u32,
    /// When it became dirty.
    dirty_since_ms: u32,
    /// The number of flushes of its volume at that time.
    flushes: u32,
    /// Times of its first and of its last reference, in [`TICK`]s.
    born: u32,
    seen: u32,
    /// Reads by clients that did not come soon after another reference, at most [`TIMES`] + 1; [`READ_AHEAD`] if it was
    /// prefetched first. Writes do not count: an update is a read and a write of a block.
    times: u8,
    /// Reads by clients that came after at least [`OTHERS_LEAST`] other samples, at most [`READS_MOST`].
    reads: u8,
    /// The smallest cache in which each of its sectors is valid.
    valid: [Bucket; SECTORS_PER_BLOCK as usize],
}

/// The result of a reference to a sampled block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// The smallest cache that absorbs it.
    pub(super) absorbed_by: Bucket,
    /// The number of references that it stands for.
    pub(super) weight: f64,
    /// Whether it came soon after another reference to the same block.
    pub(super) soon: bool,
    /// Whether it is the first reference to the block that the table remembers, and the block was not prefetched.
    pub(super) first: bool,
}

/// The state that determines whether a written block may still be dirty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dirtying {
    pub(super) now_ms: u32,
    /// The age limit of dirty data.
    pub(super) age_max_ms: u32,
    /// Flushes of its volume so far.
    pub(super) flushes: u32,
}

/// The table of samples.
#[derive(Debug)]
pub(super) struct Samples {
    limits: Limits,
    /// Blocks with lower hashes are recorded.
    counted: u64,
    /// Blocks with lower hashes are in the table.
    admitted: u64,
    samples: Vec<Sample>,
    free: Vec<u32>,
    index: HashTable<u32>,
    /// By slot: the sample that was referenced or written there.
    who: Vec<u32>,
    next: u32,
    /// No earlier slot is the last reference of a sample.
    oldest: u32,
    used: Recency,
    wrote: Recency,
    /// Recorded blocks that were read once, twice, three times.
    times: [u32; TIMES],
    /// Recorded blocks that were prefetched first.
    ahead: u32,
    /// When `counted` becomes `admitted`, in references.
    settles_at: u64,
    /// The earliest time of the next increase of the rate, in references.
    raise_at: u64,
}

impl Samples {
    pub(super) fn new(limits: Limits) -> Samples {
        let room = limits.samples_max.unwrap_or(1024);
        let slots = SLOTS_PER_SAMPLE * room;
        let admitted = ALL >> limits.rate_max_shift;
        Samples {
            limits,
            counted: admitted,
            admitted,
            samples: Vec::with_capacity(room),
            free: Vec::with_capacity(room),
            index: HashTable::with_capacity(super::index_capacity(room)),
            who: vec![NONE; slots],
            next: 0,
            oldest: 0,
            used: Recency::new(slots),
            wrote: Recency::new(slots),
            times: [0; TIMES],
            ahead: 0,
            settles_at: 0,
            raise_at: 0,
        }
    }

    /// Bytes of a table with this many samples.
    pub(super) fn bytes(samples_max: usize) -> usize {
        let slots = SLOTS_PER_SAMPLE * samples_max;
        samples_max * (size_of::<Sample>() + 4)
            + super::index_bytes(samples_max)
            + slots * 4
            + 2 * Recency::bytes(slots)
    }

    /// The fraction of blocks that is recorded.
    pub(super) fn rate(&self) -> f64 {
        self.counted as f64 / ALL as f64
    }

    /// Blocks with lower hashes are in the table.
    pub(super) fn admitted(&self) -> u64 {
        self.admitted
    }

    /// The number of samples that are recorded.
    pub(super) fn recorded(&self) -> u32 {
        self.used.ones()
    }

    /// Recorded blocks that clients read once, twice, three times; and those that were prefetched first.
    pub(super) fn times(&self) -> ([u32; TIMES], u32) {
        (self.times, self.ahead)
    }

    /// The number of recorded blocks that were read as often as this.
    fn as_often(&mut self, times: u8) -> Option<&mut u32> {
        match times {
            READ_AHEAD => Some(&mut self.ahead),
            times => self.times.get_mut(usize::from(times).wrapping_sub(1)),
        }
    }

    /// A client reads a sample.
    fn count_read(&mut self, id: u32, counted: bool) {
        let before = self.samples[id as usize].times;
        if usize::from(before) > TIMES {
            return;
        }
        self.samples[id as usize].times = before + 1;
        if counted {
            self.as_often(before).into_iter().for_each(|blocks| *blocks -= 1);
            self.as_often(before + 1).into_iter().for_each(|blocks| *blocks += 1);
        }
    }

    /// The estimated number of blocks that the curve remembers, sampled or not.
    pub(super) fn blocks(&self) -> u64 {
        (f64::from(self.recorded()) / self.rate()) as u64
    }

    /// Sectors of a block are read; `references` is the clock.
    pub(super) fn read(&mut self, block: Block, hash: u32, references: u64, sectors: SectorMask) -> Option<Outcome> {
        let (id, depth) = self.refer(block, hash, references, READ);
        let at = self.size_of(depth);
        let sample = &mut self.samples[id as usize];
        let valid = (0..SECTORS_PER_BLOCK as usize).filter(|sector| sectors >> sector & 1 != 0);
        let absorbed_by = valid.map(|sector| sample.valid[sector]).fold(at, Bucket::max);
        sample.valid = [0; SECTORS_PER_BLOCK as usize];
        self.outcome(hash, depth, absorbed_by)
    }

    /// Sectors of a block are written; `dirt` is `None` if the block is clean afterwards.
    pub(super) fn write(
        &mut self,
        block: Block,
        hash: u32,
        references: u64,
        sectors: SectorMask,
        dirt: Option<Dirtying>,
    ) -> Option<Outcome> {
        let (id, depth) = self.refer(block, hash, references, WRITTEN);
        let at = self.size_of(depth);
        self.keep_sectors(id, at, sectors);
        let Sample { wrote, dirty_since_ms, flushes, used, .. } = self.samples[id as usize];
        let still = |dirt: &Dirtying| {
            wrote != NONE && flushes == dirt.flushes && dirt.now_ms.wrapping_sub(dirty_since_ms) < dirt.age_max_ms
        };
        let mut absorbed_by = NEVER;
        if let Some(dirt) = dirt
            && self.is_counted(hash)
            && still(&dirt)
        {
            // At most half the partition is dirty; beyond it the oldest dirty blocks are written.
            absorbed_by = self.size_of(Some(2 * self.wrote.after(wrote) + 1));
        }
        if wrote != NONE && self.is_counted(hash) {
            self.wrote.clear(wrote);
        }
        let stays = dirt.is_some();
        let fresh = dirt.filter(|dirt| !still(dirt));
        let counted = self.is_counted(hash);
        let sample = &mut self.samples[id as usize];
        sample.wrote = if stays { used } else { NONE };
        if let Some(dirt) = fresh {
            (sample.dirty_since_ms, sample.flushes) = (dirt.now_ms, dirt.flushes);
        }
        if stays && counted {
            self.wrote.set(used);
        }
        self.outcome(hash, depth, absorbed_by)
    }

    /// A block is prefetched: its recency is updated, but a read that is a hit only because of the prefetch does not
    /// count as absorbed by the cache.
    pub(super) fn read_ahead(&mut self, block: Block, hash: u32, references: u64) {
        let (id, depth) = self.refer(block, hash, references, READ_AHEAD);
        let at = self.size_of(depth);
        self.keep_sectors(id, at, 0);
    }

    /// A block was dropped from all caches.
    pub(super) fn forget(&mut self, block: Block, hash: u32) {
        if let Some(id) = self.find(block, hash) {
            self.remove(id);
        }
    }

    /// All blocks that match `gone` were dropped from all caches.
    pub(super) fn forget_all(&mut self, gone: impl Fn(&Block) -> bool) {
        for id in 0..self.samples.len() {
            if self.samples[id].used != NONE && gone(&self.samples[id].block) {
                self.remove(id as u32);
            }
        }
    }

    /// Sectors other than the written ones stay invalid in caches smaller than `at`, which had evicted the block.
    fn keep_sectors(&mut self, id: u32, at: Bucket, written: SectorMask) {
        let sample = &mut self.samples[id as usize];
        for (sector, valid) in sample.valid.iter_mut().enumerate() {
            *valid = if written >> sector & 1 != 0 { 0 } else { at.max(*valid) };
        }
    }

    fn is_counted(&self, hash: u32) -> bool {
        u64::from(hash) < self.counted
    }

    fn outcome(&self, hash: u32, depth: Option<u32>, absorbed_by: Bucket) -> Option<Outcome> {
        let soon = depth.is_some_and(|depth| depth <= self.recorded() / super::SOON);
        self.is_counted(hash).then(|| Outcome { absorbed_by, weight: 1.0 / self.rate(), soon, first: depth.is_none() })
    }

    /// The size of a cache, in blocks, that keeps a block while `depth` other samples are referenced.
    ///
    /// At rate r, about D x r of D blocks are sampled. The estimate of D x r is `depth` + 1 - (1 - r) / 3, which puts
    /// half of the errors on each side: 1 for the block itself, and a third because the median of the distribution is
    /// that much below its mean (Poisson, for small r).
    fn size_of(&self, depth: Option<u32>) -> Bucket {
        let rate = self.rate();
        depth.map_or(NEVER, |depth| bucket(((f64::from(depth) + 1.0 - (1.0 - rate) / 3.0) / rate).round() as u64))
    }

    fn find(&self, block: Block, hash: u32) -> Option<u32> {
        self.index.find(spread(hash), |&id| self.samples[id as usize].block == block).copied()
    }

    /// Records a reference to a block, which has been read `times` times if this is the first one. Returns its sample,
    /// and the number of other samples referenced since its last reference.
    fn refer(&mut self, block: Block, hash: u32, references: u64, times: u8) -> (u32, Option<u32>) {
        debug_assert!(u64::from(hash) < self.admitted);
        if self.next as usize == self.who.len() {
            self.number_anew();
        }
        let counted = self.is_counted(hash);
        let (id, depth) = match self.find(block, hash) {
            Some(id) => {
                let used = self.samples[id as usize].used;
                let depth = self.used.after(used);
                if times == READ && depth > self.recorded() / super::SOON {
                    self.count_read(id, counted);
                }
                if times == READ && depth >= OTHERS_LEAST {
                    let sample = &mut self.samples[id as usize];
                    sample.reads = (sample.reads + 1).min(READS_MOST);
                }
                if counted {
                    self.used.clear(used);
                }
                (id, counted.then_some(depth))
            }
            None => (self.insert(block, hash, references, times), None),
        };
        let slot = self.next;
        self.next += 1;
        self.who[slot as usize] = id;
        if counted {
            self.used.set(slot);
        }
        let sample = &mut self.samples[id as usize];
        (sample.used, sample.seen) = (slot, (references / TICK) as u32);
        (id, depth)
    }

    fn insert(&mut self, block: Block, hash: u32, references: u64, times: u8) -> u32 {
        let fresh = Sample {
            block,
            hash,
            used: NONE,
            wrote: NONE,
            dirty_since_ms: 0,
            flushes: 0,
            born: (references / TICK) as u32,
            seen: 0,
            times,
            reads: u8::from(times == READ),
            valid: [NEVER; SECTORS_PER_BLOCK as usize],
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.samples[id as usize] = fresh;
                id
            }
            None => {
                self.samples.push(fresh);
                (self.samples.len() - 1) as u32
            }
        };
        if self.is_counted(hash) {
            self.as_often(times).into_iter().for_each(|blocks| *blocks += 1);
        }
        let samples = &self.samples;
        self.index.insert_unique(spread(hash), id, |&id| spread(samples[id as usize].hash));
        id
    }

    fn remove(&mut self, id: u32) {
        let Sample { hash, used, wrote, times, .. } = self.samples[id as usize];
        if self.is_counted(hash) {
            self.as_often(times).into_iter().for_each(|blocks| *blocks -= 1);
            self.used.clear(used);
            if wrote != NONE {
                self.wrote.clear(wrote);
            }
        }
        self.samples[id as usize].used = NONE;
        self.samples[id as usize].wrote = NONE;
        self.index.find_entry(spread(hash), |&other| other == id).expect("a sample").remove();
        self.free.push(id);
    }

    /// Whether a block with this hash is sampled; makes room for it. Called before each reference.
    pub(super) fn admits(&mut self, hash: u32) -> bool {
        while u64::from(hash) < self.admitted && self.limits.samples_max.is_some_and(|max| self.index.len() >= max) {
            self.lower();
        }
        u64::from(hash) < self.admitted
    }

    /// Lowers the sampling rate.
    fn lower(&mut self) {
        // Samples that are only watched are removed first, all at once.
        self.admitted = if self.counted < self.admitted { self.counted } else { self.admitted / 16 * 15 };
        for id in 0..self.samples.len() {
            let Sample { hash, used, .. } = self.samples[id];
            if used != NONE && u64::from(hash) >= self.admitted {
                self.remove(id as u32);
            }
        }
        self.counted = self.counted.min(self.admitted);
    }

    /// Called from time to time: removes samples that are of no interest, and raises the rate if there is room. The
    /// weight of a reference halves after `half_life` references.
    pub(super) fn tidy(&mut self, references: u64, half_life: u64) {
        let deepest = (self.limits.blocks_max as f64 * self.rate()) as u32;
        let forget = FORGET_HALF_LIVES * half_life;
        while let Some(id) = self.first() {
            let age = references.saturating_sub(u64::from(self.samples[id as usize].seen) * TICK);
            if self.used.ones() <= deepest.max(1) && age <= forget {
                break;
            }
            self.remove(id);
        }
        if self.counted < self.admitted && references >= self.settles_at {
            self.counted = self.admitted;
            self.number_anew();
            self.raise_at = references + half_life;
        }
        let room = self.limits.samples_max.is_some_and(|max| self.index.len() < max / 4);
        if room && self.counted == self.admitted && references >= self.raise_at {
            self.admitted = (2 * self.admitted).min(ALL >> self.limits.rate_max_shift);
            self.settles_at = references + half_life;
        }
    }

    /// Whether the working set moves, by what was read in the last `horizon` references.
    pub(super) fn moves(&self, references: u64, horizon: u64) -> bool {
        let since = |ticks: u32| references.saturating_sub(u64::from(ticks) * TICK);
        let counted = self.samples.iter().filter(|sample| sample.used != NONE && self.is_counted(sample.hash));
        let often = counted.filter(|sample| sample.times != READ_AHEAD);
        let pasts = often.map(|sample| Past { reads: sample.reads, age: since(sample.born), idle: since(sample.seen) });
        turnover::moves(pasts, references, horizon)
    }

    /// The sample whose last reference is the oldest.
    fn first(&mut self) -> Option<u32> {
        while self.oldest < self.next {
            let id = self.who[self.oldest as usize];
            if self.samples[id as usize].used == self.oldest {
                return Some(id);
            }
            self.oldest += 1;
        }
        None
    }

    /// Renumbers the slots without those that are no longer in use.
    fn number_anew(&mut self) {
        if self.limits.samples_max.is_none() {
            let slots = self.who.len().max(SLOTS_PER_SAMPLE * 2 * self.index.len());
            self.who.resize(slots, NONE);
        }
        let past = std::mem::take(&mut self.next);
        self.oldest = 0;
        self.used.reset(self.who.len());
        self.wrote.reset(self.who.len());
        (self.times, self.ahead) = ([0; TIMES], 0);
        for slot in 0..past {
            let id = self.who[slot as usize];
            let counted = self.is_counted(self.samples[id as usize].hash);
            let sample = &mut self.samples[id as usize];
            let (used, wrote) = (sample.used == slot, sample.wrote == slot);
            if !used && !wrote {
                continue;
            }
            let fresh = self.next;
            self.who[fresh as usize] = id;
            self.next += 1;
            if used {
                sample.used = fresh;
            }
            if wrote {
                sample.wrote = fresh;
            }
            if used && counted {
                self.used.set(fresh);
                let times = sample.times;
                self.as_often(times).into_iter().for_each(|blocks| *blocks += 1);
            }
            if wrote && counted {
                self.wrote.set(fresh);
            }
        }
    }
}
