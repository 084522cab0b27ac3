//! One climb.

mod divide;
mod pairs;

use super::Surface;
use super::costs::Costs;
use super::goal::Goal;
use super::problem::{Allotment, KINDS, Problem};
use super::search::Effort;
use crate::dice::Dice;

/// A move must improve the cost by this part of it: less is noise of the surface.
const IMPROVES: f64 = 1e-7;
/// A tenant of a random start has this much more weight in its home tier than in the other one.
const HOME_WEIGHT: u64 = 16;

/// Hill climbing over one problem.
pub(super) struct Climb<'a, S> {
    problem: &'a Problem,
    costs: Costs<'a, S>,
    effort: Effort,
    dice: Dice,
    /// The bounds, and the resources of each tenant, by kind.
    least: Vec<[u32; KINDS]>,
    most: Vec<[u32; KINDS]>,
    uses: Vec<[Option<usize>; KINDS]>,
    /// The tenants of each resource.
    members: Vec<Vec<usize>>,
    at: Vec<[u32; KINDS]>,
    cost: Vec<f64>,
    /// What is left of each resource.
    left: Vec<u32>,
}

impl<'a, S: Surface> Climb<'a, S> {
    pub(super) fn new(problem: &'a Problem, goal: &'a Goal, surface: &'a S, effort: Effort, dice: Dice) -> Self {
        let tenants = 0..problem.tenants.len();
        let uses: Vec<_> = tenants.clone().map(|tenant| problem.uses(tenant)).collect();
        let mut members = vec![Vec::new(); problem.capacities().len()];
        for (tenant, uses) in uses.iter().enumerate() {
            uses.iter().flatten().for_each(|&resource| members[resource].push(tenant));
        }
        Climb {
            problem,
            costs: Costs::new(problem, goal, surface),
            effort,
            dice,
            least: tenants.clone().map(|tenant| problem.bounds(tenant).least.parts()).collect(),
            most: tenants.map(|tenant| problem.bounds(tenant).most.parts()).collect(),
            uses,
            members,
            at: Vec::new(),
            cost: Vec::new(),
            left: Vec::new(),
        }
    }

    pub(super) fn evaluations(&self) -> u64 {
        self.costs.evaluations
    }

    /// The local optimum above an allocation, and its cost.
    pub(super) fn climb(&mut self, from: Vec<Allotment>) -> (Vec<Allotment>, f64) {
        self.at = from.into_iter().map(Allotment::parts).collect();
        self.cost = self.at.iter().enumerate().map(|(tenant, &at)| self.costs.of(tenant, at)).collect();
        self.left = self.problem.capacities();
        for (uses, at) in self.uses.iter().zip(&self.at) {
            for (used, part) in uses.iter().zip(at) {
                used.iter().for_each(|&resource| self.left[resource] -= part);
            }
        }
        loop {
            let before = self.total();
            for resource in self.dice.shuffled(self.left.len() as u64) {
                self.divide(resource as usize);
            }
            self.pairs();
            if self.is_spent() || before - self.total() <= self.least_gain() {
                break;
            }
        }
        (self.at.iter().map(|&at| Allotment::of(at)).collect(), self.total())
    }

    /// A random allocation.
    pub(super) fn random(&mut self) -> Vec<Allotment> {
        let mut weights = vec![[0; KINDS]; self.least.len()];
        for weights in &mut weights {
            let home = self.dice.below(2) as usize;
            *weights = std::array::from_fn(|kind| {
                let weight = 1 + self.dice.below(255);
                if kind == home { weight * HOME_WEIGHT } else { weight }
            });
        }
        let mut at = self.least.clone();
        for (resource, members) in self.members.iter().enumerate() {
            let (kind, _) = self.problem.kind(resource);
            let has: u64 = members.iter().map(|&tenant| u64::from(at[tenant][kind])).sum();
            let mut left = u64::from(self.problem.capacity(resource)) - has;
            let mut weight: u64 = members.iter().map(|&tenant| weights[tenant][kind]).sum();
            for &tenant in members {
                let part = left * weights[tenant][kind] / weight.max(1);
                let part = part.min(u64::from(self.most[tenant][kind] - at[tenant][kind]));
                at[tenant][kind] += part as u32;
                left -= part;
                weight -= weights[tenant][kind];
            }
        }
        at.into_iter().map(Allotment::of).collect()
    }

    fn total(&self) -> f64 {
        self.cost.iter().sum()
    }

    fn least_gain(&self) -> f64 {
        IMPROVES * self.total().abs()
    }

    /// Whether it has searched enough.
    fn is_spent(&self) -> bool {
        self.costs.evaluations >= 2 * self.effort.evaluations_max
    }

    /// Sets what a tenant has of a kind.
    fn set(&mut self, tenant: usize, kind: usize, part: u32) {
        if let Some(resource) = self.uses[tenant][kind] {
            self.left[resource] = self.left[resource] + self.at[tenant][kind] - part;
            self.at[tenant][kind] = part;
            self.cost[tenant] = self.costs.of(tenant, self.at[tenant]);
        }
    }
}
