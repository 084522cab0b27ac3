//! Two sequential streams.

use super::super::stand::stream;
use super::super::{Bound, Claim, Context, Experiment, Outcome};
use super::{ONE_AT_A_TIME, Pair, QUEUEING, Shared, Variant, compare};

pub const EXPERIMENT: Experiment = Experiment {
    name: "sharing-streams",
    question: "What do two sequential readers leave each other, with and without the prefetching of common systems?",
    setup: "Two volumes, an eighth of the disk each, at its outer and its inner edge; 4 KiB reads one after the \
            other, one at a time; 64 MiB of memory in two equal partitions; policy none. 128 KiB prefetched, one \
            request at a time in the drive (the paper's disks) or up to 128; or nothing prefetched. 2 s to warm up, \
            10 s counted.",
    paper: "Argon, section 5.1 (amortisation): with the prefetching of Linux, each of two streams gets a ninth of its \
            standalone throughput, so that the disk delivers a quarter of what it can.",
    run,
};

const PLAIN: Variant = Variant { name: "nothing prefetched", prefetch: 0, device_depth: 1 };

fn run(context: &Context) -> Result<Outcome, String> {
    let pair = Pair { names: ["outer stream", "inner stream"], loads: [stream(), stream()] };
    compare(context, &pair, &[ONE_AT_A_TIME, QUEUEING, PLAIN], |stand| stand, claim)
}

/// A claim is made only without command queueing: a drive that reorders serves one stream until the other's request is
/// old, which is efficient, and causes the long response times in the data. The drive of 1996 is excluded, since it
/// transfers so slowly that 128 KiB take as long as a seek.
fn claim(variant: &Variant, disk: &str, shared: &Shared) -> Option<Claim> {
    let name = format!("{disk}, {}: the disk's efficiency, both streams / each alone", variant.name);
    let is_bound = variant.name == ONE_AT_A_TIME.name && disk != "barracuda-st32171w";
    is_bound.then(|| Claim::new(name, shared.efficiency(), Bound::AtMost(0.3)))
}
