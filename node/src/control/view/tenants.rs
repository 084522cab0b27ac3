//! What is shown of those who share a disk: the policy, and what each tenant gets of it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Condition, ShareView, SizingView};
use crate::quantity::duration;
use crate::store::PolicyName;

/// Who decides which request goes to the device next.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PolicyView {
    /// What runs.
    pub name: PolicyName,
    /// Why it is that one.
    pub reason: String,
    /// What was asked for; absent if it follows from the disk.
    pub requested: Option<PolicyName>,
    /// R.
    pub insulation: InsulationView,
    /// The round at present; absent without slices.
    pub round_seconds: Option<f64>,
    /// The longest round that is allowed: nobody who asks waits longer for its slice.
    pub round_seconds_max: f64,
}

/// R: the part of its standalone efficiency that a tenant keeps.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct InsulationView {
    /// What slices are made for, 0 to 1.
    pub requested: f64,
    /// What they reach for every tenant; absent without slices.
    pub effective: Option<f64>,
    /// Why that is less.
    pub reason: Option<String>,
}

/// The slice of a tenant.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SliceView {
    /// Its length in each round; as it would be, if the tenant has nothing to do.
    pub seconds: f64,
    /// What is lost of it, of late, to the switch and the drain.
    pub loss_seconds: f64,
    /// The round at present: how long it takes from the beginning of a slice to that of the next one.
    pub round_seconds: f64,
    /// The longest that the tenant waits for its slice; twice that beside a long slice, in which losses are measured.
    pub wait_seconds_max: f64,
}

impl SliceView {
    /// For people.
    pub fn in_words(&self) -> String {
        format!(
            "its slice is {} of a round of {} at present; in the longest round (--max-round) it waits {} for it at \
             most, seldom twice that",
            duration(self.seconds),
            duration(self.round_seconds),
            duration(self.wait_seconds_max)
        )
    }
}

/// What a tenant kept of its standalone efficiency: predicted standalone time of its work by (share x time in which it
/// had a request outstanding).
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RatioView {
    /// Above 1 if it got more than it was promised.
    pub ratio: f64,
    /// Over how long.
    pub window_seconds: f64,
    /// How the standalone time was predicted.
    pub prediction: String,
}

/// What a tenant's volumes did of late, each second.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct RatesView {
    /// Over how long.
    pub window_seconds: f64,
    /// Reads answered.
    pub reads: f64,
    /// Bytes of them.
    pub read_bytes: f64,
    /// Writes answered.
    pub writes: f64,
    /// Bytes of them.
    pub write_bytes: f64,
    /// What its requests waited for, seconds a second.
    pub delay_seconds: DelayView,
}

/// How long requests took, from arrival to answer; percentiles within 3 %.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct PercentilesView {
    /// How many requests that were.
    pub requests: u64,
    /// The median.
    pub p50_seconds: f64,
    /// 99 of 100 took less.
    pub p99_seconds: f64,
    /// 999 of 1000 took less.
    pub p999_seconds: f64,
    /// The longest.
    pub max_seconds: f64,
}

/// How long reads and writes took; what there was none of is absent.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ByOpView {
    /// Reads.
    pub read: Option<PercentilesView>,
    /// Writes.
    pub write: Option<PercentilesView>,
    /// Both together.
    pub both: Option<PercentilesView>,
}

/// How long a tenant's requests took.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct LatencyView {
    /// What "recent" is: 10 to 15 seconds, or since the tenant is there.
    pub window_seconds: f64,
    /// Of late.
    pub recent: ByOpView,
    /// Since the server started, or the tenant is there.
    pub total: ByOpView,
}

/// What requests waited for.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct DelayView {
    /// The thread of the disk, which did other work.
    pub thread: f64,
    /// Room in their tenant's cache.
    pub cache: f64,
    /// Their turn, while their tenant could have had the disk.
    pub queue: f64,
    /// Their tenant's slice: the disk was another's.
    pub slice: f64,
    /// The device.
    pub disk: f64,
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
    /// Its slice; absent if the disk's policy gives none.
    pub slice: Option<SliceView>,
    /// What it keeps; absent without demand, or without slices.
    pub insulation: Option<RatioView>,
    /// What its volumes do; absent until the server has looked twice.
    pub rates: Option<RatesView>,
    /// How long their requests take; absent while the disk does not answer.
    pub latency: Option<LatencyView>,
    /// What it needs for R, and what was decided; absent if the disk's policy insulates nobody.
    pub sizing: Option<SizingView>,
}

/// A slice that is over.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct OwnedView {
    /// Whose it was; absent if that tenant is gone.
    pub tenant: Option<String>,
    /// When it began, before now.
    pub seconds_ago: f64,
    /// How long it was.
    pub seconds: f64,
}

/// A disk and its tenants at this moment.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LiveView {
    /// Its name.
    pub disk: String,
    /// Whether it can be used.
    pub condition: Condition,
    /// Who decides; absent while it is offline.
    pub policy: Option<PolicyView>,
    /// Part of the last seconds in which it had a request in the device, 0 to 1; absent before there is anything to
    /// compare with.
    pub busy_ratio: Option<f64>,
    /// Its tenants.
    pub tenants: Vec<TenantView>,
    /// The last slices, oldest first.
    pub slices: Vec<OwnedView>,
}
