//! One schedule for the slices of a cluster: a tenant that is striped over k servers has its slice at the same time on
//! all of them.
//!
//! A tenant is a rectangle, k servers high and its share of the round long. Servers need not be neighbours, and no
//! slice goes beyond the end of the round; so it is enough that at each moment no more servers are asked for than there
//! are, and then servers can always be assigned, in the order in which slices begin. Volumes that exist are pinned to
//! their servers: their slices only have to keep apart where they share one.
//!
//! The search wants the shortest round. If it is not longer than the shares say, every tenant has its whole share;
//! otherwise each slice is that much shorter: R of the cluster is 1 / the length of the round.
//!
//! ```text
//!   four orders (order.rs) ──► in turns, as long as the caller has time: ──► servers (assign.rs) ──► Schedule
//!                              - local search over orders (order.rs)
//!                              - complete search in a given round (sweep.rs; nothing pinned)
//!                              - complete searches for more R and fewer moves (pinned/; any pinned)
//! ```
//!
//! Source: Wachs and Ganger, "Co-scheduling of disk head time in cluster-based storage", CMU-PDL 2008, section 3. The
//! account of idle time in the complete search and everything about pinned volumes are ours.

mod assign;
mod check;
mod order;
mod pinned;
mod servers;
mod sweep;
#[cfg(test)]
mod tests;

use crate::dice::Dice;
pub use check::fault;
use order::{Placed, Placer, Search};
pub use servers::{SERVERS_MAX, Servers};
use sweep::{Sweep, Swept, Waste};

/// A part of the round, exact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fraction {
    /// The numerator, at least 1 and at most `under`.
    pub over: u32,
    /// The denominator.
    pub under: u32,
}

/// What a tenant asks for.
#[derive(Clone, PartialEq, Debug)]
pub struct Tenant {
    /// How many servers it is striped over.
    pub servers: usize,
    /// Its share of each of them.
    pub share: Fraction,
    /// The servers that it is on already; as many.
    pub pinned: Option<Servers>,
    /// Where its slice begins at present, as a part of the round. Only if it is pinned.
    pub start: Option<f64>,
}

/// A slice that begins so much earlier or later than at present has not moved, as a part of the round: 0.2 ms of the
/// longest usual round of 2 s, less than any slice loses at its beginning. Present starts may be rounded.
const MOVED: f64 = 1e-4;
/// The same with room for rounding.
const MOVED_MOST: f64 = MOVED * 1.01;

/// How many slices do not keep their present starts.
pub fn moved(tenants: &[Tenant], schedule: &Schedule) -> usize {
    let is_moved =
        |(tenant, slot): &(&Tenant, &Slot)| tenant.start.is_some_and(|start| (start - slot.start).abs() > MOVED_MOST);
    tenants.iter().zip(&schedule.slots).filter(is_moved).count()
}

/// Where a tenant's slice is.
#[derive(Clone, PartialEq, Debug)]
pub struct Slot {
    /// The beginning, as a part of the round.
    pub start: f64,
    /// The length, as a part of the round: its share x R of the cluster.
    pub length: f64,
    /// The servers.
    pub servers: Servers,
}

/// A schedule.
#[derive(Clone, PartialEq, Debug)]
pub struct Schedule {
    /// R of the cluster: the part of its share that each slice has, at most 1.
    pub r_cluster: f64,
    /// By tenant, as asked.
    pub slots: Vec<Slot>,
}

/// Why there is no schedule.
#[derive(Clone, Copy, PartialEq, Debug, thiserror::Error)]
pub enum Refused {
    /// More servers than the cluster may have.
    #[error("a cluster has 1 to {SERVERS_MAX} servers")]
    Servers,
    /// A tenant needs more servers than there are, or none.
    #[error("tenant {0} asks for more servers than there are, or for none")]
    TooMany(usize),
    /// A tenant is pinned to servers that do not exist, or to another number of them.
    #[error("tenant {0} is pinned to servers that do not exist, or not to as many as it asks for")]
    Pinned(usize),
    /// A start is not inside the round, or of a tenant that is not pinned.
    #[error("the start of tenant {0} is not from 0 to below 1, or the tenant is not pinned")]
    Start(usize),
    /// A share is not more than 0 and at most 1.
    #[error("the share of tenant {0} is not more than 0 and at most 1")]
    Share(usize),
    /// More is asked for than the servers have, even with the least R.
    #[error("the tenants ask for {0:.3} of the servers' time")]
    Load(f64),
    /// More is asked of one server than it has, even with the least R.
    #[error("the tenants that are pinned to server {server} ask for {asked:.3} of its time")]
    ServerLoad {
        /// The server.
        server: usize,
        /// Its load with R = 1.
        asked: f64,
    },
    /// The complete search has found that there is none.
    #[error("there is no schedule with so much; the best one that was found has R = {0:.3}")]
    Impossible(f64),
    /// Nothing was found; the best schedule has this R.
    #[error("no schedule was found; the best one has R = {0:.3}")]
    NotFound(f64),
}

