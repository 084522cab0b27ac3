//! The disk: requests to a device, and the policy that orders them.

mod device;
mod io;
pub(crate) mod policy;

pub(crate) use device::{Device, Purpose};
pub use io::{Io, IoId, Op, Segment, VolumeId};
