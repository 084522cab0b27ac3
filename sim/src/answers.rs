//! Checks each answer of the server against the request, and records its consequences.

use engine::Session;
use engine::ids::VolumeId;
use engine::nbd::Errno;
use engine::nbd::wire::{command, command_flag};

use crate::Verdict;
use crate::cell;
use crate::judge::Judge;
use crate::request::{Expected, Pending};
use crate::trace::Line;
use crate::world::{LinkId, NEVER, Volume, World};

impl World {
    /// Parses and checks the reply bytes that have arrived.
    pub(crate) fn judge(&mut self, id: LinkId) -> Verdict {
        loop {
            let link = self.links.get_mut(&id).expect("a link");
            let volume = &mut self.volumes[link.volume.0 as usize];
            let asked = |cookie| Some(link.pending.get(&cookie)?.request.asked());
            let part = link.replies.next(asked).map_err(|what| format!("{:?}: {what}", link.conn))?;
            let Some((cookie, part, data)) = part else { return Ok(()) };
            let mut judge = Judge { pending: &mut link.pending, history: &mut volume.history, step: self.step };
            if let Some(pending) = judge.part(cookie, part, data)? {
                self.answered(id, pending)?;
            }
        }
    }

    /// Checks a complete answer and records its consequences.
    fn answered(&mut self, id: LinkId, pending: Pending) -> Verdict {
        let link = self.links.get_mut(&id).expect("a link");
        // The client sees the answer when it has read up to here.
        link.answers.push_back(link.sent);
        let (conn, volume_id, session) = (link.conn, link.volume, link.session);
        let (request, error) = (pending.request, pending.error.unwrap_or(0));
        if error == Errno::Shutdown as u32 {
            link.requests_left = link.requests_left.min(2);
        }
        self.stats.answers += 1;
        self.stats.errors += u64::from(error != 0);
        self.log(Line::Answer(conn, request, error));
        self.check_error(&pending, volume_id, session)?;
        let tenant = self.tenant_of(volume_id);
        self.entitled[tenant.0 as usize].answered(self.now, &pending)?;
        let (step, horizon) = (self.step, self.horizon(volume_id).min(pending.start));
        let cells = cell::covered(request.offset, u64::from(request.len));
        let volume = &mut self.volumes[volume_id.0 as usize];
        let through = pending.through_since != NEVER && pending.through_since == volume.through_since;
        let durable = (through || request.has(command_flag::FUA)) && volume.flush_counts(pending.start);
        match request.command {
            command::WRITE | command::WRITE_ZEROES if error == 0 => {
                volume.history.acknowledge(request.op, cells.clone(), step, durable, horizon);
                if durable {
                    let medium = self.disk.medium(volume_id);
                    volume.history.check_durable(medium, cells)?;
                    let mut broken = volume.trouble.broken_before(pending.start);
                    if let Some(sector) = broken.find(|&at| volume.history.is_sector_missing(at, medium, pending.start))
                    {
                        return Err(format!("{request:?} succeeded, but sector {sector} could not be written before"));
                    }
                }
            }
            command::WRITE | command::WRITE_ZEROES | command::TRIM => {
                volume.history.settle(request.op, cells, step);
                if request.command == command::TRIM && error == 0 {
                    volume.trouble.trimmed(request.offset, request.len.into());
                }
            }
            command::FLUSH if error == 0 => {
                self.check_flushed(volume_id, pending.start)?;
                let volume = self.volume(volume_id);
                if volume.flush_counts(pending.start) {
                    volume.trouble.flushed(pending.start, step);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn check_error(&self, pending: &Pending, volume: VolumeId, session: Session) -> Verdict {
        let (request, error) = (pending.request, pending.error.unwrap_or(0));
        let volume = &self.volumes[volume.0 as usize];
        let shutting_down = self.draining || volume.closing;
        let excused = self.excuses_fault(pending, volume, error)
            || shutting_down && error == Errno::Shutdown as u32
            || request.has(command_flag::FAST_ZERO) && error == Errno::NotSupported as u32
            || request.has(command_flag::DF) && request.len > 64 << 10 && error == Errno::Overflow as u32;
        let fine = match request.expected(pending.size, session) {
            Expected::Refused(errors) => {
                errors.iter().any(|&expected| expected as u32 == error)
                    || shutting_down && error == Errno::Shutdown as u32
            }
            Expected::Ordinary => error == 0 || excused,
            Expected::Anything => true,
        };
        if !fine {
            return Err(format!("{request:?} was answered with error {error} on a volume of {} bytes", pending.size));
        }
        if error == 0 && request.command == command::WRITE && pending.taken < u64::from(request.len) {
            return Err(format!("{request:?} was acknowledged, but only {} bytes of it were taken", pending.taken));
        }
        Ok(())
    }

    /// Whether a fault of the device explains `error`.
    fn excuses_fault(&self, pending: &Pending, volume: &Volume, error: u32) -> bool {
        let (request, start, trouble) = (pending.request, pending.start, &volume.trouble);
        let (io, full) = (error == Errno::Io as u32, error == Errno::NoSpace as u32);
        let unread = io && trouble.excuses_read(start, request.offset, request.len.into());
        // A partition full of blocks that cannot be written fails the writes of all volumes that share it.
        let shares = |other: &&Volume| other.setup.spec.tenant == volume.setup.spec.tenant;
        let no_room = || self.volumes.iter().filter(shares).any(|other| other.trouble.excuses_write(start));
        let durable = request.has(command_flag::FUA) || pending.may_write_through;
        let fast = request.has(command_flag::FAST_ZERO);
        let zeroes = || {
            let zeroes = request.command == command::WRITE_ZEROES;
            zeroes && trouble.excuses_zeroes(start, request.offset, request.len.into(), fast)
        };
        match request.command {
            command::READ | command::CACHE => unread,
            command::WRITE | command::WRITE_ZEROES => {
                unread || (io || full) && (zeroes() || no_room() || durable && trouble.excuses_flush(start))
            }
            command::FLUSH => (io || full) && trouble.excuses_flush(start),
            command::TRIM => (io || full) && durable && trouble.excuses_flush(start),
            _ => false,
        }
    }
}
