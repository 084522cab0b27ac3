//! A store tenant beside another tenant of its disk, and alone: what both get, whatever the logs do.

use engine::Config;
use engine::control::{Command, Decision, PlanRequest, Refusal, TenantSpec, WriteCache};
use engine::disk::policy::Kind;
use engine::ids::TenantId;
use engine::units::{Nanos, SECOND, Share};
use sim::bench::raw::Raw;
use sim::bench::{Bench, Costs, Done, Volume};
use sim::disk::drive::{Drive, presets};
use sim::load::{Pace, Place, Spec, Stream, Workload};

const DISK: &str = "cheetah-15k5";
/// The switch cost that a probe of the drive finds.
const SWITCH_NS: Nanos = 8_000_000;
/// Beside a neighbour: until the losses are known, and what is counted then.
const LONG: [Nanos; 2] = [20 * SECOND, 60 * SECOND];
/// Of an idle disk.
const SHORT: [Nanos; 2] = [SECOND, 5 * SECOND];
const R: f64 = 0.9;
const STORE_SHARE: f64 = 0.05;
const STORE: usize = 1;

fn drive() -> Box<dyn Drive> {
    presets::preset(DISK).unwrap().unwrap().build().unwrap()
}

/// Random reads of 4 KiB, `depth` at a time.
fn random(depth: u32) -> Stream {
    Stream { area_bytes: u64::MAX, pace: Pace::Closed { depth, think_ns: 0 }, ..Stream::default() }
}

/// A log: writes in sequence, of `bytes` each, `depth` at a time.
fn log(bytes: u64, depth: u32) -> Stream {
    Stream { read_ppm: 0, place: Place::Sequential, sizes: vec![(1, bytes)], align_bytes: bytes, ..random(depth) }
}

/// The scan of a recovery: reads in sequence.
fn scan(bytes: u64, depth: u32) -> Stream {
    Stream { read_ppm: 1_000_000, ..log(bytes, depth) }
}

/// Bytes of a volume: an eighth of the disk.
fn volume_bytes() -> u64 {
    drive().bytes() / 8 / 4096 * 4096
}

fn workload(seed: u64, stream: Stream) -> Workload {
    let area_bytes = stream.area_bytes.min(volume_bytes());
    Workload::described(&Spec { seed, streams: vec![Stream { area_bytes, ..stream }] }, 0).unwrap()
}

/// A neighbour with the remaining share, and a store tenant with a store for each of `logs`; at the same places, absent
/// ones or not.
fn bench(neighbour: Option<Stream>, logs: &[Stream]) -> Bench {
    let config = Config { policy: Kind::Insulated, switch_ns: SWITCH_NS, ..Config::new(64 << 20) };
    let share = |of: f64| Share::from_ppb((of * 1e9) as u64);
    let tenants = [
        TenantSpec { share: share(1.0 - STORE_SHARE), ..TenantSpec::default() },
        TenantSpec { share: share(STORE_SHARE), is_store: true, ..TenantSpec::default() },
    ];
    let bytes = volume_bytes();
    let reader = neighbour.map(|stream| Volume {
        tenant: 0,
        start: 0,
        bytes,
        write_cache: WriteCache::Volatile,
        load: workload(1, stream),
    });
    let stores = logs.iter().zip(2..).map(|(stream, at)| Volume {
        tenant: STORE,
        start: 3 * at / 2 * bytes,
        bytes,
        write_cache: WriteCache::None,
        load: workload(at, stream.clone()),
    });
    Bench::new(config, drive(), Costs::default(), &tenants, reader.into_iter().chain(stores).collect()).unwrap()
}

/// What each volume got, bytes a second, and what else was seen.
struct Got {
    per_s: Vec<f64>,
    /// The part of the disk's time that the store tenant had, and its slice and the round at the end, milliseconds.
    store_part: f64,
    slice_ms: f64,
    round_ms: f64,
}

fn run(neighbour: Option<Stream>, logs: &[Stream], [warm_up, counted]: [Nanos; 2]) -> Got {
    let mut bench = bench(neighbour.clone(), logs);
    let mut bytes = vec![0; logs.len() + usize::from(neighbour.is_some())];
    bench.run(warm_up, |_| ());
    let owned = |bench: &mut Bench| bench.snapshot().unwrap().tenants[STORE].usage.owned_ns;
    let before = owned(&mut bench);
    bench.run(warm_up + counted, |done: Done| {
        assert!(!done.failed);
        bytes[done.volume] += done.request.bytes;
    });
    let store = bench.snapshot().unwrap().tenants[STORE];
    assert!(store.sizing.is_none() && store.progress.is_none(), "a store tenant has no R");
    let plan = store.plan.unwrap();
    assert_eq!((plan.need_ns, plan.burst_ns), (None, 0), "nothing is planned for what it loses");
    Got {
        per_s: bytes.iter().map(|&bytes| bytes as f64 / (counted as f64 / 1e9)).collect(),
        store_part: (owned(&mut bench) - before) as f64 / counted as f64,
        slice_ms: plan.slice_ns as f64 / 1e6,
        round_ms: plan.round_ns as f64 / 1e6,
    }
}

/// The neighbour with its disk to itself, bytes a second.
fn alone(neighbour: &Stream) -> f64 {
    run(Some(neighbour.clone()), &[], LONG).per_s[0]
}

