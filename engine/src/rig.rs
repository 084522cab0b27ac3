//! Test rig of the server: one volume, and a device that completes requests when and how the test says. Each layer
//! below has a smaller one: [`crate::front::rig`], [`crate::volume::rig`].
//!
//! The medium and the frames hold real bytes, so tests can check what reads return. Clients use simple replies.

use std::convert::Infallible;

use crate::config::Config;
use crate::control::{Command, LEAST_BYTES, Report, TenantSpec, VolumeSpec};
use crate::cpu::Scheduler;
use crate::disk::{Op, Segment};
use crate::driver::{Arrived, Driver};
use crate::errno::Errno;
use crate::event::{Action, CloseReason, Event, Receive, Session};
use crate::front::rig::Replies;
use crate::ids::{ConnId, IoId, TenantId};
use crate::nbd::wire::command;
use crate::offload::Sum;
use crate::plan::{Evidence, Planner};
use crate::server::Server;
use crate::units::{BLOCK, Nanos};
use crate::volume::rig::{Frames, header, next_job};
pub(crate) use crate::volume::rig::{VOLUME, VOLUME_BYTES};

pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) now: Nanos,
    frames: Frames,
    pub(crate) medium: Vec<u8>,
    pub(crate) planner: Planner,
    evidence: Option<Box<Evidence>>,
    /// Requests in the device, in order of submission.
    pub(crate) device: Vec<IoId>,
    replies: Replies,
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
}

impl Rig {
    /// A preallocated volume that was written before, on a device that can zero ranges.
    pub(crate) fn new() -> Rig {
        let config = Config { device_depth: 128, ..Config::new(8 * LEAST_BYTES) };
        let frames = Frames::new(&config);
        let mut rig = Rig {
            planner: Planner::new(&config),
            evidence: None,
            server: Server::new(config),
            now: 0,
            frames,
            medium: vec![1; VOLUME_BYTES],
            device: Vec::new(),
            replies: Replies::default(),
            reports: Vec::new(),
            stalled_readers: Vec::new(),
            closed: Vec::new(),
            retired: 0,
            cpu: Scheduler::default(),
            senders: Vec::new(),
        };
        let spec = VolumeSpec::plain(VOLUME, TenantId(0), VOLUME_BYTES as u64);
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
        assert_eq!(self.server.receive(conn), Receive::Header);
        let header = header(cookie, command, flags, offset, len);
        self.replies.expect(&header);
        self.handle(Event::Header { conn, since: self.now, header: &header });
    }

    /// The first client writes blocks full of `byte`.
    pub(crate) fn write(&mut self, cookie: u64, flags: u16, offset: u64, len: u64, byte: u8) {
        self.ask(cookie, command::WRITE, flags, offset, len);
        while let Receive::Payload(bytes) = self.server.receive(ConnId(0)) {
            self.server.payload(ConnId(0)).for_each(|segment| self.frames.of(segment).fill(byte));
            self.handle(Event::Payload { conn: ConnId(0), bytes });
        }
    }

    /// Reads a block, all bytes of which must be equal, and returns that byte. Completes all device requests.
    pub(crate) fn content(&mut self, offset: u64) -> u8 {
        const COOKIE: u64 = u64::MAX;
        self.ask(COOKIE, command::READ, 0, offset, BLOCK);
        self.complete_all();
        let (error, data) = self.replies.answers.remove(&COOKIE).expect("an answer to a read");
        assert_eq!(error, 0);
        assert!(data.iter().all(|&byte| byte == data[0]), "a torn block at {offset}");
        data[0]
    }

    /// The answer to a request, if there is one: `Some(0)` is success.
    pub(crate) fn answer(&self, cookie: u64) -> Option<u32> {
        self.replies.answers.get(&cookie).map(|(error, _)| *error)
    }

    /// Operations in the device, in order of submission.
    pub(crate) fn ops(&self) -> Vec<Op> {
        self.device.iter().map(|&io| self.server.io(io).op).collect()
    }

    /// Completes the request at this place in the device.
    pub(crate) fn complete(&mut self, at: usize, result: Result<(), Errno>) {
        let io = self.device.remove(at);
        if result.is_ok() {
            self.frames.transfer(self.server.io(io), &mut self.medium);
        }
        self.handle(Event::IoDone { io, since: self.now, result });
    }

    /// Completes all device requests with success, and all requests that follow from them or from timers that are due.
    pub(crate) fn complete_all(&mut self) {
        loop {
            self.finish_reads();
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
        while self.work_once() {}
    }

    /// Does the next step of a backlog; false if there is none.
    pub(crate) fn work_once(&mut self) -> bool {
        let job = next_job(&mut self.cpu, self.now);
        if let Some(tenant) = job {
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
        let bytes = self.replies.receive(conn, self.server.outgoing(conn), &mut self.frames);
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

    fn add_to_sum(&mut self, segment: Segment, sum: &mut Sum) -> Result<(), Infallible> {
        sum.add(self.frames.of(segment));
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<(), Infallible> {
        match action {
            Action::Copy { from, to, start, len } => self.frames.copy(from, to, start, len),
            Action::Zero { frame, start, len } => self.frames.zero(frame, start, len),
            Action::Submit(io) => self.device.push(io),
            Action::Send(conn) => self.senders.push(conn),
            Action::Report { token, report } => self.reports.push((token, report)),
            Action::Receive(_) | Action::Gone(_) => {}
            Action::Evidence(evidence) => self.evidence = Some(evidence),
            Action::Work(_) | Action::Sum(_) => unreachable!("the driving loop takes it"),
            Action::Retired => self.retired += 1,
            Action::Close(conn, why) => self.closed.push((conn, why)),
            Action::Upstream { .. } => unreachable!("no volume is on another server"),
        }
        Ok(())
    }

    fn after(&mut self) -> Result<(), Infallible> {
        let units = self.server.units_of_last_event();
        assert!(units <= crate::volume::EVENT_UNITS_MAX, "{units} units of work in one event");
        Ok(())
    }

    fn has_input(&self, _: ConnId) -> bool {
        false
    }

    fn take_header(&mut self, _: ConnId, _: usize) -> Result<Option<Arrived>, Infallible> {
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
