//! Text forms of synthetic loads, parsed into [`sim::load::Spec`].
//!
//! In a file (TOML):
//!
//! ```toml
//! seed = 7
//! [[stream]]
//! kind = "zipf"
//! area = "1GiB"
//! read = "70%"
//! depth = 8
//! ```
//!
//! or on the command line, streams separated by `+`: `zipf:area=1GiB,read=70%,depth=8 + seq:at=1GiB,size=128KiB`. The
//! keys are the same: both forms become a table, and one function converts a table to a stream.

use std::path::Path;
use std::str::FromStr;

use engine::units::Nanos;
use serde::Deserialize;
use sim::load::{Bursts, Every, Pace, Place, Shift, Spec, Stream};
use sim::rng::MILLION;
use toml::{Table, Value};

use crate::quantity::{decimal, share, size, time};

/// The kinds of streams.
const KINDS: &str = "seq, rand, zipf";

/// The content of a description file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default = "one")]
    seed: u64,
    stream: Vec<Keys>,
}

fn one() -> u64 {
    1
}

/// A string, or a number that is taken as its text.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Text {
    Whole(i64),
    Fraction(f64),
    Words(String),
}

impl Text {
    pub(crate) fn text(&self) -> String {
        match self {
            Text::Whole(number) => number.to_string(),
            Text::Fraction(number) => number.to_string(),
            Text::Words(words) => words.trim().to_owned(),
        }
    }
}

/// The keys of a stream.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    kind: String,
    exponent: Option<f64>,
    at: Option<Text>,
    area: Option<Text>,
    align: Option<Text>,
    read: Option<Text>,
    follow: Option<Text>,
    stride: Option<Text>,
    flush: Option<u64>,
    size: Option<Text>,
    depth: Option<u32>,
    think: Option<Text>,
    rate: Option<Text>,
    poisson: Option<bool>,
    on: Option<Text>,
    off: Option<Text>,
    shift_every: Option<Text>,
    shift_by: Option<Text>,
    shift_within: Option<Text>,
    start: Option<Text>,
    stop: Option<Text>,
    requests: Option<u64>,
}

/// Reads a description: a file if there is one of that name, else the short form. `volume_bytes` is the area of streams
/// that state none. `seed` replaces the description's seed.
pub fn parse(text: &str, volume_bytes: Option<u64>, seed: Option<u64>) -> Result<Spec, String> {
    let file = if Path::new(text).is_file() || text.ends_with(".toml") {
        let content = std::fs::read_to_string(text).map_err(|error| format!("{text} cannot be read: {error}"))?;
        from_toml(&content).map_err(|error| format!("{text}: {error}"))?
    } else {
        short(text)?
    };
    let streams = file.stream.iter().zip(1..).map(|(keys, number)| {
        stream(keys, volume_bytes).map_err(|error| format!("stream {number} ({}): {error}", keys.kind))
    });
    let spec = Spec { seed: seed.unwrap_or(file.seed), streams: streams.collect::<Result<_, _>>()? };
    spec.check().map_err(|error| error.to_string())?;
    Ok(spec)
}

fn from_toml(text: &str) -> Result<File, String> {
    toml::from_str(text).map_err(|error: toml::de::Error| error.to_string())
}

/// Parses `kind:key=value,key=value + kind:…`.
fn short(text: &str) -> Result<File, String> {
    let streams = text.split('+').map(|part| {
        let (kind, keys) = part.split_once(':').unwrap_or((part, ""));
        let mut table = Table::new();
        table.insert("kind".into(), Value::String(kind.trim().into()));
        for pair in keys.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| format!("'{pair}' is not of the form key=value"))?;
            if table.insert(key.trim().into(), value_of(value.trim())).is_some() {
                return Err(format!("'{}' is given twice", key.trim()));
            }
        }
        Keys::deserialize(table).map_err(|error| format!("in '{}': {}", part.trim(), error.message()))
    });
    Ok(File { seed: one(), stream: streams.collect::<Result<_, _>>()? })
}

/// A value as TOML would have it without quotation marks, or else a string.
fn value_of(text: &str) -> Value {
    if let Ok(number) = text.parse::<i64>() {
        Value::Integer(number)
    } else if let Ok(number) = text.parse::<f64>() {
        Value::Float(number)
    } else if let Ok(truth) = text.parse::<bool>() {
        Value::Boolean(truth)
    } else {
        Value::String(text.into())
    }
}

fn optional<T>(text: Option<&Text>, parse: impl Fn(&str) -> Result<T, String>) -> Result<Option<T>, String> {
    text.map(|text| parse(&text.text())).transpose()
}

