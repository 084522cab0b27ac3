//! Why an export on another server cannot become the data of a volume.

use crate::quantity::Size;
use crate::store::ExportUri;
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
    #[error("{0} cannot flush: acknowledged and flushed data is lost when its server stops unexpectedly")]
    NoFlush(ExportUri),
}

impl UpstreamError {
    pub(super) fn status(&self) -> u16 {
        match self {
            UpstreamError::Dial(_) => 502,
            UpstreamError::Blocks { .. } | UpstreamError::Size { .. } => 409,
            UpstreamError::NoFlush(_) => 400,
        }
    }

    pub(super) fn hint(&self) -> Option<String> {
        Some(match self {
            UpstreamError::Dial(DialError::Tls(_)) => {
                "use nbd:// or nbd+unix:// within a network that you trust".into()
            }
            UpstreamError::Dial(_) => {
                "the server must be running, reachable from here, and have the export: `nbdinfo URI` tries the same"
                    .into()
            }
            UpstreamError::Size { .. } => "change the size of the export on its server".into(),
            UpstreamError::NoFlush(_) => "add --i-accept-data-loss to confirm".into(),
            UpstreamError::Blocks { .. } => return None,
        })
    }
}
