//! A catalogue in files of the disk's directory: `disk.toml`, `volumes/NAME.toml`, `tenants/NAME.toml`.
//!
//! A file is replaced by renaming a temporary one, whose name begins with a dot; no specification has such a name. A
//! crash may leave a temporary file: the next start removes it (`Store::scan`), and so does the next `put`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;

use super::{Catalogue, Key};
use crate::quantity::{Name, TenantName};
use crate::store::identity::sync_parent;
use crate::store::steps::removed;

/// One step. Each is either done or not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileStep {
    Write,
    Sync,
    /// Renames the temporary file: the commit point of `put`.
    Publish,
    Remove,
    SyncNames,
}
use FileStep::*;

pub const PUT: &[FileStep] = &[Write, Sync, Publish, SyncNames];
pub const REMOVE: &[FileStep] = &[Remove, SyncNames];

/// The catalogue in a disk's directory.
#[derive(Clone, Debug)]
pub struct LocalFiles {
    directory: PathBuf,
}

impl LocalFiles {
    /// The catalogue of the disk in this directory, which may not exist yet.
    pub fn new(directory: impl Into<PathBuf>) -> LocalFiles {
        LocalFiles { directory: directory.into() }
    }

    fn temporary(&self, key: Key<'_>) -> PathBuf {
        let path = self.place(key);
        path.with_file_name(format!(".{}.tmp", path.file_name().unwrap_or_default().display()))
    }

    /// Performs these steps on one specification, up to the first that fails.
    pub fn perform(&self, steps: &[FileStep], key: Key<'_>, text: &str) -> io::Result<()> {
        steps.iter().try_for_each(|step| match step {
            Write => {
                // Disks of earlier releases have no directory for tenants.
                if let (Key::Tenant(_), Some(directory)) = (key, self.place(key).parent()) {
                    make_directory(directory)?;
                }
                File::create(self.temporary(key))?.write_all(text.as_bytes())
            }
            Sync => File::open(self.temporary(key))?.sync_all(),
            Publish => fs::rename(self.temporary(key), self.place(key)),
            Remove => removed(fs::remove_file(self.place(key))),
            SyncNames => sync_parent(&self.place(key)),
        })
    }

    /// The files in a directory whose names are text.
    fn files(&self, directory: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.directory.join(directory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && directory == TENANTS => return Ok(Vec::new()),
            entries => entries?,
        };
        let files: Result<Vec<_>, _> = entries.map(|entry| Ok::<_, io::Error>(entry?.file_name())).collect();
        Ok(files?.into_iter().filter_map(|file| file.into_string().ok()).collect())
    }

    fn names<T: FromStr>(&self, directory: &str) -> io::Result<Vec<T>> {
        let files = self.files(directory)?;
        Ok(files.iter().filter_map(|file| file.strip_suffix(".toml")?.parse().ok()).collect())
    }
}

/// The directory of specifications of volumes, and of their data.
const VOLUMES: &str = "volumes";
/// The directory of specifications of tenants.
const TENANTS: &str = "tenants";

impl Catalogue for LocalFiles {
    fn get(&self, key: Key<'_>) -> io::Result<Option<String>> {
        match fs::read_to_string(self.place(key)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn put(&self, key: Key<'_>, text: &str) -> io::Result<()> {
        self.perform(PUT, key, text).inspect_err(|_| drop(fs::remove_file(self.temporary(key))))
    }

    fn remove(&self, key: Key<'_>) -> io::Result<()> {
        if let (Key::Tenant(_), false) = (key, self.place(key).try_exists()?) {
            return Ok(());
        }
        self.perform(REMOVE, key, "")
    }

    fn recover(&self) -> io::Result<()> {
        let of_disk = [Key::Disk, Key::Offload, Key::OffloadMap(0), Key::OffloadMap(1)];
        of_disk.into_iter().try_for_each(|key| removed(fs::remove_file(self.temporary(key))))?;
        let files = self.files(TENANTS)?;
        let temporary = files.iter().filter(|file| file.starts_with('.') && file.ends_with(".tmp"));
        temporary
            .map(|file| self.directory.join(TENANTS).join(file))
            .try_for_each(|path| removed(fs::remove_file(path)))
    }

    fn volumes(&self) -> io::Result<BTreeSet<Name>> {
        Ok(self.names(VOLUMES)?.into_iter().collect())
    }

    fn tenants(&self) -> io::Result<BTreeSet<Name>> {
        Ok(self.names(TENANTS)?.into_iter().map(|TenantName(name)| name).collect())
    }

    fn place(&self, key: Key<'_>) -> PathBuf {
        match key {
            Key::Disk => self.directory.join("disk.toml"),
            Key::Volume(name) => self.directory.join(VOLUMES).join(format!("{name}.toml")),
            Key::Tenant(name) => self.directory.join(TENANTS).join(format!("{name}.toml")),
            Key::Offload => self.directory.join("offload.toml"),
            Key::OffloadMap(number) => self.directory.join(format!("offload-map-{number}.json")),
        }
    }
}

fn make_directory(directory: &std::path::Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| sync_parent(directory)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_cut_off_leaves_the_old_text_or_the_new_one() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(VOLUMES)).unwrap();
        let (files, name): (_, Name) = (LocalFiles::new(dir.path()), "db".parse().unwrap());
        let of_stores = Name::of_stores();
        let tenants = [Key::Tenant(&name), Key::Tenant(&of_stores)];
        let others = [Key::Disk, Key::Volume(&name), Key::Offload, Key::OffloadMap(1)];
        for key in tenants.into_iter().chain(others) {
            assert_eq!(files.get(key).unwrap(), None);
            files.put(key, "old").unwrap();
            for n in 0..=PUT.len() {
                files.put(key, "old").unwrap();
                files.perform(&PUT[..n], key, "new").unwrap();
                assert_eq!(files.get(key).unwrap().unwrap(), if n >= 3 { "new" } else { "old" }, "after {n} steps");
            }
            assert!(files.volumes().unwrap().len() < 2, "a temporary file is a volume");
            let tenants = files.tenants().unwrap();
            assert!(if let Key::Tenant(name) = key { tenants.contains(name) } else { tenants.is_empty() });
            files.remove(key).unwrap();
            files.remove(key).unwrap();
            assert_eq!(files.get(key).unwrap(), None);
        }
    }

    #[test]
    fn a_put_that_fails_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let (files, name): (_, Name) = (LocalFiles::new(dir.path()), "db".parse().unwrap());
        let key = Key::Tenant(&name);
        fs::create_dir_all(files.place(key)).unwrap();
        assert!(files.put(key, "text").is_err());
        assert!(!files.temporary(key).exists());
        assert!(files.get(key).is_err(), "a specification that cannot be read is not an absent one");
    }
}
