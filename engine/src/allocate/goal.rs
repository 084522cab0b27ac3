//! What the search minimises: a sum over tenants of a function of the mean latency of each.

/// Weight of latencies themselves where the goal is targets: it decides between allocations that meet the targets
/// alike.
const BELOW_TARGET: f64 = 1e-6;

/// The goal. Vectors have one entry per tenant of the problem, in its order.
#[derive(Clone, PartialEq, Debug)]
pub enum Goal {
    /// The sum of the mean latencies.
    Latency,
    /// The sum of utilities, as much as possible.
    Utility(Vec<Utility>),
    /// The sum of what latencies exceed these targets by, nanoseconds. What exceeds no target counts only between
    /// allocations that are equal in that.
    Target(Vec<f64>),
}

impl Goal {
    /// What this latency of this tenant costs: less is better.
    pub fn cost(&self, tenant: usize, latency_ns: f64) -> f64 {
        match self {
            Goal::Latency => latency_ns,
            Goal::Utility(utilities) => -utilities[tenant].at(latency_ns),
            Goal::Target(targets) => (latency_ns - targets[tenant]).max(0.0) + BELOW_TARGET * latency_ns,
        }
    }

    /// The cost of an allocation with these latencies.
    pub fn total(&self, latencies_ns: &[f64]) -> f64 {
        latencies_ns.iter().enumerate().map(|(tenant, &latency)| self.cost(tenant, latency)).sum()
    }
}

/// Utility by latency: piecewise linear, constant before the first and after the last point.
#[derive(Clone, PartialEq, Debug)]
pub struct Utility {
    points: Vec<(f64, f64)>,
}

impl Utility {
    /// From points of latency (nanoseconds) and utility. An error names what is wrong: no point, latencies that do not
    /// increase, utilities that increase with latency.
    pub fn new(points: Vec<(f64, f64)>) -> Result<Utility, &'static str> {
        if points.is_empty() {
            return Err("a utility needs at least one point");
        }
        if points.iter().any(|point| !point.0.is_finite() || !point.1.is_finite()) {
            return Err("latencies and utilities must be finite numbers");
        }
        if points.windows(2).any(|pair| pair[0].0 >= pair[1].0) {
            return Err("latencies must increase from point to point");
        }
        if points.windows(2).any(|pair| pair[0].1 < pair[1].1) {
            return Err("utility must not increase with latency");
        }
        Ok(Utility { points })
    }

    /// Utility of this latency.
    pub fn at(&self, latency_ns: f64) -> f64 {
        let past = self.points.partition_point(|point| point.0 < latency_ns);
        let Some(&(after, low)) = self.points.get(past) else { return self.points[self.points.len() - 1].1 };
        let Some(&(before, high)) = past.checked_sub(1).map(|at| &self.points[at]) else { return low };
        high + (low - high) * (latency_ns - before) / (after - before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utility_is_linear_between_its_points() {
        let utility = Utility::new(vec![(1e6, 10.0), (3e6, 4.0), (4e6, 0.0)]).unwrap();
        assert_eq!([0.0, 1e6, 2e6, 3.5e6, 9e6].map(|at| utility.at(at)), [10.0, 10.0, 7.0, 2.0, 0.0]);
        assert_eq!(Goal::Utility(vec![utility]).cost(0, 2e6), -7.0);
        for (points, reason) in [
            (vec![], "at least one"),
            (vec![(2.0, 1.0), (2.0, 0.0)], "must increase"),
            (vec![(1.0, 1.0), (2.0, 2.0)], "must not increase"),
            (vec![(1.0, f64::NAN)], "finite"),
        ] {
            let error = Utility::new(points).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn targets_count_what_exceeds_them_and_then_latency() {
        let goal = Goal::Target(vec![5e6, 5e6]);
        assert!(goal.total(&[5e6, 6e6]) > goal.total(&[4.9e6, 5.5e6]));
        assert!(goal.total(&[4e6, 4e6]) > goal.total(&[3e6, 4e6]));
    }
}
