//! The parameters of a world, generated from one seed.

use std::num::NonZeroU64;

use engine::Config;
use engine::cache::EvictionPolicy;
use engine::control::{CacheSpec, Ceiling, Ceilings, LEAST_BYTES, TenantSpec, VolumeSpec, WriteCache};
use engine::disk::policy::{Kind, Prices};
use engine::disk::profile::{Direction, Finding, Key, Profile, Quantile};
use engine::ids::{TenantId, VolumeId};
use engine::nbd::Tls;
use engine::units::{BLOCK, MILLISECOND, Nanos, SECOND, Share};

use crate::disk::Limits;
use crate::disk::drive::lanes::{Lanes, LanesSpec};
use crate::disk::drive::{Drive, presets};
use crate::fault::Faults;
use crate::rng::Rng;
use crate::workload::{Manners, Mix};

/// A partition in which volumes leave room for whole pieces of each other's payloads; in the smallest partition, pieces
/// are cut.
pub(crate) const ROOMY_BYTES: u64 = 4 * LEAST_BYTES;

/// A volume and its clients.
#[derive(Clone, Debug)]
pub struct VolumeSetup {
    /// Its specification when it is first opened; holes are taken from the medium.
    pub spec: VolumeSpec,
    /// Number of ordinary clients, always kept up.
    pub clients: u64,
    /// Number of stalled readers, always kept up: they never read a reply.
    pub stalled_readers: u64,
    /// Number of stalled senders, always kept up: they announce writes and send little or nothing of the payload.
    pub stalled: u64,
    /// How its ordinary clients behave; random if `None`.
    pub manners: Option<Manners>,
    /// What its clients request, if it is not the world's mix.
    pub mix: Option<Mix>,
}

/// The disk.
#[derive(Clone, Debug)]
pub struct DiskSetup {
    /// The limits that the engine must observe.
    pub limits: Limits,
    /// Its timing.
    pub drive: DriveSetup,
}

/// The drive under a disk.
#[derive(Clone, Copy, Debug)]
pub enum DriveSetup {
    /// Lanes of fixed service time.
    Lanes(LanesSpec),
    /// A preset, by name.
    Preset(&'static str),
}

impl DriveSetup {
    /// Builds the drive.
    pub fn build(&self, rng: Rng) -> Box<dyn Drive> {
        match self {
            DriveSetup::Lanes(spec) => Box::new(Lanes::new(*spec, rng)),
            DriveSetup::Preset(name) => {
                let preset = presets::preset(name).expect("a preset's name");
                preset.and_then(|description| description.build()).expect("a preset that is right")
            }
        }
    }
}

/// The parameters of a world.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its seed.
    pub seed: u64,
    /// Number of requests until the end phase, without faults, begins.
    pub requests: u64,
    /// The server's configuration.
    pub config: Config,
    /// The disk.
    pub disk: DiskSetup,
    /// The fault rates.
    pub faults: Faults,
    /// If set, only requests of this volume hang.
    pub hangs: Option<VolumeId>,
    /// What the clients request.
    pub mix: Mix,
    /// Tenants, by number.
    pub tenants: Vec<TenantSpec>,
    /// Volumes, by number.
    pub volumes: Vec<VolumeSetup>,
    /// Probability of an operator command, parts per million of events.
    pub operations: u64,
    /// Probability of a power cut or a restart, parts per million of events.
    pub restarts: u64,
    /// Probability of a change of access rights, parts per million of events.
    pub restricts: u64,
    /// Whether the listener offers or requires TLS.
    pub tls: Tls,
    /// The operator sometimes changes the scheduling policy.
    pub changes_policy: bool,
    /// Probability that the server's process dies without the machine, parts per million of events.
    pub kills: u64,
    /// The operator frequently accepts losses.
    pub clears: bool,
    /// Outstanding requests of each client and its longest think time; random if `None`.
    pub pace: Option<(u32, Nanos)>,
    /// Clients access one large place of at most 8 MiB rather than a few small ones.
    pub scattered: bool,
    /// The driver works in passes and is up to this many nanoseconds late: due events come together, and the engine's
    /// actions are carried out at the end. 0: each event separately, at its time.
    pub late_ns: Nanos,
    /// The planner's answers take up to this many nanoseconds.
    pub planner_late_ns: Nanos,
}

