//! Device requests.

use super::*;

suite![
    scattered_sectors_come_back,
    lists_longer_than_the_kernel_takes,
    durable_writes_and_flushes,
    zeroed_and_punched_ranges_read_zero,
    more_in_flight_than_the_ring_holds,
    a_file_that_may_not_be_written,
    the_end_of_the_file_is_an_error,
    a_short_read_is_completed_or_an_error,
    a_full_device,
    unaligned_direct_io,
    an_unknown_volume,
    a_volume_number_is_used_again,
    unsupported_operations,
];

fn scattered_sectors_come_back<R: Reactor>(mut rig: Rig<R>) {
    rig.reactor.open_volume(VolumeId(5), file(1 << 20)).unwrap();
    rig.paint(1..10);
    let source = vec![
        Segment::new(FrameId(1), 512, 1024),
        Segment::new(FrameId(4), 0, 4096),
        Segment::new(FrameId(5), 0, 2048),
        Segment::new(FrameId(9), 3584, 4096),
    ];
    let target = vec![Segment::new(FrameId(20), 1024, 4096), Segment::whole(FrameId(31))];
    assert_eq!(rig.perform(io(WRITE, 7 * 512, source.clone())), Ok(()));
    assert_eq!(rig.perform(io(Op::Read, 7 * 512, target.clone())), Ok(()));
    assert_eq!(rig.content(&target), rig.content(&source)[..3072 + 4096]);
    // Frame 0 holds zeros. A request of a single segment takes another code path.
    assert_eq!(rig.perform(io(WRITE, 7 * 512, vec![Segment::new(FrameId::ZERO, 0, 512)])), Ok(()));
    assert_eq!(rig.perform(io(Op::Read, 7 * 512, vec![Segment::new(FrameId(50), 512, 1024)])), Ok(()));
    assert_eq!(rig.content(&[Segment::new(FrameId(50), 512, 1024)]), [0; 512]);
}

fn lists_longer_than_the_kernel_takes<R: Reactor>(mut rig: Rig<R>) {
    rig.reactor.open_volume(VolumeId(5), file(8 << 20)).unwrap();
    rig.paint((1..3000).step_by(2));
    let source: Vec<_> = (1..3000).step_by(2).map(|number| Segment::whole(FrameId(number))).collect();
    let target: Vec<_> = (2..3002).step_by(2).rev().map(|number| Segment::whole(FrameId(number))).collect();
    assert_eq!(rig.perform(io(WRITE, 4096, source.clone())), Ok(()));
    assert_eq!(rig.perform(io(Op::Read, 4096, target.clone())), Ok(()));
    assert!(rig.content(&target) == rig.content(&source));
}

fn durable_writes_and_flushes<R: Reactor>(mut rig: Rig<R>) {
    rig.reactor.open_volume(VolumeId(5), file(1 << 20)).unwrap();
    rig.paint(1..4);
    let (one, two) = (vec![Segment::whole(FrameId(1))], vec![Segment::whole(FrameId(1)), Segment::whole(FrameId(3))]);
    assert_eq!(rig.perform(io(Op::Write { durable: true }, 0, one)), Ok(()));
    assert_eq!(rig.perform(io(Op::Write { durable: true }, 8192, two)), Ok(()));
    assert_eq!(rig.perform(plain(Op::Flush, 0, 0)), Ok(()));
    assert_eq!(rig.perform(io(Op::Read, 12288, vec![Segment::whole(FrameId(9))])), Ok(()));
    assert_eq!(rig.content(&[Segment::whole(FrameId(9))]), painted(3));
}

fn zeroed_and_punched_ranges_read_zero<R: Reactor>(mut rig: Rig<R>) {
    let file = file(1 << 20);
    rig.reactor.open_volume(VolumeId(5), file.try_clone().unwrap()).unwrap();
    rig.paint(1..5);
    for op in [Op::Zero, Op::Punch] {
        let whole: Vec<_> = (1..5).map(|number| Segment::whole(FrameId(number))).collect();
        assert_eq!(rig.perform(io(WRITE, 0, whole.clone())), Ok(()));
        assert_eq!(rig.perform(plain(op, 4096, 8192)), Ok(()));
        let target: Vec<_> = (11..15).map(|number| Segment::whole(FrameId(number))).collect();
        assert_eq!(rig.perform(io(Op::Read, 0, target.clone())), Ok(()));
        let expected = [painted(1), vec![0; 8192], painted(4)].concat();
        assert!(rig.content(&target) == expected, "{op:?}");
        assert_eq!(rig.perform(plain(op, (1 << 20) - 4096, 1 << 20)), Ok(()), "past the end");
        assert_eq!(file.metadata().unwrap().len(), 1 << 20, "the size stays");
    }
}

