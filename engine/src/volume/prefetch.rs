//! Read-ahead of sequential streams, so that one positioning of the disk is paid for much data, and the client's next
//! reads hit.
//!
//! ```text
//!   volume   |···· read ····|── last window ──|── next window ──|
//!                           ▲marker           ▲ahead            the run doubles: so does the window, up to the maximum
//!              client ──────► gets past the marker: the next window is read while this one is consumed
//! ```
//!
//! Read-ahead is submitted after the read that triggers it, in device requests of its own. Blocks that are cached or in
//! flight are not read, nor are holes. A device request has at most 1 MiB, or less if the policy says so.
//!
//! Read-ahead never waits for frames, and never makes a request wait for them. It takes free or evictable frames, and
//! only as long as dirty data, payload, replies and read-ahead together hold at most three quarters of the partition.
//! All streams of a tenant have at most a quarter of the partition ahead of their readers, or half, if that is less
//! than four of their reads. When a request waits for frames, read-ahead that is not yet in the device is cancelled. So
//! is that of a stream that ends: another stream takes its entry, its client disconnects, it is not read for 5 s, or
//! its volume closes.
//!
//! Source: Argon (Wachs et al., FAST 2007), sections 3 and 4; the marker is that of Linux, mm/readahead.c.
//! Downside: a stream that stops wastes up to two windows; see `aerogel_volume_prefetch_bytes_total`.

use crate::disk::{Op, Purpose, Segment};
use crate::ids::{BlockId, ConnId, VolumeId};
use crate::units::{BLOCK, Nanos};
use crate::volume::{Halted, Request, Volumes};

/// Blocks of one device request: 1 MiB, whose transfer time hides the cost of the request even on a fast disk.
const REQUEST_BLOCKS: u64 = 256;
/// Reads of a stream that may be ahead of it although they take more than a quarter of the partition: with two reads of
/// 1 MiB a stream has 0.68 of its throughput on `cheetah-15k5`, with four 0.95 (`docs/notes/cache.md`).
const READS_AHEAD: u64 = 4;

/// The bytes, at block boundaries, that are to be read ahead of a stream now, if any. `most` is the maximum window,
/// `room` the most bytes that the stream may have ahead of its reader.
fn window(read: (u64, u64), ahead: u64, marker: u64, most: u64, room: u64, volume_end: u64) -> Option<(u64, u64)> {
    let (start, end) = read;
    if end <= marker {
        return None;
    }
    let reader = end.next_multiple_of(BLOCK);
    let from = ahead.max(reader);
    // Two windows must fit: the one being consumed and the one being read.
    let bytes = (end - start).min(most).min(room / 2) / BLOCK * BLOCK;
    let past = (from + bytes).min(volume_end.next_multiple_of(BLOCK));
    (from < past && past - reader <= room).then_some((from, past))
}

impl Volumes {
    /// A client reads: returns the index of the stream that the read belongs to.
    pub(crate) fn note_read(&mut self, conn: ConnId, volume: VolumeId, start: u64, end: u64) -> Option<usize> {
        if self.prefetch_bytes == 0 || start >= end || self.is_store(self.tenant_of(volume)) {
            return None;
        }
        let now = self.now;
        let seen = self.volume_mut(volume).streams.read(now, conn, start, end);
        if let Some(halted) = seen.ended {
            self.stream_ended(volume, halted);
        }
        if let Some(place) = seen.stream {
            self.count_unread(volume, place);
            self.stream_read(volume, place);
        }
        seen.stream
    }

    fn count_unread(&mut self, volume: VolumeId, place: usize) {
        let (before, unread) = self.volume_mut(volume).streams.count_unread(place);
        let tenant = self.tenant_of(volume);
        let partition = self.cache.partition_mut(tenant);
        partition.unread = partition.unread - before + unread;
    }

