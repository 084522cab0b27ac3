//! Who may use the disk next: one trait, one file (or folder) for each policy.

mod fair;
mod insulated;
mod none;
mod queue;
mod weights;

use super::{IoId, Op};
use crate::control::TenantId;
use crate::units::{BLOCK, Nanos, SECOND, Share};

pub use fair::{HELD_BY_TURNS_NS, PACE_DEBT_NS, Prices};
pub(crate) use insulated::FOLLOWING_BYTES;
pub use insulated::{HOLD_MAX_NS, SLICES_KEPT, STUCK_NS, Slice};
pub(crate) use queue::Entry;
pub(crate) use weights::Weights;

/// The parts of the disk's time, 0 to 1, of tenants with these shares while all are busy.
pub(crate) fn weights(shares: &[Option<Share>]) -> Vec<f64> {
    let weights = weights::Weights::new(shares.iter().copied());
    let sum: u64 = shares.iter().map(|&share| weights.of(share)).sum();
    shares.iter().map(|&share| weights.of(share) as f64 / sum as f64).collect()
}

/// The policies that there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// Exclusive slices of disk time, long enough for R (Argon); on a device that needs no slices, fair queueing on
    /// cost.
    #[default]
    Insulated,
    /// First come, first served.
    None,
}

/// 100 MB/s: what a byte costs in [`cost_ns`].
const BYTE_NS: Nanos = 10;
/// No policy asks for requests smaller than that: the blocks of the cache.
pub(crate) const REQUEST_BYTES_LEAST: u64 = BLOCK;

/// What a policy has to know of its disk.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Settings {
    /// Which policy.
    pub kind: Kind,
    /// Requests in the device at the same time.
    pub depth: u32,
    /// R: the part of its standalone efficiency that a tenant keeps, in thousandths, below 1000.
    pub insulation_permille: u32,
    /// What a turn to another tenant costs at first, until it is measured: the profile's switch cost.
    pub switch_ns: Nanos,
    /// The longest round.
    pub round_max_ns: Nanos,
    /// Whether tenants need slices: turning from one to the other costs much. Otherwise all have requests in the
    /// device.
    pub needs_slices: bool,
    /// What requests cost a device that needs no slices.
    pub prices: Prices,
    /// Bytes a second that the device reads one after the other, where it is fastest.
    pub stream_bytes_per_s: u64,
}

/// What is read ahead of a stream at once where nothing is amortised, bytes: what Linux reads ahead of a disk.
const PREFETCH_LEAST: u64 = 128 << 10;
/// What is read ahead of a stream at once at most, bytes: what is read in vain when a stream stops takes no longer than
/// a slice.
const PREFETCH_MOST: u64 = 16 << 20;

impl Settings {
    /// Bytes to be read ahead of a stream at once: so many that going there costs at most 1 - R of the time, that is,
    /// that their transfer takes R / (1 - R) of what going there takes (Argon, sections 3.1 and 4).
    pub fn prefetch_bytes(&self) -> u64 {
        if self.kind != Kind::Insulated || !self.needs_slices {
            return PREFETCH_LEAST;
        }
        let keep = u128::from(self.insulation_permille.min(999));
        let transfer_ns = u128::from(self.switch_ns) * keep / (1000 - keep);
        let bytes = transfer_ns.saturating_mul(self.stream_bytes_per_s.into()) / u128::from(SECOND);
        bytes.clamp(PREFETCH_LEAST.into(), PREFETCH_MOST.into()) as u64 / BLOCK * BLOCK
    }

    /// The policy itself, without tenants.
    pub(crate) fn build(self) -> Box<dyn Policy> {
        match self.kind {
            Kind::Insulated if self.needs_slices => Box::new(insulated::Insulated::new(self)),
            Kind::Insulated => Box::new(fair::Fair::new(self)),
            Kind::None => Box::new(none::None::new(self.depth)),
        }
    }

    /// Whether tenants are promised a part of what they have alone.
    pub(crate) fn insulates(&self) -> bool {
        self.kind == Kind::Insulated
    }

    /// Whether that is another policy than these settings have. Costs by other prices cannot be told apart: that is one
    /// too.
    pub(crate) fn is_other(&self, before: &Settings) -> bool {
        let prices = |settings: &Settings| {
            (settings.kind == Kind::Insulated && !settings.needs_slices).then_some(settings.prices)
        };
        self.kind != before.kind || prices(self) != prices(before)
    }
}

/// What a policy does for a tenant at present.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct TenantPlan {
    /// Its slice in each round.
    pub slice_ns: Nanos,
    /// The round.
    pub round_ns: Nanos,
    /// What it loses of a slice to the switch, the drain and rounding, of late.
    pub loss_ns: Nanos,
    /// The part of its slices that it does not lose, in thousandths: its R of disk time.
    pub efficiency_permille: u32,
    /// Disk time that it owned.
    pub owned_ns: Nanos,
    /// What its work would have taken alone, as its own slices tell.
    pub useful_ns: Nanos,
    /// Slices it had.
    pub slices: u64,
    /// Time of the disk that it had too much of, to be made good.
    pub debt_ns: Nanos,
    /// Slices of others since a slice of its own is due: a request waits, the tenant owes no time, and requests of it
    /// that hang leave a place in the device. 0 if none is.
    pub waiting_slices: u64,
    /// The shortest slice with which it keeps R: longer than its slice where the longest round forbids it. `None` if it
    /// does not use its slices up.
    pub need_ns: Option<Nanos>,
    /// The shortest slice of which all that it has for the device at once takes half, whatever it loses; 0 if it does
    /// not use its slices up.
    pub burst_ns: Nanos,
}

