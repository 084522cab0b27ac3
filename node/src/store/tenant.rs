//! A tenant's specification on one disk: what is requested for it, and what was decided.
//!
//! It is stored on the disk, in the catalogue, so that a disk that moves to another server keeps the promises of its
//! time. A tenant on several disks has a specification on each. A tenant without a specification has no requests.
//!
//! Downside: a tenant exists on a disk as long as it has a volume there; its specification goes with its last volume.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use engine::control::{CacheSpec, Ceilings};
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::spec::{EarlierAllotment, Eviction};
use super::{ChangeError, Key, LoadError, Spec, Store, StoreError};
use crate::ceiling::{Burst, MaxBandwidth, MaxIops};
use crate::quantity::{Name, OrAuto, Rate, ShareText, Size};

/// The version of specifications that this program writes and reads.
const FORMAT: u32 = 1;

/// Why a text is not a tenant's specification.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    #[error("{}", .0.message())]
    Syntax(Box<toml::de::Error>),
    #[error("its format is {0}, this server knows {FORMAT}")]
    Format(u32),
}

/// The content of `tenants/NAME.toml`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantSpec {
    /// The version of the format.
    pub format: u32,
    /// The policy of the server whose values it has: all that follow here, except the cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Name>,
    /// The requested fraction of the disk's time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<ShareText>,
    /// The requested minimum bandwidth, not 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_bandwidth: Option<Rate>,
    /// The requested cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<Size>,
    /// Its share is handed to the planner of allocations. It has none of its own then.
    #[serde(default, skip_serializing_if = "is_false")]
    pub auto_share: bool,
    /// Its cache is handed to the planner of allocations. It has no size of its own then.
    #[serde(default, skip_serializing_if = "is_false")]
    pub auto_cache: bool,
    /// The share that the planner of allocations has found, which promises nothing beyond `share`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_share: Option<ShareText>,
    /// The cache that it has found, which promises nothing beyond `cache`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_cache: Option<Size>,
    /// The partition size that was decided after a trial, if none was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided: Option<Size>,
    /// The eviction policy of the partition.
    #[serde(default, skip_serializing_if = "Eviction::is_default")]
    pub eviction: Eviction,
    /// The most bandwidth that its clients get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bandwidth: Option<MaxBandwidth>,
    /// The most I/Os a second that its clients get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_iops: Option<MaxIops>,
    /// For how long an unused ceiling is saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
}

impl Default for TenantSpec {
    fn default() -> TenantSpec {
        TenantSpec {
            format: FORMAT,
            policy: None,
            share: None,
            min_bandwidth: None,
            cache: None,
            auto_share: false,
            auto_cache: false,
            planned_share: None,
            planned_cache: None,
            decided: None,
            eviction: Eviction::default(),
            max_bandwidth: None,
            max_iops: None,
            burst: None,
        }
    }
}

impl TenantSpec {
    /// Parses a specification.
    pub fn parse(text: &str) -> Result<TenantSpec, TenantError> {
        let spec: TenantSpec = toml::from_str(text).map_err(|error| TenantError::Syntax(Box::new(error)))?;
        if spec.format == FORMAT { Ok(spec) } else { Err(TenantError::Format(spec.format)) }
    }

    /// The content of the file.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a specification can be written as TOML")
    }

    /// The cache, for the disk's engine.
    pub fn cache_spec(&self) -> CacheSpec {
        match (self.cache, self.planned_cache, self.decided) {
            (asked, Some(planned), _) => {
                CacheSpec::Planned { asked: asked.map_or(0, |asked| asked.0), planned: planned.0 }
            }
            (Some(asked), None, _) => CacheSpec::Asked(asked.0),
            (None, None, Some(decided)) => CacheSpec::Decided(decided.0),
            (None, None, None) => CacheSpec::Trial,
        }
    }

    /// Parts per billion of disk time that the planner has found beyond what is requested; `None` without a plan.
    pub fn planned_ppb(&self) -> Option<u64> {
        let asked = self.share.as_ref().map_or(0, |share| share.share.ppb());
        Some(self.planned_share.as_ref()?.share.ppb().saturating_sub(asked))
    }

    /// The cache as it was requested.
    pub fn handed_cache(&self) -> Option<OrAuto<Size>> {
        OrAuto::join(self.cache, self.auto_cache)
    }

    /// Whether it has a ceiling.
    pub fn has_ceiling(&self) -> bool {
        self.max_bandwidth.is_some() || self.max_iops.is_some()
    }

    /// The ceilings, for the disk's engine.
    pub fn ceilings(&self) -> Ceilings {
        Ceilings {
            bytes: self.max_bandwidth.map(|most| most.0).unwrap_or_default(),
            ios: self.max_iops.map(|most| most.0).unwrap_or_default(),
            burst_ns: self.burst.unwrap_or_default().ns(),
        }
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl From<EarlierAllotment> for TenantSpec {
    fn from(earlier: EarlierAllotment) -> TenantSpec {
        let EarlierAllotment { share, cache, decided, eviction, sequence: _ } = earlier;
        TenantSpec { share, cache, decided, eviction, ..TenantSpec::default() }
    }
}

/// The specification that volumes of a tenant, as earlier releases stored them, make for it: that of the latest
/// allotment.
pub fn earlier<'a>(volumes: impl Iterator<Item = &'a Spec>) -> Option<TenantSpec> {
    let latest = volumes.filter_map(|spec| spec.allotment.as_ref()).max_by_key(|allotment| allotment.sequence);
    latest.cloned().map(TenantSpec::from)
}

