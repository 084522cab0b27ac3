//! How well the model predicts what is measured, over the whole surface of each load.

use std::sync::Arc;

use engine::allocate::{Allotment, Evidence, Refinement, Tiers};
use engine::control::Tiers as Together;
use serde_json::{Value, json};

use super::super::lines::{Line, lines};
use super::super::stand::{mean, mixed};
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::evidence::evidence;
use super::exact::{First, Trace};
use super::heat::Heat;
use super::loads::{Kind, PAST};
use super::paper::{grid, mean_error};
use super::play::{Played, Scene, Told};
use super::surface::{BASE, FIRST_MAX, Measured, SHARES, frames};

pub const MODEL: Experiment = Experiment {
    name: "allocation-model",
    question: "How well does the model predict latencies and miss ratios for partitions and shares that a tenant never \
               had?",
    setup: "The loads of allocation-paper, each beside three backlogged readers: 45 combinations of partitions (1, 8, \
            15 steps of the first tier; 1, 12, 29 of the second) and shares (2, 4, 6, 10, 14 sixteenths). The \
            evidence is that of one run with 8 and 8 steps and a quarter of the disk. Miss ratios: all 24 x 31 \
            partitions against exact simulation; DEMOTE on a grid of 30.",
    paper: "Soundararajan et al., section 6.4, figures 4, 7 and 8: total latency 3.3 to 16 %, disk latency 4 to 102 %, \
            miss ratios 4 %.",
    run: model,
};

/// What is compared for a load.
struct Errors {
    name: String,
    is_cacheable: bool,
    latency: Vec<(f64, f64)>,
    disk: Vec<(f64, f64)>,
    /// Differences of miss ratios where c is not s, and where it is.
    misses: [f64; 2],
    demote: [f64; 2],
    /// Errors after so many samples.
    refined: Vec<(usize, f64)>,
}

/// The partitions for which DEMOTE is simulated.
const DEMOTE: ([u32; 5], [u32; 6]) = ([1, 4, 8, 12, 15], [1, 4, 8, 16, 24, 29]);
/// Samples after which refinement is judged.
const SAMPLES: [usize; 4] = [0, 10, 20, 40];

/// The error where reads miss at all.
fn disk_error(of: &[(f64, f64)]) -> f64 {
    mean_error(&of.iter().copied().filter(|(_, measured)| *measured > 0.0).collect::<Vec<_>>())
}

fn share(of: Allotment) -> f64 {
    f64::from(of.share) / f64::from(SHARES)
}

/// The evidence of a load, from its run with [`BASE`].
fn of_base(base: &Told, scene: &Scene) -> Result<Evidence, String> {
    let caches = (grid().bytes(BASE.first), grid().bytes(BASE.second));
    evidence(base, caches, share(BASE), &scene.stand.profile(true)?)
}

/// What is measured of a load.
struct Load {
    surface: Arc<Measured>,
    evidence: Evidence,
    /// Mean latency with [`BASE`], with LRU and with DEMOTE in both tiers, ms, and the misses of both.
    tiers_ms: [f64; 2],
    tiers_misses: [f64; 2],
}

fn load(surface: &Arc<Measured>, scene: &Scene, seed: u64) -> Result<Load, String> {
    let learning = scene.learning();
    let lru = learning.among_backlogged(&surface.kind, grid(), BASE, seed)?;
    let demoting = Scene { together: Together::Demote, ..learning };
    let demote = demoting.among_backlogged(&surface.kind, grid(), BASE, seed)?;
    let of = |played: &Played| (played.seen[0].latency_ns / 1e6, played.seen[0].misses);
    let [(lru_ms, lru_misses), (demote_ms, demote_misses)] = [of(&lru), of(&demote)];
    let evidence = of_base(&lru.told[0], scene)?;
    Ok(Load {
        surface: surface.clone(),
        evidence,
        tiers_ms: [lru_ms, demote_ms],
        tiers_misses: [lru_misses, demote_misses],
    })
}

