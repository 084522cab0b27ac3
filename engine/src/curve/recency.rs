//! Which samples were referenced after a given one: one bit per slot of time, counted by a Fenwick tree over words of
//! bits.
//!
//! ```text
//!   slots (time) ─►  1 0 0 1 1 0 1 …  a sample's bit is set at its last reference
//!                      ▲ ones after this slot: other samples referenced since then
//! ```
//!
//! Source: Bennett and Kruskal, "LRU stack processing" (1975), with a bit per element instead of a leaf.

/// Slots per word.
const WORD: usize = 64;

/// One bit per slot.
#[derive(Debug)]
pub(super) struct Recency {
    words: Vec<u64>,
    /// Fenwick tree over the words, indexed from 1: entry `i` is the number of ones in the `i & -i` words up to word
    /// `i`.
    tree: Vec<u32>,
    ones: u32,
}

impl Recency {
    pub(super) fn new(slots: usize) -> Recency {
        let words = slots.div_ceil(WORD);
        Recency { words: vec![0; words], tree: vec![0; words + 1], ones: 0 }
    }

    /// Bytes for this number of slots: a little less than a quarter of a byte per slot.
    pub(super) fn bytes(slots: usize) -> usize {
        slots.div_ceil(WORD) * (size_of::<u64>() + size_of::<u32>())
    }

    pub(super) fn ones(&self) -> u32 {
        self.ones
    }

    pub(super) fn set(&mut self, slot: u32) {
        let (word, bit) = (slot as usize / WORD, 1 << (slot as usize % WORD));
        debug_assert!(self.words[word] & bit == 0);
        self.words[word] |= bit;
        self.ones += 1;
        self.add(word, 1);
    }

    pub(super) fn clear(&mut self, slot: u32) {
        let (word, bit) = (slot as usize / WORD, 1 << (slot as usize % WORD));
        debug_assert!(self.words[word] & bit != 0);
        self.words[word] &= !bit;
        self.ones -= 1;
        self.add(word, u32::MAX);
    }

    fn add(&mut self, word: usize, what: u32) {
        let mut at = word + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add(what);
            at += at & at.wrapping_neg();
        }
    }

    /// The number of ones after `slot`.
    pub(super) fn after(&self, slot: u32) -> u32 {
        let (word, bit) = (slot as usize / WORD, slot as usize % WORD);
        let mut up_to = (self.words[word] << (WORD - 1 - bit)).count_ones();
        let mut at = word;
        while at > 0 {
            up_to += self.tree[at];
            at &= at - 1;
        }
        self.ones - up_to
    }

    /// Clears all bits and makes room for this number of slots.
    pub(super) fn reset(&mut self, slots: usize) {
        self.words.clear();
        self.words.resize(slots.div_ceil(WORD), 0);
        self.tree.clear();
        self.tree.resize(slots.div_ceil(WORD) + 1, 0);
        self.ones = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counts_what_comes_after(slots in prop::collection::vec(0u32..1000, 1..300)) {
            let mut recency = Recency::new(1000);
            let mut naive = BTreeSet::new();
            for slot in slots {
                if naive.insert(slot) {
                    recency.set(slot);
                } else {
                    naive.remove(&slot);
                    recency.clear(slot);
                }
                prop_assert_eq!(recency.after(slot) as usize, naive.range(slot + 1..).count());
                prop_assert_eq!(recency.ones() as usize, naive.len());
            }
        }
    }
}
