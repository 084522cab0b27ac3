//! The arguments of `offload`.

use clap::{Args, Subcommand};

use super::Reach;
use crate::quantity::{Name, Size};
use crate::store::offload::{
    BASE_THRESHOLD_DEFAULT, COPIES_DEFAULT, LIMIT_DEFAULT, RECLAIM_DEPTH_DEFAULT, STORE_THRESHOLD_DEFAULT, StoreRef,
};

/// Off-load the writes of overloaded disks to stores on other disks
///
/// While a disk has more requests than it works off, writes go to logs on idle disks, and are copied home later.
/// Clients notice shorter waits.
#[derive(Debug, Args)]
pub struct OffloadArgs {
    #[command(subcommand)]
    pub verb: OffloadVerb,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Subcommand)]
pub enum OffloadVerb {
    Enable(Box<EnableArgs>),
    /// Show what is off-loaded, and the state of the stores
    Show {
        /// The disk
        disk: Name,
        /// Each second, until it is interrupted
        #[arg(long)]
        watch: bool,
    },
    /// List the disks whose writes are off-loaded
    List,
    /// Bring everything home, show the progress, then forget the stores
    Disable {
        /// The disk
        disk: Name,
    },
    /// Do without a store
    Store {
        #[command(subcommand)]
        verb: OffloadStoreVerb,
    },
}

/// Off-load the writes of a disk when it is overloaded; or change the settings, without --store or with the same ones
#[derive(Debug, Args)]
pub struct EnableArgs {
    /// The disk
    pub disk: Name,
    /// A store: the name of one of this server on another disk, or the URI of an NBD export. May be repeated
    #[arg(long = "store", value_name = "STORE")]
    pub stores: Vec<StoreRef>,
    /// Stores that have each off-loaded write, 1 or 2
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        help = format!("Stores that have each off-loaded write, 1 or 2 [default: {COPIES_DEFAULT}]")
    )]
    pub copies: Option<u32>,
    /// Off-loaded bytes of a volume, at most
    #[arg(long, value_name = "SIZE", help = format!("Off-loaded bytes of a volume, at most \
                                                     [default: {LIMIT_DEFAULT}]"))]
    pub limit: Option<Size>,
    /// Requests at the disk above which writes are off-loaded
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        help = format!("Requests of a tenant at the disk above which its \
                        writes are off-loaded [default: {BASE_THRESHOLD_DEFAULT}]")
    )]
    pub base_threshold: Option<u32>,
    /// Requests at a store from which on nothing is off-loaded to it
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        help = format!("Requests at a store from which on nothing is \
                        off-loaded to it [default: {STORE_THRESHOLD_DEFAULT}]")
    )]
    pub store_threshold: Option<u32>,
    /// Content that is copied home at the same time
    #[arg(
        long,
        value_name = "N",
        allow_negative_numbers = true,
        help = format!("Copies on their way home at the same time, of each volume [default: {RECLAIM_DEPTH_DEFAULT}]")
    )]
    pub reclaim_depth: Option<u32>,
    /// A volume that is not off-loaded. May be repeated; cannot be changed later
    #[arg(long, value_name = "VOLUME")]
    pub except: Vec<Name>,
    /// Overwrite what the stores have; otherwise they must be empty
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Subcommand)]
pub enum OffloadStoreVerb {
    /// Do without a store: bring its data home, show the progress, then forget it
    Remove {
        /// The disk
        disk: Name,
        /// The store, as it was named
        store: StoreRef,
        /// The store is gone for good: ranges of which only it had the newest content are old
        #[arg(long)]
        lost: bool,
        /// With --lost: confirm that data may be lost
        #[arg(long)]
        yes: bool,
    },
}
