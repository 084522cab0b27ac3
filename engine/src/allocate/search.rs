//! Hill climbing with random restarts.
//!
//! A climb repeats two kinds of moves until none improves the goal:
//! - **Steps of one resource** (`climb/divide.rs`) go from what is left, and from one or several tenants, to another.
//!   They have many sizes: a second tier smaller than the first has no effect under LRU, so one step at a time would
//!   never cross that plateau.
//! - **Two resources of two tenants** at once (`climb/pairs.rs`): one tenant moves from the first tier to the second,
//!   and another the other way.
//!
//! Climbs begin at the present allocation, at the equal one, and at random ones where each tenant has most of its cache
//! in one tier, as good allocations of inclusive tiers do.

use super::Surface;
use super::climb::Climb;
use super::exact;
use super::goal::Goal;
use super::problem::{Allotment, Problem};
use crate::dice::Dice;

/// How long to search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Climbs from random allocations, beside those from the present and from the equal allocation.
    pub restarts: u32,
    /// No climb begins after so many evaluations of the surface, and none goes on after twice as many.
    pub evaluations_max: u64,
}

impl Default for Effort {
    /// Within 10 ms for four tenants, 1 s for a thousand.
    fn default() -> Effort {
        Effort { restarts: 8, evaluations_max: 400_000 }
    }
}

/// What a search has found.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// What each tenant should have. [`Problem::permits`] holds.
    pub allocation: Vec<Allotment>,
    /// Its cost by the goal.
    pub cost: f64,
    /// Evaluations of the surface.
    pub evaluations: u64,
}

/// Hill climbing from `from`, from the equal division and from random allocations. The result is at least as good as
/// the first two, and the same for the same arguments.
///
/// The problem must have passed [`Problem::check`], and permit `from`.
pub fn climb<S: Surface>(
    problem: &Problem,
    goal: &Goal,
    surface: &S,
    from: Option<&[Allotment]>,
    effort: Effort,
    seed: u64,
) -> Found {
    let mut climb = Climb::new(problem, goal, surface, effort, Dice::new(seed));
    let mut best = from.map(|from| climb.climb(from.to_vec()));
    let mut better = |(allocation, cost): (Vec<Allotment>, f64)| {
        if best.as_ref().is_none_or(|best| cost < best.1) {
            best = Some((allocation, cost));
        }
    };
    better(climb.climb(problem.equal()));
    for _ in 0..effort.restarts {
        if climb.evaluations() >= effort.evaluations_max {
            break;
        }
        let start = climb.random();
        better(climb.climb(start));
    }
    let evaluations = climb.evaluations();
    let (allocation, cost) = best.expect("it climbed from the equal division");
    debug_assert_eq!(problem.permits(&allocation), Ok(()));
    Found { allocation, cost, evaluations }
}

/// [`super::exact`] if the problem is so small that it takes milliseconds, otherwise [`climb`].
pub fn best<S: Surface>(
    problem: &Problem,
    goal: &Goal,
    surface: &S,
    from: Option<&[Allotment]>,
    effort: Effort,
    seed: u64,
) -> Found {
    let is_small = problem.tenants.len() <= EXACT_TENANTS_MAX && {
        let size = exact::size(problem);
        size.transitions <= EXACT_TRANSITIONS_MAX && size.evaluations <= EXACT_EVALUATIONS_MAX
    };
    if is_small && let Ok(found) = exact::exact(problem, goal, surface) {
        return found;
    }
    climb(problem, goal, surface, from, effort, seed)
}

/// Problems for exact search: the limits are milliseconds each.
const EXACT_TENANTS_MAX: usize = 16;
const EXACT_TRANSITIONS_MAX: u128 = 1 << 21;
const EXACT_EVALUATIONS_MAX: u128 = 1 << 13;
