//! The guarantee of each workload, chosen by rule from its dedicated run.

use engine::units::Nanos;

use super::window::{Fit, Progress, window_bytes};

/// Fundamental windows of a guarantee at each share: from and to this fraction.
pub const FUNDAMENTAL: [f64; 2] = [0.05, 0.25];
/// Marginal windows of a guarantee at each share: at most this fraction.
pub const NEAR_MOST: f64 = 0.1;
/// Candidates are so many thousandths of each other.
const STEP_PERMILLE: u64 = 1010;
/// The first and the last candidate, bytes per second.
const CANDIDATES: [u64; 2] = [20_000, 20_000_000];
/// A guarantee that cuts the dedicated run into fewer windows is no candidate.
const WINDOWS_LEAST: usize = 20;

/// The guarantee of a workload at a share.
#[derive(Clone)]
pub struct Level {
    /// The guarantee.
    pub bytes_per_s: u64,
    /// The part of the disk that the workload keeps: share x R.
    pub keep: f64,
    /// Which windows of the dedicated run fit into the share.
    fits: Vec<Fit>,
}

impl Level {
    /// That of a guarantee and the part of the disk that the workload keeps.
    pub fn new(progress: &Progress, bytes_per_s: u64, keep: f64) -> Level {
        let windows = progress.windows(window_bytes(bytes_per_s));
        Level { bytes_per_s, keep, fits: windows.iter().map(|&dedicated_ns| Fit::of(dedicated_ns, keep)).collect() }
    }

    /// The bytes of a window.
    pub fn window_bytes(&self) -> u64 {
        window_bytes(self.bytes_per_s)
    }

    /// Whether a window fits; `None` past the end of the dedicated run.
    pub fn fit(&self, window: usize) -> Option<Fit> {
        self.fits.get(window).copied()
    }

    /// Number of windows of the dedicated run.
    pub fn windows(&self) -> usize {
        self.fits.len()
    }

    fn fraction(&self, of: impl Fn(&Fit) -> bool) -> f64 {
        self.fits.iter().filter(|fit| of(fit)).count() as f64 / self.fits.len() as f64
    }

    /// The fraction of windows that do not fit.
    pub fn fundamental(&self) -> f64 {
        self.fraction(|fit| !fit.fits())
    }

    /// The fraction of windows within 5 % of the threshold.
    pub fn near(&self) -> f64 {
        self.fraction(|fit| fit.is_near())
    }
}

/// How far the levels at all shares are from what is asked for, together, then how many windows are near the threshold
/// at most: the best is the least. By the worst share alone, a guarantee that fits always and everywhere might be best.
fn demerit(levels: &[Level]) -> f64 {
    let beyond = |level: &Level| {
        let fundamental = level.fundamental();
        let beyond = (FUNDAMENTAL[0] - fundamental).max(fundamental - FUNDAMENTAL[1]).max(0.0);
        beyond + (level.near() - NEAR_MOST).max(0.0)
    };
    let near = levels.iter().map(Level::near).fold(0.0, f64::max);
    1000.0 * levels.iter().map(beyond).sum::<f64>() + near
}

/// The levels of a workload, for each of these fractions of the disk (share x R): the same guarantee for all.
pub fn choose(progress: &Progress, keeps: &[f64]) -> Vec<Level> {
    let candidates = std::iter::successors(Some(CANDIDATES[0]), |last| Some(last * STEP_PERMILLE / 1000));
    let of = |bytes_per_s| keeps.iter().map(|&keep| Level::new(progress, bytes_per_s, keep)).collect::<Vec<_>>();
    let levels = candidates.take_while(|&rate| rate < CANDIDATES[1]).map(of);
    let levels = levels.filter(|levels| levels[0].fits.len() >= WINDOWS_LEAST);
    levels.min_by(|a, b| demerit(a).total_cmp(&demerit(b))).expect("the least candidate")
}

/// The part of the disk that each window of the dedicated run needs for the guarantee, uncut: above 1 if it does not
/// even fit into the whole disk.
pub fn needs(progress: &Progress, level: &Level) -> Vec<f64> {
    let need = |dedicated_ns: Nanos| dedicated_ns as f64 / super::window::WINDOW_NS as f64;
    progress.windows(level.window_bytes()).into_iter().map(need).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_no_guarantee_suits_every_share_one_is_chosen_that_suits_most() {
        // From 100 to 3 MB/s: at one guarantee, half of the speeds are between what shares of 1/2 and 1/10 require.
        let mut progress = Progress::default();
        let mut now = 0;
        for speed in 0..300 {
            for _ in 0..100 {
                now += (1e7 * 30f64.powf(f64::from(speed) / 300.0)) as Nanos;
                progress.answered(now, 1_000_000);
            }
        }
        let levels = choose(&progress, &[2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0].map(|tenants| 0.9 / tenants));
        let suits = |level: &&Level| (FUNDAMENTAL[0]..=FUNDAMENTAL[1]).contains(&level.fundamental());
        assert!(levels.iter().filter(suits).count() >= 4);
    }
}
