//! The closed loop against a simulation of clients and slices.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::super::{Depth, DiskTime, Evidence, Interruption, Loss, MissRatios, Round, Tiers};
use crate::dice::Rng;

const SECONDS: f64 = 1000.0;
/// Milliseconds.
const SERVICE: f64 = 4.0;

fn exponential(rng: &mut Rng, mean: f64) -> f64 {
    -(1.0 - rng.below(1 << 32) as f64 / (1u64 << 32) as f64).ln() * mean
}

/// Clients that think, and a disk that is theirs at the beginning of each round. Milliseconds. A request starts only in
/// a slice; one that ends after it shortens the next. Mean response, and requests per millisecond.
struct Simulation {
    clients: u32,
    think: f64,
    share: f64,
    round: f64,
    /// Of each slice, at its beginning.
    loss: f64,
    is_deterministic: bool,
}

impl Simulation {
    fn run(&self, rng: &mut Rng) -> (f64, f64) {
        let mut thinking: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
        // Nanoseconds order in a heap.
        let stamp = |at: f64| (at * 1e6) as u64;
        for _ in 0..self.clients {
            thinking.push(Reverse(stamp(exponential(rng, self.think))));
        }
        let mut queue: VecDeque<f64> = VecDeque::new();
        let (mut now, mut responses, mut count) = (0.0f64, 0.0f64, 0u32);
        // The slice: when it begins and ends, and until when the disk worked for it.
        let (mut begins, mut ends, mut worked) = (0.0f64, self.share * self.round, 0.0f64);
        while now < SECONDS * 1000.0 {
            while thinking.peek().is_some_and(|at| at.0 <= stamp(now)) {
                queue.push_back(thinking.pop().unwrap().0 as f64 / 1e6);
            }
            if queue.is_empty() {
                let Some(Reverse(next)) = thinking.peek() else { unreachable!("a client thinks or waits") };
                now = now.max(*next as f64 / 1e6 + 1e-6);
                continue;
            }
            while self.share < 1.0 && now >= ends {
                let debt = (worked - ends).max(0.0);
                begins += self.round;
                ends = begins + self.share * self.round - debt;
                worked = begins;
            }
            now = now.max(if self.share < 1.0 { begins + self.loss } else { 0.0 });
            let service = if self.is_deterministic { SERVICE } else { exponential(rng, SERVICE) };
            let arrived = queue.pop_front().unwrap();
            now += service;
            worked = now;
            responses += now - arrived;
            count += 1;
            thinking.push(Reverse(stamp(now + exponential(rng, self.think))));
        }
        (responses / f64::from(count), f64::from(count) / now)
    }

    fn evidence(&self) -> Evidence {
        Evidence {
            tiers: Tiers::Lru,
            reads: MissRatios::new([]),
            writes: MissRatios::new([]),
            read_fraction: 1.0,
            references_per_second: 0.0,
            first_hit_ns: 0.0,
            second_hit_ns: 0.0,
            write_ns: 0.0,
            disk: DiskTime::constant(SERVICE * 1e6, 0.0),
            outstanding: self.clients,
            share_least: 0.0,
            of_model: 1.0,
            think_ns: self.think * 1e6,
            round: Some(Round {
                others_ns: (1.0 - self.share) * self.round * 1e6,
                round_ns_max: self.round * 1e6,
                loss: Loss { switch_ns: self.loss * 1e6, closing_ns: 0.0 },
                interruption: None,
            }),
        }
    }

    fn predicted(&self) -> (f64, f64) {
        let prediction = self.evidence().predict(0, 0, self.share);
        (prediction.disk_ns / 1e6, prediction.references_per_second / 1e3)
    }
}

#[test]
fn without_slices_the_law_is_exact() {
    let mut rng = Rng::new(1);
    for clients in [1, 5, 16] {
        for think in [0.0, 1.0, 10.0, 100.0] {
            let loops = Simulation { clients, think, share: 1.0, round: 100.0, loss: 0.0, is_deterministic: false };
            let ((response, rate), (response_predicted, rate_predicted)) = (loops.run(&mut rng), loops.predicted());
            let errors = [response_predicted / response - 1.0, rate_predicted / rate - 1.0];
            assert!(errors.iter().all(|error| error.abs() < 0.03), "{clients} clients think {think} ms: {errors:?}");
        }
    }
}

