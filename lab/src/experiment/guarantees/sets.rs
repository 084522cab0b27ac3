//! Sets of workloads: all of a size, or 45 drawn with a fixed seed, so that every policy runs the same ones.

use sim::rng::Rng;

use super::workloads::COUNT;

/// Largest number of sets of a size: the number of pairs of ten workloads, as in the paper.
const SETS_MAX: usize = 45;
/// The same sets for ever.
const SEED: u64 = 15;

/// Sets of `size` of the ten workloads, each in ascending order; at most `most` of them.
pub fn sets(size: usize, most: usize) -> Vec<Vec<usize>> {
    let all = (0..1u32 << COUNT).filter(|bits| bits.count_ones() as usize == size);
    let of = |bits: u32| (0..COUNT).filter(|at| bits >> at & 1 == 1).collect();
    let mut sets: Vec<Vec<usize>> = all.map(of).collect();
    let mut rng = Rng::new(SEED + size as u64);
    // The beginning of a permutation (Fisher and Yates).
    let count = sets.len().min(most).min(SETS_MAX);
    for at in 0..count {
        let from = at + rng.below((sets.len() - at) as u64) as usize;
        sets.swap(at, from);
    }
    sets.truncate(count);
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sets_of_a_size_or_forty_five_different_ones() {
        assert_eq!([2, 5, 9, 10].map(|size| sets(size, usize::MAX).len()), [45, 45, 10, 1]);
        for size in 2..=COUNT {
            let mut drawn = sets(size, usize::MAX);
            assert_eq!(drawn, sets(size, usize::MAX));
            assert_eq!(drawn[..1], sets(size, 1)[..], "fewer are the first ones");
            let count = drawn.len();
            drawn.sort_unstable();
            drawn.dedup();
            assert!(drawn.len() == count && drawn.iter().all(|set| set.len() == size), "{drawn:?}");
        }
    }
}
