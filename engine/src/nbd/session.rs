//! Requests of a connection: from headers to pieces, from results to replies.

use super::request::{Header, Parsed, parse};
use super::wire::{REQUEST_BYTES, command_flag as flag, state};
use super::{Connection, Inbound};
use crate::errno::Errno;
use crate::event::{Action, Farewell, Session};
use crate::ids::{ConnId, TenantId, VolumeId};
use crate::server::Server;
use crate::units::{BLOCK, Nanos, PIECE, SECOND};
use crate::volume::FlushFor;
use crate::volume::Kind;
use crate::work::Todo;

/// Parts of replies that may be queued on a connection: as many as replies of 4 KiB have at the byte limit (8 MiB, two
/// parts per reply). Limits the memory for replies of a few bytes.
const PARTS_MAX: usize = 4096;
/// Time in which a client may receive nothing while others wait for the frames of its replies. Longer than a network
/// needs to recover, shorter than the 30 s after which clients time out a request.
pub(crate) const PATIENCE_NS: Nanos = 10 * SECOND;
/// Payload rate, bytes per second, at which a client is never disconnected: each block received extends [`PATIENCE_NS`]
/// by a quarter of a second. So a piece of 256 KiB is complete within 26 s, less than the 30 s of other clients.
/// Applies only while others of the tenant wait for frames.
pub(crate) const PAYLOAD_BYTES_PER_S: u64 = 16 * 1024;
/// Units of work of one answer.
pub(crate) const ANSWER_UNITS: u32 = 3;
/// Outstanding requests of one tenant over all its connections: 32 connections at their limit. Beyond it, each
/// connection may have one request at a time. Limits the memory of requests, pieces and waiters (about 12 MiB a
/// tenant), and the cost of looking at all of them together.
pub(crate) const REQUESTS_PER_TENANT: u32 = 4096;
/// Extents in one answer to BLOCK_STATUS: clients request the remaining ones again.
const EXTENTS_MAX: usize = 128;

/// Whether a request changes data.
fn writes(kind: Kind) -> bool {
    matches!(kind, Kind::Write | Kind::Zeroes | Kind::Trim)
}

/// Whether a request changes data or makes it durable.
fn changes(kind: Kind) -> bool {
    writes(kind) || kind == Kind::Flush
}

impl Server {
    pub(crate) fn attached(&mut self, conn: ConnId, volume: VolumeId, session: Session) {
        if self.find_volume(volume).is_none_or(|volume| volume.closing.is_some()) {
            self.actions.push_back(Action::Close(conn, Farewell::Over));
            return;
        }
        let at = conn.0 as usize;
        if self.connections.len() <= at {
            self.connections.resize_with(at + 1, || None);
        }
        assert!(self.connections[at].is_none(), "connection slot {at} is used twice");
        let state = self.volume_mut(volume);
        state.connections += 1;
        let session = Session { read_only: session.read_only || state.spec.read_only, ..session };
        self.connections[at] = Some(Connection::new(volume, session));
    }

    pub(crate) fn header_arrived(&mut self, conn: ConnId, since: Nanos, bytes: &[u8; REQUEST_BYTES]) {
        debug_assert_eq!(self.conn(conn).inbound, Inbound::Header);
        self.last_request_at = self.now;
        match parse(bytes) {
            Parsed::Request(header) => self.request_arrived(conn, since, header),
            Parsed::Disconnect => {
                self.conn(conn).inbound = Inbound::Stopped;
                self.leave(conn);
            }
            Parsed::Unknown { cookie } => {
                let header = Header { kind: Kind::Flush, flags: 0, cookie, offset: 0, len: 0 };
                let request = self.open_request(conn, since, &header);
                self.requests[request].error = Some(Errno::Invalid);
                self.finish(request);
            }
            Parsed::Garbage => {
                self.conn(conn).inbound = Inbound::Stopped;
                self.actions.push_back(Action::Close(conn, Farewell::Garbage));
                self.conn(conn).closing = true;
            }
        }
    }

