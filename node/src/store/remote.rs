//! An export on another server as the data of one volume, or several over which it is striped: what its specification
//! says of them.
//!
//! The export has no file here. Its size and abilities are recorded when the volume is created, so that the volume can
//! be opened while its server is away.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use engine::control::{LEGS_MAX, STRIPE_UNITS, StripeSpec, UpstreamSpec};
use engine::ids::VolumeId;
use engine::nbd::{NotUri, Uri};
use engine::units::{BLOCK, SECTOR};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::quantity::{Name, Size, Time, as_text};
use crate::tls::ClientFiles;
use crate::upstream::Target;

/// How long a request waits for a server that is away: longer than a restart, shorter than most clients' patience.
pub const DEADLINE_DEFAULT: Time = Time(Duration::from_secs(60));
/// Permitted deadlines: a connection takes some time, and clients are to hear of a failure within the hour.
const DEADLINES: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
/// Connections if nothing is said: servers with a thread for each connection gain from some, ours needs one.
pub const CONNECTIONS_DEFAULT: u32 = 4;
/// Connections at most; the machine of the upstream has a table of them.
const CONNECTIONS_MAX: u32 = 16;
/// Requests that are outstanding at most: enough for a round trip of 1 ms at 100,000 requests a second.
const WINDOW: u32 = 128;
/// What is added to the stored epoch at least, since the sessions after it are not stored. The wall clock, in
/// milliseconds, runs faster than sessions are opened; this is for a clock that was set back.
const EPOCH_STEP: u64 = 1_000_000;
/// Bytes of the name of a client at most.
const CLIENT_BYTES_MAX: usize = 64;
/// Characters of a volume's UUID in it.
const CLIENT_UUID_LETTERS: usize = 8;
/// Characters of a volume's name in it, if the host's name needs the rest.
const CLIENT_VOLUME_LETTERS: usize = 27;

/// The address of an export, as it is typed and stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportUri(pub Uri);

impl FromStr for ExportUri {
    type Err = NotUri;

    fn from_str(text: &str) -> Result<ExportUri, NotUri> {
        text.parse().map(ExportUri)
    }
}

impl fmt::Display for ExportUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

as_text!(ExportUri);

/// The addresses of one export or more: as text, or as a list of texts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exports(pub Vec<ExportUri>);

impl Serialize for Exports {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [one] => one.serialize(to),
            several => several.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Exports {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Exports, D::Error> {
        #[derive(Deserialize)]
        #[serde(
            untagged,
            expecting = "an export is a text such as \"nbd://HOST:PORT/NAME\", several are a list of texts"
        )]
        enum Either {
            One(String),
            Several(Vec<String>),
        }
        let texts = match Either::deserialize(from)? {
            Either::One(text) => vec![text],
            Either::Several(texts) => texts,
        };
        let exports = texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom));
        exports.collect::<Result<_, D::Error>>().map(Exports)
    }
}

/// How the cache of a volume on another server and that server's cache go together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Tiers {
    /// Each keeps what it has used last: most of what is here is there, too.
    #[default]
    Lru,
    /// The server drops what it has sent, and takes what is evicted here (DEMOTE).
    Demote,
}

impl Tiers {
    fn is_default(&self) -> bool {
        *self == Tiers::default()
    }
}

impl From<Tiers> for engine::control::Tiers {
    fn from(tiers: Tiers) -> Self {
        match tiers {
            Tiers::Lru => Self::Lru,
            Tiers::Demote => Self::Demote,
        }
    }
}

/// A setting that is out of bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RemoteError {
    #[error("an upstream deadline is from {} to {}, not {_0}", Time(*DEADLINES.start()), Time(*DEADLINES.end()))]
    Deadline(Time),
    #[error("an upstream has 1 to {CONNECTIONS_MAX} connections, not {0}")]
    Connections(u32),
    #[error("the smallest block of an upstream is {SECTOR} or {BLOCK} bytes, not {0}")]
    Block(u32),
    #[error(
        "a stripe unit is a power of two from {} to {}, not {_0}",
        Size(*STRIPE_UNITS.start()),
        Size(*STRIPE_UNITS.end())
    )]
    Unit(Size),
    #[error("a volume is striped over 2 to {LEGS_MAX} exports, not {0}")]
    Members(usize),
    #[error(
        "a volume striped over its exports in units of {unit} has {expected}, not {size}: the specification was edited"
    )]
    Parts { size: Size, unit: Size, expected: Size },
}

