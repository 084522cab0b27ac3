//! The time of the server's thread: each tenant that has work gets its share of it.
//!
//! ```text
//!   T has work       ├──────────────────────────────────────────┤
//!   quanta            u u u T u u u T u u u T u u u T u u u T     T's part of them ≥ its share, less a constant
//! ```
//!
//! The engine's CPU scheduler decides the order; this checker does not look at its quanta or deficits. It adds up the
//! estimated time of what the engine was given, by tenant.

use engine::control::Command;
use engine::cpu::Scheduler;
use engine::disk::{Io, Op, Segment};
use engine::driver::{Arrived, Driver};
use engine::ids::{ConnId, TenantId};
use engine::nbd::{Header, Kind, Parsed, parse};
use engine::offload::Sum;
use engine::units::Nanos;
use engine::{Action, EVENT_UNITS_MAX, Event, Receive, Server};

use crate::Verdict;
use crate::link::{Link, State};
use crate::trace::Line;
use crate::world::{LinkId, Wake, World};

/// The time of a request, and the bytes copied in a nanosecond: the estimates of the scheduler.
const REQUEST_NS: Nanos = 3_000;
const BYTES_PER_NS: Nanos = 10;
/// The scheduler remembers no larger deficit, so a larger request is not charged as a whole.
const DEFICIT_NS_MAX: Nanos = 1_000_000;
/// The part of its share that a tenant gets at least, in percent. The remainder is time that the scheduler charges and
/// the checker does not see: connections that have nothing after all.
const KEPT_PERCENT: u128 = 85;
/// A pass that nothing but the budget for replies waits for.
const IDLE_PASS_NS: Nanos = 1_000;

#[derive(Clone, Copy, Default, Debug)]
struct Use {
    /// Its share in any unit.
    weight: u64,
    /// The time used so far.
    used_ns: Nanos,
    /// Since when it has had work: the time of all quanta then, and of its own.
    waits: Option<(Nanos, Nanos)>,
}

/// Which tenant used the thread, and which has work.
#[derive(Default, Debug)]
pub(crate) struct ThreadTime {
    tenants: Vec<Use>,
    /// Time of all quanta.
    quanta_ns: Nanos,
    /// The tenant that is being served.
    serving: bool,
    weights_changed: bool,
    /// The next pass is planned.
    pass_planned: bool,
    /// When the present pass ends.
    free_at: Nanos,
}

impl ThreadTime {
    fn spend(&mut self, tenant: TenantId, ns: Nanos) {
        let at = tenant.0 as usize;
        if self.tenants.len() <= at {
            self.tenants.resize(at + 1, Use::default());
        }
        let ns = ns.min(DEFICIT_NS_MAX);
        self.tenants[at].used_ns += ns;
        if self.serving {
            self.quanta_ns += ns;
        }
    }

    fn set_weights(&mut self, weights: impl Iterator<Item = (TenantId, u64)>) {
        self.tenants.iter_mut().for_each(|tenant| (tenant.weight, tenant.waits) = (0, None));
        for (tenant, weight) in weights {
            self.spend(tenant, 0);
            self.tenants[tenant.0 as usize].weight = weight.max(1);
        }
        self.weights_changed = false;
    }

    /// Between quanta: every tenant that has had work since some moment got its share of the quanta since then.
    fn check(&mut self, has_work: impl Fn(TenantId) -> bool) -> Verdict {
        let weights: u128 = self.tenants.iter().map(|tenant| u128::from(tenant.weight)).sum();
        // A deficit from before, and what each other tenant may exceed its last quantum by.
        let slack_ns = DEFICIT_NS_MAX * self.tenants.len() as Nanos;
        for (at, tenant) in self.tenants.iter_mut().enumerate() {
            let (quanta_ns, used_ns) = (self.quanta_ns, tenant.used_ns);
            if !has_work(TenantId(at as u32)) {
                tenant.waits = None;
                continue;
            }
            let (quanta_before, used_before) = *tenant.waits.get_or_insert((quanta_ns, used_ns));
            let (all, own) = (quanta_ns - quanta_before, used_ns - used_before);
            let due = u128::from(all) * u128::from(tenant.weight) * KEPT_PERCENT / (weights.max(1) * 100);
            if u128::from(own + slack_ns) < due {
                return Err(format!("tenant {at} has had work for {all} ns of quanta, and got {own}, not {due}"));
            }
        }
        Ok(())
    }
}

/// The world as the driving loop sees it.
impl Driver for World {
    type Error = String;

    fn engine(&mut self) -> (&mut Server, &mut Scheduler) {
        (&mut self.server, &mut self.cpu)
    }

    fn now(&self) -> Nanos {
        self.now
    }

    fn add_to_sum(&mut self, segment: Segment, sum: &mut Sum) -> Verdict {
        sum.add(self.frames.read(segment.frame, segment.start, segment.len)?);
        Ok(())
    }

    fn before(&mut self, event: &Event<'_>) {
        self.step += 1;
        let taken = match event {
            Event::Header { conn, .. } => self.link(*conn).and_then(|link| link.taken),
            _ => None,
        };
        self.trace.push(self.now, self.step, Line::of(event, taken));
        self.count_thread_time(event);
    }

