use super::super::tests::{tenant, turns, wanted};
use super::super::{Fraction, Refused, Schedule, Servers, Tenant, Wanted, fault, moved, pack};
use super::solver::{Answer, Lit, Solver};
use super::times::{Gap, Times};
use crate::dice::Dice;

/// All orders of a few things.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let Some(last) = count.checked_sub(1) else { return vec![Vec::new()] };
    let with_last = |order: Vec<usize>| (0..count).map(move |at| [&order[..at], &[last], &order[at..]].concat());
    orders(last).into_iter().flat_map(with_last).collect()
}

/// Whether these can be placed in a round of so many sixtieths, some of them at known starts: all orders, each slice as
/// early as it fits.
fn fits(slices: &[(Servers, u32)], known: &[Option<u32>], round: u32) -> bool {
    let place = |order: &Vec<usize>| {
        let mut placed: Vec<(usize, u32)> = Vec::new();
        let is_free = |placed: &[(usize, u32)], at: usize, start: u32| {
            let (on, length) = slices[at];
            start + length <= round
                && placed.iter().all(|&(other, begun)| {
                    !slices[other].0.overlaps(&on) || begun + slices[other].1 <= start || start + length <= begun
                })
        };
        for (at, start) in known.iter().enumerate().filter_map(|(at, start)| Some((at, (*start)?))) {
            if !is_free(&placed, at, start) {
                return false;
            }
            placed.push((at, start));
        }
        order.iter().filter(|&&at| known[at].is_none()).all(|&at| {
            let start = (0..round).find(|&start| is_free(&placed, at, start));
            placed.extend(start.map(|start| (at, start)));
            start.is_some()
        })
    };
    orders(slices.len()).iter().any(place)
}

fn some_servers(dice: &mut Dice, servers: usize) -> Servers {
    let count = 1 + dice.below(servers as u64) as usize;
    dice.shuffled(servers as u64).into_iter().take(count).map(|server| server as usize).collect()
}

fn sets(servers: usize, count: usize) -> impl Iterator<Item = Servers> {
    let set = move |bits: u32| (0..servers).filter(|server| bits >> server & 1 == 1).collect::<Servers>();
    (0..1u32 << servers).map(set).filter(move |set| set.len() == count)
}

/// A cluster of a few servers whose tenants have lengths in twelfths; present starts in twelfths, most of them.
fn small(dice: &mut Dice, count: usize) -> (usize, Vec<Tenant>) {
    let servers = 2 + dice.below(3) as usize;
    let tenant = |dice: &mut Dice| {
        let on = some_servers(dice, servers);
        let over = 1 + dice.below(6) as u32;
        let start = (dice.below(4) > 0).then(|| dice.below(12 - u64::from(over) + 1) as f64 / 12.0);
        let share = Fraction { over, under: 12 };
        Tenant { servers: on.len(), share, pinned: Some(on), start }
    };
    (servers, (0..count).map(|_| tenant(dice)).collect())
}

fn slices(tenants: &[Tenant]) -> Vec<(Servers, u32)> {
    tenants.iter().map(|it| (it.pinned.expect("it is pinned"), it.share.over * 12 / it.share.under)).collect()
}

fn packed(servers: usize, tenants: &[Tenant], r: f64) -> Result<Schedule, Refused> {
    let found = pack(servers, tenants, Wanted { least: r, enough: r, seed: 1 }, turns(500));
    if let Ok(schedule) = &found {
        assert_eq!(fault(servers, tenants, schedule), None, "{tenants:?}");
    }
    found
}

#[test]
fn what_fits_is_found_and_what_does_not_is_known() {
    let (mut possible, mut searched) = (0, 0);
    for seed in 0..400 {
        let mut dice = Dice::new(seed);
        let (servers, mut tenants) = small(&mut dice, 5);
        // One may be on any servers.
        if seed % 2 == 0 {
            (tenants[0].pinned, tenants[0].start) = (None, None);
        }
        for round in [12, 13, 15] {
            let fits = match tenants[0].pinned {
                Some(_) => fits(&slices(&tenants), &[None; 5], round),
                None => sets(servers, tenants[0].servers).any(|set| {
                    let mut pinned = tenants.clone();
                    pinned[0].pinned = Some(set);
                    fits(&slices(&pinned), &[None; 5], round)
                }),
            };
            let found = packed(servers, &tenants, 12.0 / f64::from(round));
            assert_eq!(found.is_ok(), fits, "seed {seed}, round {round}: {found:?} of {tenants:?}");
            assert!(!matches!(found, Err(Refused::NotFound(_))), "seed {seed}, round {round}: {tenants:?}");
            searched += u32::from(matches!(found, Err(Refused::Impossible(_))));
            possible += u32::from(fits);
        }
    }
    assert!(possible > 100 && searched > 20, "{possible} possible, {searched} impossible though the load fits");
}

