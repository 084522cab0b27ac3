//! For how long a tenant is called admitted that no longer keeps R: mixes whose loads change after admission.
//!
//! ```text
//!   warm-up 300 s │ 20 s │ change ────────────────────────────────────► 600 s, a snapshot each second
//!                           low end < R ──► `admitted` is withdrawn      (the estimate)
//!                           insulation with the own cache < R - 0.05 ──► (the guarantee)
//! ```

use engine::control::{Decision, Progress, Snapshot};
use engine::units::{Nanos, SECOND};
use serde_json::{Map, Value, json};

use super::super::chart::{Group, bars};
use super::super::stand::{BIN_NS, Run};
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::judge::most;
use super::play::bytes_in;
use super::precision::DISKS;
use super::short;
use crate::mix::{Job, Mix, Scene, decision};

/// A mix and its description.
macro_rules! mixes {
    ($($name:literal),*) => { [$(($name, include_str!(concat!("../../../mixes/withdrawn/", $name, ".toml")))),*] };
}

const MIXES: [(&str, &str); 5] = mixes!["deepens", "grows", "moves", "neighbour", "writes"];
/// The mix of a quick run.
const QUICK: &str = "deepens";

pub const EXPERIMENT: Experiment = Experiment {
    name: "insulated-withdrawn",
    question: "For how long is a tenant called admitted that no longer keeps R?",
    setup: "Five mixes of four tenants (`lab/mixes/withdrawn`); a load changes at 320 s: its queue becomes deeper \
            than its slice in the longest round allows; its working set becomes larger than the memory; its working \
            set moves every 20 s; a neighbour's queue becomes deep; a reader of a cached set becomes a writer to a \
            large one. R = 0.9. A snapshot each second from 300 s to 600 s. Estimate: the longest time for which a \
            tenant is admitted while the low end of its R is below R. Guarantee: the longest time with demand for \
            which a tenant is admitted and on average is measured to keep less than R - 0.05 with its own cache. A \
            quick run has one mix on one disk.",
    paper: "Argon decides once, from a trace.",
    run,
};

/// When the loads of the mixes change.
const CHANGE_NS: Nanos = 320 * SECOND;
/// Between two snapshots.
const LOOK_NS: Nanos = SECOND;
/// By how much the guaranteed figure may be off.
const OFF: f64 = 0.05;
/// At the end, truth and decision are compared over so many bins of throughput.
const END_BINS: usize = (120 * SECOND / BIN_NS) as usize;

/// A tenant at one moment.
#[derive(Clone, Copy)]
struct Moment {
    now: Nanos,
    admitted: bool,
    /// R by the low end of the estimate.
    low: Option<f64>,
    progress: Option<Progress>,
    /// Time with demand.
    wanting_ns: Nanos,
}

fn moments(run: &Run, at: usize) -> Vec<Moment> {
    let snapshots = [&run.before].into_iter().chain(&run.between).chain([&run.after]);
    let moment = |snapshot: &Snapshot| {
        let tenant = &snapshot.tenants[at];
        Moment {
            now: snapshot.now,
            admitted: tenant.sizing.is_some_and(|sizing| sizing.decision == Decision::Admitted),
            low: tenant.sizing.and_then(|sizing| sizing.low_permille).map(|permille| f64::from(permille) / 1000.0),
            progress: tenant.progress,
            wanting_ns: tenant.wanting_ns,
        }
    };
    snapshots.map(moment).collect()
}

/// The stretches of consecutive moments for which `is` holds.
fn stretches(moments: &[Moment], is: impl Fn(&Moment) -> bool) -> Vec<&[Moment]> {
    moments.chunk_by(|before, after| is(before) == is(after)).filter(|stretch| is(&stretch[0])).collect()
}

/// The longest time for which the tenant is admitted with a low end below `r`, seconds: a stretch of one moment counts
/// as the time between two.
fn with_low_end_below(moments: &[Moment], r: f64) -> f64 {
    let is = |moment: &Moment| moment.admitted && moment.low.is_some_and(|low| low < r);
    let times = stretches(moments, is).into_iter().map(|stretch| stretch.len() as f64 * LOOK_NS as f64 / 1e9);
    times.fold(0.0, f64::max)
}

