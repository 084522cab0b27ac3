//! The text form of faults: a kind, followed by conditions in any order.
//!
//! ```text
//!   error read 1% range=1GiB..2GiB volume=db        delay write+flush 10% by=5ms..20ms
//!   torn 1/1000 seed=7                              stuck read count=1
//!   gone after=10s for=30s
//! ```
//!
//! A fault is parsed once into the form of [`sim::fault::layer`]; the text is kept for display. `docs/manual/disk.md`
//! explains the syntax.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use engine::nbd::Errno;
use engine::units::Nanos;
use serde::{Deserialize, Serialize};
use sim::fault::layer::{Fault, Kind, Ops};

use crate::quantity::{Name, QuantityError, ShareText, Size, Time};

/// Rates are in parts per million.
const MILLION: u64 = 1_000_000;
/// Characters of a fault at most, since it is shown in tables and stored in files.
const TEXT_MAX: usize = 500;
/// The end of a range without one: the largest size of a volume, bytes.
const END: u64 = engine::units::VOLUME_BYTES_MAX;

/// Why a text is not a fault.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{}' is not a fault: {why}", text.escape_debug())]
pub struct FaultError {
    /// The text, cut off if it is long.
    text: String,
    why: FaultReason,
}

/// The part of a fault that is wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FaultReason {
    #[error("it has more than {TEXT_MAX} characters")]
    TooLong,
    #[error("it has no '{0}'; the keys are range=, volume=, by=, errno=, count=, after=, for= and seed=")]
    UnknownKey(String),
    #[error("'{0}' is given twice")]
    Twice(String),
    #[error("the delay is missing: add by=5ms or by=5ms..20ms")]
    NoDelay,
    #[error("by= is for a delay")]
    DelayOfOther,
    #[error("'{_0}' is not one of {}", Kind::NAMES.join(", "))]
    UnknownKind(String),
    #[error("errno= is for an error")]
    ErrnoOfOther,
    #[error("'gone' applies to every request: only after= and for= may be added")]
    LimitedGone,
    #[error("only writes can be torn")]
    TornOther,
    #[error("a flush has no range: leave out one of them")]
    RangeOfFlush,
    #[error("'{0}' is not an operation: name read, write, zero or flush, joined by '+'")]
    UnknownOp(String),
    #[error("'{0}' is not a probability: write 1%, 0.01 or 1/100, from 1/1000000 to 1")]
    Rate(String),
    #[error("'{0}' is not a range: write it as 1GiB..2GiB")]
    Range(String),
    #[error("the range '{0}' is empty")]
    EmptyRange(String),
    #[error("'{0}' is too long")]
    TimeTooLong(String),
    #[error("'{0}' ends before it begins")]
    Backwards(String),
    #[error("errno={0} is not known: EIO or ENOSPC")]
    UnknownErrno(String),
    #[error("'{text}' is not a whole number of at least {least}")]
    Number { text: String, least: u64 },
    #[error(transparent)]
    Quantity(#[from] QuantityError),
}

/// A fault as text, and in parsed form.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FaultText {
    text: String,
    /// The parsed form.
    pub fault: Fault,
}

impl FaultText {
    /// The volume that it is limited to, if any.
    pub fn volume(&self) -> Option<&str> {
        self.fault.volume.as_deref()
    }
}

impl fmt::Display for FaultText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<FaultText> for String {
    fn from(fault: FaultText) -> String {
        fault.text
    }
}

impl TryFrom<String> for FaultText {
    type Error = FaultError;

    fn try_from(text: String) -> Result<FaultText, FaultError> {
        text.parse()
    }
}

impl FromStr for FaultText {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<FaultText, FaultError> {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let shown = text.chars().take(TEXT_MAX).collect::<String>();
        let wrong = |why| FaultError { text: shown.clone(), why };
        if text.len() > TEXT_MAX {
            return Err(wrong(FaultReason::TooLong));
        }
        let fault = Words::read(&text).and_then(Words::meaning).map_err(wrong)?;
        Ok(FaultText { text, fault })
    }
}

