//! The loop of a disk's thread: it passes events to the engine and executes the engine's actions.
//!
//! One pass handles completions, mail and timers; then the connections with input and the engine's backlogs, in the
//! order of the engine's CPU scheduler ([`engine::driver`]); then it starts all sends; then one system call submits
//! everything to the kernel and waits. Copies and zeroings are executed after each event, in order, before the next
//! event. The clock is read once per pass.
//!
//! The receive path of a connection:
//!
//! ```text
//!   socket ──► receive buffer ──► header (28 bytes) ──► engine
//!                     │
//!                     └─ beginning of a payload: copied to its frames (the only copy)
//!   socket ──► frames: the remainder of a payload, if it is long
//! ```

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use engine::control::Report;
use engine::cpu::Scheduler;
use engine::disk::Segment;
use engine::driver::{self, Driver as _};
use engine::ids::{ConnId, TenantId, VolumeId};
use engine::offload::Sum;
use engine::plan::Evidence;
use engine::units::{Nanos, SECOND};
use engine::{Action, CloseReason, Event, Outgoing, Receive, Server};

use self::mail::{Pending, Then};
use super::Options;
use super::connection::{Connection, Phase};
use super::giving::Giving;
use super::mailbox::{Mailbox, Sender};
use super::uplink::{Away, Uplink};
use crate::frames::Frames;
use crate::incidents::{self, Incident};
use crate::reactor::{BUFFERS, Completion, Layers, Reactor};

/// If at least this many bytes of a payload are outstanding, they are received directly into their frames. For fewer
/// bytes, a copy costs less than a separate system call, and the receive buffer may bring the next requests, too.
const DIRECT_BYTES_MIN: u64 = 16 * 1024;
/// Receive buffers that paused connections may hold, out of [`BUFFERS`]. Beyond this, their bytes are moved to stashes.
const BUFFERS_HELD_MAX: usize = BUFFERS / 2;
/// How long the last replies of a connection may make no progress before it is closed.
const FINISH_TIMEOUT: Nanos = 5 * SECOND;
/// How long the last replies of a connection may take in all: enough for 8 MiB at 280 KiB/s.
const FINISH_MOST: Nanos = 30 * SECOND;
mod mail;
#[cfg(test)]
mod tests;
mod uplinks;

/// See the module.
pub struct Driver<R> {
    options: Options,
    server: Server,
    reactor: Layers<R>,
    frames: Frames,
    mailbox: Mailbox,
    /// To the planner.
    evidence: SyncSender<Box<Evidence>>,
    /// Whether there may be mail.
    mail: bool,
    now: Nanos,
    /// The time of arrival of the current completions.
    seen: Nanos,
    completions: Vec<Completion>,
    connections: Vec<Option<Connection>>,
    free: Vec<u32>,
    cpu: Scheduler,
    /// Connections that may have something to send in this pass.
    senders: Vec<ConnId>,
    /// Connections that held a receive buffer when they had been served, and may still hold it.
    holders: Vec<ConnId>,
    /// Connections that want to receive, after the sends of this pass.
    receivers: Vec<ConnId>,
    /// Connections whose next receive is delayed, and until when.
    delayed: Vec<(Nanos, ConnId)>,
    /// Connections in phase Finishing, by deadline. Entries are stale if the deadline was extended.
    finishing: VecDeque<(Nanos, ConnId)>,
    /// The tenants of the volumes that have files.
    tenants: HashMap<VolumeId, TenantId>,
    pending: HashMap<u64, Pending>,
    /// The volumes that are on other servers.
    away: HashMap<VolumeId, Away>,
    /// Connections to other servers. Their slots in the reactor follow those of clients.
    uplinks: Vec<Option<Uplink>>,
    /// Those that may have something to send in this pass.
    uplink_senders: Vec<ConnId>,
    /// For the answers of dialers.
    sender: Sender,
    /// Memory that is being returned to the system.
    giving: Option<Giving>,
    token: u64,
}

