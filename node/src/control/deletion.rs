//! Deleting a volume.

use engine::control::Command;
use tracing::{info, warn};

use super::volumes::refused;
use super::{Control, Done, Error, Kind, VolumeReason, VolumeState, refusal, with_files};
use crate::quantity::Name;
use crate::store::spec::Allocation;
use crate::store::{LossNote, Spec};

impl Control {
    /// Deletes a volume with its data, unless that is a device or on another server. With `force`, clients are
    /// disconnected; otherwise there must be none.
    pub async fn delete_volume(&self, name: &Name, force: bool) -> Result<Done, Error> {
        let (_turn, _) = self.change_volume(name).await?;
        let connections = if force { 0 } else { self.connections_of(name).await? };
        if connections > 0 {
            return Err(Error::InUse(Kind::Volume, name.clone(), connections));
        }
        let (disk, id, spec, store, thread) = {
            let state = self.state();
            let (disk, volume) = state.find(name)?;
            if volume.progress().is_some() {
                return Err(Error::Busy(Kind::Volume, name.clone()));
            }
            let running = state.disk(&disk)?;
            let spec = volume.spec.clone().unwrap_or_else(|| Spec::new(0, None, Allocation::Whole));
            (disk.clone(), volume.id(), spec, running.store.clone(), running.thread.clone())
        };
        self.keep_earlier_allotment(&disk, name, &spec, &store).await?;
        // A raw device, or an export, keeps everything that was acknowledged.
        let discard = spec.has_file();
        if let Some(volume) = id.filter(|_| !discard) {
            refusal(thread.command(Command::CloseVolume { volume, discard }).await)
                .map_err(|refusal| refused(name, refusal))?;
            if let Some(volume) = self.state().volume_mut(&disk, name) {
                volume.state = VolumeState::Offline(VolumeReason::Deleting);
            }
        }
        let removed = spec.clone();
        let _recording = self.recording.wait(name).await;
        with_files(&store, name, move |files| files.unpublish(&removed)).await??;
        if let Some(volume) = id.filter(|_| discard) {
            refusal(thread.command(Command::CloseVolume { volume, discard }).await)
                .map_err(|refusal| refused(name, refusal))?;
        }
        if let Some(tenant) = self.take_volume(&disk, name) {
            self.leave_tenant(&disk, &tenant).await;
        }
        self.remember_volumes(&disk).await;
        let message = match (&spec.device, &spec.upstream) {
            (Some(device), _) => {
                format!("volume '{name}' is deleted; the data on {} is unchanged", device.path.display())
            }
            (None, Some(remote)) => format!("volume '{name}' is deleted; the data of {} is unchanged", remote.from),
            (None, None) => format!("volume '{name}' is deleted"),
        };
        let note = LossNote::new(&self.config.data, &store, name, &spec);
        let discarded = with_files(&store, name, move |files| {
            if let Err(error) = note.remove_own() {
                warn!("the loss record of a deleted volume cannot be removed; it has no effect: {error}");
            }
            files.discard(&spec)
        });
        let discarded = discarded.await?;
        let message = match discarded {
            Ok(()) => message,
            Err(error) => format!("{message}, but its data could not be removed: {error}"),
        };
        info!(%disk, volume = %name, "deleted");
        Ok(Done { message, disk: None, volume: None, tenant: None })
    }

    /// The connections of a volume; 0 if its disk does not answer.
    async fn connections_of(&self, name: &Name) -> Result<u32, Error> {
        let (disk, id) = self.state().find(name).map(|(disk, volume)| (disk, volume.id()))?;
        let snapshot = self.snapshot(&disk).await;
        let volumes = snapshot.iter().flat_map(|snapshot| &snapshot.volumes);
        Ok(volumes.filter(|stats| Some(stats.volume) == id).map(|stats| stats.connections).sum())
    }
}
