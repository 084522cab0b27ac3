//! What parses bytes from outside, fed with any bytes. One function per fuzzer (`fuzz_targets/`), so that a test can
//! replay the inputs that the fuzzers found (`corpus/`) without them.

mod device;
mod handshake;
mod model;
mod traces;
mod transmission;

use arbitrary::{Arbitrary, Unstructured};

/// Runs a target on what the bytes mean to it. Bytes that are too few mean nothing.
fn decoded<'a, T: Arbitrary<'a>>(bytes: &'a [u8], run: impl FnOnce(T)) {
    if let Ok(input) = T::arbitrary_take_rest(Unstructured::new(bytes)) {
        run(input);
    }
}

/// Handshakes.
pub fn handshake(bytes: &[u8]) {
    decoded(bytes, handshake::run);
}

/// Requests to a server whose device fails now and then.
pub fn transmission(bytes: &[u8]) {
    decoded(bytes, transmission::run);
}

/// Traces of all formats.
pub fn traces(bytes: &[u8]) {
    decoded(bytes, traces::run);
}

/// What runs one input.
pub type Target = fn(&[u8]);

/// Every target, by name.
pub const TARGETS: [(&str, Target); 3] = [("handshake", handshake), ("traces", traces), ("transmission", transmission)];
