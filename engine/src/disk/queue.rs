//! The queue of one tenant: urgent requests (a flush or a writer waits for them) go ahead of the others, a few at a
//! time. Both kinds go in order of arrival, or reads and writes separately.
//!
//! Reads with a number of their client ([`Number`]) go in the order of these numbers: they exchange places with one
//! another. So a session whose requests arrive in another order gets no other requests ahead of those of other
//! clients, and none behind.

use std::collections::VecDeque;

use crate::disk::Op;
use crate::disk::profile::Direction;
use crate::ids::{IoId, VolumeId};
use crate::units::Nanos;

/// Urgent requests in a row that go ahead of the tenant's others: enough that a flush is hardly delayed, few enough
/// that reads get a fifth of the places if a client of the same tenant only flushes or makes durable writes.
const URGENT_IN_A_ROW: u32 = 4;

/// The cost of a byte in [`cost_ns`]: 100 MB/s.
pub(crate) const BYTE_NS: Nanos = 10;
/// Nominal cost of a request on any device, nanoseconds: it makes requests comparable. By what factor the requests of a
/// tenant take longer or shorter on this device is measured.
pub(crate) fn cost_ns(op: Op, len: u64, follows: bool) -> Nanos {
    /// Half a revolution at 7,200 rpm and a medium seek.
    const POSITIONING_NS: Nanos = 8_000_000;
    let positioning = if follows { 0 } else { POSITIONING_NS };
    match op {
        Op::Read | Op::Write { .. } => positioning + len * BYTE_NS,
        Op::Flush | Op::Zero | Op::Punch => POSITIONING_NS,
    }
}

/// Numbered reads at the end of a queue that a later one may go ahead of: as many as a gateway has outstanding at a
/// server. Limits the time that it takes to queue one.
const OVERTAKEN_MAX: usize = 128;

/// The number that its client gave a request. Those of one volume are of one session, and later ones are higher.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Number {
    pub(crate) volume: VolumeId,
    pub(crate) order: u64,
}

impl Number {
    /// Whether the request is older than another one of its session.
    fn is_before(self, other: Number) -> bool {
        self.volume == other.volume && self.order < other.order
    }
}

/// A queued request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// Its number.
    pub(crate) io: IoId,
    /// The operation.
    pub(crate) op: Op,
    /// Bytes.
    pub(crate) len: u64,
    /// Its cost, as the policy estimates it from operation and size (`Policy::cost_ns`).
    pub(crate) cost_ns: Nanos,
    /// It begins where an earlier request of its tenant ended.
    pub(crate) follows: bool,
    /// No request of a client caused it: it uses the tenant's disk time, but is neither demand nor useful work.
    pub(crate) internal: bool,
    /// Neither a flush nor a client waits for it, nor for the memory that it occupies.
    pub(crate) can_wait: bool,
    /// If it is to go in the order of these.
    pub(crate) number: Option<Number>,
}

impl Entry {
    /// A random read without a size or a cost.
    pub(crate) const EMPTY: Entry = Entry {
        io: IoId(0),
        op: Op::Read,
        len: 0,
        cost_ns: 0,
        follows: false,
        internal: false,
        can_wait: false,
        number: None,
    };

    /// Whether it is a sequential read: it begins where an earlier request of its tenant ended.
    pub(crate) fn reads_on(&self) -> bool {
        self.follows && self.op == Op::Read
    }

    /// Read if data comes from the device. All operations that change the device count as writes, flushes too.
    pub(crate) fn direction(&self) -> Direction {
        if self.op == Op::Read { Direction::Read } else { Direction::Write }
    }
}

/// Reads and writes, each in order of arrival, and each with its place in the common order.
#[derive(Default, Debug)]
struct Line {
    entries: [VecDeque<(u64, Entry)>; 2],
    arrived: u64,
}

impl Line {
    fn push(&mut self, entry: Entry) {
        let entries = &mut self.entries[entry.direction() as usize];
        entries.push_back((self.arrived, entry));
        self.arrived += 1;
        let Some(number) = entry.number else { return };
        let mut at = entries.len() - 1;
        for earlier in (at.saturating_sub(OVERTAKEN_MAX)..at).rev() {
            match entries[earlier].1.number.filter(|other| other.volume == number.volume) {
                Some(other) if number.is_before(other) => {
                    (entries[at].1, entries[earlier].1) = (entries[earlier].1, entry);
                    at = earlier;
                }
                Some(_) => return,
                None => {}
            }
        }
    }

    fn len(&self) -> usize {
        self.entries.iter().map(VecDeque::len).sum()
    }

    /// The direction of the first request: of the reads, of the writes, or of both.
    fn first(&self, only: Option<Direction>) -> Option<Direction> {
        let place =
            |direction: Direction| self.entries[direction as usize].front().map(|&(place, _)| (place, direction));
        let both = [Direction::Read, Direction::Write].into_iter();
        both.filter(|&direction| only.is_none_or(|only| only == direction)).filter_map(place).min().map(|(_, at)| at)
    }

