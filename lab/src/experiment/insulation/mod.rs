//! Insulation: the mixes of Argon's evaluation and ours, under the policy `insulated` and, for comparison, under
//! `none`.
//!
//! Each tenant of a mix is run alone (with the whole cache, the whole disk, and the same server), then all together.
//! Its insulation is throughput together / (share x throughput alone), which must be at least R.
//!
//! ```text
//! Mix ──► play: each alone, all together at each R, all together under `none` ──► judge: claims, pictures
//!          ▲ partitions: how much cache each gets
//! ```

pub mod cached;
pub mod change;
pub mod headless;
mod judge;
pub mod limits;
pub mod mixes;
mod partitions;
mod play;
pub mod precision;
pub mod recall;
pub mod stage;
pub mod sweep;
pub mod traced;
pub mod traces;
pub mod withdrawn;

pub use play::{alone_s, counted_bins};

use engine::control::{Progress, TenantSpec};
use engine::units::{Nanos, SECOND, Share};

use super::Experiment;
use super::loads::Load;
use super::stand::Run;

/// Disks with heads of three generations.
const DISKS: &[&str] = &["cheetah-15k5", "barracuda-7200.9", "nearline"];
/// The values of R, in thousandths, for all mixes.
const KEEP: &[u32] = &[900, 800];
/// The values of R for mixes in which the cache has no effect.
const KEEP_UNCACHED: &[u32] = &[900, 800, 950];

/// Experiments that consist of one mix, which can be written for a real server.
pub const MIXES: &[&Experiment] = &[
    &mixes::STREAMS,
    &mixes::STREAM_RANDOM,
    &mixes::DEPTHS,
    &mixes::UNEQUAL,
    &mixes::WRITE_STREAM,
    &mixes::RANDOM_WRITES,
    &cached::ABSORBED,
    &cached::FOUR,
    &cached::DATABASE,
    &traced::CLOSED,
];

/// A tenant of a mix.
pub struct Actor {
    pub name: String,
    /// Its share, as numerator and denominator.
    pub share: (u64, u64),
    pub load: Load,
}

impl Actor {
    fn new(name: impl Into<String>, share: (u64, u64), load: impl Into<Load>) -> Actor {
        Actor { name: name.into(), share, load: load.into() }
    }

    fn share(&self) -> f64 {
        self.share.0 as f64 / self.share.1 as f64
    }

    fn spec(&self) -> TenantSpec {
        let ppb = Share::ONE.ppb() * self.share.0 / self.share.1;
        TenantSpec { share: Share::from_ppb(ppb), ..TenantSpec::default() }
    }

    fn cast(&self) -> (TenantSpec, Load) {
        (self.spec(), self.load.clone())
    }
}

/// How the sizes of partitions are determined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sizes {
    /// All partitions are equal.
    Even,
    /// By the experiment, from exact curves.
    Stated,
    /// By the server, from what it learns in trials.
    Decided,
}

/// A mix and its parameters.
pub struct Mix {
    pub actors: Vec<Actor>,
    pub memory: u64,
    pub warm_up_ns: Nanos,
    /// The counted time of a full run; a quick run counts a third of it.
    pub counted_ns: Nanos,
    /// The values of R, in thousandths.
    pub keep: &'static [u32],
    pub sizes: Sizes,
    pub round_max_ns: Nanos,
}

impl Mix {
    /// 5 s of warm-up, 60 s counted, 64 MiB, equal partitions.
    fn uncached(actors: Vec<Actor>) -> Mix {
        let (warm_up_ns, counted_ns) = (5 * SECOND, 60 * SECOND);
        Mix {
            actors,
            memory: 64 << 20,
            warm_up_ns,
            counted_ns,
            keep: KEEP_UNCACHED,
            sizes: Sizes::Even,
            round_max_ns: 2 * SECOND,
        }
    }

    /// 10 s of warm-up, 60 s counted, partitions by curves.
    fn cached(memory: u64, actors: Vec<Actor>) -> Mix {
        let (warm_up_ns, counted_ns) = (10 * SECOND, 60 * SECOND);
        Mix { actors, memory, warm_up_ns, counted_ns, keep: KEEP, sizes: Sizes::Stated, round_max_ns: 2 * SECOND }
    }

    /// The size of a tenant's partition, unless the server decides it: equal, or as found from curves.
    fn cache_bytes(&self, at: usize, found: Option<&[u64]>) -> Option<u64> {
        (self.sizes != Sizes::Decided).then(|| found.map_or(self.memory / self.actors.len() as u64, |sizes| sizes[at]))
    }
}

/// The lower end of the one-sided 95 % confidence interval of the mean (Student's t).
fn surely(values: &[f64]) -> f64 {
    /// Quantiles by degrees of freedom, from 1 on.
    const T: [f64; 12] = [6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782];
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 {
        return mean;
    }
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    mean - T[(values.len() - 2).min(T.len() - 1)] * (variance / count).sqrt()
}

/// The insulation that the server reported between two snapshots (NaN if unknown), and its round.
pub fn live(run: &Run, tenant: usize, share: f64) -> (f64, Nanos) {
    let ratio = progress(run, tenant).and_then(|[before, after]| after.insulation_since(&before, share));
    (ratio.unwrap_or(f64::NAN), run.after.tenants[tenant].plan.unwrap_or_default().round_ns)
}

/// The insulation with the cache that the tenant has that the server reported between two snapshots.
pub fn live_own_cache(run: &Run, tenant: usize, share: f64) -> Option<f64> {
    progress(run, tenant).and_then(|[before, after]| after.own_cache_insulation_since(&before, share))
}

fn progress(run: &Run, tenant: usize) -> Option<[Progress; 2]> {
    let [before, after] = [&run.before, &run.after].map(|snapshot| snapshot.tenants[tenant].progress);
    Some([before?, after?])
}

fn short(disk: &str) -> &str {
    disk.split('-').next().unwrap_or(disk)
}