    fn open_request(&mut self, conn: ConnId, since: Nanos, header: &Header) -> u32 {
        let now = self.now;
        let connection = self.conn(conn);
        connection.in_flight += 1;
        connection.changing += u32::from(changes(header.kind));
        let volume = connection.volume;
        self.volume_mut(volume).requests += 1;
        let partition = self.cache.partition_mut(self.cache.volume(volume).tenant);
        partition.requests += 1;
        partition.crowded |= partition.requests >= REQUESTS_PER_TENANT;
        self.device.begin_demand(self.now, self.cache.volume(volume).tenant);
        let arrived = since.min(self.now);
        let state = self.volume_mut(volume);
        state.counters.thread_delay_ns += now - arrived;
        let durable = state.writes_are_durable(header.has(flag::FUA));
        let id = self.requests.take();
        let request = &mut self.requests[id];
        *request = crate::volume::Request {
            conn,
            volume,
            kind: header.kind,
            cookie: header.cookie,
            start: header.offset,
            end: header.offset.saturating_add(u64::from(header.len)),
            next: header.offset,
            durable,
            unsplit: header.has(flag::DF),
            arrived,
            ..Default::default()
        };
        id
    }

    fn request_arrived(&mut self, conn: ConnId, since: Nanos, header: Header) {
        let request = self.open_request(conn, since, &header);
        let volume = self.requests[request].volume;
        let checked = self.check(conn, volume, &header);
        if let Err(error) = checked {
            self.refuse(request, error, if header.kind == Kind::Write { header.len } else { 0 });
        } else {
            match header.kind {
                Kind::Read => self.read_arrived(request),
                Kind::Cache => {
                    // At most half the partition: more would evict blocks that this request has just read.
                    let tenant = self.tenant_of(volume);
                    let most = u64::from(self.cache.partition(tenant).target) / 2 * BLOCK;
                    let state = &mut self.requests[request];
                    state.end = state.end.min(state.start + most);
                    self.cache_arrived(tenant, request);
                }
                Kind::Write => self.next_payload(request),
                Kind::Flush => self.flush_arrived(volume, FlushFor::Request(request)),
                Kind::Trim => self.trim_arrived(request),
                Kind::Zeroes => self.zeroes_arrived(request, header.has(flag::NO_HOLE), header.has(flag::FAST_ZERO)),
                Kind::Status => self.status_arrived(request, header.has(flag::REQ_ONE)),
            }
        }
        self.note_pause(conn);
    }

    fn check(&mut self, conn: ConnId, volume: VolumeId, header: &Header) -> Result<(), Errno> {
        let session = self.conn(conn).session;
        let state = self.volume(volume);
        if self.draining.is_some() || state.closing.is_some() {
            return Err(Errno::Shutdown);
        }
        if session.read_only && writes(header.kind) && !planted!(ReadOnlySessionWrites) {
            return Err(Errno::Perm);
        }
        header.check(state.spec.size)?;
        if header.kind == Kind::Status && !session.base_allocation {
            return Err(Errno::Invalid);
        }
        if header.kind == Kind::Read && header.has(flag::DF) && !session.structured {
            return Err(Errno::Invalid);
        }
        // With DF the reply must be one chunk, which has to fit into the memory of a piece. (The protocol requires at
        // least 64 KiB.)
        if header.kind == Kind::Read && header.has(flag::DF) && u64::from(header.len) > PIECE {
            return Err(Errno::Overflow);
        }
        Ok(())
    }

    /// Answers with an error, after `payload` bytes were read and discarded.
    fn refuse(&mut self, request: u32, error: Errno, payload: u32) {
        let state = &mut self.requests[request];
        state.error = Some(error);
        state.next = state.end;
        if payload == 0 {
            self.finish(request);
        } else {
            let conn = state.conn;
            state.active += 1;
            self.conn(conn).inbound = Inbound::Discard { request, left: u64::from(payload) };
        }
    }

    pub(crate) fn discarded(&mut self, conn: ConnId, bytes: u64) {
        let Inbound::Discard { request, left } = self.conn(conn).inbound else { panic!("nothing was to be discarded") };
        self.conn(conn).inbound = match left - bytes {
            0 => Inbound::Header,
            left => Inbound::Discard { request, left },
        };
        if left == bytes {
            self.part_done(request);
            self.note_pause(conn);
        }
    }

