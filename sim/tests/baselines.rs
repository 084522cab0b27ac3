//! Worlds under each baseline policy: mixed loads with faults, cancellations (disconnects, ranges that are zeroed),
//! promotions (flushes), restarts, and changes to the policy `insulated` and back. Every world ends, and its checkers
//! find nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use engine::disk::policy::Kind;
use sim::rng::Rng;
use sim::setup::{Focus, Setup};
use sim::world::World;

/// The world of a seed, under a policy; some of its tenants have guarantees.
fn world(seed: u64, kind: Kind, focus: Option<Focus>) -> World {
    let mut setup = Setup::random(seed, focus);
    let rng = &mut Rng::new(seed ^ 0xba5e);
    for tenant in &mut setup.tenants {
        tenant.min_bytes_per_s = rng.pick(&[0, 1_000_000, 20_000_000]);
    }
    setup.config.policy = kind;
    World::new(setup, None)
}

fn end_well(kinds: &[&str], seeds: std::ops::Range<u64>, focus: Option<Focus>) {
    for kind in kinds {
        let kind = kind.parse().expect("a policy");
        for seed in seeds.clone() {
            let mut world = world(seed, kind, focus);
            let verdict = catch_unwind(AssertUnwindSafe(|| world.run()));
            let failure = match verdict {
                Ok(Ok(())) => continue,
                Ok(Err(what)) => what,
                Err(_) => "panic".into(),
            };
            panic!("{}\n{kind}, seed {seed}, {focus:?}: {failure}", world.trace().tail().join("\n"));
        }
    }
}

const BASELINES: [&str; 9] = [
    "token-bucket",
    "token-bucket:1.5",
    "pclock:500ms",
    "sfq",
    "edf",
    "lottery",
    "facade:500ms",
    "mclock",
    "mclock:1.2",
];

#[test]
fn every_world_ends_well_under_each_baseline() {
    end_well(&BASELINES, 0..8, None);
}

#[test]
fn worlds_in_which_requests_of_one_tenant_hang_end_well() {
    end_well(&BASELINES, 0..2, Some(Focus::Hang));
}
