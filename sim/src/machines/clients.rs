//! The clients of a gateway's volumes, and the checks of what they are answered.

use std::collections::VecDeque;
use std::ops::Range;

use engine::Session;
use engine::ids::ConnId;
use engine::nbd::wire::{command, command_flag};
use engine::nbd::{Errno, Form};

use super::network::{Chunk, Host, Service, Wire};
use super::{Wake, World};
use crate::Verdict;
use crate::cell;
use crate::history::{History, OpId};
use crate::judge::{Judge, PendingByCookie};
use crate::medium::Blocks;
use crate::reply::Replies;
use crate::request::{Pending, Request};
use crate::rng::Rng;
use crate::trace::Line;
use crate::workload::{Asker, Places};
use crate::world::NEVER;

/// The session of every client.
pub(crate) const SESSION: Session =
    Session { form: Form::Structured, base_allocation: false, load: false, read_only: false, demotes: None };

/// A volume, as its clients know it.
pub(crate) struct Volume {
    pub(crate) size: u64,
    pub(crate) is_remote: bool,
    /// The machine that its clients use.
    pub(crate) front: usize,
    pub(crate) history: History,
    pub(crate) places: Places,
    /// Its gateway has died, and the next one has no session yet: what that may have lost, and requests that may still
    /// take effect.
    pub(crate) is_fenced: bool,
    pub(crate) losses: Vec<OpId>,
    pub(crate) unsettled: Vec<(OpId, Range<u64>)>,
    /// A second gateway has it since then, and the first one does nothing more.
    pub(crate) alone_since: Option<u64>,
    /// Requests may fail.
    pub(crate) may_fail: bool,
}

/// A client, with one connection at a time.
pub(crate) struct Client {
    pub(crate) volume: usize,
    pub(crate) wire: Option<Wire>,
    is_connected: bool,
    pub(crate) pending: PendingByCookie,
    replies: Replies,
    rng: Rng,
    /// Its next requests are planned.
    thinks: bool,
    /// Requests that it is told to make, in order, one at a time.
    pub(crate) script: VecDeque<Request>,
    /// Error of the last answer.
    pub(crate) error: Option<u32>,
    /// It stays with a gateway that does not have the volume any more.
    pub(crate) stays: bool,
}

impl Client {
    pub(crate) fn new(volume: usize, rng: Rng) -> Client {
        Client {
            volume,
            wire: None,
            is_connected: false,
            pending: PendingByCookie::default(),
            replies: Replies::new(SESSION),
            rng,
            thinks: false,
            script: VecDeque::new(),
            error: None,
            stays: false,
        }
    }
}

/// Whether a command changes content.
pub(crate) fn changes(command: u16) -> bool {
    matches!(command, command::WRITE | command::WRITE_ZEROES | command::TRIM)
}

impl World {
    pub(crate) fn connect(&mut self, id: usize) {
        let client = &mut self.clients[id];
        let volume = client.volume;
        let hosts = [Host::Client(id), Host::Machine { at: self.volumes[volume].front, life: 0 }];
        let (out, service) = (&mut self.out, Service::Volume(volume));
        client.wire = Some(out.network.connect(out.now, &mut out.queue, hosts, service));
        (client.is_connected, client.replies) = (false, Replies::new(SESSION));
    }

    /// The gateway of a client has died: what was not answered may have taken effect, or will yet.
    pub(crate) fn disconnect(&mut self, id: usize) {
        let client = &mut self.clients[id];
        client.is_connected = false;
        let pending = std::mem::take(&mut client.pending).into_values().map(|pending| pending.request);
        let unsettled = pending.filter(|request| changes(request.command));
        let unsettled = unsettled.map(|request| (request.op, cell::covered(request.offset, request.len.into())));
        self.volumes[client.volume].unsettled.extend(unsettled);
        if let Some(wire) = client.wire.take() {
            self.out.network.close(self.out.now, &mut self.out.queue, wire, 0);
        }
    }

    /// A client makes requests.
    pub(crate) fn think(&mut self, id: usize) {
        self.clients[id].thinks = false;
        if !self.clients[id].is_connected {
            return;
        }
        if self.clients[id].pending.is_empty()
            && let Some(request) = self.clients[id].script.pop_front()
        {
            return self.ask(id, request);
        }
        while self.is_busy
            && self.out.stats.requests < self.setup.requests
            && (self.clients[id].pending.len() as u64) < self.setup.window
        {
            let client = &mut self.clients[id];
            let places = &self.volumes[client.volume].places;
            let asker = Asker { mix: &self.setup.mix, places, session: SESSION, zeroes_fast: true };
            self.ops += 1;
            let request = asker.ask(self.ops, &mut client.rng);
            let pauses = client.rng.one_in(3);
            if request.len > 0 || request.command == command::FLUSH {
                self.ask(id, request);
            }
            if pauses {
                break;
            }
        }
        if self.is_busy && (self.clients[id].pending.len() as u64) < self.setup.window {
            self.think_soon(id);
        }
    }

    pub(crate) fn think_soon(&mut self, id: usize) {
        if !std::mem::replace(&mut self.clients[id].thinks, true) {
            let at = self.out.now + 1 + self.clients[id].rng.below(self.setup.think_ns);
            self.out.queue.push(at, Wake::Think(id));
        }
    }

