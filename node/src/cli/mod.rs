//! The command line: nouns and verbs. Everything but `serve` is a client of the API, its first one.

mod client;
mod curve;
mod print;
mod probe;
mod top;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use hyper::{Method, StatusCode};
use indicatif::{ProgressBar, ProgressStyle};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::client::{ClientError, ask};
use crate::access::{Access, Rule};
use crate::control::SIM;
use crate::control::view::{
    AddDisk, CreateVolume, DiskView, Done, FaultView, GrowVolume, LiveView, OrDefault, PlanView, Problem, SetDisk,
    SetVolume, Setting, StartProbe, Status, VolumeView,
};
use crate::fault::FaultText;
use crate::probe::SECONDS_QUICK;
use crate::quantity::{Description, Insulation, Name, ShareText, Size, Time};
use crate::serve::Serve;
use crate::store::PolicyName;
use crate::store::spec::{Allocation, Eviction, WriteCache};

/// Block storage for many tenants, each with the speed of a disk of its own.
///
/// Exit status: 0 done; 1 not done, and nothing changed; 2 not understood; 3 no server answers.
#[derive(Debug, Parser)]
#[command(name = "aerogel", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
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
struct CompletionArgs {
    /// For which shell
    #[arg(value_enum)]
    shell: clap_complete::Shell,
}

/// Write a man page for each command
#[derive(Debug, Args)]
struct ManArgs {
    /// The directory, which must be there
    directory: PathBuf,
}

/// Which server, and how to show its answer.
#[derive(Debug, Args)]
struct Reach {
    /// The directory of the server
    #[arg(long, value_name = "DIR", env = "AEROGEL_DATA", hide_env_values = true, global = true)]
    #[arg(default_value = crate::config::DATA_DEFAULT)]
    data: PathBuf,
    /// Print JSON, as the API answered
    #[arg(long, global = true)]
    json: bool,
}

/// Create, list, show, change, grow and delete volumes
#[derive(Debug, Args)]
struct VolumeArgs {
    #[command(subcommand)]
    verb: VolumeVerb,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Subcommand)]
