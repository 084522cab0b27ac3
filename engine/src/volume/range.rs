//! Operations on ranges: TRIM, WRITE_ZEROES of 1 MiB and more, and the initialising of never-written space. They are
//! intervals, never lists of blocks.
//!
//! ```text
//!   arrives ─► sweep: drop the range's cached blocks, wait where one is in use ─► device ─► hole dug, waiters go on
//!                     pieces that arrive meanwhile and overlap wait
//! ```
//!
//! Dirty blocks are written before they are dropped, unless they are trimmed. If the device cannot do it, the range is
//! zeroed by ordinary writes of zeros.

use std::collections::VecDeque;

use super::writeback::WRITEBACKS_MAX;
use crate::cache::{BlockId, FrameId};
use crate::disk::{Op, Purpose, Segment, VolumeId};
use crate::nbd::{Errno, Kind};
use crate::server::Server;
use crate::units::{BLOCK, MILLISECOND};

/// WRITE_ZEROES from this length on is left to the device on preallocated volumes (design, section 8).
const ZERO_RANGE_MIN: u64 = 1 << 20;
/// Sparse volumes give space back in aligned units of this many bytes (design, section 8).
const PUNCH_UNIT: u64 = 64 << 10;
/// Bytes of one step of initialising: long enough to stream, short enough that a request which comes meanwhile waits
/// a few milliseconds at most on a disk.
const INITIALISE_BYTES: u64 = 1 << 20;
/// Blocks that a sweep looks at before others get their turn: about 0.3 ms.
const SWEEP_BLOCKS: u64 = 16 * 1024;

/// An operation on a range, waiting or in the device.
#[derive(Debug)]
pub(crate) struct RangeOp {
    id: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
    op: Op,
    /// Whose; `None` for initialising.
    request: Option<u32>,
    /// The first byte whose block is not swept yet.
    swept: u64,
    in_device: bool,
    /// Pieces that wait for it, in order of arrival.
    pub(crate) waiters: VecDeque<u32>,
}

impl Server {
    pub(crate) fn trim_arrived(&mut self, request: u32) {
        let state = &mut self.requests[request];
        let (volume, start, end) = (state.volume, state.start, state.end);
        (state.next, state.flush_first) = (state.end, true);
        let spec = &self.volume(volume).spec;
        let unit = if spec.sparse && spec.can_punch { PUNCH_UNIT } else { BLOCK };
        let (from, to) = (start.next_multiple_of(unit), end / unit * unit);
        if from >= to {
            return self.finish(request);
        }
        if unit == PUNCH_UNIT {
            self.requests[request].active += 1;
            return self.range_arrived(volume, from, to, Op::Punch, Some(request));
        }
        // Preallocated space is kept: only what was not written yet is saved from being written. A block in use stays as
        // it is, and so does one that a flush is waiting for: its older content was not promised.
        self.cache.for_each(volume, from / BLOCK, to / BLOCK, |cache, id| {
            let block = cache.block(id);
            let wanted = block.dirty != 0 && cache.volume(volume).ledger.is_closed(block.dirty_epoch);
            if block.quiet() && (!wanted || planted!(TrimDropsFlushing)) {
                cache.drop_block(id);
            }
        });
        self.finish(request);
    }

    pub(crate) fn zeroes_arrived(&mut self, request: u32, no_hole: bool, fast: bool) {
        let state = &self.requests[request];
        let (volume, start, end) = (state.volume, state.start, state.end);
        let spec = &self.volume(volume).spec;
        let punch = spec.sparse && spec.can_punch && !no_hole;
        let (unit, least) = if punch { (PUNCH_UNIT, PUNCH_UNIT) } else { (BLOCK, ZERO_RANGE_MIN) };
        let (from, to) = (start.next_multiple_of(unit), end / unit * unit);
        let by_range = (punch || spec.can_zero) && from < to && to - from >= least;
        if fast && !by_range && start < end {
            self.requests[request].error = Some(Errno::NotSupported);
            return self.finish(request);
        }
        if by_range {
            let state = &mut self.requests[request];
            state.skip = (from, to);
            state.flush_first = true;
            state.active += 1;
            self.range_arrived(volume, from, to, if punch { Op::Punch } else { Op::Zero }, Some(request));
        }
        self.go_on(request);
    }

