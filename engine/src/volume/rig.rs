//! Test rig of the volumes: a device that completes requests when and how the test says, and clients without a
//! protocol. Headers arrive parsed, and replies have only data and a result.
//!
//! The medium and the frames hold real bytes, so tests can check what reads return.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::config::{Config, LEAST_BYTES};
use crate::cpu::{Job, Scheduler};
use crate::disk::{Io, Op, Segment};
use crate::errno::Errno;
use crate::ids::{ConnId, FrameId, IoId, TenantId, VolumeId};
use crate::nbd::wire::{REQUEST_BYTES, REQUEST_MAGIC, command};
use crate::nbd::{Parsed, Session, parse};
use crate::spec::{CacheSpec, Refusal, TenantSpec, VolumeSpec};
use crate::units::{BLOCK, MILLISECOND, Nanos};
use crate::volume::{Data, EVENT_UNITS_MAX, Effect, Receive, Timer, UNIT_NS, Volumes};

pub(crate) const VOLUME: VolumeId = VolumeId(0);
pub(crate) const VOLUME_BYTES: usize = 8 << 20;

/// A part of a reply that its client has not received.
#[derive(Clone, Copy)]
enum Part {
    Data(u64, Segment),
    /// The error of a complete request; 0: success.
    Answer(u64, u32),
}

pub(crate) struct Rig {
    pub(crate) volumes: Volumes,
    pub(crate) now: Nanos,
    frames: Frames,
    pub(crate) medium: Vec<u8>,
    /// Requests in the device, in order of submission.
    pub(crate) device: Vec<IoId>,
    /// Parts of replies that are not received, by connection.
    outgoing: BTreeMap<ConnId, VecDeque<Part>>,
    /// Data received for requests that are not answered, by cookie.
    received: BTreeMap<u64, Vec<u8>>,
    /// By cookie: the error (0: success), and the data that was read.
    answers: BTreeMap<u64, (u32, Vec<u8>)>,
    /// By token: the result of a command.
    results: BTreeMap<u64, Result<(), Refusal>>,
    /// The token of the drain that is complete, and the volumes whose flush failed.
    pub(crate) drained: Option<(u64, Vec<VolumeId>)>,
    /// Stalled readers: connections that receive nothing.
    pub(crate) stalled_readers: Vec<ConnId>,
    /// Connections from which nothing is read, as of the last time that this was to be checked.
    paused: BTreeSet<ConnId>,
    /// Backlogs that wait to be served.
    pub(crate) cpu: Scheduler,
    /// Backlogs are served only by [`Rig::work_once`].
    pub(crate) lazy: bool,
    /// By tenant: nanoseconds of work that were charged to it.
    pub(crate) spent_ns: BTreeMap<TenantId, Nanos>,
    /// Largest number of units of work in one event.
    pub(crate) units_max: u32,
}

/// The machine: a tenant with a volume, and what tests do with the layer as a whole.
impl Rig {
    /// A preallocated volume that was written before, on a device that can zero ranges, with two clients.
    pub(crate) fn new() -> Rig {
        Rig::with(128, |_| {})
    }

    pub(crate) fn with(device_depth: u32, change: impl FnOnce(&mut VolumeSpec)) -> Rig {
        let config = Config { device_depth, ..Config::new(8 * LEAST_BYTES) };
        let mut rig = Rig {
            frames: Frames::new(&config),
            volumes: Volumes::new(config),
            now: 0,
            medium: vec![1; VOLUME_BYTES],
            device: Vec::new(),
            outgoing: BTreeMap::new(),
            received: BTreeMap::new(),
            answers: BTreeMap::new(),
            results: BTreeMap::new(),
            drained: None,
            stalled_readers: Vec::new(),
            paused: BTreeSet::new(),
            cpu: Scheduler::default(),
            lazy: false,
            spent_ns: BTreeMap::new(),
            units_max: 0,
        };
        let mut spec = VolumeSpec::plain(VOLUME, TenantId(0), VOLUME_BYTES as u64);
        change(&mut spec);
        rig.set_tenant(TenantId(0), TenantSpec::default());
        rig.open_volume(spec);
        [ConnId(0), ConnId(1)].into_iter().for_each(|conn| rig.attach(conn, VOLUME));
        rig
    }

