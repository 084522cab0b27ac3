//! The change lock of a disk: two changes of one disk never overlap, and a change of another disk does not wait for
//! them, even if they hang.
//!
//! A change holds the lock of its disk until it has ended, even if the client that requested it is answered before.
//! Three things are shared by several disks. Each has a lock of its own that is held for a bounded time: the state
//! (never across a wait), the division of memory (disk threads answer in bounded time, or count as holding their
//! memory), and the registry (one file).

use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;

use super::{Control, Error, Kind};
use crate::quantity::Name;
use crate::semaphores::Semaphores;

/// How long a change waits for the one before it: longer than any change takes on a disk that answers. Changes that
/// write zeros take longer, but release the lock meanwhile.
pub(super) const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// The right to change a disk and its volumes, until it is dropped.
pub type Turn = OwnedSemaphorePermit;

/// Locks by name: of disks, or of volumes.
#[derive(Debug)]
pub struct Turns(Semaphores<Name>);

impl Default for Turns {
    fn default() -> Turns {
        Turns(Semaphores::new(1))
    }
}

impl Turns {
    /// Waits for the lock, without a time limit.
    pub async fn wait(&self, name: &Name) -> Turn {
        self.0.wait(name.clone()).await
    }

    /// Takes the lock, if it is free.
    pub fn take(&self, name: &Name) -> Option<Turn> {
        self.0.of(name.clone()).try_acquire_owned().ok()
    }
}

impl Control {
    /// Waits for the lock of a disk, with a time limit.
    pub(super) async fn change(&self, disk: &Name) -> Result<Turn, Error> {
        let turn = tokio::time::timeout(TURN_TIMEOUT, self.turns.wait(disk)).await;
        let turn = turn.map_err(|_| Error::Changing(disk.clone()))?;
        if self.is_shutting_down() { Err(Error::ShuttingDown) } else { Ok(turn) }
    }

    /// Waits for the lock of the disk of a volume, and returns the disk's name.
    pub(super) async fn change_volume(&self, volume: &Name) -> Result<(Turn, Name), Error> {
        let find = || self.state().find(volume).map(|(disk, _)| disk);
        let disk = find()?;
        let turn = self.change(&disk).await?;
        // The volume may have been deleted and created on another disk meanwhile.
        if find()? == disk { Ok((turn, disk)) } else { Err(Error::Busy(Kind::Volume, volume.clone())) }
    }
}
