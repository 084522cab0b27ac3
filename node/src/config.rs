//! The configuration file. It holds settings of the process: listeners, memory, logs, limits. Disks and volumes are
//! state, changed through the API. Every key has a default. An unknown key is an error that names the most similar
//! known key.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::{Deserialize, Serialize};

use crate::address::{Address, NbdAddress, Tcp};
use crate::cluster;
use crate::disk_thread;
use crate::gateway;
use crate::quantity::{QuantityError, Size, Time};
use crate::reactor;

/// The default path of the server's directory.
pub const DATA_DEFAULT: &str = "./aerogel-data";

/// The configuration of the process.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The server's directory, with registry, lock and sockets. If absent, AEROGEL_DATA or the default.
    #[serde(default = "data_by_environment")]
    pub data: PathBuf,
    /// Listeners for NBD; `None` is `DIR/nbd.sock`.
    pub nbd: Option<Vec<NbdAddress>>,
    /// Listeners for the API in addition to `DIR/api.sock`; `None` is none.
    pub http: Option<Vec<Address>>,
    /// A file with the token that changes over TCP need. Without a token the TCP listener is read-only.
    pub http_token_file: Option<PathBuf>,
    /// Host names under which browsers may reach the TCP listener, in addition to IP addresses and `localhost`.
    pub http_hosts: Vec<String>,
    /// Whether listeners without TLS may be reachable from other hosts. `allow_remote`, its former name, is also read.
    #[serde(alias = "allow_remote")]
    pub allow_insecure_remote: bool,
    /// The server's certificate, and the authorities of clients' certificates.
    pub tls: Tls,
    /// Options of TCP connections, for NBD and HTTP.
    pub tcp: Tcp,
    /// Memory for caches and their metadata, for all disks together.
    pub cache: Memory,
    /// Whether disks without a profile are probed when they are idle.
    pub automatic_probe: bool,
    /// The time limit for draining.
    pub shutdown_timeout: Time,
    /// The implementation of device and socket I/O.
    pub reactor: ReactorKind,
    /// Format and level of the log.
    pub log: Log,
    /// Limits.
    pub limits: Limits,
    /// The cluster that the server takes part in, if it does.
    pub cluster: cluster::Options,
    /// The cluster that it is a gateway to, if it is.
    pub gateway: gateway::Options,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            data: DATA_DEFAULT.into(),
            nbd: None,
            http: None,
            http_token_file: None,
            http_hosts: Vec::new(),
            allow_insecure_remote: false,
            tls: Tls::default(),
            tcp: Tcp::default(),
            cache: Memory::Part(0.25),
            automatic_probe: true,
            shutdown_timeout: Time(Duration::from_secs(30)),
            reactor: ReactorKind::Auto,
            log: Log::default(),
            limits: Limits::default(),
            cluster: cluster::Options::default(),
            gateway: gateway::Options::default(),
        }
    }
}

/// The server's directory if neither a flag nor the configuration names it.
pub fn data_by_environment() -> PathBuf {
    let named = std::env::var_os("AEROGEL_DATA").filter(|named| !named.is_empty());
    named.map_or_else(|| DATA_DEFAULT.into(), PathBuf::from)
}

/// The server's certificate, and the authorities of clients' certificates. PEM files, read again when they change.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The server's certificate, followed by those between it and the authority that clients trust.
    pub certificate: Option<PathBuf>,
    /// The private key.
    pub key: Option<PathBuf>,
    /// The authorities that sign clients' certificates. If absent, no client certificate is requested.
    pub clients: Option<PathBuf>,
    /// Whether clients need a certificate, if `clients` is set.
    pub client_certificates: ClientCertificates,
}

/// Whether clients need a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    /// A client without a certificate is refused.
    #[default]
    Require,
    /// A client without a certificate is anonymous. A certificate that is presented must be valid.
    Optional,
}

/// Format and level of the log.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Text lines or JSON objects.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,hyper=warn`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Log {
        Log { format: LogFormat::Text, level: "info".into() }
    }
}

