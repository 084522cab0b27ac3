//! Gateways, a server and its disk, in virtual time: two tiers of caches.
//!
//! ```text
//!   load ─► Bench: a gateway's engine, tier 1 ══ link ══ Bench: the server's engine, tier 2 ─► drive
//! ```
//!
//! Each tenant has one volume on the server, and one on a gateway that leads to it. The gateways' latency of one
//! direction to the server is stated; clients are as near to their gateway as [`Costs`] says. Gateways and server talk
//! NBD, by the engine's own machines for both sides, and connections do not fail.

use engine::Config;
use engine::control::{Command, Report, Snapshot, TenantSpec, Tiers as Together, UpstreamSpec, VolumeSpec, WriteCache};
use engine::ids::{TenantId, VolumeId};
use engine::nbd::Export;
use engine::units::Nanos;

use super::cluster::{CONNECTIONS, Cluster, DEADLINE_NS, START_NS, WINDOW};
use super::{Bench, Costs, Done, Volume};
use crate::disk::drive::Drive;
use crate::disk::drive::lanes::{Lanes, LanesSpec};
use crate::load::Workload;
use crate::rng::Rng;

/// A tenant: its volume on the server, and how it gets there.
pub struct Tenant {
    /// Index of its gateway.
    pub gateway: usize,
    /// The tenant on its gateway; it is remote in any case.
    pub tier1: TenantSpec,
    /// The tenant on the server.
    pub tier2: TenantSpec,
    /// How its two caches go together.
    pub together: Together,
    /// First byte of its volume on the server's drive.
    pub start: u64,
    /// Bytes of its volume.
    pub bytes: u64,
    /// When writes are acknowledged, on both.
    pub write_cache: WriteCache,
    /// The load of its client, from [`START_NS`] on.
    pub load: Workload,
}

/// Gateways and a server.
pub struct Tiers {
    /// The gateways, and the server behind them.
    cluster: Cluster,
    /// By gateway, the tenants of its volumes.
    guests: Vec<Vec<usize>>,
}

impl Tiers {
    /// Sets everything up, and lets time pass until the gateways have reached the server. `link_ns` is the latency of
    /// one direction between them.
    pub fn new(
        costs: Costs,
        link_ns: Nanos,
        gateways: Vec<Config>,
        server: (Config, Box<dyn Drive>),
        tenants: Vec<Tenant>,
    ) -> Result<Tiers, String> {
        let count = gateways.len();
        if let Some(missing) = tenants.iter().map(|tenant| tenant.gateway).find(|&gateway| gateway >= count) {
            return Err(format!("gateway {missing} does not exist: there are {count}"));
        }
        let sites = gateways.into_iter().map(|config| (config, unused())).chain([server]).enumerate();
        let benches = sites.map(|(number, (config, drive))| {
            let mut bench = Bench::new(config, drive, costs, &[], vec![])?;
            (bench.links.number, bench.links.latency_ns) = (number, Some(link_ns));
            Ok(bench)
        });
        let cluster = Cluster { benches: benches.collect::<Result<_, String>>()?, now: 0 };
        let mut tiers = Tiers { cluster, guests: vec![Vec::new(); count] };
        for (number, tenant) in tenants.iter().enumerate() {
            let guests = &mut tiers.guests[tenant.gateway];
            guests.push(number);
            let volume = guests.len() as u32 - 1;
            tiers.cluster.benches[count].serve_gateway(number as u32, tenant)?;
            tiers.cluster.benches[tenant.gateway].lead_to_server(volume, number as u32, count, tenant)?;
        }
        tiers.cluster.run(START_NS, |_, _| ());
        for (gateway, guests) in tiers.guests.iter().enumerate() {
            if tiers.cluster.benches[gateway].links.online.len() < guests.len() {
                return Err(format!("gateway {gateway} has not reached the server in time"));
            }
        }
        for (number, tenant) in tenants.into_iter().enumerate() {
            let (gateway, volume, at_gateway) = tiers.place(number);
            let load = tenant.load.beginning_at(START_NS);
            tiers.cluster.benches[gateway].connect(volume, at_gateway, load);
            tiers.cluster.pass_on(gateway);
        }
        Ok(tiers)
    }