    /// All pieces of a read have begun: if it belongs to a stream, the next window may be read ahead.
    pub(crate) fn read_ahead(&mut self, request: u32) {
        let Request { conn, volume, start, end, stream, .. } = self.requests[request];
        let Some(place) = stream else { return };
        let most = self.prefetch_bytes;
        if end - start >= most && self.client(conn).in_flight > 1 {
            // A client with several outstanding reads of this length keeps the device busy by itself, and its requests
            // stay whole.
            return;
        }
        let now = self.now;
        let tenant = self.tenant_of(volume);
        let waiting = &self.waiting[tenant];
        let waits = !waiting.reads.is_empty() || !waiting.writes.is_empty();
        let state = &mut self.table[volume];
        // Blocks that a range operation is about to change are not read before it. Such operations are rare and short.
        let unordered = !state.order.is_empty() && !planted!(PrefetchOvertakesRange);
        if waits || unordered || state.is_closing() || self.draining.is_some() {
            return;
        }
        let partition = self.cache.partition_mut(tenant);
        let read = state.streams.span(place);
        let stream = state.streams.at(place);
        if !stream.is_proven() || start < read.0 || read.1 < end {
            // The read was stalled until replies were sent, and its entry is now empty or belongs to another stream.
            return;
        }
        partition.stream_read = partition.stream_read.max(end - start);
        let read_ahead = stream.ahead.saturating_sub(read.1);
        let sharing = partition.streams + u32::from(!stream.is_live());
        // Streams that began when there were fewer may have more than an even part ahead.
        let quarter = u64::from(partition.target / 4) * BLOCK;
        let all = (u64::from(sharing) * READS_AHEAD * (end - start)).clamp(quarter, 2 * quarter);
        let free = (all + read_ahead).saturating_sub(partition.unread);
        let room = (all / BLOCK / u64::from(sharing.max(1)) * BLOCK).min(free);
        let wanted = window(read, stream.ahead, stream.marker, most, room, state.spec.size);
        let Some((from, past)) = wanted else { return };
        let (serial, fresh) = state.streams.go_ahead(now, place);
        partition.streams += u32::from(fresh);
        if fresh {
            self.poke(volume);
        }
        let ahead = self.prefetch(volume, serial, from / BLOCK, past / BLOCK) * BLOCK;
        if ahead > from {
            let stream = self.volume_mut(volume).streams.at(place);
            (stream.ahead, stream.marker) = (ahead, from);
            self.count_unread(volume, place);
        }
    }

    /// Reads the missing blocks of `first..past` as far as frames are available; returns the end of what was read.
    fn prefetch(&mut self, volume: VolumeId, serial: u32, first: u64, past: u64) -> u64 {
        let blocks_max = REQUEST_BLOCKS.min(self.route.disk.request_blocks_max(self.tenant_of(volume), Op::Read));
        let mut run = first;
        for number in first..=past {
            let missing = number < past && self.is_missing(volume, number);
            if missing && number - run < blocks_max {
                continue;
            }
            if run < number && !self.prefetch_run(volume, serial, run, number) {
                return run;
            }
            run = if missing { number } else { number + 1 };
        }
        past
    }

    fn is_missing(&self, volume: VolumeId, number: u64) -> bool {
        let is_hole = || self.volume(volume).holes.contains(number * BLOCK, (number + 1) * BLOCK);
        self.cache.lookup(volume, number).is_none() && !is_hole()
    }

    /// Reads the blocks `first..past`, none of which is cached or in flight, with one device request. False if there
    /// are too few frames.
    fn prefetch_run(&mut self, volume: VolumeId, serial: u32, first: u64, past: u64) -> bool {
        let tenant = self.tenant_of(volume);
        let count = (past - first) as u32;
        let mut frames = std::mem::take(&mut self.frames_taken);
        frames.clear();
        let partition = self.cache.partition(tenant);
        let taken = partition.admits_prefetch(count) && self.take_frames(tenant, count, &mut frames);
        if taken {
            self.cache.partition_mut(tenant).prefetching += count;
            let io = self.route.prepare(Op::Read, volume, tenant, Purpose::Prefetch(serial));
            self.route.slot_mut(io).io.offset = first * BLOCK;
            for (number, &frame) in (first..past).zip(&frames) {
                let id = self.cache.insert(volume, number);
                self.cache.begin_prefetch(id, frame);
                self.route.add_segment(io, Segment::whole(frame));
                self.route.slot_mut(io).parts.push((id, 0));
            }
            self.submit(io, false);
            self.curve_read_ahead(volume, first, past);
        }
        self.frames_taken = frames;
        taken
    }

