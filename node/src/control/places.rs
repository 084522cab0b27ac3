//! Places of volumes on simulated drives.

use super::view::SimulatedView;
use super::{Error, Invalid, Running, VolumeReason};
use crate::quantity::Name;
use crate::store::simulated::{self, find_place, room_behind};
use crate::store::spec::Allocation;
use crate::store::{Simulated, Spec};

impl Running {
    /// The ranges of volumes on the drive: first byte and length, bytes.
    fn taken(&self) -> Vec<(u64, u64)> {
        let specs = self.volumes.values().filter_map(|volume| volume.spec.as_ref());
        specs.filter_map(|spec| Some((spec.place?, spec.file_bytes()))).collect()
    }

    fn simulated(&self) -> Option<&Simulated> {
        self.store.identity.simulated.as_ref()
    }

    /// Allocates the place of a new volume, if the disk is simulated and holds its data.
    pub(super) fn take_place(&self, disk: &Name, spec: &mut Spec) -> Result<(), Error> {
        let Some(simulated) = self.simulated().filter(|_| spec.upstream.is_none()) else { return Ok(()) };
        if spec.allocation == Allocation::Full {
            return Err(Invalid::PreallocateSimulated(disk.clone()).into());
        }
        let (taken, asked) = (self.taken(), spec.file_bytes());
        let free = simulated::free(simulated.size, &taken);
        let no_place = |longest| Error::NoPlace { disk: disk.clone(), asked, longest, free };
        spec.place = Some(find_place(simulated.size, &taken, asked).map_err(no_place)?);
        Ok(())
    }

    /// Refuses growth beyond the free range behind a volume.
    pub(super) fn check_growth(&self, name: &Name, from: &Spec, to: &Spec) -> Result<(), Error> {
        let (Some(simulated), Some(place)) = (self.simulated(), from.place) else { return Ok(()) };
        let room = room_behind(simulated.size, &self.taken(), place + from.file_bytes());
        match to.file_bytes() - from.file_bytes() {
            more if more > room => Err(Error::NoRoomBehind { volume: name.clone(), more, room }),
            _ => Ok(()),
        }
    }

    /// The first byte of a volume on the drive, or why its place is invalid.
    pub(super) fn place_of(&self, spec: &Spec) -> Result<u64, VolumeReason> {
        let Some(simulated) = self.simulated() else { return Ok(0) };
        let place = spec.place.ok_or(VolumeReason::NoPlace)?;
        if simulated::holds(simulated.size, place, spec.file_bytes()) {
            return Ok(place);
        }
        Err(VolumeReason::BeyondDrive)
    }

    /// The simulated drive, for the API.
    pub(super) fn simulated_view(&self) -> Option<SimulatedView> {
        let (simulated, model) = (self.simulated()?, self.store.model.as_ref()?);
        Some(SimulatedView {
            description: format!("sim:{}", simulated.name),
            model: model.name.clone(),
            rotational: model.has_heads,
            size_bytes: simulated.size,
            free_bytes: simulated::free(simulated.size, &self.taken()),
        })
    }
}
