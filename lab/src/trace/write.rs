//! Writing a trace in those text formats that are meant for traces, with counts of what a format cannot represent.
//!
//! Each writer's output is read back by the format's reader. Formats differ in their time resolution (a nanosecond to a
//! millisecond), in whether offsets are in bytes or sectors, and in their operations. What is rounded or omitted is
//! counted in [`Losses`].

use std::collections::BTreeMap;
use std::io::{self, Write};

use sim::load::{Op, Record};

use super::{Format, Names, SECTOR};

/// What a format could not represent.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Losses {
    /// Records whose time was cut to the format's unit.
    pub times: u64,
    /// Records whose range was widened to whole sectors.
    pub ranges: u64,
    /// Omitted records of operations that the format does not have, by kind.
    pub left_out: BTreeMap<&'static str, u64>,
}

/// A trace that is being written.
pub struct Writer<W> {
    out: W,
    format: Format,
    losses: Losses,
    /// Streams that were added to the iolog.
    added: BTreeMap<u32, String>,
    waited_ms: u64,
    last_us: u64,
}

impl Format {
    /// Whether there is a writer for this format.
    pub fn is_written(self) -> bool {
        !matches!(self, Format::Vscsi | Format::Ssdsim | Format::BlkparseQ | Format::BlkparseD)
    }

    /// The time resolution of the format, nanoseconds.
    pub fn unit_ns(self) -> u64 {
        match self {
            Format::Msr => 100,
            Format::Vscsi | Format::Iolog3 => 1_000,
            Format::Iolog2 => 1_000_000,
            _ => 1,
        }
    }

    fn has_sectors(self) -> bool {
        matches!(self, Format::Blkreplay | Format::Disksim)
    }

    fn has(self, op: Op) -> bool {
        matches!(op, Op::Read | Op::Write) || matches!(self, Format::Iolog2 | Format::Iolog3)
    }
}

impl<W: Write> Writer<W> {
    /// Begins a trace. `origin` names its source, and `notice` is the text before the first request of the original;
    /// both are written if the format has a place for them.
    pub fn new(mut out: W, format: Format, origin: &str, notice: &str) -> io::Result<Writer<W>> {
        match format {
            Format::Blkreplay => {
                writeln!(out, "Converted by aerogel-lab; the original is {}", origin.escape_debug())?;
                writeln!(out, "{notice}start ; sector ; length ; op ; replay_delay=0 ; replay_duration=0")?;
            }
            Format::Iolog2 => writeln!(out, "fio version 2 iolog")?,
            Format::Iolog3 => writeln!(out, "fio version 3 iolog")?,
            _ => {}
        }
        let (losses, added) = (Losses::default(), BTreeMap::new());
        Ok(Writer { out, format, losses, added, waited_ms: 0, last_us: 0 })
    }

    /// Writes a record; `names` are the devices of its trace.
    pub fn write(&mut self, record: Record, names: &Names) -> io::Result<()> {
        let Record { time_ns, op, stream, .. } = record;
        if !self.format.has(op) {
            *self.losses.left_out.entry(if op == Op::Trim { "trims" } else { "flushes" }).or_default() += 1;
            return Ok(());
        }
        self.losses.times += u64::from(!time_ns.is_multiple_of(self.format.unit_ns()));
        let (offset, bytes) = self.fitted(record);
        let letter = if op == Op::Read { 'R' } else { 'W' };
        let device = || number_of(names.name(stream), stream);
        let (seconds, below) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
        let sectors = (offset / SECTOR, bytes / SECTOR);
        match self.format {
            Format::Blkreplay => {
                let (first, count) = sectors;
                writeln!(self.out, "{seconds:7}.{below:09} ; {first:12} ; {count:4} ; {letter} ; 0.0 ; 0.0")
            }
            Format::Disksim => {
                let (ms, below) = (time_ns / 1_000_000, time_ns % 1_000_000);
                let flags = u8::from(op == Op::Read);
                writeln!(self.out, "{ms}.{below:06} {} {} {} {flags}", device(), sectors.0, sectors.1)
            }
            Format::Spc => {
                writeln!(self.out, "{},{},{bytes},{letter},{seconds}.{below:09}", device(), sectors.0)
            }
            Format::Msr => {
                let (host, disk) = host_and_disk(names.name(stream), stream);
                let kind = if op == Op::Read { "Read" } else { "Write" };
                writeln!(self.out, "{},{host},{disk},{kind},{offset},{bytes},0", time_ns / 100)
            }
            Format::Iolog2 | Format::Iolog3 => self.iolog(Record { offset, bytes, ..record }, names),
            Format::Vscsi | Format::Ssdsim | Format::BlkparseQ | Format::BlkparseD => {
                Err(io::Error::new(io::ErrorKind::Unsupported, format!("{} is not written", self.format)))
            }
        }
    }

