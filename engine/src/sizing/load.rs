//! R_cache: a tenant's throughput by partition size, relative to that with the whole cache.
//!
//! ```text
//!   S(c) = reads x (m_r(c) x disk_r + (1 - m_r(c)) x hit)  +  writes x (m_w(c) x disk_w(c / 2) + (1 - m_w(c)) x hit)
//!   R_cache(c) = S(alone) / S(c)
//! ```
//!
//! m are miss ratios from the tenant's curve. At most half a partition is dirty, and the cost of a written block falls
//! with the amount of dirty data. The cost for more dirty data than the tenant has, and standalone, is estimated by
//! `dirt.rs` ([`Gain`]).
//!
//! Source: Argon (Wachs et al., FAST 2007): "S = p x cache time + (1 - p) x disk time", throughput is 1 / S. Downside:
//! hits and misses are assumed to follow each other, as with a queue depth of 1. At higher depths hits cost even less;
//! compared with milliseconds of disk time this does not matter.

use super::cost::Cost;
use crate::cache::FRAMES_MIN;
use crate::curve::{Point, View};

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
}

impl Gain {
    /// The relative cost with `frames`, more than the present partition: each doubling gains the same factor.
    fn at(&self, frames: u64, whole: u64) -> f64 {
        let octaves = |frames: u64| (frames as f64 / self.target as f64).log2();
        let part = octaves(frames.min(whole)) / octaves(whole).max(f64::MIN_POSITIVE);
        self.roomy.powf(part.clamp(0.0, 1.0))
    }
}

/// A tenant's throughput by partition size.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Frames of the partition, and R_cache with it; both increase.
    points: Vec<(u64, f64)>,
}

/// Frames of a partition that are not cache: data being received and sent.
const OTHER_FRAMES: u64 = FRAMES_MIN as u64;

impl Load {
    /// From a curve, measured disk times, and the gain by more dirty data; `None` without references. `whole`: frames
    /// of the whole cache.
    pub(super) fn new(view: &View, cost: &Cost, gain: Gain, whole: u64) -> Option<Load> {
        let all = view.reads + view.writes;
        if all <= 0.0 {
            return None;
        }
        let read_ns = cost.read_ns();
        let part = |weight: f64, misses: f64, disk_ns: f64| weight / all * (misses * disk_ns + (1.0 - misses) * HIT_NS);
        let had = gain.target.saturating_sub(OTHER_FRAMES).max(1);
        let misses_had = view.misses_of_writes(had).unwrap_or(1.0);
        let writes_had = part(view.writes, misses_had, cost.write_ns(had / 2));
        // Up to the present partition costs are measured; beyond it the miniatures of dirty data estimate them.
        let writes_ns = |blocks: u64, misses: f64| match blocks > had {
            true => writes_had * gain.at(blocks + OTHER_FRAMES, whole),
            false => part(view.writes, misses, cost.write_ns(blocks / 2)),
        };
        let service_ns =
            |blocks: u64, reads: f64, writes: f64| part(view.reads, reads, read_ns) + writes_ns(blocks, writes);
        let nothing = (OTHER_FRAMES, service_ns(0, 1.0, 1.0));
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
            (frames(point), service_ns(point.blocks, reads, writes))
        });
        let mut points: Vec<_> = std::iter::once(nothing).chain(with).collect();
        // More cache is never worse: if the measurement says so, that is noise.
        for at in 1..points.len() {
            points[at].1 = points[at].1.min(points[at - 1].1);
        }
        let mut load = Load { points };
        // Standalone, writes cost what they cost with the whole cache, less the gain because the same writes come
        // sooner.
        let sooner = writes_had * (gain.roomy - gain.alone);
        let alone_ns = (load.at(whole) - sooner).max(f64::MIN_POSITIVE);
        load.points.iter_mut().for_each(|(_, service_ns)| *service_ns = (alone_ns / *service_ns).min(1.0));
        Some(load)
    }

    /// Linear interpolation.
    fn at(&self, frames: u64) -> f64 {
        let past = self.points.partition_point(|point| point.0 < frames);
        let Some(&after) = self.points.get(past) else { return self.points[past - 1].1 };
        let Some(&before) = past.checked_sub(1).map(|at| &self.points[at]) else { return after.1 };
        before.1 + (after.1 - before.1) * (frames - before.0) as f64 / (after.0 - before.0) as f64
    }

    /// R_cache with a partition of `frames` frames.
    pub(super) fn keeps(&self, frames: u64) -> f64 {
        self.at(frames)
    }

    /// The smallest partition, in frames and of the sizes of the curve, with R_cache of at least `keeps`, which is
    /// below 1.
    pub(super) fn least(&self, keeps: f64) -> u64 {
        let at = self.points.partition_point(|point| point.1 < keeps);
        self.points[at.min(self.points.len() - 1)].0
    }
}

