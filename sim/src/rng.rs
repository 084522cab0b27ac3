//! A random number generator with a seed: xoshiro256++, seeded by splitmix64 (Blackman and Vigna, prng.di.unimi.it).
//!
//! Implemented here and not taken from a crate, so that a seed gives the same world in all versions.

/// One million: probabilities of rare events are in parts of it.
pub const MILLION: u64 = 1_000_000;

/// A generator of random numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// A generator with the seed `seed`.
    pub fn new(mut seed: u64) -> Rng {
        let state = std::array::from_fn(|_| {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        });
        Rng { state }
    }

    /// A separate generator for one part of the world, so that the parts do not influence each other.
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.next())
    }

    /// 64 random bits.
    #[allow(clippy::should_implement_trait, reason = "not an iterator: it never ends and nobody iterates")]
    pub fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `least` to `most`, inclusive.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True with the probability `ppm` / 1,000,000.
    pub fn chance(&mut self, ppm: u64) -> bool {
        self.below(MILLION) < ppm
    }

    /// True with the probability 1 / `n`.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of `choices`.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// One of `choices`, with its weight.
    pub fn weighted<T: Copy>(&mut self, choices: &[(u64, T)]) -> T {
        let mut at = self.below(choices.iter().map(|(weight, _)| weight).sum());
        for &(weight, choice) in choices {
            if at < weight {
                return choice;
            }
            at -= weight;
        }
        unreachable!("below the sum of the weights")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_for_ever() {
        let mut rng = Rng::new(1);
        assert_eq!([rng.next(), rng.next()], [14971601782005023387, 13781649495232077965]);
    }

    #[test]
    fn choices_stay_in_bounds() {
        let mut rng = Rng::new(7);
        for _ in 0..1000 {
            assert!((3..=5).contains(&rng.between(3, 5)));
            assert_eq!(rng.weighted(&[(0, 'a'), (3, 'b'), (0, 'c')]), 'b');
        }
        assert!(!rng.chance(0) && rng.chance(MILLION));
    }
}
