//! Live measurements: counters of each disk are sampled, and rates and insulation follow from two samples.
//!
//! ```text
//!   sample ── sample ── sample ── … ── sample ── now        at most SAMPLES_MAX of a disk
//!            ▲ insulation: ten rounds ago     ▲ rates: two seconds ago
//! ```
//!
//! The insulation of a tenant is the standalone-equivalent time of its work and of its clients' pauses, divided by its
//! share of the time (engine, [`Progress`]): against the whole cache, and against the cache that it has. Ten rounds
//! average out which tenant's slice comes first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use engine::control::{Progress, Snapshot, TenantStats};
use engine::disk::policy::{TenantPlan, Usage};
use engine::ids::TenantId;
use engine::latency::{ByOp, Latencies, Percentiles};
use engine::units::{MILLISECOND, Nanos, SECOND};

use super::offload::Offloading;
use super::shares::Shares;
use super::view::{
    ByOpView, Condition, DelayView, GuaranteeView, InsulationView, LatencyView, LiveView, OwnedView, PercentilesView,
    PolicyView, RatesView, RatioView, SizingView, SliceView, TenantView, UsageView,
};
use super::{Control, Error, Kind, Running};
use crate::quantity::{Name, Time};
use crate::store::Chosen;

/// The interval of samples: what is shown changes as fast as people can follow.
const PERIOD: Duration = Duration::from_millis(500);
/// The window of insulation, rounds, and its minimum.
const WINDOW_ROUNDS: u64 = 10;
const WINDOW_NS_MIN: Nanos = 5 * SECOND;
/// The window of rates, rounds, and its minimum.
const RATES_ROUNDS: u64 = 2;
const RATES_NS_MIN: Nanos = 2 * SECOND;
/// Samples must be at least this far apart to be compared.
const APART_NS_MIN: Nanos = 100 * MILLISECOND;
/// Samples of a disk that are kept.
const SAMPLES_MAX: u64 = 64;
/// How the standalone-equivalent time is predicted, for the API.
const PREDICTION: &str = "from the steady part of the tenant's slices, its miss-ratio curve and its dirty data";
const PREDICTION_BY_COST: &str =
    "from the cost of its requests, their load on the device, its miss-ratio curve and its dirty data";
/// The same with the cache that the tenant has.
const PREDICTION_OWN: &str = "from the steady part of the tenant's slices";
const PREDICTION_OWN_BY_COST: &str = "from the cost of its requests and their load on the device";
/// Without insulation, with either cache.
const PREDICTION_BY_PROFILE: &str =
    "from the profile of the device, within 0.1; not known where the profile does not say that closely";

/// The cache of the disk of its own with which a tenant is compared.
#[derive(Clone, Copy, Debug)]
pub(super) enum Against {
    WholeCache,
    OwnCache,
}

/// The samples of each disk.
pub type AllSeries = Mutex<BTreeMap<Name, Series>>;

/// From what standalone-equivalent time is derived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Slices,
    Cost,
    Profile,
}

impl By {
    /// Only policies with slices have a round, and only estimates from a profile are uncertain.
    fn of(plan: &TenantPlan) -> By {
        match (plan.round_ns > 0, plan.uncertain_ns > 0) {
            (true, _) => By::Slices,
            (_, true) => By::Profile,
            _ => By::Cost,
        }
    }
}

/// The counters of a tenant.
#[derive(Clone, PartialEq, Debug)]
struct Counters {
    share_ppb: u64,
    /// Slices so far; `None` without a plan.
    slices: Option<u64>,
    by: By,
    progress: Option<Progress>,
    wanting_ns: Nanos,
    reads: u64,
    read_bytes: u64,
    writes: u64,
    write_bytes: u64,
    /// Delays of thread, cache, queue, slice, disk and ceiling.
    delays_ns: [Nanos; 6],
}

