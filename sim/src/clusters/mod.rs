//! Worlds of a cluster: servers that follow a schedule, each by a clock of its own, and clients striped over them.
//!
//! ```text
//!   agreed state ── version v, begins at t ──► servers         messages: late, lost, again, in another order
//!
//!   client ─┬─► server: engine, disk, clock                    each client has a slot on all its servers at once
//!           └─► server: engine, disk, clock ◄── time service   clocks drift, are corrected, are set wrong
//!                            └── checks: which tenant the disk serves, in true time
//! ```
//!
//! Each server has a whole engine, driven by the laboratory's bench ([`crate::bench`]), and a disk with one head. Data
//! is not checked here: the worlds of [`crate::machines`] do that, with gateways.
//!
//! *What may break* (`troubles.rs`): processes die, and their requests stay in the disk; machines lose power; clients
//! die; links between a client and a server stall; a server does not hear of new schedules for seconds, or hears of
//! older ones later; clocks are set wrong, and are corrected later. Requests of some tenants take many times as long as
//! usual.
//!
//! *What is checked* (`checks.rs`), by the true time and up to the stated error of clocks:
//!
//! - While the owner of a slot wants the disk, no other tenant's request is submitted, and the disk is not idle, but
//!   for the end of the slot: the owner's next request may not fit, and the owner may pay for overruns. So an overrun
//!   shortens the next slice, and no other one.
//! - Overruns of a tenant do not add up to more than a slot.
//! - A tenant that wants its slots all the time has most of their time; a striped one at the same time on all servers.
//! - Time that an owner does not use is lent, one request at a time while the owner may come back.
//! - All of that holds for the schedule that is due: the highest version that the server knows, from its announced
//!   beginning on, or from when the server knew of it.
//!
//! *What may not break:* a process knows the time when it starts. A clock that is wrong is known to be. While it is,
//! and for three rounds after that, or after a schedule that came late, the slices of that server are not checked.

mod agreed;
mod checks;
mod clients;
mod clock;
mod disk;
mod server;
mod setup;
mod troubles;

use std::collections::BTreeMap;

use engine::ids::{IoId, VolumeId};
use engine::units::{MILLISECOND, Nanos, SECOND};

use crate::Verdict;
use crate::queue::Queue;
use crate::rng::Rng;
use crate::trace::{Line, Sink, Trace};
use crate::world::Stats;
use agreed::{Schedule, Spot};
use checks::{Had, Moment};
use clients::Client;
use clock::{Clock, ERROR_NS, TICK_NS};
use disk::Disk;
use server::Server;
use setup::Setup;

/// Maximum number of events at one virtual time.
const EVENTS_AT_ONCE_MAX: u32 = 100_000;
/// The longest time between two looks at all servers.
const LOOK_NS: Nanos = 8 * MILLISECOND;
/// When everything is answered after the last request.
const SILENCE_NS: Nanos = 60 * SECOND;

/// A planned event.
#[derive(Debug)]
enum Wake {
    /// A client makes requests.
    Think(usize),
    /// A client that is of this life begins to work, or pauses.
    Work(usize, u64, bool),
    /// The request with this number of a client arrives at a server.
    Arrive(usize, u64, usize),
    /// A server hears of a version of the schedule.
    Tell(usize, u64),
    /// A server looks at its clock.
    Tick(usize),
    /// The time service corrects a clock; whether it plans the next time.
    Correct(usize, bool),
    /// The servers agree on another schedule.
    Agree,
    /// Something breaks.
    Trouble,
    /// The process of a server starts.
    Start(usize),
    /// All servers are looked at.
    Look,
}

/// A world.
pub(crate) struct World {
    setup: Setup,
    now: Nanos,
    queue: Queue<Wake>,
    rng: Rng,
    trace: Trace,
    stats: Stats,
    /// The servers of each client.
    servers_of: Vec<Vec<usize>>,
    servers: Vec<Server>,
    clients: Vec<Client>,
    /// By version, from 1.
    schedules: Vec<Schedule>,
    /// Clients work, and things break.
    is_busy: bool,
    /// By client and beginning of the slot, what each server has shown of it.
    had: BTreeMap<(usize, Nanos), Vec<Had>>,
    at_once: u32,
}

