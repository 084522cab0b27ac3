//! The kernel's information on block devices, from sysfs and `/proc/self/mountinfo`.
//!
//! ```text
//!   /sys/dev/block/8:17 ─► …/block/sdb/sdb1    size, ro, partition, start, holders/, ..  ─► the drive of the partition
//!                  253:2 ─► …/block/dm-2       dm/uuid, queue/…, slaves/dm-0 ─► the devices below
//! ```
//!
//! Limits: a mount in another mount namespace is not visible here, but makes the exclusive open fail. A drive without a
//! serial number can be recognised by its size only.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use engine::units::{BLOCK, SECTOR};
use rustix::fs::{major, makedev, minor};
use rustix::io::Errno;

/// The kernel's files below a root directory; tests have a tree of their own.
#[derive(Clone, Debug)]
pub struct Kernel {
    root: PathBuf,
}

impl Default for Kernel {
    fn default() -> Kernel {
        Kernel { root: "/".into() }
    }
}

/// The size and the abilities of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Size, bytes.
    pub size: u64,
    /// Logical block size, bytes.
    pub block: u64,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Whether it can zero a range without being sent zeros.
    pub can_zero: bool,
    /// Whether zeroing a range also deallocates it.
    pub can_punch: bool,
}

impl Kernel {
    #[cfg(test)]
    pub fn at(root: &Path) -> Kernel {
        Kernel { root: root.to_owned() }
    }

    fn directory(&self, number: u64) -> PathBuf {
        self.root.join(format!("sys/dev/block/{}:{}", major(number), minor(number)))
    }

    fn text(&self, number: u64, file: &str) -> Option<String> {
        let text = fs::read_to_string(self.directory(number).join(file)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// As `text`, but running out of descriptors or memory is an error instead of a missing file. Other errors mean
    /// that the device has no such value.
    fn text_or_error(&self, number: u64, file: &str) -> io::Result<Option<String>> {
        let path = self.directory(number).join(file);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
                Err(error)
            }
            Err(_) => Ok(None),
        }
    }

    /// A number that every device has.
    fn count(&self, number: u64, file: &str) -> io::Result<u64> {
        let path = self.directory(number).join(file);
        let text = fs::read_to_string(&path)?;
        text.trim().parse().map_err(|_| io::Error::other(format!("{} says '{}'", path.display(), text.trim())))
    }

