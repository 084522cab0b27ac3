//! Traces of block I/O: files that record requests with their times.
//!
//! ```text
//! file ─► gz, xz, zst (by content) ─► lines ─► a format's reader ─► Record, Record, …
//!                                     32- or 40-byte records (vscsi)   Tally: broken, left out
//! ```
//!
//! A [`Trace`] is an iterator that holds one record at a time, so the size of the file does not matter. A broken line
//! is counted, and the first few are kept with their numbers and reasons; a file that is mostly broken ends in an
//! error. Lines without requests (comments, headers, other events) are skipped, and what is omitted on purpose is
//! counted by its kind. Times, offsets and lengths are checked here once; all other code relies on
//! [`REQUEST_BYTES_MAX`] and on offsets below [`VOLUME_BYTES_MAX`].

pub mod cli;
mod compression;
mod format;
mod formats;
mod picture;
mod read;
mod report;
mod sort;
mod summary;
mod svg;
mod write;

use engine::units::VOLUME_BYTES_MAX;
use sim::load::{Op, Record};

pub use format::Format;
pub use read::{Broken, Names, Tally, Trace, TraceError};
pub use report::Report;
pub use sort::Sorted;
pub use summary::Summary;
pub use write::{Losses, Writer};

/// The longest accepted read or write, bytes: no block layer makes longer ones, so they indicate garbage.
pub const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// Bytes of a sector in all formats that count in sectors.
const SECTOR: u64 = 512;

/// Checks that a record is possible.
fn checked(record: Record) -> Result<Record, String> {
    let Record { op, offset, bytes, .. } = record;
    if matches!(op, Op::Read | Op::Write) && bytes > REQUEST_BYTES_MAX {
        return Err(format!("a request of {bytes} bytes: the longest that is believed has {REQUEST_BYTES_MAX}"));
    }
    match offset.checked_add(bytes) {
        Some(end) if end <= VOLUME_BYTES_MAX => Ok(record),
        _ => Err(format!("offset {offset} is beyond any volume")),
    }
}
