//! The data thread's side of planning: it collects evidence, executes targets, and keeps the promises meanwhile.
//!
//! ```text
//!   a change of tenants, memory or policy:  generation + 1, a provisional division, evidence at once
//!   once a second while there are requests: evidence with looks at some tenants
//!   at once, then with each timer event:    evidence of TENANTS_PER_STEP more tenants
//!   all tenants are in it: Action::Evidence ─► the planner, which may take long ─► Event::Targets
//! ```
//!
//! There is one evidence at a time: collected, or on its way until its targets are there. Until a planner has seen a
//! change, the cache is divided provisionally: every tenant has what it requested or what it was promised, all cut in
//! proportion if that is too much.

use super::Server;
use crate::cache::Partition;
use crate::event::Action;
use crate::ids::TenantId;
use crate::plan::allot::{self, Claim, frames_of};
use crate::plan::{Evidence, Facts, Look, Observed, Sizing, Targets};
use crate::slab::Table;
use crate::spec::{CacheSpec, Refusal, TenantSpec};
use crate::units::{Nanos, SECOND};
use crate::volume::Volumes;

/// Period of reviews: short compared with the seconds in which a curve changes, long compared with the cost of a
/// review.
const REVIEW_NS: Nanos = SECOND;
/// Tenants whose curves are examined in one review; more tenants are examined in rotation. The planner takes 20 us for
/// each of them.
const LOOKS_MAX: usize = 64;
/// Tenants in one step of collecting evidence: at most 5 us for each of them, with a look.
const TENANTS_PER_STEP: usize = 16;
/// Factor of the weight of earlier writes per review: half after 30 s.
const DIRT_FADES: f64 = 0.977;

/// A tenant, as it was planned.
#[derive(Clone, Copy, Debug)]
struct Planned {
    /// The generation that created it.
    created: u64,
    /// Frames that are promised to it.
    kept: u64,
    /// Frames of them that no other tenant can have.
    hard: u64,
    sizing: Option<Sizing>,
    miss_ratios: [Option<f64>; 3],
    /// References of its curve at the last look.
    references: u64,
}

impl Planned {
    fn set_cache(&mut self, cache: CacheSpec) {
        self.kept = if let CacheSpec::Decided(bytes) = cache { frames_of(bytes) } else { 0 };
        (self.hard, self.sizing) = (self.kept, None);
    }
}

/// Evidence that is being collected.
#[derive(Debug)]
struct Gathering {
    evidence: Box<Evidence>,
    /// The next tenant, and the number of tenants before it.
    next: u32,
    before: usize,
    /// Of so many tenants one is looked at; `None` for none.
    turns: Option<usize>,
}

/// The planning state of a disk.
#[derive(Default, Debug)]
pub(crate) struct Planning {
    tenants: Table<TenantId, Planned>,
    /// Changes with the tenants, the memory and the policy.
    generation: u64,
    /// The generation of the latest evidence, and of the latest targets.
    sent: u64,
    planned: u64,
    in_flight: bool,
    gathering: Option<Gathering>,
    review_at: Nanos,
    reviews: usize,
}

impl Planning {
    /// The decision for a tenant.
    pub(crate) fn sizing(&self, tenant: TenantId) -> Option<Sizing> {
        self.tenants[tenant].sizing
    }

    /// A tenant's miss ratios with half its cache, with its cache, and with twice as much, at the last look.
    pub(crate) fn miss_ratios(&self, tenant: TenantId) -> [Option<f64>; 3] {
        self.tenants[tenant].miss_ratios
    }

    /// The present generation.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether the partitions are those of targets for the present tenants, memory and policy.
    pub(crate) fn is_planned(&self) -> bool {
        self.planned == self.generation
    }

    /// Whether more events are necessary to collect evidence.
    pub(crate) fn is_gathering(&self) -> bool {
        self.gathering.is_some()
    }
}

impl Server {
    /// Creates the planning state of a tenant, or changes its requested size.
    pub(crate) fn plan_tenant(&mut self, tenant: TenantId, cache: CacheSpec, before: Option<CacheSpec>) {
        let Planning { tenants, generation, .. } = &mut self.planning;
        if !tenants.contains(tenant) {
            let created = *generation + 1;
            let fresh = Planned { created, kept: 0, hard: 0, sizing: None, miss_ratios: [None; 3], references: 0 };
            tenants.insert(tenant, fresh);
        }
        if before != Some(cache) {
            tenants[tenant].set_cache(cache);
        }
    }

    pub(crate) fn unplan_tenant(&mut self, tenant: TenantId) {
        self.planning.tenants.remove(tenant);
        if let Some(gathering) = &mut self.planning.gathering {
            gathering.evidence.looks.retain(|look| look.tenant != tenant);
        }
    }

