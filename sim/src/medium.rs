//! The content of one volume on a disk: for each sector, its version on the medium and those in the volatile cache.
//!
//! ```text
//!   write completes ──► volatile version ──flush──► on the medium
//!                           │      │
//!                           │      └─ failed flush of any volume on the device: some or all of it doomed: readable,
//!                           │         but no later flush makes it durable (fsync)
//!                           └─ power cut: the medium's or any volatile version survives, independently per sector
//! ```
//!
//! Versions become durable in order: a flush moves the newest version that it covers to the medium and drops the older
//! ones. A power cut may keep a doomed version: its loss is not guaranteed either.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use engine::units::{BLOCK, SECTOR, SECTORS_PER_BLOCK};

use crate::rng::Rng;

/// A count of the disk's completions: the order of events on the disk.
pub type Turn = u64;

/// The content of a sector: a place in the data of the request that wrote it, or zeros.
#[derive(Clone, Default, Debug)]
pub struct Content(Option<(Rc<Vec<u8>>, u32)>);

impl Content {
    /// The sector at `at` bytes in `data`.
    pub fn new(data: &Rc<Vec<u8>>, at: u64) -> Content {
        let zero = data[at as usize..][..SECTOR as usize].iter().all(|&byte| byte == 0);
        Content((!zero).then(|| (data.clone(), at as u32)))
    }

    /// The bytes of the sector.
    pub fn bytes(&self) -> &[u8] {
        static ZEROS: [u8; SECTOR as usize] = [0; SECTOR as usize];
        match &self.0 {
            Some((data, at)) => &data[*at as usize..][..SECTOR as usize],
            None => &ZEROS,
        }
    }

    fn is_zero(&self) -> bool {
        self.0.is_none()
    }
}

#[derive(Clone, Debug)]
struct Version {
    content: Content,
    completed: Turn,
    /// When it was doomed: since then no flush makes it durable.
    doomed: Option<Turn>,
}

/// A sector, with all versions that could survive a power cut.
#[derive(Clone, Default, Debug)]
pub struct Sector {
    stable: Content,
    volatile: Vec<Version>,
}

impl Sector {
    /// The versions that could survive a power cut.
    pub fn survivors(&self) -> impl Iterator<Item = &Content> {
        std::iter::once(&self.stable).chain(self.volatile.iter().map(|version| &version.content))
    }

    fn newest(&self) -> &Content {
        self.volatile.last().map_or(&self.stable, |version| &version.content)
    }

    fn settle(&mut self, content: Content) {
        self.stable = content;
        self.volatile.clear();
    }
}

type Block = [Sector; SECTORS_PER_BLOCK as usize];

/// When a write becomes durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Immediately.
    Durable,
    /// With the next flush.
    Volatile,
    /// Perhaps never: it was doomed at this count.
    Doomed(Turn),
}

/// Where the content of a volume is.
pub trait Blocks {
    /// The sectors of block `number`, if any of them was ever written.
    fn block(&self, number: u64) -> Option<&[Sector]>;
}

/// One volume's sectors. Sectors that were never written read as zeros.
#[derive(Default, Debug)]
pub struct Medium {
    blocks: BTreeMap<u64, Block>,
    /// Blocks that have volatile versions.
    unstable: BTreeSet<u64>,
}

impl Blocks for Medium {
    fn block(&self, number: u64) -> Option<&[Sector]> {
        self.blocks.get(&number).map(|block| &block[..])
    }
}