/// Kinds of worlds that are rare among random ones, each made for one kind of error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Focus {
    /// Overlapping range operations and large writes.
    Overlap,
    /// A failing device, and an operator that accepts each loss.
    Fail,
    /// Stalled senders and stalled readers.
    Stall,
    /// Requests of one tenant hang.
    Hang,
    /// Tenants compete for the server's thread.
    Cpu,
}

impl Setup {
    /// The setup of `seed`; with `focus`, nearly always of that kind.
    pub fn random(seed: u64, focus: Option<Focus>) -> Setup {
        let rng = &mut Rng::new(seed ^ 0x5eed);
        let device_block = rng.pick(&[512, 512, 4096]);
        let tenants = rng.between(1, 2);
        let tenant_specs: Vec<TenantSpec> = (0..tenants).map(|_| tenant(rng)).collect();
        let volumes = (0..rng.between(1, 3)).map(|i| volume(i as u32, tenants, device_block, rng)).collect();
        let mut disk = disk(rng);
        disk.limits.block_bytes = u64::from(device_block);
        let mut config = config(tenants, disk.limits.depth, rng);
        // A separate generator, so that the other parameters of a seed stay the same.
        config.prefetch_bytes_max =
            Rng::new(seed ^ 0xa4ead).pick(&[Some(0), Some(0), Some(16 << 10), Some(128 << 10), None]);
        let dice = &mut Rng::new(seed ^ 0xfa12);
        (config.needs_slices, config.prices) = (dice.one_in(2), prices(dice));
        config.trial_ns_max = Rng::new(seed ^ 0x51_2e).pick(&[MILLISECOND, 100 * MILLISECOND, 60 * SECOND]);
        let mut setup = Setup {
            seed,
            requests: rng.pick(&[300, 800, 1500]),
            config,
            disk,
            faults: faults(rng),
            hangs: None,
            mix: Mix::random(rng),
            tenants: tenant_specs,
            volumes,
            operations: rng.pick(&[0, 300, 2000]),
            restarts: rng.pick(&[0, 100, 400, 1200]),
            restricts: Rng::new(seed ^ 0xacce55).pick(&[0, 0, 0, 2000]),
            tls: Rng::new(seed ^ 0x0715).pick(&[Tls::Off, Tls::Off, Tls::On, Tls::Require]),
            changes_policy: Rng::new(seed ^ 0x90_11c7).one_in(3),
            kills: Rng::new(seed ^ 0x1_9).pick(&[0, 0, 100, 600]),
            clears: false,
            pace: None,
            scattered: false,
            late_ns: rng.pick(&[0, 0, 100_000, 3 * MILLISECOND]),
            planner_late_ns: Rng::new(seed ^ 0x1a7e).pick(&[0, 0, 5 * MILLISECOND, 500 * MILLISECOND, 3 * SECOND]),
        };
        if rng.one_in(4) {
            setup.volumes.iter_mut().for_each(|volume| volume.stalled_readers = rng.between(0, 2));
        }
        if rng.one_in(6) {
            setup.scatter();
        }
        // A separate generator again.
        let dice = &mut Rng::new(seed ^ 0x5_4a2e);
        if dice.one_in(2) {
            setup.tenants.iter_mut().for_each(|tenant| tenant.share = share(dice, 2));
        }
        if dice.one_in(10) {
            setup.faults.hung = 1000;
        }
        let drawn = match dice.below(16) {
            0 | 2 => Some(Focus::Overlap),
            1 => Some(Focus::Fail),
            3 => Some(Focus::Stall),
            4 => Some(Focus::Hang),
            5 => Some(Focus::Cpu),
            _ => None,
        };
        match focus.or(drawn).filter(|_| !setup.scattered) {
            Some(Focus::Overlap) => setup.overlap(dice),
            Some(Focus::Fail) => setup.fail(dice),
            Some(Focus::Stall) => setup.stall(dice),
            Some(Focus::Hang) => setup.hang(dice),
            Some(Focus::Cpu) => setup.compete(dice),
            None => setup.limit(&mut Rng::new(seed ^ 0xce_1175)),
        }
        setup
    }

