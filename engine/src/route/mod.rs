//! Where a range of a volume lives, and the way of a transfer there and back.
//!
//! A volume lives where its own file is, and a transfer is one request of the device then, without further state.
//!
//! Writes of a volume that may be off-loaded go to its file or to stores, its reads to where the newest content is
//! (`offload.rs`). A transfer that touches several places is split: it keeps its entry in the table of requests and
//! waits there for its parts, which have entries of their own. It is done when all of them are; an error of one is its
//! error.
//!
//! A volume that is on another server has an [`Upstream`], which takes its transfers whole and at once: they pass no
//! policy, and one bounded window is their only queue. A striped volume has several (`stripe.rs`).
//!
//! Downside: what is on its way to another server is not cancelled: read-ahead stays queued when its stream ends.

mod offload;
mod stripe;

pub(crate) use offload::Done;

use std::collections::VecDeque;

use crate::disk::durability::Failures;
use crate::disk::{Device, Op, Purpose, Segment, Served, Slot, Split};
use crate::errno::Errno;
use crate::ids::{FrameId, IoId, TenantId, VolumeId, VolumeKey};
use crate::offload::{Offload, StoreId};
use crate::slab::Table;
use crate::units::Nanos;
use crate::upstream::{Action, Event, Upstream};
use stripe::Stripes;

/// The way of a volume to a server, or one of the ways if it is striped.
#[derive(Debug)]
struct Leg {
    upstream: Upstream,
    /// The volume.
    volume: VolumeId,
    /// Its place among those of the volume.
    at: u8,
    /// It has had a session.
    is_reached: bool,
    /// It has answered writes since its last good flush began. Those of striped volumes only, which skip the others.
    is_unflushed: bool,
}

/// The targets of a disk's volumes.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) disk: Device,
    /// The ways to the servers of the volumes that are elsewhere.
    upstreams: Table<VolumeId, Leg>,
    /// The volumes that are striped over several.
    stripes: Table<VolumeId, Stripes>,
    /// Their flushes that have nothing to flush.
    flushed: VecDeque<IoId>,
    /// The number of the last transfer to another server: its parts are sent with it, and later ones have higher ones.
    order: u64,
    /// The client of the stores, if writes may be off-loaded, and the volumes that lead to them.
    offload: Option<Offload>,
    stores: Vec<VolumeId>,
    /// The volumes that may be off-loaded, and their tenants.
    keys: Table<VolumeId, (VolumeKey, TenantId)>,
    /// Transfers that wait for stores, and since when.
    held: VecDeque<(IoId, Nanos)>,
    /// Reads whose content is in stores that are missing.
    lost: VecDeque<IoId>,
    /// Content that is being written to the base, by tenant.
    homeward: Table<TenantId, u32>,
}

impl Route {
    pub(crate) fn new(disk: Device) -> Route {
        Route {
            disk,
            upstreams: Table::default(),
            stripes: Table::default(),
            flushed: VecDeque::new(),
            order: 0,
            offload: None,
            stores: Vec::new(),
            keys: Table::default(),
            held: VecDeque::new(),
            lost: VecDeque::new(),
            homeward: Table::default(),
        }
    }

    /// From now on a volume is where this leads.
    pub(crate) fn set_upstream(&mut self, volume: VolumeId, upstream: Upstream) {
        self.upstreams.insert(volume, Leg { upstream, volume, at: 0, is_reached: false, is_unflushed: true });
    }

    /// An upstream by its number: that of its volume, unless the volume is striped.
    pub(crate) fn upstream(&self, leg: VolumeId) -> Option<&Upstream> {
        self.upstreams.get(leg).map(|leg| &leg.upstream)
    }

    fn upstream_mut(&mut self, leg: VolumeId) -> Option<&mut Upstream> {
        self.upstreams.get_mut(leg).map(|leg| &mut leg.upstream)
    }

    /// Whether an upstream has this number.
    pub(crate) fn has_upstream(&self, leg: VolumeId) -> bool {
        self.upstreams.contains(leg)
    }

    /// Passes an event of a connection to an upstream, if there is one of this number.
    pub(crate) fn upstream_event(&mut self, now: Nanos, leg: VolumeId, event: Event<'_>) {
        if let Some(upstream) = self.upstream_mut(leg) {
            upstream.handle(now, event);
        }
    }

