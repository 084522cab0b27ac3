//! Exact search for small problems: dynamic programming over what is left of each resource.
//!
//! Tenants that share a resource, directly or through others, are a part of the problem; parts are solved one by one.
//! Within a part tenants follow each other by gateway. The state is what is left, beyond the least of all tenants, of
//! each resource that some tenant before and some tenant after this point uses. So a gateway counts only between its
//! own tenants, and the work is the number of states times the allotments of a tenant, not all allocations.

use super::Surface;
use super::costs::Costs;
use super::goal::Goal;
use super::problem::{Allotment, Bounds, KINDS, Problem};
use super::search::Found;

/// The problem is too large for exact search.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "exact search would take {transitions} steps over {states} states, more than {TRANSITIONS_MAX} or {STATES_MAX}: \
     use fewer tenants or a coarser grid"
)]
pub struct TooLarge {
    /// Steps that it would take.
    pub transitions: u128,
    /// States that it would keep.
    pub states: u128,
}

/// Some seconds.
const TRANSITIONS_MAX: u128 = 1 << 31;
/// 128 MiB.
const STATES_MAX: u128 = 1 << 24;

/// The best allocation of all. The problem must have passed [`Problem::check`].
pub fn exact<S: Surface>(problem: &Problem, goal: &Goal, surface: &S) -> Result<Found, TooLarge> {
    let parts = parts(problem);
    let size = parts.iter().fold(Size::default(), |size, part| size.plus(part.size()));
    if size.transitions > TRANSITIONS_MAX || size.states > STATES_MAX {
        return Err(TooLarge { transitions: size.transitions, states: size.states });
    }
    let mut costs = Costs::new(problem, goal, surface);
    let mut allocation: Vec<_> = problem.tenants.iter().map(|tenant| tenant.bounds.least).collect();
    let mut cost = 0.0;
    for part in &parts {
        cost += part.solve(&mut costs, &mut allocation);
    }
    Ok(Found { allocation, cost, evaluations: costs.evaluations })
}

/// The work of [`exact`].
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Size {
    pub(super) transitions: u128,
    pub(super) states: u128,
    pub(super) evaluations: u128,
}

impl Size {
    fn plus(self, other: Size) -> Size {
        Size {
            transitions: self.transitions.saturating_add(other.transitions),
            states: self.states.saturating_add(other.states),
            evaluations: self.evaluations.saturating_add(other.evaluations),
        }
    }
}

/// The work for this problem.
pub(super) fn size(problem: &Problem) -> Size {
    parts(problem).iter().fold(Size::default(), |size, part| size.plus(part.size()))
}

/// Tenants that have something to divide between them.
struct Part {
    stages: Vec<Stage>,
}

/// The choice for one tenant.
struct Stage {
    tenant: usize,
    least: [u32; KINDS],
    /// The most that it may have beyond the least, by kind.
    over: [usize; KINDS],
    /// Its resources, by kind: places in `state`, if in question at all.
    uses: [Option<usize>; KINDS],
    /// Resources in the state before this tenant: what there is of each beyond the least, and whether a tenant before
    /// this one uses it (otherwise all of it is left).
    state: Vec<(u32, bool)>,
    /// Strides of these resources in the states after this tenant; 0 if no later tenant uses it.
    strides: Vec<usize>,
    states: usize,
}

/// What is in question: the resources that have something to divide, and who uses them.
struct Question {
    bounds: Vec<Bounds>,
    /// Of each resource, beyond the least of its tenants.
    slack: Vec<u32>,
    /// The resources in question that each tenant uses, by kind.
    uses: Vec<[Option<usize>; KINDS]>,
}

impl Question {
    fn new(problem: &Problem) -> Question {
        let tenants = 0..problem.tenants.len();
        let bounds: Vec<_> = tenants.clone().map(|tenant| problem.bounds(tenant)).collect();
        let mut slack = problem.capacities();
        let mut may_grow = vec![false; slack.len()];
        for (tenant, Bounds { least, most }) in bounds.iter().enumerate() {
            for (kind, resource) in problem.uses(tenant).into_iter().enumerate() {
                if let Some(resource) = resource {
                    slack[resource] -= least.parts()[kind];
                    may_grow[resource] |= least.parts()[kind] < most.parts()[kind];
                }
            }
        }
        let in_question = |used: Option<usize>| used.filter(|&resource| may_grow[resource] && slack[resource] > 0);
        let uses = tenants.map(|tenant| problem.uses(tenant).map(in_question)).collect();
        Question { bounds, slack, uses }
    }

