//! What may go wrong in a disk, how often, and the dice: the faults of a world. Those that users stack on the devices
//! of a running server are in [`layer`].
//!
//! Rates are in parts per million of requests. A fault is decided when a request is submitted and shows when it
//! completes.

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
    /// Writes, zeroings and punches that fail; any part of them may have happened.
    pub write: u64,
    /// Writes, zeroings and punches that find no space; nothing of them happened.
    pub no_space: u64,
    /// Zeroings and punches that the device says it cannot do; nothing of them happened.
    pub refused: u64,
    /// Flushes that fail; what they should have made durable never will be.
    pub flush: u64,
    /// Requests that take ten to a hundred times as long.
    pub slow: u64,
    /// Requests that are stuck for seconds.
    pub stuck: u64,
    /// Requests that do not return while the world is at work.
    pub hung: u64,
}

impl Faults {
    /// Nothing goes wrong.
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

    /// How long a request takes that would take `service_ns`.
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
