//! The world: one server, its disk, its clients and its operator, in virtual time.
//!
//! ```text
//!            earliest of: queue (network, clients), the disk's poll_timeout and the server's
//!                 │
//!                 ▼
//!   now := then; one Event ─► Server ─► Actions: Copy/Zero at once, Submit ─► disk, Send ─► queue, …
//!                 ▲                         │
//!                 └──── queue ◄─────────────┘       frames, disk, judge and history watch
//! ```
//!
//! It does what a driver does, and believes nothing: any wrong step ends the run with what was wrong. This file turns
//! the wheel; sockets are in `sockets.rs`, what answers mean in
//! `answers.rs`, the operator in `operator.rs`, the end in `finale.rs`. A driver may also work in passes (`end_pass`),
//! as the contract of `engine::Event` allows.

use std::collections::BTreeMap;
use std::ops::Range;

use engine::control::{TenantId, WriteCache};
use engine::disk::policy::{HELD_BY_TURNS_NS, HOLD_MAX_NS, Kind, PACE_DEBT_NS, STUCK_NS, Settings};
use engine::disk::{Io, IoId, Op, VolumeId};
use engine::nbd::Errno;
use engine::units::{BLOCK, MILLISECOND, Nanos, SECOND};
use engine::{Action, ConnId, EVENT_UNITS_MAX, Event, Outgoing, Server};

use crate::Verdict;
use crate::access::Access;
use crate::disk::Disk;
use crate::frames::Frames;
use crate::history::{History, OpId, Step};
use crate::link::{Link, State};
use crate::opening::Opening;
use crate::operator::Ask;
use crate::promptness::Promptness;
use crate::queue::Queue;
use crate::request::Pending;
use crate::rng::Rng;
use crate::setup::{Setup, VolumeSetup};
use crate::trace::{Line, Sink, Trace};
use crate::trouble::Trouble;
use crate::workload::Places;

/// Events at one moment of virtual time that mean that it stands still.
const EVENTS_AT_ONCE_MAX: u32 = 200_000;
/// What is not answered for so long, although its client reads, never will be.
const SILENCE_MAX_NS: Nanos = 120 * SECOND;
/// A request hangs for so long at most.
const HUNG_MAX_NS: Nanos = 200 * SECOND;
/// Events that a pass of the driver takes in, at most.
const PASS_EVENTS_MAX: u64 = 24;

/// A connection's number in the world: slots are used again, these are not.
pub type LinkId = u64;

/// What is planned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wake {
    /// Bytes of a client arrive.
    Arrive(LinkId),
    /// The server takes what has arrived.
    Receive(LinkId),
    /// The server sends.
    Send(LinkId),
    /// A client reads.
    Drain(LinkId),
    /// A client thinks of something.
    Think(LinkId),
    /// A client vanishes.
    Vanish(LinkId),
    /// The server learns that a connection is gone.
    Hangup(LinkId),
    /// A client connects to a volume.
    Connect(usize),
    /// A handshake goes on.
    Negotiate(u64),
    /// A handshake has led to transmission: its client is admitted, or refused.
    Enter(u64),
    /// Everybody may open a volume again.
    Admit(usize),
    /// A device request completes, of this life of the server.
    Complete(u64, IoId),
    /// A tenant has its turn of the server's thread, in this life of the server.
    Work(u64, TenantId),
}

/// A volume as the world sees it.
#[derive(Debug)]
pub struct Volume {
    /// How it was made.
    pub setup: VolumeSetup,
    /// Bytes.
    pub size: u64,
    /// Its content.
    pub history: History,
    /// Where its clients go.
    pub places: Places,
    /// Who may open it.
    pub access: Access,
    /// How writes are acknowledged.
    pub mode: WriteCache,
    /// Since when every write is on the medium before it is answered.
    pub through_since: Step,
    /// Until when a flush may mean nothing.
    pub unsafe_until: Step,
    /// The mode that was asked for.
    pub mode_asked: WriteCache,
    /// What went wrong in the device.
    pub trouble: Trouble,
    /// Its flushes that wait.
    pub promptness: Promptness,
    /// It is being closed, or is closed.
    pub closing: bool,
    /// It is served.
    pub open: bool,
    /// It is to be opened when the last request of an earlier server has ended.
    pub fenced: bool,
    /// Losses that last until then.
    pub losses: Vec<OpId>,
    /// Operations of clients that are gone, which may have effects until then, and the cells they concern.
    pub unsettled: Vec<(OpId, Range<u64>)>,
}

