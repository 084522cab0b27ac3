//! The planner: from evidence to targets.

use std::collections::BTreeMap;

use super::allot::{self, Claim, bytes_of, frames_of};
use super::evidence::{Evidence, Facts, Gained, Observed, Promise, Target, Targets};
use super::feedback::Feedback;
use super::load::{Ends, Gain, Load, OTHER_FRAMES, Tempo, gain_of_reads};
use super::split::{self, Question, Split, split};
use super::{Decision, Doubt, Plan, PlanRequest, Sizing};
use crate::config::Config;
use crate::curve::{Cost, View, Written};
use crate::disk::policy;
use crate::ids::TenantId;
use crate::spec::{CacheSpec, Refusal, TenantSpec};
use crate::units::{BLOCK, Nanos, SECOND, Share};

/// Live insulation is shown if the interval in which it is ([`Tempo::width`]) is no wider than this. Of 134 tenants, 16
/// are not shown, which would be off by 0.09 on average; the others are off by 0.03 (`docs/notes/sizing.md`).
const CERTAIN_WITHIN: f64 = 0.4;
/// The largest part of its slices that a tenant is to keep for a shortfall: more would take rounds of any length.
const KEEP_MOST: f64 = 0.995;

/// What is known of a tenant.
#[derive(Default, Debug)]
struct Known {
    created: u64,
    cost: Cost,
    /// The time of the first request of its curve.
    begun: Option<Nanos>,
    /// Known when its trial is over.
    load: Option<Load>,
    tempo: Tempo,
    /// Frames of its partition that are in use.
    used: u64,
    feedback: Feedback,
}

impl Known {
    /// Learns from a look at the tenant.
    fn learn(&mut self, observed: Observed, evidence: &Evidence) -> (Gain, View) {
        let (view, whole) = (observed.counts.view(), evidence.frames);
        if self.tempo.look(&observed) {
            // The curve has been restarted.
            self.begun = None;
        }
        (self.cost, self.used) = (observed.cost, observed.used);
        let gain = gain(&self.cost, observed.written, observed.target, evidence.settings.stream_bytes_per_s);
        if observed.references > 0 && evidence.now >= *self.begun.get_or_insert(evidence.now) + evidence.trial_ns_max {
            // If the curve has been restarted, the earlier load is better than none.
            self.load = Load::new(&view, &self.cost, gain, &self.tempo, whole).or(self.load.take());
        }
        (gain, view)
    }

    /// R_cache at present with a partition of `target` frames, which may not have filled yet.
    fn keeps(&self, target: u64) -> Option<Ends> {
        self.load.as_ref().map(|load| load.keeps(target.min(self.used + OTHER_FRAMES)))
    }
}

/// The cost of writes relative to that with a partition of `target` frames.
fn gain(cost: &Cost, written: [Written; 3], target: u64, stream_bytes_per_s: u64) -> Gain {
    let transfer_ns = BLOCK as f64 * SECOND as f64 / stream_bytes_per_s.max(1) as f64;
    let [now, roomy, alone] = written;
    let open = alone.open();
    let mean_ns = cost.any_write_ns().unwrap_or(0.0);
    let [roomy, alone] = [roomy, alone].map(|other| other.by(now, mean_ns, transfer_ns));
    // Before the first write all of it may be positioning.
    let positioning = if mean_ns > 0.0 { (1.0 - transfer_ns / mean_ns).max(0.0) } else { 1.0 };
    Gain { target, roomy, alone: alone.min(roomy), chosen: now.chosen() * positioning, open: open * positioning }
}

/// The tenants, each with what is known of it.
type Tenants<'a> = Vec<(Facts, &'a Known)>;

/// The planner of one disk: a deterministic machine, whose time is that of the evidence. It knows what tenants do; what
/// they are promised comes with the evidence.
#[derive(Debug)]
pub struct Planner {
    known: BTreeMap<TenantId, Known>,
    /// The latest evidence, without looks.
    latest: Evidence,
}

impl Planner {
    /// The planner of a disk with this configuration.
    pub fn new(config: &Config) -> Planner {
        Planner { known: BTreeMap::new(), latest: Evidence::new(config) }
    }

    /// The generation of the latest evidence.
    pub fn generation(&self) -> u64 {
        self.latest.generation
    }

