//! A complete search without pinned slices: at each moment at which slices end, which ones begin?
//!
//! The time of the servers beyond the sum of all slices is small in a tight problem, and it is all that may be idle.
//! The search keeps an account of it, and gives a branch up as soon as it is used up; so in a round that is nearly full
//! each moment must be filled nearly exactly, and few branches are left. What a server will surely be idle counts at
//! once: a server with 8/60 of the round left, and no slice shorter than 10/60, can be filled no more ([`Waste`]).
//! States in which it failed are remembered over restarts with other orders of the branches.

use hashbrown::{HashMap, HashSet};

use super::Problem;
use crate::dice::Dice;

/// What a search came to.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Swept {
    /// Starts by tenant.
    Found(Vec<u64>),
    /// There is no schedule of this length.
    Impossible,
    /// The steps were used up.
    Unknown,
}

/// Slices that are alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    length: u64,
    servers: usize,
}

/// The search for a schedule in a round of one length.
pub(super) struct Sweep {
    servers: usize,
    round: u64,
    kinds: Vec<Kind>,
    counts: Vec<usize>,
    /// What may be idle, servers x units.
    idle: u64,
    /// States from which nothing was found, hashed.
    failed: HashSet<u64, foldhash::fast::FixedState>,
    /// Steps of the next attempt.
    steps: u64,
    attempts: u32,
}

/// How well lengths fill times.
pub(super) struct Waste {
    /// By set of lengths, as bits, and by time: what a server is idle of it at least, units.
    by_set: HashMap<u64, Vec<u64>, foldhash::fast::FixedState>,
    /// Ascending; none if it would take too much memory.
    lengths: Vec<u64>,
    /// The longest time.
    longest: u64,
}

impl Waste {
    pub(super) fn new(problem: &Problem, longest: u64) -> Waste {
        let mut lengths: Vec<u64> = problem.slices.iter().map(|slice| slice.length).collect();
        lengths.sort_unstable();
        lengths.dedup();
        if lengths.len() > LENGTHS_MAX || longest > ROUND_MAX {
            lengths.clear();
        }
        Waste { by_set: HashMap::with_hasher(foldhash::fast::FixedState::default()), lengths, longest }
    }

    /// By time that is left, for a set of lengths that may be used any number of times.
    fn of(&mut self, set: u64) -> &[u64] {
        let Waste { by_set, lengths, longest } = self;
        by_set.entry(set).or_insert_with(|| {
            let mut waste: Vec<u64> = Vec::with_capacity(*longest as usize + 1);
            for left in 0..=*longest {
                let of = lengths.iter().enumerate().filter(|&(at, &length)| set >> at & 1 == 1 && length <= left);
                let least = of.map(|(_, &length)| waste[(left - length) as usize]).min();
                waste.push(least.unwrap_or(left));
            }
            waste
        })
    }
}

/// Steps of the first attempt, some milliseconds; each later one has a tenth more.
const STEPS: u64 = 2_000;
/// Longest round, units, of which it is known how well times can be filled: 80 kB for a set of lengths.
const ROUND_MAX: u64 = 10_000;
/// Lengths of which it is known: as many sets of them are too many from here on.
const LENGTHS_MAX: usize = 12;
/// Failed states that are remembered: about 100 MB of them.
const FAILED_MAX: usize = 4 << 20;

struct Attempt<'a> {
    sweep: &'a mut Sweep,
    left: Vec<usize>,
    steps: u64,
    /// How much chance there is in the order of branches.
    noise: u64,
    dice: &'a mut Dice,
    waste: &'a mut Waste,
    begun: Vec<(usize, u64)>,
}

/// A branch has a schedule, has none, or was not searched to its end.
#[derive(Clone, Copy, PartialEq)]
enum Branch {
    Yes,
    No,
    Unknown,
}

