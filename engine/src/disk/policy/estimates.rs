//! Standalone-equivalent time of the tenants' work under policies that do not measure it: an estimate from the profile
//! of the device, if it has one.

use super::price::Estimate;
use super::{Prices, TenantPlan};
use crate::disk::queue::Entry;
use crate::disk::slices::View;
use crate::ids::TenantId;
use crate::slab::Table;
use crate::units::Nanos;

/// The estimates of all tenants.
#[derive(Debug)]
pub(super) struct Estimates {
    prices: Prices,
    /// Of their clients' requests that completed; 0 if the device has no profile.
    tenants: Table<TenantId, Estimate>,
}

impl Estimates {
    pub(super) fn new(prices: Prices) -> Estimates {
        Estimates { prices, tenants: Table::default() }
    }

    pub(super) fn set(&mut self, prices: Prices) {
        self.prices = prices;
    }

    /// Adds a tenant, unless it is there.
    pub(super) fn add(&mut self, tenant: TenantId) {
        if !self.tenants.contains(tenant) {
            self.tenants.insert(tenant, Estimate::default());
        }
    }

    pub(super) fn remove(&mut self, tenant: TenantId) {
        self.tenants.remove(tenant);
    }

    /// A request of the tenant completed.
    pub(super) fn done(&mut self, tenant: TenantId, entry: &Entry, view: View<'_>) {
        let lane = &view.lanes[tenant];
        // With the request that completed.
        let outstanding = lane.queue.len() as u64 + u64::from(lane.in_service()) + 1;
        let estimate = self.prices.estimate(entry.op, entry.len, entry.follows, outstanding);
        let Some(estimate) = estimate.filter(|_| !entry.internal) else { return };
        let sum = &mut self.tenants[tenant];
        sum.standalone_ns += estimate.standalone_ns;
        sum.uncertain_ns += estimate.uncertain_ns;
    }

    /// What is known of the tenant; `None` if the device has no profile.
    pub(super) fn plan(&self, tenant: TenantId) -> Option<TenantPlan> {
        let sum = self.tenants.get(tenant).filter(|_| self.prices.have_profile())?;
        let (useful_ns, uncertain_ns) = (sum.standalone_ns as Nanos, sum.uncertain_ns as Nanos);
        Some(TenantPlan { useful_ns, uncertain_ns, ..TenantPlan::default() })
    }
}
