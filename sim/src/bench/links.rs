//! Connections between the servers of a [`super::cluster::Cluster`] or of [`super::tiers::Tiers`]: handshake, requests
//! and replies as the engine makes them. They never fail.

use std::collections::{BTreeMap, BTreeSet};

use engine::driver::Driver as _;
use engine::ids::{ConnId, TenantId, VolumeId};
use engine::nbd::wire::command;
use engine::nbd::{Export, Exports, Handshake, Outcome, RawHeader};
use engine::units::Nanos;
use engine::upstream::{self, LinkId, Request};
use engine::{Event, Outgoing};

use super::pipe::{Piece, Pipe};
use super::{Bench, Peer};

/// A connection: the server that has opened it, its volume, and the place in the volume's session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Wire {
    pub(super) client: usize,
    volume: VolumeId,
    link: LinkId,
}

/// What travels.
#[derive(Debug)]
pub(super) enum Chunk {
    Hello,
    Welcome,
    Pieces(Vec<Piece>),
}

/// Something for another server of the cluster.
pub(super) struct Parcel {
    pub(super) to: usize,
    pub(super) at: Nanos,
    pub(super) wire: Wire,
    pub(super) chunk: Chunk,
}

/// The server's end of a connection from another server.
pub(super) struct Port {
    wire: Wire,
    volume: VolumeId,
    pub(super) input: Pipe,
    /// Where the payload of the present request begins in the volume, and how much of it has arrived.
    offset: u64,
    arrived: u64,
    /// Reads so far.
    reads: u64,
    /// What was written as bytes, by offset, if that is kept.
    kept: Option<BTreeMap<u64, Vec<u8>>>,
}

impl Port {
    pub(super) fn take_header(&mut self, bytes: usize) -> Option<RawHeader> {
        let found = self.input.front().get(..bytes)?;
        let header = RawHeader::filled(bytes, |into| into.copy_from_slice(found));
        self.offset = u64::from_be_bytes(header[16..24].try_into().expect("eight bytes"));
        self.arrived = 0;
        self.reads += u64::from(header[6..8] == command::READ.to_be_bytes());
        self.input.take(bytes as u64, |_, _| {});
        Some(header)
    }

    pub(super) fn take_payload(&mut self, most: u64) -> u64 {
        let (at, kept) = (self.offset + self.arrived, &mut self.kept);
        let taken = self.input.take(most, |from, bytes| {
            if let Some(kept) = kept {
                kept.insert(at + from, bytes.to_vec());
            }
        });
        self.arrived += taken;
        taken
    }
}

/// A client in its handshake.
#[derive(Default)]
struct Door {
    handshake: Handshake,
    input: Pipe,
}

/// All connections of a server to others.
#[derive(Default)]
pub(super) struct Links {
    /// The number of this server in the cluster.
    pub(super) number: usize,
    /// The server of each volume that is an export of another one.
    pub(super) servers: BTreeMap<VolumeId, usize>,
    /// Volumes that have a session.
    pub(super) online: BTreeSet<VolumeId>,
    /// What others can open, and its tenant.
    pub(super) exports: Vec<(VolumeId, TenantId, Export)>,
    /// What has arrived on connections of this server to others.
    ups: BTreeMap<Wire, Pipe>,
    doors: BTreeMap<Wire, Door>,
    conns: BTreeMap<Wire, ConnId>,
    to_send: BTreeSet<Wire>,
    pub(super) outbox: Vec<Parcel>,
    /// Headers in stores are kept, so that they can be read.
    pub(super) keeps: bool,
    /// Latency of one direction, if it is not that of clients.
    pub(super) latency_ns: Option<Nanos>,
}

impl Links {
    /// Whether the server has others as clients, or is their client.
    pub(super) fn has_any(&self) -> bool {
        !self.servers.is_empty() || !self.exports.is_empty()
    }
}

