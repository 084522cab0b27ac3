//! Slices placed one after the other, each as early as it fits, and a local search over the order.
//!
//! Every schedule can be shifted to the left until each slice begins at 0 or where another ends, so some order gives a
//! shortest round ("bottom-left", section 3.3 of the paper). The search changes the order a little, again and again,
//! and keeps what is not worse (Lesh et al. call it BLD*).

use super::{Problem, Servers, Slice};
use crate::dice::Dice;

/// Where slices are.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Placed {
    /// By tenant, in units.
    pub starts: Vec<u64>,
    /// By tenant. Of no use if nothing is pinned: servers are found afterwards.
    pub servers: Vec<Servers>,
    /// The last end.
    pub end: u64,
}

/// Changes of the order in a turn, at most, and what they cost at most: a change places all slices, each of which looks
/// at those before. Both are some milliseconds.
const CHANGES: u64 = 3_000;
const LOOKS: u64 = 5_000_000;
/// One change in so many is kept although it is worse: it leaves a local minimum.
const WORSE_KEPT: u64 = 200;

/// The first orders: as asked, longest first, most servers first, most of both first (section 3.5).
pub(super) fn first_orders(problem: &Problem) -> Vec<Vec<usize>> {
    let keys: [fn(&Slice) -> u64; 4] =
        [|_| 0, |slice| slice.length, |slice| slice.servers as u64, |slice| slice.length * slice.servers as u64];
    let order = |key: &fn(&Slice) -> u64| {
        let mut order: Vec<usize> = (0..problem.slices.len()).collect();
        order.sort_by_key(|&at| std::cmp::Reverse(key(&problem.slices[at])));
        order
    };
    keys.iter().map(order).collect()
}

/// Places slices, with memory that is used again.
pub(super) struct Placer<'a> {
    problem: &'a Problem,
    /// Without pinned slices: (time, servers that are taken from then on), in order of time.
    profile: Vec<(u64, usize)>,
    /// With pinned slices: those placed, in order of their starts.
    taken: Vec<Taken>,
    ends: Vec<u64>,
    placed: Placed,
}

#[derive(Clone, Copy)]
struct Taken {
    start: u64,
    end: u64,
    servers: Servers,
}

