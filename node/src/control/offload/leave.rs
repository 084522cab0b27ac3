//! A disk does without a store: it is emptied first, or it is gone for good.
//!
//! ```text
//!   remove ─► offload.toml: begun ─► RetireStore ─► its content comes home ─► the engine says that it is empty
//!          ─► offload.toml: done ─► its volume is closed ─► its log is erased     a restart goes on from `begun`
//!   remove --lost ─► LoseStore: it is not opened any more ─► offload.toml: lost
//! ```
//!
//! The engine has the store's number until the process ends, so the entry stays in the file until the next start.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::control::{Command, Refusal};
use engine::offload::{OffloadStats, StoreId};
use tracing::warn;

use super::super::view::RemoveStore;
use super::super::{Control, Done, Error, OffloadRefused, refusal, volumes};
use super::Phase;
use crate::quantity::{Name, Size};
use crate::store::offload::{Entry, Leaving, StoreRef};

impl Control {
    /// Does without a store. Unless it is gone for good, its content is brought home first; returns when that has
    /// begun.
    pub async fn remove_offload_store(self: &Arc<Control>, disk: &Name, request: RemoveStore) -> Result<Done, Error> {
        let RemoveStore { store, lost } = request;
        let _turn = self.change(disk).await?;
        let message = if lost { self.lose_store(disk, &store).await } else { self.empty_store(disk, &store).await };
        Ok(Done { message: message?, disk: None, volume: None, tenant: None })
    }

    /// The place of a store that is not removed.
    fn place_of_store(&self, disk: &Name, store: &StoreRef) -> Result<usize, Error> {
        let state = self.state();
        let found = state.disk(disk)?.offloading().map_err(|error| OffloadRefused::Broken(error.clone()))?;
        let offloading = found.ok_or_else(|| OffloadRefused::Disabled(disk.clone()))?;
        let at = offloading.file.stores.iter().position(|entry| entry.store == *store && !entry.is_removed());
        Ok(at.ok_or_else(|| OffloadRefused::Unknown { disk: disk.clone(), store: store.clone() })?)
    }

    /// Empties a store; then it is forgotten.
    async fn empty_store(&self, disk: &Name, store: &StoreRef) -> Result<String, Error> {
        let at = self.place_of_store(disk, store)?;
        let thread = {
            let state = self.state();
            let running = state.disk(disk)?;
            let offloading = running.offloading().ok().flatten();
            let offloading = offloading.ok_or_else(|| OffloadRefused::Disabled(disk.clone()))?;
            if let Some(reason) = offloading.waits_for() {
                return Err(OffloadRefused::Waits { disk: disk.clone(), reason }.into());
            }
            if offloading.phase == Phase::Ending {
                return Err(OffloadRefused::Ending(disk.clone()).into());
            }
            let stores = (0..).zip(&offloading.file.stores);
            let remaining = stores.filter(|(other, entry)| *other != at && entry.stays()).count();
            let copies = offloading.file.settings.copies;
            if remaining < copies as usize {
                let (store, disk) = (store.clone(), disk.clone());
                return Err(OffloadRefused::TooFewRemain { store, disk, remaining, copies }.into());
            }
            running.thread.clone()
        };
        self.change_offload(disk, |file| file.stores[at].leaving = Leaving::Begun).await?;
        let retired = refusal(thread.command(Command::RetireStore(StoreId(at as u8))).await);
        retired.map_err(|refusal| volumes::refused(disk, refusal))?;
        let snapshot = self.snapshot(disk).await;
        let bytes = snapshot.and_then(|it| Some(it.offload.as_ref()?.stores.get(at)?.offloaded_bytes));
        let bytes = Size(bytes.unwrap_or(0)).rounded();
        self.tell_disk(disk, format!("store '{store}' is being removed: {bytes} are copied home"));
        Ok(format!("store '{store}' of disk '{disk}' is being removed: {bytes} are copied home"))
    }

