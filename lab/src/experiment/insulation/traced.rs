//! Eight tenants, four of them traces of real servers.

use engine::units::{Nanos, SECOND};
use sim::load::{Pace, Stream};

use super::super::loads::Load;
use super::super::stand::random;
use super::super::{Context, Experiment, Outcome};
use super::judge::insulate;
use super::{Actor, KEEP, Mix, Sizes, cached, traces};

const PAPER: &str = "Argon has no such mix: its largest has four tenants, and none is a trace.";

/// The share of each of eight tenants.
const SHARE: (u64, u64) = (1, 8);
/// Covers the trial and filling the partitions: a random reader with an eighth of a disk takes three minutes for 38
/// MiB.
const WARM_UP_NS: Nanos = 300 * SECOND;
/// An eighth of this is many times the 5 s for which dirty data may wait: otherwise data written alone in one minute
/// would be paid for in the next. Also, traces have bursts: over 300 s (40 s alone) the web server kept 0.86 on
/// `barracuda-7200.9`, over 1,200 s 0.70.
const COUNTED_NS: Nanos = 600 * SECOND;
/// The number of traces in the mix.
const TRACES: usize = 4;

pub const CLOSED: Experiment = Experiment {
    name: "insulated-traces",
    question: "What do eight tenants keep, four of them real traces, 16 requests at a time?",
    setup: "Eight volumes of an eighth of the disk, shares 1/8; 64 MiB of memory, so that a trace writes many times \
            what the whole cache holds; partitions and slices as the server decides. Four traces (places beyond the \
            volume's end come round; at its end a trace begins again), 16 requests at a time; a stream of 64 KiB \
            reads; a sequential writer of 64 KiB, 4 at a time; Zipf with a knee, 8 at a time; 4 KiB reads anywhere, 4 \
            at a time. 300 s to warm up, so that trials are over and partitions full, 600 s counted. What a trace \
            keeps is the time that the same work takes alone. Alone the whole cache is theirs: up to three quarters \
            of it are dirty, so that overwrites meet and what goes to the disk goes in longer runs. An eighth of 64 \
            MiB cannot do that; no slice gives it back. So not all can have R here: who is told so is to get what the \
            server names (on average over twenty looks, since it names what holds for what is asked at the moment), \
            and those are to be admitted for whom the memory is enough by exact curves, who need least first. Under \
            none all share one cache.",
    paper: PAPER,
    run: |context: &Context| {
        let cast = |actors| Mix {
            sizes: Sizes::Decided,
            warm_up_ns: WARM_UP_NS,
            counted_ns: COUNTED_NS,
            ..Mix::cached(64 << 20, actors)
        };
        mix(context, Pace::Closed { depth: 16, think_ns: 0 }, cast)
    },
};

pub const OPEN: Experiment = Experiment {
    name: "insulated-traces-open",
    question: "And when the traces come at 20 times their speed, whatever becomes of them?",
    setup: "As `insulated-traces`, requests of the traces at their own times, 20 times as fast, until their end; 256 \
            MiB of memory, partitions by exact curves (stated, not decided by the server); 10 s to warm up, 60 s \
            counted. The curves know nothing of what more dirt gains, and with them all keep 0.89 of what reads and \
            overwrites alone would give: R = 0.9 is more than that, and who mostly writes keeps less where the disk \
            is slow.",
    paper: PAPER,
    run: |context: &Context| match context.quick {
        // Tens of thousands of requests wait at a time, so ten seeds take minutes.
        true => Ok(Outcome::left_out("not in quick runs".into())),
        false => mix(context, Pace::as_recorded(20_000_000), |actors| Mix::cached(256 << 20, actors)),
    },
};

fn mix(context: &Context, pace: Pace, cast: impl Fn(Vec<Actor>) -> Mix) -> Result<Outcome, String> {
    let Some(recorded) = traces::load(context, TRACES)? else {
        let place = context.traces.display();
        return Ok(Outcome::left_out(format!(
            "there are no {TRACES} traces in {place} (--traces DIR names another place)"
        )));
    };
    let traces = recorded.into_iter().map(|trace| Actor::new(trace.name, SHARE, Load::Trace(trace.records, pace)));
    let pace = Pace::Closed { depth: 4, think_ns: 0 };
    let writer = Stream { read_ppm: 0, pace, ..cached::scan() };
    let others = [
        Actor::new("stream", SHARE, cached::scan()),
        Actor::new("sequential writer", SHARE, writer),
        Actor::new("Zipf", SHARE, cached::skewed()),
        Actor::new("random reads", SHARE, random(4)),
    ];
    let actors = traces.chain(others).collect();
    insulate(context, &Mix { keep: KEEP, ..cast(actors) })
}
