//! Windows of guarantees: whether each tenant with a minimum bandwidth gets it, and the cause of each miss.
//!
//! ```text
//!   bytes delivered ──┬── W ──┬── W ──┬── W ──►      W = 15 s x guarantee; a window may take 15 s
//!                     met     missed  met
//!
//!   missed, in which the tenant had demand for
//!     at most 15 s                                   no-demand: it got its guarantee while it had demand
//!     more: share x R x own rate  < guarantee        fundamental: the guarantee does not fit into the share
//!                                 >= guarantee       avoidable: it fits, and the disk missed it
//! ```
//!
//! The own rate is the tenant's bandwidth on a dedicated disk: its bytes, divided by the standalone-equivalent time of
//! its work. R is the target, or the tenant's efficiency if the longest round is too short for R. A missed window is
//! marginal if share x R x own rate is within 5 % of the guarantee.
//!
//! A window is a number of bytes, so that windows are comparable with those of a dedicated disk. It begins with the
//! tenant's first demand. A window whose demand stops never gets its bytes. It is closed by time:
//! - as no-demand after 15 s, if the tenant had demand for less than half of it, or got its guarantee while it had
//!   demand;
//! - by the rules above, if it is late and the tenant has had no demand for 15 s.
//!
//! Downsides: a window that is served too slowly is reported late, because it lasts until its bytes are delivered.
//! Without slices the own rate is not measured. It is estimated from costs, from the profile, or, without a profile,
//! from the tenant's part of the device's busy time. That part includes the time in which the drive delays its requests
//! for others', so the own rate is too low and some avoidable misses are called fundamental.
//!
//! Source: Wachs and Ganger, "Guaranteed performance for shared storage" (CMU-PDL-10-113), sections 3.4, 5.1.6 and 5.2.

use std::collections::VecDeque;

use super::policy::Weights;
use crate::ids::TenantId;
use crate::slab::Table;
use crate::spec::Terms;
use crate::units::{Nanos, SECOND, Share};

/// The time that a window may take: that of the paper, long compared with a round.
pub const WINDOW_NS: Nanos = 15 * SECOND;
/// Interval of the checks whether a late window is to be closed: short compared with a window.
const LOOK_NS: Nanos = SECOND;
/// Missed windows that are kept of a tenant: four hours if all are missed.
pub const MISSED_MAX: usize = 1000;
/// A missed window is marginal within this distance of the threshold, thousandths.
const MARGIN_PERMILLE: u128 = 50;

/// How a window ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Miss {
    /// The tenant got its guarantee while it had demand, or it had demand for less than half of the window.
    NoDemand,
    /// The guarantee did not fit into the tenant's share.
    Fundamental,
    /// The guarantee fitted into the tenant's share.
    Avoidable,
}

/// A missed window, with the evidence for its class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// The class.
    pub miss: Miss,
    /// Whether share x R x own rate is within 5 % of the guarantee.
    pub marginal: bool,
    /// When it began, on the driver's clock.
    pub begun: Nanos,
    /// How long it took.
    pub duration_ns: Nanos,
    /// The time with demand in it.
    pub wanted_ns: Nanos,
    /// Bytes delivered in it.
    pub bytes: u64,
    /// The guarantee, bytes per second.
    pub min_bytes_per_s: u64,
    /// Disk time that the tenant had: its slices; without slices, its part of the device's busy time, by cost.
    pub owned_ns: Nanos,
    /// The standalone-equivalent time of its work in it.
    pub useful_ns: Nanos,
    /// The share, parts per billion.
    pub share_ppb: u64,
    /// R, thousandths.
    pub keep_permille: u32,
}

impl Window {
    /// What a disk of its own would have given the tenant, bytes per second; `None` if the disk did nothing for it.
    pub fn own_bytes_per_s(&self) -> Option<u64> {
        let bytes = u128::from(self.bytes) * u128::from(SECOND);
        bytes.checked_div(self.useful_ns.into()).map(|rate| rate.min(u64::MAX.into()) as u64)
    }

