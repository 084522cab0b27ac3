//! Guarantees: a minimum bandwidth that holds as long as it fits into the tenant's share.
//!
//! ```text
//!   round   | c (behind)  + released time | a       ·····| b           | d    ········|
//!   slice     share x round   of others    bytes are there:             time that a and d release:
//!                                          the slice ends               to b now, to c in the next two rounds
//! ```
//!
//! - Each slice has a goal: the bytes of the guarantee in one round. If the window lacks more than that, the goal is
//!   the missing part of the window, divided by the number of slices until its end. Bytes that are missing at the end
//!   of a window are not made up.
//! - The goal is higher if the later slices of the window would not deliver the rest at the worst recent locality
//!   ([`Worst`]). So a tenant releases time only while its window is safe.
//! - A slice lasts for at most the tenant's share of the round. It ends early when the goal is reached and another
//!   tenant wants the disk. The remaining time is released.
//! - Released time extends the slices of tenants with guarantees until they reach their goals, in the same round and in
//!   the next two. Tenants that are behind come first in the round ([`Class`]), in random order, so that the slack does
//!   not always run out before the same tenant.
//! - At most one round of released time is kept from one round to the next, for two rounds ([`Slack`]). The rest is
//!   divided among all tenants by share in the next round. A slice does not end early within this part, and the part is
//!   not released again. So a round is as long as without guarantees, and the disk switches no more often.
//!
//! A tenant has its share of each round, except the time that it released. The time of its requests is not predicted: a
//! reservation below the share would be too short when the tenant loses locality.
//!
//! Source: Wachs and Ganger, "Improving storage bandwidth guarantees with performance insulation" (CMU-PDL-10-113,
//! 2010), section 4; `docs/design/guarantees.md`. Downside: a tenant that loses locality more than it has in the last
//! minutes depends on what others release.

use crate::dice::Dice;
use crate::disk::slices::Enough;
use crate::spec::Terms;
use crate::units::{Nanos, SECOND};

/// Guarantees are judged by windows: the time that a tenant takes for the bytes of 15 s of its guarantee (section 5.1.6
/// of the source).
const WINDOW_NS: Nanos = 15 * SECOND;

/// The worst locality is remembered for this time, at least, and twice this time at most: many windows.
const WORST_NS: Nanos = 300 * SECOND;
/// Time per byte is measured over at least this time of slices, so that one slow request is not taken for the locality.
const SPELL_NS: Nanos = SECOND / 2;
/// The rest of a window is assumed to go faster than the worst spell by this factor: with 1, hardly any time is
/// released among eight and more tenants; with 4, up to 0.7 % of windows are avoidable (`docs/notes/guarantees.md`).
const BETTER: f64 = 2.5;

/// Bytes that a guarantee makes in `ns`.
fn due(terms: &Terms, ns: Nanos) -> u64 {
    u64::try_from(u128::from(terms.min_bytes_per_s) * u128::from(ns) / u128::from(SECOND)).unwrap_or(u64::MAX)
}

/// The order of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// Behind, and with less than its share of the window.
    Owed,
    /// Behind although it had its share.
    Behind,
    /// Not behind, or without a guarantee.
    Satisfied,
}

/// The longest time per byte of a tenant's slices, nanoseconds, in this period of [`WORST_NS`] and in the last one.
#[derive(Default, Debug)]
struct Worst {
    this: f64,
    last: f64,
    since: Nanos,
    /// The slices that are measured: their time, and the bytes that the clients received in them.
    time_ns: Nanos,
    bytes: u64,
}

impl Worst {
    fn slice(&mut self, now: Nanos, used_ns: Nanos, bytes: u64) {
        if now > self.since + WORST_NS {
            (self.last, self.this, self.since) = (self.this, 0.0, now);
        }
        (self.time_ns, self.bytes) = (self.time_ns + used_ns, self.bytes + bytes);
        if self.bytes > 0 && self.time_ns >= SPELL_NS {
            self.this = self.this.max(self.time_ns as f64 / self.bytes as f64);
            (self.time_ns, self.bytes) = (0, 0);
        }
    }

