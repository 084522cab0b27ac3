//! Ceilings as users type them: `50MiB/s`, `read=50MiB/s,write=10MiB/s`, `500`, and how long an unused ceiling is
//! saved.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use engine::control::{BURST_NS_DEFAULT, Ceiling, IO_BYTES};
use engine::units::Nanos;
use serde::{Deserialize, Serialize};

use crate::quantity::{QuantityError, Size, Time};

/// The smallest bandwidth, bytes a second. `50` is a forgotten unit, and a client that waits for longer than 30 s for a
/// request of 128 KiB gives up.
const BANDWIDTH_LEAST: u64 = 4 << 10;
/// Bounds of the time for which an unused ceiling is saved: in a shorter time than a timer is late by, part of the
/// ceiling would be lost; for longer than a day, bursts would hardly ever end.
const BURST_LEAST: Duration = Duration::from_millis(10);
const BURST_MOST: Duration = Duration::from_secs(86_400);

/// No ceiling, as in the kernel's `io.max`.
const NONE: &str = "max";

/// Why a text is not a ceiling. The message has the remedy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CeilingError {
    #[error("'{0}' is not a bandwidth; write it as 50MiB/s, or as read=50MiB/s,write=10MiB/s: {1}")]
    Bandwidth(String, QuantityError),
    #[error("'{0}' is not a number of I/Os a second; write it as 500, or as read=500,write=100")]
    Iops(String),
    #[error(
        "a ceiling of 0 would stop the clients: write 'none' to remove the ceiling; `aerogel volume set NAME \
         --read-only on` refuses writes"
    )]
    Zero,
    #[error("the bandwidth {0} is too small: at least {least}/s; is a unit missing?", least = Size(BANDWIDTH_LEAST))]
    TooSmall(String),
    #[error("'{0}' is not a direction: write read, write or total")]
    Direction(String),
    #[error("'{0}' is given twice: give it once")]
    Twice(String),
    #[error("{0}={1} has no effect, because the total is {2}: lower it, or leave it out")]
    AboveTotal(&'static str, String, String),
    #[error(transparent)]
    Time(#[from] QuantityError),
    #[error("a burst of {0} is out of bounds: it is {least} to 24h", least = Time(BURST_LEAST))]
    Burst(Time),
}

/// Parses the ceiling of one direction; `max` is none.
type One = fn(&str) -> Result<Option<NonZeroU64>, CeilingError>;

fn parse(text: &str, one: One, show: fn(u64) -> String) -> Result<Ceiling, CeilingError> {
    let mut ceiling = Ceiling::default();
    if !text.contains('=') {
        ceiling.total = one(text.trim())?;
        return Ok(ceiling);
    }
    let mut seen = Vec::new();
    for part in text.split(',') {
        let (direction, value) = part.split_once('=').ok_or_else(|| CeilingError::Direction(part.trim().into()))?;
        let (direction, value) = (direction.trim(), value.trim());
        let place = match direction {
            "total" => &mut ceiling.total,
            "read" => &mut ceiling.read,
            "write" => &mut ceiling.write,
            other => return Err(CeilingError::Direction(other.into())),
        };
        if seen.contains(&direction) {
            return Err(CeilingError::Twice(direction.into()));
        }
        seen.push(direction);
        *place = one(value)?;
    }
    for (name, of) in [("read", ceiling.read), ("write", ceiling.write)] {
        if let Some((total, of)) = ceiling.total.zip(of).filter(|(total, of)| of > total) {
            return Err(CeilingError::AboveTotal(name, show(of.get()), show(total.get())));
        }
    }
    Ok(ceiling)
}

fn print(ceiling: &Ceiling, show: fn(u64) -> String, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Ceiling { total, read, write } = ceiling;
    if let (Some(total), None, None) = (total, read, write) {
        return f.write_str(&show(total.get()));
    }
    if !ceiling.is_some() {
        return f.write_str(NONE);
    }
    let all = [("total", total), ("read", read), ("write", write)];
    let parts = all.into_iter().filter_map(|(name, of)| Some(format!("{name}={}", show((*of)?.get()))));
    f.write_str(&parts.collect::<Vec<_>>().join(","))
}

fn bandwidth(text: &str) -> Result<Option<NonZeroU64>, CeilingError> {
    if text == NONE {
        return Ok(None);
    }
    let size: Result<Size, _> = text.strip_suffix("/s").unwrap_or(text).trim_end().parse();
    let size = size.map_err(|why| CeilingError::Bandwidth(text.into(), why))?;
    match NonZeroU64::new(size.0) {
        None => Err(CeilingError::Zero),
        Some(bytes) if bytes.get() < BANDWIDTH_LEAST => Err(CeilingError::TooSmall(show_bandwidth(size.0))),
        some => Ok(some),
    }
}

fn show_bandwidth(bytes: u64) -> String {
    format!("{}/s", Size(bytes))
}

fn iops(text: &str) -> Result<Option<NonZeroU64>, CeilingError> {
    if text == NONE {
        return Ok(None);
    }
    let number: u64 = text.parse().map_err(|_| CeilingError::Iops(text.into()))?;
    NonZeroU64::new(number).map(Some).ok_or(CeilingError::Zero)
}

/// The most bytes a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MaxBandwidth(pub Ceiling);

impl FromStr for MaxBandwidth {
    type Err = CeilingError;

    fn from_str(text: &str) -> Result<MaxBandwidth, CeilingError> {
        parse(text, bandwidth, show_bandwidth).map(MaxBandwidth)
    }
}

impl fmt::Display for MaxBandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(&self.0, show_bandwidth, f)
    }
}

