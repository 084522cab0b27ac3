//! The two experiments of the paper, and its motivating one.

use engine::allocate::{Allotment, Baseline, Grid, Problem, Surface};
use serde_json::{Value, json};
use sim::rng::Rng;

use super::super::chart::{self, Group};
use super::super::stand::{mean, mixed};
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::loads::Kind;
use super::mix::{BASELINES, Mix, OURS, Row, Table};
use super::play::Scene;
use super::surface::Measured;

pub const PAPER: Experiment = Experiment {
    name: "allocation-paper",
    question: "Does one allocation of both caches and the disk find what exhaustive search finds?",
    setup: "The paper's set-up by a sixteenth: two gateways with 32 MiB, a server with 64 MiB and a cheetah-15k5 with \
            slices, 100 us from gateway to server; steps of 2 MiB, the disk in eighths, all caches LRU. Requests of \
            4 KiB, 8 outstanding or thought about: TPC-W (cacheable up to 22.5 MiB, 8 % cold, 20 % writes, thinks for \
            10 ms), RUBiS (43.75 MiB, 8 % cold, 15 % writes, 10 ms), Zipf 0.4 over 1 GiB and Zipf 0.95 over 256 MiB \
            (reads, 5 ms). Ours: the planner, from what the API tells in one run with equal parts. Ideal and all \
            baselines search measured surfaces: exact miss ratios of the same requests, disk latency in 45 runs a load \
            with all others backlogged. Each allocation is run: 20 s in which the disk answers at once and caches \
            fill, 15 s, then 90 s that count; two seeds.",
    paper: "Soundararajan et al., section 6.2, figure 5 and table 1: as good as ideal; 1.42 and 1.12 times better than \
            mrc+disk.",
    run: paper,
};

/// Steps of cache, and of the disk.
const STEP: u64 = 2 << 20;
const SHARES: u32 = 8;
/// Random allocations of each mix with which the measured surfaces are verified: 50 in all.
const POINTS: usize = 25;

pub fn grid() -> Grid {
    Grid { cache_step_bytes: STEP, share_steps: SHARES }
}

pub fn mixes(scene: &Scene) -> [Mix; 2] {
    let mix = |name: &str, kinds: [Kind; 4]| {
        let tenants = kinds.into_iter().enumerate().map(|(at, kind)| (kind, at / 2)).collect();
        Mix { name: name.into(), tenants, scene: scene.clone(), grid: grid(), first: None }
    };
    [
        mix("TPC-W/RUBiS + TPC-W/RUBiS", [Kind::tpcw(), Kind::rubis(), Kind::tpcw(), Kind::rubis()]),
        mix("Zipf40/TPC-W + Zipf95/RUBiS", [Kind::zipf40(), Kind::tpcw(), Kind::zipf95(), Kind::rubis()]),
    ]
}

/// Two Zipf loads with the least first tier: what is divided is the server's cache and disk.
fn motivation(scene: &Scene) -> Mix {
    let tenants = vec![(Kind::zipf95(), 0), (Kind::zipf40(), 1)];
    Mix { name: "Zipf95 + Zipf40, one tier".into(), tenants, scene: scene.clone(), grid: grid(), first: Some(1) }
}

/// The rows of a mix, run.
fn rows(context: &Context, mix: &Mix, of: &[Baseline]) -> Result<Vec<Row>, String> {
    let measured = Measured::all(context, &mix.scene, mix.grid, &mix.kinds())?;
    let profile = mix.scene.stand.profile(true)?;
    let (allocation, promised_ns, _) = mix.ours(&profile, context.seeds[0])?;
    let mut rows = vec![Row { scheme: OURS, allocation, runs: vec![], promised_ns }];
    rows.extend(mix.baselines(of, &measured)?);
    let seeds: Vec<u64> = context.seeds.iter().copied().take(2).collect();
    mix.measure(context, &mut rows, &seeds)?;
    Ok(rows)
}

fn total(rows: &[Row], scheme: &str) -> f64 {
    rows.iter().find(|row| row.scheme == scheme).map_or(f64::NAN, Row::total_ns)
}

