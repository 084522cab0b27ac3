//! The effect of prefetch sizes and slice lengths, compared with the server's own choice.

use engine::disk::policy::Kind;
use engine::units::{MILLISECOND, SECOND};
use serde_json::{Map, Value, json};

use super::super::lines::{Line, lines};
use super::super::stand::{Stand, random};
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::judge::{least, mean};
use super::play::{kept, stands};
use super::{Actor, Mix, cached};

const R: f64 = 0.9;
/// More seeds do not change the picture.
const SEEDS_MAX: usize = 3;

pub const PREFETCH: Experiment = Experiment {
    name: "sweep-prefetch",
    question: "How much has to be read ahead of two streams that share a disk without slices?",
    setup: "Two volumes, an eighth of the disk each, at its outer and its inner edge; reads of 64 KiB one after the \
            other, one at a time; 256 MiB of memory in two partitions; policy none and one request at a time in the \
            drive, so that only prefetching amortises. 32 KiB to 16 MiB, and what the server chooses: as much as \
            takes R / (1 - R) of a switch to transfer, by a probe's findings. 5 s to warm up, 30 s counted.",
    paper: "Argon, section 5.4: throughput rises with the prefetch size until R of it is reached where the formula \
            says, and more than that neither helps nor harms much.",
    run: prefetch,
};

pub const SLICES: Experiment = Experiment {
    name: "sweep-slices",
    question: "How long have slices to be for a stream and a random reader?",
    setup: "Two volumes, an eighth of the disk each, at its outer and its inner edge; reads of 64 KiB one after the \
            other, one at a time, beside 4 KiB reads, 4 at a time; shares 1/2, 64 MiB of memory. Slices of 10 ms to \
            1.28 s, and what the server chooses for R = 0.9. 5 s to warm up, 30 s counted.",
    paper: "Argon, section 5.4: throughput rises with the slice and is flat from about 140 ms on, which is what it \
            chooses for R = 0.9; longer slices only make response times longer.",
    run: slices,
};

fn pair(load: sim::load::Stream, name: &str) -> Mix {
    let actors = vec![Actor::new("stream", (1, 2), cached::scan()), Actor::new(name, (1, 2), load)];
    Mix { counted_ns: 30 * SECOND, ..Mix::uncached(actors) }
}

/// What both tenants of a pair keep on each stand, as means over seeds.
fn both(context: &Context, mix: &Mix, alone: &Stand, stands: &[Stand]) -> Result<Vec<[f64; 2]>, String> {
    let seeds = &context.seeds[..context.seeds.len().min(SEEDS_MAX)];
    let cast = |only: Option<usize>| {
        let is_there = |at: usize| only.is_none_or(|only| at == only);
        mix.actors.iter().enumerate().map(|(at, actor)| is_there(at).then(|| actor.cast())).collect::<Vec<_>>()
    };
    let mut jobs = Vec::new();
    for &seed in seeds {
        jobs.extend([0, 1].map(|only| (alone, Some(only), seed)));
        jobs.extend(stands.iter().map(|stand| (stand, None, seed)));
    }
    let runs = context.parallel(&jobs, |&(stand, only, seed)| stand.play(&cast(only), false, seed));
    let runs = runs.into_iter().collect::<Result<Vec<_>, _>>()?;
    let of_seed = runs.chunks(2 + stands.len()).collect::<Vec<_>>();
    let keeps = |run: usize, at: usize| {
        mean(&of_seed.iter().map(|runs| kept(&mix.actors[at], &runs[at], &runs[2 + run], at)).collect::<Vec<_>>())
    };
    Ok((0..stands.len()).map(|run| [0, 1].map(|at| keeps(run, at))).collect())
}

