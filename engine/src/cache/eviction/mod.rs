//! Which block of a partition goes first when it needs a frame.
//!
//! ```text
//!   partition: "a frame, please" ─► evict ─► policy: next? ─► partition: can it go?
//!                                     ▲                          │ yes: it is dropped
//!                                     └── pass, leave ◄──────────┘ in use: others first; dirty: back when written
//! ```
//!
//! A policy orders, the partition decides: only it knows what is dirty or in use. All policies keep their blocks on one
//! list through the blocks themselves, so nothing is allocated, and a tenant changes its policy in one step: the list
//! is handed over. They are generic over what stands on the list: the miniature caches of [`crate::curve`] run the same
//! code.
//!
//! Downside: a policy that needs to remember what it has evicted (S3-FIFO's ghosts, ARC) has no place for it here.

mod lru;
mod sieve;

use std::fmt::Debug;

use super::list::{Linked, List};

/// The links that a policy's list goes through.
pub(crate) const ORDER: usize = 0;

/// What can stand in an order.
pub(crate) trait Placed: Linked<ORDER> {
    /// The policy's mark.
    fn visited(&mut self) -> &mut bool;
}

/// How a tenant's partition chooses what to evict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// What was used longest ago.
    #[default]
    Lru,
    /// What came longest ago and has not been used again since the hand passed.
    Sieve,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 2] = [Policy::Lru, Policy::Sieve];

    /// An order that begins with what is on a list, the first to go at its back.
    pub(crate) fn order<P: Placed>(self, list: List<ORDER>) -> Box<dyn Eviction<P>> {
        match self {
            Policy::Lru => Box::new(lru::Lru::new(list)),
            Policy::Sieve => Box::new(sieve::Sieve::new(list)),
        }
    }
}

/// An order of eviction. Items are named by their place in `items`; one is entered once until it leaves.
pub(crate) trait Eviction<P: Placed>: Debug + Send {
    /// What is in it, the first to go at the back as far as a list can tell. Taken when another policy takes over.
    fn list(&mut self) -> &mut List<ORDER>;

    /// An item is new.
    fn enter(&mut self, items: &mut [P], id: u32);

    /// An item had to leave though its turn had come: it could not go then, and can now.
    fn come_back(&mut self, items: &mut [P], id: u32);

    /// An item is asked for; `again` if not for the first time since it entered.
    fn used(&mut self, items: &mut [P], id: u32, again: bool);

    /// An item leaves.
    fn leave(&mut self, items: &mut [P], id: u32);

    /// Whose turn it is. It stays until it leaves.
    fn next(&mut self, items: &mut [P]) -> Option<u32>;

    /// Not this one now, whose turn it is: others first.
    fn pass(&mut self, items: &mut [P], id: u32);
}

/// What a partition says to an item whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It can go.
    Goes,
    /// Somebody uses it now.
    InUse,
    /// It has to be written first: it leaves the order, and comes back when it is. So a search costs one step a block,
    /// however much is dirty.
    Unwritten,
}

/// The first item that can go; it is still in the order. `None` if none can.
pub(crate) fn evict<P: Placed>(
    order: &mut dyn Eviction<P>,
    items: &mut [P],
    mut judge: impl FnMut(&mut P) -> Verdict,
) -> Option<u32> {
    // Twice: a policy may have passed over some, for their marks, on the first round.
    for _ in 0..2 * order.list().len() {
        let id = order.next(items)?;
        match judge(&mut items[id as usize]) {
            Verdict::Goes => return Some(id),
            Verdict::InUse => order.pass(items, id),
            Verdict::Unwritten => order.leave(items, id),
        }
    }
    None
}

#[cfg(test)]
mod tests;
