//! One upstream and a server that answers when a test says so.

mod demotions;
mod leases;
mod sessions;
mod worlds;

use std::collections::{BTreeMap, VecDeque};

use super::*;
use crate::disk::Op;
use crate::ids::FrameId;
use crate::nbd::wire::{LOAD_ID, command_flag as flag};
use crate::nbd::{Export, Exports, Form, Handshake, Head, Header, Kind, Of, Outcome, Parsed, parse};
use crate::units::{BLOCK, SECTOR};

const SIZE: u64 = 1 << 20;
const OURS: Option<u128> = Some(7);
const DEADLINE_NS: Nanos = 60 * SECOND;

fn close(link: LinkId, was_used: bool) -> Action {
    Action::Ask(Request::Close { link, was_used })
}

/// A connection at the server.
#[derive(Default)]
struct Session {
    handshake: Option<Handshake>,
    received: Vec<u8>,
    form: Form,
}

struct Rig {
    upstream: Upstream,
    now: Nanos,
    frames: BTreeMap<FrameId, Vec<u8>>,
    ios: u32,
    /// The export that the server offers; `flags` are taken away from it.
    export: Export,
    no_flags: u16,
    /// The server accepts connections and sends nothing.
    is_mute: bool,
    /// The server accepts this connection and sends nothing there.
    silent: Option<LinkId>,
    /// The server refuses this connection; or all, because another client was admitted.
    refused: Option<LinkId>,
    is_replaced: bool,
    /// The sessions that claims have continued.
    continued: Vec<Option<u64>>,
    sessions: BTreeMap<LinkId, Session>,
    content: Vec<u8>,
    /// Requests that the server has received and not answered: connection, header, payload.
    requests: VecDeque<(LinkId, Header, Vec<u8>)>,
    /// Actions other than those for bytes.
    news: Vec<Action>,
}

impl Rig {
    /// With a session.
    fn new(identity: Option<u128>, connections: u32) -> Rig {
        let mut rig = Rig::idle(identity, connections, 0);
        rig.tick(0);
        assert_eq!(rig.outstanding(), [(Kind::Flush, 0)], "of what an earlier process wrote");
        rig.answer(Kind::Flush);
        assert!(matches!(rig.news[..], [Action::Ask(Request::Online(_))]), "{:?}", rig.news);
        rig.news.clear();
        rig
    }

    fn idle(identity: Option<u128>, connections: u32, no_flags: u16) -> Rig {
        let settings = UpstreamSpec {
            name: "db".into(),
            size: SIZE,
            volume: None,
            client: "gateway".into(),
            epoch: 41,
            connections,
            window: 8,
            deadline_ns: DEADLINE_NS,
            unsafe_without_flush: false,
            tls: false,
            is_shared: false,
            is_leased: false,
            tiers: Tiers::Lru,
        };
        Rig {
            upstream: Upstream::new(0, settings),
            now: 0,
            frames: BTreeMap::new(),
            ios: 0,
            export: Export { name: "db".into(), size: SIZE, identity, ..Export::default() },
            no_flags,
            is_mute: false,
            silent: None,
            refused: None,
            is_replaced: false,
            continued: Vec::new(),
            sessions: BTreeMap::new(),
            content: vec![0; SIZE as usize],
            requests: VecDeque::new(),
            news: Vec::new(),
        }
    }

    fn handle(&mut self, event: Event<'_>) {
        self.upstream.handle(self.now, event);
        self.heed();
    }

    fn heed(&mut self) {
        while let Some(action) = self.upstream.poll_action() {
            match action {
                // In the test's output if it fails.
                Action::Ask(Request::Lost(why)) => println!("lost: {why}"),
                Action::Ask(Request::Open(link)) => {
                    let handshake = Some(Handshake::new());
                    self.sessions.insert(link, Session { handshake, ..Session::default() });
                    self.handle(Event::Connected(link));
                    if !self.is_mute && self.silent != Some(link) {
                        self.greet(link);
                    }
                }
                Action::Ask(Request::Send(link)) => self.send(link),
                Action::Zero(Segment { frame, start, len }) => {
                    let frame = self.frames.get_mut(&frame).unwrap();
                    frame[usize::from(start)..usize::from(start + len)].fill(0);
                }
                action => self.news.push(action),
            }
        }
    }

