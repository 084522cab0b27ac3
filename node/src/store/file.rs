//! Data files: opening them (for direct I/O if the file system supports it), their holes, and what else is supported.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::Ordering;

use engine::units::{BLOCK, SECTOR};
use rustix::fs::{AtFlags, FallocateFlags, SeekFrom, StatxFlags, fallocate, seek, statx};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::steps::{Progress, check};

/// Holes of a volume that are kept; if there are more, the largest ones.
const HOLES_MAX: usize = 32 * 1024;
/// Bytes of one write of zeros.
const ZEROS: usize = 1 << 20;

const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;

/// What the file system of a disk supports, tried on a scratch file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Abilities {
    /// Whether direct I/O works.
    pub direct: bool,
    /// The unit of offsets and lengths of I/O, bytes: 512 or 4096.
    pub device_block: u32,
    /// Whether a range can be zeroed without writing zeros.
    pub can_zero: bool,
    /// Whether space can be deallocated.
    pub can_punch: bool,
}

impl Abilities {
    /// Tries all abilities on a scratch file in this directory.
    pub fn probe(directory: &Path) -> io::Result<Abilities> {
        with_scratch(directory, |path, file| {
            fallocate_or_extend(file, 4 * BLOCK)?;
            let can = |flags| fallocate(file, flags | FallocateFlags::KEEP_SIZE, 0, BLOCK).is_ok();
            let block = match open_direct(path) {
                Ok(direct) => direct_block(&direct)?,
                Err(error) if is_unsupported(&error) => None,
                Err(error) => return Err(error),
            };
            Ok(Abilities {
                direct: block.is_some(),
                device_block: block.unwrap_or(SECTOR as u32),
                can_zero: can(FallocateFlags::ZERO_RANGE),
                can_punch: can(FallocateFlags::PUNCH_HOLE),
            })
        })
    }

    /// Opens a data file for the disk's thread.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        if self.direct { open_direct(path) } else { File::options().read(true).write(true).open(path) }
    }
}

fn open_direct(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).custom_flags(O_DIRECT).open(path)
}

fn with_scratch<T>(directory: &Path, work: impl FnOnce(&Path, &File) -> io::Result<T>) -> io::Result<T> {
    let path = directory.join(".scratch.tmp");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    let result = work(&path, &file);
    fs::remove_file(&path)?;
    result
}

fn fallocate_or_extend(file: &File, bytes: u64) -> io::Result<()> {
    fallocate(file, FallocateFlags::empty(), 0, bytes).or_else(|_| file.set_len(bytes))
}

/// Whether the error means that the file system has no direct I/O. Other errors say nothing about the file system.
fn is_unsupported(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput || error.kind() == io::ErrorKind::Unsupported
}

