//! The end of a server: everything is flushed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::control::{Command, Report};
use tracing::warn;

use super::{Control, stop};
use crate::quantity::Name;

/// How long a stop waits for the maps of what is off-loaded, at most: disks that hang do not keep it for ever.
const MAPS_TIMEOUT: Duration = Duration::from_secs(10);

impl Control {
    /// Refuses new requests, completes those received, and flushes everything. Returns the volumes whose data is not on
    /// the medium; these include all volumes of a disk that does not answer in time.
    pub async fn drain(&self) -> Vec<String> {
        self.shutting_down.store(true, Ordering::Relaxed);
        self.end_probes(None);
        for running in self.state().disks.values().filter_map(|disk| disk.state.as_ref().ok()) {
            for volume in running.volumes.values() {
                if let Some(progress) = volume.progress() {
                    progress.cancelled.store(true, Ordering::Relaxed);
                }
            }
        }
        let deadline = tokio::time::Instant::now() + self.config.shutdown_timeout.0;
        // A change in progress may take long; the data of other volumes is flushed without waiting for it.
        let threads = self.running();
        let names: Vec<Name> = threads.iter().map(|(disk, _)| disk.clone()).collect();
        let drains = threads.into_iter().map(|(disk, thread)| async move {
            let drained = tokio::time::timeout_at(deadline, thread.command(Command::Drain)).await;
            let (failed, lost) = match drained {
                Ok(Ok(Report::Drained { failed })) => {
                    let failed = self.names(&disk, |id| failed.contains(&id));
                    (failed.clone(), failed)
                }
                // If the disk's engine still answers, it knows which volumes have lost data.
                _ => {
                    let snapshot = self.snapshot(&disk).await;
                    let lost = self.names(&disk, |id| {
                        let stats = snapshot.iter().flat_map(|all| &all.volumes).find(|stats| stats.volume == id);
                        stats.is_none_or(|stats| stats.dirty_blocks > 0 || stats.lost || stats.failing)
                    });
                    (self.names(&disk, |_| true), lost)
                }
            };
            self.remember_lost(&disk, &lost, None).await;
            failed.iter().map(Name::to_string).collect::<Vec<_>>()
        });
        let failed = futures::future::join_all(drains).await.concat();
        let turns = names.iter().map(|disk| tokio::time::timeout_at(deadline, self.turns.wait(disk)));
        let turns = futures::future::join_all(turns).await;
        if failed.is_empty() {
            // Stores are served until all maps are made.
            let ours = names.iter().zip(&turns).filter(|(_, turn)| turn.is_ok());
            let kept = futures::future::join_all(ours.map(|(disk, _)| self.keep_map(disk)));
            if tokio::time::timeout(MAPS_TIMEOUT, kept).await.is_err() {
                warn!("the next start needs all stores, since their maps could not be written in time");
            }
        }
        let disks = std::mem::take(&mut self.state().disks);
        for running in disks.into_values().filter_map(|disk| disk.state.ok()) {
            if failed.is_empty() {
                stop(running.thread).await;
            }
        }
        failed
    }
}
