//! R_cache: a tenant's throughput by partition size, relative to that with the whole cache, as an interval.
//!
//! ```text
//!   S(c) = reads x (m_r(c) x disk_r + (1 - m_r(c)) x hit)  +  writes x (m_w(c) x disk_w(c / 2) + (1 - m_w(c)) x hit)
//!   R_cache(c) = S(alone) / S(c)
//! ```
//!
//! m are miss ratios from the tenant's curve. At most half a partition is dirty, and the cost of a written block falls
//! with the amount of dirty data. The cost for more dirty data than the tenant has, and standalone, is estimated by
//! `curve/dirty.rs` ([`Gain`]).
//!
//! **Unseen reuse.** On the curve the first reference to a block is a miss at any size, but a cache that has been full
//! for long would absorb some of them: a cache of c blocks has a random block of a working set of w blocks with
//! probability c / w.
//!
//! ```text
//!   m_r(c) = curve(c) - first x min(1, c / w)       high end:  w infinite, the curve itself
//!                                                   estimate:  w the volumes
//!                                                   low end:   w the geometric mean of the volumes and of
//!                                                              the blocks seen / the part of w that was seen
//! ```
//!
//! The part of w that was seen is that of far references that are not first ones: reuse / (reuse + first). Far is a
//! distance beyond half of the blocks seen, so that a small hot set does not pass for the whole.
//!
//! **Low end.** It also bears the error of the write model: the gain by more dirty data may be the one and a half fold
//! of what it seems ([`GAIN_POWER`]), and at least [`WRITE_ERROR`].
//!
//! Source: Argon (Wachs et al., FAST 2007): "S = p x cache time + (1 - p) x disk time", throughput is 1 / S. The part
//! that was not seen: after Good (1953), Biometrika 40. Downside: hits and misses are assumed to follow each other, as
//! with a queue depth of 1. At higher depths hits cost even less; compared with milliseconds of disk time this does not
//! matter.

use crate::cache::FRAMES_MIN;
use crate::curve::{Cost, Point, View};

/// Power of the gain by more dirty data that the low end assumes: blocks and runs standalone were within 5 % in half of
/// the figures of four traces, else off by 29 % at most (`docs/notes/sizing.md`).
const GAIN_POWER: f64 = 1.5;
/// The largest partition relative to that which the estimate asks for.
const CAUTION: u64 = 2;
/// The least error of the cost of writes that no flush demands: among eight tenants of one disk, those that mostly
/// wrote kept up to 0.05 less than estimated.
const WRITE_ERROR: f64 = 0.06;
/// Time of an absorbed block: a request of 4 KiB through the server's thread and a socket, measured at 5 us of CPU and
/// 14 us of latency at depth 1, less at higher depths. Accurate enough, as it is about a hundredth of a seek.
const HIT_NS: f64 = 10_000.0;

/// The cost of writes relative to the present partition: with the whole cache under contention, and standalone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gain {
    /// Frames of the present partition.
    pub(super) target: u64,
    pub(super) roomy: f64,
    pub(super) alone: f64,
    /// The part of the written blocks that no flush demanded.
    pub(super) chosen: f64,
}

impl Gain {
    /// The relative cost with `frames`, more than the present partition: each doubling gains the same factor.
    fn at(&self, frames: u64, whole: u64) -> f64 {
        let octaves = |frames: u64| (frames as f64 / self.target as f64).log2();
        let part = octaves(frames.min(whole)) / octaves(whole).max(f64::MIN_POSITIVE);
        self.roomy.powf(part.clamp(0.0, 1.0))
    }
}

/// What is known of a tenant's working set beyond its curve, blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    /// The size of its volumes.
    pub(super) volume: u64,
    /// Blocks that it has referenced recently.
    pub(super) seen: f64,
}