    pub(crate) fn bytes_sent(&mut self, conn: ConnId, bytes: u64) {
        let Some(Some(connection)) = self.connections.get_mut(conn.0 as usize) else { return };
        let (cache, held) = (&mut self.cache, connection.held);
        connection.sent(bytes, |frame| {
            if !planted!(FrameFreedWhileSent) {
                cache.release(frame);
            }
        });
        connection.took_at = self.now;
        let (fewer, volume) = (held - connection.held, connection.volume);
        self.owed_less(volume, fewer);
    }

    /// Replies of a volume were sent: they occupy `frames` frames fewer.
    pub(crate) fn owed_less(&mut self, volume: VolumeId, frames: u32) {
        let tenant = self.tenant_of(volume);
        self.volume_mut(volume).owed -= frames;
        let partition = self.cache.partition_mut(tenant);
        partition.owed -= frames;
        if std::mem::take(&mut partition.throttled) {
            self.put_off(Todo::Replies(tenant));
        }
    }

    /// Replies of a tenant may occupy more frames than before: checks its connections that wait for that.
    pub(crate) fn unthrottle(&mut self, tenant: TenantId) {
        // Not divided into steps: checking a connection costs a tenth of a look at a block, and there are about a
        // thousand connections at most.
        self.charge(tenant, self.connections.len() as u32 / 10 + 1);
        for conn in (0..self.connections.len() as u32).map(ConnId) {
            let Some(connection) = &self.connections[conn.0 as usize] else { continue };
            if self.tenant_of(connection.volume) != tenant {
                continue;
            }
            if self.reply_room(connection) > 0 {
                self.resume_stalled(conn);
            } else if !self.conn(conn).stalled.is_empty() {
                self.cache.partition_mut(tenant).throttled = true;
            }
            self.note_pause(conn);
        }
    }

    /// Disconnects a stalled reader: a client that has received nothing for [`PATIENCE_NS`] while another client of its
    /// tenant waited as long for frames. If there are several, the one that occupies most frames.
    pub(crate) fn part_with_deaf(&mut self, tenant: TenantId) {
        if planted!(UnsentNotBounded) {
            return;
        }
        let Some(hungry_since) = self.hungry_since(tenant) else { return };
        let holders = (0u32..).map(ConnId).zip(&self.connections).filter_map(|(conn, connection)| {
            let connection = connection.as_ref()?;
            let holds = connection.held > 0 && connection.open && !connection.closing;
            (holds && self.tenant_of(connection.volume) == tenant).then_some((conn, connection))
        });
        let deaf_at = |connection: &Connection| connection.took_at.max(hungry_since) + PATIENCE_NS;
        let deaf = holders.clone().filter(|(_, connection)| deaf_at(connection) <= self.now);
        if let Some((conn, _)) = deaf.max_by_key(|(_, connection)| connection.held) {
            let connection = self.conn(conn);
            connection.closing = true;
            let volume = connection.volume;
            self.volume_mut(volume).counters.deaf_disconnects += 1;
            self.actions.push_back(Action::Close(conn, Farewell::Deaf));
            // If these frames are not enough, another one will be disconnected.
            self.wake_at(self.now + SECOND);
        } else if let Some(at) = holders.map(|(_, connection)| deaf_at(connection)).min() {
            self.wake_at(at);
        }
    }

    /// Disconnects stalled writers: clients that do not send the payload of a write while others of their tenant wait
    /// for frames. All that are too slow by now, see [`PAYLOAD_BYTES_PER_S`].
    pub(crate) fn part_with_stalled(&mut self, tenant: TenantId) {
        if planted!(StalledNotDisconnected) {
            return;
        }
        let Some(hungry_since) = self.hungry_since(tenant) else { return };
        let mut next = Nanos::MAX;
        for at in 0..self.connections.len() {
            let Some(connection) = &self.connections[at] else { continue };
            let Inbound::Payload { piece, received } = connection.inbound else { continue };
            let volume = connection.volume;
            if !connection.open || connection.closing || self.tenant_of(volume) != tenant {
                continue;
            }
            let began = self.pieces[piece].receiving_since.max(hungry_since);
            let deadline = began + PATIENCE_NS + received * SECOND / PAYLOAD_BYTES_PER_S;
            if deadline > self.now {
                next = next.min(deadline);
                continue;
            }
            self.conn(ConnId(at as u32)).closing = true;
            self.volume_mut(volume).counters.stalled_disconnects += 1;
            self.actions.push_back(Action::Close(ConnId(at as u32), Farewell::Stalled));
        }
        if next < Nanos::MAX {
            self.wake_at(next);
        }
    }

