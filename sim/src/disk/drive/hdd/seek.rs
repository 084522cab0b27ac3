//! Seek time as a function of the distance: a measured table with linear interpolation.
//!
//! Without measurements, three figures of the data sheet give a curve: `c + a sqrt(d - 1) + b (d - 1)`, with `a`, `b`
//! and `c` such that the times of one cylinder, of the mean over random pairs and of the full stroke are met (Lee and
//! Katz, "An Analytic Performance Model of Disk Arrays", SIGMETRICS 1993; the three-point curve of DiskSim).

use engine::units::Nanos;

/// Points of the three-point curve per doubling of the distance. The error of linear interpolation between them is
/// below 0.1 %.
const POINTS_PER_DOUBLING: u32 = 16;

/// Maximum number of index buckets. Enough that a bucket seldom holds several points, few enough for the CPU cache.
const BUCKETS_MOST: u32 = 2048;
/// Slopes are in units of 2^-32 nanoseconds per cylinder.
const SLOPE_BITS: u32 = 32;
/// Maximum number of points of a table: the index counts them in 16 bits.
pub const POINTS_MOST: usize = 60_000;

/// A point, and the slope of the line to the next one.
#[derive(Clone, Copy, Debug)]
struct Point {
    distance: u32,
    time_ns: u32,
    slope: i64,
}

/// Seek times by distance.
#[derive(Clone, Debug)]
pub struct SeekTable {
    /// From distance 0 on; the last point is beyond any distance.
    points: Vec<Point>,
    /// For each 2^shift cylinders, the last point at or before their beginning. The index makes lookups cheap: the
    /// queue looks up each of its requests.
    index: Vec<u16>,
    shift: u32,
}

impl SeekTable {
    /// A table of (cylinders, nanoseconds): distances are increasing and at least 1; at least one row and at most
    /// [`POINTS_MOST`]. Beyond the table its last line continues, but does not fall: measured tables are noisy, and no
    /// longer seek is faster by more than noise.
    pub fn new(table: &[(u32, u32)]) -> SeekTable {
        debug_assert!(!table.is_empty() && table[0].0 > 0 && table.is_sorted_by(|a, b| a.0 < b.0));
        let mut points = vec![Point { distance: 0, time_ns: table[0].1, slope: 0 }];
        for &(distance, time_ns) in table {
            let before = points.last_mut().expect("the first one");
            let (rise, run) = (i64::from(time_ns) - i64::from(before.time_ns), i64::from(distance - before.distance));
            let slope = (rise << SLOPE_BITS).div_euclid(run);
            before.slope = slope;
            points.push(Point { distance, time_ns, slope: slope.max(0) });
        }
        let furthest = points[points.len() - 1].distance;
        points.push(Point { distance: u32::MAX, time_ns: 0, slope: 0 });
        let shift = (0..).find(|shift| furthest >> shift < BUCKETS_MOST).unwrap_or(0);
        let last_before = |bucket: u32| points.partition_point(|point| point.distance <= bucket << shift) - 1;
        let index = (0..=furthest >> shift).map(|bucket| last_before(bucket) as u16).collect();
        SeekTable { points, index, shift }
    }

    /// The curve through the times of one cylinder, the mean and the full stroke over `cylinders`, nanoseconds.
    pub fn three_points(single_ns: f64, average_ns: f64, full_ns: f64, cylinders: u32) -> SeekTable {
        let n = f64::from(cylinders);
        let a = (15.0 * average_ns - 10.0 * single_ns - 5.0 * full_ns) / (3.0 * n.sqrt());
        let b = (7.0 * single_ns - 15.0 * average_ns + 8.0 * full_ns) / (3.0 * n);
        let at = |d: u32| {
            let steps = f64::from(d - 1);
            (d, (single_ns + a * steps.sqrt() + b * steps).max(0.0).round() as u32)
        };
        let mut table = vec![at(1)];
        let mut d = 1;
        while d < cylinders {
            d = (d + (d / POINTS_PER_DOUBLING).max(1)).min(cylinders);
            table.push(at(d));
        }
        SeekTable::new(&table)
    }

    /// Seek time over `distance` cylinders, ns.
    #[inline]
    pub fn time_ns(&self, distance: u32) -> Nanos {
        if distance == 0 {
            return 0;
        }
        let bucket = ((distance >> self.shift) as usize).min(self.index.len() - 1);
        let mut at = usize::from(self.index[bucket]);
        while self.points[at + 1].distance <= distance {
            at += 1;
        }
        let point = self.points[at];
        let more_ns = (i128::from(distance - point.distance) * i128::from(point.slope)) >> SLOPE_BITS;
        (i64::from(point.time_ns) + more_ns as i64).max(0) as Nanos
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Between increasing points the times increase; the points themselves are met exactly.
        #[test]
        fn monotone_where_the_table_is(steps in prop::collection::vec((1u32..500, 0u32..1_000_000), 1..40)) {
            let mut at = (0, 0);
            let knots: Vec<_> = steps.into_iter().map(|(d, ns)| { at = (at.0 + d, at.1 + ns); at }).collect();
            let table = SeekTable::new(&knots);
            for &(d, ns) in &knots {
                prop_assert_eq!(table.time_ns(d), Nanos::from(ns));
            }
            let times: Vec<_> = (0..at.0 + 100).map(|d| table.time_ns(d)).collect();
            prop_assert!(times.is_sorted());
        }
    }

    #[test]
    fn three_figures_make_a_curve_that_has_them() {
        let cylinders = 20_000;
        let table = SeekTable::three_points(0.8e6, 8.5e6, 18.0e6, cylinders);
        assert_eq!(table.time_ns(1), 800_000);
        assert!(table.time_ns(cylinders).abs_diff(18_000_000) < 10_000);
        // The mean over random pairs: distance d has the weight 2 (n - d).
        let (mut sum, mut weights) = (0.0, 0.0);
        for d in 1..cylinders {
            let weight = f64::from(cylinders - d);
            sum += weight * table.time_ns(d) as f64;
            weights += weight;
        }
        let mean = sum / weights;
        assert!((mean - 8.5e6).abs() < 0.02e6, "{mean}");
    }
}
