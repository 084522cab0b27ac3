//! Ceilings on a simulated drive: a tenant gets exactly its ceiling, and its neighbour what the disk has left.

use std::num::NonZeroU64;

use engine::Config;
use engine::control::{Ceiling, Ceilings, Command, TenantSpec, WriteCache};
use engine::disk::policy::Kind;
use engine::ids::TenantId;
use engine::units::{MILLISECOND, Nanos, SECOND, Share};
use sim::bench::{Bench, Costs, Done, Volume};
use sim::disk::drive::presets;
use sim::load::{Bursts, Pace, Place, Spec, Stream, Workload};

const WARM_UP: Nanos = 10 * SECOND;
const COUNTED: Nanos = 30 * SECOND;
const MIB: u64 = 1 << 20;

fn reads(depth: u32, bytes: u64, area_bytes: u64) -> Stream {
    let pace = Pace::Closed { depth, think_ns: 0 };
    Stream { area_bytes, pace, sizes: vec![(1, bytes)], align_bytes: bytes, ..Stream::default() }
}

fn writes(stream: Stream) -> Stream {
    Stream { read_ppm: 0, ..stream }
}

fn in_order(stream: Stream) -> Stream {
    Stream { place: Place::Sequential, ..stream }
}

fn total(per_second: u64) -> Ceiling {
    Ceiling { total: NonZeroU64::new(per_second), ..Ceiling::default() }
}

fn bytes(per_second: u64) -> Ceilings {
    Ceilings { bytes: total(per_second), ..Ceilings::default() }
}

fn ios(per_second: u64) -> Ceilings {
    Ceilings { ios: total(per_second), ..Ceilings::default() }
}

/// Tenants with equal shares of a disk, each on a volume of an eighth of it; by slices or by cost.
fn bench(policy: Kind, needs_slices: bool, tenants: &[(Ceilings, Stream)]) -> Bench {
    let drive = presets::preset("cheetah-15k5").unwrap().unwrap().build().unwrap();
    let config = Config { policy, needs_slices, switch_ns: 6 * MILLISECOND, ..Config::new(128 << 20) };
    let size = drive.bytes() / 8 / MIB * MIB;
    let share = Share::from_ppb(Share::ONE.ppb() / tenants.len() as u64);
    let specs: Vec<_> =
        (tenants.iter()).map(|&(ceilings, _)| TenantSpec { share, ceilings, ..TenantSpec::default() }).collect();
    let volume = |(tenant, (_, stream)): (usize, &(Ceilings, Stream))| {
        let stream = Stream { area_bytes: stream.area_bytes.min(size), ..stream.clone() };
        let load = Workload::described(&Spec { seed: tenant as u64 + 1, streams: vec![stream] }, 0).unwrap();
        Volume { tenant, start: tenant as u64 * 4 * size, bytes: size, write_cache: WriteCache::Volatile, load }
    };
    let volumes = tenants.iter().enumerate().map(volume).collect();
    Bench::new(config, drive, Costs::default(), &specs, volumes).unwrap()
}

/// What a tenant got.
#[derive(Clone, Copy, Default, Debug)]
struct Got {
    requests: f64,
    bytes: f64,
    /// Disk time that it had, throttled time, and live insulation with the cache that it has.
    owned: f64,
    throttled: f64,
    keeps: Option<f64>,
}

fn count(bench: &mut Bench, for_ns: Nanos, tenants: usize) -> Vec<Got> {
    let mut got = vec![Got::default(); tenants];
    let before = bench.snapshot().unwrap();
    let seconds = for_ns as f64 / SECOND as f64;
    bench.run(bench.now() + for_ns, |done: Done| {
        let got = &mut got[done.volume];
        (got.requests, got.bytes) = (got.requests + 1.0 / seconds, got.bytes + done.request.bytes as f64 / seconds);
    });
    let after = bench.snapshot().unwrap();
    let share = 1.0 / tenants as f64;
    for ((got, before), after) in got.iter_mut().zip(before.tenants).zip(after.tenants) {
        got.owned = (after.usage.owned_ns - before.usage.owned_ns) as f64 / for_ns as f64;
        got.throttled = (after.throttled_ns - before.throttled_ns) as f64 / for_ns as f64;
        let progress = before.progress.zip(after.progress);
        got.keeps = progress.and_then(|(before, after)| after.own_cache_insulation_since(&before, share));
    }
    got
}

fn run(policy: Kind, needs_slices: bool, tenants: &[(Ceilings, Stream)]) -> Vec<Got> {
    let mut bench = bench(policy, needs_slices, tenants);
    bench.run(WARM_UP, |_| ());
    count(&mut bench, COUNTED, tenants.len())
}

