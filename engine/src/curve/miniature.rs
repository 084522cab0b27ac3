//! A miniature cache: runs a sample of the blocks through a partition that is smaller in the same proportion, with the
//! eviction policy in question.
//!
//! ```text
//!   rate = places / size        a partition of 131,072 blocks, simulated by one block in 386: 340 places
//! ```
//!
//! The order of eviction is [`crate::cache::eviction`], the code of real partitions. Dirty blocks are not evicted, and
//! dirty blocks beyond half the partition are written. Writing takes no time here.
//!
//! Source: Waldspurger, Saemundsson, Ahmad, Park, "Cache modeling and optimization using miniature simulations" (ATC
//! 2017). Downside: each miniature has one size, so there are few points, an octave apart; and with 340 places the
//! error is two to four percent where a curve is steep.

use hashbrown::HashTable;

use super::samples::Dirtying;
use super::{Block, spread};
use crate::eviction::Policy as EvictionPolicy;
use crate::eviction::list::{Linked, Links, List};
use crate::eviction::{Eviction, ORDER, Placed, Verdict, evict};
use crate::units::SectorMask;

/// The links of the list of dirty items, oldest first.
const DIRTY: usize = 1;

/// A block in a miniature cache.
#[derive(Clone, Debug)]
struct Item {
    links: [Links; 2],
    block: Block,
    hash: u32,
    flushes: u32,
    dirty_since_ms: u32,
    valid: SectorMask,
    visited: bool,
    dirty: bool,
    in_order: bool,
    /// It was prefetched, and no client has requested it since.
    ahead: bool,
}

impl<const K: usize> Linked<K> for Item {
    fn links(&self) -> &Links {
        &self.links[K]
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links[K]
    }
}

impl Placed for Item {
    fn visited(&mut self) -> &mut bool {
        &mut self.visited
    }
}

impl Item {
    fn is_dirty(&self, now: &Dirtying) -> bool {
        self.dirty && self.flushes == now.flushes && now.now_ms.wrapping_sub(self.dirty_since_ms) < now.age_max_ms
    }
}

/// Counts of references of one kind.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Kind {
    sampled: f64,
    absorbed: f64,
}

impl Kind {
    pub(super) fn count(&mut self, absorbed: bool) {
        self.sampled += 1.0;
        self.absorbed += f64::from(u8::from(absorbed));
    }

    fn fade(&mut self, factor: f64) {
        self.sampled *= factor;
        self.absorbed *= factor;
    }

    /// The miss ratio. The references that the sample lacks, compared with `expected`, are references to hot blocks;
    /// the fraction `hot` of them is absorbed.
    pub(super) fn misses(&self, expected: f64, hot: f64) -> f64 {
        let absorbed = self.absorbed + (expected - self.sampled) * hot;
        if expected > 0.0 { (1.0 - absorbed / expected).clamp(0.0, 1.0) } else { 1.0 }
    }
}

/// What a miniature cache has counted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) size: u64,
    pub(super) rate: f64,
    pub(super) reads: Kind,
    pub(super) writes: Kind,
}

/// A partition in miniature.
#[derive(Debug)]
pub(super) struct Miniature {
    /// The size of the partition that it represents, blocks.
    pub(super) size: u64,
    places: usize,
    /// Blocks with lower hashes are simulated.
    admitted: u64,
    items: Vec<Item>,
    free: Vec<u32>,
    index: HashTable<u32>,
    order: Box<dyn Eviction<Item>>,
    dirty: List<DIRTY>,
    pub(super) reads: Kind,
    pub(super) writes: Kind,
}

impl Miniature {
    /// Represents a partition of `size` blocks with at most `places_max` places, at a sampling rate of at most
    /// `rate_max`.
    pub(super) fn new(policy: EvictionPolicy, size: u64, places_max: usize, rate_max: f64) -> Miniature {
        let rate = (places_max as f64 / size as f64).min(rate_max);
        let places = ((size as f64 * rate).round() as usize).max(1);
        Miniature {
            size,
            places,
            admitted: (places as f64 / size as f64 * super::ALL as f64) as u64,
            items: Vec::with_capacity(places),
            free: Vec::with_capacity(places),
            index: HashTable::with_capacity(super::index_capacity(places)),
            order: policy.order(List::default()),
            dirty: List::default(),
            reads: Kind::default(),
            writes: Kind::default(),
        }
    }

    /// Bytes of a miniature with this many places.
    pub(super) fn bytes(places: usize) -> usize {
        places * (size_of::<Item>() + 4) + super::index_bytes(places) + size_of::<Miniature>() + 32
    }

    pub(super) fn rate(&self) -> f64 {
        self.admitted as f64 / super::ALL as f64
    }

    pub(super) fn counts(&self) -> Counts {
        Counts { size: self.size, rate: self.rate(), reads: self.reads, writes: self.writes }
    }

    pub(super) fn admits(&self, hash: u32) -> bool {
        u64::from(hash) < self.admitted
    }

