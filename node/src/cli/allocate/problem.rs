//! From evidence to the problem that the engine solves, and from its solution to sizes and shares.

use engine::allocate::{
    Allotment, Bounds, DiskTime, Evidence, Grid, Interruption, Loss, MissRatios, Model, Problem, Reads, Round, Tenant,
    Tiers,
};
use engine::units::BLOCK;

use super::Failure;
use super::gather::{Load, Observed, mean};
use super::tenants::{At, Kept, Subject, matched};
use crate::control::view::{CurveEvidence, DiskEvidence, Resource, TenantEvidence, VolumeEvidence};

/// A curve needs at least this many block reads and writes, as `volume curve`.
const CURVE_LEAST: f64 = 1000.0;
/// A mean of fewer is not used if there is one of more.
const MEAN_LEAST: u64 = 10;
/// Latency of a hit, until one was measured: a request and its reply over a socket.
const HIT_NS_ASSUMED: f64 = 100_000.0;
/// Steps of share: halves, thirds, quarters, fifths, sixths and eighths are whole numbers of them.
const SHARE_STEPS: u32 = 120;
/// Finer steps, if requested shares do not fit otherwise.
const SHARE_STEPS_MAX: u32 = 960;
/// The finest step of cache, if requested sizes do not fit otherwise.
const CACHE_STEP_LEAST: u64 = 64 << 10;

/// What a tenant has: bytes of data in both caches, and a share.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Has {
    pub(super) first: u64,
    pub(super) second: u64,
    pub(super) share: f64,
}

/// A problem with the evidence of its tenants.
pub(super) struct Posed {
    pub(super) subjects: Vec<Subject>,
    pub(super) kept: Vec<Kept>,
    pub(super) evidence: Vec<Evidence>,
    /// The part of its disk's time that each tenant has in any case, because others leave it unused.
    pub(super) unused: Vec<f64>,
    pub(super) now: Vec<Has>,
    pub(super) problem: Problem,
    pub(super) model: Model,
    pools: Pools,
}

/// What can be divided, exactly: bytes of data, and shares.
#[derive(Debug)]
struct Pools {
    /// A disk of a gateway, with its memory.
    gateways: Vec<(At, u64)>,
    /// A disk of the server, with its memory and its time.
    disks: Vec<(At, u64, f64)>,
}

fn handed<T>(resource: &Resource<T>) -> bool {
    resource.auto || resource.requested.is_some()
}

/// Bytes of data in so much memory.
fn data(disk: &DiskEvidence, memory: u64) -> u64 {
    (u128::from(memory) * u128::from(BLOCK) / u128::from(disk.block_memory_bytes.max(1))) as u64
}

/// Memory for so much data.
pub(super) fn memory(disk: &DiskEvidence, data: u64) -> u64 {
    (u128::from(data) * u128::from(disk.block_memory_bytes) / u128::from(BLOCK)) as u64
}

/// The memory that a tenant has in any case.
fn floor(disk: &DiskEvidence, cache: &Resource<u64>) -> u64 {
    cache.requested.unwrap_or(0).max(disk.least_bytes)
}

/// Whether anything of a tenant may be planned.
pub(super) fn is_handed(observed: &Observed, subject: Subject) -> bool {
    let server = observed.tenant(subject.server);
    let gateway = subject.gateway.is_some_and(|at| handed(&observed.tenant(at).cache));
    gateway || handed(&server.cache) || is_share_handed(observed.disk(subject.server), server)
}

fn is_share_handed(disk: &DiskEvidence, tenant: &TenantEvidence) -> bool {
    handed(&tenant.share) && disk.fixed_shares.is_none()
}

