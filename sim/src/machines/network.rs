//! The network between machines: connections that keep the order of their bytes, and nothing else.
//!
//! ```text
//!   side 0 ── chunks, each with its time of arrival ──► side 1        later with latency, bandwidth, a partition
//!          ◄───────────────────────────────────────────
//! ```
//!
//! A connection may be lost: a part of what is on the way still arrives, perhaps seconds later, and each end learns of
//! the loss at its own time. What an end sends afterwards is lost. That an end closes the connection still reaches the
//! other one: a packet of a connection that its peer does not have is answered with a reset.

use std::collections::{BTreeMap, VecDeque};

use engine::units::{MILLISECOND, Nanos, SECOND};

use super::Wake;
use crate::queue::Queue;
use crate::rng::Rng;

/// How often at most something is sent again to a machine that is not reached.
const CUT_NS: Nanos = 100 * MILLISECOND;

/// The number of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Wire(pub(crate) u64);

/// An end of a connection: 0 for the one that connects, 1 for the one that accepts.
pub(crate) type Side = usize;

/// A program that has connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Host {
    /// The process of a machine; without one (0), any process that there is.
    Machine { at: usize, life: u64 },
    /// A client of a volume.
    Client(usize),
}

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Service {
    /// An export, which the handshake names.
    Export,
    /// A volume of a gateway, without a handshake.
    Volume(usize),
}

/// Something that arrives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Chunk {
    /// The other side connects.
    Hello,
    /// The connection is established.
    Welcome,
    /// They are in the input now.
    Bytes(Vec<u8>),
    /// The other side has closed the connection.
    End,
}

/// The way to one side.
#[derive(Default, Debug)]
struct Way {
    on_the_way: VecDeque<(Nanos, Chunk)>,
    /// When the last chunk arrives, and until when the link transmits.
    last_at: Nanos,
    free_at: Nanos,
    /// Bytes on the way and in the input.
    unread: u64,
    input: VecDeque<u8>,
    /// The sender waits for room.
    starved: bool,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) hosts: [Host; 2],
    pub(crate) service: Service,
    ways: [Way; 2],
    is_open: [bool; 2],
    is_lost: bool,
}

/// How fast the network is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Speed {
    pub(crate) latency_ns: Nanos,
    pub(crate) byte_ns: Nanos,
    /// Unread bytes of a connection in one direction.
    pub(crate) buffer_bytes: u64,
}

/// All connections.
pub(crate) struct Network {
    speed: Speed,
    rng: Rng,
    connections: BTreeMap<Wire, Connection>,
    made: u64,
    /// Pairs of machines that cannot reach each other, until then.
    partitions: Vec<(usize, usize, Nanos)>,
    /// Two machines that do not reach each other.
    is_cut: Option<(usize, usize)>,
}

impl Connection {
    fn machines(&self) -> Option<(usize, usize)> {
        match self.hosts {
            [Host::Machine { at: one, .. }, Host::Machine { at: other, .. }] => Some((one, other)),
            _ => None,
        }
    }
}

impl Network {
    pub(crate) fn new(speed: Speed, rng: Rng) -> Network {
        Network { speed, rng, connections: BTreeMap::new(), made: 0, partitions: Vec::new(), is_cut: None }
    }

    pub(crate) fn get(&self, wire: Wire) -> Option<&Connection> {
        self.connections.get(&wire)
    }

    /// The connection is accepted by this process.
    pub(crate) fn accepted(&mut self, wire: Wire, life: u64) {
        if let Some(Host::Machine { life: of, .. }) = self.connections.get_mut(&wire).map(|found| &mut found.hosts[1]) {
            *of = life;
        }
    }

    pub(crate) fn connect(&mut self, now: Nanos, queue: &mut Queue<Wake>, hosts: [Host; 2], service: Service) -> Wire {
        self.made += 1;
        let (wire, ways) = (Wire(self.made), Default::default());
        self.connections.insert(wire, Connection { hosts, service, ways, is_open: [true; 2], is_lost: false });
        // The first packet may be lost, and is sent again a second later.
        let later_ns = if self.rng.one_in(50) { SECOND } else { 0 };
        self.send_later(now, later_ns, queue, wire, 1, Chunk::Hello);
        wire
    }

