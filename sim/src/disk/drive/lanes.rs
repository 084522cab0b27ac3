//! The simplest drive: a fixed number of lanes. The service time of a request is a fixed time plus the time of its
//! bytes, multiplied by a random factor from 1 to 2.

use engine::disk::Op;
use engine::units::{BLOCK, Nanos};

use super::done::Done;
use super::{Drive, Tag};
use crate::rng::Rng;

/// Its parameters.
#[derive(Clone, Copy, Debug)]
pub struct LanesSpec {
    /// Requests served at the same time.
    pub parallel: usize,
    /// Nanoseconds per request, without its bytes.
    pub service_ns: Nanos,
    /// Nanoseconds per 4 KiB.
    pub block_ns: Nanos,
    /// Nanoseconds per flush.
    pub flush_ns: Nanos,
}

/// A drive that is described by a [`LanesSpec`].
#[derive(Debug)]
pub struct Lanes {
    spec: LanesSpec,
    rng: Rng,
    /// When each of the `parallel` lanes is free.
    free_at: Vec<Nanos>,
    done: Done,
}

impl Lanes {
    /// An idle drive; `rng` varies its times.
    pub fn new(spec: LanesSpec, rng: Rng) -> Lanes {
        Lanes { spec, rng, free_at: vec![0; spec.parallel], done: Done::default() }
    }
}

impl Drive for Lanes {
    fn submit(&mut self, now: Nanos, tag: Tag, op: Op, _offset: u64, len: u64) {
        let base_ns = match op {
            Op::Flush => self.spec.flush_ns,
            Op::Zero | Op::Punch => self.spec.service_ns,
            Op::Read | Op::Write { .. } => self.spec.service_ns + self.spec.block_ns * len / BLOCK,
        };
        let lane = self.free_at.iter_mut().min().expect("at least one lane");
        *lane = now.max(*lane) + base_ns + self.rng.below(base_ns + 1);
        self.done.push(*lane, tag);
    }

    fn poll(&mut self, now: Nanos) -> Option<(Tag, Nanos)> {
        self.done.pop(now)
    }

    fn poll_timeout(&self) -> Option<Nanos> {
        self.done.next_at()
    }

    fn power_cut(&mut self, _now: Nanos) {
        self.free_at.fill(0);
        self.done.clear();
    }

    fn bytes(&self) -> u64 {
        u64::MAX
    }
}
