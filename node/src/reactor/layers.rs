//! What can be stacked on a device: faults, and the time that a simulated drive takes.
//!
//! ```text
//!   engine ─ submit ─► faults ──────► drive's time ─┐      faults: passes, fails, waits, hangs, or is torn
//!                        │               │          ├─► file (the reactor below)
//!                        │ fails         └─ at ─┐   │
//!   engine ◄─ complete ──┴──────────── both ◄───┴───┘      not before the drive says, and not before the file is done
//! ```
//!
//! Beside the engine a [`Probing`] may ask the drive.
//!
//! The machines that decide are `sim`'s and know nothing of clocks and files; here they get CLOCK_MONOTONIC. A request
//! goes to the file at once and to the drive at the same moment; whichever is later decides. The wait ends when the
//! drive asks for it, but for what timers are late by ([`Lead`]). How late each completion was is counted, apart for
//! the clock and for files that are slower than the drive pretends to be.
//!
//! A disk without layers passes through untouched: one test of a flag for each request and turn.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use engine::disk::profile::Request;
use engine::disk::{Io, IoId, Op, Segment, VolumeId};
use engine::nbd::Errno;
use engine::units::Nanos;
use engine::{ConnId, Outgoing};
use sim::disk::drive::done::earlier;
use sim::disk::drive::{Drive, Tag};
use sim::fault::layer::{Asked, FaultLayer, Kind, Outcome, Phase};

use super::late::Late;
use super::lead::Lead;
use super::{BufferId, Completion, Reactor, Waker, clock, slot};
use crate::fault::FaultText;
use crate::frames::Chunk;
use crate::probe::drive::{self, ProbeDrive, Probing};

/// What a disk's device is made of above its files.
#[derive(Debug, Default)]
pub struct Stack {
    /// Takes its time for it.
    pub drive: Option<Box<dyn Drive>>,
    /// Faults from the start.
    pub faults: Vec<FaultText>,
}

/// Moments that a probe may live through in one pass: some milliseconds. With a drive that is too fast for this thread
/// it would be at it for ever.
const MOMENTS_PER_PASS: usize = 4096;

/// What the layers have to know of a volume.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Its name: faults are told by it.
    pub volume: String,
    /// Where it begins on the simulated drive, bytes.
    pub start: u64,
    /// Bytes that the device writes whole or not at all.
    pub block: u64,
}

/// What to do with the layers.
#[derive(Debug)]
pub enum LayerCommand {
    /// Stack a fault.
    Add(FaultText),
    /// Take one away, or all.
    Clear(Option<u64>),
    /// Probe the simulated drive. What goes wrong, the listener hears.
    Probe(Box<ProbeDrive>),
    /// Only look.
    Look,
}

/// What became of it.
#[derive(Clone, Debug)]
pub struct LayerReport {
    /// Faults added or taken away, and whether they were there from the start; none if there are as many as there may
    /// be, or not this one.
    pub changed: Vec<(FaultText, bool)>,
    /// What is there now.
    pub view: LayerView,
}

/// What there is to see of the layers.
#[derive(Clone, Debug, Default)]
pub struct LayerView {
    /// Faults.
    pub faults: Vec<FaultState>,
    /// How often each kind has happened, by [`Kind::index`].
    pub injected: [u64; Kind::COUNT],
    /// Requests that hang.
    pub stuck: usize,
    /// How late the simulated drive's completions were, if there is one.
    pub late: Option<Lates>,
}

/// A fault as it is.
#[derive(Clone, Debug)]
pub struct FaultState {
    /// Its number.
    pub id: u64,
    /// What it is.
    pub text: FaultText,
    /// Whether it is there from each start of the disk on.
    pub is_lasting: bool,
    /// Whether it happens.
    pub phase: Phase,
    /// How often it has happened.
    pub hits: u64,
    /// Requests that hang because of it.
    pub stuck: usize,
}

/// How late completions were handed over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lates {
    /// Those whose file was done before: the kernel's timer, and what this thread had to do besides.
    pub clock: Late,
    /// Those that waited for the file.
    pub file: Late,
}

/// A request in the device.
#[derive(Clone, Copy, Debug)]
struct InDevice {
    torn: bool,
    /// What the file said.
    file: Option<Result<(), Errno>>,
    /// When the drive was done.
    done_at: Option<Nanos>,
}

