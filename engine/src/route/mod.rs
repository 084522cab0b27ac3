//! Where a range of a volume lives, and the way of a transfer there and back.
//!
//! ```text
//!   volume     |············ a transfer ············|
//!   places     |── file 3, from 0 ──|── file 7, from 1 MiB ──|
//!   requests       part 1 ─► queue      part 2 ─► queue           done when both are; an error of one is its error
//! ```
//!
//! A volume without places lives where its own file is; a transfer is one request of the device then, without further
//! state. A transfer that touches several places is split: it keeps its entry in the table of requests and waits there
//! for its parts, which have entries of their own. A flush goes to every file of the volume.
//!
//! Writes of a volume that may be off-loaded go to its file or to stores, its reads to where the newest content is
//! (`offload.rs`).
//!
//! A volume that is on another server has an [`Upstream`], which takes its transfers whole and at once: they pass no
//! policy, and one bounded window is their only queue.
//!
//! Downside: a part is not cancelled: read-ahead of a volume with places stays queued when its stream ends. Nor is that
//! of a volume on another server.

mod offload;

pub(crate) use offload::Done;

use std::collections::VecDeque;

use crate::disk::durability::Failures;
use crate::disk::{Device, Op, Purpose, Segment, Served, Slot, Split};
use crate::errno::Errno;
use crate::ids::{IoId, TenantId, VolumeId, VolumeKey};
use crate::offload::{Offload, StoreId};
use crate::slab::Table;
use crate::units::Nanos;
use crate::upstream::{Action, Event, Upstream};

/// A range of a volume, from the end of the one before it to `end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// First byte of the volume behind it.
    pub(crate) end: u64,
    /// The file that has it, by the number of its volume.
    pub(crate) file: VolumeId,
    /// Its first byte in that file.
    pub(crate) from: u64,
}