    /// Creates a tenant, or changes its settings. A tenant has the cache that it requests, or an equal part of the
    /// remaining frames.
    pub(crate) fn set_tenant(&mut self, tenant: TenantId, spec: TenantSpec) {
        self.event(|volumes| {
            volumes.set_tenant(tenant, spec);
            let asked = |cache| if let CacheSpec::Asked(bytes) = cache { Some(Config::frames_of(bytes)) } else { None };
            let caches: Vec<_> =
                volumes.cache.tenants().map(|(id, partition)| (id, asked(partition.spec.cache))).collect();
            let equal = caches.iter().filter(|(_, frames)| frames.is_none()).count() as u32;
            let left = volumes.cache.pool().limit() - caches.iter().filter_map(|&(_, frames)| frames).sum::<u32>();
            let targets = caches.into_iter().map(|(id, frames)| (id, frames.unwrap_or_else(|| left / equal)));
            volumes.set_targets(&targets.collect::<Vec<_>>());
        });
        self.cpu.set_weights(self.volumes.cache.tenants().map(|(id, _)| (id, 1)));
    }

    /// A tenant with the smallest partition.
    pub(crate) fn set_smallest(&mut self, tenant: TenantId) {
        self.set_tenant(tenant, TenantSpec { cache: CacheSpec::Asked(LEAST_BYTES), ..TenantSpec::default() });
    }

    pub(crate) fn open_volume(&mut self, spec: VolumeSpec) {
        self.event(|volumes| volumes.open_volume(spec)).expect("a new volume");
    }

    /// A command that begins; [`Rig::result`] has its result.
    pub(crate) fn command(&mut self, begin: impl FnOnce(&mut Volumes) -> Result<(), Refusal>) {
        self.event(begin).expect("a possible command");
    }

    pub(crate) fn clear(&mut self, token: u64, volume: VolumeId) {
        self.command(|volumes| volumes.clear(token, volume));
    }

    /// The result of the command with this token, if it is complete.
    pub(crate) fn result(&self, token: u64) -> Option<Result<(), Refusal>> {
        self.results.get(&token).copied()
    }

    /// Whether the command with this token succeeded.
    pub(crate) fn is_done(&self, token: u64) -> bool {
        self.result(token) == Some(Ok(()))
    }

    /// Advances the time.
    pub(crate) fn wait(&mut self, ns: Nanos) {
        self.now += ns;
        self.event(ring);
    }

    /// Handles an event, and all work that it leaves.
    pub(crate) fn event<T>(&mut self, apply: impl FnOnce(&mut Volumes) -> T) -> T {
        let result = self.step(apply);
        while !self.lazy && self.work_once() {}
        result
    }

    /// Does the next step of a backlog; false if there is none.
    pub(crate) fn work_once(&mut self) -> bool {
        let job = next_job(&mut self.cpu, self.now);
        if let Some(tenant) = job {
            self.step(|volumes| volumes.work_on(tenant));
        }
        self.cpu.end_quantum();
        job.is_some()
    }

    /// Handles an event only.
    fn step<T>(&mut self, apply: impl FnOnce(&mut Volumes) -> T) -> T {
        self.volumes.now = self.now;
        self.volumes.work.begin_step();
        let result = apply(&mut self.volumes);
        if self.volumes.timers.take_if_due(Timer::Frames, self.now) {
            self.volumes.move_frames(MILLISECOND);
        }
        self.take_effects();
        while self.volumes.settle_round() {
            self.take_effects();
        }
        self.volumes.dispatch();
        self.take_effects();
        while let Some((tenant, units)) = self.volumes.work.take_spent() {
            let ns = Nanos::from(units) * UNIT_NS;
            *self.spent_ns.entry(tenant).or_default() += ns;
            self.cpu.charge_to(tenant, ns);
        }
        let units = self.volumes.work.used();
        assert!(units <= EVENT_UNITS_MAX, "{units} units of work in one event");
        self.units_max = self.units_max.max(units);
        let mut readers: Vec<_> = self.outgoing.keys().copied().collect();
        readers.retain(|conn| !self.stalled_readers.contains(conn));
        readers.into_iter().for_each(|conn| self.send(conn));
        result
    }

