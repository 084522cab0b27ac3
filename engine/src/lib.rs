//! Aerogel's engine: the whole server of one disk as a deterministic state machine.
//!
//! It does no I/O and has no clock, no threads and no randomness of its own. See [`event`] for the contract, and
//! `docs/ARCHITECTURE.md` for a reading order.

/// Whether a bug is planted here, see `planted.rs`. Always false in builds that ship.
macro_rules! planted {
    ($bug:ident) => {{
        #[cfg(feature = "planted-bugs")]
        {
            crate::planted::is(crate::planted::Bug::$bug)
        }
        #[cfg(not(feature = "planted-bugs"))]
        {
            false
        }
    }};
}

pub mod allocate;
pub mod cache;
pub mod cluster;
mod config;
pub mod control;
pub mod cpu;
pub mod curve;
mod dice;
pub mod disk;
pub mod driver;
mod errno;
pub mod event;
mod eviction;
mod front;
pub mod ids;
pub mod latency;
pub mod nbd;
pub mod offload;
pub mod plan;
#[cfg(feature = "planted-bugs")]
pub mod planted;
#[cfg(test)]
mod rig;
mod route;
mod server;
mod slab;
mod spec;
mod stats;
mod stream;
pub mod units;
pub mod upstream;
mod volume;

pub use config::Config;
pub use event::{Action, CloseReason, Event, Outgoing, Receive, Session};
pub use server::Server;
pub use volume::{EVENT_UNITS_MAX, STEP_UNITS, UNIT_NS};
