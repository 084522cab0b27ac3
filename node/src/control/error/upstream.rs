//! Why an export on another server cannot become the data of a volume.

use engine::nbd::Unopened;
use engine::nbd::wire::reply;

use crate::quantity::{Name, Size};
use crate::store::ExportUri;
use crate::tls::TlsError;
use crate::upstream::DialError;

/// Why an export was refused.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error("{from} takes requests of {bytes} bytes at least, more than 4KiB")]
    Blocks { from: ExportUri, bytes: u32 },
    #[error("{from} has {}, and a volume has a multiple of {block} bytes", Size(*bytes))]
    Size { from: ExportUri, bytes: u64, block: u64 },
    #[error("{0} and {1} are the same volume: each export has a part of its own of a striped volume")]
    SameVolume(Box<ExportUri>, Box<ExportUri>),
    #[error("{from} has {}, less than a stripe unit of {}", Size(*bytes), Size(*unit))]
    BelowUnit { from: ExportUri, bytes: u64, unit: u64 },
    #[error(
        "the server of volume '{volume}' is away, and {} of acknowledged data may not be there yet: they would be lost",
        Size(*bytes)
    )]
    Unflushed { volume: Name, bytes: u64 },
    #[error("{0} cannot flush: acknowledged and flushed data is lost when its server stops unexpectedly")]
    NoFlush(ExportUri),
}

impl UpstreamError {
    pub(super) fn status(&self) -> u16 {
        match self {
            UpstreamError::Dial(_) => 502,
            UpstreamError::Blocks { .. } | UpstreamError::Size { .. } | UpstreamError::Unflushed { .. } => 409,
            UpstreamError::NoFlush(_) | UpstreamError::SameVolume(..) | UpstreamError::BelowUnit { .. } => 400,
        }
    }

    pub(super) fn hint(&self) -> Option<String> {
        Some(match self {
            UpstreamError::Dial(error) => dial_hint(error),
            UpstreamError::Unflushed { .. } => "start that server and try again, or lose the data with --force".into(),
            UpstreamError::SameVolume(..) => "name each export once".into(),
            UpstreamError::BelowUnit { .. } => "give a smaller --stripe, or a larger export".into(),
            UpstreamError::Size { .. } => "change the size of the export on its server".into(),
            UpstreamError::NoFlush(_) => "add --i-accept-data-loss to confirm".into(),
            UpstreamError::Blocks { .. } => return None,
        })
    }
}

pub(super) fn dial_hint(error: &DialError) -> String {
    match error {
        DialError::Tls(_, why) => tls_hint(why).into(),
        DialError::Unopened(_, why) if requires_tls(why) => {
            "write nbds:// and name a directory with certificates: --tls-certificates DIR".into()
        }
        DialError::Ended(uri) if uri.tls => {
            "if the server requires client certificates, put one that it accepts into client-cert.pem, and its key \
             into client-key.pem; its log may tell more"
                .into()
        }
        _ => {
            "the server must be running, reachable from here, and have the export: `nbdinfo URI` tries the same".into()
        }
    }
}

pub(super) fn requires_tls(why: &Unopened) -> bool {
    matches!(why, Unopened::Refused { kind: reply::ERR_TLS_REQD, .. })
}

fn tls_hint(why: &TlsError) -> &'static str {
    match why {
        TlsError::Files(_) => {
            "the directory needs ca-cert.pem and, for servers that require client certificates, client-cert.pem and \
             client-key.pem, in PEM form and readable by this server"
        }
        TlsError::Name(_) | TlsError::OtherName(_) => {
            "write a name of the server's certificate into the URI, or add --tls-hostname NAME"
        }
        TlsError::Authority(_) => "put the certificate of the server's authority into ca-cert.pem",
        TlsError::Refused(_) => {
            "put a certificate that the server accepts into client-cert.pem, and its key into client-key.pem"
        }
        TlsError::Handshake(_) => "`openssl s_client -starttls` or the log of the server may tell more",
    }
}
