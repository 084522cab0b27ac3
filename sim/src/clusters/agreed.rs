//! What the servers agree on: schedules, each with the time when it takes effect. Any time is true time.

use std::collections::VecDeque;

use engine::cluster::{Slot, Timetable};
use engine::ids::TenantId;
use engine::units::{MILLISECOND, Nanos, SECOND};

use super::clock::EPOCH;
use crate::rng::Rng;

/// As in the server: a schedule is announced two rounds and so much before it takes effect.
const AHEAD_NS: Nanos = SECOND / 2;
/// Slots.
pub(super) const SLOT_NS: (u64, u64) = (100 * MILLISECOND, 250 * MILLISECOND);

/// The slot of a client, on all its servers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owned {
    pub(super) client: usize,
    pub(super) start_ns: Nanos,
    pub(super) length_ns: Nanos,
}

/// A schedule of the cluster.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    pub(super) version: u64,
    pub(super) begins: Nanos,
    pub(super) round_ns: Nanos,
    pub(super) slots: Vec<Owned>,
}

/// A moment on a server: a slot, or the time between two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spot {
    pub(super) version: u64,
    /// The client that has the slot.
    pub(super) owner: Option<usize>,
    pub(super) start: Nanos,
    pub(super) end: Nanos,
}

impl Schedule {
    /// The next version: slots in any order, each as early as its servers are free. Few clients have none. `servers`
    /// are those of each client.
    pub(super) fn next(before: Option<&Schedule>, now: Nanos, servers: &[Vec<usize>], rng: &mut Rng) -> Schedule {
        let mut order: Vec<usize> = (0..servers.len()).collect();
        (1..order.len()).rev().for_each(|at| order.swap(at, rng.below(at as u64 + 1) as usize));
        let count = servers.iter().flatten().max().map_or(0, |last| last + 1);
        let mut free_ns = vec![0; count];
        let mut slots = Vec::new();
        for client in order {
            let is_alone = free_ns.iter().all(|&at| at == 0);
            if !is_alone && rng.one_in(8) {
                continue;
            }
            let of = &servers[client];
            let gap_ns = if rng.one_in(4) { rng.below(SLOT_NS.0) } else { 0 };
            let start_ns = of.iter().map(|&server| free_ns[server]).max().unwrap_or(0) + gap_ns;
            let length_ns = rng.between(SLOT_NS.0, SLOT_NS.1);
            of.iter().for_each(|&server| free_ns[server] = start_ns + length_ns);
            slots.push(Owned { client, start_ns, length_ns });
        }
        slots.sort_by_key(|slot| slot.start_ns);
        let gap_ns = if rng.one_in(2) { rng.below(SLOT_NS.0) } else { 0 };
        let round_ns = free_ns.iter().max().map_or(SLOT_NS.0, |&end| end + gap_ns);
        let (version, begins) = match before {
            Some(before) => {
                let rounds = 2 * round_ns.max(before.round_ns);
                (before.version + 1, now.max(before.begins) + rounds + AHEAD_NS)
            }
            None => (1, now),
        };
        Schedule { version, begins, round_ns, slots }
    }

    /// The part of a server, on which these clients have volumes, in this order.
    pub(super) fn part(&self, guests: &[usize], servers: &[Vec<usize>]) -> Timetable {
        let here = |slot: &Owned| {
            let tenant = guests.iter().position(|&guest| guest == slot.client)?;
            Some(Slot {
                tenant: TenantId(tenant as u32),
                start_ns: slot.start_ns,
                length_ns: slot.length_ns,
                is_striped: servers[slot.client].len() > 1,
            })
        };
        let slots = self.slots.iter().filter_map(here).collect();
        Timetable { version: self.version, begins_ns: EPOCH + self.begins, round_ns: self.round_ns, slots }
    }

