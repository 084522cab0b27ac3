//! Keeping an allocation up to date: what is learnt from plan to plan, and which plans are applied.
//!
//! A plan is made at an interval, from what happened since the last one. It is applied only if its predicted gain is
//! above a threshold, and only if no curve has changed since the last plan: a curve that is still changing is that of
//! no load. Each recent change doubles the threshold: where the model is wrong, it predicts gains that do not come. So
//! a stable load moves nothing after the first changes.

use std::collections::VecDeque;

use super::curve::MissRatios;
use super::evidence::Evidence;
use super::problem::Allotment;
use super::refine::Refinement;

/// A curve has changed if the miss ratio of any size differs by more than this: as at the end of a trial.
const CURVE_CHANGED: f64 = 0.05;
/// Changes in so many plans count as recent.
const RECENT_PLANS: usize = 10;
/// The largest factor of the threshold.
const FACTOR_MAX: f64 = 16.0;

/// What is remembered of a tenant.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// Of reads and of writes, at the last plan.
    curves: Option<[MissRatios; 2]>,
    generation: u64,
    refinement: Refinement,
}

impl Watched {
    /// Learns from the evidence of a plan and from a mean latency that was measured with this allotment, for which the
    /// model predicts `model_ns`; 0 if there was none. Returns whether the curves are those of the last plan.
    pub fn learn(&mut self, evidence: &Evidence, at: Allotment, measured_ns: f64, model_ns: f64) -> bool {
        let curves = [evidence.reads.clone(), evidence.writes.clone()];
        let same = |before: &[MissRatios; 2]| {
            before.iter().zip(&curves).all(|(before, now)| before.distance(now) <= CURVE_CHANGED)
        };
        let is_same = self.curves.as_ref().is_some_and(same);
        self.generation += u64::from(!is_same);
        self.curves = Some(curves);
        if measured_ns > 0.0 && model_ns > 0.0 {
            self.refinement.add(self.generation, at, measured_ns, model_ns);
            self.refinement.fit();
        }
        is_same
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

/// What is to be done with a plan.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Verdict {
    /// Nothing: the present allocation is the planned one.
    AsPlanned,
    /// Nothing: a curve has changed since the last plan, or there was none.
    Unstable,
    /// Nothing: the gain is at most this threshold, a part of the present cost.
    Small(f64),
    /// Apply it.
    Apply,
}

/// Decides which plans are applied.
#[derive(Clone, Debug)]
pub struct Follower {
    threshold: f64,
    /// Whether the last plans were applied.
    recent: VecDeque<bool>,
}

impl Follower {
    /// With the least gain of a plan that is applied when none was recently, a part of the present cost.
    pub fn new(threshold: f64) -> Follower {
        Follower { threshold, recent: VecDeque::from([false; RECENT_PLANS]) }
    }

    /// What is to be done with a plan that differs from the present allocation or not, and has this gain.
    pub fn judge(&self, is_different: bool, is_stable: bool, gain: f64) -> Verdict {
        let changes = self.recent.iter().filter(|was_applied| **was_applied).count();
        let threshold = self.threshold * (changes as f64).exp2().min(FACTOR_MAX);
        match () {
            () if !is_different => Verdict::AsPlanned,
            () if !is_stable => Verdict::Unstable,
            () if gain <= threshold => Verdict::Small(threshold),
            () => Verdict::Apply,
        }
    }

    /// Notes at the end of each interval whether a plan was applied.
    pub fn note(&mut self, was_applied: bool) {
        self.recent.pop_front();
        self.recent.push_back(was_applied);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tiers;
    use super::super::tests::tiers::evidence;
    use super::*;

    #[test]
    fn each_recent_change_doubles_the_threshold() {
        let mut follower = Follower::new(0.02);
        assert_eq!(follower.judge(false, false, 1.0), Verdict::AsPlanned);
        assert_eq!(follower.judge(true, false, 1.0), Verdict::Unstable);
        assert_eq!(follower.judge(true, true, 0.02), Verdict::Small(0.02));
        assert_eq!(follower.judge(true, true, 0.03), Verdict::Apply);
        let thresholds = [0.04, 0.08, 0.16, 0.32, 0.32].map(|threshold| {
            follower.note(true);
            follower.judge(true, true, 0.0) == Verdict::Small(threshold)
        });
        assert_eq!(thresholds, [true; 5], "{follower:?}");
        (0..RECENT_PLANS).for_each(|_| follower.note(false));
        assert_eq!(follower.judge(true, true, 0.0), Verdict::Small(0.02));
    }

    #[test]
    fn what_was_measured_is_forgotten_with_the_curve() {
        let of = |ratio| evidence(Tiers::Lru, MissRatios::new([(4096, ratio)]));
        let at = |second| Allotment { first: 1, second, share: 1 };
        let mut watched = Watched::default();
        assert!(!watched.learn(&of(0.5), at(1), 2.0, 1.0), "there was no plan before");
        assert!(watched.learn(&of(0.54), at(2), 2.0, 1.0));
        assert_eq!(watched.refinement().samples(), 2);
        assert!(watched.learn(&of(0.54), at(3), 0.0, 1.0), "nothing was measured");
        assert_eq!(watched.refinement().samples(), 2);
        assert!(!watched.learn(&of(0.6), at(2), 2.0, 1.0));
        assert_eq!(watched.refinement().samples(), 1);
        watched.forget();
        assert_eq!(watched.refinement().samples(), 0);
    }
}
