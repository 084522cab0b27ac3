//! Worlds of several machines: a server, gateways whose volumes live on it, and the network between them.
//!
//! ```text
//!   clients ─► gateway: process, disk ══ network ══ server: process, disk        each with a clock of its own
//!      │       gateway: process, disk ══╝                          │
//!      └────────────────────── history ── medium ──────────────────┘
//! ```
//!
//! Each machine has a whole engine, driven by the loop of every driver, and a disk with a volatile cache. Machines and
//! the network fail, and clients must not notice: no request fails unless its deadline has passed or the export is
//! another volume. What was acknowledged is read until its gateway dies, and is on the server's medium after a flush
//! (`history.rs`). At the end nothing fails any more: every flush succeeds, and volumes can be closed.
//!
//! Two gateways may have leases (`leases.rs`), which the clients use at the same time.
//!
//! A volume may be striped over several servers (`Kind::Stripes`), each with the troubles of one. Its content is where
//! a model of its own says.
//!
//! *What may break* (`troubles.rs`, `network.rs`): connections, which stall or are lost, with bytes that arrive late,
//! also after their sender has died; the network, for a while; processes, which are stopped and continue, or die while
//! their device requests and sent bytes live on; machines, which lose power and what is in the disk's cache. A second
//! gateway takes over, or a successor while the first one is stopped; a gateway that was cut off comes back after
//! another one was served; another volume has the name of the export.
//!
//! *What may not break:* a stranger's server ends a connection only when every request of it has ended, also when its
//! process dies. Its gateway's operator starts a new gateway only then. The second gateway of another name gets the
//! volume only after the first one's death, or when the first one is cut off and loses what it had not flushed. Disks
//! do not fail.

mod clients;
mod finale;
mod gateway;
mod leases;
mod machine;
mod network;
mod offload;
mod serving;
mod setup;
mod striped;
mod tiers;
mod troubles;
mod visitor;

pub use setup::Focus;
pub use tiers::Demoted;

use engine::Event;
use engine::control::Tiers;
use engine::driver::Driver as _;
use engine::ids::{ConnId, IoId, VolumeId};
use engine::plan::Targets;
use engine::units::{MILLISECOND, Nanos, SECOND};
use engine::upstream::LinkId;

use crate::Verdict;
use crate::history::{History, OpId, Step};
use crate::queue::Queue;
use crate::rng::Rng;
use crate::trace::{Line, Sink, Trace};
use crate::workload::Places;
use crate::world::Stats;
use clients::{Client, Volume};
use machine::{Machine, Running, Use};
use network::{Chunk, Host, Network, Side, Wire};
use offload::{READERS, STORES};
use setup::{Kind, Setup};
use visitor::{PART_BYTES, VISITOR, Visitor};

/// Maximum number of events at one virtual time.
const EVENTS_AT_ONCE_MAX: u32 = 200_000;
/// When the end begins at the latest.
const BUSY_NS_MAX: Nanos = 200 * SECOND;

/// A planned event.
#[derive(Debug)]
enum Wake {
    /// Something arrives at an end of a connection.
    Deliver(Wire, Side),
    /// An end learns that its connection is lost.
    Broken(Wire, Side),
    /// An end may send more.
    Room(Wire, Side),
    /// Of the process with this number of a machine.
    Process(usize, u64, Call),
    /// A device request of the process with this number completes.
    Complete(usize, u64, IoId),
    /// A process starts.
    Start(usize),
    /// A stopped process continues.
    Continue(usize),
    /// The process with this number of a machine dies, and another one starts so much later.
    Kill(usize, u64, Nanos),
    /// A client makes requests.
    Think(usize),
    /// Something happens.
    Trouble,
    /// The right volume is there again.
    Restore,
    /// A server knows of the epoch that the cluster has issued to the second gateway.
    Issued(usize),
}

#[derive(Debug)]
enum Call {
    Pass,
    Targets(Box<Targets>),
    Closed(VolumeId, LinkId, Wire),
    Grant,
    /// The time for the last replies of a closing connection is over.
    HangUp(ConnId, Wire),
    Control,
}

