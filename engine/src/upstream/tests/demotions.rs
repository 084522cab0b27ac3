//! Evicted blocks on their way to the server.

use super::*;
use crate::nbd::wire::DEMOTE_BYTES_MAX;

const RUN: u64 = DEMOTE_BYTES_MAX / BLOCK;

fn rig(connections: u32) -> Rig {
    let mut rig = Rig::idle(OURS, connections, 0);
    rig.upstream.settings.tiers = Tiers::Demote;
    rig.tick(0);
    rig.answer(Kind::Flush);
    rig.news.clear();
    rig
}

impl Rig {
    /// A block is evicted after the transfer of this number.
    fn evict(&mut self, version: u64, number: u64) -> bool {
        let frame = FrameId(10_000 + number as u32);
        self.frames.insert(frame, vec![number as u8; BLOCK as usize]);
        self.upstream.demote(version, number, frame)
    }

    fn freed(&mut self) -> Vec<u64> {
        let freed = self.news().into_iter().filter_map(|news| match news {
            Action::Freed(frame) => Some(u64::from(frame.0) - 10_000),
            _ => None,
        });
        freed.collect()
    }
}

#[test]
fn neighbours_are_sent_together_with_the_version_of_the_first_one() {
    let mut rig = rig(1);
    assert!(rig.upstream.stats().is_demoting);
    for (version, number) in [(3, 4), (4, 5), (4, 9), (5, 10)] {
        assert!(rig.evict(version, number));
    }
    rig.heed();
    let sent: Vec<_> =
        rig.requests.iter().map(|(_, of, data)| (of.kind, of.cookie >> 16, of.offset, data.len())).collect();
    let [first, second] = [(3, 4), (4, 9)].map(|(version, number)| (Kind::Demote, version, number * BLOCK, 2 * 4096));
    assert_eq!(sent, [first, second]);
    assert_eq!(rig.requests[0].2[4096..], [5; 4096]);
    assert_eq!(rig.freed(), [], "until it is answered");
    rig.answer(Kind::Demote);
    assert_eq!((rig.freed(), rig.upstream.stats().demoted_blocks), (vec![4, 5], 4));
}

#[test]
fn a_demotion_is_sent_after_the_requests_and_on_a_connection_that_has_nothing_else_to_send() {
    let mut rig = rig(1);
    (0..2 * RUN).for_each(|number| assert!(rig.evict(1, number)));
    let read = IoId(77);
    let (volume, segments) = (crate::ids::VolumeId(0), vec![Segment::whole(FrameId(1))]);
    rig.frames.insert(FrameId(1), vec![0; BLOCK as usize]);
    rig.upstream.submit(0, read, 2, &Io { op: Op::Read, volume, offset: 0, len: BLOCK, segments, head: Vec::new() });
    // The driver is busy: nothing is sent yet.
    assert_eq!(rig.upstream.poll_action(), Some(Action::Ask(Request::Send(LinkId(0)))));
    assert_eq!(rig.upstream.poll_action(), None);
    assert_eq!(rig.upstream.outgoing(LinkId(0)).count(), 1, "the header of the read");
    rig.send(LinkId(0));
    let kinds: Vec<_> = rig.requests.iter().map(|(_, of, _)| (of.kind, of.len / BLOCK)).collect();
    assert_eq!(kinds, [(Kind::Read, 1), (Kind::Demote, RUN), (Kind::Demote, RUN)]);
}

#[test]
fn a_lost_session_forgets_them_when_no_connection_refers_to_their_frames() {
    let mut rig = rig(2);
    rig.evict(1, 4);
    rig.heed();
    rig.evict(1, 8);
    rig.upstream.handle(0, Event::Closed(LinkId(0)));
    while let Some(action) = rig.upstream.poll_action() {
        rig.news.push(action);
    }
    assert_eq!(rig.freed(), [8], "the other connection may still send block 4");
    assert!(!rig.evict(1, 12), "there is no session");
    rig.requests.clear();
    rig.sessions.clear();
    rig.handle(Event::Closed(LinkId(1)));
    assert_eq!(rig.freed(), [4]);
    rig.tick(RETRY_NS);
    assert!(rig.requests.iter().all(|(_, of, _)| of.kind != Kind::Demote), "it is not repeated");
}

#[test]
fn a_server_that_refuses_one_gets_no_more_in_this_session() {
    let mut rig = rig(1);
    rig.evict(1, 4);
    rig.heed();
    rig.answer_with(Kind::Demote, Some(Errno::NotSupported));
    assert_eq!((rig.freed(), rig.evict(1, 5), rig.upstream.stats().is_demoting), (vec![4], false, false));
    rig.lose();
    rig.tick(RETRY_NS);
    assert!(rig.evict(1, 5));
}

#[test]
fn without_the_setting_or_with_a_server_that_does_not_grant_it_nothing_is_demoted() {
    let mut lru = Rig::new(OURS, 1);
    let mut stranger = Rig::idle(None, 1, 0);
    stranger.upstream.settings.tiers = Tiers::Demote;
    stranger.tick(0);
    stranger.answer(Kind::Flush);
    let mut shared = Rig::idle(OURS, 1, 0);
    (shared.upstream.settings.tiers, shared.upstream.settings.is_shared) = (Tiers::Demote, true);
    shared.tick(0);
    shared.answer(Kind::Flush);
    for rig in [&mut lru, &mut stranger, &mut shared] {
        assert_eq!((rig.evict(1, 4), rig.upstream.stats().is_open), (false, true));
    }
}

#[test]
fn what_is_written_while_a_demotion_waits_has_a_higher_number_than_it() {
    let mut rig = rig(1);
    assert!(rig.evict(2, 4));
    let io = Io {
        op: Op::Zero,
        volume: crate::ids::VolumeId(0),
        offset: 4 * BLOCK,
        len: BLOCK,
        segments: Vec::new(),
        head: Vec::new(),
    };
    rig.upstream.submit(0, IoId(77), 3, &io);
    rig.heed();
    let numbers =
        |kind| rig.requests.iter().filter(move |(_, of, _)| of.kind == kind).map(|(_, of, _)| of.cookie >> 16);
    assert_eq!((numbers(Kind::Zeroes).collect(), numbers(Kind::Demote).collect()), (vec![3], vec![2]));
}

#[cfg(feature = "planted-bugs")]
#[test]
fn planted_bugs_are_found() {
    use crate::planted::{Bug, is_found_by};
    let late = what_is_written_while_a_demotion_waits_has_a_higher_number_than_it;
    assert!(is_found_by(Bug::DemotionVersionedLate, late));
    let freed = neighbours_are_sent_together_with_the_version_of_the_first_one;
    assert!(is_found_by(Bug::DemotedFrameFreedEarly, freed));
}
