//! The server of one disk: wires connections, volumes, the cache and the device together, and holds no algorithm.
//!
//! ```text
//!   Header, Payload ─► nbd/session ─► volume/read, write, range, flush ─► cache ◄─► disk/device ─► Submit
//!   Sent, Closed    ─►      │                     ▲                                    │
//!                           └── replies ◄─────────┴───────────── IoDone ◄──────────────┘
//! ```
//!
//! Each event is applied, then [`Server::settle`] restores what must always hold: whoever can go on goes on.

use std::collections::VecDeque;

use crate::cache::{BOOKKEEPING_BYTES_PER_FRAME, BlockId, Cache};
use crate::control::TenantId;
use crate::curve::Curve;
use crate::disk::{Device, Io, IoId, Segment, VolumeId, policy};
use crate::event::{Action, ConnId, Event, Outgoing, Receive};
use crate::latency::Recorders;
use crate::nbd::wire::REQUEST_BYTES;
use crate::nbd::{ANSWERED_MAX, Answered, Connection, Header, Inbound, Kind, Parsed, parse};
use crate::sizing;
use crate::slab::Slab;
use crate::units::{BLOCK, MILLISECOND, Nanos, SECOND};
use crate::volume::{Piece, Request, Ticket, Volume, Waiter};
use crate::work::{Todo, Work};

/// The bounds of a disk machine.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of memory to use now, bookkeeping included. `Command::SetBudget` changes it.
    pub budget_bytes: u64,
    /// The most that `SetBudget` will ever ask for: bookkeeping is laid out for it, frames are numbered below
    /// [`Config::frames_max`].
    pub budget_bytes_max: u64,
    /// Device requests in the device at the same time.
    pub device_depth: u32,
    /// Who may use the disk next.
    pub policy: policy::Kind,
    /// R: the part of its standalone efficiency that a tenant keeps, in thousandths, below 1000.
    pub insulation_permille: u32,
    /// What a turn of the disk to another tenant costs, until it is measured: the profile's switch cost.
    pub switch_ns: Nanos,
    /// The longest round of slices.
    pub round_max_ns: Nanos,
    /// Whether tenants need slices of the disk (the profile says it), or share it as it is.
    pub needs_slices: bool,
    /// What requests cost a disk that needs no slices: from the profile.
    pub prices: policy::Prices,
    /// Requests received and unanswered per connection.
    pub requests_per_connection: u32,
    /// Reply bytes per connection, being read or unsent, above which nothing more is begun for it.
    pub unsent_bytes_per_connection: u64,
    /// Dirty data is written after at most this long of its tenant's own time, which goes slower, by six at most, while
    /// its reads wait and the disk is others'.
    pub dirty_age_max_ns: Nanos,
    /// Nobody asked for anything this long: never-written ranges may be initialised.
    pub idle_ns: Nanos,
    /// A tenant's trial lasts at most this long from its first request.
    pub trial_ns_max: Nanos,
    /// Bytes a second that the device reads one after the other, where it is fastest: from the profile.
    pub stream_bytes_per_s: u64,
    /// Bytes of the largest window that is read ahead of a stream, 0 for none; `None`: as many as R and the disk ask
    /// for ([`policy::Settings::prefetch_bytes`]). `Command::SetPrefetch` changes it.
    pub prefetch_bytes_max: Option<u64>,
    /// Seeds hash tables.
    pub seed: u64,
}

impl Config {
    /// Usual bounds, with `budget_bytes` of memory that never grows.
    pub fn new(budget_bytes: u64) -> Config {
        Config {
            budget_bytes,
            budget_bytes_max: budget_bytes,
            // Deep enough for an SSD's parallelism, shallow enough that the device does not hide an order from us.
            device_depth: 128,
            policy: policy::Kind::None,
            // Design, section 1.
            insulation_permille: 900,
            // Argon, table 1: a seek and half a turn of a usual disk.
            switch_ns: 12 * MILLISECOND,
            // Design, section 5.1.
            round_max_ns: 2 * SECOND,
            // Until a probe says otherwise: slices on a device that does not need them cost less than none on one that
            // does.
            needs_slices: true,
            prices: policy::Prices::default(),
            // Four times what fio or qemu keep in flight.
            requests_per_connection: 128,
            // Eight large reads being worked while as many are sent; the bandwidth-delay product of 10 Gbit/s at 6 ms.
            unsent_bytes_per_connection: 8 << 20,
            // Design, section 4.
            dirty_age_max_ns: 5 * SECOND,
            idle_ns: 20 * MILLISECOND,
            // Some thousand requests of a disk, and no longer than somebody watches whom they have just created.
            trial_ns_max: 60 * SECOND,
            // A usual disk's, until it is measured.
            stream_bytes_per_s: 100_000_000,
            prefetch_bytes_max: None,
            seed: 0,
        }
    }

