//! Requests and their pieces.
//!
//! ```text
//!   1 MiB at 100 KiB:   |piece ..256K|piece ..512K|piece ..768K|piece ..1024K|piece ..1124K|
//! ```
//!
//! A piece has at most 256 KiB. It ends at a multiple of that, unless it is the last one, ends before a range that the
//! device zeroes, or was cut to the frames or the reply room that are available. Its frames are reserved, all or none,
//! before its payload is received or its fills begin: no piece holds frames while it waits for others.

use crate::cache::{NONE, Queue};
use crate::errno::Errno;
use crate::ids::{ConnId, FrameId, VolumeId};
use crate::nbd::Kind;
use crate::slab::Slab;
use crate::units::{BLOCK, Nanos, PIECE};

/// A request that was received and is not answered yet.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) conn: ConnId,
    pub(crate) volume: VolumeId,
    pub(crate) kind: Kind,
    pub(crate) cookie: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Where the next piece begins.
    pub(crate) next: u64,
    /// A part that is not processed in pieces, because the device zeroes it.
    pub(crate) skip: (u64, u64),
    /// The index of the stream that a read belongs to.
    pub(crate) stream: Option<usize>,
    /// Pieces and range operations in progress.
    pub(crate) active: u32,
    /// One of them is the range operation of a WRITE_ZEROES.
    pub(crate) zeroes_range: bool,
    pub(crate) error: Option<Errno>,
    /// It is answered only when it is on the medium.
    pub(crate) durable: bool,
    /// The reply of the read must not be split (DF).
    pub(crate) unsplit: bool,
    /// A block of it was not in the cache, so that it waited for the device.
    pub(crate) missed: bool,
    /// A part of the reply is already queued.
    pub(crate) begun: bool,
    /// The last chunk of the reply is queued.
    pub(crate) ended: bool,
    /// It must be flushed before it is answered (if it must be durable).
    pub(crate) flush_first: bool,
    /// It is on the agenda, or on its connection's list of stalled reads.
    pub(crate) queued: bool,
    /// Its blocks, if it is a read that belongs to no stream; else 0.
    pub(crate) scattered: u32,
    /// It is one of the CACHE requests that its tenant may have in progress.
    pub(crate) caching: bool,
    pub(crate) arrived: Nanos,
    /// Flags of the command.
    pub(crate) flags: u16,
    /// Since when the ceilings of its tenant hold it back, or it waits for a lease.
    pub(crate) held_at: Option<Nanos>,
}

impl Default for Request {
    fn default() -> Self {
        Request {
            conn: ConnId(0),
            volume: VolumeId(0),
            kind: Kind::Flush,
            cookie: 0,
            start: 0,
            end: 0,
            next: 0,
            skip: (0, 0),
            stream: None,
            active: 0,
            zeroes_range: false,
            error: None,
            durable: false,
            unsplit: false,
            missed: false,
            begun: false,
            ended: false,
            flush_first: false,
            queued: false,
            scattered: 0,
            caching: false,
            arrived: 0,
            flags: 0,
            held_at: None,
        }
    }
}

impl Request {
    /// The next piece: start and end (exclusive). `None` at the end.
    pub(crate) fn upcoming(&self) -> Option<(u64, u64)> {
        let start = if self.next == self.skip.0 { self.skip.1.max(self.next) } else { self.next };
        if start >= self.end || self.error.is_some() {
            return None;
        }
        let stop = if start < self.skip.0 { self.skip.0 } else { self.end };
        Some((start, if stop - start <= PIECE { stop } else { (start / PIECE + 1) * PIECE }))
    }

    /// Takes the next piece.
    pub(crate) fn next_piece(&mut self) -> Option<(u64, u64)> {
        let piece = self.upcoming()?;
        self.next = piece.1;
        Some(piece)
    }

    /// No part is in progress, and none remains.
    pub(crate) fn is_done(&self) -> bool {
        let next = if self.next == self.skip.0 { self.skip.1.max(self.next) } else { self.next };
        // The payload of a failed write must still be received.
        self.active == 0 && (next >= self.end || self.error.is_some() && self.kind != Kind::Write)
    }
}

/// A part of a request that is processed at once.
#[derive(Default, Debug)]
pub(crate) struct Piece {
    pub(crate) request: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// One for each block: the content that was read, or that is to be written.
    pub(crate) frames: Vec<FrameId>,
    /// Spare frames for the fills of a first and a last block that are written in part.
    pub(crate) spares: Vec<FrameId>,
    /// Blocks that are not read or written yet.
    pub(crate) pending: u32,
    /// Blocks that are not on the medium yet.
    pub(crate) persisting: u32,
    /// When the piece began to wait for frames.
    pub(crate) waiting_since: Nanos,
    /// When its frames began to wait for payload.
    pub(crate) receiving_since: Nanos,
    pub(crate) error: Option<Errno>,
}

impl Piece {
    pub(crate) fn first_block(&self) -> u64 {
        self.start / BLOCK
    }

    /// The number of blocks that it touches.
    pub(crate) fn blocks(&self) -> usize {
        (self.end.div_ceil(BLOCK) - self.first_block()) as usize
    }

    pub(crate) fn frames_held(&self) -> u32 {
        (self.frames.len() + self.spares.len()) as u32
    }

    /// How many bytes of block `i` belong to the piece.
    pub(crate) fn len_in(&self, i: usize) -> u64 {
        let (start, end) = self.bytes_in(i);
        end - start
    }

    /// The bytes of block `i` that belong to the piece, relative to the block.
    pub(crate) fn bytes_in(&self, i: usize) -> (u64, u64) {
        let base = (self.first_block() + i as u64) * BLOCK;
        (self.start.max(base) - base, self.end.min(base + BLOCK) - base)
    }
}

/// A piece that waits for a block.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Waiter {
    pub(crate) piece: u32,
    /// Index of the block within the piece.
    pub(crate) at: u32,
    pub(crate) next: u32,
    /// The prospect of a piece that waits for the medium.
    pub(crate) prospect: Prospect,
}

/// Whether the content that a piece has given to a block comes to the medium.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Prospect {
    /// It is to be written.
    #[default]
    Open,
    /// A durable write of the block is in the device that began after the piece took effect.
    Covered,
    /// It was given up.
    Lost,
}

impl Waiter {
    pub(crate) fn new(piece: u32, at: usize) -> Waiter {
        Waiter { piece, at: at as u32, next: NONE, prospect: Prospect::Open }
    }
}

impl Slab<Waiter> {
    /// Sets the prospect of all pieces in a queue.
    pub(crate) fn expect(&mut self, queue: Queue, prospect: Prospect) {
        let mut next = queue.head;
        while next != NONE {
            self[next].prospect = prospect;
            next = self[next].next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_at_multiples_and_leave_out_what_is_skipped() {
        let mut request = Request { next: 100, end: PIECE * 3 + 5, skip: (4096, PIECE * 3), ..Request::default() };
        assert_eq!(request.next_piece(), Some((100, 4096)));
        assert_eq!(request.next_piece(), Some((PIECE * 3, PIECE * 3 + 5)));
        assert_eq!(request.next_piece(), None);
        assert!(request.is_done());
    }

    #[test]
    fn blocks_of_an_unaligned_piece() {
        let piece = Piece { start: 4000, end: 8200, ..Piece::default() };
        assert_eq!(piece.blocks(), 3);
        assert_eq!([piece.bytes_in(0), piece.bytes_in(1), piece.bytes_in(2)], [(4000, 4096), (0, 4096), (0, 8)]);
    }
}