    /// Ceilings, in some worlds.
    fn limit(&mut self, rng: &mut Rng) {
        if rng.one_in(4) {
            self.tenants.iter_mut().for_each(|tenant| tenant.ceilings = ceilings(rng));
            // Guarantees that always fit, that never do, and of one byte.
            let rates = [0, 0, 1, 256 << 10, 1 << 30];
            self.tenants.iter_mut().for_each(|tenant| tenant.min_bytes_per_s = rng.pick(&rates));
        }
    }

    /// Overlapping range operations and large writes, on a device whose requests take very different times.
    fn overlap(&mut self, rng: &mut Rng) {
        self.requests = 1000;
        self.mix = Mix::overlapping();
        (self.scattered, self.pace) = (true, Some((40, 0)));
        self.faults.slow = 200_000;
        let service_ns = 2 * MILLISECOND;
        self.disk.drive =
            DriveSetup::Lanes(LanesSpec { parallel: 16, service_ns, block_ns: 1000, flush_ns: service_ns });
        (self.disk.limits.depth, self.config.device_depth) = (128, 128);
        self.config.policy = Kind::None;
        self.config.dirty_age_max_ns = MILLISECOND;
        (self.operations, self.restricts, self.restarts, self.kills) = (0, 0, 0, 0);
        for volume in &mut self.volumes {
            volume.spec.size = rng.between(2, 4) << 20;
            (volume.spec.sparse, volume.spec.grows_empty, volume.spec.can_punch) = (true, true, true);
            (volume.spec.initialise, volume.clients, volume.stalled_readers) = (false, 4, 0);
        }
    }

    /// Small writes to few blocks of a failing device, and an operator that accepts each loss.
    fn fail(&mut self, rng: &mut Rng) {
        self.requests = 5000;
        self.mix = Mix::few_blocks();
        self.faults = Faults { write: 200_000, flush: 400_000, ..Faults::NONE };
        (self.scattered, self.pace) = (true, Some((2, 2 * MILLISECOND)));
        self.config.dirty_age_max_ns = MILLISECOND;
        (self.clears, self.operations, self.restricts, self.restarts, self.kills) = (true, 8_000, 0, 0, 0);
        for volume in &mut self.volumes {
            volume.spec.size = BLOCK * rng.between(2, 5);
            volume.spec.write_cache = WriteCache::Volatile;
            (volume.clients, volume.stalled_readers) = (4, 0);
        }
    }

    /// One volume has stalled senders or stalled readers. Other clients use the same volume, another volume of the same
    /// tenant, and perhaps one of another tenant.
    fn stall(&mut self, rng: &mut Rng) {
        self.requests = 800;
        // Some worlds last longer than the engine's stall timeout.
        let think_ns = rng.pick(&[2 * MILLISECOND, SECOND]);
        (self.mix, self.pace) = (Mix::short(), Some((4, think_ns)));
        self.faults = Faults::NONE;
        (self.operations, self.restricts, self.restarts, self.kills) = (0, 0, 0, 0);
        let cache = CacheSpec::Asked(rng.pick(&[LEAST_BYTES, ROOMY_BYTES, ROOMY_BYTES]));
        // With a small share of a slow disk, waiting for the disk would take as long as waiting for stalled clients.
        self.tenants.iter_mut().for_each(|tenant| (tenant.cache, tenant.share) = (cache, None));
        self.config.budget_bytes += 2 * ROOMY_BYTES;
        self.config.budget_bytes_max += 2 * ROOMY_BYTES;
        self.add_volume(self.volumes[0].spec.tenant);
        for volume in &mut self.volumes {
            volume.spec.size = rng.between(2, 4) << 20;
            (volume.clients, volume.stalled_readers, volume.stalled) = (2, 0, 0);
        }
        self.volumes[0].stalled = rng.between(1, 3);
        if cache == CacheSpec::Asked(ROOMY_BYTES) {
            // In the smallest partition, one reply that must be sent whole takes all memory for replies.
            self.volumes[0].stalled_readers = rng.pick(&[0, 16]);
        }
    }

