//! `aerogel-lab trace`: inspects, converts and generates traces.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use sim::load::{Workload, unroll};

use super::compression::Out;
use super::{Format, Losses, Names, Report, Summary, Trace, Writer, report, svg};
use crate::load::Limit;
use crate::quantity::{show_count, show_time, size, time};

/// Devices that an error message lists at most.
const DEVICES_SHOWN: u32 = 20;

/// Inspect, convert and generate traces of block I/O
#[derive(Args, Debug)]
pub struct TraceArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Summarise a trace: requests, rates, sizes and offsets, with a picture
    Info(Info),
    /// Write a trace in another format
    Convert(Convert),
    /// Generate a trace from a load description
    Make(Make),
}

#[derive(Args, Debug)]
struct Info {
    /// The trace, plain or compressed (gz, xz, zst); '-' for the standard input
    file: PathBuf,
    #[command(flatten)]
    reading: Reading,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw it into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// How traces are read.
#[derive(Args, Clone, Debug)]
pub struct Reading {
    /// The format, if the extension does not determine it: blkreplay, vscsi, disksim, ssdsim (or mqsim), msr, spc,
    /// blkparse (Q events), blkparse-d (D events), iolog
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Count read-ahead requests of blkreplay loads ('RA') as reads; they are left out otherwise
    #[arg(long)]
    read_ahead: bool,
    /// Only the requests of this device of the trace: '8,0' of blkparse, 'usr_1' of msr, the number or file of others
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
}

impl Reading {
    /// Opens a trace.
    pub fn open(&self, path: &Path) -> anyhow::Result<Trace> {
        let trace = Trace::open(path, self.format)?.with_read_ahead(self.read_ahead);
        Ok(trace.with_device(self.device.clone()))
    }

    /// For an error message: where no request was found, and which devices there are.
    fn place(&self, shown: &str, trace: &Trace) -> String {
        let Some(device) = &self.device else { return format!("in {shown}") };
        let names = (0..DEVICES_SHOWN).filter_map(|number| trace.names().name(number)).collect::<Vec<_>>();
        format!("of device '{device}' in {shown}; its devices: {}", names.join(" "))
    }

    /// The format that a file is read as.
    pub fn format(&self, path: &Path) -> anyhow::Result<Format> {
        Ok(self.format.map_or_else(|| Format::of(path), Ok)?)
    }
}

#[derive(Args, Debug)]
struct Convert {
    /// The trace to read
    from: PathBuf,
    /// The file to write: its extension selects the format (.load, .iolog, .iolog2, .disksim, .csv, .spc), with .gz,
    /// .xz or .zst after it compressed. Replaced if it exists
    to: PathBuf,
    #[command(flatten)]
    reading: Reading,
    /// The format to write, if the extension does not determine it: blkreplay, iolog, iolog2, disksim, msr, spc
    #[arg(long, value_name = "FORMAT")]
    to_format: Option<Format>,
}

#[derive(Args, Debug)]
struct Make {
    /// The load: a TOML file, or streams such as 'zipf:area=1GiB,read=70%,depth=8' (see the manual of replay)
    load: String,
    /// The file to write, as for convert
    to: PathBuf,
    /// The format to write, if the extension does not determine it
    #[arg(long, value_name = "FORMAT")]
    to_format: Option<Format>,
    /// The bytes of the volume, for streams without an area
    #[arg(long, value_name = "SIZE", value_parser = size)]
    volume: Option<u64>,
    /// The service time of each request, for closed-loop streams
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1ms")]
    service: u64,
    /// End after so many requests (10000) or so much time (30s); may be given twice
    #[arg(long, value_name = "LIMIT")]
    limit: Vec<Limit>,
    /// The seed, instead of the description's
    #[arg(long)]
    seed: Option<u64>,
}

impl TraceArgs {
    /// Executes the command.
    pub fn run(self) -> anyhow::Result<()> {
        match self.verb {
            Verb::Info(info) => info.run(),
            Verb::Convert(convert) => convert.run(),
            Verb::Make(make) => make.run(),
        }
    }
}

impl Info {
    fn run(self) -> anyhow::Result<()> {
        let shown = self.file.display().to_string();
        let mut trace = self.reading.open(&self.file)?;
        let mut summary = Summary::default();
        for record in &mut trace {
            summary.add(record.with_context(|| format!("in {shown}"))?);
        }
        ensure!(summary.requests() > 0, "there is no request {}", self.reading.place(&shown, &trace));
        let format = self.reading.format(&self.file)?;
        let report = Report::new(&shown, format.name(), &summary, trace.tally());
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&report)?),
            false => print!("{}", report.text(&summary)),
        }
        if let Some(path) = &self.svg {
            let title = self.file.file_name().map_or(shown.clone(), |name| name.to_string_lossy().into_owned());
            svg::draw(path, &title, &summary)
                .map_err(|error| anyhow::anyhow!("drawing {}: {error}", path.display()))?;
        }
        Ok(())
    }
}

