//! A tenant whose load changes, and the effect on its neighbours.

use engine::control::CacheSpec;
use engine::units::Nanos;
use serde_json::{Map, Value, json};
use sim::load::{Pace, Place, Stream};

use super::super::chart::{self, Group};
use super::super::loads::{Load, Mixture};
use super::super::stand::{BIN_NS, Run, Stand, random};
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::judge::{WINDOW_SLACK, good_windows, least, mean, most};
use super::partitions::partitions;
use super::play::{bytes_in, kept, stands, windows};
use super::{Actor, Mix, cached, short};

pub const EXPERIMENT: Experiment = Experiment {
    name: "insulated-change",
    question: "What do two tenants notice of a third one that turns from random reads to a stream, from idle to busy, \
               or to a working set twice as large?",
    setup: "Three volumes of an eighth of the disk, shares 1/3; 128 MiB of memory, partitions by exact curves. Two do \
            the same throughout: reads of 64 KiB one after the other, and 4 KiB reads, 4 at a time, half of them \
            within 4 MiB. The third one changes in the middle: 8 at a time, 4 KiB anywhere to 64 KiB in order; \
            nothing to 16 at a time anywhere; 4 at a time, half within 4 MiB to half within 8 MiB. 10 s to warm up, \
            60 s counted. The step: throughput in ten rounds after the change (the mean of those that begin within a \
            round from it) against that of the same rounds of a run with the same seed in which the third one was so \
            from the beginning.",
    paper: "Argon, section 1: a workload's performance is to depend on its own behaviour only.",
    run,
};

const R: f64 = 0.9;
/// The tenants that do not change.
const NEIGHBOURS: [usize; 2] = [0, 2];

fn within(hot_bytes: u64) -> Mixture {
    let hot = Stream { area_bytes: hot_bytes, ..Stream::default() };
    let cold = Stream { area_start: 64 << 20, area_bytes: u64::MAX, ..Stream::default() };
    let pace = Pace::Closed { depth: 4, think_ns: 0 };
    Mixture { parts: vec![(1, hot), (1, cold)], warm_bytes: hot_bytes, updates: false, pace }
}

fn only(stream: Stream) -> Mixture {
    let pace = Pace::Closed { depth: 8, think_ns: 0 };
    Mixture { parts: vec![(1, stream)], warm_bytes: 0, updates: false, pace }
}

/// The changes: name, the load with the change, and the load after it.
fn changes(at_ns: Nanos) -> Vec<(&'static str, Load, Load)> {
    let place = Place::Sequential;
    let mixtures = [
        ("random to sequential", only(random(8)), only(Stream { place, ..cached::scan() })),
        ("working set doubled", within(4 << 20), within(8 << 20)),
    ];
    let mut changes: Vec<_> = mixtures
        .map(|(name, before, after)| (name, Load::Change(before, at_ns, after.clone()), Load::Mixture(after)))
        .into();
    let busy = Stream { start_ns: at_ns, ..random(16) };
    changes.push(("idle to busy", busy.into(), random(16).into()));
    changes
}

/// A mix with this load as its third tenant.
fn mix(load: &Load) -> Mix {
    let actors = vec![
        Actor::new("stream", (1, 3), cached::scan()),
        Actor::new("the one that changes", (1, 3), load.clone()),
        Actor::new("half absorbed", (1, 3), Load::Mixture(within(4 << 20))),
    ];
    Mix::cached(128 << 20, actors)
}

/// The runs of one seed: the neighbours alone, with the change, and with the new load from the beginning.
struct Paired {
    alone: Vec<Run>,
    changed: Run,
    after: Run,
}

impl Paired {
    /// The change of a neighbour's throughput in the ten rounds after the change, compared with the run without a
    /// change, as a fraction. It is the mean over windows that begin within a round after the change: a window of ten
    /// rounds contains nine, ten or eleven slices of a tenant, depending on where it begins, so a single window would
    /// show a step of a tenth.
    fn step(&self, actor: &Actor, at: usize, change_bin: usize) -> f64 {
        let all = windows(actor, &self.alone[usize::from(at > 0)], &self.changed, at, 0.0);
        let width = all.first().map_or(1, |(window, _)| window.len());
        let begins = change_bin..change_bin + width.div_ceil(10);
        let bytes = |run: &Run| begins.clone().map(|from| bytes_in(&run.rates[at], from..from + width)).sum::<f64>();
        bytes(&self.changed) / bytes(&self.after) - 1.0
    }
}

