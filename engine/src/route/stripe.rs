//! Volumes that are striped over several upstreams (RAID-0). Where a byte is follows from its number: no table is kept.
//!
//! ```text
//!   volume   | 0 | 1 | 2 | 3 | 4 | 5 |…     units of the stripe; three in a row here
//!   leg 0    | 0 | 3 |…        a transfer of units 1 to 4 has one part on each leg:
//!   leg 1    | 1 | 4 |…        what a leg has of a contiguous range is contiguous on it
//!   leg 2    | 2 | 5 |…
//! ```
//!
//! The legs have numbers of volumes, by which the driver knows them; the first one has that of the striped volume. A
//! transfer keeps its entry in the table of requests and waits there for its parts.
//!
//! **Durability.** All legs are one target (`disk/durability.rs`): the loss of one session is a failed device flush of
//! the volume. A flush goes to the legs that were written to since their own last good flush. It is void if a session
//! of any leg was lost before its last part ended. A write is distrusted only if a leg was lost that had answered its
//! part before: parts that were not answered are repeated by their leg, and those of other legs were not concerned.
//!
//! A block is never on two legs, because a unit has at least the size of a block. So no segment is divided.

use super::{Leg, Route};
use crate::cluster::{Barrier, Slot, Timetable};
use crate::disk::durability::Failures;
use crate::disk::{Io, Op, Split};
use crate::ids::{IoId, VolumeId};
use crate::slab::Table;
use crate::spec::LEGS_MAX;
use crate::units::{BLOCK, Nanos};
use crate::upstream::{Action, Upstream};

/// How a volume is striped.
#[derive(Debug)]
pub(super) struct Stripes {
    /// Bytes that are contiguous on a leg and in the volume.
    unit: u64,
    pub(super) legs: Vec<VolumeId>,
    /// Bytes of acknowledged writes, as whole blocks, that no flush covers. The legs count their parts, which may be
    /// flushed before the write is acknowledged.
    unflushed_bytes: u64,
    /// What it loses of its slots, if it has some, and its transfers that are on their way.
    barrier: Option<Barrier>,
    on_way: usize,
}

impl Stripes {
    /// The leg that has a byte of the volume.
    fn leg_of(&self, at: u64) -> usize {
        (at / self.unit % self.legs.len() as u64) as usize
    }

    /// How many of the first `end` bytes of the volume are on a leg. So the range `start..end` is there from
    /// `before(leg, start)` to `before(leg, end)`.
    fn before(&self, leg: usize, end: u64) -> u64 {
        let row = self.unit * self.legs.len() as u64;
        end / row * self.unit + (end % row).saturating_sub(leg as u64 * self.unit).min(self.unit)
    }

    /// The part of a range that each leg has: the leg, and the range there.
    fn parts(&self, start: u64, end: u64) -> impl Iterator<Item = (usize, u64, u64)> + '_ {
        let (first, legs) = (self.leg_of(start), self.legs.len());
        let units = (end - 1) / self.unit - start / self.unit + 1;
        let touched = units.min(legs as u64) as usize;
        (first..first + touched).map(move |at| {
            let leg = at % legs;
            let (mut from, to) = (self.before(leg, start), self.before(leg, end));
            if planted!(FragmentInWrongRow) && at >= legs {
                from = from.saturating_sub(self.unit);
            }
            (leg, from, to)
        })
    }
}

impl Route {
    /// From now on a volume is striped over these upstreams, the first of which has its number.
    pub(crate) fn set_stripes(&mut self, volume: VolumeId, unit: u64, legs: Vec<(VolumeId, Upstream)>) {
        assert!(unit.is_power_of_two() && unit >= BLOCK && (2..=LEGS_MAX).contains(&legs.len()));
        assert!(legs[0].0 == volume && !legs.iter().any(|(leg, _)| self.upstreams.contains(*leg)));
        let numbers = legs.iter().map(|(leg, _)| *leg).collect();
        self.stripes.insert(volume, Stripes { unit, legs: numbers, unflushed_bytes: 0, barrier: None, on_way: 0 });
        for (at, (leg, upstream)) in (0..).zip(legs) {
            self.upstreams.insert(leg, Leg { upstream, volume, at, is_reached: false, is_unflushed: true });
        }
    }

