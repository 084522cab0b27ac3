use super::*;
use crate::disk::policy;
use crate::ids::{ConnId, TenantId};
use crate::nbd::wire::{command, command_flag as flag};
use crate::spec::{TenantSpec, VolumeSpec};
use crate::units::{BLOCK, SECOND};
use crate::volume::rig::{Rig, VOLUME};

const BAD: Result<(), Errno> = Err(Errno::Io);
const FAILED: Option<u32> = Some(Errno::Io as u32);

/// A block could not be written, and its retry is in the device.
fn retrying() -> Rig {
    let mut rig = Rig::new();
    rig.write(1, 0, 0, BLOCK, 7);
    rig.ask(2, command::FLUSH, 0, 0, 0);
    rig.complete(0, BAD);
    // Until the flush is answered, device flushes succeed and writes of the block fail.
    while rig.answer(2).is_none() {
        rig.complete(0, if rig.ops() == [Op::Flush] { Ok(()) } else { BAD });
    }
    assert_eq!(rig.answer(2), FAILED);
    rig.wait(6 * SECOND);
    assert_eq!(rig.ops(), [Op::Write { durable: false }]);
    rig
}

fn is_failing(rig: &Rig) -> bool {
    rig.volumes.cache.volume(VOLUME).failing > 0
}

const OTHER: ConnId = ConnId(2);
const WRITE: Op = Op::Write { durable: false };
const DURABLE: Op = Op::Write { durable: true };

/// A second volume of another tenant on the same device, with the client `OTHER`. It uses other places of the medium.
fn with_neighbour() -> Rig {
    let mut rig = Rig::new();
    let neighbour = VolumeSpec::plain(VolumeId(1), TenantId(1), crate::volume::rig::VOLUME_BYTES as u64);
    rig.set_tenant(TenantId(1), TenantSpec::default());
    rig.open_volume(neighbour);
    rig.attach(OTHER, VolumeId(1));
    rig
}

/// The neighbour has written a block to the device that no flush covers yet.
fn neighbour_wrote(rig: &mut Rig) {
    rig.write_as(OTHER, 1, 0, 100 * BLOCK, BLOCK, 7);
    let id = rig.volumes.cache.lookup(VolumeId(1), 100).unwrap();
    rig.volumes.write_out(id, false, false);
    rig.wait(0);
    assert_eq!(rig.ops(), [WRITE]);
    rig.complete(0, Ok(()));
}

fn neighbours_dirt(rig: &Rig) -> u32 {
    rig.volumes.cache.dirty_blocks(VolumeId(1))
}

/// The device requests of the neighbour's next flush, which succeeds.
fn neighbours_flush(rig: &mut Rig) -> Vec<Op> {
    rig.ask_as(OTHER, 90, command::FLUSH, 0, 0, 0);
    let mut ops = Vec::new();
    while !rig.device.is_empty() {
        ops.push(rig.ops()[0]);
        rig.complete(0, Ok(()));
    }
    assert_eq!(rig.answer(90), Some(0));
    ops
}

#[test]
fn a_failed_flush_makes_dirty_again_what_other_volumes_wrote() {
    let mut rig = with_neighbour();
    neighbour_wrote(&mut rig);
    rig.ask(2, command::FLUSH, 0, 0, 0);
    rig.complete(0, BAD);
    assert_eq!((rig.answer(2), neighbours_dirt(&rig)), (FAILED, 1));
    assert_eq!(neighbours_flush(&mut rig), [WRITE, Op::Flush]);
    // Data that the neighbour's own flush covers is safe from then on.
    rig.ask(3, command::FLUSH, 0, 0, 0);
    rig.complete(0, BAD);
    assert_eq!(neighbours_dirt(&rig), 0);
}

#[test]
fn a_failed_durable_write_is_a_failed_flush_but_not_for_want_of_space() {
    for (result, dirt) in [(BAD, 1), (Err(Errno::NoSpace), 0)] {
        let mut rig = with_neighbour();
        neighbour_wrote(&mut rig);
        rig.write(2, flag::FUA, 0, BLOCK, 8);
        assert_eq!(rig.ops(), [DURABLE]);
        rig.complete(0, result);
        assert!(rig.answer(2).is_some_and(|error| error != 0));
        assert_eq!(neighbours_dirt(&rig), dirt, "{result:?}");
    }
}

