//! What a client of a striped volume loses of its slots: to the context switches, to servers that are late, and to
//! clocks that differ. A server sees only its own part of that; the client waits for the slowest.
//!
//! ```text
//!   slot     |····│  │ │   │  │  │ │··|        │ a completion
//!                 first         last           loss = slot - completions x mean time between two of them
//! ```
//!
//! Slots in which the client paused do not count. Source: DESIGN 7.4: "barrier loss lengthens the round". Downside: a
//! client with a deep queue has its last completions more slowly than the others; what it loses by that only its
//! servers know ([`crate::disk`]'s meter).

use super::{ClusterNanos, Slot, Timetable};
use crate::units::Nanos;

/// The weight of earlier slots after another one: about a hundred slots count, which is a minute or two.
const FADE: f64 = 1.0 - 1.0 / 128.0;
/// Slots that are needed for a figure. With a dozen completions in each, it is within 2 % of the slot then.
const LEAST: f64 = 12.0;
/// Pauses of more than this part of a slot make it count for nothing.
const PAUSE_PART: Nanos = 8;

/// The slot in progress.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Its beginning.
    start: ClusterNanos,
    completions: u32,
    first: ClusterNanos,
    last: ClusterNanos,
    paused_ns: Nanos,
}

/// Sums over slots, fading.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    slots: f64,
    time: f64,
    completions: f64,
    between: f64,
    span: f64,
}

/// A slot of each round from a time on.
#[derive(Clone, Copy, Debug)]
struct Each {
    slot: Slot,
    begins_ns: ClusterNanos,
    round_ns: Nanos,
}

/// The measurement of a client.
#[derive(Debug)]
pub struct Barrier {
    each: Each,
    /// Takes effect when it begins.
    next: Option<Each>,
    seen: Option<Seen>,
    sums: Sums,
    /// Since when the client has nothing outstanding.
    idle_since: Option<ClusterNanos>,
}

impl Barrier {
    /// A client whose slot is this one of the timetable.
    pub fn new(timetable: &Timetable, slot: Slot) -> Barrier {
        let each = Each { slot, begins_ns: timetable.begins_ns, round_ns: timetable.round_ns };
        Barrier { each, next: None, seen: None, sums: Sums::default(), idle_since: None }
    }

    /// The slot has another place or length when this timetable takes effect. What a slot loses does not depend on its
    /// length.
    pub fn set(&mut self, timetable: &Timetable, slot: Slot) {
        self.next = Some(Each { slot, begins_ns: timetable.begins_ns, round_ns: timetable.round_ns });
    }

    /// By how much a slice may begin before its slot, or end after it.
    fn around_ns(&self) -> Nanos {
        let Each { slot, round_ns, .. } = self.each;
        ((round_ns - slot.length_ns) / 2).min(slot.length_ns / PAUSE_PART)
    }

    /// The beginning of the last slot whose slice may have begun by `at`.
    fn start(&self, at: ClusterNanos) -> ClusterNanos {
        let Each { slot, begins_ns, round_ns } = self.each;
        let at = at + self.around_ns();
        let since = i128::from(at) - i128::from(begins_ns) - i128::from(slot.start_ns);
        at.saturating_sub(since.rem_euclid(i128::from(round_ns)) as Nanos)
    }

    /// The slot that `at` belongs to.
    fn enter(&mut self, at: ClusterNanos) -> Option<&mut Seen> {
        if let Some(next) = self.next.take_if(|next| next.begins_ns <= at) {
            // A slot in progress is another one from here on.
            (self.each, self.seen) = (next, None);
        }
        let start = self.start(at);
        if self.seen.is_none_or(|seen| seen.start != start) {
            self.leave();
            self.seen = Some(Seen { start, ..Seen::default() });
        }
        let (Each { slot, begins_ns, .. }, around_ns) = (self.each, self.around_ns());
        let ends = |seen: &Seen| seen.start + slot.length_ns + around_ns;
        self.seen.as_mut().filter(|seen| at <= ends(seen) && (begins_ns > at || seen.start >= begins_ns))
    }

