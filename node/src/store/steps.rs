//! Creating, growing, changing and deleting a volume, as sequences of steps. A crash between any two steps leaves the
//! old volume or the new one. The catalogue (`catalogue.rs`) replaces the specification atomically, which is the commit
//! point, and a data file without a specification belongs to no volume.
//!
//! ```text
//! create   CreateData  AllocateNew  SyncNew  |  PutSpec  PublishData  SyncNames
//! grow                 Allocate  SyncData    |  PutSpec
//! change                                        PutSpec
//! delete   HideData  SyncNames  RemoveSpec   |  RemoveData  SyncNames
//! ```
//!
//! Creations and growths may take long up to the bar, and only what follows depends on the specification: the change
//! lock of the disk is released meanwhile. At the bar of a deletion, the engine closes the file.
//!
//! New data has a hidden temporary name until its specification is durable. Data to be deleted gets this name before
//! its specification is removed. No other operation uses such names, so a restart recognises the files of interrupted
//! creations and deletions: it renames those that have a specification, and removes the others ([`recover`]). A file
//! under a volume's own name is never removed without a specification.
//!
//! A raw device or an export on another server is neither created nor removed: the steps on data do nothing to it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use engine::units::SECTOR;
use rustix::fs::{CWD, FallocateFlags, RenameFlags, fallocate, renameat_with};
use rustix::io::Errno;

use super::catalogue::{Catalogue, Key};
use super::identity::sync_parent;
use super::spec::{Allocation, Spec};
use super::{StoreError, file};
use crate::quantity::Name;

/// One step. For the volume, each step is either done or not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    CreateData,
    AllocateNew,
    SyncNew,
    Allocate,
    SyncData,
    PutSpec,
    SyncNames,
    PublishData,
    HideData,
    RemoveSpec,
    RemoveData,
}
use Step::*;

pub const PREPARE: &[Step] = &[CreateData, AllocateNew, SyncNew];
pub const PUBLISH: &[Step] = &[PutSpec, PublishData, SyncNames];
pub const EXTEND: &[Step] = &[Allocate, SyncData];
pub const CHANGE: &[Step] = &[PutSpec];
pub const UNPUBLISH: &[Step] = &[HideData, SyncNames, RemoveSpec];
pub const DISCARD: &[Step] = &[RemoveData, SyncNames];

/// The suffix of the temporary name of data that does not belong to a volume yet, or not any more.
const NEW_DATA: &str = ".img.tmp";

/// The progress of a long allocation, and a request to cancel it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes written.
    pub bytes: AtomicU64,
    /// Set to cancel the allocation.
    pub cancelled: AtomicBool,
}

/// The files of one volume.
#[derive(Debug)]
pub struct Files<'a> {
    /// The directory of volumes.
    pub directory: PathBuf,
    /// The volume.
    pub name: &'a Name,
    /// The catalogue of its disk, which has its specification.
    pub catalogue: &'a dyn Catalogue,
}

