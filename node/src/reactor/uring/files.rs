//! Sockets registered with the ring, which saves taking and dropping a reference on the file for each request.

use std::io;
use std::os::fd::RawFd;

use io_uring::squeue::Flags;
use io_uring::types::Fd;

use super::ring::Ring;

/// Registered sockets at most. The kernel also limits their number to that of open files. Further sockets are used by
/// their descriptors, which is a little slower.
const FILES_MAX: u64 = 8192;

/// How an entry names its file: by number or by descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// A descriptor, or the number of a registered file.
    pub fd: Fd,
    /// Says which of the two `fd` is.
    pub flags: Flags,
}

impl Target {
    /// Names a file by its descriptor; each request takes a reference on the file.
    pub fn plain(fd: RawFd) -> Target {
        Target { fd: Fd(fd), flags: Flags::empty() }
    }

    fn numbered(number: u32) -> Target {
        Target { fd: Fd(number as RawFd), flags: Flags::FIXED_FILE }
    }
}

/// The table of registered files.
pub struct Files {
    free: Vec<u32>,
}

impl Files {
    /// Reserves as many entries as the system allows. None at all is not an error.
    pub fn new(ring: &Ring) -> Files {
        // SAFETY: fills a structure of ours.
        let limit = unsafe {
            let mut limit = std::mem::zeroed::<libc::rlimit>();
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
            limit.rlim_cur
        };
        let count = limit.min(FILES_MAX) as u32;
        match ring.submitter().register_files_sparse(count) {
            Ok(()) => Files { free: (0..count).rev().collect() },
            Err(error) => {
                tracing::info!(%error, "no registered files: continuing without them");
                Files { free: Vec::new() }
            }
        }
    }

    /// Registers a file.
    pub fn register(&mut self, ring: &Ring, fd: RawFd) -> Target {
        let Some(number) = self.free.pop() else { return Target::plain(fd) };
        match ring.submitter().register_files_update(number, &[fd]) {
            Ok(_) => Target::numbered(number),
            Err(_) => {
                self.free.push(number);
                Target::plain(fd)
            }
        }
    }

    /// Unregisters a file, which has nothing in flight.
    pub fn unregister(&mut self, ring: &Ring, target: Target) -> io::Result<()> {
        if target.flags.contains(Flags::FIXED_FILE) {
            let number = target.fd.0 as u32;
            ring.submitter().register_files_update(number, &[-1])?;
            self.free.push(number);
        }
        Ok(())
    }
}
