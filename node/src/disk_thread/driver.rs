//! The loop of a disk's thread: it passes events to the engine and executes the engine's actions.
//!
//! One pass handles completions, mail and timers; then the connections with input, tenant by tenant, each within its
//! tenant's quantum of the thread's time (`turns.rs`); then it starts all sends; then one system call submits
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
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use engine::control::Report;
use engine::disk::Segment;
use engine::ids::{ConnId, TenantId, VolumeId};
use engine::nbd::wire::REQUEST_BYTES;
use engine::nbd::{Header, Kind, Parsed, parse};
use engine::plan::Evidence;
use engine::units::{Nanos, SECOND};
use engine::{Action, Event, Farewell, Outgoing, Receive, Server};

use self::mail::{Pending, Then};
use super::Options;
use super::connection::{Connection, Phase};
use super::giving::Giving;
use super::mailbox::Mailbox;
use super::turns::{Job, Turns};
use crate::frames::Frames;
use crate::incidents::{self, Incident};
use crate::reactor::{BUFFERS, Completion, Layers, Reactor};

/// If at least this many bytes of a payload are outstanding, they are received directly into their frames. For fewer
/// bytes, a copy costs less than a separate system call, and the receive buffer may bring the next requests, too.
const DIRECT_BYTES_MIN: u64 = 16 * 1024;
/// Receive buffers that paused connections may hold, out of [`BUFFERS`]. Beyond this, their bytes are moved to stashes.
const BUFFERS_HELD_MAX: usize = BUFFERS / 2;
/// How long the last replies of a connection may make no progress before it is closed.
const FINISH_PATIENCE: Nanos = 5 * SECOND;
mod mail;
#[cfg(test)]
mod tests;

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
    turns: Turns,
    /// Connections that may have something to send in this pass.
    senders: Vec<ConnId>,
    /// Connections that held a receive buffer when they had been served, and may still hold it.
    holders: Vec<ConnId>,
    /// Connections that want to receive, after the sends of this pass.
    receivers: Vec<ConnId>,
    /// Connections whose next receive is delayed, and until when.
    resting: Vec<(Nanos, ConnId)>,
    /// Connections in phase Finishing, by deadline. Entries are stale if the deadline was extended.
    finishing: VecDeque<(Nanos, ConnId)>,
    /// The tenants of the volumes that have files.
    tenants: HashMap<VolumeId, TenantId>,
    pending: HashMap<u64, Pending>,
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
        mailbox: Mailbox,
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
            turns: Turns::default(),
            senders: Vec::with_capacity(connections_max),
            holders: Vec::with_capacity(BUFFERS),
            receivers: Vec::with_capacity(connections_max),
            resting: Vec::with_capacity(connections_max),
            finishing: VecDeque::new(),
            tenants: HashMap::new(),
            pending: HashMap::new(),
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
        self.end_rests();
        self.read_mail();
        self.expire();
        self.take_turns();
        self.free_buffers();
        self.give_back();
        self.send();
        self.begin_receives();
    }

    /// How long the next turn may wait.
    fn timeout(&self) -> Option<Duration> {
        if self.mail || self.turns.tenants() > 0 || self.giving.is_some() || !self.senders.is_empty() {
            return Some(Duration::ZERO);
        }
        let finish = self.finishing.front().map(|&(deadline, _)| deadline);
        let rested = self.resting.iter().map(|&(until, _)| until).min();
        let wanted = [self.server.poll_timeout(), finish, rested].into_iter().flatten().min()?;
        Some(Duration::from_nanos(wanted.saturating_sub(self.now)))
    }

    /// Passes an event to the engine, and executes the resulting actions.
    fn handle(&mut self, event: Event<'_>) {
        self.server.handle(self.now, event);
        while let Some(action) = self.server.poll_action() {
            self.act(action);
        }
        while let Some((tenant, ns)) = self.server.take_spent() {
            self.turns.charge_to(tenant, ns);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Copy { from, to, start, len } => self.frames.copy(from, to, start, len),
            Action::Zero { frame, start, len } => self.frames.zero(frame, start, len),
            Action::Submit(io) => self.reactor.submit(io, self.server.io(io)),
            Action::Receive(conn) => {
                // Until now it did not wait for the thread, so the delay of the thread begins here.
                if let Some(connection) = &mut self.connections[conn.0 as usize] {
                    connection.since = self.now;
                }
                self.queue(conn);
            }
            Action::Send(conn) => self.queue_send(conn),
            Action::Work(tenant) => self.turns.push(tenant, Job::Work),
            Action::Close(conn, why) => self.part_with(conn, why),
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
        match completion {
            Completion::Io { io, result } => self.handle(Event::IoDone { io, since: self.seen, result }),
            Completion::Received { conn, buffer, len } => {
                let seen = self.seen;
                let connection = self.connection(conn);
                connection.receiving = false;
                connection.since = seen;
                if connection.phase == Phase::Open {
                    connection.input.hold(buffer, len);
                    self.queue(conn);
                } else {
                    self.reactor.release(buffer);
                }
            }
            Completion::Filled { conn, bytes } => {
                let connection = self.connection(conn);
                connection.receiving = false;
                if connection.phase == Phase::Open {
                    self.handle(Event::Payload { conn, bytes });
                    self.queue(conn);
                }
            }
            Completion::Sent { conn, bytes } => self.sent(conn, bytes),
            Completion::ReceiveEnded { conn } => {
                let connection = self.connection(conn);
                connection.receiving = false;
                connection.peer_ended = true;
                self.queue(conn);
            }
            Completion::SendFailed { conn } => {
                self.connection(conn).sending = false;
                self.close(conn);
            }
            Completion::Closed { conn } => {
                self.connection(conn).phase = Phase::Closed;
                self.handle(Event::Closed { conn });
            }
            Completion::Woken => self.mail = true,
        }
    }

    /// A connection whose socket is, or was, in the reactor.
    fn connection(&mut self, conn: ConnId) -> &mut Connection {
        self.connections[conn.0 as usize].as_mut().expect("completions are for connections that exist")
    }
}

