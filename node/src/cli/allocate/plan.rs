//! The plan, beside the present allocation and those of other methods.

use std::collections::BTreeMap;

use engine::allocate::{
    Allotment, Baseline, Candidate, Effort, Evidence, Follower, Goal, Lived, Moving, Prediction, Refined, Refinement,
    Steady, Surface, Tiers, Verdict, Watched, best,
};
use engine::units::BLOCK;
use serde::Serialize;

use super::Failure;
use super::apply::{Change, changes};
use super::gather::Observed;
use super::goals::Goals;
use super::problem::{Has, Posed, is_handed, memory, pose};
use super::tenants::{Kept, Subject};
use crate::cli::arguments::{AllocateWhat, GoalName, Method};
use crate::quantity::duration;

/// The plan, in the form of `plan --json` (`docs/manual/allocate.md`).
#[derive(Clone, Debug, Serialize)]
pub(super) struct PlanView {
    pub(super) goal: &'static str,
    pub(super) method: &'static str,
    /// For how long load and latencies were measured.
    pub(super) window_seconds: f64,
    pub(super) tenants: Vec<TenantPlanView>,
    pub(super) total: TotalView,
    pub(super) baselines: Vec<BaselineView>,
    pub(super) unplanned: Vec<UnplannedView>,
}

/// A tenant.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TenantPlanView {
    pub(super) name: String,
    pub(super) server: String,
    pub(super) disk: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gateway: Option<String>,
    pub(super) tiers: &'static str,
    pub(super) now: AllottedView,
    pub(super) planned: AllottedView,
    /// Mean latency of its clients' requests in the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) measured_latency_seconds: Option<f64>,
    pub(super) reason: String,
}

/// What a tenant has, and the latency that the model predicts for that.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct AllottedView {
    /// Memory, as sizes are requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gateway_cache_bytes: Option<u64>,
    pub(super) cache_bytes: u64,
    pub(super) share: f64,
    pub(super) latency_seconds: f64,
}

/// Sums over tenants.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct TotalView {
    pub(super) now_seconds: f64,
    pub(super) planned_seconds: f64,
    /// Costs by the goal: what is minimised.
    pub(super) now_cost: f64,
    pub(super) planned_cost: f64,
}

/// What another method would do.
#[derive(Clone, Debug, Serialize)]
pub(super) struct BaselineView {
    pub(super) method: &'static str,
    pub(super) total_seconds: f64,
    pub(super) cost: f64,
    pub(super) tenants: Vec<BaselineTenantView>,
}

/// A tenant with another method.
#[derive(Clone, Debug, Serialize)]
pub(super) struct BaselineTenantView {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) allotted: AllottedView,
}

/// A tenant that keeps what it has.
#[derive(Clone, Debug, Serialize)]
pub(super) struct UnplannedView {
    pub(super) name: String,
    pub(super) server: String,
    pub(super) reason: String,
}

/// A plan, and what follows from it.
pub(super) struct Planned {
    pub(super) view: PlanView,
    /// The requests that make it so.
    pub(super) changes: Vec<Change>,
    pub(super) surfaces: Vec<Drawn>,
    /// For `run`.
    pub(super) judged: Option<Judged>,
}

/// What is to be done with a plan. If that is another allocation, it takes the place of the planned one.
pub(super) struct Judged {
    pub(super) verdict: Verdict,
    /// The predicted gain of the plan.
    pub(super) gain: f64,
    /// By tenant: its key in [`Memory`], and the reads that miss until its caches are full.
    refills: Vec<(Key, f64)>,
}

/// A tenant: its disk, and its name.
type Key = (String, String);

/// A tenant's latency as a function of what it has.
pub(super) struct Drawn {
    pub(super) name: String,
    pub(super) evidence: Evidence,
    pub(super) factor: f64,
    pub(super) has_gateway: bool,
    pub(super) whole: Has,
    pub(super) now: Has,
    pub(super) planned: Has,
}

