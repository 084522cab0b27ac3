//! What insulation keeps: the mixes of Argon's evaluation and ours, under the policy `insulated` and, beside it, `none`.
//!
//! Each tenant of a mix is run alone (the whole cache, the whole disk, the same server), then all together. What counts is
//! throughput together / (share x throughput alone): its insulation, at least R.

pub mod mixes;

use engine::control::TenantSpec;
use engine::disk::policy::Kind;
use engine::units::{Nanos, SECOND, Share};
use serde_json::{Value, json};
use sim::load::Stream;

use super::chart::{self, Group};
use super::stand::{BIN_NS, Rate, Run, Stand};
use super::{Bound, Claim, Context, Outcome, Picture};

/// Disks with heads of three generations.
const DISKS: &[&str] = &["cheetah-15k5", "barracuda-st32171w", "nearline"];

/// A tenant of a mix.
pub struct Actor {
    pub name: &'static str,
    /// Of how many parts, how many are its own.
    pub share: (u64, u64),
    pub load: Stream,
}

/// What a run did for a tenant, MB/s: what was read by its client, and what was written to the medium.
fn rate(run: &Run, tenant: usize, writes: bool) -> f64 {
    let written = |snapshot: &engine::control::Snapshot| snapshot.volumes[tenant].device_write_bytes as f64;
    let rate = &run.rates[tenant];
    if writes { (written(&run.after) - written(&run.before)) / rate.seconds / 1e6 } else { rate.mb_s() }
}

impl Actor {
    fn writes(&self) -> bool {
        self.load.read_ppm == 0
    }

    fn share(&self) -> f64 {
        self.share.0 as f64 / self.share.1 as f64
    }

    fn spec(&self) -> TenantSpec {
        let ppb = Share::ONE.ppb() * self.share.0 / self.share.1;
        TenantSpec { share: Share::from_ppb(ppb), ..TenantSpec::default() }
    }

    fn cast(&self) -> (TenantSpec, Stream) {
        (self.spec(), self.load.clone())
    }
}

/// A mix with what it needs.
pub struct Mix {
    pub actors: Vec<Actor>,
    pub memory: u64,
    pub warm_up_ns: Nanos,
    pub counted_ns: Nanos,
}

/// What one tenant of a mix got with one seed.
struct Got {
    alone: Rate,
    insulated: Rate,
    bare: Rate,
    /// MB/s that count: alone, insulated, under `none`.
    mb_s: [f64; 3],
    /// Insulation as the server tells it.
    live: f64,
    round_ns: Nanos,
    plan: engine::disk::policy::TenantPlan,
}

impl Got {
    fn kept(&self, share: f64) -> f64 {
        self.mb_s[1] / self.mb_s[0] / share
    }

    fn kept_bare(&self, share: f64) -> f64 {
        self.mb_s[2] / self.mb_s[0] / share
    }