#[test]
fn what_a_durable_write_has_brought_to_the_medium_is_not_written_again() {
    let mut rig = with_neighbour();
    rig.write_as(OTHER, 1, flag::FUA, 100 * BLOCK, BLOCK, 7);
    rig.complete(0, Ok(()));
    rig.ask(2, command::FLUSH, 0, 0, 0);
    rig.complete(0, BAD);
    assert_eq!((rig.answer(1), neighbours_dirt(&rig)), (Some(0), 0));
}

#[test]
fn what_was_evicted_before_another_volumes_flush_failed_is_lost() {
    let mut rig = with_neighbour();
    neighbour_wrote(&mut rig);
    let id = rig.volumes.cache.lookup(VolumeId(1), 100).unwrap();
    rig.volumes.cache.drop_block(id);
    rig.ask(2, command::FLUSH, 0, 0, 0);
    rig.complete(0, BAD);
    rig.ask_as(OTHER, 3, command::FLUSH, 0, 0, 0);
    assert_eq!((rig.answer(3), rig.device.len()), (FAILED, 0));
    rig.clear(9, VolumeId(1));
    assert_eq!(neighbours_flush(&mut rig), [Op::Flush]);
}

/// The second volume was opened while the device may have held unflushed content of a killed process.
fn with_unflushed_neighbour() -> Rig {
    let mut rig = Rig::new();
    let plain = VolumeSpec::plain(VolumeId(1), TenantId(1), crate::volume::rig::VOLUME_BYTES as u64);
    rig.set_tenant(TenantId(1), TenantSpec::default());
    rig.open_volume(VolumeSpec { unflushed: true, ..plain });
    rig.attach(OTHER, VolumeId(1));
    assert_eq!(rig.ops(), [Op::Flush]);
    rig
}

#[test]
fn what_a_killed_process_left_unflushed_is_lost_if_the_first_flush_fails() {
    for result in [BAD, Ok(())] {
        let mut rig = with_unflushed_neighbour();
        rig.complete(0, result);
        rig.ask_as(OTHER, 3, command::FLUSH, 0, 0, 0);
        rig.complete_all();
        assert_eq!(rig.answer(3), if result.is_ok() { Some(0) } else { FAILED });
    }
    let mut rig = with_unflushed_neighbour();
    rig.complete(0, BAD);
    rig.clear(9, VolumeId(1));
    assert!(rig.is_done(9));
    assert_eq!(neighbours_flush(&mut rig), [Op::Flush]);
}

#[test]
fn what_a_killed_process_left_unflushed_is_lost_if_another_volumes_flush_fails_first() {
    for flushed in [false, true] {
        let mut rig = with_unflushed_neighbour();
        if flushed {
            rig.complete(0, Ok(()));
        }
        rig.ask(2, command::FLUSH, 0, 0, 0);
        rig.complete(rig.ops().len() - 1, BAD);
        rig.complete_all();
        rig.ask_as(OTHER, 3, command::FLUSH, 0, 0, 0);
        rig.complete_all();
        assert_eq!((rig.answer(2), rig.answer(3)), (FAILED, if flushed { Some(0) } else { FAILED }));
    }
}

#[test]
fn a_drain_waits_for_a_flush_of_its_own() {
    let mut rig = Rig::with(16, |spec| spec.write_cache = WriteCache::Unsafe);
    rig.command(|volumes| volumes.set_write_cache(8, VOLUME, WriteCache::Volatile));
    assert_eq!(rig.ops(), [Op::Flush]);
    // The flush in the device, which is for the change of the write cache, does not cover this write.
    rig.write(1, 0, 0, BLOCK, 7);
    rig.event(|volumes| volumes.draining = Some(9));
    let at = rig.ops().iter().position(|&op| op == Op::Flush).unwrap();
    rig.complete(at, Ok(()));
    assert!(rig.drained.is_none(), "an earlier flush was taken for the drain's");
    assert_eq!(rig.ops(), [WRITE]);
    rig.complete(0, Ok(()));
    assert!(rig.drained.is_none());
    assert_eq!(rig.ops(), [Op::Flush]);
    rig.complete(0, Ok(()));
    assert_eq!(rig.drained, Some((9, vec![])));
    assert!(rig.is_done(8));
    assert_eq!(rig.medium[0], 7);
}

