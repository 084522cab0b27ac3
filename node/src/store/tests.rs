//! Every crash point of create, grow, change and delete: perform the first steps, reopen the disk, check what is there.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::catalogue::{FileStep, PUT, REMOVE};
use super::spec::EarlierAllotment;
use super::steps::{CHANGE, DISCARD, EXTEND, PREPARE, PUBLISH, Step, UNPUBLISH};
use super::*;
use crate::store::spec::{Allocation, WriteCache};
use engine::nbd::Claim;

fn disk(directory: &Path) -> Store {
    let uuid = match Identity::exists(directory).unwrap() {
        true => None,
        false => Some(Identity::initialise(directory, None, Vec::new(), Scheduling::default()).unwrap().uuid),
    };
    Store::open(directory, uuid).unwrap()
}

fn name() -> Name {
    "db".parse().unwrap()
}

fn grow(files: &Files<'_>, from: &Spec, to: &Spec, progress: &Progress) -> Result<(), StoreError> {
    files.extend_data(from, to, progress).and_then(|()| files.grow(from, to))
}

/// The steps of the catalogue in a step of a volume.
fn inner(step: Step) -> &'static [FileStep] {
    match step {
        Step::PutSpec => PUT,
        Step::RemoveSpec => REMOVE,
        _ => &[],
    }
}

/// The number of points at which these steps can be cut off, the start excluded.
fn points(steps: &[&[Step]]) -> usize {
    steps.concat().iter().map(|step| inner(*step).len().max(1)).sum()
}

/// Performs the first `n` steps, and counts each step of the catalogue as one.
fn cut_short(files: &Files<'_>, catalogue: &LocalFiles, steps: &[&[Step]], mut n: usize, spec: &Spec) {
    for step in steps.concat() {
        let inner = inner(step);
        match inner.len().max(1) {
            all if all <= n => files.perform(&[step], spec, &Progress::default()).unwrap(),
            _ => return catalogue.perform(&inner[..n], Key::Volume(files.name), &spec.to_toml()).unwrap(),
        }
        n -= inner.len().max(1);
    }
}

/// Performs the first `n` steps on a disk that has the volume `before`. Returns what is found after a restart.
fn cut_off(before: Option<&Spec>, steps: &[&[Step]], n: usize, spec: &Spec) -> (Option<Spec>, usize) {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path());
    let (volumes, name) = (store.volumes(), name());
    let catalogue = LocalFiles::new(dir.path());
    let files = Files { directory: volumes.clone(), name: &name, catalogue: &catalogue };
    if let Some(before) = before {
        files.create(before, &Progress::default()).unwrap();
    }
    cut_short(&files, &catalogue, steps, n, spec);
    drop(store);

    let found = disk(dir.path()).scan().unwrap();
    let leftovers =
        fs::read_dir(&volumes).unwrap().filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().ends_with("tmp"));
    assert_eq!(leftovers.count(), 0);
    (found.volumes.into_values().next().map(Result::unwrap), found.unclaimed.len())
}

#[test]
fn a_creation_cut_off_leaves_no_volume() {
    for allocation in [Allocation::Whole, Allocation::Full, Allocation::Sparse] {
        let spec = Spec::new(1 << 20, None, allocation);
        for n in 0..=points(&[PREPARE, PUBLISH]) {
            let (found, unclaimed) = cut_off(None, &[PREPARE, PUBLISH], n, &spec);
            let published = n >= 6;
            assert_eq!(found, published.then(|| spec.clone()), "after {n} steps");
            assert_eq!(unclaimed, 0, "after {n} steps: its name is blocked");
        }
    }
}

