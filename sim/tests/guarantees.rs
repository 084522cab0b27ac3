//! Bandwidth guarantees in slices: tenants whose locality changes, and hostile neighbours.
//!
//! A window is the time that a tenant takes for the bytes of 15 s of its guarantee. It is missed if that is longer than
//! 15 s. The violation is fundamental if the same bytes took longer than share x R x 15 s on a dedicated disk, else
//! avoidable; marginal if the dedicated run is within 5 % of that limit.

use engine::Config;
use engine::control::{TenantSpec, WriteCache};
use engine::disk::policy::Kind;
use engine::units::{MILLISECOND, Nanos, SECOND, Share};
use sim::bench::{Bench, Costs, Done, Volume};
use sim::disk::drive::{Drive, presets};
use sim::load::{Lane, Op, Pace, Record, Workload};
use sim::rng::Rng;

const DISK: &str = "barracuda-7200.9";
const WINDOW: Nanos = 15 * SECOND;
const R: f64 = 0.9;
const DEPTH: u32 = 16;
/// Requests that a run of sequential ones has, in one phase or another.
const RUNS: [u64; 6] = [1, 1, 2, 4, 16, 64];

fn drive() -> Box<dyn Drive> {
    presets::preset(DISK).unwrap().unwrap().build().unwrap()
}

/// Requests whose locality changes: phases with longer and shorter sequential runs.
struct Changing {
    rng: Rng,
    area: u64,
    size: u64,
    phase_bytes: (u64, u64),
    left: u64,
    run: u64,
    run_left: u64,
    at: u64,
}

impl Changing {
    fn new(seed: u64, area: u64) -> Changing {
        let mut rng = Rng::new(seed);
        let size = rng.pick(&[16, 32, 64]) << 10;
        Changing {
            rng,
            area,
            size,
            phase_bytes: (env("PHASE_LEAST", 4) << 20, env("PHASE_MOST", 40) << 20),
            left: 0,
            run: 1,
            run_left: 0,
            at: 0,
        }
    }
}

impl Iterator for Changing {
    type Item = Record;
    fn next(&mut self) -> Option<Record> {
        if self.left < self.size {
            self.left = self.rng.between(self.phase_bytes.0, self.phase_bytes.1);
            self.run = if env("EXTREME", 0) == 1 { self.rng.pick(&[1, 1, 2, 256]) } else { self.rng.pick(&RUNS) };
            self.run_left = 0;
        }
        self.left -= self.size;
        if self.run_left == 0 || self.at + self.size > self.area {
            self.at = self.rng.below(self.area / self.size) * self.size;
            self.run_left = self.run;
        }
        self.run_left -= 1;
        let offset = self.at;
        self.at += self.size;
        Some(Record { time_ns: 0, op: Op::Read, offset, bytes: self.size, stream: 0 })
    }
}

/// A tenant of a run: its share, its guarantee (bytes a second, 0 for none), and its load if it is present.
struct Member {
    share: f64,
    min: u64,
    /// Its volume's place on the disk, 0 to 9.
    place: u64,
    load: Option<Box<dyn Fn(u64) -> Workload>>,
}

fn changing(seed: u64) -> Option<Box<dyn Fn(u64) -> Workload>> {
    Some(Box::new(move |area| {
        Workload::new(vec![Lane::of_trace(Changing::new(seed, area), Pace::Closed { depth: DEPTH, think_ns: 0 })], 0)
    }))
}

/// The answers to a tenant: when, and how many bytes in all by then; and response times.
#[derive(Default)]
struct Got {
    progress: Vec<(Nanos, u64)>,
    waits: Vec<Nanos>,
}

impl Got {
    fn bytes(&self) -> u64 {
        self.progress.last().map_or(0, |&(_, bytes)| bytes)
    }

    /// When the tenant had so many bytes.
    fn at(&self, bytes: u64) -> Nanos {
        let at = self.progress.partition_point(|&(_, so_far)| so_far < bytes);
        if bytes == 0 { 0 } else { self.progress[at].0 }
    }

