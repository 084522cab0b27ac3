//! Statistics of lists of times: quantiles, a rate without its beginning, bursts and pauses, a rotation.
//!
//! Everything here is a pure function of times in nanoseconds, so it can be tested on lists with a known result.
//! Sources: the truncation of a beginning is MSER (White, "An effective truncation heuristic for bias reduction in
//! simulation output", Simulation 69(6), 1997); the rotation is the coherence of phases (Rayleigh's test, as
//! astronomers search for pulsars: Leahy et al., Astrophysical Journal 272, 1983).
//!
//! Downside: MSER finds one change in a phase, and assumes that there is only one; a rate that drifts is averaged, and
//! its error shows it.

use crate::units::{Nanos, SECOND};

/// Number of windows of equal time into which a phase is divided to find its beginning: fine enough for a beginning of
/// some hundredths of the phase, and few enough that each contains requests.
const WINDOWS: usize = 50;
/// Number of parts whose rates are compared to estimate the error.
const PARTS: usize = 8;
/// A beginning is cut off only if that changes the rate by more than this, and by more than the error of the rest.
/// Otherwise the cut would only lose requests: the most regular half of a phase is no better than the whole.
const BEGINNING_MATTERS: f64 = 0.02;
/// Lowest frequency of a rotation, Hz: the slowest drives turned 3,600 times a minute; with a margin.
const ROTATION_LEAST_HZ: f64 = 50.0;
/// Highest frequency of a rotation, Hz: 15,000 times a minute, with a margin.
const ROTATION_MOST_HZ: f64 = 300.0;
/// Coherence from which on a rotation is assumed. That of a rotating drive is near 1; the best of several hundred
/// random phases and as many frequencies stays below 0.25.
const COHERENT: f64 = 0.5;
/// If a fraction of the best frequency has at least this part of its coherence, the fraction is the rotation and the
/// best frequency its overtone.
const OVERTONE: f64 = 0.85;
/// Highest overtone: this multiple of the slowest rotation is the fastest one.
const OVERTONES: u32 = (ROTATION_MOST_HZ / ROTATION_LEAST_HZ) as u32;

/// The value below which a part `q` of the sorted `values` lies, linearly interpolated between neighbours. `None`
/// without values.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    let at = q.clamp(0.0, 1.0) * last as f64;
    let (low, high) = (values[at.floor() as usize], values[at.ceil() as usize]);
    Some(low + (high - low) * at.fract())
}

/// The median of `values`, in any order.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    quantile(&values, 0.5)
}

/// The spread of repeated measurements: the greatest minus the smallest, as a part of the median.
pub fn spread(values: &[f64]) -> Option<f64> {
    let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(least, most), &v| (least.min(v), most.max(v)));
    median(values.to_vec()).filter(|&middle| middle > 0.0).map(|middle| (most - least) / middle)
}

/// A rate, and its error.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rate {
    /// Completions a second after the beginning.
    pub per_s: f64,
    /// Twice its standard error, as a part of it: from the rates of runs of equal numbers of completions.
    pub error: f64,
    /// When the beginning ended.
    pub steady_at: Nanos,
}

/// The rate without the beginning; `done` are the ascending times of completions in a phase that began at `began`.
/// `None` if there are too few.
pub fn steady_rate(began: Nanos, done: &[Nanos]) -> Option<Rate> {
    let cut = beginning(began, done);
    let all = plain_rate(done)?;
    let whole = Rate { per_s: all, error: error(done, all), steady_at: began };
    let steady =
        plain_rate(&done[cut..]).map(|per_s| Rate { per_s, error: error(&done[cut..], per_s), steady_at: done[cut] });
    let is_other = |steady: &Rate| (steady.per_s / all - 1.0).abs() > BEGINNING_MATTERS.max(steady.error);
    Some(steady.filter(is_other).unwrap_or(whole))
}