#[test]
fn no_schedule_moves_fewer() {
    let mut seen = [0; 6];
    for seed in 0..400 {
        let (servers, tenants) = small(&mut Dice::new(seed), 5);
        let slices = slices(&tenants);
        let Ok(schedule) = packed(servers, &tenants, 1.0) else { continue };
        let start = |tenant: &Tenant| tenant.start.map(|start| (start * 12.0).round() as u32);
        let starts: Vec<Option<u32>> = tenants.iter().map(start).collect();
        let keeps = |bits: &u32| {
            let known: Vec<Option<u32>> = (0..5).map(|at| starts[at].filter(|_| bits >> at & 1 == 1)).collect();
            fits(&slices, &known, 12).then(|| known.iter().flatten().count())
        };
        let most = (0..32).filter_map(|bits| keeps(&bits)).max().expect("it fits if all may move");
        let fewest = starts.iter().flatten().count() - most;
        assert_eq!(moved(&tenants, &schedule), fewest, "seed {seed}: {tenants:?}: {schedule:?}");
        seen[fewest] += 1;
    }
    assert!(seen[0] > 5 && seen[1] > 5 && seen[2] > 5, "{seen:?}");
}

#[test]
fn a_new_tenant_comes_into_a_gap() {
    let at = |start: f64, on: &[usize]| Tenant { start: Some(start), ..tenant(on.len(), 1, 4, Some(on)) };
    let mut tenants = vec![at(0.1, &[0, 1]), at(0.7, &[1, 2]), tenant(3, 1, 4, None)];
    let schedule = packed(3, &tenants, 1.0).expect("it fits");
    assert_eq!(moved(&tenants, &schedule), 0);
    assert!((0.3499..0.4501).contains(&schedule.slots[2].start), "{schedule:?}");
    // Present starts that are rounded, also into each other.
    tenants[0].start = Some(0.4501);
    tenants[1].start = Some(0.7);
    let schedule = packed(3, &tenants, 1.0).expect("it fits");
    assert_eq!(moved(&tenants, &schedule), 0, "{schedule:?}");
    // With a longer slice one has to move.
    tenants[0].start = Some(0.2);
    tenants[2].share = Fraction { over: 2, under: 5 };
    let schedule = packed(3, &tenants, 1.0).expect("it fits");
    assert_eq!(moved(&tenants, &schedule), 1, "{schedule:?}");
}

#[test]
fn slices_stay_where_they_are_if_r_stays() {
    // As they are with R = 0.8, not at whole twelfths; it cannot be more.
    let pinned = |start: f64, on: &[usize]| Tenant { start: Some(start), ..tenant(2, 5, 12, Some(on)) };
    let tenants = [pinned(0.011, &[0, 1]), pinned(0.3444, &[1, 2]), pinned(0.6666, &[0, 2])];
    let schedule = pack(3, &tenants, wanted(0.5, 1), turns(50)).expect("it fits");
    assert_eq!(fault(3, &tenants, &schedule), None);
    assert!(schedule.r_cluster >= 0.8 - 1e-9, "{}", schedule.r_cluster);
    assert!(moved(&tenants, &schedule) <= 2, "{schedule:?}");
    let alike: Vec<Tenant> = tenants
        .iter()
        .zip(&schedule.slots)
        .map(|(it, slot)| Tenant { start: Some(slot.start), ..it.clone() })
        .collect();
    let again = pack(3, &alike, wanted(0.5, 1), turns(50)).expect("it fits");
    assert_eq!((again.r_cluster, moved(&alike, &again)), (schedule.r_cluster, 0));
}

#[test]
fn more_than_the_solver_takes_is_packed_all_the_same() {
    // Each two share a server: more pairs than variables that it has room for.
    let all = |start: Option<f64>| Tenant { start, ..tenant(2, 1, 300, Some(&[0, 1])) };
    let mut tenants: Vec<Tenant> = (0..250).map(|at| all(Some(f64::from(at) / 300.0))).collect();
    tenants.push(all(None));
    let schedule = packed(2, &tenants, 1.0).expect("it fits");
    assert_eq!(moved(&tenants, &schedule), 0);
    tenants[0].start = Some(1.0 / 300.0);
    let schedule = packed(2, &tenants, 1.0).expect("it fits");
    assert!((1..=250).contains(&moved(&tenants, &schedule)));
}

