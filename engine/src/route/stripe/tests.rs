use proptest::prelude::*;

use super::*;
use crate::Config;
use crate::disk::{Device, Io, Purpose, Segment};
use crate::errno::Errno;
use crate::ids::{FrameId, TenantId};
use crate::spec::UpstreamSpec;
use crate::units::SECTOR;

/// A sector of a leg, and what is written there: the place in a frame, or zeros.
type At = (u64, Option<(FrameId, u64)>);

const TENANT: TenantId = TenantId(0);
const VOLUME: VolumeId = VolumeId(4);
/// That of parts which are done.
const DONE: VolumeId = VolumeId(u32::MAX);
const WRITE: Op = Op::Write { durable: false };

/// The numbers of the legs: the volume's own, then others.
fn legs(count: usize) -> Vec<VolumeId> {
    (0..count).map(|at| VolumeId(if at == 0 { VOLUME.0 } else { 7 + at as u32 })).collect()
}

fn route(count: usize, unit: u64) -> Route {
    let settings = UpstreamSpec::plain(1 << 40);
    let mut route = Route::new(Device::new(Config::new(1 << 20).policy()));
    let upstreams = legs(count).into_iter().map(|leg| (leg, Upstream::new(0, settings.clone())));
    route.set_stripes(VOLUME, unit, upstreams.collect());
    route
}

/// Bytes `start..end` of the volume, in a frame of its own for each block that they touch.
fn transfer(route: &mut Route, op: Op, start: u64, end: u64) -> IoId {
    let io = route.prepare(op, VOLUME, TENANT, Purpose::Fill);
    route.slot_mut(io).io.offset = start;
    match op {
        Op::Read | Op::Write { .. } => {
            let mut at = start;
            while at < end {
                let past = end.min(at / BLOCK * BLOCK + BLOCK);
                let first = at % BLOCK;
                route.add_segment(io, Segment::new(FrameId((at / BLOCK) as u32), first, first + past - at));
                at = past;
            }
        }
        Op::Zero | Op::Punch | Op::Flush => route.slot_mut(io).io.len = end - start,
    }
    route.submit(0, io, false, 0);
    io
}

/// The parts of a transfer that are not done, by leg.
fn parts(route: &Route, io: IoId) -> Vec<(VolumeId, IoId)> {
    let of_leg = |&leg: &VolumeId| route.upstream(leg).unwrap().pending().map(move |part| (leg, part));
    let all = route.legs(VOLUME).iter().flat_map(of_leg);
    let is_part = |of: &(VolumeId, IoId)| {
        let slot = route.slot(of.1);
        (slot.parent, slot.io.volume) == (Some(io), of.0)
    };
    let mut parts: Vec<_> = all.filter(is_part).collect();
    // A number that was used before is named twice.
    parts.sort_unstable();
    parts.dedup();
    parts
}

fn done(route: &mut Route, io: IoId, result: Result<(), Errno>) -> Option<(IoId, Result<(), Errno>)> {
    let ended = route.done(0, 0, io, result).map(|(io, _, result)| (io, result));
    // The upstreams are not told, and still name it: nobody takes it for a part of a later transfer.
    route.slot_mut(io).io.volume = DONE;
    ended
}

/// A whole transfer succeeds.
fn complete(route: &mut Route, op: Op, start: u64, end: u64) {
    let io = transfer(route, op, start, end);
    let ended = parts(route, io).into_iter().filter_map(|(_, part)| done(route, part, Ok(()))).last();
    assert_eq!(ended, Some((io, Ok(()))));
    route.forget(io);
}

/// The legs that a flush goes to, each of which succeeds.
fn flushed_legs(route: &mut Route) -> Vec<VolumeId> {
    let flush = transfer(route, Op::Flush, 0, 0);
    let parts = parts(route, flush);
    parts.iter().for_each(|&(_, part)| _ = done(route, part, Ok(())));
    parts.into_iter().map(|(leg, _)| leg).collect()
}

/// Where a sector of the volume is, by counting units.
fn naive(sector: u64, count: usize, unit: u64) -> (usize, u64) {
    let (mut leg, mut row, mut left) = (0, 0, sector * SECTOR);
    while left >= unit {
        left -= unit;
        leg += 1;
        if leg == count {
            (leg, row) = (0, row + 1);
        }
    }
    (leg, row * unit + left)
}