    /// The part of each tenant: the least tenant that it shares a resource with, directly or through others.
    fn labels(&self) -> Vec<usize> {
        let mut label: Vec<usize> = (0..self.uses.len()).collect();
        let mut of_resource = vec![usize::MAX; self.slack.len()];
        loop {
            let before = (label.clone(), of_resource.clone());
            for (label, uses) in label.iter_mut().zip(&self.uses) {
                for &resource in uses.iter().flatten() {
                    let least = (*label).min(of_resource[resource]);
                    (*label, of_resource[resource]) = (least, least);
                }
            }
            if (&label, &of_resource) == (&before.0, &before.1) {
                return label;
            }
        }
    }

    fn part(&self, tenants: &[usize]) -> Part {
        let mut resources: Vec<usize> = tenants.iter().flat_map(|&tenant| self.uses[tenant]).flatten().collect();
        resources.sort_unstable();
        resources.dedup();
        Part { stages: (0..tenants.len()).map(|at| self.stage(tenants, at, &resources)).collect() }
    }

    fn stage(&self, tenants: &[usize], at: usize, resources: &[usize]) -> Stage {
        let tenant = tenants[at];
        let uses = self.uses[tenant];
        let used_by = |tenants: &[usize], resource| tenants.iter().any(|&one| self.uses[one].contains(&Some(resource)));
        let (mut states, mut stride) = (1usize, 1usize);
        let (mut state, mut strides) = (Vec::new(), Vec::new());
        for &resource in resources {
            let was = used_by(&tenants[..at], resource);
            let (is, will) = (uses.contains(&Some(resource)), used_by(&tenants[at + 1..], resource));
            let (before, after) = (was && (is || will), (was || is) && will);
            let radix = self.slack[resource] as usize + 1;
            states = states.saturating_mul(if before { radix } else { 1 });
            state.push((self.slack[resource], before));
            strides.push(if after { stride } else { 0 });
            stride = stride.saturating_mul(if after { radix } else { 1 });
        }
        let (least, most) = (self.bounds[tenant].least.parts(), self.bounds[tenant].most.parts());
        let over = std::array::from_fn(|kind| {
            uses[kind].map_or(0, |resource| (most[kind] - least[kind]).min(self.slack[resource]) as usize)
        });
        let uses = uses.map(|used| used.map(|used| resources.partition_point(|&resource| resource < used)));
        Stage { tenant, least, over, uses, state, strides, states }
    }
}

fn parts(problem: &Problem) -> Vec<Part> {
    let question = Question::new(problem);
    let label = question.labels();
    let mut order: Vec<usize> = (0..problem.tenants.len()).collect();
    order.sort_by_key(|&tenant| (label[tenant], problem.tenants[tenant].gateway, problem.tenants[tenant].disk, tenant));
    order.chunk_by(|&a, &b| label[a] == label[b]).map(|tenants| question.part(tenants)).collect()
}

impl Part {
    fn size(&self) -> Size {
        self.stages.iter().fold(Size::default(), |size, stage| {
            let options = stage.over.iter().fold(1u128, |all, &over| all.saturating_mul(over as u128 + 1));
            let states = stage.states as u128;
            size.plus(Size { transitions: states.saturating_mul(options), states, evaluations: options })
        })
    }