impl Counters {
    fn of(share_ppb: u64, id: TenantId, snapshot: &Snapshot) -> Option<Counters> {
        let stats = stats_of(snapshot, id)?;
        let mut counters = Counters {
            share_ppb,
            slices: stats.plan.map(|plan| plan.slices),
            by: stats.plan.map_or(By::Slices, |plan| By::of(&plan)),
            progress: stats.progress,
            wanting_ns: stats.wanting_ns,
            reads: 0,
            read_bytes: 0,
            writes: 0,
            write_bytes: 0,
            delays_ns: [0; 6],
        };
        for volume in snapshot.volumes.iter().filter(|volume| volume.tenant == id) {
            counters.reads += volume.read.requests;
            counters.read_bytes += volume.read.bytes;
            counters.writes += volume.write.requests;
            counters.write_bytes += volume.write.bytes;
            let delays = [
                volume.thread_delay_ns,
                volume.cache_delay_ns,
                volume.queue_delay_ns,
                volume.slice_delay_ns,
                volume.disk_delay_ns,
                volume.ceiling_delay_ns,
            ];
            counters.delays_ns.iter_mut().zip(delays).for_each(|(sum, delay)| *sum += delay);
        }
        Some(counters)
    }

    /// Whether the difference to an earlier sample is valid: no counter was reset, and the share is the same.
    fn follows(&self, earlier: &Counters) -> bool {
        let counts = |counters: &Counters| {
            let Counters { slices, wanting_ns, reads, read_bytes, writes, write_bytes, .. } = *counters;
            let single = [slices.unwrap_or(0), wanting_ns, reads, read_bytes, writes, write_bytes];
            single.into_iter().chain(counters.delays_ns).collect::<Vec<_>>()
        };
        (self.share_ppb, self.slices.is_some()) == (earlier.share_ppb, earlier.slices.is_some())
            && counts(self).iter().zip(counts(earlier)).all(|(now, before)| *now >= before)
    }

    fn ratio(&self, earlier: &Counters, past_ns: Nanos, against: Against) -> Option<RatioView> {
        let (now, before) = self.progress.zip(earlier.progress).filter(|_| self.share_ppb > 0)?;
        let share = self.share_ppb as f64 / 1e9;
        let ratio = match against {
            Against::WholeCache => now.insulation_since(&before, share)?,
            Against::OwnCache => now.own_cache_insulation_since(&before, share)?,
        };
        let prediction = match (self.by, against) {
            (By::Slices, Against::WholeCache) => PREDICTION,
            (By::Slices, Against::OwnCache) => PREDICTION_OWN,
            (By::Cost, Against::WholeCache) => PREDICTION_BY_COST,
            (By::Cost, Against::OwnCache) => PREDICTION_OWN_BY_COST,
            (By::Profile, _) => PREDICTION_BY_PROFILE,
        };
        Some(RatioView { ratio, window_seconds: seconds(past_ns), prediction: prediction.into() })
    }

    fn rates(&self, earlier: &Counters, past_ns: Nanos) -> RatesView {
        let past = seconds(past_ns);
        let rate = |now: u64, before: u64| (now - before) as f64 / past;
        let delay = |i: usize| seconds(self.delays_ns[i] - earlier.delays_ns[i]) / past;
        RatesView {
            window_seconds: past,
            reads: rate(self.reads, earlier.reads),
            read_bytes: rate(self.read_bytes, earlier.read_bytes),
            writes: rate(self.writes, earlier.writes),
            write_bytes: rate(self.write_bytes, earlier.write_bytes),
            delay_seconds: DelayView {
                thread: delay(0),
                cache: delay(1),
                queue: delay(2),
                slice: delay(3),
                disk: delay(4),
                ceiling: delay(5),
            },
        }
    }
}

/// The counters of a disk at one moment.
#[derive(Clone, Debug)]
pub struct Sample {
    now: Nanos,
    round_ns: Nanos,
    /// Time with a request in the device since the start.
    busy_ns: Nanos,
    tenants: BTreeMap<Name, Counters>,
}

impl Sample {
    fn new(running: &Running, snapshot: &Snapshot) -> Sample {
        let shares = Shares::of(running);
        let of = |(name, tenant): (&Name, &super::Tenant)| {
            Some((name.clone(), Counters::of(shares.effective_ppb(name).unwrap_or(0), tenant.id, snapshot)?))
        };
        let round_ns = snapshot.tenants.iter().filter_map(|stats| stats.plan).map(|plan| plan.round_ns).max();
        Sample {
            now: snapshot.now,
            round_ns: round_ns.unwrap_or(0),
            busy_ns: snapshot.busy_ns,
            tenants: running.tenants.iter().filter_map(of).collect(),
        }
    }

    fn window_ns(&self) -> Nanos {
        (WINDOW_ROUNDS * self.round_ns).max(WINDOW_NS_MIN)
    }

