//! What tenants keep of their shares in slices: clients that pause between requests and their neighbours, many tenants,
//! and latency-bound ones beside a deep queue.
//!
//! The whole tables: `make test-tables`.

use engine::Config;
use engine::control::{TenantSpec, WriteCache};
use engine::disk::policy::Kind;
use engine::disk::profile::{BUDGET_NS, Key, Options, Profile, Quantile};
use engine::units::{MILLISECOND, Nanos, SECOND, Share};
use sim::bench::{Bench, Costs, Done, Volume};
use sim::disk::drive::{Drive, presets};
use sim::disk::probe::probe;
use sim::load::{Pace, Place, Spec, Stream, Workload};

const DISKS: [&str; 3] = ["cheetah-15k5", "barracuda-7200.9", "nearline"];
const WARM_UP: Nanos = 20 * SECOND;
const COUNTED: Nanos = 60 * SECOND;
const R: f64 = 0.9;

/// Random reads of 4 KiB, `depth` at a time; the client thinks for `think_ns` after each.
fn random(depth: u32, think_ns: Nanos) -> Stream {
    Stream { area_bytes: u64::MAX, pace: Pace::Closed { depth, think_ns }, ..Stream::default() }
}

/// Sequential reads of 64 KiB.
fn stream() -> Stream {
    Stream { place: Place::Sequential, sizes: vec![(1, 64 << 10)], align_bytes: 64 << 10, ..random(1, 0) }
}

fn drive(disk: &str) -> Box<dyn Drive> {
    presets::preset(disk).unwrap().unwrap().build().unwrap()
}

/// What a tenant gets: requests per second, and the 99th percentile of response times.
struct Got {
    per_s: f64,
    p99_ms: f64,
}

/// A disk, and the switch cost that its probe finds.
struct Disk {
    name: &'static str,
    switch_ns: Nanos,
}

impl Disk {
    fn probed(name: &'static str) -> Disk {
        let mut profile = Profile::default();
        let options = Options { budget_ns: BUDGET_NS, seed: 1, read_only: true };
        profile.take(&probe(&mut *drive(name), options).0, 0);
        let switch_ns = profile.number(Key::SwitchCost(Quantile::P50)).expect("a drive with heads") as Nanos;
        Disk { name, switch_ns }
    }

    /// Runs these tenants with their shares, on volumes of an eighth of the disk; those that are `None` are absent.
    /// Returns what each gets, and the round, milliseconds.
    fn run(&self, tenants: &[(f64, Option<Stream>)]) -> (Vec<Got>, f64) {
        let drive = drive(self.name);
        let bytes = drive.bytes() / 8 / 4096 * 4096;
        let gap = (drive.bytes() - bytes) / (tenants.len() as u64 - 1).max(1);
        let config = Config { policy: Kind::Insulated, switch_ns: self.switch_ns, ..Config::new(64 << 20) };
        let specs = tenants
            .iter()
            .map(|&(share, _)| TenantSpec { share: Share::from_ppb((share * 1e9) as u64), ..TenantSpec::default() });
        let volumes = tenants.iter().enumerate().filter_map(|(tenant, (_, load))| {
            let load = load.clone()?;
            let load = Stream { area_bytes: load.area_bytes.min(bytes), ..load };
            let load = Workload::described(&Spec { seed: tenant as u64 + 1, streams: vec![load] }, 0).unwrap();
            let start = gap * tenant as u64 / 4096 * 4096;
            Some(Volume { tenant, start, bytes, write_cache: WriteCache::Volatile, load })
        });
        let present: Vec<_> = (0..tenants.len()).filter(|&at| tenants[at].1.is_some()).collect();
        let specs: Vec<_> = specs.collect();
        let mut bench = Bench::new(config, drive, Costs::default(), &specs, volumes.collect()).unwrap();
        let mut waits = vec![Vec::new(); tenants.len()];
        bench.run(WARM_UP, |_| ());
        bench.run(WARM_UP + COUNTED, |done: Done| {
            waits[present[done.volume]].push(done.done_ns - done.request.intended_ns);
        });
        let figures = waits.iter_mut().map(|waits| {
            waits.sort_unstable();
            let p99 = waits.get(waits.len() * 99 / 100).copied().unwrap_or(0);
            Got { per_s: waits.len() as f64 / (COUNTED as f64 / 1e9), p99_ms: p99 as f64 / 1e6 }
        });
        let plans = bench.snapshot().unwrap().tenants;
        let round_ns = plans.iter().filter_map(|tenant| tenant.plan).map(|plan| plan.round_ns).max();
        (figures.collect(), round_ns.unwrap_or(0) as f64 / 1e6)
    }

    /// What each tenant has alone, requests per second.
    fn alone(&self, tenants: &[(f64, Option<Stream>)], at: usize) -> f64 {
        let only =
            |(number, tenant): (usize, &(f64, Option<Stream>))| (tenant.0, tenant.1.clone().filter(|_| number == at));
        self.run(&tenants.iter().enumerate().map(only).collect::<Vec<_>>()).0[at].per_s
    }
}

/// What the pausing tenant and the worst of the others keep, and the 99th percentile of the pausing one.
struct Row {
    kept: f64,
    neighbour: f64,
    p99_ms: f64,
    round_ms: f64,
}

fn row(disk: &Disk, share: f64, others: &[Stream], alone: &[f64], pause_ms: u64) -> Row {
    let mut tenants = vec![(share, Some(random(1, pause_ms * MILLISECOND)))];
    let rest = (1.0 - share) / others.len() as f64;
    tenants.extend(others.iter().map(|load| (rest, Some(load.clone()))));
    let pausing = disk.alone(&tenants, 0);
    let (got, round_ms) = disk.run(&tenants);
    let kept = |at: usize, alone: f64| got[at].per_s / alone / tenants[at].0;
    let neighbour = alone.iter().enumerate().map(|(at, &alone)| kept(at + 1, alone)).fold(f64::MAX, f64::min);
    Row { kept: kept(0, pausing), neighbour, p99_ms: got[0].p99_ms, round_ms }
}

