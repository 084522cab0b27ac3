//! The description of a drive, a TOML file: parsed, validated, and converted to the parameters of the drive models.
//!
//! Files use milliseconds, revolutions and megabytes; the models use nanoseconds. An error names the key, what is wrong
//! with its value, and a valid value. `docs/design/disk.md` explains every key; `presets/` has examples.

use engine::units::{Nanos, SECOND, SECTOR};
use serde::Deserialize;

use super::Drive;
use super::flash::{Flash, FlashSpec};
use super::hdd::cache::{ReadCacheSpec, WriteCacheSpec};
use super::hdd::geometry::{Geometry, Rotation, Skew, Zone};
use super::hdd::mech::Mechanism;
use super::hdd::queue::{Policy, QueueSpec};
use super::hdd::seek::{POINTS_MOST, SeekTable};
use super::hdd::{BusSpec, Hdd, HddSpec, OverheadSpec};
use super::throttled::{BucketSpec, ThrottleSpec, Throttled};
use crate::rng::MILLION;

/// Slower than any drive ever sold. A revolution stays below 2^32 ns.
const RPM_LEAST: f64 = 300.0;
/// Above this speed platters would burst.
const RPM_MOST: f64 = 100_000.0;
/// More than any drive has. Limited so that an angle times the number of tracks stays below 2^64.
const CYLINDERS_MOST: u32 = 1 << 24;
/// As above.
const HEADS_MOST: u32 = 64;
/// As above.
const SECTORS_PER_TRACK_MOST: u32 = 1 << 16;
/// Longer than any seek or overhead.
const MILLISECONDS_MOST: f64 = 1000.0;

