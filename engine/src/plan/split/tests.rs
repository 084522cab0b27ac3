use super::super::load::tests::{cost, new, reads};
use super::*;

const MS: f64 = 1e6;

fn load(misses: &[(u64, f64)]) -> Load {
    new(&reads(misses), &cost(), 1 << 20).unwrap()
}

/// 4,000 blocks absorb half of its reads, fewer absorb almost none.
fn knee() -> Load {
    load(&[(100, 1.0), (3600, 0.98), (4000, 0.5), (1 << 20, 0.5)])
}

/// Half of its reads go to 40,000 blocks, uniformly.
fn slope() -> Load {
    load(&(1..=40).map(|at| (at * 1000, 1.0 - at as f64 / 80.0)).collect::<Vec<_>>())
}

fn stream() -> Load {
    load(&[(100, 1.0), (1 << 20, 1.0)])
}

fn tenant(claim: Claim, load: &Load) -> Tenant<'_> {
    Tenant {
        claim,
        weight: 0.5,
        loss_ns: 10.0 * MS,
        shortfall: 0.0,
        slice_least_ns: 0.0,
        load: Some(load),
        transfer: 0,
    }
}

const WANTED: Claim = Claim::Wanted { again: false };

fn question(memory: u64) -> Question {
    Question { keep: 0.9, memory, round_max_ns: 2000.0 * MS, turn: 0 }
}

/// Its R with the frames that are guaranteed to it.
fn keeps(tenant: &Tenant<'_>, fate: &Fate) -> f64 {
    fate.time * tenant.load.map_or(1.0, |load| load.keeps(fate.kept).low)
}

#[test]
fn the_knee_is_kept_and_the_round_is_short() {
    let (knee, stream) = (knee(), stream());
    let tenants = [tenant(WANTED, &knee), tenant(WANTED, &stream)];
    let split = split(&question(10_000), &tenants);
    let kept: Vec<_> = split.fates.iter().map(|fate| fate.kept).collect();
    assert_eq!(kept, [LEAST + 4000, LEAST]);
    assert!(split.fates.iter().all(|fate| fate.verdict == Verdict::Met), "{split:?}");
    // 10 ms of loss, half of the round each, 7.5 % of loss permitted: 267 ms.
    assert!((260.0 * MS..330.0 * MS).contains(&split.round_ns), "{split:?}");
}

#[test]
fn where_slices_have_to_hold_a_burst_rounds_are_longer_and_less_cache_is_needed() {
    let slope = slope();
    let of = |slice_least_ns| {
        let tenants = [Tenant { slice_least_ns, ..tenant(WANTED, &slope) }, tenant(WANTED, &slope)];
        let split = split(&question(100_000), &tenants);
        (split.round_ns, split.fates[1].kept)
    };
    let (free, bound) = (of(0.0), of(700.0 * MS));
    assert!(free.0 < 700.0 * MS && bound.0 == 1400.0 * MS, "{free:?} {bound:?}");
    assert!(bound.1 < free.1, "{free:?} {bound:?}");
    assert_eq!(of(5000.0 * MS).0, 2000.0 * MS, "no longer than the longest");
}

#[test]
fn with_less_memory_rounds_are_longer() {
    let slope = slope();
    let tenants = [tenant(WANTED, &slope), tenant(WANTED, &slope)];
    let round_ns = |memory| split(&question(memory), &tenants).round_ns;
    let rounds = [81_000, 79_000, 77_000].map(round_ns);
    assert!(rounds[0] < rounds[1] && rounds[1] < rounds[2] && rounds[2] <= 2000.0 * MS, "{rounds:?}");
    for memory in [81_000, 79_000, 77_000] {
        let split = split(&question(memory), &tenants);
        assert!(split.fates.iter().zip(&tenants).all(|(fate, tenant)| keeps(tenant, fate) >= 0.9), "{split:?}");
    }
}

#[test]
fn who_comes_last_is_told_what_is_missing() {
    let slope = slope();
    let split = split(&question(60_000), &[tenant(Claim::Kept(39_000), &slope), tenant(WANTED, &slope)]);
    assert_eq!(split.fates[0].verdict, Verdict::Met);
    let Verdict::Memory(needs, free) = split.fates[1].verdict else { panic!("{split:?}") };
    assert!((36_000..41_000).contains(&needs) && (19_000..25_000).contains(&free), "{split:?}");
    assert_eq!(split.fates[1].kept, 0);
}

