//! What clients of striped volumes keep: the paper's figures 11, 12 and 13.

use engine::cluster::pack::Fraction;
use engine::control::WriteCache;
use engine::units::{MILLISECOND, SECOND};
use serde_json::json;
use sim::bench::striped::Network;
use sim::load::{Pace, Stream};

use super::super::chart::{self, Group};
use super::super::loads::Load;
use super::super::stand::{Stand, mean, random, stream};
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::play::{Clocks, Cluster, STEP_NS, Seen, Slices, Striper};

pub const SERVERS: Experiment = Experiment {
    name: "cluster-servers",
    question: "Do striped tenants keep R x share, however many servers they are striped over?",
    setup: "Three tenants with share 1/3 on 1 to 10 servers with a barracuda-7200.9 each: random reads of 4 KiB per \
            server, 1, 4 and 1 requests outstanding; the first and the third on the same 40 % of the disks. 60 s of \
            warm-up, then 120 s.",
    paper: "Wachs and Ganger, section 4.4, figure 11: R x share for each with synchronised slices; far less without.",
    run: servers,
};

pub const REAL: Experiment = Experiment {
    name: "cluster-real",
    question: "What do the tenants of `make bench-cluster` keep in virtual time?",
    setup: "Three tenants with share 1/3 on three servers with 40 GiB of a barracuda-7200.9 each: random reads of \
            12 KiB in units of 4 KiB, 1, 4 and 1 requests outstanding, each on 12 GiB of each disk. 60 s of warm-up, \
            then 120 s.",
    paper: "Wachs and Ganger, section 4.4, figure 11, with places of their own.",
    run: real,
};

pub const TENANTS: Experiment = Experiment {
    name: "cluster-tenants",
    question: "Do striped tenants keep R x share, however many they are?",
    setup: "2 to 10 tenants with equal shares on three servers with a barracuda-7200.9 each: random reads of 4 KiB per \
            server, one request outstanding. 60 s of warm-up, then 120 s.",
    paper: "Wachs and Ganger, section 4.4, figure 12.",
    run: tenants,
};

pub const FIVE: Experiment = Experiment {
    name: "cluster-five",
    question: "Do the paper's five tenants on ten servers keep R x R of the cluster x share, with caches?",
    setup: "Ten servers with a barracuda-7200.9 and 1 GiB of memory each. Servers, share, bytes, requests outstanding: \
            (7, 1/6, 28 GB, 2), (5, 1/3, 120 GB, 3), (3, 1/2, 96 GB, 1), (5, 1/2, 120 GB, 4), (5, 1/2, 120 GB, 5); \
            random reads of 4 KiB per server. 10 hours of warm-up, in which the first tenant's partition fills, then \
            an hour. Quick: all bytes divided by 16, a sixteenth of the time.",
    paper: "Wachs and Ganger, section 4.4, figure 13.",
    run: five,
};

pub const MIXED: Experiment = Experiment {
    name: "cluster-mixed",
    question: "Do striped streams, writers with flushes and a database keep R x share beside one another?",
    setup: "Four tenants with share 1/4 on three servers with a barracuda-7200.9 and 256 MiB of memory each, stripe \
            unit 64 KiB: sequential reads of 1 MiB, 2 outstanding; sequential writes of 1 MiB with a flush after each \
            8; random requests of 8 KiB, 30 % writes, 8 outstanding; random reads of 12 KiB in units of 4 KiB, 1 \
            outstanding. 120 s of warm-up, then 120 s.",
    paper: "Not in the paper.",
    run: mixed_loads,
};

pub const LARGE: Experiment = Experiment {
    name: "cluster-large",
    question: "Does the successor of a tenant with very large requests keep R x share?",
    setup: "Three tenants with share 1/3 on three servers with a barracuda-7200.9 and 256 MiB of memory each: \
            sequential reads of 30 MiB in units of 64 KiB, 2 outstanding; random reads of 12 KiB in units of 4 KiB, 1 \
            and 4 outstanding. 120 s of warm-up, then 120 s.",
    paper: "Not in the paper.",
    run: large,
};