    /// From now on a striped volume has this slot in each round, by the clock of this engine. False if it is not
    /// striped.
    pub(crate) fn set_slot(&mut self, volume: VolumeId, timetable: &Timetable, slot: Slot) -> bool {
        let Some(stripes) = self.stripes.get_mut(volume) else { return false };
        match &mut stripes.barrier {
            Some(barrier) => barrier.set(timetable, slot),
            none => *none = Some(Barrier::new(timetable, slot)),
        }
        true
    }

    /// What a striped volume loses of a slot on average, if that is known.
    pub(crate) fn slot_loss_ns(&self, volume: VolumeId) -> Option<Nanos> {
        self.stripes.get(volume)?.barrier.as_ref()?.loss_ns()
    }

    /// A transfer of a striped volume is complete.
    pub(super) fn slot_used(&mut self, now: Nanos, io: IoId) {
        let Io { volume, op, .. } = self.disk.slot(io).io;
        if let Some(stripes) = self.stripes.get_mut(volume).filter(|_| op != Op::Flush) {
            stripes.on_way -= 1;
            let on_way = stripes.on_way;
            stripes.barrier.iter_mut().for_each(|barrier| barrier.completed(now, on_way));
        }
    }

    /// The numbers of the upstreams of a volume, in order; none if it is on the disk.
    pub(crate) fn legs(&self, volume: VolumeId) -> &[VolumeId] {
        match (self.stripes.get(volume), self.upstreams.get(volume)) {
            (Some(stripes), _) => &stripes.legs,
            (None, Some(leg)) => std::slice::from_ref(&leg.volume),
            (None, None) => &[],
        }
    }

    /// The upstreams of a volume, in order.
    pub(crate) fn upstreams(&self, volume: VolumeId) -> impl Iterator<Item = &Upstream> + Clone {
        self.legs(volume).iter().map(|&leg| &self.upstreams[leg].upstream)
    }

    /// Does something with each upstream of a volume.
    pub(crate) fn each_upstream(&mut self, volume: VolumeId, mut act: impl FnMut(&mut Upstream)) {
        for at in 0..self.legs(volume).len() {
            let leg = self.legs(volume)[at];
            act(&mut self.upstreams[leg].upstream);
        }
    }

    /// The upstreams of a volume that has no requests are not needed any more.
    pub(crate) fn drop_upstreams(&mut self, volume: VolumeId) {
        let legs = self.stripes.remove(volume).map_or_else(|| vec![volume], |stripes| stripes.legs);
        legs.into_iter().for_each(|leg| _ = self.upstreams.remove(leg));
    }

    pub(crate) fn is_striped(&self, volume: VolumeId) -> bool {
        self.stripes.contains(volume)
    }

    /// The volume that an upstream belongs to.
    pub(crate) fn volume_of(&self, leg: VolumeId) -> VolumeId {
        self.upstreams[leg].volume
    }

    /// A session of an upstream has begun. Whether each of its volume has had one by now.
    pub(crate) fn reached(&mut self, leg: VolumeId) -> bool {
        self.upstreams[leg].is_reached = true;
        self.legs(self.volume_of(leg)).iter().all(|&leg| self.upstreams[leg].is_reached)
    }

    /// Whether a flush of the volume is due: see [`Upstream::unflushed_bytes`].
    pub(crate) fn wants_flush(&self, volume: VolumeId, bytes_max: u64) -> bool {
        let unflushed = match self.stripes.get(volume) {
            Some(stripes) => stripes.unflushed_bytes,
            None => self.upstreams(volume).map(Upstream::unflushed_bytes).sum(),
        };
        let is_much = unflushed > bytes_max || self.upstreams(volume).any(Upstream::has_many_zeros);
        is_much && !self.upstreams(volume).any(Upstream::is_flushing)
    }

