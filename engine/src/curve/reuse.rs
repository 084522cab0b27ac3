//! Reuse that has not been seen yet.
//!
//! A first reference is a miss at any size, but it need not be the first one ever: the block may have been used before
//! the curve began. All that is known is that the distance to that use is longer than the number of blocks seen so far:
//! the observation is *censored*. A young curve consists mostly of such references, and shows too many misses.
//!
//! ```text
//!   S(d) = product over distances x <= d of (1 - reused at x / at risk at x)        Kaplan and Meier (1958)
//!          at risk at x: references whose distance is x or longer, or was censored at x or later
//!
//!   1 ─┐
//!      └──┐    estimated │ extrapolated
//!         └──────┐       │                    h: half of the blocks seen; beyond it too little is at risk
//!                └───────●.
//!                        h  `·. _             it falls off as it did over the last four octaves; the ends have the
//!                            `·._ ` · .       sampling errors of D and u, the high end half of D
//! ```
//!
//! With D = S(h / 4) - S(h), and D' = S(h / 16) - S(h / 4):
//!
//! ```text
//!   S(c) = S(h) - D x ((c / h)^u - 1) / (1 - 4^-u)        u = log4(D / D'), from -1 to 1
//! ```
//!
//! A uniformly used set has u = 1, a Zipf distribution about 0: as much reuse in each octave.
//!
//! Source: Kaplan and Meier, "Nonparametric estimation from incomplete observations" (JASA 1958); the extrapolation is
//! ours. Assumed: the tenant goes on as it does. Downside: nothing tells of a loop that is longer than what has been
//! seen.

use super::bucket::{BUCKETS, Tally, blocks, bucket};

/// Both windows of distances from which reuse is extrapolated have two octaves: one octave of a young curve has a few
/// references only.
const WINDOW: u64 = 4;
/// The part of the reuse beyond `h` that the high end expects: a hot set may end where the curve does.
const HIGH_PART: f64 = 0.5;
/// Fewer blocks say nothing.
const SEEN_LEAST: u64 = 64;

/// By how much unseen reuse lowers the miss ratio of reads, by size.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reuse {
    /// Blocks that have been seen.
    pub seen: u64,
    /// The miss ratio and S at the sizes of the buckets, up to `horizon`. Empty if nothing is known.
    known: Vec<(f64, f64)>,
    /// Blocks.
    horizon: f64,
    /// D and u: for the low end, as estimated, and for the high end.
    falls: [(f64, f64); 3],
}

impl Reuse {
    /// From the reads of a curve that has seen `seen` blocks, each of which stands for 1 / `rate` blocks.
    pub(super) fn new(reads: &Tally, seen: u64, rate: f64) -> Reuse {
        let (Some(weights), Some(misses)) = (reads.weights(), reads.misses()) else { return Reuse::default() };
        if seen < SEEN_LEAST {
            return Reuse { seen, ..Reuse::default() };
        }
        let past = usize::from(bucket(seen / 2)).min(BUCKETS - 1) + 1;
        let mut at_risk = reads.weight();
        let mut left = 1.0_f64;
        let (mut known, mut reused) = (Vec::with_capacity(past), Vec::with_capacity(past));
        for at in 0..past {
            let hazard = if at_risk > 0.0 { (weights[at] / at_risk).clamp(0.0, 1.0) } else { 1.0 };
            left *= 1.0 - hazard;
            known.push((misses[at], left.min(misses[at])));
            reused.push(weights[at].max(0.0));
            at_risk -= weights[at] + reads.censored(at);
        }
        let horizon = blocks((past - 1) as u8);
        let place = |blocks: u64| usize::from(bucket(blocks)).min(past - 1);
        let places = [horizon / WINDOW / WINDOW, horizon / WINDOW, horizon].map(place);
        let window = |from: usize, to: usize| {
            let samples = reused[from + 1..=to].iter().sum::<f64>() * rate;
            (known[from].1 - known[to].1, samples)
        };
        let [(before, few), (last, many)] = [window(places[0], places[1]), window(places[1], places[2])];
        // What one more sample would add.
        let one = left / (at_risk * rate).max(1.0);
        let growth = ((last + one) / (before + one)).ln() / (WINDOW as f64).ln();
        let error = (1.0 / (few + 1.0) + 1.0 / (many + 1.0)).sqrt() / (WINDOW as f64).ln();
        let end = |fall: f64, growth: f64| (fall.max(0.0), growth.clamp(-1.0, 1.0));
        let most = end(last + one * (1.0 + many.sqrt()), growth + error);
        let least = end(HIGH_PART * (last - one * many.sqrt()), growth - error);
        let falls = [most, end(last, growth), least];
        Reuse { seen, known, horizon: horizon as f64, falls }
    }