    /// The policy that it begins with. `Command::SetPolicy` changes it.
    pub fn policy(&self) -> policy::Settings {
        policy::Settings {
            kind: self.policy,
            depth: self.device_depth,
            insulation_permille: self.insulation_permille,
            switch_ns: self.switch_ns,
            round_max_ns: self.round_max_ns,
            needs_slices: self.needs_slices,
            prices: self.prices,
            stream_bytes_per_s: self.stream_bytes_per_s,
        }
    }

    /// Frames that `bytes` of memory hold, bookkeeping included.
    pub(crate) fn frames_of(bytes: u64) -> u32 {
        (bytes / (BLOCK + BOOKKEEPING_BYTES_PER_FRAME)).min(u64::from(u32::MAX - 2)) as u32
    }

    /// Frames that a driver must have memory for, number 0 (all zeros) included.
    pub fn frames_max(&self) -> usize {
        Self::frames_of(self.budget_bytes_max) as usize + 1
    }
}

/// Pieces of one tenant that wait for frames, reads and writes apart: one kind never holds up the other.
#[derive(Default, Debug)]
pub(crate) struct Waiting {
    pub(crate) reads: VecDeque<u32>,
    /// Volumes with pieces that wait to be written ([`Volume::writes`]), each once, in turn: a volume whose clients
    /// send no payload does not hold up the tenant's others.
    pub(crate) writes: VecDeque<VolumeId>,
    /// CACHE requests that wait until others are done.
    pub(crate) caches: VecDeque<u32>,
}

/// The server of one disk.
#[derive(Debug)]
pub struct Server {
    pub(crate) config: Config,
    /// Bytes of the largest window that is read ahead of a stream now; 0 for none.
    pub(crate) prefetch_bytes: u64,
    pub(crate) now: Nanos,
    pub(crate) cache: Cache,
    pub(crate) device: Device,
    pub(crate) connections: Vec<Option<Connection>>,
    pub(crate) volumes: Vec<Option<Volume>>,
    pub(crate) requests: Slab<Request>,
    pub(crate) pieces: Slab<Piece>,
    pub(crate) waiters: Slab<Waiter>,
    /// By tenant.
    pub(crate) waiting: Vec<Waiting>,
    /// By tenant.
    pub(crate) curves: Vec<Option<Curve>>,
    /// By tenant.
    pub(crate) latencies: Vec<Option<Box<Recorders>>>,
    pub(crate) sizing: sizing::Book,
    pub(crate) agenda: VecDeque<Todo>,
    pub(crate) work: Work,
    pub(crate) actions: VecDeque<Action>,
    /// Answered, and not yet known to be handed over. Of the first `kept` it is known that they are not.
    pub(crate) answered: Vec<Answered>,
    pub(crate) kept: usize,
    /// The earliest time at which something may be due.
    pub(crate) timer: Option<Nanos>,
    pub(crate) last_request_at: Nanos,
    /// `Drain` was asked for, by this token; answered or not.
    pub(crate) draining: Option<u64>,
    pub(crate) drained: bool,
    /// Frames are moving: some tenants have more than they may, or frames above the limit are in use.
    /// When to go on.
    pub(crate) move_at: Option<Nanos>,
    /// `SetBudget` waits for frames to be free: its token, and until when.
    pub(crate) budget_token: Option<(u64, Nanos)>,
    /// It was answered before they were.
    pub(crate) held: bool,
    /// Reused by write-back.
    pub(crate) parts: Vec<(u32, u8)>,
    pub(crate) frames_taken: Vec<crate::cache::FrameId>,
    /// Reused when something that was to be read ahead is not.
    pub(crate) dropped: Vec<IoId>,
    /// Reused when writes are complete: which blocks, whether they are written well, and whether they were given up.
    pub(crate) ended: Vec<(BlockId, bool, bool)>,
    /// Reused when range operations are done.
    pub(crate) freed: Vec<Ticket>,
}

