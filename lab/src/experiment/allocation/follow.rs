//! `aerogel allocate run` in virtual time: what it does when loads change, and when they do not.

use engine::allocate::{
    Allotment, Baseline, Candidate, Effort, Evidence, Follower, Goal, Lived, Model, Moving, Problem, Refined,
    Refinement, Steady, Surface, Verdict, Watched, best,
};
use engine::disk::profile::Profile;
use engine::units::{Nanos, SECOND};
use serde_json::{Value, json};

use super::super::guarantees::plot::{Panel, panels};
use super::super::stand::mean;
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::loads::Kind;
use super::mix::{BASELINES, Mix};
use super::paper::grid;
use super::play::{Actor, Played, Running, Scene, since};

pub const FOLLOW: Experiment = Experiment {
    name: "allocation-follow",
    question: "Does an allocation that is kept up to date follow the loads, and does it come to rest?",
    setup: "The second mix of allocation-paper (Zipf40 and TPC-W on one gateway, Zipf95 and RUBiS on the other), which \
            begins with equal parts. A plan is made each 60 s from what the API tells of that minute, and is applied \
            as `aerogel allocate run --every 60s` does: with its threshold of 5 %, its corrections by measured \
            latencies, its cost of moves, its returns and its tries of other methods. After 40 minutes the first and \
            the last tenant exchange their loads. 2 hours and 40 minutes in all.",
    paper: "Soundararajan et al., section 6.3: a new allocation after 16 minutes.",
    run: follow,
};

/// As `aerogel allocate run` by default.
const EVERY_NS: Nanos = 60 * SECOND;
const THRESHOLD: f64 = 0.05;
/// Minutes until loads change, and in all.
const CHANGE_MIN: usize = 40;
const ALL_MIN: usize = 160;
/// Latencies are at rest within this factor of the last ones, as means of so many minutes.
const REST: f64 = 1.1;
const MEAN_MIN: usize = 5;

/// What one plan said, and what was done with it.
struct Minute {
    /// Sum of the mean latencies in the minute before the plan, nanoseconds.
    total_ns: f64,
    tenants_ns: Vec<f64>,
    present: Vec<Allotment>,
    steady: Steady,
    verdict: Verdict,
    /// What the plan predicts of the present and of the planned allocation, nanoseconds.
    predicted_ns: [f64; 2],
}

impl Minute {
    fn json(&self) -> Value {
        let of = |at: &Allotment| json!([at.first, at.second, at.share]);
        let tenants_ms: Vec<f64> = self.tenants_ns.iter().map(|ns| ns / 1e6).collect();
        json!({
            "total_ms": self.total_ns / 1e6, "tenants_ms": tenants_ms,
            "first_second_share": self.present.iter().map(of).collect::<Vec<_>>(),
            "steady": format!("{:?}", self.steady),
            "did": format!("{:?}", self.verdict), "predicted_ms": self.predicted_ns.map(|ns| ns / 1e6),
        })
    }

    fn is_applied(&self) -> bool {
        self.verdict.applies(&[]).is_some()
    }
}

/// The planner between two plans.
struct Planner<'a> {
    mix: &'a Mix,
    problem: Problem,
    profile: &'a Profile,
    watched: Vec<Watched>,
    follower: Follower,
    seed: u64,
}

