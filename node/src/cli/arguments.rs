//! The arguments of the command line. Doc comments on them are the help texts.

mod cluster;
mod offload;
mod stores;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::access::Rule;
use crate::ceiling::{Burst, MaxBandwidth, MaxIops};
use crate::control::view::{OrDefault, Setting};
use crate::fault::FaultText;
use crate::quantity::{Description, Insulation, Name, Rate, ShareText, Size, TenantName, Time};
use crate::serve::Serve;
use crate::store::Tiers;
use crate::store::spec::{Eviction, WriteCache};
use crate::store::{ExportUri, PolicyName};

pub use cluster::{ClusterArgs, ClusterVerb, CreateInCluster, PlanArgs};
pub use offload::{EnableArgs, OffloadArgs, OffloadStoreVerb, OffloadVerb};
pub use stores::{StoreArgs, StoreVerb};

/// Multi-tenant NBD block storage server with performance insulation.
///
/// Exit status: 0 success; 1 failure, nothing changed; 2 usage error; 3 no server answers.
#[derive(Debug, Parser)]
#[command(name = "aerogel", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Serve(Box<Serve>),
    Volume(VolumeArgs),
    Store(StoreArgs),
    Offload(OffloadArgs),
    Tenant(TenantArgs),
    Policy(PolicyArgs),
    Disk(DiskArgs),
    Cluster(ClusterArgs),
    Status(StatusArgs),
    Top(TopArgs),
    Completion(CompletionArgs),
    #[command(hide = true)]
    Man(ManArgs),
}

/// Print the completion script of a shell
///
/// For bash: aerogel completion bash > /usr/share/bash-completion/completions/aerogel
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Write a man page for each command
#[derive(Debug, Args)]
pub struct ManArgs {
    /// An existing directory
    pub directory: PathBuf,
}

/// Which server, and how to show its answer.
#[derive(Debug, Args)]
pub struct Reach {
    /// The directory of the server
    #[arg(long, value_name = "DIR", env = "AEROGEL_DATA", hide_env_values = true, global = true)]
    #[arg(default_value = crate::config::DATA_DEFAULT)]
    pub data: PathBuf,
    /// Print JSON, as the API answered
    #[arg(long, global = true)]
    pub json: bool,
}

/// Create, list, show, change, grow and delete volumes
#[derive(Debug, Args)]
pub struct VolumeArgs {
    #[command(subcommand)]
    pub verb: VolumeVerb,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Subcommand)]
