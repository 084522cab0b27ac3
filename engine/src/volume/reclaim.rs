//! Off-loaded content is brought home: read from where it is, and written to the base durably.
//!
//! ```text
//!   tend ─► next_to_reclaim ─► frames ─► read (Route: stores) ─► waiting ─► written to the base durably ─► came_home
//!                                                 └─ an error, or no frames: later
//! ```
//!
//! The copies have frames of their own from the partition of their tenant, and take no part in the cache: whatever is
//! written meanwhile goes to the stores and is newer, so a copy can at most be superfluous. They are device requests of
//! the tenant, and charged to it. While its clients have requests at most one is written at a time, and none above the
//! threshold, unless the volume is above its limit or a log is short of room.
//!
//! Copies are read in batches, the next one when the last one is on its way to the base: the oldest content is
//! consecutive in a log, so a batch is read in sequence, in the time that one copy would take by itself. That matters
//! where the store's disk is busy.
//!
//! Source: Everest, section 3.2.2.

use super::Volumes;
use crate::disk::{Op, Purpose, Segment};
use crate::errno::Errno;
use crate::ids::{FrameId, IoId, VolumeId};
use crate::offload::Reclaim;
use crate::units::{BLOCK, MILLISECOND, Nanos, SECOND};

/// Period in which a volume with content in stores looks whether its disk has time.
const PERIOD_NS: Nanos = 10 * MILLISECOND;
/// Time before a copy that failed is tried again.
const RETRY_NS: Nanos = SECOND;

/// Blocks of a volume that are being read from stores at most, 1 MiB: enough for the streaming rate of a store's disk,
/// and a quarter of what a store of ours has for replies. With more, reads wait there in parts, and each costs a
/// revolution.
const READING_MAX: u32 = 256;

/// Content on its way home.
#[derive(Default, Debug)]
pub(crate) struct Copying {
    reclaim: Option<Reclaim>,
    frames: Vec<FrameId>,
}

impl Volumes {
    /// Continues the copies, and begins as many as there may be now.
    pub(super) fn reclaim_on(&mut self, volume: VolumeId) {
        let has_copies = self.volume(volume).reclaims > 0;
        if !self.route.is_offloading() || self.route.away_bytes(volume) == 0 && !has_copies {
            return;
        }
        let state = self.volume(volume);
        // Until then, blocks may wait for room in the logs that only copies make.
        let moving = state.reclaims - state.reclaim_waiting.len() as u32;
        let others = state.device_requests - moving;
        let ends = state.is_closing() && others == 0;
        let at_a_time = if ends { 0 } else { self.route.copies_at_a_time(volume, self.tenant_of(volume), others) };
        while self.volume(volume).reclaim_writing < at_a_time
            && let Some(id) = self.volume_mut(volume).reclaim_waiting.pop_front()
        {
            let io = self.prepare_copy(volume, id, Op::Write { durable: !planted!(ReclaimNotDurable) });
            let state = self.volume_mut(volume);
            state.device_requests += 1;
            state.reclaim_writing += 1;
            self.route.submit_home(self.now, io);
        }
        if ends {
            while let Some(id) = self.volume_mut(volume).reclaim_waiting.pop_front() {
                self.end_copy(volume, id, None);
            }
        }
        let may_begin = at_a_time > 0 && self.volume(volume).reclaim_waiting.is_empty();
        while may_begin && self.now >= self.volume(volume).reclaim_at && !self.work.is_spent() {
            let others = self.volume(volume).reclaims;
            let Some(reclaim) = self.route.next_to_reclaim(volume, others) else { break };
            if !self.begin_copy(volume, reclaim) {
                self.route.stays_away(reclaim);
                break;
            }
        }
        if !ends {
            self.poke_at(volume, (self.now + PERIOD_NS).max(self.volume(volume).reclaim_at));
        }
    }

