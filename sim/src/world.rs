//! The world: one server, its disk, its clients and its operator, in virtual time.
//!
//! ```text
//!            earliest of: queue (network, clients, the thread), the disk's poll_timeout and the server's
//!                 │
//!                 ▼
//!   now := then; one Event ─► Server ─► Actions: Copy/Zero at once, Submit ─► disk, Send ─► queue, …
//!                 ▲                         │
//!                 └──── queue ◄─────────────┘       frames, disk, judge and history check
//! ```
//!
//! The world is a driver of the engine that checks everything: the first wrong step ends the run with a description.
//! This file has the event loop; sockets are in `sockets.rs`, the server's thread in `thread.rs`, the checks of answers
//! in `answers.rs`, the operator in `operator.rs`, the end in `finale.rs`. A driver may also work in passes
//! (`end_pass`), as the contract of `engine::Event` permits.

use std::collections::BTreeMap;
use std::ops::Range;

use engine::control::WriteCache;
use engine::cpu::Scheduler;
use engine::disk::policy::{HELD_BY_TURNS_NS, Kind, PACE_DEBT_NS, STUCK_NS, Settings};
use engine::disk::{Io, Op};
use engine::driver::Driver as _;
use engine::ids::{ConnId, IoId, TenantId, VolumeId};
use engine::nbd::Errno;
use engine::units::{BLOCK, MILLISECOND, Nanos, SECOND};
use engine::{Action, Event, Outgoing, Server};

use crate::Verdict;
use crate::access::Access;
use crate::disk::Disk;
use crate::entitled::Entitled;
use crate::frames::Frames;
use crate::history::{History, OpId, Step};
use crate::link::{Link, State};
use crate::machines::Demoted;
use crate::opening::Opening;
use crate::operator::Ask;
use crate::planning::Planning;
use crate::promptness::Promptness;
use crate::queue::Queue;
use crate::request::Pending;
use crate::rng::Rng;
use crate::setup::{Setup, VolumeSetup};
use crate::thread::ThreadTime;
use crate::trace::{Line, Sink, Trace};
use crate::trouble::Trouble;
use crate::workload::Places;

/// Maximum number of events at one virtual time: more mean that time does not advance.
const EVENTS_AT_ONCE_MAX: u32 = 200_000;
/// Maximum time until an answer to a client that reads.
const SILENCE_MAX_NS: Nanos = 120 * SECOND;
/// Longest time for which a baseline may leave the device idle: until the tokens of the largest request arrive at the
/// lowest guarantee of a world, 1 MB/s.
const HELD_BACK_NS: Nanos = 2 * SECOND;
/// Maximum time for which a request hangs.
const HUNG_MAX_NS: Nanos = 200 * SECOND;
/// Maximum number of longest rounds for which a disk with slices idles while a flush waits: idle time is part of the
/// slices, a slice has at most the time of two, and each tenant may idle in its own. Rounds in which the waiting tenant
/// pays for an overrun do not count: if its slices are short, an overrun of a millisecond takes several.
const IDLE_ROUNDS_MAX: u64 = 2;
/// Maximum number of events in a pass of the driver.
const PASS_EVENTS_MAX: u64 = 24;

/// The number of a connection in the world. Slots are reused, these numbers are not.
pub type LinkId = u64;

/// A planned event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// Bytes of a client arrive.
    Arrive(LinkId),
    /// The delay of a receive ends.
    Delayed(LinkId),
    /// The server sends.
    Send(LinkId),
    /// A client reads.
    Drain(LinkId),
    /// A client's think time ends.
    Think(LinkId),
    /// A client disconnects without NBD_CMD_DISC.
    Vanish(LinkId),
    /// The server learns that a connection is closed.
    Hangup(LinkId),
    /// A client connects to a volume.
    Connect(usize),
    /// A handshake continues.
    Negotiate(u64),
    /// A handshake has led to transmission: its client is admitted or refused.
    Enter(u64),
    /// The access restriction of a volume is lifted.
    Admit(usize),
    /// A device request of the server process with this number completes.
    Complete(u64, IoId),
    /// The server's thread serves connections and backlogs.
    Serve,
    /// The targets for the server process with this number arrive.
    Targets(u64),
}

