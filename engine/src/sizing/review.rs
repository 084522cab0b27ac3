//! Once a second while there are requests: determines the tenants' needs, and sets partitions and slices accordingly.

use super::cost::Cost;
use super::dirt::{ALONE, Dirt, NOW, ROOMY};
use super::load::{self, Gain, Load};
use super::split::{self, Fate, Question, Split, Verdict, split};
use super::trial::Trial;
use super::worth::{Seen, Worth};
use super::{Bound, Decision, Doubt, Plan, PlanRequest, Sizing};
use crate::control::allot::{self, Claim};
use crate::control::{CacheSpec, Refusal, TenantSpec, bytes_of, frames_of};
use crate::disk::Op;
use crate::disk::policy::FOLLOWING_BYTES;
use crate::event::Action;
use crate::ids::{TenantId, VolumeId};
use crate::server::Server;
use crate::units::{BLOCK, Nanos, SECOND, Share};
use crate::volume::Volumes;

/// Period of reviews: short compared with the seconds in which a curve changes, long compared with the cost of a
/// review.
const REVIEW_NS: Nanos = SECOND;
/// Tenants whose curves are examined in one review; more tenants are examined in rotation. 20 us each, so no request
/// waits longer than about a millisecond.
const LOOKS_MAX: usize = 64;
/// Read-ahead windows that a partition holds for each stream: two windows in the quarter of the partition that streams
/// may use (`volume/prefetch.rs`).
const WINDOWS: u64 = 8;
/// Blocks with which a writer's runs have full length: two of the largest device requests being written, as much
/// arriving, and half the partition dirty.
const WRITER_FRAMES: u64 = 8 << 20 >> 12;

/// Bytes of the miniatures of dirty data per frame of a disk's memory, and at most per tenant.
pub(crate) const BYTES_PER_FRAME: u64 = 16;
const DIRT_BYTES_MAX: u64 = 128 << 10;
/// Factor of the weight of earlier writes per review: half after 30 s.
const DIRT_FADES: f64 = 0.977;

/// The sizing state of all tenants.
#[derive(Default, Debug)]
pub(crate) struct Book {
    tenants: Vec<Option<OfTenant>>,
    review_at: Nanos,
    reviews: usize,
}

impl Book {
    /// The decision for a tenant.
    pub(crate) fn of(&self, tenant: TenantId) -> Option<Sizing> {
        self.tenants[tenant.0 as usize].as_ref()?.shown
    }

    /// Standalone-equivalent time of a tenant's work, whose useful disk time is `useful_ns`.
    pub(crate) fn worth_ns(&self, tenant: TenantId, useful_ns: Nanos) -> Nanos {
        self.tenants[tenant.0 as usize].as_ref().map_or(0, |of| of.worth.at(useful_ns))
    }
}

#[derive(Debug)]
struct OfTenant {
    cost: Cost,
    dirt: Dirt,
    worth: Worth,
    trial: Trial,
    /// Known when its trial is over.
    load: Option<Load>,
    /// References of its curve at the last look.
    references: u64,
    writes: bool,
    /// Recent number of concurrent streams.
    streams: u32,
    decision: Decision,
    since: Nanos,
    /// Frames that are guaranteed to it.
    kept: u64,
    shown: Option<Sizing>,
}

impl OfTenant {
    fn new(now: Nanos, cache: CacheSpec) -> OfTenant {
        let mut fresh = OfTenant {
            cost: Cost::default(),
            dirt: Dirt::new(0, 0),
            worth: Worth::default(),
            trial: Trial::default(),
            load: None,
            references: 0,
            writes: false,
            streams: 0,
            decision: Decision::Admitted,
            since: now,
            kept: 0,
            shown: None,
        };
        fresh.set_cache(now, cache);
        fresh
    }

    fn set_cache(&mut self, now: Nanos, cache: CacheSpec) {
        let (decision, kept) = match cache {
            CacheSpec::Trial => (Decision::Trial(Doubt::Unused), 0),
            CacheSpec::Decided(bytes) => (Decision::Admitted, frames_of(bytes)),
            CacheSpec::Asked(_) => (Decision::Admitted, 0),
        };
        (self.decision, self.kept, self.since, self.shown) = (decision, kept, now, None);
    }

    fn claim(&self, cache: CacheSpec) -> split::Claim {
        match cache {
            CacheSpec::Asked(bytes) => split::Claim::Asked(frames_of(bytes)),
            _ if self.kept > 0 => split::Claim::Kept(self.kept),
            _ if self.load.is_none() => split::Claim::Watched,
            _ => split::Claim::Wanted { again: matches!(self.decision, Decision::BestEffort(_)) },
        }
    }

