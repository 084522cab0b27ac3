//! A probe of a simulated drive: one more user of it, beside the volumes.
//!
//! ```text
//!   volumes ──► faults ──► drive ◄─┐        thread of the disk, in Layers
//!                 ▲          │     │ as many as its phase wants, at the moment at which one is done
//!   Probing ──────┘◄─────────┘─────┘
//!      └──── phases that are over ────►     whoever works out what they mean, on a thread of its own
//! ```
//!
//! Its requests go through the same faults and wait in the same queue as those of the volumes, but touch no file: what
//! they read or write takes the drive's time, and nothing else. It lives in the drive's time: it asks at the very
//! moment at which something was done, however late the thread is. So it finds what the drive does, whatever else the
//! machine is doing; how late the thread is, the metric of completions tells.
//!
//! Downside: a drive faster than the thread can simulate is measured as fast as the thread is.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};

use engine::disk::Op;
use engine::disk::profile::{DEPTH_MAX, Findings, Options, PhaseTimes, Probe, Progress, Request, Space, TooSmall};
use engine::nbd::Errno;
use engine::units::{BLOCK, Nanos};
use sim::fault::layer::Asked;

use super::{Found, Job, LOOK, ProbeError, device_error};

/// Tags from here on are a probe's: `TAGS + 2^32 x its number + slot`. Those of volumes are the engine's 32 bits.
const TAGS: u64 = 1 << 63;

/// What a probe has to say.
pub type News = Result<Heard, ProbeError>;

/// What a probe has to say when all is well.
#[derive(Debug)]
pub enum Heard {
    /// A phase is over.
    Phase(PhaseTimes),
    /// All are.
    Over,
}

/// A probe to be made of a drive.
#[derive(Debug)]
pub struct ProbeDrive {
    /// Its bytes that may be used.
    pub bytes: u64,
    /// How long, and where.
    pub options: Options,
    /// How far it is; whether it was cancelled.
    pub job: Arc<Job>,
    /// Who listens. When nobody does any more, it ends.
    pub listener: mpsc::Sender<News>,
}

/// What a probe finds that tells of itself here.
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

/// A probe under way.
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
    /// Begins at `now`. Its number tells its requests from those of probes before.
    pub fn new(asked: ProbeDrive, number: u32, now: Nanos) -> Result<Probing, TooSmall> {
        let ProbeDrive { bytes, options, job, listener } = asked;
        let probe = Probe::new(Space::whole(bytes, BLOCK), options, now)?;
        Ok(Probing { probe, job, listener, number, requests: [None; DEPTH_MAX], ended: false })
    }

    /// Whether a tag is a probe's, of this one or of one before.
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

    /// When to poll next, if nothing is done before.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        self.probe.poll_timeout()
    }

    /// Hands over what is there to be told, and sees whether it is still wanted.
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

    /// What the drive is to be given for a tag that has come through the faults; nothing for one of a probe before.
    pub fn request(&self, tag: u64) -> Option<Request> {
        self.requests[self.slot(tag)? as usize]
    }

    /// The request with this tag was done at `now`.
    pub fn complete(&mut self, now: Nanos, tag: u64) {
        let Some(slot) = self.slot(tag) else { return };
        self.requests[slot as usize] = None;
        self.probe.complete(now, slot);
    }

    /// The request with this tag has failed: that is the end.
    pub fn fail(&mut self, tag: u64, errno: Errno) {
        if let Some(request) = self.request(tag) {
            self.send(Err(device_error(&request, "the simulated drive", errno)));
        }
    }

    /// Whether it is over, well or not.
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

/// A request as the faults see it: of no volume, but at its place on the drive.
pub fn asked(request: &Request) -> Asked<'static> {
    let Request { op, offset, len, .. } = *request;
    debug_assert!(matches!(op, Op::Read | Op::Write { durable: false }), "a probe does nothing else");
    Asked { op, volume: "", offset, len, block: BLOCK }
}
