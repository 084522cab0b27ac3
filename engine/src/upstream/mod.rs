//! The client of an export on another server, which serves device requests like a disk. No sockets: bytes in, bytes
//! out.
//!
//! ```text
//!   owner ── submit(io) ─► queue ─► window, no overlap ─► connection 1 ─► bytes ─► server
//!         ◄─ Done ─────────────────────────────────────── connection n ◄─ bytes ◄─┘
//!
//!   Waiting ─► Opening ─► Replaying ─► Open          one session: an epoch, its connections
//!      ▲                                │ a connection is lost, or silent past the deadline
//!      └──────────── Closing ◄──────────┘ Failed: the owner counts it as a failed device flush
//! ```
//!
//! **A lost session is a failed device flush.** Writes that no completed flush or durable write covers may be lost with
//! the server, so the owner makes them dirty again ([`Action::Failed`], `disk/durability.rs`) and submits them anew,
//! with the newest content of each block. Ranges of zeros have no content that the owner could keep: they are retained
//! here (`zeroed.rs`), also after a zeroing request that failed because the server was away. The next session begins
//! with them; unanswered requests follow in their order, then new ones. A flush that was not answered is
//! [`Action::Void`]: what it covers may have to be written again first. The first session begins with a flush: what an
//! earlier process of this client wrote can be lost until then, and clients that read it rely on it.
//!
//! Nothing is sent before all connections of a session are open: otherwise a flush on a later one could count for
//! writes on the first one, which reached a server that was restarted in between.
//!
//! **Order.** Requests are sent in the order in which they are submitted. A request waits while one that overlaps it is
//! outstanding, and a flush while an earlier write is.
//!
//! **Whose server.** A server of ours admits one session of an export and has ended the writes of earlier ones before
//! it opens the next ([`Claim`](crate::nbd::Claim)). Later claims name the last session: if the server has admitted
//! another client since, the export is offline, because what is kept here and in the cache is outdated. A stranger's
//! server cannot promise that: the next session begins only when the server has ended each connection of the last one
//! ([`Event::Ended`]). Until then requests wait, and fail at their deadline.
//!
//! **Leases.** A session may have one (`lease.rs`). From its end on, the owner uses nothing of the export
//! ([`Upstream::is_lapsed`]), until there is a session again; if another client was admitted meanwhile, the export is
//! offline.
//!
//! Downside: a request behind one that must wait also waits, even if it overlaps nothing.

mod demotions;
mod lease;
mod link;
mod requests;
#[cfg(test)]
mod tests;
mod zeroed;

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use crate::disk::{Io, Op, Segment};
use crate::errno::Errno;
use crate::ids::{FrameId, IoId};
use crate::nbd::wire::{command, command_flag as flag, export_flag};
use crate::nbd::{Asked, Broken, Head, Kind, ORDER_SHIFT, Opened, RawHeader, Unopened};
use crate::spec::{Tiers, UpstreamSpec};
use crate::stream::Outgoing;
use crate::units::{BLOCK, MILLISECOND, Nanos, SECOND};
use demotions::Demotions;
use lease::Lease;
use link::{Link, State};
use requests::Requests;
use zeroed::Zeroed;

/// Time before the first attempt to open a session again, and the longest one. Each attempt doubles it.
const RETRY_NS: Nanos = 50 * MILLISECOND;
const RETRY_NS_MAX: Nanos = SECOND;
/// Time for the handshake of a session, as our servers limit it.
const OPENING_NS_MAX: Nanos = 10 * SECOND;
/// The cookie of the request for the load. Those of other requests have the order of their transfer in the upper 48
/// bits, which no order reaches.
const LOAD_COOKIE: u64 = u64::MAX;
/// The cookies of hints.
const HINT_COOKIES: RangeInclusive<u64> = u64::MAX - HINTS_MAX as u64..=u64::MAX - 1;
/// Requests outstanding at most: cookies tell them apart by 16 bits.
const WINDOW_MAX: u32 = 1 << ORDER_SHIFT;
/// Hints that the server has not answered, at most.
const HINTS_MAX: usize = 4;
/// Flags that must not change from one session to the next: what requests rely on.
const FLAGS_KEPT: u16 = export_flag::READ_ONLY
    | export_flag::SEND_FLUSH
    | export_flag::SEND_FUA
    | export_flag::SEND_WRITE_ZEROES
    | export_flag::CAN_MULTI_CONN;

