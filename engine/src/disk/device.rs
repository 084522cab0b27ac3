//! Device requests from the moment they are made until they are complete: a table, the policy that orders them, and the
//! time they spend.

use std::collections::VecDeque;

use super::policy::{DiskTime, Entry, Policy, REQUEST_BYTES_LEAST, Slice, TenantPlan};
use super::{Io, IoId, Op, Segment, VolumeId};
use crate::cache::BlockId;
use crate::control::TenantId;
use crate::event::Action;
use crate::slab::Slab;
use crate::units::{BLOCK, Nanos, SectorMask, Share};
use crate::volume::Ticket;

/// What a device request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Fills the blocks.
    Fill,
    /// Fills blocks that nobody has asked for yet, ahead of the volume's stream of this name.
    Prefetch(u32),
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
    /// As the policy sees it.
    entry: Entry,
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
            entry: Entry { io: IoId(0), op: Op::Read, len: 0, cost_ns: 0 },
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
    tenants: Vec<OfTenant>,
    in_device: u32,
    started: Option<Nanos>,
    changed_at: Nanos,
    pub(crate) busy_ns: Nanos,
    pub(crate) idle_ns: Nanos,
}

impl Device {
    pub(crate) fn new(policy: Box<dyn Policy>) -> Device {
        Device {
            slots: Slab::new(),
            policy,
            tenants: Vec::new(),
            in_device: 0,
            started: None,
            changed_at: 0,
            busy_ns: 0,
            idle_ns: 0,
        }
    }

    /// A tenant is there, or its share has changed.
    pub(crate) fn set_tenant(&mut self, now: Nanos, tenant: TenantId, share: Option<Share>) {
        let at = tenant.0 as usize;
        if self.tenants.len() <= at {
            self.tenants.resize_with(at + 1, OfTenant::default);
        }
        self.policy.set_tenant(now, tenant, share);
    }

    /// A tenant without volumes is gone.
    pub(crate) fn drop_tenant(&mut self, now: Nanos, tenant: TenantId) {
        self.policy.drop_tenant(now, tenant);
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

    /// The most blocks that a read or a write of the tenant may have now.
    pub(crate) fn request_blocks_max(&self, tenant: TenantId, op: Op) -> u64 {
        let bytes = self.policy.request_bytes_max(tenant, op);
        debug_assert!(bytes >= REQUEST_BYTES_LEAST);
        bytes / BLOCK
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
        let of_tenant = &mut self.tenants[tenant.0 as usize];
        let follows = of_tenant.ends.follows(&slot.io);
        of_tenant.demand.begin(now);
        let Io { op, len, .. } = slot.io;
        slot.entry = Entry { io, op, len, cost_ns: self.policy.cost_ns(op, len, follows) };
        self.policy.arrived(now, tenant, slot.entry, urgent);
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

    /// Takes back those of a tenant's requests that wait for their turn and that are `unwanted`: the caller forgets them.
    pub(crate) fn withdraw(
        &mut self,
        now: Nanos,
        tenant: TenantId,
        unwanted: impl Fn(&Slot) -> bool,
        dropped: &mut Vec<IoId>,
    ) {
        let (slots, before) = (&self.slots, dropped.len());
        self.policy.withdraw(now, tenant, &|io| unwanted(&slots[io.0]), dropped);
        (before..dropped.len()).for_each(|_| self.end_demand(now, tenant));
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
        self.policy.done(now, tenant, &slot.entry, slot.submitted);
        self.end_demand(now, tenant);
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

    /// When [`Device::dispatch`] may do something though nothing happened.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        self.policy.poll_timeout()
    }

    /// A tenant wants something: a request of a client, or of the device.
    pub(crate) fn begin_demand(&mut self, now: Nanos, tenant: TenantId) {
        self.tenants[tenant.0 as usize].demand.begin(now);
    }

    /// It has got it, or does not want it any more.
    pub(crate) fn end_demand(&mut self, now: Nanos, tenant: TenantId) {
        self.tenants[tenant.0 as usize].demand.end(now);
    }

    /// Nanoseconds in which a tenant wanted something.
    pub(crate) fn wanting_ns(&self, now: Nanos, tenant: TenantId) -> Nanos {
        self.tenants[tenant.0 as usize].demand.wanting_ns(now)
    }

    /// What the policy does for a tenant.
    pub(crate) fn plan(&mut self, now: Nanos, tenant: TenantId) -> Option<TenantPlan> {
        self.policy.plan(now, tenant)
    }

    /// Whose the disk's time was.
    pub(crate) fn time(&self, now: Nanos) -> DiskTime {
        self.policy.time(now)
    }

    /// The last slices.
    pub(crate) fn slices(&self) -> Vec<Slice> {
        self.policy.slices()
    }
}

#[derive(Default, Debug)]
struct OfTenant {
    ends: Ends,
    demand: Demand,
}

/// A client that asks again within this time had a request outstanding all the while: the way to it and back, 1 ms.
pub(super) const TURNAROUND_NS: Nanos = 1_000_000;

/// How long a tenant had a request outstanding.
#[derive(Default, Debug)]
struct Demand {
    outstanding: u32,
    since: Nanos,
    until: Nanos,
    past_ns: Nanos,
}

impl Demand {
    fn begin(&mut self, now: Nanos) {
        if self.outstanding == 0 {
            self.past_ns += Some(now - self.until).filter(|&gap| gap <= TURNAROUND_NS).unwrap_or(0);
            self.since = now;
        }
        self.outstanding += 1;
    }

    fn end(&mut self, now: Nanos) {
        self.outstanding -= 1;
        if self.outstanding == 0 {
            self.past_ns += now - self.since;
            self.until = now;
        }
    }

    fn wanting_ns(&self, now: Nanos) -> Nanos {
        self.past_ns + if self.outstanding > 0 { now - self.since } else { 0 }
    }
}

/// Where the latest requests of a tenant end, for as many streams as a client usually has.
#[derive(Clone, Copy, Default, Debug)]
struct Ends {
    places: [(Option<VolumeId>, u64); 4],
    oldest: usize,
}

impl Ends {
    /// Whether the request begins where an earlier one ended; it is the latest one now.
    fn follows(&mut self, io: &Io) -> bool {
        let begin = (Some(io.volume), io.offset);
        let found = self.places.iter().position(|&place| place == begin);
        let at = found.unwrap_or(self.oldest);
        self.places[at] = (Some(io.volume), io.offset + io.len);
        if found.is_none() {
            self.oldest = (self.oldest + 1) % self.places.len();
        }
        found.is_some()
    }
}
