//! The laboratory's bench: the shipping engine on a simulated drive, under load, in virtual time, without data.
//!
//! ```text
//!   load::Workload ──request──► (network) ──► the server's thread ──► engine::Server ──► disk::drive::Drive
//!        ▲                                     engine::driver: quanta,                      │
//!        └──────────────── (network) ◄── reply ◄── each request costs CPU time ◄───────────┘
//! ```
//!
//! The bench reports what a client would see: a [`Done`] for each request, with its intended time and the time at which
//! its reply arrived. Frames have no memory behind them, and of replies only the headers are read, so an hour of a
//! trace takes seconds. [`crate::world`] checks the correctness of data.
//!
//! [`cluster::Cluster`] has several of them, whose volumes are off-loaded to one another. [`tiers::Tiers`] has gateways
//! in front of one.
//!
//! [`raw::Raw`] puts the same load on the same drive without a server: the standalone performance of the bare disk.
//!
//! Downside: the costs of the network and the thread are constants ([`Costs`]), and replies are sent whole. Effects of
//! jitter and of full sockets are measured on a real server.

pub mod cluster;
mod driven;
mod links;
mod pipe;
pub mod raw;
mod replies;
pub mod striped;
pub mod tiers;

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;

use engine::control::{Command, Plan, PlanRequest, Refusal, Report, Snapshot, TenantSpec, VolumeSpec, WriteCache};
use engine::cpu::Scheduler;
use engine::disk::{Op as DiskOp, Segment};
use engine::driver::{Arrived, Driver};
use engine::ids::{ConnId, TenantId, VolumeId, VolumeKey};
use engine::nbd::wire::command;
use engine::nbd::{Form, RawHeader};
use engine::offload::Sum;
use engine::plan::{Evidence, Planner};
use engine::units::{BLOCK, Nanos};
use engine::{Action, Config, Event, Receive, Server, Session};

use crate::disk::drive::Drive;
use crate::load::{Op, Request, Workload};
use crate::queue::Queue;
use links::{Chunk, Links, Port, Wire};
use replies::Replies;

/// A volume with one connection.
pub struct Volume {
    /// Index of its tenant in the list of tenants.
    pub tenant: usize,
    /// First byte on the drive.
    pub start: u64,
    /// Size, bytes.
    pub bytes: u64,
    /// Write cache mode: when its writes are acknowledged.
    pub write_cache: WriteCache,
    /// The load of its client. Offsets are relative to the volume.
    pub load: Workload,
}

/// Costs that neither the engine's decisions nor the drive cause.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// CPU time of the server's thread for a request, ns.
    pub request_ns: Nanos,
    /// CPU time for each KiB of payload, ns.
    pub kib_ns: Nanos,
    /// Network latency of one direction, ns.
    pub network_ns: Nanos,
}

impl Default for Costs {
    /// Measured on the real server: 4.6 us for a cache hit of 4 KiB, 18 us at depth 1 over a Unix socket.
    fn default() -> Costs {
        Costs { request_ns: 4_000, kib_ns: 150, network_ns: 7_000 }
    }
}

/// A request that was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Done {
    /// Index of its volume in the list.
    pub volume: usize,
    /// The request.
    pub request: Request,
    /// When the answer arrived.
    pub done_ns: Nanos,
    /// The answer was an error.
    pub failed: bool,
}

/// What has a connection to the server.
enum Peer {
    Client(usize),
    Server(Port),
}

/// A client and its connection.
struct Client {
    conn: ConnId,
    load: Workload,
    /// Requests that have arrived at the server's socket and are not yet received.
    backlog: VecDeque<Request>,
    replies: Replies,
    /// Time of the next planned look at the load.
    planned_ns: Option<Nanos>,
}

enum Wake {
    /// A client asks its load for a request.
    Ask(usize),
    /// A request arrives at the server.
    Arrive(usize, Request),
    /// The server's thread begins a pass.
    Serve,
    /// A reply arrives at the client.
    Answer(usize, u64, bool),
    /// Something arrives on a connection to another server.
    Deliver(Wire, Chunk),
}

