//! The times at which this layer wants to be called, by name.

use crate::units::Nanos;

/// What becomes due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Timer {
    /// Background work of volumes: write-back for age, retries, idle streams.
    Volumes,
    /// Never-written ranges may be filled with zeros.
    Initialise,
    /// Clients that stall while others wait for frames.
    Stalls,
    /// Frames move between partitions, or retire.
    Frames,
    /// Requests that the ceilings of their tenants hold back.
    Ceilings,
    /// Requests that have waited for a lease for too long.
    Leases,
}

const NAMES: [Timer; 6] =
    [Timer::Volumes, Timer::Initialise, Timer::Stalls, Timer::Frames, Timer::Ceilings, Timer::Leases];

/// The next time of each.
#[derive(Default, Debug)]
pub(crate) struct Timers([Option<Nanos>; NAMES.len()]);

impl Timers {
    /// `name` is due at `at`, or earlier if that was asked before.
    pub(crate) fn wake_at(&mut self, name: Timer, at: Nanos) {
        let timer = &mut self.0[name as usize];
        *timer = Some(timer.map_or(at, |before| before.min(at)));
    }

    /// When the first one is due.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.0.iter().flatten().min().copied()
    }

    /// Whether `name` is due at `now`; then it is no longer set.
    pub(crate) fn take_if_due(&mut self, name: Timer, now: Nanos) -> bool {
        self.0[name as usize].take_if(|at| *at <= now).is_some()
    }

    /// Takes a name that is due at `now`.
    pub(crate) fn take_due(&mut self, now: Nanos) -> Option<Timer> {
        NAMES.into_iter().find(|&name| self.take_if_due(name, now))
    }
}