impl Area {
    /// The working set as far as the curve tells, blocks.
    fn told(self, view: &View) -> f64 {
        let misses = |blocks: f64| view.misses_of_reads(blocks as u64).unwrap_or(1.0);
        let seen = self.seen.max(1.0);
        // In a uniformly used set, reuse at distances beyond half of what was seen is half of all reuse.
        let reused = 2.0 * (misses(seen / 2.0) - misses(seen)).max(0.0);
        let covered = reused / (reused + view.first_reads).max(f64::MIN_POSITIVE);
        (seen / covered).min(self.volume())
    }

    fn volume(self) -> f64 {
        self.volume.max(1) as f64
    }

    /// The working sets of the low end, the estimate and the high end.
    fn sets(self, view: &View) -> [f64; 3] {
        [(self.told(view) * self.volume()).sqrt(), self.volume(), f64::INFINITY]
    }
}

/// R_cache with a partition: the estimate, and the interval in which it is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Keeps {
    pub(super) low: f64,
    pub(super) point: f64,
    pub(super) high: f64,
}

impl Keeps {
    /// Of a tenant whose load is unknown.
    pub(super) const UNKNOWN: Keeps = Keeps { low: 1.0, point: 1.0, high: 1.0 };

    fn of(ends: [f64; 3]) -> Keeps {
        let [low, point, high] = ends;
        Keeps { low, point, high }
    }
}

/// A tenant's throughput by partition size.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Frames of the partition, and R_cache with it: low end, estimate, high end. All increase.
    points: Vec<(u64, [f64; 3])>,
    /// By end: what a block of cache saves of the unseen reuse, relative to the service time standalone; and the
    /// working set, blocks.
    unseen: [(f64, f64); 3],
}

/// Frames of a partition that are not cache: data being received and sent.
const OTHER_FRAMES: u64 = FRAMES_MIN as u64;

/// Blocks that a partition of `frames` frames can cache.
fn blocks_of(frames: u64) -> u64 {
    frames.saturating_sub(OTHER_FRAMES)
}

/// The model of a tenant's service times.
struct Model<'a> {
    view: &'a View,
    cost: &'a Cost,
    gain: Gain,
    whole: u64,
    /// Working sets of the low end, the estimate and the high end, blocks.
    sets: [f64; 3],
}

impl Model<'_> {
    /// Time of the part `weight` of all references.
    fn part(&self, weight: f64, misses: f64, disk_ns: f64) -> f64 {
        weight / (self.view.reads + self.view.writes) * (misses * disk_ns + (1.0 - misses) * HIT_NS)
    }

    /// Blocks of the present partition, and the time of writes with it.
    fn present(&self) -> (u64, f64) {
        let had = self.gain.target.saturating_sub(OTHER_FRAMES).max(1);
        let misses = self.view.misses_of_writes(had).unwrap_or(1.0);
        (had, self.part(self.view.writes, misses, self.cost.write_ns(had / 2)))
    }

    /// Time of writes with `blocks`. Up to the present partition costs are measured; beyond it the miniatures of dirty
    /// data estimate them.
    fn writes_ns(&self, blocks: u64, misses: f64) -> f64 {
        match self.present() {
            (had, writes_ns) if blocks > had => writes_ns * self.gain.at(blocks + OTHER_FRAMES, self.whole),
            _ => self.part(self.view.writes, misses, self.cost.write_ns(blocks / 2)),
        }
    }

    /// Mean service time with `blocks`, for the low end, the estimate and the high end.
    fn service_ns(&self, blocks: u64, reads: f64, writes: f64) -> [f64; 3] {
        let writes_ns = self.writes_ns(blocks, writes);
        self.sets.map(|set| {
            let unseen = self.view.first_reads * (blocks as f64 / set).min(1.0);
            self.part(self.view.reads, (reads - unseen).max(0.0), self.cost.read_ns()) + writes_ns
        })
    }
}

