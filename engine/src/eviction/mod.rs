//! The order in which a partition evicts its blocks when it needs a frame.
//!
//! ```text
//!   a frame is needed ─► evict ─► policy: next block ─► partition: can it be evicted?
//!                          ▲                               │ yes: it is dropped
//!                          └── pass, leave ◄───────────────┘ being read: passed over; dirty or unsent: leaves
//! ```
//!
//! The policy orders the blocks; the partition decides, because only it knows which are dirty or in use. All policies
//! keep their blocks on one list through the blocks themselves. So nothing is allocated, and a tenant changes its
//! policy in one step, by handing the list over. The policies are generic over the items of the list: the miniature
//! caches of [`crate::curve`] run the same code.
//!
//! Downside: a policy that remembers evicted blocks (the ghosts of S3-FIFO, ARC) has no place for them here.

pub(crate) mod list;
mod lru;
mod sieve;

use std::fmt::Debug;

use list::{Linked, List};

/// The number of the links that a policy's list uses.
pub(crate) const ORDER: usize = 0;

/// An item that can be in an eviction order.
pub(crate) trait Placed: Linked<ORDER> {
    /// The policy's mark.
    fn visited(&mut self) -> &mut bool;
}

/// The eviction policy of a tenant's partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// The least recently used block is evicted.
    #[default]
    Lru,
    /// The next block in order of arrival that was not used again since the hand last passed it is evicted.
    Sieve,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 2] = [Policy::Lru, Policy::Sieve];

    /// An order of the items of a list; the next one to be evicted is at its back.
    pub(crate) fn order<P: Placed>(self, list: List<ORDER>) -> Box<dyn Eviction<P>> {
        match self {
            Policy::Lru => Box::new(lru::Lru::new(list)),
            Policy::Sieve => Box::new(sieve::Sieve::new(list)),
        }
    }
}

/// An order of eviction. `id` is an item's index in `items`. An item enters once, and not again before it has left.
pub(crate) trait Eviction<P: Placed>: Debug + Send {
    /// All items in the order, the next one to be evicted at the back as far as a list can express that. Taken over
    /// when the policy changes.
    fn list(&mut self) -> &mut List<ORDER>;

    /// Adds a new item.
    fn enter(&mut self, items: &mut [P], id: u32);

    /// Adds an item again that had to leave when it was next, because it could not be evicted then.
    fn come_back(&mut self, items: &mut [P], id: u32);

    /// An item is requested; `again` if this is not the first time since it entered.
    fn used(&mut self, items: &mut [P], id: u32, again: bool);

    /// Removes an item.
    fn leave(&mut self, items: &mut [P], id: u32);

    /// The next item to be evicted. It stays in the order until it leaves.
    fn next(&mut self, items: &mut [P]) -> Option<u32>;

    /// Passes over the next item, which cannot be evicted now.
    fn pass(&mut self, items: &mut [P], id: u32);
}

/// The partition's decision about the next item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It can be evicted.
    Goes,
    /// A device request for it is in flight: it stays in the order.
    InUse,
    /// It must be written or flushed first, or replies with its content must be sent. It leaves the order and re-enters
    /// afterwards, so a search passes over each block once, however many are dirty or in unsent replies.
    Unready,
}

/// The first item that can be evicted; it is still in the order. `None` if there is none.
pub(crate) fn evict<P: Placed>(
    order: &mut dyn Eviction<P>,
    items: &mut [P],
    mut judge: impl FnMut(u32, &mut P) -> Verdict,
) -> Option<u32> {
    // Two rounds: in the first one the policy may pass over items that have a mark.
    for _ in 0..2 * order.list().len() {
        let id = order.next(items)?;
        match judge(id, &mut items[id as usize]) {
            Verdict::Goes => return Some(id),
            Verdict::InUse => order.pass(items, id),
            Verdict::Unready => order.leave(items, id),
        }
    }
    None
}

#[cfg(test)]
mod tests;
