//! `aerogel-lab disk probe`: the probe that ships, on a simulated drive in virtual time, compared with the true values.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use engine::disk::profile::{BUDGET_NS, Options, Probe, Space};
use engine::units::{BLOCK, SECOND};
use serde::Serialize;
use sim::disk::drive::describe::Description;
use sim::disk::drive::presets;
use sim::disk::probe::probe;
use sim::disk::truth::{Truth, truth};

/// Probe a simulated drive in virtual time, and compare the results with the true values; fails if they differ too
/// much.
#[derive(Args, Debug)]
pub struct ProbeDrive {
    /// A preset, or a file that describes a drive.
    #[arg(value_name = "PRESET|FILE")]
    disk: String,
    /// One JSON object.
    #[arg(long)]
    json: bool,
    /// The seed of the probe's random offsets.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Seconds of the drive's time, at most; less is less exact.
    #[arg(long, default_value_t = BUDGET_NS / SECOND)]
    seconds: u64,
}

#[derive(Serialize)]
struct Report {
    model: String,
    took_s: f64,
    values: Vec<Line>,
}

/// A measured value and the true one.
#[derive(Serialize)]
struct Line {
    name: String,
    found: Option<f64>,
    error_ratio: Option<f64>,
    /// `None` if the description does not tell.
    truth: Option<Option<f64>>,
    holds: Option<bool>,
}

impl ProbeDrive {
    /// Runs the probe, and prints the result.
    pub fn run(self) -> Result<ExitCode> {
        let description = describe(&self.disk)?;
        let mut drive = description.build().with_context(|| self.disk.clone())?;
        let budget_ns = self.seconds.max(1).saturating_mul(SECOND);
        let options = Options { budget_ns, seed: self.seed, read_only: false };
        Probe::new(Space::whole(drive.bytes(), BLOCK), options, 0).with_context(|| self.disk.clone())?;
        let (found, took_ns) = probe(&mut *drive, options);
        let truths = truth(&description, self.seed)?;
        let line = |(key, finding): &(_, engine::disk::profile::Finding)| {
            let truth: Option<&Truth> = truths.iter().find(|truth| truth.key == *key);
            Line {
                name: key.to_string(),
                found: finding.value,
                error_ratio: finding.error_ratio,
                truth: truth.map(|truth| truth.value),
                holds: truth.map(|truth| truth.accepts(finding.value)),
            }
        };
        let values = found.iter().map(line).collect();
        let report = Report { model: description.model.clone(), took_s: took_ns as f64 / SECOND as f64, values };
        let text = if self.json { serde_json::to_string_pretty(&report)? + "\n" } else { report.table() };
        // A closed pipe is ignored.
        let _ = std::io::stdout().write_all(text.as_bytes());
        let holds = report.values.iter().all(|line| line.holds != Some(false));
        Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn describe(disk: &str) -> Result<Description> {
    if let Some(preset) = presets::preset(disk) {
        return Ok(preset?);
    }
    if !Path::new(disk).exists() {
        let names: Vec<_> = presets::PRESETS.iter().map(|(name, _)| *name).collect();
        bail!("'{disk}' is neither a file nor a preset; there are {}", names.join(", "));
    }
    let text = std::fs::read_to_string(disk).with_context(|| format!("cannot read {disk}"))?;
    Description::parse(&text).with_context(|| format!("cannot understand {disk}"))
}

impl Report {
    fn table(&self) -> String {
        let mut text = format!("{}: probed in {:.1} s of its time\n\n", self.model, self.took_s);
        text += &format!("{:<50} {:>14} {:>7} {:>14} {:>8}\n", "value", "found", "error", "truth", "off");
        for line in &self.values {
            let number = |value: Option<f64>| value.map_or("none".into(), |value| format!("{value:.2}"));
            let error = line.error_ratio.map_or(String::new(), |ratio| format!("{:.1} %", ratio * 100.0));
            let truth = line.truth.map_or(String::new(), number);
            let off = match (line.found, line.truth.flatten()) {
                (Some(found), Some(truth)) if truth != 0.0 => format!("{:+.1} %", (found / truth - 1.0) * 100.0),
                _ => String::new(),
            };
            let verdict = if line.holds == Some(false) { "  TOO FAR" } else { "" };
            let found = number(line.found);
            text += &format!("{:<50} {found:>14} {error:>7} {truth:>14} {off:>8}{verdict}\n", line.name);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_is_probed_or_too_small() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mine.toml");
        let of = |bytes: u64| {
            let text = presets::text("flash").unwrap().replace("480_103_981_056", &bytes.to_string());
            std::fs::write(&path, text).unwrap();
            ProbeDrive { disk: path.display().to_string(), json: true, seed: 1, seconds: 1 }.run()
        };
        let error = format!("{:#}", of((16 << 20) - 512).unwrap_err());
        assert!(error.contains("mine.toml: a probe needs 16777216 bytes"), "{error}");
        of(16 << 20).unwrap();
    }
}