    /// Time passes.
    fn tick(&mut self, ns: Nanos) {
        self.now += ns;
        self.handle(Event::Timer);
    }

    /// The upstream's bytes reach the server.
    fn send(&mut self, link: LinkId) {
        let mut bytes = Vec::new();
        for part in self.upstream.outgoing(link) {
            match part {
                Outgoing::Bytes(part) => bytes.extend_from_slice(part),
                Outgoing::Frame { frame, start, len } => {
                    bytes.extend_from_slice(&self.frames[&frame][usize::from(start)..usize::from(start + len)]);
                }
            }
        }
        self.sessions.get_mut(&link).unwrap().received.extend_from_slice(&bytes);
        self.handle(Event::Sent(link, bytes.len() as u64));
        if self.sessions[&link].handshake.is_some() { self.greet(link) } else { self.take_requests(link) }
    }

    /// The server negotiates.
    fn greet(&mut self, link: LinkId) {
        let session = self.sessions.get_mut(&link).unwrap();
        let handshake = session.handshake.as_mut().unwrap();
        let exports = Exports { volumes: std::slice::from_ref(&self.export), shutting_down: false };
        let consumed = handshake.handle(&session.received, exports);
        session.received.drain(..consumed);
        let mut sent = Vec::new();
        if let Outcome::Transmission { session: agreed, .. } = handshake.outcome() {
            assert_eq!(
                handshake.claim().map(|claim| claim.epoch),
                self.export.identity.map(|_| self.upstream.stats().epoch)
            );
            self.continued.extend(handshake.claim().map(|claim| claim.after));
            if self.is_replaced || self.refused == Some(link) {
                match self.is_replaced {
                    true => handshake.refuse_continuation("another client was admitted"),
                    false => handshake.refuse("there are too many connections"),
                }
                let refusal = handshake.take_outgoing();
                return self.receive(link, &refusal);
            }
            sent = handshake.take_outgoing();
            (session.form, session.handshake) = (agreed.form, None);
            // The flags follow the size in the information about the export.
            let size = SIZE.to_be_bytes();
            if let Some(at) = sent.windows(8).position(|bytes| bytes == size) {
                let flags = u16::from_be_bytes([sent[at + 8], sent[at + 9]]) & !self.no_flags;
                sent[at + 8..at + 10].copy_from_slice(&flags.to_be_bytes());
            }
        }
        if let Some(handshake) = &mut self.sessions.get_mut(&link).unwrap().handshake {
            sent = handshake.take_outgoing();
        }
        if !sent.is_empty() {
            self.receive(link, &sent);
        }
    }

    fn take_requests(&mut self, link: LinkId) {
        let session = self.sessions.get_mut(&link).unwrap();
        loop {
            let bytes = session.form.request_bytes();
            let Some(header) = session.received.get(..bytes) else { return };
            let Parsed::Request(header) = parse(header) else { panic!("{header:?} is no request") };
            assert_eq!(header.check(SIZE, session.form), Ok(()));
            let end = bytes + header.payload as usize;
            let payload = session.received[bytes..end].to_vec();
            session.received.drain(..end);
            self.requests.push_back((link, header, payload));
        }
    }

