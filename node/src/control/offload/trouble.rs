//! What is the matter with the stores of a disk while it is served: for warnings, `/readyz` and events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::control::Command;
use engine::offload::{Invalid, OffloadStats, StoreStats};
use tracing::warn;

use super::super::{Control, Disk, Error, Running, Volume, VolumeReason, VolumeState, refusal, volumes};
use super::{Entry, Offloading, Reading, STORE_DEADLINE};
use crate::quantity::{Name, Size};
use crate::store::offload::Leaving;

/// Why a store is not used although its server can be reached.
pub(super) const WRITES_FAIL: &str = "the last write to it failed; it is tried again every few seconds";
/// How long a write waits for stores before it fails, as the engine has it.
const WRITES_WAIT: &str = "a minute";
/// The least time between two events of the same store: one that fails and comes back all the time must not replace
/// all other events.
const EVENT_INTERVAL: Duration = Duration::from_secs(10);

/// What was told of a store.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Told {
    is_in_trouble: bool,
    at: Option<Instant>,
}

/// A store that cannot be used as it should.
struct Trouble<'a> {
    entry: &'a Entry,
    at: usize,
    /// What it is, and what follows for requests.
    text: String,
}

impl Offloading {
    /// Why a store is not online, if known.
    pub(super) fn failure(&self, at: usize, of: Option<&StoreStats>) -> Option<String> {
        let standing = self.volumes.get(at).and_then(Option::as_ref).map(|(_, dialer)| dialer.standing());
        let fails = of.is_some_and(|of| of.is_failing && !of.is_open).then(|| WRITES_FAIL.to_owned());
        let reading = self.readings.get(at).and_then(|reading| Reading::failure(reading));
        reading.or_else(|| standing.filter(|standing| !standing.is_online).and_then(|it| it.failure)).or(fails)
    }

    fn troubles(&self) -> Vec<Trouble<'_>> {
        let stores = self.file.stores.iter().zip(&self.seen).enumerate();
        let used = stores.filter(|(_, (entry, of))| self.is_started() && !entry.is_removed() && !of.is_retired);
        used.filter_map(|(at, (entry, of))| self.trouble(at, entry, of)).collect()
    }

    fn trouble<'a>(&'a self, at: usize, entry: &'a Entry, of: &StoreStats) -> Option<Trouble<'a>> {
        let reading = || of.is_missing.then(|| "its log is being read".to_owned());
        let failure = self.failure(at, Some(of)).or_else(reading)?;
        let (store, bytes) = (&entry.store, Size(of.offloaded_bytes).rounded());
        let is_reached = self.volumes.get(at)?.as_ref()?.1.standing().is_online;
        let what = match of {
            of if of.is_missing => "is missing since the start",
            of if is_reached && !of.is_open => "cannot be written",
            _ => "cannot be reached",
        };
        let then = match of {
            of if of.offloaded_bytes == 0 => String::new(),
            of if of.is_missing => {
                format!("; {bytes} of off-loaded data are there, and reads of what no other store has fail with EIO")
            }
            _ if is_reached => format!(
                "; {bytes} of off-loaded data are there and are copied home if it can be read; until all is home, \
                     writes of these ranges wait, for {WRITES_WAIT} at most, then fail with EIO"
            ),
            _ => format!(
                "; {bytes} of off-loaded data are there: reads of them wait for it for up to {STORE_DEADLINE}, \
                     writes for {WRITES_WAIT}, then fail with EIO"
            ),
        };
        Some(Trouble { entry, at, text: format!("off-load store '{store}' {what}: {failure}{then}") })
    }

    /// The stores that cannot be used as they should.
    pub(in super::super) fn troubled(&self) -> Vec<String> {
        self.troubles().iter().map(|trouble| trouble.entry.store.to_string()).collect()
    }

    /// A warning for each such store, with what can be done.
    fn warnings(&self, disk: &Name) -> Vec<String> {
        let warning = |Trouble { entry, text, .. }: Trouble<'_>| {
            let store = &entry.store;
            format!(
                "{text}. Start its server or make it writable; if it is gone for good: `aerogel offload store remove \
                 {disk} {store} --lost --yes`"
            )
        };
        self.troubles().into_iter().map(warning).collect()
    }

    /// What is new about the stores, for events.
    pub(super) fn news(&mut self) -> Vec<String> {
        let now = Instant::now();
        let troubles: Vec<(usize, String)> = self.troubles().into_iter().map(|it| (it.at, it.text)).collect();
        let mut told = std::mem::take(&mut self.told);
        told.resize(self.file.stores.len(), Told::default());
        let mut news = Vec::new();
        for (at, told) in told.iter_mut().enumerate() {
            let trouble = troubles.iter().find(|(of, _)| *of == at).map(|(_, text)| text);
            let is_early = told.at.is_some_and(|at| now - at < EVENT_INTERVAL);
            if told.is_in_trouble == trouble.is_some() || is_early {
                continue;
            }
            *told = Told { is_in_trouble: trouble.is_some(), at: Some(now) };
            let entry = &self.file.stores[at];
            // One that was removed has an event of its own.
            match trouble {
                Some(text) => news.push(text.clone()),
                None if entry.is_removed() => {}
                None => news.push(format!("off-load store '{}' can be used again", entry.store)),
            }
        }
        self.told = told;
        news
    }
}

