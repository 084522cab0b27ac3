//! When blocks are written to the device, and the completion of device requests.
//!
//! The oldest dirty blocks of a volume are written while one of these holds:
//! - a flush waits for dirty data;
//! - more than half the partition is dirty and not yet being written, or the partition is above its target;
//! - pieces of the tenant wait for frames, or frames retire because the memory budget shrinks;
//! - the oldest block is 5 s old by its tenant's clock (`disk/own.rs`);
//! - the oldest block is 3.75 s old and the pace asks for a batch (`pace.rs`): most blocks are written for this reason.
//!
//! Full requests of sequential writes to another server are written at once (`behind.rs`).
//!
//! Durable writes (`write.rs`) and range operations (`range.rs`) start write-backs of their own.

use crate::cache::{Reach, Wanted};
use crate::disk::durability::is_failed_flush;
use crate::disk::{Op, Purpose, Segment};
use crate::errno::Errno;
use crate::ids::{BlockId, IoId, TenantId, VolumeId};
use crate::units::{MILLISECOND, Nanos, SECOND, SECTOR};
use crate::volume::Volumes;
use crate::volume::request::Prospect;

/// Write-backs of one volume in flight: enough to keep any device busy, few enough to leave room for reads in its
/// queue.
pub(super) const WRITEBACKS_MAX: u32 = 64;

/// Eighths of the age limit. Before the first, no block is written for its age alone: data that is soon overwritten or
/// trimmed never reaches the disk, and a tenant that writes little visits it once. The second is the mean age at which
/// the pace writes the oldest blocks.
const REST_EIGHTHS: u64 = 6;
const SPREAD_EIGHTHS: u64 = 7;

/// Units of work of a block that is given to the device, or completed by it: its lists, its ledger and its frame.
const WRITE_UNITS: u32 = 2;
/// Blocks of a device request whose completion is included in the charge of the client's request.
const PARTS_INCLUDED: usize = 8;

/// A request writes at most a quarter of the partition to a disk: otherwise a sequential writer in a small partition
/// has one request in the device at a time, and loses a revolution for each.
const WRITES_AT_ONCE: u32 = 4;

/// Time from a failed write-back to its retry in the background.
const RETRY_NS: u64 = SECOND;

impl Volumes {
    /// Puts all volumes of a tenant on the agenda.
    pub(crate) fn poke_tenant(&mut self, tenant: TenantId) {
        self.poke_tenants(&[tenant]);
    }

    /// Puts all volumes of these tenants, in ascending order, on the agenda.
    pub(crate) fn poke_tenants(&mut self, tenants: &[TenantId]) {
        for volume in (0..self.table.past()).map(VolumeId) {
            if self.table.contains(volume) && tenants.binary_search(&self.tenant_of(volume)).is_ok() {
                self.poke(volume);
            }
        }
    }

    /// Continues the work of a volume: write-back, flushes, range operations, `clear`, streams, closing.
    pub(crate) fn tend(&mut self, volume: VolumeId) {
        let Some(state) = self.table.get_mut(volume) else { return };
        state.poked = false;
        self.drop_sent(volume);
        self.write_back(volume);
        self.write_behind(volume);
        self.flush_on(volume);
        self.ranges_on(volume);
        self.clear_on(volume);
        self.reclaim_on(volume);
        self.streams_on(volume);
        self.change_on(volume);
    }

    fn write_back(&mut self, volume: VolumeId) {
        let mut postponed = 0;
        let (own, dirty, spread_ns) = (self.virtual_time(volume), self.cache.dirty_blocks(volume), self.spread_ns());
        self.volume_mut(volume).pace.pass(own, dirty, spread_ns);
        while self.volume(volume).writebacks < WRITEBACKS_MAX {
            let Some(id) = self.cache.oldest_dirty(volume) else { return };
            let Some(can_wait) = self.due(own, volume) else { break };
            if self.work.is_spent() {
                // The rest follows in a later quantum of the tenant.
                self.poke(volume);
                break;
            }
            // A failed block is not retried for a while, unless a flush waits. Other blocks are written meanwhile.
            if self.cache.block(id).is_failing() && self.now < self.volume(volume).retry_at && !self.is_flushing(volume)
            {
                if postponed >= self.cache.volume(volume).failing {
                    break;
                }
                postponed += 1;
                self.cache.postpone(volume);
                continue;
            }
            self.write_out(id, false, can_wait);
        }
        if let Some(age_ms) = self.cache.oldest_dirt_ms(own, volume) {
            let age_ns = u64::from(age_ms) * MILLISECOND;
            let paced = self.volume(volume).pace.due_in(spread_ns);
            let left = paced.max(self.rest_ns().saturating_sub(age_ns));
            let left = left.min(self.config.dirty_age_max_ns.saturating_sub(age_ns));
            let left = self.route.disk.own_time_lasts(self.tenant_of(volume), left);
            let retry = if self.cache.volume(volume).failing > 0 { self.volume(volume).retry_at } else { 0 };
            // With all write-backs in flight, a completion continues here; otherwise the timer does.
            if self.volume(volume).writebacks < WRITEBACKS_MAX {
                self.poke_at(volume, (self.now + left.max(MILLISECOND)).max(retry));
            }
        }
    }

