//! Replies as the server makes them, and replies that no server may make.

use super::*;
use crate::errno::Errno;
use crate::nbd::{Head, Of};

const ASKED: Asked = Asked { kind: Kind::Read, offset: 1000, len: 100 };

fn asked(kind: Kind) -> impl Fn(u64) -> Option<Asked> {
    move |cookie| (cookie == 7).then_some(Asked { kind, ..ASKED })
}

fn of(form: Form) -> Of {
    Of { form, cookie: 7, offset: ASKED.offset }
}

/// All parts of a stream that arrives in portions.
fn parts(form: Form, kind: Kind, bytes: &[u8], portion: usize) -> Result<Vec<Part>, Broken> {
    let mut replies = Replies::new(form, Some(wire::BASE_ALLOCATION_ID)).with_load(Some(wire::LOAD_ID));
    let (mut at, mut arrived, mut parts) = (0, 0, Vec::new());
    loop {
        let data = (arrived - at).min(replies.data_bytes() as usize);
        if data > 0 {
            replies.took(data as u64);
            at += data;
        }
        let (read, part) = replies.next(&bytes[at..arrived], asked(kind))?;
        at += read;
        match part {
            Some((cookie, part)) => {
                assert_eq!(cookie, 7);
                parts.push(part);
            }
            None if arrived == bytes.len() && at == arrived => break,
            None if at == arrived => arrived = bytes.len().min(arrived + portion),
            None => {}
        }
    }
    assert!(replies.is_between(), "the stream ends between two replies");
    Ok(parts)
}

fn bytes(heads: &[Head]) -> Vec<u8> {
    heads.iter().flat_map(|head| head.bytes().to_vec()).collect()
}

#[test]
fn each_form_of_each_reply_in_any_portions() {
    let (data, hole) = (Part::Data { offset: 1000, len: 60 }, Part::Hole { offset: 1060, len: 40 });
    for form in [Form::Simple, Form::Structured, Form::Extended] {
        let of = of(form);
        let read = match form {
            Form::Simple => [bytes(&[Head::data(of)]), vec![1; 100]].concat(),
            _ => {
                let chunk = [bytes(&[Head::data_chunk(of, false, 1000, 60)]), vec![1; 60]].concat();
                [chunk, bytes(&[Head::hole(of, true, 1060, 40)])].concat()
            }
        };
        let load = [Head::status(of, false, wire::LOAD_ID, 1), Head::extent(form, 100, 42)];
        let extents = bytes(&[
            Head::status(of, true, wire::BASE_ALLOCATION_ID, 2),
            Head::extent(form, 30, 0),
            Head::extent(form, 500, 3),
        ]);
        let failed = bytes(&[Head::answer(of, true, Some(Errno::Io))]);
        let written = bytes(&[Head::answer(of, false, None)]);
        for portion in [1, 3, 1000] {
            let wanted = match form {
                Form::Simple => vec![Part::Data { offset: 1000, len: 100 }, Part::Done],
                _ => vec![data, hole, Part::Done],
            };
            assert_eq!(parts(form, Kind::Read, &read, portion), Ok(wanted));
            assert_eq!(parts(form, Kind::Read, &failed, portion), Ok(vec![Part::Error(5), Part::Done]));
            assert_eq!(parts(form, Kind::Write, &written, portion), Ok(vec![Part::Done]));
            if form.is_structured() {
                let of = |offset, len, flags| Part::Extent { offset, len, flags };
                let wanted = vec![of(1000, 30, 0), of(1030, 500, 3), Part::Done];
                assert_eq!(parts(form, Kind::Status, &extents, portion), Ok(wanted.clone()));
                let both = [&bytes(&load)[..], &extents].concat();
                assert_eq!(parts(form, Kind::Status, &both, portion), Ok([vec![Part::Load(42)], wanted].concat()));
            }
        }
    }
}

#[test]
fn lengths_of_64_bits() {
    let of = of(Form::Extended);
    let sent = bytes(&[Head::status(of, true, wire::BASE_ALLOCATION_ID, 1), Head::extent(Form::Extended, 1 << 40, 0)]);
    let extent = Part::Extent { offset: 1000, len: 1 << 40, flags: 0 };
    assert_eq!(parts(Form::Extended, Kind::Status, &sent, 7), Ok(vec![extent, Part::Done]));
}

