//! Tenants behind gateways, with stated partitions in both tiers and stated shares of one disk.

use engine::Config;
use engine::allocate::Counters;
use engine::control::{
    CacheSpec, Command, LEAST_BYTES, Report, Snapshot, TenantSpec, Tiers as Together, VolumeStats, WriteCache,
};
use engine::curve::View;
use engine::disk::policy::Kind as Policy;
use engine::ids::{TenantId, VolumeId};
use engine::units::{BLOCK, Nanos, SECOND, Share};
use sim::bench::tiers::{Tenant, Tiers};
use sim::bench::{Costs, Done};

use super::super::Context;
use super::super::stand::{Stand, mixed};
use super::loads::{FILLING, Kind};
use super::prompt::Prompt;

/// Two tiers of cache in front of a disk.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The server and its disk.
    pub stand: Stand,
    /// Memory of each gateway, bytes.
    pub gateways: Vec<u64>,
    /// Latency of one direction between a gateway and the server.
    pub link_ns: Nanos,
    /// Time in which the disk answers at once, so that the caches fill; then time in which nothing counts; then the
    /// counted time.
    pub fill_ns: Nanos,
    pub settle_ns: Nanos,
    pub counted_ns: Nanos,
    /// The first of these before a run that the planner learns from: curves have forgotten that caches were empty.
    pub learning_ns: Nanos,
    /// How the caches of a tenant go together.
    pub together: Together,
}

/// A tenant and what it has.
#[derive(Clone, Debug)]
pub struct Actor<'a> {
    pub kind: &'a Kind,
    pub gateway: usize,
    /// Its partitions, bytes.
    pub first: u64,
    pub second: u64,
    pub share: Share,
}

/// What one tenant got in the counted time. Times are means, as its client sees them, nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
pub struct Seen {
    pub requests: u64,
    pub seconds: f64,
    /// Of all requests, of reads, and of writes.
    pub latency_ns: f64,
    pub read_ns: f64,
    pub write_ns: f64,
    /// Blocks of reads: hits in the first tier, in the second one, and misses, of all.
    pub first_hits: f64,
    pub second_hits: f64,
    pub misses: f64,
    /// Latency of a read that misses, at the server: waits, and the disk.
    pub disk_ns: f64,
    /// What its device reads waited for its slice, of all device reads.
    pub slice_wait_ns: f64,
    /// Blocks that the gateway wrote to the server, and that the server wrote to its disk, by request.
    pub first_writes: f64,
    pub second_writes: f64,
}

impl Seen {
    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "requests_per_second": self.requests as f64 / self.seconds, "mean_ms": self.latency_ns / 1e6,
            "read_ms": self.read_ns / 1e6, "write_ms": self.write_ns / 1e6, "disk_ms": self.disk_ns / 1e6,
            "slice_wait_ms": self.slice_wait_ns / 1e6,
            "first_hits": self.first_hits, "second_hits": self.second_hits, "misses": self.misses,
            "first_writes": self.first_writes, "second_writes": self.second_writes,
        })
    }
}

/// What a control plane can see of a tenant through the server's and the gateway's API.
#[derive(Clone, Debug)]
pub struct Told {
    /// The volume on its gateway and on the server, at the beginning and the end of the counted time.
    pub gateway: [VolumeStats; 2],
    pub server: [VolumeStats; 2],
    /// The curves on its gateway and on the server, at the end.
    pub curve: View,
    pub curve_there: View,
    /// What the tenant did on its gateway in the counted time.
    pub at_gateway: Counters,
    /// The server's snapshot at both times, and the tenant in it.
    pub disk: [Snapshot; 2],
    pub tenant: TenantId,
    pub seconds: f64,
}

/// The result of a run.
pub struct Played {
    pub seen: Vec<Seen>,
    pub told: Vec<Told>,
}

/// Memory for what the tenants' partitions do not use, bytes.
const SPARE: u64 = 1 << 20;

/// A size that `allocate` has given to a tenant with `--cache auto`.
fn planned(bytes: u64) -> CacheSpec {
    CacheSpec::Planned { asked: 0, planned: bytes }
}

impl Scene {
    /// A cheetah-15k5 with slices; two gateways of 32 MiB, 200 us of network between them and the server.
    pub fn new(context: &Context) -> Result<Scene, String> {
        let stand = Stand::new("cheetah-15k5", false).probed()?;
        let stand = Stand { policy: Policy::Insulated, memory: 64 << 20, ..stand };
        Ok(Scene {
            stand,
            gateways: vec![32 << 20; 2],
            link_ns: 100_000,
            fill_ns: if context.quick { 12 } else { 20 } * SECOND,
            settle_ns: if context.quick { 8 } else { 15 } * SECOND,
            counted_ns: if context.quick { 30 } else { 90 } * SECOND,
            learning_ns: 300 * SECOND,
            together: Together::Lru,
        })
    }

