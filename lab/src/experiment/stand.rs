//! The stand of most experiments: runs loads on a simulated disk, alone and together, and measures what each gets.

use engine::Config;
use engine::control::{Command, Report, Snapshot, TenantSpec, WriteCache};
use engine::curve::View;
use engine::disk::policy::{Kind, Prices, Settings};
use engine::disk::profile::{BUDGET_NS, Key, Options, Profile, Quantile};
use engine::ids::VolumeId;
use engine::units::{BLOCK, Nanos, SECOND};
use hdrhistogram::Histogram;
use sim::bench::raw::Raw;
use sim::bench::{Bench, Costs, Done, Volume};
use sim::disk::drive::Drive;
use sim::disk::probe::probe;
use sim::load::Stream;

use super::loads::Load;

/// The throughput and latency of a load in the counted time.
#[derive(Clone, Debug)]
pub struct Rate {
    /// Requests answered.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The time before the counted time, seconds.
    pub warm_up_s: f64,
    /// The counted time, seconds.
    pub seconds: f64,
    /// Time from when a request was due to its answer, nanoseconds.
    pub latency: Histogram<u64>,
    /// Bytes in each [`BIN_NS`] since the beginning of the run, warm-up included.
    pub bins: Vec<u64>,
}

/// The length of a bin of [`Rate`].
pub const BIN_NS: Nanos = SECOND / 20;

impl Rate {
    pub(super) fn new(stand: &Stand) -> Rate {
        let latency = Histogram::new(3).expect("three digits are allowed");
        let [warm_up_s, seconds] = [stand.warm_up_ns, stand.counted_ns].map(|ns| ns as f64 / 1e9);
        Rate { requests: 0, bytes: 0, warm_up_s, seconds, latency, bins: Vec::new() }
    }

    pub(super) fn count(&mut self, done: &Done, since_ns: Nanos) {
        let bin = (done.done_ns / BIN_NS) as usize;
        if self.bins.len() <= bin {
            self.bins.resize(bin + 1, 0);
        }
        self.bins[bin] += done.request.bytes;
        if done.done_ns < since_ns {
            return;
        }
        self.requests += 1;
        self.bytes += done.request.bytes;
        self.latency.record(done.done_ns - done.request.intended_ns).expect("histograms grow");
    }

