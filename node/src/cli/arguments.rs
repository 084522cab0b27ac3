//! What can be typed. Its comments are the help.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::access::Rule;
use crate::control::view::{OrDefault, Setting};
use crate::fault::FaultText;
use crate::quantity::{Description, Insulation, Name, ShareText, Size, Time};
use crate::serve::Serve;
use crate::store::PolicyName;
use crate::store::spec::{Eviction, WriteCache};

/// Block storage for many tenants, each with the speed of a disk of its own.
///
/// Exit status: 0 done; 1 not done, and nothing changed; 2 not understood; 3 no server answers.
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
    Disk(DiskArgs),
    Status(StatusArgs),
    Top(TopArgs),
    Completion(CompletionArgs),
    #[command(hide = true)]
    Man(ManArgs),
}

/// Print what a shell needs to complete commands and options
///
/// For bash: aerogel completion bash > /usr/share/bash-completion/completions/aerogel
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// For which shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Write a man page for each command
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The directory, which must be there
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
    /// Show all about a volume
    Show {
        /// Which
        name: Name,
    },
    /// Change the allotment of a volume's tenant, how the volume's writes are acknowledged, or which clients may open
    /// it
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
    Set {
        /// Which
        name: Name,
        /// The share of its tenant, or 'none'
        #[arg(long, group = "what")]
        share: Option<Setting<ShareText>>,
        /// Cache of its tenant, or 'none'
        #[arg(long, value_name = "SIZE", group = "what")]
        cache: Option<Setting<Size>>,
        /// How the cache of its tenant, for all volumes of that tenant, chooses what goes when it needs room
        #[arg(long, value_name = "POLICY", group = "what")]
        eviction: Option<Eviction>,
        /// How writes are acknowledged
        #[arg(long, value_name = "MODE", group = "what")]
        write_cache: Option<WriteCache>,
        /// With --write-cache unsafe: flushed data may be lost when the server stops unexpectedly
        #[arg(long)]
        i_accept_data_loss: bool,
        #[command(flatten)]
        access: SetAccess,
    },
    /// Draw what its tenant's cache would absorb at other sizes: the miss ratio against the size
    Curve {
        /// Which
        name: Name,
        /// As if the cache evicted by this one
        #[arg(long)]
        policy: Option<Eviction>,
        /// Write a picture there, too
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Make a volume larger; clients see it when they open it again
    Grow {
        /// Which
        name: Name,
        /// The new size, such as 20GiB; on a raw device, all of it if left out
        size: Option<Size>,
    },
    /// Delete a volume with its data. A raw device is forgotten and stays as it is
    Delete {
        /// Which
        name: Name,
        /// Yes, delete the data
        #[arg(long, required = true)]
        yes: bool,
        /// Even if clients are connected: they are disconnected
        #[arg(long)]
        force: bool,
    },
    /// Give up blocks that could not be written, so that flushes succeed again: their acknowledged data is lost
    Clear {
        /// Which
        name: Name,
        /// Yes, give up the data
        #[arg(long, required = true)]
        yes: bool,
    },
}

/// Make a volume; its space is allocated at once, and zero-written when the disk is idle
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Letters, digits, '.', '_' and '-', at most 63
    pub name: Name,
    /// A multiple of 512 bytes, such as 10GiB; of a device, all of it if left out
    #[arg(required_unless_present = "device")]
    pub size: Option<Size>,
    /// Use this block device (a drive, a partition, a logical volume) as it is, in place of a file; nothing of it is
    /// wiped
    #[arg(long, value_name = "PATH", conflicts_with = "prealloc")]
    pub device: Option<PathBuf>,
    /// With --device: even if it holds something, or another disk is on it
    #[arg(long, requires = "device")]
    pub force: bool,
    /// On this disk; may be left out if there is only one, or one called 'default'
    #[arg(long)]
    pub disk: Option<Name>,
    /// The part of the disk's time promised to its tenant: 1/4, 0.25 or 25%
    #[arg(long)]
    pub share: Option<ShareText>,
    /// Use the allotment of this tenant, together with its other volumes; without it, the volume has its own
    #[arg(long)]
    pub tenant: Option<Name>,
    /// Cache of its tenant, such as 64MiB; without it, what it needs for R is found out in a trial
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<Size>,
    /// What it needs for R is what this volume of the same disk needs: decided at once
    #[arg(long, value_name = "VOLUME", conflicts_with = "cache")]
    pub like: Option<Name>,
    /// Only say what would be decided, and how long a request would wait at most
    #[arg(long)]
    pub dry_run: bool,
    /// How the cache of its tenant chooses what goes when it needs room
    #[arg(long, value_name = "POLICY")]
    pub eviction: Option<Eviction>,
    /// 'full': write zeros before answering
    #[arg(long, value_name = "HOW")]
    pub prealloc: Option<Prealloc>,
    /// Allocate space only as it is written, and give it back when it is trimmed; with --device, only the latter
    #[arg(long, conflicts_with = "prealloc")]
    pub sparse: bool,
    #[command(flatten)]
    pub access: CreateAccess,
}

