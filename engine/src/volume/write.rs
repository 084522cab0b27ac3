//! Writes: payload into private frames, then into the cache in one step per block, then on the medium if the write must
//! be durable.
//!
//! A WRITE_ZEROES that is too short for the device (below 1 MiB, or 64 KiB where a hole is punched), and the ends of a
//! longer one, are the same without payload.

use crate::cache::{ByteWork, NONE, Rest};
use crate::errno::Errno;
use crate::ids::{BlockId, ConnId, FrameId, TenantId, VolumeId};
use crate::units::{BLOCK, SectorMask, sectors_covered, sectors_touched};
use crate::volume::request::Prospect;
use crate::volume::{Effect, Inbound, Kind, Request, Volumes, Who};

/// Units of work of a block that is written from a payload.
const WRITE_UNITS: u32 = 2;
/// Units of work of a block that is zeroed, including 4 KiB of memory.
const ZERO_UNITS: u32 = 4;
/// Units of work of a piece that takes its frames, including evictions.
const PIECE_UNITS: u32 = 64;

/// Whether a piece has its frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reserved {
    /// Yes, or the piece has failed and needs none.
    Yes,
    /// The tenant has too few frames.
    No,
    /// The volume has its part of the tenant's frames for payload; other volumes may still get some.
    NotForVolume,
}

impl Volumes {
    /// The next piece of a write: its frames are reserved, then its payload is received.
    pub(crate) fn next_payload(&mut self, request: u32) {
        let state = &mut self.requests[request];
        let (conn, volume) = (state.conn, state.volume);
        match state.next_piece() {
            Some((start, end)) => {
                state.active += 1;
                let piece = self.open_piece(request, start, end);
                self.client(conn).inbound = Inbound::Reserving { piece };
                self.reserve_or_wait(volume, piece);
            }
            None => {
                // All payload was received, or the remaining payload of a failed write is discarded.
                let left = state.end - state.next;
                state.next = state.end;
                if left > 0 {
                    state.active += 1;
                    self.client(conn).inbound = Inbound::Discard { request, left };
                } else {
                    self.client(conn).inbound = Inbound::Header;
                    if self.requests[request].is_done() {
                        self.finish(request);
                    }
                }
            }
        }
    }

    pub(crate) fn reserve_or_wait(&mut self, volume: VolumeId, piece: u32) {
        let tenant = self.tenant_of(volume);
        if self.waiting_of(tenant).writes.is_empty() && self.reserve(piece) == Reserved::Yes {
            return;
        }
        self.pieces[piece].waiting_since = self.now;
        self.volume_mut(volume).writes.push_back(piece);
        if self.volume(volume).writes.len() == 1 {
            self.waiting_of(tenant).writes.push_back(volume);
            // The volumes that already wait may be at a bound of their own, so this one is tried too.
            self.cache.partition_mut(tenant).stirred = true;
        }
        self.wait_for_frames(tenant);
    }

    /// Tries pieces of a tenant's writes that wait for frames again, one volume after the other. True if one has its
    /// frames.
    pub(crate) fn wake_writes(&mut self, tenant: TenantId) -> bool {
        let (mut any, mut left) = (false, self.waiting_of(tenant).writes.len());
        while left > 0 && !self.work.is_spent() {
            let volume = self.waiting_of(tenant).writes[0];
            let piece = self.volume(volume).writes[0];
            match self.reserve(piece) {
                Reserved::Yes => {
                    any = true;
                    self.work.step(PIECE_UNITS);
                    self.volume_mut(volume).writes.pop_front();
                    let others = !self.volume(volume).writes.is_empty();
                    let ring = &mut self.waiting_of(tenant).writes;
                    ring.pop_front();
                    ring.extend(others.then_some(volume));
                    left = ring.len();
                }
                Reserved::NotForVolume => {
                    self.work.step(1);
                    self.waiting_of(tenant).writes.rotate_left(1);
                    left -= 1;
                }
                Reserved::No => break,
            }
        }
        any
    }

