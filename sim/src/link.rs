//! One connection: a socket with both directions, and its client.
//!
//! ```text
//!   client ──items──► (net delay) ──arrived──► engine             bounded by `in_bytes`
//!   client ◄──buffered── (client reads at its pace) ◄── engine    bounded by `out_bytes`
//! ```
//!
//! The stream to the server is kept as headers and payloads, and becomes bytes on delivery. Replies are parsed and
//! checked when they leave the engine: the client's pace causes backpressure, but the checks do not wait for it.

use std::collections::VecDeque;

use engine::Session;
use engine::cpu::ReceiveDelay;
use engine::ids::{ConnId, FrameId, VolumeId};
use engine::nbd::RawHeader;
use engine::units::Nanos;

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
    /// A header; `None` if it is not a valid request.
    Header(RawHeader, Option<Request>),
    /// The payload of a write, and how many of its bytes were delivered.
    Payload(Request, u64),
}

impl Item {
    /// Bytes that are not delivered.
    pub fn rest(&self) -> u64 {
        match self {
            Item::Header(header, _) => header.len() as u64,
            Item::Payload(request, done) => u64::from(request.len) - done,
        }
    }
}

/// The state of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Both ends are connected.
    Open,
    /// The client has sent NBD_CMD_DISC; the server answers the remaining requests, then closes.
    Leaving,
    /// The client has disconnected without NBD_CMD_DISC.
    Vanished,
    /// The engine wants it closed when everything is sent.
    Closing,
    /// The engine has received `Event::Closed`.
    Closed,
}

/// A connection.
#[derive(Debug)]
pub struct Link {
    /// Its slot.
    pub conn: ConnId,
    /// The opened volume.
    pub volume: VolumeId,
    /// The client's identity.
    pub client: Client,
    /// The client has lost its access to the volume, or its write access.
    pub revoked: bool,
    /// What was negotiated.
    pub session: Session,
    /// Its state.
    pub state: State,
    /// How the client behaves.
    pub manners: Manners,
    /// The client's random number generator.
    pub rng: Rng,
    /// Items that the client wrote and the server has not taken.
    pub items: VecDeque<Item>,
    /// Bytes of `items`.
    pub written: u64,
    /// Bytes of `items` that the server could take now.
    pub arrived: u64,
    /// Bytes at the end of `items` that the client does not send, or not yet.
    pub withheld: u64,
    /// The payload that the server was receiving when the world last looked.
    pub(crate) midway: Midway,
    /// The engine does not want to receive.
    pub paused: bool,
    /// The request of the last header that the server took, if it was valid.
    pub taken: Option<Request>,
    /// The delay of receives, whether one is delayed now, and the requests since the last one.
    pub delay: ReceiveDelay,
    /// See `delay`.
    pub delayed: bool,
    /// See `delay`.
    pub received: u32,
    /// Reply bytes that the client has not read.
    pub buffered: u64,
    /// Reply bytes sent in total.
    pub sent: u64,
    /// There is, or may be, something to send.
    pub sending: bool,
    /// When the server last sent bytes, or began to have bytes to send.
    pub took_at: Nanos,
    /// Outgoing bytes (counted from the start of the connection) whose frames are watched.
    pub watched: u64,
    /// Frames that are watched until this many bytes are sent.
    pub frames: VecDeque<(u64, FrameId)>,
    /// Reply bytes that are not parsed.
    pub replies: Replies,
    /// Requests whose header the server has received.
    pub pending: PendingByCookie,
    /// Requests that are not completely answered, as the client sees it.
    pub outstanding: u32,
    /// Ends of complete answers in the reply bytes.
    pub answers: VecDeque<u64>,
    /// End of the client's last sequential read.
    pub read_to: u64,
    /// Remaining requests of the client.
    pub requests_left: u64,
    /// Predetermined requests, in order.
    pub script: VecDeque<Request>,
    /// It sent bytes that are no valid request: the server must close it.
    pub garbage: bool,
    /// The client sent NBD_CMD_DISC and there is no other reason to close: all its requests must be answered first.
    pub latency_bound: bool,
    /// Which events are planned.
    pub planned: Planned,
}

/// The planned events of a connection, of each kind at most one.
#[derive(Clone, Copy, Default, Debug)]
pub struct Planned {
    /// More bytes arrive at the server.
    pub arrive: bool,
    /// The server sends.
    pub send: bool,
    /// The client reads.
    pub drain: bool,
    /// The client's think time ends.
    pub think: bool,
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
            taken: None,
            delay: ReceiveDelay::default(),
            delayed: false,
            received: 0,
            buffered: 0,
            sent: 0,
            sending: false,
            took_at: 0,
            watched: 0,
            frames: VecDeque::new(),
            replies: Replies::new(session),
            pending: PendingByCookie::default(),
            outstanding: 0,
            answers: VecDeque::new(),
            read_to: 0,
            requests_left: manners.requests,
            manners,
            script: VecDeque::new(),
            garbage: false,
            latency_bound: false,
            planned: Planned::default(),
        }
    }

    /// Bytes that the client has sent and that have not arrived.
    pub fn on_the_way(&self) -> u64 {
        self.written - self.arrived - self.withheld
    }

    /// Whether the client is connected, to send and to read.
    pub fn has_client(&self) -> bool {
        matches!(self.state, State::Open | State::Leaving | State::Closing)
    }

    /// The client writes a request.
    pub fn write(&mut self, request: Request) {
        self.push(Item::Header(request.header(self.session.form), Some(request)));
        if request.payload_bytes() > 0 {
            self.push(Item::Payload(request, 0));
        }
        self.outstanding += 1;
    }

    /// The client writes an item.
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

    /// The network delay of the next transfer.
    pub fn net_ns(&mut self) -> Nanos {
        self.rng.between(self.manners.net_ns / 4, self.manners.net_ns)
    }

    /// The client reads some of the buffered bytes. Returns how many answers became complete.
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
