//! Test rig of the volumes: a device that completes requests when and how the test says, and clients without a
//! protocol. Headers arrive parsed, and replies have only data and a result. [`Above`] is what the rig of another layer
//! replaces.
//!
//! The medium and the frames hold real bytes, so tests can check what reads return.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::config::{Config, LEAST_BYTES};
use crate::cpu::{Job, Scheduler};
use crate::disk::{Io, Op, Segment};
use crate::errno::Errno;
use crate::ids::{ConnId, FrameId, IoId, TenantId, VolumeId};
use crate::nbd::wire::command;
use crate::nbd::{Form, Parsed, RawHeader, Session, parse};
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

/// What plays the layers above the volumes.
pub(crate) trait Above: Sized {
    /// Takes an effect that concerns clients.
    fn take(&mut self, volumes: &mut Volumes, effect: Effect);

    /// Clients receive their replies, except for stalled readers.
    fn receive_replies(rig: &mut Machine<Self>);

    /// The time is about to advance.
    fn time_passes(&mut self, _volumes: &mut Volumes) {}

    /// Stalled clients are due to be disconnected.
    fn disconnect_stalled(&mut self, _volumes: &mut Volumes) {}
}

/// Clients without a protocol.
#[derive(Default)]
pub(crate) struct Clients {
    /// Parts of replies that are not received, by connection.
    outgoing: BTreeMap<ConnId, VecDeque<Part>>,
    /// Data received for requests that are not answered, by cookie.
    received: BTreeMap<u64, Vec<u8>>,
    /// By cookie: the error (0: success), and the data that was read.
    answers: BTreeMap<u64, (u32, Vec<u8>)>,
    /// Stalled readers: connections that receive nothing.
    pub(crate) stalled_readers: Vec<ConnId>,
    /// Connections from which nothing is read, as of the last time that this was to be checked.
    paused: BTreeSet<ConnId>,
}

/// The volumes, the device, and what is above.
pub(crate) struct Machine<A> {
    pub(crate) volumes: Volumes,
    pub(crate) above: A,
    pub(crate) now: Nanos,
    pub(crate) frames: Frames,
    pub(crate) medium: Vec<u8>,
    /// Requests in the device, in order of submission.
    pub(crate) device: Vec<IoId>,
    /// By token: the result of a command.
    results: BTreeMap<u64, Result<(), Refusal>>,
    /// The token of the drain that is complete, and the volumes whose flush failed.
    pub(crate) drained: Option<(u64, Vec<VolumeId>)>,
    /// Backlogs that wait to be served.
    pub(crate) cpu: Scheduler,
    /// Backlogs are served only by [`Rig::work_once`].
    pub(crate) lazy: bool,
    /// By tenant: nanoseconds of work that were charged to it.
    pub(crate) spent_ns: BTreeMap<TenantId, Nanos>,
    /// Largest number of units of work in one event.
    pub(crate) units_max: u32,
}

pub(crate) type Rig = Machine<Clients>;

impl Rig {
    /// A preallocated volume that was written before, on a device that can zero ranges, with two clients.
    pub(crate) fn new() -> Rig {
        Rig::with(128, |_| {})
    }

    pub(crate) fn with(device_depth: u32, change: impl FnOnce(&mut VolumeSpec)) -> Rig {
        let mut rig = Rig::below(Clients::default(), device_depth, change);
        [ConnId(0), ConnId(1)].into_iter().for_each(|conn| rig.attach(conn, VOLUME));
        rig
    }
}

/// The volumes: a tenant with a volume.
impl<A: Above> Machine<A> {
    pub(crate) fn below(above: A, device_depth: u32, change: impl FnOnce(&mut VolumeSpec)) -> Machine<A> {
        let config = Config { device_depth, ..Config::new(8 * LEAST_BYTES) };
        let mut rig = Machine {
            frames: Frames::new(&config),
            volumes: Volumes::new(config),
            above,
            now: 0,
            medium: vec![1; VOLUME_BYTES],
            device: Vec::new(),
            results: BTreeMap::new(),
            drained: None,
            cpu: Scheduler::default(),
            lazy: false,
            spent_ns: BTreeMap::new(),
            units_max: 0,
        };
        let mut spec = VolumeSpec::plain(VOLUME, TenantId(0), VOLUME_BYTES as u64);
        change(&mut spec);
        rig.set_tenant(TenantId(0), TenantSpec::default());
        rig.open_volume(spec);
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
        self.ring();
    }

