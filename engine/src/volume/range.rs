//! Range operations: TRIM, WRITE_ZEROES of 1 MiB and more (64 KiB where a hole is punched), and the initialising of
//! never-written space. They are intervals, never lists of blocks.
//!
//! ```text
//!   arrives ─► takes its place (order.rs) ─► sweep: drop the range's cached blocks, wait where one is in use
//!           ─► device ─► hole recorded ─► gives up its place: requests that waited go on
//!                └─ refused: zeros are written to the device, 1 MiB at a time; the place is kept meanwhile
//! ```
//!
//! Under contention the device zeroes a range in parts: some devices write each zero, and one request could write
//! gigabytes.
//!
//! Dirty blocks are written before they are dropped, unless they are trimmed. Zeros that the device does not make are
//! written past the cache: pieces that wait for them hold frames, and zeros that needed frames too could wait forever.

use super::order::Who;
use super::writeback::WRITEBACKS_MAX;
use crate::disk::durability::DISTRUST_MAX;
use crate::disk::{Op, Purpose, Segment};
use crate::errno::Errno;
use crate::ids::{BlockId, FrameId, Ticket, VolumeId};
use crate::units::BLOCK;
use crate::volume::{Effect, Kind, Timer, Todo, Volumes};

/// Sparse volumes release space in aligned units of this many bytes.
pub(super) const PUNCH_UNIT: u64 = 64 << 10;
/// Bytes of zeros in one device write: long enough to stream, short enough that a request that arrives meanwhile waits
/// at most a few milliseconds on a disk.
pub(super) const ZEROS_BYTES: u64 = 1 << 20;
/// Most of a range that the device zeroes at once if its tenant is alone. Other tenants that come meanwhile wait for
/// it: about half a second if the device writes the zeros at 150 MB/s.
const ZERO_MAX: u64 = 64 << 20;
/// Most range operations of one volume, waiting or in the device. At this bound its connections are not read. It is the
/// most requests that one connection may have in flight, so one connection alone is never stopped by it.
pub(crate) const RANGES_MAX: usize = 128;
/// Places in the order of one volume, including those of waiting pieces, at which its connections are not read: a new
/// place may have to be compared with all of them.
const PLACES_MAX: usize = 512;
/// Range operations of one volume in the device at once. For the file system they are changes of metadata, which it
/// makes one after the other, and reads of other volumes that need the metadata wait for all of them.
const IN_DEVICE_MAX: usize = 2;
/// Places compared in a unit of work: they are close together in a tree.
const LOOKS_PER_UNIT: u32 = 16;
/// Blocks that a curve forgets in a unit of work: most are not sampled.
const HASHES_PER_UNIT: u64 = 40;
/// Units of work of a block that is dropped: five lists, its frame and its entry in the index.
const DROP_UNITS: u32 = 2;

/// A range operation, waiting or in the device.
#[derive(Debug)]
pub(crate) struct RangeOp {
    /// Its place in the order, which also identifies it.
    ticket: Ticket,
    /// It waits for no earlier place.
    first: bool,
    start: u64,
    end: u64,
    /// The device's operation; `None` if there is none, and only cached blocks are dropped.
    op: Option<Op>,
    /// The client's request; `None` for initialising.
    request: Option<u32>,
    /// FAST_ZERO: an operation that the device refuses is not done in another way.
    fast: bool,
    /// Blocks before this byte are dropped from the cache.
    swept: u64,
    /// Blocks before this byte were looked at, and written if they were dirty.
    cleaned: u64,
    /// The device has done everything before this byte.
    zeroed: u64,
    in_device: bool,
    /// How many parts of it in a row succeeded but were distrusted.
    distrusted: u8,
    /// Number of blocks looked at.
    #[cfg(test)]
    looks: u64,
}

