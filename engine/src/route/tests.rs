use super::*;
use crate::Config;
use crate::disk::Io;
use crate::ids::FrameId;
use crate::units::BLOCK;

const TENANT: TenantId = TenantId(0);
const VOLUME: VolumeId = VolumeId(0);
const LOW: VolumeId = VolumeId(3);
const HIGH: VolumeId = VolumeId(7);
const READ: Purpose = Purpose::Fill;

/// The first two blocks and a half of the volume are in `LOW`, from its start, the others in `HIGH`, from 1 MiB.
fn route() -> Route {
    let mut route = Route::new(Device::new(Config::new(1 << 20).policy()));
    route.disk.set_tenant(0, TENANT, Some(crate::spec::Terms::default()));
    let half = 5 * BLOCK / 2;
    let places = [Place { end: half, file: LOW, from: 0 }, Place { end: u64::MAX, file: HIGH, from: 1 << 20 }].to_vec();
    route.set_places(VOLUME, places);
    route
}

/// Blocks `first..past` of a volume, in the frames of the same numbers.
fn transfer(route: &mut Route, op: Op, volume: VolumeId, first: u64, past: u64) -> IoId {
    let io = route.prepare(op, volume, TENANT, READ);
    route.slot_mut(io).io.offset = first * BLOCK;
    (first..past).for_each(|block| route.add_segment(io, Segment::whole(FrameId(block as u32))));
    route.submit(0, io, false, 0);
    io
}

fn in_device(route: &mut Route) -> Vec<IoId> {
    let mut submitted = Vec::new();
    route.dispatch(0, 0, &mut |io| submitted.push(io));
    submitted
}

fn done(route: &mut Route, io: IoId, result: Result<(), Errno>) -> Option<(IoId, Result<(), Errno>)> {
    route.done(0, 0, io, result).map(|(io, _, result)| (io, result))
}

/// File, first byte and length.
fn range(route: &Route, io: IoId) -> (VolumeId, u64, u64) {
    let Io { volume, offset, len, .. } = route.slot(io).io;
    (volume, offset, len)
}

#[test]
fn a_transfer_over_two_places_ends_with_its_last_part() {
    let mut route = route();
    let whole = transfer(&mut route, Op::Read, VOLUME, 1, 4);
    let parts = in_device(&mut route);
    assert_eq!(
        parts.iter().map(|&io| range(&route, io)).collect::<Vec<_>>(),
        [(LOW, BLOCK, 3 * BLOCK / 2), (HIGH, 1 << 20, 3 * BLOCK / 2)]
    );
    // The block in which the first place ends is in one frame: its halves come from two files.
    let segments: Vec<_> = parts.iter().flat_map(|&io| route.slot(io).io.segments.clone()).collect();
    let half = BLOCK / 2;
    assert_eq!(
        segments,
        [
            Segment::whole(FrameId(1)),
            Segment::new(FrameId(2), 0, half),
            Segment::new(FrameId(2), half, BLOCK),
            Segment::whole(FrameId(3))
        ]
    );
    assert_eq!(done(&mut route, parts[1], Ok(())), None);
    assert_eq!(done(&mut route, parts[0], Ok(())), Some((whole, Ok(()))));
    route.forget(whole);
    assert!(route.disk.is_idle());
}

#[test]
fn an_error_of_a_part_is_the_transfers() {
    for failing in [0, 1] {
        let mut route = route();
        let whole = transfer(&mut route, Op::Write { durable: false }, VOLUME, 0, 8);
        let parts = in_device(&mut route);
        let result = |at| if at == failing { Err(Errno::NoSpace) } else { Ok(()) };
        assert_eq!(done(&mut route, parts[0], result(0)), None);
        assert_eq!(done(&mut route, parts[1], result(1)), Some((whole, Err(Errno::NoSpace))));
    }
}

#[test]
fn a_transfer_within_a_place_and_a_volume_without_places_are_one_request() {
    let mut route = route();
    let inside = transfer(&mut route, Op::Read, VOLUME, 3, 4);
    let plain = transfer(&mut route, Op::Read, VolumeId(1), 3, 4);
    let parts = in_device(&mut route);
    assert_eq!(range(&route, parts[0]), (HIGH, (1 << 20) + BLOCK / 2, BLOCK));
    assert_eq!((parts[1], range(&route, parts[1])), (plain, (VolumeId(1), 3 * BLOCK, BLOCK)));
    assert_eq!(done(&mut route, parts[0], Ok(())), Some((inside, Ok(()))));
    assert_eq!(done(&mut route, plain, Err(Errno::Io)), Some((plain, Err(Errno::Io))));
}

