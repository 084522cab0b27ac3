//! The arguments of `store`.

use clap::{Args, Subcommand};

use super::Reach;
use crate::access::Rule;
use crate::quantity::{Description, Name, ShareText, Size};

/// Create, list, show and delete stores, volumes set aside for writes that other disks off-load, and set their share
///
/// All stores of a disk are volumes of one tenant, '@stores', which has a share of the disk's time and no R. A store is
/// an NBD export like a volume; its writes are always durable, and nothing of it is cached or read ahead.
#[derive(Debug, Args)]
pub struct StoreArgs {
    #[command(subcommand)]
    pub verb: StoreVerb,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Subcommand)]
pub enum StoreVerb {
    /// Create a store; its space is allocated at once
    Create {
        /// Letters, digits, '.', '_' and '-', at most 63; no volume may have the same
        name: Name,
        /// Its size, such as 4GiB: at least 17MiB, rounded up to 4KiB
        #[arg(long)]
        size: Size,
        /// The disk; may be omitted if there is only one, or one called 'default'
        #[arg(long)]
        disk: Option<Name>,
        /// The part of the disk's time promised to all stores of the disk together: 1/20, 0.05 or 5% [default: the
        /// present one, or 5% with the first store]
        #[arg(long)]
        share: Option<ShareText>,
        /// Even if the shares of the disk sum to more than 1
        #[arg(long)]
        overcommit: bool,
        /// Only these clients may open it: user:UID (over a Unix socket), cert:SUBJECT or name:NAME (of a client
        /// certificate), any or nobody. May be repeated; 'volume set --allow' changes it [default: any]
        #[arg(long, value_name = "CLIENT")]
        allow: Vec<Rule>,
        /// A text that clients can read
        #[arg(long, value_name = "TEXT")]
        description: Option<Description>,
    },
    /// List all stores
    List,
    /// Show a store
    Show {
        /// Its name
        name: Name,
    },
    /// Change the share of all stores of a disk
    Set {
        /// The disk; may be omitted if there is only one, or one called 'default'
        #[arg(long)]
        disk: Option<Name>,
        /// The part of the disk's time promised to all its stores together: 1/20, 0.05 or 5%
        #[arg(long)]
        share: ShareText,
        /// Even if the shares of the disk sum to more than 1
        #[arg(long)]
        overcommit: bool,
    },
    /// Delete a store. Writes that are off-loaded to it, and nowhere else, are lost
    Delete {
        /// Its name
        name: Name,
        /// Confirm that what is in it is deleted
        #[arg(long, required = true)]
        yes: bool,
        /// Even if clients are connected, which are disconnected
        #[arg(long)]
        force: bool,
    },
}
