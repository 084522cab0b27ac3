//! The trace formats, one file each: the meaning of a line or of a binary record.

mod blkparse;
mod blkreplay;
pub mod disksim;
mod iolog;
mod msr;
mod spc;
mod ssdsim;
pub mod vscsi;

use sim::load::{Op, Record};

use super::{Format, Names};

/// The meaning of a valid line.
#[derive(Debug)]
pub enum Line {
    /// A request.
    Record(Record),
    /// A header, a comment, or another line without a request.
    Nothing,
    /// Text before the first request, which is kept.
    Notice,
    /// Something that is omitted, and counted by its kind.
    LeftOut(&'static str),
}

/// A format of lines. Lines are trimmed; empty lines and `#` comments are not passed.
pub trait LineFormat: Send {
    /// Parses a line, or returns what is wrong with it.
    fn line(&mut self, line: &str, names: &mut Names) -> Result<Line, String>;

    /// Sets whether read-ahead requests are included, if the format distinguishes them.
    fn want_read_ahead(&mut self, _wanted: bool) {}
}

/// The parser of a format's lines; `None` for a binary format.
pub fn of_lines(format: Format) -> Option<Box<dyn LineFormat>> {
    Some(match format {
        Format::Blkreplay => Box::new(blkreplay::Blkreplay::default()),
        Format::Disksim => Box::new(disksim::Disksim),
        Format::Msr => Box::new(msr::Msr::default()),
        Format::Spc => Box::new(spc::Spc),
        Format::Ssdsim => Box::new(ssdsim::Ssdsim),
        Format::BlkparseQ => Box::new(blkparse::Blkparse::new("Q")),
        Format::BlkparseD => Box::new(blkparse::Blkparse::new("D")),
        Format::Iolog2 | Format::Iolog3 => Box::new(iolog::Iolog::default()),
        Format::Vscsi => return None,
    })
}

/// The next field of a line.
fn field<'a>(fields: &mut impl Iterator<Item = &'a str>, what: &str) -> Result<&'a str, String> {
    fields.next().map(str::trim).ok_or_else(|| format!("it ends before the {what}"))
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("the {what} is '{}', not a number", shortened(text)))
}

/// Parses a decimal number in units of `unit_ns`, in nanoseconds.
fn time(text: &str, unit_ns: u64) -> Result<u64, String> {
    crate::quantity::decimal(text, unit_ns).ok_or_else(|| format!("the time is '{}', not a number", shortened(text)))
}

/// Parses a number of sectors, in bytes.
fn sectors(text: &str, what: &str) -> Result<u64, String> {
    let sectors = number(text, what)?;
    sectors.checked_mul(super::SECTOR).ok_or_else(|| format!("the {what} is {sectors} sectors: beyond any volume"))
}

/// The part of an invalid field that an error message shows.
fn shortened(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

fn record(time_ns: u64, op: Op, offset: u64, bytes: u64, stream: u32) -> Line {
    Line::Record(Record { time_ns, op, offset, bytes, stream })
}