    /// One tenant's requests hang in a shallow device; another tenant continues.
    fn hang(&mut self, rng: &mut Rng) {
        self.requests = 800;
        (self.mix, self.pace, self.scattered) = (Mix::short(), Some((8, MILLISECOND)), true);
        self.faults = Faults { hung: 100_000, ..Faults::NONE };
        self.hangs = Some(self.volumes[0].spec.volume);
        self.disk.limits.depth = rng.pick(&[4, 8]);
        (self.config.device_depth, self.config.policy) = (self.disk.limits.depth, Kind::Insulated);
        (self.operations, self.restricts, self.restarts, self.kills) = (0, 0, 0, 0);
        if self.tenants.len() < 2 {
            self.tenants.push(self.tenants[0]);
            self.config.budget_bytes += 2 * LEAST_BYTES;
            self.config.budget_bytes_max += 2 * LEAST_BYTES;
        }
        self.volumes.truncate(1);
        self.tenants.iter_mut().for_each(|tenant| tenant.cache = CacheSpec::Asked(2 * LEAST_BYTES));
        self.add_volume(TenantId(1 - self.volumes[0].spec.tenant.0));
        for volume in &mut self.volumes {
            volume.spec.size = 32 << 20;
            (volume.clients, volume.stalled_readers) = (4, 0);
        }
    }

    /// Two tenants whose requests are cache hits: one has many connections, long reads and CACHE requests, the other
    /// one connection with many short requests.
    fn compete(&mut self, rng: &mut Rng) {
        self.requests = 4000;
        self.faults = Faults::NONE;
        (self.scattered, self.late_ns, self.changes_policy) = (true, 0, false);
        (self.operations, self.restricts, self.restarts, self.kills) = (0, 0, 0, 0);
        if self.tenants.len() < 2 {
            self.tenants.push(self.tenants[0]);
        }
        self.config.budget_bytes += 2 * ROOMY_BYTES;
        self.config.budget_bytes_max += 2 * ROOMY_BYTES;
        self.tenants.iter_mut().for_each(|tenant| tenant.cache = CacheSpec::Asked(ROOMY_BYTES));
        self.volumes.truncate(1);
        self.add_volume(TenantId(1 - self.volumes[0].spec.tenant.0));
        let (reads, caches) = rng.pick(&[(3, 1), (1, 8)]);
        let loads = [(rng.between(4, 8), 4, Mix::long_hits(reads, caches)), (1, 64, Mix::short_hits())];
        for (volume, (clients, window, mix)) in self.volumes.iter_mut().zip(loads) {
            volume.spec.size = 2 << 20;
            (volume.clients, volume.stalled_readers, volume.mix) = (clients, 0, Some(mix));
            volume.manners = Some(Manners { window, net_ns: 1000, ..Manners::calm() });
        }
    }

    /// Adds a volume like the first one.
    fn add_volume(&mut self, tenant: TenantId) {
        let mut added = self.volumes[0].clone();
        (added.spec.volume, added.spec.tenant) = (VolumeId(self.volumes.len() as u32), tenant);
        self.volumes.push(added);
    }

