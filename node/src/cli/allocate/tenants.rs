//! Which tenant of a gateway is which tenant of the server: their volumes have the same UUIDs.

use std::collections::{BTreeMap, BTreeSet};

use engine::allocate::Measured;
use uuid::Uuid;

use super::gather::Observed;
use crate::control::view::{DiskEvidence, TenantEvidence, VolumeEvidence};

/// A tenant on a disk of a server, by numbers. Server 0 is the one whose disks are divided.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct At {
    pub(super) server: usize,
    pub(super) disk: usize,
    pub(super) tenant: usize,
}

impl Observed {
    pub(super) fn disk(&self, at: At) -> &DiskEvidence {
        &self.servers[at.server].disks[at.disk].now
    }

    pub(super) fn tenant(&self, at: At) -> &TenantEvidence {
        &self.disk(at).tenants[at.tenant]
    }

    /// What it did in the window, and since the start.
    pub(super) fn loads(&self, at: At) -> Measured {
        self.servers[at.server].disks[at.disk].loads[at.tenant]
    }

    /// The mean latency of its clients' requests in the window, nanoseconds.
    pub(super) fn latency_ns(&self, subject: Subject) -> Option<f64> {
        self.loads(subject.gateway.unwrap_or(subject.server)).window.requests().mean_ns()
    }

    fn all(&self) -> impl Iterator<Item = At> + '_ {
        self.servers.iter().enumerate().flat_map(|(server, of)| {
            let disks = of.disks.iter().enumerate();
            disks.flat_map(move |(disk, of)| (0..of.now.tenants.len()).map(move |tenant| At { server, disk, tenant }))
        })
    }
}

/// A tenant to plan for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    /// On the server.
    pub(super) server: At,
    /// On its gateway, if it has one.
    pub(super) gateway: Option<At>,
}

/// A tenant that keeps what it has, and why.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) at: At,
    pub(super) reason: String,
}

/// Matches the tenants of gateways with those of the server.
pub(super) fn matched(observed: &Observed) -> (Vec<Subject>, Vec<Kept>) {
    let mut owners = BTreeMap::<Uuid, At>::new();
    for at in observed.all().filter(|at| at.server == 0 && !observed.tenant(*at).remote) {
        owners.extend(observed.tenant(at).volumes.iter().map(|volume| (volume.uuid, at)));
    }
    let (mut subjects, mut kept) = (Vec::new(), Vec::new());
    let mut gateways = BTreeMap::<At, Vec<At>>::new();
    for at in observed.all().filter(|at| at.server > 0 && observed.tenant(*at).remote) {
        match owner(&observed.tenant(at).volumes, &owners) {
            Ok(owner) => gateways.entry(owner).or_default().push(at),
            Err(reason) => kept.push(Kept { at, reason }),
        }
    }
    for at in observed.all().filter(|at| at.server == 0 && !observed.tenant(*at).remote) {
        let tenant = observed.tenant(at);
        match gateways.get(&at).map_or(&[][..], Vec::as_slice) {
            [] => subjects.push(Subject { server: at, gateway: None }),
            [gateway] => {
                let there: BTreeSet<Uuid> = observed
                    .tenant(*gateway)
                    .volumes
                    .iter()
                    .flat_map(|volume| volume.from.iter().flatten())
                    .copied()
                    .collect();
                match tenant.volumes.iter().find(|volume| !there.contains(&volume.uuid)) {
                    None => subjects.push(Subject { server: at, gateway: Some(*gateway) }),
                    Some(volume) => {
                        let reason = format!("its volume '{}' is opened without its gateway", volume.volume);
                        kept.push(Kept { at, reason: reason.clone() });
                        kept.push(Kept { at: *gateway, reason });
                    }
                }
            }
            several => {
                let reason = format!("it has {} tenants of gateways: give it one", several.len());
                kept.push(Kept { at, reason: reason.clone() });
                kept.extend(several.iter().map(|&at| Kept { at, reason: reason.clone() }));
            }
        }
    }
    (subjects, kept)
}

/// The tenant of the server that has the data of these volumes.
fn owner(volumes: &[VolumeEvidence], owners: &BTreeMap<Uuid, At>) -> Result<At, String> {
    let mut found = BTreeSet::new();
    for volume in volumes {
        let name = &volume.volume;
        match &volume.from[..] {
            [Some(from)] if volume.shared => return Err(format!("its volume '{name}', from {from}, is shared")),
            [Some(from)] => {
                let owner = owners.get(from);
                found.insert(*owner.ok_or_else(|| format!("its volume '{name}' is not on this server"))?);
            }
            [None] | [] => return Err(format!("its volume '{name}' is on a server of another make")),
            [..] => return Err(format!("its volume '{name}' is striped over several exports")),
        }
    }
    match (found.len(), found.first()) {
        (1, Some(owner)) => Ok(*owner),
        (0, _) => Err("it has no volume that is served".into()),
        (tenants, _) => Err(format!("its volumes belong to {tenants} tenants of the server")),
    }
}