#[test]
fn a_flush_goes_to_each_file_once_and_zeroes_to_their_part() {
    let mut route = route();
    let last = Place { end: u64::MAX, file: LOW, from: 1 << 30 };
    route.places[VOLUME][1].end = 8 * BLOCK;
    route.places[VOLUME].push(last);
    let flush = transfer(&mut route, Op::Flush, VOLUME, 0, 0);
    let parts = in_device(&mut route);
    assert_eq!(parts.iter().map(|&io| range(&route, io).0).collect::<Vec<_>>(), [LOW, HIGH]);
    assert_eq!(done(&mut route, parts[0], Ok(())), None);
    assert_eq!(done(&mut route, parts[1], Ok(())), Some((flush, Ok(()))));
    let zero = route.prepare(Op::Zero, VOLUME, TENANT, READ);
    (route.slot_mut(zero).io.offset, route.slot_mut(zero).io.len) = (0, 10 * BLOCK);
    route.submit(0, zero, false, 0);
    let parts = in_device(&mut route);
    let ranges: Vec<_> = parts.iter().map(|&io| range(&route, io)).collect();
    let half = 5 * BLOCK / 2;
    assert_eq!(ranges, [(LOW, 0, half), (HIGH, 1 << 20, 8 * BLOCK - half), (LOW, 1 << 30, 2 * BLOCK)]);
}

#[test]
fn a_transfer_is_distrusted_if_a_failure_came_after_its_first_part_was_submitted() {
    let mut route = route();
    let whole = transfer(&mut route, Op::Write { durable: false }, VOLUME, 0, 8);
    let mut parts = Vec::new();
    route.dispatch(0, u32::MAX, &mut |io| parts.push(io));
    // As if the second part had waited until the counter of failures had wrapped.
    route.slot_mut(parts[1]).failures = 0;
    assert_eq!(done(&mut route, parts[1], Ok(())), None);
    assert_eq!(done(&mut route, parts[0], Ok(())), Some((whole, Ok(()))));
    assert_eq!(route.slot(whole).failures, u32::MAX);
}

#[test]
fn urgent_writes_are_promoted_in_all_their_parts_and_parts_are_not_cancelled() {
    let mut route = Route { disk: Device::new(Config { device_depth: 1, ..Config::new(1 << 20) }.policy()), ..route() };
    route.disk.set_tenant(0, TENANT, Some(crate::spec::Terms::default()));
    let busy = transfer(&mut route, Op::Read, VolumeId(1), 0, 1);
    assert_eq!(in_device(&mut route), [busy]);
    let read = transfer(&mut route, Op::Read, VolumeId(1), 1, 2);
    let io = route.prepare(Op::Write { durable: false }, VOLUME, TENANT, Purpose::WriteBack);
    (0..8).for_each(|block| route.add_segment(io, Segment::whole(FrameId(block))));
    route.submit(0, io, false, 0);
    route.disk.promote_writes(TENANT, VOLUME);
    let mut dropped = Vec::new();
    route.disk.withdraw(0, TENANT, |slot| slot.purpose == Purpose::WriteBack, &mut dropped);
    assert_eq!(dropped, []);
    let mut order = Vec::new();
    let mut last = busy;
    for _ in 0..3 {
        done(&mut route, last, Ok(()));
        last = in_device(&mut route)[0];
        order.push(last);
    }
    assert_eq!((order[2], order.contains(&io)), (read, false), "both parts first");
}

#[test]
fn a_split_allocates_nothing() {
    let mut route = route();
    let mut parts = Vec::with_capacity(8);
    let mut once = |route: &mut Route| {
        let whole = transfer(route, Op::Read, VOLUME, 1, 4);
        route.dispatch(0, 0, &mut |io| parts.push(io));
        let ended = parts.drain(..).filter_map(|io| done(route, io, Ok(()))).last();
        assert_eq!(ended, Some((whole, Ok(()))));
        route.forget(whole);
    };
    // Buffers of the entries grow at first.
    (0..100).for_each(|_| once(&mut route));
    let measured = allocation_counter::measure(|| (0..100).for_each(|_| once(&mut route)));
    assert_eq!(measured.count_total, 0);
}
