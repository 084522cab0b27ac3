//! Hill climbing against exact search, and what all results keep to.

use super::super::brute;
use super::super::*;
use crate::dice::Rng;

/// A curve that falls linearly to `floor` at `knee`.
fn knee(bytes: u64, floor: f64) -> MissRatios {
    MissRatios::new([(0, 1.0), (bytes, floor), (4 * bytes, floor * 0.8)])
}

fn evidence(rng: &mut Rng, tiers: Tiers) -> Evidence {
    let reads = knee((20 + rng.below(700)) << 20, 0.02 + rng.below(500) as f64 / 1000.0);
    Evidence {
        tiers,
        writes: reads.clone(),
        reads,
        read_fraction: 0.7 + rng.below(300) as f64 / 1000.0,
        references_per_second: 100.0,
        first_hit_ns: 2e4,
        second_hit_ns: 2e5,
        write_ns: 2e4,
        disk: DiskTime::constant(4e6, 2e6),
        outstanding: 1 + rng.below(16) as u32,
        share_least: 0.0,
        of_model: 1.0,
        think_ns: rng.below(20) as f64 * 1e6,
        round: Some(Round {
            others_ns: 7.5e7,
            round_ns_max: 2e8,
            loss: Loss { switch_ns: 5e6, closing_ns: 5e6 },
            interruption: None,
        }),
    }
}

/// The paper's machines: two gateways of 512 MiB, a server of 1 GiB, a disk in eighths, four tenants.
fn paper(seed: u64, tiers: Tiers) -> (Problem, Model) {
    let mut rng = Rng::new(seed + 1);
    let bounds = Bounds::at_least(Allotment { first: 1, second: 1, share: 1 });
    let problem = Problem {
        grid: Grid { cache_step_bytes: 32 << 20, share_steps: 8 },
        gateways: vec![16, 16],
        servers: vec![32],
        disks: vec![Disk { server: 0, share: 8 }],
        tenants: (0..4).map(|tenant| Tenant { gateway: Some(tenant / 2), disk: 0, bounds }).collect(),
    };
    problem.check().unwrap();
    let model = Model::new(&problem, (0..4).map(|_| evidence(&mut rng, tiers)).collect());
    (problem, model)
}

#[test]
fn a_climb_comes_within_two_percent_of_the_best() {
    let mut gaps = Vec::new();
    for seed in 0..12 {
        let tiers = if seed % 3 == 2 { Tiers::Demote } else { Tiers::Lru };
        let (problem, model) = paper(seed, tiers);
        let ideal = exact(&problem, &Goal::Latency, &model).unwrap();
        let found = climb(&problem, &Goal::Latency, &model, None, Effort::default(), seed);
        problem.permits(&found.allocation).unwrap();
        gaps.push(found.cost / ideal.cost - 1.0);
        assert_eq!(found, climb(&problem, &Goal::Latency, &model, None, Effort::default(), seed), "deterministic");
    }
    println!("{gaps:.4?}");
    assert!(gaps.iter().all(|&gap| gap < 0.02), "{gaps:?}");
}

#[test]
fn a_climb_on_any_surface_is_near_the_best() {
    let mut gaps = Vec::new();
    for seed in 0..200 {
        let (problem, table) = brute::random(seed);
        let surface = |tenant: usize, at: Allotment| table.at(tenant, at);
        let (_, best) = brute::best(&problem, &surface);
        let found = climb(&problem, &Goal::Latency, &surface, None, Effort::default(), seed);
        problem.permits(&found.allocation).unwrap();
        assert!(found.cost >= best * (1.0 - 1e-9), "seed {seed}: nothing is better than the best");
        gaps.push(found.cost / best - 1.0);
    }
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    println!("mean gap {mean:.5}, worst {:.5}", gaps.iter().copied().fold(0.0, f64::max));
    assert!(mean < 0.002, "{mean}");
}

#[test]
fn the_present_allocation_is_never_made_worse() {
    for seed in 0..50 {
        let (problem, table) = brute::random(seed);
        let surface = |tenant: usize, at: Allotment| table.at(tenant, at);
        let (present, cost) = brute::best(&problem, &surface);
        let effort = Effort { restarts: 0, evaluations_max: 1 };
        let found = climb(&problem, &Goal::Latency, &surface, Some(&present), effort, seed);
        assert!(found.cost <= cost * (1.0 + 1e-9), "seed {seed}");
    }
}

#[test]
fn goals_are_served() {
    let (problem, model) = paper(7, Tiers::Lru);
    let latencies = |found: &Found| -> Vec<f64> {
        found.allocation.iter().enumerate().map(|(tenant, &at)| model.latency_ns(tenant, at)).collect()
    };
    let run = |goal: &Goal| best(&problem, goal, &model, None, Effort::default(), 1);
    let all = latencies(&run(&Goal::Latency));
    // One tenant's target is what it cannot have unless others pay.
    let mut targets = vec![f64::INFINITY; 4];
    targets[2] = all[2] * 0.7;
    let met = latencies(&run(&Goal::Target(targets.clone())));
    assert!(met[2] <= targets[2] * 1.0001, "{met:?} against {targets:?}");
    assert!(met.iter().sum::<f64>() >= all.iter().sum::<f64>() * 0.999);
    let utilities: Vec<Utility> = (0..4)
        .map(|tenant| {
            let worth = if tenant == 1 { 100.0 } else { 1.0 };
            Utility::new(vec![(0.0, worth), (1e9, 0.0)]).unwrap()
        })
        .collect();
    let favoured = latencies(&run(&Goal::Utility(utilities)));
    assert!(favoured[1] <= all[1] && favoured.iter().sum::<f64>() >= all.iter().sum::<f64>() * 0.999);
}

