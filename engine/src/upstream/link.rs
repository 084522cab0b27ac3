//! The connections of a session: handshakes, and replies.

use super::requests::Requests;
use super::{
    Action, HINT_COOKIES, LOAD_COOKIE, LinkId, Loss, Mismatch, OPENING_NS_MAX, Phase, RETRY_NS, Request, Upstream,
    is_hinted,
};
use crate::disk::Op;
use crate::errno::Errno;
use crate::nbd::wire::{export_flag, reply};
use crate::nbd::{Asked, Claim, Form, Kind, Opened, Opening, Part, Replies, Unopened, Wanted};
use crate::spec::Tiers;
use crate::stream::Stream;
use crate::units::{BLOCK, Nanos};

/// Parts of replies that one event handles: the driver sends the rest of the bytes with the next one.
const PARTS_MAX: usize = 16;

/// The request for the load, as far as a reply must agree with it, and the greatest load that is of interest.
const LOAD_ASKED: Asked = Asked { kind: Kind::Status, offset: 0, len: BLOCK };
const LOAD_MAX: u64 = 1 << 20;

/// A part of a read that was answered before, or parts in too much disorder.
const TWICE: Loss = Loss::Content("a part of a read is answered twice, or parts are in disorder");

/// The state of a connection.
#[derive(Default, Debug)]
pub(super) enum State {
    Connecting,
    Handshake(Box<Opening>),
    Open,
    /// It is being closed; the kernel may still do I/O for it.
    Closing,
    /// No more I/O, but the server has not ended it.
    Closed,
    /// It does not exist, and nothing that was sent on it can take effect.
    #[default]
    Ended,
}

/// A connection.
#[derive(Default, Debug)]
pub(super) struct Link {
    pub(super) state: State,
    pub(super) stream: Stream,
    pub(super) replies: Replies,
    /// The read whose data comes next, and where in it.
    pub(super) data: Option<(u32, u64)>,
    /// Bytes of an answer of the handshake that is not complete.
    pub(super) stash: Vec<u8>,
    pub(super) outstanding: u32,
    /// Bytes that the outstanding ones read, and the last one that was sent.
    pub(super) reading: u64,
    pub(super) last_read: u64,
    /// Requests were sent on it.
    pub(super) used: bool,
}

impl Link {
    /// Whether the kernel may do I/O for it.
    pub(super) fn has_io(&self) -> bool {
        matches!(self.state, State::Connecting | State::Handshake(_) | State::Open | State::Closing)
    }
}

/// The place of a hint.
fn hint_of(cookie: u64) -> usize {
    (cookie - HINT_COOKIES.start()) as usize
}

impl Upstream {
    /// The open connection with the fewest outstanding requests.
    pub(super) fn least_loaded(&self) -> usize {
        let open = self.links.iter().enumerate().filter(|(_, link)| matches!(link.state, State::Open));
        open.min_by_key(|(_, link)| link.outstanding).expect("a session has an open connection").0
    }

    pub(super) fn connected(&mut self, link: LinkId) {
        let claim = Claim {
            client: self.settings.client.clone(),
            epoch: self.epoch,
            after: self.continues(),
            shared: self.settings.is_shared,
            leased: self.settings.is_leased,
        };
        let wanted = Wanted {
            name: self.settings.name.clone(),
            form: Form::Extended,
            session: Some(claim),
            demote: self.settings.tiers == Tiers::Demote,
            load: true,
            ..Wanted::default()
        };
        let at = link.0 as usize;
        if matches!(self.links[at].state, State::Connecting) {
            if at == 0 {
                self.claimed_at = self.now;
            }
            let opening = if self.settings.tls { Opening::encrypted(wanted) } else { Opening::new(wanted) };
            self.links[at].state = State::Handshake(Box::new(opening));
            // With TLS, the client speaks first.
            self.negotiate(at, &[]);
        }
    }

    /// The session that the next one continues. Shared ones have no content that others must not change.
    fn continues(&self) -> Option<u64> {
        let is_ours = self.export.is_some_and(|export| export.volume.is_some());
        self.session.filter(|_| is_ours && !self.settings.is_shared && !planted!(ClaimContinuesNothing))
    }

    /// Bytes of the server, see `Event::Received`.
    pub(super) fn received(&mut self, link: LinkId, bytes: &[u8]) {
        let at = link.0 as usize;
        self.taken = bytes.len();
        match &self.links[at].state {
            State::Handshake(_) => self.negotiate(at, bytes),
            State::Open => self.read_replies(at, bytes),
            // What a lost connection still brings is of no interest.
            State::Connecting | State::Closing | State::Closed | State::Ended => {}
        }
    }

