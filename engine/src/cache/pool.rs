//! The pool of frames: 4 KiB each, known by number, with a reference count and the tenant that is charged for it.
//!
//! A frame is written only by its first owner, before any other request can see it; from then on it never changes. So a
//! socket, the device or an unsent reply that holds a reference may read the frame at any time. A frame is free when
//! its last reference is released.

use crate::eviction::list::NONE;
use crate::ids::{BlockId, FrameId, TenantId};

#[derive(Clone, Copy, Debug)]
struct Meta {
    /// 32 bits: each unsent reply holds a reference, and a client can have more than 65,535 of them.
    references: u32,
    tenant: u32,
    /// The block of the frame, if it left the eviction order because the frame had several references; or [`NONE`].
    left_order: BlockId,
}

/// Bookkeeping bytes of the pool per frame: the reference count, the tenant, the block, and an entry in the free list.
pub(crate) const POOL_BYTES_PER_FRAME: u64 = (size_of::<Meta>() + size_of::<u32>()) as u64;

/// The references that remain after one was released.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// No reference: the frame is free.
    Free,
    /// One reference: that of a block, if a block has the frame. The number is that of a block that left the eviction
    /// order while the frame was shared. It can be evicted again if it still has the frame.
    One(Option<BlockId>),
}

/// All frames of one disk. Numbers 1 to `limit` may be in use; frames above it retire as they become free.
#[derive(Debug)]
pub(crate) struct Pool {
    meta: Vec<Meta>,
    free: Vec<u32>,
    /// The lowest number that was never used, so memory is touched only as the cache fills.
    fresh: u32,
    limit: u32,
    /// Frames with references, including those above the limit.
    used: u32,
    /// Frames with references above the limit.
    retiring: u32,
}

impl Pool {
    /// A pool of `limit` frames, which can grow to `max`.
    pub(crate) fn new(limit: u32, max: u32) -> Pool {
        assert!(limit <= max);
        Pool {
            meta: vec![Meta { references: 0, tenant: 0, left_order: NONE }; max as usize + 1],
            free: Vec::with_capacity(max as usize),
            fresh: 1,
            limit,
            used: 0,
            retiring: 0,
        }
    }

    pub(crate) fn limit(&self) -> u32 {
        self.limit
    }

    pub(crate) fn max(&self) -> u32 {
        self.meta.len() as u32 - 1
    }

    /// Frames above the limit that are still in use.
    pub(crate) fn retiring(&self) -> u32 {
        self.retiring
    }

    /// Frames that can be taken now.
    pub(crate) fn available(&self) -> u32 {
        self.free.len() as u32 + (self.limit + 1).saturating_sub(self.fresh)
    }

    /// Takes `count` frames for `tenant`, with one reference each. So many must be available.
    ///
    /// The frames that were freed last are taken first, because the processor may still have them in its cache, but in
    /// the order in which they were freed. Blocks that were read together are evicted together, so the frames of the
    /// next piece are adjacent in memory again, and the device fills one buffer instead of sixty.
    pub(crate) fn take(&mut self, tenant: TenantId, count: u32, into: &mut Vec<FrameId>) {
        assert!(count <= self.available());
        let again = self.free.len() - self.free.len().min(count as usize);
        let new = count - (self.free.len() - again) as u32;
        let taken = into.len();
        into.extend(self.free.drain(again..).chain(self.fresh..self.fresh + new).map(FrameId));
        for frame in &into[taken..] {
            let meta = &mut self.meta[frame.0 as usize];
            debug_assert_eq!(meta.references, 0);
            *meta = Meta { references: 1, tenant: tenant.0, left_order: NONE };
        }
        self.fresh += new;
        self.used += count;
    }

    /// Adds a reference.
    pub(crate) fn retain(&mut self, frame: FrameId) {
        if frame != FrameId::ZERO {
            let meta = &mut self.meta[frame.0 as usize];
            assert!(meta.references > 0, "frame {} is retained after it was freed", frame.0);
            meta.references += 1;
        }
    }

    /// The number of references to a frame.
    pub(crate) fn references(&self, frame: FrameId) -> u32 {
        self.meta[frame.0 as usize].references
    }