    /// The part of the reads that `blocks` blocks would absorb besides those on the curve, of which the miss ratio with
    /// so many blocks is `misses`: for the low end of R (most), as estimated, and for the high end.
    pub fn absorbed(&self, blocks: u64, misses: f64) -> [f64; 3] {
        let Some(&(_, last)) = self.known.last() else { return [0.0; 3] };
        let size = (blocks as f64).max(1.0);
        if size < self.horizon {
            let (misses, left) = self.known[usize::from(bucket(blocks)).min(self.known.len() - 1)];
            return [misses - left; 3];
        }
        let ratio = size / self.horizon;
        let more = |(fall, growth): (f64, f64)| {
            let times = match growth {
                growth if growth.abs() < 0.01 => ratio.ln() / (WINDOW as f64).ln(),
                growth => (ratio.powf(growth) - 1.0) / (1.0 - (WINDOW as f64).powf(-growth)),
            };
            (misses - last + fall * times).clamp(0.0, misses)
        };
        self.falls.map(more)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Curve, Limits};
    use crate::eviction::Policy as EvictionPolicy;
    use crate::ids::VolumeId;
    use crate::units::SECOND;

    const VOLUME: VolumeId = VolumeId(0);

    /// The curve of `reads` reads of blocks that `block` chooses, for two numbers from 0 to 1.
    fn curve(reads: usize, block: impl Fn(f64, f64) -> u64) -> Curve {
        let mut curve = Curve::new(Limits { fades: true, ..Limits::exact(1 << 18, SECOND) }, 0);
        curve.opened(VOLUME);
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        for _ in 0..reads {
            let (a, b) = (next(), next());
            curve.read(0, VOLUME, block(a, b), u8::MAX.into(), false);
        }
        curve
    }

    /// Miss ratios with `blocks` blocks: low end, estimate, high end.
    fn misses(curve: &Curve, blocks: u64) -> [f64; 3] {
        let view = curve.view(EvictionPolicy::Lru);
        let misses = view.misses_of_reads(blocks).unwrap();
        view.reuse.absorbed(blocks, misses).map(|more| misses - more)
    }

    fn uniform(a: f64, _: f64) -> u64 {
        (a * 40_000.0) as u64
    }

    /// Popularity falls with 1 / rank.
    fn skewed(a: f64, _: f64) -> u64 {
        (200_000f64.powf(a) - 1.0) as u64
    }

    /// Half of the reads in 2,000 blocks, half in 80,000.
    fn both(a: f64, b: f64) -> u64 {
        if b < 0.5 { (a * 2000.0) as u64 } else { 2000 + (a * 80_000.0) as u64 }
    }

    #[test]
    fn what_a_young_curve_has_not_seen_is_estimated_from_what_it_has() {
        for (block, smooth) in [(uniform as fn(f64, f64) -> u64, true), (skewed, true), (both, false)] {
            let old = curve(2_000_000, block);
            for reads in [4000, 16_000, 64_000] {
                let young = curve(reads, block);
                let seen = young.view(EvictionPolicy::Lru).reuse.seen;
                for blocks in [500, 4000, 20_000] {
                    let truth = misses(&old, blocks)[1];
                    let [low, point, high] = misses(&young, blocks);
                    let what = format!("{reads} reads, {blocks} blocks: {low:.3} {point:.3} {high:.3}, is {truth:.3}");
                    assert!(low <= point && point <= high && low <= truth + 0.02, "{what}");
                    assert!(blocks > seen / 2 || (point - truth).abs() < 0.02 && high - low < 0.01, "{what}");
                    // The end of a hot set looks like the beginning of more reuse.
                    assert!(!smooth || (point - truth).abs() < 0.05 && truth < high + 0.02, "{what}");
                }
            }
        }
    }

    #[test]
    fn a_stream_and_a_young_curve_have_no_reuse() {
        let next = std::cell::Cell::new(0);
        let stream = curve(5000, |_, _| next.replace(next.get() + 1));
        assert!(misses(&stream, 20_000)[0] > 0.9, "{:?}", misses(&stream, 20_000));
        assert_eq!(misses(&stream, 20_000)[1], 1.0);
        assert_eq!(curve(50, uniform).view(EvictionPolicy::Lru).reuse.absorbed(1000, 0.7), [0.0; 3]);
    }
}