    /// Requests per second.
    pub fn iops(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    /// Megabytes (10^6) per second.
    pub fn mb_s(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e6
    }

    /// Mean, 99th percentile and maximum of latency, milliseconds.
    pub fn latency_ms(&self) -> [f64; 3] {
        [self.latency.mean(), self.latency.value_at_quantile(0.99) as f64, self.latency.max() as f64].map(|ns| ns / 1e6)
    }

    /// The values for results.
    pub fn json(&self) -> serde_json::Value {
        let [mean, p99, max] = self.latency_ms();
        serde_json::json!({
            "requests_per_second": self.iops(), "mb_per_second": self.mb_s(),
            "mean_ms": mean, "p99_ms": p99, "max_ms": max,
        })
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// By tenant that was present.
    pub rates: Vec<Rate>,
    /// The server's snapshot when counting began.
    pub before: Snapshot,
    /// The curve of each volume's tenant then.
    pub curves: Vec<View>,
    /// The server's snapshots at [`Stand::looks`] moments in between.
    pub between: Vec<Snapshot>,
    /// The server's snapshot at the end.
    pub after: Snapshot,
}

/// The configuration of runs.
#[derive(Clone, Debug)]
pub struct Stand {
    /// The drive: a preset, or a file that describes one.
    pub disk: String,
    /// The server's memory, metadata included, bytes.
    pub memory: u64,
    /// The time before counting begins.
    pub warm_up_ns: Nanos,
    /// The counted time.
    pub counted_ns: Nanos,
    /// How many snapshots of the server are taken meanwhile.
    pub looks: u64,
    /// The maximum prefetch of a sequential stream, bytes, 0 for none; `None`: as R and the disk require.
    pub prefetch: Option<u64>,
    /// Concurrent requests in the drive; 1 is a disk without command queueing.
    pub device_depth: u32,
    /// Whether all volumes share one partition, as in a server without partitions.
    pub shared_cache: bool,
    /// The scheduling policy.
    pub policy: Kind,
    /// R, in thousandths.
    pub insulation_permille: u32,
    /// The maximum round.
    pub round_max_ns: Nanos,
    /// The cost of a context switch, as measured by a probe ([`Stand::probed`]), or the server's default.
    pub switch_ns: Nanos,
    /// The rate of a stream, bytes per second, from the same source.
    pub stream_bytes_per_s: u64,
    /// Whether the drive needs slices.
    pub needs_slices: bool,
    /// The costs of requests on a drive that needs no slices.
    pub prices: Prices,
}

impl Stand {
    /// 64 MiB of memory; 2 s of warm-up, then 10 s (8 s if quick).
    pub fn new(disk: impl Into<String>, quick: bool) -> Stand {
        Stand {
            disk: disk.into(),
            memory: 64 << 20,
            warm_up_ns: 2 * SECOND,
            counted_ns: if quick { 8 } else { 10 } * SECOND,
            looks: 0,
            prefetch: Some(0),
            device_depth: 128,
            shared_cache: false,
            policy: Kind::None,
            insulation_permille: 900,
            round_max_ns: 2 * SECOND,
            switch_ns: Config::new(0).switch_ns,
            stream_bytes_per_s: Config::new(0).stream_bytes_per_s,
            needs_slices: true,
            prices: Prices::default(),
        }
    }

    /// The same with the results of a probe of the drive, as on users' servers.
    pub fn probed(mut self) -> Result<Stand, String> {
        let profile = self.profile(true)?;
        if profile.needs_slices() == Some(false) {
            self.needs_slices = false;
            let prices = Prices::of(&self.profile(false)?);
            self.prices =
                prices.ok_or_else(|| format!("{}: its profile does not say what requests cost", self.disk))?;
            return Ok(self);
        }
        let of = |key| profile.number(key);
        self.switch_ns = of(Key::SwitchCost(Quantile::P50)).map_or(self.switch_ns, |cost| cost as Nanos);
        self.stream_bytes_per_s = profile.stream_bytes_per_s().unwrap_or(self.stream_bytes_per_s);
        self.prices = Prices::of(&profile).unwrap_or(self.prices);
        Ok(self)
    }

    pub(super) fn profile(&self, read_only: bool) -> Result<Profile, String> {
        let mut profile = Profile::default();
        let options = Options { budget_ns: BUDGET_NS, seed: 1, read_only };
        profile.take(&probe(&mut *self.drive()?, options).0, 0);
        Ok(profile)
    }

    /// The settings of the server's policy.
    pub fn settings(&self) -> Settings {
        self.config(0).policy()
    }

    pub(super) fn config(&self, seed: u64) -> Config {
        Config {
            seed,
            prefetch_bytes_max: self.prefetch,
            device_depth: self.device_depth,
            policy: self.policy,
            insulation_permille: self.insulation_permille,
            round_max_ns: self.round_max_ns,
            switch_ns: self.switch_ns,
            stream_bytes_per_s: self.stream_bytes_per_s,
            needs_slices: self.needs_slices,
            prices: self.prices,
            ..Config::new(self.memory)
        }
    }

    /// A new drive.
    pub fn drive(&self) -> Result<Box<dyn Drive>, String> {
        crate::disk::build(&self.disk).map_err(|error| format!("{error:#}"))
    }

    /// Start and length of volume `number` of `of`: spread from the outer to the inner edge, each an eighth of the
    /// disk, or less if there are more than eight.
    pub fn place(&self, number: usize, of: usize) -> Result<(u64, u64), String> {
        let disk = self.drive()?.bytes();
        let bytes = (disk / of.max(8) as u64).next_multiple_of(BLOCK) - BLOCK;
        let gap = if of > 1 { (disk - bytes) / (of as u64 - 1) } else { 0 };
        Ok((gap * number as u64 / BLOCK * BLOCK, bytes))
    }

    /// Runs all `loads` concurrently, except those that are `None`. Returns the rate of each. Areas are cut to the
    /// volume.
    pub fn run(&self, loads: &[Option<Stream>], seed: u64) -> Result<Vec<Rate>, String> {
        let plain = TenantSpec::default();
        let actors: Vec<_> = loads.iter().map(|load| Some((plain, load.clone()?.into()))).collect();
        let shared = self.shared_cache || actors.iter().all(Option::is_some);
        // An absent tenant keeps its partition, unless all share one, so that the other load does not gain cache.
        let (mut run, mut at) = (self.play(&actors, !shared, seed)?, 0);
        let empty = || Rate::new(self);
        let rates = actors.iter().map(|actor| {
            at += usize::from(actor.is_some());
            actor.as_ref().map_or_else(empty, |_| run.rates.remove(0))
        });
        Ok(rates.collect())
    }

    /// Runs these tenants, each with one volume and its load, except those that are `None`. With `reserved`, absent
    /// tenants keep their partitions of the cache.
    pub fn play(&self, actors: &[Option<(TenantSpec, Load)>], reserved: bool, seed: u64) -> Result<Run, String> {
        let (mut tenants, mut volumes) = (Vec::new(), Vec::new());
        for (number, actor) in actors.iter().enumerate() {
            let (start, bytes) = self.place(number, actors.len())?;
            let Some((spec, load)) = actor else { continue };
            if !self.shared_cache || tenants.is_empty() {
                tenants.push(*spec);
            }
            let load = load.workload(bytes, mixed(seed, number))?;
            volumes.push(Volume { tenant: tenants.len() - 1, start, bytes, write_cache: WriteCache::Volatile, load });
        }
        if reserved {
            tenants.resize(actors.len(), TenantSpec::default());
        }
        self.serve(&tenants, volumes, seed)
    }

    /// A server with these tenants and volumes.
    pub fn bench(&self, tenants: &[TenantSpec], volumes: Vec<Volume>, seed: u64) -> Result<Bench, String> {
        Bench::new(self.config(seed), self.drive()?, Costs::default(), tenants, volumes)
    }

    /// Runs a server with these tenants and volumes.
    pub fn serve(&self, tenants: &[TenantSpec], volumes: Vec<Volume>, seed: u64) -> Result<Run, String> {
        let (mut rates, count_of_volumes) = (vec![Rate::new(self); volumes.len()], volumes.len() as u32);
        let mut bench = self.bench(tenants, volumes, seed)?;
        let mut failed = None;
        let mut count = |done: Done| {
            failed = failed.or(done.failed.then_some(done));
            rates[done.volume].count(&done, self.warm_up_ns);
        };
        bench.run(self.warm_up_ns, &mut count);
        let before = bench.snapshot()?;
        let mut curves = Vec::new();
        for volume in 0..count_of_volumes {
            match bench.ask(Command::Curve(VolumeId(volume), None))? {
                Report::Curve(view) => curves.push(*view),
                other => return Err(format!("a curve was asked for: {other:?}")),
            }
        }
        let mut between = Vec::new();
        for look in 1..=self.looks {
            bench.run(self.warm_up_ns + self.counted_ns * look / (self.looks + 1), &mut count);
            between.push(bench.snapshot()?);
        }
        bench.run(self.warm_up_ns + self.counted_ns, &mut count);
        let after = bench.snapshot()?;
        match failed {
            Some(done) => Err(format!("{done:?} failed on a disk without faults")),
            None => Ok(Run { rates, before, curves, between, after }),
        }
    }

    /// Runs load `number` of `of` alone on the bare drive, at the place of its volume.
    pub fn raw(&self, load: &Stream, number: usize, of: usize, seed: u64) -> Result<Rate, String> {
        let (start, bytes) = self.place(number, of)?;
        let mut rate = Rate::new(self);
        let load = Load::from(load.clone()).workload(bytes, mixed(seed, number))?;
        let mut raw = Raw::new(self.drive()?, start, load);
        raw.run(self.warm_up_ns + self.counted_ns, |done| rate.count(&done, self.warm_up_ns));
        Ok(rate)
    }
}

/// A different seed for each load.
pub fn mixed(seed: u64, number: usize) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number as u64
}

/// Sequential reads of 4 KiB, one at a time, from the beginning of the volume to its end.
pub fn stream() -> Stream {
    use sim::load::Place;
    Stream { place: Place::Sequential, area_bytes: u64::MAX, ..Stream::default() }
}

/// Random reads of 4 KiB over the whole volume, `depth` at a time.
pub fn random(depth: u32) -> Stream {
    use sim::load::Pace;
    Stream { area_bytes: u64::MAX, pace: Pace::Closed { depth, think_ns: 0 }, ..Stream::default() }
}

/// The mean over seeds.
pub fn mean(of: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) = of.into_iter().fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count)
}