/// A connection to the server, by its place in the session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u32);

/// An input.
#[derive(Debug)]
pub enum Event<'a> {
    /// The connection that [`Action::Open`] asked for is established.
    Connected(LinkId),
    /// Bytes of the server arrived, other than the data that [`Upstream::data`] expects. All of them are taken up to
    /// the next data: [`Upstream::taken`] says how many.
    Received(LinkId, &'a [u8]),
    /// `bytes` of data were stored in the segments of [`Upstream::data`], in order.
    Filled(LinkId, u64),
    /// The first `bytes` of the outgoing bytes were sent.
    Sent(LinkId, u64),
    /// The kernel does no more I/O for this connection, which was lost, could not be established, or was closed.
    Closed(LinkId),
    /// The server has ended the connection: what it received there has taken effect or never will. After `Closed`;
    /// with a server of ours, perhaps after the next session has begun.
    Ended(LinkId),
    /// The time of [`Upstream::poll_timeout`] has come. It is harmless if the event is early or late.
    Timer,
}

/// A request to the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Connect to the server, then report `Connected`, or `Closed` and `Ended`.
    Open(LinkId),
    /// [`Upstream::outgoing`] is no longer empty.
    Send(LinkId),
    /// Send nothing more, wait for the server to end the connection, and report `Closed`, then `Ended`.
    Close {
        /// The connection.
        link: LinkId,
        /// A request was sent on it. Otherwise nothing depends on when the server ends it: `Ended` may come at once.
        was_used: bool,
    },
    /// For the operator: a session begins; the export has this form. Its epoch must not be used again.
    Online(Opened),
    /// For the operator: the server was reached and did not open the export. It is tried again.
    Refused(Unopened),
    /// For the operator: a session, or an attempt to open one, was lost.
    Lost(Loss),
    /// For the operator: the export cannot be used any more. Each request fails.
    Offline(Mismatch),
}

/// Why a session was lost, or could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Loss {
    /// The server, or the network, ended a connection.
    #[error("a connection ended")]
    Ended,
    /// A request, or the handshake, was not answered in time.
    #[error("the server does not answer")]
    Silent,
    /// The server has answered nothing for as long as a lease is, or this process was stopped.
    #[error("the server has not answered for as long as its lease is")]
    Lease,
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Shutdown,
    /// The server answered with what no server may send.
    #[error("the server violates the protocol: {0}")]
    Reply(Broken),
    /// The same, where the reply itself has its form.
    #[error("the server violates the protocol: {0}")]
    Content(&'static str),
    /// The number of connections was changed, or what the server takes.
    #[error("its connections are opened anew: a setting was changed")]
    Settings,
    /// A flush failed, and the server may have dropped zeros.
    #[error("the server could not flush or zero: ranges that were zeroed are zeroed again")]
    Zeros,
}

/// What the machine wants of the owner of the volumes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Of the driver.
    Ask(Request),
    /// Zero these bytes of a frame, before the next event.
    Zero(Segment),
    /// A request is complete.
    Done(IoId, Result<(), Errno>),
    /// A flush is neither complete nor failed: it is begun anew after what the last `Failed` concerns.
    Void(IoId),
    /// A device flush of this target counts as failed.
    Failed,
    /// The answer to [`Upstream::ask_load`]; `None` if the server does not tell it.
    Load(Option<u32>),
    /// The lease had ended, and runs again.
    Granted,
    /// The frame of an evicted block is not needed any more.
    Freed(FrameId),
}