/// The export in a volume's specification, and how it is used.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remote {
    /// Its address.
    pub from: ExportUri,
    /// For TLS: the directory with the certificates of the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_certificates: Option<PathBuf>,
    /// For TLS: the name in the server's certificate, unless it is that of the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_hostname: Option<String>,
    /// The volume that the export was at creation, if its server is one of ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<Uuid>,
    /// Whether other clients may use the export at the same time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// How long a request waits for a server that is away.
    pub deadline: Time,
    /// Connections, if the server permits several.
    pub connections: u32,
    /// No session had a later epoch when the volume was opened last; 0 if it never was.
    #[serde(default)]
    pub epoch: u64,
    /// Whether its sessions have leases: a cluster has issued the epoch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leased: bool,
    /// Whether the server zeroes ranges without their content being sent.
    #[serde(default)]
    pub zeroes: bool,
    /// Its size, bytes, if it has a part of a striped volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Offsets and lengths of requests are multiples of it, bytes: 512 or 4096.
    pub block: u32,
    /// Whether the server refuses writes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Whether it is accepted that the server cannot flush.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_flush: bool,
    /// Whether the server is to take what the cache evicts.
    #[serde(default, skip_serializing_if = "Tiers::is_default")]
    pub tiers: Tiers,
}

impl Remote {
    /// Checks what an operator can set.
    pub fn check(&self) -> Result<(), RemoteError> {
        if !DEADLINES.contains(&self.deadline.0) {
            return Err(RemoteError::Deadline(self.deadline));
        }
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            return Err(RemoteError::Connections(self.connections));
        }
        match u64::from(self.block) {
            SECTOR | BLOCK => Ok(()),
            _ => Err(RemoteError::Block(self.block)),
        }
    }

    /// The same with an epoch that is later than all before.
    pub fn later(&self, now: SystemTime) -> Remote {
        if self.leased {
            // It was issued for one opening: with a second one, servers refuse it.
            return self.clone();
        }
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Remote { epoch: (self.epoch + EPOCH_STEP).max(now.as_millis() as u64), ..self.clone() }
    }

    /// Where its server is, and the certificates for it.
    pub fn target(&self) -> Target {
        let uri = self.from.0.clone();
        let host = self.tls_hostname.clone().unwrap_or_else(|| uri.host().to_owned());
        let tls = self.tls_certificates.clone().filter(|_| uri.tls);
        Target { tls: tls.map(|directory| ClientFiles { directory, host }), uri }
    }

    /// What the disk's engine is told; `uuid` tells the gateway from others, `size` is that of its volume.
    pub fn for_engine(&self, name: &Name, uuid: Uuid, size: u64) -> UpstreamSpec {
        UpstreamSpec {
            name: self.from.0.name.clone(),
            size: self.size.unwrap_or(size),
            volume: self.volume.map(|volume| volume.as_u128()),
            client: client_of(name, uuid),
            epoch: self.epoch,
            connections: self.connections,
            window: WINDOW,
            deadline_ns: self.deadline.0.as_nanos() as u64,
            unsafe_without_flush: self.without_flush,
            tls: self.from.0.tls,
            is_shared: self.shared,
            is_leased: self.leased,
            tiers: self.tiers.into(),
        }
    }
}

/// The stripe unit if none is named: as large as the requests of many clients, so that larger ones go to several
/// servers and small ones to one.
pub const STRIPE_UNIT_DEFAULT: Size = Size(64 << 10);

/// How a volume is striped over several exports.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stripes {
    /// Bytes of a unit.
    pub unit: u64,
    /// The exports after the first one, in order.
    pub others: Vec<Remote>,
}

impl Stripes {
    /// The size of a volume that is striped over exports of these sizes, in whole units of each.
    pub fn size_over(unit: u64, members: impl ExactSizeIterator<Item = u64>) -> u64 {
        let count = members.len() as u64;
        members.min().unwrap_or(0) / unit * unit * count
    }

    /// Checks a unit.
    pub fn check_unit(unit: u64) -> Result<(), RemoteError> {
        let is_good = unit.is_power_of_two() && STRIPE_UNITS.contains(&unit);
        if is_good { Ok(()) } else { Err(RemoteError::Unit(Size(unit))) }
    }

    /// Checks how many exports there are.
    pub fn check_count(members: usize) -> Result<(), RemoteError> {
        if (2..=LEGS_MAX).contains(&members) { Ok(()) } else { Err(RemoteError::Members(members)) }
    }

    /// Checks that a volume of `size` bytes is striped over `first` and the others.
    pub fn check(&self, first: &Remote, size: u64) -> Result<(), RemoteError> {
        Stripes::check_unit(self.unit)?;
        Stripes::check_count(1 + self.others.len())?;
        self.others.iter().try_for_each(Remote::check)?;
        let members = std::iter::once(first).chain(&self.others);
        let sizes: Vec<u64> = members.map(|member| member.size.unwrap_or(0)).collect();
        let expected = Stripes::size_over(self.unit, sizes.into_iter());
        if expected == size {
            return Ok(());
        }
        Err(RemoteError::Parts { size: Size(size), unit: Size(self.unit), expected: Size(expected) })
    }