impl Volumes {
    pub(super) fn range_arrived(
        &mut self,
        volume: VolumeId,
        place: (u64, u64),
        (start, end): (u64, u64),
        op: Option<Op>,
        request: Option<u32>,
        fast: bool,
    ) {
        let state = self.volume_mut(volume);
        let (ticket, waits) = state.order.enter_range(place.0, place.1);
        state.ranges.push(RangeOp {
            ticket,
            first: !waits,
            start,
            end,
            op,
            request,
            fast,
            swept: start,
            cleaned: start,
            zeroed: start,
            in_device: false,
            distrusted: 0,
            #[cfg(test)]
            looks: 0,
        });
        debug_assert!(state.ranges.len() <= RANGES_MAX);
        self.note_crowd(volume);
        self.poke(volume);
    }

    /// Notes whether the volume has so many range operations or places that its connections are not read.
    fn note_crowd(&mut self, volume: VolumeId) {
        let state = self.volume_mut(volume);
        let looks = state.order.take_looks();
        let (ranges, places) = (state.ranges.len(), state.order.len());
        if !state.crowded && (ranges >= RANGES_MAX || places >= PLACES_MAX) {
            state.crowded = true;
            self.effects.push(Effect::RecheckVolume(volume));
        } else if state.crowded && ranges <= RANGES_MAX / 2 && places <= PLACES_MAX / 2 {
            // Not at each operation that ends, because this looks at all connections of the tenant.
            state.crowded = false;
            self.put_off(Todo::Replies(self.tenant_of(volume)));
        }
        self.charge(self.tenant_of(volume), looks / LOOKS_PER_UNIT);
    }

    /// Whether a piece conflicts with a place in the order. If so, it has a place of its own then.
    pub(crate) fn must_wait_in_order(&mut self, volume: VolumeId, start: u64, end: u64, who: Who) -> bool {
        let order = &mut self.volume_mut(volume).order;
        if order.is_empty() {
            return false;
        }
        let waits = order.must_wait(start, end, who);
        self.note_crowd(volume);
        waits
    }

    /// Continues range operations: sweep, then device request.
    pub(crate) fn ranges_on(&mut self, volume: VolumeId) {
        let mut at = 0;
        let mut in_device = self.volume(volume).ranges.iter().filter(|range| range.in_device).count();
        while at < self.volume(volume).ranges.len() {
            let range = &self.volume(volume).ranges[at];
            if !range.first || range.in_device || range.swept == range.end && in_device >= IN_DEVICE_MAX {
                at += 1;
                continue;
            }
            if self.work.is_spent() {
                // The rest follows in a later quantum of the tenant.
                return self.poke(volume);
            }
            let is_swept = self.sweep(volume, at);
            if is_swept {
                self.avoid_versions(volume, at);
            }
            match (is_swept, self.volume(volume).ranges[at].op) {
                (true, None) => {
                    self.range_over(volume, at, Ok(()));
                    continue;
                }
                (true, Some(op)) if in_device < IN_DEVICE_MAX => {
                    in_device += 1;
                    self.submit_range(volume, at, op);
                }
                _ => {}
            }
            at += 1;
        }
        if self.work.is_spent() {
            self.poke(volume);
        }
    }

    /// What stores may have of a range cannot be zeroed in the device: it is written, or left as it is if a TRIM asked.
    fn avoid_versions(&mut self, volume: VolumeId, at: usize) {
        let RangeOp { zeroed, end, op, request, .. } = self.volume(volume).ranges[at];
        if matches!(op, Some(Op::Zero | Op::Punch)) && self.route.has_versions(volume, zeroed, end) {
            let trims = request.is_some_and(|request| self.requests[request].kind == Kind::Trim);
            self.volume_mut(volume).ranges[at].op = (!trims).then_some(Op::Write { durable: false });
        }
    }

