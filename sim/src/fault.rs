//! The faults of a world's disk: which may occur, and how often. Faults that users add to the device of a running
//! server are in [`layer`].
//!
//! Rates are in parts per million of requests. An error is decided when a request is submitted and reported when it
//! completes. Delays and hangs are decided when the drive has completed the request.

pub mod layer;

use engine::disk::Op;
use engine::nbd::Errno;
use engine::units::{MILLISECOND, Nanos, SECOND};

use crate::rng::Rng;

/// Rates of faults, in parts per million.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    /// Reads that fail.
    pub read: u64,
    /// Writes, zeroings and punches that fail; any part of them may have taken effect.
    pub write: u64,
    /// Writes, zeroings and punches that find no space; they have no effect.
    pub no_space: u64,
    /// Zeroings and punches that the device does not support; they have no effect.
    pub refused: u64,
    /// Flushes that fail; the data that they cover never becomes durable.
    pub flush: u64,
    /// Requests that take 10 to 100 times as long.
    pub slow: u64,
    /// Requests that take 0.5 to 8 s.
    pub stuck: u64,
    /// Requests that hang until the world releases them: when its faults end, or after 200 s.
    pub hung: u64,
}

impl Faults {
    /// No faults.
    pub const NONE: Faults =
        Faults { read: 0, write: 0, no_space: 0, refused: 0, flush: 0, slow: 0, stuck: 0, hung: 0 };

    /// The error of a request, if it fails.
    pub fn error(&self, op: Op, rng: &mut Rng) -> Option<Errno> {
        let (rate, full) = match op {
            Op::Read => (self.read, 0),
            Op::Flush => (self.flush, 0),
            Op::Write { .. } | Op::Zero | Op::Punch => (self.write, self.no_space),
        };
        if rng.chance(full) {
            return Some(Errno::NoSpace);
        }
        if matches!(op, Op::Zero | Op::Punch) && rng.chance(self.refused) {
            return Some(Errno::NotSupported);
        }
        rng.chance(rate).then_some(Errno::Io)
    }

    /// The duration of a request that takes `service_ns` without faults.
    pub fn delay(&self, service_ns: Nanos, rng: &mut Rng) -> Nanos {
        if rng.chance(self.stuck) {
            return rng.between(500 * MILLISECOND, 8 * SECOND);
        }
        if rng.chance(self.slow) {
            return service_ns * rng.between(10, 100);
        }
        service_ns
    }
}
