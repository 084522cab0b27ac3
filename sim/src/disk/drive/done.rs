//! The completions of a drive that have not been polled: ordered by time, then by the order in which they were added.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use engine::units::Nanos;

use super::Tag;

/// Future completions. Keeps its memory, so nothing is allocated once the deepest queue was reached.
#[derive(Default, Debug)]
pub struct Done {
    heap: BinaryHeap<Reverse<(Nanos, u64, Tag)>>,
    turn: u64,
}

impl Done {
    /// `tag` completes at `at`.
    pub fn push(&mut self, at: Nanos, tag: Tag) {
        self.turn += 1;
        self.heap.push(Reverse((at, self.turn, tag)));
    }

    /// Time of the first completion.
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// The first completion, if it is due by `now`.
    pub fn pop(&mut self, now: Nanos) -> Option<(Tag, Nanos)> {
        let at = self.next_at().filter(|&at| at <= now)?;
        self.heap.pop().map(|Reverse((.., tag))| (tag, at))
    }

    /// Drops all completions.
    pub fn clear(&mut self) {
        self.heap.clear();
    }
}

/// The earlier of two times; `None` means never.
pub fn earlier(a: Option<Nanos>, b: Option<Nanos>) -> Option<Nanos> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