    /// Sends something to a side, unless the connection is lost.
    pub(crate) fn send(&mut self, now: Nanos, queue: &mut Queue<Wake>, wire: Wire, to: Side, what: Chunk) {
        self.send_later(now, 0, queue, wire, to, what);
    }

    fn send_later(&mut self, now: Nanos, later_ns: Nanos, queue: &mut Queue<Wake>, wire: Wire, to: Side, what: Chunk) {
        let (speed, rng) = (self.speed, &mut self.rng);
        let Some(connection) = self.connections.get_mut(&wire) else { return };
        if connection.is_lost && what != Chunk::End {
            return;
        }
        let bytes = if let Chunk::Bytes(bytes) = &what { bytes.len() as u64 } else { 0 };
        let way = &mut connection.ways[to];
        way.free_at = now.max(way.free_at) + bytes * speed.byte_ns;
        let at = way.free_at + later_ns + rng.between(speed.latency_ns / 2, speed.latency_ns);
        way.last_at = way.last_at.max(at);
        way.unread += bytes;
        way.on_the_way.push_back((way.last_at, what));
        queue.push(way.last_at, Wake::Deliver(wire, to));
    }

    /// How many bytes a side may send now; it is told when it may send more.
    pub(crate) fn room(&mut self, wire: Wire, from: Side) -> u64 {
        let Some(connection) = self.connections.get_mut(&wire) else { return u64::MAX };
        if connection.is_lost {
            return u64::MAX;
        }
        let way = &mut connection.ways[1 - from];
        way.starved = way.unread >= self.speed.buffer_bytes;
        self.speed.buffer_bytes.saturating_sub(way.unread)
    }

    /// What arrives at a side now.
    pub(crate) fn deliver(&mut self, now: Nanos, queue: &mut Queue<Wake>, wire: Wire, to: Side) -> Option<Chunk> {
        let connection = self.connections.get_mut(&wire)?;
        if let Some((one, other)) = connection.machines() {
            let of = |&&(a, b, _): &&(usize, usize, Nanos)| (a, b) == (one, other) || (a, b) == (other, one);
            if self.is_cut.is_some_and(|cut| cut == (one, other) || cut == (other, one)) {
                queue.push(now + CUT_NS + self.rng.below(CUT_NS), Wake::Deliver(wire, to));
                return None;
            }
            if let Some(until) = self.partitions.iter().filter(of).map(|part| part.2).max().filter(|&at| at > now) {
                queue.push(until + self.rng.below(MILLISECOND), Wake::Deliver(wire, to));
                return None;
            }
        }
        let way = &mut connection.ways[to];
        let at = way.on_the_way.front()?.0;
        if at > now {
            queue.push(at, Wake::Deliver(wire, to));
            return None;
        }
        let (_, what) = way.on_the_way.pop_front()?;
        if let Chunk::Bytes(bytes) = &what {
            if !connection.is_open[to] {
                way.unread -= bytes.len() as u64;
                return None;
            }
            way.input.extend(bytes);
        }
        self.forget(wire);
        Some(what)
    }

    /// The bytes that have arrived at a side.
    pub(crate) fn input(&mut self, wire: Wire, side: Side) -> &[u8] {
        self.connections.get_mut(&wire).map_or(&[], |connection| connection.ways[side].input.make_contiguous())
    }

    pub(crate) fn input_bytes(&self, wire: Wire, side: Side) -> usize {
        self.connections.get(&wire).map_or(0, |connection| connection.ways[side].input.len())
    }

    /// A side has taken bytes of its input.
    pub(crate) fn take(&mut self, now: Nanos, queue: &mut Queue<Wake>, wire: Wire, side: Side, bytes: usize) {
        let Some(connection) = self.connections.get_mut(&wire) else { return };
        let way = &mut connection.ways[side];
        way.input.drain(..bytes);
        way.unread -= bytes as u64;
        if std::mem::take(&mut way.starved) {
            queue.push(now + self.speed.latency_ns, Wake::Room(wire, 1 - side));
        }
    }

    /// A side closes the connection: it receives nothing more, and what it has sent still arrives.
    pub(crate) fn close(&mut self, now: Nanos, queue: &mut Queue<Wake>, wire: Wire, side: Side) {
        let Some(connection) = self.connections.get_mut(&wire) else { return };
        if !std::mem::replace(&mut connection.is_open[side], false) {
            return;
        }
        connection.ways[side].unread -= connection.ways[side].input.len() as u64;
        connection.ways[side].input.clear();
        // The packet that says so may be lost, too.
        let later_ns = if self.rng.one_in(6) { self.rng.below(3 * SECOND) } else { 0 };
        self.send_later(now, later_ns, queue, wire, 1 - side, Chunk::End);
    }

