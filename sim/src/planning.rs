//! The planner of the world's server: its answers are late, so that tenants, memory and policy change meanwhile.

use engine::control::{FRAME_BYTES, PlanRequest, Refusal};
use engine::driver::Driver as _;
use engine::ids::TenantId;
use engine::plan::{Evidence, Planner, Targets};
use engine::{Config, Event};

use crate::Verdict;
use crate::rng::Rng;
use crate::world::{Wake, World};

/// The planner of a server process, and its answer on the way.
pub(crate) struct Planning {
    planner: Planner,
    answer: Option<Box<Targets>>,
    delays: Rng,
}

impl Planning {
    /// A separate generator for the delays, so that the rest of the world of a seed does not depend on them.
    pub(crate) fn new(config: &Config, delays: Rng) -> Planning {
        Planning { planner: Planner::new(config), answer: None, delays }
    }

    /// A new server process starts; an answer to the earlier one is lost.
    pub(crate) fn restart(&mut self, config: &Config) {
        *self = Planning::new(config, self.delays.clone());
    }
}

impl World {
    /// The server sends evidence.
    pub(crate) fn evidence(&mut self, evidence: Evidence) -> Verdict {
        let Planning { planner, answer, delays } = &mut self.planning;
        if answer.replace(Box::new(planner.handle(evidence))).is_some() {
            return Err("evidence is sent although there is no answer to the last one".into());
        }
        let at = self.now + delays.below(self.setup.planner_late_ns + 1);
        self.queue.push(at, Wake::Targets(self.disk.life()));
        Ok(())
    }

    /// The planner's answer arrives.
    pub(crate) fn targets(&mut self) -> Verdict {
        let Some(targets) = self.planning.answer.take() else { return Err("there are no targets".into()) };
        self.handle(Event::Targets(targets))
    }

    /// Asks for a plan for a tenant like `like`.
    pub(crate) fn plan_like(&mut self, like: TenantId) -> Verdict {
        let snapshot = self.server.snapshot();
        let request = PlanRequest { like: Some(like), ..PlanRequest::default() };
        let is_there = snapshot.tenants.iter().any(|stats| stats.tenant == like);
        let is_new = self.planning.planner.generation() == snapshot.generation;
        match self.planning.planner.plan(request) {
            Err(Refusal::UnknownTenant) if is_there && is_new => Err(format!("{like:?} is unknown to the planner")),
            Ok(plan) if is_new && plan.free_bytes > snapshot.frames * FRAME_BYTES => {
                Err(format!("more is free than there is: {plan:?}"))
            }
            _ => Ok(()),
        }
    }
}
