//! Mixes of tenants that do not depend on their cache.

use super::super::stand::{random, stream};
use super::super::{Context, Experiment, Outcome};
use super::judge::insulate;
use super::{Actor, KEEP, Mix};
use sim::load::{Pace, Stream};

const PAPER: &str =
    "Argon, section 5.1: with slices, prefetching and partitions each tenant keeps nearly R of its share.";

pub const STREAMS: Experiment = Experiment {
    name: "insulated-streams",
    question: "What do two sequential readers keep of their half each?",
    setup: "Two volumes, an eighth of the disk each, at its outer and its inner edge; 4 KiB reads one after the \
            other, one at a time; 64 MiB of memory. 5 s to warm up, 60 s counted.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let actors = vec![Actor::new("outer stream", (1, 2), stream()), Actor::new("inner stream", (1, 2), stream())];
        insulate(context, &Mix::uncached(actors))
    },
};

pub const STREAM_RANDOM: Experiment = Experiment {
    name: "insulated-stream-random",
    question: "What does a stream keep beside random reads, and they beside it?",
    setup: "As `insulated-streams`, the inner tenant reads 4 KiB uniformly at random, 4 at a time.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let actors = vec![Actor::new("stream", (1, 2), stream()), Actor::new("random reads", (1, 2), random(4))];
        insulate(context, &Mix::uncached(actors))
    },
};

pub const DEPTHS: Experiment = Experiment {
    name: "insulated-depths",
    question: "What does a latency-bound client, one request at a time, keep beside one with 27 outstanding?",
    setup: "As `insulated-streams`, both read 4 KiB uniformly at random, 1 and 27 at a time.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let actors =
            vec![Actor::new("1 outstanding", (1, 2), random(1)), Actor::new("27 outstanding", (1, 2), random(27))];
        insulate(context, &Mix::uncached(actors))
    },
};

pub const UNEQUAL: Experiment = Experiment {
    name: "insulated-unequal",
    question: "What do 1 and 27 outstanding requests keep when their shares are three to one?",
    setup: "As `insulated-depths`, shares 3/4 and 1/4.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let actors = vec![
            Actor::new("1 outstanding, 3/4", (3, 4), random(1)),
            Actor::new("27 outstanding, 1/4", (1, 4), random(27)),
        ];
        insulate(context, &Mix::uncached(actors))
    },
};

/// Sequential writes of 64 KiB, four at a time.
fn write_stream() -> Stream {
    let pace = Pace::Closed { depth: 4, think_ns: 0 };
    Stream { read_ppm: 0, sizes: vec![(1, 64 << 10)], align_bytes: 64 << 10, pace, ..stream() }
}

pub const WRITE_STREAM: Experiment = Experiment {
    name: "insulated-write-stream",
    question: "What do a sequential writer and a random reader keep of their half each?",
    setup: "As `insulated-streams`; one writes 64 KiB sequentially, 4 at a time, the other reads 4 KiB uniformly at \
            random, 4 at a time. What counts of the writer is what reaches the medium.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let actors = vec![
            Actor::new("sequential writer", (1, 2), write_stream()),
            Actor::new("random reads", (1, 2), random(4)),
        ];
        insulate(context, &Mix { keep: KEEP, ..Mix::uncached(actors) })
    },
};

pub const RANDOM_WRITES: Experiment = Experiment {
    name: "insulated-random-writes",
    question: "What do a random writer and a stream keep of their half each?",
    setup: "As `insulated-streams`; one writes 4 KiB uniformly at random, 16 at a time, the other reads sequentially. \
            What counts of the writer is what reaches the medium.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let writer = Stream { read_ppm: 0, ..random(16) };
        let actors = vec![Actor::new("random writer", (1, 2), writer), Actor::new("stream", (1, 2), stream())];
        insulate(context, &Mix { keep: KEEP, ..Mix::uncached(actors) })
    },
};
