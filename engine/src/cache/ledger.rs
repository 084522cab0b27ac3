//! The blocks that a flush has to wait for, counted by epoch. A flush ends an epoch.
//!
//! ```text
//!   writes ─► epoch 7: 3 blocks │ flush A │ epoch 8: 1 block │ flush B │ epoch 9: …
//!             A waits until epochs up to 7 are empty; later writes belong to later epochs and never delay it
//! ```

use std::collections::VecDeque;

#[derive(Clone, Copy, Default, Debug)]
struct Count {
    /// Dirty blocks that are not yet given to the device.
    dirty: u32,
    /// Blocks whose dirty data is being written.
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
    /// The epoch of blocks that become dirty now.
    pub(crate) fn current(&self) -> u32 {
        self.first.wrapping_add(self.counts.len() as u32 - 1)
    }

    fn at(&mut self, epoch: u32) -> &mut Count {
        &mut self.counts[epoch.wrapping_sub(self.first) as usize]
    }

    /// A block became dirty: returns its epoch.
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

    /// The write of a block has ended, successfully or not.
    pub(crate) fn written(&mut self, epoch: u32) {
        self.at(epoch).writing -= 1;
        self.retire();
    }

    /// The content of a dirty block is discarded.
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

    /// A flush arrives and ends the epoch: returns the epoch that it waits for. Blocks that become dirty later do not
    /// delay it.
    pub(crate) fn close(&mut self) -> u32 {
        let epoch = self.current();
        let count = *self.at(epoch);
        if count.dirty + count.writing > 0 {
            self.counts.push_back(Count::default());
            return epoch;
        }
        // The current epoch is empty and stays open. The flush waits for the epochs before it.
        epoch.wrapping_sub(1)
    }

    /// All blocks of epochs up to `epoch` are written.
    pub(crate) fn settled(&self, epoch: u32) -> bool {
        let count = self.counts[0];
        let ahead = epoch.wrapping_sub(self.first) as i32;
        ahead < 0 || ahead == 0 && count.dirty + count.writing == 0
    }

    /// Dirty blocks of epochs up to `epoch` that are not yet given to the device.
    pub(crate) fn unissued(&self, epoch: u32) -> u32 {
        let epochs = epoch.wrapping_sub(self.first) as i32 + 1;
        self.counts.iter().take(epochs.max(0) as usize).map(|count| count.dirty).sum()
    }

    /// A flush has ended `epoch`, and may still wait for it.
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
