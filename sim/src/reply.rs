//! The reply bytes of a connection, read by the engine's own reader of replies, with the data of reads in one piece.

use engine::Session;
use engine::nbd::wire::{BASE_ALLOCATION_ID, LOAD_ID};
use engine::nbd::{self, Asked, Part};

/// A part of a reply: the cookie of its request, the part, and its data.
pub type Received<'a> = (u64, Part, &'a [u8]);

/// Received bytes that are not yet read.
#[derive(Debug)]
pub struct Replies {
    replies: nbd::Replies,
    bytes: Vec<u8>,
    at: usize,
    /// The part whose data has not arrived completely, and the cookie of its request.
    data: Option<(u64, Part)>,
}

impl Replies {
    /// The replies to a client that has negotiated this session.
    pub fn new(session: Session) -> Replies {
        let context = session.base_allocation.then_some(BASE_ALLOCATION_ID);
        let replies = nbd::Replies::new(session.form, context).with_load(session.load.then_some(LOAD_ID));
        Replies { replies, bytes: Vec::new(), at: 0, data: None }
    }

    /// Adds received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.at == self.bytes.len() {
            self.bytes.clear();
            self.at = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next part of a reply with the cookie of its request and its data, once it is complete. `asked` knows the
    /// outstanding requests.
    pub fn next(&mut self, asked: impl Fn(u64) -> Option<Asked>) -> Result<Option<Received<'_>>, String> {
        if self.data.is_none() {
            let (read, part) = self.replies.next(&self.bytes[self.at..], asked).map_err(|what| what.to_string())?;
            self.at += read;
            match part {
                Some((_, Part::Data { .. })) => self.data = part,
                part => return Ok(part.map(|(cookie, part)| (cookie, part, &[][..]))),
            }
        }
        let len = self.replies.data_bytes() as usize;
        if self.bytes.len() - self.at < len {
            return Ok(None);
        }
        self.replies.took(len as u64);
        let from = self.at;
        self.at += len;
        Ok(self.data.take().map(|(cookie, part)| (cookie, part, &self.bytes[from..from + len])))
    }
}
