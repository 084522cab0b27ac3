//! See `src/replies.rs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| fuzz::replies(input));