impl Bench {
    /// What another server has written as bytes, by offset.
    pub(super) fn kept(&self, volume: VolumeId) -> BTreeMap<u64, Vec<u8>> {
        let ports = self.peers.iter().filter_map(|peer| match peer {
            Peer::Server(port) if port.volume == volume => port.kept.clone(),
            _ => None,
        });
        ports.flatten().collect()
    }

    /// Reads of another server so far.
    pub(super) fn reads_of(&self, client: usize) -> u64 {
        let reads = self.peers.iter().map(|peer| match peer {
            Peer::Server(port) if port.wire.client == client => port.reads,
            _ => 0,
        });
        reads.sum()
    }

    pub(super) fn upstream_asks(&mut self, volume: VolumeId, request: Request) {
        let wire = |link| Wire { client: self.links.number, volume, link };
        match request {
            Request::Open(link) => {
                let wire = wire(link);
                self.links.ups.insert(wire, Pipe::default());
                self.post(self.links.servers[&volume], wire, Chunk::Hello);
            }
            Request::Send(link) => _ = self.links.to_send.insert(wire(link)),
            Request::Online(_) => _ = self.links.online.insert(volume),
            Request::Close { .. } | Request::Refused(_) | Request::Lost(_) | Request::Offline(_) => {
                panic!("{volume:?}: {request:?}, and connections never fail here")
            }
        }
    }

    /// Sends something to another server. It arrives when the thread has done its work and the network has passed it
    /// on.
    fn post(&mut self, to: usize, wire: Wire, chunk: Chunk) {
        let latency_ns = self.links.latency_ns.unwrap_or(self.costs.network_ns);
        let at = self.now.max(self.thread_free_ns) + latency_ns;
        self.links.outbox.push(Parcel { to, at, wire, chunk });
    }

    /// Sends a part of a stream, at the cost of its bytes.
    fn post_pieces(&mut self, to: usize, wire: Wire, pieces: Vec<Piece>) {
        let data: u64 = pieces.iter().map(|piece| if let Piece::Data(len) = piece { *len } else { 0 }).sum();
        self.spend(data / 1024 * self.costs.kib_ns);
        self.post(to, wire, Chunk::Pieces(pieces));
    }

    /// Something has arrived from another server.
    pub(super) fn deliver(&mut self, wire: Wire, chunk: Chunk) {
        if wire.client == self.links.number {
            return self.deliver_up(wire, chunk);
        }
        match chunk {
            Chunk::Hello => {
                self.links.doors.insert(wire, Door::default());
                self.post(wire.client, wire, Chunk::Welcome);
                self.negotiate(wire);
            }
            Chunk::Welcome => unreachable!("a server is not welcomed"),
            Chunk::Pieces(pieces) => {
                let Some(&conn) = self.links.conns.get(&wire) else {
                    self.links.doors.get_mut(&wire).expect("a door").input.push(pieces);
                    return self.negotiate(wire);
                };
                let Peer::Server(port) = &mut self.peers[conn.0 as usize] else { unreachable!("it is a server's") };
                port.input.push(pieces);
                self.cpu.ready(conn);
                self.plan_pass();
            }
        }
    }

    /// Continues the handshake of another server.
    fn negotiate(&mut self, wire: Wire) {
        loop {
            let exports: Vec<Export> = self.links.exports.iter().map(|(.., export)| export.clone()).collect();
            let door = self.links.doors.get_mut(&wire).expect("a door");
            let exports = Exports { volumes: &exports, shutting_down: false };
            let taken = door.handshake.handle(door.input.front(), exports);
            door.input.take(taken as u64, |_, _| {});
            let outcome = door.handshake.outcome();
            let answer = door.handshake.take_outgoing();
            if !answer.is_empty() {
                self.post_pieces(wire.client, wire, vec![Piece::Bytes(answer)]);
            }
            match outcome {
                Outcome::Transmission { export, session } => {
                    let (volume, tenant, _) = self.links.exports[export];
                    let input = self.links.doors.remove(&wire).expect("a door").input;
                    let conn = ConnId(self.peers.len() as u32);
                    let kept = self.links.keeps.then(BTreeMap::new);
                    self.peers.push(Peer::Server(Port { wire, volume, input, offset: 0, arrived: 0, reads: 0, kept }));
                    self.links.conns.insert(wire, conn);
                    self.cpu.attach(conn, tenant);
                    self.cpu.ready(conn);
                    return self.apply(Event::Attach { conn, volume, session });
                }
                Outcome::Closed => panic!("{wire:?}: the handshake has failed"),
                _ if taken == 0 => return,
                _ => {}
            }
        }
    }

