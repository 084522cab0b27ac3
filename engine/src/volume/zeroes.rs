//! TRIM and WRITE_ZEROES, as they arrive: what the device does ([`super::range`]), and zeros that are written as data.

use super::range::PUNCH_UNIT;
use super::{Request, Todo, Volumes};
use crate::disk::Op;
use crate::errno::Errno;
use crate::nbd::wire::command_flag as flag;
use crate::units::BLOCK;

/// Shortest WRITE_ZEROES that is left to the device on preallocated volumes.
const ZERO_RANGE_MIN: u64 = 1 << 20;

impl Volumes {
    pub(crate) fn trim_arrived(&mut self, request: u32) {
        let state = &mut self.requests[request];
        let (volume, start, end) = (state.volume, state.start, state.end);
        (state.next, state.flush_first) = (state.end, true);
        let spec = &self.volume(volume).spec;
        let unit = if spec.sparse && spec.can_punch { PUNCH_UNIT } else { BLOCK };
        let (from, to) = (start.next_multiple_of(unit), end / unit * unit);
        if from >= to || !self.may_zero(volume) {
            return self.finish(request);
        }
        if unit == PUNCH_UNIT {
            self.requests[request].active += 1;
            return self.range_arrived(volume, (from, to), (from, to), Some(Op::Punch), Some(request), false);
        }
        // Preallocated space is kept: the TRIM only drops dirty data, which then need not be written.
        self.requests[request].active += 1;
        self.range_arrived(volume, (from, to), (from, to), None, Some(request), false);
    }

    /// How the device carries out a WRITE_ZEROES, and from which byte to which. `None` if zeros are written as data.
    pub(super) fn zeroed_by_device(&self, request: u32) -> Option<(Op, u64, u64)> {
        let Request { volume, start, end, flags, .. } = self.requests[request];
        let spec = &self.volume(volume).spec;
        let punch = spec.sparse && spec.can_punch && flags & flag::NO_HOLE == 0;
        let (op, unit, least) =
            if punch { (Op::Punch, PUNCH_UNIT, PUNCH_UNIT) } else { (Op::Zero, BLOCK, ZERO_RANGE_MIN) };
        let (from, to) = (start.next_multiple_of(unit), end / unit * unit);
        let by_range = (punch || spec.can_zero) && from < to && to - from >= least && self.may_zero(volume);
        by_range.then_some((op, from, to))
    }

    /// Whether a WRITE_ZEROES must be refused: it asks for FAST_ZERO, and the device would not carry it out.
    pub(super) fn is_too_slow(&self, request: u32) -> bool {
        let Request { start, end, flags, .. } = self.requests[request];
        flags & flag::FAST_ZERO != 0 && start < end && self.zeroed_by_device(request).is_none()
    }

    pub(crate) fn zeroes_arrived(&mut self, request: u32) {
        let fast = self.requests[request].flags & flag::FAST_ZERO != 0;
        if self.is_too_slow(request) {
            self.requests[request].error = Some(Errno::NotSupported);
            return self.finish(request);
        }
        let Request { volume, start, end, .. } = self.requests[request];
        if let Some((op, from, to)) = self.zeroed_by_device(request) {
            let state = &mut self.requests[request];
            state.skip = (from, to);
            state.flush_first = true;
            (state.active, state.zeroes_range) = (state.active + 1, true);
            // Its place covers the whole request: the ends are zeroed after the device has done its part, and only
            // then.
            self.range_arrived(volume, (start, end), (from, to), Some(op), Some(request), fast);
        }
        self.go_on(request);
    }

    /// Writes the parts of a WRITE_ZEROES that are not left to the device, one piece at a time, because a piece that
    /// waits for frames may be cut. True if the step is spent and the rest is put off: the request is on the agenda
    /// then.
    pub(crate) fn zero_on(&mut self, request: u32) -> bool {
        while self.requests[request].active <= u32::from(self.requests[request].zeroes_range) {
            if self.work.is_spent() && self.requests[request].upcoming().is_some() {
                self.agenda.push_back(Todo::Request(request));
                return true;
            }
            let Some((start, end)) = self.requests[request].next_piece() else { break };
            self.requests[request].active += 1;
            let volume = self.requests[request].volume;
            let piece = self.open_piece(request, start, end);
            self.reserve_or_wait(volume, piece);
        }
        false
    }
}
