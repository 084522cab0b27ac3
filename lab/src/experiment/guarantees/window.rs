//! Windows: cut by bytes, so that window k is the same work in every run, and classified against the dedicated run.
//!
//! ```text
//! bytes answered   0        W        2W       3W      W = 15 s x guarantee
//! dedicated        |--2 s---|--9 s---|--2 s---|       x n / R: what share 1/n of the disk takes at least
//! shared           |--7 s---|--31 s--|--16 s--|       longer than 15 s: missed
//!                    met     fundamental avoidable
//! ```

use engine::units::{Nanos, SECOND};
use sim::load::Bursts;

/// The length of a window at the guaranteed rate.
pub const WINDOW_NS: Nanos = 15 * SECOND;
/// How far the dedicated figure may be from the threshold in a marginal window, as a fraction of the threshold.
const MARGIN: f64 = 0.05;

/// The bytes of a window of a workload with this guarantee.
pub fn window_bytes(min_bytes_per_s: u64) -> u64 {
    min_bytes_per_s * (WINDOW_NS / SECOND)
}

/// The progress of a dedicated run: bytes answered over time.
#[derive(Default)]
pub struct Progress {
    /// After each answer: (bytes answered since the beginning, time).
    answers: Vec<(u64, Nanos)>,
}

impl Progress {
    /// An answer with so many bytes.
    pub fn answered(&mut self, now: Nanos, bytes: u64) {
        let before = self.answers.last().map_or(0, |&(bytes, _)| bytes);
        self.answers.push((before + bytes, now));
    }

    /// When so many bytes had been answered; `None` if the run ended before.
    pub fn at(&self, bytes: u64) -> Option<Nanos> {
        if bytes == 0 {
            return Some(0);
        }
        let first = self.answers.partition_point(|&(answered, _)| answered < bytes);
        self.answers.get(first).map(|&(_, now)| now)
    }

    /// How many bytes had been answered by then.
    pub fn answered_at(&self, now: Nanos) -> u64 {
        let count = self.answers.partition_point(|&(_, at)| at <= now);
        count.checked_sub(1).map_or(0, |last| self.answers[last].0)
    }

    /// The duration of each window of so many bytes.
    pub fn windows(&self, window_bytes: u64) -> Vec<Nanos> {
        let ends = (1..).map_while(|k| self.at(k * window_bytes));
        ends.scan(0, |began, end| Some(end - std::mem::replace(began, end))).collect()
    }
}

/// A window according to the dedicated run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// The guarantee fits into the share.
    Fits,
    /// It fits, by at most [`MARGIN`].
    Barely,
    /// It does not fit, by at most [`MARGIN`].
    BarelyNot,
    /// It does not fit.
    FitsNot,
}

impl Fit {
    /// The fit of a window that takes `dedicated_ns` alone, for a tenant that keeps `keep` (share x R) of the disk.
    pub fn of(dedicated_ns: Nanos, keep: f64) -> Fit {
        // The rate that the tenant keeps over the guaranteed rate.
        match WINDOW_NS as f64 * keep / dedicated_ns as f64 {
            rate if rate > 1.0 + MARGIN => Fit::Fits,
            rate if rate >= 1.0 => Fit::Barely,
            rate if rate >= 1.0 - MARGIN => Fit::BarelyNot,
            _ => Fit::FitsNot,
        }
    }

    /// Whether the guarantee fits into the share.
    pub fn fits(self) -> bool {
        matches!(self, Fit::Fits | Fit::Barely)
    }

    /// Whether the dedicated figure is within 5 % of the threshold.
    pub fn is_near(self) -> bool {
        matches!(self, Fit::Barely | Fit::BarelyNot)
    }
}

/// A window of a shared run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Its number: it begins after so many windows' bytes.
    pub number: usize,
    /// When it began.
    pub begun_ns: Nanos,
    /// How long it took; for the last one of a run, which did not end, how long it has taken.
    pub took_ns: Nanos,
    /// For how much of that the client paused: it sent no requests.
    pub paused_ns: Nanos,
}

