//! The standard swarm: several hundred worlds, each run to its end.

use sim::swarm;

const SEEDS: u64 = 300;

#[test]
fn every_world_ends_well() {
    for seed in 0..SEEDS {
        if let Err(failure) = swarm::run(seed, None) {
            panic!("{}\n{failure}\n  aerogel-lab swarm --seed {seed} --verbose", failure.tail.join("\n"));
        }
    }
}

#[test]
fn the_same_seed_is_the_same_world() {
    for seed in 1000..1010 {
        let runs =
            [swarm::run(seed, None), swarm::run(seed, None)].map(|run| run.map_err(|failure| failure.to_string()));
        assert_eq!(runs[0], runs[1]);
        assert!(runs[0].is_ok());
    }
}
