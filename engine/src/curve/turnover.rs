//! Whether a working set moves: blocks that were read often are no longer read.
//!
//! ```text
//!            |◄──────────── horizon ────────────►|
//!   ─────────┼─────────────────┬─────────────────┤ now        r: a read of a block
//!   a  r     r    r  r    r    │   r   r      r   │            read in the later half
//!   b     r  r r r r  r   r    │                  │            abandoned: not read in the later half
//! ```
//!
//! Under a stationary load the reads of a block are spread evenly over the time since its first read. A block with n
//! reads after its first one, `age` references ago, then has no read in the last `half` references with probability
//! (1 - half / age) ^ n: at most 1/8 for n = 3, for any popularity. The sum of these probabilities is the number of
//! blocks that are abandoned by chance. If many more are abandoned, the set moves.
//!
//! This matters for standalone estimates. New blocks of a moving set may come with time, not with requests. A tenant
//! alone makes more requests in the same time, and a smaller part of them is for new blocks.
//!
//! Blocks without a read within the horizon do not count: a set that changed once is not a moving set.
//!
//! Source: ours. Downside: sets that move more slowly than the horizon, or whose blocks are read fewer than four times,
//! are not detected. Blocks that are abandoned after a number of reads, not after a time, are taken for a moving set.

/// Blocks with fewer reads are not counted: half of the blocks with two reads have none in the later half.
const READS_LEAST: u8 = 4;
/// Reads of a block are counted up to this number: with so many, none is abandoned by chance.
pub(super) const READS_MOST: u8 = 200;
/// With fewer blocks that were read often, there is no answer.
const BLOCKS_LEAST: f64 = 64.0;
/// The part of them that is abandoned beyond chance if the set moves. One that moves once in the horizon abandons half.
const MOVED_LEAST: f64 = 0.15;

/// A block: its reads, and the references since its first and since its last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Past {
    pub(super) reads: u8,
    pub(super) age: u64,
    pub(super) idle: u64,
}

/// Whether the set of these blocks moves, after `references` references, of which the last `horizon` count at most.
pub(super) fn moves(blocks: impl Iterator<Item = Past>, references: u64, horizon: u64) -> bool {
    // Without the first quarter: what a set was in its beginning is forgotten.
    let horizon = (references / 4 * 3).min(horizon) as f64;
    let half = horizon / 2.0;
    let (mut often, mut abandoned, mut by_chance) = (0.0, 0.0, 0.0);
    for Past { reads, age, idle } in blocks {
        if reads < READS_LEAST || idle as f64 >= horizon {
            continue;
        }
        let (age, later) = (age as f64, i32::from(reads) - 1);
        let none_in = |last: f64| (1.0 - last / age).max(0.0).powi(later);
        let dropped = none_in(horizon);
        often += 1.0;
        abandoned += f64::from(u8::from(idle as f64 >= half));
        // Given that it was read within the horizon.
        by_chance += if dropped < 1.0 { (none_in(half) - dropped) / (1.0 - dropped) } else { 0.5 };
    }
    often >= BLOCKS_LEAST && abandoned - by_chance > MOVED_LEAST * often
}

#[cfg(test)]
mod tests {
    use super::super::{Curve, Limits};
    use crate::ids::VolumeId;
    use crate::units::SECOND;

    /// Whether the set of this curve moves after each of `reads` reads of the blocks that `block` chooses, for the
    /// number of the read and a number from 0 to 1.
    fn moves(reads: &[u64], block: impl Fn(u64, f64) -> u64) -> Vec<bool> {
        let mut curve = Curve::new(Limits { fades: true, ..Limits::within(1 << 20, 1 << 18, SECOND) }, 0);
        curve.opened(VolumeId(0));
        let (mut state, mut at) = (1u64, 0);
        let mut after = |&reads: &u64| {
            while at < reads {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let random = (state >> 11) as f64 / (1u64 << 53) as f64;
                curve.read(0, VolumeId(0), block(at, random), u8::MAX, false);
                at += 1;
            }
            curve.view(Default::default()).reuse.moves
        };
        reads.iter().map(&mut after).collect()
    }

    /// Popularity falls with 1 / rank.
    fn zipf(random: f64) -> u64 {
        (50_000f64.powf(random) - 1.0) as u64
    }

    #[test]
    fn a_stationary_set_does_not_move() {
        let after = [4_000, 16_000, 64_000, 256_000, 1_000_000];
        let loads: [&dyn Fn(u64, f64) -> u64; 5] = [
            &|_, random| (random * 2_000.0) as u64,
            &|_, random| (random * 40_000.0) as u64,
            &|_, random| zipf(random),
            &|at, _| at % 3_000,
            &|at, random| if at % 2 == 0 { 100_000 + at } else { zipf(random) },
        ];
        for load in loads {
            assert_eq!(moves(&after, load), [false; 5]);
        }
    }

    #[test]
    fn a_set_that_moves_again_and_again_is_noticed() {
        for period in [5_000, 20_000] {
            let moving = |at: u64, random: f64| at / period * 100_000 + zipf(random);
            assert_eq!(moves(&[4 * period, 8 * period, 30 * period], moving), [true; 3], "every {period} reads");
        }
    }

    #[test]
    fn a_set_that_moved_once_is_forgotten() {
        let once = |at: u64, random: f64| u64::from(at >= 10_000) * 100_000 + zipf(random);
        assert_eq!(moves(&[24_000, 45_000, 1_000_000], once), [true, false, false]);
    }
}