    /// Whether a tenant can have the requested cache, given what the other tenants keep.
    pub(crate) fn check_cache(&self, tenant: TenantId, spec: TenantSpec) -> Result<(), Refusal> {
        let others = self.volumes.cache.tenants().filter(|&(other, _)| other != tenant).map(|(other, partition)| {
            // What was provisionally cut is not promised any more.
            let hard = self.planning.tenants[other].hard.min(u64::from(partition.target));
            Claim::new(partition.spec.cache, 0).least().max(hard)
        });
        allot::admit(u64::from(self.volumes.cache.pool().limit()), others.sum(), spec.cache)
    }

    /// The tenants, the memory or the policy have changed: divides the cache provisionally.
    pub(crate) fn divide_anew(&mut self) {
        self.planning.generation += 1;
        let insulates = self.volumes.route.disk.settings().insulates();
        let claim = |(tenant, partition): (TenantId, &Partition)| {
            let kept = if insulates { self.planning.tenants[tenant].kept } else { 0 };
            (tenant, Claim::new(partition.spec.cache, kept))
        };
        let claims: Vec<_> = self.volumes.cache.tenants().map(claim).collect();
        if let Some(targets) = allot::targets(u64::from(self.volumes.cache.pool().limit()), &claims) {
            self.resize_partitions(&targets);
        }
    }

    fn resize_partitions(&mut self, targets: &[(TenantId, u32)]) {
        let is_new = |&&(tenant, frames): &&(TenantId, u32)| self.volumes.cache.partition(tenant).target != frames;
        let new: Vec<_> = targets.iter().filter(is_new).copied().collect();
        if !new.is_empty() {
            self.volumes.set_targets(&new);
        }
    }

    /// Collects evidence for some tenants, if it is due: the first when there is something to review (`is_news`) or a
    /// change, further ones with each timer event, of which a pass has one. Whether it did.
    pub(crate) fn gather(&mut self, is_news: bool, is_timer: bool) -> bool {
        let Planning { generation, sent, in_flight, review_at, .. } = self.planning;
        let looks = is_news && self.volumes.now >= review_at;
        if self.planning.is_gathering() {
            if !is_timer {
                return false;
            }
        } else {
            if in_flight || !looks && generation == sent {
                return false;
            }
            self.begin_gathering(looks);
        }
        let mut gathering = self.planning.gathering.take().expect("just seen");
        let is_complete = self.gather_some(&mut gathering);
        if !is_complete {
            self.planning.gathering = Some(gathering);
            return true;
        }
        let mut evidence = gathering.evidence;
        self.planning.reviews += usize::from(gathering.turns.is_some());
        evidence.now = self.volumes.now;
        evidence.reviews = self.planning.reviews;
        evidence.settings = *self.volumes.route.disk.settings();
        evidence.frames = u64::from(self.volumes.cache.pool().limit());
        evidence.prefetch_bytes = self.volumes.prefetch_bytes;
        (self.planning.sent, self.planning.in_flight) = (evidence.generation, true);
        self.actions.push_back(Action::Evidence(evidence));
        true
    }

    fn begin_gathering(&mut self, looks: bool) {
        let tenants = self.volumes.cache.tenants().count();
        let mut evidence = Box::new(Evidence::new(&self.volumes.config));
        evidence.generation = self.planning.generation;
        evidence.tenants.reserve_exact(tenants);
        if looks {
            self.planning.review_at = self.volumes.now + REVIEW_NS.min(self.volumes.config.trial_ns_max);
        }
        let turns = looks.then(|| tenants.div_ceil(LOOKS_MAX).max(1));
        self.planning.gathering = Some(Gathering { evidence, next: 0, before: 0, turns });
    }

    /// Adds some tenants to the evidence; whether all are in it.
    fn gather_some(&mut self, gathering: &mut Gathering) -> bool {
        let Gathering { evidence, next, before, turns } = gathering;
        if evidence.generation != self.planning.generation {
            // Facts may be those of tenants that do not exist any more. Looks are taken once: they stay.
            evidence.tenants.clear();
            evidence.others.clear();
            evidence.stores.clear();
            (evidence.generation, *next, *before) = (self.planning.generation, 0, 0);
        }
        let ids = self.volumes.cache.tenants().map(|(id, _)| id).skip_while(|id| id.0 < *next);
        let some: Vec<TenantId> = ids.take(TENANTS_PER_STEP + 1).collect();
        for &tenant in some.iter().take(TENANTS_PER_STEP) {
            let spec = self.volumes.cache.partition(tenant).spec;
            if spec.is_remote || spec.is_store {
                evidence.others.push((tenant, spec.cache));
                evidence.stores.extend(spec.is_store.then_some(spec.share));
                (*next, *before) = (tenant.0 + 1, *before + 1);
                continue;
            }
            let is_in_turn = turns.is_some_and(|turns| *before % turns == self.planning.reviews % turns);
            if is_in_turn && !evidence.looks.iter().any(|look| look.tenant == tenant) {
                evidence.looks.push(self.look(tenant));
            }
            evidence.tenants.push(self.facts(tenant));
            (*next, *before) = (tenant.0 + 1, *before + 1);
        }
        some.len() <= TENANTS_PER_STEP
    }

