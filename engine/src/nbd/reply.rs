//! Headers as they are sent: those of replies, which [`super::Replies`] reads, and those of requests.

use super::wire::{self, chunk};
use super::{Form, RawHeader};
use crate::errno::Errno;

/// The longest header that is sent as one part: that of a hole in an extended reply (32, an offset, a length).
const HEAD_BYTES_MAX: usize = 44;

/// Bytes of one reply's header, with the fixed first fields of its body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    len: u8,
    bytes: [u8; HEAD_BYTES_MAX],
}

/// What a reply says about its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Of {
    pub(crate) form: Form,
    pub(crate) cookie: u64,
    /// The first byte of the request, which an extended reply repeats.
    pub(crate) offset: u64,
}

impl From<RawHeader> for Head {
    fn from(header: RawHeader) -> Head {
        Head::of(&[&header])
    }
}

impl Head {
    /// Any bytes, in as many parts as they need.
    pub(crate) fn of_bytes(bytes: &[u8]) -> impl Iterator<Item = Head> + '_ {
        bytes.chunks(HEAD_BYTES_MAX).map(|part| Head::of(&[part]))
    }

    fn of(parts: &[&[u8]]) -> Head {
        let mut head = Head { len: 0, bytes: [0; HEAD_BYTES_MAX] };
        parts.iter().for_each(|part| head.push(part));
        head
    }

    fn push(&mut self, part: &[u8]) {
        let (from, to) = (usize::from(self.len), usize::from(self.len) + part.len());
        self.bytes[from..to].copy_from_slice(part);
        self.len = to as u8;
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// A simple reply: a complete answer, or the header before the data of a read.
    fn simple(cookie: u64, error: Option<Errno>) -> Head {
        let error = error.map_or(0, |error| error as u32);
        Head::of(&[&wire::SIMPLE_REPLY_MAGIC.to_be_bytes(), &error.to_be_bytes(), &cookie.to_be_bytes()])
    }

    /// The header of a chunk with a body of `bytes`.
    fn chunk(of: Of, kind: u16, done: bool, bytes: u64) -> Head {
        let flags = if done { chunk::FLAG_DONE } else { 0 };
        let extended = of.form == Form::Extended;
        let magic = if extended { wire::EXTENDED_REPLY_MAGIC } else { wire::STRUCTURED_REPLY_MAGIC };
        let (flags, kind, cookie) = (flags.to_be_bytes(), kind.to_be_bytes(), of.cookie.to_be_bytes());
        let mut head = Head::of(&[&magic.to_be_bytes(), &flags, &kind, &cookie]);
        if extended {
            head.push(&of.offset.to_be_bytes());
            head.push(&bytes.to_be_bytes());
        } else {
            head.push(&(bytes as u32).to_be_bytes());
        }
        head
    }

    /// The header of a complete answer without data. `in_chunks`: the request is one that structured replies answer.
    pub(crate) fn answer(of: Of, in_chunks: bool, error: Option<Errno>) -> Head {
        let in_chunks = in_chunks && of.form.is_structured() || of.form == Form::Extended;
        match error {
            error if !in_chunks => Head::simple(of.cookie, error),
            None => Head::chunk(of, chunk::NONE, true, 0),
            Some(error) => {
                let mut head = Head::chunk(of, chunk::ERROR, true, 6);
                head.push(&(error as u32).to_be_bytes());
                head.push(&0u16.to_be_bytes());
                head
            }
        }
    }

    /// The header of the data of a read in a simple reply.
    pub(crate) fn data(of: Of) -> Head {
        Head::simple(of.cookie, None)
    }

    /// The header of a data chunk; `bytes` of data must follow.
    pub(crate) fn data_chunk(of: Of, done: bool, at: u64, bytes: u64) -> Head {
        let mut head = Head::chunk(of, chunk::OFFSET_DATA, done, bytes + 8);
        head.push(&at.to_be_bytes());
        head
    }

    /// A chunk for a hole, that is, for zeros.
    pub(crate) fn hole(of: Of, done: bool, at: u64, bytes: u64) -> Head {
        let mut head = Head::chunk(of, chunk::OFFSET_HOLE, done, 12);
        head.push(&at.to_be_bytes());
        head.push(&(bytes as u32).to_be_bytes());
        head
    }

    /// The header of a block status of `extents` extents of a context, each of which follows ([`Head::extent`]).
    pub(crate) fn status(of: Of, done: bool, context: u32, extents: usize) -> Head {
        let context = context.to_be_bytes();
        if of.form != Form::Extended {
            let mut head = Head::chunk(of, chunk::BLOCK_STATUS, done, 4 + 8 * extents as u64);
            head.push(&context);
            return head;
        }
        let mut head = Head::chunk(of, chunk::BLOCK_STATUS_EXT, done, 8 + 16 * extents as u64);
        head.push(&context);
        head.push(&(extents as u32).to_be_bytes());
        head
    }

    /// An extent of a block status.
    pub(crate) fn extent(form: Form, bytes: u64, flags: u32) -> Head {
        match form {
            Form::Extended => Head::of(&[&bytes.to_be_bytes(), &u64::from(flags).to_be_bytes()]),
            _ => Head::of(&[&(bytes as u32).to_be_bytes(), &flags.to_be_bytes()]),
        }
    }
}
