//! The memory of the frame pool, and the copies and zeroings that the engine requests.
//!
//! One anonymous mapping holds all frames in the order of their numbers. A frame becomes resident at its first use, so
//! resident memory grows with the frames that the engine uses (it uses low numbers first), whatever the maximum of the
//! pool. Frame 0 is all zeros, and read-only even for the kernel.
//!
//! ```text
//!   0          4096        8192
//!   ├─ zeros ──┼─ frame 1 ─┼─ frame 2 ─┼─ …         frame i at base + 4096 x i
//! ```
//!
//! Bytes are accessed through raw pointers only: the kernel reads and writes the same memory, so there must be no
//! reference into it. The engine's contract (`engine::event`) determines when a frame may be accessed: frames of a
//! device request or of unsent replies are not written, and frames that are being filled are not read. Downside: this
//! module has to rely on that.

mod mapping;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use engine::disk::Segment;
use engine::ids::FrameId;
use engine::units::BLOCK;

pub use mapping::Mapping;

/// Bytes of a frame.
const FRAME: usize = BLOCK as usize;
/// Chunks that the frames are divided into at most: the number of buffers that can be registered with a ring
/// (IORING_MAX_REG_BUFFERS of the kernel).
pub const CHUNKS_MAX: usize = 1 << 14;
/// Bytes of a chunk in a pool up to 32 GiB: a huge page, so that pinning it is one page fault.
const CHUNK_MIN: usize = 2 << 20;

/// A range of frames that becomes resident, is registered with the ring, and is returned to the system as a whole.
/// Chunks begin at multiples of their size, like huge pages; the first and the last are usually shorter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Its number.
    pub number: usize,
    /// Its addresses.
    pub addresses: Range<usize>,
    /// Its frames.
    pub frames: Range<u32>,
}

/// The owner of the frames, which may change their bytes.
#[derive(Debug)]
pub struct Frames {
    memory: FrameMemory,
}

impl Frames {
    /// A pool of `count` frames, including number 0. No frame is resident yet.
    pub fn new(count: usize) -> io::Result<Frames> {
        let count = count.max(1);
        let mapping = Mapping::new(count * FRAME)?;
        mapping.advise_huge_pages();
        mapping.protect_prefix(FRAME)?;
        Ok(Frames { memory: FrameMemory { mapping: Arc::new(mapping), count: count as u32 } })
    }

    /// The addresses of the frames, to pass to the kernel.
    pub fn memory(&self) -> FrameMemory {
        self.memory.clone()
    }

    /// Copies `len` bytes at `start` from one frame to the same offset of another.
    pub fn copy(&mut self, from: FrameId, to: FrameId, start: u16, len: u16) {
        assert!(from != to, "a frame is not copied onto itself");
        let source = self.memory.address(Segment { frame: from, start, len });
        let target = self.memory.address_for_writing(Segment { frame: to, start, len });
        // SAFETY: both addresses are inside the mapping for `len` bytes (asserted above), in different frames, so they
        // do not overlap. `&mut self` excludes other copies, and the kernel writes neither of them now (the engine's
        // contract).
        unsafe { std::ptr::copy_nonoverlapping(source, target, usize::from(len)) }
    }

    /// Zeroes `len` bytes at `start`.
    pub fn zero(&mut self, frame: FrameId, start: u16, len: u16) {
        let target = self.memory.address_for_writing(Segment { frame, start, len });
        // SAFETY: inside the mapping and not frame 0 (asserted); the bytes are not used otherwise now (as in `copy`).
        unsafe { std::ptr::write_bytes(target, 0, usize::from(len)) }
    }

    /// Returns the memory of a chunk to the system; afterwards it reads as zeros. Its frames must not be in use, nor
    /// registered with the ring.
    pub fn give_back(&mut self, chunk: &Chunk) {
        let base = self.memory.mapping.address(0) as usize;
        self.memory.mapping.give_back(chunk.addresses.start - base, chunk.addresses.len());
    }

