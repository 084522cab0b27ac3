//! The query by which a client claims a session of an export, and the name of the context that grants it. Ours alone:
//! a stranger's server ignores the query.
//!
//! ```text
//!   client   aerogel:session=gateway-7/42 ──►   a name, and an epoch above all earlier ones of this client
//!            aerogel:session=…/42/after=41 ──►  the same, continuing the session of this epoch
//!            aerogel:session=…/42/shared ──►    the same, beside shared sessions of other clients
//!   server   ◄── aerogel:volume=<32 digits>     the volume that has the name of the export
//! ```
//!
//! Before the server answers GO, it has recorded the epoch, closed the sessions of earlier epochs, and waited until
//! their writes have ended. It refuses an epoch that is not above the recorded one, and a second client while a session
//! is open, unless both are shared.
//!
//! A client that continues a session has content of the export in its cache, perhaps newer than the server's. If
//! another client was admitted meanwhile, that content is outdated: the server answers GO with ERR_INVALID, and the
//! client must not write it.

use std::fmt;

const QUERY: &str = "aerogel:session=";
/// The end of a query for a shared session.
const SHARED: &str = "/shared";
/// What precedes the epoch of the session that a query continues.
const AFTER: &str = "/after=";
const CONTEXT: &str = "aerogel:volume=";
/// The longest name of a client, bytes.
const NAME_BYTES_MAX: usize = 64;

/// A claim to a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// The client: 1 to 64 letters, digits, '-', '_' and '.'.
    pub client: String,
    /// Above those of all earlier sessions of the client.
    pub epoch: u64,
    /// The epoch of the client's last session that may have written, if it relies on what it has cached since.
    pub after: Option<u64>,
    /// Other clients may have shared sessions at the same time.
    pub shared: bool,
}

impl Claim {
    /// Reads a query of SET_META_CONTEXT.
    pub fn parse(query: &[u8]) -> Option<Claim> {
        let (client, rest) = std::str::from_utf8(query).ok()?.strip_prefix(QUERY)?.split_once('/')?;
        let (epoch, shared) = rest.strip_suffix(SHARED).map_or((rest, false), |epoch| (epoch, true));
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = (1..=NAME_BYTES_MAX).contains(&client.len()) && client.bytes().all(is_letter);
        let number = |text: &str| text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        let (epoch, after) = match epoch.split_once(AFTER) {
            Some((epoch, after)) => (number(epoch)?, Some(number(after)?)),
            None => (number(epoch)?, None),
        };
        is_name.then(|| Claim { client: client.into(), epoch, after, shared })
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{QUERY}{}/{}", self.client, self.epoch)?;
        self.after.map_or(Ok(()), |after| write!(f, "{AFTER}{after}"))?;
        f.write_str(if self.shared { SHARED } else { "" })
    }
}

/// The name of the context that grants a claim to this volume.
pub(super) fn context(volume: u128) -> String {
    format!("{CONTEXT}{volume:032x}")
}

/// The volume of such a context.
pub(super) fn volume(context: &[u8]) -> Option<u128> {
    let digits = std::str::from_utf8(context).ok()?.strip_prefix(CONTEXT)?;
    let is_hex = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(digits, 16).expect("32 digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_contexts_come_back() {
        for (after, shared) in [(None, false), (None, true), (Some(7), false), (Some(7), true)] {
            let claim = Claim { client: "gateway-7.b_c".into(), epoch: u64::MAX, after, shared };
            assert_eq!(Claim::parse(claim.to_string().as_bytes()), Some(claim));
        }
        for query in ["aerogel:session=", "aerogel:session=a", "aerogel:session=/1", "aerogel:session=a/", "x:y"] {
            assert_eq!(Claim::parse(query.as_bytes()), None, "{query}");
        }
        for query in ["aerogel:session=a b/1", "aerogel:session=a/+1", "aerogel:session=a/18446744073709551616"] {
            assert_eq!(Claim::parse(query.as_bytes()), None, "{query}");
        }
        for query in ["aerogel:session=a/shared", "aerogel:session=a/1/", "aerogel:session=a/1/shared/shared"] {
            assert_eq!(Claim::parse(query.as_bytes()), None, "{query}");
        }
        for query in ["a/1/after=", "a/1/after=x", "a/1/shared/after=0", "a/after=1", "a/2/after=1/after=1"] {
            assert_eq!(Claim::parse(format!("aerogel:session={query}").as_bytes()), None, "{query}");
        }
        assert_eq!(Claim::parse(format!("aerogel:session={}/1", "a".repeat(65)).as_bytes()), None);
        assert_eq!(volume(context(7 << 100).as_bytes()), Some(7 << 100));
        assert_eq!(volume(b"aerogel:volume=+0000000000000000000000000000001"), None);
    }
}
