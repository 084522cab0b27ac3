//! A raw block device as the data of one volume: naming it, recognising it, and claiming it.
//!
//! ```text
//!   --device /dev/sdb ─► find ─► Raw { stable name, size, facts } ─► the volume's specification
//!                                 │ at create:   claim (O_EXCL) ─► refuse_content ─► specification ─► served
//!                                 └ at a start:  same name, same facts, large enough? ─► claim ─► served; else offline
//! ```
//!
//! The whole device belongs to the volume. The server writes nothing of its own to it, so a device with data can become
//! a volume and can be used without the server again. Downside: a device is recognised only by the properties that the
//! kernel knows (`kernel.rs`). Without any, its size must be exactly the recorded one.
//!
//! The claim is an open with O_EXCL, as `mount`, LVM and RAID use it: the claims exclude each other.

mod content;
mod kernel;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use engine::units::{BLOCK, SECTOR};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use self::content::SignatureError;
pub use self::kernel::Kernel;
use self::kernel::Limits;
use super::Abilities;
use super::file::Aligned;
use crate::quantity::Size;

/// How long the creation of a volume waits for a busy device: after a server was killed, the kernel takes a moment to
/// close the files of its ring.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// The interval of attempts during that time.
const RETRY: Duration = Duration::from_millis(20);
/// Persistent names of a device, in order of preference: directories, and the beginnings of names in them.
const STABLE: [(&str, &[&str]); 2] =
    [("by-id", &["dm-uuid-", "md-uuid-", "wwn-", "nvme-eui.", "nvme-uuid.", ""]), ("by-partuuid", &[""])];
/// Names in `by-id` that come from the content of the device, not from the drive.
const OF_CONTENT: &str = "lvm-pv-uuid-";

/// The device in a volume's specification, and the properties by which it is recognised.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Raw {
    /// Its persistent name, if it has one.
    pub path: PathBuf,
    /// Its size when the volume was created or last grown, bytes.
    pub size: u64,
    /// The properties that identify it: see `Kernel::facts`.
    #[serde(default)]
    pub facts: BTreeMap<String, String>,
}

/// A claimed device.
#[derive(Debug)]
pub struct Claim {
    /// The device, open exclusively for direct I/O.
    pub file: File,
    /// Its device number.
    pub number: u64,
    /// Its first byte on its drive, if it is a partition.
    pub start: Option<u64>,
    /// What it supports.
    pub abilities: Abilities,
}

/// Why a device cannot be a volume's data.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    #[error("there is no device {}: {source}", path.display())]
    Missing { path: PathBuf, source: io::Error },
    #[error("{} is not a block device", .0.display())]
    NotADevice(PathBuf),
    #[error("{} ({name}) is read-only", path.display())]
    ReadOnly { path: PathBuf, name: String },
    #[error("{} is in use: {by}", path.display())]
    InUse { path: PathBuf, by: String },
    #[error("{} is in use: {by}", path.display())]
    Busy { path: PathBuf, by: String },
    #[error("{} is the data of volume '{volume}' already", path.display())]
    Taken { path: PathBuf, volume: String },
    #[error("{} holds {what}, which the volume's clients would overwrite", path.display())]
    Holds { path: PathBuf, what: String },
    #[error("cannot determine whether {} is empty: {source}", path.display())]
    Unknown { path: PathBuf, source: SignatureError },
    #[error("the kernel's attributes of {} cannot be read: {source}", path.display())]
    NotTold { path: PathBuf, source: io::Error },
    #[error("{} has {}, and {} are needed", path.display(), Size(*size), Size(*needed))]
    TooSmall { path: PathBuf, size: u64, needed: u64 },
    #[error("{} is another device: {why}", path.display())]
    Another { path: PathBuf, why: String },
    #[error("{} has blocks of {block} bytes; at most 4096 are possible", path.display())]
    Blocks { path: PathBuf, block: u64 },
    #[error("{} cannot be opened: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
}

