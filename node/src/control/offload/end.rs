//! Off-loading ends, or does without a store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use engine::control::Command;
use engine::offload::Scan;
use tracing::{info, warn};

use super::super::view::RemoveStore;
use super::super::{Control, Done, Error, OffloadRefused, refusal};
use super::{Entry, Phase};
use crate::disk_thread::Stopped;
use crate::quantity::{Name, Size};
use crate::upstream::{ReadError, Reader};

impl Control {
    /// Ends off-loading: brings everything home, then forgets the stores. Returns when that has begun.
    pub async fn disable_offload(self: &Arc<Control>, disk: &Name) -> Result<Done, Error> {
        let _turn = self.change(disk).await?;
        let phase = {
            let state = self.state();
            let found = state.disk(disk)?.offloading().map_err(|error| OffloadRefused::Broken(error.clone()))?;
            let offloading = found.ok_or_else(|| OffloadRefused::Disabled(disk.clone()))?;
            if let Some(reason) = offloading.waits_for() {
                return Err(OffloadRefused::Waits { disk: disk.clone(), reason }.into());
            }
            offloading.phase
        };
        if phase == Phase::Active {
            self.change_offload(disk, |file| file.ending = true).await?;
            if let Some(offloading) = self.state().disk_mut(disk)?.offloading_mut() {
                offloading.phase = Phase::Ending;
            }
            let (control, name) = (self.clone(), disk.clone());
            tokio::spawn(async move { control.end_when_empty(&name).await });
        }
        let away = self.snapshot(disk).await.and_then(|snapshot| Some(snapshot.offload.as_ref()?.away_bytes));
        let away = Size(away.unwrap_or(0)).rounded();
        let message = format!("writes of disk '{disk}' are not off-loaded any more; {away} are copied home");
        Ok(Done { message, disk: None, volume: None, tenant: None })
    }

    /// Waits until nothing is in the stores, then forgets them.
    pub(super) async fn end_when_empty(self: Arc<Control>, disk: &Name) {
        let Ok(ended) = self.state().disk(disk).map(|running| running.thread.command(Command::EndOffload)) else {
            return;
        };
        match ended.await {
            Err(Stopped) => return,
            ended => {
                if let Err(refusal) = refusal(ended) {
                    return warn!(%disk, "off-loading does not end: {refusal}");
                }
            }
        }
        let _turn = self.turns.wait(disk).await;
        self.close_stores(disk).await;
        let stores =
            self.state().disk(disk).ok().and_then(|running| Some(running.offloading().ok()??.file.stores.clone()));
        if let Err(error) = self.forget_offload(disk).await {
            return warn!(%disk, "off-loading has ended, and is not forgotten before the next start: {error}");
        }
        info!(%disk, "everything is home: its writes are not off-loaded any more");
        for entry in stores.into_iter().flatten() {
            if let Err(error) = self.erase(disk, &entry).await {
                warn!(%disk, store = %entry.store, "its log stays there, and has no effect: {error}");
            }
        }
    }

    /// Erases the beginning of an empty log, so that the store can be used by another disk.
    async fn erase(&self, disk: &Name, entry: &Entry) -> Result<(), String> {
        let target = self.target_of(entry)?;
        // Above the epochs of the volume that had the store.
        let claim = entry.claim(disk, u64::from(u32::MAX));
        let Some((at, bytes)) = Scan::new(0, entry.capacity).wants() else { return Ok(()) };
        let erased = async {
            let mut reader = Reader::open(&target, claim).await?;
            reader.write(at, &vec![0; bytes as usize]).await
        };
        erased.await.map_err(|error: ReadError| error.to_string())
    }

    /// Does without a store that is gone for good.
    pub async fn remove_offload_store(&self, disk: &Name, request: RemoveStore) -> Result<Done, Error> {
        let RemoveStore { store, lost } = request;
        let _turn = self.change(disk).await?;
        let (at, is_started, others) = {
            let state = self.state();
            let found = state.disk(disk)?.offloading().map_err(|error| OffloadRefused::Broken(error.clone()))?;
            let offloading = found.ok_or_else(|| OffloadRefused::Disabled(disk.clone()))?;
            let at = offloading.file.stores.iter().position(|entry| entry.store == store);
            let unknown = || OffloadRefused::Unknown { disk: disk.clone(), store: store.clone() };
            let at = at.ok_or_else(unknown)?;
            let is_read = offloading.readings.get(at).is_some_and(|it| it.is_done.load(Ordering::Acquire));
            if offloading.is_reading() && is_read {
                return Err(OffloadRefused::Reachable(store).into());
            }
            (at, !offloading.is_reading(), offloading.file.stores.iter().filter(|entry| !entry.lost).count() - 1)
        };
        if !lost {
            return Err(OffloadRefused::NotLost(store).into());
        }
        let snapshot = if is_started { self.snapshot(disk).await } else { None };
        let stats = snapshot.as_ref().and_then(|it| it.offload.as_ref()?.stores.get(at).copied());
        if stats.is_some_and(|stats| stats.is_open) {
            return Err(OffloadRefused::Reachable(store).into());
        }
        self.change_offload(disk, |file| {
            if let Some(entry) = file.stores.get_mut(at).filter(|entry| entry.store == store) {
                entry.lost = true;
            }
        })
        .await?;
        warn!(%disk, %store, "this store is lost: ranges that only it has are as the disk has them");
        let when = if is_started { "; it is not waited for after the next start of the server" } else { "" };
        let rest = match others {
            0 => "; no store remains, so volumes have what the disk has".to_owned(),
            _ => String::new(),
        };
        let message = format!(
            "store '{store}' of disk '{disk}' is removed; ranges of which only it had the newest content are \
             old{rest}{when}"
        );
        Ok(Done { message, disk: None, volume: None, tenant: None })
    }
}
