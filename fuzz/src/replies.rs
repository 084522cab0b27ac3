//! Any bytes of a server, in any portions: the client's handshake and the reader of replies never panic, read the same
//! however the bytes are divided, and never report a part outside of its request.

use arbitrary::Arbitrary;
use engine::nbd::{Asked, Form, Kind, Opening, Part, Replies, Wanted};

/// The outstanding requests have the cookies 0 to 7.
const COOKIES: u64 = 8;

/// An input of the fuzzer.
#[derive(Arbitrary, Debug)]
pub struct Input {
    portion: u8,
    form: u8,
    tls: bool,
    opens: bool,
    bytes: Vec<u8>,
}

fn asked(cookie: u64) -> Option<Asked> {
    let kind = [Kind::Read, Kind::Status, Kind::Write, Kind::Flush][(cookie % 4) as usize];
    (cookie < COOKIES).then_some(Asked { kind, offset: cookie << 8, len: 512 << (cookie % 3 * 20) })
}

/// What a stream of replies says, up to the first violation.
fn read(form: Form, bytes: &[u8], portion: usize) -> (Vec<(u64, Part)>, bool) {
    let mut replies = Replies::new(form, Some(1));
    let (mut at, mut arrived, mut parts) = (0, 0, Vec::new());
    loop {
        let data = replies.data_bytes().min((arrived - at) as u64);
        if data > 0 {
            replies.took(data);
            at += data as usize;
        }
        let Ok((used, part)) = replies.next(&bytes[at..arrived], asked) else { return (parts, true) };
        at += used;
        if let Some((cookie, part)) = part {
            let request = asked(cookie).expect("only what was asked is answered");
            if let Part::Data { offset, len } | Part::Hole { offset, len } = part {
                let inside = offset >= request.offset && offset + len <= request.offset + request.len;
                assert!(inside && len > 0 && request.kind == Kind::Read, "{part:?} of {request:?}");
            }
            parts.push((cookie, part));
        } else if at == arrived && arrived == bytes.len() {
            return (parts, false);
        } else if at == arrived {
            arrived = bytes.len().min(arrived + portion);
        }
    }
}

fn open(wanted: &Wanted, bytes: &[u8], portion: usize) -> (usize, Vec<u8>, bool) {
    let mut opening = Opening::new(wanted.clone());
    let (mut at, mut arrived, mut sent) = (0, 0, Vec::new());
    while arrived < bytes.len() && opening.opened().is_none() && !opening.wants_tls() {
        arrived = bytes.len().min(arrived + portion);
        let Ok(consumed) = opening.handle(&bytes[at..arrived]) else { return (0, Vec::new(), true) };
        at += consumed;
        sent.extend(opening.take_outgoing());
    }
    (at, sent, false)
}

/// Runs one input.
pub fn run(input: Input) {
    let Input { portion, form, tls, opens, bytes } = input;
    let form = [Form::Simple, Form::Structured, Form::Extended][usize::from(form % 3)];
    let portion = usize::from(portion) + 1;
    if !opens {
        return assert_eq!(read(form, &bytes, bytes.len().max(1)), read(form, &bytes, portion));
    }
    let wanted = Wanted { name: "db".into(), form, base_allocation: true, tls, ..Wanted::default() };
    let (whole, cut) = (open(&wanted, &bytes, bytes.len().max(1)), open(&wanted, &bytes, portion));
    // Bytes in plaintext after STARTTLS are refused only if they have arrived.
    assert!(tls || whole == cut, "{whole:?} is not {cut:?}");
}
