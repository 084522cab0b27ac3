//! Runs a mix: each tenant alone, all together at each R, all together under `none`.
//!
//! A tenant runs alone on the same server. R determines the server's read-ahead (Argon, section 3.1), so a tenant with
//! sequential reads is run alone at each R.

use engine::control::{CacheSpec, Decision, Sizing, Snapshot};
use engine::disk::policy::Kind;
use engine::units::{Nanos, SECOND};

use super::super::Context;
use super::super::sharing::PREFETCH;
use super::super::stand::{BIN_NS, Rate, Run, Stand};
use super::partitions::{Possible, partitions, possible};
use super::{Actor, DISKS, Mix, Sizes, live};

/// The runs on one disk.
pub struct Played {
    pub disk: &'static str,
    pub seeds: Vec<Seed>,
    /// The partition of each tenant, bytes, and the fraction of standalone throughput that all keep with these
    /// partitions.
    pub partitions: Option<(Vec<u64>, f64)>,
    /// What the server could decide according to exact curves, if it decides.
    pub possible: Option<Possible>,
}

/// The runs of one seed.
pub struct Seed {
    /// By tenant, then by R.
    pub alone: Vec<Vec<Run>>,
    /// By R.
    pub insulated: Vec<Run>,
    /// Under `none`, with one cache for all.
    pub bare: Run,
}

/// The throughput of a tenant, MB/s: what its client got; for a writer, what reached the medium.
pub fn rate(actor: &Actor, run: &Run, at: usize) -> f64 {
    let written = |snapshot: &Snapshot| snapshot.volumes[at].device_write_bytes as f64;
    let rate = &run.rates[at];
    match actor.load.only_writes() {
        true => (written(&run.after) - written(&run.before)) / rate.seconds / 1e6,
        false => rate.mb_s(),
    }
}

/// When a run had done so many bytes, in seconds since its beginning.
fn done_at(rate: &Rate, bytes: f64) -> Option<f64> {
    let mut sum = 0.0;
    for (bin, &here) in rate.bins.iter().enumerate() {
        let here = here as f64;
        if here > 0.0 && sum + here >= bytes {
            return Some((bin as f64 + (bytes - sum).max(0.0) / here) * BIN_NS as f64 / 1e9);
        }
        sum += here;
    }
    None
}

/// How long a tenant took alone for its work between two bins of the run together, seconds. NaN if it never did it all.
pub fn alone_s(alone: &Rate, together: &Rate, bins: std::ops::Range<usize>) -> f64 {
    let until = |bin: usize| together.bins.iter().take(bin).sum::<u64>() as f64;
    let took = |from: f64, to: f64| Some(done_at(alone, to)? - done_at(alone, from)?);
    took(until(bins.start), until(bins.end)).unwrap_or(f64::NAN)
}

/// What tenant `at` keeps in a run. For a steady load: throughput together / (share x throughput alone). Otherwise: the
/// time that the same work takes alone / (share x the time that it took together).
pub fn kept(actor: &Actor, alone: &Run, run: &Run, at: usize) -> f64 {
    let together = &run.rates[at];
    if actor.load.is_steady() {
        return rate(actor, run, at) / rate(actor, alone, 0) / actor.share();
    }
    let (warm, count) = counted_bins(together);
    alone_s(&alone.rates[0], together, warm..warm + count) / together.seconds / actor.share()
}

/// All windows of ten rounds that begin at a bin, and whether tenant `at` keeps at least `least` in each.
pub fn windows(actor: &Actor, alone: &Run, run: &Run, at: usize, least: f64) -> Vec<(std::ops::Range<usize>, bool)> {
    let (alone, together) = (&alone.rates[0], &run.rates[at]);
    let (_, round_ns) = live(run, at, actor.share());
    let (warm, count) = counted_bins(together);
    let width = ((10 * round_ns).div_ceil(BIN_NS) as usize).clamp(1, count);
    let due_s = actor.share() * least * (width as u64 * BIN_NS) as f64 / 1e9;
    let steady = actor.load.is_steady();
    let is_good = |window: std::ops::Range<usize>| match steady {
        true => bytes_in(together, window) >= alone.mb_s() * 1e6 * due_s,
        false => alone_s(alone, together, window) >= due_s,
    };
    let begins = warm..warm + count - width + 1;
    begins.map(|from| from..from + width).map(|window| (window.clone(), is_good(window))).collect()
}

