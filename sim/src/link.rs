//! One connection: a socket in both directions, and the client at its far end.
//!
//! ```text
//!   client ──items──► (net delay) ──arrived──► engine        bounded by `in_bytes`
//!   client ◄──buffered── (client reads at its pace) ◄── engine    bounded by `out_bytes`
//! ```
//!
//! The stream to the server is kept as what it means, headers and payloads, and becomes bytes on delivery. Replies are
//! taken apart and judged as they leave the engine: the client's pace makes pressure, but no slack for the checkers.

use std::collections::VecDeque;

use engine::cache::FrameId;
use engine::disk::VolumeId;
use engine::nbd::wire::REQUEST_BYTES;
use engine::units::Nanos;
use engine::{ConnId, Session};

use crate::access::Client;
use crate::judge::PendingByCookie;
use crate::reply::Replies;
use crate::request::Request;
use crate::rng::Rng;
use crate::stall::Midway;
use crate::workload::Manners;

/// A part of the stream to the server.
#[derive(Clone, Debug)]
pub enum Item {
    /// 28 bytes; no request if they are garbage.
    Header([u8; REQUEST_BYTES], Option<Request>),
    /// The payload of a write, of which so many bytes were delivered.
    Payload(Request, u64),
}

impl Item {
    /// Bytes that are not delivered.
    pub fn rest(&self) -> u64 {
        match self {
            Item::Header(..) => REQUEST_BYTES as u64,
            Item::Payload(request, done) => u64::from(request.len) - done,
        }
    }
}

/// How a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Both ends are there.
    Open,
    /// The client will send no more; the server is to answer what it has, then close.
    Leaving,
    /// The client is gone, without a word.
    Vanished,
    /// The server wants it closed when everything is sent.
    Closing,
    /// `Event::Closed` was given.
    Closed,
}

/// A connection.
#[derive(Debug)]
pub struct Link {
    /// Its slot.
    pub conn: ConnId,
    /// What it opened.
    pub volume: VolumeId,
    /// Who is at its far end.
    pub client: Client,
    /// It may not use its volume any more, or not in this way.
    pub revoked: bool,
    /// What was agreed on.
    pub session: Session,
    /// How it stands.
    pub state: State,
    /// How the client behaves.
    pub manners: Manners,
    /// The client's dice.
    pub rng: Rng,
    /// What the client wrote and the server has not taken.
    pub items: VecDeque<Item>,
    /// Bytes of `items`.
    pub written: u64,
    /// Bytes of those that the server could take now.
    pub arrived: u64,
    /// Bytes at the end of `items` that the client does not send, or not yet.
    pub withheld: u64,
    /// It was in the middle of this payload when the world last looked.
    pub(crate) midway: Midway,
    /// The engine said that it does not want to read.
    pub paused: bool,
    /// Reply bytes that the client has not read.
    pub buffered: u64,
    /// Reply bytes sent in all.
    pub sent: u64,
    /// There is, or may be, something to send.
    pub sending: bool,
    /// When the server last sent something, or began to have something to send.
    pub took_at: Nanos,
    /// Outgoing bytes (counted from the beginning) whose frames are watched.
    pub watched: u64,
    /// Frames that are watched until so many bytes are sent.
    pub frames: VecDeque<(u64, FrameId)>,
    /// Reply bytes that are not taken apart.
    pub replies: Replies,
    /// Requests that the server has the header of.
    pub pending: PendingByCookie,
    /// Requests that the client has no complete answer to.
    pub outstanding: u32,
    /// Where in the reply bytes answers are complete.
    pub answers: VecDeque<u64>,
    /// Where its last read in a row ended.
    pub read_to: u64,
    /// Requests that the client will still make.
    pub requests_left: u64,
    /// What it is to ask for, in this order, if that was decided beforehand.
    pub script: VecDeque<Request>,
    /// It sent bytes that are no request: the server must close.
    pub garbage: bool,
    /// The client said goodbye: all that it asked for must be answered.
    pub polite: bool,
    /// A happening of each kind is planned.
    pub planned: Planned,
}