impl World {
    /// The world of a seed; `sink` sees each line of its trace.
    pub(crate) fn new(seed: u64, sink: Option<Sink>) -> World {
        let setup = Setup::random(seed);
        let mut rng = Rng::new(seed);
        let servers_of: Vec<Vec<usize>> = setup.clients.iter().map(|client| client.servers.clone()).collect();
        let server = |at: usize| {
            let guests: Vec<usize> = (0..servers_of.len()).filter(|&client| servers_of[client].contains(&at)).collect();
            let slow = guests.iter().map(|&client| setup.clients[client].slow).collect();
            let disk = Disk::new(setup.service_ns[at], slow, setup.slow_ns, rng.fork());
            Server::new(guests, disk, Clock::new(&mut rng))
        };
        let servers = (0..setup.servers).map(server).collect();
        let clients = setup.clients.iter().map(|client| Client::new(client.clone(), rng.fork())).collect();
        World {
            setup,
            now: 0,
            queue: Queue::default(),
            rng,
            trace: Trace::new(sink),
            stats: Stats::default(),
            servers_of,
            servers,
            clients,
            schedules: Vec::new(),
            is_busy: true,
            had: BTreeMap::new(),
            at_once: 0,
        }
    }

    pub(crate) fn trace(&self) -> &Trace {
        &self.trace
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats { time_ns: self.now, ..self.stats }
    }

    fn note(&mut self, what: String) {
        self.trace.push(self.now, self.stats.steps, Line::Note(what));
    }

    /// Runs the world: first with troubles, then until everything is answered.
    pub(crate) fn run(&mut self) -> Verdict {
        for server in 0..self.servers.len() {
            self.start(server)?;
            self.queue.push(self.rng.below(TICK_NS), Wake::Tick(server));
            self.queue.push(self.rng.between(50, 1000) * MILLISECOND, Wake::Correct(server, true));
        }
        self.agree();
        for client in 0..self.clients.len() {
            self.queue.push(0, Wake::Work(client, 0, true));
        }
        self.queue.push(self.rng.between(self.setup.trouble_ns / 4, self.setup.trouble_ns), Wake::Trouble);
        self.queue.push(LOOK_NS, Wake::Look);
        while self.now < self.setup.lasts_ns {
            self.advance()?;
        }
        self.is_busy = false;
        while self.clients.iter().any(|client| !client.pending.is_empty()) {
            if self.now > self.setup.lasts_ns + SILENCE_NS {
                return Err("requests are not answered".into());
            }
            self.advance()?;
        }
        self.servers
            .iter()
            .enumerate()
            .try_for_each(|(at, server)| server.watch.over_all().map_err(|what| format!("server {at}: {what}")))
    }

    /// Processes the next event.
    fn advance(&mut self) -> Verdict {
        let of_servers = self.servers.iter().enumerate().filter_map(|(at, server)| Some((server.due_at()?, at))).min();
        let planned = self.queue.next_at();
        let Some(next) = of_servers.map(|(at, _)| at).into_iter().chain(planned).min() else {
            return Err("nothing will ever happen again".into());
        };
        self.at_once = if next > self.now { 0 } else { self.at_once + 1 };
        if self.at_once > EVENTS_AT_ONCE_MAX {
            return Err("time stands still".into());
        }
        self.now = self.now.max(next);
        self.stats.steps += 1;
        if planned.is_some_and(|at| at <= self.now) {
            let (_, wake) = self.queue.pop().expect("just seen");
            return self.wake(wake);
        }
        match of_servers {
            Some((_, at)) => self.step(at),
            None => Ok(()),
        }
    }