    /// Fills in the best allotments of its tenants. Their cost.
    fn solve<S: Surface>(&self, costs: &mut Costs<S>, allocation: &mut [Allotment]) -> f64 {
        let options: Vec<Vec<f64>> = self.stages.iter().map(|stage| stage.options(costs)).collect();
        // The least cost of the tenants from each stage on, by state; after the last one there is one state.
        let mut tables = vec![vec![0.0]];
        for (stage, options) in self.stages.iter().zip(&options).rev() {
            let later = &tables[tables.len() - 1];
            let table = (0..stage.states).map(|state| stage.best(options, &stage.left(state), later).0).collect();
            tables.push(table);
        }
        let mut left: Option<Vec<u32>> = None;
        for ((stage, options), later) in self.stages.iter().zip(&options).zip(tables.iter().rev().skip(1)) {
            let mut now = left.take().unwrap_or_else(|| stage.left(0));
            let (_, chosen) = stage.best(options, &now, later);
            for (kind, used) in stage.uses.into_iter().enumerate() {
                if let Some(used) = used {
                    now[used] -= chosen[kind] as u32;
                }
            }
            allocation[stage.tenant] =
                Allotment::of(std::array::from_fn(|kind| stage.least[kind] + chosen[kind] as u32));
            left = Some(now);
        }
        tables[tables.len() - 1][0]
    }
}

impl Stage {
    /// Costs by what the tenant has beyond the least.
    fn options<S: Surface>(&self, costs: &mut Costs<S>) -> Vec<f64> {
        let [first, second, share] = self.over;
        let mut options = Vec::with_capacity((first + 1) * (second + 1) * (share + 1));
        for a in 0..=first {
            for b in 0..=second {
                for c in 0..=share {
                    let over = [a, b, c];
                    options
                        .push(costs.of(self.tenant, std::array::from_fn(|kind| self.least[kind] + over[kind] as u32)));
                }
            }
        }
        options
    }

    /// What is left of each resource in this state.
    fn left(&self, mut state: usize) -> Vec<u32> {
        let left = self.state.iter().map(|&(slack, is_in_question)| {
            if !is_in_question {
                return slack;
            }
            let radix = slack as usize + 1;
            let left = state % radix;
            state /= radix;
            left as u32
        });
        left.collect()
    }

    /// The least cost of this tenant and all later ones, and what this one has for it beyond the least.
    fn best(&self, options: &[f64], left: &[u32], later: &[f64]) -> (f64, [usize; KINDS]) {
        let base: usize = left.iter().zip(&self.strides).map(|(&left, stride)| left as usize * stride).sum();
        let [first, second, share] = std::array::from_fn::<_, KINDS, _>(|kind| {
            self.uses[kind].map_or(0, |used| self.over[kind].min(left[used] as usize))
        });
        let [by_first, by_second, by_share] = self.uses.map(|used| used.map_or(0, |used| self.strides[used]));
        let mut best = (f64::INFINITY, [0; KINDS]);
        for a in 0..=first {
            for b in 0..=second {
                let row = (a * (self.over[1] + 1) + b) * (self.over[2] + 1);
                let next = base - a * by_first - b * by_second;
                for c in 0..=share {
                    let cost = options[row + c] + later[next - c * by_share];
                    if cost < best.0 {
                        best = (cost, [a, b, c]);
                    }
                }
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::super::brute;
    use super::*;

    #[test]
    fn it_finds_what_trying_everything_finds() {
        for seed in 0..300 {
            let (problem, table) = brute::random(seed);
            let surface = |tenant: usize, at: Allotment| table.at(tenant, at);
            let found = exact(&problem, &Goal::Latency, &surface).unwrap();
            problem.permits(&found.allocation).unwrap();
            let best = brute::best(&problem, &surface);
            assert!((found.cost - best.1).abs() <= 1e-9 * best.1, "seed {seed}: {found:?} against {best:?}");
            let latencies: Vec<f64> =
                found.allocation.iter().enumerate().map(|(tenant, &at)| table.at(tenant, at)).collect();
            assert!((Goal::Latency.total(&latencies) - found.cost).abs() <= 1e-9 * found.cost, "seed {seed}");
        }
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let problem = brute::wide(64, 1000);
        let refused =
            exact(&problem, &Goal::Latency, &|_: usize, at: Allotment| 1.0 / f64::from(at.share)).unwrap_err();
        assert!(refused.transitions > TRANSITIONS_MAX, "{refused}");
    }
}