/// Never.
pub const NEVER: Step = Step::MAX;

impl Volume {
    /// Whether success at `start` promised something.
    pub fn flush_counts(&self, start: Step) -> bool {
        self.unsafe_until < start
    }
}

/// What a run was made of.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Events given to the engine.
    pub steps: u64,
    /// Requests that clients made.
    pub requests: u64,
    /// Requests that were answered.
    pub answers: u64,
    /// Of those, with an error.
    pub errors: u64,
    /// Connections made.
    pub connections: u64,
    /// Power cuts and restarts.
    pub restarts: u64,
    /// Device requests.
    pub device_requests: u64,
    /// Of those, failed.
    pub faults: u64,
    /// Virtual time.
    pub time_ns: Nanos,
}

/// The world.
pub struct World {
    pub(crate) setup: Setup,
    pub(crate) rng: Rng,
    pub(crate) now: Nanos,
    pub(crate) step: Step,
    pub(crate) queue: Queue<Wake>,
    pub(crate) server: Server,
    pub(crate) frames: Frames,
    pub(crate) disk: Disk,
    pub(crate) links: BTreeMap<LinkId, Link>,
    pub(crate) by_conn: Vec<Option<LinkId>>,
    pub(crate) links_made: u64,
    /// Clients that have not opened a volume yet.
    pub(crate) openings: BTreeMap<u64, Opening>,
    pub(crate) openings_made: u64,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) asks: BTreeMap<u64, Ask>,
    pub(crate) tokens: u64,
    pub(crate) ops: OpId,
    /// Clients make new requests and connect again.
    pub(crate) busy: bool,
    pub(crate) draining: bool,
    /// `Drained` was reported: the server is to be started again.
    pub(crate) drained: bool,
    /// Tenants that there are.
    pub(crate) tenants: Vec<bool>,
    silence_checked_at: Nanos,
    /// When requests last returned that had hung.
    hung_until: Nanos,
    /// The engine's present policy, and since when it is another one than the first.
    pub(crate) policy: Settings,
    pub(crate) policy_since: Option<Nanos>,
    /// Frames above the limit that may still be in use after this event, as the engine has just said.
    pub(crate) held_most: Option<u64>,
    /// The device has had nothing to do since then.
    idle_since: Option<Nanos>,
    at_once: u32,
    /// Tenants whose turns of the server's thread are planned.
    working: Vec<(u64, TenantId)>,
    in_pass: bool,
    /// What the driver does at the end of its pass.
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
            silence_checked_at: 0,
            hung_until: 0,
            policy: setup.config.policy(),
            policy_since: None,
            held_most: None,
            idle_since: Some(0),
            at_once: 0,
            working: Vec::new(),
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

    /// What happened so far.
    pub fn stats(&self) -> Stats {
        Stats { steps: self.step, time_ns: self.now, ..self.stats }
    }

    /// Lives the whole story: work under faults, then peace, in which everything must come to an end.
    pub fn run(&mut self) -> Verdict {
        self.boot()?;
        while self.stats.requests < self.setup.requests && !self.only_deaf_wait() {
            self.advance()?;
            self.operate()?;
        }
        self.finale()
    }

    /// When something happens next.
    fn next_at(&self) -> Option<Nanos> {
        [self.queue.next_at(), self.disk.poll_timeout(), self.server.poll_timeout()].into_iter().flatten().min()
    }

    /// Nothing happens any more, as all clients that wait for something read no replies, and nobody minds.
    fn only_deaf_wait(&self) -> bool {
        self.next_at().is_none() && self.disk.hung_since().is_none() && self.is_quiet()
    }

    /// The next thing happens.
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
                self.give(Event::Timer, Line::Timer)?;
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

    /// Whoever can go on has gone on: a driver that looks again, a moment later and too early, finds nothing to do.
    fn check_settled(&mut self) -> Verdict {
        let later = self.now + 1;
        if self.next_at().is_none_or(|next| next <= later) || !self.rng.one_in(8) {
            return Ok(());
        }
        self.server.handle(later, Event::Timer);
        match self.server.poll_action() {
            None => Ok(()),
            Some(action) => Err(format!("somebody could have gone on: a look a moment later led to {action:?}")),
        }
    }

    /// Requests that did not return do so now.
    pub(crate) fn release_hung(&mut self) {
        self.hung_until = self.now;
        for (life, io) in self.disk.release_hung() {
            self.queue.push(self.now, Wake::Complete(life, io));
        }
    }

    /// Whether a client may wait for as long as a request hangs in the device: one of its tenant's own, or any, where
    /// nothing keeps places in the device for the others.
    fn may_hang(&self, link: &Link) -> bool {
        let tenant = |volume: VolumeId| self.volumes[volume.0 as usize].setup.spec.tenant;
        let places = self.policy.kind == Kind::Insulated && self.setup.disk.limits.depth >= 4;
        self.disk.hung().any(|volume| !places || tenant(volume) == tenant(link.volume))
    }

    /// Nobody who reads waits for ever, whatever the others do.
    fn check_silence(&mut self) -> Verdict {
        if self.now < self.silence_checked_at + SECOND {
            return Ok(());
        }
        self.silence_checked_at = self.now;
        let snapshot = self.server.snapshot();
        self.check_snapshot(&snapshot)?;
        self.check_stalls()?;
        for link in self.links.values().filter(|link| link.state == State::Open && !link.manners.deaf) {
            let oldest = link.pending.values().min_by_key(|pending| pending.arrived);
            // Who sends no payload is not answered.
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
            Wake::Receive(link) => return self.receive(link),
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
            Wake::Work(life, tenant) if life == self.disk.life() => {
                self.working.retain(|&other| other != (life, tenant));
                return self.give(Event::Work { tenant }, Line::Work(tenant));
            }
            Wake::Work(..) => {}
        }
        Ok(())
    }

    fn complete(&mut self, io: IoId) -> Verdict {
        let done = self.disk.complete(io, &mut self.frames);
        self.idle_since = (self.disk.in_flight() == 0).then_some(self.now);
        let (good, next) = (done.result.is_ok(), self.step + 1);
        self.stats.faults += u64::from(!good);
        // The volumes share the device's cache: what failed for one of them may be lost to any.
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
        self.give(Event::IoDone { io, since: self.now, result: done.result }, Line::IoDone(io, done.result))
    }

    /// Gives the engine an event, and does what it asks for.
    pub(crate) fn give(&mut self, event: Event<'_>, line: Line) -> Verdict {
        self.step += 1;
        self.trace.push(self.now, self.step, line);
        self.server.handle(self.now, event);
        let units = self.server.units_of_last_event();
        if units > EVENT_UNITS_MAX {
            return Err(format!("one event takes {units} units of work, and others wait"));
        }
        while let Some(action) = self.server.poll_action() {
            match action {
                Action::Submit(_) | Action::Send(_) | Action::Receive(_) if self.in_pass && self.setup.late_ns > 0 => {
                    if let Action::Submit(io) = action
                        && let Io { op: Op::Write { .. }, segments, .. } = self.server.io(io)
                    {
                        self.frames.hold_for_write(segments);
                    }
                    self.batch.push(action);
                }
                action => self.act(action)?,
            }
        }
        self.watch_outgoing()?;
        self.give_back_frames()?;
        if self.in_pass { Ok(()) } else { self.end_pass() }
    }

    /// The driver gives back the memory of frames that the engine has given up: at once when all of it must be free,
    /// now and then while some of it is in use.
    pub(crate) fn give_back_frames(&mut self) -> Verdict {
        /// Events between looks at the frames that are still in use: a look goes through all of them.
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

    /// The driver does what it has put off.
    fn end_pass(&mut self) -> Verdict {
        for action in std::mem::take(&mut self.batch) {
            if let Action::Submit(io) = action
                && let Io { op: Op::Write { .. }, segments, .. } = self.server.io(io)
            {
                self.frames.end_device_write(segments);
            }
            self.act(action)?;
        }
        self.watch_outgoing()?;
        // In slices, the disk may be another's, or be held for another; below a throttle, for a while, in the turn of
        // reads, or beside what the disk keeps, nobody's. Then it does nothing for nobody, for a while.
        let hold_ns = match self.policy {
            policy if policy.kind != Kind::Insulated => None,
            policy if policy.needs_slices => Some(HOLD_MAX_NS),
            _ => Some(PACE_DEBT_NS.max(HELD_BY_TURNS_NS)),
        };
        let works = |volume: &Volume| self.working.contains(&(self.disk.life(), volume.setup.spec.tenant));
        for volume in self.volumes.iter().filter(|volume| !volume.closing && !works(volume)) {
            let idle = match (hold_ns, self.idle_since) {
                (None, _) => !self.disk.is_full() && self.has_place(volume.setup.spec.tenant),
                (Some(hold_ns), Some(since)) => self.now > since + hold_ns + self.setup.late_ns,
                (Some(_), None) => false,
            };
            let id = volume.setup.spec.volume;
            if let Some(start) = volume.promptness.oldest().filter(|_| idle && !self.disk.is_busy(id)) {
                return Err(format!("the flush of step {start} waits, but the device does nothing for {id:?}"));
            }
        }
        Ok(())
    }

    /// First come, first served: whether a tenant may have one more request in the device. Beside other tenants it has
    /// three quarters of the depth that those leave, so that it leaves places to them when its requests hang.
    fn has_place(&self, tenant: TenantId) -> bool {
        let of = |volume: VolumeId| self.volumes[volume.0 as usize].setup.spec.tenant;
        let own = self.disk.requests().filter(|&(volume, _)| of(volume) == tenant).count() as u32;
        let left = self.setup.disk.limits.depth - (self.disk.in_flight() as u32 - own);
        self.tenants.iter().filter(|&&there| there).count() < 2 || own < (left - left / 4).max(1)
    }

    pub(crate) fn log(&mut self, line: Line) {
        self.trace.push(self.now, self.step, line);
    }

    fn act(&mut self, action: Action) -> Verdict {
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
            Action::Work(tenant) => {
                if self.working.contains(&(self.disk.life(), tenant)) {
                    return Err(format!("work of {tenant:?} is announced twice"));
                }
                self.working.push((self.disk.life(), tenant));
                self.queue.push(self.now, Wake::Work(self.disk.life(), tenant));
                Ok(())
            }
            Action::Close(conn, why) => self.on_close(conn, why),
            Action::Gone(conn) => self.on_gone(conn),
            Action::Report { token, report } => self.reported(token, report),
            Action::Retired => {
                self.held_most = Some(0);
                Ok(())
            }
            // Nobody is there to be told.
            Action::Decided { .. } => Ok(()),
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

    /// In slices, nobody's requests are in the device beside another tenant's, but for those that it does not give
    /// back, and those that an earlier policy gave it.
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

    /// Frames that newly wait to be sent must not change until they are.
    fn watch_outgoing(&mut self) -> Verdict {
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

    /// Goes on until `done`, for at most `limit_ns`.
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

    /// Who waits for what.
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

    /// The start of the oldest request of a volume: what is older than that, nobody can read any more.
    pub(crate) fn horizon(&self, volume: VolumeId) -> Step {
        let of_volume = self.links.values().filter(|link| link.volume == volume);
        let oldest = of_volume.flat_map(|link| link.pending.values().map(|pending| pending.start)).min();
        oldest.unwrap_or(self.step)
    }

    pub(crate) fn volume(&mut self, volume: VolumeId) -> &mut Volume {
        &mut self.volumes[volume.0 as usize]
    }

    pub(crate) fn link_of(&mut self, conn: ConnId) -> Result<LinkId, String> {
        let link = self.by_conn.get(conn.0 as usize).copied().flatten();
        link.ok_or_else(|| format!("{conn:?} is not a connection"))
    }

    /// Flushes of a volume must have left everything on the medium that was acknowledged before `start`.
    pub(crate) fn check_flushed(&mut self, volume: VolumeId, start: Step) -> Verdict {
        let horizon = self.horizon(volume);
        let medium = self.disk.medium(volume);
        let volume = &mut self.volumes[volume.0 as usize];
        if volume.flush_counts(start) { volume.history.flushed(medium, start, horizon) } else { Ok(()) }
    }

    /// A moment from now, of at most `most_ns`.
    pub(crate) fn soon(&mut self, most_ns: Nanos) -> Nanos {
        self.now + self.rng.below(most_ns + 1)
    }

    /// Clients that connect again do so after this long.
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
        closing: false,
        open: false,
        fenced: false,
        losses: Vec::new(),
        unsettled: Vec::new(),
        setup: setup.clone(),
    }
}