/// After an interrupted creation the name can be used again. A file that is not the volume's is not touched.
#[test]
fn a_creation_cut_off_does_not_block_the_name() {
    for n in 0..6 {
        let dir = tempfile::tempdir().unwrap();
        let (volumes, name) = (disk(dir.path()).volumes(), name());
        let catalogue = LocalFiles::new(dir.path());
        let files = Files { directory: volumes.clone(), name: &name, catalogue: &catalogue };
        let spec = Spec::new(1 << 20, None, Allocation::Whole);
        cut_short(&files, &catalogue, &[PREPARE, PUBLISH], n, &spec);
        // Both with a restart in between and without one.
        if n % 2 == 0 {
            disk(dir.path()).scan().unwrap();
        }
        files.create(&spec, &Progress::default()).unwrap();
        assert_eq!(disk(dir.path()).scan().unwrap().volumes[&name].as_ref().unwrap(), &spec, "after {n} steps");
    }
    let dir = tempfile::tempdir().unwrap();
    let (volumes, name) = (disk(dir.path()).volumes(), name());
    let catalogue = LocalFiles::new(dir.path());
    let files = Files { directory: volumes.clone(), name: &name, catalogue: &catalogue };
    let spec = Spec::new(1 << 20, None, Allocation::Whole);
    cut_short(&files, &catalogue, &[PREPARE, PUBLISH], 5, &spec);
    fs::write(files.data(), "precious").unwrap();
    assert!(disk(dir.path()).scan().unwrap().volumes.is_empty());
    assert!(matches!(files.create(&spec, &Progress::default()), Err(StoreError::Unclaimed(_))));
    assert_eq!(fs::read(files.data()).unwrap(), b"precious");
}

#[test]
fn a_growth_cut_off_leaves_the_old_size_or_the_new_one() {
    let old = Spec::new(1 << 20, None, Allocation::Whole);
    let new = Spec { size: 3 << 20, ..old.clone() };
    for n in 0..=points(&[EXTEND, CHANGE]) {
        let (found, unclaimed) = cut_off(Some(&old), &[EXTEND, CHANGE], n, &new);
        assert_eq!(found.as_ref(), Some(if n >= 5 { &new } else { &old }), "after {n} steps");
        assert_eq!(unclaimed, 0);
    }
}

#[test]
fn a_change_cut_off_leaves_the_old_specification_or_the_new_one() {
    let old = Spec::new(1 << 20, None, Allocation::Sparse);
    let new = Spec { write_cache: WriteCache::None, ..old.clone() };
    for n in 0..=points(&[CHANGE]) {
        let (found, _) = cut_off(Some(&old), &[CHANGE], n, &new);
        assert_eq!(found.as_ref(), Some(if n >= 3 { &new } else { &old }), "after {n} steps");
    }
}

#[test]
fn a_deletion_cut_off_leaves_the_volume_or_nothing() {
    let spec = Spec::new(1 << 20, None, Allocation::Whole);
    for n in 0..=points(&[UNPUBLISH, DISCARD]) {
        let (found, unclaimed) = cut_off(Some(&spec), &[UNPUBLISH, DISCARD], n, &spec);
        assert_eq!(found, (n < 3).then(|| spec.clone()), "after {n} steps");
        assert_eq!(unclaimed, 0, "after {n} steps: its name is blocked");
    }
}

/// Temporary files of all specifications are removed at the next start, and nothing else is.
#[test]
fn a_specification_cut_off_leaves_no_temporary_file() {
    let (dir, name) = (tempfile::tempdir().unwrap(), name());
    drop(disk(dir.path()));
    let catalogue = LocalFiles::new(dir.path());
    let (tenant, temporary) = (catalogue.place(Key::Tenant(&name)), ".db.toml.tmp");
    let volume = Spec::new(1 << 20, None, Allocation::Whole).to_toml();
    for (key, text) in [(Key::Disk, ""), (Key::Tenant(&name), ""), (Key::Volume(&name), &volume)] {
        catalogue.perform(&PUT[..1], key, text).unwrap();
    }
    let other = tenant.with_file_name(".other");
    fs::write(&other, "").unwrap();
    assert!(tenant.with_file_name(temporary).exists());
    disk(dir.path()).scan().unwrap();
    assert!(!dir.path().join(".disk.toml.tmp").exists());
    assert!(!tenant.with_file_name(temporary).exists());
    assert!(!identity::volumes(dir.path()).join(temporary).exists());
    assert!(other.exists());
}

