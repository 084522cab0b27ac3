//! Mixes that request more than is possible: what the server reports, and whether it is true.

use engine::units::{MILLISECOND, SECOND};
use serde_json::{Map, Value, json};

use super::super::chart::{self, Group};
use super::super::stand::random;
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::judge::{least, mean, most};
use super::play::{kept, play};
use super::{Actor, KEEP_UNCACHED, Mix};

pub const EXPERIMENT: Experiment = Experiment {
    name: "insulated-beyond",
    question: "Eight deep queues and short rounds: which R does the server name, and which is kept?",
    setup: "Eight volumes of an eighth of the disk, shares 1/8: 4 KiB reads uniformly at random, 27 at a time each; \
            64 MiB of memory; rounds of 600 ms at most, so that slices are too short for any R that is asked for. 10 \
            s to warm up, 60 s counted. Named: the least that a tenant's plan says it keeps (`efficiency`).",
    paper: "Argon, section 3.4: slices that are longer keep more, and response times are what they cost.",
    run,
};

/// The maximum round.
const ROUND: u64 = 600 * MILLISECOND;

fn run(context: &Context) -> Result<Outcome, String> {
    let actors = (1..=8).map(|number| Actor::new(format!("reader {number}"), (1, 8), random(27))).collect();
    let mix = Mix { round_max_ns: ROUND, keep: KEEP_UNCACHED, warm_up_ns: 10 * SECOND, ..Mix::uncached(actors) };
    let (mut claims, mut data, mut groups) = (Vec::new(), Map::new(), Vec::new());
    for played in play(context, &mix)? {
        for (which, &keep) in mix.keep.iter().enumerate() {
            let keep = f64::from(keep) / 1000.0;
            let runs = || played.seeds.iter().map(|seed| (seed, &seed.insulated[which]));
            let plans = || runs().flat_map(|(_, run)| run.after.tenants.iter().map(|t| t.plan.unwrap_or_default()));
            let of_seed = |run: &super::Run| {
                let plans = run.after.tenants.iter().map(|tenant| tenant.plan.unwrap_or_default());
                least(plans.map(|plan| f64::from(plan.efficiency_permille) / 1000.0))
            };
            let named = mean(&runs().map(|(_, run)| of_seed(run)).collect::<Vec<_>>());
            let of_tenant = |at: usize| {
                let kept = runs().map(|(seed, run)| kept(&mix.actors[at], &seed.alone[at][which], run, at));
                mean(&kept.collect::<Vec<_>>())
            };
            let measured = least((0..mix.actors.len()).map(of_tenant));
            let needs = most(plans().map(|plan| plan.need_ns.unwrap_or(0) as f64 / plan.slice_ns as f64));
            let name = |what: &str| format!("{}, R = {keep}, {what}", played.disk);
            claims.push(Claim::new(name("slices that would be needed / slices"), needs, Bound::AtLeast(1.0)));
            claims.push(Claim::new(name("the R that is named"), named, Bound::AtMost(keep)));
            claims.push(Claim::new(name("and it is off by"), (named - measured).abs(), Bound::AtMost(0.03)));
            let figures = json!({ "named": named, "measured": measured, "needs": needs });
            data.insert(format!("{}, {keep}", played.disk), figures);
            if which == 0 {
                groups.push(Group { label: played.disk.into(), bars: vec![named, measured] });
            }
        }
    }
    let svg = chart::bars("R", &["named by the server", "kept by the worst-off"], &groups, Some((0.9, "asked for")))?;
    let caption = "What is named and what is kept where slices cannot be as long as R = 0.9 asks for";
    let pictures = vec![Picture { name: "named".into(), caption: caption.into(), svg }];
    Ok(Outcome { claims, data: Value::Object(data), pictures, ..Outcome::default() })
}
