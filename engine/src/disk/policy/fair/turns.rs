//! Reads and writes in turns, where a read suffers from writes that the device has acknowledged long ago.
//!
//! Flash cannot interrupt a program. While writes trickle in between reads, some part of the device is always
//! programming, and whatever has to do with that part waits: the polite tenant, and with it all that is kept back for
//! it. Written together, as much is programmed in a part of the time, and for the rest reads find the device as if
//! nobody wrote.
//!
//! ```text
//!   writes  ▒▒▒▒▒▒▒              ▒▒▒▒▒▒▒             part of the time: what the writing tenants' weights come to
//!   reads          ░░░░░░░░░░░░░░       ░░░░░░░░     the rest, at least loss x R / (1 - R) at a time
//!   polite  · · · ················ · · ·········     whenever it asks
//!                 ▲ programmed, as costs say: not before
//! ```
//!
//! The loss is how long a program keeps a read waiting, from the profile: it is lost once in each turn of reads, so the
//! turn has the length that a slice would have (`docs/design/slices.md`). Writes have credit of their part of a turn;
//! what a large one takes too much, it owes. If they take longer than they cost (each on the medium, say), their turn
//! is over all the same.
//!
//! Source: Park and Shen, "FIOS: A Fair, Efficient Flash I/O Scheduler", FAST 2012 (reads and writes apart, time
//! slices). Downside: when all is programmed is believed, by cost, not seen. A tenant that waits for a write waits for
//! its turn.

use super::Fair;
use crate::disk::profile::Direction;
use crate::units::{MILLISECOND, Nanos};

/// How long turns are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Lengths {
    read_ns: Nanos,
    write_ns: Nanos,
}

/// However little weight those have who read, in the long run: so that a turn of writes has an end.
const READS_LEAST: f64 = 1.0 / 16.0;
/// Nobody is held for longer than that by a turn, or by what was written too much before, whatever is believed of the
/// device.
const HELD_MOST_NS: f64 = 50.0 * MILLISECOND as f64;
/// For that long at most the device does nothing while writes wait for their turn: twice the longest turn of writes,
/// if they were slow, one of reads, and those that writes owe.
pub const HELD_BY_TURNS_NS: Nanos = 200 * MILLISECOND;

impl Lengths {
    /// For the part `writes` of the time for writing, what a turn loses, and R. `None` if nobody writes, or nobody
    /// reads.
    pub(super) fn of(writes: f64, loss_ns: Nanos, keep: f64) -> Option<Lengths> {
        if !(writes > 0.0 && writes < 1.0) {
            return None;
        }
        let writes = writes.min(1.0 - READS_LEAST);
        let read_ns = loss_ns as f64 * keep / (1.0 - keep);
        let write_ns = read_ns * writes / (1.0 - writes);
        let [read_ns, write_ns] = [read_ns, write_ns].map(|ns| ns * (HELD_MOST_NS / read_ns.max(write_ns)).min(1.0));
        Some(Lengths { read_ns: (read_ns as Nanos).max(1), write_ns: (write_ns as Nanos).max(1) })
    }
}

/// No write goes later in its turn than so many times what they all should take.
const SLOW: Nanos = 2;

/// Whose turn it is.
#[derive(Debug)]
pub(super) struct Turns {
    lengths: Option<Lengths>,
    whose: Direction,
    /// Of writes: when it began.
    began: Nanos,
    /// It is not over before: what was written is programmed by then, or those who read have had their time.
    until: Nanos,
    /// Cost that may still be written; below 0 what was too much.
    credit_ns: i64,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { lengths: None, whose: Direction::Read, began: 0, until: 0, credit_ns: 0 }
    }
}

impl Turns {
    /// From now on turns are so long; `None`: there are none.
    pub(super) fn set(&mut self, lengths: Option<Lengths>) {
        self.lengths = lengths;
    }

    pub(super) fn are_taken(&self) -> bool {
        self.lengths.is_some()
    }