#[test]
fn a_volume_is_closed_while_what_was_left_unflushed_is_flushed() {
    let mut rig = with_unflushed_neighbour();
    rig.command(|volumes| volumes.close_volume(9, VolumeId(1), false));
    rig.complete_all();
    rig.close(OTHER);
    rig.complete_all();
    assert!(rig.is_done(9));
}

#[test]
fn a_flush_in_the_device_when_anothers_fails_is_repeated_after_a_rewrite() {
    let mut rig = with_neighbour();
    neighbour_wrote(&mut rig);
    rig.ask_as(OTHER, 3, command::FLUSH, 0, 0, 0);
    rig.ask(2, command::FLUSH, 0, 0, 0);
    assert_eq!(rig.ops(), [Op::Flush, Op::Flush]);
    rig.complete(1, BAD);
    let flush = rig.ops().iter().position(|&op| op == Op::Flush).unwrap();
    rig.complete(flush, Ok(()));
    assert_eq!((rig.answer(2), rig.answer(3)), (FAILED, None), "the first one proves nothing");
    assert_eq!(rig.ops(), [WRITE]);
    rig.complete(0, Ok(()));
    assert_eq!((rig.answer(3), rig.ops()), (None, vec![Op::Flush]));
    rig.complete(0, Ok(()));
    assert_eq!(rig.answer(3), Some(0));
}

#[test]
fn a_flush_in_the_queue_when_anothers_fails_is_repeated_after_a_rewrite() {
    let mut rig = with_neighbour();
    neighbour_wrote(&mut rig);
    let settings = policy::Settings { depth: 1, ..*rig.volumes.route.disk.settings() };
    rig.event(|volumes| volumes.set_policy(settings));
    rig.ask(2, command::FLUSH, 0, 0, 0);
    rig.ask_as(OTHER, 3, command::FLUSH, 0, 0, 0);
    assert_eq!(rig.ops(), [Op::Flush], "the other one waits for it");
    rig.complete(0, BAD);
    let mut ops = Vec::new();
    while rig.answer(3).is_none() {
        ops.push(rig.ops()[0]);
        rig.complete(0, Ok(()));
    }
    assert_eq!(ops[ops.len() - 2..], [WRITE, Op::Flush]);
}

#[test]
fn writes_in_the_device_when_a_flush_fails_are_repeated() {
    let mut rig = with_neighbour();
    rig.write_as(OTHER, 1, flag::FUA, 100 * BLOCK, BLOCK, 7);
    rig.ask_as(OTHER, 4, command::WRITE_ZEROES, 0, 1 << 20, 1 << 20);
    rig.ask(2, command::FLUSH, 0, 0, 0);
    assert_eq!(rig.ops(), [DURABLE, Op::Zero, Op::Flush]);
    rig.complete(2, BAD);
    rig.complete(0, Ok(()));
    rig.complete(0, Ok(()));
    assert_eq!((rig.answer(1), rig.answer(4), rig.ops()), (None, None, vec![DURABLE, Op::Zero]));
    rig.complete_all();
    assert_eq!((rig.answer(1), rig.answer(4)), (Some(0), Some(0)));
}

#[test]
fn requests_that_always_meet_failures_of_others_fail_in_the_end() {
    let mut rig = with_neighbour();
    rig.write_as(OTHER, 1, flag::FUA, 100 * BLOCK, BLOCK, 7);
    let mut failures = 0;
    while rig.answer(1).is_none() {
        assert_eq!(rig.ops(), [DURABLE]);
        rig.ask(100 + failures, command::FLUSH, 0, 0, 0);
        rig.complete(1, BAD);
        rig.complete(0, Ok(()));
        failures += 1;
    }
    assert_eq!((rig.answer(1), failures), (FAILED, u64::from(DISTRUST_MAX) + 1));
}

#[test]
fn clear_keeps_what_is_known_of_other_blocks() {
    let mut rig = retrying();
    // Another block is on the device, evicted, and not covered by any flush.
    rig.write(3, 0, 100 * BLOCK, BLOCK, 8);
    let id = rig.volumes.cache.lookup(VOLUME, 100).unwrap();
    rig.volumes.write_out(id, false, false);
    rig.wait(0);
    rig.complete(1, Ok(()));
    rig.volumes.cache.drop_block(id);
    rig.clear(9, VOLUME);
    rig.complete(0, BAD);
    rig.ask(4, command::FLUSH, 0, 0, 0);
    rig.complete(0, BAD);
    rig.ask(5, command::FLUSH, 0, 0, 0);
    rig.complete_all();
    assert_eq!((rig.answer(4), rig.answer(5)), (FAILED, FAILED), "its content may be gone");
}

