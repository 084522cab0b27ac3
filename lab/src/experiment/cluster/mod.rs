//! Clusters: schedules, and what clients of striped volumes get.

mod pack;
mod play;
mod stripes;

pub use pack::PACK;
pub use stripes::{CLOCKS, FIVE, LARGE, MIXED, REAL, SERVERS, TENANTS};
