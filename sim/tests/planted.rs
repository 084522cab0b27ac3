//! Each planted bug is found by the standard swarm within some hundreds of worlds: the checkers see.
#![cfg(feature = "planted-bugs")]

use engine::planted::{Bug, plant};
use sim::swarm::{self, Failure};

const SEEDS: u64 = 600;

/// The first seed of a bug that few worlds find, as the full search below found it. It saves time and proves nothing
/// by itself: if that world does not find the bug any more, all are searched, and the output names the new first seed.
fn first_seed(bug: Bug) -> u64 {
    match bug {
        Bug::OpenedAsFlushed => 146,
        Bug::OrderWaitsOnce => 254,
        Bug::TrimDropsFlushing => 177,
        Bug::FlushWaitsForLaterWrites => 270,
        Bug::PrefetchOvertakesRange => 549,
        Bug::UnsentNotBounded => 209,
        Bug::AdmittedShrunk => 70,
        _ => 0,
    }
}

/// The first world that fails because of the bug; a world that fails without it as well shows nothing.
fn find(bug: Bug) -> Option<Failure> {
    let planted = |seed| {
        plant(Some(bug));
        let failure = swarm::run(seed, None).err();
        plant(None);
        failure.filter(|_| swarm::run(seed, None).is_ok())
    };
    std::iter::once(first_seed(bug)).chain(0..SEEDS).find_map(planted)
}

#[test]
fn every_planted_bug_is_found() {
    // The engine's own assertions find some; their words are not of interest here.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for &bug in Bug::ALL {
        match find(bug) {
            Some(failure) => {
                let what: String = failure.what.chars().take(120).collect();
                println!("{:28} in the world of seed {:3}: {what}", bug.name(), failure.seed);
            }
            None => missed.push(bug.name()),
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}
