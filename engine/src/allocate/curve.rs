//! A miss-ratio curve as the model uses it: bytes of cache and ratios, nothing else.

use crate::config::FRAME_BYTES;
use crate::curve::{Point, View};

/// Miss ratio by cache size: interpolated linearly, never increasing, constant beyond the last point.
#[derive(Clone, PartialEq, Debug)]
pub struct MissRatios {
    points: Vec<(f64, f64)>,
    /// Bytes beyond which the ratios are those of the tier below. They depend on what this tier misses, and change with
    /// its size.
    own_bytes: f64,
}

impl MissRatios {
    /// From points of bytes and miss ratio, in any order. Without a point all references miss.
    pub fn new(points: impl IntoIterator<Item = (u64, f64)>) -> MissRatios {
        let mut points: Vec<(f64, f64)> =
            points.into_iter().map(|(bytes, ratio)| (bytes as f64, ratio.clamp(0.0, 1.0))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points.dedup_by_key(|point| point.0);
        let mut least = 1.0f64;
        for (_, ratio) in &mut points {
            least = least.min(*ratio);
            *ratio = least;
        }
        MissRatios { points, own_bytes: f64::INFINITY }
    }

    /// The curve of reads of a tenant, as the engine measures it.
    pub fn of_reads(view: &View) -> MissRatios {
        MissRatios::of(view, |point| point.reads)
    }

    /// That of writes: a write is absorbed if the block is dirty already.
    pub fn of_writes(view: &View) -> MissRatios {
        MissRatios::of(view, |point| point.writes)
    }

    /// The miss ratio with this much cache.
    pub fn at(&self, bytes: f64) -> f64 {
        let past = self.points.partition_point(|&(size, _)| size < bytes);
        let Some(&(after, low)) = self.points.get(past) else { return self.points.last().map_or(1.0, |last| last.1) };
        let Some(&(before, high)) = past.checked_sub(1).and_then(|at| self.points.get(at)) else { return low };
        high + (low - high) * (bytes - before) / (after - before)
    }

    /// This curve, continued beyond its last size by the curve of the second tier. `below` is that curve; it counts the
    /// references that a first tier of `bytes` misses. The curve of a small gateway does not reach to the size of a
    /// large server's cache.
    pub fn continued(&self, below: &MissRatios, bytes: u64) -> MissRatios {
        let last = self.points.last().map_or(0.0, |last| last.0);
        let missed = self.at(bytes as f64);
        let beyond = below.points.iter().filter(|point| point.0 > last);
        let beyond = beyond.map(|&(size, ratio)| (size as u64, missed * ratio));
        let all = MissRatios::new(self.points.iter().map(|&(size, ratio)| (size as u64, ratio)).chain(beyond));
        MissRatios { own_bytes: if last > 0.0 { last } else { f64::INFINITY }, ..all }
    }

    /// The same with so much more at each size.
    pub fn plus(&self, ratio: f64) -> MissRatios {
        let points = self.points.iter().map(|&(bytes, of)| (bytes, (of + ratio).min(1.0))).collect();
        MissRatios { points, own_bytes: self.own_bytes }
    }

    /// The largest difference of the miss ratios of two curves, at the sizes of both that the tier itself knows: with
    /// the same clients the others change when caches do.
    pub fn distance(&self, other: &MissRatios) -> f64 {
        let own_bytes = self.own_bytes.min(other.own_bytes);
        let sizes = self.points.iter().chain(&other.points).map(|point| point.0).filter(|bytes| *bytes <= own_bytes);
        sizes.map(|bytes| (self.at(bytes) - other.at(bytes)).abs()).fold(0.0, f64::max)
    }

    /// A partition holds a block in a frame, with its bookkeeping.
    fn of(view: &View, ratio: impl Fn(&Point) -> Option<f64>) -> MissRatios {
        MissRatios::new(view.points.iter().filter_map(|point| Some((point.blocks * FRAME_BYTES, ratio(point)?))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_is_that_of_the_size_at_which_they_differ_most() {
        let of = |ratio| MissRatios::new([(100, 0.5), (200, ratio)]);
        assert_eq!((of(0.25).distance(&of(0.25)), of(0.25).distance(&of(0.375))), (0.0, 0.125));
        assert_eq!(MissRatios::new([]).distance(&of(0.25)), 0.75, "without a point, all miss");
    }

    #[test]
    fn what_a_gateway_cannot_follow_its_server_knows() {
        let gateway = MissRatios::new([(100, 0.75), (200, 0.5)]);
        let server = MissRatios::new([(100, 0.9), (200, 0.8), (400, 0.5), (800, 0.25)]);
        let both = gateway.continued(&server, 100);
        assert_eq!([100.0, 200.0, 400.0, 800.0, 9e9].map(|size| both.at(size)), [0.75, 0.5, 0.375, 0.1875, 0.1875]);
        let useless = gateway.continued(&MissRatios::new([(800, 1.0)]), 100);
        assert_eq!(useless.at(800.0), 0.5, "it never rises");
        assert_eq!((both.distance(&useless), both.distance(&gateway.plus(0.125))), (0.0, 0.125), "only its own sizes");
        let unknown = MissRatios::new([]);
        assert!(unknown.continued(&server, 100).distance(&unknown.continued(&useless, 100)) > 0.25, "all of them");
    }

    #[test]
    fn with_more_misses_it_is_at_most_one() {
        let curve = MissRatios::new([(100, 0.75), (200, 0.25)]).plus(0.5);
        assert_eq!([100.0, 150.0, 200.0].map(|bytes| curve.at(bytes)), [1.0, 0.875, 0.75]);
    }

    #[test]
    fn between_points_it_is_a_line_and_it_never_rises() {
        let curve = MissRatios::new([(100, 0.5), (0, 1.0), (300, 0.7), (200, 0.1)]);
        let at = [0.0, 50.0, 100.0, 150.0, 250.0, 1e12].map(|bytes| curve.at(bytes));
        assert_eq!(at, [1.0, 0.75, 0.5, 0.3, 0.1, 0.1]);
        assert_eq!(MissRatios::new([]).at(5.0), 1.0, "without a point, all miss");
        assert_eq!(MissRatios::new([(10, 0.4)]).at(5.0), 0.4, "constant before the first point");
    }
}