pub enum VolumeVerb {
    Create(Box<CreateArgs>),
    /// List all volumes
    List,
    /// Show a volume
    Show {
        /// Its name
        name: Name,
    },
    /// Change the allotment of a volume's tenant, how the volume's writes are acknowledged, or which clients may open
    /// it
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
    Set {
        /// Its name
        name: Name,
        /// The named policy of its tenant, or 'none'
        #[arg(long, value_name = "NAME", group = "what")]
        policy: Option<Setting<Name>>,
        /// The share of its tenant, or 'none'
        #[arg(long, group = "what")]
        share: Option<Setting<ShareText>>,
        /// The minimum bandwidth of its tenant, such as 30MiB/s, as long as that fits into its share; or 'none'
        #[arg(long, value_name = "RATE", group = "what")]
        min_bandwidth: Option<Setting<Rate>>,
        /// Even if the shares of the disk sum to more than 1
        #[arg(long)]
        overcommit: bool,
        /// Cache of its tenant, or 'none'
        #[arg(long, value_name = "SIZE", group = "what")]
        cache: Option<Setting<Size>>,
        /// Eviction policy of its tenant's cache, for all volumes of that tenant
        #[arg(long, value_name = "POLICY", group = "what")]
        eviction: Option<Eviction>,
        #[command(flatten)]
        ceilings: SetCeilings,
        /// How writes are acknowledged
        #[arg(long, value_name = "MODE", group = "what")]
        write_cache: Option<WriteCache>,
        /// With --write-cache unsafe: flushed data may be lost when the server stops unexpectedly
        #[arg(long)]
        i_accept_data_loss: bool,
        #[command(flatten)]
        access: Box<SetAccess>,
        #[command(flatten)]
        upstream: SetUpstream,
    },
    /// Draw the miss-ratio curve of its tenant: miss ratio against cache size
    Curve {
        /// Its name
        name: Name,
        /// For this eviction policy
        #[arg(long)]
        policy: Option<Eviction>,
        /// Also write a picture to this file
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Enlarge a volume; clients see the new size when they open it again
    Grow {
        /// Its name
        name: Name,
        /// The new size, such as 20GiB; on a raw device, the default is the whole device
        size: Option<Size>,
    },
    /// Delete a volume and its data. A raw device or an export of another server is only detached; its data stays
    Delete {
        /// Its name
        name: Name,
        /// Confirm that the data is deleted
        #[arg(long, required = true)]
        yes: bool,
        /// Even if clients are connected, which are disconnected; and even if the server of a gateway volume is away
        /// and acknowledged data is not there yet, which is lost
        #[arg(long)]
        force: bool,
    },
    /// Discard blocks that could not be written, so that flushes succeed again: their acknowledged data is lost
    Clear {
        /// Its name
        name: Name,
        /// Confirm that the data is lost
        #[arg(long, required = true)]
        yes: bool,
    },
}

/// Create a volume; its space is allocated at once, and zero-written while the disk is idle
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Letters, digits, '.', '_' and '-', at most 63
    pub name: Name,
    /// A multiple of 512 bytes, such as 10GiB; with --device, the default is the whole device
    #[arg(required_unless_present_any = ["device", "from"], conflicts_with = "from")]
    pub size: Option<Size>,
    /// Store the volume on this block device (a drive, a partition, a logical volume) instead of in a file; the
    /// present content of the device is kept
    #[arg(long, value_name = "PATH", conflicts_with = "prealloc")]
    pub device: Option<PathBuf>,
    /// With --device: use it even if it contains data, or if another disk is on it
    #[arg(long, requires = "device")]
    pub force: bool,
    #[command(flatten)]
    pub upstream: CreateUpstream,
    /// The disk; may be omitted if there is only one, or one called 'default'
    #[arg(long)]
    pub disk: Option<Name>,
    /// The named policy of its tenant: it determines the share, the guarantee and the ceilings
    #[arg(long, value_name = "NAME")]
    pub policy: Option<Name>,
    /// The part of the disk's time promised to its tenant: 1/4, 0.25 or 25%
    #[arg(long)]
    pub share: Option<ShareText>,
    /// The minimum bandwidth of its tenant, such as 30MiB/s: it holds as long as it fits into the share
    #[arg(long, value_name = "RATE")]
    pub min_bandwidth: Option<Rate>,
    /// Even if the shares of the disk sum to more than 1
    #[arg(long)]
    pub overcommit: bool,
    /// The tenant whose allotment the volume uses [default: a tenant of its own]
    #[arg(long)]
    pub tenant: Option<Name>,
    /// Cache of its tenant, such as 64MiB [default: the cache that it needs for R, found in a trial]
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<Size>,
    /// Size the cache at once by the needs of this volume on the same disk, without a trial
    #[arg(long, value_name = "VOLUME", conflicts_with = "cache")]
    pub like: Option<Name>,
    /// Only print the decision and the maximum wait of a request
    #[arg(long)]
    pub dry_run: bool,
    /// Eviction policy of its tenant's cache
    #[arg(long, value_name = "POLICY")]
    pub eviction: Option<Eviction>,
    /// The most bandwidth that clients of its tenant get: 50MiB/s, or read=50MiB/s,write=10MiB/s [default: none]
    #[arg(long, value_name = "RATE")]
    pub max_bandwidth: Option<MaxBandwidth>,
    /// The most I/Os a second that they get: 500, or read=500,write=100; one I/O is a request of up to 256 KiB
    #[arg(long, value_name = "N")]
    pub max_iops: Option<MaxIops>,
    /// An unused ceiling is saved for at most this time [default: 2s]
    #[arg(long, value_name = "TIME")]
    pub burst: Option<Burst>,
    /// 'full': write zeros before the command returns
    #[arg(long, value_name = "HOW")]
    pub prealloc: Option<Prealloc>,
    /// Allocate space when it is written, and free it when it is trimmed; with --device, only the latter
    #[arg(long, conflicts_with = "prealloc")]
    pub sparse: bool,
    #[command(flatten)]
    pub access: CreateAccess,
    #[command(flatten)]
    pub cluster: CreateInCluster,
}