    fn front(&self, only: Option<Direction>) -> Option<&Entry> {
        self.first(only).and_then(|at| self.entries[at as usize].front()).map(|(_, entry)| entry)
    }

    fn pop(&mut self, only: Option<Direction>) -> Option<Entry> {
        self.first(only).and_then(|at| self.entries[at as usize].pop_front()).map(|(_, entry)| entry)
    }

    /// All requests in order of arrival.
    fn iter(&self) -> impl Iterator<Item = &Entry> {
        let [mut reads, mut writes] = [&self.entries[0], &self.entries[1]].map(|entries| entries.iter().peekable());
        std::iter::from_fn(move || {
            let place = |entry: Option<&&(u64, Entry)>| entry.map_or(u64::MAX, |&&(place, _)| place);
            let from = if place(reads.peek()) <= place(writes.peek()) { &mut reads } else { &mut writes };
            from.next().map(|(_, entry)| entry)
        })
    }

    fn retain(&mut self, mut keep: impl FnMut(&Entry) -> bool) {
        self.entries.iter_mut().for_each(|entries| entries.retain(|(_, entry)| keep(entry)));
    }
}

/// Costs of requests that wait for the device.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Backlog {
    /// All of them.
    pub(crate) all_ns: Nanos,
    /// Reads and urgent requests. Background write-back is not included: no flush and no client waits for it.
    pub(crate) awaited_ns: Nanos,
}

/// Which of the queued requests may go to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    /// All of them.
    All,
    /// Those in one direction.
    Only(Direction),
    /// Those for which a client or a flush waits: reads and urgent requests.
    Awaited,
}

impl Which {
    fn of_urgent(self) -> Option<Direction> {
        if let Which::Only(direction) = self { Some(direction) } else { None }
    }

    fn of_others(self) -> Option<Direction> {
        match self {
            Which::All => None,
            Which::Only(direction) => Some(direction),
            Which::Awaited => Some(Direction::Read),
        }
    }
}

/// The queued requests of a tenant.
#[derive(Default, Debug)]
pub(crate) struct Queue {
    urgent: Line,
    others: Line,
    /// How many of the others can wait.
    can_wait: usize,
    /// Urgent requests that went ahead since one of the others went.
    ahead: u32,
}

impl Queue {
    pub(crate) fn push(&mut self, entry: Entry, urgent: bool) {
        let can_wait = entry.can_wait && !urgent;
        self.can_wait += usize::from(can_wait);
        if urgent { &mut self.urgent } else { &mut self.others }.push(Entry { can_wait, ..entry });
    }

