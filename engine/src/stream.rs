//! The outgoing bytes of a connection: headers, and bytes of frames.

use std::collections::VecDeque;

use crate::disk::Segment;
use crate::ids::FrameId;
use crate::nbd::Head;

/// A part of the outgoing bytes.
#[derive(Clone, Copy, Debug)]
enum Out {
    Bytes(Head),
    Frame(Segment),
}

impl Out {
    fn len(&self) -> u64 {
        match self {
            Out::Bytes(head) => head.bytes().len() as u64,
            Out::Frame(segment) => u64::from(segment.len),
        }
    }
}

/// A part of the outgoing bytes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outgoing<'a> {
    /// Bytes of a header. The engine owns them until they are sent.
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

/// The bytes that a connection has to send, in order.
#[derive(Default, Debug)]
pub(crate) struct Stream {
    out: VecDeque<Out>,
    /// Bytes of the first part that are already sent.
    sent: u64,
    /// All bytes sent since the connection began.
    pub(crate) taken: u64,
    /// Bytes that are queued to be sent.
    pub(crate) unsent: u64,
}

impl Stream {
    /// Queues a header.
    pub(crate) fn push(&mut self, head: Head) {
        self.unsent += head.bytes().len() as u64;
        self.out.push_back(Out::Bytes(head));
    }

    /// Queues bytes of any number.
    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        Head::of_bytes(bytes).for_each(|head| self.push(head));
    }

    /// Queues bytes of a frame.
    pub(crate) fn push_frame(&mut self, segment: Segment) {
        self.unsent += u64::from(segment.len);
        self.out.push_back(Out::Frame(segment));
    }

    /// The bytes that wait to be sent, in order.
    pub(crate) fn outgoing(&self) -> impl Iterator<Item = Outgoing<'_>> + '_ {
        self.out.iter().enumerate().map(|(i, out)| {
            let skip = if i == 0 { self.sent } else { 0 };
            match out {
                Out::Bytes(head) => Outgoing::Bytes(&head.bytes()[skip as usize..]),
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
        let mut stream = Stream::default();
        stream.push_bytes(&[7; 16]);
        stream.push_frame(Segment::new(FrameId(5), 0, 100));
        let mut freed = Vec::new();
        stream.sent(20, |frame| freed.push(frame));
        assert_eq!(freed, []);
        let rest: Vec<_> = stream.outgoing().collect();
        assert_eq!(rest, [Outgoing::Frame { frame: FrameId(5), start: 4, len: 96 }]);
        stream.sent(96, |frame| freed.push(frame));
        assert_eq!(freed, [FrameId(5)]);
        assert!(stream.is_drained() && stream.unsent == 0);
    }
}
