//! The state of all disks and volumes, offline ones included, as metrics for alerting need it.

use std::time::{Duration, SystemTime};

use super::live::policy_view;
use super::shares::Shares;
use super::{Control, VolumeState, blocking};
use crate::quantity::Name;
use crate::store::file;

/// The time limit for reading a file system's free space.
const SPACE_TIMEOUT: Duration = Duration::from_secs(2);

/// The state of the server.
#[derive(Debug, Default)]
pub struct Standing {
    /// When the server started, seconds since 1970.
    pub started_s: f64,
    /// Its disks.
    pub disks: Vec<DiskStanding>,
}

/// The state of a disk.
#[derive(Debug)]
pub struct DiskStanding {
    /// Its name.
    pub name: Name,
    /// Whether it is online.
    pub online: bool,
    /// Size and free space of its file system or simulated drive, bytes.
    pub space: Option<(u64, u64)>,
    /// R: requested and effective.
    pub insulation: Option<(f64, Option<f64>)>,
    /// Its volumes: name, tenant, and whether each is served.
    pub volumes: Vec<(Name, Name, bool)>,
    /// Volume, tenant, and how often the volume's access list refused a client.
    pub refusals: Vec<(Name, Name, u64)>,
    /// Its tenants that have disk time, and their effective shares, 0 to 1.
    pub shares: Vec<(Name, f64)>,
}

impl Control {
    /// The state of all disks and volumes, offline ones included.
    pub async fn standing(&self) -> Standing {
        let names: Vec<Name> = self.state().disks.keys().cloned().collect();
        let disks = names.iter().map(|name| self.disk_standing(name));
        let disks = futures::future::join_all(disks).await.into_iter().flatten().collect();
        let started = SystemTime::now().checked_sub(self.started.elapsed());
        let since = started.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()).unwrap_or_default();
        Standing { started_s: since.as_secs_f64(), disks }
    }

    async fn disk_standing(&self, name: &Name) -> Option<DiskStanding> {
        let snapshot = self.snapshot(name).await;
        let (mut standing, directory) = {
            let state = self.state();
            let disk = state.disks.get(name)?;
            match &disk.state {
                Err(_) => (self.offline_standing(&state, name), None),
                Ok(running) => {
                    let chosen = self.chosen(name, &running.store);
                    let insulation = policy_view(running, &chosen, snapshot.as_deref()).insulation;
                    let shares = Shares::of(running);
                    let (volumes, refusals) = running
                        .volumes
                        .iter()
                        .map(|(name, volume)| {
                            let tenant = volume.spec.as_ref().map_or_else(|| name.clone(), |spec| spec.tenant(name));
                            let is_served = matches!(volume.state, VolumeState::Serving { .. });
                            ((name.clone(), tenant.clone(), is_served), (name.clone(), tenant, volume.refusals))
                        })
                        .unzip();
                    let tenants = running.tenants.keys();
                    let standing = DiskStanding {
                        name: name.clone(),
                        online: true,
                        space: running.simulated_view().map(|drive| (drive.size_bytes, drive.free_bytes)),
                        insulation: Some((insulation.requested, insulation.effective)),
                        volumes,
                        refusals,
                        shares: tenants.filter_map(|name| Some((name.clone(), shares.effective(name)?))).collect(),
                    };
                    (standing, Some(running.store.directory().to_owned()))
                }
            }
        };
        if let (None, Some(directory)) = (standing.space, directory) {
            let space = tokio::time::timeout(SPACE_TIMEOUT, blocking(move || file::space(&directory)));
            standing.space = space.await.ok().and_then(Result::ok).flatten();
        }
        Some(standing)
    }

    fn offline_standing(&self, state: &super::State, name: &Name) -> DiskStanding {
        let known = state.remembered.get(name).into_iter().flatten();
        let volumes = known
            .map(|(volume, known)| (volume.clone(), known.tenant.clone().unwrap_or_else(|| volume.clone()), false));
        DiskStanding {
            name: name.clone(),
            online: false,
            space: None,
            insulation: None,
            volumes: volumes.collect(),
            refusals: Vec::new(),
            shares: Vec::new(),
        }
    }
}
