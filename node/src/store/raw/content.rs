//! The content of a device, as `blkid -p` (util-linux) recognises it. It knows hundreds of signatures, and reads the
//! device instead of a cache.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};

/// Where blkid may be, in addition to the directories in a service's PATH.
const PLACES: &str = "/usr/sbin:/sbin";
/// Exit status: no signature found; or, with text on stderr, the device could not be read.
const NOTHING: i32 = 2;
/// Exit status: several conflicting signatures.
const SEVERAL: i32 = 8;

/// Why it is not known whether a device holds data.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    #[error("its beginning cannot be read: {0}")]
    Unreadable(io::Error),
    #[error("blkid cannot be run: {0}")]
    NotRun(io::Error),
    #[error("blkid ended with {status}: {said}")]
    Failed { status: ExitStatus, said: String },
}

/// The signature on a device (a file system, partition table, volume group, …), or the reason why it cannot be
/// determined.
pub fn signature(device: &Path) -> Result<Option<String>, SignatureError> {
    let mut path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    path.push(":");
    path.push(PLACES);
    let mut command = Command::new("blkid");
    command.args(["-p", "-o", "export"]).arg(device).env("PATH", path).env("LC_ALL", "C");
    let done = command.output().map_err(SignatureError::NotRun)?;
    match done.status.code() {
        Some(0) => Ok(told(&String::from_utf8_lossy(&done.stdout))),
        Some(NOTHING) if done.stderr.is_empty() => Ok(None),
        Some(SEVERAL) => Ok(Some("several conflicting signatures".into())),
        _ => {
            let said = String::from_utf8_lossy(&done.stderr).trim().to_owned();
            Err(SignatureError::Failed { status: done.status, said })
        }
    }
}

/// Parses blkid's list of `KEY=value`. The entry of a partition in its drive's table is not content.
fn told(list: &str) -> Option<String> {
    let value = |key: &str| list.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let label = value("LABEL").map_or_else(String::new, |label| format!(" '{label}'"));
    let kind = value("TYPE").map(|kind| format!("{kind}{label}"));
    kind.or_else(|| value("PTTYPE").map(|table| format!("a partition table ({table})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_blkid_says_is_understood() {
        assert_eq!(
            told("DEVNAME=/dev/sdb\nLABEL=my data\nUUID=1\nTYPE=ext4\nUSAGE=filesystem\n").unwrap(),
            "ext4 'my data'"
        );
        assert_eq!(told("DEVNAME=/dev/sdb\nTYPE=LVM2_member\n").unwrap(), "LVM2_member");
        assert_eq!(told("DEVNAME=/dev/sdb\nPTUUID=8\nPTTYPE=gpt\n").unwrap(), "a partition table (gpt)");
        assert_eq!(told("DEVNAME=/dev/sdb1\nPART_ENTRY_SCHEME=gpt\nPART_ENTRY_TYPE=83\n"), None);
        assert_eq!(told(""), None);
    }

    /// The real blkid, on a file.
    #[test]
    fn a_signature_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("image");
        let mut image = vec![0u8; 1 << 20];
        std::fs::write(&file, &image).unwrap();
        assert_eq!(signature(&file).unwrap(), None);
        // A swap area has its signature at the end of the first page.
        image[1024] = 1;
        image[4086..4096].copy_from_slice(b"SWAPSPACE2");
        image[1028] = 200;
        std::fs::write(&file, &image).unwrap();
        assert_eq!(signature(&file).unwrap().unwrap(), "swap");
    }
}