    /// A slot is over: it counts if the client used it.
    fn leave(&mut self) {
        let Some(seen) = self.seen.take() else { return };
        if seen.completions < 2 || seen.paused_ns > self.each.slot.length_ns / PAUSE_PART {
            return;
        }
        let Sums { slots, time, completions, between, span } = self.sums;
        self.sums = Sums {
            slots: slots * FADE + 1.0,
            time: time * FADE + self.each.slot.length_ns as f64,
            completions: completions * FADE + f64::from(seen.completions),
            between: between * FADE + f64::from(seen.completions - 1),
            span: span * FADE + (seen.last - seen.first) as f64,
        };
    }

    /// The client has made a request.
    pub fn asked(&mut self, at: ClusterNanos) {
        if let Some(since) = self.idle_since.take()
            && let Some(seen) = self.enter(at)
        {
            seen.paused_ns += at - since.clamp(seen.start.min(at), at);
        }
    }

    /// A request is complete; `outstanding` others are not.
    pub fn completed(&mut self, at: ClusterNanos, outstanding: usize) {
        if let Some(seen) = self.enter(at) {
            if seen.completions == 0 {
                seen.first = at;
            }
            (seen.completions, seen.last) = (seen.completions + 1, at);
        }
        if outstanding == 0 {
            self.idle_since = Some(at);
        }
    }

    /// The mean loss of a slot; `None` before enough slots were used.
    pub fn loss_ns(&self) -> Option<Nanos> {
        let Sums { slots, time, completions, between, span } = self.sums;
        (slots >= LEAST).then(|| ((time - completions * span / between) / slots).max(0.0) as Nanos)
    }

    /// The shortest slot of which at most so many thousandths are lost.
    pub fn need_ns(&self, lost_permille: u32) -> Option<Nanos> {
        self.loss_ns().map(|loss| loss * 1000 / u64::from(lost_permille.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::TenantId;
    use crate::units::MILLISECOND;

    const MS: Nanos = MILLISECOND;

    fn barrier() -> Barrier {
        let slot = Slot { tenant: TenantId(0), start_ns: 100 * MS, length_ns: 300 * MS, is_striped: true };
        let timetable = Timetable { version: 1, begins_ns: 5_000 * MS, round_ns: 1_000 * MS, slots: vec![slot] };
        Barrier::new(&timetable, slot)
    }

    /// In each round, the first completion `late` after the beginning of the slot, then one each 10 ms, until the last
    /// possible one; what is outstanding afterwards waits for the next slot.
    fn rounds(barrier: &mut Barrier, late: u64, outstanding: usize) {
        for round in 0..40 {
            let begins = (5_100 + 1_000 * round) * MS;
            let mut at = begins + late * MS;
            while at < begins + 290 * MS {
                barrier.completed(at, outstanding);
                barrier.asked(at);
                at += 10 * MS;
            }
        }
    }

    #[test]
    fn the_loss_is_the_slot_without_its_completions() {
        let mut barrier = barrier();
        assert_eq!(barrier.loss_ns(), None);
        rounds(&mut barrier, 25, 1);
        // The last completion is at 285 ms, the first one took 15 ms more than the others.
        assert_eq!(barrier.loss_ns().map(|loss| loss / MS), Some(30));
        assert_eq!(barrier.need_ns(100).map(|need| need / MS), Some(300));
    }

    #[test]
    fn pauses_between_slots_and_within_them_are_no_loss() {
        let mut waits = barrier();
        rounds(&mut waits, 25, 0);
        assert_eq!(waits.loss_ns().map(|loss| loss / MS), Some(30), "it is never idle for long in a slot");
        let mut pauses = barrier();
        for round in 0..40 {
            let begins = (5_100 + 1_000 * round) * MS;
            for at in [10, 20, 200, 210] {
                pauses.asked(begins + (at - 10) * MS);
                pauses.completed(begins + at * MS, 0);
            }
        }
        assert_eq!(pauses.loss_ns(), None);
    }

    #[test]
    fn what_is_done_in_lent_time_does_not_count() {
        let mut barrier = barrier();
        rounds(&mut barrier, 25, 1);
        let before = barrier.loss_ns();
        for round in 40..80 {
            barrier.completed((5_700 + 1_000 * round) * MS, 1);
        }
        assert_eq!(barrier.loss_ns(), before);
    }
}
