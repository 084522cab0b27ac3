//! Effective shares, and the guarantees that have to fit into them.

use std::collections::BTreeMap;

use engine::units::Share;

use super::Running;
use super::view::{GuaranteeView, ShareView};
use crate::quantity::{Name, ShareText};
use crate::store::TenantSpec;

/// The requested shares of a disk's tenants, and the even division of the rest among tenants without one.
pub(super) struct Shares {
    allotments: BTreeMap<Name, TenantSpec>,
    even_ppb: u64,
    /// The sum of the requested shares, at least 1: more if the disk is overcommitted.
    whole_ppb: u64,
}

impl Shares {
    pub(super) fn of(running: &Running) -> Shares {
        let allotments = running.allotments();
        let asked = allotments.values().filter_map(|allotment| allotment.share.as_ref());
        let promised: u64 = asked.clone().map(|share| share.share.ppb()).sum();
        let left = Share::ONE.ppb().saturating_sub(promised);
        let without = (allotments.len() - asked.count()) as u64;
        Shares { allotments, even_ppb: left / without.max(1), whole_ppb: promised.max(Share::ONE.ppb()) }
    }

    pub(super) fn view(&self, tenant: &Name) -> ShareView {
        let requested = self.allotments.get(tenant).and_then(|allotment| allotment.share.as_ref());
        ShareView { requested: requested.map(ToString::to_string), effective: self.effective(tenant) }
    }

    /// The fraction of the disk's time, 0 to 1; `None` for a tenant that has none.
    pub(super) fn effective(&self, tenant: &Name) -> Option<f64> {
        Some(self.effective_ppb(tenant)? as f64 / Share::ONE.ppb() as f64)
    }

    pub(super) fn effective_ppb(&self, tenant: &Name) -> Option<u64> {
        let part = |share: &ShareText| u128::from(share.share.ppb()) * u128::from(Share::ONE.ppb());
        let requested = self.allotments.get(tenant)?.share.as_ref();
        Some(requested.map_or(self.even_ppb, |share| (part(share) / u128::from(self.whole_ppb)) as u64))
    }

    /// The guarantee of a tenant, without measurements.
    pub(super) fn guarantee(&self, tenant: &Name) -> Option<GuaranteeView> {
        let rate = self.allotments.get(tenant)?.min_bandwidth?;
        let share = self.effective(tenant)?;
        Some(GuaranteeView { min_bandwidth: rate.0, share, kept_ratio: None, windows: None })
    }
}
