//! The parameters of a world of machines, generated from one seed.

use engine::Config;
use engine::control::{LEAST_BYTES, STORE_CACHE_BYTES, Tiers, UpstreamSpec};
use engine::disk::policy;
use engine::ids::VolumeId;
use engine::nbd::wire::command;
use engine::offload::{STORE_BYTES_MIN, Settings};
use engine::units::{BLOCK, MILLISECOND, Nanos, SECOND};

use super::machine::{Clock, Hosted, Machine};
use super::network::Speed;
use super::offload::{Control, KEY, Known};
use crate::disk::drive::lanes::{Lanes, LanesSpec};
use crate::disk::{Disk, Limits};
use crate::fault::Faults;
use crate::rng::Rng;
use crate::workload::{Length, Mix};

/// The machine whose volumes the others open.
pub(crate) const SERVER: usize = 0;
/// The number of the volume that takes the place of another one, less that one's.
pub(crate) const DECOY: u32 = 16;

/// What happens beyond crashes and broken connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// One gateway.
    Plain,
    /// One gateway, and a server that does not know sessions.
    Stranger,
    /// One gateway; once, another volume has the name of the export.
    Swap,
    /// A second gateway of another name takes over when the first one is dead.
    Failover,
    /// A successor of the same name takes over while the first gateway is stopped, and continues later.
    Zombie,
    /// The first gateway is cut off; a second one of another name is served and leaves; the first one comes back.
    Return,
    /// One gateway, whose volumes are striped over so many servers, in units of so many bytes. The servers know
    /// sessions, or do not.
    Stripes { servers: usize, unit: u64, is_foreign: bool },
    /// Each machine off-loads writes to stores on the two others. Their servers know sessions, or do not.
    Stores { is_foreign: bool },
}

impl Kind {
    pub(crate) fn has_stores(self) -> bool {
        matches!(self, Kind::Stores { .. })
    }

    /// Whether servers know no sessions: they end a connection when its requests have ended.
    pub(crate) fn has_strangers(self) -> bool {
        matches!(self, Kind::Stranger | Kind::Stores { is_foreign: true } | Kind::Stripes { is_foreign: true, .. })
    }

    /// The first gateway: the machine after the servers.
    pub(crate) fn gateway(self) -> usize {
        if let Kind::Stripes { servers, .. } = self { servers } else { 1 }
    }
}

/// Worlds of one kind, in which some bugs are found that few others show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    /// Large ranges are zeroed.
    Zero,
    /// Processes die one after the other.
    Restart,
    /// Connections to a stranger's server are lost.
    Linger,
    /// The server takes what the gateway evicts, and connections between them stall.
    Tiers,
    /// Of worlds with stores: what a dead client has sent reaches a store after the next process has begun.
    Late,
    /// The same: a store is away while its versions are overwritten and deleted, and the client dies.
    Forget,
}

/// A volume that clients use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VolumeSetup {
    pub(crate) size: u64,
    /// It is on the server, not on the gateway's disk.
    pub(crate) is_remote: bool,
    pub(crate) clients: u64,
}

/// The parameters of a world.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) kind: Kind,
    pub(crate) requests: u64,
    pub(crate) volumes: Vec<VolumeSetup>,
    pub(crate) speed: Speed,
    pub(crate) mix: Mix,
    pub(crate) window: u64,
    pub(crate) think_ns: Nanos,
    /// Connections and requests of an upstream.
    connections: u32,
    upstream_window: u32,
    /// How long requests wait for the server; `None`: longer than the world lasts.
    pub(crate) deadline_ns: Option<Nanos>,
    /// Whether volumes of gateways, and of the server, have holes.
    is_sparse: [bool; 2],
    /// Weights of troubles: lost connections, partitions, stops, kills, power.
    pub(crate) weights: [u64; 5],
    /// The longest time between two troubles.
    pub(crate) trouble_ns: Nanos,
    /// When writes are off-loaded, and how long a process waits for stores.
    offload: Settings,
    patience_ns: Nanos,
    /// Stores are removed while they are in use.
    removes_stores: bool,
    /// Two gateways have leases of so many ms.
    pub(crate) lease_ms: Option<u64>,
    /// The disks of servers with stripes follow a schedule, so that reads are served in the order of the gateway's
    /// numbers.
    pub(crate) follows: bool,
    /// All machines lose power at once.
    pub(crate) is_blackout: bool,
    /// A process that dies has lost its connections before, and what it sent may arrive later.
    pub(crate) is_late: bool,
    /// Connections of a process stall before it dies: all that it has sent arrives later.
    pub(crate) stalls: bool,
    /// Whether the server takes what gateways evict; then connections stall, in place of a partition.
    pub(crate) tiers: Tiers,
    /// A client without a session writes a part of the first volume at the server.
    pub(crate) is_visited: bool,
    /// In place of a power cut, a store is away, and its client dies at about the time when it comes back.
    pub(crate) outages: bool,
}

