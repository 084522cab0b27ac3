//! How many of the tenants that could keep R are admitted, and whether what the server measures with a tenant's own
//! cache is true.
//!
//! ```text
//!   each alone, whole cache ─┐
//!   all, as the server does ─┼─► kept, decision, R as it is named ─► by a margin: precision, recall
//!   all, each with c bytes  ─┴─► kept by c, in the longest rounds ─► oracle: the least c, in order of arrival
//!   each alone, own cache   ───► what DISK should show
//! ```

use engine::control::{FRAME_BYTES, LEAST_BYTES};
use engine::curve::View;
use engine::units::BLOCK;
use serde_json::{Map, Value, json};

use super::super::chart::{Group, bars};
use super::super::lines::{Line, lines};
use super::super::stand::Run;
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::play::{alone_s, counted_bins};
use super::precision::{DISKS, MIXES, QUICK};
use crate::mix::{Job, Kept, Mix, Scene, decision, judge};

pub const EXPERIMENT: Experiment = Experiment {
    name: "insulated-oracle",
    question: "How many of the tenants that could keep R are admitted?",
    setup: "The mixes of `insulated-mixes`. An oracle takes the tenants in order of arrival and admits each for which \
            memory is left. It knows what each keeps by partition, in the longest rounds: all run together with 1/64 \
            to all of the memory for each. Recall is the number of tenants that are admitted and keep R, relative to \
            those that the oracle admits. A picture has it for R as the server names it plus a margin: for the low \
            end, the estimate, and Argon's model (the miss ratios of the curve, 8 ms for a miss). And each tenant runs \
            alone with as much cache as it had: the time that it takes there for the same requests is what DISK should \
            show.",
    paper: "Argon, section 3.4: the least partition with the miss ratio that R needs, from the curve.",
    run,
};

/// Partitions that the oracle knows, as parts of the memory.
const PARTS: [f64; 7] = [1.0 / 64.0, 1.0 / 16.0, 1.0 / 8.0, 1.0 / 4.0, 1.0 / 2.0, 3.0 / 4.0, 1.0];
/// What Argon's model takes for a miss and for a hit: as the server before its first measurement.
const MISS_NS: f64 = 8e6;
const HIT_NS: f64 = 1e4;
/// Margins of admission, hundredths. All mixes have R = 0.9.
const MARGINS: std::ops::RangeInclusive<i32> = -10..=9;
const R: f64 = 0.9;

/// A tenant in one run.
struct Judged {
    kept: Kept,
    r: f64,
    /// R by the low end, the estimate, and Argon's model; `None` while nothing is known.
    named: [Option<f64>; 3],
    /// Whether the oracle admits it.
    possible: bool,
    /// What it keeps relative to a run alone with the cache that it had. Compared is the time for the same requests:
    /// after them a cache of that size has the same content. After the same time, the cache of a tenant alone would
    /// have seen `1 / share` times as many.
    own_cache: f64,
}

impl Judged {
    fn keeps(&self) -> bool {
        self.kept.kept >= self.r
    }

    fn admitted(&self) -> bool {
        decision(self.kept.sizing) == "admitted"
    }
}

const NAMES: [&str; 3] = ["low end", "estimate", "Argon's model"];

/// Bytes that a tenant needs: interpolated between the sizes of which it is known what it keeps.
fn need(kept: &[(f64, f64)], r: f64) -> Option<f64> {
    let mut before: Option<(f64, f64)> = None;
    for &(bytes, kept) in kept {
        if kept >= r {
            let (from, less) = before.unwrap_or((bytes, 0.0));
            return Some(from + (bytes - from) * (r - less).max(0.0) / (kept - less));
        }
        // More cache is never worse: less is noise.
        before = before.filter(|&(_, most)| most > kept).map(|(_, most)| (bytes, most)).or(Some((bytes, kept)));
    }
    None
}

/// Whom the oracle admits into `memory` bytes: each in its turn for whom enough is left.
fn oracle(needs: &[Option<f64>], memory: f64) -> Vec<bool> {
    let least = LEAST_BYTES as f64;
    let mut left = memory - least * needs.len() as f64;
    let mut admit = |need: &Option<f64>| match need.map(|need| (need - least).max(0.0)) {
        Some(more) if more <= left => {
            left -= more;
            true
        }
        _ => false,
    };
    needs.iter().map(&mut admit).collect()
}

/// R_cache by Argon's model: S = miss ratio x disk time + hit ratio x hit time.
fn argon(view: &View, bytes: u64, memory: u64) -> Option<f64> {
    let time = |bytes: u64| view.misses(bytes / BLOCK).map(|misses| misses * MISS_NS + (1.0 - misses) * HIT_NS);
    Some((time(memory)? / time(bytes)?).min(1.0))
}