/// The volume has its data, or the name is free: with a restart in between, and after a failed deletion.
#[test]
fn a_deletion_cut_off_keeps_all_of_the_data_or_frees_the_name() {
    for (n, restarts) in (0..=points(&[UNPUBLISH, DISCARD])).flat_map(|n| [(n, false), (n, true)]) {
        let dir = tempfile::tempdir().unwrap();
        let (volumes, name) = (disk(dir.path()).volumes(), name());
        let catalogue = LocalFiles::new(dir.path());
        let files = Files { directory: volumes.clone(), name: &name, catalogue: &catalogue };
        let spec = Spec::new(1 << 20, None, Allocation::Whole);
        files.create(&spec, &Progress::default()).unwrap();
        let open = File::options().write(true).open(files.data()).unwrap();
        open.write_all_at(b"precious", 0).unwrap();
        cut_short(&files, &catalogue, &[UNPUBLISH, DISCARD], n, &spec);
        if restarts && n < 3 {
            assert_eq!(
                disk(dir.path()).scan().unwrap().volumes[&name].as_ref().unwrap(),
                &spec.clone(),
                "after {n} steps"
            );
            assert!(fs::read(files.data()).unwrap().starts_with(b"precious"), "after {n} steps");
            continue;
        }
        if restarts {
            disk(dir.path()).scan().unwrap();
        } else {
            // A second deletion completes the first one.
            files.unpublish(&spec).unwrap();
        }
        files.create(&spec, &Progress::default()).unwrap();
        open.write_all_at(b"late", 0).unwrap();
        assert!(fs::read(files.data()).unwrap().starts_with(&[0; 8]), "after {n} steps: a new volume has old data");
    }
}

/// A directory in place of the specification cannot be removed like a file.
#[test]
fn a_deletion_that_fails_leaves_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path());
    let (volumes, name) = (store.volumes(), name());
    let catalogue = LocalFiles::new(dir.path());
    let files = Files { directory: volumes.clone(), name: &name, catalogue: &catalogue };
    let spec = Spec::new(4096, None, Allocation::Whole);
    files.create(&spec, &Progress::default()).unwrap();
    fs::remove_file(files.spec()).unwrap();
    fs::create_dir(files.spec()).unwrap();
    files.unpublish(&spec).unwrap_err();
    assert_eq!(fs::metadata(files.data()).unwrap().len(), 4096);
}

/// Faults are cleared while a change of the scheduling has read `disk.toml` and not written it yet.
#[test]
fn changes_of_a_disk_do_not_undo_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let fault: crate::fault::FaultText = "error read 1%".parse().unwrap();
    Identity::initialise(dir.path(), None, vec![fault.clone()], Scheduling::default()).unwrap();
    let store = Store::open(dir.path(), None).unwrap();
    let (cleared, is_cleared) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        store
            .change(|known| {
                let store = &store;
                scope.spawn(move || {
                    store.forget_faults(&[fault]).unwrap();
                    cleared.send(()).unwrap();
                });
                // Wait long enough for a lost update to show: if changes are serialised, this one comes first.
                let first = is_cleared.recv_timeout(std::time::Duration::from_millis(300));
                assert!(first.is_err(), "both change it at a time");
                known.scheduling.no_probe = true;
            })
            .unwrap();
    });
    let found = Identity::read(dir.path()).unwrap();
    assert!(found.faults.is_empty() && found.scheduling.no_probe);
}

fn raw(size: u64) -> Spec {
    let facts = [("serial".to_owned(), "A1".to_owned())].into();
    let device = Raw { path: "/dev/disk/by-id/wwn-0x5000".into(), size: 4 << 20, facts };
    Spec { device: Some(device), ..Spec::new(size, None, Allocation::Whole) }
}

/// The device exists before and after; only whether a volume has it changes.
#[test]
fn a_change_of_a_raw_volume_cut_off_leaves_the_old_volume_or_the_new_one() {
    let (old, new) = (raw(1 << 20), raw(3 << 20));
    let new = Spec { uuid: old.uuid, ..new };
    for n in 0..=points(&[PREPARE, PUBLISH]) {
        assert_eq!(cut_off(None, &[PREPARE, PUBLISH], n, &old), ((n >= 6).then(|| old.clone()), 0), "after {n} steps");
    }
    for n in 0..=points(&[EXTEND, CHANGE]) {
        let expected = if n >= 5 { &new } else { &old };
        assert_eq!(cut_off(Some(&old), &[EXTEND, CHANGE], n, &new), (Some(expected.clone()), 0), "after {n} steps");
    }
    for n in 0..=points(&[UNPUBLISH, DISCARD]) {
        let expected = (n < 3).then(|| old.clone());
        assert_eq!(cut_off(Some(&old), &[UNPUBLISH, DISCARD], n, &old), (expected, 0), "after {n} steps");
    }
}