/// The shape of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// How device and socket I/O are done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[clap(rename_all = "snake_case")]
pub enum ReactorKind {
    /// io_uring where the system allows it, threads elsewhere.
    Auto,
    /// io_uring or not at all.
    IoUring,
    /// Plain threads.
    Threads,
}

impl From<ReactorKind> for reactor::Kind {
    fn from(kind: ReactorKind) -> Self {
        match kind {
            ReactorKind::Auto => Self::Auto,
            ReactorKind::IoUring => Self::IoUring,
            ReactorKind::Threads => Self::Threads,
        }
    }
}

/// Requests in a disk at the same time: as many entries as an io_uring may have in its smaller queue, and more than any
/// device works on.
const DEVICE_DEPTH_MAX: u64 = 4096;
/// Connections, handshakes, requests of a connection: far more than one disk's thread serves well.
const COUNT_MAX: u64 = 1 << 16;
/// Longer than anybody wants acknowledged data to exist in memory only.
const DIRTY_AGE_MAX: Duration = Duration::from_secs(3600);

/// Limits. Those of the engine are explained in [`engine::Config`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Concurrent handshakes over Unix sockets, and as many over TCP. At the limit the oldest one is closed.
    pub handshakes: usize,
    /// Concurrent handshakes of one source: a user on Unix sockets; an IP address, or a /64 network of IPv6, on TCP.
    pub handshakes_per_source: usize,
    /// HTTP connections per listener, including `DIR/api.sock`. Further ones wait to be accepted.
    pub http_connections: usize,
    /// Connections to the volumes of a disk.
    pub connections: u32,
    /// Connections to the volumes of one tenant.
    pub connections_per_tenant: u32,
    /// Connections to one volume.
    pub connections_per_volume: u32,
    /// Outstanding requests per connection.
    pub requests_per_connection: u32,
    /// Unsent reply bytes per connection at which no more requests of it are started.
    pub unsent_per_connection: Size,
    /// Concurrent requests in the device of a disk.
    pub device_depth: u32,
    /// The maximum age of dirty data before it is written. Time in which the tenant's reads wait for other tenants'
    /// slices hardly counts, so under contention the age may be up to six times as long.
    pub dirty_age: Time,
}

impl Limits {
    /// The limits of connections of a disk.
    pub fn places(&self) -> disk_thread::Limits {
        disk_thread::Limits {
            disk: self.connections,
            tenant: self.connections_per_tenant,
            volume: self.connections_per_volume,
        }
    }

    /// Refuses zeros, with which every client would wait for ever, and counts for which memory would be allocated in
    /// vain.
    fn check(&self) -> anyhow::Result<()> {
        let counts = [
            ("handshakes", self.handshakes as u64),
            ("http_connections", self.http_connections as u64),
            ("handshakes_per_source", self.handshakes_per_source as u64),
            ("connections", self.connections.into()),
            ("connections_per_tenant", self.connections_per_tenant.into()),
            ("connections_per_volume", self.connections_per_volume.into()),
            ("requests_per_connection", self.requests_per_connection.into()),
            ("device_depth", self.device_depth.into()),
        ];
        for (key, count) in counts {
            let most = if key == "device_depth" { DEVICE_DEPTH_MAX } else { COUNT_MAX };
            if !(1..=most).contains(&count) {
                return Err(anyhow!("limits.{key} is {count}: give 1 to {most}"));
            }
        }
        if self.dirty_age.0 > DIRTY_AGE_MAX {
            return Err(anyhow!("limits.dirty_age is {}: give at most {}", self.dirty_age, Time(DIRTY_AGE_MAX)));
        }
        Ok(())
    }
}

