//! The identifiers that all layers share. Each is a small number, so tables are indexed by it.

/// A connection: the driver's slot number. The slot may be used again after [`Action::Gone`](crate::Action::Gone).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub u32);

/// A volume of this disk: a small number that control chose. It may be reused only after `CloseVolume` was answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeId(pub u32);

/// A volume of this disk by its stable number, which control gives once and which the logs of its off-load stores have:
/// small, and never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeKey(pub u32);

/// A tenant of this disk: a small number chosen by the control plane.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TenantId(pub u32);

/// A device request in flight. The number may be reused once the completion of the request was handled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IoId(pub u32);

/// A frame: 4 KiB of the pool, by number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameId(pub u32);

impl FrameId {
    /// The frame that always contains zeros and is never written.
    pub const ZERO: FrameId = FrameId(0);
}

/// A cached block, by its place in the cache's table. Valid while the block is cached.
pub(crate) type BlockId = u32;

/// A place in the order of overlapping requests of a volume. Later ones are larger.
pub(crate) type Ticket = u64;
