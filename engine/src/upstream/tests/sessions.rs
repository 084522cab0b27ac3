//! What a session begins with, what it continues, and requests that wait for one.

use super::*;

#[test]
fn a_range_whose_zeroing_failed_at_the_deadline_is_zeroed_in_the_next_session() {
    for op in [Op::Zero, Op::Punch] {
        let mut rig = Rig::new(OURS, 1);
        rig.lose();
        let zero = rig.submit(op, 4 * BLOCK, 4 * BLOCK, 0);
        rig.is_mute = true;
        rig.tick(DEADLINE_NS);
        assert!(rig.news().contains(&failed(zero)));
        // A write that is still waiting follows.
        let write = rig.write(5, 1);
        rig.is_mute = false;
        rig.lose();
        rig.tick(RETRY_NS_MAX);
        assert_eq!(rig.outstanding(), [(Kind::Zeroes, 4)]);
        rig.answer(Kind::Zeroes);
        assert_eq!(rig.outstanding(), [(Kind::Write, 5)]);
        rig.answer(Kind::Write);
        assert!(rig.news().contains(&done(write)));
        rig.submit(Op::Flush, 0, 0, 0);
        rig.answer(Kind::Flush);
        assert_eq!(rig.upstream.stats().unflushed_zeros, 0);
    }
}

#[test]
fn without_a_first_session_a_failed_zeroing_request_leaves_nothing() {
    let mut rig = Rig::idle(OURS, 1, 0);
    rig.is_mute = true;
    let zero = rig.submit(Op::Zero, 0, BLOCK, 0);
    rig.tick(DEADLINE_NS);
    rig.is_mute = false;
    rig.lose();
    assert!(rig.news().contains(&failed(zero)));
    rig.tick(RETRY_NS_MAX);
    assert_eq!(rig.outstanding(), [(Kind::Flush, 0)]);
}

#[test]
fn too_many_failed_zeroing_requests_are_not_taken_any_more() {
    let mut rig = Rig::new(OURS, 1);
    rig.lose();
    rig.is_mute = true;
    for at in 0..1024 {
        assert!(rig.upstream.may_zero());
        rig.submit(Op::Zero, 2 * at % 256 * BLOCK + at / 128 * 512, 512, 0);
    }
    rig.tick(DEADLINE_NS);
    assert_eq!((rig.upstream.stats().unflushed_zeros, rig.upstream.may_zero()), (1024, false));
    rig.is_mute = false;
    rig.lose();
    rig.tick(RETRY_NS_MAX);
    while !rig.outstanding().is_empty() {
        rig.answer(Kind::Zeroes);
    }
    assert!(rig.upstream.may_zero());
    assert!((1..1024).contains(&rig.upstream.stats().unflushed_zeros), "the first ones were made durable at once");
}

#[test]
fn nothing_is_sent_before_all_connections_of_a_session_are_open() {
    let mut rig = Rig::idle(None, 3, 0);
    rig.silent = Some(LinkId(2));
    rig.tick(0);
    rig.write(0, 1);
    assert_eq!((rig.outstanding(), rig.news()), (vec![], vec![]));
    rig.greet(LinkId(2));
    assert_eq!(rig.outstanding(), [(Kind::Flush, 0)]);
    // One that is never answered ends the attempt.
    rig.lose();
    rig.tick(RETRY_NS_MAX);
    assert_eq!(rig.outstanding(), []);
    rig.tick(OPENING_NS_MAX);
    let closed = |link| close(LinkId(link), false);
    let news = rig.news();
    assert!([0, 1, 2].iter().all(|&link| news.contains(&closed(link))), "{news:?}");
    // One that is refused is done without.
    let mut rig = Rig::idle(OURS, 3, 0);
    rig.refused = Some(LinkId(1));
    rig.tick(0);
    assert_eq!(rig.outstanding(), [(Kind::Flush, 0)]);
    assert_eq!(rig.upstream.stats().connections, 2);
}