/// Everything but the machines, the volumes and the clients.
struct Outside {
    now: Nanos,
    step: Step,
    queue: Queue<Wake>,
    network: Network,
    rng: Rng,
    trace: Trace,
    stats: Stats,
    tokens: u64,
    /// News for the world: volumes that were opened, sessions that began, exports that are of no use any more.
    opened: Vec<(usize, VolumeId)>,
    online: Vec<(usize, VolumeId)>,
    offline: Vec<(usize, VolumeId)>,
    /// Times that a server has refused to open an export.
    refusals: u64,
}

impl Outside {
    fn log(&mut self, line: Line) {
        self.trace.push(self.now, self.step, line);
    }
}

/// A world.
pub(crate) struct World {
    setup: Setup,
    out: Outside,
    machines: Vec<Machine>,
    volumes: Vec<Volume>,
    clients: Vec<Client>,
    ops: OpId,
    /// Clients make requests, and things happen.
    is_busy: bool,
    /// How many more things happen.
    troubles: u64,
    /// Troubles until the special one.
    special_at: u64,
    /// Times that the special one was put off, because a gateway was not served.
    put_off: u64,
    /// The first gateway is cut off.
    is_cut: bool,
    /// Since when another volume has the name of the export.
    swapped_at: Option<Nanos>,
    /// The next payload that the server receives stops in the middle, for so long.
    payload_stalls_ns: Option<Nanos>,
    visitor: Option<Visitor>,
    at_once: u32,
}

impl World {
    /// The world of a seed; `sink` sees each line of its trace.
    pub(crate) fn new(seed: u64, focus: Option<Focus>, sink: Option<Sink>) -> World {
        World::with(Setup::gateways_of_one(seed, focus), seed, sink)
    }

    /// The world of a seed in which volumes are striped over several servers.
    pub(crate) fn with_stripes(seed: u64, focus: Option<Focus>, sink: Option<Sink>) -> World {
        World::with(Setup::stripes(seed, focus), seed, sink)
    }

    /// The world of a seed in which two gateways have leases.
    pub(crate) fn with_gateways(seed: u64, focus: Option<Focus>, sink: Option<Sink>) -> World {
        World::with(Setup::gateways(seed, focus), seed, sink)
    }

    /// The world of a seed in which machines off-load writes to one another.
    pub(crate) fn with_stores(seed: u64, focus: Option<Focus>, sink: Option<Sink>) -> World {
        World::with(Setup::stores(seed, focus), seed, sink)
    }

    fn with(setup: Setup, seed: u64, sink: Option<Sink>) -> World {
        let mut rng = Rng::new(seed);
        let machines = setup.machines(&mut rng);
        let network = Network::new(setup.speed, rng.fork());
        let has_stores = setup.kind.has_stores();
        let gateway = setup.kind.gateway();
        let visitor = setup.is_visited.then(|| Visitor::new(setup.volumes[0].size));
        let visited = |at: usize| if setup.is_visited && at == 0 { PART_BYTES } else { 0 };
        let new_volume = |(at, volume): (usize, &setup::VolumeSetup), rng: &mut Rng| Volume {
            size: volume.size - visited(at),
            is_remote: volume.is_remote,
            front: if has_stores { at } else { gateway },
            history: History::of_clients(),
            places: match (Places::random(volume.size, rng), setup.tiers) {
                (_, Tiers::Demote) if volume.is_remote => Places::everywhere(volume.size - visited(at)),
                (random, _) => random,
            },
            is_fenced: true,
            losses: Vec::new(),
            unsettled: Vec::new(),
            alone_since: None,
            may_fail: (volume.is_remote || has_stores) && setup.deadline_ns.is_some(),
        };
        let volumes = setup.volumes.iter().enumerate().map(|volume| new_volume(volume, &mut rng)).collect();
        let owners = setup.volumes.iter().enumerate().flat_map(|(at, volume)| (0..volume.clients).map(move |_| at));
        let clients = owners.map(|at| Client::new(at, rng.fork())).collect();
        let is_special =
            !matches!(setup.kind, Kind::Plain | Kind::Stranger | Kind::Stores { .. } | Kind::Stripes { .. });
        let is_special = is_special || setup.lease_ms.is_some();
        let special_at = if is_special { rng.between(1, 8) } else { 0 };
        let troubles = special_at + rng.between(2, 40);
        let out = Outside {
            now: 0,
            step: 0,
            queue: Queue::default(),
            network,
            rng: rng.fork(),
            trace: Trace::new(sink),
            stats: Stats::default(),
            tokens: 0,
            opened: Vec::new(),
            online: Vec::new(),
            offline: Vec::new(),
            refusals: 0,
        };
        World {
            setup,
            out,
            machines,
            volumes,
            clients,
            ops: 0,
            is_busy: true,
            troubles,
            special_at,
            put_off: 0,
            is_cut: false,
            swapped_at: None,
            payload_stalls_ns: None,
            visitor,
            at_once: 0,
        }
    }

