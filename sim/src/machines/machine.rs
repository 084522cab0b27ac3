//! One machine: a clock, a disk with a volatile cache, and a process with a whole engine, which may be stopped, killed
//! and started again, or end with the machine's power.

use std::collections::{BTreeMap, BTreeSet};

use engine::cluster::{Slot, Timetable};
use engine::control::{
    CacheSpec, Command, LEAST_BYTES, Report, StripeSpec, TenantSpec, UpstreamSpec, VolumeSpec, WriteCache,
};
use engine::cpu::Scheduler;
use engine::disk::Segment;
use engine::driver::{Arrived, Driver};
use engine::ids::{ConnId, IoId, TenantId, VolumeId, VolumeKey};
use engine::nbd::RawHeader;
use engine::offload::Sum;
use engine::plan::Planner;
use engine::units::{MILLISECOND, Nanos, SECOND};
use engine::upstream::LinkId;
use engine::{Action, Config, Event, Outgoing, Receive, Server};

use super::gateway::Up;
use super::leases::Leases;
use super::network::{Chunk, Side, Wire};
use super::offload::{Control, Offloading};
use super::serving::{Conn, Door, Epochs};
use super::{Call, Outside, Wake};
use crate::Verdict;
use crate::disk::Disk;
use crate::frames::Frames;
use crate::trace::Line;

/// The tenants of volumes on the machine's disk, and of those on other servers.
const LOCAL: TenantId = TenantId(0);
const REMOTE: TenantId = TenantId(1);
/// That of stores on the machine's disk.
const STORES: TenantId = TenantId(2);
/// The round of a disk that follows a schedule, and its only slot.
const ROUND_NS: Nanos = 20 * MILLISECOND;
const SLOT_NS: Nanos = 15 * MILLISECOND;
/// Bytes that are sent at once.
const SEND_BYTES_MAX: u64 = 64 << 10;
/// How long a connection that is to be closed may take for its last replies, as in the program.
const FINISH_NS: Nanos = 5 * SECOND;

/// A clock that is wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) offset_ns: Nanos,
    pub(crate) drift_ppm: i64,
}

impl Clock {
    /// What it shows.
    pub(crate) fn at(&self, now: Nanos) -> Nanos {
        (self.offset_ns + now).saturating_add_signed(now as i64 / 1_000_000 * self.drift_ppm)
    }

    /// When it has shown `at` for certain.
    fn when(&self, at: Nanos) -> Nanos {
        let elapsed_ns = i128::from(at.saturating_sub(self.offset_ns));
        let now = elapsed_ns * 1_000_000 / i128::from(1_000_000 + self.drift_ppm);
        (now + 2_000_000 * i128::from(self.drift_ppm != 0)) as Nanos
    }
}

/// A volume that a machine serves.
#[derive(Clone, Debug)]
pub(crate) struct Hosted {
    pub(crate) volume: VolumeId,
    pub(crate) size: u64,
    pub(crate) is_sparse: bool,
    /// The name under which other machines open it.
    pub(crate) export: Option<String>,
    pub(crate) identity: Option<u128>,
    /// The export that has its data; the epoch is that of the machine's first process.
    pub(crate) upstream: Option<UpstreamSpec>,
    /// The machine of that export.
    pub(crate) server: usize,
    /// If the volume is striped: the other exports, which are on the machines after that one.
    pub(crate) stripes: Option<StripeSpec>,
    /// Another machine off-loads to it.
    pub(crate) is_store: bool,
    /// It may be off-loaded.
    pub(crate) key: Option<VolumeKey>,
}

impl Hosted {
    /// The numbers by which a process knows its exports, in order.
    pub(crate) fn legs(&self) -> impl Iterator<Item = VolumeId> + '_ {
        let others = self.stripes.iter().flat_map(|stripes| &stripes.others);
        std::iter::once(self.volume).chain(others.map(|(leg, _)| *leg))
    }

    pub(crate) fn tenant(&self) -> TenantId {
        match self.upstream {
            Some(_) => REMOTE,
            None if self.is_store => STORES,
            None => LOCAL,
        }
    }
}

/// The use of a connection in a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    Door,
    Conn(ConnId),
    Up(VolumeId, LinkId),
}

