//! The disk: requests to a device, the policy that orders them, and the profile of what the device can do.

mod device;
pub(crate) mod durability;
mod io;
mod own;
pub mod policy;
pub mod profile;

pub(crate) use device::{Device, Purpose};
pub use io::{Io, IoId, Op, Segment, VolumeId};
