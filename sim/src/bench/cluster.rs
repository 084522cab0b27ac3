//! Several servers with a drive each, whose volumes are off-loaded to stores on one another, in virtual time.
//!
//! ```text
//!   load ─► Bench: engine, drive ══ network ══ Bench: engine, drive ◄─ load
//!            off-loads                          has its store, at the end of the drive
//! ```
//!
//! Servers talk NBD, by the engine's own machines for both sides; of data only the length travels, so what is read is
//! zero. The network has the latency of [`Costs`] and any bandwidth; it does not fail. Worlds in which everything fails
//! are in [`crate::machines`].

use std::collections::BTreeMap;

use engine::Config;
use engine::Event;
use engine::control::WriteCache;
use engine::control::{CacheSpec, Command, LEAST_BYTES, Report, Snapshot, TenantSpec, Tiers, UpstreamSpec, VolumeSpec};
use engine::ids::{TenantId, VolumeId, VolumeKey};
use engine::nbd::Export;
use engine::offload::{Initial, Map, OffloadStats, Past, Recovered, Settings, Setup, log_bytes};
use engine::units::Share;
use engine::units::{MILLISECOND, Nanos, SECOND};

use super::links::Parcel;
use super::{Bench, Costs, Done, Volume, Wake};
use crate::disk::drive::Drive;

/// When loads may begin: the stores are open by then.
pub const START_NS: Nanos = SECOND;
/// Numbers of volumes from here on are stores, and those that lead to stores.
const STORES_FROM: u32 = 1000;
const UPSTREAMS_FROM: u32 = 2000;
/// As in the server: requests that are outstanding at a store, and connections.
pub(super) const WINDOW: u32 = 128;
pub(super) const CONNECTIONS: u32 = 4;
/// Longer than any wait, since connections never fail here. The server gives a connection up after 20 s without an
/// answer; a store on an overloaded disk, with settings that send it more than it takes, is as slow as that.
pub(super) const DEADLINE_NS: Nanos = 3600 * SECOND;

/// A server of the cluster.
pub struct Site {
    /// Its configuration.
    pub config: Config,
    /// Its drive.
    pub drive: Box<dyn Drive>,
    /// Its tenants. The tenants of stores come behind them.
    pub tenants: Vec<TenantSpec>,
    /// Its volumes, all of which may be off-loaded. Loads begin at [`START_NS`].
    pub volumes: Vec<Volume>,
    /// The share of all stores that it has.
    pub store_share: Share,
    /// Where its volumes are off-loaded to, and when; to nowhere if there is no store.
    pub stores: Vec<Store>,
    /// See `stores`.
    pub settings: Settings,
}

/// A store.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    /// The server that has it.
    pub site: usize,
    /// Its size, bytes.
    pub bytes: u64,
}

/// The servers.
pub struct Cluster {
    pub(super) benches: Vec<Bench>,
    pub(super) now: Nanos,
}

impl Cluster {
    /// Sets everything up, and lets time pass until the stores are open.
    pub fn new(costs: Costs, sites: Vec<Site>) -> Result<Cluster, String> {
        Cluster::with(costs, sites, false)
    }

    /// The same; what stores have besides data is kept, for [`Cluster::kept`].
    pub fn keeping(costs: Costs, sites: Vec<Site>) -> Result<Cluster, String> {
        Cluster::with(costs, sites, true)
    }

    fn with(costs: Costs, sites: Vec<Site>, keeps: bool) -> Result<Cluster, String> {
        let mut benches = Vec::new();
        let mut waiting = Vec::new();
        for (number, site) in sites.into_iter().enumerate() {
            let has_upstreams = !site.stores.is_empty();
            let remote = TenantSpec { is_remote: true, cache: CacheSpec::Asked(LEAST_BYTES), ..TenantSpec::default() };
            let store = TenantSpec { is_store: true, share: Some(site.store_share), ..TenantSpec::default() };
            let tenants: Vec<TenantSpec> = site.tenants.iter().copied().chain([remote, store]).collect();
            let own = site.tenants.len();
            let mut bench =
                Bench::new(site.config, site.drive, costs, &tenants[..own + usize::from(has_upstreams)], vec![])?;
            (bench.links.number, bench.links.keeps) = (number, keeps);
            benches.push(bench);
            waiting.push((own, store, site.volumes, site.stores, site.settings));
        }
        let mut cluster = Cluster { benches, now: 0 };
        let mut ends: Vec<u64> = cluster.benches.iter().map(|bench| bench.drive.bytes()).collect();
        for (client, (_, _, _, stores, _)) in waiting.iter().enumerate() {
            for (at, store) in (0..).zip(stores) {
                let (own, spec, ..) = waiting[store.site];
                ends[store.site] = (ends[store.site] - store.bytes) / (1 << 20) * (1 << 20);
                cluster.benches[store.site].serve_store(client, own, spec, ends[store.site], store.bytes)?;
                cluster.benches[client].lead_to_store(at, waiting[client].0, *store)?;
            }
        }
        cluster.run(START_NS / 2, |_, _| ());
        for (client, (_, _, volumes, stores, settings)) in waiting.into_iter().enumerate() {
            let bench = &mut cluster.benches[client];
            if !stores.is_empty() {
                bench.start_offload(&stores, settings, volumes.len())?;
            }
            for (number, volume) in (0..).zip(volumes) {
                let key = (!stores.is_empty()).then_some(VolumeKey(number + 1));
                bench.open(number, volume, key)?;
            }
        }
        cluster.run(START_NS - MILLISECOND, |_, _| ());
        for at in 0..cluster.benches.len() {
            let is_open = |stats: OffloadStats| stats.stores.iter().all(|store| store.is_open);
            if !cluster.snapshot(at)?.offload.is_none_or(is_open) {
                return Err(format!("the stores of server {at} are not open in time"));
            }
        }
        Ok(cluster)
    }