/// What is remembered from plan to plan.
#[derive(Default)]
pub(super) struct Memory {
    known: BTreeMap<Key, Watched>,
    grid: Option<engine::allocate::Grid>,
    /// Of `run`.
    following: Option<Following>,
}

/// Plans that follow each other.
struct Following {
    /// The interval between them, in which moves are to be repaid.
    every: std::time::Duration,
    follower: Follower,
    /// The tenants of the last plan, in order.
    keys: Vec<Key>,
}

impl Memory {
    /// Of plans that follow each other at this interval.
    pub(super) fn of_plans(every: std::time::Duration, follower: Follower) -> Memory {
        Memory { following: Some(Following { every, follower, keys: Vec::new() }), ..Memory::default() }
    }

    /// What was decided was done: caches have to be filled.
    pub(super) fn applied(&mut self, judged: &Judged) {
        for (key, reads) in &judged.refills {
            if let Some(known) = self.known.get_mut(key) {
                known.moved(*reads);
            }
        }
        self.follower().applied(&judged.verdict);
    }

    /// What decides.
    pub(super) fn follower(&mut self) -> &mut Follower {
        &mut self.following.as_mut().expect("plans that follow each other").follower
    }
}

impl Method {
    pub(super) fn name(self) -> &'static str {
        self.baseline().map_or("ours", Baseline::name)
    }

    fn baseline(self) -> Option<Baseline> {
        Some(match self {
            Method::Ours => return None,
            Method::Mrc => Baseline::Mrc,
            Method::MrcDisk => Baseline::MrcDisk,
            Method::DiskOnly => Baseline::DiskOnly,
            Method::CacheOnly => Baseline::CacheOnly,
            Method::Equal => Baseline::Equal,
        })
    }
}

const NOT_HANDED: &str =
    "it keeps what it has, since nothing is handed over: `aerogel tenant set NAME --share auto --cache auto`";

/// The methods that are shown beside the plan.
const SHOWN: [Baseline; 5] =
    [Baseline::Equal, Baseline::Mrc, Baseline::MrcDisk, Baseline::DiskOnly, Baseline::CacheOnly];

/// A posed problem, with what is to be reached and the corrections of the model.
struct Solving<'a> {
    observed: &'a Observed,
    posed: &'a Posed,
    goal: Goal,
    refinements: Vec<Refinement>,
    seed: u64,
    every: Option<std::time::Duration>,
}

/// The tenants' allotments by a method.
type Division = (Baseline, Vec<Allotment>);

