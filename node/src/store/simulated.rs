//! A simulated disk: a directory like any other, with the description of a drive in its `disk.toml`.
//!
//! The data of its volumes is in sparse files. Each volume also has a place on the drive, like a partition: contiguous,
//! allocated first fit, recorded in its specification. The place determines how long requests take. The description is
//! stored with the disk even if it is a preset, so that later versions of the preset do not change the disk.

use std::io::{self, Read};

use engine::units::{BLOCK, SECTOR};
use serde::{Deserialize, Serialize};
use sim::disk::drive::Drive;
use sim::disk::drive::describe::{DescribeError, Description};
use sim::disk::drive::presets;

use crate::quantity::Size;

/// Bytes of a description at most; the existing ones have some thousand.
const DESCRIPTION_MAX: u64 = 1 << 20;

/// Why a drive cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulatedError {
    #[error(
        "there is no preset '{}': the presets are {}; or name the file of a description, as in sim:./drive.toml",
        .0.escape_debug(),
        known_presets()
    )]
    UnknownPreset(String),
    #[error("the description {path} cannot be read: {source}")]
    Unreadable { path: String, source: io::Error },
    #[error("{0} is too long for a description of a drive")]
    TooLong(String),
    #[error("the description of sim:{name} is invalid: {source}")]
    Invalid { name: String, source: DescribeError },
    #[error("the description of sim:{name} is invalid: it has {}, and this disk {}", Size(*drive), Size(*disk))]
    TooSmall { name: String, drive: u64, disk: u64 },
    #[error(
        "sim:{name} has {}, less than the requested {}: leave out --size to use all of it",
        Size(*drive),
        Size(*asked)
    )]
    TooLarge { name: String, drive: u64, asked: u64 },
    #[error("the size of a disk is a multiple of 4KiB, not {}", Size(*.0))]
    Size(u64),
}

/// The simulated drive in `disk.toml`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Simulated {
    /// The preset or the file that the description is from.
    pub name: String,
    /// Bytes of the drive that volumes may use, from its beginning.
    pub size: u64,
    /// The description of the drive, as TOML.
    pub description: String,
}

/// The drive's name and kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Model {
    /// The name of the drive's model.
    pub name: String,
    /// Whether it has heads.
    pub has_heads: bool,
}

impl Simulated {
    /// The drive that `source` names, a preset or a file. Without a size, the whole drive is used.
    pub fn find(source: &str, size: Option<Size>) -> Result<Simulated, SimulatedError> {
        let description = match presets::text(source) {
            Some(text) => text.to_owned(),
            None => read(source)?,
        };
        let mut simulated = Simulated { name: source.to_owned(), size: 0, description };
        let (drive, _) = simulated.open()?;
        let bytes = drive.bytes() / BLOCK * BLOCK;
        simulated.size = size.map_or(bytes, |size| size.0);
        if simulated.size > bytes {
            return Err(SimulatedError::TooLarge { name: simulated.name, drive: bytes, asked: simulated.size });
        }
        if simulated.size == 0 || !simulated.size.is_multiple_of(BLOCK) {
            return Err(SimulatedError::Size(simulated.size));
        }
        Ok(simulated)
    }

    /// The drive, idle and spinning, and its model.
    pub fn open(&self) -> Result<(Box<dyn Drive>, Model), SimulatedError> {
        let wrong = |source| SimulatedError::Invalid { name: self.name.clone(), source };
        let description = Description::parse(&self.description).map_err(wrong)?;
        let drive = description.build().map_err(wrong)?;
        if drive.bytes() < self.size {
            return Err(SimulatedError::TooSmall { name: self.name.clone(), drive: drive.bytes(), disk: self.size });
        }
        let has_heads = description.hdd().map_err(wrong)?.is_some();
        Ok((drive, Model { name: description.model, has_heads }))
    }
}