/// The problem of all tenants that can be planned.
pub(super) fn pose(observed: &Observed) -> Result<Posed, Failure> {
    let (found, mut kept) = matched(observed);
    let (mut subjects, mut evidence, mut unused) = (Vec::new(), Vec::new(), Vec::new());
    for subject in found {
        let left = unused_by_others(observed, subject.server);
        match evidence_of(observed, subject, left) {
            Ok(of) => {
                subjects.push(subject);
                evidence.push(of);
                unused.push(left);
            }
            Err(reason) => {
                kept.push(Kept { at: subject.server, reason: reason.clone() });
                kept.extend(subject.gateway.map(|at| Kept { at, reason }));
            }
        }
    }
    if subjects.is_empty() {
        let place = &observed.servers[0].place;
        let reasons = kept.iter().map(|kept| format!("tenant '{}': {}", observed.tenant(kept.at).tenant, kept.reason));
        let reasons: Vec<String> = reasons.collect();
        let error = match reasons.is_empty() {
            true => format!("{place} has no tenant to plan for"),
            false => format!("{place} has no tenant that can be planned; {}", reasons.join("; ")),
        };
        return Err(Failure::refused(error, Some("let clients use their volumes for a minute, and plan again".into())));
    }
    let pools = pools(observed, &subjects);
    let problem = fitting(observed, &subjects, &pools)?;
    let now = subjects.iter().map(|subject| present(observed, *subject)).collect();
    let model = Model::new(&problem, evidence.clone());
    Ok(Posed { subjects, kept, evidence, unused, now, problem, model, pools })
}

fn present(observed: &Observed, subject: Subject) -> Has {
    let effective = |at: At| data(observed.disk(at), observed.tenant(at).cache.effective);
    Has {
        first: subject.gateway.map_or(0, effective),
        second: effective(subject.server),
        share: observed.tenant(subject.server).share.effective,
    }
}

/// The memory of a disk that can be divided among these tenants: what may be planned for tenants that have handed their
/// cache over, and what the others of them have.
fn memory_for(observed: &Observed, disk: At, members: &[At]) -> u64 {
    let evidence = observed.disk(disk);
    let mut left = evidence.plannable_bytes;
    for (tenant, of) in evidence.tenants.iter().enumerate().filter(|(_, of)| handed(&of.cache)) {
        let floor = floor(evidence, &of.cache);
        match members.iter().any(|member| member.tenant == tenant) {
            // In whole blocks, as the server counts.
            true => left += floor - floor % evidence.block_memory_bytes.max(1),
            // A tenant that is not planned keeps its plan.
            false => left = left.saturating_sub(of.cache.effective.saturating_sub(floor)),
        }
    }
    let fixed = members.iter().map(|at| &observed.tenant(*at).cache).filter(|cache| !handed(cache));
    data(evidence, left + fixed.map(|cache| cache.effective).sum::<u64>())
}

/// The same of a disk's time.
fn share_for(observed: &Observed, disk: At, members: &[At]) -> f64 {
    let evidence = observed.disk(disk);
    let mut left = evidence.plannable_share;
    for (tenant, of) in evidence.tenants.iter().enumerate().filter(|(_, of)| is_share_handed(evidence, of)) {
        let floor = of.share.requested.unwrap_or(0.0);
        match members.iter().any(|member| member.tenant == tenant) {
            true => left += floor,
            false => left -= (of.share.effective - floor).max(0.0),
        }
    }
    let fixed = members.iter().map(|at| observed.tenant(*at)).filter(|of| !is_share_handed(evidence, of));
    (left + fixed.map(|of| of.share.effective).sum::<f64>()).clamp(0.0, 1.0)
}

fn same_disk(one: At, other: At) -> bool {
    (one.server, one.disk) == (other.server, other.disk)
}

