//! The server process: start, readiness, serving, draining, end.

use std::io::{self, IsTerminal, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};
use tokio::net::UnixListener;
use tracing::{error, info, warn};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::address::{Address, Data, Listener, NbdAddress, TlsMode, check_unix_path, listen_unix};
use crate::api::{self, Guard, Purpose};
use crate::cluster::{self, Cluster};
use crate::config::{Config, Limits, Log, LogFormat, Memory, ReactorKind, data_by_environment};
use crate::control::{Control, Listening, Registry};
use crate::gateway::{self, Gateway};
use crate::handshakes::Handshakes;
use crate::incidents;
use crate::listen::{self, Door};
use crate::quantity::Time;
use crate::signals::Endings;
use crate::tls::Tls;

/// Threads of the control side, which is not on the data path.
const CONTROL_THREADS: usize = 2;
/// Handshakes on one kind of listener (Unix sockets, TCP) use at most one in this many of the descriptors.
const HANDSHAKE_DESCRIPTORS: usize = 8;
/// How long the end waits for TLS clients to receive their last replies.
const LAST_REPLIES_TIMEOUT: Duration = Duration::from_secs(2);

/// Run a server.
///
/// It serves the volumes of its disks over NBD, and its HTTP API at DIR/api.sock, until SIGTERM, SIGINT, SIGHUP or any
/// other signal that ends a process. Then requests received are finished and everything is flushed; the exit status is
/// 1 if that took longer than --shutdown-timeout. A second SIGTERM, SIGINT or SIGQUIT, more than a second after the
/// first signal, ends it at once.
#[derive(Debug, clap::Args)]
pub struct Serve {
    /// Configuration file; flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The server's directory [default: from the configuration, else $AEROGEL_DATA, else ./aerogel-data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where NBD clients connect, unix:PATH or tcp:HOST:PORT; append ,tls=on or ,tls=require for TLS with the
    /// certificates of the configuration, and to unix:PATH ,mode=0666 or ,group=NAME for other users; may be repeated
    /// [default: unix:DIR/nbd.sock]
    #[arg(long, value_name = "ADDR")]
    nbd: Vec<NbdAddress>,
    /// Listener of the API and /metrics in addition to DIR/api.sock: unix:PATH or tcp:HOST:PORT; may be repeated
    /// [default: none]
    #[arg(long, value_name = "ADDR")]
    http: Vec<Address>,
    /// Allow listeners without TLS that other hosts can reach
    #[arg(long, alias = "allow-remote")]
    allow_insecure_remote: bool,
    /// Memory for caches and their metadata, such as 4GiB or 50% [default: 25%]
    #[arg(long, value_name = "SIZE")]
    cache: Option<Memory>,
    /// Do not probe disks without a profile automatically; their tenants are then not insulated
    #[arg(long)]
    no_probe: bool,
    /// I/O mechanism [default: auto]
    #[arg(long, value_name = "KIND", value_enum)]
    reactor: Option<ReactorKind>,
    /// Maximum time to finish requests and flush at shutdown [default: 30s]
    #[arg(long, value_name = "TIME")]
    shutdown_timeout: Option<Time>,
    /// Log as text or json [default: text]
    #[arg(long, value_name = "FORMAT", value_enum)]
    log_format: Option<LogFormat>,
    /// error, warn, info, debug, trace, or a filter by module [default: info]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Do not print the listeners and the next steps
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    cluster: cluster::Options,
    #[command(flatten)]
    gateway: gateway::Options,
}

