//! What two caches in a row exchange (`docs/design/tiers.md`): blocks that the upper one evicts, and the order of the
//! lower one.
//!
//! ```text
//!   upper   evicted ── of this session, whole, not too many at once ──► sent ─► its frame is free
//!   lower   demoted ─► evicted last │ … │ written back, the client has it ─► evicted first      sent ─► dropped
//! ```

use super::Cache;
use super::block::Source;
use crate::disk::durability::{Generation, is_later};
use crate::ids::{BlockId, FrameId, TenantId, VolumeId};
use crate::units::{BLOCK, SectorMask};

/// Frames of evicted blocks that may be on their way to servers: a part of the partition, at most 1 MiB. That keeps
/// 10 Gbit/s busy for a round trip of 0.8 ms.
const ON_WAY_PART: u32 = 16;
const ON_WAY_MAX: u32 = 256;

/// A session with a server that takes what the cache evicts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demoting {
    /// The generation in which it began. Content of earlier ones may be outdated: somebody else may have written the
    /// block between two sessions.
    pub(crate) since: Generation,
    /// The volume has so many whole blocks.
    pub(crate) blocks: u64,
}

/// A block that was evicted, and its content, to which it has a reference.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evicted {
    pub(crate) volume: VolumeId,
    pub(crate) number: u64,
    pub(crate) frame: FrameId,
}

impl Cache {
    /// From now on a session takes what is evicted of a volume, or none does.
    pub(crate) fn set_demoting(&mut self, volume: VolumeId, size: Option<u64>) {
        let begun = size.map(|size| Demoting { since: self.durability.advance(volume), blocks: size / BLOCK });
        self.volume_mut(volume).demoting = begun;
    }

    /// A block is evicted: its content goes to the server of the volume, if that takes it.
    pub(super) fn demote(&mut self, id: BlockId) {
        let block = self.block(id);
        let state = &self.volumes[block.volume];
        let Some(Demoting { since, blocks }) = state.demoting else { return };
        // What was written in part is of two sources, perhaps of two sessions.
        let is_whole = block.valid == SectorMask::MAX && (block.unsynced == 0 || block.unsynced == SectorMask::MAX);
        let is_of_session = !is_later(since, block.written_in) || planted!(EarlierSessionDemoted);
        let is_used = block.source != Source::Prefetch;
        if !is_whole || !is_of_session || !is_used || block.number >= blocks {
            return;
        }
        let (volume, number, frame, tenant) = (block.volume, block.number, block.frame, state.tenant);
        let partition = &mut self.partitions[tenant];
        if partition.demoting >= ON_WAY_MAX.min(partition.target / ON_WAY_PART) {
            self.volume_mut(volume).undemoted += 1;
            return;
        }
        partition.demoting += 1;
        self.volume_mut(volume).demoted += 1;
        self.pool.retain(frame);
        self.evicted.push(Evicted { volume, number, frame });
    }

    /// An evicted block is not on its way any more.
    pub(crate) fn demotion_done(&mut self, volume: VolumeId, frame: FrameId) {
        let state = self.volume_mut(volume);
        state.demoted -= 1;
        let tenant = state.tenant;
        self.partition_mut(tenant).demoting -= 1;
        self.release(frame);
    }

    /// A block without unsynced sectors has content of the server; `all`: all of it was read or written just now.
    pub(super) fn note_content(&mut self, id: BlockId, all: bool) {
        let Demoting { since, .. } = match self.volume(self.block(id).volume).demoting {
            Some(demoting) if self.block(id).unsynced == 0 => demoting,
            _ => return,
        };
        let now = self.durability.open(self.block(id).volume);
        self.block_mut(id).written_in = if all { now } else { since.wrapping_sub(1) };
    }

    /// A block that the client has and that is not needed for its durability is dropped.
    pub(crate) fn drop_sent(&mut self, volume: VolumeId, number: u64) {
        let Some(id) = self.lookup(volume, number) else { return };
        let block = self.block(id);
        let is_clean = !block.unwritten() || planted!(SentDirtDropped) && block.writing == 0;
        // What a failed device flush loses is written again from here.
        let is_unsettled = block.unsynced != 0 && self.durability.is_unsettled(volume, block.written_in);
        // Meanwhile the client may have evicted it.
        if block.quiet() && is_clean && !is_unsettled && block.source != Source::Demotion {
            self.drop_block(id);
        }
    }

    /// The block is clean, and its client has it.
    pub(super) fn client_has(&mut self, id: BlockId) {
        if self.block(id).in_order {
            self.leave_order(id);
            self.enter_order(id, true);
        }
    }

    /// A client has evicted the block, with the content of `frame`, which is the cache's from now on. False if it was
    /// not taken: something else of the block is here.
    pub(crate) fn take_demoted(&mut self, volume: VolumeId, number: u64, frame: FrameId) -> bool {
        let Some(id) = self.lookup(volume, number) else {
            let id = self.insert(volume, number);
            let block = self.block_mut(id);
            (block.frame, block.valid, block.source) = (frame, SectorMask::MAX, Source::Demotion);
            self.touch(id);
            return true;
        };
        self.release(frame);
        let block = self.block(id);
        let is_same = block.valid == SectorMask::MAX && !block.unwritten() && !block.filling();
        if is_same {
            // It has not been evicted since it was sent or written.
            self.block_mut(id).source = Source::Demotion;
            self.touch(id);
        }
        is_same
    }

    /// Whether `frames` can be taken for demoted blocks at the cost of colder ones only.
    pub(crate) fn admits_demoted(&self, tenant: TenantId, frames: u32) -> bool {
        self.partition(tenant).admits_payload(frames)
    }
}
