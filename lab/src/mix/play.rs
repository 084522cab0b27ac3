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

enum Job {
    Alone(usize),
    Together,
}

/// Runs the mix on each disk with each seed.
pub fn play(mix: &Mix, disks: &[String], seeds: &[u64], bar: &ProgressBar) -> Result<Vec<Played>> {
    let mut stands = Vec::new();
    for disk in disks {
        // Fails before anything runs: the place of each volume.
        let bytes = crate::disk::build(disk)?.bytes();
        stands.push((mix.places(bytes).with_context(|| format!("on {disk}"))?, stand(mix, disk)?));
    }
    let jobs = || (0..mix.tenants.len()).map(Job::Alone).chain([Job::Together]);
    let mut all = Vec::new();
    for (places, stand) in &stands {
        all.extend(seeds.iter().flat_map(|&seed| jobs().map(move |job| (places, stand, seed, job))));
    }
    let runs = parallel(bar, &all, |(places, stand, seed, job)| perform(mix, places, stand, *seed, job));
    let mut runs = runs.into_iter();
    let mut played = Vec::new();
    for (_, stand) in &stands {
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

fn perform(mix: &Mix, places: &[(u64, u64)], stand: &Stand, seed: u64, job: &Job) -> Result<Run> {
    let is_there = |at: usize| matches!(job, Job::Together) || matches!(job, Job::Alone(only) if *only == at);
    let (mut tenants, mut volumes) = (Vec::new(), Vec::new());
    for (at, (tenant, &(start, bytes))) in mix.tenants.iter().zip(places).enumerate().filter(|&(at, _)| is_there(at)) {
        // Alone a tenant has the whole cache, whatever it requested.
        let spec = tenant.spec();
        tenants.push(if matches!(job, Job::Alone(_)) { Tenant { cache: None, ..tenant.clone() }.spec() } else { spec });
        let load = tenant.load.workload(bytes, mixed(seed, at));
        let load = load.map_err(|error| anyhow!("tenant {}: {error}", tenant.name))?;
        let write_cache = WriteCache::Volatile;
        volumes.push(Volume { tenant: tenants.len() - 1, start, bytes, write_cache, load });
    }
    stand.serve(&tenants, volumes, seed).map_err(|error| anyhow!("{}: {error}", stand.disk))
}

fn judge(tenant: &Tenant, alone: &Run, together: &Run, at: usize) -> Kept {
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
    let looks = || together.decided.iter().map(|tenants| tenants[at]).chain([together.after.tenants[at].sizing]);
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