enum VolumeVerb {
    /// Make a volume; its space is allocated at once, and zero-written when the disk is idle
    Create {
        /// Letters, digits, '.', '_' and '-', at most 63
        name: Name,
        /// A multiple of 512 bytes, such as 10GiB; of a device, all of it if left out
        #[arg(required_unless_present = "device")]
        size: Option<Size>,
        /// Use this block device (a drive, a partition, a logical volume) as it is, in place of a file; nothing of it is wiped
        #[arg(long, value_name = "PATH", conflicts_with = "prealloc")]
        device: Option<PathBuf>,
        /// With --device: even if it holds something, or another disk is on it
        #[arg(long, requires = "device")]
        force: bool,
        /// On this disk; may be left out if there is only one, or one called 'default'
        #[arg(long)]
        disk: Option<Name>,
        /// The part of the disk's time promised to its tenant: 1/4, 0.25 or 25%
        #[arg(long)]
        share: Option<ShareText>,
        /// Use the allotment of this tenant, together with its other volumes; without it, the volume has its own
        #[arg(long)]
        tenant: Option<Name>,
        /// Cache of its tenant, such as 64MiB; without it, what it needs for R is found out in a trial
        #[arg(long, value_name = "SIZE")]
        cache: Option<Size>,
        /// What it needs for R is what this volume of the same disk needs: decided at once
        #[arg(long, value_name = "VOLUME", conflicts_with = "cache")]
        like: Option<Name>,
        /// Only say what would be decided, and how long a request would wait at most
        #[arg(long)]
        dry_run: bool,
        /// How the cache of its tenant chooses what goes when it needs room
        #[arg(long, value_name = "POLICY")]
        eviction: Option<Eviction>,
        /// 'full': write zeros before answering
        #[arg(long, value_name = "HOW")]
        prealloc: Option<Prealloc>,
        /// Allocate space only as it is written, and give it back when it is trimmed; with --device, only the latter
        #[arg(long, conflicts_with = "prealloc")]
        sparse: bool,
        #[command(flatten)]
        access: CreateAccess,
    },
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

/// Which clients may open a new volume, and how.
#[derive(Debug, Args)]
struct CreateAccess {
    /// Only these clients may open it: user:UID (over a Unix socket), cert:SUBJECT or name:NAME (of a client
    /// certificate), any or nobody; with ,ro behind it, for reading only. May be repeated [default: any]
    #[arg(long, value_name = "CLIENT")]
    allow: Vec<Rule>,
    /// Whether no client may change it [default: off]
    #[arg(long, value_name = "on|off")]
    read_only: Option<Switch>,
    /// What clients are told of it
    #[arg(long, value_name = "TEXT")]
    description: Option<Description>,
}

/// The same, changed live.
#[derive(Debug, Args)]
struct SetAccess {
    /// Only these clients may open it, in place of those so far: user:UID (over a Unix socket), cert:SUBJECT or
    /// name:NAME (of a client certificate), any or nobody; with ,ro behind it, for reading only. May be repeated. The
    /// others are disconnected
    #[arg(long, value_name = "CLIENT", group = "what")]
    allow: Vec<Rule>,
    /// Whether no client may change it; 'on' disconnects clients that opened it for writing, and flushes what they
    /// wrote
    #[arg(long, value_name = "on|off", group = "what")]
    read_only: Option<Switch>,
    /// What clients are told of it; '' for nothing
    #[arg(long, value_name = "TEXT", group = "what")]
    description: Option<Description>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Switch {
    On,
    Off,
}

impl Switch {
    fn is_on(self) -> bool {
        self == Switch::On
    }
}

/// The rules of one command; nothing if it has none.
fn access_list(rules: Vec<Rule>) -> Option<Access> {
    if rules.is_empty() {
        return None;
    }
    let list = Access::new(rules);
    Some(list.unwrap_or_else(|why| {
        Cli::command().error(clap::error::ErrorKind::ValueValidation, format!("--allow: {why}")).exit()
    }))
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Prealloc {
    Full,
}

/// Add, list, show, probe, set and remove disks, and stack faults on them
#[derive(Debug, Args)]
struct DiskArgs {
    #[command(subcommand)]
    verb: DiskVerb,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Subcommand)]
enum DiskVerb {
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
    /// Measure what a disk's device can do, in two minutes at most; its volumes are slower meanwhile. No data is touched
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
enum FaultVerb {
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
struct StatusArgs {
    #[command(flatten)]
    reach: Reach,
}

/// Show disks and their tenants live: who has the disk, what each gets, keeps and waits for
///
/// SLICE is a tenant's time in each round, LOST what it loses of it. KEEPS is its insulation ratio: what its work would have taken
/// alone, by its share of the time in which it wanted something; at least R is promised. It is measured over ten rounds, and at
/// least five seconds; throughput over two, latencies over the last 10 to 15 seconds. The coloured strip shows the last slices.
#[derive(Debug, Args)]
struct TopArgs {
    /// Only this disk
    #[arg(long)]
    disk: Option<Name>,
    /// Print it once, as text; without a terminal, that is what happens
    #[arg(long, conflicts_with_all = ["batch", "interval"])]
    once: bool,
    /// Print it again and again, as text with the time; with --json, one document a line
    #[arg(long)]
    batch: bool,
    /// Seconds between two looks, 0.1 to 3600 [default: 0.5; with --batch: 1]
    #[arg(long, value_name = "SECONDS", value_parser = interval)]
    interval: Option<Duration>,
    /// With --batch: end after so many looks
    #[arg(long, value_name = "N", requires = "batch", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    reach: Reach,
}

impl Cli {
    /// Does what was asked for.
    pub fn run(self) -> ExitCode {
        let (reach, request) = match self.command {
            Command::Serve(serve) => {
                return serve.run().unwrap_or_else(|(error, code)| fail(&format!("{error:#}"), None, code));
            }
            Command::Completion(CompletionArgs { shell }) => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Cli::command(), "aerogel", &mut script);
                print_out(&String::from_utf8_lossy(&script));
                return ExitCode::SUCCESS;
            }
            Command::Man(ManArgs { directory }) => {
                return match clap_mangen::generate_to(Cli::command(), &directory) {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(error) => fail(&format!("cannot write man pages to {}: {error}", directory.display()), None, 1),
                };
            }
            Command::Volume(VolumeArgs { verb, reach }) => (reach, volume_request(verb)),
            Command::Disk(DiskArgs { verb, reach }) => (reach, disk_request(verb)),
            Command::Status(StatusArgs { reach }) => {
                (reach, Request::get("/v1/status", |answer| Ok(print::status(&read::<Status>(answer)?))))
            }
            Command::Top(TopArgs { disk, once, batch, interval, count, reach }) => {
                let path = disk.map_or_else(|| "/v1/top".into(), |disk| format!("/v1/top?disk={disk}"));
                let interval = interval.unwrap_or(if batch { BATCH_INTERVAL } else { LIVE_INTERVAL });
                let is_live = batch || !once && !reach.json && top::is_watched();
                let live = is_live.then_some(top::How { batch, interval, count });
                let request = Request::get(path, |answer| Ok(print::top(&read::<Vec<LiveView>>(answer)?)));
                let print = if is_live { |_| Ok(String::new()) } else { request.print };
                (reach, Request { live, print, ..request })
            }
        };
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => return fail(&error.to_string(), None, 1),
        };
        let answer = runtime.block_on(async {
            let answer = ask(&reach.data, request.method.clone(), &request.path, request.body.clone());
            if let Some(disk) = &request.only_simulated {
                check_simulated(&reach, disk).await?;
            }
            if let Some(how) = request.live {
                return top::watch(&reach, &request.path, how).await;
            }
            if let Some(disk) = &request.probe {
                return probe::follow(&reach, disk, answer).await;
            }
            match &request.progress {
                Some((name, size)) if !reach.json => with_progress(&reach, name, *size, answer).await,
                _ => answer.await,
            }
        });
        if let (Ok(answer), Some(path)) = (&answer, &request.svg) {
            let picture = read(answer.clone()).map(|view| curve::svg(&view));
            match picture.map(|picture| std::fs::write(path, picture)) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return fail(&format!("cannot write {}: {error}", path.display()), None, 1),
                Err(error) => return fail(&error.to_string(), None, 1),
            }
        }
        let printed = answer.and_then(|answer| match reach.json && request.live.is_none() {
            true => Ok(format!("{answer:#}\n")),
            false => (request.print)(answer),
        });
        match printed {
            Ok(text) => {
                print_out(&text);
                ExitCode::SUCCESS
            }
            Err(error) => {
                let code = error.exit_status();
                match reach.json {
                    true => fail_in_json(&error.to_string(), error.hint(), code),
                    false => fail(&error.to_string(), error.hint(), code),
                }
            }
        }
    }
}