    /// Fills a segment from `bytes`, which has the same length.
    pub fn put(&mut self, segment: Segment, bytes: &[u8]) {
        assert_eq!(bytes.len(), usize::from(segment.len));
        let target = self.memory.address_for_writing(segment);
        // SAFETY: inside the mapping and not frame 0 (asserted). `bytes` is a reference, and none points into the
        // mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
    }

    /// Passes the bytes of a segment, which nobody changes meanwhile, to `to`.
    pub fn look<T>(&self, segment: Segment, to: impl FnOnce(&[u8]) -> T) -> T {
        let source = self.memory.address(segment);
        // SAFETY: inside the mapping (asserted). A frame of a request to a device does not change: the kernel fills
        // only frames that nothing else refers to, and all other writes need `&mut self`.
        to(unsafe { std::slice::from_raw_parts(source, usize::from(segment.len)) })
    }

    /// The bytes of a segment.
    #[cfg(test)]
    pub fn get(&self, segment: Segment) -> Vec<u8> {
        let mut bytes = vec![0; usize::from(segment.len)];
        let source = self.memory.address(segment);
        // SAFETY: inside the mapping (asserted), and `bytes` is as long.
        unsafe { std::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len()) }
        bytes
    }
}

/// The addresses of the frames, without access to their bytes. Keeps the memory mapped while the kernel may use it.
#[derive(Clone, Debug)]
pub struct FrameMemory {
    mapping: Arc<Mapping>,
    count: u32,
}

impl FrameMemory {
    /// The frames after number 0: the address of the first byte, and the one past the last byte.
    pub fn writable_range(&self) -> (usize, usize) {
        let base = self.mapping.address(0) as usize;
        (base + FRAME, base + FRAME * self.count as usize)
    }

    /// Bytes of a chunk.
    pub fn chunk_bytes(&self) -> usize {
        let (start, end) = self.writable_range();
        // The first and the last chunk may be partial, so the size is computed for one chunk less than the maximum.
        (end - start).div_ceil(CHUNKS_MAX - 1).next_power_of_two().max(CHUNK_MIN)
    }

    /// The number of chunks.
    pub fn chunks(&self) -> usize {
        let (start, end) = self.writable_range();
        end.div_ceil(self.chunk_bytes()) - start / self.chunk_bytes()
    }

    /// The chunk that an address is in.
    pub fn chunk_of(&self, address: usize) -> usize {
        address / self.chunk_bytes() - self.writable_range().0 / self.chunk_bytes()
    }

    /// A chunk by its number.
    pub fn chunk(&self, number: usize) -> Chunk {
        let ((start, end), bytes) = (self.writable_range(), self.chunk_bytes());
        let first = (start / bytes + number) * bytes;
        let addresses = first.max(start)..(first + bytes).min(end);
        let frame = |address: usize| ((address - self.mapping.address(0) as usize) / FRAME) as u32;
        Chunk { number, frames: frame(addresses.start)..frame(addresses.end), addresses }
    }

    /// The first chunk that has only frames above `limit`.
    pub fn first_chunk_above(&self, limit: u32) -> usize {
        (0..self.chunks()).find(|&number| self.chunk(number).frames.start > limit).unwrap_or(self.chunks())
    }

    /// The bytes of a segment, for the kernel to read.
    pub fn readable(&self, segment: Segment) -> libc::iovec {
        libc::iovec { iov_base: self.address(segment).cast(), iov_len: usize::from(segment.len) }
    }

    /// The bytes of a segment, for the kernel to fill. Never frame 0.
    pub fn writable(&self, segment: Segment) -> libc::iovec {
        libc::iovec { iov_base: self.address_for_writing(segment).cast(), iov_len: usize::from(segment.len) }
    }

    fn address(&self, segment: Segment) -> *mut u8 {
        assert!(segment.frame.0 < self.count, "frame {} of {}", segment.frame.0, self.count);
        let start = usize::from(segment.start);
        assert!(start + usize::from(segment.len) <= FRAME, "a segment stays in its frame");
        self.mapping.address(segment.frame.0 as usize * FRAME + start)
    }

    fn address_for_writing(&self, segment: Segment) -> *mut u8 {
        assert!(segment.frame != FrameId::ZERO, "frame 0 stays zero");
        self.address(segment)
    }
}

