//! Curves against naive caches, sampled curves against exact ones.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::units::SECOND;

const VOLUME: VolumeId = VolumeId(0);
const WHOLE: SectorMask = SectorMask::MAX;
const AGE: Nanos = 5 * SECOND;

fn curve(limits: Limits, seed: u64) -> Curve {
    let mut curve = Curve::new(limits, seed);
    curve.opened(VOLUME);
    curve.opened(VolumeId(1));
    curve
}

fn exact(blocks_max: u64) -> Curve {
    curve(Limits { places_max: 0, ..Limits::exact(blocks_max, AGE) }, 0)
}

/// A Weyl sequence through the finaliser of splitmix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, past: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(past)) >> 64) as u64
    }

    /// Approximately Zipf's law with exponent 1: uniform in the logarithm.
    fn zipf(&mut self, past: u64) -> u64 {
        let unit = self.below(1 << 53) as f64 / (1_u64 << 53) as f64;
        ((past as f64).powf(unit) as u64 - 1) * 7919 % past
    }
}

#[derive(Clone, Copy, Debug)]
enum Ask {
    Read(u64, SectorMask),
    Write(u64, SectorMask),
    Ahead(u64),
}

fn ask() -> impl Strategy<Value = Ask> {
    let sectors = prop_oneof![Just(WHOLE), 1..=WHOLE];
    prop_oneof![
        6 => (0u64..40, sectors.clone()).prop_map(|(block, sectors)| Ask::Read(block, sectors)),
        3 => (0u64..40, sectors).prop_map(|(block, sectors)| Ask::Write(block, sectors)),
        1 => (0u64..40).prop_map(Ask::Ahead),
    ]
}

/// An LRU cache of `size` blocks: the number of reads that it does not absorb.
fn naive_lru(asks: &[Ask], size: usize) -> f64 {
    // Newest first: number, valid sectors, whether it was only prefetched.
    let mut cache: VecDeque<(u64, SectorMask, bool)> = VecDeque::new();
    let (mut reads, mut misses) = (0, 0);
    for &ask in asks {
        let block = match ask {
            Ask::Read(block, _) | Ask::Write(block, _) | Ask::Ahead(block) => block,
        };
        let found = cache.iter().position(|item| item.0 == block).and_then(|at| cache.remove(at));
        let item = match ask {
            Ask::Read(_, sectors) => {
                reads += 1;
                misses += u32::from(found.is_none_or(|(_, valid, ahead)| sectors & !valid != 0 || ahead));
                (block, WHOLE, false)
            }
            // A prefetched block that is overwritten in part does not count as absorbed by the cache either.
            Ask::Write(_, sectors) => {
                let valid = found.filter(|item| !item.2).map_or(0, |item| item.1);
                (block, valid | sectors, false)
            }
            Ask::Ahead(_) => found.unwrap_or((block, WHOLE, true)),
        };
        cache.push_front(item);
        cache.truncate(size);
    }
    f64::from(misses) / f64::from(reads)
}

fn feed(curve: &mut Curve, asks: &[Ask], ack: Ack) {
    for &ask in asks {
        match ask {
            Ask::Read(block, sectors) => curve.read(0, VOLUME, block, sectors, false),
            Ask::Write(block, sectors) => curve.write(0, VOLUME, block, sectors, ack),
            Ask::Ahead(block) => curve.read_ahead(0, VOLUME, block),
        }
    }
}