/// A server, its planner, its drive and its clients.
pub struct Bench {
    server: Server,
    /// Takes no time, so that results do not depend on the machine that it would run on.
    planner: Planner,
    evidence: Option<Box<Evidence>>,
    drive: Box<dyn Drive>,
    costs: Costs,
    clients: Vec<Client>,
    /// By [`ConnId`].
    peers: Vec<Peer>,
    /// First bytes of the volumes on the drive.
    starts: BTreeMap<VolumeId, u64>,
    links: Links,
    queue: Queue<Wake>,
    now: Nanos,
    cpu: Scheduler,
    /// The thread's next pass is planned.
    pass_planned: bool,
    /// End of the thread's present work.
    thread_free_ns: Nanos,
    /// Connections with outgoing bytes.
    senders: VecDeque<ConnId>,
    /// The answer to the last command.
    report: Option<Report>,
    /// Requests in the drive; then the time during which there was at least one, up to `drive_busy_since`.
    in_drive: u32,
    drive_busy_ns: Nanos,
    drive_busy_since: Nanos,
    /// Requests come from outside, with numbers of their own, and the loads of the clients are empty ([`striped`]).
    is_driven: bool,
    /// Of clients.
    session: Session,
}

impl Bench {
    /// Sets everything up at time 0. The error says what cannot be set up.
    pub fn new(
        config: Config,
        drive: Box<dyn Drive>,
        costs: Costs,
        tenants: &[TenantSpec],
        volumes: Vec<Volume>,
    ) -> Result<Bench, String> {
        Bench::with_session(config, drive, costs, tenants, volumes, Session::default())
    }

    /// The same; clients have negotiated this session.
    fn with_session(
        config: Config,
        drive: Box<dyn Drive>,
        costs: Costs,
        tenants: &[TenantSpec],
        volumes: Vec<Volume>,
        session: Session,
    ) -> Result<Bench, String> {
        let mut bench = Bench {
            planner: Planner::new(&config),
            evidence: None,
            server: Server::new(config),
            drive,
            costs,
            clients: Vec::new(),
            peers: Vec::new(),
            starts: BTreeMap::new(),
            links: Links::default(),
            queue: Queue::default(),
            now: 0,
            cpu: Scheduler::default(),
            pass_planned: false,
            thread_free_ns: 0,
            senders: VecDeque::new(),
            report: None,
            in_drive: 0,
            drive_busy_ns: 0,
            drive_busy_since: 0,
            is_driven: false,
            session,
        };
        for (number, &tenant) in (0..).zip(tenants) {
            bench.command(Command::SetTenant(TenantId(number), tenant))?;
        }
        for (number, volume) in (0..).zip(volumes) {
            bench.open(number, volume, None)?;
        }
        Ok(bench)
    }

    /// Opens a volume and connects its client. With a key it may be off-loaded.
    fn open(&mut self, number: u32, on: Volume, key: Option<VolumeKey>) -> Result<(), String> {
        let volume = VolumeId(number);
        let spec = self.place(volume, &on)?;
        self.command(Command::OpenVolume(VolumeSpec { offload: key, ..spec }))?;
        self.connect(volume, TenantId(on.tenant as u32), on.load);
        Ok(())
    }

    /// Connects the client of a volume. Volumes with clients are numbered from 0, and connected in that order.
    fn connect(&mut self, volume: VolumeId, tenant: TenantId, load: Workload) {
        let number = self.clients.len();
        assert_eq!(number, volume.0 as usize, "volumes are connected in their order");
        let conn = ConnId(self.peers.len() as u32);
        self.peers.push(Peer::Client(number));
        let (backlog, replies) = (VecDeque::new(), Replies::default());
        self.clients.push(Client { conn, load, backlog, replies, planned_ns: Some(0) });
        self.cpu.attach(conn, tenant);
        self.apply(Event::Attach { conn, volume, session: self.session });
        self.queue.push(0, Wake::Ask(number));
    }

