//! Requests from submission to completion: their order, their parts, and what an answer settles.

use std::collections::VecDeque;

use super::{Action, LinkId, Loss, Phase, Request, Upstream};
use crate::disk::durability::is_failed_flush;
use crate::disk::{Io, Op, Segment};
use crate::errno::Errno;
use crate::ids::IoId;
use crate::nbd::wire::{command, command_flag as flag, export_flag};
use crate::nbd::{Asked, Form, Head, Kind, RawHeader};
use crate::slab::Slab;
use crate::units::{BLOCK, Nanos};

/// Parts of a read that one reply may have in disorder: chunks that continue one another count once.
const GAPS_MAX: usize = 64;

/// A request; retained zeros that are written again; or the flush with which the first session begins.
#[derive(Debug)]
pub(super) struct Slot {
    /// `None` for retained zeros and the first flush.
    io: Option<IoId>,
    op: Op,
    offset: u64,
    len: u64,
    /// Bytes before those of the segments.
    head: Vec<u8>,
    segments: Vec<Segment>,
    since: Nanos,
    /// The number of the transfer that it is a part of; they are submitted in this order.
    order: u64,
    /// Bytes that are done, and bytes of the part that is outstanding: a request may be larger than the server permits.
    done: u64,
    part: u64,
    /// It is the flush after a durable write, for a server without FUA.
    flushes: bool,
    /// It was sent as one that is durable when it is answered.
    durable: bool,
    error: Option<Errno>,
    /// Ranges of a read that were answered, relative to its beginning, in order.
    got: Vec<(u64, u64)>,
    /// The connection on which it is outstanding, and since when.
    link: usize,
    sent_at: Nanos,
}

impl Default for Slot {
    fn default() -> Self {
        Slot {
            io: None,
            op: Op::Flush,
            offset: 0,
            len: 0,
            head: Vec::new(),
            segments: Vec::new(),
            since: 0,
            order: 0,
            done: 0,
            part: 0,
            flushes: false,
            durable: false,
            error: None,
            got: Vec::new(),
            link: 0,
            sent_at: 0,
        }
    }
}

impl Slot {
    fn kind(&self) -> Kind {
        match self.op {
            _ if self.flushes => Kind::Flush,
            Op::Read => Kind::Read,
            Op::Write { .. } => Kind::Write,
            Op::Flush => Kind::Flush,
            Op::Zero | Op::Punch => Kind::Zeroes,
        }
    }

    fn changes(&self) -> bool {
        matches!(self.op, Op::Write { .. } | Op::Zero | Op::Punch)
    }

    fn overlaps(&self, other: &Slot) -> bool {
        self.offset < other.offset + other.len && other.offset < self.offset + self.len
    }

    /// A part of a read was answered. False if it was before, or if the parts are in too much disorder.
    fn answer(&mut self, start: u64, end: u64) -> bool {
        let at = self.got.partition_point(|&(from, _)| from < start);
        let is_free = at.checked_sub(1).is_none_or(|before| self.got[before].1 <= start)
            && self.got.get(at).is_none_or(|&(from, _)| end <= from);
        if !is_free {
            return false;
        }
        self.got.insert(at, (start, end));
        if self.got.get(at + 1).is_some_and(|&(from, _)| from == end) {
            self.got[at].1 = self.got.remove(at + 1).1;
        }
        if at > 0 && self.got[at - 1].1 == start {
            self.got[at - 1].1 = self.got.remove(at).1;
        }
        self.got.len() <= GAPS_MAX
    }
}

/// The requests of an upstream.
#[derive(Debug)]
pub(super) struct Requests {
    slots: Slab<Slot>,
    /// Not sent, in order.
    queue: VecDeque<u32>,
    /// Outstanding: the cookie and the slot.
    sent: Vec<(u64, u32)>,
    /// Reads of what the server has been told to read, until it has.
    held: Vec<u32>,
    /// Requests sent so far. It wraps; a part of the cookie, so that late replies are detected.
    serial: u16,
    /// No request has waited for longer than since then; exact after [`Requests::look_for_oldest`].
    oldest: Option<Nanos>,
}