    fn rates_ns(&self) -> Nanos {
        (RATES_ROUNDS * self.round_ns).max(RATES_NS_MIN)
    }
}

/// The latest samples of a disk.
#[derive(Default, Debug)]
pub struct Series {
    samples: VecDeque<Sample>,
    time: DiskUse,
}

/// Uses of a disk's time, nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DiskUse {
    /// The tenants' standalone-equivalent time.
    pub tenant_ns: Nanos,
    /// Lost in context switches.
    pub switch_ns: Nanos,
    /// Idle.
    pub idle_ns: Nanos,
}

impl Series {
    /// The uses of the disk's time. The division of the current slice is corrected when it ends, and a counter must not
    /// decrease; so a counter that is too high stays unchanged until the true value has reached it.
    fn time(&mut self, snapshot: &Snapshot) -> DiskUse {
        let (used, past_ns) = (snapshot.time, snapshot.busy_ns + snapshot.idle_ns);
        let told = &mut self.time;
        told.tenant_ns = told.tenant_ns.max(used.tenant_ns);
        told.switch_ns = told.switch_ns.max(used.switch_ns);
        told.idle_ns = told.idle_ns.max(past_ns.saturating_sub(used.tenant_ns + used.switch_ns));
        *told
    }

    /// Adds a sample, unless it is too close to the one before.
    fn add(&mut self, sample: Sample) {
        let window_ns = sample.window_ns();
        // At this interval, twice the window fits into the samples that are kept.
        let apart_ns = (2 * window_ns / SAMPLES_MAX).max(APART_NS_MIN);
        if self.samples.back().is_some_and(|last| sample.now < last.now + apart_ns) {
            return;
        }
        // One sample that is older than the window is kept, as its beginning.
        while self.samples.get(1).is_some_and(|second| second.now + window_ns <= sample.now)
            || self.samples.len() as u64 == SAMPLES_MAX
        {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }

    /// The tenant's counters in the sample nearest to `past_ns` ago that can be compared, and how long ago that was.
    fn before<'a>(&'a self, now: &Sample, name: &Name, past_ns: Nanos) -> Option<(&'a Counters, Nanos)> {
        let counters = now.tenants.get(name)?;
        let mut found = None;
        for sample in self.samples.iter().rev().filter(|sample| sample.now + APART_NS_MIN <= now.now) {
            match sample.tenants.get(name).filter(|earlier| counters.follows(earlier)) {
                Some(earlier) => found = Some((earlier, now.now - sample.now)),
                None => break,
            }
            if sample.now + past_ns <= now.now {
                break;
            }
        }
        found
    }

    /// The insulation of a tenant, if it has demand.
    fn ratio(&self, now: &Sample, name: &Name, against: Against) -> Option<RatioView> {
        let (earlier, past_ns) = self.before(now, name, now.window_ns())?;
        now.tenants.get(name)?.ratio(earlier, past_ns, against)
    }

    /// The fraction of recent time in which the disk was busy.
    fn busy_ratio(&self, now: &Sample) -> Option<f64> {
        let long_ago = |sample: &&Sample| sample.now + now.rates_ns() <= now.now;
        let before = self.samples.iter().rev().find(long_ago).or(self.samples.front())?;
        let (busy_ns, past_ns) = (now.busy_ns.checked_sub(before.busy_ns)?, now.now.checked_sub(before.now)?);
        (past_ns > 0).then(|| (busy_ns as f64 / past_ns as f64).min(1.0))
    }

    /// Bytes per second while the tenant had demand, over the window of insulation; `None` without demand.
    fn bandwidth(&self, now: &Sample, name: &Name) -> Option<f64> {
        let (earlier, _) = self.before(now, name, now.window_ns())?;
        let counters = now.tenants.get(name)?;
        let bytes = |counters: &Counters| counters.read_bytes + counters.write_bytes;
        let wanted_ns = counters.wanting_ns - earlier.wanting_ns;
        (wanted_ns > 0).then(|| (bytes(counters) - bytes(earlier)) as f64 / seconds(wanted_ns))
    }

    fn rates(&self, now: &Sample, name: &Name) -> Option<RatesView> {
        let (earlier, past_ns) = self.before(now, name, now.rates_ns())?;
        Some(now.tenants.get(name)?.rates(earlier, past_ns))
    }
}