/// Bytes that a tenant got between two bins.
pub fn bytes_in(rate: &Rate, bins: std::ops::Range<usize>) -> f64 {
    rate.bins.iter().take(bins.end).skip(bins.start).sum::<u64>() as f64
}

/// The fraction of requests that are answered within two rounds plus the tenant's own queueing delay. The latter is the
/// longest response time alone, on a disk that is slower according to the tenant's share.
pub fn in_time(actor: &Actor, alone: &Run, run: &Run, at: usize, keep: f64) -> f64 {
    let (_, round_ns) = live(run, at, actor.share());
    let own_ns = alone.rates[0].latency.max() as f64 / (actor.share() * keep);
    let latency = &run.rates[at].latency;
    latency.count_between(0, own_ns as u64 + 2 * round_ns) as f64 / latency.len() as f64
}

/// The first counted bin, and the number of counted bins.
pub fn counted_bins(rate: &Rate) -> (usize, usize) {
    let bins = |seconds: f64| (seconds * 1e9 / BIN_NS as f64).round() as usize;
    (bins(rate.warm_up_s), bins(rate.seconds))
}

/// How often the server's decisions are sampled: the R that it reports applies to the load of that moment.
const LOOKS: u64 = 19;

/// The server's decision on a tenant during the counted time: whether it was admitted in most samples, and the mean of
/// the reported R. `None` if its trial had not ended when counting began.
pub fn decided(run: &Run, at: usize) -> Option<(bool, f64)> {
    let ends = [&run.before, &run.after].map(|snapshot| snapshot.tenants[at].sizing);
    let looks = || run.between.iter().map(|snapshot| snapshot.tenants[at].sizing).chain(ends);
    let named = |sizing: Option<Sizing>| Some(f64::from(sizing?.best_permille?) / 1000.0);
    let is_admitted = |sizing: &Option<Sizing>| sizing.is_some_and(|sizing| sizing.decision == Decision::Admitted);
    let (count, sum) = (looks().count(), looks().map(named).sum::<Option<f64>>()?);
    Some((2 * looks().filter(is_admitted).count() > count, sum / count as f64))
}

/// The fraction of the disk's time that belonged to no tenant: context switches, draining, idle.
pub fn lost(run: &Run) -> f64 {
    let time_ns = run.after.now - run.before.now;
    1.0 - (run.after.time.tenant_ns - run.before.time.tenant_ns) as f64 / time_ns as f64
}

/// The counted time of a run.
fn counted_ns(context: &Context, mix: &Mix) -> Nanos {
    if context.quick { mix.counted_ns / 3 / SECOND * SECOND } else { mix.counted_ns }
}

/// The stand for running a tenant alone. With a load that is not steady, it only has to do as much work alone as it
/// does together; twice that is enough.
fn alone(stand: &Stand, actor: &Actor) -> Stand {
    let needed_ns = ((stand.warm_up_ns + stand.counted_ns) as f64 * actor.share() * 2.0) as Nanos;
    match actor.load.is_steady() || actor.load.is_open() {
        true => stand.clone(),
        // All but the first second is counted, so that the longest response time alone covers all of the compared work.
        false => Stand { warm_up_ns: SECOND, counted_ns: needed_ns.max(2 * SECOND) - SECOND, ..stand.clone() },
    }
}

/// A stand of the mix for each disk, with the results of a probe.
pub fn stands(context: &Context, mix: &Mix) -> Result<Vec<Stand>, String> {
    let stand = |&disk: &&'static str| {
        let counted_ns = counted_ns(context, mix);
        let (memory, warm_up_ns, round_max_ns) = (mix.memory, mix.warm_up_ns, mix.round_max_ns);
        let looks = if mix.sizes == Sizes::Decided { LOOKS } else { 0 };
        let stand = Stand { memory, warm_up_ns, counted_ns, looks, round_max_ns, ..Stand::new(disk, false) };
        Stand { policy: Kind::Insulated, prefetch: None, ..stand }.probed()
    };
    context.parallel(DISKS, stand).into_iter().collect()
}

