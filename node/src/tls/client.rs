//! TLS to the servers of gateway volumes, after STARTTLS.
//!
//! ```text
//!   DIR/ca-cert.pem        authorities of servers          named as qemu, libnbd and nbdkit name them
//!   DIR/client-cert.pem    our certificate                 both or neither
//!   DIR/client-key.pem     its key
//! ```
//!
//! The files are read anew for each connection, so that certificates can be replaced at any time.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, anyhow};
use futures::FutureExt;
use rustls::client::Resumption;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::certificates::{notice_expiry, read_certificates};
use super::{Pump, Threads, socket_pair};
use crate::socket::Socket;

/// The certificates of a gateway volume, and the name of its server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientFiles {
    /// The directory.
    pub directory: PathBuf,
    /// A name that the server's certificate must have.
    pub host: String,
}

/// Why there is no TLS with a server.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{0}")]
    Files(String),
    #[error("'{0}' is neither a host name nor an address, so no certificate can have it")]
    Name(String),
    #[error("its certificate is not signed by an authority in {}", .0.join(AUTHORITIES).display())]
    Authority(PathBuf),
    #[error("its certificate is for other names than '{0}'")]
    OtherName(String),
    #[error("it refuses our TLS handshake, or the client certificate ({0})")]
    Refused(String),
    #[error("TLS failed: {0}")]
    Handshake(String),
}

/// How long a server may take for the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const AUTHORITIES: &str = "ca-cert.pem";
const CERTIFICATE: &str = "client-cert.pem";
const KEY: &str = "client-key.pem";

/// A connection over TLS.
#[derive(Debug)]
pub struct Encrypted {
    /// The other end of the pump.
    pub socket: OwnedFd,
    /// Set when the connection ends because of an error in TLS. With TLS 1.3 a server refuses a certificate only after
    /// the handshake.
    pub broken: Arc<OnceLock<TlsError>>,
}

impl ClientFiles {
    /// Performs the TLS handshake on a connection on which the server has agreed to STARTTLS.
    pub async fn encrypt<S: Socket>(&self, stream: S, gate: Arc<Semaphore>) -> Result<Encrypted, TlsError> {
        let name = self.host.clone();
        let name = ServerName::try_from(name).map_err(|_| TlsError::Name(self.host.clone()))?;
        let files = self.clone();
        let in_files = |error: anyhow::Error| TlsError::Files(format!("{error:#}"));
        let read = tokio::task::spawn_blocking(move || files.read()).await.map_err(anyhow::Error::from);
        let connector = TlsConnector::from(read.and_then(|read| read).map_err(in_files)?);
        let threads = Threads::get().map_err(in_files)?;
        let socket = stream.detach().map_err(|error| self.explain(&error))?;
        let handshake = async move {
            let (socket, connection) = connector.connect(name, S::attach(socket)?).await?.into_inner();
            Ok((socket.detach()?, connection))
        };
        // The task goes on when the caller gives up, so it has a time limit of its own.
        let handshake =
            timeout(HANDSHAKE_TIMEOUT, handshake).map(|shaken| shaken.unwrap_or_else(|late| Err(late.into())));
        let shaken = threads.handshakes.spawn(handshake).await.map_err(io::Error::other);
        let (socket, connection) = shaken.and_then(|shaken| shaken).map_err(|error| self.explain(&error))?;
        let (disk, ours) = socket_pair().map_err(|error| self.explain(&error))?;
        let broken = Arc::new(OnceLock::new());
        let (told, files) = (broken.clone(), self.clone());
        threads.pumps.spawn(async move {
            // Sockets must be registered with the runtime of the pumps.
            let pump = async { Pump::new(S::attach(socket)?, connection, UnixStream::from_std(ours)?) };
            match pump.await {
                Ok(pump) => pump.run_to_server(gate, |error| _ = told.set(files.explain(error))).await,
                Err(error) => _ = told.set(files.explain(&error)),
            }
        });
        Ok(Encrypted { socket: disk.into(), broken })
    }

    /// The reason of a failure in words that tell what to do.
    fn explain(&self, error: &io::Error) -> TlsError {
        let reason = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
        match reason {
            Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) => {
                TlsError::Authority(self.directory.clone())
            }
            Some(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => TlsError::OtherName(self.host.clone()),
            Some(rustls::Error::AlertReceived(alert)) if is_refusal(*alert) => TlsError::Refused(format!("{alert:?}")),
            _ => TlsError::Handshake(error.to_string()),
        }
    }

    fn read(&self) -> anyhow::Result<Arc<ClientConfig>> {
        let at = |name| self.directory.join(name);
        let mut roots = RootCertStore::empty();
        let path = at(AUTHORITIES);
        for authority in read_certificates(&path)? {
            roots.add(authority).with_context(|| format!("{} has no certificate of an authority", path.display()))?;
        }
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let builder = builder.with_root_certificates(roots);
        let (certificate, key) = (at(CERTIFICATE), at(KEY));
        let mut config = match (exists(&certificate)?, exists(&key)?) {
            (false, false) => builder.with_no_client_auth(),
            (true, false) => return Err(missing(&key, &certificate)),
            (false, true) => return Err(missing(&certificate, &key)),
            (true, true) => {
                let chain = read_certificates(&certificate)?;
                notice_expiry(&certificate, &chain[0], "servers");
                let read = PrivateKeyDer::from_pem_file(&key);
                let read = read.with_context(|| format!("cannot read a private key from {}", key.display()))?;
                builder.with_client_auth_cert(chain, read).with_context(|| {
                    format!("the certificate {} and the key {} do not match", certificate.display(), key.display())
                })?
            }
        };
        // A resumed session would survive a change of the files.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

fn exists(path: &Path) -> anyhow::Result<bool> {
    path.try_exists().with_context(|| format!("{} cannot be read", path.display()))
}

fn missing(path: &Path, beside: &Path) -> anyhow::Error {
    anyhow!("there is no {} beside {}", path.display(), beside.display())
}

/// Alerts by which a server refuses certificates, or everything.
fn is_refusal(alert: AlertDescription) -> bool {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked, CertificateUnknown,
        HandshakeFailure, NoCertificate, UnknownCA, UnsupportedCertificate,
    };
    let known = [
        AccessDenied,
        BadCertificate,
        CertificateExpired,
        CertificateRequired,
        CertificateRevoked,
        CertificateUnknown,
        HandshakeFailure,
        NoCertificate,
        UnknownCA,
        UnsupportedCertificate,
    ];
    known.contains(&alert)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_cannot_be_used_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let files = ClientFiles { directory: dir.path().into(), host: "localhost".into() };
        let wrong = || format!("{:#}", files.read().unwrap_err());
        assert!(wrong().contains("ca-cert.pem: "), "{}", wrong());
        std::fs::write(dir.path().join(AUTHORITIES), "hello").unwrap();
        assert!(wrong().contains("PEM"), "{}", wrong());
        std::fs::write(dir.path().join(AUTHORITIES), super::super::pump::tests::CERTIFICATE).unwrap();
        files.read().unwrap();
        std::fs::write(dir.path().join(CERTIFICATE), super::super::pump::tests::CERTIFICATE).unwrap();
        assert!(wrong().contains("there is no") && wrong().contains(KEY), "{}", wrong());
        std::fs::write(dir.path().join(KEY), "hello").unwrap();
        assert!(wrong().contains("cannot read a private key"), "{}", wrong());
        std::fs::write(dir.path().join(KEY), super::super::pump::tests::KEY).unwrap();
        files.read().unwrap();
    }
}
