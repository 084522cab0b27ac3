//! `aerogel-lab replay`: replays a trace or a described load on a live server over NBD, or on the engine with a
//! simulated drive, in virtual time (`simulated`).
//!
//! ```text
//! Trace ─► Sorted ─► Lane ─┐
//!                          ├► Workload ──next(now)──► Fit ──► Connection 0..n ──► the server
//! Spec ──► Generator ─ Lane┘      ▲                                │ a thread writes, a thread reads
//!                                 └────── completed(now, id) ◄─────┘
//! ```
//!
//! Latency is measured from the moment when a request was due, so that the delays of a stalled server count for all
//! requests that waited, and so do the driver's own delays, which are reported separately. Downside of blocking
//! threads: every latency includes wake-ups of some tens of microseconds. The command is meant for comparing servers,
//! not for measuring a cache hit.

mod client;
mod fit;
mod report;
mod simulated;

use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use engine::nbd::wire::{command, export_flag};
use engine::nbd::{Opened, Uri};
use engine::units::Nanos;
use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sim::load::{Lane, Op, Pace, Record, Source, Workload};
use sim::rng::MILLION;

use self::client::{Answer, Completion, Connection};
use self::fit::{Beyond, Changes, Fit};
use self::report::{Measurements, Report};
use self::simulated::Fitted;
use crate::load::Limit;
use crate::quantity::{decimal, show_count, size};
use crate::trace::cli::Reading;
use crate::trace::{Sorted, Tally, Trace, TraceError};

/// The longest wait for completions, so that the progress bar moves.
const WAIT: Duration = Duration::from_millis(100);
/// The replay is given up if the server answers nothing for this long.
const SILENCE: Duration = Duration::from_secs(120);
/// Connections at most; each has two threads.
const CONNECTIONS_MAX: u64 = 256;

/// Replay a trace, or a load that is described, on a live server over NBD or in virtual time.
///
/// Its writes overwrite what is on the volume, with noise; --reads-only leaves them out.
#[derive(Args, Debug)]
pub struct Replay {
    /// The trace, plain or compressed
    #[arg(long, value_name = "FILE", required_unless_present = "load")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    reading: Reading,
    /// The load: a TOML file, or streams such as 'zipf:area=1GiB,read=70%,depth=8 + seq:size=128KiB'
    #[arg(long, value_name = "SPEC", conflicts_with_all = ["trace", "open", "closed", "speed"])]
    load: Option<String>,
    /// The volume: nbd+unix:///NAME?socket=PATH or nbd://HOST:PORT/NAME
    #[arg(long, required_unless_present = "disk")]
    uri: Option<Uri>,
    /// Instead of a live server: the engine on this simulated drive, in virtual time, one volume over all of it
    #[arg(long, value_name = "PRESET|FILE", conflicts_with_all = ["uri", "connections"])]
    disk: Option<String>,
    /// The simulated server's memory
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size, requires = "disk")]
    memory: u64,
    /// Send each request at its time in the trace, even if earlier ones are unanswered (the default)
    #[arg(long, conflicts_with = "closed")]
    open: bool,
    /// Speed of replay: 2 is twice as fast as recorded
    #[arg(long, value_name = "FACTOR", default_value = "1", conflicts_with = "closed", value_parser = speed)]
    speed: u64,
    /// Keep so many requests outstanding instead, regardless of their times
    #[arg(long, value_name = "DEPTH", value_parser = clap::value_parser!(u32).range(1..=65536))]
    closed: Option<u32>,
    /// End after so many requests (10000) or so much time (30s); may be given twice
    #[arg(long, value_name = "LIMIT")]
    limit: Vec<Limit>,
    /// Connections to spread requests over; a request goes to the one with the fewest unanswered
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=CONNECTIONS_MAX))]
    connections: u64,
    /// What to do with requests beyond the volume's end
    #[arg(long, value_enum, default_value_t = Beyond::Wrap)]
    beyond: Beyond,
    /// Omit writes and trims
    #[arg(long)]
    reads_only: bool,
    /// The seed of a load, instead of the description's
    #[arg(long, requires = "load")]
    seed: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn speed(text: &str) -> Result<u64, String> {
    decimal(text, MILLION)
        .filter(|&ppm| ppm > 0)
        .ok_or_else(|| format!("'{text}' is not a factor: write 2 for twice as fast, 0.5 for half"))
}