/// A slice to place.
#[derive(Clone, PartialEq, Debug)]
struct Slice {
    servers: usize,
    /// Units.
    length: u64,
    pinned: Option<Servers>,
    /// Part of the round.
    start: Option<f64>,
}

/// Slices to place, with lengths in units: whole numbers, so that ends that are the same are equal.
#[derive(Clone, PartialEq, Debug)]
struct Problem {
    servers: usize,
    /// The round in which all slices have their whole share, units.
    unit: u64,
    /// All lengths are multiples of so many units.
    grain: u64,
    slices: Vec<Slice>,
    has_pinned: bool,
    /// No length was rounded.
    is_exact: bool,
}

/// Units of a round if the shares have no common denominator that is less: a slice is at most a millionth too long.
const UNITS_MAX: u64 = 1_000_000;
/// Units of a round if slices stay where they are.
const FINE: u64 = 1 << 30;
/// Tenants up to which the complete search is tried: it takes stack for each.
const SWEPT_MAX: usize = 64;
/// Steps between the values of R that the complete search tries: 0.01.
const R_STEPS: u64 = 100;

impl Problem {
    fn new(servers: usize, tenants: &[Tenant]) -> Result<Problem, Refused> {
        if servers == 0 || servers > SERVERS_MAX {
            return Err(Refused::Servers);
        }
        let all = Servers::first(servers);
        for (at, tenant) in tenants.iter().enumerate() {
            if tenant.servers == 0 || tenant.servers > servers {
                return Err(Refused::TooMany(at));
            }
            if tenant.share.over == 0 || tenant.share.over > tenant.share.under {
                return Err(Refused::Share(at));
            }
            if tenant.pinned.is_some_and(|pinned| pinned.len() != tenant.servers || !pinned.without(&all).is_empty()) {
                return Err(Refused::Pinned(at));
            }
            if tenant.start.is_some_and(|start| tenant.pinned.is_none() || !(0.0..1.0).contains(&start)) {
                return Err(Refused::Start(at));
            }
        }
        let common = tenants.iter().try_fold(1u64, |common, tenant| {
            let under = u64::from(tenant.share.under / gcd(tenant.share.over.into(), tenant.share.under.into()) as u32);
            Some(common / gcd(common, under) * under).filter(|&common| common <= UNITS_MAX)
        });
        // Without one, lengths are rounded up, so a schedule stays valid.
        let unit = common.unwrap_or(UNITS_MAX);
        let slice = |tenant: &Tenant| {
            let length = (u64::from(tenant.share.over) * unit).div_ceil(u64::from(tenant.share.under));
            Slice { servers: tenant.servers, length, pinned: tenant.pinned, start: tenant.start }
        };
        let slices: Vec<Slice> = tenants.iter().map(slice).collect();
        let has_pinned = slices.iter().any(|slice| slice.pinned.is_some());
        Ok(Problem { servers, unit, grain: 1, slices, has_pinned, is_exact: common.is_some() })
    }

    /// The same in finer units: about 2^30 in a round. Present starts need not be at whole ones of the others.
    fn fine(mut self) -> Problem {
        let grain = (FINE / self.unit).max(1);
        (self.unit, self.grain) = (self.unit * grain, grain);
        self.slices.iter_mut().for_each(|slice| slice.length *= grain);
        self
    }

    /// Servers x units that all slices take.
    fn area(&self) -> u64 {
        self.slices.iter().map(|slice| slice.servers as u64 * slice.length).sum()
    }

    /// No round can be shorter, units. Also which server it is, if one alone is the reason.
    fn least(&self) -> (u64, Option<usize>) {
        let load = |server: usize| {
            let on = self.slices.iter().filter(|slice| slice.pinned.is_some_and(|pinned| pinned.contains(server)));
            on.map(|slice| slice.length).sum::<u64>()
        };
        let (server_load, server) = (0..self.servers).map(|server| (load(server), server)).max().expect("there is one");
        let by_area = self.area().div_ceil(self.servers as u64);
        if server_load > by_area { (server_load, Some(server)) } else { (by_area, None) }
    }

