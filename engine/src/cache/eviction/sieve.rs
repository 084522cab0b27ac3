//! SIEVE: a queue in order of arrival, a mark on what was used again, and a hand that takes the marks off.
//!
//! ```text
//!   new ─► front │ f │ e*│ d │ c*│ b │ a*│ back          * used again since the hand was here
//!                          ▲ hand ◄────── moves this way; at the front it begins at the back again
//!          marked: the mark goes, the block stays where it is. Not marked: it is evicted.
//! ```
//!
//! What is used once is gone when the hand has come round; what is used again stays at the back, and new blocks do not
//! mix with it. A hit sets a bit and moves nothing.
//!
//! Source: Zhang, Yang, Yue, Vigfusson, Rashmi, "SIEVE is simpler than LRU" (NSDI 2024). Ours: a sweep takes at most
//! [`SWEEP_MAX`] marks off and then takes what it has come to, so that no request pays for the marks of a whole
//! partition; and the first use of a block that was read ahead is no mark.
//!
//! Downside: its miss ratio may rise with size; a working set that changes leaves marked blocks behind for a whole
//! round of the hand; and two uses that belong together (a block read in halves) count as a use and another one.

use super::{Eviction, ORDER, Placed};
use crate::cache::list::List;

/// Marks that are taken off for one eviction, at most: about 10 us at a cache miss each. When so many blocks in a row
/// are marked, nearly all are, and which of them goes makes little difference.
pub(super) const SWEEP_MAX: usize = 128;

#[derive(Debug)]
pub(super) struct Sieve {
    list: List<ORDER>,
    /// The next one to be looked at; the back if there is none.
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
