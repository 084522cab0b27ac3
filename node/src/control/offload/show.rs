//! Off-loading as operators see it, and what is recorded of it while it runs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use engine::control::Snapshot;
use engine::offload::{Decided, OffloadStats, StoreStats};
use tracing::warn;

use super::super::view::{LiveOffloadView, OffloadPhase, OffloadStoreState, OffloadStoreView, OffloadView};
use super::super::{Control, Error, OffloadRefused, Running};
use super::{HISTORY_MAX, HISTORY_PERIOD, Offloading, Phase, RATE_TIME};
use crate::quantity::{Name, duration};
use crate::store::offload::Leaving;

/// The least time between two events about switches: a load around the threshold switches with nearly every write, and
/// must not replace all other events.
const SWITCHES_INTERVAL: Duration = Duration::from_secs(10);

impl Control {
    /// Off-loading of all disks that are online.
    pub async fn list_offload(&self) -> Vec<OffloadView> {
        let disks: Vec<Name> = self.state().disks.keys().cloned().collect();
        let views = disks.iter().map(|disk| self.show_offload(disk));
        futures::future::join_all(views).await.into_iter().flatten().collect()
    }

    /// Off-loading of one disk.
    pub async fn show_offload(&self, disk: &Name) -> Result<OffloadView, Error> {
        // Asked before, since the disk may not answer.
        let snapshot = self.snapshot(disk).await;
        let mut state = self.state();
        let running = state.disk_mut(disk)?;
        if let Err(error) = running.offloading() {
            return Err(OffloadRefused::Broken(error.clone()).into());
        }
        let stats = snapshot.as_ref().and_then(|snapshot| snapshot.offload.as_ref());
        if let (Some(offloading), Some(stats)) = (running.offloading_mut(), stats) {
            offloading.sample(stats);
        }
        let offloading = running.offloading().ok().flatten();
        let offloading = offloading.ok_or_else(|| OffloadRefused::Disabled(disk.clone()))?;
        Ok(offloading.view(disk, running, stats))
    }

    /// Reports that writes are off-loaded now, or are not any more, and records what the next start must know.
    pub(in super::super) fn note_offload(self: &Arc<Control>, disk: &Name, snapshot: &Snapshot) {
        let Some(stats) = &snapshot.offload else { return };
        self.note_leaving(disk, stats);
        self.note_invalid(disk, stats);
        let (told, news, changes) = {
            let mut state = self.state();
            let Ok(running) = state.disk_mut(disk) else { return };
            let Some(offloading) = running.offloading_mut().filter(|it| !it.is_reading()) else { return };
            offloading.sample(stats);
            (offloading.switched(stats), offloading.news(), offloading.is_outdated(stats))
        };
        for told in told.into_iter().chain(news) {
            self.tell_disk(disk, told);
        }
        // The last record of a process that stops is the map's.
        if changes && !self.is_shutting_down() {
            let (control, disk, stats) = (self.clone(), disk.clone(), stats.clone());
            tokio::spawn(async move {
                let Some(_turn) = control.turns.take(&disk).filter(|_| !control.is_shutting_down()) else { return };
                let noted = control.change_offload(&disk, |file| {
                    for (at, of) in (0..file.stores.len()).zip(&stats.stores) {
                        file.stores[at].used |= of.is_open;
                        if of.is_told {
                            file.told(at);
                        }
                    }
                    file.thin &= stats.is_thin;
                });
                if let Err(error) = noted.await {
                    warn!(%disk, "the state of its stores is not recorded: {error}");
                }
            });
        }
    }
}

/// Why writes are off-loaded, or are not any more.
fn why(decided: Decided) -> String {
    let at_store = match decided.store_load {
        Some(load) => format!("{load} at the least loaded store"),
        None => "no store has room".into(),
    };
    let limited = if decided.is_limited { "; a volume is at its limit" } else { "" };
    format!("{} requests of a tenant wait at the disk, {at_store}{limited}", decided.base_load)
}

/// What has switched since the last event, `count` times.
fn switches(stats: &OffloadStats, count: u64, since: Option<Duration>) -> String {
    let now = if stats.decided.is_peak { "writes are off-loaded" } else { "writes are not off-loaded any more" };
    let text = format!("{now}: {}", why(stats.decided));
    let other = stats.switched[usize::from(!stats.decided.is_peak)].filter(|_| count > 1);
    let Some(other) = other else { return text };
    let past = since.map_or_else(String::new, |since| format!(" in {}", duration(since.as_secs_f64())));
    let before = if other.is_peak { "on" } else { "off" };
    format!("{text}. {count} switches on and off{past}, the last one {before} because {}", why(other))
}

impl Offloading {
    /// Whether the file says less than the engine.
    fn is_outdated(&self, stats: &OffloadStats) -> bool {
        let differs =
            |(entry, of): (&super::Entry, &StoreStats)| !entry.used && of.is_open || entry.missed > 0 && of.is_told;
        self.file.thin && !stats.is_thin || self.file.stores.iter().zip(&stats.stores).any(differs)
    }

