//! A client's request: its bytes on the wire, and the permitted answers.

use engine::Session;
use engine::nbd::Errno;
use engine::nbd::wire::{command, command_flag};
use engine::nbd::{Asked, Form, Kind, RawHeader};

use engine::units::Nanos;

use crate::history::{OpId, Step};

/// A request, as the client intends it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// Its number in the world, which determines its payload.
    pub op: OpId,
    /// As on the wire.
    pub cookie: u64,
    /// As on the wire.
    pub command: u16,
    /// As on the wire.
    pub flags: u16,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

impl Request {
    /// Its header on the wire.
    pub fn header(&self, form: Form) -> RawHeader {
        RawHeader::new(form, self.command, self.flags, self.cookie, self.offset, self.len.into())
    }

    /// What a reply to it must agree with.
    pub fn asked(&self) -> Asked {
        let kind = match self.command {
            command::READ => Kind::Read,
            command::WRITE => Kind::Write,
            command::TRIM => Kind::Trim,
            command::CACHE => Kind::Cache,
            command::WRITE_ZEROES => Kind::Zeroes,
            command::BLOCK_STATUS => Kind::Status,
            // Unknown commands are answered like those without data.
            _ => Kind::Flush,
        };
        Asked { kind, offset: self.offset, len: self.len.into() }
    }

    /// Number of bytes after the header.
    pub fn payload_bytes(&self) -> u64 {
        if self.command == command::WRITE { u64::from(self.len) } else { 0 }
    }

    /// Most reads continue where the client's last one ended, as far as the volume goes; some begin another sequential
    /// run.
    pub fn read_on(&mut self, read_to: &mut u64, size: u64) {
        // The cookie serves as the random number, so worlds without read-ahead keep their random numbers.
        let dice = self.cookie % 32;
        if self.command != command::READ || dice < 8 {
            return;
        }
        if dice > 8 && *read_to + u64::from(self.len) <= size {
            self.offset = *read_to;
        }
        *read_to = self.offset.saturating_add(u64::from(self.len)).min(size);
    }

    /// Whether `flag` is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// The byte past the last.
    pub fn end(&self) -> u128 {
        u128::from(self.offset) + u128::from(self.len)
    }

    /// Flags that are valid for the command.
    fn flags_known(&self) -> u16 {
        match self.command {
            command::READ => command_flag::DF | command_flag::FUA,
            command::WRITE_ZEROES => command_flag::FUA | command_flag::NO_HOLE | command_flag::FAST_ZERO,
            command::BLOCK_STATUS => command_flag::REQ_ONE | command_flag::FUA,
            _ => command_flag::FUA,
        }
    }

    /// The permitted answer in this session, on a volume of `size` bytes, apart from disk errors.
    pub fn expected(&self, size: u64, session: Session) -> Expected {
        let changes = matches!(self.command, command::WRITE | command::WRITE_ZEROES | command::TRIM);
        if session.read_only && changes {
            return Expected::Refused(&[Errno::Perm]);
        }
        self.verdict(size, session.form, session.base_allocation || session.load)
    }

    /// The permitted answer, on a volume of `size` bytes, apart from disk errors.
    pub fn verdict(&self, size: u64, form: Form, has_status: bool) -> Expected {
        let invalid = match self.command {
            command::READ => self.len > form.payload_bytes_max() || self.has(command_flag::DF) && !form.is_structured(),
            command::WRITE => self.len > form.payload_bytes_max(),
            command::BLOCK_STATUS => !has_status,
            command::FLUSH => self.offset != 0 || self.len != 0,
            command::TRIM | command::CACHE | command::WRITE_ZEROES => false,
            _ => true,
        };
        let invalid = invalid || self.flags & !self.flags_known() != 0;
        let writes = matches!(self.command, command::WRITE | command::WRITE_ZEROES);
        match (invalid, self.end() > u128::from(size)) {
            (true, true) if writes => Expected::Refused(&[Errno::Invalid, Errno::NoSpace]),
            (false, true) if writes => Expected::Refused(&[Errno::NoSpace]),
            (false, false) if self.len == 0 && self.command != command::FLUSH => Expected::Anything,
            (false, false) => Expected::Ordinary,
            _ => Expected::Refused(&[Errno::Invalid]),
        }
    }
}

