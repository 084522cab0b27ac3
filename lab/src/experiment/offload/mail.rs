//! A mail server's three highest peaks, on three disks that are each other's stores.

use std::sync::Arc;

use engine::control::WriteCache;
use engine::offload::Settings;
use engine::units::{Nanos, SECOND};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use sim::bench::Done;
use sim::bench::cluster::{Cluster, START_NS};
use sim::load::zipf::unit;
use sim::load::{Op, Pace, Record};
use sim::rng::Rng;

use super::super::chart::{self, Group};
use super::super::guarantees::plot::{Panel, panels};
use super::super::loads::Load;
use super::super::stand::{mean, mixed};
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::rack::{Rack, Server};

pub const PEAKS: Experiment = Experiment {
    name: "offload-mail",
    question: "How long do requests wait in the peaks of a mail server?",
    setup: "Three volumes of 120 GB on three disks, each with stores on the two others; 8 KiB, anywhere; the paper's \
            three episodes: requests, part of reads, requests of the peak minute and 90 % of these on one volume, the \
            rest spread evenly over minutes and volumes. Arrivals are independent, and all rates of an episode are \
            scaled until the mean response without off-load is 1.5, 0.06 and 0.04 s. Without caches; all writes \
            off-loaded and never brought home (`always`), and the default settings (`peak`).",
    paper: "Everest, section 4.1, tables 1 and 2, figures 5 and 6: 1.4 to 70 times shorter means.",
    run,
};

struct Episode {
    minutes: u64,
    requests: f64,
    reads: f64,
    /// Requests of the minute with the most, of all volumes.
    peak: f64,
    /// The mean response without off-load, seconds.
    mean_s: f64,
}

/// Everest, tables 1 and 2. The table gives the peak per second, the text says that it is of a minute.
const EPISODES: [Episode; 3] = [
    Episode { minutes: 30, requests: 444_345.0, reads: 0.27, peak: 98_206.0, mean_s: 1.5 },
    Episode { minutes: 45, requests: 5_072_789.0, reads: 0.91, peak: 95_179.0, mean_s: 0.06 },
    Episode { minutes: 30, requests: 620_519.0, reads: 0.24, peak: 35_568.0, mean_s: 0.04 },
];

const VOLUMES: usize = 3;
const VOLUME: u64 = 120 << 30;
/// A store, so that both of a disk are less than 3 % of it.
const STORE: u64 = 2 << 30;
const BLOCK: u64 = 8 << 10;
/// The cache of each volume where there is one; Everest's three volumes had 128 MB (section 4.1, figure 8).
const WRITE_BACK: u64 = 43 << 20;
const MINUTE: Nanos = 60 * SECOND;
/// The minute of the peak.
const PEAK_MINUTE: u64 = 8;
/// The part of the peak that is on one volume.
const PEAK_PART: f64 = 0.9;
/// How often it is seen what is off-loaded.
const STEP_NS: Nanos = 5 * SECOND;
/// Time that late answers may take after an episode.
const LATE: u64 = 60;

/// How writes are off-loaded.
#[derive(Clone, Copy, PartialEq)]
enum Policy {
    Baseline,
    Always,
    Peak(Settings),
}

const POLICIES: [(&str, Policy); 3] =
    [("baseline", Policy::Baseline), ("always", Policy::Always), ("peak", Policy::Peak(Settings::DEFAULT))];

impl Episode {
    /// The requests of a volume in a minute, on average.
    fn rate(&self, volume: usize, minute: u64) -> f64 {
        let calm = (self.requests - self.peak) / (self.minutes - 1) as f64 / VOLUMES as f64;
        match (minute, volume) {
            (PEAK_MINUTE, 0) => self.peak * PEAK_PART,
            (PEAK_MINUTE, _) => self.peak * (1.0 - PEAK_PART) / (VOLUMES - 1) as f64,
            _ => calm,
        }
    }