    /// The cost of writes relative to that with a partition of `target` frames, if the transfer of a block takes
    /// `transfer_ns`.
    fn gain(&self, target: u64, transfer_ns: f64) -> Gain {
        let [now, roomy, alone] = [NOW, ROOMY, ALONE].map(|pool| self.dirt.written(pool));
        let mean_ns = self.cost.any_write_ns().unwrap_or(0.0);
        let [roomy, alone] = [roomy, alone].map(|other| other.by(now, mean_ns, transfer_ns));
        Gain { target, roomy, alone: alone.min(roomy) }
    }

    /// Frames transferred per nanosecond of disk time, and frames that suffice for read-ahead and for full-length write
    /// runs.
    fn transfer(&self, prefetch_bytes_max: u64) -> (f64, u64) {
        let dirty = WRITER_FRAMES / 2;
        // In its slice a stream is as fast with `FOLLOWING_BYTES` in the device as with longer windows.
        let reads = u64::from(self.streams) * WINDOWS * prefetch_bytes_max.min(FOLLOWING_BYTES) / BLOCK;
        let writes = if self.writes { WRITER_FRAMES } else { 0 };
        let rate = |is_there: bool, block_ns: f64| if is_there { 1.0 / block_ns } else { 0.0 };
        let frames_ns = rate(reads > 0, self.cost.read_ns()).max(rate(self.writes, self.cost.write_ns(dirty)));
        (frames_ns, reads + writes)
    }
}

/// A planned tenant, or a tenant with planned settings.
#[derive(Clone, Copy)]
struct Guest {
    tenant: Option<TenantId>,
    share: Option<Share>,
    cache: CacheSpec,
    like: Option<TenantId>,
}

/// All tenants, the guest last, and the result for them.
struct Survey {
    tenants: Vec<Option<TenantId>>,
    caches: Vec<CacheSpec>,
    weights: Vec<f64>,
    question: Option<Question>,
    /// `None` under a policy that does not insulate.
    split: Option<Split>,
}

impl Survey {
    /// Frames that the tenants other than the last one do not give up.
    fn others_hold(&self) -> u64 {
        let fates = self.split.as_ref().map(|split| &split.fates);
        let hard = |at: usize| match (fates, self.caches[at]) {
            (Some(fates), _) => fates[at].hard,
            (None, cache) => Claim::new(cache, 0).least(),
        };
        (0..self.tenants.len().saturating_sub(1)).map(hard).sum()
    }

    /// The claims of all tenants.
    fn claims(&self) -> Vec<(TenantId, Claim)> {
        let shrunk = planted!(AdmittedShrunk);
        let kept = |at: usize| self.split.as_ref().filter(|_| !shrunk).map_or(0, |split| split.fates[at].kept);
        let number = |tenant: Option<TenantId>| tenant.unwrap_or(TenantId(u32::MAX));
        let all = self.tenants.iter().zip(&self.caches).enumerate();
        all.map(|(at, (&tenant, &cache))| (number(tenant), Claim::new(cache, kept(at)))).collect()
    }
}

impl Volumes {
    fn of_tenant(&mut self, tenant: TenantId) -> &mut OfTenant {
        self.sizing.tenants[tenant.0 as usize].as_mut().expect("a tenant")
    }

    /// Creates the state of a tenant, or changes its requested size.
    pub(crate) fn size_tenant(&mut self, tenant: TenantId, cache: CacheSpec, before: Option<CacheSpec>) {
        let (now, at) = (self.now, tenant.0 as usize);
        if self.sizing.tenants.len() <= at {
            self.sizing.tenants.resize_with(at + 1, || None);
        }
        match &mut self.sizing.tenants[at] {
            Some(known) if before != Some(cache) => known.set_cache(now, cache),
            Some(_) => {}
            none => *none = Some(OfTenant::new(now, cache)),
        }
    }

    pub(crate) fn unsize_tenant(&mut self, tenant: TenantId) {
        self.sizing.tenants[tenant.0 as usize] = None;
    }

    /// Records the device time of a device request for blocks of a tenant.
    pub(crate) fn note_cost(&mut self, tenant: TenantId, op: Op, time_ns: Nanos, blocks: usize) {
        let dirty = self.cache.partition(tenant).unwritten;
        let cost = &mut self.of_tenant(tenant).cost;
        match op {
            Op::Read => cost.read(time_ns, blocks),
            Op::Write { .. } | Op::Flush => cost.wrote(time_ns, blocks, dirty),
            Op::Zero | Op::Punch => {}
        }
    }

