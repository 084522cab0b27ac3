//! The disk: device requests, the policies that order them, durability of completed writes, and the profile of the
//! device.

mod device;
pub(crate) mod durability;
mod io;
mod own;
pub mod policy;
pub mod profile;

pub(crate) use device::{Device, Purpose, Served, Slot, Split};
pub use io::{Io, Op, Segment};