/// Whose the time of a disk was. What is not here was idle. Where tenants are not told apart, the time in which it had
/// something to do was theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskTime {
    /// Tenants', as far as it was worth to them what it would have been alone.
    pub tenant_ns: Nanos,
    /// Lost in turning from one tenant to another: switches and drains.
    pub switch_ns: Nanos,
    /// Requests that the device did not give back in time, so that others went on beside them.
    pub stuck: u64,
}

/// Nanoseconds that a device of no particular kind needs for a request: what makes requests comparable. How much longer
/// or shorter the requests of a tenant take on this device is measured.
pub(crate) fn cost_ns(op: Op, len: u64, follows: bool) -> Nanos {
    /// Half a turn at 7,200 rpm and a medium seek.
    const POSITIONING_NS: Nanos = 8_000_000;
    let positioning = if follows { 0 } else { POSITIONING_NS };
    match op {
        Op::Read | Op::Write { .. } => positioning + len * BYTE_NS,
        Op::Flush | Op::Zero | Op::Punch => POSITIONING_NS,
    }
}

/// The most requests that a tenant may have in a device of such a depth in which so many of others are stuck: however
/// many of its own never come back, a quarter is left to the next one.
fn depth_of_one(depth: u32, stuck_of_others: u32) -> u32 {
    let left = depth.saturating_sub(stuck_of_others);
    (left - if planted!(HungRequestsTakeAllPlaces) { 0 } else { left / 4 }).max(1)
}

/// Orders device requests. It sees when they come, who owns them, what they cost and when they are done; nothing else
/// goes to the device.
pub(crate) trait Policy: std::fmt::Debug {
    /// A tenant is there, or its share has changed; `None` for a part of what nobody was promised.
    fn set_tenant(&mut self, now: Nanos, tenant: TenantId, share: Option<Share>);
    /// The part of its slices, thousandths, that a tenant may not lose; `None` for what is usual. Whose cache does not
    /// keep all of its throughput loses less of its time.
    fn set_keep(&mut self, _tenant: TenantId, _keep_permille: Option<u32>) {}
    /// A tenant without volumes is gone.
    fn drop_tenant(&mut self, now: Nanos, tenant: TenantId);
    /// A request of `tenant` wants to go to the device; an urgent one (a flush waits for it) ahead of the tenant's
    /// others.
    fn arrived(&mut self, now: Nanos, tenant: TenantId, entry: Entry, urgent: bool);
    /// Those that `wanted` chooses, of the tenant's requests that wait, are urgent from now on.
    fn hurry(&mut self, tenant: TenantId, wanted: &dyn Fn(IoId) -> bool);
    /// Those that `unwanted` chooses, of the tenant's requests that wait, are taken back: they are added to `dropped`.
    fn withdraw(&mut self, now: Nanos, tenant: TenantId, unwanted: &dyn Fn(IoId) -> bool, dropped: &mut Vec<IoId>);
    /// The next one that may go now, `in_device` being there already.
    fn next(&mut self, now: Nanos, in_device: u32) -> Option<IoId>;
    /// A request has come back from the device, to which it was given at `submitted`.
    fn done(&mut self, now: Nanos, tenant: TenantId, entry: &Entry, submitted: Nanos);
    /// What a request of the tenant costs the device; `follows` if it begins where an earlier one of its tenant ended.
    fn cost_ns(&self, _tenant: TenantId, op: Op, len: u64, follows: bool) -> Nanos {
        cost_ns(op, len, follows)
    }
    /// The most bytes that a request of the tenant, a read or a write, may have, at least [`REQUEST_BYTES_LEAST`]: what
    /// is in the device cannot be interrupted.
    fn request_bytes_max(&self, _tenant: TenantId, _op: Op) -> u64 {
        u64::MAX
    }
    /// Requests that wait.
    fn waiting(&self) -> usize;
    /// When [`Policy::next`] may say something else though nothing happened.
    fn poll_timeout(&self) -> Option<Nanos>;
    /// Other settings of the same kind.
    fn set(&mut self, settings: Settings);
    /// What it does for a tenant; `None` if it does not tell tenants apart.
    fn plan(&mut self, now: Nanos, tenant: TenantId) -> Option<TenantPlan>;
    /// Whose its time was; `None` if it does not tell tenants apart.
    fn time(&self, _now: Nanos) -> Option<DiskTime> {
        None
    }
    /// Time in which others than `tenant` owned the disk, since some moment: a clock that stands still in its own
    /// slices.
    fn others_ns(&self, _now: Nanos, _tenant: TenantId) -> Nanos {
        0
    }
    /// The last slices, oldest first.
    fn slices(&self) -> Vec<Slice> {
        Vec::new()
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