/// How far the baselines are from what trying everything finds, of its cost; the mean of what the caches miss for
/// `mrc`.
fn checked(problem: &Problem, table: &Table, rows: &[Row]) -> Vec<(&'static str, f64)> {
    let equal = problem.equal();
    let caches = |scheme: &str| rows.iter().find(|row| row.scheme == scheme).map(|row| row.allocation.clone());
    let mut found = Vec::new();
    for row in rows.iter().filter(|row| row.scheme != OURS) {
        let best = match Baseline::named(row.scheme) {
            Some(Baseline::Ideal) => table.by_force(problem, None, None),
            Some(Baseline::DiskOnly) => table.by_force(problem, Some(&equal), None),
            Some(Baseline::CacheOnly) => table.by_force(problem, None, Some(&equal)),
            Some(Baseline::MrcDisk) => table.by_force(problem, caches(Baseline::Mrc.name()).as_deref(), None),
            Some(Baseline::Mrc | Baseline::Equal) | None => continue,
        };
        found.push((row.scheme, row.promised_ns / best - 1.0));
    }
    found
}

/// Random allocations: what the surface says of each tenant, and what it has when it is run.
fn verified(context: &Context, mix: &Mix, table: &Table, points: usize) -> Result<Vec<(f64, f64)>, String> {
    let problem = mix.problem()?;
    let mut rng = Rng::new(context.seeds[0] ^ 0x50);
    let allocations: Vec<Vec<Allotment>> = (0..points).map(|_| anywhere(&problem, &mut rng)).collect();
    let seed = mixed(context.seeds[0], 99);
    let found = context.parallel(&allocations, |allocation| {
        let played = mix.play(allocation, seed)?;
        let of = |(at, seen): (usize, &super::play::Seen)| (table.latency_ns(at, allocation[at]), seen.latency_ns);
        Ok(played.seen.iter().enumerate().map(of).collect::<Vec<_>>())
    });
    Ok(found.into_iter().collect::<Result<Vec<_>, String>>()?.concat())
}

/// A random allocation that uses everything up.
fn anywhere(problem: &Problem, rng: &mut Rng) -> Vec<Allotment> {
    let mut divide = |steps: u32, parts: usize| {
        let mut found = vec![1; parts];
        for _ in 0..steps - parts as u32 {
            found[rng.below(parts as u64) as usize] += 1;
        }
        // Uniform steps are nearly equal parts: some are moved from one to another.
        for at in 1..parts {
            let moved = rng.below(u64::from(found[at])) as u32;
            found[at] -= moved;
            found[at - 1] += moved;
        }
        found
    };
    let tenants = problem.tenants.len();
    let (seconds, shares) = (divide(problem.servers[0], tenants), divide(problem.disks[0].share, tenants));
    let mut all: Vec<Allotment> =
        (0..tenants).map(|at| Allotment { first: 0, second: seconds[at], share: shares[at] }).collect();
    for (gateway, &steps) in problem.gateways.iter().enumerate() {
        let here: Vec<usize> = (0..tenants).filter(|&at| problem.tenants[at].gateway == Some(gateway)).collect();
        here.iter().zip(divide(steps, here.len())).for_each(|(&at, first)| all[at].first = first);
    }
    all
}

/// Mean of |measured / said - 1|.
pub fn mean_error(of: &[(f64, f64)]) -> f64 {
    mean(of.iter().map(|(said, measured)| (said / measured - 1.0).abs()))
}