impl<R: Reactor> Driver<R> {
    /// A driver without volumes.
    pub fn new(
        options: Options,
        server: Server,
        frames: Frames,
        reactor: Layers<R>,
        (sender, mailbox): (Sender, Mailbox),
        evidence: SyncSender<Box<Evidence>>,
    ) -> Driver<R> {
        let (connections_max, now) = (options.limits.disk as usize, reactor.now());
        Driver {
            options,
            server,
            reactor,
            frames,
            mailbox,
            evidence,
            mail: true,
            now,
            seen: 0,
            completions: Vec::new(),
            connections: Vec::with_capacity(connections_max),
            free: Vec::with_capacity(connections_max),
            cpu: Scheduler::default(),
            senders: Vec::with_capacity(connections_max),
            holders: Vec::with_capacity(BUFFERS),
            receivers: Vec::with_capacity(connections_max),
            delayed: Vec::with_capacity(connections_max),
            finishing: VecDeque::new(),
            tenants: HashMap::new(),
            pending: HashMap::new(),
            away: HashMap::new(),
            uplinks: Vec::new(),
            uplink_senders: Vec::new(),
            sender,
            giving: None,
            token: 0,
        }
    }

    /// Runs passes until the thread is stopped.
    pub fn run(mut self) {
        while !self.mailbox.stopping() {
            self.pass();
        }
    }

    fn pass(&mut self) {
        let timeout = self.timeout();
        let mut completions = std::mem::take(&mut self.completions);
        let slept = self.reactor.turn(timeout, &mut completions).unwrap_or_else(|error| {
            panic!("disk {}: no I/O is possible any more: {error}", self.options.name);
        });
        let before = std::mem::replace(&mut self.now, self.reactor.now());
        // A completion that ended a sleep has just arrived. The others arrived during the last pass: in the middle, on
        // average.
        self.seen = if slept { self.now } else { self.now - (self.now - before) / 2 };
        // After a pass that sent something there is no sleep, so its end is the beginning of this pass.
        let connections = &self.connections;
        self.server.handed_over(if slept { before } else { self.now }, |conn| {
            // If the socket was given nothing in the last pass, or if the thread could sleep, unsent replies wait for
            // the client.
            let connection = connections[conn.0 as usize].as_ref()?;
            (!slept && connection.given.0 == before).then_some(connection.given.1)
        });
        for completion in completions.drain(..) {
            self.complete(completion);
        }
        self.completions = completions;
        self.end_delays();
        self.read_mail();
        self.expire();
        let Ok(()) = self.serve();
        self.free_buffers();
        self.give_back();
        self.send();
        self.send_uplinks();
        self.begin_receives();
    }

    /// How long the next turn may wait.
    fn timeout(&self) -> Option<Duration> {
        if self.mail || self.cpu.has_work() || self.giving.is_some() || !self.senders.is_empty() {
            return Some(Duration::ZERO);
        }
        let finish = self.finishing.front().map(|&(deadline, _)| deadline);
        let delayed = self.delayed.iter().map(|&(until, _)| until).min();
        let wanted = [self.server.poll_timeout(), finish, delayed].into_iter().flatten().min()?;
        Some(Duration::from_nanos(wanted.saturating_sub(self.now)))
    }