/// See the module.
#[derive(Debug)]
pub struct Layers<R> {
    below: R,
    faults: FaultLayer,
    /// Their texts, in the same order, and whether they were there from the start.
    texts: Vec<(u64, FaultText, bool)>,
    drive: Option<Box<dyn Drive>>,
    probing: Option<Probing>,
    /// How many there were.
    probes: u32,
    /// What is before this moment has been done.
    reached: Nanos,
    lates: Lates,
    lead: Lead,
    places: Vec<Option<Place>>,
    /// Requests that the faults hold, by number.
    held: Vec<Option<Io>>,
    /// Requests that somebody here waits for, by number.
    in_device: Vec<Option<InDevice>>,
    /// How many of those.
    waiting: usize,
    ready: Vec<Completion>,
    collected: Vec<Completion>,
}

impl<R: Reactor> Layers<R> {
    /// What they stand on.
    #[cfg(test)]
    pub fn below(&mut self) -> &mut R {
        &mut self.below
    }

    /// This stack on a reactor.
    pub fn new(below: R, stack: Stack) -> Layers<R> {
        let mut layers = Layers {
            below,
            faults: FaultLayer::default(),
            texts: Vec::new(),
            drive: stack.drive,
            probing: None,
            probes: 0,
            reached: 0,
            lates: Lates::default(),
            lead: Lead::default(),
            places: Vec::new(),
            held: Vec::new(),
            in_device: Vec::new(),
            waiting: 0,
            ready: Vec::new(),
            collected: Vec::new(),
        };
        for text in stack.faults {
            layers.add(text, true);
        }
        layers
    }

    /// What is known of `volume`, before its file is opened.
    pub fn place(&mut self, volume: VolumeId, place: Place) {
        *slot(&mut self.places, volume.0) = Some(place);
    }

    /// The name of a volume that is open, or nothing.
    pub fn name_of(&self, volume: VolumeId) -> &str {
        let place = self.places.get(volume.0 as usize).and_then(Option::as_ref);
        place.map_or("", |place| &place.volume)
    }

    /// Changes the faults.
    pub fn command(&mut self, command: LayerCommand) -> LayerReport {
        let changed = match command {
            LayerCommand::Add(text) => self.add(text.clone(), false).then_some((text, false)).into_iter().collect(),
            LayerCommand::Clear(id) => {
                self.faults.clear(id);
                let texts = std::mem::take(&mut self.texts);
                let (gone, kept) = texts.into_iter().partition(|(other, ..)| id.is_none_or(|id| id == *other));
                self.texts = kept;
                let gone: Vec<_> = gone;
                gone.into_iter().map(|(_, text, is_lasting)| (text, is_lasting)).collect()
            }
            LayerCommand::Probe(asked) => {
                self.begin_probe(*asked);
                Vec::new()
            }
            LayerCommand::Look => Vec::new(),
        };
        LayerReport { changed, view: self.view(clock()) }
    }

    fn add(&mut self, text: FaultText, is_lasting: bool) -> bool {
        let id = self.faults.add(clock(), text.fault.clone());
        self.texts.extend(id.map(|id| (id, text, is_lasting)));
        id.is_some()
    }

    fn begin_probe(&mut self, asked: ProbeDrive) {
        let (now, listener) = (clock(), asked.listener.clone());
        self.advance(now);
        self.probes += 1;
        match Probing::new(asked, self.probes, now) {
            Ok(probing) => self.probing = Some(probing),
            // If nobody listens, nobody misses it.
            Err(error) => drop(listener.send(Err(error.into()))),
        }
        self.ask_for_probe(now);
    }

    fn view(&self, now: Nanos) -> LayerView {
        let states = self.faults.rules().iter().zip(&self.texts).map(|(rule, (_, text, is_lasting))| FaultState {
            id: rule.id,
            text: text.clone(),
            is_lasting: *is_lasting,
            phase: rule.phase(now),
            hits: rule.hits,
            stuck: self.faults.stuck(Some(rule.id)),
        });
        LayerView {
            faults: states.collect(),
            injected: self.faults.injected(),
            stuck: self.faults.stuck(None),
            late: self.drive.as_ref().map(|_| self.lates),
        }
    }

    /// Whether there is anything to do here.
    fn is_active(&self) -> bool {
        self.drive.is_some() || !self.faults.is_idle() || self.waiting > 0 || !self.ready.is_empty()
    }

