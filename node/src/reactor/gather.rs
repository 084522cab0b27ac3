//! Scatter and gather lists of socket messages. A list must not move while the kernel uses it.
//!
//! A list is taken from a pool when a message begins and returned when it completes. So idle connections hold none, and
//! the data path does not allocate once the pool has as many lists as were ever in use at the same time.

use engine::Outgoing;
use engine::disk::Segment;

use crate::frames::{FrameMemory, push_merged};

/// Entries of a list: 1 MiB of single frames, each with a reply header. The kernel's own bound is 1024.
const ENTRIES_MAX: usize = 512;
/// Header bytes of one message. A simple reply has 16, a structured read chunk 28, an extended one 40. A longer block
/// status is sent in several messages.
const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Bytes of one message: the quantum of a connection in one pass.
const MESSAGE_BYTES_MAX: u64 = 1024 * 1024;

/// The list of one message.
pub struct Gather {
    message: libc::msghdr,
    entries: Vec<libc::iovec>,
    /// A copy of the engine's header bytes, since those may move when more are appended.
    headers: Vec<u8>,
    bytes: u64,
}

impl Gather {
    fn new() -> Box<Gather> {
        Box::new(Gather {
            // SAFETY: a msghdr is plain data for which all zeros means "nothing".
            message: unsafe { std::mem::zeroed() },
            entries: Vec::with_capacity(ENTRIES_MAX),
            headers: Vec::with_capacity(HEADER_BYTES_MAX),
            bytes: 0,
        })
    }

    /// Fills the list with as many of the outgoing bytes as fit.
    fn fill_outgoing<'a>(&mut self, memory: &FrameMemory, parts: impl Iterator<Item = Outgoing<'a>>) {
        self.clear();
        for part in parts {
            if self.entries.len() == ENTRIES_MAX || self.bytes >= MESSAGE_BYTES_MAX {
                break;
            }
            match part {
                Outgoing::Bytes(bytes) => {
                    let room = HEADER_BYTES_MAX - self.headers.len();
                    let part = &bytes[..bytes.len().min(room)];
                    let at = self.headers.len();
                    self.headers.extend_from_slice(part);
                    let base = self.headers[at..].as_ptr().cast_mut().cast();
                    self.push(libc::iovec { iov_base: base, iov_len: part.len() });
                    if part.len() < bytes.len() {
                        break;
                    }
                }
                Outgoing::Frame { frame, start, len } => self.push(memory.readable(Segment { frame, start, len })),
            }
        }
    }

    /// Fills the list with as many of the segments as fit, to be received into.
    fn fill_segments(&mut self, memory: &FrameMemory, segments: impl Iterator<Item = Segment>) {
        self.clear();
        for segment in segments.take(ENTRIES_MAX) {
            self.push(memory.writable(segment));
        }
    }

    fn clear(&mut self) {
        self.entries.clear();
        self.headers.clear();
        self.bytes = 0;
    }

    fn push(&mut self, entry: libc::iovec) {
        if entry.iov_len > 0 {
            self.bytes += entry.iov_len as u64;
            push_merged(&mut self.entries, entry);
        }
    }

    /// Shortens the message to `most` bytes, if it is longer.
    pub fn shorten(&mut self, most: u64) {
        while self.bytes > most {
            let over = self.bytes - most;
            let last = self.entries.last_mut().expect("it has bytes");
            let cut = (last.iov_len as u64).min(over);
            last.iov_len -= cut as usize;
            self.bytes -= cut;
            if last.iov_len == 0 {
                self.entries.pop();
            }
        }
    }

    /// Bytes of the message.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The message, valid until the list is filled again or dropped.
    pub fn message(&mut self) -> *mut libc::msghdr {
        self.message.msg_iov = self.entries.as_mut_ptr();
        self.message.msg_iovlen = self.entries.len();
        &mut self.message
    }
}

/// A requested receive: in the kernel, or to be tried when the socket has bytes.
pub enum Receiving {
    /// Into a buffer of the pool, this many bytes at most.
    Pooled(usize),
    /// Waiting for a free buffer.
    Starved,
    /// Into frames.
    Direct(Box<Gather>),
}

/// The pool of lists that are not in use.
#[derive(Default)]
pub struct Gathers {
    #[expect(clippy::vec_box, reason = "the kernel is given their addresses: they must not move")]
    spare: Vec<Box<Gather>>,
}

impl Gathers {
    /// A list for sending these parts.
    pub fn outgoing<'a>(&mut self, memory: &FrameMemory, parts: impl Iterator<Item = Outgoing<'a>>) -> Box<Gather> {
        let mut gather = self.spare.pop().unwrap_or_else(Gather::new);
        gather.fill_outgoing(memory, parts);
        assert!(gather.bytes > 0, "an empty message is not sent");
        gather
    }

    /// A list for receiving into these segments.
    pub fn incoming(&mut self, memory: &FrameMemory, segments: impl Iterator<Item = Segment>) -> Box<Gather> {
        let mut gather = self.spare.pop().unwrap_or_else(Gather::new);
        gather.fill_segments(memory, segments);
        assert!(gather.bytes > 0, "nothing is not received");
        gather
    }

    /// Returns a list after the kernel has finished with it.
    pub fn give_back(&mut self, gather: Box<Gather>) {
        self.spare.push(gather);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Frames;
    use engine::ids::FrameId;

    #[test]
    fn messages_are_bounded_and_keep_their_order() {
        let memory = Frames::new(1000).unwrap().memory();
        let header = [7u8; 16];
        let parts = (1..1000u32)
            .flat_map(|i| [Outgoing::Bytes(&header), Outgoing::Frame { frame: FrameId(i), start: 0, len: 4096 }]);
        let gather = Gathers::default().outgoing(&memory, parts);
        assert_eq!((gather.bytes, gather.entries.len()), (MESSAGE_BYTES_MAX, 511));
        assert!(gather.entries.iter().step_by(2).all(|entry| entry.iov_len == 16));
    }

    #[test]
    fn long_headers_go_in_parts() {
        let memory = Frames::new(1).unwrap().memory();
        let long = vec![1u8; HEADER_BYTES_MAX + 5];
        let gather = Gathers::default().outgoing(&memory, [Outgoing::Bytes(&long)].into_iter());
        assert_eq!(gather.bytes, HEADER_BYTES_MAX as u64);
    }
}