fn more_in_flight_than_the_ring_holds<R: Reactor>(mut rig: Rig<R>) {
    const REQUESTS: u32 = 1500;
    rig.reactor.open_volume(VolumeId(5), file(u64::from(REQUESTS) * 4096)).unwrap();
    rig.paint(1..REQUESTS + 1);
    for (op, shift) in [(WRITE, 0), (Op::Read, REQUESTS)] {
        for number in 0..REQUESTS {
            let segment = Segment::whole(FrameId(1 + shift + number));
            rig.reactor.submit(IoId(number), &io(op, u64::from(number) * 4096, vec![segment]));
        }
        for number in 0..REQUESTS {
            let result = rig.wait_for(|c| match *c {
                Completion::Io { io, result } if io == IoId(number) => Some(result),
                _ => None,
            });
            assert_eq!(result, Ok(()));
        }
        assert!(rig.done.is_empty(), "each completes once");
    }
    for number in [1, 77, REQUESTS] {
        assert!(rig.content(&[Segment::whole(FrameId(REQUESTS + number))]) == painted(number));
    }
}

fn a_file_that_may_not_be_written<R: Reactor>(mut rig: Rig<R>) {
    rig.reactor.open_volume(VolumeId(5), File::open("/proc/self/exe").unwrap()).unwrap();
    assert_eq!(rig.perform(io(WRITE, 0, vec![Segment::whole(FrameId(1))])), Err(Errno::Io));
    assert_eq!(rig.perform(io(Op::Read, 0, vec![Segment::whole(FrameId(1))])), Ok(()));
    assert_eq!(rig.content(&[Segment::new(FrameId(1), 0, 4)]), b"\x7fELF");
}

fn the_end_of_the_file_is_an_error<R: Reactor>(mut rig: Rig<R>) {
    rig.reactor.open_volume(VolumeId(5), file(8192)).unwrap();
    assert_eq!(rig.perform(io(Op::Read, 8192, vec![Segment::whole(FrameId(1))])), Err(Errno::Io));
    assert_eq!(rig.perform(io(Op::Read, 4096, vec![Segment::whole(FrameId(1))])), Ok(()));
}

fn a_short_read_is_completed_or_an_error<R: Reactor>(mut rig: Rig<R>) {
    rig.reactor.open_volume(VolumeId(5), file(8192)).unwrap();
    let segments = vec![Segment::whole(FrameId(1)), Segment::whole(FrameId(3))];
    assert_eq!(rig.perform(io(Op::Read, 4096, segments)), Err(Errno::Io));
}

fn a_full_device<R: Reactor>(mut rig: Rig<R>) {
    rig.reactor.open_volume(VolumeId(5), OpenOptions::new().write(true).open("/dev/full").unwrap()).unwrap();
    assert_eq!(rig.perform(io(WRITE, 0, vec![Segment::whole(FrameId(1))])), Err(Errno::NoSpace));
    let two = vec![Segment::whole(FrameId(1)), Segment::whole(FrameId(3))];
    assert_eq!(rig.perform(io(WRITE, 0, two)), Err(Errno::NoSpace));
}

fn unaligned_direct_io<R: Reactor>(mut rig: Rig<R>) {
    rig.reactor.open_volume(VolumeId(5), file(8192)).unwrap();
    assert_eq!(rig.perform(io(WRITE, 0, vec![Segment::whole(FrameId(1)), Segment::whole(FrameId(2))])), Ok(()));
    assert_eq!(rig.perform(io(WRITE, 100, vec![Segment::new(FrameId(1), 0, 512)])), Err(Errno::Io));
    assert_eq!(rig.perform(io(Op::Read, 0, vec![Segment::new(FrameId(1), 1, 512)])), Err(Errno::Io));
}

fn an_unknown_volume<R: Reactor>(mut rig: Rig<R>) {
    assert_eq!(rig.perform(plain(Op::Flush, 0, 0)), Err(Errno::Io));
    rig.reactor.close_volume(VolumeId(5));
}

fn a_volume_number_is_used_again<R: Reactor>(mut rig: Rig<R>) {
    rig.paint(1..3);
    for number in 1..3 {
        rig.reactor.open_volume(VolumeId(5), file(4096)).unwrap();
        assert_eq!(rig.perform(io(WRITE, 0, vec![Segment::whole(FrameId(number))])), Ok(()));
        assert_eq!(rig.perform(io(Op::Read, 0, vec![Segment::whole(FrameId(9))])), Ok(()));
        assert_eq!(rig.content(&[Segment::whole(FrameId(9))]), painted(number));
        rig.reactor.close_volume(VolumeId(5));
        assert_eq!(rig.perform(plain(Op::Flush, 0, 0)), Err(Errno::Io));
    }
}

fn unsupported_operations<R: Reactor>(mut rig: Rig<R>) {
    // For a device that is no disk some kernels answer EOPNOTSUPP and others ENODEV. Neither is success.
    rig.reactor.open_volume(VolumeId(5), OpenOptions::new().write(true).open("/dev/null").unwrap()).unwrap();
    let result = rig.perform(plain(Op::Punch, 0, 4096));
    assert!(matches!(result, Err(Errno::NotSupported | Errno::Io)), "{result:?}");
}
