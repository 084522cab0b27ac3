//! Off-loading begins with the process: the stores are read, then the volumes that may have data there are opened.
//!
//! ```text
//!   incarnation + 1 ─► each store: a later epoch ─► session ─► scan ─► all, or enough of them after a while
//!                                    ▲────────────── a second ◄── not reachable
//!   ─► launch ─► marked volumes are opened ─► stores that were missing are still tried: StoreArrived
//! ```
//!
//! It is a task, since the stores of other disks of this server can be read only when it serves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use engine::control::Command;
use engine::nbd::Opened;
use engine::offload::{Initial, Recovered, Scan, StoreId, Unusable};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{info, warn};

use super::super::{Control, Error, VolumeState, refusal};
use super::{Entry, Offloading, Phase, Reading};
use crate::quantity::{Name, Size};
use crate::store::offload::{Map, Mapped, StoreRef};
use crate::upstream::{ReadError, Reader};

/// How long stores that cannot be reached are waited for, if the others would do: longer than a restart of a server.
const MISSING_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two attempts to reach a store.
const RETRY: Duration = Duration::from_secs(1);
/// The interval at which disks are looked at, and those that wait for stores look at their file.
const PERIOD: Duration = Duration::from_millis(200);

/// A store that was read.
type Found = (usize, Box<Recovered>);

/// How a start has ended.
enum Outcome {
    /// Off-loading is active, or there is none any more.
    Over,
    /// A store was removed: it begins again.
    Again,
}

