//! Which unwritten blocks a flush has to wait for: counts by epoch, a flush ends an epoch.
//!
//! ```text
//!   writes ─► epoch 7: 3 blocks │ flush A │ epoch 8: 1 block │ flush B │ epoch 9: …
//!             A waits until epochs up to 7 are empty; later writes count elsewhere and never delay it
//! ```

use std::collections::VecDeque;

#[derive(Clone, Copy, Default, Debug)]
struct Count {
    /// Blocks with dirt that nobody has given to the device.
    dirty: u32,
    /// Blocks whose dirt is being written.
    writing: u32,
}

/// Unwritten blocks of one volume by epoch. Epoch numbers wrap; only open epochs are compared.
#[derive(Debug)]
pub(crate) struct Ledger {
    first: u32,
    counts: VecDeque<Count>,
}

impl Default for Ledger {
    fn default() -> Self {
        Ledger { first: 0, counts: VecDeque::from([Count::default()]) }
    }
}

impl Ledger {
    /// The epoch that new dirt belongs to.
    pub(crate) fn current(&self) -> u32 {
        self.first.wrapping_add(self.counts.len() as u32 - 1)
    }

    fn at(&mut self, epoch: u32) -> &mut Count {
        &mut self.counts[epoch.wrapping_sub(self.first) as usize]
    }

    /// A block became dirty: its epoch.
    pub(crate) fn dirtied(&mut self) -> u32 {
        let epoch = self.current();
        self.at(epoch).dirty += 1;
        epoch
    }

    /// A dirty block was given to the device.
    pub(crate) fn issued(&mut self, epoch: u32) {
        let count = self.at(epoch);
        count.dirty -= 1;
        count.writing += 1;
    }

    /// A block's write is over, well or not.
    pub(crate) fn written(&mut self, epoch: u32) {
        self.at(epoch).writing -= 1;
        self.retire();
    }

    /// A dirty block's content is no longer wanted.
    pub(crate) fn dropped(&mut self, epoch: u32) {
        self.at(epoch).dirty -= 1;
        self.retire();
    }

    fn retire(&mut self) {
        while self.counts.len() > 1 && self.counts[0].dirty + self.counts[0].writing == 0 {
            self.counts.pop_front();
            self.first = self.first.wrapping_add(1);
        }
    }

    /// A flush arrives: the epoch it waits for. What is dirtied from now on is not its concern.
    pub(crate) fn close(&mut self) -> u32 {
        let epoch = self.current();
        let count = *self.at(epoch);
        if count.dirty + count.writing > 0 {
            self.counts.push_back(Count::default());
            return epoch;
        }
        // Nothing in this one: it stays open for what comes, and the flush waits for those before it.
        epoch.wrapping_sub(1)
    }

    /// Nothing up to `epoch` is unwritten.
    pub(crate) fn settled(&self, epoch: u32) -> bool {
        let count = self.counts[0];
        let ahead = epoch.wrapping_sub(self.first) as i32;
        ahead < 0 || ahead == 0 && count.dirty + count.writing == 0
    }

    /// Blocks up to `epoch` that nobody has given to the device.
    pub(crate) fn unissued(&self, epoch: u32) -> u32 {
        let epochs = epoch.wrapping_sub(self.first) as i32 + 1;
        self.counts.iter().take(epochs.max(0) as usize).map(|count| count.dirty).sum()
    }

    /// `epoch` was closed by a flush that may still wait for it.
    pub(crate) fn is_closed(&self, epoch: u32) -> bool {
        epoch != self.current()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_writes_do_not_delay_a_flush() {
        let mut ledger = Ledger::default();
        let first = ledger.dirtied();
        let flush = ledger.close();
        let second = ledger.dirtied();
        assert_ne!(first, second);
        assert_eq!(ledger.unissued(flush), 1);
        assert!(!ledger.settled(flush));
        ledger.issued(first);
        assert_eq!(ledger.unissued(flush), 0);
        ledger.written(first);
        assert!(ledger.settled(flush));
        assert!(!ledger.settled(ledger.current()));
    }

    #[test]
    fn flushes_in_a_row_share_an_epoch() {
        let mut ledger = Ledger::default();
        let epoch = ledger.dirtied();
        assert_eq!(ledger.close(), epoch);
        assert_eq!(ledger.close(), epoch);
        assert!(!ledger.settled(epoch), "an earlier epoch is not written");
        let later = ledger.dirtied();
        ledger.dropped(epoch);
        assert!(ledger.settled(epoch));
        assert!(!ledger.settled(later));
    }
}
