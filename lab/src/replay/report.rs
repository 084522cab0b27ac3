//! The report of a replay, as text and as JSON.

use engine::units::Nanos;
use hdrhistogram::Histogram;
use serde::Serialize;
use sim::load::Op;

use super::fit::Changes;
use crate::quantity::{show_bytes, show_count, show_time};

/// The measurements of one operation.
#[derive(Debug)]
pub struct Measured {
    /// From when a request was due to its answer, nanoseconds. This is the latency that counts.
    pub latency: Histogram<u64>,
    /// From when it was sent to its answer, nanoseconds.
    pub service: Histogram<u64>,
    /// Bytes of successful requests.
    pub bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
}

impl Default for Measured {
    fn default() -> Measured {
        // Three digits: an error of 0.1 % at any latency, in some tens of kilobytes.
        let histogram = || Histogram::new(3).expect("3 digits are allowed");
        Measured { latency: histogram(), service: histogram(), bytes: 0, errors: 0 }
    }
}

/// Measurements by operation.
#[derive(Default, Debug)]
pub struct Measurements([Measured; 4]);

impl Measurements {
    /// The measurements of an operation.
    pub fn of(&mut self, op: Op) -> &mut Measured {
        &mut self.0[op as usize]
    }

    /// A report of the measurements after this many nanoseconds; its other fields are empty.
    pub fn report(&self, elapsed_ns: Nanos) -> Report {
        let [reads, writes, trims, flushes] =
            [Op::Read, Op::Write, Op::Trim, Op::Flush].map(|op| Operation::of(&self.0[op as usize]));
        let all = || [&reads, &writes, &trims, &flushes].into_iter().flatten();
        let requests = all().map(|of| of.requests).sum();
        let errors = all().map(|of| of.errors).sum();
        let bytes = [&reads, &writes].into_iter().flatten().map(|of| of.bytes).sum();
        let seconds = elapsed_ns as f64 / 1e9;
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        Report {
            seconds,
            requests,
            requests_per_second: per_second(requests),
            bytes_per_second: per_second(bytes),
            errors,
            reads,
            writes,
            trims,
            flushes,
            ..Report::default()
        }
    }
}

/// The output of `replay --json`; the text has the same content.
#[derive(Clone, Default, PartialEq, Debug, Serialize)]
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
    /// How late requests were sent, 99th percentile and maximum: the driver's own part of the latency.
    pub late_p99_ns: u64,
    pub late_max_ns: u64,
    pub changes: Changes,
    pub reads: Option<Operation>,
    pub writes: Option<Operation>,
    pub trims: Option<Operation>,
    pub flushes: Option<Operation>,
}

/// The values of one operation.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Operation {
    pub requests: u64,
    pub bytes: u64,
    pub errors: u64,
    pub latency: Percentiles,
    pub service: Percentiles,
}

/// Percentiles, nanoseconds.
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
    /// `None` if there were no requests.
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
    /// The report as text.
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
