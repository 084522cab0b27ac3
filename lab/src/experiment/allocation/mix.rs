//! Tenants that share gateways, a server and its disk, and the ways to divide them.

use std::sync::Arc;

use engine::allocate::{
    Allotment, Baseline, Bounds, Disk, Effort, Evidence, Goal, Grid, Model, Problem, Surface, Tenant, best,
};
use engine::disk::profile::Profile;

use super::super::Context;
use super::super::stand::{mean, mixed};
use super::evidence::evidence;
use super::loads::Kind;
use super::play::{Actor, Played, Scene};
use super::surface::{ExactLevels, Measured};

/// Tenants and where they are.
#[derive(Clone, Debug)]
pub struct Mix {
    pub name: String,
    /// Each with the index of its gateway.
    pub tenants: Vec<(Kind, usize)>,
    pub scene: Scene,
    pub grid: Grid,
    /// The partition of the first tier, steps, if it is not to be divided.
    pub first: Option<u32>,
}

/// A way to divide, and what came of it.
#[derive(Clone, Debug)]
pub struct Row {
    pub scheme: &'static str,
    pub allocation: Vec<Allotment>,
    /// By run, the mean latency of each tenant, nanoseconds.
    pub runs: Vec<Vec<f64>>,
    /// What the surface that it was chosen by says, nanoseconds.
    pub promised_ns: f64,
}

impl Row {
    /// The sum of the mean latencies, mean over runs.
    pub fn total_ns(&self) -> f64 {
        mean(self.runs.iter().map(|run| run.iter().sum()))
    }

    pub fn json(&self) -> serde_json::Value {
        let of = |at: &Allotment| serde_json::json!([at.first, at.second, at.share]);
        let tenants = (0..self.allocation.len()).map(|at| mean(self.runs.iter().map(|run| run[at])) / 1e6);
        serde_json::json!({
            "scheme": self.scheme, "first_second_share": self.allocation.iter().map(of).collect::<Vec<_>>(),
            "total_ms": self.total_ns() / 1e6, "tenants_ms": tenants.collect::<Vec<_>>(),
            "expected_ms": self.promised_ns / 1e6,
        })
    }
}

/// The name of what the planner makes of its evidence.
pub const OURS: &str = "ours";
/// The baselines that are compared, without the best one of all.
pub const BASELINES: [Baseline; 4] = [Baseline::Mrc, Baseline::MrcDisk, Baseline::DiskOnly, Baseline::CacheOnly];

impl Mix {
    pub fn kinds(&self) -> Vec<Kind> {
        self.tenants.iter().map(|(kind, _)| kind.clone()).collect()
    }

    /// What is to be divided.
    pub fn problem(&self) -> Result<Problem, String> {
        let least = Allotment { first: 1, second: 1, share: 1 };
        let bounds = match self.first {
            None => Bounds::at_least(least),
            Some(first) => {
                let most = Bounds::at_least(least).most;
                Bounds { least: Allotment { first, ..least }, most: Allotment { first, ..most } }
            }
        };
        let tenant = |(_, gateway): &(Kind, usize)| Tenant { gateway: Some(*gateway), disk: 0, bounds };
        let problem = Problem {
            grid: self.grid,
            gateways: self.scene.gateways.iter().map(|&memory| self.grid.steps_within(memory)).collect(),
            servers: vec![self.grid.steps_within(self.scene.stand.memory)],
            disks: vec![Disk { server: 0, share: self.grid.share_steps }],
            tenants: self.tenants.iter().map(tenant).collect(),
        };
        problem.check().map_err(|why| format!("{}: {why}", self.name))?;
        Ok(problem)
    }

    /// Runs an allocation.
    pub fn play(&self, allocation: &[Allotment], seed: u64) -> Result<Played, String> {
        let mut actors = Vec::new();
        for ((kind, gateway), at) in self.tenants.iter().zip(allocation) {
            let share = self.grid.share(at.share).ok_or("a share is above 0")?;
            let (first, second) = (self.grid.bytes(at.first), self.grid.bytes(at.second));
            actors.push(Actor { kind, gateway: *gateway, first, second, share });
        }
        self.scene.play(&actors, seed).map_err(|why| format!("{}: {why}", self.name))
    }