    /// A machine loses power: nobody there sends or receives on this connection any more, and nobody is told.
    pub(crate) fn unplug(&mut self, wire: Wire, side: Side) {
        let Some(connection) = self.connections.get_mut(&wire) else { return };
        connection.ways[side].input.clear();
        connection.ways[side].on_the_way.retain(|(_, what)| *what == Chunk::End);
        connection.ways[side].unread = 0;
    }

    fn forget(&mut self, wire: Wire) {
        let is_over =
            |found: &Connection| found.is_open == [false; 2] && found.ways.iter().all(|way| way.on_the_way.is_empty());
        if self.connections.get(&wire).is_some_and(is_over) {
            self.connections.remove(&wire);
        }
    }

    /// A connection is lost.
    pub(crate) fn lose(&mut self, now: Nanos, queue: &mut Queue<Wake>, wire: Wire) {
        let rng = &mut self.rng;
        let Some(connection) = self.connections.get_mut(&wire) else { return };
        if std::mem::replace(&mut connection.is_lost, true) {
            return;
        }
        let slow_ns = rng.pick(&[MILLISECOND, 100 * MILLISECOND, 5 * SECOND]);
        for side in 0..2 {
            let way = &mut connection.ways[side];
            let kept = rng.below(way.on_the_way.len() as u64 + 1) as usize;
            let mut end = None;
            for (at, dropped) in way.on_the_way.drain(kept..) {
                match dropped {
                    Chunk::Bytes(bytes) => way.unread -= bytes.len() as u64,
                    Chunk::End => end = Some((at, Chunk::End)),
                    Chunk::Hello | Chunk::Welcome => {}
                }
            }
            way.on_the_way.extend(end);
            let late_ns = rng.below(slow_ns);
            for (at, _) in &mut way.on_the_way {
                *at += late_ns;
                way.last_at = way.last_at.max(*at);
            }
            let learns_ns = rng.pick(&[MILLISECOND, 100 * MILLISECOND, 8 * SECOND]);
            queue.push(now + rng.below(learns_ns), Wake::Broken(wire, side));
        }
    }

    /// Packets to the side that has accepted a connection were dropped, and the sender waits before it sends them
    /// again: nothing is lost, but what was sent, and is sent yet, arrives later. A new connection does not wait, and a
    /// kernel sends what a process has written after the process has died.
    pub(crate) fn stall(&mut self, now: Nanos, wire: Wire, late_ns: Nanos) {
        let Some(connection) = self.connections.get_mut(&wire) else { return };
        let way = &mut connection.ways[1];
        way.on_the_way.iter_mut().for_each(|(at, _)| *at += late_ns);
        way.last_at = way.last_at.max(now) + late_ns;
    }

    /// Two machines cannot reach each other for a while.
    pub(crate) fn part(&mut self, one: usize, other: usize, until: Nanos) {
        self.partitions.push((one, other, until));
    }

    /// Two machines do not reach each other until everything is healed, and lose the connections between them.
    pub(crate) fn cut(&mut self, now: Nanos, queue: &mut Queue<Wake>, one: usize, other: usize) {
        self.is_cut = Some((one, other));
        let between = |found: &Connection| found.machines().is_some_and(|of| of == (one, other) || of == (other, one));
        let wires = self.connections.iter().filter(|(_, found)| between(found)).map(|(&wire, _)| wire);
        wires.collect::<Vec<_>>().into_iter().for_each(|wire| self.lose(now, queue, wire));
    }

    /// Everything is reachable again.
    pub(crate) fn heal(&mut self) {
        self.partitions.clear();
        self.is_cut = None;
    }

    /// The open ends of a process.
    pub(crate) fn ends_of(&self, at: usize, life: u64) -> Vec<(Wire, Side)> {
        let host = Host::Machine { at, life };
        let ends = |(&wire, found): (&Wire, &Connection)| {
            let is_end = [0, 1].map(|side| found.hosts[side] == host && found.is_open[side]);
            (0..2).filter(move |&side| is_end[side]).map(move |side| (wire, side))
        };
        self.connections.iter().flat_map(ends).collect()
    }

