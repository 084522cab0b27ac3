//! A sequential stream beside random reads.

use super::super::stand::{Stand, random, stream};
use super::super::{Bound, Claim, Context, Experiment, Outcome};
use super::{DISKS, HEADS, Pair, picture, share};

pub const EXPERIMENT: Experiment = Experiment {
    name: "sharing-stream-random",
    question: "What does a sequential reader keep beside a random one, and what does that one keep?",
    setup: "Two volumes, an eighth of the disk each, at its outer and its inner edge; on the first, 4 KiB reads one after \
            the other, one at a time, 128 KiB prefetched; on the second, 4 KiB reads uniformly at random, one at a time; \
            64 MiB of memory in two equal partitions; policy none; 2 s to warm up, 20 s counted.",
    paper: "Argon, section 5.1 (combining sequential and random workloads).",
    run,
};

fn run(context: &Context) -> Result<Outcome, String> {
    let pair = Pair { names: ["stream", "random reads"], loads: [stream(), random(1)] };
    let stands: Vec<_> =
        DISKS.iter().map(|disk| Stand { prefetch: 128 << 10, ..Stand::new(disk, context.quick) }).collect();
    let shared = share(context, &stands, &pair)?;
    let claims = DISKS.iter().zip(&shared).filter(|(disk, _)| HEADS.contains(disk)).map(|(disk, shared)| {
        Claim::new(
            format!("{disk}: the stream keeps, of its standalone throughput"),
            shared.kept(0),
            Bound::AtMost(0.45),
        )
    });
    let claims = claims.collect();
    let data = DISKS.iter().zip(&shared).map(|(disk, shared)| (disk.to_string(), shared.json(&pair.names)));
    let data = serde_json::Value::Object(data.collect());
    let pictures = vec![picture("kept", "A stream beside random reads", DISKS, &pair, &shared)?];
    Ok(Outcome { claims, data, pictures })
}
