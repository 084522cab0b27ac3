//! Test rig: one server, one volume, and a device that completes requests when and how the test says.
//!
//! The medium and the frames hold real bytes, so tests can check what reads return. Clients use simple replies.

use std::collections::BTreeMap;
use std::convert::Infallible;

use crate::config::Config;
use crate::control::{Command, LEAST_BYTES, Report, TenantSpec, VolumeSpec};
use crate::cpu::{Job, Scheduler};
use crate::disk::{Io, Op};
use crate::driver::{Arrived, Driver};
use crate::errno::Errno;
use crate::event::{Action, CloseReason, Event, Outgoing, Receive, Session};
use crate::ids::{ConnId, IoId, TenantId, VolumeId};
use crate::nbd::wire;
use crate::nbd::wire::{REQUEST_BYTES, REQUEST_MAGIC, command};
use crate::plan::{Evidence, Planner};
use crate::server::Server;
use crate::units::{BLOCK, Nanos};

pub(crate) const VOLUME: VolumeId = VolumeId(0);
pub(crate) const VOLUME_BYTES: usize = 8 << 20;

pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) now: Nanos,
    frames: Vec<[u8; BLOCK as usize]>,
    pub(crate) medium: Vec<u8>,
    pub(crate) planner: Planner,
    evidence: Option<Box<Evidence>>,
    /// Requests in the device, in order of submission.
    pub(crate) device: Vec<IoId>,
    /// By cookie: the error (0: success), and the data that was read.
    answers: BTreeMap<u64, (u32, Vec<u8>)>,
    /// By cookie: bytes that the reads in progress return.
    reads: BTreeMap<u64, usize>,
    outgoing: BTreeMap<ConnId, Vec<u8>>,
    reports: Vec<(u64, Report)>,
    /// Stalled readers: connections that receive nothing.
    pub(crate) stalled_readers: Vec<ConnId>,
    /// Connections that the server closed, and why.
    pub(crate) closed: Vec<(ConnId, CloseReason)>,
    /// How often `Action::Retired` reported that retired memory is free.
    pub(crate) retired: u32,
    /// Backlogs that wait to be served.
    pub(crate) cpu: Scheduler,
    /// Connections that can send.
    senders: Vec<ConnId>,
    /// Backlogs are served only by [`Rig::work_once`].
    pub(crate) lazy: bool,
    /// By tenant: nanoseconds of work that were charged to it.
    pub(crate) spent_ns: BTreeMap<TenantId, Nanos>,
    /// Largest number of units of work in one event.
    pub(crate) units_max: u32,
}

impl Rig {
    /// A preallocated volume that was written before, on a device that can zero ranges.
    pub(crate) fn new() -> Rig {
        Rig::with(128, |_| {})
    }

    pub(crate) fn with(device_depth: u32, change: impl FnOnce(&mut VolumeSpec)) -> Rig {
        let config = Config { device_depth, ..Config::new(8 * LEAST_BYTES) };
        let frames = vec![[0; BLOCK as usize]; config.frames_max()];
        let mut rig = Rig {
            planner: Planner::new(&config),
            evidence: None,
            server: Server::new(config),
            now: 0,
            frames,
            medium: vec![1; VOLUME_BYTES],
            device: Vec::new(),
            answers: BTreeMap::new(),
            reads: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            reports: Vec::new(),
            stalled_readers: Vec::new(),
            closed: Vec::new(),
            retired: 0,
            cpu: Scheduler::default(),
            senders: Vec::new(),
            lazy: false,
            spent_ns: BTreeMap::new(),
            units_max: 0,
        };
        let mut spec = VolumeSpec::plain(VOLUME, TenantId(0), VOLUME_BYTES as u64);
        change(&mut spec);
        rig.command(0, Command::SetTenant(TenantId(0), TenantSpec::default()));
        rig.command(0, Command::OpenVolume(spec));
        assert!(matches!(rig.reports[..], [(_, Report::Done), (_, Report::Done)]));
        for conn in [ConnId(0), ConnId(1)] {
            rig.handle(Event::Attach { conn, volume: VOLUME, session: Session::default() });
        }
        rig.reports.clear();
        rig
    }

    pub(crate) fn command(&mut self, token: u64, command: Command) {
        self.handle(Event::Control { token, command });
    }

    /// Whether the command with this token succeeded.
    pub(crate) fn is_done(&self, token: u64) -> bool {
        matches!(self.report(token), Some(Report::Done))
    }

    /// The answer to the command with this token, if there is one.
    pub(crate) fn report(&self, token: u64) -> Option<&Report> {
        self.reports.iter().find(|(other, _)| *other == token).map(|(_, report)| report)
    }

    pub(crate) fn take_report(&mut self, token: u64) -> Option<Report> {
        let at = self.reports.iter().position(|(other, _)| *other == token)?;
        Some(self.reports.remove(at).1)
    }

    /// A request of the first client, without its payload.
    pub(crate) fn ask(&mut self, cookie: u64, command: u16, flags: u16, offset: u64, len: u64) {
        self.ask_as(ConnId(0), cookie, command, flags, offset, len);
    }