impl Files<'_> {
    pub fn data(&self) -> PathBuf {
        self.directory.join(format!("{}.img", self.name))
    }

    pub fn spec(&self) -> PathBuf {
        self.catalogue.place(self.key())
    }

    fn key(&self) -> Key<'_> {
        Key::Volume(self.name)
    }

    /// The data of a volume that is being created or deleted.
    pub fn new_data(&self) -> PathBuf {
        self.directory.join(format!(".{}{NEW_DATA}", self.name))
    }

    /// Performs the steps in order, up to the first that fails.
    pub fn perform(&self, steps: &[Step], spec: &Spec, progress: &Progress) -> Result<(), (Step, StoreError)> {
        // Read before anything is allocated, for the error message.
        let free = file::free_bytes(&self.directory);
        steps.iter().try_for_each(|&step| {
            self.step(step, spec, progress).map_err(|error| (step, self.explain(step, spec, free, error)))
        })
    }

    fn step(&self, step: Step, spec: &Spec, progress: &Progress) -> io::Result<()> {
        let has_file = spec.has_file();
        match step {
            // A raw device, or an export, exists before and after its volume. With CreateData a file under the volume's
            // name would become its data.
            CreateData if self.data().try_exists()? => Err(io::ErrorKind::AlreadyExists.into()),
            AllocateNew | SyncNew | Allocate | SyncData | PublishData | HideData if !has_file => Ok(()),
            CreateData => {
                // An interrupted deletion may have left both. The data is removed instead of reused, since requests to
                // it may still be outstanding: a new volume never has the same file.
                removed(fs::remove_file(self.new_data()))?;
                self.remove_notes()?;
                if has_file { File::create_new(self.new_data()).map(drop) } else { Ok(()) }
            }
            RemoveData if !has_file => self.remove_notes(),
            AllocateNew => self.extend(&self.new_data(), 0, spec, progress),
            SyncNew => File::open(self.new_data())?.sync_all(),
            PublishData => publish_data(&self.new_data(), &self.data()),
            Allocate => self.allocate(spec, progress),
            SyncData => File::open(self.data())?.sync_all(),
            PutSpec => self.catalogue.put(self.key(), &spec.to_toml()),
            SyncNames => sync_parent(&self.data()),
            // A volume whose data is missing can be deleted, and so can one whose deletion was interrupted.
            HideData => removed(fs::rename(self.data(), self.new_data())),
            RemoveSpec => self.catalogue.remove(self.key()),
            RemoveData => removed(fs::remove_file(self.new_data())).and_then(|()| self.remove_notes()),
        }
    }

    fn remove_notes(&self) -> io::Result<()> {
        [self.lost(), self.epochs()].into_iter().try_for_each(|path| removed(fs::remove_file(path)))
    }

    /// Extends the data file to the size in the specification. First truncates what it has beyond the published
    /// specification: the rest of an interrupted growth, which never belonged to the volume and may be allocated but
    /// not zero-written.
    fn allocate(&self, spec: &Spec, progress: &Progress) -> io::Result<()> {
        let data = File::options().write(true).open(self.data())?;
        let before = self.published()?.map_or(0, |spec| spec.file_bytes());
        match data.metadata()?.len() {
            // Its owner is unknown: it may belong to a volume whose specification was removed by hand.
            1.. if before == 0 => return Err(io::Error::other("there is data, and no specification")),
            longer if longer > before => data.set_len(before)?,
            _ => {}
        }
        self.extend(&self.data(), before, spec, progress)
    }

    /// Extends a file of `before` bytes to the size in the specification.
    fn extend(&self, path: &Path, before: u64, spec: &Spec, progress: &Progress) -> io::Result<()> {
        let (data, length) = (File::options().write(true).open(path)?, spec.file_bytes());
        if spec.allocation == Allocation::Sparse || spec.place.is_some() {
            return data.set_len(length);
        }
        // Otherwise a size that does not fit takes all space from others until it is refused.
        let system = rustix::fs::fstatvfs(&data)?;
        let missing = length.saturating_sub(data.metadata()?.blocks() * SECTOR);
        if missing > system.f_bavail.saturating_mul(system.f_frsize) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        fallocate(&data, FallocateFlags::empty(), 0, length)?;
        if spec.allocation == Allocation::Full {
            file::write_zeros(path, before, length, progress)?;
        }
        Ok(())
    }

    /// The specification on the disk; `None` before the volume is created. One that cannot be read or parsed is an
    /// error, never the absence of one.
    pub(super) fn published(&self) -> io::Result<Option<Spec>> {
        let wrong = |why| io::Error::new(io::ErrorKind::InvalidData, format!("its specification is invalid: {why}"));
        self.catalogue.get(self.key())?.map(|text| Spec::parse(&text).map_err(wrong)).transpose()
    }

    /// Fails unless the specification on the disk is the expected one. Otherwise values that follow from it, such as
    /// the end of the data, may be wrong.
    fn check_published(&self, expected: &Spec) -> Result<(), StoreError> {
        match self.published() {
            Ok(Some(found)) if found == *expected => Ok(()),
            Ok(_) => Err(StoreError::Edited(self.spec())),
            Err(source) => {
                Err(StoreError::Step { doing: "reading the specification".into(), path: self.spec(), source })
            }
        }
    }

    fn explain(&self, step: Step, spec: &Spec, free: u64, error: io::Error) -> StoreError {
        let directory = self.directory.clone();
        match (step, error.kind()) {
            (CreateData | PublishData, io::ErrorKind::AlreadyExists) => StoreError::Unclaimed(self.data()),
            (AllocateNew | Allocate, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
                StoreError::NoSpace { asked: spec.size, free, directory }
            }
            (AllocateNew | Allocate, io::ErrorKind::FileTooLarge) => {
                StoreError::TooLarge { asked: spec.size, limit: file::largest_file(&self.directory), directory }
            }
            (AllocateNew | Allocate, io::ErrorKind::Unsupported) => StoreError::NoAllocation { directory },
            (AllocateNew | Allocate, io::ErrorKind::Interrupted) => StoreError::Cancelled,
            _ => StoreError::Step { doing: format!("{step:?}"), path: self.data(), source: error },
        }
    }

    /// Makes the data of a new volume, under its temporary name. If this fails, nothing remains.
    pub fn prepare(&self, spec: &Spec, progress: &Progress) -> Result<(), StoreError> {
        self.perform(PREPARE, spec, progress).map_err(|(step, error)| match step {
            CreateData => error,
            _ => self.undo_create(spec, error),
        })
    }

    /// Creates the volume of data that was made. If this fails, nothing remains.
    pub fn publish(&self, spec: &Spec) -> Result<(), StoreError> {
        self.perform(PUBLISH, spec, &Progress::default()).map_err(|(_, error)| self.undo_create(spec, error))
    }

    /// Both.
    #[cfg(test)]
    pub fn create(&self, spec: &Spec, progress: &Progress) -> Result<(), StoreError> {
        self.prepare(spec, progress).and_then(|()| self.publish(spec))
    }

    fn undo_create(&self, spec: &Spec, error: StoreError) -> StoreError {
        match self.remove_new(spec) {
            Ok(()) => error,
            Err(undo) => StoreError::NotRemoved { error: Box::new(error), path: self.spec(), undo },
        }
    }

    /// Removes the specification first: data without one belongs to no volume, whereas a specification without data is
    /// a volume that cannot be used.
    fn remove_new(&self, spec: &Spec) -> io::Result<()> {
        self.catalogue.remove(self.key())?;
        match fs::remove_file(self.new_data()) {
            // If the temporary name is gone, the data has been renamed to its own name; only then is that file this
            // volume's.
            Err(error) if error.kind() == io::ErrorKind::NotFound && spec.has_file() => {
                removed(fs::remove_file(self.data()))
            }
            other => removed(other),
        }
    }

    /// Extends the data of the volume for a growth, or leaves it unchanged. Fails without any change if the
    /// specification on the disk is not `from`, which is served.
    pub fn extend_data(&self, from: &Spec, to: &Spec, progress: &Progress) -> Result<(), StoreError> {
        self.check_published(from)?;
        self.perform(EXTEND, to, progress).map_err(|(_, error)| self.undo_grow(from, Ok(()), error))
    }

    /// Completes the growth of extended data, or leaves the volume unchanged. `from` may differ from what it was when
    /// the data was extended, but not in its size.
    pub fn grow(&self, from: &Spec, to: &Spec) -> Result<(), StoreError> {
        let put = self.perform(CHANGE, to, &Progress::default());
        put.map_err(|(_, error)| self.undo_grow(from, self.restore(from), error))
    }

    fn undo_grow(&self, from: &Spec, restored: io::Result<()>, error: StoreError) -> StoreError {
        let undone = restored.and_then(|()| match from.has_file() {
            false => Ok(()),
            true => File::options().write(true).open(self.data())?.set_len(from.file_bytes()),
        });
        match undone {
            Ok(()) => error,
            Err(undo) => StoreError::NotUndone { error: Box::new(error), path: self.data(), undo },
        }
    }

    /// The loss record next to the data: see `loss.rs`.
    pub fn lost(&self) -> PathBuf {
        self.directory.join(format!("{}.lost", self.name))
    }

    /// The epochs of the volume's sessions: see `epochs.rs`.
    pub fn epochs(&self) -> PathBuf {
        self.directory.join(format!("{}.epochs", self.name))
    }

    /// Replaces the specification, or leaves it unchanged.
    pub fn change(&self, from: &Spec, to: &Spec) -> Result<(), StoreError> {
        self.perform(CHANGE, to, &Progress::default()).map_err(|(_, error)| {
            let _ = self.restore(from);
            error
        })
    }

    /// Makes sure that the published specification is this one.
    fn restore(&self, spec: &Spec) -> io::Result<()> {
        let text = spec.to_toml();
        if self.catalogue.get(self.key())?.as_ref() == Some(&text) {
            return Ok(());
        }
        self.catalogue.put(self.key(), &text)
    }

    /// Deletes the volume, or leaves it unchanged. Its data is removed later, when it is not in use
    /// ([`Files::discard`]).
    pub fn unpublish(&self, spec: &Spec) -> Result<(), StoreError> {
        self.perform(UNPUBLISH, spec, &Progress::default()).map_err(|(_, error)| {
            match self.catalogue.get(self.key()) {
                Ok(Some(_)) | Err(_) => match publish_data(&self.new_data(), &self.data()) {
                    Err(undo) if undo.kind() != io::ErrorKind::NotFound => {
                        StoreError::NotShown { error: Box::new(error), path: self.new_data(), undo }
                    }
                    _ => error,
                },
                // It is deleted, but perhaps not durably.
                Ok(None) => error,
            }
        })
    }

    /// Removes the data of a deleted volume.
    pub fn discard(&self, spec: &Spec) -> Result<(), StoreError> {
        self.perform(DISCARD, spec, &Progress::default()).map_err(|(_, error)| error)
    }
}