    /// Begins a copy, unless its frames would be too many. Copies have a quarter of the partition at most.
    ///
    /// The partition may be full of blocks whose writes wait for room in the logs, which only a copy makes: so the
    /// first one may have frames of the tenant of the stores, which has no blocks of its own.
    fn begin_copy(&mut self, volume: VolumeId, reclaim: Reclaim) -> bool {
        let (tenant, blocks) = (self.tenant_of(volume), (reclaim.end - reclaim.start).div_ceil(BLOCK) as u32);
        let (copying, reading) = (self.volume(volume).reclaim_frames, self.volume(volume).reclaim_reading);
        if reading > 0 && reading + blocks > READING_MAX {
            return false;
        }
        let quarter = self.cache.partition(tenant).target / 4;
        let mut frames = std::mem::take(&mut self.frames_taken);
        frames.clear();
        let has_frames = (copying == 0 || copying + blocks <= quarter)
            && self.waiting[tenant].reads.is_empty()
            && self.take_frames(tenant, blocks, &mut frames);
        let reserve = self.route.a_store().map(|store| self.tenant_of(store));
        let has_frames =
            has_frames || copying == 0 && reserve.is_some_and(|of| self.take_frames(of, blocks, &mut frames));
        if has_frames {
            let state = self.volume_mut(volume);
            state.reclaims += 1;
            state.reclaim_frames += blocks;
            state.reclaim_reading += blocks;
            let id = self.copies.take();
            self.copies[id].reclaim = Some(reclaim);
            self.copies[id].frames.clear();
            self.copies[id].frames.extend_from_slice(&frames);
            self.route.read_next(reclaim);
            let io = self.prepare_copy(volume, id, Op::Read);
            self.submit(io, false);
        }
        self.frames_taken = frames;
        has_frames
    }

    fn prepare_copy(&mut self, volume: VolumeId, id: u32, op: Op) -> IoId {
        let tenant = self.tenant_of(volume);
        let Volumes { route, copies, .. } = self;
        let Copying { reclaim, frames } = &copies[id];
        let Reclaim { start, end, .. } = reclaim.expect("a copy in progress");
        let io = route.prepare(op, volume, tenant, Purpose::Reclaim(id));
        route.slot_mut(io).io.offset = start;
        for (&frame, at) in frames.iter().zip((start..end).step_by(BLOCK as usize)) {
            route.add_segment(io, Segment::new(frame, 0, (end - at).min(BLOCK)));
        }
        io
    }

    /// A copy was read, or written.
    pub(super) fn copied(&mut self, volume: VolumeId, id: u32, op: Op, result: Result<(), Errno>) {
        let blocks = self.copies[id].frames.len() as u32;
        let retry_at = self.now + RETRY_NS;
        let state = self.volume_mut(volume);
        if result.is_err() {
            state.reclaim_at = retry_at;
        }
        if op == Op::Read {
            state.reclaim_reading -= blocks;
            match result {
                Ok(()) => state.reclaim_waiting.push_back(id),
                Err(_) => self.end_copy(volume, id, None),
            }
        } else {
            state.reclaim_writing -= 1;
            self.end_copy(volume, id, Some(result.is_ok()));
        }
        self.poke(volume);
    }

    /// A copy is not needed any more: it was written to the base, successfully or not, or it never was.
    fn end_copy(&mut self, volume: VolumeId, id: u32, written: Option<bool>) {
        let reclaim = self.copies[id].reclaim.take().expect("a copy in progress");
        match written {
            Some(is_good) => {
                let tenant = self.tenant_of(volume);
                self.route.came_home(self.now, tenant, reclaim, is_good);
            }
            None => self.route.stays_away(reclaim),
        }
        let frames = std::mem::take(&mut self.copies[id].frames);
        frames.iter().for_each(|&frame| self.cache.release(frame));
        let blocks = frames.len() as u32;
        self.copies[id].frames = frames;
        self.copies.give(id);
        let state = self.volume_mut(volume);
        state.reclaims -= 1;
        state.reclaim_frames -= blocks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ConnId, TenantId, VolumeKey};
    use crate::nbd::wire::command;
    use crate::offload::{Initial, Map, Past, Recovered, STORE_BYTES_MIN, Settings, Setup, log_bytes};
    use crate::spec::{TenantSpec, UpstreamSpec, VolumeSpec};
    use crate::volume::rig::{Rig, VOLUME};

