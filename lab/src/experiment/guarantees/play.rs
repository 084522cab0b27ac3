//! Runs workloads: each alone on the dedicated disk, and sets of them under a policy.

use std::ops::Range;

use engine::control::{CacheSpec, Command, LEAST_BYTES, Report, TenantSpec, WriteCache};
use engine::disk::Window;
use engine::disk::policy::Slice;
use engine::ids::TenantId;
use engine::units::{MILLISECOND, Nanos, SECOND, Share};
use hdrhistogram::Histogram;
use sim::bench::{Bench, Done, Volume};
use sim::load::Bursts;

use super::super::stand::Stand;
use super::Cast;
use super::level::Level;
use super::live::{Agreement, Terms};
use super::policies::{ALL, Policy};
use super::window::{self, Counts, Cutter, Fit, Progress};
use super::workloads::{COUNT, Workload};

/// The longest round.
pub const ROUND_NS: Nanos = 2400 * MILLISECOND;
/// R.
pub const R: f64 = 0.9;
const R_PERMILLE: u32 = 900;
/// How often slices are looked at: the server keeps the last 64.
const LOOK_NS: Nanos = SECOND / 2;
/// Windows that begin earlier are not counted: the server has not yet measured anything.
pub const WARM_UP_NS: Nanos = 10 * SECOND;

/// What the server's cache does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// Next to nothing, as in the paper: the smallest partitions, no read-ahead.
    Smallest,
    /// Reads ahead, in a partition of so many bytes for each workload, alone and together: the effect of the disk's
    /// time is not mixed with that of the partition's size.
    Each(u64),
}

impl Cache {
    /// That of the experiment with cache.
    pub const EACH: Cache = Cache::Each(16 << 20);
}

/// The disk and the server of all runs.
pub struct Ground {
    /// The disk, probed, and the server's settings.
    pub stand: Stand,
    cache: Cache,
}

impl Ground {
    /// The disk of the paper.
    pub fn new(cache: Cache) -> Result<Ground, String> {
        let (memory, prefetch) = match cache {
            Cache::Smallest => (COUNT as u64 * LEAST_BYTES, Some(0)),
            Cache::Each(bytes) => (COUNT as u64 * bytes, None),
        };
        let stand = Stand::new("barracuda-7200.9", false);
        let settings = Stand { memory, prefetch, round_max_ns: ROUND_NS, insulation_permille: R_PERMILLE, ..stand };
        Ok(Ground { stand: settings.probed()?, cache })
    }

    /// The R that the server can keep with so many equal tenants: a slice loses the profile's switch cost.
    pub fn effective_r(&self, tenants: usize) -> f64 {
        let slice_ns = ROUND_NS as f64 / tenants as f64;
        R.min(1.0 - self.stand.switch_ns as f64 / slice_ns)
    }

    /// A tenant with a share (`None`: a part of what is not promised) and a guarantee, bytes per second (0: none).
    pub fn tenant(&self, share: Option<Share>, min_bytes_per_s: u64) -> TenantSpec {
        let cache = match self.cache {
            Cache::Smallest => LEAST_BYTES,
            Cache::Each(bytes) => bytes,
        };
        TenantSpec { share, min_bytes_per_s, cache: CacheSpec::Asked(cache), ..TenantSpec::default() }
    }

    /// The bytes of a volume: a tenth of the disk.
    pub fn volume_bytes(&self) -> Result<u64, String> {
        Ok(self.stand.place(0, COUNT)?.1)
    }

    /// A volume at one of ten places. It is written through: by write-back, a window's writes would reach the disk
    /// seconds later, alone in another window than together, so that the windows were not the same work.
    pub fn volume(&self, tenant: usize, place: usize, load: sim::load::Workload) -> Result<Volume, String> {
        let (start, bytes) = self.stand.place(place, COUNT)?;
        Ok(Volume { tenant, start, bytes, write_cache: WriteCache::None, load })
    }

    /// Runs a workload alone on the same server with the whole disk.
    pub fn dedicated(&self, workloads: &[Workload], at: usize, end_ns: Nanos, seed: u64) -> Result<Progress, String> {
        let volume = self.volume(0, at, workloads[at].load(self.volume_bytes()?, None))?;
        let mut progress = Progress::default();
        let done = |done: Done| progress.answered(done.done_ns, done.request.bytes);
        run(&mut self.bench(&ALL[0], &[self.tenant(None, 0)], vec![volume], seed)?, end_ns, done)?;
        Ok(progress)
    }

