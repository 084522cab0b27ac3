//! The identity in a client certificate.

use std::net::IpAddr;

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::der::{Decode, Error};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use crate::peer::Identity;

/// The identity in a certificate that was verified before.
pub fn identity(certificate: &CertificateDer<'_>) -> Result<Identity, Error> {
    let certificate = Certificate::from_der(certificate)?.tbs_certificate;
    let found = certificate.get::<SubjectAltName>()?;
    let names = found.into_iter().flat_map(|(_, names)| names.0).filter_map(|name| text(&name)).collect();
    Ok(Identity::Certificate { subject: certificate.subject.to_string(), names })
}

/// A subject alternative name as text; `None` for kinds that do not identify a client.
fn text(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(name) | GeneralName::Rfc822Name(name) | GeneralName::UniformResourceIdentifier(name) => {
            Some(name.to_string())
        }
        GeneralName::IpAddress(bytes) => {
            let bytes = bytes.as_bytes();
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok().map(|ip| ip.to_string())
        }
        _ => None,
    }
}