    /// The time on the clock by which a volume's dirty data ages: `disk/own.rs`.
    pub(crate) fn virtual_time(&mut self, volume: VolumeId) -> Nanos {
        self.route.disk.virtual_time(self.now, self.tenant_of(volume))
    }

    /// No block is written for its age alone before it is this old.
    fn rest_ns(&self) -> Nanos {
        self.config.dirty_age_max_ns / 8 * REST_EIGHTHS
    }

    /// The pace would write all dirty data within this time.
    fn spread_ns(&self) -> Nanos {
        self.config.dirty_age_max_ns / 8 * SPREAD_EIGHTHS
    }

    /// Whether a flush waits for dirty blocks that are not yet given to the device.
    fn is_flushing(&self, volume: VolumeId) -> bool {
        let ledger = &self.cache.volume(volume).ledger;
        let wanted = self.volume(volume).flushes.wanted_epoch();
        let wanted = wanted.map(|epoch| if planted!(FlushWaitsForLaterWrites) { ledger.current() } else { epoch });
        wanted.is_some_and(|epoch| ledger.unissued(epoch) > 0)
    }

    /// Whether the oldest dirty block of a volume is to be written now, and then whether the disk may leave it for a
    /// later slice; `own` is the time on its tenant's clock.
    fn due(&self, own: Nanos, volume: VolumeId) -> Option<bool> {
        if self.is_flushing(volume) {
            return Some(false);
        }
        let cached = self.cache.volume(volume);
        let waiting = &self.waiting[cached.tenant];
        let partition = self.cache.partition(cached.tenant);
        let age_ns = u64::from(self.cache.oldest_dirt_ms(own, volume).unwrap_or(0)) * MILLISECOND;
        let presses = partition.too_dirty()
            || partition.used > partition.target
            || !waiting.reads.is_empty()
            || !waiting.writes.is_empty()
            || self.cache.pool().retiring() > 0
            || age_ns >= self.config.dirty_age_max_ns;
        let is_paced = || age_ns >= self.rest_ns() && self.volume(volume).pace.is_due();
        (presses || is_paced()).then_some(!presses)
    }

    /// A flush or a durable write waits for the write-backs of a volume: those still queued are promoted. They are
    /// searched once, however many flushes arrive meanwhile.
    pub(crate) fn promote_writes(&mut self, volume: VolumeId) {
        let state = self.volume_mut(volume);
        if state.writebacks > 0 && !std::mem::replace(&mut state.hurried, true) {
            self.route.promote_writes(self.tenant_of(volume), volume);
        }
    }

