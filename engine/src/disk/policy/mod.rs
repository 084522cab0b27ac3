//! Scheduling policies: one trait, and a file or folder for each policy.

mod baselines;
mod estimates;
mod fair;
mod follow;
mod insulated;
mod kind;
mod none;
mod price;
mod weights;

use super::Op;
use super::profile::Direction;
use super::queue::{Entry, cost_ns};
use super::slices::{Slicing, Slot, View};
use crate::cluster::{Clock, Timetable};
use crate::dice::Dice;
use crate::ids::TenantId;
use crate::spec::Terms;
use crate::units::{BLOCK, Nanos, SECOND, Share};

pub use super::books::{Count, DiskTime, Usage};
pub use super::lanes::STUCK_NS;
pub(crate) use super::slices::FOLLOWING_BYTES;
pub use super::slices::{SLICES_KEPT, Slice};
pub use fair::{HELD_BY_TURNS_NS, PACE_DEBT_NS};
pub use kind::{Kind, UnknownKind};
pub use price::Prices;
pub(crate) use weights::Weights;

/// The parts of the disk's time, 0 to 1, that tenants with these shares get while all of them are backlogged.
pub(crate) fn weights(shares: &[Option<Share>]) -> Vec<f64> {
    let weights = weights::Weights::new(shares.iter().copied());
    shares.iter().map(|&share| weights.of(share) as f64 / weights.sum_ppb as f64).collect()
}

/// No policy limits requests to less than this, the size of a block of the cache.
pub(crate) const REQUEST_BYTES_LEAST: u64 = BLOCK;

/// The settings of a policy.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings {
    /// The kind of policy.
    pub kind: Kind,
    /// Maximum number of requests in the device.
    pub depth: u32,
    /// R: the fraction of its standalone efficiency that a tenant keeps, in thousandths, below 1000.
    pub insulation_permille: u32,
    /// The switch cost of the profile, which stands for the loss of a slice until that is measured.
    pub switch_ns: Nanos,
    /// Maximum length of a round.
    pub round_max_ns: Nanos,
    /// Whether tenants need slices, because context switches cost much. Otherwise requests of all tenants are in the
    /// device together.
    pub needs_slices: bool,
    /// Costs of requests on a device that needs no slices.
    pub prices: Prices,
    /// The highest sequential read rate of the device, bytes a second.
    pub stream_bytes_per_s: u64,
    /// Seed of the policies that draw at random.
    pub seed: u64,
}

/// Smallest read-ahead, bytes, also where there is no seek to amortise: Linux's read-ahead on a disk.
const PREFETCH_LEAST: u64 = 128 << 10;
/// Largest read-ahead, bytes: data that is read in vain when a stream stops takes no longer than a slice.
const PREFETCH_MOST: u64 = 16 << 20;

impl Settings {
    /// Whether tenants own the disk in slices.
    pub fn has_slices(&self) -> bool {
        self.kind == Kind::Insulated && self.needs_slices
    }

    /// Size of one read-ahead, bytes: so large that the seek takes at most 1 - R of the time, that is, that the
    /// transfer takes R / (1 - R) times as long as the seek (Argon, sections 3.1 and 4).
    pub fn prefetch_bytes(&self) -> u64 {
        if !self.has_slices() {
            return PREFETCH_LEAST;
        }
        let keep = u128::from(self.insulation_permille.min(999));
        let transfer_ns = u128::from(self.switch_ns) * keep / (1000 - keep);
        let bytes = transfer_ns.saturating_mul(self.stream_bytes_per_s.into()) / u128::from(SECOND);
        bytes.clamp(PREFETCH_LEAST.into(), PREFETCH_MOST.into()) as u64 / BLOCK * BLOCK
    }

    /// Creates the policy, without tenants; if it has slices and `follows`, one that follows a schedule.
    pub(crate) fn build(self, follows: bool) -> Box<dyn Policy> {
        match self.kind {
            Kind::Insulated if self.needs_slices && follows => Box::new(follow::Follow::new(self)),
            Kind::Insulated if self.needs_slices => Box::new(insulated::Insulated::new(self)),
            Kind::Insulated => Box::new(fair::Fair::new(self)),
            Kind::None => Box::new(none::None::new(&self)),
            Kind::TokenBucket { rate_permille } => self.baseline(baselines::TokenBucket::new(rate_permille)),
            Kind::PClock { latency_ns } => self.baseline(baselines::PClock::new(latency_ns)),
            Kind::Sfq => self.baseline(baselines::Sfq::default()),
            Kind::Edf { latency_ns } => self.baseline(baselines::Edf::new(latency_ns)),
            Kind::Lottery => self.baseline(baselines::Lottery::new(Dice::new(self.seed))),
            Kind::Facade { latency_ns } => self.baseline(baselines::Facade::new(latency_ns, self.depth)),
            Kind::MClock { limit_permille } => self.baseline(baselines::MClock::new(limit_permille)),
        }
    }

