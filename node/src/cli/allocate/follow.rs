//! Keeps an allocation up to date.
//!
//! A plan is made at an interval, from what happened since the last one; the engine decides whether it is worth a
//! change (`engine/src/allocate/follow.rs`). After a change, the next plan begins with new measurements.

use std::io::Write;
use std::time::{Duration, SystemTime};

use engine::allocate::{Follower, Steady, Verdict};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::Failure;
use super::apply::{TenantChange, apply};
use super::gather::{Servers, token};
use super::goals::Goals;
use super::plan::{Memory, PlanView, Planned, plan};
use super::print;
use crate::cli::arguments::{AllocateWhat, GoalName, Method};
use crate::store::profile::date;

/// How the allocation is kept up to date.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) every: Duration,
    /// The least part by which the goal must improve.
    pub(super) threshold: f64,
    pub(super) count: Option<u64>,
}

/// What was done at one time.
enum Step {
    /// Nothing, for this reason.
    Kept(Box<PlanView>, String),
    /// These, for this reason.
    Changed(Box<PlanView>, Vec<TenantChange>, String),
    Failed(Failure),
}

/// Plans and applies until SIGINT or SIGTERM.
pub(super) async fn follow(what: &AllocateWhat, how: How) -> Result<(), Failure> {
    let goals = Goals::read(what)?;
    let servers = Servers::new(what)?;
    let token = token(what)?;
    let mut before = Some(servers.look().await?);
    servers.check(before.as_deref().unwrap_or_default())?;
    let follower = Follower::new(how.threshold);
    // Another method is followed whatever comes of it, and a part of a cost that is no sum of latencies says nothing.
    let returns = what.method == Method::Ours && what.goal == GoalName::Latency;
    let follower = if returns { follower } else { follower.without_returns() };
    let mut memory = Memory::of_plans(how.every, follower);
    let broken = |error: std::io::Error| Failure::refused(error.to_string(), None);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(broken)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(broken)?;
    let mut plans = 0;
    while how.count.is_none_or(|count| plans < count) {
        tokio::select! {
            () = tokio::time::sleep(how.every) => {}
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
        }
        let now = match servers.look().await {
            Ok(now) => now,
            Err(failure) => {
                // The counters of a server that comes back begin anew.
                before = None;
                plans += 1;
                if tell(what, &Step::Failed(failure)).is_err() {
                    return Ok(());
                }
                continue;
            }
        };
        let Some(earlier) = before.replace(now.clone()) else { continue };
        plans += 1;
        let step = match servers.check(&now).and_then(|()| servers.observe(earlier, now)) {
            Ok(observed) => match plan(what, &goals, &observed, &mut memory) {
                Ok(planned) => act(planned, &mut memory, token.as_deref()).await,
                Err(failure) => Step::Failed(failure),
            },
            Err(failure) => Step::Failed(failure),
        };
        if matches!(step, Step::Changed(..) | Step::Failed(_)) {
            // What happened until now belongs to the earlier allocation. A change that failed may have been made in
            // part.
            before = servers.look().await.ok();
        }
        if tell(what, &step).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

/// Applies a plan if it is worth it, or what was decided in its place.
async fn act(planned: Planned, memory: &mut Memory, token: Option<&str>) -> Step {
    let Planned { view, changes, judged, .. } = planned;
    let (view, Some(judged)) = (Box::new(view), judged) else { unreachable!("`run` judges each plan") };
    let percent = |part: f64| format!("{:.1}%", part * 100.0);
    let why = match &judged.verdict {
        Verdict::Apply => String::from("as planned"),
        Verdict::Return(_, gain) => {
            format!("back to an earlier allocation, which was measured: {} better", percent(*gain))
        }
        Verdict::Try(..) => "another method's division is tried, since the plan gains nothing".into(),
        kept => {
            let why = match kept {
                Verdict::Unsteady(Steady::Filling) => "caches are still being filled after the last change".into(),
                Verdict::Unsteady(_) => "a curve has changed, or there was no plan before".into(),
                Verdict::Rests => "no curve has changed for a long time, and a plan since then turned out worse".into(),
                Verdict::Brief => "the present allocation is measured for two intervals before it is left".into(),
                Verdict::Small(threshold) => {
                    let (gain, threshold) = (percent(judged.gain), percent(*threshold));
                    format!("a gain of {gain} is predicted, the threshold is {threshold}")
                }
                Verdict::Measured(gain) => {
                    format!("the planned allocation was measured, with a gain of {}", percent(*gain))
                }
                _ => "the allocation is as planned".into(),
            };
            return Step::Kept(view, why);
        }
    };
    if changes.is_empty() {
        memory.follower().is_the_same(&judged.verdict);
        return Step::Kept(view, "the allocation is as planned".into());
    }
    match apply(&changes, token).await {
        Ok(changed) => {
            memory.applied(&judged);
            Step::Changed(view, changed, why)
        }
        Err(failure) => {
            // Some of it may have been done and set back: then caches are cold.
            memory.follower().forget();
            Step::Failed(failure)
        }
    }
}

/// Prints what was done, as a line.
fn tell(what: &AllocateWhat, step: &Step) -> std::io::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let at = date(now);
    let line = match (step, what.json) {
        (Step::Kept(plan, why), true) => json!({ "at": at, "did": "kept", "reason": why, "plan": plan }).to_string(),
        (Step::Changed(plan, changed, why), true) => {
            json!({ "at": at, "did": "changed", "reason": why, "changed": changed, "plan": plan }).to_string()
        }
        (Step::Failed(failure), true) => {
            json!({ "at": at, "did": "failed", "error": failure.error, "hint": failure.hint }).to_string()
        }
        (Step::Kept(plan, why), false) => format!("{at}  kept     {}; {why}", print::total(plan)),
        (Step::Changed(plan, changed, why), false) => {
            format!("{at}  changed  {}; {why}: {}", print::total(plan), print::changes(changed).join("; "))
        }
        (Step::Failed(failure), false) => format!("{at}  failed   {}; it is tried again", failure.error),
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
