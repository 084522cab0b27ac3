//! What went wrong in the device for one volume, and which errors that excuses: a failed read those who wanted its
//! blocks, what is not on the medium those to whom that was promised. Nothing else.
//!
//! ```text
//!   write fails ─► its sectors are broken ─────────────► written well, or the loss is accepted
//!                  flush, FUA, full partitions may fail      … as those may that were under way then
//!   flush fails ─► in doubt until one succeeds: something may be lost
//! ```
//!
//! The downside: what a TRIM drops stays broken here, and whether something is lost for good (it was evicted before the
//! flush failed) only the engine knows; so a flush that fails again after a failed one is believed.

use std::collections::BTreeMap;

use engine::disk::{Io, Op};
use engine::units::{BLOCK, SECTOR};

use crate::history::Step;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// Of these bytes: first, past the last.
    Read(u64, u64),
    /// Something was not on the medium, or ceased to be so.
    Missing,
}

/// The troubles of one volume since the last power cut.
#[derive(Default, Debug)]
pub struct Trouble {
    past: Vec<(Step, What)>,
    /// Sectors whose last write failed, since when.
    broken: BTreeMap<u64, Step>,
    /// The last flush failed.
    in_doubt: bool,
}

impl Trouble {
    /// Whether anything ever went wrong.
    pub fn ever(&self) -> bool {
        !self.past.is_empty()
    }

    /// A device request is complete.
    pub fn completed(&mut self, step: Step, io: &Io, good: bool) {
        let (from, to) = (io.offset, io.offset + io.len);
        // Zeroing never-written space in idle time promises nothing.
        let idle = io.segments.iter().all(|segment| segment.frame == engine::cache::FrameId::ZERO);
        match (io.op, good) {
            (Op::Read, false) => self.past.push((step, What::Read(from, to))),
            (Op::Write { .. }, false) if !idle => {
                self.past.push((step, What::Missing));
                // What failed before and is tried in vain has been broken for longer.
                (from / SECTOR..to / SECTOR).for_each(|sector| _ = self.broken.entry(sector).or_insert(step));
            }
            (Op::Flush, false) => {
                self.past.push((step, What::Missing));
                self.in_doubt = true;
            }
            (Op::Write { .. } | Op::Zero | Op::Punch, true) => {
                let mended: Vec<u64> =
                    self.broken.range(from / SECTOR..to / SECTOR).map(|(sector, _)| *sector).collect();
                self.mend(step, &mended);
            }
            // A range that cannot be zeroed is written; what failed is not counted as anybody's.
            (Op::Zero | Op::Punch | Op::Write { .. }, false) => self.past.push((step, What::Read(0, 0))),
            (Op::Read | Op::Flush, true) => {}
        }
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

    /// The loss is accepted, but for blocks in which something is going on.
    pub fn accepted(&mut self, step: Step, in_use: impl Fn(u64) -> bool) {
        let free: Vec<u64> = self.broken.keys().copied().filter(|sector| !in_use(sector * SECTOR / BLOCK)).collect();
        self.mend(step, &free);
        if std::mem::take(&mut self.in_doubt) {
            self.past.push((step, What::Missing));
        }
    }

    /// Whether a read of `len` bytes at `offset`, since `start`, may fail.
    pub fn excuses_read(&self, start: Step, offset: u64, len: u64) -> bool {
        let (from, to) = (offset / BLOCK * BLOCK, (offset + len).next_multiple_of(BLOCK));
        let touches = |what| matches!(what, What::Read(a, b) if a < to && from < b);
        self.past.iter().any(|&(step, what)| step >= start && touches(what))
    }

    /// Whether something was missing on the medium, at some time since `start`, that could not be written: a write that
    /// finds no room may fail.
    pub fn excuses_write(&self, start: Step) -> bool {
        !self.broken.is_empty() || self.past.iter().any(|&(step, what)| step >= start && what == What::Missing)
    }

    /// Whether a flush, or a write that is to be durable, may fail.
    pub fn excuses_flush(&self, start: Step) -> bool {
        self.in_doubt || self.excuses_write(start)
    }

    /// Sectors that have been broken since before `start`: a flush, or a durable write, must fail for them.
    pub fn broken_before(&self, start: Step) -> impl Iterator<Item = u64> {
        self.broken.iter().filter(move |&(_, &since)| since < start).map(|(sector, _)| *sector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::cache::FrameId;
    use engine::disk::{Segment, VolumeId};

    fn io(op: Op, block: u64) -> Io {
        let segments = vec![Segment::whole(FrameId(1))];
        Io { op, volume: VolumeId(0), offset: block * BLOCK, len: BLOCK, segments }
    }

    #[test]
    fn a_failed_read_excuses_those_who_wanted_it() {
        let mut trouble = Trouble::default();
        trouble.completed(5, &io(Op::Read, 3), false);
        assert!(trouble.excuses_read(4, 3 * BLOCK + 100, 10) && trouble.excuses_read(5, 2 * BLOCK, BLOCK + 1));
        assert!(!trouble.excuses_read(6, 3 * BLOCK, 10), "it came later");
        assert!(!trouble.excuses_read(4, 4 * BLOCK, 10), "it wanted something else");
        assert!(!trouble.excuses_flush(4));
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
        trouble.accepted(10, |block| block == 3);
        assert!(trouble.excuses_flush(11), "it was in use");
        trouble.accepted(12, |_| false);
        assert!(!trouble.excuses_flush(13));
    }

    #[test]
    fn a_failed_flush_leaves_doubt_until_one_succeeds() {
        let mut trouble = Trouble::default();
        trouble.completed(5, &io(Op::Flush, 0), false);
        trouble.flushed(4, 6);
        assert!(trouble.excuses_flush(100), "that one began before");
        trouble.flushed(6, 8);
        assert!(trouble.excuses_flush(8) && !trouble.excuses_flush(9));
    }
}
