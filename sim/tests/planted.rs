//! Each planted bug is found by the standard swarm within some hundreds of worlds: the checkers see.
#![cfg(feature = "planted-bugs")]

use engine::planted::{Bug, plant};
use sim::swarm;

const SEEDS: u64 = 400;

#[test]
fn every_planted_bug_is_found() {
    // The engine's own assertions find some; their words are not of interest here.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for &bug in Bug::ALL {
        plant(Some(bug));
        let found = (0..SEEDS).find_map(|seed| swarm::run(seed, None).err());
        plant(None);
        match found {
            Some(failure) => {
                let what: String = failure.what.chars().take(120).collect();
                println!("{:28} after {:3} seeds: {what}", bug.name(), failure.seed + 1);
            }
            None => missed.push(bug.name()),
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}