    fn wait(&self, permille: usize) -> f64 {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        waits.get(waits.len().saturating_sub(1) * permille / 1000).map_or(0.0, |&ns| ns as f64 / 1e9)
    }
}

/// What a run gave.
struct Run {
    got: Vec<Got>,
    round_ns: Nanos,
    /// Part of the time that was lost in switching.
    lost: f64,
}

fn run(members: &[Member], length: Nanos, seed: u64) -> Run {
    let drive = drive();
    let bytes = drive.bytes() / 16 / 4096 * 4096;
    let gap = (drive.bytes() - bytes) / 9;
    let config = Config {
        policy: Kind::Insulated,
        switch_ns: 16 * MILLISECOND,
        round_max_ns: 2400 * MILLISECOND,
        prefetch_bytes_max: if env("PREFETCH", 0) == 1 { None } else { Some(0) },
        seed,
        ..Config::new(64 << 20)
    };
    let specs: Vec<_> = members
        .iter()
        .map(|member| TenantSpec {
            share: Share::from_ppb((member.share * 1e9) as u64),
            min_bytes_per_s: member.min,
            ..TenantSpec::default()
        })
        .collect();
    let present: Vec<_> = (0..members.len()).filter(|&at| members[at].load.is_some()).collect();
    let volumes = present.iter().map(|&tenant| Volume {
        tenant,
        start: gap * members[tenant].place / 4096 * 4096,
        bytes,
        write_cache: WriteCache::Volatile,
        load: members[tenant].load.as_ref().unwrap()(bytes),
    });
    let mut bench = Bench::new(config, drive, Costs::default(), &specs, volumes.collect()).unwrap();
    let mut got: Vec<_> = members.iter().map(|_| Got::default()).collect();
    bench.run(length, |done: Done| {
        let got = &mut got[present[done.volume]];
        let bytes = got.bytes() + done.request.bytes;
        got.progress.push((done.done_ns, bytes));
        got.waits.push(done.done_ns - done.request.intended_ns);
    });
    let snapshot = bench.snapshot().unwrap();
    let round_ns = snapshot.tenants.iter().filter_map(|tenant| tenant.plan).map(|plan| plan.round_ns).max();
    let lost = snapshot.time.switch_ns as f64 / (snapshot.time.switch_ns + snapshot.time.tenant_ns) as f64;
    Run { got, round_ns: round_ns.unwrap_or(0), lost }
}

/// Windows of a tenant.
#[derive(Clone, Copy, Default, Debug)]
struct Windows {
    all: u32,
    missed: u32,
    /// Of the missed ones.
    avoidable: u32,
    avoidable_marginal: u32,
    /// Whether missed or not.
    fundamental: u32,
    marginal: u32,
    worst: f64,
}

impl std::ops::AddAssign for Windows {
    fn add_assign(&mut self, other: Windows) {
        self.all += other.all;
        self.missed += other.missed;
        self.avoidable += other.avoidable;
        self.avoidable_marginal += other.avoidable_marginal;
        self.fundamental += other.fundamental;
        self.marginal += other.marginal;
        self.worst = self.worst.max(other.worst);
    }
}

/// The windows of a tenant with this guarantee and share, the first of which begins after `skipped` bytes.
fn windows(got: &Got, alone: &Got, min: u64, share: f64, skipped: f64) -> Windows {
    let bytes = (min * 15).max(1);
    let first = (skipped * bytes as f64) as u64;
    let last = (got.bytes().min(alone.bytes()) - first) / bytes;
    let mut windows = Windows::default();
    for at in 0..last {
        let (from, to) = (first + at * bytes, first + (at + 1) * bytes);
        let takes = (got.at(to) - got.at(from)) as f64 / WINDOW as f64;
        let needs = (alone.at(to) - alone.at(from)) as f64 / share / R / WINDOW as f64;
        let is_marginal = (0.95..1.05).contains(&needs);
        windows.all += 1;
        windows.fundamental += u32::from(needs > 1.0);
        windows.marginal += u32::from(is_marginal);
        if takes > 1.0 {
            windows.missed += 1;
            windows.avoidable += u32::from(needs <= 1.0 && !is_marginal);
            windows.avoidable_marginal += u32::from(needs <= 1.0 && is_marginal);
            if needs <= 0.95 {
                windows.worst = windows.worst.max(takes);
                if std::env::var("SHOW").is_ok() {
                    println!(
                        "   avoidable: from {:.1} s, takes {:.2}, needs {needs:.2}",
                        got.at(from) as f64 / 1e9,
                        takes * 15.0
                    );
                }
            }
        }
    }
    windows
}