impl Control {
    /// Starts off-loading on each disk that comes online, until the server shuts down.
    pub async fn start_offloading(self: Arc<Control>) {
        while !self.is_shutting_down() {
            for disk in self.not_started() {
                let control = self.clone();
                tokio::spawn(async move { control.start_offload(&disk).await });
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    /// Disks whose stores nobody reads yet. From now on somebody does.
    fn not_started(&self) -> Vec<Name> {
        let mut state = self.state();
        let running = state.disks.iter_mut().filter_map(|(name, disk)| Some((name, disk.state.as_mut().ok()?)));
        let waiting = running.filter_map(|(name, running)| {
            let offloading = running.offloading_mut().filter(|offloading| offloading.phase == Phase::Waiting)?;
            offloading.phase = Phase::Reading;
            Some(name.clone())
        });
        waiting.collect()
    }

    async fn start_offload(self: &Arc<Control>, disk: &Name) {
        loop {
            match self.try_offload(disk).await {
                Ok(Outcome::Over) => return,
                Ok(Outcome::Again) => {}
                // The disk was removed, or is offline.
                Err(Error::Unknown(..) | Error::DiskOffline(..)) => return,
                Err(error) => {
                    warn!(%disk, "off-loading does not start: {error}");
                    tokio::time::sleep(RETRY).await;
                }
            }
            if self.is_shutting_down() {
                return;
            }
        }
    }

    async fn try_offload(self: &Arc<Control>, disk: &Name) -> Result<Outcome, Error> {
        // Before the start is recorded: it may be tried many times.
        let map = self.read_map(disk).await?;
        let begun = self.change_offload(disk, |file| {
            if file.begin() {
                file.stores.iter_mut().for_each(|entry| entry.export = entry.export.later(SystemTime::now()));
            }
        });
        let file = begun.await?;
        if file.stores.is_empty() {
            warn!(%disk, "all its stores are lost: its volumes have what the disk has");
            let _turn = self.turns.wait(disk).await;
            self.forget_offload(disk).await?;
            self.open_marked(disk).await;
            return Ok(Outcome::Over);
        }
        let (found, mut arrivals) = mpsc::channel(file.stores.len());
        let mut tasks = JoinSet::new();
        let readings: Vec<Arc<Reading>> = file.stores.iter().map(|_| Arc::default()).collect();
        for ((at, entry), reading) in file.stores.iter().cloned().enumerate().zip(readings.clone()) {
            let (control, disk, found) = (self.clone(), disk.clone(), found.clone());
            tasks.spawn(async move {
                if let Some(recovered) = control.read_store(&disk, &entry, &reading).await {
                    // If the start was given up, the receiver is gone.
                    let _ = found.send((at, Box::new(recovered))).await;
                }
            });
        }
        if let Some(offloading) = self.state().disk_mut(disk)?.offloading_mut() {
            offloading.readings = readings;
        }
        let mut contents: Vec<Option<Box<Recovered>>> = file.stores.iter().map(|_| None).collect();
        let deadline = Instant::now() + MISSING_TIMEOUT;
        loop {
            if let Ok(Some((at, recovered))) = tokio::time::timeout(PERIOD, arrivals.recv()).await {
                contents[at] = Some(recovered);
            }
            let is_over = contents.iter().all(Option::is_some);
            let may_start = !file.must_wait(|at| contents[at].is_none());
            if is_over || may_start && Instant::now() >= deadline {
                break;
            }
            if self.is_given_up(disk)? {
                return Ok(Outcome::Again);
            }
        }
        let outcome = self.begin_with(disk, &file.stores, contents, map).await?;
        if matches!(outcome, Outcome::Over) {
            self.await_missing(disk, &file.stores, arrivals).await?;
        }
        Ok(outcome)
    }

    /// Whether a store that is waited for was removed, or the server shuts down.
    fn is_given_up(&self, disk: &Name) -> Result<bool, Error> {
        let state = self.state();
        let offloading = state.disk(disk)?.offloading().ok().flatten();
        let has_lost = offloading.is_none_or(|offloading| offloading.file.stores.iter().any(|entry| entry.lost));
        Ok(has_lost || self.is_shutting_down())
    }

    /// Starts with these contents of the stores, unless one of them was removed meanwhile.
    async fn begin_with(
        self: &Arc<Control>,
        disk: &Name,
        stores: &[Entry],
        contents: Vec<Option<Box<Recovered>>>,
        map: Option<Map>,
    ) -> Result<Outcome, Error> {
        let _policies = self.keep_policies(true).await?;
        let _turn = self.turns.wait(disk).await;
        if self.is_given_up(disk)? {
            return Ok(Outcome::Again);
        }
        let missing: Vec<bool> = contents.iter().map(Option::is_none).collect();
        for (entry, _) in stores.iter().zip(&missing).filter(|(_, is_missing)| **is_missing) {
            warn!(%disk, store = %entry.store, "off-loading starts without this store");
        }
        // What a store missed before counts for what it has; what it misses from now on is recorded with it.
        let missed: Vec<u32> = stores.iter().map(|entry| entry.missed).collect();
        let file = self
            .change_offload(disk, |file| {
                file.start(|at| missing[at]);
                file.stores.iter_mut().for_each(|entry| entry.export = entry.export.later(SystemTime::now()));
            })
            .await?;
        let initial = contents.into_iter().zip(stores).zip(missed).map(|((content, entry), missed)| match content {
            Some(recovered) => Initial::Scanned(recovered, missed),
            None => Initial::Missing(entry.log.as_u128(), entry.capacity),
        });
        let initial = initial.collect();
        self.launch(disk, initial, map).await?;
        if let Some(offloading) = self.state().disk_mut(disk)?.offloading_mut() {
            offloading.phase = if file.ending { Phase::Ending } else { Phase::Active };
        }
        info!(%disk, "its stores are read: off-loading is active");
        self.open_marked(disk).await;
        if file.ending {
            let (control, disk) = (self.clone(), disk.clone());
            tokio::spawn(async move { control.end_when_empty(&disk).await });
        }
        Ok(Outcome::Over)
    }

    /// Opens the volumes that waited for stores.
    async fn open_marked(&self, disk: &Name) {
        let waiting = {
            let state = self.state();
            let Ok(running) = state.disk(disk) else { return };
            let is_waiting =
                |state: &VolumeState| matches!(state, VolumeState::Offline(super::super::VolumeReason::Offload(_)));
            let volumes = running.volumes.iter().filter(|(_, volume)| is_waiting(&volume.state));
            volumes.map(|(name, _)| name.clone()).collect()
        };
        self.open_entered(disk, waiting).await;
        self.settle(disk).await;
    }

    /// Passes on the content of stores that were missing, as soon as they are read, unless they are lost.
    async fn await_missing(
        &self,
        disk: &Name,
        stores: &[Entry],
        mut arrivals: mpsc::Receiver<Found>,
    ) -> Result<(), Error> {
        while let Some((at, recovered)) = arrivals.recv().await {
            let (thread, dialer) = {
                let state = self.state();
                let running = state.disk(disk)?;
                let offloading = running.offloading().ok().flatten();
                let volume = offloading.and_then(|it| it.volumes.get(at)?.as_ref());
                let Some(dialer) = volume.map(|(_, dialer)| dialer.clone()) else { return Ok(()) };
                if offloading.is_some_and(|it| it.file.stores[at].lost) {
                    continue;
                }
                (running.thread.clone(), dialer)
            };
            if stores[at].mapped == Mapped::Exactly {
                self.opens_mapped(disk, at).await?;
            }
            dialer.hold(false);
            let arrived = thread.command(Command::StoreArrived(StoreId(at as u8), recovered));
            drop(thread);
            match refusal(arrived.await) {
                Ok(()) => info!(%disk, store = %stores[at].store, "this store is back"),
                Err(refusal) => warn!(%disk, store = %stores[at].store, "this store is back, and not used: {refusal}"),
            }
        }
        Ok(())
    }

    /// Makes durable that a store is opened: the next process must not use the map for what it has.
    async fn opens_mapped(&self, disk: &Name, at: usize) -> Result<(), Error> {
        while let Err(error) = self.change_offload(disk, |file| file.arrive(at)).await {
            if self.state().disk(disk).is_err() {
                return Err(error);
            }
            warn!(%disk, "a store that is back is not used yet: {error}");
            tokio::time::sleep(RETRY).await;
        }
        Ok(())
    }

    /// Reads a store, as soon as that is possible. `None` if it is lost by then.
    async fn read_store(&self, disk: &Name, entry: &Entry, reading: &Reading) -> Option<Recovered> {
        for attempt in 0.. {
            if self.is_lost(disk, entry) {
                return None;
            }
            match self.try_read(disk, entry, attempt, reading).await {
                Ok(recovered) => {
                    let bytes = Size(reading.scanned.load(Ordering::Relaxed)).rounded();
                    info!(%disk, store = %entry.store, "this store is read: {bytes} of its log");
                    reading.fail(None);
                    reading.is_done.store(true, Ordering::Release);
                    return Some(recovered);
                }
                Err(why) => {
                    reading.is_reached.store(false, Ordering::Release);
                    if reading.fail(Some(why.clone())) {
                        warn!(%disk, store = %entry.store, "this store is not read: {why}");
                    }
                }
            }
            tokio::time::sleep(RETRY).await;
        }
        unreachable!("attempts do not end")
    }

    /// Whether a store is of no use any more: it was declared lost, or its disk does not off-load now. Another disk may
    /// use it.
    fn is_lost(&self, disk: &Name, Entry { log, .. }: &Entry) -> bool {
        let state = self.state();
        let Ok(running) = state.disk(disk) else { return true };
        let Ok(Some(offloading)) = running.offloading() else { return true };
        offloading.file.stores.iter().any(|entry| entry.log == *log && entry.lost)
    }

    /// Reads a store. Epochs between that of this start and that of the volume that is opened afterwards are free.
    async fn try_read(&self, disk: &Name, entry: &Entry, attempt: u64, reading: &Reading) -> Result<Recovered, String> {
        if let StoreRef::Local(name) = &entry.store {
            self.why_offline(name)?;
        }
        let (target, claim) = (self.target_of(entry)?, entry.claim(disk, attempt));
        let read = async {
            let mut reader = Reader::open(&target, claim).await?;
            reading.is_reached.store(true, Ordering::Release);
            entry.check(&reader.opened)?;
            let log = entry.log.as_u128();
            match reader.scan(Scan::new(log, entry.capacity), &reading.scanned).await {
                Err(ReadError::Unusable(Unusable::NoLog)) if !entry.used => Ok(Recovered::format(log, entry.capacity)),
                read => read,
            }
        };
        let read: Result<Recovered, ReadError> = read.await;
        let mut recovered = read.map_err(|error| error.to_string())?;
        recovered.drop_below(entry.invalid_below);
        Ok(recovered)
    }

    /// Why a store of this server cannot be reached, in words that say more than its clients are told.
    fn why_offline(&self, store: &Name) -> Result<(), String> {
        let state = self.state();
        match state.find(store) {
            Err(error) => Err(error.to_string()),
            Ok((disk, volume)) => match volume.reason() {
                Some(reason) => Err(format!("it is offline on disk '{disk}': {reason}")),
                None => Ok(()),
            },
        }
    }
}

impl Entry {
    /// Whether the export at its address is the one that was enabled.
    pub(super) fn check(&self, opened: &Opened) -> Result<(), Unusable> {
        if opened.size != self.size {
            return Err(Unusable::Size { before: self.size, now: opened.size });
        }
        let is_other = self.export.volume.is_some_and(|volume| opened.volume != Some(volume.as_u128()));
        if is_other { Err(Unusable::Foreign) } else { Ok(()) }
    }
}

impl Offloading {
    /// Whether the stores are being read.
    pub(super) fn is_reading(&self) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::Reading)
    }
}