/// Machines of a world with stores.
const MACHINES: usize = 3;
/// Without off-load.
const NO_STORES: Settings =
    Settings { base_threshold: 0, store_threshold: 0, reclaim_depth: 0, limit_bytes: 0, ..Settings::DEFAULT };

impl Setup {
    pub(crate) fn random(seed: u64, focus: Option<Focus>) -> Setup {
        let rng = &mut Rng::new(seed ^ 0x3ac_41e5);
        let kind = rng.weighted(&[
            (5, Kind::Plain),
            (3, Kind::Stranger),
            (1, Kind::Swap),
            (2, Kind::Failover),
            (2, Kind::Zombie),
        ]);
        // Without another draw, so that the worlds of all other seeds stay what they are.
        let returns = kind == Kind::Failover && Rng::new(seed ^ 0x0002_e704).one_in(2);
        let kind = if returns { Kind::Return } else { kind };
        let mut volume = |is_remote| {
            let blocks = rng.pick(&[16, 64, 200, 512]);
            VolumeSetup { size: blocks * BLOCK, is_remote, clients: rng.between(1, 3) }
        };
        let mut volumes = vec![volume(true)];
        volumes.extend(Rng::new(seed ^ 0x2).one_in(3).then(|| volume(true)));
        volumes.extend(Rng::new(seed ^ 0x10ca1).one_in(2).then(|| volume(false)));
        let mut setup = Setup {
            kind,
            requests: rng.pick(&[200, 400, 800]),
            volumes,
            speed: Speed {
                latency_ns: rng.pick(&[50_000, 500_000, 5 * MILLISECOND]),
                byte_ns: rng.pick(&[1, 10, 100]),
                buffer_bytes: rng.pick(&[8 << 10, 64 << 10, 1 << 20]),
            },
            mix: mix(rng),
            window: rng.pick(&[1, 4, 16]),
            think_ns: rng.pick(&[MILLISECOND, 10 * MILLISECOND, 100 * MILLISECOND]),
            connections: rng.pick(&[1, 2, 4]) as u32,
            upstream_window: rng.pick(&[1, 8, 64]) as u32,
            deadline_ns: rng.one_in(6).then(|| rng.pick(&[SECOND, 4 * SECOND])),
            is_sparse: [rng.one_in(2), rng.one_in(2)],
            weights: rng.pick(&[[6, 2, 2, 3, 2], [12, 1, 1, 1, 1], [4, 1, 1, 4, 10], [4, 0, 2, 10, 2]]),
            trouble_ns: rng.pick(&[50 * MILLISECOND, 500 * MILLISECOND, 2 * SECOND]),
            offload: NO_STORES,
            patience_ns: 0,
            removes_stores: false,
            lease_ms: None,
            follows: false,
            is_blackout: false,
            is_late: false,
            stalls: false,
            tiers: Tiers::Lru,
            is_visited: false,
            outages: false,
        };
        let dice = &mut Rng::new(seed ^ 0x2e_705);
        let drawn = match dice.below(6) {
            0 | 1 => Some(Focus::Zero),
            2 => Some(Focus::Restart),
            3 | 4 if kind == Kind::Stranger => Some(Focus::Linger),
            _ => None,
        };
        match focus.or(drawn) {
            Some(Focus::Zero) => setup.zero(dice),
            Some(Focus::Restart) => setup.restart(dice),
            Some(Focus::Linger) => setup.linger(dice),
            Some(Focus::Late | Focus::Forget | Focus::Tiers) | None => {}
        }
        setup
    }

    /// A server and gateways; in some worlds their caches demote.
    pub(crate) fn gateways_of_one(seed: u64, focus: Option<Focus>) -> Setup {
        let mut setup = Setup::random(seed, focus);
        let dice = &mut Rng::new(seed ^ 0x0071_e125);
        if focus == Some(Focus::Tiers) || focus.is_none() && dice.one_in(3) {
            setup.demote(dice);
        }
        setup
    }

