//! The protocol rules: part by part, each request is answered exactly once, completely and correctly. That a part is
//! well-formed and belongs to its request is checked by the reader of replies (`engine::nbd::Replies`).

use std::collections::BTreeMap;

use engine::nbd::Part;
use engine::nbd::wire::{command, command_flag, state};

use crate::cell;
use crate::history::{History, Step};
use crate::request::Pending;

/// Pending requests by cookie.
pub type PendingByCookie = BTreeMap<u64, Pending>;

/// The state against which a part is checked.
pub struct Judge<'a> {
    /// The connection's requests.
    pub pending: &'a mut PendingByCookie,
    /// The volume's content.
    pub history: &'a mut History,
    /// The present step.
    pub step: Step,
}

impl Judge<'_> {
    /// Checks a part with its data. Returns the request if the part completes it; its `error` is `None` on success.
    pub fn part(&mut self, cookie: u64, part: Part, data: &[u8]) -> Result<Option<Pending>, String> {
        let Some(pending) = self.pending.get_mut(&cookie) else {
            return Err(format!("a reply to cookie {cookie:#x}, which nobody waits for"));
        };
        let request = pending.request;
        let checked = match part {
            Part::Data { offset, .. } => content(pending, offset, data.len() as u64)
                .and_then(|()| self.history.read(offset, data, pending.start, self.step)),
            Part::Hole { offset, len } => content(pending, offset, len)
                .and_then(|()| self.history.told_zero(cell::touched(offset, len), pending.start, self.step)),
            Part::Extent { offset, len, flags } => {
                extent(pending, offset, len, flags).and_then(|()| match flags & u64::from(state::ZERO) {
                    0 => Ok(()),
                    // Cells that the extent covers in part may not be zero outside of it.
                    _ => self.history.told_zero(cell::covered(offset, len), pending.start, self.step),
                })
            }
            // It says nothing of the content, and may be all that was selected.
            Part::Load(_) => {
                pending.load = true;
                Ok(())
            }
            Part::Error(error) => {
                pending.error = Some(error);
                Ok(())
            }
            Part::Done => complete(pending),
        };
        checked.map_err(|what| format!("reply to {request:?}: {what}"))?;
        Ok(if part == Part::Done { self.pending.remove(&cookie) } else { None })
    }
}

fn content(pending: &mut Pending, offset: u64, len: u64) -> Result<(), String> {
    if !pending.answer(offset, len) {
        return Err(format!("{offset}+{len} is outside of it, empty, or answered twice"));
    }
    if pending.request.has(command_flag::DF) && pending.answered.len() > 1 {
        return Err("it must not be split".into());
    }
    Ok(())
}

fn extent(pending: &mut Pending, offset: u64, len: u64, flags: u64) -> Result<(), String> {
    let request = pending.request;
    let first = offset == request.offset;
    if first && std::mem::replace(&mut pending.status, true) {
        return Err("a second status".into());
    }
    let past = u128::from(offset) + u128::from(len) > request.end();
    let one = request.has(command_flag::REQ_ONE);
    if flags & !u64::from(state::HOLE | state::ZERO) != 0 || one && (past || !first) {
        return Err(format!("an extent of {len} bytes at {offset} with flags {flags:#x}"));
    }
    Ok(())
}

fn complete(pending: &Pending) -> Result<(), String> {
    match pending.request.command {
        _ if pending.error.is_some() => Ok(()),
        command::READ if !pending.is_answered() => Err("it is over, but not all bytes were answered".into()),
        command::BLOCK_STATUS if !pending.status && !pending.load => Err("it is over without a status".into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Request;

    const HOLE: u64 = (state::HOLE | state::ZERO) as u64;

    fn judge<'a>(
        pending: &'a mut PendingByCookie,
        history: &'a mut History,
        command: u16,
        flags: u16,
        len: u32,
    ) -> Judge<'a> {
        let request = Request { op: 1, cookie: 7, command, flags, offset: 0, len };
        pending.insert(7, Pending::new(request, 3, 1 << 20, 0));
        Judge { pending, history, step: 4 }
    }

    fn run(judge: &mut Judge<'_>, part: Part) -> Result<bool, String> {
        let data = if let Part::Data { len, .. } = part { vec![0; len as usize] } else { Vec::new() };
        judge.part(7, part, &data).map(|done| done.is_some())
    }

    #[test]
    fn a_read_is_answered_wholly_and_once() {
        let (mut pending, mut history) = Default::default();
        let (first, second) = (Part::Data { offset: 0, len: 500 }, Part::Data { offset: 500, len: 500 });
        let mut judge = judge(&mut pending, &mut history, command::READ, 0, 1000);
        assert_eq!(run(&mut judge, second), Ok(false));
        assert!(run(&mut judge, Part::Done).is_err(), "half of it is missing");
        let mut judge = self::judge(&mut pending, &mut history, command::READ, 0, 1000);
        assert_eq!([first, second, Part::Done].map(|part| run(&mut judge, part)), [Ok(false), Ok(false), Ok(true)]);
        assert!(run(&mut judge, Part::Done).is_err(), "nobody waits");
        let mut judge = self::judge(&mut pending, &mut history, command::READ, 0, 1000);
        assert_eq!(run(&mut judge, first), Ok(false));
        assert!(run(&mut judge, Part::Hole { offset: 499, len: 9 }).is_err(), "twice");
        let mut judge = self::judge(&mut pending, &mut history, command::READ, command_flag::DF, 1000);
        assert_eq!(run(&mut judge, first), Ok(false));
        assert!(run(&mut judge, second).is_err(), "split");
    }

    #[test]
    fn a_status_tells_the_truth() {
        let (mut pending, mut history): (PendingByCookie, History) = Default::default();
        history.begin_write(1, 0..1, 1);
        history.acknowledge(1, 0..1, 2, false, 2);
        let mut run_one = |flags, extents: &[(u64, u64, u64)]| {
            let mut judge = judge(&mut pending, &mut history, command::BLOCK_STATUS, flags, 1000);
            let parts = extents.iter().map(|&(offset, len, flags)| Part::Extent { offset, len, flags });
            parts.chain([Part::Done]).all(|part| run(&mut judge, part).is_ok())
        };
        assert!(run_one(0, &[(0, 128, 0), (128, 2000, HOLE)]));
        assert!(!run_one(0, &[(0, 256, HOLE)]), "the first cell is not zero");
        assert!(!run_one(0, &[(0, 128, 0), (0, 128, 0)]), "twice");
        assert!(!run_one(0, &[]), "nothing");
        assert!(!run_one(command_flag::REQ_ONE, &[(0, 128, 0), (128, 128, HOLE)]));
        assert!(!run_one(command_flag::REQ_ONE, &[(0, 2000, 0)]), "beyond the request");
        assert!(run_one(command_flag::REQ_ONE, &[(0, 128, 0)]));
    }
}