fn pools(observed: &Observed, subjects: &[Subject]) -> Pools {
    let distinct = |all: Vec<At>| {
        let mut disks: Vec<(At, Vec<At>)> = Vec::new();
        for at in all {
            match disks.iter_mut().find(|(disk, _)| same_disk(*disk, at)) {
                Some((_, members)) => members.push(at),
                None => disks.push((at, vec![at])),
            }
        }
        disks
    };
    let gateways = distinct(subjects.iter().filter_map(|subject| subject.gateway).collect());
    let disks = distinct(subjects.iter().map(|subject| subject.server).collect());
    Pools {
        gateways: gateways.iter().map(|(at, members)| (*at, memory_for(observed, *at, members))).collect(),
        disks: disks
            .iter()
            .map(|(at, members)| (*at, memory_for(observed, *at, members), share_for(observed, *at, members)))
            .collect(),
    }
}

/// The problem in the coarsest steps in which what was requested fits.
fn fitting(observed: &Observed, subjects: &[Subject], pools: &Pools) -> Result<Problem, Failure> {
    let memories = pools.gateways.iter().map(|(_, bytes)| *bytes).chain(pools.disks.iter().map(|(_, bytes, _)| *bytes));
    let mut grid = Grid::fitting(memories, SHARE_STEPS);
    loop {
        let problem = problem(observed, subjects, pools, grid);
        let why = match problem.check() {
            Ok(()) => return Ok(problem),
            Err(why) => why,
        };
        if grid.cache_step_bytes <= CACHE_STEP_LEAST && grid.share_steps >= SHARE_STEPS_MAX {
            let hint = "lower requested sizes and shares, or stop tenants from which the others need memory";
            return Err(Failure::refused(format!("there is nothing to divide: {why}"), Some(hint.into())));
        }
        grid.cache_step_bytes = (grid.cache_step_bytes / 2).max(CACHE_STEP_LEAST);
        grid.share_steps = (grid.share_steps * 2).min(SHARE_STEPS_MAX);
    }
}

fn problem(observed: &Observed, subjects: &[Subject], pools: &Pools, grid: Grid) -> Problem {
    let share_steps = |share: f64| (share * f64::from(grid.share_steps) + 1e-6) as u32;
    // What was requested is covered; a promise is not rounded down.
    let cover = |share: f64| (share * f64::from(grid.share_steps) - 1e-6).ceil().max(0.0) as u32;
    // What a tenant keeps is rounded down to steps; the rest of its last step is not divided among the others.
    let steps = |pool: At, whole: u64, of: fn(&Subject) -> Option<At>| {
        let members = subjects.iter().filter_map(of).filter(|at| same_disk(*at, pool));
        let kept = members.filter(|at| !handed(&observed.tenant(*at).cache));
        let kept: Vec<u64> = kept.map(|at| data(observed.disk(at), observed.tenant(at).cache.effective)).collect();
        let rounded: u32 = kept.iter().map(|&bytes| grid.steps_within(bytes)).sum();
        grid.steps_within(whole.saturating_sub(kept.iter().sum())) + rounded
    };
    let steps_of_share = |pool: At, whole: f64| {
        let members = subjects.iter().map(|subject| subject.server).filter(|at| same_disk(*at, pool));
        let kept = members.filter(|at| !is_share_handed(observed.disk(*at), observed.tenant(*at)));
        let kept: Vec<f64> = kept.map(|at| observed.tenant(at).share.effective).collect();
        let rounded: u32 = kept.iter().map(|&share| share_steps(share).max(1)).sum();
        share_steps((whole - kept.iter().sum::<f64>()).max(0.0)) + rounded
    };
    let gateways: Vec<u32> =
        pools.gateways.iter().map(|(at, bytes)| steps(*at, *bytes, |subject| subject.gateway)).collect();
    let servers: Vec<u32> =
        pools.disks.iter().map(|(at, bytes, _)| steps(*at, *bytes, |subject| Some(subject.server))).collect();
    let disks: Vec<engine::allocate::Disk> = (pools.disks.iter().enumerate())
        .map(|(server, (at, _, share))| engine::allocate::Disk { server, share: steps_of_share(*at, *share) })
        .collect();
    let cache = |at: At, whole: u32| {
        let (disk, of) = (observed.disk(at), &observed.tenant(at).cache);
        match handed(of) {
            true => (grid.steps_covering(data(disk, floor(disk, of))), whole),
            false => {
                let has = grid.steps_within(data(disk, of.effective));
                (has, has)
            }
        }
    };
    let tenant = |subject: &Subject| {
        let place = |all: Vec<At>, at: At| all.iter().position(|of| same_disk(*of, at)).unwrap_or_default();
        let gateway = subject.gateway.map(|at| place(pools.gateways.iter().map(|(at, _)| *at).collect(), at));
        let disk = place(pools.disks.iter().map(|(at, ..)| *at).collect(), subject.server);
        let first = subject.gateway.zip(gateway).map_or((0, 0), |(at, number)| cache(at, gateways[number]));
        let second = cache(subject.server, servers[disk]);
        let (evidence, of) = (observed.disk(subject.server), observed.tenant(subject.server));
        let share = match is_share_handed(evidence, of) {
            true => (cover(of.share.requested.unwrap_or(0.0).max(of.share_least)).max(1), disks[disk].share),
            false => {
                let has = share_steps(of.share.effective).max(1);
                (has, has)
            }
        };
        let least = Allotment { first: first.0, second: second.0, share: share.0 };
        let most = Allotment { first: first.1, second: second.1, share: share.1 };
        Tenant { gateway, disk, bounds: Bounds { least, most } }
    };
    let tenants: Vec<Tenant> = subjects.iter().map(tenant).collect();
    Problem { grid, gateways, servers, disks, tenants }
}