pub const CLOCKS: Experiment = Experiment {
    name: "cluster-clocks",
    question: "What do clocks that differ cost?",
    setup: "The tenants of cluster-servers on four servers. Every second server's clock is ahead by 1 % of a slice, by \
            20 ms, or drifts: 50 ppm fast on these, 50 ppm slow on the others, set right each 64 s. Or the clocks of \
            all servers are stepped by 300 ms every 30 s; or that of one server, which is set right 1 s later.",
    paper: "Wachs and Ganger, section 4.1: 0.5 ms do not matter with slices of 140 ms.",
    run: clocks,
};

const DISK: &str = "barracuda-7200.9";
pub(super) const R: f64 = 0.9;
/// Bytes of a request for each server.
pub(super) const FRAGMENT: u64 = 4096;
/// By how much the places of a volume may differ from server to server, bytes.
const PLACES: u64 = 8 << 20;
/// Stripe unit where requests are larger: the default.
const UNIT: u64 = 64 << 10;
/// Clients number their requests, and nothing overtakes.
const GATEWAYS: Network = Network { jitter_ns: 0, numbers: true, seed: 0 };
/// Memory of a server without caches, and the partition of a tenant: its outstanding requests, several times.
const CACHELESS: u64 = 32 << 20;
const CACHELESS_TENANT: u64 = 2 << 20;

pub(super) fn cacheless(context: &Context) -> Result<Stand, String> {
    let stand = Stand::new(DISK, false).probed()?;
    let counted_ns = if context.quick { 30 } else { 120 } * SECOND;
    Ok(Stand { memory: CACHELESS, warm_up_ns: 60 * SECOND, counted_ns, prefetch: None, ..stand })
}

/// Random requests for a fragment from each server.
fn fragments(servers: usize, depth: u32) -> Stream {
    let bytes = FRAGMENT * servers as u64;
    Stream { align_bytes: bytes, sizes: vec![(1, bytes)], ..random(depth) }
}

/// Random reads of a fragment from each server.
pub(super) fn reader(servers: usize, share: Fraction, depth: u32, start: u64, bytes: u64) -> Striper {
    let load = fragments(servers, depth).into();
    let (unit, write_cache, cache) = (FRAGMENT, WriteCache::Volatile, Some(CACHELESS_TENANT));
    Striper { servers, share, unit, start, bytes, write_cache, cache, load }
}

/// What each tenant keeps of its throughput alone, by arrangement of the slices.
pub(super) struct Kept {
    kept: Vec<(Slices, Vec<f64>)>,
    pub(super) together: Seen,
}

pub(super) fn kept(cluster: &Cluster, arrangements: &[Slices], seed: u64) -> Result<Kept, String> {
    let all: Vec<usize> = (0..cluster.tenants.len()).collect();
    let alone: Vec<f64> = all
        .iter()
        .map(|&at| Ok(cluster.run(&[at], Slices::Own, seed)?.rates[0].iops()))
        .collect::<Result<_, String>>()?;
    let mut of = Vec::new();
    let mut together = None;
    for &slices in arrangements {
        let seen = cluster.run(&all, slices, seed)?;
        of.push((slices, seen.rates.iter().zip(&alone).map(|(rate, alone)| rate.iops() / alone).collect()));
        together = Some(seen).filter(|_| slices == Slices::Together).or(together);
    }
    Ok(Kept { kept: of, together: together.ok_or("slices together were not run")? })
}

/// The means over seeds, by arrangement and tenant.
pub(super) fn means(of: &[Kept]) -> Vec<(Slices, Vec<f64>)> {
    let arrangements = of[0].kept.iter().enumerate();
    arrangements
        .map(|(at, (slices, kept))| {
            let tenants = (0..kept.len()).map(|tenant| mean(of.iter().map(|kept| kept.kept[at].1[tenant])));
            (*slices, tenants.collect())
        })
        .collect()
}

const ALL: [Slices; 3] = [Slices::None, Slices::Own, Slices::Together];
const NAMES: [&str; 3] = ["no slices", "slices of its own on each server", "slices together"];

