//! Reuse that has not been seen yet.
//!
//! A first reference is a miss at any size, but it need not be the first one ever: the block may have been used before
//! the curve began. All that is known is that the distance to that use is longer than the number of blocks seen so far:
//! the observation is *censored*. A young curve consists mostly of such references, and shows too many misses.
//!
//! ```text
//!   U(d) = product over distances x <= d of (1 - reused at x / at risk at x)        Kaplan and Meier (1958)
//!          at risk at x: references whose distance is x or longer, or was censored at x or later
//!
//!   1 ─┐
//!      └──┐    estimated │ extrapolated
//!         └──────┐       │                    h: half of the blocks seen; beyond it too little is at risk
//!                └───────●.
//!                        h  `·. _             U(c): the part of the references that will be first ones when c blocks
//!                            `·._ ` · .             have been seen
//! ```
//!
//! Beyond h, U is extrapolated as the number of unseen species is, from the numbers of blocks that were read once,
//! twice and three times (n1, n2, n3). If the popularities of blocks have a gamma distribution, then with r1 = 2 n2 /
//! n1 and r2 = 3 n3 / n2, and v blocks seen:
//!
//! ```text
//!   U(c) = U(h) x (A(c) / A(h)) ^ (-r1 / q)        A(c) = 1 + (c - v) x q / n1        q = r2 - 2 r1
//! ```
//!
//! In a uniformly used set r1 = r2, and U falls linearly in c. Hot blocks next to it are soon read more than three
//! times: then n1 to n3 are those of the others. A Zipf distribution is in between. The ends of the interval have the
//! sampling errors of r1 and r2; up to h it has no width.
//!
//! Source: Kaplan and Meier, "Nonparametric estimation from incomplete observations" (JASA 1958); Fisher, Corbet and
//! Williams (J. Animal Ecology 1943) and Efron and Thisted (Biometrika 1976) for the gamma distribution; the formula in
//! c instead of time is ours. Assumed: the tenant goes on as it does. Downside: nothing tells of a loop that is longer
//! than what has been seen; v has blocks that were only written, so that U falls too slowly for a tenant that reads and
//! writes the same blocks at random; n1 to n3 are totals, while the curve forgets. Under another eviction policy than
//! LRU the estimate is that of LRU.

use super::bucket::{BUCKETS, Tally, blocks, bucket};
use super::samples::TIMES;

/// The least part of the references with longer distances that is at risk.
const AT_RISK_LEAST: f64 = 0.05;
/// Fewer blocks say nothing.
const SEEN_LEAST: f64 = 64.0;

/// By how much unseen reuse lowers the miss ratio of reads, by size.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reuse {
    /// Blocks that have been seen, estimated from those that are sampled.
    pub seen: u64,
    /// Its standard error, blocks. Whether a block is sampled depends on its number alone, so the number of sampled
    /// blocks is binomial: n samples at the rate r have a standard deviation of sqrt(n (1 - r)).
    pub seen_error: f64,
    /// Whether the working set moves (`turnover.rs`).
    pub moves: bool,
    /// The miss ratio and U at the sizes of the buckets, up to h. Empty if nothing is known.
    known: Vec<(f64, f64)>,
    /// h, blocks.
    horizon: f64,
    /// The part of the reads that no size absorbs and that are no first references: of prefetched blocks, for example.
    never: f64,
    /// Blocks that were seen once, those that were prefetched in proportion.
    once: f64,
    /// r1 and q: for the low end, as estimated, and for the high end.
    shapes: [(f64, f64); 3],
}

impl Reuse {
    /// From the reads of a curve that has seen `samples` sampled blocks, each of which stands for 1 / `rate` blocks;
    /// of these, those that clients read once, twice and three times, and those that were prefetched first.
    /// `moves`: the working set moves.
    pub(super) fn new(
        reads: &Tally,
        samples: u32,
        (times, ahead): ([u32; TIMES], u32),
        moves: bool,
        rate: f64,
    ) -> Reuse {
        let (Some(weights), Some(misses)) = (reads.weights(), reads.misses()) else { return Reuse::default() };
        let seen = f64::from(samples) / rate;
        let seen_error = (f64::from(samples) * (1.0 - rate)).sqrt() / rate;
        if seen < SEEN_LEAST {
            return Reuse { seen: seen as u64, seen_error, moves, ..Reuse::default() };
        }
        let past = usize::from(bucket(seen as u64 / 2)).min(BUCKETS - 1) + 1;
        let all = reads.weight();
        let (mut at_risk, mut left) = (all, 1.0_f64);
        let mut known = Vec::with_capacity(past);
        for at in 0..past {
            // Blocks are also seen by writes and read-ahead: reads may all have been censored long before.
            if at_risk < AT_RISK_LEAST * left * all {
                break;
            }
            left *= 1.0 - (weights[at] / at_risk).clamp(0.0, 1.0);
            known.push((misses[at], left.min(misses[at])));
            at_risk -= weights[at] + reads.censored(at);
        }
        let censored: f64 = (0..=BUCKETS).map(|at| reads.censored(at)).sum();
        let never = ((weights[BUCKETS] - censored) / all).max(0.0);
        let horizon = blocks(known.len().saturating_sub(1) as u8) as f64;
        let once = f64::from(times[0]) / rate * f64::from(samples) / f64::from(samples - ahead).max(1.0);
        Reuse { seen: seen as u64, seen_error, moves, known, horizon, never, once, shapes: shapes(times) }
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
        let a = |size: f64, q: f64| 1.0 + (size - self.seen as f64) * q / self.once.max(1.0);
        let [most, point, least] = self.shapes.map(|(r1, q)| {
            let falls = match (a(size, q), a(self.horizon, q)) {
                _ if q.abs() < Q_LEAST => (-r1 * (size - self.horizon) / self.once.max(1.0)).exp(),
                // A falls to 0: all blocks of the set have been seen.
                (now, then) if q < 0.0 => (now.max(0.0) / then).powf(-r1 / q),
                (now, then) => (now.max(A_LEAST) / then.max(A_LEAST)).powf(-r1 / q).min(1.0),
            };
            let never = self.never.min(last);
            (misses - never - (last - never) * falls).clamp(0.0, misses)
        });
        [most.max(point).max(least), point, least.min(point).min(most)]
    }
}

