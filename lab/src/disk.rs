//! `aerogel-lab disk`: simulated drives compared with measured ones, their performance, and what they cost.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use engine::disk::Op;
use engine::units::{BLOCK, Nanos, SECOND, SECTOR};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use sim::disk::drive::compare::{self, Comparison, Details};
use sim::disk::drive::describe::Description;
use sim::disk::drive::{Drive, presets, replay};
use sim::rng::Rng;

use crate::probe::ProbeDrive;

/// The longest list that is read, bytes: ten thousand times the known ones. It limits what a small compressed file can
/// unpack to.
const LIST_BYTES_MAX: u64 = 1 << 30;
/// Requests of one measurement of a rate.
const RATE_REQUESTS: u64 = 5_000;
/// Bytes of sequential reads for one measurement of a rate.
const RATE_BYTES: u64 = 64 << 20;
/// Bytes of one of these reads.
const RATE_REQUEST_BYTES: u64 = 256 << 10;
/// Requests of one measurement of speed, which takes about a tenth of a second.
const SPEED_REQUESTS: u64 = 100_000;
/// Measurements of speed, of which the best counts, since other programs use the machine, too.
const SPEED_ROUNDS: u32 = 5;
/// The limit of the cost of a random read at depth 32, nanoseconds of CPU.
const SPEED_NS_MAX: u64 = 2_000;

/// Simulated drives: against measured ones, how they do, what they cost.
#[derive(Args, Debug)]
pub struct Disk {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Replay measured requests on a simulated drive, one at a time, and compare the response times.
    Validate {
        /// A preset, or a file that describes a drive.
        #[arg(long, value_name = "PRESET|FILE")]
        disk: String,
        /// The measurements of a real drive: CSV with op,lbn,sectors,response_us,gap_us; .gz, .xz and .zst are
        /// unpacked.
        #[arg(long, value_name = "FILE")]
        measured: PathBuf,
        /// The first request of the list that counts, from 1; those before it are replayed, so that the drive's state
        /// is right.
        #[arg(long, value_name = "N", default_value_t = 1)]
        from: usize,
        /// The last request that counts; the list's last one, if not given.
        #[arg(long, value_name = "N")]
        to: Option<usize>,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Describe a simulated drive and measure its performance.
    Show {
        /// A preset, or a file that describes a drive.
        #[arg(value_name = "PRESET|FILE")]
        disk: String,
        /// Print the description itself, as a template.
        #[arg(long)]
        toml: bool,
    },
    /// List the presets.
    List,
    Probe(ProbeDrive),
    /// Measure the CPU time of a simulated random read; fails above 2 microseconds.
    Speed {
        /// Presets or files; without any, all presets.
        #[arg(value_name = "PRESET|FILE")]
        disks: Vec<String>,
    },
}

/// The output of `validate --json`.
#[derive(Serialize)]
struct Validation {
    rms_ms: f64,
    mean_simulated_ms: f64,
    mean_measured_ms: f64,
    requests: usize,
    from: usize,
    to: usize,
    breakdown: Vec<Class>,
    deciles: Vec<Decile>,
    notes: Vec<String>,
}

/// The requests of one kind.
#[derive(Serialize)]
struct Class {
    op: &'static str,
    sequential: bool,
    requests: usize,
    mean_measured_ms: f64,
    mean_simulated_ms: f64,
    rms_ms: f64,
}

/// A quantile of both lists.
#[derive(Serialize)]
struct Decile {
    percent: u32,
    measured_ms: f64,
    simulated_ms: f64,
}

impl Validation {
    fn new(details: &Details, from: usize, notes: Vec<String>) -> Validation {
        let Comparison { rms_ms, mean_simulated_ms, mean_measured_ms, requests } = details.whole;
        let class = |class: &compare::Class| Class {
            op: if class.write { "write" } else { "read" },
            sequential: class.sequential,
            requests: class.comparison.requests,
            mean_measured_ms: class.comparison.mean_measured_ms,
            mean_simulated_ms: class.comparison.mean_simulated_ms,
            rms_ms: class.comparison.rms_ms,
        };
        let decile = |&compare::Decile { percent, measured_ms, simulated_ms }: &compare::Decile| Decile {
            percent,
            measured_ms,
            simulated_ms,
        };
        Validation {
            rms_ms,
            mean_simulated_ms,
            mean_measured_ms,
            requests,
            from,
            to: from + requests - 1,
            breakdown: details.breakdown.iter().map(class).collect(),
            deciles: details.deciles.iter().map(decile).collect(),
            notes,
        }
    }