    pub(crate) fn len(&self) -> usize {
        self.urgent.len() + self.others.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a client waits for one of the requests: it is a read, or urgent.
    pub(crate) fn is_awaited(&self) -> bool {
        self.urgent.len() > 0 || self.others.first(Some(Direction::Read)).is_some()
    }

    /// The requests that may be submitted at once: at most `count`, ending before a sequential read when the ones
    /// before it have reached `following` bytes.
    pub(crate) fn backlog(&self, count: usize, mut following: u64) -> Backlog {
        let urgent = self.urgent.iter().map(|entry| (entry, true));
        let at_once = urgent.chain(self.others.iter().map(|entry| (entry, entry.op == Op::Read))).take(count);
        let at_once = at_once.take_while(|(entry, _)| {
            let fits = !entry.reads_on() || following > 0;
            following = following.saturating_sub(if entry.reads_on() { entry.len } else { 0 });
            fits
        });
        at_once.fold(Backlog::default(), |sum, (entry, is_awaited)| {
            let awaited_ns = if is_awaited { entry.cost_ns } else { 0 };
            Backlog { all_ns: sum.all_ns + entry.cost_ns, awaited_ns: sum.awaited_ns + awaited_ns }
        })
    }

    /// Whether there is background write-back, and all of it can wait.
    pub(crate) fn has_batch(&self) -> bool {
        self.can_wait > 0 && self.can_wait == self.others.entries[Direction::Write as usize].len()
    }

    fn is_urgent_next(&self, which: Which) -> bool {
        let is_turn = || self.ahead < URGENT_IN_A_ROW || self.others.first(which.of_others()).is_none();
        self.urgent.first(which.of_urgent()).is_some() && is_turn()
    }

    /// The next request.
    pub(crate) fn peek(&self) -> Option<&Entry> {
        self.peek_of(Which::All)
    }

    /// The next one of these requests.
    pub(crate) fn peek_of(&self, which: Which) -> Option<&Entry> {
        match self.is_urgent_next(which) {
            true => self.urgent.front(which.of_urgent()),
            false => self.others.front(which.of_others()),
        }
    }

    /// Takes the request that [`Queue::peek_of`] returns.
    pub(crate) fn pop_of(&mut self, which: Which) -> Option<Entry> {
        if self.is_urgent_next(which) {
            self.ahead = if self.others.len() == 0 { 0 } else { self.ahead + 1 };
            return self.urgent.pop(which.of_urgent());
        }
        let next = self.others.pop(which.of_others());
        self.can_wait -= usize::from(next.is_some_and(|entry| entry.can_wait));
        self.ahead = if next.is_some() { 0 } else { self.ahead };
        next
    }

    /// Promotes the requests that `wanted` selects: they become urgent.
    pub(crate) fn promote(&mut self, wanted: &dyn Fn(IoId) -> bool) {
        let Queue { urgent, others, can_wait, .. } = self;
        others.retain(|&entry| {
            let wanted = wanted(entry.io);
            if wanted {
                *can_wait -= usize::from(entry.can_wait);
                urgent.push(Entry { can_wait: false, ..entry });
            }
            !wanted
        });
    }

    /// Cancels the requests that `unwanted` selects, and adds them to `dropped`.
    pub(crate) fn withdraw(&mut self, unwanted: &dyn Fn(IoId) -> bool, dropped: &mut Vec<IoId>) {
        let Queue { urgent, others, can_wait, .. } = self;
        for line in [urgent, others] {
            line.retain(|entry| {
                let unwanted = unwanted(entry.io);
                if unwanted {
                    *can_wait -= usize::from(entry.can_wait);
                    dropped.push(entry.io);
                }
                !unwanted
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(requests: &[(u32, Op, bool)]) -> Queue {
        let mut queue = Queue::default();
        for &(io, op, urgent) in requests {
            queue.push(Entry { io: IoId(io), op, cost_ns: 1, ..Entry::EMPTY }, urgent);
        }
        queue
    }

    fn drain(queue: &mut Queue, which: Which) -> Vec<u32> {
        std::iter::from_fn(|| {
            let next = queue.peek_of(which).copied();
            assert_eq!(next, queue.pop_of(which));
            next.map(|entry| entry.io.0)
        })
        .collect()
    }

    const WRITE: Op = Op::Write { durable: false };

    #[test]
    fn in_order_of_arrival_but_urgent_ones_first_a_few_at_a_time() {
        let mut queue = queue(&[(0, Op::Read, false), (1, WRITE, false), (2, Op::Read, false)]);
        (10..16).for_each(|io| queue.push(Entry { io: IoId(io), ..*queue.peek().unwrap() }, true));
        assert_eq!((queue.len(), queue.backlog(7, 0)), (9, Backlog { all_ns: 7, awaited_ns: 7 }));
        assert_eq!(queue.backlog(9, 0), Backlog { all_ns: 9, awaited_ns: 8 });
        assert_eq!(drain(&mut queue, Which::All), [10, 11, 12, 13, 0, 14, 15, 1, 2]);
    }

    #[test]
    fn numbered_reads_go_by_number_in_the_places_of_their_session() {
        let mut queue = Queue::default();
        let read = Entry { cost_ns: 1, ..Entry::EMPTY };
        let number = |volume, order| Some(Number { volume: VolumeId(volume), order });
        let arrive = [number(0, 30), None, number(1, 20), number(0, 10), number(0, 20), number(1, 10), number(0, 20)];
        for (io, number) in (0..).zip(arrive) {
            queue.push(Entry { io: IoId(io), number, ..read }, false);
        }
        // Places 0, 3, 4, 6 are of the first session, 2 and 5 of the other one.
        assert_eq!(drain(&mut queue, Which::All), [3, 1, 5, 4, 6, 2, 0]);
        // A write keeps its place among them, and a read goes ahead of so many at most.
        (0..2 * OVERTAKEN_MAX as u32)
            .for_each(|io| queue.push(Entry { io: IoId(io), number: number(0, 9), ..read }, false));
        queue.push(Entry { io: IoId(1000), op: WRITE, ..read }, false);
        queue.push(Entry { io: IoId(2000), number: number(0, 1), ..read }, false);
        let order = drain(&mut queue, Which::All);
        assert_eq!(order.iter().position(|&io| io == 2000), Some(OVERTAKEN_MAX));
        assert_eq!(order.iter().position(|&io| io == 1000), Some(2 * OVERTAKEN_MAX));
    }

    #[test]
    fn reads_and_writes_apart_in_their_order() {
        let requests =
            [(0, WRITE, false), (1, Op::Read, false), (2, Op::Flush, true), (3, Op::Read, false), (4, WRITE, false)];
        let mut all = queue(&requests);
        assert_eq!((all.is_awaited(), queue(&requests[..1]).is_awaited()), (true, false), "nobody waits for a write");
        assert_eq!(drain(&mut all, Which::Only(Direction::Read)), [1, 3]);
        assert_eq!(drain(&mut all, Which::Only(Direction::Write)), [2, 0, 4]);
        assert!(all.is_empty());
        assert_eq!(drain(&mut queue(&requests), Which::All), [2, 0, 1, 3, 4]);
    }
}
