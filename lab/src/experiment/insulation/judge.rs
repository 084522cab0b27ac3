//! The evaluation of a mix's runs: claims, figures of each tenant, pictures.

use engine::control::VolumeStats;
use engine::disk::policy::TenantPlan;
use serde_json::{Map, Value, json};

use super::super::chart::{self, Group};
use super::super::stand::{Rate, Run};
use super::super::{Bound, Claim, Context, Outcome, Picture};
use super::play::{Played, Seed, decided, in_time, kept, lost, play, windows};
use super::{Actor, Mix, Sizes, live, short, stage, surely};

/// How much less than R a window of ten rounds may have.
pub const WINDOW_SLACK: f64 = 0.08;

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The minimum. NaN counts as lower than anything, so that it is not overlooked.
pub fn least(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::INFINITY, |least, value| if value >= least { least } else { value })
}

pub fn most(values: impl IntoIterator<Item = f64>) -> f64 {
    -least(values.into_iter().map(|value| -value))
}

/// The fraction of windows of ten rounds in which a tenant keeps at least `least`.
pub fn good_windows(actor: &Actor, alone: &Run, run: &Run, at: usize, least: f64) -> f64 {
    let windows = windows(actor, alone, run, at, least);
    windows.iter().filter(|(_, good)| *good).count() as f64 / windows.len() as f64
}

/// The runs of one tenant of a mix on one disk.
struct Tenant<'a> {
    at: usize,
    actor: &'a Actor,
    seeds: &'a [Seed],
}

impl Tenant<'_> {
    /// A figure for each seed, computed from the run alone (at one R) and all runs of the seed.
    fn of(&self, which: usize, what: impl Fn(&Run, &Seed) -> f64) -> Vec<f64> {
        self.seeds.iter().map(|seed| what(&seed.alone[self.at][which], seed)).collect()
    }

    fn kept(&self, which: usize) -> Vec<f64> {
        self.of(which, |alone, seed| kept(self.actor, alone, &seed.insulated[which], self.at))
    }

    fn kept_bare(&self) -> Vec<f64> {
        self.of(0, |alone, seed| kept(self.actor, alone, &seed.bare, self.at))
    }

    fn windows(&self, which: usize, keep: f64) -> Vec<f64> {
        let least = keep - WINDOW_SLACK;
        self.of(which, |alone, seed| good_windows(self.actor, alone, &seed.insulated[which], self.at, least))
    }

    fn live(&self, which: usize) -> Vec<f64> {
        self.of(which, |_, seed| live(&seed.insulated[which], self.at, self.actor.share()).0)
    }

    /// The difference between the R that the server reports and the R that is kept, if with most seeds the server
    /// reports that slices would have to be longer than the longest round allows.
    fn named_off(&self, which: usize, keep: f64) -> Option<f64> {
        let plans = self.of_plans(which);
        let is_short = |plan: &&TenantPlan| {
            plan.need_ns.is_some_and(|need| need > plan.slice_ns + plan.slice_ns / 100)
                && f64::from(plan.efficiency_permille) < keep * 1000.0
        };
        let named = |plan: &TenantPlan| f64::from(plan.efficiency_permille) / 1000.0;
        let off = || (mean(&plans.iter().map(named).collect::<Vec<_>>()) - mean(&self.kept(which))).abs();
        (2 * plans.iter().filter(is_short).count() > plans.len()).then(off)
    }

    fn of_plans(&self, which: usize) -> Vec<TenantPlan> {
        let plan = |seed: &Seed| seed.insulated[which].after.tenants[self.at].plan.unwrap_or_default();
        self.seeds.iter().map(plan).collect()
    }

    /// Whether the tenant was promised R: by the experiment, or by the server with most seeds.
    fn is_promised(&self, mix: &Mix, which: usize) -> bool {
        mix.sizes != Sizes::Decided || 2 * self.kept_if_admitted(which).count() > self.seeds.len()
    }

    /// What the tenant keeps with the seeds with which the server admitted it.
    fn kept_if_admitted(&self, which: usize) -> impl Iterator<Item = f64> {
        let is_admitted =
            move |seed: &Seed| decided(&seed.insulated[which], self.at).is_some_and(|(admitted, _)| admitted);
        self.seeds.iter().zip(self.kept(which)).filter(move |(seed, _)| is_admitted(seed)).map(|(_, kept)| kept)
    }

    /// The mean difference between the R that the server reported and the R that is kept. It is 1 for a seed without a
    /// report when counting began.
    fn said_off(&self, which: usize) -> f64 {
        let said = self.seeds.iter().map(|seed| decided(&seed.insulated[which], self.at));
        let off = said.zip(self.kept(which)).map(|(said, kept)| said.map_or(1.0, |(_, named)| (named - kept).abs()));
        mean(&off.collect::<Vec<_>>())
    }

    fn in_time(&self, which: usize, keep: f64) -> Vec<f64> {
        self.of(which, |alone, seed| in_time(self.actor, alone, &seed.insulated[which], self.at, keep))
    }
}