    fn records(&self, volume: usize, scale: f64, seed: u64) -> Vec<Record> {
        let mut rng = Rng::new(mixed(seed, volume));
        let mut all = Vec::new();
        for minute in 0..self.minutes {
            let mean_ns = MINUTE as f64 / (self.rate(volume, minute) * scale);
            let mut at = -unit(&mut rng).ln() * mean_ns;
            while at < MINUTE as f64 {
                let op = if unit(&mut rng) < self.reads { Op::Read } else { Op::Write };
                let offset = rng.below(VOLUME / BLOCK) * BLOCK;
                all.push(Record { time_ns: minute * MINUTE + at as Nanos, op, offset, bytes: BLOCK, stream: 0 });
                at -= unit(&mut rng).ln() * mean_ns;
            }
        }
        all
    }

    fn rack(&self, case: &Case, scale: f64, seed: u64) -> Result<Rack, String> {
        let settings = match case.policy {
            Policy::Peak(settings) => settings,
            _ => Settings { is_always: true, limit_bytes: u64::MAX / 2, ..Settings::DEFAULT },
        };
        let server = |at: usize| Server {
            load: Some(Load::Trace(Arc::new(self.records(at, scale, seed)), Pace::as_recorded(1_000_000))),
            bytes: VOLUME,
            stores: (0..VOLUMES).filter(|&other| other != at && case.policy != Policy::Baseline).collect(),
            settings,
        };
        let rack = Rack::cacheless((0..VOLUMES).map(server).collect(), 0, 0)?;
        let rack = Rack { store_bytes: STORE, write_cache: case.write_cache, ..rack };
        Ok(match case.write_cache {
            WriteCache::None => rack,
            _ => Rack { volume_cache: WRITE_BACK, ..rack }.with_memory(2 * WRITE_BACK),
        })
    }

    fn measure(&self, case: &Case, scale: f64, seed: u64) -> Result<Seen, String> {
        let mut cluster = self.rack(case, scale, seed)?.cluster(seed)?;
        let mut seen = Seen::new(self.minutes);
        let end = START_NS + self.minutes * MINUTE;
        for until in (START_NS..=end).step_by(STEP_NS as usize) {
            cluster.run(until, |at, done| seen.count(at, &done));
            seen.away.push(((until - START_NS) as f64 / MINUTE as f64, away(&mut cluster)?));
        }
        seen.left = away(&mut cluster)?;
        let is_idle = |cluster: &Cluster| (0..VOLUMES).all(|at| cluster.is_idle(at));
        for minute in 1..=LATE {
            if is_idle(&cluster) {
                break;
            }
            cluster.run(end + minute * MINUTE, |at, done| seen.count(at, &done));
        }
        match seen.failed {
            Some(done) => Err(format!("{done:?} failed on disks without faults")),
            None if !is_idle(&cluster) => Err(format!("requests wait {LATE} minutes after the last one came")),
            None => Ok(seen),
        }
    }

    /// The factor of all rates for which the mean response without off-load is as in the paper.
    fn scale(&self, seed: u64) -> Result<f64, String> {
        let case = Case { policy: Policy::Baseline, write_cache: WriteCache::None };
        let (mut low, mut high) = (0.02f64, 2.0f64);
        // To half a per cent.
        while high / low > 1.005 {
            let middle = (low * high).sqrt();
            // A disk that is so far behind is not simulated to the end.
            let is_low = self.measure(&case, middle, seed).is_ok_and(|seen| seen.mean_s() < self.mean_s);
            *(if is_low { &mut low } else { &mut high }) = middle;
        }
        Ok(low)
    }
}

/// Bytes that are off-loaded, of all servers.
fn away(cluster: &mut Cluster) -> Result<u64, String> {
    let of = |at| Ok(cluster.snapshot(at)?.offload.map_or(0, |offload| offload.away_bytes));
    (0..VOLUMES).map(of).sum()
}

#[derive(Clone, Copy)]
struct Case {
    policy: Policy,
    write_cache: WriteCache,
}

/// Response times, nanoseconds.
struct Seen {
    /// By volume: reads and writes.
    volumes: Vec<[Histogram<u64>; 2]>,
    /// By minute in which a request came: number and sum.
    minutes: Vec<(u64, f64)>,
    /// Off-loaded bytes over minutes.
    away: Vec<(f64, u64)>,
    /// Bytes that are still off-loaded at the end of the episode.
    left: u64,
    failed: Option<Done>,
}

