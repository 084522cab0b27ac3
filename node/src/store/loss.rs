//! The record that a volume has a loss: while it exists, flushes of the volume fail.
//!
//! ```text
//!   DISK/volumes/NAME.lost                      moves with the disk
//!   DATA/lost/UUID OF DISK.UUID OF VOLUME      survives if the disk's file system became read-only with its device
//! ```
//!
//! Each is an empty file, so that it can be created on a full disk, too. Either one is enough. The one in the server's
//! directory names the volume by UUID, since another volume of the same name has no loss.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::identity::sync_parent;
use super::steps::removed;
use super::{Spec, Store, StoreError};
use crate::quantity::Name;

/// The two paths of a volume's loss record, whether or not it exists.
#[derive(Clone, Debug)]
pub struct LossNote {
    beside: PathBuf,
    own: PathBuf,
}

impl LossNote {
    /// The record of a volume on a disk; `data` is the server's directory.
    pub fn new(data: &Path, store: &Store, name: &Name, spec: &Spec) -> LossNote {
        let beside = store.files(name).lost();
        LossNote { beside, own: data.join("lost").join(format!("{}.{}", store.identity.uuid, spec.uuid)) }
    }

    /// Both paths, the one in the server's directory first.
    pub fn places(self) -> [PathBuf; 2] {
        [self.own, self.beside]
    }

    /// Creates records in one directory, durably: one fsync for all of them. Returns why each of them fails, if so.
    pub fn make_all(places: &[PathBuf]) -> Vec<Result<(), String>> {
        let Some(directory) = places.first().and_then(|place| place.parent()) else { return Vec::new() };
        if let Err(error) = make_directory(directory) {
            return vec![Err(error.to_string()); places.len()];
        }
        let created = places.iter().map(|place| File::create(place).map(drop)).collect::<Vec<_>>();
        let synced = sync_parent(&places[0]);
        let both =
            |created: io::Result<()>| created.as_ref().and(synced.as_ref()).map(drop).map_err(ToString::to_string);
        created.into_iter().map(both).collect()
    }

    /// Whether the volume has a loss that is not accepted yet.
    pub fn exists(&self) -> io::Result<bool> {
        Ok(self.own.try_exists()? || self.beside.try_exists()?)
    }

    /// Removes the record, because the loss was accepted.
    pub fn remove(&self) -> Result<(), StoreError> {
        for place in [&self.own, &self.beside] {
            let step =
                |source| StoreError::Step { doing: "removing the loss record".into(), path: place.clone(), source };
            if place.try_exists().map_err(step)? {
                removed(fs::remove_file(place)).and_then(|()| sync_parent(place)).map_err(step)?;
            }
        }
        Ok(())
    }

    /// Removes the record in the server's directory, because the volume was deleted.
    pub fn remove_own(&self) -> io::Result<()> {
        removed(fs::remove_file(&self.own))
    }
}

fn make_directory(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Ok(()) => sync_parent(directory),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
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
            for _ in 0..2 {
                assert_eq!(LossNote::make_all(std::slice::from_ref(&only)), [Ok(())]);
            }
            assert!(note(&spec).exists().unwrap(), "{}", only.display());
            assert_eq!(store.scan().unwrap().unclaimed, [] as [PathBuf; 0]);
            note(&spec).remove().unwrap();
            assert!(!note(&spec).exists().unwrap(), "{}", only.display());
        }
        assert_eq!(LossNote::make_all(&[note(&spec).own]), [Ok(())]);
        assert!(!note(&another).exists().unwrap(), "another volume of the same name");
        note(&spec).remove_own().unwrap();
        assert!(!note(&spec).exists().unwrap());
    }

    /// An unknown answer must be an error.
    #[test]
    fn a_note_that_cannot_be_looked_for_is_not_absent() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let note = LossNote { beside: dir.path().join("db.lost"), own: file.join("lost") };
        assert!(note.exists().is_err() && note.remove().is_err());
        assert!(LossNote::make_all(&[note.own])[0].is_err());
        assert_eq!(LossNote::make_all(&[note.beside]), [Ok(())]);
    }
    #[test]
    fn a_record_that_cannot_be_made_does_not_keep_others_from_being_made() {
        let dir = tempfile::tempdir().unwrap();
        let places = ["a.lost", "b.lost", "c.lost"].map(|name| dir.path().join(name));
        fs::create_dir(&places[1]).unwrap();
        let made = LossNote::make_all(&places);
        assert!(made[0].is_ok() && made[1].is_err() && made[2].is_ok(), "{made:?}");
        assert!(places[0].is_file() && places[2].is_file());
    }
}