proptest! {
    /// The curve has at every size the miss ratio of a naive cache of that size.
    #[test]
    fn an_exact_curve_is_what_caches_do(asks in prop::collection::vec(ask(), 1..400)) {
        prop_assume!(asks.iter().any(|ask| matches!(ask, Ask::Read(..))));
        let mut curve = exact(64);
        feed(&mut curve, &asks, Ack::Durable);
        for point in curve.view(EvictionPolicy::Lru).points {
            let naive = naive_lru(&asks, point.blocks as usize);
            let ours = point.reads.unwrap();
            prop_assert!((ours - naive).abs() < 1e-9, "{} blocks: {ours} instead of {naive}", point.blocks);
        }
    }

    /// Miniature caches of full size, under LRU, agree with the curve of LRU.
    #[test]
    fn miniatures_at_full_size_agree_with_the_curve(asks in prop::collection::vec(0u64..3000, 1000..4000)) {
        let limits = Limits { what_if: EvictionPolicy::Lru, ..Limits::exact(2048, AGE) };
        let mut curve = curve(limits, 0);
        for &block in &asks {
            // Low block numbers more often.
            curve.read(0, VOLUME, block * block / 3000, WHOLE, false);
        }
        let lru = curve.view(EvictionPolicy::Lru);
        let caches: Vec<_> = curve.counts(EvictionPolicy::Sieve).points_of_caches().collect();
        prop_assert_eq!(caches.len(), 2);
        for (size, reads, _) in caches {
            let point = lru.points.iter().find(|point| point.blocks == size).unwrap();
            prop_assert!((point.reads.unwrap() - reads.unwrap()).abs() < 1e-9);
        }
    }

    /// For any requests the memory is bounded, and the curve decreases with size.
    #[test]
    fn memory_is_bounded_and_curves_fall(seed: u64, blocks in 1u64..1_000_000, bytes in 16_384usize..262_144) {
        let limits = Limits::within(bytes, 1 << 16, AGE);
        prop_assert!(limits.bytes() <= bytes);
        let mut curve = curve(limits, seed);
        let mut dice = Dice(seed);
        for _ in 0..20_000 {
            let (block, sectors) = (dice.zipf(blocks), dice.next() as SectorMask | 1);
            match dice.below(4) {
                0 => curve.write(dice.0 % AGE, VOLUME, block, sectors, Ack::Cached),
                1 => curve.read_ahead(0, VOLUME, block),
                _ => curve.read(0, VOLUME, block, sectors, false),
            }
            prop_assert!(curve.samples.recorded() as usize <= limits.samples_max.unwrap());
        }
        let view = curve.view(EvictionPolicy::Lru);
        prop_assert!(view.points.windows(2).all(|pair| pair[0].blocks < pair[1].blocks && pair[0].all >= pair[1].all));
        prop_assert!(view.points.iter().all(|point| (0.0..=1.0).contains(&point.all.unwrap())));
        prop_assert!((view.reads + view.writes - curve.references as f64).abs() < 0.3 * curve.references as f64);
    }
}

#[test]
fn one_mebibyte_is_enough_for_everything() {
    let limits = Limits::within(1 << 20, 1 << 21, AGE);
    assert!(limits.bytes() <= 1 << 20);
    assert_eq!(limits.samples_max, Some(SAMPLES_MAX));
    assert!(limits.places_max >= 256, "{limits:?}");
}

/// The miss ratio of writes with `blocks` of cache, after the writes of `story`.
fn writes(blocks: u64, story: impl Fn(&mut Curve)) -> f64 {
    let mut curve = exact(1024);
    story(&mut curve);
    let view = curve.view(EvictionPolicy::Lru);
    view.points.iter().rfind(|point| point.blocks <= blocks).unwrap().writes.unwrap()
}

#[test]
fn overwrites_of_dirty_blocks_are_absorbed() {
    let twice = |between: &dyn Fn(&mut Curve)| {
        writes(1024, |curve| {
            curve.write(0, VOLUME, 7, WHOLE, Ack::Cached);
            between(curve);
            curve.write(4 * SECOND, VOLUME, 7, 1, Ack::Cached);
        })
    };
    assert_eq!(twice(&|_| ()), 0.5);
    assert_eq!(twice(&|curve| curve.flushed(VolumeId(1))), 0.5, "another volume's flush");
    assert_eq!(twice(&|curve| curve.flushed(VOLUME)), 1.0);
    assert_eq!(twice(&|curve| curve.dropped(VOLUME, 0, 100)), 1.0, "trimmed");
    let slowly = |ns| {
        writes(1024, |curve| {
            (0..3).for_each(|i| curve.write(i * ns, VOLUME, 7, WHOLE, Ack::Cached));
        })
    };
    assert!((slowly(2 * SECOND) - 1.0 / 3.0).abs() < 1e-9);
    // The block is dirty since 0 s, so it is written at 5 s and clean at 6 s.
    assert!((slowly(3 * SECOND) - 2.0 / 3.0).abs() < 1e-9);
    let durably = writes(1024, |curve| {
        curve.write(0, VOLUME, 7, WHOLE, Ack::Cached);
        curve.write(0, VOLUME, 7, WHOLE, Ack::Durable);
        curve.write(0, VOLUME, 7, WHOLE, Ack::Cached);
    });
    assert_eq!(durably, 1.0, "the durable one writes, and what it wrote is clean");
}

#[test]
fn half_a_partition_may_be_dirty() {
    // Ten other blocks become dirty in between: twice that number, and the block itself, have to fit.
    let story = |curve: &mut Curve| {
        (0..11).for_each(|block| curve.write(0, VOLUME, block, WHOLE, Ack::Cached));
        curve.write(0, VOLUME, 0, WHOLE, Ack::Cached);
    };
    assert_eq!([writes(20, story), writes(22, story)], [1.0, 11.0 / 12.0]);
}