    /// When the longest present wait for frames of this tenant began: of a piece, or of a read whose connection has
    /// received all its other replies.
    fn hungry_since(&self, tenant: TenantId) -> Option<Nanos> {
        let waiting = &self.waiting[tenant.0 as usize];
        let writes = waiting.writes.iter().filter_map(|&volume| self.volume(volume).writes.front());
        let pieces = waiting.reads.front().into_iter().chain(writes);
        let partition = self.cache.partition(tenant);
        if waiting.reads.is_empty()
            && waiting.writes.is_empty()
            && !partition.throttled
            && !self.replies_are_put_off(tenant)
        {
            return None;
        }
        let stalled = self.connections.iter().flatten().filter(|connection| {
            let stalled = !connection.stalled.is_empty() && connection.owed() == 0;
            stalled && self.tenant_of(connection.volume) == tenant
        });
        let pieces = pieces.map(|&piece| self.pieces[piece].waiting_since);
        pieces.chain(stalled.map(|connection| connection.stalled_since)).min()
    }

    fn resume_stalled(&mut self, conn: ConnId) {
        while let Some(request) = self.conn(conn).stalled.pop_front() {
            self.agenda.push_back(Todo::Request(request));
        }
    }

    /// The client has disconnected: reads that are not issued are dropped, completely received writes remain.
    pub(crate) fn closed(&mut self, conn: ConnId) {
        let Some(Some(connection)) = self.connections.get_mut(conn.0 as usize) else {
            self.actions.push_back(Action::Gone(conn));
            return;
        };
        connection.open = false;
        // Counts as a request, so that requests that end in this function do not free the connection's slot.
        connection.in_flight += 1;
        let (unsent, held) = (connection.unsent, connection.held);
        let cache = &mut self.cache;
        connection.sent(unsent, |frame| cache.release(frame));
        let (inbound, volume) = (connection.inbound, connection.volume);
        connection.inbound = Inbound::Stopped;
        let tenant = cache.volume(volume).tenant;
        cache.partition_mut(tenant).owed -= held;
        self.volume_mut(volume).owed -= held;
        match inbound {
            Inbound::Reserving { piece } | Inbound::Payload { piece, .. } => self.forget_payload(volume, piece),
            Inbound::Discard { request, .. } => self.part_done(request),
            Inbound::Header | Inbound::Stopped => {}
        }
        self.resume_stalled(conn);
        self.end_streams(volume, Some(conn));
        let tenant = self.tenant_of(volume);
        self.forget_caches(tenant, conn);
        self.cache.partition_mut(tenant).stirred = true;
        self.put_off(Todo::Replies(tenant));
        self.conn(conn).in_flight -= 1;
        self.check_gone(conn);
    }

    /// Closes the connection when all received requests are answered.
    pub(crate) fn leave(&mut self, conn: ConnId) {
        self.conn(conn).leaving = true;
        self.check_gone(conn);
    }

    fn check_gone(&mut self, conn: ConnId) {
        let connection = self.conn(conn);
        if connection.in_flight > 0 {
            return;
        }
        if !connection.open {
            let volume = connection.volume;
            self.connections[conn.0 as usize] = None;
            self.volume_mut(volume).connections -= 1;
            self.poke(volume);
            self.actions.push_back(Action::Gone(conn));
        } else if connection.leaving && !connection.closing {
            connection.closing = true;
            self.actions.push_back(Action::Close(conn, Farewell::Over));
        }
    }

    /// Whether so much waits to be sent that nothing more is started.
    fn is_full(&self, connection: &Connection) -> bool {
        let full = connection.parts() >= PARTS_MAX || connection.unsent >= self.config.unsent_bytes_per_connection;
        full || connection.held > 0 && self.reply_room(connection) == 0
    }

