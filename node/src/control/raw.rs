//! Raw volumes: the devices and drives of a disk, and which volume has which device.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use tracing::warn;

use super::view::{CreateVolume, DataKind};
use super::{Control, Disk, Error, Invalid, Running, Source, State, VolumeState, blocking};
use crate::quantity::Name;
use crate::store::raw::{self, Claim, TIMEOUT};
use crate::store::spec::Allocation;
use crate::store::{DataId, Kernel, Raw, RawError};

/// A claimed device for a new volume.
#[derive(Debug)]
pub struct Chosen {
    /// The device, as it will be recognised later.
    pub device: Raw,
    /// The volume's size, bytes.
    pub size: u64,
    /// The claim, which is held already.
    pub claim: Claim,
}

impl Control {
    /// The device that a request names, checked and claimed. Nothing is written to it, and it is not recorded anywhere
    /// yet.
    pub(super) async fn choose_device(&self, request: &CreateVolume, disk: &Name) -> Result<Option<Chosen>, Error> {
        let Some(path) = request.device.clone() else { return Ok(None) };
        if !Path::new(&path).is_absolute() {
            return Err(Invalid::RelativeDevice(path).into());
        }
        if request.allocation == Allocation::Full {
            return Err(Invalid::PreallocateDevice.into());
        }
        if self.state().disk(disk)?.store.model.is_some() {
            return Err(Invalid::DeviceOnSimulated(disk.clone()).into());
        }
        let find = move || -> Result<_, RawError> {
            let path = Path::new(&path);
            Ok((raw::number(path)?, Raw::find(path, &Kernel::default())?))
        };
        let (number, device) = blocking(find).await??;
        self.check_free(number, &device)?;
        if !request.force {
            self.check_drives(number, &device.path.display().to_string(), Some(disk))?;
        }
        let size = request.size.map_or(device.usable_bytes(), |size| size.0);
        check_size(&device, size)?;
        let force = request.force;
        let chosen = blocking(move || {
            let claim = device.claim(&Kernel::default(), size, Instant::now() + TIMEOUT)?;
            match device.refuse_content(&claim) {
                Err(error) if !force => return Err(error),
                Err(error) => warn!("{error}: used anyway (--force)"),
                Ok(()) => {}
            }
            Ok(Chosen { device, size, claim })
        });
        Ok(Some(chosen.await??))
    }

    /// Refuses a device that is the data of a known volume, served or not.
    fn check_free(&self, number: u64, device: &Raw) -> Result<(), RawError> {
        let state = self.state();
        let running = state.disks.values().filter_map(|disk| disk.state.as_ref().ok());
        let mut volumes = running.flat_map(|running| &running.volumes);
        let taken = volumes.find(|(_, volume)| {
            let Some(known) = volume.spec.as_ref().and_then(|spec| spec.device.as_ref()) else { return false };
            match volume.state {
                VolumeState::Serving { source: Source::Local(data), .. } => data == DataId::Device(number),
                _ => known.path == device.path || !known.facts.is_empty() && known.facts == device.facts,
            }
        });
        match taken {
            Some((volume, _)) => Err(RawError::Taken { path: device.path.clone(), volume: volume.to_string() }),
            None => Ok(()),
        }
    }

    /// Refuses a device that shares a drive with another disk, since the two would compete for the drive's time.
    pub(super) fn check_drives(&self, device: u64, path: &str, own: Option<&Name>) -> Result<(), Error> {
        let drives = Kernel::default().drives(device);
        let state = self.state();
        let mut others = state.disks.iter().filter(|(name, _)| Some(*name) != own);
        match others.find(|(_, disk)| !disk.drives().is_disjoint(&drives)) {
            Some((other, _)) => Err(Error::SameDevice { path: path.to_owned(), other: other.clone() }),
            None => Ok(()),
        }
    }
}

/// Checks the size of a volume on a device: it must be whole blocks, since there are no zeros behind the end to fill
/// one.
pub(super) fn check_size(device: &Raw, size: u64) -> Result<(), Error> {
    if !size.is_multiple_of(engine::units::BLOCK) {
        return Err(Invalid::SizeOnDevice.into());
    }
    if size == 0 || size > device.size {
        let needed = size.max(engine::units::BLOCK);
        return Err(RawError::TooSmall { path: device.path.clone(), size: device.size, needed }.into());
    }
    Ok(())
}

impl Disk {
    /// The drives below its volumes. Empty if the disk is offline, or simulated and so independent of the real drives.
    fn drives(&self) -> BTreeSet<u64> {
        let running = self.state.as_ref().ok().filter(|running| running.store.model.is_none());
        running.map(Running::drives).unwrap_or_default()
    }
}

impl State {
    /// Other disks on the same drives.
    pub(super) fn neighbours(&self, name: &Name) -> Vec<Name> {
        let drives = self.disks.get(name).map(Disk::drives).unwrap_or_default();
        let others = self.disks.iter().filter(|(other, disk)| *other != name && !disk.drives().is_disjoint(&drives));
        others.map(|(other, _)| other.clone()).collect()
    }
}

impl Running {
    /// Whether its volumes are files or raw devices.
    pub(super) fn data_kind(&self) -> DataKind {
        let is_raw = |spec: &crate::store::Spec| spec.device.is_some();
        let specs = self.volumes.values().filter_map(|volume| volume.spec.as_ref());
        let specs = || specs.clone().filter(|spec| spec.upstream.is_none());
        match (specs().any(is_raw), specs().all(is_raw)) {
            (false, _) => DataKind::Files,
            (true, true) => DataKind::Raw,
            (true, false) => DataKind::Both,
        }
    }

    /// The devices of its volumes: those of raw volumes, and that of its directory unless all volumes are raw.
    pub(super) fn devices(&self) -> BTreeSet<u64> {
        let served = self.volumes.values().filter_map(|volume| match volume.state {
            VolumeState::Serving { source: Source::Local(DataId::Device(number)), .. } => Some(number),
            _ => None,
        });
        let directory = (self.data_kind() != DataKind::Raw).then_some(self.store.device);
        served.chain(directory).collect()
    }

    /// If all volumes are raw, the devices of those that are served; a probe reads them instead of a scratch file.
    /// Otherwise empty.
    pub(super) fn raw_devices(&self) -> Vec<(Raw, u64)> {
        if self.data_kind() != DataKind::Raw {
            return Vec::new();
        }
        let served = self.volumes.values().filter_map(|volume| match (&volume.state, &volume.spec) {
            (VolumeState::Serving { source: Source::Local(DataId::Device(number)), .. }, Some(spec)) => {
                Some((spec.device.clone()?, *number))
            }
            _ => None,
        });
        served.collect()
    }

    /// The largest block size of its devices, bytes.
    pub(super) fn block(&self) -> u32 {
        let served = self.volumes.values().filter_map(|volume| match volume.state {
            VolumeState::Serving { source: Source::Local(_), block, .. } => Some(block),
            _ => None,
        });
        served.max().unwrap_or(self.store.abilities.device_block)
    }

    /// The drives below its devices.
    pub(super) fn drives(&self) -> BTreeSet<u64> {
        let kernel = Kernel::default();
        self.devices().into_iter().flat_map(|device| kernel.drives(device)).collect()
    }
}
