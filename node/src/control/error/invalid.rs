//! Why a request is invalid: it fails in the same way whatever the server's state is, or names something that the thing
//! does not have.

use std::path::PathBuf;

use engine::disk::profile::UnknownKey;
use engine::offload::STORE_BYTES_MIN;
use engine::units::VOLUME_BYTES_MAX;

use crate::fault::FaultError;
use crate::probe::{SECONDS_LEAST, SECONDS_MOST};
use crate::quantity::{Name, Rate, Size};
use crate::store::scheduling::RoundError;
use crate::store::spec::SizeError;
use crate::store::{ExportUri, RemoteError, SimulatedError};

/// What is wrong with a request. The message has the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    // Volumes.
    #[error("the size is missing: name one; only a volume on a device has a default")]
    NoSize,
    #[error(transparent)]
    Size(#[from] SizeError),
    #[error("the size of a volume on a device is a multiple of 4KiB")]
    SizeOnDevice,
    #[error("the new size of volume '{0}' is missing: name one; its data is a file, only a device has a default")]
    NoNewSize(Name),
    #[error("volume '{volume}' has {now}, and volumes never shrink: {asked}")]
    Shrinks { volume: Name, now: Size, asked: Size },
    #[error("no change of volume '{0}' is requested: name at least one, such as share, cache or allow")]
    NoChangeOfVolume(Name),
    #[error("no change of tenant '{0}' is requested: name at least one, such as share, min_bandwidth or cache")]
    NoChangeOfTenant(Name),
    #[error("no change of policy '{0}' is requested: name at least one, such as share, min_bandwidth or max_iops")]
    NoChangeOfPolicy(Name),
    #[error("policy '{0}' sets nothing: name at least one of share, min_bandwidth, max_bandwidth and max_iops")]
    EmptyPolicy(Name),
    #[error("a policy cannot be called 'none', which detaches a tenant: choose another name")]
    PolicyNone,
    #[error("a minimum bandwidth of 0 guarantees nothing: write 'none' for no guarantee")]
    ZeroMinBandwidth,
    #[error(
        "a minimum bandwidth of {min} cannot be had under ceilings that allow {max}: raise --max-bandwidth and \
         --max-iops, or lower --min-bandwidth"
    )]
    MinAboveMax { min: Rate, max: Rate },
    #[error("a burst has no effect without a ceiling: set --max-bandwidth or --max-iops, too, or leave out --burst")]
    BurstWithoutCeiling,
    #[error("where a volume on servers of a cluster would be is asked with POST /v1/cluster/plan")]
    PlanOfCluster,
    #[error("--cache and --like exclude each other: give one of them")]
    CacheAndLike,
    #[error("tenant '{0}' exists and has its cache: leave out --like")]
    LikeOfTenant(Name),
    #[error("disk '{disk}' serves no volume '{like}': --like needs a volume of the same disk")]
    LikeNoVolume { disk: Name, like: Name },
    #[error("disk '{0}' is simulated and keeps its data in sparse files: leave out --prealloc")]
    PreallocateSimulated(Name),

    // Raw devices.
    #[error("--force needs --device: leave it out")]
    ForceWithoutDevice,
    #[error("'{0}' is not an absolute path")]
    RelativeDevice(String),
    #[error("a raw device cannot be preallocated: leave out --prealloc")]
    PreallocateDevice,
    #[error("disk '{0}' is simulated: a raw volume needs a real disk")]
    DeviceOnSimulated(Name),

    // Exports on other servers.
    #[error("no export is named: give the address of one, or of several to stripe the volume over them")]
    NoExport,
    #[error("{0} is named twice: each export has a part of its own of a striped volume")]
    MemberTwice(ExportUri),
    #[error("--stripe is for a volume over several exports: give --from for each, or leave out --stripe")]
    StripeOfOne,
    #[error("a volume with --from has the size of its export: leave out the size")]
    SizeOfExport,
    #[error("--from and --device exclude each other: the data is on another server or on a device")]
    DeviceAndFrom,
    #[error("the data of a volume with --from is allocated by its server: leave out --prealloc and --sparse")]
    AllocateExport,
    #[error("a volume with --from needs no cache for R, since it has no disk time: leave out --like, set --cache")]
    LikeOfExport,
    #[error("a volume with --from has no disk time, so there is no decision on it: leave out --dry-run")]
    PlanOfExport,
    #[error(
        "--shared, --upstream-deadline, --upstream-connections, --tiers, --tls-certificates, --tls-hostname and \
         --i-accept-data-loss need --from"
    )]
    UpstreamWithoutFrom,
    #[error("--tiers demote is for a volume on one export: a striped volume has --tiers lru")]
    TiersOfStripes,
    #[error(
        "--tiers demote needs an export that no other server uses, since it would not know of their writes: leave out \
         --shared, or --tiers"
    )]
    TiersOfShared,
    #[error(
        "{0} is reached with TLS: name the directory with ca-cert.pem, the certificate of the server's authority: \
         --tls-certificates DIR"
    )]
    TlsWithoutCertificates(ExportUri),
    #[error("{0} is reached without TLS: leave out --tls-certificates and --tls-hostname, or write nbds://")]
    CertificatesWithoutTls(ExportUri),
    #[error("the directory {} is a relative path: write it in full", .0.display())]
    RelativeCertificates(PathBuf),
    #[error("the socket in '{0}' is a relative path: name an absolute one")]
    RelativeSocket(ExportUri),
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error(
        "tenant '{0}' has its volumes on other servers, so it has no disk time here to promise: leave out share, \
         minimum bandwidth, and a policy that has one"
    )]
    PromiseOfRemote(Name),
    #[error(
        "the volumes of tenant '{0}' are either all on the disk or all on other servers: name another tenant with \
         --tenant"
    )]
    MixedTenant(Name),
    #[error("volume '{0}' has its data on a disk of this server: upstream settings are for volumes made with --from")]
    NoUpstream(Name),
    #[error(
        "volume '{0}' shares its export with other servers and therefore keeps no dirty data: its write cache is 'none'"
    )]
    WriteCacheOfShared(Name),
    #[error("volume '{volume}' is read-only, since {from} is")]
    ReadOnlyExport { volume: Name, from: Box<ExportUri> },
    #[error(
        "volume '{volume}' has the size of {from}: enlarge that on its server, then delete the volume here, which \
         keeps the data, and create it again"
    )]
    GrowExport { volume: Name, from: Box<ExportUri> },
    #[error(
        "volume '{volume}' is striped over {from}: enlarge all of them on their servers, then delete the volume here, \
         which keeps the data, and create it again with the exports in the same order and the same --stripe"
    )]
    GrowStripes { volume: Name, from: String },

    // Stores.
    #[error("a store of {0} is too small for a log: it has at least {min}", min = Size(STORE_BYTES_MIN))]
    StoreTooSmall(Size),
    #[error("a store of {0} is too large: it has at most {max}", max = Size(VOLUME_BYTES_MAX))]
    StoreTooLarge(Size),
    #[error("volume '{0}' is not a store: use `aerogel volume delete`")]
    DeleteNoStore(Name),
    #[error("volume '{0}' is a store, and others may have off-loaded data in it: use `aerogel store delete`")]
    DeleteStore(Name),
    #[error("volume '{0}' is not a store: `aerogel volume show {0}` shows it")]
    ShowNoStore(Name),
    #[error(
        "volume '{0}' is a store: its access, read-only state and description can be set here, and the share of all \
         stores of a disk with `aerogel store set --share`; its writes are always durable, and its cache is fixed"
    )]
    SetOfStore(Name),
    #[error("volume '{0}' is a store, whose log keeps the size that it has: create another store")]
    GrowStore(Name),
    #[error("volume '{0}' is a store: nothing of it is cached, so it has no miss-ratio curve")]
    CurveOfStore(Name),
    #[error(
        "tenant '{}' has all stores of a disk, and only a share: set it with `aerogel store set --disk DISK --share \
         SHARE`",
        Name::of_stores()
    )]
    SetStoreTenant,

    // Disks.
    #[error("'{path}' is not a path: {source}")]
    Path { path: String, source: std::io::Error },
    #[error(
        "{} is not a directory: a disk has one, and `aerogel volume create NAME --device PATH` puts a volume on a raw \
         device",
        .0.display()
    )]
    NotADirectory(PathBuf),
    #[error("{} contains a disk already: {remedy}", path.display())]
    ExistingDisk { path: PathBuf, remedy: &'static str },
    #[error(transparent)]
    Simulated(#[from] SimulatedError),
    #[error("--directory is for simulated disks only: the directory of any other disk is PATH")]
    DirectoryOfReal,
    #[error("--size is for simulated disks only: leave it out")]
    SizeOfReal,
    #[error("nothing to change on disk '{0}': give at least one of policy, insulation, max_round and profile")]
    NoChangeOfDisk(Name),
    #[error(transparent)]
    Round(#[from] RoundError),
    #[error("a probe takes {SECONDS_LEAST} to {SECONDS_MOST} seconds, not {0}")]
    ProbeSeconds(u64),
    #[error("{source}; `aerogel disk show {disk}` names those that it has, docs/manual/disk.md all")]
    ProfileKey { disk: Name, source: UnknownKey },
    #[error("{0} describes the probe itself and cannot be set")]
    KeyOfProbe(String),
    #[error("'{value}' is not a value of {key}: give {expected}, 'none' or 'measured'")]
    ProfileValue { key: String, value: String, expected: &'static str },

    // Faults.
    #[error(transparent)]
    Fault(#[from] FaultError),
    #[error("disk '{disk}' has no volume '{volume}'")]
    FaultOfVolume { disk: Name, volume: String },
}
