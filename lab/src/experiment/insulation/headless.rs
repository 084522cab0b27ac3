//! Devices without heads: what each tenant keeps of a third, where slices are not needed.
//!
//! The costs of requests are measured as users measure them, by the probe on the same device.

use engine::disk::policy::Kind;
use engine::units::SECOND;
use serde_json::{Value, json};
use sim::load::{Pace, Place, Stream};

use super::super::chart::{self, Group};
use super::super::stand::{Rate, Run, Stand, random};
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::{Actor, live, surely};

/// Flash, and a volume limited by a token bucket.
const DISKS: &[&str] = &["flash", "throttled"];
const R: f64 = 0.9;
const PAPER: &str = "BFQ's documentation: no solution gives both strong guarantees and optimal throughput on devices \
                     with internal queueing. Asked here: each keeps 0.9 of its third, and together they lose no more \
                     than a tenth.";

pub const READERS: Experiment = Experiment {
    name: "headless-readers",
    question: "What do a latency-bound client, a backlogged one and a stream keep of a third each, without heads?",
    setup: "Three volumes of an eighth of the disk each: 4 KiB uniformly at random, 1 and 64 at a time, and 1 MiB one \
            after the other, 4 at a time; 64 MiB of memory; R = 0.9. 2 s to warm up, 10 s counted.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let deep = Actor::new("64 outstanding", (1, 3), random(64));
        insulate(context, &[latency_bound(), deep, stream()])
    },
};

pub const WRITER: Experiment = Experiment {
    name: "headless-writer",
    question: "What do they keep when the backlogged one writes?",
    setup: "As `headless-readers`, the one with 64 outstanding writes.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let load = Stream { read_ppm: 0, ..random(64) };
        insulate(context, &[latency_bound(), Actor::new("64 writes outstanding", (1, 3), load), stream()])
    },
};

pub const STREAM_WRITER: Experiment = Experiment {
    name: "headless-stream-writer",
    question: "What do they keep when the stream writes?",
    setup: "As `headless-readers`, the stream writes.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let deep = Actor::new("64 outstanding", (1, 3), random(64));
        let load = Stream { read_ppm: 0, ..long_reads() };
        insulate(context, &[latency_bound(), deep, Actor::new("1 MiB writes", (1, 3), load)])
    },
};

fn latency_bound() -> Actor {
    Actor::new("1 outstanding", (1, 3), random(1))
}

fn stream() -> Actor {
    Actor::new("1 MiB stream", (1, 3), long_reads())
}

fn long_reads() -> Stream {
    let pace = Pace::Closed { depth: 4, think_ns: 0 };
    let sizes = vec![(1, 1 << 20)];
    Stream { place: Place::Sequential, area_bytes: u64::MAX, sizes, pace, ..Stream::default() }
}

/// The stand with the results of a probe.
fn stand(disk: &'static str, quick: bool) -> Result<Stand, String> {
    let mut stand = Stand::new(disk, quick).probed()?;
    if stand.needs_slices {
        return Err(format!("{disk}: its profile says that it needs slices"));
    }
    (stand.policy, stand.insulation_permille) = (Kind::Insulated, (R * 1000.0) as u32);
    // The content of the drive's own buffer has to settle.
    stand.warm_up_ns = 2 * SECOND;
    Ok(stand)
}

/// The runs of one seed: each tenant alone, all together insulated, and all together under `none`.
struct Seed {
    alone: Vec<Rate>,
    together: Run,
    bare: Run,
}

impl Seed {
    fn kept(&self, at: usize) -> f64 {
        self.together.rates[at].mb_s() / self.alone[at].mb_s()
    }

    fn p99_ratio(&self, at: usize, of: &Run) -> f64 {
        of.rates[at].latency_ms()[1] / self.alone[at].latency_ms()[1]
    }
}

