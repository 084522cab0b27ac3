//! Complete handshakes, option by option.

use super::wire::export_flag;
use super::*;

fn exports(names: &[&str]) -> Vec<Export> {
    let export = |name: &&str| Export { name: (*name).to_owned(), size: 1 << 20, ..Export::default() };
    names.iter().map(export).collect()
}

fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = wire::IHAVEOPT.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn named(name: &str, rest: &[u8]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend(rest);
    data
}

fn started() -> Handshake {
    let mut handshake = Handshake::new();
    let none = Exports { volumes: &[], shutting_down: false };
    assert_eq!(handshake.handle(&3u32.to_be_bytes(), none), 4);
    assert_eq!(handshake.take_outgoing().len(), 18);
    handshake
}

/// A handshake at a listener with TLS, after the client flags.
fn started_with(tls: Tls) -> Handshake {
    let mut handshake = Handshake::with_tls(tls);
    handshake.handle(&3u32.to_be_bytes(), Exports { volumes: &[], shutting_down: false });
    handshake.take_outgoing();
    handshake
}

fn go(name: &str) -> Vec<u8> {
    option_bytes(option::GO, &named(name, &0u16.to_be_bytes()))
}

fn reply_kinds(bytes: &[u8]) -> Vec<u32> {
    let mut rest = bytes;
    let mut kinds = Vec::new();
    while !rest.is_empty() {
        kinds.push(u32::from_be_bytes(rest[12..16].try_into().unwrap()));
        let len = u32::from_be_bytes(rest[16..20].try_into().unwrap()) as usize;
        rest = &rest[20 + len..];
    }
    kinds
}

#[test]
fn go_byte_by_byte() {
    let volumes = exports(&["a", "db"]);
    let exports = Exports { volumes: &volumes, shutting_down: false };
    let mut handshake = started();
    let mut bytes = option_bytes(option::STRUCTURED_REPLY, &[]);
    let query = [&1u32.to_be_bytes()[..], &named("base:allocation", &[])].concat();
    bytes.extend(option_bytes(option::SET_META_CONTEXT, &named("db", &query)));
    bytes.extend(option_bytes(option::GO, &named("db", &0u16.to_be_bytes())));
    let (mut pending, mut at) = (Vec::new(), 0);
    while handshake.outcome() == Outcome::Negotiating {
        pending.push(bytes[at]);
        at += 1;
        let consumed = handshake.handle(&pending, exports);
        pending.drain(..consumed);
    }
    assert_eq!((at, pending.len()), (bytes.len(), 0));
    let session = Session {
        form: Form::Structured,
        base_allocation: true,
        load: false,
        read_only: false,
        numbers: false,
        demotes: None,
    };
    assert_eq!(handshake.outcome(), Outcome::Transmission { export: 1, session });
    let kinds = reply_kinds(&handshake.take_outgoing());
    use reply::*;
    assert_eq!(kinds, [ACK, META_CONTEXT, ACK, INFO, INFO, ACK]);
}

#[test]
fn a_read_only_export_says_so_and_offers_no_writes() {
    let volumes = [Export { read_only: true, ..exports(&["a"]).remove(0) }];
    let mut handshake = started();
    handshake.handle(&option_bytes(option::EXPORT_NAME, b"a"), Exports { volumes: &volumes, shutting_down: false });
    let Outcome::Transmission { session, .. } = handshake.outcome() else { panic!("{:?}", handshake.outcome()) };
    assert!(session.read_only);
    let sent = handshake.take_outgoing();
    let flags = u16::from_be_bytes([sent[8], sent[9]]);
    use export_flag::*;
    assert_eq!(flags, HAS_FLAGS | READ_ONLY | SEND_FLUSH | CAN_MULTI_CONN | SEND_CACHE);
}

