//! How long the arm needs, by distance: a measured table, straight lines between its points.
//!
//! Where nobody has measured, three figures of the data sheet make a curve: `c + a sqrt(d - 1) + b (d - 1)`, with `a`, `b`
//! and `c` such that one cylinder, the mean over random pairs and the full stroke come out right (Lee and Katz, "An
//! Analytic Performance Model of Disk Arrays", SIGMETRICS 1993; the three-point curve of DiskSim).

use engine::units::Nanos;

/// Points of the three-point curve per doubling of the distance: straight lines between them are off by less than 0.1 %.
const POINTS_PER_DOUBLING: u32 = 16;

/// Seek times by distance.
#[derive(Clone, Debug)]
pub struct SeekTable {
    /// Distances in cylinders, growing, and the time for each.
    knots: Vec<(u32, u32)>,
}

impl SeekTable {
    /// A table of (cylinders, nanoseconds): distances grow from 1 on, at least one of them.
    pub fn new(knots: Vec<(u32, u32)>) -> SeekTable {
        debug_assert!(!knots.is_empty() && knots[0].0 > 0 && knots.is_sorted_by(|a, b| a.0 < b.0));
        SeekTable { knots }
    }

    /// The curve through a seek of one cylinder, the mean and the full stroke over `cylinders`, nanoseconds.
    pub fn three_points(single_ns: f64, average_ns: f64, full_ns: f64, cylinders: u32) -> SeekTable {
        let n = f64::from(cylinders);
        let a = (15.0 * average_ns - 10.0 * single_ns - 5.0 * full_ns) / (3.0 * n.sqrt());
        let b = (7.0 * single_ns - 15.0 * average_ns + 8.0 * full_ns) / (3.0 * n);
        let at = |d: u32| {
            let steps = f64::from(d - 1);
            (d, (single_ns + a * steps.sqrt() + b * steps).max(0.0).round() as u32)
        };
        let mut knots = vec![at(1)];
        let mut d = 1;
        while d < cylinders {
            d = (d + (d / POINTS_PER_DOUBLING).max(1)).min(cylinders);
            knots.push(at(d));
        }
        SeekTable::new(knots)
    }

    /// Nanoseconds over `distance` cylinders. Beyond the table the last line goes on.
    #[inline]
    pub fn time_ns(&self, distance: u32) -> Nanos {
        let at = self.knots.partition_point(|&(d, _)| d < distance);
        let Some(&(d, ns)) = self.knots.get(at) else { return self.beyond(distance) };
        if distance == 0 {
            return 0;
        }
        if d == distance || at == 0 {
            return Nanos::from(ns);
        }
        let (d0, ns0) = self.knots[at - 1];
        line((d0, ns0), (d, ns), distance)
    }

    fn beyond(&self, distance: u32) -> Nanos {
        match self.knots[..] {
            [.., a, b] => line(a, b, distance),
            [(_, ns)] => Nanos::from(ns),
            [] => 0,
        }
    }

    /// The points.
    pub fn knots(&self) -> &[(u32, u32)] {
        &self.knots
    }
}

fn line(a: (u32, u32), b: (u32, u32), distance: u32) -> Nanos {
    let (rise, run) = (i64::from(b.1) - i64::from(a.1), i64::from(b.0) - i64::from(a.0));
    (i64::from(a.1) + rise * (i64::from(distance) - i64::from(a.0)) / run).max(0) as Nanos
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Where the table grows, so do the times between its points; its points are met exactly.
        #[test]
        fn monotone_where_the_table_is(steps in prop::collection::vec((1u32..500, 0u32..1_000_000), 1..40)) {
            let mut at = (0, 0);
            let knots: Vec<_> = steps.into_iter().map(|(d, ns)| { at = (at.0 + d, at.1 + ns); at }).collect();
            let table = SeekTable::new(knots.clone());
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
        // The mean over random pairs: distance d is seen with weight 2 (n - d).
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