/// The most I/Os a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MaxIops(pub Ceiling);

impl FromStr for MaxIops {
    type Err = CeilingError;

    fn from_str(text: &str) -> Result<MaxIops, CeilingError> {
        parse(text, iops, |number| number.to_string()).map(MaxIops)
    }
}

impl fmt::Display for MaxIops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(&self.0, |number| number.to_string(), f)
    }
}

/// For how long an unused ceiling is saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Burst(Time);

impl Burst {
    /// In nanoseconds.
    pub fn ns(self) -> Nanos {
        self.0.0.as_nanos() as Nanos
    }
}

impl Default for Burst {
    fn default() -> Burst {
        Burst(Time(Duration::from_nanos(BURST_NS_DEFAULT)))
    }
}

impl FromStr for Burst {
    type Err = CeilingError;

    fn from_str(text: &str) -> Result<Burst, CeilingError> {
        let time: Time = text.parse()?;
        if (BURST_LEAST..=BURST_MOST).contains(&time.0) { Ok(Burst(time)) } else { Err(CeilingError::Burst(time)) }
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Ceilings in words.
pub fn in_words(bandwidth: Option<MaxBandwidth>, iops: Option<MaxIops>, burst: &str) -> String {
    let iops = iops.map(|iops| format!("{iops} I/Os a second of up to {}", Size(IO_BYTES)));
    let rates: Vec<_> = bandwidth.map(|bandwidth| bandwidth.to_string()).into_iter().chain(iops).collect();
    format!("{}; unused, it is saved for at most {burst}", rates.join(" and "))
}

/// Implements serialisation as text.
macro_rules! as_text {
    ($($type:ty),*) => {$(
        impl Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
as_text!(MaxBandwidth, MaxIops, Burst);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_as_people_type_them() {
        let bandwidth = |text: &str| text.parse::<MaxBandwidth>().unwrap();
        let mib = |number: u64| NonZeroU64::new(number << 20);
        assert_eq!(bandwidth("50MiB/s").0, Ceiling { total: mib(50), ..Ceiling::default() });
        assert_eq!(bandwidth("50MiB"), bandwidth("total=50MiB/s,read=max"));
        let both = Ceiling { total: None, read: mib(50), write: mib(10) };
        assert_eq!(bandwidth("write=10MiB/s, read=50MiB/s").0, both);
        assert!(!bandwidth("max").0.is_some());
        let iops = "total=500,write=100".parse::<MaxIops>().unwrap();
        assert_eq!((iops.0.total, iops.0.write), (NonZeroU64::new(500), NonZeroU64::new(100)));
        for text in ["50MiB/s", "read=50MiB/s,write=10MiB/s", "total=50MiB/s,read=1536KiB/s", "5000B/s"] {
            assert_eq!(bandwidth(text).to_string(), text);
        }
        assert_eq!((iops.to_string(), bandwidth("read=max").to_string()), ("total=500,write=100".into(), "max".into()));
        assert_eq!("90s".parse::<Burst>().unwrap().ns(), 90_000_000_000);
    }

    #[test]
    fn what_is_wrong_is_said_with_the_remedy() {
        let wrong = |text: &str| text.parse::<MaxBandwidth>().unwrap_err().to_string();
        for (text, part) in [
            ("0", "'none' to remove"),
            ("read=0B/s", "'none' to remove"),
            ("50", "is a unit missing?"),
            ("50MB/s", "50MiB"),
            ("fast", "50MiB/s"),
            ("reads=50MiB/s", "read, write or total"),
            ("50MiB/s,write=1MiB/s", "read, write or total"),
            ("read=50MiB/s,read=1MiB/s", "once"),
            ("total=10MiB/s,read=50MiB/s", "read=50MiB/s has no effect, because the total is 10MiB/s"),
        ] {
            assert!(wrong(text).contains(part), "{text}: {}", wrong(text));
        }
        assert_eq!("0".parse::<MaxIops>(), Err(CeilingError::Zero));
        assert!(matches!("5.5".parse::<MaxIops>(), Err(CeilingError::Iops(_))));
        for text in ["0s", "9ms", "1441m", "soon"] {
            assert!(text.parse::<Burst>().is_err(), "{text}");
        }
    }
}