    /// Bytes that the clients receive in `ns` of slices at [`BETTER`] times the speed of the worst spell.
    fn bytes_in(&self, ns: Nanos) -> u64 {
        let worst = self.this.max(self.last);
        if worst > 0.0 { (BETTER * ns as f64 / worst) as u64 } else { 0 }
    }
}

/// A guarantee, and the window in progress.
#[derive(Debug)]
pub(super) struct Guarantee {
    /// What the tenant is promised. With a guarantee.
    terms: Terms,
    /// The window in progress: when it began, less the time without requests, and what the clients had received by
    /// then. `None` before the first request.
    window: Option<(Nanos, u64)>,
    /// Since when it has no requests, if it has a window; and the time without any in this window before that.
    idle_since: Option<Nanos>,
    idle_ns: Nanos,
    /// When [`Guarantee::look`] was called last.
    looked_at: Nanos,
    /// Bytes that the clients will have received when this round has given them enough.
    goal: u64,
    /// What the clients had received when the slice in progress began.
    slice: Option<u64>,
    worst: Worst,
    /// Disk time that it has had in this window.
    used_ns: Nanos,
    /// Its last slice ended before the goal was reached.
    pub(super) is_behind: bool,
}

impl Guarantee {
    pub(super) fn new(terms: Terms) -> Guarantee {
        Guarantee {
            terms,
            window: None,
            idle_since: None,
            idle_ns: 0,
            looked_at: 0,
            goal: 0,
            slice: None,
            worst: Worst::default(),
            used_ns: 0,
            is_behind: false,
        }
    }

    /// Another promise begins another window, also for those who judge it (`../../windows.rs`).
    pub(super) fn set(&mut self, terms: Terms) {
        if self.terms != terms {
            (self.terms, self.window) = (terms, None);
            (self.idle_since, self.idle_ns, self.used_ns) = (None, 0, 0);
        }
    }

    /// The clients have received so many bytes by now: a window may be over. It ended after the last look.
    pub(super) fn look(&mut self, now: Nanos, delivered: u64) {
        let bytes = due(&self.terms, WINDOW_NS).max(1);
        if let Some((since, from)) = &mut self.window
            && delivered - *from >= bytes
        {
            *from += (delivered - *from) / bytes * bytes;
            *since = self.looked_at;
            (self.used_ns, self.idle_ns) = (0, 0);
            // Without requests, but with cache hits.
            self.idle_since = self.idle_since.map(|idle_since| idle_since.max(self.looked_at));
        }
        self.looked_at = now;
    }

    /// Its place among the others in a round, if `length` of each `round_ns` is its share: tenants that are behind come
    /// first, and before them those that have had less than their share of the window, because they can demand it.
    pub(super) fn class(&self, now: Nanos, length: Nanos, round_ns: Nanos) -> Class {
        let past_ns = self.window.map_or(0, |(since, _)| now - since);
        let share_ns = u128::from(past_ns) * u128::from(length) / u128::from(round_ns.max(1));
        match self.is_behind {
            true if u128::from(self.used_ns) < share_ns => Class::Owed,
            true => Class::Behind,
            false => Class::Satisfied,
        }
    }

    /// A request arrives. The time without requests is not part of the window, as it is not for those who judge it
    /// (`../../windows.rs`). If they have closed it meanwhile because demand was missing, a window begins.
    pub(super) fn arrived(&mut self, now: Nanos, delivered: u64) {
        let (since, from) = self.window.get_or_insert((now, delivered));
        let Some(idle_since) = self.idle_since.take() else { return };
        let paused_ns = now - idle_since;
        *since += paused_ns;
        self.idle_ns += paused_ns;
        let wanted_ns = now - *since;
        let past_ns = wanted_ns + self.idle_ns;
        let has_due = delivered - *from >= due(&self.terms, wanted_ns);
        if past_ns >= WINDOW_NS && wanted_ns <= WINDOW_NS && (has_due || 2 * wanted_ns < past_ns) {
            (*since, *from) = (now, delivered);
            (self.used_ns, self.idle_ns) = (0, 0);
        }
    }

