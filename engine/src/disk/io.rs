//! Requests to a device, as the engine passes them to the driver.

use crate::ids::{FrameId, VolumeId};
use crate::units::BLOCK;

/// Bytes `start..start + len` of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The frame.
    pub frame: FrameId,
    /// First byte inside the frame.
    pub start: u16,
    /// Bytes, 1 to 4096.
    pub len: u16,
}

impl Segment {
    /// Bytes `start..end` of `frame`.
    pub fn new(frame: FrameId, start: u64, end: u64) -> Segment {
        debug_assert!(start < end && end <= BLOCK);
        Segment { frame, start: start as u16, len: (end - start) as u16 }
    }

    /// The whole of `frame`.
    pub fn whole(frame: FrameId) -> Segment {
        Segment::new(frame, 0, BLOCK)
    }
}

/// The operations of device requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Reads from the medium into the segments.
    Read,
    /// Writes the segments. If `durable`, the data is on the medium before the request completes (RWF_DSYNC).
    Write {
        /// The data is on the medium before completion.
        durable: bool,
    },
    /// All writes of the volume that completed before the flush was submitted are on the medium when the flush
    /// completes.
    Flush,
    /// `len` bytes read as zero afterwards; their space stays allocated (FALLOC_FL_ZERO_RANGE).
    Zero,
    /// `len` bytes read as zero afterwards; their space is released (FALLOC_FL_PUNCH_HOLE).
    Punch,
}

/// A device request: one contiguous range of a volume, whose data is scattered over frames in memory.
#[derive(Clone, Debug)]
pub struct Io {
    /// The operation.
    pub op: Op,
    /// The volume.
    pub volume: VolumeId,
    /// First byte in the volume.
    pub offset: u64,
    /// Bytes; for reads and writes, the sum over `head` and `segments`.
    pub len: u64,
    /// Bytes that a write to another server has before those of the segments: a header, at most a block.
    pub head: Vec<u8>,
    /// The data in memory, in order; empty for operations other than reads and writes.
    pub segments: Vec<Segment>,
}
