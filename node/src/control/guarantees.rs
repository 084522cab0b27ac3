//! Guarantees: what a tenant is promised is checked before it is promised, and told afterwards.

use super::show::Shares;
use super::{Control, Error, Invalid, Running};
use crate::quantity::Name;
use crate::store::TenantSpec;
use engine::units::Share;

impl Running {
    /// Refuses promises that contradict each other, or that do not fit on the disk.
    pub(super) fn check_promises(
        &self,
        disk: &Name,
        tenant: &Name,
        after: &TenantSpec,
        overcommit: bool,
    ) -> Result<(), Error> {
        check_consistent(after)?;
        self.check_share(disk, tenant, after.share.as_ref().map(|share| share.share), overcommit)
    }

    /// Whether the shares of the disk sum to more than 1.
    pub(super) fn is_overcommitted(&self) -> bool {
        self.committed_ppb(None) > Share::ONE.ppb()
    }
}

/// Refuses values that no disk could keep together.
fn check_consistent(spec: &TenantSpec) -> Result<(), Invalid> {
    match spec.min_bandwidth {
        Some(rate) if rate.0 == 0 => Err(Invalid::ZeroMinBandwidth),
        _ => Ok(()),
    }
}

impl Control {
    /// What a tenant is guaranteed now, if this has changed.
    pub(super) fn promise_note(&self, disk: &Name, tenant: &Name, before: &TenantSpec) -> String {
        let state = self.state();
        let Ok(running) = state.disk(disk) else { return String::new() };
        let now = running.allotment(tenant);
        if (&now.share, now.min_bandwidth) == (&before.share, before.min_bandwidth) {
            return String::new();
        }
        let shares = Shares::of(running);
        match (shares.guarantee(tenant), before.min_bandwidth) {
            (Some(guarantee), _) => format!("; '{tenant}' gets {}", guarantee.in_words()),
            (None, Some(_)) => format!("; '{tenant}' has no minimum bandwidth any more"),
            (None, None) => String::new(),
        }
    }
}
