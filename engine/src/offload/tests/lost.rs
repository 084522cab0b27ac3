//! Stores that are declared lost and come back.

use super::invalid::{away, fail_all, pass, write};
use super::*;

fn lose(world: &mut World, store: usize) -> bool {
    let store = StoreId(store as u8);
    let is_lost = world.offload.lose(world.now, store);
    world.act();
    assert_eq!(world.offload.stats(store).is_lost, is_lost);
    is_lost
}

/// The store that has the newest content.
fn holder(world: &World) -> usize {
    world.offload.stores.iter().position(|store| store.live_bytes > 0).expect("something is away")
}

#[test]
fn a_lost_store_that_comes_back_takes_no_writes() {
    let mut world = away(1);
    let lost = holder(&world);
    assert!(!lose(&mut world, lost), "it is open");
    write(&mut world, (0, 1), 70);
    pass(&mut world);
    assert!(world.offload.stores[lost].is_open());
    fail_all(&mut world);
    assert!(lose(&mut world, lost), "{}", world.offload.describe());
    world.is_down.fill(false);
    let before = world.stores[lost].clone();
    for round in 0..100 {
        pass(&mut world);
        if world.offload.choose(world.now, VOLUME, bytes((0, 2)), 0, || 0) == Choice::Stores {
            write(&mut world, (0, 2), 100 + round);
        }
    }
    let open = world.offload.mask(Store::is_open);
    assert_eq!(open, 0b111 & !(1 << lost), "the others are used again");
    assert!(world.stores[lost] == before && holder(&world) != lost, "{}", world.offload.describe());
}

#[test]
fn what_lands_when_a_store_is_lost_opens_nothing() {
    let mut world = away(1);
    let lost = holder(&world);
    fail_all(&mut world);
    world.is_down.fill(false);
    while world.offload.stores[lost].state != State::Opening {
        world.now += 100 * MILLISECOND;
        world.offload.timer(world.now);
        world.act();
    }
    assert!(lose(&mut world, lost));
    (0..100).for_each(|_| pass(&mut world));
    assert!(matches!(world.offload.stores[lost].state, State::Closed(_)));
}

#[test]
fn a_store_that_was_missing_and_is_lost_does_not_arrive() {
    let mut world = World::new(5);
    world.copies = 2;
    world.is_down = vec![true, false, false];
    world.die();
    let missing = (0..STORES).find(|&store| world.offload.stats(StoreId(store as u8)).is_missing).expect("one is");
    assert!(lose(&mut world, missing));
    let recovered = world.scan(missing);
    assert!(!world.offload.arrived(world.now, StoreId(missing as u8), recovered));
    assert!(world.offload.stats(StoreId(missing as u8)).is_missing);
}

#[test]
fn what_is_home_is_declared_invalid_in_a_lost_store() {
    let mut world = away(1);
    let lost = holder(&world);
    world.reclaim();
    world.base_written();
    world.flush();
    fail_all(&mut world);
    // Before anybody has seen it.
    world.offload.invalid = None;
    assert!(lose(&mut world, lost));
    (0..100).for_each(|_| pass(&mut world));
    let invalid = world.offload.stats_of_all(world.now).invalid.expect("all is home");
    assert!(invalid.stores >> lost & 1 != 0);
    world.offload.invalidate(world.now, invalid);
    world.act();
    assert_eq!(world.offload.choose(world.now, VOLUME, bytes((1, 3)), 0, || 0), Choice::Base);
}
