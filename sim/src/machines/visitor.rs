//! A client without a session, as a backup or an operator's tool is one: it writes a part of a gateway's volume at the
//! server.
//!
//! ```text
//!   a visit:  reads at the server, checked ─► reads at the gateway ─► writes at the server ─► sessions are lost
//! ```
//!
//! The gateway only reads that part, and may return outdated content of it: it does not know of the writes. The server
//! must not: what it returns is what the visitor has written there, whatever gateways have in their caches.

use std::collections::VecDeque;

use engine::ids::VolumeId;
use engine::nbd::Part;
use engine::nbd::wire::{command, command_flag};
use engine::units::BLOCK;

use super::World;
use super::clients::SESSION;
use super::network::{Chunk, Host, Service, Wire};
use super::offload::READERS;
use super::setup::SERVER;
use crate::Verdict;
use crate::cell;
use crate::history::History;
use crate::judge::{Judge, PendingByCookie};
use crate::reply::Replies;
use crate::request::{Pending, Request};
use crate::world::NEVER;

/// Its number as a client.
pub(crate) const VISITOR: usize = READERS - 1;
/// The volume that it visits.
const VOLUME: usize = 0;
/// The part that it writes, at the end of the volume: small beside the caches, so that they have all of it at times.
pub(crate) const PART_BYTES: u64 = 16 * BLOCK;
/// Writes of a visit at most, and their blocks.
const WRITES_MAX: u64 = 6;
const BLOCKS_MAX: u64 = 4;

/// What it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Away,
    /// It reads its part at the server.
    Looks,
    /// It reads its part at the gateway.
    Caches,
    /// It writes its part at the server.
    Writes,
}

/// The visitor, with one connection at a time.
pub(crate) struct Visitor {
    /// What is at the server.
    history: History,
    /// The first byte of its part.
    start: u64,
    phase: Phase,
    wire: Option<Wire>,
    replies: Replies,
    pending: PendingByCookie,
    /// Requests that it has still to make, one at a time.
    script: VecDeque<Request>,
}

impl Visitor {
    /// The visitor of a volume of so many bytes.
    pub(crate) fn new(size: u64) -> Visitor {
        Visitor {
            history: History::of_clients(),
            start: size - PART_BYTES,
            phase: Phase::Away,
            wire: None,
            replies: Replies::new(SESSION),
            pending: PendingByCookie::default(),
            script: VecDeque::new(),
        }
    }
}

impl World {
    /// A visit begins. One that has not ended is given up: what it has not been answered may still take effect.
    pub(super) fn visit(&mut self) {
        self.enter(Phase::Looks);
    }

    fn enter(&mut self, phase: Phase) {
        let Some(visitor) = &mut self.visitor else { return };
        let out = &mut self.out;
        if let Some(wire) = visitor.wire.take() {
            out.network.close(out.now, &mut out.queue, wire, 0);
        }
        (visitor.phase, visitor.replies) = (phase, Replies::new(SESSION));
        visitor.pending.clear();
        visitor.script.clear();
        let count = match phase {
            Phase::Away => return,
            Phase::Looks | Phase::Caches => 1,
            Phase::Writes => out.rng.between(1, WRITES_MAX),
        };
        for _ in 0..count {
            self.ops += 1;
            let (start, op) = (visitor.start, self.ops);
            let (command, flags, offset, len) = if phase == Phase::Writes {
                let blocks = out.rng.between(1, BLOCKS_MAX);
                let first = out.rng.below(PART_BYTES / BLOCK - blocks + 1);
                (command::WRITE, command_flag::FUA, start + first * BLOCK, blocks * BLOCK)
            } else {
                (command::READ, 0, start, PART_BYTES)
            };
            visitor.script.push_back(Request { op, cookie: op, command, flags, offset, len: len as u32 });
        }
        let at = if phase == Phase::Caches { self.volumes[VOLUME].front } else { SERVER };
        let hosts = [Host::Client(VISITOR), Host::Machine { at, life: 0 }];
        visitor.wire = Some(out.network.connect(out.now, &mut out.queue, hosts, Service::Volume(VOLUME)));
        self.note(format!("the visitor at machine {at}: {phase:?}"));
    }