#[test]
fn rounded_starts_are_kept_in_a_full_round() {
    let at = |start: f64, under: u32, on: usize| Tenant { start: Some(start), ..tenant(1, 1, under, Some(&[on])) };
    // Each is a little late, so the last one would end after the round; two elsewhere overlap a little.
    let full = [at(0.000_05, 3, 0), at(0.333_35, 3, 0), at(0.666_7, 3, 0)];
    let tenants = [&full[..], &[at(0.3, 4, 1), at(0.549_99, 4, 1)]].concat();
    let schedule = packed(2, &tenants, 1.0).expect("it fits");
    assert_eq!(moved(&tenants, &schedule), 0, "{schedule:?}");
}

/// Starts of four slices up to the latest ones, and gaps between them that hold.
fn is_consistent(latest: i64, gaps: &[Gap]) -> bool {
    let mut starts = [0; 5];
    loop {
        let Some(gap) = gaps.iter().find(|gap| starts[gap.from] + gap.gap > starts[gap.to]) else { return true };
        starts[gap.to] = starts[gap.from] + gap.gap;
        if starts[gap.to] > if gap.to == 4 { 0 } else { latest } {
            return false;
        }
    }
}

/// Clauses, a count and times over a few variables against all their values.
#[test]
fn the_solver_finds_values_if_there_are_any() {
    const LATEST: i64 = 40;
    let mut found = [0; 2];
    for seed in 0..2000 {
        let mut dice = Dice::new(seed);
        let mut solver = Solver::new(Times::new(&[LATEST; 4]), Dice::new(seed));
        let vars: Vec<Lit> = (0..8).map(|_| solver.var(dice.below(2) == 0, 0.0)).collect();
        let mut gaps: Vec<(usize, bool, Gap)> = Vec::new();
        for (at, &var) in vars.iter().enumerate() {
            for is in [true, false] {
                let ends = dice.shuffled(5);
                let gap = Gap { from: ends[0] as usize, to: ends[1] as usize, gap: dice.below(9) as i64 - 2 };
                solver.mean(if is { var } else { !var }, gap);
                gaps.push((at, is, gap));
            }
        }
        let mut clauses: Vec<Vec<(usize, bool)>> = Vec::new();
        for _ in 0..dice.below(12) {
            clauses.push((0..3).map(|_| (dice.below(8) as usize, dice.below(2) == 0)).collect());
            let lit = |&(at, is): &(usize, bool)| if is { vars[at] } else { !vars[at] };
            solver.clause(&clauses[clauses.len() - 1].iter().map(lit).collect::<Vec<_>>());
        }
        let most = 1 + dice.below(5) as u32;
        let count = solver.at_least(0, vars.iter().map(|&var| !var).collect());
        solver.spare(count, most as usize);
        let is_right = |bits: u32| {
            let is_true = |&(at, is): &(usize, bool)| (bits >> at & 1 == 1) == is;
            let held: Vec<Gap> = gaps.iter().filter(|gap| is_true(&(gap.0, gap.1))).map(|gap| gap.2).collect();
            bits.count_ones() <= most
                && clauses.iter().all(|clause| clause.iter().any(is_true))
                && is_consistent(LATEST, &held)
        };
        let is_possible = (0..256).any(is_right);
        let answer = solver.search(1_000_000);
        assert_eq!(answer, if is_possible { Answer::Found } else { Answer::Impossible }, "seed {seed}");
        if is_possible {
            let bits = (0..8).map(|at| u32::from(solver.is_true(vars[at])) << at).sum();
            assert!(is_right(bits), "seed {seed}: {bits:b}");
            let mut starts = solver.starts(&[(0, 7)]);
            starts.push(0);
            let is_true = |at: usize, is: bool| solver.is_true(vars[at]) == is;
            let held = gaps.iter().filter(|&&(at, is, _)| is_true(at, is));
            assert!(held.map(|gap| gap.2).all(|gap| starts[gap.to] >= starts[gap.from] + gap.gap), "seed {seed}");
        }
        found[usize::from(is_possible)] += 1;
    }
    assert!(found[0] > 100 && found[1] > 100, "{found:?}");
}
