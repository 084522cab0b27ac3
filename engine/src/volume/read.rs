//! Reads (and CACHE, a read without data in its reply), and the completion of device reads.

use crate::cache::{NONE, Source};
use crate::disk::{Op, Purpose, Segment};
use crate::errno::Errno;
use crate::ids::{BlockId, ConnId, FrameId, IoId, TenantId, VolumeId};
use crate::nbd::ORDER_SHIFT;
use crate::units::{BLOCK, PIECE, sectors_touched};
use crate::volume::{Data, Effect, Kind, Request, STALL_TIMEOUT_NS, Timer, Todo, Volumes, Who};

/// Pieces of one read in progress at once: enough to keep the disk streaming under a single large read.
const WINDOW: u32 = 4;

/// CACHE requests of one tenant in progress at once, each with [`WINDOW`] pieces: 2 MiB, which keep a disk streaming.
/// No client waits for their data, so more of them would only delay requests that a client waits for.
const CACHES_MAX: u32 = 2;

/// Units of work of a block of a CACHE request: it is looked up, marked as used, referenced and released.
const CACHE_UNITS: u32 = 2;

/// Placeholder for a block that the device has still to deliver.
const MISSING: FrameId = FrameId(u32::MAX);

impl Volumes {
    pub(crate) fn read_arrived(&mut self, request: u32) {
        let Request { conn, volume, start, end, .. } = self.requests[request];
        let stream = self.note_read(conn, volume, start, end);
        let tenant = self.tenant_of(volume);
        let state = &mut self.requests[request];
        state.stream = stream;
        if state.kind == Kind::Read && stream.is_none() {
            state.scattered = (end.div_ceil(BLOCK) - start / BLOCK) as u32;
            self.cache.partition_mut(tenant).begin_read(state.scattered);
        }
        if state.end - state.start > PIECE && !self.client(conn).session.form.is_structured() {
            // Other replies must not be mixed into the data of a simple reply, so the read waits until no other request
            // of the connection is in progress.
            self.client(conn).exclusive = Some(request);
            if self.client(conn).in_flight > 1 {
                return;
            }
        }
        self.go_on(request);
    }

    /// Begins pieces while the window, the socket and the partition allow. True if the request must go on later: it is
    /// then on its connection's list of stalled reads, or on the agenda because the step is spent.
    pub(crate) fn read_on(&mut self, request: u32) -> bool {
        let conn = self.requests[request].conn;
        let window = if self.client(conn).session.form.is_structured() { WINDOW } else { 1 };
        loop {
            let state = &mut self.requests[request];
            let connection = &mut self.clients[conn];
            if !connection.open {
                state.next = state.end;
            }
            if state.active >= window || state.is_done() {
                return false;
            }
            let Some((start, end)) = state.upcoming() else { return false };
            if self.work.is_spent() {
                // The rest follows in a later quantum of the tenant.
                self.agenda.push_back(Todo::Request(request));
                return true;
            }
            let Some(end) = self.reply_fits(request, start, end) else {
                self.stall(request);
                return true;
            };
            let state = &mut self.requests[request];
            (state.next, state.active) = (end, state.active + 1);
            let (kind, volume) = (state.kind, state.volume);
            let piece = self.open_piece(request, start, end);
            let tenant = self.tenant_of(volume);
            if kind == Kind::Read {
                self.client(conn).stalled_since = None;
                let frames = self.pieces[piece].blocks() as u32;
                self.client(conn).reading += frames;
                self.cache.partition_mut(tenant).unsent += frames;
                self.volume_mut(volume).unsent += frames;
            }
            if !self.waiting_of(tenant).reads.is_empty() || !self.begin_read(piece) {
                self.wait_to_read(piece);
            }
            let Request { next, end, .. } = self.requests[request];
            if next >= end {
                self.read_ahead(request);
            }
        }
    }

    /// Up to which byte the next piece of a read may be begun. `None` if the read must wait until replies are sent.
    fn reply_fits(&self, request: u32, start: u64, end: u64) -> Option<u64> {
        let state = &self.requests[request];
        let connection = &self.clients[state.conn];
        if state.kind == Kind::Read && !connection.stalled.is_empty() {
            // Stalled reads keep their order. Otherwise the small reads of a client could starve its large one.
            return None;
        }
        let room = u64::from(self.reply_room(state.conn));
        if state.kind != Kind::Read || end.div_ceil(BLOCK) - start / BLOCK <= room {
            return Some(end);
        }
        if connection.unsent() > 0 || room == 0 {
            return None;
        }
        // The client has received everything that was sent: the read goes on, however little room there is.
        if connection.session.form.is_structured() && !state.unsplit {
            return Some((start / BLOCK + room) * BLOCK);
        }
        let blocks = (end.div_ceil(BLOCK) - start / BLOCK) as u32;
        let partition = self.cache.partition(self.tenant_of(state.volume));
        partition.whole_reply_fits(self.volume(state.volume).unsent, blocks).then_some(end)
    }