/// The smallest block of direct I/O on this file: as `statx` says, else the smallest that works.
fn direct_block(file: &File) -> io::Result<Option<u32>> {
    let dioalign = StatxFlags::from_bits_retain(0x2000);
    if let Ok(found) = statx(file, "", AtFlags::EMPTY_PATH, dioalign)
        && StatxFlags::from_bits_retain(found.stx_mask).contains(dioalign)
    {
        let align = found.stx_dio_offset_align.max(found.stx_dio_mem_align);
        return Ok([512, 4096].into_iter().find(|block| align != 0 && block % align == 0));
    }
    for block in [512, 4096] {
        let mut buffer = Aligned::new(4096);
        match file.read_exact_at(&mut buffer.bytes_mut()[..block as usize], u64::from(block)) {
            Ok(()) => return Ok(Some(block)),
            Err(error) if is_unsupported(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// A buffer of zeros at an address that is aligned for direct I/O.
pub struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub fn new(len: usize) -> Aligned {
        let memory = vec![0; len + BLOCK as usize];
        Aligned { start: memory.as_ptr().align_offset(BLOCK as usize), memory, len }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// Writes zeros over `from..to`, both multiples of a block, with direct I/O if possible.
pub fn write_zeros(path: &Path, from: u64, to: u64, progress: &Progress) -> io::Result<()> {
    // If direct I/O fails for any reason, the page cache is used; the step that follows flushes it.
    let direct = open_direct(path).ok().filter(|file| matches!(direct_block(file), Ok(Some(_))));
    let file = direct.map_or_else(|| File::options().write(true).open(path), Ok)?;
    let mut zeros = Aligned::new(ZEROS);
    let mut at = from;
    while at < to {
        check(progress)?;
        let len = (to - at).min(ZEROS as u64);
        file.write_all_at(&zeros.bytes_mut()[..len as usize], at)?;
        at += len;
        progress.bytes.store(at - from, Ordering::Relaxed);
    }
    Ok(())
}

/// Ranges of the first `size` bytes that were never written. Never more than that: where the file system gives no
/// answer, a range counts as data.
pub fn holes(file: &File, size: u64) -> Vec<(u64, u64)> {
    let mut holes = Vec::new();
    let mut at = 0;
    while at < size {
        let Ok(start) = seek(file, SeekFrom::Hole(at)) else { break };
        if start >= size {
            break;
        }
        let end = match seek(file, SeekFrom::Data(start)) {
            Ok(end) => end,
            Err(rustix::io::Errno::NXIO) => size,
            Err(_) => break,
        };
        holes.push((start.next_multiple_of(SECTOR), end.min(size) / SECTOR * SECTOR));
        if holes.len() >= 2 * HOLES_MAX {
            keep_largest(&mut holes);
        }
        at = end;
    }
    keep_largest(&mut holes);
    holes.retain(|(start, end)| start < end);
    holes.sort_unstable();
    holes
}

/// Where the data of a file begins on the device of its file system, bytes; `None` if the file system does not tell
/// (FIEMAP, linux/fiemap.h). It says nothing of further extents.
pub fn disk_start(file: &File) -> Option<u64> {
    const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
    const EXTENT_UNKNOWN: u32 = 2;
    /// `struct fiemap`, with room for one extent, `struct fiemap_extent`.
    #[repr(C)]
    #[derive(Default)]
    struct Map {
        start: u64,
        length: u64,
        flags: u32,
        mapped: u32,
        count: u32,
        reserved: u32,
        logical: u64,
        physical: u64,
        extent_length: u64,
        extent_reserved: [u64; 2],
        extent_flags: u32,
        extent_reserved_too: [u32; 3],
    }
    let mut map = Map { length: u64::MAX, count: 1, ..Map::default() };
    // SAFETY: the kernel reads and writes a `struct fiemap` with as many extents as its count says, which is `map`.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut map) };
    (result == 0 && map.mapped == 1 && map.extent_flags & EXTENT_UNKNOWN == 0).then_some(map.physical)
}

fn keep_largest(holes: &mut Vec<(u64, u64)>) {
    if holes.len() > HOLES_MAX {
        holes.select_nth_unstable_by_key(HOLES_MAX, |(start, end)| std::cmp::Reverse(end.saturating_sub(*start)));
        holes.truncate(HOLES_MAX);
    }
}

/// Whether volumes on one file system can delay each other through its journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Journal {
    /// One journal or log for all volumes of the disk.
    Shared,
    /// The file system has no journal.
    None,
}

/// The name of the file system that a directory is on, and its journal. An unknown one is assumed to have a journal.
pub fn file_system(directory: &Path) -> (String, Journal) {
    // Values from statfs(2), linux/magic.h.
    let known = match rustix::fs::statfs(directory).map_or(0, |found| found.f_type as u32) {
        0xef53 => ("ext", Journal::Shared),
        0x5846_5342 => ("xfs", Journal::Shared),
        0x9123_683e => ("btrfs", Journal::Shared),
        0x2fc1_2fc1 => ("zfs", Journal::Shared),
        0xf2f5_2010 => ("f2fs", Journal::Shared),
        0x0102_1994 => ("tmpfs", Journal::None),
        other => return (format!("type {other:#x}"), Journal::Shared),
    };
    (known.0.into(), known.1)
}

/// Free bytes for this user; 0 if unknown.
pub fn free_bytes(directory: &Path) -> u64 {
    rustix::fs::statvfs(directory).map_or(0, |fs| fs.f_bavail * fs.f_frsize)
}

/// Size of the file system and free bytes for this user; `None` if unknown.
pub fn space(directory: &Path) -> Option<(u64, u64)> {
    let fs = rustix::fs::statvfs(directory).ok()?;
    Some((fs.f_blocks * fs.f_frsize, fs.f_bavail * fs.f_frsize))
}

/// Allocated bytes of a directory's files, without their holes.
pub fn used_bytes(directory: &Path) -> u64 {
    let files = fs::read_dir(directory).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.blocks() * 512).sum()
}

/// The size of the largest file that the file system supports, bytes, found by trying.
pub fn largest_file(directory: &Path) -> u64 {
    let search = with_scratch(directory, |_, file| {
        let fits = |blocks: u64| file.set_len(blocks * BLOCK).is_ok();
        let (mut fit, mut too_large) = (0u64, 1 << 51);
        while fit + 1 < too_large {
            let middle = fit.midpoint(too_large);
            if fits(middle) { fit = middle } else { too_large = middle }
        }
        Ok(fit * BLOCK)
    });
    search.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_what_was_not_written() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        assert_eq!(holes(&file, 1 << 20), [(0, 1 << 20)]);
        file.write_all_at(&[1; 4096], 128 << 10).unwrap();
        assert_eq!(holes(&file, 1 << 20), [(0, 128 << 10), ((128 << 10) + 4096, 1 << 20)]);
        assert_eq!(holes(&file, 512), [(0, 512)]);
        fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
        for (start, end) in holes(&file, 1 << 20) {
            assert!(end <= 128 << 10 || start >= (128 << 10) + 4096);
        }
    }

    /// Not every file system tells.
    #[test]
    fn files_that_are_allocated_one_after_the_other_begin_at_different_places() {
        let dir = tempfile::tempdir().unwrap();
        let start = |name: &str, data: &[u8]| {
            let file = File::create(dir.path().join(name)).unwrap();
            file.write_all_at(data, 0).unwrap();
            file.sync_all().unwrap();
            disk_start(&file)
        };
        assert_eq!(start("empty", &[]), None);
        let starts = ["a", "b", "c"].map(|name| start(name, &[1; 1 << 20]));
        let known = starts.iter().flatten().count();
        assert!(known == 0 || known == 3 && starts[0] != starts[1] && starts[1] != starts[2], "{starts:?}");
    }

    #[test]
    fn the_largest_holes_are_kept() {
        let mut holes: Vec<(u64, u64)> = (0..HOLES_MAX as u64 + 10).map(|i| (i * 100, i * 100 + 1 + i % 50)).collect();
        keep_largest(&mut holes);
        assert_eq!(holes.len(), HOLES_MAX);
        assert!(holes.iter().all(|(start, end)| end - start > 1 || start % 100 == 0));
    }

    #[test]
    fn zeros_go_where_they_belong_and_can_be_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        fs::write(&path, [7u8; 3 * 4096]).unwrap();
        write_zeros(&path, 4096, 2 * 4096, &Progress::default()).unwrap();
        let found = fs::read(&path).unwrap();
        assert_eq!([found[4095], found[4096], found[8191], found[8192]], [7, 0, 0, 7]);
        let progress = Progress::default();
        progress.cancelled.store(true, Ordering::Relaxed);
        assert_eq!(write_zeros(&path, 0, 4096, &progress).unwrap_err().kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn abilities_are_found_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let abilities = Abilities::probe(dir.path()).unwrap();
        assert!([512, 4096].contains(&abilities.device_block));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(largest_file(dir.path()) >= 1 << 30);
        assert!(free_bytes(dir.path()) > 0);
        assert_eq!(used_bytes(dir.path()), 0);
        fs::write(dir.path().join("data"), [1; 8192]).unwrap();
        File::create(dir.path().join("hole")).unwrap().set_len(1 << 30).unwrap();
        assert!((8192..1 << 20).contains(&used_bytes(dir.path())));
    }
}