    /// Whose turn it is now, and whether it has just begun. It goes to writes only if some wait. Turns of reads pass
    /// while nobody looks: after a pause, or if the caller is late, nobody waits for time that has passed.
    pub(super) fn look(&mut self, now: Nanos, writes_wait: bool) -> (Direction, bool) {
        let before = self.whose;
        let Some(lengths) = self.lengths.filter(|_| now >= self.until) else { return (before, false) };
        let goes_on = writes_wait && self.may_write();
        let over_at = if goes_on { self.until.max(self.began + SLOW * lengths.write_ns) } else { self.until };
        if before == Direction::Write && now >= over_at {
            (self.whose, self.until) = (Direction::Read, over_at + lengths.read_ns);
        }
        if self.whose == Direction::Read && writes_wait && now >= self.until {
            let passed = 1 + (now - self.until) / lengths.read_ns;
            let most = lengths.write_ns as i64;
            let earned = most.saturating_mul(passed.min(i64::MAX as u64) as i64);
            self.credit_ns = self.credit_ns.saturating_add(earned).min(most);
            if self.may_write() {
                (self.whose, self.began) = (Direction::Write, now);
                return (self.whose, true);
            }
            // An earlier turn was too long by more than these.
            self.until += passed * lengths.read_ns;
            return (self.whose, true);
        }
        (self.whose, self.whose != before)
    }

    /// When it may be over.
    pub(super) fn ends_at(&self) -> Nanos {
        self.until
    }

    /// Whether the turn of writes has credit left.
    pub(super) fn may_write(&self) -> bool {
        self.credit_ns > 0
    }

    /// A write goes to the device in its turn.
    pub(super) fn wrote(&mut self, now: Nanos, cost_ns: Nanos) {
        let owed_most = self.lengths.map_or(0.0, |of| of.write_ns as f64 * HELD_MOST_NS / of.read_ns as f64) as i64;
        self.credit_ns = (self.credit_ns - cost_ns as i64).max(-owed_most);
        self.until = self.until.max(now) + cost_ns;
    }
}

impl Fair {
    /// Whose turn it is, and the first who wants to use it.
    pub(super) fn turn(&mut self, now: Nanos) -> (Direction, Option<usize>) {
        let writer = self.first_greedy(Direction::Write);
        let (direction, has_begun) = self.turns.look(now, writer.is_some());
        let first = match direction {
            Direction::Write => writer.filter(|_| self.turns.may_write()),
            Direction::Read => self.first_greedy(Direction::Read),
        };
        if has_begun {
            self.catch_up(direction);
        }
        // Few requests may go in a turn, and the time of those who are polite passes all the same.
        self.virtual_ns += now - self.looked_at;
        self.looked_at = now;
        (direction, first)
    }

