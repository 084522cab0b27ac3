//! Moves of two resources between two tenants.

use super::super::Surface;
use super::super::problem::KINDS;
use super::Climb;

/// Pairs of two resources.
const KIND_PAIRS: [(usize, usize); 3] = [(0, 1), (1, 2), (0, 2)];
/// Every way to split two resources between two tenants is tried up to so many, otherwise a selection.
const SPLITS_MAX: usize = 4096;
/// Parts of a resource in that selection.
const SELECTED: u32 = 4;
/// Up to so many tenants all pairs are tried, otherwise as many random ones as there are tenants, with selected splits.
const ALL_PAIRS_MAX: usize = 16;

impl<S: Surface> Climb<'_, S> {
    /// Tries each pair of tenants once.
    pub(super) fn pairs(&mut self) {
        let count = self.at.len();
        let pairs: Vec<(usize, usize)> = if count <= ALL_PAIRS_MAX {
            (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b))).collect()
        } else {
            self.random_pairs()
        };
        for (a, b) in pairs {
            for kinds in KIND_PAIRS {
                if self.is_spent() {
                    return;
                }
                self.pair(a, b, kinds);
            }
        }
    }

    /// Pairs that share a resource: half of them a gateway, half a disk.
    fn random_pairs(&mut self) -> Vec<(usize, usize)> {
        let mut pairs = Vec::new();
        for a in 0..self.at.len() {
            let kind = if a % 2 == 0 && self.uses[a][0].is_some() { 0 } else { KINDS - 1 };
            let Some(resource) = self.uses[a][kind] else { continue };
            let b = self.members[resource][self.dice.below(self.members[resource].len() as u64) as usize];
            if a != b {
                pairs.push((a, b));
            }
        }
        pairs
    }

    /// The best way to split two resources between two tenants that share both.
    fn pair(&mut self, a: usize, b: usize, (first, second): (usize, usize)) {
        let shares = |kind: usize| self.uses[a][kind].is_some() && self.uses[a][kind] == self.uses[b][kind];
        if !shares(first) || !shares(second) {
            return;
        }
        let (ranges, is_every) = {
            let all = [self.range(a, b, first), self.range(a, b, second)];
            let sizes = all.map(|(low, high, _)| (high - low + 1) as usize);
            (all, self.at.len() <= ALL_PAIRS_MAX && sizes[0] * sizes[1] <= SPLITS_MAX)
        };
        let splits = [(first, ranges[0]), (second, ranges[1])].map(|(kind, (low, high, sum))| {
            if is_every {
                return (low..=high).collect::<Vec<_>>();
            }
            let own = [self.at[a][kind], self.at[b][kind].clamp(low, high)];
            let even = (0..=SELECTED).map(|part| {
                let over = u64::from(high - low) * u64::from(part) / u64::from(SELECTED);
                low + over as u32
            });
            let mut splits: Vec<u32> = even.chain(own).collect();
            splits.sort_unstable();
            splits.dedup();
            debug_assert!(splits.iter().all(|&part| part <= sum));
            splits
        });
        let (now_a, now_b) = (self.at[a], self.at[b]);
        let mut best = (self.cost[a] + self.cost[b] - self.least_gain(), now_a, now_b);
        for &x in &splits[0] {
            for &y in &splits[1] {
                let (mut at_a, mut at_b) = (now_a, now_b);
                (at_a[first], at_b[first]) = (x, (ranges[0].2 - x).min(self.most[b][first]));
                (at_a[second], at_b[second]) = (y, (ranges[1].2 - y).min(self.most[b][second]));
                let cost = self.costs.of(a, at_a) + self.costs.of(b, at_b);
                if cost < best.0 {
                    best = (cost, at_a, at_b);
                }
            }
        }
        for kind in [first, second] {
            // What shrinks comes first, so that there is always enough left.
            for (tenant, at) in
                if best.1[kind] < self.at[a][kind] { [(a, best.1), (b, best.2)] } else { [(b, best.2), (a, best.1)] }
            {
                if at[kind] != self.at[tenant][kind] {
                    self.set(tenant, kind, at[kind]);
                }
            }
        }
    }

    /// The least and the most of a resource that tenant `a` can have beside tenant `b`, and what both can have.
    fn range(&self, a: usize, b: usize, kind: usize) -> (u32, u32, u32) {
        let left = self.uses[a][kind].map_or(0, |resource| self.left[resource]);
        let sum = self.at[a][kind] + self.at[b][kind] + left;
        (self.least[a][kind], (sum - self.least[b][kind]).min(self.most[a][kind]), sum)
    }
}
