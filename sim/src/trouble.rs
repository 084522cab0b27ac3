//! The device failures that concern one volume, and the errors that they explain. A failed read explains errors of
//! requests that need its blocks. Zeros that could not be made explain errors of requests for them. Data that is
//! missing on the medium explains errors of requests that promise it there. No other error is permitted.
//!
//! ```text
//!   write fails ─► its sectors are broken ─────────────► written successfully, or the loss is accepted: requests
//!                  flush, FUA, full partitions may fail      that were in progress by then may still fail
//!   flush or durable write of any volume on the device fails ─► in doubt until a flush succeeds: data may be lost
//! ```
//!
//! Downside: sectors that a TRIM drops, or whose loss is accepted, may stay broken here for ever (they explain errors,
//! but no request must fail because of them). Only the engine knows whether data is lost for good (it was evicted
//! before the flush failed), so a flush that fails after a failed one is believed.

use std::collections::BTreeMap;

use engine::disk::{Io, Op};
use engine::units::{BLOCK, SECTOR};

use crate::history::Step;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// A read of these bytes failed: first, past the last.
    Read(u64, u64),
    /// The device did not zero these bytes.
    Zeroing(u64, u64),
    /// Zeros could not be written there either.
    Zeros(u64, u64),
    /// Data was missing on the medium, or ceased to be missing.
    Missing,
}

/// A sector whose last write failed.
#[derive(Clone, Copy, Debug)]
struct Broken {
    since: Step,
    /// When a write of it last failed.
    last: Step,
    /// The data that could not be written may have been dropped, by a TRIM or because its loss was accepted. No request
    /// must fail because of it.
    dropped: bool,
}

/// The failures that concern one volume since the last power cut.
#[derive(Default, Debug)]
pub struct Trouble {
    past: Vec<(Step, What)>,
    /// Sectors whose last write failed.
    broken: BTreeMap<u64, Broken>,
    /// A flush or a durable write of the device failed. Since then no flush succeeded, and no loss was accepted.
    in_doubt: bool,
    /// When a flush of the device last failed.
    failed_at: Step,
}

impl Trouble {
    /// Whether there ever was a failure.
    pub fn ever(&self) -> bool {
        !self.past.is_empty()
    }

    /// A device request is complete.
    pub fn completed(&mut self, step: Step, io: &Io, good: bool) {
        let (from, to) = (io.offset, io.offset + io.len);
        // Zeros that no client wrote: a range that the device cannot zero, or initialisation in idle time.
        let zeros = io.segments.iter().all(|segment| segment.frame == engine::ids::FrameId::ZERO);
        match (io.op, good) {
            (Op::Read, false) => self.past.push((step, What::Read(from, to))),
            (Op::Write { .. }, false) if !zeros => {
                self.past.push((step, What::Missing));
                // A sector that failed before and fails again has been broken since the first failure.
                let new = Broken { since: step, last: step, dropped: false };
                for sector in from / SECTOR..to / SECTOR {
                    self.broken
                        .entry(sector)
                        .and_modify(|old| *old = if old.dropped { new } else { Broken { last: step, ..*old } })
                        .or_insert(new);
                }
            }
            (Op::Flush, false) => {}
            (Op::Write { .. } | Op::Zero | Op::Punch, true) => {
                let mended: Vec<u64> =
                    self.broken.range(from / SECTOR..to / SECTOR).map(|(sector, _)| *sector).collect();
                self.mend(step, &mended);
            }
            (Op::Zero | Op::Punch, false) => self.past.push((step, What::Zeroing(from, to))),
            (Op::Write { .. }, false) => self.past.push((step, What::Zeros(from, to))),
            (Op::Read | Op::Flush, true) => {}
        }
    }

    /// A flush of the device or a durable write failed, of this volume or another one.
    pub fn device_failed(&mut self, step: Step) {
        self.past.push((step, What::Missing));
        (self.in_doubt, self.failed_at) = (true, step);
    }

    /// A TRIM of `len` bytes at `offset` arrived or ended.
    pub fn trimmed(&mut self, offset: u64, len: u64) {
        let sectors = offset / SECTOR..offset.saturating_add(len).div_ceil(SECTOR);
        self.broken.range_mut(sectors).for_each(|(_, broken)| broken.dropped = true);
    }

