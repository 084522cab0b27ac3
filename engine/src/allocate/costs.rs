//! What an allotment of a tenant costs by the goal. Remembers what it has evaluated where there is room.

use super::Surface;
use super::goal::Goal;
use super::problem::{Allotment, KINDS, Problem};

/// Costs remembered, over all tenants: 8 MiB.
const REMEMBERED_MAX: usize = 1 << 20;

pub(super) struct Costs<'a, S> {
    goal: &'a Goal,
    surface: &'a S,
    /// Empty if there are too many allotments.
    tables: Vec<Table>,
    /// Evaluations of the surface.
    pub(super) evaluations: u64,
}

/// By allotment within the bounds. What is not known is NaN.
struct Table {
    least: [u32; KINDS],
    sizes: [usize; KINDS],
    costs: Vec<f64>,
}

impl<'a, S: Surface> Costs<'a, S> {
    pub(super) fn new(problem: &Problem, goal: &'a Goal, surface: &'a S) -> Costs<'a, S> {
        let ranges = (0..problem.tenants.len()).map(|tenant| {
            let bounds = problem.bounds(tenant);
            let (least, most) = (bounds.least.parts(), bounds.most.parts());
            (least, std::array::from_fn::<_, KINDS, _>(|kind| (most[kind] - least[kind]) as usize + 1))
        });
        let ranges: Vec<_> = ranges.collect();
        let room = (ranges.iter()).map(|(_, sizes)| sizes.iter().fold(1usize, |all, &size| all.saturating_mul(size)));
        let is_small = room.fold(0usize, usize::saturating_add) <= REMEMBERED_MAX;
        let table = |(least, sizes): ([u32; KINDS], [usize; KINDS])| Table {
            least,
            sizes,
            costs: vec![f64::NAN; sizes.iter().product()],
        };
        let tables = if is_small { ranges.into_iter().map(table).collect() } else { Vec::new() };
        Costs { goal, surface, tables, evaluations: 0 }
    }

    /// The cost of an allotment within the bounds.
    pub(super) fn of(&mut self, tenant: usize, at: [u32; KINDS]) -> f64 {
        let Some(table) = self.tables.get_mut(tenant) else { return self.evaluate(tenant, at) };
        let place =
            (0..KINDS).fold(0, |place, kind| place * table.sizes[kind] + (at[kind] - table.least[kind]) as usize);
        let known = table.costs[place];
        if !known.is_nan() {
            return known;
        }
        let cost = self.evaluate(tenant, at);
        self.tables[tenant].costs[place] = cost;
        cost
    }

    fn evaluate(&mut self, tenant: usize, at: [u32; KINDS]) -> f64 {
        self.evaluations += 1;
        let cost = self.goal.cost(tenant, self.surface.latency_ns(tenant, Allotment::of(at)));
        assert!(!cost.is_nan(), "tenant {tenant} has no latency at {at:?}");
        cost
    }
}
