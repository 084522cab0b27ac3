//! The server of one disk: the machine that its driver sees. It passes events down the layers, and what the layers want
//! up again; it contains no algorithm.
//!
//! ```text
//!   Header, Payload, Sent, Closed ─► front ─► volumes ─► cache, route, disk
//!                                      ▲         │
//!   Send, Receive, Close ◄─────────────┴─────────┤ effects, in order
//!   Copy, Zero, Submit, Work ◄───────────────────┘
//! ```
//!
//! Each event is applied; then [`Server::settle`] restores the invariants: every request that can continue does.

mod commands;
mod planning;
mod snapshots;

use std::collections::VecDeque;

use crate::config::Config;
use crate::control::Report;
use crate::disk::{Io, Segment};
use crate::event::{Action, Event, Outgoing, Receive};
use crate::front::{self, Front};
use crate::ids::{ConnId, IoId, TenantId, VolumeId};
use crate::nbd::{Form, Header, Kind, Parsed, parse};
use crate::units::{BLOCK, Nanos};
use crate::upstream::{LinkId, Upstream};
use crate::volume::{Effect, Timer, UNIT_NS, Volumes};
use planning::Planning;
use snapshots::Snapshots;

/// The server of one disk.
#[derive(Debug)]
pub struct Server {
    pub(crate) front: Front,
    pub(crate) volumes: Volumes,
    planning: Planning,
    /// Commands for a snapshot.
    snapshots: Snapshots,
    pub(crate) actions: VecDeque<Action>,
    /// `SetBudget` waits for frames to become free: its token and its deadline.
    pub(crate) budget_token: Option<(u64, Nanos)>,
    /// `SetBudget` was answered with `Held`, and frames above the limit are still in use.
    pub(crate) held: bool,
}

impl Server {
    /// A server without volumes.
    pub fn new(config: Config) -> Server {
        Server {
            front: Front::new(),
            volumes: Volumes::new(config),
            planning: Planning::default(),
            snapshots: Snapshots::default(),
            actions: VecDeque::new(),
            budget_token: None,
            held: false,
        }
    }

    /// Handles an event. Time never goes backwards: an earlier `now` counts as the present one.
    pub fn handle(&mut self, now: Nanos, event: Event<'_>) {
        let Server { front, volumes, .. } = self;
        if now > volumes.now {
            front.leave_at_once(volumes);
            volumes.now = now;
        }
        volumes.work.begin_step();
        let is_news = matches!(event, Event::Header { .. } | Event::IoDone { .. });
        let is_timer = matches!(event, Event::Timer);
        match event {
            Event::Attach { conn, volume, session } => front.attach(volumes, conn, volume, session),
            Event::Header { conn, since, header } => front.header(volumes, conn, since, header),
            Event::Payload { conn, bytes } => volumes.filled(conn, bytes),
            Event::Discarded { conn, bytes } => volumes.discarded(conn, bytes),
            Event::Sent { conn, bytes } => front.sent(volumes, conn, bytes),
            Event::Closed { conn } => {
                if !front.closed(volumes, conn) {
                    self.actions.push_back(Action::Gone(conn));
                }
            }
            Event::IoDone { io, since, result } => volumes.io_done(io, since, result),
            Event::Control { token, command } => self.command(token, command),
            Event::Work { tenant } => volumes.work_on(tenant),
            Event::Upstream { volume, event } => volumes.upstream_event(volume, event),
            Event::Summed { io, sum } => volumes.summed(io, sum),
            Event::Targets(targets) => self.take_targets(&targets),
            Event::Timer => self.timer_rang(),
        }
        // One of them, so that a pass of the thread takes less long.
        if !self.gather(is_news, is_timer) && is_timer {
            self.answer_snapshots();
        }
        self.settle();
    }

