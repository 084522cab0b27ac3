//! Sizing, trial and admission on the laboratory's bench: the server's decisions about tenants that it has observed.

use engine::Config;
use engine::control::{Bound, CacheSpec, Command, Decision, Doubt, FRAME_BYTES, PlanRequest, Refusal, Report};
use engine::control::{LEAST_BYTES, Sizing, TenantSpec, TenantStats, WriteCache};
use engine::disk::policy::Kind;
use engine::ids::TenantId;
use engine::units::{Nanos, SECOND, Share};
use sim::bench::{Bench, Costs, Done, Volume};
use sim::disk::drive::{Drive, presets};
use sim::load::{Pace, Place, Spec, Stream, Workload};

const DISK: &str = "cheetah-15k5";

/// Uniformly random reads from the first `area_bytes` of the volume, at depth 4.
fn random(area_bytes: u64) -> Stream {
    Stream { area_bytes, pace: Pace::Closed { depth: 4, think_ns: 0 }, ..Stream::default() }
}

/// The same with a think time of 1 ms, which limits the rate of cache hits.
fn thoughtful(area_bytes: u64) -> Stream {
    Stream { pace: Pace::Closed { depth: 4, think_ns: 1_000_000 }, ..random(area_bytes) }
}

fn sequential(read_ppm: u64) -> Stream {
    let sizes = vec![(1, 64 << 10)];
    Stream { place: Place::Sequential, align_bytes: 64 << 10, read_ppm, sizes, area_bytes: 4 << 30, ..random(1 << 20) }
}

fn half() -> TenantSpec {
    TenantSpec { share: Share::from_ppb(Share::ONE.ppb() / 2), ..TenantSpec::default() }
}

/// Tenants with half the disk each; each has one volume of an eighth of the disk.
fn bench(memory: u64, loads: Vec<Vec<Stream>>) -> Bench {
    bench_with(memory, loads, 2 * SECOND)
}

fn bench_with(memory: u64, loads: Vec<Vec<Stream>>, round_max_ns: Nanos) -> Bench {
    let drive: Box<dyn Drive> = presets::preset(DISK).unwrap().unwrap().build().unwrap();
    let mut config = Config { policy: Kind::Insulated, switch_ns: 8_000_000, round_max_ns, ..Config::new(memory) };
    config.trial_ns_max = 30 * SECOND;
    let bytes = drive.bytes() / 8 / 4096 * 4096;
    let tenants = vec![half(); loads.len()];
    let volume = |(tenant, streams): (usize, Vec<Stream>)| {
        let load = Workload::described(&Spec { seed: tenant as u64, streams }, 0).unwrap();
        Volume { tenant, start: tenant as u64 * 6 * bytes, bytes, write_cache: WriteCache::Volatile, load }
    };
    let volumes = loads.into_iter().enumerate().map(volume).collect();
    Bench::new(config, drive, Costs::default(), &tenants, volumes).unwrap()
}

fn tenant(bench: &mut Bench, number: usize) -> TenantStats {
    bench.snapshot().unwrap().tenants[number]
}

fn sizing(bench: &mut Bench, number: usize) -> Sizing {
    tenant(bench, number).sizing.unwrap()
}

/// Requests answered from now until `end`, by volume, and the longest latency.
fn count(bench: &mut Bench, end: Nanos) -> Vec<(u64, Nanos)> {
    let mut counted = vec![(0, 0); 2];
    bench.run(end, |done: Done| {
        let (requests, longest) = &mut counted[done.volume];
        (*requests, *longest) = (*requests + 1, (*longest).max(done.done_ns - done.request.intended_ns));
    });
    counted
}

const MIB: u64 = 1 << 20;

