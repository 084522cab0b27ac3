//! Sockets.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use super::*;
use crate::reactor::BUFFERS;

const CONN: ConnId = ConnId(2);

suite![
    bytes_arrive,
    bytes_that_were_there_before_count,
    no_more_than_is_wanted_arrives,
    segments_are_filled_in_order,
    a_part_of_a_payload_is_told_before_all_of_it_is_there,
    a_peer_that_vanishes_while_segments_are_filled,
    headers_and_frames_are_gathered,
    a_slow_reader_gets_everything,
    a_peer_that_vanishes_while_being_sent_to,
    a_half_closed_peer_still_gets_replies,
    tcp_works_the_same,
    closing_breaks_off_what_is_in_flight,
    closing_what_is_idle,
    what_is_left_tells_when_its_peer_has_ended,
    a_peer_sees_the_close,
    slots_are_used_again,
    buffers_run_out_and_come_back,
    closing_while_waiting_for_a_buffer,
    many_connections_at_once,
];

fn bytes_arrive<R: Reactor>(mut rig: Rig<R>) {
    let mut peer = rig.connect(CONN);
    for message in [&b"first"[..], b"second", &[7; 3000]] {
        rig.reactor.receive(CONN);
        rig.reactor.turn(Some(Duration::ZERO), &mut rig.done).unwrap();
        peer.write_all(message).unwrap();
        assert_eq!(rig.wait_received(CONN), message);
    }
}

fn bytes_that_were_there_before_count<R: Reactor>(mut rig: Rig<R>) {
    let (ours, mut peer) = UnixStream::pair().unwrap();
    peer.write_all(b"early").unwrap();
    rig.reactor.open_socket(CONN, ours.into()).unwrap();
    rig.reactor.receive(CONN);
    assert_eq!(rig.wait_received(CONN), b"early");
    drop(peer);
    rig.reactor.receive(CONN);
    rig.wait_for(|c| (*c == Completion::ReceiveEnded { conn: CONN }).then_some(()));
}

fn no_more_than_is_wanted_arrives<R: Reactor>(mut rig: Rig<R>) {
    let mut peer = rig.connect(CONN);
    peer.write_all(b"headpayload").unwrap();
    rig.reactor.receive_most(CONN, 4);
    assert_eq!(rig.wait_received(CONN), b"head");
    rig.reactor.receive_most(CONN, 100);
    assert_eq!(rig.wait_received(CONN), b"payload");
}

fn fill<R: Reactor>(rig: &mut Rig<R>, segments: &[Segment]) -> Option<u64> {
    rig.reactor.receive_into(CONN, segments.iter().copied());
    rig.wait_for(|c| match *c {
        Completion::Filled { conn: CONN, bytes } => Some(Some(bytes)),
        Completion::ReceiveEnded { conn: CONN } => Some(None),
        _ => None,
    })
}

fn a_part_of_a_payload_is_told_before_all_of_it_is_there<R: Reactor>(mut rig: Rig<R>) {
    // The peer of a slow network has sent half of a piece, and the rest is still to come.
    let mut peer = rig.connect(CONN);
    let segments: Vec<_> = (1..=64).map(|frame| Segment::new(FrameId(frame), 0, 4096)).collect();
    rig.reactor.receive_into(CONN, segments.iter().copied());
    rig.reactor.turn(Some(Duration::from_millis(1)), &mut rig.done).unwrap();
    let sender = std::thread::spawn(move || {
        peer.write_all(&[7; 128 << 10]).unwrap();
        peer
    });
    let told = rig.wait_for(|c| match *c {
        Completion::Filled { conn: CONN, bytes } => Some(bytes),
        _ => None,
    });
    assert!((1..=128 << 10).contains(&told), "{told}");
    drop(sender.join().unwrap());
}

/// What remains of `segments` after `bytes`.
fn rest(segments: &[Segment], mut bytes: u64) -> Vec<Segment> {
    let mut rest = Vec::new();
    for &segment in segments {
        let skipped = bytes.min(u64::from(segment.len));
        bytes -= skipped;
        if skipped < u64::from(segment.len) {
            let start = u64::from(segment.start);
            rest.push(Segment::new(segment.frame, start + skipped, start + u64::from(segment.len)));
        }
    }
    rest
}

