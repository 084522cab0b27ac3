//! A disk: a directory with an identity, a lock, and for each volume its data and its specification.
//!
//! ```text
//! DISK/disk.toml            the identity of the disk; missing or different: offline, never initialised anew
//!      lock                 held by the server that uses the disk
//!      volumes/NAME.img     the data; a raw volume has its device instead, a gateway volume an export elsewhere
//!              NAME.toml    the specification; data without one is reported and not touched
//!              NAME.lost    exists while the volume has a loss that no operator has accepted
//!              NAME.epochs  the latest session of each client that claimed one
//!      tenants/NAME.toml    a tenant's specification
//!      offload.toml         the stores that writes are off-loaded to, if they are
//! ```

pub mod catalogue;
mod data;
mod epochs;
pub mod file;
pub mod identity;
mod lock;
mod loss;
pub mod offload;
mod policies;
pub mod profile;
pub mod raw;
pub mod remote;
pub mod scheduling;
pub mod simulated;
pub mod spec;
pub mod steps;
pub mod tenant;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use engine::disk::profile::{self as measured, Profile};
use rustix::io::Errno;
use tracing::warn;
use uuid::Uuid;

use self::offload::{Offload, OffloadError};
use self::tenant::TenantError;
pub use catalogue::{Catalogue, Key, LocalFiles};
pub use data::{Data, DataError, DataId};
pub use epochs::EpochError;
pub use file::{Abilities, Journal};
pub use identity::{Identity, IdentityError};
pub use lock::{Lock, LockError};
pub use loss::LossNote;
pub use policies::{Policies, Policy};
pub use raw::{Kernel, Raw, RawError};
pub use remote::{ExportUri, Exports, Remote, RemoteError, Stripes, Tiers};
pub use scheduling::{Chosen, PolicyName, Scheduling};
pub use simulated::{Model, Simulated, SimulatedError};
pub use spec::{Spec, SpecError};
pub use steps::{Files, Progress};
pub use tenant::TenantSpec;

use crate::fault::FaultText;
use crate::quantity::{Name, Size};

/// Why an operation on a disk's files failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{} of space do not fit into {}: {} are free", Size(*asked), directory.display(), Size(*free).rounded())]
    NoSpace { asked: u64, free: u64, directory: PathBuf },
    #[error(
        "the file system at {} has files of at most {}, less than the requested {}",
        directory.display(),
        Size(*limit).rounded(),
        Size(*asked).rounded()
    )]
    TooLarge { asked: u64, limit: u64, directory: PathBuf },
    #[error("the file system at {} cannot allocate files", directory.display())]
    NoAllocation { directory: PathBuf },
    #[error("there is already data at {} that belongs to no volume", .0.display())]
    Unclaimed(PathBuf),
    #[error("the server is shutting down")]
    Cancelled,
    #[error(
        "{error}; {} could not be restored either ({undo}): the volume keeps its old size; grow it again to \
         complete the change",
        path.display()
    )]
    NotUndone { error: Box<StoreError>, path: PathBuf, undo: io::Error },
    #[error("{error}; the incomplete volume at {} could not be removed either ({undo})", path.display())]
    NotRemoved { error: Box<StoreError>, path: PathBuf, undo: io::Error },
    #[error(
        "{error}; its data could not be renamed back from {} either ({undo}): restart the server to do so",
        path.display()
    )]
    NotShown { error: Box<StoreError>, path: PathBuf, undo: io::Error },
    #[error("the specification {} was changed or removed while its volume is served", .0.display())]
    Edited(PathBuf),
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error("{doing} failed at {}: {source}", path.display())]
    Step { doing: String, path: PathBuf, source: io::Error },
}

/// Why a disk cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("{} holds the disk {found}, not {expected}: is the right file system mounted?", directory.display())]
    Other { directory: PathBuf, found: Uuid, expected: Uuid },
    #[error(transparent)]
    Simulated(#[from] SimulatedError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("{} cannot be used: {source}", directory.display())]
    Unusable { directory: PathBuf, source: io::Error },
}

/// Why `disk.toml` of an open disk cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error("{} now holds another disk, {found}", directory.display())]
    Replaced { directory: PathBuf, found: Uuid },
    #[error("disk.toml in {} cannot be written: {source}", directory.display())]
    Write { directory: PathBuf, source: io::Error },
}

/// Why a volume that was found cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{} cannot be read: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} cannot be parsed: {source}", path.display())]
    Parse { path: PathBuf, source: SpecError },
    #[error("{} cannot be parsed: {source}", path.display())]
    ParseTenant { path: PathBuf, source: TenantError },
    #[error("its data {} cannot be read: {source}", path.display())]
    NoData { path: PathBuf, source: io::Error },
    #[error("its data {} has {found} bytes, and its specification says {expected}: data is missing", path.display())]
    TooShort { path: PathBuf, found: u64, expected: u64 },
}