fn tenants<'a>(mix: &'a Mix, played: &'a Played) -> Vec<Tenant<'a>> {
    mix.actors.iter().enumerate().map(|(at, actor)| Tenant { at, actor, seeds: &played.seeds }).collect()
}

/// The values of R of a mix, as fractions.
fn parts(mix: &Mix) -> impl Iterator<Item = (usize, f64)> {
    mix.keep.iter().map(|&keep| f64::from(keep) / 1000.0).enumerate()
}

/// Runs a mix, and judges what each tenant keeps on each disk.
pub fn insulate(context: &Context, mix: &Mix) -> Result<Outcome, String> {
    if let Some(to) = &context.stage {
        return stage::write(context, mix, to);
    }
    let (mut claims, mut data) = (Vec::new(), Map::new());
    let all = play(context, mix)?;
    for played in &all {
        parts(mix).for_each(|(which, keep)| claims.extend(judge(mix, played, which, keep)));
        data.insert(played.disk.into(), figures(mix, played));
    }
    Ok(Outcome { claims, data: Value::Object(data), pictures: pictures(mix, &all)?, ..Outcome::default() })
}

/// The claims for one disk at one R.
fn judge(mix: &Mix, played: &Played, which: usize, keep: f64) -> Vec<Claim> {
    let tenants = tenants(mix, played);
    let name = |what: &str| format!("{}, R = {keep}, {what}", played.disk);
    let (promised, refused): (Vec<_>, Vec<_>) = tenants.iter().partition(|tenant| tenant.is_promised(mix, which));
    let insulation = |tenant: &&Tenant<'_>| {
        let name = name(&format!("{}: insulation (95 % sure)", tenant.actor.name));
        Claim::new(name, surely(&tenant.kept(which)), Bound::AtLeast(keep))
    };
    let mut claims: Vec<_> = promised.iter().map(insulation).collect();
    let whose_promise = if refused.is_empty() { "all" } else { "those who are admitted" };
    if !promised.is_empty() {
        let windows = least(promised.iter().map(|tenant| mean(&tenant.windows(which, keep))));
        let what = format!("{whose_promise}: windows of ten rounds that keep R - 0.08");
        claims.push(Claim::new(name(&what), windows, Bound::AtLeast(0.99)));
    }
    if let Some(possible) = &played.possible {
        let off = |tenant: &&Tenant<'_>| {
            let what =
                format!("{}, which is told that it is best-effort: the R that is named is off by", tenant.actor.name);
            Claim::new(name(&what), tenant.said_off(which), Bound::AtMost(0.03))
        };
        claims.extend(refused.iter().map(off));
        // No tenant is refused that could be admitted.
        let could = &possible.tenants[which];
        let admitted = promised.iter().filter(|tenant| could.contains(&tenant.at)).count();
        let what = format!("admitted of those, of {}, whose needs fit by exact curves", tenants.len());
        claims.push(Claim::new(name(&what), admitted as f64, Bound::AtLeast(could.len() as f64)));
        let why = name("the part that all would keep with the best partitions by exact curves");
        let why = (!refused.is_empty()).then(|| Claim::new(why, possible.all, Bound::AtMost(keep)));
        claims.extend(why);
    }
    let off = |tenant: &Tenant<'_>| {
        let pairs = tenant.live(which).into_iter().zip(tenant.kept(which));
        most(pairs.map(|(live, kept)| (live - kept).abs()))
    };
    let closed: Vec<_> = tenants.iter().filter(|tenant| !tenant.actor.load.is_open()).collect();
    let whose = if closed.len() < tenants.len() { "those that wait for answers" } else { "all" };
    let off = most(closed.iter().map(|tenant| off(tenant)));
    claims.push(Claim::new(name(&format!("{whose}: live insulation is off by")), off, Bound::AtMost(0.05)));
    if mix.sizes == Sizes::Decided {
        let off = promised.iter().map(|tenant| tenant.said_off(which)).reduce(|a, b| most([a, b]));
        let what = name(&format!("{whose_promise}: the R that is named is off by"));
        claims.extend(off.map(|off| Claim::new(what, off, Bound::AtMost(0.03))));
        let what = name("the worst-off of those who are admitted, of any seed: insulation");
        let worst = tenants.iter().flat_map(|tenant| tenant.kept_if_admitted(which)).reduce(|a, b| least([a, b]));
        claims.extend(worst.map(|worst| Claim::new(what, worst, Bound::AtLeast(keep))));
    } else if played.partitions.is_none() {
        // No claim is made if no tenant's round is too short.
        let off = tenants.iter().filter_map(|tenant| tenant.named_off(which, keep)).reduce(|a, b| most([a, b]));
        let what = "where the longest round is too short for that: the R that is named is off by";
        claims.extend(off.map(|off| Claim::new(name(what), off, Bound::AtMost(0.03))));
    }
    // R = R_time x R_cache: what is lost by the partitions must not be lost in time as well.
    let of_time = keep / played.partitions.as_ref().map_or(1.0, |(_, keep)| *keep);
    let allowed = ((1.0 - of_time).max(0.0) * 1000.0).round() / 1000.0;
    let lost = mean(&played.seeds.iter().map(|seed| lost(&seed.insulated[which])).collect::<Vec<_>>());
    claims.push(Claim::new(name("the disk's time that is no tenant's"), lost, Bound::AtMost(allowed)));
    let in_time = least(closed.iter().flat_map(|tenant| tenant.in_time(which, keep)));
    let what = format!("{whose}: answered within two rounds of their own queueing");
    claims.push(Claim::new(name(&what), in_time, Bound::AtLeast(1.0)));
    claims
}

