//! Where in its schedule a disk is: the present timetable, the next ones, and the clock.

use std::collections::VecDeque;

use crate::cluster::{Clock, ClusterNanos, Slot, Timetable};
use crate::ids::TenantId;
use crate::units::Nanos;

/// A moment in the schedule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At {
    /// The tenant whose slot it is in; `None` between slots.
    pub(super) owner: Option<TenantId>,
    /// When the slot began, or the time between slots.
    pub(super) start: ClusterNanos,
    /// When it ends, or the schedule changes.
    pub(super) end: ClusterNanos,
    /// Length of the slot.
    pub(super) length_ns: Nanos,
    /// Its tenant has slots on other servers at the same time.
    pub(super) is_striped: bool,
}

/// The schedules and the clock.
#[derive(Debug, Default)]
pub(super) struct Times {
    present: Option<Timetable>,
    /// Each takes effect when it begins, in this order. Several may be announced before the first of them begins.
    next: VecDeque<Timetable>,
    clock: Clock,
}

/// Time into the round. A schedule has no first round: a disk that joins before it begins follows it all the same.
fn phase(timetable: &Timetable, t: ClusterNanos) -> Nanos {
    let (t, begins) = (i128::from(t), i128::from(timetable.begins_ns));
    (t - begins).rem_euclid(i128::from(timetable.round_ns)) as Nanos
}

impl Times {
    pub(super) fn set(&mut self, now: Nanos, timetable: Timetable) {
        if self.present.is_none() || planted!(ScheduleTakenAtOnce) {
            self.present = Some(timetable);
            return;
        }
        let t = self.cluster_ns(now);
        let timetable = match planted!(LateScheduleBeginsThen) {
            true => Timetable { begins_ns: timetable.begins_ns.max(t), ..timetable },
            false => timetable,
        };
        self.next.retain(|next| next.begins_ns < timetable.begins_ns && !planted!(ScheduleSkipped));
        self.next.push_back(timetable);
        self.advance(now);
    }

    pub(super) fn set_clock(&mut self, clock: Clock) {
        let (is_first, before) = (self.clock == Clock::default(), self.clock.ahead_ns);
        self.clock = match is_first {
            false if planted!(ClockCorrectionIgnored) => return,
            false if planted!(ClockCorrectionReversed) => Clock { ahead_ns: 2 * before - clock.ahead_ns },
            _ => clock,
        };
    }

    /// The next schedule takes effect if its time has come.
    pub(super) fn advance(&mut self, now: Nanos) {
        let t = self.cluster_ns(now);
        while let Some(next) = self.next.pop_front_if(|next| next.begins_ns <= t) {
            self.present = Some(next);
        }
    }

    pub(super) fn cluster_ns(&self, now: Nanos) -> ClusterNanos {
        self.clock.cluster_ns(now)
    }

    pub(super) fn engine_ns(&self, t: ClusterNanos) -> Nanos {
        self.clock.engine_ns(t)
    }

    pub(super) fn round_ns(&self) -> Nanos {
        self.present.as_ref().map_or(0, |present| present.round_ns)
    }

    /// The slots of a round.
    pub(super) fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.present.iter().flat_map(|present| &present.slots)
    }

    /// The slots of a round in the order in which they begin after `t`.
    pub(super) fn from(&self, t: ClusterNanos) -> impl Iterator<Item = &Slot> {
        self.present.iter().flat_map(move |present| {
            let at = phase(present, t);
            let first = present.slots.partition_point(|slot| slot.start_ns <= at);
            present.slots[first..].iter().chain(&present.slots[..first])
        })
    }

    /// Where `t` is. Without a schedule all time is free.
    pub(super) fn at(&self, t: ClusterNanos) -> At {
        let changes = self.next.front().map_or(ClusterNanos::MAX, |next| next.begins_ns);
        let Some(present) = &self.present else {
            return At { owner: None, start: t, end: changes, length_ns: 0, is_striped: false };
        };
        let (round_ns, at) = (present.round_ns, phase(present, t));
        // A slot of the last round may still be in progress.
        let begun = present.slots.iter().rev().find(|slot| slot.start_ns <= at).map(|slot| (slot, at - slot.start_ns));
        let begun = begun.or(present.slots.last().map(|slot| (slot, at + round_ns - slot.start_ns)));
        let next_ns = present.slots.iter().find(|slot| slot.start_ns > at).map(|slot| slot.start_ns - at);
        let next_ns = next_ns.or(present.slots.first().map(|slot| slot.start_ns + round_ns - at)).unwrap_or(round_ns);
        let (owner, start, left_ns, length_ns, is_striped) = match begun {
            Some((slot, past_ns)) if past_ns < slot.length_ns => {
                let start = t.saturating_sub(past_ns);
                (Some(slot.tenant), start, slot.length_ns - past_ns, slot.length_ns, slot.is_striped)
            }
            Some((slot, past_ns)) => (None, t.saturating_sub(past_ns - slot.length_ns), next_ns, 0, false),
            None => (None, t, next_ns, 0, false),
        };
        At { owner, start, end: t.saturating_add(left_ns).min(changes.max(t)), length_ns, is_striped }
    }
}
