//! Allocations that divide one resource at a time, as in section 5.1 of the paper: what the joint one is compared with.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Surface;
use super::exact::{self, TooLarge};
use super::goal::Goal;
use super::problem::{Allotment, Problem};
use super::search::{Effort, Found, climb};

/// Baselines other than `ideal` search exactly up to these limits: less than a second.
const EXACT_TENANTS_MAX: usize = 64;
const EXACT_TRANSITIONS_MAX: u128 = 1 << 27;

/// A way to divide resources. All keep to the bounds of the problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Baseline {
    /// Each resource equally.
    Equal,
    /// Each tier by itself: steps go where they save the most misses of the references that this tier sees. The disk
    /// equally.
    Mrc,
    /// The caches of `mrc`, and the best shares for them.
    MrcDisk,
    /// The caches equally, and the best shares for that.
    DiskOnly,
    /// The disk equally, and the best caches for that.
    CacheOnly,
    /// The best allocation of all, by exact search.
    Ideal,
}

impl Baseline {
    /// All of them.
    pub const ALL: [Baseline; 6] =
        [Baseline::Equal, Baseline::Mrc, Baseline::MrcDisk, Baseline::DiskOnly, Baseline::CacheOnly, Baseline::Ideal];

    /// `equal`, `mrc`, `mrc+disk`, `disk-only`, `cache-only`, `ideal`.
    pub fn name(self) -> &'static str {
        match self {
            Baseline::Equal => "equal",
            Baseline::Mrc => "mrc",
            Baseline::MrcDisk => "mrc+disk",
            Baseline::DiskOnly => "disk-only",
            Baseline::CacheOnly => "cache-only",
            Baseline::Ideal => "ideal",
        }
    }

    /// The baseline of this name.
    pub fn named(name: &str) -> Option<Baseline> {
        Baseline::ALL.into_iter().find(|baseline| baseline.name() == name)
    }

    /// Its allocation. `levels` are what `mrc` and `mrc+disk` divide by, `surface` is what the others search, and what
    /// costs are stated on. Only `ideal` fails. Where exact search for the others is too large, they climb.
    ///
    /// The problem must have passed [`Problem::check`].
    pub fn allocate<S: Surface, L: Levels>(
        self,
        problem: &Problem,
        goal: &Goal,
        surface: &S,
        levels: &L,
        effort: Effort,
        seed: u64,
    ) -> Result<Found, TooLarge> {
        let equal = problem.equal();
        let found = |allocation: Vec<Allotment>| {
            let latencies = allocation.iter().enumerate().map(|(tenant, &at)| surface.latency_ns(tenant, at));
            let cost = goal.total(&latencies.collect::<Vec<_>>());
            Found { evaluations: allocation.len() as u64, allocation, cost }
        };
        let rest = |allocation: &[Allotment], keeps: fn(&mut Allotment, Allotment)| {
            thorough(&restricted(problem, allocation, keeps), goal, surface, allocation, effort, seed)
        };
        let caches: fn(&mut Allotment, Allotment) = |bound, at| (bound.first, bound.second) = (at.first, at.second);
        Ok(match self {
            Baseline::Equal => found(equal),
            Baseline::Mrc => found(mrc(problem, levels)),
            Baseline::MrcDisk => rest(&mrc(problem, levels), caches),
            Baseline::DiskOnly => rest(&equal, caches),
            Baseline::CacheOnly => rest(&equal, |bound, at| bound.share = at.share),
            Baseline::Ideal => return exact::exact(problem, goal, surface),
        })
    }
}

/// The problem with bounds that leave some resources as they are in this allocation.
fn restricted(problem: &Problem, allocation: &[Allotment], keeps: fn(&mut Allotment, Allotment)) -> Problem {
    let mut problem = problem.clone();
    for (tenant, &at) in problem.tenants.iter_mut().zip(allocation) {
        keeps(&mut tenant.bounds.least, at);
        keeps(&mut tenant.bounds.most, at);
    }
    problem
}

/// Exact search where it takes less than a second, otherwise a climb.
fn thorough<S: Surface>(
    problem: &Problem,
    goal: &Goal,
    surface: &S,
    from: &[Allotment],
    effort: Effort,
    seed: u64,
) -> Found {
    if problem.tenants.len() <= EXACT_TENANTS_MAX
        && exact::size(problem).transitions <= EXACT_TRANSITIONS_MAX
        && let Ok(found) = exact::exact(problem, goal, surface)
    {
        return found;
    }
    climb(problem, goal, surface, Some(from), effort, seed)
}