impl Seen {
    fn new(minutes: u64) -> Seen {
        let empty = || Histogram::new(3).expect("three digits are allowed");
        Seen {
            volumes: (0..VOLUMES).map(|_| [empty(), empty()]).collect(),
            minutes: vec![(0, 0.0); minutes as usize],
            away: Vec::new(),
            left: 0,
            failed: None,
        }
    }

    fn count(&mut self, volume: usize, done: &Done) {
        if done.failed {
            self.failed = self.failed.or(Some(*done));
        }
        let took_ns = done.done_ns - done.request.intended_ns;
        let minute = &mut self.minutes[((done.request.intended_ns - START_NS) / MINUTE) as usize];
        *minute = (minute.0 + 1, minute.1 + took_ns as f64);
        self.volumes[volume][usize::from(done.request.op == Op::Write)].record(took_ns).expect("histograms grow");
    }

    fn mean_s(&self) -> f64 {
        let (count, sum) = self.minutes.iter().fold((0, 0.0), |sum, minute| (sum.0 + minute.0, sum.1 + minute.1));
        sum / count as f64 / 1e9
    }

    fn worst_minute_s(&self) -> f64 {
        self.minutes.iter().map(|&(count, sum)| sum / count.max(1) as f64 / 1e9).fold(0.0, f64::max)
    }

    fn volume_mean_s(&self, volume: usize) -> f64 {
        let [reads, writes] = &self.volumes[volume];
        let sum = |of: &Histogram<u64>| of.mean() * of.len() as f64;
        (sum(reads) + sum(writes)) / (reads.len() + writes.len()) as f64 / 1e9
    }

    fn data(&self) -> Value {
        let of =
            |of: &Histogram<u64>| json!({"mean_s": of.mean() / 1e9, "p99_s": of.value_at_quantile(0.99) as f64 / 1e9});
        let volumes: Value =
            self.volumes.iter().map(|[reads, writes]| json!({"reads": of(reads), "writes": of(writes)})).collect();
        json!({
            "mean_s": self.mean_s(),
            "worst_minute_s": self.worst_minute_s(),
            "volumes": volumes,
            "away_most": self.away.iter().map(|&(_, bytes)| bytes).max(),
            "away_at_the_end": self.left,
        })
    }
}

/// By episode, policy and seed.
type All = Vec<Vec<Vec<Seen>>>;

fn measure(context: &Context, cases: &[Case], scales: &[Vec<f64>]) -> Result<All, String> {
    let seeds = context.seeds.len();
    let work: Vec<(usize, usize, usize)> = (0..EPISODES.len())
        .flat_map(|episode| (0..cases.len()).flat_map(move |case| (0..seeds).map(move |seed| (episode, case, seed))))
        .collect();
    let seen = context.parallel(&work, |&(episode, case, seed)| {
        EPISODES[episode].measure(&cases[case], scales[episode][seed], context.seeds[seed])
    });
    let mut seen = seen.into_iter();
    let mut some = |count: usize| seen.by_ref().take(count).collect::<Result<Vec<Seen>, String>>();
    (0..EPISODES.len()).map(|_| (0..cases.len()).map(|_| some(seeds)).collect()).collect()
}

fn scales(context: &Context) -> Result<Vec<Vec<f64>>, String> {
    let work: Vec<(usize, u64)> =
        (0..EPISODES.len()).flat_map(|episode| context.seeds.iter().map(move |&seed| (episode, seed))).collect();
    let all = context.parallel(&work, |&(episode, seed)| EPISODES[episode].scale(seed));
    let all: Vec<f64> = all.into_iter().collect::<Result<_, _>>()?;
    Ok(all.chunks(context.seeds.len()).map(<[f64]>::to_vec).collect())
}

/// How many times shorter a mean over seeds is.
fn gain(from: &[Seen], to: &[Seen], of: impl Fn(&Seen) -> f64) -> f64 {
    mean(from.iter().map(&of)) / mean(to.iter().map(&of))
}