impl Posed {
    /// What tenants have with an allocation of the problem: rounded down to steps, with what is left given in
    /// proportion.
    pub(super) fn has(&self, observed: &Observed, allocation: &[Allotment]) -> Vec<Has> {
        let grid = self.problem.grid;
        let mut all: Vec<Has> = (allocation.iter().zip(&self.now).zip(&self.subjects))
            .map(|((at, now), subject)| {
                let of = observed.tenant(subject.server);
                let is_first = subject.gateway.is_some_and(|at| handed(&observed.tenant(at).cache));
                let is_share = is_share_handed(observed.disk(subject.server), of);
                Has {
                    first: if is_first { grid.bytes(at.first) } else { now.first },
                    second: if handed(&of.cache) { grid.bytes(at.second) } else { now.second },
                    share: if is_share { f64::from(at.share) / f64::from(grid.share_steps) } else { now.share },
                }
            })
            .collect();
        for (pool, bytes) in &self.pools.gateways {
            let is_in = |subject: &Subject| subject.gateway.is_some_and(|at| same_disk(at, *pool));
            let may_grow = |subject: &Subject| subject.gateway.is_some_and(|at| handed(&observed.tenant(at).cache));
            self.fill(&mut all, *bytes, is_in, may_grow, |has| &mut has.first);
        }
        for (pool, bytes, _) in &self.pools.disks {
            let is_in = |subject: &Subject| same_disk(subject.server, *pool);
            let may_grow = |subject: &Subject| handed(&observed.tenant(subject.server).cache);
            self.fill(&mut all, *bytes, is_in, may_grow, |has| &mut has.second);
        }
        all
    }

    /// Gives tenants what remains of a pool of memory, in proportion to what they have.
    fn fill(
        &self,
        all: &mut [Has],
        bytes: u64,
        is_in: impl Fn(&Subject) -> bool,
        may_grow: impl Fn(&Subject) -> bool,
        of: impl Fn(&mut Has) -> &mut u64,
    ) {
        let members: Vec<usize> = (0..all.len()).filter(|&at| is_in(&self.subjects[at])).collect();
        let used: u64 = members.iter().map(|&at| *of(&mut all[at])).sum();
        let growing: Vec<usize> = members.into_iter().filter(|&at| may_grow(&self.subjects[at])).collect();
        let sum: u64 = growing.iter().map(|&at| *of(&mut all[at])).sum();
        let rest = bytes.saturating_sub(used);
        for at in growing {
            let has = of(&mut all[at]);
            *has += (u128::from(rest) * u128::from(*has) / u128::from(sum.max(1))) as u64;
        }
    }

