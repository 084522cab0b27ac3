//! What a replay found, for people and for programs.

use hdrhistogram::Histogram;
use serde::Serialize;
use sim::load::Op;

use super::fit::Changes;
use crate::quantity::{show_bytes, show_count, show_time};

/// What is measured of one operation.
#[derive(Debug)]
pub struct Measured {
    /// From when a request was meant to be made to its answer, nanoseconds. What counts.
    pub latency: Histogram<u64>,
    /// From when it was made to its answer, nanoseconds.
    pub service: Histogram<u64>,
    /// Bytes of those that succeeded.
    pub bytes: u64,
    /// Answered with an error.
    pub errors: u64,
}

impl Default for Measured {
    fn default() -> Measured {
        // Three digits: 0.1 % of error at any latency, in some tens of kilobytes.
        let histogram = || Histogram::new(3).expect("3 digits are allowed");
        Measured { latency: histogram(), service: histogram(), bytes: 0, errors: 0 }
    }
}

/// By operation.
#[derive(Default, Debug)]
pub struct Measurements([Measured; 4]);

impl Measurements {
    /// Those of an operation.
    pub fn of(&mut self, op: Op) -> &mut Measured {
        &mut self.0[op as usize]
    }
}

/// What `replay --json` prints; the text says the same.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say what the manual says")]
pub struct Report {
    pub what: String,
    pub uri: String,
    pub mode: String,
    pub connections: usize,
    pub volume_bytes: u64,
    pub seconds: f64,
    pub requests: u64,
    pub requests_per_second: f64,
    pub bytes_per_second: f64,
    pub errors: u64,
    pub outstanding_max: usize,
    /// How late requests were made at the 99th percentile and at most: the driver's own share of the latency.
    pub late_p99_ns: u64,
    pub late_max_ns: u64,
    pub changes: Changes,
    pub reads: Option<Operation>,
    pub writes: Option<Operation>,
    pub trims: Option<Operation>,
    pub flushes: Option<Operation>,
}

/// Of one operation.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Operation {
    pub requests: u64,
    pub bytes: u64,
    pub errors: u64,
    pub latency: Percentiles,
    pub service: Percentiles,
}

/// Of nanoseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Percentiles {
    pub mean_ns: f64,
    pub min_ns: u64,
    pub p50_ns: u64,
    pub p90_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    pub p9999_ns: u64,
    pub max_ns: u64,
}

impl Percentiles {
    fn of(histogram: &Histogram<u64>) -> Percentiles {
        let at = |quantile| histogram.value_at_quantile(quantile);
        Percentiles {
            mean_ns: histogram.mean(),
            min_ns: histogram.min(),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            p9999_ns: at(0.9999),
            max_ns: histogram.max(),
        }
    }

    fn line(&self) -> String {
        let Percentiles { p50_ns, p90_ns, p99_ns, p999_ns, max_ns, .. } = *self;
        let mean = show_time(self.mean_ns as u64);
        let [p50, p90, p99, p999, max] = [p50_ns, p90_ns, p99_ns, p999_ns, max_ns].map(show_time);
        format!("mean {mean}, 50 % {p50}, 90 % {p90}, 99 % {p99}, 99.9 % {p999}, most {max}")
    }
}

impl Operation {
    /// None if there was none.
    pub fn of(measured: &Measured) -> Option<Operation> {
        let requests = measured.latency.len() + measured.errors;
        (requests > 0).then(|| Operation {
            requests,
            bytes: measured.bytes,
            errors: measured.errors,
            latency: Percentiles::of(&measured.latency),
            service: Percentiles::of(&measured.service),
        })
    }
}

impl Report {
    /// For people.
    pub fn text(&self) -> String {
        let mut lines = vec![
            ("replayed", format!("{}, {}, connections: {}", self.what, self.mode, self.connections)),
            ("on", format!("{} ({})", self.uri, show_bytes(self.volume_bytes))),
            (
                "requests",
                format!(
                    "{} in {:.2} s: {:.0} a second, {}/s",
                    show_count(self.requests),
                    self.seconds,
                    self.requests_per_second,
                    show_bytes(self.bytes_per_second as u64)
                ),
            ),
        ];
        if self.errors > 0 {
            lines.push(("errors", show_count(self.errors)));
        }
        for (name, operation) in
            [("reads", &self.reads), ("writes", &self.writes), ("trims", &self.trims), ("flushes", &self.flushes)]
        {
            let Some(operation) = operation else { continue };
            lines.push((name, format!("{}, {}", show_count(operation.requests), show_bytes(operation.bytes))));
            lines.push(("  latency", operation.latency.line()));
            if self.mode.starts_with("open") {
                lines.push(("  once made", operation.service.line()));
            }
        }
        lines.push(("outstanding", format!("{} at most", show_count(self.outstanding_max as u64))));
        let (p99, most) = (show_time(self.late_p99_ns), show_time(self.late_max_ns));
        lines.push(("made late by", format!("{p99} at the 99th percentile, {most} at most (counted in the latency)")));
        let Changes { wrapped, scaled, skipped, widened, shortened, left_out } = self.changes;
        let changes = [
            (wrapped, "beyond the volume's end, wrapped round"),
            (scaled, "moved in proportion to the volume"),
            (skipped, "beyond the volume's end, left out"),
            (widened, "widened to the server's blocks"),
            (shortened, "shortened to what the server takes"),
            (left_out, "left out: not offered by the server, or not asked for"),
        ];
        for (count, what) in changes.into_iter().filter(|&(count, _)| count > 0) {
            lines.push(("changed", format!("{} {what}", show_count(count))));
        }
        lines.iter().map(|(name, value)| format!("{name:<13} {value}\n")).collect()
    }
}