    /// Writes what a WRITE_ZEROES does not leave to the device, a piece at a time.
    pub(crate) fn zero_on(&mut self, request: u32) {
        let ranges = u32::from(self.requests[request].skip.1 > 0);
        while self.requests[request].active <= ranges {
            let Some((start, end)) = self.requests[request].next_piece() else { break };
            self.requests[request].active += 1;
            let volume = self.requests[request].volume;
            let piece = self.open_piece(request, start, end);
            self.reserve_or_wait(volume, piece);
        }
    }

    fn range_arrived(&mut self, volume: VolumeId, start: u64, end: u64, op: Op, request: Option<u32>) {
        let ranges = &mut self.volume_mut(volume).ranges;
        let id = ranges.iter().map(|range| range.id + 1).max().unwrap_or(0);
        ranges.push(RangeOp { id, start, end, op, request, swept: start, in_device: false, waiters: VecDeque::new() });
        self.poke(volume);
    }

    /// Range operations go on: sweep, then to the device. One that overlaps an earlier one waits for it.
    pub(crate) fn ranges_on(&mut self, volume: VolumeId) {
        for at in 0..self.volume(volume).ranges.len() {
            let ranges = &self.volume(volume).ranges;
            let range = &ranges[at];
            let overlaps = ranges[..at].iter().any(|earlier| earlier.start < range.end && range.start < earlier.end);
            if range.in_device || overlaps {
                continue;
            }
            let (id, start, end, op, initialising) =
                (range.id, range.start, range.end, range.op, range.request.is_none());
            if !self.sweep(volume, at) {
                continue;
            }
            self.volume_mut(volume).ranges[at].in_device = true;
            let tenant = self.tenant_of(volume);
            let io = self.device.prepare(op, volume, tenant, Purpose::Range(id));
            self.device.slot_mut(io).io.offset = start;
            if initialising {
                for _ in 0..(end - start) / BLOCK {
                    self.device.add_segment(io, Segment::whole(FrameId::ZERO));
                }
            } else {
                self.device.slot_mut(io).io.len = end - start;
            }
            self.submit(io);
        }
    }

    /// Drops the cached blocks of a range. False if one is in use, or waited for by a flush, or if there are many.
    ///
    /// What is dirty is written first, unless it is trimmed: until the device has zeroed the range it may be read by
    /// nobody, but a flush or a power cut may want it, and the device may fail.
    fn sweep(&mut self, volume: VolumeId, at: usize) -> bool {
        let range = &self.volume(volume).ranges[at];
        let (mut swept, end) = (range.swept, range.end);
        let trims = range.request.is_some_and(|request| self.requests[request].kind == Kind::Trim);
        if self.cache.cached_blocks(volume) == 0 {
            swept = end;
        }
        let stop = end.min(swept + SWEEP_BLOCKS * BLOCK);
        let (mut looked, mut free) = (swept, true);
        while looked < stop {
            if let Some(id) = self.cache.lookup(volume, looked / BLOCK) {
                let block = self.cache.block(id);
                let wanted = block.dirty != 0 && self.cache.volume(volume).ledger.is_closed(block.dirty_epoch);
                if !block.quiet() || wanted || block.dirty != 0 && !trims {
                    self.write_before_sweep(id);
                    free = planted!(ZeroRangeIgnoresInFlight) && free;
                } else if free {
                    self.cache.drop_block(id);
                }
            }
            looked += BLOCK;
            if free {
                swept = looked;
            }
        }
        self.volume_mut(volume).ranges[at].swept = swept;
        if free && swept < end {
            // The rest when others had their turn.
            self.wake_at(self.now);
        }
        swept >= end
    }

