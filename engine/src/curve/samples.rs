//! The sampled blocks: when each was referred to last, and from which cache size on it would be there, sector by
//! sector.
//!
//! ```text
//!   hash of a block < counted      its references are recorded, each for 1 / rate of them
//!                   < admitted     it is watched, and recorded once it was watched for a half-life of the curve
//!                   otherwise      not sampled: nothing is kept of it
//! ```
//!
//! A block is sampled by its number, for good: so all its references are, and the distance between two of them, in
//! sampled blocks, is the distance in blocks times the rate. When the table is full, `admitted` falls by a sixteenth
//! and what is above it goes. When it is almost empty it doubles again, and those who are new are watched in silence
//! first, because nobody knows whether they were there before.
//!
//! What is beyond the largest size of interest goes, oldest first, and what was not referred to for
//! [`FORGET_HALF_LIVES`]: one long scan does not keep the rate low for ever.
//!
//! Source: Waldspurger, Park, Garthwaite, Ahmad, "Efficient MRC construction with SHARDS" (FAST 2015), fixed size.
//! Ours: it evicts by sixteenths instead of one at a time, weighs a reference when it is recorded instead of rescaling
//! histograms, raises the rate again, forgets, and knows sectors, dirt and read-ahead.

use hashbrown::HashTable;

use super::bucket::{Bucket, NEVER, bucket};
use super::recency::Recency;
use super::{ALL, Block, Limits, spread};
use crate::units::{SECTORS_PER_BLOCK, SectorMask};

/// Stands for no slot.
const NONE: u32 = u32::MAX;
/// Slots for each sample: two are in use at most (its last reference and its last write), so that there are as many
/// free ones as samples when they are numbered anew.
const SLOTS_PER_SAMPLE: usize = 3;
/// A block that was not referred to for so many of the curve's half-lives is forgotten. They are four times as many
/// references as there are blocks, at least: one of a working set that is used evenly is found in 32 rounds of it (all
/// but e^-32).
const FORGET_HALF_LIVES: u64 = 8;
/// References that a sample's clock does not tell apart.
const TICK: u64 = 1024;

/// A sampled block.
#[derive(Clone, Debug)]
struct Sample {
    block: Block,
    hash: u32,
    /// Slot of its last reference; none if the place is free.
    used: u32,
    /// Slot of its last write, if it may still be dirty.
    wrote: u32,
    /// When it became dirty.
    dirty_since_ms: u32,
    /// Flushes of its volume until then.
    flushes: u32,
    /// When it was referred to last, in [`TICK`]s.
    seen: u32,
    /// The smallest cache in which each of its sectors is valid.
    valid: [Bucket; SECTORS_PER_BLOCK as usize],
}

/// How a reference to a sampled block went.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// The smallest cache that absorbs it.
    pub(super) absorbed_by: Bucket,
    /// How many references it stands for.
    pub(super) weight: f64,
    /// It came soon after another one to the same block.
    pub(super) soon: bool,
}

/// Whether what was written to a block may still be dirty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dirt {
    pub(super) now_ms: u32,
    /// Written back after this long.
    pub(super) age_max_ms: u32,
    /// Flushes of its volume so far.
    pub(super) flushes: u32,
}

