//! Parses the server's reply stream, only as far as the headers of simple replies.

use std::collections::BTreeMap;

use engine::Outgoing;
use engine::nbd::wire::SIMPLE_REPLY_MAGIC;

use crate::load::{Op, Request};

/// Bytes of a simple reply's header.
const HEADER_BYTES: usize = 16;

/// The outstanding requests of a connection, and the state of the reply parser.
#[derive(Default)]
pub struct Replies {
    requests: BTreeMap<u64, Request>,
    header: [u8; HEADER_BYTES],
    /// Bytes of the header received so far.
    have: usize,
    /// The reply whose data is being received: its number, total bytes, remaining bytes.
    data: Option<(u64, u64, u64)>,
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
            match part {
                Outgoing::Bytes(bytes) => {
                    taken += bytes.len() as u64;
                    self.bytes(bytes, &mut complete);
                }
                Outgoing::Frame { len, .. } => {
                    taken += u64::from(len);
                    self.skip(u64::from(len), &mut complete);
                }
            }
        }
        taken
    }

    fn bytes(&mut self, mut bytes: &[u8], complete: &mut impl FnMut(u64, u64, bool)) {
        while !bytes.is_empty() {
            if let Some((.., left)) = self.data {
                let len = left.min(bytes.len() as u64);
                self.skip(len, complete);
                bytes = &bytes[len as usize..];
                continue;
            }
            let len = bytes.len().min(HEADER_BYTES - self.have);
            self.header[self.have..self.have + len].copy_from_slice(&bytes[..len]);
            self.have += len;
            bytes = &bytes[len..];
            if self.have == HEADER_BYTES {
                self.have = 0;
                self.begin_reply(complete);
            }
        }
    }

    fn begin_reply(&mut self, complete: &mut impl FnMut(u64, u64, bool)) {
        let word = |at: usize| u32::from_be_bytes(self.header[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!(word(0), SIMPLE_REPLY_MAGIC, "a reply begins with its magic number");
        let id = u64::from_be_bytes(self.header[8..].try_into().expect("8 bytes"));
        let request = self.requests[&id];
        match (request.op, word(4)) {
            (Op::Read, 0) => self.data = Some((id, request.bytes, request.bytes)),
            (_, error) => complete(id, 0, error != 0),
        }
    }

    fn skip(&mut self, bytes: u64, complete: &mut impl FnMut(u64, u64, bool)) {
        let (id, of, left) = self.data.take().expect("data belongs to a reply");
        assert!(bytes <= left, "a reply is as long as what was asked for");
        if bytes == left {
            complete(id, of, false);
        } else {
            self.data = Some((id, of, left - bytes));
        }
    }
}
