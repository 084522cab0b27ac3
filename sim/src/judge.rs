//! The protocol rules: chunk by chunk, each request is answered exactly once, completely and correctly.

use std::collections::BTreeMap;

use engine::Session;
use engine::nbd::wire::{BASE_ALLOCATION_ID, chunk, command, command_flag, state};

use crate::cell;
use crate::history::{History, Step};
use crate::reply::{Chunk, be32};
use crate::request::Pending;

/// Pending requests by cookie.
pub type PendingByCookie = BTreeMap<u64, Pending>;

/// The state against which a chunk is checked.
pub struct Judge<'a> {
    /// The connection's requests.
    pub pending: &'a mut PendingByCookie,
    /// What the connection has negotiated.
    pub session: Session,
    /// The volume's content.
    pub history: &'a mut History,
    /// The present step.
    pub step: Step,
}

impl Judge<'_> {
    /// Checks a chunk. Returns the request if the chunk completes it; its `error` is `None` on success.
    pub fn chunk(&mut self, chunk: Chunk<'_>) -> Result<Option<Pending>, String> {
        let cookie = match chunk {
            Chunk::Simple { cookie, .. } | Chunk::Structured { cookie, .. } => cookie,
        };
        let Some(mut pending) = self.pending.remove(&cookie) else {
            return Err(format!("a reply to cookie {cookie:#x}, which nobody waits for"));
        };
        let request = pending.request;
        let done = match chunk {
            Chunk::Simple { error, data, .. } => self.simple(&mut pending, error, data),
            Chunk::Structured { flags, kind, body, .. } => self.structured(&mut pending, flags, kind, body),
        };
        match done.map_err(|what| format!("reply to {request:?}: {what}"))? {
            true => Ok(Some(pending)),
            false => {
                self.pending.insert(cookie, pending);
                Ok(None)
            }
        }
    }

    fn simple(&mut self, pending: &mut Pending, error: u32, data: &[u8]) -> Result<bool, String> {
        let request = pending.request;
        if self.session.structured && matches!(request.command, command::READ | command::BLOCK_STATUS) {
            return Err("a simple reply where structured ones were agreed on".into());
        }
        pending.error = (error != 0).then_some(error);
        if error == 0 && request.command == command::READ {
            self.history.read(request.offset, data, pending.start, self.step)?;
        }
        Ok(true)
    }

    fn structured(&mut self, pending: &mut Pending, flags: u16, kind: u16, body: &[u8]) -> Result<bool, String> {
        if !self.session.structured {
            return Err("a structured reply that was not agreed on".into());
        }
        if flags & !chunk::FLAG_DONE != 0 {
            return Err(format!("chunk flags {flags:#x}"));
        }
        match kind {
            chunk::NONE if body.is_empty() && flags == chunk::FLAG_DONE => {}
            chunk::OFFSET_DATA | chunk::OFFSET_HOLE => self.content(pending, kind, body)?,
            chunk::BLOCK_STATUS => self.block_status(pending, body)?,
            chunk::ERROR | chunk::ERROR_OFFSET => error_chunk(pending, kind, body)?,
            _ => return Err(format!("a chunk of kind {kind} with {} bytes", body.len())),
        }
        if flags & chunk::FLAG_DONE == 0 {
            return Ok(false);
        }
        match pending.request.command {
            _ if pending.error.is_some() => Ok(true),
            command::READ if !pending.is_answered() => Err("it is over, but not all bytes were answered".into()),
            command::BLOCK_STATUS if !pending.status => Err("it is over without a status".into()),
            _ => Ok(true),
        }
    }

    fn content(&mut self, pending: &mut Pending, kind: u16, body: &[u8]) -> Result<(), String> {
        let request = pending.request;
        if request.command != command::READ || body.len() < 9 {
            return Err(format!("a content chunk of {} bytes", body.len()));
        }
        let offset = u64::from_be_bytes(body[..8].try_into().expect("8 bytes"));
        let len = match kind {
            chunk::OFFSET_DATA => body.len() as u64 - 8,
            _ if body.len() == 12 => u64::from(be32(&body[8..])),
            _ => return Err(format!("a hole chunk of {} bytes", body.len())),
        };
        if !pending.answer(offset, len) {
            return Err(format!("{offset}+{len} is outside of it, empty, or answered twice"));
        }
        if request.has(command_flag::DF) && pending.answered.len() > 1 {
            return Err("it must not be split".into());
        }
        if kind == chunk::OFFSET_DATA {
            return self.history.read(offset, &body[8..], pending.start, self.step);
        }
        self.history.told_zero(cell::touched(offset, len), pending.start, self.step)
    }

    fn block_status(&mut self, pending: &mut Pending, body: &[u8]) -> Result<(), String> {
        let request = pending.request;
        if request.command != command::BLOCK_STATUS || pending.status || body.len() < 12 || body.len() % 8 != 4 {
            return Err(format!("a status chunk of {} bytes", body.len()));
        }
        if be32(body) != BASE_ALLOCATION_ID {
            return Err("a status of an unknown context".into());
        }
        pending.status = true;
        let extents: Vec<(u64, u32)> = body[4..].chunks(8).map(|e| (u64::from(be32(e)), be32(&e[4..]))).collect();
        let mut at = request.offset;
        for (i, &(len, flags)) in extents.iter().enumerate() {
            let last = i + 1 == extents.len();
            let past = u128::from(at + len) > request.end();
            if len == 0
                || flags & !(state::HOLE | state::ZERO) != 0
                || past && (!last || request.has(command_flag::REQ_ONE))
            {
                return Err(format!("extents {extents:?}"));
            }
            if flags & state::ZERO != 0 {
                // Cells that the extent covers in part may not be zero outside of it.
                self.history.told_zero(cell::covered(at, len), pending.start, self.step)?;
            }
            at += len;
        }
        if request.has(command_flag::REQ_ONE) && extents.len() > 1 {
            return Err(format!("more than one extent: {extents:?}"));
        }
        Ok(())
    }
}