    /// The read waits on its connection's list until replies are sent.
    fn stall(&mut self, request: u32) {
        let (conn, now) = (self.requests[request].conn, self.now);
        let connection = self.client(conn);
        // A read that is tried again in vain has waited since the first time. Time in which its own client did not take
        // replies does not count.
        connection.stalled_since = connection.stalled_since.filter(|_| connection.unsent() == 0).or(Some(now));
        connection.stalled.push_back(request);
        let tenant = self.tenant_of(self.requests[request].volume);
        self.cache.partition_mut(tenant).throttled = true;
        self.timers.wake_at(Timer::Stalls, now + STALL_TIMEOUT_NS);
    }

    /// A piece of a read waits for frames.
    pub(crate) fn wait_to_read(&mut self, piece: u32) {
        let tenant = self.tenant_of(self.requests[self.pieces[piece].request].volume);
        self.pieces[piece].waiting_since = self.now;
        self.waiting_of(tenant).reads.push_back(piece);
        self.wait_for_frames(tenant);
    }

    /// A piece of this tenant begins to wait for frames.
    pub(crate) fn wait_for_frames(&mut self, tenant: TenantId) {
        if !std::mem::replace(&mut self.waiting[tenant].listed, true) {
            self.tenants_waiting.push(tenant);
        }
        self.poke_tenant(tenant);
        self.timers.wake_at(Timer::Stalls, self.now + STALL_TIMEOUT_NS);
    }

    pub(crate) fn waiting_of(&mut self, tenant: TenantId) -> &mut crate::volume::Waiting {
        &mut self.waiting[tenant]
    }

    pub(crate) fn open_piece(&mut self, request: u32, start: u64, end: u64) -> u32 {
        let id = self.pieces.take();
        let piece = &mut self.pieces[id];
        debug_assert!(piece.frames.is_empty() && piece.spares.is_empty());
        (piece.request, piece.start, piece.end) = (request, start, end);
        (piece.pending, piece.persisting, piece.waiting_since, piece.error) = (0, 0, 0, None);
        id
    }

    /// Begins a piece of a read. False if it must wait for frames; it holds none then.
    pub(crate) fn begin_read(&mut self, piece: u32) -> bool {
        let request = self.pieces[piece].request;
        let volume = self.requests[request].volume;
        let (start, end) = (self.pieces[piece].start, self.pieces[piece].end);
        if self.must_wait_in_order(volume, start, end, Who::Reader(piece)) {
            return true;
        }
        self.read_in_order(piece)
    }

    /// Begins a piece that waits for no range operation. False if it must wait for frames; it holds none then.
    pub(crate) fn read_in_order(&mut self, piece: u32) -> bool {
        let request = self.pieces[piece].request;
        let volume = self.requests[request].volume;
        if !self.client(self.requests[request].conn).open {
            self.pieces[piece].error = Some(Errno::Io);
            self.read_piece_done(piece);
            return true;
        }
        let (missing, prefetched, demoted) = self.find_hits(piece, volume);
        let tenant = self.tenant_of(volume);
        let blocks = self.pieces[piece].blocks() as u32;
        match self.requests[request].kind {
            // Reads are charged by the bytes sent, and a CACHE sends none.
            Kind::Cache => self.charge(tenant, CACHE_UNITS * blocks),
            _ => self.work.step(blocks),
        }
        let mut frames = std::mem::take(&mut self.frames_taken);
        frames.clear();
        if missing > 0 && !self.take_frames(tenant, missing, &mut frames) {
            self.frames_taken = frames;
            self.release_frames(piece);
            // The cancelled read-ahead may include blocks of this piece, so all its blocks are looked up again.
            return self.yield_prefetch(volume) && self.read_in_order(piece);
        }
        self.note_waited(piece, volume);
        self.curve_read(piece, volume);
        if self.requests[request].kind == Kind::Read {
            let blocks = self.pieces[piece].blocks() as u64;
            let counters = &mut self.volume_mut(volume).counters;
            counters.hit_blocks += blocks - u64::from(missing + prefetched);
            counters.prefetched_blocks += u64::from(prefetched);
            counters.miss_blocks += u64::from(missing);
        }
        if prefetched > 0 || demoted {
            self.note_used(piece, volume);
        }
        self.pieces[piece].pending += 1;
        self.fill_missing(piece, volume, &mut frames);
        self.requests[request].missed |= self.pieces[piece].pending > 1;
        self.frames_taken = frames;
        self.block_read(piece);
        true
    }