impl Planner<'_> {
    /// Plans after a minute, and applies the plan if it is worth it.
    fn plan(&mut self, running: &mut Running, played: &Played, present: &mut Vec<Allotment>) -> Result<Minute, String> {
        let evidence: Vec<Evidence> = self.mix.evidence(played, present, self.profile)?;
        let model = Model::new(&self.problem, evidence.clone());
        let mut steady = Steady::Yes;
        for (tenant, watched) in self.watched.iter_mut().enumerate() {
            let (at, measured_ns) = (present[tenant], played.seen[tenant].latency_ns);
            let missed_blocks = since(&played.told[tenant].server, |stats| stats.miss_blocks);
            let lived = Lived { at, measured_ns, missed_blocks };
            steady = steady.max(watched.learn(&evidence[tenant], lived, |at| model.latency_ns(tenant, at)));
        }
        let refinements: Vec<Refinement> = self.watched.iter().map(|watched| watched.refinement().clone()).collect();
        let surface = Refined { model: &model, refinements: &refinements };
        let before = present.clone();
        let moving = Moving::new(surface, &model, &before, EVERY_NS as f64);
        let found = best(&self.problem, &Goal::Latency, &moving, Some(&before), Effort::default(), self.seed);
        let total =
            |of: &[Allotment]| -> f64 { of.iter().enumerate().map(|(at, of)| surface.latency_ns(at, *of)).sum() };
        let predicted_ns = [total(&before), total(&found.allocation)];
        let gain = 1.0 - found.cost / predicted_ns[0];
        let tenants_ns: Vec<f64> = played.seen.iter().map(|seen| seen.latency_ns).collect();
        let total_ns = tenants_ns.iter().sum();
        let other = |method: &Baseline| {
            let found = method.allocate(&self.problem, &Goal::Latency, &surface, &model, Effort::default(), self.seed);
            let allocation = found.map_err(|why| format!("{}: {}: {why}", self.mix.name, method.name()))?.allocation;
            let gain = 1.0 - total(&allocation) / predicted_ns[0];
            Ok((allocation, gain))
        };
        let others: Vec<(Vec<Allotment>, f64)> = BASELINES.iter().map(other).collect::<Result<_, String>>()?;
        let planned = &found.allocation;
        let plan = Candidate { present: &before, planned, others: &others, steady, measured: total_ns, gain };
        let verdict = self.follower.judge(plan, |allocation| self.problem.permits(allocation).is_ok());
        if let Some(applied) = verdict.applies(planned) {
            self.apply(running, &before, applied)?;
            self.follower.applied(&verdict);
            for (tenant, watched) in self.watched.iter_mut().enumerate() {
                watched.moved(model.refill_reads(tenant, before[tenant], applied[tenant]));
            }
            *present = applied.to_vec();
        }
        Ok(Minute { total_ns, tenants_ns, present: before, steady, verdict, predicted_ns })
    }

    /// Takes first and gives then: nothing is promised twice.
    fn apply(&self, running: &mut Running, present: &[Allotment], planned: &[Allotment]) -> Result<(), String> {
        let least = |a: &Allotment, b: &Allotment| Allotment {
            first: a.first.min(b.first),
            second: a.second.min(b.second),
            share: a.share.min(b.share),
        };
        let lower: Vec<Allotment> = present.iter().zip(planned).map(|(a, b)| least(a, b)).collect();
        for (tenant, at) in lower.iter().enumerate().chain(planned.iter().enumerate()) {
            let share = self.mix.grid.share(at.share).ok_or("a share is above 0")?;
            running.give(tenant, self.mix.grid.bytes(at.first), self.mix.grid.bytes(at.second), share)?;
        }
        Ok(())
    }
}

/// What `aerogel allocate run` has made of equal parts after so many minutes.
pub(super) fn kept_up_to_date(
    context: &Context,
    mix: &Mix,
    minutes: usize,
    seed: u64,
) -> Result<Vec<Allotment>, String> {
    Ok(run(context, mix, minutes, seed)?.present)
}

/// What it has made after the time in which other allocations warm up, and the mean latencies in the counted time that
/// follows in the same run, nanoseconds.
pub(super) fn kept_and_counted(context: &Context, mix: &Mix, seed: u64) -> Result<(Vec<Allotment>, Vec<f64>), String> {
    let minutes = (mix.scene.settle_ns / EVERY_NS) as usize;
    let scene = Scene { settle_ns: mix.scene.settle_ns % EVERY_NS, ..mix.scene.clone() };
    let mut kept = run(context, &Mix { scene, ..mix.clone() }, minutes, seed)?;
    let counted = kept.running.window(mix.scene.counted_ns)?;
    Ok((kept.present, counted.seen.iter().map(|seen| seen.latency_ns).collect()))
}

/// Tenants that run, what they have now, and what was done in each minute.
struct Followed {
    running: Running,
    present: Vec<Allotment>,
    minutes: Vec<Minute>,
}

/// Runs the mix, plan by plan.
fn run(context: &Context, mix: &Mix, minutes: usize, seed: u64) -> Result<Followed, String> {
    let problem = mix.problem()?;
    let mut present = problem.equal();
    let mut actors = Vec::new();
    for ((kind, gateway), at) in mix.tenants.iter().zip(&present) {
        let share = mix.grid.share(at.share).ok_or("a share is above 0")?;
        let (first, second) = (mix.grid.bytes(at.first), mix.grid.bytes(at.second));
        actors.push(Actor { kind, gateway: *gateway, first, second, share });
    }
    let mut running = mix.scene.start(&actors, seed)?;
    let profile = mix.scene.stand.profile(true)?;
    let watched = vec![Watched::default(); mix.tenants.len()];
    let mut planner = Planner { mix, problem, profile: &profile, watched, follower: Follower::new(THRESHOLD), seed };
    let mut all = Vec::new();
    for _ in 0..minutes {
        let played = running.window(EVERY_NS)?;
        all.push(planner.plan(&mut running, &played, &mut present)?);
        context.progress.tick();
    }
    Ok(Followed { running, present, minutes: all })
}