    fn submit_range(&mut self, volume: VolumeId, at: usize, op: Op) {
        let range = &mut self.volume_mut(volume).ranges[at];
        range.in_device = true;
        let (ticket, start, end) = (range.ticket, range.zeroed, range.end);
        let tenant = self.tenant_of(volume);
        let io = self.route.prepare(op, volume, tenant, Purpose::Range(ticket));
        self.route.slot_mut(io).io.offset = start;
        if let Op::Write { .. } = op {
            for _ in 0..(end - start).min(ZEROS_BYTES) / BLOCK {
                self.route.add_segment(io, Segment::whole(FrameId::ZERO));
            }
        } else {
            // A device may write the zeros, as slowly as other data: under contention a range is zeroed in parts.
            // Punching a hole moves no data.
            let most = match op {
                Op::Zero => (self.route.disk.request_blocks_max(tenant, op) * BLOCK).clamp(ZEROS_BYTES, ZERO_MAX),
                _ => u64::MAX,
            };
            self.route.slot_mut(io).io.len = (end - start).min(most);
        }
        self.submit(io, false);
    }

    /// Drops the cached blocks of a range up to the first one that stands in the way. True when the end is reached. It
    /// resumes where it stopped, so each block is looked at at most twice, however many completions that takes. An
    /// operation without a device request leaves blocks that stand in the way in the cache.
    ///
    /// Dirty data is written first, unless it is trimmed. No client can read it before the device has zeroed the range,
    /// but a flush or a power cut may need it, and the device may fail.
    fn sweep(&mut self, volume: VolumeId, at: usize) -> bool {
        let range = &self.volume(volume).ranges[at];
        let (from, mut swept, mut cleaned, end) = (range.swept, range.swept, range.cleaned, range.end);
        let trims = range.request.is_some_and(|request| self.requests[request].kind == Kind::Trim);
        let in_cache_only = range.op.is_none();
        let tenant = self.tenant_of(volume);
        #[cfg(test)]
        let mut looks = 0;
        while swept < end && !self.work.is_spent() {
            if let Some(past) = self.cache.nothing_until(volume, swept / BLOCK) {
                let past = (past * BLOCK).min(end);
                self.charge(tenant, ((past - swept) / BLOCK / HASHES_PER_UNIT) as u32 + 1);
                swept = past;
                continue;
            }
            self.charge(tenant, 1);
            #[cfg(test)]
            (looks += 1);
            if let Some(id) = self.cache.lookup(volume, swept / BLOCK) {
                if !self.stands_in_the_way(id, trims) {
                    self.charge(tenant, DROP_UNITS);
                    self.cache.drop_block(id);
                } else if !in_cache_only {
                    self.write_before_sweep(id);
                    if !planted!(ZeroRangeIgnoresInFlight) {
                        break;
                    }
                }
            }
            swept += BLOCK;
        }
        self.curve_dropped(volume, from, swept);
        // A block stands in the way. The blocks behind it are written at the same time. Then one flush of the server
        // makes all of them durable.
        cleaned = cleaned.max(swept);
        while cleaned < end && !self.work.is_spent() && self.volume(volume).writebacks < WRITEBACKS_MAX {
            self.charge(tenant, 1);
            if let Some(past) = self.cache.nothing_until(volume, cleaned / BLOCK) {
                cleaned = (past * BLOCK).min(end);
                continue;
            }
            #[cfg(test)]
            (looks += 1);
            if let Some(id) = self.cache.lookup(volume, cleaned / BLOCK)
                && self.stands_in_the_way(id, trims)
            {
                self.write_before_sweep(id);
            }
            cleaned += BLOCK;
        }
        let is_flushing = self.volume(volume).flushes.in_device;
        if swept < end
            && cleaned >= end
            && !is_flushing
            && self.cache.lookup(volume, swept / BLOCK).is_some_and(|id| self.is_kept(id))
        {
            self.flush_upstream(volume);
        }
        let range = &mut self.volume_mut(volume).ranges[at];
        (range.swept, range.cleaned) = (swept, cleaned);
        #[cfg(test)]
        {
            range.looks += looks;
        }
        swept >= end
    }

    /// Whether a block of a range must stay in the cache for now: it is in use, or the device does not have its content
    /// yet. A server counts as having it when it is durable there, since it may lose power before it zeroes the range.
    /// Trimmed content may be dropped at once, unless a flush waits for it: the flush promises it, not older content.
    fn stands_in_the_way(&self, id: BlockId, trims: bool) -> bool {
        let block = self.cache.block(id);
        let wanted =
            || self.cache.volume(block.volume).ledger.is_closed(block.dirty_epoch) && !planted!(TrimDropsFlushing);
        !block.quiet()
            || block.dirty != 0 && (!trims || wanted())
            || self.is_kept(id) && (!trims || !self.volume(block.volume).flushes.is_idle())
    }

