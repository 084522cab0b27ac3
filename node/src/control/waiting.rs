//! Volumes whose data is busy, as a killed server's is until the kernel has completed its last request: each is opened
//! as soon as its data is free, and holds up nobody meanwhile.
//!
//! Trying is an open and a lock that do not wait, at most each [`RETRY_MAX`]; so nothing has to be cancelled at the
//! end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::{Control, VolumeState};
use crate::quantity::Name;

/// How long a start, or `disk add`, waits for volumes that are busy before it goes on without them. On a device that
/// works, the kernel is done with a killed server's requests and files after milliseconds, and clients that come back
/// at once find their volumes.
const GRACE: Duration = Duration::from_secs(1);
/// How soon busy data is tried again at first,
const RETRY: Duration = Duration::from_millis(10);
/// and how seldom at last: a volume is served at most so long after its data is free.
const RETRY_MAX: Duration = Duration::from_millis(500);

impl Control {
    /// Waits a moment for volumes of a disk that are busy; those that still are then are left to
    /// [`Control::open_later`]. The caller has the turn to change the disk.
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

    /// Tries the volumes that are busy once more, those of each disk by itself: a disk that hangs does not hold up
    /// the others.
    fn try_waiting(self: &Arc<Control>) {
        let disks: BTreeSet<Name> = self.waiting(None).into_iter().map(|(disk, ..)| disk).collect();
        for disk in disks {
            // While it is being changed, the next time is soon enough.
            let Some(turn) = self.turns.take(&disk) else { continue };
            let control = self.clone();
            tokio::spawn(async move {
                let _turn = turn;
                control.open_waiting(&disk).await;
            });
        }
    }

    /// Tries each volume of a disk that is busy once more. Whether any still is.
    async fn open_waiting(&self, disk: &Name) -> bool {
        for (disk, name, _) in self.waiting(Some(disk)) {
            self.try_open(&disk, &name).await;
            if self.state().volume_mut(&disk, &name).is_some_and(|volume| volume.id().is_some()) {
                info!(%disk, volume = %name, "its data is free: it is served");
            }
        }
        !self.waiting(Some(disk)).is_empty()
    }

    /// Volumes that are busy: disk, name, reason.
    fn waiting(&self, only: Option<&Name>) -> Vec<(Name, Name, String)> {
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
