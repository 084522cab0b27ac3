//! Reads the replies of a server: of any form, in any portions. The data of reads stays outside.
//!
//! ```text
//!   bytes ─► next ─► Data { offset, len } ─► `len` bytes, which the caller takes: took ─┐
//!              ▲ │                                                                      │
//!              │ └─► Hole, Extent, Error, … of the same reply ◄─────────────────────────┤
//!              └──── Done: the reply is complete ◄──────────────────────────────────────┘
//! ```
//!
//! What no server may send is [`Broken`]: the position of the next reply is unknown then, or the reply is about
//! something that was not asked. Whether the parts of a read cover it once and completely is for the caller to check:
//! only the caller knows where the data went.

use super::wire::{self, chunk};
use super::{Form, Kind};

/// The fixed fields at the beginning of a header or a body, at most: an extended header.
const FIELDS_BYTES_MAX: usize = 32;

/// A request as far as replies to it must agree with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The command.
    pub kind: Kind,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Asked {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    fn covers(&self, offset: u64, len: u64) -> bool {
        let end = offset.checked_add(len);
        len > 0 && offset >= self.offset && end.is_some_and(|end| end <= self.end())
    }
}

/// A part of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Content of this range: its bytes follow, and are not passed to [`Replies::next`].
    Data {
        /// First byte in the export.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// This range is zero.
    Hole {
        /// First byte in the export.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// An extent of a block status. Extents of a reply follow one another; the last one may go beyond the request.
    Extent {
        /// First byte in the export.
        offset: u64,
        /// Bytes.
        len: u64,
        /// As on the wire.
        flags: u64,
    },
    /// The load of the export's disk, in requests: the flags of an extent of `aerogel:load`.
    Load(u64),
    /// The request failed with this error number. Further parts may follow.
    Error(u32),
    /// The reply is complete.
    Done,
}

/// Why the bytes of a server cannot be replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    /// No reply begins like this.
    #[error("{0:#x} is no beginning of a reply")]
    Magic(u32),
    /// A reply to a request that is not outstanding.
    #[error("a reply to cookie {0:#x}, for which no request is outstanding")]
    NotAsked(u64),
    /// A simple reply where chunks were negotiated.
    #[error("a simple reply to a request that is answered in chunks")]
    NotInChunks,
    /// An extended reply that names another offset than its request.
    #[error("a reply to a request at {asked} that names {named}")]
    Offset {
        /// Of the request.
        asked: u64,
        /// Of the reply.
        named: u64,
    },
    /// A chunk that does not answer its request, or whose lengths do not add up.
    #[error("a chunk of kind {kind} with flags {flags:#x} and {bytes} bytes in reply to {asked:?}")]
    Chunk {
        /// As on the wire.
        kind: u16,
        /// As on the wire.
        flags: u16,
        /// Bytes of its body.
        bytes: u64,
        /// The request.
        asked: Asked,
    },
    /// A part that is outside of its request, or empty.
    #[error("a part of {len} bytes at {offset} in reply to {asked:?}")]
    Outside {
        /// First byte in the export.
        offset: u64,
        /// Bytes.
        len: u64,
        /// The request.
        asked: Asked,
    },
    /// A block status of another context than the selected one.
    #[error("a block status of context {0}, which was not selected")]
    Context(u32),
}

/// A chunk, or a simple reply, whose header was read.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    cookie: u64,
    kind: u16,
    flags: u16,
    /// Bytes of its body.
    bytes: u64,
    asked: Asked,
}

impl Chunk {
    fn is_last(&self) -> bool {
        self.flags & chunk::FLAG_DONE != 0
    }

    fn broken(&self) -> Broken {
        Broken::Chunk { kind: self.kind, flags: self.flags, bytes: self.bytes, asked: self.asked }
    }