    fn negotiate(&mut self, at: usize, bytes: &[u8]) {
        let link = &mut self.links[at];
        let State::Handshake(opening) = &mut link.state else { return };
        link.stash.extend_from_slice(bytes);
        let result = opening.handle(&link.stash);
        match result {
            Ok(consumed) => drop(link.stash.drain(..consumed)),
            Err(why) => return self.refused(at, why),
        }
        let (outgoing, opened) = (opening.take_outgoing(), opening.opened());
        if !outgoing.is_empty() {
            if link.stream.is_drained() {
                self.actions.push_back(Action::Ask(Request::Send(LinkId(at as u32))));
            }
            link.stream.push_bytes(&outgoing);
        }
        let Some(opened) = opened else { return };
        if !link.stash.is_empty() {
            self.ask(Request::Refused(Unopened::Broken("replies to requests that were not sent")));
            return self.lose_session(None);
        }
        link.state = State::Open;
        link.replies = Replies::new(opened.form, None).with_load(opened.load);
        self.opened(at, opened);
    }

    fn refused(&mut self, at: usize, why: Unopened) {
        match why {
            Unopened::Refused { kind: reply::ERR_INVALID, .. }
                if self.continues().is_some() || self.settings.is_leased =>
            {
                self.go_offline(Mismatch::Interrupted);
            }
            // The server has no room for so many connections. Nothing was sent, so the session can do with fewer.
            Unopened::Refused { .. } if at > 0 => {
                self.links[at].state = State::Closing;
                self.ask(Request::Close { link: LinkId(at as u32), was_used: false });
                self.begin_session();
            }
            why => {
                self.ask(Request::Refused(why));
                self.lose_session(None);
            }
        }
    }

    fn go_offline(&mut self, why: Mismatch) {
        self.lose_session(None);
        self.phase = Phase::Offline;
        self.ask(Request::Offline(why));
    }

    fn opened(&mut self, at: usize, opened: Opened) {
        if let Err(why) = self.check(&opened) {
            return self.go_offline(why);
        }
        // The forms of the connections of a session are one: the first one's.
        if at > 0 && self.export.map(|export| export.form) != Some(opened.form) {
            return self.lose_session(Some(Loss::Content("its connections have different forms")));
        }
        if at == 0 {
            self.export = Some(opened);
            if let Some(lease_ms) = opened.lease_ms.filter(|_| self.settings.is_leased) {
                self.lease.begin(self.claimed_at, self.now, lease_ms);
            }
            // The first one may have waited for the end of an earlier session.
            self.phase = Phase::Opening(self.now + OPENING_NS_MAX);
            if opened.has(export_flag::CAN_MULTI_CONN) {
                (1..self.settings.connections as usize).for_each(|at| self.open_link(at));
            }
        }
        self.begin_session();
    }

    /// Begins the session, once no connection is being opened any more.
    fn begin_session(&mut self) {
        let is_coming = |link: &Link| matches!(link.state, State::Connecting | State::Handshake(_));
        if self.links.iter().any(is_coming) {
            return;
        }
        let opened = self.export.expect("the first connection is open");
        self.retry_ns = RETRY_NS;
        self.phase = Phase::Replaying;
        self.session = Some(self.epoch);
        self.demotions.is_refused = false;
        self.ask(Request::Online(opened));
        for range in self.zeroed.ranges().iter().filter(|_| !planted!(ZeroedForgotten)) {
            self.requests.add_retained(Op::Zero, range.start, range.end);
        }
        if self.inherits && opened.has(export_flag::SEND_FLUSH) && !planted!(InheritedNotFlushed) {
            self.requests.add_retained(Op::Flush, 0, 0);
        }
    }

    fn read_replies(&mut self, at: usize, bytes: &[u8]) {
        let (mut read, mut parts) = (0, 0);
        // When all bytes are used, the end of an error reply may still be due. No later event would report it.
        while parts < PARTS_MAX || read == bytes.len() {
            let (link, requests, demotions) = (&mut self.links[at], &self.requests, &self.demotions);
            let (load, hints) = (self.is_asking.then_some(LOAD_ASKED), self.hints);
            if link.data.is_some() {
                break;
            }
            parts += 1;
            let asked = |cookie| match cookie {
                LOAD_COOKIE => load.filter(|_| at == 0),
                _ if HINT_COOKIES.contains(&cookie) => hints[hint_of(cookie)].filter(|_| at == 0),
                _ => requests.asked(at, cookie).or_else(|| demotions.asked(at, cookie)),
            };
            let (used, part) = match link.replies.next(&bytes[read..], asked) {
                Ok(next) => next,
                Err(why) => return self.lose_session(Some(Loss::Reply(why))),
            };
            read += used;
            let Some((cookie, part)) = part else { break };
            if let Err(why) = self.part(at, cookie, part) {
                return self.lose_session(Some(why));
            }
        }
        self.taken = read;
    }

