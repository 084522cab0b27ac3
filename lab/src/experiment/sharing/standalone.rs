//! The overhead of the server for a single load.

use sim::load::{Pace, Place, Stream};

use super::super::chart::{self, Group};
use super::super::stand::{Stand, mean, random};
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::DISKS;

pub const EXPERIMENT: Experiment = Experiment {
    name: "standalone",
    question: "How much of the bare disk does a lone client get through the server, uncached?",
    setup: "One volume, an eighth of the disk at its outer edge; 64 MiB of memory; policy none, nothing prefetched. \
            The same requests on the bare drive, without server, network or cache: random 4 KiB reads, 1, 4 and 27 at \
            a time, random 64 KiB reads, 4 at a time, sequential 128 KiB reads, 4 at a time. 2 s to warm up, 10 s \
            counted. On flash, 1 and 4 at a time are shown without a bound: the way to the server and back is a tenth \
            of what the drive takes.",
    paper: "Aerogel's own rule: slowing the standalone baseline must never pay, so it is held against the raw device.",
    run,
};

/// Whether a bound applies. An idle flash drive answers in the time of a few round trips to the server, so the round
/// trips dominate there.
fn is_bound(disk: &str, load: &str) -> bool {
    disk != "flash" || !matches!(load, "random 4 KiB, 1" | "random 4 KiB, 4")
}

fn run(context: &Context) -> Result<Outcome, String> {
    let at = |depth| Pace::Closed { depth, think_ns: 0 };
    let large = Stream { sizes: vec![(1, 64 << 10)], align_bytes: 64 << 10, ..random(4) };
    let sequential = Stream { place: Place::Sequential, sizes: vec![(1, 128 << 10)], pace: at(4), ..random(4) };
    let loads = [
        ("random 4 KiB, 1", random(1)),
        ("random 4 KiB, 4", random(4)),
        ("random 4 KiB, 27", random(27)),
        ("random 64 KiB, 4", large),
        ("sequential 128 KiB, 4", sequential),
    ];
    let mut runs = Vec::new();
    for disk in DISKS {
        for (_, load) in &loads {
            runs.extend(context.seeds.iter().map(|&seed| (*disk, load, seed)));
        }
    }
    let ratios = context.parallel(&runs, |(disk, load, seed)| {
        let stand = Stand::new(*disk, context.quick);
        let ours = stand.run(&[Some((*load).clone())], *seed)?;
        let raw = stand.raw(load, 0, 1, *seed)?;
        Ok((ours[0].mb_s(), raw.mb_s()))
    });
    let ratios = ratios.into_iter().collect::<Result<Vec<_>, String>>()?;
    let mut means = ratios.chunks(context.seeds.len()).map(|of| (mean(of.iter().map(|(ours, raw)| ours / raw)), of));
    let (mut claims, mut groups, mut data) = (Vec::new(), Vec::new(), serde_json::Map::new());
    for disk in DISKS {
        let mut bars = Vec::new();
        for (name, _) in &loads {
            let (ratio, of) = means.next().expect("one for each");
            if is_bound(disk, name) {
                let name = format!("{disk}, {name} at a time: ours / the bare disk");
                claims.push(Claim::new(name, ratio, Bound::AtLeast(0.97)));
            }
            data.insert(format!("{disk}, {name}"), serde_json::json!({ "ours_and_raw_mb_per_second": of }));
            bars.push(ratio);
        }
        groups.push(Group { label: (*disk).into(), bars });
    }
    let names: Vec<_> = loads.iter().map(|(name, _)| *name).collect();
    let svg = chart::bars("ours / the bare disk", &names, &groups, Some((0.97, "what is asked")))?;
    let pictures = vec![Picture { name: "ratio".into(), caption: "A lone client, of the bare disk".into(), svg }];
    Ok(Outcome { claims, data: data.into(), pictures, ..Outcome::default() })
}