/// The permitted answers to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expected {
    /// Success, unless the disk has failed.
    Ordinary,
    /// One of these errors.
    Refused(&'static [Errno]),
    /// The protocol does not say.
    Anything,
}

/// A request whose header the server has received and whose answer is not complete.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The request.
    pub request: Request,
    /// When the server received its header.
    pub start: Step,
    /// Bytes of its payload that the server has received.
    pub taken: u64,
    /// The volume's size at that time.
    pub size: u64,
    /// Ranges of a read that are answered: (first byte, past the last).
    pub answered: Vec<(u64, u64)>,
    /// The error that its answer has so far.
    pub error: Option<u32>,
    /// Since when the volume writes through; `NEVER` if it does not.
    pub through_since: Step,
    /// Whether BLOCK_STATUS was answered.
    pub status: bool,
    /// The load of the disk was answered.
    pub load: bool,
    /// Whether the volume may write through, or is about to.
    pub may_write_through: bool,
    /// When the server received its header.
    pub arrived: Nanos,
}

impl Pending {
    /// The server has received `request`.
    pub fn new(request: Request, start: Step, size: u64, through_since: Step) -> Pending {
        let (answered, error) = (Vec::new(), None);
        Pending {
            request,
            start,
            taken: 0,
            size,
            answered,
            error,
            through_since,
            status: false,
            load: false,
            may_write_through: false,
            arrived: 0,
        }
    }

    /// A part of a read is answered. False if it is outside of the request or was answered before.
    pub fn answer(&mut self, from: u64, len: u64) -> bool {
        let request = self.request;
        let Some(to) = from.checked_add(len) else { return false };
        let inside = from >= request.offset && u128::from(to) <= request.end() && len > 0;
        let fresh = self.answered.iter().all(|&(a, b)| to <= a || b <= from);
        self.answered.push((from, to));
        inside && fresh
    }

    /// Whether a read is completely answered.
    pub fn is_answered(&self) -> bool {
        self.answered.iter().map(|(a, b)| b - a).sum::<u64>() == u64::from(self.request.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(command: u16, flags: u16, offset: u64, len: u32) -> Request {
        Request { op: 1, cookie: 2, command, flags, offset, len }
    }

    #[test]
    fn what_the_issue_says_about_errors() {
        let verdict =
            |command, flags, offset, len| request(command, flags, offset, len).verdict(1000, Form::Simple, false);
        assert_eq!(verdict(command::WRITE, 0, 999, 2), Expected::Refused(&[Errno::NoSpace]));
        assert_eq!(verdict(command::READ, 0, 999, 2), Expected::Refused(&[Errno::Invalid]));
        assert_eq!(verdict(command::READ, 0, 998, 2), Expected::Ordinary);
        assert_eq!(verdict(command::READ, command_flag::DF, 0, 2), Expected::Refused(&[Errno::Invalid]));
        assert_eq!(verdict(command::TRIM, 0, u64::MAX, 2), Expected::Refused(&[Errno::Invalid]));
        assert_eq!(verdict(command::BLOCK_STATUS, 0, 0, 2), Expected::Refused(&[Errno::Invalid]));
        assert_eq!(verdict(99, 0, 0, 2), Expected::Refused(&[Errno::Invalid]));
    }

    #[test]
    fn parts_of_an_answer_must_not_overlap() {
        let mut pending = Pending::new(request(command::READ, 0, 100, 50), 0, 1000, 0);
        assert!(pending.answer(110, 20) && pending.answer(100, 10) && !pending.is_answered());
        assert!(!pending.clone().answer(129, 5) && !pending.clone().answer(140, 11));
        assert!(pending.answer(130, 20) && pending.is_answered());
    }
}