    /// Passes an event to the engine, and executes the resulting actions.
    fn apply(&mut self, event: Event<'_>) {
        let Ok(()) = self.handle(event);
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Copy { from, to, start, len } => self.frames.copy(from, to, start, len),
            Action::Zero { frame, start, len } => self.frames.zero(frame, start, len),
            Action::Submit(io) => self.reactor.submit(io, self.server.io(io)),
            Action::Receive(conn) => {
                // Until now it did not wait for the thread, so the delay of the thread begins here.
                if let Some(connection) = &mut self.connections[conn.0 as usize] {
                    connection.since = self.now;
                }
                self.cpu.ready(conn);
            }
            Action::Send(conn) => self.queue_send(conn),
            Action::Work(_) | Action::Sum(_) => unreachable!("the driving loop takes it"),
            Action::Close(conn, why) => self.close_after_replies(conn, why),
            Action::Upstream { volume, request } => self.ask_upstream(volume, &request),
            Action::Gone(conn) => {
                let gone = self.connections[conn.0 as usize].take();
                assert!(gone.is_some_and(|c| c.phase == Phase::Closed), "a slot is free once its socket is closed");
                self.free.push(conn.0);
            }
            Action::Retired => {
                let answer = self.giving.take().and_then(|giving| giving.answer);
                self.giving = Some(Giving::new(&self.server, &self.frames, answer));
            }
            // There is room: the engine sends one at a time.
            Action::Evidence(evidence) => drop(self.evidence.try_send(evidence)),
            Action::Report { token, report } => match self.pending.get(&token).map(|pending| pending.then) {
                Some(Then::GiveBack) if !matches!(report, Report::Refused(_)) => {
                    self.giving = Some(Giving::new(&self.server, &self.frames, Some((token, report))));
                }
                _ => self.answer(token, report),
            },
        }
    }

    fn complete(&mut self, completion: Completion) {
        if !self.uplinks.is_empty() && self.complete_uplink(completion) {
            return;
        }
        match completion {
            Completion::Io { io, result } => self.apply(Event::IoDone { io, since: self.seen, result }),
            Completion::Received { conn, buffer, len } => {
                let (seen, now) = (self.seen, self.now);
                let connection = self.connection(conn);
                connection.receiving = false;
                connection.since = seen;
                // Not earlier than it arrived: the completions were read after that.
                connection.lease.iter().for_each(|session| session.heard(now));
                if connection.phase == Phase::Open {
                    connection.input.hold(buffer, len);
                    self.cpu.ready(conn);
                } else {
                    self.reactor.release(buffer);
                }
            }
            Completion::Filled { conn, bytes } => {
                let now = self.now;
                let connection = self.connection(conn);
                connection.lease.iter().for_each(|session| session.heard(now));
                connection.receiving = false;
                if connection.phase == Phase::Open {
                    self.apply(Event::Payload { conn, bytes });
                    self.cpu.ready(conn);
                }
            }
            Completion::Sent { conn, bytes } => self.sent(conn, bytes),
            Completion::ReceiveEnded { conn } => {
                let connection = self.connection(conn);
                connection.receiving = false;
                connection.peer_ended = true;
                self.cpu.ready(conn);
            }
            Completion::SendFailed { conn } => {
                self.connection(conn).sending = false;
                self.close(conn);
            }
            Completion::Closed { conn } => {
                self.connection(conn).phase = Phase::Closed;
                self.apply(Event::Closed { conn });
            }
            Completion::Woken => self.mail = true,
        }
    }

    /// A connection whose socket is, or was, in the reactor.
    fn connection(&mut self, conn: ConnId) -> &mut Connection {
        self.connections[conn.0 as usize].as_mut().expect("completions are for connections that exist")
    }
}

/// The data thread as the driving loop sees it.
impl<R: Reactor> driver::Driver for Driver<R> {
    type Error = Infallible;

    fn engine(&mut self) -> (&mut Server, &mut Scheduler) {
        (&mut self.server, &mut self.cpu)
    }

    fn now(&self) -> Nanos {
        self.now
    }

