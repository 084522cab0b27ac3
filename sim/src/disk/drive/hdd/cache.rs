//! The memory of a hard disk: segments that were read, requested or read ahead, and writes that are not on the medium
//! yet.
//!
//! Both hold sector numbers only. A segment is one run of sectors, as in the drives of the time: one per stream.

use engine::units::Nanos;

/// The parameters of the read cache.
#[derive(Clone, Copy, Debug)]
pub struct ReadCacheSpec {
    /// Segments that it holds.
    pub segments: usize,
    /// Maximum length of a segment.
    pub segment_sectors: u64,
    /// Sectors that it reads ahead after a request, until another request needs the arm.
    pub ahead_sectors: u64,
    /// Read ahead only after a request that continued a segment: the second request of a stream.
    pub ahead_after_sequential: bool,
    /// Read ahead at most to the end of the track.
    pub ahead_to_track_end: bool,
}

/// The parameters of the write cache.
#[derive(Clone, Copy, Debug)]
pub struct WriteCacheSpec {
    /// Runs of sectors that it holds.
    pub extents: usize,
    /// Sectors that it holds.
    pub sectors: u64,
    /// Above this level dirty sectors are destaged before other work.
    pub high_sectors: u64,
    /// Idle time before destaging begins.
    pub idle_ns: Nanos,
}

/// Sectors `start..end` that were read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The first sector.
    pub start: u64,
    /// After the last sector.
    pub end: u64,
    /// When the last sector has been read.
    pub read_at: Nanos,
    used: u64,
}

const EMPTY: Segment = Segment { start: 0, end: 0, read_at: 0, used: 0 };

/// The segments of a read cache.
#[derive(Debug)]
pub struct ReadCache {
    spec: ReadCacheSpec,
    segments: Vec<Segment>,
    turn: u64,
}

impl ReadCache {
    /// An empty cache.
    pub fn new(spec: ReadCacheSpec) -> ReadCache {
        ReadCache { spec, segments: vec![EMPTY; spec.segments], turn: 0 }
    }

    /// Its parameters.
    pub fn spec(&self) -> &ReadCacheSpec {
        &self.spec
    }

    /// A segment.
    pub fn segment(&self, index: usize) -> Segment {
        self.segments[index]
    }

    /// The segment that holds `sector` or ends at it; of several, the one with the greatest end.
    pub fn find(&mut self, sector: u64) -> Option<usize> {
        let mut found = None;
        let mut furthest = 0;
        for (index, segment) in self.segments.iter().enumerate() {
            if segment.start <= sector && sector <= segment.end && segment.start < segment.end && segment.end > furthest
            {
                (found, furthest) = (Some(index), segment.end);
            }
        }
        let found = found?;
        self.turn += 1;
        self.segments[found].used = self.turn;
        Some(found)
    }

    /// Replaces the least recently used segment by one that begins at `sector`.
    pub fn begin(&mut self, sector: u64) -> usize {
        self.turn += 1;
        let mut oldest = 0;
        for (index, segment) in self.segments.iter().enumerate() {
            if segment.used < self.segments[oldest].used {
                oldest = index;
            }
        }
        self.segments[oldest] = Segment { start: sector, end: sector, read_at: 0, used: self.turn };
        oldest
    }

    /// A segment has been read up to `end` by `read_at`. Beyond its maximum length, its oldest sectors are dropped.
    pub fn extend(&mut self, index: usize, end: u64, read_at: Nanos) {
        let segment = &mut self.segments[index];
        (segment.end, segment.read_at) = (end, read_at);
        segment.start = segment.start.max(end.saturating_sub(self.spec.segment_sectors));
    }

    /// Sectors `start..end` are written: a segment drops them, and its sectors behind them.
    pub fn forget(&mut self, start: u64, end: u64) {
        for segment in self.segments.iter_mut().filter(|s| s.start < end && start < s.end) {
            if start <= segment.start {
                segment.start = end.min(segment.end);
            } else {
                segment.end = start;
            }
        }
    }

    /// Drops all segments.
    pub fn clear(&mut self) {
        self.segments.fill(EMPTY);
    }
}

/// Sectors that are acknowledged and not on the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dirty {
    /// The first sector.
    pub start: u64,
    /// After the last sector.
    pub end: u64,
    /// Sequence number of the oldest write in it. A flush that waits for that write waits for the whole run.
    pub turn: u64,
}

/// The acknowledged writes that are not on the medium.
#[derive(Debug)]
pub struct WriteCache {
    spec: WriteCacheSpec,
    extents: Vec<Dirty>,
    sectors: u64,
    turn: u64,
}

impl WriteCache {
    /// An empty cache.
    pub fn new(spec: WriteCacheSpec) -> WriteCache {
        WriteCache { spec, extents: Vec::with_capacity(spec.extents + 1), sectors: 0, turn: 0 }
    }