    /// Whether a lease has ended of a server that has a part of this range: see [`Upstream::is_lapsed`].
    pub(crate) fn is_lapsed(&self, now: Nanos, volume: VolumeId, start: u64, end: u64) -> bool {
        match self.stripes.get(volume) {
            Some(stripes) => stripes
                .parts(start, end)
                .any(|(leg, from, to)| from < to && self.upstreams[stripes.legs[leg]].upstream.is_lapsed(now)),
            None => self.upstreams.get(volume).is_some_and(|leg| leg.upstream.is_lapsed(now)),
        }
    }

    /// How long requests of a volume wait for its servers.
    pub(crate) fn deadline_ns(&self, volume: VolumeId) -> Nanos {
        self.upstreams.get(volume).map_or(0, |leg| leg.upstream.deadline_ns())
    }

    /// Whether the volume may submit zeroing requests: see [`Upstream::may_zero`].
    pub(crate) fn may_zero(&self, volume: VolumeId) -> bool {
        self.upstreams(volume).all(Upstream::may_zero)
    }

    /// A session of an upstream is lost: `failures` are those of its volume, this one included. The next session
    /// repeats what that upstream has not answered, and the others were not concerned. What it has answered of a
    /// transfer that still waits for other parts is not trusted, and no flush that was begun.
    pub(crate) fn session_lost(&mut self, lost: VolumeId, failures: Failures) {
        let Route { upstreams, stripes, disk, .. } = self;
        let Leg { volume, at, .. } = upstreams[lost];
        let Some(Stripes { legs, unflushed_bytes, .. }) = stripes.get_mut(volume) else {
            return upstreams[lost].upstream.pending().for_each(|io| disk.slot_mut(io).failures = failures);
        };
        // All of it is written again.
        *unflushed_bytes = 0;
        for io in legs.iter().flat_map(|&leg| upstreams[leg].upstream.pending()) {
            let part = disk.slot_mut(io);
            part.failures = failures;
            let whole = part.parent.expect("each request of a striped volume is a part");
            let whole = disk.slot_mut(whole).split.as_mut().expect("a split transfer");
            whole.is_void = true;
            let was_trusted = whole.failures == Some(failures.wrapping_sub(1));
            if was_trusted && whole.answered & 1 << at == 0 {
                whole.failures = Some(failures);
            }
        }
    }

    /// A flush ended without a result. Whether it is a part of one, which has ended then.
    pub(crate) fn part_is_void(&mut self, io: IoId) -> bool {
        let parent = self.disk.slot(io).parent;
        let Some(parent) = parent else { return false };
        let leg = self.disk.slot(io).io.volume;
        self.upstreams[leg].is_unflushed = !planted!(VoidedLegClean);
        let whole = self.disk.slot_mut(parent).split.as_mut().expect("a split transfer");
        whole.is_void = true;
        true
    }

    /// Whether a flush of a striped volume is over without a result.
    pub(crate) fn is_void(&self, io: IoId) -> bool {
        let slot = self.disk.slot(io);
        slot.io.op == Op::Flush && slot.split.is_some_and(|split| split.is_void)
    }

    /// Notes what an answer of a leg means for it, and for the transfer that it was a part of.
    pub(super) fn leg_answered(
        upstreams: &mut Table<VolumeId, Leg>,
        part: (VolumeId, Op),
        is_good: bool,
        of: &mut Split,
    ) {
        let (volume, op) = part;
        let Some(leg) = upstreams.get_mut(volume) else { return };
        let can_be_lost = matches!(op, Op::Write { durable: false } | Op::Zero | Op::Punch);
        leg.is_unflushed |= can_be_lost || op == Op::Flush && !is_good;
        // Zeros are retained by the leg.
        if is_good && op == (Op::Write { durable: false }) && !planted!(AnsweredPartTrusted) {
            of.answered |= 1 << leg.at;
        }
    }