    /// Writes a block and its dirty neighbours to the device. If it `can_wait`, the disk may leave it for a later
    /// slice.
    pub(crate) fn write_out(&mut self, id: BlockId, durable: bool, can_wait: bool) {
        let volume = self.cache.block(id).volume;
        let tenant = self.tenant_of(volume);
        let urgent = durable || self.volume(volume).flushes.covers(self.cache.block(id).dirty_epoch);
        let mut parts = std::mem::take(&mut self.parts);
        let own = self.virtual_time(volume);
        let age_ms = u64::from(self.cache.age_ms(own, id));
        let (route, waiters, now) = (&mut self.route, &mut self.waiters, self.now);
        let (mut begun, mut all) = (0, Wanted::default());
        let partition = self.cache.partition(tenant);
        // While one request is written, another one is to be in the device, and as much is to arrive. A partition that
        // shrinks writes what it still has.
        let frames = partition.target.max(partition.used);
        let part = if durable || route.is_elsewhere(volume) { u64::MAX } else { u64::from(frames / WRITES_AT_ONCE) };
        let blocks_max = route.disk.request_blocks_max(tenant, Op::Write { durable }).min(part);
        // Blocks that are being written cannot be evicted, so not too much of the partition is written at once.
        let gap_max = if partition.writing < partition.target / 8 { route.gap_blocks_max(volume) } else { 0 };
        let reach = Reach { blocks_max, gap_max };
        let mut blocks = 0;
        self.cache.begin_write(own, id, durable, reach, &mut parts, |cache, parts, wanted| {
            blocks += parts.len() as u32;
            let io = route.prepare(Op::Write { durable }, volume, tenant, Purpose::WriteBack);
            route.slot_mut(io).io.offset = cache.bytes_of(parts).0;
            for &(id, sectors) in parts {
                let crate::cache::Block { frame, write_queue, .. } = *cache.block(id);
                if durable {
                    waiters.expect(write_queue, Prospect::Covered);
                }
                cache.retain(frame);
                let (first, past) = (sectors.trailing_zeros(), 8 - sectors.leading_zeros());
                route.add_segment(io, Segment::new(frame, u64::from(first) * SECTOR, u64::from(past) * SECTOR));
                route.slot_mut(io).parts.push((id, sectors));
            }
            (route.slot_mut(io).wanted, route.slot_mut(io).can_wait) = (wanted.blocks, can_wait);
            route.submit(now, io, urgent, cache.durability.failures(volume));
            begun += 1;
            all.blocks += wanted.blocks;
            all.ages_ms += wanted.ages_ms;
        });
        self.parts = parts;
        self.charge(tenant, WRITE_UNITS * blocks);
        let (spread_ns, is_for_age) = (self.spread_ns(), age_ms * MILLISECOND >= self.rest_ns());
        let state = self.volume_mut(volume);
        state.pace.wrote(all.blocks, spread_ns);
        if is_for_age && !durable {
            state.pace.took(all, age_ms);
        }
        state.writebacks += begun;
        state.hurried &= urgent || begun == 0;
        state.device_requests += begun;
    }

    /// A device request is complete.
    pub(crate) fn io_done(&mut self, io: IoId, since: Nanos, result: Result<(), Errno>) {
        let result = if planted!(ErrorAcknowledged) { Ok(()) } else { result };
        if is_failed_flush(self.route.slot(io).io.op, result)
            && let Some(volume) = self.route.asked_of(io)
        {
            // At once: another flush may succeed before the last part of a transfer has ended.
            self.device_flush_failed(volume);
        }
        let Some((io, served, result)) = self.route.done(self.now, since, io, result) else { return };
        if result.is_ok() && self.route.is_void(io) {
            return self.void(io);
        }
        let slot = self.route.slot_mut(io);
        let (volume, purpose, op, bytes) = (slot.io.volume, slot.purpose, slot.io.op, slot.io.len);
        let (tenant, wanted) = (slot.tenant, slot.wanted as usize);
        let trusted = self.cache.durability.trusts(volume, slot.failures);
        let parts = std::mem::take(&mut slot.parts);
        if result.is_ok() {
            let waited = op == Op::Write { durable: true } || self.volume(volume).flushes.wanted_epoch().is_some();
            let blocks = if purpose == Purpose::WriteBack { wanted } else { parts.len() };
            self.note_cost(tenant, (op, purpose, waited), served.service_ns, blocks);
        }
        let state = self.volume_mut(volume);
        state.device_requests -= 1;
        let counters = &mut state.counters;
        if !matches!(purpose, Purpose::Prefetch(_)) {
            // No client waits for read-ahead, or only for part of it.
            counters.thread_delay_ns += served.thread_ns;
            counters.queue_delay_ns += served.queued_ns;
            counters.slice_delay_ns += served.slice_ns;
            counters.disk_delay_ns += served.device_ns;
        }
        if purpose == Purpose::Fill {
            counters.fills.requests += 1;
            counters.fills.queued_ns += served.queued_ns;
            counters.fills.slice_ns += served.slice_ns;
            counters.fills.device_ns += served.device_ns;
            if served.beside_writes {
                let beside = &mut counters.fills.beside_writes;
                beside.requests += 1;
                beside.device_ns += served.device_ns;
                beside.service_ns += served.service_ns;
            }
        }
        counters.device_errors += u64::from(result.is_err());
        match op {
            Op::Read => counters.device_read_bytes += bytes,
            Op::Write { .. } => counters.device_write_bytes += bytes,
            Op::Flush | Op::Zero | Op::Punch => {}
        }
        if parts.len() > PARTS_INCLUDED {
            self.charge(tenant, WRITE_UNITS * parts.len() as u32);
        }
        match purpose {
            Purpose::Fill => self.fill_done(&parts, result.is_ok()),
            Purpose::Prefetch(_) => self.prefetch_done(volume, &parts, result.is_ok()),
            Purpose::WriteBack => self.written(io, &parts, result, trusted),
            Purpose::Sync { .. } => self.sync_done(volume, result),
            Purpose::Range(ticket) => self.range_done(volume, ticket, bytes, result, trusted),
            Purpose::Reclaim(id) => {
                // The stores delete content that is home. If the disk may have dropped it, it is copied again.
                let is_doubted = matches!(op, Op::Write { .. }) && !trusted && !planted!(InFlightWriteTrusted);
                self.copied(volume, id, op, if is_doubted { result.and(Err(Errno::Io)) } else { result });
            }
            Purpose::Log(..) => unreachable!("a record is no transfer of a volume"),
        }
        self.route.slot_mut(io).parts = parts;
        self.route.forget(io);
        self.poke(volume);
    }

