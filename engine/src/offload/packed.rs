//! An ordered map from numbers to small values, or a set of numbers, for what there may be millions of.
//!
//! ```text
//!   BTreeMap   base ─► leaf     base ─► leaf     base ─► leaf
//!   leaf       up to 128 entries in order: (key - base, value)
//! ```
//!
//! An entry takes 4 bytes and its value, and about a byte of the leaf: leaves grow and shrink in steps of 16 entries,
//! so there is no spare half as in a B-tree of the standard library, which takes about 30 bytes an entry. Keys that
//! grow fill their leaves completely. Downside: an insertion moves up to 128 entries, and a map with few entries that
//! are far from each other has few in each leaf.

use std::collections::BTreeMap;

/// Entries of a leaf, at most: few enough that moving them costs less than a lookup in memory.
const LEAF_MAX: usize = 128;
/// Entries for which a leaf gets room at a time.
const STEP: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Entry<V> {
    /// Key - base of the leaf, less significant half first. In halves, so that it needs no more alignment than the
    /// value.
    delta: [u16; 2],
    value: V,
}

impl<V> Entry<V> {
    fn new(delta: u32, value: V) -> Entry<V> {
        Entry { delta: [delta as u16, (delta >> 16) as u16], value }
    }

    fn delta(&self) -> u32 {
        u32::from(self.delta[0]) | u32::from(self.delta[1]) << 16
    }
}

/// Entries of a leaf, in order.
type Leaf<V> = Vec<Entry<V>>;

/// A map from numbers to small values.
#[derive(Clone, Debug)]
pub(super) struct Packed<V> {
    /// By base, which is not above the first key. None is empty.
    leaves: BTreeMap<u64, Leaf<V>>,
}

impl<V> Default for Packed<V> {
    fn default() -> Self {
        Packed { leaves: BTreeMap::new() }
    }
}

fn delta(key: u64, base: u64) -> Option<u32> {
    u32::try_from(key.checked_sub(base)?).ok()
}

/// The place of a key in a leaf, or the one where it would be.
fn find<V>(leaf: &[Entry<V>], delta: u32) -> Result<usize, usize> {
    leaf.binary_search_by_key(&delta, Entry::delta)
}

fn push_at<V>(leaf: &mut Leaf<V>, at: usize, entry: Entry<V>) {
    if leaf.len() == leaf.capacity() {
        leaf.reserve_exact(STEP);
    }
    leaf.insert(at, entry);
}

/// Gives back the room that a leaf does not need any more.
fn trim<V>(leaf: &mut Leaf<V>) {
    if leaf.capacity() > leaf.len() + 2 * STEP {
        leaf.shrink_to(leaf.len() + STEP);
    }
}

impl<V: Copy> Packed<V> {
    pub(super) fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// The base of the leaf that would have the key, if there is one.
    fn base_of(&self, key: u64) -> Option<u64> {
        self.leaves.range(..=key).next_back().map(|(&base, _)| base)
    }

    pub(super) fn get(&self, key: u64) -> Option<V> {
        let (&base, leaf) = self.leaves.range(..=key).next_back()?;
        Some(leaf[find(leaf, delta(key, base)?).ok()?].value)
    }

    /// The last entry whose key is below this one.
    pub(super) fn before(&self, key: u64) -> Option<(u64, V)> {
        // The last leaf may have only keys that are not.
        self.leaves.range(..key).rev().find_map(|(&base, leaf)| {
            let past = delta(key, base).map_or(leaf.len(), |delta| find(leaf, delta).unwrap_or_else(|at| at));
            let last = leaf[..past].last()?;
            Some((base + u64::from(last.delta()), last.value))
        })
    }

    /// The first entry whose key is not below this one.
    pub(super) fn first_from(&self, key: u64) -> Option<(u64, V)> {
        let in_leaf = |(&base, leaf): (&u64, &Leaf<V>)| {
            let skipped = delta(key, base).map_or(leaf.len(), |delta| find(leaf, delta).unwrap_or_else(|at| at));
            leaf.get(skipped).map(|entry| (base + u64::from(entry.delta()), entry.value))
        };
        let of_next = |(&base, leaf): (&u64, &Leaf<V>)| (base + u64::from(leaf[0].delta()), leaf[0].value);
        let found = self.leaves.range(..=key).next_back().and_then(in_leaf);
        found.or_else(|| self.leaves.range(key..).next().map(of_next))
    }