    /// Determines the tenants' needs, and divides the disk accordingly.
    pub fn handle(&mut self, evidence: Evidence) -> Targets {
        self.latest = evidence;
        let created: BTreeMap<TenantId, u64> =
            self.latest.tenants.iter().map(|facts| (facts.tenant, facts.created)).collect();
        self.known.retain(|tenant, known| created.get(tenant) == Some(&known.created));
        for (&tenant, &created) in &created {
            self.known.entry(tenant).or_insert_with(|| Known { created, ..Known::default() });
        }
        let looks = std::mem::take(&mut self.latest.looks);
        let gains = looks.into_iter().filter_map(|observed| self.look(*observed)).collect();
        let tenants = self.tenants(None);
        let split = self.split(&tenants);
        let targets =
            Targets { generation: self.latest.generation, tenants: self.targets(&tenants, split.as_ref()), gains };
        let fates = split.iter().flat_map(|split| &split.fates);
        for (facts, fate) in self.latest.tenants.iter().zip(fates) {
            let known = self.known.get_mut(&facts.tenant).expect("all tenants are known");
            known.feedback.look(self.latest.now, facts, fate.weight, fate.planned);
        }
        targets
    }

    /// Examines the curve of a tenant.
    fn look(&mut self, observed: Observed) -> Option<Gained> {
        let (tenant, target) = (observed.tenant, observed.target);
        let known = self.known.get_mut(&tenant)?;
        let (gain, view) = known.learn(observed, &self.latest);
        let (reads, width) = gain_of_reads(&view, &known.tempo, target, self.latest.frames);
        let is_certain = known.tempo.width(width, gain.width()) <= CERTAIN_WITHIN;
        Some(Gained {
            tenant,
            reads,
            is_certain,
            writes: gain.alone,
            miss_ratios: [target / 2, target, 2 * target].map(|frames| view.misses(frames)),
        })
    }

