//! The clients of the volumes: their requests, and what these may occupy.
//!
//! The front parses and replies. It tells this layer when a request begins ([`Volumes::begin`]), when its payload is
//! there ([`Volumes::filled`], [`Volumes::discarded`]), when frames of replies are sent ([`Volumes::released`]), and
//! when a client is gone ([`Volumes::abandon`]). What it reads next from a client is [`Client::inbound`].

use std::collections::VecDeque;

use super::{Answer, Effect, FlushFor, Kind, Request, Todo, Volumes};
use crate::disk::Segment;
use crate::errno::Errno;
use crate::ids::{ConnId, FrameId, TenantId, VolumeId};
use crate::nbd::wire::command_flag as flag;
use crate::nbd::{Header, Session};
use crate::units::{BLOCK, Nanos};

/// Outstanding requests of one tenant over all its connections: 32 connections at their limit. Beyond it, each
/// connection may have one request at a time. Limits the memory of requests, pieces and waiters (about 12 MiB a
/// tenant), and the cost of looking at all of them together.
pub(crate) const REQUESTS_PER_TENANT: u32 = 4096;
/// Units of work of one answer.
pub(crate) const ANSWER_UNITS: u32 = 3;

/// The next bytes to read from a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Inbound {
    Header,
    /// A write is held back by the ceilings of its tenant, or waits for a lease.
    Held,
    /// A piece of a write waits for frames, or behind other pieces that do.
    Reserving {
        piece: u32,
    },
    /// The payload of a piece.
    Payload {
        piece: u32,
        received: u64,
    },
    /// The payload of a request that failed.
    Discard {
        request: u32,
        left: u64,
    },
    /// Nothing any more.
    Stopped,
}

/// The next bytes to read from a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Receive {
    /// A request header of [`Server::header_bytes`](crate::Server::header_bytes) bytes.
    Header,
    /// This many bytes, into the segments of [`Server::payload`](crate::Server::payload).
    Payload(u64),
    /// This many bytes, which are discarded.
    Discard(u64),
    /// Nothing for now: the driver does not read from this socket until
    /// [`Action::Receive`](crate::Action::Receive).
    Pause,
    /// Nothing any more.
    Closed,
}

/// A client of a volume.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) volume: VolumeId,
    pub(crate) session: Session,
    pub(crate) inbound: Inbound,
    /// It is connected.
    pub(crate) open: bool,
    /// Outstanding requests.
    pub(crate) in_flight: u32,
    /// Of these, requests that change data or make it durable.
    pub(crate) changing: u32,
    /// The reply to this request is being sent in pieces, and no other reply may come in between (simple replies).
    pub(crate) exclusive: Option<u32>,
    /// Reads that continue when enough of the replies is sent.
    pub(crate) stalled: VecDeque<u32>,
    /// Since when the first of them waits although the client has taken all its replies.
    pub(crate) stalled_since: Option<Nanos>,
    /// Bytes of replies that are not sent yet.
    pub(crate) unsent: u64,
    /// Frames of replies that are not sent yet.
    pub(crate) held: u32,
    /// Frames of reads in progress: they will be held soon.
    pub(crate) reading: u32,
}

impl Client {
    fn new(volume: VolumeId, session: Session) -> Client {
        Client {
            volume,
            session,
            inbound: Inbound::Header,
            open: true,
            in_flight: 0,
            changing: 0,
            exclusive: None,
            stalled: VecDeque::new(),
            stalled_since: None,
            unsent: 0,
            held: 0,
            reading: 0,
        }
    }

    /// Frames that its replies occupy.
    pub(crate) fn unsent(&self) -> u32 {
        self.held + self.reading
    }
}

/// Whether a request changes data.
pub(crate) fn writes(kind: Kind) -> bool {
    matches!(kind, Kind::Write | Kind::Zeroes | Kind::Trim)
}

impl Volumes {
    /// A client opens a volume. False if the volume is not open, or being closed.
    pub(crate) fn attach(&mut self, conn: ConnId, volume: VolumeId, session: Session) -> bool {
        let Some(state) = self.table.get_mut(volume).filter(|state| !state.is_closing()) else { return false };
        assert!(!self.clients.contains(conn), "{conn:?} is used twice");
        state.connections += 1;
        let session = Session { read_only: session.read_only || state.spec.read_only, ..session };
        self.clients.insert(conn, Client::new(volume, session));
        self.lower_attached(conn);
        true
    }