/// Completions a second between the first and the last one.
pub fn plain_rate(done: &[Nanos]) -> Option<f64> {
    let (first, last) = (*done.first()?, *done.last()?);
    (last > first).then(|| (done.len() - 1) as f64 * SECOND as f64 / (last - first) as f64)
}

/// Index of the first completion after the beginning, by MSER over windows of equal time: the cut that makes the mean
/// of the rest most certain. At most half of the time is cut off.
fn beginning(began: Nanos, done: &[Nanos]) -> usize {
    let Some(&end) = done.last().filter(|&&end| end > began) else { return 0 };
    let counts = windows(began, end, done, WINDOWS);
    let (mut sum, mut squares, mut n) = (0.0, 0.0, 0.0);
    let (mut best, mut least) = (0, f64::MAX);
    for (index, &count) in counts.iter().enumerate().rev() {
        (sum, squares, n) = (sum + count, squares + count * count, n + 1.0);
        let marginal = (squares - sum * sum / n) / (n * n);
        // A few windows at the end may be equal by chance.
        if index <= WINDOWS / 2 && marginal <= least {
            (best, least) = (index, marginal);
        }
    }
    let cut_at = began + (u128::from(end - began) * best as u128 / WINDOWS as u128) as Nanos;
    done.partition_point(|&at| at < cut_at)
}

/// Completions in each of `parts` windows of equal time.
fn windows(began: Nanos, end: Nanos, done: &[Nanos], parts: usize) -> Vec<f64> {
    let mut counts = vec![0.0; parts];
    for &at in done {
        let index = u128::from(at.saturating_sub(began)) * parts as u128 / u128::from((end - began).max(1));
        counts[(index as usize).min(parts - 1)] += 1.0;
    }
    counts
}

/// Twice the standard error of a rate, as a part of it, from runs of equal numbers of completions.
fn error(done: &[Nanos], per_s: f64) -> f64 {
    let run = done.len() / PARTS;
    if run < 2 {
        return 1.0;
    }
    let rates: Vec<f64> =
        (0..PARTS).filter_map(|part| plain_rate(&done[part * run..=((part + 1) * run).min(done.len() - 1)])).collect();
    let n = rates.len() as f64;
    let mean = rates.iter().sum::<f64>() / n;
    let variance = rates.iter().map(|rate| (rate - mean) * (rate - mean)).sum::<f64>() / (n - 1.0).max(1.0);
    2.0 * (variance / n).sqrt() / per_s
}

/// A limit that is not the device's own speed: a saved-up burst passes fast, then a fixed number of requests a second.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Throttle {
    /// Completions a second when the burst is used up.
    pub per_s: f64,
    /// Typical wait, nanoseconds: half of the time is in pauses of at least this length between completions.
    pub stall_ns: f64,
}

/// Smallest ratio of the rate in the burst to the rate after it.
const BURST_RATIO: f64 = 1.5;
/// Largest error of the rate after the burst: a bucket fills by the clock, so the parts of the phase have similar
/// rates.
const REGULAR: f64 = 0.1;
/// Smallest number of completions before and after the change; fewer prove nothing.
const ENOUGH: usize = 32;

/// The throttle, if `done` begins with a burst and continues regularly. Only reads at saturation, after a rest, show
/// one: a write buffer that fills looks the same.
pub fn throttle(began: Nanos, done: &[Nanos]) -> Option<Throttle> {
    let cut = beginning(began, done);
    let (burst, steady) = done.split_at(cut);
    if burst.len() < ENOUGH || steady.len() < ENOUGH {
        return None;
    }
    // The change lies somewhere in a window, so only the first half of the burst counts.
    let (before, after) = (plain_rate(&burst[..burst.len() / 2])?, plain_rate(steady)?);
    let is_regular = error(steady, after) < REGULAR;
    let stall_ns = typical_pause(steady)?;
    (before > BURST_RATIO * after && is_regular).then_some(Throttle { per_s: after, stall_ns })
}