    /// A part of a reply; an error if the connection is of no use any more.
    fn part(&mut self, at: usize, cookie: u64, part: Part) -> Result<(), Loss> {
        if cookie == LOAD_COOKIE {
            match part {
                // It was asked for the lease only.
                Part::Load(_) if self.settings.is_leased => {}
                Part::Load(load) => self.actions.push_back(Action::Load(Some(load.min(LOAD_MAX) as u32))),
                Part::Done => {
                    self.is_asking = false;
                    self.renew(self.lease.asked_at);
                }
                Part::Data { .. } | Part::Hole { .. } | Part::Extent { .. } | Part::Error(_) => {}
            }
            return Ok(());
        }
        if HINT_COOKIES.contains(&cookie) {
            // Whether the server did anything is its own affair.
            if part == Part::Done {
                self.hints[hint_of(cookie)] = None;
                let hints = self.hints;
                self.requests.release(|offset| !is_hinted(&hints, offset));
            }
            return Ok(());
        }
        if self.demotions.has(cookie) {
            match part {
                Part::Done => self.demoted(cookie),
                Part::Error(_) => self.demotions.is_refused = true,
                Part::Data { .. } | Part::Hole { .. } | Part::Extent { .. } | Part::Load(_) => {}
            }
            return Ok(());
        }
        let requests: &mut Requests = &mut self.requests;
        match part {
            Part::Data { offset, len } => {
                self.links[at].data = Some(requests.answer(cookie, offset, len).ok_or(TWICE)?);
            }
            Part::Hole { offset, len } => {
                let (slot, start) = requests.answer(cookie, offset, len).ok_or(TWICE)?;
                self.actions.extend(requests.segments(slot, start, len).map(Action::Zero));
            }
            Part::Error(number) => requests.failed(cookie, errno(number)),
            Part::Extent { .. } | Part::Load(_) => {
                return Err(Loss::Content("an answer to a request that was not sent"));
            }
            Part::Done => return self.answered(cookie),
        }
        Ok(())
    }

    /// A request that was sent at this time was answered.
    pub(super) fn renew(&mut self, sent_at: Nanos) {
        let was_lapsed = self.is_lapsed(self.now);
        self.lease.renew(if planted!(LeaseFromReply) { self.now } else { sent_at });
        self.lease.heard_at = self.now;
        if was_lapsed && !self.is_lapsed(self.now) {
            self.actions.push_back(Action::Granted);
        }
    }

    /// Data was stored where it belongs.
    pub(super) fn filled(&mut self, link: LinkId, bytes: u64) {
        let at = link.0 as usize;
        let link = &mut self.links[at];
        let Some((slot, from)) = link.data.filter(|_| matches!(link.state, State::Open)) else { return };
        link.replies.took(bytes);
        link.data = (link.replies.data_bytes() > 0).then_some((slot, from + bytes));
        if link.data.is_none() {
            // The end of the reply may need no further bytes.
            self.read_replies(at, &[]);
        }
    }

    /// See `Event::Closed`.
    pub(super) fn closed(&mut self, link: LinkId) {
        let at = link.0 as usize;
        let in_use = matches!(self.links[at].state, State::Connecting | State::Handshake(_) | State::Open);
        let used = self.links[at].used;
        let state = if used { State::Closed } else { State::Ended };
        self.links[at] = Link { state, ..Link::default() };
        if in_use {
            return self.lose_session(Some(Loss::Ended));
        }
        self.try_next_session();
    }

    /// See `Event::Ended`.
    pub(super) fn ended(&mut self, link: LinkId) {
        let state = &mut self.links[link.0 as usize].state;
        // With a server of ours, the place may be in use again.
        if matches!(state, State::Closed) {
            *state = State::Ended;
            self.try_next_session();
        }
    }
}

/// An error number of the server.
fn errno(number: u32) -> Errno {
    let known = [Errno::Perm, Errno::Invalid, Errno::NoSpace, Errno::NotSupported, Errno::Shutdown];
    known.into_iter().find(|&known| known as u32 == number).unwrap_or(Errno::Io)
}