    fn ask(&mut self, id: usize, request: Request) {
        self.out.step += 1;
        self.out.stats.requests += 1;
        let start = self.out.step;
        let client = &mut self.clients[id];
        let volume = &mut self.volumes[client.volume];
        let mut pending = Pending::new(request, start, volume.size, NEVER);
        pending.arrived = self.out.now;
        client.pending.insert(request.cookie, pending);
        let cells = cell::covered(request.offset, u64::from(request.len));
        match request.command {
            command::WRITE => volume.history.begin_write(request.op, cells, start),
            command::TRIM => volume.history.begin_trim(request.op, cells, start),
            command::WRITE_ZEROES => volume.history.begin_zero(request.op, cells, start),
            _ => {}
        }
        let mut bytes = request.header(SESSION.form).to_vec();
        let from = bytes.len();
        bytes.resize(from + request.payload_bytes() as usize, 0);
        cell::fill(request.op, request.offset, &mut bytes[from..]);
        let wire = client.wire.expect("it is connected");
        self.out.log(Line::Header(ConnId(id as u32), request));
        self.out.network.send(self.out.now, &mut self.out.queue, wire, 1, Chunk::Bytes(bytes));
    }

    /// Something arrives at a client.
    pub(crate) fn client_receives(&mut self, id: usize, wire: Wire, what: &Chunk) -> Verdict {
        let client = &mut self.clients[id];
        if client.wire != Some(wire) {
            return Ok(());
        }
        match what {
            Chunk::Welcome => {
                client.is_connected = true;
                self.think(id);
            }
            Chunk::Bytes(bytes) => {
                client.replies.feed(bytes);
                let (out, bytes) = (&mut self.out, bytes.len());
                out.network.take(out.now, &mut out.queue, wire, 0, bytes);
                self.judge(id)?;
            }
            // Its gateway has died: the world knows. Or the gateway is being started: it tries again.
            Chunk::End if client.is_connected => return Err(format!("client {id} is disconnected")),
            Chunk::End | Chunk::Hello => {}
        }
        Ok(())
    }

    fn judge(&mut self, id: usize) -> Verdict {
        loop {
            let client = &mut self.clients[id];
            let asked = |cookie| Some(client.pending.get(&cookie)?.request.asked());
            let part = client.replies.next(asked).map_err(|what| format!("client {id}: {what}"))?;
            let Some((cookie, part, data)) = part else { return Ok(()) };
            let history = &mut self.volumes[client.volume].history;
            let mut judge = Judge { pending: &mut client.pending, history, step: self.out.step };
            if let Some(pending) = judge.part(cookie, part, data)? {
                self.answered(id, &pending)?;
            }
        }
    }

    fn answered(&mut self, id: usize, pending: &Pending) -> Verdict {
        self.out.step += 1;
        let (request, error) = (pending.request, pending.error.unwrap_or(0));
        self.clients[id].error = pending.error;
        self.out.stats.answers += 1;
        self.out.stats.errors += u64::from(error != 0);
        self.out.log(Line::Answer(ConnId(id as u32), request, error));
        let at = self.clients[id].volume;
        self.check_error(id, request, error)?;
        let alone_since = self.volumes[at].alone_since.filter(|_| self.clients[id].stays);
        if alone_since.is_some_and(|since| pending.start > since && error == 0 && request.command != command::FLUSH) {
            return Err(format!("{request:?} was answered by a gateway that does not have the volume any more"));
        }
        let (step, horizon) = (self.out.step, self.horizon(at).min(pending.start));
        let cells = cell::covered(request.offset, u64::from(request.len));
        // Not on it is what is in stores; that it is not lost is seen when a machine dies, and at the end.
        let is_known = !self.setup.kind.has_stores();
        // While its media are looked at.
        let mut history = std::mem::take(&mut self.volumes[at].history);
        let media = self.media(at);
        let medium: Option<&dyn Blocks> = if is_known { Some(&media) } else { None };
        match request.command {
            command::WRITE | command::WRITE_ZEROES if error == 0 => {
                let durable = request.has(command_flag::FUA);
                history.acknowledge(request.op, cells.clone(), step, durable, horizon);
                if let Some(medium) = medium.filter(|_| durable) {
                    history.check_durable(medium, cells)?;
                }
            }
            // It covers what this gateway has acknowledged.
            command::FLUSH if alone_since.is_some() => {}
            command::FLUSH if error == 0 => history.flushed(medium, pending.start, horizon)?,
            of if changes(of) => history.settle(request.op, cells, step),
            _ => {}
        }
        self.volumes[at].history = history;
        self.think_soon(id);
        Ok(())
    }

    fn check_error(&self, id: usize, request: Request, error: u32) -> Verdict {
        let client = &self.clients[id];
        let excused = (self.volumes[client.volume].may_fail || client.stays) && error == Errno::Io as u32
            || request.has(command_flag::FAST_ZERO) && error == Errno::NotSupported as u32
            || request.has(command_flag::DF) && error == Errno::Overflow as u32;
        if error == 0 || excused { Ok(()) } else { Err(format!("{request:?} was answered with error {error}")) }
    }

    /// The start of the oldest request of a volume.
    fn horizon(&self, volume: usize) -> u64 {
        let clients = self.clients.iter().filter(|client| client.volume == volume);
        let starts = clients.flat_map(|client| client.pending.values().map(|pending| pending.start));
        starts.min().unwrap_or(self.out.step)
    }
}