    /// A device request of read-ahead has ended, well or not.
    pub(crate) fn prefetch_done(&mut self, volume: VolumeId, parts: &[(BlockId, u8)], good: bool) {
        let tenant = self.tenant_of(volume);
        self.cache.partition_mut(tenant).prefetching -= parts.len() as u32;
        if good {
            return self.fill_done(parts, true);
        }
        for part in parts {
            let block = self.cache.block(part.0);
            let (number, frame) = (block.number, block.fill);
            if block.fill_queue.is_empty() {
                self.fill_done(std::slice::from_ref(part), false);
                continue;
            }
            // A client waits for this block. It is read alone, because the error may concern only its neighbours.
            let io = self.prepare_fill(volume, number);
            self.route.add_segment(io, Segment::whole(frame));
            self.route.slot_mut(io).parts.push(*part);
            self.submit(io, false);
        }
    }

    /// Ends the streams that were not read for `stream::IDLE_NS`.
    pub(crate) fn streams_on(&mut self, volume: VolumeId) {
        let now: Nanos = self.now;
        while let Some(halted) = self.volume_mut(volume).streams.halt_idle(now) {
            self.stream_ended(volume, halted);
        }
        if let Some(at) = self.volume(volume).streams.check_at() {
            self.poke_at(volume, at);
        }
    }

    /// Ends the streams that `conn` was the last to read; `None` ends all.
    pub(crate) fn end_streams(&mut self, volume: VolumeId, conn: Option<ConnId>) {
        while let Some(halted) = self.volume_mut(volume).streams.halt_of(conn) {
            self.stream_ended(volume, halted);
        }
    }

    fn stream_ended(&mut self, volume: VolumeId, halted: Halted) {
        let tenant = self.tenant_of(volume);
        let partition = self.cache.partition_mut(tenant);
        partition.streams -= 1;
        partition.unread -= halted.unread;
        self.drop_prefetch(volume, |of, serial| of == volume && serial == halted.serial);
    }

    /// A piece waits for frames: cancels the tenant's read-ahead that is not yet in the device. True if some was
    /// cancelled.
    pub(crate) fn yield_prefetch(&mut self, volume: VolumeId) -> bool {
        self.drop_prefetch(volume, |_, _| true)
    }

