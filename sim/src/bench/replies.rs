//! The outstanding requests of a connection, and its replies: of data only the length counts.

use std::collections::BTreeMap;

use engine::Outgoing;
use engine::nbd::{self, Asked, Kind, Part};

use crate::load::{Op, Request};

/// The outstanding requests of a connection, and its stream of replies.
#[derive(Default)]
pub struct Replies {
    requests: BTreeMap<u64, Request>,
    replies: nbd::Replies,
    /// The reply in progress has data, or an error.
    bytes: u64,
    failed: bool,
}

impl Replies {
    /// The server has received a request.
    pub fn begin(&mut self, request: Request) {
        self.requests.insert(request.id, request);
    }

    /// The client has received the answer.
    pub fn finish(&mut self, id: u64) -> Request {
        self.requests.remove(&id).expect("an answer to a request that was made")
    }

    /// Takes all outgoing bytes. For each complete answer calls `complete` with the request's number, its bytes of
    /// data, and whether it failed. Returns the number of bytes taken.
    pub fn take<'a>(
        &mut self,
        outgoing: impl Iterator<Item = Outgoing<'a>>,
        mut complete: impl FnMut(u64, u64, bool),
    ) -> u64 {
        let mut taken = 0;
        for part in outgoing {
            taken += part.bytes();
            match part {
                Outgoing::Bytes(bytes) => self.read(bytes, &mut complete),
                Outgoing::Frame { len, .. } => {
                    self.replies.took(u64::from(len));
                    self.read(&[], &mut complete);
                }
            }
        }
        taken
    }

    fn read(&mut self, mut bytes: &[u8], complete: &mut impl FnMut(u64, u64, bool)) {
        let requests = &self.requests;
        let asked = |id| {
            let Request { op, offset, bytes: len, .. } = *requests.get(&id)?;
            let kind = match op {
                Op::Read => Kind::Read,
                Op::Write => Kind::Write,
                Op::Trim => Kind::Trim,
                Op::Flush => Kind::Flush,
            };
            Some(Asked { kind, offset, len })
        };
        loop {
            let (read, part) = self.replies.next(bytes, asked).expect("replies of our own server");
            bytes = &bytes[read..];
            match part {
                Some((_, Part::Data { len, .. })) => self.bytes = len,
                Some((_, Part::Error(_))) => self.failed = true,
                Some((id, Part::Done)) => {
                    complete(id, std::mem::take(&mut self.bytes), std::mem::take(&mut self.failed));
                }
                Some(_) => unreachable!("replies are simple"),
                None => return assert!(bytes.is_empty(), "data comes in frames"),
            }
        }
    }
}