    /// Resizes the tenants' miniatures of dirty data to the memory for them.
    pub(crate) fn fit_dirt(&mut self, tenants: &[TenantId]) {
        let all = self.config.frames_max() as u64 * BYTES_PER_FRAME;
        let bytes = (all / tenants.len().next_power_of_two() as u64).min(DIRT_BYTES_MAX);
        let age_max_ns = self.config.dirty_age_max_ns;
        for &tenant in tenants {
            let Some(of) = self.sizing.tenants.get_mut(tenant.0 as usize).and_then(Option::as_mut) else { continue };
            if !of.dirt.has_bytes(bytes) {
                of.dirt = Dirt::new(bytes, age_max_ns);
            }
        }
    }

    /// A block of a write takes effect.
    pub(crate) fn note_dirt(&mut self, tenant: TenantId, volume: VolumeId, number: u64, durable: bool) {
        let (now, own) = (self.now, self.own_time(volume));
        let OfTenant { dirt, worth, .. } = self.of_tenant(tenant);
        dirt.write(own, worth.alone(now), volume, number, durable);
    }

    /// All dirty data of a volume is being written for a flush.
    pub(crate) fn flush_dirt(&mut self, tenant: TenantId, volume: VolumeId) {
        self.of_tenant(tenant).dirt.flush(volume);
    }
}

impl Server {
    /// Reviews if it is time.
    pub(crate) fn review_in_time(&mut self) {
        if self.volumes.now >= self.volumes.sizing.review_at {
            self.look();
            self.volumes.sizing.reviews += 1;
            self.review();
        }
    }

    /// Examines the curves and streams of the tenants.
    fn look(&mut self) {
        self.volumes.sizing.review_at = self.volumes.now + REVIEW_NS.min(self.volumes.config.trial_ns_max);
        let Volumes { sizing, curves, cache, config, route, now, .. } = &mut self.volumes;
        let device = &mut route.disk;
        let whole = u64::from(cache.pool().limit());
        let transfer_ns = BLOCK as f64 * SECOND as f64 / device.settings().stream_bytes_per_s.max(1) as f64;
        let turns = cache.tenants().count().div_ceil(LOOKS_MAX).max(1);
        let in_turn = cache.tenants().skip(sizing.reviews % turns).step_by(turns);
        for (tenant, partition) in in_turn {
            let at = tenant.0 as usize;
            let (Some(of), Some(curve)) = (&mut sizing.tenants[at], curves.get(tenant)) else { continue };
            of.streams = partition.streams.max(of.streams.saturating_sub(1));
            let target = u64::from(partition.target);
            of.dirt.set_room(target / 2, whole / 2);
            of.dirt.pass(device.own_time(*now, tenant), of.worth.alone(*now));
            let references = curve.references();
            let useful_ns = device.plan(*now, tenant).map_or(0, |plan| plan.useful_ns);
            if references == of.references && useful_ns == of.worth.useful_ns() {
                continue;
            }
            of.references = references;
            let view = curve.view(partition.spec.eviction);
            let gain = of.gain(target, transfer_ns);
            let seen =
                Seen { now: *now, useful_ns, wanting_ns: device.wanting_ns(*now, tenant), disk_ns: of.cost.time_ns() };
            of.worth.look(seen, load::reads_gain(&view, target, whole), gain.alone);
            of.dirt.fade(DIRT_FADES);
            of.trial.look(*now, references, || view.clone());
            if of.trial.is_over(*now, config.trial_ns_max) {
                of.writes = view.writes > 0.0;
                // If the curve has been restarted, the earlier load is better than none.
                of.load = Load::new(&view, &of.cost, gain, whole).or(of.load.take());
            }
        }
    }