    /// The next action of any upstream, by its number, after [`Event::Timer`] for those that are due.
    pub(crate) fn poll_upstream(&mut self, now: Nanos) -> Option<(VolumeId, Action)> {
        if let Some(flushed) = self.poll_flushed() {
            return Some(flushed);
        }
        self.upstreams.iter_mut().find_map(|(leg, Leg { upstream, .. })| {
            if upstream.poll_timeout().is_some_and(|at| at <= now) {
                upstream.handle(now, Event::Timer);
            }
            Some((leg, upstream.poll_action()?))
        })
    }

    /// When an upstream wants to be called.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        let upstreams = self.upstreams.iter().filter_map(|(_, leg)| leg.upstream.poll_timeout());
        upstreams.chain(self.disk.poll_timeout()).chain(self.offload_timeout()).min()
    }

    /// Sets where the data of a tenant is on the disk, if it is there and that is known.
    pub(crate) fn set_place(&mut self, tenant: TenantId, place: Option<u64>) {
        if place.is_some() {
            self.disk.set_place(tenant, place);
        }
    }

    /// Creates a transfer. The caller adds segments and blocks to it and then [`Route::submit`]s it.
    pub(crate) fn prepare(&mut self, op: Op, volume: VolumeId, tenant: TenantId, purpose: Purpose) -> IoId {
        self.disk.prepare(op, volume, tenant, purpose)
    }

    /// Appends a segment to a transfer that is being prepared.
    pub(crate) fn add_segment(&mut self, io: IoId, segment: Segment) {
        self.disk.add_segment(io, segment);
    }

    pub(crate) fn slot(&self, io: IoId) -> &Slot {
        self.disk.slot(io)
    }

    pub(crate) fn slot_mut(&mut self, io: IoId) -> &mut Slot {
        self.disk.slot_mut(io)
    }

    /// Queues a transfer; an urgent one ahead of its tenant's others. `failures` are those of the volume's target.
    pub(crate) fn submit(&mut self, now: Nanos, io: IoId, urgent: bool, failures: Failures) {
        let volume = self.disk.slot(io).io.volume;
        if self.stripes.contains(volume) {
            return self.submit_striped(now, io, failures);
        }
        if self.upstreams.contains(volume) {
            self.disk.submit_elsewhere(now, io, failures);
            return self.submit_upstream(now, io);
        }
        if self.offload.is_some() && self.keys.contains(volume) {
            return self.submit_offloading(now, io, urgent, failures);
        }
        self.disk.submit(now, io, urgent);
    }

    /// Passes a request to the upstream of its volume, which is not striped.
    fn submit_upstream(&mut self, now: Nanos, io: IoId) {
        self.order += 1;
        let request = &self.disk.slot(io).io;
        self.upstreams[request.volume].upstream.submit(now, io, self.order, request);
    }

    /// Passes an evicted block to the server of its volume. False if that does not take it.
    pub(crate) fn demote(&mut self, volume: VolumeId, number: u64, frame: FrameId) -> bool {
        let version = self.order;
        self.upstream_mut(volume).is_some_and(|upstream| upstream.demote(version, number, frame))
    }

    /// Gives the next `bytes` of a transfer to a part of it. `taken` are the segments that other parts have, and the
    /// bytes of the next one: a part may end inside a block.
    fn take_segments(&mut self, io: IoId, taken: &mut (usize, u64), part: IoId, bytes: u64) {
        if self.disk.slot(io).io.segments.is_empty() {
            self.disk.slot_mut(part).io.len = bytes;
            return;
        }
        let (mut left, (mut segment, mut skip)) = (bytes, *taken);
        while left > 0 {
            let Segment { frame, start, len } = self.disk.slot(io).io.segments[segment];
            let (start, rest) = (u64::from(start) + skip, u64::from(len) - skip);
            let takes = rest.min(left);
            self.disk.add_segment(part, Segment::new(frame, start, start + takes));
            (left, skip) = (left - takes, skip + takes);
            if takes == rest {
                (segment, skip) = (segment + 1, 0);
            }
        }
        *taken = (segment, skip);
    }

    /// Creates a part of a transfer.
    fn part(&mut self, io: IoId, file: VolumeId, offset: u64) -> IoId {
        let Slot { purpose, tenant, .. } = *self.disk.slot(io);
        let op = self.disk.slot(io).io.op;
        let part = self.disk.prepare(op, file, tenant, purpose);
        let slot = self.disk.slot_mut(part);
        slot.io.offset = offset;
        slot.parent = Some(io);
        self.disk.slot_mut(io).split.as_mut().expect("a split transfer").left += 1;
        part
    }

    /// Promotes the queued write-backs of a volume, because a flush or a writer waits for them.
    pub(crate) fn promote_writes(&mut self, tenant: TenantId, volume: VolumeId) {
        if !self.upstreams.contains(volume) {
            self.disk.promote_writes(tenant, volume);
        }
    }

    /// Cancels queued requests of the tenant that are `unwanted` and adds them to `dropped`. The caller forgets them.
    pub(crate) fn withdraw(
        &mut self,
        now: Nanos,
        (tenant, volume): (TenantId, VolumeId),
        unwanted: impl Fn(&Slot) -> bool,
        dropped: &mut Vec<IoId>,
    ) {
        if !self.upstreams.contains(volume) {
            self.disk.withdraw(now, tenant, unwanted, dropped);
        }
    }

    /// Whether a volume is on another server.
    pub(crate) fn is_elsewhere(&self, volume: VolumeId) -> bool {
        self.upstreams.contains(volume)
    }

    /// Longest run of clean blocks of a volume that is rewritten, in blocks.
    pub(crate) fn gap_blocks_max(&self, volume: VolumeId) -> u64 {
        if self.upstreams.contains(volume) { 0 } else { self.disk.gap_blocks_max() }
    }

    /// Submits the requests whose turn it is to the device.
    pub(crate) fn dispatch(&mut self, now: Nanos, failures: Failures, submit: &mut impl FnMut(IoId)) {
        self.disk.dispatch(now, failures, submit);
    }

    /// A device request completed. The transfer that it ends, if it ends one, with its result; its entry stays until
    /// [`Route::forget`].
    pub(crate) fn done(
        &mut self,
        now: Nanos,
        since: Nanos,
        io: IoId,
        result: Result<(), Errno>,
    ) -> Option<(IoId, Served, Result<(), Errno>)> {
        let Slot { purpose, parent, is_elsewhere, .. } = *self.disk.slot(io);
        let part = (self.disk.slot(io).io.volume, self.disk.slot(io).io.op);
        if let Purpose::Log(store, record) = purpose {
            self.disk.forget(io);
            self.log_written(now, StoreId(store), record, result.is_ok());
            return None;
        }
        let served = if is_elsewhere { self.disk.done_elsewhere(now, io) } else { self.disk.done(now, since, io) };
        let reads = self.disk.slot_mut(io).reads.take();
        if let Some((store, at)) = reads {
            self.read_ended(now, StoreId(store), at, result.is_ok());
        }
        let Some(parent) = parent else { return Some((io, served, result)) };
        let failures = self.disk.slot(io).failures;
        self.disk.forget(io);
        let slot = self.disk.slot_mut(parent);
        let split = slot.split.as_mut().expect("a split transfer");
        split.left -= 1;
        split.result = split.result.and(result);
        split.unread |= reads.is_some() && result.is_err();
        Route::leg_answered(&mut self.upstreams, part, result.is_ok(), split);
        // The part that was submitted before most failures decides whether the transfer is trusted. The counter wraps.
        let is_earlier = |known: Failures| (failures.wrapping_sub(known) as i32) < 0;
        split.failures = split.failures.filter(|&known| !is_earlier(known)).or(Some(failures));
        slot.failures = split.failures.unwrap_or(failures);
        let Split { left, result, unread, tries, .. } = *split;
        if left == 0 && unread && self.may_read_again(tries) {
            self.submit_read(now, parent, true, failures);
            return None;
        }
        if left > 0 {
            return None;
        }
        self.whole_answered(parent, result.is_ok());
        self.slot_used(now, parent);
        Some((parent, served, result))
    }

    /// The volume whose target, the disk or another server, was sent this request. `None` for records in the logs of
    /// stores, and for transfers that were not sent to the disk: stores have them, or were to have them.
    pub(crate) fn asked_of(&self, io: IoId) -> Option<VolumeId> {
        let Slot { purpose, is_elsewhere, .. } = *self.disk.slot(io);
        let target = self.disk.slot(io).io.volume;
        match (purpose, self.upstreams.get(target)) {
            (Purpose::Log(..), _) => None,
            (_, Some(leg)) => Some(leg.volume),
            (_, None) => (!is_elsewhere).then_some(target),
        }
    }

    /// Frees the entry of a transfer.
    pub(crate) fn forget(&mut self, io: IoId) {
        self.disk.forget(io);
    }
}