/// The same of an export on another server.
#[test]
fn a_gateway_volume_has_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path());
    let (volumes, name) = (store.volumes(), name());
    let files = store.files(&name);
    let upstream = "upstream = { from = 'nbd://h/db', deadline = '5s', connections = 1, block = 512 }";
    let text = format!("{}{upstream}\n", Spec::new(1 << 20, None, Allocation::Whole).to_toml());
    let spec = Spec::parse(&text).unwrap();
    assert_eq!(Spec::parse(&spec.to_toml()).unwrap(), spec);
    fs::write(files.data(), "precious").unwrap();
    assert!(matches!(files.create(&spec, &Progress::default()), Err(StoreError::Unclaimed(_))));
    fs::remove_file(files.data()).unwrap();
    files.create(&spec, &Progress::default()).unwrap();
    assert_eq!(store.scan().unwrap().volumes[&name].as_ref().unwrap(), &spec);
    for wrong in ["block = 1024", "connections = 0", "deadline = '1ms'"] {
        let key = wrong.split(' ').next().unwrap();
        let line = upstream.split([',', '{', '}']).find(|part| part.trim().starts_with(key)).unwrap();
        assert!(Spec::parse(&text.replace(line, &format!(" {wrong}"))).is_err(), "{wrong}");
    }
    files.unpublish(&spec).unwrap();
    files.discard(&spec).unwrap();
    assert_eq!(fs::read_dir(&volumes).unwrap().count(), 0);
}

/// A data file without a specification must not become a raw volume's data, to be removed with the volume.
#[test]
fn a_raw_volume_takes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path());
    let (volumes, name) = (store.volumes(), name());
    let catalogue = LocalFiles::new(dir.path());
    let files = Files { directory: volumes.clone(), name: &name, catalogue: &catalogue };
    fs::write(files.data(), "precious").unwrap();
    let error = files.create(&raw(1 << 20), &Progress::default()).unwrap_err();
    assert!(matches!(error, StoreError::Unclaimed(_)), "{error}");
    assert_eq!(fs::read(files.data()).unwrap(), b"precious");
    assert!(store.scan().unwrap().volumes.is_empty());
    fs::remove_file(files.data()).unwrap();
    let (old, new) = (raw(1 << 20), raw(2 << 20));
    files.create(&old, &Progress::default()).unwrap();
    assert_eq!(files.data_of(Some(&old)), Path::new("/dev/disk/by-id/wwn-0x5000"));
    grow(&files, &old, &new, &Progress::default()).unwrap();
    assert_eq!(store.scan().unwrap().volumes[&name].as_ref().unwrap(), &new.clone());
    fs::write(files.spec(), raw(8 << 20).to_toml()).unwrap();
    assert!(store.scan().unwrap().volumes[&name].as_ref().unwrap_err().to_string().contains("that of its device 4MiB"));
    files.unpublish(&new).unwrap();
    files.discard(&new).unwrap();
    assert_eq!(fs::read_dir(&volumes).unwrap().count(), 0);
}

/// A volume on a simulated disk has space on the simulated drive; its file is sparse.
#[test]
fn a_volume_with_a_place_takes_no_space() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path());
    let (volumes, name) = (store.volumes(), name());
    let catalogue = LocalFiles::new(dir.path());
    let files = Files { directory: volumes.clone(), name: &name, catalogue: &catalogue };
    let spec = Spec { place: Some(4096), ..Spec::new(1 << 40, None, Allocation::Whole) };
    files.create(&spec, &Progress::default()).unwrap();
    let metadata = fs::metadata(files.data()).unwrap();
    assert_eq!((metadata.len(), metadata.blocks()), (1 << 40, 0));
    assert_eq!(store.scan().unwrap().volumes[&name].as_ref().unwrap(), &spec);
}

/// A failed creation leaves nothing behind: the data is larger than the file system supports.
#[test]
fn a_failed_creation_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path());
    let (volumes, name) = (store.volumes(), name());
    let catalogue = LocalFiles::new(dir.path());
    let files = Files { directory: volumes.clone(), name: &name, catalogue: &catalogue };
    let error = files.create(&Spec::new(1 << 60, None, Allocation::Whole), &Progress::default()).unwrap_err();
    assert!(matches!(error, StoreError::NoSpace { .. } | StoreError::TooLarge { .. }), "{error}");
    assert_eq!(fs::read_dir(&volumes).unwrap().count(), 0);
}

