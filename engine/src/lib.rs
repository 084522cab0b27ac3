//! Aerogel's decisions: the whole server of one disk as a deterministic state machine.
//!
//! No I/O, no clock, no threads, no randomness of its own: see [`event`] for the contract, `docs/ARCHITECTURE.md` for a
//! reading order.

/// Whether a bug is planted here: see `planted.rs`. Always false in what ships.
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
pub mod curve;
pub mod disk;
pub mod event;
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

pub use event::{Action, ConnId, Event, Farewell, Outgoing, Receive, Session};
pub use server::{Config, Server};
pub use work::{EVENT_UNITS_MAX, STEP_UNITS, UNIT_NS};