    /// Where `at` is on a server with these clients. A schedule has no first round.
    pub(super) fn at(&self, at: Nanos, guests: &[usize]) -> Spot {
        let (at, round) = (at as i64, self.round_ns as i64);
        let zero = at - (at - self.begins as i64).rem_euclid(round);
        let here = self.slots.iter().filter(|slot| guests.contains(&slot.client));
        let each = |slot: &Owned| [zero - round, zero, zero + round].map(|zero| (zero + slot.start_ns as i64, *slot));
        let mut all: Vec<(i64, Owned)> = here.flat_map(each).collect();
        all.sort_by_key(|(start, _)| *start);
        let next = all.iter().find(|(start, _)| *start > at).map_or(zero + round, |(start, _)| *start);
        let begun = all.iter().rfind(|(start, _)| *start <= at);
        let (owner, start, end) = match begun.map(|&(start, slot)| (slot.client, start, start + slot.length_ns as i64))
        {
            Some((client, start, end)) if at < end => (Some(client), start, end),
            Some((_, _, end)) => (None, end, next),
            None => (None, zero, next),
        };
        Spot { version: self.version, owner, start: start.max(0) as Nanos, end: end as Nanos }
    }
}

/// Which schedule a process has to follow at which time: each from when it was announced for, or from when the process
/// was told of it, if that is later. The first one at once.
#[derive(Clone, Debug, Default)]
pub(super) struct Due(VecDeque<(Nanos, u64)>);

impl Due {
    /// The process is told of a version that is above all earlier ones.
    pub(super) fn told(&mut self, now: Nanos, schedule: &Schedule) {
        let from = if self.0.is_empty() { now } else { schedule.begins.max(now) };
        self.0.retain(|&(earlier, _)| earlier < from);
        self.0.push_back((from, schedule.version));
    }

    /// The version at a time, since when, and until when as far as is known.
    pub(super) fn at(&self, at: Nanos) -> Option<(u64, Nanos, Nanos)> {
        let place = self.0.iter().rposition(|&(from, _)| from <= at)?;
        let until = self.0.get(place + 1).map_or(Nanos::MAX, |&(from, _)| from);
        Some((self.0[place].1, self.0[place].0, until))
    }

    /// The highest version that the process knows.
    pub(super) fn highest(&self) -> u64 {
        self.0.back().map_or(0, |&(_, version)| version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_a_server_do_not_overlap_and_a_moment_is_in_one_of_them() {
        let rng = &mut Rng::new(1);
        let servers = vec![vec![0, 1], vec![1, 2], vec![0], vec![2], vec![0, 1, 2]];
        let mut schedule = Schedule::next(None, 0, &servers, rng);
        for _ in 0..100 {
            schedule = Schedule::next(Some(&schedule), schedule.begins, &servers, rng);
            for server in 0..3 {
                let guests: Vec<usize> = (0..5).filter(|&client| servers[client].contains(&server)).collect();
                assert_eq!(schedule.part(&guests, &servers).check(), Ok(()));
                for slot in schedule.slots.iter().filter(|slot| guests.contains(&slot.client)) {
                    let start = schedule.begins + 7 * schedule.round_ns + slot.start_ns;
                    let (first, last) = (schedule.at(start, &guests), schedule.at(start + slot.length_ns - 1, &guests));
                    assert_eq!((first.owner, first.start), (Some(slot.client), start));
                    assert_eq!((first, first.end), (last, start + slot.length_ns));
                }
            }
        }
    }

    #[test]
    fn a_version_is_due_when_it_was_announced_for_or_when_it_is_known() {
        let version = |version, begins| Schedule { version, begins, round_ns: 1, slots: Vec::new() };
        let mut due = Due::default();
        due.told(5, &version(1, 9));
        due.told(10, &version(2, 20));
        due.told(11, &version(3, 30));
        assert_eq!([4, 5, 19, 20, 29, 30].map(|at| due.at(at).map_or(0, |(of, ..)| of)), [0, 1, 1, 2, 2, 3]);
        due.told(40, &version(4, 35));
        assert_eq!((due.at(39), due.at(40)), (Some((3, 30, 40)), Some((4, 40, Nanos::MAX))));
    }
}
