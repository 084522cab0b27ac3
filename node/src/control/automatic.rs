//! Automatic probes: a disk without a profile is probed when it is idle, so that its tenants are insulated unless the
//! operator set otherwise.
//!
//! ```text
//!   idle for 10 s ──► quick probe ──► trusted: kept in disk.toml, and the policy changes at once
//!        ▲                │      └──► doubtful or failed: nothing is kept; tried again later, and the reason is shown
//!        └── a request ◄──┘ cancelled at the first request; tried again later
//! ```
//!
//! This is the probe of `aerogel disk probe --quick`: it uses an unnamed scratch file of at most a quarter of the free
//! space, and only reads raw devices. One disk is probed at a time, since two disks may share a device.
//!
//! Downside: a disk that is never idle for that long is never probed automatically. `disk show` says that it waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use engine::control::Snapshot;
use engine::disk::policy::Kind;
use engine::disk::profile::Key;

use super::Control;
use super::probes::Ended;
use crate::probe::SECONDS_QUICK;
use crate::quantity::{Name, Time};
use crate::store::{Scheduling, Store};

/// A disk is idle when it had no activity for this long, which is longer than the pauses of a program that uses it.
const IDLE: Duration = Duration::from_secs(10);
/// The interval of checks of disks that wait.
const LOOK: Duration = Duration::from_secs(1);
/// The interval of checks of the disk that is being probed: a client's request competes with the probe for at most this
/// long.
const LOOK_CLOSELY: Duration = Duration::from_millis(50);
/// The first delay after a probe that was cancelled by requests. Each further delay is twice as long, up to
/// `BACKOFF_MOST`.
const BACKOFF_USED: Duration = Duration::from_secs(60);
/// The first delay after a probe that failed or was doubtful. It is longer because such a probe writes up to a
/// gigabyte.
const BACKOFF_DOUBT: Duration = Duration::from_secs(600);
const BACKOFF_MOST: Duration = Duration::from_secs(24 * 3600);

/// The disks that wait for a probe.
pub type Waiting = Mutex<BTreeMap<Name, Wait>>;

/// A disk that waits for a probe.
#[derive(Debug)]
pub struct Wait {
    seen: Activity,
    /// The last time at which there was activity.
    quiet_since: Instant,
    not_before: Instant,
    backoff: Duration,
    /// The result of the last attempt, for the user.
    note: Option<String>,
}

/// Counters that show whether a disk is used.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Activity {
    requests: u64,
    busy_ns: u64,
    outstanding: u64,
}

impl Activity {
    fn of(snapshot: &Snapshot) -> Activity {
        let requests = |ops: [&engine::control::OpStats; 4]| ops.iter().map(|op| op.requests).sum::<u64>();
        let volumes = snapshot.volumes.iter();
        let in_device = snapshot.in_flight + snapshot.queued;
        Activity {
            requests: volumes.clone().map(|v| requests([&v.read, &v.write, &v.flush, &v.other])).sum(),
            busy_ns: snapshot.busy_ns,
            outstanding: in_device + volumes.map(|volume| volume.dirty_blocks).sum::<u64>(),
        }
    }

    fn is_idle_since(&self, before: &Activity) -> bool {
        self == before && self.outstanding == 0
    }
}

impl Wait {
    fn new(now: Instant) -> Wait {
        Wait { seen: Activity::default(), quiet_since: now, not_before: now, backoff: Duration::ZERO, note: None }
    }

    /// Records the disk's activity. Returns whether it may be probed now.
    fn look(&mut self, activity: Activity, now: Instant) -> bool {
        if !activity.is_idle_since(&self.seen) {
            self.quiet_since = now;
        }
        self.seen = activity;
        now.duration_since(self.quiet_since) >= IDLE && now >= self.not_before
    }

    fn again_later(&mut self, least: Duration, note: String, now: Instant) {
        self.backoff = (self.backoff * 2).clamp(least, BACKOFF_MOST);
        self.not_before = now + self.backoff;
        self.quiet_since = now;
        self.note = Some(note);
    }
}

