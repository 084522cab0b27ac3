//! The server of one disk. It connects connections, volumes, the cache and the device, and contains no algorithm.
//!
//! ```text
//!   Header, Payload ─► nbd/session ─► volume/read, write, range, flush ─► cache ◄─► disk/device ─► Submit
//!   Sent, Closed    ─►      │                     ▲                                    │
//!                           └── replies ◄─────────┴───────────── IoDone ◄──────────────┘
//! ```
//!
//! Each event is applied; then [`Server::settle`] restores the invariants: every request that can continue does.

use std::collections::VecDeque;

use crate::cache::{BOOKKEEPING_BYTES_PER_FRAME, Cache};
use crate::control::{Planning, Snapshots};
use crate::curve::{Curve, Measured};
use crate::disk::{Device, Io, Segment, policy};
use crate::event::{Action, Event, Outgoing, Receive};
use crate::ids::{BlockId, ConnId, IoId, TenantId, VolumeId};
use crate::latency::Recorders;
use crate::nbd::wire::REQUEST_BYTES;
use crate::nbd::{ANSWERED_MAX, Answered, Connection, Header, Inbound, Kind, Parsed, parse};
use crate::slab::Slab;
use crate::units::{BLOCK, MILLISECOND, Nanos, SECOND};
use crate::volume::{Piece, Request, Ticket, Volume, Waiter};
use crate::work::{Todo, Work};

/// The configuration of the engine of one disk.
#[derive(Clone, Debug)]
pub struct Config {
    /// Memory budget now, bytes, bookkeeping included. Changed by `Command::SetBudget`.
    pub budget_bytes: u64,
    /// The largest budget that `SetBudget` may request. Bookkeeping is laid out for it, and frame numbers are below
    /// [`Config::frames_max`].
    pub budget_bytes_max: u64,
    /// Requests in the device at the same time.
    pub device_depth: u32,
    /// The scheduling policy.
    pub policy: policy::Kind,
    /// R: the part of its standalone efficiency that a tenant keeps, in thousandths, below 1000.
    pub insulation_permille: u32,
    /// Cost of a context switch of the disk until it is measured: the profile's switch cost.
    pub switch_ns: Nanos,
    /// The longest round of slices.
    pub round_max_ns: Nanos,
    /// Whether tenants need slices of the disk (according to the profile) or share it by fair queueing.
    pub needs_slices: bool,
    /// Costs of requests on a disk that needs no slices: from the profile.
    pub prices: policy::Prices,
    /// Outstanding requests per connection.
    pub requests_per_connection: u32,
    /// Reply bytes per connection, being read or unsent, above which the engine starts no further work for it.
    pub unsent_bytes_per_connection: u64,
    /// Age limit of dirty data on its tenant's virtual clock. That clock slows down, at most to 1/6, while reads of the
    /// tenant wait and the disk serves other tenants.
    pub dirty_age_max_ns: Nanos,
    /// After this time without requests, never-written ranges may be initialised.
    pub idle_ns: Nanos,
    /// Longest trial of a tenant, from its first request.
    pub trial_ns_max: Nanos,
    /// Sequential read rate at the fastest place of the device, bytes per second: from the profile.
    pub stream_bytes_per_s: u64,
    /// Largest read-ahead window of a stream, bytes; 0 for none; `None`: derived from R and the disk
    /// ([`policy::Settings::prefetch_bytes`]). Changed by `Command::SetPrefetch`.
    pub prefetch_bytes_max: Option<u64>,
    /// Seed of the hash tables.
    pub seed: u64,
}

impl Config {
    /// The defaults, with a budget of `budget_bytes` that cannot grow.
    pub fn new(budget_bytes: u64) -> Config {
        Config {
            budget_bytes,
            budget_bytes_max: budget_bytes,
            // Deep enough for the parallelism of an SSD, shallow enough that the engine, not the device, determines the
            // order.
            device_depth: 128,
            policy: policy::Kind::None,
            // The default R, `docs/glossary.md`.
            insulation_permille: 900,
            // Argon, table 1: a seek and half a revolution of a typical disk.
            switch_ns: 12 * MILLISECOND,
            // `docs/design/slices.md`: bounds response times.
            round_max_ns: 2 * SECOND,
            // Until a probe: slices on a device that does not need them cost less than missing slices on a device that
            // does.
            needs_slices: true,
            prices: policy::Prices::default(),
            // Four times the usual queue depth of fio or qemu.
            requests_per_connection: 128,
            // Eight large reads in progress while eight are being sent; the bandwidth-delay product of 10 Gbit/s at 6
            // ms.
            unsent_bytes_per_connection: 8 << 20,
            // `docs/design/cache.md`: bounds what a crash can lose.
            dirty_age_max_ns: 5 * SECOND,
            idle_ns: 20 * MILLISECOND,
            // Some thousand requests of a disk, and no longer than an operator watches a newly created volume.
            trial_ns_max: 60 * SECOND,
            // A typical disk, until it is measured.
            stream_bytes_per_s: 100_000_000,
            prefetch_bytes_max: None,
            seed: 0,
        }
    }

    /// The initial policy. Changed by `Command::SetPolicy`.
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

    /// Frames that fit into `bytes` of memory, bookkeeping included.
    pub(crate) fn frames_of(bytes: u64) -> u32 {
        (bytes / (BLOCK + BOOKKEEPING_BYTES_PER_FRAME)).min(u64::from(u32::MAX - 2)) as u32
    }