    /// Takes the frames of a piece of a write, all or none.
    fn reserve(&mut self, piece: u32) -> Reserved {
        let request = self.pieces[piece].request;
        let (conn, volume, kind) = {
            let request = &self.requests[request];
            (request.conn, request.volume, request.kind)
        };
        let tenant = self.tenant_of(volume);
        let Some((blocks, spares)) = self.blocks_that_fit(piece) else { return Reserved::NotForVolume };
        let admitted = self.cache.partition(tenant).admits_payload(blocks + spares);
        let mut frames = std::mem::take(&mut self.pieces[piece].frames);
        let mut take = |volumes: &mut Volumes| volumes.take_frames(tenant, blocks + spares, &mut frames);
        let taken = admitted && (take(self) || self.yield_prefetch(volume) && take(self));
        self.pieces[piece].frames = frames;
        if !taken {
            let partition = self.cache.partition(tenant);
            let stuck = partition.failing > 0 && partition.failing == partition.unwritten && partition.writing == 0;
            if !stuck && self.client(conn).open {
                return Reserved::No;
            }
            // All dirty blocks have failed, so none becomes clean soon: the write fails instead of hanging. Or its
            // client has disconnected.
            let why = self.volume(volume).write_error;
            self.pieces[piece].error = Some(why);
            self.requests[request].error = Some(why);
            if kind == Kind::Write {
                self.refuse_payload(piece);
            } else {
                self.piece_written(piece);
            }
            return Reserved::Yes;
        }
        for _ in 0..spares {
            let spare = self.pieces[piece].frames.pop().expect("a spare");
            self.pieces[piece].spares.push(spare);
        }
        self.cut(piece, blocks);
        self.note_waited(piece, volume);
        if kind == Kind::Write {
            self.cache.partition_mut(tenant).takes_payload(blocks + spares);
            self.volume_mut(volume).receiving += blocks + spares;
            self.pieces[piece].receiving_since = self.now;
            self.client(conn).inbound = Inbound::Payload { piece, received: 0 };
            self.effects.push(Effect::Recheck(conn));
        } else {
            for i in 0..blocks as usize {
                let (start, end) = self.pieces[piece].bytes_in(i);
                let frame = self.pieces[piece].frames[i];
                self.effects.zero(frame, start, end);
            }
            self.charge(tenant, ZERO_UNITS * blocks);
            self.write_piece(piece);
        }
        Reserved::Yes
    }

    /// How many blocks of a piece its volume may have now, and how many spare frames they take. `None` if the volume
    /// must wait.
    fn blocks_that_fit(&self, piece: u32) -> Option<(u32, u32)> {
        let state = &self.pieces[piece];
        let blocks = state.blocks() as u32;
        let spares = if self.is_aligned(piece) { 0 } else { 2.min(blocks) };
        let Request { volume, kind, .. } = self.requests[state.request];
        // WRITE_ZEROES must not wait for stalled clients, not even of its own volume.
        let receiving = if kind == Kind::Write { self.volume(volume).receiving } else { 0 };
        let fit = self.cache.partition(self.tenant_of(volume)).payload_max(receiving, blocks + spares)?;
        if fit == blocks + spares {
            return Some((blocks, spares));
        }
        // The end at which a piece is cut is aligned, so one spare is enough. The piece must then indeed be cut.
        let spares = spares.min(1);
        Some(((fit - spares).min(blocks - 1), spares))
    }

    /// Cuts a piece to its first `blocks`; its request continues behind them.
    fn cut(&mut self, piece: u32, blocks: u32) {
        let state = &mut self.pieces[piece];
        if (blocks as usize) < state.blocks() {
            let request = &mut self.requests[state.request];
            debug_assert_eq!(request.next, state.end, "no later piece was begun");
            state.end = (state.first_block() + u64::from(blocks)) * BLOCK;
            request.next = state.end;
        }
    }

    fn is_aligned(&self, piece: u32) -> bool {
        let state = &self.pieces[piece];
        let volume = self.requests[state.request].volume;
        let unit = u64::from(self.volume(volume).spec.device_block);
        (state.start | state.end).is_multiple_of(unit)
    }

