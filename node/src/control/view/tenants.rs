//! Views of scheduling: the policy of a disk, and what each tenant gets.

use std::num::NonZeroU64;

use engine::control::{Ceiling, Ceilings, IO_BYTES};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{CacheView, Condition, GuaranteeView, LiveOffloadView, SetTenant, ShareView, SizingView};
use crate::ceiling::{MaxBandwidth, MaxIops, in_words};
use crate::quantity::duration;
use crate::store::{PolicyName, TenantSpec};

/// The scheduling policy of a disk.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PolicyView {
    /// The policy in effect: its name, and a parameter of some, as in "token-bucket:1.2".
    #[schema(value_type = String)]
    pub name: PolicyName,
    /// Why it was chosen.
    pub reason: String,
    /// The requested policy; absent if it follows from the disk.
    #[schema(value_type = Option<String>)]
    pub requested: Option<PolicyName>,
    /// R.
    pub insulation: InsulationView,
    /// The present round; absent without slices.
    pub round_seconds: Option<f64>,
    /// The maximum round, and thus the longest wait of a tenant for its slice.
    pub round_seconds_max: f64,
}

/// R: the fraction of its standalone efficiency that a tenant keeps.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct InsulationView {
    /// The target, 0 to 1.
    pub requested: f64,
    /// The value that is reached for every tenant; absent under a policy that does not insulate.
    pub effective: Option<f64>,
    /// Why the effective value is lower.
    pub reason: Option<String>,
}

/// The slice of a tenant.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SliceView {
    /// Its length in each round; of an idle tenant, the length that it would have.
    pub seconds: f64,
    /// Recent losses in it, by the context switch and by draining the device.
    pub loss_seconds: f64,
    /// The present round: the time from the beginning of one slice of the tenant to the next one.
    pub round_seconds: f64,
    /// The longest wait of the tenant for its slice; twice that while another tenant has a long slice to measure its
    /// losses.
    pub wait_seconds_max: f64,
}

impl SliceView {
    /// A sentence for the user.
    pub fn in_words(&self) -> String {
        format!(
            "its slice is {} of a round of {} at present; maximum wait for it in the longest round (--max-round): {}, \
             rarely twice that",
            duration(self.seconds),
            duration(self.round_seconds),
            duration(self.wait_seconds_max)
        )
    }
}

/// The insulation of a tenant: the predicted standalone-equivalent time of its work and of its clients' pauses, divided
/// by (share x time).
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RatioView {
    /// Above 1 if it got more than promised.
    pub ratio: f64,
    /// The length of the window.
    pub window_seconds: f64,
    /// How the standalone-equivalent time was predicted.
    pub prediction: String,
}

/// Recent rates of a tenant's volumes, per second.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct RatesView {
    /// The length of the window.
    pub window_seconds: f64,
    /// Reads answered.
    pub reads: f64,
    /// Bytes read.
    pub read_bytes: f64,
    /// Writes answered.
    pub writes: f64,
    /// Bytes written.
    pub write_bytes: f64,
    /// Time that its requests spent waiting, by cause, in seconds per second.
    pub delay_seconds: DelayView,
}

/// Latency of requests from arrival to answer; percentiles are within 3 %.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct PercentilesView {
    /// The number of requests.
    pub requests: u64,
    /// The median.
    pub p50_seconds: f64,
    /// The 99th percentile.
    pub p99_seconds: f64,
    /// The 99.9th percentile.
    pub p999_seconds: f64,
    /// The maximum.
    pub max_seconds: f64,
}

/// Latency of reads and writes; absent where there were none.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ByOpView {
    /// Reads.
    pub read: Option<PercentilesView>,
    /// Writes.
    pub write: Option<PercentilesView>,
    /// Reads and writes together.
    pub both: Option<PercentilesView>,
}

/// Latency of a tenant's requests.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct LatencyView {
    /// The length of the recent window: 10 to 15 seconds, or less for a new tenant.
    pub window_seconds: f64,
    /// In the recent window.
    pub recent: ByOpView,
    /// Since the server's start, or since the tenant exists.
    pub total: ByOpView,
}

/// Causes of delay of requests.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct DelayView {
    /// The disk's thread was doing other work.
    pub thread: f64,
    /// Held back by the tenant's ceilings.
    #[serde(default)]
    pub ceiling: f64,
    /// Waiting for space in the tenant's cache.
    pub cache: f64,
    /// Queued while the disk was available to the tenant.
    pub queue: f64,
    /// Waiting for the tenant's slice while the disk was another tenant's.
    pub slice: f64,
    /// In the device.
    pub disk: f64,
}

/// What a tenant requested of its disk and what it got, since the server's start or since the tenant exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UsageView {
    /// Disk time that it had: its slices; without slices, its part of the device's busy time, by cost.
    pub disk_seconds: f64,
    /// Device requests that completed.
    pub device_requests: u64,
    /// Their bytes.
    pub device_bytes: u64,
    /// Bytes of its clients' requests that succeeded.
    pub delivered_bytes: u64,
}