/// The fraction of the blocks read while counting that a client had to wait for the disk for.
fn missed(run: &Run, at: usize) -> f64 {
    let of = |blocks: &dyn Fn(&VolumeStats) -> u64| {
        let [before, after] = [&run.before, &run.after].map(|snapshot| blocks(&snapshot.volumes[at]) as f64);
        after - before
    };
    let missed = of(&|volume| volume.miss_blocks);
    missed / (missed + of(&|volume| volume.hit_blocks) + of(&|volume| volume.prefetched_blocks))
}

/// All figures of one disk.
fn figures(mix: &Mix, played: &Played) -> Value {
    let of_tenant = |tenant: &Tenant<'_>| {
        let (at, seeds) = (tenant.at, tenant.seeds);
        let insulated = parts(mix).map(|(which, keep)| {
            let rounds = tenant.of(which, |_, seed| live(&seed.insulated[which], at, 1.0).1 as f64 / 1e6);
            let figures = json!({
                "kept": tenant.kept(which), "windows": tenant.windows(which, keep), "live": tenant.live(which),
                "in_time": tenant.in_time(which, keep),
                "lost": tenant.of(which, |_, seed| lost(&seed.insulated[which])),
                "round_ms": rounds, "missed_alone": tenant.of(which, |alone, _| missed(alone, 0)),
                "missed": tenant.of(which, |_, seed| missed(&seed.insulated[which], at)),
                "sizing": seeds
                    .iter()
                    .map(|seed| format!("{:?}", seed.insulated[which].after.tenants[at].sizing))
                    .collect::<Vec<_>>(),
                "plan": format!("{:?}", seeds[0].insulated[which].after.tenants[at].plan),
                "rates": seeds.iter().map(|seed| seed.insulated[which].rates[at].json()).collect::<Vec<_>>(),
            });
            (keep.to_string(), figures)
        });
        let figures = json!({
            "share": tenant.actor.share(),
            "partition_bytes": played.partitions.as_ref().map(|(sizes, _)| sizes[at]),
            "alone": seeds.iter().map(|seed| seed.alone[at][0].rates[0].json()).collect::<Vec<_>>(),
            "insulated": insulated.collect::<Map<_, _>>(),
            "none": {
                "kept": tenant.kept_bare(),
                "rates": seeds.iter().map(|seed| seed.bare.rates[at].json()).collect::<Vec<_>>(),
            },
        });
        (tenant.actor.name.clone(), figures)
    };
    let (ours, bare) = totals(mix, played);
    json!({
        "tenants": tenants(mix, played).iter().map(of_tenant).collect::<Map<_, _>>(),
        "kept_with_the_partitions": played.partitions.as_ref().map(|(_, keep)| *keep),
        "total": { "insulated": ours, "none": bare },
    })
}