#[test]
fn the_wait_for_a_slice_is_that_of_a_simulation() {
    let mut rng = Rng::new(2);
    for is_deterministic in [false, true] {
        let mut errors = Vec::new();
        let mut of_paper = Vec::new();
        for clients in [1, 4, 16] {
            for think in [0.0, 1.0, 10.0, 100.0, 1000.0] {
                for share in [0.125, 0.25, 0.5, 0.75] {
                    for round in [40.0, 200.0, 1000.0] {
                        let loops = Simulation { clients, think, share, round, loss: 0.0, is_deterministic };
                        let (response, _) = loops.run(&mut rng);
                        let (predicted, _) = loops.predicted();
                        errors.push((predicted / response - 1.0).abs());
                        of_paper.push((f64::from(clients) * SERVICE / share / response - 1.0).abs());
                        println!(
                            "N {clients:2} Z {think:6} share {share:5} T {round:6}: {response:8.2} off by {:+.2}",
                            predicted / response - 1.0
                        );
                    }
                }
            }
        }
        let mean = |errors: &[f64]| errors.iter().sum::<f64>() / errors.len() as f64;
        println!("deterministic {is_deterministic}: mean {:.3}, of the paper's {:.3}", mean(&errors), mean(&of_paper));
        assert!(mean(&errors) < 0.05, "{}", mean(&errors));
    }
}

