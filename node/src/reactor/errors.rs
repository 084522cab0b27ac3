//! Failures of device requests: mapped to NBD's error numbers for the engine, logged in full at a bounded rate.

use std::io;
use std::time::{Duration, Instant};

use engine::disk::Op;
use engine::ids::VolumeId;
use engine::nbd::Errno;

/// Log lines in each [`LOG_WINDOW`]: enough to see the cause, too few to fill a disk when a device has failed.
const LOG_LINES: u32 = 5;
/// See [`LOG_LINES`].
const LOG_WINDOW: Duration = Duration::from_secs(10);

/// Why a device request failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// An errno of the kernel.
    Os(i32),
    /// The file is shorter than the request's range.
    EndOfFile,
    /// The volume has no file.
    NoVolume,
}

impl Failure {
    /// The error that the client gets.
    fn errno(self) -> Errno {
        match self {
            Failure::Os(libc::ENOSPC | libc::EDQUOT) => Errno::NoSpace,
            // Else: EIO, also for EROFS and EPERM. To a client EPERM means a read-only export, not a failed file
            // system.
            Failure::Os(libc::EOPNOTSUPP) => Errno::NotSupported,
            _ => Errno::Io,
        }
    }
}

/// The log of failures.
#[derive(Debug)]
pub struct FailureLog {
    window_start: Instant,
    lines: u32,
    suppressed: u64,
}

impl FailureLog {
    /// An empty one.
    pub fn new() -> FailureLog {
        FailureLog { window_start: Instant::now(), lines: 0, suppressed: 0 }
    }

    /// Logs a failure, unless `LOG_LINES` were logged in this window. Returns the error for the client.
    pub fn report(&mut self, op: Op, volume: VolumeId, offset: u64, failure: Failure) -> Errno {
        if self.window_start.elapsed() >= LOG_WINDOW {
            if self.suppressed > 0 {
                tracing::error!(count = self.suppressed, "further device errors were suppressed");
            }
            *self = FailureLog::new();
        }
        if self.lines == LOG_LINES {
            self.suppressed += 1;
            return failure.errno();
        }
        self.lines += 1;
        let error = match failure {
            Failure::Os(errno) => io::Error::from_raw_os_error(errno).to_string(),
            Failure::EndOfFile => "the file is shorter than the volume".to_owned(),
            Failure::NoVolume => "the volume has no file".to_owned(),
        };
        tracing::error!(volume = volume.0, ?op, offset, error, "device request failed");
        failure.errno()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_told_in_the_words_of_nbd() {
        for (errno, told) in [
            (libc::ENOSPC, Errno::NoSpace),
            (libc::EDQUOT, Errno::NoSpace),
            (libc::EROFS, Errno::Io),
            (libc::EPERM, Errno::Io),
            (libc::EOPNOTSUPP, Errno::NotSupported),
            (libc::EINVAL, Errno::Io),
            (libc::EBADF, Errno::Io),
        ] {
            assert_eq!(Failure::Os(errno).errno(), told);
        }
        assert_eq!(Failure::EndOfFile.errno(), Errno::Io);
    }

    #[test]
    fn a_flood_is_counted_not_shown() {
        let mut log = FailureLog::new();
        for _ in 0..100 {
            log.report(Op::Flush, VolumeId(1), 0, Failure::Os(libc::EIO));
        }
        assert_eq!((log.lines, log.suppressed), (LOG_LINES, 100 - u64::from(LOG_LINES)));
    }
}
