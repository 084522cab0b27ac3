//! One allocation of gateways' caches, the server's cache and its disk (`docs/design/allocation.md`).
//!
//! ```text
//!   loads ─► exact: miss ratios ─┐
//!   play: runs in virtual time ──┴─► surface ─► mix: ideal and baselines ─┐
//!   play: one run with equal parts ─► evidence ─► the engine's planner ───┴─► paper, model, mixes: each one run
//! ```

mod evidence;
mod exact;
mod follow;
mod heat;
mod loads;
mod mix;
mod mixes;
mod model;
mod paper;
mod plan;
mod play;
mod prompt;
mod surface;

pub use follow::FOLLOW;
pub use mixes::{RANDOM, TRACES};
pub use model::MODEL;
pub use paper::PAPER;
pub use plan::PLAN;