    /// Does what the volumes want of the layers above.
    fn take_effects(&mut self) {
        while let Some(effect) = self.volumes.effects.pop() {
            match effect {
                Effect::Copy { from, to, start, len } => self.frames.copy(from, to, start, len),
                Effect::Zero { frame, start, len } => self.frames.zero(frame, start, len),
                Effect::Submit(io) => self.device.push(io),
                Effect::Work(tenant) => self.cpu.backlog(tenant),
                Effect::Data(data) => self.take_data(data),
                Effect::Answer(answer) => {
                    let part = Part::Answer(answer.cookie, answer.error.map_or(0, |error| error as u32));
                    self.outgoing.entry(answer.conn).or_default().push_back(part);
                    self.recheck(|conn, _| conn == answer.conn);
                }
                Effect::Recheck(of) => self.recheck(|conn, _| conn == of),
                Effect::RecheckVolume(of) => self.recheck(|_, volume| volume == of),
                Effect::RecheckTenant(of) => {
                    let volumes: Vec<_> = self.volumes.table.values().filter(|v| v.spec.tenant == of).collect();
                    let volumes: Vec<_> = volumes.into_iter().map(|volume| volume.id()).collect();
                    self.recheck(|_, volume| volumes.contains(&volume));
                }
                Effect::Done(token, result) => _ = self.results.insert(token, result),
                Effect::Drained(token, failed) => self.drained = Some((token, failed)),
                Effect::Extents { .. } | Effect::Gone(_) => {}
            }
        }
    }
}

/// Clients.
impl Rig {
    pub(crate) fn attach(&mut self, conn: ConnId, volume: VolumeId) {
        assert!(self.event(|volumes| volumes.attach(conn, volume, Session::default())), "{volume:?} is not open");
    }

    /// A client disconnects.
    pub(crate) fn close(&mut self, conn: ConnId) {
        let unsent = self.outgoing.remove(&conn).unwrap_or_default();
        self.paused.remove(&conn);
        self.event(|volumes| {
            for part in unsent {
                if let Part::Data(_, segment) = part {
                    volumes.cache.release(segment.frame);
                }
            }
            volumes.abandon(conn);
        });
    }

    /// The next bytes to read from a connection.
    pub(crate) fn receive(&self, conn: ConnId) -> Receive {
        match self.volumes.receive(conn) {
            Receive::Closed => Receive::Closed,
            _ if self.paused.contains(&conn) => Receive::Pause,
            wanted => wanted,
        }
    }

    /// Checks the selected connections: whether they are read.
    fn recheck(&mut self, selected: impl Fn(ConnId, VolumeId) -> bool) {
        let open = self.volumes.clients.iter().filter(|(_, client)| client.open);
        let conns: Vec<_> =
            open.filter(|&(conn, client)| selected(conn, client.volume)).map(|(conn, _)| conn).collect();
        for conn in conns {
            if self.volumes.is_paused(conn, false) {
                self.paused.insert(conn);
            } else {
                self.paused.remove(&conn);
            }
        }
    }

    /// A request of the first client, without its payload.
    pub(crate) fn ask(&mut self, cookie: u64, command: u16, flags: u16, offset: u64, len: u64) {
        self.ask_as(ConnId(0), cookie, command, flags, offset, len);
    }

