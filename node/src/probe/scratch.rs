//! The scratch file of a probe: space at several positions, written before it is measured, in a file without a name.
//!
//! ```text
//!   ├─ written ─┼── allocated only ──┼─ written ─┼── allocated only ──┼─ …        at most a quarter of the free space
//! ```
//!
//! Reads of blocks that were never written are answered without the device, so measured space is written first: a
//! gigabyte, in pieces as far from each other as a quarter of the free space permits. The gaps are allocated but not
//! written; they make the file system spread the pieces. The file is unlinked as soon as it is open, so that its space
//! is free when the process ends for any reason. Only a crash between the two steps leaves an empty file, which the
//! next start of the disk removes.
//!
//! Downside: during a probe, a quarter of the free space is in use.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};

use super::{Job, Part, ProbeError};
use crate::store::{Store, StoreError, file};

/// Its name, which it has for a moment only.
pub const NAME: &str = ".probe.tmp";
const MIB: u64 = 1 << 20;
/// The number of pieces, each at another position.
const PIECES: u64 = 8;
/// Bytes of a piece at most. A fast stream reads more in a second; it then starts again at the beginning.
const PIECE_MOST: u64 = 128 * MIB;
/// Bytes of a piece at least: what a probe needs, with some margin.
const PIECE_LEAST: u64 = 8 * MIB;
/// The file is at most one in this many parts of the free space.
const PART_OF_FREE: u64 = 4;
/// Bytes from first to last at most: allocating more takes file systems too long.
const SPAN_MOST: u64 = 256 << 30;
/// Bytes of one write.
const STEP: u64 = MIB;

/// The length of the pieces, and the distance from one to the next, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    piece: u64,
    stride: u64,
}

impl Layout {
    /// The layout for this much free space; without gaps if they would not spread the pieces.
    fn new(free: u64, with_gaps: bool) -> Option<Layout> {
        let span = (free / PART_OF_FREE).min(SPAN_MOST) / PIECES / MIB * MIB;
        let piece = span.min(PIECE_MOST);
        let stride = if with_gaps { span } else { piece };
        (piece >= PIECE_LEAST).then_some(Layout { piece, stride })
    }

    fn bytes(&self) -> u64 {
        self.stride * (PIECES - 1) + self.piece
    }
}

/// Removes a file that a crash has left. The caller has the disk locked.
pub fn remove_left_over(directory: &Path) {
    let path = directory.join(NAME);
    match fs::remove_file(&path) {
        Ok(()) => tracing::info!(path = %path.display(), "removed: scratch file of an earlier probe"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the scratch file of an earlier probe cannot be removed")
        }
    }
}

/// Creates the file and writes its pieces, for at most `time`. Returns the file with the ranges that were written.
pub fn create(store: &Store, time: Duration, job: &Job) -> Result<Part, ProbeError> {
    let directory = store.directory();
    let free = file::free_bytes(directory);
    // On tmpfs, gaps would use memory.
    let with_gaps = store.abilities.direct && file::file_system(directory).0 != "tmpfs";
    let layout = Layout::new(free, with_gaps).ok_or_else(|| StoreError::NoSpace {
        asked: PIECES * PIECE_LEAST * PART_OF_FREE,
        free,
        directory: directory.to_owned(),
    })?;
    let path = directory.join(NAME);
    let step = |doing: &str, result: io::Result<()>| {
        result.map_err(|source| StoreError::Step { doing: doing.into(), path: path.clone(), source })
    };
    remove_left_over(directory);
    step("making a scratch file", File::create_new(&path).map(drop))?;
    let opened = store.abilities.open(&path);
    step("removing the name of a scratch file", fs::remove_file(&path))?;
    let file = opened.map_err(|source| StoreError::Step { doing: "opening".into(), path: path.clone(), source })?;
    let bytes = layout.bytes();
    let allocated = fallocate(&file, FallocateFlags::empty(), 0, bytes).or_else(|error| match error {
        rustix::io::Errno::OPNOTSUPP => file.set_len(bytes).map_err(|_| error),
        _ => Err(error),
    });
    step("allocating a scratch file", allocated.map_err(io::Error::from))?;
    let ranges = write(&file, layout, time, job)?;
    step("writing a scratch file", file.sync_data())?;
    Ok(Part { file, ranges })
}

/// Writes all pieces in turn, so that they have equal length when the time is over. Returns the written ranges.
fn write(file: &File, layout: Layout, time: Duration, job: &Job) -> Result<Vec<Range<u64>>, ProbeError> {
    let began = Instant::now();
    let mut content = file::Aligned::new(STEP as usize);
    for (index, byte) in content.bytes_mut().iter_mut().enumerate() {
        // A sequence that a device cannot compress: Knuth's multiplicative hash.
        *byte = ((index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    }
    let mut length = 0;
    while length < layout.piece && (length < PIECE_LEAST || began.elapsed() < time) {
        job.check()?;
        for piece in 0..PIECES {
            let at = piece * layout.stride + length;
            file.write_all_at(&content.bytes_mut()[..], at).map_err(ProbeError::Reactor)?;
        }
        length += STEP;
        let done = (length as f64 / layout.piece as f64).max(began.elapsed().as_secs_f64() / time.as_secs_f64());
        job.set_progress("writing a scratch file", super::SCRATCH_PART * done.min(1.0));
    }
    Ok((0..PIECES).map(|piece| piece * layout.stride).map(|start| start..start + length).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_into_a_quarter_of_what_is_free() {
        assert_eq!(Layout::new(255 * MIB, true), None);
        for free in [256 * MIB, 1 << 30, 100 << 30, 100 << 40] {
            for with_gaps in [false, true] {
                let layout = Layout::new(free, with_gaps).unwrap();
                assert!(layout.bytes() <= free / 4 && layout.bytes() <= SPAN_MOST, "{layout:?} of {free}");
                assert!(layout.stride >= layout.piece && layout.piece >= PIECE_LEAST);
            }
        }
        assert_eq!(Layout::new(100 << 30, true), Some(Layout { piece: PIECE_MOST, stride: 25 << 27 }));
        assert_eq!(Layout::new(100 << 30, false), Some(Layout { piece: PIECE_MOST, stride: PIECE_MOST }));
    }
}