/// A tenant of a disk.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TenantView {
    /// Its name.
    pub name: String,
    /// Its volumes on this disk.
    pub volumes: Vec<String>,
    /// Its share.
    pub share: ShareView,
    /// Its guarantee; absent without a minimum bandwidth.
    pub guarantee: Option<GuaranteeView>,
    /// Its slice; absent if the disk's policy has no slices.
    pub slice: Option<SliceView>,
    /// What it requested of the disk and what it got; absent while the disk does not answer.
    pub usage: Option<UsageView>,
    /// Its insulation against a disk of its own with the whole cache, which is estimated; absent without demand, under
    /// a policy that does not insulate, and while what the whole cache would gain is not known.
    pub insulation: Option<RatioView>,
    /// The same with the cache that it has, which is measured; at least R is promised where the longest round is long
    /// enough. Absent without demand, or under a policy that does not insulate.
    pub own_cache_insulation: Option<RatioView>,
    /// Its rates; absent until there are two samples.
    pub rates: Option<RatesView>,
    /// Latency of its requests; absent while the disk does not answer.
    pub latency: Option<LatencyView>,
    /// What it needs for R, and the decision on it; absent if the disk's policy does not insulate.
    pub sizing: Option<SizingView>,
}

/// A ceiling, units a second; a direction without one is absent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CeilingView {
    /// Of reads and writes together.
    pub total: Option<u64>,
    /// Of reads.
    pub read: Option<u64>,
    /// Of writes.
    pub write: Option<u64>,
}

impl From<Ceiling> for CeilingView {
    fn from(Ceiling { total, read, write }: Ceiling) -> CeilingView {
        let [total, read, write] = [total, read, write].map(|of| of.map(NonZeroU64::get));
        CeilingView { total, read, write }
    }
}

impl From<CeilingView> for Ceiling {
    fn from(CeilingView { total, read, write }: CeilingView) -> Ceiling {
        let [total, read, write] = [total, read, write].map(|of| of.and_then(NonZeroU64::new));
        Ceiling { total, read, write }
    }
}

/// What the clients of a tenant get at most.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CeilingsView {
    /// Bytes a second; absent without such a ceiling.
    pub max_bandwidth: Option<CeilingView>,
    /// I/Os a second; absent without such a ceiling.
    pub max_iops: Option<CeilingView>,
    /// Bytes that count as one I/O: a larger request counts as one for each begun part of this size.
    pub io_bytes: u64,
    /// An unused ceiling is saved for at most this time.
    pub burst_seconds: f64,
}

impl CeilingsView {
    /// The ceilings of a specification, if there are any.
    pub fn of(spec: &TenantSpec) -> Option<CeilingsView> {
        let Ceilings { burst_ns, .. } = spec.ceilings();
        spec.has_ceiling().then(|| CeilingsView {
            max_bandwidth: spec.max_bandwidth.map(|most| most.0.into()),
            max_iops: spec.max_iops.map(|most| most.0.into()),
            io_bytes: IO_BYTES,
            burst_seconds: burst_ns as f64 / 1e9,
        })
    }

    /// In words, as they are typed.
    pub fn in_words(&self) -> String {
        let bandwidth = self.max_bandwidth.map(|most| MaxBandwidth(most.into()));
        let iops = self.max_iops.map(|most| MaxIops(most.into()));
        in_words(bandwidth, iops, &duration(self.burst_seconds))
    }
}

/// A tenant, on all disks where it has volumes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TenantDetail {
    /// Its name.
    pub name: String,
    /// What it has of each disk.
    pub disks: Vec<AllotmentView>,
}

/// What a tenant has of a disk.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AllotmentView {
    /// The disk.
    pub disk: String,
    /// Whether the disk can be used.
    pub condition: Condition,
    /// The request that would set the same; absent if the disk is offline, and for the tenant of the stores.
    pub spec: Option<SetTenant>,
    /// Its volumes on this disk.
    pub volumes: Vec<String>,
    /// Its share.
    pub share: ShareView,
    /// Its guarantee; absent without a minimum bandwidth.
    pub guarantee: Option<GuaranteeView>,
    /// Its cache.
    pub cache: CacheView,
    /// What its clients get at most; absent without a ceiling.
    pub ceilings: Option<CeilingsView>,
    /// Its slice; absent if the disk's policy has no slices.
    pub slice: Option<SliceView>,
    /// Its insulation against a disk of its own with the whole cache, which is estimated; absent without demand, under
    /// a policy that does not insulate, and while what the whole cache would gain is not known.
    pub insulation: Option<RatioView>,
    /// The same with the cache that it has, which is measured; at least R is promised where the longest round is long
    /// enough. Absent without demand, or under a policy that does not insulate.
    pub own_cache_insulation: Option<RatioView>,
    /// Latency of its requests; absent while the disk does not answer.
    pub latency: Option<LatencyView>,
    /// What it needs for R, and the decision on it; absent if the disk's policy does not insulate.
    pub sizing: Option<SizingView>,
}

/// A slice that has ended.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OwnedView {
    /// Its tenant; absent if the tenant was removed.
    pub tenant: Option<String>,
    /// How long ago it began, seconds.
    pub seconds_ago: f64,
    /// Its length.
    pub seconds: f64,
}

/// The current state of a disk and its tenants.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LiveView {
    /// The name of the disk.
    pub disk: String,
    /// Whether it can be used.
    pub condition: Condition,
    /// The scheduling policy; absent while it is offline.
    pub policy: Option<PolicyView>,
    /// The fraction of the last seconds with a request in the device, 0 to 1; absent until there are two samples.
    pub busy_ratio: Option<f64>,
    /// Its tenants.
    pub tenants: Vec<TenantView>,
    /// The last slices, oldest first.
    pub slices: Vec<OwnedView>,
    /// What is off-loaded; absent if nothing is to be.
    pub offload: Option<LiveOffloadView>,
}
