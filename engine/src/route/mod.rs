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
//! Downside: a part is not cancelled: read-ahead of a volume with places stays queued when its stream ends.

use crate::disk::durability::Failures;
use crate::disk::{Device, Op, Purpose, Segment, Served, Slot, Split};
use crate::errno::Errno;
use crate::ids::{IoId, TenantId, VolumeId};
use crate::slab::Table;
use crate::units::Nanos;

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
}

impl Route {
    pub(crate) fn new(disk: Device) -> Route {
        Route { disk, places: Table::default() }
    }

    /// Sets where the ranges of a volume live. The places cover it without gaps.
    #[cfg_attr(not(test), expect(dead_code, reason = "the first users are off-load stores and stripes"))]
    pub(crate) fn set_places(&mut self, volume: VolumeId, places: Vec<Place>) {
        assert!(places.is_sorted_by_key(|place| place.end));
        self.places.insert(volume, places);
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

    /// Queues a transfer; an urgent one ahead of its tenant's others.
    pub(crate) fn submit(&mut self, now: Nanos, io: IoId, urgent: bool) {
        let volume = self.disk.slot(io).io.volume;
        if self.places.past() == 0 || !self.places.contains(volume) {
            return self.disk.submit(now, io, urgent);
        }
        self.disk.slot_mut(io).split = Some(Split { left: 0, result: Ok(()), failures: None });
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
        let (mut segment, mut skip) = (0, 0);
        let mut place = self.places[volume].partition_point(|place| place.end <= at);
        while at < end {
            let Place { end: place_end, file, from } = self.places[volume][place];
            let begins = place.checked_sub(1).map_or(0, |before| self.places[volume][before].end);
            let past = end.min(place_end);
            let part = self.part(io, file, from + (at - begins));
            if self.disk.slot(io).io.segments.is_empty() {
                self.disk.slot_mut(part).io.len = past - at;
            } else {
                // A place may end inside a block.
                let mut left = past - at;
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
            }
            self.disk.submit(now, part, urgent);
            (at, place) = (past, place + 1);
        }
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
        let served = self.disk.done(now, since, io);
        let Some(parent) = self.disk.slot(io).parent else { return Some((io, served, result)) };
        let failures = self.disk.slot(io).failures;
        self.disk.forget(io);
        let slot = self.disk.slot_mut(parent);
        let split = slot.split.as_mut().expect("a split transfer");
        split.left -= 1;
        split.result = split.result.and(result);
        // The part that was submitted before most failures decides whether the transfer is trusted. The counter wraps.
        let is_earlier = |known: Failures| (failures.wrapping_sub(known) as i32) < 0;
        split.failures = split.failures.filter(|&known| !is_earlier(known)).or(Some(failures));
        slot.failures = split.failures.unwrap_or(failures);
        (split.left == 0).then_some((parent, served, split.result))
    }

    /// Frees the entry of a transfer.
    pub(crate) fn forget(&mut self, io: IoId) {
        self.disk.forget(io);
    }
}

#[cfg(test)]
mod tests;