    fn ring(&mut self) {
        self.handle(|volumes, above| {
            while let Some(name) = volumes.timers.take_due(volumes.now) {
                match name {
                    Timer::Volumes => volumes.poke_due(),
                    Timer::Initialise => volumes.initialise_all(),
                    Timer::Frames => _ = volumes.move_frames(MILLISECOND),
                    Timer::Ceilings => volumes.release_due(),
                    Timer::Leases => volumes.fail_lapsed(),
                    Timer::Stalls => above.disconnect_stalled(volumes),
                }
            }
        });
    }

    /// An event of the volumes.
    pub(crate) fn event<T>(&mut self, apply: impl FnOnce(&mut Volumes) -> T) -> T {
        self.handle(|volumes, _| apply(volumes))
    }

    /// Handles an event, and all work that it leaves.
    pub(crate) fn handle<T>(&mut self, apply: impl FnOnce(&mut Volumes, &mut A) -> T) -> T {
        let result = self.step(apply);
        while !self.lazy && self.work_once() {}
        result
    }

    /// Does the next step of a backlog; false if there is none.
    pub(crate) fn work_once(&mut self) -> bool {
        let job = next_job(&mut self.cpu, self.now);
        if let Some(tenant) = job {
            self.step(|volumes, _| volumes.work_on(tenant));
        }
        self.cpu.end_quantum();
        job.is_some()
    }

    /// Handles an event only.
    fn step<T>(&mut self, apply: impl FnOnce(&mut Volumes, &mut A) -> T) -> T {
        if self.now > self.volumes.now {
            self.above.time_passes(&mut self.volumes);
        }
        self.volumes.now = self.now;
        self.volumes.work.begin_step();
        let result = apply(&mut self.volumes, &mut self.above);
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
        A::receive_replies(self);
        result
    }

    /// Does what the volumes want.
    fn take_effects(&mut self) {
        while let Some(effect) = self.volumes.effects.pop() {
            match effect {
                Effect::Copy { from, to, start, len } => self.frames.copy(from, to, start, len),
                Effect::Zero { frame, start, len } => self.frames.zero(frame, start, len),
                Effect::Submit(io) => self.device.push(io),
                Effect::Work(tenant) => self.cpu.backlog(tenant),
                Effect::Done(token, result) => _ = self.results.insert(token, result),
                Effect::Drained(token, failed) => self.drained = Some((token, failed)),
                effect => self.above.take(&mut self.volumes, effect),
            }
        }
    }
}

/// The device.
impl<A: Above> Machine<A> {
    pub(crate) fn io(&self, at: usize) -> &Io {
        self.volumes.io(self.device[at])
    }

    /// A client has sent payload, whatever its content.
    pub(crate) fn filled(&mut self, conn: ConnId, bytes: u64) {
        self.event(|volumes| volumes.filled(conn, bytes));
    }

    /// Operations in the device, in order of submission.
    pub(crate) fn ops(&self) -> Vec<Op> {
        self.device.iter().map(|&io| self.volumes.io(io).op).collect()
    }

    /// Completes the request at this place in the device.
    pub(crate) fn complete(&mut self, at: usize, result: Result<(), Errno>) {
        self.complete_at(self.now, at, result);
    }

    /// The same as of `since`.
    pub(crate) fn complete_at(&mut self, since: Nanos, at: usize, result: Result<(), Errno>) {
        let io = self.device.remove(at);
        if result.is_ok() {
            self.frames.transfer(self.volumes.io(io), &mut self.medium);
        }
        self.event(|volumes| volumes.io_done(io, since, result));
    }

    /// Completes all device requests with success, and all requests that follow from them or from timers that are due.
    pub(crate) fn complete_all(&mut self) {
        loop {
            self.finish_reads();
            if self.volumes.poll_timeout() != Some(self.now) {
                return;
            }
            self.ring();
        }
    }