impl Server {
    /// A server without volumes.
    pub fn new(config: Config) -> Server {
        let frames = Config::frames_of(config.budget_bytes);
        let frames_max = Config::frames_of(config.budget_bytes_max);
        Server {
            prefetch_bytes: config.prefetch_bytes_max.unwrap_or(config.policy().prefetch_bytes()),
            now: 0,
            cache: Cache::new(frames, frames_max, config.seed),
            device: Device::new(config.policy()),
            connections: Vec::new(),
            volumes: Vec::new(),
            requests: Slab::new(),
            pieces: Slab::new(),
            waiters: Slab::new(),
            waiting: Vec::new(),
            curves: Vec::new(),
            latencies: Vec::new(),
            sizing: sizing::Book::default(),
            agenda: VecDeque::new(),
            work: Work::default(),
            actions: VecDeque::new(),
            answered: Vec::with_capacity(ANSWERED_MAX),
            kept: 0,
            timer: None,
            last_request_at: 0,
            draining: None,
            drained: false,
            move_at: None,
            budget_token: None,
            held: false,
            parts: Vec::new(),
            frames_taken: Vec::new(),
            dropped: Vec::new(),
            ended: Vec::new(),
            freed: Vec::new(),
            config,
        }
    }

    /// Something happened. Time never runs backwards; a step back is taken for no step.
    pub fn handle(&mut self, now: Nanos, event: Event<'_>) {
        if now > self.now {
            self.leave_at_once();
            self.now = now;
        }
        self.work.begin_step();
        let is_news = matches!(event, Event::Header { .. } | Event::IoDone { .. });
        match event {
            Event::Attach { conn, volume, session } => self.attached(conn, volume, session),
            Event::Header { conn, since, header } => self.header_arrived(conn, since, header),
            Event::Payload { conn, bytes } => self.payload_arrived(conn, bytes),
            Event::Discarded { conn, bytes } => self.discarded(conn, bytes),
            Event::Sent { conn, bytes } => self.bytes_sent(conn, bytes),
            Event::Closed { conn } => self.closed(conn),
            Event::IoDone { io, since, result } => self.io_done(io, since, result),
            Event::Control { token, command } => self.command(token, command),
            Event::Work { tenant } => self.work_on(tenant),
            Event::Timer => self.timer_rang(),
        }
        if is_news {
            self.review_in_time();
        }
        self.settle();
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When to send `Event::Timer`.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        [self.timer, self.device.poll_timeout()].into_iter().flatten().min()
    }

    /// What `conn` wants to read next.
    pub fn receive(&self, conn: ConnId) -> Receive {
        let Some(Some(connection)) = self.connections.get(conn.0 as usize) else { return Receive::Closed };
        if !connection.open || connection.closing || connection.inbound == Inbound::Stopped {
            return Receive::Closed;
        }
        match connection.inbound {
            _ if connection.paused => Receive::Pause,
            Inbound::Payload { piece, received } => {
                let piece = &self.pieces[piece];
                Receive::Payload(piece.end - piece.start - received)
            }
            Inbound::Discard { left, .. } => Receive::Discard(left),
            _ => Receive::Header,
        }
    }

