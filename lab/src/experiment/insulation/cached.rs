//! Mixes in which tenants depend on their cache.

use engine::units::SECOND;
use sim::load::{Pace, Place, Stream};

use super::super::loads::{Load, Mixture};
use super::super::{Context, Experiment, Outcome};
use super::judge::insulate;
use super::{Actor, Mix, Sizes};

const PAPER: &str = "Argon, section 5.2: with partitions that keep R of the hits, slices and prefetching, each of \
                     four workloads keeps about R of its share; without, a stream takes the others' cache and one \
                     random reader the disk.";

pub const ABSORBED: Experiment = Experiment {
    name: "insulated-absorbed",
    question: "What does a stream keep beside a workload whose cache absorbs a third, and that one beside it?",
    setup: "Two volumes, an eighth of the disk each, at its outer and its inner edge, shares 1/2; 96 MiB of memory, \
            partitions as the server decides. Reads of 64 KiB one after the other, one at a time; 4 KiB reads, 4 at a \
            time, a third of them within 4 MiB, the others anywhere. 120 s to warm up, half of which is a trial, 60 s \
            counted. Under none both share one cache.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let actors = vec![Actor::new("stream", (1, 2), scan()), Actor::new("a third absorbed", (1, 2), absorbed())];
        insulate(context, &Mix { sizes: Sizes::Decided, warm_up_ns: 120 * SECOND, ..Mix::cached(96 << 20, actors) })
    },
};

pub const FOUR: Experiment = Experiment {
    name: "insulated-four",
    question: "What do a stream, two random readers, one of which has a cache that helps, and a skewed workload keep \
               of a quarter each?",
    setup: "Four volumes of an eighth of the disk, from its outer to its inner edge, shares 1/4; 256 MiB of memory, \
            partitions as the server decides. Reads of 64 KiB one after the other, one at a time; 4 KiB reads, 4 at a \
            time, a third of them within 4 MiB; 4 KiB reads, 8 at a time, 60 % of them Zipf (exponent 0.9) within 16 \
            MiB: a knee as TPC-C has it; 4 KiB reads anywhere, 4 at a time. 1,800 s to warm up (quick runs: 600 s): a \
            trial, and until the cache is full of what is used again; with a quarter of the slowest disk the rarest \
            of it is asked for once in ten minutes. 60 s counted. Under none all share one cache.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let actors = vec![
            Actor::new("stream", (1, 4), scan()),
            Actor::new("a third absorbed", (1, 4), absorbed()),
            Actor::new("Zipf", (1, 4), skewed()),
            Actor::new("random reads", (1, 4), super::super::stand::random(4)),
        ];
        let warm_up_ns = if context.quick { 600 } else { 1800 } * SECOND;
        insulate(context, &Mix { sizes: Sizes::Decided, warm_up_ns, ..Mix::cached(256 << 20, actors) })
    },
};

pub const DATABASE: Experiment = Experiment {
    name: "insulated-oltp-scan",
    question: "What does a database of small updates keep beside one that scans, and that one beside it?",
    setup: "Two volumes, an eighth of the disk each, at its outer and its inner edge, shares 1/2; 512 MiB of memory, \
            partitions as the server decides. 8 KiB reads, each followed by a write to the same place, 10 requests at \
            a time, 70 % of them Zipf (exponent 0.9) within 16 MiB; two scans of 128 KiB reads, 2 at a time each, and \
            8 KiB reads anywhere, one at a time. 120 s to warm up, half of which is a trial, 60 s counted: later the \
            scans would reach what they had read alone. Under none both share one cache.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let actors = vec![Actor::new("updates", (1, 2), updates()), Actor::new("scans", (1, 2), scans())];
        insulate(context, &Mix { sizes: Sizes::Decided, warm_up_ns: 120 * SECOND, ..Mix::cached(512 << 20, actors) })
    },
};

fn closed(depth: u32) -> Pace {
    Pace::Closed { depth, think_ns: 0 }
}

/// Sequential reads of 64 KiB.
pub(super) fn scan() -> Stream {
    let place = Place::Sequential;
    Stream { place, area_bytes: u64::MAX, sizes: vec![(1, 64 << 10)], align_bytes: 64 << 10, ..Stream::default() }
}

/// Requests to the first `hot_bytes` of the volume, and to anywhere behind them.
fn knee(place: Place, hot_bytes: u64, hot_percent: u64, request_bytes: u64) -> Vec<(u64, Stream)> {
    let stream = Stream { sizes: vec![(1, request_bytes)], align_bytes: request_bytes, ..Stream::default() };
    let hot = Stream { place, area_bytes: hot_bytes, ..stream.clone() };
    let cold = Stream { area_start: hot_bytes, area_bytes: u64::MAX, ..stream };
    vec![(hot_percent, hot), (100 - hot_percent, cold)]
}

fn mixture(parts: Vec<(u64, Stream)>, updates: bool, depth: u32) -> Load {
    let warm_bytes = parts[0].1.area_bytes;
    Load::Mixture(Mixture { parts, warm_bytes, updates, pace: closed(depth) })
}

fn absorbed() -> Load {
    mixture(knee(Place::Uniform, 4 << 20, 33, 4 << 10), false, 4)
}

pub(super) fn skewed() -> Load {
    mixture(knee(Place::Zipf { exponent: 0.9 }, 16 << 20, 60, 4 << 10), false, 8)
}

fn updates() -> Load {
    mixture(knee(Place::Zipf { exponent: 0.9 }, 16 << 20, 70, 8 << 10), true, 10)
}

/// Two scans, one in each half of a volume that is an eighth of a disk, and random reads.
pub(super) fn scans() -> Load {
    let sizes = vec![(1, 128 << 10)];
    let first = Stream { sizes, align_bytes: 128 << 10, pace: closed(2), ..scan() };
    let second = Stream { area_start: 8 << 30, ..first.clone() };
    let random = Stream { area_bytes: u64::MAX, sizes: vec![(1, 8 << 10)], align_bytes: 8 << 10, ..Stream::default() };
    Load::Streams(vec![first, second, random])
}