    pub(crate) fn trace(&self) -> &Trace {
        &self.out.trace
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats { steps: self.out.step, time_ns: self.out.now, ..self.out.stats }
    }

    /// Runs the world: first with troubles, then to its end.
    pub(crate) fn run(&mut self) -> Verdict {
        let begin = if self.setup.kind.has_stores() { self.machines.len() } else { self.setup.kind.gateway() + 1 };
        for machine in 0..begin {
            self.start(machine)?;
        }
        self.news()?;
        self.out.queue.push(20 * MILLISECOND, Wake::Trouble);
        while self.out.stats.requests < self.setup.requests && self.out.now < BUSY_NS_MAX || self.special_at > 0 {
            self.advance()?;
        }
        self.finale()
    }

    /// Processes the next event.
    fn advance(&mut self) -> Verdict {
        let timers = self.machines.iter().filter_map(Machine::next_at);
        let Some(next) = timers.chain(self.out.queue.next_at()).min() else {
            return Err("nothing will ever happen again".into());
        };
        self.at_once = if next > self.out.now { 0 } else { self.at_once + 1 };
        if self.at_once > EVENTS_AT_ONCE_MAX {
            return Err("time stands still".into());
        }
        self.out.now = self.out.now.max(next);
        for at in 0..self.machines.len() {
            let machine = &mut self.machines[at];
            while let Some((life, io, due)) = machine.disk.poll(self.out.now) {
                self.out.queue.push(due, Wake::Complete(at, life, io));
            }
            if machine.is_running() && machine.next_at().is_some_and(|due| due <= self.out.now) {
                let mut running = self.running(at);
                running.handle(Event::Timer)?;
                running.settle()?;
            }
        }
        if self.out.queue.next_at().is_some_and(|at| at <= self.out.now) {
            let (_, wake) = self.out.queue.pop().expect("just seen");
            self.wake(wake)?;
        }
        self.stall_payload();
        self.news()
    }