fn prefetch(context: &Context) -> Result<Outcome, String> {
    let mix = Mix { memory: 256 << 20, ..pair(cached::scan(), "inner stream") };
    let sizes: Vec<u64> = (15..=24).map(|power| 1 << power).collect();
    let (mut found, mut claims, mut data) = (Vec::new(), Vec::new(), Map::new());
    for stand in stands(context, &mix)? {
        let own = stand.settings().prefetch_bytes();
        let with = |bytes: &u64| Stand { policy: Kind::None, device_depth: 1, prefetch: Some(*bytes), ..stand.clone() };
        let swept: Vec<_> = sizes.iter().chain([&own]).map(with).collect();
        let efficiency: Vec<_> =
            both(context, &mix, &stand, &swept)?.iter().map(|kept| (kept[0] + kept[1]) / 2.0).collect();
        let (at_own, swept) = efficiency.split_last().expect("one more than sizes");
        let points: Vec<_> = sizes.iter().map(|&bytes| bytes as f64 / 1024.0).zip(swept.iter().copied()).collect();
        let name = |what: &str| format!("{}, {what}", stand.disk);
        claims.push(Claim::new(name("the server's choice: efficiency"), *at_own, Bound::AtLeast(R)));
        claims.push(Claim::new(name("16 MiB: more than that"), swept[sizes.len() - 1] - at_own, Bound::AtMost(0.08)));
        claims.push(Claim::new(name("128 KiB, as is common: efficiency"), swept[2], Bound::AtMost(0.5)));
        data.insert(stand.disk.clone(), json!({ "kib": points, "chosen_bytes": own, "chosen": at_own }));
        found.push(Line { name: stand.disk.clone(), points, chosen: Some((own as f64 / 1024.0, *at_own)) });
    }
    let svg = lines(("read ahead at once, KiB", "efficiency of the disk"), &found, (R, "R"))?;
    let caption = "Two streams without slices: throughput together / alone, on average, by how much is read ahead of \
                   each at once. Large: what the server chooses.";
    let pictures = vec![Picture { name: "efficiency".into(), caption: caption.into(), svg }];
    Ok(Outcome { claims, data: Value::Object(data), pictures, ..Outcome::default() })
}

fn slices(context: &Context) -> Result<Outcome, String> {
    let mix = pair(random(4), "random reads");
    let lengths: Vec<u64> = (0..8).map(|doubled| (10 << doubled) * MILLISECOND).collect();
    let (mut found, mut claims, mut data) = (Vec::new(), Vec::new(), Map::new());
    for stand in stands(context, &mix)? {
        let prefetch = Some(stand.settings().prefetch_bytes());
        // With R near 1, every tenant needs more than the longest round, and so gets the swept length.
        let with =
            |length: &u64| Stand { insulation_permille: 999, round_max_ns: 2 * length, prefetch, ..stand.clone() };
        let swept: Vec<_> = lengths.iter().map(with).chain([stand.clone()]).collect();
        let kept = both(context, &mix, &stand, &swept)?;
        let worse: Vec<_> = kept.iter().map(|kept| least(*kept)).collect();
        let (at_own, worse) = worse.split_last().expect("one more than lengths");
        let own_ms = own_slice_ms(&stand, &mix, context.seeds[0])?;
        let points: Vec<_> = lengths.iter().map(|&length| length as f64 / 1e6).zip(worse.iter().copied()).collect();
        let knee_ms = points.iter().find(|point| point.1 >= R).map_or(f64::NAN, |point| point.0);
        let name = |what: &str| format!("{}, {what}", stand.disk);
        claims.push(Claim::new(name("the server's choice: insulation of the worse-off"), *at_own, Bound::AtLeast(R)));
        let what = "the server's slices / the shortest swept ones that keep R";
        claims.push(Claim::new(name(what), own_ms / knee_ms, Bound::AtMost(2.0)));
        data.insert(stand.disk.clone(), json!({ "ms": points, "chosen_ms": own_ms, "chosen": at_own, "kept": kept }));
        found.push(Line { name: stand.disk.clone(), points, chosen: Some((own_ms, *at_own)) });
    }
    let svg = lines(("slice, ms", "insulation of the worse-off"), &found, (R, "R"))?;
    let caption = "A stream beside random reads: insulation of whoever has less of it, by the length of slices. \
                   Large: what the server chooses.";
    let pictures = vec![Picture { name: "insulation".into(), caption: caption.into(), svg }];
    Ok(Outcome { claims, data: Value::Object(data), pictures, ..Outcome::default() })
}

/// The slices of the server at the end of a run, ms.
fn own_slice_ms(stand: &Stand, mix: &Mix, seed: u64) -> Result<f64, String> {
    let cast: Vec<_> = mix.actors.iter().map(|actor| Some(actor.cast())).collect();
    let run = stand.play(&cast, false, seed)?;
    Ok(run.after.tenants[0].plan.unwrap_or_default().slice_ns as f64 / 1e6)
}
