//! A process as a client of another machine: it carries out what the upstreams of its volumes ask.

use engine::Event;
use engine::driver::Driver as _;
use engine::ids::VolumeId;
use engine::units::MILLISECOND;
use engine::upstream::{self, LinkId, Request};

use super::machine::{Running, Use, gather};
use super::network::{Chunk, Host, Service, Wire};
use super::{Call, Wake};
use crate::Verdict;
use crate::trace::Line;

/// Bytes that are sent at once.
const SEND_BYTES_MAX: u64 = 64 << 10;

/// A connection to another machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Up {
    pub(crate) wire: Wire,
    /// The engine wants it closed, or it is lost.
    is_closing: bool,
    /// The engine knows that it is closed.
    is_closed: bool,
    /// The server has ended it.
    has_ended: bool,
}

impl Running<'_> {
    pub(crate) fn upstream_asks(&mut self, volume: VolumeId, request: Request) -> Verdict {
        self.log(Line::Upstream(volume, format!("{request:?}")));
        match request {
            Request::Open(link) => self.dial(volume, link),
            Request::Send(link) => _ = self.process().to_send_up.insert((volume, link)),
            Request::Close { link, .. } => {
                let up = self.process().ups.get_mut(&(volume, link)).ok_or("no connection is to be closed")?;
                up.is_closing = true;
                let wire = up.wire;
                self.close(wire, 0);
                self.closed_soon(volume, link, wire);
            }
            Request::Online(_) => {
                self.process().online.insert(volume);
                self.out.online.push((self.machine.at, volume));
            }
            Request::Offline(why) => {
                self.out.offline.push((self.machine.at, volume));
                self.log(Line::Note(format!("{volume:?} is offline: {why}")));
            }
            Request::Refused(_) => self.out.refusals += 1,
            Request::Lost(why) => self.log(Line::Note(format!("{volume:?} lost a session: {why}"))),
        }
        Ok(())
    }

    fn dial(&mut self, volume: VolumeId, link: LinkId) {
        let here = Host::Machine { at: self.machine.at, life: self.machine.life };
        let hosts = [here, Host::Machine { at: self.machine.leads_to(volume).1, life: 0 }];
        let wire = self.out.network.connect(self.out.now, &mut self.out.queue, hosts, Service::Export);
        let process = self.process();
        process.uses.insert(wire, Use::Up(volume, link));
        let up = Up { wire, is_closing: false, is_closed: false, has_ended: false };
        process.ups.insert((volume, link), up);
    }

    /// The kernel needs a while to let go of a connection.
    fn closed_soon(&mut self, volume: VolumeId, link: LinkId, wire: Wire) {
        let at = self.out.now + self.out.rng.below(2 * MILLISECOND);
        let call = Call::Closed(volume, link, wire);
        self.out.queue.push(at, Wake::Process(self.machine.at, self.machine.life, call));
    }

    /// Something arrived on a connection to another machine.
    pub(crate) fn up_receives(&mut self, volume: VolumeId, link: LinkId, wire: Wire, what: &Chunk) -> Verdict {
        let Some(up) = self.process().ups.get(&(volume, link)).copied().filter(|up| up.wire == wire) else {
            return Ok(());
        };
        match what {
            Chunk::Welcome if !up.is_closing => self.tell(volume, upstream::Event::Connected(link))?,
            Chunk::Bytes(_) if !up.is_closing => self.feed(volume, link, wire)?,
            Chunk::End => self.up_lost(volume, link, wire, true)?,
            Chunk::Hello | Chunk::Welcome | Chunk::Bytes(_) => {}
        }
        self.settle()
    }

    /// The connection is lost; if the server has ended it, nothing that was sent on it takes effect any more.
    pub(crate) fn up_lost(&mut self, volume: VolumeId, link: LinkId, wire: Wire, has_ended: bool) -> Verdict {
        let Some(up) = self.process().ups.get_mut(&(volume, link)).filter(|up| up.wire == wire) else {
            return Ok(());
        };
        up.has_ended |= has_ended;
        let (was_closing, is_closed) = (std::mem::replace(&mut up.is_closing, true), up.is_closed);
        if !was_closing {
            self.close(wire, 0);
            return self.up_closed(volume, link, wire);
        }
        if is_closed && has_ended { self.tell(volume, upstream::Event::Ended(link)) } else { Ok(()) }
    }

    /// The kernel does nothing more for a connection.
    pub(crate) fn up_closed(&mut self, volume: VolumeId, link: LinkId, wire: Wire) -> Verdict {
        let Some(up) = self.process().ups.get_mut(&(volume, link)).filter(|up| up.wire == wire) else {
            return Ok(());
        };
        let (was_closed, has_ended) = (std::mem::replace(&mut up.is_closed, true), up.has_ended);
        if was_closed {
            return Ok(());
        }
        self.tell(volume, upstream::Event::Closed(link))?;
        if has_ended {
            self.tell(volume, upstream::Event::Ended(link))?;
        }
        self.settle()
    }

    fn tell(&mut self, volume: VolumeId, event: upstream::Event<'_>) -> Verdict {
        self.handle(Event::Upstream { volume, event })
    }

    /// Passes received bytes on: data of reads to its frames, the rest to the engine.
    fn feed(&mut self, volume: VolumeId, link: LinkId, wire: Wire) -> Verdict {
        loop {
            let is_open = |up: &super::gateway::Up| up.wire == wire && !up.is_closing;
            if !self.process().ups.get(&(volume, link)).is_some_and(is_open) || self.is_closed(volume) {
                return Ok(());
            }
            let process = self.machine.process.as_mut().expect("a process");
            let input = self.out.network.input(wire, 0);
            let mut stored = 0;
            for segment in process.server.upstream_data(volume, link) {
                let len = usize::from(segment.len).min(input.len() - stored);
                if len == 0 {
                    break;
                }
                let into = process.frames.receive(segment.frame, segment.start, len as u16)?;
                into.copy_from_slice(&input[stored..stored + len]);
                stored += len;
            }
            if stored > 0 {
                self.take(wire, 0, stored);
                self.tell(volume, upstream::Event::Filled(link, stored as u64))?;
                continue;
            }
            let input = input.to_vec();
            if input.is_empty() {
                return Ok(());
            }
            self.tell(volume, upstream::Event::Received(link, &input))?;
            let taken = self.process().server.upstream_taken(volume).min(input.len());
            if self.is_closed(volume) {
                return Ok(());
            }
            if taken == 0 && self.process().server.upstream_data(volume, link).next().is_none() {
                return Err(format!("{volume:?} takes none of {} bytes of {link:?}", input.len()));
            }
            self.take(wire, 0, taken.min(self.out.network.input_bytes(wire, 0)));
        }
    }

    /// Whether the volume that an export has a part of is closed.
    fn is_closed(&mut self, leg: VolumeId) -> bool {
        let (volume, _) = self.machine.leads_to(leg);
        self.process().closed.contains(&volume)
    }

    pub(crate) fn send_up(&mut self, volume: VolumeId, link: LinkId) -> Verdict {
        loop {
            let process = self.machine.process.as_mut().expect("a process");
            let Some(up) = process.ups.get(&(volume, link)).filter(|up| !up.is_closing) else { return Ok(()) };
            let wire = up.wire;
            let most = self.out.rng.between(1, SEND_BYTES_MAX).max(4096);
            let room = self.out.network.room(wire, 0).min(most);
            let bytes = gather(process.server.upstream_outgoing(volume, link), &process.frames, room)?;
            if bytes.is_empty() {
                return Ok(());
            }
            let sent = bytes.len() as u64;
            self.send(wire, 1, Chunk::Bytes(bytes));
            self.tell(volume, upstream::Event::Sent(link, sent))?;
        }
    }
}