    /// Cancels queued read-ahead of the tenant of `volume`, except device requests with a block that a piece waits for.
    fn drop_prefetch(&mut self, volume: VolumeId, unwanted: impl Fn(VolumeId, u32) -> bool) -> bool {
        let tenant = self.tenant_of(volume);
        if self.cache.partition(tenant).prefetching == 0 {
            return false;
        }
        let mut dropped = std::mem::take(&mut self.dropped);
        let cache = &self.cache;
        let nobody_waits = |&(id, _): &(BlockId, u8)| cache.block(id).fill_queue.is_empty();
        self.route.withdraw(
            self.now,
            (tenant, volume),
            |slot| match slot.purpose {
                Purpose::Prefetch(serial) => unwanted(slot.io.volume, serial) && slot.parts.iter().all(nobody_waits),
                _ => false,
            },
            &mut dropped,
        );
        let any = !dropped.is_empty();
        for io in dropped.drain(..) {
            let slot = self.route.slot_mut(io);
            let (volume, parts) = (slot.io.volume, std::mem::take(&mut slot.parts));
            self.prefetch_done(volume, &parts, false);
            self.route.slot_mut(io).parts = parts;
            self.route.forget(io);
            self.volume_mut(volume).device_requests -= 1;
            self.poke(volume);
        }
        self.dropped = dropped;
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;
    use crate::ids::TenantId;
    use crate::nbd::wire::command;
    use crate::units::PIECE;
    use crate::volume::rig::{Rig, VOLUME};
    use crate::volume::stream;

    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    /// The maximum window, unless a test sets another one.
    const MOST: u64 = 128 * KIB;

    impl Rig {
        fn read(&mut self, cookie: u64, offset: u64, len: u64) {
            self.ask(cookie, command::READ, 0, offset, len);
        }

        /// The requests in the device: first byte, length.
        fn places(&self) -> Vec<(u64, u64)> {
            (0..self.device.len()).map(|at| (self.io(at).offset, self.io(at).len)).collect()
        }

        /// The number of streams with read-ahead, and the frames of read-ahead in flight.
        fn ahead(&self) -> (u32, u32) {
            let partition = self.volumes.cache.partition(TenantId(0));
            (partition.streams, partition.prefetching)
        }

        /// Blocks read ahead: used, wasted.
        fn judged(&self) -> (u64, u64) {
            let volume = self.volumes.cache.volume(VOLUME);
            (volume.prefetch_used, volume.prefetch_wasted)
        }

        /// Three reads that make a stream, from `offset` on; all read-ahead stays in the device.
        fn stream(&mut self, offset: u64, len: u64) {
            for at in 0..3 {
                self.read(at, offset + at * len, len);
                self.complete(0, Ok(()));
                assert_eq!(self.answer(at), Some(0));
            }
        }
    }

    #[test]
    fn windows_double_and_the_next_is_on_its_way_while_one_is_used() {
        let mut rig = Rig::new();
        let (mut ahead, mut waits) = (Vec::new(), Vec::new());
        let blocks = 256;
        for block in 0..blocks {
            let before = rig.device.len();
            rig.read(block, block * BLOCK, BLOCK);
            let fresh = rig.places().split_off(before);
            ahead.extend(fresh.into_iter().filter(|&(offset, _)| offset > block * BLOCK));
            // The device is as slow as possible: it completes requests only until the client is answered.
            while rig.answer(block).is_none() {
                waits.push(block);
                rig.complete(0, Ok(()));
            }
        }
        let sizes: Vec<_> = ahead.iter().map(|(_, len)| len / BLOCK).collect();
        assert_eq!(sizes[..5], [3, 4, 7, 11, 18], "the run, each time that the reader enters a window");
        assert!(sizes[6..].iter().all(|&blocks| blocks * BLOCK == MOST), "{sizes:?}");
        assert!(ahead.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0), "no gap, nothing twice: {ahead:?}");
        assert_eq!(waits.len(), 3 + ahead.len() - 1, "once for each window");
        let stats = &rig.volumes.volume(VOLUME).counters;
        assert_eq!((stats.miss_blocks, stats.prefetched_blocks, stats.hit_blocks), (3, blocks - 3, 0));
        rig.complete_all();
        // After its first use, a block that was read ahead is a hit.
        rig.read(0, 5 * BLOCK, BLOCK);
        assert_eq!((rig.volumes.volume(VOLUME).counters.hit_blocks, rig.judged()), (1, (blocks - 3, 0)));
    }

    #[test]
    fn a_demanded_block_is_answered_before_what_is_read_ahead_of_it() {
        let mut rig = Rig::new();
        for at in 0..3 {
            rig.read(at, at * BLOCK, BLOCK);
        }
        assert_eq!(rig.places(), [(0, BLOCK), (BLOCK, BLOCK), (2 * BLOCK, BLOCK), (3 * BLOCK, 3 * BLOCK)]);
        (0..3).for_each(|_| rig.complete(0, Ok(())));
        assert_eq!((rig.answer(2), rig.places()), (Some(0), vec![(3 * BLOCK, 3 * BLOCK)]));
        // A read of a block in flight waits for that request: the block is read once.
        rig.read(3, 4 * BLOCK, BLOCK);
        assert_eq!((rig.answer(3), rig.device.len()), (None, 1));
        rig.complete(0, Ok(()));
        assert_eq!((rig.answer(3), rig.judged()), (Some(0), (1, 0)));
    }