/// The clusters of an experiment, each with a label and its tenants' shares.
fn figure(context: &Context, clusters: Vec<(String, Cluster)>, by: &str) -> Result<Outcome, String> {
    let work: Vec<(usize, u64)> =
        (0..clusters.len()).flat_map(|at| context.seeds.iter().map(move |&seed| (at, seed))).collect();
    let found = context.parallel(&work, |&(at, seed)| kept(&clusters[at].1, &ALL, seed));
    let found: Vec<Kept> = found.into_iter().collect::<Result<_, _>>()?;
    let (mut claims, mut groups, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for ((label, cluster), of) in clusters.iter().zip(found.chunks(context.seeds.len())) {
        let means = means(of);
        // The least of the tenants, of what its share of the cluster's R is.
        let of_share = |kept: &[f64]| {
            let shares =
                cluster.tenants.iter().map(|tenant| f64::from(tenant.share.under) / f64::from(tenant.share.over));
            kept.iter().zip(shares).map(|(kept, of)| kept * of).fold(f64::INFINITY, f64::min)
        };
        let least: Vec<f64> = means.iter().map(|(_, kept)| of_share(kept)).collect();
        claims.push(Claim::new(format!("{label}: least kept, of the share"), least[2], Bound::AtLeast(R)));
        let (round_ms, r_cluster) = (of[0].together.round_ns / 1_000_000, of[0].together.r_cluster);
        let changes: u32 = of.iter().map(|kept| kept.together.changes).sum();
        let row = |(slices, kept): &(Slices, Vec<f64>)| json!({"slices": format!("{slices:?}"), "kept": kept});
        let kept: Vec<_> = means.iter().map(row).collect();
        rows.push(
            json!({"cluster": label, "kept": kept, "round_ms": round_ms, "r_cluster": r_cluster, "changes": changes}),
        );
        groups.push(Group { label: label.clone(), bars: least });
    }
    let svg = chart::bars("least kept, of the share", &NAMES, &groups, Some((R, "R")))?;
    let caption = format!("The tenant that keeps least, of its share of what it has alone, by number of {by}.");
    let pictures = vec![Picture { name: "kept".into(), caption, svg }];
    Ok(Outcome { claims, data: rows.into(), pictures, ..Outcome::default() })
}

/// The tenants of the paper's figure 11: the first and the third have the same place.
fn three(servers: usize, bytes: u64) -> Vec<Striper> {
    let third = Fraction { over: 1, under: 3 };
    [(1, 0), (4, bytes), (1, 0)].map(|(depth, start)| reader(servers, third, depth, start, bytes)).into()
}

fn servers(context: &Context) -> Result<Outcome, String> {
    let stand = cacheless(context)?;
    let bytes = stand.drive()?.bytes() * 2 / 5 / FRAGMENT * FRAGMENT;
    let counts: &[usize] = if context.quick { &[1, 4, 10] } else { &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10] };
    let clusters = counts.iter().map(|&count| {
        let tenants = three(count, bytes);
        (
            count.to_string(),
            Cluster {
                stand: stand.clone(),
                servers: count,
                tenants,
                clocks: Clocks::Exact,
                round_ns: None,
                network: GATEWAYS,
            },
        )
    });
    figure(context, clusters.collect(), "servers")
}

fn real(context: &Context) -> Result<Outcome, String> {
    let (stand, bytes) = (cacheless(context)?, 12 << 30);
    let third = Fraction { over: 1, under: 3 };
    let tenants = [1, 4, 1].into_iter().zip(0..).map(|(depth, at)| reader(3, third, depth, at * bytes, bytes));
    // As the program does before it has measured anything: a context switch takes 1 - R of a slice.
    let round_ns = Some(3 * stand.switch_ns * 1000 / u64::from(1000 - stand.insulation_permille));
    let cluster =
        Cluster { stand, servers: 3, tenants: tenants.collect(), clocks: Clocks::Exact, round_ns, network: GATEWAYS };
    figure(context, vec![("three servers".into(), cluster)], "servers")
}