#[test]
fn what_is_dropped_is_nowhere() {
    for blocks in [1, 100] {
        let mut curve = exact(1024);
        (0..10).for_each(|block| curve.read(0, VOLUME, block, WHOLE, false));
        curve.read(0, VolumeId(1), 3, WHOLE, false);
        curve.dropped(VOLUME, 3, 3 + blocks);
        let absorbed = |curve: &Curve| curve.view(EvictionPolicy::Lru).misses(1024).unwrap() < 1.0;
        curve.read(0, VOLUME, 3, WHOLE, false);
        assert!(!absorbed(&curve));
        curve.read(0, VolumeId(1), 3, WHOLE, false);
        assert!(absorbed(&curve));
    }
}

#[test]
fn holes_are_absorbed_by_any_size() {
    let mut curve = exact(1024);
    curve.read(0, VOLUME, 1, WHOLE, true);
    curve.read(0, VOLUME, 2, WHOLE, false);
    assert_eq!(curve.view(EvictionPolicy::Lru).misses(1), Some(0.5));
}

/// The mean distance of two curves over all sizes in both; each octave of sizes has the same weight.
fn distance(a: &View, b: &View) -> f64 {
    let both = a.points.iter().filter(|point| point.blocks >= MINIATURE_MIN);
    let distances: Vec<_> = both.map(|point| (point.all.unwrap() - b.misses(point.blocks).unwrap()).abs()).collect();
    distances.iter().sum::<f64>() / distances.len() as f64
}

/// Mean absolute errors of a sampled curve: of LRU, and of the miniature caches.
fn errors(seed: u64, references: u64, mut next: impl FnMut(&mut Dice) -> u64) -> (f64, f64) {
    const SIZES: u64 = 1 << 18;
    let sampled = Limits { fades: false, ..Limits::within(1 << 20, SIZES, AGE) };
    let mut sampled = curve(sampled, seed);
    let mut exact = curve(Limits::exact(SIZES, AGE), 0);
    let mut dice = Dice(seed);
    for i in 0..references {
        let (now, block, kind) = (i * 10_000, next(&mut dice), dice.below(4));
        for curve in [&mut sampled, &mut exact] {
            match kind {
                0 => curve.write(now, VOLUME, block, WHOLE, Ack::Cached),
                _ => curve.read(now, VOLUME, block, WHOLE, false),
            }
        }
    }
    let error = |policy| distance(&sampled.view(policy), &exact.view(policy));
    (error(EvictionPolicy::Lru), error(EvictionPolicy::Sieve))
}

#[test]
fn samples_are_close_to_everything() {
    let mut at = 0;
    let zipf = errors(1, 500_000, |dice| dice.zipf(100_000));
    let mixed = errors(2, 500_000, |dice| {
        at += 1;
        if at % 3 == 0 { 1_000_000 + at / 3 % 200_000 } else { dice.zipf(50_000) }
    });
    println!("mean absolute errors (LRU, SIEVE): Zipf {zipf:?}, scan and Zipf {mixed:?}");
    for (lru, sieve) in [zipf, mixed] {
        assert!(lru <= 0.01 && sieve <= 0.03, "{lru} {sieve}");
    }
}

#[test]
fn a_changed_working_set_shows() {
    let mut curve = curve(Limits::within(1 << 20, 1 << 18, AGE), 3);
    let mut dice = Dice(3);
    (0..1_000_000).for_each(|_| curve.read(0, VOLUME, dice.below(10_000), WHOLE, false));
    let half = |curve: &Curve| curve.view(EvictionPolicy::Lru).misses(10_000).unwrap();
    assert!(half(&curve) < 0.02, "{}", half(&curve));
    (0..1_000_000).for_each(|_| curve.read(0, VOLUME, 50_000 + dice.below(40_000), WHOLE, false));
    assert!((half(&curve) - 0.75).abs() < 0.04, "{}", half(&curve));
}

#[test]
fn after_a_long_scan_a_small_working_set_is_seen_well_again() {
    let mut curve = curve(Limits::within(1 << 20, 1 << 16, AGE), 4);
    let mut dice = Dice(4);
    (0..2_000_000).for_each(|block| curve.read(0, VOLUME, block, WHOLE, false));
    let coarse = curve.view(EvictionPolicy::Lru).rate;
    assert!(coarse <= 1.0 / 8.0);
    (0..5_000_000).for_each(|_| curve.read(0, VOLUME, dice.below(1000), WHOLE, false));
    let view = curve.view(EvictionPolicy::Lru);
    assert!(view.rate >= 0.25, "{}", view.rate);
    assert!((view.misses(500).unwrap() - 0.5).abs() < 0.06 && view.misses(1100).unwrap() < 0.01, "{view:?}");
}