#[test]
fn a_working_set_has_a_partition_that_holds_it() {
    let mut bench = bench(24 * MIB, vec![vec![thoughtful(12 * MIB)], vec![sequential(1_000_000)]]);
    assert_eq!(sizing(&mut bench, 0).decision, Decision::Trial(Doubt::Unused));
    count(&mut bench, 2 * SECOND);
    assert!(matches!(sizing(&mut bench, 0).decision, Decision::Trial(Doubt::Unsettled { .. })));
    count(&mut bench, 80 * SECOND);
    for number in [0, 1] {
        let (stats, sizing) = (tenant(&mut bench, number), sizing(&mut bench, number));
        assert_eq!(sizing.decision, Decision::Admitted, "{sizing:?}");
        assert!(stats.target_frames * FRAME_BYTES >= sizing.need_bytes.unwrap(), "{stats:?}");
        assert!(sizing.best_permille.unwrap() >= 900, "{sizing:?}");
    }
    let frames = sizing(&mut bench, 0).need_bytes.unwrap() / FRAME_BYTES;
    assert!((3072..3072 + 3072 / 4).contains(&frames), "{frames} frames for a working set of 3072");
    let stream = sizing(&mut bench, 1).need_bytes.unwrap();
    assert!(stream <= 10 * MIB, "a stream needs {stream}");
}

/// Number of requests that tenant `number` completes standalone, from 300 s to 400 s.
fn alone(memory: u64, load: Stream, number: usize) -> u64 {
    let idle = Stream { requests: 1, ..random(MIB) };
    let mut loads = vec![vec![idle.clone()], vec![idle]];
    loads[number] = vec![load];
    let mut bench = bench(memory, loads);
    for at in [0, 1] {
        let cache = CacheSpec::Asked(if at == number { memory - 2 * LEAST_BYTES } else { LEAST_BYTES });
        assert!(matches!(
            bench.ask(Command::SetTenant(TenantId(at as u32), TenantSpec { cache, ..half() })),
            Ok(Report::Done)
        ));
    }
    count(&mut bench, 300 * SECOND);
    count(&mut bench, 400 * SECOND)[number].0
}

#[test]
fn without_the_memory_for_all_it_says_what_is_missing_and_which_r_is_left() {
    let load = || random(128 * MIB);
    let later = Stream { start_ns: 250 * SECOND, ..load() };
    let mut bench = bench(64 * MIB, vec![vec![load()], vec![later]]);
    count(&mut bench, 900 * SECOND);
    let before = [0, 1].map(|number| sizing(&mut bench, number));
    let got = count(&mut bench, 1000 * SECOND);
    assert_eq!(before[0].decision, Decision::Admitted, "{:?}", before[0]);
    let Decision::BestEffort(Bound::Memory { needs_bytes, free_bytes }) = before[1].decision else {
        panic!("{:?}", before[1]);
    };
    assert!(needs_bytes > free_bytes && needs_bytes < 64 * MIB, "{:?}", before[1]);
    let part = |number: usize| got[number].0 as f64 / (0.5 * alone(64 * MIB, load(), number) as f64);
    let [kept, measured] = [0, 1].map(part);
    let named = f64::from(before[1].best_permille.unwrap()) / 1000.0;
    println!("admitted: {kept}; best effort: R = {named} is named, {measured} is measured");
    assert!(kept >= 0.9, "{kept}");
    assert!((named - measured).abs() <= 0.03, "R = {named} is named, {measured} is measured");
}

#[test]
fn where_the_longest_round_is_too_short_it_says_how_long_it_would_have_to_be_and_which_r_is_left() {
    // Depth 4: the loss of deeper queues in such short slices is estimated less accurately (docs/design/sizing.md).
    let load = || random(4 << 30);
    let mut bench = bench_with(16 * MIB, vec![vec![load()], vec![load()]], SECOND / 10);
    count(&mut bench, 100 * SECOND);
    let before = [0, 1].map(|number| sizing(&mut bench, number));
    let got = count(&mut bench, 200 * SECOND);
    for number in [0, 1] {
        let sizing = before[number];
        match sizing.decision {
            Decision::BestEffort(Bound::Round { needs_ns }) => assert!(needs_ns > SECOND / 10, "{sizing:?}"),
            // The round is just sufficient for one of them.
            Decision::Admitted => assert!(number == 1 && sizing.best_permille >= Some(900), "{sizing:?}"),
            _ => panic!("{sizing:?}"),
        }
        let measured = got[number].0 as f64 / (0.5 * alone(16 * MIB, load(), number) as f64);
        let named = f64::from(sizing.best_permille.unwrap()) / 1000.0;
        println!("R = {named} is named, {measured} is measured");
        assert!((named - measured).abs() <= 0.03, "R = {named} is named, {measured} is measured");
    }
}