    /// The entries from a key on.
    pub(super) fn range(&self, from: u64) -> impl Iterator<Item = (u64, V)> + Clone + '_ {
        let first = self.base_of(from).unwrap_or(from);
        self.leaves.range(first..).flat_map(move |(&base, leaf)| {
            let skipped = match delta(from, base) {
                Some(delta) => find(leaf, delta).unwrap_or_else(|at| at),
                None if base > from => 0,
                None => leaf.len(),
            };
            leaf[skipped..].iter().map(move |entry| (base + u64::from(entry.delta()), entry.value))
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, V)> + Clone + '_ {
        self.range(0)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = V> + Clone + '_ {
        self.leaves.values().flatten().map(|entry| entry.value)
    }

    /// Adds an entry, or replaces the value.
    pub(super) fn insert(&mut self, key: u64, value: V) {
        if let Some((&base, leaf)) = self.leaves.range_mut(..=key).next_back()
            && let Some(delta) = delta(key, base)
        {
            let at = match find(leaf, delta) {
                Ok(at) => return leaf[at].value = value,
                Err(at) => at,
            };
            if leaf.len() < LEAF_MAX {
                return push_at(leaf, at, Entry::new(delta, value));
            }
            // Keys that grow leave full leaves behind.
            if at < LEAF_MAX {
                self.split(base);
                return self.insert(key, value);
            }
        } else if let Some((&base, leaf)) = self.leaves.range(key..).next()
            && leaf.len() < LEAF_MAX
            && delta(base + u64::from(leaf[leaf.len() - 1].delta()), key).is_some()
        {
            self.rebase(base, key);
            let leaf = self.leaves.get_mut(&key).expect("just moved there");
            return push_at(leaf, 0, Entry::new(0, value));
        }
        let mut leaf = Vec::new();
        push_at(&mut leaf, 0, Entry::new(0, value));
        self.leaves.insert(key, leaf);
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<V> {
        let (&base, leaf) = self.leaves.range_mut(..=key).next_back()?;
        let at = find(leaf, delta(key, base)?).ok()?;
        let value = leaf.remove(at).value;
        trim(leaf);
        if leaf.is_empty() {
            self.leaves.remove(&base);
        } else if leaf.len() < LEAF_MAX / 4 && !self.join(base) {
            let before = self.leaves.range(..base).next_back().map(|(&base, _)| base);
            before.map(|before| self.join(before));
        }
        Some(value)
    }

    /// The second half of a leaf becomes one of its own.
    fn split(&mut self, base: u64) {
        let leaf = self.leaves.get_mut(&base).expect("a leaf");
        let second = leaf.drain(LEAF_MAX / 2..);
        let mut moved = Vec::with_capacity(LEAF_MAX / 2 + STEP);
        moved.extend(second);
        trim(leaf);
        self.add(base, moved);
    }

    /// Adds a leaf whose entries count from `base`, which is below the first key.
    fn add(&mut self, base: u64, mut leaf: Leaf<V>) {
        let first = leaf[0].delta();
        leaf.iter_mut().for_each(|entry| *entry = Entry::new(entry.delta() - first, entry.value));
        self.leaves.insert(base + u64::from(first), leaf);
    }

    /// The leaf at `base` counts from `to`, which is below. Its last key is less than 2^32 above that.
    fn rebase(&mut self, base: u64, to: u64) {
        let mut leaf = self.leaves.remove(&base).expect("a leaf");
        let more = (base - to) as u32;
        leaf.iter_mut().for_each(|entry| *entry = Entry::new(entry.delta() + more, entry.value));
        self.leaves.insert(to, leaf);
    }

    /// The leaf at `base` takes the entries of the next one, if both are small. Whether it did.
    fn join(&mut self, base: u64) -> bool {
        let mut both = self.leaves.range(base..);
        let (Some((_, leaf)), Some((&next, other))) = (both.next(), both.next()) else { return false };
        let last = next + u64::from(other[other.len() - 1].delta());
        if leaf.len() + other.len() > LEAF_MAX / 4 * 3 || delta(last, base).is_none() {
            return false;
        }
        let other = self.leaves.remove(&next).expect("just seen");
        let (more, leaf) = ((next - base) as u32, self.leaves.get_mut(&base).expect("just seen"));
        leaf.reserve_exact(other.len() + STEP);
        leaf.extend(other.into_iter().map(|entry| Entry::new(entry.delta() + more, entry.value)));
        true
    }
}

const _: () = assert!(size_of::<Entry<()>>() == 4 && size_of::<Entry<u32>>() == 8);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl<V: Copy> Packed<V> {
        /// Asserts what holds between calls.
        fn check(&self) {
            let mut past = 0;
            for (&base, leaf) in &self.leaves {
                assert!(base >= past && !leaf.is_empty() && leaf.len() <= LEAF_MAX);
                assert!(leaf.is_sorted_by(|a, b| a.delta() < b.delta()));
                assert!(leaf.capacity() <= leaf.len() + 2 * STEP);
                past = base + u64::from(leaf[leaf.len() - 1].delta()) + 1;
            }
        }

        /// Entries, and those for which there is room.
        fn fill(&self) -> (usize, usize) {
            self.leaves.values().fold((0, 0), |(len, room), leaf| (len + leaf.len(), room + leaf.capacity()))
        }
    }