    /// Sets the class, from the evidence.
    fn classify(&mut self) {
        let threshold = Share::ONE.ppb() as u128 * 1000;
        // Thousandths of the guarantee.
        let due = u128::from(self.min_bytes_per_s.max(1)) * threshold / 1000;
        let fits = self
            .own_bytes_per_s()
            .map(|own| u128::from(own) * u128::from(self.share_ppb) * u128::from(self.keep_permille) / due);
        let is_demanded = self.wanted_ns > WINDOW_NS;
        self.marginal = is_demanded && fits.is_some_and(|fits| fits.abs_diff(1000) <= MARGIN_PERMILLE);
        self.miss = match fits {
            _ if !is_demanded => Miss::NoDemand,
            Some(fits) if fits < 1000 => Miss::Fundamental,
            _ => Miss::Avoidable,
        };
    }
}

/// Windows since the guarantee was set first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WindowCounts {
    /// In time.
    pub met: u64,
    /// Missed, by class.
    pub no_demand: u64,
    /// See [`Miss`].
    pub fundamental: u64,
    /// See [`Miss`].
    pub avoidable: u64,
    /// Missed and marginal.
    pub marginal: u64,
}

/// Totals of a tenant, of the books and the policy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) wanted_ns: Nanos,
    pub(crate) owned_ns: Nanos,
    pub(crate) useful_ns: Nanos,
}

/// The windows of a disk's tenants.
#[derive(Default, Debug)]
pub(crate) struct Windows {
    tracks: Table<TenantId, Track>,
}

/// A tenant's promise, and its windows if it has a guarantee.
#[derive(Debug, Default)]
struct Track {
    terms: Terms,
    /// When the present window began, and the totals at that time.
    begun: Nanos,
    before: Totals,
    /// Whether nothing was delivered in it yet.
    is_fresh: bool,
    /// Bytes delivered in it, and those among them that an earlier window had too many.
    bytes: u64,
    carried: u64,
    /// When it is looked at again if it is late.
    look_at: Nanos,
    counts: WindowCounts,
    /// The latest missed windows, oldest first. It grows with them, so it allocates at most once in a window.
    missed: VecDeque<Window>,
}

impl Track {
    /// The bytes of a window.
    fn goal(&self) -> u64 {
        self.terms.min_bytes_per_s.saturating_mul(WINDOW_NS / SECOND)
    }

    fn begin(&mut self, now: Nanos, totals: Totals, carried: u64) {
        (self.begun, self.before, self.is_fresh) = (now, totals, true);
        (self.bytes, self.carried, self.look_at) = (carried, carried, now + WINDOW_NS);
    }

    /// A fresh window begins with its first demand.
    fn settle_begin(&mut self, now: Nanos, wanted_ns: Nanos) {
        if self.is_fresh {
            self.begun = self.begun.max(now - (wanted_ns - self.before.wanted_ns).min(now));
            self.look_at = self.begun + WINDOW_NS;
        }
    }

    /// Whether the window is to be closed although bytes are missing.
    fn ends_early(&self, now: Nanos, wanted_ns: Nanos, idle_ns: Nanos) -> bool {
        let (past_ns, wanted_ns) = (now - self.begun, wanted_ns - self.before.wanted_ns);
        let due = u128::from(self.terms.min_bytes_per_s) * u128::from(wanted_ns) / u128::from(SECOND);
        let has_due = u128::from(self.bytes) >= due;
        past_ns >= WINDOW_NS
            && match wanted_ns > WINDOW_NS {
                true => idle_ns >= WINDOW_NS,
                false => has_due || 2 * wanted_ns < past_ns,
            }
    }

    fn keep(&mut self, window: Window) {
        let counts = &mut self.counts;
        *match window.miss {
            Miss::NoDemand => &mut counts.no_demand,
            Miss::Fundamental => &mut counts.fundamental,
            Miss::Avoidable => &mut counts.avoidable,
        } += 1;
        counts.marginal += u64::from(window.marginal);
        if self.missed.len() == MISSED_MAX {
            // Windows without demand say least.
            let dropped = self.missed.iter().position(|window| window.miss == Miss::NoDemand).unwrap_or(0);
            self.missed.remove(dropped);
        }
        self.missed.push_back(window);
    }
}

impl Windows {
    /// Adds a tenant, or changes its promise: then its present window is dropped.
    pub(crate) fn set_tenant(&mut self, now: Nanos, tenant: TenantId, terms: Terms, totals: Totals) {
        if self.tracks.get(tenant).is_none() {
            self.tracks.insert(tenant, Track::default());
        }
        let track = &mut self.tracks[tenant];
        if track.terms != terms || track.look_at == 0 {
            track.terms = terms;
            track.begin(now, totals, 0);
        }
    }