impl Window {
    /// Whether the guarantee was missed.
    pub fn is_missed(&self) -> bool {
        self.took_ns > WINDOW_NS
    }

    /// Whether that is because the client paused.
    fn has_no_demand(&self) -> bool {
        self.is_missed() && self.took_ns - self.paused_ns <= WINDOW_NS
    }

    /// Whether it was missed although this fit says that it need not have been.
    pub fn is_avoidable(&self, fit: Fit) -> bool {
        self.is_missed() && !self.has_no_demand() && fit == Fit::Fits
    }
}

/// Cuts the answers of a shared run into windows.
pub struct Cutter {
    window_bytes: u64,
    pauses: Option<Bursts>,
    bytes: u64,
    /// When each window began.
    begun: Vec<Nanos>,
}

impl Cutter {
    /// Windows of so many bytes, the first of which begins at 0, of a client with these pauses.
    pub fn new(window_bytes: u64, pauses: Option<Bursts>) -> Cutter {
        Cutter { window_bytes, pauses, bytes: 0, begun: vec![0] }
    }

    /// An answer with so many bytes. A request larger than a window ends several.
    pub fn answered(&mut self, now: Nanos, bytes: u64) {
        self.bytes += bytes;
        while self.bytes >= self.window_bytes * self.begun.len() as u64 {
            self.begun.push(now);
        }
    }

    /// The window that has begun last.
    pub fn present(&self) -> usize {
        self.begun.len() - 1
    }

    /// The windows that were in progress from `since` until now.
    pub fn since(&self, since: Nanos) -> std::ops::RangeInclusive<usize> {
        let first = self.begun.iter().rposition(|&began| began <= since).unwrap_or(0);
        first..=self.present()
    }

    /// The windows that began at `from` or later. The last one, which has not ended at `end`, is among them only if it
    /// is missed already: a starved workload ends no windows.
    pub fn windows(&self, from: Nanos, end: Nanos) -> Vec<Window> {
        let ends = self.begun[1..].iter().copied().chain([end]);
        let all = self.begun.iter().zip(ends).enumerate();
        let counted = all.filter(|(_, (began, _))| **began >= from);
        let paused_ns = |began, end| self.pauses.map_or(0, |pauses| pauses.pauses(end) - pauses.pauses(began));
        let cut = counted.map(|(number, (&began, end))| Window {
            number,
            begun_ns: began,
            took_ns: end - began,
            paused_ns: paused_ns(began, end),
        });
        cut.filter(|window| window.number < self.present() || window.is_missed()).collect()
    }
}

/// Counts of windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// All.
    pub windows: u64,
    /// Missed because the client paused.
    pub no_demand: u64,
    /// Missed, and share x R x the rate of the dedicated run is below the guarantee.
    pub fundamental: u64,
    /// Missed for no such reason, and not marginal.
    pub avoidable: u64,
    /// Missed and not fundamental, but the dedicated figure is within 5 % of the threshold.
    pub marginal: u64,
    /// Whose dedicated figure is below the threshold, missed or not.
    pub expected: u64,
    /// Whose dedicated figure is within 5 % of the threshold, missed or not.
    pub near: u64,
}

impl Counts {
    /// Counts a window.
    pub fn count(&mut self, window: &Window, fit: Fit) {
        self.windows += 1;
        self.expected += u64::from(!fit.fits());
        self.near += u64::from(fit.is_near());
        if !window.is_missed() {
            return;
        }
        let class = match fit {
            _ if window.has_no_demand() => &mut self.no_demand,
            Fit::FitsNot | Fit::BarelyNot => &mut self.fundamental,
            Fit::Barely => &mut self.marginal,
            Fit::Fits => &mut self.avoidable,
        };
        *class += 1;
    }

    /// The sum.
    pub fn add(&mut self, other: &Counts) {
        self.windows += other.windows;
        self.no_demand += other.no_demand;
        self.fundamental += other.fundamental;
        self.avoidable += other.avoidable;
        self.marginal += other.marginal;
        self.expected += other.expected;
        self.near += other.near;
    }

