//! The command queue: chooses the next request.
//!
//! Shortest positioning time first (Jacobson and Wilkes, "Disk scheduling algorithms based on rotational position",
//! HPL-CSP-91-7, 1991) uses the position of the platters, and chooses the request that comes under a head first. Real
//! drives choose worse, for reasons that are parameters here: they hold few commands (`depth`), compare only some of
//! them (`window`), decide before the arm is free (`decide_ahead`), add a safety margin to their estimates (`margin`),
//! estimate coarsely (`granularity`), and bound the waiting time (`age_max`).

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
    /// How many of the oldest of these are compared.
    pub window: usize,
    /// The choice is made this long before the arm is free.
    pub decide_ahead_ns: Nanos,
    /// A sector that passes within this time after the estimated end of the seek counts as missed.
    pub margin_ns: Nanos,
    /// Estimates are rounded down to multiples of it; the oldest of equals goes first. At least 1.
    pub granularity_ns: Nanos,
    /// A request that has waited longer than this is next.
    pub age_max_ns: Nanos,
}

/// A request that needs the arm.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// The caller's number of the request.
    pub tag: Tag,
    /// Whether it writes.
    pub write: bool,
    /// Its first sector.
    pub sector: u64,
    /// Its sectors.
    pub sectors: u64,
    /// When it arrived.
    pub arrived: Nanos,
    /// When the electronics have processed it.
    pub ready_at: Nanos,
    /// When the data to be written has arrived.
    pub data_at: Nanos,
    /// The position of its first sector.
    pub place: Place,
    /// The angle of its first sector.
    pub angle_ns: Nanos,
}

/// A sector that comes under the heads anyway when the arm is free. A request for it continues there without a seek,
/// and without a missed revolution.
#[derive(Clone, Copy, Debug)]
pub struct Passing {
    /// The sector, and when it begins to pass.
    pub progress: Progress,
    /// The drive is writing; otherwise it is reading.
    pub write: bool,
}

impl Passing {
    /// Whether `request` continues here at `start` with its sectors from `sector` on. Data to be written must have
    /// arrived.
    pub fn is_for(&self, request: &Waiting, sector: u64, start: Nanos) -> bool {
        self.progress.sector == sector && self.write == request.write && !(self.write && request.data_at > start)
    }
}

impl QueueSpec {
    /// The index of the next of `waiting`, oldest first, at `now`, when the arm is free at `free_at`. A request that
    /// continues at `passing` needs no estimate.
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

    /// The drive's estimate of the time from `start`, at which the platters are at `phase`, to the first sector.
    #[inline]
    fn estimate_ns(&self, request: &Waiting, start: Nanos, phase: Nanos, arm: Arm, mechanism: &Mechanism) -> Nanos {
        let move_ns = mechanism.move_ns(arm, &request.place, request.write);
        let move_ns = move_ns.max(request.data_at.saturating_sub(start)) + self.margin_ns;
        let rotation = &mechanism.geometry.rotation;
        move_ns + rotation.wait_ns(rotation.angle_at(phase + move_ns), request.angle_ns)
    }
}