    /// Completes all device requests with success, and those that are submitted at once because of that.
    pub(crate) fn finish_reads(&mut self) {
        while !self.device.is_empty() {
            self.complete(0, Ok(()));
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
        let unsent = self.above.outgoing.remove(&conn).unwrap_or_default();
        self.above.paused.remove(&conn);
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
            _ if self.above.paused.contains(&conn) => Receive::Pause,
            wanted => wanted,
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
        assert_eq!(header.check(size, Form::Simple), Ok(()));
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

    /// A client receives all parts of its replies.
    pub(crate) fn send(&mut self, conn: ConnId) {
        let mut sent = Vec::new();
        for part in self.above.outgoing.remove(&conn).unwrap_or_default() {
            match part {
                Part::Data(cookie, segment) => {
                    self.above.received.entry(cookie).or_default().extend_from_slice(self.frames.of(segment));
                    sent.push(segment);
                }
                Part::Answer(cookie, error) => {
                    let data = self.above.received.remove(&cookie).unwrap_or_default();
                    self.above.answers.insert(cookie, (error, data));
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
        let (error, data) = self.above.answers.remove(&COOKIE).expect("an answer to a read");
        assert_eq!((error, data.len() as u64), (0, BLOCK));
        assert!(data.iter().all(|&byte| byte == data[0]), "a torn block at {offset}");
        data[0]
    }

    /// The answer to a request, if there is one: `Some(0)` is success.
    pub(crate) fn answer(&self, cookie: u64) -> Option<u32> {
        self.above.answers.get(&cookie).map(|(error, _)| *error)
    }
}

impl Above for Clients {
    fn take(&mut self, volumes: &mut Volumes, effect: Effect) {
        match effect {
            Effect::Data(data) => self.take_data(volumes, data),
            Effect::Answer(answer) => {
                let part = Part::Answer(answer.cookie, answer.error.map_or(0, |error| error as u32));
                self.outgoing.entry(answer.conn).or_default().push_back(part);
                self.recheck(volumes, |conn, _, _| conn == answer.conn);
            }
            Effect::Recheck(of) => self.recheck(volumes, |conn, _, _| conn == of),
            Effect::RecheckVolume(of) => self.recheck(volumes, |_, volume, _| volume == of),
            Effect::RecheckTenant(of) => self.recheck(volumes, |_, _, tenant| tenant == of),
            _ => {}
        }
    }

    fn receive_replies(rig: &mut Rig) {
        let mut readers: Vec<_> = rig.above.outgoing.keys().copied().collect();
        readers.retain(|conn| !rig.above.stalled_readers.contains(conn));
        readers.into_iter().for_each(|conn| rig.send(conn));
    }
}

impl Clients {
    /// The data of a piece of a read waits to be received.
    fn take_data(&mut self, volumes: &mut Volumes, data: Data) {
        let piece = &mut volumes.pieces[data.piece];
        let outgoing = self.outgoing.entry(data.conn).or_default();
        for (i, &frame) in piece.frames.iter().enumerate() {
            let (start, end) = piece.bytes_in(i);
            outgoing.push_back(Part::Data(data.cookie, Segment::new(frame, start, end)));
        }
        piece.frames.clear();
        volumes.pieces.give(data.piece);
    }

    /// Checks the selected connections: whether they are read.
    fn recheck(&mut self, volumes: &mut Volumes, selected: impl Fn(ConnId, VolumeId, TenantId) -> bool) {
        for conn in (0..volumes.clients.past()).map(ConnId) {
            let Some(client) = volumes.clients.get(conn).filter(|client| client.open) else { continue };
            if !selected(conn, client.volume, volumes.tenant_of(client.volume)) {
                continue;
            }
            if volumes.is_paused(conn, false) {
                self.paused.insert(conn);
            } else {
                self.paused.remove(&conn);
            }
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
pub(crate) fn header(cookie: u64, command: u16, flags: u16, offset: u64, len: u64) -> RawHeader {
    RawHeader::new(Form::Simple, command, flags, cookie, offset, len)
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