    /// The server takes what gateways evict, whose volumes are larger than their caches.
    fn demote(&mut self, rng: &mut Rng) {
        self.tiers = Tiers::Demote;
        // Such a server does not take it: its cache is as ever.
        self.kind = if self.kind == Kind::Stranger && !rng.one_in(4) { Kind::Plain } else { self.kind };
        let remote = self.volumes.iter_mut().filter(|volume| volume.is_remote);
        remote.for_each(|volume| volume.size = rng.pick(&[400, 600, 900]) * BLOCK);
        let range = rng.pick(&[0, 1, 4, 10]);
        let commands = vec![
            (rng.pick(&[30, 60]), command::READ),
            (rng.pick(&[10, 40, 40]), command::WRITE),
            (rng.pick(&[0, 1, 4]), command::FLUSH),
            (range, command::TRIM),
            (range, command::WRITE_ZEROES),
        ];
        self.mix.commands = commands;
        self.mix.fua = rng.pick(&[0, 50_000, 300_000]);
        self.mix.aligned = rng.pick(&[700_000, 980_000]);
        self.mix.lengths = vec![(rng.pick(&[10, 40]), Length::Small), (30, Length::Medium), (10, Length::Large)];
        (self.requests, self.window, self.think_ns) = (rng.pick(&[1000, 2000, 4000]), 16, MILLISECOND);
        (self.connections, self.upstream_window) = (rng.pick(&[1, 2, 4, 4]) as u32, 64);
        self.speed.byte_ns = rng.pick(&[1, 10]);
        self.weights = rng.pick(&[[2, 20, 1, 2, 2], [1, 10, 2, 6, 6], [10, 10, 0, 1, 1]]);
        self.trouble_ns = rng.pick(&[20 * MILLISECOND, 100 * MILLISECOND, 500 * MILLISECOND]);
        // What holes hide is not read at the server.
        self.is_sparse = rng.pick(&[[false, false], [false, false], [true, false], [false, true], [true, true]]);
        self.is_visited = self.kind != Kind::Stranger && rng.one_in(3);
    }

    /// Machines that off-load writes to one another.
    pub(crate) fn stores(seed: u64, focus: Option<Focus>) -> Setup {
        let mut setup = Setup::random(seed, None);
        let rng = &mut Rng::new(seed ^ 0x0005_704e);
        setup.kind = Kind::Stores { is_foreign: rng.one_in(3) };
        let volume = |rng: &mut Rng| VolumeSetup {
            size: rng.pick(&[16, 64, 200]) * BLOCK,
            is_remote: false,
            clients: rng.between(1, 3),
        };
        setup.volumes = (0..MACHINES).map(|_| volume(rng)).collect();
        setup.requests = rng.pick(&[400, 1000, 2000]);
        setup.mix = mix(rng);
        setup.mix.fua = rng.pick(&[0, 50_000, 300_000]);
        setup.window = rng.pick(&[4, 16]);
        setup.think_ns = rng.pick(&[MILLISECOND, 10 * MILLISECOND]);
        setup.deadline_ns = rng.one_in(4).then(|| rng.pick(&[SECOND, 4 * SECOND]));
        setup.offload = Settings {
            copies: rng.between(1, 2) as usize,
            base_threshold: rng.pick(&[0, 0, 2]),
            store_threshold: rng.pick(&[4, 64]),
            reclaim_depth: rng.pick(&[1, 8]),
            limit_bytes: rng.pick(&[64 << 10, 64 << 20]),
            ..Settings::DEFAULT
        };
        setup.patience_ns = rng.pick(&[200 * MILLISECOND, 3 * SECOND]);
        match rng.below(6) {
            // What is written is torn by power cuts.
            0 => {
                (setup.is_blackout, setup.weights) = (true, [0, 0, 0, 2, 10]);
                setup.trouble_ns = rng.pick(&[100 * MILLISECOND, 500 * MILLISECOND]);
            }
            // Writes of dead processes arrive.
            1 => {
                setup.kind = Kind::Stores { is_foreign: true };
                (setup.is_late, setup.weights) = (true, [4, 0, 0, 10, 1]);
                setup.trouble_ns = rng.pick(&[100 * MILLISECOND, 500 * MILLISECOND]);
            }
            // Processes begin without a store, which comes back later.
            2 | 3 => {
                setup.offload.copies = 2;
                setup.patience_ns = 50 * MILLISECOND;
                setup.weights = [0, 10, 2, 10, 5];
                setup.trouble_ns = rng.pick(&[200 * MILLISECOND, SECOND]);
            }
            _ => {}
        }
        // Without another draw, so that the other worlds stay what they are. One of two stores must remain.
        setup.removes_stores = setup.offload.copies == 1 && seed % 4 == 1;
        let dice = &mut Rng::new(seed ^ 0x000f_0c05);
        let drawn = match dice.below(8) {
            0 => Some(Focus::Late),
            1 => Some(Focus::Forget),
            _ => None,
        };
        match focus.or(drawn) {
            Some(Focus::Late) => setup.late(),
            Some(Focus::Forget) => setup.forget(dice),
            _ => {}
        }
        setup
    }