    #[test]
    fn leaves_have_little_spare_room() {
        let is_dense = |map: &Packed<u32>| {
            map.check();
            let (len, room) = map.fill();
            assert!(room * 8 < len * 9 && map.leaves.len() * 48 < len, "{len} of {room}, {}", map.leaves.len());
        };
        let (mut up, mut down, mut mixed) = (Packed::default(), Packed::default(), Packed::default());
        for at in 0..10_000 {
            up.insert(at * 8, 0u32);
            down.insert((10_000 - at) * 8, 0u32);
            // All of them once, in an order without a pattern: the factor is odd.
            mixed.insert(at * 2_654_435_761 % (1 << 16), 0u32);
        }
        for map in [&up, &down, &mixed] {
            is_dense(map);
        }
        // All but every tenth.
        for at in (0..10_000).filter(|at| at % 10 != 0) {
            up.remove(at * 8);
        }
        up.check();
        let (len, room) = up.fill();
        assert!(len == 1000 && room < 2 * len && up.leaves.len() * 24 < len, "{room}, {}", up.leaves.len());
        for at in 0..10_000 {
            up.remove(at * 8);
        }
        assert!(up.is_empty());
    }

    /// Keys that are near each other, and some that are in no leaf with others.
    fn key() -> impl Strategy<Value = u64> {
        prop_oneof![8 => 0u64..600, 1 => (0u64..4).prop_map(|at| (at << 32) + 300), 1 => (1u64 << 40)..(1 << 40) + 200]
    }

    proptest! {
        #[test]
        fn a_btree_map_agrees(steps in proptest::collection::vec((key(), 0u32..3), 1..1500)) {
            let (mut map, mut model) = (Packed::default(), BTreeMap::new());
            for (at, (key, step)) in steps.into_iter().enumerate() {
                if step == 0 {
                    prop_assert_eq!(map.remove(key), model.remove(&key));
                } else {
                    map.insert(key, at as u32);
                    model.insert(key, at as u32);
                }
                prop_assert_eq!(map.get(key), model.get(&key).copied());
                let before = model.range(..key).next_back().map(|(&key, &value)| (key, value));
                prop_assert_eq!(map.before(key), before);
                let first = model.range(key..).next().map(|(&key, &value)| (key, value));
                prop_assert_eq!(map.first_from(key), first);
                prop_assert_eq!(map.range(key).next(), first);
                map.check();
            }
            prop_assert!(map.range(300).eq(model.range(300..).map(|(&key, &value)| (key, value))));
            prop_assert!(map.iter().eq(model.iter().map(|(&key, &value)| (key, value))));
            prop_assert!(map.values().eq(model.values().copied()));
        }
    }
}
