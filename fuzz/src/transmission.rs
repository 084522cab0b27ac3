//! Any requests from any clients, and any completions and failures in any order: the engine never panics, never asks
//! for more payload than a piece holds, answers every request, returns only data that the model allows, and
//! acknowledges a flush only when nothing that it covers can be lost.

use std::collections::BTreeMap;
use std::convert::Infallible;

use arbitrary::Arbitrary;
use engine::control::{Command, TenantSpec, VolumeSpec, WriteCache};
use engine::cpu::Scheduler;
use engine::disk::Segment;
use engine::driver::{Arrived, Driver};
use engine::ids::{ConnId, IoId, TenantId, VolumeId};
use engine::nbd::wire::{REQUEST_MAGIC, command, command_flag, state};
use engine::nbd::{Asked, Errno, Form, Kind, Part, RawHeader};
use engine::offload::Sum;
use engine::units::{BLOCK, SECTOR};
use engine::{Action, Config, Event, Outgoing, Receive, Server, Session};
use sim::cell::{self, CELL, ZERO};
use sim::reply::Replies;

use crate::device::{Device, InFlight};
use crate::model::{Leaves, Model, Step};

/// The number of connections.
const CLIENTS: usize = 3;
/// The smallest cache that a tenant can have, bytes; a fraction of the largest volume, so that evictions begin early.
const CACHE_BYTES: u64 = 2 << 20;
/// The largest volume, in sectors: twice the cache.
const SECTORS_MAX: u64 = 2 * CACHE_BYTES / SECTOR;
/// The maximum length of valid requests, bytes: twice a piece.
const LEN_MAX: u64 = 512 << 10;
/// Timers that ring in vain before a request counts as never answered: some seconds.
const TIMERS_MAX: u32 = 100;

#[derive(Arbitrary, Debug)]
enum Move {
    /// A valid request: in whole cells, inside the volume.
    Request {
        conn: u8,
        kind: u8,
        flags: u8,
        place: u16,
        cells: u16,
    },
    /// Any header.
    Header {
        conn: u8,
        magic: bool,
        flags: u16,
        command: u8,
        offset: u64,
        len: u32,
    },
    Payload {
        conn: u8,
        most: u32,
    },
    Send {
        conn: u8,
        most: u16,
    },
    Complete {
        which: u8,
        fails: bool,
    },
    Vanish {
        conn: u8,
    },
    Wait {
        ms: u16,
    },
}

/// An input of the fuzzer.
#[derive(Arbitrary, Debug)]
pub struct Input {
    size_sectors: u16,
    whole_blocks: bool,
    sparse: bool,
    mode: u8,
    structured: [bool; CLIENTS],
    steps: Vec<Move>,
}

/// A request that is not answered yet.
#[derive(Debug)]
struct Request {
    command: u16,
    flags: u16,
    offset: u64,
    len: u64,
    /// Offset and length in its header.
    named: (u64, u64),
    begun: Step,
    /// Whether it is inside the volume and in whole cells, so that the model knows its effect.
    modelled: bool,
    /// Data read so far, and its length.
    data: Vec<u8>,
    filled: u64,
    failed: bool,
}

impl Request {
    fn changes(&self) -> bool {
        matches!(self.command, command::WRITE | command::TRIM | command::WRITE_ZEROES)
    }
}

struct Client {
    form: Form,
    gone: bool,
    replies: Replies,
    requests: BTreeMap<u64, Request>,
    /// The write whose payload is being sent, and the bytes sent so far.
    writing: Option<(u64, u64)>,
    /// What has arrived at the server: a header, then bytes of payload.
    header: Option<RawHeader>,
    payload_bytes: u64,
}

impl Client {
    fn new(session: Session) -> Client {
        Client {
            form: session.form,
            gone: false,
            replies: Replies::new(session),
            requests: BTreeMap::new(),
            writing: None,
            header: None,
            payload_bytes: 0,
        }
    }
}

struct World {
    server: Server,
    cpu: Scheduler,
    device: Device,
    model: Model,
    clients: [Client; CLIENTS],
    in_device: Vec<(IoId, InFlight)>,
    size: u64,
    mode: WriteCache,
    now: u64,
    step: Step,
    cookie: u64,
    /// Whether the device has failed a request; then requests of clients may fail, too.
    failed: bool,
}

/// Runs an input.
pub fn run(input: Input) {
    let mut world = World::new(&input);
    for step in &input.steps {
        world.apply(step);
    }
    world.end();
}