    /// Clients of strangers' stores die while their connections stall, and off-load again at once. The next process
    /// writes where the stalled records will land, unless it leaves room for them.
    fn late(&mut self) {
        self.kind = Kind::Stores { is_foreign: true };
        (self.weights, self.is_late, self.stalls, self.is_blackout) = ([0, 0, 0, 1, 0], false, true, false);
        (self.trouble_ns, self.deadline_ns, self.patience_ns) = (2 * SECOND, None, 3 * SECOND);
        // Much is on the way to stores, and stays there: nothing goes home while there are requests.
        self.mix.commands = vec![(20, command::READ), (60, command::WRITE), (1, command::FLUSH)];
        self.mix.fua = 300_000;
        (self.requests, self.window, self.think_ns) = (2000, 16, 50 * MILLISECOND);
        self.offload = Settings { base_threshold: 0, store_threshold: 64, limit_bytes: 64 << 20, ..self.offload };
    }

    /// A store is away for longer than requests wait for it, while the same blocks are written again and again and go
    /// home; its client dies. What the store has then was deleted without it.
    fn forget(&mut self, rng: &mut Rng) {
        // With one copy, the other store is enough to remember the deletions. Its log is small, so what it remembers
        // does not stay in it without being needed.
        (self.kind, self.offload.copies) = (Kind::Stores { is_foreign: false }, 1);
        (self.weights, self.is_late, self.outages, self.is_blackout) = ([0, 0, 0, 0, 1], false, true, false);
        (self.trouble_ns, self.deadline_ns) = (2 * SECOND, Some(200 * MILLISECOND));
        self.volumes.iter_mut().for_each(|volume| volume.size = 16 * BLOCK);
        self.mix.commands = vec![(20, command::READ), (60, command::WRITE), (1, command::FLUSH)];
        (self.requests, self.window, self.think_ns) = (2000, 4, 50 * MILLISECOND);
        // Content goes home at once, whatever the load.
        self.offload = Settings { base_threshold: 0, store_threshold: 64, limit_bytes: 64 << 10, ..self.offload };
        self.removes_stores = rng.one_in(4);
    }

    /// Large ranges are zeroed and rarely flushed, and the server loses power.
    fn zero(&mut self, rng: &mut Rng) {
        self.is_sparse = [true; 2];
        self.volumes.iter_mut().for_each(|volume| volume.size = volume.size.max(64 * BLOCK));
        let commands = vec![
            (20, command::READ),
            (20, command::WRITE),
            (1, command::FLUSH),
            (rng.pick(&[0, 10]), command::TRIM),
            (20, command::WRITE_ZEROES),
        ];
        let lengths = vec![(10, Length::Small), (10, Length::Medium), (10, Length::Large)];
        self.mix = Mix { commands, fua: 100_000, wrong: 0, garbage: 0, lengths, aligned: 900_000, long: 0 };
        self.weights = [2, 0, 1, 2, 10];
    }

    /// Connections are lost while the same blocks are written again and again.
    fn linger(&mut self, rng: &mut Rng) {
        self.kind = Kind::Stranger;
        self.volumes.iter_mut().for_each(|volume| volume.size = 16 * BLOCK);
        self.mix.commands = vec![(20, command::READ), (60, command::WRITE), (10, command::FLUSH)];
        self.mix.fua = 300_000;
        (self.connections, self.upstream_window, self.window) = (4, 64, 8);
        // Something is always on the way.
        self.speed.latency_ns = 5 * MILLISECOND;
        self.weights = [20, 0, 0, 1, 1];
        (self.trouble_ns, self.think_ns) = (rng.pick(&[50 * MILLISECOND, 400 * MILLISECOND]), MILLISECOND);
    }

