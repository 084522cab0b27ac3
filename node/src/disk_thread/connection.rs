//! A connection as the disk's thread sees it: how far it is, and the bytes that arrived and were not yet wanted.

use std::sync::Arc;

use engine::control::TenantId;
use engine::disk::VolumeId;
use engine::nbd::wire::REQUEST_BYTES;
use engine::units::Nanos;

use super::places::Place;
use super::rest::Rest;
use crate::peer::Peer;
use crate::reactor::{BufferId, Reactor};

/// Stashes larger than this give their memory back when they are empty, bytes: more than any part of a header.
const STASH_KEPT: usize = 512;

/// How far a connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Requests come in, replies go out.
    Open,
    /// What is outgoing is still sent, if the peer takes some of it before this moment.
    Finishing(Nanos),
    /// The socket is being closed.
    Closing,
    /// Closed; the engine may still refer to it.
    Closed,
}

/// What a connection keeps of its client.
pub struct Handed {
    /// What it opened.
    pub volume: VolumeId,
    /// Bytes read beyond the handshake.
    pub received: Vec<u8>,
    /// It may not change the volume.
    pub read_only: bool,
    /// Who it is.
    pub peer: Peer,
    /// Its seat.
    pub seat: Option<Arc<Place>>,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// What it uses.
    pub volume: VolumeId,
    /// It may not change the volume.
    pub read_only: bool,
    /// Whose turn it takes.
    pub tenant: TenantId,
    /// How far it is.
    pub phase: Phase,
    /// What was received and not used.
    pub input: Input,
    /// When the latest of that was received, or could be used at last.
    pub since: Nanos,
    /// A receive is in flight, or will be when the connection has rested.
    pub receiving: bool,
    /// How long it rests before more is received; not for peers on a network.
    pub rest: Option<Rest>,
    /// Requests that the last receive brought, so far.
    pub brought: u32,
    /// A send is in flight.
    pub sending: bool,
    /// In the pass that began then, so many of its outgoing bytes went to its socket: none if its tenant might send no
    /// more.
    pub given: (Nanos, u64),
    /// Waits for its turn.
    pub queued: bool,
    /// Will be looked at when the pass sends.
    pub send_queued: bool,
    /// The peer sends no more.
    pub peer_ended: bool,
    /// Who it is, for the log.
    pub peer: Peer,
    /// Given back when this connection is forgotten.
    _seat: Option<Arc<Place>>,
}

impl Connection {
    /// A new one.
    pub fn new(client: Handed, tenant: TenantId, local: bool, now: Nanos) -> Connection {
        let Handed { volume, received, read_only, peer, seat } = client;
        Connection {
            volume,
            read_only,
            tenant,
            phase: Phase::Open,
            input: Input { stash: received, ..Input::default() },
            since: now,
            receiving: false,
            rest: local.then(Rest::default),
            brought: 0,
            sending: false,
            given: (0, 0),
            queued: false,
            send_queued: false,
            peer_ended: false,
            peer,
            _seat: seat,
        }
    }
}

/// Received bytes: first those of the stash, then those of a held receive buffer.
#[derive(Debug, Default)]
pub struct Input {
    stash: Vec<u8>,
    /// Bytes of the stash that were used.
    stash_used: usize,
    held: Option<Held>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    buffer: BufferId,
    start: usize,
    end: usize,
}

impl Input {
    /// Adds a buffer that was received. Nothing is received while one is held.
    pub fn hold(&mut self, buffer: BufferId, len: usize) {
        assert!(self.held.is_none(), "one buffer at a time");
        self.held = Some(Held { buffer, start: 0, end: len });
    }

    /// Whether a buffer is held.
    pub fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Bytes there are.
    pub fn len(&self) -> usize {
        self.stash.len() - self.stash_used + self.held.map_or(0, |held| held.end - held.start)
    }

    /// The next bytes, as far as they are in one place.
    pub fn front<'a>(&'a self, reactor: &'a impl Reactor) -> &'a [u8] {
        match self.held {
            _ if self.stash_used < self.stash.len() => &self.stash[self.stash_used..],
            Some(held) => &reactor.buffer(held.buffer)[held.start..held.end],
            None => &[],
        }
    }

    /// The next `bytes` of `front` are used.
    pub fn consume(&mut self, bytes: usize, reactor: &mut impl Reactor) {
        if self.stash_used < self.stash.len() {
            self.stash_used += bytes;
            if self.stash_used == self.stash.len() {
                self.clear_stash();
            }
            return;
        }
        let held = self.held.as_mut().expect("only what is there is used");
        held.start += bytes;
        if held.start == held.end {
            reactor.release(held.buffer);
            self.held = None;
        }
    }

    /// A whole header, if there is one. The part of one is stashed, so that no buffer is held for it.
    pub fn take_header(&mut self, reactor: &mut impl Reactor) -> Option<[u8; REQUEST_BYTES]> {
        if let Some(&header) = self.front(reactor).first_chunk() {
            self.consume(REQUEST_BYTES, reactor);
            return Some(header);
        }
        if self.len() < REQUEST_BYTES {
            self.shelve(reactor);
            return None;
        }
        let mut header = [0; REQUEST_BYTES];
        let mut filled = 0;
        while filled < REQUEST_BYTES {
            let front = self.front(reactor);
            let part = front.len().min(REQUEST_BYTES - filled);
            header[filled..filled + part].copy_from_slice(&front[..part]);
            self.consume(part, reactor);
            filled += part;
        }
        Some(header)
    }

    /// Moves what is held to the stash, for others to have the buffer.
    pub fn shelve(&mut self, reactor: &mut impl Reactor) {
        if let Some(held) = self.held.take() {
            self.stash.drain(..self.stash_used);
            self.stash_used = 0;
            self.stash.extend_from_slice(&reactor.buffer(held.buffer)[held.start..held.end]);
            reactor.release(held.buffer);
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self, reactor: &mut impl Reactor) {
        self.clear_stash();
        if let Some(held) = self.held.take() {
            reactor.release(held.buffer);
        }
    }

    fn clear_stash(&mut self) {
        self.stash_used = 0;
        self.stash.clear();
        self.stash.shrink_to(STASH_KEPT);
    }
}
