//! Sessions: from headers to requests of the volumes, from what these answer to bytes of replies.

use std::collections::VecDeque;

use super::answered::Answered;
use super::{ANSWERED_MAX, CloseReason, Connection, Effect};
use crate::disk::Segment;
use crate::errno::Errno;
use crate::ids::{ConnId, FrameId, TenantId, VolumeId};
use crate::latency::Recorders;
use crate::nbd::wire::{self, command_flag as flag, state};
use crate::nbd::{Head, Header, Kind, Parsed, Session, parse};
use crate::slab::Table;
use crate::stream::Outgoing;
use crate::units::{Nanos, PIECE, SECOND};
use crate::volume::{Answer, Client, Data, Inbound, Receive, STALL_TIMEOUT_NS, Timer, Volumes, writes};

/// Parts of replies that may be queued on a connection: as many as replies of 4 KiB have at the byte limit (8 MiB, two
/// parts per reply). Limits the memory for replies of a few bytes.
const PARTS_MAX: usize = 4096;
/// Payload rate, bytes per second, at which a client is never disconnected: each block received extends
/// [`STALL_TIMEOUT_NS`] by a quarter of a second. So a piece of 256 KiB is complete within 26 s, less than the 30 s of
/// other clients. Applies only while others of the tenant wait for frames.
const PAYLOAD_BYTES_PER_S: u64 = 16 * 1024;
/// Extents in one answer to BLOCK_STATUS: clients request the remaining ones again.
const EXTENTS_MAX: usize = 128;

/// The connections of a disk's clients.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) connections: Table<ConnId, Connection>,
    /// Answered requests whose replies may not have been passed to the sockets. Of the first `kept` it is known that
    /// they have not been, at least in part.
    pub(super) answered: Vec<Answered>,
    pub(super) kept: usize,
    /// By tenant.
    pub(crate) latencies: Table<TenantId, Box<Recorders>>,
    /// What the driver has to do, in order.
    pub(crate) effects: VecDeque<Effect>,
}

impl Front {
    pub(crate) fn new() -> Front {
        Front {
            connections: Table::default(),
            answered: Vec::with_capacity(ANSWERED_MAX),
            kept: 0,
            latencies: Table::default(),
            effects: VecDeque::new(),
        }
    }

    pub(crate) fn attach(&mut self, volumes: &mut Volumes, conn: ConnId, volume: VolumeId, session: Session) {
        if volumes.attach(conn, volume, session) {
            self.connections.insert(conn, Connection::new(session.form));
        } else {
            self.effects.push_back(Effect::Close(conn, CloseReason::Over));
        }
    }

    pub(crate) fn header(&mut self, volumes: &mut Volumes, conn: ConnId, since: Nanos, bytes: &[u8]) {
        debug_assert_eq!(volumes.clients[conn].inbound, Inbound::Header);
        match parse(bytes) {
            Parsed::Request(header) => {
                let refused = check(volumes, conn, &header).err();
                volumes.begin(conn, since, &header, refused);
            }
            Parsed::Disconnect => {
                volumes.clients[conn].inbound = Inbound::Stopped;
                self.connections[conn].leaving = true;
                self.check_leaving(volumes, conn);
            }
            Parsed::Unknown { cookie, offset, payload } => {
                let header = Header { kind: Kind::Flush, flags: 0, cookie, offset, len: 0, payload };
                volumes.begin(conn, since, &header, Some(Errno::Invalid));
            }
            Parsed::Garbage => {
                volumes.clients[conn].inbound = Inbound::Stopped;
                self.close(conn, CloseReason::ProtocolError);
            }
        }
    }

    /// Has a connection closed, once.
    pub(crate) fn close(&mut self, conn: ConnId, why: CloseReason) {
        let Some(connection) = self.connections.get_mut(conn) else { return };
        if !std::mem::replace(&mut connection.closing, true) {
            self.effects.push_back(Effect::Close(conn, why));
        }
    }

