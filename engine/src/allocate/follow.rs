//! Keeping an allocation up to date: what is learnt from plan to plan, and which plans are applied.
//!
//! A plan is made at an interval, from what happened since the last one. It is applied only if its predicted gain is
//! above a threshold, and only if no curve has changed since the last plan: a curve that is still changing is that of
//! no load.
//!
//! **Moves cost.** Data that a change takes from a tenant's caches and that it will want again is read from the disk
//! again. Without that, plans that are equally good by the model, such as two where two tenants have exchanged their
//! places, would follow each other, each with minutes of cold caches. So the plan minimises latencies that include
//! those reads ([`Moving`]), over the time in which it is to be worth it. Until they have been made, latencies are not
//! those of the allotment: nothing is learnt from them, and no other plan is applied ([`Watched`]).
//!
//! **What was measured counts** ([`Follower`]), while the curves are the same. Each allocation is kept until it has
//! been measured. One that was left is not returned to because the model likes it again, but only if it was better when
//! it was measured; and then always. When the model has no better plan, the divisions of other methods are tried, one
//! after the other, if the model does not find them much worse: it errs by more than they differ. So the allocation in
//! the end is the best of those that were measured. Downside: while one is tried, latencies can be higher, for the
//! minutes until its caches are full and it is measured.

use std::collections::VecDeque;

use super::Surface;
use super::curve::MissRatios;
use super::evidence::Evidence;
use super::model::Model;
use super::problem::Allotment;
use super::refine::Refinement;

/// A curve has changed if the miss ratio of any size differs by more than this from that at the last plan. The trial of
/// a curve ends with the same difference.
const CURVE_CHANGED: f64 = 0.05;
/// A curve has also changed if it differs by more than this from what it was when it last changed. After a change of
/// the load a curve takes half an hour to forget the earlier one; with 0.05 it changed ten times in that time.
const CURVE_DRIFTED: f64 = 0.15;
/// The reads that a move costs are spread over so many intervals: in this time it has to be worth it.
const REPAID_IN: f64 = 10.0;
/// Allocations whose measured cost is remembered.
const MEASURED_MAX: usize = 64;
/// Intervals for which an allocation is measured before it is left.
const MEASURED_LEAST: u32 = 2;
/// A cost that differs from the mean of its allocation by more than this part of it is that of another load.
const LOAD_CHANGED: f64 = 0.4;
/// Caches that are not full after so many intervals count as full: a tenant that seldom misses may take hours.
const FILLING_MAX: u32 = 10;
/// The threshold for plans doubles at most so often.
const DISAPPOINTED_MAX: u32 = 3;
/// A return has to gain more than this part of the present cost: caches are cold after it.
const RETURNS_AT: f64 = 0.02;
/// Divisions of other methods are tried if the model finds them worse by at most this part of the present cost: it errs
/// by up to that in mixes with writers.
const TRIED_LOSS_MAX: f64 = 0.25;
/// So many of them are tried one after the other, and one more after each of so many intervals: loads that change again
/// and again are not to have tries all the time.
const TRIES_MAX: u32 = 4;
const TRY_INTERVALS: u32 = 10;
/// When no curve has changed for so many intervals, the allocation rests: the follower tries no other method. If a plan
/// has turned out worse since the last change, it applies no other plan either.
const REST_AFTER: u32 = 30;

/// What is remembered of a tenant.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// The curves of reads and of writes at the last plan.
    last: Option<[MissRatios; 2]>,
    /// The same when one of them last changed.
    changed: Option<[MissRatios; 2]>,
    generation: u64,
    refinement: Refinement,
    /// Reads that are still to miss until its caches are full.
    to_fill: f64,
}

/// Whether what was measured is to be relied on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Steady {
    /// The curves have not changed, and the caches were full.
    #[default]
    Yes,
    /// The curves have not, but caches were still being filled.
    Filling,
    /// A curve has changed, or there was none.
    Changed,
}

/// What happened to a tenant between two plans.
#[derive(Clone, Copy, Debug)]
pub struct Lived {
    /// What it had.
    pub at: Allotment,
    /// Mean latency of its requests, nanoseconds; 0 without any.
    pub measured_ns: f64,
    /// Blocks of reads that neither tier had.
    pub missed_blocks: f64,
}