    /// The round with this R, units.
    fn round(&self, r: f64) -> u64 {
        (self.unit as f64 / r + 1e-9) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What is looked for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Wanted {
    /// The least R of the cluster, above 0 and at most 1: below, there is no schedule.
    pub least: f64,
    /// The search ends when R is that much.
    pub enough: f64,
    /// Decides the order of the search.
    pub seed: u64,
}

/// The schedule with the greatest R of the cluster that is found while `go_on` says so. It is asked between turns: they
/// take milliseconds at first, and up to about a tenth of the time so far later.
pub fn pack(
    servers: usize,
    tenants: &[Tenant],
    Wanted { least, enough, seed }: Wanted,
    mut go_on: impl FnMut() -> bool,
) -> Result<Schedule, Refused> {
    let problem = Problem::new(servers, tenants)?;
    if tenants.is_empty() {
        return Ok(Schedule { r_cluster: 1.0, slots: Vec::new() });
    }
    let (shortest, server) = problem.least();
    if shortest > problem.round(least) {
        let asked = shortest as f64 / problem.unit as f64;
        return Err(match server {
            Some(server) => Refused::ServerLoad { server, asked },
            None => Refused::Load(problem.area() as f64 / (problem.servers as u64 * problem.unit) as f64),
        });
    }
    let problem = if problem.has_pinned { problem.fine() } else { problem };
    let (placed, impossible) = match problem.has_pinned {
        true => pinned::search(&problem, (enough, least), seed, &mut go_on),
        false => search(&problem, problem.round(enough), seed, &mut go_on),
    };
    let r_cluster = (problem.unit as f64 / placed.end as f64).min(1.0);
    if placed.end > problem.round(least) {
        let is_impossible = problem.is_exact && impossible >= problem.round(least);
        return Err(if is_impossible { Refused::Impossible(r_cluster) } else { Refused::NotFound(r_cluster) });
    }
    let servers = assign::servers(&problem, &placed);
    let part = |units: u64| units as f64 / problem.unit.max(placed.end) as f64;
    let slot = |at: usize| Slot {
        start: part(placed.starts[at]),
        length: part(problem.slices[at].length),
        servers: servers[at],
    };
    Ok(Schedule { r_cluster, slots: (0..tenants.len()).map(slot).collect() })
}

/// Ends with a round that is at most `enough` long, units. Also the longest round of which it is known that there is no
/// schedule, or 0.
fn search(problem: &Problem, enough: u64, seed: u64, go_on: &mut dyn FnMut() -> bool) -> (Placed, u64) {
    let mut dice = Dice::new(seed);
    let mut placer = Placer::new(problem);
    let orders = order::first_orders(problem);
    let placed = orders.into_iter().map(|order| (placer.place(&order).clone(), order));
    let (mut best, order) = placed.min_by_key(|(placed, _)| placed.end).expect("there are orders");
    let mut local = Search::new(order, best.end);
    let is_swept = problem.slices.len() <= SWEPT_MAX;
    // What is enough, and rounds of R = 1, 0.99 and so on that are longer, which are not known to be impossible.
    let rounds = (0..R_STEPS / 2).map(|step| problem.round(1.0 - step as f64 / R_STEPS as f64));
    let rounds = std::iter::once(enough).chain(rounds.filter(|&round| round > enough)).filter(|_| is_swept);
    let mut sweeps: Vec<Sweep> = rounds.map(|round| Sweep::new(problem, round)).collect();
    let mut impossible = 0;
    let mut waste = Waste::new(problem, best.end);
    let mut is_hardest = false;
    while best.end > enough && go_on() {
        local.go_on(&mut placer, &mut best, enough, &mut dice);
        sweeps.retain(|sweep| sweep.round() < best.end);
        // In turns the one that would be best, and the one that is the least better.
        is_hardest = !is_hardest;
        let at = if is_hardest { 0 } else { sweeps.len().saturating_sub(1) };
        let Some(sweep) = sweeps.get_mut(at) else { continue };
        match sweep.go_on(problem, &mut waste, &mut dice) {
            Swept::Found(starts) => {
                let ends = starts.iter().zip(&problem.slices).map(|(start, slice)| start + slice.length);
                let end = ends.max().expect("there are slices");
                best = Placed { starts, end, ..best };
            }
            Swept::Impossible => {
                impossible = impossible.max(sweep.round());
                sweeps.drain(..=at);
            }
            Swept::Unknown => {}
        }
    }
    (best, impossible)
}
