//! The catalogue of a disk: the specifications of the disk, its volumes and its tenants, as texts.
//!
//! Local files keep it now ([`LocalFiles`]). In a cluster, a store that all servers share can keep it: the steps of a
//! volume (`steps.rs`) rely on the contract of [`Catalogue`], not on files.

mod local;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

pub use local::LocalFiles;
#[cfg(test)]
pub use local::{FileStep, PUT, REMOVE};

use crate::quantity::Name;

/// What a specification is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key<'a> {
    /// The disk itself.
    Disk,
    /// A volume of the disk.
    Volume(&'a Name),
    /// A tenant of the disk.
    Tenant(&'a Name),
    /// The stores that the disk's writes are off-loaded to.
    Offload,
    /// What the stores had when the server stopped: one of two texts, 0 or 1.
    OffloadMap(u32),
}

/// Keeps specifications. Each function blocks until it is done.
pub trait Catalogue: std::fmt::Debug + Send + Sync {
    /// A specification; `None` if there is none. One that cannot be read is an error, never the absence of one.
    fn get(&self, key: Key<'_>) -> io::Result<Option<String>>;

    /// Creates or replaces a specification, atomically and durably: after a crash it is the old or the new one, and
    /// after the return the new one. An error leaves either.
    fn put(&self, key: Key<'_>, text: &str) -> io::Result<()>;

    /// Removes a specification durably, if there is one.
    fn remove(&self, key: Key<'_>) -> io::Result<()>;

    /// Removes what interrupted changes of the disk's and of tenants' specifications have left. What they have left of
    /// volumes is handled with the volumes' data (`steps.rs`).
    fn recover(&self) -> io::Result<()>;

    /// The volumes that have a specification.
    fn volumes(&self) -> io::Result<BTreeSet<Name>>;

    /// The tenants that have a specification.
    fn tenants(&self) -> io::Result<BTreeSet<Name>>;

    /// Where a specification is, for messages.
    fn place(&self, key: Key<'_>) -> PathBuf;
}