impl World {
    fn new(input: &Input) -> World {
        let config = Config { requests_per_connection: 8, ..Config::new(CACHE_BYTES) };
        let device = Device::new(config.frames_max());
        // Up to twice the cache; mostly small, so that requests overlap.
        let sectors = (u64::from(input.size_sectors) % SECTORS_MAX + 1) >> ((input.mode >> 4) % 8);
        let size = sectors.max(1) * SECTOR;
        let mode = [WriteCache::Volatile, WriteCache::None, WriteCache::Unsafe][usize::from(input.mode % 3)];
        let sessions = [0, 1, 2].map(|at| {
            let form = match (input.structured[at], at) {
                (false, _) => Form::Simple,
                (true, 2) => Form::Extended,
                (true, _) => Form::Structured,
            };
            Session { form, base_allocation: form.is_structured(), load: false, read_only: false, demotes: None }
        });
        let clients = sessions.map(Client::new);
        let mut world = World {
            server: Server::new(config),
            cpu: Scheduler::default(),
            device,
            model: Model::default(),
            clients,
            in_device: Vec::new(),
            size,
            mode,
            now: 0,
            step: 0,
            cookie: 0,
            failed: false,
        };
        let spec = VolumeSpec {
            write_cache: mode,
            sparse: input.sparse,
            holes: vec![(0, size)],
            initialise: !input.sparse,
            grows_empty: true,
            device_block: if input.whole_blocks { BLOCK as u32 } else { SECTOR as u32 },
            can_zero: input.mode & 4 == 0,
            can_punch: input.mode & 8 == 0,
            ..VolumeSpec::plain(VolumeId(0), TenantId(0), size)
        };
        world.handle(Event::Control { token: 0, command: Command::SetTenant(TenantId(0), TenantSpec::default()) });
        world.handle(Event::Control { token: 1, command: Command::OpenVolume(spec) });
        for (at, session) in sessions.into_iter().enumerate() {
            let conn = ConnId(at as u32);
            world.cpu.attach(conn, TenantId(0));
            world.handle(Event::Attach { conn, volume: VolumeId(0), session });
        }
        world
    }

    /// Handles an event and everything that can be served after it.
    fn handle(&mut self, event: Event<'_>) {
        let Ok(()) = Driver::handle(self, event);
        self.serve_all();
    }

    /// Input of a connection has arrived.
    fn arrived(&mut self, conn: ConnId) {
        self.cpu.ready(conn);
        self.serve_all();
    }

    fn serve_all(&mut self) {
        while self.cpu.has_work() {
            let Ok(()) = self.serve();
        }
    }

    /// Requests of this client cannot take effect any more.
    fn gone(&mut self, conn: ConnId) {
        let client = &mut self.clients[conn.0 as usize];
        client.gone = true;
        self.cpu.detach(conn);
        for (cookie, request) in std::mem::take(&mut client.requests) {
            if request.modelled && request.changes() {
                self.model.end(self.step, request.offset, request.len, cookie, false);
            }
        }
    }

    fn apply(&mut self, step: &Move) {
        let live = |world: &World, conn: u8| {
            let at = usize::from(conn) % CLIENTS;
            (!world.clients[at].gone).then_some(ConnId(at as u32))
        };
        match *step {
            Move::Request { conn, kind, flags, place, cells } => {
                let Some(conn) = live(self, conn) else { return };
                let cells_max = self.size / CELL;
                let offset = u64::from(place) % cells_max * CELL;
                let len = ((u64::from(cells) + 1) * CELL).min(LEN_MAX).min(self.size - offset);
                let command = [
                    command::READ,
                    command::WRITE,
                    command::WRITE,
                    command::FLUSH,
                    command::TRIM,
                    command::WRITE_ZEROES,
                    command::CACHE,
                    command::BLOCK_STATUS,
                ][usize::from(kind % 8)];
                let (command, offset, len) = match command {
                    command::FLUSH => (command, 0, 0),
                    command::BLOCK_STATUS if !self.clients[conn.0 as usize].form.is_structured() => {
                        (command::READ, offset, len)
                    }
                    command => (command, offset, len),
                };
                let allowed = match command {
                    command::WRITE | command::TRIM => command_flag::FUA,
                    command::WRITE_ZEROES => command_flag::FUA | command_flag::NO_HOLE,
                    command::BLOCK_STATUS => command_flag::REQ_ONE,
                    _ => 0,
                };
                self.request(conn, REQUEST_MAGIC, u16::from(flags) & allowed, command, offset, len);
            }
            Move::Header { conn, magic, flags, command, offset, len } => {
                if let Some(conn) = live(self, conn) {
                    let magic = if magic { REQUEST_MAGIC } else { 7 };
                    let (offset, len) = (offset % (2 * SECTORS_MAX * SECTOR), u64::from(len) % (36 << 20));
                    self.request(conn, magic, flags & 0x3f, u16::from(command % 9), offset, len);
                }
            }
            Move::Payload { conn, most } => {
                if let Some(conn) = live(self, conn) {
                    self.feed(conn, u64::from(most));
                }
            }
            Move::Send { conn, most } => {
                if let Some(conn) = live(self, conn) {
                    self.send(conn, u64::from(most) * 64);
                }
            }
            Move::Complete { which, fails } if !self.in_device.is_empty() => {
                let at = usize::from(which) % self.in_device.len();
                self.complete(at, fails);
            }
            Move::Vanish { conn } => {
                if let Some(conn) = live(self, conn) {
                    self.handle(Event::Closed { conn });
                }
            }
            Move::Wait { ms } => {
                self.now += u64::from(ms) * 1_000_000;
                self.handle(Event::Timer);
            }
            Move::Complete { .. } => {}
        }
    }