/// Each tier by the misses that it sees, first tiers first; the disk equally.
fn mrc<L: Levels>(problem: &Problem, levels: &L) -> Vec<Allotment> {
    let mut allocation = problem.equal();
    let resources = 0..problem.gateways.len() + problem.servers.len();
    for resource in resources {
        let (kind, _) = problem.kind(resource);
        let members: Vec<usize> = problem.members(resource).collect();
        let curves = members.iter().map(|&tenant| {
            let bounds = problem.bounds(tenant);
            let (least, most) = (bounds.least.parts()[kind], bounds.most.parts()[kind]);
            let misses = |part: u32| match kind {
                0 => levels.first(tenant, part),
                _ => levels.second(tenant, allocation[tenant].first, part),
            };
            (least, (least..=most).map(misses).collect())
        });
        let parts = greedy(problem.capacity(resource), &curves.collect::<Vec<_>>());
        for (tenant, part) in members.into_iter().zip(parts) {
            match kind {
                0 => allocation[tenant].first = part,
                _ => allocation[tenant].second = part,
            }
        }
    }
    allocation
}

/// Steps go where they save the most misses a step. A run of steps counts as one, so that a plateau is crossed if what
/// comes after is worth it (Qureshi and Patt, "Utility-based cache partitioning", MICRO 2006: lookahead). On a convex
/// curve that is one step at a time. What saves nothing goes to the smallest partitions.
///
/// A curve: the least partition, and the misses from there on.
fn greedy(capacity: u32, curves: &[(u32, Vec<f64>)]) -> Vec<u32> {
    // Steps beyond the least.
    let mut over = vec![0usize; curves.len()];
    let mut left = capacity as usize - curves.iter().map(|curve| curve.0 as usize).sum::<usize>();
    // The best run of a curve from here: misses saved a step, and steps.
    let run = |curve: &[f64], from: usize, left: usize| {
        let to = (curve.len() - 1).min(from + left);
        let runs = (from + 1..=to).map(|end| ((curve[from] - curve[end]) / (end - from) as f64, end - from));
        runs.fold((0.0, 0), |best: (f64, usize), run| if run.0 > best.0 { run } else { best })
    };
    let mut runs: Vec<(f64, usize)> = curves.iter().map(|curve| run(&curve.1, 0, left)).collect();
    while let Some(best) = (0..runs.len()).reduce(|best, at| if runs[at].0 > runs[best].0 { at } else { best }) {
        let (_, steps) = runs[best];
        if steps == 0 {
            break;
        }
        over[best] += steps;
        left -= steps;
        for (at, curve) in curves.iter().enumerate() {
            if at == best || runs[at].1 > left {
                runs[at] = run(&curve.1, over[at], left);
            }
        }
    }
    let mut lowest: BinaryHeap<_> =
        curves.iter().enumerate().map(|(at, curve)| Reverse((curve.0 as usize + over[at], at))).collect();
    while left > 0
        && let Some(Reverse((part, at))) = lowest.pop()
    {
        if over[at] + 1 < curves[at].1.len() {
            over[at] += 1;
            left -= 1;
            lowest.push(Reverse((part + 1, at)));
        }
    }
    curves.iter().zip(over).map(|(curve, over)| curve.0 + over as u32).collect()
}

/// The misses that each tier sees by itself, in any unit that is the same for all tenants (misses a second, say).
pub trait Levels {
    /// Misses of the first tier with this partition, in steps.
    fn first(&self, tenant: usize, first: u32) -> f64;
    /// Misses of the second tier with `second` steps, while the first tier has `first`.
    fn second(&self, tenant: usize, first: u32, second: u32) -> f64;
}

#[cfg(test)]
mod tests {
    use super::super::brute;
    use super::*;
    use crate::dice::Rng;

    /// Misses that do not depend on the other tier.
    struct Alone(Vec<Vec<f64>>);

    impl Levels for Alone {
        fn first(&self, tenant: usize, first: u32) -> f64 {
            self.0[tenant][first as usize]
        }

        fn second(&self, tenant: usize, _: u32, second: u32) -> f64 {
            self.0[tenant][second as usize]
        }
    }

    /// Misses that fall ever more slowly.
    fn convex(rng: &mut Rng, steps: usize) -> Vec<f64> {
        let mut falls: Vec<u64> = (0..steps).map(|_| rng.below(100)).collect();
        falls.sort_unstable_by_key(|&fall| Reverse(fall));
        let start = falls.iter().sum::<u64>();
        let fell = falls.iter().scan(0, |sum, fall| {
            *sum += fall;
            Some(*sum)
        });
        [0].into_iter().chain(fell).map(|fell| (start - fell) as f64).collect()
    }

