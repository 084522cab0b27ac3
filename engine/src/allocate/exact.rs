//! Exact search for small problems: dynamic programming over what is used of each resource.

use super::Surface;
use super::goal::Goal;
use super::problem::Problem;
use super::search::Found;

/// The problem is too large for exact search.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("exact search would take {transitions} steps, more than {most}: use fewer tenants or a coarser grid")]
pub struct TooLarge {
    /// Steps that it would take.
    pub transitions: u128,
    /// Steps that it may take.
    pub most: u128,
}

/// The best allocation of all. The problem must have passed [`Problem::check`].
pub fn exact<S: Surface>(problem: &Problem, goal: &Goal, surface: &S) -> Result<Found, TooLarge> {
    todo!()
}
