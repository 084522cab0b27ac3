//! The server's certificate and the authorities of its clients. The files are read again when one changes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use anyhow::{Context, anyhow};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tracing::{info, warn};
use x509_cert::der::Decode;

use crate::config::{ClientCertificates, Tls};

/// A warning is logged when a certificate is read that expires within this time.
const EXPIRY_NOTICE: Duration = Duration::from_secs(14 * 24 * 3600);

/// Modification times and inodes, by which a change of the files is detected.
type Stamp = Vec<Option<(SystemTime, u64)>>;

/// See the module.
#[derive(Debug)]
pub struct Certificates {
    files: Files,
    current: Mutex<(Stamp, Arc<ServerConfig>)>,
}

#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    clients: Option<PathBuf>,
    optional: bool,
}

impl Certificates {
    /// Reads the certificates.
    pub fn read(config: &Tls) -> anyhow::Result<Certificates> {
        let named = |key: &str, path: &Option<PathBuf>| {
            path.clone().ok_or_else(|| {
                anyhow!("a listener with TLS needs tls.{key}: name a PEM file in [tls] of the configuration")
            })
        };
        let files = Files {
            certificate: named("certificate", &config.certificate)?,
            key: named("key", &config.key)?,
            clients: config.clients.clone(),
            optional: config.client_certificates == ClientCertificates::Optional,
        };
        let stamp = files.stamp();
        let current = Mutex::new((stamp, files.read()?));
        Ok(Certificates { files, current })
    }

    /// The certificates as they are now. If changed files cannot be used, the previous certificates stay in use.
    pub fn current(&self) -> Arc<ServerConfig> {
        let mut current = self.current.lock().expect("no one panics while holding it");
        let stamp = self.files.stamp();
        if stamp != current.0 {
            match self.files.read() {
                Ok(config) => {
                    info!(certificate = %self.files.certificate.display(), "the TLS certificates were reloaded");
                    current.1 = config;
                }
                // Logged once for each change; certificate and key are usually replaced one after the other.
                Err(error) => {
                    warn!("the changed TLS certificates cannot be used; the previous ones stay in use: {error:#}")
                }
            }
            current.0 = stamp;
        }
        current.1.clone()
    }
}

impl Files {
    fn stamp(&self) -> Stamp {
        let stamp = |path: &PathBuf| {
            let found = std::fs::metadata(path).ok()?;
            Some((found.modified().ok()?, std::os::unix::fs::MetadataExt::ino(&found)))
        };
        [Some(&self.certificate), Some(&self.key), self.clients.as_ref()].into_iter().flatten().map(stamp).collect()
    }

    fn read(&self) -> anyhow::Result<Arc<ServerConfig>> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
        let chain = read_certificates(&self.certificate)?;
        notice_expiry(&self.certificate, &chain[0], "clients");
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .with_context(|| format!("cannot read a private key from {}", self.key.display()))?;
        let builder = match &self.clients {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for authority in read_certificates(path)? {
                    let added = roots.add(authority);
                    added.with_context(|| {
                        format!(
                            "{} contains a certificate that cannot be used as a certificate authority",
                            path.display()
                        )
                    })?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = if self.optional { verifier.allow_unauthenticated() } else { verifier };
                let verifier = verifier.build();
                builder.with_client_cert_verifier(verifier.with_context(|| format!("cannot use {}", path.display()))?)
            }
        };
        let mut config = builder.with_single_cert(chain, key).with_context(|| {
            format!("the certificate {} and the key {} do not match", self.certificate.display(), self.key.display())
        })?;
        // A resumed session would survive a change of the authorities. NBD connections are long, so resumption gains
        // nothing.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// The certificates in a PEM file; at least one.
pub fn read_certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let failed = || format!("cannot read certificates from {}", path.display());
    let found: Vec<_> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect).with_context(failed)?;
    if found.is_empty() {
        return Err(anyhow!("it holds none: it has to be in PEM form").context(failed()));
    }
    Ok(found)
}

/// Logs a warning about expiry: `peers` refuse an expired certificate.
pub fn notice_expiry(path: &Path, certificate: &CertificateDer<'_>, peers: &str) {
    let Ok(parsed) = x509_cert::Certificate::from_der(certificate) else { return };
    let until = parsed.tbs_certificate.validity.not_after.to_unix_duration();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let path = path.display();
    match until.checked_sub(now) {
        None => warn!("the certificate in {path} has expired: {peers} will refuse it"),
        Some(left) if left < EXPIRY_NOTICE => {
            warn!("the certificate in {path} expires in {} hours: replace it", left.as_secs() / 3600);
        }
        Some(_) => {}
    }
}