fn segments_are_filled_in_order<R: Reactor>(mut rig: Rig<R>) {
    let mut peer = rig.connect(CONN);
    let segments = [Segment::new(FrameId(5), 100, 4096), Segment::whole(FrameId(9)), Segment::whole(FrameId(10))];
    let bytes: Vec<u8> = (0..3).flat_map(painted).take(3996 + 8192).collect();
    let sent = bytes.clone();
    let sender = std::thread::spawn(move || {
        for part in sent.chunks(1000) {
            peer.write_all(part).unwrap();
        }
        peer
    });
    let mut left = segments.to_vec();
    while !left.is_empty() {
        let filled = fill(&mut rig, &left).expect("the peer is there");
        left = rest(&left, filled);
    }
    assert!(rig.content(&segments) == bytes);
    sender.join().unwrap();
}

fn a_peer_that_vanishes_while_segments_are_filled<R: Reactor>(mut rig: Rig<R>) {
    let mut peer = rig.connect(CONN);
    peer.write_all(&painted(1)[..1500]).unwrap();
    drop(peer);
    let mut left = vec![Segment::whole(FrameId(5)), Segment::whole(FrameId(9))];
    let mut bytes = 0;
    while let Some(filled) = fill(&mut rig, &left) {
        left = rest(&left, filled);
        bytes += filled;
    }
    assert!(bytes <= 1500);
    rig.close(CONN);
}

/// Sends all parts in as many sends as needed. Returns the number of sends, or `None` if the peer disconnected.
fn send_all<R: Reactor>(rig: &mut Rig<R>, frames: &[u32]) -> Option<u32> {
    const HEADER: &[u8] = b"header of sixteen bytes";
    let per_frame = HEADER.len() as u64 + 4096;
    let total = frames.len() as u64 * per_frame;
    let (mut sent, mut sends) = (0, 0);
    while sent < total {
        let parts = frames.iter().skip((sent / per_frame) as usize).enumerate().flat_map(|(i, &number)| {
            let skip = if i == 0 { sent % per_frame } else { 0 } as usize;
            let header = &HEADER[skip.min(HEADER.len())..];
            let start = skip.saturating_sub(HEADER.len()) as u16;
            [Outgoing::Bytes(header), Outgoing::Frame { frame: FrameId(number), start, len: 4096 - start }]
        });
        rig.reactor.send(CONN, parts);
        sent += rig.wait_for(|c| match *c {
            Completion::Sent { conn: CONN, bytes } => Some(Some(bytes)),
            Completion::SendFailed { conn: CONN } => Some(None),
            _ => None,
        })?;
        sends += 1;
    }
    Some(sends)
}

fn expected(frames: &[u32]) -> Vec<u8> {
    frames.iter().flat_map(|&number| [b"header of sixteen bytes".to_vec(), painted(number)].concat()).collect()
}

fn headers_and_frames_are_gathered<R: Reactor>(mut rig: Rig<R>) {
    let mut peer = rig.connect(CONN);
    rig.paint(1..8);
    assert_eq!(send_all(&mut rig, &[3, 1, 7, 2]), Some(1), "this little fits at once");
    let mut bytes = vec![0; expected(&[3, 1, 7, 2]).len()];
    peer.read_exact(&mut bytes).unwrap();
    assert!(bytes == expected(&[3, 1, 7, 2]));
}

fn a_slow_reader_gets_everything<R: Reactor>(mut rig: Rig<R>) {
    let mut peer = rig.connect(CONN);
    rig.paint(1..1025);
    let frames: Vec<u32> = (1..1025).collect();
    let expected = expected(&frames);
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let mut part = [0; 777];
        while bytes.len() < expected.len() {
            let count = peer.read(&mut part).unwrap();
            assert!(count > 0, "the sender is there");
            bytes.extend_from_slice(&part[..count]);
        }
        assert!(bytes == expected);
    });
    assert!(send_all(&mut rig, &frames) > Some(3), "4 MiB do not fit into a socket");
    reader.join().unwrap();
}

