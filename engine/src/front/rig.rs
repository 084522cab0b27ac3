//! Test rig of the front: clients that send headers and receive bytes of simple replies, over the volumes and the
//! device of [`crate::volume::rig`].

use std::collections::BTreeMap;

use super::{CloseReason, Effect, Front};
use crate::disk::Segment;
use crate::ids::{ConnId, TenantId, VolumeId};
use crate::latency::Recorders;
use crate::nbd::wire::{self, command};
use crate::nbd::{self, Asked, Form, Header, Kind, Parsed, Part, RawHeader, Session, parse};
use crate::stream::Outgoing;
use crate::units::Nanos;
use crate::volume::rig::{Above, Frames, VOLUME, header};
use crate::volume::{self, Receive, Volumes};

pub(crate) type Rig = volume::rig::Machine<Sessions>;

/// The front and its clients. The tenant 0 has latencies.
pub(crate) struct Sessions {
    pub(crate) front: Front,
    pub(crate) replies: Replies,
    /// Stalled readers: connections that receive nothing.
    pub(crate) stalled_readers: Vec<ConnId>,
    /// Connections that can send.
    senders: Vec<ConnId>,
    /// Connections that the front closed, and why.
    pub(crate) closed: Vec<(ConnId, CloseReason)>,
}

impl Sessions {
    pub(crate) fn new() -> Sessions {
        let mut front = Front::new();
        front.latencies.insert(TenantId(0), Recorders::new(0));
        let (stalled_readers, senders, closed) = (Vec::new(), Vec::new(), Vec::new());
        Sessions { front, replies: Replies::default(), stalled_readers, senders, closed }
    }

    /// Does what the front wants of the driver.
    fn take_effects(&mut self) {
        while let Some(effect) = self.front.effects.pop_front() {
            match effect {
                Effect::Send(conn) => self.senders.push(conn),
                Effect::Close(conn, why) => self.closed.push((conn, why)),
                Effect::Receive(_) => {}
            }
        }
    }
}

impl Above for Sessions {
    fn take(&mut self, volumes: &mut Volumes, effect: volume::Effect) {
        let front = &mut self.front;
        match effect {
            volume::Effect::Data(data) => front.data(volumes, data),
            volume::Effect::Extents { conn, cookie, volume, start, end, one } => {
                front.extents(volumes, (conn, cookie), volume, (start, end), one);
            }
            volume::Effect::Answer(answer) => front.answer(volumes, &answer),
            volume::Effect::Recheck(conn) => front.recheck(volumes, conn),
            volume::Effect::RecheckVolume(volume) => front.recheck_all(volumes, |_, of| of == volume),
            volume::Effect::RecheckTenant(tenant) => {
                front.recheck_all(volumes, |volumes, of| volumes.tenant_of(of) == tenant);
            }
            _ => {}
        }
    }

    fn receive_replies(rig: &mut Rig) {
        rig.above.take_effects();
        let mut senders = std::mem::take(&mut rig.above.senders);
        senders.retain(|conn| !rig.above.stalled_readers.contains(conn));
        senders.into_iter().for_each(|conn| rig.send(conn));
    }

    fn time_passes(&mut self, volumes: &mut Volumes) {
        self.front.leave_at_once(volumes);
    }

    fn disconnect_stalled(&mut self, volumes: &mut Volumes) {
        self.front.disconnect_stalled(volumes);
    }
}

impl Rig {
    pub(crate) fn new() -> Rig {
        let mut rig = Rig::below(Sessions::new(), 128, |_| {});
        [ConnId(0), ConnId(1)].into_iter().for_each(|conn| rig.attach(conn, VOLUME));
        rig
    }

    pub(crate) fn attach(&mut self, conn: ConnId, volume: VolumeId) {
        self.attach_as(conn, volume, Form::Simple);
    }

    pub(crate) fn attach_as(&mut self, conn: ConnId, volume: VolumeId, form: Form) {
        let session =
            Session { form, base_allocation: form.is_structured(), load: false, read_only: false, demotes: None };
        self.attach_with(conn, volume, session);
    }

    pub(crate) fn attach_with(&mut self, conn: ConnId, volume: VolumeId, session: Session) {
        self.above.replies.open(conn, session.form);
        self.handle(|volumes, above| above.front.attach(volumes, conn, volume, session));
    }

    /// A client disconnects.
    pub(crate) fn close(&mut self, conn: ConnId) {
        assert!(self.handle(|volumes, above| above.front.closed(volumes, conn)), "{conn:?} is unknown");
    }

    pub(crate) fn receive(&self, conn: ConnId) -> Receive {
        self.above.front.receive(&self.volumes, conn)
    }

    /// A request of the first client, without its payload.
    pub(crate) fn ask(&mut self, cookie: u64, command: u16, flags: u16, offset: u64, len: u64) {
        self.ask_as(ConnId(0), cookie, command, flags, offset, len);
    }

    pub(crate) fn ask_as(&mut self, conn: ConnId, cookie: u64, command: u16, flags: u16, offset: u64, len: u64) {
        self.ask_at(self.now, conn, header(cookie, command, flags, offset, len));
    }

    /// A request that arrived at `since`.
    pub(crate) fn ask_at(&mut self, since: Nanos, conn: ConnId, header: RawHeader) {
        assert_eq!(self.receive(conn), Receive::Header);
        self.above.replies.expect(&header);
        self.handle(|volumes, above| above.front.header(volumes, conn, since, &header));
    }

