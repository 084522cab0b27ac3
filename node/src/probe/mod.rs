//! Measuring a disk in real time: the engine's probe runs on a thread of its own, concurrently with the disk's thread.
//!
//! ```text
//!   control ──► Job (progress, cancel) ──► thread "probe NAME": scratch file ─► Probe ◄─► ProbeTarget ─► findings
//! ```
//!
//! A [`ProbeTarget`] is a scratch file, accessed through a reactor of its own; or, on a disk whose volumes are all raw,
//! their devices, which are only read. The disk's own thread is affected only by the load on the device. The load is
//! full on purpose: a probe that yields to other requests would not measure the device's full rates. If the disk is in
//! use, its clients wait longer during the probe, and the result says how much they disturbed the measurement.
//!
//! A simulated drive exists only in the layers of the disk's thread; [`drive`] probes it there.
//!
//! Downside: the device is measured through the file system, and the scratch file is one more file on it. On raw
//! devices, writes are not measured.

mod disturbance;
pub mod drive;
mod scratch;
mod target;

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use engine::disk::Op;
use engine::disk::profile::{
    BUDGET_NS, DEPTH_MAX, Finding, Findings, Key, Options, Probe, Progress, Request, TooSmall,
};
use engine::nbd::Errno;
use engine::units::{BLOCK, Nanos};

use self::disturbance::{DeviceUse, ProcessorUse};
pub use self::scratch::remove_left_over;
pub use self::target::{FileTarget, Part, ProbeTarget};
use crate::reactor::Kind;
use crate::store::{Kernel, Raw, RawError, Store, StoreError};