impl Watched {
    /// Learns from the evidence of a plan, and from what happened. `model_ns` is the latency that the model predicts by
    /// this evidence, nanoseconds. Each plan has another model, so earlier measurements are compared with this one.
    pub fn learn(&mut self, evidence: &Evidence, lived: Lived, model_ns: impl Fn(Allotment) -> f64) -> Steady {
        let Lived { at, measured_ns, missed_blocks } = lived;
        let was_full = self.to_fill <= 0.0;
        self.to_fill = (self.to_fill - missed_blocks).max(0.0);
        let curves = [evidence.reads.clone(), evidence.writes.clone()];
        let is_within = |earlier: &Option<[MissRatios; 2]>, most: f64| {
            let near = |earlier: &[MissRatios; 2]| earlier.iter().zip(&curves).all(|(a, b)| a.distance(b) <= most);
            earlier.as_ref().is_some_and(near)
        };
        let is_same = is_within(&self.last, CURVE_CHANGED) && is_within(&self.changed, CURVE_DRIFTED);
        if !is_same {
            self.generation += 1;
            self.changed = Some(curves.clone());
        }
        self.last = Some(curves);
        if was_full && measured_ns > 0.0 && model_ns(at) > 0.0 {
            self.refinement.add(self.generation, at, measured_ns, model_ns(at));
            self.refinement.predicted(model_ns);
            self.refinement.fit();
        }
        match (is_same, was_full) {
            (false, _) => Steady::Changed,
            (true, false) => Steady::Filling,
            (true, true) => Steady::Yes,
        }
    }

    /// Its allotment has changed, after which so many reads miss until its caches are full.
    pub fn moved(&mut self, refill_reads: f64) {
        self.to_fill += refill_reads;
    }

    /// The corrections of the model by what was measured.
    pub fn refinement(&self) -> &Refinement {
        &self.refinement
    }

    /// Forgets what was measured: allotments are in steps of another grid from now on.
    pub fn forget(&mut self) {
        self.refinement = Refinement::new();
    }
}

/// Latencies with what it costs to get there. A surface.
pub struct Moving<'a, S> {
    surface: S,
    model: &'a Model,
    present: &'a [Allotment],
    /// By tenant: what one more read of the disk adds to the mean latency, nanoseconds.
    read_ns: Vec<f64>,
}

impl<'a, S: Surface> Moving<'a, S> {
    /// `surface` has the latencies of the long run, `every_ns` is the interval between plans.
    pub fn new(surface: S, model: &'a Model, present: &'a [Allotment], every_ns: f64) -> Moving<'a, S> {
        let references = every_ns / 1e9 * REPAID_IN;
        let of = |(tenant, at): (usize, &Allotment)| {
            let prediction = model.predict(tenant, *at);
            let wanted = prediction.references_per_second * references;
            if wanted > 0.0 { prediction.disk_ns / wanted } else { 0.0 }
        };
        let read_ns = present.iter().enumerate().map(of).collect();
        Moving { surface, model, present, read_ns }
    }
}

impl<S: Surface> Surface for Moving<'_, S> {
    fn latency_ns(&self, tenant: usize, at: Allotment) -> f64 {
        let from = self.present[tenant];
        let moves_ns = match from == at {
            true => 0.0,
            false => self.model.refill_reads(tenant, from, at) * self.read_ns[tenant],
        };
        self.surface.latency_ns(tenant, at) + moves_ns
    }
}

/// What is to be done with a plan.
#[derive(Clone, PartialEq, Debug)]
pub enum Verdict {
    /// Nothing: the present allocation is the planned one.
    AsPlanned,
    /// Nothing: what was measured is not to be relied on.
    Unsteady(Steady),
    /// Nothing: the present allocation has not been measured for long enough.
    Brief,
    /// Nothing: the gain is not above the threshold, which is this part of the present cost.
    Small(f64),
    /// Nothing: no curve has changed for [`REST_AFTER`] intervals, and a plan that was applied since then was worse
    /// than predicted.
    Rests,
    /// Nothing: the planned allocation was measured, and its gain is this part of the present cost.
    Measured(f64),
    /// Apply it.
    Apply,
    /// Apply this earlier allocation in its place: measured, it gained this part of the present cost.
    Return(Vec<Allotment>, f64),
    /// Apply this one of [`Candidate::others`], the index of which follows, to measure it.
    Try(Vec<Allotment>, usize),
}

