//! Later writes never delay a flush. Two rules, neither of which needs a clock:
//!
//! ```text
//!   a flush waits            ─► something of its volume is in the device, or the device is full
//!   … and all it wants is written ─► the device is asked to flush, within a few more writes
//! ```
//!
//! The first finds a flush that waits for what nobody is writing; the second one that waits until there is nothing to
//! write, while others go on writing. What was wanted is seen on the medium, by what the clients know. The engine also
//! waits for writes whose answers are under way, and for blocks that were trimmed earlier and written again: what may be
//! such is added to what "a few" is.

use std::collections::BTreeSet;

use crate::Verdict;
use crate::history::{History, Step};
use crate::medium::Medium;

/// Writes that the engine may have given to the queue of a full device before it can flush: its own bound of
/// write-backs, and durable writes besides.
const WRITES_QUEUED_MAX: u64 = 128;

/// A flush that waits.
#[derive(Debug)]
struct Waiting {
    start: Step,
    /// Blocks that are still to be written for it.
    missing: BTreeSet<u64>,
    /// Device writes that may still be submitted before the device flush.
    writes_left: u64,
}

/// The flushes of one volume that wait for a device flush.
#[derive(Default, Debug)]
pub struct Promptness {
    waiting: Vec<Waiting>,
}

impl Promptness {
    /// A client's flush arrives.
    pub fn flush_arrived(&mut self, history: &History, medium: &Medium, start: Step) {
        let missing = history.missing(medium, start);
        let writes_left = WRITES_QUEUED_MAX + 8 * history.unclear_blocks();
        self.waiting.push(Waiting { start, missing, writes_left });
    }

    /// The device wrote blocks.
    pub fn written(&mut self, blocks: std::ops::Range<u64>, history: &History, medium: &Medium) {
        for waiting in &mut self.waiting {
            let start = waiting.start;
            waiting.missing.retain(|block| !blocks.contains(block) || history.is_missing(*block, medium, start));
        }
    }

    /// A device write is submitted.
    pub fn write_submitted(&mut self) -> Verdict {
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.missing.is_empty()) {
            let Some(left) = waiting.writes_left.checked_sub(1) else {
                let start = waiting.start;
                return Err(format!(
                    "the flush of step {start} is delayed: all that it wants is written, but so is more"
                ));
            };
            waiting.writes_left = left;
        }
        Ok(())
    }

    /// A device flush is submitted: those whose blocks are written wait for it only.
    pub fn flush_submitted(&mut self) {
        self.waiting.retain(|waiting| !waiting.missing.is_empty());
    }

    /// Nothing can be said of the flushes that wait.
    pub fn forget(&mut self) {
        self.waiting.clear();
    }

    /// The flush that has waited longest.
    pub fn oldest(&self) -> Option<Step> {
        self.waiting.first().map(|waiting| waiting.start)
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
        promptness.flush_arrived(&history, &medium, 3);
        for _ in 0..=WRITES_QUEUED_MAX {
            promptness.write_submitted().expect("its block is not written");
        }
        let mut data = vec![0; 512];
        cell::fill(1, 0, &mut data);
        medium.write(0, Content::new(&Rc::new(data), 0), Fate::Volatile, 1);
        promptness.written(0..1, &history, &medium);
        assert_eq!((0..=WRITES_QUEUED_MAX).filter(|_| promptness.write_submitted().is_err()).count(), 1);
        assert_eq!(promptness.oldest(), Some(3));
        promptness.flush_submitted();
        assert_eq!(promptness.oldest(), None);
    }
}
