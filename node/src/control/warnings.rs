//! What an operator should know of a volume that is served.

use engine::control::VolumeStats;

use super::upstreams::upstream_warnings;
use super::{Running, Volume};
use crate::quantity::Name;
use crate::store::spec::WriteCache;

/// What an operator should know of a volume.
pub(super) fn volume_warnings(
    (disk, running): (&Name, &Running),
    name: &Name,
    volume: &Volume,
    stats: Option<&VolumeStats>,
) -> Vec<String> {
    let mut warnings = Vec::new();
    if volume.spec.as_ref().is_some_and(|spec| spec.write_cache == WriteCache::Unsafe) {
        warnings.push("write_cache=unsafe: flushed data may be lost when the server stops unexpectedly".into());
    }
    let device = volume.spec.as_ref().and_then(|spec| spec.device.as_ref());
    if device.is_some_and(|device| device.facts.is_empty()) {
        warnings.push("its device has no serial number or other identifier: it is recognised by its size only".into());
    }
    let is_marked = volume.spec.as_ref().is_some_and(|spec| spec.offload);
    let is_affected = stats.is_some_and(|stats| stats.failing || stats.offloaded_bytes > 0);
    let of_stores = if is_marked && is_affected { running.store_warnings(disk) } else { Vec::new() };
    if stats.is_some_and(|stats| stats.failing) {
        warnings.push(match of_stores.is_empty() {
            true => "the last write to the device failed: flushes fail until one succeeds".into(),
            false => "the last write failed, at the device or at a store: flushes fail until one succeeds".into(),
        });
    }
    warnings.extend(of_stores);
    if stats.is_some_and(|stats| stats.lost) {
        warnings.push(format!("acknowledged data is lost: flushes fail until `aerogel volume clear {name}`"));
    }
    warnings.extend(upstream_warnings(volume, stats));
    let tenant = volume.spec.as_ref().and_then(|spec| running.tenants.get(&spec.tenant(name)));
    if let Some(why) = tenant.and_then(|tenant| tenant.warning.as_ref()) {
        warnings.push(format!("it runs without the requested cache: {why}"));
    }
    warnings
}