#[test]
fn a_failed_growth_leaves_the_volume_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path());
    let (volumes, name) = (store.volumes(), name());
    let catalogue = LocalFiles::new(dir.path());
    let files = Files { directory: volumes.clone(), name: &name, catalogue: &catalogue };
    let old = Spec::new(1 << 20, None, Allocation::Whole);
    files.create(&old, &Progress::default()).unwrap();
    grow(&files, &old, &Spec { size: 1 << 60, ..old.clone() }, &Progress::default()).unwrap_err();
    assert_eq!(store.scan().unwrap().volumes[&name].as_ref().unwrap(), &old);
    assert_eq!(fs::metadata(files.data()).unwrap().len(), 1 << 20);
}

/// Only the size is what the growth began with.
#[test]
fn a_specification_that_changes_during_a_growth_keeps_the_change() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path());
    let (name, progress) = (name(), Progress::default());
    let files = store.files(&name);
    let old = Spec::new(1 << 20, None, Allocation::Full);
    files.create(&old, &progress).unwrap();
    let published = || store.scan().unwrap().volumes[&name].as_ref().unwrap().clone();
    let marked = old.offloaded(true);
    files.extend_data(&old, &Spec { size: 3 << 20, ..old.clone() }, &progress).unwrap();
    files.change(&published(), &marked).unwrap();
    files.grow(&published(), &Spec { size: 3 << 20, ..published() }).unwrap();
    assert_eq!(published(), Spec { size: 3 << 20, ..marked });
    assert_eq!(fs::metadata(files.data()).unwrap().len(), 3 << 20);
}

/// A growth that is killed halfway leaves a file that is longer than its specification says, and partly written.
#[test]
fn a_repeated_growth_finishes_what_was_cut_off() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path());
    let (volumes, name) = (store.volumes(), name());
    let catalogue = LocalFiles::new(dir.path());
    let files = Files { directory: volumes.clone(), name: &name, catalogue: &catalogue };
    let old = Spec::new(1 << 20, None, Allocation::Full);
    let new = Spec { size: 3 << 20, ..old.clone() };
    files.create(&old, &Progress::default()).unwrap();
    // More than half of the new part is zero-written. The remainder is allocated, and held other data before.
    let data = File::options().read(true).write(true).open(files.data()).unwrap();
    data.write_all_at(&[7; 4096], 0).unwrap();
    data.set_len(3 << 20).unwrap();
    data.write_all_at(&[9; 4096], 2 << 20).unwrap();
    let progress = Progress::default();
    grow(&files, &old, &new, &progress).unwrap();
    assert_eq!(progress.bytes.load(std::sync::atomic::Ordering::Relaxed), 2 << 20, "all of it is written");
    assert_eq!(file::holes(&data, 3 << 20), []);
    let found = fs::read(files.data()).unwrap();
    assert!(found[..4096].iter().all(|&byte| byte == 7) && found[1 << 20..].iter().all(|&byte| byte == 0));
}

/// The state of a volume is never guessed: its data ends where its specification says, not at the start of the file.
#[test]
fn a_growth_from_another_specification_than_the_one_on_the_disk_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path());
    let (volumes, name) = (store.volumes(), name());
    let catalogue = LocalFiles::new(dir.path());
    let files = Files { directory: volumes.clone(), name: &name, catalogue: &catalogue };
    let old = Spec::new(1 << 20, None, Allocation::Whole);
    let new = Spec { size: 2 << 20, ..old.clone() };
    files.create(&old, &Progress::default()).unwrap();
    let content: Vec<u8> = (0..1 << 20).map(|i| (i / 512) as u8).collect();
    File::options().write(true).open(files.data()).unwrap().write_all_at(&content, 0).unwrap();
    let refused = |what: &str| {
        let before = fs::read(files.spec()).ok();
        let error = grow(&files, &old, &new, &Progress::default()).unwrap_err();
        assert_eq!(fs::read(files.spec()).ok(), before, "{what}");
        assert!(fs::read(files.data()).unwrap() == content, "{what}: the data of a live volume was changed");
        // The step itself must check this, too.
        files.perform(&EXTEND[..1], &new, &Progress::default()).ok();
        assert!(fs::read(files.data()).unwrap()[..4096] == content[..4096], "{what}: its data was cut off");
        File::options().write(true).open(files.data()).unwrap().set_len(1 << 20).unwrap();
        File::options().write(true).open(files.data()).unwrap().write_all_at(&content, 0).unwrap();
        error.to_string()
    };
    fs::write(files.spec(), "size = 'nonsense'").unwrap();
    assert!(refused("nonsense").contains("its specification is invalid"));
    fs::write(files.spec(), Spec { size: 4096, ..old.clone() }.to_toml()).unwrap();
    assert!(refused("another size").contains("changed or removed"));
    fs::remove_file(files.spec()).unwrap();
    assert!(refused("none").contains("changed or removed"));
    // A read error, like EIO or EMFILE.
    fs::create_dir(files.spec()).unwrap();
    assert!(
        grow(&files, &old, &new, &Progress::default()).unwrap_err().to_string().contains("reading the specification")
    );
    fs::remove_dir(files.spec()).unwrap();
    fs::write(files.spec(), old.to_toml()).unwrap();
    grow(&files, &old, &new, &Progress::default()).unwrap();
    assert!(fs::read(files.data()).unwrap()[..1 << 20] == content);
}