/// Why a description is invalid.
#[derive(Debug, thiserror::Error)]
pub enum DescribeError {
    /// It is not TOML, or a key is missing, unknown or of the wrong type; the source says where.
    #[error("{0}")]
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

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HddTable {
    rpm: f64,
    heads: u32,
    band_cylinders: u32,
    serpentine: bool,
    head_switch_ms: f64,
    #[serde(default)]
    missed_per_million: u64,
    skew_revolutions: SkewTable,
    zones: Vec<ZoneRow>,
    seek: CurveTable,
    /// A separate curve for writes.
    write_seek: Option<CurveTable>,
    /// Added to the read curve for writes.
    #[serde(default)]
    write_settle_ms: f64,
    bus: BusTable,
    overhead_ms: OverheadTable,
    queue: QueueTable,
    read_cache: Option<ReadCacheTable>,
    write_cache: Option<WriteCacheTable>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SkewTable {
    track: f64,
    head: f64,
    band: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ZoneRow {
    first_cylinder: u32,
    cylinders: u32,
    sectors_per_track: u32,
    /// Sectors that hold data; all, if absent.
    sectors: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CurveTable {
    /// Points: cylinders, milliseconds.
    table_ms: Option<Vec<(u32, f64)>>,
    /// Alternatively three figures of a data sheet.
    single_ms: Option<f64>,
    average_ms: Option<f64>,
    full_ms: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BusTable {
    mb_per_s: f64,
    overlaps_media: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OverheadTable {
    read: f64,
    write: f64,
    read_hit: f64,
    write_hit: f64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PolicyName {
    FirstCome,
    ShortestPositioning,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct QueueTable {
    policy: PolicyName,
    depth: usize,
    window: Option<usize>,
    #[serde(default)]
    decide_ahead_ms: f64,
    #[serde(default)]
    margin_ms: f64,
    #[serde(default)]
    granularity_ms: f64,
    age_max_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadCacheTable {
    #[serde(default = "yes")]
    enabled: bool,
    segments: usize,
    segment_sectors: u64,
    ahead_sectors: u64,
    #[serde(default)]
    ahead_after_sequential: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteCacheTable {
    #[serde(default = "yes")]
    enabled: bool,
    extents: usize,
    sectors: u64,
    high_sectors: u64,
    idle_ms: f64,
}

fn yes() -> bool {
    true
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

    /// The throttle, if the description has one.
    pub fn throttle(&self) -> Checked<Option<ThrottleSpec>> {
        self.throttle.as_ref().map(ThrottleTable::spec).transpose()
    }
}

impl HddTable {
    fn spec(&self) -> Checked<HddSpec> {
        Ok(HddSpec {
            mechanism: self.mechanism()?,
            missed_ppm: self.missed()?,
            bus: BusSpec {
                byte_ps: byte_ps("hdd.bus.mb_per_s", self.bus.mb_per_s)?,
                overlaps_media: self.bus.overlaps_media,
            },
            overhead: OverheadSpec {
                read_ns: ms("hdd.overhead_ms.read", self.overhead_ms.read)?,
                write_ns: ms("hdd.overhead_ms.write", self.overhead_ms.write)?,
                read_hit_ns: ms("hdd.overhead_ms.read_hit", self.overhead_ms.read_hit)?,
                write_hit_ns: ms("hdd.overhead_ms.write_hit", self.overhead_ms.write_hit)?,
            },
            queue: self.queue.spec()?,
            read_cache: self.read_cache.filter(|cache| cache.enabled).map(|cache| cache.spec()).transpose()?,
            write_cache: self.write_cache.filter(|cache| cache.enabled).map(|cache| cache.spec()).transpose()?,
        })
    }

    fn mechanism(&self) -> Checked<Mechanism> {
        let geometry = self.geometry()?;
        let last = self.zones.last().map_or(1, |zone| zone.first_cylinder + zone.cylinders);
        let settle_ns = ms("hdd.write_settle_ms", self.write_settle_ms)? as u32;
        let read_seek = self.seek.table("hdd.seek", last, 0)?;
        let write_seek = match &self.write_seek {
            Some(_) if settle_ns > 0 => {
                return wrong("hdd.write_settle_ms", "there is a [hdd.write_seek] as well", "leave one of them out");
            }
            Some(curve) => curve.table("hdd.write_seek", last, 0)?,
            None => self.seek.table("hdd.seek", last, settle_ns)?,
        };
        let head_switch_ns = ms("hdd.head_switch_ms", self.head_switch_ms)?;
        Ok(Mechanism { geometry, read_seek, write_seek, head_switch_ns })
    }

    fn missed(&self) -> Checked<u64> {
        if self.missed_per_million > MILLION {
            let what = format!("{} is more than all", self.missed_per_million);
            return wrong("hdd.missed_per_million", what, format!("give at most {MILLION}"));
        }
        Ok(self.missed_per_million)
    }

    fn geometry(&self) -> Checked<Geometry> {
        if !(RPM_LEAST..=RPM_MOST).contains(&self.rpm) {
            let fix = format!("give {RPM_LEAST} to {RPM_MOST} revolutions a minute");
            return wrong("hdd.rpm", format!("{} is no speed", self.rpm), fix);
        }
        let period_ns = (60.0 * SECOND as f64 / self.rpm).round() as Nanos;
        count("hdd.heads", u64::from(self.heads), u64::from(HEADS_MOST))?;
        count("hdd.band_cylinders", u64::from(self.band_cylinders), u64::from(CYLINDERS_MOST))?;
        let skew = |key: &str, revolutions: f64| {
            if !(0.0..1.0).contains(&revolutions) {
                let what = format!("{revolutions} is not a part of a revolution");
                return wrong(format!("hdd.skew_revolutions.{key}"), what, "give at least 0 and less than 1");
            }
            Ok((revolutions * period_ns as f64).round() as Nanos)
        };
        Ok(Geometry {
            rotation: Rotation::new(period_ns),
            zones: self.zones()?,
            heads: self.heads,
            band_cylinders: self.band_cylinders,
            serpentine: self.serpentine,
            skew: Skew {
                track_ns: skew("track", self.skew_revolutions.track)?,
                head_ns: skew("head", self.skew_revolutions.head)?,
                band_ns: skew("band", self.skew_revolutions.band)?,
            },
        })
    }

    fn zones(&self) -> Checked<Vec<Zone>> {
        let (mut first_sector, mut next_cylinder) = (0, 0);
        let mut zones = Vec::with_capacity(self.zones.len());
        for (index, row) in self.zones.iter().enumerate() {
            let key = |field: &str| format!("hdd.zones[{index}].{field}");
            count(&key("cylinders"), u64::from(row.cylinders), u64::from(CYLINDERS_MOST))?;
            count(&key("sectors_per_track"), u64::from(row.sectors_per_track), u64::from(SECTORS_PER_TRACK_MOST))?;
            if row.first_cylinder < next_cylinder || row.first_cylinder > CYLINDERS_MOST {
                let what = format!("cylinder {} is in the zone before, or beyond any drive", row.first_cylinder);
                return wrong(key("first_cylinder"), what, format!("begin at {next_cylinder} or further in"));
            }
            let all = u64::from(row.cylinders) * u64::from(self.heads) * u64::from(row.sectors_per_track);
            let sectors = row.sectors.unwrap_or(all);
            if sectors == 0 || sectors > all {
                let what = format!("{sectors} sectors are not in {all}");
                return wrong(key("sectors"), what, "give what the tracks hold, less the spares");
            }
            zones.push(Zone {
                first_sector,
                sectors,
                first_cylinder: row.first_cylinder,
                cylinders: row.cylinders,
                sectors_per_track: row.sectors_per_track,
            });
            (first_sector, next_cylinder) = (first_sector + sectors, row.first_cylinder + row.cylinders);
        }
        if zones.is_empty() {
            return wrong("hdd.zones", "there are none", "give at least one");
        }
        Ok(zones)
    }
}

impl CurveTable {
    fn table(&self, key: &str, cylinders: u32, more_ns: u32) -> Checked<SeekTable> {
        match (&self.table_ms, self.single_ms, self.average_ms, self.full_ms) {
            (Some(rows), None, None, None) => {
                let mut knots = Vec::with_capacity(rows.len());
                for (index, &(distance, time_ms)) in rows.iter().enumerate() {
                    let row = format!("{key}.table_ms[{index}]");
                    if distance <= knots.last().map_or(0, |&(before, _)| before) {
                        let what = format!("{distance} cylinders are not more than in the row before");
                        return wrong(row, what, "sort the rows by distance, from 1 on, each once");
                    }
                    knots.push((distance, ms(&row, time_ms)? as u32 + more_ns));
                }
                count(&format!("{key}.table_ms (its rows)"), knots.len() as u64, POINTS_MOST as u64)?;
                Ok(SeekTable::new(&knots))
            }
            (None, Some(single), Some(average), Some(full)) => {
                for (name, value) in [("single_ms", single), ("average_ms", average), ("full_ms", full)] {
                    ms(&format!("{key}.{name}"), value)?;
                }
                if !(single < average && average < full) {
                    let what = format!("{single}, {average} and {full} ms do not grow");
                    return wrong(key, what, "give single_ms < average_ms < full_ms");
                }
                let ns = |value: f64| value * 1e6 + f64::from(more_ns);
                Ok(SeekTable::three_points(ns(single), ns(average), ns(full), cylinders.max(2)))
            }
            _ => wrong(
                key,
                "it is neither a table nor three figures",
                "give table_ms, or single_ms, average_ms and full_ms",
            ),
        }
    }
}

impl QueueTable {
    fn spec(&self) -> Checked<QueueSpec> {
        count("hdd.queue.depth", self.depth as u64, 1 << 16)?;
        let window = self.window.unwrap_or(self.depth);
        count("hdd.queue.window", window as u64, self.depth as u64)?;
        Ok(QueueSpec {
            policy: match self.policy {
                PolicyName::FirstCome => Policy::FirstCome,
                PolicyName::ShortestPositioning => Policy::ShortestPositioning,
            },
            depth: self.depth,
            window,
            decide_ahead_ns: ms("hdd.queue.decide_ahead_ms", self.decide_ahead_ms)?,
            margin_ns: ms("hdd.queue.margin_ms", self.margin_ms)?,
            granularity_ns: ms("hdd.queue.granularity_ms", self.granularity_ms)?.max(1),
            age_max_ns: self.age_max_ms.map_or(Nanos::MAX, |age| age.saturating_mul(1_000_000)),
        })
    }
}

impl ReadCacheTable {
    fn spec(&self) -> Checked<ReadCacheSpec> {
        count("hdd.read_cache.segments", self.segments as u64, 1 << 12)?;
        count("hdd.read_cache.segment_sectors", self.segment_sectors, 1 << 32)?;
        if self.ahead_sectors > self.segment_sectors {
            let what = format!("{} sectors are more than a segment", self.ahead_sectors);
            let fix = format!("give at most {}", self.segment_sectors);
            return wrong("hdd.read_cache.ahead_sectors", what, fix);
        }
        Ok(ReadCacheSpec {
            segments: self.segments,
            segment_sectors: self.segment_sectors,
            ahead_sectors: self.ahead_sectors,
            ahead_after_sequential: self.ahead_after_sequential,
        })
    }
}

impl WriteCacheTable {
    fn spec(&self) -> Checked<WriteCacheSpec> {
        count("hdd.write_cache.extents", self.extents as u64, 1 << 16)?;
        count("hdd.write_cache.sectors", self.sectors, 1 << 32)?;
        if self.high_sectors > self.sectors {
            let what = format!("{} sectors are more than it holds", self.high_sectors);
            return wrong("hdd.write_cache.high_sectors", what, format!("give at most {}", self.sectors));
        }
        let idle_ns = ms("hdd.write_cache.idle_ms", self.idle_ms)?;
        let (extents, sectors, high_sectors) = (self.extents, self.sectors, self.high_sectors);
        Ok(WriteCacheSpec { extents, sectors, high_sectors, idle_ns })
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
