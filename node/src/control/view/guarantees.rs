//! Guarantees: the minimum bandwidth of a tenant, whether it is met, and whether it would hold.

use engine::disk::{Miss, WindowCounts};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::quantity::{Rate, percent};

/// The guarantee of a tenant: a minimum bandwidth that holds as long as it fits into the tenant's share.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct GuaranteeView {
    /// The requested minimum bandwidth, bytes per second.
    pub min_bandwidth: u64,
    /// The fraction of the disk's time into which it has to fit, 0 to 1: the effective share.
    pub share: f64,
    /// The recent bandwidth while the tenant had demand, divided by the promise: the smaller of the guarantee and R x
    /// share x the bandwidth of a disk of its own. At least 1 if the promise is kept; absent without demand.
    pub kept_ratio: Option<f64>,
    /// Its windows of 15 s x guarantee bytes, since the disk was opened; absent while the disk does not answer.
    pub windows: Option<WindowsView>,
}

impl GuaranteeView {
    /// What is promised, without its subject.
    pub fn promise(&self) -> String {
        let share = percent((self.share * 1e9) as u64);
        format!("at least {} as long as that fits into {share} of the disk's time", Rate(self.min_bandwidth))
    }
}

/// Windows of a guarantee, by outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct WindowsView {
    /// Delivered within 15 s.
    pub met: u64,
    /// Missed: the tenant had demand for too little of the window.
    pub no_demand: u64,
    /// Missed: the guarantee did not fit into the share.
    pub fundamental: u64,
    /// Missed although the guarantee fitted into the share.
    pub avoidable: u64,
    /// Those missed windows whose class is uncertain: within 5 % of the threshold.
    pub marginal: u64,
}

impl From<WindowCounts> for WindowsView {
    fn from(counts: WindowCounts) -> WindowsView {
        let WindowCounts { met, no_demand, fundamental, avoidable, marginal } = counts;
        WindowsView { met, no_demand, fundamental, avoidable, marginal }
    }
}

impl WindowsView {
    /// Windows by outcome, with the names of the metric.
    pub fn outcomes(&self) -> [(&'static str, u64); 4] {
        [
            ("met", self.met),
            ("no-demand", self.no_demand),
            ("fundamental", self.fundamental),
            ("avoidable", self.avoidable),
        ]
    }

    /// A sentence for the user.
    pub fn in_words(&self) -> String {
        let WindowsView { met, no_demand, fundamental, avoidable, marginal } = self;
        let all = met + no_demand + fundamental + avoidable;
        let sure = if *marginal > 0 { format!(", {marginal} of them marginal") } else { String::new() };
        format!(
            "{met} of {all} windows met; missed: {no_demand} no-demand, {fundamental} fundamental, {avoidable} \
             avoidable{sure}"
        )
    }
}

/// Why a window was missed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ViolationClass {
    /// The tenant had demand for too little of the window.
    NoDemand,
    /// The guarantee did not fit into the share: share x R x own rate was lower.
    Fundamental,
    /// All other missed windows: the server's fault.
    Avoidable,
}

impl ViolationClass {
    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            ViolationClass::NoDemand => "no-demand",
            ViolationClass::Fundamental => "fundamental",
            ViolationClass::Avoidable => "avoidable",
        }
    }
}

impl From<Miss> for ViolationClass {
    fn from(miss: Miss) -> ViolationClass {
        match miss {
            Miss::NoDemand => ViolationClass::NoDemand,
            Miss::Fundamental => ViolationClass::Fundamental,
            Miss::Avoidable => ViolationClass::Avoidable,
        }
    }
}

/// A window in which a tenant missed its guarantee, with the evidence for its class.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ViolationView {
    /// The disk.
    pub disk: String,
    /// When the window began (RFC 3339).
    pub at: String,
    /// The class.
    pub class: ViolationClass,
    /// Whether the class is uncertain: share x R x own rate is within 5 % of the guarantee.
    pub marginal: bool,
    /// How long it took.
    pub seconds: f64,
    /// The time with demand in it.
    pub demand_seconds: f64,
    /// Bytes delivered in it.
    pub bytes: u64,
    /// The guarantee, bytes per second.
    pub min_bandwidth: u64,
    /// Disk time that the tenant had: its slices; without slices, its part of the device's busy time, by cost.
    pub slice_seconds: f64,
    /// The standalone-equivalent time of its work.
    pub useful_seconds: f64,
    /// Its share, 0 to 1.
    pub share: f64,
    /// R, 0 to 1: the target, or less if the longest round is too short for it.
    pub insulation: f64,
    /// Its own rate, bytes per useful second: what a disk of its own would give it. Absent if the disk did nothing for
    /// it.
    pub own_rate: Option<u64>,
}

/// The missed windows of a tenant.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ViolationsView {
    /// The tenant.
    pub tenant: String,
    /// Its guarantee on each disk where it has one, with the windows counted so far.
    pub guarantees: Vec<DiskGuarantee>,
    /// The latest missed windows of each disk, newest last; at most 1,000 of a disk.
    pub violations: Vec<ViolationView>,
}

/// The guarantee of a tenant on a disk.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiskGuarantee {
    /// The disk.
    pub disk: String,
    /// The guarantee.
    pub guarantee: GuaranteeView,
}

/// Whether a guarantee would hold.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct AdmissionView {
    /// Windows of 15 s with demand in the tenant's recent history.
    pub windows: u64,
    /// The fraction of them in which the guarantee would have fitted into the share; absent without history.
    pub fits_ratio: Option<f64>,
    /// The fraction of the disk's time that the guarantee needs in the best case: sequential reads. Absent if the disk
    /// was not probed.
    pub need_best: Option<f64>,
    /// The same in the worst case: random reads of 4 KiB at depth 16.
    pub need_worst: Option<f64>,
    /// Bound on the fraction of rounds in which the tenants of the disk need more than all of its time together
    /// (Hoeffding's inequality). Absent while the needs of a tenant with a guarantee are not known.
    pub overfull_ratio: Option<f64>,
    /// The same as text.
    pub message: String,
}