/// A closed pipe is not worth a panic.
fn print_out(text: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
}

fn fail(error: &str, hint: Option<&str>, code: u8) -> ExitCode {
    eprintln!("error: {error}");
    if let Some(hint) = hint {
        eprintln!("hint: {hint}");
    }
    ExitCode::from(code)
}

/// The same for programs, in the form in which the API says it.
fn fail_in_json(error: &str, hint: Option<&str>, code: u8) -> ExitCode {
    eprintln!("{:#}", json!({ "error": error, "hint": hint }));
    ExitCode::from(code)
}

/// A request, and how its answer is shown to people.
struct Request {
    method: Method,
    path: String,
    body: Option<Value>,
    print: fn(Value) -> Result<String, ClientError>,
    /// The volume and the bytes to watch while it is made.
    progress: Option<(Name, u64)>,
    /// The disk whose probe it begins.
    probe: Option<Name>,
    /// It is asked again and again, and shown on a screen or printed.
    live: Option<top::How>,
    /// Where a picture of its answer goes.
    svg: Option<PathBuf>,
    /// A disk that must be a simulated one, as nobody said --yes.
    only_simulated: Option<Name>,
}

impl Request {
    fn new(method: Method, path: impl Into<String>, body: Option<Value>) -> Request {
        Request {
            method,
            path: path.into(),
            body,
            print: show_done,
            progress: None,
            probe: None,
            svg: None,
            live: None,
            only_simulated: None,
        }
    }

    fn get(path: impl Into<String>, print: fn(Value) -> Result<String, ClientError>) -> Request {
        Request { print, ..Request::new(Method::GET, path, None) }
    }
}

fn read<T: DeserializeOwned>(answer: Value) -> Result<T, ClientError> {
    serde_json::from_value(answer).map_err(|error| ClientError::Broken(error.to_string()))
}