fn play(context: &Context, stand: &Stand, actors: &[Actor]) -> Result<Vec<Seed>, String> {
    let count = actors.len();
    let jobs: Vec<_> = context.seeds.iter().flat_map(|&seed| (0..count + 2).map(move |job| (seed, job))).collect();
    let runs = context.parallel(&jobs, |&(seed, job)| {
        let is_there = |at: usize| job >= count || job == at;
        let cast: Vec<_> = actors.iter().enumerate().map(|(at, actor)| is_there(at).then(|| actor.cast())).collect();
        let policy = if job > count { Kind::None } else { Kind::Insulated };
        Stand { policy, ..stand.clone() }.play(&cast, false, seed)
    });
    let mut runs = runs.into_iter();
    let mut next = || runs.next().expect("a run for each job");
    let seed = |_| -> Result<Seed, String> {
        let alone = (0..count).map(|_| next().map(|mut run| run.rates.remove(0))).collect::<Result<_, _>>()?;
        Ok(Seed { alone, together: next()?, bare: next()? })
    };
    context.seeds.iter().map(seed).collect()
}

fn insulate(context: &Context, actors: &[Actor]) -> Result<Outcome, String> {
    let (mut claims, mut data, mut groups) = (Vec::new(), serde_json::Map::new(), Vec::new());
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    for disk in DISKS {
        let stand = stand(disk, context.quick)?;
        let seeds = play(context, &stand, actors)?;
        let of = |what: &dyn Fn(&Seed) -> f64| seeds.iter().map(what).collect::<Vec<f64>>();
        let mut claim =
            |what: String, value: f64, bound| claims.push(Claim::new(format!("{disk}, {what}"), value, bound));
        let mut total = vec![0.0; seeds.len()];
        for (at, actor) in actors.iter().enumerate() {
            let (share, name) = (actor.share(), &actor.name);
            let kept = of(&|seed| seed.kept(at));
            let bare = of(&|seed| seed.bare.rates[at].mb_s() / seed.alone[at].mb_s());
            total.iter_mut().zip(&kept).for_each(|(total, kept)| *total += kept);
            claim(format!("{name}: of standalone (95 % sure)"), surely(&kept), Bound::AtLeast(R * share));
            let lives = of(&|seed| live(&seed.together, at, share).0);
            let off = lives.iter().zip(&kept).map(|(live, kept)| (live - kept / share).abs()).fold(0.0, f64::max);
            claim(format!("{name}: live insulation is off by"), off, Bound::AtMost(0.05));
            if at == 0 {
                let ratio = of(&|seed| seed.p99_ratio(at, &seed.together));
                claim(format!("{name}: 99th percentile against alone"), mean(&ratio), Bound::AtMost(5.0));
            }
            let rates = |run: &dyn Fn(&Seed) -> Rate| seeds.iter().map(|seed| run(seed).json()).collect::<Vec<_>>();
            data.insert(
                format!("{disk}, {name}"),
                json!({
                    "share": share, "kept": kept, "none": bare, "live": lives,
                    "p99_ratio": of(&|seed| seed.p99_ratio(at, &seed.together)),
                    "p99_ratio_none": of(&|seed| seed.p99_ratio(at, &seed.bare)),
                    "plan": format!("{:?}", seeds[0].together.after.tenants[at].plan),
                    "alone": rates(&|seed| seed.alone[at].clone()),
                    "insulated": rates(&|seed| seed.together.rates[at].clone()),
                    "none_rates": rates(&|seed| seed.bare.rates[at].clone()),
                }),
            );
            groups.push(Group { label: format!("{disk}: {name}"), bars: vec![mean(&kept), mean(&bare)] });
        }
        claim("sum of the parts of standalone".into(), mean(&total), Bound::AtLeast(0.9));
    }
    let svg = chart::bars("part of standalone", &["insulated", "none"], &groups, Some((R / 3.0, "R / 3")))?;
    let caption = "throughput together / throughput alone";
    let pictures = vec![Picture { name: "kept".into(), caption: caption.into(), svg }];
    Ok(Outcome { claims, data: Value::Object(data), pictures, ..Outcome::default() })
}