    /// A request leaves the faults.
    fn begin(&mut self, now: Nanos, io: IoId, request: &Io, outcome: Outcome) {
        let (torn, part) = match outcome {
            Outcome::Pass => (false, None),
            Outcome::Torn { bytes } if bytes > 0 => (true, Some(first_bytes(request, bytes))),
            Outcome::Torn { .. } => return self.ready.push(Completion::Io { io, result: Err(Errno::Io) }),
            Outcome::Fail(errno) => return self.ready.push(Completion::Io { io, result: Err(errno) }),
        };
        let request = part.as_ref().unwrap_or(request);
        let place = self.places.get(request.volume.0 as usize).and_then(Option::as_ref);
        let drive = self.drive.as_mut().zip(place);
        if torn || drive.is_some() {
            let done_at = drive.is_none().then_some(now);
            *slot(&mut self.in_device, io.0) = Some(InDevice { torn, file: None, done_at });
            self.waiting += 1;
        }
        if let Some((drive, place)) = drive {
            let offset = if request.op == Op::Flush { 0 } else { place.start + request.offset };
            drive.submit(now, Tag::from(io.0), request.op, offset, request.len);
        }
        self.below.submit(io, request);
    }

    /// The file is done with a request.
    fn file_done(&mut self, now: Nanos, io: IoId, result: Result<(), Errno>) {
        let Some(InDevice { torn, file, done_at }) = slot(&mut self.in_device, io.0) else {
            return self.ready.push(Completion::Io { io, result });
        };
        *file = Some(if *torn { Err(Errno::Io) } else { result });
        if let &mut Some(at) = done_at {
            if self.drive.is_some() {
                self.lates.file.record(now - at);
            }
            self.complete(io);
        }
    }

    /// The drive is done with a request.
    fn drive_done(&mut self, now: Nanos, io: IoId, at: Nanos) {
        let request = slot(&mut self.in_device, io.0).as_mut().expect("the drive has only what was submitted");
        request.done_at = Some(at);
        if request.file.is_some() {
            self.lates.clock.record(now - at);
            self.complete(io);
        }
    }

    fn complete(&mut self, io: IoId) {
        let request = slot(&mut self.in_device, io.0).take();
        self.waiting -= 1;
        let result = request.and_then(|request| request.file).expect("it is complete");
        self.ready.push(Completion::Io { io, result });
    }

    /// Does what is due by `now`, moment by moment, so that a probe answers when something happens.
    fn advance(&mut self, now: Nanos) {
        for _ in 0..if self.probing.is_some() { MOMENTS_PER_PASS } else { usize::MAX } {
            let Some(at) = self.next_at().filter(|&at| at <= now) else { break };
            self.reached = self.reached.max(at);
            self.step(self.reached, now);
        }
    }

    /// Does what is due at the moment `at`; the thread is as late as `now`.
    fn step(&mut self, at: Nanos, now: Nanos) {
        while let Some((tag, outcome)) = self.faults.poll(at) {
            if Probing::is_tag(tag) {
                self.begin_for_probe(at, tag, outcome);
            } else {
                let request = slot(&mut self.held, tag as u32).take().expect("what is held is kept");
                self.begin(at, IoId(tag as u32), &request, outcome);
            }
        }
        while let Some((tag, done_at)) = self.drive.as_mut().and_then(|drive| drive.poll(at)) {
            match &mut self.probing {
                _ if !Probing::is_tag(tag) => self.drive_done(now, IoId(tag as u32), done_at),
                // Its clock never goes back: in a pass that is behind, things seem done a little later.
                Some(probing) => probing.complete(at, tag),
                None => {}
            }
        }
        self.ask_for_probe(at);
    }

    /// What the probe asks for at this moment.
    fn ask_for_probe(&mut self, at: Nanos) {
        while let Some((tag, request)) = self.probing.as_mut().and_then(|probing| probing.poll_request(at)) {
            if self.faults.is_idle() {
                self.begin_for_probe(at, tag, Outcome::Pass);
            } else {
                self.faults.submit(at, tag, &drive::asked(&request));
            }
        }
        if self.probing.as_ref().is_some_and(Probing::has_ended) {
            self.probing = None;
        }
    }

    /// A request of a probe leaves the faults.
    fn begin_for_probe(&mut self, at: Nanos, tag: u64, outcome: Outcome) {
        let Some(probing) = &mut self.probing else { return };
        match (outcome, probing.request(tag), &mut self.drive) {
            (Outcome::Pass, Some(Request { op, offset, len, .. }), Some(drive)) => {
                drive.submit(at, tag, op, offset, len)
            }
            (Outcome::Fail(errno), ..) => probing.fail(tag, errno),
            // One of a probe before goes nowhere; nothing of a write is kept, so that a part of it is as good as none.
            _ => probing.fail(tag, Errno::Io),
        }
    }