fn stream(keys: &Keys, volume_bytes: Option<u64>) -> Result<Stream, String> {
    let place = match (keys.kind.as_str(), keys.exponent) {
        ("seq", None) => Place::Sequential,
        ("rand", None) => Place::Uniform,
        ("zipf", exponent) => Place::Zipf { exponent: exponent.unwrap_or(0.99) },
        ("seq" | "rand", Some(_)) => return Err("only zipf has an exponent".into()),
        (kind, _) => return Err(format!("there is no kind '{kind}'; there are {KINDS}")),
    };
    let area_start = optional(keys.at.as_ref(), size)?.unwrap_or(0);
    let rest = volume_bytes.map(|bytes| bytes.saturating_sub(area_start));
    let area = optional(keys.area.as_ref(), size)?.or(rest);
    let area_bytes = area.ok_or("without a volume it needs an area, such as area=1GiB")?;
    let default = Stream::default();
    let sizes = optional(keys.size.as_ref(), sizes)?.unwrap_or(default.sizes);
    // Offsets are aligned to the smallest request, at most to a block.
    let align = sizes.iter().map(|&(_, bytes)| bytes).min().unwrap_or(1).min(4096);
    Ok(Stream {
        place,
        area_start,
        area_bytes,
        align_bytes: optional(keys.align.as_ref(), size)?.unwrap_or(align),
        read_ppm: optional(keys.read.as_ref(), share)?.unwrap_or(MILLION),
        follow_ppm: optional(keys.follow.as_ref(), share)?.unwrap_or(0),
        stride_bytes: optional(keys.stride.as_ref(), stride)?,
        sizes,
        flush_every: keys.flush.unwrap_or(0),
        pace: pace(keys)?,
        bursts: bursts(keys)?,
        shift: shift(keys, area_start, area_bytes, rest)?,
        start_ns: optional(keys.start.as_ref(), time)?.unwrap_or(0),
        stop_ns: optional(keys.stop.as_ref(), time)?.unwrap_or(u64::MAX),
        requests: keys.requests.unwrap_or(u64::MAX),
    })
}

/// Parses `4KiB`, or sizes with weights such as `4KiB*3/64KiB`.
fn sizes(text: &str) -> Result<Vec<(u64, u64)>, String> {
    let one = |part: &str| {
        let (bytes, weight) = part.split_once('*').unwrap_or((part, "1"));
        let weight = weight.trim().parse().map_err(|_| format!("'{weight}' is not a weight"))?;
        Ok((weight, size(bytes.trim())?))
    };
    text.split('/').map(one).collect()
}

/// Parses a size that may be negative.
fn stride(text: &str) -> Result<i64, String> {
    let (sign, distance) = text.strip_prefix('-').map_or((1, text), |distance| (-1, distance));
    let bytes = i64::try_from(size(distance.trim())?).map_err(|_| format!("'{text}' is too large"))?;
    Ok(sign * bytes)
}

fn pace(keys: &Keys) -> Result<Pace, String> {
    let think_ns = optional(keys.think.as_ref(), time)?;
    let Some(rate) = &keys.rate else {
        if keys.poisson.is_some() {
            return Err("poisson is for streams with a rate".into());
        }
        return Ok(Pace::Closed { depth: keys.depth.unwrap_or(1), think_ns: think_ns.unwrap_or(0) });
    };
    if keys.depth.is_some() || think_ns.is_some() {
        return Err("a stream has a rate (open), or a depth and a think time (closed)".into());
    }
    let text = rate.text();
    // In thousandths of a request per second, since slow rates are needed, too.
    let millis = decimal(text.trim_end_matches("/s"), 1000).filter(|&millis| millis > 0);
    let millis = millis.ok_or_else(|| format!("'{text}' is not a rate: write requests a second, as in 100/s"))?;
    let interval_ns = 1_000_000_000_000 / millis;
    Ok(Pace::Open { interval_ns, poisson: keys.poisson.unwrap_or(true), speed_ppm: MILLION })
}

fn bursts(keys: &Keys) -> Result<Option<Bursts>, String> {
    match (optional(keys.on.as_ref(), time)?, optional(keys.off.as_ref(), time)?) {
        (None, None) => Ok(None),
        (Some(on_ns), Some(off_ns)) => Ok(Some(Bursts { on_ns, off_ns })),
        _ => Err("bursts need both, on and off".into()),
    }
}

fn shift(keys: &Keys, start: u64, area: u64, rest: Option<u64>) -> Result<Option<Shift>, String> {
    let Some(every) = &keys.shift_every else {
        return match (&keys.shift_by, &keys.shift_within) {
            (None, None) => Ok(None),
            _ => Err("a shift needs shift_every, a time or a number of requests".into()),
        };
    };
    let every = match every {
        Text::Whole(requests) => Every::Requests(u64::try_from(*requests).map_err(|_| "shift_every is negative")?),
        text => Every::Time(time(&text.text())?),
    };
    let within = optional(keys.shift_within.as_ref(), size)?.or(rest);
    let within_bytes = within.ok_or("without a volume a shift needs shift_within, the bytes that it moves within")?;
    let by_bytes = optional(keys.shift_by.as_ref(), size)?.unwrap_or(area);
    if within_bytes <= area {
        return Err(format!("from byte {start} there is no room to shift {area} bytes within {within_bytes}"));
    }
    Ok(Some(Shift { every, by_bytes, within_bytes }))
}