    /// All tenants.
    pub(crate) fn tenants(&self) -> Vec<TenantId> {
        self.tracks.iter().map(|(tenant, _)| tenant).collect()
    }

    /// Drops the tenant's present window.
    pub(crate) fn restart(&mut self, now: Nanos, tenant: TenantId, totals: Totals) {
        self.tracks[tenant].begin(now, totals, 0);
    }

    /// Forgets a tenant.
    pub(crate) fn drop_tenant(&mut self, tenant: TenantId) {
        self.tracks.remove(tenant);
    }

    /// Bytes were delivered to the tenant. Whether its window may be over: then [`Windows::is_over`] says so.
    pub(crate) fn delivered(
        &mut self,
        now: Nanos,
        tenant: TenantId,
        bytes: u64,
        wanted_ns: impl FnOnce() -> Nanos,
    ) -> bool {
        let Some(track) = self.tracks.get_mut(tenant).filter(|track| track.terms.min_bytes_per_s > 0) else {
            return false;
        };
        if track.is_fresh {
            track.settle_begin(now, wanted_ns());
            track.is_fresh = false;
        }
        track.bytes += bytes;
        track.bytes >= track.goal() || now >= track.look_at
    }

    /// Whether the tenant's window is over. The tenant has been without demand for `idle_ns`.
    pub(crate) fn is_over(&mut self, now: Nanos, tenant: TenantId, wanted_ns: Nanos, idle_ns: Nanos) -> bool {
        let Some(track) = self.tracks.get_mut(tenant).filter(|track| track.terms.min_bytes_per_s > 0) else {
            return false;
        };
        track.settle_begin(now, wanted_ns);
        if track.bytes >= track.goal() {
            return true;
        }
        if now < track.look_at {
            return false;
        }
        track.look_at = now + LOOK_NS;
        track.ends_early(now, wanted_ns, idle_ns)
    }

    /// Closes the tenant's window, and begins the next one.
    pub(crate) fn close(&mut self, now: Nanos, tenant: TenantId, totals: Totals, keep_permille: u32) {
        let track = &self.tracks[tenant];
        let (goal, duration_ns) = (track.goal(), now - track.begun);
        let whole = track.bytes / goal;
        let is_met = whole > 0 && duration_ns <= WINDOW_NS;
        // A small guarantee is met with each request, so the share is computed for missed windows only.
        let missed = (!is_met).then(|| {
            let mut window = Window {
                miss: Miss::NoDemand,
                marginal: false,
                begun: track.begun,
                duration_ns,
                wanted_ns: totals.wanted_ns - track.before.wanted_ns,
                bytes: track.bytes - track.carried,
                min_bytes_per_s: track.terms.min_bytes_per_s,
                owned_ns: totals.owned_ns.saturating_sub(track.before.owned_ns),
                useful_ns: totals.useful_ns.saturating_sub(track.before.useful_ns),
                share_ppb: self.share_ppb(tenant),
                keep_permille,
            };
            window.classify();
            window
        });
        let track = &mut self.tracks[tenant];
        // A last request that completes several windows: all but the first are met.
        track.counts.met += whole - u64::from(whole > 0 && !is_met);
        missed.into_iter().for_each(|window| track.keep(window));
        track.begin(now, totals, if whole > 0 { track.bytes % goal } else { 0 });
    }

    /// The tenant's part of the disk, parts per billion: less than its share if the shares sum to more than the disk.
    fn share_ppb(&self, tenant: TenantId) -> u64 {
        let weights = Weights::new(self.tracks.values().map(|track| track.terms.share));
        weights.part_ppb(self.tracks[tenant].terms.share)
    }

    /// The counts of a tenant; `None` without a guarantee.
    pub(crate) fn counts(&self, tenant: TenantId) -> Option<WindowCounts> {
        let track = self.tracks.get(tenant).filter(|track| track.terms.min_bytes_per_s > 0)?;
        Some(track.counts)
    }

    /// The missed windows of a tenant that are kept, oldest first.
    pub(crate) fn missed(&self, tenant: TenantId) -> Vec<Window> {
        self.tracks.get(tenant).map(|track| track.missed.iter().copied().collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
