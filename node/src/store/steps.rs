//! Creating, growing, changing and deleting a volume, as sequences of steps. A crash between any two leaves the old
//! volume or the new one: the specification's rename is the moment of truth, and a data file without specification is
//! nobody's volume.
//!
//! ```text
//! create   CreateData  AllocateNew  SyncNew  WriteSpec  SyncSpec  PublishSpec  SyncNames  PublishData  SyncNames
//! grow                 Allocate  SyncData   WriteSpec  SyncSpec  PublishSpec  SyncNames
//! change                                    WriteSpec  SyncSpec  PublishSpec  SyncNames
//! delete   HideData  SyncNames  RemoveSpec  SyncNames  |  RemoveData  SyncNames
//!                                                 the engine closes the file at the bar
//! ```
//!
//! New data has a hidden temporary name until its specification is durable, and data to be removed has it from before
//! its specification is removed. Only creations and deletions use such names. So a restart knows which files they left
//! if they were cut off: it renames those that have a specification, and removes the others ([`recover`]). A file
//! under a volume's own name is never removed without a specification.
//!
//! A raw device is neither made nor removed: the steps on data do nothing to it.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{CWD, FallocateFlags, RenameFlags, fallocate, renameat_with};
use rustix::io::Errno;

use super::identity::sync_parent;
use super::spec::{Allocation, Spec};
use super::{StoreError, file};
use crate::quantity::Name;

/// One step; each is either done or not done as far as the volume is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    CreateData,
    AllocateNew,
    SyncNew,
    Allocate,
    SyncData,
    WriteSpec,
    SyncSpec,
    PublishSpec,
    SyncNames,
    PublishData,
    HideData,
    RemoveSpec,
    RemoveData,
}
use Step::*;

pub const CREATE: &[Step] =
    &[CreateData, AllocateNew, SyncNew, WriteSpec, SyncSpec, PublishSpec, SyncNames, PublishData, SyncNames];
pub const GROW: &[Step] = &[Allocate, SyncData, WriteSpec, SyncSpec, PublishSpec, SyncNames];
pub const CHANGE: &[Step] = &[WriteSpec, SyncSpec, PublishSpec, SyncNames];
pub const UNPUBLISH: &[Step] = &[HideData, SyncNames, RemoveSpec, SyncNames];
pub const DISCARD: &[Step] = &[RemoveData, SyncNames];

/// How the temporary name of data that is not a volume's yet, or not any more, ends.
const NEW_DATA: &str = ".img.tmp";

/// How far a long allocation is, and whether it is still wanted.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes written.
    pub bytes: AtomicU64,
    /// Set to give up.
    pub cancelled: AtomicBool,
}

/// The files of one volume.
#[derive(Debug)]
pub struct Files<'a> {
    /// The directory of volumes.
    pub directory: &'a Path,
    /// The volume.
    pub name: &'a Name,
}