/// A cached tenant whose working set grows from 8 to 18 MiB at 60 s, under contention with a writer.
fn growing() -> Bench {
    let before = Stream { stop_ns: 60 * SECOND, ..thoughtful(8 * MIB) };
    let streams = vec![before, Stream { start_ns: 60 * SECOND, ..thoughtful(18 * MIB) }];
    bench(36 * MIB, vec![streams, vec![sequential(0)]])
}

#[test]
fn a_need_that_grows_is_met_from_what_was_lent_and_nobody_stalls() {
    let mut bench = growing();
    let lending = count(&mut bench, 60 * SECOND);
    let (before, lent) = (sizing(&mut bench, 0), tenant(&mut bench, 1).target_frames);
    let grown = count(&mut bench, 200 * SECOND);
    let after = sizing(&mut bench, 0);
    assert_eq!((before.decision, after.decision), (Decision::Admitted, Decision::Admitted), "{before:?}\n{after:?}");
    let need = |sizing: Sizing| sizing.need_bytes.unwrap() / MIB;
    assert!(need(before) <= 11 && need(after) >= 18, "{before:?}\n{after:?}");
    let stats = tenant(&mut bench, 1);
    assert!(stats.target_frames < lent && stats.used_frames <= stats.target_frames, "{lent} were lent; {stats:?}");
    // The same without loans: partitions have their final sizes from the beginning.
    let mut other = growing();
    for number in [0, 1] {
        let spec =
            TenantSpec { cache: CacheSpec::Asked(tenant(&mut bench, number).target_frames * FRAME_BYTES), ..half() };
        assert!(matches!(other.ask(Command::SetTenant(TenantId(number as u32), spec)), Ok(Report::Done)));
    }
    count(&mut other, 60 * SECOND);
    let steady = count(&mut other, 200 * SECOND);
    // While it has the lent frames, more dirty data is written at once: its slices are longer, and so are the others'.
    let longest = [grown[1].1, lending[1].1.max(steady[1].1)];
    println!("the lender waits {longest:?} ns at most, {steady:?} without loans");
    assert!(longest[0] <= longest[1] + longest[1] / 4, "the lender waits {longest:?} ns at most");
}

#[test]
fn a_tenant_like_another_needs_no_trial_and_a_plan_changes_nothing() {
    let mut bench = bench(24 * MIB, vec![vec![thoughtful(8 * MIB)]]);
    count(&mut bench, 60 * SECOND);
    let known = sizing(&mut bench, 0);
    assert_eq!(known.decision, Decision::Admitted, "{known:?}");
    let half = Share::from_ppb(Share::ONE.ppb() / 2);
    let plan = |request: PlanRequest| bench.plan(request);
    let request = PlanRequest { share: half, ..PlanRequest::default() };
    let unknown = plan(request).unwrap();
    assert_eq!(unknown.sizing.unwrap().decision, Decision::Trial(Doubt::Unused));
    assert_eq!(unknown.share_left_ppb, Share::ONE.ppb() / 2);
    let like = plan(PlanRequest { like: Some(TenantId(0)), ..request }).unwrap().sizing.unwrap();
    assert_eq!((like.decision, like.need_bytes), (Decision::Admitted, known.need_bytes), "{like:?}");
    let asked = plan(PlanRequest { cache: CacheSpec::Asked(4 * MIB), ..request }).unwrap().sizing.unwrap();
    assert_eq!((asked.decision, asked.kept_bytes), (Decision::Admitted, 4 * MIB / FRAME_BYTES * FRAME_BYTES));
    let too_much = plan(PlanRequest { cache: CacheSpec::Asked(20 * MIB), ..request });
    assert!(matches!(too_much, Err(Refusal::CacheTooLarge { free, .. }) if free > 12 * MIB && free < 18 * MIB));
    let whole = plan(PlanRequest { share: Some(Share::ONE), ..request });
    let (asked_ppb, left_ppb) = (Share::ONE.ppb(), Share::ONE.ppb() / 2);
    assert_eq!(whole, Err(Refusal::ShareTooLarge { asked_ppb, left_ppb }));
    assert_eq!(sizing(&mut bench, 0), known);
}