#[test]
fn no_cache_helps_where_the_longest_round_is_too_short() {
    let stream = stream();
    let slow = Tenant { loss_ns: 150.0 * MS, ..tenant(WANTED, &stream) };
    let split = split(&question(10_000), &[slow, tenant(WANTED, &stream)]);
    let Verdict::Round(needs_ns) = split.fates[0].verdict else { panic!("{split:?}") };
    assert!((2_999_999_000..=3_000_000_000).contains(&needs_ns), "{needs_ns}");
    assert_eq!(split.round_ns, 2000.0 * MS);
    assert!((split.fates[0].time - 0.85).abs() < 1e-9, "and that is the best R that it can have");
    assert_eq!(split.fates[1].verdict, Verdict::Met);
}

#[test]
fn a_need_that_has_grown_beyond_what_there_is_takes_nothing_from_others() {
    let (slope, knee) = (slope(), knee());
    let tenants = [tenant(Claim::Kept(10_000), &slope), tenant(Claim::Kept(5000), &knee)];
    let split = split(&question(20_000), &tenants);
    assert!(matches!(split.fates[0].verdict, Verdict::Memory(..)), "{split:?}");
    assert!((10_000..=20_000 - 4000).contains(&split.fates[0].kept), "{split:?}");
    assert_eq!((split.fates[1].verdict, split.fates[1].kept >= LEAST + 4000), (Verdict::Met, true));
}

#[test]
fn what_is_left_goes_to_who_misses_least_and_the_least_is_not_cut() {
    let (knee, slope, stream) = (knee(), slope(), stream());
    // The first needs about 38,000. It does not get frames that would not help, and the second gets what it lacks.
    let tenants = [tenant(Claim::Kept(20_000), &slope), tenant(Claim::Kept(LEAST + 3998), &knee)];
    let fates = split(&question(LEAST + 24_100), &tenants).fates;
    assert!(matches!(fates[0].verdict, Verdict::Memory(..)) && fates[1].verdict == Verdict::Met, "{fates:?}");
    assert_eq!([fates[0].kept, fates[1].kept], [20_000, LEAST + 4000]);
    // The memory has shrunk: the tenant with the smallest need gets it.
    let tenants = [tenant(Claim::Kept(30_000), &slope), tenant(Claim::Kept(LEAST), &stream)];
    let fates = split(&question(24_000), &tenants).fates;
    assert_eq!((fates[1].verdict, fates[1].kept), (Verdict::Met, LEAST), "{fates:?}");
    assert_eq!(fates[0].kept, 24_000 - LEAST);
    // A tenant that holds almost nothing takes nothing from the others.
    let tenants = [tenant(Claim::Kept(1), &slope), tenant(Claim::Kept(LEAST + 4000), &knee)];
    let fates = split(&question(2 * LEAST + 4000), &tenants).fates;
    assert_eq!((fates[1].verdict, fates[1].kept), (Verdict::Met, LEAST + 4000), "{fates:?}");
}

#[test]
fn what_was_asked_for_is_made_up_by_slices_or_is_too_little() {
    let (slope, stream) = (slope(), stream());
    let asked = |frames| split(&question(80_000), &[tenant(Claim::Asked(frames), &slope), tenant(WANTED, &stream)]);
    let enough = asked(39_900);
    assert_eq!((enough.fates[0].verdict, enough.fates[0].kept), (Verdict::Met, 39_900));
    assert!(keeps(&tenant(WANTED, &slope), &enough.fates[0]) >= 0.9, "{enough:?}");
    let slices_keep = question(80_000).slices_keep(slope.keeps(39_900).low, enough.fates[0].time_longest, 1.0);
    assert!((0.925..0.935).contains(&slices_keep), "{slices_keep}");
    assert!(matches!(asked(20_000).fates[0].verdict, Verdict::Asked(needs) if needs > 35_000));
}

#[test]
fn partitions_follow_only_what_is_much_smaller() {
    let knee = knee();
    let kept = |had| split(&question(20_000), &[tenant(Claim::Kept(had), &knee)]).fates[0].kept;
    assert_eq!([5000, 6000].map(kept), [5000, LEAST + 4000]);
}

#[test]
fn who_was_refused_is_asked_again_in_turn() {
    let knee = knee();
    let again = tenant(Claim::Wanted { again: true }, &knee);
    let met = |memory, turn| {
        let split = split(&Question { turn, ..question(memory) }, &[tenant(Claim::Watched, &knee), again]);
        split.fates[1].verdict == Verdict::Met
    };
    assert_eq!([met(6000, 0), met(6000, 1), met(4000, 1)], [false, true, false]);
}