#[test]
fn a_growth_that_is_cancelled_leaves_the_volume_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path());
    let (volumes, name) = (store.volumes(), name());
    let catalogue = LocalFiles::new(dir.path());
    let files = Files { directory: volumes.clone(), name: &name, catalogue: &catalogue };
    let old = Spec::new(1 << 20, None, Allocation::Full);
    files.create(&old, &Progress::default()).unwrap();
    let progress = Progress::default();
    progress.cancelled.store(true, std::sync::atomic::Ordering::Relaxed);
    let error = grow(&files, &old, &Spec { size: 3 << 20, ..old.clone() }, &progress).unwrap_err();
    assert!(matches!(error, StoreError::Cancelled), "{error}");
    assert_eq!(store.scan().unwrap().volumes[&name].as_ref().unwrap(), &old);
    assert_eq!(fs::metadata(files.data()).unwrap().len(), 1 << 20);
}

#[test]
fn a_deleted_volume_takes_the_notes_beside_it_along() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path());
    let (volumes, name) = (store.volumes(), name());
    let catalogue = LocalFiles::new(dir.path());
    let files = Files { directory: volumes.clone(), name: &name, catalogue: &catalogue };
    let spec = Spec::new(4096, None, Allocation::Whole);
    files.create(&spec, &Progress::default()).unwrap();
    fs::write(files.lost(), "").unwrap();
    files.record_epoch(spec.uuid, &Claim::parse(b"aerogel:session=gateway/1").unwrap()).unwrap();
    assert_eq!(store.scan().unwrap().unclaimed, [] as [PathBuf; 0]);
    files.unpublish(&spec).unwrap();
    files.discard(&spec).unwrap();
    assert_eq!(fs::read_dir(&volumes).unwrap().count(), 0);
}

#[test]
fn data_without_specification_is_reported_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path());
    let volumes = store.volumes();
    fs::write(volumes.join("db.img"), "precious").unwrap();
    assert_eq!(store.scan().unwrap().unclaimed, [volumes.join("db.img")]);
    let name = name();
    let catalogue = LocalFiles::new(dir.path());
    let files = Files { directory: volumes.clone(), name: &name, catalogue: &catalogue };
    let error = files.create(&Spec::new(4096, None, Allocation::Whole), &Progress::default()).unwrap_err();
    assert!(matches!(error, StoreError::Unclaimed(_)));
    assert_eq!(fs::read(volumes.join("db.img")).unwrap(), b"precious");
}

#[test]
fn volumes_with_missing_data_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path());
    let (volumes, name) = (store.volumes(), name());
    let catalogue = LocalFiles::new(dir.path());
    let files = Files { directory: volumes.clone(), name: &name, catalogue: &catalogue };
    files.create(&Spec::new(8192, None, Allocation::Whole), &Progress::default()).unwrap();
    let reason = || store.scan().unwrap().volumes[&name].as_ref().unwrap_err().to_string();
    File::options().write(true).open(files.data()).unwrap().set_len(4096).unwrap();
    assert!(reason().contains("4096 bytes"));
    fs::remove_file(files.data()).unwrap();
    assert!(reason().contains("cannot be read"));
    fs::write(files.spec(), "size = 3").unwrap();
    assert!(reason().contains("cannot be parsed"));
}

#[test]
fn a_disk_that_is_another_or_in_use_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let store = disk(dir.path());
    let refused = |path: &Path, uuid| Store::open(path, uuid).unwrap_err().to_string();
    assert!(refused(dir.path(), None).contains("in use by another server"));
    drop(store);
    assert!(refused(dir.path(), Some(Uuid::new_v4())).contains("right file system"));
    assert!(refused(&dir.path().join("absent"), None).contains("mounted"));
}