    fn text(&self) -> String {
        let Validation { rms_ms, mean_simulated_ms, mean_measured_ms, .. } = self;
        let percent = (mean_simulated_ms / mean_measured_ms - 1.0) * 100.0;
        let mut text = format!(
            "  distance   {rms_ms:.3} ms (root mean square, between the sorted response times)\n  \
             mean       {mean_simulated_ms:.3} ms simulated, {mean_measured_ms:.3} ms measured ({percent:+.1} %)\n\n  \
             {:24}{:>9}{:>12}{:>12}{:>12}\n",
            "ms", "requests", "measured", "simulated", "distance"
        );
        for class in &self.breakdown {
            let name = format!("{}s, {}", class.op, if class.sequential { "sequential" } else { "other" });
            let Class { requests, mean_measured_ms, mean_simulated_ms, rms_ms, .. } = class;
            text +=
                &format!("  {name:24}{requests:>9}{mean_measured_ms:>12.3}{mean_simulated_ms:>12.3}{rms_ms:>12.3}\n");
        }
        text += "\n";
        for Decile { percent, measured_ms, simulated_ms } in &self.deciles {
            let difference = simulated_ms - measured_ms;
            let name = format!("{percent} % take at most");
            text += &format!("  {name:33}{measured_ms:>12.3}{simulated_ms:>12.3}{difference:>+12.3}\n");
        }
        text
    }
}

impl Disk {
    /// Executes the command. The status is 1 if it fails, or if a claim does not hold.
    pub fn run(self) -> ExitCode {
        let done = match self.command {
            Command::Validate { disk, measured, from, to, json } => validate(&disk, &measured, from, to, json),
            Command::Show { disk, toml } => show(&disk, toml),
            Command::List => list(),
            Command::Probe(probe) => match probe.run() {
                Ok(status) => return status,
                Err(error) => Err(error),
            },
            Command::Speed { disks } => speed(disks),
        };
        match done {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
        }
    }
}

/// The text of a preset or of a file.
fn description_text(disk: &str) -> Result<String> {
    if let Some(text) = presets::text(disk) {
        return Ok(text.into());
    }
    let names: Vec<_> = presets::PRESETS.iter().map(|(name, _)| *name).collect();
    std::fs::read_to_string(disk)
        .with_context(|| format!("{disk} is no preset ({}), and cannot be read as a file", names.join(", ")))
}

fn description(disk: &str) -> Result<Description> {
    Description::parse(&description_text(disk)?).with_context(|| disk.to_string())
}

/// The drive of a preset or of a description file.
pub fn build(disk: &str) -> Result<Box<dyn Drive>> {
    description(disk)?.build().with_context(|| disk.to_string())
}

/// Prints what a description leaves open, and returns it.
fn tell_notes(description: &Description) -> Result<Vec<String>> {
    let notes = description.notes()?;
    notes.iter().for_each(|note| eprintln!("note: {note}"));
    Ok(notes)
}

fn validate(disk: &str, measured: &Path, from: usize, to: Option<usize>, json: bool) -> Result<()> {
    let mut drive = build(disk)?;
    let notes = tell_notes(&description(disk)?)?;
    let name = || measured.display().to_string();
    let list = read_list(measured).with_context(name)?;
    let list = replay::parse(&list).with_context(name)?;
    let details = replay::validate_part(&mut *drive, &list, from, to).with_context(name)?;
    let validation = Validation::new(&details, from, notes);
    if json {
        println!("{}", serde_json::to_string(&validation)?);
        return Ok(());
    }
    let Validation { requests, to, .. } = validation;
    let part = if requests < list.len() { format!(" ({from} to {to} of {})", list.len()) } else { String::new() };
    println!("{disk} against {}, {requests} requests{part} one at a time", measured.display());
    print!("{}", validation.text());
    Ok(())
}

/// Reads a list, unpacked according to its name.
fn read_list(path: &Path) -> Result<String> {
    let file = File::open(path)?;
    let unpacked: Box<dyn Read> = match path.extension().and_then(|extension| extension.to_str()) {
        Some("gz") => Box::new(flate2::read::MultiGzDecoder::new(file)),
        Some("xz") => Box::new(liblzma::read::XzDecoder::new_multi_decoder(file)),
        Some("zst") => Box::new(zstd::Decoder::new(file)?),
        _ => Box::new(file),
    };
    let mut text = String::new();
    unpacked.take(LIST_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LIST_BYTES_MAX {
        bail!("it is longer than {} MiB; split it", LIST_BYTES_MAX >> 20);
    }
    Ok(text)
}

fn list() -> Result<()> {
    for (name, _) in presets::PRESETS {
        println!("{name:20} {}", description(name)?.model);
    }
    Ok(())
}

fn show(disk: &str, toml: bool) -> Result<()> {
    if toml {
        // The description is checked before it is printed.
        build(disk)?;
        print!("{}", description_text(disk)?);
        return Ok(());
    }
    let described = description(disk)?;
    let bytes = build(disk)?.bytes();
    println!("{}", described.model);
    println!("  from       {}", described.source);
    let size = match bytes {
        0..1_000_000_000 => format!("{:.3} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    };
    println!("  size       {size}, {} sectors", bytes / SECTOR);
    let rates: Vec<_> = [1, 2, 4, 8, 16, 32].map(|depth| (depth, random_reads(disk, depth))).into();
    for (title, unit) in [("depth", false), ("4 KiB reads/s", true)] {
        let cells = rates.iter().map(|(depth, rate)| match (unit, rate) {
            (true, Ok(Some(rate))) => format!("{rate:>9.1}"),
            (true, _) => format!("{:>9}", "-"),
            (false, _) => format!("{depth:>9}"),
        });
        println!("  {title:13}{}", cells.collect::<String>());
    }
    for (title, from) in [("first bytes", 0), ("last bytes", bytes.saturating_sub(RATE_BYTES))] {
        println!("  {title:13}{:>9.1} MB/s", sequential_reads(disk, from / BLOCK * BLOCK)?);
    }
    tell_notes(&described)?;
    Ok(())
}

/// Random reads of 4 KiB over the whole drive, requests per second; `None` if it is smaller than that.
fn random_reads(disk: &str, depth: u64) -> Result<Option<f64>> {
    let (mut drive, mut rng) = (build(disk)?, Rng::new(depth));
    let blocks = drive.bytes() / BLOCK;
    if blocks == 0 {
        return Ok(None);
    }
    let next = || (Op::Read, rng.below(blocks) * BLOCK, BLOCK);
    let elapsed: Nanos = replay::closed_loop(&mut *drive, depth, RATE_REQUESTS, next);
    Ok(Some(RATE_REQUESTS as f64 * SECOND as f64 / elapsed as f64))
}

/// Sequential reads from `from` on, to the end of the drive at most: megabytes per second.
fn sequential_reads(disk: &str, from: u64) -> Result<f64> {
    let mut drive = build(disk)?;
    let end = drive.bytes().min(from + RATE_BYTES);
    let mut at = from;
    let elapsed = replay::closed_loop(&mut *drive, 2, (end - from).div_ceil(RATE_REQUEST_BYTES), || {
        let (begin, len) = (at, RATE_REQUEST_BYTES.min(end - at));
        at += len;
        (Op::Read, begin, len)
    });
    Ok((end - from) as f64 * 1e3 / elapsed as f64)
}

fn speed(mut disks: Vec<String>) -> Result<()> {
    if disks.is_empty() {
        disks = presets::PRESETS.iter().map(|(name, _)| name.to_string()).collect();
    }
    println!("{:20} nanoseconds of CPU for a random 4 KiB read, at depth 1, 8 and 32", "");
    let mut worst_ns = 0;
    for name in &disks {
        let mut cells = String::new();
        for depth in [1, 8, 32] {
            let ns = cost_ns(name, depth)?;
            worst_ns = worst_ns.max(ns);
            cells += &format!("{ns:>8}");
        }
        println!("{name:20}{cells}");
    }
    if worst_ns > SPEED_NS_MAX {
        bail!("{worst_ns} ns are more than {SPEED_NS_MAX}");
    }
    println!("at most {worst_ns} ns, {SPEED_NS_MAX} allowed");
    Ok(())
}

/// The cost of a simulated request, nanoseconds, without generating it: offsets are chosen before.
fn cost_ns(disk: &str, depth: u64) -> Result<u64> {
    let (mut rng, blocks) = (Rng::new(depth), build(disk)?.bytes() / BLOCK);
    ensure!(blocks > 0, "{disk} is smaller than a request of 4 KiB");
    let places: Vec<u64> = (0..SPEED_REQUESTS).map(|_| rng.below(blocks) * BLOCK).collect();
    let mut best_ns = u64::MAX;
    for _ in 0..SPEED_ROUNDS {
        let mut drive = build(disk)?;
        let mut next = places.iter();
        let began = cpu_time_ns();
        replay::closed_loop(&mut *drive, depth, SPEED_REQUESTS, || {
            (Op::Read, *next.next().expect("as many places as requests"), BLOCK)
        });
        best_ns = best_ns.min(cpu_time_ns() - began);
    }
    Ok(best_ns / SPEED_REQUESTS)
}

/// CPU time of this thread, so that the load of other programs does not count.
fn cpu_time_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * SECOND + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lists_are_unpacked_by_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let text = format!("{}\nR,10,8,5000,12\n", replay::HEADER);
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(text.as_bytes()).unwrap();
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
        xz.write_all(text.as_bytes()).unwrap();
        let zst = zstd::encode_all(text.as_bytes(), 1).unwrap();
        let packed = [
            ("csv", text.clone().into()),
            ("csv.gz", gz.finish().unwrap()),
            ("csv.xz", xz.finish().unwrap()),
            ("csv.zst", zst),
        ];
        for (extension, bytes) in packed {
            let path = dir.path().join(format!("list.{extension}"));
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(read_list(&path).unwrap(), text, "{extension}");
            validate("nearline", &path, 1, None, true).unwrap();
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = format!("{:#}", build("no-such-drive").unwrap_err());
        assert!(error.contains("no-such-drive is no preset (cheetah-15k5, "), "{error}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml");
        std::fs::write(&path, presets::text("flash").unwrap().replace("channels = 16", "channels = 0")).unwrap();
        let error = format!("{:#}", build(path.to_str().unwrap()).unwrap_err());
        assert!(error.contains("mine.toml: flash.channels: 0 is out of range; give 1 to"), "{error}");
        let list = dir.path().join("other.csv");
        std::fs::write(&list, format!("{}\nR,999999999999,8,5000,12\n", replay::HEADER)).unwrap();
        let error = format!("{:#}", validate("cheetah-15k5", &list, 1, None, true).unwrap_err());
        assert!(error.contains("other.csv: line 2: sectors 999999999999"), "{error}");
    }

    /// A disk of `cylinders` with one head and 8 sectors a track.
    fn tiny(cylinders: u32) -> String {
        let text = presets::text("barracuda-7200.9").unwrap();
        let (head, rest) = text.split_once("zones = [").unwrap();
        let (_, rest) = rest.split_once("\n]\n").unwrap();
        let zones = format!("zones = [{{ first_cylinder = 0, cylinders = {cylinders}, sectors_per_track = 8 }}]\n");
        format!("{head}{zones}{rest}").replace("heads = 4", "heads = 1")
    }

    #[test]
    fn a_drive_of_any_size_is_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml");
        let disk = path.to_str().unwrap();
        // Smaller and larger than what a rate is measured on, and in the end less than a request of 4 KiB.
        let flash = presets::text("flash").unwrap().replace("480_103_981_056", "512");
        for text in [tiny(1), tiny(100), tiny(16_384), tiny(16_385), flash] {
            std::fs::write(&path, text).unwrap();
            show(disk, false).unwrap();
            let bytes = build(disk).unwrap().bytes();
            assert_eq!(random_reads(disk, 32).unwrap().is_some(), bytes >= BLOCK);
            assert!(sequential_reads(disk, bytes.saturating_sub(RATE_BYTES) / BLOCK * BLOCK).unwrap() > 0.0);
        }
        let error = speed(vec![disk.into()]).unwrap_err().to_string();
        assert!(error.contains("smaller than a request"), "{error}");
    }

    #[test]
    fn an_error_of_the_toml_is_printed_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mine.toml");
        std::fs::write(&path, presets::text("flash").unwrap().replace("channels", "chanels")).unwrap();
        let error = format!("{:#}", build(path.to_str().unwrap()).unwrap_err());
        assert_eq!(error.matches("unknown field `chanels`").count(), 1, "{error}");
        assert!(error.contains("mine.toml: "), "{error}");
    }

    #[test]
    fn a_part_of_a_list_is_compared_in_detail() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("list.csv");
        let rows = "R,0,8,5000,12\nR,8,8,1000,12\nW,16,8,7000,12\nW,9000,8,7000,12\n";
        std::fs::write(&list, format!("{}\n{rows}", replay::HEADER)).unwrap();
        let mut drive = build("nearline").unwrap();
        let text = read_list(&list).unwrap();
        let details = replay::validate_part(&mut *drive, &replay::parse(&text).unwrap(), 2, Some(3)).unwrap();
        let validation = Validation::new(&details, 2, Vec::new());
        let json: serde_json::Value = serde_json::to_value(&validation).unwrap();
        assert!(json["requests"] == 2 && json["from"] == 2 && json["to"] == 3, "{json}");
        assert_eq!(json["breakdown"].as_array().unwrap().len(), 2);
        let [read, write] = [0, 1].map(|index| &json["breakdown"][index]);
        assert!(read["op"] == "read" && read["sequential"] == true && read["mean_measured_ms"] == 1.0, "{read}");
        assert!(write["op"] == "write" && write["sequential"] == true && write["requests"] == 1, "{write}");
        let deciles = json["deciles"].as_array().unwrap();
        assert!(deciles.len() == 11 && deciles[10]["percent"] == 100 && deciles[10]["measured_ms"] == 7.0, "{json}");
        let text = validation.text();
        assert!(text.contains("reads, sequential") && text.contains("50 % take at most"), "{text}");
        let error = format!("{:#}", validate("nearline", &list, 3, Some(5), true).unwrap_err());
        assert!(error.contains("no part from request 3 to 5: it has requests 1 to 4"), "{error}");
    }
}