    /// The part of windows of ten rounds in which the insulation is at least `least`.
    fn windows(&self, share: f64, least: f64) -> f64 {
        let bins = ((10 * self.round_ns).div_ceil(BIN_NS) as usize).max(1);
        let due = self.alone.mb_s() * 1e6 * share * least * (bins as u64 * BIN_NS) as f64 / 1e9;
        let windows: Vec<u64> = self.insulated.bins.windows(bins).map(|window| window.iter().sum()).collect();
        windows.iter().filter(|&&bytes| bytes as f64 >= due).count() as f64 / windows.len() as f64
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

/// Insulation as the server told it between two snapshots.
fn live(run: &Run, tenant: usize, share: f64) -> (f64, Nanos) {
    let plan = |snapshot: &engine::control::Snapshot| snapshot.tenants[tenant].plan.unwrap_or_default();
    let (before, after) = (plan(&run.before), plan(&run.after));
    let useful = (after.useful_ns - before.useful_ns) as f64;
    let wanting = (run.after.tenants[tenant].wanting_ns - run.before.tenants[tenant].wanting_ns) as f64;
    (useful / wanting / share, after.round_ns)
}

/// Runs a mix on each disk with each seed, at this R.
fn play(context: &Context, mix: &Mix, keep_permille: u32) -> Result<Vec<Vec<Vec<Got>>>, String> {
    let stands: Vec<_> = DISKS
        .iter()
        .map(|disk| Stand {
            memory: mix.memory,
            warm_up_ns: mix.warm_up_ns,
            counted_ns: if context.quick { mix.counted_ns / 2 } else { mix.counted_ns },
            prefetch: super::sharing::PREFETCH,
            policy: Kind::Insulated,
            insulation_permille: keep_permille,
            ..Stand::new(disk, false)
        })
        .collect();
    let count = mix.actors.len();
    // Each alone, then all together under both policies.
    let mut jobs = Vec::new();
    for stand in &stands {
        for &seed in &context.seeds {
            jobs.extend((0..count + 2).map(|job| (stand, seed, job)));
        }
    }
    let results = context.parallel(&jobs, |&(stand, seed, job)| {
        let cast: Vec<_> = mix
            .actors
            .iter()
            .enumerate()
            .map(|(at, actor)| (job >= count || at == job).then(|| actor.cast()))
            .collect();
        let policy = if job > count { Kind::None } else { Kind::Insulated };
        Stand { policy, ..stand.clone() }.play(&cast, false, seed)
    });
    let mut results = results.into_iter();
    let mut disks = Vec::new();
    for _ in &stands {
        let mut seeds = Vec::new();
        for _ in &context.seeds {
            let runs = results.by_ref().take(count + 2).collect::<Result<Vec<_>, _>>()?;
            let got = |(at, actor): (usize, &Actor)| {
                let (live, round_ns) = live(&runs[count], at, actor.share());
                let [alone, insulated, bare] = [(&runs[at], 0), (&runs[count], at), (&runs[count + 1], at)];
                let of = |(run, at): (&Run, usize)| rate(run, at, actor.writes());
                Got {
                    alone: alone.0.rates[0].clone(),
                    insulated: insulated.0.rates[at].clone(),
                    bare: bare.0.rates[at].clone(),
                    mb_s: [of(alone), of(insulated), of(bare)],
                    live,
                    round_ns,
                    plan: runs[count].after.tenants[at].plan.unwrap_or_default(),
                }
            };
            seeds.push(mix.actors.iter().enumerate().map(got).collect::<Vec<_>>());
        }
        disks.push(seeds);
    }
    Ok(disks)
}

/// Runs a mix, and says of each tenant on each disk what it keeps.
fn insulate(context: &Context, mix: &Mix, keep_permille: u32) -> Result<Outcome, String> {
    let keep = f64::from(keep_permille) / 1000.0;
    let (mut claims, mut data, mut groups) = (Vec::new(), serde_json::Map::new(), Vec::new());
    let runs = play(context, mix, keep_permille)?;
    for (disk, seeds) in DISKS.iter().zip(&runs) {
        for (at, actor) in mix.actors.iter().enumerate() {
            let share = actor.share();
            let of = |what: &dyn Fn(&Got) -> f64| seeds.iter().map(|seed| what(&seed[at])).collect::<Vec<f64>>();
            let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
            let kept = of(&|got| got.kept(share));
            let windows = of(&|got| got.windows(share, keep - 0.08));
            let lives = of(&|got| got.live);
            let bare = of(&|got| got.kept_bare(share));
            let name = |what: &str| format!("{disk}, {}: {what}", actor.name);
            claims.push(Claim::new(name("insulation (95 % sure)"), surely(&kept), Bound::AtLeast(keep)));
            claims.push(Claim::new(
                name("windows of ten rounds that keep R - 0.08"),
                mean(&windows),
                Bound::AtLeast(0.99),
            ));
            let off = seeds.iter().map(|seed| (seed[at].live - seed[at].kept(share)).abs()).fold(0.0, f64::max);
            claims.push(Claim::new(name("live insulation is off by"), off, Bound::AtMost(0.05)));
            data.insert(
                format!("{disk}, {}", actor.name),
                json!({
                    "share": share, "mb_s": of(&|got| got.mb_s[0]), "mb_s_insulated": of(&|got| got.mb_s[1]), "kept": kept, "windows": windows, "live": lives, "none": bare,
                    "plan": format!("{:?}", seeds[0][at].plan),
                    "round_ms": of(&|got| got.round_ns as f64 / 1e6),
                    "alone": seeds.iter().map(|seed| seed[at].alone.json()).collect::<Vec<_>>(),
                    "insulated": seeds.iter().map(|seed| seed[at].insulated.json()).collect::<Vec<_>>(),
                    "none_rates": seeds.iter().map(|seed| seed[at].bare.json()).collect::<Vec<_>>(),
                }),
            );
            groups.push(Group {
                label: format!("{}: {}", short(disk), actor.name),
                bars: vec![mean(&kept), mean(&bare)],
            });
        }
    }
    let caption = "insulation: throughput together / (share x throughput alone)";
    let series = ["insulated", "none, 128 KiB prefetched"];
    let svg = chart::bars("insulation", &series, &groups, Some((keep, "R")))?;
    let pictures = vec![Picture { name: "kept".into(), caption: caption.into(), svg }];
    Ok(Outcome { claims, data: Value::Object(data), pictures })
}

fn short(disk: &str) -> &str {
    disk.split('-').next().unwrap_or(disk)
}

/// 5 s to warm up, 60 s counted, 64 MiB.
fn mix(actors: Vec<Actor>) -> Mix {
    Mix { actors, memory: 64 << 20, warm_up_ns: 5 * SECOND, counted_ns: 60 * SECOND }
}