impl Control {
    fn series(&self) -> MutexGuard<'_, BTreeMap<Name, Series>> {
        self.series.lock().expect("nobody panics while holding it")
    }

    /// Drops the samples of a disk whose policy has changed: they say nothing about the new one.
    pub(super) fn forget_samples(&self, disk: &Name) {
        if let Some(series) = self.series().get_mut(disk) {
            series.samples.clear();
        }
        self.forget_history(disk);
    }

    /// Drops all of a disk that was removed. A new disk of the same name starts with zero.
    pub(super) fn forget_series(&self, disk: &Name) {
        self.series().remove(disk);
        self.forget_history(disk);
    }

    /// Samples all disks periodically, until the server shuts down.
    pub async fn watch(self: Arc<Control>) {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while !self.is_shutting_down() {
            ticks.tick().await;
            let disks = self.running().into_iter().map(|(disk, _)| disk);
            let looks = disks.map(|disk| async {
                let snapshot = self.snapshot(&disk).await?;
                self.note_losses(&disk, &snapshot);
                self.note_decisions(&disk, &snapshot).await;
                self.note_misses(&disk, &snapshot);
                self.note_offload(&disk, &snapshot);
                self.note_history(&disk, &snapshot);
                let state = self.state();
                let sample = Sample::new(state.disk(&disk).ok()?, &snapshot);
                Some((disk, sample))
            });
            let samples: BTreeMap<Name, Sample> =
                futures::future::join_all(looks).await.into_iter().flatten().collect();
            let mut series = self.series();
            series.retain(|disk, _| samples.contains_key(disk));
            for (disk, sample) in samples {
                series.entry(disk).or_default().add(sample);
            }
        }
    }

    /// The insulation of those tenants of a disk that have demand.
    pub(super) fn ratios(
        &self,
        disk: &Name,
        running: &Running,
        snapshot: &Snapshot,
        against: Against,
    ) -> Vec<(Name, f64)> {
        let (all, now) = (self.series(), Sample::new(running, snapshot));
        let Some(series) = all.get(disk) else { return Vec::new() };
        let ratio = |name: &Name| {
            let ratio = series.ratio(&now, name, against).or_else(|| self.told_ratio(name, against))?.ratio;
            Some((name.clone(), ratio))
        };
        running.tenants.keys().filter_map(ratio).collect()
    }

    /// The uses of a disk's time.
    pub(super) fn disk_use(&self, disk: &Name, snapshot: &Snapshot) -> DiskUse {
        self.series().entry(disk.clone()).or_default().time(snapshot)
    }

    /// The tenants of a disk, for the API.
    pub(super) fn tenant_views(
        &self,
        disk: &Name,
        running: &Running,
        chosen: &Chosen,
        snapshot: Option<&Snapshot>,
    ) -> Vec<TenantView> {
        let now = snapshot.map(|snapshot| Sample::new(running, snapshot));
        let all = self.series();
        let (series, now, shares) = (all.get(disk), now.as_ref(), Shares::of(running));
        let keep = f64::from(chosen.settings.insulation_permille) / 1000.0;
        let insulation = |name: &Name, against| {
            let measured = series.zip(now).and_then(|(series, now)| series.ratio(now, name, against));
            measured.or_else(|| self.told_ratio(name, against))
        };
        let view = |(name, tenant): (&Name, &super::Tenant)| TenantView {
            name: name.to_string(),
            volumes: running.members(name).map(|(volume, _)| volume.to_string()).collect(),
            share: shares.view(name),
            guarantee: shares.guarantee(name).map(|guarantee| {
                let own = insulation(name, Against::WholeCache).or_else(|| insulation(name, Against::OwnCache));
                let rate = series.zip(now).and_then(|(series, now)| series.bandwidth(now, name));
                let windows = snapshot.and_then(|snapshot| stats_of(snapshot, tenant.id)?.windows);
                let kept = own.map_or(0.0, |own| own.ratio / keep);
                let kept_ratio = rate.map(|rate| (rate / guarantee.min_bandwidth as f64).max(kept));
                GuaranteeView { kept_ratio, windows: windows.map(Into::into), ..guarantee }
            }),
            slice: snapshot.and_then(|snapshot| slice_view(&plan_of(snapshot, tenant.id)?, chosen)),
            usage: snapshot.and_then(|snapshot| Some(usage_view(&stats_of(snapshot, tenant.id)?.usage))),
            insulation: insulation(name, Against::WholeCache),
            own_cache_insulation: insulation(name, Against::OwnCache),
            rates: series.zip(now).and_then(|(series, now)| series.rates(now, name)),
            latency: snapshot.and_then(|snapshot| Some(latency_view(&stats_of(snapshot, tenant.id)?.latency))),
            sizing: snapshot.and_then(|snapshot| {
                let sizing = stats_of(snapshot, tenant.id)?.sizing?;
                Some(SizingView::new(&sizing, snapshot.now))
            }),
        };
        running.tenants.iter().map(view).collect()
    }

    /// The current state of all disks or of one, with their tenants.
    pub async fn live(&self, only: Option<&Name>) -> Result<Vec<LiveView>, Error> {
        let disks: Vec<Name> = self.state().disks.keys().cloned().collect();
        if let Some(unknown) = only.filter(|only| !disks.contains(only)) {
            return Err(Error::Unknown(Kind::Disk, unknown.clone()));
        }
        let wanted = disks.iter().filter(|disk| only.is_none_or(|only| only == *disk));
        Ok(futures::future::join_all(wanted.map(|disk| self.live_disk(disk))).await)
    }

    async fn live_disk(&self, disk: &Name) -> LiveView {
        let snapshot = self.snapshot(disk).await;
        let state = self.state();
        let mut view = LiveView {
            disk: disk.to_string(),
            condition: Condition::Offline,
            policy: None,
            busy_ratio: None,
            tenants: Vec::new(),
            slices: Vec::new(),
            offload: None,
        };
        let Ok(running) = state.disk(disk) else { return view };
        let chosen = self.chosen(disk, &running.store);
        view.condition = Condition::Online;
        view.policy = Some(policy_view(running, &chosen, snapshot.as_deref()));
        view.tenants = self.tenant_views(disk, running, &chosen, snapshot.as_deref());
        view.offload = running.offloading().ok().flatten().map(Offloading::live);
        let now = snapshot.as_deref().map(|snapshot| Sample::new(running, snapshot));
        view.busy_ratio = now.and_then(|now| self.series().get(disk)?.busy_ratio(&now));
        view.slices = snapshot.map(|snapshot| owned_views(running, &snapshot)).unwrap_or_default();
        view
    }
}