/// How often a tenant is run alone.
fn runs_alone(mix: &Mix, actor: &Actor) -> usize {
    if actor.load.streams() { mix.keep.len() } else { 1 }
}

/// A run of a mix.
pub enum Job {
    /// One tenant, by position, at this R.
    Alone(usize, u32),
    /// All tenants, at this R.
    Together(u32),
    /// All tenants, under `none`.
    Bare,
}

/// Performs one run of a mix; `sizes` are the partitions, if they are stated.
pub fn perform(mix: &Mix, stand: &Stand, sizes: Option<&(Vec<u64>, f64)>, seed: u64, job: &Job) -> Result<Run, String> {
    let mut cast: Vec<_> = mix.actors.iter().map(|actor| Some(actor.cast())).collect();
    let stand = match *job {
        Job::Alone(only, keep) => {
            cast.iter_mut().enumerate().filter(|&(at, _)| at != only).for_each(|(_, absent)| *absent = None);
            Stand { insulation_permille: keep, ..alone(stand, &mix.actors[only]) }
        }
        Job::Together(keep) => {
            let sizes = sizes.map(|(sizes, _)| &sizes[..]);
            for (at, (spec, _)) in cast.iter_mut().flatten().enumerate() {
                spec.cache = mix.cache_bytes(at, sizes).map_or(spec.cache, CacheSpec::Asked);
            }
            Stand { insulation_permille: keep, ..stand.clone() }
        }
        Job::Bare => Stand { policy: Kind::None, prefetch: Some(PREFETCH), shared_cache: true, ..stand.clone() },
    };
    stand.play(&cast, false, seed)
}

/// Runs a mix on each disk with each seed.
pub fn play(context: &Context, mix: &Mix) -> Result<Vec<Played>, String> {
    let count = mix.actors.len();
    let loads: Vec<_> = mix.actors.iter().map(|actor| &actor.load).collect();
    let stands = stands(context, mix)?;
    let sizes = context.parallel(&stands, |stand| {
        let volume_bytes = stand.place(0, count)?.1;
        let sizes = (mix.sizes == Sizes::Stated).then(|| partitions(&loads, volume_bytes, mix.memory)).transpose()?;
        let could = (mix.sizes == Sizes::Decided).then(|| possible(&loads, volume_bytes, mix.memory, mix.keep));
        Ok((sizes, could.transpose()?))
    });
    let (sizes, could): (Vec<_>, Vec<_>) = sizes.into_iter().collect::<Result<Vec<_>, String>>()?.into_iter().unzip();
    let mut jobs = Vec::new();
    for on in stands.iter().zip(&sizes) {
        for &seed in &context.seeds {
            for (at, actor) in mix.actors.iter().enumerate() {
                jobs.extend(mix.keep[..runs_alone(mix, actor)].iter().map(|&keep| (on, seed, Job::Alone(at, keep))));
            }
            jobs.extend(mix.keep.iter().map(|&keep| (on, seed, Job::Together(keep))));
            jobs.push((on, seed, Job::Bare));
        }
    }
    let results =
        context.parallel(&jobs, |&((stand, sizes), seed, ref job)| perform(mix, stand, sizes.as_ref(), seed, job));
    let mut results = results.into_iter();
    let mut take = |count: usize| results.by_ref().take(count).collect::<Result<Vec<_>, _>>();
    let mut played = Vec::new();
    for ((disk, sizes), possible) in DISKS.iter().zip(sizes).zip(could) {
        let mut seeds = Vec::new();
        for _ in &context.seeds {
            let of_tenant = |actor: &Actor| {
                let runs = take(runs_alone(mix, actor))?;
                Ok((0..mix.keep.len()).map(|which| runs[which.min(runs.len() - 1)].clone()).collect())
            };
            let alone = mix.actors.iter().map(of_tenant).collect::<Result<_, String>>()?;
            let insulated = take(mix.keep.len())?;
            seeds.push(Seed { alone, insulated, bare: take(1)?.remove(0) });
        }
        played.push(Played { disk, seeds, partitions: sizes, possible });
    }
    Ok(played)
}
