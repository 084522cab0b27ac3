//! Reading a trace record by record, with counts of what was not a record.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use sim::load::{Op, Record};

use super::formats::disksim::{self, Unit};
use super::formats::{self, Line, LineFormat, vscsi::Vscsi};
use super::{Format, checked, compression};
use crate::quantity::show_count;

/// Broken lines whose reasons are kept.
const BROKEN_KEPT: usize = 5;
/// Reading stops after this many broken lines if they outnumber the records: the file is not a trace.
const BROKEN_MAX: u64 = 1000;
/// The longest line, bytes. Longer ones are broken, and skipped.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// The beginning of a trace that is looked at for the unit of its times, bytes: some thousand requests.
const HEAD_BYTES: u64 = 64 << 10;
/// Devices of a trace at most, since each name is kept.
const DEVICES_MAX: usize = 1 << 16;
/// The longest notice that is kept, bytes.
const NOTICE_BYTES_MAX: usize = 16 << 10;

/// Why a trace cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Neither the extension nor an option names the format.
    #[error("what format '{path}' has is not known: give --format, one of {list}",
        path = path.display(), list = Format::list())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// The file does not exist or cannot be opened.
    #[error("'{path}' cannot be opened", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The times may be in either unit.
    #[error(
        "the times in '{path}' are whole numbers, {meaning}: give --format ssdsim for nanoseconds (SSDSim, MQSim) or, \
         if they are not, {other} for milliseconds (DiskSim)",
        path = path.display(),
        meaning = if *explicit { "and too far apart for milliseconds" } else { "and do not tell their unit" },
        other = if *explicit { "write them with a fraction, as in 5.0," } else { "--format disksim" }
    )]
    UnknownUnit {
        /// The file.
        path: PathBuf,
        /// Whether the format was given.
        explicit: bool,
    },
    /// A read error, or an error in the compressed data.
    #[error("reading stopped after {records} requests")]
    Read {
        /// Records before the error.
        records: u64,
        /// The cause.
        source: io::Error,
    },
    /// Most lines are broken.
    #[error(
        "this is no {format} trace: {broken} broken lines beside {records} requests, the first at {first}",
        broken = show_count(*broken), records = show_count(*records)
    )]
    MostlyBroken {
        /// The format that it was read as.
        format: Format,
        /// Broken lines.
        broken: u64,
        /// Records.
        records: u64,
        /// The first broken line.
        first: Broken,
    },
}

/// A line that should have been a request.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Broken {
    /// Its number, from 1; in binary formats, the number of the record.
    pub line: u64,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

/// Counts of what was read.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    /// Lines, or binary records.
    pub lines: u64,
    /// Requests.
    pub records: u64,
    /// Broken lines.
    pub broken: u64,
    /// The first broken lines.
    pub first_broken: Vec<Broken>,
    /// What was omitted on purpose, by kind.
    pub left_out: BTreeMap<&'static str, u64>,
    /// The text before the first request, if the format has it: copyright and terms.
    pub notice: String,
}

