//! The standard swarm: several hundred worlds, each run to its end.

use engine::control::DroppedBlocks;
use sim::machines;
use sim::swarm::{self, Worlds};

/// `make test-swarm` runs others of these.
const SEEDS: u64 = 20;
/// Of worlds of several machines.
const MACHINES_SEEDS: u64 = 60;
/// Seeds of worlds of several machines in which two caches in a row demote. They are not among the former.
const TIERS_SEEDS: std::ops::Range<u64> = 216..240;
/// Of worlds of machines that off-load writes to one another.
const STORES_SEEDS: u64 = 60;
/// Of worlds with striped volumes.
const STRIPES_SEEDS: u64 = 80;
/// Of worlds with two gateways.
const GATEWAYS_SEEDS: u64 = 25;
/// Of worlds of servers that follow a schedule.
const CLUSTERS_SEEDS: u64 = 14;

fn run_all(worlds: Worlds, seeds: u64, option: &str) {
    for seed in 0..seeds {
        if let Err(failure) = swarm::run_one_of(worlds, seed, None) {
            panic!("{}\n{failure}\n  aerogel-lab swarm{option} --seed {seed} --verbose", failure.tail.join("\n"));
        }
    }
}

#[test]
fn every_world_ends_well() {
    run_all(Worlds::Server, SEEDS, "");
}

#[test]
fn every_world_of_machines_ends_well() {
    run_all(Worlds::Machines, MACHINES_SEEDS, " --worlds machines");
}

#[test]
fn every_world_whose_caches_demote_ends_well() {
    let mut sum = machines::Demoted::default();
    for seed in TIERS_SEEDS {
        match swarm::run_machines(seed, Some(machines::Focus::Tiers), None) {
            Ok(world) => sum = sum.and(world.stats.demotions),
            Err(failure) => panic!("{}\n{failure}\n  (with its caches demoting)", failure.tail.join("\n")),
        }
    }
    // Worlds in which nothing of this happens would say nothing about it. Demotions into holes are left out: a gateway
    // knows the holes that it has made, so few worlds have them. A unit test in `volume/demote.rs` covers them.
    println!("{sum:?}, lost: {}", sum.lost());
    let machines::Demoted { unsent, taken, used, dropped, renegotiated, .. } = sum;
    let DroppedBlocks { refused, outdated, overtaken, no_room, present, .. } = dropped;
    let counts = [unsent, taken, used, refused, outdated, overtaken, no_room, present, sum.lost(), renegotiated];
    assert!(counts.iter().all(|&count| count > 0), "{sum:?}, lost: {}", sum.lost());
}

#[test]
fn every_world_of_machines_with_stores_ends_well() {
    run_all(Worlds::Stores, STORES_SEEDS, " --worlds stores");
}

#[test]
fn every_world_with_striped_volumes_ends_well() {
    run_all(Worlds::Stripes, STRIPES_SEEDS, " --worlds stripes");
}

#[test]
fn every_world_of_two_gateways_ends_well() {
    run_all(Worlds::Gateways, GATEWAYS_SEEDS, " --worlds gateways");
}

#[test]
fn every_world_of_a_cluster_ends_well() {
    run_all(Worlds::Clusters, CLUSTERS_SEEDS, " --worlds clusters");
}

#[test]
fn the_same_seed_is_the_same_world() {
    for seed in 1000..1010 {
        for worlds in
            [Worlds::Server, Worlds::Machines, Worlds::Stores, Worlds::Stripes, Worlds::Gateways, Worlds::Clusters]
        {
            let runs = [(); 2].map(|()| swarm::run_one_of(worlds, seed, None).map_err(|failure| failure.to_string()));
            assert_eq!(runs[0], runs[1]);
            assert!(runs[0].is_ok());
        }
    }
}