    /// Where the rest of the payload of the current piece goes, in order.
    pub fn payload(&self, conn: ConnId) -> impl Iterator<Item = Segment> + '_ {
        let inbound = self.connections.get(conn.0 as usize).and_then(|c| c.as_ref()).map(|c| c.inbound);
        let (piece, received) = match inbound {
            Some(Inbound::Payload { piece, received }) => (Some(&self.pieces[piece]), received),
            _ => (None, 0),
        };
        piece.into_iter().flat_map(move |piece| {
            let first = ((piece.start + received) / BLOCK - piece.first_block()) as usize;
            (first..piece.blocks()).filter_map(move |i| {
                let (start, end) = piece.bytes_in(i);
                let base = (piece.first_block() + i as u64) * BLOCK;
                let start = start.max((piece.start + received).saturating_sub(base));
                (start < end).then(|| Segment::new(piece.frames[i], start, end))
            })
        })
    }

    /// What is to be sent, in order.
    pub fn outgoing(&self, conn: ConnId) -> impl Iterator<Item = Outgoing<'_>> + '_ {
        self.connections.get(conn.0 as usize).and_then(|c| c.as_ref()).into_iter().flat_map(|c| c.outgoing())
    }

    /// Requests of `conn` that were received and are not answered yet.
    pub fn unanswered(&self, conn: ConnId) -> u32 {
        self.connections.get(conn.0 as usize).and_then(|c| c.as_ref()).map_or(0, |c| c.in_flight)
    }

    /// A hint of the headers that come next: looks at what their reads will look at, so that the processor has it at
    /// hand. What takes three misses of its caches for each request, one after the other, takes three for all of them
    /// together. Changes nothing. Ends at the first that is no read, as what follows may be a payload.
    pub fn look_ahead(&self, conn: ConnId, headers: &[[u8; REQUEST_BYTES]]) {
        let Some(Some(connection)) = self.connections.get(conn.0 as usize) else { return };
        for header in headers {
            let Parsed::Request(Header { kind: Kind::Read, offset, .. }) = parse(header) else { return };
            // Whatever the compiler thinks of it.
            std::hint::black_box(self.cache.glance(connection.volume, offset / BLOCK));
        }
    }

    /// A device request that was submitted and is not yet complete.
    pub fn io(&self, io: IoId) -> &Io {
        &self.device.slot(io).io
    }

    pub(crate) fn conn(&mut self, conn: ConnId) -> &mut Connection {
        self.connections[conn.0 as usize].as_mut().expect("a connection")
    }

    pub(crate) fn volume(&self, volume: VolumeId) -> &Volume {
        self.volumes[volume.0 as usize].as_ref().expect("an open volume")
    }

    pub(crate) fn volume_mut(&mut self, volume: VolumeId) -> &mut Volume {
        self.volumes[volume.0 as usize].as_mut().expect("an open volume")
    }

    pub(crate) fn find_volume(&self, volume: VolumeId) -> Option<&Volume> {
        self.volumes.get(volume.0 as usize)?.as_ref()
    }

    pub(crate) fn tenant_of(&self, volume: VolumeId) -> TenantId {
        self.cache.volume(volume).tenant
    }

    /// Frames that replies to one connection may take now: so many that it has no more than it leaves to others. One
    /// that does not read gets a quarter of the partition, the next one an eighth, and there is always room for one
    /// more.
    pub(crate) fn reply_room(&self, connection: &Connection) -> u32 {
        if planted!(UnsentNotBounded) {
            return u32::MAX;
        }
        let bytes = connection.unsent + u64::from(connection.reading) * BLOCK;
        if bytes >= self.config.unsent_bytes_per_connection {
            return 0;
        }
        let partition = self.cache.partition(self.tenant_of(connection.volume));
        let left = partition.reply_frames_left(self.volume(connection.volume).owed);
        left.saturating_sub(connection.owed()).div_ceil(2)
    }

    /// Puts a volume on the agenda.
    pub(crate) fn poke(&mut self, volume: VolumeId) {
        let state = self.volume_mut(volume);
        if !std::mem::replace(&mut state.poked, true) {
            self.agenda.push_back(Todo::Volume(volume));
        }
    }

    /// Wakes the machine at `at`, or earlier.
    pub(crate) fn wake_at(&mut self, at: Nanos) {
        self.timer = Some(self.timer.map_or(at, |timer| timer.min(at)));
    }

    /// Lets everybody go on who can.
    fn settle(&mut self) {
        if self.move_at.is_some_and(|at| at <= self.now) {
            self.move_frames();
        }
        loop {
            self.work_off_agenda();
            self.put_off_waiting();
            if self.draining.is_some() && !self.drained {
                self.drain_on();
            }
            if self.agenda.is_empty() {
                break;
            }
        }
        self.device.dispatch(self.now, self.cache.durability.failures(), &mut self.actions);
    }
}