/// The longest time with demand for which the tenant is admitted throughout and keeps less than `least` with its own
/// cache, on average over that time, seconds.
fn with_less_than(moments: &[Moment], share: f64, least: f64) -> f64 {
    let mut longest = 0;
    for stretch in stretches(moments, |moment| moment.admitted) {
        for (from, first) in stretch.iter().enumerate() {
            let is_less = |last: &&Moment| {
                let progress = last.progress.zip(first.progress);
                let kept = progress.and_then(|(last, first)| last.own_cache_insulation_since(&first, share));
                kept.is_some_and(|kept| kept < least)
            };
            // Of several stretches from here, the longest one.
            let last = stretch[from + 1..].iter().rev().find(is_less);
            longest = last.map_or(longest, |last| longest.max(last.wanting_ns - first.wanting_ns));
        }
    }
    longest as f64 / 1e9
}

/// What is found for one tenant of one run.
struct Found {
    low_end_s: f64,
    less_s: f64,
    /// Throughput together / (share x alone), from the change on and over the last bins.
    kept: f64,
    kept_at_end: f64,
    r: f64,
    before: bool,
    at_end: bool,
    /// From the change, seconds: until the low end is below R, until it is not admitted.
    falls_s: Option<f64>,
    withdrawn_s: Option<f64>,
}

fn found(alone: &Run, together: &Run, at: usize, share: f64, r: f64) -> Found {
    let all = moments(together, at);
    let after = |moment: &&Moment| moment.now > CHANGE_NS;
    let since = |moment: &Moment| (moment.now - CHANGE_NS) as f64 / 1e9;
    let bins = together.rates[at].bins.len().min(alone.rates[0].bins.len());
    let kept = |from: usize| {
        let bytes = |run: &Run, at: usize| bytes_in(&run.rates[at], from..bins);
        bytes(together, at) / bytes(alone, 0) / share
    };
    Found {
        low_end_s: with_low_end_below(&all, r),
        less_s: with_less_than(&all, share, r - OFF),
        kept: kept((CHANGE_NS / BIN_NS) as usize),
        kept_at_end: kept(bins - END_BINS),
        r,
        before: all.iter().take_while(|moment| moment.now < CHANGE_NS).last().is_some_and(|moment| moment.admitted),
        at_end: all.last().is_some_and(|moment| moment.admitted),
        falls_s: all.iter().filter(after).find(|moment| moment.low.is_some_and(|low| low < r)).map(since),
        withdrawn_s: all.iter().filter(after).find(|moment| !moment.admitted).map(since),
    }
}

fn play(context: &Context, name: &str, text: &str, data: &mut Map<String, Value>) -> Result<Vec<Found>, String> {
    let fail = |error: anyhow::Error| format!("{name}: {error:#}");
    let mix = Mix::parse(text, "".as_ref()).map_err(fail)?;
    let r = f64::from(mix.insulation_permille) / 1000.0;
    let (count, mut all) = (mix.tenants.len(), Vec::new());
    for disk in &DISKS[..if context.quick { 1 } else { DISKS.len() }] {
        let mut scene = Scene::new(&mix, disk).map_err(fail)?;
        scene.look_every(LOOK_NS);
        for &seed in &context.seeds {
            let jobs: Vec<_> = (0..count).map(Job::Alone).chain([Job::Together]).collect();
            let runs = context.parallel(&jobs, |&job| scene.run(seed, job).map_err(fail));
            let runs = runs.into_iter().collect::<Result<Vec<_>, String>>()?;
            for (at, tenant) in mix.tenants.iter().enumerate() {
                let found = found(&runs[at], &runs[count], at, tenant.share(), r);
                let figures = json!({
                    "admitted_before": found.before, "admitted_at_end": found.at_end,
                    "decision": decision(runs[count].after.tenants[at].sizing),
                    "low_end_below_r_s": found.falls_s, "withdrawn_s": found.withdrawn_s,
                    "admitted_with_low_end_below_r_s": found.low_end_s, "admitted_with_less_s": found.less_s,
                    "kept_from_the_change": found.kept, "kept_at_end": found.kept_at_end,
                });
                data.insert(format!("{name}, {}, {}, seed {seed}", short(disk), tenant.name), figures);
                all.push(found);
            }
        }
    }
    Ok(all)
}