    /// Has the connections of a volume closed that `which` selects.
    pub(crate) fn close_all(
        &mut self,
        volumes: &Volumes,
        volume: VolumeId,
        why: CloseReason,
        which: impl Fn(ConnId, Session) -> bool,
    ) {
        for (conn, client) in volumes.clients.iter() {
            if client.volume == volume && which(conn, client.session) {
                self.close(conn, why);
            }
        }
    }

    /// Closes a connection whose client wants to leave, when all its requests are answered.
    fn check_leaving(&mut self, volumes: &Volumes, conn: ConnId) {
        if self.connections[conn].leaving && volumes.clients.get(conn).is_none_or(|client| client.in_flight == 0) {
            self.close(conn, CloseReason::Over);
        }
    }

    pub(crate) fn sent(&mut self, volumes: &mut Volumes, conn: ConnId, bytes: u64) {
        let Some(connection) = self.connections.get_mut(conn) else { return };
        let mut frames = 0;
        connection.stream.sent(bytes, |frame| {
            frames += u32::from(frame != FrameId::ZERO);
            volumes.released(frame);
        });
        connection.took_at = volumes.now;
        volumes.sent(conn, bytes, frames);
    }

    /// The client has disconnected. True if the connection was known: the volumes tell when nothing refers to it any
    /// more.
    pub(crate) fn closed(&mut self, volumes: &mut Volumes, conn: ConnId) -> bool {
        let Some(mut connection) = self.connections.remove(conn) else { return false };
        let unsent = connection.stream.unsent;
        connection.stream.sent(unsent, |frame| volumes.cache.release(frame));
        volumes.abandon(conn);
        true
    }

    /// What to read next from a connection.
    pub(crate) fn receive(&self, volumes: &Volumes, conn: ConnId) -> Receive {
        let Some(connection) = self.connections.get(conn).filter(|connection| !connection.closing) else {
            return Receive::Closed;
        };
        match volumes.receive(conn) {
            Receive::Closed => Receive::Closed,
            _ if connection.paused => Receive::Pause,
            wanted => wanted,
        }
    }

    pub(crate) fn outgoing(&self, conn: ConnId) -> impl Iterator<Item = Outgoing<'_>> + '_ {
        self.connections.get(conn).into_iter().flat_map(|connection| connection.stream.outgoing())
    }

    /// A condition that pauses all connections of some volumes has changed.
    pub(crate) fn recheck_all(&mut self, volumes: &mut Volumes, concerned: impl Fn(&Volumes, VolumeId) -> bool) {
        for conn in (0..volumes.clients.past()).map(ConnId) {
            if volumes.clients.get(conn).is_some_and(|client| concerned(volumes, client.volume)) {
                self.recheck(volumes, conn);
            }
        }
    }

    /// Pauses a connection, or tells the driver that it may be read again.
    pub(crate) fn recheck(&mut self, volumes: &mut Volumes, conn: ConnId) {
        let Some(connection) = self.connections.get_mut(conn).filter(|connection| !connection.closing) else { return };
        let paused = volumes.is_paused(conn, connection.stream.parts() >= PARTS_MAX);
        if std::mem::replace(&mut connection.paused, paused) && !paused {
            self.effects.push_back(Effect::Receive(conn));
        }
    }

    /// Disconnects the clients that stall while others of their tenants wait for frames.
    pub(crate) fn disconnect_stalled(&mut self, volumes: &mut Volumes) {
        for tenant in (0..volumes.waiting.past()).map(TenantId) {
            if volumes.waiting.contains(tenant) {
                self.disconnect_stalled_reader(volumes, tenant);
                self.disconnect_stalled_writer(volumes, tenant);
            }
        }
    }

