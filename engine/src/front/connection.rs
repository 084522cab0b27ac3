//! A connection in its transmission phase: its inbound state, and its queue of outgoing bytes.

use std::collections::VecDeque;

use crate::disk::Segment;
use crate::errno::Errno;
use crate::ids::FrameId;
use crate::nbd::wire::{self, chunk};
use crate::units::Nanos;

/// Bytes of the longest header that is sent as one part: a chunk header with an offset has 28, an error chunk 26.
const HEADER_BYTES_MAX: usize = 32;

/// A part of the outgoing bytes.
#[derive(Clone, Copy, Debug)]
enum Out {
    Bytes {
        len: u8,
        bytes: [u8; HEADER_BYTES_MAX],
    },
    /// Holds a reference to its frame.
    Frame(Segment),
}

impl Out {
    fn len(&self) -> u64 {
        match self {
            Out::Bytes { len, .. } => u64::from(*len),
            Out::Frame(segment) => u64::from(segment.len),
        }
    }
}

/// A part of the outgoing bytes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outgoing<'a> {
    /// Bytes of a reply header. The engine owns them until they are sent.
    Bytes(&'a [u8]),
    /// Bytes of a frame.
    Frame {
        /// The frame.
        frame: FrameId,
        /// First byte.
        start: u16,
        /// Bytes.
        len: u16,
    },
}

impl Outgoing<'_> {
    /// The number of bytes.
    pub fn bytes(&self) -> u64 {
        match self {
            Outgoing::Bytes(bytes) => bytes.len() as u64,
            Outgoing::Frame { len, .. } => u64::from(*len),
        }
    }
}

/// A connection.
#[derive(Default, Debug)]
pub(crate) struct Connection {
    /// To be closed when all requests are answered.
    pub(crate) leaving: bool,
    /// Its closing was asked for.
    pub(crate) closing: bool,
    /// Nothing is read from the connection at present. Stored, not computed on demand: the driver is told when the
    /// pause ends, whatever the cause.
    pub(crate) paused: bool,
    out: VecDeque<Out>,
    /// Bytes of the first part that are already sent.
    sent: u64,
    /// All bytes sent since the connection began.
    pub(crate) taken: u64,
    /// Bytes that are queued to be sent.
    pub(crate) unsent: u64,
    /// When the client last received bytes, or when bytes were first queued for it.
    pub(crate) took_at: Nanos,
    last_cookie: u64,
}