/// The cost of reads with `whole` frames relative to that with `target` frames.
pub(super) fn reads_gain(view: &View, target: u64, whole: u64) -> f64 {
    let misses = |frames: u64| view.misses_of_reads(frames.saturating_sub(OTHER_FRAMES));
    match (misses(target), misses(whole)) {
        (Some(now), Some(alone)) if now > 0.0 => (alone / now).min(1.0),
        _ => 1.0,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::eviction::Policy as EvictionPolicy;

    /// Reads only, with these miss ratios by size.
    pub(in super::super) fn reads(misses: &[(u64, f64)]) -> View {
        let point = |&(blocks, misses)| Point { blocks, reads: Some(misses), writes: None, all: Some(misses) };
        let points = misses.iter().map(point).collect();
        View { policy: EvictionPolicy::Lru, points, reads: 1000.0, writes: 0.0, rate: 1.0, samples: 100 }
    }

    /// A miss takes 5 ms.
    pub(in super::super) fn cost() -> Cost {
        let mut cost = Cost::default();
        cost.read(5_000_000, 1);
        cost
    }

    /// More dirty data gains nothing.
    pub(in super::super) fn new(view: &View, cost: &Cost, whole: u64) -> Option<Load> {
        Load::new(view, cost, Gain { target: whole, roomy: 1.0, alone: 1.0 }, whole)
    }

    #[test]
    fn throughput_follows_what_goes_to_the_disk() {
        let load = new(&reads(&[(1000, 0.8), (2000, 0.4), (4000, 0.4)]), &cost(), 5000).unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 0.005, "{a} {b}");
        near(load.keeps(OTHER_FRAMES), 0.4);
        near(load.keeps(OTHER_FRAMES + 1000), 0.5);
        near(load.keeps(OTHER_FRAMES + 1500), 0.75);
        near(load.keeps(1 << 30), 1.0);
        assert_eq!([0.3, 0.45, 0.9].map(|keeps| load.least(keeps)), [0, 1000, 2000].map(|c| c + OTHER_FRAMES));
    }

    #[test]
    fn a_stream_needs_no_cache_and_an_unused_tenant_has_no_load() {
        let load = new(&reads(&[(1000, 1.0), (4000, 1.0)]), &cost(), 5000).unwrap();
        assert_eq!((load.keeps(OTHER_FRAMES), load.least(0.999)), (1.0, OTHER_FRAMES));
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
        assert_eq!((load.keeps(1000 + OTHER_FRAMES), load.least(0.6)), (0.5, 4000 + OTHER_FRAMES));
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
        let gain = Gain { target: 1000 + OTHER_FRAMES, roomy: 0.5, alone: 0.25 };
        let load = Load::new(&view, &cost, gain, 16_000 + OTHER_FRAMES).unwrap();
        let near = |a: f64, b: f64| assert!((a - b).abs() < 0.005, "{a} {b}");
        near(load.keeps(1000 + OTHER_FRAMES), 0.25);
        near(load.keeps(16_000 + OTHER_FRAMES), 0.5);
    }
}