    /// Runs until `end`; calls `done` for every answered request, with the number of its tenant as its volume.
    pub fn run(&mut self, end: Nanos, mut done: impl FnMut(Done)) {
        let guests = &self.guests;
        self.cluster.run(end, |site, what| done(Done { volume: guests[site][what.volume], ..what }));
    }

    /// The virtual time.
    pub fn now(&self) -> Nanos {
        self.cluster.now()
    }

    /// The number of a tenant's volume on its gateway, and of the tenant there.
    pub fn place(&self, tenant: usize) -> (usize, VolumeId, TenantId) {
        let at = |guests: &Vec<usize>| guests.iter().position(|&guest| guest == tenant);
        let found = self.guests.iter().enumerate().find_map(|(gateway, guests)| Some((gateway, at(guests)? as u32)));
        let (gateway, volume) = found.expect("a tenant has a gateway");
        (gateway, VolumeId(volume), TenantId(volume))
    }

    /// The snapshot of a gateway.
    pub fn gateway(&mut self, gateway: usize) -> Result<Snapshot, String> {
        assert!(gateway < self.guests.len(), "gateway {gateway} exists");
        self.cluster.snapshot(gateway)
    }

    /// The snapshot of the server. Tenants and their volumes have the same numbers there.
    pub fn server(&mut self) -> Result<Snapshot, String> {
        self.cluster.snapshot(self.guests.len())
    }

    /// Executes a command on a gateway, or on the server if `gateway` is `None`, that is answered without I/O.
    pub fn ask(&mut self, gateway: Option<usize>, command: Command) -> Result<Report, String> {
        let site = gateway.unwrap_or(self.guests.len());
        let report = self.cluster.benches[site].ask(command);
        self.cluster.pass_on(site);
        report
    }
}

impl Bench {
    /// Has the volume of a tenant, for its gateway.
    fn serve_gateway(&mut self, number: u32, on: &Tenant) -> Result<(), String> {
        let (volume, tenant) = (VolumeId(number), TenantId(number));
        self.command(Command::SetTenant(tenant, on.tier2))?;
        let load = Workload::new(Vec::new(), 0);
        let Tenant { start, bytes, write_cache, .. } = *on;
        let spec = self.place(volume, &Volume { tenant: number as usize, start, bytes, write_cache, load })?;
        self.command(Command::OpenVolume(spec))?;
        let export =
            Export { name: number.to_string(), size: bytes, identity: Some(number.into()), ..Export::default() };
        self.links.exports.push((volume, tenant, export));
        Ok(())
    }

    /// Has a volume that leads to export `export` of the server.
    fn lead_to_server(&mut self, number: u32, export: u32, server: usize, on: &Tenant) -> Result<(), String> {
        let (volume, tenant) = (VolumeId(number), TenantId(number));
        self.command(Command::SetTenant(tenant, TenantSpec { is_remote: true, ..on.tier1 }))?;
        let upstream = UpstreamSpec {
            name: export.to_string(),
            size: on.bytes,
            volume: Some(export.into()),
            client: self.links.number.to_string(),
            epoch: 1,
            connections: CONNECTIONS,
            window: WINDOW,
            deadline_ns: DEADLINE_NS,
            unsafe_without_flush: false,
            tls: false,
            is_shared: false,
            is_leased: false,
            tiers: on.together,
        };
        self.links.servers.insert(volume, server);
        let plain = VolumeSpec::plain(volume, tenant, on.bytes);
        self.order(Command::OpenVolume(VolumeSpec { upstream: Some(upstream), write_cache: on.write_cache, ..plain }))
    }
}

/// The drive of a gateway, which has no volume on it.
fn unused() -> Box<dyn Drive> {
    let spec = LanesSpec { parallel: 1, service_ns: 1, block_ns: 1, flush_ns: 1 };
    Box::new(Lanes::new(spec, Rng::new(1)))
}

#[cfg(test)]
mod tests {
    use engine::control::{CacheSpec, FRAME_BYTES};
    use engine::units::{BLOCK, MILLISECOND, SECOND};