    pub(crate) fn ask_as(&mut self, conn: ConnId, cookie: u64, command: u16, flags: u16, offset: u64, len: u64) {
        self.ask_at(self.now, conn, cookie, command, flags, offset, len);
    }

    /// A request of the first client, which arrived at `since`.
    pub(crate) fn ask_since(&mut self, since: Nanos, cookie: u64, command: u16, offset: u64, len: u64) {
        self.ask_at(since, ConnId(0), cookie, command, 0, offset, len);
    }

    #[expect(clippy::too_many_arguments, reason = "a header is as it is")]
    fn ask_at(&mut self, since: Nanos, conn: ConnId, cookie: u64, command: u16, flags: u16, offset: u64, len: u64) {
        assert_eq!(self.server.receive(conn), Receive::Header);
        let mut header = [0; REQUEST_BYTES];
        header[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        header[4..6].copy_from_slice(&flags.to_be_bytes());
        header[6..8].copy_from_slice(&command.to_be_bytes());
        header[8..16].copy_from_slice(&cookie.to_be_bytes());
        header[16..24].copy_from_slice(&offset.to_be_bytes());
        header[24..].copy_from_slice(&(len as u32).to_be_bytes());
        if command == command::READ {
            self.reads.insert(cookie, len as usize);
        }
        self.handle(Event::Header { conn, since, header: &header });
    }

    /// The first client writes blocks full of `byte`.
    pub(crate) fn write(&mut self, cookie: u64, flags: u16, offset: u64, len: u64, byte: u8) {
        self.write_as(ConnId(0), cookie, flags, offset, len, byte);
    }

    pub(crate) fn write_as(&mut self, conn: ConnId, cookie: u64, flags: u16, offset: u64, len: u64, byte: u8) {
        self.ask_as(conn, cookie, command::WRITE, flags, offset, len);
        self.write_on(conn, byte);
    }

    /// A client sends as much of the announced payload as the server accepts.
    pub(crate) fn write_on(&mut self, conn: ConnId, byte: u8) {
        while let Receive::Payload(bytes) = self.server.receive(conn) {
            let segments: Vec<_> = self.server.payload(conn).collect();
            for segment in segments {
                let start = usize::from(segment.start);
                self.frames[segment.frame.0 as usize][start..start + usize::from(segment.len)].fill(byte);
            }
            self.handle(Event::Payload { conn, bytes });
        }
    }

    /// Reads a block, all bytes of which must be equal, and returns that byte. Completes all device requests.
    pub(crate) fn content(&mut self, offset: u64) -> u8 {
        const COOKIE: u64 = u64::MAX;
        self.ask(COOKIE, command::READ, 0, offset, BLOCK);
        self.complete_all();
        let (error, data) = self.answers.remove(&COOKIE).expect("an answer to a read");
        assert_eq!(error, 0);
        assert!(data.iter().all(|&byte| byte == data[0]), "a torn block at {offset}");
        data[0]
    }

    /// The answer to a request, if there is one: `Some(0)` is success.
    pub(crate) fn answer(&self, cookie: u64) -> Option<u32> {
        self.answers.get(&cookie).map(|(error, _)| *error)
    }

    pub(crate) fn io(&self, at: usize) -> &Io {
        self.server.io(self.device[at])
    }

    /// Operations in the device, in order of submission.
    pub(crate) fn ops(&self) -> Vec<Op> {
        self.device.iter().map(|&io| self.server.io(io).op).collect()
    }

    /// Completes the request at this place in the device.
    pub(crate) fn complete(&mut self, at: usize, result: Result<(), Errno>) {
        self.complete_at(self.now, at, result);
    }

    /// Completes the oldest request in the device, as of `since`.
    pub(crate) fn complete_since(&mut self, since: Nanos) {
        self.complete_at(since, 0, Ok(()));
    }

    fn complete_at(&mut self, since: Nanos, at: usize, result: Result<(), Errno>) {
        let io = self.device.remove(at);
        if result.is_ok() {
            let Io { op, offset, len, segments, .. } = self.server.io(io).clone();
            let mut at = offset as usize;
            for segment in segments {
                let (start, end) = (usize::from(segment.start), usize::from(segment.start + segment.len));
                let frame = &mut self.frames[segment.frame.0 as usize][start..end];
                let medium = &mut self.medium[at..at + frame.len()];
                if op == Op::Read {
                    frame.copy_from_slice(medium)
                } else {
                    medium.copy_from_slice(frame)
                }
                at += frame.len();
            }
            if matches!(op, Op::Zero | Op::Punch) {
                self.medium[offset as usize..(offset + len) as usize].fill(0);
            }
        }
        self.handle(Event::IoDone { io, since, result });
    }

    /// Completes all device requests with success, and all requests that follow from them or from timers that are due.
    pub(crate) fn complete_all(&mut self) {
        loop {
            while !self.device.is_empty() {
                self.complete(0, Ok(()));
            }
            if self.server.poll_timeout() != Some(self.now) {
                return;
            }
            self.handle(Event::Timer);
        }
    }

    /// Completes all device requests with success, and those that are submitted at once because of that.
    pub(crate) fn finish_reads(&mut self) {
        while !self.device.is_empty() {
            self.complete(0, Ok(()));
        }
    }

    /// Advances the time.
    pub(crate) fn wait(&mut self, ns: Nanos) {
        self.now += ns;
        self.handle(Event::Timer);
    }

    /// Handles an event, the planner's answer to it, and all work that it leaves.
    pub(crate) fn handle(&mut self, event: Event<'_>) {
        self.step(event);
        if let Some(evidence) = self.evidence.take() {
            let targets = self.planner.handle(*evidence);
            self.step(Event::Targets(Box::new(targets)));
        }
        while !self.lazy && self.work_once() {}
    }

    /// Does the next step of a backlog; false if there is none.
    pub(crate) fn work_once(&mut self) -> bool {
        self.cpu.begin_pass(self.now);
        let job = self.cpu.next_tenant().and_then(|_| self.cpu.next_job());
        if let Some(Job::Backlog(tenant)) = job {
            self.step(Event::Work { tenant });
        }
        self.cpu.end_quantum();
        job.is_some()
    }

    /// Handles an event only.
    fn step(&mut self, event: Event<'_>) {
        let Ok(()) = Driver::handle(self, event);
        let mut senders = std::mem::take(&mut self.senders);
        senders.retain(|conn| !self.stalled_readers.contains(conn));
        senders.into_iter().for_each(|conn| self.send(conn));
    }

    /// A client receives all outgoing bytes.
    pub(crate) fn send(&mut self, conn: ConnId) {
        let mut sent = Vec::new();
        for part in self.server.outgoing(conn) {
            match part {
                Outgoing::Bytes(bytes) => sent.extend_from_slice(bytes),
                Outgoing::Frame { frame, start, len } => {
                    let (start, len) = (usize::from(start), usize::from(len));
                    sent.extend_from_slice(&self.frames[frame.0 as usize][start..start + len]);
                }
            }
        }
        let bytes = sent.len() as u64;
        let stream = self.outgoing.entry(conn).or_default();
        stream.extend(sent);
        while stream.len() >= 16 {
            assert_eq!(stream[..4], wire::SIMPLE_REPLY_MAGIC.to_be_bytes());
            let error = u32::from_be_bytes(stream[4..8].try_into().unwrap());
            let cookie = u64::from_be_bytes(stream[8..16].try_into().unwrap());
            let len = if error == 0 { self.reads.get(&cookie).copied().unwrap_or(0) } else { 0 };
            if stream.len() < 16 + len {
                break;
            }
            let data = stream.drain(..16 + len).skip(16).collect();
            self.answers.insert(cookie, (error, data));
        }
        self.handle(Event::Sent { conn, bytes });
    }
}

/// Tests pass headers and payloads directly, so connections have no input of their own.
impl Driver for Rig {
    type Error = Infallible;