impl RawError {
    /// What the user can do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            RawError::Missing { .. } | RawError::NotADevice(_) => "`lsblk` shows the devices of this machine",
            RawError::ReadOnly { .. } => "`blockdev --setrw` makes it writable, if its medium is",
            RawError::InUse { .. } | RawError::Busy { .. } => "unmount it, or remove it from its present use",
            RawError::Taken { .. } => "name another device: a device holds one volume",
            RawError::Holds { .. } => "add --force if the content may be overwritten or belongs to the volume",
            RawError::Unknown { .. } => "install util-linux, which has blkid, or accept the risk with --force",
            RawError::NotTold { .. } => "sysfs has to be mounted at /sys; if descriptors or memory ran out, try again",
            RawError::TooSmall { .. } => {
                "request less, leave out the size to use the whole device, or enlarge the device first"
            }
            RawError::Another { .. } => {
                "reconnect the right device; or delete the volume (no data on either device is changed) and create it \
                 on this one"
            }
            RawError::Blocks { .. } => "name a device with blocks of 512 to 4096 bytes",
            RawError::Open { .. } => "the server's user needs to read and write it: see its owner and group",
        }
    }
}

/// The number of the block device at a path.
pub fn number(path: &Path) -> Result<u64, RawError> {
    let found = fs::metadata(path).map_err(|source| RawError::Missing { path: path.to_owned(), source })?;
    if !found.file_type().is_block_device() {
        return Err(RawError::NotADevice(path.to_owned()));
    }
    Ok(found.rdev())
}

impl Raw {
    /// The device at `path`, under its persistent name.
    pub fn find(path: &Path, kernel: &Kernel) -> Result<Raw, RawError> {
        let number = number(path)?;
        let path = stable_name(path, Path::new("/dev/disk"));
        Raw::told(path, kernel, number)
    }

    /// Reads size and properties of a device.
    fn told(path: PathBuf, kernel: &Kernel, number: u64) -> Result<Raw, RawError> {
        let told = kernel.limits(number).and_then(|limits| Ok((limits.size, kernel.facts(number)?)));
        match told {
            Ok((size, facts)) => Ok(Raw { path, size, facts }),
            Err(source) => Err(RawError::NotTold { path, source }),
        }
    }

    /// The largest size of a volume on it, bytes: whole blocks of the cache.
    pub fn usable_bytes(&self) -> u64 {
        self.size / BLOCK * BLOCK
    }

    /// Checks that the device is the recorded one and has at least `needed` bytes. Returns its number and its current
    /// size and properties; it may have grown.
    pub fn look(&self, kernel: &Kernel, needed: u64) -> Result<(u64, Raw), RawError> {
        let (path, number) = (self.path.clone(), number(&self.path)?);
        let now = Raw::told(path.clone(), kernel, number)?;
        for (fact, expected) in &self.facts {
            let found = now.facts.get(fact);
            if found != Some(expected) {
                let found = found.map_or("none", String::as_str);
                return Err(RawError::Another { path, why: format!("its {fact} is {found}, not {expected}") });
            }
        }
        if self.facts.is_empty() && now.size != self.size {
            let why =
                format!("it has {}, not {}, and no identifier other than its size", Size(now.size), Size(self.size));
            return Err(RawError::Another { path, why });
        }
        if now.size < needed {
            return Err(RawError::TooSmall { path, size: now.size, needed });
        }
        Ok((number, now))
    }

    /// The device with its current size. Its name must still lead to the device number that is `served`.
    pub fn grown(&self, kernel: &Kernel, served: u64) -> Result<Raw, RawError> {
        if number(&self.path)? != served {
            let why = format!("the volume is served from {}", kernel.name(served));
            return Err(RawError::Another { path: self.path.clone(), why });
        }
        Ok(Raw { size: Raw::told(self.path.clone(), kernel, served)?.size, ..self.clone() })
    }