    /// Bytes of the server reach the upstream.
    fn receive(&mut self, link: LinkId, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let mut at = 0;
            for Segment { frame, start, len } in self.upstream.data(link) {
                let part = usize::from(len).min(bytes.len() - at);
                let from = usize::from(start);
                self.frames.get_mut(&frame).unwrap()[from..from + part].copy_from_slice(&bytes[at..at + part]);
                at += part;
            }
            if at > 0 {
                self.handle(Event::Filled(link, at as u64));
            } else {
                self.upstream.handle(self.now, Event::Received(link, bytes));
                at = self.upstream.taken();
                self.handle(Event::Timer);
            }
            bytes = &bytes[at..];
        }
    }

    /// The server carries out the first request of a kind, and answers it.
    fn answer(&mut self, kind: Kind) {
        self.answer_with(kind, None);
    }

    fn answer_with(&mut self, kind: Kind, error: Option<Errno>) {
        let at = self.requests.iter().position(|(_, header, _)| header.kind == kind).expect("such a request");
        let (link, header, payload) = self.requests.remove(at).unwrap();
        let Header { cookie, offset, len, .. } = header;
        let of = Of { form: self.sessions[&link].form, cookie, offset };
        let range = offset as usize..(offset + len) as usize;
        let mut reply = Vec::new();
        match kind {
            _ if error.is_some() => {}
            Kind::Write => self.content[range].copy_from_slice(&payload),
            Kind::Zeroes => self.content[range].fill(0),
            Kind::Read => {
                // The second half first, and a hole.
                let (half, end) = (offset + len / 2, offset + len);
                reply.extend_from_slice(Head::data_chunk(of, false, half, end - half).bytes());
                reply.extend_from_slice(&self.content[half as usize..end as usize]);
                if self.content[offset as usize..half as usize].iter().all(|byte| *byte == 0) {
                    reply.extend_from_slice(Head::hole(of, false, offset, half - offset).bytes());
                } else {
                    reply.extend_from_slice(Head::data_chunk(of, false, offset, half - offset).bytes());
                    reply.extend_from_slice(&self.content[offset as usize..half as usize]);
                }
            }
            _ => {}
        }
        reply.extend_from_slice(Head::answer(of, kind == Kind::Read, error).bytes());
        self.receive(link, &reply);
    }

    /// Submits a request. Writes are full of `byte`.
    fn submit(&mut self, op: Op, offset: u64, len: u64, byte: u8) -> IoId {
        self.ios += 1;
        let mut segments = Vec::new();
        if matches!(op, Op::Read | Op::Write { .. }) {
            for at in (0..len).step_by(BLOCK as usize) {
                let frame = FrameId(self.ios * 100 + at as u32 / BLOCK as u32);
                self.frames.insert(frame, vec![byte; BLOCK as usize]);
                segments.push(Segment::new(frame, 0, BLOCK.min(len - at)));
            }
        }
        let (io, volume) = (IoId(self.ios), crate::ids::VolumeId(0));
        self.upstream.submit(
            self.now,
            io,
            u64::from(self.ios),
            &Io { op, volume, offset, len, segments, head: Vec::new() },
        );
        self.heed();
        io
    }

    fn write(&mut self, block: u64, byte: u8) -> IoId {
        self.submit(Op::Write { durable: false }, block * BLOCK, BLOCK, byte)
    }

    /// What the server has received and not answered, by place: kinds and first blocks.
    fn outstanding(&self) -> Vec<(Kind, u64)> {
        let mut all: Vec<_> = self.requests.iter().map(|(_, header, _)| (header.kind, header.offset / BLOCK)).collect();
        all.sort_by_key(|&(_, block)| block);
        all
    }

    /// The server dies, or the network does: all connections end.
    fn lose(&mut self) {
        self.requests.clear();
        for link in std::mem::take(&mut self.sessions).into_keys() {
            self.handle(Event::Closed(link));
            self.handle(Event::Ended(link));
        }
        self.news.retain(|news| !matches!(news, Action::Ask(Request::Close { .. })));
    }

    fn news(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.news)
    }
}

fn done(io: IoId) -> Action {
    Action::Done(io, Ok(()))
}

fn failed(io: IoId) -> Action {
    Action::Done(io, Err(Errno::Io))
}

#[test]
fn what_was_written_is_read() {
    for identity in [OURS, None] {
        let mut rig = Rig::new(identity, 3);
        let write = rig.submit(Op::Write { durable: true }, BLOCK, 3 * BLOCK, 9);
        assert_eq!(rig.requests[0].1.flags, flag::FUA);
        rig.answer(Kind::Write);
        let (read, holes) = (rig.submit(Op::Read, 0, 4 * BLOCK, 1), rig.submit(Op::Read, 8 * BLOCK, 2 * SECTOR, 1));
        rig.answer(Kind::Read);
        rig.answer(Kind::Read);
        assert_eq!(rig.news(), [done(write), done(read), done(holes)]);
        let first = |at: u32| rig.frames[&FrameId(read.0 * 100 + at)][0];
        assert_eq!([first(0), first(1), first(2), first(3)], [0, 9, 9, 9]);
        assert_eq!(rig.frames[&FrameId(holes.0 * 100)][..2 * SECTOR as usize], [0; 2 * SECTOR as usize]);
        let failed = rig.submit(Op::Zero, 0, BLOCK, 0);
        rig.answer_with(Kind::Zeroes, Some(Errno::NotSupported));
        assert_eq!(rig.news(), [Action::Done(failed, Err(Errno::NotSupported))]);
    }
}

