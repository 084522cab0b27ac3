//! What a probe measures: something that takes its requests and says when each is done.
//!
//! A file behind a reactor is one. Anything else that a disk is made of becomes another implementation of
//! [`ProbeTarget`], and nothing else of the probe changes.

use std::fs::File;
use std::io;
use std::time::Duration;

use engine::cache::FrameId;
use engine::disk::profile::{DEPTH_MAX, Request, SIZE_MAX, Space};
use engine::disk::{Io, IoId, Segment, VolumeId};
use engine::nbd::Errno;
use engine::units::BLOCK;

use super::scratch::Scratch;
use crate::frames::Frames;
use crate::reactor::{self, Completion, Kind, Reactor, Threads, Uring};

/// Something to measure.
pub trait ProbeTarget {
    /// The bytes that may be used.
    fn space(&self) -> Space;

    /// Whether it must not be written.
    fn is_read_only(&self) -> bool;

    /// Begins a request. Its slot is free until it is done.
    fn submit(&mut self, request: &Request);

    /// Waits until something is done, at most that long: slots, and how it went.
    fn wait(&mut self, timeout: Duration) -> io::Result<Vec<(u32, Result<(), Errno>)>>;
}

/// The one file of the reactor.
const FILE: VolumeId = VolumeId(0);
/// Frames of a slot.
const SLOT_FRAMES: u32 = (SIZE_MAX / BLOCK) as u32;

/// A scratch file.
pub struct FileTarget {
    reactor: AnyReactor,
    _frames: Frames,
    space: Space,
    completions: Vec<Completion>,
}

enum AnyReactor {
    Uring(Box<Uring>),
    Threads(Box<Threads>),
}

impl FileTarget {
    /// A file through a reactor of its own, of this kind; in whole `block`s.
    pub fn new(kind: Kind, scratch: Scratch, block: u64) -> io::Result<FileTarget> {
        let mut frames = Frames::new(1 + DEPTH_MAX * SLOT_FRAMES as usize)?;
        fill(&mut frames);
        let options = reactor::Options { device_depth: DEPTH_MAX as u32, connections_max: 1 };
        let uring = match kind {
            Kind::Threads => None,
            Kind::Auto => Uring::new(options, frames.memory()).ok(),
            Kind::IoUring => Some(Uring::new(options, frames.memory())?),
        };
        let mut reactor = match uring {
            Some(uring) => AnyReactor::Uring(Box::new(uring)),
            None => AnyReactor::Threads(Box::new(Threads::new(options, frames.memory())?)),
        };
        reactor.open(scratch.file)?;
        let space = Space::new(scratch.written, block.max(BLOCK));
        Ok(FileTarget { reactor, _frames: frames, space, completions: Vec::new() })
    }
}

impl AnyReactor {
    fn open(&mut self, file: File) -> io::Result<()> {
        match self {
            AnyReactor::Uring(uring) => uring.open_volume(FILE, file),
            AnyReactor::Threads(threads) => threads.open_volume(FILE, file),
        }
    }
}

/// What is written must not be zeros, which some devices do not store.
fn fill(frames: &mut Frames) {
    let mut dice = 1u64;
    let mut block = [0u8; BLOCK as usize];
    for frame in 1..=DEPTH_MAX as u32 * SLOT_FRAMES {
        // Only the shallow queues have long requests.
        let (slot, index) = ((frame - 1) / SLOT_FRAMES, (frame - 1) % SLOT_FRAMES);
        if slot >= 8 && index >= 16 {
            continue;
        }
        for word in block.chunks_exact_mut(8) {
            // Knuth's linear congruential generator (MMIX).
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&(dice ^ (dice >> 29)).to_le_bytes());
        }
        frames.put(Segment::whole(FrameId(frame)), &block);
    }
}

impl ProbeTarget for FileTarget {
    fn space(&self) -> Space {
        self.space.clone()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn submit(&mut self, request: &Request) {
        let first = 1 + request.slot * SLOT_FRAMES;
        let frames = (first..).take(request.len.div_ceil(BLOCK) as usize);
        let segments = frames.map(|frame| Segment::whole(FrameId(frame))).collect();
        let io = Io { op: request.op, volume: FILE, offset: request.offset, len: request.len, segments };
        match &mut self.reactor {
            AnyReactor::Uring(uring) => uring.submit(IoId(request.slot), &io),
            AnyReactor::Threads(threads) => threads.submit(IoId(request.slot), &io),
        }
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<Vec<(u32, Result<(), Errno>)>> {
        match &mut self.reactor {
            AnyReactor::Uring(uring) => uring.turn(Some(timeout), &mut self.completions)?,
            AnyReactor::Threads(threads) => threads.turn(Some(timeout), &mut self.completions)?,
        }
        let done = self.completions.drain(..).filter_map(|completion| match completion {
            Completion::Io { io, result } => Some((io.0, result)),
            _ => None,
        });
        Ok(done.collect())
    }
}
