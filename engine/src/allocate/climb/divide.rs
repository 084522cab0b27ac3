//! Moves of one resource: to one tenant, from what is left and from others.

use super::super::Surface;
use super::Climb;

/// Up to so many steps of a resource, moves of every size are tried, otherwise powers of two.
const EVERY_SIZE_MAX: u32 = 64;
/// The cheapest donors that are remembered by size: so many tenants can give together.
const DONORS: usize = 8;
/// The best takers that are tried by size.
const TAKERS: usize = 4;

/// What moves of each size would change the cost of a tenant by.
struct Changes {
    up: Vec<f64>,
    down: Vec<f64>,
}

/// A move: so many steps to a tenant, and each of some others gives as many.
struct Move {
    change: f64,
    taker: usize,
    takes: u32,
    donors: Vec<usize>,
    gives: u32,
}

impl<S: Surface> Climb<'_, S> {
    /// Divides a resource until no move of it improves the goal.
    pub(super) fn divide(&mut self, resource: usize) {
        let (kind, _) = self.problem.kind(resource);
        let members = self.members[resource].clone();
        let capacity = self.problem.capacity(resource);
        let free = capacity - members.iter().map(|&tenant| self.least[tenant][kind]).sum::<u32>();
        let sizes: Vec<u32> = if free <= EVERY_SIZE_MAX {
            (1..=free).collect()
        } else {
            std::iter::successors(Some(1u32), |size| size.checked_mul(2)).take_while(|&size| size <= free).collect()
        };
        let mut changes: Vec<Changes> = members.iter().map(|&tenant| self.changes(tenant, kind, &sizes)).collect();
        while !self.is_spent() {
            let Some(best) = best(&changes, &sizes, self.left[resource]) else { break };
            if -best.change <= self.least_gain() {
                break;
            }
            for &donor in &best.donors {
                self.set(members[donor], kind, self.at[members[donor]][kind] - best.gives);
            }
            self.set(members[best.taker], kind, self.at[members[best.taker]][kind] + best.takes);
            for &member in best.donors.iter().chain([&best.taker]) {
                changes[member] = self.changes(members[member], kind, &sizes);
            }
        }
    }

    fn changes(&mut self, tenant: usize, kind: usize, sizes: &[u32]) -> Changes {
        let (at, cost) = (self.at[tenant], self.cost[tenant]);
        let (least, most) = (self.least[tenant][kind], self.most[tenant][kind]);
        let mut change = |part: Option<u32>| {
            let part = part.filter(|part| (least..=most).contains(part))?;
            let mut moved = at;
            moved[kind] = part;
            Some(self.costs.of(tenant, moved) - cost)
        };
        let up = sizes.iter().map(|&size| change(at[kind].checked_add(size)).unwrap_or(f64::INFINITY)).collect();
        let down = sizes.iter().map(|&size| change(at[kind].checked_sub(size)).unwrap_or(f64::INFINITY)).collect();
        Changes { up, down }
    }
}

/// The move that lowers the cost most.
fn best(changes: &[Changes], sizes: &[u32], left: u32) -> Option<Move> {
    let cheapest = |most: usize, of: &dyn Fn(&Changes) -> f64| {
        let mut cheapest: Vec<(f64, usize)> = Vec::with_capacity(most + 1);
        for (member, changes) in changes.iter().enumerate() {
            let change = of(changes);
            if change < f64::INFINITY && (cheapest.len() < most || change < cheapest[most - 1].0) {
                let at = cheapest.partition_point(|other| other.0 <= change);
                cheapest.insert(at, (change, member));
                cheapest.truncate(most);
            }
        }
        cheapest
    };
    let donors: Vec<_> = (0..sizes.len()).map(|size| cheapest(DONORS + 1, &|changes| changes.down[size])).collect();
    let mut best: Option<Move> = None;
    for (size, &takes) in sizes.iter().enumerate() {
        for (up, taker) in cheapest(TAKERS, &|changes| changes.up[size]) {
            if up >= best.as_ref().map_or(0.0, |best| best.change) {
                break;
            }
            let needed = takes.saturating_sub(left);
            let mut count = 1;
            while count <= DONORS {
                let gives = needed.div_ceil(count as u32);
                let of_size = sizes.partition_point(|&size| size < gives);
                let from =
                    if needed == 0 { &[][..] } else { donors.get(of_size).map_or(&[][..], |donors| &donors[..]) };
                let from: Vec<_> = from.iter().filter(|donor| donor.1 != taker).take(count).collect();
                if needed == 0 || from.len() == count {
                    let change = up + from.iter().map(|donor| donor.0).sum::<f64>();
                    if change < best.as_ref().map_or(0.0, |best| best.change) {
                        let gives = if needed == 0 { 0 } else { sizes[of_size] };
                        let donors = from.iter().map(|donor| donor.1).collect();
                        best = Some(Move { change, taker, takes, donors, gives });
                    }
                }
                if gives <= 1 {
                    break;
                }
                count *= 2;
            }
        }
    }
    best
}