fn a_peer_that_vanishes_while_being_sent_to<R: Reactor>(mut rig: Rig<R>) {
    let mut peer = rig.connect(CONN);
    let reader = std::thread::spawn(move || {
        peer.read_exact(&mut [0; 100_000]).unwrap();
    });
    assert_eq!(send_all(&mut rig, &(1..1025).collect::<Vec<_>>()), None);
    reader.join().unwrap();
    rig.close(CONN);
}

fn a_half_closed_peer_still_gets_replies<R: Reactor>(mut rig: Rig<R>) {
    let mut peer = rig.connect(CONN);
    peer.shutdown(Shutdown::Write).unwrap();
    rig.reactor.receive(CONN);
    rig.wait_for(|c| (*c == Completion::ReceiveEnded { conn: CONN }).then_some(()));
    rig.paint(1..2);
    assert_eq!(send_all(&mut rig, &[1]), Some(1));
    rig.close(CONN);
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).unwrap();
    assert!(bytes == expected(&[1]));
}

fn tcp_works_the_same<R: Reactor>(mut rig: Rig<R>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    rig.reactor.open_socket(CONN, listener.accept().unwrap().0.into()).unwrap();
    rig.reactor.receive(CONN);
    peer.write_all(b"question").unwrap();
    assert_eq!(rig.wait_received(CONN), b"question");
    rig.paint(1..2);
    send_all(&mut rig, &[1]).unwrap();
    rig.reactor.receive(CONN);
    rig.reactor.turn(Some(Duration::ZERO), &mut rig.done).unwrap();
    rig.close(CONN);
    let mut bytes = Vec::new();
    peer.read_to_end(&mut bytes).unwrap();
    assert!(bytes == expected(&[1]));
}

/// Fills the socket until a send stays in flight.
fn fill_socket<R: Reactor>(rig: &mut Rig<R>) {
    let zeros = |count| (0..count).map(|_| Outgoing::Frame { frame: FrameId(1), start: 0, len: 4096 });
    loop {
        rig.reactor.send(CONN, zeros(256));
        rig.reactor.turn(Some(Duration::ZERO), &mut rig.done).unwrap();
        rig.reactor.turn(Some(Duration::ZERO), &mut rig.done).unwrap();
        if rig.done.is_empty() {
            break;
        }
        rig.done.clear();
    }
}

fn closing_breaks_off_what_is_in_flight<R: Reactor>(mut rig: Rig<R>) {
    let peer = rig.connect(CONN);
    rig.reactor.receive(CONN);
    fill_socket(&mut rig);
    rig.reactor.close_socket(CONN);
    rig.wait_for(|c| (*c == Completion::Closed { conn: CONN }).then_some(()));
    rig.reactor.turn(Some(Duration::ZERO), &mut rig.done).unwrap();
    assert_eq!(rig.done, [], "nothing after the close");
    drop(peer);
}

fn what_is_left_tells_when_its_peer_has_ended<R: Reactor>(mut rig: Rig<R>) {
    for is_idle in [false, true] {
        let (ours, mut peer) = UnixStream::pair().unwrap();
        let mut copy = ours.try_clone().unwrap();
        copy.set_nonblocking(true).unwrap();
        rig.reactor.open_socket(CONN, ours.into()).unwrap();
        if !is_idle {
            rig.reactor.receive(CONN);
            fill_socket(&mut rig);
        }
        rig.reactor.leave_socket(CONN);
        rig.wait_for(|c| (*c == Completion::Closed { conn: CONN }).then_some(()));
        let unended = copy.read(&mut [0]).unwrap_err();
        assert_eq!(unended.kind(), std::io::ErrorKind::WouldBlock, "the peer has not ended it");
        peer.read_to_end(&mut Vec::new()).unwrap();
        peer.write_all(b"last").unwrap();
        assert_eq!(copy.read(&mut [0; 8]).unwrap(), 4);
        drop(peer);
        assert_eq!(copy.read(&mut [0]).unwrap(), 0);
        rig.reactor.turn(Some(Duration::ZERO), &mut rig.done).unwrap();
        assert_eq!(rig.done, [], "nothing after the close");
    }
}

fn closing_what_is_idle<R: Reactor>(mut rig: Rig<R>) {
    let _peer = rig.connect(CONN);
    rig.close(CONN);
}

