//! Deleting a volume.

use engine::control::{Command, VolumeStats};
use engine::units::BLOCK;
use tracing::{info, warn};

use super::error::UpstreamError;
use super::volumes::refused;
use super::{Control, Done, Error, Kind, OffloadRefused, VolumeReason, VolumeState, refusal, with_files};
use crate::quantity::{Name, Size};
use crate::store::spec::Allocation;
use crate::store::{LossNote, Spec};

impl Control {
    /// Deletes a volume with its data, unless that is a device or on another server. With `force`, clients are
    /// disconnected, and what a server that is away has not got is lost; otherwise there must be none of either.
    pub async fn delete_volume(&self, name: &Name, force: bool) -> Result<Done, Error> {
        if !force {
            self.refuse_part(name, "deleting")?;
        }
        self.delete(name, force, false).await
    }

    /// The same; of a store if it is to be one.
    pub(super) async fn delete(&self, name: &Name, force: bool, is_store: bool) -> Result<Done, Error> {
        let (_turn, _) = self.change_volume(name).await?;
        self.check_role(name, is_store)?;
        self.delete_now(name, force, is_store).await
    }

    /// The same; the caller has the change lock of its disk.
    pub(super) async fn delete_now(&self, name: &Name, force: bool, is_store: bool) -> Result<Done, Error> {
        // Before its connections, which are those of that disk.
        if let Some(disk) = self.user_of_store(name).filter(|_| is_store && !force) {
            return Err(OffloadRefused::InUse { store: name.clone(), disk }.into());
        }
        let stats = self.stats_of(name).await?;
        let connections = stats.as_ref().map_or(0, |stats| stats.connections);
        if connections > 0 && !force {
            return Err(Error::InUse(Kind::Volume, name.clone(), connections));
        }
        let at_risk = stats.as_ref().and_then(at_risk);
        if let Some(bytes) = at_risk.filter(|&bytes| bytes > 0 && !force) {
            return Err(UpstreamError::Unflushed { volume: name.clone(), bytes }.into());
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
        // A raw device, or an export, keeps everything that was acknowledged. But nothing waits for a server that is
        // away.
        let discard = spec.has_file() || at_risk.is_some();
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
        self.forget_key(&disk, &spec).await;
        if let Some(tenant) = self.take_volume(&disk, name) {
            self.leave_tenant(&disk, &tenant).await;
        }
        self.remember_volumes(&disk).await;
        let message = what_was_deleted(name, &spec, at_risk);
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

    /// What a volume does at present; `None` if it is not served, or its disk does not answer.
    async fn stats_of(&self, name: &Name) -> Result<Option<VolumeStats>, Error> {
        let (disk, id) = self.state().find(name).map(|(disk, volume)| (disk, volume.id()))?;
        let snapshot = self.snapshot(&disk).await;
        let mut volumes = snapshot.iter().flat_map(|snapshot| &snapshot.volumes);
        Ok(volumes.find(|stats| Some(stats.volume) == id).cloned())
    }
}

/// What was deleted, and what stays.
fn what_was_deleted(name: &Name, spec: &Spec, at_risk: Option<u64>) -> String {
    match (&spec.device, &spec.upstream) {
        _ if spec.store => format!("store '{name}' is deleted, with the log in it"),
        (Some(device), _) => {
            format!("volume '{name}' is deleted; the data on {} is unchanged", device.path.display())
        }
        (None, Some(_)) => {
            let lost = at_risk.filter(|&bytes| bytes > 0).map_or_else(String::new, |bytes| {
                format!("; {} of acknowledged data that it did not have are lost", Size(bytes))
            });
            format!("volume '{name}' is deleted; the data of {} is unchanged{lost}", spec.addresses())
        }
        (None, None) => format!("volume '{name}' is deleted"),
    }
}

/// Of a volume of which a server is away, the bytes of acknowledged data that the server may not have, as whole blocks.
/// A block that was written again since it was sent counts twice, a range of zeros as one block.
fn at_risk(stats: &VolumeStats) -> Option<u64> {
    let is_away = stats.upstreams.iter().any(|upstream| !upstream.is_open);
    let away = stats.upstreams.iter().filter(|upstream| !upstream.is_open);
    let unflushed = away.map(|of| u64::from(of.unflushed_zeros) * BLOCK + of.unflushed_bytes).sum::<u64>();
    is_away.then_some(stats.dirty_blocks * BLOCK + unflushed)
}