fn known_presets() -> String {
    presets::PRESETS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

fn read(source: &str) -> Result<String, SimulatedError> {
    if !source.contains('/') {
        return Err(SimulatedError::UnknownPreset(source.into()));
    }
    let mut text = String::new();
    let file = std::fs::File::open(source).and_then(|file| file.take(DESCRIPTION_MAX + 1).read_to_string(&mut text));
    match file {
        Err(error) => Err(SimulatedError::Unreadable { path: source.into(), source: error }),
        Ok(len) if len as u64 > DESCRIPTION_MAX => Err(SimulatedError::TooLong(source.into())),
        Ok(_) => Ok(text),
    }
}

/// First fit: the start of the first free range that holds `bytes`; `taken` lists start and length of used ranges. If
/// none fits, the error is the length of the longest free range.
pub fn find_place(size: u64, taken: &[(u64, u64)], bytes: u64) -> Result<u64, u64> {
    let gaps = gaps(size, taken);
    let fit = gaps.iter().find(|(start, end)| end - start >= bytes);
    fit.map(|(start, _)| *start).ok_or_else(|| gaps.iter().map(|(start, end)| end - start).max().unwrap_or(0))
}

/// Free bytes behind a range that ends at `end`.
pub fn room_behind(size: u64, taken: &[(u64, u64)], end: u64) -> u64 {
    let next = taken.iter().map(|(start, _)| *start).filter(|start| *start >= end).min().unwrap_or(size);
    next.min(size).saturating_sub(end)
}

/// The sum of free bytes.
pub fn free(size: u64, taken: &[(u64, u64)]) -> u64 {
    gaps(size, taken).iter().map(|(start, end)| end - start).sum()
}

/// The free ranges, in order.
fn gaps(size: u64, taken: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut taken = taken.to_vec();
    taken.sort_unstable();
    let (mut gaps, mut at) = (Vec::new(), 0);
    for (start, bytes) in taken.into_iter().chain([(size, 0)]) {
        if start.min(size) > at {
            gaps.push((at, start.min(size)));
        }
        at = at.max(start.saturating_add(bytes));
    }
    gaps
}

/// Whether a volume's place is valid: whole sectors, inside the disk.
pub fn holds(size: u64, start: u64, bytes: u64) -> bool {
    start.is_multiple_of(SECTOR) && start.checked_add(bytes).is_some_and(|end| end <= size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_first_fit() {
        let taken = [(40, 10), (0, 10), (20, 10)];
        assert_eq!(find_place(100, &taken, 10), Ok(10));
        assert_eq!(find_place(100, &taken, 11), Ok(50));
        assert_eq!(find_place(100, &taken, 51), Err(50));
        assert_eq!((room_behind(100, &taken, 30), room_behind(100, &taken, 50)), (10, 50));
        assert_eq!((free(100, &taken), free(100, &[])), (70, 100));
        assert_eq!(find_place(100, &[(0, 100)], 1), Err(0));
        // Overlapping ranges, which should not exist, do not make space available twice.
        assert_eq!(find_place(100, &[(0, 60), (50, 20)], 10), Ok(70));
        assert_eq!(find_place(100, &[(90, 60)], 10), Ok(0));
    }

    #[test]
    fn every_preset_is_a_disk() {
        for (name, _) in presets::PRESETS {
            let simulated = Simulated::find(name, None).unwrap();
            let (drive, model) = simulated.open().unwrap();
            assert!(drive.bytes() - simulated.size < BLOCK);
            assert_eq!(model.has_heads, !["flash", "throttled"].contains(name), "{name}");
        }
    }

    #[test]
    fn what_is_no_drive_is_named() {
        let fails = |source: &str, size| Simulated::find(source, size).unwrap_err().to_string();
        assert!(fails("baracuda", None).contains("barracuda-7200.9, nearline"), "{}", fails("baracuda", None));
        assert!(fails("./absent.toml", None).contains("cannot be read"));
        assert!(fails("nearline", Some(Size(1 << 60))).contains("the requested 1EiB"));
        assert!(fails("nearline", Some(Size(1000))).contains("multiple of 4KiB"));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("drive.toml");
        std::fs::write(&file, "model = \"x\"\nsource = \"x\"\n").unwrap();
        assert!(fails(file.to_str().unwrap(), None).contains("neither [hdd] nor [flash]"));
    }
}
