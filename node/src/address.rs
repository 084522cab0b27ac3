//! Where to listen: `unix:PATH` or `tcp:HOST:PORT`; and listening there, with stale sockets replaced and live ones not.

use std::fmt;
use std::net::ToSocketAddrs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, UnixListener};

/// Bytes of a Unix socket's path that the kernel takes, without the final zero.
const UNIX_PATH_BYTES_MAX: usize = 107;

/// An address to listen at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A host and a port.
    Tcp(String, u16),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let wrong = || format!("'{text}' is not an address; write unix:PATH or tcp:HOST:PORT");
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
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

/// A listener of either kind.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket.
    Unix(UnixListener),
    /// A TCP socket.
    Tcp(TcpListener),
}

impl Address {
    /// Listens. Who may connect from other hosts is a decision of its own: it needs `allow_remote`.
    pub async fn listen(&self, allow_remote: bool) -> anyhow::Result<Listener> {
        match self {
            Address::Unix(path) => listen_unix(path, 0o660).map(Listener::Unix),
            Address::Tcp(host, port) => {
                let addresses: Vec<_> = (host.as_str(), *port)
                    .to_socket_addrs()
                    .with_context(|| format!("cannot resolve the host of {self}"))?
                    .collect();
                if !allow_remote && addresses.iter().any(|a| !a.ip().is_loopback()) {
                    bail!(
                        "{self} can be reached from other hosts, and neither NBD nor HTTP is encrypted yet: listen at \
                         127.0.0.1, or allow it with --allow-remote (allow_remote = true in the configuration)"
                    );
                }
                TcpListener::bind(&addresses[..]).await.map(Listener::Tcp).with_context(|| {
                    format!("cannot listen at {self} (does another server run there? name other addresses with --nbd and --http)")
                })
            }
        }
    }
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

/// Listens at a Unix socket with these permissions. A socket file that nobody answers at is replaced.
pub fn listen_unix(path: &Path, mode: u32) -> anyhow::Result<UnixListener> {
    check_unix_path(path)?;
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        found => Some(found.with_context(|| format!("cannot look at {}", path.display()))?),
    };
    if let Some(found) = found {
        if !found.file_type().is_socket() {
            bail!("{} exists and is not a socket: move it away or name another path", path.display());
        }
        match UnixStream::connect(path) {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
            Ok(_) => bail!("another process listens at {}: stop it or name another path", path.display()),
            Err(error) => bail!(
                "whether another process listens at {} cannot be found out ({error}): remove it or name another path",
                path.display()
            ),
        }
        std::fs::remove_file(path).with_context(|| format!("cannot replace the stale socket {}", path.display()))?;
    }
    let listener = UnixListener::bind(path).with_context(|| format!("cannot listen at unix:{}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .with_context(|| format!("cannot set the permissions of {}", path.display()))?;
    Ok(listener)
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

    #[tokio::test]
    async fn stale_sockets_are_replaced_and_live_ones_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.sock");
        let live = listen_unix(&path, 0o600).unwrap();
        assert!(listen_unix(&path, 0o600).unwrap_err().to_string().contains("another process listens"));
        drop(live);
        listen_unix(&path, 0o600).unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "mine").unwrap();
        assert!(listen_unix(&file, 0o600).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    }

    #[tokio::test]
    async fn long_paths_and_remote_addresses_are_refused_with_the_fix() {
        let long = Address::Unix(PathBuf::from("x".repeat(108)));
        assert!(long.listen(false).await.unwrap_err().to_string().contains("shorter"));
        let remote: Address = "tcp:0.0.0.0:0".parse().unwrap();
        assert!(remote.listen(false).await.unwrap_err().to_string().contains("--allow-remote"));
        remote.listen(true).await.unwrap();
    }
}
