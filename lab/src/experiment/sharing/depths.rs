//! One load with 1 outstanding request, another with 27.

use super::super::stand::random;
use super::super::{Bound, Claim, Context, Experiment, Outcome};
use super::{ONE_AT_A_TIME, Pair, QUEUEING, Shared, Variant, compare};

pub const EXPERIMENT: Experiment = Experiment {
    name: "sharing-depths",
    question: "What does a latency-bound client, one request at a time, keep beside one with 27 outstanding?",
    setup: "Two volumes, an eighth of the disk each, at its outer and its inner edge; on both, 4 KiB reads uniformly \
            at random, 1 and 27 at a time; 64 MiB of memory in two equal partitions; policy none; one request at a \
            time in the drive (the paper's disks) or up to 128. 2 s to warm up, 10 s counted.",
    paper: "Argon, section 5.1 (quanta-based scheduling): the client with one outstanding request receives \
            practically no service.",
    run,
};

fn run(context: &Context) -> Result<Outcome, String> {
    let pair = Pair { names: ["1 outstanding", "27 outstanding"], loads: [random(1), random(27)] };
    compare(context, &pair, &[ONE_AT_A_TIME, QUEUEING], |stand| stand, claim)
}

fn claim(variant: &Variant, disk: &str, shared: &Shared) -> Option<Claim> {
    let name = format!("{disk}, {}: the one with one outstanding keeps, of its standalone throughput", variant.name);
    Some(Claim::new(name, shared.kept(0), Bound::AtMost(0.2)))
}