/// The words of a fault, each at most once.
#[derive(Default)]
struct Words {
    kind: String,
    ops: Option<Ops>,
    rate_ppm: Option<u64>,
    range: Option<Range<u64>>,
    volume: Option<Name>,
    by: Option<(Nanos, Nanos)>,
    errno: Option<Errno>,
    count: Option<u64>,
    after: Option<Nanos>,
    length: Option<Nanos>,
    seed: Option<u64>,
}

impl Words {
    fn read(text: &str) -> Result<Words, FaultReason> {
        let mut rest = text.split(' ');
        let mut words = Words { kind: rest.next().unwrap_or_default().to_owned(), ..Words::default() };
        for word in rest {
            let fresh = match word.split_once('=') {
                Some(("range", value)) => words.range.replace(range(value)?).is_none(),
                Some(("volume", value)) => words.volume.replace(value.parse::<Name>()?).is_none(),
                Some(("by", value)) => words.by.replace(times(value)?).is_none(),
                Some(("errno", value)) => words.errno.replace(errno(value)?).is_none(),
                Some(("count", value)) => words.count.replace(number(value, 1)?).is_none(),
                Some(("after", value)) => words.after.replace(time(value)?).is_none(),
                Some(("for", value)) => words.length.replace(time(value)?).is_none(),
                Some(("seed", value)) => words.seed.replace(number(value, 0)?).is_none(),
                Some((key, _)) => return Err(FaultReason::UnknownKey(key.into())),
                None if word.starts_with(|c: char| c.is_ascii_digit()) => words.rate_ppm.replace(rate(word)?).is_none(),
                None => words.ops.replace(ops(word)?).is_none(),
            };
            if !fresh {
                return Err(FaultReason::Twice(word.into()));
            }
        }
        Ok(words)
    }

    fn meaning(self) -> Result<Fault, FaultReason> {
        let kind = match (self.kind.as_str(), self.by) {
            ("error", None) => Kind::Error(self.errno.unwrap_or(Errno::Io)),
            ("delay", Some((least_ns, most_ns))) => Kind::Delay { least_ns, most_ns },
            ("delay", None) => return Err(FaultReason::NoDelay),
            ("stuck", None) => Kind::Stuck,
            ("torn", None) => Kind::Torn,
            ("gone", None) => Kind::Gone,
            ("error" | "stuck" | "torn" | "gone", Some(_)) => return Err(FaultReason::DelayOfOther),
            (other, _) => return Err(FaultReason::UnknownKind(other.into())),
        };
        if self.errno.is_some() && !matches!(kind, Kind::Error(_)) {
            return Err(FaultReason::ErrnoOfOther);
        }
        let is_limited = self.ops.is_some() || self.rate_ppm.is_some() || self.range.is_some() || self.count.is_some();
        if kind == Kind::Gone && (is_limited || self.volume.is_some() || self.seed.is_some()) {
            return Err(FaultReason::LimitedGone);
        }
        if kind == Kind::Torn && self.ops.is_some_and(|ops| ops != Ops { write: true, ..Ops::default() }) {
            return Err(FaultReason::TornOther);
        }
        if self.range.is_some() && self.ops.is_some_and(|ops| ops.flush) {
            return Err(FaultReason::RangeOfFlush);
        }
        Ok(Fault {
            kind,
            ops: self.ops.unwrap_or(Ops::ALL),
            rate_ppm: self.rate_ppm.unwrap_or(MILLION),
            range: self.range,
            volume: self.volume.map(|volume| volume.to_string()),
            count: self.count,
            after_ns: self.after.unwrap_or(0),
            for_ns: self.length,
            seed: self.seed.unwrap_or(1),
        })
    }
}

fn ops(word: &str) -> Result<Ops, FaultReason> {
    let mut ops = Ops::default();
    for name in word.split('+') {
        match name {
            "read" => ops.read = true,
            "write" => ops.write = true,
            "zero" => ops.zero = true,
            "flush" => ops.flush = true,
            _ => return Err(FaultReason::UnknownOp(name.into())),
        }
    }
    Ok(ops)
}

