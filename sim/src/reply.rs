//! Parses reply bytes into chunks; bytes that cannot be parsed are an error of the server.

use engine::nbd::wire::{SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC};

/// One simple reply, or one chunk of a structured one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chunk<'a> {
    /// Simple: error and data.
    Simple {
        /// The cookie of its request.
        cookie: u64,
        /// 0 or an error number.
        error: u32,
        /// The data of a read.
        data: &'a [u8],
    },
    /// Structured.
    Structured {
        /// The cookie of its request.
        cookie: u64,
        /// As on the wire.
        flags: u16,
        /// As on the wire.
        kind: u16,
        /// The bytes after the header.
        body: &'a [u8],
    },
}

/// Received bytes that are not yet parsed.
#[derive(Default, Debug)]
pub struct Replies {
    bytes: Vec<u8>,
    at: usize,
}

impl Replies {
    /// Adds received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.at == self.bytes.len() {
            self.bytes.clear();
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether all bytes are parsed.
    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn take(&mut self, len: usize) -> Option<&[u8]> {
        let from = self.at;
        (self.bytes.len() - from >= len).then(|| {
            self.at += len;
            &self.bytes[from..from + len]
        })
    }

    /// The next chunk, if it is complete. `data_bytes` gives the number of bytes after a successful simple reply to a
    /// cookie, if there is such a request.
    pub fn next(&mut self, data_bytes: impl Fn(u64) -> Option<u64>) -> Result<Option<Chunk<'_>>, String> {
        let rest = &self.bytes[self.at..];
        if rest.len() < 16 {
            return Ok(None);
        }
        let (magic, second) = (be32(&rest[0..]), be32(&rest[4..]));
        let cookie = u64::from_be_bytes(rest[8..16].try_into().expect("8 bytes"));
        match magic {
            SIMPLE_REPLY_MAGIC => {
                let Some(len) = data_bytes(cookie) else {
                    return Err(format!("a reply to cookie {cookie:#x}: nobody"));
                };
                let len = if second == 0 { len as usize } else { 0 };
                Ok(self.take(16 + len).map(|bytes| Chunk::Simple { cookie, error: second, data: &bytes[16..] }))
            }
            STRUCTURED_REPLY_MAGIC if rest.len() < 20 => Ok(None),
            STRUCTURED_REPLY_MAGIC => {
                let len = be32(&rest[16..]) as usize;
                let (flags, kind) = ((second >> 16) as u16, second as u16);
                Ok(self.take(20 + len).map(|bytes| Chunk::Structured { cookie, flags, kind, body: &bytes[20..] }))
            }
            _ => Err(format!("{magic:#x} is no reply's beginning")),
        }
    }
}

/// A big-endian number of four bytes.
pub fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes[..4].try_into().expect("4 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_in_any_parts() {
        let mut bytes = Vec::new();
        bytes.extend(SIMPLE_REPLY_MAGIC.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(7u64.to_be_bytes());
        bytes.extend(*b"abc");
        bytes.extend(STRUCTURED_REPLY_MAGIC.to_be_bytes());
        bytes.extend([0, 1, 0, 0]);
        bytes.extend(8u64.to_be_bytes());
        bytes.extend(0u32.to_be_bytes());
        let mut replies = Replies::default();
        let mut seen = Vec::new();
        for byte in bytes {
            replies.feed(&[byte]);
            match replies.next(|_| Some(3)).unwrap() {
                Some(Chunk::Simple { cookie, error, data }) => seen.push((cookie, error, data.len())),
                Some(Chunk::Structured { cookie, flags, kind, body }) => {
                    seen.push((cookie, u32::from(flags), body.len() + usize::from(kind)));
                }
                None => {}
            }
        }
        assert_eq!(seen, [(7, 0, 3), (8, 1, 0)]);
        assert!(replies.is_empty());
        replies.feed(&[0xff; 16]);
        assert!(replies.next(|_| None).is_err());
    }
}