    fn mend(&mut self, step: Step, sectors: &[u64]) {
        sectors.iter().for_each(|sector| _ = self.broken.remove(sector));
        if !sectors.is_empty() {
            self.past.push((step, What::Missing));
        }
    }

    /// A client's flush that started at `start` succeeded: nothing is lost.
    pub fn flushed(&mut self, start: Step, step: Step) {
        let last = self.past.iter().rev().find(|(_, what)| *what == What::Missing);
        if self.in_doubt && last.is_none_or(|&(failed, _)| failed < start) {
            self.in_doubt = false;
            self.past.push((step, What::Missing));
        }
    }

    /// The loss as of `asked` is accepted; later failures are another loss. A sector stays broken if its block is in
    /// use, or if a write of it has failed since `asked`: that may have been newer data.
    pub fn accepted(&mut self, asked: Step, step: Step, in_use: impl Fn(u64) -> bool) {
        let accepted = self.broken.iter_mut().filter(|(_, broken)| broken.since < asked);
        let free = |sector: &u64, broken: &Broken| broken.last < asked && !in_use(sector * SECTOR / BLOCK);
        let mut mended = Vec::new();
        for (sector, broken) in accepted {
            broken.dropped = true;
            if free(sector, broken) {
                mended.push(*sector);
            }
        }
        self.mend(step, &mended);
        if self.failed_at < asked && std::mem::take(&mut self.in_doubt) {
            self.past.push((step, What::Missing));
        }
    }

    /// Whether a read of `len` bytes at `offset` (which may be far beyond the volume's end) since `start` may fail.
    pub fn excuses_read(&self, start: Step, offset: u64, len: u64) -> bool {
        let (from, to) = (offset / BLOCK * BLOCK, offset.saturating_add(len).div_ceil(BLOCK).saturating_mul(BLOCK));
        let touches = |what| matches!(what, What::Read(a, b) if a < to && from < b);
        self.past.iter().any(|&(step, what)| step >= start && touches(what))
    }

    /// Whether a WRITE_ZEROES of `len` bytes at `offset` since `start` may fail. A range that the device cannot zero is
    /// written, so that write must have failed too, except with `fast`.
    pub fn excuses_zeroes(&self, start: Step, offset: u64, len: u64, fast: bool) -> bool {
        let (from, to) = (offset, offset.saturating_add(len));
        self.past.iter().any(|&(step, what)| match what {
            What::Zeroing(a, b) => step >= start && fast && a < to && from < b,
            What::Zeros(a, b) => step >= start && a < to && from < b,
            What::Read(..) | What::Missing => false,
        })
    }

    /// Whether data was missing on the medium, at some time since `start`, because it could not be written: then a
    /// write that gets no frames may fail.
    pub fn excuses_write(&self, start: Step) -> bool {
        !self.broken.is_empty() || self.past.iter().any(|&(step, what)| step >= start && what == What::Missing)
    }

    /// Whether a flush or a durable write since `start` may fail.
    pub fn excuses_flush(&self, start: Step) -> bool {
        self.in_doubt || self.excuses_write(start)
    }