impl Connection {
    fn push(&mut self, parts: &[&[u8]]) {
        let mut bytes = [0; HEADER_BYTES_MAX];
        let mut len = 0;
        for part in parts {
            bytes[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        self.unsent += len as u64;
        self.out.push_back(Out::Bytes { len: len as u8, bytes });
    }

    /// Queues bytes of a frame; takes ownership of the caller's reference.
    pub(crate) fn push_frame(&mut self, segment: Segment) {
        self.unsent += u64::from(segment.len);
        self.out.push_back(Out::Frame(segment));
    }

    fn cookie(&mut self, cookie: u64) -> u64 {
        let last = std::mem::replace(&mut self.last_cookie, cookie);
        if planted!(ReplyCookieMixedUp) && last % 16 == 3 { last } else { cookie }
    }

    /// A simple reply: a complete answer, or the header before the data of a read.
    pub(crate) fn push_simple(&mut self, cookie: u64, error: Option<Errno>) {
        let cookie = self.cookie(cookie);
        let error = error.map_or(0, |error| error as u32);
        self.push(&[&wire::SIMPLE_REPLY_MAGIC.to_be_bytes(), &error.to_be_bytes(), &cookie.to_be_bytes()]);
    }

    fn push_chunk(&mut self, cookie: u64, kind: u16, done: bool, payload_bytes: u32, head: &[&[u8]]) {
        let cookie = self.cookie(cookie);
        let flags = if done { chunk::FLAG_DONE } else { 0 };
        let mut parts: [&[u8]; 8] = [&[]; 8];
        let (magic, flags, kind) =
            (wire::STRUCTURED_REPLY_MAGIC.to_be_bytes(), flags.to_be_bytes(), kind.to_be_bytes());
        let (cookie, length) = (cookie.to_be_bytes(), payload_bytes.to_be_bytes());
        parts[..5].copy_from_slice(&[&magic, &flags, &kind, &cookie, &length]);
        parts[5..5 + head.len()].copy_from_slice(head);
        self.push(&parts);
    }

    /// An empty chunk that ends a reply.
    pub(crate) fn push_none(&mut self, cookie: u64) {
        self.push_chunk(cookie, chunk::NONE, true, 0, &[]);
    }

    /// The header of a data chunk; `bytes` of frames must follow.
    pub(crate) fn push_data_head(&mut self, cookie: u64, done: bool, offset: u64, bytes: u64) {
        self.push_chunk(cookie, chunk::OFFSET_DATA, done, bytes as u32 + 8, &[&offset.to_be_bytes()]);
    }

    /// A chunk for a hole, that is, for zeros.
    pub(crate) fn push_hole(&mut self, cookie: u64, done: bool, offset: u64, bytes: u64) {
        let (offset, bytes) = (offset.to_be_bytes(), (bytes as u32).to_be_bytes());
        self.push_chunk(cookie, chunk::OFFSET_HOLE, done, 12, &[&offset, &bytes]);
    }

    /// A chunk that ends a reply with an error.
    pub(crate) fn push_error(&mut self, cookie: u64, error: Errno) {
        self.push_chunk(cookie, chunk::ERROR, true, 6, &[&(error as u32).to_be_bytes(), &0u16.to_be_bytes()]);
    }

    /// The chunk of `base:allocation`: lengths and flags.
    pub(crate) fn push_extents(&mut self, cookie: u64, extents: &[(u32, u32)]) {
        let payload = 4 + 8 * extents.len() as u32;
        self.push_chunk(cookie, chunk::BLOCK_STATUS, true, payload, &[&wire::BASE_ALLOCATION_ID.to_be_bytes()]);
        for (len, flags) in extents {
            self.push(&[&len.to_be_bytes(), &flags.to_be_bytes()]);
        }
    }

    /// The bytes that wait to be sent, in order.
    pub(crate) fn outgoing(&self) -> impl Iterator<Item = Outgoing<'_>> + '_ {
        self.out.iter().enumerate().map(|(i, out)| {
            let skip = if i == 0 { self.sent } else { 0 };
            match out {
                Out::Bytes { len, bytes } => Outgoing::Bytes(&bytes[skip as usize..usize::from(*len)]),
                Out::Frame(segment) => Outgoing::Frame {
                    frame: segment.frame,
                    start: segment.start + skip as u16,
                    len: segment.len - skip as u16,
                },
            }
        })
    }

    /// `bytes` were sent: calls `free` for each frame that is sent completely.
    pub(crate) fn sent(&mut self, bytes: u64, mut free: impl FnMut(FrameId)) {
        self.unsent -= bytes;
        self.sent += bytes;
        self.taken += bytes;
        while let Some(&front) = self.out.front() {
            if self.sent < front.len() {
                break;
            }
            self.sent -= front.len();
            self.out.pop_front();
            if let Out::Frame(segment) = front {
                free(segment.frame);
            }
        }
    }

    /// Queued parts: headers and frames.
    pub(crate) fn parts(&self) -> usize {
        self.out.len()
    }

    /// Whether nothing waits to be sent.
    pub(crate) fn is_drained(&self) -> bool {
        self.out.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_sends_free_frames_when_their_last_byte_is_gone() {
        let mut connection = Connection::default();
        connection.push_simple(7, None);
        connection.push_frame(Segment::new(FrameId(5), 0, 100));
        let mut freed = Vec::new();
        connection.sent(20, |frame| freed.push(frame));
        assert_eq!(freed, []);
        let rest: Vec<_> = connection.outgoing().collect();
        assert_eq!(rest, [Outgoing::Frame { frame: FrameId(5), start: 4, len: 96 }]);
        connection.sent(96, |frame| freed.push(frame));
        assert_eq!(freed, [FrameId(5)]);
        assert!(connection.is_drained() && connection.unsent == 0);
    }
}