    const KEY: VolumeKey = VolumeKey(7);

    /// A copy of the first block of the volume is on its way to the base.
    fn copying() -> Rig {
        let mut rig = Rig::new();
        rig.event(|volumes| {
            let (tenant, mut frames) = (volumes.tenant_of(VOLUME), Vec::new());
            assert!(volumes.take_frames(tenant, 1, &mut frames));
            let id = volumes.copies.take();
            volumes.copies[id] = Copying { reclaim: Some(Reclaim::of(KEY, 0, BLOCK)), frames };
            let state = volumes.volume_mut(VOLUME);
            (state.reclaims, state.reclaim_frames, state.reclaim_writing) = (1, 1, 1);
            state.device_requests += 1;
            let io = volumes.prepare_copy(VOLUME, id, Op::Write { durable: true });
            volumes.route.submit_home(volumes.now, io);
        });
        rig
    }

    /// The disk may have dropped it: the stores must keep the content.
    #[test]
    fn a_copy_during_which_a_flush_failed_is_made_again() {
        let mut rig = copying();
        rig.complete(0, Ok(()));
        assert_eq!((rig.volumes.volume(VOLUME).reclaims, rig.volumes.volume(VOLUME).reclaim_at), (0, 0));
        let mut rig = copying();
        rig.ask(1, command::FLUSH, 0, 0, 0);
        assert_eq!(rig.ops(), [Op::Write { durable: true }, Op::Flush]);
        rig.complete(1, Err(Errno::Io));
        rig.complete(0, Ok(()));
        assert_eq!(rig.volumes.volume(VOLUME).reclaim_at, rig.now + RETRY_NS, "it was not trusted");
    }

    /// A flush that waits for stores never reaches the disk: that it fails says nothing about what the disk has.
    #[test]
    fn a_flush_that_waits_too_long_for_stores_loses_nothing() {
        let (volume, store, far) = (VolumeId(1), VolumeId(2), TenantId(1));
        let mut rig = Rig::new();
        rig.set_tenant(far, TenantSpec { is_remote: true, ..TenantSpec::default() });
        let size = STORE_BYTES_MIN;
        let upstream = UpstreamSpec::plain(size);
        rig.open_volume(VolumeSpec { upstream: Some(upstream), ..VolumeSpec::plain(store, far, size) });
        let setup = Setup {
            settings: Settings::DEFAULT,
            past: Past::default(),
            stores: vec![(store, Initial::Scanned(Box::new(Recovered::used(1, log_bytes(size).unwrap())), 0))],
            volumes: vec![KEY],
            map: Map::default(),
        };
        rig.event(|volumes| volumes.start_offload(setup)).expect("no off-load yet");
        let wait = |rig: &mut Rig| {
            for _ in 0..7 {
                rig.wait(10 * SECOND);
                rig.event(Volumes::heed_others);
            }
        };
        let spec = VolumeSpec::plain(volume, TenantId(0), 4 << 20);
        rig.open_volume(VolumeSpec { unflushed: true, offload: Some(KEY), ..spec });
        rig.attach(ConnId(2), volume);
        rig.ask_as(ConnId(2), 1, command::FLUSH, 0, 0, 0);
        assert_eq!((rig.ops(), rig.answer(1)), (Vec::new(), None), "they wait for the store");
        wait(&mut rig);
        assert_eq!(rig.answer(1), None, "the flush of the client begins when that of the start has failed");
        assert!(!rig.volumes.volume(volume).flushes.lost);
        wait(&mut rig);
        assert_eq!((rig.answer(1), rig.volumes.volume(volume).flushes.lost), (Some(Errno::Io as u32), false));
    }
}
