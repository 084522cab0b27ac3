//! The note that acknowledged data of a volume was lost: while there is one, its flushes fail.
//!
//! ```text
//!   DISK/volumes/NAME.lost               goes where the disk goes
//!   DATA/lost/UUID OF DISK.UUID OF VOLUME      survives where the disk's file system went read-only with its device
//! ```
//!
//! Each is an empty file, so that it can be made on a full disk too; either of them is enough. The one in the server's
//! directory is about a volume by its identity: another volume of the same name has lost nothing.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::identity::sync_parent;
use super::steps::removed;
use super::{Files, Spec, Store, StoreError};
use crate::quantity::Name;

/// Where the note about a volume is, or would be.
#[derive(Clone, Debug)]
pub struct LossNote {
    beside: PathBuf,
    own: PathBuf,
}

impl LossNote {
    /// About a volume of a disk, of a server whose directory is `data`.
    pub fn new(data: &Path, store: &Store, name: &Name, spec: &Spec) -> LossNote {
        let volumes = store.volumes();
        let beside = Files { directory: &volumes, name }.lost();
        LossNote { beside, own: data.join("lost").join(format!("{}.{}", store.identity.uuid, spec.uuid)) }
    }

    /// Both places, the server's own first.
    pub fn places(self) -> [PathBuf; 2] {
        [self.own, self.beside]
    }

    /// Makes the note at one of its places, on the medium.
    pub fn make_at(place: &Path) -> io::Result<()> {
        if let Some(directory) = place.parent() {
            match fs::create_dir(directory) {
                Ok(()) => sync_parent(directory)?,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        File::create(place)?;
        sync_parent(place)
    }

    /// Whether acknowledged data was lost, and nobody has accepted that.
    pub fn exists(&self) -> io::Result<bool> {
        Ok(self.own.try_exists()? || self.beside.try_exists()?)
    }

    /// The loss is accepted.
    pub fn remove(&self) -> Result<(), StoreError> {
        for place in [&self.own, &self.beside] {
            let step = |source| StoreError::Step { doing: "removing the note".into(), path: place.clone(), source };
            if place.try_exists().map_err(step)? {
                removed(fs::remove_file(place)).and_then(|()| sync_parent(place)).map_err(step)?;
            }
        }
        Ok(())
    }

    /// The volume is no more: what is said of it in the server's directory goes, too.
    pub fn remove_own(&self) -> io::Result<()> {
        removed(fs::remove_file(&self.own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::spec::Allocation;
    use crate::store::{Identity, Scheduling};

    #[test]
    fn either_note_is_enough_and_both_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (data, disk) = (dir.path().join("data"), dir.path().join("disk"));
        fs::create_dir(&data).unwrap();
        Identity::initialise(&disk, None, Vec::new(), Scheduling::default()).unwrap();
        let store = Store::open(&disk, None).unwrap();
        let note = |spec: &Spec| LossNote::new(&data, &store, &"db".parse().unwrap(), spec);
        let (spec, another) = (Spec::new(4096, None, Allocation::Whole), Spec::new(4096, None, Allocation::Whole));
        assert!(!note(&spec).exists().unwrap());
        note(&spec).remove().unwrap();
        for only in note(&spec).places() {
            LossNote::make_at(&only).unwrap();
            LossNote::make_at(&only).unwrap();
            assert!(note(&spec).exists().unwrap(), "{}", only.display());
            assert_eq!(store.scan().unwrap().unclaimed, [] as [PathBuf; 0]);
            note(&spec).remove().unwrap();
            assert!(!note(&spec).exists().unwrap(), "{}", only.display());
        }
        LossNote::make_at(&note(&spec).own).unwrap();
        assert!(!note(&another).exists().unwrap(), "another volume of the same name");
        note(&spec).remove_own().unwrap();
        assert!(!note(&spec).exists().unwrap());
    }

    /// Whether there is a note must be known.
    #[test]
    fn a_note_that_cannot_be_looked_for_is_not_absent() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let note = LossNote { beside: dir.path().join("db.lost"), own: file.join("lost") };
        assert!(note.exists().is_err() && note.remove().is_err());
        assert!(LossNote::make_at(&note.own).is_err());
        LossNote::make_at(&note.beside).unwrap();
    }
}
