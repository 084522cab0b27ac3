//! A disk's part of the schedule of a cluster: which tenant owns the disk at which moment of the round.
//!
//! ```text
//!   begins          + round           + 2 rounds           cluster time: the same on all servers
//!     |── a ──|─ b ─|...|── a ──|─ b ─|...|── a ──|─ b ─|
//!     ▲ slot: start and length from the beginning of the round; at ... the disk is lent
//! ```
//!
//! Each server maps its own clock to cluster time ([`Clock`]); no server tells another when a slot begins.
//!
//! Source: Wachs and Ganger, "Co-scheduling of disk head time in cluster-based storage", CMU-PDL 2008, section 4.3.

use crate::ids::TenantId;
use crate::units::Nanos;

/// Cluster time: nanoseconds since the Unix epoch, as all servers of the cluster count them.
pub type ClusterNanos = u64;

/// The slot of a tenant in each round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// The tenant, which owns the disk in it.
    pub tenant: TenantId,
    /// Its beginning, from the beginning of the round.
    pub start_ns: Nanos,
    /// Its length. A slot may end in the next round.
    pub length_ns: Nanos,
    /// The tenant has slots on several servers at the same time. Disk time that is free is lent to other tenants first.
    pub is_striped: bool,
}

/// A disk's part of a schedule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Timetable {
    /// Later schedules of the cluster have higher versions.
    pub version: u64,
    /// When it takes effect, which is the beginning of its first round. If that is past, the disk joins in progress.
    pub begins_ns: ClusterNanos,
    /// Length of the round.
    pub round_ns: Nanos,
    /// In the order of their beginnings. They do not overlap.
    pub slots: Vec<Slot>,
}

/// Why a timetable cannot be followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unfollowable {
    /// There is no round.
    #[error("the round has no length")]
    NoRound,
    /// A slot has no length, or is not inside the round.
    #[error("the slot of {0:?} is not inside the round")]
    Outside(TenantId),
    /// Two slots overlap.
    #[error("the slot of {0:?} begins before the one of {1:?} has ended")]
    Overlap(TenantId, TenantId),
}

impl Timetable {
    /// Whether a disk can follow it.
    pub fn check(&self) -> Result<(), Unfollowable> {
        if self.round_ns == 0 {
            return Err(Unfollowable::NoRound);
        }
        for slot in &self.slots {
            if slot.length_ns == 0 || slot.length_ns > self.round_ns || slot.start_ns >= self.round_ns {
                return Err(Unfollowable::Outside(slot.tenant));
            }
        }
        for (at, slot) in self.slots.iter().enumerate() {
            // The last slot ends before the first one of the next round begins.
            let (next, begins_ns) = match self.slots.get(at + 1) {
                Some(next) => (next, next.start_ns),
                None => (&self.slots[0], self.round_ns + self.slots[0].start_ns),
            };
            if slot.start_ns + slot.length_ns > begins_ns {
                return Err(Unfollowable::Overlap(next.tenant, slot.tenant));
            }
        }
        Ok(())
    }
}

/// The relation of the engine's clock to cluster time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Clock {
    /// Cluster time minus the engine's time, nanoseconds.
    pub ahead_ns: i64,
}

impl Clock {
    /// Cluster time at the engine's time `now`.
    pub fn cluster_ns(self, now: Nanos) -> ClusterNanos {
        now.saturating_add_signed(self.ahead_ns)
    }

    /// The engine's time at which cluster time is `at`; 0 if that was before the engine's time began.
    pub fn engine_ns(self, at: ClusterNanos) -> Nanos {
        at.saturating_add_signed(self.ahead_ns.saturating_neg())
    }
}
