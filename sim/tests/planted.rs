//! Each planted bug is found by the swarm within 1,500 worlds: the checkers detect errors. For some bugs these are
//! worlds of one kind, which is rare among random ones.

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use engine::planted::{Bug, plant};
use sim::machines;
use sim::setup::Focus;
use sim::swarm::{self, Failure, Worlds};

const SEEDS: u64 = 1500;

/// The kind of worlds in which a bug can show, if it is a rare one.
fn focus(bug: Bug) -> Option<Focus> {
    match bug {
        Bug::ClearForgetsEvictions => Some(Focus::Fail),
        Bug::OrderWaitsOnce => Some(Focus::Overlap),
        Bug::HungRequestsTakeAllPlaces => Some(Focus::Hang),
        Bug::DeficitForgotten | Bug::QuantumPerConnection | Bug::BacklogNotCharged => Some(Focus::Cpu),
        Bug::UnsentTakeAllFrames | Bug::StalledNotDisconnected | Bug::StalledTakeAllFrames => Some(Focus::Stall),
        _ => None,
    }
}

/// The same for worlds of several machines.
fn focus_of_machines(bug: Bug) -> Option<machines::Focus> {
    match bug {
        Bug::ZeroedForgotten | Bug::ZeroedAgainOverWrites | Bug::VoidedLegClean => Some(machines::Focus::Zero),
        Bug::RepeatedBeforeEnded => Some(machines::Focus::Linger),
        _ if Bug::TIERS.contains(&bug) => Some(machines::Focus::Tiers),
        // Stores are removed in few worlds, and in few of these while another one is away.
        Bug::RetiredWithDeadVersions => Some(machines::Focus::Forget),
        _ => None,
    }
}

/// Whether a bug concerns worlds of several machines.
fn is_of_machines(bug: Bug) -> bool {
    use Bug::*;
    matches!(
        bug,
        LostSessionForgotten
            | VoidFlushAnswered
            | ZeroedForgotten
            | ZeroedAgainOverWrites
            | FlushCoversLaterWrites
            | OverlapInFlight
            | IdentityNotChecked
            | UnsettledEvicted
            | InheritedNotFlushed
            | RepeatedBeforeEnded
            | EarlierEpochAdmitted
            | EarlierSessionKept
            | ClaimContinuesNothing
    )
}

/// Whether a bug concerns striped volumes.
fn is_of_stripes(bug: Bug) -> bool {
    use Bug::*;
    matches!(
        bug,
        LostLegForgotten | FlushSkipsLeg | FragmentInWrongRow | AnsweredPartTrusted | VoidedLegClean | KeptSwept
    )
}

/// The worlds in which a bug can show.
fn worlds(bug: Bug) -> Worlds {
    match bug {
        Bug::ReclaimNotDurable => Worlds::Stores,
        _ if Bug::OFFLOAD.contains(&bug) => Worlds::Stores,
        _ if Bug::LEASES.contains(&bug) => Worlds::Gateways,
        _ if Bug::CLUSTERS.contains(&bug) => Worlds::Clusters,
        _ if is_of_machines(bug) || Bug::TIERS.contains(&bug) => Worlds::Machines,
        _ if is_of_stripes(bug) => Worlds::Stripes,
        _ => Worlds::Server,
    }
}

fn run(bug: Bug, seed: u64) -> Option<Failure> {
    let outcome = match worlds(bug) {
        Worlds::Server => swarm::run_focused(seed, focus(bug), None),
        Worlds::Machines => swarm::run_machines(seed, focus_of_machines(bug), None),
        Worlds::Stores => swarm::run_stores(seed, focus_of_machines(bug), None),
        Worlds::Stripes => swarm::run_stripes(seed, focus_of_machines(bug), None),
        Worlds::Gateways => swarm::run_gateways(seed, None, None),
        Worlds::Clusters => swarm::run_clusters(seed, None),
    };
    outcome.err()
}

/// The first seed that finds a bug, for bugs that few worlds find, as the full search below found it. It saves time and
/// proves nothing by itself: if this world does not find the bug any more, all are searched, and the output names the
/// new first seed.
fn first_seed(bug: Bug) -> u64 {
    match bug {
        Bug::OrderWaitsOnce => 253,
        Bug::AdmittedShrunk => 105,
        Bug::RetiredFrameUsedAgain => 97,
        Bug::WriteCacheChangedUnflushed => 84,
        Bug::StaleTargetsApplied => 71,
        Bug::OverlapInFlight => 51,
        Bug::OpenedAsFlushed => 73,
        Bug::PrefetchOvertakesRange => 409,
        Bug::RepeatedBeforeEnded => 1618,
        Bug::ClosedBesideDeviceRequests => 210,
        Bug::SuccessorDoesNotWait => 162,
        Bug::UnsentTakeAllFrames => 536,
        Bug::CeilingChargesFirstPiece => 505,
        Bug::FlushCoversLaterWrites => 16,
        Bug::InheritedNotFlushed => 711,
        Bug::EarlierSessionKept | Bug::EarlierEpochAdmitted => 12,
        Bug::ClaimContinuesNothing => 36,
        Bug::UnsentNotBounded => 209,
        Bug::AcknowledgedOutOfOrder => 8,
        Bug::ChecksumNotChecked => 306,
        Bug::HeadPassesTail => 1,
        Bug::OlderVersionWins => 11,
        Bug::LateWritesInLog => 293,
        Bug::DeletionForgotten => 64,
        Bug::HighestDeletedFirst => 174,
        Bug::ReclaimNotDurable => 6,
        Bug::LostLegForgotten => 5,
        Bug::AnsweredPartTrusted => 88,
        Bug::VoidedLegClean => 445,
        Bug::DemotionNotCompared => 84,
        Bug::ZeroedForgotten => 189,
        Bug::DemotionVersionedLate => 106,
        Bug::LeaseIgnored => 183,
        Bug::FencedDirtKept => 49,
        Bug::LeaseEndedEarly => 103,
        Bug::LeaseEndsWithConnection => 142,
        Bug::RestartEndsLeases => 192,
        Bug::RenewedNotNoticed => 522,
        _ => 0,
    }
}

