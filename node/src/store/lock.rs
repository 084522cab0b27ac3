//! Locks on the server's directory and on each disk, so that one server uses them at a time.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Bytes of the lock file: more than any host name (64) and the text around it.
const LOCK_BYTES: u64 = 128;
/// The interval of attempts while another process has the lock.
const RETRY: Duration = Duration::from_millis(20);

/// Why a directory cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("cannot lock {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is in use by another server: {holder}", directory.display())]
    InUse { directory: PathBuf, holder: String },
}

/// A lock, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of a directory, or returns an error that names the holder. A killed server holds its locks until
    /// its last request has ended, so this blocks for at most `timeout`.
    pub fn take(directory: &Path, timeout: Duration) -> Result<Lock, LockError> {
        let path = directory.join("lock");
        let cannot = |source| LockError::Io { path: path.clone(), source };
        let mut options = File::options();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(cannot)?;
        let (start, mut is_told) = (Instant::now(), false);
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(cannot(error.into())),
            }
            let mut holder = String::new();
            let _ = file.rewind().and_then(|()| file.read_to_string(&mut holder));
            let holder = holder.trim().to_owned();
            if start.elapsed() >= timeout {
                return Err(LockError::InUse { directory: directory.to_owned(), holder });
            }
            if !std::mem::replace(&mut is_told, true) {
                let (seconds, directory) = (timeout.as_secs(), directory.display());
                tracing::info!("waiting up to {seconds} s for {holder} to end: it still has {directory} locked");
            }
            std::thread::sleep(RETRY);
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let holder = format!("process {} on host {host}\n", std::process::id());
        sign(&file, &holder).map_err(cannot)?;
        Ok(Lock { _file: file })
    }
}

/// Overwrites the file's content and pads it with spaces. The file is not truncated: truncating waits until its page is
/// on the medium (and ext4 writes such a file when it is closed), and a start must not wait for a device that is slow
/// or hung.
fn sign(file: &File, holder: &str) -> io::Result<()> {
    let bytes = file.metadata()?.len().max(LOCK_BYTES) as usize;
    file.write_all_at(format!("{holder:<bytes$}").as_bytes(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lock::take(dir.path(), Duration::ZERO).unwrap();
        let refused = Lock::take(dir.path(), Duration::ZERO).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {} on host", std::process::id())), "{refused}");
        drop(first);
        // The earlier content is gone, even if it was longer.
        std::fs::write(dir.path().join("lock"), "x".repeat(500)).unwrap();
        let _second = Lock::take(dir.path(), Duration::ZERO).unwrap();
        let text = std::fs::read_to_string(dir.path().join("lock")).unwrap();
        assert!(text.starts_with(&format!("process {} on host", std::process::id())) && !text.contains("xx"), "{text}");
    }

    #[test]
    fn a_server_that_is_about_to_end_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lock::take(dir.path(), Duration::ZERO).unwrap();
        let (begun, waits) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| {
                begun.send(()).unwrap();
                Lock::take(dir.path(), Duration::from_secs(60))
            });
            waits.recv().unwrap();
            drop(first);
            second.join().unwrap().unwrap();
        });
        // A process that another test starts holds the lock, too, until it executes its program.
        let _third = Lock::take(dir.path(), Duration::from_secs(60)).unwrap();
        let before = Instant::now();
        let refused = Lock::take(dir.path(), 3 * RETRY).unwrap_err().to_string();
        assert!(refused.contains("in use by another server: process") && before.elapsed() >= 3 * RETRY, "{refused}");
    }
}