fn tenants(context: &Context) -> Result<Outcome, String> {
    let stand = cacheless(context)?;
    let disk = stand.drive()?.bytes();
    let counts: &[usize] = if context.quick { &[2, 5, 10] } else { &[2, 3, 4, 5, 6, 7, 8, 9, 10] };
    let clusters = counts.iter().map(|&count| {
        let share = Fraction { over: 1, under: count as u32 };
        let bytes = (disk / 10 - PLACES) / FRAGMENT * FRAGMENT;
        let tenants = (0..count as u64).map(|at| reader(3, share, 1, at * bytes, bytes));
        (
            count.to_string(),
            Cluster {
                stand: stand.clone(),
                servers: 3,
                tenants: tenants.collect(),
                clocks: Clocks::Exact,
                round_ns: None,
                network: GATEWAYS,
            },
        )
    });
    figure(context, clusters.collect(), "tenants")
}

fn five(context: &Context) -> Result<Outcome, String> {
    let stand = Stand::new(DISK, false).probed()?;
    // Random reads fill a partition of a sixteenth in a sixteenth of the time.
    let scale = if context.quick { 16 } else { 1 };
    let (warm_up_ns, counted_ns) = (36_000 / scale * SECOND, 3_600 / scale * SECOND);
    let stand = Stand { memory: (1 << 30) / scale, warm_up_ns, counted_ns, prefetch: None, ..stand };
    let described =
        [(7usize, (1, 6), 28, 2), (5, (1, 3), 120, 3), (3, (1, 2), 96, 1), (5, (1, 2), 120, 4), (5, (1, 2), 120, 5)];
    let mut start = 0;
    let tenants = described.map(|(servers, (over, under), gigabytes, depth)| {
        let bytes = (gigabytes * 1_000_000_000 / scale / servers as u64) / FRAGMENT * FRAGMENT;
        let tenant = Striper { cache: None, ..reader(servers, Fraction { over, under }, depth, start, bytes) };
        start += bytes;
        tenant
    });
    let cluster = Cluster {
        stand,
        servers: 10,
        tenants: tenants.into(),
        clocks: Clocks::Exact,
        round_ns: None,
        network: GATEWAYS,
    };
    figure(context, vec![("five tenants".into(), cluster)], "tenants")
}

fn mixed_loads(context: &Context) -> Result<Outcome, String> {
    let stand = Stand { memory: 256 << 20, warm_up_ns: 120 * SECOND, ..cacheless(context)? };
    let bytes = stand.drive()?.bytes() / 5 / UNIT * UNIT;
    let closed = |depth| Pace::Closed { depth, think_ns: 0 };
    let sequential = Stream { sizes: vec![(1, 1 << 20)], ..stream() };
    let loads: [(Load, u64); 4] = [
        (Stream { pace: closed(2), ..sequential.clone() }.into(), UNIT),
        (Stream { read_ppm: 0, flush_every: 8, pace: closed(2), ..sequential }.into(), UNIT),
        (Stream { read_ppm: 700_000, sizes: vec![(1, 8192)], align_bytes: 8192, ..random(8) }.into(), UNIT),
        (fragments(3, 1).into(), FRAGMENT),
    ];
    let quarter = Fraction { over: 1, under: 4 };
    let tenants = (0..).zip(loads).map(|(at, (load, unit))| {
        let reader = reader(3, quarter, 1, at * bytes, bytes);
        Striper { unit, cache: None, load, ..reader }
    });
    let cluster = Cluster {
        stand,
        servers: 3,
        tenants: tenants.collect(),
        clocks: Clocks::Exact,
        round_ns: None,
        network: GATEWAYS,
    };
    figure(context, vec![("mixed".into(), cluster)], "tenants")
}

fn large(context: &Context) -> Result<Outcome, String> {
    let stand = Stand { memory: 256 << 20, warm_up_ns: 120 * SECOND, ..cacheless(context)? };
    let bytes = stand.drive()?.bytes() / 4 / UNIT * UNIT;
    let load = Stream { sizes: vec![(1, 30 << 20)], pace: Pace::Closed { depth: 2, think_ns: 0 }, ..stream() };
    let loads: [(Load, u64); 3] =
        [(load.into(), UNIT), (fragments(3, 1).into(), FRAGMENT), (fragments(3, 4).into(), FRAGMENT)];
    let third = Fraction { over: 1, under: 3 };
    let tenants = (0..).zip(loads).map(|(at, (load, unit))| {
        let reader = reader(3, third, 1, at * bytes, bytes);
        Striper { unit, cache: None, load, ..reader }
    });
    let cluster = Cluster {
        stand,
        servers: 3,
        tenants: tenants.collect(),
        clocks: Clocks::Exact,
        round_ns: None,
        network: GATEWAYS,
    };
    figure(context, vec![("large requests".into(), cluster)], "tenants")
}

