//! Limits of connections: per volume, per tenant and per disk, such that no tenant can take all connections of a disk.
//!
//! A place is reserved before the handshake answers GO, so that a refusal can be sent as an answer. It is returned when
//! the thread has forgotten the connection. In addition to the limits, each tenant has some reserved places, which
//! other tenants cannot use. Downside: with n tenants, up to `n x TENANT_PLACES` places stay unused, but at most half
//! of all.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use engine::ids::{TenantId, VolumeId};
use tokio::sync::Semaphore;

use crate::semaphores::Semaphores;

/// Connections that a tenant can always have: enough for a client with several connections, and one more.
const TENANT_PLACES: u32 = 8;

/// Concurrent connections at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Of a disk.
    pub disk: u32,
    /// Of the volumes of one tenant.
    pub tenant: u32,
    /// Of one volume.
    pub volume: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        // A tenant may have half of a disk's connections, and one of its volumes half of those.
        Limits { disk: 1024, tenant: 512, volume: 256 }
    }
}

/// The limit that is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Full {
    /// See [`Limits::volume`].
    #[error(
        "the volume has {0} connections, the most that limits.connections_per_volume allows: close some or raise it"
    )]
    Volume(u32),
    /// See [`Limits::tenant`].
    #[error(
        "its tenant has {0} connections, the most that limits.connections_per_tenant allows: close some or raise it"
    )]
    Tenant(u32),
    /// See [`Limits::disk`].
    #[error(
        "the disk has {0} connections, and limits.connections leaves no more than each other tenant's own: close some \
         or raise it"
    )]
    Disk(u32),
}

/// The places of a disk.
#[derive(Debug)]
pub struct Places {
    limits: Limits,
    disk: Arc<AtomicU32>,
    /// Counts are increased only under this lock. They are decreased without it, since the disk's thread takes no lock.
    table: Mutex<Table>,
    /// Threads that may process TLS connections of one tenant at the same time: its clients' and its upstreams'.
    tls: Semaphores<TenantId>,
}

#[derive(Debug, Default)]
struct Table {
    tenants: HashMap<TenantId, Arc<Holder>>,
    volumes: HashMap<VolumeId, Arc<AtomicU32>>,
}

/// A tenant with connections.
#[derive(Debug)]
struct Holder {
    used: AtomicU32,
    tls: Arc<Semaphore>,
}

/// A place for a connection; dropping it returns it.
#[derive(Debug)]
pub struct Place {
    disk: Arc<AtomicU32>,
    tenant: Arc<Holder>,
    volume: Arc<AtomicU32>,
}

impl Place {
    /// The semaphore that limits work on the tenant's TLS connections: see `tls`.
    pub fn tls(&self) -> Arc<Semaphore> {
        self.tenant.tls.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for used in [&*self.disk, &self.tenant.used, &self.volume] {
            used.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Places {
    /// All places are free.
    pub fn new(limits: Limits) -> Places {
        let tls = Semaphores::new(crate::tls::threads_per_tenant());
        Places { limits, disk: Arc::default(), table: Mutex::default(), tls }
    }

    /// Reserves a place for one more connection to a volume of a tenant. `tenants` is the number of tenants on the
    /// disk.
    pub fn reserve(&self, volume: VolumeId, tenant: TenantId, tenants: usize) -> Result<Place, Full> {
        let mut table = self.table.lock().expect("no one panics while holding it");
        let table = &mut *table;
        table.tenants.retain(|_, holder| holder.used.load(Ordering::Relaxed) > 0);
        table.volumes.retain(|_, used| used.load(Ordering::Relaxed) > 0);
        let own = self.own(tenants);
        // Reserved for the other tenants: those in the table, and those without any connection.
        let others = table.tenants.iter().filter(|(id, _)| **id != tenant);
        let waiting = others.clone().map(|(_, holder)| own.saturating_sub(holder.used.load(Ordering::Relaxed)));
        let absent = tenants.saturating_sub(1 + others.clone().count()) as u32;
        let set_aside = waiting.sum::<u32>() + absent * own;

        let holder = table.tenants.entry(tenant);
        let holder = holder.or_insert_with(|| Arc::new(Holder { used: AtomicU32::new(0), tls: self.tls.of(tenant) }));
        let of_volume = table.volumes.entry(volume).or_default();
        let [disk_used, tenant_used, volume_used] =
            [&*self.disk, &holder.used, of_volume].map(|used| used.load(Ordering::Relaxed));
        if volume_used >= self.limits.volume {
            return Err(Full::Volume(volume_used));
        }
        if tenant_used >= self.limits.tenant {
            return Err(Full::Tenant(tenant_used));
        }
        let kept = if tenant_used < own { 0 } else { set_aside };
        if disk_used + kept >= self.limits.disk {
            return Err(Full::Disk(disk_used));
        }
        for used in [&*self.disk, &holder.used, of_volume] {
            used.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Place { disk: self.disk.clone(), tenant: holder.clone(), volume: of_volume.clone() })
    }

    /// The semaphore that limits work on a tenant's connections over TLS, those to other servers included.
    pub fn tls_gate(&self, tenant: TenantId) -> Arc<Semaphore> {
        self.tls.of(tenant)
    }

    /// Reserved places of each tenant: half of all places, divided evenly, but at most `TENANT_PLACES`.
    fn own(&self, tenants: usize) -> u32 {
        (self.limits.disk / 2 / (tenants.max(1) as u32)).min(TENANT_PLACES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &Places, volume: u32, tenants: usize) -> Vec<Place> {
        // Volume and tenant have the same number, except for its last digit: 10 and 11 are volumes of tenant 1.
        let take = || places.reserve(VolumeId(volume), TenantId(volume / 10), tenants).ok();
        std::iter::from_fn(take).collect()
    }

    #[test]
    fn a_volume_and_a_tenant_have_limits_and_what_is_dropped_is_free_again() {
        let places = Places::new(Limits { disk: 100, tenant: 30, volume: 20 });
        let mut first = take(&places, 10, 2);
        assert_eq!(first.len(), 20);
        assert_eq!(places.reserve(VolumeId(10), TenantId(1), 2).unwrap_err(), Full::Volume(20));
        let second = take(&places, 11, 2);
        assert_eq!(second.len(), 10);
        assert_eq!(places.reserve(VolumeId(12), TenantId(1), 2).unwrap_err(), Full::Tenant(30));
        first.truncate(17);
        assert_eq!(take(&places, 10, 2).len(), 3);
        drop((first, second));
        assert_eq!(take(&places, 10, 2).len(), 20);
    }

    #[test]
    fn all_others_together_leave_each_tenant_its_own_places() {
        let places = Places::new(Limits { disk: 100, tenant: 60, volume: 60 });
        let held = [take(&places, 10, 4), take(&places, 20, 4)];
        assert_eq!(held.each_ref().map(Vec::len), [60, 24], "8 each are set aside for the third and the fourth");
        assert_eq!(places.reserve(VolumeId(20), TenantId(2), 4).unwrap_err(), Full::Disk(84));
        assert_eq!(take(&places, 30, 4).len(), 8);
        assert_eq!(take(&places, 40, 4).len(), 8);
    }

    #[test]
    fn many_tenants_have_few_places_of_their_own_and_half_is_free_for_all() {
        let places = Places::new(Limits { disk: 100, tenant: 100, volume: 100 });
        assert_eq!(take(&places, 10, 50).len(), 51);
        let places = Places::new(Limits { disk: 100, tenant: 100, volume: 100 });
        assert_eq!(take(&places, 10, 1000).len(), 100, "there is no place for each");
    }
}