    /// All parts of a transfer have ended.
    pub(super) fn whole_answered(&mut self, io: IoId, is_good: bool) {
        let request = &self.disk.slot(io).io;
        if let Some(stripes) = self.stripes.get_mut(request.volume)
            && is_good
            && request.op == (Op::Write { durable: false })
        {
            let (start, end) = (request.offset, request.offset + request.len);
            stripes.unflushed_bytes += end.next_multiple_of(BLOCK) - start / BLOCK * BLOCK;
        }
    }

    /// Divides a transfer over the legs of its volume.
    pub(super) fn submit_striped(&mut self, now: Nanos, io: IoId, failures: Failures) {
        self.disk.submit_elsewhere(now, io, failures);
        self.disk.slot_mut(io).split = Some(Split::default());
        let mut parts = [None; LEGS_MAX];
        let op = self.disk.slot(io).io.op;
        if op == Op::Flush {
            let volume = self.disk.slot(io).io.volume;
            self.stripes[volume].unflushed_bytes = 0;
            self.divide_flush(io, &mut parts);
        } else {
            let stripes = &mut self.stripes[self.disk.slot(io).io.volume];
            stripes.on_way += 1;
            stripes.barrier.iter_mut().for_each(|barrier| barrier.asked(now));
            self.divide(io, &mut parts);
        }
        // All parts are there before the first one can end.
        self.order += 1;
        let mut is_any = false;
        for part in parts.into_iter().flatten() {
            is_any = true;
            self.disk.submit_elsewhere(now, part, failures);
            let request = &self.disk.slot(part).io;
            let leg = &mut self.upstreams[request.volume];
            // What the leg answers from now on is not covered.
            leg.is_unflushed &= op != Op::Flush;
            leg.upstream.submit(now, part, self.order, request);
        }
        if !is_any {
            debug_assert_eq!(op, Op::Flush, "a transfer of nothing");
            self.flushed.push_back(io);
        }
    }

    /// The parts of a flush: one for each leg that was written to since its last good flush.
    fn divide_flush(&mut self, io: IoId, parts: &mut [Option<IoId>; LEGS_MAX]) {
        let volume = self.disk.slot(io).io.volume;
        for (at, into) in (0..self.legs(volume).len()).zip(parts) {
            let leg = self.legs(volume)[at];
            let is_skipped = planted!(FlushSkipsLeg) && at > 0 && self.upstreams[volume].is_unflushed;
            if self.upstreams[leg].is_unflushed && !is_skipped {
                *into = Some(self.part(io, leg, 0));
            }
        }
    }

    /// The parts of a transfer of a range, each with its segments.
    fn divide(&mut self, io: IoId, into: &mut [Option<IoId>; LEGS_MAX]) {
        let request = &self.disk.slot(io).io;
        let (volume, start, end) = (request.volume, request.offset, request.offset + request.len);
        let has_data = !request.segments.is_empty();
        let mut ranges = [(0, 0); LEGS_MAX];
        self.stripes[volume].parts(start, end).for_each(|(leg, from, to)| ranges[leg] = (from, to));
        for (leg, &(from, to)) in ranges.iter().enumerate().filter(|(_, (from, to))| from < to) {
            let part = self.part(io, self.stripes[volume].legs[leg], from);
            self.disk.slot_mut(part).io.len = if has_data { 0 } else { to - from };
            into[leg] = Some(part);
        }
        let mut at = start;
        for number in 0..self.disk.slot(io).io.segments.len() {
            let segment = self.disk.slot(io).io.segments[number];
            let leg = self.stripes[volume].leg_of(at);
            self.disk.add_segment(into[leg].expect("it has a part of the range"), segment);
            at += u64::from(segment.len);
        }
        debug_assert!(!has_data || at == end);
    }

    /// A flush of a striped volume of which no leg was written to: it is complete.
    pub(super) fn poll_flushed(&mut self) -> Option<(VolumeId, Action)> {
        let io = self.flushed.pop_front()?;
        Some((self.disk.slot(io).io.volume, Action::Done(io, Ok(()))))
    }
}

#[cfg(test)]
mod tests;