impl Load {
    /// From a curve, measured disk times, the gain by more dirty data, and the working set; `None` without references.
    /// `whole`: frames of the whole cache.
    pub(super) fn new(view: &View, cost: &Cost, gain: Gain, area: Area, whole: u64) -> Option<Load> {
        if view.reads + view.writes <= 0.0 {
            return None;
        }
        let model = Model { view, cost, gain, whole, sets: area.sets(view) };
        let nothing = (OTHER_FRAMES, model.service_ns(0, 1.0, 1.0));
        let known = |point: &&Point| {
            let has = |weight: f64, misses: Option<f64>| weight == 0.0 || misses.is_some();
            has(view.reads, point.reads) && has(view.writes, point.writes)
        };
        let frames = |point: &Point| OTHER_FRAMES + point.blocks;
        // The last point is at the whole cache, or the next one above it: interpolation between two points is accurate
        // enough.
        let past = view.points.partition_point(|point| frames(point) < whole) + 1;
        let with = view.points[..past.min(view.points.len())].iter().filter(known).map(|point| {
            let (reads, writes) = (point.reads.unwrap_or(0.0), point.writes.unwrap_or(0.0));
            (frames(point), model.service_ns(point.blocks, reads, writes))
        });
        let mut points: Vec<_> = std::iter::once(nothing).chain(with).collect();
        // More cache is never worse: if the measurement says so, that is noise.
        for at in 1..points.len() {
            let before = points[at - 1].1;
            points[at].1.iter_mut().zip(before).for_each(|(now, before)| *now = now.min(before));
        }
        let mut load = Load { points, unseen: [(0.0, 1.0); 3] };
        // Standalone, writes cost what they cost with the whole cache, less the gain because the same writes come
        // sooner.
        let (_, writes_ns) = model.present();
        let sooner = writes_ns * (gain.roomy - gain.alone);
        let less = gain.alone.powf(GAIN_POWER) * (1.0 - WRITE_ERROR * gain.chosen);
        let error = [writes_ns * (gain.alone - less), 0.0, 0.0];
        let with_all = load.at(whole);
        let alone: [f64; 3] = std::array::from_fn(|end| (with_all[end] - sooner - error[end]).max(f64::MIN_POSITIVE));
        let saved_ns = model.part(view.reads, 1.0, cost.read_ns()) - model.part(view.reads, 0.0, cost.read_ns());
        let saved = |end: usize| (view.first_reads * saved_ns / model.sets[end] / alone[end], model.sets[end]);
        load.unseen = std::array::from_fn(saved);
        for (_, ends) in &mut load.points {
            *ends = std::array::from_fn(|end| (alone[end] / ends[end]).min(1.0));
            ends[0] = ends[0].min(ends[1]);
            ends[2] = ends[2].max(ends[1]);
        }
        Some(load)
    }

    /// Linear interpolation.
    fn at(&self, frames: u64) -> [f64; 3] {
        let past = self.points.partition_point(|point| point.0 < frames);
        let Some(&after) = self.points.get(past) else { return self.points[past - 1].1 };
        let Some(&before) = past.checked_sub(1).map(|at| &self.points[at]) else { return after.1 };
        let part = (frames - before.0) as f64 / (after.0 - before.0) as f64;
        std::array::from_fn(|end| before.1[end] + (after.1[end] - before.1[end]) * part)
    }

    /// R_cache with a partition of `frames` frames.
    pub(super) fn keeps(&self, frames: u64) -> Keeps {
        Keeps::of(self.at(frames))
    }

    /// R_cache at present with a partition of `frames` frames, of which `used` are in use. What has not been used yet
    /// absorbs no unseen reuse; the curve counts first references as misses anyway.
    pub(super) fn keeps_with(&self, frames: u64, used: u64) -> Keeps {
        let when_full = self.at(frames);
        let (all, used) = (blocks_of(frames) as f64, blocks_of(used.min(frames)) as f64);
        let now = |end: usize| {
            let (saved, set) = self.unseen[end];
            1.0 / (1.0 / when_full[end] + saved * (all.min(set) - used.min(set)))
        };
        Keeps::of(std::array::from_fn(now))
    }

