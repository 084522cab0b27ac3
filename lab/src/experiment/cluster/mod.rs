//! Clusters: schedules, and what clients of striped volumes get.

mod order;
mod pack;
mod pinned;
mod play;
mod stripes;

pub use order::ORDER;
pub use pack::PACK;
pub(super) use pack::cpu_s;
pub use pinned::PINNED;
pub use stripes::{CLOCKS, FIVE, LARGE, MIXED, REAL, SERVERS, TENANTS};