    /// Whether another machine still has an end of a connection that a process of this one has opened.
    pub(crate) fn has_peers_of(&self, machine: usize) -> bool {
        let is_of = |found: &Connection| matches!(found.hosts[0], Host::Machine { at, .. } if at == machine);
        let is_accepted = |found: &Connection| !matches!(found.hosts[1], Host::Machine { life: 0, .. });
        self.connections.values().any(|found| is_of(found) && found.is_open[1] && is_accepted(found))
    }

    /// Nobody accepts a connection at present: it is tried again, unless the other side has given up.
    pub(crate) fn knock_again(&mut self, now: Nanos, queue: &mut Queue<Wake>, wire: Wire) {
        if !self.connections.get(&wire).is_some_and(|connection| connection.is_open[0]) {
            self.connections.remove(&wire);
            return;
        }
        self.send_later(now, SECOND / 2, queue, wire, 1, Chunk::Hello);
    }

    /// Those that a machine has opened to others.
    pub(crate) fn of_machine(&self, machine: usize) -> Vec<Wire> {
        let of = |found: &Connection| matches!(found.hosts[0], Host::Machine { at, .. } if at == machine);
        self.connections.iter().filter(|(_, found)| of(found)).map(|(&wire, _)| wire).collect()
    }

    /// Connections between machines that are not lost.
    pub(crate) fn between_machines(&self) -> Vec<Wire> {
        let found = self.connections.iter().filter(|(_, found)| found.machines().is_some() && !found.is_lost);
        found.map(|(&wire, _)| wire).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: [Host; 2] = [Host::Machine { at: 1, life: 1 }, Host::Machine { at: 0, life: 1 }];

    fn network() -> (Network, Queue<Wake>) {
        let speed = Speed { latency_ns: 1000, byte_ns: 1, buffer_bytes: 10 };
        (Network::new(speed, Rng::new(3)), Queue::default())
    }

    /// What arrives until nothing is planned any more, with its time.
    fn run(network: &mut Network, queue: &mut Queue<Wake>) -> Vec<(Nanos, Side, Chunk)> {
        let mut arrived = Vec::new();
        while let Some((now, wake)) = queue.pop() {
            if let Wake::Deliver(wire, side) = wake
                && let Some(what) = network.deliver(now, queue, wire, side)
            {
                arrived.push((now, side, what));
            }
        }
        arrived
    }

    #[test]
    fn bytes_arrive_in_order_and_before_the_end() {
        let (mut network, mut queue) = network();
        let wire = network.connect(0, &mut queue, HOSTS, Service::Export);
        for byte in 0..5 {
            network.send(0, &mut queue, wire, 1, Chunk::Bytes(vec![byte; 2]));
        }
        assert_eq!(network.room(wire, 0), 0);
        network.part(0, 1, SECOND);
        network.close(0, &mut queue, wire, 0);
        let arrived = run(&mut network, &mut queue);
        assert_eq!(arrived.len(), 7);
        assert!(arrived[0].2 == Chunk::Hello && arrived[6].2 == Chunk::End && arrived[0].0 >= SECOND);
        assert_eq!(network.input(wire, 1), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
        network.take(2 * SECOND, &mut queue, wire, 1, 10);
        assert!(matches!(queue.pop(), Some((_, Wake::Room(of, 0))) if of == wire));
    }

    #[test]
    fn of_a_lost_connection_a_beginning_arrives_and_the_end_that_a_side_makes() {
        let mut counts = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let (mut network, mut queue) = network();
            network.rng = Rng::new(seed);
            let wire = network.connect(0, &mut queue, HOSTS, Service::Export);
            (0..3).for_each(|byte| network.send(0, &mut queue, wire, 1, Chunk::Bytes(vec![byte])));
            network.lose(0, &mut queue, wire);
            network.send(0, &mut queue, wire, 1, Chunk::Bytes(vec![9]));
            network.close(0, &mut queue, wire, 0);
            let arrived = run(&mut network, &mut queue);
            assert_eq!(arrived.last().unwrap().2, Chunk::End);
            let bytes = network.input(wire, 1);
            assert!([0, 1, 2].starts_with(bytes), "{bytes:?}");
            counts.insert(bytes.len());
        }
        assert_eq!(counts.len(), 4);
    }
}
