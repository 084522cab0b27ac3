//! Everything that parses bytes from outside, fed with arbitrary bytes. There is one function per fuzzer
//! (`fuzz_targets/`), so that a test can replay the inputs that the fuzzers found (`corpus/`) without a fuzzer.

mod device;
mod handshake;
mod model;
mod replies;
mod traces;
mod transmission;

use arbitrary::{Arbitrary, Unstructured};

/// Runs a target on the decoded bytes. Too few bytes are ignored.
fn decoded<'a, T: Arbitrary<'a>>(bytes: &'a [u8], run: impl FnOnce(T)) {
    if let Ok(input) = T::arbitrary_take_rest(Unstructured::new(bytes)) {
        run(input);
    }
}

/// Handshakes.
pub fn handshake(bytes: &[u8]) {
    decoded(bytes, handshake::run);
}

/// What servers send to a client.
pub fn replies(bytes: &[u8]) {
    decoded(bytes, replies::run);
}

/// Requests to a server whose device fails sometimes.
pub fn transmission(bytes: &[u8]) {
    decoded(bytes, transmission::run);
}

/// Traces of all formats.
pub fn traces(bytes: &[u8]) {
    decoded(bytes, traces::run);
}

/// A function that runs one input.
pub type Target = fn(&[u8]);

/// Every target, by name.
pub const TARGETS: [(&str, Target); 4] =
    [("handshake", handshake), ("replies", replies), ("traces", traces), ("transmission", transmission)];