    /// Disconnects a stalled reader: a client that has received nothing for [`STALL_TIMEOUT_NS`] while another client
    /// of its tenant waited as long for frames. If there are several, the one that occupies most frames.
    fn disconnect_stalled_reader(&mut self, volumes: &mut Volumes, tenant: TenantId) {
        if planted!(UnsentNotBounded) {
            return;
        }
        let Some(starved_since) = volumes.starved_since(tenant) else { return };
        let (mut stalled, mut next) = (None, None);
        for (conn, connection) in self.connections.iter().filter(|(_, connection)| !connection.closing) {
            let client = &volumes.clients[conn];
            if client.held == 0 || volumes.tenant_of(client.volume) != tenant {
                continue;
            }
            let stalled_at = connection.took_at.max(starved_since) + STALL_TIMEOUT_NS;
            next = Some(next.map_or(stalled_at, |next| stalled_at.min(next)));
            if stalled_at <= volumes.now {
                stalled = stalled.max(Some((client.held, conn)));
            }
        }
        if let Some((_, conn)) = stalled {
            let volume = volumes.clients[conn].volume;
            volumes.volume_mut(volume).counters.stalled_reader_disconnects += 1;
            // If these frames are not enough, another one will be disconnected.
            volumes.timers.wake_at(Timer::Stalls, volumes.now + SECOND);
            self.close(conn, CloseReason::StalledReader);
        } else if let Some(at) = next {
            volumes.timers.wake_at(Timer::Stalls, at);
        }
    }

    /// Disconnects stalled writers: clients that do not send the payload of a write while others of their tenant wait
    /// for frames. All that are too slow by now, see [`PAYLOAD_BYTES_PER_S`].
    fn disconnect_stalled_writer(&mut self, volumes: &mut Volumes, tenant: TenantId) {
        if planted!(StalledNotDisconnected) {
            return;
        }
        let Some(starved_since) = volumes.starved_since(tenant) else { return };
        for conn in (0..self.connections.past()).map(ConnId) {
            if self.connections.get(conn).is_none_or(|connection| connection.closing) {
                continue;
            }
            let client = &volumes.clients[conn];
            let Inbound::Payload { piece, received } = client.inbound else { continue };
            let volume = client.volume;
            if volumes.tenant_of(volume) != tenant {
                continue;
            }
            let began = volumes.pieces[piece].receiving_since.max(starved_since);
            let deadline = began + STALL_TIMEOUT_NS + received * SECOND / PAYLOAD_BYTES_PER_S;
            if deadline > volumes.now {
                volumes.timers.wake_at(Timer::Stalls, deadline);
                continue;
            }
            volumes.volume_mut(volume).counters.stalled_writer_disconnects += 1;
            self.close(conn, CloseReason::StalledWriter);
        }
    }

    /// Queues bytes on a connection through `push`; tells the driver if nothing was queued before.
    fn send(&mut self, volumes: &mut Volumes, conn: ConnId, push: impl FnOnce(&mut Connection)) {
        let Some(connection) = self.connections.get_mut(conn) else { return };
        let (drained, before) = (connection.stream.is_drained(), connection.stream.unsent);
        push(connection);
        volumes.clients[conn].unsent += connection.stream.unsent - before;
        if drained {
            connection.took_at = volumes.now;
            self.effects.push_back(Effect::Send(conn));
        }
    }

    /// Queues the data of a piece of a read; the connection takes over its references.
    pub(crate) fn data(&mut self, volumes: &mut Volumes, data: Data) {
        let Data { conn, cookie, offset, piece, first, last, unsplit } = data;
        let mut frames = std::mem::take(&mut volumes.pieces[piece].frames);
        let bounds = &volumes.pieces[piece];
        let start = bounds.start;
        let segment = |i: usize| {
            let (start, end) = bounds.bytes_in(i);
            Segment::new(frames[i], start, end)
        };
        let connection = &mut self.connections[conn];
        let of = connection.reply_to(cookie, offset);
        if connection.stream.is_drained() {
            connection.took_at = volumes.now;
            self.effects.push_back(Effect::Send(conn));
        }
        let before = connection.stream.unsent;
        // The volumes have counted the data already.
        let mut counted = 0;
        if connection.form.is_structured() {
            let (mut at, mut from) = (start, 0);
            while from < frames.len() {
                let is_hole = |i: usize| frames[i] == FrameId::ZERO && !unsplit;
                let past = (from..frames.len()).find(|&i| is_hole(i) != is_hole(from)).unwrap_or(frames.len());
                let bytes = (from..past).map(|i| u64::from(segment(i).len)).sum();
                let done = last && past == frames.len();
                if is_hole(from) {
                    connection.stream.push(Head::hole(of, done, at, bytes));
                } else {
                    connection.stream.push(Head::data_chunk(of, done, at, bytes));
                    (from..past).for_each(|i| connection.stream.push_frame(segment(i)));
                    counted += bytes;
                }
                at += bytes;
                from = past;
            }
        } else {
            if first {
                connection.stream.push(Head::data(of));
            }
            (0..frames.len()).for_each(|i| connection.stream.push_frame(segment(i)));
            counted = bounds.end - start;
        }
        volumes.clients[conn].unsent += connection.stream.unsent - before - counted;
        if planted!(FrameFreedWhileSent) {
            frames.iter().for_each(|&frame| volumes.cache.release(frame));
        }
        frames.clear();
        volumes.pieces[piece].frames = frames;
        volumes.pieces.give(piece);
    }

