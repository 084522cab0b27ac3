//! Latency of a tenant as a function of what it has.
//!
//! ```text
//!   L = f (h1 l1 + h2 l2 + M (l2 + d)) + (1 - f) lw        f: reads of all references
//!   h1 = 1 - M(c)       h2 = M(c) - M       M = M(max(c, s)) or M(c + s)
//! ```
//!
//! `d` is the disk latency of the closed loop (`closed.rs`), whose think time includes that of all hits between two
//! misses. The write-back of writes that no cache absorbs takes its time from the same share.

use super::Surface;
use super::baseline::Levels;
use super::evidence::Evidence;
use super::problem::{Allotment, Grid, Problem};

/// What the model predicts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Prediction {
    /// Mean latency of all references, nanoseconds.
    pub latency_ns: f64,
    /// That of reads.
    pub read_ns: f64,
    /// Of all reads: hits in the first tier.
    pub first_hits: f64,
    /// Of all reads: hits in the second tier.
    pub second_hits: f64,
    /// Of all reads: misses in both.
    pub misses: f64,
    /// Mean disk latency of a read that misses, at the server: queueing and service.
    pub disk_ns: f64,
    /// The part of it that is the wait for a slice while the tenant had nothing else to wait for.
    pub slice_wait_ns: f64,
    /// References a second.
    pub references_per_second: f64,
}

impl Evidence {
    /// The prediction with these bytes of cache and this share (0 to 1).
    pub fn predict(&self, first: u64, second: u64, share: f64) -> Prediction {
        todo!()
    }
}

/// The model of all tenants of a problem. A surface.
#[derive(Clone, Debug)]
pub struct Model {
    grid: Grid,
    tenants: Vec<Evidence>,
}

impl Model {
    /// Evidence is in the order of the problem's tenants.
    pub fn new(problem: &Problem, tenants: Vec<Evidence>) -> Model {
        todo!()
    }

    /// The prediction for a tenant.
    pub fn predict(&self, tenant: usize, at: Allotment) -> Prediction {
        todo!()
    }
}

impl Surface for Model {
    fn latency_ns(&self, tenant: usize, at: Allotment) -> f64 {
        self.predict(tenant, at).latency_ns
    }
}

impl Levels for Model {
    fn first(&self, tenant: usize, first: u32) -> f64 {
        todo!()
    }

    fn second(&self, tenant: usize, first: u32, second: u32) -> f64 {
        todo!()
    }
}