#[test]
fn clear_looks_at_a_large_cache_in_steps_that_its_tenant_pays_for() {
    let mut rig = retrying();
    rig.complete(0, BAD);
    for at in 0..crate::volume::rig::VOLUME_BYTES as u64 >> 20 {
        rig.ask(100 + at, command::READ, 0, at << 20, 1 << 20);
        rig.complete_all();
    }
    // The failed block is looked at last.
    let id = rig.volumes.cache.lookup(VOLUME, 0).unwrap();
    rig.volumes.cache.look_last(VOLUME, id);
    let (cached, mut looks) = (rig.volumes.cache.cached_blocks(VOLUME), 0);
    assert!(is_failing(&rig) && cached > 1000, "{cached}");
    (rig.lazy, rig.units_max) = (true, 0);
    rig.spent_ns.clear();
    rig.clear(9, VOLUME);
    while !rig.is_done(9) {
        assert!(is_failing(&rig) && rig.work_once(), "after {looks} steps");
        looks += 1;
    }
    assert!(!is_failing(&rig) && looks >= cached * u64::from(CLEAR_UNITS) / u64::from(crate::volume::STEP_UNITS) - 1);
    assert!(rig.units_max <= crate::volume::STEP_UNITS + 8, "{}", rig.units_max);
    assert!(rig.spent_ns[&TenantId(0)] >= cached * 100 * u64::from(CLEAR_UNITS), "{:?}", rig.spent_ns);
    assert_eq!(rig.content(0), 1, "what the device has");
}

#[test]
fn clear_gives_up_what_is_being_tried_again() {
    let mut rig = retrying();
    rig.clear(9, VOLUME);
    assert!(!is_failing(&rig) && !rig.is_done(9), "the attempt decides what the block is");
    rig.write(3, 0, BLOCK, BLOCK, 8);
    rig.ask(4, command::FLUSH, 0, 0, 0);
    rig.complete(0, BAD);
    assert!(rig.is_done(9) && !is_failing(&rig));
    rig.complete_all();
    assert_eq!(rig.answer(4), Some(0), "it covers nothing that is not on the medium");
    assert_eq!([rig.content(0), rig.content(BLOCK)], [1, 8]);
}

#[test]
fn what_is_below_a_block_given_up_is_lost_if_a_device_flush_fails_meanwhile() {
    let mut rig = retrying();
    rig.clear(9, VOLUME);
    rig.write(3, flag::FUA, 100 * BLOCK, BLOCK, 8);
    assert_eq!(rig.ops(), [WRITE, DURABLE]);
    rig.complete(1, BAD);
    rig.complete(0, BAD);
    assert!(rig.is_done(9));
    // Before the failure, the device had content of the block given up that no flush covered.
    rig.write(4, 0, 100 * BLOCK, BLOCK, 8);
    rig.ask(5, command::FLUSH, 0, 0, 0);
    rig.complete_all();
    assert_eq!(rig.answer(5), FAILED);
    rig.clear(10, VOLUME);
    rig.ask(6, command::FLUSH, 0, 0, 0);
    rig.complete_all();
    assert_eq!(rig.answer(6), Some(0));
}

#[test]
fn what_was_given_up_and_is_written_after_all_stays() {
    let mut rig = retrying();
    rig.clear(9, VOLUME);
    rig.complete(0, Ok(()));
    assert!(rig.is_done(9));
    assert_eq!(rig.content(0), 7);
}

#[test]
fn what_is_written_after_clear_is_not_given_up() {
    let mut rig = retrying();
    rig.clear(9, VOLUME);
    rig.write(3, 0, 0, 512, 9);
    rig.complete(0, BAD);
    assert!(rig.is_done(9));
    rig.ask(4, command::FLUSH, 0, 0, 0);
    rig.complete_all();
    assert_eq!(rig.answer(4), Some(0));
    assert!(rig.medium[..512].iter().all(|&byte| byte == 9), "the later write");
    assert!(rig.medium[512..8192].iter().all(|&byte| byte == 1), "what was given up");
    // A failure of the later write counts as a new one.
    rig.write(5, 0, 0, 512, 10);
    rig.ask(6, command::FLUSH, 0, 0, 0);
    rig.complete(0, BAD);
    assert!(is_failing(&rig));
}

