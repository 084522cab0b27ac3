//! The map of a clean stop: the next start can do without any of the stores, and knows what it cannot read.
//!
//! ```text
//!   all is flushed ─► MapStores: nothing is sent to stores any more ─► offload-map-N.json ─► offload.toml: valid
//! ```
//!
//! `offload.toml` says for each store whether the map is used ([`Mapped`](crate::store::offload::Mapped)). It is
//! changed durably before a process opens a store, so a map is never used for a store that has changed.

use std::time::Duration;

use engine::control::{Command, Report};
use tokio::time::Instant;
use tracing::{info, warn};

use super::super::{Control, Error, OffloadRefused, blocking};
use super::Offloading;
use crate::quantity::Name;
use crate::store::offload::{Map, OffloadError};

/// How long a stop waits for what is on its way to stores: longer than a busy one takes. Without a map, the next start
/// waits for the stores.
const MAP_TIMEOUT: Duration = Duration::from_secs(5);
/// The time between two questions.
const PERIOD: Duration = Duration::from_millis(20);

impl Control {
    /// Makes durable what the next start has to know to do without stores. The server stops, and this is its turn.
    pub(in super::super) async fn keep_map(&self, disk: &Name) {
        match self.try_keep_map(disk).await {
            Ok(true) => info!(%disk, "the map of its off-loaded data is kept"),
            Ok(false) => {}
            Err(error) => warn!(%disk, "the next start needs its stores, since their map is not kept: {error}"),
        }
    }

    /// Whether there was something to keep.
    async fn try_keep_map(&self, disk: &Name) -> Result<bool, Error> {
        let (thread, store, file) = {
            let state = self.state();
            let running = state.disk(disk)?;
            let offloading = running.offloading().ok().flatten().filter(|offloading| offloading.is_started());
            let Some(Offloading { file, .. }) = offloading else { return Ok(false) };
            (running.thread.clone(), running.store.clone(), file.clone())
        };
        let deadline = Instant::now() + MAP_TIMEOUT;
        let versions = loop {
            match thread.command(Command::MapStores).await {
                Ok(Report::Stores(Some(versions))) => break versions,
                Ok(Report::Stores(None)) if Instant::now() < deadline => tokio::time::sleep(PERIOD).await,
                _ => {
                    warn!(%disk, "the next start needs its stores: some do not answer, so no map is kept");
                    return Ok(false);
                }
            }
        };
        let (before, map) = (file.map, Map::new(&file, versions));
        let valid = blocking(move || store.put_offload_map(before, &map)).await?.map_err(OffloadRefused::from)?;
        self.change_offload(disk, |file| file.end(valid)).await?;
        Ok(true)
    }

    /// The map that the start of a disk uses, if there is one. A map that is damaged is not used; that is an error if
    /// the stores do not say what only it says.
    pub(super) async fn read_map(&self, disk: &Name) -> Result<Option<Map>, Error> {
        let (store, valid) = {
            let state = self.state();
            let running = state.disk(disk)?;
            let offloading = running.offloading().map_err(|error| OffloadRefused::Broken(error.clone()))?;
            (running.store.clone(), offloading.and_then(|offloading| offloading.file.map))
        };
        let Some(valid) = valid else { return Ok(None) };
        let error = match blocking(move || store.offload_map(valid)).await? {
            Ok(map) => return Ok(Some(map)),
            Err(error) => error,
        };
        let mut is_done = false;
        // What cannot be read now can perhaps be read later.
        if matches!(error, OffloadError::Map { .. }) {
            self.change_offload(disk, |file| is_done = file.do_without_map()).await?;
        }
        if !is_done {
            if let Some(offloading) = self.state().disk_mut(disk)?.offloading_mut() {
                offloading.readings.iter().for_each(|reading| _ = reading.fail(Some(error.to_string())));
            }
            return Err(OffloadRefused::from(error).into());
        }
        warn!(%disk, "its stores are waited for: {error}");
        Ok(None)
    }
}