    /// Whether a block is clean, but the server that has its content may lose it.
    fn is_kept(&self, id: BlockId) -> bool {
        let block = self.cache.block(id);
        !planted!(KeptSwept)
            && block.quiet()
            && block.dirty == 0
            && block.unsynced != 0
            && self.cache.durability.is_kept(block.volume, block.written_in)
    }

    /// A dirty block stands in the way of a range: it is written now, or at `retry_at` if its last write failed.
    fn write_before_sweep(&mut self, id: BlockId) {
        let block = self.cache.block(id);
        let retry_at = self.volume(block.volume).retry_at;
        if block.dirty == 0 || !block.quiet() {
            return;
        }
        if block.is_failing() && self.now < retry_at {
            self.poke_at(block.volume, retry_at);
        } else if self.volume(block.volume).writebacks < WRITEBACKS_MAX {
            self.write_out(id, false, false);
        }
    }

    /// The device has ended a part of a range: the next `bytes`.
    pub(crate) fn range_done(
        &mut self,
        volume: VolumeId,
        ticket: Ticket,
        bytes: u64,
        mut result: Result<(), Errno>,
        trusted: bool,
    ) {
        let ranges = &mut self.volume_mut(volume).ranges;
        let at = ranges.iter().position(|range| range.ticket == ticket).expect("a range in the device");
        let range = &mut ranges[at];
        range.in_device = false;
        if result.is_ok() && !trusted && !planted!(InFlightWriteTrusted) {
            // A device flush failed meanwhile: the work of the device may be undone, so it is repeated.
            range.distrusted += 1;
            if range.distrusted <= DISTRUST_MAX {
                return;
            }
            result = Err(Errno::Io);
        }
        range.distrusted = 0;
        match result {
            Ok(()) => {
                range.zeroed += bytes;
                let (over, asked) = (range.zeroed == range.end, range.request.is_some());
                if asked {
                    // No frame has these zeros, so they cannot be rewritten after a failed device flush: they count as
                    // evicted.
                    self.cache.durability.unsettled(volume);
                }
                if !over {
                    return;
                }
            }
            Err(error) => {
                if self.range_failed(volume, at, error) {
                    return;
                }
            }
        }
        self.range_over(volume, at, result);
    }

    fn range_over(&mut self, volume: VolumeId, at: usize, result: Result<(), Errno>) {
        let range = self.volume_mut(volume).ranges.remove(at);
        if result.is_ok() && range.op.is_some() {
            self.note_zeros(volume, &range);
        }
        self.leave_order(volume, range.ticket);
        match range.request {
            Some(request) => {
                self.requests[request].zeroes_range = false;
                self.part_done(request);
            }
            None => self.timers.wake_at(Timer::Initialise, self.now),
        }
    }

    fn note_zeros(&mut self, volume: VolumeId, range: &RangeOp) {
        let state = self.volume_mut(volume);
        // Zeros that were written count as data. So do the zeros of a sparse volume that keep their space (NO_HOLE),
        // because BLOCK_STATUS must not report them as a hole.
        if range.op == Some(Op::Punch) || range.op == Some(Op::Zero) && !state.spec.sparse {
            state.holes.dig(range.start, range.end);
            state.initialising |= state.spec.initialise && !state.holes.is_empty();
            if state.initialising {
                self.initialise_soon();
            }
        } else {
            state.holes.fill(range.start, range.end);
        }
    }

