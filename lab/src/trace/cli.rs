//! `aerogel-lab trace`: look at traces, and convert them.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};

use super::compression::Out;
use super::{Format, Report, Summary, Trace, Writer, report, svg};
use crate::quantity::show_count;

/// Look at traces of block I/O, and convert them.
#[derive(Args, Debug)]
pub struct TraceArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Say what is in a trace: requests, rates, sizes, places, with a picture
    Info(Info),
    /// Write a trace in another format
    Convert(Convert),
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
    /// What it is, if its extension does not say so: blkreplay, vscsi, disksim, msr, spc, blkparse (Q events),
    /// blkparse-d (D events), iolog
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Count read-ahead requests of blkreplay loads ('RA') as reads; they are left out otherwise
    #[arg(long)]
    read_ahead: bool,
}

impl Reading {
    /// Opens a trace.
    pub fn open(&self, path: &Path) -> anyhow::Result<Trace> {
        Ok(Trace::open(path, self.format)?.with_read_ahead(self.read_ahead))
    }

    /// What it is read as.
    pub fn format(&self, path: &Path) -> anyhow::Result<Format> {
        Ok(self.format.map_or_else(|| Format::of(path), Ok)?)
    }
}

#[derive(Args, Debug)]
struct Convert {
    /// The trace to read
    from: PathBuf,
    /// The file to write: its extension says the format (.load, .iolog, .iolog2, .disksim, .csv, .spc), with .gz, .xz or .zst
    /// after it compressed. Replaced if it exists
    to: PathBuf,
    #[command(flatten)]
    reading: Reading,
    /// The format to write, if the extension does not say so: blkreplay, iolog, iolog2, disksim, msr, spc
    #[arg(long, value_name = "FORMAT")]
    to_format: Option<Format>,
}

impl TraceArgs {
    /// Does what was asked for.
    pub fn run(self) -> anyhow::Result<()> {
        match self.verb {
            Verb::Info(info) => info.run(),
            Verb::Convert(convert) => convert.run(),
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
        ensure!(summary.requests() > 0, "there is no request in {shown}");
        let format = self.reading.format(&self.file)?;
        let report = Report::new(&shown, format.name(), &summary, trace.tally());
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(&report)?),
            false => print!("{}", report.text(&summary)),
        }
        if let Some(path) = &self.svg {
            svg::draw(path, &shown, &summary)
                .map_err(|error| anyhow::anyhow!("drawing {}: {error}", path.display()))?;
        }
        Ok(())
    }
}

impl Convert {
    fn run(self) -> anyhow::Result<()> {
        let to = self.to_format.map_or_else(|| Format::of(&self.to), Ok)?;
        if !to.is_written() {
            bail!("{to} is read, not written; there are blkreplay, iolog, iolog2, disksim, msr, spc");
        }
        let (shown, written) = (self.from.display().to_string(), self.to.display().to_string());
        let mut trace = self.reading.open(&self.from)?;
        // Before anything is replaced, there has to be something to write.
        let first = match trace.next() {
            Some(first) => first.with_context(|| format!("in {shown}"))?,
            None => bail!("there is no request in {shown}"),
        };
        let same = self.from.canonicalize().is_ok_and(|from| self.to.canonicalize().is_ok_and(|to| from == to));
        ensure!(!same, "{written} is what is being read: write to another name");
        let file = File::create(&self.to).with_context(|| format!("{written} cannot be written"))?;
        let name = self.from.file_name().map_or(shown.clone(), |name| name.to_string_lossy().into_owned());
        let out = Out::new(file, &self.to)?;
        let mut writer = Writer::new(out, to, &name, &trace.tally().notice)?;
        writer.write(first, trace.names())?;
        while let Some(record) = trace.next() {
            writer.write(record.with_context(|| format!("in {shown}"))?, trace.names())?;
        }
        let (out, losses) = writer.finish()?;
        out.finish().with_context(|| format!("{written} cannot be written"))?;
        println!(
            "{written}: {} requests ({to})",
            show_count(trace.tally().records - losses.left_out.values().sum::<u64>())
        );
        if losses.times > 0 {
            println!("{} times were cut to {}", show_count(losses.times), crate::quantity::show_time(to.unit_ns()));
        }
        if losses.ranges > 0 {
            println!("{} ranges were widened to whole sectors", show_count(losses.ranges));
        }
        for (what, count) in losses.left_out.iter().chain(&trace.tally().left_out) {
            println!("{} {what} were left out", show_count(*count));
        }
        print!("{}", report::broken(trace.tally().broken, &trace.tally().first_broken));
        if !trace.tally().notice.is_empty() && to != Format::Blkreplay {
            println!(
                "the notice of {name} has no place in this format: keep it with the file\n{}",
                trace.tally().notice
            );
        }
        Ok(())
    }
}
