//! Why a request was refused because of a named policy.

use std::io;

use super::Error;
use crate::quantity::Name;

/// Why a request was refused because of a named policy. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// A value of a tenant is determined by its policy.
    #[error("tenant '{tenant}' has the policy '{policy}', which determines its share, guarantee and ceilings")]
    Determined { tenant: Name, policy: Name },
    /// A change does not fit for this user, the first such one.
    #[error("policy '{policy}' is not changed, since it does not fit for tenant '{tenant}' on disk '{disk}': {why}")]
    DoesNotFit { policy: Name, tenant: Name, disk: Name, why: Box<Error> },
    /// A policy that has users, which are disks and tenants, is not deleted.
    #[error("policy '{policy}' is in use by {}", listed(users))]
    InUse { policy: Name, users: Vec<(Name, Name)> },
    /// Another change has not ended.
    #[error("policies are being changed, or a disk is being added: the change has not ended within 10 s")]
    Changing,
    /// The file of policies cannot be written.
    #[error("cannot write the policies: {0}")]
    Write(io::Error),
}

impl PolicyError {
    /// The corresponding HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            PolicyError::Determined { .. } | PolicyError::DoesNotFit { .. } | PolicyError::InUse { .. } => 409,
            PolicyError::Changing => 503,
            PolicyError::Write(_) => 500,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            PolicyError::Determined { tenant, policy } => Some(format!(
                "`aerogel policy set {policy}` changes it for all its users, `aerogel tenant set {tenant} --policy \
                 none` detaches the tenant, which keeps its values"
            )),
            PolicyError::DoesNotFit { why, .. } => why.hint(),
            PolicyError::InUse { .. } => Some("detach them with `aerogel tenant set TENANT --policy none`".into()),
            PolicyError::Changing => Some("try again later; `aerogel disk list` shows which disks answer".into()),
            PolicyError::Write(_) => None,
        }
    }
}

/// Tenants with their disks.
fn listed(users: &[(Name, Name)]) -> String {
    let user = |(disk, tenant): &(Name, Name)| format!("tenant '{tenant}' on disk '{disk}'");
    users.iter().map(user).collect::<Vec<_>>().join(", ")
}