    /// The kernel's name of a device, such as `sdb1`.
    pub fn name(&self, number: u64) -> String {
        let target = fs::read_link(self.directory(number)).ok();
        let name = target.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| format!("{}:{}", major(number), minor(number)))
    }

    /// A file of the device's queue. A partition has the queue of its drive.
    pub fn queue(&self, number: u64, file: &str) -> Option<String> {
        ["queue", "../queue"].iter().find_map(|queue| self.text(number, &format!("{queue}/{file}")))
    }

    /// The size and the abilities of a device.
    pub fn limits(&self, number: u64) -> io::Result<Limits> {
        let queue = |file| self.queue(number, file).and_then(|text| text.parse::<u64>().ok());
        let can_zero = queue("write_zeroes_max_bytes").is_some_and(|bytes| bytes > 0);
        Ok(Limits {
            size: self.count(number, "size")? * SECTOR,
            block: queue("logical_block_size").unwrap_or(BLOCK),
            read_only: self.count(number, "ro")? != 0,
            can_zero,
            // Linux deallocates by zeroing. A device that can only discard, with undefined content afterwards, cannot
            // be used.
            can_punch: can_zero && queue("discard_max_bytes").is_some_and(|bytes| bytes > 0),
        })
    }

    /// The first byte of a partition on its drive; `None` if the device is no partition.
    pub fn start(&self, number: u64) -> Option<u64> {
        self.text(number, "start")?.parse::<u64>().ok()?.checked_mul(SECTOR)
    }

    /// The properties that identify this device under any name and at any port. May be empty.
    pub fn facts(&self, number: u64) -> io::Result<BTreeMap<String, String>> {
        let mut facts = BTreeMap::new();
        let is_partition = self.text(number, "partition").is_some();
        let of_drive = if is_partition { "../" } else { "" };
        for (fact, files) in [
            ("dm_uuid", &["dm/uuid"][..]),
            ("md_uuid", &["md/uuid"]),
            ("wwid", &["wwid", "device/wwid"]),
            ("serial", &["serial", "device/serial", "device/cid"]),
            ("backing_file", &["loop/backing_file"]),
            ("backing_offset", &["loop/offset"]),
        ] {
            for file in files {
                if let Some(found) = self.text_or_error(number, &format!("{of_drive}{file}"))? {
                    facts.insert(fact.to_owned(), found);
                    break;
                }
            }
        }
        if !facts.contains_key("dm_uuid") {
            facts.extend(self.text_or_error(number, "dm/name")?.map(|name| ("dm_name".into(), name)));
        }
        // Position and number distinguish partitions of one drive, and identify nothing without the drive.
        if is_partition && !facts.is_empty() {
            for fact in ["partition", "start"] {
                facts.extend(self.text_or_error(number, fact)?.map(|found| (fact.into(), found)));
            }
        }
        Ok(facts)
    }

    /// The drives below a device: the drive of a partition, the devices below a logical volume or a RAID. A loop device
    /// counts as a drive, and so does a device that the kernel has no information on.
    pub fn drives(&self, number: u64) -> BTreeSet<u64> {
        if self.text(number, "partition").is_some()
            && let Some(drive) = self.text(number, "../dev").and_then(|text| parse(&text))
        {
            return self.drives(drive);
        }
        let slaves = self.listed(number, "slaves");
        if slaves.is_empty() { [number].into() } else { slaves.iter().flat_map(|slave| self.drives(*slave)).collect() }
    }

    /// What uses a device or one of its partitions: a mount point, or a device above it.
    pub fn user(&self, number: u64) -> Option<String> {
        let mut parts = vec![number];
        parts.extend(self.partitions(number));
        let mounts = fs::read_to_string(self.root.join("proc/self/mountinfo")).unwrap_or_default();
        parts.into_iter().find_map(|part| {
            let name = if part == number { "it".to_owned() } else { format!("its partition {}", self.name(part)) };
            if let Some(place) = mounted_at(&mounts, part) {
                return Some(format!("{name} is mounted at {place}"));
            }
            let holder = *self.listed(part, "holders").first()?;
            let called = self.text(holder, "dm/name").unwrap_or_else(|| self.name(holder));
            Some(format!("{name} is a part of {called}"))
        })
    }

    fn partitions(&self, number: u64) -> Vec<u64> {
        let entries = fs::read_dir(self.directory(number)).into_iter().flatten().flatten();
        let parts = entries.filter(|entry| entry.path().join("partition").exists());
        parts.filter_map(|entry| parse(&fs::read_to_string(entry.path().join("dev")).ok()?)).collect()
    }

    /// The devices in a directory of a device, such as `slaves`.
    fn listed(&self, number: u64, folder: &str) -> Vec<u64> {
        let entries = fs::read_dir(self.directory(number).join(folder)).into_iter().flatten().flatten();
        entries.filter_map(|entry| parse(&fs::read_to_string(entry.path().join("dev")).ok()?)).collect()
    }
}

/// Parses a device number, such as `8:17`.
fn parse(text: &str) -> Option<u64> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Parses lines of proc(5): number, parent, major:minor, root, mount point, … `\040` stands for a space.
fn mounted_at(mountinfo: &str, number: u64) -> Option<String> {
    let lines = mountinfo.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let mut mounts = lines.filter(|fields| fields.get(2).and_then(|text| parse(text)) == Some(number));
    Some(mounts.next()?.get(4)?.replace("\\040", " "))
}