    /// Releases a reference. Returns the tenant that the frame is charged to, unless two or more references remain.
    pub(crate) fn release(&mut self, frame: FrameId) -> Option<(TenantId, Left)> {
        if frame == FrameId::ZERO {
            return None;
        }
        let meta = &mut self.meta[frame.0 as usize];
        assert!(meta.references > 0, "frame {} is freed twice", frame.0);
        meta.references -= 1;
        let tenant = TenantId(meta.tenant);
        match meta.references {
            0 => {}
            1 => {
                let block = std::mem::replace(&mut meta.left_order, NONE);
                return Some((tenant, Left::One((block != NONE).then_some(block))));
            }
            _ => return None,
        }
        self.used -= 1;
        let retires = self.is_retiring(frame);
        self.retiring -= u32::from(retires);
        if !retires || planted!(RetiredFrameUsedAgain) {
            self.free.push(frame.0);
        }
        Some((tenant, Left::Free))
    }

    /// The block of a frame leaves the eviction order until the frame has one reference.
    pub(crate) fn left_order(&mut self, frame: FrameId, block: BlockId) {
        debug_assert!(self.is_shared(frame));
        self.meta[frame.0 as usize].left_order = block;
    }

    /// Whether a frame has more than one reference.
    pub(crate) fn is_shared(&self, frame: FrameId) -> bool {
        self.meta[frame.0 as usize].references > 1
    }

    /// Whether a frame is above the limit.
    pub(crate) fn is_retiring(&self, frame: FrameId) -> bool {
        frame.0 > self.limit
    }

    /// Whether a frame is above the limit and has no references: its content is never read again.
    pub(crate) fn is_retired(&self, frame: FrameId) -> bool {
        self.is_retiring(frame) && self.meta[frame.0 as usize].references == 0
    }

    /// Moves the limit. Frames above it stay in use until they are released.
    pub(crate) fn set_limit(&mut self, limit: u32) {
        assert!(limit <= self.max());
        let below_fresh = self.fresh.saturating_sub(1);
        if limit < self.limit {
            self.free.retain(|&frame| frame <= limit);
        } else {
            let returned = (self.limit + 1..=limit.min(below_fresh)).filter(|&f| self.meta[f as usize].references == 0);
            self.free.extend(returned);
        }
        self.limit = limit;
        let above = limit + 1..=below_fresh.max(limit);
        self.retiring = above.filter(|&f| self.meta[f as usize].references > 0).count() as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENANT: TenantId = TenantId(3);

    fn take(pool: &mut Pool, count: u32) -> Vec<FrameId> {
        let mut frames = Vec::new();
        pool.take(TENANT, count, &mut frames);
        frames
    }

    #[test]
    fn a_frame_is_free_after_its_last_reference() {
        let mut pool = Pool::new(1, 1);
        let frame = take(&mut pool, 1)[0];
        assert_eq!(pool.available(), 0);
        pool.retain(frame);
        assert_eq!(pool.release(frame), Some((TENANT, Left::One(None))));
        assert_eq!(pool.release(frame), Some((TENANT, Left::Free)));
        assert_eq!(take(&mut pool, 1), [frame]);
    }

    #[test]
    fn a_block_that_left_the_eviction_order_is_named_with_the_last_reference_but_one() {
        let mut pool = Pool::new(1, 1);
        let frame = take(&mut pool, 1)[0];
        pool.retain(frame);
        pool.retain(frame);
        pool.left_order(frame, 7);
        assert_eq!(pool.release(frame), None);
        assert_eq!(pool.release(frame), Some((TENANT, Left::One(Some(7)))));
        pool.retain(frame);
        assert_eq!(pool.release(frame), Some((TENANT, Left::One(None))), "once");
    }

    #[test]
    fn frames_freed_last_are_taken_first_in_the_order_in_which_they_were_freed() {
        let mut pool = Pool::new(5, 5);
        let frames = take(&mut pool, 4);
        assert_eq!(frames, [1, 2, 3, 4].map(FrameId));
        for &frame in &frames {
            pool.release(frame);
        }
        assert_eq!(take(&mut pool, 2), frames[2..]);
        assert_eq!(take(&mut pool, 3), [1, 2, 5].map(FrameId), "the last one was never used");
    }

    #[test]
    fn frames_above_the_limit_retire_and_return() {
        let mut pool = Pool::new(4, 4);
        let frames = take(&mut pool, 4);
        pool.release(frames[3]);
        assert!(!pool.is_retired(frames[3]), "free, and may be taken again");
        pool.set_limit(2);
        assert_eq!((pool.available(), pool.retiring()), (0, 1));
        assert!(pool.is_retired(frames[3]) && !pool.is_retired(frames[2]) && !pool.is_retired(frames[1]));
        pool.release(frames[2]);
        assert_eq!((pool.available(), pool.retiring()), (0, 0));
        pool.release(frames[0]);
        assert_eq!(pool.available(), 1);
        pool.set_limit(4);
        assert_eq!(pool.available(), 3);
    }
}