    fn running(&mut self, at: usize) -> Running<'_> {
        Running { machine: &mut self.machines[at], out: &mut self.out }
    }

    /// Keeps an event for a stopped process. Whether it is.
    fn is_put_off(&mut self, at: usize, wake: impl FnOnce() -> Wake) -> bool {
        let waiting = self.machines[at].stopped.as_mut();
        waiting.map(|waiting| waiting.push(wake())).is_some()
    }

    fn wake(&mut self, wake: Wake) -> Verdict {
        match wake {
            Wake::Deliver(wire, side) => return self.deliver(wire, side),
            Wake::Broken(wire, side) => {
                if let Some(at) = self.machine_of(wire, side)
                    && !self.is_put_off(at, || Wake::Broken(wire, side))
                {
                    return self.running(at).broken(wire, side);
                }
            }
            Wake::Room(wire, side) => {
                if let Some(at) = self.machine_of(wire, side)
                    && !self.is_put_off(at, || Wake::Room(wire, side))
                {
                    return self.running(at).has_room(wire);
                }
            }
            Wake::Process(at, life, call) => {
                let machine = &mut self.machines[at];
                if machine.process.is_none() || machine.life != life {
                    return Ok(());
                }
                if let Some(waiting) = &mut machine.stopped {
                    waiting.push(Wake::Process(at, life, call));
                    return Ok(());
                }
                return self.running(at).call(call);
            }
            Wake::Complete(at, life, io) => return self.complete(at, life, io),
            Wake::Start(at) => return self.start(at),
            Wake::Continue(at) => self.resume(at),
            // At the end nothing fails any more.
            Wake::Kill(at, life, away_ns) if self.is_busy && self.machines[at].life == life => {
                return self.kill(at, Some(away_ns));
            }
            Wake::Kill(..) => {}
            Wake::Think(client) => self.think(client),
            Wake::Trouble => return self.trouble(),
            Wake::Restore => return self.restore(),
            Wake::Issued(server) => self.machines[server].issued = leases::ISSUED,
        }
        Ok(())
    }

    /// The machine with a process that has this end of a connection.
    fn machine_of(&self, wire: Wire, side: Side) -> Option<usize> {
        let Host::Machine { at, life } = self.out.network.get(wire)?.hosts[side] else { return None };
        let machine = &self.machines[at];
        (machine.process.is_some() && machine.life == life).then_some(at)
    }

    fn deliver(&mut self, wire: Wire, side: Side) -> Verdict {
        let Some(connection) = self.out.network.get(wire) else { return Ok(()) };
        let (host, service) = (connection.hosts[side], connection.service);
        let Host::Machine { at, life } = host else {
            let Host::Client(client) = host else { return Ok(()) };
            if client == VISITOR {
                let what = self.out.network.deliver(self.out.now, &mut self.out.queue, wire, side);
                return what.map_or(Ok(()), |what| self.visitor_receives(wire, &what));
            }
            if client >= READERS {
                return self.reader_receives(client - READERS, wire, side);
            }
            let what = self.out.network.deliver(self.out.now, &mut self.out.queue, wire, side);
            return what.map_or(Ok(()), |what| self.client_receives(client, wire, &what));
        };
        if self.is_put_off(at, || Wake::Deliver(wire, side)) {
            return Ok(());
        }
        let out = &mut self.out;
        let Some(what) = out.network.deliver(out.now, &mut out.queue, wire, side) else { return Ok(()) };
        let machine = &self.machines[at];
        match what {
            _ if !machine.is_on && what == Chunk::Hello => out.network.knock_again(out.now, &mut out.queue, wire),
            _ if !machine.is_on => {}
            Chunk::Hello if machine.process.is_some() => return self.running(at).accept(wire, service),
            _ if machine.process.is_some() && machine.life == life => {
                return if side == 1 {
                    self.running(at).receives(wire, &what)
                } else {
                    self.up_receives(at, wire, &what)
                };
            }
            // Nobody has this connection.
            _ if !machine.unended.contains(&(wire, side)) => out.network.close(out.now, &mut out.queue, wire, side),
            _ => {}
        }
        Ok(())
    }

    fn reader_receives(&mut self, reader: usize, wire: Wire, side: Side) -> Verdict {
        let (at, store) = (reader / STORES, reader % STORES);
        if self.is_put_off(at, || Wake::Deliver(wire, side)) {
            return Ok(());
        }
        let what = self.out.network.deliver(self.out.now, &mut self.out.queue, wire, side);
        match what {
            Some(what) if self.machines[at].process.is_some() => self.running(at).reader_receives(store, wire, &what),
            _ => Ok(()),
        }
    }

    fn up_receives(&mut self, at: usize, wire: Wire, what: &Chunk) -> Verdict {
        let mut running = self.running(at);
        match running.process().uses.get(&wire).copied() {
            Some(Use::Up(volume, link)) => running.up_receives(volume, link, wire, what),
            _ => Ok(()),
        }
    }

    fn complete(&mut self, at: usize, life: u64, io: IoId) -> Verdict {
        if self.is_put_off(at, || Wake::Complete(at, life, io)) {
            return Ok(());
        }
        self.running(at).complete(life, io)?;
        // Requests of a dead process have ended: its connections end, and its volumes can be opened.
        if life != self.machines[at].disk.life() {
            self.end_connections(at);
            if self.machines[at].process.is_some() {
                for volume in 0..self.machines[at].hosted.len() {
                    self.running(at).open(volume)?;
                }
                self.running(at).settle()?;
            }
        }
        Ok(())
    }

    /// What the machines have reported.
    fn news(&mut self) -> Verdict {
        for (machine, volume) in std::mem::take(&mut self.out.opened) {
            let at = volume.0 as usize;
            if self.volumes.get(at).is_some_and(|volume| !volume.is_remote && volume.front == machine) {
                self.reached(at);
            }
        }
        for (machine, leg) in std::mem::take(&mut self.out.online) {
            let (volume, _) = self.machines[machine].leads_to(leg);
            let at = volume.0 as usize;
            if self.setup.kind.has_stores() || !self.machines[machine].is_reached(volume) {
                continue;
            }
            let excludes = matches!(self.setup.kind, Kind::Failover | Kind::Return);
            if excludes && machine != self.volumes[at].front {
                return Err(format!("machine {machine} has opened {volume:?} while another one has it"));
            }
            if machine == self.volumes[at].front {
                self.reached(at);
            }
            let is_reached = !self.volumes.iter().any(|volume| volume.is_remote && volume.is_fenced);
            if self.setup.kind == Kind::Failover && self.machines[2].life == 0 && is_reached {
                self.start(2)?;
            }
        }
        for (machine, volume) in std::mem::take(&mut self.out.offline) {
            let of = if self.setup.lease_ms.is_some() { self.machines[machine].leads_to(volume).0 } else { volume };
            let is_front = || self.volumes.get(of.0 as usize).is_none_or(|volume| machine == volume.front);
            let is_outdated = (self.setup.kind == Kind::Return || self.setup.lease_ms.is_some()) && !is_front();
            if self.swapped_at.is_none() && !is_outdated {
                return Err(format!("{volume:?} is offline"));
            }
        }
        Ok(())
    }

    /// A process has its volume: nothing of an earlier process can take effect any more.
    fn reached(&mut self, at: usize) {
        if !std::mem::take(&mut self.volumes[at].is_fenced) {
            return;
        }
        if self.setup.lease_ms.is_some() {
            self.handed_over(at);
        }
        let (volume, step) = (&mut self.volumes[at], self.out.step);
        volume.losses.drain(..).for_each(|op| volume.history.end_loss(op, step));
        volume.unsettled.drain(..).for_each(|(op, cells)| volume.history.settle(op, cells, step));
        for id in (0..self.clients.len())
            .filter(|&id| self.clients[id].volume == at && !self.clients[id].stays)
            .collect::<Vec<_>>()
        {
            self.connect(id);
        }
    }
}

