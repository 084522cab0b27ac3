//! Requests from creation to completion.

use super::*;
use crate::cluster::Slot;
use crate::disk::policy::{Kind, Settings};
use crate::units::MILLISECOND;
use crate::units::Share;

const A: TenantId = TenantId(0);
const B: TenantId = TenantId(1);

fn settings(kind: Kind, depth: u32) -> Settings {
    Settings {
        kind,
        depth,
        insulation_permille: 900,
        switch_ns: 0,
        round_max_ns: SECOND,
        needs_slices: true,
        prices: policy::Prices::default(),
        stream_bytes_per_s: 100_000_000,
        seed: 0,
    }
}

fn device(kind: Kind, depth: u32) -> Device {
    let mut device = Device::new(settings(kind, depth));
    device.books().account(0);
    [A, B].into_iter().for_each(|tenant| device.set_tenant(0, tenant, Some(Share::from_ppb(500_000_000).into())));
    device
}

fn submit(device: &mut Device, now: Nanos, tenant: TenantId, urgent: bool) -> IoId {
    let io = device.prepare(Op::Write { durable: false }, VolumeId(tenant.0), tenant, Purpose::WriteBack);
    device.submit(now, io, urgent);
    io
}

/// The requests that go to the device now.
fn goes(device: &mut Device, now: Nanos) -> Vec<IoId> {
    let mut submitted = Vec::new();
    device.dispatch(now, 0, &mut |io| submitted.push(io));
    submitted
}

#[test]
fn what_waits_moves_to_another_policy_in_order() {
    let mut device = device(Kind::Insulated, 1);
    let first = submit(&mut device, 0, A, false);
    assert_eq!(goes(&mut device, 0), [first]);
    let late: Vec<_> =
        [(1, A), (2, B), (2, B), (3, A)].map(|(at, tenant)| submit(&mut device, at, tenant, false)).into();
    let urgent = submit(&mut device, 4, B, true);
    device.promote_writes(A, VolumeId(0));
    device.set_policy(5, settings(Kind::None, 8));
    // Urgent requests go first at the places of their tenants in the order of arrival. All of A's are urgent by
    // now.
    assert_eq!(goes(&mut device, 5), [late[0], urgent, late[1], late[3], late[2]]);
    assert_eq!(device.waiting(), 0);
}

#[test]
fn under_a_schedule_reads_go_by_the_numbers_of_their_client() {
    let slot = Slot { tenant: A, start_ns: 0, length_ns: SECOND, is_striped: true };
    let timetable = Timetable { version: 1, begins_ns: 0, round_ns: 2 * SECOND, slots: vec![slot] };
    for (follows, expected) in [(false, [0, 1, 2, 3]), (true, [2, 1, 0, 3])] {
        let mut device = device(Kind::Insulated, 1);
        device.set_timetable(0, follows.then(|| timetable.clone())).unwrap();
        let ios = [Some(30), Some(20), Some(10), None].map(|order| {
            let io = device.prepare(Op::Read, VolumeId(0), A, Purpose::Fill);
            device.slot_mut(io).order = order;
            device.submit(0, io, false);
            io
        });
        for (at, expected) in (0..).zip(expected) {
            let io = ios[expected];
            assert_eq!(goes(&mut device, at), [io], "follows: {follows}");
            device.done(at + 1, at + 1, io);
        }
    }
    // What waits is put in order when a schedule comes.
    let mut device = device(Kind::Insulated, 1);
    let ios = [3, 2, 1].map(|order| {
        let io = device.prepare(Op::Read, VolumeId(0), A, Purpose::Fill);
        device.slot_mut(io).order = Some(order);
        device.submit(0, io, false);
        io
    });
    device.set_timetable(0, Some(timetable)).unwrap();
    assert_eq!(goes(&mut device, 0), [ios[2]]);
}

#[test]
fn a_new_policy_is_not_told_of_what_an_earlier_one_began() {
    let mut device = device(Kind::None, 8);
    let old = [submit(&mut device, 0, A, false), submit(&mut device, 0, B, false)];
    assert_eq!(goes(&mut device, 0), old);
    device.set_policy(MILLISECOND, settings(Kind::Insulated, 8));
    let new = [submit(&mut device, MILLISECOND, A, false), submit(&mut device, MILLISECOND, B, false)];
    let begun = goes(&mut device, MILLISECOND);
    assert_eq!(begun.len(), 1, "the slice is one tenant's");
    for io in old {
        device.done(2 * MILLISECOND, 2 * MILLISECOND, io);
    }
    assert!(goes(&mut device, 2 * MILLISECOND).is_empty());
    assert_eq!(device.done(3 * MILLISECOND, 3 * MILLISECOND, begun[0]).device_ns, 2 * MILLISECOND);
    assert!(goes(&mut device, 3 * MILLISECOND).is_empty());
    let at = device.poll_timeout().expect("the slice is held for a while");
    let other = if begun[0] == new[0] { new[1] } else { new[0] };
    assert_eq!(goes(&mut device, at), [other]);
    assert_eq!(
        device.done(at + MILLISECOND, at + MILLISECOND, other).slice_ns,
        at - MILLISECOND,
        "the disk was another's"
    );
}