    /// A piece fails: its payload, and that of the later pieces, is discarded.
    fn refuse_payload(&mut self, piece: u32) {
        let (request, start) = (self.pieces[piece].request, self.pieces[piece].start);
        self.release_piece_frames(piece);
        self.pieces.give(piece);
        let state = &mut self.requests[request];
        let conn = state.conn;
        let left = state.end - start;
        state.next = state.end;
        // The discarding takes over the piece's count in `active`.
        self.client(conn).inbound = Inbound::Discard { request, left };
        self.effects.push(Effect::Recheck(conn));
    }

    /// `bytes` of payload arrived in the frames of the current piece.
    pub(crate) fn filled(&mut self, conn: ConnId, bytes: u64) {
        let Inbound::Payload { piece, received } = self.client(conn).inbound else { panic!("no payload was wanted") };
        let state = &self.pieces[piece];
        let received = received + bytes;
        let wanted = state.end - state.start;
        assert!(received <= wanted, "more payload than was wanted");
        if received < wanted {
            self.client(conn).inbound = Inbound::Payload { piece, received };
            return;
        }
        let request = state.request;
        let frames = state.frames_held();
        let volume = self.requests[request].volume;
        let tenant = self.tenant_of(volume);
        self.volume_mut(volume).receiving -= frames;
        let partition = self.cache.partition_mut(tenant);
        partition.receiving -= frames;
        partition.stirred = true;
        self.client(conn).inbound = Inbound::Header;
        self.requests[request].active += 1;
        match self.requests[request].kind {
            Kind::Demote => self.demoted(piece),
            _ => self.write_piece(piece),
        }
        self.next_payload_of(request);
        self.effects.push(Effect::Recheck(conn));
    }

    /// Continues with the next payload, then releases the count in `active` that kept the request from finishing
    /// meanwhile.
    fn next_payload_of(&mut self, request: u32) {
        self.next_payload(request);
        self.part_done(request);
    }

    /// The client disconnected while a piece of its write waited for frames or payload: no other request has seen the
    /// piece.
    pub(crate) fn forget_payload(&mut self, volume: VolumeId, piece: u32) {
        let tenant = self.tenant_of(volume);
        let waiting = &mut self.volume_mut(volume).writes;
        match waiting.iter().position(|&other| other == piece) {
            Some(at) => {
                waiting.remove(at);
                if waiting.is_empty() {
                    self.waiting_of(tenant).writes.retain(|&other| other != volume);
                }
            }
            None => {
                let frames = self.pieces[piece].frames_held();
                self.volume_mut(volume).receiving -= frames;
                self.cache.partition_mut(tenant).receiving -= frames;
                if planted!(PartialPayloadVisible) {
                    let request = self.pieces[piece].request;
                    self.requests[request].next = self.requests[request].end;
                    return self.write_piece(piece);
                }
            }
        }
        if planted!(FrameLeakedOnVanish) {
            self.pieces[piece].frames.clear();
        }
        self.release_piece_frames(piece);
        let request = self.pieces[piece].request;
        self.pieces.give(piece);
        let state = &mut self.requests[request];
        state.next = state.end;
        self.part_done(request);
    }

    fn release_piece_frames(&mut self, piece: u32) {
        self.release_frames(piece);
        while let Some(spare) = self.pieces[piece].spares.pop() {
            self.cache.release(spare);
        }
    }

    /// The payload of a piece is complete: the piece takes effect block by block, after the fill that each block may
    /// wait for.
    pub(crate) fn write_piece(&mut self, piece: u32) {
        let (start, end) = (self.pieces[piece].start, self.pieces[piece].end);
        let volume = self.requests[self.pieces[piece].request].volume;
        if !self.must_wait_in_order(volume, start, end, Who::Writer(piece)) {
            self.write_in_order(piece);
        }
    }

    /// A piece that waits for no range operation takes effect.
    pub(crate) fn write_in_order(&mut self, piece: u32) {
        let request = &self.requests[self.pieces[piece].request];
        let volume = request.volume;
        if request.kind == Kind::Zeroes && request.error.is_some() {
            // The device did not zero its part (with FAST_ZERO it may have refused): the ends are not zeroed either.
            return self.piece_written(piece);
        }
        let (start, end) = (self.pieces[piece].start, self.pieces[piece].end);
        self.note_written(volume, start, end);
        let blocks = self.pieces[piece].blocks();
        self.work.step(WRITE_UNITS * blocks as u32);
        // One more than the blocks, so that the piece is not done before its last block has begun.
        self.pieces[piece].pending = blocks as u32 + 1;
        for i in 0..blocks {
            self.write_block(piece, i, None);
        }
        self.block_written(piece);
        self.poke(volume);
    }