    /// Queues the extents of a range of a volume: `aerogel:load` and `base:allocation`, whichever was selected.
    pub(crate) fn extents(
        &mut self,
        volumes: &mut Volumes,
        (conn, cookie): (ConnId, u64),
        volume: VolumeId,
        (start, end): (u64, u64),
        one: bool,
    ) {
        let Session { base_allocation, load, .. } = volumes.clients[conn].session;
        if load {
            let tenant = volumes.tenant_of(volume);
            let load = volumes.route.load_of_others(tenant);
            // It looks at each tenant.
            volumes.charge(tenant, volumes.route.tenants());
            self.send(volumes, conn, |connection| {
                let of = connection.reply_to(cookie, start);
                connection.stream.push(Head::status(of, !base_allocation, wire::LOAD_ID, 1));
                connection.stream.push(Head::extent(of.form, end - start, load));
            });
        }
        if !base_allocation {
            return;
        }
        let state = volumes.volume(volume);
        let hole = if state.spec.sparse { state::HOLE | state::ZERO } else { state::ZERO };
        let mut extents = [(0, 0); EXTENTS_MAX];
        let mut count = 0;
        for (range, is_hole) in state.holes.extents(start, end).take(if one { 1 } else { EXTENTS_MAX }) {
            extents[count] = (range.end - range.start, if is_hole { hole } else { 0 });
            count += 1;
        }
        // Per extent: two searches in a tree and a part of the reply.
        volumes.charge(volumes.tenant_of(volume), 2 * count as u32);
        self.send(volumes, conn, |connection| {
            let of = connection.reply_to(cookie, start);
            connection.stream.push(Head::status(of, true, wire::BASE_ALLOCATION_ID, count));
            extents[..count]
                .iter()
                .for_each(|&(bytes, flags)| connection.stream.push(Head::extent(of.form, bytes, flags)));
        });
    }

    /// Answers a complete request, and counts it.
    pub(crate) fn answer(&mut self, volumes: &mut Volumes, answer: &Answer) {
        if !self.connections.contains(answer.conn) {
            return;
        }
        self.reply(volumes, answer);
        self.count(volumes, answer);
        self.recheck(volumes, answer.conn);
        self.check_leaving(volumes, answer.conn);
    }

    fn reply(&mut self, volumes: &mut Volumes, answer: &Answer) {
        let &Answer { conn, cookie, offset, error, begun, ended, kind, .. } = answer;
        let in_parts = volumes.clients[conn].session.form.is_structured();
        match (kind, error) {
            (Kind::Status, None) => {}
            (Kind::Read, None) if if in_parts { ended } else { begun } => {}
            (Kind::Read, Some(_)) if begun && !in_parts => {
                // A simple reply cannot report an error after its header said success: the connection is closed.
                volumes.clients[conn].inbound = Inbound::Stopped;
                self.close(conn, CloseReason::Torn);
            }
            _ => {
                let in_chunks = matches!(kind, Kind::Read | Kind::Status);
                self.send(volumes, conn, |connection| {
                    let of = connection.reply_to(cookie, offset);
                    connection.stream.push(Head::answer(of, in_chunks, error));
                });
            }
        }
    }
}