    /// Frames for which the driver needs memory, frame 0 (all zeros) included.
    pub fn frames_max(&self) -> usize {
        Self::frames_of(self.budget_bytes_max) as usize + 1
    }
}

/// Pieces of one tenant that wait for frames. Reads and writes are separate, so that neither delays the other.
#[derive(Default, Debug)]
pub(crate) struct Waiting {
    pub(crate) reads: VecDeque<u32>,
    /// Volumes with pieces that wait to be written ([`Volume::writes`]), each once, round-robin: a volume whose clients
    /// send no payload does not delay the tenant's other volumes.
    pub(crate) writes: VecDeque<VolumeId>,
    /// CACHE requests beyond the number that a tenant may have in progress.
    pub(crate) caches: VecDeque<u32>,
}

/// The server of one disk.
#[derive(Debug)]
pub struct Server {
    pub(crate) config: Config,
    /// Largest read-ahead window of a stream at present, bytes; 0 for none.
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
    pub(crate) measured: Vec<Option<Measured>>,
    /// By tenant.
    pub(crate) latencies: Vec<Option<Box<Recorders>>>,
    pub(crate) planning: Planning,
    /// Commands for a snapshot.
    pub(crate) snapshots: Snapshots,
    pub(crate) agenda: VecDeque<Todo>,
    pub(crate) work: Work,
    pub(crate) actions: VecDeque<Action>,
    /// Answered requests whose replies may not have been passed to the sockets. Of the first `kept` it is known that
    /// they have not been, at least in part.
    pub(crate) answered: Vec<Answered>,
    pub(crate) kept: usize,
    /// The earliest time at which work may be due.
    pub(crate) timer: Option<Nanos>,
    pub(crate) last_request_at: Nanos,
    /// The token of `Drain` once it was requested, answered or not.
    pub(crate) draining: Option<u64>,
    pub(crate) drained: bool,
    /// The next time to move frames: some partitions exceed their targets, or frames above the limit are in use.
    pub(crate) move_at: Option<Nanos>,
    /// `SetBudget` waits for frames to become free: its token and its deadline.
    pub(crate) budget_token: Option<(u64, Nanos)>,
    /// `SetBudget` was answered with `Held`, and frames above the limit are still in use.
    pub(crate) held: bool,
    /// Scratch memory of write-back.
    pub(crate) parts: Vec<(u32, u8)>,
    pub(crate) frames_taken: Vec<crate::ids::FrameId>,
    /// Scratch memory for dropped prefetches.
    pub(crate) dropped: Vec<IoId>,
    /// Scratch memory for completed writes: the block, whether it was written, and whether it was given up.
    pub(crate) ended: Vec<(BlockId, bool, bool)>,
    /// Scratch memory for completed range operations.
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
            measured: Vec::new(),
            latencies: Vec::new(),
            planning: Planning::default(),
            snapshots: Snapshots::default(),
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

    /// Handles an event. Time never goes backwards: an earlier `now` counts as the present one.
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
            Event::Targets(targets) => self.take_targets(&targets),
            Event::Timer => self.timer_rang(),
        }
        self.gather(is_news);
        self.answer_snapshots();
        self.settle();
    }

    /// The next action for the driver.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The time at which to send `Event::Timer`.
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let unfinished = (self.planning.is_gathering() || self.snapshots.are_wanted()).then_some(self.now);
        [self.timer, self.device.poll_timeout(), unfinished].into_iter().flatten().min()
    }

    /// The next bytes to read from `conn`.
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

    /// The places of the remaining payload of the current piece, in order.
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

    /// The outgoing bytes of a connection, in order.
    pub fn outgoing(&self, conn: ConnId) -> impl Iterator<Item = Outgoing<'_>> + '_ {
        self.connections.get(conn.0 as usize).and_then(|c| c.as_ref()).into_iter().flat_map(|c| c.outgoing())
    }

    /// Outstanding requests of `conn`.
    pub fn unanswered(&self, conn: ConnId) -> u32 {
        self.connections.get(conn.0 as usize).and_then(|c| c.as_ref()).map_or(0, |c| c.in_flight)
    }

    /// A hint about the next headers: touches the table entries that their reads will need, so that they are in the
    /// processor's cache. The three cache misses of a request would otherwise occur one after the other; here those of
    /// all requests overlap. Changes no state. Ends at the first header that is no read, because a payload may follow
    /// it.
    pub fn look_ahead(&self, conn: ConnId, headers: &[[u8; REQUEST_BYTES]]) {
        let Some(Some(connection)) = self.connections.get(conn.0 as usize) else { return };
        for header in headers {
            let Parsed::Request(Header { kind: Kind::Read, offset, .. }) = parse(header) else { return };
            // Otherwise the compiler may remove the loads.
            std::hint::black_box(self.cache.glance(connection.volume, offset / BLOCK));
        }
    }

    /// A device request that was submitted and is not complete.
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

    /// Frames that replies to this connection may take now: so many that afterwards it occupies no more than it leaves
    /// to other connections. One stalled reader gets a quarter of the partition, the next one an eighth, and so on:
    /// there is always room for another connection.
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

    /// Requests a timer event at `at` or earlier.
    pub(crate) fn wake_at(&mut self, at: Nanos) {
        self.timer = Some(self.timer.map_or(at, |timer| timer.min(at)));
    }

    /// Lets everything continue that can, then issues device requests.
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
