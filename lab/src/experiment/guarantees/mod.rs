//! Bandwidth guarantees: the experiment of Wachs and Ganger (2010, section 5) with its method.
//!
//! ```text
//! ten workloads ──► each alone on the disk ──► a guarantee for each (level), which of its windows fit into share 1/n
//!       └─────────► sets of 2 to 10 x policies ──► windows: met or missed, and why (window) ──► rows, claims, pictures
//! ```
//!
//! - *Workloads* are replayed closed, 16 requests at a time, as fast as possible; each has its own tenth of the disk.
//!   Writes go through, also with cache.
//! - *Guarantees*: one for each workload, the same at all sizes of a set. The rule ([`level`]) looks for the one with
//!   the fewest windows near the threshold of which 5 to 25 % are fundamental at every share from 1/2 to 1/10. This is
//!   possible because each workload alternates between two localities.
//! - *Windows* have the bytes of 15 s at the guaranteed rate, in the workload's own sequence of requests, so that
//!   window k is the same work in every run. A window is missed if it took longer than 15 s. A window is compared with
//!   the same window of the dedicated run, never a count with a count.
//! - A missed window is counted once: as `no_demand` if it took 15 s or less without the pauses of the client; as
//!   `fundamental` if share x R x the dedicated rate is below the guarantee; as `marginal` if it is not, but by 5 % of
//!   the threshold at most; otherwise as `avoidable`. So *avoidable outside the marginal ones* is `avoidable / (windows
//!   - marginal)`, and *with them* `(avoidable + marginal) / windows`.
//! - *R* is 0.9, or what the server can keep with slices of `max_round` / n if that is less: 1 - switch cost / slice,
//!   with the profile's switch cost. It is fixed before the run, and the same for all policies.
//! - The server's own classification is compared with that of the dedicated run, over the same bytes ([`live`]).
//! - Claims need enough windows: a fraction is not claimed where a single window would break it, a ratio not against
//!   fewer than 30 windows.
//! - A window that has not ended with the run counts if it is missed already. Windows of the first 10 s do not count.
//!
//! Downside: all runs last equally long, so a policy under which a workload starves is judged by fewer of its windows.

pub mod detail;
pub mod hostile;
pub mod judge;
pub mod level;
pub mod live;
pub mod mixed;
pub mod pictures;
pub mod play;
pub mod plot;
pub mod policies;
pub mod sets;
pub mod single;
pub mod window;
pub mod workloads;

use engine::units::{Nanos, SECOND};
use serde_json::json;

use super::{Context, Experiment, Outcome};
use level::Level;
use live::Agreement;
use play::{Cache, Ground, Set, Shared};
use policies::Policy;
use window::{Counts, Progress};
use workloads::{COUNT, Workload};

const PAPER: &str = "Wachs and Ganger, CMU-PDL-10-113, section 5: round-robin slices with guarantees avoid nearly all \
                     violations that are not fundamental up to five workloads, and leave a few at ten; token bucket \
                     and pClock miss up to half of the windows of two workloads.";

/// Without cache.
pub const PLAIN: Experiment = Experiment {
    name: "guarantees",
    question: "Which windows of a bandwidth guarantee are missed, and which of them need not be?",
    setup: "Disk barracuda-7200.9, rounds of 2.4 s at most, R = 0.9. Sets of 2 to 10 of ten workloads whose locality \
            changes strongly (six cuts of real traces and four descriptions; without traces, and in quick runs, ten \
            descriptions), each with a share of 1/n and a guarantee that fits into it in 75 to 95 % of windows; 45 \
            sets of each size, or all. Closed replay, 16 requests at a time. Without cache: the smallest partitions, \
            write-through, no read-ahead. A run takes n x 40 s, several times that where there are few sets.",
    paper: PAPER,
    run: |context: &Context| run(context, Cache::Smallest),
};