    /// Block `at` of a piece takes effect, or waits for a fill. `filled` is the result of a fill that has just ended.
    pub(crate) fn write_block(&mut self, piece: u32, at: usize, filled: Option<bool>) {
        let state = &self.pieces[piece];
        let request = state.request;
        let volume = self.requests[request].volume;
        let number = state.first_block() + at as u64;
        let (start, end) = state.bytes_in(at);
        let whole = self.cache.volume(volume).whole_blocks;
        let touched = if whole { SectorMask::MAX } else { sectors_touched(start, end) };
        // Sectors that are written in part: the rest of them must be valid.
        let needed = touched & !sectors_covered(start, end);
        let base = number * BLOCK;
        let known = self.cache.lookup(volume, number);
        let rest = match known {
            Some(id) if self.cache.block(id).filling() && !planted!(OverlappingWritesReordered) => {
                return self.wait_for_fill(id, piece, at);
            }
            Some(id) if needed & !self.cache.block(id).valid == 0 => Some(Rest::Cached),
            None if needed == 0 => Some(Rest::Cached),
            None if self.volume(volume).holes.contains(base, base + BLOCK) => Some(Rest::Zeros),
            _ => None,
        };
        let id = known.unwrap_or_else(|| self.cache.insert(volume, number));
        match (rest, filled) {
            (Some(rest), _) => {
                let frame = std::mem::replace(&mut self.pieces[piece].frames[at], FrameId::ZERO);
                self.volume_mut(volume).holes.fill(base + start, base + end);
                let own = self.virtual_time(volume);
                self.cache.write(own, id, frame, (start, end), rest, &mut self.effects);
                let durable = self.requests[request].durable;
                self.curve_write(volume, number, touched, durable);
                if durable {
                    self.wait_for_medium(id, piece, at);
                }
                self.block_written(piece);
            }
            (None, None) => {
                let spare = self.pieces[piece].spares.pop().expect("a spare frame for each unaligned end");
                let io = self.prepare_fill(volume, number);
                self.add_to_fill(io, id, spare);
                self.wait_for_fill(id, piece, at);
                self.submit(io, false);
            }
            (None, Some(_)) => {
                self.pieces[piece].error = Some(Errno::Io);
                self.block_written(piece);
            }
        }
    }

    fn wait_for_medium(&mut self, id: BlockId, piece: u32, at: usize) {
        self.pieces[piece].persisting += 1;
        let waiter = self.waiters.take();
        self.waiters[waiter] = super::Waiter::new(piece, at);
        if planted!(EarlierWriteCovers) && self.cache.block(id).writing != 0 {
            self.waiters[waiter].prospect = Prospect::Covered;
        }
        let mut queue = self.cache.block(id).write_queue;
        self.enqueue(&mut queue, waiter);
        self.cache.block_mut(id).write_queue = queue;
    }

    /// A piece of a write waits for one thing fewer.
    fn block_written(&mut self, piece: u32) {
        self.pieces[piece].pending -= 1;
        if self.pieces[piece].pending > 0 {
            return;
        }
        if self.pieces[piece].persisting == 0 {
            return self.piece_written(piece);
        }
        // The piece must be on the medium: its blocks are written, unless they are being written already. The
        // additional count keeps the piece until all writes have begun.
        self.pieces[piece].persisting += 1;
        let volume = self.requests[self.pieces[piece].request].volume;
        let mut being_written = false;
        for i in 0..self.pieces[piece].blocks() {
            let number = self.pieces[piece].first_block() + i as u64;
            if let Some(id) = self.cache.lookup(volume, number) {
                being_written |= self.cache.block(id).writing != 0;
                self.persist(id);
            }
        }
        if being_written {
            self.promote_writes(volume);
        }
        self.block_persisted(piece, None);
    }