    /// Processes die one after the other, and what they leave is read.
    fn restart(&mut self, rng: &mut Rng) {
        self.mix.commands = vec![(40, command::READ), (40, command::WRITE), (1, command::FLUSH)];
        self.weights = [rng.pick(&[0, 8]), 0, 0, 10, 4];
        self.trouble_ns = rng.pick(&[20 * MILLISECOND, 100 * MILLISECOND]);
        self.think_ns = MILLISECOND;
    }

    /// The machines: the server, and one or two gateways.
    pub(crate) fn machines(&self, rng: &mut Rng) -> Vec<Machine> {
        let has_two = matches!(self.kind, Kind::Failover | Kind::Zombie | Kind::Return)
            || self.kind.has_stores()
            || self.lease_ms.is_some();
        let gateways = if has_two { 2 } else { 1 };
        (0..self.kind.gateway() + gateways).map(|at| self.machine(at, rng)).collect()
    }

    fn machine(&self, at: usize, rng: &mut Rng) -> Machine {
        let service_ns = rng.pick(&[50_000, 500_000, 5 * MILLISECOND]);
        let flush_ns = service_ns * rng.pick(&[1, 10]);
        let lanes = LanesSpec { parallel: rng.pick(&[1, 8]) as usize, service_ns, block_ns: 1000, flush_ns };
        let faults =
            Faults { slow: rng.pick(&[0, 50_000]), stuck: if rng.one_in(4) { 2000 } else { 0 }, ..Faults::NONE };
        let limits = Limits { depth: 64, block_bytes: 512 };
        let stores_bytes = if self.kind.has_stores() { STORE_CACHE_BYTES } else { 0 };
        let follows = self.follows && at < self.kind.gateway();
        let ages_ns = match self.tiers {
            Tiers::Lru => [MILLISECOND, 100 * MILLISECOND, 5 * SECOND],
            // What is written reaches the server, and leaves its cache, while older demotions are on their way.
            Tiers::Demote => [MILLISECOND, 10 * MILLISECOND, 100 * MILLISECOND],
        };
        let config = Config {
            policy: if follows { policy::Kind::Insulated } else { policy::Kind::None },
            needs_slices: follows,
            device_depth: 64,
            dirty_age_max_ns: rng.pick(&ages_ns),
            prefetch_bytes_max: rng.pick(&[Some(0), Some(128 << 10)]),
            seed: rng.next(),
            ..Config::new(4 * LEAST_BYTES + stores_bytes)
        };
        Machine {
            at,
            clock: Clock { offset_ns: rng.below(1000 * SECOND), drift_ppm: rng.between(0, 400) as i64 - 200 },
            config,
            disk: Disk::new(limits, Box::new(Lanes::new(lanes, rng.fork())), faults, rng.fork()),
            life: 0,
            process: None,
            stopped: None,
            is_on: true,
            hosted: self.hosted(at),
            epochs: Default::default(),
            lease_ms: self.lease_ms,
            follows,
            issued: 0,
            control: self.kind.has_stores().then(|| self.control(at)),
            unended: Vec::new(),
        }
    }

    /// The volumes of a machine.
    pub(crate) fn hosted(&self, machine: usize) -> Vec<Hosted> {
        if self.kind.has_stores() {
            return self.offloading(machine);
        }
        if let Kind::Stripes { servers, unit, .. } = self.kind {
            return self.striped(machine, servers, unit);
        }
        let numbered = self.volumes.iter().enumerate();
        let of_machine = numbered.filter(|(_, volume)| if machine == SERVER { volume.is_remote } else { true });
        // The second gateway has no disk of interest.
        let of_machine = of_machine.filter(|(_, volume)| machine < 2 || volume.is_remote);
        of_machine
            .map(|(at, setup)| {
                let is_server = machine == SERVER;
                Hosted {
                    volume: VolumeId(at as u32),
                    size: setup.size,
                    is_sparse: self.is_sparse(is_server),
                    export: is_server.then(|| format!("v{at}")),
                    identity: (is_server && self.kind != Kind::Stranger).then_some(100 + at as u128),
                    upstream: (!is_server && setup.is_remote).then(|| self.upstream(at, machine)),
                    server: SERVER,
                    stripes: None,
                    is_store: false,
                    key: None,
                }
            })
            .collect()
    }

