//! Runs workloads: each alone on the dedicated disk, and sets of them under a policy.

use engine::control::{CacheSpec, LEAST_BYTES, TenantSpec, WriteCache};
use engine::disk::policy::Kind;
use engine::units::{MILLISECOND, Nanos, SECOND, Share};
use hdrhistogram::Histogram;
use sim::bench::{Done, Volume};

use super::super::stand::Stand;
use super::level::Level;
use super::policies::Policy;
use super::window::{Counts, Cutter, Progress};
use super::workloads::{COUNT, Workload};

/// The longest round.
pub const ROUND_NS: Nanos = 2400 * MILLISECOND;
/// R.
pub const R: f64 = 0.9;
const R_PERMILLE: u32 = 900;
/// Windows that begin earlier are not counted: the server has not yet measured anything.
pub const WARM_UP_NS: Nanos = 10 * SECOND;

/// What the server's cache does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cache {
    /// Next to nothing, as in the paper: the smallest partitions, no read-ahead, write-through.
    Smallest,
    /// Reads ahead and writes back, in a partition of so many bytes for each workload, alone and together: the effect of
    /// the disk's time is not mixed with that of the partition's size.
    Each(u64),
}

/// The disk and the server of all runs.
pub struct Ground {
    /// The disk, probed, and the server's settings.
    pub stand: Stand,
    cache: Cache,
}

/// A workload in a run.
pub struct Member {
    /// Its workload, which also says where its volume is.
    pub workload: usize,
    /// Its tenant's share; `None`: a part of what is not promised.
    pub share: Option<Share>,
    /// Its tenant's guarantee, bytes per second; 0 for none.
    pub min_bytes_per_s: u64,
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

    fn tenant(&self, member: &Member) -> TenantSpec {
        let cache = match self.cache {
            Cache::Smallest => LEAST_BYTES,
            Cache::Each(bytes) => bytes,
        };
        let Member { share, min_bytes_per_s, .. } = *member;
        TenantSpec { share, min_bytes_per_s, cache: CacheSpec::Asked(cache), ..TenantSpec::default() }
    }

    fn volume(&self, tenant: usize, place: usize, workload: &Workload, pauses: bool) -> Result<Volume, String> {
        let (start, bytes) = self.stand.place(place, COUNT)?;
        let write_cache = match self.cache {
            Cache::Smallest => WriteCache::None,
            Cache::Each(_) => WriteCache::Volatile,
        };
        let load = workload.load(bytes, workload.pauses.filter(|_| pauses));
        Ok(Volume { tenant, start, bytes, write_cache, load })
    }

    /// Runs a workload alone on the same server with the whole disk.
    pub fn dedicated(&self, workloads: &[Workload], at: usize, end_ns: Nanos, seed: u64) -> Result<Progress, String> {
        let stand = Stand { policy: Kind::Insulated, ..self.stand.clone() };
        let alone = Member { workload: at, share: None, min_bytes_per_s: 0 };
        let volume = self.volume(0, at, &workloads[at], false)?;
        let mut bench = stand.bench(&[self.tenant(&alone)], vec![volume], seed)?;
        let (mut progress, mut failed) = (Progress::default(), None);
        bench.run(end_ns, |done| {
            failed = failed.or(done.failed.then_some(done));
            progress.answered(done.done_ns, done.request.bytes);
        });
        good(failed).map(|()| progress)
    }

    /// Runs members together under a policy; calls `done` for each answer.
    pub fn together(
        &self,
        kind: Kind,
        workloads: &[Workload],
        members: &[Member],
        end_ns: Nanos,
        seed: u64,
        mut done: impl FnMut(Done),
    ) -> Result<(), String> {
        let stand = Stand { policy: kind, ..self.stand.clone() };
        let tenants: Vec<_> = members.iter().map(|member| self.tenant(member)).collect();
        let volume =
            |(at, member): (usize, &Member)| self.volume(at, member.workload, &workloads[member.workload], true);
        let volumes = members.iter().enumerate().map(volume).collect::<Result<_, _>>()?;
        let mut failed = None;
        stand.bench(&tenants, volumes, seed)?.run(end_ns, |answer| {
            failed = failed.or(answer.failed.then_some(answer));
            done(answer);
        });
        good(failed)
    }
}

fn good(failed: Option<Done>) -> Result<(), String> {
    failed.map_or(Ok(()), |done| Err(format!("{done:?} failed on a disk without faults")))
}

/// A histogram of response times, nanoseconds, to 1 %.
pub fn latencies() -> Histogram<u64> {
    Histogram::new(2).expect("two digits are allowed")
}

/// The result of a set under a policy.
pub struct Shared {
    /// By member of the set.
    pub counts: Vec<Counts>,
    /// Response times of requests that were outstanding only in windows whose guarantee fits, nanoseconds.
    pub latency: Histogram<u64>,
    /// By member: the duration of each window, from the first on, nanoseconds.
    pub windows: Vec<Vec<Nanos>>,
}

/// A set of workloads.
pub struct Set<'a> {
    /// The ten workloads.
    pub workloads: &'a [Workload],
    /// Their guarantees at this size of a set.
    pub levels: &'a [Level],
    /// Which of them are in the set.
    pub members: &'a [usize],
    /// The length of the run.
    pub end_ns: Nanos,
    /// The run's seed.
    pub seed: u64,
}

impl Set<'_> {
    /// Runs the set under a policy, each member with an equal share.
    pub fn run(&self, ground: &Ground, policy: &Policy) -> Result<Shared, String> {
        let share = Share::from_ppb(Share::ONE.ppb() / self.members.len() as u64);
        let member = |&workload: &usize| Member {
            workload,
            share,
            min_bytes_per_s: policy.told(self.levels[workload].bytes_per_s),
        };
        let members: Vec<_> = self.members.iter().map(member).collect();
        let cutter = |&at: &usize| Cutter::new(self.levels[at].window_bytes(), self.workloads[at].pauses);
        let mut cutters: Vec<_> = self.members.iter().map(cutter).collect();
        let mut latency = latencies();
        let fits = |at: usize, window: usize| self.levels[self.members[at]].fit(window).is_some_and(|fit| fit.fits());
        ground.together(
            policy.kind,
            self.workloads,
            &members,
            self.end_ns,
            self.seed,
            |Done { volume, request, done_ns, .. }| {
                let mut outstanding = cutters[volume].since(request.intended_ns);
                if request.intended_ns >= WARM_UP_NS && outstanding.all(|window| fits(volume, window)) {
                    latency.record(done_ns - request.intended_ns).expect("histograms grow");
                }
                cutters[volume].answered(done_ns, request.bytes);
            },
        )?;
        let (mut counts, mut windows) = (Vec::new(), Vec::new());
        for (cutter, &at) in cutters.iter().zip(self.members) {
            let mut count = Counts::default();
            for window in cutter.windows(WARM_UP_NS, self.end_ns) {
                // A window beyond the end of the dedicated run has nothing to be compared with.
                if let Some(fit) = self.levels[at].fit(window.number) {
                    count.count(&window, fit);
                }
            }
            counts.push(count);
            windows.push(cutter.windows(0, self.end_ns).iter().map(|window| window.took_ns).collect());
        }
        Ok(Shared { counts, latency, windows })
    }
}