#[test]
fn a_loss_per_slice_counts_more_in_short_slices() {
    let mut rng = Rng::new(3);
    let mut errors = Vec::new();
    for clients in [1, 8] {
        for think in [0.0, 20.0, 100.0] {
            for share in [0.125, 0.5] {
                let loops = |loss| Simulation { clients, think, share, round: 200.0, loss, is_deterministic: true };
                let (with, without) = (loops(8.0), loops(0.0));
                let (response, predicted) = (with.run(&mut rng).0, with.predicted().0);
                println!("N {clients} Z {think} share {share}: {response:.1}, predicted {predicted:.1}");
                assert!(predicted > without.predicted().0, "{predicted}");
                errors.push((predicted / response - 1.0).abs());
            }
        }
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    assert!(mean < 0.06, "{mean}: {errors:.2?}");
}

#[test]
fn a_batch_of_write_back_delays_reads_beyond_the_time_that_it_takes() {
    let loops = Simulation { clients: 4, think: 40.0, share: 0.5, round: 200.0, loss: 0.0, is_deterministic: false };
    let with = |delay_ns: f64| {
        let disk = DiskTime { delay_ns, ..DiskTime::constant(SERVICE * 1e6, 1e6) };
        let evidence = Evidence { read_fraction: 0.5, writes: MissRatios::new([(0, 1.0)]), disk, ..loops.evidence() };
        evidence.predict(0, 0, loops.share)
    };
    let (even, batches) = (with(0.0), with(30e6));
    // As much of the disk time is write-back as there are writes: one of 1 ms for each read.
    let part = batches.references_per_second / 2.0 * 1e-3 / loops.share;
    let longer_ns = batches.disk_ns - even.disk_ns;
    assert!((longer_ns / (30e6 * part) - 1.0).abs() < 0.2, "{longer_ns} {part}");
    // N = X (Z + L) whatever the delay; half of the references read the disk.
    let clients = batches.references_per_second / 1e9 * (batches.latency_ns + loops.think * 1e6);
    assert!((clients / 4.0 - 1.0).abs() < 0.01, "{clients}");
}

#[test]
fn a_round_that_is_not_known_is_none() {
    let loops = Simulation { clients: 4, think: 10.0, share: 0.25, round: 100.0, loss: 0.0, is_deterministic: false };
    let with = |round: Option<Round>| Evidence { round, ..loops.evidence() }.predict(0, 0, loops.share);
    let of_rate = with(None);
    assert!(of_rate.latency_ns.is_finite());
    let known = loops.evidence().round.unwrap();
    assert_eq!(with(Some(Round { others_ns: 0.0, ..known })), of_rate);
    assert_ne!(with(Some(known)), of_rate);
}

#[test]
fn requests_interrupt_as_long_as_unused_time_pays() {
    let loops = |think: f64, share: f64| Simulation {
        clients: 1,
        think,
        share,
        round: 1000.0,
        loss: 0.0,
        is_deterministic: false,
    };
    let response = |think: f64, share: f64, interruption: Option<Interruption>| {
        let mut evidence = loops(think, share).evidence();
        evidence.round = evidence.round.map(|round| Round { interruption, ..round });
        evidence.predict(0, 0, share).disk_ns / 1e6
    };
    let costs = |cost: f64| Some(Interruption { delay_ns: 30e6, cost_ns: cost * 1e6 });
    // A request every second costs 54 ms of 250.
    let paid = response(1000.0, 0.25, costs(50.0));
    assert!((paid - (30.0 + SERVICE)).abs() < 1.0, "{paid}");
    // Three a second would cost 150 ms of 125.
    let partly = response(300.0, 0.125, costs(50.0));
    assert!(partly > paid + 1.0 && partly < response(300.0, 0.125, None), "{partly}");
    // As often, with three quarters of the disk: it costs less to have the disk wait for it.
    let (idled, alone) = (response(200.0, 0.75, costs(50.0)), response(200.0, 0.75, None));
    assert_eq!(idled, alone);
}

#[test]
fn write_back_takes_from_the_share_and_depth_gives_speed() {
    let (paused, busy) = (1e9, 0.0);
    let evidence = |think_ns: f64, write_fraction: f64| Evidence {
        tiers: Tiers::Lru,
        reads: MissRatios::new([(0, 0.5)]),
        writes: MissRatios::new([(0, 1.0)]),
        read_fraction: 1.0 - write_fraction,
        references_per_second: 0.0,
        first_hit_ns: 0.0,
        second_hit_ns: 0.0,
        write_ns: 0.0,
        disk: DiskTime {
            reads: vec![Depth { depth: 1, service_ns: 8e6 }, Depth { depth: 16, service_ns: 4e6 }],
            write_ns: 2e6,
            delay_ns: 0.0,
            sweep_blocks: 0.0,
        },
        outstanding: 16,
        share_least: 0.0,
        of_model: 1.0,
        think_ns,
        round: None,
    };
    // Saturated: half the disk does 125 reads of 4 ms a second, of which half miss.
    let reads = evidence(busy, 0.0).predict(0, 1, 0.5);
    assert!((reads.references_per_second / 250.0 - 1.0).abs() < 0.01, "{reads:?}");
    // Half of the references are writes of 2 ms, half of the reads miss: 0.5 x 2 + 0.25 x 4 ms a reference.
    let mixed = evidence(busy, 0.5).predict(0, 1, 0.5);
    assert!((mixed.references_per_second / 250.0 - 1.0).abs() < 0.01, "{mixed:?}");
    assert!((mixed.latency_ns / (16.0 / 250.0 * 1e9) - 1.0).abs() < 0.01, "N = X L: {mixed:?}");
    // Writes alone: what exceeds the share holds the clients up.
    let writes = evidence(busy, 1.0).predict(0, 1, 0.5);
    assert!((writes.references_per_second / 250.0 - 1.0).abs() < 0.01, "{writes:?}");
    // Rarely: one read at a time, as long as alone, at half the speed.
    let rare = evidence(paused, 0.0).predict(0, 1, 0.5);
    assert!((rare.disk_ns / 16e6 - 1.0).abs() < 0.1, "{rare:?}");
}

#[test]
fn write_back_takes_longer_if_fewer_blocks_are_sorted() {
    // 400 writes a second are 2,000 blocks in 5 s: more than half of 8 MiB in the smaller cache.
    let evidence = |sweep_blocks: f64| Evidence {
        read_fraction: 0.2,
        references_per_second: 500.0,
        writes: MissRatios::new([(0, 1.0)]),
        disk: DiskTime { sweep_blocks, ..DiskTime::constant(5e6, 1e6) },
        ..super::tiers::evidence(Tiers::Lru, MissRatios::new([(0, 0.5)]))
    };
    let blocks = |first: u64, second: u64| evidence(0.0).sweep_blocks(first << 20, second << 20);
    assert_eq!([blocks(8, 64), blocks(64, 8), blocks(64, 64), blocks(0, 8)], [1024.0, 1024.0, 2000.0, 1024.0]);
    let rate = |sweep_blocks: f64, first: u64| evidence(sweep_blocks).predict(first << 20, 64 << 20, 0.5);
    assert_eq!(rate(0.0, 64), rate(2000.0, 64));
    assert!(rate(2000.0, 2).latency_ns > rate(2000.0, 64).latency_ns);
}

#[test]
fn disk_times_follow_from_one_measurement() {
    let loops = Simulation { clients: 4, think: 10.0, share: 0.25, round: 100.0, loss: 0.0, is_deterministic: false };
    let truth = |service: f64| Evidence {
        tiers: Tiers::Lru,
        reads: MissRatios::new([(0, 0.5)]),
        writes: MissRatios::new([]),
        read_fraction: 0.8,
        references_per_second: 0.0,
        first_hit_ns: 1e4,
        second_hit_ns: 1e5,
        write_ns: 1e4,
        disk: DiskTime::constant(service, service / 2.0),
        outstanding: loops.clients,
        share_least: 0.0,
        of_model: 1.0,
        think_ns: loops.think * 1e6,
        round: None,
    };
    let measured = truth(5e6).predict(1 << 20, 1 << 20, 0.25).disk_ns;
    let calibrated = truth(1e6).calibrated(1 << 20, 1 << 20, 0.25, measured);
    assert!((calibrated.disk.reads[0].service_ns / 5e6 - 1.0).abs() < 0.01, "{:?}", calibrated.disk);
    let elsewhere = calibrated.predict(1 << 20, 1 << 20, 0.75).latency_ns;
    assert!((elsewhere / truth(5e6).predict(1 << 20, 1 << 20, 0.75).latency_ns - 1.0).abs() < 0.01);
}
