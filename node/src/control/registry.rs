//! The disks that this server knows, in `DIR/disks.toml`. The file is replaced atomically, so a crash leaves the old or
//! the new list.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::quantity::Name;
use crate::store::identity;

const FORMAT: u32 = 1;

/// A known disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its directory; a relative path is below the server's directory.
    pub path: PathBuf,
    /// The UUID of the disk that must be found there.
    pub uuid: Uuid,
    /// The volumes that it had last: they are listed while it is offline.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub volumes: BTreeMap<Name, Remembered>,
}

/// What is shown of a volume while its disk is offline.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remembered {
    /// Size, bytes.
    pub size: u64,
    /// Its tenant; if absent, the volume is its own tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Name>,
    /// Its raw device, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<PathBuf>,
}

/// The list of known disks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Registry {
    format: u32,
    /// Disks by name.
    #[serde(default)]
    pub disks: BTreeMap<Name, Entry>,
}

fn path(data: &Path) -> PathBuf {
    data.join("disks.toml")
}

impl Registry {
    /// Reads the list; `None` in a new directory.
    pub fn read(data: &Path) -> anyhow::Result<Option<Registry>> {
        let path = path(data);
        let text = match fs::read_to_string(&path) {
            // A dangling link is a list that exists elsewhere, perhaps on a file system that is not mounted.
            Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&path).is_err() => {
                return Ok(None);
            }
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let registry: Registry = toml::from_str(&text).with_context(|| format!("cannot parse {}", path.display()))?;
        if registry.format != FORMAT {
            bail!("{} has format {}, this server knows {FORMAT}", path.display(), registry.format);
        }
        Ok(Some(registry))
    }

    /// An empty list.
    pub fn new() -> Registry {
        Registry { format: FORMAT, disks: BTreeMap::new() }
    }

    /// Writes the list.
    pub fn write(&self, data: &Path) -> io::Result<()> {
        let text = toml::to_string(self).expect("the registry can be written as TOML");
        identity::replace(&path(data), text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Registry::read(dir.path()).unwrap(), None);
        let mut registry = Registry::new();
        let entry = Entry {
            path: "disks/a".into(),
            uuid: Uuid::new_v4(),
            volumes: [("v".parse().unwrap(), Remembered { size: 512, tenant: None, device: None })].into(),
        };
        registry.disks.insert("a".parse().unwrap(), entry);
        registry.write(dir.path()).unwrap();
        assert_eq!(Registry::read(dir.path()).unwrap(), Some(registry));
        fs::rename(path(dir.path()), dir.path().join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("not mounted"), path(dir.path())).unwrap();
        assert!(Registry::read(dir.path()).unwrap_err().to_string().contains("cannot read"));
        fs::remove_file(path(dir.path())).unwrap();
        fs::create_dir(path(dir.path())).unwrap();
        assert!(Registry::read(dir.path()).is_err(), "a list that cannot be read is not an empty one");
        fs::remove_dir(path(dir.path())).unwrap();
        fs::write(path(dir.path()), "format = 9").unwrap();
        assert!(Registry::read(dir.path()).unwrap_err().to_string().contains("format 9"));
    }
}
