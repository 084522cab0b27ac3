//! A probe of a simulated drive: it uses the drive as a volume does.
//!
//! ```text
//!   volumes ──► faults ──► drive ◄─┐        thread of the disk, in Layers
//!                 ▲          │     │ as many requests as the phase wants, submitted when one completes
//!   Probing ──────┘◄─────────┘─────┘
//!      └──── completed phases ───────►     evaluated on another thread
//! ```
//!
//! Its requests pass the same faults and wait in the same queue as those of volumes, but access no file: they only take
//! the drive's time. The probe runs in the drive's time: it submits a request at the very moment at which another one
//! completes, however late the thread is. So it measures the drive, whatever else the machine is doing. The lateness of
//! the thread is in the metric of completions.
//!
//! Downside: if the drive is faster than the thread can simulate, the speed of the thread is measured.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};

use engine::disk::Op;
use engine::disk::profile::{DEPTH_MAX, Findings, Options, PhaseTimes, Probe, Progress, Request, Space, TooSmall};
use engine::nbd::Errno;
use engine::units::{BLOCK, Nanos};
use sim::fault::layer::Asked;

use super::{Found, Job, LOOK, ProbeError, device_error};

/// Tags of probes: `TAGS + 2^32 x number of the probe + slot`. Tags of volumes' requests are 32-bit numbers of the
/// engine.
const TAGS: u64 = 1 << 63;

/// A message of a probe.
pub type News = Result<Heard, ProbeError>;

/// A message of a probe that has not failed.
#[derive(Debug)]
pub enum Heard {
    /// A phase has ended.
    Phase(PhaseTimes),
    /// All phases have ended.
    Over,
}

/// A request to probe a drive.
#[derive(Debug)]
pub struct ProbeDrive {
    /// Bytes of the drive that may be used.
    pub bytes: u64,
    /// Duration and seed.
    pub options: Options,
    /// Its progress, and whether it was cancelled.
    pub job: Arc<Job>,
    /// Receives the messages. The probe ends when it is disconnected.
    pub listener: mpsc::Sender<News>,
}

/// Evaluates the messages of a probe until it ends; returns what it found.
pub fn listen(heard: &mpsc::Receiver<News>, job: &Job) -> Result<Found, ProbeError> {
    let mut findings = Findings::default();
    loop {
        job.check()?;
        match heard.recv_timeout(LOOK) {
            Ok(news) => match news? {
                Heard::Phase(phase) => findings.take(phase),
                Heard::Over => return Ok(findings.values()),
            },
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                job.check()?;
                return Err(ProbeError::Reactor(io::Error::other("the disk was stopped")));
            }
        }
    }
}

/// A probe in progress.
#[derive(Debug)]
pub struct Probing {
    probe: Probe,
    job: Arc<Job>,
    listener: mpsc::Sender<News>,
    number: u32,
    requests: [Option<Request>; DEPTH_MAX],
    ended: bool,
}

impl Probing {
    /// Begins a probe at `now`. `number` distinguishes its requests from those of earlier probes.
    pub fn new(asked: ProbeDrive, number: u32, now: Nanos) -> Result<Probing, TooSmall> {
        let ProbeDrive { bytes, options, job, listener } = asked;
        let probe = Probe::new(Space::whole(bytes, BLOCK), options, now)?;
        Ok(Probing { probe, job, listener, number, requests: [None; DEPTH_MAX], ended: false })
    }

    /// Whether a tag belongs to a probe, this or an earlier one.
    pub fn is_tag(tag: u64) -> bool {
        tag >= TAGS
    }

    fn tag(&self, slot: u32) -> u64 {
        TAGS + (u64::from(self.number) << 32) + u64::from(slot)
    }

    fn slot(&self, tag: u64) -> Option<u32> {
        let slot = tag as u32;
        (tag == self.tag(slot)).then_some(slot)
    }

    /// The next request, to be submitted at `now`.
    pub fn poll_request(&mut self, now: Nanos) -> Option<(u64, Request)> {
        if self.ended {
            return None;
        }
        let request = self.probe.poll_request(now);
        self.tell();
        let request = request?;
        self.requests[request.slot as usize] = Some(request);
        Some((self.tag(request.slot), request))
    }

    /// When to poll next if no request completes before.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.probe.poll_timeout()
    }

    /// Sends the messages that are due, and checks whether the probe was cancelled.
    fn tell(&mut self) {
        self.ended |= self.job.check().is_err();
        while let Some(phase) = self.probe.poll_phase() {
            let Progress { doing, done_ratio } = self.probe.progress();
            self.job.set_progress(doing, done_ratio);
            self.send(Ok(Heard::Phase(phase)));
        }
        if self.probe.is_over() {
            self.send(Ok(Heard::Over));
            self.ended = true;
        }
    }

    fn send(&mut self, news: News) {
        self.ended |= news.is_err() | self.listener.send(news).is_err();
    }

    /// The request with this tag, to be passed to the drive after the faults. `None` if it belongs to an earlier probe.
    pub fn request(&self, tag: u64) -> Option<Request> {
        self.requests[self.slot(tag)? as usize]
    }

    /// The request with this tag has completed at `now`.
    pub fn complete(&mut self, now: Nanos, tag: u64) {
        let Some(slot) = self.slot(tag) else { return };
        self.requests[slot as usize] = None;
        self.probe.complete(now, slot);
    }

    /// The request with this tag has failed, which ends the probe.
    pub fn fail(&mut self, tag: u64, errno: Errno) {
        if let Some(request) = self.request(tag) {
            self.send(Err(device_error(&request, "the simulated drive", errno)));
        }
    }

    /// Whether it has ended, successfully or not.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

/// A request as the fault layer sees it: at its place on the drive, and of no volume.
pub fn asked(request: &Request) -> Asked<'static> {
    let Request { op, offset, len, .. } = *request;
    debug_assert!(matches!(op, Op::Read | Op::Write { durable: false }), "a probe does nothing else");
    Asked { op, volume: "", offset, len, block: BLOCK }
}
