//! NBD URIs (NetworkBlockDevice/nbd, `doc/uri.md`): `nbd://host:port/name` and `nbd+unix:///name?socket=path`,
//! with TLS `nbds`.

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
        let place = match scheme {
            "nbd" if host.is_empty() => Place::Tcp(format!("localhost:{PORT}")),
            "nbd" if host.rsplit(']').next().is_some_and(|end| end.contains(':')) => Place::Tcp(host.into()),
            "nbd" => Place::Tcp(format!("{host}:{PORT}")),
            "nbd+unix" => {
                let path = query.split('&').find_map(|pair| pair.strip_prefix("socket=")).ok_or_else(wrong)?;
                Place::Unix(unescaped(path).filter(|path| !path.is_empty()).ok_or_else(wrong)?.into())
            }
            _ => return Err(wrong()),
        };
        Ok(Uri { text: text.into(), place, name, tls })
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
        for wrong in ["", "db", "http://a/b", "nbd+unix:///db", "nbd+unix:///db?socket=", "nbd://h/%zz"] {
            assert!(wrong.parse::<Uri>().is_err(), "{wrong}");
        }
    }
}