impl Solving<'_> {
    /// Latency in steps.
    fn surface(&self) -> Refined<'_> {
        Refined { model: &self.posed.model, refinements: &self.refinements }
    }

    fn solve(&self, method: Option<Baseline>) -> Result<Vec<Allotment>, Failure> {
        let Posed { problem, model, .. } = self.posed;
        let (surface, effort) = (self.surface(), Effort::default());
        let found = match method {
            None => {
                let present = self.posed.present();
                let from = problem.permits(&present).is_ok().then_some(&present[..]);
                Ok(match self.every {
                    Some(every) => {
                        let moving = Moving::new(surface, model, &present, every.as_nanos() as f64);
                        best(problem, &self.goal, &moving, from, effort, self.seed)
                    }
                    None => best(problem, &self.goal, &surface, from, effort, self.seed),
                })
            }
            Some(baseline) => baseline.allocate(problem, &self.goal, &surface, model, effort, self.seed),
        };
        found.map(|found| found.allocation).map_err(|error| Failure::refused(error.to_string(), None))
    }

    /// The latency of a tenant with this, nanoseconds; `at` is the nearest allotment in steps.
    fn latency_ns(&self, tenant: usize, has: Has, at: Allotment) -> f64 {
        let model_ns = self.posed.predicted(tenant, has).latency_ns;
        model_ns * self.refinements[tenant].factor(at, model_ns)
    }

    fn latencies_ns(&self, all: &[Has], at: &[Allotment]) -> Vec<f64> {
        (0..all.len()).map(|tenant| self.latency_ns(tenant, all[tenant], at[tenant])).collect()
    }

    fn allotted(&self, tenant: usize, has: Has, latency_ns: f64) -> AllottedView {
        let Subject { server, gateway } = self.posed.subjects[tenant];
        AllottedView {
            gateway_cache_bytes: gateway.map(|at| memory(self.observed.disk(at), has.first)),
            cache_bytes: memory(self.observed.disk(server), has.second),
            share: has.share,
            latency_seconds: latency_ns / 1e9,
        }
    }

    /// What is to be done with a plan, and what its tenants get by that. Its gain is net of moves.
    fn judge(
        &self,
        following: &mut Following,
        (planned, divisions): (Vec<Allotment>, &[Division]),
        (steady, keys): (Steady, Vec<Key>),
    ) -> (Vec<Allotment>, Option<Judged>) {
        let Posed { problem, model, subjects, .. } = self.posed;
        let (present, surface) = (self.posed.present(), self.surface());
        let total = |surface: &dyn Fn(usize, Allotment) -> f64, of: &[Allotment]| {
            let latencies: Vec<f64> = of.iter().enumerate().map(|(tenant, at)| surface(tenant, *at)).collect();
            cost(&self.goal, &latencies)
        };
        let latency_ns = |tenant: usize, at: Allotment| surface.latency_ns(tenant, at);
        let moving = Moving::new(latency_ns, model, &present, following.every.as_nanos() as f64);
        let now = total(&latency_ns, &present);
        let gain = |then: f64| if now == then { 0.0 } else { (now - then) / now.abs().max(f64::MIN_POSITIVE) };
        let planned_gain = gain(total(&|tenant, at| moving.latency_ns(tenant, at), &planned));
        let measured = subjects.iter().map(|of| self.observed.latency_ns(*of).unwrap_or(0.0));
        let measured = cost(&self.goal, &measured.collect::<Vec<f64>>());
        let other = |(_, of): &Division| (of.clone(), gain(total(&latency_ns, of)));
        let others: Vec<(Vec<Allotment>, f64)> =
            divisions.iter().filter(|(method, _)| *method != Baseline::Equal).map(other).collect();
        if following.keys != keys {
            following.follower.forget();
            following.keys.clone_from(&keys);
        }
        let candidate =
            Candidate { present: &present, planned: &planned, others: &others, steady, measured, gain: planned_gain };
        let verdict = following.follower.judge(candidate, |allocation| problem.permits(allocation).is_ok());
        // If nothing is applied, the plan is shown.
        let at = verdict.applies(&planned).unwrap_or(&planned).to_vec();
        let refill = |(tenant, key)| (key, model.refill_reads(tenant, present[tenant], at[tenant]));
        let refills = keys.into_iter().enumerate().map(refill).collect();
        (at, Some(Judged { verdict, gain: planned_gain, refills }))
    }

    fn baseline(&self, (method, at): &Division) -> BaselineView {
        let all = self.posed.has(self.observed, at);
        let latencies = self.latencies_ns(&all, at);
        let tenant = |tenant: usize| BaselineTenantView {
            name: name(self.observed, self.posed.subjects[tenant]),
            allotted: self.allotted(tenant, all[tenant], latencies[tenant]),
        };
        BaselineView {
            method: method.name(),
            total_seconds: latencies.iter().sum::<f64>() / 1e9,
            cost: cost(&self.goal, &latencies),
            tenants: (0..all.len()).map(tenant).collect(),
        }
    }
}

impl Posed {
    /// What the model predicts for a tenant that has this.
    fn predicted(&self, tenant: usize, has: Has) -> Prediction {
        predicted(&self.evidence[tenant], has)
    }
}

/// The prediction for a tenant that has this.
pub(super) fn predicted(evidence: &Evidence, has: Has) -> Prediction {
    evidence.predict(has.first, has.second, has.share.clamp(0.001, 1.0))
}

