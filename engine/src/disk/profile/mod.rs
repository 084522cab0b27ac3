//! The profile of a device: values, each with its source. A value is measured (when, how), or overridden by an
//! operator.
//!
//! ```text
//!   plan ──► probe ──requests──► a device, real or simulated ──times──► probe ──phases──► findings ──► Profile
//!            walk (positions)                                                             statistics
//! ```
//!
//! A profile is a flat list of values whose names contain their units. So code that shows, stores or overrides a value
//! need not know its meaning. An override is stored next to the measured value, and takes precedence.
//!
//! `docs/design/profile.md` says how each value is measured, and what would make it wrong.

mod doubt;
mod findings;
mod plan;
mod probe;
pub mod statistics;
pub(crate) mod walk;

use std::collections::BTreeMap;

pub use doubt::doubt;
pub use findings::Findings;
pub use plan::{BUDGET_NS, DEPTH_MAX, SIZE_MAX};
pub use probe::{Options, PhaseTimes, Probe, Progress, Request, TooSmall};
pub use walk::Space;

use self::plan::{POSITIONS_PERCENT, RANDOM_READS, RANDOM_WRITES};

/// Reading or writing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Direction::Read => "read",
            Direction::Write => "write",
        }
    }
}

/// A quantile of a distribution: that many of a hundred values are below it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Quantile {
    /// The median.
    P50,
    /// The 95th percentile.
    P95,
    /// The 99th percentile.
    P99,
}

impl Quantile {
    /// All quantiles of a profile.
    pub const ALL: [Quantile; 3] = [Quantile::P50, Quantile::P95, Quantile::P99];

    /// The part of the values that is below the quantile.
    pub fn part(self) -> f64 {
        f64::from(self.percent()) / 100.0
    }

    fn percent(self) -> u8 {
        match self {
            Quantile::P50 => 50,
            Quantile::P95 => 95,
            Quantile::P99 => 99,
        }
    }
}

/// Identifies a value. Its text is the name of the value, with the unit at the end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Key {
    /// Whether two interleaved streams lose so much that tenants need slices (0 or 1).
    NeedsSlices,
    /// Time of the first request after a switch, minus that of the same request without one.
    SwitchCost(Quantile),
    /// Throughput of two interleaved streams together, divided by that of one.
    InterleavedEfficiency,
    /// Time of one revolution; none if the device does not rotate.
    RotationPeriod,
    /// Requests a second that a throttle admits once its burst is used up; none without such a limit.
    ThrottleRequests,
    /// Bytes a second, likewise.
    ThrottleBytes,
    /// How long a throttled device pauses between completions.
    ThrottleStall,
    /// Time of a random request of 4 KiB at depth 1.
    ServiceTime(Direction, Quantile),
    /// Time of a random read of 4 KiB that is issued as soon as 32 writes are acknowledged.
    ReadBehindWrites(Quantile),
    /// Sequential rate from a position on, which is given in hundredths of the space.
    Sequential(Direction, u8),
    /// Rate of random requests: bytes, and depth.
    Random(Direction, u32, u16),
    /// Part of the device's request time that was not the probe's; at least the others' part of its requests and bytes.
    DisturbedByOthers,
    /// The same, in the worst phase.
    DisturbedByOthersMost,
    /// Part of the time in which the disk's own volumes had requests in the device.
    DisturbedByVolumes,
    /// Part of the time in which the probe had work and waited for a CPU.
    DisturbedByProcessor,
    /// Spread of repeated measurements of one value.
    RepeatedSpread,
    /// Whether nothing is known of writes (1), because the probe must not write to the device.
    WritesUnknown,
}

/// The unit of a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Nanoseconds.
    Nanoseconds,
    /// Bytes a second.
    BytesPerSecond,
    /// Requests a second.
    RequestsPerSecond,
    /// A fraction of 1.
    Ratio,
    /// 0 or 1.
    YesNo,
}