/// Standard errors to either end of the interval.
const ERRORS: f64 = 2.0;
/// A smaller q is taken for 0: U falls exponentially.
const Q_LEAST: f64 = 1e-6;
/// The least A: a smaller one is before the beginning of what the distribution describes.
const A_LEAST: f64 = 0.1;

/// r1 and q for the low end, as estimated, and for the high end.
fn shapes(times: [u32; TIMES]) -> [(f64, f64); 3] {
    let [n1, n2, n3] = times.map(f64::from);
    let ratio = |factor: f64, more: f64, less: f64| (factor * more / less.max(1.0), factor / less.max(1.0));
    let ((r1, one1), (r2, one2)) = (ratio(2.0, n2, n1), ratio(3.0, n3, n2));
    // The standard errors of counts are their square roots. The ends allow for one block more.
    let (error1, error2) = (ERRORS * one1 * n2.sqrt(), ERRORS * one2 * n3.sqrt());
    let shape = |r1: f64, r2: f64| (r1.max(0.0), r2.max(r1.max(0.0)) - 2.0 * r1.max(0.0));
    [shape(r1 + error1 + one1, r2 - error2), shape(r1, r2), shape(r1 - error1, r2 + error2 + one2)]
}

#[cfg(test)]
mod tests {
    use super::super::{Ack, Curve, Limits};
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
            curve.read(0, VOLUME, block(a, b), u8::MAX, false);
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
        for block in [uniform as fn(f64, f64) -> u64, skewed, both] {
            let old = curve(2_000_000, block);
            for reads in [4000, 16_000, 64_000] {
                let young = curve(reads, block);
                let seen = young.view(EvictionPolicy::Lru).reuse.seen;
                for blocks in [500, 4000, 20_000] {
                    let truth = misses(&old, blocks)[1];
                    let [low, point, high] = misses(&young, blocks);
                    let what = format!("{reads} reads, {blocks} blocks: {low:.3} {point:.3} {high:.3}, is {truth:.3}");
                    assert!(low <= point && point <= high, "{what}");
                    assert!(low <= truth + 0.02 && (truth < high + 0.02 || blocks > 5 * seen), "{what}");
                    assert!(blocks > seen / 2 || (point - truth).abs() < 0.02 && high - low < 0.01, "{what}");
                    assert!(blocks > 4 * seen || (point - truth).abs() < 0.05, "{what}");
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

    #[test]
    fn what_the_counts_do_not_describe_is_no_reuse() {
        // A hot set, and a scan of a few blocks: nearly all that was read once will not be read again.
        let step = std::cell::Cell::new(0);
        let hot = curve(20_400, |a, _| match step.replace(step.get() + 1) {
            step if step < 20_000 => (a * 2000.0) as u64,
            step => step,
        });
        let [low, _, high] = misses(&hot, 1300);
        assert!((0.3..0.4).contains(&low) && (0.3..0.4).contains(&high), "{low} {high}");
        // Many more blocks were written than read: all reads are censored far below half of the blocks seen.
        let mut written = curve(10_000, |_, _| step.replace(step.get() + 1));
        (0..30_000).for_each(|at| written.write(0, VOLUME, 100_000 + at, u8::MAX, Ack::Cached));
        assert!(misses(&written, 20_000)[0] > 0.9, "{:?}", misses(&written, 20_000));
        // A stream with read-ahead, and a few random reads.
        let mut stream = curve(20, uniform);
        for at in 100_000..108_000 {
            stream.read_ahead(0, VOLUME, at);
            stream.read(0, VOLUME, at, u8::MAX, false);
        }
        assert!(misses(&stream, 200_000)[0] > 0.99, "{:?}", misses(&stream, 200_000));
    }
}