proptest! {
    #[test]
    fn each_sector_is_where_a_naive_model_has_it(
        count in 2usize..6,
        unit_bits in 12u32..17,
        start in 0u64..2000,
        sectors in 1u64..600,
        op in prop::sample::select(vec![Op::Read, WRITE, Op::Write { durable: true }, Op::Zero, Op::Punch]),
    ) {
        let unit = 1 << unit_bits;
        let mut route = route(count, unit);
        let io = transfer(&mut route, op, start * SECTOR, (start + sectors) * SECTOR);
        let mut expected: Vec<Vec<At>> = vec![Vec::new(); count];
        for sector in start..start + sectors {
            let (leg, at) = naive(sector, count, unit);
            let frame = (FrameId((sector * SECTOR / BLOCK) as u32), sector * SECTOR % BLOCK);
            expected[leg].push((at, matches!(op, Op::Read | Op::Write { .. }).then_some(frame)));
        }
        let mut found: Vec<Vec<At>> = vec![Vec::new(); count];
        for (leg, part) in parts(&route, io) {
            let leg = route.legs(VOLUME).iter().position(|&of| of == leg).unwrap();
            let request = &route.slot(part).io;
            prop_assert_eq!(request.op, op);
            prop_assert!(found[leg].is_empty(), "one part for each leg");
            let sectors = (request.offset..request.offset + request.len).step_by(SECTOR as usize);
            if request.segments.is_empty() {
                found[leg] = sectors.map(|at| (at, None)).collect();
                continue;
            }
            let frames = request.segments.iter().flat_map(|segment| {
                let from = u64::from(segment.start);
                let all = (from..from + u64::from(segment.len)).step_by(SECTOR as usize);
                all.map(|at| (segment.frame, at))
            });
            found[leg] = sectors.zip(frames.clone().map(Some)).collect();
            prop_assert_eq!(frames.count() as u64 * SECTOR, request.len);
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn what_a_leg_has_before_a_byte_is_what_a_naive_model_counts(
        count in 2usize..65,
        unit_bits in 12u32..25,
        sectors in 0u64..4000,
        leg in 0usize..64,
    ) {
        let (unit, leg) = (1 << unit_bits, leg % count);
        let stripes = Stripes { unit, legs: legs(count), unflushed_bytes: 0, barrier: None, on_way: 0 };
        let counted = (0..sectors).filter(|&sector| naive(sector, count, unit).0 == leg).count() as u64;
        prop_assert_eq!(stripes.before(leg, sectors * SECTOR), counted * SECTOR);
    }
}

#[test]
fn a_range_of_an_exbibyte_is_divided_at_once() {
    let mut route = route(LEGS_MAX, BLOCK);
    let io = transfer(&mut route, Op::Punch, BLOCK, 1 << 60);
    let parts = parts(&route, io);
    assert_eq!(parts.len(), LEGS_MAX);
    let each = (1 << 60) / LEGS_MAX as u64;
    let range = |at: usize| (route.slot(parts[at].1).io.offset, route.slot(parts[at].1).io.len);
    assert_eq!((range(0), range(1), range(63)), ((BLOCK, each - BLOCK), (0, each), (0, each)));
}

#[test]
fn a_transfer_is_done_with_its_last_part_and_an_error_of_one_is_its_error() {
    for (failing, expected) in [(None, Ok(())), (Some(0), Err(Errno::NoSpace)), (Some(1), Err(Errno::NoSpace))] {
        let mut route = route(2, 4 * BLOCK);
        let io = transfer(&mut route, WRITE, 3 * BLOCK, 5 * BLOCK);
        let parts = parts(&route, io);
        let result = |at| if failing == Some(at) { Err(Errno::NoSpace) } else { Ok(()) };
        assert_eq!(done(&mut route, parts[0].1, result(0)), None);
        assert_eq!(done(&mut route, parts[1].1, result(1)), Some((io, expected)));
    }
}

#[test]
fn a_flush_goes_to_the_legs_that_were_written_to_since_their_last_good_one() {
    let mut route = route(3, BLOCK);
    let [first, second, third] = [0, 1, 2].map(|at| legs(3)[at]);
    assert_eq!(flushed_legs(&mut route), [first, second, third], "what an earlier process wrote");
    assert_eq!(flushed_legs(&mut route), [], "nothing was written");
    assert!(matches!(route.poll_upstream(0), Some((VOLUME, Action::Done(_, Ok(()))))), "it is complete all the same");
    complete(&mut route, Op::Read, 0, 3 * BLOCK);
    complete(&mut route, Op::Write { durable: true }, 0, 3 * BLOCK);
    assert_eq!(flushed_legs(&mut route), []);
    complete(&mut route, WRITE, BLOCK, 2 * BLOCK);
    complete(&mut route, Op::Zero, 5 * BLOCK, 6 * BLOCK);
    assert_eq!(flushed_legs(&mut route), [second, third]);
}

#[test]
fn a_leg_whose_flush_failed_or_was_lost_is_flushed_again_and_one_that_is_written_meanwhile() {
    for is_void in [false, true] {
        let mut route = route(2, BLOCK);
        let flush = transfer(&mut route, Op::Flush, 0, 0);
        let [(first, good), (second, bad)] = parts(&route, flush)[..] else { panic!("two parts") };
        // For the machine of the leg too, what it answers after a flush has begun is not covered.
        complete(&mut route, WRITE, 0, BLOCK);
        assert_eq!(done(&mut route, good, Ok(())), None);
        if is_void {
            route.session_lost(second, 1);
            assert!(route.part_is_void(bad));
            assert_eq!(done(&mut route, bad, Ok(())), Some((flush, Ok(()))));
        } else {
            assert_eq!(done(&mut route, bad, Err(Errno::Io)), Some((flush, Err(Errno::Io))));
        }
        assert_eq!(route.is_void(flush), is_void);
        assert_eq!(flushed_legs(&mut route), [first, second]);
    }
}

#[test]
fn a_flush_is_void_if_a_leg_that_has_answered_it_loses_its_session() {
    let mut route = route(2, BLOCK);
    let flush = transfer(&mut route, Op::Flush, 0, 0);
    let [(first, one), (_, other)] = parts(&route, flush)[..] else { panic!("two parts") };
    assert_eq!(done(&mut route, one, Ok(())), None);
    route.session_lost(first, 1);
    assert_eq!(done(&mut route, other, Ok(())), Some((flush, Ok(()))));
    assert!(route.is_void(flush));
}

#[test]
fn a_write_is_distrusted_if_a_leg_was_lost_that_had_answered_and_only_then() {
    let durable = Op::Write { durable: true };
    // The leg that answers first, the one that is lost then, and the failures that the write has seen in the end.
    for (op, answers, lost, seen) in [(WRITE, 0, 0, 4), (WRITE, 0, 1, 5), (WRITE, 1, 1, 4), (durable, 0, 0, 5)] {
        let mut route = route(2, BLOCK);
        let io = route.prepare(op, VOLUME, TENANT, Purpose::WriteBack);
        (0..2).for_each(|block| route.add_segment(io, Segment::whole(FrameId(block))));
        route.submit(0, io, false, 4);
        let parts = parts(&route, io);
        assert_eq!(done(&mut route, parts[answers].1, Ok(())), None);
        route.session_lost(legs(2)[lost], 5);
        assert_eq!(done(&mut route, parts[1 - answers].1, Ok(())), Some((io, Ok(()))));
        assert_eq!(route.slot(io).failures, seen, "{op:?}, {answers} answers, {lost} is lost");
    }
}

#[test]
fn what_was_distrusted_once_stays_so_when_another_leg_is_lost() {
    let mut route = route(3, BLOCK);
    let io = transfer(&mut route, WRITE, 0, 3 * BLOCK);
    let parts = parts(&route, io);
    done(&mut route, parts[0].1, Ok(()));
    route.session_lost(legs(3)[0], 1);
    route.session_lost(legs(3)[1], 2);
    done(&mut route, parts[1].1, Ok(()));
    assert_eq!(done(&mut route, parts[2].1, Ok(())), Some((io, Ok(()))));
    assert_eq!(route.slot(io).failures, 0);
}

#[test]
fn what_counts_as_unflushed_is_a_write_all_of_which_is_answered_after_the_flush_began() {
    let mut route = route(2, BLOCK);
    complete(&mut route, WRITE, SECTOR, 2 * BLOCK);
    assert!(route.wants_flush(VOLUME, 2 * BLOCK - 1) && !route.wants_flush(VOLUME, 2 * BLOCK), "whole blocks");
    let write = transfer(&mut route, WRITE, 2 * BLOCK, 4 * BLOCK);
    let [(first, one), (second, other)] = parts(&route, write)[..] else { panic!("two parts") };
    done(&mut route, one, Ok(()));
    // Its first part may be flushed with this one, but the owner keeps all of it.
    assert_eq!(flushed_legs(&mut route), [first, second]);
    done(&mut route, other, Ok(()));
    assert_eq!(route.stripes[VOLUME].unflushed_bytes, 2 * BLOCK);
    assert_eq!(flushed_legs(&mut route), [second]);
    assert_eq!(route.stripes[VOLUME].unflushed_bytes, 0);
}

#[test]
fn a_volume_is_reached_with_its_last_leg_and_its_numbers_are_free_when_it_is_dropped() {
    let mut route = route(3, BLOCK);
    let legs = legs(3);
    assert_eq!([1, 0, 1, 2].map(|at| route.reached(legs[at])), [false, false, false, true]);
    assert_eq!(route.volume_of(legs[2]), VOLUME);
    route.drop_upstreams(VOLUME);
    assert!(!route.is_striped(VOLUME) && !legs.iter().any(|&leg| route.has_upstream(leg)));
    assert_eq!(route.legs(VOLUME), []);
}

#[test]
fn a_division_allocates_nothing() {
    let mut route = route(2, BLOCK);
    let mut ids = Vec::with_capacity(8);
    let mut once = |route: &mut Route| {
        let io = transfer(route, Op::Read, BLOCK, 5 * BLOCK);
        ids.extend(route.legs(VOLUME).iter().filter_map(|&leg| route.upstream(leg)?.pending().last()));
        let Io { segments, .. } = &route.slot(ids[0]).io;
        assert_eq!(segments.len(), 2);
        let ended = ids.drain(..).filter_map(|part| done(route, part, Ok(()))).last();
        assert_eq!(ended, Some((io, Ok(()))));
        route.forget(io);
    };
    // Tables and buffers of the entries grow at first: the upstreams keep what they are given, and send nothing.
    (0..1025).for_each(|_| once(&mut route));
    let measured = allocation_counter::measure(|| once(&mut route));
    // Each of the two upstreams copies its segments into a new entry of its own.
    assert_eq!(measured.count_total, 2);
}