    /// The evidence of a run with this allocation.
    pub fn evidence(&self, played: &Played, at: &[Allotment], profile: &Profile) -> Result<Vec<Evidence>, String> {
        let of = |(told, at): (&super::play::Told, &Allotment)| {
            let share = f64::from(at.share) / f64::from(self.grid.share_steps);
            let (first, second) = (self.grid.bytes(at.first), self.grid.bytes(at.second));
            let evidence = evidence(told, (first, second), share, profile)?;
            if !evidence.predict(first, second, share).latency_ns.is_finite() {
                return Err(format!("{}: the model has no latency: {evidence:?}", self.name));
            }
            Ok(evidence)
        };
        played.told.iter().zip(at).map(of).collect()
    }

    /// What the planner makes of one run with equal parts: its allocation, and the model.
    pub fn ours(&self, profile: &Profile, seed: u64) -> Result<(Vec<Allotment>, f64, Model), String> {
        let problem = self.problem()?;
        let present = problem.equal();
        let played = Mix { scene: self.scene.learning(), ..self.clone() }.play(&present, seed)?;
        let model = Model::new(&problem, self.evidence(&played, &present, profile)?);
        let found = best(&problem, &Goal::Latency, &model, Some(&present), Effort::default(), seed);
        Ok((found.allocation, found.cost, model))
    }

    /// The allocations of the baselines on measured surfaces.
    pub fn baselines(&self, of: &[Baseline], measured: &[Arc<Measured>]) -> Result<Vec<Row>, String> {
        let problem = self.problem()?;
        let table = Table::new(&problem, measured);
        let levels = ExactLevels(measured);
        let row = |baseline: &Baseline| {
            let found = baseline.allocate(&problem, &Goal::Latency, &table, &levels, Effort::default(), 1);
            let found = found.map_err(|why| format!("{}: {}: {why}", self.name, baseline.name()))?;
            let promised_ns = table.total_ns(&found.allocation);
            Ok(Row { scheme: baseline.name(), allocation: found.allocation, runs: vec![], promised_ns })
        };
        of.iter().map(row).collect()
    }

    /// Runs all rows with all seeds that have not been run. Rows with the same allocation are the same runs.
    pub fn measure(&self, context: &Context, rows: &mut [Row], seeds: &[u64]) -> Result<(), String> {
        let to_run = rows.iter().filter(|row| row.runs.is_empty());
        let mut distinct: Vec<Vec<Allotment>> = to_run.map(|row| row.allocation.clone()).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let work: Vec<(usize, u64)> =
            (0..distinct.len()).flat_map(|at| seeds.iter().map(move |&seed| (at, seed))).collect();
        let runs = context.parallel(&work, |&(at, seed)| {
            let played = self.play(&distinct[at], mixed(seed, 77))?;
            Ok(played.seen.iter().map(|seen| seen.latency_ns).collect::<Vec<f64>>())
        });
        let runs = runs.into_iter().collect::<Result<Vec<_>, String>>()?;
        for row in rows.iter_mut().filter(|row| row.runs.is_empty()) {
            let at = distinct.iter().position(|allocation| *allocation == row.allocation).expect("it was run");
            row.runs = runs[at * seeds.len()..(at + 1) * seeds.len()].to_vec();
        }
        Ok(())
    }
}

/// A measured surface as a table: searches look at each point many times.
pub struct Table {
    /// By tenant, first, second and share.
    values: Vec<Vec<f64>>,
    sizes: (u32, u32),
    shares: u32,
}

