//! What the planner is told of a tenant: from the figures that the API of a gateway and of a server shows, of one run
//! with one allotment, and from the profile of the disk.
//!
//! | evidence | from |
//! | --- | --- |
//! | curves, references, hits in the first tier, writes | the gateway's volume and its curve |
//! | network | latency of reads at the gateway, less that of the same reads at the server |
//! | clients and their think time | most requests outstanding, and the law of a closed loop: `z = N / X - L` |
//! | disk time of reads | measured, without those beside a batch of write-back; by depth as the profile says |
//! | delay by batches of write-back | how much longer such reads are in the device |
//! | disk time of write-back, round, end of slices | measured |
//! | context switch | the profile |

use engine::Config;
use engine::allocate::{Depth, DiskTime, Evidence, Loss, MissRatios, Observed, Reads, Round, Tiers};
use engine::control::{TenantStats, VolumeStats};
use engine::disk::profile::{Direction, Key, Profile, Quantile};
use engine::units::BLOCK;

use super::play::{Told, since};

/// Network and client between the gateway and its client, ns: the bench's, both ways.
const CLIENT_NS: f64 = 14_000.0;

/// Depths of the profile.
const DEPTHS: [u16; 6] = [1, 2, 4, 8, 16, 32];

/// The evidence of this tenant. `bytes` are those of its larger partition.
pub fn evidence(told: &Told, bytes: u64, profile: &Profile) -> Result<Evidence, String> {
    let at_gateway = |of: fn(&VolumeStats) -> u64| since(&told.gateway, of);
    let at_server = |of: fn(&VolumeStats) -> u64| since(&told.server, of);
    let reads = at_gateway(|stats| stats.read.requests);
    let writes = at_gateway(|stats| stats.write.requests);
    if reads + writes == 0.0 {
        return Err("a tenant has made no request".into());
    }
    let mean = |sum: f64, count: f64| if count > 0.0 { sum / count } else { 0.0 };
    let first_hit_ns = mean(at_gateway(|stats| stats.hits.sum_ns), at_gateway(|stats| stats.hits.requests));
    let first_misses = reads - at_gateway(|stats| stats.hits.requests);
    let missed_ns = at_gateway(|stats| stats.read.latency.sum_ns) - at_gateway(|stats| stats.hits.sum_ns);
    let server_read_ns = told.server_read_ns().unwrap_or(0.0);
    let server_hit_ns = mean(at_server(|stats| stats.hits.sum_ns), at_server(|stats| stats.hits.requests));
    let network_ns = (mean(missed_ns, first_misses) - server_read_ns).max(0.0);
    let write_ns = mean(at_gateway(|stats| stats.write.latency.sum_ns), writes);
    let requests = reads + writes;
    let latency_ns =
        (at_gateway(|stats| stats.read.latency.sum_ns) + at_gateway(|stats| stats.write.latency.sum_ns)) / requests;
    let per_client_ns = f64::from(told.outstanding) * told.seconds * 1e9 / requests;
    let curve = MissRatios::of_writes(&told.curve);
    let unabsorbed = writes * curve.at(bytes as f64);
    Ok(Evidence {
        tiers: Tiers::Lru,
        reads: MissRatios::of_reads(&told.curve),
        writes: curve,
        read_fraction: reads / requests,
        references_per_second: requests / told.seconds,
        first_hit_ns: first_hit_ns + CLIENT_NS,
        second_hit_ns: network_ns + server_hit_ns + CLIENT_NS,
        write_ns: write_ns + CLIENT_NS,
        disk: disk_time(told, unabsorbed, profile)?,
        outstanding: told.outstanding,
        think_ns: (per_client_ns - latency_ns).max(0.0),
        round: round(told, profile),
    })
}

fn stats(told: &Told) -> [&TenantStats; 2] {
    told.disk.each_ref().map(|snapshot| {
        let found = snapshot.tenants.iter().find(|stats| stats.tenant == told.tenant);
        found.expect("the tenant is there")
    })
}

