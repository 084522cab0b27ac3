//! What insulation keeps: the mixes of Argon's evaluation and ours, under the policy `insulated` and, beside it,
//! `none`.
//!
//! Each tenant of a mix is run alone (the whole cache, the whole disk, the same server), then all together. What counts
//! is throughput together / (share x throughput alone): its insulation, at least R.
//!
//! ```text
//!   Mix ──► play: each alone, all together at each R, all together under `none` ──► judge: claims, pictures
//!            ▲ partitions: how much cache each gets
//! ```

pub mod cached;
pub mod change;
pub mod headless;
mod judge;
pub mod limits;
pub mod mixes;
mod partitions;
mod play;
pub mod stage;
pub mod sweep;
pub mod traced;
mod traces;

use engine::control::TenantSpec;
use engine::units::{Nanos, SECOND, Share};

use super::Experiment;
use super::loads::Load;
use super::stand::Run;

/// Disks with heads of three generations.
const DISKS: &[&str] = &["cheetah-15k5", "barracuda-7200.9", "nearline"];
/// R, in thousandths: what is asked of all mixes.
const KEEP: &[u32] = &[900, 800];
/// And of those in which the cache plays no part.
const KEEP_UNCACHED: &[u32] = &[900, 800, 950];

/// Experiments that are one mix, and can be written down for a real server.
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
    /// Of how many parts, how many are its own.
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

/// Who says how large partitions are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sizes {
    /// Nobody: they are even.
    Even,
    /// The experiment, by exact curves.
    Stated,
    /// The server, by what it learns in trials.
    Decided,
}

/// A mix with what it needs.
pub struct Mix {
    pub actors: Vec<Actor>,
    pub memory: u64,
    pub warm_up_ns: Nanos,
    /// In full; quick runs count a third of it.
    pub counted_ns: Nanos,
    /// R, in thousandths.
    pub keep: &'static [u32],
    pub sizes: Sizes,
    pub round_max_ns: Nanos,
}

impl Mix {
    /// 5 s to warm up, 60 s counted, 64 MiB, even partitions.
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

    /// 10 s to warm up, 60 s counted, partitions by curves.
    fn cached(memory: u64, actors: Vec<Actor>) -> Mix {
        let (warm_up_ns, counted_ns) = (10 * SECOND, 60 * SECOND);
        Mix { actors, memory, warm_up_ns, counted_ns, keep: KEEP, sizes: Sizes::Stated, round_max_ns: 2 * SECOND }
    }

    /// The size of a tenant's partition, if the server does not decide it: even, or what was found for it.
    fn cache_bytes(&self, at: usize, found: Option<&[u64]>) -> Option<u64> {
        (self.sizes != Sizes::Decided).then(|| found.map_or(self.memory / self.actors.len() as u64, |sizes| sizes[at]))
    }
}

/// The lower end of the one-sided 95 % confidence interval of the mean (Student's t).
fn surely(values: &[f64]) -> f64 {
    /// By degrees of freedom, from 1 on.
    const T: [f64; 12] = [6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782];
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    if values.len() < 2 {
        return mean;
    }
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    mean - T[(values.len() - 2).min(T.len() - 1)] * (variance / count).sqrt()
}

/// Insulation as the server told it between two snapshots, and its round.
fn live(run: &Run, tenant: usize, share: f64) -> (f64, Nanos) {
    let (before, after) = (&run.before.tenants[tenant], &run.after.tenants[tenant]);
    let worth = after.worth_ns as f64 - before.worth_ns as f64;
    let wanting = (after.wanting_ns - before.wanting_ns) as f64;
    (worth / wanting / share, after.plan.unwrap_or_default().round_ns)
}

fn short(disk: &str) -> &str {
    disk.split('-').next().unwrap_or(disk)
}