    fn request(&mut self, conn: ConnId, magic: u32, flags: u16, command: u16, offset: u64, len: u64) {
        if self.server.receive(conn) != Receive::Header {
            return;
        }
        self.cookie += 1;
        let cookie = self.cookie;
        let form = self.clients[conn.0 as usize].form;
        let header = match magic {
            REQUEST_MAGIC => RawHeader::new(form, command, flags, cookie, offset, len),
            _ => RawHeader::filled(form.request_bytes(), |bytes| bytes.fill(7)),
        };
        let named = (offset, len);
        let inside = len > 0 && offset + len <= self.size;
        let whole = offset.is_multiple_of(CELL) && len.is_multiple_of(CELL);
        // The content of cells that are covered in part is not modelled.
        let (from, to) = (offset / CELL * CELL, (offset + len).next_multiple_of(CELL).min(self.size));
        let changes = matches!(command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        let modelled = magic == REQUEST_MAGIC && inside && (whole || changes);
        let (offset, len) = if changes && modelled { (from, to - from) } else { (offset, len) };
        let begun = self.step + 1;
        if modelled && changes {
            let leaves = match command {
                _ if !whole => Leaves::Anything,
                command::TRIM => Leaves::Undefined,
                command::WRITE => Leaves::Value(cookie),
                _ => Leaves::Value(ZERO),
            };
            self.model.begin(begun, offset, len, cookie, leaves);
        }
        let data = if command == command::READ && inside { vec![0; len as usize] } else { Vec::new() };
        let request = Request { command, flags, offset, len, named, begun, modelled, data, filled: 0, failed: false };
        let client = &mut self.clients[conn.0 as usize];
        if magic == REQUEST_MAGIC && command != command::DISC {
            client.requests.insert(cookie, request);
        }
        client.writing = (command == command::WRITE).then_some((cookie, named.0));
        client.header = Some(header);
        self.arrived(conn);
    }

    /// The client sends what the server expects next, at most `most` bytes.
    fn feed(&mut self, conn: ConnId, most: u64) {
        if let Receive::Payload(wanted) | Receive::Discard(wanted) = self.server.receive(conn) {
            self.clients[conn.0 as usize].payload_bytes = wanted.min(most.max(1));
            self.arrived(conn);
        }
    }

    /// The client receives at most `most` bytes.
    fn send(&mut self, conn: ConnId, most: u64) {
        let mut sent = Vec::new();
        for part in self.server.outgoing(conn) {
            match part {
                Outgoing::Bytes(bytes) => sent.extend_from_slice(bytes),
                Outgoing::Frame { frame, start, len } => sent.extend_from_slice(self.device.bytes(frame, start, len)),
            }
            if sent.len() as u64 >= most {
                break;
            }
        }
        sent.truncate(most as usize);
        if sent.is_empty() {
            return;
        }
        self.step += 1;
        self.clients[conn.0 as usize].replies.feed(&sent);
        while self.reply(conn) {}
        self.handle(Event::Sent { conn, bytes: sent.len() as u64 });
    }

    /// Takes one part of a reply. Returns whether there was one.
    fn reply(&mut self, conn: ConnId) -> bool {
        let client = &mut self.clients[conn.0 as usize];
        let asked = |cookie| client.requests.get(&cookie).map(Request::asked);
        let Some((cookie, part, data)) = client.replies.next(asked).expect("replies that can be understood") else {
            return false;
        };
        let request = client.requests.get_mut(&cookie).expect("a request that is not answered");
        if part == Part::Done {
            let request = client.requests.remove(&cookie).expect("it is there");
            self.answered(cookie, &request);
        } else {
            request.part(part, data, self.size, &self.model);
        }
        true
    }

    fn answered(&mut self, cookie: u64, request: &Request) {
        let Request { command, flags, offset, len, begun, modelled, .. } = *request;
        let ok = !request.failed;
        if modelled && request.changes() {
            self.model.end(self.step, offset, len, cookie, ok);
            let durable = self.mode == WriteCache::None || flags & command_flag::FUA != 0;
            if ok && durable && self.mode != WriteCache::Unsafe && command != command::TRIM {
                self.check_durable(offset, len, self.step + 1);
            }
        }
        let valid = match command {
            command::READ | command::WRITE => modelled && flags == 0,
            command::FLUSH => flags == 0 && (offset, len) == (0, 0),
            _ => false,
        };
        assert!(ok || self.failed || !valid, "{request:?} failed for no reason");
        assert!(!ok || command == command::FLUSH || offset + len <= self.size, "{request:?} is outside of the volume");
        match command {
            command::READ if ok => {
                assert_eq!(request.filled, len, "{request:?} was answered in part");
                if modelled {
                    for (i, bytes) in request.data.chunks(CELL as usize).enumerate() {
                        let at = offset / CELL + i as u64;
                        let value = cell::value(bytes, at);
                        assert!(self.model.allows(at, value, begun), "cell {at} was read as {value:?} by {cookie}");
                    }
                }
            }
            command::FLUSH if ok && self.mode != WriteCache::Unsafe => self.check_durable(0, self.size, begun),
            _ => {}
        }
    }

    /// Every content that is possible after a power cut must be one that a read begun at `from` could have returned.
    fn check_durable(&self, offset: u64, len: u64, from: Step) {
        for at in self.model.known(offset, len) {
            let inside = (at % (SECTOR / CELL) * CELL) as usize;
            for bytes in self.device.survivors(at * CELL / SECTOR) {
                let value = cell::value(&bytes[inside..inside + CELL as usize], at);
                assert!(self.model.allows(at, value, from), "cell {at} may hold {value:?} after a power cut");
            }
        }
    }

    fn complete(&mut self, at: usize, fails: bool) {
        let (io, request) = self.in_device.swap_remove(at);
        self.failed |= fails;
        self.device.complete(request, fails);
        self.handle(Event::IoDone { io, since: self.now, result: if fails { Err(Errno::Io) } else { Ok(()) } });
    }

    /// The device works, everything is sent, and all clients disconnect: nothing may be left over.
    fn end(&mut self) {
        self.drain();
        for conn in (0..CLIENTS as u32).map(ConnId) {
            let client = &self.clients[conn.0 as usize];
            let open = !client.gone && self.server.receive(conn) != Receive::Closed;
            assert!(!open || client.requests.is_empty(), "never answered: {:?}", client.requests);
            if open && self.server.receive(conn) == Receive::Header {
                self.request(conn, REQUEST_MAGIC, 0, command::FLUSH, 0, 0);
                self.drain();
                self.request(conn, REQUEST_MAGIC, 0, command::READ, 0, self.size.min(LEN_MAX));
                self.drain();
            }
        }
        for conn in (0..CLIENTS as u32).map(ConnId) {
            if !self.clients[conn.0 as usize].gone {
                self.handle(Event::Closed { conn });
            }
        }
        self.now += 10_000_000_000;
        self.handle(Event::Timer);
        while !self.in_device.is_empty() {
            self.complete(0, false);
        }
        assert!(
            self.clients.iter().all(|client| client.gone),
            "a connection is kept for a request that was never answered"
        );
    }

    /// Until nothing moves any more. If the device has failed a request, clients may wait for the next attempt: time
    /// passes.
    fn drain(&mut self) {
        let mut timers = 0;
        for round in 0.. {
            assert!(round < 100_000, "the engine does not come to rest");
            let mut moved = !self.in_device.is_empty();
            while !self.in_device.is_empty() {
                self.complete(0, false);
            }
            for conn in (0..CLIENTS as u32).map(ConnId) {
                if self.clients[conn.0 as usize].gone {
                    continue;
                }
                moved |= self.server.outgoing(conn).next().is_some();
                moved |= matches!(self.server.receive(conn), Receive::Payload(_) | Receive::Discard(_));
                self.send(conn, u32::MAX.into());
                self.feed(conn, u32::MAX.into());
            }
            if moved {
                continue;
            }
            let waits = |client: &Client| !client.gone && !client.requests.is_empty();
            let retries = self.failed && timers < TIMERS_MAX && self.clients.iter().any(waits);
            let Some(at) = self.server.poll_timeout().filter(|_| retries) else { return };
            timers += 1;
            self.now = self.now.max(at);
            self.handle(Event::Timer);
        }
    }
}

impl Driver for World {
    type Error = Infallible;