/// How a trace ended, readable while the workload owns the trace.
#[derive(Default)]
struct Ending {
    error: Option<TraceError>,
    tally: Tally,
}

/// The records of a trace, up to the first error.
struct Feed {
    trace: Trace,
    ending: Arc<Mutex<Ending>>,
}

impl Iterator for Feed {
    type Item = Record;

    fn next(&mut self) -> Option<Record> {
        match self.trace.next()? {
            Ok(record) => Some(record),
            Err(error) => {
                self.ending.lock().expect("no thread panics").error = Some(error);
                None
            }
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.ending.lock().expect("no thread panics").tally = self.trace.tally().clone();
    }
}

impl Replay {
    /// Replays, and prints the report.
    pub fn run(self) -> anyhow::Result<()> {
        let span = self.span()?;
        let ending = Arc::new(Mutex::new(Ending::default()));
        let report = match (&self.uri, &self.disk) {
            (Some(uri), _) => self.live(uri, span, &ending)?,
            (None, disk) => self.simulated(disk.as_deref().context("a server or a disk")?, span, &ending)?,
        };
        self.print(&report, &ending)
    }

    /// Replays on a live server.
    fn live(&self, uri: &Uri, span: u64, ending: &Arc<Mutex<Ending>>) -> anyhow::Result<Report> {
        let (news, completions) = channel();
        let mut connections = Vec::new();
        let mut export: Option<Opened> = None;
        for number in 0..self.connections as usize {
            let (connection, seen) = Connection::open(uri, number, news.clone())?;
            let first = *export.get_or_insert(seen);
            ensure!(first.size == seen.size, "the volume changed its size between two connections");
            connections.push(connection);
        }
        drop(news);
        let export = export.context("at least one connection")?;
        ensure!(export.size >= u64::from(export.block_bytes_min), "the volume is empty");
        let (workload, what, mode) = self.workload(export.size, ending, None)?;
        let fit = Fit { export, beyond: self.beyond, span, reads_only: self.reads_only, changes: Changes::default() };
        let bar = self.bar();
        let beside = connections.len();
        let mut driver = Driver::new(workload, fit, connections, completions);
        let outcome = driver.run(&bar);
        bar.finish_and_clear();
        let report = driver.report(what, uri.text.clone(), mode, beside);
        drop(driver);
        outcome?;
        Ok(report)
    }

    fn print(&self, report: &Report, ending: &Mutex<Ending>) -> anyhow::Result<()> {
        let mut ending = ending.lock().expect("no thread panics");
        if let Some(error) = ending.error.take() {
            return Err(anyhow::Error::new(error).context("the trace"));
        }
        ensure!(report.requests > 0 || report.changes != Changes::default(), "there is no request in it");
        match self.json {
            true => println!("{}", serde_json::to_string_pretty(report)?),
            false => {
                print!("{}", report.text());
                if ending.tally.broken > 0 {
                    println!("{} broken lines, the first at {}", ending.tally.broken, ending.tally.first_broken[0]);
                }
                for (what, count) in &ending.tally.left_out {
                    println!("{} {what} in the trace were left out", show_count(*count));
                }
            }
        }
        Ok(())
    }

    /// The end of the last byte in the trace, if it is needed in advance.
    fn span(&self) -> anyhow::Result<u64> {
        let (Some(file), Beyond::Scale) = (&self.trace, self.beyond) else { return Ok(0) };
        ensure!(file.as_os_str() != "-", "--beyond scale reads the trace twice, which the standard input cannot");
        let mut span = 0;
        for record in self.reading.open(file)? {
            span = span.max(record.context("the trace")?.end());
        }
        Ok(span)
    }

