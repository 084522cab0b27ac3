//! Listening addresses: `unix:PATH` or `tcp:HOST:PORT`, for NBD with options appended; and listening at them. Stale
//! sockets are replaced, sockets in use are not.

mod permissions;

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use rustix::net::sockopt;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, UnixListener};

use self::permissions::{Permissions, PermissionsError};
use crate::quantity::Time;

/// The interval of keepalive probes, after a peer was silent for [`Tcp::keepalive`]. The connection ends after
/// [`Tcp::user_timeout`], not after a number of probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Bytes of a Unix socket's path at most, without the final zero.
const UNIX_PATH_BYTES_MAX: usize = 107;

/// Why a text is not a listening address.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("'{0}' is not an address; write unix:PATH or tcp:HOST:PORT")]
    Form(String),
    #[error("'{text}' has the option {option}, which only addresses for NBD have")]
    OptionOfNbd { text: String, option: String },
    #[error("'{0}' has an option of Unix sockets: mode= and group= say who may open a file")]
    OptionOfUnix(String),
    #[error("'{0}' has an option twice: write each once")]
    Twice(String),
    #[error("'{mode}' in '{text}' is not off, on or require")]
    TlsMode { text: String, mode: String },
    #[error("in '{text}', {why}")]
    Permissions { text: String, why: PermissionsError },
}

/// A listening address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String, u16),
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let wrong = || AddressError::Form(text.into());
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            let option = path.rsplit_once(',').and_then(|(_, option)| option.split_once('='));
            if let Some((key @ ("tls" | "mode" | "group"), _)) = option {
                return Err(AddressError::OptionOfNbd { text: text.into(), option: key.into() });
            }
            return Ok(Address::Unix(path.into()));
        }
        let (host, port) = text.strip_prefix("tcp:").and_then(|rest| rest.rsplit_once(':')).ok_or_else(wrong)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        match port.parse() {
            Ok(port) if !host.is_empty() => Ok(Address::Tcp(host.to_owned(), port)),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(host, port) if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "tcp:{host}:{port}"),
        }
    }
}

impl Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// A listening address for NBD.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NbdAddress {
    /// The address.
    pub address: Address,
    /// Its TLS mode.
    pub tls: TlsMode,
    /// Who may open it, if it is a Unix socket.
    pub permissions: Permissions,
}

/// The TLS mode of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// No TLS.
    #[default]
    Off,
    /// TLS if the client asks for it.
    On,
    /// TLS required: in clear, the client can only ask for TLS.
    Require,
}

impl TlsMode {
    const ALL: [(&str, TlsMode); 3] = [("off", TlsMode::Off), ("on", TlsMode::On), ("require", TlsMode::Require)];
}

impl From<TlsMode> for engine::nbd::Tls {
    fn from(mode: TlsMode) -> Self {
        match mode {
            TlsMode::Off => Self::Off,
            TlsMode::On => Self::On,
            TlsMode::Require => Self::Require,
        }
    }
}

impl From<Address> for NbdAddress {
    fn from(address: Address) -> NbdAddress {
        NbdAddress { address, tls: TlsMode::Off, permissions: Permissions::default() }
    }
}

impl NbdAddress {
    fn new(address: Address, tls: TlsMode, permissions: Permissions) -> Result<NbdAddress, AddressError> {
        if let (Address::Tcp(..), false) = (&address, permissions.is_default()) {
            return Err(AddressError::OptionOfUnix(format!("{address}{permissions}")));
        }
        Ok(NbdAddress { address, tls, permissions })
    }
}

impl FromStr for NbdAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<NbdAddress, AddressError> {
        let (mut address, mut tls, mut mode, mut group) = (text, None, None, None);
        while let Some((before, option)) = address.rsplit_once(',') {
            let (slot, value) = match option.split_once('=') {
                Some(("tls", value)) => (&mut tls, value),
                Some(("mode", value)) => (&mut mode, value),
                Some(("group", value)) => (&mut group, value),
                // Paths may contain commas.
                _ => break,
            };
            if slot.replace(value).is_some() {
                return Err(AddressError::Twice(text.into()));
            }
            address = before;
        }
        let known = |mode: &str| TlsMode::ALL.into_iter().find(|(name, _)| *name == mode).map(|(_, mode)| mode);
        let tls = match tls {
            Some(mode) => known(mode).ok_or_else(|| AddressError::TlsMode { text: text.into(), mode: mode.into() })?,
            None => TlsMode::Off,
        };
        let wrong = |why| AddressError::Permissions { text: text.into(), why };
        let permissions = Permissions::new(mode, group).map_err(wrong)?;
        NbdAddress::new(address.parse()?, tls, permissions)
    }
}

