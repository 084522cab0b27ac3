//! Volumes whose data is busy, as a killed server's is until the kernel has completed its last request: each is opened
//! as soon as its data is free, and holds up nobody meanwhile.
//!
//! Trying is an open and a lock that do not wait, at most each [`RETRY_MAX`]; so nothing has to be cancelled at the
//! end.

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
    /// Waits a moment for volumes that are busy; those that still are then are left to [`Control::open_later`].
    pub(super) async fn settle(&self) {
        let deadline = Instant::now() + GRACE;
        while self.open_waiting().await && Instant::now() < deadline {
            tokio::time::sleep(RETRY).await;
        }
        for (disk, name, reason) in self.waiting() {
            warn!(%disk, volume = %name, "not served yet: {reason}");
        }
        self.waiting.notify_one();
    }

    /// Opens volumes as soon as their data is free, until the server shuts down.
    pub async fn open_later(self: Arc<Control>) {
        loop {
            self.waiting.notified().await;
            let mut pause = RETRY;
            while !self.waiting().is_empty() {
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(RETRY_MAX);
                let Ok(_turn) = self.change().await else { return };
                self.open_waiting().await;
            }
        }
    }

    /// Tries each volume that is busy once more. Whether any still is.
    async fn open_waiting(&self) -> bool {
        for (disk, name, _) in self.waiting() {
            self.try_open(&disk, &name).await;
            if self.state().volume_mut(&disk, &name).is_some_and(|volume| volume.id().is_some()) {
                info!(%disk, volume = %name, "its data is free: it is served");
            }
        }
        !self.waiting().is_empty()
    }

    /// Volumes that are busy: disk, name, reason.
    fn waiting(&self) -> Vec<(Name, Name, String)> {
        let mut waiting = Vec::new();
        let state = self.state();
        for (disk, running) in state.disks.iter().filter_map(|(name, disk)| Some((name, disk.state.as_ref().ok()?))) {
            for (name, volume) in &running.volumes {
                if let VolumeState::Waiting(reason) = &volume.state {
                    waiting.push((disk.clone(), name.clone(), reason.clone()));
                }
            }
        }
        waiting
    }
}
