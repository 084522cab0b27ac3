//! What waits of one tenant: urgent requests (a flush waits for them) ahead of the others, a few at a time.

use std::collections::VecDeque;

use crate::disk::{IoId, Op};
use crate::units::Nanos;

/// Urgent requests that a tenant sends ahead of its others before one of those has its turn: enough that a flush hardly
/// notices, few enough that a client that only flushes, or writes through, leaves its tenant's reads a fifth of the turns.
const URGENT_IN_A_ROW: u32 = 4;

/// A request that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// Its number.
    pub(crate) io: IoId,
    /// What it does.
    pub(crate) op: Op,
    /// Bytes.
    pub(crate) len: u64,
    /// What it costs the device, by its kind and size alone ([`super::Policy::cost_ns`]).
    pub(crate) cost_ns: Nanos,
    /// It begins where an earlier one of its tenant ended.
    pub(crate) follows: bool,
}

impl Entry {
    /// It reads on where another read ends.
    pub(super) fn reads_on(&self) -> bool {
        self.follows && self.op == Op::Read
    }
}

/// The requests of a tenant that wait.
#[derive(Default, Debug)]
pub(super) struct Queue {
    urgent: VecDeque<Entry>,
    others: VecDeque<Entry>,
    /// Urgent ones that have gone ahead since one of the others went.
    ahead: u32,
}

impl Queue {
    pub(super) fn push(&mut self, entry: Entry, urgent: bool) {
        if urgent { &mut self.urgent } else { &mut self.others }.push_back(entry);
    }

    pub(super) fn len(&self) -> usize {
        self.urgent.len() + self.others.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What those cost that may go at once: `count` of them, and so many bytes of those that read on.
    pub(super) fn cost_ns(&self, count: usize, mut following: u64) -> Nanos {
        let at_once = self.urgent.iter().chain(&self.others).take(count);
        at_once
            .take_while(|entry| {
                let fits = !entry.reads_on() || following > 0;
                following = following.saturating_sub(if entry.reads_on() { entry.len } else { 0 });
                fits
            })
            .map(|entry| entry.cost_ns)
            .sum()
    }

    fn is_urgent_next(&self) -> bool {
        !self.urgent.is_empty() && (self.ahead < URGENT_IN_A_ROW || self.others.is_empty())
    }

    /// The one that [`Queue::pop`] would take.
    pub(super) fn peek(&self) -> Option<&Entry> {
        if self.is_urgent_next() { self.urgent.front() } else { self.others.front() }
    }

    pub(super) fn pop(&mut self) -> Option<Entry> {
        if self.is_urgent_next() {
            self.ahead = if self.others.is_empty() { 0 } else { self.ahead + 1 };
            return self.urgent.pop_front();
        }
        self.ahead = 0;
        self.others.pop_front()
    }

    /// Those that `wanted` chooses are urgent from now on.
    pub(super) fn hurry(&mut self, wanted: &dyn Fn(IoId) -> bool) {
        let Queue { urgent, others, .. } = self;
        others.retain(|&entry| {
            let wanted = wanted(entry.io);
            if wanted {
                urgent.push_back(entry);
            }
            !wanted
        });
    }

    /// Those that `unwanted` chooses are taken back: they are added to `dropped`.
    pub(super) fn withdraw(&mut self, unwanted: &dyn Fn(IoId) -> bool, dropped: &mut Vec<IoId>) {
        for queue in [&mut self.urgent, &mut self.others] {
            queue.retain(|entry| {
                let unwanted = unwanted(entry.io);
                if unwanted {
                    dropped.push(entry.io);
                }
                !unwanted
            });
        }
    }
}