/// Renames new data to its own name, unless another file has this name.
fn publish_data(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = ((CWD, from), (CWD, to));
    match renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
        // The file system does not support RENAME_NOREPLACE. That the name is free was checked before.
        Err(Errno::INVAL) if !to.1.try_exists()? => fs::rename(from.1, to.1),
        renamed => Ok(renamed?),
    }
}

/// Handles a file with a hidden temporary name in a directory of volumes. Data of an interrupted creation or deletion
/// gets its own name if it has a specification, and is removed otherwise. A temporary specification is removed. Returns
/// whether anything was done.
pub fn recover(directory: &Path, file: &str) -> io::Result<bool> {
    let Some(rest) = file.strip_prefix('.').filter(|rest| rest.ends_with(".tmp")) else { return Ok(false) };
    let path = directory.join(file);
    let name = rest.strip_suffix(NEW_DATA).and_then(|name| name.parse::<Name>().ok());
    match name.map(|name| (directory.join(format!("{name}.img")), directory.join(format!("{name}.toml")))) {
        Some((data, spec)) if spec.try_exists()? && !data.try_exists()? => {
            publish_data(&path, &data)?;
            sync_parent(&data)?;
        }
        _ => fs::remove_file(path)?,
    }
    Ok(true)
}

/// Treats a missing file as removed.
pub fn removed(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Fails if the operation was cancelled.
pub fn check(progress: &Progress) -> io::Result<()> {
    if progress.cancelled.load(Ordering::Relaxed) { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
}
