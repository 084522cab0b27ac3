//! The constants of the NBD protocol (NetworkBlockDevice/nbd, `doc/proto.md`), and nothing else.

/// The first eight bytes that a server sends: `NBDMAGIC`.
pub const MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Follows it, and precedes each option: `IHAVEOPT`.
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// Starts each option reply.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Starts each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Starts each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Starts each chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// Starts each request with extended headers.
pub const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// Starts each chunk of a reply with extended headers.
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;
/// Bytes of a request header.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of an extended request header.
pub const EXTENDED_REQUEST_BYTES: usize = 32;

/// Handshake flag: fixed newstyle.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag: the 124 zero bytes after EXPORT_NAME may be omitted.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;

/// Options of the handshake.
pub mod option {
    #![allow(missing_docs, reason = "the protocol's own names")]
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// Option replies.
pub mod reply {
    #![allow(missing_docs, reason = "the protocol's own names")]
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = 1 << 31 | 1;
    pub const ERR_POLICY: u32 = 1 << 31 | 2;
    pub const ERR_INVALID: u32 = 1 << 31 | 3;
    pub const ERR_TLS_REQD: u32 = 1 << 31 | 5;
    pub const ERR_UNKNOWN: u32 = 1 << 31 | 6;
    pub const ERR_SHUTDOWN: u32 = 1 << 31 | 7;
    pub const ERR_TOO_BIG: u32 = 1 << 31 | 9;
    pub const ERR_EXT_HEADER_REQD: u32 = 1 << 31 | 10;
}

/// Kinds of information in INFO replies.
pub mod info {
    #![allow(missing_docs, reason = "the protocol's own names")]
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: the capabilities of an export.
pub mod export_flag {
    #![allow(missing_docs, reason = "the protocol's own names")]
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const ROTATIONAL: u16 = 1 << 4;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands of the transmission phase.
pub mod command {
    #![allow(missing_docs, reason = "the protocol's own names")]
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
    /// Ours alone: see [`DEMOTE`](super::DEMOTE).
    pub const DEMOTE: u16 = 0x4145;
}

/// Flags of a request.
pub mod command_flag {
    #![allow(missing_docs, reason = "the protocol's own names")]
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
    /// Extended headers only: the length is that of the payload which follows.
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Chunks of structured replies.
pub mod chunk {
    #![allow(missing_docs, reason = "the protocol's own names")]
    pub const FLAG_DONE: u16 = 1 << 0;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// Set in the numbers of all chunks that report an error.
    pub const IS_ERROR: u16 = 1 << 15;
    pub const ERROR: u16 = 1 << 15 | 1;
    pub const ERROR_OFFSET: u16 = 1 << 15 | 2;
}

/// Extent flags of `base:allocation`.
pub mod state {
    #![allow(missing_docs, reason = "the protocol's own names")]
    pub const HOLE: u32 = 1 << 0;
    pub const ZERO: u32 = 1 << 1;
}

/// The metadata context of block status.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Its number in replies, an arbitrary constant.
pub const BASE_ALLOCATION_ID: u32 = 1;
/// The number of the context that grants a session. No reply has it.
pub const SESSION_ID: u32 = 2;
/// The number of the context that grants a lease. No reply has it.
pub const LEASE_ID: u32 = 4;
/// The metadata context that grants demotion: the client sends what its cache evicts, with [`command::DEMOTE`], and the
/// server drops what it has sent (`docs/design/tiers.md`). Granted to a session that excludes other clients, with
/// extended headers. The upper 48 bits of the cookies of its requests are versions then. Ours alone.
pub const DEMOTE: &str = "aerogel:demote";
/// Its number. No reply has it.
pub const DEMOTE_ID: u32 = 5;
/// Bytes of one demotion at most.
pub const DEMOTE_BYTES_MAX: u64 = 64 << 10;
/// What questions to the driver begin with: queries of LIST_META_CONTEXT, answered by contexts that begin with it, too,
/// and whose rests, in order, are the answer. Ours alone.
pub const QUESTION: &str = "aerogel:ask/";
/// The metadata context of the load of the export's disk: one extent, whose flags are the number of requests that the
/// disk does not keep up with, of other tenants than the export's own. Ours alone.
pub const LOAD: &str = "aerogel:load";
/// Its number in replies.
pub const LOAD_ID: u32 = 3;

/// The longest name or query string, bytes (the protocol's limit).
pub const STRING_BYTES_MAX: usize = 4096;
/// The largest payload of a read or a write, bytes.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// The same with extended headers.
pub const EXTENDED_PAYLOAD_BYTES_MAX: u32 = 64 << 20;
/// The preferred block size of clients, bytes.
pub const PREFERRED_BLOCK_BYTES: u32 = 4096;