fn a_peer_sees_the_close<R: Reactor>(mut rig: Rig<R>) {
    let mut peer = rig.connect(CONN);
    rig.reactor.receive(CONN);
    rig.close(CONN);
    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
}

fn slots_are_used_again<R: Reactor>(mut rig: Rig<R>) {
    for round in 0..50u8 {
        let mut peer = rig.connect(CONN);
        rig.reactor.receive(CONN);
        peer.write_all(&[round]).unwrap();
        assert_eq!(rig.wait_received(CONN), [round]);
        if round % 2 == 0 {
            rig.reactor.receive(CONN);
            peer.write_all(b"never read").unwrap();
        }
        rig.close(CONN);
        assert!(rig.done.is_empty());
    }
}

fn buffers_run_out_and_come_back<R: Reactor>(mut rig: Rig<R>) {
    let count = BUFFERS as u32 + 10;
    let peers: Vec<_> = (0..count).map(|number| rig.connect(ConnId(number))).collect();
    for (number, mut peer) in peers.iter().enumerate() {
        peer.write_all(&[number as u8]).unwrap();
        rig.reactor.receive(ConnId(number as u32));
    }
    let received = |c: &Completion| match *c {
        Completion::Received { conn, buffer, .. } => Some((conn, buffer)),
        _ => None,
    };
    let held: Vec<_> = (0..BUFFERS).map(|_| rig.wait_for(received)).collect();
    for _ in 0..3 {
        rig.reactor.turn(Some(Duration::ZERO), &mut rig.done).unwrap();
    }
    assert!(rig.done.is_empty(), "no buffer, no bytes");
    let mut seen: Vec<_> = held.iter().map(|&(conn, _)| conn).collect();
    for (conn, buffer) in held {
        assert_eq!(rig.reactor.buffer(buffer)[0], conn.0 as u8);
        rig.reactor.release(buffer);
    }
    for _ in 0..10 {
        let (conn, buffer) = rig.wait_for(received);
        assert_eq!(rig.reactor.buffer(buffer)[0], conn.0 as u8);
        rig.reactor.release(buffer);
        seen.push(conn);
    }
    seen.sort();
    assert_eq!(seen, (0..count).map(ConnId).collect::<Vec<_>>());
}

fn closing_while_waiting_for_a_buffer<R: Reactor>(mut rig: Rig<R>) {
    let count = BUFFERS as u32 + 1;
    let peers: Vec<_> = (0..count).map(|number| rig.connect(ConnId(number))).collect();
    for (number, mut peer) in peers.iter().enumerate() {
        peer.write_all(b"x").unwrap();
        rig.reactor.receive(ConnId(number as u32));
    }
    let mut starved: Vec<_> = (0..count).collect();
    let mut held = Vec::new();
    for _ in 0..BUFFERS {
        let (conn, buffer) = rig.wait_for(|c| match *c {
            Completion::Received { conn, buffer, .. } => Some((conn, buffer)),
            _ => None,
        });
        starved.retain(|&number| number != conn.0);
        held.push(buffer);
    }
    rig.close(ConnId(starved[0]));
    for buffer in held {
        rig.reactor.release(buffer);
    }
    rig.reactor.turn(Some(Duration::ZERO), &mut rig.done).unwrap();
    assert_eq!(rig.done, []);
}

fn many_connections_at_once<R: Reactor>(mut rig: Rig<R>) {
    let mut peers: Vec<_> = (0..300).map(|number| rig.connect(ConnId(number))).collect();
    for round in 0..3u8 {
        for (number, peer) in peers.iter_mut().enumerate() {
            rig.reactor.receive(ConnId(number as u32));
            peer.write_all(&[round, number as u8]).unwrap();
        }
        let mut seen = [false; 300];
        for _ in 0..300 {
            let (conn, buffer) = rig.wait_for(|c| match *c {
                Completion::Received { conn, buffer, .. } => Some((conn, buffer)),
                _ => None,
            });
            assert_eq!(rig.reactor.buffer(buffer)[..2], [round, conn.0 as u8]);
            rig.reactor.release(buffer);
            assert!(!std::mem::replace(&mut seen[conn.0 as usize], true));
        }
    }
}