#[test]
fn the_data_of_large_reads_is_received_into_its_frames_from_the_first_byte_on() {
    let (link, large) = (LinkId(0), 4 * BLOCK);
    let mut rig = Rig::new(OURS, 1);
    let head = |rig: &Rig| rig.upstream.head_bytes(link, large);
    assert_eq!(head(&rig), None, "nothing was read before");
    rig.submit(Op::Read, 0, 2 * BLOCK, 1);
    assert_eq!(head(&rig), None, "many short replies are received together");
    rig.submit(Op::Read, 8 * BLOCK, 8 * BLOCK, 1);
    assert_eq!(head(&rig), Some(40), "five blocks on average");
    rig.write(100, 3);
    assert_eq!(head(&rig), None, "less, with the reply to a write");
    rig.answer(Kind::Write);
    let of = Of { form: Form::Extended, cookie: rig.requests[1].1.cookie, offset: 8 * BLOCK };
    let reply = Head::data_chunk(of, true, 8 * BLOCK, 8 * BLOCK);
    let (first, rest) = reply.bytes().split_at(33);
    rig.receive(link, first);
    assert_eq!((head(&rig), rest.len()), (Some(7), 7));
    rig.receive(link, rest);
    assert_eq!(rig.upstream.data(link).map(|segment| u64::from(segment.len)).sum::<u64>(), 8 * BLOCK);
    rig.receive(link, &[5; 8 * BLOCK as usize]);
    rig.requests.remove(1);
    rig.answer(Kind::Read);
    assert_eq!((rig.news().len(), head(&rig)), (3, None), "the last request was a write");
    rig.submit(Op::Read, 8 * BLOCK, 8 * BLOCK, 1);
    rig.answer(Kind::Read);
    assert_eq!(head(&rig), Some(40), "one that is like the last one");
}

#[test]
fn overlapping_requests_are_not_outstanding_together_and_a_flush_follows_the_replies_that_it_covers() {
    let mut rig = Rig::new(OURS, 2);
    rig.write(0, 1);
    rig.write(0, 2);
    rig.write(5, 3);
    assert_eq!(rig.outstanding(), [(Kind::Write, 0)]);
    rig.answer(Kind::Write);
    assert_eq!(rig.outstanding(), [(Kind::Write, 0), (Kind::Write, 5)]);
    rig.submit(Op::Flush, 0, 0, 0);
    rig.answer(Kind::Write);
    assert!(matches!(rig.outstanding()[..], [(Kind::Write, _)]), "the flush waits for both");
    rig.answer(Kind::Write);
    assert_eq!(rig.outstanding(), [(Kind::Flush, 0)]);
    assert_eq!(rig.content[0], 2);
    rig.submit(Op::Read, 0, BLOCK, 0);
    rig.submit(Op::Read, 0, BLOCK, 0);
    assert_eq!(rig.outstanding().len(), 3, "reads may overlap");
}