/// The first world that fails because of the bug; a world that also fails without it does not count.
fn find(bug: Bug) -> Option<Failure> {
    let planted = |seed| {
        plant(Some(bug));
        let failure = run(bug, seed);
        plant(None);
        failure.filter(|_| run(bug, seed).is_none())
    };
    std::iter::once(first_seed(bug)).chain(0..SEEDS).find_map(planted)
}

/// Searches for these bugs, on all cores, and prints what found each. Returns the names of those not found.
fn missed(bugs: &[Bug]) -> Vec<&'static str> {
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let look = || {
        while let Some(&bug) = bugs.get(next.fetch_add(1, Relaxed)) {
            let start = Instant::now();
            let found = find(bug);
            let took = start.elapsed().as_secs_f64();
            let said = found.as_ref().map_or("NOT FOUND".to_owned(), |failure| {
                format!("seed {:3}: {}", failure.seed, failure.what.chars().take(120).collect::<String>())
            });
            // Not `println`, which the test harness captures in other threads too.
            let _ = writeln!(std::io::stdout(), "{:28} {took:5.1} s, {said}", bug.name());
            if found.is_none() {
                missed.lock().expect("no thread panics").push(bug.name());
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(look))));
    missed.into_inner().expect("no thread panics")
}

fn all_are_found(of: Worlds) {
    of_which_are_found(|bug| worlds(bug) == of && !Bug::TIERS.contains(&bug));
}

fn of_which_are_found(of: impl Fn(Bug) -> bool) {
    // The hook is that of the process.
    static HOOK: Mutex<()> = Mutex::new(());
    // No machine stops in order, so none uses a map. The third one shows in none of 1,500 worlds in which stores are
    // away; the fourth one needs both stores of a machine away, one of them empty. The worlds of the client of stores
    // alone find them, as all others of it (`make test-planted-long`).
    use Bug::*;
    // A lease that counts from a reply shows if the reply waits for nearly as long as the lease lasts: unit tests of
    // the upstream find that. That a demotion is compared too early shows if it is overtaken while it is received by a
    // write of its block which has left the server's cache by then; what a gateway has read in an earlier session is
    // outdated only if a client without one has written it meanwhile. Neither shows in 700 worlds of two caches: unit
    // tests that run with the bug find them (`make test-planted-long`). So does one for blocks that a range drops too
    // early: about one in 20,000 worlds shows it.
    let is_rare = |bug: Bug| {
        let of_stores = [MapHasNothingHome, MapLeavesNothingOut, RetiredWhileRemembering, InvalidWhileHiding];
        of_stores.contains(&bug)
            || [LeaseFromReply, DemotionComparedEarly, EarlierSessionDemoted, KeptSwept].contains(&bug)
    };
    let bugs: Vec<Bug> = Bug::ALL.iter().copied().filter(|&bug| of(bug) && !is_rare(bug)).collect();
    let missed = {
        let _alone = HOOK.lock();
        // The engine's own assertions find some; their messages are not needed here.
        std::panic::set_hook(Box::new(|_| {}));
        let missed = missed(&bugs);
        let _ = std::panic::take_hook();
        missed
    };
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}

#[test]
fn every_planted_bug_is_found() {
    all_are_found(Worlds::Server);
}

#[test]
fn every_planted_bug_of_several_machines_is_found() {
    all_are_found(Worlds::Machines);
}

#[test]
fn every_planted_bug_of_two_caches_in_a_row_is_found() {
    of_which_are_found(|bug| Bug::TIERS.contains(&bug));
}

#[test]
fn every_planted_bug_of_off_load_is_found() {
    all_are_found(Worlds::Stores);
}

#[test]
fn every_planted_bug_of_striped_volumes_is_found() {
    all_are_found(Worlds::Stripes);
}

#[test]
fn every_planted_bug_of_a_cluster_is_found() {
    all_are_found(Worlds::Clusters);
}

#[test]
fn every_planted_bug_of_leases_is_found() {
    all_are_found(Worlds::Gateways);
}
