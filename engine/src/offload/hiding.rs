//! Which versions of a volume hide which: a version is deleted after those that it hides.
//!
//! ```text
//!   writes   v1 |--------|  v2     |--------|  v3 |-------------|     v2 hides v1, v3 hides v1 and v2
//! ```
//!
//! A version hides another one if it is newer and has covered content of it that was the newest until then, or if the
//! other one failed and overlaps it. What the other one had covered itself is hidden by it, until it is deleted: so a
//! pair is not needed for any two versions that overlap.
//!
//! Memory: two entries in B-trees for each pair, until one of the two is forgotten.

use std::collections::BTreeSet;

#[derive(Default, Debug)]
pub(super) struct Hiding {
    /// Higher number, lower number.
    hidden: BTreeSet<(u64, u64)>,
    /// Lower number, higher number.
    hides: BTreeSet<(u64, u64)>,
}

/// The second numbers of the pairs with this first one.
fn of(pairs: &BTreeSet<(u64, u64)>, first: u64) -> impl Iterator<Item = u64> + '_ {
    pairs.range((first, 0)..=(first, u64::MAX)).map(|&(_, second)| second)
}

impl Hiding {
    pub(super) fn add(&mut self, higher: u64, lower: u64) {
        self.hidden.insert((higher, lower));
        self.hides.insert((lower, higher));
    }

    /// What a version hides.
    pub(super) fn below(&self, number: u64) -> impl Iterator<Item = u64> + '_ {
        of(&self.hidden, number)
    }

    /// What hides a version.
    pub(super) fn above(&self, number: u64) -> impl Iterator<Item = u64> + '_ {
        of(&self.hides, number)
    }

    /// What hides a version, each with what it hides then if that version is deleted: a higher and a lower one.
    pub(super) fn pairs_through(&self, number: u64, overlap: impl Fn(u64, u64) -> bool) -> Vec<(u64, u64)> {
        let of = |higher| self.below(number).map(move |lower| (higher, lower));
        self.above(number).flat_map(of).filter(|&(higher, lower)| overlap(higher, lower)).collect()
    }

    /// A version is in no store any more. Returns what has hidden it.
    pub(super) fn forget(&mut self, number: u64) -> Vec<u64> {
        let (above, below): (Vec<u64>, Vec<u64>) = (self.above(number).collect(), self.below(number).collect());
        for &higher in &above {
            self.hidden.remove(&(higher, number));
            self.hides.remove(&(number, higher));
        }
        for lower in below {
            self.hidden.remove(&(number, lower));
            self.hides.remove(&(lower, number));
        }
        above
    }
}
