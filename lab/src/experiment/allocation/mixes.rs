//! Mixes of loads at random, and with traces of real servers.

use std::sync::Arc;

use serde_json::{Value, json};
use sim::rng::Rng;

use super::super::chart::{self, Group};
use super::super::insulation::traces;
use super::super::stand::mean;
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::follow::{kept_and_counted, kept_up_to_date};
use super::loads::Kind;
use super::mix::{BASELINES, Mix, OURS, Row};
use super::paper::grid;
use super::play::Scene;
use super::surface::{Measured, SHARES};
use engine::allocate::{Grid, Surface};
use engine::units::{Nanos, SECOND};

pub const RANDOM: Experiment = Experiment {
    name: "allocation-random",
    question: "Is one allocation of all resources as good as the best division of single ones, whatever the mix?",
    setup: "Ten mixes of 2 to 8 tenants at random on 1 to 4 gateways with 16, 32 or 48 MiB, a server with 32, 64 or 96 \
            MiB and a cheetah-15k5 whose time is divided in sixteenths. Loads: those of allocation-paper, Zipf 0.7 \
            over 512 MiB, knees at 12 MiB (30 % writes), 24 MiB (20 % cold) and 16 MiB (60 % writes). Ours is what \
            `aerogel allocate run --every 60s` has made of equal parts after an hour; one plan is one from the \
            API's figures of a run with equal parts; baselines search measured surfaces. Each allocation is run \
            once, and counts for 90 s after ten minutes of warm-up.",
    paper: "Not in the paper.",
    run: random,
};

pub const TRACES: Experiment = Experiment {
    name: "allocation-traces",
    question: "And with the requests of real servers?",
    setup: "As allocation-random, but the loads change within an hour. So ours is `aerogel allocate run` in the ten \
            minutes in which the others warm up, in the same run. The surfaces that the baselines search were measured \
            in the same minutes. Two gateways with 32 MiB and a server with 64 MiB. Traces: a web server, MySQL, SQL \
            Server and a virtual machine; 8 requests outstanding or thought about, 5 ms of think time, offsets modulo \
            12 GiB.",
    paper: "Not in the paper.",
    run: traced,
};

const MIXES: u64 = 10;
/// One plan that is not followed by others.
const ONE_PLAN: &str = "one plan";
/// Time after which `allocate run` is to have settled, minutes; less in quick runs.
const RUN_MIN: usize = 60;
const RUN_QUICK_MIN: usize = 8;
/// Time before it counts. After 15 s slices, their losses and the shares of unused time are those of the start: the
/// same allocation has then up to twice the latency. After 150 s it can still have a fifth more than for the next hour.
const SETTLE_NS: Nanos = 600 * SECOND;
const SETTLE_QUICK_NS: Nanos = 150 * SECOND;

fn settle_ns(context: &Context) -> Nanos {
    if context.quick { SETTLE_QUICK_NS } else { SETTLE_NS }
}

fn catalogue() -> Vec<Kind> {
    vec![
        Kind::tpcw(),
        Kind::rubis(),
        Kind::zipf40(),
        Kind::zipf95(),
        Kind::zipf("Zipf70", 0.7, 512, 4),
        Kind::knee("knee 12", (50, 2 << 10), 12 << 10, 10, 30, 5),
        Kind::knee("knee 24", (10, 4 << 10), 24 << 10, 20, 0, 20),
        Kind::knee("writer", (30, 4 << 10), 16 << 10, 10, 60, 20),
    ]
}

fn sixteenths() -> Grid {
    Grid { share_steps: SHARES, ..grid() }
}

/// A mix at random.
fn any(scene: &Scene, seed: u64) -> Mix {
    let mut rng = Rng::new(seed.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ 0xa110);
    let (catalogue, count) = (catalogue(), 2 + rng.below(7) as usize);
    let gateways = 1 + rng.below(4.min(count as u64)) as usize;
    let mut scene = scene.clone();
    scene.gateways = (0..gateways).map(|_| (1 + rng.below(3)) * (16 << 20)).collect();
    scene.stand.memory = (1 + rng.below(3)) * (32 << 20);
    // Each gateway has a tenant; the others are anywhere.
    let mut place = |at: usize| if at < gateways { at } else { rng.below(gateways as u64) as usize };
    let places: Vec<usize> = (0..count).map(&mut place).collect();
    let tenants: Vec<(Kind, usize)> = places
        .into_iter()
        .map(|gateway| (catalogue[rng.below(catalogue.len() as u64) as usize].clone(), gateway))
        .collect();
    let names: Vec<&str> = tenants.iter().map(|(kind, _)| kind.name.as_str()).collect();
    Mix { name: names.join(", "), tenants, scene, grid: sixteenths(), first: None }
}

/// Which allocations of `allocate run` count.
#[derive(Clone, Copy)]
enum Ours {
    /// The allocation after so many minutes. It is then measured in another run.
    After(usize),
    /// The allocation after the time in which others warm up. It is measured in the same run.
    Settling,
}

