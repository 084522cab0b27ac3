//! Why a planned allocation was refused.

use crate::quantity::{Name, Size, percent};

/// Why a planned allocation was refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum AllocationError {
    /// A tenant is named twice.
    #[error("tenant '{tenant}' is named twice on disk '{disk}'")]
    Twice { tenant: Name, disk: Name },
    /// Nothing is planned.
    #[error("nothing is planned: name a share or a cache of at least one tenant")]
    Nothing,
    /// The planner must not change the share or the cache of a tenant.
    #[error("the {what} of tenant '{tenant}' on disk '{disk}' is not handed to the planner")]
    NotHanded { tenant: Name, disk: Name, what: &'static str },
    /// The shares of a disk cannot be planned.
    #[error("shares of disk '{disk}' cannot be planned: {why}")]
    FixedShares { disk: Name, why: String },
    /// Less than a promise.
    #[error("a planned {what} of {planned} is less than the {asked} that tenant '{tenant}' on disk '{disk}' requested")]
    BelowRequest { tenant: Name, disk: Name, what: &'static str, planned: String, asked: String },
    /// Less than a guarantee was checked against.
    #[error(
        "a planned share of {planned} is less than the even part of {least} against which the minimum bandwidth of \
         tenant '{tenant}' on disk '{disk}' was checked"
    )]
    BelowGuarantee { tenant: Name, disk: Name, planned: String, least: String },
    /// More than there is.
    #[error(
        "the planned shares of disk '{disk}' sum to {} beyond the requested ones, and {} are free",
        percent(*planned_ppb),
        percent(*free_ppb)
    )]
    Shares { disk: Name, planned_ppb: u64, free_ppb: u64 },
    /// More than there is.
    #[error("the planned caches of disk '{disk}' sum to {planned} beyond the requested ones, and {free} are free")]
    Caches { disk: Name, planned: Size, free: Size },
}

impl AllocationError {
    /// The corresponding HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            AllocationError::Twice { .. } | AllocationError::Nothing => 400,
            _ => 409,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            AllocationError::NotHanded { tenant, disk, what } => Some(format!(
                "`aerogel tenant set {tenant} --disk {disk} --{what} auto` hands it to the planner; so does a \
                 requested {what}, which is then the least"
            )),
            AllocationError::Shares { .. } | AllocationError::Caches { .. } => {
                Some("the tenants have changed since it was planned: plan again".into())
            }
            _ => None,
        }
    }
}