impl Control {
    fn waits(&self) -> MutexGuard<'_, BTreeMap<Name, Wait>> {
        self.automatic.lock().expect("nobody panics while holding it")
    }

    /// Probes disks without a profile, each when it is idle, until the server shuts down.
    pub async fn probe_idle_disks(self: Arc<Control>) {
        if !self.config.automatic_probe {
            return;
        }
        while !self.is_shutting_down() {
            tokio::time::sleep(LOOK).await;
            let unknown = self.unknown_disks();
            self.waits().retain(|disk, _| unknown.contains(disk));
            for disk in unknown {
                let Some(snapshot) = self.snapshot(&disk).await else { continue };
                let (now, activity) = (Instant::now(), Activity::of(&snapshot));
                let is_due = self.waits().entry(disk.clone()).or_insert_with(|| Wait::new(now)).look(activity, now);
                if is_due {
                    self.probe_by_itself(&disk, activity).await;
                }
            }
        }
    }

    /// Disks without a profile whose policy depends on it.
    fn unknown_disks(&self) -> Vec<Name> {
        let state = self.state();
        let running = state.disks.iter().filter_map(|(name, disk)| Some((name, disk.state.as_ref().ok()?)));
        running.filter(|(_, running)| is_wanted(&running.store)).map(|(name, _)| name.clone()).collect()
    }

    async fn probe_by_itself(&self, disk: &Name, before: Activity) {
        let Ok(begun) = self.begin_probe(disk, SECONDS_QUICK, true).await else { return };
        tracing::info!(%disk, "idle and without a profile: a quick probe starts; the first request cancels it");
        let job = begun.job.clone();
        let mut probe = std::pin::pin!(self.run_probe(disk, begun));
        let ended = loop {
            tokio::select! {
                ended = &mut probe => break ended,
                () = tokio::time::sleep(LOOK_CLOSELY) => {}
            }
            // A disk that does not answer counts as used.
            let now = self.snapshot(disk).await.map(|snapshot| Activity::of(&snapshot));
            if !now.is_some_and(|now| now.is_idle_since(&before)) {
                job.cancel();
            }
        };
        let ended = match ended {
            Ok(said) => {
                self.waits().remove(disk);
                let store = self.state().disk(disk).map(|running| running.store.clone());
                let policy = store.map_or_else(
                    |_| String::new(),
                    |store| {
                        let chosen = self.chosen(disk, &store);
                        format!("; {}: {}", chosen.name, chosen.reason)
                    },
                );
                return self.tell_disk(disk, format!("automatic quick probe: {said}{policy}"));
            }
            Err(ended) => ended,
        };
        let (least, note) = without_profile(&ended);
        self.tell_disk(disk, note.clone());
        if let Some(wait) = self.waits().get_mut(disk) {
            wait.again_later(least, note, Instant::now());
        }
    }

    /// Why a disk has no profile, for the user.
    pub(super) fn why_unprobed(&self, disk: &Name, scheduling: &Scheduling) -> String {
        let by_hand = format!("`aerogel disk probe {disk}`");
        if scheduling.no_probe || !self.config.automatic_probe {
            return format!("not probed, run {by_hand}");
        }
        match self.waits().get(disk).and_then(|wait| Some((wait.note.clone()?, wait.not_before))) {
            Some((note, not_before)) => {
                let left = not_before.saturating_duration_since(Instant::now());
                let left = Time(Duration::from_secs(left.as_secs().max(1)));
                format!("{note}; next attempt in {left} at the earliest, or run {by_hand}")
            }
            None => {
                format!("not probed yet: probed automatically after {} of idle time, or run {by_hand}", Time(IDLE))
            }
        }
    }
}

/// For a probe without result: the minimum delay before the next one, and the message.
fn without_profile(ended: &Ended) -> (Duration, String) {
    match ended {
        Ended::Cancelled => {
            (BACKOFF_USED, "not probed: the automatic quick probe was cancelled because the disk was used".into())
        }
        Ended::Doubtful(why) => {
            (BACKOFF_DOUBT, format!("probed, but the result is unreliable (automatic quick probe): {why}"))
        }
        Ended::Failed(why) => (BACKOFF_DOUBT, format!("not probed: the automatic quick probe failed: {why}")),
    }
}

/// Whether a disk is to be probed automatically.
fn is_wanted(store: &Store) -> bool {
    let known = store.known();
    let is_known = known.profile.values.contains_key(&Key::NeedsSlices);
    // A policy that was requested and does not insulate needs no profile.
    let insulates = known.scheduling.policy.is_none_or(|name| name.0 == Kind::Insulated);
    let asked = insulates && !known.scheduling.no_probe;
    store.model.is_none() && !is_known && asked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_doubtful_probe_is_not_called_none() {
        let (least, note) = without_profile(&Ended::Doubtful("others used it".into()));
        assert_eq!(note, "probed, but the result is unreliable (automatic quick probe): others used it");
        assert_eq!(least, BACKOFF_DOUBT);
        let (least, note) = without_profile(&Ended::Cancelled);
        assert!(note.starts_with("not probed: ") && least == BACKOFF_USED, "{note}");
    }

    #[test]
    fn only_an_idle_disk_is_due_and_failures_wait_longer_and_longer() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let used = |requests| Activity { requests, ..Activity::default() };
        let mut wait = Wait::new(start);
        assert!(!wait.look(used(1), at(9)) && !wait.look(used(2), at(12)), "it is used");
        assert!(!wait.look(used(2), at(21)) && wait.look(used(2), at(22)));
        assert!(!wait.look(Activity { outstanding: 1, ..used(2) }, at(40)), "dirty data will be written");
        assert!(!wait.look(Activity { busy_ns: 7, ..used(2) }, at(60)), "its own thread used it");
        wait.again_later(BACKOFF_USED, String::new(), at(100));
        let idle = Activity { busy_ns: 7, ..used(2) };
        assert!(!wait.look(idle, at(159)) && wait.look(idle, at(160)));
        wait.again_later(BACKOFF_USED, String::new(), at(200));
        assert!(!wait.look(idle, at(319)) && wait.look(idle, at(320)));
        (0..20).for_each(|_| wait.again_later(BACKOFF_DOUBT, String::new(), at(400)));
        assert!(wait.look(idle, at(400) + BACKOFF_MOST), "it is given up");
    }
}