impl Running<'_> {
    fn call(&mut self, call: Call) -> Verdict {
        match call {
            Call::Pass => self.pass(),
            Call::Targets(targets) => {
                self.handle(Event::Targets(targets))?;
                self.settle()
            }
            Call::Closed(volume, link, wire) => self.up_closed(volume, link, wire),
            Call::Grant => self.grant(),
            Call::HangUp(conn, wire) => {
                let conns = &self.process().conns;
                if conns.get(&conn).is_some_and(|state| state.wire == wire) {
                    self.hang_up(conn)?;
                }
                self.settle()
            }
            Call::Control => self.control(),
        }
    }

    fn broken(&mut self, wire: Wire, side: Side) -> Verdict {
        match self.process().uses.get(&wire).copied() {
            Some(Use::Up(volume, link)) => {
                self.up_lost(volume, link, wire, false)?;
                self.settle()
            }
            Some(_) if side == 1 => self.lost(wire),
            _ => Ok(()),
        }
    }

    fn has_room(&mut self, wire: Wire) -> Verdict {
        match self.process().uses.get(&wire).copied() {
            Some(Use::Up(volume, link)) => _ = self.process().to_send_up.insert((volume, link)),
            Some(Use::Conn(conn)) => _ = self.process().to_send.insert(conn),
            Some(Use::Door) | None => {}
        }
        self.settle()
    }
}
