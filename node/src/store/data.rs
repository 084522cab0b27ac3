//! A volume's data, opened: a file in the disk's directory, or a raw device.
//!
//! ```text
//!   server ── open, flock ──► struct file ◄── request in the block layer ◄── request …
//!     │                          ▲   the lock is released with the last reference: not when the process ends, but
//!     ✗ kill -9                  │   when the last of its requests has completed
//!   successor ── open, flock ────┘   Busy until then; tried again
//! ```
//!
//! When a process is killed, the kernel still completes the requests of its ring. Therefore each data file is locked by
//! the open file that the requests use: a successor that gets the lock knows that no write of a predecessor is
//! outstanding (docs/design/durability.md). A raw device is claimed with O_EXCL, which is held equally long.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::raw::{Claim, Kernel, RawError};
use super::{Abilities, Files, Spec, Store, file};

/// The identity of a file or device. Another file of the same name is not the volume's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataId {
    /// A file.
    File {
        /// The device number of the file system.
        device: u64,
        /// The inode number.
        inode: u64,
    },
    /// A block device, by its number.
    Device(u64),
}

impl DataId {
    /// The identity of the file or device at a path.
    pub fn at(path: &Path) -> io::Result<DataId> {
        path.metadata().map(|found| DataId::of(&found))
    }

    fn of(found: &Metadata) -> DataId {
        match found.file_type().is_block_device() {
            true => DataId::Device(found.rdev()),
            false => DataId::File { device: found.dev(), inode: found.ino() },
        }
    }
}

/// The open data of a volume.
#[derive(Debug)]
pub struct Data {
    /// The open file, for the disk's thread.
    pub file: File,
    /// Its identity.
    pub id: DataId,
    /// What it supports.
    pub abilities: Abilities,
    /// Ranges that were never written: start and end, bytes.
    pub holes: Vec<(u64, u64)>,
    /// Its first byte on the drive, or on the device of its file system, if that is known.
    pub disk_start: Option<u64>,
}

/// Why a volume's data cannot be opened now.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error(
        "waits for outstanding I/O of the previous server, which still has {} locked; it is served after that",
        .0.display()
    )]
    Locked(PathBuf),
    #[error("waits for outstanding I/O of the previous server, or for another program: {0}; it is served after that")]
    Claimed(RawError),
    #[error("its data cannot be opened: {0}")]
    Open(io::Error),
    #[error("{_0}: {}", .0.hint())]
    Device(RawError),
    #[error("cannot determine whether its data was lost: {0}")]
    Loss(io::Error),
}

impl DataError {
    /// Whether a predecessor's requests or another program still use the data; worth another attempt.
    pub fn is_busy(&self) -> bool {
        match self {
            DataError::Locked(_) | DataError::Claimed(_) => true,
            DataError::Open(_) | DataError::Device(_) | DataError::Loss(_) => false,
        }
    }
}

impl Data {
    /// Opens the data of a volume and locks it. Never blocks on the lock.
    pub fn open(store: &Store, files: &Files<'_>, spec: &Spec) -> Result<Data, DataError> {
        if let Some(device) = &spec.device {
            let claim = device.claim(&Kernel::default(), spec.file_bytes(), Instant::now());
            return claim.map(Data::from).map_err(DataError::from);
        }
        let path = files.data();
        let open = || {
            let file = store.abilities.open(&path)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            let id = DataId::of(&file.metadata()?);
            // A simulated drive takes time for unwritten ranges, too, so no read may be answered from the list of
            // holes.
            let holes = if store.model.is_some() { Vec::new() } else { file::holes(&file, spec.size) };
            let disk_start = file::disk_start(&file);
            Ok(Data { file, id, abilities: store.abilities, holes, disk_start })
        };
        open().map_err(|error: io::Error| match Errno::from_io_error(&error) {
            Some(Errno::WOULDBLOCK) => DataError::Locked(path.clone()),
            _ => DataError::Open(error),
        })
    }
}

impl From<RawError> for DataError {
    fn from(error: RawError) -> DataError {
        match error {
            RawError::Busy { .. } => DataError::Claimed(error),
            _ => DataError::Device(error),
        }
    }
}