impl Store {
    /// The specification of a tenant, if it has one.
    pub fn tenant(&self, name: &Name) -> Result<Option<TenantSpec>, LoadError> {
        let path = || self.catalogue.place(Key::Tenant(name));
        let text = self.catalogue.get(Key::Tenant(name)).map_err(|source| LoadError::Read { path: path(), source })?;
        let wrong = |source| LoadError::ParseTenant { path: path(), source };
        text.map(|text| TenantSpec::parse(&text).map_err(wrong)).transpose()
    }

    /// Creates or replaces the specification of a tenant. From then on, earlier releases refuse the disk: they would
    /// serve it without this specification.
    pub fn put_tenant(&self, name: &Name, spec: &TenantSpec) -> Result<(), StoreError> {
        self.upgrade()?;
        let put = self.catalogue.put(Key::Tenant(name), &spec.to_toml());
        put.map_err(|source| self.tenant_step(name, "writing the tenant's specification", source))
    }

    /// Removes the specification of a tenant, if it has one.
    pub fn remove_tenant(&self, name: &Name) -> Result<(), StoreError> {
        let removed = self.catalogue.remove(Key::Tenant(name));
        removed.map_err(|source| self.tenant_step(name, "removing the tenant's specification", source))
    }

    fn tenant_step(&self, name: &Name, doing: &str, source: io::Error) -> StoreError {
        StoreError::Step { doing: doing.into(), path: self.catalogue.place(Key::Tenant(name)), source }
    }

    /// The specifications of the tenants of these volumes. Those that earlier releases stored with the volumes are
    /// moved to the tenants, unless a volume is not known, which may have a later one. If this fails, it is repeated at
    /// the next start: the volumes keep them. Specifications without volumes, which a crash has left, are removed.
    /// While a volume's tenant is not known, they are among the answer: one of them may be that of this tenant.
    pub(super) fn tenants_of(
        &self,
        volumes: &BTreeMap<Name, Result<Spec, LoadError>>,
    ) -> io::Result<BTreeMap<Name, TenantSpec>> {
        let known = || volumes.iter().filter_map(|(name, spec)| Some((name, spec.as_ref().ok()?)));
        let names: BTreeSet<Name> = known().map(|(name, spec)| spec.tenant(name)).collect();
        let are_all_known = known().count() == volumes.len();
        if are_all_known {
            for orphan in self.catalogue.tenants()?.difference(&names) {
                self.catalogue.remove(Key::Tenant(orphan))?;
            }
        }
        let mut specs = BTreeMap::new();
        if !are_all_known {
            for orphan in self.catalogue.tenants()?.difference(&names) {
                match self.tenant(orphan) {
                    Ok(spec) => specs.extend(spec.map(|spec| (orphan.clone(), spec))),
                    Err(error) => warn!(tenant = %orphan, "its share does not count: {error}"),
                }
            }
        }
        for name in names {
            // A volume whose tenant's specification is unreadable is not in the list of known volumes. An error that
            // arises only now is not the absence of a specification, either: an earlier one would replace it.
            if let Some(spec) = self.tenant(&name).map_err(io::Error::other)? {
                specs.insert(name, spec);
                continue;
            }
            let members = known().filter(|(volume, spec)| spec.tenant(volume) == name);
            let spec = earlier(members.map(|(_, spec)| spec)).unwrap_or_default();
            if spec == TenantSpec::default() {
                continue;
            }
            let moved = if are_all_known { self.put_tenant(&name, &spec) } else { Ok(()) };
            if let Err(error) = moved {
                warn!(tenant = %name, "its specification of an earlier release stays with its volumes: {error}");
            }
            specs.insert(name, spec);
        }
        Ok(specs)
    }

    /// Makes earlier releases refuse the disk.
    pub(super) fn upgrade(&self) -> Result<(), ChangeError> {
        let mut is_upgraded = self.writing.lock().expect("nobody panics while holding it");
        if !*is_upgraded {
            self.rewrite(&is_upgraded, |_| {})?;
            *is_upgraded = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_other_formats_are_refused() {
        let spec = TenantSpec {
            share: Some("1/4".parse().unwrap()),
            min_bandwidth: Some(Rate(30 << 20)),
            cache: Some(Size(8 << 20)),
            eviction: Eviction::Sieve,
            max_bandwidth: Some("read=50MiB/s,write=10MiB/s".parse().unwrap()),
            burst: Some("10s".parse().unwrap()),
            ..TenantSpec::default()
        };
        assert_eq!(TenantSpec::parse(&spec.to_toml()).unwrap(), spec);
        assert_eq!(TenantSpec::parse("format = 1").unwrap(), TenantSpec::default());
        let earlier = TenantSpec::parse("format = 1\nshare = '1/4'\ncache = '8MiB'\neviction = 'sieve'").unwrap();
        let as_then = TenantSpec { min_bandwidth: None, max_bandwidth: None, burst: None, ..spec };
        assert_eq!(earlier, as_then, "written by earlier releases");
        assert!(matches!(TenantSpec::parse("format = 2"), Err(TenantError::Format(2))));
        let handed = TenantSpec {
            auto_share: true,
            planned_share: Some("0.25".parse().unwrap()),
            auto_cache: true,
            planned_cache: Some(Size(64 << 20)),
            ..TenantSpec::default()
        };
        assert_eq!(TenantSpec::parse(&handed.to_toml()).unwrap(), handed);
        assert_eq!(handed.cache_spec(), CacheSpec::Planned { asked: 0, planned: 64 << 20 });
        for wrong in ["", "format = 1\nshare = '2'", "format = 1\nguarantee = '1MiB'"] {
            assert!(matches!(TenantSpec::parse(wrong), Err(TenantError::Syntax(_))), "{wrong}");
        }
    }
}