fn errors(load: &Load, context: &Context) -> Result<Errors, String> {
    let (measured, evidence) = (&*load.surface, &load.evidence);
    let predict = |evidence: &Evidence, at: Allotment| {
        evidence.predict(grid().bytes(at.first), grid().bytes(at.second), share(at))
    };
    let nodes = measured.nodes.all();
    let both = || nodes.iter().zip(&measured.cells).map(|(&at, cell)| (predict(evidence, at), cell));
    let latency: Vec<(f64, f64)> = both().map(|(said, cell)| (said.latency_ns, cell.latency_ns)).collect();
    let disk: Vec<(f64, f64)> = both().map(|(said, cell)| (said.disk_ns, cell.disk_ns)).collect();
    let all = (1..=FIRST_MAX).flat_map(|first| (1..=31).map(move |second| (first, second)));
    let difference = |tiers: Tiers, (first, second): (u32, u32), exact: f64| {
        let at = Allotment { first, second, share: BASE.share };
        (predict(&Evidence { tiers, ..evidence.clone() }, at).misses - exact).abs()
    };
    let apart = |of: Vec<Ratio>| {
        let of_those = |same: bool| {
            let those: Vec<f64> = of.iter().filter(|((c, s), _)| (c == s) == same).map(|of| of.1).collect();
            if those.is_empty() { 0.0 } else { mean(those) }
        };
        [of_those(false), of_those(true)]
    };
    let lru = all.map(|at| (at, difference(Tiers::Lru, at, measured.ratios.misses(at.0, at.1)))).collect();
    let demote = demoted(measured, context)?;
    let demote = demote.iter().map(|&(at, exact)| (at, difference(Tiers::Demote, at, exact))).collect();
    Ok(Errors {
        name: measured.kind.name.clone(),
        is_cacheable: matches!(measured.kind.name.as_str(), "TPC-W" | "RUBiS"),
        refined: refined(&nodes, &latency),
        latency,
        disk,
        misses: apart(lru),
        demote: apart(demote),
    })
}

/// Steps of cache in both tiers, and a ratio there.
type Ratio = ((u32, u32), f64);

/// Exact misses with DEMOTE.
fn demoted(measured: &Measured, context: &Context) -> Result<Vec<Ratio>, String> {
    let counted = if context.quick { 60_000 } else { 200_000 };
    let before = PAST + counted / 2;
    let records = measured.kind.records(mixed(context.seeds[0], 0))?;
    let trace = Trace::new(records.take(before + counted), before);
    let lag = (measured.rate * 4.4) as usize;
    let mut found = Vec::new();
    for first in DEMOTE.0 {
        let of = First::new(&trace, frames(grid(), first), lag.max(1));
        found.extend(DEMOTE.1.map(|second| ((first, second), of.demote(&trace, frames(grid(), second)))));
    }
    Ok(found)
}

/// The error of the refined model on all points that are not samples, by number of samples.
fn refined(nodes: &[Allotment], latency: &[(f64, f64)]) -> Vec<(usize, f64)> {
    let mut refinement = Refinement::new();
    let mut left: Vec<usize> = (0..nodes.len()).collect();
    let mut errors = Vec::new();
    for count in SAMPLES.into_iter().filter(|&count| count < nodes.len()) {
        let candidates: Vec<(Allotment, f64)> = left.iter().map(|&at| (nodes[at], latency[at].0)).collect();
        let more = (count + left.len()).saturating_sub(nodes.len());
        for sample in refinement.suggest(&candidates, more) {
            let at = nodes.iter().position(|&node| node == sample).expect("it is a candidate");
            left.retain(|&other| other != at);
            refinement.add(1, nodes[at], latency[at].1, latency[at].0);
        }
        refinement.fit();
        let rest: Vec<(f64, f64)> = left
            .iter()
            .map(|&at| (latency[at].0 * refinement.factor(nodes[at], latency[at].0), latency[at].1))
            .collect();
        errors.push((count, mean_error(&rest)));
    }
    errors
}

