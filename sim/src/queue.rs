//! The event queue of the simulation, in virtual time. Events at the same time happen in the order in which they were
//! planned.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use engine::units::Nanos;

/// A queue of planned events.
#[derive(Debug)]
pub struct Queue<T> {
    heap: BinaryHeap<Reverse<Planned<T>>>,
    planned: u64,
}

#[derive(Debug)]
struct Planned<T> {
    at: Nanos,
    turn: u64,
    what: T,
}

impl<T> PartialEq for Planned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.turn == other.turn
    }
}

impl<T> Eq for Planned<T> {}

impl<T> PartialOrd for Planned<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Planned<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.turn).cmp(&(other.at, other.turn))
    }
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { heap: BinaryHeap::new(), planned: 0 }
    }
}

impl<T> Queue<T> {
    /// Plans `what` for `at`.
    pub fn push(&mut self, at: Nanos, what: T) {
        self.planned += 1;
        self.heap.push(Reverse(Planned { at, turn: self.planned, what }));
    }

    /// The time of the next event.
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse(planned)| planned.at)
    }

    /// The next event and its time.
    pub fn pop(&mut self) -> Option<(Nanos, T)> {
        self.heap.pop().map(|Reverse(planned)| (planned.at, planned.what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_time_then_by_turn() {
        let mut queue = Queue::default();
        queue.push(5, 'c');
        queue.push(3, 'a');
        queue.push(5, 'd');
        queue.push(4, 'b');
        assert_eq!(queue.next_at(), Some(3));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(3, 'a'), (4, 'b'), (5, 'c'), (5, 'd')]);
    }
}
