//! The three forms in which requests and replies are sent.

use super::wire;

/// What a handshake has negotiated about headers. A later one includes the earlier ones' capabilities.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Form {
    /// Compact requests, simple replies.
    #[default]
    Simple,
    /// Compact requests. Reads and block status are answered in chunks, other requests simply.
    Structured,
    /// Extended headers: lengths of 64 bits, and every reply in chunks.
    Extended,
}

impl Form {
    /// Whether reads are answered in chunks.
    pub fn is_structured(self) -> bool {
        self >= Form::Structured
    }

    /// Bytes of a request header.
    pub fn request_bytes(self) -> usize {
        match self {
            Form::Simple | Form::Structured => wire::REQUEST_BYTES,
            Form::Extended => wire::EXTENDED_REQUEST_BYTES,
        }
    }

    /// The largest payload of a read or a write, bytes.
    pub fn payload_bytes_max(self) -> u32 {
        match self {
            Form::Simple | Form::Structured => wire::PAYLOAD_BYTES_MAX,
            Form::Extended => wire::EXTENDED_PAYLOAD_BYTES_MAX,
        }
    }
}
