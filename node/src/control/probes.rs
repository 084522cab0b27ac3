//! Probes of disks: starting, watching and cancelling them; storing their results; setting values by hand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, SystemTime};

use engine::disk::profile::{Finding, Key, Override, Profile, Unit, doubt};
use tracing::{info, warn};

use super::view::{DataKind, ProbeState, ProbeView, StartProbe};
use super::{Control, Done, Error, Invalid, Kind, blocking};
use crate::disk_thread::Stopped;
use crate::probe::drive::{self, ProbeDrive};
use crate::probe::{self, Found, Job, ProbeError};
use crate::quantity::Name;
use crate::reactor::LayerCommand;
use crate::store::{Kernel, Raw, Store};

/// Two probes agree on a value if it differs by at most this fraction.
const AGREE: f64 = 0.15;
/// Disturbances of a probe below this fraction are not reported.
const DISTURBS: f64 = 0.05;

/// The interval of checks whether a cancelled automatic probe has ended, and the time limit for it: the probe completes
/// its requests in the device, and one step on its scratch file.
const YIELD_POLL: Duration = Duration::from_millis(20);
const YIELD_TIMEOUT: Duration = Duration::from_secs(5);

/// The latest probe of each disk.
pub type Probes = Mutex<BTreeMap<Name, Latest>>;

/// A probe that is running or has ended.
#[derive(Debug)]
pub struct Latest {
    job: Arc<Job>,
    /// Whether the server started it by itself.
    automatic: bool,
    /// Its result: a summary, or why there is none.
    ended: Option<Result<String, Ended>>,
}

/// A probe that is about to run.
#[derive(Debug)]
pub(super) struct Begun {
    store: Arc<Store>,
    devices: Vec<(Raw, u64)>,
    pub(super) job: Arc<Job>,
    /// Its time limit, seconds.
    seconds: u64,
    /// Whether the server started it by itself.
    automatic: bool,
}

/// Why a probe has no result that is kept.
#[derive(Clone, Debug)]
pub enum Ended {
    Cancelled,
    Failed(String),
    /// An automatic probe has a result that is not trusted.
    Doubtful(String),
}

impl Control {
    /// Starts a probe of a disk. It continues if the client that requested it disconnects.
    pub async fn start_probe(self: Arc<Control>, disk: &Name, request: StartProbe) -> Result<Done, Error> {
        let seconds = request.seconds.unwrap_or(probe::SECONDS_MOST);
        if !(probe::SECONDS_LEAST..=probe::SECONDS_MOST).contains(&seconds) {
            return Err(Invalid::ProbeSeconds(seconds).into());
        }
        self.yield_probe(disk).await;
        let begun = self.begin_probe(disk, seconds, false).await?;
        info!(%disk, seconds, "probing");
        let (control, name) = (self.clone(), disk.clone());
        tokio::spawn(async move {
            match control.run_probe(&name, begun).await {
                Ok(said) => info!(disk = %name, "probed: {said}"),
                Err(why) => warn!(disk = %name, ?why, "the probe failed"),
            }
        });
        let message = format!("disk '{disk}' is being probed: `aerogel disk show {disk}` has the profile afterwards");
        Ok(Done { message, disk: None, volume: None, tenant: None })
    }

    /// Prepares a probe of a disk, unless one is running.
    pub(super) async fn begin_probe(&self, disk: &Name, seconds: u64, automatic: bool) -> Result<Begun, Error> {
        let _turn = self.change(disk).await?;
        let (store, devices) = {
            let state = self.state();
            let running = state.disk(disk)?;
            let devices = running.raw_devices();
            if devices.is_empty() && running.data_kind() == DataKind::Raw {
                return Err(Error::NothingToProbe(disk.clone()));
            }
            (running.store.clone(), devices)
        };
        let job = Arc::new(Job::new());
        let mut probes = self.probes();
        if probes.get(disk).is_some_and(|latest| latest.ended.is_none()) {
            return Err(Error::Probing(disk.clone()));
        }
        probes.insert(disk.clone(), Latest { job: job.clone(), automatic, ended: None });
        Ok(Begun { store, devices, job, seconds, automatic })
    }