    #[test]
    fn large_reads_are_begun_whole_before_anything_beyond_them() {
        let mut rig = Rig::new();
        rig.stream(0, PIECE);
        assert_eq!(rig.places(), [(3 * PIECE, MOST)]);
        rig.complete_all();
        // With simple replies, one piece is in progress at a time.
        rig.read(9, 3 * PIECE, 3 * PIECE);
        assert!(rig.places().iter().all(|&(offset, _)| offset < 4 * PIECE));
        rig.complete_all();
        assert_eq!((rig.answer(9), rig.ahead()), (Some(0), (1, 0)));
        assert!(rig.volumes.cache.lookup(VOLUME, 6 * PIECE / BLOCK).is_some());
    }

    #[test]
    fn large_reads_in_a_row_are_left_to_themselves() {
        let mut rig = Rig::new();
        (0..6).for_each(|at| rig.read(at, at * MOST, MOST));
        assert_eq!((rig.ahead(), rig.device.len()), ((0, 0), 6));
        rig.complete_all();
        rig.read(6, 6 * MOST, MOST);
        assert_eq!(rig.places(), [(6 * MOST, MOST), (7 * MOST, MOST)], "one at a time it is worth it");
    }

    #[test]
    fn random_reads_read_nothing_ahead() {
        let mut rig = Rig::new();
        for at in 0..500 {
            rig.read(at, at * 769 % 2048 * BLOCK, BLOCK);
            rig.complete_all();
        }
        assert_eq!((rig.ahead(), rig.volumes.volume(VOLUME).counters.prefetched_blocks), ((0, 0), 0));
    }

    #[test]
    fn neither_holes_nor_what_is_cached_or_on_its_way_nor_past_the_end() {
        let size = 4 * MIB + 512;
        let from = 4 * MIB - 20 * BLOCK;
        let mut rig = Rig::with(128, |spec| {
            spec.size = size;
            spec.holes = vec![(from + 14 * BLOCK, from + 16 * BLOCK)];
        });
        rig.write(90, 0, from + 13 * BLOCK, BLOCK, 7);
        rig.read(91, from + 18 * BLOCK, BLOCK);
        for at in 0..3 {
            rig.read(at, from + at * 4 * BLOCK, 4 * BLOCK);
        }
        let places = rig.places().split_off(4);
        let block = |at: u64, blocks: u64| (from + at * BLOCK, blocks * BLOCK);
        assert_eq!(places, [block(12, 1), block(16, 2), block(19, 2)]);
    }

    #[test]
    fn all_streams_together_get_a_quarter_of_the_partition() {
        let mut rig = Rig::new();
        rig.event(|volumes| volumes.set_prefetch(Some(64 * MIB)));
        let quarter = rig.volumes.cache.partition(TenantId(0)).target / 4;
        let len = 16 * KIB;
        let most = (3 * len / BLOCK) as u32;
        let mut before = 0;
        for of in 0..4 {
            (0..3).for_each(|at| rig.read(10 * of + at, of * MIB + at * len, len));
            let (streams, frames) = rig.ahead();
            assert_eq!((streams, frames - before), (of as u32 + 1, most.min(quarter / streams / 2)));
            before = frames;
        }
        rig.complete_all();
        for of in 4..8 {
            (0..3).for_each(|at| rig.read(10 * of + at, of * MIB + at * len, len));
            rig.complete_all();
        }
        // The streams are read further, one after the other: never is more than that ahead.
        for round in 0..40 {
            for of in 0..8 {
                rig.read(10 * of + 3, of * MIB + 3 * len + round * 2 * BLOCK, 2 * BLOCK);
                rig.complete_all();
                let partition = rig.volumes.cache.partition(TenantId(0));
                assert!(partition.unread <= u64::from(quarter) * BLOCK, "{} bytes ahead", partition.unread);
            }
        }
        let (used, wasted) = rig.judged();
        assert!(used > 8 * 60 && wasted == 0, "all of it is kept until it is read: {used}, {wasted}");
    }