impl Medium {
    /// Reads from a sector boundary.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        for (i, bytes) in into.chunks_mut(SECTOR as usize).enumerate() {
            let sector = offset / SECTOR + i as u64;
            let content = self.blocks.get(&(sector / SECTORS_PER_BLOCK));
            match content.map(|block| block[(sector % SECTORS_PER_BLOCK) as usize].newest()) {
                Some(content) => bytes.copy_from_slice(content.bytes()),
                None => bytes.fill(0),
            }
        }
    }

    /// Writes one sector.
    pub fn write(&mut self, sector: u64, content: Content, fate: Fate, completed: Turn) {
        let number = sector / SECTORS_PER_BLOCK;
        if content.is_zero() && !self.blocks.contains_key(&number) {
            return;
        }
        let at = &mut self.blocks.entry(number).or_default()[(sector % SECTORS_PER_BLOCK) as usize];
        if fate == Fate::Durable {
            return at.settle(content);
        }
        let doomed = if let Fate::Doomed(since) = fate { Some(since) } else { None };
        at.volatile.push(Version { content, completed, doomed });
        self.unstable.insert(number);
    }

    /// The sectors of `offset..offset + len`, except those in blocks that are certainly zeros.
    pub fn written_sectors(&self, offset: u64, len: u64) -> Vec<u64> {
        let (first, past) = (offset / SECTOR, (offset + len) / SECTOR);
        let blocks = self.blocks.range(first / SECTORS_PER_BLOCK..past.div_ceil(SECTORS_PER_BLOCK));
        let sectors = blocks.flat_map(|(number, _)| number * SECTORS_PER_BLOCK..(number + 1) * SECTORS_PER_BLOCK);
        sectors.filter(|sector| (first..past).contains(sector)).collect()
    }

    /// A flush: versions that completed before `submitted` move to the medium, unless they are doomed.
    pub fn flush(&mut self, submitted: Turn) {
        let blocks = &mut self.blocks;
        self.unstable.retain(|number| {
            let block = blocks.get_mut(number).expect("an unstable block");
            let mut unstable = false;
            for sector in block {
                let durable = sector.volatile.iter().rposition(|v| v.doomed.is_none() && v.completed < submitted);
                if let Some(at) = durable {
                    sector.stable = sector.volatile.drain(..=at).next_back().expect("the newest").content;
                }
                unstable |= !sector.volatile.is_empty();
            }
            unstable
        });
    }

    /// A flush of the device fails: the volatile versions that `drops` selects are doomed.
    pub fn doom(&mut self, now: Turn, mut drops: impl FnMut() -> bool) {
        for number in &self.unstable {
            let block = self.blocks.get_mut(number).expect("an unstable block");
            for version in block.iter_mut().flat_map(|sector| &mut sector.volatile).filter(|_| drops()) {
                version.doomed = Some(now);
            }
        }
    }

    /// The losses of flushes that failed by `until` are accepted, or the process that learned of them has died. Doomed
    /// versions that are still readable become ordinary ones: from then on the simulation does not keep data readable
    /// that no flush can save.
    pub fn forgive(&mut self, until: Turn) {
        for number in &self.unstable {
            let block = self.blocks.get_mut(number).expect("an unstable block");
            for version in block.iter_mut().flat_map(|sector| &mut sector.volatile) {
                version.doomed = version.doomed.filter(|&doomed| doomed > until);
            }
        }
    }

    /// A power cut: any one version of each sector survives.
    pub fn power_cut(&mut self, rng: &mut Rng) {
        for number in std::mem::take(&mut self.unstable) {
            for sector in self.blocks.get_mut(&number).expect("an unstable block") {
                let survivor = rng.below(sector.volatile.len() as u64 + 1) as usize;
                let content = sector.survivors().nth(survivor).expect("one of them").clone();
                sector.settle(content);
            }
        }
        self.blocks.retain(|_, block| !block.iter().all(|sector| sector.stable.is_zero()));
    }

    /// The ranges of `0..size`, in whole blocks, that were never written or were zeroed completely.
    pub fn holes(&self, size: u64) -> Vec<(u64, u64)> {
        let mut holes = Vec::new();
        let mut from = 0;
        for number in self.blocks.keys() {
            if from < number * BLOCK {
                holes.push((from, number * BLOCK));
            }
            from = (number + 1) * BLOCK;
        }
        if from < size {
            holes.push((from, size));
        }
        holes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(byte: u8) -> Content {
        Content::new(&Rc::new(vec![byte; 512]), 0)
    }

    fn read(medium: &Medium) -> u8 {
        let mut bytes = [0; 512];
        medium.read(0, &mut bytes);
        bytes[0]
    }

    fn survivors(medium: &Medium) -> Vec<u8> {
        medium.block(0).unwrap()[0].survivors().map(|content| content.bytes()[0]).collect()
    }

    #[test]
    fn only_a_flush_submitted_after_completion_makes_durable() {
        let mut medium = Medium::default();
        medium.write(0, content(1), Fate::Volatile, 5);
        medium.flush(5);
        assert_eq!((read(&medium), survivors(&medium)), (1, vec![0, 1]));
        medium.write(0, content(2), Fate::Volatile, 7);
        medium.flush(6);
        assert_eq!((read(&medium), survivors(&medium)), (2, vec![1, 2]));
        medium.write(0, content(3), Fate::Durable, 8);
        assert_eq!(survivors(&medium), [3]);
    }

    #[test]
    fn a_failed_flush_dooms_until_rewritten() {
        let mut medium = Medium::default();
        medium.write(0, content(1), Fate::Volatile, 1);
        medium.doom(2, || true);
        medium.forgive(1);
        medium.flush(9);
        assert_eq!((read(&medium), survivors(&medium)), (1, vec![0, 1]));
        medium.write(0, content(1), Fate::Volatile, 10);
        medium.flush(11);
        assert_eq!(survivors(&medium), [1]);
        medium.write(0, content(2), Fate::Doomed(12), 13);
        medium.forgive(12);
        medium.flush(14);
        assert_eq!(survivors(&medium), [2], "its loss was accepted, and it is there");
    }

    #[test]
    fn a_power_cut_keeps_any_version_of_each_sector() {
        let mut seen = BTreeSet::new();
        for seed in 0..100 {
            let mut medium = Medium::default();
            for sector in 0..2 {
                medium.write(sector, content(1), Fate::Volatile, 1);
                medium.write(sector, content(2), Fate::Volatile, 2);
            }
            medium.power_cut(&mut Rng::new(seed));
            let mut bytes = [0; 1024];
            medium.read(0, &mut bytes);
            seen.insert((bytes[0], bytes[512]));
        }
        assert_eq!(seen.len(), 9, "torn in every way");
    }

    #[test]
    fn holes_are_what_was_never_written() {
        let mut medium = Medium::default();
        medium.write(8, content(1), Fate::Durable, 1);
        assert_eq!(medium.holes(20 * 512), [(0, 4096), (8192, 20 * 512)]);
        assert_eq!(medium.written_sectors(4096 + 512, 1024), [9, 10]);
        medium.write(8, Content::default(), Fate::Durable, 2);
        medium.power_cut(&mut Rng::new(1));
        assert_eq!(medium.holes(20 * 512), [(0, 20 * 512)]);
    }
}
