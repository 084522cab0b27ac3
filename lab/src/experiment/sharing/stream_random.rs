//! A sequential stream and random reads.

use super::super::stand::{random, stream};
use super::super::{Bound, Claim, Context, Experiment, Outcome};
use super::{ONE_AT_A_TIME, Pair, QUEUEING, Shared, Variant, compare};

pub const EXPERIMENT: Experiment = Experiment {
    name: "sharing-stream-random",
    question: "What does a sequential reader keep beside a random one, and what does that one keep?",
    setup: "Two volumes, an eighth of the disk each, at its outer and its inner edge; on the first, 4 KiB reads one \
            after the other, one at a time, 128 KiB prefetched; on the second, 4 KiB reads uniformly at random, one \
            at a time; 64 MiB of memory in two equal partitions; policy none; one request at a time in the drive (the \
            paper's disks) or up to 128. 2 s to warm up, 10 s counted.",
    paper: "Argon, section 5.1 (combining sequential and random workloads).",
    run,
};

fn run(context: &Context) -> Result<Outcome, String> {
    let pair = Pair { names: ["stream", "random reads"], loads: [stream(), random(1)] };
    compare(context, &pair, &[ONE_AT_A_TIME, QUEUEING], |stand| stand, claim)
}

fn claim(variant: &Variant, disk: &str, shared: &Shared) -> Option<Claim> {
    let name = format!("{disk}, {}: the worse-off one keeps, of its standalone throughput", variant.name);
    Some(Claim::new(name, shared.worse(), Bound::AtMost(0.3)))
}