    fn add_to_sum(&mut self, segment: Segment, sum: &mut Sum) -> Result<(), Infallible> {
        self.frames.look(segment, |bytes| sum.add(bytes));
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<(), Infallible> {
        self.carry_out(action);
        Ok(())
    }

    fn has_input(&self, conn: ConnId) -> bool {
        let connection = self.connections[conn.0 as usize].as_ref();
        connection.is_some_and(|connection| connection.phase == Phase::Open && connection.input.len() > 0)
    }

    fn take_header(&mut self, conn: ConnId, bytes: usize) -> Result<Option<driver::Arrived>, Infallible> {
        let connection = self.connections[conn.0 as usize].as_mut().expect("it has input");
        let header = connection.input.take_header(bytes, &mut self.reactor);
        connection.received += u32::from(header.is_some());
        Ok(header.map(|header| (connection.since, header)))
    }

    fn take_payload(&mut self, conn: ConnId, wanted: u64) -> Result<u64, Infallible> {
        Ok(self.fill(conn, wanted))
    }

    fn discard(&mut self, conn: ConnId, wanted: u64) -> Result<u64, Infallible> {
        let connection = self.connections[conn.0 as usize].as_mut().expect("it has input");
        let part = connection.input.front(&self.reactor).len().min(wanted as usize);
        connection.input.consume(part, &mut self.reactor);
        Ok(part as u64)
    }

    fn served(&mut self, conn: ConnId, wanted: Option<Receive>) -> Result<(), Infallible> {
        if let Some(wanted) = wanted {
            self.await_input(conn, wanted);
        }
        if self.connections[conn.0 as usize].as_ref().is_some_and(|connection| connection.input.holds()) {
            self.holders.push(conn);
        }
        Ok(())
    }

    fn look_ahead(&mut self, conn: ConnId, headers: usize) {
        if let Some(connection) = &self.connections[conn.0 as usize] {
            let available = connection.input.front(&self.reactor).chunks_exact(self.server.header_bytes(conn));
            self.server.look_ahead(conn, available.take(headers));
        }
    }

    /// While several tenants are active, replies are sent before the next tenant is served.
    fn between_quanta(&mut self, _: Option<TenantId>) -> Result<(), Infallible> {
        if self.cpu.is_shared() {
            self.send();
        }
        Ok(())
    }
}

/// Receiving.
impl<R: Reactor> Driver<R> {
    /// The engine wants nothing from the connection, or more than its input has.
    fn await_input(&mut self, conn: ConnId, wanted: Receive) {
        let Some(connection) = &mut self.connections[conn.0 as usize] else { return };
        if connection.phase != Phase::Open {
            return;
        }
        match wanted {
            Receive::Pause if connection.peer_ended && connection.input.len() == 0 => self.close(conn),
            Receive::Pause => {}
            Receive::Closed => connection.input.clear(&mut self.reactor),
            wanted => self.receive(conn, wanted),
        }
    }

    /// Copies up to `wanted` bytes of a payload from the input to its frames. Returns the bytes copied.
    fn fill(&mut self, conn: ConnId, wanted: u64) -> u64 {
        let connection = self.connections[conn.0 as usize].as_mut().expect("the caller has seen it");
        let mut filled = 0;
        for segment in self.server.payload(conn) {
            let (mut start, end) = (u64::from(segment.start), u64::from(segment.start) + u64::from(segment.len));
            while start < end {
                let front = connection.input.front(&self.reactor);
                let part = (front.len() as u64).min(end - start).min(wanted - filled);
                if part == 0 {
                    return filled;
                }
                self.frames.put(Segment::new(segment.frame, start, start + part), &front[..part as usize]);
                connection.input.consume(part as usize, &mut self.reactor);
                start += part;
                filled += part;
            }
        }
        filled
    }

    /// Starts a receive of what the engine wants.
    fn receive(&mut self, conn: ConnId, wanted: Receive) {
        let connection = self.connection(conn);
        if connection.receiving {
            return;
        }
        if connection.peer_ended {
            return self.close(conn);
        }
        match wanted {
            Receive::Payload(bytes) if bytes >= DIRECT_BYTES_MIN => {
                if self.cpu.is_spent() {
                    return self.cpu.ready(conn);
                }
                self.cpu.charge_bytes(bytes);
                self.connection(conn).receiving = true;
                self.reactor.receive_into(conn, self.server.payload(conn));
            }
            _ => {
                connection.receiving = true;
                self.receivers.push(conn);
            }
        }
    }