    /// Sends replies to another server.
    pub(super) fn send_down(&mut self, conn: ConnId) {
        let Peer::Server(port) = &self.peers[conn.0 as usize] else { unreachable!("it is a server's") };
        let wire = port.wire;
        let (pieces, bytes) = gather(self.server.outgoing(conn));
        if bytes > 0 {
            self.post_pieces(wire.client, wire, pieces);
            let Ok(()) = self.handle(Event::Sent { conn, bytes });
        }
    }

    /// Sends requests to other servers.
    pub(super) fn send_up(&mut self) {
        while let Some(wire) = self.links.to_send.pop_first() {
            let Wire { volume, link, .. } = wire;
            let (pieces, bytes) = gather(self.server.upstream_outgoing(volume, link));
            if bytes > 0 {
                self.spend(self.costs.request_ns);
                self.post_pieces(self.links.servers[&volume], wire, pieces);
                self.tell(volume, upstream::Event::Sent(link, bytes));
            }
        }
    }

    fn tell(&mut self, volume: VolumeId, event: upstream::Event<'_>) {
        let Ok(()) = self.handle(Event::Upstream { volume, event });
    }

    fn deliver_up(&mut self, wire: Wire, chunk: Chunk) {
        let Wire { volume, link, .. } = wire;
        match chunk {
            Chunk::Welcome => self.tell(volume, upstream::Event::Connected(link)),
            Chunk::Pieces(pieces) => {
                self.spend(self.costs.request_ns);
                self.links.ups.get_mut(&wire).expect("it has connected").push(pieces);
                self.feed(wire);
            }
            Chunk::Hello => unreachable!("nobody connects to a client"),
        }
        self.send_all();
        self.plan_pass();
    }

    /// Passes on what has arrived from another server: data to where it belongs, the rest to the engine.
    fn feed(&mut self, wire: Wire) {
        let Wire { volume, link, .. } = wire;
        loop {
            let wanted: u64 = self.server.upstream_data(volume, link).map(|segment| u64::from(segment.len)).sum();
            let input = self.links.ups.get_mut(&wire).expect("it has connected");
            let filled = input.take(wanted, |_, _| {});
            if filled > 0 {
                self.spend(filled / 1024 * self.costs.kib_ns);
                self.tell(volume, upstream::Event::Filled(link, filled));
                continue;
            }
            let bytes = input.front().to_vec();
            if bytes.is_empty() {
                return;
            }
            self.tell(volume, upstream::Event::Received(link, &bytes));
            let taken = self.server.upstream_taken(volume).min(bytes.len()) as u64;
            self.links.ups.get_mut(&wire).expect("it has connected").take(taken, |_, _| {});
        }
    }
}

/// Outgoing bytes, and how many they are.
fn gather<'a>(outgoing: impl Iterator<Item = Outgoing<'a>>) -> (Vec<Piece>, u64) {
    let mut total = 0;
    let pieces = outgoing.map(|part| {
        total += part.bytes();
        match part {
            Outgoing::Bytes(bytes) => Piece::Bytes(bytes.to_vec()),
            Outgoing::Frame { len, .. } => Piece::Data(u64::from(len)),
        }
    });
    let pieces = pieces.collect();
    (pieces, total)
}