    /// A machine's volume, the stores on its disk, and what leads to its stores on the others.
    fn offloading(&self, machine: usize) -> Vec<Hosted> {
        let size = self.volumes[machine].size;
        let own = Hosted {
            volume: VolumeId(machine as u32),
            size,
            is_sparse: self.is_sparse[0],
            export: None,
            identity: None,
            upstream: None,
            server: machine,
            stripes: None,
            is_store: false,
            key: Some(KEY),
        };
        let others = || (0..MACHINES).filter(move |&other| other != machine);
        let store = |client, server| Hosted {
            volume: store_volume(client, server),
            size: STORE_BYTES_MIN,
            is_sparse: self.is_sparse[1],
            is_store: true,
            key: None,
            ..own.clone()
        };
        let identity = |volume: VolumeId| (!self.kind.has_strangers()).then_some(100 + u128::from(volume.0));
        let here = others().map(|client| {
            let hosted = store(client, machine);
            let (export, identity) = (Some(hosted.volume.0.to_string()), identity(hosted.volume));
            Hosted { export, identity, ..hosted }
        });
        let there = others().map(|server| {
            let hosted = store(machine, server);
            let upstream = UpstreamSpec {
                name: hosted.volume.0.to_string(),
                size: STORE_BYTES_MIN,
                volume: identity(hosted.volume),
                client: format!("machine-{machine}"),
                ..self.upstream(machine, machine)
            };
            Hosted { upstream: Some(upstream), server, ..hosted }
        });
        std::iter::once(own.clone()).chain(here).chain(there).collect()
    }

    fn control(&self, machine: usize) -> Control {
        let others = (0..MACHINES).filter(|&other| other != machine);
        Control {
            settings: self.offload,
            is_foreign: self.kind.has_strangers(),
            patience_ns: self.patience_ns,
            removes_stores: self.removes_stores,
            // So small that it is full soon. A new epoch in a stranger's log leaves much of it unused.
            log_bytes: if self.kind.has_strangers() { 12 << 20 } else { 1 << 20 },
            stores: others.map(|server| Known::new(store_volume(machine, server))).collect(),
            incarnation: 0,
            accepted: 0,
        }
    }

    /// Whether volumes of gateways, or of servers, have holes.
    pub(crate) fn is_sparse(&self, is_server: bool) -> bool {
        self.is_sparse[usize::from(is_server)]
    }

    pub(crate) fn upstream(&self, volume: usize, machine: usize) -> UpstreamSpec {
        let is_successor = self.kind == Kind::Zombie && machine == 2;
        UpstreamSpec {
            name: format!("v{volume}"),
            size: self.volumes[volume].size,
            volume: (self.kind != Kind::Stranger).then_some(100 + volume as u128),
            client: match self.kind {
                Kind::Failover | Kind::Return => format!("gateway-{machine}"),
                _ => "gateway".into(),
            },
            // Above those of all processes of the other machine: some worlds have a hundred thousand.
            epoch: if is_successor { 1 << 60 } else { 0 },
            connections: self.connections,
            window: self.upstream_window,
            deadline_ns: self.deadline_ns.unwrap_or(3600 * SECOND),
            unsafe_without_flush: false,
            tls: false,
            is_shared: false,
            is_leased: false,
            tiers: self.tiers,
        }
    }
}

/// The volume of a machine's store on another one, and that which leads to it.
fn store_volume(client: usize, server: usize) -> VolumeId {
    VolumeId((8 + MACHINES * client + server) as u32)
}

fn mix(rng: &mut Rng) -> Mix {
    let range = rng.pick(&[2, 8, 20]);
    Mix {
        commands: vec![
            (rng.pick(&[10, 30]), command::READ),
            (40, command::WRITE),
            (rng.pick(&[1, 4, 15]), command::FLUSH),
            (range, command::TRIM),
            (range, command::WRITE_ZEROES),
        ],
        fua: rng.pick(&[0, 50_000, 300_000]),
        wrong: 0,
        garbage: 0,
        lengths: vec![(30, Length::Small), (10, Length::Medium), (rng.pick(&[0, 2, 10]), Length::Large)],
        aligned: rng.pick(&[300_000, 900_000]),
        long: 0,
    }
}
