//! Guarantees: a minimum bandwidth that holds as long as it fits into the tenant's share.
//!
//! ```text
//!   round   | c (behind)  + released time | a       ·····| b           | d    ········|
//!   slice     share x round   of others    bytes are there:             time that a and d release:
//!                                          the slice ends               to b now, to c in the next two rounds
//! ```
//!
//! - A tenant is owed its guarantee for the time that passes. What it did not get although it had requests it is still
//!   owed in the next rounds, up to [`BEHIND_NS`] of its guarantee; more than that is lost.
//! - Its slice ends early when its clients have received what it is owed and another tenant wants the disk. The rest of
//!   the slice is released.
//! - Released time extends the slices of tenants with guarantees, until they have what they are owed: in the same
//!   round, and in the next two. Tenants that are behind come first in the round, in random order, so that none of them
//!   is always the one for which nothing remains.
//! - What nobody used after two rounds ([`Slack`]) is divided among all by share in the next round: then slices do not
//!   end before they have lasted for it. So a round is as long as without guarantees, and context switches take no more
//!   of it.
//!
//! A tenant always has its share of each round, except what it released itself. Nothing is predicted: a reservation for
//! the time that a guarantee is likely to take would be too short whenever the tenant loses locality.
//!
//! Source: Wachs and Ganger, "Improving storage bandwidth guarantees with performance insulation" (CMU-PDL-10-113,
//! 2010), section 4; `docs/design/guarantees.md`. Downside: a tenant that released time and then loses locality depends
//! on what others release.

use crate::disk::profile::walk::Dice;
use crate::disk::slices::Enough;
use crate::units::{Nanos, SECOND};

/// A tenant that did not get its guarantee is owed at most what it would have got in this time: a third of the window
/// in which guarantees are judged. What is missing for longer cannot be made up in it.
const BEHIND_NS: Nanos = 5 * SECOND;

/// Bytes that `bytes_per_s` makes in `ns`.
fn bytes_in(bytes_per_s: u64, ns: Nanos) -> u64 {
    (u128::from(bytes_per_s) * u128::from(ns) / u128::from(SECOND)) as u64
}

/// A guarantee, and what the tenant is owed.
#[derive(Debug)]
pub(super) struct Guarantee {
    bytes_per_s: u64,
    /// Bytes that it is owed at `at`; negative if it has more than it is owed. And bytes that its clients had received
    /// by then.
    owed: i64,
    at: Nanos,
    delivered: u64,
    /// Bytes that its clients will have received when it has what it is owed in this round.
    goal: u64,
    /// Its last slice was too short for that.
    pub(super) is_behind: bool,
}

impl Guarantee {
    pub(super) fn new(now: Nanos, bytes_per_s: u64) -> Guarantee {
        Guarantee { bytes_per_s, owed: 0, at: now, delivered: 0, goal: 0, is_behind: false }
    }

    pub(super) fn set(&mut self, bytes_per_s: u64) {
        self.bytes_per_s = bytes_per_s;
    }

    /// A slice begins, in rounds of `round_ns`. Returns the bytes that the clients are to receive in it.
    pub(super) fn begin(&mut self, now: Nanos, delivered: u64, round_ns: Nanos) -> u64 {
        let got = delivered.saturating_sub(self.delivered) as i64;
        let owed = self.owed + bytes_in(self.bytes_per_s, now - self.at) as i64 - got;
        self.owed = owed.clamp(0, bytes_in(self.bytes_per_s, BEHIND_NS) as i64);
        (self.at, self.delivered) = (now, delivered);
        let bytes = self.owed as u64 + bytes_in(self.bytes_per_s, round_ns);
        self.goal = delivered + bytes;
        bytes
    }

    /// A slice that was interrupted goes on. Returns the bytes that the clients are to receive in it.
    pub(super) fn resume(&self, delivered: u64) -> u64 {
        self.goal.saturating_sub(delivered)
    }

    /// Its slice is used up.
    pub(super) fn used_up(&mut self, delivered: u64) {
        self.is_behind = delivered < self.goal;
    }

    /// It had no more requests: it is owed nothing.
    pub(super) fn idles(&mut self) {
        (self.owed, self.is_behind) = (0, false);
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

    /// A round begins.
    pub(super) fn begin(&mut self) {
        self.spare_ns = self.slack.age();
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

/// What is enough for a slice with a guarantee: the bytes, and the time that everybody has in addition.
pub(super) fn enough(bytes: u64, spare_ns: Nanos) -> Enough {
    Enough { bytes, ns: spare_ns, requests: 1 }
}