    /// Forgets the stores that are empty now.
    pub(super) fn note_leaving(self: &Arc<Control>, disk: &Name, stats: &OffloadStats) {
        let has_left: Vec<usize> = {
            let state = self.state();
            let offloading = state.disk(disk).ok().and_then(|running| running.offloading().ok().flatten());
            let stores = offloading.into_iter().flat_map(|offloading| (0..).zip(&offloading.file.stores));
            let leaving = stores.filter(|(_, entry)| entry.leaving == Leaving::Begun).map(|(at, _)| at);
            leaving.filter(|&at| stats.stores.get(at).is_some_and(|of| of.is_retired)).collect()
        };
        if has_left.is_empty() || self.is_shutting_down() {
            return;
        }
        let (control, disk) = (self.clone(), disk.clone());
        tokio::spawn(async move {
            let Some(_turn) = control.turns.take(&disk).filter(|_| !control.is_shutting_down()) else { return };
            for at in has_left {
                if let Err(error) = control.forget_store(&disk, at).await {
                    warn!(%disk, "a store that is empty is not forgotten yet: {error}");
                }
            }
        });
    }

    /// Forgets a store that is empty, unless that was done meanwhile.
    async fn forget_store(&self, disk: &Name, at: usize) -> Result<(), Error> {
        let mut left: Option<Entry> = None;
        self.change_offload(disk, |file| {
            let entry = file.stores.get_mut(at).filter(|entry| entry.leaving == Leaving::Begun && !entry.lost);
            left = entry.map(|entry| {
                entry.leaving = Leaving::Done;
                entry.clone()
            });
        })
        .await?;
        let Some(entry) = left else { return Ok(()) };
        let (thread, volume) = {
            let mut state = self.state();
            let running = state.disk_mut(disk)?;
            let thread = running.thread.clone();
            let volume = running.offloading_mut().and_then(|offloading| offloading.volumes.get_mut(at)?.take());
            (thread, volume)
        };
        if let Some((volume, _)) = volume
            && let Err(refusal) = refusal(thread.command(Command::CloseVolume { volume, discard: true }).await)
        {
            warn!(%disk, "a store stays open: {refusal}");
        }
        self.erase(disk, &entry).await;
        if let Some(offloading) = self.state().disk_mut(disk)?.offloading_mut() {
            offloading.forgotten.insert(at);
        }
        self.tell_disk(disk, format!("store '{}' is empty, and not used any more", entry.store));
        Ok(())
    }

    /// Does without a store that is gone for good. It may be away for an instant only, so the engine is told first:
    /// from then on nothing is written there that the next start would drop.
    async fn lose_store(&self, disk: &Name, store: &StoreRef) -> Result<String, Error> {
        let at = self.place_of_store(disk, store)?;
        let reachable = || OffloadRefused::Reachable { store: store.clone(), disk: disk.clone() };
        let (is_started, others) = {
            let state = self.state();
            let offloading = state.disk(disk)?.offloading().ok().flatten();
            let offloading = offloading.ok_or_else(|| OffloadRefused::Disabled(disk.clone()))?;
            let is_read = offloading.readings.get(at).is_some_and(|it| it.is_done.load(Ordering::Acquire));
            if offloading.is_reading() && is_read {
                return Err(reachable().into());
            }
            let kept = offloading.file.stores.iter().filter(|entry| !entry.is_removed());
            (!offloading.is_reading(), kept.count() - 1)
        };
        if is_started {
            // A disk that hangs would not answer the command either.
            let silent = || OffloadRefused::Silent { store: store.clone(), disk: disk.clone() };
            self.snapshot(disk).await.ok_or_else(silent)?;
            let thread = self.state().disk(disk)?.thread.clone();
            match refusal(thread.command(Command::LoseStore(StoreId(at as u8))).await) {
                Ok(()) => self.hold_store(disk, at)?,
                Err(Refusal::InUse) => return Err(reachable().into()),
                Err(refusal) => return Err(volumes::refused(disk, refusal)),
            }
        }
        self.change_offload(disk, |file| {
            if let Some(entry) = file.stores.get_mut(at).filter(|entry| entry.store == *store) {
                (entry.lost, entry.leaving) = (true, Leaving::No);
            }
        })
        .await?;
        warn!(%disk, %store, "this store is lost: ranges that only it has are as the disk has them");
        let when = if is_started { "; it is not waited for after the next start of the server" } else { "" };
        let rest = if others == 0 { "; no store remains, so volumes have what the disk has" } else { "" };
        Ok(format!(
            "store '{store}' of disk '{disk}' is removed; ranges of which only it had the newest content are \
             old{rest}{when}"
        ))
    }

    /// Does not connect to a store any more.
    fn hold_store(&self, disk: &Name, at: usize) -> Result<(), Error> {
        if let Some(offloading) = self.state().disk_mut(disk)?.offloading_mut()
            && let Some(Some((_, dialer))) = offloading.volumes.get(at)
        {
            dialer.hold(true);
        }
        Ok(())
    }
}
