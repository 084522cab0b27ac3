//! Guarantees: the minimum bandwidth of a tenant.

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
}

impl GuaranteeView {
    /// A sentence for the user, without its subject.
    pub fn in_words(&self) -> String {
        let GuaranteeView { min_bandwidth, share } = *self;
        let share = percent((share * 1e9) as u64);
        format!("at least {} as long as that fits into {share} of the disk's time", Rate(min_bandwidth))
    }
}