impl Serve {
    /// The configuration with the flags applied.
    fn config(&self) -> anyhow::Result<Config> {
        let mut config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config { data: data_by_environment(), ..Config::default() },
        };
        config.data = self.data.clone().unwrap_or(config.data);
        config.nbd = Some(self.nbd.clone()).filter(|given| !given.is_empty()).or(config.nbd);
        config.http = Some(self.http.clone()).filter(|given| !given.is_empty()).or(config.http);
        config.allow_insecure_remote |= self.allow_insecure_remote;
        config.cache = self.cache.unwrap_or(config.cache);
        config.automatic_probe &= !self.no_probe;
        config.reactor = self.reactor.unwrap_or(config.reactor);
        config.shutdown_timeout = self.shutdown_timeout.unwrap_or(config.shutdown_timeout);
        config.log.format = self.log_format.unwrap_or(config.log.format);
        config.log.level = self.log_level.clone().unwrap_or(config.log.level);
        config.cluster = self.cluster.clone().or(config.cluster);
        config.gateway = self.gateway.clone().or(config.gateway);
        config.cache.check()?;
        let is_member = config.cluster.settings(config.allow_insecure_remote)?.is_some();
        anyhow::ensure!(
            config.gateway.settings()?.is_none() || !is_member,
            "a server that takes part in a cluster is no gateway: run a process of its own with --gateway"
        );
        Ok(config)
    }

    /// Runs a server until a signal ends it. An error has an exit status: 2 if the command line or the configuration is
    /// wrong, otherwise 1.
    pub fn run(self) -> Result<ExitCode, (anyhow::Error, u8)> {
        let config = self.config().and_then(|config| start_log(&config.log).map(|()| config));
        run(config.map_err(|error| (error, 2))?, !self.quiet).map_err(|error| (error, 1))
    }
}

fn run(config: Config, announce: bool) -> anyhow::Result<ExitCode> {
    // Tenants' data, the lock and the sockets are inaccessible to other users from their creation on.
    umask(Mode::RWXG | Mode::RWXO);
    allow_many_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CONTROL_THREADS)
        .enable_all()
        .build()
        .context("cannot start the control threads")?;
    let code = runtime.block_on(serve(config, announce));
    // A blocked thread (on a device that never answers) must not keep the process from ending.
    runtime.shutdown_background();
    code
}

async fn serve(config: Config, announce: bool) -> anyhow::Result<ExitCode> {
    let mut endings = Endings::listen()?;
    let token = config.http_token_file.as_deref().map(read_token).transpose()?;
    let tls = check(&config)?;
    let place = config.cluster.settings(config.allow_insecure_remote)?;
    let gateway = config.gateway.settings()?;
    let control = Control::open(config).await?;
    let cluster = place.map(|place| Cluster::new(control.clone(), place)).transpose()?;
    let gateway = match gateway {
        Some(settings) => Some(Gateway::start(control.clone(), settings).await?),
        None => None,
    };
    let config = &control.config;
    let listeners = Listeners::open(config).await?;
    let guard = Guard { token, hosts: config.http_hosts.clone(), socket: config.api_socket().display().to_string() };
    control.set_listening(listeners.listening.clone());

    tokio::spawn(control.clone().watch());
    tokio::spawn(control.clone().reopen());
    tokio::spawn(control.clone().probe_idle_disks());
    tokio::spawn(control.clone().open_later());
    tokio::spawn(control.clone().start_offloading());
    tokio::spawn(incidents::watch());
    let taking_part = cluster.as_ref().map(|cluster| tokio::spawn(cluster.clone().run()));
    let closing = gateway.as_ref().map(|gateway| tokio::spawn(gateway.clone().run()));
    let sockets = listeners.accept(&control, cluster.as_ref(), gateway.as_ref(), tls.as_ref(), &guard);
    if announce {
        print_welcome(&control).await;
    }
    info!(data = %config.data.display(), "ready");
    notify("READY=1");

    let signal = endings.next().await;
    info!(signal, "shutting down: finishing requests and flushing");
    notify("STOPPING=1");
    let failed = tokio::select! {
        failed = control.drain() => failed,
        () = endings.at_once() => {
            error!("stopped at once by a further signal: unflushed data is lost");
            return Ok(ExitCode::FAILURE);
        }
    };
    if let Some(tls) = tls {
        // The last answers of the disks' threads.
        let _ = tokio::time::timeout(LAST_REPLIES_TIMEOUT, tls.finish()).await;
    }
    if let (Some(gateway), Some(closing)) = (&gateway, closing) {
        closing.abort();
        gateway.leave().await;
    }
    if let (Some(cluster), Some(taking_part)) = (&cluster, taking_part) {
        taking_part.abort();
        cluster.leave().await;
    }
    sockets.remove();
    if failed.is_empty() {
        info!("everything is flushed");
        return Ok(ExitCode::SUCCESS);
    }
    error!(volumes = failed.join(" "), "not everything is flushed: acknowledged data of these volumes may be lost");
    Ok(ExitCode::FAILURE)
}