/// The export on another server that has the data of a new volume.
#[derive(Debug, Args)]
pub struct CreateUpstream {
    /// Serve this export of another server, through a cache here: nbd://HOST:PORT/NAME or
    /// nbd+unix:///NAME?socket=PATH, nbds:// with TLS. The volume has its size and content. Given 2 to 64 times, the
    /// volume is striped over these exports, in this order
    #[arg(long, value_name = "URI")]
    #[arg(conflicts_with_all = ["device", "prealloc", "sparse", "share", "min_bandwidth", "like", "dry_run"])]
    pub from: Vec<ExportUri>,
    /// With several --from, or in a cluster: the bytes that are contiguous on an export or a server, a power of two
    /// from 4KiB to 16MiB; it cannot be changed [default: 64KiB]
    #[arg(long, value_name = "SIZE")]
    pub stripe: Option<Size>,
    /// With --from: other servers may use the export at the same time; writes are acknowledged when they are durable
    #[arg(long, requires = "from")]
    pub shared: bool,
    /// With --from: how long a request waits for a server that is away, 1s to 60m [default: 60s]
    #[arg(long, value_name = "TIME", requires = "from")]
    pub upstream_deadline: Option<Time>,
    /// With --from: connections to a server that permits several, 1 to 16 [default: 4]
    #[arg(long, value_name = "N", requires = "from")]
    pub upstream_connections: Option<u32>,
    /// With one --from: how the caches go together. With demote, that server drops what it has sent and takes what is
    /// evicted here, if it grants that [default: lru]
    #[arg(long, value_enum, hide_possible_values = true, value_name = "lru|demote", requires = "from")]
    pub tiers: Option<Tiers>,
    /// With --from nbds://: the directory with ca-cert.pem, the authority of that server's certificate, and, if it
    /// requires client certificates, client-cert.pem and client-key.pem. They are read anew for each connection
    #[arg(long, value_name = "DIR", requires = "from")]
    pub tls_certificates: Option<PathBuf>,
    /// With --from nbds://: a name that the server's certificate must have [default: the host of the URI]
    #[arg(long, value_name = "NAME", requires = "from")]
    pub tls_hostname: Option<String>,
    /// With --from: even if that server cannot flush, so that flushed data may be lost when it stops
    #[arg(long, requires = "from")]
    pub i_accept_data_loss: bool,
}

/// The same, for a volume that exists.
#[derive(Debug, Args)]
pub struct SetUpstream {
    /// How long a request waits for the server of its export that is away, 1s to 60m
    #[arg(long, value_name = "TIME", group = "what")]
    pub upstream_deadline: Option<Time>,
    /// Connections to that server, 1 to 16; they are opened anew
    #[arg(long, value_name = "N", group = "what")]
    pub upstream_connections: Option<u32>,
    /// How its cache and that server's go together. With demote, the server drops what it has sent and takes what is
    /// evicted here, if it grants that; the connections are opened anew
    #[arg(long, value_enum, hide_possible_values = true, value_name = "lru|demote", group = "what")]
    pub tiers: Option<Tiers>,
}

/// Ceilings of a tenant, changed live.
#[derive(Debug, Args)]
pub struct SetCeilings {
    /// The most bandwidth that clients of the tenant get, cache hits included: 50MiB/s, or
    /// read=50MiB/s,write=10MiB/s; or 'none'. Replaces all directions
    #[arg(long, value_name = "RATE", group = "what")]
    pub max_bandwidth: Option<Setting<MaxBandwidth>>,
    /// The most I/Os a second that they get: 500, or read=500,write=100; or 'none'. One I/O is a request of up to 256
    /// KiB; a larger one counts as one for each begun 256 KiB
    #[arg(long, value_name = "N", group = "what")]
    pub max_iops: Option<Setting<MaxIops>>,
    /// An unused ceiling is saved for at most this time, 10ms to 24h; or 'default': 2s
    #[arg(long, value_name = "TIME", group = "what")]
    pub burst: Option<OrDefault<Burst>>,
}

/// Which clients may open a new volume, and how.
#[derive(Debug, Args)]
pub struct CreateAccess {
    /// Only these clients may open it: user:UID (over a Unix socket), cert:SUBJECT or name:NAME (of a client
    /// certificate), any or nobody; append ,ro for read-only access. May be repeated [default: any]
    #[arg(long, value_name = "CLIENT")]
    pub allow: Vec<Rule>,
    /// Refuse writes of all clients [default: off]
    #[arg(long, value_name = "on|off")]
    pub read_only: Option<Switch>,
    /// A text that clients can read
    #[arg(long, value_name = "TEXT")]
    pub description: Option<Description>,
}