impl Running {
    /// Warnings about the stores: volumes wait for them, or they cannot be used.
    pub(in super::super) fn offload_warnings(&self, disk: &Name) -> Vec<String> {
        self.offload_warning().into_iter().chain(self.store_warnings(disk)).collect()
    }

    /// Warnings about the stores that cannot be used.
    pub(in super::super) fn store_warnings(&self, disk: &Name) -> Vec<String> {
        self.offloading().ok().flatten().map(|offloading| offloading.warnings(disk)).unwrap_or_default()
    }

    /// Why a volume is not served. What it waits for changes while it waits.
    pub(in super::super) fn reason_of(&self, volume: &Volume) -> Option<String> {
        let waits = || self.offloading().ok().flatten()?.waits_for();
        match &volume.state {
            VolumeState::Offline(VolumeReason::Offload(known)) => {
                let reason = waits().unwrap_or_else(|| known.clone());
                Some(VolumeReason::Offload(reason).to_string())
            }
            _ => volume.reason(),
        }
    }

    /// The stores to which a volume may be off-loaded, and those of them that cannot be used.
    pub(in super::super) fn stores_of(&self, is_marked: bool) -> (Vec<String>, Vec<String>) {
        let Some(offloading) = self.offloading().ok().flatten().filter(|_| is_marked) else {
            return Default::default();
        };
        let used = offloading.file.stores.iter().filter(|entry| !entry.is_removed() && entry.leaving != Leaving::Done);
        (used.map(|entry| entry.store.to_string()).collect(), offloading.troubled())
    }
}

impl Disk {
    /// The same of a disk, if it is online.
    pub(in super::super) fn offload_warnings(&self, name: &Name) -> Vec<String> {
        self.state.as_ref().map(|running| running.offload_warnings(name)).unwrap_or_default()
    }
}

impl Control {
    /// What no store can be told is made durable here: its versions do not count any more, so that new content of their
    /// ranges can go to the disk.
    pub(super) fn note_invalid(self: &Arc<Control>, disk: &Name, stats: &OffloadStats) {
        let Some(invalid) = stats.invalid.filter(|_| !self.is_shutting_down()) else { return };
        let (control, disk) = (self.clone(), disk.clone());
        tokio::spawn(async move {
            let Some(_turn) = control.turns.take(&disk).filter(|_| !control.is_shutting_down()) else { return };
            if let Err(error) = control.invalidate(&disk, invalid).await {
                warn!(%disk, "what its stores have is home, and writes wait for them: {error}");
            }
        });
    }

    async fn invalidate(&self, disk: &Name, invalid: Invalid) -> Result<(), Error> {
        let mut names = Vec::new();
        self.change_offload(disk, |file| {
            let stores = (0..).zip(&mut file.stores).filter(|(at, _)| invalid.stores >> at & 1 != 0);
            for (_, entry) in stores {
                entry.invalid_below = entry.invalid_below.max(invalid.below);
                names.push(format!("'{}'", entry.store));
            }
        })
        .await?;
        let thread = self.state().disk(disk)?.thread.clone();
        let done = refusal(thread.command(Command::Invalidate(invalid)).await);
        done.map_err(|refusal| volumes::refused(disk, refusal))?;
        self.tell_disk(
            disk,
            format!(
                "off-load store {} cannot be written, and all of its data is home: what it has does not count any \
                 more, and writes go to the disk",
                names.join(", ")
            ),
        );
        Ok(())
    }
}