    /// The smallest partition, in frames and of the sizes of the curve, with a low end of R_cache of at least `keeps`,
    /// which is below 1; at most [`CAUTION`] times that by the estimate: more would take memory from others for what
    /// may not be there.
    pub(super) fn least(&self, keeps: f64) -> u64 {
        let by = |end: usize| {
            let at = self.points.partition_point(|point| point.1[end] < keeps);
            self.points[at.min(self.points.len() - 1)].0
        };
        by(0).min(CAUTION * by(1))
    }
}

/// The cost of reads with `whole` frames relative to that with `target` frames of which `used` are in use, as
/// estimated, and how wide the interval is in which it is.
pub(super) fn reads_gain(view: &View, area: Area, (target, used): (u64, u64), whole: u64) -> (f64, f64) {
    let gain = |set: f64| {
        let misses = |frames: u64, full: u64| {
            let unseen = view.first_reads * (blocks_of(full) as f64 / set).min(1.0);
            Some((view.misses_of_reads(blocks_of(frames))? - unseen).max(0.0))
        };
        match (misses(target, used.min(target)), misses(whole, whole)) {
            (Some(now), Some(alone)) if now > 0.0 => (alone / now).min(1.0),
            _ => 1.0,
        }
    };
    let [low, point, high] = [area.told(view), area.volume(), f64::INFINITY].map(gain);
    (point, high - low)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::eviction::Policy as EvictionPolicy;

    /// Reads only, with these miss ratios by size.
    pub(in super::super) fn reads(misses: &[(u64, f64)]) -> View {
        let point = |&(blocks, misses)| Point { blocks, reads: Some(misses), writes: None, all: Some(misses) };
        let points = misses.iter().map(point).collect();
        View {
            policy: EvictionPolicy::Lru,
            points,
            reads: 1000.0,
            writes: 0.0,
            first_reads: 0.0,
            rate: 1.0,
            samples: 100,
        }
    }

    const AREA: Area = Area { volume: 1 << 20, seen: 1000.0 };

    /// A miss takes 5 ms.
    pub(in super::super) fn cost() -> Cost {
        let mut cost = Cost::default();
        cost.read(5_000_000, 1);
        cost
    }

    /// More dirty data gains nothing.
    pub(in super::super) fn new(view: &View, cost: &Cost, whole: u64) -> Option<Load> {
        Load::new(view, cost, Gain { target: whole, roomy: 1.0, alone: 1.0, chosen: 0.0 }, AREA, whole)
    }

    #[test]
    fn throughput_follows_what_goes_to_the_disk() {
        let load = new(&reads(&[(1000, 0.8), (2000, 0.4), (4000, 0.4)]), &cost(), 5000).unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 0.005, "{a} {b}");
        near(load.keeps(OTHER_FRAMES).point, 0.4);
        near(load.keeps(OTHER_FRAMES + 1000).point, 0.5);
        near(load.keeps(OTHER_FRAMES + 1500).point, 0.75);
        near(load.keeps(1 << 30).point, 1.0);
        assert_eq!([0.3, 0.45, 0.9].map(|keeps| load.least(keeps)), [0, 1000, 2000].map(|c| c + OTHER_FRAMES));
    }

    #[test]
    fn a_stream_needs_no_cache_and_an_unused_tenant_has_no_load() {
        let load = new(&reads(&[(1000, 1.0), (4000, 1.0)]), &cost(), 5000).unwrap();
        assert_eq!((load.keeps(OTHER_FRAMES).point, load.least(0.999)), (1.0, OTHER_FRAMES));
        assert!(new(&View { reads: 0.0, ..reads(&[]) }, &cost(), 5000).is_none());
    }

    #[test]
    fn more_dirt_is_cheaper_to_write() {
        let mut cost = Cost::default();
        cost.wrote(64 * 8_000_000, 64, 500);
        cost.wrote(64 * 4_000_000, 64, 2000);
        let points = [1000, 4000].map(|blocks| Point { blocks, reads: None, writes: Some(1.0), all: Some(1.0) });
        let view = View { reads: 0.0, writes: 10.0, points: points.into(), ..reads(&[]) };
        let load = new(&view, &cost, 4000 + OTHER_FRAMES).unwrap();
        assert_eq!((load.keeps(1000 + OTHER_FRAMES).point, load.least(0.6)), (0.5, 4000 + OTHER_FRAMES));
    }

    #[test]
    fn what_is_more_than_the_whole_cache_does_not_count() {
        let load = new(&reads(&[(1000, 0.5), (3000, 0.5), (4000, 0.01)]), &cost(), 3000 + OTHER_FRAMES).unwrap();
        assert_eq!(load.least(0.99), 1000 + OTHER_FRAMES);
    }

    #[test]
    fn what_dirt_would_gain_with_more_cache_and_what_only_alone() {
        let mut cost = Cost::default();
        cost.wrote(64 * 8_000_000, 64, 500);
        let points = [1000, 16_000].map(|blocks| Point { blocks, reads: None, writes: Some(1.0), all: Some(1.0) });
        let view = View { reads: 0.0, writes: 10.0, points: points.into(), ..reads(&[]) };
        let gain = Gain { target: 1000 + OTHER_FRAMES, roomy: 0.5, alone: 0.25, chosen: 0.0 };
        let load = Load::new(&view, &cost, gain, AREA, 16_000 + OTHER_FRAMES).unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 0.005, "{a} {b}");
        near(load.keeps(1000 + OTHER_FRAMES).point, 0.25);
        near(load.keeps(16_000 + OTHER_FRAMES).point, 0.5);
    }

    #[test]
    fn first_references_may_be_unseen_reuse() {
        // Half of the reads are first ones; 2,000 of 8,000 blocks have been seen. Whole cache: 4,000 blocks. As much
        // far reuse as first references: half of the working set has been seen.
        let view = View { first_reads: 0.5, ..reads(&[(1000, 0.8), (2000, 0.55), (4000, 0.55)]) };
        let gain = Gain { target: 1000, roomy: 1.0, alone: 1.0, chosen: 0.0 };
        let area = Area { volume: 8000, seen: 2000.0 };
        let load = Load::new(&view, &cost(), gain, area, 4000 + OTHER_FRAMES).unwrap();
        let Keeps { low, point, high } = load.keeps(1000 + OTHER_FRAMES);
        let near = |a: f64, b: f64| assert!((a - b).abs() < 0.005, "{a} {b}");
        near(high, 0.55 / 0.8);
        near(point, (0.55 - 0.25) / (0.8 - 0.0625));
        near(low, (0.55 - 0.5 * 4000.0 / 5657.0) / (0.8 - 0.5 * 1000.0 / 5657.0));
        assert_eq!(load.keeps(4000 + OTHER_FRAMES), Keeps::UNKNOWN, "with the whole cache it is alone");
        let empty = load.keeps_with(1000 + OTHER_FRAMES, 0);
        near(empty.high, 0.55 / 0.8);
        near(empty.point, (0.55 - 0.25) / 0.8);
        near(load.keeps_with(1000 + OTHER_FRAMES, 9999).point, point);
    }

    #[test]
    fn a_gain_by_more_dirty_data_may_be_larger() {
        let mut cost = Cost::default();
        cost.wrote(64 * 8_000_000, 64, 500);
        let points = [1000, 16_000].map(|blocks| Point { blocks, reads: None, writes: Some(1.0), all: Some(1.0) });
        let view = View { reads: 0.0, writes: 10.0, points: points.into(), ..reads(&[]) };
        let keeps = |alone| {
            let gain = Gain { target: 1000 + OTHER_FRAMES, roomy: alone, alone, chosen: 0.0 };
            Load::new(&view, &cost, gain, AREA, 16_000 + OTHER_FRAMES).unwrap().keeps(1000 + OTHER_FRAMES)
        };
        assert_eq!(keeps(1.0), Keeps::UNKNOWN);
        let Keeps { low, point, high } = keeps(0.64);
        assert!((point - 0.64).abs() < 1e-3 && (low - 0.512).abs() < 1e-3 && high == point, "{low} {point}");
    }
}