#[test]
fn a_lost_session_is_a_failed_flush_and_the_next_one_begins_with_retained_zeros() {
    let mut rig = Rig::new(OURS, 2);
    rig.submit(Op::Zero, 0, 4 * BLOCK, 0);
    rig.answer(Kind::Zeroes);
    // An acknowledged write takes its range out.
    rig.write(1, 1);
    rig.answer(Kind::Write);
    let (first, second) = (rig.write(9, 2), rig.write(1, 3));
    let flush = rig.submit(Op::Flush, 0, 0, 0);
    rig.news();
    rig.lose();
    assert_eq!(rig.news(), [Action::Failed, Action::Void(flush)]);
    assert_eq!((rig.upstream.stats().unflushed_bytes, rig.upstream.stats().reconnects), (0, 1));
    let late = rig.write(20, 4);
    rig.tick(RETRY_NS);
    assert_eq!(rig.upstream.stats().epoch, 43);
    let mut zeros: Vec<_> = rig.requests.iter().map(|(_, header, _)| (header.offset, header.len)).collect();
    zeros.sort_unstable();
    assert_eq!(zeros, [(0, BLOCK), (2 * BLOCK, 2 * BLOCK)]);
    rig.answer(Kind::Zeroes);
    assert_eq!(rig.outstanding().len(), 1, "nothing else before all of them are answered");
    rig.answer(Kind::Zeroes);
    assert_eq!(rig.outstanding(), [(Kind::Write, 1), (Kind::Write, 9), (Kind::Write, 20)]);
    (0..3).for_each(|_| rig.answer(Kind::Write));
    let news = rig.news();
    assert!([first, second, late].iter().all(|&io| news.contains(&done(io))), "{news:?}");
    // Zeros stay retained until a flush.
    rig.lose();
    rig.tick(RETRY_NS);
    assert_eq!(rig.outstanding().len(), 2);
    rig.answer(Kind::Zeroes);
    rig.answer(Kind::Zeroes);
    rig.submit(Op::Flush, 0, 0, 0);
    rig.answer(Kind::Flush);
    rig.lose();
    rig.tick(RETRY_NS_MAX);
    assert_eq!(rig.outstanding(), []);
}

#[test]
fn a_strangers_server_must_have_ended_the_old_connections() {
    for (identity, reopens) in [(OURS, true), (None, false)] {
        let mut rig = Rig::new(identity, 2);
        // One on each connection.
        let writes = [rig.write(0, 1), rig.write(1, 1)];
        // One connection breaks, so all are closed.
        let links: Vec<_> = rig.sessions.keys().copied().collect();
        assert_eq!(links.len(), 2);
        rig.handle(Event::Closed(links[1]));
        assert_eq!(rig.news(), [close(links[0], true), Action::Failed]);
        rig.requests.clear();
        rig.handle(Event::Closed(links[0]));
        rig.tick(SECOND);
        assert_eq!(rig.outstanding().len(), if reopens { 2 } else { 0 });
        if reopens {
            continue;
        }
        rig.tick(DEADLINE_NS);
        assert_eq!(rig.news(), writes.map(failed));
        let again = rig.write(0, 2);
        rig.handle(Event::Ended(links[0]));
        rig.tick(SECOND);
        assert_eq!(rig.outstanding(), [], "one of them is not ended");
        rig.handle(Event::Ended(links[1]));
        rig.tick(SECOND);
        rig.answer(Kind::Write);
        assert!(matches!(rig.news()[..], [Action::Ask(Request::Online(_)), ref rest @ ..] if rest == [done(again)]));
    }
}

#[test]
fn a_silent_server_is_given_up_at_the_deadline() {
    let mut rig = Rig::new(OURS, 1);
    let (old, flush) = (rig.write(0, 1), rig.submit(Op::Flush, 0, 0, 0));
    rig.tick(DEADLINE_NS - 1);
    let young = rig.write(1, 1);
    assert_eq!(rig.upstream.poll_timeout(), Some(DEADLINE_NS));
    rig.tick(1);
    let link = LinkId(0);
    assert_eq!(rig.news(), [close(link, true), Action::Failed], "the kernel may still use its frames");
    assert_eq!(rig.upstream.poll_timeout(), None);
    rig.requests.clear();
    rig.handle(Event::Closed(link));
    assert_eq!(rig.news(), [Action::Void(flush), failed(old)]);
    rig.tick(RETRY_NS);
    rig.answer(Kind::Write);
    assert!(matches!(rig.news()[..], [Action::Ask(Request::Online(_)), ref rest @ ..] if rest == [done(young)]));
}

