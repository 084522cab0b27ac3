//! The disk thread's state of a connection, and its input: bytes that were received and not consumed yet.

use std::sync::Arc;

use engine::cpu::ReceiveDelay;
use engine::ids::{TenantId, VolumeId};
use engine::nbd::RawHeader;
use engine::units::Nanos;

use super::places::Place;
use crate::peer::Peer;
use crate::reactor::{BufferId, Reactor};
use crate::sessions::Lease;

/// A stash with a larger capacity is shrunk when it is empty, bytes: more than any part of a header.
const STASH_KEPT: usize = 512;

/// The phase of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Requests are received, replies are sent.
    Open,
    /// Remaining replies are sent.
    Finishing {
        /// The connection is closed if the peer accepts none of them before this moment.
        deadline: Nanos,
        /// The connection is closed at this moment, however many replies remain, because closing a volume waits for it.
        ends: Nanos,
    },
    /// The socket is being closed.
    Closing,
    /// The socket is closed; the engine may still refer to the connection.
    Closed,
}

/// The data of a client from its handshake.
pub struct Handed {
    /// The volume that it opened.
    pub volume: VolumeId,
    /// Bytes received beyond the handshake.
    pub received: Vec<u8>,
    /// Whether the client may only read.
    pub read_only: bool,
    /// The client's identity.
    pub peer: Peer,
    /// Its seat.
    pub seat: Option<Arc<Place>>,
    /// Its part in a session that it has claimed.
    pub lease: Option<Lease>,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// The volume that it opened.
    pub volume: VolumeId,
    /// Whether the client may only read.
    pub read_only: bool,
    /// The tenant in whose quantum it is served.
    pub tenant: TenantId,
    /// Its phase.
    pub phase: Phase,
    /// Bytes received and not consumed.
    pub input: Input,
    /// When the latest of these bytes were received, or later if the connection was paused until then.
    pub since: Nanos,
    /// Whether a receive is in flight, or will be after a delay.
    pub receiving: bool,
    /// The delay before the next receive; `None` for peers on a network.
    pub delay: Option<ReceiveDelay>,
    /// Requests from the last receive so far.
    pub received: u32,
    /// Whether a send is in flight.
    pub sending: bool,
    /// The start of a pass, and the bytes that were sent in it: 0 if the tenant had used up its part of the pass.
    pub given: (Nanos, u64),
    /// Whether it is queued for sending in this pass.
    pub send_queued: bool,
    /// Whether the peer has shut down its side.
    pub peer_ended: bool,
    /// The client's identity, for the log.
    pub peer: Peer,
    /// Returned when this connection is forgotten.
    _seat: Option<Arc<Place>>,
    /// Its part in a session that it has claimed; dropped when this connection is forgotten.
    pub lease: Option<Lease>,
}

impl Connection {
    /// A new connection.
    pub fn new(client: Handed, tenant: TenantId, local: bool, now: Nanos) -> Connection {
        let Handed { volume, received, read_only, peer, seat, lease } = client;
        Connection {
            volume,
            read_only,
            tenant,
            phase: Phase::Open,
            input: Input { stash: received, ..Input::default() },
            since: now,
            receiving: false,
            delay: local.then(ReceiveDelay::default),
            received: 0,
            sending: false,
            given: (0, 0),
            send_queued: false,
            peer_ended: false,
            peer,
            _seat: seat,
            lease,
        }
    }
}

/// Received bytes: those of the stash, then those of a held receive buffer.
#[derive(Debug, Default)]
pub struct Input {
    stash: Vec<u8>,
    /// Consumed bytes of the stash.
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
    /// Adds a received buffer. Nothing more is received while one is held.
    pub fn hold(&mut self, buffer: BufferId, len: usize) {
        assert!(self.held.is_none(), "one buffer at a time");
        self.held = Some(Held { buffer, start: 0, end: len });
    }

    /// Whether a buffer is held.
    pub fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.stash.len() - self.stash_used + self.held.map_or(0, |held| held.end - held.start)
    }

    /// The first bytes, as far as they are contiguous.
    pub fn front<'a>(&'a self, reactor: &'a impl Reactor) -> &'a [u8] {
        match self.held {
            _ if self.stash_used < self.stash.len() => &self.stash[self.stash_used..],
            Some(held) => &reactor.buffer(held.buffer)[held.start..held.end],
            None => &[],
        }
    }

    /// Consumes the first `bytes` of `front`.
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

    /// Consumes a whole header of `bytes` bytes, if there is one. Part of a header is moved to the stash, so that it
    /// does not hold a buffer.
    pub fn take_header(&mut self, bytes: usize, reactor: &mut impl Reactor) -> Option<RawHeader> {
        if self.len() < bytes {
            self.shelve(reactor);
            return None;
        }
        Some(RawHeader::filled(bytes, |mut rest| {
            while !rest.is_empty() {
                let front = self.front(reactor);
                let part = front.len().min(rest.len());
                rest[..part].copy_from_slice(&front[..part]);
                self.consume(part, reactor);
                rest = &mut rest[part..];
            }
        }))
    }

    /// Moves the bytes of the held buffer to the stash, so that other connections can use the buffer.
    pub fn shelve(&mut self, reactor: &mut impl Reactor) {
        if let Some(held) = self.held.take() {
            self.stash.drain(..self.stash_used);
            self.stash_used = 0;
            self.stash.extend_from_slice(&reactor.buffer(held.buffer)[held.start..held.end]);
            reactor.release(held.buffer);
        }
    }

    /// Drops all bytes.
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
