//! A partition: the frames of one tenant on one disk, and eviction inside it.
//!
//! Which block goes first is the tenant's policy's to say ([`super::eviction`]); which blocks can go at all is said
//! here.

use super::block::{Block, BlockId};
use super::eviction::{Eviction, Verdict, evict};
use super::{Cache, FrameId};
use crate::control::{TenantId, TenantSpec};
use crate::units::PIECE_BLOCKS;

/// Frames of the smallest partition: two pieces, each with a frame for the fill of its first and its last block. Below
/// that one piece being received could keep another from ever being worked.
pub(crate) const FRAMES_MIN: u32 = 2 * (PIECE_BLOCKS as u32 + 2);

/// Frames of the smallest piece of a payload: a block that is written in part, and one for its fill.
const PAYLOAD_FRAMES_MIN: u32 = 2;

/// Blocks that are looked at in one step when frames retire: about 40 us, as they lie one behind the other.
const RETIRE_BLOCKS: usize = 2 * 1024;

/// The frames of one tenant.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) spec: TenantSpec,
    order: Box<dyn Eviction<Block>>,
    /// Frames that it may use.
    pub(crate) target: u32,
    /// Frames that are charged to it.
    pub(crate) used: u32,
    /// Blocks with dirt or being written.
    pub(crate) unwritten: u32,
    /// Of those, blocks whose last write-back failed.
    pub(crate) failing: u32,
    /// Blocks being written.
    pub(crate) writing: u32,
    /// Frames that wait for payload, or for their fill meanwhile.
    pub(crate) receiving: u32,
    /// Frames of replies that are being read or wait to be sent. Half the partition at most, unless it has shrunk.
    pub(crate) owed: u32,
    /// Some connection waits for there to be fewer, or to have sent more.
    pub(crate) throttled: bool,
    /// Streams that are read ahead of.
    pub(crate) streams: u32,
    /// Bytes that are ahead of their readers, all streams together.
    pub(crate) unread: u64,
    /// Frames that wait for what is read ahead.
    pub(crate) prefetching: u32,
    /// Volumes that use it.
    pub(crate) volumes: u32,
    /// Requests received and not answered.
    pub(crate) requests: u32,
    /// So many that connections may have one each only, until a quarter of them is answered.
    pub(crate) crowded: bool,
    /// CACHE requests that are being worked.
    pub(crate) caching: u32,
    /// A frame became free or a block clean since its waiting pieces were last tried.
    pub(crate) stirred: bool,
}

impl Partition {
    pub(crate) fn new(spec: TenantSpec) -> Self {
        Partition {
            spec,
            order: spec.eviction.order(Default::default()),
            target: 0,
            used: 0,
            unwritten: 0,
            writing: 0,
            failing: 0,
            receiving: 0,
            owed: 0,
            throttled: false,
            streams: 0,
            unread: 0,
            prefetching: 0,
            volumes: 0,
            requests: 0,
            crowded: false,
            caching: 0,
            stirred: false,
        }
    }

    /// Whether more than half the partition waits to be written: then it is, in the background (design, section 4).
    pub(crate) fn too_dirty(&self) -> bool {
        self.unwritten - self.writing > self.target / 2
    }

    /// Whether `frames` more may be taken for payload: three quarters may be dirt, so that reads always find room, and
    /// half may wait for payload, so that slow senders do not take it all.
    pub(crate) fn admits_payload(&self, frames: u32) -> bool {
        let receiving = self.receiving + frames;
        receiving <= self.target / 2 && self.unwritten + receiving <= self.target / 4 * 3
    }

    /// How many of `wanted` frames a volume may take for payload, if `receiving` of its frames wait for some. Where a
    /// tenant has several volumes, one leaves as much as it has to the others, so that there is room for them while its
    /// clients send nothing. A volume that waits for no payload takes what there is; `None` if another one must wait.
    pub(crate) fn payload_max(&self, receiving: u32, wanted: u32) -> Option<u32> {
        if self.volumes < 2 || planted!(StalledTakeAllFrames) {
            return Some(wanted);
        }
        let room = (self.target / 2).saturating_sub(self.receiving - receiving);
        if receiving == 0 {
            return Some(wanted.min((room / 2).max(PAYLOAD_FRAMES_MIN)));
        }
        (receiving + wanted <= room / 2).then_some(wanted)
    }

    /// Frames that replies of a volume may take now, if they hold `owed` already: of the half of the partition that
    /// replies may have, or of what other volumes leave of it as much as it leaves to them, so that clients that read
    /// no replies do not hold up those of another volume. Not in a small partition, where a reply that must be whole
    /// takes more than that.
    pub(crate) fn reply_frames_left(&self, owed: u32) -> u32 {
        let half = self.target / 2;
        if self.volumes < 2 || half / 2 < FRAMES_MIN / 2 || planted!(UnsentTakeAllFrames) {
            return half.saturating_sub(self.owed);
        }
        let room = half.saturating_sub(self.owed - owed);
        room.div_ceil(2).saturating_sub(owed)
    }

    /// Whether a reply of so many frames that must be whole fits now. The first one of a volume takes what there is: it
    /// would perhaps never have so much if it left as much to others.
    pub(crate) fn whole_reply_fits(&self, owed: u32, frames: u32) -> bool {
        frames <= if owed == 0 { (self.target / 2).saturating_sub(self.owed) } else { self.reply_frames_left(owed) }
    }