/// The median pause between completions, weighted by length: the one that a random moment falls into. So a few long
/// stalls among many short pauses count by the time that they take.
pub fn typical_pause(done: &[Nanos]) -> Option<f64> {
    let mut pauses: Vec<Nanos> = done.windows(2).map(|pair| pair[1] - pair[0]).collect();
    pauses.sort_unstable();
    let half = pauses.iter().sum::<Nanos>() / 2;
    let mut sum = 0;
    pauses
        .into_iter()
        .find(|pause| {
            sum += pause;
            sum > half
        })
        .map(|pause| pause as f64)
}

/// The period, nanoseconds, of which all `distances` are nearly multiples, if there is one: a rotating drive brings a
/// place under its heads once per revolution. The distances must vary randomly by more than a revolution; otherwise
/// anything regular would look like a rotation.
pub fn rotation_period_ns(distances: &[Nanos]) -> Option<f64> {
    let longest = *distances.iter().max().filter(|&&longest| longest > 0)? as f64 / SECOND as f64;
    if distances.len() < ENOUGH {
        return None;
    }
    // A peak is as wide as the inverse of the longest distance; eight points are computed per peak.
    let step = 1.0 / (8.0 * longest);
    let count = ((ROTATION_MOST_HZ - ROTATION_LEAST_HZ) / step) as usize;
    let scan: Vec<(f64, f64)> =
        (0..=count).map(|i| ROTATION_LEAST_HZ + i as f64 * step).map(|hz| (hz, coherence(distances, hz))).collect();
    let best = scan.iter().map(|(_, c)| *c).fold(0.0, f64::max);
    if best < COHERENT {
        return None;
    }
    let (top, _) = scan.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    // A rotation also seems to have twice and three times its frequency.
    let overtones = (1..=OVERTONES).rev().map(|overtone| refine(distances, top / f64::from(overtone), step));
    let hz =
        overtones.into_iter().find(|&hz| hz >= ROTATION_LEAST_HZ && coherence(distances, hz) >= OVERTONE * best)?;
    Some(SECOND as f64 / hz)
}

/// The maximum of the peak around `hz`, by halving the step repeatedly.
fn refine(distances: &[Nanos], mut hz: f64, mut step: f64) -> f64 {
    for _ in 0..12 {
        step /= 2.0;
        let best = [hz - step, hz, hz + step].into_iter().map(|f| (f, coherence(distances, f)));
        hz = best.max_by(|a, b| a.1.total_cmp(&b.1)).map_or(hz, |(f, _)| f);
    }
    hz
}

