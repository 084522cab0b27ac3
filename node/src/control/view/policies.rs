//! Named policies of tenants: requests and answers.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{OrDefault, SetTenant, Setting};
use crate::ceiling::{Burst, MaxBandwidth, MaxIops};
use crate::quantity::{Name, OrAuto, Rate, ShareText};
use crate::store::Policy;

/// A policy to create.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreatePolicy {
    /// Its name; not "none".
    #[schema(value_type = String)]
    pub name: Name,
    /// The share of a disk's time that each user has: "1/4", "0.25" or "25%".
    #[schema(value_type = Option<String>)]
    pub share: Option<ShareText>,
    /// The minimum bandwidth of each user, bytes per second; a number or a string such as "30MiB/s".
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub min_bandwidth: Option<Rate>,
    /// The most bandwidth that the clients of each user get: "50MiB/s", or "read=50MiB/s,write=10MiB/s".
    #[schema(value_type = Option<String>)]
    pub max_bandwidth: Option<MaxBandwidth>,
    /// The most I/Os a second of up to 256 KiB that they get: "500", or "read=500,write=100".
    #[schema(value_type = Option<String>)]
    pub max_iops: Option<MaxIops>,
    /// For how long an unused ceiling is saved, such as "10s". The default is 2 s.
    #[schema(value_type = Option<String>)]
    pub burst: Option<Burst>,
}

impl CreatePolicy {
    /// The values that it sets.
    pub fn policy(&self) -> Policy {
        let CreatePolicy { name: _, share, min_bandwidth, max_bandwidth, max_iops, burst } = self.clone();
        // 'max' is no ceiling.
        let (max_bandwidth, max_iops) =
            (max_bandwidth.filter(|most| most.0.is_some()), max_iops.filter(|most| most.0.is_some()));
        Policy { share, min_bandwidth, max_bandwidth, max_iops, burst }
    }
}

/// The changes of a policy, for all its users; what is omitted stays unchanged.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SetPolicy {
    /// The share of a disk's time that each user has, or "none".
    #[schema(value_type = Option<String>)]
    pub share: Option<Setting<ShareText>>,
    /// The minimum bandwidth of each user, bytes per second; a number or a string such as "30MiB/s"; or "none".
    #[schema(value_type = Option<String>)]
    pub min_bandwidth: Option<Setting<Rate>>,
    /// Whether the shares of a disk may sum to more than 1 with this one.
    pub overcommit: bool,
    /// The most bandwidth that the clients of each user get, such as "50MiB/s" or "read=50MiB/s,write=10MiB/s", or
    /// "none".
    #[schema(value_type = Option<String>)]
    pub max_bandwidth: Option<Setting<MaxBandwidth>>,
    /// The most I/Os a second of up to 256 KiB that they get, such as "500" or "read=500,write=100", or "none".
    #[schema(value_type = Option<String>)]
    pub max_iops: Option<Setting<MaxIops>>,
    /// For how long an unused ceiling is saved, such as "10s", or "default".
    #[schema(value_type = Option<String>)]
    pub burst: Option<OrDefault<Burst>>,
}

impl SetPolicy {
    /// The request that would set this policy.
    pub fn to(policy: Policy) -> SetPolicy {
        SetPolicy {
            share: Some(Setting::from_value(policy.share)),
            min_bandwidth: Some(Setting::from_value(policy.min_bandwidth)),
            overcommit: false,
            max_bandwidth: Some(Setting::from_value(policy.max_bandwidth)),
            max_iops: Some(Setting::from_value(policy.max_iops)),
            burst: Some(policy.burst.map_or(OrDefault::Default, OrDefault::To)),
        }
    }

    /// The same changes, of one tenant.
    pub fn of_tenant(&self) -> SetTenant {
        let SetPolicy { share, min_bandwidth, overcommit, max_bandwidth, max_iops, burst } = self.clone();
        let share = share.map(|share| Setting::from_value(share.value().map(OrAuto::To)));
        SetTenant { share, min_bandwidth, overcommit, max_bandwidth, max_iops, burst, ..SetTenant::default() }
    }
}

/// A tenant on a disk that has a policy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PolicyUser {
    /// The tenant.
    pub tenant: String,
    /// The disk.
    pub disk: String,
}

/// A policy, with its users.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TenantPolicyView {
    /// Its name.
    pub name: String,
    /// The request that would set the same.
    pub spec: SetPolicy,
    /// The tenants that have it, on the disks that are online.
    pub users: Vec<PolicyUser>,
}
