//! How long planning takes.

use engine::allocate::{
    Allotment, Bounds, Depth, Disk, DiskTime, Effort, Evidence, Goal, Grid, Loss, MissRatios, Model, Problem, Round,
    Tenant, Tiers, best,
};
use serde_json::json;
use sim::rng::Rng;

use super::super::cluster::cpu_s;
use super::super::{Bound, Claim, Context, Experiment, Outcome};

pub const PLAN: Experiment = Experiment {
    name: "allocation-plan",
    question: "How long does it take to plan an allocation?",
    setup: "4 tenants on two gateways and a server, as in allocation-paper; 1,000 tenants on 20 gateways with 16 GiB, \
            whose server has 128 GiB and 50 disks divided in hundredths, steps of 32 MiB. Curves with knees at random. \
            CPU time of one core: the model and the search, the fastest of five.",
    paper: "Soundararajan et al.: minutes of sampling.",
    run: plan,
};

const RUNS: u32 = 5;

/// A load with a knee at random, up to so many bytes.
fn load(rng: &mut Rng, most: u64) -> Evidence {
    let knee = most / 32 * (1 + rng.below(64));
    let cold = 0.02 + rng.below(200) as f64 / 1000.0;
    let points = (0..=64).map(|at: u64| (knee / 32 * at, (1.0 - at as f64 / 32.0 * (1.0 - cold)).max(cold)));
    let reads = MissRatios::new(points);
    let depths = [(1, 6e6), (8, 4e6), (32, 3e6)].map(|(depth, service_ns)| Depth { depth, service_ns });
    Evidence {
        tiers: Tiers::Lru,
        writes: reads.clone(),
        reads,
        read_fraction: 0.6 + rng.below(40) as f64 / 100.0,
        references_per_second: 100.0 + rng.below(900) as f64,
        first_hit_ns: 20e3,
        second_hit_ns: 250e3,
        write_ns: 30e3,
        disk: DiskTime { reads: depths.to_vec(), write_ns: 1e6, delay_ns: 2e7, sweep_blocks: 200.0 },
        outstanding: 1 + rng.below(32) as u32,
        share_least: 0.0,
        of_model: 1.0,
        think_ns: rng.below(20_000_000) as f64,
        round: Some(Round {
            others_ns: 7.5e8,
            round_ns_max: 2e9,
            loss: Loss { switch_ns: 5e6, closing_ns: 5e6 },
            interruption: None,
        }),
    }
}

struct Size {
    tenants: usize,
    gateways: usize,
    gateway_bytes: u64,
    server_bytes: u64,
    disks: usize,
    grid: Grid,
}

/// CPU seconds to plan, and the gain on equal parts.
fn planned(size: &Size, seed: u64) -> Result<(f64, f64), String> {
    let Size { tenants, gateways, gateway_bytes, server_bytes, disks, grid } = *size;
    let mut rng = Rng::new(seed);
    let evidence: Vec<Evidence> = (0..tenants).map(|_| load(&mut rng, gateway_bytes)).collect();
    let bounds = Bounds::at_least(Allotment { first: 1, second: 1, share: 1 });
    let tenant = |at: usize| Tenant { gateway: Some(at % gateways), disk: at % disks, bounds };
    let problem = Problem {
        grid,
        gateways: vec![grid.steps_within(gateway_bytes); gateways],
        servers: vec![grid.steps_within(server_bytes)],
        disks: vec![Disk { server: 0, share: grid.share_steps }; disks],
        tenants: (0..tenants).map(tenant).collect(),
    };
    problem.check().map_err(|why| why.to_string())?;
    let present = problem.equal();
    let (mut fastest, mut gain) = (f64::INFINITY, 0.0);
    for _ in 0..RUNS {
        let evidence = evidence.clone();
        let began = cpu_s();
        let model = Model::new(&problem, evidence);
        let found = best(&problem, &Goal::Latency, &model, Some(&present), Effort::default(), seed);
        fastest = fastest.min(cpu_s() - began);
        let cost: f64 = present.iter().enumerate().map(|(at, &of)| model.predict(at, of).latency_ns).sum();
        gain = cost / found.cost;
    }
    Ok((fastest, gain))
}

fn plan(context: &Context) -> Result<Outcome, String> {
    let small = Size {
        tenants: 4,
        gateways: 2,
        gateway_bytes: 32 << 20,
        server_bytes: 64 << 20,
        disks: 1,
        grid: Grid { cache_step_bytes: 2 << 20, share_steps: 8 },
    };
    let large = Size {
        tenants: 1000,
        gateways: 20,
        gateway_bytes: 16 << 30,
        server_bytes: 128 << 30,
        disks: 50,
        grid: Grid { cache_step_bytes: 32 << 20, share_steps: 100 },
    };
    let (small_s, small_gain) = planned(&small, context.seeds[0])?;
    let (large_s, large_gain) = planned(&large, context.seeds[0])?;
    let claims = vec![
        Claim::new("4 tenants: CPU time, ms", small_s * 1e3, Bound::AtMost(10.0)),
        Claim::new("1,000 tenants on 20 gateways: CPU time, s", large_s, Bound::AtMost(1.0)),
        Claim::new("1,000 tenants: predicted gain on equal parts", large_gain, Bound::AtLeast(1.0)),
    ];
    let data = json!({"gains": [small_gain, large_gain], "cpu_s": [small_s, large_s]});
    Ok(Outcome { claims, data, ..Outcome::default() })
}