impl Key {
    /// Every value that a profile can have.
    pub fn all() -> impl Iterator<Item = Key> {
        let directions = [Direction::Read, Direction::Write];
        let service = directions.into_iter().flat_map(|d| Quantile::ALL.map(|q| Key::ServiceTime(d, q)));
        let sequential = directions.into_iter().flat_map(|d| POSITIONS_PERCENT.map(|p| Key::Sequential(d, p)));
        let reads = RANDOM_READS.iter().map(|&(size, depth)| Key::Random(Direction::Read, size, depth));
        let writes = RANDOM_WRITES.iter().map(|&(size, depth)| Key::Random(Direction::Write, size, depth));
        let single = [
            Key::NeedsSlices,
            Key::InterleavedEfficiency,
            Key::RotationPeriod,
            Key::ThrottleRequests,
            Key::ThrottleBytes,
            Key::ThrottleStall,
            Key::DisturbedByOthers,
            Key::DisturbedByOthersMost,
            Key::DisturbedByVolumes,
            Key::DisturbedByProcessor,
            Key::RepeatedSpread,
            Key::WritesUnknown,
        ];
        let (costs, behind) = (Quantile::ALL.map(Key::SwitchCost), Quantile::ALL.map(Key::ReadBehindWrites));
        single.into_iter().chain(costs).chain(behind).chain(service).chain(sequential).chain(reads).chain(writes)
    }

    /// The unit of its number.
    pub fn unit(self) -> Unit {
        match self {
            Key::NeedsSlices | Key::WritesUnknown => Unit::YesNo,
            Key::SwitchCost(_) | Key::RotationPeriod | Key::ThrottleStall => Unit::Nanoseconds,
            Key::ServiceTime(..) | Key::ReadBehindWrites(_) => Unit::Nanoseconds,
            Key::ThrottleBytes | Key::Sequential(..) => Unit::BytesPerSecond,
            Key::ThrottleRequests | Key::Random(..) => Unit::RequestsPerSecond,
            Key::InterleavedEfficiency => Unit::Ratio,
            about_probe => {
                debug_assert!(about_probe.is_about_probe());
                Unit::Ratio
            }
        }
    }

    /// Whether it describes the measurement rather than the device.
    pub fn is_about_probe(self) -> bool {
        use Key::*;
        matches!(
            self,
            DisturbedByOthers
                | DisturbedByOthersMost
                | DisturbedByVolumes
                | DisturbedByProcessor
                | RepeatedSpread
                | WritesUnknown
        )
    }

    /// Whether it is measured by writing.
    pub fn is_of_writes(self) -> bool {
        use Key::*;
        matches!(
            self,
            ReadBehindWrites(_)
                | ServiceTime(Direction::Write, _)
                | Sequential(Direction::Write, _)
                | Random(Direction::Write, ..)
        )
    }

    /// How it is measured.
    pub fn method(self) -> &'static str {
        match self {
            Key::NeedsSlices => {
                "interleaved_efficiency_ratio below 0.9 by more than its spread, and a switch takes a tenth of a read"
            }
            Key::SwitchCost(_) => "first read of 64 KiB at a new place less the third one there, depth 1",
            Key::InterleavedEfficiency => {
                "reads of 64 KiB, depth 8, from two streams in turns against one, median of three pairs"
            }
            Key::RotationPeriod => "coherence of the times at which the same 48 places were read after random pauses",
            Key::ThrottleRequests => "random reads of 4 KiB, depth 32, after a rest: the rate once the burst is over",
            Key::ThrottleBytes => "random reads of 1 MiB, depth 8, after a rest: the rate once the burst is over",
            Key::ThrottleStall => "pause between completions under the throttle into which half of the time falls",
            Key::ServiceTime(..) => "random requests of 4 KiB, depth 1",
            Key::ReadBehindWrites(_) => "a random read of 4 KiB as soon as 32 random writes of 4 KiB are acknowledged",
            Key::Sequential(..) => "requests of 256 KiB in order, depth 8",
            Key::Random(..) => "random places, a walk with every distance",
            Key::DisturbedByOthers => "the kernel's statistics of the device less the probe's own requests",
            Key::DisturbedByOthersMost => "the same, in the phase in which it was most",
            Key::DisturbedByVolumes => "time in which the disk's thread had requests in the device",
            Key::DisturbedByProcessor => "the kernel's account of the probe's thread",
            Key::RepeatedSpread => "random reads of 4 KiB, depth 1, at three times: greatest less least by median",
            Key::WritesUnknown => "raw devices are all data: they are only read, so what writes do is not known",
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Key::NeedsSlices => f.write_str("needs_slices"),
            Key::SwitchCost(q) => write!(f, "switch_cost_p{}_ns", q.percent()),
            Key::InterleavedEfficiency => f.write_str("interleaved_efficiency_ratio"),
            Key::RotationPeriod => f.write_str("rotation_period_ns"),
            Key::ThrottleRequests => f.write_str("throttle_requests_per_s"),
            Key::ThrottleBytes => f.write_str("throttle_bytes_per_s"),
            Key::ThrottleStall => f.write_str("throttle_stall_ns"),
            Key::ServiceTime(d, q) => write!(f, "service_{}_p{}_ns", d.name(), q.percent()),
            Key::ReadBehindWrites(q) => write!(f, "service_read_behind_writes_p{}_ns", q.percent()),
            Key::Sequential(d, percent) => write!(f, "sequential_{}_at_{percent}_percent_bytes_per_s", d.name()),
            Key::Random(d, bytes, depth) => {
                write!(f, "random_{}_{bytes}_bytes_depth_{depth}_requests_per_s", d.name())
            }
            Key::DisturbedByOthers => f.write_str("disturbed_by_others_ratio"),
            Key::DisturbedByOthersMost => f.write_str("disturbed_by_others_most_ratio"),
            Key::DisturbedByVolumes => f.write_str("disturbed_by_volumes_ratio"),
            Key::DisturbedByProcessor => f.write_str("disturbed_by_processor_ratio"),
            Key::RepeatedSpread => f.write_str("repeated_spread_ratio"),
            Key::WritesUnknown => f.write_str("writes_unknown"),
        }
    }
}

