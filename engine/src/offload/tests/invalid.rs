//! Stores that cannot be written are emptied without a record in them.

use super::*;

impl World {
    /// A store goes down, perhaps only for writes, or comes back.
    pub(super) fn toggle(&mut self) {
        let store = self.rng.below(STORES as u64) as usize;
        self.is_down[store] = !self.is_down[store] && self.rng.one_in(2);
        self.is_readable[store] = self.rng.one_in(2);
        self.log.push(format!("store {store} is down: {}", self.is_down[store]));
        self.meet(store);
    }

    /// What can be declared invalid is. The process may die when that is durable and the machine does not know it.
    pub(super) fn invalidate(&mut self) {
        let Some(invalid) = self.offload.find_invalid() else { return };
        self.log.push(format!("invalid: {invalid:x?}"));
        for store in (0..STORES).filter(|&store| invalid.stores & StoreId(store as u8).bit() != 0) {
            if self.breach != Some(Breach::InvalidForgotten) {
                self.invalid[store] = invalid.below;
            }
        }
        if self.rng.one_in(4) {
            return;
        }
        self.offload.invalidate(self.now, invalid);
        self.act();
    }
}

/// What is on its way to stores ends, and time passes.
pub(super) fn pass(world: &mut World) {
    while !world.tickets.is_empty() {
        world.stored();
    }
    world.now += 100 * MILLISECOND;
    world.offload.timer(world.now);
    world.act();
}

/// A write goes to stores.
pub(super) fn write(world: &mut World, units: (usize, usize), value: u64) {
    let io = world.io();
    world.busy.insert(io, Busy::Write { units, value });
    world.units[units.0..units.1].iter_mut().for_each(|unit| unit.possible.push(value));
    world.offload.write(world.now, VOLUME, io, bytes(units), 0);
    world.act();
}

/// A world whose stores have the newest content of two units.
pub(super) fn away(copies: usize) -> World {
    let mut world = World::new(5);
    world.copies = copies;
    world.die();
    world.is_down.fill(false);
    while !world.offload.is_ready(VOLUME) {
        pass(&mut world);
    }
    write(&mut world, (0, 2), 7);
    while !world.tickets.is_empty() {
        world.stored();
    }
    assert_eq!(world.offload.away_bytes(VOLUME), 2 * UNIT, "a seed in which no write fails");
    world
}

/// All writes to stores fail for ten seconds.
pub(super) fn fail_all(world: &mut World) {
    world.is_down.fill(true);
    // One store after the other finds out.
    if world.offload.stores.iter().any(Store::is_open) {
        write(world, (8, 9), 8);
    }
    (0..100).for_each(|_| pass(world));
}

#[test]
fn what_is_home_is_written_there_although_no_store_takes_writes() {
    let mut world = away(1);
    fail_all(&mut world);
    let holder = world.offload.mask(|store| store.live_bytes > 0);
    let invalid = world.offload.stats_of_all(world.now).invalid;
    assert!(invalid.is_none_or(|invalid| invalid.stores & holder == 0), "it has the newest content: {invalid:?}");
    assert_eq!(world.offload.choose(world.now, VOLUME, bytes((1, 3)), 0, || 0), Choice::Wait);
    // Reads still work.
    world.is_down.fill(false);
    world.reclaim();
    world.base_written();
    world.flush();
    assert_eq!(world.offload.away_bytes(VOLUME), 0);
    assert_eq!(world.offload.choose(world.now, VOLUME, bytes((1, 3)), 0, || 0), Choice::Wait, "older content is there");
    fail_all(&mut world);
    let invalid = world.offload.stats_of_all(world.now).invalid.expect("all is home");
    (0..STORES).for_each(|store| world.invalid[store] = invalid.below);
    world.offload.invalidate(world.now, invalid);
    world.act();
    assert_eq!(world.offload.choose(world.now, VOLUME, bytes((1, 3)), 0, || 0), Choice::Base);
    assert!(!world.offload.has_versions(VOLUME));
    // Nothing goes there that need not, before a record was written.
    assert_eq!(world.offload.choose(world.now, VOLUME, bytes((1, 3)), 100, || 0), Choice::Base);
    world.is_down.fill(false);
    world.die();
    world.finish();
}

#[test]
fn a_store_that_can_only_be_read_when_a_process_begins_is_emptied() {
    for copies in [1, 2] {
        let mut world = away(copies);
        let holders = world.offload.mask(|store| store.live_bytes > 0);
        world.die();
        // It was scanned, and takes no writes. The others do.
        (0..STORES).for_each(|store| world.is_down[store] = holders >> store & 1 != 0);
        world.is_readable.fill(true);
        (0..20).for_each(|_| pass(&mut world));
        assert!(!world.offload.is_ready(VOLUME), "an earlier process has used it");
        for _ in 0..100 {
            world.reclaim();
            world.base_written();
            world.flush();
            pass(&mut world);
        }
        assert_eq!(world.offload.away_bytes(VOLUME), 0, "not home: {}", world.offload.describe());
        for _ in 0..100 {
            pass(&mut world);
            if let Some(invalid) = world.offload.stats_of_all(world.now).invalid {
                (0..STORES).filter(|store| invalid.stores >> store & 1 != 0).for_each(|store| {
                    world.invalid[store] = invalid.below;
                });
                world.offload.invalidate(world.now, invalid);
                world.act();
            }
        }
        assert!(world.offload.is_ready(VOLUME), "with {copies} copies");
        world.check();
        world.is_down.fill(false);
        world.die();
        world.finish();
    }
}

#[test]
fn the_age_of_what_an_earlier_process_wrote_counts_from_the_start() {
    let mut world = World::new(5);
    world.copies = 1;
    world.now = 1_000_000 * SECOND;
    world.die();
    while !world.offload.is_ready(VOLUME) {
        pass(&mut world);
    }
    write(&mut world, (0, 2), 7);
    pass(&mut world);
    let age = |world: &mut World| {
        let stats = world.offload.stats_of_all(world.now);
        (stats.oldest_ns.expect("something is away") / SECOND, stats.oldest_is_early)
    };
    world.now += 3 * SECOND;
    assert_eq!(age(&mut world), (3, false));
    world.die();
    world.now += 2 * SECOND;
    assert_eq!(age(&mut world), (2, true));
}