    /// The present allocation in whole steps.
    pub(super) fn present(&self) -> Vec<Allotment> {
        let grid = self.problem.grid;
        let steps = |has: &Has| Allotment {
            first: grid.steps_within(has.first),
            second: grid.steps_within(has.second),
            share: (has.share * f64::from(grid.share_steps)) as u32,
        };
        self.now.iter().map(steps).collect()
    }

    /// The memory of a tenant's gateway, of its server's disk, and that disk's time, as far as they are divided.
    pub(super) fn whole(&self, subject: usize) -> Has {
        let of = &self.subjects[subject];
        let gateway = of.gateway.and_then(|at| self.pools.gateways.iter().find(|(pool, _)| same_disk(*pool, at)));
        let disk = self.pools.disks.iter().find(|(pool, ..)| same_disk(*pool, of.server));
        Has {
            first: gateway.map_or(0, |(_, bytes)| *bytes),
            second: disk.map_or(0, |(_, bytes, _)| *bytes),
            share: disk.map_or(0.0, |(.., share)| *share),
        }
    }
}

/// A mean in nanoseconds: of the window if that has enough, else since the start.
fn mean_ns((window, total): (Load, Load), of: impl Fn(&Load) -> (f64, u64)) -> Option<f64> {
    let (sum, count) = of(&window);
    let (sum, count) = if count >= MEAN_LEAST { (sum, count) } else { of(&total) };
    mean(sum * 1e9, count)
}

/// What the model needs to know of a tenant, or why it cannot be planned.
fn evidence_of(observed: &Observed, subject: Subject, unused: f64) -> Result<Evidence, String> {
    let front = subject.gateway.unwrap_or(subject.server);
    let (clients, server) = (observed.loads(front), observed.loads(subject.server));
    let curve = curve_of(observed.tenant(front))?;
    let window = clients.0;
    if window.requests() == 0 {
        return Err(format!("it had no requests in {:.0} s", window.seconds));
    }
    let hit = |load: &Load| (load.did.hit_seconds, load.did.hits);
    let read = |load: &Load| (load.did.read_seconds, load.did.reads);
    let missed = |load: &Load| (load.did.read_seconds - load.did.hit_seconds, load.did.reads - load.did.hits);
    let disk = |load: &Load| {
        let did = &load.did;
        (did.disk_queue_seconds + did.disk_slice_seconds + did.disk_service_seconds, did.disk_reads)
    };
    let disk_ns = mean_ns(server, disk).ok_or("no read of the disk was measured yet")?;
    let server_hit_ns = mean_ns(server, hit).unwrap_or(HIT_NS_ASSUMED);
    let (first_hit_ns, second_hit_ns) = match subject.gateway {
        None => (server_hit_ns, server_hit_ns),
        Some(_) => {
            // What a miss of the gateway takes, less what the server's disk takes of that on average.
            let at_disk_ns = mean_ns(server, read).map_or(0.0, |read| (read - server_hit_ns).max(0.0));
            let miss_ns = mean_ns(clients, missed).map(|missed| (missed - at_disk_ns).max(server_hit_ns));
            (mean_ns(clients, hit).unwrap_or(HIT_NS_ASSUMED), miss_ns.unwrap_or(2.0 * server_hit_ns))
        }
    };
    let (reads, requests) = (window.did.reads as f64, window.requests() as f64);
    let rate = requests / window.seconds;
    let latency = window.latency().unwrap_or(0.0);
    let outstanding = window.did.outstanding_max.max(1);
    let think = (f64::from(outstanding) / rate - latency).max(0.0);
    let points = |of: fn(&crate::control::view::CurvePoint) -> Option<f64>| {
        MissRatios::new(curve.points.iter().filter_map(|point| Some((point.cache_bytes, of(point)?))))
    };
    let now = present(observed, subject);
    let writes = points(|point| point.write_miss_ratio);
    let unabsorbed = writes.at(now.first.max(now.second) as f64);
    let disk_time = disk_time(server, unabsorbed * window.did.writes as f64 / window.seconds);
    let (disk_time, is_apart) = disk_time.ok_or("no read of the disk was measured yet")?;
    let round = round(observed, subject.server);
    let evidence = Evidence {
        tiers: tiers(observed, subject),
        reads: points(|point| point.read_miss_ratio),
        writes,
        read_fraction: reads / requests,
        references_per_second: rate,
        first_hit_ns,
        second_hit_ns,
        write_ns: mean_ns(clients, |load| (load.did.write_seconds, load.did.writes)).unwrap_or(first_hit_ns),
        disk: disk_time,
        outstanding,
        think_ns: think * 1e9,
        round,
    };
    if is_apart && evidence.round.is_some() {
        return Ok(evidence);
    }
    Ok(evidence.calibrated(now.first, now.second, now.share.max(unused).clamp(0.001, 1.0), disk_ns))
}

