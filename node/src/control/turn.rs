//! The change lock of a disk: two changes of one disk never overlap, and a change of another disk does not wait for
//! them, even if they hang.
//!
//! A change holds the lock of its disk until it has ended, even if the client that requested it is answered before.
//! Three things are shared by several disks. Each has a lock of its own that is held for a bounded time: the state
//! (never across a wait), the division of memory (disk threads answer in bounded time, or count as holding their
//! memory), and the registry (one file).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Mutex as Lock, OwnedMutexGuard};

use super::{Control, Error, Kind};
use crate::quantity::Name;

/// How long a change waits for the one before it: longer than any change takes on a disk that answers. Changes that
/// write zeros take longer, but release the lock meanwhile.
pub(super) const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// The right to change a disk and its volumes, until it is dropped.
pub type Turn = OwnedMutexGuard<()>;

/// The change locks.
#[derive(Debug, Default)]
pub struct Turns {
    disks: Mutex<BTreeMap<Name, Arc<Lock<()>>>>,
}

impl Turns {
    /// The lock of a disk; it exists as long as it is held or waited for.
    fn of(&self, disk: &Name) -> Arc<Lock<()>> {
        let mut disks = self.disks.lock().expect("nobody panics while holding it");
        disks.retain(|_, lock| Arc::strong_count(lock) > 1);
        disks.entry(disk.clone()).or_default().clone()
    }

    /// Waits for the lock, without a time limit.
    pub async fn wait(&self, disk: &Name) -> Turn {
        self.of(disk).lock_owned().await
    }

    /// Takes the lock, if it is free.
    pub fn take(&self, disk: &Name) -> Option<Turn> {
        self.of(disk).try_lock_owned().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn disks_do_not_wait_for_each_other() {
        let turns = Turns::default();
        let (a, b): (Name, Name) = ("a".parse().unwrap(), "b".parse().unwrap());
        let held = turns.wait(&a).await;
        assert!(turns.take(&a).is_none());
        let other = turns.take(&b).expect("another disk");
        drop(held);
        drop(other);
        drop(turns.take(&a).expect("it is free"));
        assert_eq!(turns.disks.lock().unwrap().len(), 1, "locks that nobody holds are forgotten");
    }
}