    /// A server with tenants under a policy.
    pub fn bench(
        &self,
        policy: &Policy,
        tenants: &[TenantSpec],
        volumes: Vec<Volume>,
        seed: u64,
    ) -> Result<Bench, String> {
        let stand = Stand { policy: policy.kind, device_depth: policy.device_depth, ..self.stand.clone() };
        stand.bench(tenants, volumes, seed)
    }
}

/// Runs a server; calls `done` for each answer.
pub fn run(bench: &mut Bench, end_ns: Nanos, mut done: impl FnMut(Done)) -> Result<(), String> {
    let mut failed = None;
    bench.run(end_ns, |answer| {
        failed = failed.or(answer.failed.then_some(answer));
        done(answer);
    });
    failed.map_or(Ok(()), |done| Err(format!("{done:?} failed on a disk without faults")))
}

/// Response times of requests that were outstanding only in windows whose guarantee fits.
pub struct Responses {
    /// Nanoseconds, to 1 %.
    pub times: Histogram<u64>,
    /// The answer that took longest.
    pub longest: Option<Done>,
}

/// How long an answer took.
pub fn response_ns(done: &Done) -> Nanos {
    done.done_ns - done.request.intended_ns
}

impl Responses {
    /// None yet.
    pub fn new() -> Responses {
        Responses { times: Histogram::new(2).expect("two digits are allowed"), longest: None }
    }

    fn record(&mut self, done: &Done) {
        self.times.record(response_ns(done)).expect("histograms grow");
        if self.longest.is_none_or(|longest| response_ns(&longest) < response_ns(done)) {
            self.longest = Some(*done);
        }
    }
}

/// What a workload gets in a shared run.
pub struct Tally<'a> {
    level: &'a Level,
    cutter: Cutter,
    pauses: Option<Bursts>,
    progress: Progress,
}

impl Tally<'_> {
    /// Nothing yet.
    pub fn new(level: &Level, pauses: Option<Bursts>) -> Tally<'_> {
        Tally { level, cutter: Cutter::new(level.window_bytes(), pauses), pauses, progress: Progress::default() }
    }

    /// An answer. Its response time is recorded if the request was outstanding only in windows whose guarantee fits.
    pub fn answered(&mut self, done: &Done, responses: &mut Responses) {
        let Done { request, done_ns, .. } = *done;
        let fits = |window| self.level.fit(window).is_some_and(Fit::fits);
        if request.intended_ns >= WARM_UP_NS && self.cutter.since(request.intended_ns).all(fits) {
            responses.record(done);
        }
        self.cutter.answered(done_ns, request.bytes);
        self.progress.answered(done_ns, request.bytes);
    }

    /// The windows. One beyond the end of the dedicated run has nothing to be compared with, and does not count.
    pub fn counts(&self, end_ns: Nanos) -> Counts {
        let mut counts = Counts::default();
        for window in self.cutter.windows(WARM_UP_NS, end_ns) {
            if let Some(fit) = self.level.fit(window.number) {
                counts.count(&window, fit);
            }
        }
        counts
    }

    /// The avoidable ones among them.
    pub fn avoidable(&self, end_ns: Nanos) -> Vec<window::Window> {
        let mut windows = self.cutter.windows(WARM_UP_NS, end_ns);
        windows.retain(|window| self.level.fit(window.number).is_some_and(|fit| window.is_avoidable(fit)));
        windows
    }

    /// The duration of each window, from the first on.
    pub fn windows(&self, end_ns: Nanos) -> Vec<Nanos> {
        self.cutter.windows(0, end_ns).iter().map(|window| window.took_ns).collect()
    }

    /// The time that its work takes alone, over its share of the time that it took: its insulation. NaN past the end of
    /// the dedicated run.
    pub fn insulation(&self, dedicated: &Progress, share: f64, end_ns: Nanos) -> f64 {
        let at = |now| dedicated.at(self.progress.answered_at(now));
        let alone_ns = at(WARM_UP_NS).zip(at(end_ns)).map(|(from, to)| to - from);
        alone_ns.map_or(f64::NAN, |alone_ns| alone_ns as f64 / ((end_ns - WARM_UP_NS) as f64 * share))
    }

    /// Whether the server classified these windows as the dedicated run does.
    pub fn agreement(&self, missed: &[Window], dedicated: &Progress) -> Agreement {
        let (mut agreement, terms) = (Agreement::default(), Terms { level: self.level, pauses: self.pauses });
        agreement.count(missed, WARM_UP_NS, &self.progress, dedicated, terms);
        agreement
    }
}