    /// Divides the disk anew, after the tenants, the memory or the needs have changed.
    pub(crate) fn review(&mut self) {
        let survey = self.survey(None);
        let limit = u64::from(self.volumes.cache.pool().limit());
        let Some(targets) = allot::targets(limit, &survey.claims()) else { return };
        if targets.iter().any(|&(tenant, target)| self.volumes.cache.partition(tenant).target != target) {
            self.set_targets(&targets);
        }
        for (at, &(tenant, target)) in targets.iter().enumerate() {
            let (Some(question), Some(split)) = (survey.question, &survey.split) else {
                self.volumes.of_tenant(tenant).shown = None;
                continue;
            };
            let (fate, claim) = (split.fates[at], (survey.caches[at], survey.weights[at]));
            let known = self.volumes.sizing.tenants[tenant.0 as usize].as_ref();
            let sizing = self.sizing(known, split.round_ns, fate, claim, u64::from(target));
            let load = known.and_then(|known| known.load.as_ref());
            // Lent cache counts as long as it is lent.
            let cache = load.map_or(1.0, |load| load.keeps(u64::from(target)));
            let keep = question.slices_keep(cache, fate.time_longest, fate.aim);
            self.volumes.route.disk.set_keep(tenant, Some((keep * 1000.0 + 1e-6) as u32));
            let of = self.volumes.of_tenant(tenant);
            of.kept = if matches!(survey.caches[at], CacheSpec::Asked(_)) { 0 } else { fate.kept };
            let is_news = std::mem::discriminant(&of.decision) != std::mem::discriminant(&sizing.decision);
            (of.decision, of.since, of.shown) = (sizing.decision, sizing.since, Some(sizing));
            if is_news {
                self.actions.push_back(Action::Decided { tenant, sizing: Box::new(sizing) });
            }
        }
    }

    /// All tenants, and the guest in place of the tenant that it replaces.
    fn survey(&mut self, guest: Option<Guest>) -> Survey {
        let settings = *self.volumes.route.disk.settings();
        let is_other = |tenant: TenantId| guest.is_none_or(|guest| guest.tenant != Some(tenant));
        let others: Vec<_> =
            self.volumes.cache.tenants().filter(|&(id, _)| is_other(id)).map(|(id, p)| (id, p.spec)).collect();
        let mut tenants: Vec<_> = others.iter().map(|&(tenant, _)| Some(tenant)).collect();
        let mut caches: Vec<_> = others.iter().map(|(_, spec)| spec.cache).collect();
        let mut shares: Vec<_> = others.iter().map(|(_, spec)| spec.share).collect();
        if let Some(guest) = guest {
            tenants.push(guest.tenant);
            caches.push(guest.cache);
            shares.push(guest.share);
        }
        let weights = crate::disk::policy::weights(&shares);
        let known = |at: usize| if at < others.len() { tenants[at] } else { guest.and_then(|g| g.like.or(g.tenant)) };
        let switch_ns = if settings.needs_slices { settings.switch_ns } else { 0 };
        let plans: Vec<_> = (0..tenants.len())
            .map(|at| known(at).map(|tenant| self.volumes.route.disk.plan(self.volumes.now, tenant)))
            .collect();
        let insulates = settings.insulates() && !tenants.is_empty();
        let answer = insulates.then(|| {
            let tenant = |at: usize| {
                let of = known(at).and_then(|tenant| self.volumes.sizing.tenants.get(tenant.0 as usize)?.as_ref());
                let load = of.and_then(|of| of.load.as_ref());
                let guest_claim = || match caches[at] {
                    CacheSpec::Asked(bytes) => split::Claim::Asked(frames_of(bytes)),
                    CacheSpec::Decided(bytes) => split::Claim::Kept(frames_of(bytes)),
                    CacheSpec::Trial if load.is_some() => split::Claim::Wanted { again: false },
                    CacheSpec::Trial => split::Claim::Watched,
                };
                split::Tenant {
                    claim: of.filter(|_| at < others.len()).map_or_else(guest_claim, |of| of.claim(caches[at])),
                    weight: weights[at],
                    loss_ns: plans[at].flatten().map_or(switch_ns, |plan| plan.loss_ns) as f64,
                    slice_least_ns: plans[at].flatten().map_or(0, |plan| plan.burst_ns) as f64,
                    load,
                    transfer: of.map_or((0.0, 0), |of| of.transfer(self.volumes.prefetch_bytes)),
                }
            };
            let all: Vec<_> = (0..tenants.len()).map(tenant).collect();
            let question = Question {
                keep: f64::from(settings.insulation_permille) / 1000.0,
                memory: u64::from(self.volumes.cache.pool().limit()),
                round_max_ns: settings.round_max_ns as f64,
                turn: self.volumes.sizing.reviews % tenants.len(),
            };
            (question, split(&question, &all))
        });
        let (question, split) = answer.unzip();
        Survey { tenants, caches, weights, question, split }
    }