/// The mix, the tenants of which exchange their loads.
fn exchanged(scene: &Scene, change_ns: Nanos) -> Mix {
    let kinds = [
        Kind::zipf40().then(change_ns, Kind::rubis()),
        Kind::tpcw(),
        Kind::zipf95(),
        Kind::rubis().then(change_ns, Kind::zipf40()),
    ];
    let tenants = kinds.into_iter().enumerate().map(|(at, kind)| (kind, at / 2)).collect();
    Mix { name: "loads exchanged".into(), tenants, scene: scene.clone(), grid: grid(), first: None }
}

/// What the claims say of one run.
struct Rest {
    /// Minutes from the first plan with stable curves after the change of loads to the first one that is applied.
    until_applied: f64,
    /// Minutes from the change until the latency stays within 10 % of that in the end, as means of five minutes.
    until_rest: f64,
    /// Changes of the allocation in the second half of the time after the change of loads.
    late: f64,
    /// Sum of latencies at the end, relative to that before the first plan after the change was applied.
    gain: f64,
}

impl Rest {
    fn of(all: &[Minute], change: usize) -> Rest {
        let after = &all[change..];
        // Right after the change curves are still those of before.
        let changing = after.iter().position(|minute| minute.steady == Steady::Changed);
        let stable =
            changing.and_then(|at| Some(at + after[at..].iter().position(|minute| minute.steady == Steady::Yes)?));
        let first = after.iter().position(Minute::is_applied);
        let late = after[after.len() / 2..].iter().filter(|minute| minute.is_applied()).count();
        let total = |of: &[Minute]| mean(of.iter().map(|minute| minute.total_ns));
        let before = first.map_or(f64::NAN, |first| total(&after[first.saturating_sub(1)..=first]));
        let end = total(&after[after.len() / 2..]);
        let worse = after.windows(MEAN_MIN).rposition(|of| total(of) > REST * end);
        let minutes = |from: Option<usize>, to: Option<usize>| match (from, to) {
            (Some(from), Some(to)) => to as f64 - from as f64,
            _ => f64::INFINITY,
        };
        Rest {
            until_applied: minutes(stable, first),
            until_rest: worse.map_or(0.0, |at| (at + MEAN_MIN) as f64),
            late: late as f64,
            gain: before / end,
        }
    }
}

fn follow(context: &Context) -> Result<Outcome, String> {
    let (change, minutes) = if context.quick { (10, 100) } else { (CHANGE_MIN, ALL_MIN) };
    let scene = Scene::new(context)?;
    let begin_ns = scene.fill_ns + scene.settle_ns;
    let mix = exchanged(&scene, begin_ns + change as u64 * EVERY_NS);
    let runs = context.parallel(&context.seeds, |&seed| Ok(run(context, &mix, minutes, seed)?.minutes));
    let runs: Vec<Vec<Minute>> = runs.into_iter().collect::<Result<_, String>>()?;
    let rests: Vec<Rest> = runs.iter().map(|all| Rest::of(all, change)).collect();
    let most = |of: fn(&Rest) -> f64| rests.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
    let gain = mean(rests.iter().map(|rest| rest.gain));
    let claims = vec![
        Claim::new(
            "minutes from stable curves to a new allocation",
            most(|rest| rest.until_applied),
            Bound::AtMost(2.0),
        ),
        Claim::new(
            "minutes from the change to latencies within 10 % of the last ones",
            most(|rest| rest.until_rest),
            Bound::AtMost(16.0),
        ),
        Claim::new("changes in the second half of the time after it", most(|rest| rest.late), Bound::AtMost(0.0)),
        Claim::new("latency before the new allocation, of that with it", gain, Bound::AtLeast(1.0)),
    ];
    let names = ["Zipf40, then RUBiS", "TPC-W", "Zipf95", "RUBiS, then Zipf40"];
    let panel = |(at, name): (usize, &&str)| Panel {
        title: (*name).into(),
        points: (1..).zip(&runs[0]).map(|(minute, of)| (f64::from(minute), of.tenants_ns[at] / 1e6)).collect(),
        joined: true,
    };
    let shown: Vec<Panel> = names.iter().enumerate().map(panel).collect();
    let pictures = vec![Picture {
        name: "latency".into(),
        caption: format!("Mean latency of each minute; the loads are exchanged after {change} minutes."),
        svg: panels(("minutes", "ms"), &shown, 2, None)?,
    }];
    let data: Vec<Vec<Value>> = runs.iter().map(|all| all.iter().map(Minute::json).collect()).collect();
    Ok(Outcome { claims, data: json!(data), pictures, ..Outcome::default() })
}