    /// Whether nothing is to be read from `conn` at present.
    fn is_paused(&self, conn: ConnId) -> bool {
        let connection = self.connections[conn.0 as usize].as_ref().expect("a connection");
        match connection.inbound {
            Inbound::Reserving { .. } => true,
            Inbound::Header => {
                connection.in_flight >= self.config.requests_per_connection
                    || connection.exclusive.is_some()
                    || self.is_full(connection)
                    || self.volume(connection.volume).crowded
                    || connection.in_flight > 0 && self.cache.partition(self.tenant_of(connection.volume)).crowded
            }
            _ => false,
        }
    }

    /// A condition that pauses all connections of a volume has changed.
    pub(crate) fn note_pauses(&mut self, volume: VolumeId) {
        for at in 0..self.connections.len() {
            if self.connections[at].as_ref().is_some_and(|connection| connection.volume == volume) {
                self.note_pause(ConnId(at as u32));
            }
        }
    }

    /// Tells the driver when a paused connection may be read again.
    pub(crate) fn note_pause(&mut self, conn: ConnId) {
        if self.connections[conn.0 as usize].as_ref().is_none_or(|c| !c.open || c.closing) {
            return;
        }
        let paused = self.is_paused(conn);
        let volume = self.conn(conn).volume;
        if paused && self.connections[conn.0 as usize].as_ref().is_some_and(|connection| self.is_full(connection)) {
            let tenant = self.tenant_of(volume);
            self.cache.partition_mut(tenant).throttled = true;
        }
        if std::mem::replace(&mut self.conn(conn).paused, paused) && !paused {
            self.actions.push_back(Action::Receive(conn));
        }
    }

    /// Queues bytes on a connection through `push`; tells the driver if nothing was queued before.
    pub(crate) fn send(&mut self, conn: ConnId, push: impl FnOnce(&mut Connection)) {
        let connection = self.conn(conn);
        if !connection.open {
            return;
        }
        let drained = connection.is_drained();
        push(connection);
        if drained {
            self.conn(conn).took_at = self.now;
            self.actions.push_back(Action::Send(conn));
        }
    }

