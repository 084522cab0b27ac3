//! Sets in which every second workload has no guarantee: what it keeps of its share.

use serde_json::json;

use super::super::{Bound, Claim, Context, Experiment, Outcome};
use super::play::{Cache, R};
use super::policies;
use super::{Cast, Extent, rows};

/// Half with guarantees, half without.
pub const EXPERIMENT: Experiment = Experiment {
    name: "guarantees-mixed",
    question: "What do workloads without a guarantee keep beside workloads that have one?",
    setup: "As `guarantees`, in sets of 4, 7 and 10, at most ten of each; every second workload has a share only. Its \
            insulation is the time that its work takes alone over its share of the time that it took.",
    paper: "Argon (FAST 2007): at least R of the share's part of standalone throughput. The guarantees paper has no \
            such workloads.",
    run,
};

/// Sizes of sets, in a quick run the first only.
const SIZES: [usize; 3] = [4, 7, 10];

fn run(context: &Context) -> Result<Outcome, String> {
    let (count, sets_most) = if context.quick { (1, 1) } else { (SIZES.len(), 10) };
    let extent = Extent { sizes: SIZES[..count].into(), sets_most, ..Extent::new(context.quick) };
    let cast = Cast::new(context, Cache::Smallest, extent.dedicated_ns())?;
    let rows = rows(context, &extent, &cast, &policies::ALL[..1], true)?;
    let (mut claims, mut data) = (Vec::new(), Vec::new());
    for row in &rows {
        let members = row.shared.iter().flat_map(|shared| shared.insulation.iter().zip(&shared.counts).enumerate());
        let (with, without): (Vec<_>, Vec<_>) = members.partition(|(member, _)| member.is_multiple_of(2));
        let insulation: Vec<_> = without.iter().map(|(_, (insulation, _))| **insulation).collect();
        let least = insulation.iter().fold(f64::INFINITY, |a, &b| if b >= a { a } else { b });
        let mean = insulation.iter().sum::<f64>() / insulation.len() as f64;
        let avoidable: u64 = with.iter().map(|(_, (_, counts))| counts.avoidable).sum();
        let windows: u64 = with.iter().map(|(_, (_, counts))| counts.windows).sum();
        let keep = R.min(cast.ground.effective_r(row.size));
        let name = |what: &str| format!("{} workloads: {what}", row.size);
        claims.push(Claim::new(name("insulation without a guarantee, the least"), least, Bound::AtLeast(keep)));
        let fraction = avoidable as f64 / windows as f64;
        claims.push(Claim::new(name("avoidable, of those with a guarantee"), fraction, Bound::AtMost(0.01)));
        data.push(json!({
            "workloads": row.size, "insulation_least": least, "insulation_mean": mean, "windows": windows,
            "avoidable": avoidable,
        }));
    }
    Ok(Outcome { claims, data: data.into(), ..Outcome::default() })
}