#[test]
fn reads_are_beside_writes_of_their_tenant_while_both_are_in_the_device() {
    let mut device = device(Kind::None, 8);
    let read = |device: &mut Device, now: Nanos, tenant: TenantId| {
        let io = device.prepare(Op::Read, VolumeId(tenant.0), tenant, Purpose::Fill);
        device.submit(now, io, false);
        goes(device, now);
        io
    };
    let done = |device: &mut Device, now: Nanos, io: IoId| device.done(now, now, io).beside_writes;
    let (before, of_other) = (read(&mut device, 0, A), read(&mut device, 0, B));
    let write = submit(&mut device, 1, A, false);
    goes(&mut device, 1);
    let during = read(&mut device, 2, A);
    assert!(!done(&mut device, 3, write));
    let after = read(&mut device, 4, A);
    let beside = [before, of_other, during, after].map(|io| done(&mut device, 5, io));
    assert_eq!(beside, [true, false, true, false]);
    let write = submit(&mut device, 6, A, false);
    goes(&mut device, 6);
    let read = read(&mut device, 7, A);
    assert!(done(&mut device, 8, read), "the write takes longer");
    assert!(!done(&mut device, 9, write));
}

#[test]
fn own_time_goes_slower_only_while_a_read_waits_for_another() {
    let mut device = device(Kind::Insulated, 1);
    let read = |device: &mut Device, now: Nanos, tenant: TenantId| {
        let io = device.prepare(Op::Read, VolumeId(tenant.0), tenant, Purpose::Fill);
        device.submit(now, io, false);
        io
    };
    let begun = read(&mut device, 0, A);
    assert_eq!(goes(&mut device, 0), [begun]);
    let waiting = [read(&mut device, 0, B), read(&mut device, 0, B)];
    submit(&mut device, 0, B, false);
    let at = 10 * SECOND;
    let [a, b] = [A, B].map(|tenant| device.virtual_time(at, tenant));
    assert_eq!(a, at);
    assert_eq!(b, at, "by the rate until then");
    let [a, b] = [A, B].map(|tenant| device.virtual_time(2 * at, tenant) - at);
    assert!(a == at && b < at / 2, "{a} {b}");
    // No read is queued any more: those that waited are cancelled, and the new policy submits the next one at once.
    device.withdraw(2 * at, B, |slot| slot.io.op == Op::Read && slot.io.offset == 0, &mut Vec::new());
    device.set_policy(2 * at, settings(Kind::None, 8));
    let other = read(&mut device, 2 * at, B);
    assert!(goes(&mut device, 2 * at).contains(&other) && !waiting.contains(&other));
    let before = (21..=80).map(|second| device.virtual_time(second * SECOND, B)).last().unwrap();
    assert!(device.virtual_time(81 * SECOND, B) - before > SECOND * 99 / 100);
}

#[test]
fn settings_of_the_same_policy_change_live() {
    for kind in [Kind::None, Kind::Insulated] {
        let mut device = device(kind, 1);
        let ios = [submit(&mut device, 0, A, false), submit(&mut device, 0, A, false)];
        assert_eq!(goes(&mut device, 0), ios[..1], "{kind:?}");
        device.set_policy(1, settings(kind, 2));
        assert_eq!(goes(&mut device, 1), ios[1..], "{kind:?}");
        for io in ios {
            device.done(2, 2, io);
        }
        assert!(device.is_idle());
    }
}

#[test]
fn the_books_of_time_go_on_under_another_policy() {
    let mut device = device(Kind::None, 8);
    let old = submit(&mut device, 0, A, false);
    goes(&mut device, 0);
    device.done(MILLISECOND, MILLISECOND, old);
    device.set_policy(2 * MILLISECOND, settings(Kind::Insulated, 8));
    let new = submit(&mut device, 2 * MILLISECOND, B, false);
    assert_eq!(goes(&mut device, 2 * MILLISECOND), [new]);
    device.done(5 * MILLISECOND, 5 * MILLISECOND, new);
    let owned = |time: DiskTime| time.tenant_ns + time.switch_ns;
    assert_eq!(owned(device.time(5 * MILLISECOND)), 4 * MILLISECOND);
    device.set_policy(5 * MILLISECOND, settings(Kind::None, 8));
    assert_eq!(owned(device.time(9 * MILLISECOND)), 4 * MILLISECOND);
}