    /// What there is to tell of switches on and off: each is told, several together if they follow one another.
    fn switched(&mut self, stats: &OffloadStats) -> Option<String> {
        let now = Instant::now();
        let since = self.switched.map(|at| now - at);
        let count = stats.switches.saturating_sub(self.switches);
        if count == 0 || since.is_some_and(|since| since < SWITCHES_INTERVAL) {
            return None;
        }
        (self.switches, self.switched) = (stats.switches, Some(now));
        Some(switches(stats, count, since))
    }

    fn sample(&mut self, stats: &OffloadStats) {
        self.seen.clone_from(&stats.stores);
        let now = Instant::now();
        // The last one that is old enough stays.
        while self.samples.get(1).is_some_and(|(at, ..)| now - *at >= RATE_TIME) {
            self.samples.pop_front();
        }
        if self.samples.back().is_none_or(|(at, ..)| now - *at >= RATE_TIME / 20) {
            self.samples.push_back((now, stats.written_bytes, stats.reclaimed_bytes));
        }
        let is_new = self.period.is_none_or(|begin| now - begin >= HISTORY_PERIOD);
        match self.history.back_mut().filter(|_| !is_new) {
            Some(most) => *most = stats.away_bytes.max(*most),
            None => {
                self.period = Some(now);
                self.history.push_back(stats.away_bytes);
            }
        }
        if self.history.len() > HISTORY_MAX {
            self.history.pop_front();
        }
        self.away_bytes = stats.away_bytes;
    }

    /// For the live view of the disk.
    pub(in super::super) fn live(&self) -> LiveOffloadView {
        let (written, reclaimed) = self.rates();
        LiveOffloadView {
            offloaded_bytes: self.away_bytes,
            history_bytes: self.history.iter().copied().collect(),
            period_seconds: HISTORY_PERIOD.as_secs_f64(),
            written_bytes_per_s: written,
            reclaimed_bytes_per_s: reclaimed,
        }
    }

    /// Bytes a second that are off-loaded and that are brought home.
    fn rates(&self) -> (f64, f64) {
        let (Some(first), Some(last)) = (self.samples.front(), self.samples.back()) else { return (0.0, 0.0) };
        let seconds = (last.0 - first.0).as_secs_f64().max(1.0);
        let rate = |from: u64, to: u64| to.saturating_sub(from) as f64 / seconds;
        (rate(first.1, last.1), rate(first.2, last.2))
    }

    fn view(&self, disk: &Name, running: &Running, stats: Option<&OffloadStats>) -> OffloadView {
        let named = |is_wanted: &dyn Fn(&super::Spec) -> bool| {
            let volumes = running.volumes.iter();
            let wanted = volumes.filter(|(_, volume)| volume.spec.as_ref().is_some_and(is_wanted));
            wanted.map(|(name, _)| name.to_string()).collect::<Vec<_>>()
        };
        let (written, reclaimed) = self.rates();
        let (settings, absent) = (&self.file.settings, OffloadStats::default());
        let stats = stats.unwrap_or(&absent);
        let stores = self.file.stores.iter().zip(&self.readings).enumerate();
        let stores = stores.filter(|(at, _)| !self.forgotten.contains(at)).map(|(at, (entry, reading))| {
            let of = stats.stores.get(at);
            let failure = self.failure(at, of);
            let state = match of {
                _ if entry.lost => OffloadStoreState::Lost,
                Some(of) if of.is_missing => OffloadStoreState::Missing,
                Some(of) if of.is_open && failure.is_none() => OffloadStoreState::Online,
                Some(_) => OffloadStoreState::Connecting,
                None if self.is_reading() && reading.failure().is_some() => OffloadStoreState::Missing,
                None if self.is_reading() => OffloadStoreState::Reading,
                None => OffloadStoreState::Connecting,
            };
            OffloadStoreView {
                store: entry.store.to_string(),
                state,
                leaving: entry.leaving != Leaving::No,
                failure: failure.filter(|_| !matches!(state, OffloadStoreState::Online)),
                offloaded_bytes: of.map_or(0, |of| of.offloaded_bytes),
                used_bytes: of.map_or(0, |of| of.used_bytes),
                log_bytes: entry.capacity,
                load: of.map_or(0, |of| of.load),
                scanned_bytes: reading.scanned.load(Ordering::Relaxed),
            }
        });
        OffloadView {
            disk: disk.to_string(),
            phase: match self.phase {
                Phase::Waiting | Phase::Reading => OffloadPhase::Starting,
                Phase::Active => OffloadPhase::Active,
                Phase::Ending => OffloadPhase::Ending,
            },
            reason: self.waits_for(),
            copies: settings.copies,
            limit_bytes: settings.limit.0,
            base_threshold: settings.base_threshold,
            store_threshold: settings.store_threshold,
            reclaim_depth: settings.reclaim_depth,
            is_peak: stats.decided.is_peak,
            switches: stats.switches,
            offloaded_bytes: stats.away_bytes,
            thin_bytes: stats.thin_bytes,
            oldest_is_earlier: stats.oldest_is_early,
            oldest_s: stats.oldest_ns.map(|ns| ns as f64 / 1e9),
            written_bytes: stats.written_bytes,
            reclaimed_bytes: stats.reclaimed_bytes,
            written_bytes_per_s: written,
            reclaimed_bytes_per_s: reclaimed,
            stores: stores.collect(),
            volumes: named(&|spec| spec.offload),
            except: named(&|spec| !spec.offload && spec.is_offloadable()),
        }
    }
}