fn show_done(answer: Value) -> Result<String, ClientError> {
    let done: Done = read(answer)?;
    let uris = done.volume.map_or_else(Vec::new, |volume| volume.uris);
    Ok(uris.iter().fold(done.message + "\n", |text, uri| format!("{text}  {uri}\n")))
}

fn show_probed(answer: Value) -> Result<String, ClientError> {
    let done: Done = read(answer)?;
    let profile = done.disk.map_or_else(String::new, |disk| print::profile(&disk.profile));
    Ok(format!("{profile}\n{}\n", done.message))
}

/// Between two pictures, and between two texts.
const LIVE_INTERVAL: Duration = Duration::from_millis(500);
const BATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Seconds, as other programs of this kind take them.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("'{text}' is not a number of seconds from 0.1 to 3600"))
}

fn key_and_value(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').ok_or_else(|| format!("'{text}' has no '=': write KEY=VALUE"))?;
    Ok((pair.0.into(), pair.1.into()))
}

fn volume_request(verb: VolumeVerb) -> Request {
    let at = |name: &Name| format!("/v1/volumes/{name}");
    match verb {
        VolumeVerb::Create {
            name,
            size,
            device,
            force,
            disk,
            share,
            tenant,
            cache,
            like,
            dry_run,
            eviction,
            prealloc,
            sparse,
            access,
        } => {
            let allocation = match (prealloc, sparse) {
                (Some(Prealloc::Full), _) => Allocation::Full,
                (None, true) => Allocation::Sparse,
                (None, false) => Allocation::Whole,
            };
            let progress = prealloc.and(size).map(|size| (name.clone(), size.0));
            let device = device.map(|device| absolute(&device.to_string_lossy()));
            let CreateAccess { allow, read_only, description } = access;
            let (allow, description) = (access_list(allow).unwrap_or_default(), description.unwrap_or_default());
            let body = CreateVolume {
                name,
                size,
                device,
                force,
                disk,
                share,
                tenant,
                cache,
                like,
                eviction,
                allocation,
                allow,
                read_only: read_only.is_some_and(Switch::is_on),
                description,
            };
            if dry_run {
                let print = |answer| Ok(read::<PlanView>(answer)?.message + "\n");
                return Request { print, ..Request::new(Method::POST, "/v1/plan", Some(json!(body))) };
            }
            Request { progress, ..Request::new(Method::POST, "/v1/volumes", Some(json!(body))) }
        }
        VolumeVerb::List => Request::get("/v1/volumes", |answer| Ok(print::volumes(&read::<Vec<VolumeView>>(answer)?))),
        VolumeVerb::Show { name } => Request::get(at(&name), |answer| Ok(print::volume(&read(answer)?))),
        VolumeVerb::Set { name, share, cache, eviction, write_cache, i_accept_data_loss, access } => {
            let SetAccess { allow, read_only, description } = access;
            let body = SetVolume {
                share,
                cache,
                eviction,
                write_cache,
                accept_data_loss: i_accept_data_loss,
                allow: access_list(allow),
                read_only: read_only.map(Switch::is_on),
                description,
            };
            Request::new(Method::PATCH, at(&name), Some(json!(body)))
        }
        VolumeVerb::Curve { name, policy, svg } => {
            let policy = policy.map_or_else(String::new, |policy| format!("?policy={}", print::eviction(policy)));
            let request = Request::get(at(&name) + "/curve" + &policy, |answer| Ok(curve::text(&read(answer)?)));
            Request { svg, ..request }
        }
        VolumeVerb::Grow { name, size } => {
            Request::new(Method::POST, at(&name) + "/grow", Some(json!(GrowVolume { size })))
        }
        VolumeVerb::Delete { name, yes: _, force } => {
            Request::new(Method::DELETE, format!("{}?force={force}", at(&name)), None)
        }
        VolumeVerb::Clear { name, yes: _ } => Request::new(Method::POST, at(&name) + "/clear", None),
    }
}