    /// The range in the format's units: whole sectors, or sectors for the offset only.
    fn fitted(&mut self, record: Record) -> (u64, u64) {
        let Record { offset, bytes, .. } = record;
        let is_whole = offset.is_multiple_of(SECTOR) && (self.format == Format::Spc || bytes.is_multiple_of(SECTOR));
        if is_whole || !(self.format.has_sectors() || self.format == Format::Spc) {
            return (offset, bytes);
        }
        self.losses.ranges += 1;
        let first = offset / SECTOR * SECTOR;
        (first, record.end().next_multiple_of(SECTOR) - first)
    }

    fn iolog(&mut self, record: Record, names: &Names) -> io::Result<()> {
        let Record { time_ns, op, offset, bytes, stream } = record;
        let is_third = self.format == Format::Iolog3;
        let us = time_ns / 1000;
        let stamp = if is_third { format!("{us} ") } else { String::new() };
        let is_new = !self.added.contains_key(&stream);
        let file = self.added.entry(stream).or_insert_with(|| file_name(names.name(stream), stream));
        if is_new {
            writeln!(self.out, "{stamp}{file} add\n{stamp}{file} open")?;
        }
        // In version 2, the first wait is written only if time has passed.
        if !is_third && time_ns / 1_000_000 > self.waited_ms {
            self.waited_ms = time_ns / 1_000_000;
            writeln!(self.out, "{file} wait {} 0", self.waited_ms)?;
        }
        self.last_us = self.last_us.max(us);
        let action = match op {
            Op::Read => "read",
            Op::Write => "write",
            Op::Trim => "trim",
            Op::Flush => "sync",
        };
        writeln!(self.out, "{stamp}{file} {action} {offset} {bytes}")
    }

    /// Ends the trace. Returns the file, which has to be finished, and the losses.
    pub fn finish(mut self) -> io::Result<(W, Losses)> {
        for file in self.added.values() {
            let stamp = if self.format == Format::Iolog3 { format!("{} ", self.last_us) } else { String::new() };
            writeln!(self.out, "{stamp}{file} close")?;
        }
        Ok((self.out, self.losses))
    }
}

/// A device's name if it is a number, else its number in the trace.
fn number_of(name: Option<&str>, stream: u32) -> u64 {
    name.and_then(|name| name.parse().ok()).unwrap_or(u64::from(stream))
}

/// Splits `host_disk`. A name of another form is taken as a host, with the device's number.
fn host_and_disk(name: Option<&str>, stream: u32) -> (String, u64) {
    let split = name.and_then(|name| name.rsplit_once('_'));
    match split.and_then(|(host, disk)| Some((host, disk.parse::<u64>().ok()?))) {
        Some((host, disk)) => (plain(host), disk),
        None => (name.map_or_else(|| "disk".into(), plain), u64::from(stream)),
    }
}

fn file_name(name: Option<&str>, stream: u32) -> String {
    let name = name.map_or_else(|| format!("disk{stream}"), plain);
    // It begins the lines of version 2, where `#` would start a comment.
    if name.starts_with('#') { name.replacen('#', "_", 1) } else { name }
}

/// A name without field separators.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_whitespace() || c.is_control() || c == ',' { '_' } else { c }).collect()
}