/// A process: what is lost when it dies.
pub(crate) struct Process {
    pub(crate) server: Server,
    pub(crate) cpu: Scheduler,
    pub(crate) frames: Frames,
    planner: Planner,
    pub(crate) uses: BTreeMap<Wire, Use>,
    /// Clients in their handshake.
    pub(crate) doors: BTreeMap<Wire, Door>,
    pub(crate) conns: BTreeMap<ConnId, Conn>,
    pub(crate) ups: BTreeMap<(VolumeId, LinkId), Up>,
    pub(crate) to_send: BTreeSet<ConnId>,
    pub(crate) to_send_up: BTreeSet<(VolumeId, LinkId)>,
    /// Connections whose client has gone.
    pub(crate) hang_ups: BTreeSet<ConnId>,
    /// Volumes that are open.
    pub(crate) open: BTreeSet<VolumeId>,
    pass_planned: bool,
    /// Volumes that are being closed, and those that are closed.
    pub(crate) closing: BTreeMap<u64, VolumeId>,
    pub(crate) closed: BTreeSet<VolumeId>,
    /// Exports of which a session has begun.
    pub(crate) online: BTreeSet<VolumeId>,
    pub(crate) offloading: Offloading,
    pub(crate) leases: Leases,
}

/// A machine.
pub(crate) struct Machine {
    pub(crate) at: usize,
    pub(crate) clock: Clock,
    pub(crate) config: Config,
    pub(crate) disk: Disk,
    /// Processes so far.
    pub(crate) life: u64,
    pub(crate) process: Option<Process>,
    /// The process is stopped: what waits for it.
    pub(crate) stopped: Option<Vec<Wake>>,
    /// It has power.
    pub(crate) is_on: bool,
    pub(crate) hosted: Vec<Hosted>,
    /// On its disk: the latest epoch of each client, by volume.
    pub(crate) epochs: BTreeMap<VolumeId, Epochs>,
    /// Its leases, and the latest epoch that it knows to be issued.
    pub(crate) lease_ms: Option<u64>,
    /// Its disk follows a schedule in which all clients of its exports are one tenant.
    pub(crate) follows: bool,
    pub(crate) issued: u64,
    /// What is known of its stores.
    pub(crate) control: Option<Control>,
    /// Ends of connections that a dead process had, and of which the other side learns when its requests have ended.
    pub(crate) unended: Vec<(Wire, Side)>,
}

impl Machine {
    /// When something happens without an event from outside.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        let process = self.process.as_ref().filter(|_| self.stopped.is_none());
        let timer = process.and_then(|process| process.server.poll_timeout()).map(|at| self.clock.when(at));
        [self.disk.poll_timeout(), timer].into_iter().flatten().min()
    }

    /// Whether its process works.
    pub(crate) fn is_running(&self) -> bool {
        self.process.is_some() && self.stopped.is_none()
    }

    /// Whether a request that its disk got until `since` has not returned: a server that waits for one admits no new
    /// session, for up to 8 s.
    pub(crate) fn is_stuck(&self, since: Nanos) -> bool {
        let is_old = self.disk.requests().any(|(_, submitted_at)| submitted_at <= since);
        is_old || self.hosted.iter().any(|hosted| self.disk.has_orphans(hosted.volume))
    }

    pub(crate) fn hosted(&self, volume: VolumeId) -> &Hosted {
        self.hosted.iter().find(|hosted| hosted.volume == volume).expect("a volume of the machine")
    }

    /// The volume of which an export has a part, and the machine of the export.
    pub(crate) fn leads_to(&self, leg: VolumeId) -> (VolumeId, usize) {
        let found = self.hosted.iter().find_map(|hosted| {
            let at = hosted.legs().position(|of| of == leg)?;
            Some((hosted.volume, hosted.server + at))
        });
        found.expect("an export of the machine's volumes")
    }

    /// Whether each export of a volume has had a session with the present process.
    pub(crate) fn is_reached(&self, volume: VolumeId) -> bool {
        let online = |leg: VolumeId| self.process.as_ref().is_some_and(|process| process.online.contains(&leg));
        self.hosted(volume).legs().all(online)
    }
}

/// A machine with a process, and the world around it.
pub(crate) struct Running<'a> {
    pub(crate) machine: &'a mut Machine,
    pub(crate) out: &'a mut Outside,
}

