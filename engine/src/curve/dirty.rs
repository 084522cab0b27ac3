//! The cost of a tenant's writes as they are, with the whole cache under contention, and standalone. Simulates the
//! tenant's dirty data three times in miniature, on the same writes.
//!
//! ```text
//!   a write ─► hash of its region < admitted? ─► NOW    room in its partition, 5 s of its virtual clock
//!                                              ─► ROOMY  room in the whole cache, 5 s of its virtual clock
//!                                              ─► ALONE  room in the whole cache, 5 s of its standalone clock
//!              the oldest region of a pool that is too full or too old is written: a number of runs and of blocks
//! ```
//!
//! The room is half of the frames. While the tenant writes more than the disk can take, at present (NOW, ROOMY) or
//! standalone (ALONE), it is three quarters, and there is no age limit, as in partitions (`cache/partition.rs`).
//!
//! More dirty data absorbs more overwrites, and more of it has neighbours that go in one request. Both depend on which
//! blocks are written, and when: standalone, a tenant makes in five seconds the requests that take it a minute under
//! contention with seven others, longer than dirty data may wait. A curve of single blocks shows neither. Only the
//! ratios of the three pools are used, so errors that are common to all of them cancel.
//!
//! Regions of 256 blocks, the longest write, are sampled by their number, so that neighbours are seen together. All
//! regions are sampled while the table has room for them, else a part, as in SHARDS (Waldspurger et al., FAST 2015).
//!
//! Downside: a region is written as a whole, in its runs, while a partition writes only blocks around the oldest one.
//! Trimmed dirty data counts as written.

use hashbrown::HashTable;

use crate::ids::VolumeId;
use crate::units::{MILLISECOND, Nanos};

/// The pools.
const NOW: usize = 0;
const ROOMY: usize = 1;
const ALONE: usize = 2;
pub(crate) const POOLS: usize = 3;

/// Looks (about a second each) for which a tenant is taken to write more than the disk can take, after it last did:
/// some rounds.
const OUTPACES_LOOKS: u32 = 10;

/// Blocks of a region, one bit each.
const REGION_BLOCKS: u64 = 256;
const WORDS: usize = REGION_BLOCKS as usize / 64;
const NONE: u32 = u32::MAX;
/// Hashes are less than this.
const ALL: u64 = 1 << 32;

/// Bytes of a region in the table and its index.
const REGION_BYTES: usize = size_of::<Region>() + size_of::<u32>() + 10;

#[derive(Clone, Default, Debug)]
struct Region {
    id: u64,
    hash: u32,
    /// By pool: the dirty blocks, since when they are dirty, and the neighbours in the list ordered by that.
    dirty: [Blocks; POOLS],
    since_ms: [u32; POOLS],
    before: [u32; POOLS],
    after: [u32; POOLS],
}

impl Region {
    fn is_clean(&self) -> bool {
        self.dirty.iter().all(Blocks::is_empty)
    }
}

/// A subset of a region's blocks.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Blocks([u64; WORDS]);

