//! Hostile tenants, one at a time beside four workloads: the guarantees and the insulation of the others hold. What the
//! others get beside an idle tenant is not the hostile tenant's fault.

use engine::units::{Nanos, SECOND};
use serde_json::{Value, json};
use sim::bench::{Done, Volume};
use sim::load::workload::Lane;
use sim::load::{Generator, Pace, Place, Record, Source, Spec, Stream, Workload};
use sim::rng::Rng;

use super::super::{Bound, Claim, Context, Experiment, Outcome};
use super::play::{self, Cache, Responses, Tally, equal_share};
use super::policies::{ALL, Policy};
use super::window::Counts;
use super::{Cast, Extent, detail};

/// Six hostile tenants, and an idle one.
pub const EXPERIMENT: Experiment = Experiment {
    name: "guarantees-hostile",
    question: "Which tenant can break the guarantees or the insulation of others?",
    setup: "As `guarantees`: four of the workloads and one hostile tenant, a share of 1/5 each; the fourth workload \
            has no guarantee, the hostile tenant neither; and beside an idle tenant instead. Six sets.",
    paper: "No paper has such tenants.",
    run,
};

/// The place of the hostile tenant's volumes; the workload that has it otherwise does not take part.
const PLACE: usize = 9;
/// Workloads beside the hostile tenant; the last one has no guarantee.
const VICTIMS: usize = 4;
/// Sets in a full run.
const SETS: usize = 6;
/// Bounds on the others' avoidable windows and on the insulation of the one without a guarantee: as among workloads.
const AVOIDABLE_MOST: f64 = 0.01;

/// A hostile tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hostile {
    /// It does nothing: the others have its share.
    Idle,
    /// 1,024 random reads outstanding.
    Deep,
    /// Hits of 256 KiB, 128 at a time.
    Hits,
    /// A flush after every write.
    Flushes,
    /// Sequential and random, each for a second.
    Alternates,
    /// Requests of 32 MiB, four at a time.
    Large,
    /// A hundred connections, 16 random reads each.
    Connections,
}

const HOSTILE: [Hostile; 7] = [
    Hostile::Idle,
    Hostile::Deep,
    Hostile::Hits,
    Hostile::Flushes,
    Hostile::Alternates,
    Hostile::Large,
    Hostile::Connections,
];

/// The two generators of [`Hostile::Alternates`].
struct Alternating([Generator; 2]);

impl Source for Alternating {
    fn next(&mut self, elapsed_ns: Nanos) -> Option<Record> {
        self.0[(elapsed_ns / SECOND % 2) as usize].next(elapsed_ns)
    }
}

impl Hostile {
    fn name(self) -> &'static str {
        match self {
            Hostile::Idle => "idle",
            Hostile::Deep => "1,024 outstanding",
            Hostile::Hits => "cache hits",
            Hostile::Flushes => "flush after every write",
            Hostile::Alternates => "sequential and random by turns",
            Hostile::Large => "requests of 32 MiB",
            Hostile::Connections => "a hundred connections",
        }
    }

    /// How many connections it has, each with a volume.
    fn connections(self) -> usize {
        match self {
            Hostile::Idle => 0,
            Hostile::Connections => 100,
            _ => 1,
        }
    }

    /// The load of a connection.
    fn load(self, volume_bytes: u64, seed: u64) -> Result<Workload, String> {
        let closed = |depth| Pace::Closed { depth, think_ns: 0 };
        let random = Stream { area_bytes: volume_bytes, pace: closed(16), ..Stream::default() };
        let stream = match self {
            Hostile::Deep => Stream { pace: closed(1024), ..random },
            // It fits into the smallest partition.
            Hostile::Hits => Stream { area_bytes: 256 << 10, sizes: vec![(1, 256 << 10)], pace: closed(128), ..random },
            Hostile::Flushes => Stream { read_ppm: 0, flush_every: 1, ..random },
            Hostile::Alternates => {
                let stream = Stream { place: Place::Sequential, sizes: vec![(1, 64 << 10)], ..random.clone() };
                let of = |stream, seed| Generator::new(stream, 0, Rng::new(seed));
                let source = Alternating([of(stream, seed), of(random, seed + 1)]);
                return Ok(Workload::new(vec![Lane::of_trace(source, closed(16))], 0));
            }
            Hostile::Large => {
                Stream { place: Place::Sequential, sizes: vec![(1, 32 << 20)], pace: closed(4), ..random }
            }
            Hostile::Idle | Hostile::Connections => random,
        };
        Workload::described(&Spec { seed, streams: vec![stream] }, 0).map_err(|error| error.to_string())
    }
}

/// What the others get beside a hostile tenant.
struct Harm {
    counts: Counts,
    insulation: f64,
    /// The avoidable windows, with their set.
    avoidable: Vec<Value>,
}