impl Default for Limits {
    fn default() -> Limits {
        let places = disk_thread::Limits::default();
        Limits {
            handshakes: 1024,
            handshakes_per_source: 256,
            http_connections: 64,
            connections: places.disk,
            connections_per_tenant: places.tenant,
            connections_per_volume: places.volume,
            requests_per_connection: 128,
            unsent_per_connection: Size(8 << 20),
            device_depth: 128,
            dirty_age: Time(Duration::from_secs(5)),
        }
    }
}

/// An amount of memory: a size, or a fraction of what this process may use (the limit of the machine or of the control
/// group, whichever is lower).
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Memory {
    /// A size.
    Bytes(Size),
    /// A fraction, 0 < fraction < 1.
    Part(f64),
}

/// Why a text is not an amount of memory.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MemoryError {
    #[error("'{0}' is not an amount of memory; write it as 4GiB, or as 1% to 90% of the memory")]
    Part(String),
    #[error(transparent)]
    Size(#[from] QuantityError),
}

impl FromStr for Memory {
    type Err = MemoryError;

    fn from_str(text: &str) -> Result<Memory, MemoryError> {
        let Some(percent) = text.strip_suffix('%') else { return Ok(Memory::Bytes(text.parse()?)) };
        match percent.parse::<f64>() {
            Ok(value) if value > 0.0 && value <= 90.0 => Ok(Memory::Part(value / 100.0)),
            _ => Err(MemoryError::Part(text.into())),
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Bytes(size) => size.fmt(f),
            Memory::Part(part) => write!(f, "{}%", part * 100.0),
        }
    }
}

impl Serialize for Memory {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Memory {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Memory {
    /// The amount in bytes on this machine.
    pub fn bytes(self) -> anyhow::Result<u64> {
        match self {
            Memory::Bytes(size) => Ok(size.0),
            Memory::Part(part) => Ok((memory_of_this_process()? as f64 * part) as u64),
        }
    }
}

impl Memory {
    /// Refuses more than there is, since caches are memory that stays in use.
    pub fn check(self) -> anyhow::Result<()> {
        let (asked, there) = (self.bytes()?, memory_of_this_process()?);
        anyhow::ensure!(
            asked < there,
            "a cache of {self} does not fit: this machine, or the control group of this process, has {} of memory; \
             ask for less with --cache or cache = \"SIZE\" (25% is the default)",
            Size(there).rounded()
        );
        Ok(())
    }
}

/// The machine's memory, or the lowest limit of the control groups of this process.
fn memory_of_this_process() -> anyhow::Result<u64> {
    let machine = rustix::system::sysinfo();
    let mut bytes = machine.totalram * u64::from(machine.mem_unit);
    let group = if_there(Path::new("/proc/self/cgroup"))?.unwrap_or_default();
    let path = group.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
    for group in Path::new(path).ancestors() {
        let file = Path::new("/sys/fs/cgroup").join(group).join("memory.max");
        match if_there(&file)?.as_deref().map(str::trim) {
            None | Some("max") => {}
            Some(limit) => {
                let limit = limit.parse().with_context(|| format!("{} says '{limit}'", file.display()))?;
                bytes = bytes.min(limit);
            }
        }
    }
    Ok(bytes)
}

/// Reads a file of the kernel that may not exist in older versions. A file that exists and cannot be read is an error:
/// if a limit were missed, the process would be killed for exceeding it.
fn if_there(path: &Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("the memory limit in {} cannot be read", path.display())),
    }
}

impl Config {
    /// Reads a configuration file.
    pub fn read(path: &Path) -> anyhow::Result<Config> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration {}", path.display()))?;
        Config::parse(&text).with_context(|| format!("in the configuration {}", path.display()))
    }

    /// Parses a configuration.
    pub fn parse(text: &str) -> anyhow::Result<Config> {
        let config: Config = toml::from_str(text).map_err(|error| match nearest_known_key(error.message()) {
            Some(key) => anyhow!("{}\nDid you mean '{key}'?", error.to_string().trim_end()),
            None => anyhow!("{}", error.to_string().trim_end()),
        })?;
        config.limits.check()?;
        Ok(config)
    }

    /// The listeners for NBD.
    pub fn nbd(&self) -> Vec<NbdAddress> {
        self.nbd.clone().unwrap_or_else(|| vec![Address::Unix(self.data.join("nbd.sock")).into()])
    }

    /// The listeners for the API, except its own socket.
    pub fn http(&self) -> Vec<Address> {
        self.http.clone().unwrap_or_default()
    }

    /// The API's own socket.
    pub fn api_socket(&self) -> PathBuf {
        api_socket(&self.data)
    }
}