    fn wake(&mut self, wake: Wake) -> Verdict {
        match wake {
            Wake::Think(client) => self.think(client),
            Wake::Work(client, life, works) => self.work(client, life, works),
            Wake::Arrive(client, request, server) => return self.arrive(client, request, server),
            Wake::Tell(server, version) => return self.tell(server, version),
            Wake::Tick(server) => {
                self.queue.push(self.now + TICK_NS, Wake::Tick(server));
                self.servers[server].tell_clock(self.now)?;
                return self.step(server);
            }
            Wake::Correct(server, again) => return self.correct(server, again),
            Wake::Agree if self.is_busy => self.agree(),
            Wake::Trouble if self.is_busy => return self.trouble(),
            Wake::Agree | Wake::Trouble => {}
            Wake::Start(server) => return self.start(server),
            Wake::Look => {
                self.queue.push(self.now + self.rng.between(LOOK_NS / 4, LOOK_NS), Wake::Look);
                return (0..self.servers.len()).try_for_each(|server| self.look(server));
            }
        }
        Ok(())
    }

    /// Where in its schedule a server is, the length of the round, and the client whose slot follows.
    fn spot(&self, at: usize) -> (Option<Spot>, Nanos, Option<usize>) {
        let server = &self.servers[at];
        let due = server.due().and_then(|due| due.at(self.now));
        let Some((version, from, until)) = due else { return (None, 0, None) };
        let schedule = &self.schedules[version as usize - 1];
        let spot = schedule.at(self.now, &server.guests);
        let is_certain = from + ERROR_NS <= self.now && self.now + ERROR_NS <= until;
        let next = schedule.at(spot.end, &server.guests).owner.filter(|_| spot.end <= until);
        (is_certain.then(|| Spot { end: spot.end.min(until), ..spot }), schedule.round_ns, next)
    }

    /// Lets a server do what is due, and looks at what its disk was given.
    fn step(&mut self, at: usize) -> Verdict {
        let (spot, round_ns, next) = self.spot(at);
        let done = self.servers[at].step(self.now);
        let Server { guests, disk, clock, watch, .. } = &mut self.servers[at];
        let moment = Moment { now: self.now, spot, round_ns, next, is_good: clock.is_good, guests };
        for given in disk.given() {
            let (volume, from, to) = (VolumeId(given.guest as u32), given.from, given.to);
            let line = Line::Submit(IoId(0), volume, String::new(), from, to);
            self.trace.push(self.now, self.stats.steps, Line::On(at as u8, Box::new(line)));
            self.stats.device_requests += 1;
            let verdict = watch.given(&moment, &given, disk.in_device(given.guest));
            verdict.map_err(|what| format!("server {at}: {what}"))?;
        }
        for done in done {
            self.answered(at, done.volume, done.request.id);
        }
        self.count(at);
        Ok(())
    }

    /// Which tenants want the disk of a server.
    fn count(&mut self, at: usize) {
        let server = &mut self.servers[at];
        let of = (0..server.guests.len()).map(|guest| (server.waiting(guest), server.disk.in_device(guest)));
        let counts: Vec<_> = of.collect();
        server.watch.count(self.now, counts.into_iter());
    }

    fn look(&mut self, at: usize) -> Verdict {
        let (spot, round_ns, next) = self.spot(at);
        let Server { guests, disk, clock, watch, .. } = &mut self.servers[at];
        let moment = Moment { now: self.now, spot, round_ns, next, is_good: clock.is_good, guests };
        let had = watch.look(&moment, disk.idle_since(self.now)).map_err(|what| format!("server {at}: {what}"))?;
        had.map_or(Ok(()), |had| self.had(had))
    }

    /// The slices of a striped tenant in a slot have a time in common on all servers.
    fn had(&mut self, had: Had) -> Verdict {
        let Had { client, spot, .. } = had;
        let count = self.servers_of[client].len();
        self.had.retain(|&(_, start), _| start + 10 * SECOND > had.spot.start);
        let all = self.had.entry((client, spot.start)).or_default();
        all.push(had);
        if all.len() < count {
            return Ok(());
        }
        let from = all.iter().map(|had| had.from).max().unwrap_or(0);
        let to = all.iter().map(|had| had.to).min().unwrap_or(0);
        let loses_ns = all.iter().map(|had| had.loses_ns).max().unwrap_or(0);
        // One server may know of a change of the schedule that ends the slot, and another one not.
        let end = all.iter().map(|had| had.spot.end).min().unwrap_or(0);
        if to.saturating_sub(from) + loses_ns + spot.start < end {
            return Err(format!("client {client} has its slices at different times in {spot:?}: {all:?}"));
        }
        Ok(())
    }
}