fn run(context: &Context) -> Result<Outcome, String> {
    let (mut claims, mut data, mut groups, mut all) = (Vec::new(), Map::new(), Vec::new(), Vec::new());
    for (name, text) in MIXES.iter().filter(|(name, _)| !context.quick || *name == QUICK) {
        let found = play(context, name, text, &mut data)?;
        let longest = |of: fn(&Found) -> f64| most(found.iter().map(of));
        let times = [longest(|found| found.low_end_s), longest(|found| found.less_s)];
        for (what, time) in
            ["the low end is below R", "it keeps less than R - 0.05 with its own cache"].iter().zip(times)
        {
            claims.push(Claim::new(format!("{name}: admitted while {what}, seconds"), time, Bound::AtMost(60.0)));
        }
        groups.push(Group { label: (*name).into(), bars: times.into() });
        all.extend(found);
    }
    let part = |of: &dyn Fn(&&Found) -> bool, among: &dyn Fn(&&Found) -> bool| {
        all.iter().filter(among).filter(of).count() as f64 / all.iter().filter(among).count() as f64
    };
    let before = part(&|found| found.before, &|_| true);
    let keep = part(&|found| found.kept_at_end >= found.r, &|found| found.at_end);
    claims.push(Claim::new("tenants that are admitted before the change", before, Bound::AtLeast(0.5)));
    claims.push(Claim::new("tenants admitted at the end that keep R", keep, Bound::AtLeast(0.95)));
    let series = ["low end below R", "less than R - 0.05 with its own cache"];
    let svg = bars("seconds admitted", &series, &groups, Some((60.0, "asked")))?;
    let caption = "The longest time for which a tenant is called admitted that does not keep R, on all disks.".into();
    let pictures = vec![Picture { name: "seconds".into(), caption, svg }];
    Ok(Outcome { claims, data: Value::Object(data), pictures, ..Outcome::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tenant with half a disk that always wants it: each second it is admitted or not, has this low end, and this
    /// much standalone-equivalent time with its own cache.
    fn tenant(seconds: &[(bool, f64, f64)]) -> Vec<Moment> {
        let mut own_ns = SECOND;
        let moment = |(at, &(admitted, low, own)): (usize, &(bool, f64, f64))| {
            own_ns += (own * SECOND as f64) as Nanos;
            let now = at as Nanos * SECOND;
            let progress = Progress {
                standalone_ns: own_ns,
                own_cache_ns: own_ns,
                uncertain_ns: 0,
                elapsed_ns: now,
                requests: at as u64,
                is_certain: true,
            };
            Moment { now, admitted, low: Some(low), progress: Some(progress), wanting_ns: now / 2 }
        };
        seconds.iter().enumerate().map(moment).collect()
    }

    #[test]
    fn a_wrong_admission_is_timed_until_it_is_withdrawn() {
        let mut seconds = vec![(true, 0.95, 0.46); 10];
        seconds.extend([(true, 0.85, 0.3); 6]);
        seconds.extend([(false, 0.85, 0.3); 20]);
        let all = tenant(&seconds);
        assert_eq!(with_low_end_below(&all, 0.9), 6.0);
        // All 15 s: 9 s x 0.46 + 6 s x 0.3 are less than 15 s x 0.85 / 2; half of the time has demand.
        assert_eq!(with_less_than(&all, 0.5, 0.85), 7.5);
        assert_eq!(with_less_than(&tenant(&[(true, 0.95, 0.46); 30]), 0.5, 0.85), 0.0);
    }

    #[test]
    fn each_mix_has_a_load_that_changes() {
        for (name, text) in MIXES {
            let mix = Mix::parse(text, "".as_ref()).unwrap_or_else(|error| panic!("{name}: {error:#}"));
            let starts = mix.tenants.iter().filter_map(|tenant| match &tenant.load {
                crate::experiment::loads::Load::Streams(streams) => streams.iter().map(|stream| stream.start_ns).max(),
                _ => None,
            });
            assert_eq!(starts.max(), Some(CHANGE_NS), "{name}");
        }
    }
}
