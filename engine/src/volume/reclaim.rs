//! Off-loaded content is brought home: read from where it is, and written to the base durably.
//!
//! ```text
//!   tend ─► next_to_reclaim ─► frames ─► read (Route: stores) ─► written to the base ─► came_home
//!                                                 └─ an error, or no frames: later
//! ```
//!
//! The copies have frames of their own from the partition of their tenant, and take no part in the cache: whatever is
//! written meanwhile goes to the stores and is newer, so a copy can at most be superfluous. They are device requests of
//! the tenant, and charged to it. While its clients have requests there is at most one at a time, and none above the
//! threshold, unless the volume is at its limit or a log is short of room.
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

/// Content on its way home.
#[derive(Default, Debug)]
pub(crate) struct Copying {
    reclaim: Option<Reclaim>,
    frames: Vec<FrameId>,
}

impl Volumes {
    /// Begins as many copies as there may be now.
    pub(super) fn reclaim_on(&mut self, volume: VolumeId) {
        if !self.route.is_offloading() || self.route.away_bytes(volume) == 0 {
            return;
        }
        let tenant = self.tenant_of(volume);
        while self.now >= self.volume(volume).reclaim_at && !self.work.is_spent() {
            let others = self.volume(volume).reclaims;
            let Some(reclaim) = self.route.next_to_reclaim(volume, tenant, others) else { break };
            if !self.begin_copy(volume, reclaim) {
                self.route.stays_away(reclaim);
                break;
            }
        }
        self.poke_at(volume, (self.now + PERIOD_NS).max(self.volume(volume).reclaim_at));
    }

    /// Begins a copy, unless its frames would be too many. Copies have a quarter of the partition at most.
    ///
    /// The partition may be full of blocks whose writes wait for room in the logs, which only a copy makes: so the
    /// first one may have frames of the tenant of the stores, which has no blocks of its own.
    fn begin_copy(&mut self, volume: VolumeId, reclaim: Reclaim) -> bool {
        let (tenant, blocks) = (self.tenant_of(volume), (reclaim.end - reclaim.start).div_ceil(BLOCK) as u32);
        let copying = self.volume(volume).reclaim_frames;
        let quarter = self.cache.partition(tenant).target / 4;
        let mut frames = std::mem::take(&mut self.frames_taken);
        frames.clear();
        let has_frames = (copying == 0 || copying + blocks <= quarter)
            && self.waiting[tenant].reads.is_empty()
            && self.cache.take_frames(tenant, blocks, &mut frames);
        let reserve = self.route.a_store().map(|store| self.tenant_of(store));
        let has_frames =
            has_frames || copying == 0 && reserve.is_some_and(|of| self.cache.take_frames(of, blocks, &mut frames));
        if has_frames {
            let state = self.volume_mut(volume);
            state.reclaims += 1;
            state.reclaim_frames += blocks;
            let id = self.copies.take();
            self.copies[id].reclaim = Some(reclaim);
            self.copies[id].frames.clear();
            self.copies[id].frames.extend_from_slice(&frames);
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
        let reclaim = self.copies[id].reclaim.expect("a copy in progress");
        let is_read = op == Op::Read;
        if is_read && result.is_ok() {
            let io = self.prepare_copy(volume, id, Op::Write { durable: !planted!(ReclaimNotDurable) });
            self.volume_mut(volume).device_requests += 1;
            return self.route.submit_home(self.now, io);
        }
        let is_good = result.is_ok();
        if is_read {
            self.route.stays_away(reclaim);
        } else {
            let tenant = self.tenant_of(volume);
            self.route.came_home(self.now, tenant, reclaim, is_good);
        }
        self.copies[id].reclaim = None;
        let frames = std::mem::take(&mut self.copies[id].frames);
        frames.iter().for_each(|&frame| self.cache.release(frame));
        let blocks = frames.len() as u32;
        self.copies[id].frames = frames;
        self.copies.give(id);
        let retry_at = self.now + RETRY_NS;
        let state = self.volume_mut(volume);
        state.reclaims -= 1;
        state.reclaim_frames -= blocks;
        if !is_good {
            state.reclaim_at = retry_at;
        }
    }
}
