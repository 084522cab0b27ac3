//! Servers with a disk each, and what their clients get when they off-load to one another.

use engine::control::{CacheSpec, TenantSpec, WriteCache};
use engine::disk::policy::Kind;
use engine::offload::Settings;
use engine::units::{Nanos, SECOND, Share};
use sim::bench::cluster::{Cluster, START_NS, Site, Store};
use sim::bench::{Costs, Volume};
use sim::disk::drive::Drive;

use super::super::loads::Load;
use super::super::stand::{Rate, Stand, mixed};
use super::striped::Striped;

/// The drives of all servers.
pub const DISK: &str = "cheetah-15k5";
/// R, in every experiment: the server's default.
pub const R: f64 = 0.9;
/// The share of all stores of a disk, as the server chooses it.
pub const STORE_SHARE: f64 = 0.05;
/// Memory of a server: its volumes have what their requests need, and no more.
const CACHELESS: u64 = 32 << 20;
/// The partition of a volume without a cache: its outstanding requests, several times.
const CACHELESS_VOLUME: u64 = 4 << 20;

/// How often it is seen what is off-loaded.
const STEP_NS: Nanos = 5 * SECOND;

/// The load of a server's volume, and where it is off-loaded to.
#[derive(Clone)]
pub struct Server {
    pub load: Option<Load>,
    /// Bytes of the volume.
    pub bytes: u64,
    /// The servers that have its stores.
    pub stores: Vec<usize>,
    pub settings: Settings,
}

impl Server {
    /// Without a load.
    pub fn idle() -> Server {
        Server { load: None, bytes: 0, stores: Vec::new(), settings: Settings::DEFAULT }
    }
}

/// A run.
#[derive(Clone)]
pub struct Rack {
    pub stand: Stand,
    pub servers: Vec<Server>,
    pub store_bytes: u64,
    /// The partition of a volume.
    pub volume_cache: u64,
    /// When writes of volumes are acknowledged.
    pub write_cache: WriteCache,
    /// Volumes are at the end of the drives.
    pub is_at_end: bool,
    /// Drives of each server, over which it is striped.
    pub drives: usize,
}

/// What was seen.
pub struct Seen {
    /// By server.
    pub rates: Vec<Rate>,
    /// Reads that went to stores, by server, in the counted time.
    pub store_reads: Vec<u64>,
}

impl Rack {
    /// Drives as a probe finds them, insulated, without caches.
    pub fn cacheless(servers: Vec<Server>, warm_up_ns: Nanos, counted_ns: Nanos) -> Result<Rack, String> {
        let stand = Stand::new(DISK, false).probed()?;
        let stand =
            Stand { policy: Kind::Insulated, memory: CACHELESS, warm_up_ns, counted_ns, prefetch: None, ..stand };
        Ok(Rack {
            stand,
            servers,
            store_bytes: 6 << 30,
            volume_cache: CACHELESS_VOLUME,
            write_cache: WriteCache::None,
            is_at_end: false,
            drives: 1,
        })
    }

    /// The drive of a server.
    pub fn drive(&self) -> Result<Box<dyn Drive>, String> {
        match self.drives {
            1 => self.stand.drive(),
            drives => {
                let drives: Result<_, String> = (0..drives).map(|_| self.stand.drive()).collect();
                Ok(Box::new(Striped::new(drives?)))
            }
        }
    }

    fn site(&self, at: usize, seed: u64) -> Result<Site, String> {
        let server = &self.servers[at];
        let share = |of: f64| Share::from_ppb((of * 1e9) as u64);
        let tenant = TenantSpec {
            share: share(1.0 - STORE_SHARE),
            cache: CacheSpec::Asked(self.volume_cache),
            ..TenantSpec::default()
        };
        let drive = self.drive()?;
        let start = if self.is_at_end { (drive.bytes() - server.bytes) / (1 << 20) * (1 << 20) } else { 0 };
        let volume = |load: &Load| {
            let load = load.workload(server.bytes, mixed(seed, at))?.beginning_at(START_NS);
            Ok(Volume { tenant: 0, start, bytes: server.bytes, write_cache: self.write_cache, load })
        };
        let volumes: Result<Vec<Volume>, String> = server.load.iter().map(volume).collect();
        Ok(Site {
            config: self.stand.config(seed),
            drive,
            tenants: vec![tenant],
            volumes: volumes?,
            store_share: share(STORE_SHARE).expect("it is in range"),
            stores: server.stores.iter().map(|&site| Store { site, bytes: self.store_bytes }).collect(),
            settings: server.settings,
        })
    }

    /// The same with so much memory in each server.
    pub fn with_memory(self, memory: u64) -> Rack {
        Rack { stand: Stand { memory, ..self.stand }, ..self }
    }

    /// The same with the volumes at the end of the drives.
    pub fn at_end(self) -> Rack {
        Rack { is_at_end: true, ..self }
    }

    /// The servers of a run, with stores whose headers are kept.
    pub fn keeping(&self, seed: u64) -> Result<Cluster, String> {
        Cluster::keeping(Costs::default(), self.sites(seed)?)
    }

    fn sites(&self, seed: u64) -> Result<Vec<Site>, String> {
        (0..self.servers.len()).map(|at| self.site(at, seed)).collect()
    }

    /// The servers of a run.
    pub fn cluster(&self, seed: u64) -> Result<Cluster, String> {
        Cluster::new(Costs::default(), self.sites(seed)?)
    }

    /// When so many bytes of a server are off-loaded, in a run of at most `at_most` nanoseconds.
    pub fn when_away(&self, server: usize, bytes: u64, at_most: Nanos, seed: u64) -> Result<Option<Nanos>, String> {
        let mut cluster = self.cluster(seed)?;
        for end in (0..at_most).step_by(STEP_NS as usize).skip(1) {
            cluster.run(START_NS + end, |_, _| {});
            if cluster.snapshot(server)?.offload.is_some_and(|offload| offload.away_bytes >= bytes) {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }

    /// Runs it.
    pub fn run(&self, seed: u64) -> Result<Seen, String> {
        let mut cluster = self.cluster(seed)?;
        let count = self.servers.len();
        let mut rates = vec![Rate::new(&self.stand); count];
        let since = START_NS + self.stand.warm_up_ns;
        let mut failed = None;
        let mut step = |cluster: &mut Cluster, end: Nanos| {
            cluster.run(end, |at, done| {
                failed = failed.or(done.failed.then_some((at, done)));
                rates[at].count(&done, since);
            });
        };
        step(&mut cluster, since);
        let reads_before: Vec<u64> = (0..count).map(|at| cluster.store_reads(at)).collect();
        step(&mut cluster, since + self.stand.counted_ns);
        if let Some((at, done)) = failed {
            return Err(format!("server {at}: {done:?} failed on disks without faults"));
        }
        let store_reads = (0..count).map(|at| cluster.store_reads(at) - reads_before[at]).collect();
        Ok(Seen { rates, store_reads })
    }
}

/// Nanoseconds of so many seconds.
pub const fn seconds(of: u64) -> Nanos {
    of * SECOND
}