/// The same, changed live.
#[derive(Debug, Args)]
pub struct SetAccess {
    /// Only these clients may open it; replaces the whole list: user:UID (over a Unix socket), cert:SUBJECT or
    /// name:NAME (of a client certificate), any or nobody; append ,ro for read-only access. May be repeated. Other
    /// clients are disconnected
    #[arg(long, value_name = "CLIENT", group = "what")]
    pub allow: Vec<Rule>,
    /// Refuse writes of all clients; 'on' disconnects clients that opened it for writing, and flushes their data
    #[arg(long, value_name = "on|off", group = "what")]
    pub read_only: Option<Switch>,
    /// A text that clients can read; '' for none
    #[arg(long, value_name = "TEXT", group = "what")]
    pub description: Option<Description>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

impl Switch {
    pub fn is_on(self) -> bool {
        self == Switch::On
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Prealloc {
    Full,
}

/// List, show and change tenants: the share of a disk's time and the cache that a tenant's volumes use together
#[derive(Debug, Args)]
pub struct TenantArgs {
    #[command(subcommand)]
    pub verb: TenantVerb,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Subcommand)]
pub enum TenantVerb {
    /// List all tenants, and what they have of each disk
    List,
    /// Show a tenant
    Show {
        /// Its name: that of its volume, unless the volume names a tenant; '@stores' for all stores of a disk
        name: TenantName,
    },
    /// List the latest windows of 15 s in which a tenant missed its guarantee, newest last, and why
    Violations {
        /// Its name: that of its volume, unless the volume names a tenant
        name: TenantName,
        /// On this disk only
        #[arg(long)]
        disk: Option<Name>,
    },
    /// Change the share, the guarantee, the cache and the ceilings of a tenant on one disk, for all its volumes there
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
    Set {
        /// Its name: that of its volume, unless the volume names a tenant
        name: TenantName,
        /// The disk; may be omitted if the tenant has volumes on one disk only
        #[arg(long)]
        disk: Option<Name>,
        /// Its named policy, which determines its share, guarantee and ceilings; or 'none': it keeps its present values
        #[arg(long, value_name = "NAME", group = "what")]
        policy: Option<Setting<Name>>,
        /// The part of the disk's time promised to it: 1/4, 0.25 or 25%; or 'none'
        #[arg(long, group = "what")]
        share: Option<Setting<ShareText>>,
        /// The bandwidth guaranteed to it, such as 30MiB/s, as long as that fits into its share; or 'none'
        #[arg(long, value_name = "RATE", group = "what")]
        min_bandwidth: Option<Setting<Rate>>,
        /// Even if the shares of the disk sum to more than 1
        #[arg(long)]
        overcommit: bool,
        /// Its cache, such as 64MiB, or 'none': the cache that it needs for R, found in a trial
        #[arg(long, value_name = "SIZE", group = "what")]
        cache: Option<Setting<Size>>,
        /// Eviction policy of its cache
        #[arg(long, value_name = "POLICY", group = "what")]
        eviction: Option<Eviction>,
        #[command(flatten)]
        ceilings: SetCeilings,
    },
}

/// Create, list, show, change and delete named policies: a share, a guarantee and ceilings that several tenants have
#[derive(Debug, Args)]
pub struct PolicyArgs {
    #[command(subcommand)]
    pub verb: PolicyVerb,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Subcommand)]
pub enum PolicyVerb {
    /// Create a policy; 'tenant set --policy' applies it to a tenant
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
    Create {
        /// Letters, digits, '.', '_' and '-', at most 63
        name: Name,
        /// The part of a disk's time promised to each user: 1/4, 0.25 or 25%
        #[arg(long, group = "what")]
        share: Option<ShareText>,
        /// The bandwidth guaranteed to each user, such as 30MiB/s, as long as that fits into its share
        #[arg(long, value_name = "RATE", group = "what")]
        min_bandwidth: Option<Rate>,
        /// The most bandwidth that clients of each user get: 50MiB/s, or read=50MiB/s,write=10MiB/s
        #[arg(long, value_name = "RATE", group = "what")]
        max_bandwidth: Option<MaxBandwidth>,
        /// The most I/Os a second that they get: 500, or read=500,write=100; one I/O is a request of up to 256 KiB
        #[arg(long, value_name = "N", group = "what")]
        max_iops: Option<MaxIops>,
        /// An unused ceiling is saved for at most this time [default: 2s]
        #[arg(long, value_name = "TIME")]
        burst: Option<Burst>,
    },
    /// List all policies, with their users
    List,
    /// Show a policy
    Show {
        /// Its name
        name: Name,
    },
    /// Change a policy for all its users at once, or for none if it does not fit for one of them
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
    Set {
        /// Its name
        name: Name,
        /// The part of a disk's time promised to each user: 1/4, 0.25 or 25%; or 'none'
        #[arg(long, group = "what")]
        share: Option<Setting<ShareText>>,
        /// The bandwidth guaranteed to each user, such as 30MiB/s, as long as that fits into its share; or 'none'
        #[arg(long, value_name = "RATE", group = "what")]
        min_bandwidth: Option<Setting<Rate>>,
        /// Even if the shares of a disk sum to more than 1
        #[arg(long)]
        overcommit: bool,
        #[command(flatten)]
        ceilings: SetCeilings,
    },
    /// Delete a policy that no tenant has
    Delete {
        /// Its name
        name: Name,
    },
}

/// Add, list, show, probe, set and remove disks, and inject faults into them
#[derive(Debug, Args)]
pub struct DiskArgs {
    #[command(subcommand)]
    pub verb: DiskVerb,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Subcommand)]
