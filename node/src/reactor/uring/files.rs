//! Sockets known to the ring by number, which saves taking and dropping a reference for each request.

use std::io;
use std::os::fd::RawFd;

use io_uring::squeue::Flags;
use io_uring::types::Fd;

use super::ring::Ring;

/// Files that the ring has room for; the kernel allows no more than the limit of open files. Those beyond are used by
/// their descriptors, a little slower.
const FILES_MAX: u64 = 8192;

/// How an entry names its file: by number or by descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Either.
    pub fd: Fd,
    /// Which.
    pub flags: Flags,
}

impl Target {
    /// By its descriptor, of which each request takes a reference.
    pub fn plain(fd: RawFd) -> Target {
        Target { fd: Fd(fd), flags: Flags::empty() }
    }

    fn numbered(number: u32) -> Target {
        Target { fd: Fd(number as RawFd), flags: Flags::FIXED_FILE }
    }
}

/// The numbers.
pub struct Files {
    free: Vec<u32>,
}

impl Files {
    /// As many as the system allows; none at all is not an error.
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
                tracing::info!(%error, "no registered files: going on without");
                Files { free: Vec::new() }
            }
        }
    }

    /// Makes a file known.
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

    /// Forgets it. Nothing is in flight on it.
    pub fn unregister(&mut self, ring: &Ring, target: Target) -> io::Result<()> {
        if target.flags.contains(Flags::FIXED_FILE) {
            let number = target.fd.0 as u32;
            ring.submitter().register_files_update(number, &[-1])?;
            self.free.push(number);
        }
        Ok(())
    }
}