impl Convert {
    fn run(self) -> anyhow::Result<()> {
        let to = written_format(&self.to, self.to_format)?;
        let shown = self.from.display().to_string();
        let mut trace = self.reading.open(&self.from)?;
        // The file is replaced only if there is a first record to write.
        let first = match trace.next() {
            Some(first) => first.with_context(|| format!("in {shown}"))?,
            None => bail!("there is no request {}", self.reading.place(&shown, &trace)),
        };
        let same = self.from.canonicalize().is_ok_and(|from| self.to.canonicalize().is_ok_and(|to| from == to));
        ensure!(!same, "{shown} is what is being read: write to another name");
        let name = self.from.file_name().map_or(shown.clone(), |name| name.to_string_lossy().into_owned());
        let losses = Out::create(&self.to, |out| {
            let mut writer = Writer::new(out, to, &name, &trace.tally().notice)?;
            writer.write(first, trace.names())?;
            while let Some(record) = trace.next() {
                writer.write(record.with_context(|| format!("in {shown}"))?, trace.names())?;
            }
            Ok(writer.finish()?)
        })?;
        let tally = trace.tally();
        tell(&self.to, to, tally.records, &losses);
        for (what, count) in &tally.left_out {
            println!("{} {what} were left out", show_count(*count));
        }
        print!("{}", report::broken(tally.broken, &tally.first_broken));
        if !tally.notice.is_empty() && to != Format::Blkreplay {
            println!("the notice of {name} has no place in this format: keep it with the file\n{}", tally.notice);
        }
        Ok(())
    }
}

impl Make {
    fn run(self) -> anyhow::Result<()> {
        let to = written_format(&self.to, self.to_format)?;
        let spec = crate::load::parse(&self.load, self.volume, self.seed).map_err(anyhow::Error::msg)?;
        let ends = crate::load::ends(&spec) || !self.limit.is_empty();
        ensure!(ends, "this load never ends: give --limit, or requests or stop for each stream");
        let (requests, duration_ns) = Limit::least(&self.limit);
        let workload = Workload::described(&spec, 0)?.limited(requests, duration_ns);
        let (names, mut count) = (Names::default(), 0);
        let losses = Out::create(&self.to, |out| {
            let mut writer = Writer::new(out, to, &self.load, "")?;
            for record in unroll(workload, self.service) {
                count += 1;
                writer.write(record, &names)?;
            }
            ensure!(count > 0, "this load makes no request");
            Ok(writer.finish()?)
        })?;
        tell(&self.to, to, count, &losses);
        Ok(())
    }
}

fn written_format(path: &Path, asked: Option<Format>) -> anyhow::Result<Format> {
    let format = asked.map_or_else(|| Format::of(path), Ok)?;
    ensure!(
        format.is_written(),
        "{format} is read, not written; there are blkreplay, iolog, iolog2, disksim, msr, spc"
    );
    Ok(format)
}

/// Prints what was written, and what the format cannot represent.
fn tell(path: &Path, to: Format, records: u64, losses: &Losses) {
    let written = records - losses.left_out.values().sum::<u64>();
    println!("{}: {} requests ({to})", path.display(), show_count(written));
    if losses.times > 0 {
        println!("{} times were cut to {}", show_count(losses.times), show_time(to.unit_ns()));
    }
    if losses.ranges > 0 {
        println!("{} ranges were widened to whole sectors", show_count(losses.ranges));
    }
    for (what, count) in &losses.left_out {
        println!("{} {what} were left out", show_count(*count));
    }
}