#[cfg(test)]
pub mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A tree of devices like sysfs: a directory for each, and a link by its number.
    pub struct Tree(pub tempfile::TempDir);

    impl Tree {
        pub fn new() -> Tree {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("sys/dev/block")).unwrap();
            fs::create_dir_all(dir.path().join("proc/self")).unwrap();
            Tree(dir)
        }

        /// Adds a device in a directory below `sys/block`.
        pub fn add(&self, folder: &str, number: &str, files: &[(&str, &str)]) -> u64 {
            let at = self.0.path().join("sys/block").join(folder);
            // The files that every device has, unless they are given.
            let usual = [("dev", number), ("size", "0"), ("ro", "0")];
            for (file, text) in usual.iter().chain(files) {
                fs::create_dir_all(at.join(file).parent().unwrap()).unwrap();
                fs::write(at.join(file), format!("{text}\n")).unwrap();
            }
            symlink(&at, self.0.path().join("sys/dev/block").join(number)).unwrap();
            parse(number).unwrap()
        }

        /// Lists `what` among the slaves or holders of `of`.
        pub fn link(&self, of: &str, list: &str, what: &str) {
            let blocks = self.0.path().join("sys/block");
            fs::create_dir_all(blocks.join(of).join(list)).unwrap();
            symlink(blocks.join(what), blocks.join(of).join(list).join(what)).unwrap();
        }

        pub fn kernel(&self) -> Kernel {
            Kernel::at(self.0.path())
        }
    }

    const QUEUE: [(&str, &str); 3] = [
        ("queue/logical_block_size", "4096"),
        ("queue/write_zeroes_max_bytes", "65536"),
        ("queue/discard_max_bytes", "0"),
    ];

    #[test]
    fn partitions_are_part_of_their_drive() {
        let tree = Tree::new();
        let drive = tree.add("sdb", "8:16", &[&[("device/wwid", "naa.5000c5"), ("size", "4096")], &QUEUE[..]].concat());
        let part =
            tree.add("sdb/sdb1", "8:17", &[("partition", "1"), ("start", "2048"), ("size", "1000"), ("ro", "1")]);
        let kernel = tree.kernel();
        assert_eq!(kernel.drives(part), [drive].into());
        assert_eq!(kernel.drives(drive), [drive].into());
        assert_eq!(kernel.name(part), "sdb1");
        assert_eq!((kernel.start(part), kernel.start(drive)), (Some(1 << 20), None));
        let limits = Limits { size: 512_000, block: 4096, read_only: true, can_zero: true, can_punch: false };
        assert_eq!(kernel.limits(part).unwrap(), limits);
        let facts: Vec<_> = kernel.facts(part).unwrap().into_iter().collect();
        let text = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(facts, [text("partition", "1"), text("start", "2048"), text("wwid", "naa.5000c5")]);
        assert_eq!(kernel.facts(drive).unwrap().into_iter().collect::<Vec<_>>(), [text("wwid", "naa.5000c5")]);
    }

    #[test]
    fn logical_volumes_stand_on_drives() {
        let tree = Tree::new();
        let (a, b) = (tree.add("sda", "8:0", &[]), tree.add("sdb", "8:16", &[("serial", "")]));
        tree.add("sdb/sdb2", "8:18", &[("partition", "2"), ("start", "7")]);
        let mapped = tree.add("dm-0", "253:0", &[("dm/name", "vg-db"), ("dm/uuid", "LVM-abc")]);
        symlink(tree.0.path().join("sys/block/sdb/sdb2"), tree.0.path().join("sys/block/sdb2")).unwrap();
        for slave in ["sda", "sdb2"] {
            tree.link("dm-0", "slaves", slave);
        }
        let kernel = tree.kernel();
        assert_eq!(kernel.drives(mapped), [a, b].into());
        assert_eq!(kernel.facts(mapped).unwrap(), [("dm_uuid".to_owned(), "LVM-abc".to_owned())].into());
        assert!(kernel.facts(b).unwrap().is_empty() && kernel.facts(parse("8:18").unwrap()).unwrap().is_empty());
        tree.link("sda", "holders", "dm-0");
        assert_eq!(kernel.user(a).unwrap(), "it is a part of vg-db");
        assert_eq!(kernel.user(mapped), None);
    }

    #[test]
    fn what_is_mounted_is_found_also_by_its_drive() {
        let tree = Tree::new();
        let drive = tree.add("sdb", "8:16", &[]);
        let part = tree.add("sdb/sdb1", "8:17", &[("partition", "1")]);
        let mounts = "22 1 8:2 / / rw - ext4 /dev/sda2 rw\n30 22 8:17 / /my\\040data rw - ext4 /dev/sdb1 rw\n";
        fs::write(tree.0.path().join("proc/self/mountinfo"), mounts).unwrap();
        assert_eq!(tree.kernel().user(part).unwrap(), "it is mounted at /my data");
        assert_eq!(tree.kernel().user(drive).unwrap(), "its partition sdb1 is mounted at /my data");
    }

    #[test]
    fn unknown_devices_stand_for_themselves() {
        let kernel = Tree::new().kernel();
        assert_eq!(kernel.drives(makedev(0, 40)), [makedev(0, 40)].into());
        assert_eq!(kernel.name(makedev(0, 40)), "0:40");
        assert!(kernel.facts(makedev(0, 40)).unwrap().is_empty());
    }
}
