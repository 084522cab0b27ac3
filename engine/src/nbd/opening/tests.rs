//! Against our own handshake, and against servers that know less or send garbage.

use super::*;
use crate::nbd::{Export, Exports, Handshake, Outcome, Session, Tls};

fn wanted(form: Form) -> Wanted {
    Wanted { name: "db".into(), form, base_allocation: true, ..Wanted::default() }
}

/// Both handshakes, byte by byte, until neither has more to say.
fn negotiate(opening: &mut Opening, server: &mut Handshake, exports: Exports<'_>) -> Result<(), Unopened> {
    let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
    loop {
        to_client.extend(server.take_outgoing());
        to_server.extend(opening.take_outgoing());
        if to_client.is_empty() && to_server.is_empty() {
            return Ok(());
        }
        for (at, byte) in std::mem::take(&mut to_client).into_iter().enumerate() {
            to_client.push(byte);
            let consumed = opening.handle(&to_client)?;
            assert!(consumed == 0 || consumed == to_client.len(), "at byte {at}");
            to_client.drain(..consumed);
        }
        assert_eq!(to_client, [], "the server's answers are complete");
        to_server.extend(opening.take_outgoing());
        let consumed = server.handle(&to_server, exports);
        to_server.drain(..consumed);
        if server.outcome() == Outcome::StartTls {
            let sent = server.take_outgoing();
            assert_eq!(opening.handle(&sent), Ok(sent.len()));
            assert!(opening.wants_tls());
            server.tls_started();
            opening.tls_started();
        }
    }
}

#[test]
fn it_opens_what_our_server_exports_in_each_form() {
    let volumes = [Export { name: "db".into(), size: 1 << 30, ..Export::default() }];
    let exports = Exports { volumes: &volumes, shutting_down: false };
    for (form, tls) in [Form::Simple, Form::Structured, Form::Extended].map(|form| (form, form == Form::Structured)) {
        let mut server = Handshake::with_tls(if tls { Tls::Require } else { Tls::Off });
        let mut opening = Opening::new(Wanted { tls, ..wanted(form) });
        negotiate(&mut opening, &mut server, exports).unwrap();
        let opened = opening.opened().expect("an open export");
        assert_eq!((opened.size, opened.form, opened.block_bytes_min), (1 << 30, form, 1));
        assert_eq!(opened.payload_bytes_max, form.payload_bytes_max());
        assert!(opened.has(export_flag::CAN_MULTI_CONN) && !opened.has(export_flag::READ_ONLY));
        let base_allocation = form.is_structured();
        assert_eq!(opened.base_allocation.is_some(), base_allocation);
        let session = Session { form, base_allocation, load: false, read_only: false, demotes: None };
        assert_eq!(server.outcome(), Outcome::Transmission { export: 0, session });
    }
    let other = Wanted { name: "other".into(), ..wanted(Form::Extended) };
    let refused = negotiate(&mut Opening::new(other), &mut Handshake::new(), exports).unwrap_err();
    assert_eq!(refused.to_string(), "the server has no export 'other': no volume 'other'");
    let no_tls = Wanted { tls: true, ..wanted(Form::Simple) };
    let refused = negotiate(&mut Opening::new(no_tls), &mut Handshake::new(), exports).unwrap_err();
    assert_eq!(refused.to_string(), "the server refuses TLS: TLS is off at this listener");
}

/// A server of ours grants a session, with the volume's identity; one that does not know sessions ignores the query.
#[test]
fn a_session_is_claimed_in_the_handshake() {
    let claim = Claim { client: "gateway".into(), epoch: 7, after: None, shared: false, leased: false };
    for (identity, form) in [(Some(5 << 100), Form::Extended), (None, Form::Structured), (Some(1), Form::Structured)] {
        let volumes = [Export { name: "db".into(), size: 1 << 30, identity, ..Export::default() }];
        let exports = Exports { volumes: &volumes, shutting_down: false };
        let (mut server, session) = (Handshake::new(), Some(claim.clone()));
        let mut opening = Opening::new(Wanted { session, ..wanted(form) });
        negotiate(&mut opening, &mut server, exports).unwrap();
        let opened = opening.opened().unwrap();
        assert_eq!((opened.volume, opened.base_allocation), (identity, Some(wire::BASE_ALLOCATION_ID)));
        assert_eq!(server.claim(), identity.and(Some(&claim)));
    }
}

fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = wire::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
    [option, kind, data.len() as u32].iter().for_each(|word| bytes.extend(word.to_be_bytes()));
    bytes.extend(data);
    bytes
}

fn greeting(flags: u16) -> Vec<u8> {
    [&b"NBDMAGICIHAVEOPT"[..], &flags.to_be_bytes()].concat()
}

fn export_info(size: u64) -> Vec<u8> {
    let data = [&info::EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &[0, 1]].concat();
    answer(option::GO, reply::INFO, &data)
}

#[test]
fn a_server_that_knows_less_is_used_without_it() {
    let mut opening = Opening::new(wanted(Form::Extended));
    let sent = [
        greeting(1),
        answer(option::EXTENDED_HEADERS, reply::ERR_UNSUP, b""),
        answer(option::STRUCTURED_REPLY, reply::ERR_UNSUP, b"no"),
        answer(option::GO, reply::INFO, &[0, 77, 1, 2, 3]),
        export_info(1 << 20),
        answer(option::GO, reply::ACK, b""),
        vec![9; 3],
    ]
    .concat();
    assert_eq!(opening.handle(&sent), Ok(sent.len() - 3), "what follows belongs to transmission");
    let opened = opening.opened().unwrap();
    assert_eq!((opened.form, opened.base_allocation), (Form::Simple, None));
    assert_eq!((opened.block_bytes_min, opened.payload_bytes_max), (1, wire::PAYLOAD_BYTES_MAX));
    assert_eq!(opening.take_outgoing()[..4], [0, 0, 0, 1], "without NO_ZEROES, which the server does not know");
}

/// A server that is starting does not have the export yet. It may have it when GO arrives, and then without a session.
#[test]
fn an_export_that_is_unknown_is_not_opened_without_its_session() {
    let mut opening = Opening::new(wanted(Form::Extended));
    let sent = [
        greeting(3),
        answer(option::EXTENDED_HEADERS, reply::ACK, b""),
        answer(option::SET_META_CONTEXT, reply::ERR_UNKNOWN, b"not yet"),
    ]
    .concat();
    assert!(matches!(opening.handle(&sent), Err(Unopened::Unknown { text, .. }) if text == ": not yet"));
}

#[test]
fn what_no_server_may_send() {
    let go = |replies: &[Vec<u8>]| {
        let mut opening = Opening::new(wanted(Form::Simple));
        opening.handle(&[vec![greeting(3)], replies.to_vec()].concat().concat()).map(|_| opening.opened())
    };
    let block_size = |min: u32, max: u32| {
        let sizes = [min, 4096, max].map(u32::to_be_bytes).concat();
        answer(option::GO, reply::INFO, &[&info::BLOCK_SIZE.to_be_bytes()[..], &sizes].concat())
    };
    let done = answer(option::GO, reply::ACK, b"");
    assert!(go(&[export_info(5), block_size(512, 1 << 20), done.clone()]).unwrap().is_some());
    for replies in [
        &[done.clone()][..],
        &[answer(option::LIST, reply::ACK, b"")],
        &[answer(option::GO, reply::SERVER, b"")],
        &[answer(option::GO, reply::INFO, b"")],
        &[answer(option::GO, reply::INFO, &[0, 0, 1])],
        &[block_size(0, 1 << 20)],
        &[block_size(3, 1 << 20)],
        &[block_size(4096, 512)],
        &[answer(option::GO, reply::INFO, &[0; REPLY_BYTES_MAX + 1])],
        &vec![answer(option::GO, reply::INFO, &[0, 77]); REPLIES_MAX as usize + 1],
        &[vec![7; 20]],
    ] {
        assert!(matches!(go(replies), Err(Unopened::Broken(_))), "{:?}", replies[0]);
    }
    for bytes in [greeting(0), vec![0; 18], b"HTTP/1.1 400 Bad Request".to_vec()] {
        assert_eq!(Opening::new(wanted(Form::Simple)).handle(&bytes), Err(Unopened::NotNbd));
    }
    let mut opening = Opening::new(Wanted { tls: true, ..wanted(Form::Simple) });
    let injected = [greeting(3), answer(option::STARTTLS, reply::ACK, b""), done].concat();
    assert!(matches!(opening.handle(&injected), Err(Unopened::Broken(_))), "plaintext after STARTTLS");
}