/// A probe takes at most two minutes: some seconds less, for requests that are in flight at the end.
pub const SECONDS_MOST: u64 = 115;
/// A shorter time is not enough to measure a disk with heads.
pub const SECONDS_LEAST: u64 = 2;
/// The limit of a quick probe, which the server also uses by itself. It takes nine seconds on most disks.
pub const SECONDS_QUICK: u64 = 15;
/// The fraction of the time that may be used to write the scratch file.
const SCRATCH_PART: f64 = 0.13;
/// The interval at which a probe checks whether it was cancelled.
const LOOK: Duration = Duration::from_millis(100);
/// How long a probe that ends early waits for its requests in flight.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The scratch file cannot be created.
    #[error(transparent)]
    Scratch(#[from] StoreError),
    /// The space to measure on is too small.
    #[error("the area to probe is too small: {0}")]
    TooSmall(#[from] TooSmall),
    /// A raw device cannot be read.
    #[error(transparent)]
    Raw(#[from] RawError),
    /// A request to the device failed.
    #[error("{direction} of {len} bytes at {offset} of {what} failed: {errno:?}")]
    Device {
        /// "a read" or "a write".
        direction: &'static str,
        /// What was accessed.
        what: &'static str,
        /// The offset in it.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The error.
        errno: Errno,
    },
    /// The reactor failed.
    #[error("I/O is not possible: {0}")]
    Reactor(#[from] io::Error),
    /// The probe was cancelled.
    #[error("it was cancelled")]
    Cancelled,
}

/// The error for a request that has failed.
fn device_error(request: &Request, what: &'static str, errno: Errno) -> ProbeError {
    let direction = if request.op == Op::Read { "a read" } else { "a write" };
    ProbeError::Device { direction, what, offset: request.offset, len: request.len, errno }
}

/// A probe in progress, as other threads see it.
#[derive(Debug)]
pub struct Job {
    progress: Mutex<Progress>,
    cancelled: AtomicBool,
}

impl Job {
    /// A probe that has not begun.
    pub fn new() -> Job {
        let progress = Mutex::new(Progress { doing: "beginning", done_ratio: 0.0 });
        Job { progress, cancelled: AtomicBool::new(false) }
    }

    /// Its progress.
    pub fn progress(&self) -> Progress {
        *self.progress.lock().expect("nobody panics while holding it")
    }

    fn set_progress(&self, doing: &'static str, done_ratio: f64) {
        *self.progress.lock().expect("nobody panics while holding it") = Progress { doing, done_ratio };
    }

    /// Cancels the probe; it ends soon.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), ProbeError> {
        if self.cancelled.load(Ordering::Relaxed) { Err(ProbeError::Cancelled) } else { Ok(()) }
    }
}

/// The findings of a probe, including its disturbances.
pub type Found = Vec<(Key, Finding)>;

/// Probes raw devices, given with the numbers under which they are served. They are read through separate descriptors.
pub fn probe_devices(devices: &[(Raw, u64)], kind: Kind, seconds: u64, job: &Job) -> Result<Found, ProbeError> {
    let parts: Vec<Part> = devices.iter().map(|(device, served)| part_of(device, *served)).collect::<Result<_, _>>()?;
    // The kernel has statistics of drives. With several drives, those of the first are taken for all.
    let drives = devices.first().map(|(_, served)| Kernel::default().drives(*served)).unwrap_or_default();
    let target = FileTarget::new(kind, parts, BLOCK, true)?;
    measure(target, drives.first().copied().unwrap_or(0), Duration::from_secs(seconds), job)
}

fn part_of(device: &Raw, served: u64) -> Result<Part, RawError> {
    let now = device.grown(&Kernel::default(), served)?;
    let file = now.open_to_read()?;
    Ok(Part { file, ranges: std::iter::once(0..now.usable_bytes()).collect() })
}

/// Probes a disk with a scratch file for at most `seconds`, on this thread.
pub fn probe_disk(store: &Store, kind: Kind, seconds: u64, job: &Job) -> Result<Found, ProbeError> {
    let time = Duration::from_secs(seconds);
    let file = scratch::create(store, time.mul_f64(SCRATCH_PART), job)?;
    let block = u64::from(store.abilities.device_block);
    let device = store.device;
    let target = FileTarget::new(kind, vec![file], block, false)?;
    measure(target, device, time.mul_f64(1.0 - SCRATCH_PART), job)
}

/// The options for a probe of this duration.
pub fn options(time: Duration, read_only: bool) -> Options {
    let budget_ns = BUDGET_NS.min(time.as_nanos() as Nanos);
    // A different seed for each probe.
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    Options { budget_ns, seed, read_only }
}

/// Measures a target. `device` is its device number, for the kernel's statistics.
pub fn measure(mut target: impl ProbeTarget, device: u64, time: Duration, job: &Job) -> Result<Found, ProbeError> {
    let processor_before = ProcessorUse::read();
    let began = Instant::now();
    let now = || began.elapsed().as_nanos() as Nanos;
    let probe = Probe::new(target.space(), options(time, target.is_read_only()), now())?;
    let findings = Findings::default();
    let (own, used) = (DeviceUse::default(), DeviceUse::read(device));
    let phases = Phases { device, began: used.map(|used| (used, own)), others_most: None };
    let mut run = Run { probe, findings, issued: Default::default(), in_flight: 0, own, phases };
    let result = run.go_on(&mut target, &now, job);
    if let Err(error) = result {
        run.settle(&mut target, &now);
        if run.in_flight > 0 {
            // Dropping a ring waits for its requests, and aborts the process if they hang.
            tracing::warn!(
                requests = run.in_flight,
                "the device does not complete the requests of the probe: its memory is not freed"
            );
            std::mem::forget(target);
        }
        return Err(error);
    }
    let mut found = run.findings.values();
    let mut add = |key, value: Option<f64>| found.extend(value.map(|value| (key, Finding::plain(Some(value)))));
    let all = used.zip(DeviceUse::read(device)).map(|(before, after)| after.since(&before));
    add(Key::DisturbedByOthers, all.and_then(|all| all.others(&run.own)));
    add(Key::DisturbedByOthersMost, run.phases.others_most);
    let waited = processor_before.zip(ProcessorUse::read()).map(|(from, to)| from.waited_until(&to, began.elapsed()));
    add(Key::DisturbedByProcessor, waited);
    add(Key::WritesUnknown, target.is_read_only().then_some(1.0));
    Ok(found)
}

/// A probe and its requests in the device.
struct Run {
    probe: Probe,
    findings: Findings,
    /// For each slot, when its request was submitted, and the request.
    issued: [Option<(Nanos, Request)>; DEPTH_MAX],
    in_flight: usize,
    /// The probe's own use of the device.
    own: DeviceUse,
    phases: Phases,
}

/// Measures for each phase who used the device.
struct Phases {
    device: u64,
    /// At the beginning of the current phase: the use by all, and by the probe.
    began: Option<(DeviceUse, DeviceUse)>,
    /// The highest fraction of others in any phase.
    others_most: Option<f64>,
}

impl Phases {
    /// Ends a phase; `own` is the probe's use so far. In a phase that only rested, others did not disturb.
    fn end(&mut self, own: DeviceUse, rested: bool) {
        let Some(now) = DeviceUse::read(self.device) else { return };
        if let Some((all_before, own_before)) = self.began.replace((now, own))
            && !rested
        {
            let others = now.since(&all_before).others(&own.since(&own_before));
            self.others_most = others.into_iter().chain(self.others_most).reduce(f64::max);
        }
    }
}

impl Run {
    fn go_on(&mut self, target: &mut impl ProbeTarget, now: &impl Fn() -> Nanos, job: &Job) -> Result<(), ProbeError> {
        loop {
            job.check()?;
            while let Some(request) = self.probe.poll_request(now()) {
                self.issued[request.slot as usize] = Some((now(), request));
                self.in_flight += 1;
                target.submit(&request);
            }
            while let Some(phase) = self.probe.poll_phase() {
                self.phases.end(self.own, phase.is_rest());
                self.findings.take(phase);
            }
            if self.probe.is_over() {
                return Ok(());
            }
            let Progress { doing, done_ratio } = self.probe.progress();
            // A read-only target has no scratch file to write first.
            let before = if target.is_read_only() { 0.0 } else { SCRATCH_PART };
            job.set_progress(doing, before + (1.0 - before) * done_ratio);
            let wake_at = self.probe.poll_timeout().unwrap_or(Nanos::MAX);
            let timeout = LOOK.min(Duration::from_nanos(wake_at.saturating_sub(now())));
            self.collect(target, timeout, now)?;
        }
    }

    fn collect(
        &mut self,
        target: &mut impl ProbeTarget,
        timeout: Duration,
        now: &impl Fn() -> Nanos,
    ) -> Result<(), ProbeError> {
        let mut failed = None;
        let done = target.wait(timeout)?;
        // The clock is read once: all of them were complete when the wait ended.
        let at = now();
        for (slot, result) in done {
            let Some((issued, request)) = self.issued[slot as usize].take() else { continue };
            self.in_flight -= 1;
            self.own.time_ns += at - issued;
            self.own.bytes += request.len;
            self.own.requests += 1;
            match result {
                Ok(()) => self.probe.complete(at, slot),
                Err(errno) => failed = Some((request, errno)),
            }
        }
        match failed {
            None => Ok(()),
            Some((request, errno)) => Err(device_error(&request, "the scratch file", errno)),
        }
    }

    /// Waits for requests in flight, since the kernel still uses their memory.
    fn settle(&mut self, target: &mut impl ProbeTarget, now: &impl Fn() -> Nanos) {
        let until = Instant::now() + TIMEOUT;
        while self.in_flight > 0 && Instant::now() < until {
            if let Err(ProbeError::Reactor(_)) = self.collect(target, LOOK, now) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Identity, Scheduling};

    fn store(directory: &std::path::Path) -> Store {
        let disk = directory.join("disk");
        Identity::initialise(&disk, None, Vec::new(), Scheduling::default()).unwrap();
        Store::open(&disk, None).unwrap()
    }

    #[test]
    fn a_disk_is_measured_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        for kind in [Kind::Auto, Kind::Threads] {
            let found = probe_disk(&store, kind, SECONDS_LEAST, &Job::new()).unwrap();
            let rates =
                found.iter().filter(|(key, finding)| matches!(key, Key::Random(..)) && finding.value > Some(0.0));
            assert!(rates.count() > 8, "{found:?}");
            assert!(!store.directory().join(scratch::NAME).exists());
        }
    }

    #[test]
    fn a_cancelled_probe_ends() {
        let dir = tempfile::tempdir().unwrap();
        let job = Job::new();
        job.cancel();
        let result = probe_disk(&store(dir.path()), Kind::Auto, SECONDS_MOST, &job);
        assert!(matches!(result, Err(ProbeError::Cancelled)), "{result:?}");
    }
}