    fn facts(&mut self, tenant: TenantId) -> Facts {
        let (now, disk) = (self.volumes.now, &mut self.volumes.route.disk);
        let (plan, wanted_ns) = (disk.plan(now, tenant), disk.wanted_ns(now, tenant));
        let planned = &self.planning.tenants[tenant];
        Facts {
            tenant,
            created: planned.created,
            spec: self.volumes.cache.partition(tenant).spec,
            kept: planned.kept,
            decided: planned.sizing.map(|sizing| (sizing.decision, sizing.since)),
            loss_ns: plan.map(|plan| plan.loss_ns),
            burst_ns: plan.map_or(0, |plan| plan.burst_ns),
            streams_lack: plan.map_or(0.0, |plan| plan.streams_lack()),
            has_divided_streams: plan.is_some_and(|plan| plan.has_divided_streams),
            useful_ns: plan.map_or(0, |plan| plan.useful_ns),
            wanted_ns,
            faults: disk.faults(now, tenant),
        }
    }

    /// Looks at what a tenant has done since the last look.
    fn look(&mut self, tenant: TenantId) -> Look {
        let Server { planning, volumes, .. } = self;
        let Volumes { curves, measured, cache, route, now, .. } = volumes;
        let partition = cache.partition_mut(tenant);
        let stream_read = std::mem::take(&mut partition.stream_read);
        let reads = std::mem::replace(&mut partition.reads_most, partition.reads);
        let (partition, device) = (cache.partition(tenant), &mut route.disk);
        let planned = &mut planning.tenants[tenant];
        let mut look = Look { tenant, streams: partition.streams, stream_read, reads, observed: None };
        let (curve, measured) = (&curves[tenant], &mut measured[tenant]);
        let (target, whole) = (u64::from(partition.target), u64::from(cache.pool().limit()));
        let (references, useful_ns) = (curve.references(), device.plan(*now, tenant).map_or(0, |plan| plan.useful_ns));
        let is_idle = references == planned.references && useful_ns == measured.standalone.useful_ns();
        // Standalone it has more of the disk.
        let is_ahead = u64::from(partition.unwritten) > target / 2;
        let outpaces = [is_ahead, is_ahead && measured.standalone.outpaces()];
        measured.dirty.set_room(target, whole, outpaces.map(|outpaces| outpaces && !is_idle));
        measured.dirty.pass(device.virtual_time(*now, tenant), measured.standalone.alone(*now));
        if is_idle {
            return look;
        }
        planned.references = references;
        let counts = curve.counts(partition.spec.eviction);
        let (cost, written) = (measured.cost.clone(), measured.dirty.written());
        measured.dirty.fade(DIRT_FADES);
        look.observed = Some(Box::new(Observed {
            target,
            used: u64::from(partition.used),
            thinking: measured.standalone.thinking_clients(),
            quiet_ns: measured.standalone.quiet_ns(),
            own_cache_ns: measured.standalone.own_cache_ns(),
            there_ns: measured.standalone.there_ns(),
            references,
            counts,
            cost,
            written,
        }));
        look
    }

    /// The planner's answer is there.
    pub(crate) fn take_targets(&mut self, targets: &Targets) {
        self.planning.in_flight = false;
        if targets.generation != self.planning.generation && !planted!(StaleTargetsApplied) {
            return;
        }
        self.planning.planned = targets.generation;
        for gained in &targets.gains {
            if !self.volumes.measured.contains(gained.tenant) {
                continue;
            }
            let seen = self.volumes.seen(gained.tenant);
            let standalone = &mut self.volumes.measured[gained.tenant].standalone;
            standalone.look(seen, gained.reads, gained.writes);
            standalone.is_certain = gained.is_certain;
            self.planning.tenants[gained.tenant].miss_ratios = gained.miss_ratios;
        }
        let there = |tenant: TenantId| self.volumes.cache.has_tenant(tenant);
        let all: Vec<_> = targets.tenants.iter().filter(|target| there(target.tenant)).collect();
        let frames: Vec<_> = all.iter().map(|target| (target.tenant, target.frames)).collect();
        self.resize_partitions(&frames);
        for target in all {
            let planned = &mut self.planning.tenants[target.tenant];
            planned.sizing = target.promise.map(|promise| promise.sizing);
            planned.hard = target.promise.map_or(0, |promise| promise.hard);
            if let Some(promise) = target.promise {
                planned.kept = promise.kept;
                self.volumes.route.disk.set_keep(target.tenant, Some(promise.keep_permille));
            }
        }
    }
}