fn seconds(ns: Nanos) -> f64 {
    ns as f64 / 1e9
}

fn stats_of(snapshot: &Snapshot, tenant: TenantId) -> Option<&TenantStats> {
    snapshot.tenants.iter().find(|stats| stats.tenant == tenant)
}

fn plan_of(snapshot: &Snapshot, tenant: TenantId) -> Option<TenantPlan> {
    stats_of(snapshot, tenant)?.plan
}

fn latency_view(all: &Latencies) -> LatencyView {
    let percentiles = |of: Percentiles| {
        (of.count > 0).then(|| PercentilesView {
            requests: of.count,
            p50_seconds: seconds(of.p50_ns),
            p99_seconds: seconds(of.p99_ns),
            p999_seconds: seconds(of.p999_ns),
            max_seconds: seconds(of.max_ns),
        })
    };
    let by_op =
        |of: ByOp| ByOpView { read: percentiles(of.read), write: percentiles(of.write), both: percentiles(of.both) };
    LatencyView { window_seconds: seconds(all.window_ns), recent: by_op(all.recent), total: by_op(all.total) }
}

fn usage_view(usage: &Usage) -> UsageView {
    UsageView {
        disk_seconds: seconds(usage.owned_ns),
        device_requests: usage.completed.requests,
        device_bytes: usage.completed.bytes,
        delivered_bytes: usage.delivered.bytes,
    }
}

fn slice_view(plan: &TenantPlan, chosen: &Chosen) -> Option<SliceView> {
    chosen.has_slices().then(|| SliceView {
        seconds: seconds(plan.slice_ns),
        loss_seconds: seconds(plan.loss_ns),
        round_seconds: seconds(plan.round_ns),
        wait_seconds_max: seconds(chosen.settings.round_max_ns),
    })
}

fn owned_views(running: &Running, snapshot: &Snapshot) -> Vec<OwnedView> {
    let name =
        |id: TenantId| running.tenants.iter().find(|(_, tenant)| tenant.id == id).map(|(name, _)| name.to_string());
    let view = |slice: &engine::disk::policy::Slice| OwnedView {
        tenant: name(slice.tenant),
        seconds_ago: seconds(snapshot.now - slice.begun),
        seconds: seconds(slice.ended - slice.begun),
    };
    snapshot.slices.iter().map(view).collect()
}

