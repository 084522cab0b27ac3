//! What the search minimises: a sum over tenants of a function of the mean latency of each.

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
        todo!()
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
        todo!()
    }

    /// Utility of this latency.
    pub fn at(&self, latency_ns: f64) -> f64 {
        todo!()
    }
}
