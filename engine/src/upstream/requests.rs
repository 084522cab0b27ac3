//! Requests from submission to completion: their order, their parts, and what an answer settles.

use std::collections::VecDeque;

use super::{Action, LinkId, Phase, Upstream};
use crate::disk::{Io, Op, Segment};
use crate::errno::Errno;
use crate::ids::IoId;
use crate::nbd::wire::{command, command_flag as flag, export_flag};
use crate::nbd::{Asked, Form, Head, Kind, RawHeader};
use crate::slab::Slab;
use crate::units::{BLOCK, Nanos};

/// Parts of a read that one reply may have in disorder: chunks that continue one another count once.
const GAPS_MAX: usize = 64;

/// A request, or retained zeros that are written again.
#[derive(Debug)]
pub(super) struct Slot {
    /// `None` for retained zeros.
    io: Option<IoId>,
    op: Op,
    offset: u64,
    len: u64,
    segments: Vec<Segment>,
    since: Nanos,
    /// Its place in the order of submission.
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
    /// Part of the cookie, so that late replies are detected.
    generation: u32,
    /// The connection on which it is outstanding.
    link: usize,
}

impl Default for Slot {
    fn default() -> Self {
        Slot {
            io: None,
            op: Op::Flush,
            offset: 0,
            len: 0,
            segments: Vec::new(),
            since: 0,
            order: 0,
            done: 0,
            part: 0,
            flushes: false,
            durable: false,
            error: None,
            got: Vec::new(),
            generation: 0,
            link: 0,
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
    /// Outstanding.
    sent: Vec<u32>,
    submitted: u64,
}

impl Default for Requests {
    fn default() -> Self {
        Requests { slots: Slab::new(), queue: VecDeque::new(), sent: Vec::new(), submitted: 0 }
    }
}

impl Requests {
    fn take(&mut self, io: Option<IoId>, op: Op, offset: u64, len: u64) -> u32 {
        let id = self.slots.take();
        let slot = &mut self.slots[id];
        (slot.io, slot.op, slot.offset, slot.len) = (io, op, offset, len);
        (slot.done, slot.part, slot.flushes, slot.durable, slot.error) = (0, 0, false, false, None);
        slot.segments.clear();
        slot.got.clear();
        slot.generation = slot.generation.wrapping_add(1);
        id
    }

    pub(super) fn add(&mut self, now: Nanos, io: IoId, request: &Io) {
        let id = self.take(Some(io), request.op, request.offset, request.len);
        self.submitted += 1;
        let slot = &mut self.slots[id];
        slot.segments.extend_from_slice(&request.segments);
        (slot.since, slot.order) = (now, self.submitted);
        self.queue.push_back(id);
    }

    /// Zeros that are written again, before everything else.
    pub(super) fn add_retained(&mut self, start: u64, end: u64) {
        let id = self.take(None, Op::Zero, start, end - start);
        (self.slots[id].since, self.slots[id].order) = (Nanos::MAX, 0);
        self.queue.push_front(id);
    }

    /// Whether retained zeros are still to be answered.
    pub(super) fn has_retained(&self) -> bool {
        let is_retained = |&id: &u32| self.slots[id].io.is_none();
        self.queue.front().is_some_and(is_retained) || self.sent.iter().any(is_retained)
    }

    /// Since when the oldest request waits.
    pub(super) fn oldest(&self) -> Option<Nanos> {
        let sent = self.sent.iter().map(|&id| self.slots[id].since).min();
        let queued = self.queue.front().map(|&id| self.slots[id].since);
        [sent, queued].into_iter().flatten().min().filter(|&since| since < Nanos::MAX)
    }

    /// The first queued request, if it has waited since `until` or longer.
    pub(super) fn take_expired(&mut self, until: Nanos) -> Option<IoId> {
        let id = *self.queue.front().filter(|&&id| self.slots[id].since <= until)?;
        self.queue.pop_front();
        self.slots.give(id);
        self.slots[id].io
    }

    /// The session is over: outstanding requests wait again, in their order, with their whole length. Returns the
    /// flushes, which do not.
    pub(super) fn unsend(&mut self) -> Vec<IoId> {
        let mut waiting: Vec<u32> = self.sent.drain(..).chain(self.queue.drain(..)).collect();
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

    /// The outstanding request with this cookie, and its place.
    fn of_cookie(&self, cookie: u64) -> Option<u32> {
        let id = cookie as u32;
        let is = |id: u32| u64::from(self.slots[id].generation) << 32 | u64::from(id) == cookie;
        self.sent.iter().copied().find(|&sent| sent == id && is(id))
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
            self.slots[id].error.get_or_insert(why);
        }
    }

    /// The segments of `bytes` bytes of a request, from `start` on.
    pub(super) fn segments(&self, id: u32, start: u64, bytes: u64) -> impl Iterator<Item = Segment> + '_ {
        let segments: &[Segment] = if bytes == 0 { &[] } else { &self.slots[id].segments };
        let (mut past, end) = (0, start + bytes);
        segments.iter().filter_map(move |segment| {
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
                Phase::Replaying => is_retained,
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
        self.requests.sent.iter().map(|&sent| &slots[sent]).any(|sent| match slot.kind() {
            Kind::Flush => sent.changes() || sent.kind() == Kind::Flush,
            _ => sent.overlaps(slot) && (sent.changes() || slot.changes()),
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
            self.covered_bytes += std::mem::take(&mut self.unflushed_bytes);
        }
        let cookie = u64::from(slot.generation) << 32 | u64::from(id);
        let offset = if slot.kind() == Kind::Flush { 0 } else { slot.offset + slot.done };
        let header = RawHeader::new(export.form, command, flags, cookie, offset, slot.part);
        let (start, part, has_payload) = (slot.done, slot.part, command == command::WRITE);
        let at = self.least_loaded();
        self.requests.slots[id].link = at;
        self.requests.sent.push(id);
        let link = &mut self.links[at];
        link.outstanding += 1;
        link.used = true;
        if link.stream.is_drained() {
            self.actions.push_back(Action::Send(LinkId(at as u32)));
        }
        link.stream.push(Head::from(header));
        if has_payload {
            for segment in self.requests.segments(id, start, part) {
                link.stream.push_frame(segment);
            }
        }
    }

    /// A reply is complete. An error: the reply violates the protocol, or the server is shutting down.
    pub(super) fn answered(&mut self, cookie: u64) -> Result<(), ()> {
        let Some(id) = self.requests.of_cookie(cookie) else { return Err(()) };
        let slot = &mut self.requests.slots[id];
        let end = slot.done + slot.part;
        if slot.error == Some(Errno::Shutdown) {
            return Err(());
        }
        if slot.error.is_none() && slot.kind() == Kind::Read {
            let whole = slot.got.iter().map(|(from, to)| to - from).sum::<u64>() == end;
            if !whole {
                return Err(());
            }
        }
        self.links[slot.link].outstanding -= 1;
        self.requests.sent.retain(|&sent| sent != id);
        let slot = &mut self.requests.slots[id];
        if slot.error.is_none() {
            slot.done = end;
            slot.generation = slot.generation.wrapping_add(1);
            let without_fua = slot.op == (Op::Write { durable: true }) && !slot.durable && !slot.flushes;
            slot.flushes |= slot.done == slot.len && without_fua;
            if slot.done < slot.len || without_fua {
                // Before the requests that were submitted after it.
                self.requests.queue.push_front(id);
                return Ok(());
            }
        } else if slot.io.is_none() {
            // Without the retained zeros nothing else may be written.
            self.requests.slots.give(id);
            return Err(());
        }
        self.settled(id);
        let slot = &self.requests.slots[id];
        if let Some(io) = slot.io {
            self.actions.push_back(Action::Done(io, slot.error.map_or(Ok(()), Err)));
        }
        self.requests.slots.give(id);
        Ok(())
    }

    /// Records what a complete request means for a lost session.
    fn settled(&mut self, id: u32) {
        let slot = &self.requests.slots[id];
        let (start, end) = (slot.offset, slot.offset + slot.len);
        let is_flush = slot.kind() == Kind::Flush;
        match slot.op {
            _ if slot.error.is_some() => {
                if is_flush {
                    self.zeroed.flush_lost();
                    self.unflushed_bytes += std::mem::take(&mut self.covered_bytes);
                    self.flush_wanted = false;
                }
                return;
            }
            Op::Write { .. } if slot.durable => self.zeroed.remove(start, end),
            Op::Write { .. } if !is_flush => {
                self.zeroed.remove(start, end);
                self.unflushed_bytes += slot.len;
            }
            Op::Zero | Op::Punch if slot.durable => self.zeroed.remove(start, end),
            Op::Zero | Op::Punch if slot.io.is_some() => self.zeroed.add(start, end),
            Op::Write { .. } | Op::Zero | Op::Punch | Op::Read | Op::Flush => {}
        }
        if is_flush {
            self.zeroed.flushed();
            (self.covered_bytes, self.flush_wanted) = (0, false);
            if matches!(slot.op, Op::Write { .. }) {
                self.zeroed.remove(start, end);
            }
        }
        let much = self.unflushed_bytes() > self.settings.unflushed_bytes_max || self.zeroed.is_full();
        if much && !std::mem::replace(&mut self.flush_wanted, true) {
            self.actions.push_back(Action::WantFlush);
        }
    }
}
