//! Why a change was refused: one variant per reason that a caller can act on. The message names the thing, the hint the
//! remedy.

mod allocation;
mod cluster;
mod invalid;
mod offline;
mod offload;
mod policy;
mod store_export;
mod upstream;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use engine::control::Refusal;
use engine::units::Share;
use tokio::task::JoinError;

pub use self::allocation::AllocationError;
pub use self::cluster::PartError;
pub use self::invalid::Invalid;
pub use self::offline::{DiskReason, VolumeReason};
pub use self::offload::OffloadRefused;
pub use self::policy::PolicyError;
pub use self::store_export::StoreExportError;
pub use self::upstream::UpstreamError;
use crate::quantity::{Name, Rate, Size, percent};
use crate::store::{ChangeError, DataError, IdentityError, LoadError, OpenError, RawError, StoreError};

/// The kind of a named thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A disk.
    Disk,
    /// A volume.
    Volume,
    /// A volume for off-loaded writes.
    Store,
    /// A tenant.
    Tenant,
    /// A named policy of tenants.
    Policy,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Disk => "disk",
            Kind::Volume => "volume",
            Kind::Store => "store",
            Kind::Tenant => "tenant",
            Kind::Policy => "policy",
        })
    }
}

impl Kind {
    fn plural(self) -> &'static str {
        match self {
            Kind::Disk => "disks",
            Kind::Volume => "volumes",
            Kind::Store => "stores",
            Kind::Tenant => "tenants",
            Kind::Policy => "policies",
        }
    }
}