fn error_chunk(pending: &mut Pending, kind: u16, body: &[u8]) -> Result<(), String> {
    let fixed = if kind == chunk::ERROR { 6 } else { 14 };
    if body.len() < fixed {
        return Err(format!("an error chunk of {} bytes", body.len()));
    }
    let message = usize::from(u16::from_be_bytes([body[4], body[5]]));
    let error = be32(body);
    if error == 0 || body.len() != fixed + message {
        return Err(format!("an error chunk of {} bytes with error {error} and {message} bytes of text", body.len()));
    }
    pending.error = Some(error);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Request;

    fn judge<'a>(
        pending: &'a mut PendingByCookie,
        history: &'a mut History,
        command: u16,
        flags: u16,
        len: u32,
    ) -> Judge<'a> {
        let request = Request { op: 1, cookie: 7, command, flags, offset: 0, len };
        pending.insert(7, Pending::new(request, 3, 1 << 20, 0));
        let session = Session { structured: true, base_allocation: true, read_only: false };
        Judge { pending, session, history, step: 4 }
    }

    fn data(flags: u16, offset: u64, len: usize) -> (u16, Vec<u8>) {
        (flags, [&offset.to_be_bytes()[..], &vec![0; len]].concat())
    }

    fn run(judge: &mut Judge<'_>, kind: u16, (flags, body): (u16, Vec<u8>)) -> Result<bool, String> {
        judge.chunk(Chunk::Structured { cookie: 7, flags, kind, body: &body }).map(|done| done.is_some())
    }

    #[test]
    fn a_read_is_answered_wholly_and_once() {
        let (mut pending, mut history) = Default::default();
        let mut judge = judge(&mut pending, &mut history, command::READ, 0, 1000);
        assert_eq!(run(&mut judge, chunk::OFFSET_DATA, data(0, 500, 500)), Ok(false));
        assert!(run(&mut judge, chunk::NONE, (1, Vec::new())).is_err(), "half of it is missing");
        let mut judge = self::judge(&mut pending, &mut history, command::READ, 0, 1000);
        assert_eq!(run(&mut judge, chunk::OFFSET_DATA, data(0, 0, 500)), Ok(false));
        assert_eq!(run(&mut judge, chunk::OFFSET_DATA, data(1, 500, 500)), Ok(true));
        assert!(run(&mut judge, chunk::NONE, (1, Vec::new())).is_err(), "nobody waits");
        let mut judge = self::judge(&mut pending, &mut history, command::READ, command_flag::DF, 1000);
        assert_eq!(run(&mut judge, chunk::OFFSET_DATA, data(0, 0, 500)), Ok(false));
        assert!(run(&mut judge, chunk::OFFSET_DATA, data(1, 500, 500)).is_err(), "split");
    }

    #[test]
    fn a_status_tells_the_truth() {
        let (mut pending, mut history): (PendingByCookie, History) = Default::default();
        history.begin_write(1, 0..1, 1);
        history.acknowledge(1, 0..1, 2, false, 2);
        let extents = |parts: &[(u32, u32)]| {
            let mut body = BASE_ALLOCATION_ID.to_be_bytes().to_vec();
            parts.iter().for_each(|(len, flags)| body.extend([len.to_be_bytes(), flags.to_be_bytes()].concat()));
            (1, body)
        };
        let mut run_one = |flags, parts: &[(u32, u32)]| {
            let mut judge = judge(&mut pending, &mut history, command::BLOCK_STATUS, flags, 1000);
            run(&mut judge, chunk::BLOCK_STATUS, extents(parts)).is_ok()
        };
        assert!(run_one(0, &[(128, 0), (2000, 3)]));
        assert!(!run_one(0, &[(256, 2)]), "the first cell is not zero");
        assert!(!run_one(0, &[(2000, 0), (10, 0)]), "past the end before the last");
        assert!(!run_one(command_flag::REQ_ONE, &[(128, 0), (128, 3)]));
        assert!(run_one(command_flag::REQ_ONE, &[(128, 0)]));
    }
}
