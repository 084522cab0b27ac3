//! The table `[hdd]` of a description: its keys, and their conversion to the parameters of [`Hdd`](super::super::hdd).

use engine::units::{Nanos, SECOND};
use serde::Deserialize;

use super::{Checked, MILLISECONDS_MOST, byte_ps, count, ms, wrong, yes};
use crate::disk::drive::hdd::cache::{ReadCacheSpec, WriteCacheSpec};
use crate::disk::drive::hdd::geometry::{Geometry, Rotation, Skew, Zone};
use crate::disk::drive::hdd::mech::Mechanism;
use crate::disk::drive::hdd::queue::{Policy, QueueSpec};
use crate::disk::drive::hdd::seek::{POINTS_MOST, SeekTable};
use crate::disk::drive::hdd::{BusSpec, HddSpec, OverheadSpec};
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

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HddTable {
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
    /// What differs after a write.
    #[serde(default)]
    overhead_after_write_ms: AfterWriteTable,
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
    /// Those of the drive, if absent.
    skew_revolutions: Option<SkewTable>,
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
    /// The part of a read that is in the buffer before the bus begins; 0 if absent.
    read_water_mark: Option<f64>,
    #[serde(default = "yes")]
    write_overlaps_media: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OverheadTable {
    read: f64,
    write: f64,
    read_hit: f64,
    write_hit: f64,
}

#[derive(Clone, Copy, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AfterWriteTable {
    read: Option<f64>,
    write: Option<f64>,
    read_hit: Option<f64>,
    write_hit: Option<f64>,
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
    #[serde(default)]
    ahead_to_track_end: bool,
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

impl HddTable {
    pub(super) fn spec(&self) -> Checked<HddSpec> {
        let overhead = self.overhead_ms;
        let after = self.overhead_after_write_ms;
        let after_write = OverheadTable {
            read: after.read.unwrap_or(overhead.read),
            write: after.write.unwrap_or(overhead.write),
            read_hit: after.read_hit.unwrap_or(overhead.read_hit),
            write_hit: after.write_hit.unwrap_or(overhead.write_hit),
        };
        Ok(HddSpec {
            mechanism: self.mechanism()?,
            missed_ppm: self.missed()?,
            bus: self.bus.spec()?,
            overhead: overhead.spec("hdd.overhead_ms")?,
            overhead_after_write: after_write.spec("hdd.overhead_after_write_ms")?,
            queue: self.queue.spec()?,
            read_cache: self.read_cache.filter(|cache| cache.enabled).map(|cache| cache.spec()).transpose()?,
            write_cache: self.write_cache.filter(|cache| cache.enabled).map(|cache| cache.spec()).transpose()?,
        })
    }

    /// Tables of seek times that end before the longest seek of the drive.
    pub(super) fn notes(&self) -> Checked<Vec<String>> {
        let stroke = self.stroke();
        let curves = [("hdd.seek", Some(&self.seek)), ("hdd.write_seek", self.write_seek.as_ref())];
        let mut notes = Vec::new();
        for (key, curve) in curves {
            let Some(curve) = curve else { continue };
            let Some(&(last, last_ms)) = curve.table_ms.as_ref().and_then(|rows| rows.last()) else { continue };
            if last < stroke.longest {
                let longest_ms = curve.table(key, stroke, 0)?.time_ns(stroke.longest) as f64 / 1e6;
                notes.push(format!(
                    "{key}.table_ms ends at {last} cylinders ({last_ms:.3} ms), and the longest seek is of {}: beyond \
                     the table its last line continues, up to {longest_ms:.3} ms",
                    stroke.longest
                ));
            }
        }
        Ok(notes)
    }

    fn stroke(&self) -> Stroke {
        let cylinders = self.zones.last().map_or(1, |zone| zone.first_cylinder.saturating_add(zone.cylinders));
        let first = self.zones.first().map_or(0, |zone| zone.first_cylinder);
        Stroke { cylinders, longest: cylinders.saturating_sub(first.saturating_add(1)) }
    }

    fn mechanism(&self) -> Checked<Mechanism> {
        let geometry = self.geometry()?;
        let stroke = self.stroke();
        let settle_ns = ms("hdd.write_settle_ms", self.write_settle_ms)? as u32;
        let read_seek = self.seek.table("hdd.seek", stroke, 0)?;
        let write_seek = match &self.write_seek {
            Some(_) if settle_ns > 0 => {
                return wrong("hdd.write_settle_ms", "there is a [hdd.write_seek] as well", "leave one of them out");
            }
            Some(curve) => curve.table("hdd.write_seek", stroke, 0)?,
            None => self.seek.table("hdd.seek", stroke, settle_ns)?,
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
        Ok(Geometry {
            rotation: Rotation::new(period_ns),
            zones: self.zones(period_ns)?,
            heads: self.heads,
            band_cylinders: self.band_cylinders,
            serpentine: self.serpentine,
        })
    }

    fn zones(&self, period_ns: Nanos) -> Checked<Vec<Zone>> {
        let common = self.skew_revolutions.spec("hdd.skew_revolutions", period_ns)?;
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
                skew: match row.skew_revolutions {
                    Some(own) => own.spec(&key("skew_revolutions"), period_ns)?,
                    None => common,
                },
            });
            (first_sector, next_cylinder) = (first_sector + sectors, row.first_cylinder + row.cylinders);
        }
        if zones.is_empty() {
            return wrong("hdd.zones", "there are none", "give at least one");
        }
        Ok(zones)
    }
}