    #[test]
    fn mrc_has_the_fewest_misses_in_each_tier_where_curves_are_convex() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed + 1);
            let curves: Vec<Vec<f64>> = (0..4).map(|_| convex(&mut rng, 8)).collect();
            let (problem, _) = brute::random(seed);
            let equal = problem.equal();
            let found = mrc(&problem, &Alone(curves.clone()));
            problem.permits(&found).unwrap();
            let sums = |allocation: &[Allotment]| {
                let misses = |at: &dyn Fn(&Allotment) -> u32| {
                    allocation.iter().enumerate().map(|(tenant, own)| curves[tenant][at(own) as usize]).sum::<f64>()
                };
                (misses(&|own| own.first), misses(&|own| own.second))
            };
            // All tiers together are best by brute force on the sum of misses of both.
            let of_both =
                |tenant: usize, at: Allotment| curves[tenant][at.first as usize] + curves[tenant][at.second as usize];
            let (_, best) = brute::best(&problem, &of_both);
            let (first, second) = sums(&found);
            assert_eq!(first + second, best, "seed {seed}");
            assert!(found.iter().zip(&equal).all(|(found, equal)| found.share == equal.share));
        }
    }

    #[test]
    fn a_plateau_is_crossed_if_what_comes_after_is_worth_it() {
        // Figure 6 of the paper: flat up to the size of the first tier.
        let flat: Vec<f64> =
            (0..=10).map(|size| if size <= 5 { 100.0 } else { 100.0 - 20.0 * f64::from(size - 5) }).collect();
        let curves = vec![(1, flat[1..].to_vec()), (1, flat[1..].to_vec()), (1, vec![10.0, 9.0, 8.0])];
        assert_eq!(greedy(12, &curves), [10, 1, 1]);
        assert_eq!(greedy(5, &curves), [1, 1, 3]);
    }

    #[test]
    fn what_saves_nothing_goes_to_the_smallest() {
        assert_eq!(greedy(9, &[(1, vec![1.0; 9]), (3, vec![1.0; 7]), (0, vec![1.0; 2])]), [4, 4, 1]);
    }

    #[test]
    fn restricted_baselines_are_the_best_by_brute_force() {
        for seed in 0..200 {
            let (problem, table) = brute::random(seed);
            let surface = |tenant: usize, at: Allotment| table.at(tenant, at);
            let mut rng = Rng::new(seed + 1);
            let levels = Alone((0..4).map(|_| convex(&mut rng, 8)).collect());
            let run = |baseline: Baseline| {
                let found =
                    baseline.allocate(&problem, &Goal::Latency, &surface, &levels, Effort::default(), 1).unwrap();
                problem.permits(&found.allocation).unwrap();
                found
            };
            let [equal, mrc, with_disk, disk, cache, ideal] = Baseline::ALL.map(run);
            let caches = |at: &[Allotment]| at.iter().map(|at| (at.first, at.second)).collect::<Vec<_>>();
            assert_eq!(caches(&with_disk.allocation), caches(&mrc.allocation));
            assert_eq!(caches(&disk.allocation), caches(&equal.allocation));
            let bound = |allocation: &[Allotment], is_share: bool| {
                let mut bound = problem.clone();
                for (tenant, at) in bound.tenants.iter_mut().zip(allocation) {
                    for limit in [&mut tenant.bounds.least, &mut tenant.bounds.most] {
                        if is_share {
                            limit.share = at.share;
                        } else {
                            (limit.first, limit.second) = (at.first, at.second);
                        }
                    }
                }
                brute::best(&bound, &surface).1
            };
            let close =
                |found: &Found, best: f64| assert!((found.cost - best).abs() <= 1e-9 * best, "seed {seed}: {found:?}");
            close(&with_disk, bound(&mrc.allocation, false));
            close(&disk, bound(&equal.allocation, false));
            close(&cache, bound(&equal.allocation, true));
            close(&ideal, brute::best(&problem, &surface).1);
        }
    }

    #[test]
    fn names_are_those_of_the_paper() {
        assert!(Baseline::ALL.iter().all(|&baseline| Baseline::named(baseline.name()) == Some(baseline)));
        assert_eq!(Baseline::named("best"), None);
    }
}