    /// Serves the pieces that wait for a block to be on the medium: they are done, or a durable write begins.
    fn persist(&mut self, id: BlockId) {
        if self.settle(id, true) {
            self.write_again(id);
        }
    }

    /// Ends the pieces that wait for a block to be on the medium, if it is, or failed to be written. A piece is also
    /// done if its content was overwritten after it had been written: else one that is overwritten all the time would
    /// never be done. Returns whether some of them need a further write.
    pub(crate) fn settle(&mut self, id: BlockId, good: bool) -> bool {
        if self.cache.block(id).writing != 0 || self.cache.block(id).write_queue.is_empty() {
            return false;
        }
        let queue = std::mem::take(&mut self.cache.block_mut(id).write_queue);
        let why = self.volume(self.cache.block(id).volume).write_error;
        let left = if planted!(FuaNotDurable) { self.cache.block(id).dirty } else { self.cache.not_on_medium(id) };
        let mut again = crate::cache::Queue::default();
        let mut next = queue.head;
        while next != NONE {
            let super::Waiter { piece, at, next: after, prospect } = self.waiters[next];
            let (start, end) = self.pieces[piece].bytes_in(at as usize);
            let good = good && prospect != Prospect::Lost;
            if good && prospect == Prospect::Open && left & sectors_touched(start, end) != 0 {
                self.waiters[next].next = NONE;
                self.enqueue(&mut again, next);
            } else {
                self.waiters.give(next);
                self.block_persisted(piece, (!good).then_some(why));
            }
            next = after;
        }
        self.cache.block_mut(id).write_queue = again;
        !again.is_empty()
    }

    /// Begins the write for which pieces still wait after [`Volumes::settle`], unless it has begun with a neighbour's.
    pub(crate) fn write_again(&mut self, id: BlockId) {
        if self.cache.block(id).writing == 0 {
            self.write_out(id, !planted!(FuaNotDurable), false);
        }
    }

    fn block_persisted(&mut self, piece: u32, error: Option<Errno>) {
        let state = &mut self.pieces[piece];
        state.error = state.error.or(error);
        state.persisting -= 1;
        if state.persisting == 0 && state.pending == 0 {
            self.piece_written(piece);
        }
    }

    /// A piece of a write has taken effect, or has failed.
    fn piece_written(&mut self, piece: u32) {
        self.release_piece_frames(piece);
        let (request, error) = (self.pieces[piece].request, self.pieces[piece].error);
        self.pieces.give(piece);
        let state = &mut self.requests[request];
        state.error = state.error.or(error);
        self.part_done(request);
    }
}

#[cfg(test)]
mod tests {
    use crate::disk::Op;
    use crate::errno::Errno;
    use crate::ids::{ConnId, TenantId, VolumeId};
    use crate::nbd::wire::{command, command_flag as flag};
    use crate::spec::{TenantSpec, VolumeSpec};
    use crate::units::{BLOCK, PIECE};
    use crate::volume::Receive;
    use crate::volume::rig::{Rig, VOLUME};

    /// A tenant with the smallest partition and `volumes` volumes, numbered from 0. The first client of volume n is `10
    /// * n`.
    fn smallest(volumes: u32) -> Rig {
        smallest_with(volumes, |_| {})
    }

    fn smallest_with(volumes: u32, change: impl FnOnce(&mut VolumeSpec)) -> Rig {
        let mut rig = Rig::with(128, change);
        rig.set_smallest(TenantId(0));
        for number in 1..volumes {
            let volume = VolumeId(number);
            rig.open_volume(VolumeSpec::plain(volume, TenantId(0), 4 * PIECE));
            rig.attach(ConnId(10 * number), volume);
        }
        rig
    }

    /// The bytes of payload that `conn` has frames for.
    fn wanted(rig: &Rig, conn: ConnId) -> u64 {
        match rig.receive(conn) {
            Receive::Payload(bytes) => bytes,
            _ => 0,
        }
    }