    /// The same for a run that the planner learns from.
    pub fn learning(&self) -> Scene {
        Scene { fill_ns: self.learning_ns, ..self.clone() }
    }

    fn tenant(&self, at: usize, of: usize, actor: &Actor<'_>, seed: u64) -> Result<Tenant, String> {
        let (start, room) = self.stand.place(at, of)?;
        let bytes = actor.kind.bytes;
        if bytes > room {
            return Err(format!("{}: {bytes} bytes do not fit into its place of {room}", actor.kind.name));
        }
        let blocks = (actor.first.max(actor.second) / BLOCK) as usize;
        Ok(Tenant {
            gateway: actor.gateway,
            tier1: TenantSpec { cache: planned(actor.first), ..TenantSpec::default() },
            tier2: TenantSpec { cache: planned(actor.second), share: Some(actor.share), ..TenantSpec::default() },
            together: self.together,
            start,
            bytes,
            write_cache: WriteCache::Volatile,
            load: actor.kind.workload(blocks, self.fill_ns, mixed(seed, at))?,
        })
    }

    /// Runs these tenants.
    pub fn play(&self, actors: &[Actor<'_>], seed: u64) -> Result<Played, String> {
        self.start(actors, seed)?.window(self.counted_ns)
    }

    /// Has these tenants run until their caches are filled and time counts.
    pub fn start(&self, actors: &[Actor<'_>], seed: u64) -> Result<Running, String> {
        let of_gateway = |gateway: usize| actors.iter().filter(move |actor| actor.gateway == gateway);
        let config = |(gateway, &memory): (usize, &u64)| {
            let asked: u64 = of_gateway(gateway).map(|actor| actor.first).sum();
            Config { seed, prefetch_bytes_max: Some(0), ..Config::new(memory.max(asked) + SPARE) }
        };
        let gateways = self.gateways.iter().enumerate().map(config).collect();
        let asked: u64 = actors.iter().map(|actor| actor.second).sum();
        let stand = Stand { memory: self.stand.memory.max(asked) + SPARE, ..self.stand.clone() };
        let drive = Box::new(Prompt::new(stand.drive()?, self.fill_ns));
        let tenants = actors.iter().enumerate().map(|(at, actor)| self.tenant(at, actors.len(), actor, seed));
        let tenants = tenants.collect::<Result<_, _>>()?;
        let mut tiers = Tiers::new(Costs::default(), self.link_ns, gateways, (stand.config(seed), drive), tenants)?;
        let (mut failed, mut late) = (None, 0);
        tiers.run(self.fill_ns + self.settle_ns, |done| {
            failed = failed.or(done.failed.then_some(done));
            late += u32::from(done.request.stream == FILLING && done.done_ns > self.fill_ns);
        });
        if late > 0 {
            return Err(format!("{late} blocks that fill the caches were not read in {} s", self.fill_ns / SECOND));
        }
        match failed {
            Some(done) => Err(failure(done)),
            None => Ok(Running { tiers, gateways: self.gateways.len(), tenants: actors.len() }),
        }
    }

    /// The smallest partition of a tenant that is only there to keep the disk busy.
    pub fn least() -> u64 {
        2 * LEAST_BYTES
    }
}

/// Tenants that run.
pub struct Running {
    tiers: Tiers,
    gateways: usize,
    tenants: usize,
}

impl Running {
    /// What they do in the next time.
    pub fn window(&mut self, counted_ns: Nanos) -> Result<Played, String> {
        let before = Looks::take(&mut self.tiers, self.gateways)?;
        let end = self.tiers.now() + counted_ns;
        let mut failed = None;
        let mut sums = vec![[(0u64, 0u64); 2]; self.tenants];
        self.tiers.run(end, |done| {
            failed = failed.or(done.failed.then_some(done));
            let is_write = done.request.op != sim::load::Op::Read;
            let sum = &mut sums[done.volume][usize::from(is_write)];
            *sum = (sum.0 + 1, sum.1 + (done.done_ns - done.request.intended_ns));
        });
        if let Some(done) = failed {
            return Err(failure(done));
        }
        let after = Looks::take(&mut self.tiers, self.gateways)?;
        let seconds = counted_ns as f64 / 1e9;
        let told = (0..self.tenants).map(|at| self.told(at, [&before, &after], seconds));
        let told: Vec<Told> = told.collect::<Result<_, String>>()?;
        let seen = told.iter().zip(sums).map(|(told, sums)| seen(told, sums)).collect();
        Ok(Played { seen, told })
    }

    fn told(&mut self, at: usize, looks: [&Looks; 2], seconds: f64) -> Result<Told, String> {
        let (gateway, volume, at_gateway) = self.tiers.place(at);
        let mut curve_at = |site, volume| match self.tiers.ask(site, Command::Curve(volume, None))? {
            Report::Curve(curve) => Ok(*curve),
            _ => Err(String::from("a curve was asked for and not given")),
        };
        let (curve, curve_there) = (curve_at(Some(gateway), volume)?, curve_at(None, VolumeId(at as u32))?);
        Ok(Told {
            gateway: looks.map(|look| of_volume(&look.gateways[gateway], volume)),
            server: looks.map(|look| of_volume(&look.server, VolumeId(at as u32))),
            curve,
            curve_there,
            at_gateway: between(looks.map(|look| &look.gateways[gateway]), at_gateway),
            disk: looks.map(|look| look.server.clone()),
            tenant: TenantId(at as u32),
            seconds,
        })
    }

    /// Gives a tenant other partitions and another share.
    pub fn give(&mut self, tenant: usize, first: u64, second: u64, share: Share) -> Result<(), String> {
        let (gateway, _, at_gateway) = self.tiers.place(tenant);
        let tier1 = TenantSpec { cache: planned(first), is_remote: true, ..TenantSpec::default() };
        let tier2 = TenantSpec { cache: planned(second), share: Some(share), ..TenantSpec::default() };
        let at_server = Command::SetTenant(TenantId(tenant as u32), tier2);
        for (site, command) in [(Some(gateway), Command::SetTenant(at_gateway, tier1)), (None, at_server)] {
            match self.tiers.ask(site, command)? {
                Report::Done => {}
                other => return Err(format!("tenant {tenant} cannot have that: {other:?}")),
            }
        }
        Ok(())
    }
}

fn failure(done: Done) -> String {
    format!("{done:?} failed on a disk without faults")
}

/// The snapshots of all at one time.
struct Looks {
    gateways: Vec<Snapshot>,
    server: Snapshot,
}

impl Looks {
    fn take(tiers: &mut Tiers, gateways: usize) -> Result<Looks, String> {
        let gateways = (0..gateways).map(|gateway| tiers.gateway(gateway)).collect::<Result<_, _>>()?;
        Ok(Looks { gateways, server: tiers.server()? })
    }
}

fn of_volume(snapshot: &Snapshot, volume: VolumeId) -> VolumeStats {
    snapshot.volumes.iter().find(|stats| stats.volume == volume).expect("it is open").clone()
}

/// What a tenant did between two snapshots.
pub fn between([before, after]: [&Snapshot; 2], tenant: TenantId) -> Counters {
    let [before, after] = [before, after].map(|snapshot| snapshot.counters(tenant).expect("it is there"));
    after.since(&before).expect("counters of a process do not go back")
}

/// The difference of a counter.
pub fn since(looks: &[VolumeStats; 2], of: impl Fn(&VolumeStats) -> u64) -> f64 {
    (of(&looks[1]) - of(&looks[0])) as f64
}

fn seen(told: &Told, [reads, writes]: [(u64, u64); 2]) -> Seen {
    let mean = |(count, sum): (u64, u64)| if count > 0 { sum as f64 / count as f64 } else { 0.0 };
    let requests = reads.0 + writes.0;
    let of_gateway = |of: fn(&VolumeStats) -> u64| since(&told.gateway, of);
    let of_server = |of: fn(&VolumeStats) -> u64| since(&told.server, of);
    let blocks = of_gateway(|stats| stats.hit_blocks) + of_gateway(|stats| stats.miss_blocks);
    let [misses, first_misses] = [of_server(|stats| stats.miss_blocks), of_gateway(|stats| stats.miss_blocks)];
    let part = |of: f64| if blocks > 0.0 { of / blocks } else { 0.0 };
    Seen {
        requests,
        seconds: told.seconds,
        latency_ns: mean((requests, reads.1 + writes.1)),
        read_ns: mean(reads),
        write_ns: mean(writes),
        first_hits: part(blocks - first_misses),
        second_hits: part(first_misses - misses),
        misses: part(misses),
        disk_ns: told.disk_ns().unwrap_or(0.0),
        slice_wait_ns: of_server(|stats| stats.fills.slice_ns) / of_server(|stats| stats.fills.requests).max(1.0),
        first_writes: of_gateway(|stats| stats.device_write_bytes) / BLOCK as f64 / requests.max(1) as f64,
        second_writes: of_server(|stats| stats.device_write_bytes) / BLOCK as f64 / requests.max(1) as f64,
    }
}

/// A read of the server without the disk takes about this, ns: a constant of the bench.
const HIT_NS: f64 = 10_000.0;

impl Told {
    /// Mean latency at the server of a read that misses there; `None` without one.
    pub fn disk_ns(&self) -> Option<f64> {
        let reads = since(&self.server, |stats| stats.read.requests);
        let misses = since(&self.server, |stats| stats.miss_blocks).min(reads);
        let sum = since(&self.server, |stats| stats.read.latency.sum_ns);
        (misses > 0.0).then(|| ((sum - (reads - misses).max(0.0) * HIT_NS) / misses).max(0.0))
    }
}
