//! Several servers: one schedule of slices for all of them.

pub mod pack;
