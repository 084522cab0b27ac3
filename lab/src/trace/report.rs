//! The summary of a trace, as text and as JSON.

use serde::Serialize;

use super::picture;
use super::read::Broken;
use super::{Summary, Tally};
use crate::quantity::{show_bytes, show_count, show_share, show_time};

/// The output of `trace info --json`; the text has the same content.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the manual says")]
pub struct Report {
    pub file: String,
    pub format: String,
    pub requests: u64,
    pub reads: u64,
    pub writes: u64,
    pub trims: u64,
    pub flushes: u64,
    pub read_share: Option<f64>,
    pub read_bytes: u64,
    pub write_bytes: u64,
    pub devices: usize,
    pub duration_seconds: f64,
    pub mean_requests_per_second: Option<f64>,
    pub mean_bytes_per_second: Option<f64>,
    pub peak_requests_in_1s: u64,
    pub busiest_second: i64,
    pub busiest_minute: i64,
    pub busiest_minute_requests: u64,
    pub footprint_bytes: u64,
    pub span_bytes: u64,
    pub lowest_byte: u64,
    pub sequential_share: Option<f64>,
    pub in_streams_share: Option<f64>,
    pub whole_4k_share: Option<f64>,
    /// Fractions of reads and writes that begin at each of the 8 sectors of a block, and of those that begin inside a
    /// sector.
    pub begin_sector_shares: Vec<f64>,
    pub sizes: Vec<Size>,
    pub gap_ns: Percentiles,
    pub unsorted: u64,
    pub broken_lines: u64,
    pub first_broken: Vec<Broken>,
    pub left_out: Vec<LeftOut>,
}

/// How often a size occurs.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Size {
    pub bytes: u64,
    pub requests: u64,
}

/// What was omitted on purpose.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct LeftOut {
    pub what: String,
    pub lines: u64,
}

/// Percentiles, nanoseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Percentiles {
    pub p10: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub max: u64,
}

/// Sizes that the text lists.
const SIZES_SHOWN: usize = 6;

impl Report {
    /// The report of a trace that was read to its end.
    pub fn new(file: &str, format: &str, summary: &Summary, tally: &Tally) -> Report {
        let ranged = summary.reads + summary.writes;
        let of = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
        let seconds = summary.duration_ns() as f64 / 1e9;
        let per_second = |count: u64| (seconds > 0.0).then(|| count as f64 / seconds);
        let (busiest_second, peak) = summary.busiest(1);
        let (busiest_minute, busiest_minute_requests) = summary.busiest(60);
        let gap = |quantile| summary.gaps.value_at_quantile(quantile);
        Report {
            file: file.into(),
            format: format.into(),
            requests: summary.requests(),
            reads: summary.reads,
            writes: summary.writes,
            trims: summary.trims,
            flushes: summary.flushes,
            read_share: of(summary.reads, ranged),
            read_bytes: summary.read_bytes,
            write_bytes: summary.write_bytes,
            devices: summary.devices.len(),
            duration_seconds: seconds,
            mean_requests_per_second: per_second(summary.requests()),
            mean_bytes_per_second: per_second(summary.read_bytes + summary.write_bytes),
            peak_requests_in_1s: peak,
            busiest_second,
            busiest_minute,
            busiest_minute_requests,
            footprint_bytes: summary.footprint.len() * engine::units::BLOCK,
            span_bytes: summary.highest.saturating_sub(summary.lowest),
            lowest_byte: if ranged > 0 { summary.lowest } else { 0 },
            sequential_share: of(summary.sequential, ranged),
            in_streams_share: of(summary.in_streams, ranged),
            whole_4k_share: of(summary.whole_blocks, ranged),
            begin_sector_shares: summary.begin_sectors.iter().filter_map(|&count| of(count, ranged)).collect(),
            sizes: summary.sizes.iter().map(|(&bytes, &requests)| Size { bytes, requests }).collect(),
            gap_ns: Percentiles {
                p10: gap(0.1),
                p50: gap(0.5),
                p90: gap(0.9),
                p99: gap(0.99),
                max: summary.gaps.max(),
            },
            unsorted: summary.unsorted,
            broken_lines: tally.broken,
            first_broken: tally.first_broken.clone(),
            left_out: tally.left_out.iter().map(|(&what, &lines)| LeftOut { what: what.into(), lines }).collect(),
        }
    }

