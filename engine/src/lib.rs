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

pub mod cache;
pub mod control;
pub mod cpu;
pub mod curve;
pub mod disk;
pub mod driver;
pub mod event;
pub mod ids;
pub mod latency;
pub mod nbd;
#[cfg(feature = "planted-bugs")]
pub mod planted;
#[cfg(test)]
mod rig;
mod server;
mod sizing;
mod slab;
pub mod units;
mod volume;
mod work;

pub use event::{Action, Event, Farewell, Outgoing, Receive, Session};
pub use server::{Config, Server};
pub use work::{EVENT_UNITS_MAX, STEP_UNITS, UNIT_NS};