    pub(super) fn read(&mut self, block: Block, hash: u32, sectors: SectorMask, now: &Dirtying) {
        let (id, found) = self.refer(block, hash, now, true);
        let item = &mut self.items[id as usize];
        let hit = found && !std::mem::take(&mut item.ahead) && sectors & !item.valid == 0;
        item.valid = SectorMask::MAX;
        self.reads.count(hit);
    }

    pub(super) fn write(&mut self, block: Block, hash: u32, sectors: SectorMask, durable: bool, now: &Dirtying) {
        let (id, _) = self.refer(block, hash, now, true);
        let item = &mut self.items[id as usize];
        item.ahead = false;
        item.valid |= sectors;
        let (was, is) = (item.is_dirty(now), !durable);
        if item.dirty && (durable || !was) {
            self.cleaned(id);
        }
        if is && !was {
            let item = &mut self.items[id as usize];
            (item.dirty, item.dirty_since_ms, item.flushes) = (true, now.now_ms, now.flushes);
            self.dirty.push_back(&mut self.items, id);
        }
        self.writes.count(was && !durable);
        self.write_back(now);
    }

    pub(super) fn read_ahead(&mut self, block: Block, hash: u32, now: &Dirtying) {
        let (id, found) = self.refer(block, hash, now, false);
        if !found {
            (self.items[id as usize].ahead, self.items[id as usize].valid) = (true, SectorMask::MAX);
        }
    }

    pub(super) fn forget_all(&mut self, gone: impl Fn(&Block) -> bool) {
        for id in 0..self.items.len() as u32 {
            let Item { in_order, dirty, block, .. } = self.items[id as usize];
            if (in_order || dirty) && gone(&block) {
                self.drop_item(id);
            }
        }
    }

    pub(super) fn forget(&mut self, block: Block, hash: u32) {
        if let Some(id) = self.find(block, hash) {
            self.drop_item(id);
        }
    }

    pub(super) fn fade(&mut self, factor: f64) {
        self.reads.fade(factor);
        self.writes.fade(factor);
    }

    fn find(&self, block: Block, hash: u32) -> Option<u32> {
        self.index.find(spread(hash), |&id| self.items[id as usize].block == block).copied()
    }

    /// A client (`asked`), or read-ahead, refers to a block. Returns its item, and whether it was cached.
    fn refer(&mut self, block: Block, hash: u32, now: &Dirtying, asked: bool) -> (u32, bool) {
        if let Some(id) = self.find(block, hash) {
            let Item { in_order, ahead, .. } = self.items[id as usize];
            if !in_order {
                self.items[id as usize].in_order = true;
                self.order.enter(&mut self.items, id);
            } else if asked {
                self.order.used(&mut self.items, id, !ahead);
            }
            return (id, true);
        }
        while self.index.len() >= self.places && self.evict(now) {}
        let fresh = Item {
            links: Default::default(),
            block,
            hash,
            flushes: 0,
            dirty_since_ms: 0,
            valid: 0,
            visited: false,
            dirty: false,
            in_order: true,
            ahead: false,
        };
        let id = match self.free.pop() {
            Some(id) => {
                self.items[id as usize] = fresh;
                id
            }
            None => {
                self.items.push(fresh);
                (self.items.len() - 1) as u32
            }
        };
        let items = &self.items;
        self.index.insert_unique(spread(hash), id, |&id| spread(items[id as usize].hash));
        self.order.enter(&mut self.items, id);
        (id, false)
    }

    fn evict(&mut self, now: &Dirtying) -> bool {
        let found = evict(&mut *self.order, &mut self.items, |_, item| {
            if item.is_dirty(now) {
                item.in_order = false;
                Verdict::Unready
            } else {
                Verdict::Goes
            }
        });
        match found.or(self.dirty.front()) {
            Some(id) => self.drop_item(id),
            None => return false,
        }
        true
    }

    fn drop_item(&mut self, id: u32) {
        if std::mem::take(&mut self.items[id as usize].dirty) {
            self.dirty.remove(&mut self.items, id);
        }
        if std::mem::take(&mut self.items[id as usize].in_order) {
            self.order.leave(&mut self.items, id);
        }
        let hash = self.items[id as usize].hash;
        self.index.find_entry(spread(hash), |&other| other == id).expect("an item").remove();
        self.free.push(id);
    }

    /// Writes blocks that are too old, and the oldest ones beyond half the partition.
    fn write_back(&mut self, now: &Dirtying) {
        while let Some(id) = self.dirty.front()
            && (self.dirty.len() as usize > (self.places / 2).max(1) || !self.items[id as usize].is_dirty(now))
        {
            self.cleaned(id);
        }
    }

    fn cleaned(&mut self, id: u32) {
        self.items[id as usize].dirty = false;
        self.dirty.remove(&mut self.items, id);
        if !std::mem::replace(&mut self.items[id as usize].in_order, true) {
            self.order.come_back(&mut self.items, id);
        }
    }
}

const _: () = assert!(ORDER != DIRTY, "a list has links of its own");