    #[test]
    fn four_reads_of_a_stream_get_up_to_half_of_the_partition() {
        let mut rig = Rig::new();
        rig.event(|volumes| volumes.set_prefetch(Some(64 * MIB)));
        let quarter = u64::from(rig.volumes.cache.partition(TenantId(0)).target / 4) * BLOCK;
        let mut largest = |base: u64, len: u64| {
            let ahead = |at| {
                rig.read(at, base + at * len, len);
                rig.complete_all();
                rig.volumes.cache.partition(TenantId(0)).unread
            };
            (0..3 * MIB / len).map(ahead).max().unwrap()
        };
        let [small, large] = [largest(0, 8 * BLOCK), largest(4 * MIB, quarter / 2 / BLOCK * BLOCK)];
        assert!(small <= quarter && large > quarter && large <= 2 * quarter, "{small} and {large} of {quarter} bytes");
    }

    #[test]
    fn who_waits_for_frames_gets_those_of_what_is_not_in_the_device_yet() {
        let mut rig = Rig::with(1, |_| {});
        rig.event(|volumes| volumes.set_prefetch(Some(MIB)));
        (0..3).for_each(|at| rig.read(at, at * PIECE, PIECE));
        assert!(rig.ahead().1 > 100);
        // As much dirty data as is allowed. The partition has room for it and for the three pieces being read, but for
        // no more.
        let pieces = u64::from(rig.volumes.cache.partition(TenantId(0)).target / 4 * 3 / 64);
        for at in 0..pieces {
            rig.write(10 + at, 0, 4 * MIB + at * PIECE, PIECE, 7);
            assert_eq!(rig.answer(10 + at), Some(0), "no writer waits for what is read ahead");
        }
        assert_eq!(rig.ahead(), (1, 0), "dropped");
        rig.complete_all();
        assert!((0..3).all(|cookie| rig.answer(cookie) == Some(0)));
        assert_eq!((rig.judged(), rig.content(3 * PIECE)), ((0, 0), 1));
    }

    /// A read of a stream may be stalled until the stream has lost its entry in the table.
    #[test]
    fn a_read_that_has_lost_its_place_reads_nothing_ahead() {
        let mut rig = Rig::new();
        let (late, len) = (ConnId(1), 16 * KIB);
        rig.set_smallest(TenantId(0));
        rig.above.stalled_readers.push(late);
        let stalled = |rig: &mut Rig| !rig.volumes.client(late).stalled.is_empty();
        let mut end = 0;
        while !stalled(&mut rig) {
            rig.ask_as(late, 1000 + end, command::READ, 0, end, len);
            rig.finish_reads();
            end += len;
        }
        assert!(end > 3 * len, "it is a stream");
        // Sixteen other streams: together with the first, one more than the table holds.
        for of in 0..16 {
            (0..3).for_each(|at| rig.read(10 * of + at, 4 * MIB + of * 128 * KIB + at * BLOCK, BLOCK));
            rig.finish_reads();
        }
        assert!(stalled(&mut rig), "it waits still");
        let before = rig.ahead();
        rig.above.stalled_readers.clear();
        rig.send(late);
        rig.send(late);
        // What was read ahead for it may have been evicted.
        let own = (end - len)..end;
        assert!(rig.places().iter().all(|&(at, len)| own.contains(&at) && at + len <= own.end));
        rig.complete_all();
        assert_eq!((rig.answer(1000 + end - len), rig.ahead()), (Some(0), before));
    }

    /// A stream with a window that is still queued.
    fn queued() -> Rig {
        let mut rig = Rig::with(1, |_| {});
        (0..3).for_each(|at| rig.read(at, at * BLOCK, BLOCK));
        assert_eq!(rig.ahead(), (1, 3));
        rig
    }