    fn written(&mut self, io: IoId, parts: &[(BlockId, u8)], result: Result<(), Errno>, trusted: bool) {
        let slot = self.route.slot(io);
        let volume = slot.io.volume;
        let durable = slot.io.op == Op::Write { durable: true };
        let distrusted = result.is_ok() && !trusted && !planted!(InFlightWriteTrusted);
        for segment in &slot.io.segments {
            self.cache.release(segment.frame);
        }
        self.volume_mut(volume).writebacks -= 1;
        let retry_at = self.now + RETRY_NS;
        let own = self.virtual_time(self.route.slot(io).io.volume);
        for &(id, sectors) in parts {
            let block = self.cache.block(id);
            let (writing_epoch, given_up) = (block.writing_epoch, block.is_given_up());
            let result = if distrusted {
                self.waiters.expect(self.cache.block(id).write_queue, Prospect::Open);
                self.cache.distrust(own, id, sectors)
            } else {
                self.cache.block_mut(id).distrusted = 0;
                result
            };
            if let Err(why) = result {
                let state = self.volume_mut(volume);
                (state.retry_at, state.write_error) = (retry_at, why);
                if !given_up {
                    state.flushes.write_failed(writing_epoch, why);
                }
            }
            if let Some(good) = self.cache.end_write(own, id, sectors, result.is_ok(), durable) {
                self.ended.push((id, good, given_up));
            }
        }
        if distrusted {
            self.cover_redirtied(volume);
        }
        if result.is_err() {
            self.forget_if_fenced(volume);
        }
        // All pieces that this device write covers are done before another one begins: that may include a neighbour,
        // whose pieces would wait for it, too.
        let mut ended = std::mem::take(&mut self.ended);
        for (id, good, _) in &mut ended {
            *good = self.settle(*id, *good);
        }
        // Only now, so that blocks that must be written again form one device request again.
        for (id, again, given_up) in ended.drain(..) {
            if again {
                self.write_again(id);
            }
            let block = self.cache.block(id);
            if given_up && block.valid == 0 && block.quiet() {
                self.cache.drop_block(id);
            }
        }
        self.ended = ended;
    }
}

#[cfg(test)]
mod tests {
    use crate::config::FRAME_BYTES;
    use crate::disk::Op;
    use crate::errno::Errno;
    use crate::ids::{ConnId, TenantId};
    use crate::nbd::wire::command;
    use crate::spec::{CacheSpec, TenantSpec};
    use crate::units::{BLOCK, SECOND};
    use crate::volume::Receive;
    use crate::volume::rig::Rig;

    const WRITE: Op = Op::Write { durable: false };

    /// Blocks 0 to 63 are cached, and the blocks `blocks` are dirty.
    fn dirty(blocks: &[u64]) -> Rig {
        let mut rig = Rig::new();
        rig.ask(0, command::READ, 0, 0, 64 * BLOCK);
        rig.complete_all();
        for &block in blocks {
            rig.write(1 + block, 0, block * BLOCK, BLOCK, 7);
        }
        rig
    }

