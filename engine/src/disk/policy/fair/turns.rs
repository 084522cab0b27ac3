//! Phases of reads and of writes, for devices where a read suffers from writes that were acknowledged long before.
//!
//! Flash cannot interrupt a program. While writes trickle in between reads, some part of the device is always
//! programming, and requests that touch that part wait. The latency-bound tenant waits, and with it all requests that
//! are held back for its sake. Written together, the same data is programmed in a part of the time, and in the rest
//! reads find the device as if there were no writes.
//!
//! ```text
//!   writes         ▒▒▒▒▒▒▒              ▒▒▒▒▒▒▒             part of the time: the weights of the writing tenants
//!   reads                 ░░░░░░░░░░░░░░       ░░░░░░░░     the rest, at least loss x R / (1 - R) at a time
//!   latency-bound  · · · ················ · · ·········     whenever a request arrives
//!                         ▲ programmed according to the costs: not before
//! ```
//!
//! The loss is how long a program delays a read, from the profile. It occurs once per read phase, so the phase has the
//! length that a slice would have (`docs/design/slices.md`). Writes have a credit of their part of the time. A large
//! write that exceeds it leaves a debt. If writes take longer than they cost (because each one waits for the medium,
//! say), their phase ends all the same.
//!
//! Source: Park and Shen, "FIOS: A Fair, Efficient Flash I/O Scheduler", FAST 2012 (reads and writes separated, time
//! slices). Downside: the end of programming is inferred from costs, not observed. A tenant that waits for a write
//! waits for the write phase.

use super::Fair;
use crate::disk::lanes::Lanes;
use crate::disk::profile::Direction;
use crate::disk::queue::Which;
use crate::ids::TenantId;
use crate::units::{MILLISECOND, Nanos};

/// The lengths of the phases.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Lengths {
    read_ns: Nanos,
    write_ns: Nanos,
}

/// Minimum part of the time for reads, however small the weight of the readers: so a write phase has an end.
const READS_LEAST: f64 = 1.0 / 16.0;
/// Longest delay by a phase, or by the debt of earlier writes, whatever the profile says.
const HELD_MOST_NS: f64 = 50.0 * MILLISECOND as f64;
/// Longest time for which the device idles while writes wait for their phase: twice the longest write phase, if the
/// writes were slow, one read phase, and the debt of the writes.
pub const HELD_BY_TURNS_NS: Nanos = 200 * MILLISECOND;

impl Lengths {
    /// For `writes`, the part of the time for writing, the loss of a phase, and R. `None` if there are no writes or no
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

/// No write is submitted later in its phase than this multiple of the phase's length.
const SLOW: Nanos = 2;

/// The state of the phases.
#[derive(Debug)]
pub(super) struct Turns {
    lengths: Option<Lengths>,
    whose: Direction,
    /// When the write phase began.
    began: Nanos,
    /// The phase does not end before then: the submitted writes are programmed by then, or the readers have had their
    /// time.
    until: Nanos,
    /// Cost that may still be written; below 0 a debt.
    credit_ns: i64,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { lengths: None, whose: Direction::Read, began: 0, until: 0, credit_ns: 0 }
    }
}

impl Turns {
    /// Sets the lengths of the phases; with `None`, there are no phases.
    pub(super) fn set(&mut self, lengths: Option<Lengths>) {
        self.lengths = lengths;
    }

    pub(super) fn are_taken(&self) -> bool {
        self.lengths.is_some()
    }

    /// The direction of the present phase, and whether the phase has just begun. A write phase begins only if writes
    /// are queued. Read phases also elapse between calls: after a pause, or if the caller is late, no write waits for
    /// time that has passed.
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
            // The debt of an earlier write phase exceeds what these read phases have earned.
            self.until += passed * lengths.read_ns;
            return (self.whose, true);
        }
        (self.whose, self.whose != before)
    }

    /// When the phase may end.
    pub(super) fn ends_at(&self) -> Nanos {
        self.until
    }

    /// Whether the write phase has credit left.
    pub(super) fn may_write(&self) -> bool {
        self.credit_ns > 0
    }

    /// A write is submitted in its phase.
    pub(super) fn wrote(&mut self, now: Nanos, cost_ns: Nanos) {
        let unsent_most = self.lengths.map_or(0.0, |of| of.write_ns as f64 * HELD_MOST_NS / of.read_ns as f64) as i64;
        self.credit_ns = (self.credit_ns - cost_ns as i64).max(-unsent_most);
        self.until = self.until.max(now) + cost_ns;
    }
}

impl Fair {
    /// The direction of the present phase, and the first backlogged tenant that can use it.
    pub(super) fn turn(&mut self, now: Nanos, lanes: &Lanes) -> (Direction, Option<TenantId>) {
        let writer = self.first_backlogged(lanes, Direction::Write);
        let (direction, has_begun) = self.turns.look(now, writer.is_some());
        let first = match direction {
            Direction::Write => writer.filter(|_| self.turns.may_write()),
            Direction::Read => self.first_backlogged(lanes, Direction::Read),
        };
        if has_begun {
            self.catch_up(direction, lanes);
        }
        // Few requests may be submitted in a phase, while the time of latency-bound tenants passes: virtual time
        // follows it.
        self.virtual_ns += now - self.looked_at;
        self.looked_at = now;
        (direction, first)
    }

    /// Advances the tags of the tenants whose phase begins to those of the previous phase: phases decide how much each
    /// direction gets, and tags only order the requests within a phase.
    fn catch_up(&mut self, direction: Direction, lanes: &Lanes) {
        let Some(first) = self.first_backlogged(lanes, direction) else { return };
        let lag_ns = self.virtual_ns.saturating_sub(self.tenants[first].start);
        for (id, tenant) in self.tenants.iter_mut() {
            // A tenant that reads and writes has one tag for both. It is advanced in the phase of its main direction
            // only.
            let is_of_them = (tenant.writes() > 0.5) == (direction == Direction::Write);
            if is_of_them && !tenant.is_latency_bound() && lanes[id].queue.peek_of(Which::Only(direction)).is_some() {
                tenant.start += lag_ns;
                tenant.finish += lag_ns;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much of ten seconds each direction gets if writes of this cost are always queued: the cost of the writes,
    /// and the time of the read phases.
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
            // Longer writes would need read phases beyond the longest permitted delay.
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
        // One write in 5 ms, at a cost of 0.1 ms.
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
            // The debt of the writes takes further read phases.
            let free = began + written_ns + written_ns / (9 * MILLISECOND) * 9 * MILLISECOND;
            assert!(!looks || turns.look(free - 1, true).0 == Direction::Read, "{written_ns}");
            assert_eq!(turns.look(free, true), (Direction::Write, true), "{written_ns}");
            began = free + 100 * MILLISECOND;
        }
        assert_eq!(turns.look(began, true), (Direction::Write, true));
        // A write phase that is not used up ends at twice its length.
        turns.wrote(began, MILLISECOND);
        assert_eq!(turns.look(began + 17 * MILLISECOND, true), (Direction::Write, false));
        assert_eq!(turns.look(began + 26 * MILLISECOND, true), (Direction::Read, true));
        assert_eq!(turns.look(began + 27 * MILLISECOND, true), (Direction::Write, true));
    }
}