    /// The device did not do its part. True if zeros are written instead; the range keeps its place meanwhile.
    fn range_failed(&mut self, volume: VolumeId, at: usize, error: Errno) -> bool {
        let state = &mut self.table[volume];
        let range = &mut state.ranges[at];
        match range.op {
            Some(Op::Punch) if error == Errno::NotSupported => state.spec.can_punch = false,
            Some(Op::Zero) if error == Errno::NotSupported => state.spec.can_zero = false,
            _ => {}
        }
        let Some(request) = range.request else {
            state.initialising = false;
            return false;
        };
        let request = &mut self.requests[request];
        if request.kind == Kind::Trim {
            // Only the space is not released. Dirty data of the range has already been dropped, which a TRIM may do.
            return false;
        }
        // If another server is away, writing the zeros would wait for it as long again.
        let is_away = state.spec.upstream.is_some() && error != Errno::NotSupported;
        if range.fast || is_away || matches!(range.op, Some(Op::Write { .. })) {
            request.error = Some(error);
            return false;
        }
        // No frame has these zeros: after a lost session nobody would write them again.
        range.op = Some(Op::Write { durable: state.spec.upstream.is_some() });
        true
    }

    /// Gives up a place: the places that waited for it are looked at in order of arrival, as many as the step allows.
    /// The others keep their places meanwhile, so nothing overtakes them.
    fn leave_order(&mut self, volume: VolumeId, ticket: Ticket) {
        let mut freed = std::mem::take(&mut self.freed);
        self.volume_mut(volume).order.leave(ticket, &mut freed);
        let places = freed.drain(..).map(|behind| Todo::Place { volume, ticket: behind, below: ticket });
        self.agenda.extend(places);
        self.freed = freed;
        self.note_crowd(volume);
    }

    /// The place `below`, which the place `ticket` waited for, was given up.
    pub(crate) fn look_at_place(&mut self, volume: VolumeId, ticket: Ticket, below: Ticket) {
        self.charge(self.tenant_of(volume), 1);
        let freed = self.volume_mut(volume).order.look_again(ticket, below);
        match freed {
            None => self.note_crowd(volume),
            Some(Who::Range) => {
                let range = self.volume_mut(volume).ranges.iter_mut().find(|range| range.ticket == ticket);
                range.expect("a waiting range").first = true;
                self.poke(volume);
            }
            Some(Who::Reader(piece)) => {
                self.leave_order(volume, ticket);
                self.read_when_first(piece);
            }
            Some(Who::Writer(piece)) => {
                self.leave_order(volume, ticket);
                self.write_in_order(piece);
            }
        }
    }