    /// The next action for the driver.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The time at which to send `Event::Timer`.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let unfinished = (self.planning.is_gathering() || self.snapshots.are_wanted()).then_some(self.volumes.now);
        [self.volumes.poll_timeout(), unfinished].into_iter().flatten().min()
    }

    /// The next bytes to read from `conn`.
    pub fn receive(&self, conn: ConnId) -> Receive {
        self.front.receive(&self.volumes, conn)
    }

    /// Bytes of each request header of `conn`.
    pub fn header_bytes(&self, conn: ConnId) -> usize {
        self.volumes.clients.get(conn).map_or(Form::Simple, |client| client.session.form).request_bytes()
    }

    /// The places of the remaining payload of the current piece, in order.
    pub fn payload(&self, conn: ConnId) -> impl Iterator<Item = Segment> + '_ {
        self.volumes.payload(conn)
    }

    /// The outgoing bytes of a connection, in order.
    pub fn outgoing(&self, conn: ConnId) -> impl Iterator<Item = Outgoing<'_>> + '_ {
        self.front.outgoing(conn)
    }

    /// Outstanding requests of `conn`.
    pub fn unanswered(&self, conn: ConnId) -> u32 {
        self.volumes.clients.get(conn).map_or(0, |client| client.in_flight)
    }

    /// The replies made so far were passed to the sockets at `at`, as far as the sockets accept bytes. If the driver
    /// calls this at all, it does so before the next event. `given(conn)` is the number of outgoing bytes that were
    /// passed if the driver stopped there by itself: the remaining bytes wait for the thread, and so do the replies
    /// that end in them.
    pub fn handed_over(&mut self, at: Nanos, given: impl Fn(ConnId) -> Option<u64>) {
        self.front.handed_over(&mut self.volumes, at, given);
    }

    /// A hint about the next headers: touches the table entries that their reads will need, so that they are in the
    /// processor's cache. The three cache misses of a request would otherwise occur one after the other; here those of
    /// all requests overlap. Changes no state. Ends at the first header that is no read, because a payload may follow
    /// it.
    pub fn look_ahead<'a>(&self, conn: ConnId, headers: impl Iterator<Item = &'a [u8]>) {
        let Some(client) = self.volumes.clients.get(conn) else { return };
        for header in headers {
            let Parsed::Request(Header { kind: Kind::Read, offset, .. }) = parse(header) else { return };
            // Otherwise the compiler may remove the loads.
            std::hint::black_box(self.volumes.cache.glance(client.volume, offset / BLOCK));
        }
    }

    /// The outgoing bytes of a connection to the upstream of a volume, in order.
    pub fn upstream_outgoing(&self, volume: VolumeId, link: LinkId) -> impl Iterator<Item = Outgoing<'_>> + '_ {
        self.volumes.route.upstream(volume).into_iter().flat_map(move |upstream| upstream.outgoing(link))
    }

    /// Where the next bytes of such a connection belong, in order; nothing if [`Event::Upstream`] takes them, with
    /// [`Received`](crate::upstream::Event::Received).
    pub fn upstream_data(&self, volume: VolumeId, link: LinkId) -> impl Iterator<Item = Segment> + '_ {
        self.volumes.route.upstream(volume).into_iter().flat_map(move |upstream| upstream.data(link))
    }

    /// How many bytes to receive while there is no such place, if there is a limit: see [`Upstream::head_bytes`].
    pub fn upstream_head_bytes(&self, volume: VolumeId, link: LinkId, data_bytes_min: u64) -> Option<usize> {
        self.volumes.route.upstream(volume)?.head_bytes(link, data_bytes_min)
    }

    /// How many bytes of the last [`Received`](crate::upstream::Event::Received) of a volume were taken.
    pub fn upstream_taken(&self, volume: VolumeId) -> usize {
        self.volumes.route.upstream(volume).map_or(0, Upstream::taken)
    }

    /// A device request that was submitted and is not complete.
    pub fn io(&self, io: IoId) -> &Io {
        self.volumes.io(io)
    }

    /// Whether a tenant pays for earlier slices of the disk with its next one, so that none is due to it in this round.
    /// For checkers.
    pub fn owes_slice(&self, tenant: TenantId) -> bool {
        self.volumes.route.disk.owes_slice(tenant)
    }

    /// The next tenant that caused work beyond the headers and bytes of its requests, and about how long that work
    /// took. The driver calls this after each event.
    pub fn take_spent(&mut self) -> Option<(TenantId, Nanos)> {
        self.volumes.work.take_spent().map(|(tenant, units)| (tenant, Nanos::from(units) * UNIT_NS))
    }

    /// Units of the last event, at most [`crate::EVENT_UNITS_MAX`].
    pub fn units_of_last_event(&self) -> u32 {
        self.volumes.work.used()
    }

    fn timer_rang(&mut self) {
        while let Some(name) = self.volumes.timers.take_due(self.volumes.now) {
            let Server { front, volumes, .. } = self;
            match name {
                Timer::Volumes => volumes.poke_due(),
                Timer::Initialise => volumes.initialise_all(),
                Timer::Stalls => front.disconnect_stalled(volumes),
                Timer::Frames => self.move_frames(),
                Timer::Ceilings => volumes.release_due(),
                Timer::Leases => volumes.fail_lapsed(),
            }
        }
    }

    /// Lets everything continue that can, then issues device requests.
    fn settle(&mut self) {
        if self.volumes.timers.take_if_due(Timer::Frames, self.volumes.now) {
            self.move_frames();
        }
        self.pass_on();
        // After the round too: what it submits to an upstream has no other effect.
        while self.volumes.heed_others() | self.volumes.settle_round() | self.volumes.heed_others() {
            self.pass_on();
        }
        self.volumes.dispatch();
        self.pass_on();
    }

    /// Passes the layers' effects on, in order.
    fn pass_on(&mut self) {
        self.pass_on_front();
        while let Some(effect) = self.volumes.effects.pop() {
            let Server { front, volumes, actions, .. } = self;
            match effect {
                Effect::Copy { from, to, start, len } => actions.push_back(Action::Copy { from, to, start, len }),
                Effect::Zero { frame, start, len } => actions.push_back(Action::Zero { frame, start, len }),
                Effect::Submit(io) => actions.push_back(Action::Submit(io)),
                Effect::Sum(io) => actions.push_back(Action::Sum(io)),
                Effect::Work(tenant) => actions.push_back(Action::Work(tenant)),
                Effect::Upstream(volume, request) => actions.push_back(Action::Upstream { volume, request }),
                Effect::Gone(conn) => actions.push_back(Action::Gone(conn)),
                Effect::Data(data) => front.data(volumes, data),
                Effect::Extents { conn, cookie, volume, start, end, one } => {
                    front.extents(volumes, (conn, cookie), volume, (start, end), one);
                }
                Effect::Answer(answer) => front.answer(volumes, &answer),
                Effect::Recheck(conn) => front.recheck(volumes, conn),
                Effect::RecheckVolume(volume) => front.recheck_all(volumes, |_, of| of == volume),
                Effect::RecheckTenant(tenant) => {
                    front.recheck_all(volumes, |volumes, of| volumes.tenant_of(of) == tenant)
                }
                Effect::Done(token, result) => {
                    self.report(token, result.map_or_else(Report::Refused, |()| Report::Done))
                }
                Effect::Drained(token, failed) => self.report(token, Report::Drained { failed }),
            }
            self.pass_on_front();
        }
    }

    fn pass_on_front(&mut self) {
        while let Some(effect) = self.front.effects.pop_front() {
            self.actions.push_back(match effect {
                front::Effect::Receive(conn) => Action::Receive(conn),
                front::Effect::Send(conn) => Action::Send(conn),
                front::Effect::Close(conn, why) => Action::Close(conn, why),
            });
        }
    }
}
