//! Request headers: raw bytes are parsed once, here.

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
    pub len: u32,
}

/// The result of parsing 28 bytes.
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
    },
    /// Not a request: the position of the next header is unknown.
    Garbage,
}

/// Parses a request header.
pub fn parse(bytes: &[u8; wire::REQUEST_BYTES]) -> Parsed {
    let u16_at = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at)) << 16 | u32::from(u16_at(at + 2));
    let u64_at = |at: usize| u64::from(u32_at(at)) << 32 | u64::from(u32_at(at + 4));
    if u32_at(0) != wire::REQUEST_MAGIC {
        return Parsed::Garbage;
    }
    let (flags, cookie, offset, len) = (u16_at(4), u64_at(8), u64_at(16), u32_at(24));
    let kind = match u16_at(6) {
        command::READ => Kind::Read,
        command::WRITE => Kind::Write,
        command::DISC => return Parsed::Disconnect,
        command::FLUSH => Kind::Flush,
        command::TRIM => Kind::Trim,
        command::CACHE => Kind::Cache,
        command::WRITE_ZEROES => Kind::Zeroes,
        command::BLOCK_STATUS => Kind::Status,
        _ => return Parsed::Unknown { cookie },
    };
    Parsed::Request(Header { kind, flags, cookie, offset, len })
}

impl Kind {
    /// The flags that the command may have.
    fn flags(self) -> u16 {
        match self {
            Kind::Read => flag::FUA | flag::DF,
            Kind::Zeroes => flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
            Kind::Status => flag::FUA | flag::REQ_ONE,
            Kind::Write | Kind::Flush | Kind::Trim | Kind::Cache => flag::FUA,
        }
    }
}

impl Header {
    /// Checks the request for a volume of `size` bytes.
    pub fn check(&self, size: u64) -> Result<(), Errno> {
        let past_end = self.offset.checked_add(u64::from(self.len)).is_none_or(|end| end > size);
        match self.kind {
            Kind::Flush if self.offset != 0 || self.len != 0 => Err(Errno::Invalid),
            Kind::Write | Kind::Zeroes if past_end => Err(Errno::NoSpace),
            _ if past_end => Err(Errno::Invalid),
            Kind::Read | Kind::Write if self.len > wire::PAYLOAD_BYTES_MAX => Err(Errno::Invalid),
            _ if self.flags & !self.kind.flags() != 0 => Err(Errno::Invalid),
            Kind::Status if self.len == 0 => Err(Errno::Invalid),
            _ => Ok(()),
        }
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u16, flags: u16, offset: u64, len: u32) -> [u8; wire::REQUEST_BYTES] {
        let mut bytes = [0; wire::REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&wire::REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&kind.to_be_bytes());
        bytes[8..16].copy_from_slice(&42u64.to_be_bytes());
        bytes[16..24].copy_from_slice(&offset.to_be_bytes());
        bytes[24..28].copy_from_slice(&len.to_be_bytes());
        bytes
    }

    fn checked(kind: u16, offset: u64, len: u32) -> Result<(), Errno> {
        match parse(&header(kind, 0, offset, len)) {
            Parsed::Request(header) => header.check(1 << 20),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn bounds() {
        assert_eq!(checked(command::READ, (1 << 20) - 1, 1), Ok(()));
        assert_eq!(checked(command::READ, 1 << 20, 1), Err(Errno::Invalid));
        assert_eq!(checked(command::WRITE, 1 << 20, 1), Err(Errno::NoSpace));
        assert_eq!(checked(command::WRITE_ZEROES, u64::MAX, 2), Err(Errno::NoSpace));
        assert_eq!(checked(command::TRIM, u64::MAX, 2), Err(Errno::Invalid));
        assert_eq!(checked(command::FLUSH, 1, 0), Err(Errno::Invalid));
    }

    #[test]
    fn unknown_flags_keep_it_a_request() {
        // A write still has its payload, and a read still gets a structured reply.
        for command in [command::READ, command::WRITE] {
            let Parsed::Request(header) = parse(&header(command, 1 << 9, 0, 512)) else { panic!("a request") };
            assert_eq!(header.check(1 << 20), Err(Errno::Invalid));
        }
        assert_eq!(parse(&header(99, 0, 0, 0)), Parsed::Unknown { cookie: 42 });
        assert_eq!(parse(&[0; wire::REQUEST_BYTES]), Parsed::Garbage);
    }
}
