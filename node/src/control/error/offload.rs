//! Why the writes of a disk are not off-loaded as requested.

use std::sync::Arc;

use engine::offload::STORE_BYTES_MIN;

use super::store_export::{StoreExportError, read_hint};
use crate::quantity::{Name, Size};
use crate::store::offload::{OffloadError, SettingsError, StoreRef};
use crate::upstream::ReadError;

/// Why a request about off-loading was refused.
#[derive(Debug, thiserror::Error)]
pub enum OffloadRefused {
    #[error("the writes of disk '{0}' are not off-loaded")]
    Disabled(Name),
    #[error("the writes of disk '{0}' are off-loaded to other stores already")]
    OtherStores(Name),
    #[error("the writes of disk '{0}' are off-loaded already, with another number of copies")]
    OtherCopies(Name),
    #[error("the writes of disk '{0}' are off-loaded already, with other exceptions")]
    OtherExceptions(Name),
    #[error("off-loading of disk '{0}' is being ended")]
    Ending(Name),
    #[error("no store is named for disk '{0}', whose writes are not off-loaded yet")]
    NoStore(Name),
    #[error("store '{0}' is named twice: each copy needs a store of its own")]
    Twice(StoreRef),
    #[error("'{0}' and '{1}' are one store: each copy needs a store of its own")]
    Same(StoreRef, StoreRef),
    #[error("volume '{volume}' of --except is on disk '{on}', not on disk '{disk}'")]
    ExceptElsewhere { volume: Name, on: Name, disk: Name },
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("store '{store}' is on disk '{disk}' itself, which would be no faster")]
    SameDisk { store: StoreRef, disk: Name },
    #[error("volume '{0}' is not a store")]
    NotAStore(Name),
    #[error("store '{store}' has the log of disk '{disk}': each disk needs a store of its own")]
    Taken { store: StoreRef, disk: Name },
    #[error("store '{store}' has {}, less than the {} of the smallest log", Size(*bytes), Size(STORE_BYTES_MIN))]
    TooSmall { store: StoreRef, bytes: u64 },
    #[error("store '{0}' is read-only")]
    ReadOnly(StoreRef),
    #[error("store '{store}' does not accept writes: {source}")]
    Unwritable { store: StoreRef, source: Box<ReadError> },
    #[error("store '{0}' is not empty: it has another log or other data")]
    Holds(StoreRef),
    #[error("store '{store}' cannot be used: {source}")]
    Unreachable { store: StoreRef, source: Box<ReadError> },
    #[error("disk '{disk}' has no store '{store}'")]
    Unknown { disk: Name, store: StoreRef },
    #[error(
        "store '{store}' of disk '{disk}' cannot be removed: {} would remain, and each off-loaded write needs {}",
        stores(*remaining), stores(*copies as usize)
    )]
    TooFewRemain { store: StoreRef, disk: Name, remaining: usize, copies: u32 },
    #[error("store '{store}' can be reached, so it is not lost")]
    Reachable { store: StoreRef, disk: Name },
    #[error("disk '{disk}' does not answer, so whether it uses store '{store}' is not known")]
    Silent { store: StoreRef, disk: Name },
    #[error("off-loading of disk '{disk}' has not started: {reason}")]
    Waits { disk: Name, reason: String },
    #[error("the writes of disk '{0}' are off-loaded, and data may be in its stores only")]
    Detached(Name),
    #[error("disk '{disk}' may have data in store '{store}' and nowhere else")]
    InUse { store: Name, disk: Name },
    #[error("disk '{disk}' has store '{store}', and disk '{user}' may have data there and nowhere else")]
    StoreOnDisk { disk: Name, store: Name, user: Name },
    #[error(transparent)]
    Export(#[from] StoreExportError),
    #[error(transparent)]
    File(#[from] OffloadError),
    #[error("{0}")]
    Broken(Arc<OffloadError>),
}

fn stores(count: usize) -> String {
    format!("{count} store{}", if count == 1 { "" } else { "s" })
}

impl OffloadRefused {
    pub(super) fn status(&self) -> u16 {
        match self {
            OffloadRefused::Disabled(_) | OffloadRefused::Unknown { .. } => 404,
            OffloadRefused::NoStore(_)
            | OffloadRefused::Twice(_)
            | OffloadRefused::Same(..)
            | OffloadRefused::ExceptElsewhere { .. }
            | OffloadRefused::Settings(_)
            | OffloadRefused::NotAStore(_) => 400,
            OffloadRefused::Export(error) => error.status(),
            OffloadRefused::Unreachable { .. } | OffloadRefused::Unwritable { .. } => 502,
            OffloadRefused::File(_) => 500,
            OffloadRefused::OtherStores(_)
            | OffloadRefused::OtherCopies(_)
            | OffloadRefused::OtherExceptions(_)
            | OffloadRefused::Ending(_)
            | OffloadRefused::SameDisk { .. }
            | OffloadRefused::Taken { .. }
            | OffloadRefused::TooSmall { .. }
            | OffloadRefused::ReadOnly(_)
            | OffloadRefused::Holds(_)
            | OffloadRefused::Reachable { .. }
            | OffloadRefused::Silent { .. }
            | OffloadRefused::TooFewRemain { .. }
            | OffloadRefused::Waits { .. }
            | OffloadRefused::Detached(_)
            | OffloadRefused::InUse { .. }
            | OffloadRefused::StoreOnDisk { .. }
            | OffloadRefused::Broken(_) => 409,
        }
    }

    pub(super) fn hint(&self) -> Option<String> {
        Some(match self {
            OffloadRefused::Disabled(disk) => format!("`aerogel offload enable {disk} --store STORE` begins it"),
            OffloadRefused::OtherStores(disk)
            | OffloadRefused::OtherCopies(disk)
            | OffloadRefused::OtherExceptions(disk) => {
                format!(
                    "`aerogel offload disable {disk}` ends it; then enable it anew. Other settings can be changed at \
                     once"
                )
            }
            OffloadRefused::Ending(disk) => format!("wait for it: `aerogel offload show {disk}`"),
            OffloadRefused::SameDisk { .. } => {
                "create one on another disk: `aerogel store create NAME --disk OTHER --size SIZE`".into()
            }
            OffloadRefused::NotAStore(_) => {
                "`aerogel store create NAME --disk OTHER --size SIZE` makes one, `aerogel store list` shows all".into()
            }
            OffloadRefused::ReadOnly(_) | OffloadRefused::Unwritable { .. } => {
                "a store is written: its export must be writable, and its server must have room for all of it".into()
            }
            OffloadRefused::Taken { .. } => {
                "create another one: `aerogel store create NAME --disk OTHER --size SIZE`".into()
            }
            OffloadRefused::Settings(error) => error.hint(),
            OffloadRefused::NoStore(disk) => {
                format!(
                    "name one on another disk: `aerogel offload enable {disk} --store NAME`; `aerogel store list` \
                     shows those of this server, `aerogel store create NAME --disk OTHER --size 4GiB` makes one"
                )
            }
            OffloadRefused::Twice(_) | OffloadRefused::Same(..) => {
                "name it once, and another store for each further --store".into()
            }
            OffloadRefused::ExceptElsewhere { volume, .. } => {
                format!("leave out `--except {volume}`; `aerogel volume list` shows the disk of each volume")
            }
            OffloadRefused::TooSmall { .. } => "create a larger one, or name another one".into(),
            OffloadRefused::Holds(_) => "name another one, or overwrite what it has with --force".into(),
            OffloadRefused::Export(error) => error.hint(),
            OffloadRefused::Unreachable { source, .. } => read_hint(source).into(),
            OffloadRefused::Unknown { disk, .. } => format!("`aerogel offload show {disk}` shows its stores"),
            OffloadRefused::TooFewRemain { disk, .. } => {
                format!("`aerogel offload disable {disk}` brings everything home; then enable it with other stores")
            }
            OffloadRefused::Reachable { store, disk } => {
                format!("`aerogel offload store remove {disk} {store}`, without --lost, brings its data home first")
            }
            OffloadRefused::Silent { disk, .. } => format!("try again when `aerogel disk show {disk}` has figures"),
            OffloadRefused::Waits { disk, .. } => {
                format!(
                    "start the server of the store, or if it is gone for good: \
                     `aerogel offload store remove {disk} STORE --lost --yes`"
                )
            }
            OffloadRefused::Detached(disk) => {
                format!(
                    "`aerogel offload disable {disk}` brings everything home; or use --force: the disk needs the \
                     same stores when it is attached again"
                )
            }
            OffloadRefused::InUse { store, disk } | OffloadRefused::StoreOnDisk { store, user: disk, .. } => {
                format!(
                    "`aerogel offload store remove {disk} {store}` brings its data home, `aerogel offload disable \
                     {disk}` that of all stores; or use --force"
                )
            }
            OffloadRefused::Broken(_) | OffloadRefused::File(_) => return None,
        })
    }
}
