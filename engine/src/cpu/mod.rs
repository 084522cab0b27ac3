//! The CPU time of a data thread: which tenant is served next and for how long, and when a slow client's next requests
//! are received. Both are deterministic machines: time is an argument. [`crate::driver`] follows the scheduler's order.

mod delay;
mod scheduler;

pub use delay::ReceiveDelay;
pub use scheduler::{Job, Scheduler};