    fn baseline<R: baselines::Rule + 'static>(&self, rule: R) -> Box<dyn Policy> {
        Box::new(baselines::Baseline::new(self, rule))
    }

    /// Whether tenants are promised a fraction of their standalone throughput.
    pub fn insulates(&self) -> bool {
        self.kind == Kind::Insulated
    }

    /// Whether requests of all tenants are in the device together, ordered by cost. Then the standalone-equivalent time
    /// of a tenant's work has its pauses.
    pub(crate) fn is_by_cost(&self) -> bool {
        self.kind == Kind::Insulated && !self.needs_slices
    }

    /// Whether these settings need another policy than `before`. Other prices do, because costs by different prices
    /// cannot be told apart.
    pub(crate) fn is_other(&self, before: &Settings) -> bool {
        let prices = |settings: &Settings| settings.is_by_cost().then_some(settings.prices);
        self.kind != before.kind || prices(self) != prices(before)
    }
}

/// The plan of a policy for a tenant, and the measurements that it rests on.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct TenantPlan {
    /// Length of its slice in each round.
    pub slice_ns: Nanos,
    /// Length of the round.
    pub round_ns: Nanos,
    /// Number of rounds so far.
    pub rounds: u64,
    /// The sum of their lengths as planned, which change with measured losses.
    pub rounds_ns: Nanos,
    /// Its recent mean loss per slice, to the switch, the drain and rounding.
    pub loss_ns: Nanos,
    /// The fraction of its slices that it does not lose, in thousandths: its efficiency of disk time.
    pub efficiency_permille: u32,
    /// Standalone-equivalent time of its work, derived from its own slices (or from costs, where there are no slices).
    pub useful_ns: Nanos,
    /// By how much that may be off in each direction, because it is estimated from the profile; 0 where it is measured.
    pub uncertain_ns: Nanos,
    /// Number of its slices.
    pub slices: u64,
    /// What the context switches at their beginnings have cost.
    pub switches_ns: Nanos,
    /// Recent mean of the time at the end of its slices in which no request was issued, as it would not have completed.
    pub closing_ns: Nanos,
    /// Disk time by which it exceeded its slices, to be subtracted from the next ones.
    pub debt_ns: Nanos,
    /// Slices of other tenants since one of its own is due: a request is queued, the tenant has no debt, and its hung
    /// requests leave it a place in the device. 0 if none is due.
    pub waiting_slices: u64,
    /// Shortest slice with which it keeps R: longer than its slice if the longest round forbids that. `None` if the
    /// tenant is not backlogged, or has no R.
    pub need_ns: Option<Nanos>,
    /// Shortest slice in which the tenant's backlog takes at most half of the time, whatever the loss; 0 if the tenant
    /// is not backlogged.
    pub burst_ns: Nanos,
    /// The part of its streams' work that the tenant's own random requests displace, thousandths. No disk time is lost.
    pub streams_lack_permille: u32,
    /// Whether sequential reads and other requests each are a considerable part of the tenant's work.
    pub has_divided_streams: bool,
}

impl TenantPlan {
    /// The same, 0 to 1.
    pub(crate) fn streams_lack(&self) -> f64 {
        f64::from(self.streams_lack_permille) / 1000.0
    }
}

/// What goes to the device next. The scheduler does it in any case, so the policy counts on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// The next request of one of the tenants that have one for the device now ([`Lanes::ready`]); of one direction
    /// only if that is given.
    Request(TenantId, Option<Direction>),
    /// The tenant owns the disk for this time.
    Slice(Slot),
    /// The policy gives up the requests in the device: they hang. It is asked again a moment later.
    GiveUp,
    /// Nothing. At this time, if there is one, the answer may be another one although no event occurred.
    Nothing(Option<Nanos>),
}

