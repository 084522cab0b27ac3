//! Two sequential streams.

use super::super::stand::{Stand, stream};
use super::super::{Bound, Claim, Context, Experiment, Outcome};
use super::{DISKS, HEADS, Pair, picture, share};

pub const EXPERIMENT: Experiment = Experiment {
    name: "sharing-streams",
    question: "What do two sequential readers leave each other, with and without the prefetching of common systems?",
    setup: "Two volumes, an eighth of the disk each, at its outer and its inner edge; 4 KiB reads one after the other, one \
            at a time; 64 MiB of memory in two equal partitions; policy none, 128 KiB of prefetching or none; 2 s to warm \
            up, 20 s counted.",
    paper: "Argon, section 5.1 (amortisation): with the prefetching of Linux, each of two streams gets a ninth of its \
            standalone throughput.",
    run,
};

const PREFETCH: u64 = 128 << 10;

fn run(context: &Context) -> Result<Outcome, String> {
    let pair = Pair { names: ["outer stream", "inner stream"], loads: [stream(), stream()] };
    let stands =
        |prefetch| DISKS.iter().map(|disk| Stand { prefetch, ..Stand::new(disk, context.quick) }).collect::<Vec<_>>();
    let (with, without) = (share(context, &stands(PREFETCH), &pair)?, share(context, &stands(0), &pair)?);
    let mut claims = Vec::new();
    for (disk, shared) in DISKS.iter().zip(&with).filter(|(disk, _)| HEADS.contains(disk)) {
        let kept = shared.kept(0) + shared.kept(1);
        let name = format!("{disk}, 128 KiB prefetched: both streams together, of the disk's streaming rate");
        claims.push(Claim::new(name, kept, Bound::AtMost(0.6)));
    }
    let json = |shared: &[super::Shared]| {
        DISKS
            .iter()
            .zip(shared)
            .map(|(disk, shared)| (disk.to_string(), shared.json(&pair.names)))
            .collect::<serde_json::Map<_, _>>()
    };
    let pictures = vec![
        picture("prefetch", "Two streams with 128 KiB of prefetching", DISKS, &pair, &with)?,
        picture("plain", "Two streams without prefetching", DISKS, &pair, &without)?,
    ];
    let data = serde_json::json!({ "prefetch_128_kib": json(&with), "no_prefetch": json(&without) });
    Ok(Outcome { claims, data, pictures })
}