/// The world's state of a volume.
#[derive(Debug)]
pub struct Volume {
    /// Its parameters.
    pub setup: VolumeSetup,
    /// Size, bytes.
    pub size: u64,
    /// Its permitted content.
    pub history: History,
    /// The places that its clients access.
    pub places: Places,
    /// Its access rights.
    pub access: Access,
    /// Its write cache mode.
    pub mode: WriteCache,
    /// Since when every write is on the medium before it is answered.
    pub through_since: Step,
    /// Until when a successful flush may not guarantee anything.
    pub unsafe_until: Step,
    /// The requested mode.
    pub mode_asked: WriteCache,
    /// The device failures that concern it.
    pub trouble: Trouble,
    /// Its waiting flushes.
    pub promptness: Promptness,
    /// When its tenant last owed a slice.
    pub owed: Nanos,
    /// It is being closed, or is closed.
    pub closing: bool,
    /// It is open.
    pub open: bool,
    /// It will be opened when the last request of an earlier server process has completed.
    pub fenced: bool,
    /// Losses that last until then.
    pub losses: Vec<OpId>,
    /// Operations of disconnected clients, which may take effect until then, and the cells that they concern.
    pub unsettled: Vec<(OpId, Range<u64>)>,
}

/// A step that is never reached.
pub const NEVER: Step = Step::MAX;

impl Volume {
    /// Whether a success of a request that started at `start` guarantees durability.
    pub fn flush_counts(&self, start: Step) -> bool {
        self.unsafe_until < start
    }
}

/// Counters of a run.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Events that the engine received.
    pub steps: u64,
    /// Requests that clients made.
    pub requests: u64,
    /// Answered requests.
    pub answers: u64,
    /// Answers with an error.
    pub errors: u64,
    /// Connections made.
    pub connections: u64,
    /// Power cuts and restarts.
    pub restarts: u64,
    /// Device requests.
    pub device_requests: u64,
    /// Failed device requests.
    pub faults: u64,
    /// Bytes that were in stores at the most, on all machines.
    pub away_bytes: u64,
    /// What two caches in a row have exchanged.
    pub demotions: Demoted,
    /// Virtual time.
    pub time_ns: Nanos,
}

/// The state of a world.
pub struct World {
    pub(crate) setup: Setup,
    pub(crate) rng: Rng,
    pub(crate) now: Nanos,
    pub(crate) step: Step,
    pub(crate) queue: Queue<Wake>,
    pub(crate) server: Server,
    pub(crate) planning: Planning,
    pub(crate) cpu: Scheduler,
    pub(crate) thread: ThreadTime,
    pub(crate) frames: Frames,
    pub(crate) disk: Disk,
    pub(crate) links: BTreeMap<LinkId, Link>,
    pub(crate) by_conn: Vec<Option<LinkId>>,
    pub(crate) links_made: u64,
    /// Clients in their handshake.
    pub(crate) openings: BTreeMap<u64, Opening>,
    pub(crate) openings_made: u64,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) asks: BTreeMap<u64, Ask>,
    pub(crate) tokens: u64,
    pub(crate) ops: OpId,
    /// Whether clients make new requests and connect again.
    pub(crate) busy: bool,
    pub(crate) draining: bool,
    /// `Drained` was reported: the server is to be started again.
    pub(crate) drained: bool,
    /// Which tenants exist.
    pub(crate) tenants: Vec<bool>,
    /// What their clients got.
    pub(crate) entitled: Vec<Entitled>,
    silence_checked_at: Nanos,
    /// When hung requests were last released.
    hung_until: Nanos,
    /// The engine's present policy; then since when it is another one than the first.
    pub(crate) policy: Settings,
    pub(crate) policy_since: Option<Nanos>,
    /// Frames above the limit that may still be in use after this event, as the engine has just reported.
    pub(crate) held_most: Option<u64>,
    /// Since when the device has been idle.
    idle_since: Option<Nanos>,
    at_once: u32,
    /// Whether the driver is in a pass, at the end of which it carries out what it put off.
    pub(crate) in_pass: bool,
    /// Actions that the driver carries out at the end of its pass.
    pub(crate) batch: Vec<Action>,
    pub(crate) trace: Trace,
    pub(crate) stats: Stats,
}

