//! The reported loss of a tenant in its slices compared with its real loss: the same load standalone, and with slices
//! of given lengths.

use engine::Config;
use engine::control::{Snapshot, TenantSpec, WriteCache};
use engine::disk::policy::Kind;
use engine::units::{MILLISECOND, Nanos, SECOND, Share};
use sim::bench::{Bench, Costs, Done, Volume};
use sim::disk::drive::{Drive, presets};
use sim::load::{Pace, Place, Spec, Stream, Workload};

const DISKS: [&str; 3] = ["cheetah-15k5", "barracuda-7200.9", "nearline"];
const WARM_UP: Nanos = 10 * SECOND;
const COUNTED: Nanos = 40 * SECOND;

fn random(depth: u32) -> Stream {
    Stream { area_bytes: u64::MAX, pace: Pace::Closed { depth, think_ns: 0 }, ..Stream::default() }
}

/// Sequential reads of 64 KiB.
fn stream() -> Stream {
    Stream { place: Place::Sequential, sizes: vec![(1, 64 << 10)], align_bytes: 64 << 10, ..random(1) }
}

/// Tenants with half the disk each, on volumes of an eighth of it.
fn bench(disk: &str, slice_ns: Nanos, loads: &[Stream]) -> Bench {
    let drive: Box<dyn Drive> = presets::preset(disk).unwrap().unwrap().build().unwrap();
    let config = Config {
        policy: Kind::Insulated,
        // More than is possible, so that slices are as long as the longest round permits.
        insulation_permille: 999,
        round_max_ns: 2 * slice_ns,
        switch_ns: 8 * MILLISECOND,
        prefetch_bytes_max: Some(4 << 20),
        ..Config::new(64 << 20)
    };
    let bytes = drive.bytes() / 8 / 4096 * 4096;
    let half = TenantSpec { share: Share::from_ppb(Share::ONE.ppb() / 2), ..TenantSpec::default() };
    let volume = |(tenant, stream): (usize, &Stream)| {
        let stream = Stream { area_bytes: stream.area_bytes.min(bytes), ..stream.clone() };
        let load = Workload::described(&Spec { seed: tenant as u64 + 1, streams: vec![stream] }, 0).unwrap();
        Volume { tenant, start: tenant as u64 * 6 * bytes, bytes, write_cache: WriteCache::Volatile, load }
    };
    let volumes = loads.iter().enumerate().map(volume).collect();
    Bench::new(config, drive, Costs::default(), &[half, half], volumes).unwrap()
}

/// Bytes that the first volume transfers, and the server's snapshots before and after.
fn run(mut bench: Bench) -> (f64, Snapshot, Snapshot) {
    let mut bytes = 0;
    bench.run(WARM_UP, |_| ());
    let before = bench.snapshot().unwrap();
    bench.run(WARM_UP + COUNTED, |done: Done| bytes += if done.volume == 0 { done.request.bytes } else { 0 });
    (bytes as f64, before, bench.snapshot().unwrap())
}

/// Slices of a few requests to many.
const LENGTHS_MS: [u64; 6] = [25, 50, 100, 200, 400, 1000];

#[test]
fn what_is_said_to_be_lost_is_lost() {
    println!("part of a slice that is not lost: really, as the plan names it, as the live view shows it");
    for disk in DISKS {
        for (name, load) in [("stream", stream()), ("1", random(1)), ("4", random(4)), ("27", random(27))] {
            let (alone, ..) = run(bench(disk, SECOND, std::slice::from_ref(&load)));
            for ms in LENGTHS_MS {
                let (bytes, before, after) = run(bench(disk, ms * MILLISECOND, &[load.clone(), random(4)]));
                let owned = [&before, &after].map(|snapshot| snapshot.tenants[0].usage.owned_ns);
                let owned = (owned[1] - owned[0]) as f64;
                let [before, after] = [before, after].map(|snapshot| snapshot.tenants[0].plan.unwrap());
                let real = bytes / alone * COUNTED as f64 / owned;
                let named = f64::from(after.efficiency_permille) / 1000.0;
                let live = (after.useful_ns - before.useful_ns) as f64 / owned;
                println!("{disk:16} {name:>6} {ms:4} ms {real:.3} {named:.3} {live:.3}");
                // 27 requests take longer than such a round, so their standalone performance is never observed.
                if name == "27" && ms < 100 {
                    continue;
                }
                let slice_ms = owned / (after.slices - before.slices) as f64 / 1e6;
                assert!((slice_ms / ms as f64 - 1.0).abs() < 0.1, "slices of {slice_ms} ms");
                // A slice of 25 ms has only one or two requests.
                let few = ms < 50;
                assert!(
                    (live - real).abs() < if few { 0.05 } else { 0.03 },
                    "{disk}, {name}, {ms} ms: {live} for {real}"
                );
                // The plan's figure concerns the last seconds, and slices of the planned length.
                assert!((named - real).abs() < 0.05 || few, "{disk}, {name}, {ms} ms: {named} for {real}");
            }
        }
    }
}