/// What its requests take of the disk, if `unabsorbed` writes a second reach it; and whether that is disk time by use.
/// Otherwise the time in the device stands for it, in which other requests of the tenant may have been served.
fn disk_time((window, total): (Load, Load), unabsorbed: f64) -> Option<(DiskTime, bool)> {
    let of = |load: &Load| {
        let did = &load.did;
        engine::allocate::Observed {
            reads: Reads {
                count: did.disk_reads as f64,
                device_ns: did.disk_service_seconds * 1e9,
                service_ns: did.disk_read_seconds * 1e9,
            },
            beside_writes: Reads {
                count: did.beside_writes_reads as f64,
                device_ns: did.beside_writes_service_seconds * 1e9,
                service_ns: did.beside_writes_read_seconds * 1e9,
            },
            writes_ns: did.disk_write_seconds * 1e9,
            owned_ns: did.disk_owned_seconds * 1e9,
        }
    };
    let observed = of(if window.did.disk_reads >= MEAN_LEAST { &window } else { &total });
    let Some((read_ns, _)) = observed.service() else {
        let service_ns = service_ns((window, total))?;
        return Some((DiskTime::constant(service_ns, service_ns), false));
    };
    let writes_ns = window.did.disk_write_seconds * 1e9 / window.seconds;
    let write_ns = if unabsorbed > 0.0 { writes_ns / unabsorbed } else { read_ns };
    Some((DiskTime { delay_ns: observed.delay_ns(), ..DiskTime::constant(read_ns, write_ns) }, true))
}

/// How its disk is divided in time: the round as planned on average, without the tenant's own slice.
fn round(observed: &Observed, at: At) -> Option<Round> {
    let (disk, of) = (observed.disk(at), observed.tenant(at));
    let present = disk.round_seconds?;
    let did = observed.loads(at).0.did;
    let seconds = mean(did.rounds_seconds, did.rounds).unwrap_or(present);
    Some(Round {
        others_ns: seconds * (1.0 - of.share.effective).max(0.0) * 1e9,
        round_ns_max: disk.round_seconds_max.unwrap_or(present).max(seconds) * 1e9,
        loss: Loss {
            switch_ns: disk.switch_seconds.unwrap_or(0.0) * 1e9,
            closing_ns: of.closing_seconds.unwrap_or(0.0) * 1e9,
        },
        interruption: interruption(observed, at),
    })
}

/// How the caches of its gateway and its server go together: each volume has to demote.
fn tiers(observed: &Observed, subject: Subject) -> Tiers {
    let demotes = |volume: &VolumeEvidence| volume.tiers == crate::store::Tiers::Demote;
    match subject.gateway {
        Some(at) if observed.tenant(at).volumes.iter().all(demotes) => Tiers::Demote,
        _ => Tiers::Lru,
    }
}