impl Verdict {
    /// The allocation that is to be applied, if one is; `planned` is that of the plan.
    pub fn applies<'a>(&'a self, planned: &'a [Allotment]) -> Option<&'a [Allotment]> {
        match self {
            Verdict::Apply => Some(planned),
            Verdict::Return(to, _) | Verdict::Try(to, _) => Some(to),
            _ => None,
        }
    }
}

/// A plan to be judged.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// What the tenants have.
    pub present: &'a [Allotment],
    /// What they would have.
    pub planned: &'a [Allotment],
    /// What they would have by other methods, always in the same order, with the predicted gain, a part of the present
    /// cost.
    pub others: &'a [(Vec<Allotment>, f64)],
    /// Of the tenant of which it is worst.
    pub steady: Steady,
    /// Cost of the measured latencies by the goal.
    pub measured: f64,
    /// The predicted gain, a part of the present cost.
    pub gain: f64,
}

/// Decides which plans are applied.
#[derive(Clone, Debug)]
pub struct Follower {
    threshold: f64,
    /// Whether it returns and tries.
    returns: bool,
    /// Allocations since the curves or the load last changed; the latest last.
    measured: VecDeque<Measured>,
    /// Since then, plans that turned out to be worse than an earlier allocation. Each doubles the threshold: otherwise
    /// a model that errs would make new plans for ever.
    disappointed: u32,
    /// Since then, the other methods whose divisions were tried.
    tried: Vec<usize>,
    /// The present allocation is one of these.
    is_trying: bool,
    /// Intervals with caches that are full since the last change of the allocation.
    here: u32,
    /// Intervals since then in which caches were being filled.
    filling: u32,
    /// Tries that are left, intervals since there was one more, and intervals since a curve changed.
    tries: u32,
    intervals: u32,
    unchanged: u32,
}

/// The measured costs of an allocation.
#[derive(Clone, Debug)]
struct Measured {
    allocation: Vec<Allotment>,
    sum: f64,
    intervals: u32,
}

impl Measured {
    /// The mean.
    fn cost(&self) -> f64 {
        self.sum / f64::from(self.intervals)
    }
}

impl Follower {
    /// With the gain that a plan that is applied has to exceed, a part of the present cost.
    pub fn new(threshold: f64) -> Follower {
        Follower {
            threshold,
            returns: true,
            measured: VecDeque::new(),
            disappointed: 0,
            tried: Vec::new(),
            is_trying: false,
            here: 0,
            filling: 0,
            tries: TRIES_MAX,
            intervals: 0,
            unchanged: 0,
        }
    }

    /// The same without returns and tries: for goals the cost of which is no sum of latencies, so that a part of it
    /// says nothing.
    pub fn without_returns(self) -> Follower {
        Follower { returns: false, ..self }
    }