fn check(volumes: &Volumes, conn: ConnId, header: &Header) -> Result<(), Errno> {
    let Client { session, volume, .. } = volumes.clients[conn];
    let state = volumes.volume(volume);
    // Another disk that stops at the same time may need its store to the end.
    let is_over = volumes.draining.is_some() && !volumes.is_store(state.spec.tenant);
    if is_over || state.is_closing() {
        return Err(Errno::Shutdown);
    }
    if session.read_only && writes(header.kind) && !planted!(ReadOnlySessionWrites) {
        return Err(Errno::Perm);
    }
    header.check(state.spec.size, session.form)?;
    if header.kind == Kind::Status && !session.base_allocation && !session.load {
        return Err(Errno::Invalid);
    }
    if header.kind == Kind::Demote && session.demotes.is_none() {
        return Err(Errno::Invalid);
    }
    if header.kind == Kind::Read && header.has(flag::DF) && !session.form.is_structured() {
        return Err(Errno::Invalid);
    }
    // With DF the reply must be one chunk, which has to fit into the memory of a piece. (The protocol requires at least
    // 64 KiB.)
    if header.kind == Kind::Read && header.has(flag::DF) && header.len > PIECE {
        return Err(Errno::Overflow);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LEAST_BYTES;
    use crate::front::rig::{Rig, Sessions};
    use crate::nbd::wire::command;
    use crate::nbd::{Form, RawHeader};
    use crate::spec::{CacheSpec, TenantSpec, VolumeSpec};
    use crate::units::BLOCK;
    use crate::volume::rig::VOLUME;

    /// A tenant with the smallest partition, and a stalled reader that has requested `len` bytes up to `count` times.
    fn with_stalled_reader(count: u64, len: u64) -> Rig {
        let mut rig = Rig::new();
        rig.set_smallest(TenantId(0));
        rig.above.stalled_readers.push(ConnId(1));
        for at in 0..count {
            if rig.receive(ConnId(1)) == Receive::Header {
                rig.ask_as(ConnId(1), 1000 + at, command::READ, 0, at * len.next_multiple_of(BLOCK), len);
                rig.finish_reads();
            }
        }
        rig
    }

    #[test]
    fn a_client_that_reads_nothing_leaves_frames_for_others() {
        for (count, len) in [(1, PIECE), (9, PIECE), (200, 512)] {
            let mut rig = with_stalled_reader(count, len);
            let partition = rig.volumes.cache.partition(TenantId(0));
            assert!(partition.unsent <= partition.target / 2, "{count} of {len}: {} frames", partition.unsent);
            rig.write(1, 0, 7 << 20, PIECE, 9);
            rig.finish_reads();
            assert_eq!(rig.answer(1), Some(0), "a write of a whole piece, beside {count} of {len}");
        }
    }

    #[test]
    fn who_reads_nothing_while_others_wait_is_disconnected() {
        let mut rig = with_stalled_reader(1, PIECE);
        // The stalled reader occupies all of the half that replies may use.
        rig.ask(1, command::READ, 0, 4 << 20, PIECE);
        rig.wait(STALL_TIMEOUT_NS - 1);
        assert_eq!((rig.answer(1), &rig.above.closed[..]), (None, &[][..]));
        rig.wait(1);
        assert_eq!(rig.above.closed, [(ConnId(1), CloseReason::StalledReader)]);
        assert_eq!(rig.volumes.volume(VOLUME).counters.stalled_reader_disconnects, 1);
        rig.close(ConnId(1));
        rig.finish_reads();
        assert_eq!(rig.answer(1), Some(0));
    }

    #[test]
    fn clients_that_read_nothing_leave_frames_to_other_volumes_however_many_they_are() {
        let mut rig = Rig::new();
        let (volume, other) = (VolumeId(1), ConnId(100));
        let cache = CacheSpec::Asked(4 * LEAST_BYTES);
        rig.set_tenant(TenantId(0), TenantSpec { cache, ..TenantSpec::default() });
        rig.open_volume(VolumeSpec::plain(volume, TenantId(0), 1 << 20));
        rig.attach(other, volume);
        rig.above.stalled_readers = (2..50).map(ConnId).collect();
        for (at, conn) in (2..50).map(ConnId).enumerate() {
            rig.attach(conn, VOLUME);
            for (turn, len) in [(1, BLOCK), (2, PIECE)] {
                if rig.receive(conn) == Receive::Header {
                    let cookie = 1000 * turn + u64::from(conn.0);
                    rig.ask_as(conn, cookie, command::READ, 0, at as u64 * 16 * BLOCK, len);
                    rig.finish_reads();
                }
            }
        }
        let partition = rig.volumes.cache.partition(TenantId(0));
        assert!(partition.unsent <= partition.target / 4, "{} of {} frames", partition.unsent, partition.target);
        rig.ask_as(other, 1, command::READ, 0, 0, PIECE);
        rig.finish_reads();
        assert_eq!((rig.answer(1), rig.above.closed.len()), (Some(0), 0));
        rig.above.stalled_readers.clear();
        (2..50).for_each(|conn| rig.send(ConnId(conn)));
        rig.complete_all();
        assert_eq!(rig.volumes.volume(VOLUME).unsent, 0);
    }

    #[test]
    fn a_large_read_is_not_overtaken_for_ever_by_small_ones_of_its_client() {
        let mut rig = with_stalled_reader(1, BLOCK);
        // More than the connection may have in addition to its unreceived replies.
        rig.ask_as(ConnId(1), 1, command::READ, 0, 1 << 20, PIECE);
        rig.ask_as(ConnId(1), 2, command::READ, 0, 2 << 20, BLOCK);
        rig.finish_reads();
        assert_eq!(rig.volumes.client(ConnId(1)).stalled.len(), 2);
        rig.above.stalled_readers.clear();
        rig.send(ConnId(1));
        rig.complete_all();
        assert_eq!([1000, 1, 2].map(|cookie| rig.answer(cookie)), [Some(0); 3]);
    }

    /// Everything that is answered differently with extended headers.
    #[test]
    fn with_extended_headers_each_request_is_answered_in_chunks() {
        let (mut rig, conn) = (Rig::new(), ConnId(7));
        rig.attach_as(conn, VOLUME, Form::Extended);
        let ask = |rig: &mut Rig, cookie, command, flags, offset, len| {
            rig.ask_at(rig.now, conn, RawHeader::new(Form::Extended, command, flags, cookie, offset, len));
            while let Receive::Payload(bytes) = rig.receive(conn) {
                rig.volumes.payload(conn).for_each(|segment| rig.frames.of(segment).fill(cookie as u8));
                rig.filled(conn, bytes);
            }
        };
        ask(&mut rig, 1, command::WRITE, flag::FUA, 100, 1000);
        ask(&mut rig, 2, command::READ, 0, 110, 600);
        ask(&mut rig, 3, command::FLUSH, 0, 0, 0);
        ask(&mut rig, 4, command::BLOCK_STATUS, 0, 0, 1 << 20);
        ask(&mut rig, 5, command::READ, 0, u64::MAX, 1);
        rig.complete_all();
        assert_eq!([1, 2, 3, 4, 5].map(|cookie| rig.answer(cookie)), [0, 0, 0, 0, 22].map(Some));
        let read = &rig.above.replies.answers[&2].1;
        assert_eq!(read[..], [1; 600]);
        assert_eq!(rig.above.replies.extents.iter().map(|(len, _)| len).sum::<u64>(), 1 << 20);
        // A payload that does not belong to its request is discarded before the error is sent.
        ask(&mut rig, 6, command::TRIM, flag::PAYLOAD_LEN, 0, 5000);
        assert_eq!((rig.receive(conn), rig.answer(6)), (Receive::Discard(5000), None));
        rig.handle(|volumes, _| volumes.discarded(conn, 5000));
        assert_eq!(rig.answer(6), Some(22));
        ask(&mut rig, 7, 99, flag::PAYLOAD_LEN, 0, 9);
        rig.handle(|volumes, _| volumes.discarded(conn, 9));
        ask(&mut rig, 8, 99, 0, 5, 9);
        assert_eq!([rig.answer(7), rig.answer(8)], [Some(22); 2]);
    }

    /// `aerogel:load`: the requests of other tenants, alone and beside `base:allocation`.
    #[test]
    fn a_client_is_told_the_load_of_the_disk() {
        for (form, base_allocation) in [(Form::Structured, true), (Form::Extended, false)] {
            let mut rig = Rig::below(Sessions::new(), 128, |_| {});
            rig.set_tenant(TenantId(1), TenantSpec::default());
            rig.open_volume(VolumeSpec::plain(VolumeId(1), TenantId(1), 1 << 20));
            rig.attach_with(
                ConnId(0),
                VOLUME,
                Session { form, base_allocation, load: true, read_only: false, demotes: None },
            );
            rig.attach(ConnId(1), VolumeId(1));
            let ask = |rig: &mut Rig| {
                let status = RawHeader::new(form, command::BLOCK_STATUS, 0, 1, 0, BLOCK);
                rig.ask_at(rig.now, ConnId(0), status);
                rig.send(ConnId(0));
                assert_eq!(rig.answer(1), Some(0));
                assert_eq!(rig.above.replies.extents.is_empty(), !base_allocation);
                rig.above.replies.load.take()
            };
            assert_eq!(ask(&mut rig), Some(0));
            (0..3).for_each(|at| rig.ask_as(ConnId(1), at, command::READ, 0, at << 18, BLOCK));
            // Its own requests do not count.
            rig.ask_at(rig.now, ConnId(0), RawHeader::new(form, command::READ, 0, 9, 0, BLOCK));
            assert_eq!(ask(&mut rig), Some(3));
        }
    }

    #[test]
    fn who_reads_nothing_may_do_so_while_nobody_minds() {
        let mut rig = with_stalled_reader(1, PIECE);
        rig.wait(10 * STALL_TIMEOUT_NS);
        rig.write(1, 0, 7 << 20, PIECE, 9);
        rig.finish_reads();
        assert_eq!((rig.answer(1), rig.above.closed.len()), (Some(0), 0));
    }
    #[test]
    fn a_client_that_sends_no_payload_leaves_frames_to_other_volumes_and_is_disconnected() {
        let mut rig = Rig::new();
        rig.open_volume(VolumeSpec::plain(VolumeId(2), TenantId(0), 4 * PIECE));
        let other = ConnId(10);
        rig.attach(other, VolumeId(2));
        let many: Vec<_> = (20..60).map(ConnId).collect();
        for &conn in &many {
            rig.attach(conn, VOLUME);
            rig.ask_as(conn, u64::from(conn.0), command::WRITE, 0, 0, 4 * PIECE);
        }
        let holds = |rig: &Rig, conn: ConnId| matches!(rig.receive(conn), Receive::Payload(_));
        let holders = many.iter().filter(|&&conn| holds(&rig, conn)).count();
        assert!(holders > 0 && holders < many.len(), "{holders} have frames");
        rig.ask_as(other, 1, command::WRITE, 0, 0, 16 * BLOCK);
        assert!(holds(&rig, other), "another volume of the tenant goes on");
        rig.filled(other, 16 * BLOCK);
        assert_eq!(rig.answer(1), Some(0));
        // One of the clients that hold frames sends 16 KiB/s.
        let slow = *many.iter().find(|&&conn| holds(&rig, conn)).unwrap();
        for second in 0..14 {
            rig.wait(SECOND);
            rig.filled(slow, 16 << 10);
            assert_eq!(rig.above.closed.is_empty(), second < 9, "{second} s: {:?}", rig.above.closed);
        }
        assert!(
            rig.above.closed.len() >= holders - 1 && rig.above.closed.iter().all(|&(conn, _)| conn != slow),
            "{:?}",
            rig.above.closed
        );
        assert!(rig.above.closed.iter().all(|&(_, why)| why == CloseReason::StalledWriter));
        assert_eq!(rig.volumes.volume(VOLUME).counters.stalled_writer_disconnects, rig.above.closed.len() as u64);
    }
}