/// For any tenants: no more memory is promised than exists, a tenant that is told that it keeps R does, and an admitted
/// tenant loses nothing that it needs.
#[test]
fn where_the_round_is_too_short_nobody_holds_cache_that_is_of_no_use() {
    // 150 ms of loss: half of 2 s keeps 0.85.
    let (slope, stream) = (slope(), stream());
    let slow = |claim, load| Tenant { loss_ns: 150.0 * MS, ..tenant(claim, load) };
    let split = split(&question(60_000), &[slow(Claim::Kept(50_000), &stream), slow(Claim::Kept(5_000), &slope)]);
    let fates = split.fates.iter().map(|fate| (matches!(fate.verdict, Verdict::Round(_)), fate.kept));
    assert_eq!(fates.collect::<Vec<_>>(), [(true, LEAST), (true, 5_000)]);
}

#[test]
fn promises_hold_for_all_kinds_of_tenants() {
    let mut state = 1u64;
    let mut below = |past: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % past
    };
    let mut verdicts = [0; 4];
    for _ in 0..2000 {
        let count = 1 + below(5) as usize;
        let loads: Vec<_> = (0..count)
            .map(|_| {
                let (mut size, mut misses) = (1, 1.0);
                let mut next = || {
                    (size, misses) = (size + 1 + below(3000), misses * (0.4 + 0.006 * below(101) as f64));
                    (size, misses)
                };
                load(&(0..8).map(|_| next()).collect::<Vec<_>>())
            })
            .collect();
        let memory = count as u64 * LEAST + below(20_000);
        let mut spare = memory - count as u64 * LEAST;
        let tenants: Vec<_> = loads
            .iter()
            .map(|load| {
                let own = below(spare + 1);
                let claim = match below(5) {
                    0 => Claim::Asked(LEAST + own),
                    1 => Claim::Kept(LEAST + own),
                    2 => Claim::Watched,
                    _ => Claim::Wanted { again: below(2) == 0 },
                };
                spare -= if matches!(claim, Claim::Asked(_) | Claim::Kept(_)) { own } else { 0 };
                Tenant {
                    claim,
                    weight: 1.0 / count as f64,
                    loss_ns: below(60) as f64 * MS,
                    shortfall: 0.0,
                    slice_least_ns: below(100) as f64 * MS,
                    load: (claim != Claim::Watched && below(8) > 0).then_some(load),
                    transfer: below(1000),
                }
            })
            .map(|tenant| match (tenant.claim, tenant.load) {
                (Claim::Wanted { .. }, None) => Tenant { claim: Claim::Watched, ..tenant },
                _ => tenant,
            })
            .collect();
        let split = split(&question(memory), &tenants);
        let promised: u64 = split.fates.iter().map(|fate| fate.kept.max(LEAST)).sum();
        assert!(promised <= memory, "{promised} of {memory}: {tenants:?} {split:?}");
        for (tenant, fate) in tenants.iter().zip(&split.fates) {
            let at = match fate.verdict {
                Verdict::Met => 0,
                Verdict::Open => 1,
                Verdict::Memory(..) | Verdict::Asked(_) => 2,
                Verdict::Round(_) | Verdict::Shortfall(_) | Verdict::Age(_) => 3,
            };
            verdicts[at] += 1;
            if fate.verdict == Verdict::Met {
                assert!(keeps(tenant, fate) >= 0.9 - 1e-9, "{tenant:?} {fate:?}");
            }
            if let Claim::Kept(had) = tenant.claim {
                let of_use = || tenant.of_use(0.9);
                assert!(fate.kept >= had.min(fate.need.unwrap_or_else(of_use)), "{tenant:?} {fate:?}");
            }
        }
    }
    assert!(verdicts.iter().all(|&count| count > 100), "{verdicts:?}");
}

#[test]
fn who_is_withdrawn_keeps_the_frames_of_its_streams() {
    let stream = stream();
    let reads = |shortfall| Tenant { shortfall, transfer: 2000, ..tenant(Claim::Kept(LEAST + 2000), &stream) };
    let split = split(&question(6000), &[reads(0.0), reads(0.1)]);
    let [met, withdrawn] = [split.fates[0], split.fates[1]];
    assert_eq!((met.verdict, withdrawn.verdict), (Verdict::Met, Verdict::Shortfall(0.1)));
    assert_eq!([withdrawn.kept, withdrawn.hard], [LEAST + 2000; 2]);
}