    /// The first client writes blocks full of `byte`, as far as there are frames.
    pub(crate) fn write(&mut self, cookie: u64, flags: u16, offset: u64, len: u64, byte: u8) {
        self.ask(cookie, command::WRITE, flags, offset, len);
        while let Receive::Payload(bytes) = self.receive(ConnId(0)) {
            self.volumes.payload(ConnId(0)).for_each(|segment| self.frames.of(segment).fill(byte));
            self.filled(ConnId(0), bytes);
        }
    }

    /// A client receives all outgoing bytes.
    pub(crate) fn send(&mut self, conn: ConnId) {
        let Sessions { front, replies, .. } = &mut self.above;
        let bytes = replies.receive(conn, front.outgoing(conn), &mut self.frames);
        self.sent(conn, bytes);
    }

    /// A client has received `bytes`, whatever they are.
    pub(crate) fn sent(&mut self, conn: ConnId, bytes: u64) {
        self.handle(|volumes, above| above.front.sent(volumes, conn, bytes));
    }

    pub(crate) fn handed_over(&mut self, at: Nanos, given: impl Fn(ConnId) -> Option<u64>) {
        self.above.front.handed_over(&mut self.volumes, at, given);
    }

    /// The answer to a request, if there is one: `Some(0)` is success.
    pub(crate) fn answer(&self, cookie: u64) -> Option<u32> {
        self.above.replies.answers.get(&cookie).map(|(error, _)| *error)
    }
}

/// What clients have received.
#[derive(Default)]
pub(crate) struct Replies {
    /// By cookie: the error (0: success), and the data that was read.
    pub(crate) answers: BTreeMap<u64, (u32, Vec<u8>)>,
    /// Outstanding requests by cookie, and their answers so far.
    asked: BTreeMap<u64, (Asked, u32, Vec<u8>)>,
    streams: BTreeMap<ConnId, nbd::Replies>,
    /// The read whose data is being received: its cookie, and where the next byte belongs.
    data: (u64, usize),
    /// Extents of the latest block status: lengths and flags.
    pub(crate) extents: Vec<(u64, u64)>,
    /// The last load that was told.
    pub(crate) load: Option<u64>,
}

impl Replies {
    /// A connection has negotiated this.
    pub(crate) fn open(&mut self, conn: ConnId, form: Form) {
        self.streams
            .insert(conn, nbd::Replies::new(form, Some(wire::BASE_ALLOCATION_ID)).with_load(Some(wire::LOAD_ID)));
    }

    /// A request is sent.
    pub(crate) fn expect(&mut self, header: &[u8]) {
        let (cookie, asked) = match parse(header) {
            Parsed::Request(Header { kind, cookie, offset, len, .. }) => (cookie, Asked { kind, offset, len }),
            Parsed::Unknown { cookie, offset, .. } => (cookie, Asked { kind: Kind::Flush, offset, len: 0 }),
            Parsed::Disconnect | Parsed::Garbage => return,
        };
        self.asked.insert(cookie, (asked, 0, Vec::new()));
    }

    /// Bytes arrive; returns their number.
    pub(crate) fn receive<'a>(
        &mut self,
        conn: ConnId,
        parts: impl Iterator<Item = Outgoing<'a>>,
        frames: &mut Frames,
    ) -> u64 {
        let mut received = 0;
        for part in parts {
            received += part.bytes();
            match part {
                Outgoing::Bytes(bytes) => self.bytes(conn, bytes),
                Outgoing::Frame { frame, start, len } => {
                    self.bytes(conn, frames.of(Segment { frame, start, len }));
                }
            }
        }
        received
    }

    fn bytes(&mut self, conn: ConnId, mut bytes: &[u8]) {
        loop {
            let stream = self.streams.entry(conn).or_default();
            let data = bytes.len().min(stream.data_bytes() as usize);
            if data > 0 {
                let (cookie, at) = self.data;
                let read = &mut self.asked.get_mut(&cookie).expect("an outstanding read").2;
                read[at..at + data].copy_from_slice(&bytes[..data]);
                self.data.1 += data;
                stream.took(data as u64);
                bytes = &bytes[data..];
            }
            let (used, part) = stream.next(bytes, |cookie| Some(self.asked.get(&cookie)?.0)).expect("a reply");
            bytes = &bytes[used..];
            match part {
                Some((cookie, part)) => self.part(cookie, part),
                None if bytes.is_empty() => return,
                None => {}
            }
        }
    }

    fn part(&mut self, cookie: u64, part: Part) {
        let (asked, error, data) = self.asked.get_mut(&cookie).expect("an outstanding request");
        match part {
            Part::Data { offset, .. } => {
                data.resize(asked.len as usize, 0);
                self.data = (cookie, (offset - asked.offset) as usize);
            }
            Part::Hole { .. } => data.resize(asked.len as usize, 0),
            Part::Extent { offset, len, flags } => {
                if offset == asked.offset {
                    self.extents.clear();
                }
                self.extents.push((len, flags));
            }
            Part::Load(load) => self.load = Some(load),
            Part::Error(why) => *error = why,
            Part::Done => {
                let (_, error, data) = self.asked.remove(&cookie).expect("just seen");
                self.answers.insert(cookie, (error, data));
            }
        }
    }
}