    /// Claims the device for a volume of `needed` bytes. Waits until `deadline` while it is busy.
    pub fn claim(&self, kernel: &Kernel, needed: u64, deadline: Instant) -> Result<Claim, RawError> {
        let (number, _) = self.look(kernel, needed)?;
        let path = || self.path.clone();
        let limits = kernel.limits(number).map_err(|source| RawError::NotTold { path: path(), source })?;
        let device_block = [SECTOR, BLOCK].into_iter().find(|&block| block >= limits.block);
        let device_block = device_block.ok_or_else(|| RawError::Blocks { path: path(), block: limits.block })? as u32;
        if limits.read_only {
            return Err(RawError::ReadOnly { path: path(), name: kernel.name(number) });
        }
        let mut options = File::options();
        options.read(true).write(true).custom_flags((OFlags::DIRECT | OFlags::EXCL).bits() as i32);
        let file = loop {
            let source = match options.open(&self.path) {
                Ok(file) => break file,
                Err(error) => error,
            };
            if source.raw_os_error() != Some(rustix::io::Errno::BUSY.raw_os_error()) {
                return Err(RawError::Open { path: path(), source });
            }
            if let Some(by) = kernel.user(number) {
                return Err(RawError::InUse { path: path(), by });
            }
            if Instant::now() >= deadline {
                let by = process_with(number).unwrap_or_else(|| "the kernel or another program has it open".into());
                return Err(RawError::Busy { path: path(), by });
            }
            std::thread::sleep(RETRY);
        };
        // The name may have moved to another device between the check and the open.
        if file.metadata().map(|found| found.rdev()).ok() != Some(number) {
            let why = "it was replaced at this moment".to_owned();
            return Err(RawError::Another { path: path(), why });
        }
        let Limits { can_zero, can_punch, .. } = limits;
        let abilities = Abilities { direct: true, device_block, can_zero, can_punch };
        Ok(Claim { file, number, start: kernel.start(number), abilities })
    }

    /// Opens the device for a probe, while the server that serves it has it claimed.
    pub fn open_to_read(&self) -> Result<File, RawError> {
        let opened = File::options().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&self.path);
        opened.map_err(|source| RawError::Open { path: self.path.clone(), source })
    }

    /// Refuses a claimed device that holds data. Since it is claimed, no other program can change this meanwhile.
    pub fn refuse_content(&self, claim: &Claim) -> Result<(), RawError> {
        // To blkid, a device that cannot be read looks empty.
        let mut first = Aligned::new(BLOCK as usize);
        let unknown = |source| RawError::Unknown { path: self.path.clone(), source };
        let read = claim.file.read_exact_at(first.bytes_mut(), 0);
        read.map_err(|error| unknown(SignatureError::Unreadable(error)))?;
        match content::signature(&self.path) {
            Ok(None) => Ok(()),
            Ok(Some(what)) => Err(RawError::Holds { path: self.path.clone(), what }),
            Err(error) => Err(unknown(error)),
        }
    }
}

/// The name of a device that does not change with the kernel's numbering, or the given one if there is none.
fn stable_name(path: &Path, links: &Path) -> PathBuf {
    if STABLE.iter().any(|(folder, _)| path.starts_with(links.join(folder))) {
        return path.to_owned();
    }
    let Ok(target) = fs::canonicalize(path) else { return path.to_owned() };
    for (folder, beginnings) in STABLE {
        let entries = fs::read_dir(links.join(folder)).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut names: Vec<PathBuf> =
            entries.filter(|name| fs::canonicalize(name).is_ok_and(|other| other == target)).collect();
        names.sort();
        let begins =
            |name: &Path, text: &str| name.file_name().is_some_and(|name| name.to_string_lossy().starts_with(text));
        names.retain(|name| !begins(name, OF_CONTENT));
        let best = beginnings.iter().find_map(|beginning| names.iter().find(|name| begins(name, beginning)));
        if let Some(name) = best {
            return name.clone();
        }
    }
    path.to_owned()
}