    /// Bytes of the fixed fields at the beginning of its body; an error if the body cannot have them.
    fn fields_bytes(&self, form: Form) -> Result<usize, Broken> {
        let of = |kind| self.asked.kind == kind;
        let (fits, bytes) = match self.kind {
            _ if self.flags & !chunk::FLAG_DONE != 0 => (false, 0),
            chunk::NONE => (self.bytes == 0 && self.is_last(), 0),
            chunk::OFFSET_DATA => (of(Kind::Read) && self.bytes > 8, 8),
            chunk::OFFSET_HOLE => (of(Kind::Read) && self.bytes == 12, 12),
            chunk::BLOCK_STATUS => {
                (of(Kind::Status) && form == Form::Structured && self.bytes >= 12 && self.bytes % 8 == 4, 4)
            }
            chunk::BLOCK_STATUS_EXT => {
                (of(Kind::Status) && form == Form::Extended && self.bytes >= 24 && self.bytes % 16 == 8, 8)
            }
            kind => (kind & chunk::IS_ERROR != 0 && self.bytes >= 6, 6),
        };
        if fits { Ok(bytes) } else { Err(self.broken()) }
    }
}

/// What is read next.
#[derive(Clone, Copy, Debug)]
enum State {
    Head,
    /// The fixed fields of a body.
    Fields(Chunk, usize),
    /// Data that the caller takes.
    Data(Chunk, u64),
    /// Extents: bytes that remain, and where the next one begins.
    Extents(Chunk, u64, u64),
    /// An extent of the load.
    Load(Chunk),
    /// The rest of an error's body: a text.
    Skip(Chunk, u64),
    /// Everything of this chunk is read.
    End(Chunk),
}

/// The reply stream of one connection.
#[derive(Debug)]
pub struct Replies {
    form: Form,
    /// The numbers of the contexts for which block status may be sent.
    context: Option<u32>,
    load: Option<u32>,
    state: State,
    fields: [u8; FIELDS_BYTES_MAX],
    have: usize,
}

impl Default for Replies {
    fn default() -> Self {
        Replies::new(Form::Simple, None)
    }
}

impl Replies {
    /// The stream of a session that was negotiated like this. Block status may have the context of this number.
    pub fn new(form: Form, context: Option<u32>) -> Replies {
        Replies { form, context, load: None, state: State::Head, fields: [0; FIELDS_BYTES_MAX], have: 0 }
    }

    /// Block status may also have the load of the export's disk, as the context of this number.
    pub fn with_load(self, load: Option<u32>) -> Replies {
        Replies { load, ..self }
    }

    /// Bytes of data that come next: the caller takes them, and says so with [`Replies::took`].
    pub fn data_bytes(&self) -> u64 {
        if let State::Data(_, left) = self.state { left } else { 0 }
    }

    /// Bytes of headers that come before the next data, if the next reply is one that has data.
    pub fn head_bytes(&self) -> usize {
        match self.state {
            State::Fields(_, bytes) => bytes - self.have,
            State::Head | State::Data(..) | State::Extents(..) | State::Load(_) | State::Skip(..) | State::End(_) => {
                let bytes = match self.form {
                    Form::Simple => 16,
                    Form::Structured => 20 + 8,
                    Form::Extended => 32 + 8,
                };
                if matches!(self.state, State::Head) { bytes - self.have } else { bytes }
            }
        }
    }

    /// The caller has taken `bytes` of data.
    pub fn took(&mut self, bytes: u64) {
        let State::Data(chunk, left) = self.state else { panic!("no data is due") };
        assert!(bytes <= left, "{bytes} bytes of data are taken, but {left} are due");
        self.state = if bytes == left { State::End(chunk) } else { State::Data(chunk, left - bytes) };
    }

    /// Whether the stream is between two replies or chunks.
    pub fn is_between(&self) -> bool {
        matches!(self.state, State::Head) && self.have == 0
    }

