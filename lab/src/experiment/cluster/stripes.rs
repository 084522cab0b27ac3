//! What clients of striped volumes keep: the paper's figures 11, 12 and 13.

use engine::cluster::pack::Fraction;
use engine::control::WriteCache;
use engine::units::SECOND;
use serde_json::json;
use sim::load::Stream;

use super::super::chart::{self, Group};
use super::super::stand::{Stand, mean, random};
use super::super::{Bound, Claim, Context, Experiment, Outcome, Picture};
use super::play::{Cluster, Seen, Slices, Striper, exact};

pub const SERVERS: Experiment = Experiment {
    name: "cluster-servers",
    question: "Do striped tenants keep R x share, however many servers they are striped over?",
    setup: "Three tenants with share 1/3 on 1 to 10 servers with a barracuda-7200.9 each: random reads of 4 KiB per \
            server, 1, 4 and 1 requests outstanding; the first and the third on the same 40 % of the disks. 60 s of \
            warm-up, then 120 s.",
    paper: "Wachs and Ganger, section 4.4, figure 11: R x share for each with synchronised slices; far less without.",
    run: servers,
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
            random reads of 4 KiB per server. 1,200 s of warm-up, which fills the caches, then 300 s.",
    paper: "Wachs and Ganger, section 4.4, figure 13.",
    run: five,
};

const DISK: &str = "barracuda-7200.9";
const R: f64 = 0.9;
/// Bytes of a request for each server.
const FRAGMENT: u64 = 4096;
/// Memory of a server without caches, and the partition of a tenant: its outstanding requests, several times.
const CACHELESS: u64 = 32 << 20;
const CACHELESS_TENANT: u64 = 2 << 20;

fn cacheless(context: &Context) -> Result<Stand, String> {
    let stand = Stand::new(DISK, false).probed()?;
    let counted_ns = if context.quick { 30 } else { 120 } * SECOND;
    Ok(Stand { memory: CACHELESS, warm_up_ns: 60 * SECOND, counted_ns, prefetch: None, ..stand })
}

/// Random reads of a fragment from each server.
fn reader(servers: usize, share: Fraction, depth: u32, start: u64, bytes: u64) -> Striper {
    let bytes_each = FRAGMENT * servers as u64;
    let sizes = vec![(1, bytes_each)];
    let load = Stream { align_bytes: bytes_each, sizes, ..random(depth) }.into();
    let (unit, write_cache, cache) = (FRAGMENT, WriteCache::Volatile, Some(CACHELESS_TENANT));
    Striper { servers, share, unit, start, bytes, write_cache, cache, load }
}

/// What each tenant keeps of its throughput alone, by arrangement of the slices.
struct Kept {
    kept: Vec<(Slices, Vec<f64>)>,
    together: Seen,
}

fn kept(cluster: &Cluster, arrangements: &[Slices], seed: u64) -> Result<Kept, String> {
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
fn means(of: &[Kept]) -> Vec<(Slices, Vec<f64>)> {
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
fn figure(context: &Context, clusters: Vec<(String, Cluster)>, axis: &str) -> Result<Outcome, String> {
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
    let svg = chart::bars(axis, &NAMES, &groups, Some((R, "R")))?;
    let caption = "The tenant that keeps least, of its share of what it has alone on as many servers.".into();
    let pictures = vec![Picture { name: "kept".into(), caption, svg }];
    Ok(Outcome { claims, data: rows.into(), pictures, ..Outcome::default() })
}

fn servers(context: &Context) -> Result<Outcome, String> {
    let stand = cacheless(context)?;
    let bytes = stand.drive()?.bytes() * 2 / 5 / FRAGMENT * FRAGMENT;
    let third = Fraction { over: 1, under: 3 };
    let counts: &[usize] = if context.quick { &[1, 4, 10] } else { &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10] };
    let clusters = counts.iter().map(|&count| {
        let tenants = [(1, 0), (4, bytes), (1, 0)];
        let tenants = tenants.map(|(depth, start)| reader(count, third, depth, start, bytes)).into();
        (count.to_string(), Cluster { stand: stand.clone(), servers: count, tenants, clocks: exact })
    });
    figure(context, clusters.collect(), "servers")
}

fn tenants(context: &Context) -> Result<Outcome, String> {
    let stand = cacheless(context)?;
    let disk = stand.drive()?.bytes();
    let counts: &[usize] = if context.quick { &[2, 5, 10] } else { &[2, 3, 4, 5, 6, 7, 8, 9, 10] };
    let clusters = counts.iter().map(|&count| {
        let share = Fraction { over: 1, under: count as u32 };
        let bytes = disk / 10 / FRAGMENT * FRAGMENT;
        let tenants = (0..count as u64).map(|at| reader(3, share, 1, at * bytes, bytes));
        (count.to_string(), Cluster { stand: stand.clone(), servers: 3, tenants: tenants.collect(), clocks: exact })
    });
    figure(context, clusters.collect(), "tenants")
}

fn five(context: &Context) -> Result<Outcome, String> {
    let stand = Stand::new(DISK, false).probed()?;
    let (warm_up_ns, counted_ns) = if context.quick { (600, 60) } else { (1_200, 300) }.into();
    let stand = Stand {
        memory: 1 << 30,
        warm_up_ns: warm_up_ns * SECOND,
        counted_ns: counted_ns * SECOND,
        prefetch: None,
        ..stand
    };
    let described =
        [(7, (1, 6), 28, 2), (5, (1, 3), 120, 3), (3, (1, 2), 96, 1), (5, (1, 2), 120, 4), (5, (1, 2), 120, 5)];
    let mut start = 0;
    let tenants = described.map(|(servers, (over, under), gigabytes, depth)| {
        let bytes = (gigabytes * 1_000_000_000 / servers as u64) / FRAGMENT * FRAGMENT;
        let tenant = Striper { cache: None, ..reader(servers, Fraction { over, under }, depth, start, bytes) };
        start += bytes;
        tenant
    });
    let cluster = Cluster { stand, servers: 10, tenants: tenants.into(), clocks: exact };
    figure(context, vec![("five tenants".into(), cluster)], "the paper's five")
}
