//! Layers above a disk's files: fault injection, and the service time of a simulated drive.
//!
//! ```text
//!   engine ─ submit ─► faults ──────► drive's time ─┐      faults: pass, fail, delay, hang or tear a request
//!                        │               │          ├─► file (the reactor below)
//!                        │ fails         └─ at ─┐   │
//!   engine ◄─ complete ──┴──────────── both ◄───┴───┘      complete when the drive and the file are both done
//! ```
//!
//! A [`Probing`] can send requests to the drive, too.
//!
//! The machines that decide belong to `sim` and know nothing of clocks and files; here they are driven by
//! CLOCK_MONOTONIC. A request is submitted to the file and to the drive at the same time and completes when the later
//! of the two is done. The reactor's wait ends when the drive's next event is due, less the usual lateness of timers
//! ([`Lead`]). The lateness of each completion is recorded, in separate histograms for lateness of this thread and for
//! files that are slower than the simulated drive.
//!
//! On a disk without layers everything is passed through: the cost is one test of a flag per request and turn.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use engine::Outgoing;
use engine::disk::profile::Request;
use engine::disk::{Io, Op, Segment};
use engine::ids::{ConnId, IoId, VolumeId};
use engine::nbd::Errno;
use engine::units::Nanos;
use sim::disk::drive::done::earlier;
use sim::disk::drive::{Drive, Tag};
use sim::fault::layer::{Asked, FaultLayer, Kind, Outcome, Phase};

use super::late::Late;
use super::lead::Lead;
use super::{BufferId, Completion, Reactor, Waker, clock, slot};
use crate::fault::FaultText;
use crate::frames::Chunk;
use crate::probe::drive::{self, ProbeDrive, Probing};

/// The layers of a disk above its files.
#[derive(Debug, Default)]
pub struct Stack {
    /// The simulated drive, if any.
    pub drive: Option<Box<dyn Drive>>,
    /// Faults that are present from the start.
    pub faults: Vec<FaultText>,
}

/// Events of a probe that are processed in one pass: some milliseconds. Without a bound, a probe of a drive that is
/// faster than this thread would never end the pass.
const MOMENTS_PER_PASS: usize = 4096;

/// What the layers know of a volume.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Its name, by which faults select it.
    pub volume: String,
    /// Its first byte on the simulated drive.
    pub start: u64,
    /// Bytes that the device writes atomically.
    pub block: u64,
}

/// A command to the layers.
#[derive(Debug)]
pub enum LayerCommand {
    /// Add a fault.
    Add(FaultText),
    /// Remove one fault by its number, or all.
    Clear(Option<u64>),
    /// Probe the simulated drive. Errors are sent to the probe's listener.
    Probe(Box<ProbeDrive>),
    /// Only report the state.
    Look,
}

/// The answer to a [`LayerCommand`].
#[derive(Clone, Debug)]
pub struct LayerReport {
    /// Faults added or removed, and whether each was present from the start. Empty if a fault could not be added
    /// because their number is at its limit, or if there is no fault of the given number.
    pub changed: Vec<(FaultText, bool)>,
    /// The state afterwards.
    pub view: LayerView,
}

/// The state of the layers.
#[derive(Clone, Debug, Default)]
pub struct LayerView {
    /// Faults.
    pub faults: Vec<FaultState>,
    /// How often each kind of fault has been injected, by [`Kind::index`].
    pub injected: [u64; Kind::COUNT],
    /// Hung requests.
    pub stuck: usize,
    /// Lateness of the simulated drive's completions, if there is a drive.
    pub late: Option<Lates>,
}

/// The state of a fault.
#[derive(Clone, Debug)]
pub struct FaultState {
    /// Its number.
    pub id: u64,
    /// Its specification.
    pub text: FaultText,
    /// Whether it is present from each start of the disk.
    pub is_lasting: bool,
    /// Whether it is active.
    pub phase: Phase,
    /// How often it was injected.
    pub hits: u64,
    /// Requests that it has hung.
    pub stuck: usize,
}

/// Lateness of completions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lates {
    /// Completions whose file was done in time: lateness of the kernel's timer and of this thread.
    pub clock: Late,
    /// Those that waited for the file.
    pub file: Late,
}

/// A request in the device.
#[derive(Clone, Copy, Debug)]
struct InDevice {
    torn: bool,
    /// The file's result, once the file is done.
    file: Option<Result<(), Errno>>,
    /// When the drive was done.
    done_at: Option<Nanos>,
}