#[test]
fn clear_does_not_make_a_durable_write_succeed() {
    let mut rig = retrying();
    rig.complete(0, BAD);
    rig.write(3, flag::FUA, 512, 512, 9);
    assert_eq!(rig.ops(), [Op::Write { durable: true }], "with what could not be written before");
    rig.clear(9, VOLUME);
    rig.complete(0, BAD);
    assert_eq!(rig.answer(3), FAILED);
    assert!(rig.is_done(9));
}

#[test]
fn clear_does_not_make_a_durable_write_succeed_that_is_not_in_the_device_yet() {
    let mut rig = retrying();
    rig.complete(0, BAD);
    // Its last sector is written in part, so its second block is read first.
    rig.write(3, flag::FUA, 512, BLOCK + 100, 9);
    assert_eq!(rig.ops(), [Op::Read]);
    rig.clear(9, VOLUME);
    rig.complete_all();
    assert_eq!((rig.answer(3), rig.medium[512]), (FAILED, 1));
    assert!(rig.is_done(9));
}

#[test]
fn what_durable_writes_overwrote_meanwhile_is_written_together() {
    let mut rig = Rig::new();
    for write in 0..2 {
        rig.write(write, flag::FUA, 0, 8 * BLOCK, 7 + write as u8);
    }
    assert_eq!(rig.ops(), [Op::Write { durable: true }]);
    rig.complete(0, Ok(()));
    assert_eq!((rig.device.len(), rig.io(0).len), (1, 8 * BLOCK), "one write, not one for each block");
    rig.complete_all();
    assert_eq!((rig.answer(0), rig.answer(1), rig.medium[0]), (Some(0), Some(0), 8));
}

#[test]
fn a_flush_that_waits_while_its_blocks_are_given_up_fails() {
    let mut rig = retrying();
    rig.ask(3, command::FLUSH, 0, 0, 0);
    rig.clear(9, VOLUME);
    rig.complete_all();
    assert_eq!(rig.answer(3), FAILED);
}

#[test]
fn a_flush_goes_ahead_of_its_owners_reads() {
    let mut rig = Rig::with(1, |_| {});
    for block in [0, 10] {
        rig.write(block, 0, block * BLOCK, BLOCK, 7);
    }
    // One read is in the device and three wait. The write-back of one block is queued behind them.
    for read in 0..4 {
        rig.ask(100 + read, command::READ, 0, (100 + 10 * read) * BLOCK, BLOCK);
    }
    let id = rig.volumes.cache.lookup(VOLUME, 0).unwrap();
    rig.volumes.write_out(id, false, false);
    rig.ask(1, command::FLUSH, 0, 0, 0);
    let mut order = Vec::new();
    while !rig.device.is_empty() {
        order.push((rig.ops()[0], rig.io(0).offset / BLOCK));
        rig.complete(0, Ok(()));
    }
    let reads = [110, 120, 130].map(|block| (Op::Read, block));
    assert_eq!(order[..4], [(Op::Read, 100), (WRITE, 0), (WRITE, 10), (Op::Flush, 0)]);
    assert_eq!(order[4..], reads);
    assert_eq!(rig.answer(1), Some(0));
}

#[test]
fn a_durable_write_does_not_wait_behind_reads_for_an_ordinary_one() {
    let mut rig = Rig::with(1, |_| {});
    rig.write(1, 0, 0, BLOCK, 7);
    for read in 0..3 {
        rig.ask(100 + read, command::READ, 0, (100 + 10 * read) * BLOCK, BLOCK);
    }
    let id = rig.volumes.cache.lookup(VOLUME, 0).unwrap();
    rig.volumes.write_out(id, false, false);
    rig.write(2, flag::FUA, 0, BLOCK, 8);
    let mut ops = Vec::new();
    while rig.answer(2).is_none() {
        ops.extend(rig.ops());
        rig.complete(0, Ok(()));
    }
    assert_eq!(ops, [Op::Read, Op::Write { durable: false }, Op::Write { durable: true }]);
}