    /// What is to be done with a plan. Call it once for each interval. It returns only to what `permits` permits.
    pub fn judge(&mut self, plan: Candidate<'_>, permits: impl Fn(&[Allotment]) -> bool) -> Verdict {
        self.filling = if plan.steady == Steady::Filling { self.filling + 1 } else { 0 };
        let steady = if self.filling > FILLING_MAX { Steady::Yes } else { plan.steady };
        let plan = Candidate { steady, ..plan };
        self.remember(plan);
        self.intervals += 1;
        self.unchanged = if steady == Steady::Changed { 0 } else { self.unchanged.saturating_add(1) };
        if self.intervals == TRY_INTERVALS {
            (self.tries, self.intervals) = ((self.tries + 1).min(TRIES_MAX), 0);
        }
        let is_planned = plan.planned == plan.present;
        if steady != Steady::Yes {
            return if is_planned { Verdict::AsPlanned } else { Verdict::Unsteady(steady) };
        }
        self.here = self.here.saturating_add(1);
        if self.here < MEASURED_LEAST {
            return Verdict::Brief;
        }
        let now = self.of(plan.present).expect("it is remembered").cost();
        let gain = |cost: f64| (now - cost) / now.abs().max(f64::MIN_POSITIVE);
        if let Some(best) = self.best(permits).filter(|best| gain(best.cost()) > RETURNS_AT) {
            return Verdict::Return(best.allocation.clone(), gain(best.cost()));
        }
        let measured = self.of(plan.planned).map(|planned| gain(planned.cost()));
        let threshold = self.threshold * f64::from(self.disappointed).exp2();
        let is_better = measured.is_none_or(|gain| !self.returns && gain > threshold) && plan.gain > threshold;
        if !is_planned && is_better {
            let rests = self.unchanged > REST_AFTER && self.disappointed > 0;
            return if rests { Verdict::Rests } else { Verdict::Apply };
        }
        if let Some((method, other)) = self.untried(plan.others) {
            return Verdict::Try(other.clone(), method);
        }
        match measured {
            _ if is_planned => Verdict::AsPlanned,
            Some(gain) if plan.gain > threshold => Verdict::Measured(gain),
            _ => Verdict::Small(threshold),
        }
    }

    /// What was decided was done.
    pub fn applied(&mut self, verdict: &Verdict) {
        (self.here, self.filling) = (0, 0);
        if let Verdict::Return(..) = verdict
            && !self.is_trying
        {
            self.disappointed = (self.disappointed + 1).min(DISAPPOINTED_MAX);
        }
        self.is_trying = matches!(verdict, Verdict::Try(..));
        if let Verdict::Try(_, method) = verdict {
            self.tries -= 1;
            self.tried.push(*method);
        }
    }