    pub(crate) fn client(&mut self, conn: ConnId) -> &mut Client {
        &mut self.clients[conn]
    }

    /// The next bytes to read from a client, apart from pauses.
    pub(crate) fn receive(&self, conn: ConnId) -> Receive {
        match self.clients[conn].inbound {
            Inbound::Stopped => Receive::Closed,
            Inbound::Payload { piece, received } => {
                let piece = &self.pieces[piece];
                Receive::Payload(piece.end - piece.start - received)
            }
            Inbound::Discard { left, .. } => Receive::Discard(left),
            Inbound::Header | Inbound::Held | Inbound::Reserving { .. } => Receive::Header,
        }
    }

    /// The places of the remaining payload of the current piece, in order.
    pub(crate) fn payload(&self, conn: ConnId) -> impl Iterator<Item = Segment> + '_ {
        let (piece, received) = match self.clients.get(conn).map(|client| client.inbound) {
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

    /// Whether nothing is read from a client at present. `is_full`: the layer above has no room for more replies to it.
    pub(crate) fn is_paused(&mut self, conn: ConnId, is_full: bool) -> bool {
        let client = &self.clients[conn];
        let tenant = self.tenant_of(client.volume);
        let is_full = || {
            let full = is_full || client.unsent >= self.config.unsent_bytes_per_connection;
            full || client.held > 0 && self.reply_room(conn) == 0
        };
        let paused = match client.inbound {
            Inbound::Held | Inbound::Reserving { .. } => true,
            Inbound::Header => {
                is_full()
                    || client.in_flight >= self.config.requests_per_connection
                    || client.exclusive.is_some()
                    || self.volume(client.volume).crowded
                    || client.in_flight > 0 && self.cache.partition(tenant).crowded
            }
            _ => false,
        };
        if paused && is_full() {
            self.cache.partition_mut(tenant).throttled = true;
        }
        paused
    }

    /// A request arrives; `refused` if it is answered with an error.
    pub(crate) fn begin(&mut self, conn: ConnId, since: Nanos, header: &Header, refused: Option<Errno>) {
        let (request, tenant) = self.open_request(conn, since, header);
        if refused.is_none() {
            self.note_change(conn, header);
        }
        if refused.is_some() || !self.is_held_back(tenant, request) {
            // What other caches evict is no load.
            if header.kind != Kind::Demote {
                self.route.disk.begin_request(self.now, tenant);
            }
            match refused {
                None => self.start(request),
                Some(error) => self.refuse(request, error, header.payload),
            }
        }
        self.effects.push(Effect::Recheck(conn));
    }

    /// A request that is not refused, and that no ceiling holds back, begins, unless a lease has ended.
    pub(crate) fn start(&mut self, request: u32) {
        let Request { volume, kind, flags, .. } = self.requests[request];
        if kind != Kind::Demote && self.is_stopped_by_lease(request) {
            return;
        }
        match kind {
            Kind::Read => self.read_arrived(request),
            Kind::Cache => {
                let (tenant, most) = (self.tenant_of(volume), self.cache_bytes_max(volume));
                let state = &mut self.requests[request];
                state.end = state.end.min(state.start + most);
                self.cache_arrived(tenant, request);
            }
            Kind::Write => self.next_payload(request),
            Kind::Flush => self.flush_arrived(volume, FlushFor::Request(request)),
            Kind::Trim => self.trim_arrived(request),
            Kind::Zeroes => self.zeroes_arrived(request),
            Kind::Status => self.status_arrived(request, flags & flag::REQ_ONE != 0),
            Kind::Demote => self.demote_arrived(request),
        }
    }

    /// Bytes of a CACHE at most, half the partition: more would evict blocks that this request has just read.
    pub(crate) fn cache_bytes_max(&self, volume: VolumeId) -> u64 {
        u64::from(self.cache.partition(self.tenant_of(volume)).target) / 2 * BLOCK
    }

    fn open_request(&mut self, conn: ConnId, since: Nanos, header: &Header) -> (u32, TenantId) {
        if header.kind != Kind::Demote {
            self.last_request_at = self.now;
        }
        let client = &mut self.clients[conn];
        client.in_flight += 1;
        client.changing += u32::from(changes(header.kind));
        let volume = client.volume;
        let tenant = self.tenant_of(volume);
        let partition = self.cache.partition_mut(tenant);
        partition.requests += 1;
        partition.crowded |= partition.requests >= REQUESTS_PER_TENANT;
        let arrived = since.min(self.now);
        let state = &mut self.table[volume];
        state.requests += 1;
        state.counters.thread_delay_ns += self.now - arrived;
        let durable = state.writes_are_durable(header.has(flag::FUA));
        let id = self.requests.take();
        self.requests[id] = Request {
            conn,
            volume,
            kind: header.kind,
            cookie: header.cookie,
            start: header.offset,
            end: header.offset.saturating_add(header.len),
            next: header.offset,
            durable,
            unsplit: header.has(flag::DF),
            arrived,
            flags: header.flags,
            ..Request::default()
        };
        (id, tenant)
    }

    /// Answers with an error, after `payload` bytes were read and discarded.
    pub(super) fn refuse(&mut self, request: u32, error: Errno, payload: u64) {
        let state = &mut self.requests[request];
        state.error = Some(error);
        state.next = state.end;
        if payload == 0 {
            self.finish(request);
        } else {
            let conn = state.conn;
            state.active += 1;
            self.clients[conn].inbound = Inbound::Discard { request, left: payload };
        }
    }

    /// Payload that is to be discarded was.
    pub(crate) fn discarded(&mut self, conn: ConnId, bytes: u64) {
        let client = &mut self.clients[conn];
        let Inbound::Discard { request, left } = client.inbound else { panic!("nothing was to be discarded") };
        client.inbound = match left - bytes {
            0 => Inbound::Header,
            left => Inbound::Discard { request, left },
        };
        if left == bytes {
            self.part_done(request);
            self.effects.push(Effect::Recheck(conn));
        }
    }

    fn status_arrived(&mut self, request: u32, one: bool) {
        let Request { conn, volume, cookie, start, end, .. } = self.requests[request];
        self.effects.push(Effect::Extents { conn, cookie, volume, start, end, one });
        self.finish(request);
    }

    /// A frame of a reply was sent, or will never be.
    pub(crate) fn released(&mut self, frame: FrameId) {
        if !planted!(FrameFreedWhileSent) {
            self.cache.release(frame);
        }
    }

    /// `bytes` of replies were sent, and the last references of `frames` frames with them.
    pub(crate) fn sent(&mut self, conn: ConnId, bytes: u64, frames: u32) {
        let client = &mut self.clients[conn];
        client.unsent -= bytes;
        client.held -= frames;
        let volume = client.volume;
        self.fewer_unsent(volume, frames);
    }

    /// Replies of a volume occupy `frames` frames fewer.
    pub(crate) fn fewer_unsent(&mut self, volume: VolumeId, frames: u32) {
        let tenant = self.tenant_of(volume);
        self.table[volume].unsent -= frames;
        let partition = self.cache.partition_mut(tenant);
        partition.unsent -= frames;
        if std::mem::take(&mut partition.throttled) {
            self.put_off(Todo::Replies(tenant));
        }
    }

    /// Frames that replies to this client may take now: so many that afterwards it occupies no more than it leaves to
    /// other clients. One stalled reader gets a quarter of the partition, the next one an eighth, and so on: there is
    /// always room for another one.
    pub(crate) fn reply_room(&self, conn: ConnId) -> u32 {
        if planted!(UnsentNotBounded) {
            return u32::MAX;
        }
        let client = &self.clients[conn];
        let bytes = client.unsent + u64::from(client.reading) * BLOCK;
        if bytes >= self.config.unsent_bytes_per_connection {
            return 0;
        }
        let partition = self.cache.partition(self.tenant_of(client.volume));
        let left = partition.reply_frames_left(self.table[client.volume].unsent);
        left.saturating_sub(client.unsent()).div_ceil(2)
    }

    /// Replies of a tenant may occupy more frames than before: its stalled reads go on, as far as there is room.
    pub(crate) fn resume_tenant(&mut self, tenant: TenantId) {
        for conn in (0..self.clients.past()).map(ConnId) {
            if self.clients.get(conn).is_none_or(|client| self.tenant_of(client.volume) != tenant) {
                continue;
            }
            if self.reply_room(conn) > 0 {
                self.resume_stalled(conn);
            } else if !self.clients[conn].stalled.is_empty() {
                self.cache.partition_mut(tenant).throttled = true;
            }
        }
        self.effects.push(Effect::RecheckTenant(tenant));
    }

    /// The stalled reads of a client go on.
    pub(crate) fn resume_stalled(&mut self, conn: ConnId) {
        while let Some(request) = self.clients[conn].stalled.pop_front() {
            self.agenda.push_back(Todo::Request(request));
        }
    }

    /// When the longest present wait for frames of this tenant began: of a piece, or of a read whose client has
    /// received all its other replies.
    pub(crate) fn starved_since(&self, tenant: TenantId) -> Option<Nanos> {
        let waiting = &self.waiting[tenant];
        let writes = waiting.writes.iter().filter_map(|&volume| self.table[volume].writes.front());
        let pieces = waiting.reads.front().into_iter().chain(writes);
        let partition = self.cache.partition(tenant);
        if waiting.reads.is_empty()
            && waiting.writes.is_empty()
            && !partition.throttled
            && !self.replies_are_put_off(tenant)
        {
            return None;
        }
        let stalled = self.clients.values().filter(|client| {
            let stalled = !client.stalled.is_empty() && client.unsent() == 0;
            stalled && self.tenant_of(client.volume) == tenant
        });
        let stalled = stalled.filter_map(|client| client.stalled_since);
        let pieces = pieces.map(|&piece| self.pieces[piece].waiting_since);
        pieces.chain(stalled).min()
    }

    /// A client has disconnected, and the frames of its replies were released: reads that are not issued are dropped,
    /// completely received writes remain.
    pub(crate) fn abandon(&mut self, conn: ConnId) {
        let client = &mut self.clients[conn];
        client.open = false;
        // Counts as a request, so that requests that end in this function do not free the connection's slot.
        client.in_flight += 1;
        let held = std::mem::take(&mut client.held);
        client.unsent = 0;
        let (inbound, volume) = (std::mem::replace(&mut client.inbound, Inbound::Stopped), client.volume);
        let tenant = self.tenant_of(volume);
        self.cache.partition_mut(tenant).unsent -= held;
        self.table[volume].unsent -= held;
        match inbound {
            Inbound::Reserving { piece } | Inbound::Payload { piece, .. } => self.forget_payload(volume, piece),
            Inbound::Discard { request, .. } => self.part_done(request),
            Inbound::Header | Inbound::Held | Inbound::Stopped => {}
        }
        self.forget_held(tenant, conn);
        self.forget_lapsed(volume, conn);
        self.resume_stalled(conn);
        self.end_streams(volume, Some(conn));
        self.forget_caches(tenant, conn);
        self.cache.partition_mut(tenant).stirred = true;
        self.put_off(Todo::Replies(tenant));
        self.clients[conn].in_flight -= 1;
        // A large read may have waited for the requests that ended above.
        self.exclusive_on(conn);
        self.check_gone(conn);
    }

    /// A read that waits until it is the only request of its connection goes on if it is by now.
    fn exclusive_on(&mut self, conn: ConnId) {
        let client = &self.clients[conn];
        if let Some(request) = client.exclusive
            && client.in_flight == 1
            && self.requests[request].held_at.is_none()
        {
            self.put_on_agenda(request);
        }
    }

    /// Whether the payload of a request that changes data is still to come.
    pub(super) fn is_receiving_change(&self, client: &Client) -> bool {
        let request = match client.inbound {
            Inbound::Header | Inbound::Stopped => return false,
            Inbound::Held => return true,
            Inbound::Reserving { piece } | Inbound::Payload { piece, .. } => self.pieces[piece].request,
            Inbound::Discard { request, .. } => request,
        };
        changes(self.requests[request].kind)
    }

    fn check_gone(&mut self, conn: ConnId) {
        let client = &self.clients[conn];
        if client.in_flight == 0 && !client.open {
            let (volume, session) = (client.volume, client.session);
            self.clients.remove(conn);
            self.table[volume].connections -= 1;
            self.lower_gone(volume, session);
            self.poke(volume);
            self.effects.push(Effect::Gone(conn));
        }
    }

    /// A piece or a range operation of a request is complete.
    pub(crate) fn part_done(&mut self, request: u32) {
        let state = &mut self.requests[request];
        state.active -= 1;
        if state.queued {
            return;
        }
        if state.is_done() && !self.work.is_spent() {
            // One event may finish thousands of requests: all that waited for the same block or flush.
            self.work.step(ANSWER_UNITS);
            self.finish(request);
        } else {
            self.put_on_agenda(request);
        }
    }

    pub(crate) fn put_on_agenda(&mut self, request: u32) {
        if !std::mem::replace(&mut self.requests[request].queued, true) {
            self.agenda.push_back(Todo::Request(request));
        }
    }

    /// Continues a request.
    pub(crate) fn go_on(&mut self, request: u32) {
        // Parts that end during this call must not finish the request: this function does.
        self.requests[request].queued = true;
        let stalled = match self.requests[request].kind {
            Kind::Read | Kind::Cache => self.read_on(request),
            Kind::Zeroes => self.zero_on(request),
            Kind::Write | Kind::Trim | Kind::Flush | Kind::Status | Kind::Demote => false,
        };
        let state = &mut self.requests[request];
        state.queued = stalled;
        if !stalled && state.is_done() {
            self.finish(request);
        }
    }

    /// Hands a complete request to the front and removes it. For a zeroed or trimmed range that must be durable,
    /// flushes first.
    pub(crate) fn finish(&mut self, request: u32) {
        let state = &mut self.requests[request];
        let volume = state.volume;
        if state.durable && state.flush_first && state.error.is_none() {
            state.flush_first = false;
            return self.flush_arrived(volume, FlushFor::Request(request));
        }
        let Request { conn, kind, cookie, start, end, arrived, missed, begun, ended, durable, .. } = *state;
        let mut error = state.error;
        let of_volume = &self.table[volume];
        let fua = matches!(kind, Kind::Write | Kind::Zeroes) && durable && error.is_none();
        // `docs/design/flush.md`: FUA fails as long as any block acknowledged earlier is not on the medium.
        if fua && of_volume.flushes.lost {
            error = Some(Errno::Io);
        } else if fua && self.cache.volume(volume).failing > 0 && !planted!(FuaIgnoresFailedBlocks) {
            error = Some(of_volume.write_error);
        }
        if changes(kind) && of_volume.is_fenced {
            // It began before another client was admitted, and reaches no server any more.
            error = error.or(Some(Errno::Io));
        }
        if kind == Kind::Write && error.is_none() && of_volume.draining {
            // Its payload came after the last flush had begun: no later flush would bring it to the medium.
            error = Some(Errno::Shutdown);
        }
        if self.clients[conn].open {
            let bytes = end - start;
            let offset = start;
            let answer = Answer { conn, volume, kind, cookie, offset, bytes, arrived, error, missed, begun, ended };
            self.effects.push(Effect::Answer(answer));
        }
        self.table[volume].requests -= 1;
        self.request_gone(request, volume);
        self.requests.give(request);
        if kind != Kind::Demote {
            self.route.disk.end_request(self.now, self.tenant_of(volume));
        }
        if self.table[volume].is_closing() {
            self.poke(volume);
        }
        let client = &mut self.clients[conn];
        client.in_flight -= 1;
        client.changing -= u32::from(changes(kind));
        if client.exclusive == Some(request) {
            client.exclusive = None;
        }
        self.exclusive_on(conn);
        self.check_gone(conn);
    }

    /// Removes a request from the counts of its tenant.
    fn request_gone(&mut self, request: u32, volume: VolumeId) {
        let tenant = self.tenant_of(volume);
        let scattered = std::mem::take(&mut self.requests[request].scattered);
        let partition = self.cache.partition_mut(tenant);
        partition.requests -= 1;
        if scattered > 0 {
            partition.end_read(scattered);
        }
        if partition.crowded && partition.requests <= REQUESTS_PER_TENANT / 4 * 3 {
            partition.crowded = false;
            self.put_off(Todo::Replies(tenant));
        }
        if std::mem::take(&mut self.requests[request].caching) {
            self.cache.partition_mut(tenant).caching -= 1;
            if let Some(next) = self.waiting[tenant].caches.pop_front() {
                self.begin_cache(tenant, next);
            }
        }
    }
}

/// Whether a request changes data or makes it durable.
fn changes(kind: Kind) -> bool {
    writes(kind) || kind == Kind::Flush
}