/// The token of the API's TCP listeners.
fn read_token(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the token in {}", path.display()))?;
    anyhow::ensure!(!text.trim().is_empty(), "the token in {} is empty", path.display());
    Ok(text.trim().to_owned())
}

/// Sockets that listen, before anything is accepted.
struct Listeners {
    api: UnixListener,
    nbd: Vec<(Listener, TlsMode)>,
    http: Vec<Listener>,
    sockets: Sockets,
    listening: Listening,
}

impl Listeners {
    async fn open(config: &Config) -> anyhow::Result<Listeners> {
        let api = listen_unix(&config.api_socket(), 0o600, None)?;
        let mut sockets = Sockets(vec![config.api_socket()]);
        let (mut nbd, mut http, mut listening) = (Vec::new(), Vec::new(), Listening::default());
        for named in config.nbd() {
            let listener = named.listen(config.allow_insecure_remote, &config.tcp).await?;
            sockets.add(&named.address);
            let address = listener.actual(&named.address)?;
            nbd.push((listener, named.tls));
            listening.nbd.push(NbdAddress { address, ..named });
        }
        // Its own disks are each other's stores over a socket that needs no TLS.
        let plain = listening.nbd.iter().find_map(|named| match &named.address {
            Address::Unix(path) if named.tls != TlsMode::Require => Some(path.clone()),
            _ => None,
        });
        let own = match plain {
            Some(path) => path,
            None => {
                let path = config.data.join("own.sock");
                nbd.push((Listener::Unix(listen_unix(&path, 0o600, None)?), TlsMode::Off));
                sockets.add(&Address::Unix(path.clone()));
                path
            }
        };
        listening.own = Some(std::path::absolute(own)?);
        for named in config.http() {
            let listener = named.listen(config.allow_insecure_remote, &config.tcp).await?;
            sockets.add(&named);
            listening.http.push(listener.actual(&named)?);
            http.push(listener);
        }
        Ok(Listeners { api, nbd, http, sockets, listening })
    }

    /// Accepts connections from now on. Returns what is removed at the end.
    fn accept(
        self,
        control: &Arc<Control>,
        cluster: Option<&Arc<Cluster>>,
        gateway: Option<&Arc<Gateway>>,
        tls: Option<&Arc<Tls>>,
        guard: &Guard,
    ) -> Sockets {
        let limits = &control.config.limits;
        let [local, remote] = [(); 2].map(|()| handshakes(limits));
        for (listener, mode) in self.nbd {
            let handshakes = if matches!(listener, Listener::Unix(_)) { &local } else { &remote };
            let (control, handshakes) = (control.clone(), handshakes.clone());
            let tls = tls.cloned().filter(|_| mode != TlsMode::Off);
            let (cluster, gateway) = (cluster.cloned(), gateway.cloned());
            tokio::spawn(listen::accept(listener, Door { control, handshakes, mode, tls, cluster, gateway }));
        }
        let router = api::router(control.clone(), cluster.cloned());
        tokio::spawn(api::serve(Listener::Unix(self.api), router, limits.http_connections, Purpose::Own));
        for listener in self.http {
            let router = match listener {
                Listener::Unix(_) => api::router(control.clone(), cluster.cloned()),
                Listener::Tcp(_) => api::guarded(control.clone(), cluster.cloned(), guard.clone()),
            };
            tokio::spawn(api::serve(listener, router, limits.http_connections, Purpose::Other));
        }
        self.sockets
    }
}

/// Refuses a configuration with which the server could not run, before any file is created. Reads the certificates if a
/// listener needs them.
fn check(config: &Config) -> anyhow::Result<Option<Arc<Tls>>> {
    check_unix_path(&config.api_socket())?;
    let nbd = config.nbd();
    let data = Data { directory: &config.data, is_new: Registry::read(&config.data)?.is_none() };
    for address in &nbd {
        address.check(config.allow_insecure_remote, &data)?;
    }
    for address in config.http() {
        address.check(config.allow_insecure_remote, &data)?;
    }
    let needs_tls = nbd.iter().any(|address| address.tls != TlsMode::Off);
    needs_tls.then(|| Tls::start(&config.tls)).transpose()
}