/// The devices of a trace by number, in the order in which they appear.
#[derive(Clone, Default, Debug)]
pub struct Names {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Names {
    /// The number of a name; a new name gets a new number.
    pub fn number(&mut self, name: &str) -> Result<u32, String> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        if self.names.len() == DEVICES_MAX {
            return Err(format!("more than {DEVICES_MAX} devices"));
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    /// The name of a number, if the trace has one.
    pub fn name(&self, number: u32) -> Option<&str> {
        self.names.get(number as usize).map(String::as_str)
    }

    /// The number of devices.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

enum Parser {
    Lines(Box<dyn LineFormat>),
    Vscsi(Vscsi),
}

/// A trace that is being read: an iterator over its records, in the order of the file.
pub struct Trace {
    format: Format,
    input: Box<dyn BufRead + Send>,
    parser: Parser,
    line: Vec<u8>,
    names: Names,
    tally: Tally,
    /// The only device to read, if set.
    device: Option<String>,
    ended: bool,
}

impl Trace {
    /// Opens a file. Without a format, the extension determines it. `-` is the standard input.
    pub fn open(path: &Path, format: Option<Format>) -> Result<Trace, TraceError> {
        let explicit = format.is_some();
        let format = format.map_or_else(|| Format::of(path), Ok)?;
        let failed = |source| TraceError::Open { path: path.to_owned(), source };
        let mut trace = match path == Path::new("-") {
            true => Trace::new(io::stdin(), format),
            false => File::open(path).and_then(|file| Trace::new(file, format)),
        }
        .map_err(failed)?;
        if format == Format::Disksim {
            match trace.unit().map_err(|source| TraceError::Read { records: 0, source })? {
                Unit::Nanoseconds => return Err(TraceError::UnknownUnit { path: path.to_owned(), explicit }),
                Unit::Unknown if !explicit => {
                    return Err(TraceError::UnknownUnit { path: path.to_owned(), explicit });
                }
                Unit::Unknown | Unit::Milliseconds => {}
            }
        }
        Ok(trace)
    }

    /// Reads bytes, compressed or not.
    pub fn new(input: impl Read + Send + 'static, format: Format) -> io::Result<Trace> {
        let parser = match formats::of_lines(format) {
            Some(lines) => Parser::Lines(lines),
            None => Parser::Vscsi(Vscsi::default()),
        };
        let input = compression::reader(input)?;
        let (names, tally) = (Names::default(), Tally::default());
        Ok(Trace { format, input, parser, line: Vec::new(), names, tally, device: None, ended: false })
    }

    /// Looks ahead for the unit of the times.
    fn unit(&mut self) -> io::Result<Unit> {
        let mut head = Vec::new();
        self.input.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
        let unit = disksim::unit(&head);
        let rest = std::mem::replace(&mut self.input, Box::new(io::empty()));
        self.input = Box::new(io::Cursor::new(head).chain(rest));
        Ok(unit)
    }

    /// Counts so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Devices so far.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Sets whether read-ahead requests count as reads (see `formats/blkreplay.rs`).
    pub fn with_read_ahead(mut self, wanted: bool) -> Trace {
        if let Parser::Lines(lines) = &mut self.parser {
            lines.want_read_ahead(wanted);
        }
        self
    }

    /// Reads only the requests of one device; those of others are omitted and counted.
    pub fn with_device(self, device: Option<String>) -> Trace {
        Trace { device, ..self }
    }

    fn is_other_device(&self, record: &Record) -> bool {
        self.device.is_some() && self.device.as_deref() != self.names.name(record.stream)
    }

    /// The meaning of the next line or binary record; `None` at the end.
    fn step(&mut self) -> io::Result<Option<Result<Line, String>>> {
        match &mut self.parser {
            Parser::Vscsi(vscsi) => {
                let step = vscsi.next(&mut self.input)?;
                self.tally.lines += u64::from(step.is_some());
                Ok(step)
            }
            Parser::Lines(format) => {
                self.line.clear();
                let read = self.input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut self.line)?;
                if read == 0 {
                    return Ok(None);
                }
                self.tally.lines += 1;
                if read as u64 == LINE_BYTES_MAX && self.line.last() != Some(&b'\n') {
                    skip_line(&mut self.input)?;
                    return Ok(Some(Err(format!("it is longer than {LINE_BYTES_MAX} bytes"))));
                }
                let Ok(line) = str::from_utf8(&self.line) else {
                    return Ok(Some(Err("it is not text (UTF-8)".into())));
                };
                let line = line.trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
                if line.is_empty() || line.starts_with('#') {
                    return Ok(Some(Ok(Line::Nothing)));
                }
                Ok(Some(format.line(line, &mut self.names)))
            }
        }
    }

    fn broken(&mut self, reason: String) {
        self.tally.broken += 1;
        if self.tally.first_broken.len() < BROKEN_KEPT {
            self.tally.first_broken.push(Broken { line: self.tally.lines, reason });
        }
    }

    fn mostly_broken(&self) -> Option<TraceError> {
        let first = self.tally.first_broken.first()?.clone();
        let Tally { broken, records, .. } = self.tally;
        let good = records + self.tally.left_out.values().sum::<u64>();
        (broken > good).then_some(TraceError::MostlyBroken { format: self.format, broken, records, first })
    }

    fn notice(&mut self) {
        if self.tally.notice.len() + self.line.len() <= NOTICE_BYTES_MAX {
            self.tally.notice += String::from_utf8_lossy(&self.line).trim_end();
            self.tally.notice.push('\n');
        }
    }
}

impl Iterator for Trace {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.step() {
                Err(source) => {
                    self.ended = true;
                    return Some(Err(TraceError::Read { records: self.tally.records, source }));
                }
                Ok(None) => {
                    self.ended = true;
                    return self.mostly_broken().map(Err);
                }
                Ok(Some(Ok(Line::Nothing))) => {}
                Ok(Some(Ok(Line::Notice))) => self.notice(),
                Ok(Some(Ok(Line::LeftOut(kind)))) => *self.tally.left_out.entry(kind).or_default() += 1,
                Ok(Some(Ok(Line::Record(record)))) if self.is_other_device(&record) => {
                    *self.tally.left_out.entry("requests of other devices").or_default() += 1;
                }
                Ok(Some(Ok(Line::Record(record)))) if record.bytes == 0 && record.op != Op::Flush => {
                    *self.tally.left_out.entry("requests of no bytes").or_default() += 1;
                }
                Ok(Some(Ok(Line::Record(record)))) => match checked(record) {
                    Ok(record) => {
                        self.tally.records += 1;
                        return Some(Ok(record));
                    }
                    Err(reason) => self.broken(reason),
                },
                Ok(Some(Err(reason))) => self.broken(reason),
            }
            if self.tally.broken >= BROKEN_MAX
                && let Some(error) = self.mostly_broken()
            {
                self.ended = true;
                return Some(Err(error));
            }
        }
        None
    }
}

/// Skips the rest of a line.
fn skip_line(input: &mut dyn BufRead) -> io::Result<()> {
    loop {
        let bytes = input.fill_buf()?;
        match bytes.iter().position(|&byte| byte == b'\n') {
            Some(at) => {
                input.consume(at + 1);
                return Ok(());
            }
            None if bytes.is_empty() => return Ok(()),
            None => {
                let len = bytes.len();
                input.consume(len);
            }
        }
    }
}
