//! The mixes.

use super::super::stand::{random, stream};
use super::super::{Context, Experiment, Outcome};
use super::{Actor, insulate, mix};

const PAPER: &str =
    "Argon, section 5.1: with slices, prefetching and partitions each tenant keeps nearly R of its share.";

fn actor(name: &'static str, share: (u64, u64), load: sim::load::Stream) -> Actor {
    Actor { name, share, load }
}

pub const STREAMS: Experiment = Experiment {
    name: "insulated-streams",
    question: "What do two sequential readers keep of their half each?",
    setup: "Two volumes, an eighth of the disk each, at its outer and its inner edge; 4 KiB reads one after the other, one at a \
            time; 64 MiB of memory; R = 0.9. 5 s to warm up, 60 s counted.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let actors = vec![actor("outer stream", (1, 2), stream()), actor("inner stream", (1, 2), stream())];
        insulate(context, &mix(actors), 900)
    },
};

pub const STREAM_RANDOM: Experiment = Experiment {
    name: "insulated-stream-random",
    question: "What does a stream keep beside random reads, and they beside it?",
    setup: "As `insulated-streams`, the inner tenant reads 4 KiB uniformly at random, 4 at a time.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let actors = vec![actor("stream", (1, 2), stream()), actor("random reads", (1, 2), random(4))];
        insulate(context, &mix(actors), 900)
    },
};

pub const DEPTHS: Experiment = Experiment {
    name: "insulated-depths",
    question: "What does a polite client, one request at a time, keep beside one with 27 outstanding?",
    setup: "As `insulated-streams`, both read 4 KiB uniformly at random, 1 and 27 at a time.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let actors = vec![actor("1 outstanding", (1, 2), random(1)), actor("27 outstanding", (1, 2), random(27))];
        insulate(context, &mix(actors), 900)
    },
};

pub const UNEQUAL: Experiment = Experiment {
    name: "insulated-unequal",
    question: "What do 1 and 27 outstanding requests keep when their shares are three to one?",
    setup: "As `insulated-depths`, shares 3/4 and 1/4.",
    paper: PAPER,
    run: |context: &Context| -> Result<Outcome, String> {
        let actors =
            vec![actor("1 outstanding, 3/4", (3, 4), random(1)), actor("27 outstanding, 1/4", (1, 4), random(27))];
        insulate(context, &mix(actors), 900)
    },
};