    /// A piece of a read waits for no earlier place any more.
    fn read_when_first(&mut self, piece: u32) {
        if !self.read_in_order(piece) {
            self.wait_to_read(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::policy::{self, Settings};
    use crate::ids::{ConnId, TenantId};
    use crate::nbd::wire::{command, command_flag as flag};
    use crate::spec::{TenantSpec, VolumeSpec};
    use crate::units::SECOND;
    use crate::volume::Receive;
    use crate::volume::rig::Rig;

    const MIB: u64 = 1 << 20;
    const REFUSED: Result<(), Errno> = Err(Errno::NotSupported);

    #[test]
    fn what_waits_for_a_refused_range_waits_until_its_zeros_stand() {
        let mut rig = Rig::new();
        rig.ask(1, command::WRITE_ZEROES, 0, 0, 2 * MIB);
        rig.write(2, 0, MIB, BLOCK, 7);
        assert_eq!(rig.ops(), [Op::Zero]);
        rig.complete(0, REFUSED);
        // Zeros are written 1 MiB at a time, and the waiting write goes on after the last of them.
        for _ in 0..2 {
            assert_eq!((rig.answer(1), rig.answer(2)), (None, None));
            assert_eq!((rig.ops(), rig.io(0).len), (vec![Op::Write { durable: false }], MIB));
            rig.complete(0, Ok(()));
        }
        assert_eq!((rig.answer(1), rig.answer(2)), (Some(0), Some(0)));
        assert_eq!([rig.content(0), rig.content(MIB), rig.content(MIB + BLOCK), rig.content(2 * MIB)], [0, 7, 0, 1]);
        // The server does not request again an operation that the device cannot do.
        rig.ask(3, command::WRITE_ZEROES, 0, 0, 2 * MIB);
        assert_eq!((rig.answer(3), rig.device.len()), (Some(0), 0));
    }

    #[test]
    fn zeros_that_the_device_makes_go_in_parts_beside_others() {
        let mut rig = Rig::new();
        let settings = Settings { kind: policy::Kind::Insulated, ..*rig.volumes.route.disk.settings() };
        let other = VolumeSpec::plain(VolumeId(1), TenantId(1), MIB);
        rig.set_tenant(TenantId(1), TenantSpec::default());
        rig.open_volume(other);
        rig.event(|volumes| volumes.set_policy(settings));
        rig.attach(ConnId(2), VolumeId(1));
        let parts = |rig: &mut Rig, cookie: u64| {
            rig.ask(cookie, command::WRITE_ZEROES, 0, 0, 8 * MIB);
            let mut lens = Vec::new();
            while rig.answer(cookie).is_none() {
                if rig.ops().is_empty() {
                    // The disk idles for the tenant that was served last.
                    rig.wait(SECOND);
                }
                assert_eq!(rig.ops(), [Op::Zero]);
                lens.push(rig.io(0).len);
                rig.complete(0, Ok(()));
            }
            lens
        };
        assert_eq!(parts(&mut rig, 1), [8 * MIB], "nobody is there");
        rig.ask_as(ConnId(2), 2, command::READ, 0, 0, BLOCK);
        rig.wait(SECOND);
        rig.complete_all();
        let lens = parts(&mut rig, 3);
        assert_eq!(lens.iter().sum::<u64>(), 8 * MIB);
        assert!(lens.len() > 2 && lens.iter().all(|&len| len < 4 * MIB), "{lens:?}");
        assert!(rig.medium.iter().all(|&byte| byte == 0));
    }

    /// A raw device may have any content behind the end of a volume; a sparse file has zeros.
    #[test]
    fn what_a_volume_gains_is_empty_only_if_that_is_known() {
        let half = (crate::volume::rig::VOLUME_BYTES / 2) as u64;
        for (grows_empty, found) in [(true, 0), (false, 1)] {
            let mut rig = Rig::with(1, |spec| (spec.sparse, spec.size, spec.grows_empty) = (true, half, grows_empty));
            rig.command(|volumes| volumes.grow(VolumeId(0), 2 * half));
            assert_eq!((rig.content(half - BLOCK), rig.content(half)), (1, found));
        }
    }

    #[test]
    fn zeros_that_cannot_be_written_either_are_an_error() {
        let mut rig = Rig::new();
        rig.ask(1, command::WRITE_ZEROES, 0, 100, 2 * MIB);
        rig.complete(0, REFUSED);
        rig.complete(0, Err(Errno::NoSpace));
        assert_eq!(rig.answer(1), Some(Errno::NoSpace as u32));
        assert_eq!(rig.content(MIB), 1);
    }

    #[test]
    fn a_writer_that_waited_does_not_queue_behind_a_younger_range() {
        let mut rig = Rig::new();
        rig.ask(1, command::WRITE_ZEROES, 0, 0, MIB);
        rig.write(2, 0, MIB - BLOCK, 2 * BLOCK, 7);
        // It overlaps only the waiting write.
        rig.ask(3, command::WRITE_ZEROES, 0, MIB, MIB);
        assert_eq!(rig.ops(), [Op::Zero], "the younger range does not overtake the writer");
        rig.complete(0, Ok(()));
        assert_eq!((rig.answer(2), rig.answer(3)), (Some(0), None));
        rig.complete_all();
        assert_eq!(rig.answer(3), Some(0));
        assert_eq!([rig.content(MIB - BLOCK), rig.content(MIB)], [7, 0]);
    }

    #[test]
    fn later_requests_do_not_overtake_a_waiting_writer() {
        let mut rig = Rig::new();
        rig.ask(1, command::WRITE_ZEROES, 0, 0, MIB);
        rig.write(2, 0, MIB - BLOCK, 2 * BLOCK, 7);
        rig.write(3, 0, MIB, BLOCK, 8);
        assert_eq!(rig.answer(3), None, "it overlaps the writer, although not the range");
        rig.complete_all();
        assert_eq!([rig.content(MIB - BLOCK), rig.content(MIB)], [7, 8]);
    }

    #[test]
    fn what_cannot_be_zeroed_fast_is_refused_and_nothing_changes() {
        let mut rig = Rig::new();
        rig.ask(1, command::WRITE_ZEROES, flag::FAST_ZERO, 512, 2 * MIB);
        rig.complete(0, REFUSED);
        assert_eq!((rig.answer(1), rig.device.len()), (Some(Errno::NotSupported as u32), 0));
        // Neither the range nor its unaligned ends have changed.
        assert_eq!([rig.content(0), rig.content(MIB), rig.content(2 * MIB)], [1, 1, 1]);
        rig.ask(2, command::WRITE_ZEROES, flag::FAST_ZERO, 0, 2 * MIB);
        assert_eq!((rig.answer(2), rig.device.len()), (Some(Errno::NotSupported as u32), 0), "known from now on");
    }

    #[test]
    fn the_unaligned_ends_of_a_range_are_zeroed_too() {
        let mut rig = Rig::new();
        rig.ask(1, command::WRITE_ZEROES, flag::FUA, 512, 2 * MIB);
        rig.complete_all();
        assert_eq!(rig.answer(1), Some(0));
        let zeroed = 512..(2 * MIB + 512) as usize;
        assert!(rig.medium.iter().enumerate().all(|(at, &byte)| (byte == 0) == zeroed.contains(&at)));
    }

    #[test]
    fn a_sweep_goes_on_where_it_stood() {
        let mut rig = Rig::new();
        // Twice as many blocks in the way as there may be write-backs; no two of them are neighbours.
        let blocks = 128;
        for block in 0..blocks {
            rig.write(100 + block, 0, 2 * block * BLOCK, BLOCK, 7);
        }
        rig.ask(1, command::WRITE_ZEROES, 0, 0, MIB);
        assert_eq!(rig.device.len(), WRITEBACKS_MAX as usize, "all that is in the way is written at once");
        while rig.ops().contains(&Op::Write { durable: false }) {
            let before = rig.volumes.volume(crate::volume::rig::VOLUME).ranges[0].looks;
            rig.complete(0, Ok(()));
            let ranges = &rig.volumes.volume(crate::volume::rig::VOLUME).ranges;
            // The block that was in the way and the two up to the next one, and the same for the blocks that are
            // written ahead.
            assert!(ranges[0].looks <= before + 6, "{} looks for one completion", ranges[0].looks - before);
        }
        assert_eq!(rig.ops(), [Op::Zero]);
        rig.complete_all();
        assert_eq!((rig.answer(1), rig.content(0)), (Some(0), 0));
    }

    #[test]
    fn at_the_bound_nothing_more_is_read_from_any_client() {
        let mut rig = Rig::with(1, |spec| spec.sparse = true);
        let (first, second) = (ConnId(0), ConnId(1));
        for at in 0..RANGES_MAX as u64 {
            assert_eq!([rig.receive(first), rig.receive(second)], [Receive::Header; 2]);
            let conn = if at % 2 == 0 { first } else { second };
            rig.ask_as(conn, at, command::TRIM, 0, at % 100 * PUNCH_UNIT, PUNCH_UNIT);
        }
        assert_eq!([rig.receive(first), rig.receive(second)], [Receive::Pause; 2]);
        // Not at each operation that ends, because that takes a look at all connections.
        (1..RANGES_MAX / 2).for_each(|_| rig.complete(0, Ok(())));
        assert_eq!([rig.receive(first), rig.receive(second)], [Receive::Pause; 2]);
        rig.complete(0, Ok(()));
        assert_eq!([rig.receive(first), rig.receive(second)], [Receive::Header; 2]);
        rig.complete_all();
        assert_eq!((0..RANGES_MAX as u64).find(|&at| rig.answer(at) != Some(0)), None);
    }
}
