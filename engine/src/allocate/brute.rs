//! Random small problems, and the best of all their allocations by trying each: the oracle of tests.

use super::problem::KINDS;
use super::{Allotment, Bounds, Disk, Grid, Problem, Surface, Tenant};
use crate::dice::Rng;

/// Latencies of a problem: any numbers that do not rise with what a tenant has.
pub(super) struct Table {
    steps: usize,
    latencies: Vec<Vec<f64>>,
}

impl Table {
    pub(super) fn at(&self, tenant: usize, at: Allotment) -> f64 {
        let place = at.parts().iter().fold(0, |place, &part| place * self.steps + part as usize);
        self.latencies[tenant][place]
    }
}

/// Two to four tenants on up to two gateways, one or two servers and disks, with bounds.
pub(super) fn random(seed: u64) -> (Problem, Table) {
    let mut rng = Rng::new(seed + 1);
    let gateways: Vec<u32> = (0..rng.below(3)).map(|_| 3 + rng.below(3) as u32).collect();
    let servers: Vec<u32> = (0..1 + rng.below(2)).map(|_| 4 + rng.below(3) as u32).collect();
    let disk =
        |rng: &mut Rng| Disk { server: rng.below(servers.len() as u64) as usize, share: 4 + rng.below(2) as u32 };
    let disks: Vec<Disk> = (0..1 + rng.below(2)).map(|_| disk(&mut rng)).collect();
    let count = 2 + rng.below(if gateways.is_empty() { 3 } else { 2 });
    let tenants = (0..count).map(|_| {
        let gateway = (!gateways.is_empty() && !rng.one_in(4)).then(|| rng.below(gateways.len() as u64) as usize);
        let least =
            Allotment { first: u32::from(gateway.is_some() && rng.one_in(2)), second: rng.below(2) as u32, share: 1 };
        let mut bounds = Bounds::at_least(least);
        if rng.one_in(4) {
            bounds.most.second = least.second + 1;
        }
        if rng.one_in(4) {
            bounds.most.share = 1;
        }
        Tenant { gateway, disk: rng.below(disks.len() as u64) as usize, bounds }
    });
    let problem = Problem {
        grid: Grid { cache_step_bytes: 1 << 20, share_steps: 8 },
        tenants: tenants.collect(),
        gateways,
        servers,
        disks,
    };
    problem.check().unwrap();
    let steps = 8;
    let latencies = problem.tenants.iter().map(|_| falling(&mut rng, steps)).collect();
    (problem, Table { steps, latencies })
}

/// Each entry is at most those with one step less of anything. Some steps change nothing, as in inclusive tiers.
fn falling(rng: &mut Rng, steps: usize) -> Vec<f64> {
    let mut latencies = vec![0.0f64; steps.pow(KINDS as u32)];
    for place in 0..latencies.len() {
        let strides = [steps * steps, steps, 1];
        let before =
            strides.into_iter().filter(|&stride| place / stride % steps > 0).map(|stride| latencies[place - stride]);
        let most = before.fold(1000.0 + rng.below(1000) as f64, f64::min);
        latencies[place] = if rng.one_in(3) { most } else { most * (1.0 - rng.below(500) as f64 / 1000.0) };
    }
    latencies
}

/// Tenants on one server and one disk, each resource with so many steps for each of them.
pub(super) fn wide(tenants: u32, steps: u32) -> Problem {
    let bounds = Bounds::at_least(Allotment { first: 0, second: 1, share: 1 });
    Problem {
        grid: Grid { cache_step_bytes: 1 << 20, share_steps: tenants * steps },
        gateways: vec![],
        servers: vec![tenants * steps],
        disks: vec![Disk { server: 0, share: tenants * steps }],
        tenants: vec![Tenant { gateway: None, disk: 0, bounds }; tenants as usize],
    }
}

/// The best allocation, and its sum of latencies.
pub(super) fn best<S: Surface>(problem: &Problem, surface: &S) -> (Vec<Allotment>, f64) {
    let mut best = (Vec::new(), f64::INFINITY);
    let mut chosen = Vec::new();
    try_all(problem, surface, &mut chosen, 0.0, &mut best);
    best
}

fn try_all<S: Surface>(
    problem: &Problem,
    surface: &S,
    chosen: &mut Vec<Allotment>,
    cost: f64,
    best: &mut (Vec<Allotment>, f64),
) {
    let tenant = chosen.len();
    if tenant == problem.tenants.len() {
        if cost < best.1 && problem.permits(chosen).is_ok() {
            *best = (chosen.clone(), cost);
        }
        return;
    }
    let Bounds { least, most } = problem.bounds(tenant);
    for first in least.first..=most.first {
        for second in least.second..=most.second {
            for share in least.share..=most.share {
                let at = Allotment { first, second, share };
                chosen.push(at);
                try_all(problem, surface, chosen, cost + surface.latency_ns(tenant, at), best);
                chosen.pop();
            }
        }
    }
}
