//! What a drive is done with, until it is asked: by time, then by turn.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use engine::units::Nanos;

use super::Tag;

/// Completions to come. It keeps its memory: no allocation once it has seen the deepest queue.
#[derive(Default, Debug)]
pub struct Done {
    heap: BinaryHeap<Reverse<(Nanos, u64, Tag)>>,
    turn: u64,
}

impl Done {
    /// `tag` is done `at`.
    pub fn push(&mut self, at: Nanos, tag: Tag) {
        self.turn += 1;
        self.heap.push(Reverse((at, self.turn, tag)));
    }

    /// When the first one is done.
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// The first one, if it is done by `now`.
    pub fn pop(&mut self, now: Nanos) -> Option<(Tag, Nanos)> {
        let at = self.next_at().filter(|&at| at <= now)?;
        self.heap.pop().map(|Reverse((.., tag))| (tag, at))
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.heap.clear();
    }
}

/// The earlier of two moments that may never come.
pub fn earlier(a: Option<Nanos>, b: Option<Nanos>) -> Option<Nanos> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