/// With cache.
pub const CACHED: Experiment = Experiment {
    name: "guarantees-cached",
    question: "And with cache and read-ahead?",
    setup: "As `guarantees`, with a partition of 16 MiB for each workload, alone and together, and read-ahead as R \
            requires. Writes go through: by write-back they would reach the disk in another window alone than \
            together.",
    paper: PAPER,
    run: |context: &Context| match context.quick {
        true => Ok(Outcome::left_out("not in quick runs".into())),
        false => run(context, Cache::EACH),
    },
};

/// Sizes of sets.
pub const SIZES: std::ops::RangeInclusive<usize> = 2..=COUNT;
/// Sizes of sets in a quick run.
const SIZES_QUICK: [usize; 3] = [2, 5, 10];

/// How long and how much is run.
pub struct Extent {
    /// The sizes of sets.
    pub sizes: Vec<usize>,
    /// The most sets of a size.
    pub sets_most: usize,
    /// The length of a run for each member of its set.
    pub member_ns: Nanos,
    /// The longest run is so many times that, where there are few sets.
    times_most: usize,
}

impl Extent {
    /// That of a full or quick comparison.
    pub fn new(quick: bool) -> Extent {
        match quick {
            true => Extent { sizes: SIZES_QUICK.into(), sets_most: 2, member_ns: 25 * SECOND, times_most: 1 },
            false => Extent { sizes: SIZES.collect(), sets_most: 45, member_ns: 40 * SECOND, times_most: 6 },
        }
    }

    /// The sets of a size.
    pub fn sets(&self, size: usize) -> Vec<Vec<usize>> {
        sets::sets(size, self.sets_most)
    }

    /// The length of a run of this size.
    pub fn end_ns(&self, size: usize) -> Nanos {
        let times = (self.sets_most / self.sets(size).len()).clamp(1, self.times_most);
        (size * times) as Nanos * self.member_ns
    }

    /// The length of a dedicated run: no shared run gets further, because it has to share, except by pauses of others.
    pub fn dedicated_ns(&self) -> Nanos {
        let longest = self.sizes.iter().map(|&size| self.end_ns(size) / size as Nanos).max().unwrap_or(0);
        2 * longest
    }
}

/// The ten workloads with what is known from their dedicated runs.
pub struct Cast {
    /// Disk and server.
    pub ground: Ground,
    /// The workloads.
    pub workloads: Vec<Workload>,
    /// Their dedicated runs.
    pub progress: Vec<Progress>,
    /// By workload, the levels at each size of [`SIZES`].
    levels: Vec<Vec<Level>>,
}

impl Cast {
    /// Runs each workload alone and chooses its guarantee.
    pub fn new(context: &Context, cache: Cache, dedicated_ns: Nanos) -> Result<Cast, String> {
        Cast::of(context, cache, dedicated_ns, &(0..COUNT).collect::<Vec<_>>())
    }

    /// The same for some of them; nothing is known of the others.
    pub fn of(context: &Context, cache: Cache, dedicated_ns: Nanos, numbers: &[usize]) -> Result<Cast, String> {
        let (ground, workloads) = (Ground::new(cache)?, workloads::ten(context)?);
        let alone = |at: &usize| ground.dedicated(&workloads, *at, dedicated_ns, context.seeds[0]);
        let runs = context.parallel(numbers, alone).into_iter().collect::<Result<Vec<_>, _>>()?;
        let keeps: Vec<_> = SIZES.map(|size| ground.effective_r(size) / size as f64).collect();
        let chosen = context.parallel(&runs, |progress| level::choose(progress, &keeps));
        let nothing = || keeps.iter().map(|&keep| Level::new(&Progress::default(), 1, keep)).collect();
        let (mut progress, mut levels) = (Vec::new(), Vec::new());
        progress.resize_with(COUNT, Progress::default);
        levels.resize_with(COUNT, nothing);
        for ((&at, run), chosen) in numbers.iter().zip(runs).zip(chosen) {
            (progress[at], levels[at]) = (run, chosen);
        }
        Ok(Cast { ground, workloads, progress, levels })
    }