pub enum DiskVerb {
    /// Add an empty directory as a new disk, add an existing disk with its volumes, or retry an offline disk
    Add {
        /// Its name on this server
        name: Name,
        /// Its directory; or sim:PRESET or sim:FILE, a simulated disk with the timing of a described drive
        #[arg(value_name = "PATH|sim:NAME")]
        path: String,
        /// Even if another disk is on the same device; the two disks then delay each other
        #[arg(long)]
        force: bool,
        /// Of a simulated disk: its size [default: the whole drive]
        #[arg(long)]
        size: Option<Size>,
        /// Of a simulated disk: the directory of its data, in sparse files [default: DIR/disks/NAME]
        #[arg(long, value_name = "PATH")]
        directory: Option<PathBuf>,
        /// A fault that is active after each start, such as 'error read 1%'; may be repeated
        #[arg(long = "fault", value_name = "FAULT")]
        faults: Vec<FaultText>,
        /// Scheduling policy: insulated, none, or one to compare with: token-bucket[:FACTOR], pclock[:TIME], sfq,
        /// edf[:TIME], lottery, facade[:TIME], mclock[:FACTOR] [default: insulated, once it has a profile or
        /// description]
        #[arg(long)]
        policy: Option<PolicyName>,
        /// R, the part of its standalone efficiency that a tenant keeps: 0.9 or 90% [default: 0.9]
        #[arg(long, value_name = "R")]
        insulation: Option<Insulation>,
        /// The longest round of slices, 50ms to 60s: it bounds the wait of a tenant [default: 2s]
        #[arg(long, value_name = "TIME")]
        max_round: Option<Time>,
        /// Do not probe it automatically: without a profile its tenants are not insulated unless --policy is given
        #[arg(long)]
        no_probe: bool,
    },
    /// List all disks
    List,
    /// Show a disk
    Show {
        /// Its name
        name: Name,
    },
    /// Measure the performance of a disk's device, in two minutes at most; its volumes are slower meanwhile. Their data
    /// is not changed
    Probe {
        /// Its name
        name: Name,
        /// Maximum duration, 2 to 115 seconds; a short probe is less exact
        #[arg(long, value_name = "N")]
        seconds: Option<u64>,
        /// The same as --seconds 15
        #[arg(long, conflicts_with = "seconds")]
        quick: bool,
        /// End the running probe and discard its results
        #[arg(long, conflicts_with_all = ["seconds", "quick"])]
        cancel: bool,
    },
    /// Change the scheduling of a disk at once, or override measured values of its profile
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
    Set {
        /// Its name
        name: Name,
        /// Scheduling policy: insulated, none, token-bucket[:FACTOR], pclock[:TIME], sfq, edf[:TIME], lottery,
        /// facade[:TIME] or mclock[:FACTOR]; or 'default', which follows from its profile or description
        #[arg(long, group = "what")]
        policy: Option<OrDefault<PolicyName>>,
        /// R, the part of its standalone efficiency that a tenant keeps: 0.9 or 90%; or 'default'
        #[arg(long, value_name = "R", group = "what")]
        insulation: Option<OrDefault<Insulation>>,
        /// The longest round of slices, 50ms to 60s: it bounds the wait of a tenant; or 'default'
        #[arg(long, value_name = "TIME", group = "what")]
        max_round: Option<OrDefault<Time>>,
        /// A value as 'disk show' names it: a number in the unit of its name, 'none', or 'measured' to remove the
        /// override
        #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value, group = "what")]
        profile: Vec<(String, String)>,
    },
    /// Flush a disk and detach it. Its data stays; 'disk add' adds it again, on this server or another one
    Remove {
        /// Its name
        name: Name,
        /// Even if clients are connected; they are disconnected
        #[arg(long)]
        force: bool,
    },
    /// Inject faults into a disk's device, to test clients
    Fault {
        #[command(subcommand)]
        verb: FaultVerb,
    },
}