    #[test]
    fn in_the_smallest_partition_too_clients_that_send_no_payload_leave_frames_to_other_volumes() {
        for shift in [0, 100] {
            let mut rig = smallest(3);
            let ask = |rig: &mut Rig, conn, command| {
                rig.ask_as(conn, u64::from(conn.0), command, 0, shift, 2 * PIECE);
            };
            for conn in (50..60).map(ConnId) {
                rig.attach(conn, VOLUME);
                ask(&mut rig, conn, command::WRITE);
            }
            let half = u64::from(rig.volumes.cache.partition(TenantId(0)).target) / 2 * BLOCK;
            let stalled: u64 = (50..60).map(|conn| wanted(&rig, ConnId(conn))).sum();
            assert!(stalled > 0 && stalled <= half / 2, "{stalled} bytes");
            // A client of the next volume stalls too. The third volume still has room.
            ask(&mut rig, ConnId(10), command::WRITE);
            let second = wanted(&rig, ConnId(10));
            assert!(second > 0 && second <= (half - stalled) / 2, "{second} bytes");
            rig.write_as(ConnId(20), 20, 0, shift, 2 * PIECE, 9);
            while rig.answer(20).is_none() {
                rig.complete_all();
                rig.write_on(ConnId(20), 9);
            }
            rig.ask_as(ConnId(20), 21, command::WRITE_ZEROES, 0, shift, 2 * PIECE);
            rig.complete_all();
            assert_eq!(rig.answer(21), Some(0));
        }
    }

    #[test]
    fn a_piece_that_lacks_one_of_its_spare_frames_is_cut() {
        let mut rig = smallest(5);
        // The last volume can have three frames; an unaligned write of two blocks takes four.
        for (number, len) in [(0, 2 * PIECE), (10, 2 * PIECE), (20, 2 * PIECE), (30, 2 * BLOCK)] {
            rig.ask_as(ConnId(number), number.into(), command::WRITE, 0, 0, len);
        }
        let partition = rig.volumes.cache.partition(TenantId(0));
        assert_eq!(partition.payload_max(0, 4), Some(3));
        rig.write_as(ConnId(40), 40, 0, 100, BLOCK, 9);
        while rig.answer(40).is_none() {
            assert!(!rig.device.is_empty(), "it waits for its fills");
            rig.complete_all();
            rig.write_on(ConnId(40), 9);
        }
        assert_eq!(rig.answer(40), Some(0));
    }