#[test]
fn a_store_is_told_from_other_volumes_and_its_tenant_is_kept_with_the_disk() {
    let (dir, name) = (tempfile::tempdir().unwrap(), name());
    let store = disk(dir.path());
    let spec = Spec::new_store(1 << 20);
    assert_eq!((spec.tenant(&name), spec.format), (Name::of_stores(), 2));
    assert_eq!(Spec::parse(&spec.to_toml()).unwrap(), spec);
    store.files(&name).create(&spec, &Progress::default()).unwrap();
    let share = TenantSpec { share: Some("5%".parse().unwrap()), ..TenantSpec::default() };
    store.put_tenant(&Name::of_stores(), &share).unwrap();
    let found = store.scan().unwrap();
    assert_eq!(found.volumes[&name].as_ref().unwrap(), &spec);
    assert_eq!(found.tenants, [(Name::of_stores(), share)].into());
    // A release that knows neither the field nor the format.
    let plain = Spec { store: false, ..spec.clone() };
    assert!(matches!(Spec::parse(&plain.to_toml()), Err(SpecError::Format(2))));
    let tenant = Some("team".parse().unwrap());
    for wrong in [
        Spec { write_cache: WriteCache::Volatile, ..spec.clone() },
        Spec { tenant, ..spec.clone() },
        Spec { format: 1, ..spec.clone() },
    ] {
        assert!(matches!(Spec::parse(&wrong.to_toml()), Err(SpecError::Store)), "{wrong:?}");
    }
    // The specification of a tenant without volumes is removed.
    store.files(&name).unpublish(&spec).unwrap();
    assert!(store.scan().unwrap().tenants.is_empty() && store.tenant(&Name::of_stores()).unwrap().is_none());
}

/// A catalogue that reads specifications of tenants a number of times, and then fails.
#[derive(Debug)]
struct Failing {
    files: LocalFiles,
    reads: AtomicUsize,
}

impl Catalogue for Failing {
    fn get(&self, key: Key<'_>) -> io::Result<Option<String>> {
        let take = |reads: usize| reads.checked_sub(1);
        match key {
            Key::Tenant(_) if self.reads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() => {
                Err(Errno::IO.into())
            }
            key => self.files.get(key),
        }
    }

    fn put(&self, key: Key<'_>, text: &str) -> io::Result<()> {
        self.files.put(key, text)
    }

    fn remove(&self, key: Key<'_>) -> io::Result<()> {
        self.files.remove(key)
    }

    fn recover(&self) -> io::Result<()> {
        self.files.recover()
    }

    fn volumes(&self) -> io::Result<BTreeSet<Name>> {
        self.files.volumes()
    }

    fn tenants(&self) -> io::Result<BTreeSet<Name>> {
        self.files.tenants()
    }

    fn place(&self, key: Key<'_>) -> PathBuf {
        self.files.place(key)
    }
}

/// A volume with an allotment of an earlier release.
fn earlier(tenant: &Name, share: &str, sequence: u64) -> Spec {
    let share = Some(share.parse().unwrap());
    let allotment = Some(EarlierAllotment { share, sequence, ..EarlierAllotment::default() });
    Spec { allotment, ..Spec::new(1 << 20, Some(tenant.clone()), Allocation::Sparse) }
}

#[test]
fn a_specification_that_cannot_be_read_any_more_is_not_replaced_by_an_earlier_one() {
    let (dir, name) = (tempfile::tempdir().unwrap(), name());
    let mut store = disk(dir.path());
    store.files(&name).create(&earlier(&name, "1/2", 1), &Progress::default()).unwrap();
    let spec = TenantSpec { share: Some("1/4".parse().unwrap()), ..TenantSpec::default() };
    store.put_tenant(&name, &spec).unwrap();
    let files = LocalFiles::new(dir.path());
    // The first read is for its volume.
    for reads in 0..3 {
        store.catalogue = Box::new(Failing { files: files.clone(), reads: AtomicUsize::new(reads) });
        match (reads, store.scan()) {
            (0, Ok(found)) => assert!(found.volumes[&name].is_err()),
            (1, Err(error)) => assert!(error.to_string().contains("cannot be read"), "{error}"),
            (2, Ok(found)) => assert_eq!(found.tenants[&name], spec),
            (_, found) => panic!("after {reads} reads: {found:?}"),
        }
    }
    drop(store);
    assert_eq!(disk(dir.path()).tenant(&name).unwrap(), Some(spec));
}