#[derive(Debug, Subcommand)]
pub enum FaultVerb {
    /// Inject a fault, until it is cleared or the server ends
    ///
    /// FAULT is a kind, followed by options in any order:
    ///   error  the request fails; errno=EIO or ENOSPC
    ///   delay  the request starts later; by=5ms or by=5ms..20ms
    ///   stuck  the request hangs until the fault is cleared
    ///   torn   only the first part of a write is done, then it fails
    ///   gone   the device disappears: every request fails; only after= and for= may be added
    /// read, write, zero, flush, joined by '+': operations; 1%, 0.01, 1/100: probability;
    /// range=1GiB..2GiB: requests for these bytes of a volume; volume=NAME; count=N: at most N requests;
    /// after=10s, for=30s: start and duration; seed=N: another random sequence
    #[command(verbatim_doc_comment)]
    Add {
        /// The disk
        name: Name,
        /// Such as 'error read 1% range=1GiB..2GiB', in one or several words
        #[arg(required = true, num_args = 1..)]
        fault: Vec<String>,
        /// Confirm for a disk that is not simulated: the fault affects the data of clients
        #[arg(long)]
        yes: bool,
    },
    /// List a disk's faults and how often each has occurred
    List {
        /// The disk
        name: Name,
    },
    /// Remove faults; requests that hang because of them continue
    Clear {
        /// The disk
        name: Name,
        /// Only this one
        #[arg(long, value_name = "NUMBER")]
        id: Option<u64>,
    },
}

/// Show the server, its disks and its volumes
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub reach: Reach,
}

/// Show disks and their tenants live: slices, throughput, insulation, latency and causes of delay
///
/// SLICE is the disk time of a tenant in each round, LOST the part of it that is lost at context switches. DISK is what
/// it keeps of its share of a disk of its own with the cache that it has, which is measured; at least R is promised.
/// KEEPS is the same with the whole cache, which is estimated; at least R is promised to tenants that are admitted.
/// GUARANTEE is the minimum bandwidth of a tenant, and how much of its promise it got while it had demand: the promise
/// is the smaller of the guarantee and R x share x what a disk of its own would give. DISK, KEEPS and GUARANTEE are of
/// the last ten rounds and at least five seconds, throughput of two seconds, latencies of the last 10 to 15 seconds. R
/// is R_time x R_cache; R_cache is '?' until it is measured. The coloured strip shows the owners of the last slices.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Only this disk
    #[arg(long)]
    pub disk: Option<Name>,
    /// Print once, as text; the default without a terminal
    #[arg(long, conflicts_with_all = ["batch", "interval"])]
    pub once: bool,
    /// Print repeatedly, as text with the time of day; with --json, one document a line
    #[arg(long)]
    pub batch: bool,
    /// Seconds between two updates, 0.1 to 3600 [default: 0.5; with --batch: 1]
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    pub interval: Option<Duration>,
    /// With --batch: exit after N updates
    #[arg(long, value_name = "N", requires = "batch", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    #[command(flatten)]
    pub reach: Reach,
}

/// Parses an interval in seconds.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("'{text}' is not a number of seconds from 0.1 to 3600"))
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').ok_or_else(|| format!("'{text}' has no '=': write KEY=VALUE"))?;
    Ok((pair.0.into(), pair.1.into()))
}