    fn engine(&mut self) -> (&mut Server, &mut Scheduler) {
        (&mut self.server, &mut self.cpu)
    }

    fn now(&self) -> Nanos {
        self.now
    }

    fn act(&mut self, action: Action) -> Result<(), Infallible> {
        match action {
            Action::Copy { from, to, start, len } => {
                let part = usize::from(start)..usize::from(start + len);
                let from = self.frames[from.0 as usize];
                self.frames[to.0 as usize][part.clone()].copy_from_slice(&from[part]);
            }
            Action::Zero { frame, start, len } => {
                self.frames[frame.0 as usize][usize::from(start)..usize::from(start + len)].fill(0);
            }
            Action::Submit(io) => self.device.push(io),
            Action::Send(conn) => self.senders.push(conn),
            Action::Report { token, report } => self.reports.push((token, report)),
            Action::Receive(_) | Action::Gone(_) => {}
            Action::Evidence(evidence) => self.evidence = Some(evidence),
            Action::Work(_) => unreachable!("the driving loop takes it"),
            Action::Retired => self.retired += 1,
            Action::Close(conn, why) => self.closed.push((conn, why)),
        }
        Ok(())
    }

    fn after(&mut self) -> Result<(), Infallible> {
        let units = self.server.units_of_last_event();
        assert!(units <= crate::volume::EVENT_UNITS_MAX, "{units} units of work in one event");
        self.units_max = self.units_max.max(units);
        Ok(())
    }

    fn charge(&mut self, tenant: TenantId, ns: Nanos) {
        *self.spent_ns.entry(tenant).or_default() += ns;
        self.cpu.charge_to(tenant, ns);
    }

    fn has_input(&self, _: ConnId) -> bool {
        false
    }

    fn take_header(&mut self, _: ConnId) -> Result<Option<Arrived>, Infallible> {
        unreachable!("no connection is attached")
    }

    fn take_payload(&mut self, _: ConnId, _: u64) -> Result<u64, Infallible> {
        unreachable!("no connection is attached")
    }

    fn discard(&mut self, _: ConnId, _: u64) -> Result<u64, Infallible> {
        unreachable!("no connection is attached")
    }

    fn served(&mut self, _: ConnId, _: Option<Receive>) -> Result<(), Infallible> {
        unreachable!("no connection is attached")
    }
}