impl World {
    /// The world of `setup`; `sink` sees each line of the trace.
    pub fn new(setup: Setup, sink: Option<Sink>) -> World {
        let mut rng = Rng::new(setup.seed);
        let drive = setup.disk.drive.build(rng.fork());
        let mut disk = Disk::new(setup.disk.limits, drive, setup.faults, rng.fork());
        disk.hangs = setup.hangs;
        let volumes = setup.volumes.iter().map(|volume| new_volume(volume, setup.scattered, &mut rng)).collect();
        World {
            now: 0,
            step: 0,
            queue: Queue::default(),
            server: Server::new(setup.config.clone()),
            planning: Planning::new(&setup.config, Rng::new(setup.seed ^ 0x91a4)),
            cpu: Scheduler::default(),
            thread: ThreadTime::default(),
            frames: Frames::new(setup.config.frames_max()),
            disk,
            links: BTreeMap::new(),
            by_conn: Vec::new(),
            links_made: 0,
            openings: BTreeMap::new(),
            openings_made: 0,
            volumes,
            asks: BTreeMap::new(),
            tokens: 0,
            ops: 0,
            busy: true,
            draining: false,
            drained: false,
            tenants: vec![false; setup.tenants.len()],
            entitled: vec![Entitled::default(); setup.tenants.len()],
            silence_checked_at: 0,
            hung_until: 0,
            policy: setup.config.policy(),
            policy_since: None,
            held_most: None,
            idle_since: Some(0),
            at_once: 0,
            in_pass: false,
            batch: Vec::new(),
            trace: Trace::new(sink),
            stats: Stats::default(),
            setup,
            rng,
        }
    }

