//! The command queue: which request is next.
//!
//! Shortest positioning time first (Jacobson and Wilkes, "Disk scheduling algorithms based on rotational position",
//! HPL-CSP-91-7, 1991) knows where the platters are, and takes what comes under a head first. Real drives do worse than
//! that, for reasons that have names here: they hold few commands (`depth`), look at some of them (`window`), decide
//! before the arm is free (`decide_ahead`), do not trust their own estimate to the last microsecond (`margin`), keep it
//! coarse (`granularity`), and let nobody wait for ever (`age_max`).

use engine::units::Nanos;

use super::geometry::Place;
use super::mech::{Arm, Mechanism, Progress};
use crate::disk::drive::Tag;

/// How the next request is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// In the order of arrival.
    FirstCome,
    /// The one that the heads reach first.
    ShortestPositioning,
}

/// The queue of a drive.
#[derive(Clone, Copy, Debug)]
pub struct QueueSpec {
    /// How the next request is chosen.
    pub policy: Policy,
    /// Commands that the drive holds; later ones wait in the host, first come, first served.
    pub depth: usize,
    /// Of those, how many of the oldest are compared.
    pub window: usize,
    /// The choice is made so long before the arm is free.
    pub decide_ahead_ns: Nanos,
    /// A sector that passes sooner than that after the estimated end of the seek is thought to be missed.
    pub margin_ns: Nanos,
    /// Estimates are rounded down to multiples of it; among equals the oldest is taken. At least 1.
    pub granularity_ns: Nanos,
    /// A request that has waited so long is next.
    pub age_max_ns: Nanos,
}

/// A request that needs the arm.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// Its number.
    pub tag: Tag,
    /// It writes.
    pub write: bool,
    /// Its first sector.
    pub sector: u64,
    /// Its sectors.
    pub sectors: u64,
    /// When it came.
    pub arrived: Nanos,
    /// When the drive has understood it.
    pub ready_at: Nanos,
    /// When the data to be written has come.
    pub data_at: Nanos,
    /// Where its first sector is.
    pub place: Place,
    /// The angle of that.
    pub angle_ns: Nanos,
}

/// A sector that comes under the heads anyway, once the arm is free: a request for it goes on there, with nothing to
/// move and nothing to be missed.
#[derive(Clone, Copy, Debug)]
pub struct Passing {
    /// Which, and from where on.
    pub progress: Progress,
    /// The drive writes; it reads otherwise.
    pub write: bool,
}

impl Passing {
    /// Whether `request` goes on here at `start` with its sectors from `sector` on. What is to be written must have
    /// come.
    pub fn is_for(&self, request: &Waiting, sector: u64, start: Nanos) -> bool {
        self.progress.sector == sector && self.write == request.write && !(self.write && request.data_at > start)
    }
}

impl QueueSpec {
    /// Which of `waiting`, oldest first, is next at `now`, when the arm is free at `free_at`. For what is `passing`
    /// then, nothing needs to be estimated.
    pub fn choose(
        &self,
        waiting: &[Waiting],
        now: Nanos,
        free_at: Nanos,
        arm: Arm,
        passing: Option<Passing>,
        mechanism: &Mechanism,
    ) -> Option<usize> {
        let mut ready = waiting.iter().enumerate().take(self.depth).filter(|(_, request)| request.ready_at <= now);
        let (oldest, first) = ready.next()?;
        if self.policy == Policy::FirstCome || now.saturating_sub(first.arrived) > self.age_max_ns {
            return Some(oldest);
        }
        let start = now.max(free_at);
        let phase = mechanism.geometry.rotation.angle_at(start);
        let estimate = |request: &Waiting| {
            if passing.is_some_and(|passing| passing.is_for(request, request.sector, start)) {
                return 0;
            }
            self.estimate_ns(request, start, phase, arm, mechanism) / self.granularity_ns
        };
        let (mut best, mut least) = (oldest, estimate(first));
        for (index, request) in ready.take(self.window - 1) {
            let cost = estimate(request);
            if cost < least {
                (best, least) = (index, cost);
            }
        }
        Some(best)
    }

    /// What the drive believes: how long from `start`, at which the platters are at `phase`, to the first sector.
    #[inline]
    fn estimate_ns(&self, request: &Waiting, start: Nanos, phase: Nanos, arm: Arm, mechanism: &Mechanism) -> Nanos {
        let move_ns = mechanism.move_ns(arm, &request.place, request.write);
        let move_ns = move_ns.max(request.data_at.saturating_sub(start)) + self.margin_ns;
        let rotation = &mechanism.geometry.rotation;
        move_ns + rotation.wait_ns(rotation.angle_at(phase + move_ns), request.angle_ns)
    }
}