impl From<Claim> for Data {
    /// A raw device may hold any data, so no range is known to be unwritten.
    fn from(Claim { file, number, start, abilities }: Claim) -> Data {
        Data { file, id: DataId::Device(number), abilities, holes: Vec::new(), disk_start: start }
    }
}

impl Files<'_> {
    /// The path of a volume's data: its device, or the file in the disk's directory.
    pub fn data_of(&self, spec: Option<&Spec>) -> PathBuf {
        spec.and_then(|spec| spec.device.as_ref()).map_or_else(|| self.data(), |device| device.path.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use io_uring::{IoUring, opcode, types};

    use super::*;
    use crate::quantity::Name;
    use crate::store::spec::Allocation;
    use crate::store::{Identity, Progress, Scheduling};

    fn volume(directory: &Path) -> (Store, Spec) {
        Identity::initialise(directory, None, Vec::new(), Scheduling::default()).unwrap();
        let store = Store::open(directory, None).unwrap();
        let spec = Spec::new(1 << 20, None, Allocation::Whole);
        store.files(&name()).create(&spec, &Progress::default()).unwrap();
        (store, spec)
    }

    fn name() -> Name {
        "db".parse().unwrap()
    }

    fn open(store: &Store, spec: &Spec) -> Result<Data, DataError> {
        Data::open(store, &store.files(&name()), spec)
    }

    #[test]
    fn data_is_opened_once_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let (store, spec) = volume(dir.path());
        let data = open(&store, &spec).unwrap();
        let reason = open(&store, &spec).unwrap_err();
        assert!(reason.is_busy(), "opened twice");
        let reason = reason.to_string();
        assert!(reason.contains("waits for outstanding I/O of the previous server"), "{reason}");
        // A volume that was deleted and created again has another data file.
        fs::remove_file(store.volumes().join("db.img")).unwrap();
        assert!(matches!(open(&store, &spec), Err(DataError::Open(_))));
        fs::write(store.volumes().join("db.img"), [0; 4096]).unwrap();
        drop((open(&store, &spec).unwrap(), data));
        open(&store, &spec).unwrap();
    }

    /// The kernel's behaviour that fencing relies on: a ring's reference to a file, by a request or a registered file,
    /// keeps the lock after every descriptor is closed.
    #[test]
    fn a_ring_holds_the_lock_of_a_file_that_was_closed() {
        let dir = tempfile::tempdir().unwrap();
        let (store, spec) = volume(dir.path());
        let Ok(mut ring) = IoUring::new(8) else { return };
        let data = open(&store, &spec).unwrap();
        ring.submitter().register_files(&[data.file.as_raw_fd()]).unwrap();
        drop(data);
        assert!(matches!(open(&store, &spec), Err(DataError::Locked(_))), "a registered file");
        ring.submitter().unregister_files().unwrap();
        let until = |what: &str, holds: &dyn Fn() -> bool| {
            let start = Instant::now();
            while !holds() {
                assert!(start.elapsed().as_secs() < 60, "{what}");
                std::thread::yield_now();
            }
        };
        until("the ring lets go of the file", &|| open(&store, &spec).is_ok());

        // A request that does not end: a poll of a pipe that is locked like a data file.
        let (reader, mut writer) = std::io::pipe().unwrap();
        flock(&reader, FlockOperation::NonBlockingLockExclusive).unwrap();
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let other = File::open(&path).unwrap();
        let is_locked = || flock(&other, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK);
        let entry = opcode::PollAdd::new(types::Fd(reader.as_raw_fd()), libc::POLLIN as u32).build();
        // SAFETY: a poll uses no memory of ours.
        unsafe { ring.submission().push(&entry).unwrap() };
        ring.submit().unwrap();
        drop(reader);
        assert!(is_locked(), "a request in flight");
        writer.write_all(b"x").unwrap();
        ring.submit_and_wait(1).unwrap();
        assert!(ring.completion().next().is_some());
        until("the request to let go of the file", &|| !is_locked());
    }
}
