//! Why a request was refused because of the cluster that a disk takes part in.

use crate::quantity::Name;

/// Why a request was refused because of the cluster that a disk takes part in.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    #[error(
        "volume '{volume}' is the part of a volume of cluster '{cluster}': {doing} it here would break that volume"
    )]
    Part { volume: Name, cluster: Name, doing: &'static str },
    #[error(
        "disk '{disk}' follows the schedule of a cluster, which has no guarantees: no minimum bandwidth for '{tenant}'"
    )]
    Guarantee { disk: Name, tenant: Name },
    #[error(
        "disk '{disk}' follows the schedule of a cluster, in which each share has its place: '{tenant}' keeps its own"
    )]
    Share { disk: Name, tenant: Name },
    #[error(
        "tenant '{tenant}' of disk '{disk}' cannot have other volumes beside its part of a volume of a cluster: the \
         slices in the schedule are those of the part"
    )]
    Tenant { disk: Name, tenant: Name },
    #[error("volume '{0}' is to be on servers of a cluster, and this server takes part in none")]
    NoCluster(Name),
}

impl PartError {
    pub(super) fn status(&self) -> u16 {
        match self {
            PartError::NoCluster(_) => 400,
            PartError::Part { .. }
            | PartError::Guarantee { .. }
            | PartError::Share { .. }
            | PartError::Tenant { .. } => 409,
        }
    }

    pub(super) fn hint(&self) -> Option<String> {
        Some(match self {
            PartError::Part { doing: "deleting", .. } => {
                "start the server with --cluster, so that all parts are deleted together; if that cluster is gone for \
                 good, --force deletes this part"
                    .into()
            }
            PartError::Part { .. } => "create a volume of the cluster as it is to be, and copy the data".into(),
            PartError::Guarantee { .. } => {
                "promise a share instead: `aerogel volume create NAME SIZE --share S`".into()
            }
            PartError::Share { .. } => {
                "`aerogel volume create NAME SIZE --share S` finds a place for a new volume (with --dry-run, name \
                 --servers 1, too); a volume without a share has the time that the others leave"
                    .into()
            }
            PartError::Tenant { .. } => "name another tenant, or none".into(),
            PartError::NoCluster(_) => {
                "start it with --etcd, --cluster, --name and --advertise; or leave out --servers, --on, --stripe and \
                 --least"
                    .into()
            }
        })
    }
}