    /// Sectors that have been broken since before `start`: a flush or a durable write must fail because of them.
    pub fn broken_before(&self, start: Step) -> impl Iterator<Item = u64> {
        let counts = move |broken: &Broken| broken.since < start && !broken.dropped;
        self.broken.iter().filter(move |(_, broken)| counts(broken)).map(|(sector, _)| *sector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::disk::Segment;
    use engine::ids::{FrameId, VolumeId};

    fn io(op: Op, block: u64) -> Io {
        let segments = vec![Segment::whole(FrameId(1))];
        Io { op, volume: VolumeId(0), offset: block * BLOCK, len: BLOCK, segments, head: Vec::new() }
    }

    #[test]
    fn a_failed_read_excuses_those_who_wanted_it() {
        let mut trouble = Trouble::default();
        trouble.completed(5, &io(Op::Read, 3), false);
        assert!(trouble.excuses_read(4, 3 * BLOCK + 100, 10) && trouble.excuses_read(5, 2 * BLOCK, BLOCK + 1));
        assert!(!trouble.excuses_read(6, 3 * BLOCK, 10), "it came later");
        assert!(!trouble.excuses_read(4, 4 * BLOCK, 10), "it wanted something else");
        assert!(!trouble.excuses_read(4, u64::MAX - 10, 100), "it wanted what no volume has");
        assert!(!trouble.excuses_flush(4));
    }

    #[test]
    fn zeros_may_fail_when_they_can_be_made_in_no_way() {
        let mut trouble = Trouble::default();
        let excuses = |trouble: &Trouble, block, fast| trouble.excuses_zeroes(5, block * BLOCK, BLOCK, fast);
        trouble.completed(5, &Io { segments: Vec::new(), ..io(Op::Zero, 3) }, false);
        assert!(!excuses(&trouble, 3, false), "they are to be written then");
        assert!(excuses(&trouble, 3, true) && !excuses(&trouble, 4, true));
        let zeros = vec![Segment::whole(FrameId::ZERO)];
        trouble.completed(6, &Io { segments: zeros, ..io(Op::Write { durable: false }, 3) }, false);
        assert!(excuses(&trouble, 3, false) && !excuses(&trouble, 4, false));
        assert!(!trouble.excuses_zeroes(7, 3 * BLOCK, BLOCK, false), "it came later");
        assert!(!trouble.excuses_flush(1) && !trouble.excuses_read(1, 3 * BLOCK, 10));
    }

    #[test]
    fn a_failed_write_excuses_flushes_until_it_is_mended() {
        let mut trouble = Trouble::default();
        let write = io(Op::Write { durable: false }, 3);
        trouble.completed(5, &write, false);
        assert!(trouble.excuses_flush(100) && !trouble.excuses_read(1, 3 * BLOCK, 10));
        assert_eq!((trouble.broken_before(5).count(), trouble.broken_before(6).count()), (0, 8));
        trouble.completed(7, &write, true);
        assert!(trouble.excuses_flush(7) && !trouble.excuses_flush(8));
        trouble.completed(9, &write, false);
        trouble.accepted(10, 10, |block| block == 3);
        assert!(trouble.excuses_flush(11), "it was in use");
        assert_eq!(trouble.broken_before(11).count(), 0, "and nobody must fail for what may have been dropped");
        trouble.accepted(12, 12, |_| false);
        assert!(!trouble.excuses_flush(13));
    }

    #[test]
    fn what_fails_after_a_loss_was_to_be_accepted_is_another_loss() {
        let write = |block| io(Op::Write { durable: false }, block);
        let mut trouble = Trouble::default();
        trouble.completed(5, &write(3), false);
        // The loss of block 3 is accepted at step 7, answered at step 9; block 4 fails in between.
        trouble.completed(8, &write(4), false);
        trouble.accepted(7, 9, |_| false);
        assert!(trouble.excuses_flush(10));
        assert!(trouble.broken_before(10).eq(4 * BLOCK / SECTOR..5 * BLOCK / SECTOR), "a flush must fail for block 4");
        trouble.accepted(11, 11, |_| false);
        assert!(!trouble.excuses_flush(12));
        // A write that fails again in between may be of newer data, or the last retry of the data that is given up.
        trouble.completed(13, &write(3), false);
        trouble.completed(15, &write(3), false);
        trouble.accepted(14, 16, |_| false);
        assert!(trouble.excuses_flush(17));
        assert_eq!(trouble.broken_before(17).count(), 0);
    }

    #[test]
    fn nobody_must_fail_for_what_was_trimmed() {
        let mut trouble = Trouble::default();
        let write = io(Op::Write { durable: false }, 3);
        trouble.completed(5, &write, false);
        trouble.trimmed(3 * BLOCK, SECTOR);
        assert_eq!(trouble.broken_before(6).count(), 7);
        assert!(trouble.excuses_flush(100), "it may still fail");
        trouble.completed(7, &write, false);
        assert_eq!((trouble.broken_before(7).count(), trouble.broken_before(8).count()), (7, 8));
    }

    #[test]
    fn a_failed_flush_leaves_doubt_until_one_succeeds() {
        let mut trouble = Trouble::default();
        trouble.device_failed(5);
        trouble.flushed(4, 6);
        assert!(trouble.excuses_flush(100), "that one began before");
        trouble.flushed(6, 8);
        assert!(trouble.excuses_flush(8) && !trouble.excuses_flush(9));
    }
}