#[test]
fn the_empty_name_is_the_only_volume() {
    for (names, expected) in [(&["a"][..], true), (&["a", "b"], false), (&[], false)] {
        let volumes = exports(names);
        let mut handshake = started();
        let go = option_bytes(option::GO, &named("", &0u16.to_be_bytes()));
        handshake.handle(&go, Exports { volumes: &volumes, shutting_down: false });
        assert_eq!(matches!(handshake.outcome(), Outcome::Transmission { .. }), expected);
    }
}

#[test]
fn what_is_unknown_too_long_or_late_is_refused_and_the_handshake_goes_on() {
    let volumes = exports(&["a"]);
    let open = Exports { volumes: &volumes, shutting_down: false };
    let mut handshake = started();
    let mut bytes = option_bytes(99, b"x");
    bytes.extend(option_bytes(option::LIST, b"x"));
    bytes.extend(option_bytes(option::INFO, &named("b", &0u16.to_be_bytes())));
    bytes.extend(option_bytes(option::GO, &named("a", &9u16.to_be_bytes())));
    bytes.extend(option_bytes(option::INFO, &vec![0; OPTION_BYTES_MAX + 1]));
    all(&mut handshake, &bytes, open);
    assert_eq!(handshake.outcome(), Outcome::Negotiating);
    let closing = Exports { shutting_down: true, ..open };
    let go = option_bytes(option::GO, &named("a", &0u16.to_be_bytes()));
    handshake.handle(&go, closing);
    use reply::*;
    let kinds = reply_kinds(&handshake.take_outgoing());
    assert_eq!(kinds, [ERR_UNSUP, ERR_INVALID, ERR_UNKNOWN, ERR_INVALID, ERR_TOO_BIG, ERR_SHUTDOWN]);
    handshake.handle(&option_bytes(option::ABORT, &[]), closing);
    assert_eq!(handshake.outcome(), Outcome::Closed);
}

#[test]
fn extended_headers_include_structured_replies_and_larger_payloads() {
    let volumes = exports(&["a"]);
    let exports = Exports { volumes: &volumes, shutting_down: false };
    let mut handshake = started();
    let query = [&1u32.to_be_bytes()[..], &named("base:allocation", &[])].concat();
    let mut bytes = option_bytes(option::EXTENDED_HEADERS, b"x");
    for option in [option::STRUCTURED_REPLY, option::EXTENDED_HEADERS, option::EXTENDED_HEADERS] {
        bytes.extend(option_bytes(option, &[]));
    }
    bytes.extend(option_bytes(option::STRUCTURED_REPLY, &[]));
    bytes.extend(option_bytes(option::SET_META_CONTEXT, &named("a", &query)));
    bytes.extend(go("a"));
    all(&mut handshake, &bytes, exports);
    let session = Session {
        form: Form::Extended,
        base_allocation: true,
        load: false,
        read_only: false,
        numbers: false,
        demotes: None,
    };
    assert_eq!(handshake.outcome(), Outcome::Transmission { export: 0, session });
    let sent = handshake.take_outgoing();
    use reply::*;
    let kinds = [ERR_INVALID, ACK, ACK, ERR_INVALID, ERR_EXT_HEADER_REQD, META_CONTEXT, ACK, INFO, INFO, ACK];
    assert_eq!(reply_kinds(&sent), kinds);
    assert!(sent.windows(4).any(|four| four == wire::EXTENDED_PAYLOAD_BYTES_MAX.to_be_bytes()));
}

#[test]
fn starttls_forgets_what_was_negotiated_in_clear() {
    let volumes = exports(&["a"]);
    let exports = Exports { volumes: &volumes, shutting_down: false };
    let mut handshake = started_with(Tls::On);
    let query = [&1u32.to_be_bytes()[..], &named("base:allocation", &[])].concat();
    handshake.handle(&option_bytes(option::STRUCTURED_REPLY, &[]), exports);
    handshake.handle(&option_bytes(option::SET_META_CONTEXT, &named("a", &query)), exports);
    handshake.handle(&option_bytes(option::STARTTLS, &[]), exports);
    assert_eq!(handshake.outcome(), Outcome::StartTls);
    handshake.take_outgoing();
    handshake.tls_started();
    // A second STARTTLS is refused, and SET_META_CONTEXT needs structured replies to be negotiated again.
    handshake.handle(&option_bytes(option::STARTTLS, &[]), exports);
    handshake.handle(&option_bytes(option::SET_META_CONTEXT, &named("a", &query)), exports);
    assert_eq!(reply_kinds(&handshake.take_outgoing()), [reply::ERR_INVALID; 2]);
    handshake.handle(&go("a"), exports);
    assert_eq!(handshake.outcome(), Outcome::Transmission { export: 0, session: Session::default() });
}