    fn engine(&mut self) -> (&mut Server, &mut Scheduler) {
        (&mut self.server, &mut self.cpu)
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn add_to_sum(&mut self, segment: Segment, sum: &mut Sum) -> Result<(), Infallible> {
        sum.add(self.device.bytes_mut(&segment));
        Ok(())
    }

    fn before(&mut self, _: &Event<'_>) {
        self.step += 1;
    }

    fn act(&mut self, action: Action) -> Result<(), Infallible> {
        match action {
            Action::Copy { from, to, start, len } => self.device.copy(from, to, start, len),
            Action::Zero { frame, start, len } => {
                self.device.bytes_mut(&engine::disk::Segment { frame, start, len }).fill(0);
            }
            Action::Submit(io) => self.in_device.push((io, self.device.submit(self.server.io(io)))),
            Action::Gone(conn) => self.gone(conn),
            Action::Upstream { .. } => unreachable!("no volume is on another server"),
            Action::Receive(conn) => self.cpu.ready(conn),
            // The inputs decide when a client sends and reads.
            _ => {}
        }
        Ok(())
    }

    fn has_input(&self, conn: ConnId) -> bool {
        let client = &self.clients[conn.0 as usize];
        client.header.is_some() || client.payload_bytes > 0
    }

    fn take_header(&mut self, conn: ConnId, _: usize) -> Result<Option<Arrived>, Infallible> {
        let client = &mut self.clients[conn.0 as usize];
        assert_eq!(client.payload_bytes, 0, "payload is taken as payload");
        Ok(client.header.take().map(|header| (self.now, header)))
    }

    fn take_payload(&mut self, conn: ConnId, wanted: u64) -> Result<u64, Infallible> {
        let segments: Vec<_> = self.server.payload(conn).collect();
        let room: u64 = segments.iter().map(|segment| u64::from(segment.len)).sum();
        assert_eq!(room, wanted);
        let client = &mut self.clients[conn.0 as usize];
        let bytes = std::mem::take(&mut client.payload_bytes);
        assert!((1..=wanted).contains(&bytes), "a header is taken as a header");
        let (cookie, at) = client.writing.as_mut().expect("only writes have payload");
        let mut left = bytes;
        for mut segment in segments {
            segment.len = u64::from(segment.len).min(left) as u16;
            cell::fill(*cookie, *at, self.device.bytes_mut(&segment));
            *at += u64::from(segment.len);
            left -= u64::from(segment.len);
        }
        Ok(bytes)
    }

    fn discard(&mut self, conn: ConnId, wanted: u64) -> Result<u64, Infallible> {
        let bytes = std::mem::take(&mut self.clients[conn.0 as usize].payload_bytes);
        assert!((1..=wanted).contains(&bytes), "a header is taken as a header");
        Ok(bytes)
    }

    fn served(&mut self, _: ConnId, _: Option<Receive>) -> Result<(), Infallible> {
        Ok(())
    }
}

impl Request {
    fn asked(&self) -> Asked {
        let kind = match self.command {
            command::READ => Kind::Read,
            command::BLOCK_STATUS => Kind::Status,
            // All others are answered alike.
            _ => Kind::Write,
        };
        Asked { kind, offset: self.named.0, len: self.named.1 }
    }

    /// Takes one part of the reply, except for its end.
    fn part(&mut self, part: Part, bytes: &[u8], size: u64, model: &Model) {
        match part {
            Part::Data { offset, len } => {
                let at = (offset - self.offset) as usize;
                self.data[at..at + bytes.len()].copy_from_slice(bytes);
                self.filled += len;
            }
            Part::Hole { offset, len } => {
                let at = (offset - self.offset) as usize;
                self.data[at..at + len as usize].fill(0);
                self.filled += len;
            }
            Part::Extent { offset: at, len, flags } => {
                assert!(len > 0 && at + len <= size, "an extent at {at} of {len} bytes in a volume of {size}");
                let zero = flags & u64::from(state::ZERO) != 0 && self.modelled;
                for cell in model.known(at, len).filter(|_| zero) {
                    assert!(model.allows(cell, Some(ZERO), self.begun), "cell {cell} is not zero");
                }
            }
            Part::Error(_) => self.failed = true,
            Part::Load(_) | Part::Done => {}
        }
    }
}