/// The API's own socket in a server's directory.
pub fn api_socket(data: &Path) -> PathBuf {
    data.join("api.sock")
}

/// The known key that is most similar to the unknown one, from serde's message "unknown field `x`, expected one of `a`,
/// `b`".
fn nearest_known_key(message: &str) -> Option<&str> {
    let mut quoted = message.strip_prefix("unknown field")?.split('`').skip(1).step_by(2);
    let unknown = quoted.next()?;
    quoted.min_by_key(|known| edit_distance(unknown, known))
}

/// The Levenshtein distance: the minimum number of bytes to insert, delete or replace.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example has every key, set to its default. Keys whose default follows from others are commented out.
    #[test]
    fn the_example_shows_the_defaults() {
        let example = include_str!("../../aerogel.toml");
        let config = Config::parse(example).unwrap();
        assert_eq!(config, Config::default());

        let is_key = |line: &&str| line.starts_with(|c: char| c.is_ascii_lowercase()) && line.contains(" = ");
        let uncommented: Vec<&str> =
            example.lines().map(|line| line.strip_prefix('#').filter(is_key).unwrap_or(line)).collect();
        let full = Config::parse(&uncommented.join("\n")).unwrap();
        assert_eq!(full.nbd, Some(Config::default().nbd()));
        assert!(
            matches!(&Config::default().nbd()[..], [NbdAddress { address: Address::Unix(_), .. }]),
            "TCP is asked for"
        );
        assert_eq!(Config::default().http(), [], "TCP is asked for");
        assert_eq!(full.http, Some(vec!["tcp:127.0.0.1:8809".parse().unwrap()]));
        let shown = toml::Table::try_from(full).unwrap();
        let has = |table: &toml::Table| {
            table.keys().all(|key| example.contains(&format!("{key} = ")) || example.contains(&format!("[{key}]")))
        };
        assert!(has(&shown) && has(shown["log"].as_table().unwrap()) && has(shown["limits"].as_table().unwrap()));
        assert!(has(shown["tls"].as_table().unwrap()) && has(shown["tcp"].as_table().unwrap()));
        assert!(example.contains("http_token_file = "));
    }

    #[test]
    fn unknown_keys_name_the_nearest() {
        let error = |text: &str| Config::parse(text).unwrap_err().to_string();
        assert!(error("cash = \"1GiB\"").contains("Did you mean 'cache'?"));
        assert!(error("[limits]\nhandshake = 3").contains("Did you mean 'handshakes'?"));
        assert!(error("[log]\nlevle = \"info\"").contains("Did you mean 'level'?"));
        assert!(error("cache = \"64MB\"").contains("64MiB"));
    }

    #[test]
    fn memory_is_a_size_or_a_part() {
        assert_eq!("4GiB".parse(), Ok(Memory::Bytes(Size(4 << 30))));
        assert_eq!("25%".parse(), Ok(Memory::Part(0.25)));
        assert!("0%".parse::<Memory>().is_err() && "100%".parse::<Memory>().is_err());
        assert!(Memory::Part(0.25).bytes().unwrap() > 1 << 20);
        let too_much = "1EiB".parse::<Memory>().unwrap().check().unwrap_err().to_string();
        assert!(too_much.contains("1EiB does not fit") && too_much.contains("--cache"), "{too_much}");
        Memory::Part(0.25).check().unwrap();
    }

    #[test]
    fn distances() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "abc"), 3);
    }
}