/// Disk time of reads, and of those writes that the curve says are not absorbed: what write-back takes beyond them, to
/// join runs, is theirs. Reads beside a batch of write-back are in the device for longer, and say nothing of the depth.
fn disk_time(told: &Told, unabsorbed: f64, profile: &Profile) -> Result<DiskTime, String> {
    let at_depth = |depth: u16| {
        let rate = profile.number(Key::Random(Direction::Read, BLOCK as u32, depth));
        let rate = rate.ok_or_else(|| format!("the profile has no rate of reads at depth {depth}"))?;
        Ok((f64::from(depth), 1e9 / rate))
    };
    let shape: Vec<(f64, f64)> = DEPTHS.into_iter().map(at_depth).collect::<Result<_, String>>()?;
    let observed = observed(told);
    let (service_ns, depth) = observed.service().unwrap_or((by_depth(&shape, 1.0), 1.0));
    let scale = service_ns / by_depth(&shape, depth);
    let reads = shape.iter().map(|&(depth, ns)| Depth { depth: depth as u32, service_ns: ns * scale });
    let write_ns = if unabsorbed > 0.0 { observed.writes_ns / unabsorbed } else { 0.0 };
    Ok(DiskTime { reads: reads.collect(), write_ns, delay_ns: observed.delay_ns() })
}

/// What its requests took of the server's disk.
fn observed(told: &Told) -> Observed {
    let [before, after] = stats(told);
    let at_server = |of: fn(&VolumeStats) -> u64| since(&told.server, of);
    let written = |stats: &TenantStats| stats.spent.write_back_ns + stats.spent.sync_ns;
    Observed {
        reads: Reads {
            count: at_server(|stats| stats.fills.requests),
            device_ns: at_server(|stats| stats.fills.device_ns),
            service_ns: (after.spent.fill_ns - before.spent.fill_ns) as f64,
        },
        beside_writes: Reads {
            count: at_server(|stats| stats.fills.beside_writes.requests),
            device_ns: at_server(|stats| stats.fills.beside_writes.device_ns),
            service_ns: at_server(|stats| stats.fills.beside_writes.service_ns),
        },
        writes_ns: (written(after) - written(before)) as f64,
        owned_ns: (after.usage.owned_ns - before.usage.owned_ns) as f64,
    }
}

/// Linear in the logarithm of depth.
fn by_depth(shape: &[(f64, f64)], depth: f64) -> f64 {
    let past = shape.partition_point(|point| point.0 < depth).clamp(1, shape.len() - 1);
    let (from, to) = (shape[past - 1], shape[past]);
    let part = ((depth.max(1.0) / from.0).ln() / (to.0 / from.0).ln()).clamp(0.0, 1.0);
    from.1 + (to.1 - from.1) * part
}

fn round(told: &Told, profile: &Profile) -> Option<Round> {
    let [before, after] = stats(told).map(|stats| stats.plan);
    let (before, after) = (before?, after.filter(|plan| plan.round_ns > 0)?);
    let planned_ns = (after.rounds_ns - before.rounds_ns).checked_div(after.rounds - before.rounds);
    let round_ns = planned_ns.unwrap_or(after.round_ns);
    Some(Round {
        others_ns: round_ns.saturating_sub(after.slice_ns * round_ns / after.round_ns) as f64,
        round_ns_max: Config::new(0).round_max_ns as f64,
        loss: Loss {
            switch_ns: profile.number(Key::SwitchCost(Quantile::P50)).unwrap_or(0.0),
            closing_ns: after.closing_ns as f64,
        },
        // It is measured how long requests wait, and that is as long as without interruptions: a client that thinks
        // seldom has unused slice time to pay for them, because its write-back has used it.
        interruption: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_depths_it_is_linear_in_their_logarithm() {
        let shape = [(1.0, 8.0), (4.0, 4.0), (16.0, 2.0)];
        let of = |depth| by_depth(&shape, depth);
        assert_eq!([0.5, 1.0, 2.0, 4.0, 8.0, 99.0].map(of), [8.0, 8.0, 6.0, 4.0, 3.0, 2.0]);
    }
}
