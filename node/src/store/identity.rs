//! The identity of a disk: `disk.toml`. It is created once; a directory without it is offline.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::catalogue::{Catalogue, Key, LocalFiles};
use super::scheduling::Scheduling;
use super::simulated::Simulated;
use crate::fault::FaultText;

/// The version of the directory's format that this program writes. Since format 2, tenants have specifications of their
/// own: releases that know format 1 only refuse the disk, instead of serving it without what is requested for its
/// tenants.
pub const FORMAT: u32 = 2;
/// The oldest format that this program reads.
const FORMAT_OLDEST: u32 = 1;

/// Why a directory is not a disk, or cannot become one.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("cannot make a disk of {}: {source}", directory.display())]
    Make { directory: PathBuf, source: io::Error },
    #[error(
        "{} has no disk.toml and is not empty: name an empty directory, or the directory of a disk",
        .0.display()
    )]
    NotEmpty(PathBuf),
    #[error("{} is missing: is the disk's file system mounted, or was it moved?", .0.display())]
    Missing(PathBuf),
    #[error("{} cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} cannot be accessed: {source}", path.display())]
    Access { path: PathBuf, source: io::Error },
    #[error("{} cannot be parsed: {}", path.display(), source.message())]
    Syntax { path: PathBuf, source: Box<toml::de::Error> },
    #[error("{} cannot be parsed: its format is {format}, this server knows {FORMAT}", path.display())]
    Format { path: PathBuf, format: u32 },
}

/// The content of `disk.toml`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The version of the directory's format.
    pub format: u32,
    /// The disk's UUID, which stays the same wherever the disk is mounted.
    pub uuid: Uuid,
    /// Faults that are injected from each start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<FaultText>,
    /// The simulated drive, if the disk is simulated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Simulated>,
    /// The scheduling settings of the operator.
    #[serde(default, skip_serializing_if = "Scheduling::is_default")]
    pub scheduling: Scheduling,
    /// Measured and overridden properties of the device: see `profile.rs`.
    #[serde(default)]
    pub profile: toml::Table,
}

impl Identity {
    /// Makes an absent or empty directory a disk.
    pub fn initialise(
        directory: &Path,
        simulated: Option<Simulated>,
        faults: Vec<FaultText>,
        scheduling: Scheduling,
    ) -> Result<Identity, IdentityError> {
        let fail = |source| IdentityError::Make { directory: directory.to_owned(), source };
        match fs::create_dir(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(fail(error)),
            _ => {}
        }
        for entry in fs::read_dir(directory).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name();
            // Files of an interrupted first attempt are ours; `lost+found` belongs to the file system.
            if !["lost+found", "lock", "volumes", ".disk.toml.tmp"].iter().any(|known| name == *known) {
                return Err(IdentityError::NotEmpty(directory.to_owned()));
            }
        }
        let identity = Identity {
            format: FORMAT,
            uuid: Uuid::new_v4(),
            faults,
            simulated,
            scheduling,
            profile: toml::Table::new(),
        };
        fs::create_dir_all(volumes(directory)).map_err(fail)?;
        identity.put(&LocalFiles::new(directory)).map_err(fail)?;
        sync_parent(directory).map_err(fail)?;
        Ok(identity)
    }

    /// Reads the identity of the disk in a directory.
    pub fn read(directory: &Path) -> Result<Identity, IdentityError> {
        Identity::get(&LocalFiles::new(directory))
    }

    /// Reads the identity of a disk. A missing one is never created: an unmounted file system is not an empty disk.
    pub fn get(catalogue: &dyn Catalogue) -> Result<Identity, IdentityError> {
        let path = catalogue.place(Key::Disk);
        let text = match catalogue.get(Key::Disk) {
            Ok(Some(text)) => text,
            Ok(None) => return Err(IdentityError::Missing(path)),
            Err(source) => return Err(IdentityError::Read { path, source }),
        };
        match toml::from_str::<Identity>(&text) {
            Ok(identity) if (FORMAT_OLDEST..=FORMAT).contains(&identity.format) => Ok(identity),
            Ok(Identity { format, .. }) => Err(IdentityError::Format { path, format }),
            Err(error) => Err(IdentityError::Syntax { path, source: Box::new(error) }),
        }
    }

    /// Whether a directory has an identity.
    pub fn exists(directory: &Path) -> Result<bool, IdentityError> {
        let path = LocalFiles::new(directory).place(Key::Disk);
        path.try_exists().map_err(|source| IdentityError::Access { path, source })
    }

    /// Replaces the identity of a disk.
    pub fn put(&self, catalogue: &dyn Catalogue) -> io::Result<()> {
        catalogue.put(Key::Disk, &toml::to_string(self).expect("a disk's identity can be written as TOML"))
    }
}

/// The directory of a disk's volumes.
pub fn volumes(directory: &Path) -> PathBuf {
    directory.join("volumes")
}

/// Replaces a file atomically: after a crash it is the old or the new one.
pub fn replace(path: &Path, contents: &[u8]) -> io::Result<()> {
    let temporary = path.with_file_name(format!(".{}.tmp", path.file_name().unwrap_or_default().display()));
    let mut file = File::create(&temporary)?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_parent(path)
}

/// Makes the names in a file's directory durable.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::{Insulation, Size};

    #[test]
    fn a_disk_is_made_once_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("disk");
        let refused = |result: Result<(), IdentityError>| result.unwrap_err().to_string();
        assert!(refused(Identity::read(&disk).map(drop)).contains("mounted"));
        assert!(!Identity::exists(&disk).unwrap());
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(refused(Identity::exists(&file.join("disk")).map(drop)).contains("cannot be accessed"), "not absent");
        let made = Identity::initialise(&disk, None, Vec::new(), Scheduling::default()).unwrap();
        assert_eq!(Identity::read(&disk).unwrap().uuid, made.uuid);
        let again = Identity::initialise(&disk, None, Vec::new(), Scheduling::default());
        assert!(matches!(again, Err(IdentityError::NotEmpty(_))));
    }

    #[test]
    fn what_a_disk_pretends_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let simulated = Simulated::find("nearline", Some(Size(1 << 30))).unwrap();
        let faults = vec!["error read 1%".parse().unwrap(), "gone after=1s for=2s".parse().unwrap()];
        let scheduling = Scheduling { insulation: Some(Insulation(950)), ..Scheduling::default() };
        Identity::initialise(dir.path(), Some(simulated.clone()), faults.clone(), scheduling).unwrap();
        let found = Identity::read(dir.path()).unwrap();
        assert_eq!((found.simulated, found.faults, found.scheduling), (Some(simulated), faults, scheduling));
    }

    #[test]
    fn somebody_elses_directory_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.tex"), "").unwrap();
        let made = Identity::initialise(dir.path(), None, Vec::new(), Scheduling::default());
        assert!(matches!(made, Err(IdentityError::NotEmpty(_))));
    }

    #[test]
    fn newer_formats_and_nonsense_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let write = |text: &str| fs::write(dir.path().join("disk.toml"), text).unwrap();
        write(&format!("format = 3\nuuid = \"{}\"", Uuid::new_v4()));
        let refused = || Identity::read(dir.path()).unwrap_err().to_string();
        assert!(refused().contains("format is 3"));
        write("hello");
        assert!(refused().contains("cannot be parsed"));
    }
}
