//! The model against simulations, and the search against its oracle.

mod climbing;
mod looping;
pub(super) mod tiers;