    /// The report as text, with a picture.
    pub fn text(&self, summary: &Summary) -> String {
        let ranged = self.reads + self.writes;
        let ns = summary.duration_ns();
        let rate = |rate: Option<f64>| rate.map_or("no times in it".into(), |rate| format!("{rate:.1} a second"));
        let bytes_rate =
            self.mean_bytes_per_second.map_or_else(String::new, |rate| format!(", {}/s", show_bytes(rate as u64)));
        let percent = |share: Option<f64>| share.map_or("-".into(), |share| format!("{:.1} %", share * 100.0));
        let mut lines = vec![
            ("trace", format!("{} ({})", self.file, self.format)),
            ("requests", format!("{} in {}{}", show_count(self.requests), show_time(ns), several(self.devices))),
            (
                "reads",
                format!(
                    "{} ({}), {}",
                    show_count(self.reads),
                    show_share(self.reads, ranged),
                    show_bytes(self.read_bytes)
                ),
            ),
            (
                "writes",
                format!(
                    "{} ({}), {}",
                    show_count(self.writes),
                    show_share(self.writes, ranged),
                    show_bytes(self.write_bytes)
                ),
            ),
        ];
        if self.trims + self.flushes > 0 {
            lines.push(("others", format!("{} trims, {} flushes", show_count(self.trims), show_count(self.flushes))));
        }
        lines.extend([
            ("mean rate", rate(self.mean_requests_per_second) + &bytes_rate),
            ("peak in 1 s", format!("{} (second {})", show_count(self.peak_requests_in_1s), self.busiest_second)),
            (
                "busiest minute",
                format!("{} (minute {})", show_count(self.busiest_minute_requests), self.busiest_minute),
            ),
            ("footprint", format!("{} of 4 KiB blocks", both_units(self.footprint_bytes))),
            ("span", format!("{} from byte {}", both_units(self.span_bytes), self.lowest_byte)),
            ("sequential", format!("{} begin where the one before ended", percent(self.sequential_share))),
            ("in streams", format!("{} where one of the last 32 on the device ended", percent(self.in_streams_share))),
            ("alignment", format!("{} in whole 4 KiB blocks{}", percent(self.whole_4k_share), self.odd_sector())),
            ("sizes", self.common_sizes(ranged)),
            ("gaps", self.gaps()),
        ]);
        let mut text = String::new();
        for (name, value) in lines {
            text += &format!("{name:<15} {value}\n");
        }
        text += &self.problems();
        text + "\n" + &picture::draw(summary)
    }

    /// The sector where most requests begin, if it is not the first one of a block.
    fn odd_sector(&self) -> String {
        let shares = self.begin_sector_shares.iter().enumerate();
        match shares.max_by(|a, b| a.1.total_cmp(b.1)) {
            Some((8, share)) => format!("; {:.1} % begin inside of a sector", share * 100.0),
            Some((sector @ 1.., share)) => format!("; {:.1} % begin at sector {sector} of 8", share * 100.0),
            _ => String::new(),
        }
    }

    fn common_sizes(&self, ranged: u64) -> String {
        let mut sizes: Vec<&Size> = self.sizes.iter().collect();
        sizes.sort_by_key(|size| std::cmp::Reverse(size.requests));
        let shown = sizes.iter().take(SIZES_SHOWN);
        let shown = shown.map(|size| format!("{} {}", show_bytes(size.bytes), show_share(size.requests, ranged)));
        let more =
            if sizes.len() > SIZES_SHOWN { format!(", {} more", sizes.len() - SIZES_SHOWN) } else { String::new() };
        shown.collect::<Vec<_>>().join(", ") + &more
    }

    fn gaps(&self) -> String {
        let Percentiles { p50, p90, p99, max, .. } = self.gap_ns;
        let [p50, p90, p99, max] = [p50, p90, p99, max].map(show_time);
        format!("median {p50}, 90 % {p90}, 99 % {p99}, longest {max}")
    }

    fn problems(&self) -> String {
        let mut text = String::new();
        if self.unsorted > 0 {
            text += &format!("{:<15} {} are earlier than the one before\n", "order", show_count(self.unsorted));
        }
        for left_out in &self.left_out {
            text += &format!("{:<15} {} {}\n", "left out", show_count(left_out.lines), left_out.what);
        }
        text + &broken(self.broken_lines, &self.first_broken)
    }
}

/// A message about broken lines, if there are any.
pub fn broken(count: u64, first: &[Broken]) -> String {
    if count == 0 {
        return String::new();
    }
    let mut text = format!("{:<15} {} lines\n", "broken", show_count(count));
    first.iter().for_each(|broken| text += &format!("{:<15} {broken}\n", ""));
    text
}

fn several(devices: usize) -> String {
    if devices > 1 { format!(", on {devices} devices") } else { String::new() }
}

/// In powers of ten, as traces are published, and in powers of two, as memory is sold.
fn both_units(bytes: u64) -> String {
    let (number, unit) = match bytes {
        0..1_000_000_000 => (bytes as f64 / 1e6, "MB"),
        1_000_000_000..1_000_000_000_000 => (bytes as f64 / 1e9, "GB"),
        _ => (bytes as f64 / 1e12, "TB"),
    };
    format!("{} ({number:.1} {unit})", show_bytes(bytes))
}