/// A process that has the device open, if it is visible to this user.
fn process_with(number: u64) -> Option<String> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let numbered =
        processes.filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()));
    let mut having = numbered.filter(|process| {
        let files = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let devices = files.filter_map(|file| fs::metadata(file.path()).ok());
        devices.into_iter().any(|file| file.file_type().is_block_device() && file.rdev() == number)
    });
    let process = having.next()?;
    let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
    Some(format!("process {} ({}) has it open", process.file_name().display(), name.trim()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::kernel::tests::Tree;
    use super::*;

    #[test]
    fn the_name_that_stays_is_chosen() {
        let dir = tempfile::tempdir().unwrap();
        let (device, other) = (dir.path().join("sdb"), dir.path().join("sdc"));
        let links = dir.path().join("disk");
        for file in [&device, &other] {
            fs::write(file, "").unwrap();
        }
        let link = |folder: &str, name: &str, to: &Path| {
            fs::create_dir_all(links.join(folder)).unwrap();
            symlink(to, links.join(folder).join(name)).unwrap();
        };
        assert_eq!(stable_name(&device, &links), device);
        link("by-uuid", "of-a-file-system", &device);
        link("by-id", "lvm-pv-uuid-xyz", &device);
        assert_eq!(stable_name(&device, &links), device, "what clients write is no name");
        link("by-partuuid", "1234-01", &device);
        assert_eq!(stable_name(&device, &links), links.join("by-partuuid/1234-01"));
        link("by-id", "ata-DISK_1", &device);
        link("by-id", "ata-DISK_2", &other);
        assert_eq!(stable_name(&device, &links), links.join("by-id/ata-DISK_1"));
        link("by-id", "wwn-0x5000", &device);
        assert_eq!(stable_name(&device, &links), links.join("by-id/wwn-0x5000"));
        let chosen = links.join("by-id/ata-DISK_1");
        assert_eq!(stable_name(&chosen, &links), chosen, "whoever names one means it");
    }

    #[test]
    fn what_is_no_device_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::default();
        let file = dir.path().join("file");
        assert!(matches!(Raw::find(&file, &kernel), Err(RawError::Missing { .. })));
        fs::write(&file, "").unwrap();
        assert!(matches!(Raw::find(&file, &kernel), Err(RawError::NotADevice(_))));
        assert!(matches!(Raw::find(Path::new("/dev/null"), &kernel), Err(RawError::NotADevice(_))));
    }

    /// A device must have all properties that were recorded when the volume was created. Additional ones are no
    /// difference.
    #[test]
    fn another_device_is_recognised() {
        let Some((path, number)) = some_device() else { return };
        let tree = Tree::new();
        let name = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        tree.add("sdb", &name, &[("size", "16"), ("serial", "A1")]);
        let kernel = tree.kernel();
        let facts = |serial: &str| BTreeMap::from([("serial".to_owned(), serial.to_owned())]);
        let raw = |size, facts| Raw { path: path.clone(), size, facts };
        let error = |raw: Raw, needed| raw.look(&kernel, needed).unwrap_err().to_string();
        assert_eq!(raw(8192, facts("A1")).look(&kernel, 8192).unwrap().0, number);
        // The device has grown.
        assert_eq!(raw(4096, facts("A1")).look(&kernel, 4096).unwrap().1.size, 8192);
        assert!(error(raw(8192, facts("B2")), 8192).contains("its serial is A1, not B2"));
        assert!(error(raw(16384, facts("A1")), 16384).contains("8KiB, and 16KiB are needed"));
        let wwid = BTreeMap::from([("wwid".to_owned(), "naa.5".to_owned())]);
        assert!(error(raw(8192, wwid), 8192).contains("its wwid is none"));
        // A device without properties is recognised by its size.
        assert!(raw(8192, BTreeMap::new()).look(&kernel, 4096).is_ok());
        assert!(error(raw(4096, BTreeMap::new()), 4096).contains("no identifier other than its size"));
    }

    /// Any block device; it is only read. Machines without one rely on the tests with real clients.
    fn some_device() -> Option<(PathBuf, u64)> {
        let devices = fs::read_dir("/dev").ok()?.flatten().map(|entry| entry.path());
        devices.into_iter().find_map(|path| Some((path.clone(), number(&path).ok()?)))
    }
}
