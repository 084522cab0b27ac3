//! Losses, noted where they survive the server: see `store/loss.rs`.

use std::sync::Arc;
use std::time::Duration;

use engine::control::Snapshot;
use tracing::{error, warn};

use super::{Control, blocking};
use crate::quantity::Name;
use crate::store::LossNote;

/// How long a note may take to be on the medium: a device that hangs must not keep the server from ending.
const NOTE_TIMEOUT: Duration = Duration::from_secs(2);

impl Control {
    /// Notes that acknowledged data of these volumes was lost: it is told again after a restart.
    pub(super) async fn remember_lost(&self, disk: &Name, volumes: &[Name]) {
        for name in volumes {
            let note = {
                let mut state = self.state();
                let Ok(running) = state.disk_mut(disk) else { return };
                let store = running.store.clone();
                let Some(volume) = running.volumes.get_mut(name) else { continue };
                let Some(spec) = &volume.spec else { continue };
                volume.loss_noted = true;
                LossNote::new(&self.config.data, &store, name, spec)
            };
            let mut failures = Vec::new();
            for place in note.places() {
                let making = place.clone();
                let made = tokio::time::timeout(NOTE_TIMEOUT, blocking(move || LossNote::make_at(&making))).await;
                let why = match made {
                    Ok(Ok(Ok(()))) => continue,
                    Ok(Ok(Err(error))) => error.to_string(),
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => "its device does not answer".into(),
                };
                failures.push(format!("{} ({why})", place.display()));
            }
            match &failures[..] {
                [] => {}
                [one] => warn!(%disk, volume = %name, "of the two notes of its loss, one cannot be made: {one}"),
                all => {
                    let at = all.join(", nor at ");
                    error!(%disk, volume = %name, "its loss will be forgotten at a restart, not noted at {at}");
                }
            }
        }
    }

    /// Losses that the disk's machine has told and that are not noted yet: a loss that is known outlives a server that
    /// is killed, too.
    pub(super) fn note_losses(self: &Arc<Control>, disk: &Name, snapshot: &Snapshot) {
        if self.unnoted(disk, snapshot).is_empty() {
            return;
        }
        let (control, disk) = (self.clone(), disk.clone());
        tokio::spawn(async move {
            // With the turn, since an operator may accept the loss at this moment.
            let Ok(_turn) = control.change().await else { return };
            let Some(snapshot) = control.snapshot(&disk).await else { return };
            let lost = control.unnoted(&disk, &snapshot);
            control.remember_lost(&disk, &lost).await;
        });
    }

    fn unnoted(&self, disk: &Name, snapshot: &Snapshot) -> Vec<Name> {
        let lost = |id| snapshot.volumes.iter().any(|stats| stats.volume == id && stats.lost);
        let state = self.state();
        let Ok(running) = state.disk(disk) else { return Vec::new() };
        let served = running.volumes.iter().filter(|(_, volume)| !volume.loss_noted && volume.id().is_some_and(lost));
        served.map(|(name, _)| name.clone()).collect()
    }
}