impl Driver for Running<'_> {
    type Error = String;

    fn engine(&mut self) -> (&mut Server, &mut Scheduler) {
        let process = self.process();
        (&mut process.server, &mut process.cpu)
    }

    fn now(&self) -> Nanos {
        self.machine.clock.at(self.out.now)
    }

    fn add_to_sum(&mut self, segment: Segment, sum: &mut Sum) -> Verdict {
        let Segment { frame, start, len } = segment;
        sum.add(self.process().frames.read(frame, start, len)?);
        Ok(())
    }

    fn before(&mut self, event: &Event<'_>) {
        self.out.step += 1;
        self.log(Line::of(event, None));
    }

    fn act(&mut self, action: Action) -> Verdict {
        let (out, machine) = (&mut *self.out, &mut *self.machine);
        let process = machine.process.as_mut().expect("a process");
        match action {
            Action::Copy { from, to, start, len } => process.frames.copy(from, to, start, len)?,
            Action::Zero { frame, start, len } => process.frames.zero(frame, start, len)?,
            Action::Submit(io) => {
                out.stats.device_requests += 1;
                machine.disk.submit(out.now, io, process.server.io(io), &mut process.frames)?;
                let io_of = process.server.io(io);
                let line = Line::Submit(io, io_of.volume, format!("{:?}", io_of.op), io_of.offset, io_of.len);
                self.log(line);
            }
            Action::Receive(conn) => process.cpu.ready(conn),
            Action::Send(conn) => _ = process.to_send.insert(conn),
            Action::Close(conn, why) => {
                self.log(Line::Close(conn, why));
                let process = self.process();
                process.to_send.insert(conn);
                let state = process.conns.get_mut(&conn).ok_or("no connection is to be closed")?;
                state.is_closing = true;
                let call = Call::HangUp(conn, state.wire);
                // A client that has moved to another gateway does not read the replies, which hold frames.
                let (at, life) = (self.machine.at, self.machine.life);
                self.out.queue.push(self.out.now + FINISH_NS, Wake::Process(at, life, call));
            }
            Action::Gone(conn) => self.gone(conn)?,
            Action::Upstream { volume, request } => self.upstream_asks(volume, request)?,
            Action::Report { token, report } => {
                self.log(Line::Report(token, format!("{report:?}").chars().take(60).collect()));
                if let Report::Refused(why) = report {
                    return Err(format!("command {token} is refused: {why}"));
                }
                if let Some(volume) = self.process().closing.remove(&token) {
                    self.process().closed.insert(volume);
                }
                self.offload_done(token);
            }
            Action::Evidence(evidence) => {
                let targets = Box::new(process.planner.handle(*evidence));
                let wake = Wake::Process(machine.at, machine.life, Call::Targets(targets));
                out.queue.push(out.now + MILLISECOND, wake);
            }
            Action::Retired => {}
            Action::Work(_) | Action::Sum(_) => unreachable!("the driving loop takes it"),
        }
        Ok(())
    }

    fn has_input(&self, conn: ConnId) -> bool {
        let conn = self.machine.process.as_ref().and_then(|process| process.conns.get(&conn));
        conn.is_some_and(|conn| !conn.is_over && !conn.is_closing && self.out.network.input_bytes(conn.wire, 1) > 0)
    }

    fn take_header(&mut self, conn: ConnId, bytes: usize) -> Result<Option<Arrived>, String> {
        let (now, wire) = (self.now(), self.process().conns[&conn].wire);
        let Some(found) = self.out.network.input(wire, 1).get(..bytes) else { return Ok(None) };
        let header = RawHeader::filled(bytes, |into| into.copy_from_slice(found));
        self.take(wire, 1, bytes);
        Ok(Some((now, header)))
    }

    fn take_payload(&mut self, conn: ConnId, wanted: u64) -> Result<u64, String> {
        let process = self.machine.process.as_mut().expect("a process");
        let wire = process.conns[&conn].wire;
        let input = self.out.network.input(wire, 1);
        let bytes = input.len().min(wanted as usize);
        let mut at = 0;
        for segment in process.server.payload(conn) {
            let len = usize::from(segment.len).min(bytes - at);
            if len == 0 {
                break;
            }
            let into = process.frames.receive(segment.frame, segment.start, len as u16)?;
            into.copy_from_slice(&input[at..at + len]);
            at += len;
        }
        self.take(wire, 1, at);
        Ok(at as u64)
    }

    fn discard(&mut self, conn: ConnId, wanted: u64) -> Result<u64, String> {
        let wire = self.process().conns[&conn].wire;
        let bytes = self.out.network.input_bytes(wire, 1).min(wanted as usize);
        self.take(wire, 1, bytes);
        Ok(bytes as u64)
    }

    fn served(&mut self, conn: ConnId, wanted: Option<Receive>) -> Verdict {
        let process = self.process();
        let waits = matches!(wanted, None | Some(Receive::Pause));
        if process.conns.get(&conn).is_some_and(|conn| conn.has_ended) && !waits {
            process.hang_ups.insert(conn);
        }
        Ok(())
    }
}