#[test]
fn a_handshake_that_is_not_answered_holds_nothing_up() {
    let mut rig = Rig::idle(None, 2, 0);
    rig.is_mute = true;
    rig.tick(0);
    let write = rig.write(0, 1);
    rig.tick(OPENING_NS_MAX);
    assert_eq!(rig.news(), [close(LinkId(0), false)]);
    rig.handle(Event::Closed(LinkId(0)));
    // Nothing was sent, so nobody waits for its end.
    rig.tick(RETRY_NS);
    assert_eq!(rig.upstream.stats().epoch, 43);
    rig.tick(OPENING_NS_MAX - 1);
    assert_eq!(rig.news(), []);
    rig.lose();
    rig.tick(DEADLINE_NS);
    assert!(rig.news().contains(&failed(write)));
}

#[test]
fn large_requests_are_sent_in_parts() {
    let mut rig = Rig::new(None, 1);
    rig.upstream.export.as_mut().unwrap().payload_bytes_max = 2 * BLOCK as u32 + 512;
    let write = rig.submit(Op::Write { durable: false }, BLOCK, 5 * BLOCK, 9);
    for part in [(1, 2), (3, 2), (5, 1)] {
        let (_, header, _) = &rig.requests[0];
        assert_eq!((header.offset / BLOCK, header.len / BLOCK), part);
        rig.answer(Kind::Write);
    }
    let read = rig.submit(Op::Read, 0, 7 * BLOCK, 1);
    (0..4).for_each(|_| rig.answer(Kind::Read));
    let news = rig.news();
    assert!([write, read].iter().all(|&io| news.contains(&done(io))), "{news:?}");
    let read = |at: u32| rig.frames[&FrameId(read.0 * 100 + at)][BLOCK as usize - 1];
    assert_eq!([0, 1, 5, 6].map(read), [0, 9, 9, 0]);
}

#[test]
fn another_export_under_the_same_name_is_refused() {
    let other_size = |rig: &mut Rig| rig.export.size = 2 * SIZE;
    let other_volume = |rig: &mut Rig| rig.export.identity = Some(8);
    let read_only = |rig: &mut Rig| rig.export.read_only = true;
    for change in [other_size, other_volume, read_only] {
        let mut rig = Rig::new(OURS, 2);
        let write = rig.write(0, 1);
        rig.lose();
        change(&mut rig);
        rig.news();
        rig.tick(RETRY_NS);
        assert!(matches!(rig.news().last(), Some(Action::Ask(Request::Offline(_)))));
        rig.lose();
        assert_eq!(rig.news(), [failed(write)]);
        let read = rig.submit(Op::Read, 0, BLOCK, 0);
        assert_eq!((rig.news(), rig.upstream.poll_timeout()), (vec![failed(read)], None));
    }
}

#[test]
fn without_the_promise_of_multi_conn_there_is_one_connection_and_without_flush_none() {
    let mut rig = Rig::idle(None, 4, export_flag::CAN_MULTI_CONN);
    rig.tick(0);
    assert_eq!(rig.sessions.len(), 1);
    let mut rig = Rig::idle(None, 1, export_flag::SEND_FLUSH);
    rig.tick(0);
    assert!(rig.news().contains(&Action::Ask(Request::Offline(Mismatch::NoFlush))));
}

#[test]
fn without_fua_a_durable_write_is_flushed() {
    let mut rig = Rig::idle(None, 1, export_flag::SEND_FUA);
    rig.tick(0);
    rig.answer(Kind::Flush);
    rig.news();
    let write = rig.submit(Op::Write { durable: true }, 0, BLOCK, 1);
    assert_eq!(rig.requests[0].1.flags, 0);
    rig.answer(Kind::Write);
    assert_eq!((rig.news(), rig.outstanding()), (vec![], vec![(Kind::Flush, 0)]));
    rig.lose();
    rig.tick(RETRY_NS);
    assert_eq!(rig.outstanding(), [(Kind::Write, 0)], "all of it again");
    rig.answer(Kind::Write);
    rig.answer(Kind::Flush);
    assert_eq!(rig.news().last(), Some(&done(write)));
}