/// Runs ours and the baselines in each mix: one plan, and what `allocate run` has made.
fn compare(context: &Context, base: &Scene, mixes: &[Mix], ours: Ours) -> Result<Outcome, String> {
    let mut kinds: Vec<Kind> = Vec::new();
    for (kind, _) in mixes.iter().flat_map(|mix| &mix.tenants) {
        if !kinds.iter().any(|known| known.name == kind.name) {
            kinds.push(kind.clone());
        }
    }
    let measured = Measured::all(context, base, grid(), &kinds)?;
    let of = |kind: &Kind| {
        let at = kinds.iter().position(|known| known.name == kind.name).expect("all are known");
        measured[at].clone()
    };
    let profile = base.stand.profile(true)?;
    let planned = context.parallel(mixes, |mix| {
        let seed = context.seeds[0];
        let (planned, promised_ns, model) = mix.ours(&profile, seed)?;
        let (allocation, runs) = match ours {
            Ours::After(minutes) => (kept_up_to_date(context, mix, minutes, seed)?, vec![]),
            Ours::Settling => {
                let (allocation, latencies_ns) = kept_and_counted(context, mix, seed)?;
                (allocation, vec![latencies_ns])
            }
        };
        let kept_ns = allocation.iter().enumerate().map(|(at, of)| model.latency_ns(at, *of)).sum();
        let mut rows = vec![
            Row { scheme: OURS, allocation, runs, promised_ns: kept_ns },
            Row { scheme: ONE_PLAN, allocation: planned, runs: vec![], promised_ns },
        ];
        let surfaces: Vec<Arc<Measured>> = mix.tenants.iter().map(|(kind, _)| of(kind)).collect();
        rows.extend(mix.baselines(&BASELINES, &surfaces)?);
        Ok(rows)
    });
    let planned: Vec<Vec<Row>> = planned.into_iter().collect::<Result<_, String>>()?;
    let schemes = [OURS, ONE_PLAN];
    let (mut claims, mut data, mut groups) = (Vec::new(), Vec::new(), Vec::new());
    let mut gains = vec![Vec::new(); schemes.len()];
    for ((number, mix), mut rows) in (1..).zip(mixes).zip(planned) {
        mix.measure(context, &mut rows, &context.seeds[..1])?;
        let best = rows[schemes.len()..].iter().map(Row::total_ns).fold(f64::INFINITY, f64::min);
        for (row, gains) in rows.iter().zip(&mut gains) {
            gains.push(best / row.total_ns());
            let name = format!("mix {number} ({}): {} / best baseline", mix.name, row.scheme);
            claims.push(Claim::new(name, row.total_ns() / best, Bound::AtMost(1.02)));
        }
        let first = rows[0].total_ns();
        data.push(json!({
            "mix": mix.name, "gateways_mib": mix.scene.gateways.iter().map(|bytes| bytes >> 20).collect::<Vec<_>>(),
            "on_gateway": mix.tenants.iter().map(|tenant| tenant.1).collect::<Vec<_>>(),
            "server_mib": mix.scene.stand.memory >> 20, "rows": rows.iter().map(Row::json).collect::<Vec<Value>>(),
        }));
        let bars = rows.iter().map(|row| row.total_ns() / first).collect();
        groups.push(Group { label: number.to_string(), bars });
    }
    for (scheme, gains) in schemes.iter().zip(gains) {
        let name = format!("mean gain of {scheme} on the best baseline");
        claims.push(Claim::new(name, mean(gains), Bound::AtLeast(1.0)));
    }
    let names: Vec<&str> = schemes.iter().copied().chain(BASELINES.iter().map(|scheme| scheme.name())).collect();
    let pictures = vec![Picture {
        name: "mixes".into(),
        caption: format!("Sum of mean latencies by mix and scheme; {} is 1.", names[0]),
        svg: chart::bars("sum of mean latencies / the first", &names, &groups, Some((1.0, names[0])))?,
    }];
    Ok(Outcome { claims, data: data.into(), pictures, ..Outcome::default() })
}

fn random(context: &Context) -> Result<Outcome, String> {
    let scene = Scene { settle_ns: settle_ns(context), ..Scene::new(context)? };
    let count = if context.quick { 1 } else { MIXES };
    let mixes: Vec<Mix> = (0..count).map(|number| any(&scene, context.seeds[0] * MIXES + number)).collect();
    let minutes = if context.quick { RUN_QUICK_MIN } else { RUN_MIN };
    compare(context, &scene, &mixes, Ours::After(minutes))
}

fn traced(context: &Context) -> Result<Outcome, String> {
    let Some(all) = traces::load(context, 4)? else {
        return Ok(Outcome::left_out(format!("needs four traces in {}", context.traces.display())));
    };
    let kinds: Vec<Kind> = all.iter().map(|of| Kind::trace(&of.name, &of.records, 5)).collect();
    let scene = Scene { settle_ns: settle_ns(context), ..Scene::new(context)? };
    let mix = |name: &str, tenants: Vec<Kind>| {
        let half = tenants.len().div_ceil(2);
        let tenants = tenants.into_iter().enumerate().map(|(at, kind)| (kind, at / half)).collect();
        Mix { name: name.into(), tenants, scene: scene.clone(), grid: sixteenths(), first: None }
    };
    let of = |at: usize| kinds[at].clone();
    let mixes = [
        mix("four traces", vec![of(0), of(1), of(2), of(3)]),
        mix("MySQL, TPC-W, web server, Zipf95", vec![of(1), Kind::tpcw(), of(2), Kind::zipf95()]),
        mix("virtual machine, RUBiS, SQL Server", vec![of(0), Kind::rubis(), of(3)]),
    ];
    compare(context, &scene, &mixes[..if context.quick { 1 } else { 3 }], Ours::Settling)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_at_random_are_problems_that_have_solutions() {
        let context = Context {
            quick: true,
            seeds: vec![1],
            traces: std::path::PathBuf::new(),
            stage: None,
            progress: indicatif::ProgressBar::hidden(),
        };
        let scene = Scene::new(&context).unwrap();
        let mixes: Vec<Mix> = (0..50).map(|seed| any(&scene, seed)).collect();
        assert!(mixes.iter().all(|mix| mix.problem().is_ok() && (2..=8).contains(&mix.tenants.len())));
        assert!((1..=4).all(|count| mixes.iter().any(|mix| mix.scene.gateways.len() == count)));
    }
}