impl Default for Requests {
    fn default() -> Self {
        let (sent, held) = (Vec::new(), Vec::new());
        Requests { slots: Slab::new(), queue: VecDeque::new(), sent, held, serial: 0, oldest: None }
    }
}

impl Requests {
    fn take(&mut self, io: Option<IoId>, op: Op, offset: u64, len: u64) -> u32 {
        let id = self.slots.take();
        let slot = &mut self.slots[id];
        (slot.io, slot.op, slot.offset, slot.len) = (io, op, offset, len);
        (slot.done, slot.part, slot.flushes, slot.durable, slot.error) = (0, 0, false, false, None);
        slot.head.clear();
        slot.segments.clear();
        slot.got.clear();
        id
    }

    pub(super) fn add(&mut self, now: Nanos, io: IoId, order: u64, request: &Io) {
        let id = self.take(Some(io), request.op, request.offset, request.len);
        let slot = &mut self.slots[id];
        slot.head.extend_from_slice(&request.head);
        slot.segments.extend_from_slice(&request.segments);
        (slot.since, slot.order) = (now, order);
        self.oldest.get_or_insert(now);
        self.queue.push_back(id);
    }

    /// The request that was added last waits for [`Requests::release`], and no other one waits for it.
    pub(super) fn hold_last(&mut self) {
        self.held.extend(self.queue.pop_back());
    }

    /// Those that begin at such an offset wait no more.
    pub(super) fn release(&mut self, is_free: impl Fn(u64) -> bool) {
        let Requests { slots, queue, held, .. } = self;
        queue.extend(held.extract_if(.., |id| is_free(slots[*id].offset)));
    }

    /// Zeros that are written again, or the first flush, before everything else.
    pub(super) fn add_retained(&mut self, op: Op, start: u64, end: u64) {
        let id = self.take(None, op, start, end - start);
        (self.slots[id].since, self.slots[id].order) = (Nanos::MAX, 0);
        self.queue.push_front(id);
    }

    /// Numbers of outstanding and of waiting requests.
    pub(super) fn counts(&self) -> (u32, u32) {
        (self.sent.len() as u32, (self.queue.len() + self.held.len()) as u32)
    }