    /// A dirty block stands in the way of a range: it is written now, or when its last failure is a while ago.
    fn write_before_sweep(&mut self, id: BlockId) {
        let block = self.cache.block(id);
        let retry_at = self.volume(block.volume).retry_at;
        if block.dirty == 0 || !block.quiet() {
            return;
        }
        if block.failing && self.now < retry_at {
            self.wake_at(retry_at);
        } else if self.volume(block.volume).writebacks < WRITEBACKS_MAX {
            self.write_out(id, false);
        }
    }

    /// The device is done with a range.
    pub(crate) fn range_done(&mut self, volume: VolumeId, id: u32, result: Result<(), Errno>) {
        let ranges = &mut self.volume_mut(volume).ranges;
        let at = ranges.iter().position(|range| range.id == id).expect("a range in the device");
        let mut range = ranges.remove(at);
        let state = self.volume_mut(volume);
        match (result, range.request) {
            (Ok(()), None) => state.holes.fill(range.start, range.end),
            (Ok(()), Some(_)) => {
                // A sparse volume's zeros that were to keep their space count as data: BLOCK_STATUS must not call them a hole.
                if range.op == Op::Punch || !state.spec.sparse {
                    state.holes.dig(range.start, range.end);
                    state.initialising |= state.spec.initialise && !state.holes.is_empty();
                }
                // If a later device flush fails, this cannot be done again: it counts as evicted.
                let cached = self.cache.volume_mut(volume);
                cached.evicted = cached.generation;
            }
            (Err(_), None) => state.initialising = false,
            (Err(error), Some(request)) => self.range_failed(request, range.op, error),
        }
        for piece in range.waiters.drain(..) {
            self.go_on_after_range(piece);
        }
        match range.request {
            Some(request) => self.part_done(request),
            None => self.wake_at(self.now),
        }
    }

    /// Zeros are written instead; a failed TRIM has only failed to give space back.
    fn range_failed(&mut self, request: u32, op: Op, error: Errno) {
        let state = &mut self.requests[request];
        if state.kind == Kind::Trim {
            // What was dirty there is dropped already, which a trim may do.
            return;
        }
        state.next = state.start;
        state.skip = (0, 0);
        let volume = state.volume;
        if error == Errno::NotSupported {
            let spec = &mut self.volume_mut(volume).spec;
            match op {
                Op::Punch => spec.can_punch = false,
                _ => spec.can_zero = false,
            }
        }
    }

    fn go_on_after_range(&mut self, piece: u32) {
        let request = self.pieces[piece].request;
        match self.requests[request].kind {
            Kind::Read | Kind::Cache => {
                if !self.begin_read(piece) {
                    let tenant = self.tenant_of(self.requests[request].volume);
                    self.pieces[piece].waiting_since = self.now;
                    self.waiting_of(tenant).reads.push_back(piece);
                    self.poke_tenant(tenant);
                }
            }
            _ => self.write_piece(piece),
        }
    }

    /// Zero-writes some never-written space if nobody has asked for anything for a while.
    pub(crate) fn initialise(&mut self, volume: VolumeId) {
        let state = self.volume(volume);
        if !state.initialising || state.closing.is_some() || self.draining.is_some() {
            return;
        }
        let Some(hole) = state.holes.first(INITIALISE_BYTES) else {
            self.volume_mut(volume).initialising = false;
            return;
        };
        let quiet_at = self.last_request_at + self.config.idle_ns;
        if self.now < quiet_at || !self.device.is_idle() || !self.agenda_has_no_ranges() {
            // Somebody is at work. Ask again after the idle time, not at each request.
            return self.wake_at(quiet_at.max(self.now + 20 * MILLISECOND));
        }
        self.range_arrived(volume, hole.start, hole.end, Op::Write { durable: false }, None);
    }

    fn agenda_has_no_ranges(&self) -> bool {
        self.volumes.iter().flatten().all(|volume| volume.ranges.is_empty())
    }
}