    /// Something arrives at the visitor.
    pub(super) fn visitor_receives(&mut self, wire: Wire, what: &Chunk) -> Verdict {
        let Some(visitor) = self.visitor.as_mut().filter(|visitor| visitor.wire == Some(wire)) else { return Ok(()) };
        match what {
            Chunk::Welcome => self.visitor_asks(),
            Chunk::Bytes(bytes) => {
                visitor.replies.feed(bytes);
                let (out, bytes) = (&mut self.out, bytes.len());
                out.network.take(out.now, &mut out.queue, wire, 0, bytes);
                self.judge_visitor()?;
            }
            // The process has died, or does not serve the volume at present.
            Chunk::End | Chunk::Hello => self.enter(Phase::Away),
        }
        Ok(())
    }

    /// The next request, or the next phase.
    fn visitor_asks(&mut self) {
        let Some(visitor) = &mut self.visitor else { return };
        let (Some(wire), Some(request)) = (visitor.wire, visitor.script.pop_front()) else {
            return self.next_phase();
        };
        self.out.step += 1;
        let start = self.out.step;
        visitor.pending.insert(request.cookie, Pending::new(request, start, visitor.start + PART_BYTES, NEVER));
        let mut bytes = request.header(SESSION.form).to_vec();
        if request.command == command::WRITE {
            visitor.history.begin_write(request.op, cell::covered(request.offset, request.len.into()), start);
            let from = bytes.len();
            bytes.resize(from + request.len as usize, 0);
            cell::fill(request.op, request.offset, &mut bytes[from..]);
        }
        self.out.network.send(self.out.now, &mut self.out.queue, wire, 1, Chunk::Bytes(bytes));
    }

    fn next_phase(&mut self) {
        let phase = self.visitor.as_ref().map_or(Phase::Away, |visitor| visitor.phase);
        match phase {
            Phase::Looks if self.is_busy => self.enter(Phase::Caches),
            Phase::Caches => self.enter(Phase::Writes),
            Phase::Looks | Phase::Away => self.enter(Phase::Away),
            Phase::Writes => {
                self.enter(Phase::Away);
                // What the gateway has read belongs to an earlier session from now on.
                if self.is_busy && !self.out.rng.one_in(4) {
                    self.lose_all(self.volumes[VOLUME].front);
                }
            }
        }
    }

    fn judge_visitor(&mut self) -> Verdict {
        loop {
            let Some(visitor) = &mut self.visitor else { return Ok(()) };
            let pending = &mut visitor.pending;
            let asked = |cookie| Some(pending.get(&cookie)?.request.asked());
            let part = visitor.replies.next(asked).map_err(|what| format!("the visitor: {what}"))?;
            let Some((cookie, part, data)) = part else { return Ok(()) };
            let done = if visitor.phase == Phase::Caches {
                (part == Part::Done).then(|| pending.remove(&cookie)).map(|_| None)
            } else {
                let mut judge = Judge { pending, history: &mut visitor.history, step: self.out.step };
                let what = |what| format!("at the server, to a client without a session: {what}");
                judge.part(cookie, part, data).map_err(what)?.map(Some)
            };
            let Some(done) = done else { continue };
            if let Some(pending) = done {
                self.visitor_answered(&pending)?;
            }
            self.visitor_asks();
        }
    }

    /// Its writes are durable when they are answered.
    fn visitor_answered(&mut self, pending: &Pending) -> Verdict {
        self.out.step += 1;
        let (request, step) = (pending.request, self.out.step);
        let Some(visitor) = self.visitor.as_mut().filter(|_| pending.error.is_none()) else { return Ok(()) };
        if request.command != command::WRITE {
            return Ok(());
        }
        let cells = cell::covered(request.offset, request.len.into());
        visitor.history.acknowledge(request.op, cells.clone(), step, true, pending.start);
        let medium = self.machines[SERVER].disk.medium(VolumeId(VOLUME as u32));
        visitor.history.check_durable(medium, cells)
    }

    /// Nothing fails any more: what the visitor has written is there.
    pub(super) fn last_visit(&mut self) -> Verdict {
        if self.visitor.is_none() {
            return Ok(());
        }
        self.visit();
        self.until("the last visit", |world| world.visitor.as_ref().is_some_and(|of| of.phase == Phase::Away))?;
        let is_seen = self.visitor.as_ref().is_some_and(|visitor| visitor.pending.is_empty());
        if is_seen { Ok(()) } else { Err("the visitor is not answered although nothing is wrong".into()) }
    }

    /// After a last power cut.
    pub(super) fn check_visited(&mut self) -> Verdict {
        let Some(visitor) = &mut self.visitor else { return Ok(()) };
        visitor.history.power_cut(self.machines[SERVER].disk.medium(VolumeId(VOLUME as u32)))
    }
}