#[test]
fn a_neighbour_keeps_its_share_whatever_the_stores_do() {
    let all = vec![log(64 << 10, 32), log(4096, 32), random(64)];
    let cases = [
        ("32 random reads, a log of 4 KiB", random(32), vec![log(4096, 32)]),
        ("32 random reads, a log of 256 KiB", random(32), vec![log(256 << 10, 32)]),
        ("32 random reads, random reads", random(32), vec![random(64)]),
        ("32 random reads, two logs and random reads", random(32), all.clone()),
        ("1 random read, two logs and random reads", random(1), all.clone()),
        ("a scan, two logs and random reads", scan(64 << 10, 1), all),
    ];
    let mut before = (random(0), 0.0);
    for (name, reader, logs) in cases {
        if before.0 != reader {
            before = (reader.clone(), alone(&reader));
        }
        let alone_per_s = before.1;
        let got = run(Some(reader), &logs, LONG);
        let kept = got.per_s[0] / alone_per_s / (1.0 - STORE_SHARE);
        let of_store: f64 = got.per_s[1..].iter().sum();
        let what = format!(
            "{name}: the neighbour keeps {kept:.3}; the store has {:.3} of the time, {:.2} MB/s, a slice of {:.1} ms \
             in {:.0} ms",
            got.store_part,
            of_store / 1e6,
            got.slice_ms,
            got.round_ms
        );
        println!("{what}");
        assert!(kept >= R, "{what}");
        assert!((0.9 * STORE_SHARE..=1.1 * STORE_SHARE).contains(&got.store_part), "{what}");
        assert!(got.per_s[1..].iter().all(|&bytes| bytes > 0.0), "{what}");
    }
}

/// The rate at which the bare drive reads in sequence at the place of the first store, bytes a second.
fn streaming() -> f64 {
    let mut raw = Raw::new(drive(), 3 * volume_bytes(), workload(2, scan(256 << 10, 8)));
    let mut bytes = 0;
    raw.run(SHORT[1], |done| bytes += done.request.bytes);
    bytes as f64 / (SHORT[1] as f64 / 1e9)
}

#[test]
fn a_store_alone_on_its_disk_has_all_of_it() {
    let streams = streaming();
    let cases = [("FUA writes of 256 KiB", log(256 << 10, 32)), ("reads of 256 KiB", scan(256 << 10, 32))];
    for (name, stream) in cases {
        let got = run(None, &[stream], SHORT);
        let part = got.per_s[0] / streams;
        let what = format!("{name}: {:.1} of {:.1} MB/s", got.per_s[0] / 1e6, streams / 1e6);
        println!("{what}");
        assert!(part >= 0.9, "{what}");
    }
}

/// A revolution of the drive, 15,000 a minute.
const REVOLUTION_S: f64 = 0.004;

/// What a log gets of an idle disk by the size and the number of its outstanding writes. A durable write that is not in
/// the drive's queue when its predecessor is on the medium waits for a revolution: so what is outstanding is written in
/// one revolution and the time that its transfer takes.
#[test]
fn a_log_needs_several_outstanding_writes() {
    let streams = streaming();
    for (kib, depth) in [(4, 1), (4, 8), (4, 16), (4, 32), (64, 1), (64, 4), (64, 8), (256, 1), (256, 2), (256, 8)] {
        let bytes = ((kib << 10) * u64::from(depth)) as f64;
        let least = bytes / (REVOLUTION_S + bytes / streams);
        let per_s = run(None, &[log(kib << 10, depth)], SHORT).per_s[0];
        let what =
            format!("{depth} FUA writes of {kib} KiB: {:.1} MB/s, {:.2} of streaming", per_s / 1e6, per_s / streams);
        println!("{what}");
        assert!(per_s >= 0.9 * least, "{what}");
    }
}

/// The cache of a store tenant is there for requests in flight, and it is not read ahead.
#[test]
fn a_store_has_no_cache_beyond_its_requests() {
    let mut bench = bench(Some(random(4)), &[scan(4096, 1), log(4096, 8)]);
    bench.run(30 * SECOND, |_| ());
    let snapshot = bench.snapshot().unwrap();
    let store = snapshot.tenants[STORE];
    assert_eq!(store.target_frames, engine::control::STORE_CACHE_BYTES / engine::control::FRAME_BYTES);
    let [reads, writes] = [&snapshot.volumes[1], &snapshot.volumes[2]];
    assert!(reads.read.requests > 0 && writes.write.requests > 0);
    assert_eq!((reads.prefetched_blocks, reads.prefetch_wasted_blocks), (0, 0));
    let volatile = bench.ask(Command::SetWriteCache(writes.volume, WriteCache::Volatile)).unwrap();
    assert!(format!("{volatile:?}").contains("Store"), "{volatile:?}");
    let curve = bench.ask(Command::Curve(writes.volume, None)).unwrap();
    assert!(format!("{curve:?}").contains("Store"), "{curve:?}");
}

#[test]
fn the_planner_counts_the_share_of_stores_and_decides_nothing_on_them() {
    let mut bench = bench(Some(random(4)), &[log(4096, 8)]);
    bench.run(80 * SECOND, |_| ());
    let [neighbour, store] = [0, 1].map(|at| bench.snapshot().unwrap().tenants[at]);
    let sizing = neighbour.sizing.expect("it is decided on");
    assert_eq!((sizing.decision, store.sizing), (Decision::Admitted, None));
    let waits = sizing.wait_ns as f64 / sizing.round_ns as f64;
    assert!((waits - STORE_SHARE).abs() < 0.001, "it waits for {waits} of the round");
    let one_more = PlanRequest { share: Share::from_ppb(100_000_000), ..PlanRequest::default() };
    assert_eq!(bench.plan(one_more), Err(Refusal::ShareTooLarge { asked_ppb: 100_000_000, left_ppb: 0 }));
    let like = PlanRequest { like: Some(TenantId(STORE as u32)), overcommit: true, ..one_more };
    assert_eq!(bench.plan(like), Err(Refusal::UnknownTenant));
}
