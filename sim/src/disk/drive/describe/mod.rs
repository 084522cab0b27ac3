//! The description of a drive, a TOML file: parsed, validated, and converted to the parameters of the drive models.
//!
//! Files use milliseconds, revolutions and megabytes; the models use nanoseconds. An error names the key, what is wrong
//! with its value, and a valid value. `docs/manual/lab-disk-description.md` explains every key (a test compares it with
//! the tables here); `presets/` has examples.

mod hdd;

use engine::units::{Nanos, SECTOR};
use serde::Deserialize;

use self::hdd::HddTable;
use super::Drive;
use super::flash::{Flash, FlashSpec};
use super::hdd::{Hdd, HddSpec};
use super::throttled::{BucketSpec, ThrottleSpec, Throttled};

/// Longer than any seek or overhead.
const MILLISECONDS_MOST: f64 = 1000.0;

/// Why a description is invalid.
#[derive(Debug, thiserror::Error)]
pub enum DescribeError {
    /// It is not TOML, or a key is missing, unknown or of the wrong type; the source says where.
    #[error(transparent)]
    Syntax(#[from] toml::de::Error),
    /// A value is invalid.
    #[error("{key}: {what}; {fix}")]
    Value {
        /// Its key.
        key: String,
        /// What is wrong.
        what: String,
        /// The remedy.
        fix: String,
    },
}

type Checked<T> = Result<T, DescribeError>;

fn wrong<T>(key: impl Into<String>, what: impl Into<String>, fix: impl Into<String>) -> Checked<T> {
    Err(DescribeError::Value { key: key.into(), what: what.into(), fix: fix.into() })
}

/// A described drive: a hard disk or flash, optionally behind a throttle.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// The name of the drive, for people.
    pub model: String,
    /// The source of the values, for people.
    pub source: String,
    hdd: Option<HddTable>,
    flash: Option<FlashTable>,
    throttle: Option<ThrottleTable>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FlashTable {
    bytes: u64,
    channels: usize,
    page_bytes: u64,
    read_ms: f64,
    program_ms: f64,
    overhead_ms: f64,
    bus_mb_per_s: f64,
    buffer_bytes: u64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ThrottleTable {
    requests_per_s: Option<u64>,
    burst_requests: Option<u64>,
    bytes_per_s: Option<u64>,
    burst_bytes: Option<u64>,
}

impl Description {
    /// Parses a description; [`Description::build`] validates its values.
    pub fn parse(text: &str) -> Checked<Description> {
        Ok(toml::from_str(text)?)
    }

    /// The described drive.
    pub fn build(&self) -> Checked<Box<dyn Drive>> {
        let drive: Box<dyn Drive> = match (&self.hdd, &self.flash) {
            (Some(table), None) => Box::new(Hdd::new(table.spec()?)),
            (None, Some(table)) => Box::new(Flash::new(table.spec()?)),
            (None, None) => return wrong("hdd", "there is neither [hdd] nor [flash]", "add one of them"),
            (Some(_), Some(_)) => return wrong("flash", "there are both [hdd] and [flash]", "leave one of them out"),
        };
        Ok(match &self.throttle {
            Some(table) => Box::new(Throttled::new(table.spec()?, drive)),
            None => drive,
        })
    }

    /// The parameters of the hard disk, if the description has one.
    pub fn hdd(&self) -> Checked<Option<HddSpec>> {
        self.hdd.as_ref().map(HddTable::spec).transpose()
    }

    /// What the drive does that its description does not say: for people, a sentence each.
    pub fn notes(&self) -> Checked<Vec<String>> {
        self.hdd.as_ref().map_or(Ok(Vec::new()), HddTable::notes)
    }

    /// The throttle, if the description has one.
    pub fn throttle(&self) -> Checked<Option<ThrottleSpec>> {
        self.throttle.as_ref().map(ThrottleTable::spec).transpose()
    }
}

impl FlashTable {
    fn spec(&self) -> Checked<FlashSpec> {
        count("flash.bytes", self.bytes, 1 << 60)?;
        count("flash.channels", self.channels as u64, 1 << 12)?;
        count("flash.page_bytes", self.page_bytes, 1 << 24)?;
        if !self.page_bytes.is_multiple_of(SECTOR) || !self.bytes.is_multiple_of(SECTOR) {
            return wrong("flash.page_bytes", "pages and size are not whole sectors", "give multiples of 512");
        }
        let least = self.page_bytes * self.channels as u64;
        if self.buffer_bytes < least {
            let what = format!("{} bytes are less than a page for each channel", self.buffer_bytes);
            return wrong("flash.buffer_bytes", what, format!("give at least {least}"));
        }
        Ok(FlashSpec {
            bytes: self.bytes,
            channels: self.channels,
            page_bytes: self.page_bytes,
            read_ns: ms("flash.read_ms", self.read_ms)?,
            program_ns: ms("flash.program_ms", self.program_ms)?.max(1),
            overhead_ns: ms("flash.overhead_ms", self.overhead_ms)?,
            byte_ps: byte_ps("flash.bus_mb_per_s", self.bus_mb_per_s)?,
            buffer_bytes: self.buffer_bytes,
        })
    }
}

impl ThrottleTable {
    fn spec(&self) -> Checked<ThrottleSpec> {
        let bucket = |name: &str, rate: Option<u64>, burst: Option<u64>| {
            let key = format!("throttle.{name}_per_s");
            match (rate, burst) {
                (Some(rate), burst) => {
                    count(&key, rate, 1 << 50)?;
                    Ok(Some(BucketSpec { rate, burst: burst.unwrap_or(0) }))
                }
                (None, Some(_)) => {
                    wrong(key, "there is a burst without a rate", "give the rate, or leave out the burst")
                }
                (None, None) => Ok(None),
            }
        };
        let requests = bucket("requests", self.requests_per_s, self.burst_requests)?;
        let bytes = bucket("bytes", self.bytes_per_s, self.burst_bytes)?;
        if requests.is_none() && bytes.is_none() {
            return wrong("throttle", "it limits nothing", "give requests_per_s or bytes_per_s");
        }
        Ok(ThrottleSpec { requests, bytes })
    }
}

fn yes() -> bool {
    true
}

fn count(key: &str, value: u64, most: u64) -> Checked<()> {
    if value == 0 || value > most {
        return wrong(key, format!("{value} is out of range"), format!("give 1 to {most}"));
    }
    Ok(())
}

/// Converts milliseconds to nanoseconds.
fn ms(key: &str, value: f64) -> Checked<Nanos> {
    if !(0.0..=MILLISECONDS_MOST).contains(&value) {
        let fix = format!("give 0 to {MILLISECONDS_MOST} milliseconds");
        return wrong(key, format!("{value} is no such time"), fix);
    }
    Ok((value * 1e6).round() as Nanos)
}

/// Converts megabytes (10^6 bytes) per second to picoseconds per byte.
fn byte_ps(key: &str, mb_per_s: f64) -> Checked<u64> {
    if !(0.1..=1e5).contains(&mb_per_s) {
        return wrong(key, format!("{mb_per_s} is no such rate"), "give 0.1 to 100000 megabytes a second");
    }
    Ok((1e6 / mb_per_s).round() as u64)
}