    use super::*;
    use crate::load::workload::Lane;
    use crate::load::{Op, Pace, Record};

    const LINK_NS: Nanos = 100_000;
    const DISK_NS: Nanos = 5 * MILLISECOND;

    /// Reads of these blocks, one at a time, on a gateway with a cache of `tier1` frames and a server with `tier2`
    /// frames: the latency of each.
    fn latencies(
        blocks: &'static [u64],
        (tier1, tier2): (u64, u64),
        together: Together,
    ) -> (Vec<Nanos>, Snapshot, Snapshot) {
        let records = blocks.iter().map(|block| Record {
            time_ns: 0,
            op: Op::Read,
            offset: block * BLOCK,
            bytes: BLOCK,
            stream: 0,
        });
        let load = Workload::new(vec![Lane::of_trace(records, Pace::Closed { depth: 1, think_ns: 0 })], 0);
        let of = |frames: u64| TenantSpec { cache: CacheSpec::Asked(frames * FRAME_BYTES), ..TenantSpec::default() };
        let (tier1, tier2) = (of(tier1), of(tier2));
        let (bytes, write_cache) = (64 << 20, WriteCache::Volatile);
        let tenant = Tenant { gateway: 0, tier1, tier2, together, start: 0, bytes, write_cache, load };
        let spec = LanesSpec { parallel: 1, service_ns: DISK_NS, block_ns: 0, flush_ns: DISK_NS };
        let config = || Config { prefetch_bytes_max: Some(0), ..Config::new(16 << 20) };
        let drive = Box::new(Lanes::new(spec, Rng::new(1)));
        let mut tiers =
            Tiers::new(Costs::default(), LINK_NS, vec![config()], (config(), drive), vec![tenant]).expect("it starts");
        let mut found = Vec::new();
        tiers.run(100 * SECOND, |done| {
            assert!(!done.failed && done.volume == 0);
            found.push(done.done_ns - done.request.intended_ns);
        });
        (found, tiers.gateway(0).unwrap(), tiers.server().unwrap())
    }

    /// Twice over 400 blocks: with frames for 200 in tier 1 and for 600 in tier 2, the second time all are hits in tier
    /// 2, and the last ones read are hits in tier 1.
    #[test]
    fn each_tier_has_its_hits_and_its_latency() {
        let mut blocks: Vec<u64> = (0..800).map(|at| at * 7 % 400 * 16).collect();
        blocks.extend((790..800).map(|at| at * 7 % 400 * 16));
        let (found, gateway, server) = latencies(blocks.leak(), (200, 600), Together::Lru);
        assert_eq!(found.len(), 810);
        let within = |of: &[Nanos], least: Nanos, most: Nanos| of.iter().all(|ns| (least..most).contains(ns));
        let near_ns = 100_000;
        assert!(within(&found[..400], DISK_NS + 2 * LINK_NS, 2 * DISK_NS + 2 * LINK_NS + near_ns), "misses: {found:?}");
        assert!(within(&found[400..800], 2 * LINK_NS, 2 * LINK_NS + near_ns), "hits in tier 2: {:?}", &found[400..800]);
        assert!(within(&found[800..], 0, near_ns), "hits in tier 1: {:?}", &found[800..]);
        assert_eq!((gateway.volumes[0].hit_blocks, gateway.volumes[0].miss_blocks), (10, 800));
        assert_eq!((server.volumes[0].hit_blocks, server.volumes[0].miss_blocks), (400, 400));
    }

    /// Again and again over 600 blocks, with frames for 400 in both tiers: under LRU all are misses, under DEMOTE most
    /// are hits in tier 2.
    #[test]
    fn tiers_that_demote_hold_what_both_have_room_for() {
        let hits = |together| {
            let blocks: Vec<u64> = (0..6000).map(|at| at % 600 * 16).collect();
            latencies(blocks.leak(), (400, 400), together).2.volumes[0].hit_blocks
        };
        assert_eq!(hits(Together::Lru), 0);
        let demoted = hits(Together::Demote);
        assert!(demoted > 4800, "{demoted} of 5400");
    }
}