    /// The levels of all workloads at a size.
    pub fn levels(&self, size: usize) -> Vec<Level> {
        self.levels.iter().map(|sizes| sizes[size - SIZES.start()].clone()).collect()
    }
}

/// What a policy does at a size.
pub struct Row {
    /// The policy.
    pub policy: &'static Policy,
    /// The size.
    pub size: usize,
    /// By set.
    pub shared: Vec<Shared>,
}

impl Row {
    /// The sum over sets and members.
    pub fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        self.shared.iter().flat_map(|shared| &shared.counts).for_each(|counts| sum.add(counts));
        sum
    }

    /// How far the server's own classification agrees.
    pub fn agreement(&self) -> Agreement {
        let mut sum = Agreement::default();
        self.shared.iter().for_each(|shared| sum.add(&shared.agreement));
        sum
    }
}

/// The workloads and their guarantees.
pub const LOADS: Experiment = Experiment {
    name: "guarantees-workloads",
    question: "Which guarantees do ten workloads have, and which of their windows do not fit into a share of 1/n?",
    setup: "The workloads of `guarantees`, each alone on the disk.",
    paper: "Wachs and Ganger, sections 5.1.4 and 5.2.2: guarantees that fit most of the time; from 0 % of windows at \
            1/2 to 20 % at 1/10 do not.",
    run: loads,
};

fn loads(context: &Context) -> Result<Outcome, String> {
    let cast = Cast::new(context, Cache::Smallest, Extent::new(context.quick).dedicated_ns())?;
    let of_workload = |(workload, levels): (&Workload, &Vec<Level>)| {
        let of = |value: fn(&Level) -> f64| levels.iter().map(value).collect::<Vec<_>>();
        json!({
            "name": workload.name, "bytes_per_second": levels[0].bytes_per_s, "windows": levels[0].windows(),
            "workloads": SIZES.collect::<Vec<_>>(), "fundamental": of(Level::fundamental), "near": of(Level::near),
        })
    };
    let data = cast.workloads.iter().zip(&cast.levels).map(of_workload).collect();
    let claims = SIZES.flat_map(|size| judge::of_guarantees(&cast, size)).collect();
    let pictures = vec![pictures::fundamental(&cast)?];
    Ok(Outcome { claims, data, pictures, ..Outcome::default() })
}

fn run(context: &Context, cache: Cache) -> Result<Outcome, String> {
    let extent = Extent::new(context.quick);
    let cast = Cast::new(context, cache, extent.dedicated_ns())?;
    let rows = rows(context, &extent, &cast, policies::ALL, false)?;
    let (data, pictures) = (judge::data(&cast, &rows), pictures::comparison(&extent, &cast, &rows)?);
    Ok(Outcome { claims: judge::claims(&extent, &rows), data, pictures, ..Outcome::default() })
}

/// Runs all sets under these policies.
fn rows(
    context: &Context,
    extent: &Extent,
    cast: &Cast,
    policies: &'static [Policy],
    is_mixed: bool,
) -> Result<Vec<Row>, String> {
    let levels: Vec<_> = extent.sizes.iter().map(|&size| cast.levels(size)).collect();
    let sets: Vec<_> = extent.sizes.iter().map(|&size| extent.sets(size)).collect();
    let mut jobs = Vec::new();
    for policy in policies {
        for ((&size, sets), levels) in extent.sizes.iter().zip(&sets).zip(&levels) {
            let (end_ns, seed) = (extent.end_ns(size), context.seeds[0]);
            let set = |members| (policy, Set { cast, levels, members, is_mixed, end_ns, seed });
            jobs.extend(sets.iter().map(|members| set(members)));
        }
    }
    let mut runs = context.parallel(&jobs, |(policy, set)| set.run(policy)).into_iter();
    let mut rows = Vec::new();
    for policy in policies {
        for (&size, sets) in extent.sizes.iter().zip(&sets) {
            let shared = runs.by_ref().take(sets.len()).collect::<Result<_, _>>()?;
            rows.push(Row { policy, size, shared });
        }
    }
    Ok(rows)
}
