//! A volume's data, opened: a file in the disk's directory, or a raw device.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::raw::{Claim, Kernel};
use super::{Abilities, Files, Spec, Store, file};

/// Which file or device it is: another one of the same name is not a volume's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataId {
    /// A file.
    File {
        /// The file system.
        device: u64,
        /// Its number there.
        inode: u64,
    },
    /// A device, by the kernel's number.
    Device(u64),
}

impl DataId {
    /// What is at a path now.
    pub fn at(path: &Path) -> io::Result<DataId> {
        path.metadata().map(|found| DataId::of(&found))
    }

    fn of(found: &Metadata) -> DataId {
        match found.file_type().is_block_device() {
            true => DataId::Device(found.rdev()),
            false => DataId::File { device: found.dev(), inode: found.ino() },
        }
    }
}

/// A volume's data, open.
#[derive(Debug)]
pub struct Data {
    /// For the disk's thread.
    pub file: File,
    /// Which one.
    pub id: DataId,
    /// What can be done with it.
    pub abilities: Abilities,
    /// Ranges that were never written.
    pub holes: Vec<(u64, u64)>,
}

impl Data {
    /// Opens the data of a volume, or says why it cannot be used. A device may still be busy until `deadline`.
    pub fn open(store: &Store, files: &Files<'_>, spec: &Spec, deadline: Instant) -> Result<Data, String> {
        if let Some(device) = &spec.device {
            let claim = device.claim(&Kernel::default(), spec.file_bytes(), deadline);
            return claim.map(Data::from).map_err(|error| format!("{error}: {}", error.hint()));
        }
        let open = || {
            let file = store.abilities.open(&files.data())?;
            let id = DataId::of(&file.metadata()?);
            // A drive takes its time for what was never written, too: nothing of it is answered without asking.
            let holes = if store.model.is_some() { Vec::new() } else { file::holes(&file, spec.size) };
            Ok(Data { file, id, abilities: store.abilities, holes })
        };
        open().map_err(|error: io::Error| format!("its data cannot be opened: {error}"))
    }
}

impl From<Claim> for Data {
    /// A device holds anything, so nothing of it is known to be empty.
    fn from(Claim { file, number, abilities }: Claim) -> Data {
        Data { file, id: DataId::Device(number), abilities, holes: Vec::new() }
    }
}

impl Files<'_> {
    /// Where a volume's data is.
    pub fn data_of(&self, spec: Option<&Spec>) -> PathBuf {
        spec.and_then(|spec| spec.device.as_ref()).map_or_else(|| self.data(), |device| device.path.clone())
    }
}