#[test]
fn bounds_hold_with_many_tenants() {
    let mut rng = Rng::new(5);
    let tenants = (0..60).map(|tenant| {
        let least = Allotment { first: (tenant % 2) as u32, second: 1, share: 1 };
        let mut bounds = Bounds::at_least(least);
        if tenant % 7 == 0 {
            bounds = Bounds::exactly(Allotment { first: 3, second: 5, share: 4 });
        }
        let gateway = (tenant % 5 != 4).then_some(tenant % 5);
        let bounds =
            if gateway.is_none() { Bounds { least: Allotment { first: 0, ..bounds.least }, ..bounds } } else { bounds };
        Tenant { gateway, disk: tenant % 3, bounds }
    });
    let problem = Problem {
        grid: Grid { cache_step_bytes: 32 << 20, share_steps: 100 },
        gateways: vec![64; 4],
        servers: vec![200, 300],
        disks: vec![Disk { server: 0, share: 100 }, Disk { server: 1, share: 90 }, Disk { server: 1, share: 100 }],
        tenants: tenants.collect(),
    };
    problem.check().unwrap();
    let tiers = |at: usize| if at.is_multiple_of(4) { Tiers::Demote } else { Tiers::Lru };
    let model = Model::new(&problem, (0..60).map(|at| evidence(&mut rng, tiers(at))).collect());
    let equal = Baseline::Equal.allocate(&problem, &Goal::Latency, &model, &model, Effort::default(), 1).unwrap();
    let found = climb(&problem, &Goal::Latency, &model, None, Effort::default(), 1);
    problem.permits(&found.allocation).unwrap();
    println!("equal {:.4e}, found {:.4e} after {}", equal.cost, found.cost, found.evaluations);
    for baseline in [Baseline::Mrc, Baseline::MrcDisk, Baseline::DiskOnly, Baseline::CacheOnly] {
        let other = baseline.allocate(&problem, &Goal::Latency, &model, &model, Effort::default(), 1).unwrap();
        problem.permits(&other.allocation).unwrap();
        println!("{} {:.4e}", baseline.name(), other.cost);
        assert!(found.cost <= other.cost, "{}", baseline.name());
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (problem, _) = paper(0, Tiers::Lru);
    let with = |change: &dyn Fn(&mut Problem)| {
        let mut changed = problem.clone();
        change(&mut changed);
        changed.check().unwrap_err()
    };
    let unfit = with(&|problem| problem.tenants[1].bounds.least.first = 16);
    assert_eq!(unfit, Unfit::Gateway { gateway: 0, steps: 16, needed: 17 });
    let unfit = with(&|problem| problem.tenants.iter_mut().for_each(|tenant| tenant.bounds.least.second = 9));
    assert_eq!(unfit, Unfit::Server { server: 0, steps: 32, needed: 36 });
    let unfit = with(&|problem| problem.tenants.iter_mut().for_each(|tenant| tenant.bounds.least.share = 3));
    assert_eq!(unfit, Unfit::Disk { disk: 0, steps: 8, needed: 12 });
    assert_eq!(with(&|problem| problem.tenants[2].disk = 1), Unfit::Place { tenant: 2 });
    assert!(matches!(with(&|problem| problem.tenants[2].bounds.least.share = 0), Unfit::Bounds { tenant: 2, .. }));
    assert!(matches!(with(&|problem| problem.tenants[2].gateway = None), Unfit::Bounds { tenant: 2, .. }));
    let mut equal = problem.equal();
    assert_eq!(equal[0], Allotment { first: 8, second: 8, share: 2 });
    problem.permits(&equal).unwrap();
    equal[3].share = 3;
    assert_eq!(problem.permits(&equal), Err(Unfit::Disk { disk: 0, steps: 8, needed: 9 }));
    assert!(problem.permits(&equal[1..]).is_err());
}

#[test]
fn steps_become_finer_with_less_memory() {
    let step = |memory: u64| Grid::fitting([memory, 1 << 40], 8).cache_step_bytes;
    assert_eq!(
        [step(1 << 40), step(512 << 20), step(511 << 20), step(32 << 20), step(1 << 20)].map(|step| step >> 10),
        [32 << 10, 32 << 10, 16 << 10, 2 << 10, 256]
    );
    let grid = Grid { cache_step_bytes: 1 << 20, share_steps: 8 };
    assert_eq!((grid.steps_within(5 << 19), grid.steps_covering(5 << 19), grid.bytes(3)), (2, 3, 3 << 20));
    let third = crate::units::Share::from_ppb(333_333_333).unwrap();
    assert_eq!((grid.steps_of(third), grid.share(4).unwrap().ppb(), grid.share(0)), (3, 500_000_000, None));
}
