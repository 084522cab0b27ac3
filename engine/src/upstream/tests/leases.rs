//! Sessions with leases.

use super::*;
use crate::units::MILLISECOND;

const LEASE_MS: u64 = 3000;
/// That, less what clocks may drift.
const LEASE_NS: Nanos = 2997 * MILLISECOND;

/// A client that wants leases, and a server that grants them, if that is one.
fn leased(lease_ms: Option<u64>) -> Rig {
    let mut rig = Rig::idle(OURS, 1, 0);
    rig.upstream.settings.is_leased = true;
    rig.export.lease_ms = lease_ms;
    rig
}

/// The same with a session, at 0.
fn open() -> Rig {
    let mut rig = leased(Some(LEASE_MS));
    assert!(rig.upstream.is_lapsed(0), "nothing is used before the first session");
    rig.tick(0);
    rig.answer(Kind::Flush);
    rig.news();
    rig
}

fn answer_load(rig: &mut Rig) {
    let at = rig.requests.iter().position(|(_, header, _)| header.kind == Kind::Status).expect("a question");
    let (link, header, _) = rig.requests.remove(at).unwrap();
    let of = Of { form: rig.sessions[&link].form, cookie: header.cookie, offset: 0 };
    let parts = [Head::status(of, true, LOAD_ID, 1), Head::extent(of.form, header.len, 0)];
    rig.receive(link, &parts.map(|part| part.bytes().to_vec()).concat());
}

#[test]
fn an_idle_client_renews_its_lease_from_the_time_at_which_it_asks() {
    let mut rig = open();
    assert_eq!(rig.upstream.poll_timeout(), Some(LEASE_NS / 3));
    rig.tick(LEASE_NS / 3);
    assert_eq!(rig.outstanding(), [(Kind::Status, 0)]);
    // The answer comes late, and nothing is asked meanwhile.
    rig.tick(500 * MILLISECOND);
    assert_eq!(rig.outstanding(), [(Kind::Status, 0)]);
    answer_load(&mut rig);
    assert!(!rig.upstream.is_lapsed(LEASE_NS / 3 + LEASE_NS - 1));
    assert!(rig.upstream.is_lapsed(LEASE_NS / 3 + LEASE_NS));
    assert!(!rig.news().iter().any(|news| matches!(news, Action::Load(_))), "nobody wants to know the load");
}

#[test]
fn each_answer_renews_it() {
    let mut rig = open();
    rig.tick(900 * MILLISECOND);
    rig.write(0, 1);
    rig.tick(50 * MILLISECOND);
    rig.answer(Kind::Write);
    assert_eq!(rig.outstanding(), [], "it need not be asked for");
    assert!(!rig.upstream.is_lapsed(900 * MILLISECOND + LEASE_NS - 1));
    assert!(rig.upstream.is_lapsed(900 * MILLISECOND + LEASE_NS));
}

#[test]
fn a_server_that_does_not_answer_loses_the_session_with_the_lease() {
    let mut rig = open();
    rig.tick(LEASE_NS / 3);
    assert_eq!(rig.upstream.poll_timeout(), Some(LEASE_NS));
    rig.tick(LEASE_NS - LEASE_NS / 3 - 1);
    assert!(rig.upstream.stats().is_open);
    rig.tick(1);
    assert!(!rig.upstream.stats().is_open && rig.upstream.is_lapsed(rig.now));
    rig.lose();
    rig.tick(RETRY_NS_MAX);
    assert!(rig.upstream.stats().is_open && !rig.upstream.is_lapsed(rig.now), "the next session continues it");
    assert_eq!(rig.continued, [None, Some(42)]);
}

#[test]
fn a_client_that_was_stopped_does_not_trust_old_answers() {
    let mut rig = open();
    rig.write(0, 1);
    rig.now += 10 * SECOND;
    rig.answer(Kind::Write);
    assert!(rig.upstream.is_lapsed(rig.now) && !rig.upstream.stats().is_open);
}

#[test]
fn a_server_of_an_earlier_release_or_with_a_later_client_is_not_used() {
    let mut rig = leased(None);
    rig.tick(0);
    assert_eq!(rig.news().last(), Some(&Action::Ask(Request::Offline(Mismatch::NoLease))));
    // Another client was admitted before the first session, with a later epoch.
    let mut rig = leased(Some(LEASE_MS));
    rig.is_replaced = true;
    rig.tick(0);
    assert_eq!(rig.news().last(), Some(&Action::Ask(Request::Offline(Mismatch::Interrupted))));
}
