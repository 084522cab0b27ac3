//! The server's own classification of missed windows, against the dedicated run.
//!
//! ```text
//! server      a missed window: begun, duration, class
//! sequence    the bytes that the client had been answered at its beginning and at its end
//! dedicated   the time of just these bytes: do they fit into the share?
//! ```
//!
//! Both cut the same bytes, but the server closes some windows early, by time (`engine/src/disk/windows.rs`). So its
//! windows are looked up by their bytes, not by their numbers.

use engine::disk::{Miss, Window};
use engine::units::Nanos;
use sim::load::Bursts;

use super::level::Level;
use super::window::{Fit, Progress, WINDOW_NS};

/// How many missed windows have the same class as in the dedicated run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Agreement {
    /// Windows that the server calls missed, without those that are within 5 % of the threshold in the dedicated run.
    pub judged: u64,
    /// Those of them that have the same class.
    pub agreed: u64,
    /// Windows that the server calls missed, within 5 % of the threshold.
    pub near: u64,
}

impl Agreement {
    /// The sum.
    pub fn add(&mut self, other: &Agreement) {
        self.judged += other.judged;
        self.agreed += other.agreed;
        self.near += other.near;
    }

    /// Counts the windows of a workload that begin at `from_ns` or later. `shared` is what it was answered in the run.
    /// A window beyond the end of the dedicated run has nothing to be compared with.
    pub fn count(&mut self, windows: &[Window], from_ns: Nanos, shared: &Progress, dedicated: &Progress, terms: Terms) {
        for window in windows.iter().filter(|window| window.begun >= from_ns) {
            let ends = window.begun + window.duration_ns;
            let (first, last) = (shared.answered_at(window.begun), shared.answered_at(ends));
            let (Some(from), Some(to)) = (dedicated.at(first), dedicated.at(last)) else { continue };
            let (miss, fit) = terms.class(window, last - first, to - from, ends);
            if fit.is_near() && miss != Miss::NoDemand {
                self.near += 1;
            } else {
                self.judged += 1;
                self.agreed += u64::from(miss == window.miss);
            }
        }
    }
}

/// What a workload's windows are judged by.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// Its guarantee.
    pub level: &'a Level,
    /// The pauses of its client.
    pub pauses: Option<Bursts>,
}

impl Terms<'_> {
    /// The class of a missed window with so many bytes, which take `alone_ns` on a disk of their own.
    fn class(&self, window: &Window, bytes: u64, alone_ns: Nanos, ends: Nanos) -> (Miss, Fit) {
        let whole = self.level.window_bytes() as f64 / bytes.max(1) as f64;
        let fit = Fit::of((alone_ns as f64 * whole) as Nanos, self.level.keep);
        let paused_ns = self.pauses.map_or(0, |pauses| pauses.pauses(ends) - pauses.pauses(window.begun));
        let miss = match fit {
            _ if window.duration_ns <= WINDOW_NS + paused_ns => Miss::NoDemand,
            _ if fit.fits() => Miss::Avoidable,
            _ => Miss::Fundamental,
        };
        (miss, fit)
    }
}

#[cfg(test)]
mod tests {
    use engine::units::SECOND;

    use super::*;

    #[test]
    fn a_window_is_judged_by_the_bytes_in_it_wherever_it_begins() {
        // Alone, 15 MB at 1 MB/s take 1 s, then 15 s; with a fifth of the disk, 3 s fit.
        let answers = |times: [u64; 3]| {
            let mut progress = Progress::default();
            times.into_iter().for_each(|at| progress.answered(at * SECOND, 15_000_000));
            progress
        };
        let (alone, shared) = (answers([1, 2, 17]), answers([10, 30, 60]));
        let level = Level::new(&alone, 1_000_000, 0.2);
        let window = |begun: u64, seconds: u64, miss| Window {
            miss,
            marginal: false,
            begun: begun * SECOND,
            duration_ns: seconds * SECOND,
            wanted_ns: seconds * SECOND,
            bytes: 0,
            min_bytes_per_s: 1_000_000,
            owned_ns: 0,
            useful_ns: 0,
            share_ppb: 0,
            keep_permille: 0,
        };
        let mut agreement = Agreement::default();
        let windows = [
            window(10, 20, Miss::Avoidable),
            window(30, 30, Miss::Fundamental),
            window(30, 30, Miss::Avoidable),
            window(5, 5, Miss::Avoidable),
        ];
        agreement.count(&windows, 6 * SECOND, &shared, &alone, Terms { level: &level, pauses: None });
        assert_eq!(agreement, Agreement { judged: 3, agreed: 2, near: 0 });
    }
}
