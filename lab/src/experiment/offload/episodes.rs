//! The three highest peaks of a mail server, on three disks that are each other's stores.

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

use super::super::loads::Load;
use super::super::stand::mixed;
use super::rack::{Rack, Server};

/// A peak and what is before and after it.
#[derive(Clone)]
pub struct Episode {
    pub minutes: u64,
    requests: f64,
    /// Part of the requests.
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

pub const VOLUMES: usize = 3;
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
/// How near a mean without off-load is to the paper's, as a part of it; the second where the least change of the scale
/// makes it jump over that.
const MEAN_WITHIN: f64 = 0.05;
const JUMP_WITHIN: f64 = 0.15;
/// The least step of a scale.
const SCALE_WITHIN: f64 = 1e-6;
/// How often it is seen what is off-loaded.
const STEP_NS: Nanos = 5 * SECOND;
/// Time that late answers may take after an episode.
const LATE: u64 = 60;

/// Minutes of an episode in a quick run: the peak and a few after it.
const QUICK_MINUTES: u64 = 12;

/// How writes are off-loaded.
#[derive(Clone, Copy, PartialEq)]
pub enum Policy {
    Baseline,
    Always,
    Peak(Settings),
}

/// The three episodes, or the first minutes of them.
pub fn episodes(quick: bool) -> Vec<Episode> {
    let cut = |of: &Episode| {
        let minutes = if quick { QUICK_MINUTES.min(of.minutes) } else { of.minutes };
        Episode { minutes, requests: of.peak + of.calm() * (minutes - 1) as f64, ..of.clone() }
    };
    EPISODES.iter().map(cut).collect()
}

impl Episode {
    /// The requests of a minute that is not the peak, of all volumes.
    fn calm(&self) -> f64 {
        (self.requests - self.peak) / (self.minutes - 1) as f64
    }

    /// The requests of a volume in a minute, on average.
    fn rate(&self, volume: usize, minute: u64) -> f64 {
        match (minute, volume) {
            (PEAK_MINUTE, 0) => self.peak * PEAK_PART,
            (PEAK_MINUTE, _) => self.peak * (1.0 - PEAK_PART) / (VOLUMES - 1) as f64,
            _ => self.calm() / VOLUMES as f64,
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

    /// Runs it until the last answer.
    pub fn measure(&self, case: &Case, scale: f64, seed: u64) -> Result<Seen, String> {
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

    /// The factor of all rates for which the mean response without off-load is as in the paper, and that mean,
    /// seconds.
    pub fn scale(&self, seed: u64) -> Result<(f64, f64), String> {
        let case = Case { policy: Policy::Baseline, write_cache: WriteCache::None };
        let (mut low, mut high) = (0.02f64, 2.0f64);
        let mut nearest = (f64::INFINITY, 0.0, 0.0);
        loop {
            let middle = (low * high).sqrt();
            // A disk that is so far behind is not simulated to the end.
            let mean_s = self.measure(&case, middle, seed).map_or(f64::INFINITY, |seen| seen.mean_s());
            let miss = (mean_s / self.mean_s - 1.0).abs();
            if miss < nearest.0 {
                nearest = (miss, middle, mean_s);
            }
            let is_searched = high / low < 1.0 + SCALE_WITHIN;
            if nearest.0 < if is_searched { JUMP_WITHIN } else { MEAN_WITHIN } {
                return Ok((nearest.1, nearest.2));
            }
            if is_searched {
                return Err(format!("no scale from {low} to {high} has a mean of {} s: {mean_s}", self.mean_s));
            }
            *(if mean_s < self.mean_s { &mut low } else { &mut high }) = middle;
        }
    }
}

/// Bytes that are off-loaded, of all servers.
fn away(cluster: &mut Cluster) -> Result<u64, String> {
    let of = |at| Ok(cluster.snapshot(at)?.offload.map_or(0, |offload| offload.away_bytes));
    (0..VOLUMES).map(of).sum()
}

/// A run of an episode.
#[derive(Clone, Copy)]
pub struct Case {
    pub policy: Policy,
    pub write_cache: WriteCache,
}

/// What an episode was like.
pub struct Seen {
    /// Responses by volume, of reads and of writes, nanoseconds.
    pub volumes: Vec<[Histogram<u64>; 2]>,
    /// By minute in which a request came: number and sum.
    minutes: Vec<(u64, f64)>,
    /// Off-loaded bytes over minutes.
    pub away: Vec<(f64, u64)>,
    /// Bytes that are still off-loaded at the end of the episode.
    pub left: u64,
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

    pub fn mean_s(&self) -> f64 {
        let (count, sum) = self.minutes.iter().fold((0, 0.0), |sum, minute| (sum.0 + minute.0, sum.1 + minute.1));
        sum / count as f64 / 1e9
    }

    pub fn worst_minute_s(&self) -> f64 {
        self.minutes.iter().map(|&(count, sum)| sum / count.max(1) as f64 / 1e9).fold(0.0, f64::max)
    }

    pub fn volume_mean_s(&self, volume: usize) -> f64 {
        let [reads, writes] = &self.volumes[volume];
        let sum = |of: &Histogram<u64>| of.mean() * of.len() as f64;
        (sum(reads) + sum(writes)) / (reads.len() + writes.len()) as f64 / 1e9
    }

    /// Off-loaded bytes, on average over the episode.
    pub fn mean_away(&self) -> f64 {
        self.away.iter().map(|&(_, bytes)| bytes as f64).sum::<f64>() / self.away.len() as f64
    }

    pub fn data(&self) -> Value {
        let of =
            |of: &Histogram<u64>| json!({"mean_s": of.mean() / 1e9, "p99_s": of.value_at_quantile(0.99) as f64 / 1e9});
        let volumes: Value =
            self.volumes.iter().map(|[reads, writes]| json!({"reads": of(reads), "writes": of(writes)})).collect();
        json!({
            "mean_s": self.mean_s(),
            "worst_minute_s": self.worst_minute_s(),
            "volumes": volumes,
            "away_most": self.away.iter().map(|&(_, bytes)| bytes).max(),
            "away_mean": self.mean_away(),
            "away_at_the_end": self.left,
        })
    }
}