/// The cost by the goal, in seconds where it is a time.
fn cost(goal: &Goal, latencies_ns: &[f64]) -> f64 {
    let unit = if matches!(goal, Goal::Utility(_)) { 1.0 } else { 1e9 };
    goal.total(latencies_ns) / unit
}

fn name(observed: &Observed, subject: Subject) -> String {
    observed.tenant(subject.server).tenant.clone()
}

/// Plans from what was observed.
pub(super) fn plan(
    what: &AllocateWhat,
    goals: &Goals,
    observed: &Observed,
    memory: &mut Memory,
) -> Result<Planned, Failure> {
    let posed = pose(observed)?;
    let names: Vec<String> = posed.subjects.iter().map(|subject| name(observed, *subject)).collect();
    let others: Vec<&str> = posed.kept.iter().map(|kept| observed.tenant(kept.at).tenant.as_str()).collect();
    let goal = goals.of(&names.iter().map(String::as_str).collect::<Vec<_>>(), &others)?;
    let (refinements, steady, keys) = learn(observed, &posed, memory);
    let every = memory.following.as_ref().map(|following| following.every);
    let solving = Solving { observed, posed: &posed, goal, refinements, seed: what.seed, every };
    let division = |method| Ok((method, solving.solve(Some(method))?));
    let divisions: Vec<Division> = SHOWN.into_iter().map(division).collect::<Result<_, Failure>>()?;
    let planned = solving.solve(what.method.baseline())?;
    // With a method that was chosen no other one is tried.
    let others = if what.method.baseline().is_none() { &divisions[..] } else { &[] };
    let (at, judged) = match &mut memory.following {
        Some(following) => solving.judge(following, (planned, others), (steady, keys)),
        None => (planned, None),
    };
    let (present, all) = (posed.present(), posed.has(observed, &at));
    let now_ns = solving.latencies_ns(&posed.now, &present);
    let planned_ns = solving.latencies_ns(&all, &at);
    let baselines = divisions.iter().map(|division| solving.baseline(division)).collect();
    let tenant = |tenant: usize| {
        let Subject { server, gateway } = posed.subjects[tenant];
        let place = |server: usize| observed.servers[server].place.to_string();
        let measured = observed.latency_ns(posed.subjects[tenant]).map(|ns| ns / 1e9);
        let (now, planned) = (posed.now[tenant], all[tenant]);
        TenantPlanView {
            name: names[tenant].clone(),
            server: place(server.server),
            disk: observed.disk(server).disk.clone(),
            gateway: gateway.map(|at| place(at.server)),
            tiers: tiers(&posed.evidence[tenant]),
            now: solving.allotted(tenant, now, now_ns[tenant]),
            planned: solving.allotted(tenant, planned, planned_ns[tenant]),
            measured_latency_seconds: measured,
            reason: match is_handed(observed, posed.subjects[tenant]) {
                true => reason(&posed, tenant, now, planned) + &unnamed(observed, posed.subjects[tenant]),
                false => NOT_HANDED.into(),
            },
        }
    };
    let tenants: Vec<TenantPlanView> = (0..names.len()).map(tenant).collect();
    let window_seconds = |of: &Subject| observed.loads(of.server).window.elapsed_ns / 1e9;
    let view = PlanView {
        goal: what.goal.name(),
        method: what.method.name(),
        window_seconds: posed.subjects.iter().map(window_seconds).fold(0.0, f64::max),
        total: TotalView::of(&solving.goal, &now_ns, &planned_ns),
        baselines,
        unplanned: unplanned(observed, &posed),
        tenants,
    };
    let drawn = |tenant: usize| Drawn {
        name: names[tenant].clone(),
        evidence: posed.evidence[tenant].clone(),
        factor: solving.refinements[tenant].factor(at[tenant], planned_ns[tenant]),
        has_gateway: posed.subjects[tenant].gateway.is_some(),
        whole: posed.whole(tenant),
        now: posed.now[tenant],
        planned: all[tenant],
    };
    let (surfaces, changes) = ((0..names.len()).map(drawn).collect(), changes(observed, &posed.subjects, &all));
    Ok(Planned { changes, view, surfaces, judged })
}