fn rate(word: &str) -> Result<u64, FaultReason> {
    let wrong = || FaultReason::Rate(word.into());
    let share: ShareText = word.parse().map_err(|_| wrong())?;
    match share.share.ppb() / 1000 {
        0 => Err(wrong()),
        ppm => Ok(ppm),
    }
}

fn range(text: &str) -> Result<Range<u64>, FaultReason> {
    let (from, to) = text.split_once("..").ok_or_else(|| FaultReason::Range(text.into()))?;
    let end = |text: &str, default| if text.is_empty() { Ok(default) } else { text.parse::<Size>().map(|size| size.0) };
    let range = end(from, 0)?..end(to, END)?;
    if range.is_empty() { Err(FaultReason::EmptyRange(text.into())) } else { Ok(range) }
}

fn time(text: &str) -> Result<Nanos, FaultReason> {
    let time = text.parse::<Time>()?;
    u64::try_from(time.0.as_nanos()).map_err(|_| FaultReason::TimeTooLong(text.into()))
}

fn times(text: &str) -> Result<(Nanos, Nanos), FaultReason> {
    let (least, most) = text.split_once("..").unwrap_or((text, text));
    let (least, most) = (time(least)?, time(most)?);
    if least > most { Err(FaultReason::Backwards(text.into())) } else { Ok((least, most)) }
}

fn errno(text: &str) -> Result<Errno, FaultReason> {
    match text {
        "EIO" => Ok(Errno::Io),
        "ENOSPC" => Ok(Errno::NoSpace),
        _ => Err(FaultReason::UnknownErrno(text.into())),
    }
}

fn number(text: &str, least: u64) -> Result<u64, FaultReason> {
    let number = text.parse().ok().filter(|&number: &u64| number >= least);
    number.ok_or_else(|| FaultReason::Number { text: text.into(), least })
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::units::SECOND;

    fn parse(text: &str) -> Fault {
        text.parse::<FaultText>().unwrap().fault
    }

    #[test]
    fn what_is_typed_is_meant() {
        let fault = parse("error  read+write 1% range=1GiB..2GiB volume=db errno=ENOSPC count=3");
        assert_eq!(fault.kind, Kind::Error(Errno::NoSpace));
        assert_eq!(fault.ops, Ops { read: true, write: true, ..Ops::default() });
        assert_eq!((fault.rate_ppm, fault.range), (10_000, Some(1 << 30..2 << 30)));
        assert_eq!((fault.volume.as_deref(), fault.count), (Some("db"), Some(3)));
        let fault = parse("delay by=5ms..20ms 1/1000000 range=4KiB..");
        assert_eq!(fault.kind, Kind::Delay { least_ns: 5_000_000, most_ns: 20_000_000 });
        assert_eq!((fault.rate_ppm, fault.range, fault.ops), (1, Some(4096..END), Ops::ALL));
        let fault = parse("gone after=10s for=1m");
        assert_eq!((fault.kind, fault.after_ns, fault.for_ns), (Kind::Gone, 10 * SECOND, Some(60 * SECOND)));
        assert_eq!("error   read".parse::<FaultText>().unwrap().to_string(), "error read");
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, part) in [
            ("", "not one of error"),
            ("explode", "'explode' is not one of"),
            ("error reed", "'reed' is not an operation"),
            ("error 0%", "'0%' is not a probability"),
            ("error 1/10000000", "1/1000000 to 1"),
            ("error read write", "'write' is given twice"),
            ("error range=2GiB..1GiB", "is empty"),
            ("error range=1GB..", "ambiguous"),
            ("error flush range=0..1MiB", "a flush has no range"),
            ("error size=1", "it has no 'size'"),
            ("error by=1ms", "by= is for a delay"),
            ("error errno=EPERM", "EIO or ENOSPC"),
            ("delay", "the delay is missing"),
            ("delay by=2s..1s", "ends before"),
            ("torn read", "only writes"),
            ("gone 5%", "applies to every request"),
            ("stuck count=0", "a whole number of at least 1"),
            ("stuck volume=/", "not a name"),
            (&"x".repeat(600), "more than 500"),
        ] {
            let error = text.parse::<FaultText>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("is not a fault"), "{text:?}: {error}");
        }
    }
}