    /// Reads a prefix of `input` up to the next part. Returns the number of bytes read, and the part with the cookie
    /// of its request; without a part, all of `input` was read. `asked` knows the outstanding requests. While
    /// [`Replies::data_bytes`] are due, nothing is read.
    pub fn next(
        &mut self,
        input: &[u8],
        asked: impl Fn(u64) -> Option<Asked>,
    ) -> Result<(usize, Option<(u64, Part)>), Broken> {
        let mut read = 0;
        loop {
            if let State::End(chunk) = self.state {
                self.state = State::Head;
                if chunk.is_last() {
                    return Ok((read, Some((chunk.cookie, Part::Done))));
                }
            }
            if let State::Data(..) = self.state {
                return Ok((read, None));
            }
            let rest = &input[read..];
            if let State::Skip(chunk, left) = self.state {
                let bytes = left.min(rest.len() as u64);
                read += bytes as usize;
                self.state = if bytes == left { State::End(chunk) } else { State::Skip(chunk, left - bytes) };
                if bytes < left {
                    return Ok((read, None));
                }
                continue;
            }
            let bytes = (self.wanted() - self.have).min(rest.len());
            self.fields[self.have..self.have + bytes].copy_from_slice(&rest[..bytes]);
            self.have += bytes;
            read += bytes;
            if self.have < self.wanted() {
                if read == input.len() {
                    return Ok((read, None));
                }
                continue;
            }
            if let Some(part) = self.step(&asked)? {
                return Ok((read, Some(part)));
            }
        }
    }

    /// Bytes of the fields that are read next. Those of a header depend on its magic number.
    fn wanted(&self) -> usize {
        match self.state {
            State::Head if self.have < 4 => 4,
            State::Head => match self.u32_at(0) {
                wire::STRUCTURED_REPLY_MAGIC => 20,
                wire::EXTENDED_REPLY_MAGIC => 32,
                wire::SIMPLE_REPLY_MAGIC => 16,
                _ => 4,
            },
            State::Fields(_, bytes) => bytes,
            State::Extents(..) | State::Load(_) if self.form == Form::Extended => 16,
            State::Extents(..) | State::Load(_) => 8,
            State::Data(..) | State::Skip(..) | State::End(_) => 0,
        }
    }

    /// All wanted fields are read.
    fn step(&mut self, asked: &impl Fn(u64) -> Option<Asked>) -> Result<Option<(u64, Part)>, Broken> {
        self.have = 0;
        match self.state {
            State::Head => self.head(asked),
            State::Fields(chunk, _) => self.body(chunk),
            State::Extents(chunk, left, offset) => self.extent(chunk, left, offset),
            State::Load(chunk) => {
                self.state = State::End(chunk);
                let load = if self.form == Form::Extended { self.u64_at(8) } else { u64::from(self.u32_at(4)) };
                Ok(Some((chunk.cookie, Part::Load(load))))
            }
            State::Data(..) | State::Skip(..) | State::End(_) => unreachable!("they have no fields"),
        }
    }

    fn head(&mut self, asked: &impl Fn(u64) -> Option<Asked>) -> Result<Option<(u64, Part)>, Broken> {
        let magic = self.u32_at(0);
        let expected = match self.form {
            Form::Simple => wire::SIMPLE_REPLY_MAGIC,
            Form::Structured => wire::STRUCTURED_REPLY_MAGIC,
            Form::Extended => wire::EXTENDED_REPLY_MAGIC,
        };
        if magic != expected && !(magic == wire::SIMPLE_REPLY_MAGIC && self.form == Form::Structured) {
            return Err(Broken::Magic(magic));
        }
        let cookie = self.u64_at(8);
        let asked = asked(cookie).ok_or(Broken::NotAsked(cookie))?;
        if magic == wire::SIMPLE_REPLY_MAGIC {
            return self.simple(cookie, asked);
        }
        let (flags, kind) = ((self.u32_at(4) >> 16) as u16, self.u32_at(4) as u16);
        let mut chunk = Chunk { cookie, kind, flags, bytes: u64::from(self.u32_at(16)), asked };
        if magic == wire::EXTENDED_REPLY_MAGIC {
            let named = self.u64_at(16);
            if named != asked.offset {
                return Err(Broken::Offset { asked: asked.offset, named });
            }
            chunk.bytes = self.u64_at(24);
        }
        self.state = match chunk.fields_bytes(self.form)? {
            0 => State::End(chunk),
            bytes => State::Fields(chunk, bytes),
        };
        Ok(None)
    }