    /// Starts the receives of this pass. Connections with enough unread replies are delayed first
    /// ([`engine::cpu::ReceiveDelay`]).
    fn begin_receives(&mut self) {
        for conn in self.receivers.drain(..) {
            let connection = self.connections[conn.0 as usize].as_mut().expect("it was worked in this pass");
            if connection.phase != Phase::Open {
                continue;
            }
            let received = std::mem::take(&mut connection.received);
            // While requests wait for the disk, further requests add parallelism there: they are received at once.
            let delay = connection.delay.as_mut().filter(|_| self.server.unanswered(conn) == 0);
            match delay.and_then(|delay| delay.begin(received, || self.reactor.unread(conn))) {
                Some(delay_ns) => self.delayed.push((self.now + delay_ns, conn)),
                None => self.reactor.receive(conn),
            }
        }
    }

    /// Starts the receives of connections whose delay is over.
    fn end_delays(&mut self) {
        let (now, connections, reactor) = (self.now, &mut self.connections, &mut self.reactor);
        self.delayed.retain(|&(until, conn)| {
            let Some(connection) = connections[conn.0 as usize].as_mut().filter(|c| c.phase == Phase::Open) else {
                return false;
            };
            if until > now {
                return true;
            }
            if let Some(delay) = &mut connection.delay {
                delay.end(reactor.unread(conn));
            }
            reactor.receive(conn);
            false
        });
    }

    /// If paused connections hold too many receive buffers, moves their bytes to stashes.
    fn free_buffers(&mut self) {
        let connections = &mut self.connections;
        self.holders.sort_unstable();
        self.holders.dedup();
        self.holders
            .retain(|conn| connections[conn.0 as usize].as_ref().is_some_and(|connection| connection.input.holds()));
        if self.holders.len() > BUFFERS_HELD_MAX {
            for conn in self.holders.drain(..) {
                if let Some(connection) = &mut connections[conn.0 as usize] {
                    connection.input.shelve(&mut self.reactor);
                }
            }
        }
    }
}

/// Sending and closing.
impl<R: Reactor> Driver<R> {
    /// Queues the connection for sending in this pass.
    fn queue_send(&mut self, conn: ConnId) {
        let Some(connection) = &mut self.connections[conn.0 as usize] else { return };
        let open = matches!(connection.phase, Phase::Open | Phase::Finishing { .. });
        if open && !connection.sending && !std::mem::replace(&mut connection.send_queued, true) {
            self.senders.push(conn);
        }
    }

    /// Starts to send outgoing bytes, within each tenant's limit per pass. Closes finishing connections that have
    /// nothing left to send.
    fn send(&mut self) {
        let mut senders = std::mem::take(&mut self.senders);
        senders.retain(|&conn| {
            let connection = self.connections[conn.0 as usize].as_mut().filter(|connection| connection.send_queued);
            let Some(connection) = connection else { return false };
            let may_send = self.cpu.may_send(connection.tenant);
            if may_send == 0 {
                connection.given = (self.now, 0);
                return true;
            }
            connection.send_queued = false;
            if !matches!(connection.phase, Phase::Open | Phase::Finishing { .. }) {
                return false;
            }
            let mut parts = self.server.outgoing(conn).peekable();
            if parts.peek().is_some() {
                let mut left = may_send;
                let goes = |part: &Outgoing<'_>| {
                    let goes = left > 0;
                    left = left.saturating_sub(part.bytes());
                    goes
                };
                connection.sending = true;
                let given = self.reactor.send(conn, parts.take_while(goes));
                connection.given = (self.now, given);
                self.cpu.sends(connection.tenant, given);
            } else if connection.phase != Phase::Open {
                drop(parts);
                self.close(conn);
            }
            false
        });
        self.senders = senders;
    }

    fn sent(&mut self, conn: ConnId, bytes: u64) {
        self.connection(conn).sending = false;
        self.apply(Event::Sent { conn, bytes });
        self.queue_send(conn);
        if let Some(Connection { phase: Phase::Finishing { .. }, .. }) = &self.connections[conn.0 as usize] {
            self.set_timeout(conn);
        }
    }

