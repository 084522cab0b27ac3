//! NBD URIs (NetworkBlockDevice/nbd, `doc/uri.md`): `nbd://host:port/name` and `nbd+unix:///name?socket=path`,
//! with TLS `nbds`. Two parameters of libnbd are understood: `tls-certificates` and `tls-hostname`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The registered port of NBD.
const PORT: u16 = 10809;

/// The address of an export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uri {
    /// The text of the URI.
    pub text: String,
    /// The address of the server.
    pub place: Place,
    /// The name of the export.
    pub name: String,
    /// Whether TLS is required.
    pub tls: bool,
    /// Parameters of TLS, if it has some.
    pub parameters: Option<Box<TlsParameters>>,
}

/// What a URI says of TLS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsParameters {
    /// The directory with the client's certificates.
    pub certificates: Option<PathBuf>,
    /// The name in the server's certificate.
    pub hostname: Option<String>,
}

impl Uri {
    /// The name of the server's host, as it is in the certificate unless something else is said.
    pub fn host(&self) -> &str {
        match &self.place {
            Place::Tcp(at) => {
                let host = at.rsplit_once(':').map_or(at.as_str(), |(host, _)| host);
                host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
            }
            Place::Unix(_) => "localhost",
        }
    }
}

/// A text is not such an address.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{0}' is not an NBD URI: write nbd://HOST:PORT/NAME, nbds://HOST:PORT/NAME or nbd+unix:///NAME?socket=PATH")]
pub struct NotUri(String);

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A server's address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// host:port.
    Tcp(String),
    /// A socket in the file system.
    Unix(PathBuf),
}

impl FromStr for Uri {
    type Err = NotUri;

    fn from_str(text: &str) -> Result<Uri, NotUri> {
        let wrong = || NotUri(text.into());
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, name) = rest.split_once('/').unwrap_or((rest, ""));
        let name = unescaped(name).ok_or_else(wrong)?;
        let (scheme, tls) = match scheme {
            "nbds" => ("nbd", true),
            "nbds+unix" => ("nbd+unix", true),
            plain => (plain, false),
        };
        let parameter = |key: &str| {
            let value = query.split('&').find_map(|pair| pair.split_once('=').filter(|(of, _)| *of == key));
            let value = value.map(|(_, value)| unescaped(value).filter(|value| !value.is_empty()).ok_or_else(wrong));
            value.transpose()
        };
        let place = match scheme {
            "nbd" if host.is_empty() => Place::Tcp(format!("localhost:{PORT}")),
            "nbd" if host.rsplit(']').next().is_some_and(|end| end.contains(':')) => Place::Tcp(host.into()),
            "nbd" => Place::Tcp(format!("{host}:{PORT}")),
            "nbd+unix" => Place::Unix(parameter("socket")?.ok_or_else(wrong)?.into()),
            _ => return Err(wrong()),
        };
        let certificates = parameter("tls-certificates")?.map(PathBuf::from);
        let found = TlsParameters { certificates, hostname: parameter("tls-hostname")? };
        let has_some = found.certificates.is_some() || found.hostname.is_some();
        Ok(Uri { text: text.into(), place, name, tls, parameters: has_some.then(|| Box::new(found)) })
    }
}

/// Decodes percent-encoding, such as `%2F`.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let plain = match byte {
            b'%' => {
                let mut digit = || (rest.next()? as char).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        };
        bytes.push(plain);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_they_are_written() {
        let parsed = |text: &str| text.parse::<Uri>().map(|uri| (uri.place, uri.name));
        let unix = |name: &str, path: &str| Ok((Place::Unix(path.into()), name.into()));
        let tcp = |name: &str, at: &str| Ok((Place::Tcp(at.into()), name.into()));
        assert_eq!(parsed("nbd+unix:///db?socket=/tmp/nbd.sock"), unix("db", "/tmp/nbd.sock"));
        assert_eq!(parsed("nbd+unix://?socket=./a%20b"), unix("", "./a b"));
        assert_eq!(parsed("nbd://127.0.0.1:99/x/y"), tcp("x/y", "127.0.0.1:99"));
        assert_eq!(parsed("nbd://[::1]/x"), tcp("x", "[::1]:10809"));
        assert!("nbds://h/x".parse::<Uri>().unwrap().tls && !"nbd://h/x".parse::<Uri>().unwrap().tls);
        let uri = "nbds://nas/x?tls-certificates=/etc/pki/a%20b&tls-hostname=storage1".parse::<Uri>().unwrap();
        let found = uri.parameters.unwrap();
        assert_eq!((found.certificates, found.hostname), (Some("/etc/pki/a b".into()), Some("storage1".into())));
        for (text, host) in
            [("nbds://nas/x", "nas"), ("nbds://[::1]:7/x", "::1"), ("nbds+unix://?socket=/s", "localhost")]
        {
            assert_eq!(text.parse::<Uri>().unwrap().host(), host);
        }
        for wrong in [
            "",
            "db",
            "http://a/b",
            "nbd+unix:///db",
            "nbd+unix:///db?socket=",
            "nbd://h/%zz",
            "nbd://h/x?tls-hostname=",
        ] {
            assert!(wrong.parse::<Uri>().is_err(), "{wrong}");
        }
    }
}