impl SkewTable {
    fn spec(&self, key: &str, period_ns: Nanos) -> Checked<Skew> {
        let ns = |field: &str, revolutions: f64| {
            if !(0.0..1.0).contains(&revolutions) {
                let what = format!("{revolutions} is not a part of a revolution");
                return wrong(format!("{key}.{field}"), what, "give at least 0 and less than 1");
            }
            Ok((revolutions * period_ns as f64).round() as Nanos)
        };
        Ok(Skew {
            track_ns: ns("track", self.track)?,
            head_ns: ns("head", self.head)?,
            band_ns: ns("band", self.band)?,
        })
    }
}

impl BusTable {
    fn spec(&self) -> Checked<BusSpec> {
        let key = "hdd.bus.read_water_mark";
        let read_water_ppm = match self.read_water_mark {
            None if self.overlaps_media => 0,
            None => MILLION,
            Some(_) if !self.overlaps_media => {
                return wrong(key, "reads do not overlap the medium", "leave it out, or give overlaps_media = true");
            }
            Some(part) if (0.0..=1.0).contains(&part) => (part * MILLION as f64).round() as u64,
            Some(part) => return wrong(key, format!("{part} is not a part of a request"), "give 0 to 1"),
        };
        Ok(BusSpec {
            byte_ps: byte_ps("hdd.bus.mb_per_s", self.mb_per_s)?,
            read_water_ppm,
            write_overlaps_media: self.write_overlaps_media,
        })
    }
}

impl OverheadTable {
    fn spec(&self, key: &str) -> Checked<OverheadSpec> {
        let ns = |field: &str, value_ms: f64| ms(&format!("{key}.{field}"), value_ms);
        Ok(OverheadSpec {
            read_ns: ns("read", self.read)?,
            write_ns: ns("write", self.write)?,
            read_hit_ns: ns("read_hit", self.read_hit)?,
            write_hit_ns: ns("write_hit", self.write_hit)?,
        })
    }
}

/// How far the arm moves.
#[derive(Clone, Copy, Debug)]
struct Stroke {
    /// Cylinders of the drive, counted from its edge.
    cylinders: u32,
    /// Cylinders of the longest seek.
    longest: u32,
}

impl CurveTable {
    fn table(&self, key: &str, stroke: Stroke, more_ns: u32) -> Checked<SeekTable> {
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
                let table = SeekTable::new(&knots);
                let longest_ms = table.time_ns(stroke.longest) as f64 / 1e6;
                if longest_ms > MILLISECONDS_MOST {
                    let what = format!("continued to {} cylinders, a seek takes {longest_ms:.0} ms", stroke.longest);
                    return wrong(format!("{key}.table_ms"), what, "add rows up to the longest seek");
                }
                Ok(table)
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
                Ok(SeekTable::three_points(ns(single), ns(average), ns(full), stroke.cylinders.max(2)))
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
            ahead_to_track_end: self.ahead_to_track_end,
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