fn model(context: &Context) -> Result<Outcome, String> {
    let scene = Scene::new(context)?;
    let kinds = [Kind::tpcw(), Kind::rubis(), Kind::zipf40(), Kind::zipf95()];
    let measured = Measured::all(context, &scene, grid(), &kinds)?;
    let loads = context.parallel(&measured, |measured| load(measured, &scene, context.seeds[0]));
    let loads: Vec<Load> = loads.into_iter().collect::<Result<_, _>>()?;
    let found = context.parallel(&loads, |load| errors(load, context));
    let found: Vec<Errors> = found.into_iter().collect::<Result<_, _>>()?;
    let mut claims = Vec::new();
    for (is_cacheable, name) in [(true, "cacheable"), (false, "not cacheable")] {
        let of = found.iter().filter(|errors| errors.is_cacheable == is_cacheable);
        let error = mean(of.map(|errors| mean_error(&errors.latency)));
        claims.push(Claim::new(format!("total latency, mean error, {name}"), error, Bound::AtMost(0.05)));
    }
    for errors in &found {
        let Errors { name, latency, disk, misses, demote, refined, .. } = errors;
        claims.push(Claim::new(format!("{name}: total latency, mean error"), mean_error(latency), Bound::AtMost(0.1)));
        claims.push(Claim::new(format!("{name}: disk latency, mean error"), disk_error(disk), Bound::AtMost(0.1)));
        for (tiers, [apart, same]) in [("LRU", misses), ("DEMOTE", demote)] {
            let of = |what: &str| format!("{name}: miss ratio, {tiers}, {what}, mean difference");
            claims.push(Claim::new(of("c not s"), *apart, Bound::AtMost(0.02)));
            claims.push(Claim::new(of("c = s"), *same, Bound::AtMost(0.02)));
        }
        let after = refined.iter().find(|(samples, _)| *samples == 20);
        if let Some((_, error)) = after {
            claims.push(Claim::new(format!("{name}: error after 20 samples"), *error, Bound::AtMost(0.05)));
        }
    }
    for load in &loads {
        let [lru, demote] = load.tiers_ms;
        let name = format!("{}: latency with LRU / with DEMOTE, equal memory", load.surface.kind.name);
        claims.push(Claim::new(name, lru / demote, Bound::AtLeast(1.0)));
    }
    let data: Vec<Value> = found.iter().zip(&loads).map(|(errors, load)| json(errors, load)).collect();
    let pictures = pictures(&found, &loads)?;
    Ok(Outcome { claims, data: data.into(), pictures, ..Outcome::default() })
}

fn json(errors: &Errors, load: &Load) -> Value {
    let (measured, evidence) = (&*load.surface, &load.evidence);
    let node = |(at, cell): (&Allotment, &super::play::Seen)| {
        let said = evidence.predict(grid().bytes(at.first), grid().bytes(at.second), share(*at));
        json!({
            "first": at.first, "second": at.second, "share": share(*at), "measured": cell.json(),
            "exact_misses": measured.ratios.misses(at.first, at.second),
            "predicted_ms": said.latency_ns / 1e6, "predicted_disk_ms": said.disk_ns / 1e6,
            "predicted_slice_wait_ms": said.slice_wait_ns / 1e6,
            "predicted_misses": said.misses,
        })
    };
    let nodes: Vec<Value> = measured.nodes.all().iter().zip(&measured.cells).map(node).collect();
    json!({
        "load": errors.name, "total_latency_error": mean_error(&errors.latency),
        "disk_latency_error": disk_error(&errors.disk), "miss_ratio_difference": errors.misses,
        "miss_ratio_difference_demote": errors.demote, "error_by_samples": errors.refined,
        "evidence": format!("{:?} z {} us, N {}, disk {:?}, round {:?}", evidence.tiers, evidence.think_ns / 1e3,
            evidence.outstanding, evidence.disk, evidence.round),
        "ms_with_lru_and_demote": load.tiers_ms, "misses_with_lru_and_demote": load.tiers_misses, "nodes": nodes,
    })
}