#[test]
fn the_number_of_a_transfer_is_in_the_cookies_of_all_its_requests() {
    let mut rig = Rig::new(OURS, 1);
    rig.upstream.export.as_mut().unwrap().payload_bytes_max = BLOCK as u32;
    let first = rig.submit(Op::Write { durable: false }, 0, 2 * BLOCK, 1);
    let second = rig.write(7, 1);
    let cookies: Vec<u64> = rig.requests.iter().map(|(_, header, _)| header.cookie).collect();
    assert_eq!(
        cookies.iter().map(|cookie| cookie >> 16).collect::<Vec<_>>(),
        [first, second].map(|io| u64::from(io.0))
    );
    rig.answer(Kind::Write);
    let rest = rig.requests.back().unwrap().1.cookie;
    assert_eq!((rest >> 16, cookies.contains(&rest)), (u64::from(first.0), false));
}

#[test]
fn a_flush_is_wanted_when_much_is_unflushed() {
    let mut rig = Rig::new(OURS, 1);
    for block in 0..4 {
        rig.write(block, 1);
    }
    rig.submit(Op::Write { durable: false }, 4 * BLOCK + SECTOR, SECTOR, 1);
    (0..5).for_each(|_| rig.answer(Kind::Write));
    assert_eq!(rig.upstream.unflushed_bytes(), 5 * BLOCK, "a block is kept whole");
    rig.submit(Op::Flush, 0, 0, 0);
    assert!(rig.upstream.is_flushing());
    rig.write(7, 1);
    rig.answer(Kind::Write);
    rig.answer(Kind::Flush);
    assert_eq!(rig.upstream.stats().unflushed_bytes, BLOCK, "the write after the flush was sent");
    // The flush is sent after the answer to the write, but the owner still keeps the block.
    rig.write(8, 1);
    rig.submit(Op::Flush, 0, 0, 0);
    rig.answer(Kind::Write);
    rig.answer(Kind::Flush);
    assert_eq!(rig.upstream.stats().unflushed_bytes, BLOCK);
    // A flush that fails at its deadline covers nothing.
    rig.lose();
    rig.submit(Op::Flush, 0, 0, 0);
    rig.is_mute = true;
    rig.tick(DEADLINE_NS);
    assert_eq!(rig.upstream.stats().unflushed_bytes, 0);
}

#[test]
fn a_server_that_shuts_down_is_away_and_one_that_answers_twice_is_left() {
    let mut rig = Rig::new(OURS, 1);
    rig.write(0, 1);
    rig.answer_with(Kind::Write, Some(Errno::Shutdown));
    assert_eq!(rig.news(), [close(LinkId(0), true), Action::Failed]);
    let mut rig = Rig::new(OURS, 1);
    rig.submit(Op::Read, 0, BLOCK, 0);
    let (link, Header { cookie, offset, .. }, _) = rig.requests[0].clone();
    let of = Of { form: Form::Extended, cookie, offset };
    let hole = |at| Head::hole(of, false, at, BLOCK / 2);
    rig.receive(link, hole(0).bytes());
    assert_eq!(rig.news(), []);
    rig.receive(link, hole(BLOCK / 4).bytes());
    assert_eq!(rig.news(), [close(LinkId(0), true), Action::Failed]);
}

#[test]
fn the_end_of_a_reply_that_needs_no_byte_is_read_with_the_last_one() {
    let mut rig = Rig::new(None, 1);
    let read = rig.submit(Op::Read, 64 * BLOCK, 2 * BLOCK, 1);
    let writes: Vec<IoId> = (0..7).map(|block| rig.write(block, 1)).collect();
    assert_eq!(rig.outstanding().len(), 8);
    let mut replies = Vec::new();
    for (link, header, _) in std::mem::take(&mut rig.requests) {
        let of = Of { form: rig.sessions[&link].form, cookie: header.cookie, offset: header.offset };
        let is_read = header.kind == Kind::Read;
        if is_read {
            // Three parts, and two for each of the errors: the sixteenth is an error without its end.
            for block in [64, 65] {
                replies.extend_from_slice(Head::hole(of, false, block * BLOCK, BLOCK).bytes());
            }
        }
        let error = (!is_read).then_some(Errno::NoSpace);
        replies.extend_from_slice(Head::answer(of, is_read, error).bytes());
    }
    let link = *rig.sessions.keys().next().unwrap();
    rig.receive(link, &replies);
    let news = rig.news();
    assert!(news.contains(&done(read)) && news.len() == 1 + writes.len(), "nothing follows: {news:?}");
}