    /// Its parameters.
    pub fn spec(&self) -> &WriteCacheSpec {
        &self.spec
    }

    /// The dirty runs, in no order.
    pub fn extents(&self) -> &[Dirty] {
        &self.extents
    }

    /// Whether it is above the level at which destaging goes first.
    pub fn is_high(&self) -> bool {
        self.sectors > self.spec.high_sectors
    }

    /// Sequence number of the newest write.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Whether it holds a write up to number `turn`.
    pub fn holds(&self, turn: u64) -> bool {
        self.extents.iter().any(|extent| extent.turn <= turn)
    }

    /// Whether `start..end` can be read from it.
    pub fn contains(&self, start: u64, end: u64) -> bool {
        self.extents.iter().any(|extent| extent.start <= start && end <= extent.end)
    }

    /// Adds `start..end` and returns true, unless the cache is full. Older writes of these sectors are dropped. A run
    /// that ends at `start` is extended.
    pub fn insert(&mut self, start: u64, end: u64) -> bool {
        if self.sectors + (end - start) > self.spec.sectors || self.extents.len() >= self.spec.extents {
            return false;
        }
        self.turn += 1;
        self.forget(start, end);
        self.sectors += end - start;
        match self.extents.iter_mut().find(|extent| extent.end == start) {
            Some(extent) => extent.end = end,
            None => self.extents.push(Dirty { start, end, turn: self.turn }),
        }
        true
    }

    /// `start..end` is overwritten: drops these sectors. A run that extends beyond both ends is split in two.
    pub fn forget(&mut self, start: u64, end: u64) {
        let mut index = 0;
        while index < self.extents.len() {
            let old = self.extents[index];
            if old.end <= start || end <= old.start {
                index += 1;
                continue;
            }
            self.remove(index);
            for part in [Dirty { end: start, ..old }, Dirty { start: end, ..old }] {
                if part.start < part.end {
                    self.sectors += part.end - part.start;
                    self.extents.push(part);
                }
            }
        }
    }

    /// Removes a run, to be destaged.
    pub fn remove(&mut self, index: usize) -> Dirty {
        let extent = self.extents.swap_remove(index);
        self.sectors -= extent.end - extent.start;
        extent
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.extents.clear();
        self.sectors = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The dirty sectors are those written since they were last removed, in runs that do not overlap.
        #[test]
        fn the_write_cache_holds_each_sector_once(
            steps in prop::collection::vec((any::<bool>(), 0u64..60, 1u64..20), 1..60)
        ) {
            let spec = WriteCacheSpec { extents: 8, sectors: 64, high_sectors: 32, idle_ns: 0 };
            let (mut cache, mut model) = (WriteCache::new(spec), BTreeSet::new());
            for (insert, start, len) in steps {
                if insert {
                    if cache.insert(start, start + len) {
                        model.extend(start..start + len);
                    }
                } else if !cache.extents().is_empty() {
                    let extent = cache.remove(start as usize % cache.extents().len());
                    (extent.start..extent.end).for_each(|sector| { model.remove(&sector); });
                }
                let all: Vec<_> = cache.extents().iter().flat_map(|extent| extent.start..extent.end).collect();
                prop_assert_eq!(all.len(), model.len());
                prop_assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), model.clone());
                prop_assert_eq!(cache.sectors, model.len() as u64);
                prop_assert!(cache.sectors <= spec.sectors);
            }
        }

        /// A segment never claims sectors that were not read, or that were written since.
        #[test]
        fn the_read_cache_claims_what_was_read(
            steps in prop::collection::vec((0u8..3, 0u64..200, 1u64..20), 1..60)
        ) {
            let (segments, segment_sectors, ahead_sectors) = (3, 32, 8);
            let spec = ReadCacheSpec {
                segments,
                segment_sectors,
                ahead_sectors,
                ahead_after_sequential: false,
                ahead_to_track_end: false,
            };
            let (mut cache, mut read) = (ReadCache::new(spec), BTreeSet::new());
            for (step, sector, len) in steps {
                match step {
                    0 => {
                        let index = cache.begin(sector);
                        cache.extend(index, sector + len, 0);
                        read.extend(sector..sector + len);
                    }
                    1 => {
                        if let Some(index) = cache.find(sector) {
                            let end = cache.segment(index).end;
                            cache.extend(index, end + len, 0);
                            read.extend(end..end + len);
                        }
                    }
                    _ => {
                        cache.forget(sector, sector + len);
                        (sector..sector + len).for_each(|sector| { read.remove(&sector); });
                    }
                }
                for index in 0..spec.segments {
                    let segment = cache.segment(index);
                    prop_assert!(segment.end - segment.start <= spec.segment_sectors);
                    prop_assert!((segment.start..segment.end).all(|sector| read.contains(&sector)));
                }
            }
        }
    }
}