    /// Closes a connection because the engine asks for it, and logs the reason.
    fn close_after_replies(&mut self, conn: ConnId, why: CloseReason) {
        let told = match why {
            CloseReason::Over => None,
            CloseReason::Revoked => {
                if let Some(connection) = &self.connections[conn.0 as usize] {
                    let volume = self.reactor.name_of(connection.volume);
                    let client = &connection.peer;
                    if let Some(more) = incidents::note(Incident::Revoked) {
                        let disk = &self.options.name;
                        tracing::info!(disk, volume, %client, "its access was revoked: disconnected{more}");
                    }
                }
                None
            }
            CloseReason::ProtocolError => {
                Some((Incident::Garbage, "the client sent bytes that are not a request: disconnected"))
            }
            CloseReason::Torn => {
                Some((Incident::Torn, "a read failed after the first part of its reply: disconnected"))
            }
            CloseReason::StalledReader => Some((
                Incident::StalledReader,
                "the client does not read its replies, and other clients need the memory that the replies occupy: \
                 disconnected",
            )),
            CloseReason::StalledWriter => Some((
                Incident::StalledWriter,
                "the client does not send the payload of its write, and other clients need the memory reserved \
                 for it: disconnected",
            )),
        };
        if let (Some((incident, said)), Some(connection)) = (told, &self.connections[conn.0 as usize]) {
            let volume = self.reactor.name_of(connection.volume);
            if let Some(more) = incidents::note(incident) {
                tracing::warn!(disk = self.options.name, volume, client = %connection.peer, "{said}{more}");
            }
        }
        self.finish(conn);
    }

    /// Sends the remaining replies, then closes the connection.
    fn finish(&mut self, conn: ConnId) {
        let Some(connection) = &mut self.connections[conn.0 as usize] else { return };
        if connection.phase == Phase::Open {
            connection.input.clear(&mut self.reactor);
            self.cpu.detach(conn);
            self.set_timeout(conn);
            self.queue_send(conn);
        }
    }

    fn set_timeout(&mut self, conn: ConnId) {
        let ends = match self.connection(conn).phase {
            Phase::Finishing { ends, .. } => ends,
            _ => self.now + FINISH_MOST,
        };
        let deadline = (self.now + FINISH_TIMEOUT).min(ends);
        self.connection(conn).phase = Phase::Finishing { deadline, ends };
        self.finishing.push_back((deadline, conn));
    }

    /// Closes the connection at once, without sending remaining replies.
    fn close(&mut self, conn: ConnId) {
        let connection = self.connections[conn.0 as usize].as_mut().expect("an open connection is closed");
        if !matches!(connection.phase, Phase::Open | Phase::Finishing { .. }) {
            return;
        }
        connection.phase = Phase::Closing;
        connection.input.clear(&mut self.reactor);
        self.delayed.retain(|&(_, other)| other != conn);
        self.cpu.detach(conn);
        self.reactor.close_socket(conn);
    }

    /// Handles timers that have expired.
    fn expire(&mut self) {
        if self.server.poll_timeout().is_some_and(|wanted| wanted <= self.now) {
            self.apply(Event::Timer);
        }
        while let Some(&(deadline, conn)) = self.finishing.front()
            && deadline <= self.now
        {
            self.finishing.pop_front();
            let connection = self.connections[conn.0 as usize].as_ref();
            let is_due = |connection: &&Connection| match connection.phase {
                Phase::Finishing { deadline: at, .. } => at == deadline,
                _ => false,
            };
            if let Some(connection) = connection.filter(is_due) {
                if let Some(more) = incidents::note(Incident::StalledReader) {
                    let (disk, client) = (&self.options.name, &connection.peer);
                    tracing::warn!(disk, %client, "the client does not read its last replies: disconnected{more}");
                }
                self.close(conn);
            }
        }
    }
}