impl Running<'_> {
    pub(crate) fn process(&mut self) -> &mut Process {
        self.machine.process.as_mut().expect("a process")
    }

    pub(crate) fn log(&mut self, line: Line) {
        self.out.log(Line::On(self.machine.at as u8, Box::new(line)));
    }

    pub(crate) fn take(&mut self, wire: Wire, side: Side, bytes: usize) {
        self.out.network.take(self.out.now, &mut self.out.queue, wire, side, bytes);
    }

    pub(crate) fn send(&mut self, wire: Wire, to: Side, what: Chunk) {
        self.out.network.send(self.out.now, &mut self.out.queue, wire, to, what);
    }

    pub(crate) fn close(&mut self, wire: Wire, side: Side) {
        self.out.network.close(self.out.now, &mut self.out.queue, wire, side);
    }

    /// A new process starts.
    pub(crate) fn start(&mut self) -> Verdict {
        let machine = &mut *self.machine;
        machine.life += 1;
        let config = machine.config.clone();
        machine.process = Some(Process {
            frames: Frames::new(config.frames_max()),
            planner: Planner::new(&config),
            server: Server::new(config),
            cpu: Scheduler::default(),
            uses: BTreeMap::new(),
            doors: BTreeMap::new(),
            conns: BTreeMap::new(),
            ups: BTreeMap::new(),
            to_send: BTreeSet::new(),
            to_send_up: BTreeSet::new(),
            hang_ups: BTreeSet::new(),
            open: BTreeSet::new(),
            pass_planned: false,
            closing: BTreeMap::new(),
            closed: BTreeSet::new(),
            online: BTreeSet::new(),
            offloading: Offloading::default(),
            leases: Leases::default(),
        });
        self.log(Line::Note(format!("process {} starts", self.machine.life)));
        self.remember_leases();
        for (tenant, is_remote) in [(LOCAL, false), (REMOTE, true)] {
            let spec = TenantSpec { cache: CacheSpec::Asked(LEAST_BYTES), is_remote, ..TenantSpec::default() };
            self.command(Command::SetTenant(tenant, spec))?;
        }
        if self.machine.control.is_some() {
            self.command(Command::SetTenant(STORES, TenantSpec { is_store: true, ..TenantSpec::default() }))?;
        }
        if self.machine.follows {
            let slot = Slot { tenant: LOCAL, start_ns: 0, length_ns: SLOT_NS, is_striped: true };
            let timetable = Timetable { version: 1, begins_ns: 0, round_ns: ROUND_NS, slots: vec![slot] };
            self.command(Command::SetTimetable(Some(Box::new(timetable))))?;
        }
        for at in 0..self.machine.hosted.len() {
            self.open(at)?;
        }
        self.begin_offload()?;
        self.settle()
    }

    pub(crate) fn command(&mut self, command: Command) -> Verdict {
        self.out.tokens += 1;
        let token = self.out.tokens;
        self.handle(Event::Control { token, command })
    }

    /// Closes a volume; the engine forgets its upstream.
    pub(crate) fn close_volume(&mut self, volume: VolumeId) -> Verdict {
        // The number of the next command.
        let token = self.out.tokens + 1;
        self.process().closing.insert(token, volume);
        self.command(Command::CloseVolume { volume, discard: false })?;
        self.settle()
    }

    /// Opens a volume, unless requests of an earlier process can still change it.
    pub(crate) fn open(&mut self, at: usize) -> Verdict {
        let hosted = self.machine.hosted[at].clone();
        let tenant = hosted.tenant();
        let Hosted { volume, size, is_sparse, is_store, upstream, mut stripes, key, .. } = hosted;
        let is_fenced = upstream.is_none() && self.machine.disk.has_orphans(volume);
        let must_wait = key.is_some() && !self.process().offloading.is_started;
        if is_fenced || must_wait || !self.process().open.insert(volume) {
            return Ok(());
        }
        let life = self.machine.life;
        let later = |spec: UpstreamSpec| UpstreamSpec { epoch: spec.epoch + (life << 24), ..spec };
        let upstream = upstream.map(later);
        let others = stripes.iter_mut().flat_map(|stripes| &mut stripes.others);
        others.for_each(|(_, spec)| *spec = later(spec.clone()));
        let is_local = upstream.is_none();
        if is_local {
            self.machine.disk.set_size(volume, size);
        }
        let spec = VolumeSpec {
            upstream,
            stripes,
            unflushed: is_local,
            sparse: is_sparse,
            write_cache: if is_local && is_store { WriteCache::None } else { WriteCache::default() },
            offload: key,
            ..VolumeSpec::plain(volume, tenant, size)
        };
        self.command(Command::OpenVolume(spec))?;
        self.out.opened.push((self.machine.at, volume));
        Ok(())
    }

    /// A device request completes: one of the present process, or one of an earlier one.
    pub(crate) fn complete(&mut self, life: u64, io: IoId) -> Verdict {
        let machine = &mut *self.machine;
        if life != machine.disk.life() {
            machine.disk.land(life, io);
            return Ok(());
        }
        let Some(process) = &mut machine.process else { return Ok(()) };
        let done = machine.disk.complete(io, &mut process.frames);
        let since = self.now();
        self.handle(Event::IoDone { io, since, result: done.result })?;
        self.settle()
    }

    /// One pass of the thread.
    pub(crate) fn pass(&mut self) -> Verdict {
        self.process().pass_planned = false;
        self.serve()?;
        self.settle()
    }

    /// Sends what can be sent, closes what is to be closed, and plans the next pass.
    pub(crate) fn settle(&mut self) -> Verdict {
        loop {
            let process = self.process();
            if let Some(conn) = process.to_send.pop_first() {
                self.send_replies(conn)?;
            } else if let Some((volume, link)) = process.to_send_up.pop_first() {
                self.send_up(volume, link)?;
            } else if let Some(conn) = process.hang_ups.pop_first() {
                self.hang_up(conn)?;
            } else {
                break;
            }
        }
        let (at, life) = (self.machine.at, self.machine.life);
        let process = self.process();
        if process.cpu.has_work() && !std::mem::replace(&mut process.pass_planned, true) {
            self.out.queue.push(self.out.now + 1000, Wake::Process(at, life, Call::Pass));
        }
        Ok(())
    }

    fn send_replies(&mut self, conn: ConnId) -> Verdict {
        loop {
            let process = self.machine.process.as_mut().expect("a process");
            let Some(state) = process.conns.get(&conn).filter(|state| !state.is_over) else { return Ok(()) };
            let (wire, is_closing) = (state.wire, state.is_closing);
            let room = self.out.network.room(wire, 1).min(SEND_BYTES_MAX);
            let bytes = gather(process.server.outgoing(conn), &process.frames, room)?;
            if bytes.is_empty() {
                if is_closing && process.server.outgoing(conn).next().is_none() {
                    process.hang_ups.insert(conn);
                }
                return Ok(());
            }
            let sent = bytes.len() as u64;
            self.send(wire, 0, Chunk::Bytes(bytes));
            self.handle(Event::Sent { conn, bytes: sent })?;
        }
    }
}

/// At most so many of the outgoing bytes.
pub(crate) fn gather<'a>(
    outgoing: impl Iterator<Item = Outgoing<'a>>,
    frames: &Frames,
    most: u64,
) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    for part in outgoing {
        let room = most as usize - bytes.len();
        if room == 0 {
            break;
        }
        match part {
            Outgoing::Bytes(part) => bytes.extend_from_slice(&part[..part.len().min(room)]),
            Outgoing::Frame { frame, start, len } => {
                bytes.extend_from_slice(frames.read(frame, start, len.min(room.min(4096) as u16))?);
            }
        }
    }
    Ok(bytes)
}