/// The policy of a disk, the reason for it, and the round and R in effect.
pub(super) fn policy_view(running: &Running, chosen: &Chosen, snapshot: Option<&Snapshot>) -> PolicyView {
    let plans = |(name, tenant): (&Name, &super::Tenant)| Some((name.clone(), plan_of(snapshot?, tenant.id)?));
    let plans: Vec<(Name, TenantPlan)> = running.tenants.iter().filter_map(plans).collect();
    let (insulated, slices) = (chosen.settings.insulates(), chosen.has_slices());
    let settings = chosen.settings;
    let requested = f64::from(settings.insulation_permille) / 1000.0;
    let short = shortest(&plans, settings.insulation_permille);
    let reason = short.map(|(name, plan)| {
        let need_ns = plan.need_ns.unwrap_or(0);
        let round_ns = u128::from(plan.round_ns) * u128::from(need_ns) / u128::from(plan.slice_ns.max(1));
        let time = |ns: u128| Time(Duration::from_millis((ns / u128::from(MILLISECOND)) as u64));
        format!(
            "tenant '{name}' needs a slice of {} in a round of {}, and the longest round is {}",
            time(need_ns.into()),
            time(round_ns),
            time(settings.round_max_ns.into())
        )
    });
    PolicyView {
        name: chosen.name,
        reason: chosen.reason.clone(),
        requested: running.store.known().scheduling.policy,
        insulation: InsulationView {
            requested,
            effective: insulated
                .then(|| short.map_or(requested, |(_, plan)| f64::from(plan.efficiency_permille) / 1000.0)),
            reason,
        },
        round_seconds: plans.iter().map(|(_, plan)| seconds(plan.round_ns)).reduce(f64::max).filter(|_| slices),
        round_seconds_max: seconds(settings.round_max_ns),
    }
}

/// Of the tenants whose slices are shorter than they need, the one with the lowest efficiency.
fn shortest(plans: &[(Name, TenantPlan)], keep_permille: u32) -> Option<(&Name, &TenantPlan)> {
    let is_short = |plan: &TenantPlan| {
        plan.need_ns.is_some_and(|need| need > plan.slice_ns + plan.slice_ns / 100)
            && plan.efficiency_permille < keep_permille
    };
    let short = plans.iter().filter(|(_, plan)| is_short(plan));
    short.min_by_key(|(_, plan)| plan.efficiency_permille).map(|(name, plan)| (name, plan))
}

#[cfg(test)]
mod tests {
    use engine::disk::policy::DiskTime;

    use super::*;

    fn name() -> Name {
        "db".parse().unwrap()
    }

    /// A tenant with a quarter of the disk, demand all the time since 0, and `useful_ns` of standalone-equivalent time.
    fn sample(now: Nanos, useful_ns: Nanos, share_ppb: u64) -> Sample {
        let counters = Counters {
            share_ppb,
            slices: Some(useful_ns / (10 * MILLISECOND)),
            by: By::Slices,
            progress: Some(Progress {
                standalone_ns: useful_ns,
                own_cache_ns: 2 * useful_ns,
                uncertain_ns: 0,
                elapsed_ns: now,
                requests: now,
                is_certain: true,
            }),
            wanting_ns: now,
            reads: now / MILLISECOND,
            read_bytes: 4096 * (now / MILLISECOND),
            writes: 0,
            write_bytes: 0,
            delays_ns: [0, 0, 0, now / 2, now / 4, 0],
        };
        Sample { now, round_ns: 100 * MILLISECOND, busy_ns: now / 4, tenants: [(name(), counters)].into() }
    }

    #[test]
    fn counters_of_disk_time_never_go_back() {
        let mut series = Series::default();
        let time = |tenant_ns, switch_ns| DiskTime { tenant_ns, switch_ns, ..DiskTime::default() };
        let mut told =
            |busy_ns, idle_ns, time| series.time(&Snapshot { busy_ns, idle_ns, time, ..Snapshot::default() });
        assert_eq!(told(80, 20, time(70, 5)), DiskUse { tenant_ns: 70, switch_ns: 5, idle_ns: 25 });
        assert_eq!(told(80, 22, time(68, 9)), DiskUse { tenant_ns: 70, switch_ns: 9, idle_ns: 25 }, "corrected");
        assert_eq!(told(180, 30, time(150, 20)), DiskUse { tenant_ns: 150, switch_ns: 20, idle_ns: 40 });
    }