impl Table {
    pub fn new(problem: &Problem, measured: &[Arc<Measured>]) -> Table {
        let tenants = problem.tenants.len() as u32;
        let first = problem.gateways.iter().copied().max().unwrap_or(0).saturating_sub(1).max(1);
        let second = problem.servers[0] - (tenants - 1);
        let shares = problem.disks[0].share - (tenants - 1);
        let of = |measured: &Arc<Measured>| {
            let mut values = Vec::new();
            for c in 1..=first {
                for s in 1..=second {
                    for share in 1..=shares {
                        let part = f64::from(share) / f64::from(problem.grid.share_steps);
                        values.push(measured.latency_ns(c, s, part));
                    }
                }
            }
            values
        };
        Table { values: measured.iter().map(of).collect(), sizes: (first, second), shares }
    }

    pub fn total_ns(&self, allocation: &[Allotment]) -> f64 {
        allocation.iter().enumerate().map(|(tenant, &at)| self.latency_ns(tenant, at)).sum()
    }

    /// The best by trying all: shares for given caches, caches for given shares, or both. For four tenants, two on each
    /// of two gateways.
    pub fn by_force(&self, problem: &Problem, caches: Option<&[Allotment]>, shares: Option<&[Allotment]>) -> f64 {
        let tenants = problem.tenants.len();
        let splits = |steps: u32, given: Option<Vec<u32>>| match given {
            Some(given) => vec![given],
            None => compositions(steps, tenants),
        };
        let of = |given: Option<&[Allotment]>, of: fn(&Allotment) -> u32| given.map(|all| all.iter().map(of).collect());
        let firsts = match caches {
            Some(given) => vec![given.iter().map(|at| at.first).collect()],
            None => self.firsts(problem),
        };
        let seconds = splits(problem.servers[0], of(caches, |at| at.second));
        let shares = splits(problem.disks[0].share, of(shares, |at| at.share));
        let mut least = f64::INFINITY;
        for first in &firsts {
            for share in &shares {
                for second in &seconds {
                    let at = |tenant: usize| Allotment {
                        first: first[tenant],
                        second: second[tenant],
                        share: share[tenant],
                    };
                    least = least.min((0..tenants).map(|tenant| self.latency_ns(tenant, at(tenant))).sum());
                }
            }
        }
        least
    }

    fn firsts(&self, problem: &Problem) -> Vec<Vec<u32>> {
        let on =
            |gateway: usize| (0..problem.tenants.len()).filter(move |&at| problem.tenants[at].gateway == Some(gateway));
        let mut all = vec![vec![0; problem.tenants.len()]];
        for (gateway, &steps) in problem.gateways.iter().enumerate() {
            let here: Vec<usize> = on(gateway).collect();
            let splits = compositions(steps, here.len());
            let with = |base: &Vec<u32>| {
                splits
                    .iter()
                    .map(|split| {
                        let mut firsts = base.clone();
                        here.iter().zip(split).for_each(|(&at, &steps)| firsts[at] = steps);
                        firsts
                    })
                    .collect::<Vec<_>>()
            };
            all = all.iter().flat_map(with).collect();
        }
        all
    }
}

/// All ways to divide `steps` into so many parts of at least one step.
fn compositions(steps: u32, parts: usize) -> Vec<Vec<u32>> {
    match parts {
        0 => vec![vec![]],
        1 => vec![vec![steps]],
        _ => {
            let most = steps.saturating_sub(parts as u32 - 1);
            let with = |first: u32| {
                compositions(steps - first, parts - 1).into_iter().map(move |rest| [vec![first], rest].concat())
            };
            (1..=most).flat_map(with).collect()
        }
    }
}

impl Surface for Table {
    fn latency_ns(&self, tenant: usize, at: Allotment) -> f64 {
        let (firsts, seconds) = self.sizes;
        let place = |at: u32, most: u32| at.clamp(1, most) as usize - 1;
        let (c, s, d) = (place(at.first, firsts), place(at.second, seconds), place(at.share, self.shares));
        self.values[tenant][(c * seconds as usize + s) * self.shares as usize + d]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_to_divide_are_found_once() {
        assert_eq!(compositions(4, 2), [[1, 3], [2, 2], [3, 1]]);
        assert_eq!((compositions(32, 4).len(), compositions(8, 4).len()), (4495, 35));
    }
}