impl fmt::Display for NbdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NbdAddress { address, tls, permissions } = self;
        write!(f, "{address}{permissions}")?;
        match TlsMode::ALL.into_iter().find(|(_, mode)| mode == tls) {
            Some((name, mode)) if mode != TlsMode::Off => write!(f, ",tls={name}"),
            _ => Ok(()),
        }
    }
}

impl Serialize for NbdAddress {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// An address in the configuration: a string or a table.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "an address such as \"unix:PATH\", or a table { address = \"tcp:HOST:PORT\", tls = \"require\" }"
)]
enum NbdAddressForm {
    Text(String),
    Table(NbdAddressTable),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NbdAddressTable {
    address: Address,
    #[serde(default)]
    tls: TlsMode,
    mode: Option<String>,
    group: Option<String>,
}

impl<'de> Deserialize<'de> for NbdAddress {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match NbdAddressForm::deserialize(from)? {
            NbdAddressForm::Text(text) => text.parse().map_err(serde::de::Error::custom),
            NbdAddressForm::Table(NbdAddressTable { address, tls, mode, group }) => {
                let permissions = Permissions::new(mode.as_deref(), group.as_deref());
                let permissions = permissions.map_err(serde::de::Error::custom)?;
                NbdAddress::new(address, tls, permissions).map_err(serde::de::Error::custom)
            }
        }
    }
}

/// When a TCP connection to a peer that does not answer is closed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tcp {
    /// Idle time after which a peer is probed; 0 disables probes.
    pub keepalive: Time,
    /// Time without acknowledgement of data or probes after which a connection ends; 0 is the system's default.
    pub user_timeout: Time,
}

impl Default for Tcp {
    fn default() -> Tcp {
        // A host that crashed or was disconnected is detected within three minutes.
        Tcp { keepalive: Time(Duration::from_secs(60)), user_timeout: Time(Duration::from_secs(120)) }
    }
}

impl Tcp {
    /// Applies the options to a listener; the connections that it accepts inherit them.
    fn apply(&self, listener: impl AsFd) -> std::io::Result<()> {
        if self.keepalive.0 > Duration::ZERO {
            sockopt::set_socket_keepalive(&listener, true)?;
            sockopt::set_tcp_keepidle(&listener, self.keepalive.0.max(Duration::from_secs(1)))?;
            sockopt::set_tcp_keepintvl(&listener, KEEPALIVE_INTERVAL)?;
        }
        let millis = u32::try_from(self.user_timeout.0.as_millis()).unwrap_or(u32::MAX);
        Ok(sockopt::set_tcp_user_timeout(&listener, millis)?)
    }
}

/// The server's directory, before it is opened.
#[derive(Clone, Copy, Debug)]
pub struct Data<'a> {
    /// Its path; it may not exist yet.
    pub directory: &'a Path,
    /// Whether no server has used it.
    pub is_new: bool,
}

/// A listener of either kind.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket.
    Unix(UnixListener),
    /// A TCP socket.
    Tcp(TcpListener),
}

impl Address {
    /// Fails where [`Address::listen`] would fail, before the server creates any file. If the server's directory is not
    /// new, a killed server may still be listening; then only [`Address::listen`] finds out whether the address is
    /// free.
    pub fn check(&self, allow_remote: bool, data: &Data<'_>) -> anyhow::Result<()> {
        match self {
            Address::Unix(path) => {
                check_unix_path(path)?;
                check_parent(path, data.directory)?;
                if data.is_new { find_stale(path).map(|_| ()) } else { Ok(()) }
            }
            Address::Tcp(..) => {
                let addresses = self.resolve(allow_remote)?;
                if data.is_new {
                    std::net::TcpListener::bind(&addresses[..]).with_context(|| self.is_taken())?;
                }
                Ok(())
            }
        }
    }

    /// Listens at the address. A TCP address that other hosts can reach needs `allow_remote`.
    pub async fn listen(&self, allow_remote: bool, tcp: &Tcp) -> anyhow::Result<Listener> {
        match self {
            Address::Unix(path) => listen_unix(path, Permissions::default().mode(), None).map(Listener::Unix),
            Address::Tcp(..) => {
                let addresses = self.resolve(allow_remote)?;
                let listener = TcpListener::bind(&addresses[..]).await.with_context(|| self.is_taken())?;
                tcp.apply(&listener).with_context(|| format!("cannot set the TCP options of {self}"))?;
                Ok(Listener::Tcp(listener))
            }
        }
    }

    fn is_taken(&self) -> String {
        format!("cannot listen at {self} (does another server run there? name other addresses with --nbd and --http)")
    }