/// Appends `next` to `list`, merged with the last entry if they are adjacent in memory.
pub fn push_merged(list: &mut Vec<libc::iovec>, next: libc::iovec) {
    if let Some(last) = list.last_mut()
        && last.iov_base as usize + last.iov_len == next.iov_base as usize
    {
        last.iov_len += next.iov_len;
        return;
    }
    list.push(next);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_where_they_were_put() {
        let mut frames = Frames::new(4).unwrap();
        frames.put(Segment::new(FrameId(1), 100, 104), b"abcd");
        frames.copy(FrameId(1), FrameId(3), 98, 8);
        assert_eq!(frames.get(Segment::new(FrameId(3), 98, 106)), b"\0\0abcd\0\0");
        frames.zero(FrameId(3), 101, 2);
        assert_eq!(frames.get(Segment::new(FrameId(3), 100, 104)), b"a\0\0d");
        assert_eq!(frames.get(Segment::whole(FrameId::ZERO)), vec![0; FRAME]);
    }

    #[test]
    #[should_panic(expected = "frame 0 stays zero")]
    fn frame_zero_is_not_written() {
        Frames::new(2).unwrap().zero(FrameId::ZERO, 0, 1);
    }

    #[test]
    #[should_panic(expected = "frame 2 of 2")]
    fn frames_beyond_the_pool_do_not_exist() {
        Frames::new(2).unwrap().zero(FrameId(2), 0, 1);
    }

    #[test]
    fn neighbours_merge() {
        let memory = Frames::new(8).unwrap().memory();
        let mut list = Vec::new();
        for segment in [
            Segment::new(FrameId(1), 512, 4096),
            Segment::whole(FrameId(2)),
            Segment::whole(FrameId(4)),
            Segment::new(FrameId(5), 512, 1024),
        ] {
            push_merged(&mut list, memory.readable(segment));
        }
        assert_eq!(list.iter().map(|v| v.iov_len).collect::<Vec<_>>(), [3584 + 4096, 4096, 512]);
    }

    #[test]
    fn chunks_cover_all_frames_and_what_is_given_back_is_empty() {
        let mut frames = Frames::new(2000).unwrap();
        let memory = frames.memory();
        let chunks: Vec<Chunk> = (0..memory.chunks()).map(|number| memory.chunk(number)).collect();
        let all: Vec<u32> = chunks.iter().flat_map(|chunk| chunk.frames.clone()).collect();
        assert_eq!(all, (1..2000).collect::<Vec<u32>>());
        assert!(chunks.iter().all(|chunk| memory.chunk_of(chunk.addresses.end - 1) == chunk.number));
        let resident = |chunk: &Chunk| {
            let mut pages = vec![0u8; chunk.addresses.len() / FRAME];
            // SAFETY: asks about a mapping that lives, and there is a byte for each page.
            let answer =
                unsafe { libc::mincore(chunk.addresses.start as *mut _, chunk.addresses.len(), pages.as_mut_ptr()) };
            assert_eq!(answer, 0);
            pages.iter().filter(|&page| page & 1 != 0).count()
        };
        for frame in 1..2000 {
            frames.put(Segment::new(FrameId(frame), 0, 1), b"x");
        }
        let first = memory.first_chunk_above(700);
        assert!(chunks[first].frames.start > 700 && chunks[first - 1].frames.start <= 700);
        for chunk in &chunks[first..] {
            assert!(resident(chunk) > 0);
            frames.give_back(chunk);
            assert_eq!(resident(chunk), 0);
        }
        assert_eq!(frames.get(Segment::new(FrameId(1999), 0, 1)), [0]);
        assert_eq!(frames.get(Segment::new(FrameId(700), 0, 1)), b"x");
    }

    #[test]
    fn an_unused_pool_costs_nothing() {
        // 1 TiB: more than the machine has.
        let mut frames = Frames::new(1 << 28).unwrap();
        frames.put(Segment::new(FrameId((1 << 28) - 1), 0, 1), b"x");
    }
}
