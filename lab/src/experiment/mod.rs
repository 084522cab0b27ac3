//! Experiments: a question, a set-up, claims with bounds, pictures. One file each, listed in [`ALL`].
//!
//! ```text
//! ALL ──► cli: list, run ──► Outcome ──► NAME.json, NAME-*.svg
//!                               └──────► page: one HTML file for reading
//! ```
//!
//! The engine that runs here is the one that ships, on a simulated drive, in virtual time ([`sim::bench`]). The same
//! seeds give the same figures on any machine, with any number of cores.
//!
//! Downside: jitter of the network and of the processor does not exist in virtual time. The last experiment of each
//! kind has to be done on a real server.

mod allocation;
pub mod chart;
pub mod cli;
mod cluster;
pub mod index;
pub mod lines;
pub mod loads;
pub mod page;
pub mod stand;

mod guarantees;
mod insulation;
mod offload;
mod sharing;

pub use guarantees::single::Single;
pub(crate) use insulation::{alone_s, counted_bins, live, live_own_cache};

use std::path::PathBuf;

use insulation::stage::Stage;
use serde::Serialize;

/// All experiments, in reading order.
pub const ALL: &[Experiment] = &[
    sharing::standalone::EXPERIMENT,
    sharing::streams::EXPERIMENT,
    sharing::stream_random::EXPERIMENT,
    sharing::depths::EXPERIMENT,
    sharing::cache::EXPERIMENT,
    insulation::mixes::STREAMS,
    insulation::mixes::STREAM_RANDOM,
    insulation::mixes::DEPTHS,
    insulation::mixes::UNEQUAL,
    insulation::mixes::WRITE_STREAM,
    insulation::mixes::RANDOM_WRITES,
    insulation::cached::ABSORBED,
    insulation::cached::FOUR,
    insulation::cached::DATABASE,
    insulation::traced::CLOSED,
    insulation::traced::OPEN,
    insulation::limits::EXPERIMENT,
    insulation::precision::EXPERIMENT,
    insulation::precision::RELAXED,
    insulation::precision::STREAMS_WITHIN,
    insulation::recall::EXPERIMENT,
    insulation::withdrawn::EXPERIMENT,
    insulation::change::EXPERIMENT,
    insulation::sweep::PREFETCH,
    insulation::sweep::SLICES,
    insulation::headless::READERS,
    insulation::headless::WRITER,
    insulation::headless::STREAM_WRITER,
    guarantees::LOADS,
    guarantees::PLAIN,
    guarantees::CACHED,
    guarantees::mixed::EXPERIMENT,
    guarantees::hostile::EXPERIMENT,
    offload::mail::PEAKS,
    offload::sweep::EXPERIMENT,
    offload::oltp::IDLE,
    offload::oltp::SHARED,
    offload::oltp::COPIES,
    offload::worst::EXPERIMENT,
    offload::micro::LOG,
    offload::micro::RECLAIM,
    offload::micro::RECOVERY,
    cluster::PACK,
    cluster::PINNED,
    cluster::SERVERS,
    cluster::TENANTS,
    cluster::FIVE,
    cluster::MIXED,
    cluster::LARGE,
    cluster::CLOCKS,
    cluster::ORDER,
    cluster::REAL,
    allocation::PAPER,
    allocation::MODEL,
    allocation::RANDOM,
    allocation::TRACES,
    allocation::PLAN,
    allocation::FOLLOW,
];

/// One experiment.
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its question, one sentence.
    pub question: &'static str,
    /// Cache, footprints, places on the disk, durations.
    pub setup: &'static str,
    /// The result in the papers.
    pub paper: &'static str,
    /// Runs it.
    pub run: fn(&Context) -> Result<Outcome, String>,
}

/// The parameters of a run.
pub struct Context {
    /// Short runs with few seeds, for each change; not for the record.
    pub quick: bool,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// The directory of real traces; it may not exist.
    pub traces: PathBuf,
    /// Set if a mix is to be written for a real server, instead of being judged.
    pub stage: Option<Stage>,
    /// The progress bar.
    pub progress: indicatif::ProgressBar,
}

/// The result of an experiment.
#[derive(Default, Serialize)]
pub struct Outcome {
    /// Why it was not run, if something that it needs is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
    /// Statements with bounds.
    pub claims: Vec<Claim>,
    /// All measured values.
    pub data: serde_json::Value,
    /// SVG documents.
    #[serde(skip)]
    pub pictures: Vec<Picture>,
}

impl Outcome {
    /// The result of an experiment that was not run.
    pub fn left_out(why: String) -> Outcome {
        Outcome { left_out: Some(why), ..Outcome::default() }
    }
}

