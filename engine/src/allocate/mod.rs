//! One allocation of first-tier cache, second-tier cache and disk time to tenants.
//!
//! ```text
//!   curves, Counters ─► Subject ─► Evidence ─► Model ─► Surface: (tenant, c, s, share) ─► mean latency
//!                                              ▲                      │
//!   measured latencies ─► Refinement ──────────┘                      ▼
//!   memory, shares, bounds ─► Problem, Goal ──────────► search: climb, exact ─► Vec<Allotment>
//!                                                       baseline: mrc, disk-only, …
//!   plan after plan ─► Watched, Moving, Follower ─► which of them are applied
//! ```
//!
//! A tenant reads through up to two tiers of cache: a partition of a gateway (`c`), and a partition of the server that
//! has its disk (`s`). It also has a share of the time of that disk. What a tenant has in one tier it need not have in
//! the other, and a tenant with more cache needs less disk time, so the three are chosen together.
//!
//! All functions here are pure: no clock, no randomness but from a seed. `docs/design/allocation.md` has the formulas.
//!
//! Source: Soundararajan, Lupei, Ghanbari, Popescu, Chen, Amza, "Dynamic global resource allocation in shared data
//! centers and clouds", CASCON 2012.

mod baseline;
#[cfg(test)]
mod brute;
mod climb;
mod closed;
mod costs;
mod curve;
mod evidence;
mod exact;
mod follow;
mod goal;
mod measured;
mod model;
mod problem;
mod refine;
mod search;
#[cfg(test)]
mod tests;

pub use baseline::{Baseline, Levels};
pub use curve::MissRatios;
pub use evidence::{Depth, DiskTime, Evidence, Interruption, Loss, Observed, Reads, Round, Tiers};
pub use exact::{TooLarge, exact};
pub use follow::{Candidate, Follower, Lived, Moving, Steady, Verdict, Watched};
pub use goal::{Goal, Utility};
pub use measured::{Counters, Measured, Missing, Other, Subject, Sum};
pub use model::{Model, Prediction};
pub use problem::{Allotment, Bounds, Disk, Grid, Problem, Tenant, Unfit};
pub use refine::{Fit, Refined, Refinement};
pub use search::{Effort, Found, best, climb};

/// The mean latency of each tenant as a function of what it has: the model, the refined model, or measurements. A
/// closure `Fn(usize, Allotment) -> f64` is a surface.
pub trait Surface {
    /// Mean latency of the requests of this tenant (an index into [`Problem::tenants`]), nanoseconds.
    fn latency_ns(&self, tenant: usize, at: Allotment) -> f64;
}

impl<F: Fn(usize, Allotment) -> f64> Surface for F {
    fn latency_ns(&self, tenant: usize, at: Allotment) -> f64 {
        self(tenant, at)
    }
}