    fn status_arrived(&mut self, request: u32, one: bool) {
        let (conn, cookie) = (self.requests[request].conn, self.requests[request].cookie);
        let (start, end) = (self.requests[request].start, self.requests[request].end);
        let volume = self.volume(self.requests[request].volume);
        let hole = if volume.spec.sparse { state::HOLE | state::ZERO } else { state::ZERO };
        let mut extents = [(0, 0); EXTENTS_MAX];
        let mut count = 0;
        for (range, is_hole) in volume.holes.extents(start, end).take(if one { 1 } else { EXTENTS_MAX }) {
            extents[count] = ((range.end - range.start) as u32, if is_hole { hole } else { 0 });
            count += 1;
        }
        let tenant = self.tenant_of(self.requests[request].volume);
        // Per extent: two searches in a tree and a part of the reply.
        self.charge(tenant, 2 * count as u32);
        self.send(conn, |connection| connection.push_extents(cookie, &extents[..count]));
        self.requests[request].begun = true;
        self.finish(request);
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
            Kind::Write | Kind::Trim | Kind::Flush | Kind::Status => false,
        };
        let state = &mut self.requests[request];
        state.queued = stalled;
        if !stalled && state.is_done() {
            self.finish(request);
        }
    }

    /// Answers a request and removes it. For a zeroed or trimmed range that must be durable, flushes first.
    pub(crate) fn finish(&mut self, request: u32) {
        let state = &mut self.requests[request];
        let volume = state.volume;
        if state.durable && state.flush_first && state.error.is_none() {
            state.flush_first = false;
            return self.flush_arrived(volume, FlushFor::Request(request));
        }
        let state = &mut self.requests[request];
        let writes = matches!(state.kind, Kind::Write | Kind::Zeroes);
        let (conn, writes) = (state.conn, writes && state.durable && state.error.is_none());
        // `docs/design/flush.md`: FUA fails as long as any block acknowledged earlier is not on the medium.
        if writes && self.volume(volume).flushes.lost {
            self.requests[request].error = Some(Errno::Io);
        } else if writes && self.cache.volume(volume).failing > 0 && !planted!(FuaIgnoresFailedBlocks) {
            self.requests[request].error = Some(self.volume(volume).write_error);
        }
        let state = &mut self.requests[request];
        let draining = self.volumes[volume.0 as usize].as_ref().is_some_and(|volume| volume.draining);
        if state.kind == Kind::Write && state.error.is_none() && draining {
            // Its payload came after the last flush had begun: no later flush would bring it to the medium.
            state.error = Some(Errno::Shutdown);
        }
        if self.conn(conn).open {
            self.reply(request);
            self.count(request);
        }
        let changes = changes(self.requests[request].kind);
        self.volume_mut(volume).requests -= 1;
        self.request_gone(request, volume);
        self.requests.give(request);
        self.device.end_demand(self.now, self.cache.volume(volume).tenant);
        if self.volume(volume).closing.is_some() {
            self.poke(volume);
        }
        let connection = self.conn(conn);
        connection.in_flight -= 1;
        connection.changing -= u32::from(changes);
        match connection.exclusive {
            Some(other) if other == request => connection.exclusive = None,
            Some(other) if connection.in_flight == 1 => self.put_on_agenda(other),
            _ => {}
        }
        self.note_pause(conn);
        self.check_gone(conn);
    }

    /// Removes a request from the counts of its tenant.
    fn request_gone(&mut self, request: u32, volume: VolumeId) {
        let tenant = self.tenant_of(volume);
        let partition = self.cache.partition_mut(tenant);
        partition.requests -= 1;
        if partition.crowded && partition.requests <= REQUESTS_PER_TENANT / 4 * 3 {
            partition.crowded = false;
            self.put_off(Todo::Replies(tenant));
        }
        if std::mem::take(&mut self.requests[request].caching) {
            self.cache.partition_mut(tenant).caching -= 1;
            if let Some(next) = self.waiting_of(tenant).caches.pop_front() {
                self.begin_cache(tenant, next);
            }
        }
    }

    fn reply(&mut self, request: u32) {
        let state = &self.requests[request];
        let (conn, cookie, error, begun, kind) = (state.conn, state.cookie, state.error, state.begun, state.kind);
        let structured = self.conn(conn).session.structured;
        match (kind, error) {
            (Kind::Status, None) => {}
            (Kind::Read | Kind::Status, Some(error)) if structured => self.send(conn, |c| c.push_error(cookie, error)),
            (Kind::Read, None) if structured && self.requests[request].ended => {}
            (Kind::Read, None) if structured => self.send(conn, |c| c.push_none(cookie)),
            (Kind::Read, None) if begun => {}
            (Kind::Read, Some(_)) if begun => {
                // A simple reply cannot report an error after its header said success: the connection is closed.
                let connection = self.conn(conn);
                if connection.open && !connection.closing {
                    connection.inbound = Inbound::Stopped;
                    connection.closing = true;
                    self.actions.push_back(Action::Close(conn, Farewell::Torn));
                }
            }
            (_, error) => self.send(conn, |c| c.push_simple(cookie, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{CacheSpec, Command, LEAST_BYTES, TenantSpec};
    use crate::event::{Event, Receive};
    use crate::nbd::wire::command;
    use crate::rig::{Rig, VOLUME};

    /// A tenant with the smallest partition, and a stalled reader that has requested `len` bytes up to `count` times.
    fn with_deaf(count: u64, len: u64) -> Rig {
        let mut rig = Rig::new();
        rig.command(
            0,
            Command::SetTenant(
                TenantId(0),
                TenantSpec { cache: CacheSpec::Asked(LEAST_BYTES), ..TenantSpec::default() },
            ),
        );
        rig.deaf.push(ConnId(1));
        for at in 0..count {
            if rig.server.receive(ConnId(1)) == Receive::Header {
                rig.ask_as(ConnId(1), 1000 + at, command::READ, 0, at * len.next_multiple_of(BLOCK), len);
                rig.finish_reads();
            }
        }
        rig
    }

    #[test]
    fn a_client_that_reads_nothing_leaves_frames_for_others() {
        for (count, len) in [(1, PIECE), (9, PIECE), (200, 512)] {
            let mut rig = with_deaf(count, len);
            let partition = rig.server.cache.partition(TenantId(0));
            assert!(partition.owed <= partition.target / 2, "{count} of {len}: {} frames", partition.owed);
            rig.write(1, 0, 7 << 20, PIECE, 9);
            rig.finish_reads();
            assert_eq!(rig.answer(1), Some(0), "a write of a whole piece, beside {count} of {len}");
        }
    }

    #[test]
    fn who_reads_nothing_while_others_wait_is_disconnected() {
        let mut rig = with_deaf(1, PIECE);
        // The stalled reader occupies all of the half that replies may use.
        rig.ask(1, command::READ, 0, 4 << 20, PIECE);
        rig.wait(PATIENCE_NS - 1);
        assert_eq!((rig.answer(1), &rig.closed[..]), (None, &[][..]));
        rig.wait(1);
        assert_eq!(rig.closed, [(ConnId(1), Farewell::Deaf)]);
        assert_eq!(rig.server.volume(VOLUME).counters.deaf_disconnects, 1);
        rig.handle(Event::Closed { conn: ConnId(1) });
        rig.finish_reads();
        assert_eq!(rig.answer(1), Some(0));
    }

    #[test]
    fn clients_that_read_nothing_leave_frames_to_other_volumes_however_many_they_are() {
        let mut rig = Rig::new();
        let (volume, other) = (crate::ids::VolumeId(1), ConnId(100));
        let cache = CacheSpec::Asked(4 * LEAST_BYTES);
        rig.command(1, Command::SetTenant(TenantId(0), TenantSpec { cache, ..TenantSpec::default() }));
        rig.command(2, Command::OpenVolume(crate::control::VolumeSpec::plain(volume, TenantId(0), 1 << 20)));
        rig.handle(Event::Attach { conn: other, volume, session: Session::default() });
        rig.deaf = (2..50).map(ConnId).collect();
        for (at, conn) in (2..50).map(ConnId).enumerate() {
            rig.handle(Event::Attach { conn, volume: VOLUME, session: Session::default() });
            for (turn, len) in [(1, BLOCK), (2, PIECE)] {
                if rig.server.receive(conn) == Receive::Header {
                    let cookie = 1000 * turn + u64::from(conn.0);
                    rig.ask_as(conn, cookie, command::READ, 0, at as u64 * 16 * BLOCK, len);
                    rig.finish_reads();
                }
            }
        }
        let partition = rig.server.cache.partition(TenantId(0));
        assert!(partition.owed <= partition.target / 4, "{} of {} frames", partition.owed, partition.target);
        rig.ask_as(other, 1, command::READ, 0, 0, PIECE);
        rig.finish_reads();
        assert_eq!((rig.answer(1), rig.closed.len()), (Some(0), 0));
        rig.deaf.clear();
        (2..50).for_each(|conn| rig.send(ConnId(conn)));
        rig.complete_all();
        assert_eq!(rig.server.volume(VOLUME).owed, 0);
    }

    #[test]
    fn a_large_read_is_not_overtaken_for_ever_by_small_ones_of_its_client() {
        let mut rig = with_deaf(1, BLOCK);
        // More than the connection may have in addition to its unreceived replies.
        rig.ask_as(ConnId(1), 1, command::READ, 0, 1 << 20, PIECE);
        rig.ask_as(ConnId(1), 2, command::READ, 0, 2 << 20, BLOCK);
        rig.finish_reads();
        assert_eq!(rig.server.conn(ConnId(1)).stalled.len(), 2);
        rig.deaf.clear();
        rig.send(ConnId(1));
        rig.complete_all();
        assert_eq!([1000, 1, 2].map(|cookie| rig.answer(cookie)), [Some(0); 3]);
    }

    #[test]
    fn who_reads_nothing_may_do_so_while_nobody_minds() {
        let mut rig = with_deaf(1, PIECE);
        rig.wait(10 * PATIENCE_NS);
        rig.write(1, 0, 7 << 20, PIECE, 9);
        rig.finish_reads();
        assert_eq!((rig.answer(1), rig.closed.len()), (Some(0), 0));
    }
}