    pub(crate) fn ask_as(&mut self, conn: ConnId, cookie: u64, command: u16, flags: u16, offset: u64, len: u64) {
        assert_eq!(self.receive(conn), Receive::Header);
        let parsed = parse(&header(cookie, command, flags, offset, len));
        let Parsed::Request(header) = parsed else { panic!("{parsed:?}") };
        let size = self.volumes.volume(self.volumes.clients[conn].volume).spec.size;
        assert_eq!(header.check(size), Ok(()));
        let now = self.now;
        self.event(|volumes| volumes.begin(conn, now, &header, None));
    }

    /// The first client writes blocks full of `byte`.
    pub(crate) fn write(&mut self, cookie: u64, flags: u16, offset: u64, len: u64, byte: u8) {
        self.write_as(ConnId(0), cookie, flags, offset, len, byte);
    }

    pub(crate) fn write_as(&mut self, conn: ConnId, cookie: u64, flags: u16, offset: u64, len: u64, byte: u8) {
        self.ask_as(conn, cookie, command::WRITE, flags, offset, len);
        self.write_on(conn, byte);
    }

    /// A client sends as much of the announced payload as there are frames for.
    pub(crate) fn write_on(&mut self, conn: ConnId, byte: u8) {
        while let Receive::Payload(bytes) = self.receive(conn) {
            self.volumes.payload(conn).for_each(|segment| self.frames.of(segment).fill(byte));
            self.filled(conn, bytes);
        }
    }

    /// A client has sent payload, whatever its content.
    pub(crate) fn filled(&mut self, conn: ConnId, bytes: u64) {
        self.event(|volumes| volumes.filled(conn, bytes));
    }

    /// The data of a piece of a read waits to be received.
    fn take_data(&mut self, data: Data) {
        let piece = &mut self.volumes.pieces[data.piece];
        let outgoing = self.outgoing.entry(data.conn).or_default();
        for (i, &frame) in piece.frames.iter().enumerate() {
            let (start, end) = piece.bytes_in(i);
            outgoing.push_back(Part::Data(data.cookie, Segment::new(frame, start, end)));
        }
        piece.frames.clear();
        self.volumes.pieces.give(data.piece);
    }

    /// A client receives all parts of its replies.
    pub(crate) fn send(&mut self, conn: ConnId) {
        let mut sent = Vec::new();
        for part in self.outgoing.remove(&conn).unwrap_or_default() {
            match part {
                Part::Data(cookie, segment) => {
                    self.received.entry(cookie).or_default().extend_from_slice(self.frames.of(segment));
                    sent.push(segment);
                }
                Part::Answer(cookie, error) => {
                    let data = self.received.remove(&cookie).unwrap_or_default();
                    self.answers.insert(cookie, (error, data));
                }
            }
        }
        if sent.is_empty() {
            return;
        }
        let bytes = sent.iter().map(|segment| u64::from(segment.len)).sum();
        let frames = sent.iter().filter(|segment| segment.frame != FrameId::ZERO).count() as u32;
        self.event(|volumes| {
            sent.iter().for_each(|segment| volumes.released(segment.frame));
            volumes.sent(conn, bytes, frames);
        });
    }

    /// Reads a block, all bytes of which must be equal, and returns that byte. Completes all device requests.
    pub(crate) fn content(&mut self, offset: u64) -> u8 {
        const COOKIE: u64 = u64::MAX;
        self.ask(COOKIE, command::READ, 0, offset, BLOCK);
        self.complete_all();
        let (error, data) = self.answers.remove(&COOKIE).expect("an answer to a read");
        assert_eq!((error, data.len() as u64), (0, BLOCK));
        assert!(data.iter().all(|&byte| byte == data[0]), "a torn block at {offset}");
        data[0]
    }

    /// The answer to a request, if there is one: `Some(0)` is success.
    pub(crate) fn answer(&self, cookie: u64) -> Option<u32> {
        self.answers.get(&cookie).map(|(error, _)| *error)
    }
}

/// The device.
impl Rig {
    pub(crate) fn io(&self, at: usize) -> &Io {
        self.volumes.io(self.device[at])
    }

