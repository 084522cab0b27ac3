//! Why an export cannot be a store. `offload enable` has no options for exports, as `volume create` has: everything
//! that is said about one is in its URI.

use super::upstream::{dial_hint, requires_tls};
use super::{Error, Invalid, OffloadRefused, UpstreamError};
use crate::store::offload::StoreRef;
use crate::tls::TlsError;
use crate::upstream::{DialError, ReadError};

/// Why an export was refused as a store.
#[derive(Debug, thiserror::Error)]
pub enum StoreExportError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("store '{store}' takes requests of {bytes} bytes at least, more than 4KiB")]
    Blocks { store: StoreRef, bytes: u32 },
    #[error("store '{store}' has {bytes} bytes, and a store has a multiple of {block} bytes")]
    Size { store: StoreRef, bytes: u64, block: u64 },
    #[error("store '{0}' cannot flush: off-loaded data would be lost when its server stops unexpectedly")]
    NoFlush(StoreRef),
    #[error("store '{0}' is reached with TLS, and its URI names no directory with ca-cert.pem")]
    TlsWithoutCertificates(StoreRef),
    #[error("store '{0}' is reached without TLS, and its URI has parameters for TLS")]
    CertificatesWithoutTls(StoreRef),
}

impl StoreExportError {
    /// The error of an export that was chosen for a volume, in the words for a store.
    pub(in super::super) fn of(store: &StoreRef, error: Error) -> Error {
        let store = store.clone();
        let refused = match error {
            Error::Upstream(UpstreamError::Dial(error)) => StoreExportError::Dial(error),
            Error::Upstream(UpstreamError::Blocks { bytes, .. }) => StoreExportError::Blocks { store, bytes },
            Error::Upstream(UpstreamError::Size { bytes: 0, .. }) => {
                return OffloadRefused::TooSmall { store, bytes: 0 }.into();
            }
            Error::Upstream(UpstreamError::Size { bytes, block, .. }) => StoreExportError::Size { store, bytes, block },
            Error::Upstream(UpstreamError::NoFlush(_)) => StoreExportError::NoFlush(store),
            Error::Invalid(Invalid::TlsWithoutCertificates(_)) => StoreExportError::TlsWithoutCertificates(store),
            Error::Invalid(Invalid::CertificatesWithoutTls(_)) => StoreExportError::CertificatesWithoutTls(store),
            error => return error,
        };
        OffloadRefused::Export(refused).into()
    }

    pub(super) fn status(&self) -> u16 {
        match self {
            StoreExportError::Dial(_) => 502,
            StoreExportError::Blocks { .. } | StoreExportError::Size { .. } => 409,
            StoreExportError::NoFlush(_)
            | StoreExportError::TlsWithoutCertificates(_)
            | StoreExportError::CertificatesWithoutTls(_) => 400,
        }
    }

    pub(super) fn hint(&self) -> String {
        match self {
            StoreExportError::Dial(DialError::Unopened(_, why)) if requires_tls(why) => {
                "write nbds:// and add tls-certificates=DIR, the directory with ca-cert.pem, to the parameters of the \
                 URI"
                .into()
            }
            StoreExportError::Dial(DialError::Tls(_, why))
                if matches!(**why, TlsError::Name(_) | TlsError::OtherName(_)) =>
            {
                "write a name of the server's certificate into the URI, or add tls-hostname=NAME to its parameters"
                    .into()
            }
            StoreExportError::Dial(error) => dial_hint(error),
            StoreExportError::Blocks { .. } => "name another store".into(),
            StoreExportError::Size { .. } => {
                "change the size of the export on its server, or name another store".into()
            }
            StoreExportError::NoFlush(_) => {
                "let its server offer NBD_CMD_FLUSH for the export, or name another store".into()
            }
            StoreExportError::TlsWithoutCertificates(_) => {
                "add tls-certificates=DIR to the parameters of the URI: nbds://HOST/NAME?tls-certificates=DIR".into()
            }
            StoreExportError::CertificatesWithoutTls(_) => {
                "write nbds://, or leave tls-certificates and tls-hostname out of the URI".into()
            }
        }
    }
}

/// What a user can do about a store that could not be read.
pub(super) fn read_hint(error: &ReadError) -> &'static str {
    match error {
        ReadError::Dial(_) | ReadError::Io(_) | ReadError::Timeout => {
            "its server must be running, and no other client may have claimed it"
        }
        ReadError::Refused { .. } => "the log of its server may tell the cause; mend it, or name another store",
        ReadError::Broken(_) | ReadError::Unusable(_) => "name another store",
    }
}
