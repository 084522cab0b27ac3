//! One direction of a connection between two servers: of data only the length travels.

use std::collections::VecDeque;

/// Bytes, or data that is nowhere kept.
#[derive(Clone, Debug)]
pub(super) enum Piece {
    Bytes(Vec<u8>),
    Data(u64),
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Piece::Bytes(bytes) => bytes.len() as u64,
            Piece::Data(len) => *len,
        }
    }
}

/// What has arrived and was not taken.
#[derive(Default, Debug)]
pub(super) struct Pipe {
    pieces: VecDeque<Piece>,
}

impl Pipe {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(super) fn push(&mut self, pieces: Vec<Piece>) {
        for piece in pieces.into_iter().filter(|piece| piece.len() > 0) {
            match (self.pieces.back_mut(), piece) {
                // So that a header is in one piece.
                (Some(Piece::Bytes(last)), Piece::Bytes(bytes)) => last.extend_from_slice(&bytes),
                (Some(Piece::Data(last)), Piece::Data(len)) => *last += len,
                (_, piece) => self.pieces.push_back(piece),
            }
        }
    }

    /// The bytes at the front; none if data is there.
    pub(super) fn front(&self) -> &[u8] {
        match self.pieces.front() {
            Some(Piece::Bytes(bytes)) => bytes,
            Some(Piece::Data(_)) | None => &[],
        }
    }

    /// Takes at most so many, and passes on what is bytes. Returns how many.
    pub(super) fn take(&mut self, most: u64, mut seen: impl FnMut(u64, &[u8])) -> u64 {
        let mut taken = 0;
        while taken < most {
            let Some(piece) = self.pieces.front_mut() else { break };
            let len = piece.len().min(most - taken);
            if let Piece::Bytes(bytes) = piece {
                seen(taken, &bytes[..len as usize]);
            }
            taken += len;
            match piece {
                _ if len == piece.len() => _ = self.pieces.pop_front(),
                Piece::Bytes(bytes) => _ = bytes.drain(..len as usize),
                Piece::Data(left) => *left -= len,
            }
        }
        taken
    }
}