/// The sum over tenants of what each does, relative to what it does alone: insulated, and under `none`.
fn totals(mix: &Mix, played: &Played) -> (f64, f64) {
    let tenants = tenants(mix, played);
    let sum = |kept: &dyn Fn(&Tenant<'_>) -> Vec<f64>| -> f64 {
        tenants.iter().map(|tenant| mean(&kept(tenant)) * tenant.actor.share()).sum()
    };
    (sum(&|tenant| tenant.kept(0)), sum(&|tenant| tenant.kept_bare()))
}

/// Pictures of insulation and latency: one for all disks, or one per disk if there are many tenants.
fn pictures(mix: &Mix, all: &[Played]) -> Result<Vec<Picture>, String> {
    let few = mix.actors.len() <= 2;
    let mut pictures = Vec::new();
    for played in all.chunks(if few { all.len() } else { 1 }) {
        let groups = |bars: &dyn Fn(&Tenant<'_>) -> Vec<f64>| {
            let of_disk = |played: &Played| {
                let group = |tenant: &Tenant<'_>| {
                    let name = &tenant.actor.name;
                    let label = if few { format!("{}: {name}", short(played.disk)) } else { name.clone() };
                    Group { label, bars: bars(tenant) }
                };
                tenants(mix, played).iter().map(group).collect::<Vec<_>>()
            };
            played.iter().flat_map(of_disk).collect::<Vec<_>>()
        };
        let kept = groups(&|tenant| {
            let insulated = parts(mix).map(|(which, _)| mean(&tenant.kept(which)));
            insulated.chain([mean(&tenant.kept_bare())]).collect()
        });
        let waits = groups(&|tenant| {
            let p99 = |rate: &Rate| rate.latency_ms()[1];
            let (alone, at) = (mean(&tenant.of(0, |alone, _| p99(&alone.rates[0]))), tenant.at);
            vec![
                alone,
                mean(&tenant.of(0, |_, seed| p99(&seed.insulated[0].rates[at]))),
                mean(&tenant.of(0, |_, seed| p99(&seed.bare.rates[at]))),
            ]
        });
        let mut series: Vec<_> = parts(mix).map(|(_, keep)| format!("R = {keep}")).collect();
        series.push("none, 128 KiB prefetched".into());
        let series: Vec<_> = series.iter().map(String::as_str).collect();
        let first = f64::from(mix.keep[0]) / 1000.0;
        let (suffix, on) = match few {
            true => (String::new(), String::new()),
            false => (format!("-{}", played[0].disk), format!("{}; ", played[0].disk)),
        };
        let totals = played.iter().map(|played| {
            let (ours, bare) = totals(mix, played);
            format!("{} {ours:.2} (none {bare:.2})", short(played.disk))
        });
        let totals = totals.collect::<Vec<_>>().join(", ");
        let caption = format!(
            "{on}insulation: throughput together / (share x throughput alone). Sum of all parts of standalone: \
             {totals}."
        );
        let svg = chart::bars("insulation", &series, &kept, Some((first, series[0])))?;
        pictures.push(Picture { name: format!("kept{suffix}"), caption, svg });
        let svg = chart::bars("99th percentile of response, ms", &["alone", series[0], "none"], &waits, None)?;
        let caption = format!("{on}99th percentile of response times");
        pictures.push(Picture { name: format!("response{suffix}"), caption, svg });
    }
    Ok(pictures)
}