#[test]
fn a_claim_names_the_session_that_it_continues_and_a_client_that_was_replaced_is_offline() {
    let mut rig = Rig::new(OURS, 2);
    rig.lose();
    rig.is_mute = true;
    rig.tick(RETRY_NS);
    rig.is_mute = false;
    rig.lose();
    rig.tick(RETRY_NS_MAX);
    // Nothing was sent in session 43.
    assert_eq!(rig.continued, [None, None, Some(42), Some(42)]);
    let write = rig.write(0, 1);
    rig.lose();
    rig.news();
    rig.is_replaced = true;
    rig.tick(RETRY_NS_MAX);
    assert_eq!(rig.continued[4..], [Some(44)]);
    let news = rig.news();
    assert_eq!(news.last(), Some(&Action::Ask(Request::Offline(Mismatch::Interrupted))), "{news:?}");
    rig.lose();
    assert_eq!(rig.news(), [failed(write)]);
}

#[test]
fn what_is_known_of_the_export_holds_for_the_first_session() {
    let another = |rig: &mut Rig| rig.upstream.settings.volume = Some(8);
    let larger = |rig: &mut Rig| rig.upstream.settings.size = 2 * SIZE;
    let expected = [Mismatch::Volume, Mismatch::Size { before: 2 * SIZE, now: SIZE }];
    for (change, why) in [another, larger].into_iter().zip(expected) {
        let mut rig = Rig::idle(OURS, 1, 0);
        change(&mut rig);
        rig.tick(0);
        assert_eq!(rig.news().last(), Some(&Action::Ask(Request::Offline(why))));
    }
    let mut rig = Rig::idle(None, 1, 0);
    rig.upstream.settings.volume = Some(7);
    rig.tick(0);
    assert_eq!(rig.news().last(), Some(&Action::Ask(Request::Offline(Mismatch::Volume))), "a stranger's server");
}

#[test]
fn settings_apply_to_a_session_that_is_open() {
    let mut rig = Rig::new(OURS, 2);
    let write = rig.write(0, 1);
    rig.upstream.set(rig.now, DEADLINE_NS, 4, Tiers::Lru);
    rig.heed();
    assert!(rig.news().contains(&Action::Failed));
    rig.lose();
    rig.tick(RETRY_NS);
    assert_eq!((rig.upstream.stats().connections, rig.outstanding()), (4, vec![(Kind::Write, 0)]));
    rig.answer(Kind::Write);
    assert!(rig.news().contains(&done(write)));
    rig.upstream.set(rig.now, DEADLINE_NS, 1, Tiers::Lru);
    rig.heed();
    rig.lose();
    rig.tick(RETRY_NS);
    assert_eq!(rig.upstream.stats().connections, 1);
    rig.lose();
    rig.news();
    let write = rig.write(0, 1);
    rig.is_mute = true;
    rig.tick(SECOND);
    rig.upstream.set(rig.now, SECOND, 1, Tiers::Lru);
    rig.heed();
    assert!(rig.news().contains(&failed(write)), "the deadline is that of requests that wait already");
}

#[test]
fn settings_that_change_while_a_session_is_opened_apply_to_it() {
    // The server has not answered the first connection, or all but the second one.
    for (is_mute, silent) in [(true, None), (false, Some(LinkId(1)))] {
        let mut rig = Rig::idle(OURS, 2, 0);
        (rig.is_mute, rig.silent) = (is_mute, silent);
        rig.tick(0);
        rig.upstream.set(rig.now, DEADLINE_NS, 4, Tiers::Demote);
        rig.heed();
        (rig.is_mute, rig.silent) = (false, None);
        rig.lose();
        rig.tick(RETRY_NS);
        rig.answer(Kind::Flush);
        let stats = rig.upstream.stats();
        assert_eq!((stats.connections, stats.is_demoting, stats.reconnects), (4, true, 0));
    }
}

#[test]
fn what_nobody_wants_any_more_fails_at_once() {
    let mut rig = Rig::new(OURS, 1);
    let write = rig.write(0, 1);
    rig.upstream.give_up(rig.now);
    rig.heed();
    assert_eq!(rig.news(), [close(LinkId(0), true), Action::Failed], "the kernel may use its frames");
    rig.requests.clear();
    rig.handle(Event::Closed(LinkId(0)));
    assert_eq!(rig.news(), [failed(write)]);
    let mut rig = Rig::idle(None, 1, 0);
    rig.is_mute = true;
    let read = rig.submit(Op::Read, 0, BLOCK, 0);
    rig.upstream.give_up(rig.now);
    rig.heed();
    rig.handle(Event::Closed(LinkId(0)));
    assert!(rig.news().contains(&failed(read)));
}