/// The result of a set under a policy.
pub struct Shared {
    /// The numbers of its workloads.
    pub members: Vec<usize>,
    /// By member of the set.
    pub counts: Vec<Counts>,
    /// By member: the avoidable windows.
    pub avoidable: Vec<Vec<window::Window>>,
    /// Response times of all members. The number of a volume is that of its member.
    pub responses: Responses,
    /// By member: the duration of each window, from the first on.
    pub windows: Vec<Vec<Nanos>>,
    /// By member.
    pub insulation: Vec<f64>,
    /// Of all members with a guarantee.
    pub agreement: Agreement,
}

/// A set of workloads, each with an equal share.
pub struct Set<'a> {
    /// The ten workloads.
    pub cast: &'a Cast,
    /// Their guarantees at this size of a set.
    pub levels: &'a [Level],
    /// Which of them are in the set.
    pub members: &'a [usize],
    /// Whether only every second one has a guarantee.
    pub is_mixed: bool,
    /// The length of the run.
    pub end_ns: Nanos,
    /// The run's seed.
    pub seed: u64,
}

impl Set<'_> {
    /// Whether a member has a guarantee.
    pub fn has_guarantee(&self, member: usize) -> bool {
        !self.is_mixed || member.is_multiple_of(2)
    }

    /// Runs the set under a policy.
    pub fn run(&self, policy: &Policy) -> Result<Shared, String> {
        self.watch(policy, self.end_ns..self.end_ns).map(|(shared, _)| shared)
    }

    /// The same; returns the slices of this time, too.
    pub fn watch(&self, policy: &Policy, time: Range<Nanos>) -> Result<(Shared, Vec<Slice>), String> {
        let (ground, workloads) = (&self.cast.ground, &self.cast.workloads);
        let (share, volume_bytes) = (equal_share(self.members.len()), ground.volume_bytes()?);
        let (mut tenants, mut volumes, mut tallies) = (Vec::new(), Vec::new(), Vec::new());
        for (member, &at) in self.members.iter().enumerate() {
            // A tenant without a guarantee is judged by its throughput, which pauses would lessen.
            let pauses = workloads[at].pauses.filter(|_| self.has_guarantee(member));
            let told = policy.is_told && self.has_guarantee(member);
            tenants.push(ground.tenant(share, if told { self.levels[at].bytes_per_s } else { 0 }));
            volumes.push(ground.volume(member, at, workloads[at].load(volume_bytes, pauses))?);
            tallies.push(Tally::new(&self.levels[at], pauses));
        }
        let mut responses = Responses::new();
        let mut done = |done: Done| tallies[done.volume].answered(&done, &mut responses);
        let mut bench = ground.bench(policy, &tenants, volumes, self.seed)?;
        run(&mut bench, time.start, &mut done)?;
        let mut slices: Vec<Slice> = Vec::new();
        while bench.now() < time.end {
            let until_ns = time.end.min(bench.now() + LOOK_NS);
            run(&mut bench, until_ns, &mut done)?;
            let last_ns = slices.last().map_or(time.start, |slice| slice.ended);
            slices.extend(bench.snapshot()?.slices.into_iter().filter(|slice| slice.ended > last_ns));
        }
        run(&mut bench, self.end_ns, &mut done)?;
        let counts = tallies.iter().map(|tally| tally.counts(self.end_ns)).collect();
        let avoidable = tallies.iter().map(|tally| tally.avoidable(self.end_ns)).collect();
        let windows = tallies.iter().map(|tally| tally.windows(self.end_ns)).collect();
        let part = 1.0 / self.members.len() as f64;
        let alone = self.members.iter().map(|&at| &self.cast.progress[at]);
        let pairs = tallies.iter().zip(alone);
        let insulation = pairs.clone().map(|(tally, alone)| tally.insulation(alone, part, self.end_ns)).collect();
        let mut agreement = Agreement::default();
        for (tenant, (tally, alone)) in (0..).zip(pairs) {
            agreement.add(&tally.agreement(&missed(&mut bench, TenantId(tenant))?, alone));
        }
        let members = self.members.to_vec();
        Ok((Shared { members, counts, avoidable, responses, windows, insulation, agreement }, slices))
    }
}

/// The windows that the server says a tenant missed.
fn missed(bench: &mut Bench, tenant: TenantId) -> Result<Vec<Window>, String> {
    match bench.ask(Command::Violations(tenant))? {
        Report::Violations(_, windows) => Ok(windows),
        other => Err(format!("missed windows were asked for: {other:?}")),
    }
}

/// The share of each of so many tenants.
pub fn equal_share(tenants: usize) -> Option<Share> {
    Share::from_ppb(Share::ONE.ppb() / tenants as u64)
}
