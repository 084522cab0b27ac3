//! A stream and a workload that depends on its cache, in one cache without partitions.

use engine::units::SECOND;
use sim::load::{Pace, Stream};

use super::super::stand::{Stand, stream};
use super::super::{Bound, Claim, Context, Experiment, Outcome};
use super::{ONE_AT_A_TIME, Pair, QUEUEING, Shared, Variant, compare};

pub const EXPERIMENT: Experiment = Experiment {
    name: "sharing-cache",
    question: "What does a workload that lives from its cache keep when a stream runs through the same cache?",
    setup: "Two volumes of one tenant, an eighth of the disk each, so that they share one partition: 16 MiB of \
            memory. On the first, 32 KiB reads one after the other, 2 at a time, 128 KiB prefetched; on the second, 4 \
            KiB reads uniformly at random over 12 MiB, 4 at a time with 1 ms of thought: alone, all of it is cached \
            after a while. Policy none; one request at a time in the drive or up to 128. 40 s to warm up, 10 s \
            counted.",
    paper: "Argon, section 5.1 (cache partitioning): the stream evicts nearly all blocks of the other workload, which \
            then gets almost no cache hits.",
    run,
};

fn run(context: &Context) -> Result<Outcome, String> {
    let cached =
        Stream { area_bytes: 12 << 20, pace: Pace::Closed { depth: 4, think_ns: 1_000_000 }, ..Stream::default() };
    let sizes = vec![(1, 32 << 10)];
    let fast = Stream { sizes, align_bytes: 32 << 10, pace: Pace::Closed { depth: 2, think_ns: 0 }, ..stream() };
    let pair = Pair { names: ["stream", "cached reads"], loads: [fast, cached] };
    let adapt = |stand| Stand { memory: 16 << 20, shared_cache: true, warm_up_ns: 40 * SECOND, ..stand };
    compare(context, &pair, &[ONE_AT_A_TIME, QUEUEING], adapt, claim)
}

fn claim(variant: &Variant, disk: &str, shared: &Shared) -> Option<Claim> {
    let name = format!("{disk}, {}: the cached workload keeps, of its standalone throughput", variant.name);
    Some(Claim::new(name, shared.kept(1), Bound::AtMost(0.3)))
}