    /// The workload, its description, and its pace. The records of a trace are adapted by `fit`; a described load needs
    /// no adaptation.
    fn workload(
        &self,
        volume_bytes: u64,
        ending: &Arc<Mutex<Ending>>,
        fit: Option<&Arc<Mutex<Fit>>>,
    ) -> anyhow::Result<(Workload, String, String)> {
        let (requests, duration_ns) = Limit::least(&self.limit);
        if let Some(text) = &self.load {
            let spec = crate::load::parse(text, Some(volume_bytes), self.seed).map_err(anyhow::Error::msg)?;
            let ends = crate::load::ends(&spec) || !self.limit.is_empty();
            ensure!(ends, "this load never ends: give --limit, or requests or stop for each stream");
            let workload = Workload::described(&spec, 0)?.limited(requests, duration_ns);
            return Ok((workload, text.clone(), "as described".into()));
        }
        let file = self.trace.as_ref().context("a trace or a load")?;
        let feed = Feed { trace: self.reading.open(file)?, ending: ending.clone() };
        let (lane, mode) = match self.closed {
            Some(depth) => (lane(feed, fit, Pace::Closed { depth, think_ns: 0 }), format!("closed, depth {depth}")),
            None => {
                let factor = self.speed as f64 / MILLION as f64;
                (lane(Sorted::new(feed), fit, Pace::as_recorded(self.speed)), format!("open, speed {factor}"))
            }
        };
        Ok((Workload::new(vec![lane], 0).limited(requests, duration_ns), file.display().to_string(), mode))
    }

    fn bar(&self) -> ProgressBar {
        let (bar, template) = match Limit::least(&self.limit).0 {
            most @ ..u64::MAX => {
                (ProgressBar::new(most), "{bar:40} {human_pos}/{human_len} requests, {per_sec}, {msg}")
            }
            u64::MAX => (ProgressBar::new_spinner(), "{spinner} {elapsed} {human_pos} requests, {per_sec}, {msg}"),
        };
        if self.json || !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        bar.with_style(ProgressStyle::with_template(template).expect("a template"))
    }
}

/// A lane of a trace, adapted or not.
fn lane(source: impl Source + 'static, fit: Option<&Arc<Mutex<Fit>>>, pace: Pace) -> Lane {
    match fit {
        Some(fit) => Lane::of_trace(Fitted::new(source, fit.clone()), pace),
        None => Lane::of_trace(source, pace),
    }
}

/// A request in flight.
struct Pending {
    op: Op,
    intended_ns: Nanos,
    made_ns: Nanos,
    bytes: u32,
    connection: usize,
}

/// Connects the workload with the connections.
struct Driver {
    workload: Workload,
    fit: Fit,
    connections: Vec<Connection>,
    /// Unanswered requests by connection.
    loads: Vec<usize>,
    completions: Receiver<Completion>,
    pending: HashMap<u64, Pending>,
    measurements: Measurements,
    late: Histogram<u64>,
    outstanding_max: usize,
    answered: u64,
    begun: Instant,
    last_ns: Nanos,
}

impl Driver {
    fn new(workload: Workload, fit: Fit, connections: Vec<Connection>, completions: Receiver<Completion>) -> Driver {
        Driver {
            workload,
            fit,
            loads: vec![0; connections.len()],
            connections,
            completions,
            pending: HashMap::new(),
            measurements: Measurements::default(),
            late: Histogram::new(3).expect("3 digits are allowed"),
            outstanding_max: 0,
            answered: 0,
            begun: Instant::now(),
            last_ns: 0,
        }
    }

    fn since(&self, at: Instant) -> Nanos {
        at.saturating_duration_since(self.begun).as_nanos() as Nanos
    }

    fn now(&self) -> Nanos {
        self.since(Instant::now())
    }