    /// The decision for a tenant and its numbers, for this round, cache specification, weight and target size.
    fn sizing(
        &self,
        of: Option<&OfTenant>,
        round_ns: f64,
        fate: Fate,
        (cache, weight): (CacheSpec, f64),
        target: u64,
    ) -> Sizing {
        let Fate { verdict, need, kept, time, .. } = fate;
        let settings = self.volumes.route.disk.settings();
        let decision = match verdict {
            Verdict::Met => Decision::Admitted,
            Verdict::Open if matches!(cache, CacheSpec::Asked(_)) => Decision::Admitted,
            Verdict::Open => Decision::Trial(match of.and_then(|of| of.trial.begun()) {
                Some(begun) => Doubt::Unsettled { until: begun + self.volumes.config.trial_ns_max },
                None => Doubt::Unused,
            }),
            Verdict::Memory(needs, free) => {
                Decision::BestEffort(Bound::Memory { needs_bytes: bytes_of(needs), free_bytes: bytes_of(free) })
            }
            Verdict::Asked(needs) => Decision::BestEffort(Bound::Asked { needs_bytes: bytes_of(needs) }),
            Verdict::Round(needs_ns) => Decision::BestEffort(Bound::Round { needs_ns }),
            Verdict::Age(most) => Decision::BestEffort(Bound::Age { most_permille: (most * 1000.0).round() as u32 }),
        };
        let before = of.map(|of| (of.decision, of.since));
        let same = before.filter(|(before, _)| std::mem::discriminant(before) == std::mem::discriminant(&decision));
        let keeps = of.and_then(|of| of.load.as_ref()).map(|load| load.keeps(target));
        let permille = |part: f64| (part * 1000.0).round() as u32;
        let round_ns = if settings.needs_slices { round_ns } else { 0.0 };
        Sizing {
            decision,
            since: same.map_or(self.volumes.now, |(_, since)| since),
            insulation_permille: settings.insulation_permille,
            need_bytes: need.map(bytes_of),
            kept_bytes: bytes_of(kept),
            lent_bytes: bytes_of(target.saturating_sub(kept)),
            time_permille: permille(time),
            cache_permille: keeps.map(permille),
            best_permille: keeps.map(|keeps| permille(keeps * time)),
            round_ns: round_ns as Nanos,
            wait_ns: (round_ns * (1.0 - weight)) as Nanos,
        }
    }

    /// Whether a tenant can have the requested cache, given what the other tenants keep.
    pub(crate) fn check_cache(&mut self, tenant: TenantId, spec: TenantSpec) -> Result<(), Refusal> {
        let known = self.volumes.cache.has_tenant(tenant).then_some(tenant);
        let guest = Guest { tenant: known, share: spec.share, cache: spec.cache, like: None };
        let others = self.survey(Some(guest)).others_hold();
        allot::admit(u64::from(self.volumes.cache.pool().limit()), others, spec.cache)
    }

    /// The decision for a planned tenant.
    pub(crate) fn plan(&mut self, request: PlanRequest) -> Result<Plan, Refusal> {
        let PlanRequest { tenant, share, cache, like } = request;
        let unknown = |tenant: TenantId| !self.volumes.cache.has_tenant(tenant);
        if tenant.is_some_and(unknown) || like.is_some_and(unknown) {
            return Err(Refusal::UnknownTenant);
        }
        let others = self.volumes.cache.tenants().filter(|&(id, _)| Some(id) != tenant);
        let promised: u64 = others.filter_map(|(_, partition)| partition.spec.share).map(Share::ppb).sum();
        let left_ppb = Share::ONE.ppb().saturating_sub(promised);
        if let Some(asked) = share.filter(|share| share.ppb() > left_ppb) {
            return Err(Refusal::ShareTooLarge { asked_ppb: asked.ppb(), left_ppb });
        }
        let survey = self.survey(Some(Guest { tenant, share, cache, like }));
        let (limit, others) = (u64::from(self.volumes.cache.pool().limit()), survey.others_hold());
        allot::admit(limit, others, cache)?;
        let at = survey.tenants.len() - 1;
        let targets = allot::targets(limit, &survey.claims());
        let target = targets.map_or(0, |targets| u64::from(targets[at].1));
        let sizing = survey.split.as_ref().map(|split| {
            let known = like.or(tenant).and_then(|tenant| self.volumes.sizing.tenants[tenant.0 as usize].as_ref());
            let claim = (survey.caches[at], survey.weights[at]);
            Sizing { since: self.volumes.now, ..self.sizing(known, split.round_ns, split.fates[at], claim, target) }
        });
        let round_ns = sizing.map_or(0, |sizing| sizing.round_ns);
        Ok(Plan {
            slice_ns: round_ns - sizing.map_or(0, |sizing| sizing.wait_ns),
            sizing,
            free_bytes: bytes_of(limit.saturating_sub(others)),
            share_left_ppb: left_ppb,
        })
    }
}