/// How a request of a tenant interrupts the slices of others: by their shares, how long their requests in the device
/// take, and what they lose.
fn interruption(observed: &Observed, at: At) -> Option<Interruption> {
    let disk = observed.disk(at);
    let switch = disk.switch_seconds?;
    let (mut shares, mut drain, mut loss) = (0.0, 0.0, 0.0);
    for (tenant, of) in disk.tenants.iter().enumerate().filter(|(tenant, _)| *tenant != at.tenant) {
        let loads = observed.loads(At { tenant, ..at });
        let share = of.share.effective;
        if loads.0.did.disk_requests > 0 && share > 0.0 {
            let service = service_ns(loads).unwrap_or(0.0) / 1e9;
            shares += share;
            drain += share * f64::from(loads.0.did.outstanding_max) * service;
            loss += share * of.loss_seconds.unwrap_or(switch);
        }
    }
    let others = if shares > 0.0 { (drain / shares, loss / shares) } else { (0.0, 0.0) };
    Some(Interruption { delay_ns: (others.0 + switch) * 1e9, cost_ns: (others.1.max(switch) + switch) * 1e9 })
}

/// Disk time of a request: the time in the device, or less if several are in it at once.
fn service_ns(loads: (Load, Load)) -> Option<f64> {
    let service = |load: &Load| (load.did.disk_service_seconds, load.did.disk_reads);
    let owned = |load: &Load| (load.did.disk_owned_seconds, load.did.disk_requests);
    mean_ns(loads, service).into_iter().chain(mean_ns(loads, owned)).reduce(f64::min)
}

/// The part of a disk's time that the tenants other than this one leave unused, even if each of them had the whole
/// disk.
fn unused_by_others(observed: &Observed, at: At) -> f64 {
    let disk = observed.disk(at);
    let others = (0..disk.tenants.len()).filter(|&tenant| tenant != at.tenant);
    let used = others.map(|tenant| would_use(observed.loads(At { tenant, ..at }), disk.round_seconds));
    (1.0 - used.sum::<f64>()).max(0.0)
}

/// A tenant with slices keeps the disk while it waits for its client's next request, and is skipped after so many
/// rounds without one.
const IDLE_ROUNDS: f64 = 3.0;

/// The part of the disk's time that a tenant would use if it had all of it, with its present caches: its clients think
/// between two reads that miss, as the interactive response time law says. With slices it uses all of its own, unless
/// it is skipped.
fn would_use(loads: (Load, Load), round: Option<f64>) -> f64 {
    let Load { seconds, did } = loads.0;
    if round.is_some_and(|round| did.disk_requests as f64 * IDLE_ROUNDS * round >= seconds) {
        return 1.0;
    }
    let (reads, writes) = (did.disk_reads as f64, did.disk_requests.saturating_sub(did.disk_reads) as f64);
    let Some(service) = service_ns(loads).map(|ns| ns / 1e9).filter(|_| reads + writes > 0.0) else { return 0.0 };
    let clients = f64::from(did.outstanding_max.max(1));
    let waited = did.disk_queue_seconds + did.disk_slice_seconds + did.disk_service_seconds;
    // Of each client, between two reads of the disk.
    let think = if reads > 0.0 { (clients * seconds - waited).max(0.0) / reads } else { f64::INFINITY };
    let by_reads = (clients * service / (think + service)).min(1.0);
    (by_reads + writes * service / seconds).min(1.0)
}

fn curve_of(tenant: &TenantEvidence) -> Result<&CurveEvidence, String> {
    let requests = tenant.curve.as_ref().map_or(0.0, |curve| curve.block_reads + curve.block_writes);
    let curve = tenant.curve.as_ref().filter(|_| requests >= CURVE_LEAST);
    curve.ok_or_else(|| format!("no curve yet: it had {requests:.0} block requests, a curve needs {CURVE_LEAST:.0}"))
}