    #[test]
    fn both_ends_of_zeroes_are_written_if_they_wait_for_frames_while_the_device_punches_the_rest() {
        let mut rig = smallest_with(3, |spec| (spec.sparse, spec.can_punch) = (true, true));
        // Dirty data in the first volume, and payload of the others: the remaining frames suffice for a part of each
        // end.
        rig.write(1, 0, 64 * BLOCK, 48 * BLOCK, 7);
        for conn in [ConnId(10), ConnId(20)] {
            rig.ask_as(conn, u64::from(conn.0), command::WRITE, 0, 0, 2 * PIECE);
        }
        let (start, len) = ((1 << 20) + BLOCK, (1 << 20) - 2 * BLOCK);
        rig.ask(2, command::WRITE_ZEROES, 0, start, len);
        let punch = rig.ops().iter().position(|&op| op == Op::Punch).expect("the middle");
        rig.complete(punch, Ok(()));
        rig.complete_all();
        rig.ask(3, command::FLUSH, 0, 0, 0);
        rig.complete_all();
        assert_eq!([2, 3].map(|cookie| rig.answer(cookie)), [Some(0); 2]);
        assert!(rig.medium[start as usize..(start + len) as usize].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_volume_alone_in_its_partition_has_whole_pieces() {
        let mut rig = smallest(1);
        rig.ask(0, command::WRITE, 0, 0, 2 * PIECE);
        assert_eq!(wanted(&rig, ConnId(0)), PIECE);
    }

    const REWRITER: ConnId = ConnId(1);

    /// The second client rewrites bytes of the first block, and a device request ends well.
    fn rewrite_and_complete(rig: &mut Rig, (start, end): (u64, u64), at: usize) {
        rig.write_as(REWRITER, 999, 0, start, end - start, 9);
        rig.complete(at, Ok(()));
    }

    #[test]
    fn a_durable_write_of_a_block_that_is_rewritten_all_the_time_takes_two_device_writes_at_most() {
        let mut rig = Rig::new();
        let id = {
            rig.write(1000, 0, 0, BLOCK, 1);
            rig.volumes.cache.lookup(VOLUME, 0).expect("it was written")
        };
        for write in 0..20 {
            // An ordinary write, or an earlier durable one, is in the device.
            if rig.device.is_empty() {
                rig.volumes.write_out(id, false, false);
                rig.wait(0);
            }
            rig.write(write, flag::FUA, 0, BLOCK, 7);
            rewrite_and_complete(&mut rig, (0, BLOCK), 0);
            assert_eq!(rig.answer(write), None, "that device write has older content");
            assert_eq!(rig.ops(), [Op::Write { durable: true }]);
            if write % 2 == 0 {
                // The device write that covers it is the earlier one of the next.
                rig.write(write + 100, flag::FUA, 0, BLOCK, 7);
            }
            rewrite_and_complete(&mut rig, (0, BLOCK), 0);
            assert_eq!(rig.answer(write), Some(0));
            assert_eq!(rig.device.len(), usize::from(write % 2 == 0), "nobody waits for what was rewritten");
        }
        rig.complete_all();
        assert!((100..120).step_by(2).all(|write| rig.answer(write) == Some(0)));
    }

    #[test]
    fn a_durable_write_of_two_blocks_does_not_wait_for_a_device_write_that_began_after_its_own() {
        let mut rig = Rig::new();
        // Writes that are not aligned to blocks: each has a part of the block between them.
        let (before, after) = (512, BLOCK + 512);
        rig.write(0, flag::FUA, after, BLOCK, 7);
        for write in (0..40).step_by(2) {
            // Both are rewritten before the device write ends. It is followed by one of all three blocks.
            rig.write(write + 1, flag::FUA, before, BLOCK, 8);
            rig.write(write + 2, flag::FUA, after, BLOCK, 9);
            let writes = rig.device.len();
            (0..writes).for_each(|_| rig.complete(0, Ok(())));
            assert_eq!([0, 1, 2].map(|more| rig.answer(write + more)), [Some(0), None, None]);
        }
    }

    #[test]
    fn a_durable_write_of_a_block_with_gaps_waits_for_all_device_writes_of_the_block() {
        let mut rig = Rig::new();
        let (first, last) = ((0, 512), (7 * 512, BLOCK));
        rig.write(1, 0, first.0, 512, 7);
        rig.write(2, flag::FUA, last.0, 512, 7);
        assert_eq!(rig.ops(), [Op::Write { durable: true }; 2]);
        rig.write(3, flag::FUA, first.0, 512, 8);
        rewrite_and_complete(&mut rig, last, 1);
        assert_eq!(rig.answer(2), None, "the other sectors of the block are still in the device");
        rewrite_and_complete(&mut rig, last, 0);
        assert_eq!([2, 3].map(|write| rig.answer(write)), [Some(0), None]);
        rig.complete_all();
        assert_eq!(rig.answer(3), Some(0));
    }

    #[test]
    fn a_device_write_during_which_a_flush_failed_is_no_answer_to_a_durable_write() {
        let mut rig = Rig::new();
        rig.set_tenant(TenantId(1), TenantSpec::default());
        rig.open_volume(VolumeSpec::plain(VolumeId(1), TenantId(1), 4 * PIECE));
        rig.attach(ConnId(2), VolumeId(1));
        rig.write(1, flag::FUA, 0, BLOCK, 7);
        rig.ask_as(ConnId(2), 2, command::FLUSH, 0, 0, 0);
        assert_eq!(rig.ops(), [Op::Write { durable: true }, Op::Flush]);
        rig.complete(1, Err(Errno::Io));
        rewrite_and_complete(&mut rig, (0, BLOCK), 0);
        assert_eq!((rig.answer(1), rig.ops()), (None, vec![Op::Write { durable: true }]));
        rewrite_and_complete(&mut rig, (0, BLOCK), 0);
        assert_eq!(rig.answer(1), Some(0));
    }
}