    /// A slice of `length` begins, in rounds of `round_ns`. Returns the bytes that the clients are to receive in it:
    /// what makes its bandwidth, or, if more is missing, an equal part of what is missing in each slice until the end
    /// of the window; and at least what later slices of the window would not make up for if locality became as bad as
    /// it has been.
    pub(super) fn begin(&mut self, now: Nanos, delivered: u64, length: Nanos, round_ns: Nanos) -> u64 {
        let (since, from) = *self.window.get_or_insert((now, delivered));
        let left_ns = (since + WINDOW_NS).saturating_sub(now);
        let missing = due(&self.terms, WINDOW_NS).saturating_sub(delivered - from);
        let slices = left_ns / round_ns.max(1) + 1;
        let pace = due(&self.terms, round_ns);
        let later_ns = length * slices.saturating_sub(2);
        let bytes = match left_ns {
            0 => pace,
            _ => pace.max(missing / slices).max(missing.saturating_sub(self.worst.bytes_in(later_ns))),
        };
        self.goal = delivered.saturating_add(bytes);
        bytes
    }

    /// A slice that was interrupted goes on. Returns the bytes that the clients are to receive in it.
    pub(super) fn resume(&self, delivered: u64) -> u64 {
        self.goal.saturating_sub(delivered)
    }

    /// The slice starts, or goes on.
    pub(super) fn starts(&mut self, delivered: u64) {
        self.slice = Some(delivered);
    }

    /// The slice lasted for `used_ns`, and goes on because no other tenant has work.
    pub(super) fn continues(&mut self, now: Nanos, used_ns: Nanos, delivered: u64) {
        self.look(now, delivered);
        self.ended(used_ns, delivered);
        self.starts(delivered);
    }

    /// The slice ended. It lasted for `used_ns`.
    pub(super) fn ended(&mut self, used_ns: Nanos, delivered: u64) {
        self.is_behind = delivered < self.goal;
        let Some(before) = self.slice.take() else { return };
        self.used_ns += used_ns;
        self.worst.slice(self.looked_at, used_ns, delivered - before);
    }

    /// It has no more requests: it does not come first for what it lacks. Its window goes on with the next request.
    pub(super) fn idles(&mut self, now: Nanos) {
        if self.window.is_some() {
            self.idle_since.get_or_insert(now);
        }
        self.is_behind = false;
    }
}

/// Released time, by age: of the present round, the last one, and the one before.
#[derive(Default, Debug)]
pub(super) struct Slack([Nanos; 3]);

impl Slack {
    pub(super) fn total(&self) -> Nanos {
        self.0.iter().sum()
    }

    pub(super) fn release(&mut self, ns: Nanos) {
        self.0[0] += ns;
    }

    /// Takes `ns`, which are there, the oldest first.
    pub(super) fn take(&mut self, mut ns: Nanos) {
        for part in self.0.iter_mut().rev() {
            let taken = ns.min(*part);
            (*part, ns) = (*part - taken, ns - taken);
        }
    }

    /// A round begins. Returns what has become too old.
    fn age(&mut self) -> Nanos {
        let [this, last, oldest] = self.0;
        self.0 = [0, this, last];
        oldest
    }

    pub(super) fn clear(&mut self) {
        *self = Slack::default();
    }
}

/// What the tenants with guarantees have in common.
#[derive(Debug)]
pub(super) struct Rounds {
    /// The number of tenants with guarantees. Without any, nothing of this is used.
    pub(super) guarantees: u32,
    pub(super) slack: Slack,
    /// Time that is divided among all by share in this round.
    spare_ns: Nanos,
    dice: Dice,
}

impl Rounds {
    pub(super) fn new(seed: u64) -> Rounds {
        Rounds { guarantees: 0, slack: Slack::default(), spare_ns: 0, dice: Dice::new(seed) }
    }

    /// A round begins. At most another round is divided in it, and at most one round of slack is kept: a tenant that
    /// comes first in a round and last in the next waits for both rounds and for all of this.
    pub(super) fn begin(&mut self, round_ns: Nanos) {
        let old_ns = self.slack.age();
        let excess_ns = self.slack.total().saturating_sub(round_ns);
        self.slack.take(excess_ns);
        self.spare_ns = (old_ns + excess_ns).min(round_ns);
    }

