//! Replays the corpora: each input still passes. `make fuzz` adds inputs.

use std::fs;
use std::path::Path;

/// Fewer inputs mean that the corpus is missing.
const INPUTS_MIN: usize = 20;
/// Maximum size of all corpora together, bytes, so that they can be kept in the repository.
const BYTES_MAX: u64 = 2 << 20;

#[test]
fn every_kept_input_passes() {
    let mut bytes_total = 0;
    for (name, target) in fuzz::TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        let files = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        let mut inputs = 0;
        for file in files {
            let path = file.expect("a directory that can be read").path();
            let bytes = fs::read(&path).expect("an input");
            bytes_total += bytes.len() as u64;
            // The name of a failing input, for `cargo fuzz run`.
            let outcome = std::panic::catch_unwind(|| target(&bytes));
            assert!(outcome.is_ok(), "{name} fails on {}", path.display());
            inputs += 1;
        }
        assert!(inputs >= INPUTS_MIN, "{} has {inputs} inputs", directory.display());
    }
    assert!(bytes_total <= BYTES_MAX, "the corpora have {bytes_total} bytes: minimise them with `make fuzz-minimise`");
}