    /// Takes references to cached blocks and holes. Returns how many blocks need a device read that is not in flight
    /// yet, how many blocks were or are being read ahead and were not requested before, and whether some were demoted.
    fn find_hits(&mut self, piece: u32, volume: VolumeId) -> (u32, u32, bool) {
        let (mut missing, mut prefetched, mut demoted) = (0, 0, false);
        for i in 0..self.pieces[piece].blocks() {
            let state = &self.pieces[piece];
            let number = state.first_block() + i as u64;
            let (start, end) = state.bytes_in(i);
            let frame = match self.cache.lookup(volume, number) {
                Some(id) => {
                    let block = self.cache.block(id);
                    prefetched += u32::from(block.source == Source::Prefetch);
                    demoted |= block.source == Source::Demotion;
                    if block.filling() {
                        MISSING
                    } else if sectors_touched(start, end) & !block.valid == 0 {
                        let frame = block.frame;
                        self.cache.retain(frame);
                        self.cache.touch(id);
                        frame
                    } else {
                        missing += 1;
                        MISSING
                    }
                }
                None if self.volume(volume).holes.contains(number * BLOCK, number * BLOCK + end) => FrameId::ZERO,
                None => {
                    missing += 1;
                    MISSING
                }
            };
            self.pieces[piece].frames.push(frame);
        }
        (missing, prefetched, demoted)
    }

    /// The blocks of a piece that were read ahead or demoted count as used.
    fn note_used(&mut self, piece: u32, volume: VolumeId) {
        for i in 0..self.pieces[piece].blocks() {
            let number = self.pieces[piece].first_block() + i as u64;
            if let Some(id) = self.cache.lookup(volume, number) {
                self.cache.note_used(id);
            }
        }
    }

    /// Reads the missing blocks from the device, contiguous ones in one request as far as the policy allows. The piece
    /// waits for all of them.
    fn fill_missing(&mut self, piece: u32, volume: VolumeId, frames: &mut Vec<FrameId>) {
        let mut reading: Option<IoId> = None;
        let blocks_max = self.route.disk.request_blocks_max(self.tenant_of(volume), Op::Read);
        let mut frames = frames.drain(..);
        for i in 0..self.pieces[piece].blocks() {
            let number = self.pieces[piece].first_block() + i as u64;
            if self.pieces[piece].frames[i] != MISSING {
                self.submit_if(reading.take());
                continue;
            }
            let id = self.cache.lookup(volume, number).unwrap_or_else(|| self.cache.insert(volume, number));
            if self.cache.block(id).filling() {
                self.submit_if(reading.take());
            } else {
                let frame = frames.next().expect("a frame for each missing block");
                if reading.is_some_and(|io| self.route.slot(io).parts.len() as u64 >= blocks_max) {
                    self.submit_if(reading.take());
                }
                let io = reading.unwrap_or_else(|| {
                    let io = self.prepare_fill(volume, number);
                    self.route.slot_mut(io).order = self.order_of(piece);
                    io
                });
                self.add_to_fill(io, id, frame);
                reading = Some(io);
            }
            self.pieces[piece].pending += 1;
            self.wait_for_fill(id, piece, i);
        }
        self.submit_if(reading);
        debug_assert!(frames.next().is_none());
    }

    /// The order of the read that a piece belongs to, if its client numbers its requests. Hints (CACHE) have none.
    fn order_of(&self, piece: u32) -> Option<u64> {
        let Request { conn, kind, cookie, .. } = self.requests[self.pieces[piece].request];
        let is_numbered = kind == Kind::Read && self.clients[conn].session.numbers;
        is_numbered.then_some(cookie >> ORDER_SHIFT)
    }

    fn submit_if(&mut self, io: Option<IoId>) {
        if let Some(io) = io {
            self.submit(io, false);
        }
    }

