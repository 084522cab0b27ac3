//! The last schedule that was committed, beside the data of the server: `DIR/schedule.json`. It is followed while etcd
//! does not answer, and it is why a lower version is never taken.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::records::Schedule;
use crate::quantity::Name;
use crate::store::identity;

const FORMAT: u32 = 1;

/// A schedule, whose it is, and where it comes from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    format: u32,
    /// The cluster.
    pub cluster: Name,
    /// The disk that follows it.
    pub disk: Uuid,
    /// The revision of etcd at which it was committed.
    pub revision: i64,
    /// It.
    pub schedule: Schedule,
}

fn path(data: &Path) -> PathBuf {
    data.join("schedule.json")
}

impl Kept {
    /// A schedule of this disk.
    pub fn new(cluster: Name, disk: Uuid, revision: i64, schedule: Schedule) -> Kept {
        Kept { format: FORMAT, cluster, disk, revision, schedule }
    }

    /// Reads it; `None` if there never was one.
    pub fn read(data: &Path) -> anyhow::Result<Option<Kept>> {
        let path = path(data);
        let text = match std::fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let kept: Kept = serde_json::from_str(&text).with_context(|| format!("cannot parse {}", path.display()))?;
        ensure!(kept.format == FORMAT, "{} has format {}, this server knows {FORMAT}", path.display(), kept.format);
        Ok(Some(kept))
    }

    /// Writes it, durably.
    pub fn write(&self, data: &Path) -> io::Result<()> {
        let text = serde_json::to_string_pretty(self).expect("a schedule can be written as JSON");
        identity::replace(&path(data), text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Kept::read(dir.path()).unwrap(), None);
        let kept = Kept::new("lab".parse().unwrap(), Uuid::from_u128(5), 12, Schedule::default());
        kept.write(dir.path()).unwrap();
        assert_eq!(Kept::read(dir.path()).unwrap(), Some(kept));
        std::fs::write(path(dir.path()), "{\"format\": 9}").unwrap();
        assert!(Kept::read(dir.path()).unwrap_err().to_string().contains("schedule.json"));
    }
}