fn play(context: &Context, mix: &Mix, scene: &Scene<'_>, seed: u64) -> Result<Vec<Judged>, String> {
    let count = mix.tenants.len();
    let sizes = PARTS.map(|part| (part * scene.memory() as f64) as u64);
    let jobs: Vec<_> =
        (0..count).map(Job::Alone).chain([Job::Together]).chain(sizes.into_iter().map(Job::EachWith)).collect();
    let runs = |jobs: &[Job]| {
        let runs = context.parallel(jobs, |&job| scene.run(seed, job).map_err(|error| format!("{error:#}")));
        runs.into_iter().collect::<Result<Vec<Run>, String>>()
    };
    let all = runs(&jobs)?;
    let (alone, together, by_size) = (&all[..count], &all[count], &all[count + 1..]);
    let had = |at: usize| together.before.tenants[at].target_frames * FRAME_BYTES;
    let own = runs(&(0..count).map(|at| Job::AloneWith(at, had(at))).collect::<Vec<_>>())?;
    let r = f64::from(mix.insulation_permille) / 1000.0;
    let kept_in = |run: &Run, alone: &[Run], at: usize| judge(&mix.tenants[at], &alone[at], run, at);
    let needs: Vec<_> = (0..count)
        .map(|at| {
            let kept = by_size.iter().zip(sizes).map(|(run, bytes)| (bytes as f64, kept_in(run, alone, at).kept));
            need(&kept.collect::<Vec<_>>(), r)
        })
        .collect();
    let possible = oracle(&needs, scene.memory() as f64);
    let judged = possible.into_iter().enumerate().map(|(at, possible)| {
        let kept = kept_in(together, alone, at);
        let part = |permille: Option<u32>| permille.map(|permille| f64::from(permille) / 1000.0);
        let sizing = kept.sizing.as_ref();
        let time = sizing.filter(|sizing| sizing.best_permille.is_some()).and_then(|s| part(Some(s.time_permille)));
        let by_curve = argon(&together.curves[at], had(at), scene.memory());
        let named = [
            part(sizing.and_then(|sizing| sizing.low_permille)),
            part(sizing.and_then(|sizing| sizing.best_permille)),
            time.zip(by_curve).map(|(time, cache)| time * cache),
        ];
        let mine = &together.rates[at];
        let (warm, count) = counted_bins(mine);
        let own_s = alone_s(&own[at].rates[0], mine, warm..warm + count);
        let own_cache = own_s / (mix.tenants[at].share() * mine.seconds);
        Judged { r, named, possible, own_cache, kept }
    });
    Ok(judged.collect())
}

/// Precision and recall if those of whom `admits` is true are admitted.
fn score(all: &[Judged], admits: impl Fn(&Judged) -> bool) -> [f64; 2] {
    let count = |of: &dyn Fn(&&Judged) -> bool| all.iter().filter(of).count() as f64;
    let kept = count(&|tenant| admits(tenant) && tenant.keeps());
    let could = count(&|tenant| tenant.possible);
    [kept / count(&|tenant| admits(tenant)), kept / could]
}

/// One line about a run. All runs together take half an hour.
fn summary(of: &str, all: &[Judged]) -> String {
    let count = |of: fn(&&Judged) -> bool| all.iter().filter(of).count();
    let admitted = count(|tenant| tenant.admitted());
    let kept = count(|tenant| tenant.admitted() && tenant.keeps());
    let possible = count(|tenant| tenant.possible);
    format!("{of}: {kept} of {admitted} admitted tenants keep R; an oracle admits {possible} of {}", all.len())
}

