//! Error numbers, as NBD clients know them.

/// An error of a request. The numbers are those on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, thiserror::Error)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: a write to a read-only volume or session.
    #[error("operation not permitted")]
    Perm = 1,
    /// The device failed.
    #[error("input/output error")]
    Io = 5,
    /// Invalid request.
    #[error("invalid argument")]
    Invalid = 22,
    /// No space: beyond the end of the volume, or the file system is full.
    #[error("no space left")]
    NoSpace = 28,
    /// The reply would not fit into one chunk.
    #[error("value too large")]
    Overflow = 75,
    /// Not supported.
    #[error("not supported")]
    NotSupported = 95,
    /// The server is shutting down.
    #[error("server is shutting down")]
    Shutdown = 108,
}
