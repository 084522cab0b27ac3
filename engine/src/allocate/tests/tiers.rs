//! Miss ratios of two tiers against exact simulation.

use std::collections::VecDeque;

use super::super::{DiskTime, Evidence, MissRatios, Tiers};
use crate::dice::Rng;

const BLOCKS: usize = 2000;
const WARM: usize = 50_000;
const COUNTED: usize = 150_000;
const STEP: usize = 50;

/// Blocks in order of use.
#[derive(Default)]
struct Lru {
    /// By block: when it was used last; 0 if it is not here.
    used: Vec<u64>,
    /// Uses, the first at the front, also those that later ones have replaced.
    order: VecDeque<(u64, usize)>,
    len: usize,
    clock: u64,
}

impl Lru {
    fn new() -> Lru {
        Lru { used: vec![0; BLOCKS], ..Lru::default() }
    }

    fn has(&self, block: usize) -> bool {
        self.used[block] != 0
    }

    fn remove(&mut self, block: usize) {
        self.len -= usize::from(self.has(block));
        self.used[block] = 0;
    }

    /// Makes this the block used last. What has no room leaves.
    fn insert(&mut self, block: usize, size: usize) -> Option<usize> {
        self.remove(block);
        self.clock += 1;
        self.used[block] = self.clock;
        self.order.push_back((self.clock, block));
        self.len += 1;
        while self.len > size {
            let (used, first) = self.order.pop_front().unwrap();
            if self.used[first] == used {
                self.remove(first);
                return Some(first);
            }
        }
        None
    }
}

/// Hits in the first and in the second tier, of all references.
fn simulate(stream: &[usize], tiers: Tiers, first: usize, second: usize) -> (f64, f64) {
    let (mut client, mut server) = (Lru::new(), Lru::new());
    let (mut first_hits, mut second_hits) = (0, 0);
    for (at, &block) in stream.iter().enumerate() {
        let counts = usize::from(at >= WARM);
        if client.has(block) {
            first_hits += counts;
            client.insert(block, first);
            continue;
        }
        second_hits += counts * usize::from(server.has(block));
        match tiers {
            Tiers::Lru => {
                server.insert(block, second);
                client.insert(block, first);
            }
            Tiers::Demote => {
                server.remove(block);
                if let Some(evicted) = client.insert(block, first) {
                    server.insert(evicted, second);
                }
            }
        }
    }
    let part = |hits: usize| hits as f64 / (stream.len() - WARM) as f64;
    (part(first_hits), part(second_hits))
}

fn zipf(exponent: f64, seed: u64) -> Vec<usize> {
    let mut rng = Rng::new(seed);
    let weights: Vec<f64> = (1..=BLOCKS).map(|rank| (rank as f64).powf(-exponent)).collect();
    let sums: Vec<f64> = weights
        .iter()
        .scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect();
    let pick = |rng: &mut Rng| {
        let at = rng.below(1 << 40) as f64 / (1u64 << 40) as f64 * sums[BLOCKS - 1];
        sums.partition_point(|&sum| sum < at)
    };
    (0..WARM + COUNTED).map(|_| pick(&mut rng)).collect()
}

/// The curve of one LRU cache.
fn curve(stream: &[usize]) -> MissRatios {
    let at = |size: usize| (size as u64, 1.0 - simulate(stream, Tiers::Lru, size, 1).0);
    MissRatios::new([(0, 1.0)].into_iter().chain((STEP..=BLOCKS).step_by(STEP).map(at)))
}

pub(in super::super) fn evidence(tiers: Tiers, reads: MissRatios) -> Evidence {
    Evidence {
        tiers,
        reads,
        writes: MissRatios::new([]),
        read_fraction: 1.0,
        references_per_second: 1.0,
        first_hit_ns: 1e4,
        second_hit_ns: 1e5,
        write_ns: 1e4,
        disk: DiskTime::constant(5e6, 0.0),
        outstanding: 1,
        share_least: 0.0,
        of_model: 1.0,
        think_ns: 0.0,
        round: None,
    }
}

#[test]
fn two_tiers_miss_what_one_would() {
    for exponent in [0.4, 0.95] {
        let stream = zipf(exponent, 1);
        let curve = curve(&stream);
        for tiers in [Tiers::Lru, Tiers::Demote] {
            let evidence = evidence(tiers, curve.clone());
            let (mut errors, mut of_equal) = (Vec::new(), Vec::new());
            for first in [100, 300, 600, 1000] {
                for second in [100, 200, 300, 500, 600, 900, 1000] {
                    let (first_hits, second_hits) = simulate(&stream, tiers, first, second);
                    let predicted = evidence.predict(first as u64, second as u64, 1.0);
                    assert!((predicted.first_hits - first_hits).abs() < 0.01, "{predicted:?}");
                    let error = predicted.misses - (1.0 - first_hits - second_hits);
                    println!(
                        "{tiers:?} {exponent} c {first:4} s {second:4}: {:.3} off by {error:+.4}",
                        predicted.misses
                    );
                    let list = if first == second { &mut of_equal } else { &mut errors };
                    list.push(error.abs());
                }
            }
            let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len() as f64;
            println!("{tiers:?} {exponent}: mean {:.4}, where c = s {:.4}", mean(&errors), mean(&of_equal));
            assert!(mean(&errors) < 0.02, "{tiers:?} {exponent}: {}", mean(&errors));
        }
    }
}

#[test]
fn without_a_first_tier_nothing_hits_there() {
    let prediction = evidence(Tiers::Lru, MissRatios::new([(0, 0.5), (100, 0.1)])).predict(0, 100, 1.0);
    assert_eq!(prediction.first_hits, 0.0);
    assert!((prediction.second_hits - 0.9).abs() < 1e-9 && (prediction.misses - 0.1).abs() < 1e-9, "{prediction:?}");
}
