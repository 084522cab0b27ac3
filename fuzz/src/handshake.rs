//! Any bytes, in any portions: the handshake never panics, never needs more bytes at once than an option can have,
//! answers a short input with bounded output, and consumes the same bytes however they are divided.

use engine::nbd::{Export, Exports, Handshake, Outcome};

/// The most that a handshake may need at once: the longest accepted option, and its header.
const WANTED_MAX: usize = (16 << 10) + 16;

fn feed(bytes: &[u8], portion: usize, exports: Exports<'_>) -> (usize, Outcome, Vec<u8>) {
    let mut handshake = Handshake::new();
    let mut outgoing = handshake.take_outgoing();
    let (mut start, mut end) = (0, 0);
    while end < bytes.len() && handshake.outcome() == Outcome::Negotiating {
        end = bytes.len().min(end + portion);
        // The handshake pauses until its answers are sent.
        loop {
            let consumed = handshake.handle(&bytes[start..end], exports);
            start += consumed;
            outgoing.extend(handshake.take_outgoing());
            if consumed == 0 {
                break;
            }
        }
        assert!(end - start <= WANTED_MAX || handshake.outcome() != Outcome::Negotiating);
    }
    (start, handshake.outcome(), outgoing)
}

/// Runs one input.
pub fn run(input: (u8, bool, Vec<u8>)) {
    let (portion, several, bytes) = input;
    let export = |name: &str| Export {
        name: name.into(),
        size: 1 << 30,
        rotational: several,
        description: "d".into(),
        read_only: several,
        identity: several.then_some(7),
        lease_ms: several.then_some(5000),
    };
    let volumes: Vec<_> = if several { vec![export("a"), export("db")] } else { vec![export("a")] };
    let exports = Exports { volumes: &volumes, shutting_down: false };
    let whole = feed(&bytes, usize::MAX / 2, exports);
    let cut = feed(&bytes, usize::from(portion) + 1, exports);
    assert_eq!(whole.1, cut.1);
    assert_eq!(whole.2, cut.2);
    assert!(whole.2.len() <= 64 + 512 * (bytes.len() + 1));
}