    fn simple(&mut self, cookie: u64, asked: Asked) -> Result<Option<(u64, Part)>, Broken> {
        let in_chunks = matches!(asked.kind, Kind::Read | Kind::Status);
        if in_chunks && self.form != Form::Simple {
            return Err(Broken::NotInChunks);
        }
        let (error, chunk) =
            (self.u32_at(4), Chunk { cookie, kind: chunk::NONE, flags: chunk::FLAG_DONE, bytes: 0, asked });
        self.state = State::End(chunk);
        if error != 0 {
            return Ok(Some((cookie, Part::Error(error))));
        }
        if asked.kind != Kind::Read || asked.len == 0 {
            return Ok(None);
        }
        self.state = State::Data(chunk, asked.len);
        Ok(Some((cookie, Part::Data { offset: asked.offset, len: asked.len })))
    }

    /// The fixed fields of a body are read.
    fn body(&mut self, chunk: Chunk) -> Result<Option<(u64, Part)>, Broken> {
        let Chunk { cookie, kind, bytes, asked, .. } = chunk;
        let (offset, first) = (self.u64_at(0), self.u32_at(0));
        let part = match kind {
            chunk::OFFSET_DATA | chunk::OFFSET_HOLE => {
                let is_data = kind == chunk::OFFSET_DATA;
                let len = if is_data { bytes - 8 } else { u64::from(self.u32_at(8)) };
                if !asked.covers(offset, len) {
                    return Err(Broken::Outside { offset, len, asked });
                }
                self.state = if is_data { State::Data(chunk, len) } else { State::End(chunk) };
                if is_data { Part::Data { offset, len } } else { Part::Hole { offset, len } }
            }
            chunk::BLOCK_STATUS | chunk::BLOCK_STATUS_EXT => {
                let extended = kind == chunk::BLOCK_STATUS_EXT;
                let left = bytes - if extended { 8 } else { 4 };
                if extended && u64::from(self.u32_at(4)) != left / 16 {
                    return Err(chunk.broken());
                }
                self.state = match Some(first) {
                    context if context == self.context => State::Extents(chunk, left, asked.offset),
                    // One extent says it all.
                    load if load == self.load && left == if extended { 16 } else { 8 } => State::Load(chunk),
                    load if load == self.load => return Err(chunk.broken()),
                    _ => return Err(Broken::Context(first)),
                };
                return Ok(None);
            }
            kind => {
                let text = u64::from(self.u32_at(4) >> 16);
                // Errors of kinds that are not known may have further fields.
                let fits = match kind {
                    chunk::ERROR => bytes == 6 + text,
                    chunk::ERROR_OFFSET => bytes == 14 + text,
                    _ => bytes >= 6 + text,
                };
                if first == 0 || !fits {
                    return Err(chunk.broken());
                }
                self.state = State::Skip(chunk, bytes - 6);
                Part::Error(first)
            }
        };
        Ok(Some((cookie, part)))
    }

    fn extent(&mut self, chunk: Chunk, left: u64, offset: u64) -> Result<Option<(u64, Part)>, Broken> {
        let extended = self.form == Form::Extended;
        let (len, flags) = match extended {
            true => (self.u64_at(0), self.u64_at(8)),
            false => (u64::from(self.u32_at(0)), u64::from(self.u32_at(4))),
        };
        let left = left - if extended { 16 } else { 8 };
        let end = offset.checked_add(len);
        let Some(end) = end.filter(|_| len > 0 && offset < chunk.asked.end()) else {
            return Err(Broken::Outside { offset, len, asked: chunk.asked });
        };
        self.state = if left == 0 { State::End(chunk) } else { State::Extents(chunk, left, end) };
        Ok(Some((chunk.cookie, Part::Extent { offset, len, flags })))
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_be_bytes([self.fields[at], self.fields[at + 1], self.fields[at + 2], self.fields[at + 3]])
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from(self.u32_at(at)) << 32 | u64::from(self.u32_at(at + 4))
    }
}

#[cfg(test)]
mod tests;