/// A picture and its caption.
pub struct Picture {
    /// The last part of its file name.
    pub name: String,
    /// The caption.
    pub caption: String,
    /// The SVG document.
    pub svg: String,
}

/// A figure and its bound.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Claim {
    /// The name of the figure, with its unit.
    pub name: String,
    /// The figure.
    pub value: f64,
    /// Its bound.
    pub bound: Bound,
    /// Whether the figure is within the bound.
    pub holds: bool,
}

/// The bound of a figure.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// A minimum.
    AtLeast(f64),
    /// A maximum.
    AtMost(f64),
}

impl Claim {
    /// A claim of `value` against `bound`. NaN never holds.
    pub fn new(name: impl Into<String>, value: f64, bound: Bound) -> Claim {
        let holds = match bound {
            Bound::AtLeast(least) => value >= least,
            Bound::AtMost(most) => value <= most,
        };
        Claim { name: name.into(), value, bound, holds }
    }
}

/// Digits after the point with which a figure is shown.
const DIGITS: usize = 3;
/// The maximum, used if fewer digits would hide that a claim fails.
const DIGITS_MOST: usize = 9;

impl Claim {
    /// The value, with as many digits as are needed to see whether the claim holds.
    fn shown(&self) -> String {
        let shown = |digits: usize| format!("{:.digits$}", self.value);
        let tells = |text: &String| {
            let rounded: f64 = text.parse().unwrap_or(f64::NAN);
            Claim::new("", rounded, self.bound).holds == self.holds
        };
        (DIGITS..DIGITS_MOST).map(shown).find(tells).unwrap_or_else(|| shown(DIGITS))
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bound::AtLeast(least) => write!(f, "at least {least}"),
            Bound::AtMost(most) => write!(f, "at most {most}"),
        }
    }
}

impl Context {
    /// Runs `work` for each of `items` on all cores. The results have the order of the items.
    pub fn parallel<T: Sync, R: Send>(&self, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
        parallel(&self.progress, items, work)
    }

    /// Says what was found so far, in an experiment that takes long.
    pub fn note(&self, line: &str) {
        self.progress.suspend(|| eprintln!("{line}"));
    }
}

/// A progress bar with this name.
pub fn progress(name: &str) -> indicatif::ProgressBar {
    let template = "{prefix:20} {wide_bar} {pos}/{len} {elapsed}";
    let style = indicatif::ProgressStyle::with_template(template).expect("a good template");
    let bar = indicatif::ProgressBar::new(0).with_style(style).with_prefix(name.to_owned());
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    bar
}

/// Runs `work` for each of `items` on all cores. The results have the order of the items.
pub fn parallel<T: Sync, R: Send>(
    progress: &indicatif::ProgressBar,
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    progress.inc_length(items.len() as u64);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let worker = || {
            let mut mine = Vec::new();
            loop {
                let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let Some(item) = items.get(at) else { return mine };
                mine.push((at, work(item)));
                progress.inc(1);
            }
        };
        let workers: Vec<_> = (0..cores.min(items.len())).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker that does not panic")).collect()
    });
    results.sort_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_number_does_not_hold() {
        assert!(Claim::new("a", 0.9, Bound::AtLeast(0.9)).holds);
        assert!(!Claim::new("a", f64::NAN, Bound::AtLeast(0.0)).holds);
        assert!(!Claim::new("a", f64::NAN, Bound::AtMost(1.0)).holds);
    }

    #[test]
    fn what_misses_is_seen_to_miss() {
        let shown = |value, bound| Claim::new("a", value, bound).shown();
        assert_eq!(shown(0.90049, Bound::AtLeast(0.9)), "0.900");
        assert_eq!(shown(0.89996, Bound::AtLeast(0.9)), "0.89996");
        assert_eq!(shown(0.999_999_3, Bound::AtLeast(1.0)), "0.999999");
        assert_eq!(shown(0.050_01, Bound::AtMost(0.05)), "0.05001");
        assert_eq!(shown(f64::NAN, Bound::AtMost(0.05)), "NaN");
    }

    #[test]
    fn names_are_words_of_a_command_line_and_taken_once() {
        let mut names: Vec<_> = ALL.iter().map(|experiment| experiment.name).collect();
        assert!(names.iter().all(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn results_keep_the_order_of_items() {
        let context = Context {
            quick: true,
            seeds: vec![1],
            traces: PathBuf::new(),
            stage: None,
            progress: indicatif::ProgressBar::hidden(),
        };
        let items: Vec<u64> = (0..100).collect();
        assert_eq!(context.parallel(&items, |&n| n * n), items.iter().map(|n| n * n).collect::<Vec<_>>());
    }
}
