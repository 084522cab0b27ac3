//! SIEVE: a queue in order of arrival, a mark on each block that was used again, and a hand that clears marks.
//!
//! ```text
//!   new ─► front │ f │ e*│ d │ c*│ b │ a*│ back          * used again since the hand was here
//!                          ▲ hand ◄────── moves this way; from the front it continues at the back
//!          marked: the mark is cleared, the block stays in place. Not marked: the block is evicted.
//! ```
//!
//! A block that is used once is evicted when the hand reaches it. A block that is used again stays at the back, and new
//! blocks do not mix with it. A hit sets a bit and moves nothing.
//!
//! Source: Zhang, Yang, Yue, Vigfusson, Rashmi, "SIEVE is simpler than LRU" (NSDI 2024). Ours: an eviction clears at
//! most [`SWEEP_MAX`] marks and then takes the next block, marked or not, so that no request pays for the marks of a
//! whole partition; and the first use of a block that was read ahead sets no mark.
//!
//! Downside: the miss ratio may rise with the cache size. Blocks of a past working set keep their marks for a whole
//! round of the hand. Two uses that belong together, such as a block read in halves, count as two.

use super::list::List;
use super::{Eviction, ORDER, Placed};

/// Marks that one eviction clears at most: about 10 us, at a CPU cache miss each. If so many blocks in a row are
/// marked, nearly all are, and it makes little difference which of them is evicted.
pub(super) const SWEEP_MAX: usize = 128;

#[derive(Debug)]
pub(super) struct Sieve {
    list: List<ORDER>,
    /// The next block to look at; `None` means the back.
    hand: Option<u32>,
}

impl Sieve {
    pub(super) fn new(list: List<ORDER>) -> Sieve {
        Sieve { list, hand: None }
    }
}

impl<P: Placed> Eviction<P> for Sieve {
    fn list(&mut self) -> &mut List<ORDER> {
        &mut self.list
    }

    fn enter(&mut self, items: &mut [P], id: u32) {
        *items[id as usize].visited() = false;
        self.list.push_front(items, id);
    }

    fn come_back(&mut self, items: &mut [P], id: u32) {
        *items[id as usize].visited() = false;
        match self.hand {
            Some(hand) => self.list.insert_behind(items, hand, id),
            None => self.list.push_back(items, id),
        }
        self.hand = Some(id);
    }

    fn used(&mut self, items: &mut [P], id: u32, again: bool) {
        *items[id as usize].visited() |= again;
    }

    fn leave(&mut self, items: &mut [P], id: u32) {
        if self.hand == Some(id) {
            self.hand = self.list.prev(items, id);
        }
        self.list.remove(items, id);
    }

    fn next(&mut self, items: &mut [P]) -> Option<u32> {
        let mut at = self.hand.or(self.list.back())?;
        for _ in 0..SWEEP_MAX {
            if !std::mem::take(items[at as usize].visited()) {
                break;
            }
            at = self.list.prev(items, at).or(self.list.back())?;
        }
        self.hand = Some(at);
        Some(at)
    }

    fn pass(&mut self, items: &mut [P], id: u32) {
        self.hand = self.list.prev(items, id);
    }
}
