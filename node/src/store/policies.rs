//! The named policies of a server, in `DIR/policies.toml`: shares, guarantees and ceilings that several tenants have in
//! common. One file has all of them and is replaced atomically, so a crash leaves the old or the new list.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::{TenantSpec, identity};
use crate::ceiling::{Burst, MaxBandwidth, MaxIops};
use crate::quantity::{Name, Rate, ShareText};

/// The version of the file that this program writes and reads.
const FORMAT: u32 = 1;

/// What a policy determines for each of its users: all of these values. A value that is absent is one that its users do
/// not have, so that a tenant's values follow from its policy alone.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// The fraction of the disk's time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<ShareText>,
    /// The minimum bandwidth, not 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_bandwidth: Option<Rate>,
    /// The most bandwidth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bandwidth: Option<MaxBandwidth>,
    /// The most I/Os a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_iops: Option<MaxIops>,
    /// For how long an unused ceiling is saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
}

impl Policy {
    /// The values of a specification that a policy determines.
    pub fn of(spec: &TenantSpec) -> Policy {
        let TenantSpec { share, min_bandwidth, max_bandwidth, max_iops, burst, .. } = spec.clone();
        Policy { share, min_bandwidth, max_bandwidth, max_iops, burst }
    }

    /// Replaces these values in a specification.
    pub fn give(&self, spec: &mut TenantSpec) {
        let Policy { share, min_bandwidth, max_bandwidth, max_iops, burst } = self.clone();
        spec.auto_share &= share.is_none();
        // A plan stays if the share that was handed to the planner stays, and no other guarantee relies on it.
        let is_handed = spec.share == share && (share.is_some() || spec.auto_share);
        let is_relied_on = min_bandwidth.is_some() && min_bandwidth != spec.min_bandwidth;
        let planned_share = spec.planned_share.take().filter(|_| is_handed && !is_relied_on);
        *spec = TenantSpec { share, planned_share, min_bandwidth, max_bandwidth, max_iops, burst, ..spec.clone() };
    }
}

/// The policies by name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policies {
    format: u32,
    /// The policies by name.
    #[serde(default)]
    pub policies: BTreeMap<Name, Policy>,
}

impl Default for Policies {
    fn default() -> Policies {
        Policies { format: FORMAT, policies: BTreeMap::new() }
    }
}

fn path(data: &Path) -> PathBuf {
    data.join("policies.toml")
}

impl Policies {
    /// Reads the list; without a file it is empty. One that cannot be read is an error: its users would lose their
    /// policy.
    pub fn read(data: &Path) -> anyhow::Result<Policies> {
        let path = path(data);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Policies::default()),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let policies: Policies = toml::from_str(&text).with_context(|| format!("cannot parse {}", path.display()))?;
        if policies.format != FORMAT {
            bail!("{} has format {}, this server knows {FORMAT}", path.display(), policies.format);
        }
        Ok(policies)
    }

    /// Writes the list.
    pub fn write(&self, data: &Path) -> io::Result<()> {
        let text = toml::to_string(self).expect("the policies can be written as TOML");
        identity::replace(&path(data), text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_cannot_be_read_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Policies::read(dir.path()).unwrap(), Policies::default());
        let mut policies = Policies::default();
        let gold = Policy { share: Some("1/4".parse().unwrap()), burst: "10s".parse().ok(), ..Policy::default() };
        policies.policies.insert("gold".parse().unwrap(), gold);
        policies.write(dir.path()).unwrap();
        assert_eq!(Policies::read(dir.path()).unwrap(), policies);
        for wrong in ["format = 2", "", "format = 1\n[policies.gold]\nshare = '2'"] {
            std::fs::write(path(dir.path()), wrong).unwrap();
            assert!(Policies::read(dir.path()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_policy_determines_all_its_values_and_no_others() {
        let mut spec = TenantSpec {
            share: Some("1/2".parse().unwrap()),
            cache: Some(crate::quantity::Size(4096)),
            max_iops: Some("500".parse().unwrap()),
            ..TenantSpec::default()
        };
        let gold = Policy { min_bandwidth: Some(Rate(1 << 20)), ..Policy::default() };
        gold.give(&mut spec);
        assert_eq!(Policy::of(&spec), gold);
        assert_eq!(spec.cache, Some(crate::quantity::Size(4096)));
    }

    #[test]
    fn a_planned_share_stays_as_long_as_what_was_handed_to_the_planner_is_the_same() {
        let of = |share: Option<&str>, auto_share, rate: Option<u64>| TenantSpec {
            share: share.map(|share| share.parse().unwrap()),
            auto_share,
            min_bandwidth: rate.map(Rate),
            planned_share: Some("1/2".parse().unwrap()),
            ..TenantSpec::default()
        };
        let policy = |share: Option<&str>, rate: Option<u64>| Policy {
            share: share.map(|share| share.parse().unwrap()),
            min_bandwidth: rate.map(Rate),
            ..Policy::default()
        };
        for (before, policy, stays) in [
            (of(Some("1/4"), false, None), policy(Some("1/4"), None), true),
            (of(Some("1/4"), false, None), policy(Some("1/3"), None), false),
            (of(Some("1/4"), false, None), policy(None, None), false),
            (of(None, true, None), policy(None, None), true),
            (of(None, true, None), policy(Some("1/4"), None), false),
            (of(None, true, None), policy(None, Some(1 << 20)), false),
            (of(None, true, Some(1 << 20)), policy(None, Some(1 << 20)), true),
            (of(None, true, Some(1 << 20)), policy(None, None), true),
        ] {
            let mut after = before.clone();
            policy.give(&mut after);
            assert_eq!(after.planned_share.is_some(), stays, "{policy:?} for {before:?}");
        }
    }
}
