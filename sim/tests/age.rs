//! The age at which dirty data is written, by its tenant's virtual clock; for a tenant that waits for no other, that is
//! wall-clock time.

use engine::Config;
use engine::control::{TenantSpec, WriteCache};
use engine::disk::policy::Kind;
use engine::units::{MILLISECOND, Nanos, SECOND, Share};
use sim::bench::{Bench, Costs, Volume};
use sim::disk::drive::{Drive, presets};
use sim::load::{Pace, Spec, Stream, Workload};

/// When the only write arrives.
const WRITTEN: Nanos = 60 * SECOND;

fn reads() -> Stream {
    Stream { area_bytes: u64::MAX, pace: Pace::Closed { depth: 4, think_ns: 0 }, ..Stream::default() }
}

fn write() -> Stream {
    Stream { read_ppm: 0, requests: 1, start_ns: WRITTEN, ..Stream::default() }
}

/// How long the first tenant's only write is not on the medium, seconds, under contention with other tenants that read;
/// all tenants have the same share.
fn waits(first: Vec<Stream>, others: usize) -> f64 {
    let drive: Box<dyn Drive> = presets::preset("cheetah-15k5").unwrap().unwrap().build().unwrap();
    let config = Config { policy: Kind::Insulated, switch_ns: 6 * MILLISECOND, ..Config::new(64 << 20) };
    let count = others + 1;
    let bytes = drive.bytes() / 16 / 4096 * 4096;
    let share = Share::from_ppb(Share::ONE.ppb() / count as u64);
    let loads = std::iter::once(first).chain((0..others).map(|_| vec![reads()]));
    let volume = |(tenant, streams): (usize, Vec<Stream>)| {
        let cut = |stream: Stream| Stream { area_bytes: stream.area_bytes.min(bytes), ..stream };
        let streams = streams.into_iter().map(cut).collect();
        let load = Workload::described(&Spec { seed: tenant as u64 + 1, streams }, 0).unwrap();
        Volume { tenant, start: tenant as u64 * bytes, bytes, write_cache: WriteCache::Volatile, load }
    };
    let volumes = loads.enumerate().map(volume).collect();
    let tenants = vec![TenantSpec { share, ..TenantSpec::default() }; count];
    let mut bench = Bench::new(config, drive, Costs::default(), &tenants, volumes).unwrap();
    let mut at = WRITTEN + 100 * MILLISECOND;
    bench.run(at, |_| ());
    while bench.snapshot().unwrap().volumes[0].dirty_blocks > 0 {
        at += 50 * MILLISECOND;
        bench.run(at, |_| ());
    }
    (at - WRITTEN) as f64 / 1e9
}

#[test]
fn dirt_waits_for_five_seconds_of_its_tenants_own_time() {
    let alone = waits(vec![reads(), write()], 0);
    let waits_for_nobody = waits(vec![write()], 1);
    let with_half = waits(vec![reads(), write()], 1);
    let with_a_tenth = waits(vec![reads(), write()], 9);
    println!("alone {alone}, who does not read {waits_for_nobody}, half {with_half}, a tenth {with_a_tenth}");
    // Little dirty data waits for its full age, plus a round until its tenant's slice.
    assert!((4.9..5.2).contains(&alone) && (4.9..6.0).contains(&waits_for_nobody));
    assert!((8.5..11.5).contains(&with_half) && (25.0..33.0).contains(&with_a_tenth));
}
