//! Request headers, in both directions: a server parses the raw bytes once, a client makes them.

use std::ops::Deref;

use super::Form;
use super::wire::{self, command, command_flag as flag};
use crate::errno::Errno;

/// The command of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// READ.
    Read,
    /// WRITE: payload follows.
    Write,
    /// FLUSH.
    Flush,
    /// TRIM.
    Trim,
    /// CACHE.
    Cache,
    /// WRITE_ZEROES.
    Zeroes,
    /// BLOCK_STATUS.
    Status,
    /// Whole blocks that the client's cache has evicted: payload follows. With extended headers only.
    Demote,
}

/// The bytes of a request header: 28, or 32 with extended headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RawHeader {
    bytes: [u8; wire::EXTENDED_REQUEST_BYTES],
    len: usize,
}

impl RawHeader {
    /// The header of a request. With extended headers, a write says that its payload follows.
    pub fn new(form: Form, command: u16, flags: u16, cookie: u64, offset: u64, len: u64) -> RawHeader {
        let extended = form == Form::Extended;
        let magic = if extended { wire::EXTENDED_REQUEST_MAGIC } else { wire::REQUEST_MAGIC };
        let has_payload = matches!(command, command::WRITE | command::DEMOTE);
        let payload = if extended && has_payload { flag::PAYLOAD_LEN } else { 0 };
        let mut raw = RawHeader { bytes: [0; wire::EXTENDED_REQUEST_BYTES], len: form.request_bytes() };
        let bytes = &mut raw.bytes;
        bytes[..4].copy_from_slice(&magic.to_be_bytes());
        bytes[4..6].copy_from_slice(&(flags | payload).to_be_bytes());
        bytes[6..8].copy_from_slice(&command.to_be_bytes());
        bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&offset.to_be_bytes());
        if extended {
            bytes[24..].copy_from_slice(&len.to_be_bytes());
        } else {
            debug_assert!(len <= u64::from(u32::MAX));
            bytes[24..28].copy_from_slice(&(len as u32).to_be_bytes());
        }
        raw
    }

    /// A header of `len` bytes, which `fill` writes.
    pub fn filled(len: usize, fill: impl FnOnce(&mut [u8])) -> RawHeader {
        let mut raw = RawHeader { bytes: [0; wire::EXTENDED_REQUEST_BYTES], len };
        fill(&mut raw.bytes[..len]);
        raw
    }
}

impl Deref for RawHeader {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A request header that is well-formed; whether it is valid for a volume is checked later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The command.
    pub kind: Kind,
    /// Flags, as on the wire.
    pub flags: u16,
    /// The client's identifier of the request.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Bytes of payload that follow: those of a write, and of an invalid request that announced a payload.
    pub payload: u64,
}

/// The result of parsing a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// A request.
    Request(Header),
    /// The client disconnects.
    Disconnect,
    /// An unknown command: answered with EINVAL.
    Unknown {
        /// The client's identifier of the request.
        cookie: u64,
        /// Its first byte, which an extended reply repeats.
        offset: u64,
        /// Bytes of payload that follow.
        payload: u64,
    },
    /// Not a request: the position of the next header is unknown.
    Garbage,
}

/// Parses a request header of 28 bytes, or an extended one of 32.
pub fn parse(bytes: &[u8]) -> Parsed {
    let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at)) << 16 | u32::from(u16_at(at + 2));
    let u64_at = |at: usize| u64::from(u32_at(at)) << 32 | u64::from(u32_at(at + 4));
    let extended = bytes.len() == wire::EXTENDED_REQUEST_BYTES;
    let (magic, len) = match extended {
        true => (wire::EXTENDED_REQUEST_MAGIC, u64_at(24)),
        false => (wire::REQUEST_MAGIC, u64::from(u32_at(24))),
    };
    if u32_at(0) != magic {
        return Parsed::Garbage;
    }
    let (mut flags, command, cookie, offset) = (u16_at(4), u16_at(6), u64_at(8), u64_at(16));
    // Some clients send writes without the flag, which the protocol demands of them: qemu 10, for example, and libnbd
    // without its strict mode. They send the payload all the same.
    let announced = command == command::WRITE || extended && flags & flag::PAYLOAD_LEN != 0;
    let payload = if announced { len } else { 0 };
    if extended && matches!(command, command::WRITE | command::DEMOTE) {
        // `payload` says it. Left in other requests, it makes them invalid.
        flags &= !flag::PAYLOAD_LEN;
    }
    let kind = match command {
        command::READ => Kind::Read,
        command::WRITE => Kind::Write,
        command::DISC => return Parsed::Disconnect,
        command::FLUSH => Kind::Flush,
        command::TRIM => Kind::Trim,
        command::CACHE => Kind::Cache,
        command::WRITE_ZEROES => Kind::Zeroes,
        command::BLOCK_STATUS => Kind::Status,
        command::DEMOTE if extended => Kind::Demote,
        _ => return Parsed::Unknown { cookie, offset, payload },
    };
    Parsed::Request(Header { kind, flags, cookie, offset, len, payload })
}

impl Kind {
    /// The flags that the command may have.
    fn flags(self) -> u16 {
        match self {
            Kind::Read => flag::FUA | flag::DF,
            Kind::Zeroes => flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
            Kind::Status => flag::FUA | flag::REQ_ONE,
            Kind::Write | Kind::Flush | Kind::Trim | Kind::Cache => flag::FUA,
            Kind::Demote => 0,
        }
    }
}

