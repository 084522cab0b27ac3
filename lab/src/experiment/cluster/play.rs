//! Servers with a disk each, striped tenants, and how the slices of the servers are arranged.

use engine::cluster::pack::{Fraction, Schedule, Servers, Tenant, Wanted, fault, pack};
use engine::cluster::{Need, Slot, Timetable, round_ns, tour};
use engine::control::{CacheSpec, TenantSpec, WriteCache};
use engine::disk::policy::Kind;
use engine::units::{BLOCK, MILLISECOND, Nanos, SECOND, Share};
use sim::bench::Costs;
use sim::bench::striped::{Client, Network, Striped};

use super::super::loads::Load;
use super::super::stand::{Rate, Stand, mixed};

/// How often the round is planned anew, and clocks are set.
const PLAN_NS: Nanos = 5 * SECOND;
const CLOCK_NS: Nanos = SECOND;
/// Blocks by which the places of a volume differ on different servers, less than this: several tracks.
const TURNED: u64 = 1024;
/// A schedule is announced so many rounds before it takes effect.
const AHEAD_ROUNDS: u64 = 2;
/// Steps of the search for a schedule, which is far more than these small problems need.
const STEPS: usize = 200;

/// How the slices of the servers are arranged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slices {
    /// There are none.
    None,
    /// Each server has its own round.
    Own,
    /// At the same time on all servers of a tenant.
    Together,
}

/// A striped tenant.
#[derive(Clone, Debug)]
pub struct Striper {
    /// How many servers it is striped over.
    pub servers: usize,
    pub share: Fraction,
    /// The stripe unit, bytes.
    pub unit: u64,
    /// First byte and bytes on each server's disk.
    pub start: u64,
    pub bytes: u64,
    pub write_cache: WriteCache,
    /// Its partition on each server; `None`: as the server plans.
    pub cache: Option<u64>,
    pub load: Load,
}

impl Striper {
    fn share(&self) -> f64 {
        f64::from(self.share.over) / f64::from(self.share.under)
    }
}

/// A cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub stand: Stand,
    pub servers: usize,
    pub tenants: Vec<Striper>,
    pub clocks: Clocks,
    /// The round, if it does not follow what servers and clients measure.
    pub round_ns: Option<Nanos>,
    pub network: Network,
}

/// The result of a run.
pub struct Seen {
    /// By tenant.
    pub rates: Vec<Rate>,
    pub r_cluster: f64,
    pub round_ns: Nanos,
    /// Changes of the round in the counted time.
    pub changes: u32,
}

/// How clocks differ from the true time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clocks {
    /// They do not.
    Exact,
    /// Every second one is ahead by so much.
    Offset(Nanos),
    /// Every second one is 50 ppm fast and the others 50 ppm slow, and all are set right each 64 s.
    Drift,
    /// All are stepped by [`STEP`] each [`STEP_NS`].
    AllStepped,
    /// One is stepped by [`STEP`] each [`STEP_NS`], and set right a second later.
    OneStepped,
}

pub const STEP_NS: Nanos = 30 * SECOND;
const STEP: i64 = 300 * MILLISECOND as i64;
const DRIFT_PPM: i64 = 50;
const SET_RIGHT_NS: Nanos = 64 * SECOND;

impl Clocks {
    /// By how much the clock of a server is ahead of the true time.
    fn ahead_ns(self, server: usize, now: Nanos) -> i64 {
        let is_second = server % 2 == 1;
        match self {
            Clocks::Exact => 0,
            Clocks::Offset(ns) => ns as i64 * i64::from(is_second),
            Clocks::Drift => {
                let drift = (now % SET_RIGHT_NS) as i64 / 1_000_000 * DRIFT_PPM;
                if is_second { drift } else { -drift }
            }
            Clocks::AllStepped => (now / STEP_NS) as i64 * STEP,
            Clocks::OneStepped => STEP * i64::from(server == 0 && now % STEP_NS < SECOND),
        }
    }
}

impl Cluster {
    /// The schedule of all tenants.
    fn schedule(&self) -> Result<Schedule, String> {
        // Slices that are alike follow in the order in which the heads travel least.
        let mut order = Vec::new();
        tour(self.tenants.iter().map(|tenant| Some(tenant.start)).enumerate(), &mut order);
        let asked = |&at: &usize| {
            let Striper { servers, share, .. } = self.tenants[at];
            Tenant { servers, share, pinned: None, start: None }
        };
        let tenants: Vec<Tenant> = order.iter().map(asked).collect();
        let mut steps = 0..STEPS;
        let wanted = Wanted { least: 0.5, enough: 1.0, seed: 1 };
        let found = pack(self.servers, &tenants, wanted, || steps.next().is_some()).map_err(|why| why.to_string())?;
        if let Some(fault) = fault(self.servers, &tenants, &found) {
            return Err(fault.to_string());
        }
        let mut slots = found.slots.clone();
        order.iter().zip(found.slots).for_each(|(&at, slot)| slots[at] = slot);
        Ok(Schedule { slots, ..found })
    }