/// Why an export cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Mismatch {
    /// The size has changed.
    #[error("the export has {now} bytes; it had {before}")]
    Size {
        /// Before.
        before: u64,
        /// Now.
        now: u64,
    },
    /// The capabilities have changed.
    #[error("the export has the flags {now:#x}; it had {before:#x}")]
    Flags {
        /// Before.
        before: u16,
        /// Now.
        now: u16,
    },
    /// Another volume has the name.
    #[error("another volume has the name of the export")]
    Volume,
    /// Its blocks are larger than ours.
    #[error("the export has blocks of {0} bytes; 4096 are possible")]
    Blocks(u32),
    /// The content that this client relies on is outdated.
    #[error(
        "the server has admitted another client since the last session: what was not flushed is not written any more, \
         and what is cached is outdated"
    )]
    Interrupted,
    /// Without flush, nothing can be promised.
    #[error("the server cannot flush")]
    NoFlush,
    /// A lease was wanted.
    #[error("the server grants no leases: it is of an earlier release")]
    NoLease,
}

/// The state of an upstream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UpstreamStats {
    /// Whether requests are sent.
    pub is_open: bool,
    /// Whether the export cannot be used any more.
    pub is_offline: bool,
    /// Open connections.
    pub connections: u32,
    /// Requests that were sent and are not answered.
    pub outstanding: u32,
    /// Requests that wait to be sent.
    pub waiting: u32,
    /// Bytes of acknowledged writes that are not durable at the server, as whole blocks.
    pub unflushed_bytes: u64,
    /// Ranges of acknowledged zeros that are not durable there.
    pub unflushed_zeros: u32,
    /// Sessions that were lost.
    pub reconnects: u64,
    /// The epoch of the present session, or of the last one.
    pub epoch: u64,
    /// Whether the server takes what is evicted.
    pub is_demoting: bool,
    /// Evicted blocks that were sent to it.
    pub demoted_blocks: u64,
    /// Mean time from a request to its answer, latest ones first by eighths; 0 if none was answered.
    pub round_trip_ns: Nanos,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// No session is opened before this time.
    Waiting(Nanos),
    /// The connections are being opened, until this time at most. Nothing is sent before all of them are open.
    Opening(Nanos),
    /// Retained zeros are written again; in the first session, a flush.
    Replaying,
    /// Requests are sent.
    Open,
    /// The connections of a lost session are being closed.
    Closing,
    /// The export cannot be used.
    Offline,
}

/// The client of one export.
#[derive(Debug)]
pub struct Upstream {
    settings: UpstreamSpec,
    now: Nanos,
    phase: Phase,
    epoch: u64,
    links: Vec<Link>,
    requests: Requests,
    zeroed: Zeroed,
    /// The export, as it was when it was opened first.
    export: Option<Opened>,
    /// The epoch of the last session in which requests were sent.
    session: Option<u64>,
    retry_ns: Nanos,
    /// Bytes of acknowledged writes that are not durable: those that the flush in progress covers, and later ones.
    covered_bytes: u64,
    unflushed_bytes: u64,
    /// What an earlier process wrote may not be durable.
    inherits: bool,
    /// The lease of the session, if there are leases.
    lease: Lease,
    /// When the session was claimed.
    claimed_at: Nanos,
    /// The load was asked for, on the first connection, and the server has not answered.
    is_asking: bool,
    /// The server was told on the first connection that these bytes are going to be read, and has not answered: by
    /// cookie.
    hints: [Option<Asked>; HINTS_MAX],
    demotions: Demotions,
    /// Bytes of the last `Received` that were taken.
    taken: usize,
    reconnects: u64,
    round_trip_ns: Nanos,
    actions: VecDeque<Action>,
}

/// Whether the server has been told to read this byte, and has not answered.
fn is_hinted(hints: &[Option<Asked>], offset: u64) -> bool {
    hints.iter().flatten().any(|hint| hint.offset <= offset && offset < hint.offset + hint.len)
}