fn paper(context: &Context) -> Result<Outcome, String> {
    let scene = Scene::new(context)?;
    let schemes = [&BASELINES[..], &[Baseline::Ideal]].concat();
    let (mut claims, mut data, mut groups) = (Vec::new(), Vec::new(), Vec::new());
    let all = mixes(&scene).into_iter().zip(["a", "b"]);
    for (mix, letter) in all.skip(usize::from(context.quick)) {
        let mix = &mix;
        let rows = rows(context, mix, &schemes)?;
        let [ours, ideal, mrc_disk] = [OURS, "ideal", "mrc+disk"].map(|scheme| total(&rows, scheme));
        claims.push(Claim::new(format!("({letter}) ours / ideal"), ours / ideal, Bound::AtMost(1.02)));
        let gain = (mrc_disk / ours) / (mrc_disk / ideal);
        claims.push(Claim::new(format!("({letter}) gain on mrc+disk, of ideal's"), gain, Bound::AtLeast(0.98)));
        let problem = mix.problem()?;
        let measured = Measured::all(context, &mix.scene, mix.grid, &mix.kinds())?;
        let table = Table::new(&problem, &measured);
        let forced = checked(&problem, &table, &rows);
        for (scheme, above) in &forced {
            claims.push(Claim::new(format!("({letter}) {scheme} above brute force"), *above, Bound::AtMost(1e-9)));
        }
        let points = if context.quick { 2 } else { POINTS };
        let verified = verified(context, mix, &table, points)?;
        let error = mean_error(&verified);
        claims.push(Claim::new(format!("({letter}) measured surface, mean error"), error, Bound::AtMost(0.1)));
        let verified: Vec<Value> = verified.iter().map(|(said, seen)| json!([said / 1e6, seen / 1e6])).collect();
        data.push(json!({
            "mix": mix.name, "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
            "gain_on_mrc_disk": mrc_disk / ours,
            "ideals_gain_on_mrc_disk": mrc_disk / ideal, "expected_and_measured_ms": verified,
        }));
        groups.push(Group { label: mix.name.clone(), bars: rows.iter().map(|row| row.total_ns() / 1e6).collect() });
    }
    let names: Vec<&str> = [OURS].into_iter().chain(schemes.iter().map(|scheme| scheme.name())).collect();
    let mut pictures = vec![Picture {
        name: "figure-5".into(),
        caption: "Sum of the tenants' mean latencies by scheme, both mixes (the paper's figure 5).".into(),
        svg: chart::bars("sum of mean latencies, ms", &names, &groups, None)?,
    }];
    if context.quick {
        return Ok(Outcome { claims, data: data.into(), pictures, ..Outcome::default() });
    }
    let mix = motivation(&scene);
    let schemes = [Baseline::Mrc, Baseline::CacheOnly, Baseline::DiskOnly, Baseline::Ideal];
    let rows = rows(context, &mix, &schemes)?;
    let above = total(&rows, OURS) / total(&rows, "ideal");
    claims.push(Claim::new("one tier: ours / ideal", above, Bound::AtMost(1.02)));
    let names: Vec<&str> = rows.iter().map(|row| row.scheme).collect();
    let bars = rows.iter().map(|row| row.total_ns() / 1e6).collect();
    pictures.push(Picture {
        name: "figure-2".into(),
        caption: "Zipf95 and Zipf40 share the server's cache and disk; each has 2 MiB on its gateway (the paper's \
                  figure 2)."
            .into(),
        svg: chart::bars("sum of mean latencies, ms", &names, &[Group { label: mix.name.clone(), bars }], None)?,
    });
    data.push(json!({"mix": mix.name, "rows": rows.iter().map(Row::json).collect::<Vec<_>>()}));
    Ok(Outcome { claims, data: data.into(), pictures, ..Outcome::default() })
}

#[cfg(test)]
mod tests {
    use engine::allocate::{Bounds, Disk, Tenant};

    use super::*;

    #[test]
    fn random_allocations_are_permitted_and_use_everything_up() {
        let bounds = Bounds::at_least(Allotment { first: 1, second: 1, share: 1 });
        let tenants = (0..4).map(|at| Tenant { gateway: Some(at / 2), disk: 0, bounds }).collect();
        let disks = vec![Disk { server: 0, share: SHARES }];
        let problem = Problem { grid: grid(), gateways: vec![16; 2], servers: vec![32], disks, tenants };
        let mut rng = Rng::new(1);
        for _ in 0..100 {
            let all = anywhere(&problem, &mut rng);
            assert_eq!(problem.permits(&all), Ok(()));
            assert_eq!(all.iter().map(|at| at.second).sum::<u32>(), 32);
        }
    }
}
