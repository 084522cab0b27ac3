//! Device requests from the moment they are made until they are complete: a table, the policy that orders them, and the
//! time they spend.

use std::collections::VecDeque;

use super::policy::Policy;
use super::{Io, IoId, Op, Segment, VolumeId};
use crate::cache::BlockId;
use crate::control::TenantId;
use crate::event::Action;
use crate::slab::Slab;
use crate::units::{Nanos, SectorMask};
use crate::volume::Ticket;

/// What a device request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Fills the blocks.
    Fill,
    /// Writes the parts of blocks.
    WriteBack,
    /// Makes earlier writes of the volume durable.
    Sync,
    /// The range operation of this number.
    Range(Ticket),
}

/// A device request and its story.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) io: Io,
    pub(crate) purpose: Purpose,
    pub(crate) tenant: TenantId,
    /// The blocks it concerns, and of each the sectors.
    pub(crate) parts: Vec<(BlockId, SectorMask)>,
    arrived: Nanos,
    submitted: Nanos,
}

impl Default for Slot {
    fn default() -> Self {
        Slot {
            io: Io { op: Op::Read, volume: VolumeId(0), offset: 0, len: 0, segments: Vec::new() },
            purpose: Purpose::Fill,
            tenant: TenantId(0),
            parts: Vec::new(),
            arrived: 0,
            submitted: 0,
        }
    }
}

/// How long a completed request waited and was served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Served {
    pub(crate) queued_ns: Nanos,
    pub(crate) device_ns: Nanos,
}

/// The device as the engine sees it.
#[derive(Debug)]
pub(crate) struct Device {
    slots: Slab<Slot>,
    policy: Box<dyn Policy>,
    in_device: u32,
    started: Option<Nanos>,
    changed_at: Nanos,
    pub(crate) busy_ns: Nanos,
    pub(crate) idle_ns: Nanos,
}

impl Device {
    pub(crate) fn new(policy: Box<dyn Policy>) -> Device {
        Device { slots: Slab::new(), policy, in_device: 0, started: None, changed_at: 0, busy_ns: 0, idle_ns: 0 }
    }

    /// A new request, to be completed by the caller with segments and parts, then [`Device::submit`]ted.
    pub(crate) fn prepare(&mut self, op: Op, volume: VolumeId, tenant: TenantId, purpose: Purpose) -> IoId {
        let id = self.slots.take();
        let slot = &mut self.slots[id];
        slot.io.op = op;
        slot.io.volume = volume;
        slot.io.offset = 0;
        slot.io.len = 0;
        slot.io.segments.clear();
        slot.parts.clear();
        slot.purpose = purpose;
        slot.tenant = tenant;
        IoId(id)
    }

    pub(crate) fn slot(&self, io: IoId) -> &Slot {
        &self.slots[io.0]
    }

    pub(crate) fn slot_mut(&mut self, io: IoId) -> &mut Slot {
        &mut self.slots[io.0]
    }

    /// Adds bytes at the end of a request that is being prepared.
    pub(crate) fn add_segment(&mut self, io: IoId, segment: Segment) {
        let io = &mut self.slots[io.0].io;
        io.len += u64::from(segment.len);
        io.segments.push(segment);
    }

    /// The request waits for its turn; an urgent one at the front of its owner's queue (design, section 4).
    pub(crate) fn submit(&mut self, now: Nanos, io: IoId, urgent: bool) {
        let slot = &mut self.slots[io.0];
        slot.arrived = now;
        let tenant = slot.tenant;
        self.policy.arrived(now, tenant, io, urgent);
    }

    /// Somebody waits for the write-backs of `volume`: those that wait for their turn are urgent from now on.
    pub(crate) fn hurry_writes(&mut self, tenant: TenantId, volume: VolumeId) {
        let slots = &self.slots;
        let is_write = |io: IoId| {
            let slot = &slots[io.0];
            slot.io.volume == volume && slot.purpose == Purpose::WriteBack
        };
        self.policy.hurry(tenant, &is_write);
    }

    /// Gives to the device what the policy lets go.
    pub(crate) fn dispatch(&mut self, now: Nanos, actions: &mut VecDeque<Action>) {
        while let Some(io) = self.policy.next(now, self.in_device) {
            self.account(now);
            self.in_device += 1;
            self.slots[io.0].submitted = now;
            actions.push_back(Action::Submit(io));
        }
    }

    /// A request has come back. Its slot stays until [`Device::forget`].
    pub(crate) fn done(&mut self, now: Nanos, io: IoId) -> Served {
        self.account(now);
        self.in_device -= 1;
        let slot = &self.slots[io.0];
        let served = Served { queued_ns: slot.submitted - slot.arrived, device_ns: now - slot.submitted };
        let tenant = slot.tenant;
        self.policy.done(now, tenant, io);
        served
    }

    /// The slot is free.
    pub(crate) fn forget(&mut self, io: IoId) {
        self.slots.give(io.0);
    }

    /// Counts the time since the last change as busy or idle.
    pub(crate) fn account(&mut self, now: Nanos) {
        if self.started.is_none() {
            self.started = Some(now);
            self.changed_at = now;
        }
        let past = now - self.changed_at;
        if self.in_device > 0 {
            self.busy_ns += past;
        } else {
            self.idle_ns += past;
        }
        self.changed_at = now;
    }

    /// Nothing is in the device, nothing waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_device == 0 && self.policy.waiting() == 0
    }

    /// Requests in the device.
    pub(crate) fn in_device(&self) -> u32 {
        self.in_device
    }

    /// Requests that wait for their turn.
    pub(crate) fn waiting(&self) -> usize {
        self.policy.waiting()
    }
}