impl Upstream {
    /// An upstream without a session; [`Upstream::poll_timeout`] asks for the first one at once.
    pub fn new(now: Nanos, settings: UpstreamSpec) -> Upstream {
        assert!(settings.connections > 0 && (1..=WINDOW_MAX).contains(&settings.window));
        Upstream {
            now,
            phase: Phase::Waiting(now),
            epoch: settings.epoch,
            links: (0..settings.connections).map(|_| Link::default()).collect(),
            requests: Requests::default(),
            zeroed: Zeroed::default(),
            export: None,
            session: None,
            retry_ns: RETRY_NS,
            covered_bytes: 0,
            unflushed_bytes: 0,
            inherits: true,
            lease: Lease::default(),
            claimed_at: 0,
            is_asking: false,
            hints: [None; HINTS_MAX],
            demotions: Demotions::default(),
            taken: 0,
            reconnects: 0,
            round_trip_ns: 0,
            actions: VecDeque::new(),
            settings,
        }
    }

    /// Handles an event. Time never goes backwards.
    pub fn handle(&mut self, now: Nanos, event: Event<'_>) {
        self.now = self.now.max(now);
        match event {
            Event::Connected(link) => self.connected(link),
            Event::Received(link, bytes) => self.received(link, bytes),
            Event::Filled(link, bytes) => self.filled(link, bytes),
            Event::Sent(link, bytes) => self.links[link.0 as usize].stream.sent(bytes, |_| {}),
            Event::Closed(link) => self.closed(link),
            Event::Ended(link) => self.ended(link),
            Event::Timer => {}
        }
        self.settle();
    }

    /// Takes a device request; its frames stay as they are until it is done. `order` is the number of the transfer that
    /// it is, or is a part of: each is higher than the ones before.
    pub(crate) fn submit(&mut self, now: Nanos, io: IoId, order: u64, request: &Io) {
        self.now = self.now.max(now);
        if request.op == Op::Flush {
            // For the owner, it does not cover a write that is answered later.
            self.covered_bytes += std::mem::take(&mut self.unflushed_bytes);
        }
        self.requests.add(self.now, io, order, request);
        if request.op == Op::Read && is_hinted(&self.hints, request.offset) {
            self.requests.hold_last();
        }
        self.settle();
    }

    /// Asks the server for the load of the export's disk: see [`LOAD`](crate::nbd::wire::LOAD). Without a session, or
    /// if the server does not answer, there is no answer.
    pub(crate) fn ask_load(&mut self) {
        let has_session = matches!(self.phase, Phase::Open | Phase::Replaying);
        let Some(export) = self.export.filter(|_| has_session && !self.is_asking) else { return };
        if export.load.is_none() {
            self.actions.push_back(Action::Load(None));
        } else {
            (self.is_asking, self.lease.asked_at) = (true, self.now);
            let asked = RawHeader::new(export.form, command::BLOCK_STATUS, flag::REQ_ONE, LOAD_COOKIE, 0, BLOCK);
            self.push(0, Head::from(asked));
        }
    }

    /// Tells the server that these bytes are going to be read: it can read all of them from its disk at once. Reads of
    /// them that are submitted before it has answered wait for that. A few hints at a time; a server that takes none is
    /// not told. Whether it was.
    pub(crate) fn hint(&mut self, offset: u64, len: u64) -> bool {
        let is_open = self.phase == Phase::Open;
        let export = self.export.filter(|export| is_open && export.has(export_flag::SEND_CACHE));
        let (Some(export), Some(at)) = (export, self.hints.iter().position(Option::is_none)) else { return false };
        self.hints[at] = Some(Asked { kind: Kind::Cache, offset, len });
        let cookie = HINT_COOKIES.start() + at as u64;
        self.push(0, Head::from(RawHeader::new(export.form, command::CACHE, 0, cookie, offset, len)));
        true
    }

    /// Changes settings: the deadline at once; the others in the next session, which is opened at once.
    pub(crate) fn set(&mut self, now: Nanos, deadline_ns: Nanos, connections: u32, tiers: Tiers) {
        assert!(connections > 0);
        self.now = self.now.max(now);
        self.settings.deadline_ns = deadline_ns;
        let connections_change = std::mem::replace(&mut self.settings.connections, connections) != connections;
        let tiers_change = std::mem::replace(&mut self.settings.tiers, tiers) != tiers;
        let has_several = self.export.is_some_and(|export| export.has(export_flag::CAN_MULTI_CONN));
        // The connections of a session have the same settings, and whether there are several is not known yet.
        let is_opening = matches!(self.phase, Phase::Opening(_));
        let changes = tiers_change || connections_change && (has_several || is_opening);
        if changes && (is_opening || matches!(self.phase, Phase::Open | Phase::Replaying)) {
            self.lose_session(Some(Loss::Settings));
        }
        self.settle();
    }

