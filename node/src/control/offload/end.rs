//! Off-loading ends.

use std::sync::Arc;

use engine::control::Command;
use engine::offload::Scan;
use tracing::{info, warn};

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
        // One that was removed, or is lost, may have the log of another disk by now.
        for entry in stores.into_iter().flatten().filter(|entry| !entry.is_removed()) {
            self.erase(disk, &entry).await;
        }
    }

    /// Erases the beginning of an empty log, so that the store can be used by another disk. What cannot be erased has
    /// no effect, and is only reported.
    pub(super) async fn erase(&self, disk: &Name, entry: &Entry) {
        if let Err(error) = self.try_erase(disk, entry).await {
            warn!(%disk, store = %entry.store, "the store is not erased, its log has no effect: {error}");
        }
    }

    /// Erases it, if the log of the entry is there: by now, its address may lead to data of somebody else.
    async fn try_erase(&self, disk: &Name, entry: &Entry) -> Result<(), String> {
        let target = self.target_of(entry)?;
        // Above the epochs of the volume that had the store.
        let claim = entry.claim(disk, u64::from(u32::MAX));
        let mut scan = Scan::new(entry.log.as_u128(), entry.capacity);
        let Some((at, bytes)) = scan.wants() else { return Ok(()) };
        let erased = async {
            let mut reader = Reader::open(&target, claim).await?;
            entry.check(&reader.opened)?;
            let found = reader.read(at, bytes).await?;
            if found.iter().all(|&byte| byte == 0) {
                return Ok(());
            }
            scan.read(&found)?;
            reader.write(at, &vec![0; bytes as usize]).await
        };
        erased.await.map_err(|error: ReadError| error.to_string())
    }
}
