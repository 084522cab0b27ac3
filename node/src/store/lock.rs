//! One server at a time: a lock on the server's directory and on each disk, held by the process that has the file open.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

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
        file.set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(holder.as_bytes()))
            .map_err(|e| cannot(&e))?;
        Ok(Lock { _file: file })
    }
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
        Lock::take(dir.path()).unwrap();
    }
}