    /// All tenants other than `replaced`.
    fn tenants(&self, replaced: Option<TenantId>) -> Tenants<'_> {
        let all = self.latest.tenants.iter().filter(|facts| Some(facts.tenant) != replaced);
        all.map(|facts| (*facts, &self.known[&facts.tenant])).collect()
    }

    /// Divides the disk; `None` under a policy that does not insulate.
    fn split<'a>(&self, tenants: &Tenants<'a>) -> Option<Split> {
        let Evidence { settings, frames, .. } = self.latest;
        if !settings.insulates() || tenants.is_empty() {
            return None;
        }
        let weights = policy::weights(&tenants.iter().map(|(facts, _)| facts.spec.share).collect::<Vec<_>>());
        let switch_ns = if settings.needs_slices { settings.switch_ns } else { 0 };
        let input = |(at, (facts, known)): (usize, (Facts, &'a Known))| split::Tenant {
            claim: Claim::new(facts.spec.cache, facts.kept),
            weight: weights[at],
            loss_ns: facts.loss_ns.unwrap_or(switch_ns) as f64,
            shortfall: known.feedback.shortfall(),
            slice_least_ns: facts.burst_ns as f64,
            load: known.load.as_ref(),
        };
        let question = Question {
            keep: f64::from(settings.insulation_permille) / 1000.0,
            memory: frames,
            round_max_ns: settings.round_max_ns as f64,
        };
        Some(split(&question, &tenants.iter().copied().enumerate().map(input).collect::<Vec<_>>()))
    }

    /// The targets of the tenants for this division.
    fn targets(&self, tenants: &Tenants<'_>, split: Option<&Split>) -> Vec<Target> {
        let shrunk = planted!(AdmittedShrunk);
        let kept = |at: usize| split.filter(|_| !shrunk).map_or(0, |split| split.fates[at].kept);
        let claim = |(at, (facts, _)): (usize, &(Facts, _))| (facts.tenant, Claim::new(facts.spec.cache, kept(at)));
        let claims: Vec<_> = tenants.iter().enumerate().map(claim).collect();
        let target = |(at, (tenant, frames)): (usize, (TenantId, u32))| {
            let promise = split.map(|split| self.promise(tenants[at], split, at, u64::from(frames)));
            Target { tenant, frames, hard: split.map_or(claims[at].1.least(), |split| split.fates[at].hard), promise }
        };
        allot::targets(self.latest.frames, &claims).into_iter().enumerate().map(target).collect()
    }

    fn promise(&self, (facts, known): (Facts, &Known), split: &Split, at: usize, frames: u64) -> Promise {
        let (fate, settings) = (&split.fates[at], &self.latest.settings);
        // Lent cache counts as long as it is lent. If no round is long enough, a longer round would cost all other
        // tenants more than this one gains.
        let cache = known.load.as_ref().map_or(1.0, |load| load.keeps(frames)[0]);
        let mut by_slices = split.aims.iter().map(|aim| aim / cache);
        let keep = by_slices.find(|&keep| keep <= fate.time_longest).unwrap_or(split.aims[0]);
        // Longer slices make up for what is lost beside them.
        let keep_permille = ((keep + known.feedback.shortfall()).min(KEEP_MOST) * 1000.0 + 1e-6) as u32;
        let keeps = known.keeps(frames);
        let ends = keeps.map(|keeps| keeps.map(|part| permille(part * fate.time)));
        let decision = match (fate.decision, ends) {
            (Some(Decision::Admitted), Some([low, ..])) if low < settings.insulation_permille => {
                Decision::Trial(Doubt::Filling { used_bytes: bytes_of(known.used.min(frames)) })
            }
            (Some(decision), _) => decision,
            (None, _) => Decision::Trial(match known.begun {
                Some(begun) => Doubt::Unsettled { until: begun + self.latest.trial_ns_max },
                None => Doubt::Unused,
            }),
        };
        let is_same = |before: &Decision| std::mem::discriminant(before) == std::mem::discriminant(&decision);
        let round_ns = if settings.needs_slices { split.round_ns } else { 0.0 };
        let sizing = Sizing {
            decision,
            since: facts.decided.filter(|(before, _)| is_same(before)).map_or(self.latest.now, |(_, since)| since),
            insulation_permille: settings.insulation_permille,
            need_bytes: fate.need.map(bytes_of),
            kept_bytes: bytes_of(fate.kept),
            lent_bytes: bytes_of(frames.saturating_sub(fate.kept)),
            time_permille: permille(fate.time),
            cache_permille: keeps.map(|[_, point, _]| permille(point)),
            best_permille: ends.map(|[_, point, _]| point),
            low_permille: ends.map(|[low, ..]| low),
            high_permille: ends.map(|[.., high]| high),
            round_ns: round_ns as u64,
            wait_ns: (round_ns * (1.0 - fate.weight)) as u64,
        };
        Promise { kept: fate.kept, keep_permille, sizing }
    }

    /// The decision for a planned tenant, as of the latest evidence.
    pub fn plan(&self, request: PlanRequest) -> Result<Plan, Refusal> {
        let PlanRequest { tenant, share, overcommit, cache, like } = request;
        let find = |tenant: TenantId| {
            let found = self.latest.tenants.iter().find(|facts| facts.tenant == tenant);
            found.ok_or(Refusal::UnknownTenant)
        };
        let replaced = tenant.map(find).transpose()?;
        let model = like.map(find).transpose()?.or(replaced);
        let mut tenants = self.tenants(tenant);
        let promised: u64 = tenants.iter().filter_map(|(facts, _)| facts.spec.share).map(Share::ppb).sum();
        let left_ppb = Share::ONE.ppb().saturating_sub(promised);
        if let Some(asked) = share.filter(|share| !overcommit && share.ppb() > left_ppb) {
            return Err(Refusal::ShareTooLarge { asked_ppb: asked.ppb(), left_ppb });
        }
        // Its load is that of the model, and nothing has been decided for it.
        let (model, unknown) = (model.copied().unwrap_or_default(), Known::default());
        let known = like.or(tenant).map_or(&unknown, |model| &self.known[&model]);
        let spec = TenantSpec { share, cache, ..model.spec };
        let kept = if let CacheSpec::Decided(bytes) = cache { frames_of(bytes) } else { 0 };
        let tenant = tenant.unwrap_or(TenantId(u32::MAX));
        tenants.push((Facts { tenant, spec, kept, decided: None, ..model }, known));
        let split = self.split(&tenants);
        let mut targets = self.targets(&tenants, split.as_ref());
        let sizing = targets.pop().expect("the planned tenant").promise.map(|promise| promise.sizing);
        let others = targets.iter().map(|target| target.hard).sum();
        allot::admit(self.latest.frames, others, cache)?;
        Ok(Plan {
            slice_ns: sizing.map_or(0, |sizing| sizing.round_ns - sizing.wait_ns),
            sizing,
            free_bytes: bytes_of(self.latest.frames.saturating_sub(others)),
            share_left_ppb: left_ppb,
        })
    }
}

fn permille(part: f64) -> u32 {
    (part * 1000.0).round() as u32
}
