//! Checks that later writes never delay a flush. Two rules:
//!
//! ```text
//!   a flush waits                       ─► a request of its volume is in the device, or the device is full, or the
//!                                          policy makes it wait, for a limited time from its arrival
//!   … and all that it covers is written ─► the device flush is submitted within a bounded number of writes
//! ```
//!
//! The first rule finds a flush that waits for data that is not being written. The second one finds a flush that waits
//! until no dirty data is left, while clients go on writing. Whether the data that a flush covers is written is seen on
//! the medium, from what the clients know. The engine may also wait for writes whose answers are on the way, and for
//! blocks that were trimmed earlier and written again; blocks that may be such raise the bound. If the medium already
//! had the content that is written (zeros over zeros), the write is not visible. So nothing is reported while a write
//! that may be for the flush is in the device.

use std::collections::BTreeSet;

use engine::ids::IoId;
use engine::units::Nanos;

use crate::Verdict;
use crate::history::{History, Step};
use crate::medium::Medium;

/// Maximum number of writes that the engine may have queued for a full device before it can flush: its own bound of
/// write-backs, plus durable writes.
const WRITES_QUEUED_MAX: u64 = 128;

/// A waiting flush.
#[derive(Debug)]
struct Waiting {
    start: Step,
    since: Nanos,
    /// Blocks that must still be written for it.
    missing: BTreeSet<u64>,
    /// Device writes that may still be submitted before the device flush.
    writes_left: u64,
    /// Writes in the device that may be for it. Their content may already be on the medium, and is then not missing.
    older: BTreeSet<IoId>,
    /// Writes that were submitted while there were no older ones, and that may have been queued for the flush. `None`
    /// when they have become the older ones.
    queued: Option<BTreeSet<IoId>>,
}

impl Waiting {
    /// One more write is submitted before the device flush. False if it exceeds the bound.
    fn submitted(&mut self, io: IoId) -> bool {
        if !self.missing.is_empty() {
            self.older.insert(io);
        }
        if !self.older.is_empty() {
            return true;
        }
        if self.writes_left == 0
            && let Some(queued) = self.queued.take()
        {
            (self.older, self.writes_left) = (queued, WRITES_QUEUED_MAX);
            return true;
        }
        if let Some(queued) = &mut self.queued {
            queued.insert(io);
        }
        let left = self.writes_left.checked_sub(1);
        self.writes_left = left.unwrap_or(0);
        left.is_some()
    }
}

/// The flushes of one volume that wait for a device flush.
#[derive(Default, Debug)]
pub struct Promptness {
    waiting: Vec<Waiting>,
    /// Writes in the device.
    writing: BTreeSet<IoId>,
}

impl Promptness {
    /// A client's flush arrives, as step `start`, at the time `since`.
    pub fn flush_arrived(&mut self, history: &History, medium: &Medium, start: Step, since: Nanos) {
        let missing = history.missing(medium, start);
        let writes_left = WRITES_QUEUED_MAX + 8 * history.unclear_blocks();
        self.waiting.push(Waiting {
            start,
            since,
            missing,
            writes_left,
            older: self.writing.clone(),
            queued: Some(BTreeSet::new()),
        });
    }

    /// The device wrote blocks.
    pub fn written(&mut self, blocks: std::ops::Range<u64>, history: &History, medium: &Medium) {
        for waiting in &mut self.waiting {
            let start = waiting.start;
            waiting.missing.retain(|block| !blocks.contains(block) || history.is_missing(*block, medium, start));
        }
    }

    /// A device write is submitted; `flushing` says whether a device flush of the volume is in the device.
    pub fn write_submitted(&mut self, io: IoId, flushing: bool) -> Verdict {
        self.writing.insert(io);
        let mut waiting = self.waiting.iter_mut().filter(|_| !flushing);
        match waiting.find_map(|waiting| (!waiting.submitted(io)).then_some(waiting.start)) {
            Some(start) => {
                Err(format!("the flush of step {start} is delayed: all that it wants is written, but so is more"))
            }
            None => Ok(()),
        }
    }

    /// A device write has completed, successfully or not.
    pub fn write_completed(&mut self, io: IoId) {
        self.writing.remove(&io);
        for waiting in &mut self.waiting {
            waiting.older.remove(&io);
            waiting.queued.iter_mut().for_each(|queued| _ = queued.remove(&io));
        }
    }

    /// A device flush is submitted: flushes whose blocks are all written wait only for it.
    pub fn flush_submitted(&mut self) {
        self.waiting.retain(|waiting| !waiting.missing.is_empty());
    }

    /// Stops checking the waiting flushes.
    pub fn forget(&mut self) {
        self.waiting.clear();
    }

    /// The start of the oldest waiting flush, and the time of it.
    pub fn oldest(&self) -> Option<(Step, Nanos)> {
        self.waiting.first().map(|waiting| (waiting.start, waiting.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell;
    use crate::medium::{Content, Fate};
    use std::rc::Rc;

    #[test]
    fn a_flush_may_wait_for_what_was_written_before_it_only() {
        let (mut history, mut medium, mut promptness) = (History::default(), Medium::default(), Promptness::default());
        history.begin_write(1, 0..4, 1);
        history.acknowledge(1, 0..4, 2, false, 2);
        promptness.flush_arrived(&history, &medium, 3, 7);
        let last = WRITES_QUEUED_MAX as u32 + 1;
        for io in 0..=last {
            promptness.write_submitted(IoId(io), false).expect("its block is not written");
        }
        let mut data = vec![0; 512];
        cell::fill(1, 0, &mut data);
        medium.write(0, Content::new(&Rc::new(data), 0), Fate::Volatile, 1);
        promptness.written(0..1, &history, &medium);
        (0..last).for_each(|io| promptness.write_completed(IoId(io)));
        // Writes come and complete: how many until there are too many, of a thousand.
        let submitted = |promptness: &mut Promptness| {
            let well = (1000..2000).take_while(|&io| {
                let verdict = promptness.write_submitted(IoId(io), false);
                promptness.write_completed(IoId(io));
                verdict.is_ok()
            });
            well.count() as u64
        };
        assert_eq!(submitted(&mut promptness), 1000, "an older one may be for it, and lasts");
        promptness.write_completed(IoId(last));
        promptness.write_submitted(IoId(0), false).expect("it may have been queued for the flush");
        assert_eq!(submitted(&mut promptness), 1000, "that one lasts");
        promptness.write_completed(IoId(0));
        assert_eq!(submitted(&mut promptness), WRITES_QUEUED_MAX);
        assert_eq!(promptness.oldest(), Some((3, 7)));
        promptness.flush_submitted();
        assert_eq!(promptness.oldest(), None);
    }
}