impl Sweep {
    pub(super) fn new(problem: &Problem, round: u64) -> Sweep {
        let kind = |at: usize| Kind { length: problem.slices[at].length, servers: problem.slices[at].servers };
        let mut kinds: Vec<Kind> = (0..problem.slices.len()).map(kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        let counts = kinds.iter().map(|of| (0..problem.slices.len()).filter(|&at| kind(at) == *of).count()).collect();
        let idle = (problem.servers as u64 * round).saturating_sub(problem.area());
        let failed = HashSet::with_hasher(foldhash::fast::FixedState::default());
        Sweep { servers: problem.servers, round, kinds, counts, idle, failed, steps: STEPS, attempts: 0 }
    }

    pub(super) fn round(&self) -> u64 {
        self.round
    }

    /// Another attempt.
    pub(super) fn go_on(&mut self, problem: &Problem, waste: &mut Waste, dice: &mut Dice) -> Swept {
        let (left, steps) = (self.counts.clone(), self.steps);
        let noise = if self.attempts == 0 { 1 } else { self.round << (self.attempts % 6) };
        self.attempts += 1;
        self.steps += self.steps / 10;
        if self.failed.len() > FAILED_MAX {
            self.failed.clear();
        }
        let idle = self.idle;
        let mut attempt = Attempt { sweep: self, left, steps, noise, dice, waste, begun: Vec::new() };
        match attempt.at(0, &[], idle) {
            Branch::Yes => {
                let begun = attempt.begun;
                Swept::Found(self.starts(problem, &begun))
            }
            Branch::No => Swept::Impossible,
            Branch::Unknown => Swept::Unknown,
        }
    }

    fn starts(&self, problem: &Problem, begun: &[(usize, u64)]) -> Vec<u64> {
        let mut starts: Vec<Option<u64>> = vec![None; problem.slices.len()];
        for &(kind, start) in begun {
            let Kind { length, servers } = self.kinds[kind];
            let is_alike = |at: &usize| {
                let slice = &problem.slices[*at];
                starts[*at].is_none() && slice.length == length && slice.servers == servers
            };
            let at = (0..problem.slices.len()).find(is_alike).expect("each slice begins once");
            starts[at] = Some(start);
        }
        starts.into_iter().map(|start| start.expect("all begin")).collect()
    }
}

impl Attempt<'_> {
    /// From a time on, with slices that are under way (their ends and servers, ends ascending), and so much idle time.
    fn at(&mut self, now: u64, under_way: &[(u64, usize)], idle: u64) -> Branch {
        if self.surely_idle(now, under_way) > idle {
            return Branch::No;
        }
        let Sweep { kinds, round, servers, .. } = &*self.sweep;
        let is_left = |kind: &usize| self.left[*kind] > 0;
        let Some(longest) = (0..kinds.len()).filter(is_left).map(|kind| kinds[kind].length).max() else {
            return Branch::Yes;
        };
        if now + longest > *round {
            return Branch::No;
        }
        if self.steps == 0 {
            return Branch::Unknown;
        }
        self.steps -= 1;
        let state = self.hash(now, under_way);
        if self.sweep.failed.contains(&state) {
            return Branch::No;
        }
        let free = servers - under_way.iter().map(|slice| slice.1).sum::<usize>();
        let mut order: Vec<(u64, usize)> = (0..kinds.len())
            .filter(|kind| is_left(kind) && kinds[*kind].servers <= free)
            .map(|kind| {
                // Longest first, then those with most servers; both count in the same measure as the noise.
                let Kind { length, servers } = kinds[kind];
                (16 * length + servers as u64 * round / 16 + self.dice.below(self.noise), kind)
            })
            .collect();
        order.sort_unstable_by(|a, b| b.cmp(a));
        let order: Vec<usize> = order.into_iter().map(|(_, kind)| kind).collect();
        let branch = self.begin(now, &order, free, under_way, idle, &mut Vec::new());
        if branch == Branch::No {
            self.sweep.failed.insert(state);
        }
        branch
    }