fn beside(cast: &Cast, hostile: Hostile, victims: &[usize], end_ns: Nanos, seed: u64) -> Result<Harm, String> {
    let (ground, policy): (_, &Policy) = (&cast.ground, &ALL[0]);
    let (size, volume_bytes, levels) = (victims.len() + 1, ground.volume_bytes()?, cast.levels(victims.len() + 1));
    let share = equal_share(size);
    let (mut tenants, mut volumes, mut tallies) = (Vec::new(), Vec::new(), Vec::new());
    for (tenant, &at) in victims.iter().enumerate() {
        let guarantee = if tenant + 1 < victims.len() { levels[at].bytes_per_s } else { 0 };
        tenants.push(ground.tenant(share, guarantee));
        volumes.push(ground.volume(tenant, at, cast.workloads[at].load(volume_bytes, None))?);
        tallies.push(Tally::new(&levels[at], None));
    }
    tenants.push(ground.tenant(share, 0));
    let connections = hostile.connections();
    for connection in 0..connections {
        let bytes = volume_bytes / connections as u64 / 4096 * 4096;
        let volume = ground.volume(victims.len(), PLACE, hostile.load(bytes, seed + connection as u64)?)?;
        volumes.push(Volume { start: volume.start + connection as u64 * bytes, bytes, ..volume });
    }
    let mut responses = Responses::new();
    let done = |done: Done| {
        if let Some(tally) = tallies.get_mut(done.volume) {
            tally.answered(&done, &mut responses);
        }
    };
    play::run(&mut ground.bench(policy, &tenants, volumes, seed)?, end_ns, done)?;
    let mut counts = Counts::default();
    tallies[..victims.len() - 1].iter().for_each(|tally| counts.add(&tally.counts(end_ns)));
    let (last, tally) = (victims[victims.len() - 1], &tallies[victims.len() - 1]);
    let insulation = tally.insulation(&cast.progress[last], 1.0 / size as f64, end_ns);
    let avoidable = |(&at, tally): (&usize, &Tally<'_>)| {
        let found = tally.avoidable(end_ns);
        found.iter().map(|window| detail::window(cast, size, (victims, at), window)).collect::<Vec<_>>()
    };
    let guaranteed = victims.iter().zip(&tallies).take(victims.len() - 1);
    Ok(Harm { counts, insulation, avoidable: guaranteed.flat_map(avoidable).collect() })
}

fn run(context: &Context) -> Result<Outcome, String> {
    let size = VICTIMS + 1;
    let extent = Extent { sizes: vec![size], sets_most: 1, times_most: 1, ..Extent::new(context.quick) };
    let end_ns = size as Nanos * extent.member_ns;
    let cast = Cast::new(context, Cache::Smallest, extent.dedicated_ns())?;
    let mut sets = super::sets::sets(VICTIMS, usize::MAX);
    sets.retain(|set| !set.contains(&PLACE));
    sets.truncate(if context.quick { 1 } else { SETS });
    let jobs: Vec<_> = HOSTILE.iter().flat_map(|&hostile| sets.iter().map(move |set| (hostile, set))).collect();
    let harms = context.parallel(&jobs, |&(hostile, set)| beside(&cast, hostile, set, end_ns, context.seeds[0]));
    let harms = harms.into_iter().collect::<Result<Vec<_>, _>>()?;
    let (mut claims, mut data, mut idle) = (Vec::new(), Vec::new(), 0.0);
    for (hostile, harms) in HOSTILE.iter().zip(harms.chunks(sets.len())) {
        let mut sum = Counts::default();
        harms.iter().for_each(|harm| sum.add(&harm.counts));
        let insulation =
            harms.iter().map(|harm| harm.insulation).fold(f64::INFINITY, |a, b| if b >= a { a } else { b });
        let name = |what: &str| format!("{}: {what}", hostile.name());
        let avoidable = sum.avoidable_fraction();
        if *hostile == Hostile::Idle {
            idle = avoidable;
        }
        // As among workloads: no claim that a single window would break.
        if sum.windows as f64 * AVOIDABLE_MOST >= 1.0 {
            claims.push(Claim::new(name("others' avoidable windows"), avoidable, Bound::AtMost(AVOIDABLE_MOST)));
            if *hostile != Hostile::Idle {
                let what = name("others' avoidable windows, more than beside an idle tenant");
                claims.push(Claim::new(what, avoidable - idle, Bound::AtMost(AVOIDABLE_MOST)));
            }
        }
        let keep = cast.ground.effective_r(size);
        claims.push(Claim::new(name("insulation of the one without guarantee"), insulation, Bound::AtLeast(keep)));
        let Counts { windows, no_demand, fundamental, avoidable, marginal, .. } = sum;
        let avoidable_windows: Vec<_> = harms.iter().flat_map(|harm| &harm.avoidable).collect();
        data.push(json!({
            "hostile": hostile.name(), "workloads": size, "windows": windows, "no_demand": no_demand,
            "fundamental": fundamental, "avoidable": avoidable, "marginal": marginal, "insulation": insulation,
            "avoidable_windows": avoidable_windows,
        }));
    }
    Ok(Outcome { claims, data: data.into(), ..Outcome::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hostile_load_fits_its_volume_and_alternation_follows_time() {
        for hostile in HOSTILE.into_iter().filter(|hostile| hostile.connections() > 0) {
            let mut load = hostile.load(1 << 30, 1).unwrap();
            let request = load.next(0).expect("a closed load begins at once");
            assert!(request.offset + request.bytes <= 1 << 30, "{hostile:?}: {request:?}");
        }
        let mut alternating = Hostile::Alternates.load(1 << 30, 1).unwrap();
        let mut bytes = |now| {
            let request = alternating.next(now).expect("fewer than 16 are outstanding");
            alternating.completed(now, request.id);
            request.bytes
        };
        assert_eq!([0, SECOND / 2, SECOND, 2 * SECOND].map(&mut bytes), [64 << 10, 64 << 10, 4096, 64 << 10]);
    }
}
