//! Hill climbing with random restarts.

use super::Surface;
use super::goal::Goal;
use super::problem::{Allotment, Problem};

/// How long to search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Effort {
    /// Climbs from random allocations, beside the one from the present or the equal allocation.
    pub restarts: u32,
    /// No climb begins or goes on after so many evaluations of the surface.
    pub evaluations_max: u64,
}

impl Default for Effort {
    /// Within 10 ms for four tenants, 1 s for a thousand.
    fn default() -> Effort {
        todo!()
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

/// Hill climbing from `from` (without it, from the equal division) and from random allocations. The result is at least
/// as good as where it begins, and the same for the same arguments.
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
    todo!()
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
    todo!()
}