    /// Chooses how many of the first kind in `order` begin now, then of the others, and goes on to the next end.
    fn begin(
        &mut self,
        now: u64,
        order: &[usize],
        free: usize,
        under_way: &[(u64, usize)],
        idle: u64,
        chosen: &mut Vec<usize>,
    ) -> Branch {
        let Some((&kind, rest)) = order.split_first().filter(|_| free > 0) else {
            return self.advance(now, free, under_way, idle, chosen);
        };
        let Kind { length, servers } = self.sweep.kinds[kind];
        let most = self.left[kind].min(free / servers);
        let end_of = |kind: usize| now + self.sweep.kinds[kind].length;
        let first_end = under_way.first().map(|slice| slice.0);
        let first_end = first_end.into_iter().chain(chosen.iter().map(|&kind| end_of(kind))).min();
        let rest_end = rest.iter().map(|&kind| end_of(kind)).min();
        let rest_servers: usize = rest.iter().map(|&kind| self.sweep.kinds[kind].servers * self.left[kind]).sum();
        let mut is_searched = true;
        for count in (0..=most).rev() {
            let free = free - count * servers;
            // What all others together do not take is idle until the first end at least.
            let surely_idle = free.saturating_sub(rest_servers) as u64;
            let own_end = (count > 0).then_some(now + length);
            let end = first_end.into_iter().chain(rest_end).chain(own_end).min();
            if end.is_some_and(|end| surely_idle * (end - now) > idle) {
                break;
            }
            self.left[kind] -= count;
            chosen.extend(std::iter::repeat_n(kind, count));
            let branch = self.begin(now, rest, free, under_way, idle, chosen);
            chosen.truncate(chosen.len() - count);
            self.left[kind] += count;
            match branch {
                Branch::Yes => return Branch::Yes,
                Branch::No => {}
                Branch::Unknown if self.steps == 0 => return Branch::Unknown,
                Branch::Unknown => is_searched = false,
            }
        }
        if is_searched { Branch::No } else { Branch::Unknown }
    }

    fn advance(&mut self, now: u64, free: usize, under_way: &[(u64, usize)], idle: u64, chosen: &[usize]) -> Branch {
        if self.steps == 0 {
            return Branch::Unknown;
        }
        self.steps -= 1;
        let kinds = &self.sweep.kinds;
        let mut next = under_way.to_vec();
        next.extend(chosen.iter().map(|&kind| (now + kinds[kind].length, kinds[kind].servers)));
        next.sort_unstable();
        let Some(&(end, _)) = next.first() else { return Branch::No };
        let lost = free as u64 * (end - now);
        if lost > idle {
            return Branch::No;
        }
        next.retain(|slice| slice.0 > end);
        next.dedup_by(|later, earlier| {
            let is_same = later.0 == earlier.0;
            if is_same {
                earlier.1 += later.1;
            }
            is_same
        });
        let begun = self.begun.len();
        self.begun.extend(chosen.iter().map(|&kind| (kind, now)));
        let branch = self.at(end, &next, idle - lost);
        if branch != Branch::Yes {
            self.begun.truncate(begun);
        }
        branch
    }

    /// What the servers will be idle at least, servers x units: a server is idle at the end of the round unless some of
    /// the remaining slices fill its remaining time exactly.
    fn surely_idle(&mut self, now: u64, under_way: &[(u64, usize)]) -> u64 {
        if self.waste.lengths.is_empty() {
            return 0;
        }
        let Sweep { kinds, servers, round, .. } = &*self.sweep;
        let lengths = &self.waste.lengths;
        let bit = |kind: &Kind| 1 << lengths.partition_point(|&length| length < kind.length);
        let set = kinds.iter().zip(&self.left).filter(|left| *left.1 > 0).fold(0, |set, (kind, _)| set | bit(kind));
        let waste = self.waste.of(set);
        let of = |from: u64, servers: usize| waste[(round - from) as usize] * servers as u64;
        let busy: usize = under_way.iter().map(|slice| slice.1).sum();
        of(now, servers - busy) + under_way.iter().map(|&(end, servers)| of(end, servers)).sum::<u64>()
    }

    fn hash(&self, now: u64, under_way: &[(u64, usize)]) -> u64 {
        use std::hash::BuildHasher;
        self.sweep.failed.hasher().hash_one((now, &self.left, under_way))
    }
}
