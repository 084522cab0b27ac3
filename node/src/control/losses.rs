//! Records losses where they survive a restart of the server: see `store/loss.rs`.

use std::sync::Arc;
use std::time::Duration;

use engine::control::Snapshot;
use tracing::{error, warn};

use super::{Control, blocking};
use crate::quantity::Name;
use crate::store::LossNote;

/// The time limit for making a record durable: a hung device must not keep the server from ending.
const NOTE_TIMEOUT: Duration = Duration::from_secs(2);

impl Control {
    /// Records that these volumes have a loss, so that it is reported after a restart, too.
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
                [one] => warn!(%disk, volume = %name, "one of the two records of its loss cannot be written: {one}"),
                all => {
                    let at = all.join(", nor at ");
                    error!(%disk, volume = %name, "its loss is forgotten at a restart: it cannot be recorded at {at}");
                }
            }
        }
    }

    /// Records losses that the disk's engine has reported and that are not recorded yet, so that a known loss survives
    /// even if the server is killed.
    pub(super) fn note_losses(self: &Arc<Control>, disk: &Name, snapshot: &Snapshot) {
        if self.unnoted(disk, snapshot).is_empty() {
            return;
        }
        // Needs the disk's change lock, since an operator may be accepting the loss. If it is taken, the next snapshot
        // is soon enough.
        let Some(turn) = self.turns.take(disk) else { return };
        let (control, disk) = (self.clone(), disk.clone());
        tokio::spawn(async move {
            let _turn = turn;
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