    /// Many scattered small writes and few flushes: more dirty data than the device accepts at once.
    fn scatter(&mut self) {
        self.scattered = true;
        self.requests = 1500;
        self.mix = Mix::scattered();
        self.config.budget_bytes_max += 16 * LEAST_BYTES;
        self.config.budget_bytes += 16 * LEAST_BYTES;
        self.config.dirty_age_max_ns = 5 * SECOND;
        self.tenants.iter_mut().for_each(|tenant| tenant.cache = CacheSpec::Trial);
        for volume in &mut self.volumes {
            volume.spec.size = volume.spec.size.max(8 << 20);
            volume.clients = 4;
        }
    }
}

/// A share, or none; `tenants` such shares always fit on a disk.
pub(crate) fn share(rng: &mut Rng, tenants: u64) -> Option<Share> {
    let percent = rng.pick(&[0, 1, 10, 30, 60, 100]) / tenants;
    Share::from_ppb(percent * 10_000_000)
}

fn tenant(rng: &mut Rng) -> TenantSpec {
    let cache = match rng.below(3) {
        0 => CacheSpec::Trial,
        1 => CacheSpec::Asked(LEAST_BYTES),
        _ => CacheSpec::Asked(rng.between(LEAST_BYTES, 2 * LEAST_BYTES)),
    };
    TenantSpec { cache, eviction: rng.pick(&EvictionPolicy::ALL), ..TenantSpec::default() }
}

/// Ceilings under which every request is answered within a few seconds.
fn ceilings(rng: &mut Rng) -> Ceilings {
    let one = |rng: &mut Rng, rates: &[u64]| NonZeroU64::new(rng.pick(rates));
    let mut each = |rates: &[u64]| {
        let [total, read, write] = std::array::from_fn(|_| one(rng, rates));
        Ceiling { total, read, write }
    };
    let (bytes, ios) = (each(&[0, 0, 16 << 20, 200 << 20]), each(&[0, 0, 200, 5000]));
    Ceilings { bytes, ios, burst_ns: rng.pick(&[10 * MILLISECOND, SECOND]) }
}

fn volume(number: u32, tenants: u64, device_block: u32, rng: &mut Rng) -> VolumeSetup {
    let sparse = rng.one_in(2);
    let size = match rng.below(8) {
        0 => 512 * rng.between(1, 20),
        1 if sparse => 1 << 60,
        2 => rng.between(1, 100) << 20,
        _ => rng.between(256, 6 << 10) << 10,
    };
    let tenant = TenantId(rng.below(tenants) as u32);
    let write_cache = rng.weighted(&[(6, WriteCache::Volatile), (2, WriteCache::None), (1, WriteCache::Unsafe)]);
    let initialise = !sparse && rng.one_in(2);
    let spec = VolumeSpec {
        volume: VolumeId(number),
        tenant,
        size,
        write_cache,
        sparse,
        holes: Vec::new(),
        initialise,
        grows_empty: sparse || initialise,
        disk_start: (!number.is_multiple_of(3)).then_some(size),
        device_block,
        can_zero: rng.one_in(2),
        can_punch: sparse && rng.chance(700_000),
        read_only: false,
        unflushed: true,
        upstream: None,
        stripes: None,
        offload: None,
    };
    VolumeSetup { spec, clients: rng.pick(&[1, 2, 2, 4]), stalled_readers: 0, stalled: 0, manners: None, mix: None }
}

fn disk(rng: &mut Rng) -> DiskSetup {
    let service_ns = rng.pick(&[20_000, 100_000, 4 * MILLISECOND]);
    let lanes = LanesSpec {
        parallel: rng.pick(&[1, 4, 16]),
        service_ns,
        block_ns: rng.pick(&[1000, 10_000]),
        flush_ns: rng.pick(&[service_ns, 10 * service_ns]),
    };
    let limits = Limits { depth: rng.pick(&[1, 4, 128]), block_bytes: BLOCK };
    let drive = match rng.below(8) {
        0 => DriveSetup::Preset(rng.pick(&["cheetah-15k5", "barracuda-st32171w", "barracuda-7200.9"])),
        1 => DriveSetup::Preset(rng.pick(&["flash", "throttled"])),
        _ => DriveSetup::Lanes(lanes),
    };
    DiskSetup { limits, drive }
}