    /// The slots of outstanding requests.
    fn outstanding(&self) -> impl Iterator<Item = &u32> + '_ {
        self.sent.iter().map(|(_, id)| id)
    }

    /// Requests of the owner that are not done.
    pub(super) fn pending(&self) -> impl Iterator<Item = IoId> + '_ {
        self.queue.iter().chain(self.outstanding()).chain(&self.held).filter_map(|&id| self.slots[id].io)
    }

    /// Whether a flush was submitted and is not answered.
    pub(super) fn has_flush(&self) -> bool {
        self.queue.iter().chain(self.outstanding()).any(|&id| self.slots[id].kind() == Kind::Flush)
    }

    /// Whether retained zeros or the first flush are still to be answered.
    pub(super) fn has_retained(&self) -> bool {
        let is_retained = |&id: &u32| self.slots[id].io.is_none();
        self.queue.front().is_some_and(is_retained) || self.outstanding().any(is_retained)
    }

    /// Since when the oldest request waits, or earlier.
    pub(super) fn oldest(&self) -> Option<Nanos> {
        self.oldest
    }

    /// Since when the oldest request waits.
    pub(super) fn look_for_oldest(&mut self) -> Option<Nanos> {
        let since = |&id: &u32| Some(self.slots[id].since).filter(|&since| since < Nanos::MAX);
        let oldest =
            self.outstanding().chain(&self.held).filter_map(since).chain(self.queue.iter().find_map(since)).min();
        self.oldest = oldest;
        oldest
    }

    /// The first queued request, if it has waited since `until` or longer, with its range.
    pub(super) fn take_expired(&mut self, until: Nanos) -> Option<(IoId, Op, u64, u64)> {
        let id = *self.queue.front().filter(|&&id| self.slots[id].since <= until)?;
        self.queue.pop_front();
        self.slots.give(id);
        let slot = &self.slots[id];
        slot.io.map(|io| (io, slot.op, slot.offset, slot.offset + slot.len))
    }

    /// The session is over: outstanding requests wait again, in their order, with their whole length. Returns the
    /// flushes, which do not.
    pub(super) fn unsend(&mut self) -> Vec<IoId> {
        let sent = self.sent.drain(..).map(|(_, id)| id);
        let all = sent.chain(self.queue.drain(..)).chain(self.held.drain(..));
        let mut waiting: Vec<u32> = all.collect();
        waiting.sort_by_key(|&id| self.slots[id].order);
        let mut void = Vec::new();
        for id in waiting {
            let slot = &mut self.slots[id];
            match (slot.io, slot.op) {
                (Some(io), Op::Flush) => void.push(io),
                (Some(_), _) => {
                    (slot.done, slot.part, slot.flushes, slot.error) = (0, 0, false, None);
                    slot.got.clear();
                    self.queue.push_back(id);
                    continue;
                }
                // The next session begins with those that are retained then.
                (None, _) => {}
            }
            self.slots.give(id);
        }
        void
    }

    /// The outstanding request with this cookie.
    fn of_cookie(&self, cookie: u64) -> Option<u32> {
        self.sent.iter().find(|(of, _)| *of == cookie).map(|(_, id)| *id)
    }

    /// A request is sent now. Returns its cookie.
    fn sends(&mut self, id: u32) -> u64 {
        let cookie = self.cookie(self.slots[id].order);
        self.sent.push((cookie, id));
        cookie
    }

    /// The cookie of a request with this order.
    pub(super) fn cookie(&mut self, order: u64) -> u64 {
        self.serial = self.serial.wrapping_add(1);
        order << 16 | u64::from(self.serial)
    }

    /// The greatest order of outstanding requests.
    pub(super) fn latest(&self) -> u64 {
        self.outstanding().map(|&id| self.slots[id].order).max().unwrap_or(0)
    }

    /// What a reply on `link` must agree with.
    pub(super) fn asked(&self, link: usize, cookie: u64) -> Option<Asked> {
        let slot = &self.slots[self.of_cookie(cookie)?];
        let (kind, is_flush) = (slot.kind(), slot.kind() == Kind::Flush);
        let (offset, len) = if is_flush { (0, 0) } else { (slot.offset + slot.done, slot.part) };
        (slot.link == link).then_some(Asked { kind, offset, len })
    }

    /// A part of the read with this cookie is answered. Returns its slot and where the part begins in it; `None` if it
    /// was answered before.
    pub(super) fn answer(&mut self, cookie: u64, offset: u64, len: u64) -> Option<(u32, u64)> {
        let id = self.of_cookie(cookie)?;
        let slot = &mut self.slots[id];
        let start = offset - slot.offset;
        slot.answer(start, start + len).then_some((id, start))
    }

    pub(super) fn failed(&mut self, cookie: u64, why: Errno) {
        if let Some(id) = self.of_cookie(cookie) {
            let slot = &mut self.slots[id];
            // For the owner it is a failed flush, even if the flush belongs to a durable write.
            let is_flush = slot.kind() == Kind::Flush && why != Errno::Shutdown;
            slot.error.get_or_insert(if is_flush { Errno::Io } else { why });
        }
    }

    /// The segments of `bytes` bytes of a request, from `start` on.
    pub(super) fn segments(&self, id: u32, start: u64, bytes: u64) -> impl Iterator<Item = Segment> + '_ {
        let slot = (bytes > 0).then(|| &self.slots[id]);
        let (mut past, end) = (slot.map_or(0, |slot| slot.head.len() as u64), start + bytes);
        slot.map_or(&[][..], |slot| &slot.segments).iter().filter_map(move |segment| {
            let begins = past;
            past += u64::from(segment.len);
            let (from, to, base) = (begins.max(start), past.min(end), u64::from(segment.start));
            (from < to).then(|| Segment::new(segment.frame, base + from - begins, base + to - begins))
        })
    }
}