    /// What was decided makes no difference to what tenants have.
    pub fn is_the_same(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Return(to, _) => self.measured.retain(|of| of.allocation != *to),
            Verdict::Try(_, method) => self.tried.push(*method),
            _ => {}
        }
    }

    /// Forgets what was measured: tenants are others from now on, or have other latencies, or allotments are in steps
    /// of another grid.
    pub fn forget(&mut self) {
        (self.disappointed, self.unchanged) = (0, 0);
        self.tried.clear();
        self.measured.clear();
    }

    fn remember(&mut self, plan: Candidate<'_>) {
        let is_other = |of: &Measured| (plan.measured - of.cost()).abs() > LOAD_CHANGED * of.cost().abs();
        let is_other = plan.steady == Steady::Yes && self.of(plan.present).is_some_and(is_other);
        if plan.steady == Steady::Changed || is_other {
            self.forget();
        }
        if plan.steady != Steady::Yes {
            return;
        }
        let mut here = match self.measured.iter().position(|of| of.allocation == plan.present) {
            Some(at) => self.measured.remove(at).expect("it is there"),
            None => Measured { allocation: plan.present.to_vec(), sum: 0.0, intervals: 0 },
        };
        (here.sum, here.intervals) = (here.sum + plan.measured, here.intervals + 1);
        self.measured.push_back(here);
        if self.measured.len() > MEASURED_MAX {
            self.measured.pop_front();
        }
    }

    /// The allocation that was the best when it was measured.
    fn best(&self, permits: impl Fn(&[Allotment]) -> bool) -> Option<&Measured> {
        let can_be = |of: &&Measured| self.returns && of.intervals >= MEASURED_LEAST && permits(&of.allocation);
        self.measured.iter().filter(can_be).min_by(|a, b| a.cost().total_cmp(&b.cost()))
    }

    /// The best of the other methods' divisions that were not tried, by the model, and the index of the method.
    fn untried<'a>(&self, others: &'a [(Vec<Allotment>, f64)]) -> Option<(usize, &'a Vec<Allotment>)> {
        if !self.returns || self.tries == 0 || self.unchanged > REST_AFTER {
            return None;
        }
        let is_untried = |&(method, (other, gain)): &(usize, &(Vec<Allotment>, f64))| {
            !self.tried.contains(&method) && *gain >= -TRIED_LOSS_MAX && self.of(other).is_none()
        };
        let untried = others.iter().enumerate().filter(is_untried);
        untried.max_by(|a, b| a.1.1.total_cmp(&b.1.1)).map(|(method, (other, _))| (method, other))
    }

    /// What was measured of an allocation.
    fn of(&self, allocation: &[Allotment]) -> Option<&Measured> {
        self.measured.iter().find(|of| of.allocation == allocation)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::tiers::evidence;
    use super::super::{Bounds, Disk, Grid, Problem, Tenant, Tiers};
    use super::*;
    use crate::units::BLOCK;

    const HERE: [Allotment; 1] = [Allotment { first: 1, second: 1, share: 1 }];
    const THERE: [Allotment; 1] = [Allotment { first: 2, second: 1, share: 1 }];

    fn candidate(gain: f64) -> Candidate<'static> {
        Candidate { present: &HERE, planned: &THERE, others: &[], steady: Steady::Yes, measured: 100.0, gain }
    }

    #[test]
    fn a_plan_has_to_differ_to_be_relied_on_and_to_gain() {
        let mut follower = Follower::new(0.02);
        let mut judge = |plan| follower.judge(plan, |_| true);
        for steady in [Steady::Changed, Steady::Filling] {
            assert_eq!(judge(Candidate { steady, ..candidate(1.0) }), Verdict::Unsteady(steady));
        }
        assert_eq!(judge(candidate(1.0)), Verdict::Brief, "what is left has to be known");
        assert_eq!(judge(Candidate { planned: &HERE, ..candidate(1.0) }), Verdict::AsPlanned);
        assert_eq!(judge(candidate(0.02)), Verdict::Small(0.02));
        assert_eq!(judge(candidate(f64::NAN)), Verdict::Small(0.02), "costs that are not finite");
        assert_eq!(judge(candidate(0.03)), Verdict::Apply);
    }

    /// What a follower does with a plan as soon as it does something, at the second interval with full caches.
    fn act(follower: &mut Follower, plan: Candidate<'_>) -> Verdict {
        assert_eq!(follower.judge(plan, |_| true), Verdict::Brief);
        let verdict = follower.judge(plan, |_| true);
        follower.applied(&verdict);
        verdict
    }

    #[test]
    fn what_was_worse_is_not_returned_to_and_what_was_better_is() {
        let mut follower = Follower::new(0.05);
        assert_eq!(act(&mut follower, candidate(0.1)), Verdict::Apply);
        let back = Candidate { present: &THERE, planned: &HERE, measured: 90.0, ..candidate(0.1) };
        let filling = Candidate { steady: Steady::Filling, measured: 500.0, ..back };
        assert_eq!(follower.judge(filling, |_| true), Verdict::Unsteady(Steady::Filling));
        assert_eq!(follower.judge(back, |_| true), Verdict::Brief);
        let Verdict::Measured(gain) = follower.judge(back, |_| true) else { panic!("{follower:?}") };
        assert!((gain + 0.111).abs() < 0.001, "{gain}");
        let worse = |measured| Candidate { planned: &THERE, measured, ..back };
        assert_eq!(follower.judge(worse(124.0), |_| true), Verdict::AsPlanned, "101 on average");
        let not_there = |at: &[Allotment]| at != HERE;
        assert_eq!(follower.clone().judge(worse(134.0), not_there), Verdict::AsPlanned, "a promise needs more now");
        let verdict = follower.judge(worse(134.0), |_| true);
        let Verdict::Return(to, gain) = &verdict else { panic!("{follower:?}") };
        assert_eq!(to, &HERE, "whatever the model says");
        assert!((gain - 0.09).abs() < 0.01, "110 on average: {gain}");
        follower.applied(&verdict);
        let next = [Allotment { first: 3, second: 1, share: 1 }];
        let plan = |gain| Candidate { planned: &next, ..candidate(gain) };
        let verdict = act(&mut follower, plan(0.1));
        assert_eq!(verdict, Verdict::Small(0.1), "the model was wrong: it has to promise twice as much");
        assert_eq!(act(&mut follower, plan(0.11)), Verdict::Apply);
        follower.judge(Candidate { steady: Steady::Changed, ..back }, |_| true);
        assert_eq!(act(&mut follower, back), Verdict::Apply, "with other curves that is forgotten");
        let other_load = Candidate { measured: 150.0, ..candidate(0.06) };
        assert_eq!(follower.judge(candidate(0.0), |_| true), Verdict::Brief);
        assert_eq!(follower.judge(other_load, |_| true), Verdict::Apply, "and with another load");
    }

    #[test]
    fn an_allocation_comes_to_rest_after_a_plan_that_was_wrong() {
        let next = [Allotment { first: 3, second: 1, share: 1 }];
        let plan = |gain| Candidate { planned: &next, ..candidate(gain) };
        let after_an_hour = |follower: &mut Follower| {
            (0..60).for_each(|_| _ = follower.judge(plan(0.0), |_| true));
            follower.judge(plan(0.5), |_| true)
        };
        let mut follower = Follower::new(0.05);
        assert_eq!(after_an_hour(&mut follower.clone()), Verdict::Apply);
        assert_eq!(act(&mut follower, candidate(0.1)), Verdict::Apply);
        let worse = Candidate { present: &THERE, planned: &HERE, measured: 120.0, ..candidate(0.1) };
        assert!(matches!(act(&mut follower, worse), Verdict::Return(..)));
        assert_eq!(after_an_hour(&mut follower), Verdict::Rests);
        follower.judge(Candidate { steady: Steady::Changed, ..plan(0.5) }, |_| true);
        assert_eq!(follower.judge(plan(0.5), |_| true), Verdict::Apply);
    }

    #[test]
    fn caches_that_do_not_become_full_count_as_full_in_the_end() {
        let mut follower = Follower::new(0.05);
        let filling = Candidate { steady: Steady::Filling, ..candidate(0.1) };
        let done: Vec<Verdict> = (0..12).map(|_| follower.judge(filling, |_| true)).collect();
        assert_eq!(done[9..], [Verdict::Unsteady(Steady::Filling), Verdict::Brief, Verdict::Apply]);
    }

    #[test]
    fn divisions_of_other_methods_are_tried_once_unless_they_are_much_worse() {
        let other = |share| vec![Allotment { first: 3, second: 3, share }];
        let others = [(other(1), -0.2), (other(2), -0.1), (other(3), -0.3), (other(4), -0.25)];
        let plan = Candidate { planned: &HERE, others: &others, ..candidate(0.0) };
        let mut follower = Follower::new(0.05);
        assert_eq!(act(&mut follower.clone().without_returns(), plan), Verdict::AsPlanned);
        assert_eq!(act(&mut follower, plan), Verdict::Try(other(2), 1), "the best of them first");
        let there = |follower: &mut Follower, present: &[Allotment], measured| {
            act(follower, Candidate { present, measured, ..plan })
        };
        assert_eq!(there(&mut follower, &other(2), 80.0), Verdict::Try(other(1), 0));
        let Verdict::Return(to, gain) = there(&mut follower, &other(1), 160.0) else { panic!("{follower:?}") };
        assert_eq!((to, gain), (other(2), 0.5));
        let rest = Candidate { present: &other(2), measured: 80.0, ..plan };
        let verdict = Verdict::Try(other(4), 3);
        assert_eq!(
            [(); 3].map(|()| follower.judge(rest, |_| true)),
            [Verdict::Brief, verdict.clone(), verdict.clone()]
        );
        follower.is_the_same(&verdict);
        assert_eq!(follower.judge(rest, |_| true), Verdict::Small(0.05), "the best of all");
        // Loads change again and again.
        let changed = Candidate { steady: Steady::Changed, ..plan };
        let mut tries = 0;
        for _ in 0..100 {
            follower.judge(changed, |_| true);
            let _ = [(); 2].map(|()| follower.judge(plan, |_| true));
            let verdict = follower.judge(plan, |_| true);
            tries += u32::from(matches!(verdict, Verdict::Try(..)));
            follower.applied(&verdict);
        }
        let renewed = 400 / TRY_INTERVALS;
        assert!((renewed..=renewed + TRIES_MAX).contains(&tries), "{tries}");
    }

    /// 100 blocks that are all read equally often: a cache of half of them is exchanged for another one.
    #[test]
    fn a_move_costs_the_reads_that_fill_caches_again() {
        let ratios = MissRatios::new((0..=100).map(|blocks| (blocks * BLOCK, 1.0 - blocks as f64 / 100.0)));
        let problem = Problem {
            grid: Grid { cache_step_bytes: 10 * BLOCK, share_steps: 1 },
            gateways: vec![10],
            servers: vec![10],
            disks: vec![Disk { server: 0, share: 1 }],
            tenants: vec![Tenant {
                gateway: Some(0),
                disk: 0,
                bounds: Bounds::at_least(Allotment { first: 0, second: 0, share: 1 }),
            }],
        };
        let model = Model::new(&problem, vec![evidence(Tiers::Lru, ratios)]);
        let at = |first, second| Allotment { first, second, share: 1 };
        let reads = |from, to| model.refill_reads(0, from, to);
        assert_eq!(reads(at(5, 0), at(5, 0)), 0.0);
        assert_eq!(reads(at(5, 5), at(5, 0)), 0.0, "the first tier has it all");
        assert_eq!(reads(at(8, 0), at(5, 0)), 0.0, "what is taken away need not be filled");
        // Half of them, of which the more are there, the fewer reads miss that would not miss in the long run:
        // the sum of (x - 0.5) / x, with x from 1 down to 0.5, is 100 (0.5 - 0.5 ln 2); a little less, as plans count
        // on more misses in the long run.
        assert!((reads(at(5, 0), at(0, 5)) - 15.2).abs() < 0.1, "{}", reads(at(5, 0), at(0, 5)));
        let present = [at(5, 0)];
        let moving = Moving::new(|_: usize, _: Allotment| 7.0, &model, &present, 1e9);
        let prediction = model.predict(0, present[0]);
        let expected = 15.2 * prediction.disk_ns / (REPAID_IN * prediction.references_per_second);
        assert_eq!(moving.latency_ns(0, present[0]), 7.0);
        assert!((moving.latency_ns(0, at(0, 5)) - 7.0 - expected).abs() < 0.01 * expected);
    }

    #[test]
    fn what_was_measured_is_forgotten_with_the_curve() {
        let of = |ratio| evidence(Tiers::Lru, MissRatios::new([(4096, ratio)]));
        let lived = |second, measured_ns| {
            let at = Allotment { first: 1, second, share: 1 };
            Lived { at, measured_ns, missed_blocks: 60.0 }
        };
        let mut watched = Watched::default();
        assert_eq!(watched.learn(&of(0.5), lived(1, 2.0), |_| 1.0), Steady::Changed, "there was no plan before");
        assert_eq!(watched.learn(&of(0.54), lived(2, 2.0), |_| 1.0), Steady::Yes);
        assert_eq!(watched.refinement().samples(), 2);
        assert_eq!(watched.learn(&of(0.54), lived(3, 0.0), |_| 1.0), Steady::Yes, "nothing was measured");
        assert_eq!(watched.refinement().samples(), 2);
        assert_eq!(watched.learn(&of(0.6), lived(2, 2.0), |_| 1.0), Steady::Changed);
        assert_eq!(watched.refinement().samples(), 1);
        let drift = [0.64, 0.68, 0.72, 0.76, 0.6].map(|ratio| watched.learn(&of(ratio), lived(2, 2.0), |_| 1.0));
        assert_eq!(drift, [Steady::Yes, Steady::Yes, Steady::Yes, Steady::Changed, Steady::Changed]);
        watched.moved(100.0);
        let learnt = [2, 3, 4]
            .map(|second| (watched.learn(&of(0.6), lived(second, 2.0), |_| 1.0), watched.refinement().samples()));
        assert_eq!(
            learnt,
            [(Steady::Filling, 1), (Steady::Filling, 1), (Steady::Yes, 2)],
            "100 reads are to miss, 60 do between two plans"
        );
        watched.forget();
        assert_eq!(watched.refinement().samples(), 0);
    }
}