fn config(tenants: u64, device_depth: u32, rng: &mut Rng) -> Config {
    let budget_bytes = 2 * tenants * LEAST_BYTES + rng.pick(&[0, LEAST_BYTES / 3, 4 * LEAST_BYTES, 8 * LEAST_BYTES]);
    Config {
        budget_bytes,
        budget_bytes_max: budget_bytes + rng.pick(&[0, 2 * LEAST_BYTES]),
        device_depth,
        requests_per_connection: rng.pick(&[2, 16, 128]),
        unsent_bytes_per_connection: rng.pick(&[64 << 10, 2 << 20]),
        dirty_age_max_ns: rng.pick(&[MILLISECOND, 100 * MILLISECOND, 5 * SECOND]),
        idle_ns: rng.pick(&[MILLISECOND / 10, 20 * MILLISECOND]),
        trial_ns_max: 60 * SECOND,
        stream_bytes_per_s: 100_000_000,
        prefetch_bytes_max: Some(0),
        seed: rng.next(),
        policy: rng.pick(&[Kind::None, Kind::Insulated]),
        insulation_permille: rng.pick(&[500, 900, 950]),
        switch_ns: rng.pick(&[0, 12 * MILLISECOND]),
        round_max_ns: rng.pick(&[50 * MILLISECOND, 2 * SECOND]),
        needs_slices: true,
        prices: Prices::default(),
    }
}

/// The engine's profile of the disk: usually wrong.
fn prices(rng: &mut Rng) -> Prices {
    if rng.one_in(2) {
        return Prices::default();
    }
    let mut profile = Profile::default();
    let (throttled, behind_ns) = (rng.one_in(2), rng.pick(&[1e5, 1e6, 2e7]));
    let (parallel, service_ns, byte_ns) = (rng.pick(&[1.0_f64, 16.0]), rng.pick(&[2e4, 1e6]), rng.pick(&[0.1, 10.0]));
    let found = Key::all().filter_map(|key| {
        let value = match key {
            Key::Random(_, bytes, depth) => {
                let bytes_ns = f64::from(bytes) * byte_ns;
                (1e9 / (service_ns + bytes_ns) * parallel.min(f64::from(depth))).min(1e9 / bytes_ns)
            }
            Key::ServiceTime(Direction::Read, Quantile::P95) => service_ns,
            Key::ReadBehindWrites(Quantile::P95) => service_ns + behind_ns,
            Key::ThrottleRequests if throttled => rng.pick(&[100.0, 10_000.0]),
            Key::ThrottleBytes if throttled => rng.pick(&[1e6, 1e8]),
            _ => return None,
        };
        Some((key, Finding::plain(Some(value))))
    });
    let found: Vec<_> = found.collect();
    profile.take(&found, 0);
    Prices::of(&profile).expect("all that it needs")
}

fn faults(rng: &mut Rng) -> Faults {
    if rng.one_in(2) {
        return Faults { slow: rng.pick(&[0, 20_000]), stuck: rng.pick(&[0, 500]), ..Faults::NONE };
    }
    Faults {
        read: rng.pick(&[0, 3000, 30_000]),
        write: rng.pick(&[0, 3000, 50_000]),
        no_space: rng.pick(&[0, 0, 5000]),
        flush: rng.pick(&[0, 20_000, 200_000]),
        slow: rng.pick(&[0, 20_000]),
        stuck: rng.pick(&[0, 500]),
        refused: rng.pick(&[0, 0, 100_000]),
        hung: 0,
    }
}