/// The table of one disk: rows are pauses and neighbours. All keep R.
fn table(disk: &Disk, shares: &[f64], neighbours: &[(&str, Vec<Stream>)], pauses_ms: &[u64]) {
    for &share in shares {
        for (name, others) in neighbours {
            let rest = (1.0 - share) / others.len() as f64;
            let alone: Vec<_> = (0..others.len())
                .map(|at| {
                    let mut tenants = vec![(share, None)];
                    tenants.extend(others.iter().map(|load| (rest, Some(load.clone()))));
                    disk.alone(&tenants, at + 1)
                })
                .collect();
            for &pause_ms in pauses_ms {
                let Row { kept, neighbour, p99_ms, round_ms } = row(disk, share, others, &alone, pause_ms);
                // A client that pauses for more than half of its slice is to be answered within a round.
                let is_late = pause_ms as f64 > share * round_ms / 2.0 && p99_ms > round_ms;
                let what = format!(
                    "{:16} {share:.2} {name:>8} {pause_ms:5} ms: keeps {kept:.2}, neighbour {neighbour:.2}, \
                     99 % within {p99_ms:6.1} ms, round {round_ms:6.1} ms{}",
                    disk.name,
                    if is_late { ", more than a round" } else { "" }
                );
                println!("{what}");
                assert!(kept >= R && neighbour >= R, "{what}");
            }
        }
    }
}

fn neighbours() -> Vec<(&'static str, Vec<Stream>)> {
    vec![
        ("1", vec![random(1, 0)]),
        ("16", vec![random(16, 0)]),
        ("128", vec![random(128, 0)]),
        ("stream", vec![stream()]),
        ("three", vec![random(1, 0), random(16, 0), stream()]),
    ]
}

#[test]
fn a_client_that_pauses_keeps_its_share_and_so_does_its_neighbour() {
    let some = neighbours().into_iter().filter(|(name, _)| ["1", "128"].contains(name)).collect::<Vec<_>>();
    table(&Disk::probed("cheetah-15k5"), &[0.5], &some, &[5, 50, 100, 200, 400]);
}

#[test]
#[ignore = "the whole table takes minutes"]
fn table_of_pauses() {
    const PAUSES_MS: [u64; 12] = [1, 5, 20, 50, 80, 100, 200, 300, 400, 700, 1000, 2000];
    std::thread::scope(|scope| {
        for disk in DISKS {
            scope.spawn(move || table(&Disk::probed(disk), &[0.5, 0.25], &neighbours(), &PAUSES_MS));
        }
    });
}

/// What each of these tenants keeps, and its 99th percentile, milliseconds; and the round.
fn mix(disk: &Disk, tenants: &[(f64, Stream)]) -> (Vec<(f64, f64)>, f64) {
    let tenants: Vec<_> = tenants.iter().map(|(share, load)| (*share, Some(load.clone()))).collect();
    let (got, round_ms) = disk.run(&tenants);
    let kept = |(at, got): (usize, &Got)| (got.per_s / disk.alone(&tenants, at) / tenants[at].0, got.p99_ms);
    (got.iter().enumerate().map(kept).collect(), round_ms)
}

/// A log that flushes each write, in order, beside a stream: in its slice it makes many such pairs, whose costs differ
/// by a factor of 200 if the order of the writes counts.
#[test]
fn a_sequential_log_that_flushes_each_write_keeps_its_share() {
    let log = Stream { read_ppm: 0, flush_every: 1, place: Place::Sequential, ..random(1, 0) };
    let (kept, round_ms) = mix(&Disk::probed("nearline"), &[(0.125, log), (0.875, stream())]);
    assert!(kept.iter().all(|(kept, _)| *kept >= R), "{kept:?}, round {round_ms} ms");
}

/// Sixteen tenants from the outer to the inner edge, with one random read outstanding each, keep R.
#[test]
#[ignore = "the whole table takes minutes"]
fn table_of_many() {
    for disk in DISKS.map(Disk::probed) {
        let (kept, round_ms) = mix(&disk, &vec![(1.0 / 16.0, random(1, 0)); 16]);
        let all: Vec<_> = kept.iter().map(|(kept, _)| format!("{kept:.2}")).collect();
        let what = format!("{:16} round {round_ms:6.1} ms: {}", disk.name, all.join(" "));
        println!("{what}");
        assert!(kept.iter().all(|(kept, _)| *kept >= R), "{what}");
    }
}

/// Three tenants with one random read outstanding beside one with half of the disk and a deep queue keep R, and so does
/// that one.
#[test]
#[ignore = "the whole table takes minutes"]
fn table_of_a_deep_queue() {
    for disk in DISKS.map(Disk::probed) {
        for depth in [16, 32, 128] {
            let mut tenants = vec![(1.0 / 6.0, random(1, 0)); 3];
            tenants.push((0.5, random(depth, 0)));
            for tenants in [&tenants[..], &[(0.5, random(1, 0)), (0.5, random(depth, 0))]] {
                let (kept, round_ms) = mix(&disk, tenants);
                let all: Vec<_> = kept.iter().map(|(kept, p99_ms)| format!("{kept:.2} ({p99_ms:.0} ms)")).collect();
                let what = format!("{:16} {depth:4} round {round_ms:6.1} ms: {}", disk.name, all.join(", "));
                println!("{what}");
                assert!(kept.iter().all(|(kept, _)| *kept >= R), "{what}");
            }
        }
    }
}