impl Files<'_> {
    pub fn data(&self) -> PathBuf {
        self.directory.join(format!("{}.img", self.name))
    }

    pub fn spec(&self) -> PathBuf {
        self.directory.join(format!("{}.toml", self.name))
    }

    /// Data of a volume that is being created or deleted.
    pub fn new_data(&self) -> PathBuf {
        self.directory.join(format!(".{}{NEW_DATA}", self.name))
    }

    fn temporary(&self) -> PathBuf {
        self.directory.join(format!(".{}.toml.tmp", self.name))
    }

    /// Performs the steps in order, up to the first that fails.
    pub fn perform(&self, steps: &[Step], spec: &Spec, progress: &Progress) -> Result<(), (Step, StoreError)> {
        // Before anything is allocated: that is what there was to choose from.
        let free = file::free_bytes(self.directory);
        steps.iter().try_for_each(|&step| {
            self.step(step, spec, progress).map_err(|error| (step, self.explain(step, spec, free, error)))
        })
    }

    fn step(&self, step: Step, spec: &Spec, progress: &Progress) -> io::Result<()> {
        let is_raw = spec.device.is_some();
        match step {
            // A device is there before its volume and after it. A file of the volume's name would become its data.
            CreateData if self.data().try_exists()? => Err(io::ErrorKind::AlreadyExists.into()),
            AllocateNew | SyncNew | Allocate | SyncData | PublishData | HideData if is_raw => Ok(()),
            CreateData => {
                // A deletion that was cut off may have left both. Requests may still be on their way to that data: a
                // new volume never has the same file.
                removed(fs::remove_file(self.new_data()))?;
                removed(fs::remove_file(self.lost()))?;
                if is_raw { Ok(()) } else { File::create_new(self.new_data()).map(drop) }
            }
            RemoveData if is_raw => removed(fs::remove_file(self.lost())),
            AllocateNew => self.extend(&self.new_data(), 0, spec, progress),
            SyncNew => File::open(self.new_data())?.sync_all(),
            PublishData => publish_data(&self.new_data(), &self.data()),
            Allocate => self.allocate(spec, progress),
            SyncData => File::open(self.data())?.sync_all(),
            WriteSpec => File::create(self.temporary())?.write_all(spec.to_toml().as_bytes()),
            SyncSpec => File::open(self.temporary())?.sync_all(),
            PublishSpec => fs::rename(self.temporary(), self.spec()),
            SyncNames => sync_parent(&self.spec()),
            // A volume whose data is gone can be deleted, and so can one whose deletion was not finished.
            HideData => removed(fs::rename(self.data(), self.new_data())),
            RemoveSpec => removed(fs::remove_file(self.spec())),
            RemoveData => {
                removed(fs::remove_file(self.new_data())).and_then(|()| removed(fs::remove_file(self.lost())))
            }
        }
    }

    /// Extends the data file to what the specification says. What it has beyond the published specification (a growth
    /// that was cut off, which may be allocated and not yet zero-written) was never a volume's: it goes first.
    fn allocate(&self, spec: &Spec, progress: &Progress) -> io::Result<()> {
        let data = File::options().write(true).open(self.data())?;
        let before = self.published()?.map_or(0, |spec| spec.file_bytes());
        match data.metadata()?.len() {
            // Whose it is cannot be known: perhaps a volume's whose specification was removed by hand.
            1.. if before == 0 => return Err(io::Error::other("there is data, and no specification")),
            longer if longer > before => data.set_len(before)?,
            _ => {}
        }
        self.extend(&self.data(), before, spec, progress)
    }

    /// Extends a file of `before` bytes to what the specification says.
    fn extend(&self, path: &Path, before: u64, spec: &Spec, progress: &Progress) -> io::Result<()> {
        let (data, length) = (File::options().write(true).open(path)?, spec.file_bytes());
        if spec.allocation == Allocation::Sparse || spec.place.is_some() {
            return data.set_len(length);
        }
        fallocate(&data, FallocateFlags::empty(), 0, length)?;
        if spec.allocation == Allocation::Full {
            file::write_zeros(path, before, length, progress)?;
        }
        Ok(())
    }

    /// The specification as it is on the disk; none before the volume is created. One that cannot be read or understood
    /// is an error, never the absence of one.
    fn published(&self) -> io::Result<Option<Spec>> {
        let wrong = |why| io::Error::new(io::ErrorKind::InvalidData, format!("its specification is wrong: {why}"));
        match fs::read_to_string(self.spec()) {
            Ok(text) => Spec::parse(&text).map(Some).map_err(wrong),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Refuses to go on from a specification that is not the one on the disk: what is based on another one, such as
    /// where the data ends, may be wrong.
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
        let directory = self.directory.to_owned();
        match (step, error.kind()) {
            (CreateData | PublishData, io::ErrorKind::AlreadyExists) => StoreError::Unclaimed(self.data()),
            (AllocateNew | Allocate, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
                StoreError::NoSpace { asked: spec.size, free, directory }
            }
            (AllocateNew | Allocate, io::ErrorKind::FileTooLarge) => {
                StoreError::TooLarge { asked: spec.size, limit: file::largest_file(self.directory), directory }
            }
            (AllocateNew | Allocate, io::ErrorKind::Unsupported) => StoreError::NoAllocation { directory },
            (AllocateNew | Allocate, io::ErrorKind::Interrupted) => StoreError::Cancelled,
            _ => StoreError::Step { doing: format!("{step:?}"), path: self.data(), source: error },
        }
    }

    /// Creates the volume, or nothing.
    pub fn create(&self, spec: &Spec, progress: &Progress) -> Result<(), StoreError> {
        self.perform(CREATE, spec, progress).map_err(|(step, error)| {
            let undone = if step == CreateData { Ok(()) } else { self.undo_create(spec) };
            match undone {
                Ok(()) => error,
                Err(undo) => StoreError::NotRemoved { error: Box::new(error), path: self.spec(), undo },
            }
        })
    }

    /// Specification first: data without one is nobody's, and a specification without data is a volume that cannot be
    /// used.
    fn undo_create(&self, spec: &Spec) -> io::Result<()> {
        removed(fs::remove_file(self.temporary()))?;
        removed(fs::remove_file(self.spec()))?;
        sync_parent(&self.spec())?;
        match fs::remove_file(self.new_data()) {
            // Data that has left its temporary name has its own: only then is that file this volume's.
            Err(error) if error.kind() == io::ErrorKind::NotFound && spec.device.is_none() => {
                removed(fs::remove_file(self.data()))
            }
            other => removed(other),
        }
    }

    /// Grows the volume, or leaves it as it is. What is served is `from`; if that is not what is on the disk, nothing
    /// is done.
    pub fn grow(&self, from: &Spec, to: &Spec, progress: &Progress) -> Result<(), StoreError> {
        self.check_published(from)?;
        self.perform(GROW, to, progress).map_err(|(_, error)| {
            let undone = self.restore(from).and_then(|()| match &from.device {
                Some(_) => Ok(()),
                None => File::options().write(true).open(self.data())?.set_len(from.file_bytes()),
            });
            match undone {
                Ok(()) => error,
                Err(undo) => StoreError::NotUndone { error: Box::new(error), path: self.data(), undo },
            }
        })
    }

    /// The note beside the data: see `loss.rs`.
    pub fn lost(&self) -> PathBuf {
        self.directory.join(format!("{}.lost", self.name))
    }

    /// Replaces the specification, or leaves it as it is.
    pub fn change(&self, from: &Spec, to: &Spec) -> Result<(), StoreError> {
        self.perform(CHANGE, to, &Progress::default()).map_err(|(_, error)| {
            let _ = self.restore(from);
            error
        })
    }

    /// Makes sure that the published specification is this one.
    fn restore(&self, spec: &Spec) -> io::Result<()> {
        let _ = fs::remove_file(self.temporary());
        if fs::read_to_string(self.spec())? == spec.to_toml() {
            return Ok(());
        }
        super::identity::replace(&self.spec(), spec.to_toml().as_bytes())
    }

    /// Deletes the volume, or leaves it as it is. Its data goes when nobody uses it any more ([`Files::discard`]).
    pub fn unpublish(&self, spec: &Spec) -> Result<(), StoreError> {
        self.perform(UNPUBLISH, spec, &Progress::default()).map_err(|(_, error)| {
            match self.spec().try_exists() {
                Ok(true) => match publish_data(&self.new_data(), &self.data()) {
                    Err(undo) if undo.kind() != io::ErrorKind::NotFound => {
                        StoreError::NotShown { error: Box::new(error), path: self.new_data(), undo }
                    }
                    _ => error,
                },
                // It is deleted; perhaps not on the medium yet.
                _ => error,
            }
        })
    }

    /// Removes the data of a volume that was deleted.
    pub fn discard(&self, spec: &Spec) -> Result<(), StoreError> {
        self.perform(DISCARD, spec, &Progress::default()).map_err(|(_, error)| error)
    }
}

/// Gives new data its name, unless another file has taken it.
fn publish_data(from: &Path, to: &Path) -> io::Result<()> {
    let (from, to) = ((CWD, from), (CWD, to));
    match renameat_with(from.0, from.1, to.0, to.1, RenameFlags::NOREPLACE) {
        // The file system cannot rename this way; that nothing had the name was checked before.
        Err(Errno::INVAL) if !to.1.try_exists()? => fs::rename(from.1, to.1),
        renamed => Ok(renamed?),
    }
}

/// Data under a hidden name, which creations and deletions that were cut off left in a directory of volumes, gets its
/// own name if it has a specification, and is removed otherwise. What changes left of specifications is removed. True
/// if something was done.
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

/// What is not there need not be removed.
pub fn removed(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// Gives up when asked to.
pub fn check(progress: &Progress) -> io::Result<()> {
    if progress.cancelled.load(Ordering::Relaxed) { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
}