fn disk_request(verb: DiskVerb) -> Request {
    let at = |name: &Name| format!("/v1/disks/{name}");
    match verb {
        DiskVerb::Add { name, path, force, size, directory, faults, policy, insulation, max_round, no_probe } => {
            let (path, directory) =
                (absolute(&path), directory.map(|directory| absolute(&directory.to_string_lossy())));
            let body = AddDisk { name, path, force, size, directory, faults, policy, insulation, max_round, no_probe };
            Request::new(Method::POST, "/v1/disks", Some(json!(body)))
        }
        DiskVerb::Fault { verb } => fault_request(verb),
        DiskVerb::List => Request::get("/v1/disks", |answer| Ok(print::disks(&read::<Vec<DiskView>>(answer)?))),
        DiskVerb::Show { name } => Request::get(at(&name), |answer| Ok(print::disk(&read(answer)?))),
        DiskVerb::Probe { name, cancel: true, .. } => Request::new(Method::DELETE, at(&name) + "/probe", None),
        DiskVerb::Probe { name, seconds, quick, .. } => {
            let body = StartProbe { seconds: seconds.or(quick.then_some(SECONDS_QUICK)) };
            let request = Request::new(Method::POST, at(&name) + "/probe", Some(json!(body)));
            Request { probe: Some(name), print: show_probed, ..request }
        }
        DiskVerb::Set { name, policy, insulation, max_round, profile } => {
            let body = SetDisk { policy, insulation, max_round, profile: profile.into_iter().collect() };
            Request::new(Method::PATCH, at(&name), Some(json!(body)))
        }
        DiskVerb::Remove { name, force } => Request::new(Method::DELETE, format!("{}?force={force}", at(&name)), None),
    }
}

fn fault_request(verb: FaultVerb) -> Request {
    let at = |name: &Name| format!("/v1/disks/{name}/faults");
    match verb {
        // The server says what is wrong with it.
        FaultVerb::Add { name, fault, yes } => {
            let request = Request::new(Method::POST, at(&name), Some(json!({ "fault": fault.join(" ") })));
            Request { only_simulated: Some(name).filter(|_| !yes), ..request }
        }
        FaultVerb::List { name } => {
            Request::get(at(&name), |answer| Ok(print::faults(&read::<Vec<FaultView>>(answer)?)))
        }
        FaultVerb::Clear { name, id } => {
            let which = id.map_or_else(String::new, |id| format!("?id={id}"));
            Request::new(Method::DELETE, at(&name) + &which, None)
        }
    }
}

/// A path relative to where the user is, not to where the server is. Behind `sim:` it is one if it has a slash.
fn absolute(path: &str) -> String {
    let (scheme, rest) = match path.strip_prefix(SIM) {
        Some(rest) if !rest.contains('/') => return path.to_owned(),
        Some(rest) => (SIM, rest),
        None => ("", path),
    };
    let path = std::path::absolute(rest).map_or_else(|_| rest.to_owned(), |path| path.to_string_lossy().into_owned());
    format!("{scheme}{path}")
}

/// Refuses what needs --yes on any but a simulated disk.
async fn check_simulated(reach: &Reach, disk: &Name) -> Result<(), ClientError> {
    let shown: DiskView = read(ask(&reach.data, Method::GET, &format!("/v1/disks/{disk}"), None).await?)?;
    if shown.simulated.is_some() {
        return Ok(());
    }
    let error = format!("disk '{disk}' is a real disk: the fault meets the data of its clients");
    let hint = Some("if that is meant, add --yes; `aerogel disk add NAME sim:PRESET` makes a disk to try it on".into());
    Err(ClientError::Refused(StatusCode::BAD_REQUEST, Problem { error, hint }))
}

/// Shows how far the making of a volume is until it is answered.
async fn with_progress(
    reach: &Reach,
    name: &Name,
    size: u64,
    answer: impl Future<Output = Result<Value, ClientError>>,
) -> Result<Value, ClientError> {
    let style = ProgressStyle::with_template("writing zeros {bar:40} {bytes}/{total_bytes} {eta}");
    let bar = ProgressBar::new(size).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut answer = std::pin::pin!(answer);
    let answer = loop {
        if let Ok(answer) = tokio::time::timeout(Duration::from_millis(200), &mut answer).await {
            break answer;
        }
        let volume = ask(&reach.data, Method::GET, &format!("/v1/volumes/{name}"), None).await;
        if let Ok(volume) = volume.and_then(read::<VolumeView>) {
            bar.set_position(volume.prepared_bytes);
        }
    };
    bar.finish_and_clear();
    answer
}
