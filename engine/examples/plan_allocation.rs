//! Time of the search for an allocation: `cargo run --profile checked -p engine --example plan_allocation`.
//!
//! Meaningless on a busy machine, and with other numbers of clients per tenant: the model takes time for each.
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a measurement of time")]

use std::time::Instant;

use engine::allocate::{
    Allotment, Bounds, Disk, DiskTime, Effort, Evidence, Goal, Grid, Interruption, Loss, MissRatios, Model, Problem,
    Refinement, Round, Tenant, Tiers, climb, exact,
};

const MIB: u64 = 1 << 20;

/// A tenant: the size at which its curve has a knee, its miss ratio there, reads of all references, think time.
fn evidence(tiers: Tiers, knee_mib: u64, floor: f64, read_fraction: f64, think_ms: f64) -> Evidence {
    let points = (0..=40).map(|part| {
        let size = f64::from(part) / 20.0;
        (knee_mib * MIB * part as u64 / 20, floor + (1.0 - floor) * (-3.0 * size * size).exp())
    });
    let reads = MissRatios::new(points);
    Evidence {
        tiers,
        writes: reads.clone(),
        reads,
        read_fraction,
        references_per_second: 100.0,
        first_hit_ns: 2e4,
        second_hit_ns: 2e5,
        write_ns: 2e4,
        disk: DiskTime::constant(4e6, 2e6),
        outstanding: 10,
        think_ns: think_ms * 1e6,
        round: Some(Round {
            others_ns: 1.5e8,
            round_ns_max: 2e9,
            loss: Loss { switch_ns: 5e6, closing_ns: 5e6 },
            interruption: Some(Interruption { delay_ns: 1e7, cost_ns: 2e7 }),
        }),
        share_least: 0.0,
        of_model: 1.0,
    }
}

fn run(name: &str, problem: &Problem, evidence: Vec<Evidence>) {
    problem.check().unwrap();
    let model = Model::new(problem, evidence);
    let before = problem.equal();
    let latencies = |allocation: &[Allotment]| -> f64 {
        allocation.iter().enumerate().map(|(tenant, &at)| model.predict(tenant, at).latency_ns).sum()
    };
    for seed in 1..=3 {
        let start = Instant::now();
        let found = climb(problem, &Goal::Latency, &model, None, Effort::default(), seed);
        println!(
            "{name}: climb {:.1} ms, {} evaluations; sum of latencies {:.2} ms, equal {:.2} ms",
            start.elapsed().as_secs_f64() * 1e3,
            found.evaluations,
            found.cost / 1e6,
            latencies(&before) / 1e6
        );
        if seed == 1 && problem.tenants.len() <= 8 {
            println!("  {:?}", found.allocation.iter().map(|at| (at.first, at.second, at.share)).collect::<Vec<_>>());
        }
    }
    let start = Instant::now();
    if problem.tenants.len() > 8 {
        return;
    }
    match exact(problem, &Goal::Latency, &model) {
        Ok(found) => println!(
            "  exact {:.1} ms: {:.2} ms {:?}",
            start.elapsed().as_secs_f64() * 1e3,
            found.cost / 1e6,
            found.allocation.iter().map(|at| (at.first, at.second, at.share)).collect::<Vec<_>>()
        ),
        Err(error) => println!("  {error}"),
    }
}

/// The regression with as many samples as are kept.
fn refine() {
    let mut refinement = Refinement::new();
    for at in 0..64u32 {
        let allotment = Allotment { first: 1 + at % 16, second: 1 + at * 7 % 32, share: 1 + at * 3 % 8 };
        let model_ns = 1e7 / f64::from(allotment.share);
        refinement.add(1, allotment, model_ns * (1.0 + f64::from(allotment.first) / 10.0), model_ns);
    }
    let start = Instant::now();
    let fit = refinement.fit();
    println!("refinement: {:.1} ms, {fit:?}", start.elapsed().as_secs_f64() * 1e3);
}

fn main() {
    let bounds = Bounds::at_least(Allotment { first: 1, second: 1, share: 1 });
    let paper = Problem {
        grid: Grid { cache_step_bytes: 32 * MIB, share_steps: 8 },
        gateways: vec![16, 16],
        servers: vec![32],
        disks: vec![Disk { server: 0, share: 8 }],
        tenants: (0..4).map(|tenant| Tenant { gateway: Some(tenant / 2), disk: 0, bounds }).collect(),
    };
    let tpc_w = || evidence(Tiers::Lru, 360, 0.04, 0.8, 20.0);
    let rubis = || evidence(Tiers::Lru, 700, 0.04, 0.85, 20.0);
    let zipf40 = || evidence(Tiers::Lru, 32, 0.8, 1.0, 0.0);
    let zipf95 = || evidence(Tiers::Lru, 100, 0.4, 1.0, 0.0);
    run("TPC-W, RUBiS twice", &paper, vec![tpc_w(), rubis(), tpc_w(), rubis()]);
    run("Zipf 0.4, TPC-W, Zipf 0.95, RUBiS", &paper, vec![zipf40(), tpc_w(), zipf95(), rubis()]);

    refine();

    let many = Problem {
        grid: Grid { cache_step_bytes: 32 * MIB, share_steps: 1000 },
        gateways: vec![1024; 20],
        servers: vec![2048; 5],
        disks: (0..10).map(|disk| Disk { server: disk / 2, share: 1000 }).collect(),
        tenants: (0..1000)
            .map(|tenant| Tenant { gateway: Some(tenant % 20), disk: tenant / 20 % 10, bounds })
            .collect(),
    };
    let kinds = [tpc_w, rubis, zipf40, zipf95];
    let mixed = (0..1000).map(|tenant| Evidence {
        tiers: if tenant % 3 == 0 { Tiers::Demote } else { Tiers::Lru },
        outstanding: 1 + tenant % 16,
        ..kinds[tenant as usize % 4]()
    });
    run("1,000 tenants, 20 gateways, 5 servers, 10 disks", &many, mixed.collect());
    let one = Problem {
        servers: vec![8192],
        disks: vec![Disk { server: 0, share: 4000 }],
        grid: Grid { share_steps: 4000, ..many.grid },
        tenants: many.tenants.iter().map(|tenant| Tenant { disk: 0, ..*tenant }).collect(),
        ..many
    };
    let mixed = (0..1000).map(|tenant| kinds[tenant as usize % 4]());
    run("1,000 tenants, 20 gateways, one server and disk", &one, mixed.collect());
}