    /// Runs until `end`; calls `done` for every answered request, with the number of its server.
    pub fn run(&mut self, end: Nanos, mut done: impl FnMut(usize, Done)) {
        loop {
            let next = self.benches.iter().enumerate().filter_map(|(at, bench)| Some((bench.next_at()?, at)));
            let Some((time, at)) = next.min().filter(|&(time, _)| time <= end) else { break };
            self.now = self.now.max(time);
            let bench = &mut self.benches[at];
            bench.now = self.now;
            bench.happen(&mut |what| done(at, what));
            self.pass_on(at);
        }
        self.now = self.now.max(end);
        self.benches.iter_mut().for_each(|bench| bench.now = self.now);
    }

    /// What a server has sent arrives at the others.
    pub(super) fn pass_on(&mut self, from: usize) {
        for Parcel { to, at, wire, chunk } in std::mem::take(&mut self.benches[from].links.outbox) {
            self.benches[to].queue.push(at, Wake::Deliver(wire, chunk));
        }
    }

    /// The virtual time.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Whether no request of a server's clients is outstanding.
    pub fn is_idle(&self, site: usize) -> bool {
        self.benches[site].is_idle()
    }

    /// A server's snapshot.
    pub fn snapshot(&mut self, site: usize) -> Result<Snapshot, String> {
        let snapshot = self.benches[site].snapshot();
        self.pass_on(site);
        snapshot
    }

    /// Gives a command that may be carried out later.
    pub fn order(&mut self, site: usize, command: Command) -> Result<(), String> {
        let answer = self.benches[site].order(command);
        self.pass_on(site);
        answer
    }

    /// Reads so far that a server has sent to its stores.
    pub fn store_reads(&self, client: usize) -> u64 {
        self.benches.iter().map(|bench| bench.reads_of(client)).sum()
    }

    /// What a store of a server has besides data, by offset.
    pub fn kept(&self, client: usize, store: Store) -> BTreeMap<u64, Vec<u8>> {
        self.benches[store.site].kept(VolumeId(STORES_FROM + client as u32))
    }

    /// The first byte on its drive of the first store of a server.
    pub fn store_start(&self, client: usize) -> u64 {
        let volume = VolumeId(STORES_FROM + client as u32);
        self.benches.iter().find_map(|bench| bench.starts.get(&volume).copied()).expect("it has a store")
    }
}

impl Bench {
    pub(super) fn order(&mut self, command: Command) -> Result<(), String> {
        self.report = None;
        self.apply(Event::Control { token: 0, command });
        match self.report.take() {
            Some(Report::Refused(why)) => Err(why.to_string()),
            _ => Ok(()),
        }
    }

    /// Has the store of another server, `own` tenants being there before that of stores.
    fn serve_store(
        &mut self,
        client: usize,
        own: usize,
        spec: TenantSpec,
        start: u64,
        bytes: u64,
    ) -> Result<(), String> {
        let (volume, tenant) = (VolumeId(STORES_FROM + client as u32), own + 1);
        self.command(Command::SetTenant(TenantId(tenant as u32), spec))?;
        let load = crate::load::Workload::new(Vec::new(), 0);
        let spec = self.place(volume, &Volume { tenant, start, bytes, write_cache: WriteCache::None, load })?;
        self.command(Command::OpenVolume(spec))?;
        let export =
            Export { name: client.to_string(), size: bytes, identity: Some(volume.0.into()), ..Export::default() };
        self.links.exports.push((volume, TenantId(tenant as u32), export));
        Ok(())
    }

    /// Has a volume that leads to a store.
    fn lead_to_store(&mut self, at: u32, own: usize, store: Store) -> Result<(), String> {
        let client = self.links.number;
        let upstream = UpstreamSpec {
            name: client.to_string(),
            size: store.bytes,
            volume: Some(u128::from(STORES_FROM) + client as u128),
            client: client.to_string(),
            epoch: 1,
            connections: CONNECTIONS,
            window: WINDOW,
            deadline_ns: DEADLINE_NS,
            unsafe_without_flush: false,
            tls: false,
            is_shared: false,
            is_leased: false,
            tiers: Tiers::Lru,
        };
        let volume = VolumeId(UPSTREAMS_FROM + at);
        self.links.servers.insert(volume, store.site);
        let spec = VolumeSpec {
            upstream: Some(upstream),
            write_cache: WriteCache::None,
            ..VolumeSpec::plain(volume, TenantId(own as u32), store.bytes)
        };
        self.order(Command::OpenVolume(spec))
    }

    fn start_offload(&mut self, stores: &[Store], settings: Settings, volumes: usize) -> Result<(), String> {
        if self.links.online.len() < stores.len() {
            return Err("not all stores were reached in time".into());
        }
        let initial = (0..).zip(stores).map(|(at, store)| {
            let bytes =
                log_bytes(store.bytes).ok_or_else(|| format!("a store of {} bytes is too small", store.bytes))?;
            let recovered = Recovered::format(u128::from(at) + 1, bytes);
            Ok((VolumeId(UPSTREAMS_FROM + at), Initial::Scanned(Box::new(recovered), 0)))
        });
        let setup = Setup {
            settings,
            past: Past { incarnation: 1, accepted: 0, is_unfenced: false },
            stores: initial.collect::<Result<_, String>>()?,
            volumes: (1..=volumes as u32).map(VolumeKey).collect(),
            map: Map::default(),
        };
        self.order(Command::StartOffload(Box::new(setup)))
    }
}
