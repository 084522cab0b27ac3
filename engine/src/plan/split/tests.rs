use super::super::load::tests::{cost, new, reads};
use super::*;
use crate::plan::allot::{LEAST, frames_of};

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
    Tenant { claim, weight: 0.5, loss_ns: 10.0 * MS, shortfall: 0.0, slice_least_ns: 0.0, load: Some(load) }
}

const MET: Option<Decision> = Some(Decision::Admitted);
const WANTED: Claim = Claim::AtLeast(0);

fn kept(frames: u64) -> Claim {
    Claim::AtLeast(frames)
}

/// Whether it lacks memory.
fn lacks_memory(fate: &Fate) -> bool {
    matches!(fate.decision, Some(Decision::BestEffort(Bound::Memory { .. })))
}

fn question(memory: u64) -> Question {
    Question { keep: 0.9, memory, round_max_ns: 2000.0 * MS }
}

/// Its R with the frames that are guaranteed to it.
fn keeps(tenant: &Tenant<'_>, fate: &Fate) -> f64 {
    fate.time * tenant.load.map_or(1.0, |load| load.keeps(fate.kept)[0])
}

#[test]
fn the_knee_is_kept_and_the_round_is_short() {
    let (knee, stream) = (knee(), stream());
    let tenants = [tenant(WANTED, &knee), tenant(WANTED, &stream)];
    let split = split(&question(10_000), &tenants);
    let kept: Vec<_> = split.fates.iter().map(|fate| fate.kept).collect();
    assert_eq!(kept, [LEAST + 4000, LEAST]);
    assert!(split.fates.iter().all(|fate| fate.decision == MET), "{split:?}");
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
    let split = split(&question(60_000), &[tenant(kept(39_000), &slope), tenant(WANTED, &slope)]);
    assert_eq!(split.fates[0].decision, MET);
    let Some(Decision::BestEffort(Bound::Memory { needs_bytes, free_bytes })) = split.fates[1].decision else {
        panic!("{split:?}")
    };
    let (needs, free) = (frames_of(needs_bytes), frames_of(free_bytes));
    assert!((36_000..41_000).contains(&needs) && (19_000..25_000).contains(&free), "{split:?}");
    assert_eq!(split.fates[1].kept, 0);
}

#[test]
fn no_cache_helps_where_the_longest_round_is_too_short() {
    let stream = stream();
    let slow = Tenant { loss_ns: 150.0 * MS, ..tenant(WANTED, &stream) };
    let split = split(&question(10_000), &[slow, tenant(WANTED, &stream)]);
    let Some(Decision::BestEffort(Bound::Round { needs_ns })) = split.fates[0].decision else { panic!("{split:?}") };
    assert!((2_999_999_000..=3_000_000_000).contains(&needs_ns), "{needs_ns}");
    assert_eq!(split.round_ns, 2000.0 * MS);
    assert!((split.fates[0].time - 0.85).abs() < 1e-9, "and that is the best R that it can have");
    assert_eq!(split.fates[1].decision, MET);
}

#[test]
fn a_need_that_has_grown_beyond_what_there_is_takes_nothing_from_others() {
    let (slope, knee) = (slope(), knee());
    let fates = split(&question(20_000), &[tenant(kept(10_000), &slope), tenant(kept(5000), &knee)]).fates;
    assert!(lacks_memory(&fates[0]) && fates[0].kept == 10_000, "it holds what it had: {fates:?}");
    assert_eq!((fates[1].decision, fates[1].kept), (MET, LEAST + 4000));
    // The smallest shortage is met first, whatever the order of the tenants.
    let tenants = [tenant(kept(20_000), &slope), tenant(kept(LEAST + 3998), &knee)];
    let fates = split(&question(39_000), &tenants).fates;
    assert!(lacks_memory(&fates[0]) && fates[1].decision == MET, "{fates:?}");
    // A tenant that is not admitted yet comes after all that are, although it needs less.
    let fates = split(&question(39_000), &[tenant(WANTED, &knee), tenant(kept(36_000), &slope)]).fates;
    assert!(lacks_memory(&fates[0]) && fates[1].decision == MET, "{fates:?}");
}

#[test]
fn what_was_asked_for_is_made_up_by_slices_or_is_too_little() {
    let (slope, stream) = (slope(), stream());
    let asked = |frames| split(&question(80_000), &[tenant(Claim::Exactly(frames), &slope), tenant(WANTED, &stream)]);
    let enough = asked(39_900);
    assert_eq!((enough.fates[0].decision, enough.fates[0].kept), (MET, 39_900));
    assert!(keeps(&tenant(WANTED, &slope), &enough.fates[0]) >= 0.9, "{enough:?}");
    assert!(matches!(
        asked(20_000).fates[0].decision,
        Some(Decision::BestEffort(Bound::Asked { needs_bytes })) if frames_of(needs_bytes) > 35_000
    ));
}

/// For any tenants: no more memory is promised than exists, and a tenant that is told that it keeps R does.
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
                let claim = match below(3) {
                    0 => Claim::Exactly(LEAST + own),
                    1 => kept(LEAST + own),
                    _ => WANTED,
                };
                spare -= if claim == WANTED { 0 } else { own };
                Tenant {
                    claim,
                    weight: 1.0 / count as f64,
                    loss_ns: below(60) as f64 * MS,
                    shortfall: 0.0,
                    slice_least_ns: below(100) as f64 * MS,
                    load: (below(4) > 0).then_some(load),
                }
            })
            .collect();
        let split = split(&question(memory), &tenants);
        let promised: u64 = split.fates.iter().map(|fate| fate.kept.max(LEAST)).sum();
        assert!(promised <= memory, "{promised} of {memory}: {tenants:?} {split:?}");
        for (tenant, fate) in tenants.iter().zip(&split.fates) {
            let at = match fate.decision {
                Some(Decision::Admitted) => 0,
                Some(Decision::BestEffort(Bound::Memory { .. } | Bound::Asked { .. })) => 2,
                Some(_) => 3,
                None => 1,
            };
            verdicts[at] += 1;
            if at == 0 {
                assert!(keeps(tenant, fate) >= 0.9, "{tenant:?} {fate:?}");
                assert!(fate.kept >= fate.need.unwrap_or(0), "{tenant:?} {fate:?}");
            }
        }
    }
    assert!(verdicts.iter().all(|&count| count > 100), "{verdicts:?}");
}