    /// Whether `frames` more may be read ahead: a quarter of the partition stays for those who ask for something.
    pub(crate) fn admits_prefetch(&self, frames: u32) -> bool {
        let in_use = self.unwritten + self.receiving + self.prefetching + self.owed;
        in_use + frames <= self.target / 4 * 3
    }
}

impl Cache {
    pub(crate) fn partition(&self, tenant: TenantId) -> &Partition {
        self.partitions[tenant.0 as usize].as_ref().expect("a tenant")
    }

    pub(crate) fn partition_mut(&mut self, tenant: TenantId) -> &mut Partition {
        self.partitions[tenant.0 as usize].as_mut().expect("a tenant")
    }

    /// All tenants.
    pub(crate) fn tenants(&self) -> impl Iterator<Item = (TenantId, &Partition)> {
        self.partitions.iter().enumerate().filter_map(|(i, p)| Some((TenantId(i as u32), p.as_ref()?)))
    }

    pub(crate) fn has_tenant(&self, tenant: TenantId) -> bool {
        matches!(self.partitions.get(tenant.0 as usize), Some(Some(_)))
    }

    /// Makes a tenant, or changes what it was promised.
    pub(crate) fn set_tenant(&mut self, tenant: TenantId, spec: TenantSpec) {
        let at = tenant.0 as usize;
        if self.partitions.len() <= at {
            self.partitions.resize_with(at + 1, || None);
        }
        match &mut self.partitions[at] {
            Some(partition) => {
                if partition.spec.eviction != spec.eviction {
                    partition.order = spec.eviction.order(std::mem::take(partition.order.list()));
                }
                partition.spec = spec;
            }
            empty => *empty = Some(Partition::new(spec)),
        }
    }

    /// Forgets a tenant that uses nothing.
    pub(crate) fn drop_tenant(&mut self, tenant: TenantId) {
        debug_assert_eq!(self.partition(tenant).used, 0);
        self.partitions[tenant.0 as usize] = None;
    }

    /// Moves the number of frames in all; targets must already fit.
    pub(crate) fn set_frames(&mut self, frames: u32) {
        self.pool.set_limit(frames);
    }

    /// The block was used.
    pub(crate) fn touch(&mut self, id: BlockId) {
        if !self.blocks[id as usize].in_order {
            return self.enter_order(id, false);
        }
        // What was read ahead and is now asked for is asked for the first time.
        let again = !self.blocks[id as usize].prefetched;
        let (order, blocks) = self.order_of(id);
        order.used(blocks, id, again);
    }

    /// It is in the order from now on; with `back`, after its turn had come.
    pub(super) fn enter_order(&mut self, id: BlockId, back: bool) {
        self.blocks[id as usize].in_order = true;
        let (order, blocks) = self.order_of(id);
        if back { order.come_back(blocks, id) } else { order.enter(blocks, id) }
    }

    pub(super) fn leave_order(&mut self, id: BlockId) {
        self.blocks[id as usize].in_order = false;
        let (order, blocks) = self.order_of(id);
        order.leave(blocks, id);
    }

    fn order_of(&mut self, id: BlockId) -> (&mut dyn Eviction<Block>, &mut [Block]) {
        let tenant = self.volume(self.block(id).volume).tenant;
        let partition = self.partitions[tenant.0 as usize].as_mut().expect("a tenant");
        (&mut *partition.order, &mut self.blocks)
    }

    /// Takes `count` frames for `tenant`, all or none, evicting what is cold.
    pub(crate) fn take_frames(&mut self, tenant: TenantId, count: u32, into: &mut Vec<FrameId>) -> bool {
        loop {
            let partition = self.partition(tenant);
            if partition.used + count <= partition.target && self.pool.available() >= count {
                break;
            }
            if !self.evict(tenant) {
                return false;
            }
        }
        self.pool.take(tenant, count, into);
        self.partition_mut(tenant).used += count;
        true
    }

    /// Evicts the first block of the order that can go. False if none can.
    pub(crate) fn evict(&mut self, tenant: TenantId) -> bool {
        let partition = self.partitions[tenant.0 as usize].as_mut().expect("a tenant");
        let pool = &self.pool;
        let found = evict(&mut *partition.order, &mut self.blocks, |block| {
            if block.unwritten() && !planted!(DirtyBlockLostOnEviction) {
                block.in_order = false;
                Verdict::Unwritten
            } else if block.quiet() && !pool.is_shared(block.frame) {
                Verdict::Goes
            } else {
                Verdict::InUse
            }
        });
        found.inspect(|&id| self.drop_block(id)).is_some()
    }

    /// Gives back up to `most` frames that are over the tenant's target. True if there is more to give.
    pub(crate) fn shed(&mut self, tenant: TenantId, most: u32) -> bool {
        for _ in 0..most {
            let partition = self.partition(tenant);
            if partition.used <= partition.target {
                return false;
            }
            if !self.evict(tenant) {
                return true;
            }
        }
        true
    }

    /// Drops clean blocks in frames above the limit, among the next [`RETIRE_BLOCKS`]. True if frames above it are
    /// still in use.
    pub(crate) fn retire_frames(&mut self) -> bool {
        if self.pool.retiring() == 0 || self.blocks.is_empty() {
            return false;
        }
        for _ in 0..RETIRE_BLOCKS.min(self.blocks.len()) {
            self.retire_at = (self.retire_at + 1) % self.blocks.len();
            let id = self.retire_at as BlockId;
            let block = self.block(id);
            let retires = self.pool.is_retiring(block.frame) && !planted!(FramesNeverRetire);
            if retires && block.quiet() && !block.unwritten() {
                self.drop_block(id);
            }
        }
        self.pool.retiring() > 0
    }
}
