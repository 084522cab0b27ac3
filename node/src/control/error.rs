//! Why a change was refused, as the caller can act on it. Every message names the thing; the hint names the fix.

use engine::control::Refusal;
use engine::units::Share;

use crate::quantity::{Name, Size, percent};
use crate::store::{RawError, StoreError};

/// What control works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A disk.
    Disk,
    /// A volume.
    Volume,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Kind::Disk => "disk",
            Kind::Volume => "volume",
        })
    }
}

/// Why an operation was not done. Nothing was changed, unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing has this name.
    #[error("there is no {0} '{1}'")]
    Unknown(Kind, Name),
    /// The name is taken.
    #[error("there is already a {0} '{1}'")]
    Exists(Kind, Name),
    /// Which disk is meant does not follow.
    #[error("there are {0} disks: which one is meant?")]
    WhichDisk(usize),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The thing cannot be used at present.
    #[error("{0} '{1}' is offline: {2}")]
    Offline(Kind, Name, String),
    /// Its data is busy, and it is served as soon as that has passed.
    #[error("volume '{0}' is not served yet: {1}")]
    Waiting(Name, String),
    /// Another operation on it is under way.
    #[error("{0} '{1}' is still being created or changed")]
    Busy(Kind, Name),
    /// An earlier change has not ended.
    #[error("disk '{0}' is still being changed by an earlier request")]
    Changing(Name),
    /// The disk has not answered for a long time, and what was begun may still happen.
    #[error("{0} has no answer after {1} s, and goes on: a device or a file system does not answer")]
    Unanswered(&'static str, u64),
    /// One probe at a time.
    #[error("disk '{0}' is being probed already")]
    Probing(Name),
    /// There is none to end.
    #[error("disk '{0}' is not being probed")]
    NotProbing(Name),
    /// Clients have it open.
    #[error("{0} '{1}' is in use by {2} connections")]
    InUse(Kind, Name, u32),
    /// Shares of a disk sum to at most 1.
    #[error("a share of {} does not fit on disk '{disk}': {} is left", percent(asked.ppb()), percent(*left_ppb))]
    ShareTooLarge {
        /// Which disk.
        disk: Name,
        /// What was asked for.
        asked: Share,
        /// What could be had.
        left_ppb: u64,
    },
    /// The directory cannot become a disk.
    #[error("{0}")]
    Unusable(String),
    /// A raw device cannot be a volume's data.
    #[error(transparent)]
    Raw(#[from] RawError),
    /// Two disks on one device are not two disks.
    #[error("{path} is on the same device as disk '{other}': what one does there, the other waits for")]
    SameDevice {
        /// The directory of the new one, or the device of a volume.
        path: String,
        /// The disk that is there.
        other: Name,
    },
    /// The drive that a disk pretends to be has no such stretch.
    #[error(
        "{} do not fit on the simulated disk '{disk}': {} are free, at most {} of them in one piece",
        Size(*asked), Size(*free).rounded(), Size(*longest).rounded()
    )]
    NoPlace {
        /// Which disk.
        disk: Name,
        /// Bytes.
        asked: u64,
        /// Bytes.
        longest: u64,
        /// Bytes.
        free: u64,
    },
    /// Another volume is where it would grow.
    #[error(
        "volume '{volume}' cannot grow by {}: on its simulated disk {} are free behind it",
        Size(*more), Size(*room).rounded()
    )]
    NoRoomBehind {
        /// Which.
        volume: Name,
        /// Bytes.
        more: u64,
        /// Bytes.
        room: u64,
    },
    /// Each request meets all of them.
    #[error("disk '{0}' has {1} faults, and that is as many as there may be")]
    TooManyFaults(Name, usize),
    /// It may have been cleared.
    #[error("disk '{0}' has no fault {1}")]
    NoFault(Name, u64),
    /// Data may be lost this way, and nobody accepted that.
    #[error(
        "with write_cache=unsafe, acknowledged and flushed data is lost when the server or the machine stops \
         unexpectedly"
    )]
    NotAccepted,
    /// What the other disks give up is not free.
    #[error("the other disks still hold {} of memory that the new one needs", .0.rounded())]
    MemoryHeld(Size),
    /// The disk's machine refused.
    #[error("{kind} '{name}': {refusal}")]
    Refused {
        /// What it is about.
        kind: Kind,
        /// Which.
        name: Name,
        /// Why.
        refusal: Refusal,
    },
    /// The file system refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The server's own directory cannot be written.
    #[error("cannot write the registry of disks: {0}")]
    Registry(std::io::Error),
    /// No changes any more.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// A bug.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    /// The HTTP status that says the same.
    pub fn status(&self) -> u16 {
        match self {
            Error::Unknown(..) | Error::NoFault(..) => 404,
            Error::WhichDisk(_) | Error::Invalid(_) | Error::NotAccepted => 400,
            Error::Raw(RawError::Missing { .. } | RawError::NotADevice(_) | RawError::Blocks { .. }) => 400,
            Error::Raw(RawError::TooSmall { .. }) => 507,
            Error::Raw(RawError::Open { .. }) => 500,
            Error::Store(StoreError::TooLarge { .. }) => 400,
            Error::Store(StoreError::NoSpace { .. }) | Error::NoPlace { .. } | Error::NoRoomBehind { .. } => 507,
            Error::ShuttingDown | Error::Changing(_) | Error::Store(StoreError::Cancelled) => 503,
            Error::Unanswered(..) => 504,
            Error::Store(StoreError::Step { .. } | StoreError::NotUndone { .. } | StoreError::NotRemoved { .. })
            | Error::Registry(_)
            | Error::Internal(_) => 500,
            _ => 409,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::Unknown(kind, _) => format!("`aerogel {kind} list` shows what there is"),
            Error::Exists(kind, name) => format!("choose another name, or see `aerogel {kind} show {name}`"),
            Error::WhichDisk(_) => "name one with --disk; `aerogel disk list` shows them".into(),
            Error::Offline(Kind::Disk, name, _) => {
                format!(
                    "it opens by itself when the reason is gone; `aerogel disk add {name} PATH` with its path tries \
                     at once"
                )
            }
            Error::Waiting(..) => "`aerogel volume show` says when it is served".into(),
            Error::Offline(Kind::Volume, ..) => "it opens by itself when the reason is gone".into(),
            Error::Busy(kind, name) => format!("wait for it: `aerogel {kind} show {name}`"),
            Error::Changing(name) => {
                format!("wait for it; `aerogel disk show {name}` tells whether its device answers")
            }
            Error::Unanswered(..) => "`aerogel status` shows which disk does not answer, and what became of it".into(),
            Error::Probing(name) => format!("wait for it, or end it: `aerogel disk probe {name} --cancel`"),
            Error::NotProbing(name) => format!("`aerogel disk probe {name}` begins a probe"),
            Error::InUse(..) => "close the clients, or use --force".into(),
            Error::ShareTooLarge { .. } => {
                "ask for less, or give less to another: `aerogel volume set NAME --share SHARE`".into()
            }
            Error::SameDevice { .. } => {
                "name one on another device, or accept it with --force (a disk of raw volumes only has little in its \
                 directory)"
                    .into()
            }
            Error::Raw(error) => error.hint().into(),
            Error::NoPlace { .. } => "ask for less, or delete a volume of it".into(),
            Error::NoRoomBehind { .. } => "ask for less, or copy it to a larger volume".into(),
            Error::TooManyFaults(disk, _) | Error::NoFault(disk, _) => {
                format!(
                    "`aerogel disk fault list {disk}` shows them, `aerogel disk fault clear {disk}` takes them away"
                )
            }
            Error::MemoryHeld(_) => {
                "disconnect clients that do not read their replies (`aerogel status` shows who is connected), and try \
                 again"
                    .into()
            }
            Error::NotAccepted => "if that is meant, add --i-accept-data-loss".into(),
            Error::Refused { refusal: Refusal::CacheTooLarge { .. } | Refusal::BudgetTooSmall { .. }, .. } => {
                "ask for less cache, or start the server with more (cache = \"…\" in its configuration)".into()
            }
            Error::Refused { refusal: Refusal::FlushFailed, name, .. } => format!(
                "see the server's log for the device's error; `aerogel volume clear {name}` gives up what cannot be \
                 written"
            ),
            Error::Store(StoreError::NoSpace { .. }) => {
                "free some space, ask for less, or use --sparse to allocate as it is written".into()
            }
            Error::Store(StoreError::TooLarge { .. }) => "ask for less, or use a disk with another file system".into(),
            Error::Store(StoreError::NoAllocation { .. }) => "use --sparse, or a disk with another file system".into(),
            Error::Store(StoreError::Edited(_)) => {
                "put it back as it was, or restart the server, which uses it as it is".into()
            }
            Error::Store(StoreError::NotRemoved { .. }) => {
                "`aerogel volume delete` removes it, after a restart of the server".into()
            }
            Error::Store(StoreError::Unclaimed(_)) => {
                "a creation or deletion that was cut off may have left it: move it away or remove it by hand".into()
            }
            _ => return None,
        })
    }
}