impl Header {
    /// Checks the request for a volume of `size` bytes.
    pub fn check(&self, size: u64, form: Form) -> Result<(), Errno> {
        let past_end = self.offset.checked_add(self.len).is_none_or(|end| end > size);
        match self.kind {
            Kind::Flush if self.offset != 0 || self.len != 0 => Err(Errno::Invalid),
            Kind::Write | Kind::Zeroes if past_end => Err(Errno::NoSpace),
            _ if past_end => Err(Errno::Invalid),
            Kind::Read | Kind::Write if self.len > u64::from(form.payload_bytes_max()) => Err(Errno::Invalid),
            _ if self.flags & !self.kind.flags() != 0 => Err(Errno::Invalid),
            Kind::Status if self.len == 0 => Err(Errno::Invalid),
            Kind::Demote if self.payload != self.len || !self.is_run_of_blocks() => Err(Errno::Invalid),
            _ => Ok(()),
        }
    }

    /// Whether it is a run of whole blocks that one demotion may have.
    fn is_run_of_blocks(&self) -> bool {
        let block = u64::from(wire::PREFERRED_BLOCK_BYTES);
        (block..=wire::DEMOTE_BYTES_MAX).contains(&self.len) && (self.offset | self.len).is_multiple_of(block)
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(form: Form, command: u16, flags: u16, offset: u64, len: u64) -> Header {
        match parse(&RawHeader::new(form, command, flags, 42, offset, len)) {
            Parsed::Request(header) => header,
            other => panic!("{other:?}"),
        }
    }

    fn checked(form: Form, command: u16, offset: u64, len: u64) -> Result<(), Errno> {
        header(form, command, 0, offset, len).check(1 << 20, form)
    }

    #[test]
    fn bounds() {
        for form in [Form::Simple, Form::Extended] {
            assert_eq!(checked(form, command::READ, (1 << 20) - 1, 1), Ok(()));
            assert_eq!(checked(form, command::READ, 1 << 20, 1), Err(Errno::Invalid));
            assert_eq!(checked(form, command::WRITE, 1 << 20, 1), Err(Errno::NoSpace));
            assert_eq!(checked(form, command::WRITE_ZEROES, u64::MAX, 2), Err(Errno::NoSpace));
            assert_eq!(checked(form, command::TRIM, u64::MAX, 2), Err(Errno::Invalid));
            assert_eq!(checked(form, command::FLUSH, 1, 0), Err(Errno::Invalid));
        }
        let read = |form, len| header(form, command::READ, 0, 0, len).check(1 << 40, form);
        assert_eq!([read(Form::Simple, 32 << 20), read(Form::Extended, 64 << 20)], [Ok(()); 2]);
        assert_eq!([read(Form::Simple, 48 << 20), read(Form::Extended, 65 << 20)], [Err(Errno::Invalid); 2]);
        let trim = header(Form::Extended, command::TRIM, 0, 0, 1 << 40);
        assert_eq!((trim.len, trim.check(1 << 40, Form::Extended)), (1 << 40, Ok(())));
    }

    #[test]
    fn unknown_flags_keep_it_a_request() {
        // A write still has its payload, and a read still gets a structured reply.
        for command in [command::READ, command::WRITE] {
            let header = header(Form::Simple, command, 1 << 9, 0, 512);
            assert_eq!(header.check(1 << 20, Form::Simple), Err(Errno::Invalid));
        }
        let unknown = |payload| Parsed::Unknown { cookie: 42, offset: 3, payload };
        assert_eq!(parse(&RawHeader::new(Form::Simple, 99, flag::PAYLOAD_LEN, 42, 3, 5)), unknown(0));
        assert_eq!(parse(&RawHeader::new(Form::Extended, 99, flag::PAYLOAD_LEN, 42, 3, 5)), unknown(5));
        assert_eq!(parse(&[0; wire::REQUEST_BYTES]), Parsed::Garbage);
        assert_eq!(parse(&[0; wire::EXTENDED_REQUEST_BYTES]), Parsed::Garbage);
    }

    #[test]
    fn a_payload_follows_a_write_and_an_extended_header_that_says_so() {
        let form = Form::Extended;
        let write = header(form, command::WRITE, flag::FUA, 0, 512);
        assert_eq!((write.payload, write.flags, write.check(1 << 20, form)), (512, flag::FUA, Ok(())));
        let mut raw = RawHeader::new(form, command::WRITE, 0, 42, 0, 512);
        raw.bytes[4..6].fill(0);
        let Parsed::Request(silent) = parse(&raw) else { panic!("a write") };
        assert_eq!((silent.payload, silent.check(1 << 20, form)), (512, Ok(())));
        let read = header(form, command::READ, flag::PAYLOAD_LEN, 0, 512);
        assert_eq!((read.payload, read.check(1 << 20, form)), (512, Err(Errno::Invalid)));
        let compact = header(Form::Structured, command::READ, flag::PAYLOAD_LEN, 0, 512);
        assert_eq!((compact.payload, compact.check(1 << 20, Form::Structured)), (0, Err(Errno::Invalid)));
    }
}