/// An open, locked disk.
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    /// The disk's UUID, faults, simulated drive and settings, as in `disk.toml`.
    pub identity: Identity,
    /// What its file system supports.
    pub abilities: Abilities,
    /// The device number (`st_dev`) of the file system that the volumes are on.
    pub device: u64,
    /// The simulated drive, if the disk is simulated.
    pub model: Option<Model>,
    /// Keeps the specifications of the disk, its volumes and its tenants.
    catalogue: Box<dyn Catalogue>,
    known: Mutex<Known>,
    /// Serialises changes of `disk.toml`; whether it has the present format.
    writing: Mutex<bool>,
    _lock: Lock,
}

/// The state of an open disk that can change.
#[derive(Clone, Debug)]
pub struct Known {
    /// The measured and overridden properties of the device.
    pub profile: Profile,
    /// The scheduling settings of the operator.
    pub scheduling: Scheduling,
}

/// The content of a disk's directory.
#[derive(Debug, Default)]
pub struct Found {
    /// Volumes; for one that cannot be used, the reason.
    pub volumes: BTreeMap<Name, Result<Spec, LoadError>>,
    /// The specifications of their tenants.
    pub tenants: BTreeMap<Name, TenantSpec>,
    /// Data files without a specification.
    pub unclaimed: Vec<PathBuf>,
    /// The stores that writes are off-loaded to, if they are.
    pub offload: Option<Result<Offload, OffloadError>>,
}

impl Store {
    /// Opens a known disk, whose UUID must be the expected one. The error is the reason why the disk is offline.
    pub fn open(directory: &Path, expected: Option<Uuid>) -> Result<Store, OpenError> {
        Store::open_within(directory, expected, Duration::ZERO)
    }

    /// As [`Store::open`], but waits for at most `timeout` while another server has the disk locked.
    pub fn open_within(directory: &Path, expected: Option<Uuid>, timeout: Duration) -> Result<Store, OpenError> {
        let identity = Identity::read(directory)?;
        if let Some(expected) = expected.filter(|expected| *expected != identity.uuid) {
            return Err(OpenError::Other { directory: directory.to_owned(), found: identity.uuid, expected });
        }
        let model = identity.simulated.as_ref().map(Simulated::open).transpose()?.map(|(_, model)| model);
        let lock = Lock::take(directory, timeout)?;
        let cannot = |source| OpenError::Unusable { directory: directory.to_owned(), source };
        let volumes = identity::volumes(directory);
        let device = fs::metadata(&volumes).map_err(cannot)?.dev();
        let abilities = Abilities::probe(&volumes).map_err(cannot)?;
        crate::probe::remove_left_over(directory);
        let (profile, unreadable) = profile::read(&identity.profile);
        if !unreadable.is_empty() {
            let (disk, values) = (directory.display(), unreadable.join(", "));
            warn!(%disk, values, "its profile has values that this server does not know");
        }
        let is_upgraded = identity.format == identity::FORMAT;
        let known = Mutex::new(Known { profile, scheduling: identity.scheduling });
        Ok(Store {
            directory: directory.to_owned(),
            identity,
            abilities,
            device,
            model,
            catalogue: Box::new(LocalFiles::new(directory)),
            known,
            writing: Mutex::new(is_upgraded),
            _lock: lock,
        })
    }

    /// The disk's directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The directory of its volumes.
    pub fn volumes(&self) -> PathBuf {
        identity::volumes(&self.directory)
    }

    /// The files of a volume.
    pub fn files<'a>(&'a self, name: &'a Name) -> Files<'a> {
        Files { directory: self.volumes(), name, catalogue: &*self.catalogue }
    }

    /// Whether the device has heads: as described if it is simulated, else as measured.
    pub fn is_rotational(&self) -> bool {
        let measured = || self.known().profile.number(measured::Key::RotationPeriod).is_some();
        self.model.as_ref().map_or_else(measured, |model| model.has_heads)
    }

    /// A warning if a simulated drive is larger than the space that its file system has for it.
    pub fn shortage(&self) -> Option<String> {
        let size = self.identity.simulated.as_ref()?.size;
        let room = file::free_bytes(&self.directory) + file::used_bytes(&self.volumes());
        (room < size).then(|| {
            let (size, room) = (Size(size).rounded(), Size(room).rounded());
            format!(
                "its simulated drive has {size}, but its file system only {room}: writes fail when the file system is \
                 full"
            )
        })
    }

    /// Fails if the directory does not hold this disk any more.
    pub fn check(&self) -> Result<(), ChangeError> {
        match Identity::get(&*self.catalogue)? {
            found if found.uuid == self.identity.uuid => Ok(()),
            found => Err(ChangeError::Replaced { directory: self.directory.clone(), found: found.uuid }),
        }
    }