    /// First block and end (exclusive) of each write in the device.
    fn writes(rig: &Rig) -> Vec<(u64, u64)> {
        let write = |at: usize| {
            assert_eq!(rig.ops()[at], WRITE);
            (rig.io(at).offset / BLOCK, (rig.io(at).offset + rig.io(at).len) / BLOCK)
        };
        (0..rig.device.len()).map(write).collect()
    }

    #[test]
    fn what_is_clean_between_joins_what_is_dirty_and_nothing_else_is_written() {
        // Switch cost 12 ms, 100 MB/s: 18 blocks pass in a sixteenth of it.
        let mut rig = dirty(&[20, 10, 21, 39, 59]);
        rig.wait(5 * SECOND);
        assert_eq!(writes(&rig), [(10, 40), (59, 60)], "19 clean blocks are too many");
        rig.complete_all();
        let dirty = |block: u64| [10, 20, 21, 39, 59].contains(&block);
        assert!((0..64).all(|block| rig.medium[(block * BLOCK) as usize] == if dirty(block) { 7 } else { 1 }));
        assert_eq!([rig.content(11 * BLOCK), rig.content(20 * BLOCK)], [1, 7]);
    }

    #[test]
    fn what_is_not_known_joins_nothing() {
        let mut rig = Rig::new();
        for block in [0, 2] {
            rig.write(block, 0, block * BLOCK, BLOCK, 7);
        }
        rig.wait(5 * SECOND);
        assert_eq!(writes(&rig), [(0, 1), (2, 3)]);
    }

    #[test]
    fn what_is_written_again_may_be_written_meanwhile_and_fails_with_the_others() {
        let mut rig = dirty(&[10, 12]);
        rig.wait(5 * SECOND);
        assert_eq!(writes(&rig), [(10, 13)]);
        rig.write(100, 0, 11 * BLOCK, BLOCK, 9);
        rig.complete(0, Err(Errno::Io));
        rig.ask(101, command::FLUSH, 0, 0, 0);
        while rig.answer(101).is_none() {
            rig.complete(0, Ok(()));
        }
        let at = |block: u64| rig.medium[(block * BLOCK) as usize];
        assert_eq!([9, 10, 11, 12, 13].map(at), [1, 7, 9, 7, 1]);
    }

    #[test]
    fn a_small_partition_has_several_writes_of_a_stream_in_the_device() {
        const LEN: u64 = 64 * BLOCK;
        let mut rig = Rig::new();
        let asked = |frames: u64| TenantSpec { cache: CacheSpec::Asked(frames * FRAME_BYTES), ..TenantSpec::default() };
        for frames in [136, 200, 335, 352, 500] {
            rig.complete_all();
            rig.set_tenant(TenantId(0), asked(frames));
            let mut next = 0;
            for _ in 0..30 {
                // The client sends what is accepted.
                while rig.receive(ConnId(0)) == Receive::Header {
                    rig.ask(next, command::WRITE, 0, next % 8 * LEN, LEN);
                    rig.write_on(ConnId(0), 7);
                    next += 1;
                }
                assert!(rig.device.len() > 1, "{frames} frames, write {next}: {:?}", writes(&rig));
                rig.complete(0, Ok(()));
                rig.write_on(ConnId(0), 7);
            }
            rig.complete_all();
            rig.write_on(ConnId(0), 7);
        }
    }

    #[test]
    fn little_dirt_rests_and_goes_at_once_and_much_goes_evenly_and_before_it_is_old() {
        let mut rig = dirty(&[10, 60]);
        rig.wait(4 * SECOND);
        assert!(rig.device.is_empty());
        rig.wait(SECOND);
        assert_eq!(writes(&rig).len(), 2);

        let mut rig = Rig::new();
        let (mut most, mut oldest) = (0, 0);
        // One block every 10 ms for 20 s, no two of them adjacent.
        for step in 0..2000u64 {
            rig.write(step, 0, step * 37 % 1000 * 2 * BLOCK, BLOCK, 7);
            let before = rig.device.len();
            rig.wait(SECOND / 100);
            most = most.max(rig.device.len() - before);
            oldest = oldest.max(rig.volumes.cache.oldest_dirt_ms(rig.now, crate::volume::rig::VOLUME).unwrap_or(0));
            rig.finish_reads();
        }
        assert!((64..=65).contains(&most) && (4000..5000).contains(&oldest), "{most} {oldest}");
    }
}
