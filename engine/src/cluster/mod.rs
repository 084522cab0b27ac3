//! Several servers: one schedule of slices for all of them. `pack` finds it, `disk/policy/follow` keeps a disk to it.

mod barrier;
pub mod file;
pub mod pack;
mod round;
mod timetable;
mod tour;

pub use barrier::Barrier;
pub use round::{Need, ROUND_NS_MIN, round_ns};
pub use timetable::{Clock, ClusterNanos, Slot, Timetable, Unfollowable};
pub use tour::tour;