/// The table of them.
#[derive(Debug)]
pub(super) struct Samples {
    limits: Limits,
    /// Blocks with hashes below are recorded.
    counted: u64,
    /// Blocks with hashes below are in the table.
    admitted: u64,
    samples: Vec<Sample>,
    free: Vec<u32>,
    index: HashTable<u32>,
    /// Which sample was referred to at a slot.
    who: Vec<u32>,
    next: u32,
    /// No sample was referred to last in the slots before.
    oldest: u32,
    used: Recency,
    wrote: Recency,
    /// When `counted` becomes `admitted`, in references.
    settles_at: u64,
    /// The rate is not raised again before.
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
            settles_at: 0,
            raise_at: 0,
        }
    }

    /// Bytes of a table of so many samples.
    pub(super) fn bytes(samples_max: usize) -> usize {
        let slots = SLOTS_PER_SAMPLE * samples_max;
        samples_max * (size_of::<Sample>() + 4)
            + super::index_bytes(samples_max)
            + slots * 4
            + 2 * Recency::bytes(slots)
    }

    /// The part of all blocks that is recorded.
    pub(super) fn rate(&self) -> f64 {
        self.counted as f64 / ALL as f64
    }

    /// Blocks with hashes below are of interest.
    pub(super) fn admitted(&self) -> u64 {
        self.admitted
    }

    /// How many samples are recorded.
    pub(super) fn recorded(&self) -> u32 {
        self.used.ones()
    }

    /// How many blocks are remembered, sampled or not.
    pub(super) fn blocks(&self) -> u64 {
        (f64::from(self.recorded()) / self.rate()) as u64
    }

    /// Sectors of a block are read; `references` is the clock.
    pub(super) fn read(&mut self, block: Block, hash: u32, references: u64, sectors: SectorMask) -> Option<Outcome> {
        let (id, depth) = self.refer(block, hash, references);
        let at = self.size_of(depth);
        let sample = &mut self.samples[id as usize];
        let valid = (0..SECTORS_PER_BLOCK as usize).filter(|sector| sectors >> sector & 1 != 0);
        let absorbed_by = valid.map(|sector| sample.valid[sector]).fold(at, Bucket::max);
        sample.valid = [0; SECTORS_PER_BLOCK as usize];
        self.outcome(hash, depth, absorbed_by)
    }

    /// Sectors of a block are written; `dirt` if it may stay dirty.
    pub(super) fn write(
        &mut self,
        block: Block,
        hash: u32,
        references: u64,
        sectors: SectorMask,
        dirt: Option<Dirt>,
    ) -> Option<Outcome> {
        let (id, depth) = self.refer(block, hash, references);
        let at = self.size_of(depth);
        self.keep_sectors(id, at, sectors);
        let Sample { wrote, dirty_since_ms, flushes, used, .. } = self.samples[id as usize];
        let still = |dirt: &Dirt| {
            wrote != NONE && flushes == dirt.flushes && dirt.now_ms.wrapping_sub(dirty_since_ms) < dirt.age_max_ms
        };
        let mut absorbed_by = NEVER;
        if let Some(dirt) = dirt
            && self.is_counted(hash)
            && still(&dirt)
        {
            // Half the partition may be dirty before the oldest dirt is written.
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

    /// A block is read though nobody asked for it: it takes its place, but what it then absorbs is not the cache's
    /// merit.
    pub(super) fn read_ahead(&mut self, block: Block, hash: u32, references: u64) {
        let (id, depth) = self.refer(block, hash, references);
        let at = self.size_of(depth);
        self.keep_sectors(id, at, 0);
    }

    /// A block is not in any cache any more.
    pub(super) fn forget(&mut self, block: Block, hash: u32) {
        if let Some(id) = self.find(block, hash) {
            self.remove(id);
        }
    }

    /// All blocks of which `gone` says so are not in any cache any more.
    pub(super) fn forget_all(&mut self, gone: impl Fn(&Block) -> bool) {
        for id in 0..self.samples.len() {
            if self.samples[id].used != NONE && gone(&self.samples[id].block) {
                self.remove(id as u32);
            }
        }
    }

    /// Sectors that were in no cache smaller than `at` were not kept there: but for those written now.
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
        self.is_counted(hash).then(|| Outcome { absorbed_by, weight: 1.0 / self.rate(), soon })
    }

    /// The size of cache, in blocks, that keeps a block while `depth` other samples are referred to.
    ///
    /// Of D blocks a rate r samples D x r, more or less: with one more by a third when the block itself is not counted
    /// among them, half of the errors are on each side (the median of a Poisson distribution is its mean less a third).
    fn size_of(&self, depth: Option<u32>) -> Bucket {
        let rate = self.rate();
        depth.map_or(NEVER, |depth| bucket(((f64::from(depth) + 1.0 - (1.0 - rate) / 3.0) / rate).round() as u64))
    }

    fn find(&self, block: Block, hash: u32) -> Option<u32> {
        self.index.find(spread(hash), |&id| self.samples[id as usize].block == block).copied()
    }

    /// A block is referred to: its sample, and how many other ones were since the last time.
    fn refer(&mut self, block: Block, hash: u32, references: u64) -> (u32, Option<u32>) {
        debug_assert!(u64::from(hash) < self.admitted);
        if self.next as usize == self.who.len() {
            self.number_anew();
        }
        let counted = self.is_counted(hash);
        let (id, depth) = match self.find(block, hash) {
            Some(id) => {
                let used = self.samples[id as usize].used;
                if counted {
                    let depth = self.used.after(used);
                    self.used.clear(used);
                    (id, Some(depth))
                } else {
                    (id, None)
                }
            }
            None => (self.insert(block, hash), None),
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

    fn insert(&mut self, block: Block, hash: u32) -> u32 {
        let fresh = Sample {
            block,
            hash,
            used: NONE,
            wrote: NONE,
            dirty_since_ms: 0,
            flushes: 0,
            seen: 0,
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
        let samples = &self.samples;
        self.index.insert_unique(spread(hash), id, |&id| spread(samples[id as usize].hash));
        id
    }

    fn remove(&mut self, id: u32) {
        let Sample { hash, used, wrote, .. } = self.samples[id as usize];
        if self.is_counted(hash) {
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

    /// Before the next reference: whether a block with this hash is sampled. Makes room for it.
    pub(super) fn admits(&mut self, hash: u32) -> bool {
        while u64::from(hash) < self.admitted && self.limits.samples_max.is_some_and(|max| self.index.len() >= max) {
            self.lower();
        }
        u64::from(hash) < self.admitted
    }

    /// Fewer blocks are sampled from now on.
    fn lower(&mut self) {
        // Those who are only watched go first, all of them.
        self.admitted = if self.counted < self.admitted { self.counted } else { self.admitted / 16 * 15 };
        for id in 0..self.samples.len() {
            let Sample { hash, used, .. } = self.samples[id];
            if used != NONE && u64::from(hash) >= self.admitted {
                self.remove(id as u32);
            }
        }
        self.counted = self.counted.min(self.admitted);
    }

    /// Some references later: what is of no interest goes, and the rate is raised if there is room. A reference
    /// weighs half as much after `half_life` others.
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

    /// The sample that was referred to longest ago.
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

    /// Slots are numbered anew, without those that stand for nothing any more.
    fn number_anew(&mut self) {
        if self.limits.samples_max.is_none() {
            let slots = self.who.len().max(SLOTS_PER_SAMPLE * 2 * self.index.len());
            self.who.resize(slots, NONE);
        }
        let past = std::mem::take(&mut self.next);
        self.oldest = 0;
        self.used.reset(self.who.len());
        self.wrote.reset(self.who.len());
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
            }
            if wrote && counted {
                self.wrote.set(fresh);
            }
        }
    }
}