    /// What a slice of `length` in a round of `round_ns` has of the time that is divided by share.
    pub(super) fn spare_ns(&self, length: Nanos, round_ns: Nanos) -> Nanos {
        (u128::from(self.spare_ns) * u128::from(length) / u128::from(round_ns.max(1))) as Nanos
    }

    /// No other tenant wants the disk.
    pub(super) fn forget(&mut self) {
        self.slack.clear();
        self.spare_ns = 0;
    }

    /// Puts the items in random order.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.dice.below(at as u64 + 1) as usize);
        }
    }
}

/// When a slice with a guarantee may end early: its goal, and its part of the time that is divided by share.
pub(super) fn enough(bytes: u64, spare_ns: Nanos) -> Enough {
    Enough { bytes, ns: spare_ns, requests: 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Share;

    fn of(min_bytes_per_s: u64) -> Terms {
        Terms { min_bytes_per_s, ..Terms::default() }
    }

    #[test]
    fn two_rounds_of_released_time_are_outstanding_at_most_and_none_is_lost() {
        const ROUND_NS: Nanos = 1000;
        for released_ns in [100, 400, 600, 800, 1000] {
            let (mut rounds, mut divided_ns) = (Rounds::new(1), 0);
            for _ in 0..20 {
                rounds.begin(ROUND_NS);
                let outstanding_ns = rounds.slack.total() + rounds.spare_ns;
                assert!(outstanding_ns <= 2 * ROUND_NS, "{outstanding_ns} of {released_ns} a round");
                divided_ns += rounds.spare_ns;
                rounds.slack.release(released_ns);
            }
            assert_eq!(divided_ns + rounds.slack.total(), 20 * released_ns);
            assert_eq!(rounds.spare_ns, released_ns, "a round is as long as without guarantees");
        }
    }

    #[test]
    fn a_window_goes_on_after_a_pause_which_is_not_part_of_it() {
        const MB: u64 = 1_000_000;
        let mut guarantee = Guarantee::new(of(MB));
        guarantee.arrived(0, 0);
        // After 5 s, 3 MB of 15 are there: 12 MB are missing, in 10 s of demand.
        guarantee.look(5 * SECOND, 3 * MB);
        guarantee.idles(5 * SECOND);
        guarantee.idles(6 * SECOND);
        guarantee.arrived(7 * SECOND, 3 * MB);
        assert_eq!(guarantee.begin(7 * SECOND, 3 * MB, SECOND / 2, SECOND), 12 * MB, "nothing is known of its worst");
        assert_eq!(guarantee.window, Some((2 * SECOND, 0)));
        // It has what it is due, and is away until the window is over.
        guarantee.look(9 * SECOND, 7 * MB);
        guarantee.idles(9 * SECOND);
        guarantee.arrived(14 * SECOND, 7 * MB);
        assert_eq!(guarantee.window, Some((7 * SECOND, 0)), "it is not over");
        guarantee.idles(14 * SECOND);
        guarantee.arrived(30 * SECOND, 7 * MB);
        assert_eq!(guarantee.window, Some((30 * SECOND, 7 * MB)));
    }

    #[test]
    fn a_window_that_ends_with_cache_hits_leaves_no_pause_from_before_it() {
        let mut guarantee = Guarantee::new(of(100));
        guarantee.arrived(0, 0);
        guarantee.idles(SECOND);
        guarantee.look(2 * SECOND, 0);
        guarantee.look(3 * SECOND, 1500);
        guarantee.arrived(4 * SECOND, 1500);
        assert_eq!(guarantee.window, Some((4 * SECOND, 1500)));
    }

    #[test]
    fn another_promise_begins_another_window() {
        let mut guarantee = Guarantee::new(of(100));
        guarantee.arrived(0, 0);
        guarantee.starts(0);
        guarantee.ended(SECOND, 500);
        guarantee.set(of(100));
        assert_eq!((guarantee.window, guarantee.used_ns), (Some((0, 0)), SECOND));
        guarantee.set(Terms { share: Some(Share::ONE), ..of(100) });
        assert_eq!((guarantee.window, guarantee.used_ns), (None, 0));
        guarantee.begin(7 * SECOND, 500, SECOND / 2, SECOND);
        assert_eq!(guarantee.window, Some((7 * SECOND, 500)));
    }
}