/// See the module.
#[derive(Debug)]
pub struct Layers<R> {
    below: R,
    faults: FaultLayer,
    /// The specifications of the faults, in the same order, and whether they were present from the start.
    texts: Vec<(u64, FaultText, bool)>,
    drive: Option<Box<dyn Drive>>,
    probing: Option<Probing>,
    /// How many probes have been started.
    probes: u32,
    /// All events before this moment have been processed.
    reached: Nanos,
    lates: Lates,
    lead: Lead,
    places: Vec<Option<Place>>,
    /// Requests that a fault delays or hangs, by number.
    held: Vec<Option<Io>>,
    /// Requests whose completion is handled here, by number.
    in_device: Vec<Option<InDevice>>,
    /// The number of requests in `in_device`.
    waiting: usize,
    ready: Vec<Completion>,
    collected: Vec<Completion>,
}

impl<R: Reactor> Layers<R> {
    /// The reactor below.
    #[cfg(test)]
    pub fn below(&mut self) -> &mut R {
        &mut self.below
    }

    /// Puts this stack on a reactor.
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

    /// Sets what is known of `volume`; called before its file is opened.
    pub fn place(&mut self, volume: VolumeId, place: Place) {
        *slot(&mut self.places, volume.0) = Some(place);
    }

    /// The name of a volume that is open, or an empty string.
    pub fn name_of(&self, volume: VolumeId) -> &str {
        let place = self.places.get(volume.0 as usize).and_then(Option::as_ref);
        place.map_or("", |place| &place.volume)
    }

    /// Executes a command.
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
            // A listener that has disconnected needs no error.
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

    /// Whether a layer has anything to do; otherwise calls are passed through.
    fn is_active(&self) -> bool {
        self.drive.is_some() || !self.faults.is_idle() || self.waiting > 0 || !self.ready.is_empty()
    }

    /// Handles a request that the fault layer has released.
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

    /// Handles a completion of the file.
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

    /// Handles a completion of the drive.
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

    /// Processes the events that are due by `now` one moment at a time, so that a probe reacts to each when it happens.
    fn advance(&mut self, now: Nanos) {
        for _ in 0..if self.probing.is_some() { MOMENTS_PER_PASS } else { usize::MAX } {
            let Some(at) = self.next_at().filter(|&at| at <= now) else { break };
            self.reached = self.reached.max(at);
            self.step(self.reached, now);
        }
    }

    /// Processes the events of the moment `at`. `now` is the real time, by which lateness is measured.
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
                // The probe's clock must not go back: in a pass that lags behind, completions appear a little later
                // than they were.
                Some(probing) => probing.complete(at, tag),
                None => {}
            }
        }
        self.ask_for_probe(at);
    }

    /// Submits the requests that the probe makes at this moment.
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

    /// Handles a request of a probe that the fault layer has released.
    fn begin_for_probe(&mut self, at: Nanos, tag: u64, outcome: Outcome) {
        let Some(probing) = &mut self.probing else { return };
        match (outcome, probing.request(tag), &mut self.drive) {
            (Outcome::Pass, Some(Request { op, offset, len, .. }), Some(drive)) => {
                drive.submit(at, tag, op, offset, len)
            }
            (Outcome::Fail(errno), ..) => probing.fail(tag, errno),
            // A request of an earlier probe is dropped. A torn write is a failed write, since the probe keeps no data.
            _ => probing.fail(tag, Errno::Io),
        }
    }

    /// When the next event is due if no request arrives.
    fn next_at(&self) -> Option<Nanos> {
        let drive = self.drive.as_ref().and_then(|drive| drive.poll_timeout());
        let probe = self.probing.as_ref().and_then(Probing::poll_timeout);
        earlier(earlier(drive, probe), self.faults.poll_timeout())
    }

    /// How long to wait if nothing else happens.
    fn wait(&self, now: Nanos, timeout: Option<Duration>) -> Option<Duration> {
        if !self.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        let wanted = self.next_at().map(|at| Duration::from_nanos(self.lead.wait_ns(at.saturating_sub(now))));
        [wanted, timeout].into_iter().flatten().min()
    }
}

/// The request limited to its first `bytes`.
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
        // The probe's requests are made in the drive's time, which may lag behind: earlier events are processed first.
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

    fn receive_most(&mut self, conn: ConnId, bytes: usize) {
        self.below.receive_most(conn, bytes);
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

    fn leave_socket(&mut self, conn: ConnId) {
        self.below.leave_socket(conn);
    }

    fn buffer(&self, buffer: BufferId) -> &[u8] {
        self.below.buffer(buffer)
    }

    fn release(&mut self, buffer: BufferId) {
        self.below.release(buffer);
    }

    /// The frames of requests that are held here are still in use by the engine, so such a chunk is never released.
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