fn claims(all: &All) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (episode, least) in [(0, 20.0), (2, 1.4)] {
        let [from, to] = [&all[episode][0], &all[episode][2]];
        let mut claim = |what: &str, of: &dyn Fn(&Seen) -> f64| {
            let name = format!("episode {}, {what}: times shorter", episode + 1);
            claims.push(Claim::new(name, gain(from, to, of), Bound::AtLeast(least)));
        };
        claim("mean", &Seen::mean_s);
        claim("worst minute", &Seen::worst_minute_s);
    }
    let [from, to] = [&all[1][0], &all[1][2]];
    let worst =
        (0..VOLUMES).map(|volume| gain(from, to, |seen| seen.volume_mean_s(volume))).fold(f64::INFINITY, f64::min);
    claims.push(Claim::new("episode 2, the volume that gains least: times shorter", worst, Bound::AtLeast(1.0)));
    let left = all.iter().flat_map(|policies| &policies[2]).map(|seen| seen.left).max().unwrap_or(0);
    claims.push(Claim::new("bytes that are off-loaded at the end, most", left as f64, Bound::AtMost(0.0)));
    claims
}

/// Means of reads or of writes of all volumes, by episode, seconds.
fn means(all: &All, write: usize) -> Result<Picture, String> {
    let of = |seen: &Seen| {
        let sum = |at: &[Histogram<u64>; 2]| (at[write].mean() * at[write].len() as f64, at[write].len());
        let (sum, count) = seen.volumes.iter().map(sum).fold((0.0, 0), |all, of| (all.0 + of.0, all.1 + of.1));
        sum / count as f64 / 1e6
    };
    let groups: Vec<Group> = all
        .iter()
        .zip(1..)
        .map(|(policies, episode)| Group {
            label: format!("episode {episode}"),
            bars: policies.iter().map(|seen| mean(seen.iter().map(of)).log10()).collect(),
        })
        .collect();
    let names = POLICIES.map(|(name, _)| name);
    let what = ["reads", "writes"][write];
    let svg = chart::bars(&format!("{what}: log10 of mean milliseconds"), &names, &groups, None)?;
    let caption = format!("Mean response of {what} (Everest, figure 5).");
    Ok(Picture { name: what.into(), caption, svg })
}

/// Off-loaded bytes over time, of one seed.
fn over_time(all: &All) -> Result<Picture, String> {
    let panel = |episode: usize, policy: usize| Panel {
        title: format!("episode {}, {}", episode + 1, POLICIES[policy].0),
        points: all[episode][policy][0].away.iter().map(|&(minute, bytes)| (minute, bytes as f64 / 1e6)).collect(),
        joined: true,
    };
    let all: Vec<Panel> = (0..EPISODES.len()).flat_map(|episode| [panel(episode, 1), panel(episode, 2)]).collect();
    let svg = panels(("minutes", "MB off-loaded"), &all, 2, None)?;
    let caption = "What is off-loaded over time (Everest, figure 6).".into();
    Ok(Picture { name: "away".into(), caption, svg })
}

fn run(context: &Context) -> Result<Outcome, String> {
    let scales = scales(context)?;
    let cases = |write_cache| POLICIES.map(|(_, policy)| Case { policy, write_cache });
    let all = measure(context, &cases(WriteCache::None), &scales)?;
    let cached = measure(context, &cases(WriteCache::Volatile), &scales)?;
    let of_seed = |all: &All, episode: usize| -> Value {
        POLICIES
            .iter()
            .zip(&all[episode])
            .map(|((name, _), seen)| (*name, seen.iter().map(Seen::data).collect::<Value>()))
            .collect()
    };
    let data: Value = (0..EPISODES.len())
        .map(|at| json!({"scale": scales[at], "cacheless": of_seed(&all, at), "write_back": of_seed(&cached, at)}))
        .collect();
    let pictures = vec![means(&all, 0)?, means(&all, 1)?, over_time(&all)?];
    Ok(Outcome { claims: claims(&all), data, pictures, ..Outcome::default() })
}