    /// A volume on the drive.
    fn place(&mut self, volume: VolumeId, on: &Volume) -> Result<VolumeSpec, String> {
        let number = volume.0;
        let end = on.start.checked_add(on.bytes);
        if end.is_none_or(|end| end > self.drive.bytes()) || !on.start.is_multiple_of(BLOCK) {
            let (bytes, start, disk) = (on.bytes, on.start, self.drive.bytes());
            return Err(format!(
                "volume {number}: {bytes} bytes at {start} are not inside of a disk of {disk} bytes, \
                 at a multiple of {BLOCK}"
            ));
        }
        self.starts.insert(volume, on.start);
        Ok(VolumeSpec {
            write_cache: on.write_cache,
            disk_start: Some(on.start),
            can_zero: false,
            can_punch: false,
            ..VolumeSpec::plain(volume, TenantId(on.tenant as u32), on.bytes)
        })
    }

    fn command(&mut self, command: Command) -> Result<(), String> {
        match self.ask(command)? {
            Report::Refused(why) => Err(why.to_string()),
            _ => Ok(()),
        }
    }

    /// Runs until `end`, or until all loads are over; calls `done` for every answered request.
    pub fn run(&mut self, end: Nanos, mut done: impl FnMut(Done)) {
        while let Some(at) = self.next_at().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.happen(&mut done);
        }
        self.now = self.now.max(end);
    }

    /// The virtual time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Whether all loads are over and answered.
    pub fn is_done(&self) -> bool {
        !self.is_driven && self.clients.iter().all(|client| client.load.is_done())
    }

    /// Whether no request is outstanding.
    pub fn is_idle(&self) -> bool {
        self.clients.iter().all(|client| client.load.outstanding() == 0)
    }

    /// Time during which at least one request was in the drive.
    pub fn drive_busy_ns(&self) -> Nanos {
        let running = if self.in_drive > 0 { self.now - self.drive_busy_since } else { 0 };
        self.drive_busy_ns + running
    }

    /// The server's snapshot.
    pub fn snapshot(&mut self) -> Result<Snapshot, String> {
        match self.ask(Command::Snapshot)? {
            Report::Snapshot(snapshot) => Ok(*snapshot),
            other => Err(format!("a snapshot was answered with {other:?}")),
        }
    }

    /// Executes a command that is answered without I/O, and returns its answer.
    pub fn ask(&mut self, command: Command) -> Result<Report, String> {
        self.report = None;
        self.apply(Event::Control { token: 0, command });
        while self.report.is_none() {
            if self.cpu.has_work() {
                self.pass();
            } else if self.server.poll_timeout().is_some_and(|at| at <= self.now) {
                // The snapshot of many tenants takes several events.
                self.apply(Event::Timer);
            } else {
                return Err("a command was not answered at once".into());
            }
        }
        Ok(self.report.take().expect("just seen"))
    }

    /// The decision for a planned tenant.
    pub fn plan(&self, request: PlanRequest) -> Result<Plan, Refusal> {
        self.planner.plan(request)
    }

    fn next_at(&self) -> Option<Nanos> {
        let wakes = if self.is_done() && !self.links.has_any() { None } else { self.server.poll_timeout() };
        [self.queue.next_at(), self.drive.poll_timeout(), wakes].into_iter().flatten().min()
    }

    /// Handles everything that is due: completions, timers, then planned events.
    fn happen(&mut self, done: &mut dyn FnMut(Done)) {
        while let Some((tag, _)) = self.drive.poll(self.now) {
            self.in_drive -= 1;
            if self.in_drive == 0 {
                self.drive_busy_ns += self.now - self.drive_busy_since;
            }
            let io = engine::ids::IoId(tag as u32);
            self.apply(Event::IoDone { io, since: self.now, result: Ok(()) });
        }
        if self.server.poll_timeout().is_some_and(|at| at <= self.now) {
            self.apply(Event::Timer);
        }
        while self.queue.next_at().is_some_and(|at| at <= self.now) {
            let (_, wake) = self.queue.pop().expect("just seen");
            match wake {
                Wake::Ask(client) => self.look(client),
                Wake::Arrive(client, request) => {
                    self.clients[client].backlog.push_back(request);
                    self.cpu.ready(self.clients[client].conn);
                    self.plan_pass();
                }
                Wake::Serve => self.pass(),
                Wake::Answer(client, id, failed) => self.answer(client, id, failed, done),
                Wake::Deliver(wire, chunk) => self.deliver(wire, chunk),
            }
        }
    }

    fn look(&mut self, number: usize) {
        let client = &mut self.clients[number];
        client.planned_ns = client.planned_ns.filter(|&at| at > self.now);
        while let Some(request) = client.load.next(self.now) {
            self.queue.push(self.now + self.costs.network_ns, Wake::Arrive(number, request));
        }
        if let Some(at) = client.load.poll_timeout() {
            let at = at.max(self.now + 1);
            if client.planned_ns.is_none_or(|planned| at < planned) {
                client.planned_ns = Some(at);
                self.queue.push(at, Wake::Ask(number));
            }
        }
    }

    fn answer(&mut self, number: usize, id: u64, failed: bool, done: &mut dyn FnMut(Done)) {
        let client = &mut self.clients[number];
        let request = client.replies.finish(id);
        if !self.is_driven {
            client.load.completed(self.now, id);
        }
        done(Done { volume: number, request, done_ns: self.now, failed });
        self.look(number);
    }

    /// Handles an event outside of a pass.
    fn apply(&mut self, event: Event<'_>) {
        let Ok(()) = self.handle(event);
        self.send_all();
        self.plan_pass();
    }

    /// The thread serves each tenant for a quantum.
    fn pass(&mut self) {
        self.pass_planned = false;
        let Ok(()) = self.serve();
        self.plan_pass();
    }

    /// Plans a pass for when the thread's present work has ended.
    fn plan_pass(&mut self) {
        if self.cpu.has_work() && !std::mem::replace(&mut self.pass_planned, true) {
            self.queue.push(self.thread_free_ns.max(self.now), Wake::Serve);
        }
    }

    /// The thread works for so long.
    fn spend(&mut self, ns: Nanos) {
        self.thread_free_ns = self.thread_free_ns.max(self.now) + ns;
    }

    /// Clients read available reply bytes at once.
    fn send_all(&mut self) {
        self.send_up();
        while let Some(conn) = self.senders.pop_front() {
            let Peer::Client(number) = self.peers[conn.0 as usize] else {
                self.send_down(conn);
                continue;
            };
            let client = &mut self.clients[number];
            let (queue, at) = (&mut self.queue, self.now.max(self.thread_free_ns) + self.costs.network_ns);
            let mut data_bytes = 0;
            let bytes = client.replies.take(self.server.outgoing(conn), |id, bytes, failed| {
                data_bytes += bytes;
                queue.push(at, Wake::Answer(number, id, failed));
            });
            if bytes > 0 {
                self.spend(data_bytes / 1024 * self.costs.kib_ns);
                let Ok(()) = self.handle(Event::Sent { conn, bytes });
            }
        }
    }
}