    /// All missed windows in which there was demand.
    pub fn missed(&self) -> u64 {
        self.fundamental + self.avoidable + self.marginal
    }

    /// Missed ones of all windows.
    pub fn missed_fraction(&self) -> f64 {
        self.missed() as f64 / self.windows as f64
    }

    /// Avoidable ones of the windows that are not marginal.
    pub fn avoidable_fraction(&self) -> f64 {
        self.avoidable as f64 / (self.windows - self.marginal) as f64
    }

    /// Avoidable and marginal ones of all windows.
    pub fn avoidable_or_marginal_fraction(&self) -> f64 {
        (self.avoidable + self.marginal) as f64 / self.windows as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_cut_by_bytes_and_line_up() {
        let (mut progress, mut cutter) =
            (Progress::default(), Cutter::new(100, Some(Bursts { on_ns: 90 * SECOND, off_ns: 10 * SECOND })));
        for (at, bytes) in [(1, 60), (2, 60), (5, 80), (9, 10), (11, 90)] {
            progress.answered(at * SECOND, bytes);
            cutter.answered(10 * at * SECOND, bytes);
        }
        assert_eq!(progress.windows(100), [2 * SECOND, 3 * SECOND, 6 * SECOND]);
        let windows =
            |from, end| cutter.windows(from, end).iter().map(|w| (w.number, w.took_ns / SECOND)).collect::<Vec<_>>();
        assert_eq!(windows(0, 111 * SECOND), [(0, 20), (1, 30), (2, 60)], "the fourth may still be met");
        assert_eq!(windows(1, 126 * SECOND), [(1, 30), (2, 60), (3, 16)], "and now it is missed");
        let paused: Vec<_> = cutter.windows(0, 126 * SECOND).iter().map(|window| window.paused_ns / SECOND).collect();
        assert_eq!(paused, [0, 0, 10, 0]);
        assert_eq!([0, 20, 49, 51].map(|at| cutter.since(at * SECOND)), [0..=3, 1..=3, 1..=3, 2..=3]);
    }

    #[test]
    fn a_time_has_a_position_in_the_sequence() {
        let mut progress = Progress::default();
        [(2, 60), (5, 40)].into_iter().for_each(|(now, bytes)| progress.answered(now, bytes));
        assert_eq!([0, 1, 2, 4, 5, 9].map(|now| progress.answered_at(now)), [0, 0, 60, 60, 100, 100]);
    }

    #[test]
    fn a_missed_window_has_one_class() {
        // A fifth of the disk, R = 0.9: what takes 2.7 s alone fits exactly.
        let fit = |dedicated_ms: u64| Fit::of(dedicated_ms * 1_000_000, 0.2 * 0.9);
        assert_eq!(
            [2500, 2600, 2700, 2720, 2900].map(fit),
            [Fit::Fits, Fit::Barely, Fit::Barely, Fit::BarelyNot, Fit::FitsNot]
        );
        let (missed, met) = (WINDOW_NS + 1, WINDOW_NS);
        let mut counts = Counts::default();
        for (took_ns, paused_ns, fit) in [
            (met, 0, Fit::FitsNot),
            (missed, 0, Fit::FitsNot),
            (missed, 0, Fit::BarelyNot),
            (missed, 0, Fit::Barely),
            (missed + 1, 1, Fit::Fits),
            (missed, 1, Fit::Fits),
            (met, 1, Fit::Fits),
        ] {
            let window = Window { number: 0, begun_ns: 0, took_ns, paused_ns };
            let before = counts.avoidable;
            counts.count(&window, fit);
            assert_eq!(counts.avoidable > before, window.is_avoidable(fit));
        }
        let expected =
            Counts { windows: 7, no_demand: 1, fundamental: 2, avoidable: 1, marginal: 1, expected: 3, near: 2 };
        assert_eq!(counts, expected);
        assert_eq!((counts.missed(), counts.avoidable_fraction()), (4, 1.0 / 6.0));
        assert_eq!(counts.avoidable_or_marginal_fraction(), 2.0 / 7.0);
    }
}