#[test]
fn a_tenant_gets_exactly_its_ceiling() {
    let cases = [
        ("hits", ios(500), reads(1, 4096, 8 * MIB)),
        ("hits", ios(20_000), reads(128, 4096, 8 * MIB)),
        ("hits", bytes(50 * MIB), reads(1, MIB, 8 * MIB)),
        ("hits", bytes(50 * MIB), reads(16, 8 * MIB, 32 * MIB)),
        ("misses", ios(50), reads(1, 4096, u64::MAX)),
        ("misses", ios(100), reads(16, 4096, u64::MAX)),
        ("misses", bytes(200 << 10), reads(128, 4096, u64::MAX)),
        ("stream", bytes(30 * MIB), in_order(reads(1, 64 << 10, u64::MAX))),
        ("stream", ios(60), in_order(reads(4, MIB, u64::MAX))),
        ("writes", ios(500), writes(reads(1, 4096, 8 * MIB))),
        ("writes", bytes(10 * MIB), writes(reads(128, 16 << 10, 32 * MIB))),
        ("writes", bytes(30 * MIB), writes(in_order(reads(16, MIB, u64::MAX)))),
    ];
    for (policy, needs_slices) in [(Kind::Insulated, true), (Kind::Insulated, false), (Kind::None, true)] {
        for (name, ceilings, load) in cases.clone() {
            let size = load.sizes[0].1;
            let got = run(policy, needs_slices, &[(ceilings, load.clone())])[0];
            let part = match (ceilings.bytes.total, ceilings.ios.total) {
                (Some(rate), _) => got.bytes / rate.get() as f64,
                (_, Some(rate)) => got.requests * size.div_ceil(256 << 10) as f64 / rate.get() as f64,
                _ => unreachable!("a ceiling"),
            };
            let what = format!("{policy:?} {name:>7} {size:8} {:?}: {part:.3} of the ceiling, {got:.2?}", load.pace);
            println!("{what}");
            assert!((part - 1.0).abs() <= 0.02, "{what}");
            assert!(got.keeps.is_none_or(|keeps| keeps >= 0.9), "{what}");
        }
    }
}

/// Requests in each tenth of a second.
fn by_tenths(bench: &mut Bench, tenths: u64) -> Vec<u64> {
    let (begin, mut counts) = (bench.now(), vec![0; tenths as usize]);
    bench.run(begin + tenths * SECOND / 10, |done: Done| {
        counts[((done.done_ns - begin - 1) / (SECOND / 10)) as usize] += 1;
    });
    counts
}

/// A client that pauses for 20 s after each 20 s saves two seconds of its ceiling, and a change is seen at once.
#[test]
fn an_unused_ceiling_is_saved_and_a_change_takes_effect_at_once() {
    let bursts = Some(Bursts { on_ns: 20 * SECOND, off_ns: 20 * SECOND });
    let load = Stream { bursts, ..reads(4, 4096, 8 * MIB) };
    let mut bench = bench(Kind::Insulated, true, &[(ios(500), load)]);
    bench.run(40 * SECOND, |_| ());
    let counts = by_tenths(&mut bench, 10);
    let after: u64 = counts[1..].iter().sum();
    assert!((1000..=1060).contains(&counts[0]) && (445..=455).contains(&after), "{counts:?}");
    let ceilings = Ceilings { burst_ns: 10 * MILLISECOND, ..ios(2000) };
    bench.ask(Command::SetTenant(TenantId(0), TenantSpec { ceilings, ..TenantSpec::default() })).unwrap();
    let counts = by_tenths(&mut bench, 10);
    assert!(counts.iter().all(|count| (195..=225).contains(count)), "{counts:?}");
    bench.run(80 * SECOND, |_| ());
    let counts = by_tenths(&mut bench, 10);
    assert!(counts.iter().all(|count| (195..=225).contains(count)), "saved at most 20: {counts:?}");
    bench.ask(Command::SetTenant(TenantId(0), TenantSpec::default())).unwrap();
    assert!(by_tenths(&mut bench, 10).iter().all(|&count| count > 5000), "without a ceiling");
}

#[test]
fn a_neighbour_gets_the_rest() {
    let loads = [
        ("1", ios(30), reads(1, 4096, u64::MAX)),
        ("16", ios(30), reads(16, 4096, u64::MAX)),
        ("stream", bytes(10 * MIB), in_order(reads(1, 64 << 10, u64::MAX))),
        ("hits", ios(500), reads(1, 4096, 8 * MIB)),
        ("writes", bytes(10 * MIB), writes(in_order(reads(4, 64 << 10, u64::MAX)))),
    ];
    for (name, neighbour) in [("16", reads(16, 4096, u64::MAX)), ("1", reads(1, 4096, u64::MAX))] {
        let alone = run(Kind::Insulated, true, &[(Ceilings::default(), neighbour.clone())])[0];
        for (own, ceilings, load) in loads.clone() {
            let got = run(Kind::Insulated, true, &[(ceilings, load), (Ceilings::default(), neighbour.clone())]);
            let rate = ceilings.bytes.total.map(|rate| got[0].bytes / rate.get() as f64);
            let part = rate.unwrap_or_else(|| got[0].requests / ceilings.ios.total.unwrap().get() as f64);
            let rest = got[1].requests / alone.requests / (1.0 - got[0].owned);
            let what =
                format!("{own} beside {name}: {part:.3} of the ceiling, neighbour {rest:.3} of the rest; {got:.2?}");
            println!("{what}");
            // What was saved in the warm-up may be used in addition.
            let saved = ceilings.burst_ns as f64 / COUNTED as f64;
            assert!((0.98..=1.02 + saved).contains(&part), "{what}");
            // Switches to the tenant and back cost at most 1 - R, which is 0.1, and what the neighbour loses in drains.
            assert!(rest >= 0.88, "{what}");
            // Both get all that they want, which is more than their shares.
            assert!(got.iter().all(|got| got.keeps.is_none_or(|keeps| keeps >= 1.0)), "{what}");
        }
    }
}