#[test]
fn bytes_in_clear_behind_starttls_end_the_handshake() {
    let volumes = exports(&["a"]);
    let exports = Exports { volumes: &volumes, shutting_down: false };
    for behind in [go("a"), vec![0], b"\x16\x03\x01".to_vec()] {
        for tls in [Tls::On, Tls::Require] {
            let mut handshake = started_with(tls);
            let bytes = [option_bytes(option::STARTTLS, &[]), behind.clone()].concat();
            handshake.handle(&bytes, exports);
            assert_eq!(handshake.outcome(), Outcome::Closed);
            assert_eq!(handshake.ending(), Some(Ending::ClearBehindStartTls));
            assert_eq!(handshake.take_outgoing(), [], "not even the acknowledgement");
        }
    }
}

#[test]
fn where_tls_is_required_nothing_else_is_answered_in_clear() {
    let volumes = exports(&["a"]);
    let open = Exports { volumes: &volumes, shutting_down: false };
    for exports in [open, Exports { shutting_down: true, ..open }] {
        let mut handshake = started_with(Tls::Require);
        for (option, data) in [
            (option::LIST, vec![]),
            (option::INFO, named("a", &0u16.to_be_bytes())),
            (option::GO, named("a", &0u16.to_be_bytes())),
            (option::STRUCTURED_REPLY, vec![]),
            (option::SET_META_CONTEXT, vec![]),
            (99, vec![]),
        ] {
            handshake.handle(&option_bytes(option, &data), exports);
            assert_eq!(reply_kinds(&handshake.take_outgoing()), [reply::ERR_TLS_REQD], "option {option}");
        }
        handshake.handle(&option_bytes(option::EXPORT_NAME, b"a"), exports);
        assert_eq!(handshake.ending(), Some(Ending::TlsRequired));
        assert_eq!(handshake.take_outgoing(), []);
    }
    let mut handshake = started_with(Tls::Require);
    handshake.handle(&option_bytes(option::ABORT, &[]), open);
    assert_eq!((handshake.outcome(), handshake.ending()), (Outcome::Closed, Some(Ending::Abort)));
}

#[test]
fn where_tls_is_off_starttls_is_refused_by_policy() {
    let mut handshake = started();
    handshake.handle(&option_bytes(option::STARTTLS, &[]), Exports { volumes: &[], shutting_down: false });
    assert_eq!(reply_kinds(&handshake.take_outgoing()), [reply::ERR_POLICY]);
    assert_eq!(handshake.outcome(), Outcome::Negotiating);
}

#[test]
fn a_refused_transmission_answers_go_with_the_reason_and_nothing_else() {
    let volumes = exports(&["a"]);
    let exports = Exports { volumes: &volumes, shutting_down: false };
    let mut handshake = started();
    all(&mut handshake, &[option_bytes(option::LIST, &[]), go("a")].concat(), exports);
    handshake.refuse("no more connections");
    let outgoing = handshake.take_outgoing();
    assert_eq!(reply_kinds(&outgoing), [reply::SERVER, reply::ACK, reply::ERR_POLICY]);
    assert!(outgoing.ends_with(b"no more connections"));
    handshake.handle(&go("a"), exports);
    assert!(matches!(handshake.outcome(), Outcome::Transmission { .. }), "the client may try again");

    let mut handshake = started();
    handshake.handle(&option_bytes(option::EXPORT_NAME, b"a"), exports);
    handshake.refuse("no more connections");
    assert_eq!((handshake.outcome(), handshake.ending()), (Outcome::Closed, Some(Ending::Refused)));
    assert_eq!(handshake.take_outgoing(), []);
}