    /// Operations in the device, in order of submission.
    pub(crate) fn ops(&self) -> Vec<Op> {
        self.device.iter().map(|&io| self.volumes.io(io).op).collect()
    }

    /// Completes the request at this place in the device.
    pub(crate) fn complete(&mut self, at: usize, result: Result<(), Errno>) {
        let (io, now) = (self.device.remove(at), self.now);
        if result.is_ok() {
            self.frames.transfer(self.volumes.io(io), &mut self.medium);
        }
        self.event(|volumes| volumes.io_done(io, now, result));
    }

    /// Completes all device requests with success, and all requests that follow from them or from timers that are due.
    pub(crate) fn complete_all(&mut self) {
        loop {
            self.finish_reads();
            if self.volumes.poll_timeout() != Some(self.now) {
                return;
            }
            self.event(ring);
        }
    }

    /// Completes all device requests with success, and those that are submitted at once because of that.
    pub(crate) fn finish_reads(&mut self) {
        while !self.device.is_empty() {
            self.complete(0, Ok(()));
        }
    }
}

/// Does what is due, except for the disconnection of stalled clients, which is not up to this layer.
fn ring(volumes: &mut Volumes) {
    while let Some(name) = volumes.timers.take_due(volumes.now) {
        match name {
            Timer::Volumes => volumes.poke_due(),
            Timer::Initialise => volumes.initialise_all(),
            Timer::Frames => _ = volumes.move_frames(MILLISECOND),
            Timer::Stalls => {}
        }
    }
}

/// The tenant whose backlog is served next.
pub(crate) fn next_job(cpu: &mut Scheduler, now: Nanos) -> Option<TenantId> {
    cpu.begin_pass(now);
    cpu.next_tenant()?;
    match cpu.next_job()? {
        Job::Backlog(tenant) => Some(tenant),
        Job::Connection(_) => unreachable!("no connection is attached"),
    }
}

/// The header of a request, as it is sent.
pub(crate) fn header(cookie: u64, command: u16, flags: u16, offset: u64, len: u64) -> [u8; REQUEST_BYTES] {
    let mut header = [0; REQUEST_BYTES];
    header[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    header[4..6].copy_from_slice(&flags.to_be_bytes());
    header[6..8].copy_from_slice(&command.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..24].copy_from_slice(&offset.to_be_bytes());
    header[24..].copy_from_slice(&(len as u32).to_be_bytes());
    header
}

/// The memory of frames.
pub(crate) struct Frames(Vec<[u8; BLOCK as usize]>);

impl Frames {
    pub(crate) fn new(config: &Config) -> Frames {
        Frames(vec![[0; BLOCK as usize]; config.frames_max()])
    }

    /// The bytes of a segment.
    pub(crate) fn of(&mut self, segment: Segment) -> &mut [u8] {
        let start = usize::from(segment.start);
        &mut self.0[segment.frame.0 as usize][start..start + usize::from(segment.len)]
    }

    pub(crate) fn copy(&mut self, from: FrameId, to: FrameId, start: u16, len: u16) {
        let from = self.0[from.0 as usize];
        let part = usize::from(start)..usize::from(start + len);
        self.0[to.0 as usize][part.clone()].copy_from_slice(&from[part]);
    }

    pub(crate) fn zero(&mut self, frame: FrameId, start: u16, len: u16) {
        self.of(Segment { frame, start, len }).fill(0);
    }

    /// Does what the device does for a request.
    pub(crate) fn transfer(&mut self, io: &Io, medium: &mut [u8]) {
        let mut at = io.offset as usize;
        for &segment in &io.segments {
            let frame = self.of(segment);
            let medium = &mut medium[at..at + frame.len()];
            if io.op == Op::Read {
                frame.copy_from_slice(medium);
            } else {
                medium.copy_from_slice(frame);
            }
            at += frame.len();
        }
        if matches!(io.op, Op::Zero | Op::Punch) {
            medium[io.offset as usize..(io.offset + io.len) as usize].fill(0);
        }
    }
}
