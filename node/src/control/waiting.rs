//! Volumes whose data is busy, such as that of a killed server until the kernel has completed its last request. Each is
//! opened as soon as its data is free; nothing waits for it.
//!
//! An attempt is an open and a lock without blocking, at most once per [`RETRY_MAX`], so nothing has to be cancelled at
//! the end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::{Control, VolumeState};
use crate::quantity::Name;
use crate::store::DataError;

/// How long a start, or `disk add`, waits for busy volumes before it continues without them. On a working device, the
/// kernel completes a killed server's requests and closes its files within milliseconds, and clients that reconnect at
/// once find their volumes.
const GRACE: Duration = Duration::from_secs(1);
/// The first interval of attempts.
const RETRY: Duration = Duration::from_millis(10);
/// The longest interval of attempts: a volume is served at most this long after its data is free.
const RETRY_MAX: Duration = Duration::from_millis(500);

impl Control {
    /// Waits briefly for busy volumes of a disk. Those that are still busy then are opened by [`Control::open_later`].
    /// The caller holds the disk's change lock.
    pub(super) async fn settle(&self, disk: &Name) {
        let deadline = Instant::now() + GRACE;
        while self.open_waiting(disk).await && Instant::now() < deadline {
            tokio::time::sleep(RETRY).await;
        }
        for (disk, name, reason) in self.waiting(Some(disk)) {
            warn!(%disk, volume = %name, "not served yet: {reason}");
        }
        self.waiting.notify_one();
    }

    /// Opens volumes as soon as their data is free, until the server shuts down.
    pub async fn open_later(self: Arc<Control>) {
        loop {
            self.waiting.notified().await;
            let mut pause = RETRY;
            while !self.waiting(None).is_empty() {
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(RETRY_MAX);
                if self.is_shutting_down() {
                    return;
                }
                self.try_waiting();
            }
        }
    }

    /// Tries the busy volumes again, each disk in a task of its own, so that a hung disk does not delay the others.
    fn try_waiting(self: &Arc<Control>) {
        let disks: BTreeSet<Name> = self.waiting(None).into_iter().map(|(disk, ..)| disk).collect();
        for disk in disks {
            // While the disk is being changed, the next attempt is soon enough.
            let Some(turn) = self.turns.take(&disk) else { continue };
            let control = self.clone();
            tokio::spawn(async move {
                let _turn = turn;
                control.open_waiting(&disk).await;
            });
        }
    }

    /// Tries each busy volume of a disk again. Returns whether any still is busy.
    async fn open_waiting(&self, disk: &Name) -> bool {
        for (disk, name, _) in self.waiting(Some(disk)) {
            self.try_open(&disk, &name).await;
            if self.state().volume_mut(&disk, &name).is_some_and(|volume| volume.id().is_some()) {
                info!(%disk, volume = %name, "its data is not busy any more: it is served now");
            }
        }
        !self.waiting(Some(disk)).is_empty()
    }

    /// Busy volumes: disk, name, reason.
    fn waiting(&self, only: Option<&Name>) -> Vec<(Name, Name, Arc<DataError>)> {
        let mut waiting = Vec::new();
        let state = self.state();
        let running = state.disks.iter().filter_map(|(name, disk)| Some((name, disk.state.as_ref().ok()?)));
        for (disk, running) in running.filter(|(name, _)| only.is_none_or(|only| only == *name)) {
            for (name, volume) in &running.volumes {
                if let VolumeState::Waiting(reason) = &volume.state {
                    waiting.push((disk.clone(), name.clone(), reason.clone()));
                }
            }
        }
        waiting
    }
}
