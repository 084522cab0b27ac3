//! One server at a time: a lock on the server's directory and on each disk, held by the process that has the file open.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Bytes of the file: more than any host's name (64) and what is written around it.
const LOCK_BYTES: u64 = 128;

/// A lock, until it is dropped or the process ends.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of a directory, or says who has it.
    pub fn take(directory: &Path) -> Result<Lock, String> {
        let path = directory.join("lock");
        let cannot = |error: &dyn std::fmt::Display| format!("cannot lock {}: {error}", path.display());
        let mut options = File::options();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).open(&path).map_err(|e| cannot(&e))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                return Err(format!("{} is in use by another server: {}", directory.display(), holder.trim()));
            }
            Err(error) => return Err(cannot(&error)),
        }
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let holder = format!("process {} on host {host}\n", std::process::id());
        sign(&file, &holder).map_err(|error| cannot(&error))?;
        Ok(Lock { _file: file })
    }
}

/// Overwrites what is in the file, with spaces up to its end. It is not truncated: that waits until its page is on the
/// medium (and ext4 writes such a file when it is closed), and a start must not wait for a device that is slow or hung.
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
        let first = Lock::take(dir.path()).unwrap();
        let refused = Lock::take(dir.path()).unwrap_err();
        assert!(refused.contains(&format!("process {} on host", std::process::id())), "{refused}");
        drop(first);
        // What was there before is gone, also if it was longer.
        std::fs::write(dir.path().join("lock"), "x".repeat(500)).unwrap();
        let _second = Lock::take(dir.path()).unwrap();
        let text = std::fs::read_to_string(dir.path().join("lock")).unwrap();
        assert!(text.starts_with(&format!("process {} on host", std::process::id())) && !text.contains("xx"), "{text}");
    }
}