/// Decides which tenant is next, and for how long. It has no queues: requests wait in [`Lanes`], [`Books`] observe
/// them, and the slice runner (`slices/`) carries slices out.
///
/// A policy that orders single requests (token bucket, SFQ, EDF) keeps a tag for each tenant, or for each request in
/// order of arrival: then its tenant loses the latest tags when requests are cancelled. It answers with
/// [`Turn::Request`], a policy with slices with [`Turn::Slice`]. `none.rs` and the tests of `scheduler.rs` are short
/// examples.
pub(crate) trait Policy: Slicing + std::fmt::Debug {
    /// Whether tenants own the disk in slices. Measurements on slices are made only then.
    fn has_slices(&self) -> bool {
        false
    }
    /// Whether hung requests are detected, by the slice runner or by [`Turn::GiveUp`]. Otherwise each tenant leaves
    /// places in the device free for the others ([`Lanes::places`]).
    fn detects_hung(&self) -> bool {
        false
    }
    /// Changes the settings; the kind stays the same.
    fn set(&mut self, _settings: Settings) {}
    /// Adds a tenant, or changes what it is promised.
    fn set_tenant(&mut self, now: Nanos, tenant: TenantId, terms: Terms);
    /// Sets the part of its slices, in thousandths, that a tenant must not lose; `None` for the default. A tenant whose
    /// cache does not keep all of its throughput must lose less of its disk time.
    fn set_keep(&mut self, _tenant: TenantId, _keep_permille: Option<u32>) {}
    /// Sets where the data of a tenant is on the disk, bytes from the beginning, if that is known.
    fn set_place(&mut self, _tenant: TenantId, _place: Option<u64>) {}
    /// Sets the schedule of the cluster that the disk follows from its beginning on; the version is above earlier ones.
    fn set_timetable(&mut self, _now: Nanos, _timetable: &Timetable) {}
    /// Sets the relation of the engine's clock to cluster time.
    fn set_clock(&mut self, _clock: Clock) {}
    /// Removes a tenant that has no volumes.
    fn drop_tenant(&mut self, tenant: TenantId);
    /// A request of `tenant` was queued.
    fn arrived(&mut self, now: Nanos, tenant: TenantId, entry: &Entry, view: View<'_>);
    /// Queued requests of the tenant were cancelled.
    fn cancelled(&mut self, _now: Nanos, _tenant: TenantId, _view: View<'_>) {}
    /// What goes to the device now, while no slice is in progress.
    fn next(&mut self, now: Nanos, view: View<'_>) -> Turn;
    /// A request completed. Not called for hung requests.
    fn done(&mut self, _now: Nanos, _tenant: TenantId, _entry: &Entry, _view: View<'_>) {}
    /// The cost of a request of the tenant; `follows` if it begins where an earlier one of its tenant ended.
    fn cost_ns(&self, _tenant: TenantId, op: Op, len: u64, follows: bool, _view: View<'_>) -> Nanos {
        cost_ns(op, len, follows)
    }
    /// Largest read or write of the tenant at present, bytes, at least [`REQUEST_BYTES_LEAST`]: a request in the device
    /// cannot be interrupted.
    fn request_bytes_max(&self, _tenant: TenantId, _op: Op, _view: View<'_>) -> u64 {
        u64::MAX
    }
    /// Whether a tenant pays for earlier slices with its next one, so that none is due to it in this round.
    fn owes_slice(&self, _tenant: TenantId) -> bool {
        false
    }
    /// The plan for a tenant; `None` if the policy promises nothing.
    fn plan(&mut self, _tenant: TenantId, _view: View<'_>) -> Option<TenantPlan> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[test]
    fn what_is_read_ahead_amortises_going_there() {
        let settings = |insulation_permille, switch_ns, stream_bytes_per_s| {
            let usual = Config::new(0).policy();
            Settings { kind: Kind::Insulated, insulation_permille, switch_ns, stream_bytes_per_s, ..usual }
        };
        let (ms, mb) = (1_000_000, 1_000_000);
        assert_eq!(settings(900, 8 * ms, 100 * mb).prefetch_bytes(), 7_200_000 / BLOCK * BLOCK, "72 ms for 8 ms");
        assert_eq!(settings(800, 8 * ms, 100 * mb).prefetch_bytes(), 3_200_000 / BLOCK * BLOCK, "32 ms for 8 ms");
        assert_eq!(settings(999, 8 * ms, 100 * mb).prefetch_bytes(), PREFETCH_MOST);
        assert_eq!(settings(900, 0, 100 * mb).prefetch_bytes(), PREFETCH_LEAST, "going there costs nothing");
        let bare = Settings { kind: Kind::None, ..settings(900, 8 * ms, 100 * mb) };
        let headless = Settings { needs_slices: false, ..settings(900, 8 * ms, 100 * mb) };
        assert_eq!([bare, headless].map(|settings| settings.prefetch_bytes()), [PREFETCH_LEAST; 2]);
    }
}