/// The Unix sockets of this server. It removes them when it ends normally; those of a killed server are replaced by the
/// next one.
struct Sockets(Vec<PathBuf>);

impl Sockets {
    fn add(&mut self, address: &Address) {
        if let Address::Unix(path) = address {
            self.0.push(path.clone());
        }
    }

    fn remove(&self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The limits on handshakes. They use a small part of the process's descriptors; the others are for open connections.
fn handshakes(limits: &Limits) -> Arc<Handshakes> {
    let descriptors = getrlimit(Resource::Nofile).current.map_or(usize::MAX, |limit| limit as usize);
    let total = limits.handshakes.min(descriptors / HANDSHAKE_DESCRIPTORS).max(1);
    Handshakes::new(total, limits.handshakes_per_source)
}

async fn print_welcome(control: &Control) {
    let status = control.status().await;
    let program = std::env::args().next().unwrap_or_else(|| "aerogel".into());
    let is_default = control.config.data.as_os_str() == crate::config::DATA_DEFAULT;
    let data = if is_default { String::new() } else { format!(" --data {}", control.config.data.display()) };
    let mut text = format!("Aerogel {} serves {}\n\n", status.version, status.data);
    let lines = |what: &str, addresses: &[String]| {
        let line = |(i, address): (usize, &String)| format!("  {:<5} {address}\n", if i == 0 { what } else { "" });
        addresses.iter().enumerate().map(line).collect::<String>()
    };
    text += &lines("NBD", &status.nbd);
    text += &lines("HTTP", &status.http.iter().map(|at| at.replacen("tcp:", "http://", 1)).collect::<Vec<_>>());
    for warning in &status.warnings {
        text += &format!("\nwarning: {warning}\n");
    }
    let uri = status.volumes.iter().find_map(|volume| volume.uris.first());
    text += "\nNext steps, in another terminal:\n";
    match uri {
        Some(uri) => text += &format!("  {program} status{data}\n  nbdinfo '{uri}'\n"),
        None => {
            let at = control.config.nbd().into_iter().find_map(|NbdAddress { address, tls, .. }| match address {
                Address::Unix(path) if tls == TlsMode::Off => std::path::absolute(path).ok(),
                _ => None,
            });
            text += &format!("  {program} volume create db 1GiB{data}\n");
            text += &match at {
                Some(path) => format!("  nbdinfo 'nbd+unix:///db?socket={}'\n", path.display()),
                None => format!("  {program} volume show db{data}\n"),
            };
        }
    }
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Starts the log on standard error, as text or JSON objects.
fn start_log(log: &Log) -> anyhow::Result<()> {
    let level: Targets = log.level.parse().with_context(|| {
        format!("'{}' is not a log level: error, warn, info, debug, trace, or MODULE=LEVEL,…", log.level)
    })?;
    let registry = tracing_subscriber::registry().with(level);
    let writer = || Unfailing(io::stderr());
    match log.format {
        LogFormat::Json => {
            registry.with(tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(writer)).init()
        }
        LogFormat::Text => {
            let layer = tracing_subscriber::fmt::layer().with_target(false).with_ansi(io::stderr().is_terminal());
            registry.with(layer.with_writer(writer)).init();
        }
    }
    Ok(())
}

/// Standard error, which may have lost its reader: a terminal that was closed, or a pipe to a program that has ended.
/// Lines that cannot be written are dropped, since they must not end the server.
struct Unfailing(io::Stderr);

impl Write for Unfailing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// Raises the soft limit of descriptors to the hard limit: each connection needs one, and the usual soft limit exists
/// for programs that use select().
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        warn!("the limit of open files cannot be raised: {error}");
    }
}

/// Notifies systemd, if it has started this process.
fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let text = path.to_string_lossy();
    let address = match text.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        warn!("cannot notify systemd of {state}: {error}");
    }
}
