//! No policy: first come, first served, up to a depth. What a server without insulation does.

use std::collections::VecDeque;

use super::Policy;
use crate::control::TenantId;
use crate::disk::IoId;
use crate::units::Nanos;

/// First come, first served.
#[derive(Debug)]
pub(crate) struct None {
    queue: VecDeque<IoId>,
    depth: u32,
}

impl None {
    /// At most `depth` requests in the device.
    pub(crate) fn new(depth: u32) -> None {
        None { queue: VecDeque::new(), depth }
    }
}

impl Policy for None {
    fn arrived(&mut self, _now: Nanos, _tenant: TenantId, io: IoId) {
        self.queue.push_back(io);
    }

    fn next(&mut self, _now: Nanos, in_device: u32) -> Option<IoId> {
        if in_device < self.depth { self.queue.pop_front() } else { Option::None }
    }

    fn done(&mut self, _now: Nanos, _tenant: TenantId, _io: IoId) {}

    fn waiting(&self) -> usize {
        self.queue.len()
    }
}