    #[test]
    fn a_stream_that_ends_costs_nothing_any_more() {
        let mut rig = queued();
        rig.close(ConnId(0));
        assert_eq!((rig.ahead(), rig.volumes.route.disk.waiting()), ((0, 0), 2), "its client is gone");

        let mut rig = queued();
        rig.command(|volumes| volumes.close_volume(1, VOLUME, true));
        assert_eq!((rig.ahead(), rig.volumes.route.disk.waiting()), ((0, 0), 2), "its volume closes");

        let mut rig = queued();
        rig.event(|volumes| volumes.set_prefetch(Some(0)));
        assert_eq!((rig.ahead(), rig.volumes.route.disk.waiting()), ((0, 0), 2), "it is switched off");
        (3..9).for_each(|at| rig.read(at, at * BLOCK, BLOCK));
        assert_eq!(rig.ahead(), (0, 0));

        let mut rig = queued();
        rig.wait(stream::IDLE_NS - 1);
        assert_eq!(rig.ahead(), (1, 3));
        rig.wait(1);
        assert_eq!((rig.ahead(), rig.volumes.route.disk.waiting()), ((0, 0), 2), "nobody has read it for long");
        rig.complete_all();
        rig.read(3, 3 * BLOCK, BLOCK);
        assert_eq!(rig.ahead(), (1, 4), "it is read again");
    }

    #[test]
    fn what_somebody_waits_for_is_not_dropped() {
        let mut rig = queued();
        rig.ask_as(ConnId(1), 9, command::READ, 0, 5 * BLOCK, BLOCK);
        rig.close(ConnId(0));
        assert_eq!(rig.ahead(), (0, 3));
        rig.complete_all();
        assert_eq!(rig.ahead(), (0, 0));
    }

    #[test]
    fn a_failure_ahead_is_not_the_readers() {
        let mut rig = Rig::new();
        rig.stream(0, BLOCK);
        rig.read(3, 4 * BLOCK, BLOCK);
        rig.write(4, 0, 5 * BLOCK, BLOCK, 7);
        rig.complete(0, Err(Errno::Io));
        let wanted: Vec<_> = [4, 5].map(|block| (block * BLOCK, BLOCK)).to_vec();
        assert_eq!((rig.answer(3), rig.places(), rig.ahead()), (None, wanted, (1, 0)));
        rig.complete_all();
        assert_eq!((rig.answer(3), rig.answer(4), rig.content(5 * BLOCK)), (Some(0), Some(0), 7));
        assert_eq!(rig.content(3 * BLOCK), 1);
    }

    #[test]
    fn what_is_evicted_or_overwritten_unread_is_wasted() {
        let mut rig = Rig::new();
        rig.stream(0, BLOCK);
        rig.complete_all();
        rig.write(3, 0, 3 * BLOCK, BLOCK, 7);
        assert_eq!(rig.judged(), (0, 1));
        rig.read(4, 4 * BLOCK, BLOCK);
        rig.complete_all();
        assert_eq!(rig.judged(), (1, 1));
        let read_ahead = rig.volumes.volume(VOLUME).counters.device_read_bytes / BLOCK - 3;
        // Other blocks are read and evicted.
        for at in 0..2048 {
            rig.read(at, (2047 - at) * BLOCK, BLOCK);
            rig.complete_all();
        }
        let (used, wasted) = rig.judged();
        assert!(wasted >= 1 && used + wasted == read_ahead, "{used} + {wasted} of {read_ahead}");
    }

    #[test]
    fn nothing_is_read_ahead_into_a_range_that_is_being_zeroed() {
        let mut rig = Rig::new();
        rig.ask(9, command::WRITE_ZEROES, 0, MIB, MIB);
        let at = (0..rig.device.len()).find(|&at| rig.io(at).op == Op::Zero).unwrap();
        (0..3).for_each(|at| rig.read(at, MIB - (3 - at) * BLOCK, BLOCK));
        assert_eq!((rig.ahead(), rig.device.len()), ((0, 0), 4));
        rig.complete(at, Ok(()));
        rig.complete_all();
        assert_eq!((rig.content(MIB), rig.content(MIB + BLOCK)), (0, 0));
    }
}
