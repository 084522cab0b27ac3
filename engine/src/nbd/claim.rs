//! The query by which a client claims a session of an export, and the name of the context that grants it. Ours alone:
//! a stranger's server ignores the query.
//!
//! ```text
//!   client   aerogel:session=gateway-7/42 ──►   a name, and an epoch above all earlier ones of this client
//!            aerogel:session=…/42/after=41 ──►  the same, continuing the session of this epoch
//!            aerogel:session=…/42/shared ──►    the same, beside shared sessions of other clients
//!            aerogel:session=…/42/lease ──►     the same, with a lease
//!   server   ◄── aerogel:volume=<32 digits>     the volume that has the name of the export
//!            ◄── aerogel:lease=5000             how long the lease is, in ms
//! ```
//!
//! Before the server answers GO, it has recorded the epoch, closed the sessions of earlier epochs, and waited until
//! their writes have ended. It refuses an epoch that is not above the recorded one, and a second client while a session
//! is open, unless both are shared.
//!
//! A client that continues a session has content of the export in its cache, perhaps newer than the server's. If
//! another client was admitted meanwhile, that content is outdated: the server answers GO with ERR_INVALID, and the
//! client must not write it.
//!
//! A session without a lease lasts as long as its connections. One with a lease lasts until no request of it has
//! arrived for that time, whether or not its connections are open. So another client can be admitted while the first
//! one is stopped, and the first one knows when: it uses nothing of the export, not even its cache, from the end of the
//! lease on, counted from the time at which it sent the latest request that was answered. Epochs of sessions with
//! leases are compared across clients: the cluster issues their upper bits ([`COUNTED_BITS`]).

use std::fmt;

const QUERY: &str = "aerogel:session=";
/// The end of a query for a shared session.
const SHARED: &str = "/shared";
/// The end of a query for a session with a lease.
const LEASED: &str = "/lease";
/// What precedes the epoch of the session that a query continues.
const AFTER: &str = "/after=";
const CONTEXT: &str = "aerogel:volume=";
const LEASE: &str = "aerogel:lease=";
/// Leases that a client accepts, ms. A shorter one could not be renewed in time, a longer one is not meant.
const LEASES_MS: std::ops::RangeInclusive<u64> = 100..=600_000;
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
    /// It is to have a lease.
    pub leased: bool,
}

/// The lower bits of the epoch of a session with a lease. The client increments them with each of its sessions, and
/// begins fewer sessions than they can count. The upper bits are a number that the cluster issues to one client at a
/// time.
pub const COUNTED_BITS: u32 = 24;

impl Claim {
    /// Whether both are of the same client. Without a lease anybody can claim any name and epoch, so a client with a
    /// lease is another one than that of the same name without.
    pub fn is_by_client_of(&self, other: &Claim) -> bool {
        (&self.client, self.leased) == (&other.client, other.leased)
    }

    /// Whether the server's latest epoch shows that the cluster has issued a number to another client since: then what
    /// this client has cached is outdated. If only the lower bits are too low, the claim is refused, but the client's
    /// next session is admitted. That happens when the first connection of a session ends before the second one claims.
    pub fn is_outdated_by(&self, latest: u64) -> bool {
        self.leased && self.epoch >> COUNTED_BITS < latest >> COUNTED_BITS
    }

    /// Reads a query of SET_META_CONTEXT.
    pub fn parse(query: &[u8]) -> Option<Claim> {
        let (client, rest) = std::str::from_utf8(query).ok()?.strip_prefix(QUERY)?.split_once('/')?;
        let (rest, leased) = rest.strip_suffix(LEASED).map_or((rest, false), |rest| (rest, true));
        let (epoch, shared) = rest.strip_suffix(SHARED).map_or((rest, false), |epoch| (epoch, true));
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = (1..=NAME_BYTES_MAX).contains(&client.len()) && client.bytes().all(is_letter);
        let number = |text: &str| text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
        let (epoch, after) = match epoch.split_once(AFTER) {
            Some((epoch, after)) => (number(epoch)?, Some(number(after)?)),
            None => (number(epoch)?, None),
        };
        // A shared session excludes nobody, so it needs no lease.
        (is_name && !(shared && leased)).then(|| Claim { client: client.into(), epoch, after, shared, leased })
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{QUERY}{}/{}", self.client, self.epoch)?;
        self.after.map_or(Ok(()), |after| write!(f, "{AFTER}{after}"))?;
        f.write_str(if self.shared { SHARED } else { "" })?;
        f.write_str(if self.leased { LEASED } else { "" })
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

/// The name of the context that grants a lease of so long.
pub(super) fn lease_context(lease_ms: u64) -> String {
    format!("{LEASE}{lease_ms}")
}

/// The lease of such a context.
pub(super) fn lease_ms(context: &[u8]) -> Option<u64> {
    let ms = std::str::from_utf8(context).ok()?.strip_prefix(LEASE)?.parse().ok()?;
    LEASES_MS.contains(&ms).then_some(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_with_a_lease_is_outdated_once_a_later_number_was_issued() {
        let claim = |text: &str| Claim::parse(format!("aerogel:session={text}").as_bytes()).unwrap();
        let number = |issued: u64, counted: u64| issued << COUNTED_BITS | counted;
        let leased = claim(&format!("a/{}/lease", number(3, 2)));
        assert!(leased.is_outdated_by(number(4, 0)));
        assert!(!leased.is_outdated_by(number(3, 2)), "a late connection of its latest session");
        assert!(!leased.is_outdated_by(number(3, 9)));
        assert!(!claim("a/1").is_outdated_by(u64::MAX), "without leases, epochs are each client's own");
    }

    #[test]
    fn queries_and_contexts_come_back() {
        for (shared, leased) in [(false, false), (true, false), (false, true)] {
            for after in [None, Some(7)] {
                let claim = Claim { client: "gateway-7.b_c".into(), epoch: u64::MAX, after, shared, leased };
                assert_eq!(Claim::parse(claim.to_string().as_bytes()), Some(claim));
            }
        }
        assert_eq!(Claim::parse(b"aerogel:session=a/1/shared/lease"), None);
        assert_eq!(lease_ms(lease_context(5000).as_bytes()), Some(5000));
        for lease in ["99", "600001", "", "-1", "x"] {
            assert_eq!(lease_ms(format!("aerogel:lease={lease}").as_bytes()), None, "{lease}");
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