/// 1 if all `distances` are multiples of the period of `hz`, near 0 if they are unrelated to it.
fn coherence(distances: &[Nanos], hz: f64) -> f64 {
    let (mut x, mut y) = (0.0, 0.0);
    for &distance in distances {
        let (sin, cos) = (std::f64::consts::TAU * (distance as f64 / SECOND as f64 * hz).fract()).sin_cos();
        (x, y) = (x + cos, y + sin);
    }
    // The sum must point to a whole number of revolutions, not only be long: a constant delay is no rotation.
    x / distances.len() as f64 * f64::from(u8::from(x > y.abs()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dice::Dice;
    use crate::units::MILLISECOND;

    /// Times of completions with these pauses, from 0 on.
    fn after(pauses: impl IntoIterator<Item = Nanos>) -> Vec<Nanos> {
        pauses
            .into_iter()
            .scan(0, |at, pause| {
                *at += pause;
                Some(*at)
            })
            .collect()
    }

    #[test]
    fn quantiles_lie_between_neighbours() {
        let values = [1.0, 2.0, 4.0];
        assert_eq!([0.0, 0.25, 0.5, 0.75, 1.0].map(|q| quantile(&values, q).unwrap()), [1.0, 1.5, 2.0, 3.0, 4.0]);
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(spread(&[9.0, 10.0, 12.0]), Some(0.3));
    }

    #[test]
    fn a_burst_at_the_beginning_does_not_count() {
        let times = after([10_000u64; 500].into_iter().chain([MILLISECOND; 200]));
        let rate = steady_rate(0, &times).unwrap();
        assert!((rate.per_s / 1000.0 - 1.0).abs() < 0.02 && rate.error < 0.02, "{rate:?}");
        let throttle = throttle(0, &times).unwrap();
        assert!((throttle.per_s / 1000.0 - 1.0).abs() < 0.02 && throttle.stall_ns == 1e6, "{throttle:?}");
    }

    #[test]
    fn noise_has_no_beginning() {
        let cut = |seed| {
            let mut dice = Dice::new(seed);
            // Mostly short pauses, some long ones.
            let times = after((0..400).map(|_| dice.below(200).pow(3)));
            steady_rate(0, &times).unwrap().steady_at > 0
        };
        let cut = (0..100).filter(|&seed| cut(seed)).count();
        assert!(cut <= 5, "{cut} of 100 phases without a beginning lose one");
    }

    #[test]
    fn a_throttle_by_windows_is_told_by_its_stalls() {
        // First a burst, then 50 requests at once every 100 ms.
        let burst = std::iter::repeat_n(20_000, 2000);
        let window = std::iter::repeat_n(20_000, 49).chain([99 * MILLISECOND]);
        let times = after(burst.chain(std::iter::repeat_n(window, 40).flatten()));
        let found = throttle(0, &times).unwrap();
        assert!((found.per_s / 500.0 - 1.0).abs() < 0.05 && found.stall_ns == 99e6, "{found:?}");
    }

    #[test]
    fn steady_and_noisy_devices_are_not_throttled() {
        let mut dice = Dice::new(1);
        assert_eq!(throttle(0, &after([100_000; 5000])), None);
        assert_eq!(throttle(0, &after((0..5000).map(|_| dice.below(200_000)))), None);
        // A permanent slowdown by only a third, as when another user appears.
        assert_eq!(throttle(0, &after([100_000; 1000].into_iter().chain([133_000; 4000]))), None);
        assert_eq!(throttle(0, &[]), None);
    }

    proptest! {
        // A scan of all frequencies takes a tenth of a second.
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// Any period is found within a thousandth, with noise of a tenth of it and some reads from a cache.
        #[test]
        fn a_rotation_is_found(period in 3_600_000u64..18_000_000, seed in any::<u64>()) {
            let mut dice = Dice::new(seed);
            let distances: Vec<Nanos> = (0..200).map(|i| {
                let turns = 60 + dice.below(60);
                let noise = dice.below(period / 10);
                if i % 20 == 0 { dice.below(SECOND) } else { turns * period + noise - period / 20 }
            }).collect();
            let found = rotation_period_ns(&distances).expect("there is one");
            prop_assert!((found / period as f64 - 1.0).abs() < 0.001, "{} for {}", found, period);
        }

        /// Random distances have no period.
        #[test]
        fn chance_does_not_rotate(seed in any::<u64>()) {
            let mut dice = Dice::new(seed);
            let distances: Vec<Nanos> = (0..200).map(|_| SECOND / 2 + dice.below(SECOND)).collect();
            prop_assert_eq!(rotation_period_ns(&distances), None);
        }
    }

    proptest! {
        /// The rate of any phase is between those of its shortest and its longest pause.
        #[test]
        fn rates_are_within_what_was_seen(pauses in prop::collection::vec(1u64..10_000_000, 20..400)) {
            let (least, most) = (*pauses.iter().min().unwrap(), *pauses.iter().max().unwrap());
            let rate = steady_rate(0, &after(pauses)).unwrap();
            let (low, high) = (SECOND as f64 / most as f64, SECOND as f64 / least as f64);
            prop_assert!(rate.per_s >= low * 0.999 && rate.per_s <= high * 1.001, "{:?}", rate);
        }
    }
}