    fn client(&self, at: usize, servers: &Servers, seed: u64) -> Result<Client, String> {
        let tenant = &self.tenants[at];
        let bytes = tenant.bytes / tenant.unit * tenant.unit;
        let load = tenant.load.workload(bytes * tenant.servers as u64, mixed(seed, at))?;
        let servers: Vec<usize> = servers.iter().collect();
        Ok(Client {
            // Drives turn independently of one another: where a fragment is on its track differs from server to server.
            starts: servers.iter().map(|&server| tenant.start + mixed(seed, server) % TURNED * BLOCK).collect(),
            servers,
            unit: tenant.unit,
            bytes,
            write_cache: tenant.write_cache,
            tenant: TenantSpec {
                share: Share::from_ppb((tenant.share() * 1e9) as u64),
                cache: tenant.cache.map_or(CacheSpec::Trial, CacheSpec::Asked),
                ..TenantSpec::default()
            },
            load,
        })
    }

    /// Runs the tenants of these numbers.
    pub fn run(&self, present: &[usize], slices: Slices, seed: u64) -> Result<Seen, String> {
        let schedule = self.schedule()?;
        let policy = if slices == Slices::None { Kind::None } else { Kind::Insulated };
        let stand = Stand { policy, ..self.stand.clone() };
        let servers = (0..self.servers).map(|at| Ok((stand.config(mixed(seed, at)), stand.drive()?)));
        let servers = servers.collect::<Result<Vec<_>, String>>()?;
        let clients = present.iter().map(|&at| self.client(at, &schedule.slots[at].servers, seed));
        let network = Network { seed: mixed(seed, self.servers), ..self.network };
        let mut striped = Striped::new(Costs::default(), network, servers, clients.collect::<Result<_, _>>()?)?;
        let mut rates = vec![Rate::new(&stand); present.len()];
        let mut failed = None;
        let mut round = None;
        let (mut version, mut changes) = (0, 0);
        let end = stand.warm_up_ns + stand.counted_ns;
        while striped.now() < end {
            if slices == Slices::Together {
                (0..self.servers).try_for_each(|at| striped.set_clock(at, self.clocks.ahead_ns(at, striped.now())))?;
            }
            if slices == Slices::Together && striped.now().is_multiple_of(PLAN_NS) {
                let planned = match self.round_ns {
                    Some(given) => given,
                    None => self.round(&mut striped, &schedule, present, round)?,
                };
                if round.replace(planned) != Some(planned) {
                    version += 1;
                    changes += u32::from(striped.now() >= stand.warm_up_ns);
                    let begins_ns = striped.now() + AHEAD_ROUNDS * planned;
                    for at in 0..self.servers {
                        let of = timetable(&striped, &schedule, present, at, version, begins_ns, planned);
                        for client in 0..present.len() {
                            let tenant = striped.tenant(at, client);
                            if let Some(&slot) = of.slots.iter().find(|slot| Some(slot.tenant) == tenant) {
                                striped.set_slot(client, &of, slot);
                            }
                        }
                        striped.set_timetable(at, of)?;
                    }
                }
            }
            let until = striped.now() + CLOCK_NS;
            striped.run(until.min(end), |done| {
                failed = failed.or(done.failed.then_some(done));
                rates[done.volume].count(&done, stand.warm_up_ns);
            });
        }
        match failed {
            Some(done) => Err(format!("{done:?} failed on disks without faults")),
            None => Ok(Seen { rates, r_cluster: schedule.r_cluster, round_ns: round.unwrap_or(0), changes }),
        }
    }

    /// The round that the servers' measurements ask for.
    fn round(
        &self,
        striped: &mut Striped,
        schedule: &Schedule,
        present: &[usize],
        before: Option<Nanos>,
    ) -> Result<Nanos, String> {
        // As on each server, a quarter of the permitted loss is a reserve.
        let lost_permille = (1000 - self.stand.insulation_permille) * 3 / 4;
        let switch_need_ns = self.stand.switch_ns * 1000 / u64::from(lost_permille);
        let mut needs = Vec::new();
        for server in 0..self.servers {
            let snapshot = striped.snapshot(server)?;
            for (client, &at) in present.iter().enumerate() {
                let Some(tenant) = striped.tenant(server, client) else { continue };
                let plan = snapshot.tenants.iter().find(|stats| stats.tenant == tenant).and_then(|stats| stats.plan);
                let slice_ns = plan.and_then(|plan| plan.need_ns).unwrap_or(switch_need_ns);
                needs.push(Need { slice_ns, length: schedule.slots[at].length });
            }
        }
        for (client, &at) in present.iter().enumerate() {
            let barrier = striped.barrier(client).and_then(|barrier| barrier.need_ns(lost_permille));
            needs.extend(barrier.map(|slice_ns| Need { slice_ns, length: schedule.slots[at].length }));
        }
        Ok(round_ns(before, needs, self.stand.round_max_ns))
    }
}

/// A server's part of the schedule.
fn timetable(
    striped: &Striped,
    schedule: &Schedule,
    present: &[usize],
    server: usize,
    version: u64,
    begins_ns: Nanos,
    round_ns: Nanos,
) -> Timetable {
    let mut slots: Vec<Slot> = present
        .iter()
        .enumerate()
        .filter_map(|(client, &at)| {
            let (tenant, slot) = (striped.tenant(server, client)?, &schedule.slots[at]);
            let ns = |part: f64| (part * round_ns as f64) as Nanos;
            let start_ns = ns(slot.start);
            let length_ns = ns(slot.start + slot.length) - start_ns;
            Some(Slot { tenant, start_ns, length_ns, is_striped: slot.servers.len() > 1 })
        })
        .collect();
    slots.sort_by_key(|slot| slot.start_ns);
    Timetable { version, begins_ns, round_ns, slots }
}