/// Whether the load ends by itself.
pub fn ends(spec: &Spec) -> bool {
    spec.streams.iter().all(|stream| stream.requests < u64::MAX || stream.stop_ns < u64::MAX)
}

/// A condition for ending a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// After this many requests.
    Requests(u64),
    /// After this time, nanoseconds.
    Time(Nanos),
}

impl Limit {
    /// The lowest limits of a list: (requests, nanoseconds).
    pub fn least(limits: &[Limit]) -> (u64, Nanos) {
        limits.iter().fold((u64::MAX, Nanos::MAX), |(requests, ns), limit| match *limit {
            Limit::Requests(most) => (requests.min(most), ns),
            Limit::Time(most) => (requests, ns.min(most)),
        })
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Limit, String> {
        match text.parse() {
            Ok(requests) => Ok(Limit::Requests(requests)),
            Err(_) => time(text)
                .map(Limit::Time)
                .map_err(|_| format!("'{text}' is no limit: write a number of requests or a time, as in 30s")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Spec, String> {
        parse(text, Some(10 << 30), None)
    }

    #[test]
    fn a_file_and_a_line_mean_the_same() {
        let line = of("zipf:exponent=0.9,area=1GiB,read=70%,size=4KiB*3/64KiB,depth=8,think=1ms,on=1s,off=5s,\
             shift_every=10s,requests=100 + seq:at=1GiB,size=128KiB,rate=100/s,poisson=false,read=0.25,stop=1m");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.toml");
        let text = r#"
            [[stream]]
            kind = "zipf"
            exponent = 0.9
            area = "1GiB"
            read = 0.7
            size = "4KiB*3/64KiB"
            depth = 8
            think = "1ms"
            on = "1s"
            off = "5s"
            shift_every = "10s"
            requests = 100
            [[stream]]
            kind = "seq"
            at = 1073741824
            size = "128KiB"
            rate = 100
            poisson = false
            read = "25%"
            stop = "1m"
        "#;
        std::fs::write(&path, text).unwrap();
        let file = of(path.to_str().unwrap());
        assert_eq!(line, file);
        let spec = line.unwrap();
        assert!(ends(&spec) && spec.seed == 1);
        let zipf = &spec.streams[0];
        assert_eq!(zipf.shift.unwrap().within_bytes, 10 << 30);
        assert_eq!((zipf.sizes.as_slice(), zipf.align_bytes), (&[(3, 4096), (1, 65536)][..], 4096));
        assert_eq!(spec.streams[1].area_bytes, 9 << 30);
    }

    #[test]
    fn a_log_and_a_backward_stream() {
        let spec = of("seq:size=8KiB,read=0,flush=32,stride=-16KiB + seq:stride=8192").unwrap();
        let [log, forward] = &spec.streams[..] else { panic!("two streams") };
        assert_eq!((log.flush_every, log.stride_bytes, forward.stride_bytes), (32, Some(-16384), Some(8192)));
    }

    #[test]
    fn limits_as_they_are_written() {
        assert_eq!("1000".parse(), Ok(Limit::Requests(1000)));
        assert_eq!("30s".parse(), Ok(Limit::Time(30_000_000_000)));
        assert!("much".parse::<Limit>().unwrap_err().contains("30s"));
        assert_eq!(Limit::least(&[Limit::Time(5), Limit::Requests(7), Limit::Time(3)]), (7, 3));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |text: &str| of(text).unwrap_err();
        assert!(wrong("zip:area=1GiB").contains("seq, rand, zipf"), "{}", wrong("zip:area=1GiB"));
        assert!(wrong("rand:dept=3").contains("dept"), "{}", wrong("rand:dept=3"));
        assert!(wrong("rand:area=1G").contains("1G"));
        assert!(wrong("rand:depth=4,rate=10").contains("rate"));
        assert!(wrong("rand:on=1s").contains("off"));
        assert!(wrong("rand:area=2KiB").contains("does not fit"));
        assert!(wrong("rand:stride=8KiB").contains("sequential") && wrong("seq:stride=x").contains("'x'"));
        assert!(wrong("rand + seq:size=1KiB/0").contains("stream 2"));
        assert!(wrong("nothing.toml").contains("nothing.toml"));
        assert!(parse("rand", None, None).unwrap_err().contains("area"));
        assert!(!ends(&of("rand").unwrap()));
    }
}
