//! The model of the transmission fuzzer detects bugs: with a bug planted in the engine, an input of the corpus fails.
//! `make test-planted` runs it.

use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use engine::planted::{self, Bug};

/// Bugs that the corpus detects: in flushes, FUA, content, order and replies. Bugs that need a full cache, a policy or
/// several volumes do not show in inputs this short; the simulation detects them.
const FOUND: [Bug; 6] = [
    Bug::FlushDoesNotWait,
    Bug::FlushSkipsDevice,
    Bug::OverlappingWritesReordered,
    Bug::SectorMaskWrong,
    Bug::FuaNotDurable,
    Bug::ReplyCookieMixedUp,
];

fn inputs() -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/transmission");
    let files = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    files.map(|file| fs::read(file.expect("a directory that can be read").path()).expect("an input")).collect()
}

/// How many inputs fail. Each runs with a new server.
fn failing(inputs: &[Vec<u8>]) -> usize {
    inputs.iter().filter(|bytes| panic::catch_unwind(AssertUnwindSafe(|| fuzz::transmission(bytes))).is_err()).count()
}

#[test]
fn each_planted_bug_fails_an_input_of_the_corpus() {
    let inputs = inputs();
    // The output of hundreds of expected panics is of no use.
    panic::set_hook(Box::new(|_| {}));
    assert_eq!(failing(&inputs), 0, "without a bug every input passes");
    let mut missed = Vec::new();
    for bug in FOUND {
        planted::plant(Some(bug));
        let count = failing(&inputs);
        planted::plant(None);
        println!("{}: {count} of {} inputs fail", bug.name(), inputs.len());
        if count == 0 {
            missed.push(bug.name());
        }
    }
    assert!(missed.is_empty(), "no input fails with: {}", missed.join(", "));
}