/// Why an operation failed. Nothing was changed, unless the message says so.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is nothing of this name.
    #[error("there is no {0} '{1}'")]
    Unknown(Kind, Name),
    /// The name is taken.
    #[error("there is already a {0} '{1}'")]
    Exists(Kind, Name),
    /// The request names no disk, and there are several.
    #[error("there are {0} disks: name one")]
    WhichDisk(usize),
    /// The request names no disk, and the tenant has volumes on several.
    #[error("tenant '{0}' has volumes on {1} disks: name one")]
    WhichDiskOfTenant(Name, usize),
    /// The tenant has no volume on the disk.
    #[error("tenant '{tenant}' has no volume on disk '{disk}'")]
    NotOnDisk {
        /// The tenant.
        tenant: Name,
        /// The disk.
        disk: Name,
    },
    /// The disk has no store.
    #[error("disk '{0}' has no store")]
    NoStores(Name),
    /// The request is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The disk cannot be used at present.
    #[error("disk '{0}' is offline: {1}")]
    DiskOffline(Name, DiskReason),
    /// The volume cannot be used at present.
    #[error("volume '{0}' is offline: {1}")]
    VolumeOffline(Name, VolumeReason),
    /// The volume's data is busy; it is served as soon as the data is free.
    #[error("volume '{0}' is not served yet: {1}")]
    Waiting(Name, Arc<DataError>),
    /// Another operation on it is in progress.
    #[error("{0} '{1}' is still being created or changed")]
    Busy(Kind, Name),
    /// An earlier change has not ended.
    #[error("disk '{0}' is still being changed by an earlier request")]
    Changing(Name),
    /// The disk has not answered for a long time; the change may still take effect.
    #[error("{0} takes more than {1} s and continues: a device or a file system does not answer")]
    Unanswered(&'static str, u64),
    /// Another probe is running.
    #[error("disk '{0}' is being probed already")]
    Probing(Name),
    /// No probe is running.
    #[error("disk '{0}' is not being probed")]
    NotProbing(Name),
    /// Clients are connected to it.
    #[error("{0} '{1}' is in use by {2} connections")]
    InUse(Kind, Name, u32),
    /// The shares of a disk must sum to at most 1.
    #[error("a share of {} does not fit on disk '{disk}': {} remains", percent(asked.ppb()), percent(*left_ppb))]
    ShareTooLarge {
        /// The disk.
        disk: Name,
        /// The requested share.
        asked: Share,
        /// The remaining share, parts per billion.
        left_ppb: u64,
    },
    /// A named policy refuses it.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// No workload could have this minimum bandwidth in its share.
    #[error(
        "a minimum bandwidth of {asked} can never hold in {share} of the time of disk '{disk}', whose sequential rate \
         is {}/s",
        Size(stream.0).rounded()
    )]
    GuaranteeTooLarge {
        /// The disk.
        disk: Name,
        /// The requested minimum bandwidth.
        asked: Rate,
        /// The share, as text.
        share: String,
        /// The highest sequential rate of the disk, by its profile.
        stream: Rate,
    },
    /// The directory is not a disk, or cannot become one.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The disk cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The disk cannot be started.
    #[error("{0}")]
    Start(DiskReason),
    /// A specification cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// `disk.toml` cannot be changed.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The faults are cleared until the disk is opened again.
    #[error("the faults are cleared, but remain in disk.toml and return when the disk is opened again: {0}")]
    FaultsRemain(ChangeError),
    /// It is not known which device a directory is on.
    #[error(
        "the device of {} cannot be determined: {} cannot be read: {source}",
        path.display(),
        ancestor.display()
    )]
    NoDevice {
        /// The directory.
        path: PathBuf,
        /// The directory above it that cannot be read.
        ancestor: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// All volumes of the disk are raw, and none is served.
    #[error("disk '{0}' cannot be probed: none of its raw devices is available")]
    NothingToProbe(Name),
    /// The disk's thread does not say whether there are connections.
    #[error("whether clients use disk '{0}' is not known, since its thread does not answer: --force detaches it")]
    UseUnknown(Name),
    /// The raw device cannot be a volume's data.
    #[error(transparent)]
    Raw(#[from] RawError),
    /// The export on another server cannot be a volume's data.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The disk takes part in a cluster.
    #[error(transparent)]
    Part(#[from] PartError),
    /// A planned allocation is none.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// Writes are not off-loaded as requested.
    #[error(transparent)]
    Offload(Box<OffloadRefused>),
    /// Two disks on one device would compete for its time.
    #[error("{path} is on the same device as disk '{other}': the two disks would delay each other")]
    SameDevice {
        /// The directory of the new disk, or the device of a volume.
        path: String,
        /// The disk that is on the device.
        other: Name,
    },
    /// The simulated drive has no free range of this length.
    #[error(
        "{} do not fit on the simulated disk '{disk}': {} are free, the largest contiguous range has {}",
        Size(*asked), Size(*free).rounded(), Size(*longest).rounded()
    )]
    NoPlace {
        /// The disk.
        disk: Name,
        /// Requested bytes.
        asked: u64,
        /// The longest free range, bytes.
        longest: u64,
        /// Free bytes.
        free: u64,
    },
    /// The simulated drive is in use behind the volume.
    #[error(
        "volume '{volume}' cannot grow by {}: {} are free behind it on its simulated disk",
        Size(*more), Size(*room).rounded()
    )]
    NoRoomBehind {
        /// The volume.
        volume: Name,
        /// Bytes to grow by.
        more: u64,
        /// Free bytes behind the volume.
        room: u64,
    },
    /// The number of faults is limited, since each request is matched against all of them.
    #[error("disk '{0}' has {1} faults already, the maximum")]
    TooManyFaults(Name, usize),
    /// There is no such fault; it may have been cleared.
    #[error("disk '{0}' has no fault {1}")]
    NoFault(Name, u64),
    /// The setting can lose data, and the request does not accept that.
    #[error(
        "with write_cache=unsafe, acknowledged and flushed data is lost when the server or the machine stops \
         unexpectedly"
    )]
    NotAccepted,
    /// The memory that other disks have to free for the new one is still in use.
    #[error("the other disks still hold {} of memory that the new one needs", .0.rounded())]
    MemoryHeld(Size),
    /// The disk's engine refused.
    #[error("{kind} '{name}': {refusal}")]
    Refused {
        /// The kind of the thing.
        kind: Kind,
        /// Its name.
        name: Name,
        /// The reason.
        refusal: Refusal,
    },
    /// An operation on the disk's files failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The same of a store for off-loaded writes, whose space is always allocated at once.
    #[error(transparent)]
    SpaceOfStore(StoreError),
    /// A creation failed, and undoing it failed, too.
    #[error("{0}; it could not be removed either: {1}")]
    NotRemoved(Box<Error>, Box<Error>),
    /// The server's own directory cannot be written.
    #[error("cannot write the registry of disks: {0}")]
    Registry(io::Error),
    /// Changes are refused while the server shuts down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// A task panicked.
    #[error("internal error: {0}")]
    Task(#[from] JoinError),
    /// A volume is served without a specification.
    #[error("internal error: a served volume without specification")]
    NoSpec,
    /// The disk's engine did not answer a question for a plan.
    #[error("internal error: the disk has no plan")]
    NoPlan,
    /// The metrics cannot be written.
    #[error("internal error: {0}")]
    Metrics(#[from] std::fmt::Error),
}

/// What can be done about a disk on the device of another one.
const SAME_DEVICE_HINT: &str = "name one on another device, or accept it with --force (a disk of raw volumes only has \
                                little in its directory)";

impl From<OffloadRefused> for Error {
    fn from(error: OffloadRefused) -> Error {
        Error::Offload(Box::new(error))
    }
}

impl Error {
    /// The corresponding HTTP status.
    pub fn status(&self) -> u16 {
        match self {
            Error::Unknown(..) | Error::NoFault(..) | Error::NotOnDisk { .. } | Error::NoStores(_) => 404,
            Error::WhichDisk(_) | Error::WhichDiskOfTenant(..) | Error::Invalid(_) | Error::NotAccepted => 400,
            Error::Raw(error) => raw_status(error),
            Error::Policy(error) => error.status(),
            Error::Upstream(error) => error.status(),
            Error::Offload(error) => error.status(),
            Error::Part(error) => error.status(),
            Error::Allocation(error) => error.status(),
            Error::Store(error) | Error::SpaceOfStore(error) => store_status(error),
            Error::NotRemoved(error, _) => error.status(),
            Error::NoPlace { .. } | Error::NoRoomBehind { .. } => 507,
            Error::ShuttingDown | Error::Changing(_) => 503,
            Error::Unanswered(..) => 504,
            Error::Registry(_) | Error::Task(_) | Error::NoSpec | Error::NoPlan | Error::Metrics(_) => 500,
            Error::Exists(..)
            | Error::DiskOffline(..)
            | Error::VolumeOffline(..)
            | Error::Waiting(..)
            | Error::Busy(..)
            | Error::Probing(_)
            | Error::NotProbing(_)
            | Error::InUse(..)
            | Error::ShareTooLarge { .. }
            | Error::GuaranteeTooLarge { .. }
            | Error::Identity(_)
            | Error::Open(_)
            | Error::Start(_)
            | Error::Load(_)
            | Error::Change(_)
            | Error::FaultsRemain(_)
            | Error::NoDevice { .. }
            | Error::NothingToProbe(_)
            | Error::UseUnknown(_)
            | Error::SameDevice { .. }
            | Error::TooManyFaults(..)
            | Error::MemoryHeld(_)
            | Error::Refused { .. } => 409,
        }
    }

    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::Policy(error) => return error.hint(),
            Error::Upstream(error) => return error.hint(),
            Error::Offload(error) => return error.hint(),
            Error::Part(error) => return error.hint(),
            Error::Allocation(error) => return error.hint(),
            Error::NotRemoved(..) => "`aerogel volume delete` removes it if `aerogel volume list` still has it".into(),
            Error::Unknown(kind, _) => format!("`aerogel {kind} list` shows all {}", kind.plural()),
            Error::Exists(kind, name) => format!("choose another name, or see `aerogel {kind} show {name}`"),
            Error::WhichDisk(_) => "name one with --disk; `aerogel disk list` shows them".into(),
            Error::WhichDiskOfTenant(name, _) => format!("name one with --disk; see `aerogel tenant show {name}`"),
            Error::NotOnDisk { tenant, .. } => format!("`aerogel tenant show {tenant}` shows the disks that it is on"),
            Error::NoStores(disk) => format!("`aerogel store create NAME --disk {disk} --size SIZE` makes one"),
            Error::DiskOffline(name, _) => {
                format!(
                    "it is opened automatically once the cause is removed; `aerogel disk add {name} PATH` with its \
                     path tries at once"
                )
            }
            Error::Waiting(..) => "`aerogel volume show` says when it is served".into(),
            Error::VolumeOffline(..) => "it is opened automatically once the cause is removed".into(),
            Error::Busy(kind, name) => format!("wait for it: `aerogel {kind} show {name}`"),
            Error::Changing(name) => {
                format!("wait for it; `aerogel disk show {name}` shows whether its device answers")
            }
            Error::Unanswered(..) => "`aerogel status` shows which disk does not answer, and the present state".into(),
            Error::Probing(name) => format!("wait for it, or cancel it with `aerogel disk probe {name} --cancel`"),
            Error::NotProbing(name) => format!("`aerogel disk probe {name}` starts a probe"),
            Error::InUse(..) => "close the clients, or use --force".into(),
            Error::ShareTooLarge { .. } => {
                "request less, reduce another tenant's share, or let shares exceed the disk with --overcommit".into()
            }
            Error::GuaranteeTooLarge { .. } => "request less, or a larger share with --share".into(),
            Error::SameDevice { .. } => SAME_DEVICE_HINT.into(),
            Error::Raw(error) => error.hint().into(),
            Error::NoPlace { .. } => "request less, or delete a volume of the disk".into(),
            Error::NoRoomBehind { .. } => "request less, or copy the data to a larger volume".into(),
            Error::TooManyFaults(disk, _) | Error::NoFault(disk, _) => {
                format!("`aerogel disk fault list {disk}` shows them, `aerogel disk fault clear {disk}` removes them")
            }
            Error::MemoryHeld(_) => {
                "disconnect clients that do not read their replies (`aerogel status` shows who is connected), and try \
                 again"
                    .into()
            }
            Error::NotAccepted => "add --i-accept-data-loss to confirm".into(),
            Error::Refused { refusal, name, .. } => return refusal_hint(refusal, name),
            Error::Store(error) => return store_hint(error).map(str::to_owned),
            Error::SpaceOfStore(_) => "free some space, request less, or name another disk with --disk".into(),
            // The message has the remedy, or there is none.
            Error::Invalid(_)
            | Error::Identity(_)
            | Error::Open(_)
            | Error::Start(_)
            | Error::Load(_)
            | Error::Change(_)
            | Error::FaultsRemain(_)
            | Error::NoDevice { .. }
            | Error::NothingToProbe(_)
            | Error::UseUnknown(_)
            | Error::Registry(_)
            | Error::ShuttingDown
            | Error::Task(_)
            | Error::NoSpec
            | Error::NoPlan
            | Error::Metrics(_) => return None,
        })
    }
}