    /// Those whose turn begins are as far as those who had the last one: what each kind gets, turns decide, and tags
    /// only within it.
    fn catch_up(&mut self, direction: Direction) {
        let Some(first) = self.first_greedy(direction) else { return };
        let lag_ns = self.virtual_ns.saturating_sub(self.tenants[first].as_ref().map_or(0, |tenant| tenant.start));
        for tenant in self.tenants.iter_mut().flatten() {
            // Who does both has its tag from both.
            let is_of_them = (tenant.writes() > 0.5) == (direction == Direction::Write);
            if is_of_them && !tenant.is_polite() && tenant.queue.peek_of(Some(direction)).is_some() {
                tenant.start += lag_ns;
                tenant.finish += lag_ns;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who has had how much of ten seconds, of requests that cost so much, if somebody always wants to write: cost of
    /// writes, and time in which reads had their turn.
    fn ten_seconds(lengths: Lengths, write_ns: Nanos) -> (Nanos, Nanos) {
        let (mut turns, mut now, mut wrote, mut read) = (Turns::default(), 0, 0, 0);
        turns.set(Some(lengths));
        while now < 10_000 * MILLISECOND {
            let before = now;
            if turns.look(now, true).0 == Direction::Write && turns.may_write() {
                turns.wrote(now, write_ns);
                wrote += write_ns;
            } else {
                now = turns.ends_at().max(now + 1);
                read += if turns.whose == Direction::Read { now - before } else { 0 };
            }
        }
        (wrote, read)
    }

    #[test]
    fn writes_have_their_part_of_the_time_whatever_their_size() {
        for part in [0.1, 1.0 / 3.0, 0.5, 0.8] {
            let lengths = Lengths::of(part, MILLISECOND / 2, 0.9).unwrap();
            assert!(lengths.read_ns.abs_diff(9 * MILLISECOND / 2) <= 1);
            // For a longer one others would have to have more than nobody is held for.
            let longest = (part * HELD_MOST_NS / 2.0) as Nanos;
            for write_ns in [33_000, 2 * MILLISECOND, longest] {
                let (wrote, read) = ten_seconds(lengths, write_ns);
                let found = wrote as f64 / (wrote + read) as f64;
                assert!((found / part - 1.0).abs() < 0.05, "{part} of writes of {write_ns} ns: {found}");
            }
        }
        assert_eq!([0.0, 1.0, f64::NAN].map(|part| Lengths::of(part, MILLISECOND, 0.9)), [None; 3]);
    }

    #[test]
    fn writes_that_take_longer_than_they_cost_do_not_have_more_of_the_time() {
        let mut turns = Turns::default();
        turns.set(Lengths::of(0.5, MILLISECOND, 0.9));
        assert_eq!(turns.look(0, true), (Direction::Write, true));
        // One in 5 ms, which should take 0.1 ms.
        let went = (0..10).filter(|at| {
            let is_writing = turns.look(at * 5 * MILLISECOND, true).0 == Direction::Write;
            turns.wrote(at * 5 * MILLISECOND, if is_writing { MILLISECOND / 10 } else { 0 });
            is_writing
        });
        assert_eq!(went.count(), 8, "18 ms of 27");
    }

    #[test]
    fn without_writes_it_stays_with_reads_and_a_write_need_not_wait() {
        let mut turns = Turns::default();
        turns.set(Lengths::of(0.5, MILLISECOND, 0.9));
        assert_eq!(turns.look(0, false), (Direction::Read, false));
        assert_eq!(turns.look(100 * MILLISECOND, true), (Direction::Write, true));
        turns.wrote(100 * MILLISECOND, MILLISECOND);
        assert_eq!(turns.look(100 * MILLISECOND, false), (Direction::Write, false), "it is not yet programmed");
        assert_eq!(turns.look(101 * MILLISECOND, false), (Direction::Read, true));
        assert_eq!(turns.look(102 * MILLISECOND, true), (Direction::Read, false), "reads have their time");
    }

    #[test]
    fn turns_of_reads_pass_while_nobody_looks() {
        let mut turns = Turns::default();
        turns.set(Lengths::of(0.5, MILLISECOND, 0.9));
        let mut began = 0;
        for (written_ns, looks) in [(9, false), (9, true), (30, false), (30, true)] {
            let written_ns = written_ns * MILLISECOND;
            assert_eq!(turns.look(began, true), (Direction::Write, true));
            turns.wrote(began, written_ns);
            // What was written too much takes further turns of reads.
            let free = began + written_ns + written_ns / (9 * MILLISECOND) * 9 * MILLISECOND;
            assert!(!looks || turns.look(free - 1, true).0 == Direction::Read, "{written_ns}");
            assert_eq!(turns.look(free, true), (Direction::Write, true), "{written_ns}");
            began = free + 100 * MILLISECOND;
        }
        assert_eq!(turns.look(began, true), (Direction::Write, true));
        // A turn of writes that was not used up is over at twice its length.
        turns.wrote(began, MILLISECOND);
        assert_eq!(turns.look(began + 17 * MILLISECOND, true), (Direction::Write, false));
        assert_eq!(turns.look(began + 26 * MILLISECOND, true), (Direction::Read, true));
        assert_eq!(turns.look(began + 27 * MILLISECOND, true), (Direction::Write, true));
    }
}