    const QUARTER: u64 = 250_000_000;

    #[test]
    fn insulation_is_over_a_window_and_rates_over_a_shorter_one() {
        let mut series = Series::default();
        assert!(
            series.ratio(&sample(SECOND, 0, QUARTER), &name(), Against::WholeCache).is_none(),
            "nothing to compare with"
        );
        // Nine tenths of its share for a minute, then half of it for three seconds.
        (0..120).for_each(|i| series.add(sample(i * SECOND / 2, i * SECOND / 2 * 225 / 1000, QUARTER)));
        let start = 60 * SECOND * 225 / 1000;
        let now = sample(63 * SECOND, start + 3 * SECOND / 8, QUARTER);
        let ratio = series.ratio(&now, &name(), Against::WholeCache).unwrap();
        assert!((5.0..6.0).contains(&ratio.window_seconds), "{ratio:?}");
        let past = ratio.window_seconds - 3.0;
        let expected = (0.9 * past + 0.5 * 3.0) / (past + 3.0);
        assert!((ratio.ratio - expected).abs() < 0.01, "{ratio:?}, {expected}");
        let own = series.ratio(&now, &name(), Against::OwnCache).unwrap();
        assert!((own.ratio - 2.0 * ratio.ratio).abs() < 1e-6, "{own:?}");
        let rates = series.rates(&now, &name()).unwrap();
        assert!(rates.window_seconds < 4.0, "{rates:?}");
        assert!((rates.reads - 1000.0).abs() < 1.0 && (rates.delay_seconds.slice - 0.5).abs() < 0.01, "{rates:?}");
        assert!(series.samples.len() as u64 <= SAMPLES_MAX);
        assert_eq!(series.busy_ratio(&now), Some(0.25));
        let bandwidth = series.bandwidth(&now, &name()).unwrap();
        assert!((bandwidth - 4096e3).abs() < 4096.0, "{bandwidth}");
    }

    #[test]
    fn without_demand_or_after_a_change_there_is_no_ratio() {
        let mut series = Series::default();
        series.add(sample(SECOND, SECOND / 4, QUARTER));
        assert!(series.ratio(&sample(2 * SECOND, SECOND / 2, QUARTER), &name(), Against::WholeCache).is_some());
        assert!(
            series.ratio(&sample(2 * SECOND, SECOND / 2, 2 * QUARTER), &name(), Against::WholeCache).is_none(),
            "another share"
        );
        assert!(
            series.ratio(&sample(2 * SECOND, SECOND / 4, QUARTER), &name(), Against::WholeCache).is_none(),
            "no work"
        );
        assert!(
            series.ratio(&sample(2 * SECOND, 0, QUARTER), &name(), Against::WholeCache).is_none(),
            "the counters began anew"
        );
    }

    #[test]
    fn looks_are_bounded_however_long_the_round() {
        let mut series = Series::default();
        for i in 0..10_000 {
            let round_ns = if i < 5000 { 60 * SECOND } else { 100 * MILLISECOND };
            series.add(Sample { round_ns, ..sample(i * SECOND / 2, 0, QUARTER) });
            assert!(series.samples.len() as u64 <= SAMPLES_MAX);
        }
    }

    #[test]
    fn an_effective_r_that_is_less_is_the_worst_of_those_who_need_more() {
        let plan = |slice, need, efficiency_permille| TenantPlan {
            slice_ns: slice,
            need_ns: need,
            efficiency_permille,
            ..TenantPlan::default()
        };
        let plans = |second| vec![(name(), plan(1000, Some(1000), 925)), ("x".parse().unwrap(), second)];
        let worst = |second, keep| shortest(&plans(second), keep).map(|(_, plan)| plan.efficiency_permille);
        assert_eq!(worst(plan(1000, Some(2000), 800), 900), Some(800));
        assert_eq!(worst(plan(1000, Some(2000), 950), 900), None, "it needs more for what it has at once, and keeps R");
        assert_eq!(worst(plan(1000, None, 100), 900), None, "it does not use its slices up");
    }
}