/// Receiving.
impl<R: Reactor> Driver<R> {
    /// Queues the connection for its tenant's next quantum.
    fn queue(&mut self, conn: ConnId) {
        let Some(connection) = &mut self.connections[conn.0 as usize] else { return };
        if connection.phase == Phase::Open && !std::mem::replace(&mut connection.queued, true) {
            self.turns.push(connection.tenant, Job::Conn(conn));
        }
    }

    /// Serves each tenant with work for a quantum. While several tenants are active, replies are sent before the next
    /// tenant is served.
    fn take_turns(&mut self) {
        if !self.turns.begin_pass(self.now) {
            return;
        }
        if self.turns.are_shared() {
            self.send();
        }
        while let Some(tenant) = self.turns.begin_turn() {
            while let Some(job) = self.turns.pop() {
                let Job::Conn(conn) = job else {
                    self.handle(Event::Work { tenant });
                    continue;
                };
                self.connection(conn).queued = false;
                self.work(conn);
                if self.connections[conn.0 as usize].as_ref().is_some_and(|connection| connection.input.holds()) {
                    self.holders.push(conn);
                }
            }
            self.turns.end_turn();
            if self.turns.are_shared() {
                self.send();
            }
        }
    }

    /// Passes input of the connection to the engine, until either has no more or the quantum is used up.
    fn work(&mut self, conn: ConnId) {
        if let (Some(connection), Receive::Header) = (&self.connections[conn.0 as usize], self.server.receive(conn)) {
            let (headers, _) = connection.input.front(&self.reactor).as_chunks();
            self.server.look_ahead(conn, &headers[..headers.len().min(self.turns.requests_left())]);
        }
        while let Some(connection) = &mut self.connections[conn.0 as usize]
            && connection.phase == Phase::Open
        {
            let wanted = self.server.receive(conn);
            let empty = connection.input.len() == 0;
            match wanted {
                Receive::Pause if empty && connection.peer_ended => return self.close(conn),
                Receive::Pause => return,
                Receive::Closed => return connection.input.clear(&mut self.reactor),
                _ if empty => return self.receive(conn, wanted),
                _ if self.turns.is_spent() => return self.queue(conn),
                Receive::Header => match connection.input.take_header(&mut self.reactor) {
                    Some(header) => {
                        connection.brought += 1;
                        let since = connection.since;
                        self.turns.charge_request(reply_bytes(&header));
                        self.handle(Event::Header { conn, since, header: &header });
                    }
                    None => return self.receive(conn, wanted),
                },
                Receive::Payload(bytes) => {
                    let bytes = self.fill(conn, bytes);
                    self.turns.charge_bytes(bytes);
                    self.handle(Event::Payload { conn, bytes });
                }
                Receive::Discard(bytes) => {
                    let part = connection.input.front(&self.reactor).len().min(bytes as usize);
                    connection.input.consume(part, &mut self.reactor);
                    // Not copied here, but the kernel has copied these bytes to receive them.
                    self.turns.charge_bytes(part as u64);
                    self.handle(Event::Discarded { conn, bytes: part as u64 });
                }
            }
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
                if self.turns.is_spent() {
                    return self.queue(conn);
                }
                self.turns.charge_bytes(bytes);
                self.connection(conn).receiving = true;
                self.reactor.receive_into(conn, self.server.payload(conn));
            }
            _ => {
                connection.receiving = true;
                self.receivers.push(conn);
            }
        }
    }

    /// Starts the receives of this pass. Connections with enough unread replies are delayed first (`rest.rs`).
    fn begin_receives(&mut self) {
        for conn in self.receivers.drain(..) {
            let connection = self.connections[conn.0 as usize].as_mut().expect("it was worked in this pass");
            if connection.phase != Phase::Open {
                continue;
            }
            let brought = std::mem::take(&mut connection.brought);
            // While requests wait for the disk, further requests add parallelism there: they are received at once.
            let rest = connection.rest.as_mut().filter(|_| self.server.unanswered(conn) == 0);
            match rest.and_then(|rest| rest.begin(brought, || self.reactor.unread(conn))) {
                Some(length) => self.resting.push((self.now + length, conn)),
                None => self.reactor.receive(conn),
            }
        }
    }

    /// Starts the receives of connections whose delay is over.
    fn end_rests(&mut self) {
        let (now, connections, reactor) = (self.now, &mut self.connections, &mut self.reactor);
        self.resting.retain(|&(until, conn)| {
            let Some(connection) = connections[conn.0 as usize].as_mut().filter(|c| c.phase == Phase::Open) else {
                return false;
            };
            if until > now {
                return true;
            }
            if let Some(rest) = &mut connection.rest {
                rest.end(reactor.unread(conn));
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
        let open = matches!(connection.phase, Phase::Open | Phase::Finishing(_));
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
            let may_send = self.turns.may_send(connection.tenant);
            if may_send == 0 {
                connection.given = (self.now, 0);
                return true;
            }
            connection.send_queued = false;
            if !matches!(connection.phase, Phase::Open | Phase::Finishing(_)) {
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
                self.turns.sends(connection.tenant, given);
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
        self.handle(Event::Sent { conn, bytes });
        self.queue_send(conn);
        if let Some(Connection { phase: Phase::Finishing(_), .. }) = &self.connections[conn.0 as usize] {
            self.give_patience(conn);
        }
    }

    /// Closes a connection because the engine asks for it, and logs the reason.
    fn part_with(&mut self, conn: ConnId, why: Farewell) {
        let told = match why {
            Farewell::Over => None,
            Farewell::Revoked => {
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
            Farewell::Garbage => {
                Some((Incident::Garbage, "the client sent bytes that are not a request: disconnected"))
            }
            Farewell::Torn => Some((Incident::Torn, "a read failed after the first part of its reply: disconnected")),
            Farewell::Deaf => Some((
                Incident::StalledReader,
                "the client does not read its replies, and other clients need the memory that the replies occupy: \
                 disconnected",
            )),
            Farewell::Stalled => Some((
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
            self.give_patience(conn);
            self.queue_send(conn);
        }
    }

    fn give_patience(&mut self, conn: ConnId) {
        let deadline = self.now + FINISH_PATIENCE;
        self.connection(conn).phase = Phase::Finishing(deadline);
        self.finishing.push_back((deadline, conn));
    }

    /// Closes the connection at once, without sending remaining replies.
    fn close(&mut self, conn: ConnId) {
        let connection = self.connections[conn.0 as usize].as_mut().expect("an open connection is closed");
        if !matches!(connection.phase, Phase::Open | Phase::Finishing(_)) {
            return;
        }
        connection.phase = Phase::Closing;
        connection.input.clear(&mut self.reactor);
        self.resting.retain(|&(_, other)| other != conn);
        if std::mem::take(&mut connection.queued) {
            self.turns.remove(connection.tenant, conn);
        }
        self.reactor.close_socket(conn);
    }

    /// Handles timers that have expired.
    fn expire(&mut self) {
        if self.server.poll_timeout().is_some_and(|wanted| wanted <= self.now) {
            self.handle(Event::Timer);
        }
        while let Some(&(deadline, conn)) = self.finishing.front()
            && deadline <= self.now
        {
            self.finishing.pop_front();
            let connection = self.connections[conn.0 as usize].as_ref();
            if let Some(connection) = connection.filter(|connection| connection.phase == Phase::Finishing(deadline)) {
                if let Some(more) = incidents::note(Incident::StalledReader) {
                    let (disk, client) = (&self.options.name, &connection.peer);
                    tracing::warn!(disk, %client, "the client does not read its last replies: disconnected{more}");
                }
                self.close(conn);
            }
        }
    }
}

/// Bytes that will be copied for the reply.
fn reply_bytes(header: &[u8; REQUEST_BYTES]) -> u64 {
    match parse(header) {
        Parsed::Request(Header { kind: Kind::Read, len, .. }) => len.into(),
        _ => 0,
    }
}