/// What is planned for a connection: nothing is planned twice.
#[derive(Clone, Copy, Default, Debug)]
pub struct Planned {
    /// More bytes arrive at the server.
    pub arrive: bool,
    /// The server sends.
    pub send: bool,
    /// The client reads.
    pub drain: bool,
    /// The client thinks.
    pub think: bool,
    /// The server takes what has arrived.
    pub receive: bool,
}

impl Link {
    /// A new connection.
    pub fn new(conn: ConnId, volume: VolumeId, session: Session, manners: Manners, rng: Rng) -> Link {
        Link {
            conn,
            volume,
            client: 0,
            revoked: false,
            session,
            state: State::Open,
            rng,
            items: VecDeque::new(),
            written: 0,
            arrived: 0,
            withheld: 0,
            midway: None,
            paused: false,
            buffered: 0,
            sent: 0,
            sending: false,
            took_at: 0,
            watched: 0,
            frames: VecDeque::new(),
            replies: Replies::default(),
            pending: PendingByCookie::default(),
            outstanding: 0,
            answers: VecDeque::new(),
            read_to: 0,
            requests_left: manners.requests,
            manners,
            script: VecDeque::new(),
            garbage: false,
            polite: false,
            planned: Planned::default(),
        }
    }

    /// Bytes that the client has sent and that have not arrived.
    pub fn on_the_way(&self) -> u64 {
        self.written - self.arrived - self.withheld
    }

    /// Whether the client is there to send and to read.
    pub fn has_client(&self) -> bool {
        matches!(self.state, State::Open | State::Leaving | State::Closing)
    }

    /// The client writes a request.
    pub fn write(&mut self, request: Request) {
        self.push(Item::Header(request.header(), Some(request)));
        if request.payload_bytes() > 0 {
            self.push(Item::Payload(request, 0));
        }
        self.outstanding += 1;
    }

    /// The client writes something.
    pub fn push(&mut self, item: Item) {
        self.written += item.rest();
        self.items.push_back(item);
    }

    /// The server took `bytes` of the first item.
    pub fn took(&mut self, bytes: u64) {
        self.written -= bytes;
        self.arrived -= bytes;
        match self.items.front_mut().expect("something to take") {
            Item::Payload(request, done) if *done + bytes < u64::from(request.len) => *done += bytes,
            _ => {
                self.items.pop_front();
            }
        }
    }

    /// How long the next thing takes on the network.
    pub fn net_ns(&mut self) -> Nanos {
        self.rng.between(self.manners.net_ns / 4, self.manners.net_ns)
    }

    /// The client reads some of what is buffered: how many answers became complete.
    pub fn drain(&mut self) -> u32 {
        let bytes = self.buffered.min(self.rng.between(1, self.manners.read_bytes));
        self.buffered -= bytes;
        let mut complete = 0;
        while self.answers.front().is_some_and(|&end| end <= self.sent - self.buffered) {
            self.answers.pop_front();
            complete += 1;
        }
        self.outstanding -= complete;
        complete
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::nbd::wire::command;

    #[test]
    fn a_write_is_a_header_and_its_payload() {
        let mut link = Link::new(ConnId(0), VolumeId(0), Session::default(), Manners::default(), Rng::new(1));
        link.write(Request { op: 1, cookie: 1, command: command::WRITE, flags: 0, offset: 0, len: 100 });
        assert_eq!((link.written, link.items.len(), link.outstanding), (128, 2, 1));
        link.arrived = 100;
        link.took(28);
        link.took(60);
        assert_eq!((link.written, link.arrived, link.items[0].rest()), (40, 12, 40));
    }

    #[test]
    fn answers_are_complete_when_read() {
        let manners = Manners { read_bytes: 10, ..Manners::default() };
        let mut link = Link::new(ConnId(0), VolumeId(0), Session::default(), manners, Rng::new(1));
        (link.sent, link.buffered, link.outstanding) = (32, 32, 2);
        link.answers.extend([16, 32]);
        let mut reads = Vec::new();
        while link.buffered > 0 {
            reads.push(link.drain());
        }
        assert!(reads.len() >= 4 && reads.iter().sum::<u32>() == 2);
    }
}
