//! The order in which the kernel gets requests. The device in these tests is the client's own socket, so the client
//! sees which came first.

use std::io::Read;
use std::os::unix::net::UnixStream;

use engine::ids::FrameId;

use super::*;
use crate::frames::Frames;

const CONN: ConnId = ConnId(0);
const VOLUME: VolumeId = VolumeId(0);
/// The frame that is written to the device; the others belong to a reply.
const WRITTEN: FrameId = FrameId(9);

/// Whether a device request that was submitted before a reply of `bytes` reaches the socket first. Both must arrive
/// whole.
fn the_device_is_first(bytes: u64) -> bool {
    let mut frames = Frames::new(16).unwrap();
    frames.put(Segment::whole(WRITTEN), &[1; 4096]);
    let mut uring = Uring::new(Options { device_depth: 8, connections_max: 1 }, frames.memory()).unwrap();
    let (ours, mut peer) = UnixStream::pair().unwrap();
    uring.open_volume(VOLUME, OwnedFd::from(ours.try_clone().unwrap()).into()).unwrap();
    uring.open_socket(CONN, ours.into()).unwrap();
    let op = Op::Write { durable: false };
    let segments = vec![Segment::new(WRITTEN, 0, 512)];
    uring.submit(IoId(0), &Io { op, volume: VOLUME, offset: 0, len: 512, segments, head: Vec::new() });
    let parts = (0..bytes.div_ceil(4096)).map(|i| Outgoing::Frame {
        frame: FrameId(1 + i as u32),
        start: 0,
        len: (bytes - i * 4096).min(4096) as u16,
    });
    uring.send(CONN, parts);
    let mut first = [0];
    peer.read_exact(&mut first).unwrap();
    let mut done = Vec::new();
    while !done.contains(&Completion::Io { io: IoId(0), result: Ok(()) }) {
        uring.turn(None, &mut done).unwrap();
    }
    assert!(done.contains(&Completion::Sent { conn: CONN, bytes }));
    let mut rest = vec![0; bytes as usize + 511];
    peer.read_exact(&mut rest).unwrap();
    assert_eq!(rest.iter().chain(&first).filter(|&&byte| byte == 1).count(), 512);
    first == [1]
}

#[test]
fn the_device_has_its_requests_before_a_large_reply_is_copied() {
    assert!(the_device_is_first(COPY_BYTES));
    assert!(!the_device_is_first(COPY_BYTES - 1), "the copy is shorter than the system call");
}