/// No value has this name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a profile has no value '{0}'")]
pub struct UnknownKey(pub String);

impl std::str::FromStr for Key {
    type Err = UnknownKey;

    fn from_str(text: &str) -> Result<Key, UnknownKey> {
        Key::all().find(|key| key.to_string() == text).ok_or_else(|| UnknownKey(text.into()))
    }
}

/// A measured value.
#[derive(Clone, PartialEq, Debug)]
pub struct Measured {
    /// The number; `None` if the device has no such property.
    pub value: Option<f64>,
    /// The error: twice the standard error, as a part of the number.
    pub error_ratio: Option<f64>,
    /// Time of the measurement, seconds since 1970.
    pub at_s: u64,
    /// The method.
    pub method: String,
    /// Whether a quick probe measured it that the server started by itself.
    pub automatic: bool,
}

/// A value that an operator set.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Override {
    /// The number; `None` if the device has no such property.
    pub value: Option<f64>,
    /// Time of the override, seconds since 1970.
    pub at_s: u64,
}

/// A value from both sources.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Value {
    /// The measured value.
    pub measured: Option<Measured>,
    /// The operator's override.
    pub overridden: Option<Override>,
}

impl Value {
    /// The number in effect; `None` if there is none, or if the device has no such property.
    pub fn number(&self) -> Option<f64> {
        match (&self.overridden, &self.measured) {
            (Some(overridden), _) => overridden.value,
            (None, Some(measured)) => measured.value,
            (None, None) => None,
        }
    }
}

/// The profile of a device.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Profile {
    /// Its values. An absent one was neither measured nor set.
    pub values: BTreeMap<Key, Value>,
}

impl Profile {
    /// The number in effect for `key`.
    pub fn number(&self, key: Key) -> Option<f64> {
        self.values.get(&key).and_then(Value::number)
    }

    /// Whether tenants need slices (`docs/design/slices.md`), or can share the device by fair queueing
    /// (`docs/design/fair.md`); `None` if that is not known.
    pub fn needs_slices(&self) -> Option<bool> {
        self.number(Key::NeedsSlices).map(|number| number != 0.0)
    }

    /// The highest sequential read rate of the device, bytes a second.
    pub fn stream_bytes_per_s(&self) -> Option<u64> {
        let rates = POSITIONS_PERCENT.iter().filter_map(|&at| self.number(Key::Sequential(Direction::Read, at)));
        rates.max_by(f64::total_cmp).map(|rate| rate as u64)
    }

    /// Whether the need for slices was measured by a probe that the server started by itself.
    pub fn is_automatic(&self) -> bool {
        let value = self.values.get(&Key::NeedsSlices).filter(|value| value.overridden.is_none());
        value.and_then(|value| value.measured.as_ref()).is_some_and(|measured| measured.automatic)
    }

