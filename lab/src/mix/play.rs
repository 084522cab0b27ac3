//! The runs of a mix: on each disk and with each seed, each tenant alone and all together.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, anyhow};
use engine::control::{Decision, Sizing, WriteCache};
use engine::units::{Nanos, SECOND};
use indicatif::ProgressBar;
use sim::bench::Volume;

use super::file::{Mix, Tenant};
use crate::experiment::stand::{Run, Stand, mixed};
use crate::experiment::{alone_s, counted_bins, live, live_own_cache, parallel};

/// Between two looks at the server's decisions.
const LOOK_NS: Nanos = 10 * SECOND;

/// A tenant in one run of all together, and what it gets alone.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    /// Bytes per second.
    pub alone: f64,
    pub together: f64,
    /// Throughput together / (share x throughput alone); for a trace: the time that the same work takes alone / (share
    /// x the time that it took together).
    pub kept: f64,
    /// The decision at the end of the warm-up.
    pub sizing: Option<Sizing>,
    /// The part of the looks during the counted time at which it was admitted.
    pub admitted: f64,
    /// The insulation that the server measured over the counted time: with the whole cache, and with the cache that the
    /// tenant had.
    pub live: Option<f64>,
    pub live_own_cache: Option<f64>,
    /// 99th percentile of latency, milliseconds.
    pub p99_ms: f64,
}

/// The runs on one disk: by seed, then by tenant.
pub struct Played {
    pub disk: String,
    pub seeds: Vec<(u64, Vec<Kept>)>,
}

/// A mix on one disk: the places of its volumes, and the server.
pub struct Scene<'a> {
    mix: &'a Mix,
    places: Vec<(u64, u64)>,
    stand: Stand,
}

/// Who takes part in a run, and with which cache.
#[derive(Clone, Copy, Debug)]
pub enum Job {
    /// One tenant, with the whole cache, whatever it requested.
    Alone(usize),
    /// All.
    Together,
    /// One tenant, with this cache, bytes.
    AloneWith(usize, u64),
    /// All, each with this cache, bytes, and a larger memory if that needs one; in the longest rounds.
    EachWith(u64),
}

/// More than any round keeps, thousandths: the policy takes the longest rounds.
const LONGEST_PERMILLE: u32 = 990;

/// Runs the mix on each disk with each seed.
pub fn play(mix: &Mix, disks: &[String], seeds: &[u64], bar: &ProgressBar) -> Result<Vec<Played>> {
    let scenes = disks.iter().map(|disk| Scene::new(mix, disk)).collect::<Result<Vec<_>>>()?;
    let jobs = || (0..mix.tenants.len()).map(Job::Alone).chain([Job::Together]);
    let mut all = Vec::new();
    for scene in &scenes {
        all.extend(seeds.iter().flat_map(|&seed| jobs().map(move |job| (scene, seed, job))));
    }
    let runs = parallel(bar, &all, |(scene, seed, job)| scene.run(*seed, *job));
    let mut runs = runs.into_iter();
    let mut played = Vec::new();
    for Scene { stand, .. } in &scenes {
        let mut of_seeds = Vec::new();
        for &seed in seeds {
            let runs = runs.by_ref().take(mix.tenants.len() + 1).collect::<Result<Vec<_>>>()?;
            let (together, alone) = runs.split_last().context("a run of all together")?;
            let kept = mix.tenants.iter().enumerate().map(|(at, tenant)| judge(tenant, &alone[at], together, at));
            of_seeds.push((seed, kept.collect()));
        }
        played.push(Played { disk: stand.disk.clone(), seeds: of_seeds });
    }
    Ok(played)
}

/// The server, configured by a probe of the disk, as on users' machines.
fn stand(mix: &Mix, disk: &str) -> Result<Stand> {
    let stand = Stand {
        memory: mix.memory,
        warm_up_ns: mix.warm_up_ns,
        counted_ns: mix.counted_ns,
        looks: mix.counted_ns / LOOK_NS,
        round_max_ns: mix.round_max_ns,
        insulation_permille: mix.insulation_permille,
        policy: mix.policy,
        prefetch: None,
        ..Stand::new(disk, false)
    };
    stand.probed().map_err(|error| anyhow!("{disk}: {error}"))
}

