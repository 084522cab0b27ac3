//! A device request in progress: its remaining range, and the list of its memory, which must not move meanwhile.
//!
//! The kernel may complete a request partly. The remainder is then submitted again until all is done, so the engine
//! sees complete or failed requests only. The lists are kept in a slot per request number and reused.

use engine::disk::{Io, Op};
use engine::ids::VolumeId;

use super::errors::Failure;
use crate::frames::{FrameMemory, push_merged};

/// Entries of a list that one system call accepts (UIO_MAXIOV of the kernel).
const ENTRIES_MAX: usize = 1024;

/// A device request, or the slot of one.
#[derive(Debug)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// The volume.
    pub volume: VolumeId,
    /// Offset in the file of the remaining range, bytes.
    pub offset: u64,
    /// Remaining bytes.
    pub left: u64,
    entries: Vec<libc::iovec>,
    /// The first entry that is not complete.
    first: usize,
}

// SAFETY: the entries are addresses of frames. Frames belong to no thread, and the engine does not touch them until the
// request is complete; the thread that uses the entries keeps the frames' memory mapped.
unsafe impl Send for Request {}

/// The state of a request after an answer of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The remainder has to be submitted.
    More,
    /// The request is complete or failed.
    Done(Result<(), Failure>),
}

impl Request {
    /// An empty slot with room for a list of `entries`.
    pub fn with_capacity(entries: usize) -> Request {
        let entries = Vec::with_capacity(entries);
        Request { op: Op::Flush, volume: VolumeId(0), offset: 0, left: 0, entries, first: 0 }
    }

    /// Begins `io` in this slot.
    pub fn begin(&mut self, io: &Io, memory: &FrameMemory) {
        (self.op, self.volume, self.offset, self.left) = (io.op, io.volume, io.offset, io.len);
        self.first = 0;
        self.entries.clear();
        for &segment in &io.segments {
            let entry = match io.op {
                Op::Read => memory.writable(segment),
                _ => memory.readable(segment),
            };
            push_merged(&mut self.entries, entry);
        }
    }

    /// What to ask the kernel for now.
    pub fn entries(&self) -> &[libc::iovec] {
        let past = self.entries.len().min(self.first + ENTRIES_MAX);
        &self.entries[self.first..past]
    }

    /// Takes the kernel's answer: bytes, or an errno below zero.
    pub fn advance(&mut self, answer: i64) -> Progress {
        if answer < 0 {
            return match -answer as i32 {
                libc::EINTR | libc::EAGAIN => Progress::More,
                errno => Progress::Done(Err(Failure::Os(errno))),
            };
        }
        if !matches!(self.op, Op::Read | Op::Write { .. }) {
            return Progress::Done(Ok(()));
        }
        if answer == 0 && self.left > 0 {
            return Progress::Done(Err(Failure::EndOfFile));
        }
        self.skip(answer as u64);
        if self.left == 0 { Progress::Done(Ok(())) } else { Progress::More }
    }

    fn skip(&mut self, bytes: u64) {
        assert!(bytes <= self.left, "the kernel does not do more than it was asked for");
        self.offset += bytes;
        self.left -= bytes;
        let mut bytes = bytes as usize;
        while bytes > 0 {
            let entry = &mut self.entries[self.first];
            let part = bytes.min(entry.iov_len);
            entry.iov_base = entry.iov_base.wrapping_byte_add(part);
            entry.iov_len -= part;
            bytes -= part;
            if entry.iov_len == 0 {
                self.first += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Frames;
    use engine::disk::Segment;
    use engine::ids::FrameId;

    fn lengths(request: &Request) -> Vec<usize> {
        request.entries().iter().map(|entry| entry.iov_len).collect()
    }

    #[test]
    fn the_rest_of_a_short_request_is_asked_for_again() {
        let memory = Frames::new(10).unwrap().memory();
        let segments = vec![Segment::whole(FrameId(1)), Segment::whole(FrameId(3)), Segment::whole(FrameId(5))];
        let io = Io { op: Op::Read, volume: VolumeId(7), offset: 8192, len: 3 * 4096, segments, head: Vec::new() };
        let mut request = Request::with_capacity(4);
        request.begin(&io, &memory);
        assert_eq!(request.advance(-i64::from(libc::EINTR)), Progress::More);
        assert_eq!(request.advance(512), Progress::More);
        assert_eq!((request.offset, lengths(&request)), (8704, vec![3584, 4096, 4096]));
        assert_eq!(request.advance(3584 + 4096), Progress::More);
        assert_eq!((request.offset, lengths(&request)), (16384, vec![4096]));
        assert_eq!(request.advance(0), Progress::Done(Err(Failure::EndOfFile)));
        assert_eq!(request.advance(4096), Progress::Done(Ok(())));
    }

    #[test]
    fn long_lists_go_in_parts() {
        let memory = Frames::new(5000).unwrap().memory();
        let segments: Vec<_> = (0..2000).map(|i| Segment::whole(FrameId(1 + 2 * i))).collect();
        let io = Io {
            op: Op::Write { durable: true },
            volume: VolumeId(0),
            offset: 0,
            len: 2000 * 4096,
            segments,
            head: Vec::new(),
        };
        let mut request = Request::with_capacity(4);
        request.begin(&io, &memory);
        assert_eq!(request.entries().len(), 1024);
        assert_eq!(request.advance(1024 * 4096), Progress::More);
        assert_eq!(request.entries().len(), 976);
    }
}
