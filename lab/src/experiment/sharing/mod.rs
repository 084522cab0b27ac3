//! What sharing a disk costs without insulation: the *before* pictures (Argon, section 5.1, micro-benchmarks).
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
use super::{Context, Picture};

/// Disks with heads, then those without.
pub const HEADS: &[&str] = &["cheetah-15k5", "barracuda-st32171w", "barracuda-7200.9", "nearline"];
/// All presets.
pub const DISKS: &[&str] =
    &["cheetah-15k5", "barracuda-st32171w", "barracuda-7200.9", "nearline", "flash", "throttled"];

/// Two loads on one disk.
pub struct Pair<'a> {
    pub names: [&'a str; 2],
    pub loads: [Stream; 2],
}

/// What each of a pair got, for every seed: alone and together.
pub struct Shared {
    pub alone: [Vec<Rate>; 2],
    pub together: [Vec<Rate>; 2],
}

impl Shared {
    /// What is left of load `which` when the other is there: mean over the seeds of together / alone, in bytes.
    pub fn kept(&self, which: usize) -> f64 {
        mean(self.alone[which].iter().zip(&self.together[which]).map(|(alone, with)| with.mb_s() / alone.mb_s()))
    }

    pub fn json(&self, names: &[&str; 2]) -> Value {
        let rates = |of: &[Rate]| of.iter().map(Rate::json).collect::<Vec<_>>();
        let one = |i: usize| json!({ "name": names[i], "alone": rates(&self.alone[i]), "together": rates(&self.together[i]), "kept": self.kept(i) });
        json!([one(0), one(1)])
    }
}

/// Runs a pair on each of `stands` with every seed of the context.
pub fn share(context: &Context, stands: &[Stand], pair: &Pair<'_>) -> Result<Vec<Shared>, String> {
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
    let mut of = |which: usize| -> Vec<Vec<Rate>> {
        let _ = which;
        (&mut results).take(context.seeds.len()).collect()
    };
    let column = |runs: &[Vec<Rate>], which: usize| runs.iter().map(|rates| rates[which].clone()).collect::<Vec<_>>();
    Ok(stands
        .iter()
        .map(|_| {
            let (one, two, both) = (of(0), of(1), of(2));
            Shared { alone: [column(&one, 0), column(&two, 1)], together: [column(&both, 0), column(&both, 1)] }
        })
        .collect())
}

/// Bars: what each load keeps of its standalone throughput, disk by disk, against the half that is its due.
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
