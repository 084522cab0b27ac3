//! From evidence to the problem that the engine solves, and from its solution to sizes and shares.

use engine::allocate::{
    self, Allotment, Bounds, Counters, Depth, Evidence, Grid, Interruption, Loss, Measured, MissRatios, Missing, Model,
    Other, Problem, Round, Tenant, Tiers,
};
use engine::units::BLOCK;

use super::Failure;
use super::gather::Observed;
use super::tenants::{At, Kept, Subject, matched};
use crate::control::view::{CurveEvidence, DepthEvidence, DiskEvidence, Resource, TenantEvidence, VolumeEvidence};

/// A curve needs at least this many block reads and writes, as `volume curve`.
const CURVE_LEAST: f64 = 1000.0;
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
    let (mut subjects, mut evidence) = (Vec::new(), Vec::new());
    for subject in found {
        let left = unused_by_others(observed, subject.server);
        match evidence_of(observed, subject, left) {
            Ok(of) => {
                subjects.push(subject);
                evidence.push(of);
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
    Ok(Posed { subjects, kept, evidence, now, problem, model, pools })
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

/// A share in steps. Servers round shares to parts per billion, so that what was three steps may be slightly less.
fn share_steps(grid: Grid, share: f64) -> u32 {
    (share * f64::from(grid.share_steps) + 1e-6) as u32
}

fn problem(observed: &Observed, subjects: &[Subject], pools: &Pools, grid: Grid) -> Problem {
    let share_steps = |share: f64| share_steps(grid, share);
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
    /// What tenants have with an allocation of the problem: rounded down to steps, and what is left of memory and disk
    /// time in proportion. Disk time is left if more of it helps no tenant now, since the least share is as good then.
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
        for (pool, _, whole) in &self.pools.disks {
            let members = || self.subjects.iter().zip(0..).filter(|(subject, _)| same_disk(subject.server, *pool));
            let is_handed = |at: At| is_share_handed(observed.disk(at), observed.tenant(at));
            let growing: Vec<usize> =
                members().filter(|(subject, _)| is_handed(subject.server)).map(|(_, at)| at).collect();
            let rest = (whole - members().map(|(_, at)| all[at].share).sum::<f64>()).max(0.0);
            let sum: f64 = growing.iter().map(|&at| all[at].share).sum();
            growing.iter().for_each(|&at| all[at].share *= 1.0 + rest / sum);
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
            share: share_steps(grid, has.share).max(1),
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

/// What the model needs to know of a tenant, or why it cannot be planned.
fn evidence_of(observed: &Observed, subject: Subject, unused: f64) -> Result<Evidence, String> {
    let curve = curve_of(observed.tenant(subject.gateway.unwrap_or(subject.server)))?;
    // A server whose gateway answers nearly everything has none, and needs none.
    let there = subject.gateway.and_then(|_| settled_curve(observed.tenant(subject.server)));
    let points = |curve: &CurveEvidence, of: fn(&crate::control::view::CurvePoint) -> Option<f64>| {
        MissRatios::new(curve.points.iter().filter_map(|point| Some((point.cache_bytes, of(point)?))))
    };
    let depth = |of: &DepthEvidence| Depth { depth: of.depth, service_ns: of.seconds * 1e9 };
    let (server, now) = (observed.loads(subject.server), present(observed, subject));
    let known = allocate::Subject {
        tiers: tiers(observed, subject),
        reads: points(curve, |point| point.read_miss_ratio),
        writes: points(curve, |point| point.write_miss_ratio),
        reads_there: there.map(|there| points(there, |point| point.read_miss_ratio)),
        gateway: subject.gateway.map(|at| observed.loads(at)),
        server,
        first: now.first,
        second: now.second,
        share: now.share,
        unused,
        client_ns: 0.0,
        by_depth: observed.disk(subject.server).reads_by_depth.iter().map(depth).collect(),
        round: round(observed, subject.server),
    };
    let window = known.gateway.unwrap_or(server).window;
    known.evidence().map_err(|missing| match missing {
        Missing::Requests => format!("it had no requests in {:.0} s", window.elapsed_ns / 1e9),
        Missing::DiskReads => "no read of the disk was measured yet, and the disk has no profile".into(),
    })
}

/// How its disk is divided in time: the round as planned on average, without the tenant's own slice.
fn round(observed: &Observed, at: At) -> Option<Round> {
    let (disk, of) = (observed.disk(at), observed.tenant(at));
    let ns = |seconds: f64| seconds * 1e9;
    let present_ns = ns(disk.round_seconds?);
    // Without a profile it is a default. What the tenant was found to lose includes it, and says more.
    let switch = of.loss_seconds.filter(|_| disk.reads_by_depth.is_empty()).or(disk.switch_seconds);
    let round_ns = observed.loads(at).window.rounds.mean_ns().unwrap_or(present_ns);
    Some(Round {
        others_ns: round_ns * (1.0 - of.share.effective).max(0.0),
        round_ns_max: disk.round_seconds_max.map_or(present_ns, ns).max(round_ns),
        loss: Loss { switch_ns: switch.map_or(0.0, ns), closing_ns: of.closing_seconds.map_or(0.0, ns) },
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

/// How a request of a tenant interrupts the slices of others.
fn interruption(observed: &Observed, at: At) -> Option<Interruption> {
    let disk = observed.disk(at);
    let others = disk.tenants.iter().enumerate().filter(|(tenant, _)| *tenant != at.tenant).map(|(tenant, of)| Other {
        share: of.share.effective,
        did: observed.loads(At { tenant, ..at }),
        loss_ns: of.loss_seconds.map(|seconds| seconds * 1e9),
    });
    Some(Interruption::of(others, disk.switch_seconds? * 1e9))
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
fn would_use(of: Measured, round: Option<f64>) -> f64 {
    let Counters { elapsed_ns, fills, device_requests, outstanding_max, .. } = of.window;
    if round.is_some_and(|round| device_requests * IDLE_ROUNDS * round * 1e9 >= elapsed_ns) {
        return 1.0;
    }
    let Some(service_ns) = of.service_ns().filter(|_| device_requests > 0.0) else { return 0.0 };
    let clients = f64::from(outstanding_max.max(1));
    // Of each client, between two reads of the disk.
    let think_ns = match fills.count > 0.0 {
        true => (clients * elapsed_ns - fills.ns).max(0.0) / fills.count,
        false => f64::INFINITY,
    };
    let by_reads = (clients * service_ns / (think_ns + service_ns)).min(1.0);
    let writes = (device_requests - fills.count).max(0.0);
    (by_reads + writes * service_ns / elapsed_ns).min(1.0)
}

/// The curve of a tenant that has had enough requests for one.
fn settled_curve(tenant: &TenantEvidence) -> Option<&CurveEvidence> {
    tenant.curve.as_ref().filter(|curve| requests_of(curve) >= CURVE_LEAST)
}

fn curve_of(tenant: &TenantEvidence) -> Result<&CurveEvidence, String> {
    let requests = || tenant.curve.as_ref().map_or(0.0, requests_of);
    let none = || format!("no curve yet: it had {:.0} block requests, a curve needs {CURVE_LEAST:.0}", requests());
    settled_curve(tenant).ok_or_else(none)
}

fn requests_of(curve: &CurveEvidence) -> f64 {
    curve.block_reads + curve.block_writes
}