impl Placer<'_> {
    pub(super) fn new(problem: &Problem) -> Placer<'_> {
        let count = problem.slices.len();
        let placed = Placed { starts: vec![0; count], servers: vec![Servers::default(); count], end: 0 };
        Placer { problem, profile: Vec::new(), taken: Vec::new(), ends: Vec::new(), placed }
    }

    /// Each as early as it fits.
    pub(super) fn place(&mut self, order: &[usize]) -> &Placed {
        self.placed.end = 0;
        self.profile.clear();
        self.profile.push((0, 0));
        self.taken.clear();
        for &at in order {
            let slice = &self.problem.slices[at];
            let start = match (&slice.pinned, self.problem.has_pinned) {
                (_, false) => self.anywhere(slice),
                (Some(servers), true) => {
                    let servers = *servers;
                    self.placed.servers[at] = servers;
                    self.on(0, slice.length, &servers)
                }
                (None, true) => {
                    let (start, servers) = self.on_some(slice);
                    self.placed.servers[at] = servers;
                    start
                }
            };
            self.placed.starts[at] = start;
            self.placed.end = self.placed.end.max(start + slice.length);
        }
        &self.placed
    }

    /// Those with a present start at it, or as soon after it as it fits, then the others, longest first, as early as
    /// they fit; if all end in the round.
    pub(super) fn place_kept(&mut self, round: u64) -> Option<&Placed> {
        self.taken.clear();
        let slices = &self.problem.slices;
        let mut order: Vec<usize> = (0..slices.len()).collect();
        order.sort_by(|&a, &b| {
            let key = |at: usize| (slices[at].start.unwrap_or(1.0), std::cmp::Reverse(slices[at].length));
            key(a).partial_cmp(&key(b)).expect("starts are numbers")
        });
        for at in order {
            let slice = &slices[at];
            let from = slice.start.map_or(0, |start| (start * round as f64).round() as u64);
            let (start, servers) = match slice.pinned {
                Some(servers) => (self.on(from, slice.length, &servers), servers),
                None => self.on_some(slice),
            };
            (self.placed.starts[at], self.placed.servers[at]) = (start, servers);
            if start + slice.length > round {
                return None;
            }
        }
        self.placed.end = round;
        Some(&self.placed)
    }

    /// Takes a slice's servers in the profile, as early as so many are free for its length.
    fn anywhere(&mut self, slice: &Slice) -> u64 {
        let room = self.problem.servers - slice.servers;
        let mut first = 0;
        let mut at = 0;
        while at < self.profile.len() && self.profile[at].0 - self.profile[first].0 < slice.length {
            if self.profile[at].1 > room {
                first = at + 1;
            }
            at += 1;
        }
        // The last entry is free for ever, so `first` is an entry.
        let start = self.profile[first].0;
        let end = start + slice.length;
        let mut past = first;
        while past < self.profile.len() && self.profile[past].0 < end {
            past += 1;
        }
        let after = self.profile[past - 1].1;
        if self.profile.get(past).is_none_or(|next| next.0 > end) {
            self.profile.insert(past, (end, after));
        }
        for entry in &mut self.profile[first..past] {
            entry.1 += slice.servers;
        }
        start
    }

    /// Takes these servers, as early from a time on as all of them are free for this length.
    fn on(&mut self, from: u64, length: u64, servers: &Servers) -> u64 {
        let mut start = from;
        for taken in &self.taken {
            if taken.start >= start + length {
                break;
            }
            if taken.end > start && taken.servers.overlaps(servers) {
                start = taken.end;
            }
        }
        self.take(start, length, *servers);
        start
    }

    /// Takes any servers, as early as there are enough: those that were free for the shortest time before.
    fn on_some(&mut self, slice: &Slice) -> (u64, Servers) {
        self.ends.clear();
        self.ends.push(0);
        self.ends.extend(self.taken.iter().map(|taken| taken.end));
        self.ends.sort_unstable();
        let all = Servers::first(self.problem.servers);
        for at in 0..self.ends.len() {
            let start = self.ends[at];
            let end = start + slice.length;
            let busy = self.taken.iter().filter(|taken| taken.start < end && taken.end > start);
            let free = all.without(&busy.fold(Servers::default(), |busy, taken| busy.or(&taken.servers)));
            if free.len() < slice.servers {
                continue;
            }
            let since = |server: usize| {
                let before = self.taken.iter().filter(|taken| taken.end <= start && taken.servers.contains(server));
                before.map(|taken| taken.end).max().unwrap_or(0)
            };
            let mut servers: Vec<usize> = free.iter().collect();
            servers.sort_by_key(|&server| (std::cmp::Reverse(since(server)), server));
            let servers: Servers = servers.into_iter().take(slice.servers).collect();
            self.take(start, slice.length, servers);
            return (start, servers);
        }
        unreachable!("after the last end all servers are free")
    }

    fn take(&mut self, start: u64, length: u64, servers: Servers) {
        let at = self.taken.partition_point(|taken| taken.start < start);
        self.taken.insert(at, Taken { start, end: start + length, servers });
    }
}

/// A local search, which goes on where it stopped.
pub(super) struct Search {
    order: Vec<usize>,
    end: u64,
}

impl Search {
    pub(super) fn new(order: Vec<usize>, end: u64) -> Search {
        Search { order, end }
    }

    /// A turn: changes the order again and again. `best` is the shortest schedule so far.
    pub(super) fn go_on(&mut self, placer: &mut Placer<'_>, best: &mut Placed, least: u64, dice: &mut Dice) {
        let count = self.order.len() as u64;
        let mut next = self.order.clone();
        for _ in 0..(LOOKS / (count * count)).clamp(1, CHANGES) {
            if best.end <= least {
                return;
            }
            next.clone_from(&self.order);
            let (a, b) = (dice.below(count) as usize, dice.below(count) as usize);
            if dice.below(2) == 0 {
                next.swap(a, b);
            } else {
                let moved = next.remove(a);
                next.insert(b, moved);
            }
            let end = placer.place(&next).end;
            if end < best.end {
                best.clone_from(&placer.placed);
            }
            if end <= self.end || dice.below(WORSE_KEPT) == 0 {
                self.end = end;
                std::mem::swap(&mut self.order, &mut next);
            }
        }
    }
}