    /// The same with epochs that are later than all before.
    pub fn later(&self, now: SystemTime) -> Stripes {
        Stripes { others: self.others.iter().map(|other| other.later(now)).collect(), ..self.clone() }
    }

    /// What the disk's engine is told: see [`Remote::for_engine`]. The others have these numbers.
    pub fn for_engine(&self, name: &Name, uuid: Uuid, numbers: &[VolumeId]) -> StripeSpec {
        let others = self.others.iter().map(|other| other.for_engine(name, uuid, 0));
        StripeSpec { unit: self.unit, others: numbers.iter().copied().zip(others).collect() }
    }
}

/// The name by which a server of ours knows a gateway volume of this host.
pub fn client_of(volume: &Name, uuid: Uuid) -> String {
    client(&rustix::system::uname().nodename().to_string_lossy(), volume, uuid)
}

/// The name by which a server of ours knows a gateway volume: letters, digits, '-', '_' and '.'. An operator reads
/// there which host has the export; the UUID makes it unique.
fn client(host: &str, volume: &Name, uuid: Uuid) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let room = CLIENT_BYTES_MAX - CLIENT_UUID_LETTERS - 2;
    let host = host.split('.').next().unwrap_or_default();
    let letters = volume.as_str().len().min(CLIENT_VOLUME_LETTERS.max(room.saturating_sub(host.chars().count())));
    let host: String = host.chars().map(plain).take(room - letters).collect();
    format!("{host}.{}.{}", &volume.as_str()[..letters], &uuid.simple().to_string()[..CLIENT_UUID_LETTERS])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote() -> Remote {
        Remote {
            from: "nbd://nas:10809/db".parse().unwrap(),
            tls_certificates: None,
            tls_hostname: None,
            volume: None,
            shared: false,
            deadline: DEADLINE_DEFAULT,
            connections: CONNECTIONS_DEFAULT,
            epoch: 0,
            leased: false,
            zeroes: true,
            size: None,
            block: 512,
            read_only: false,
            without_flush: false,
            tiers: Tiers::Lru,
        }
    }

    #[test]
    fn epochs_grow_whatever_the_clock_says() {
        let at = |ms| SystemTime::UNIX_EPOCH + Duration::from_millis(ms);
        let first = remote().later(at(1_700_000_000_000));
        assert_eq!(first.epoch, 1_700_000_000_000);
        assert_eq!(first.later(at(5)).epoch, first.epoch + EPOCH_STEP, "the clock was set back");
        assert_eq!(first.later(SystemTime::UNIX_EPOCH - Duration::from_secs(1)).epoch, first.epoch + EPOCH_STEP);
        assert_eq!(first.later(at(1_800_000_000_000)).epoch, 1_800_000_000_000);
    }

    #[test]
    fn a_client_is_named_readably_and_within_bounds() {
        let uuid = Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        let named = |host: &str, volume: &str| client(host, &volume.parse().unwrap(), uuid);
        assert_eq!(named("gw1", "db"), "gw1.db.01234567");
        assert_eq!(named("gw1.example.org", "db"), "gw1.db.01234567");
        assert_eq!(named("böse/host", "db"), "b-se-host.db.01234567");
        let long = "x".repeat(63);
        for (host, volume) in [("h", long.as_str()), (&long, "v"), (&long, &long), ("", &long)] {
            let name = named(host, volume);
            assert!(name.len() <= CLIENT_BYTES_MAX && name.ends_with(".01234567"), "{name}");
            assert!(name.contains(&volume[..volume.len().min(CLIENT_VOLUME_LETTERS)]), "{name}");
        }
    }

    #[test]
    fn what_is_out_of_bounds() {
        assert_eq!(remote().check(), Ok(()));
        let time = |text: &str| text.parse::<Time>().unwrap();
        for deadline in ["999ms", "61m", "0s"].map(time) {
            assert_eq!(Remote { deadline, ..remote() }.check(), Err(RemoteError::Deadline(deadline)));
        }
        for connections in [0, 17] {
            assert_eq!(Remote { connections, ..remote() }.check(), Err(RemoteError::Connections(connections)));
        }
        assert_eq!(Remote { block: 1024, ..remote() }.check(), Err(RemoteError::Block(1024)));
        assert!(RemoteError::Deadline(time("61m")).to_string().contains("from 1s to 60m"));
    }
}