/// Which clients may open a new volume, and how.
#[derive(Debug, Args)]
pub struct CreateAccess {
    /// Only these clients may open it: user:UID (over a Unix socket), cert:SUBJECT or name:NAME (of a client
    /// certificate), any or nobody; with ,ro behind it, for reading only. May be repeated [default: any]
    #[arg(long, value_name = "CLIENT")]
    pub allow: Vec<Rule>,
    /// Whether no client may change it [default: off]
    #[arg(long, value_name = "on|off")]
    pub read_only: Option<Switch>,
    /// What clients are told of it
    #[arg(long, value_name = "TEXT")]
    pub description: Option<Description>,
}

/// The same, changed live.
#[derive(Debug, Args)]
pub struct SetAccess {
    /// Only these clients may open it, in place of those so far: user:UID (over a Unix socket), cert:SUBJECT or
    /// name:NAME (of a client certificate), any or nobody; with ,ro behind it, for reading only. May be repeated. The
    /// others are disconnected
    #[arg(long, value_name = "CLIENT", group = "what")]
    pub allow: Vec<Rule>,
    /// Whether no client may change it; 'on' disconnects clients that opened it for writing, and flushes what they
    /// wrote
    #[arg(long, value_name = "on|off", group = "what")]
    pub read_only: Option<Switch>,
    /// What clients are told of it; '' for nothing
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

/// Add, list, show, probe, set and remove disks, and stack faults on them
#[derive(Debug, Args)]
pub struct DiskArgs {
    #[command(subcommand)]
    pub verb: DiskVerb,
    #[command(flatten)]
    pub reach: Reach,
}

#[derive(Debug, Subcommand)]
pub enum DiskVerb {
    /// Make a disk of an empty directory, take one over with its volumes, or try an offline one again
    Add {
        /// Its name on this server
        name: Name,
        /// Its directory; or sim:PRESET or sim:FILE, a disk that takes the time of a described drive
        #[arg(value_name = "PATH|sim:NAME")]
        path: String,
        /// Even if another disk is on the same device: what one does there, the other waits for
        #[arg(long)]
        force: bool,
        /// Of a simulated disk: use so much of the drive [default: all]
        #[arg(long)]
        size: Option<Size>,
        /// Of a simulated disk: where it keeps its data, in sparse files [default: DIR/disks/NAME]
        #[arg(long, value_name = "PATH")]
        directory: Option<PathBuf>,
        /// A fault that it has from each start on, such as 'error read 1%'; may be repeated
        #[arg(long = "fault", value_name = "FAULT")]
        faults: Vec<FaultText>,
        /// Who may use it next: insulated or none [default: insulated, once its profile or description says how]
        #[arg(long)]
        policy: Option<PolicyName>,
        /// R, the part of its standalone efficiency that a tenant keeps: 0.9 or 90% [default: 0.9]
        #[arg(long, value_name = "R")]
        insulation: Option<Insulation>,
        /// The longest round of slices, 50ms to 60s: it bounds how long a tenant waits [default: 2s]
        #[arg(long, value_name = "TIME")]
        max_round: Option<Time>,
        /// Do not probe it when it is idle: without a profile its tenants are not insulated, unless --policy says so
        #[arg(long)]
        no_probe: bool,
    },
    /// List all disks
    List,
    /// Show all about a disk
    Show {
        /// Which
        name: Name,
    },
    /// Measure what a disk's device can do, in two minutes at most; its volumes are slower meanwhile. No data is
    /// touched
    Probe {
        /// Which
        name: Name,
        /// At most so long, 2 to 115; less is less exact
        #[arg(long, value_name = "N")]
        seconds: Option<u64>,
        /// The same as --seconds 15
        #[arg(long, conflicts_with = "seconds")]
        quick: bool,
        /// End the probe that runs; what it found is not kept
        #[arg(long, conflicts_with_all = ["seconds", "quick"])]
        cancel: bool,
    },
    /// Change how a disk is shared, at once, or set values of its profile instead of what was measured
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
    Set {
        /// Which
        name: Name,
        /// Who may use it next: insulated or none; or 'default', what follows from its profile or description
        #[arg(long, group = "what")]
        policy: Option<OrDefault<PolicyName>>,
        /// R, the part of its standalone efficiency that a tenant keeps: 0.9 or 90%; or 'default'
        #[arg(long, value_name = "R", group = "what")]
        insulation: Option<OrDefault<Insulation>>,
        /// The longest round of slices, 50ms to 60s: it bounds how long a tenant waits; or 'default'
        #[arg(long, value_name = "TIME", group = "what")]
        max_round: Option<OrDefault<Time>>,
        /// A value as 'disk show' names it: a number in the unit of its name, 'none', or 'measured' to take it back
        #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value, group = "what")]
        profile: Vec<(String, String)>,
    },
    /// Detach a disk: flush, close, forget it. Its data stays; 'disk add' brings it back, here or elsewhere
    Remove {
        /// Which
        name: Name,
        /// Even if clients are connected: they are disconnected
        #[arg(long)]
        force: bool,
    },
    /// Stack faults on a disk's device, to see what becomes of those who use it
    Fault {
        #[command(subcommand)]
        verb: FaultVerb,
    },
}

#[derive(Debug, Subcommand)]
pub enum FaultVerb {
    /// Stack a fault, until it is cleared or the server ends
    ///
    /// FAULT is a kind, then to what, in any order:
    ///   error  the request fails; errno=EIO or ENOSPC
    ///   delay  it begins later; by=5ms or by=5ms..20ms
    ///   stuck  it hangs until the fault is cleared
    ///   torn   only a first part of a write happens, then it fails
    ///   gone   the device is not there: all fails; only after= and for= go with it
    /// read, write, zero, flush, joined by '+': which operations; 1%, 0.01, 1/100: how many of them;
    /// range=1GiB..2GiB: those that touch these bytes of a volume; volume=NAME; count=N: so many times;
    /// after=10s, for=30s: when; seed=N: other dice
    #[command(verbatim_doc_comment)]
    Add {
        /// Which disk
        name: Name,
        /// Such as 'error read 1% range=1GiB..2GiB', in one or several words
        #[arg(required = true, num_args = 1..)]
        fault: Vec<String>,
        /// Yes, although it is not a simulated disk: the fault meets the data of its clients
        #[arg(long)]
        yes: bool,
    },
    /// List a disk's faults, and how often they happened
    List {
        /// Which disk
        name: Name,
    },
    /// Take faults away; requests that hang because of them go on
    Clear {
        /// Which disk
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

/// Show disks and their tenants live: who has the disk, what each gets, keeps and waits for
///
/// SLICE is a tenant's time in each round, LOST what it loses of it. KEEPS is its insulation ratio: what its work would
/// have taken alone, by its share of the time in which it wanted something; at least R is promised. It is measured over
/// ten rounds, and at least five seconds; throughput over two, latencies over the last 10 to 15 seconds. The coloured
/// strip shows the last slices.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Only this disk
    #[arg(long)]
    pub disk: Option<Name>,
    /// Print it once, as text; without a terminal, that is what happens
    #[arg(long, conflicts_with_all = ["batch", "interval"])]
    pub once: bool,
    /// Print it again and again, as text with the time; with --json, one document a line
    #[arg(long)]
    pub batch: bool,
    /// Seconds between two looks, 0.1 to 3600 [default: 0.5; with --batch: 1]
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    pub interval: Option<Duration>,
    /// With --batch: end after so many looks
    #[arg(long, value_name = "N", requires = "batch", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    #[command(flatten)]
    pub reach: Reach,
}

/// Seconds, as other programs of this kind take them.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("'{text}' is not a number of seconds from 0.1 to 3600"))
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').ok_or_else(|| format!("'{text}' has no '=': write KEY=VALUE"))?;
    Ok((pair.0.into(), pair.1.into()))
}