    /// The addresses of a host, if listening at them is permitted. Empty for a Unix socket.
    fn resolve(&self, allow_remote: bool) -> anyhow::Result<Vec<SocketAddr>> {
        let Address::Tcp(host, port) = self else { return Ok(Vec::new()) };
        let found = (host.as_str(), *port).to_socket_addrs();
        let addresses: Vec<_> = found.with_context(|| format!("cannot resolve the host of {self}"))?.collect();
        if !allow_remote && addresses.iter().any(|a| !a.ip().is_loopback()) {
            bail!(
                "{self} can be reached from other hosts without encryption: listen at 127.0.0.1, for NBD append \
                 ,tls=require, or allow it with --allow-insecure-remote (allow_insecure_remote = true in the \
                 configuration)"
            );
        }
        Ok(addresses)
    }
}

impl NbdAddress {
    /// As [`Address::check`]; also checks that the group exists.
    pub fn check(&self, allow_remote: bool, data: &Data<'_>) -> anyhow::Result<()> {
        self.address.check(self.is_secure() || allow_remote, data)?;
        self.group().map(|_| ())
    }

    /// As [`Address::listen`]. Until the group is set, only the server's own user can open a Unix socket.
    pub async fn listen(&self, allow_remote: bool, tcp: &Tcp) -> anyhow::Result<Listener> {
        match &self.address {
            Address::Unix(path) => listen_unix(path, self.permissions.mode(), self.group()?).map(Listener::Unix),
            address => address.listen(self.is_secure() || allow_remote, tcp).await,
        }
    }

    fn is_secure(&self) -> bool {
        self.tls == TlsMode::Require
    }

    fn group(&self) -> anyhow::Result<Option<u32>> {
        self.permissions.group().map_err(|why| anyhow!("the listener {self} cannot be used: {why}"))
    }
}

impl Listener {
    /// The actual address, where `named` is the requested one: for port 0, the kernel chooses a port.
    pub fn actual(&self, named: &Address) -> io::Result<Address> {
        Ok(match (named, self) {
            (Address::Tcp(host, _), Listener::Tcp(listener)) => {
                Address::Tcp(host.clone(), listener.local_addr()?.port())
            }
            _ => named.clone(),
        })
    }
}

/// Refuses a path in a directory that does not exist, except in the server's own, which is created later.
fn check_parent(path: &Path, data: &Path) -> anyhow::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() && std::path::absolute(parent)? != std::path::absolute(data)? {
        bail!(
            "cannot listen at unix:{}: the directory {} does not exist: create it, or name another path",
            path.display(),
            parent.display()
        );
    }
    Ok(())
}

/// Refuses paths that do not fit into a socket address.
pub fn check_unix_path(path: &Path) -> anyhow::Result<()> {
    let bytes = path.as_os_str().len();
    if bytes > UNIX_PATH_BYTES_MAX {
        bail!(
            "the path of the Unix socket {} has {bytes} bytes, and the kernel takes at most {UNIX_PATH_BYTES_MAX}: \
             name a shorter one, or reach it by a path relative to the working directory",
            path.display()
        );
    }
    Ok(())
}

/// Listens at a Unix socket with this mode and group. Replaces a stale socket file.
pub fn listen_unix(path: &Path, mode: u32, group: Option<u32>) -> anyhow::Result<UnixListener> {
    check_unix_path(path)?;
    if find_stale(path)? {
        std::fs::remove_file(path).with_context(|| format!("cannot replace the stale socket {}", path.display()))?;
    }
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at unix:{}", path.display()))?;
    if let Err(error) = permit(path, mode, group) {
        let _ = std::fs::remove_file(path);
        return Err(error);
    }
    Ok(listener)
}

/// Whether a path is a stale socket, that is, one on which no process listens. A socket that is in use is an error, and
/// so is any other file.
fn find_stale(path: &Path) -> anyhow::Result<bool> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        found => found.with_context(|| format!("cannot look at {}", path.display()))?,
    };
    if !found.file_type().is_socket() {
        bail!("{} exists and is not a socket: move it away or name another path", path.display());
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        Ok(_) => bail!("another process listens at {}: stop it or name another path", path.display()),
        Err(error) => bail!(
            "cannot determine whether another process listens at {} ({error}): remove the socket or name another path",
            path.display()
        ),
    }
}