    /// The trace so far.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        Stats { steps: self.step, time_ns: self.now, ..self.stats }
    }

    /// Runs the world: first work under faults, then the end without faults, in which everything must terminate.
    pub fn run(&mut self) -> Verdict {
        self.boot()?;
        while self.stats.requests < self.setup.requests && !self.only_stalled_readers_wait() {
            self.advance()?;
            self.operate()?;
        }
        self.finale()
    }

    /// The time of the next event.
    fn next_at(&self) -> Option<Nanos> {
        [self.queue.next_at(), self.disk.poll_timeout(), self.server.poll_timeout()].into_iter().flatten().min()
    }

    /// Whether only stalled readers wait, and no event will happen any more.
    fn only_stalled_readers_wait(&self) -> bool {
        self.next_at().is_none() && self.disk.hung_since().is_none() && self.is_quiet()
    }

    /// Processes the next event, or a pass of events.
    pub(crate) fn advance(&mut self) -> Verdict {
        let next = self.next_at();
        if self.disk.hung_since().is_some_and(|since| next.is_none_or(|next| next > since + HUNG_MAX_NS)) {
            self.release_hung();
            return Ok(());
        }
        let Some(next) = next else {
            return Err(format!("nothing will ever happen again: {}", self.describe()));
        };
        self.at_once = if next > self.now { 0 } else { self.at_once + 1 };
        if self.at_once > EVENTS_AT_ONCE_MAX {
            return Err("time stands still".into());
        }
        self.now = self.now.max(next);
        let late_ns = self.setup.late_ns;
        let events = if late_ns > 0 { self.rng.between(1, PASS_EVENTS_MAX) } else { 1 };
        if late_ns > 0 {
            self.now += self.rng.below(late_ns);
        }
        self.in_pass = true;
        for _ in 0..events {
            while let Some((life, io, at)) = self.disk.poll(self.now) {
                self.queue.push(at, Wake::Complete(life, io));
            }
            let (planned, timer) = (self.queue.next_at(), self.server.poll_timeout());
            let timer_first = timer.is_some_and(|timer| planned.is_none_or(|planned| timer < planned));
            if timer_first && timer.is_some_and(|timer| timer <= self.now) {
                self.handle(Event::Timer)?;
            } else if !timer_first && planned.is_some_and(|planned| planned <= self.now) {
                let (_, wake) = self.queue.pop().expect("just seen");
                self.wake(wake)?;
            }
        }
        self.in_pass = false;
        self.end_pass()?;
        self.check_settled()?;
        self.check_silence()
    }

    /// All work that can proceed has proceeded: a timer event 1 ns later, before any is due, must cause no action.
    fn check_settled(&mut self) -> Verdict {
        let later = self.now + 1;
        if self.cpu.has_work() || self.next_at().is_none_or(|next| next <= later) || !self.rng.one_in(8) {
            return Ok(());
        }
        self.server.handle(later, Event::Timer);
        match self.server.poll_action() {
            None => Ok(()),
            Some(action) => Err(format!("somebody could have gone on: a look a moment later led to {action:?}")),
        }
    }

    /// Completes all hung requests.
    pub(crate) fn release_hung(&mut self) {
        self.hung_until = self.now;
        for (life, io) in self.disk.release_hung() {
            self.queue.push(self.now, Wake::Complete(life, io));
        }
    }

    /// Whether a client may wait for as long as a request hangs in the device: a request of its own tenant, or of any
    /// tenant if the policy reserves no places in the device for others.
    fn may_hang(&self, link: &Link) -> bool {
        let tenant = |volume: VolumeId| self.volumes[volume.0 as usize].setup.spec.tenant;
        let places = self.policy.kind == Kind::Insulated && self.setup.disk.limits.depth >= 4;
        self.disk.hung().any(|volume| !places || tenant(volume) == tenant(link.volume))
    }

    /// No client that reads waits for ever, whatever the other clients do.
    fn check_silence(&mut self) -> Verdict {
        if self.now < self.silence_checked_at + SECOND {
            return Ok(());
        }
        self.silence_checked_at = self.now;
        let snapshot = self.server.snapshot();
        self.check_snapshot(&snapshot)?;
        self.check_stalls()?;
        for link in self.links.values().filter(|link| link.state == State::Open && !link.manners.stalled_reader) {
            let oldest = link.pending.values().min_by_key(|pending| pending.arrived);
            // A client that does not send its payload gets no answer.
            let oldest = oldest.filter(|_| link.withheld == 0);
            let waits = |pending: &&Pending| pending.arrived.max(self.hung_until) + SILENCE_MAX_NS < self.now;
            if let Some(pending) = oldest.filter(|pending| waits(pending) && !self.may_hang(link)) {
                let (conn, everything) = (link.conn, self.describe());
                return Err(format!("no answer any more: {conn:?} waits for {pending:?}: {everything}"));
            }
        }
        Ok(())
    }

    fn wake(&mut self, wake: Wake) -> Verdict {
        match wake {
            Wake::Arrive(link) => self.arrive(link),
            Wake::Delayed(link) => self.end_delay(link),
            Wake::Send(link) => return self.send(link),
            Wake::Drain(link) => self.client_reads(link),
            Wake::Think(link) => self.think(link),
            Wake::Vanish(link) => self.vanish(link),
            Wake::Hangup(link) => return self.hang_up(link),
            Wake::Connect(volume) => self.connect(volume),
            Wake::Negotiate(opening) => return self.negotiate(opening),
            Wake::Enter(opening) => return self.enter(opening),
            Wake::Admit(volume) => return self.admit(volume),
            Wake::Complete(life, io) if life == self.disk.life() => return self.complete(io),
            Wake::Complete(life, io) => return self.land(life, io),
            Wake::Serve => return self.pass(),
            Wake::Targets(life) if life == self.disk.life() => return self.targets(),
            Wake::Targets(_) => {}
        }
        Ok(())
    }

    fn complete(&mut self, io: IoId) -> Verdict {
        let done = self.disk.complete(io, &mut self.frames);
        self.idle_since = (self.disk.in_flight() == 0).then_some(self.now);
        let (good, next) = (done.result.is_ok(), self.step + 1);
        self.stats.faults += u64::from(!good);
        // The volumes share the device's cache: data of any volume may be lost when a flush or a durable write fails.
        let flushes = matches!(done.io.op, Op::Flush | Op::Write { durable: true });
        if flushes && done.result.is_err_and(|why| why != Errno::NoSpace) {
            for volume in &mut self.volumes {
                volume.trouble.device_failed(next);
                volume.promptness.forget();
            }
        }
        let volume = &mut self.volumes[done.io.volume.0 as usize];
        volume.trouble.completed(next, &done.io, good);
        let blocks = done.io.offset / BLOCK..(done.io.offset + done.io.len).div_ceil(BLOCK);
        volume.promptness.write_completed(io);
        match done.io.op {
            _ if volume.trouble.ever() => volume.promptness.forget(),
            Op::Write { .. } | Op::Zero | Op::Punch => {
                volume.promptness.written(blocks, &volume.history, self.disk.medium(done.io.volume));
            }
            Op::Read | Op::Flush => {}
        }
        self.handle(Event::IoDone { io, since: self.now, result: done.result })
    }

    /// The driver returns the memory of frames that the engine has given up: immediately when all of it must be free,
    /// and periodically while some of it is in use.
    pub(crate) fn give_back_frames(&mut self) -> Verdict {
        /// Events between checks of the frames that are still in use: a check looks at all of them.
        const EVENTS: Step = 64;
        let (limit, most) = (self.server.frames_limit(), self.held_most.take());
        let moved = limit != self.frames.limit();
        if moved || most.is_some() || self.frames.held() > 0 && self.step.is_multiple_of(EVENTS) {
            self.frames.give_back(limit, |frame| self.server.is_retired(frame))?;
        }
        match most.filter(|&most| self.frames.held() > most) {
            Some(most) => Err(format!("{} frames above the limit are in use, not {most}", self.frames.held())),
            None => Ok(()),
        }
    }

    /// Carries out the actions that were put off to the end of the pass.
    pub(crate) fn end_pass(&mut self) -> Verdict {
        for action in std::mem::take(&mut self.batch) {
            if let Action::Submit(io) = action
                && let Io { op: Op::Write { .. }, segments, .. } = self.server.io(io)
            {
                self.frames.end_device_write(segments);
            }
            self.carry_out(action)?;
        }
        self.watch_outgoing()?;
        // With slices, the disk may belong to another tenant, or idle for one (anticipatory idling). Without slices,
        // the policy may leave the device idle behind a throttle, in a read phase, or while hung requests are in it; a
        // baseline, until a tenant's next token. So the device may do nothing for a volume for a limited time.
        let hold_ns = match self.policy {
            policy if policy.kind.holds_back() => Some(HELD_BACK_NS),
            policy if policy.kind != Kind::Insulated => None,
            policy if policy.needs_slices => Some(IDLE_ROUNDS_MAX * policy.round_max_ns),
            _ => Some(PACE_DEBT_NS.max(HELD_BY_TURNS_NS)),
        };
        for volume in &mut self.volumes {
            if self.server.owes_slice(volume.setup.spec.tenant) {
                volume.owed = self.now;
            }
        }
        let works = |volume: &Volume| self.cpu.has_backlog(volume.setup.spec.tenant);
        for volume in self.volumes.iter().filter(|volume| !volume.closing && !works(volume)) {
            let Some((start, arrived)) = volume.promptness.oldest() else { continue };
            let idle = match (hold_ns, self.idle_since) {
                (None, _) => !self.disk.is_full() && self.has_place(volume.setup.spec.tenant),
                (Some(hold_ns), Some(since)) => {
                    self.now > since.max(arrived).max(volume.owed) + hold_ns + self.setup.late_ns
                }
                (Some(_), None) => false,
            };
            let id = volume.setup.spec.volume;
            if idle && !self.disk.is_busy(id) {
                return Err(format!("the flush of step {start} waits, but the device does nothing for {id:?}"));
            }
        }
        Ok(())
    }

    /// Without a scheduling policy: whether a tenant may have one more request in the device. If there are other
    /// tenants, it may have three quarters of the depth that those leave, so that places remain for them when its
    /// requests hang.
    fn has_place(&self, tenant: TenantId) -> bool {
        let of = |volume: VolumeId| self.volumes[volume.0 as usize].setup.spec.tenant;
        let own = self.disk.requests().filter(|&(volume, _)| of(volume) == tenant).count() as u32;
        let left = self.setup.disk.limits.depth - (self.disk.in_flight() as u32 - own);
        self.tenants.iter().filter(|&&there| there).count() < 2 || own < (left - left / 4).max(1)
    }

    pub(crate) fn log(&mut self, line: Line) {
        self.trace.push(self.now, self.step, line);
    }

    pub(crate) fn carry_out(&mut self, action: Action) -> Verdict {
        match action {
            Action::Copy { from, to, start, len } => {
                self.log(Line::Copy(from, to, start, len));
                self.frames.copy(from, to, start, len)
            }
            Action::Zero { frame, start, len } => {
                self.log(Line::Zero(frame, start, len));
                self.frames.zero(frame, start, len)
            }
            Action::Submit(io) => self.submit(io),
            Action::Receive(conn) => self.on_receive(conn),
            Action::Send(conn) => self.on_send(conn),
            Action::Work(_) | Action::Sum(_) => unreachable!("the driving loop takes it"),
            Action::Close(conn, why) => self.on_close(conn, why),
            Action::Gone(conn) => self.on_gone(conn),
            Action::Upstream { .. } => unreachable!("no volume is on another server"),
            Action::Report { token, report } => self.reported(token, report),
            Action::Retired => {
                self.held_most = Some(0);
                Ok(())
            }
            Action::Evidence(evidence) => self.evidence(*evidence),
        }
    }

    fn submit(&mut self, id: IoId) -> Verdict {
        let io = self.server.io(id);
        let (volume, op) = (io.volume, io.op);
        self.check_slices(volume)?;
        self.idle_since = None;
        let line = Line::Submit(id, volume, format!("{op:?}"), io.offset, io.len);
        self.disk.submit(self.now, id, io, &mut self.frames)?;
        self.log(line);
        self.stats.device_requests += 1;
        let flushing = self.disk.is_flushing(volume);
        let promptness = &mut self.volume(volume).promptness;
        match op {
            Op::Flush => promptness.flush_submitted(),
            Op::Write { .. } => promptness.write_submitted(id, flushing)?,
            Op::Read | Op::Zero | Op::Punch => {}
        }
        Ok(())
    }

    /// With slices, requests of two tenants are not in the device together, except hung requests and requests that an
    /// earlier policy submitted.
    fn check_slices(&self, volume: VolumeId) -> Verdict {
        if self.policy.kind != Kind::Insulated || !self.policy.needs_slices {
            return Ok(());
        }
        let tenant = |volume: VolumeId| self.volumes[volume.0 as usize].setup.spec.tenant;
        let mut beside = self.disk.requests().filter(|&(other, _)| tenant(other) != tenant(volume));
        match beside.find(|&(_, since)| self.now < since + STUCK_NS && self.policy_since.is_none_or(|at| since > at)) {
            Some((other, since)) => Err(format!(
                "a request of {volume:?} goes to the device at {}, where one of {other:?}, of another \
                 tenant, is since {since}",
                self.now
            )),
            None => Ok(()),
        }
    }

    /// Frames that begin to wait for being sent must not change until they are sent.
    pub(crate) fn watch_outgoing(&mut self) -> Verdict {
        for link in self.links.values_mut().filter(|link| link.sending && link.state != State::Closed) {
            let mut at = link.sent;
            for part in self.server.outgoing(link.conn) {
                at += match part {
                    Outgoing::Bytes(bytes) => bytes.len() as u64,
                    Outgoing::Frame { len, .. } => u64::from(len),
                };
                if at <= link.watched {
                    continue;
                }
                if let Outgoing::Frame { frame, .. } = part {
                    self.frames.begin_send(frame)?;
                    link.frames.push_back((at, frame));
                }
                link.watched = at;
            }
        }
        Ok(())
    }

    /// Processes events until `done`, for at most `limit_ns`.
    pub(crate) fn until(&mut self, what: &str, limit_ns: Nanos, done: impl Fn(&World) -> bool) -> Verdict {
        let end = self.now + limit_ns;
        while !done(self) {
            self.advance()?;
            if self.now > end {
                return Err(format!("{what} takes too long: {}", self.describe()));
            }
        }
        Ok(())
    }

    /// Which clients wait for what.
    fn describe(&self) -> String {
        let links = self.links.values().map(|link| {
            let pending: Vec<_> = link.pending.values().map(|pending| pending.request).collect();
            let (conn, state, receive) = (link.conn, link.state, self.server.receive(link.conn));
            let (arrived, unread) = (link.arrived, link.buffered);
            format!(
                "\n  {conn:?} {state:?} wants {receive:?}, {arrived} arrived, {unread} unread, waits for {pending:?}"
            )
        });
        format!("asked {:?}, connections {}", self.asks, links.collect::<String>())
    }

    /// The start of the oldest request of a volume: no read can return content that was dead before it.
    pub(crate) fn horizon(&self, volume: VolumeId) -> Step {
        let of_volume = self.links.values().filter(|link| link.volume == volume);
        let oldest = of_volume.flat_map(|link| link.pending.values().map(|pending| pending.start)).min();
        oldest.unwrap_or(self.step)
    }

    pub(crate) fn tenant_of(&self, volume: VolumeId) -> TenantId {
        self.volumes[volume.0 as usize].setup.spec.tenant
    }

    pub(crate) fn volume(&mut self, volume: VolumeId) -> &mut Volume {
        &mut self.volumes[volume.0 as usize]
    }

    pub(crate) fn link_of(&self, conn: ConnId) -> Result<LinkId, String> {
        let link = self.by_conn.get(conn.0 as usize).copied().flatten();
        link.ok_or_else(|| format!("{conn:?} is not a connection"))
    }

    /// A flush of a volume succeeded: everything acknowledged before `start` must be on the medium.
    pub(crate) fn check_flushed(&mut self, volume: VolumeId, start: Step) -> Verdict {
        let horizon = self.horizon(volume);
        let medium = self.disk.medium(volume);
        let volume = &mut self.volumes[volume.0 as usize];
        if volume.flush_counts(start) { volume.history.flushed(Some(medium), start, horizon) } else { Ok(()) }
    }

    /// A random time from now, at most `most_ns` later.
    pub(crate) fn soon(&mut self, most_ns: Nanos) -> Nanos {
        self.now + self.rng.below(most_ns + 1)
    }

    /// A client connects again within 5 ms.
    pub(crate) fn connect_soon(&mut self, volume: usize) {
        let at = self.soon(5 * MILLISECOND);
        self.queue.push(at, Wake::Connect(volume));
    }
}

fn new_volume(setup: &VolumeSetup, scattered: bool, rng: &mut Rng) -> Volume {
    let size = setup.spec.size;
    let mode = setup.spec.write_cache;
    Volume {
        size,
        history: History::default(),
        places: if scattered { Places::everywhere(size) } else { Places::random(size, rng) },
        access: Access::default(),
        mode,
        through_since: if mode == WriteCache::None { 0 } else { NEVER },
        unsafe_until: if mode == WriteCache::Unsafe { NEVER } else { 0 },
        mode_asked: mode,
        trouble: Trouble::default(),
        promptness: Promptness::default(),
        owed: 0,
        closing: false,
        open: false,
        fenced: false,
        losses: Vec::new(),
        unsettled: Vec::new(),
        setup: setup.clone(),
    }
}
