//! The formats, one file each: what a line, or a binary record, means.

mod blkparse;
mod blkreplay;
mod disksim;
mod iolog;
mod msr;
mod spc;
pub mod vscsi;

use sim::load::{Op, Record};

use super::{Format, Names};

/// What a line is, if it is not broken.
#[derive(Debug)]
pub enum Line {
    /// A request.
    Record(Record),
    /// A header, a comment, a mark.
    Nothing,
    /// Text before the first request, to be kept.
    Notice,
    /// Something that is not wanted, and is to be counted by its kind.
    LeftOut(&'static str),
}

/// A format of lines. Lines come trimmed, and neither empty nor as `#` comments.
pub trait LineFormat: Send {
    /// What a line is, or what is wrong with it.
    fn line(&mut self, line: &str, names: &mut Names) -> Result<Line, String>;

    /// Whether read-ahead requests are wanted, where they are told apart.
    fn want_read_ahead(&mut self, _wanted: bool) {}
}

/// The reader of a format's lines; `None` if it is binary.
pub fn of_lines(format: Format) -> Option<Box<dyn LineFormat>> {
    Some(match format {
        Format::Blkreplay => Box::new(blkreplay::Blkreplay::default()),
        Format::Disksim => Box::new(disksim::Disksim),
        Format::Msr => Box::new(msr::Msr::default()),
        Format::Spc => Box::new(spc::Spc),
        Format::BlkparseQ => Box::new(blkparse::Blkparse::new("Q")),
        Format::BlkparseD => Box::new(blkparse::Blkparse::new("D")),
        Format::Iolog2 | Format::Iolog3 => Box::new(iolog::Iolog::default()),
        Format::Vscsi => return None,
    })
}

/// The next of a line's fields.
fn field<'a>(fields: &mut impl Iterator<Item = &'a str>, what: &str) -> Result<&'a str, String> {
    fields.next().map(str::trim).ok_or_else(|| format!("it ends before the {what}"))
}

fn number(text: &str, what: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("the {what} is '{}', not a number", shortened(text)))
}

/// A decimal number in units of `unit_ns`, in nanoseconds.
fn time(text: &str, unit_ns: u64) -> Result<u64, String> {
    crate::quantity::decimal(text, unit_ns).ok_or_else(|| format!("the time is '{}', not a number", shortened(text)))
}

/// Sectors in bytes.
fn sectors(text: &str, what: &str) -> Result<u64, String> {
    let sectors = number(text, what)?;
    sectors.checked_mul(super::SECTOR).ok_or_else(|| format!("the {what} is {sectors} sectors: beyond any volume"))
}

/// What is shown of a field that makes no sense.
fn shortened(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

fn record(time_ns: u64, op: Op, offset: u64, bytes: u64, stream: u32) -> Line {
    Line::Record(Record { time_ns, op, offset, bytes, stream })
}