fn raw_status(error: &RawError) -> u16 {
    match error {
        RawError::Missing { .. } | RawError::NotADevice(_) | RawError::Blocks { .. } => 400,
        RawError::TooSmall { .. } => 507,
        RawError::Open { .. } => 500,
        RawError::ReadOnly { .. }
        | RawError::InUse { .. }
        | RawError::Busy { .. }
        | RawError::Taken { .. }
        | RawError::Holds { .. }
        | RawError::Unknown { .. }
        | RawError::NotTold { .. }
        | RawError::Another { .. } => 409,
    }
}

fn store_status(error: &StoreError) -> u16 {
    match error {
        StoreError::TooLarge { .. } => 400,
        StoreError::NoSpace { .. } => 507,
        StoreError::Cancelled => 503,
        StoreError::Step { .. } | StoreError::NotUndone { .. } | StoreError::NotRemoved { .. } => 500,
        StoreError::Change(_) => 409,
        StoreError::NoAllocation { .. }
        | StoreError::Unclaimed(_)
        | StoreError::NotShown { .. }
        | StoreError::Edited(_) => 409,
    }
}

fn refusal_hint(refusal: &Refusal, name: &Name) -> Option<String> {
    match refusal {
        Refusal::CacheTooLarge { .. } | Refusal::BudgetTooSmall { .. } => {
            Some("request less cache, or start the server with more (cache = \"…\" in its configuration)".into())
        }
        Refusal::FlushFailed => Some(format!(
            "see the server's log for the device's error; `aerogel volume clear {name}` discards blocks that cannot \
             be written: their data is lost"
        )),
        _ => None,
    }
}

fn store_hint(error: &StoreError) -> Option<&'static str> {
    match error {
        StoreError::NoSpace { .. } => {
            Some("free some space, request less, or use --sparse to allocate as it is written")
        }
        StoreError::TooLarge { .. } => Some("request less, or use a disk with another file system"),
        StoreError::NoAllocation { .. } => Some("use --sparse, or a disk with another file system"),
        StoreError::Edited(_) => Some("restore the specification, or restart the server to use the changed one"),
        StoreError::NotRemoved { .. } => Some("`aerogel volume delete` removes it, after a restart of the server"),
        StoreError::Unclaimed(_) => {
            Some("an interrupted creation or deletion may have left it: move it away or remove it by hand")
        }
        StoreError::Cancelled
        | StoreError::Change(_)
        | StoreError::NotUndone { .. }
        | StoreError::NotShown { .. }
        | StoreError::Step { .. } => None,
    }
}