    fn act(&mut self, action: Action) -> Verdict {
        match action {
            Action::Submit(_) | Action::Send(_) | Action::Receive(_) if self.in_pass && self.setup.late_ns > 0 => {
                if let Action::Submit(io) = action
                    && let Io { op: Op::Write { .. }, segments, .. } = self.server.io(io)
                {
                    self.frames.hold_for_write(segments);
                }
                self.batch.push(action);
                Ok(())
            }
            action => self.carry_out(action),
        }
    }

    fn after(&mut self) -> Verdict {
        let units = self.server.units_of_last_event();
        if units > EVENT_UNITS_MAX {
            return Err(format!("one event takes {units} units of work, and others wait"));
        }
        self.watch_outgoing()?;
        self.give_back_frames()?;
        self.plan_pass();
        if self.in_pass { Ok(()) } else { self.end_pass() }
    }

    fn charge(&mut self, tenant: TenantId, ns: Nanos) {
        self.thread.spend(tenant, ns);
        self.cpu.charge_to(tenant, ns);
    }

    fn between_quanta(&mut self, _: Option<TenantId>) -> Verdict {
        self.check_thread_time()
    }

    fn has_input(&self, conn: ConnId) -> bool {
        self.link(conn).is_some_and(|link| link.has_client() && link.arrived > 0)
    }

    fn take_header(&mut self, conn: ConnId, bytes: usize) -> Result<Option<Arrived>, String> {
        self.next_header(conn, bytes)
    }

    fn take_payload(&mut self, conn: ConnId, wanted: u64) -> Result<u64, String> {
        self.payload(conn, wanted)
    }

    fn discard(&mut self, conn: ConnId, wanted: u64) -> Result<u64, String> {
        self.discarded(conn, wanted)
    }

    fn served(&mut self, conn: ConnId, wanted: Option<Receive>) -> Verdict {
        self.on_served(conn, wanted)
    }
}

impl World {
    fn link(&self, conn: ConnId) -> Option<&Link> {
        self.by_conn.get(conn.0 as usize).copied().flatten().and_then(|id| self.links.get(&id))
    }

    /// A connection may have input.
    pub(crate) fn ready(&mut self, conn: ConnId) {
        self.cpu.ready(conn);
        self.plan_pass();
    }

    /// Plans the thread's next pass if there is work for it.
    pub(crate) fn plan_pass(&mut self) {
        if self.cpu.has_work() && !std::mem::replace(&mut self.thread.pass_planned, true) {
            self.queue.push(self.now.max(self.thread.free_at), Wake::Serve);
        }
    }

    /// Replies wait for the next pass.
    pub(crate) fn plan_idle_pass(&mut self) {
        if !std::mem::replace(&mut self.thread.pass_planned, true) {
            self.queue.push(self.now.max(self.thread.free_at) + IDLE_PASS_NS, Wake::Serve);
        }
    }

    /// A pass of the thread, which takes the estimated time.
    pub(crate) fn pass(&mut self) -> Verdict {
        let before_ns = self.thread.quanta_ns;
        (self.thread.pass_planned, self.thread.serving) = (false, true);
        self.serve()?;
        self.thread.serving = false;
        self.thread.free_at = self.now + self.thread.quanta_ns - before_ns;
        self.plan_pass();
        Ok(())
    }

    /// Adds up the time of an event's header or payload.
    fn count_thread_time(&mut self, event: &Event<'_>) {
        match *event {
            Event::Header { conn, header, .. } => {
                let reply_bytes = match parse(header) {
                    Parsed::Request(Header { kind: Kind::Read, len, .. }) => len,
                    _ => 0,
                };
                self.spend_on(conn, REQUEST_NS + reply_bytes / BYTES_PER_NS);
            }
            Event::Payload { conn, bytes } | Event::Discarded { conn, bytes } => {
                self.spend_on(conn, bytes / BYTES_PER_NS);
            }
            Event::Control { command: Command::SetTenant(..) | Command::DropTenant(_), .. } => {
                self.thread.weights_changed = true;
            }
            _ => {}
        }
    }

    fn spend_on(&mut self, conn: ConnId, ns: Nanos) {
        if let Some(volume) = self.link(conn).map(|link| link.volume) {
            self.thread.spend(self.tenant_of(volume), ns);
        }
    }

    fn check_thread_time(&mut self) -> Verdict {
        if self.thread.weights_changed {
            self.thread.set_weights(self.server.weights());
        }
        self.thread.check(|tenant| self.cpu.is_waiting(tenant))
    }

    /// The server wants to receive more from a client. While the client has enough unread replies, what arrives is left
    /// in the socket for a while.
    pub(crate) fn delay_receive(&mut self, id: LinkId, wanted: Receive) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let received = std::mem::take(&mut link.received);
        let answered = self.server.unanswered(link.conn) == 0;
        if wanted != Receive::Header || !link.is_local() || !answered || link.delayed {
            return;
        }
        if let Some(delay_ns) = link.delay.begin(received, || link.buffered as u32) {
            link.delayed = true;
            self.queue.push(self.now + delay_ns, Wake::Delayed(id));
        }
    }

    /// The delay of a receive is over.
    pub(crate) fn end_delay(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.delay.end(link.buffered as u32);
        link.delayed = false;
        let conn = link.conn;
        if link.state != State::Closed {
            self.ready(conn);
        }
    }
}

impl Link {
    /// Whether its socket says how much its client has not read; that of a remote client does not.
    fn is_local(&self) -> bool {
        self.conn.0.is_multiple_of(2)
    }
}