fn run(context: &Context) -> Result<Outcome, String> {
    let disks = &DISKS[..if context.quick { 1 } else { DISKS.len() }];
    let (mut all, mut data, mut groups) = (Vec::new(), Map::new(), Vec::new());
    for (name, text) in MIXES.iter().filter(|(name, _)| !context.quick || QUICK.contains(name)) {
        let mix = Mix::parse(text, "".as_ref()).map_err(|error| format!("{name}: {error:#}"))?;
        let mut of_mix = Vec::new();
        for disk in disks {
            let scene = Scene::new(&mix, disk).map_err(|error| format!("{name}: {error:#}"))?;
            for &seed in &context.seeds {
                let played = play(context, &mix, &scene, seed).map_err(|error| format!("{name}, {disk}: {error}"))?;
                context.note(&summary(&format!("{name}, {disk}, seed {seed}"), &played));
                of_mix.extend(played);
            }
        }
        let [_, recall] = score(&of_mix, Judged::admitted);
        groups.push(Group { label: (*name).into(), bars: vec![recall] });
        let tenants = of_mix.iter().enumerate().map(|(at, tenant)| {
            json!({ "tenant": mix.tenants[at % mix.tenants.len()].name, "kept": tenant.kept.kept,
                    "decision": decision(tenant.kept.sizing), "named": tenant.named, "possible": tenant.possible,
                    "live_own_cache": tenant.kept.live_own_cache, "own_cache": tenant.own_cache })
        });
        data.insert((*name).into(), tenants.collect::<Vec<_>>().into());
        all.extend(of_mix);
    }
    let [precision, recall] = score(&all, Judged::admitted);
    let shown =
        all.iter().filter_map(|tenant| Some((tenant.kept.live_own_cache? - tenant.own_cache, tenant.own_cache)));
    // Relative to what is kept, where that is more than 1.
    let errors: Vec<f64> = shown.map(|(error, kept)| error.abs() / kept.max(1.0)).collect();
    let mean = errors.iter().sum::<f64>() / errors.len().max(1) as f64;
    let largest = errors.iter().copied().fold(0.0, f64::max);
    let claims = vec![
        Claim::new("recall of admission against an oracle", recall, Bound::AtLeast(0.7)),
        Claim::new("precision of admission", precision, Bound::AtLeast(0.95)),
        Claim::new("insulation with the own cache: mean error", mean, Bound::AtMost(0.05)),
        Claim::new("insulation with the own cache: largest error", largest, Bound::AtMost(0.1)),
    ];
    let mut by_margin = Vec::new();
    for (which, name) in NAMES.iter().enumerate() {
        let at = |margin: i32| {
            let admits = |tenant: &Judged| {
                tenant.named[which].is_some_and(|named| named >= tenant.r + f64::from(margin) / 100.0)
            };
            let [precision, recall] = score(&all, admits);
            (f64::from(margin) / 100.0, precision, recall)
        };
        let points: Vec<_> = MARGINS.map(at).filter(|(_, precision, _)| precision.is_finite()).collect();
        let line = |of: fn(&(f64, f64, f64)) -> f64| {
            let points = points.iter().map(|point| (R + point.0, of(point))).collect();
            Line { name: (*name).into(), points, chosen: None }
        };
        by_margin.push([line(|point| point.1), line(|point| point.2)]);
        data.insert(format!("by margin: {name}"), points.iter().map(|&(m, p, r)| json!([m, p, r])).collect());
    }
    let mut pictures = vec![Picture {
        name: "recall".into(),
        caption: "How many of the tenants that an oracle admits are admitted and keep R, by mix.".into(),
        svg: bars("part of those that an oracle admits", &["admitted and keeps R"], &groups, Some((0.7, "asked")))?,
    }];
    for (which, what) in ["precision", "recall"].into_iter().enumerate() {
        let of: Vec<_> = by_margin.iter().map(|lines| lines[which].clone()).collect();
        let svg = lines(("admitted from this R as it is named", what), &of, ([0.95, 0.7][which], "asked"))?;
        let caption = format!("The {what} of admission by R = 0.9 plus a margin, in three ways of naming R.");
        pictures.push(Picture { name: what.into(), caption, svg });
    }
    Ok(Outcome { claims, data: Value::Object(data), pictures, ..Outcome::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oracle_knows_the_least_size_and_takes_whom_it_can() {
        let kept = [(1e6, 0.2), (2e6, 0.6), (4e6, 0.5), (8e6, 1.0)];
        assert_eq!([0.2, 0.4, 0.8, 1.1].map(|r| need(&kept, r)), [Some(1e6), Some(1.5e6), Some(6e6), None]);
        let least = LEAST_BYTES as f64;
        let needs = [Some(0.0), Some(least + 5e6), None, Some(least + 6e6), Some(least + 4e6)];
        assert_eq!(oracle(&needs, 5.0 * least + 1e7), [true, true, false, false, true]);
    }

    #[test]
    fn argons_model_knows_what_the_curve_knows() {
        let point = |blocks, misses| engine::curve::Point { blocks, reads: None, writes: None, all: Some(misses) };
        let (policy, reuse) = (engine::control::TenantSpec::default().eviction, engine::curve::Reuse::default());
        let points = vec![point(0, 1.0), point(100, 0.5), point(200, 0.25)];
        let view = View { policy, points, reads: 10.0, writes: 0.0, reuse, rate: 1.0, samples: 10 };
        let keeps = argon(&view, 100 * BLOCK, 200 * BLOCK).unwrap();
        assert!((keeps - 0.5).abs() < 0.002, "{keeps}");
    }
}