/// A guarantee of which this part of the windows would not fit.
fn guarantee(alone: &Got, share: f64, part: f64) -> u64 {
    let (mut low, mut high) = (1 << 12, 64u64 << 20);
    while high - low > low / 64 {
        let middle = (low + high) / 2;
        let windows = windows(alone, alone, middle, share, 0.0);
        if f64::from(windows.fundamental) > part * f64::from(windows.all) { high = middle } else { low = middle }
    }
    low
}

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[test]
fn explore() {
    let length = env("SECONDS", 400) * SECOND;
    let sizes: Vec<usize> =
        std::env::var("SIZES").unwrap_or("2 3 5 8 10".into()).split(' ').map(|n| n.parse().unwrap()).collect();
    let alone: Vec<_> = (0..10)
        .map(|at| {
            let members: Vec<_> = (0..10)
                .map(|n| Member { share: 0.1, min: 0, place: n, load: changing(n + 1).filter(|_| n == at) })
                .collect();
            run(&members, length, 1).got.into_iter().nth(at as usize).unwrap()
        })
        .collect();
    for n in sizes {
        let share = 1.0 / n as f64;
        let sets = env("SETS", 4);
        for (name, is_set) in [("insulated", false), ("guarantees", true)] {
            if !is_set && env("ONLY", 0) == 1 {
                continue;
            }
            let (mut sum, mut shifted) = (Windows::default(), Windows::default());
            let (mut p99, mut most, mut round, mut lost) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
            let mut bytes = 0;
            for set in 0..sets {
                let mut rng = Rng::new(set * 100 + n as u64);
                let mut who: Vec<usize> = (0..10).collect();
                for at in 0..n {
                    let other = at + rng.below(10 - at as u64) as usize;
                    who.swap(at, other);
                }
                let mins: Vec<_> =
                    who[..n].iter().map(|&at| guarantee(&alone[at], share, env("PART", 15) as f64 / 100.0)).collect();
                let members: Vec<_> = (0..n)
                    .map(|at| Member {
                        share,
                        min: if is_set { mins[at] } else { 0 },
                        place: who[at] as u64,
                        load: changing(who[at] as u64 + 1),
                    })
                    .collect();
                let run = run(&members, length, set);
                for at in 0..n {
                    sum += windows(&run.got[at], &alone[who[at]], mins[at], share, 0.0);
                    shifted += windows(&run.got[at], &alone[who[at]], mins[at], share, 0.4);
                    p99 = p99.max(run.got[at].wait(990));
                    most = most.max(run.got[at].wait(1000));
                    bytes += run.got[at].bytes();
                }
                round = round.max(run.round_ns as f64 / 1e9);
                lost = lost.max(run.lost);
            }
            let p = |n: u32, of: u32| 100.0 * f64::from(n) / f64::from(of.max(1));
            println!(
                "{n:2} {name:10} windows {:5} fund {:4.1} missed {:5.2} avoid {:5.2} (+marg {:5.2}) worst {:.2} | shifted: missed {:5.2} avoid {:5.2} worst {:.2} | p99 {p99:.2} max {most:.2} round {round:.2} lost {lost:.3} MB/s {:.1}",
                sum.all,
                p(sum.fundamental, sum.all),
                p(sum.missed, sum.all),
                p(sum.avoidable, sum.all),
                p(sum.avoidable_marginal, sum.all),
                sum.worst,
                p(shifted.missed, shifted.all),
                p(shifted.avoidable, shifted.all),
                shifted.worst,
                bytes as f64 / sets as f64 / (length as f64 / 1e9) / 1e6
            );
        }
    }
}
