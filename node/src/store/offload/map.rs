//! `DISK/offload-map-N.json`: the versions that the stores had when a process last ended in order. With this map, the
//! disk can be used without some of its stores.
//!
//! There are two files, written in turns. `offload.toml` has the number and the checksum of the one that is valid. So a
//! crash between the two writes leaves the earlier map, which may be the only one that knows what a missing store has.

use std::io::ErrorKind;

use engine::offload::{Known, Sum};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Mapped, Offload, OffloadError};
use crate::store::{Key, Store};

/// The version of the file's format.
const FORMAT: u32 = 1;

/// The file that is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Valid {
    /// Of the map: 1, 2, …
    number: u32,
    /// CRC-32C of the file.
    sum: u32,
}

impl Valid {
    fn key(&self) -> Key<'static> {
        Key::OffloadMap(self.number % 2)
    }
}

/// A version: number, volume, first byte, bytes, stores by bit, and the parts that are home.
type Version = (u64, u32, u64, u32, u16, Vec<(u64, u64)>);

/// The content of the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Map {
    format: u32,
    /// Of the process that wrote it.
    incarnation: u32,
    /// The logs in the stores, in the order of the bits.
    logs: Vec<Uuid>,
    versions: Vec<Version>,
}

impl Map {
    /// From the versions that the engine reports when the process ends.
    pub fn new(offload: &Offload, versions: Vec<Known>) -> Map {
        let version = |it: Known| (it.number, it.volume, it.start, it.len, it.stores, it.home);
        Map {
            format: FORMAT,
            incarnation: offload.incarnation,
            logs: offload.stores.iter().map(|entry| entry.log).collect(),
            versions: versions.into_iter().map(version).collect(),
        }
    }

    /// What the disk's engine is told when it starts with the stores of `offload`.
    pub fn for_engine(self, offload: &Offload) -> engine::offload::Map {
        let place = |log: &Uuid| offload.stores.iter().position(|entry| entry.log == *log);
        // Stores may have been removed since.
        let places: Vec<u16> = self.logs.iter().map(|log| place(log).map_or(0, |at| 1 << at)).collect();
        let known = |(number, volume, start, len, stores, home): Version| {
            let of = (0..).zip(&places).filter(|(at, _)| stores >> at & 1 != 0);
            Known { number, volume, start, len, stores: of.fold(0, |mask, (_, bit)| mask | bit), home }
        };
        let mapped = (0..).zip(&offload.stores).filter(|(_, entry)| entry.mapped != Mapped::No);
        engine::offload::Map {
            incarnation: self.incarnation,
            stores: mapped.fold(0, |mask, (at, _)| mask | 1 << at),
            versions: self.versions.into_iter().map(known).collect(),
        }
    }
}

fn sum(text: &str) -> u32 {
    let mut sum = Sum::default();
    sum.add(text.as_bytes());
    sum.value()
}

impl Store {
    /// Writes a map durably, not over the one that is valid. The new one becomes valid with `offload.toml`
    /// ([`Offload::end`]).
    pub fn put_offload_map(&self, valid: Option<Valid>, map: &Map) -> Result<Valid, OffloadError> {
        let text = serde_json::to_string(map).expect("it can be written as JSON");
        let next = Valid { number: valid.map_or(0, |valid| valid.number) + 1, sum: sum(&text) };
        let failed = |source| OffloadError::Write { path: self.catalogue.place(next.key()), source };
        self.catalogue.put(next.key(), &text).map_err(failed)?;
        Ok(next)
    }

    /// Reads the map that is valid.
    pub fn offload_map(&self, valid: Valid) -> Result<Map, OffloadError> {
        let path = self.catalogue.place(valid.key());
        let text = match self.catalogue.get(valid.key()) {
            Ok(Some(text)) if sum(&text) == valid.sum => text,
            // It is missing, is another one, or is no text.
            Ok(_) => return Err(OffloadError::Map { path }),
            Err(source) if source.kind() == ErrorKind::InvalidData => return Err(OffloadError::Map { path }),
            Err(source) => return Err(OffloadError::Read { path, source }),
        };
        match serde_json::from_str::<Map>(&text) {
            Ok(map) if map.format == FORMAT => Ok(map),
            // A later release may have written it.
            Ok(_) | Err(_) => Err(OffloadError::Map { path }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::three;
    use super::*;
    use crate::store::{Identity, Scheduling};

    fn known(number: u64, stores: u16) -> Known {
        Known { number, volume: 7, start: 4096, len: 8192, stores, home: vec![(4096, 8192)] }
    }

    #[test]
    fn only_the_map_that_is_valid_is_read() {
        let dir = tempfile::tempdir().unwrap();
        Identity::initialise(dir.path(), None, Vec::new(), Scheduling::default()).unwrap();
        let store = Store::open(dir.path(), None).unwrap();
        let map = |number| Map::new(&three(), vec![known(number, 1)]);
        let (first, others) = (map(1), [map(2), map(3)]);
        let valid = store.put_offload_map(None, &first).unwrap();
        // Those that never became valid do not replace it.
        let further = others.map(|map| store.put_offload_map(Some(valid), &map).unwrap());
        assert_eq!(store.offload_map(valid).unwrap(), first);
        assert!(store.offload_map(further[0]).unwrap_err().to_string().contains("offload-map-0.json"));
        assert!(store.offload_map(further[1]).is_ok());
        store.put_offload_map(Some(further[1]), &map(4)).unwrap();
        assert!(store.offload_map(valid).is_err(), "replaced");
        std::fs::write(dir.path().join("offload-map-0.json"), "hello").unwrap();
        assert!(store.offload_map(further[1]).is_err());
        store.remove_offload().unwrap();
        assert!(!dir.path().join("offload-map-0.json").exists() && !dir.path().join("offload-map-1.json").exists());
    }

    #[test]
    fn bits_follow_the_stores_by_their_logs() {
        let mut offload = three();
        offload.incarnation = 4;
        let map = Map::new(&offload, vec![known(1, 0b110), known(2, 0b001)]);
        offload.stores.swap(0, 2);
        offload.stores.remove(1);
        offload.stores[0].mapped = Mapped::Exactly;
        let map = map.for_engine(&offload);
        assert_eq!((map.incarnation, map.stores), (4, 0b01));
        assert_eq!(map.versions, [known(1, 0b01), known(2, 0b10)]);
    }
}
