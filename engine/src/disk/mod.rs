//! The disk: device requests, the policies that order them, durability of completed writes, and the profile of the
//! device.
//!
//! ```text
//!   device.rs      the table of requests
//!   scheduler.rs     lanes.rs   queued, in the device, hung    ◄── policy/   which tenant is next, for how long
//!                    books.rs   who used how much              ◄── slices/   issues, drains, idles, gives up
//!   windows.rs     whether guarantees are met
//! ```

mod books;
mod device;
pub(crate) mod durability;
mod io;
mod lanes;
pub mod policy;
pub mod profile;
mod queue;
mod scheduler;
mod slices;
mod thinking;
mod virtual_clock;
mod windows;

pub(crate) use books::Arrivals;
pub(crate) use device::{Device, Purpose, Served, Slot, Split};
pub use io::{Io, Op, Segment};
pub(crate) use thinking::Thought;
pub use windows::{MISSED_MAX, Miss, WINDOW_NS, Window, WindowCounts};
