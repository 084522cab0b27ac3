//! What the engine asks of a device, and what comes back.

use crate::cache::FrameId;
use crate::units::BLOCK;

/// A volume of this disk: a small number that control chose, free again only after `CloseVolume` was answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VolumeId(pub u32);

/// A device request in flight. The number is free again once its completion was handled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IoId(pub u32);

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
    /// A part of `frame`.
    pub fn new(frame: FrameId, start: u64, end: u64) -> Segment {
        debug_assert!(start < end && end <= BLOCK);
        Segment { frame, start: start as u16, len: (end - start) as u16 }
    }

    /// The whole of `frame`.
    pub fn whole(frame: FrameId) -> Segment {
        Segment::new(frame, 0, BLOCK)
    }
}

/// The kinds of device requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Fill the segments from the medium.
    Read,
    /// Write the segments; with `durable` they are on the medium before it completes (RWF_DSYNC).
    Write {
        /// On the medium before completion.
        durable: bool,
    },
    /// All writes that completed before this was submitted are on the medium when it completes.
    Flush,
    /// `len` bytes read as zero afterwards; space stays allocated (FALLOC_FL_ZERO_RANGE).
    Zero,
    /// `len` bytes read as zero afterwards; space is given back (FALLOC_FL_PUNCH_HOLE).
    Punch,
}

/// A device request: of one volume, contiguous there, scattered over frames here.
#[derive(Clone, Debug)]
pub struct Io {
    /// What to do.
    pub op: Op,
    /// Whose data.
    pub volume: VolumeId,
    /// First byte in the volume.
    pub offset: u64,
    /// Bytes; for reads and writes the sum over `segments`.
    pub len: u64,
    /// Where the bytes are; empty except for reads and writes.
    pub segments: Vec<Segment>,
}