/// Sets the group before the mode, so that no other group can open the socket meanwhile.
fn permit(path: &Path, mode: u32, group: Option<u32>) -> anyhow::Result<()> {
    if let Some(group) = group {
        std::os::unix::fs::chown(path, None, Some(group)).with_context(|| {
            format!(
                "{} cannot be given to the group {group}: the server's user has to be root or a member of it",
                path.display()
            )
        })?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .with_context(|| format!("cannot set the permissions of {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_parse_and_print() {
        for text in ["unix:/run/a.sock", "tcp:127.0.0.1:10809", "tcp:localhost:0", "tcp:[::1]:80"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for wrong in ["", "unix:", "tcp:", "tcp::1", "tcp:host", "tcp:host:99999", "127.0.0.1:80", "/run/a.sock"] {
            assert!(wrong.parse::<Address>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_for_nbd_say_whether_they_speak_tls() {
        for text in ["unix:/run/a.sock", "tcp:[::]:10809,tls=require", "unix:/run/a.sock,tls=on"] {
            assert_eq!(text.parse::<NbdAddress>().unwrap().to_string(), text);
        }
        assert_eq!("tcp:a:1,tls=off".parse::<NbdAddress>().unwrap().to_string(), "tcp:a:1");
        assert!("tcp:a:1,tls=yes".parse::<NbdAddress>().unwrap_err().to_string().contains("'yes'"));
        let parse =
            |text: &str| toml::from_str::<toml::Table>(text).unwrap()["nbd"].clone().try_into::<Vec<NbdAddress>>();
        let two = parse(r#"nbd = ["unix:a", { address = "tcp:h:1", tls = "require" }]"#).unwrap();
        assert_eq!(two, ["unix:a".parse().unwrap(), "tcp:h:1,tls=require".parse().unwrap()]);
        assert!(parse(r#"nbd = [{ address = "tcp:h:1", tsl = "require" }]"#).is_err());
    }

    #[test]
    fn addresses_for_nbd_say_who_may_open_the_socket() {
        for text in ["unix:/run/a,b.sock,mode=0666", "unix:a,group=kvm", "unix:a,mode=0660,group=7,tls=on"] {
            assert_eq!(text.parse::<NbdAddress>().unwrap().to_string(), text);
        }
        let shuffled: NbdAddress = "unix:a,tls=on,group=7,mode=660".parse().unwrap();
        assert_eq!(shuffled.to_string(), "unix:a,mode=0660,group=7,tls=on");
        let table = r#"nbd = [{ address = "unix:a", mode = "0660", group = "7", tls = "on" }]"#;
        let mut table = toml::from_str::<toml::Table>(table).unwrap();
        assert_eq!(table.remove("nbd").unwrap().try_into::<Vec<NbdAddress>>().unwrap(), [shuffled]);
        for (wrong, why) in [
            ("unix:a,mode=0668", "mode=0668"),
            ("unix:a,mode=0666,mode=0600", "twice"),
            ("unix:a,group=", "group="),
            ("tcp:127.0.0.1:1,mode=0666", "Unix"),
            ("tcp:127.0.0.1:1,group=kvm", "Unix"),
        ] {
            let said = wrong.parse::<NbdAddress>().unwrap_err().to_string();
            assert!(said.contains(why), "{wrong}: {said}");
        }
    }

    #[tokio::test]
    async fn a_socket_has_the_mode_that_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        for (options, mode) in [("", 0o660), (",mode=0666", 0o666), (",mode=0600", 0o600)] {
            let address: NbdAddress = format!("unix:{}{options}", path.display()).parse().unwrap();
            let _listener = address.listen(false, &Tcp::default()).await.unwrap();
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, mode, "{options}");
        }
    }

    #[tokio::test]
    async fn accepted_connections_notice_peers_that_are_gone() {
        let address: Address = "tcp:127.0.0.1:0".parse().unwrap();
        let Listener::Tcp(listener) = address.listen(false, &Tcp::default()).await.unwrap() else { unreachable!() };
        let _client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (accepted, _) = listener.accept().await.unwrap();
        assert!(sockopt::socket_keepalive(&accepted).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&accepted).unwrap(), Duration::from_secs(60));
        assert_eq!(sockopt::tcp_user_timeout(&accepted).unwrap(), 120_000);
    }

    #[tokio::test]
    async fn stale_sockets_are_replaced_and_live_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let live = listen_unix(&path, 0o600, None).unwrap();
        assert!(listen_unix(&path, 0o600, None).unwrap_err().to_string().contains("another process listens"));
        drop(live);
        listen_unix(&path, 0o600, None).unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        assert!(listen_unix(&file, 0o600, None).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    }

    #[tokio::test]
    async fn long_paths_and_remote_addresses_are_refused_with_the_fix() {
        let long = Address::Unix(PathBuf::from("x".repeat(108)));
        assert!(long.listen(false, &Tcp::default()).await.unwrap_err().to_string().contains("shorter"));
        let remote: Address = "tcp:0.0.0.0:0".parse().unwrap();
        assert!(
            remote.listen(false, &Tcp::default()).await.unwrap_err().to_string().contains("--allow-insecure-remote")
        );
        remote.listen(true, &Tcp::default()).await.unwrap();
    }
}