    /// The current profile and scheduling settings.
    pub fn known(&self) -> Known {
        self.known.lock().expect("nobody panics while holding it").clone()
    }

    /// Changes profile and settings here and in `disk.toml`, or neither.
    pub fn change(&self, change: impl FnOnce(&mut Known)) -> Result<(), ChangeError> {
        // `known` is not locked while the file is written, since the file system may hang.
        let writing = self.writing.lock().expect("nobody panics while holding it");
        let mut next = self.known();
        self.rewrite(&writing, |identity| {
            change(&mut next);
            profile::write(&next.profile, &mut identity.profile);
            identity.scheduling = next.scheduling;
        })?;
        *self.known.lock().expect("nobody panics while holding it") = next;
        Ok(())
    }

    /// Removes faults from `disk.toml`, so that the disk starts without them.
    pub fn forget_faults(&self, faults: &[FaultText]) -> Result<(), ChangeError> {
        let writing = self.writing.lock().expect("nobody panics while holding it");
        self.rewrite(&writing, |identity| {
            for fault in faults {
                let at = identity.faults.iter().position(|other| other == fault);
                at.map(|at| identity.faults.remove(at));
            }
        })
    }

    /// Reads `disk.toml`, changes it and replaces it. All changes of an open disk are made here, one at a time
    /// (`writing`): concurrent changes would overwrite one another.
    fn rewrite(&self, _writing: &MutexGuard<'_, bool>, change: impl FnOnce(&mut Identity)) -> Result<(), ChangeError> {
        self.check()?;
        let mut identity = Identity::get(&*self.catalogue)?;
        change(&mut identity);
        identity.format = identity::FORMAT;
        let cannot = |source| ChangeError::Write { directory: self.directory.clone(), source };
        identity.put(&*self.catalogue).map_err(cannot)
    }

    /// Reads all volumes and data files. First completes or undoes creations, changes and deletions that were
    /// interrupted.
    pub fn scan(&self) -> io::Result<Found> {
        let directory = self.volumes();
        for file in self.file_names()? {
            steps::recover(&directory, &file)?;
        }
        {
            let _writing = self.writing.lock().expect("nobody panics while holding it");
            self.catalogue.recover()?;
        }
        if let Err(error) = self.upgrade() {
            warn!(disk = %self.directory.display(), "it keeps the format of an earlier release for now: {error}");
        }
        let load = |name: Name| (self.load(&name), name);
        let volumes = self.catalogue.volumes()?.into_iter().map(load).map(|(spec, name)| (name, spec)).collect();
        let tenants = self.tenants_of(&volumes)?;
        Ok(Found { volumes, tenants, unclaimed: self.unclaimed()?, offload: self.offload().transpose() })
    }

    /// Reads the specification of one volume, and compares it with the data file. A volume whose tenant's specification
    /// is unreadable cannot be used, since its share is not known.
    pub fn load(&self, name: &Name) -> Result<Spec, LoadError> {
        let spec = load(&self.files(name))?;
        self.tenant(&spec.tenant(name))?;
        Ok(spec)
    }

    /// Data files without a specification.
    pub fn unclaimed(&self) -> io::Result<Vec<PathBuf>> {
        let (files, volumes) = (self.file_names()?, self.catalogue.volumes()?);
        let is_volume = |name: &str| name.parse().is_ok_and(|name: Name| volumes.contains(&name));
        let claimed = |data: &str| data.strip_suffix(".img").is_none_or(is_volume);
        Ok(files.iter().filter(|file| !claimed(file)).map(|file| self.volumes().join(file)).collect())
    }

    fn file_names(&self) -> io::Result<BTreeSet<String>> {
        fs::read_dir(self.volumes())?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }
}

/// Reads a volume's specification and compares it with the data file. A raw device is checked when it is opened, an
/// export in each session.
fn load(files: &Files<'_>) -> Result<Spec, LoadError> {
    let path = files.spec();
    let text = match files.catalogue.get(Key::Volume(files.name)) {
        Ok(Some(text)) => text,
        Ok(None) => return Err(LoadError::Read { path, source: Errno::NOENT.into() }),
        Err(source) => return Err(LoadError::Read { path, source }),
    };
    let spec = Spec::parse(&text).map_err(|source| LoadError::Parse { path, source })?;
    if !spec.has_file() {
        return Ok(spec);
    }
    let data = files.data();
    match fs::metadata(&data) {
        Ok(found) if found.len() < spec.file_bytes() => {
            Err(LoadError::TooShort { path: data, found: found.len(), expected: spec.file_bytes() })
        }
        Ok(_) => Ok(spec),
        Err(source) => Err(LoadError::NoData { path: data, source }),
    }
}

#[cfg(test)]
mod tests;