    /// Runs until all requests are sent and answered.
    fn run(&mut self, bar: &ProgressBar) -> anyhow::Result<()> {
        self.begun = Instant::now();
        let mut heard = self.begun;
        loop {
            self.make_what_is_due()?;
            if self.workload.is_done() {
                return Ok(());
            }
            match self.completions.recv_timeout(self.wait()) {
                Ok(completion) => {
                    heard = Instant::now();
                    self.complete(completion)?;
                    while let Ok(completion) = self.completions.try_recv() {
                        self.complete(completion)?;
                    }
                }
                Err(RecvTimeoutError::Timeout) if self.pending.is_empty() => heard = Instant::now(),
                Err(RecvTimeoutError::Timeout) if heard.elapsed() > SILENCE => {
                    bail!("the server answered none of {} requests in {} s", self.pending.len(), SILENCE.as_secs());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("all connections ended"),
            }
            bar.set_position(self.answered);
            if self.pending.len() > 1 {
                bar.set_message(format!("{} unanswered", self.pending.len()));
            }
        }
    }

    fn wait(&self) -> Duration {
        let until = self.workload.poll_timeout().map(|at| Duration::from_nanos(at.saturating_sub(self.now())));
        until.map_or(WAIT, |wait| wait.min(WAIT))
    }

    fn make_what_is_due(&mut self) -> anyhow::Result<()> {
        loop {
            let now = self.now();
            let Some(request) = self.workload.next(now) else { return Ok(()) };
            let Some((command, offset, bytes)) = self.fit.place(&request) else {
                self.workload.completed(now, request.id);
                continue;
            };
            let read_only = self.fit.export.flags & export_flag::READ_ONLY != 0;
            if read_only && matches!(command, command::WRITE | command::TRIM) {
                bail!("the export is read-only, and the load writes: give --reads-only");
            }
            let connection = (0..self.loads.len()).min_by_key(|&number| self.loads[number]).unwrap_or(0);
            self.loads[connection] += 1;
            let pending = Pending { op: request.op, intended_ns: request.intended_ns, made_ns: now, bytes, connection };
            self.late.record(now.saturating_sub(request.intended_ns)).unwrap_or_default();
            self.pending.insert(request.id, pending);
            self.outstanding_max = self.outstanding_max.max(self.pending.len());
            let header = sim::request::Request { op: 0, cookie: request.id, command, flags: 0, offset, len: bytes };
            self.connections[connection].send(header);
        }
    }

    fn complete(&mut self, completion: Completion) -> anyhow::Result<()> {
        let Completion { connection, cookie, at, answer } = completion;
        let error = match answer {
            Answer::Done(error) => error,
            Answer::Lost(why) => {
                bail!("connection {} ended with {} requests unanswered: {why}", connection + 1, self.loads[connection]);
            }
        };
        let pending = self.pending.remove(&cookie).context("an answer to a request that nobody made")?;
        let now = self.since(at);
        self.loads[pending.connection] -= 1;
        let measured = self.measurements.of(pending.op);
        if error == 0 {
            measured.bytes += u64::from(pending.bytes);
            measured.latency.record(now.saturating_sub(pending.intended_ns)).unwrap_or_default();
            measured.service.record(now.saturating_sub(pending.made_ns)).unwrap_or_default();
        } else {
            measured.errors += 1;
        }
        self.answered += 1;
        self.last_ns = self.last_ns.max(now);
        self.workload.completed(self.now(), cookie);
        Ok(())
    }

    fn report(&mut self, what: String, uri: String, mode: String, connections: usize) -> Report {
        let report = self.measurements.report(self.last_ns);
        Report {
            what,
            uri,
            mode,
            connections,
            volume_bytes: self.fit.export.size,
            outstanding_max: self.outstanding_max,
            late_p99_ns: self.late.value_at_quantile(0.99),
            late_max_ns: self.late.max(),
            changes: self.fit.changes,
            ..report
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_as_they_are_written() {
        assert_eq!([speed("2"), speed("0.5")], [Ok(2_000_000), Ok(500_000)]);
        assert!(speed("0").is_err() && speed("-1").is_err());
    }
}