impl Upstream {
    /// Sends what can be sent.
    pub(super) fn send_requests(&mut self) {
        if self.phase == Phase::Replaying && !self.requests.has_retained() {
            self.phase = Phase::Open;
        }
        while let Some(&id) = self.requests.queue.front() {
            let is_retained = self.requests.slots[id].io.is_none();
            let may_send = match self.phase {
                Phase::Open => true,
                Phase::Replaying => is_retained || planted!(OverlapInFlight),
                Phase::Waiting(_) | Phase::Opening(_) | Phase::Closing | Phase::Offline => false,
            };
            if !may_send || self.requests.sent.len() >= self.settings.window as usize || self.must_wait(id) {
                return;
            }
            self.requests.queue.pop_front();
            self.send(id);
        }
    }

    /// Whether an outstanding request must be answered first.
    fn must_wait(&self, id: u32) -> bool {
        let (slots, slot) = (&self.requests.slots, &self.requests.slots[id]);
        self.requests.outstanding().map(|&sent| &slots[sent]).any(|sent| match slot.kind() {
            Kind::Flush => sent.changes() || sent.kind() == Kind::Flush,
            _ => sent.overlaps(slot) && (sent.changes() || slot.changes()) && !planted!(OverlapInFlight),
        })
    }

    fn send(&mut self, id: u32) {
        let export = self.export.expect("a session has one");
        let slot = &mut self.requests.slots[id];
        let most = u64::from(export.payload_bytes_max);
        let payload_bytes_max = if most > BLOCK { most / BLOCK * BLOCK } else { most };
        let left = slot.len - slot.done;
        slot.part = match slot.kind() {
            Kind::Flush => 0,
            Kind::Zeroes if export.form == Form::Extended => left,
            Kind::Zeroes => left.min(u64::from(u32::MAX) / BLOCK * BLOCK),
            _ => left.min(payload_bytes_max),
        };
        let has_fua = export.has(export_flag::SEND_FUA);
        let (command, mut flags) = match (slot.kind(), slot.op) {
            (Kind::Flush, _) => (command::FLUSH, 0),
            (Kind::Read, _) => (command::READ, 0),
            (Kind::Write, _) => (command::WRITE, 0),
            (_, Op::Punch) => (command::WRITE_ZEROES, 0),
            _ => (command::WRITE_ZEROES, flag::NO_HOLE),
        };
        let wants_fua = match slot.op {
            Op::Write { durable } => durable && !slot.flushes,
            Op::Zero | Op::Punch => self.zeroed.is_full(),
            Op::Read | Op::Flush => false,
        };
        slot.durable = wants_fua && has_fua;
        flags |= if slot.durable { flag::FUA } else { 0 };
        if slot.kind() == Kind::Flush {
            self.zeroed.flush_begun();
        }
        let offset = if slot.kind() == Kind::Flush { 0 } else { slot.offset + slot.done };
        let (start, part, has_payload) = (slot.done, slot.part, command == command::WRITE);
        let cookie = self.requests.sends(id);
        let header = RawHeader::new(export.form, command, flags, cookie, offset, part);
        let at = self.least_loaded();
        let slot = &mut self.requests.slots[id];
        (slot.link, slot.sent_at) = (at, self.now);
        let link = &mut self.links[at];
        link.outstanding += 1;
        link.last_read = if command == command::READ { part } else { 0 };
        link.reading += link.last_read;
        link.used = true;
        self.push(at, Head::from(header));
        let link = &mut self.links[at];
        if has_payload {
            let head = &self.requests.slots[id].head;
            let (from, to) = (head.len().min(start as usize), head.len().min((start + part) as usize));
            link.stream.push_bytes(&head[from..to]);
            for segment in self.requests.segments(id, start, part) {
                link.stream.push_frame(segment);
            }
        }
    }

    /// Queues a header on a connection.
    pub(super) fn push(&mut self, at: usize, header: Head) {
        let stream = &mut self.links[at].stream;
        if stream.is_drained() {
            self.actions.push_back(Action::Ask(Request::Send(LinkId(at as u32))));
        }
        stream.push(header);
    }