fn clocks(context: &Context) -> Result<Outcome, String> {
    let (stand, count) = (cacheless(context)?, 4);
    let bytes = stand.drive()?.bytes() * 2 / 5 / FRAGMENT * FRAGMENT;
    let tenants = three(count, bytes);
    let cluster = |clocks| Cluster {
        stand: stand.clone(),
        servers: count,
        tenants: tenants.clone(),
        clocks,
        round_ns: None,
        network: GATEWAYS,
    };
    let exact = cluster(Clocks::Exact);
    // The slices are as long as with exact clocks.
    let slice_ns = exact.run(&[0, 1, 2], Slices::Together, context.seeds[0])?.round_ns / 3;
    let kinds = [
        ("exact", Clocks::Exact, R),
        ("1 % of a slice apart", Clocks::Offset(slice_ns / 100), R),
        ("20 ms apart", Clocks::Offset(20 * MILLISECOND), R - 0.03),
        ("50 ppm of drift", Clocks::Drift, R),
        ("all stepped", Clocks::AllStepped, 0.0),
        ("one stepped for 1 s", Clocks::OneStepped, 0.0),
    ];
    let work: Vec<(usize, u64)> =
        (0..kinds.len()).flat_map(|at| context.seeds.iter().map(move |&seed| (at, seed))).collect();
    let found = context.parallel(&work, |&(at, seed)| kept(&cluster(kinds[at].1), &[Slices::Together], seed));
    let found: Vec<Kept> = found.into_iter().collect::<Result<_, _>>()?;
    let (mut claims, mut rows, mut groups) = (Vec::new(), Vec::new(), Vec::new());
    let by_kind: Vec<&[Kept]> = found.chunks(context.seeds.len()).collect();
    let kept_by = |at: usize| -> Vec<f64> { means(by_kind[at])[0].1.iter().map(|kept| kept * 3.0).collect() };
    let exact = kept_by(0);
    for (at, &(name, clocks, bound)) in kinds.iter().enumerate() {
        let kept = kept_by(at);
        let least = kept.iter().copied().fold(f64::INFINITY, f64::min);
        let rounds = kept
            .iter()
            .zip(&exact)
            .map(|(kept, exact)| (1.0 - kept / exact) * STEP_NS as f64 / by_kind[at][0].together.round_ns as f64);
        let rounds = rounds.fold(0.0, f64::max);
        match clocks {
            Clocks::AllStepped => {
                claims.push(Claim::new(
                    format!("{name}: rounds lost, of the tenant that loses most"),
                    rounds,
                    Bound::AtMost(2.0),
                ));
            }
            // During the second in which the clock is wrong, its server is of no use.
            Clocks::OneStepped => {
                let wrong = SECOND as f64 / by_kind[at][0].together.round_ns as f64;
                claims.push(Claim::new(
                    format!("{name}: rounds lost after that second"),
                    rounds - wrong,
                    Bound::AtMost(2.0),
                ));
            }
            _ => claims.push(Claim::new(format!("{name}: least kept, of the share"), least, Bound::AtLeast(bound))),
        }
        rows.push(json!({"clocks": name, "kept": kept, "rounds_lost_per_step": rounds}));
        groups.push(Group { label: name.into(), bars: kept });
    }
    let svg = chart::bars("kept, of the share", &["depth 1", "depth 4", "depth 1"], &groups, Some((R, "R")))?;
    let caption = "Striped tenants on four servers whose clocks differ.".into();
    let pictures = vec![Picture { name: "kept".into(), caption, svg }];
    Ok(Outcome { claims, data: rows.into(), pictures, ..Outcome::default() })
}