impl TotalView {
    fn of(goal: &Goal, now_ns: &[f64], planned_ns: &[f64]) -> TotalView {
        let seconds = |of: &[f64]| of.iter().sum::<f64>() / 1e9;
        TotalView {
            now_seconds: seconds(now_ns),
            planned_seconds: seconds(planned_ns),
            now_cost: cost(goal, now_ns),
            planned_cost: cost(goal, planned_ns),
        }
    }
}

/// The tenants that keep what they have.
fn unplanned(observed: &Observed, posed: &Posed) -> Vec<UnplannedView> {
    let view = |kept: &Kept| UnplannedView {
        name: observed.tenant(kept.at).tenant.clone(),
        server: observed.servers[kept.at.server].place.to_string(),
        reason: kept.reason.clone(),
    };
    posed.kept.iter().map(view).collect()
}

/// Corrections of the model by what was measured, whether all of it is to be relied on, and the keys of the tenants.
fn learn(observed: &Observed, posed: &Posed, memory: &mut Memory) -> (Vec<Refinement>, Steady, Vec<Key>) {
    if memory.grid.replace(posed.problem.grid) != Some(posed.problem.grid) {
        // Allotments are in steps of the grid.
        memory.known.values_mut().for_each(Watched::forget);
        memory.following.iter_mut().for_each(|following| following.follower.forget());
    }
    let (mut refinements, mut steady, mut keys) = (Vec::new(), Steady::Yes, Vec::new());
    for (tenant, (subject, at)) in posed.subjects.iter().zip(posed.present()).enumerate() {
        let key = (observed.disk(subject.server).disk.clone(), name(observed, *subject));
        let measured_ns = observed.latency_ns(*subject).unwrap_or(0.0);
        let missed_blocks = observed.loads(subject.server).window.missed_bytes / BLOCK as f64;
        let known = memory.known.entry(key.clone()).or_default();
        let lived = Lived { at, measured_ns, missed_blocks };
        steady = steady.max(known.learn(&posed.evidence[tenant], lived, |at| posed.model.latency_ns(tenant, at)));
        refinements.push(known.refinement().clone());
        keys.push(key);
    }
    (refinements, steady, keys)
}

fn tiers(evidence: &Evidence) -> &'static str {
    match evidence.tiers {
        Tiers::Lru => "lru",
        Tiers::Demote => "demote",
    }
}

/// Where its reads are answered from, now and then.
fn reason(posed: &Posed, tenant: usize, now: Has, planned: Has) -> String {
    let has_gateway = posed.subjects[tenant].gateway.is_some();
    let words = |has: Has| {
        let of = posed.predicted(tenant, has);
        let percent = |part: f64| format!("{:.0}%", part * 100.0);
        let gateway = if has_gateway { format!("{} at the gateway, ", percent(of.first_hits)) } else { String::new() };
        let hits = of.second_hits + if has_gateway { 0.0 } else { of.first_hits };
        let disk = duration(of.disk_ns / 1e9);
        format!("{gateway}{} at the server, {} from the disk in {disk}", percent(hits), percent(of.misses))
    };
    if posed.evidence[tenant].read_fraction == 0.0 {
        return "it only writes".into();
    }
    format!("reads: {}; now: {}", words(planned), words(now))
}

/// A gateway of the tenant whose cache is not divided, because it is not named.
fn unnamed(observed: &Observed, subject: Subject) -> String {
    let mut gateways = observed.tenant(subject.server).volumes.iter().filter_map(|volume| volume.gateway.as_ref());
    match gateways.next().filter(|_| subject.gateway.is_none()) {
        Some(gateway) => format!("; it is used through the gateway '{gateway}', which is not named by --gateway"),
        None => String::new(),
    }
}

impl PlanView {
    pub(super) fn is_latency(&self) -> bool {
        self.goal == GoalName::Latency.name()
    }
}
