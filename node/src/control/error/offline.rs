//! Why a disk or a volume is offline. The reasons are kept with it and shown until it is open again.

use std::io;
use std::sync::Arc;

use super::Error;
use crate::disk_thread::StartError;
use crate::quantity::Name;
use crate::store::{DataError, LoadError, OpenError, SimulatedError};

/// Why a disk is offline.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DiskReason {
    #[error("its file system does not answer; the disk is opened when it does")]
    Hangs,
    #[error("its thread does not answer")]
    NoAnswer,
    #[error(transparent)]
    Store(Arc<OpenError>),
    #[error("its volumes cannot be read: {0}")]
    Volumes(Arc<io::Error>),
    #[error(transparent)]
    Drive(Arc<SimulatedError>),
    #[error("its thread cannot be started: {}", chain(&**.0))]
    Thread(Arc<StartError>),
    #[error("it was stopped")]
    Stopped,
    #[error("{0}")]
    Other(Arc<Error>),
}

/// Why a volume is offline.
#[derive(Clone, Debug, thiserror::Error)]
pub enum VolumeReason {
    #[error(transparent)]
    Load(Arc<LoadError>),
    #[error("disk '{0}' has a volume of the same name")]
    SameName(Name),
    #[error("it is being opened")]
    Opening,
    #[error("its disk '{0}' is offline: {1}")]
    Disk(Name, DiskReason),
    #[error("its disk does not answer")]
    NoAnswer,
    #[error("its specification gives it no place on the simulated drive")]
    NoPlace,
    #[error("its specification gives it a place beyond the end of the simulated drive")]
    BeyondDrive,
    #[error(transparent)]
    Data(Arc<DataError>),
    #[error("its newest data may be in off-load stores: {0}")]
    Offload(String),
    #[error("it was closed")]
    Closed,
    #[error("it was being deleted")]
    Deleting,
    #[error("{0}")]
    Other(Arc<Error>),
}

impl From<OpenError> for DiskReason {
    fn from(error: OpenError) -> DiskReason {
        DiskReason::Store(error.into())
    }
}

/// The reason of an operation that was refused: that of the disk itself if it is offline.
impl From<Error> for DiskReason {
    fn from(error: Error) -> DiskReason {
        match error {
            Error::DiskOffline(_, reason) => reason,
            error => DiskReason::Other(error.into()),
        }
    }
}

/// As for a disk.
impl From<Error> for VolumeReason {
    fn from(error: Error) -> VolumeReason {
        match error {
            Error::VolumeOffline(_, reason) => reason,
            error => VolumeReason::Other(error.into()),
        }
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