    /// Queues a prepared request; an urgent one goes ahead of its tenant's others, a few in a row at most.
    pub(crate) fn submit(&mut self, io: IoId, urgent: bool) {
        let volume = self.route.slot(io).io.volume;
        self.volume_mut(volume).device_requests += 1;
        let failures = self.cache.durability.failures(self.route.slot(io).io.volume);
        self.route.submit(self.now, io, urgent, failures);
    }

    pub(crate) fn prepare_fill(&mut self, volume: VolumeId, number: u64) -> IoId {
        let tenant = self.tenant_of(volume);
        let io = self.route.prepare(Op::Read, volume, tenant, Purpose::Fill);
        self.route.slot_mut(io).io.offset = number * BLOCK;
        io
    }

    pub(crate) fn add_to_fill(&mut self, io: IoId, id: BlockId, frame: FrameId) {
        self.cache.begin_fill(id, frame);
        self.route.add_segment(io, Segment::whole(frame));
        self.route.slot_mut(io).parts.push((id, 0));
    }

    /// Block `at` of the piece waits for a fill, behind the pieces that already wait for it.
    pub(crate) fn wait_for_fill(&mut self, id: BlockId, piece: u32, at: usize) {
        let waiter = self.waiters.take();
        self.waiters[waiter] = super::Waiter::new(piece, at);
        let mut queue = self.cache.block(id).fill_queue;
        self.enqueue(&mut queue, waiter);
        self.cache.block_mut(id).fill_queue = queue;
    }

    pub(crate) fn enqueue(&mut self, queue: &mut crate::cache::Queue, waiter: u32) {
        match queue.tail {
            NONE => queue.head = waiter,
            tail => self.waiters[tail].next = waiter,
        }
        queue.tail = waiter;
    }

    /// A device read has ended, well or not: the pieces that wait for its blocks go on, in order of arrival.
    pub(crate) fn fill_done(&mut self, parts: &[(BlockId, u8)], good: bool) {
        for &(id, _) in parts {
            self.cache.end_fill(id, good, &mut self.effects);
            let queue = std::mem::take(&mut self.cache.block_mut(id).fill_queue);
            let mut next = queue.head;
            while next != NONE {
                let super::Waiter { piece, at, next: after, .. } = self.waiters[next];
                self.waiters.give(next);
                next = after;
                match self.requests[self.pieces[piece].request].kind {
                    Kind::Read | Kind::Cache => self.block_filled(id, piece, at as usize),
                    _ => self.write_block(piece, at as usize, Some(good)),
                }
            }
            let block = self.cache.block(id);
            if block.valid == 0 && block.quiet() {
                self.cache.drop_block(id);
            }
        }
    }

    fn block_filled(&mut self, id: BlockId, piece: u32, at: usize) {
        let (start, end) = self.pieces[piece].bytes_in(at);
        let block = self.cache.block(id);
        if sectors_touched(start, end) & !block.valid == 0 {
            let frame = block.frame;
            self.cache.retain(frame);
            self.pieces[piece].frames[at] = frame;
        } else {
            self.pieces[piece].error = Some(Errno::Io);
        }
        self.block_read(piece);
    }

    /// A piece of a read waits for one thing fewer.
    fn block_read(&mut self, piece: u32) {
        self.pieces[piece].pending -= 1;
        if self.pieces[piece].pending == 0 {
            self.read_piece_done(piece);
        }
    }

    fn read_piece_done(&mut self, piece: u32) {
        let request = self.pieces[piece].request;
        let (error, blocks) = (self.pieces[piece].error, self.pieces[piece].blocks() as u32);
        let state = &mut self.requests[request];
        state.error = state.error.or(error);
        let Request { conn, volume, kind, .. } = *state;
        let sends = kind == Kind::Read && state.error.is_none() && self.clients[conn].open;
        if sends {
            self.send_piece(piece);
        } else {
            self.release_frames(piece);
            self.pieces.give(piece);
        }
        if kind == Kind::Read {
            self.clients[conn].reading -= blocks;
            self.fewer_unsent(volume, blocks);
        }
        if sends {
            self.effects.push(Effect::Recheck(conn));
        }
        self.part_done(request);
    }

    /// Releases the references of a piece.
    pub(crate) fn release_frames(&mut self, piece: u32) {
        while let Some(frame) = self.pieces[piece].frames.pop() {
            if frame != MISSING {
                self.cache.release(frame);
            }
        }
    }