impl Driver for Bench {
    type Error = Infallible;

    fn engine(&mut self) -> (&mut Server, &mut Scheduler) {
        (&mut self.server, &mut self.cpu)
    }

    fn now(&self) -> Nanos {
        self.now
    }

    fn add_to_sum(&mut self, segment: Segment, sum: &mut Sum) -> Result<(), Infallible> {
        // Frames have no bytes here: what is read from them is zero.
        sum.add(&[0; BLOCK as usize][..usize::from(segment.len)]);
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<(), Infallible> {
        match action {
            Action::Submit(io) => {
                let request = self.server.io(io);
                let start = self.starts[&request.volume];
                let (offset, len) = match request.op {
                    DiskOp::Flush => (0, 0),
                    _ => (start + request.offset, request.len),
                };
                self.drive.submit(self.now, u64::from(io.0), request.op, offset, len);
                if self.in_drive == 0 {
                    self.drive_busy_since = self.now;
                }
                self.in_drive += 1;
            }
            Action::Receive(conn) => self.cpu.ready(conn),
            Action::Send(conn) => self.senders.push_back(conn),
            Action::Report { report, .. } => self.report = Some(report),
            Action::Work(_) | Action::Sum(_) => unreachable!("the driving loop takes it"),
            // Frames have no bytes here, and connections stay open until the end.
            Action::Copy { .. } | Action::Zero { .. } | Action::Retired => {}
            Action::Evidence(evidence) => self.evidence = Some(evidence),
            Action::Upstream { volume, request } => self.upstream_asks(volume, request),
            Action::Close(conn, _) | Action::Gone(conn) => panic!("{conn:?} is closed: the load made a bad request"),
        }
        Ok(())
    }

    fn after(&mut self) -> Result<(), Infallible> {
        let Some(evidence) = self.evidence.take() else { return Ok(()) };
        let targets = Box::new(self.planner.handle(*evidence));
        self.handle(Event::Targets(targets))
    }

    fn has_input(&self, conn: ConnId) -> bool {
        match &self.peers[conn.0 as usize] {
            // A payload is there with its header.
            Peer::Client(number) => {
                !self.clients[*number].backlog.is_empty()
                    || matches!(self.server.receive(conn), Receive::Payload(_) | Receive::Discard(_))
            }
            Peer::Server(port) => !port.input.is_empty(),
        }
    }

    fn take_header(&mut self, conn: ConnId, bytes: usize) -> Result<Option<Arrived>, Infallible> {
        let header = match &mut self.peers[conn.0 as usize] {
            Peer::Client(number) => {
                let client = &mut self.clients[*number];
                let Some(request) = client.backlog.pop_front() else { return Ok(None) };
                client.replies.begin(request);
                header(&request)
            }
            Peer::Server(port) => match port.take_header(bytes) {
                Some(header) => header,
                None => return Ok(None),
            },
        };
        self.spend(self.costs.request_ns);
        Ok(Some((self.now, header)))
    }

    fn take_payload(&mut self, conn: ConnId, wanted: u64) -> Result<u64, Infallible> {
        self.discard(conn, wanted)
    }

    fn discard(&mut self, conn: ConnId, wanted: u64) -> Result<u64, Infallible> {
        let bytes = match &mut self.peers[conn.0 as usize] {
            Peer::Client(_) => wanted,
            Peer::Server(port) => port.take_payload(wanted),
        };
        self.spend(bytes / 1024 * self.costs.kib_ns);
        Ok(bytes)
    }

    fn served(&mut self, _: ConnId, _: Option<Receive>) -> Result<(), Infallible> {
        Ok(())
    }

    fn between_quanta(&mut self, _: Option<TenantId>) -> Result<(), Infallible> {
        self.send_all();
        Ok(())
    }
}

/// The header of a request; the cookie is the request's number.
fn header(request: &Request) -> RawHeader {
    let command = match request.op {
        Op::Read => command::READ,
        Op::Write => command::WRITE,
        Op::Trim => command::TRIM,
        Op::Flush => command::FLUSH,
    };
    let len = if request.op == Op::Flush { 0 } else { request.bytes as u32 };
    let offset = if request.op == Op::Flush { 0 } else { request.offset };
    crate::request::Request { op: 0, cookie: request.id, command, flags: 0, offset, len }.header(Form::Simple)
}