/// The targets of a disk's volumes.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) disk: Device,
    /// The places of the volumes that have some, in order.
    places: Table<VolumeId, Vec<Place>>,
    /// The servers of the volumes that are elsewhere.
    upstreams: Table<VolumeId, Upstream>,
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
            places: Table::default(),
            upstreams: Table::default(),
            offload: None,
            stores: Vec::new(),
            keys: Table::default(),
            held: VecDeque::new(),
            lost: VecDeque::new(),
            homeward: Table::default(),
        }
    }

    /// Sets where the ranges of a volume live. The places cover it without gaps.
    #[cfg_attr(not(test), expect(dead_code, reason = "the first users are stripes"))]
    pub(crate) fn set_places(&mut self, volume: VolumeId, places: Vec<Place>) {
        assert!(places.is_sorted_by_key(|place| place.end));
        self.places.insert(volume, places);
    }

    /// From now on a volume is where this leads.
    pub(crate) fn set_upstream(&mut self, volume: VolumeId, upstream: Upstream) {
        self.upstreams.insert(volume, upstream);
    }

    /// The upstream of a volume that has no requests is not needed any more.
    pub(crate) fn drop_upstream(&mut self, volume: VolumeId) {
        self.upstreams.remove(volume);
    }

    pub(crate) fn upstream(&self, volume: VolumeId) -> Option<&Upstream> {
        self.upstreams.get(volume)
    }

    pub(crate) fn upstream_mut(&mut self, volume: VolumeId) -> Option<&mut Upstream> {
        self.upstreams.get_mut(volume)
    }

    /// Nothing more is wanted of the upstream of a volume, if it has one: its requests fail.
    pub(crate) fn give_up_upstream(&mut self, now: Nanos, volume: VolumeId) {
        if let Some(upstream) = self.upstreams.get_mut(volume) {
            upstream.give_up(now);
        }
    }

    /// Passes an event of a connection to the upstream of a volume, if it has one.
    pub(crate) fn upstream_event(&mut self, now: Nanos, volume: VolumeId, event: Event<'_>) {
        if let Some(upstream) = self.upstreams.get_mut(volume) {
            upstream.handle(now, event);
        }
    }

    /// The next action of any upstream, after [`Event::Timer`] for those that are due.
    pub(crate) fn poll_upstream(&mut self, now: Nanos) -> Option<(VolumeId, Action)> {
        self.upstreams.iter_mut().find_map(|(volume, upstream)| {
            if upstream.poll_timeout().is_some_and(|at| at <= now) {
                upstream.handle(now, Event::Timer);
            }
            Some((volume, upstream.poll_action()?))
        })
    }

    /// When an upstream wants to be called.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        let upstreams = self.upstreams.iter().filter_map(|(_, upstream)| upstream.poll_timeout());
        upstreams.chain(self.disk.poll_timeout()).chain(self.offload_timeout()).min()
    }

    /// The session of a volume's upstream is lost, and `failures` with it: the next one repeats all pending requests.
    pub(crate) fn repeats_pending(&mut self, volume: VolumeId, failures: Failures) {
        let Route { upstreams, disk, .. } = self;
        for io in upstreams[volume].pending() {
            disk.slot_mut(io).failures = failures;
        }
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
        if let Some(upstream) = self.upstreams.get_mut(volume) {
            self.disk.submit_elsewhere(now, io, failures);
            return upstream.submit(now, io, &self.disk.slot(io).io);
        }
        if self.offload.is_some() && self.keys.contains(volume) {
            return self.submit_offloading(now, io, urgent, failures);
        }
        if self.places.past() == 0 || !self.places.contains(volume) {
            return self.disk.submit(now, io, urgent);
        }
        self.disk.slot_mut(io).split = Some(Split::default());
        match self.disk.slot(io).io.op {
            Op::Flush => self.split_flush(now, io, urgent),
            Op::Read | Op::Write { .. } | Op::Zero | Op::Punch => self.split_range(now, io, urgent),
        }
    }

    fn split_flush(&mut self, now: Nanos, io: IoId, urgent: bool) {
        let volume = self.disk.slot(io).io.volume;
        for at in 0..self.places[volume].len() {
            let file = self.places[volume][at].file;
            if !self.places[volume][..at].iter().any(|place| place.file == file) {
                let part = self.part(io, file, 0);
                self.disk.submit(now, part, urgent);
            }
        }
    }

    fn split_range(&mut self, now: Nanos, io: IoId, urgent: bool) {
        let volume = self.disk.slot(io).io.volume;
        let (mut at, end) = (self.disk.slot(io).io.offset, self.disk.slot(io).io.offset + self.disk.slot(io).io.len);
        let mut taken = (0, 0);
        let mut place = self.places[volume].partition_point(|place| place.end <= at);
        while at < end {
            let Place { end: place_end, file, from } = self.places[volume][place];
            let begins = place.checked_sub(1).map_or(0, |before| self.places[volume][before].end);
            let past = end.min(place_end);
            let part = self.part(io, file, from + (at - begins));
            self.take_segments(io, &mut taken, part, past - at);
            self.disk.submit(now, part, urgent);
            (at, place) = (past, place + 1);
        }
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
        // The part that was submitted before most failures decides whether the transfer is trusted. The counter wraps.
        let is_earlier = |known: Failures| (failures.wrapping_sub(known) as i32) < 0;
        split.failures = split.failures.filter(|&known| !is_earlier(known)).or(Some(failures));
        slot.failures = split.failures.unwrap_or(failures);
        let Split { left, result, unread, tries, .. } = *split;
        if left == 0 && unread && self.may_read_again(tries) {
            self.submit_read(now, parent, true, failures);
            return None;
        }
        (left == 0).then_some((parent, served, result))
    }

    /// Frees the entry of a transfer.
    pub(crate) fn forget(&mut self, io: IoId) {
        self.disk.forget(io);
    }
}

#[cfg(test)]
mod tests;