    /// The owner wants nothing more of the export: all requests fail, as soon as no connection refers to their frames.
    pub(crate) fn give_up(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        if self.phase != Phase::Offline {
            self.lose_session(None);
            self.phase = Phase::Offline;
        }
        self.settle();
    }

    /// The next action. What was evicted is sent after the requests for which it made room.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        if self.actions.is_empty() {
            self.send_demotions();
        }
        self.actions.pop_front()
    }

    /// The time at which to send [`Event::Timer`].
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let deadline = self.requests.oldest().map(|since| since + self.settings.deadline_ns);
        let retry = match self.phase {
            Phase::Waiting(until) | Phase::Opening(until) => Some(until),
            Phase::Replaying | Phase::Open | Phase::Closing | Phase::Offline => None,
        };
        let lease = self.settings.is_leased.then(|| self.lease_due()).flatten();
        // Requests of connections that are being closed fail when the connections are.
        [deadline.filter(|&at| at > self.now || self.may_fail()), retry, lease].into_iter().flatten().min()
    }

    /// When the lease has to be renewed, or the session is lost because the server is silent.
    fn lease_due(&self) -> Option<Nanos> {
        let at = if self.is_asking { self.lease.silent_at() } else { self.lease.due_at() };
        matches!(self.phase, Phase::Open | Phase::Replaying).then_some(at)
    }

    /// Asks for the load if nothing else renews the lease; ends the session if the server is silent. A lease that has
    /// ended while the server answers is renewed by what it answers next: requests may be queued for longer than that.
    fn keep_lease(&mut self) {
        if self.lease.silent_at() <= self.now {
            self.lose_session(Some(Loss::Lease));
        } else if self.lease.due_at() <= self.now {
            self.ask_load();
        }
    }

    /// Whether another client may have been admitted: nothing of the export may be used, not even what is cached,
    /// unless a session begins that continues the last one.
    pub(crate) fn is_lapsed(&self, now: Nanos) -> bool {
        self.settings.is_leased && now >= self.lease.until() && !planted!(LeaseIgnored)
    }

    /// How long requests wait for the server.
    pub(crate) fn deadline_ns(&self) -> Nanos {
        self.settings.deadline_ns
    }

    /// The outgoing bytes of a connection, in order.
    pub fn outgoing(&self, link: LinkId) -> impl Iterator<Item = Outgoing<'_>> + '_ {
        self.links[link.0 as usize].stream.outgoing()
    }

    /// Where the next bytes of a connection belong, in order; nothing if [`Event::Received`] takes them.
    pub fn data(&self, link: LinkId) -> impl Iterator<Item = Segment> + '_ {
        let (slot, at) = self.links[link.0 as usize].data.unwrap_or((u32::MAX, 0));
        let left = self.links[link.0 as usize].replies.data_bytes();
        self.requests.segments(slot, at, left)
    }

    /// How many bytes to receive while [`Upstream::data`] has nothing: the header of a reply, if the replies that are
    /// due on the connection bring `data_bytes_min` or more on average; if none is due, if the last one did. Their data
    /// is then received into its frames from the first byte on. Otherwise as many as possible, which saves system
    /// calls.
    pub fn head_bytes(&self, link: LinkId, data_bytes_min: u64) -> Option<usize> {
        let link = &self.links[link.0 as usize];
        let (bytes, replies) =
            if link.outstanding > 0 { (link.reading, link.outstanding) } else { (link.last_read, 1) };
        let is_large = bytes >= u64::from(replies) * data_bytes_min;
        (is_large && matches!(link.state, State::Open)).then(|| link.replies.head_bytes())
    }

    /// How many bytes of the last [`Event::Received`] were taken.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// What the upstream does at present.
    pub(crate) fn stats(&self) -> UpstreamStats {
        let (outstanding, waiting) = self.requests.counts();
        UpstreamStats {
            is_open: self.phase == Phase::Open,
            is_offline: self.phase == Phase::Offline,
            connections: self.links.iter().filter(|link| matches!(link.state, State::Open)).count() as u32,
            outstanding,
            waiting,
            unflushed_bytes: self.covered_bytes + self.unflushed_bytes,
            unflushed_zeros: self.zeroed.ranges().len() as u32,
            reconnects: self.reconnects,
            epoch: self.epoch,
            is_demoting: self.is_demoting(),
            demoted_blocks: self.demotions.blocks,
            round_trip_ns: self.round_trip_ns,
        }
    }

    /// Bytes of acknowledged writes that are not durable, and that no flush in progress covers. If they are many, or if
    /// [`Upstream::has_many_zeros`], a flush is due, unless [`Upstream::is_flushing`].
    pub(crate) fn unflushed_bytes(&self) -> u64 {
        self.unflushed_bytes
    }

    /// Too many ranges of zeros are not durable.
    pub(crate) fn has_many_zeros(&self) -> bool {
        self.zeroed.is_full()
    }

    /// Whether a flush is outstanding.
    pub(crate) fn is_flushing(&self) -> bool {
        self.covered_bytes > 0 || self.requests.has_flush()
    }

    /// Whether the owner may submit a zeroing request. Without a session it may fail, and its range is retained then:
    /// if there are many already, the owner writes zeros from its cache instead.
    pub(crate) fn may_zero(&self) -> bool {
        self.phase == Phase::Open || !self.zeroed.is_full()
    }

    /// Requests that were submitted and are not done.
    pub(crate) fn pending(&self) -> impl Iterator<Item = IoId> + '_ {
        self.requests.pending()
    }

    /// Restores the invariants: what can be sent is sent, what has waited too long has failed.
    fn settle(&mut self) {
        match self.phase {
            Phase::Waiting(until) if until <= self.now => self.open_session(),
            Phase::Opening(until) if until <= self.now => self.lose_session(Some(Loss::Silent)),
            Phase::Open | Phase::Replaying if self.settings.is_leased => self.keep_lease(),
            _ => {}
        }
        self.expire();
        self.send_requests();
        self.forget_demotions();
    }

    /// Whether requests that have waited too long can fail now: no connection refers to their frames any more.
    fn may_fail(&self) -> bool {
        match self.phase {
            Phase::Open | Phase::Replaying => false,
            // Nothing was sent.
            Phase::Waiting(_) | Phase::Opening(_) => true,
            Phase::Closing | Phase::Offline => !self.links.iter().any(Link::has_io),
        }
    }

    fn expire(&mut self) {
        let deadline_ns = self.settings.deadline_ns;
        let may_be_due = |oldest: Option<Nanos>| oldest.is_some_and(|since| since + deadline_ns <= self.now);
        if self.phase != Phase::Offline && !may_be_due(self.requests.oldest()) {
            return;
        }
        let oldest = self.requests.look_for_oldest();
        if oldest.is_none() || self.phase != Phase::Offline && !may_be_due(oldest) {
            return;
        }
        if matches!(self.phase, Phase::Open | Phase::Replaying) {
            // It holds more than one request up, and its frames must come back.
            self.lose_session(Some(Loss::Silent));
        }
        if self.may_fail() {
            if self.phase == Phase::Offline {
                let flushes = self.requests.unsend().into_iter();
                self.actions.extend(flushes.map(|io| Action::Done(io, Err(Errno::Io))));
            }
            let past = self.now.saturating_sub(self.settings.deadline_ns);
            let until = if self.phase == Phase::Offline { Nanos::MAX } else { past };
            while let Some((io, op, start, end)) = self.requests.take_expired(until) {
                match op {
                    // A failed one, after which the owner writes everything again.
                    Op::Flush => (self.covered_bytes, self.unflushed_bytes) = (0, 0),
                    // Before it was submitted, the owner has dropped what it had of the range. Without a session there
                    // was nothing of this process.
                    Op::Zero | Op::Punch if self.session.is_some() => self.zeroed.add(start, end),
                    Op::Zero | Op::Punch | Op::Read | Op::Write { .. } => {}
                }
                self.actions.push_back(Action::Done(io, Err(Errno::Io)));
            }
            self.requests.look_for_oldest();
        }
    }

    fn ask(&mut self, request: Request) {
        self.actions.push_back(Action::Ask(request));
    }

    fn open_session(&mut self) {
        self.epoch += 1;
        self.phase = Phase::Opening(self.now + OPENING_NS_MAX);
        let connections = self.links.len().max(self.settings.connections as usize);
        self.links.resize_with(connections, Link::default);
        self.open_link(0);
    }

    fn open_link(&mut self, at: usize) {
        self.links[at] = Link { state: State::Connecting, ..Link::default() };
        self.ask(Request::Open(LinkId(at as u32)));
    }

    /// A connection is lost, or one that must be given up: all of them are closed, and requests wait for the next
    /// session. `why`, unless the operator knows it.
    fn lose_session(&mut self, why: Option<Loss>) {
        if let Some(why) = why {
            self.ask(Request::Lost(why));
        }
        let had_session = matches!(self.phase, Phase::Open | Phase::Replaying);
        (self.phase, self.is_asking, self.hints) = (Phase::Closing, false, [None; HINTS_MAX]);
        for at in 0..self.links.len() {
            let link = &mut self.links[at];
            if matches!(link.state, State::Connecting | State::Handshake(_) | State::Open) {
                link.state = State::Closing;
                let was_used = link.used;
                self.ask(Request::Close { link: LinkId(at as u32), was_used });
            }
        }
        if had_session {
            self.reconnects += 1;
            (self.covered_bytes, self.unflushed_bytes) = (0, 0);
            self.actions.push_back(Action::Failed);
            self.zeroed.flush_lost();
        }
        self.try_next_session();
    }

    /// The next session is opened when nothing of the last one can take effect any more.
    fn try_next_session(&mut self) {
        if self.phase != Phase::Closing || self.links.iter().any(Link::has_io) {
            return;
        }
        // Its frames are free: nothing more is sent or received.
        for io in self.requests.unsend() {
            self.actions.push_back(Action::Void(io));
        }
        let is_ours = self.export.is_some_and(|export| export.volume.is_some());
        let ended = self.links.iter().all(|link| matches!(link.state, State::Ended));
        if is_ours || ended || planted!(RepeatedBeforeEnded) {
            self.phase = Phase::Waiting(self.now + self.retry_ns);
            self.retry_ns = (2 * self.retry_ns).min(RETRY_NS_MAX);
        }
    }

    /// The export of a session is what it was, or the upstream is of no use.
    fn check(&mut self, opened: &Opened) -> Result<(), Mismatch> {
        let known = Opened { size: self.settings.size, volume: self.settings.volume.or(opened.volume), ..*opened };
        let first = self.export.unwrap_or(known);
        let (before, now) = (first.flags & FLAGS_KEPT, opened.flags & FLAGS_KEPT);
        let is_safe = opened.has(export_flag::SEND_FLUSH) || opened.has(export_flag::READ_ONLY);
        if !is_safe && !self.settings.unsafe_without_flush {
            Err(Mismatch::NoFlush)
        } else if u64::from(opened.block_bytes_min) > BLOCK {
            Err(Mismatch::Blocks(opened.block_bytes_min))
        } else if opened.size != first.size {
            Err(Mismatch::Size { before: first.size, now: opened.size })
        } else if before != now {
            Err(Mismatch::Flags { before, now })
        } else if self.settings.is_leased && (opened.lease_ms.is_none() || opened.load.is_none()) {
            Err(Mismatch::NoLease)
        } else if opened.volume != first.volume && !planted!(IdentityNotChecked) {
            Err(Mismatch::Volume)
        } else {
            Ok(())
        }
    }
}
