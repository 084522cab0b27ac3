//! The driving loop of the contract ([`crate::event`]), the same in every program that drives the engine: the server's
//! data thread, the simulated worlds, the laboratory's bench, the fuzzer and the engine's own tests.
//!
//! ```text
//!              Driver::handle(event)                             Driver::serve(), once a pass
//!   event ──► Server ──► actions ──► Driver::act       Scheduler: tenant, job ──► backlog: Event::Work
//!                │                                         ▲                 └──► connection: while it has input, and
//!                └─ backlogs, CPU time spent ──► Scheduler ┘                      the tenant's quantum is not used up
//! ```
//!
//! A program implements the required methods: where bytes come from, and what actions do. The loop allocates nothing,
//! and is compiled for each program, so none of its calls is dynamic.

use crate::control::Command;
use crate::cpu::{Job, Scheduler};
use crate::disk::Segment;
use crate::event::{Action, Event, Receive};
use crate::ids::{ConnId, IoId, TenantId};
use crate::nbd::{Header, Kind, Parsed, RawHeader, parse};
use crate::offload::Sum;
use crate::server::Server;
use crate::units::Nanos;

/// A request header, and when it could have been read (`since` of [`Event::Header`]).
pub type Arrived = (Nanos, RawHeader);

/// A program that drives an engine.
pub trait Driver {
    /// Why the run ends early; `Infallible` for a program that never does.
    type Error;

    /// The engine, and the scheduler of the thread that it runs on.
    fn engine(&mut self) -> (&mut Server, &mut Scheduler);

    /// The time of the present pass.
    fn now(&self) -> Nanos;

    /// Passes the bytes of a segment to `sum`.
    fn add_to_sum(&mut self, segment: Segment, sum: &mut Sum) -> Result<(), Self::Error>;

    /// Carries out an action. [`Action::Work`] and [`Action::Sum`] do not come here.
    fn act(&mut self, action: Action) -> Result<(), Self::Error>;

    /// Whether bytes of this connection are available. `false` for a connection that is being closed.
    fn has_input(&self, conn: ConnId) -> bool;

    /// Takes a header of `bytes` bytes from the input; `None` if only a part of it is available.
    fn take_header(&mut self, conn: ConnId, bytes: usize) -> Result<Option<Arrived>, Self::Error>;

    /// Takes at most `wanted` bytes, and at least one, from the input to the segments of [`Server::payload`]; returns
    /// their number.
    fn take_payload(&mut self, conn: ConnId, wanted: u64) -> Result<u64, Self::Error>;

    /// Takes at most `wanted` bytes, and at least one, from the input and drops them; returns their number.
    fn discard(&mut self, conn: ConnId, wanted: u64) -> Result<u64, Self::Error>;

    /// The connection was served: the engine wants more than its input has, or nothing ([`Receive::Pause`],
    /// [`Receive::Closed`]). The program calls [`Scheduler::ready`] when that changes. `None`: the quantum is used up,
    /// and the connection is queued again.
    fn served(&mut self, conn: ConnId, wanted: Option<Receive>) -> Result<(), Self::Error>;

    /// Called before an event is handled.
    fn before(&mut self, _event: &Event<'_>) {}

    /// Called after an event was handled and its actions were carried out.
    fn after(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    /// The loop is about to take at most so many headers from this connection.
    fn look_ahead(&mut self, _conn: ConnId, _headers: usize) {}

    /// Called at the beginning of a pass, then after each tenant's quantum with that tenant: a chance to send replies
    /// before the next tenant is served.
    fn between_quanta(&mut self, _served: Option<TenantId>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// A tenant has caused work beyond the headers and bytes of its requests.
    fn charge(&mut self, tenant: TenantId, ns: Nanos) {
        self.engine().1.charge_to(tenant, ns);
    }

    /// Passes an event to the engine, and carries out the resulting actions.
    fn handle(&mut self, event: Event<'_>) -> Result<(), Self::Error> {
        self.before(&event);
        let shares_change =
            matches!(event, Event::Control { command: Command::SetTenant(..) | Command::DropTenant(_), .. });
        let now = self.now();
        self.engine().0.handle(now, event);
        while let Some(action) = self.engine().0.poll_action() {
            match action {
                Action::Work(tenant) => self.engine().1.backlog(tenant),
                Action::Sum(io) => self.sum(io)?,
                action => self.act(action)?,
            }
        }
        while let Some((tenant, ns)) = self.engine().0.take_spent() {
            self.charge(tenant, ns);
        }
        if shares_change {
            let (server, cpu) = self.engine();
            cpu.set_weights(server.weights());
        }
        self.after()
    }

    /// Computes the checksum of a request's data.
    fn sum(&mut self, io: IoId) -> Result<(), Self::Error> {
        let (now, mut sum) = (self.now(), Sum::default());
        for at in 0..self.engine().0.io(io).segments.len() {
            let segment = self.engine().0.io(io).segments[at];
            self.add_to_sum(segment, &mut sum)?;
        }
        let event = Event::Summed { io, sum: sum.value() };
        self.before(&event);
        self.engine().0.handle(now, event);
        Ok(())
    }

    /// One pass: serves each tenant with work for a quantum.
    fn serve(&mut self) -> Result<(), Self::Error> {
        let now = self.now();
        if !self.engine().1.begin_pass(now) {
            return Ok(());
        }
        self.between_quanta(None)?;
        while let Some(tenant) = self.engine().1.next_tenant() {
            while let Some(job) = self.engine().1.next_job() {
                match job {
                    Job::Backlog(tenant) => self.handle(Event::Work { tenant })?,
                    Job::Connection(conn) => self.serve_connection(conn)?,
                }
            }
            self.engine().1.end_quantum();
            self.between_quanta(Some(tenant))?;
        }
        Ok(())
    }

    /// Passes input of a connection to the engine, until either has no more or the tenant's quantum is used up.
    fn serve_connection(&mut self, conn: ConnId) -> Result<(), Self::Error> {
        let (server, cpu) = self.engine();
        if server.receive(conn) == Receive::Header {
            let headers = cpu.remaining_requests();
            self.look_ahead(conn, headers);
        }
        loop {
            let available = self.has_input(conn);
            let (server, cpu) = self.engine();
            let wanted = server.receive(conn);
            if !available || matches!(wanted, Receive::Pause | Receive::Closed) {
                return self.served(conn, Some(wanted));
            }
            if cpu.is_spent() {
                cpu.ready(conn);
                return self.served(conn, None);
            }
            match wanted {
                Receive::Header => {
                    let bytes = server.header_bytes(conn);
                    let Some((since, header)) = self.take_header(conn, bytes)? else {
                        return self.served(conn, Some(wanted));
                    };
                    self.engine().1.charge_request(reply_bytes(&header));
                    self.handle(Event::Header { conn, since, header: &header })?;
                }
                Receive::Payload(most) => {
                    let bytes = self.take_payload(conn, most)?;
                    self.engine().1.charge_bytes(bytes);
                    self.handle(Event::Payload { conn, bytes })?;
                }
                Receive::Discard(most) => {
                    let bytes = self.discard(conn, most)?;
                    // Not copied here, but they were received.
                    self.engine().1.charge_bytes(bytes);
                    self.handle(Event::Discarded { conn, bytes })?;
                }
                Receive::Pause | Receive::Closed => unreachable!("handled above"),
            }
        }
    }
}

/// Bytes that will be copied for the reply.
fn reply_bytes(header: &[u8]) -> u64 {
    match parse(header) {
        Parsed::Request(Header { kind: Kind::Read, len, .. }) => len,
        _ => 0,
    }
}
