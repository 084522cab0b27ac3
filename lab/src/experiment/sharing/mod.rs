//! The cost of sharing a disk without insulation: the *before* pictures (Argon, section 5.1, micro-benchmarks).
//!
//! Two loads, each on a volume of its own, alone and together, on every preset, under the policy `none`.

pub mod cache;
pub mod depths;
pub mod standalone;
pub mod stream_random;
pub mod streams;

use serde_json::{Value, json};
use sim::load::Stream;

use super::chart::{self, Group};
use super::stand::{Rate, Stand, mean};
use super::{Claim, Context, Outcome, Picture};

/// Disks with heads.
pub const HEADS: &[&str] = &["cheetah-15k5", "barracuda-st32171w", "barracuda-7200.9", "nearline"];
/// All presets.
pub const DISKS: &[&str] =
    &["cheetah-15k5", "barracuda-st32171w", "barracuda-7200.9", "nearline", "flash", "throttled"];

/// Two loads on one disk.
pub struct Pair<'a> {
    pub names: [&'a str; 2],
    pub loads: [Stream; 2],
}

/// The rates of both loads for every seed, alone and together.
pub struct Shared {
    pub alone: [Vec<Rate>; 2],
    pub together: [Vec<Rate>; 2],
}

impl Shared {
    /// What load `which` keeps under contention: the mean over the seeds of bytes together / bytes alone.
    pub fn kept(&self, which: usize) -> f64 {
        mean(self.alone[which].iter().zip(&self.together[which]).map(|(alone, with)| with.mb_s() / alone.mb_s()))
    }

    /// The disk's efficiency under contention: 1 if sharing loses nothing.
    pub fn efficiency(&self) -> f64 {
        self.kept(0) + self.kept(1)
    }

    /// The lower of the two loads' fractions; without losses it would be a half.
    pub fn worse(&self) -> f64 {
        self.kept(0).min(self.kept(1))
    }

    pub fn json(&self, names: &[&str; 2]) -> Value {
        let rates = |of: &[Rate]| of.iter().map(Rate::json).collect::<Vec<_>>();
        let one = |i: usize| {
            let (alone, together) = (rates(&self.alone[i]), rates(&self.together[i]));
            json!({ "name": names[i], "alone": alone, "together": together, "kept": self.kept(i) })
        };
        json!([one(0), one(1)])
    }
}

/// The prefetching of common systems, bytes: what Linux and FreeBSD read ahead by default (Argon, section 2).
pub const PREFETCH: u64 = 128 << 10;

/// A kind of disk and system for a pair.
pub struct Variant {
    /// Its name, which is part of the names of pictures and claims.
    pub name: &'static str,
    pub prefetch: u64,
    pub device_depth: u32,
}

/// The disks of the paper: one request at a time.
pub const ONE_AT_A_TIME: Variant = Variant { name: "no command queueing", prefetch: PREFETCH, device_depth: 1 };
/// Present drives.
pub const QUEUEING: Variant = Variant { name: "command queueing", prefetch: PREFETCH, device_depth: 128 };

impl Variant {
    /// The stands of all presets in this variant.
    pub fn stands(&self, quick: bool) -> Vec<Stand> {
        let (prefetch, device_depth) = (Some(self.prefetch), self.device_depth);
        DISKS.iter().map(|disk| Stand { prefetch, device_depth, ..Stand::new(*disk, quick) }).collect()
    }
}

/// The outcome of an experiment with pairs: runs each variant; `claim` makes a claim for a disk with heads.
pub fn compare(
    context: &Context,
    pair: &Pair<'_>,
    variants: &[Variant],
    adapt: impl Fn(Stand) -> Stand,
    claim: impl Fn(&Variant, &str, &Shared) -> Option<Claim>,
) -> Result<Outcome, String> {
    let (mut claims, mut pictures, mut data) = (Vec::new(), Vec::new(), serde_json::Map::new());
    for (number, variant) in variants.iter().enumerate() {
        let stands: Vec<_> = variant.stands(context.quick).into_iter().map(&adapt).collect();
        let shared = share(context, &stands, pair)?;
        for (disk, shared) in DISKS.iter().zip(&shared) {
            claims.extend(HEADS.contains(disk).then(|| claim(variant, disk, shared)).flatten());
            data.insert(format!("{disk}, {}", variant.name), shared.json(&pair.names));
        }
        pictures.push(picture(&number.to_string(), variant.name, DISKS, pair, &shared)?);
    }
    Ok(Outcome { claims, data: data.into(), pictures, ..Outcome::default() })
}

/// Runs a pair on each of `stands` with every seed of the context.
fn share(context: &Context, stands: &[Stand], pair: &Pair<'_>) -> Result<Vec<Shared>, String> {
    let [first, second] = &pair.loads;
    let casts =
        [[Some(first.clone()), None], [None, Some(second.clone())], [Some(first.clone()), Some(second.clone())]];
    let mut runs = Vec::new();
    for stand in stands {
        for cast in &casts {
            runs.extend(context.seeds.iter().map(|&seed| (stand, cast, seed)));
        }
    }
    let results = context.parallel(&runs, |(stand, cast, seed)| stand.run(&cast[..], *seed));
    let mut results = results.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter();
    let mut seeds = || -> Vec<Vec<Rate>> { (&mut results).take(context.seeds.len()).collect() };
    let column = |runs: &[Vec<Rate>], which: usize| runs.iter().map(|rates| rates[which].clone()).collect::<Vec<_>>();
    Ok(stands
        .iter()
        .map(|_| {
            let (one, two, both) = (seeds(), seeds(), seeds());
            Shared { alone: [column(&one, 0), column(&two, 1)], together: [column(&both, 0), column(&both, 1)] }
        })
        .collect())
}

/// A chart of what each load keeps of its standalone throughput, by disk, with a line at a half.
pub fn picture(
    name: &str,
    caption: &str,
    disks: &[&str],
    pair: &Pair<'_>,
    shared: &[Shared],
) -> Result<Picture, String> {
    let groups: Vec<Group> = disks
        .iter()
        .zip(shared)
        .map(|(disk, shared)| Group { label: (*disk).into(), bars: vec![shared.kept(0), shared.kept(1)] })
        .collect();
    let svg = chart::bars("throughput together / alone", &pair.names, &groups, Some((0.5, "an equal share")))?;
    Ok(Picture { name: name.into(), caption: caption.into(), svg })
}