    /// When something happens next, if nobody asks for anything.
    fn next_at(&self) -> Option<Nanos> {
        let drive = self.drive.as_ref().and_then(|drive| drive.poll_timeout());
        let probe = self.probing.as_ref().and_then(Probing::poll_timeout);
        earlier(earlier(drive, probe), self.faults.poll_timeout())
    }

    /// How long to wait, if nothing else happens.
    fn wait(&self, now: Nanos, timeout: Option<Duration>) -> Option<Duration> {
        if !self.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        let wanted = self.next_at().map(|at| Duration::from_nanos(self.lead.wait_ns(at.saturating_sub(now))));
        [wanted, timeout].into_iter().flatten().min()
    }
}

/// The same request for its first `bytes` only.
fn first_bytes(request: &Io, bytes: u64) -> Io {
    let mut left = bytes;
    let mut segments = Vec::with_capacity(request.segments.len());
    for &segment in &request.segments {
        let len = u64::from(segment.len).min(left);
        if len == 0 {
            break;
        }
        segments.push(Segment { len: len as u16, ..segment });
        left -= len;
    }
    Io { len: bytes, segments, ..request.clone() }
}

impl<R: Reactor> Reactor for Layers<R> {
    fn waker(&self) -> Waker {
        self.below.waker()
    }

    fn now(&self) -> Nanos {
        self.below.now()
    }

    fn open_volume(&mut self, volume: VolumeId, file: File) -> io::Result<()> {
        self.below.open_volume(volume, file)
    }

    fn close_volume(&mut self, volume: VolumeId) {
        *slot(&mut self.places, volume.0) = None;
        self.below.close_volume(volume);
    }

    fn submit(&mut self, io: IoId, request: &Io) {
        if !self.is_active() {
            return self.below.submit(io, request);
        }
        let now = clock();
        // A probe asks in the drive's time, which may be behind: first things first.
        self.advance(now);
        self.reached = self.reached.max(now);
        if self.faults.is_idle() {
            return self.begin(now, io, request, Outcome::Pass);
        }
        let place = self.places.get(request.volume.0 as usize).and_then(Option::as_ref);
        let (volume, block) = place.map_or(("", 1), |place| (place.volume.as_str(), place.block));
        let asked = Asked { op: request.op, volume, offset: request.offset, len: request.len, block };
        self.faults.submit(now, u64::from(io.0), &asked);
        *slot(&mut self.held, io.0) = Some(request.clone());
        self.advance(now);
    }

    fn open_socket(&mut self, conn: ConnId, socket: OwnedFd) -> io::Result<()> {
        self.below.open_socket(conn, socket)
    }

    fn receive(&mut self, conn: ConnId) {
        self.below.receive(conn);
    }

    fn receive_into(&mut self, conn: ConnId, segments: impl Iterator<Item = Segment>) {
        self.below.receive_into(conn, segments);
    }

    fn send<'a>(&mut self, conn: ConnId, parts: impl Iterator<Item = Outgoing<'a>>) -> u64 {
        self.below.send(conn, parts)
    }

    fn unread(&self, conn: ConnId) -> u32 {
        self.below.unread(conn)
    }

    fn close_socket(&mut self, conn: ConnId) {
        self.below.close_socket(conn);
    }

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        self.below.buffer(buffer)
    }

    fn release(&mut self, buffer: BufferId) {
        self.below.release(buffer);
    }

    /// What is held here has not begun, and frames that it names are in use as far as the engine is concerned.
    fn unpin(&mut self, chunk: &Chunk) -> bool {
        self.below.unpin(chunk)
    }

    fn turn(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) -> io::Result<bool> {
        if !self.is_active() {
            return self.below.turn(timeout, completions);
        }
        let now = clock();
        self.advance(now);
        let mut collected = std::mem::take(&mut self.collected);
        let wait = self.wait(now, timeout);
        let turned = self.below.turn(wait, &mut collected);
        let (since, now) = (now, clock());
        let wait_ns = wait.map_or(0, |wait| wait.as_nanos() as Nanos);
        if wait_ns > 0
            && collected.is_empty()
            && let Some(late_ns) = now.checked_sub(since + wait_ns)
        {
            self.lead.learn(wait_ns, late_ns);
        }
        for completion in collected.drain(..) {
            match completion {
                Completion::Io { io, result } => self.file_done(now, io, result),
                other => completions.push(other),
            }
        }
        self.collected = collected;
        self.advance(now);
        completions.append(&mut self.ready);
        turned
    }
}