    /// Runs a probe to its end, and records its result.
    pub(super) async fn run_probe(&self, disk: &Name, begun: Begun) -> Result<String, Ended> {
        let ended = self.measure_and_keep(disk, begun).await;
        if let Some(latest) = self.probes().get_mut(disk) {
            latest.ended = Some(ended.clone());
        }
        ended
    }

    /// Cancels an automatic probe of a disk, and waits in bounded time until it has ended.
    pub(super) async fn yield_probe(&self, disk: &Name) {
        let is_running = |control: &Control| {
            let probes = control.probes();
            let running = probes.get(disk).filter(|latest| latest.automatic && latest.ended.is_none());
            running.inspect(|latest| latest.job.cancel()).is_some()
        };
        let waits = async {
            while is_running(self) {
                tokio::time::sleep(YIELD_POLL).await;
            }
        };
        let _ = tokio::time::timeout(YIELD_TIMEOUT, waits).await;
    }

    /// Probes the raw devices of a disk whose volumes are all raw; a scratch file otherwise.
    async fn measure_and_keep(&self, disk: &Name, begun: Begun) -> Result<String, Ended> {
        let Begun { store, devices, job, seconds, automatic } = begun;
        let kind = self.config.reactor.into();
        let failed = |why: &dyn std::fmt::Display| Ended::Failed(why.to_string());
        let busy_before = self.snapshot(disk).await.map(|snapshot| snapshot.busy_ns);
        let began = std::time::Instant::now();
        let measured = store.clone();
        let result = match &store.identity.simulated {
            None if devices.is_empty() => blocking(move || probe::probe_disk(&measured, kind, seconds, &job)).await,
            None => {
                let devices = devices.clone();
                blocking(move || probe::probe_devices(&devices, kind, seconds, &job)).await
            }
            Some(simulated) => self.probe_drive(disk, simulated.size, seconds, job).await,
        };
        let mut found = match result {
            Ok(Ok(found)) => found,
            Ok(Err(ProbeError::Cancelled)) => return Err(Ended::Cancelled),
            Ok(Err(error)) => return Err(failed(&error)),
            Err(error) => return Err(failed(&error)),
        };
        let busy_after = self.snapshot(disk).await.map(|snapshot| snapshot.busy_ns);
        if let Some((before, after)) = busy_before.zip(busy_after) {
            let ratio =
                Duration::from_nanos(after.saturating_sub(before)).as_secs_f64() / began.elapsed().as_secs_f64();
            found.push((Key::DisturbedByVolumes, Finding::plain(Some(ratio.min(1.0)))));
        }
        if let Some(why) = doubt(&found).or_else(|| unread(&devices, &found)).filter(|_| automatic) {
            return Err(Ended::Doubtful(why));
        }
        let said = summary(&store.known().profile, &found);
        let _turn = self.turns.wait(disk).await;
        let keep = blocking(move || {
            store.change(|known| match automatic {
                true => known.profile.take_automatic(&found, now_s()),
                false => known.profile.take(&found, now_s()),
            })
        });
        let keep = keep.await;
        match keep {
            Ok(Ok(())) => {
                self.apply_policy(disk).await;
                Ok(said)
            }
            Ok(Err(why)) => Err(failed(&format!("its profile cannot be stored: {why}"))),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Probes the drive of a simulated disk, on the disk's own thread.
    async fn probe_drive(
        &self,
        disk: &Name,
        bytes: u64,
        seconds: u64,
        job: Arc<Job>,
    ) -> Result<Result<Found, ProbeError>, Error> {
        let (listener, heard) = mpsc::channel();
        let asked = Box::new(ProbeDrive {
            bytes,
            options: probe::options(Duration::from_secs(seconds), false),
            job: job.clone(),
            listener,
        });
        let begun = self.state().disk(disk)?.thread.layers(LayerCommand::Probe(asked));
        begun.await.map_err(|Stopped| Error::Unknown(Kind::Disk, disk.clone()))?;
        blocking(move || drive::listen(&heard, &job)).await
    }

    /// The progress of the probe of a disk, or the result of the last one.
    pub fn show_probe(&self, disk: &Name) -> Result<ProbeView, Error> {
        self.state().disk(disk)?;
        let probes = self.probes();
        let Some(latest) = probes.get(disk) else {
            return Ok(ProbeView { state: ProbeState::None, doing: String::new(), done_ratio: 0.0, message: None });
        };
        let progress = latest.job.progress();
        let (state, message) = match &latest.ended {
            None => (ProbeState::Running, None),
            Some(Ok(said)) => (ProbeState::Done, Some(said.clone())),
            Some(Err(Ended::Cancelled)) => (ProbeState::Cancelled, None),
            Some(Err(Ended::Failed(why) | Ended::Doubtful(why))) => (ProbeState::Failed, Some(why.clone())),
        };
        let doing = if state == ProbeState::Running { progress.doing.into() } else { String::new() };
        Ok(ProbeView { state, doing, done_ratio: progress.done_ratio, message })
    }

    /// Cancels the probe of a disk. Its partial results are dropped.
    pub fn cancel_probe(&self, disk: &Name) -> Result<Done, Error> {
        self.state().disk(disk)?;
        let probes = self.probes();
        let latest = probes.get(disk).filter(|latest| latest.ended.is_none());
        let Some(latest) = latest else {
            return Err(Error::NotProbing(disk.clone()));
        };
        latest.job.cancel();
        Ok(Done {
            message: format!("the probe of disk '{disk}' is being cancelled"),
            disk: None,
            volume: None,
            tenant: None,
        })
    }

    /// Cancels the probes of this disk, or of all, without an error: the disk is being removed.
    pub(super) fn end_probes(&self, disk: Option<&Name>) {
        let probes = self.probes();
        let concerned = probes.iter().filter(|(name, _)| disk.is_none_or(|disk| disk == *name));
        concerned.for_each(|(_, latest)| latest.job.cancel());
    }

    fn probes(&self) -> std::sync::MutexGuard<'_, BTreeMap<Name, Latest>> {
        self.probes.lock().expect("nobody panics while holding it")
    }
}

/// Why an automatic probe of raw devices is not trusted. Raw devices are only read, and a thin volume or flash answers
/// reads of blocks that were never written without reading the medium. So if a device says that it rotates, a result
/// that it needs no slices is not trusted.
fn unread(devices: &[(Raw, u64)], found: &Found) -> Option<String> {
    let needs_slices = found.iter().find(|(key, _)| *key == Key::NeedsSlices).and_then(|(_, finding)| finding.value);
    let kernel = Kernel::default();
    let turns = devices.iter().any(|(_, number)| kernel.queue(*number, "rotational").as_deref() == Some("1"));
    (turns && needs_slices != Some(1.0)).then(|| {
        "its raw devices report that they rotate, but answered reads without rotational delay: blocks that were never \
         written are possibly not read from the medium"
            .into()
    })
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Parses a value: a number in the unit of its name, `none`, or `measured` to remove the override.
pub(super) fn parse(disk: &Name, key: &str, to: &str) -> Result<(Key, Option<Override>), Error> {
    let known: Key = key.parse().map_err(|source| Invalid::ProfileKey { disk: disk.clone(), source })?;
    if known.is_about_probe() {
        return Err(Invalid::KeyOfProbe(key.into()).into());
    }
    let wrong = |expected| Invalid::ProfileValue { key: key.into(), value: to.into(), expected };
    let value = match to {
        "measured" => return Ok((known, None)),
        "none" => None,
        number => {
            let number: f64 = number.parse().map_err(|_| wrong("a number"))?;
            let (most, what) = match known.unit() {
                Unit::YesNo => (1.0, "0 or 1"),
                Unit::Ratio => (1.0, "a number from 0 to 1"),
                _ => (1e18, "a number from 0 to 1e18"),
            };
            if !(0.0..=most).contains(&number) || known.unit() == Unit::YesNo && number.fract() != 0.0 {
                return Err(wrong(what).into());
            }
            Some(number)
        }
    };
    Ok((known, Some(Override { value, at_s: now_s() })))
}

/// A summary of a probe: what disturbed it, and whether it agrees with the one before.
fn summary(before: &Profile, found: &Found) -> String {
    let number = |key: Key| found.iter().find(|(k, _)| *k == key).and_then(|(_, finding)| finding.value);
    let disturbances = [
        (Key::DisturbedByOthers, "others used {} of the device"),
        (Key::DisturbedByOthersMost, "others used {} of it in the worst phase"),
        (Key::DisturbedByVolumes, "its own volumes had requests in the device {} of the time"),
        (Key::DisturbedByProcessor, "the probe waited for a processor {} of the time"),
        (Key::RepeatedSpread, "one value, measured three times, varied by {}"),
    ];
    let seen = disturbances.into_iter().filter_map(|(key, text)| {
        let ratio = number(key).filter(|&ratio| ratio >= DISTURBS)?;
        Some(text.replace("{}", &format!("{:.0} %", ratio * 100.0)))
    });
    let seen: Vec<String> = seen.collect();
    let was_disturbed = !seen.is_empty();
    let mut text = if seen.is_empty() { "undisturbed".into() } else { format!("disturbed: {}", seen.join("; ")) };
    if number(Key::WritesUnknown).is_some() {
        text += "; raw devices are only read: values of writes are unknown";
    }
    // Where switching costs nothing, the measured switch cost is noise.
    let is_noise = |key: Key| matches!(key, Key::SwitchCost(_)) && number(Key::NeedsSlices) == Some(0.0);
    let pairs: Vec<(Key, f64)> = found
        .iter()
        .filter(|(key, _)| !key.is_about_probe() && !is_noise(*key))
        .filter_map(|(key, finding)| {
            let old = before.values.get(key)?.measured.as_ref()?.value.filter(|&old| old > 0.0)?;
            Some((*key, finding.value? / old - 1.0))
        })
        .collect();
    let apart: Vec<_> = pairs.iter().filter(|(_, change)| change.abs() > AGREE).collect();
    if let Some((key, change)) = apart.iter().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())) {
        text += &format!(
            "; {} of {} values differ by more than 15 % from those of the last probe, {key} the most ({:+.0} %)",
            apart.len(),
            pairs.len(),
            change * 100.0
        );
        if !was_disturbed {
            text += ": no disturbance was found on this machine; the device itself varies, or shares hardware with \
                     other machines";
        }
    } else if !pairs.is_empty() {
        text += "; all values are within 15 % of those of the last probe";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_by_hand_is_checked() {
        let disk: Name = "d".parse().unwrap();
        let number = |key, to| parse(&disk, key, to).map(|(_, set)| set.map(|set| set.value));
        assert_eq!(number("rotation_period_ns", "8.3e6").unwrap(), Some(Some(8.3e6)));
        assert_eq!(number("rotation_period_ns", "none").unwrap(), Some(None));
        assert_eq!(number("needs_slices", "measured").unwrap(), None);
        for (key, to) in [
            ("colour", "1"),
            ("needs_slices", "2"),
            ("needs_slices", "0.5"),
            ("rotation_period_ns", "-1"),
            ("rotation_period_ns", "NaN"),
            ("rotation_period_ns", "8 ms"),
            ("repeated_spread_ratio", "0"),
        ] {
            let said = number(key, to).unwrap_err().to_string();
            assert!(said.contains(key), "{said}");
        }
    }

    #[test]
    fn disturbances_and_differences_are_told() {
        let mut before = Profile::default();
        let found = |rate, others| {
            vec![
                (Key::RotationPeriod, Finding::plain(Some(rate))),
                (Key::DisturbedByOthers, Finding::plain(Some(others))),
            ]
        };
        assert_eq!(summary(&before, &found(1.0, 0.01)), "undisturbed");
        before.take(&found(1.0, 0.0), 0);
        assert_eq!(
            summary(&before, &found(1.1, 0.0)),
            "undisturbed; all values are within 15 % of those of the last probe"
        );
        let said = summary(&before, &found(1.2, 0.0));
        assert!(said.starts_with("undisturbed") && said.ends_with("other machines"), "{said}");
        let said = summary(&before, &found(1.2, 0.3));
        assert!(!said.contains("other machines"), "{said}");
        assert!(said.contains("30 %") && said.contains("1 of 1") && said.contains("+20 %"), "{said}");
    }
}
