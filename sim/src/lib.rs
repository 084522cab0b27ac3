//! Aerogel's simulator: disks, clients, faults and clocks in virtual time; the world that drives the engine; checkers.
//!
//! ```text
//!   swarm ─ a seed ─► setup ─► world ─┬─ sockets: link, workload, request     clients, and bytes in both directions
//!                                     ├─ opening, options, access             handshakes, and access control
//!                                     ├─ disk: medium, fault                  durable content, faults
//!                                     ├─ frames                               memory, and who may access it when
//!                                     ├─ operator, planning, restart, finale    commands, power cuts, crashes, the end
//!                                     ├─ history, register, judge, reply, cell     checks of content and answers
//!                                     ├─ trouble, promptness, stall            checks of errors and waiting
//!                                     └─ entitled                              checks of ceilings and delivered bytes
//!                 or machines: several engines, the network between them, gateways on servers
//!                 or clusters: several engines whose disks follow a schedule
//! ```
//!
//! [`load`] is separate: traces and synthetic loads, for virtual and live servers.
//!
//! Begin with [`swarm::run`]. The same seed gives the same world, to the last event: [`trace`] has the hash.

/// Whether a bug is planted here: see `engine::planted`. Always false in shipped builds.
macro_rules! planted {
    ($bug:ident) => {{
        #[cfg(feature = "planted-bugs")]
        {
            engine::planted::is(engine::planted::Bug::$bug)
        }
        #[cfg(not(feature = "planted-bugs"))]
        {
            false
        }
    }};
}

mod access;
mod answers;
pub mod bench;
pub mod cell;
mod clusters;
pub mod disk;
mod entitled;
pub mod fault;
mod finale;
pub mod frames;
pub mod history;
pub mod judge;
pub mod link;
pub mod load;
pub mod machines;
pub mod medium;
mod opening;
mod operator;
mod options;
mod planning;
pub mod promptness;
pub mod queue;
mod register;
pub mod reply;
pub mod request;
mod restart;
pub mod rng;
pub mod setup;
mod sockets;
mod stall;
pub mod swarm;
mod thread;
pub mod trace;
pub mod trouble;
pub mod workload;
pub mod world;

/// Success, or a description of the error.
pub type Verdict = Result<(), String>;
