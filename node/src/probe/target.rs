//! The target of a probe: it accepts requests and reports completions.
//!
//! The target here is one or more files behind a reactor: a scratch file, or raw devices. A disk of another kind needs
//! another implementation of [`ProbeTarget`], and no other change of the probe.
//!
//! ```text
//!   Space    ├── part 0: ranges ──┼──── part 1: ranges ────┤      consecutive; no request crosses the end of a range
//!   files         VolumeId(0)             VolumeId(1)
//! ```

use std::fs::File;
use std::io;
use std::ops::Range;
use std::time::Duration;

use engine::disk::profile::{DEPTH_MAX, Request, SIZE_MAX, Space};
use engine::disk::{Io, Op, Segment};
use engine::ids::{FrameId, IoId, VolumeId};
use engine::nbd::Errno;
use engine::units::BLOCK;

use crate::frames::Frames;
use crate::reactor::{self, Completion, Kind, Reactor, Threads, Uring};

/// A target of measurements.
pub trait ProbeTarget {
    /// The space that may be accessed.
    fn space(&self) -> Space;

    /// Whether it must not be written to.
    fn is_read_only(&self) -> bool;

    /// Starts a request. Its slot is in use until it completes.
    fn submit(&mut self, request: &Request);

    /// Waits for completions for at most `timeout`. Returns slots and results.
    fn wait(&mut self, timeout: Duration) -> io::Result<Vec<(u32, Result<(), Errno>)>>;
}

/// Frames of a slot.
const SLOT_FRAMES: u32 = (SIZE_MAX / BLOCK) as u32;

/// A file or device, and the ranges of it that are measured.
#[derive(Debug)]
pub struct Part {
    /// Open for direct I/O if possible.
    pub file: File,
    /// In ascending order, bytes.
    pub ranges: Vec<Range<u64>>,
}

/// A target of files or devices.
pub struct FileTarget {
    reactor: AnyReactor,
    _frames: Frames,
    space: Space,
    /// The beginning of each part in the space.
    starts: Vec<u64>,
    read_only: bool,
    completions: Vec<Completion>,
}

enum AnyReactor {
    Uring(Box<Uring>),
    Threads(Box<Threads>),
}

impl FileTarget {
    /// Parts behind a reactor of the given kind, accessed in whole `block`s. They are written unless `read_only`.
    pub fn new(kind: Kind, parts: Vec<Part>, block: u64, read_only: bool) -> io::Result<FileTarget> {
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
        let block = block.max(BLOCK);
        let (mut starts, mut ranges, mut start) = (Vec::new(), Vec::new(), 0);
        for (index, part) in parts.into_iter().enumerate() {
            let end = part.ranges.iter().map(|range| range.end).max().unwrap_or(0);
            ranges.extend(part.ranges.into_iter().map(|range| start + range.start..start + range.end));
            reactor.open(VolumeId(index as u32), part.file)?;
            starts.push(start);
            start += end.next_multiple_of(block);
        }
        let space = Space::new(ranges, block);
        Ok(FileTarget { reactor, _frames: frames, space, starts, read_only, completions: Vec::new() })
    }
}

impl AnyReactor {
    fn open(&mut self, part: VolumeId, file: File) -> io::Result<()> {
        match self {
            AnyReactor::Uring(uring) => uring.open_volume(part, file),
            AnyReactor::Threads(threads) => threads.open_volume(part, file),
        }
    }
}

/// Fills the frames with random data, since some devices do not store zeros.
fn fill(frames: &mut Frames) {
    let mut dice = 1u64;
    let mut block = [0u8; BLOCK as usize];
    for frame in 1..=DEPTH_MAX as u32 * SLOT_FRAMES {
        // Long requests occur at low depths only.
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
        self.read_only
    }

    fn submit(&mut self, request: &Request) {
        let first = 1 + request.slot * SLOT_FRAMES;
        let frames = (first..).take(request.len.div_ceil(BLOCK) as usize);
        let segments = frames.map(|frame| Segment::whole(FrameId(frame))).collect();
        assert!(request.op == Op::Read || !self.read_only, "what must not be written is not");
        let part = self.starts.partition_point(|start| *start <= request.offset) - 1;
        let offset = request.offset - self.starts[part];
        let io =
            Io { op: request.op, volume: VolumeId(part as u32), offset, len: request.len, segments, head: Vec::new() };
        match &mut self.reactor {
            AnyReactor::Uring(uring) => uring.submit(IoId(request.slot), &io),
            AnyReactor::Threads(threads) => threads.submit(IoId(request.slot), &io),
        }
    }

    fn wait(&mut self, timeout: Duration) -> io::Result<Vec<(u32, Result<(), Errno>)>> {
        match &mut self.reactor {
            AnyReactor::Uring(uring) => uring.turn(Some(timeout), &mut self.completions)?,
            AnyReactor::Threads(threads) => threads.turn(Some(timeout), &mut self.completions)?,
        };
        let done = self.completions.drain(..).filter_map(|completion| match completion {
            Completion::Io { io, result } => Some((io.0, result)),
            _ => None,
        });
        Ok(done.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Each part gets requests for its own ranges, and nothing is written.
    #[test]
    fn requests_find_their_part() {
        let part = |len: u64, ranges: [Range<u64>; 2]| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(len).unwrap();
            Part { file, ranges: ranges.into() }
        };
        let parts = vec![
            part(3 * BLOCK + 512, [0..BLOCK, BLOCK..3 * BLOCK]),
            part(5 * BLOCK, [BLOCK..2 * BLOCK, 4 * BLOCK..5 * BLOCK]),
        ];
        let watched = parts[1].file.try_clone().unwrap();
        watched.write_all_at(&[7; BLOCK as usize], 4 * BLOCK).unwrap();
        let mut target = FileTarget::new(Kind::Threads, parts, 512, true).unwrap();
        assert_eq!(target.space().bytes(), 5 * BLOCK);
        assert!(target.is_read_only());
        let places: Vec<u64> = (0..5).map(|block| target.space().offset(block * BLOCK, BLOCK)).collect();
        assert_eq!(places, [0, BLOCK, 2 * BLOCK, 4 * BLOCK, 7 * BLOCK]);
        // The last block ends where its file ends; the next one does not exist.
        for (offset, expected) in [(7 * BLOCK, Ok(())), (8 * BLOCK, Err(Errno::Io))] {
            target.submit(&Request { slot: 0, op: Op::Read, offset, len: BLOCK });
            let done = loop {
                match target.wait(Duration::from_secs(10)).unwrap() {
                    done if done.is_empty() => {}
                    done => break done,
                }
            };
            assert_eq!(done, [(0, expected)]);
        }
    }
}