#[test]
fn oldstyle_clients_and_garbage_are_told_apart() {
    let none = Exports { volumes: &[], shutting_down: false };
    for (flags, ending) in [(0, Ending::Oldstyle), (2, Ending::Oldstyle), (1 << 9, Ending::UnknownFlags)] {
        let mut handshake = Handshake::new();
        handshake.handle(&u32::to_be_bytes(flags), none);
        assert_eq!((handshake.outcome(), handshake.ending()), (Outcome::Closed, Some(ending)));
    }
    let mut handshake = started();
    handshake.handle(&[b'G'; 16], none);
    assert_eq!(handshake.ending(), Some(Ending::Garbage));
}

/// Handles all of what a client has sent.
fn all(handshake: &mut Handshake, mut bytes: &[u8], exports: Exports<'_>) {
    while !bytes.is_empty() {
        let consumed = handshake.handle(bytes, exports);
        assert!(consumed > 0, "{} bytes are left", bytes.len());
        bytes = &bytes[consumed..];
    }
}

#[test]
fn an_option_that_names_an_export_is_seen_before_it_is_handled() {
    let volumes = exports(&["a"]);
    let exports = Exports { volumes: &volumes, shutting_down: false };
    let list_contexts = option_bytes(option::LIST_META_CONTEXT, &named("b", &0u32.to_be_bytes()));
    let bytes = [3u32.to_be_bytes().to_vec(), option_bytes(option::LIST, &[]), list_contexts, go("a")].concat();
    let (mut handshake, mut at, mut seen) = (Handshake::new(), 0, Vec::new());
    while at < bytes.len() {
        seen.push(handshake.next_name(&bytes[at..]).map(<[u8]>::to_vec));
        at += handshake.handle(&bytes[at..], exports);
    }
    assert_eq!(seen, [None, Some(b"b".to_vec()), Some(b"a".to_vec())]);
}

#[test]
fn an_option_that_is_too_long_is_skipped_in_large_pieces() {
    let none = Exports { volumes: &[], shutting_down: false };
    let mut handshake = started();
    let len = 10 * OPTION_BYTES_MAX + 7;
    let bytes = option_bytes(option::LIST, &vec![0; len]);
    let (mut received, mut calls) = (Vec::new(), 0);
    for byte in bytes {
        received.push(byte);
        if handshake.is_enough(&received) {
            let consumed = handshake.handle(&received, none);
            received.drain(..consumed);
            calls += 1;
        }
    }
    assert_eq!((received.len(), calls), (0, 1 + 11));
    assert_eq!(reply_kinds(&handshake.take_outgoing()), [reply::ERR_TOO_BIG]);
}

#[test]
fn answers_that_are_not_read_do_not_pile_up() {
    let volumes = exports(&["x".repeat(200).as_str(); 100]);
    let exports = Exports { volumes: &volumes, shutting_down: false };
    let mut handshake = started();
    let bytes = option_bytes(option::LIST, &[]).repeat(500);
    let (mut at, mut answered) = (0, 0);
    while at < bytes.len() {
        assert!(handshake.is_enough(&bytes[at..]));
        let consumed = handshake.handle(&bytes[at..], exports);
        assert!(consumed > 0);
        at += consumed;
        let outgoing = handshake.take_outgoing();
        assert!(outgoing.len() < 2 * OUTGOING_BYTES_PAUSE + 100 * 256, "{} bytes", outgoing.len());
        answered += reply_kinds(&outgoing).iter().filter(|kind| **kind == reply::ACK).count();
    }
    assert_eq!(answered, 500);
    assert!(!handshake.is_enough(&[]) && !handshake.is_enough(&bytes[..15]));
}