/// Figures 4, 7 and 8 of the paper.
fn pictures(found: &[Errors], loads: &[Load]) -> Result<Vec<Picture>, String> {
    let mib = |steps: u32| f64::from(steps) * grid().cache_step_bytes as f64 / f64::from(1 << 20);
    let line = |name: &str, points: Vec<(f64, f64)>| Line { name: name.into(), points, chosen: None };
    let curves: Vec<Line> = loads
        .iter()
        .map(|Load { surface: of, .. }| {
            let points = (1..=FIRST_MAX).map(|steps| (mib(steps), 1.0 - of.ratios.first_hits(steps)));
            line(&of.kind.name, points.collect())
        })
        .collect();
    let latencies: Vec<Line> = loads
        .iter()
        .map(|Load { surface: of, evidence, .. }| {
            let at = |steps: u32| evidence.predict(grid().bytes(steps), grid().bytes(1), share(BASE)).latency_ns / 1e6;
            line(&of.kind.name, (1..=32).map(|steps| (mib(steps), at(steps))).collect())
        })
        .collect();
    let samples: Vec<Line> = found
        .iter()
        .map(|errors| {
            let points = errors.refined.iter().map(|&(samples, error)| (samples as f64 + 1.0, error * 100.0));
            line(&errors.name, points.collect())
        })
        .collect();
    let mut pictures = vec![
        picture(
            "figure-4a",
            "Exact miss ratios of reads in the first tier (the paper's figure 4a).",
            lines(("first tier, MiB", "miss ratio"), &curves, (0.0, "no misses"))?,
        ),
        picture(
            "figure-4b",
            "Mean latency that the model predicts, with a quarter of the disk (the paper's figure 4b).",
            lines(("first tier, MiB", "mean latency, ms"), &latencies, (0.0, "none"))?,
        ),
        picture(
            "figure-7",
            "Error of the refined model on all other points, by samples + 1 (the paper's figure 7).",
            lines(("samples + 1", "mean error, %"), &samples, (5.0, "asked after 20"))?,
        ),
    ];
    for (load, errors) in loads.iter().zip(found) {
        pictures.extend(maps(load, errors)?);
    }
    Ok(pictures)
}

fn picture(name: &str, caption: &str, svg: String) -> Picture {
    Picture { name: name.into(), caption: caption.into(), svg }
}

/// The errors of a load over its partitions and shares.
fn maps(Load { surface: of, evidence, .. }: &Load, errors: &Errors) -> Result<[Picture; 2], String> {
    let name = of.kind.name.to_lowercase();
    let (seconds, shares) = (&of.nodes.seconds, &of.nodes.shares);
    let first_at = of.nodes.firsts.len() / 2;
    let error = |second_at: usize, share_at: usize| {
        let at = (first_at * seconds.len() + second_at) * shares.len() + share_at;
        errors.disk.get(at).map_or(f64::NAN, |(said, seen)| said / seen - 1.0)
    };
    let values = (0..shares.len()).map(|share| (0..seconds.len()).map(|second| error(second, share)).collect());
    let heat = Heat {
        axes: ("second tier, steps of 2 MiB", "share, sixteenths"),
        columns: seconds.iter().map(u32::to_string).collect(),
        rows: shares.iter().map(u32::to_string).collect(),
        values: values.collect(),
        most: 0.5,
    };
    let caption = format!("{}: error of the disk latency, % (the paper's figure 8a, 8b).", of.kind.name);
    let disk = picture(&format!("figure-8-disk-{name}"), &caption, heat.svg()?);
    let difference = |first: u32, second: u32| {
        let said = evidence.predict(grid().bytes(first), grid().bytes(second), share(BASE)).misses;
        said - of.ratios.misses(first, second)
    };
    let values = (1..=31).map(|second| (1..=FIRST_MAX).map(|first| difference(first, second)).collect());
    let heat = Heat {
        axes: ("first tier, steps of 2 MiB", "second tier, steps"),
        columns: (1..=FIRST_MAX).map(|steps| steps.to_string()).collect(),
        rows: (1..=31).map(|steps: u32| steps.to_string()).collect(),
        values: values.collect(),
        most: 0.1,
    };
    let caption = format!("{}: error of the two-tier miss ratio; darkest: 0.1 (figure 8c, 8d).", of.kind.name);
    Ok([disk, picture(&format!("figure-8-misses-{name}"), &caption, heat.svg()?)])
}
