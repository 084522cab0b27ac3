//! The room in the logs, divided among the tenants of the base.
//!
//! ```text
//!   logs   |─────── first half: not divided ───────────────|── second half: tenants below their share ──|
//! ```
//!
//! So a tenant with a long peak leaves room for others, and without others it has at least half of the logs. Only
//! writes that could go to the base are refused: those of off-loaded ranges have to go to stores.

use super::store::Store;
use super::{Offload, Volume};
use crate::ids::VolumeKey;
use crate::units::Share;

impl Offload {
    /// Whether the tenant of a volume may off-load `bytes` more. `share_ppb` is its part of the base, parts per
    /// billion.
    pub(super) fn has_room(&self, volume: VolumeKey, bytes: u64, share_ppb: impl FnOnce() -> u64) -> bool {
        let open =
            || self.stores.iter().filter(|store| store.is_open() && !store.is_retiring).map(|Store { log, .. }| log);
        let (used, all) = open().fold((0, 0), |(used, all), log| (used + log.used(), all + log.capacity()));
        let tenant = self.volumes.get(volume).and_then(|state| state.tenant);
        if used <= all / 2 || tenant.is_none() {
            return true;
        }
        let is_its = |state: &&Volume| state.tenant == tenant;
        let away: u64 = self.volumes.values().filter(is_its).map(|state| state.away_bytes).sum();
        let part = u128::from(all) * u128::from(share_ppb()) / u128::from(Share::ONE.ppb());
        u128::from(away + bytes) * self.settings.copies as u128 <= part
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::State;
    use super::super::{Initial, Map, Past, Recovered, STORE_BYTES_MIN, Settings, log_bytes};
    use super::*;
    use crate::ids::TenantId;

    #[test]
    fn a_peak_leaves_others_their_share_of_the_logs() {
        let capacity = log_bytes(STORE_BYTES_MIN).unwrap();
        let stores = [1, 2].map(|log| Initial::Scanned(Box::new(Recovered::format(log, capacity)), 0)).to_vec();
        let mut offload = Offload::start(0, Settings::DEFAULT, Past::default(), stores, &[], Map::default());
        offload.stores.iter_mut().for_each(|store| store.state = State::Open);
        for (key, tenant) in [(1, 7), (2, 7), (3, 8)] {
            offload.add_volume(VolumeKey(key));
            offload.set_tenant(VolumeKey(key), TenantId(tenant));
        }
        let half = || 500_000_000;
        // Both volumes of a tenant have all of the room, almost half of the logs.
        offload.volumes[VolumeKey(1)].away_bytes = capacity / 2;
        offload.volumes[VolumeKey(2)].away_bytes = capacity / 2;
        while offload.stores[0].log.used() < capacity {
            if offload.stores[0].log.append(512 << 10, 1).is_none() {
                break;
            }
            assert!(offload.has_room(VolumeKey(1), 4096, half), "one of two logs is half of the room");
        }
        assert!(offload.stores[1].log.append(512 << 10, 1).is_some());
        while offload.stores.iter().map(|store| store.log.used()).sum::<u64>() <= capacity {
            assert!(offload.stores[1].log.append(512 << 10, 1).is_some());
        }
        assert!(!offload.has_room(VolumeKey(1), 4096, half) && !offload.has_room(VolumeKey(2), 4096, half));
        assert!(offload.has_room(VolumeKey(1), 4096, || 600_000_000));
        assert!(offload.has_room(VolumeKey(3), capacity, half), "it has nothing there yet");
        assert!(!offload.has_room(VolumeKey(3), capacity + 1, half));
    }
}
