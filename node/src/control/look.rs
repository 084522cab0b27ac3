//! What the file system and sysfs say of a disk.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::show::absolute;
use super::view::{DataKind, DiskView, DriveCache};
use crate::store::{Journal, Kernel, Store, file};

/// What is read there.
pub(super) struct Looked {
    free_bytes: u64,
    device: String,
    drive_cache: Option<DriveCache>,
    scheduler: Option<String>,
    file_system: String,
    journal: Journal,
    unclaimed: Vec<String>,
    warnings: Vec<String>,
}

impl Looked {
    /// Adds these values to the view of a disk.
    pub(super) fn add_to(self, view: &mut DiskView) {
        view.free_bytes = self.free_bytes;
        view.device = Some(self.device);
        view.drive_cache = self.drive_cache;
        view.scheduler = self.scheduler;
        view.file_system = Some(self.file_system);
        view.journal = if view.data == DataKind::Raw { Journal::None } else { self.journal };
        view.unclaimed = self.unclaimed;
        view.warnings.extend(self.warnings);
    }
}

/// Reads it. Blocks.
pub(super) fn look(store: &Arc<Store>, devices: &BTreeSet<u64>) -> Looked {
    let kernel = Kernel::default();
    let mut warnings: Vec<String> =
        store.check().err().map(|error| error.to_string()).into_iter().chain(store.shortage()).collect();
    let schedulers: BTreeSet<String> = devices
        .iter()
        .filter_map(|device| Some(active_scheduler(&kernel.queue(*device, "scheduler")?).to_owned()))
        .collect();
    let scheduler = (!schedulers.is_empty()).then(|| Vec::from_iter(schedulers.iter().cloned()).join(", "));
    if let Some(other) = schedulers.iter().find(|active| *active != "none") {
        warnings.push(format!(
            "the kernel's scheduler of its device is '{other}' and may reorder requests: set it to 'none'"
        ));
    }
    let unclaimed: Vec<String> = match store.unclaimed() {
        Ok(paths) => paths.iter().map(|path| absolute(path)).collect(),
        Err(error) => {
            warnings.push(format!("its directory cannot be read: {error}"));
            Vec::new()
        }
    };
    warnings.extend(unclaimed.iter().map(|path| format!("{path} is data without specification: not touched")));
    let free_bytes = file::free_bytes(store.directory());
    let number = |device: u64| format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let named = |device: &u64| match (kernel.name(*device), number(*device)) {
        (name, number) if name == number => number,
        (name, number) => format!("{number} ({name})"),
    };
    let device = devices.iter().map(named).collect::<Vec<_>>().join(", ");
    let drive_cache = least_safe(devices.iter().map(|device| kernel.queue(*device, "write_cache")));
    let (file_system, journal) = file::file_system(store.directory());
    Looked { free_bytes, device, drive_cache, scheduler, file_system, journal, unclaimed, warnings }
}

/// The least safe of several drives' caches, as sysfs shows them. `None` if one is unknown and none is known to be
/// write-back.
fn least_safe(told: impl Iterator<Item = Option<String>>) -> Option<DriveCache> {
    let caches: Vec<_> = told.map(|text| text.map(|text| DriveCache::told(&text))).collect();
    let unsafe_one = caches.iter().find(|cache| **cache == Some(DriveCache::WriteBack));
    unsafe_one.or(caches.iter().find(|cache| cache.is_none())).or(caches.first()).copied().flatten()
}

/// The scheduler in brackets; a list without brackets is a single name.
fn active_scheduler(all: &str) -> &str {
    all.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or(all, |(active, _)| active)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_of_a_queue() {
        assert_eq!(active_scheduler("mq-deadline kyber [none]"), "none");
        assert_eq!(active_scheduler("[mq-deadline] none"), "mq-deadline");
        assert_eq!(active_scheduler("none"), "none");
        assert_eq!(DriveCache::told("write back"), DriveCache::WriteBack);
        assert_eq!(DriveCache::told("write through"), DriveCache::WriteThrough);
        let least = |told: &[Option<&str>]| least_safe(told.iter().map(|text| text.map(str::to_owned)));
        let (back, through) = (Some("write back"), Some("write through"));
        assert_eq!(least(&[]), None);
        assert_eq!(least(&[through, through]), Some(DriveCache::WriteThrough));
        assert_eq!(least(&[through, None, back]), Some(DriveCache::WriteBack));
        assert_eq!(least(&[through, None]), None, "what is not known is not safe");
    }
}