fn run(context: &Context) -> Result<Outcome, String> {
    let (mut claims, mut data, mut groups) = (Vec::new(), Map::new(), Vec::new());
    let stands = stands(context, &mix(&random(16).into()))?;
    // The curves of the mixes are almost the same on every disk.
    let volume_bytes = stands[0].place(0, 3)?.1;
    let sizes = context.parallel(&changes(0), |(_, _, after)| {
        let after = mix(after);
        let loads: Vec<_> = after.actors.iter().map(|actor| &actor.load).collect();
        Ok::<_, String>(partitions(&loads, volume_bytes, after.memory)?.0)
    });
    let sizes = sizes.into_iter().collect::<Result<Vec<_>, _>>()?;
    for stand in &stands {
        let change_ns = stand.warm_up_ns + stand.counted_ns / 2;
        let change_bin = (change_ns / BIN_NS) as usize;
        for ((name, changing, after), sizes) in changes(change_ns).into_iter().zip(&sizes) {
            let (changed, after) = (mix(&changing), mix(&after));
            let paired = play(context, stand, &changed, &after, sizes)?;
            let of = |what: &dyn Fn(&Paired, &Actor, usize) -> f64| {
                NEIGHBOURS.map(|at| mean(&paired.iter().map(|p| what(p, &changed.actors[at], at)).collect::<Vec<_>>()))
            };
            let good = of(&|paired, actor, at| {
                good_windows(actor, &paired.alone[usize::from(at > 0)], &paired.changed, at, R - WINDOW_SLACK)
            });
            let steps = of(&|paired, actor, at| paired.step(actor, at, change_bin));
            let keeps = of(&|paired, actor, at| kept(actor, &paired.alone[usize::from(at > 0)], &paired.changed, at));
            let title = |what: &str| format!("{}, {name}: {what}", stand.disk);
            claims.push(Claim::new(title("windows that keep R - 0.08"), least(good), Bound::AtLeast(0.99)));
            claims.push(Claim::new(title("neighbours' step"), most(steps.map(f64::abs)), Bound::AtMost(0.05)));
            data.insert(title("figures"), json!({ "windows": good, "steps": steps, "kept": keeps }));
            let label = format!("{}: {name}", short(&stand.disk));
            groups.push(Group { label, bars: steps.map(|step| 1.0 + step).into() });
        }
    }
    let series = ["stream", "half absorbed"];
    let svg = chart::bars("after the change / as if always so", &series, &groups, Some((1.0, "no step")))?;
    let caption = "What neighbours get in the ten rounds after a change, against a run in which there was none";
    let pictures = vec![Picture { name: "steps".into(), caption: caption.into(), svg }];
    Ok(Outcome { claims, data: Value::Object(data), pictures, ..Outcome::default() })
}

fn play(context: &Context, stand: &Stand, changed: &Mix, after: &Mix, sizes: &[u64]) -> Result<Vec<Paired>, String> {
    let jobs: Vec<_> = context.seeds.iter().flat_map(|&seed| (0..4).map(move |job| (seed, job))).collect();
    let runs = context.parallel(&jobs, |&(seed, job)| {
        let mix = if job == 3 { after } else { changed };
        let cast = mix.actors.iter().zip(sizes).enumerate().map(|(at, (actor, &bytes))| {
            let (mut spec, load) = actor.cast();
            match job {
                0 | 1 => (at == NEIGHBOURS[job]).then_some((spec, load)),
                _ => {
                    spec.cache = CacheSpec::Asked(bytes);
                    Some((spec, load))
                }
            }
        });
        stand.play(&cast.collect::<Vec<_>>(), false, seed)
    });
    let mut runs = runs.into_iter();
    let mut next = || runs.next().expect("a run for each job");
    let paired = |_| -> Result<Paired, String> {
        Ok(Paired { alone: vec![next()?, next()?], changed: next()?, after: next()? })
    };
    context.seeds.iter().map(paired).collect()
}