impl Blocks {
    /// Adds a block; true if it was not in the set.
    fn insert(&mut self, at: u64) -> bool {
        let (word, bit) = (&mut self.0[at as usize / 64], 1 << (at % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The number of runs of contiguous blocks.
    fn runs(&self) -> u32 {
        let last_before = |at: usize| if at > 0 { self.0[at - 1] >> 63 } else { 0 };
        let begins = self.0.iter().enumerate().map(|(at, &word)| word & !(word << 1 | last_before(at)));
        begins.map(u64::count_ones).sum()
    }
}

/// Device writes of a pool.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(crate) struct Written {
    pub(crate) requests: f64,
    pub(crate) blocks: f64,
    /// Those of the blocks that were written for a flush, or durably: with any amount of dirty data alike.
    pub(crate) demanded: f64,
    /// Those of the blocks that have left the pool: what the others cost is not known yet.
    pub(crate) left: f64,
}

#[derive(Debug)]
struct Pool {
    /// Most dirty blocks, sampled or not.
    blocks_max: u64,
    /// Sampled dirty blocks.
    dirty: u32,
    oldest: u32,
    newest: u32,
    /// Runs and blocks that were written.
    written: Written,
    /// Blocks that became dirty, and so will be written. Until a pool is full, which takes a large one minutes, fewer
    /// blocks are written than become dirty.
    entered: f64,
}

/// The simulation of one tenant's dirty data.
#[derive(Debug)]
pub(crate) struct DirtyData {
    pools: [Pool; POOLS],
    regions: Vec<Region>,
    free: Vec<u32>,
    index: HashTable<u32>,
    /// Regions with lower hashes are sampled.
    admitted: u64,
    age_max_ms: u32,
    /// By pool: for so many more looks the tenant is taken to write more than the disk can take.
    outpaces: [u32; POOLS],
    /// The block after the last durable write: a durable write of that block belongs to the same request.
    durable: u64,
}

impl DirtyData {
    /// With a table of `bytes` bytes.
    pub(crate) fn new(bytes: u64, age_max_ns: Nanos) -> DirtyData {
        let room = room(bytes);
        let pool = || {
            let written = Written::default();
            Pool { blocks_max: u64::MAX, dirty: 0, oldest: NONE, newest: NONE, written, entered: 0.0 }
        };
        DirtyData {
            pools: [pool(), pool(), pool()],
            regions: vec![Region::default(); room],
            free: (0..room as u32).collect(),
            index: HashTable::with_capacity(2 * room),
            admitted: ALL,
            age_max_ms: (age_max_ns / MILLISECOND) as u32,
            outpaces: [0; POOLS],
            durable: u64::MAX,
        }
    }

    /// Whether its table has `bytes` bytes.
    pub(crate) fn has_bytes(&self, bytes: u64) -> bool {
        self.regions.len() == room(bytes)
    }

    /// Sets the frames of the tenant's partition, and of the whole cache. Half of them may be dirty. If the tenant
    /// writes more than the disk can take, at present or standalone, dirty data waits until there is no more room,
    /// which is three quarters, however old it is.
    pub(crate) fn set_room(&mut self, partition: u64, whole: u64, [now, alone]: [bool; 2]) {
        let rooms = [(partition, now), (whole, now), (whole, alone)];
        for (at, (frames, outpaces)) in rooms.into_iter().enumerate() {
            let looks = if outpaces { OUTPACES_LOOKS } else { self.outpaces[at].saturating_sub(1) };
            self.outpaces[at] = looks;
            self.pools[at].blocks_max = if looks > 0 { frames / 4 * 3 } else { frames / 2 };
        }
    }

    /// A block is written at `now`, which is `alone` on its standalone clock.
    pub(crate) fn write(&mut self, now: Nanos, alone: Nanos, volume: VolumeId, number: u64, durable: bool) {
        let id = (number / REGION_BLOCKS) | (u64::from(volume.0) << 48);
        let hash = hash(id);
        if u64::from(hash) >= self.admitted {
            return;
        }
        if durable {
            let (weight, request) = (self.weight(), if self.durable == number { 0.0 } else { 1.0 });
            self.durable = number + 1;
            for pool in &mut self.pools {
                pool.written.add(weight * request, weight, true);
                pool.entered += weight;
            }
            return;
        }
        self.pass(now, alone);
        let Some(at) = self.find_or_insert(id, hash) else { return };
        let (weight, clocks) = (self.weight(), clocks(now, alone));
        for (pool, clock) in clocks.into_iter().enumerate() {
            let region = &mut self.regions[at as usize];
            let was_clean = region.dirty[pool].is_empty();
            if region.dirty[pool].insert(number % REGION_BLOCKS) {
                self.pools[pool].dirty += 1;
                self.pools[pool].entered += weight;
            }
            if was_clean {
                region.since_ms[pool] = clock;
                self.push(pool, at);
            }
        }
        self.pass(now, alone);
    }

    /// Advances the clocks.
    pub(crate) fn pass(&mut self, now: Nanos, alone: Nanos) {
        clocks(now, alone).into_iter().enumerate().for_each(|(pool, clock)| self.settle(pool, clock));
    }

    /// All dirty data of a volume is written.
    pub(crate) fn flush(&mut self, volume: VolumeId) {
        for pool in 0..POOLS {
            let mut next = self.pools[pool].oldest;
            while next != NONE {
                let Region { id, after, .. } = &self.regions[next as usize];
                let (at, is_its) = (next, id >> 48 == u64::from(volume.0));
                next = after[pool];
                if is_its {
                    self.write_out(pool, at, true);
                }
            }
        }
    }

    /// Reduces the weight of all writes so far.
    pub(crate) fn fade(&mut self, factor: f64) {
        for pool in &mut self.pools {
            pool.written.fade(factor);
            pool.entered *= factor;
        }
    }

    /// The device writes for recent requests, by pool. A pool that is not full yet is assumed to continue with its
    /// present run length.
    pub(crate) fn written(&self) -> [Written; POOLS] {
        [NOW, ROOMY, ALONE].map(|pool| self.written_by(pool))
    }

    fn written_by(&self, pool: usize) -> Written {
        let runs = |pool: usize| {
            let Written { requests, blocks, .. } = self.pools[pool].written;
            (blocks > 0.0).then_some(requests / blocks)
        };
        let blocks = self.pools[pool].entered;
        let demanded = self.pools[pool].written.demanded.min(blocks);
        let left = self.pools[pool].written.blocks.min(blocks);
        // If no pool has written, run lengths are alike, and cancel in [`Written::by`].
        let per_block = [pool, NOW, ROOMY, ALONE].into_iter().find_map(runs).unwrap_or(1.0);
        Written { requests: blocks * per_block, blocks, demanded, left }
    }

    fn settle(&mut self, pool: usize, clock_ms: u32) {
        let most = self.pools[pool].blocks_max as f64 * self.admitted as f64 / ALL as f64;
        loop {
            let Pool { oldest, dirty, .. } = self.pools[pool];
            if oldest == NONE {
                return;
            }
            let age_ms = clock_ms.wrapping_sub(self.regions[oldest as usize].since_ms[pool]);
            if f64::from(dirty) <= most && (age_ms < self.age_max_ms || self.outpaces[pool] > 0) {
                return;
            }
            self.write_out(pool, oldest, false);
        }
    }

    fn write_out(&mut self, pool: usize, at: u32, demanded: bool) {
        let weight = self.weight();
        let dirty = std::mem::take(&mut self.regions[at as usize].dirty[pool]);
        self.unlink(pool, at);
        let of = &mut self.pools[pool];
        of.dirty -= dirty.count();
        of.written.add(weight * f64::from(dirty.runs()), weight * f64::from(dirty.count()), demanded);
        if self.regions[at as usize].is_clean() {
            self.forget(at);
        }
    }

    /// The number of regions that a sampled one stands for.
    fn weight(&self) -> f64 {
        ALL as f64 / self.admitted as f64
    }

    /// `None` if the region is not sampled any more.
    fn find_or_insert(&mut self, id: u64, hash: u32) -> Option<u32> {
        if let Some(&at) = self.index.find(spread(hash), |&at| self.regions[at as usize].id == id) {
            return Some(at);
        }
        while self.free.is_empty() {
            self.admit_less();
        }
        if u64::from(hash) >= self.admitted {
            return None;
        }
        let at = self.free.pop().expect("a free region");
        self.regions[at as usize] = Region { id, hash, ..Region::default() };
        let DirtyData { index, regions, .. } = self;
        index.insert_unique(spread(hash), at, |&at| spread(regions[at as usize].hash));
        Some(at)
    }

    /// Removes 1/16 of the regions from the sample.
    fn admit_less(&mut self) {
        self.admitted -= self.admitted / 16;
        for at in 0..self.regions.len() as u32 {
            let region = &self.regions[at as usize];
            if u64::from(region.hash) < self.admitted || region.is_clean() {
                continue;
            }
            for pool in 0..POOLS {
                let dirty = std::mem::take(&mut self.regions[at as usize].dirty[pool]);
                if !dirty.is_empty() {
                    self.unlink(pool, at);
                    self.pools[pool].dirty -= dirty.count();
                }
            }
            self.forget(at);
        }
    }

    fn forget(&mut self, at: u32) {
        let hash = self.regions[at as usize].hash;
        let entry = self.index.find_entry(spread(hash), |&other| other == at);
        entry.expect("a region that is in the table").remove();
        self.free.push(at);
    }

    fn push(&mut self, pool: usize, at: u32) {
        let newest = std::mem::replace(&mut self.pools[pool].newest, at);
        let region = &mut self.regions[at as usize];
        (region.before[pool], region.after[pool]) = (newest, NONE);
        match newest {
            NONE => self.pools[pool].oldest = at,
            newest => self.regions[newest as usize].after[pool] = at,
        }
    }

    fn unlink(&mut self, pool: usize, at: u32) {
        let Region { before, after, .. } = &self.regions[at as usize];
        let (before, after) = (before[pool], after[pool]);
        match before {
            NONE => self.pools[pool].oldest = after,
            before => self.regions[before as usize].after[pool] = after,
        }
        match after {
            NONE => self.pools[pool].newest = before,
            after => self.regions[after as usize].before[pool] = before,
        }
    }
}

impl Written {
    /// The cost of these writes relative to `now`, for which a block takes `mean_ns` on average: `transfer_ns` of it is
    /// transfer, the rest is the cost of positioning for each run. 1 if nothing was written.
    pub(crate) fn by(self, now: Written, mean_ns: f64, transfer_ns: f64) -> f64 {
        if now.blocks <= 0.0 || now.requests <= 0.0 || mean_ns <= 0.0 {
            return 1.0;
        }
        let transfer_ns = transfer_ns.min(mean_ns);
        let run_ns = (mean_ns - transfer_ns) * now.blocks / now.requests;
        ((self.blocks * transfer_ns + self.requests * run_ns) / (now.blocks * mean_ns)).min(1.0)
    }

    /// The part of the blocks that flushes and durable writes did not demand, 0 to 1; 1 if nothing was written.
    pub(crate) fn chosen(&self) -> f64 {
        if self.blocks > 0.0 { 1.0 - (self.demanded / self.blocks).min(1.0) } else { 1.0 }
    }

    /// The part of the blocks whose cost is not known yet, 0 to 1; 0 if nothing was written.
    pub(crate) fn open(&self) -> f64 {
        if self.blocks > 0.0 { 1.0 - self.left / self.blocks } else { 0.0 }
    }

    fn add(&mut self, requests: f64, blocks: f64, demanded: bool) {
        (self.requests, self.blocks) = (self.requests + requests, self.blocks + blocks);
        self.demanded += if demanded { blocks } else { 0.0 };
    }

    fn fade(&mut self, factor: f64) {
        [&mut self.requests, &mut self.blocks, &mut self.demanded].into_iter().for_each(|sum| *sum *= factor);
    }
}

/// Regions of a table of `bytes` bytes.
fn room(bytes: u64) -> usize {
    (bytes as usize / REGION_BYTES).max(16)
}

/// Milliseconds, by pool.
fn clocks(now: Nanos, alone: Nanos) -> [u32; POOLS] {
    [now, now, alone].map(|clock| (clock / MILLISECOND) as u32)
}

/// The finaliser of MurmurHash3 for 64 bits.
fn hash(id: u64) -> u32 {
    let mut hash = (id ^ id >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (hash >> 32) as u32
}

/// A hash for the index: sampled hashes are small, and tables also need the upper bits.
fn spread(hash: u32) -> u64 {
    (u64::from(hash) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::SECOND;

    const VOLUME: VolumeId = VolumeId(0);

    fn dirt(partition: u64, whole: u64) -> DirtyData {
        let mut dirt = DirtyData::new(1 << 20, 5 * SECOND);
        dirt.set_room(2 * partition, 2 * whole, [false; 2]);
        dirt
    }

    fn all(dirt: &DirtyData) -> [(f64, f64); POOLS] {
        dirt.written().map(|written| (written.requests, written.blocks))
    }

    #[test]
    fn more_dirt_has_neighbours_and_absorbs_overwrites() {
        // Every fourth block of ten regions, in four rounds, each with the next blocks: a pool of ten regions combines
        // them.
        let mut dirt = dirt(8, 1000);
        for round in 0..4 {
            for region in 0..10 {
                (0..8).for_each(|at| dirt.write(0, 0, VOLUME, region * 256 + 4 * at + round, false));
            }
        }
        (0..80).for_each(|at| dirt.write(0, 0, VOLUME, at / 8 * 256 + at % 8 * 4, false));
        dirt.flush(VOLUME);
        assert_eq!(all(&dirt), [(400.0, 400.0), (10.0, 320.0), (10.0, 320.0)]);
    }

    #[test]
    fn a_run_goes_on_from_word_to_word() {
        let mut blocks = Blocks::default();
        assert!([3, 62, 63, 64, 128, 129, 255].into_iter().all(|at| blocks.insert(at)) && !blocks.insert(64));
        assert_eq!((blocks.count(), blocks.runs()), (7, 4));
    }

    #[test]
    fn alone_the_same_overwrites_come_sooner() {
        let mut dirt = dirt(1000, 1000);
        // One block, once a second; ten times as often standalone.
        (0..100).for_each(|at| dirt.write(at * SECOND, at * SECOND / 10, VOLUME, 7, false));
        dirt.pass(200 * SECOND, 20 * SECOND);
        assert_eq!(all(&dirt), [(20.0, 20.0), (20.0, 20.0), (2.0, 2.0)]);
    }

    #[test]
    fn fewer_runs_and_fewer_blocks_take_less() {
        let written = |requests, blocks| Written { requests, blocks, demanded: 0.0, left: blocks };
        // 8 blocks in two runs took 10 each, 2 of it for the transfer: each run costs 32.
        let now = written(2.0, 8.0);
        assert_eq!(
            [written(2.0, 8.0), written(1.0, 8.0), written(1.0, 4.0)].map(|other| other.by(now, 10.0, 2.0)),
            [1.0, 0.6, 0.5]
        );
        assert_eq!(written(1.0, 4.0).by(now, 1.0, 2.0), 0.5, "all of it on their way");
        assert_eq!(written(0.0, 0.0).by(Written::default(), 10.0, 2.0), 1.0);
    }

    #[test]
    fn what_a_large_pool_has_not_written_yet_it_will() {
        let mut dirt = dirt(10, 1000);
        (0..500).for_each(|at| dirt.write(0, 0, VOLUME, at * 256, false));
        assert_eq!(all(&dirt), [(500.0, 500.0); POOLS]);
    }

    #[test]
    fn who_outpaces_the_disk_has_more_room_and_no_age_limit() {
        let dirty = |outpaces: [bool; 2]| {
            let mut dirt = DirtyData::new(1 << 20, 5 * SECOND);
            dirt.set_room(1000, 1000, outpaces);
            (0..900).for_each(|at| dirt.write(0, 0, VOLUME, at * 256, false));
            let full = dirt.pools.each_ref().map(|pool| pool.dirty);
            dirt.pass(60 * SECOND, 60 * SECOND);
            (full, dirt.pools.each_ref().map(|pool| pool.dirty))
        };
        assert_eq!(dirty([false; 2]), ([500; POOLS], [0; POOLS]));
        assert_eq!(dirty([true, false]), ([750, 750, 500], [750, 750, 0]));
        assert_eq!(dirty([false, true]), ([500, 500, 750], [0, 0, 750]));
        let mut dirt = dirt(10, 10);
        dirt.set_room(10, 10, [true; 2]);
        let outpaces = |dirt: &mut DirtyData| {
            dirt.set_room(10, 10, [false; 2]);
            dirt.outpaces[ALONE] > 0
        };
        assert_eq!((0..=OUTPACES_LOOKS).filter(|_| outpaces(&mut dirt)).count() as u32, OUTPACES_LOOKS - 1);
    }

    #[test]
    fn what_is_durable_costs_the_same_everywhere() {
        let mut dirt = dirt(10, 1000);
        [1, 2, 3, 9, 3].into_iter().for_each(|number| dirt.write(0, 0, VOLUME, number, true));
        assert_eq!(all(&dirt), [(3.0, 5.0); POOLS]);
    }

    #[test]
    fn a_full_table_samples_less_and_still_knows_the_proportion() {
        let mut dirt = DirtyData::new(64 << 10, 5 * SECOND);
        dirt.set_room(4000, 40_000, [false; 2]);
        // Uniform over 40,000 blocks far apart: in a pool of n blocks, n / 40,000 of the writes are to dirty blocks.
        let mut at = 1u64;
        for step in 0..400_000 {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            dirt.write(0, 0, VOLUME, (at >> 33) % 40_000 * 512, false);
            if step == 100_000 {
                dirt.fade(0.0);
            }
        }
        assert!(dirt.admitted < ALL / 4, "{}", dirt.admitted);
        let [now, roomy, alone] = all(&dirt);
        assert!((roomy.0 / now.0 - 0.5 / 0.95).abs() < 0.05 && roomy == alone, "{now:?} {roomy:?}");
    }
}