    /// Records the values of a probe that the server started by itself.
    pub fn take_automatic(&mut self, found: &[(Key, Finding)], at_s: u64) {
        self.take(found, at_s);
        for (key, _) in found {
            if let Some(measured) = self.values.get_mut(key).and_then(|value| value.measured.as_mut()) {
                measured.automatic = true;
            }
        }
    }

    /// Records the values of a probe. They replace measured values; overrides stay.
    pub fn take(&mut self, found: &[(Key, Finding)], at_s: u64) {
        // A probe that does not write sets this value. Earlier values of writes may then be those of another device.
        self.values.remove(&Key::WritesUnknown);
        if found.iter().any(|(key, _)| *key == Key::WritesUnknown) {
            self.values.retain(|key, value| {
                value.measured.take_if(|_| key.is_of_writes());
                *value != Value::default()
            });
        }
        for &(key, Finding { value, error_ratio }) in found {
            let measured = Measured { value, error_ratio, at_s, method: key.method().into(), automatic: false };
            self.values.entry(key).or_default().measured = Some(measured);
        }
    }

    /// Sets an override, or removes it.
    pub fn set_override(&mut self, key: Key, to: Option<Override>) {
        let value = self.values.entry(key).or_default();
        value.overridden = to;
        if *value == Value::default() {
            self.values.remove(&key);
        }
    }
}

/// The result of a probe for one value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Finding {
    /// The number; `None` if the device has no such property.
    pub value: Option<f64>,
    /// Twice the standard error, as a part of the number, if it is known.
    pub error_ratio: Option<f64>,
}

impl Finding {
    /// A number whose error is not known.
    pub fn plain(value: Option<f64>) -> Finding {
        Finding { value, error_ratio: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back_and_ends_with_its_unit() {
        for key in Key::all() {
            let name = key.to_string();
            assert_eq!(name.parse(), Ok(key));
            let unit = match key.unit() {
                Unit::Nanoseconds => "_ns",
                Unit::BytesPerSecond => "bytes_per_s",
                Unit::RequestsPerSecond => "requests_per_s",
                Unit::Ratio => "_ratio",
                Unit::YesNo => "",
            };
            assert!(name.ends_with(unit), "{name}");
        }
        assert_eq!("colour".parse::<Key>(), Err(UnknownKey("colour".into())));
    }

    /// Values of writes that a probe measured on files do not describe the raw devices that a disk has now.
    #[test]
    fn a_probe_that_writes_nothing_takes_back_what_was_known_of_writes() {
        let (read, write) = (Key::Random(Direction::Read, 4096, 1), Key::Random(Direction::Write, 4096, 1));
        let set = Key::ServiceTime(Direction::Write, Quantile::P50);
        let one = |key| (key, Finding::plain(Some(1.0)));
        let mut profile = Profile::default();
        profile.take(&[one(read), one(write), one(set)], 1);
        profile.set_override(set, Some(Override { value: Some(7.0), at_s: 2 }));
        profile.take(&[one(read), one(Key::WritesUnknown)], 3);
        assert_eq!((profile.number(read), profile.number(write), profile.number(set)), (Some(1.0), None, Some(7.0)));
        assert_eq!(profile.number(Key::WritesUnknown), Some(1.0));
        profile.take(&[one(read), one(write)], 4);
        assert_eq!((profile.number(write), profile.number(Key::WritesUnknown)), (Some(1.0), None));
    }

    #[test]
    fn an_override_goes_before_what_was_measured_and_outlives_a_probe() {
        let (key, mut profile) = (Key::RotationPeriod, Profile::default());
        let found = |value| [(key, Finding::plain(value))];
        profile.take(&found(Some(8e6)), 1);
        profile.set_override(key, Some(Override { value: None, at_s: 2 }));
        profile.take(&found(Some(9e6)), 3);
        assert_eq!(profile.number(key), None);
        profile.set_override(key, None);
        assert_eq!(profile.number(key), Some(9e6));
        profile.set_override(Key::NeedsSlices, Some(Override { value: Some(1.0), at_s: 4 }));
        assert_eq!(profile.needs_slices(), Some(true));
        profile.set_override(Key::NeedsSlices, None);
        assert_eq!(profile.values.len(), 1, "nothing stays of an override of what nobody measured");
    }
}