impl<'a> Scene<'a> {
    /// Fails before anything runs if a volume does not fit on the disk.
    pub fn new(mix: &'a Mix, disk: &str) -> Result<Scene<'a>> {
        let bytes = crate::disk::build(disk)?.bytes();
        Ok(Scene { mix, places: mix.places(bytes).with_context(|| format!("on {disk}"))?, stand: stand(mix, disk)? })
    }

    /// Between two snapshots of the server during the counted time.
    pub fn look_every(&mut self, time_ns: Nanos) {
        self.stand.looks = (self.stand.counted_ns / time_ns).saturating_sub(1);
    }

    pub fn run(&self, seed: u64, job: Job) -> Result<Run> {
        let (only, cache) = match job {
            Job::Alone(at) => (Some(at), None),
            Job::Together => (None, None),
            Job::AloneWith(at, bytes) => (Some(at), Some(bytes)),
            Job::EachWith(bytes) => (None, Some(bytes)),
        };
        let (mut tenants, mut volumes, mut stand) = (Vec::new(), Vec::new(), self.stand.clone());
        let all = self.mix.tenants.iter().zip(&self.places).enumerate();
        for (at, (tenant, &(start, bytes))) in all.filter(|&(at, _)| only.is_none_or(|only| only == at)) {
            let requested = if matches!(job, Job::Together) { tenant.cache } else { cache };
            tenants.push(Tenant { cache: requested, ..tenant.clone() }.spec());
            let load = tenant.load.workload(bytes, mixed(seed, at));
            let load = load.map_err(|error| anyhow!("tenant {}: {error}", tenant.name))?;
            let write_cache = WriteCache::Volatile;
            volumes.push(Volume { tenant: tenants.len() - 1, start, bytes, write_cache, load });
        }
        if let Job::EachWith(bytes) = job {
            stand.insulation_permille = LONGEST_PERMILLE;
            stand.memory = stand.memory.max((bytes + ROUNDED_BYTES) * tenants.len() as u64);
        }
        stand.serve(&tenants, volumes, seed).map_err(|error| anyhow!("{}: {error}", stand.disk))
    }

    /// The server's memory, bytes.
    pub fn memory(&self) -> u64 {
        self.stand.memory
    }
}

/// More than a requested size loses when it is rounded to frames.
const ROUNDED_BYTES: u64 = 1 << 20;

/// What a tenant kept in a run of all, relative to its run alone.
pub fn judge(tenant: &Tenant, alone: &Run, together: &Run, at: usize) -> Kept {
    let rate = |run: &Run, at: usize| run.rates[at].bytes as f64 / run.rates[at].seconds;
    let (mine, share) = (&together.rates[at], tenant.share());
    let kept = match tenant.load.is_steady() || tenant.load.is_open() {
        true => rate(together, at) / rate(alone, 0) / share,
        false => {
            let (warm, count) = counted_bins(mine);
            alone_s(&alone.rates[0], mine, warm..warm + count) / mine.seconds / share
        }
    };
    let is_admitted = |sizing: &Option<Sizing>| sizing.is_some_and(|sizing| sizing.decision == Decision::Admitted);
    let looks = || together.between.iter().chain([&together.after]).map(|snapshot| snapshot.tenants[at].sizing);
    Kept {
        alone: rate(alone, 0),
        together: rate(together, at),
        kept,
        sizing: together.before.tenants[at].sizing,
        admitted: looks().filter(is_admitted).count() as f64 / looks().count() as f64,
        live: Some(live(together, at, share).0).filter(|live| live.is_finite()),
        live_own_cache: live_own_cache(together, at, share),
        p99_ms: mine.latency_ms()[1],
    }
}

/// The name of a decision.
pub fn decision(sizing: Option<Sizing>) -> &'static str {
    match sizing.map(|sizing| sizing.decision) {
        Some(Decision::Admitted) => "admitted",
        Some(Decision::BestEffort(_)) => "best-effort",
        Some(Decision::Trial(_)) => "trial",
        None => "none",
    }
}

/// The most frequent of some words; of several, the first by name.
pub fn most_frequent<'a>(words: impl IntoIterator<Item = &'a str>) -> &'a str {
    let mut counts = BTreeMap::new();
    words.into_iter().for_each(|word| *counts.entry(word).or_insert(0u64) += 1);
    let most = counts.values().copied().max();
    counts.into_iter().find(|&(_, count)| Some(count) == most).map_or("", |(word, _)| word)
}