/// Only a server of ours tells it; an answer that never came is nothing to a later session.
#[test]
fn the_load_is_asked_for_once_at_a_time() {
    let mut rig = Rig::new(OURS, 2);
    let ask = |rig: &mut Rig| {
        rig.upstream.ask_load();
        rig.heed();
        rig.requests.iter().filter(|(_, header, _)| header.kind == Kind::Status).count()
    };
    let tell = |rig: &mut Rig, load: u32| {
        let at = rig.requests.iter().position(|(_, header, _)| header.kind == Kind::Status).unwrap();
        let (link, Header { cookie, offset, len, .. }, _) = rig.requests.remove(at).unwrap();
        let of = Of { form: rig.sessions[&link].form, cookie, offset };
        let parts = [Head::status(of, true, LOAD_ID, 1), Head::extent(of.form, len, load)];
        rig.receive(link, &parts.map(|part| part.bytes().to_vec()).concat());
    };
    // Beside a read that is not answered.
    let read = rig.submit(Op::Read, 0, BLOCK, 0);
    assert_eq!([ask(&mut rig), ask(&mut rig)], [1, 1]);
    tell(&mut rig, 42);
    assert_eq!(rig.news(), [Action::Load(Some(42))]);
    assert_eq!(ask(&mut rig), 1);
    rig.lose();
    rig.tick(RETRY_NS_MAX);
    assert_eq!(ask(&mut rig), 1);
    rig.answer(Kind::Read);
    assert!(rig.news().contains(&done(read)));
    tell(&mut rig, 7);
    assert_eq!(rig.news(), [Action::Load(Some(7))]);
    // The server answers the same request twice.
    assert_eq!(ask(&mut rig), 1);
    let again = rig.requests.front().cloned().unwrap();
    tell(&mut rig, 7);
    rig.requests.push_front(again);
    tell(&mut rig, 7);
    assert!(!rig.upstream.stats().is_open);
}

/// Reads of what the server was told to read wait for its answer, and for nothing else.
#[test]
fn what_is_going_to_be_read_is_named_first() {
    let mut rig = Rig::new(OURS, 2);
    let hint = |rig: &mut Rig, block: u64, blocks: u64| {
        rig.upstream.hint(block * BLOCK, blocks * BLOCK);
        rig.heed();
    };
    hint(&mut rig, 0, 4);
    hint(&mut rig, 4, 1);
    let [first, second, other] = [1, 4, 8].map(|block| rig.submit(Op::Read, block * BLOCK, BLOCK, 0));
    assert_eq!(rig.outstanding(), [(Kind::Cache, 0), (Kind::Cache, 4), (Kind::Read, 8)]);
    // The server may refuse it.
    rig.answer_with(Kind::Cache, Some(Errno::Io));
    assert_eq!(rig.outstanding(), [(Kind::Read, 1), (Kind::Cache, 4), (Kind::Read, 8)]);
    rig.answer(Kind::Cache);
    (0..3).for_each(|_| rig.answer(Kind::Read));
    let news = rig.news();
    assert!([first, second, other].iter().all(|&io| news.contains(&done(io))) && news.len() == 3, "{news:?}");
    // A few at a time.
    (0..9).for_each(|at| hint(&mut rig, at, 1));
    assert_eq!(rig.outstanding(), [0, 1, 2, 3].map(|block| (Kind::Cache, block)));
    // What waits for a hint is sent in the next session, which has none.
    let read = rig.submit(Op::Read, 0, BLOCK, 0);
    assert_eq!(rig.upstream.stats().waiting, 1);
    rig.lose();
    rig.tick(RETRY_NS_MAX);
    rig.answer(Kind::Read);
    assert!(rig.news().contains(&done(read)));

    let mut rig = Rig::idle(OURS, 1, export_flag::SEND_CACHE);
    rig.tick(0);
    rig.answer(Kind::Flush);
    hint(&mut rig, 0, 4);
    assert_eq!(rig.outstanding(), [], "the server takes none");
}