    /// A reply is complete. An error: the reply violates the protocol, or the server is shutting down.
    pub(super) fn answered(&mut self, cookie: u64) -> Result<(), Loss> {
        let Some(id) = self.requests.of_cookie(cookie) else { return Err(Loss::Content("an answer to nothing")) };
        let slot = &mut self.requests.slots[id];
        let end = slot.done + slot.part;
        if slot.error == Some(Errno::Shutdown) {
            return Err(Loss::Shutdown);
        }
        if slot.error.is_none() && slot.kind() == Kind::Read {
            let whole = slot.got.iter().map(|(from, to)| to - from).sum::<u64>() == end;
            if !whole {
                return Err(Loss::Content("parts of a read are missing"));
            }
        }
        let link = &mut self.links[slot.link];
        link.outstanding -= 1;
        link.reading -= if slot.kind() == Kind::Read { slot.part } else { 0 };
        let (took_ns, sent_at) = (self.now - slot.sent_at, slot.sent_at);
        self.round_trip_ns =
            if self.round_trip_ns == 0 { took_ns } else { self.round_trip_ns - self.round_trip_ns / 8 + took_ns / 8 };
        self.requests.sent.retain(|&(of, _)| of != cookie);
        self.renew(sent_at);
        let slot = &mut self.requests.slots[id];
        if slot.error.is_none() {
            slot.done = end;
            let without_fua = slot.op == (Op::Write { durable: true }) && !slot.durable && !slot.flushes;
            slot.flushes |= slot.done == slot.len && without_fua;
            if slot.done < slot.len || without_fua {
                // Before the requests that were submitted after it.
                self.requests.queue.push_front(id);
                return Ok(());
            }
        } else if slot.io.is_none() && slot.op != Op::Flush {
            // Without the retained zeros nothing else may be written.
            self.requests.slots.give(id);
            return Err(Loss::Zeros);
        }
        self.settled(id);
        let slot = &self.requests.slots[id];
        let result = slot.error.map_or(Ok(()), Err);
        let is_failed = is_failed_flush(slot.op, result);
        match slot.io {
            Some(io) => self.actions.push_back(Action::Done(io, result)),
            // A server that cannot flush can still be read: later flushes fail.
            None => self.inherits &= slot.op != Op::Flush,
        }
        self.requests.slots.give(id);
        // The server may have dropped zeros: the next session writes them again.
        if is_failed && !self.zeroed.ranges().is_empty() { Err(Loss::Zeros) } else { Ok(()) }
    }

    /// Records what a complete request means for a lost session.
    fn settled(&mut self, id: u32) {
        let slot = &self.requests.slots[id];
        let (start, end) = (slot.offset, slot.offset + slot.len);
        let is_flush = slot.kind() == Kind::Flush;
        match slot.op {
            _ if slot.error.is_some() => {
                if is_failed_flush(slot.op, Err(Errno::Io)) {
                    self.zeroed.flush_lost();
                    // The owner writes it again.
                    (self.covered_bytes, self.unflushed_bytes) = (0, 0);
                }
                return;
            }
            Op::Write { .. } if planted!(ZeroedAgainOverWrites) => {}
            Op::Write { .. } if slot.durable => self.zeroed.remove(start, end),
            Op::Write { .. } if !is_flush => {
                self.zeroed.remove(start, end);
                // A block is kept as a whole.
                self.unflushed_bytes += end.next_multiple_of(BLOCK) - start / BLOCK * BLOCK;
            }
            Op::Zero | Op::Punch if slot.durable => self.zeroed.remove(start, end),
            Op::Zero | Op::Punch if slot.io.is_some() => self.zeroed.add(start, end),
            Op::Write { .. } | Op::Zero | Op::Punch | Op::Read | Op::Flush => {}
        }
        if is_flush {
            self.zeroed.flushed();
            if slot.op == Op::Flush && slot.io.is_some() {
                self.covered_bytes = 0;
            }
            if matches!(slot.op, Op::Write { .. }) {
                self.zeroed.remove(start, end);
            }
        }
    }
}