/// The header of a structured chunk, and its body.
fn chunk(flags: u16, kind: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = wire::STRUCTURED_REPLY_MAGIC.to_be_bytes().to_vec();
    bytes.extend([flags.to_be_bytes(), kind.to_be_bytes()].concat());
    bytes.extend(7u64.to_be_bytes());
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn hole(offset: u64, len: u32) -> Vec<u8> {
    [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat()
}

#[test]
fn texts_of_errors_are_skipped() {
    let error = |kind, text: &[u8], rest: &[u8]| {
        let head = [&5u32.to_be_bytes()[..], &(text.len() as u16).to_be_bytes()].concat();
        parts(Form::Structured, Kind::Read, &chunk(1, kind, &[&head, text, rest].concat()), 5)
    };
    let failed = Ok(vec![Part::Error(5), Part::Done]);
    assert_eq!(error(chunk::ERROR, b"the disk is broken", &[]), failed);
    assert_eq!(error(chunk::ERROR_OFFSET, b"here", &[0; 8]), failed);
    assert_eq!(error(chunk::IS_ERROR | 99, b"", b"further fields"), failed);
    assert!(error(chunk::ERROR, b"", &[0; 8]).is_err());
    assert!(error(chunk::ERROR_OFFSET, b"", &[]).is_err());
}

#[test]
fn what_no_server_may_send() {
    let structured = |kind, bytes: &[u8]| parts(Form::Structured, kind, bytes, 1000);
    let status = |body: &[u32]| body.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    for (kind, bytes) in [
        (Kind::Read, chunk(2, chunk::NONE, &[])),
        (Kind::Read, chunk(0, chunk::NONE, &[])),
        (Kind::Read, chunk(1, chunk::NONE, &[0])),
        (Kind::Read, chunk(1, 77, &[])),
        (Kind::Write, chunk(1, chunk::OFFSET_HOLE, &hole(1000, 100))),
        (Kind::Read, chunk(1, chunk::OFFSET_HOLE, &hole(1000, 0))),
        (Kind::Read, chunk(1, chunk::OFFSET_HOLE, &hole(999, 10))),
        (Kind::Read, chunk(1, chunk::OFFSET_HOLE, &hole(1050, 51))),
        (Kind::Read, chunk(1, chunk::OFFSET_HOLE, &hole(u64::MAX, 51))),
        (Kind::Read, chunk(1, chunk::OFFSET_DATA, &[0; 8])),
        (Kind::Read, chunk(1, chunk::OFFSET_DATA, &[0; 300])),
        (Kind::Read, chunk(1, chunk::ERROR, &[0; 6])),
        (Kind::Read, chunk(1, chunk::BLOCK_STATUS, &status(&[1, 100, 0]))),
        (Kind::Status, chunk(1, chunk::BLOCK_STATUS, &status(&[2, 100, 0]))),
        (Kind::Status, chunk(1, chunk::BLOCK_STATUS, &status(&[1, 0, 0]))),
        (Kind::Status, chunk(1, chunk::BLOCK_STATUS, &status(&[3, 100, 7, 100, 7]))),
        (Kind::Status, chunk(1, chunk::BLOCK_STATUS, &status(&[1, 100, 0, 50, 0]))),
        (Kind::Status, chunk(1, chunk::BLOCK_STATUS, &status(&[1]))),
        (Kind::Status, chunk(1, chunk::BLOCK_STATUS_EXT, &status(&[1, 1, 0, 100, 0, 0]))),
        (Kind::Read, super::tests::bytes(&[Head::data(of(Form::Simple))])),
        (Kind::Write, super::tests::bytes(&[Head::answer(of(Form::Extended), false, None)])),
        (Kind::Write, vec![0xff; 16]),
    ] {
        assert!(structured(kind, &bytes).is_err(), "{kind:?}: {bytes:?}");
    }
    let simple = bytes(&[Head::answer(of(Form::Simple), false, None)]);
    assert_eq!(parts(Form::Extended, Kind::Write, &simple, 99), Err(Broken::Magic(wire::SIMPLE_REPLY_MAGIC)));
    let elsewhere = bytes(&[Head::answer(Of { offset: 1, ..of(Form::Extended) }, false, None)]);
    assert_eq!(parts(Form::Extended, Kind::Write, &elsewhere, 99), Err(Broken::Offset { asked: 1000, named: 1 }));
    let stranger = bytes(&[Head::answer(Of { cookie: 8, ..of(Form::Simple) }, false, None)]);
    assert_eq!(parts(Form::Simple, Kind::Write, &stranger, 99), Err(Broken::NotAsked(8)));
    let mut counted = bytes(&[
        Head::status(of(Form::Extended), true, wire::BASE_ALLOCATION_ID, 2),
        Head::extent(Form::Extended, 9, 0),
    ]);
    counted.extend([0; 16]);
    counted[39] = 1;
    assert!(matches!(parts(Form::Extended, Kind::Status, &counted, 99), Err(Broken::Chunk { .. })));
}