    /// Hands the data of a piece to the front, which takes over its references and frees the piece.
    fn send_piece(&mut self, piece: u32) {
        let bounds = &self.pieces[piece];
        let state = &mut self.requests[bounds.request];
        state.ended = state.active == 1 && state.next >= state.end;
        let Request { conn, volume, cookie, start: offset, ended: last, unsplit, .. } = *state;
        let first = !std::mem::replace(&mut state.begun, true);
        let client = &mut self.clients[conn];
        let is_hole = |i: usize| client.session.form.is_structured() && !unsplit && bounds.frames[i] == FrameId::ZERO;
        let bytes: u64 = (0..bounds.blocks()).filter(|&i| !is_hole(i)).map(|i| bounds.len_in(i)).sum();
        let frames = bounds.frames.iter().filter(|&&frame| frame != FrameId::ZERO).count() as u32;
        client.unsent += bytes;
        client.held += frames;
        let tenant = self.tenant_of(volume);
        self.cache.partition_mut(tenant).unsent += frames;
        self.table[volume].unsent += frames;
        let (start, end) = (self.pieces[piece].start, self.pieces[piece].end);
        self.note_sent(conn, volume, start, end);
        self.effects.push(Effect::Data(Data { conn, cookie, offset, piece, first, last, unsplit }));
    }

    /// Frames of tenants became free, or blocks clean: the pieces that wait for frames are tried again in their
    /// tenants' quanta.
    pub(crate) fn put_off_waiting(&mut self) {
        #[cfg(feature = "planted-bugs")]
        if crate::planted::is(crate::planted::Bug::WaitersWokenOncePerMoment) && crate::planted::seen(self.now) {
            return;
        }
        let mut tenants = std::mem::take(&mut self.tenants_waiting);
        tenants.retain(|&tenant| {
            let Some(waiting) = self.waiting.get_mut(tenant) else { return false };
            waiting.listed = !waiting.reads.is_empty() || !waiting.writes.is_empty();
            if waiting.listed && self.cache.partition(tenant).stirred {
                self.put_off(Todo::Frames(tenant));
            }
            self.waiting[tenant].listed
        });
        self.tenants_waiting = tenants;
    }

    /// Tries the pieces of a tenant that wait for frames again, in order.
    pub(crate) fn wake_waiting(&mut self, tenant: TenantId) {
        let mut go_on = std::mem::take(&mut self.cache.partition_mut(tenant).stirred);
        while go_on && !self.work.is_spent() {
            go_on = false;
            while !self.work.is_spent()
                && let Some(&piece) = self.waiting_of(tenant).reads.front()
            {
                if !self.begin_read(piece) {
                    break;
                }
                self.waiting_of(tenant).reads.pop_front();
                go_on = true;
            }
            go_on |= self.wake_writes(tenant);
        }
        // A piece that did not get its frames released its references, which sets `stirred`. That is no reason to try
        // again.
        self.cache.partition_mut(tenant).stirred = go_on;
    }

    /// A CACHE request arrives. It begins when its tenant has fewer than [`CACHES_MAX`] in progress.
    pub(crate) fn cache_arrived(&mut self, tenant: TenantId, request: u32) {
        if self.cache.partition(tenant).caching < CACHES_MAX {
            self.begin_cache(tenant, request);
        } else {
            self.waiting_of(tenant).caches.push_back(request);
        }
    }

    pub(crate) fn begin_cache(&mut self, tenant: TenantId, request: u32) {
        self.cache.partition_mut(tenant).caching += 1;
        self.requests[request].caching = true;
        self.put_on_agenda(request);
    }

    /// Ends the CACHE requests of a disconnected client that have not begun.
    pub(crate) fn forget_caches(&mut self, tenant: TenantId, conn: ConnId) {
        let mut caches = std::mem::take(&mut self.waiting_of(tenant).caches);
        caches.retain(|&request| {
            let stays = self.requests[request].conn != conn;
            if !stays {
                self.requests[request].error = Some(Errno::Io);
                self.finish(request);
            }
            stays
        });
        self.waiting_of(tenant).caches = caches;
    }

    pub(crate) fn note_waited(&mut self, piece: u32, volume: VolumeId) {
        let since = std::mem::take(&mut self.pieces[piece].waiting_since);
        if since > 0 {
            let now = self.now;
            self.volume_mut(volume).counters.cache_delay_ns += now - since;
        }
    }
}
